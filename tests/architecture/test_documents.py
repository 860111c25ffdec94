"""Documents tell the truth where a machine can check: links lead somewhere, code runs and prints what is shown,
commands exist, every diagnostic is explained."""

import ast
import re
from pathlib import Path

import pytest

from ingot import nn, optim, random
from ingot.compiler.errors import Code
from tests.architecture.documents import blocks_of, commands, excerpts_of, is_excerpt, is_program, prints, run_document
from tests.architecture.source_tree import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


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
    for block in blocks_of(read(path)):
        if block.language == "python" and "from" not in block.info.split():
            ast.parse(block.body)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_excerpts_are_what_the_files_say(path):
    stale = [source for source, lines in excerpts_of(read(path)) if not is_excerpt(lines, read(ROOT / source))]
    assert not stale


@pytest.mark.parametrize(
    ("excerpt", "same"),
    [("a\nb\n", True), ("a\n...\nd\n", True), ("b\n...\na\n", False), ("a\nc\n", False), ("a\n...\nx\n", False)],
)
def test_excerpts_are_compared(excerpt, same):
    assert is_excerpt(excerpt, "a\nb\nc\nd\n") == same


PROGRAMS = [path for path in DOCUMENTS if is_program(read(path))]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_run_and_print_what_is_shown(path, tmp_path, monkeypatch):
    """Say ```python fragment for a block that only shows a form (see documents.py)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INGOT_THREADS", "1")  # tests keep all processors busy already
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


NAMED_PATH = re.compile(r"`((?:compiler|runtime|frontends|ingot|tests|examples|benchmarks|docs)/[\w./]*)`")
EXAMPLE_PATHS = (
    "compiler/passes/name.py",
    "tests/passes/test_name.py",
    "compiler/passes/fold.py",
    "tests/passes/test_fold.py",
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(path):
    named = {word for word in NAMED_PATH.findall(read(path)) if word not in EXAMPLE_PATHS}
    assert not [word for word in named if not (ROOT / word).exists()]


def words_of(page: str) -> set[str]:
    return set(re.findall(r"\w+", read(ROOT / "docs" / page)))


def test_every_layer_loss_and_optimizer_is_in_its_page():
    optimizers = [n for n, kind in vars(optim).items() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)]
    assert not {*nn.__all__, *optimizers} - words_of("layers.md")


def test_every_random_function_is_in_its_page():
    assert not set(random.__all__) - words_of("language.md")


@pytest.mark.parametrize("source", ["compiler/options.py", "runtime/settings.py"])
def test_every_environment_variable_is_in_its_page(source):
    variables = set(re.findall(r"INGOT_\w+", read(ROOT / source)))
    assert variables
    assert not variables - words_of("deploying.md")


def test_make_targets_named_in_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.MULTILINE))
    named = {word for path in DOCUMENTS for word in re.findall(r"(?:^|`)make ([a-z]+)\b", read(path), re.MULTILINE)}
    assert {"demo", "test"} <= named
    assert named <= targets, f"no such target: {sorted(named - targets)}"


def test_every_page_of_the_documentation_is_in_its_index():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    listed = {link.partition("#")[0] for link in LINK.findall(read(ROOT / "docs" / "README.md"))}
    assert pages <= listed, f"docs/README.md does not list {sorted(pages - listed)}"
