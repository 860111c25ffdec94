"""Text of dims, and dims of text.

What: `2*batch + i//4 - 1`, with the operators and precedence of Python, `min(..)` and `max(..)`; a name that
is no identifier stands in backquotes.
Invariant: `parse(to_text(dim), resolve) == dim` when `resolve` inverts the names; the text is the same in
every process.
Non-goal: telling apart variables of one name; pass `names` where that matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ingot.compiler.ir.symbolic.expression import (
    Atom,
    Dim,
    FloorDiv,
    Maximum,
    Minimum,
    Mod,
    Monomial,
    Opaque,
    Symbol,
    Variable,
    rules,
)
from ingot.compiler.ir.symbolic.extremum import maximum, minimum

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_.]*)|`((?:[^`]|``)*)`|(//|[-+*%(),]))")


def to_text(dim: Dim, names: Callable[[Any], str] | None = None) -> str:
    """Text that `parse` reads back, such as `2*batch + i//4 - 1`; the same in every process."""
    if isinstance(dim, int):
        return str(dim)
    if isinstance(dim, Atom):
        return _atom_text(dim, names)
    parts: list[str] = []
    for monomial, coefficient in dim.terms:
        text = _term_text(monomial, abs(coefficient), names)
        if parts:
            parts.append(f" {'-' if coefficient < 0 else '+'} {text}")
        elif coefficient < 0:
            # The sign would bind to the dividend alone: -(x//4) is not -x//4.
            parts.append(f"-({text})" if coefficient == -1 and _is_division(monomial) else f"-{text}")
        else:
            parts.append(text)
    if dim.constant:
        parts.append(f" {'-' if dim.constant < 0 else '+'} {abs(dim.constant)}")
    return "".join(parts)


def _is_division(monomial: Monomial) -> bool:
    ((atom, power), *more) = monomial
    return not more and power == 1 and atom._divides


def _term_text(monomial: Monomial, coefficient: int, names: Callable[[Any], str] | None) -> str:
    if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
        return _atom_text(monomial[0][0], names)
    factors = [] if coefficient == 1 else [str(coefficient)]
    for atom, power in monomial:
        text = _atom_text(atom, names)
        factors += [f"({text})" if atom._divides else text] * power
    return "*".join(factors)


def _atom_text(atom: Atom, names: Callable[[Any], str] | None) -> str:
    match atom:
        case FloorDiv():
            return f"{_operand_text(atom.dividend, names)}//{_operand_text(atom.divisor, names)}"
        case Mod():
            return f"{_operand_text(atom.dividend, names)} % {_operand_text(atom.divisor, names)}"
        case Minimum() | Maximum():
            function = "min" if isinstance(atom, Minimum) else "max"
            return f"{function}({', '.join(to_text(argument, names) for argument in atom.arguments)})"
    name = _default_name(atom) if names is None else names(atom)
    plain = _IDENTIFIER.fullmatch(name) and name not in ("min", "max")
    return name if plain else "`" + name.replace("`", "``") + "`"


def _default_name(atom: Atom) -> str:
    if isinstance(atom, (Symbol, Variable)):
        return atom.name
    if isinstance(atom, Opaque):
        return f"opaque_{atom.identity.serial}"
    raise TypeError(f"unknown atom {type(atom).__name__}")


def _operand_text(dim: Dim, names: Callable[[Any], str] | None) -> str:
    text = to_text(dim, names)
    simple = (isinstance(dim, int) and dim >= 0) or (isinstance(dim, Atom) and not dim._divides)
    return text if simple else f"({text})"


def parse(text: str, resolve: Callable[[str], Dim]) -> Dim:
    """The dim that `to_text` wrote; `resolve` finds the dim of a name."""
    return _Parser(text, resolve).whole()


class _Parser:
    """Recursive descent over + - (left), * // % (left), unary minus, min, max, names and integers."""

    def __init__(self, text: str, resolve: Callable[[str], Dim]) -> None:
        self.text, self.resolve = text, resolve
        self.tokens = self._tokenise()
        self.position = 0

    def _tokenise(self) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        place, end = 0, len(self.text.rstrip())
        while place < end:
            match = _TOKEN.match(self.text, place)
            if match is None:
                raise ValueError(f"cannot read the symbolic integer {self.text!r} from character {place}")
            number, name, quoted, sign = match.groups()
            if quoted is not None:
                tokens.append(("name", quoted.replace("``", "`")))
            elif number is not None:
                tokens.append(("number", number))
            else:
                tokens.append(("word", name) if name is not None else ("sign", sign))
            place = match.end()
        return tokens

    def whole(self) -> Dim:
        value = self.sum()
        if self.position < len(self.tokens):
            raise self.error("the end")
        return value

    def error(self, expected: str) -> ValueError:
        found = self.tokens[self.position][1] if self.position < len(self.tokens) else "the end"
        return ValueError(f"expected {expected} but found {found!r} in the symbolic integer {self.text!r}")

    def accept(self, *signs: str) -> str | None:
        if self.position < len(self.tokens):
            kind, text = self.tokens[self.position]
            if kind == "sign" and text in signs:
                self.position += 1
                return text
        return None

    def expect(self, sign: str) -> None:
        if self.accept(sign) is None:
            raise self.error(repr(sign))

    def sum(self) -> Dim:
        value = self.product()
        while sign := self.accept("+", "-"):
            right = self.product()
            value = value + right if sign == "+" else value - right
        return value

    def product(self) -> Dim:
        value = self.unary()
        while sign := self.accept("*", "//", "%"):
            right = self.unary()
            value = value * right if sign == "*" else value // right if sign == "//" else value % right
        return value

    def unary(self) -> Dim:
        return -self.unary() if self.accept("-") else self.primary()

    def primary(self) -> Dim:
        if self.accept("("):
            value = self.sum()
            self.expect(")")
            return value
        kind, text = self.tokens[self.position] if self.position < len(self.tokens) else ("end", "")
        if kind not in ("number", "word", "name"):
            raise self.error("a name, a number or '('")
        self.position += 1
        if kind == "number":
            return int(text)
        if kind == "word" and text in ("min", "max") and self.accept("("):
            return self.extremum(minimum if text == "min" else maximum)
        return self.resolve(text)

    def extremum(self, function: Callable[..., Dim]) -> Dim:
        arguments = [self.sum()]
        while self.accept(","):
            arguments.append(self.sum())
        self.expect(")")
        return function(*arguments)


rules.to_text = to_text
