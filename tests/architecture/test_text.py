"""What the files say: nothing true on one machine only, no notes to oneself, no file too long to read."""

import re
import warnings
from pathlib import Path

import pytest

from tests.architecture.layers import EXCUSED_LONG_FILES, LONGEST_FILE
from tests.architecture.source_tree import ROOT, python_files

FOLDERS = ("compiler", "runtime", "frontends", "ingot", "tests", "examples", "benchmarks")
TEXT_SUFFIXES = (".c", ".case", ".css", ".h", ".html", ".js", ".json", ".md", ".py", ".toml", ".yaml", ".yml")
TOP_FILES = (".ci/run", "Makefile")
THIS_FILE = Path(__file__).resolve().relative_to(ROOT)

# A path of one machine: home folders, the system's scratch folder with a name in it, drives.
# The file in which Linux's perf looks for names of generated code is where perf says it is.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|Users|work|tmp(?!/perf-)|mnt|opt)/[A-Za-z_.]|\b[A-Z]:\\\\?Users\b")
# Where packages are fetched from is the reader's choice.
REGISTRY_HOST = re.compile(r"pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian\.org", re.IGNORECASE)
NOTE_TO_ONESELF = re.compile(
    r"\b(?:FIXME|XXX|HACK|WIP|WRITEME)\b|\bTODO:?\s+(?:remove|delete|fix|clean)|\bdo not (?:commit|merge)\b",
    re.IGNORECASE,
)
WANTS_A_LOOK = 500


def text_files() -> list[Path]:
    found = {ROOT / name for name in TOP_FILES} | {path for path in ROOT.iterdir() if path.suffix in TEXT_SUFFIXES}
    for folder in (*FOLDERS, "docs"):
        found |= {path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file()}
    found = {path.relative_to(ROOT) for path in found}
    return sorted(path for path in found if path != THIS_FILE and "__pycache__" not in path.parts)


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (MACHINE_PATH, "a path of one machine; use a path relative to the file, or tmp_path in a test"),
        (REGISTRY_HOST, "name the package, not the host"),
        (NOTE_TO_ONESELF, "do it, or say in docs/decisions.md why not"),
    ],
    ids=["machine_path", "registry_host", "note_to_oneself"],
)
def test_no_line_contains(pattern, advice):
    found = matches(pattern)
    assert not found, f"{advice}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (MACHINE_PATH, 'open("/home/someone/model.onnx")', True),
        (MACHINE_PATH, "cache = '/tmp/ingot'", True),
        (MACHINE_PATH, r"C:\Users\someone", True),
        (MACHINE_PATH, "see examples/home/page.py and a/tmp/b", False),
        (MACHINE_PATH, "#!/usr/bin/env bash", False),
        (REGISTRY_HOST, "https://PyPI.org/project/ingot", True),
        (NOTE_TO_ONESELF, "# TODO remove this", True),
        (NOTE_TO_ONESELF, "# FIXME", True),
        (NOTE_TO_ONESELF, "shape_hackathon", False),
    ],
)
def test_patterns_find_what_they_should(pattern, line, expected):
    assert bool(pattern.search(line)) == expected


def line_counts() -> dict[str, int]:
    paths = [path for folder in FOLDERS for path in python_files(folder)]
    return {path.as_posix(): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in paths}


def test_files_are_short_enough_to_read():
    """Soft: a file may be longer when layers.EXCUSED_LONG_FILES says why it is still one idea."""
    longest = sorted(((lines, path) for path, lines in line_counts().items() if lines > WANTS_A_LOOK), reverse=True)
    if longest:
        warnings.warn("longest files: " + ", ".join(f"{path} {lines}" for lines, path in longest[:10]), stacklevel=1)
    too_long = [
        f"{path}: {lines} lines" for lines, path in longest if lines > LONGEST_FILE and path not in EXCUSED_LONG_FILES
    ]
    assert not too_long, "split by idea, or excuse it with a reason:\n" + "\n".join(too_long)


def test_excuses_for_long_files_are_current():
    counts = line_counts()
    stale = [path for path in EXCUSED_LONG_FILES if counts.get(path, 0) <= LONGEST_FILE]
    assert not stale, f"no longer needed: {stale}"
