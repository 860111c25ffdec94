"""A document as a program: its Python blocks run one after another, as a reader would type them.

    ```python           runs, in the names that the blocks before it left
    ```python fragment  is not run: it shows a form, or needs something that is not installed. With `from path` after
                        it, its lines are those of that file, `...` standing for lines left out
    ```sh               its lines that begin with `ingot ` run, in the same folder
    ```text             right after a block of the two kinds above: what that block prints. `...` stands for anything
                        in a line, a line of `...` for any number of lines

Invariant: every block has its line numbers in the document, so a traceback, and a diagnostic that shows the line of
the user's program, show the document.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot import cli, nn

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    info: str
    body: str
    line: int  # of its first line of code
    follows: bool  # nothing but blank lines between it and the block before

    @property
    def runs(self) -> bool:
        return self.language == "sh" or (self.language == "python" and "fragment" not in self.info.split())


def blocks_of(text: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        language, info, body = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(language, info.strip(), body, line, bool(found) and not text[end : match.start()].strip()))
        end = match.end()
    return found


def excerpts_of(text: str) -> list[tuple[str, str]]:
    """(path, lines) of the blocks that are taken from a file."""
    found = [(block.info.split(), block.body) for block in blocks_of(text)]
    return [(words[words.index("from") + 1], body) for words, body in found if "from" in words]


def is_excerpt(excerpt: str, source: str) -> bool:
    """Whether the parts of an excerpt between lines of `...` stand in the source, in their order."""
    place = 0
    for part in re.split(r"^ *\.\.\. *\n", excerpt, flags=re.MULTILINE):
        place = source.find(part.rstrip("\n"), place)
        if place < 0:
            return False
        place += len(part)
    return True


def is_program(text: str) -> bool:
    return any(block.runs and block.language == "python" for block in blocks_of(text))


def run_document(path: Path) -> None:
    """Run a document's blocks in the current folder; AssertionError when one prints something else than shown.

    Its layers begin with the weights that they have in a process of their own.
    """
    nn.seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.runs:
            printed = run_block(block, path, names)
        elif block.language == "text" and block.follows and printed is not None:
            assert prints(block.body, printed), (
                f"{path.name}:{block.line}: the block before prints\n{printed}\nbut the document shows\n{block.body}"
            )
            printed = None
        else:
            printed = None


def run_block(block: Block, path: Path, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.body, str(path), "exec", dont_inherit=True)
            exec(code, names)
        else:
            for line in commands(block.body):
                assert cli.main(line) == 0, f"{path.name}:{block.line}: ingot {' '.join(line)} failed"
    return printed.getvalue()


def commands(body: str) -> list[list[str]]:
    """The arguments of each `ingot` command in a shell block; comments are left out."""
    lines = [shlex.split(line, comments=True) for line in body.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["ingot"]]


def prints(shown: str, printed: str) -> bool:
    """Whether what was printed is what the document shows, with `...` for what may differ."""

    def pattern(line: str) -> str:
        return ".*".join(re.escape(part) for part in line.split("..."))

    parts = []
    for line in shown.strip("\n").splitlines():
        parts.append(r"(?:[^\n]*\n)*?" if line.strip() == "..." else rf"{pattern(line.rstrip())}[ ]*\n")
    return re.fullmatch("".join(parts) + r"\s*", printed.strip("\n") + "\n") is not None
