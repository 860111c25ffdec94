"""Imports go one way, stand at the top of the file, and never form a cycle."""

import ast
import os
import tomllib

import networkx
import pytest

from tests.architecture import layers
from tests.architecture.source_tree import (
    LINKED_FOLDERS,
    MODULES,
    PACKAGE,
    ROOT,
    Import,
    Module,
    cycles,
    import_graph,
    import_statements,
    imports,
    targets,
)

RUNTIME_IMPORTS = [found for found in imports() if not found.only_for_types]


def report(found: list[tuple[Import, str]]) -> str:
    return "\n".join(f"{where}: {why}" for where, why in found)


def test_folders_import_one_way():
    found = [(i, why) for i in RUNTIME_IMPORTS if (why := layers.folder_violation(i.importer, i.imported))]
    assert not found, report(found)


def test_parts_of_the_compiler_import_one_way():
    inside = [i for i in RUNTIME_IMPORTS if layers.folder(i.importer) == layers.folder(i.imported) == "compiler"]
    found = [(i, why) for i in inside if (why := layers.compiler_violation(i.importer, i.imported))]
    assert not found, report(found)


def test_allowed_imports_between_siblings_are_used():
    inside = [i for i in RUNTIME_IMPORTS if layers.folder(i.importer) == layers.folder(i.imported) == "compiler"]
    used = {(layers.compiler_part(i.importer), layers.compiler_part(i.imported)) for i in inside}
    stale = set(layers.ALLOWED_BETWEEN_SIBLINGS) - used
    assert not stale, f"no import needs these exceptions any more; remove them: {sorted(stale)}"


def test_no_import_cycles():
    found = cycles(import_graph())
    assert not found, "modules that import each other:\n" + "\n".join(", ".join(group) for group in found)


def test_no_imports_inside_functions():
    late = [str(found) for found in late_imports(MODULES.values())]
    assert not late, "move these to the top of the file:\n" + "\n".join(late)


def late_imports(modules):
    for module in modules:
        for statement, late, only_for_types in import_statements(module.tree):
            if late and not only_for_types:
                yield f"{module.label}:{statement.lineno}: {ast.unparse(statement)}"


def test_no_imports_by_name_below_the_facade():
    """`import_module("...")` hides an edge from every check. The façade may: its names load on first use."""
    hidden = [
        f"{module.label}:{node.lineno}: {ast.unparse(node)}"
        for module in MODULES.values()
        if layers.folder(module.name) != "façade"
        for node in calls(module.tree)
        if is_import_by_name(node)
    ]
    assert not hidden, "\n".join(hidden)


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def is_import_by_name(call: ast.Call) -> bool:
    match call.func:
        case ast.Name("__import__" | "import_module") | ast.Attribute(ast.Name("importlib"), "import_module"):
            return True
    return False


@pytest.mark.parametrize("folder", LINKED_FOLDERS)
def test_package_reaches_its_folders_through_relative_links(folder):
    link = ROOT / PACKAGE / folder
    assert link.is_symlink(), f"{PACKAGE}/{folder} is not a link; was the checkout made with core.symlinks off?"
    assert os.readlink(link) == f"../{folder}"


@pytest.mark.parametrize("folder", LINKED_FOLDERS)
def test_type_checker_is_given_every_link(folder):
    """Pyright passes over links that it is not given by name, and then reports no error at all."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    assert f"{PACKAGE}/{folder}" in settings["include"]
    assert folder not in settings["include"], "the same file under a second name"


@pytest.mark.parametrize("folder", LINKED_FOLDERS)
def test_folders_refuse_to_be_imported_under_a_second_name(folder):
    """`import compiler` from the top would make a second copy of every class, equal to none of the first."""
    guards = [node for node in MODULES[f"{PACKAGE}.{folder}"].tree.body if isinstance(node, ast.Assert)]
    assert any(ast.unparse(guard.test) == f"__name__ == '{PACKAGE}.{folder}'" for guard in guards)


class TestTheChecksThemselves:
    """A check that finds nothing proves nothing until it has found something planted."""

    module = Module("ingot.compiler.ir.planted", ROOT / "planted.py")

    def statements(self, source: str):
        return [(late, types) for _, late, types in import_statements(ast.parse(source))]

    def test_late_imports_are_seen_wherever_they_hide(self):
        nested = "class A:\n def f(self):\n  if x:\n   for y in z:\n    import ingot\n"
        assert self.statements(nested) == [(True, False)]
        assert self.statements("try:\n import a\nexcept ImportError:\n import b\n") == [(False, False)] * 2

    def test_type_checking_blocks_are_told_apart(self):
        source = "if TYPE_CHECKING:\n import a\nelse:\n import b\nif typing.TYPE_CHECKING:\n import c\n"
        assert self.statements(source) == [(False, True), (False, False), (False, True)]

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("import ingot.compiler.ops", ["ingot.compiler.ops"]),
            ("from ingot import compiler, nn", ["ingot.compiler", "ingot"]),
            ("from ingot.compiler.ir import Graph", ["ingot.compiler.ir"]),
            ("from . import Graph", ["ingot.compiler.ir"]),
            ("from .. import ops", ["ingot.compiler.ops"]),
            ("from ..ops import Add", ["ingot.compiler.ops"]),
        ],
    )
    def test_targets_name_the_defining_module(self, source, expected):
        statement = ast.parse(source).body[0]
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        assert list(targets(self.module, statement)) == expected

    @pytest.mark.parametrize(
        ("importer", "imported", "allowed"),
        [
            ("ingot.frontends.dsl", "ingot.compiler.pipeline", True),
            ("ingot.compiler.pipeline", "ingot.frontends.dsl", False),
            ("ingot.compiler.codegen.emit", "ingot.runtime.program", True),
            ("ingot.runtime.program", "ingot.compiler.ir.types", False),
            ("ingot.frontends.onnx", "ingot", False),
            ("ingot.__main__", "ingot.frontends.onnx", True),
        ],
    )
    def test_folder_direction(self, importer, imported, allowed):
        assert (layers.folder_violation(importer, imported) is None) == allowed

    @pytest.mark.parametrize(
        ("importer", "imported", "allowed"),
        [
            ("ingot.compiler.pipeline", "ingot.compiler.codegen.emit", True),
            ("ingot.compiler.codegen.emit", "ingot.compiler.pipeline", False),
            ("ingot.compiler.passes.fold", "ingot.compiler.ops.elementwise", True),
            ("ingot.compiler.ops.elementwise", "ingot.compiler.passes.fold", False),
            ("ingot.compiler.ops.elementwise", "ingot.compiler.ir.graph", True),
            ("ingot.compiler.ir.graph", "ingot.compiler.ops.elementwise", False),
            ("ingot.compiler.ir.graph", "ingot.compiler.errors", True),
            ("ingot.compiler.errors", "ingot.compiler.ir.graph", False),
            ("ingot.compiler.ir.graph", "ingot.compiler.ir.types", True),
            ("ingot.compiler.ir.graph", "ingot.compiler", False),
            ("ingot.compiler.passes.fold", "ingot.compiler.autodiff", False),
        ],
    )
    def test_compiler_direction(self, importer, imported, allowed):
        assert (layers.compiler_violation(importer, imported) is None) == allowed

    def test_cycles_are_found(self):
        graph = networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
        assert cycles(graph) == [["b", "c"]]
