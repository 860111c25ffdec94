"""Reads what all three levels share: dims, types, scalars. The grammar is that of `write`.

    dim    := + - * // % over integers, names, min(...), max(...), bounded(...), opaque(scalar, [low, high])
    type   := dtype[dim, ...] | (type, ...)
    scalar := let name = scalar, ... in value | value
    value  := comparisons, | ^ &, + - * / // %, unary -, over literals, name[dim, ...], name,
              function(value, ...), reduction(name < dim, ...: scalar), cast(value, dtype), index(dim),
              bounded(scalar, dim, "site") bounded(scalar, dim, "site", divisor)

A literal without a type, such as the 0 of `max(x[i], 0)`, has the type of the first argument beside it that
is no literal, or of the buffer it is stored to; elsewhere it is written with its type, `f32(0.0)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.recursion import Call, unwind
from ingot.compiler.ir.scalar import (
    COMBINERS,
    FUNCTIONS,
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
    Space,
    index_atoms,
)
from ingot.compiler.ir.symbolic import Dim, Opaque, Symbol, Variable
from ingot.compiler.ir.text.lexer import Cursor, Token
from ingot.compiler.ir.text.write import COMPARISON, INFIX, literal_types
from ingot.compiler.ir.types import DTYPES, DType, TensorType, TupleType, Type, boolean, i64

_SIGNS = {sign: (name, precedence) for name, (sign, precedence) in INFIX.items()}
_AFTER_A_DIM = frozenset(",])}")
_SPACES: tuple[Space, ...] = ("global", "arena", "stack", "register")


@dataclass(frozen=True)
class Shared:
    """A computation that has a name inside an expression."""

    value: Scalar


Named = Variable | Local | Buffer | Shared
Item = TypeVar("Item", bound=Named)


@dataclass(frozen=True)
class _Literal:
    """A number whose type is not known yet."""

    value: int | float
    token: Token


class Reader(Cursor):
    """Parses dims, types and scalars. `scope` and `symbols` hold what names mean at the current place."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.symbols: dict[str, Symbol] = {}
        self.scope: dict[str, Named] = {}

    def declare(self, name: str, item: Item, token: Token) -> Item:
        if name in self.scope or name in self.symbols:
            raise self.error(f"{name!r} already means something else here", token)
        self.scope[name] = item
        return item

    @contextmanager
    def inner_scope(self) -> Iterator[None]:
        """Names declared inside are forgotten afterwards."""
        outer = dict(self.scope)
        yield
        self.scope = outer

    # --- declarations ----------------------------------------------------------------------------

    def declarations(self) -> None:
        """dim name "original" in [lower, upper]"""
        while self.at("dim"):
            self.next()
            token = self.token
            name = self.name("the name of a dim")
            original = self.next().text if self.token.kind == "string" else name
            self.expect("in")
            lower, upper = self.interval()
            if name in self.symbols or not all(isinstance(b, int | None) for b in (lower, upper)):
                what = "is declared twice" if name in self.symbols else "needs constant bounds"
                raise self.error(f"the dim {name!r} {what}", token)
            self.symbols[name] = Symbol(original, lower, upper)  # type: ignore[arg-type]

    def interval(self) -> tuple[Dim | None, Dim | None]:
        self.expect("[")
        lower = self._bound()
        self.expect(",")
        upper = self._bound()
        self.expect("]")
        return lower, upper

    def _bound(self) -> Dim | None:
        if self.at("-") and self.ahead().text == "inf":
            self.next()
        return None if self.accept("inf") else self.dim()

    def space(self) -> Space:
        found: Space | None = next((s for s in _SPACES if self.accept(s)), None)
        if found is None:
            raise self.expected(f"one of {', '.join(_SPACES)}")
        return found

    def buffer(self) -> Buffer:
        """name: type in space"""
        token = self.token
        name = self.name("the name of a buffer")
        self.expect(":", f" and the type of {name!r}")
        type_ = self.tensor_type()
        space = self.space() if self.accept("in") else "global"
        return self.declare(name, Buffer(name, type_.dtype, type_.shape, space), token)

    def declared_range(self) -> tuple[Dim, Dim]:
        """name < extent within [lower, upper], or the only index of a dim of extent 1"""
        if self.token.kind == "integer":
            return self.integer("an index"), self.dim() if self.accept("<") else 1
        token = self.token
        name = self.name("the name of a variable")
        self.expect("<", f" and the extent of {name!r}")
        return self.variable(name, token)

    def variable(self, name: str, token: Token) -> tuple[Variable, Dim]:
        """extent within [lower, upper]"""
        extent = self.dim()
        lower, upper = self.interval() if self.accept("within") else (0, extent - 1)
        return self.declare(name, Variable(name, lower, upper), token), extent

    # --- dims ------------------------------------------------------------------------------------

    def dim(self) -> Dim:
        token = self.tokens[self.position]
        if token.kind == "integer" and self.tokens[self.position + 1].text in _AFTER_A_DIM:  # as most are
            self.position += 1
            return int(token.text)
        value = self._dim_product()
        while sign := self.accept("+", "-"):
            right = self._dim_product()
            value = value + right if sign == "+" else value - right
        return value

    def _dim_product(self) -> Dim:
        value = self._dim_unary()
        while sign := self.accept("*", "//", "%"):
            right = self._dim_unary()
            value = value * right if sign == "*" else value // right if sign == "//" else value % right
        return value

    def _dim_unary(self) -> Dim:
        return -self._dim_unary() if self.accept("-") else self._dim_primary()

    def _dim_primary(self) -> Dim:
        if self.accept("("):
            value = self.dim()
            self.expect(")")
            return value
        if self.token.kind == "integer":
            return int(self.next().text)
        if self.ahead().text == "(" and self.token.kind == "name":
            if self.at("min", "max"):
                function = symbolic.minimum if self.next().text == "min" else symbolic.maximum
                return function(*self._bracketed_dims("(", ")"))
            if self.at("bounded"):
                payload = self._bounded()
                return Opaque(payload, 0, payload.extent - 1, index_atoms(payload.value))
            if self.at("opaque"):
                return self._opaque()
        return self._dim_name()

    def _dim_name(self) -> Dim:
        token = self.token
        name = self.name("an integer, a name or '('")
        known = self.scope.get(name)
        if known is None:
            return self.symbols.setdefault(name, Symbol(name))
        if not isinstance(known, Variable):
            raise self.error(f"{name!r} is a {type(known).__name__.lower()}, not an index", token)
        return known

    def _opaque(self) -> Dim:
        self.next()
        self.expect("(")
        payload = self.scalar()
        self.expect(",")
        lower, upper = self.interval()
        self.expect(")")
        return Opaque(payload, lower, upper, index_atoms(payload))

    def _bracketed_dims(self, opening: str, closing: str) -> tuple[Dim, ...]:
        self.expect(opening)
        dims: list[Dim] = []
        while not self.at(closing):
            dims.append(self.dim())
            if not self.accept(","):
                break
        self.expect(closing, " or ','")
        return tuple(dims)

    # --- types -----------------------------------------------------------------------------------

    def dtype(self) -> DType:
        if self.token.kind != "name" or self.token.text not in DTYPES:
            raise self.expected(f"an element type ({', '.join(DTYPES)})")
        return DTYPES[self.next().text]

    def tensor_type(self) -> TensorType:
        return TensorType(self.dtype(), self._bracketed_dims("[", "]"))

    def type(self) -> Type:
        if not self.accept("("):
            return self.tensor_type()
        elements: list[TensorType] = []
        while not self.at(")"):
            elements.append(self.tensor_type())
            if not self.accept(","):
                break
        self.expect(")", " or ','")
        return TupleType(tuple(elements))

    # --- scalars ---------------------------------------------------------------------------------

    def scalar(self, expected: DType | None = None) -> Scalar:
        """`expected` is the type of a bare literal here."""
        return unwind(self._root(expected))

    def _root(self, expected: DType | None = None) -> Call[Scalar]:
        """let name = scalar, ... in scalar"""
        if not self.accept("let"):
            return self._settled((yield self._infix(COMPARISON)), expected)
        with self.inner_scope():
            while True:
                token = self.token
                name = self.name("a name for a part of the expression")
                self.expect("=")
                self.declare(name, Shared(self._settled((yield self._infix(COMPARISON)), None)), token)
                if not self.accept(","):
                    break
            self.expect("in", " and what is computed, or ','")
            return self._settled((yield self._infix(COMPARISON)), expected)

    def scalars(self) -> tuple[Scalar, ...]:
        """Scalars with commas between them, up to a closing bracket."""
        return tuple(self._settled(a, None) for a in unwind(self._arguments()))

    def _settled(self, value: Scalar | _Literal, dtype: DType | None) -> Scalar:
        if not isinstance(value, _Literal):
            return value
        if dtype is None:
            message = f"nothing says which type {value.value} has: write, for example, f32({value.value})"
            raise self.error(message, value.token)
        return self._constant(value, dtype)

    def _constant(self, literal: _Literal, dtype: DType) -> Const:
        if isinstance(literal.value, float) and not dtype.is_float:
            raise self.error(f"{literal.value} is no literal of type {dtype}", literal.token)
        try:
            return Const(literal.value, dtype)
        except OverflowError:
            raise self.error(f"{literal.value} does not fit {dtype}", literal.token) from None

    def _infix(self, least: int) -> Call[Scalar | _Literal]:
        """Operators of at least this precedence."""
        left = yield self._unary()
        while self.token.kind == "sign":
            token = self.token
            function, precedence = _SIGNS.get(token.text, ("", 0))
            if precedence < least:
                break
            self.next()
            left = self._applied(function, [left, (yield self._infix(precedence + 1))], token)
            if precedence == COMPARISON:
                break
        return left

    def _unary(self) -> Call[Scalar | _Literal]:
        if not self.at("-"):
            return (yield self._primary())
        token = self.next()
        if self.token.kind in ("integer", "float") or self.at("inf", "nan"):
            return _Literal(-self._number().value, token)
        return self._applied("neg", [(yield self._unary())], token)

    def _number(self) -> _Literal:
        token = self.next()
        return _Literal(int(token.text) if token.kind == "integer" else float(token.text), token)

    def _primary(self) -> Call[Scalar | _Literal]:
        token = self.token
        if self.accept("("):
            value = yield self._infix(COMPARISON)
            self.expect(")")
            return value
        following = self.ahead()
        if token.kind == "name" and following.text == "(" and following.kind == "sign":
            return (yield self._call())
        if token.kind in ("integer", "float") or self.at("inf", "nan"):
            return self._number()
        if self.at("true", "false"):
            return Const(self.next().text == "true", boolean)
        name = self.name("a scalar expression")
        known = self.scope.get(name)
        if isinstance(known, Buffer) and self.at("["):
            return Load(known, self._bracketed_dims("[", "]"))
        if isinstance(known, Local):
            return Read(known)
        if isinstance(known, Shared):
            return known.value
        raise self.error(self._misused(name, known), token)

    def _misused(self, name: str, known: Named | None) -> str:
        match known:
            case Buffer():
                return f"{name!r} is a buffer: an element of it is {name}[...]"
            case Variable():
                return f"{name!r} is an index variable: its value is index({name})"
            case _:
                return f"{name!r} is not known here"

    def _call(self) -> Call[Scalar]:
        token = self.token
        if self.at("bounded"):
            return self._bounded()
        name = self.next().text
        if name in COMBINERS and (name not in FUNCTIONS or self._has_ranges()):
            return (yield self._reduction(name))
        self.expect("(")
        if name in ("cast", "bitcast"):
            value = self._settled((yield self._infix(COMPARISON)), None)
            self.expect(",")
            result = (Cast if name == "cast" else Bitcast)(value, self.dtype())
        elif name == "index":
            dim = self.dim()
            result = IndexValue(dim, self.dtype() if self.accept(",") else i64)
        elif name == "lead":
            result = self._lead()
        elif name in DTYPES:
            result = self._typed_literal(DTYPES[name])
        elif name in FUNCTIONS:
            result = self._applied(name, (yield self._arguments()), token)
        else:
            raise self.error(f"there is no scalar function called {name!r}", token)
        self.expect(")", " or ','")
        return result

    def _lead(self) -> Lead:
        token = self.token
        name = self.name("a buffer")
        buffer = self.scope.get(name)
        if not isinstance(buffer, Buffer):
            raise self.error(f"{name!r} is no buffer", token)
        self.expect(",")
        size = self._number().value
        if not isinstance(size, int) or size < 1:
            raise self.error(f"{size} is no number of bytes", token)
        return Lead(buffer, size)

    def _typed_literal(self, dtype: DType) -> Scalar:
        token = self.token
        negative = self.accept("-") is not None
        if self.token.kind not in ("integer", "float") and not self.at("inf", "nan"):
            raise self.expected(f"a number, as in {dtype}(1); a conversion is cast(..., {dtype})")
        value = self._number().value
        return self._constant(_Literal(-value if negative else value, token), dtype)

    def _arguments(self) -> Call[list[Scalar | _Literal]]:
        found: list[Scalar | _Literal] = []
        while not self.at(")"):
            found.append((yield self._infix(COMPARISON)))
            if not self.accept(","):
                break
        return found

    def _applied(self, name: str, args: list[Scalar | _Literal], token: Token) -> Scalar:
        function = FUNCTIONS[name]
        if len(args) != function.arity:
            raise self.error(f"{name} takes {function.arity} arguments, not {len(args)}", token)
        types = literal_types(name, [None if isinstance(a, _Literal) else a for a in args])
        stated = next((a.dtype for a in args if isinstance(a, Const)), None)
        if name not in ("select", "shl", "shr"):
            types = [t or stated for t in types]
        return Apply(function, tuple(self._settled(a, t) for a, t in zip(args, types, strict=True)))

    def _bounded(self) -> BoundedIndex:
        self.next()
        self.expect("(")
        value = self.scalar()
        self.expect(",")
        extent = self.dim()
        self.expect(",")
        site = self.string('the site of the index, as in "gather"')
        if self.at(","):
            self.next()
            self.expect("divisor")
            self.expect(")")
            return BoundedIndex(value, extent, site, "divisor")
        self.expect(")")
        return BoundedIndex(value, extent, site)

    def _has_ranges(self) -> bool:
        """Whether the bracket that opens here holds `ranges: body` rather than arguments."""
        depth = 0
        for token in islice(self.tokens, self.position, None):
            if token.kind == "sign":
                depth += (token.text in "([") - (token.text in ")]")
                if depth == 1 and token.text == ":":
                    return True
            if not depth:
                break
        return False

    def _reduction(self, combiner: str) -> Call[Scalar]:
        self.expect("(")
        with self.inner_scope():
            ranges: list[tuple[Dim, Dim]] = []
            while not self.at(":"):
                ranges.append(self.declared_range())
                if not self.accept(","):
                    break
            self.expect(":", " and what is combined")
            body = yield self._root()
            self.expect(")")
        variables, extents = tuple(v for v, _ in ranges), tuple(e for _, e in ranges)
        return Reduce(combiner, variables, extents, body)  # type: ignore[arg-type]
