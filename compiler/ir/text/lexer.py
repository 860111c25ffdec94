"""Tokens of the IR's text form, and a cursor over them that says where and what when a text is wrong.

Line breaks and blanks only separate tokens; `#` starts a comment that ends with its line.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

Kind = Literal["name", "quoted", "integer", "float", "string", "sign", "end"]

_PATTERN = re.compile(
    r"""(?:[ \t\r\n]+|\#[^\n]*)*
      (?:(?P<float>\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)
      | (?P<integer>\d+)
      | (?P<name>[^\W\d][\w.]*)
      | `(?P<quoted>(?:[^`\n]|``)*)`
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<sign>//|<=|>=|==|!=|[-+*/%&|^<>=()\[\]{},:@])
      | (?P<end>\Z)
      | (?P<wrong>.))
    """,
    re.VERBOSE,
)


class ParseError(ValueError):
    """A text that is not the IR's: `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line, self.column = line, column


class Token(NamedTuple):
    kind: Kind
    text: str  # a string's or quoted name's content, otherwise as written
    start: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)


def place(text: str, position: int) -> tuple[int, int]:
    """Line and column, from 1, of a character."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    append, make = tokens.append, Token
    for match in _PATTERN.finditer(text):  # one after another: the last alternative takes what no other does
        kind: Any = match.lastgroup
        content, start = match[kind], match.start(kind)
        if kind == "quoted":
            content, start = content.replace("``", "`"), start - 1
        elif kind == "string":
            content = _string(text, content, start)
        elif kind == "end":
            append(make(kind, "", start))
            break
        elif kind == "wrong":
            hint = "a string or name that does not end" if content in '"`' else "no part of the IR's text"
            raise ParseError(f"{content!r} is {hint}", *place(text, start))
        append(make(kind, content, start))
    return tokens


def _string(text: str, literal: str, position: int) -> str:
    try:
        return json.loads(literal)
    except ValueError as error:
        raise ParseError(f"bad string {literal}: {error}", *place(text, position)) from None


class Cursor:
    """A place in a text; every parser derives from it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.position = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def ahead(self, distance: int = 1) -> Token:
        return self.tokens[min(self.position + distance, len(self.tokens) - 1)]

    def error(self, message: str, token: Token | None = None) -> ParseError:
        return ParseError(message, *place(self.text, (token or self.token).start))

    def expected(self, what: str) -> ParseError:
        return self.error(f"expected {what}, found {self.token}")

    def next(self) -> Token:
        token = self.token
        self.position += token.kind != "end"
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these signs or words (a quoted name is never a word)."""
        token = self.tokens[self.position]
        return token.text in texts and token.kind in ("sign", "name")

    def accept(self, *texts: str) -> str | None:
        token = self.tokens[self.position]
        if token.text in texts and token.kind in ("sign", "name"):
            self.position += 1
            return token.text
        return None

    def expect(self, text: str, where: str = "") -> None:
        token = self.tokens[self.position]
        if token.text != text or token.kind not in ("sign", "name"):
            raise self.expected(f"{text!r}{where}")
        self.position += 1

    def name(self, what: str) -> str:
        if self.token.kind not in ("name", "quoted"):
            raise self.expected(what)
        return self.next().text

    def integer(self, what: str) -> int:
        negative = self.accept("-") is not None
        if self.token.kind != "integer":
            raise self.expected(what)
        return -int(self.next().text) if negative else int(self.next().text)

    def string(self, what: str) -> str:
        if self.token.kind != "string":
            raise self.expected(what)
        return self.next().text

    def finish(self) -> None:
        if self.token.kind != "end":
            raise self.expected("the end of the text")
