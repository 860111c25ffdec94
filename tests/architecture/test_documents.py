"""Documents tell the truth where a machine can check: links lead somewhere, code parses, commands exist."""

import ast
import re
from pathlib import Path

import pytest

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


def test_make_targets_named_in_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.MULTILINE))
    named = {
        word for path in DOCUMENTS for word in re.findall(r"(?:^|`)make ([a-z]+)\b", read(path), re.MULTILINE)
    }
    assert {"demo", "test"} <= named
    assert named <= targets, f"no such target: {sorted(named - targets)}"


def test_every_page_of_the_documentation_is_in_its_index():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {
        "README.md"
    }
    listed = {link.partition("#")[0] for link in LINK.findall(read(ROOT / "docs" / "README.md"))}
    assert pages <= listed, f"docs/README.md does not list {sorted(pages - listed)}"
