"""No hidden state: the environment is read in one place for each side, and no function re-binds a global."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.layers import ENVIRONMENT_READERS
from tests.architecture.source_tree import MODULES

ENVIRONMENT_NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")


def environment_uses(tree: ast.AST) -> Iterator[int]:
    """Lines that reach for the process environment."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("os" | "posix"), name) if name in ENVIRONMENT_NAMES:
                yield node.lineno
            case ast.ImportFrom(module="os" | "posix", names=names):
                yield from (node.lineno for alias in names if alias.name in ENVIRONMENT_NAMES)


def test_environment_is_read_in_one_place_for_each_side():
    found = [
        f"{module.label}:{line}"
        for module in MODULES.values()
        if module.label not in ENVIRONMENT_READERS
        for line in environment_uses(module.tree)
    ]
    assert not found, f"only {' and '.join(ENVIRONMENT_READERS)} may read the environment: {found}"


def test_no_function_rebinds_a_global():
    found = [
        f"{module.label}:{node.lineno}: {ast.unparse(node)}"
        for module in MODULES.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]
    assert not found, "pass the value, or keep it in an object:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "os.environ['A']",
        "os.getenv('A')",
        "x = os.environ.get('A')",
        "from os import environ",
        "from os import getenv as g",
    ],
)
def test_environment_uses_are_recognised(source):
    assert list(environment_uses(ast.parse(source))) == [1]


@pytest.mark.parametrize("source", ["os.path.join(a, b)", "options.environ", "from os import path"])
def test_other_code_is_left_alone(source):
    assert not list(environment_uses(ast.parse(source)))
