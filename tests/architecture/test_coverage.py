"""Every pass, every diagnostic and every example has its test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT, python_files
from tests.examples.test_examples import EXAMPLES

ERRORS = ROOT / "compiler" / "errors.py"
ERROR_CODE = re.compile(r"[A-Z]{1,3}\d{3,4}")

PASSES = [path for path in python_files("compiler/passes") if path.name != "__init__.py"]


@pytest.mark.parametrize("path", PASSES, ids=lambda path: path.stem)
def test_every_pass_has_a_test_file(path):
    folders = path.parent.relative_to("compiler")
    expected = ROOT / "tests" / folders / f"test_{path.stem}.py"
    assert expected.is_file(), f"{path} wants its tests in {expected.relative_to(ROOT)}"


def declared_codes(tree: ast.AST) -> Iterator[str]:
    """Codes such as E101 in order of declaration: the assigned string, or the name it is assigned to."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        assigned = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in assigned if isinstance(target, ast.Name)]
        strings = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)] if node.value else []
        texts = [text for text in [*names, *strings] if isinstance(text, str)]
        yield from dict.fromkeys(text for text in texts if ERROR_CODE.fullmatch(text))


def codes_of_errors_file() -> list[str]:
    return list(declared_codes(ast.parse(ERRORS.read_text(encoding="utf-8")))) if ERRORS.exists() else []


def words_in_tests() -> set[str]:
    """Every word that looks like a code in any test but these."""
    files = [path for path in python_files("tests") if path.parts[1] != "architecture"]
    return {word for path in files for word in re.findall(r"\b[A-Z]{1,3}\d{3,4}\b", read(path))}


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_diagnostic_is_mentioned_by_a_test():
    untested = sorted(set(codes_of_errors_file()) - words_in_tests())
    assert not untested, f"no test provokes {', '.join(untested)}"


def test_no_code_is_given_twice():
    codes = codes_of_errors_file()
    twice = sorted({code for code in codes if codes.count(code) > 1})
    assert not twice, f"one code, one meaning: {', '.join(twice)}"


@pytest.mark.skipif(not ERRORS.exists(), reason="compiler/errors.py is not written yet")
def test_codes_are_found_in_the_errors_file():
    assert codes_of_errors_file(), f"no code that looks like E101 is assigned in {ERRORS.relative_to(ROOT)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class Code(Enum):\n  SHAPE = 'E101'\n  DTYPE = 'E102'", ["E101", "E102"]),
        ("class D:\n  shape: Code = Code('E101', 'message')", ["E101"]),
        ("E101 = Diagnostic('E101', 'text')", ["E101"]),
        ("a = 'E1010101'; b = 'see E101'", []),
        ("A = 'E101'; B = 'E101'", ["E101", "E101"]),
    ],
)
def test_declared_codes_are_recognised(source, expected):
    assert list(declared_codes(ast.parse(source))) == expected


def test_every_example_is_run_by_a_test():
    on_disk = {path.name for path in (ROOT / "examples").iterdir() if path.suffix == ".py"}
    assert {path.name for path in EXAMPLES} == on_disk


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_says_what_it_shows(path):
    assert ast.get_docstring(ast.parse(read(path))), f"{path.name} wants a docstring: what it shows, how to run it"
