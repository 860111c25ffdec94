"""The source files of Ingot as data: names, syntax trees and who imports whom.

An import belongs to the module that defines the name: `from ingot.compiler.ir import graph` is an edge to the
module `graph` when it is a file, and to the package's `__init__` otherwise. That an import also runs the
`__init__` of every enclosing package is not an edge: it says nothing about what the importing file relies on.

Nothing is imported or executed here, so a file that does not even load can still be judged.
"""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "ingot"
LINKED_FOLDERS = ("compiler", "runtime", "frontends")


@dataclass(frozen=True)
class Import:
    """A module named by an import at `line` of `importer`; `late` when a function holds the statement."""

    importer: str
    imported: str
    line: int
    late: bool
    only_for_types: bool

    def __str__(self) -> str:
        return f"{MODULES[self.importer].label}:{self.line} imports {self.imported}"


@dataclass(frozen=True)
class Module:
    """A Python file of the package: its import name, and its path below the repository's top."""

    name: str
    path: Path

    @property
    def label(self) -> str:
        return self.path.as_posix()

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.label)


def package_modules() -> dict[str, Module]:
    """Every module by import name. Linked folders are listed under their real paths: a file appears once."""
    found = {}
    for folder, prefix in [(PACKAGE, ()), *((name, (PACKAGE,)) for name in LINKED_FOLDERS)]:
        for path in python_files(folder):
            parts = (*prefix, *path.with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
    return found


def python_files(folder: str) -> list[Path]:
    """Python files below `folder`, relative to the top; links to folders are not followed."""
    found = []
    for directory, subdirectories, files in os.walk(ROOT / folder, followlinks=False):
        subdirectories[:] = sorted(name for name in subdirectories if name != "__pycache__")
        found += [Path(directory, name).relative_to(ROOT) for name in files if name.endswith(".py")]
    return sorted(found)


MODULES = package_modules()


@cache
def imports() -> tuple[Import, ...]:
    """Every import of one of Ingot's own modules, wherever in a file it stands."""
    return tuple(found for module in MODULES.values() for found in imports_of(module))


def imports_of(module: Module) -> Iterator[Import]:
    for statement, late, only_for_types in import_statements(module.tree):
        for target in targets(module, statement):
            if target.split(".")[0] == PACKAGE and target != module.name:
                yield Import(module.name, target, statement.lineno, late, only_for_types)


def import_statements(
    node: ast.AST, late: bool = False, only_for_types: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Import statements below `node`, each with: inside a function? inside `if TYPE_CHECKING`?"""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late, only_for_types
        elif isinstance(child, ast.If) and is_type_checking(child.test):
            for statement in child.body:
                yield from import_statements(ast.Module([statement], []), late, True)
            for statement in child.orelse:
                yield from import_statements(ast.Module([statement], []), late, only_for_types)
        else:
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from import_statements(child, inside, only_for_types)


def is_type_checking(test: ast.expr) -> bool:
    match test:
        case ast.Name("TYPE_CHECKING") | ast.Attribute(ast.Name("typing"), "TYPE_CHECKING"):
            return True
    return False


def targets(module: Module, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules a statement names, most precise first: a submodule where there is one, else the package."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    base = absolute_base(module, statement)
    for alias in statement.names:
        submodule = f"{base}.{alias.name}"
        yield submodule if submodule in MODULES else base


def absolute_base(module: Module, statement: ast.ImportFrom) -> str:
    """`from ..x import y` in a.b.c means a.x; in a package's __init__ one dot means the package itself."""
    if statement.level == 0:
        return statement.module or ""
    parts = module.name.split(".")
    climb = statement.level - 1 if module.is_package else statement.level
    parts = parts[: len(parts) - climb]
    return ".".join([*parts, statement.module] if statement.module else parts)


def import_graph() -> networkx.DiGraph:
    """Modules and their imports, late ones included; what is imported only for types is left out."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(MODULES)
    graph.add_edges_from((i.importer, i.imported) for i in imports() if not i.only_for_types)
    return graph


def cycles(graph: networkx.DiGraph) -> list[list[str]]:
    """Groups of modules each of which reaches all others of its group."""
    components = networkx.strongly_connected_components(graph)
    return sorted(sorted(component) for component in components if len(component) > 1)
