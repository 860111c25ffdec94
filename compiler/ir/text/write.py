"""Writes what all three levels share: dims, types, scalars.

Invariant: the text depends on structure and names only, never on object identity or creation order, so that
parsing a text and writing it again gives the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ingot.compiler.ir.recursion import Call, unwind
from ingot.compiler.ir.scalar import (
    Apply,
    Bitcast,
    BoundedIndex,
    Buffer,
    Cast,
    Const,
    IndexValue,
    Lead,
    Load,
    Local,
    Read,
    Reduce,
    Scalar,
)
from ingot.compiler.ir.symbolic import (
    Atom,
    Dim,
    FloorDiv,
    Maximum,
    Minimum,
    Mod,
    Opaque,
    Symbol,
    Variable,
)
from ingot.compiler.ir.text.names import Names, quoted
from ingot.compiler.ir.traverse import shared_nodes
from ingot.compiler.ir.types import DType, TensorType, TupleType, Type, i64

# Infix functions: sign and precedence. Operators of one precedence group to the left; comparisons do not.
INFIX = {
    "eq": ("==", 1), "ne": ("!=", 1), "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1),
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4),
    "add": ("+", 5), "sub": ("-", 5),
    "mul": ("*", 6), "div": ("/", 6), "floordiv": ("//", 6), "mod": ("%", 6),
}  # fmt: skip
COMPARISON, UNARY, PRIMARY = 1, 7, 8

_KIND_ORDER = {Symbol: 0, Variable: 1, Opaque: 2, FloorDiv: 3, Mod: 4, Minimum: 5, Maximum: 6}


def string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def number(value: int | float, dtype: DType | None = None) -> str:
    """Digits that give back exactly this number (of this type): the shortest that do."""
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return repr(value)
    if dtype is not None and dtype.is_float and dtype.bits < 64:
        short = str(np.asarray(value).astype(dtype.numpy)[()])
        try:
            if float(np.asarray(float(short)).astype(dtype.numpy)) == value:
                return _with_point(short)
        except ValueError:
            pass  # a type that NumPy does not print as a number
    return _with_point(repr(value))


def _with_point(digits: str) -> str:
    return digits if any(c in digits for c in ".en") else digits + ".0"


def _term(coefficient: int, factors: Sequence[tuple[int, str]]) -> str:
    """The product; quotients and remainders stand in brackets unless they stand alone."""
    if coefficient == 1 and len(factors) == 1:
        return factors[0][1]
    divisions = (_KIND_ORDER[FloorDiv], _KIND_ORDER[Mod])
    texts = [f"({text})" if kind in divisions else text for kind, text in factors]
    return "*".join(texts if coefficient == 1 else [str(coefficient), *texts])


class Writer:
    """Text of dims, types and scalars under unique names."""

    def __init__(self, symbols: Iterable[Symbol] = (), neutral: bool = False) -> None:
        self.names = Names(symbols, neutral)
        self._shared: dict[int, str] = {}  # computations of the current expression that have a name

    def name(self, item: object) -> str:
        return quoted(self.names.of(item))

    def declare(self, item: object) -> str:
        return quoted(self.names.declare(item))

    def declared_range(self, variable: Dim, extent: Dim) -> str:
        """`i < n`, with the bounds when the extent does not say them; a dim of one index has no variable."""
        if not isinstance(variable, Variable):
            return self.dim(variable) if extent == 1 else f"{self.dim(variable)} < {self.dim(extent)}"
        within = self.within(variable, extent)
        return f"{self.declare(variable)} < {self.dim(extent)}{within}"

    def within(self, variable: Variable, extent: Dim) -> str:
        """` within [lower, upper]`, when that is not what the extent says."""
        if variable.lower == 0 and variable.upper == extent - 1:
            return ""
        return f" within {self.interval(variable.lower, variable.upper)}"

    # --- dims ------------------------------------------------------------------------------------

    def dim(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        if isinstance(dim, Atom):
            return self._atom(dim)
        terms = [(coefficient, self._monomial_key(monomial)) for monomial, coefficient in dim.terms]
        # as index arithmetic is mostly written: `n*i + 8*j + k - 1`
        terms.sort(key=lambda term: (term[0] < 0, -len(term[1]), -abs(term[0]), term[1]))
        parts = [(coefficient < 0, _term(abs(coefficient), key)) for coefficient, key in terms]
        if dim.constant:
            # a leading minus sign is avoided where the constant can lead: `15 - i`
            leads = dim.constant > 0 and parts[0][0]
            parts.insert(0 if leads else len(parts), (dim.constant < 0, str(abs(dim.constant))))
        negative, first = parts[0]
        if negative:
            first = f"-({first})" if "//" in first or "%" in first else f"-{first}"
        return first + "".join(f" {'-' if negative else '+'} {part}" for negative, part in parts[1:])

    def _monomial_key(self, monomial: Sequence[tuple[Atom, int]]) -> tuple[tuple[int, str], ...]:
        """The factors' kinds and texts, repeated for powers, in an order that only depends on them."""
        factors = [(_KIND_ORDER[type(atom)], self._atom(atom), power) for atom, power in monomial]
        return tuple((kind, text) for kind, text, power in sorted(factors) for _ in range(power))

    def _atom(self, atom: Atom) -> str:
        match atom:
            case FloorDiv():
                return f"{self._operand(atom.dividend)}//{self._operand(atom.divisor)}"
            case Mod():
                return f"{self._operand(atom.dividend)} % {self._operand(atom.divisor)}"
            case Minimum() | Maximum():
                function = "min" if isinstance(atom, Minimum) else "max"
                return f"{function}({', '.join(sorted(map(self.dim, atom.arguments)))})"
            case Opaque():
                return self._opaque(atom)
            case _:
                return self.name(atom)

    def _operand(self, dim: Dim) -> str:
        plain = (isinstance(dim, int) and dim >= 0) or isinstance(dim, (Symbol, Variable, Minimum, Maximum))
        return self.dim(dim) if plain else f"({self.dim(dim)})"

    def _opaque(self, atom: Opaque) -> str:
        payload = atom.payload
        if isinstance(payload, BoundedIndex) and atom.lower == 0 and atom.upper == payload.extent - 1:
            return self.scalar(payload)
        if isinstance(payload, Scalar):
            return f"opaque({self.scalar(payload)}, {self.interval(atom.lower, atom.upper)})"
        return quoted(f"opaque {payload!r}")

    def interval(self, lower: Dim | None, upper: Dim | None) -> str:
        low = "-inf" if lower is None else self.dim(lower)
        return f"[{low}, {'inf' if upper is None else self.dim(upper)}]"

    def dims(self, dims: Iterable[Dim]) -> str:
        return ", ".join(map(self.dim, dims))

    def declarations(self, symbols: Iterable[Symbol]) -> list[str]:
        """A line for each symbol whose bounds or name must be said."""
        lines = []
        for symbol in symbols:
            name = self.names.of(symbol)
            original = "" if name == symbol.name else f" {string(symbol.name)}"
            if original or (symbol.lower, symbol.upper) != (1, None):
                lines.append(f"dim {quoted(name)}{original} in {self.interval(symbol.lower, symbol.upper)}")
        return lines

    # --- types -----------------------------------------------------------------------------------

    def type(self, type_: Type) -> str:
        match type_:
            case TensorType(dtype, shape):
                return f"{dtype.name}[{self.dims(shape)}]"
            case TupleType(elements):
                return f"({', '.join(map(self.type, elements))})"

    def buffer(self, buffer: Buffer) -> str:
        """The declaration `name: type`, with the space when it is not global."""
        space = "" if buffer.space == "global" else f" in {buffer.space}"
        return f"{self.declare(buffer)}: {self.type(buffer.type)}{space}"

    # --- scalars ---------------------------------------------------------------------------------

    def scalar(self, scalar: Scalar, expected: DType | None = None) -> str:
        """`expected` is the type that the reader will know a literal to have here."""
        return unwind(self._root(scalar, expected))

    def _root(self, root: Scalar, expected: DType | None = None) -> Call[str]:
        """`let name = scalar, ... in scalar`, so that what is computed once is written once."""
        outer, self._shared = self._shared, {}
        bindings = []
        for node in shared_nodes(root):
            value = yield self._node(node, 0, None)
            name = self._shared[id(node)] = self.declare(Local("t", node.dtype))
            bindings.append(f"{name} = {value}")
        value = yield self._scalar(root, 0, expected)
        self._shared = outer
        return f"let {', '.join(bindings)} in {value}" if bindings else value

    def _scalar(self, scalar: Scalar, precedence: int = 0, expected: DType | None = None) -> Call[str]:
        return self._shared.get(id(scalar)) or (yield self._node(scalar, precedence, expected))

    def _node(self, scalar: Scalar, precedence: int, expected: DType | None) -> Call[str]:
        match scalar:
            case Const():
                return self._constant(scalar, precedence, expected)
            case Load(buffer, index):
                return f"{self.name(buffer)}[{self.dims(index)}]"
            case Read(local):
                return self.name(local)
            case Cast(value, dtype):
                return f"cast({(yield self._scalar(value))}, {dtype.name})"
            case Lead(buffer, size):
                return f"lead({self.name(buffer)}, {size})"
            case Bitcast(value, dtype):
                return f"bitcast({(yield self._scalar(value))}, {dtype.name})"
            case IndexValue(dim, dtype):
                return f"index({self.dim(dim)}{'' if dtype == i64 else f', {dtype.name}'})"
            case BoundedIndex(value, extent, site, purpose):
                more = "" if purpose == "index" else f", {purpose}"
                return f"bounded({(yield self._scalar(value))}, {self.dim(extent)}, {string(site)}{more})"
            case Reduce():
                return (yield self._reduce(scalar))
            case Apply():
                return (yield self._apply(scalar, precedence))

    def _constant(self, constant: Const, precedence: int, expected: DType | None) -> str:
        if constant.dtype.kind == "bool":
            return "true" if constant.value else "false"
        digits = number(constant.value, constant.dtype)
        if constant.dtype != expected:
            return f"{constant.dtype.name}({digits})"
        return f"({digits})" if digits.startswith("-") and precedence > UNARY else digits

    def _reduce(self, reduce: Reduce) -> Call[str]:
        with self.names.scope():
            pairs = zip(reduce.variables, reduce.extents, strict=True)
            ranges = ", ".join([self.declared_range(v, e) for v, e in pairs])
            return f"{reduce.combiner}({ranges}: {(yield self._root(reduce.body))})"

    def _apply(self, apply: Apply, precedence: int) -> Call[str]:
        name, args = apply.function.name, apply.args
        types = literal_types(name, args)
        if name in INFIX and len(args) == 2:
            sign, own = INFIX[name]
            left = yield self._scalar(args[0], own + (own == COMPARISON), types[0])
            right = yield self._scalar(args[1], own + 1, types[1])
            text = f"{left} {sign} {right}"
            return f"({text})" if own < precedence else text
        if name == "neg" and len(args) == 1 and not isinstance(args[0], Const):
            text = f"-{(yield self._scalar(args[0], PRIMARY))}"
            return f"({text})" if precedence > UNARY else text
        texts = []
        for arg, type_ in zip(args, types, strict=True):
            texts.append((yield self._scalar(arg, 0, type_)))
        return f"{name}({', '.join(texts)})"


def literal_types(function: str, args: Sequence[Scalar | None]) -> list[DType | None]:
    """For each argument, the type that a bare literal in its place has: that of the first sibling which is no
    literal. None stands for a literal. The first argument of select and the second of shifts stand alone."""
    if function in ("shl", "shr"):
        return [None] * len(args)
    group = args[1:] if function == "select" else args
    known = next((a.dtype for a in group if a is not None and not isinstance(a, Const)), None)
    return [None, *[known] * len(group)] if function == "select" else [known] * len(group)
