"""Documents tell the truth where a machine can check: links lead somewhere, code runs and prints what is shown,
commands exist, every diagnostic is explained."""

import ast
import re
from pathlib import Path

import pytest

from ingot.compiler.errors import Code
from tests.architecture.documents import commands, is_program, prints, run_document
from tests.architecture.source_tree import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def code_blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(text) if language in languages]


def heading_anchors(text: str) -> set[str]:
    """Headings as their links spell them: lower case, punctuation dropped, blanks as dashes."""
    headings = re.findall(r"^#+\s+(.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    broken = []
    for link in LINK.findall(FENCE.sub("", read(path))):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        if not target.exists() or (anchor and anchor not in heading_anchors(read(target))):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_blocks_parse(path):
    for block in code_blocks(read(path), "python"):
        ast.parse(block)


PROGRAMS = [path for path in DOCUMENTS if is_program(read(path))]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_run_and_print_what_is_shown(path, tmp_path, monkeypatch):
    """Say ```python fragment for a block that only shows a form (see documents.py)."""
    monkeypatch.chdir(tmp_path)
    run_document(path)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("took ... s\n", "took 0.25 s\n", True),
        ("took ... s\n", "took\n0.25 s\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("f(x) = 1.5\n", "f(x) = 1x5\n", False),
    ],
)
def test_what_is_printed_is_compared(shown, printed, same):
    assert prints(shown, printed) == same


def test_commands_of_shell_blocks():
    body = 'make demo  # not ours\ningot run m.py:f --type "f32[batch, 4]"   # ours\n'
    assert commands(body) == [["run", "m.py:f", "--type", "f32[batch, 4]"]]


def test_every_diagnostic_is_explained():
    """docs/errors.md has a heading for each code of compiler/errors.py, and for no other."""
    headings = re.findall(r"^### (E\d+): (.*)$", read(ROOT / "docs" / "errors.md"), re.MULTILINE)
    assert sorted(headings) == sorted((code.id, code.value.title) for code in Code)


def test_examples_named_in_documents_exist():
    named = {word for path in DOCUMENTS for word in re.findall(r"examples/[\w/]+\.py", read(path))}
    assert named
    assert not [word for word in named if not (ROOT / word).is_file()]


def test_every_example_is_listed():
    listed = set(re.findall(r"examples/\w+\.py", read(ROOT / "docs" / "README.md")))
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py")} <= listed


def test_make_targets_named_in_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.MULTILINE))
    named = {word for path in DOCUMENTS for word in re.findall(r"(?:^|`)make ([a-z]+)\b", read(path), re.MULTILINE)}
    assert {"demo", "test"} <= named
    assert named <= targets, f"no such target: {sorted(named - targets)}"


def test_every_page_of_the_documentation_is_in_its_index():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    listed = {link.partition("#")[0] for link in LINK.findall(read(ROOT / "docs" / "README.md"))}
    assert pages <= listed, f"docs/README.md does not list {sorted(pages - listed)}"
