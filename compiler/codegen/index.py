"""Index arithmetic: `symbolic.Dim` to 64-bit integers, for one iteration or for all lanes of a vector loop.

Variables of unrolled loops are constants here: an expression is simplified with their values before it is emitted.
Sums are added up from the outermost term to the innermost, so that each partial sum stands outside the loops it does
not depend on (the builder places it); addresses likewise, with the constant part last, where it becomes the
displacement of the memory operand.

Invariant: nothing here traps. A divisor that may be zero is replaced by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ingot.compiler.codegen.builder import Builder
from ingot.compiler.codegen.unrolled import UnrolledVariables
from ingot.compiler.codegen.values import I64, Value, constant, integer, lane_constants
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Atom, Dim, FloorDiv, Maximum, Minimum, Mod, Opaque


class Line(NamedTuple):
    """How an index expression changes from lane to lane."""

    dim: Dim  # kept alive: the table of lines is keyed by identity
    varies: bool
    stride: Dim | None  # difference between neighbouring lanes; None: not constant
    first: Dim  # value in lane 0; the dim itself when the difference is not constant


class LaneVariable:
    """The variable of the vector loop being emitted, its number of lanes, and what is known of expressions in it."""

    __slots__ = ("lines", "variable", "width")

    def __init__(self, variable: Dim, width: int) -> None:
        self.variable = variable
        self.width = width
        self.lines: dict[int, Line] = {}


class Indices:
    """Emits index expressions. `opaque` evaluates the payload of a run-time integer to an i64 (or lanes of them)."""

    def __init__(self, builder: Builder, free: Callable[[Atom], Value], opaque: Callable[[Opaque], Value]) -> None:
        self.builder = builder
        self.free = free  # the value of a symbol, or of a variable of the function around this one
        self.opaque = opaque
        self.unrolled = UnrolledVariables()
        self.values: dict[Dim, Value] = {}
        self.lane: LaneVariable | None = None
        self.varying_opaque: Callable[[Opaque], bool] = lambda atom: False
        self._terms: dict[Dim, tuple] = {}
        self._opaques: dict[Dim, tuple[Opaque, ...]] = {}

    def resolve(self, dim: Dim) -> Dim:
        """The dim with the variables of unrolled loops replaced by their values."""
        return self.unrolled.resolve(dim)

    # --- one iteration

    def value(self, dim: Dim) -> Value:
        """The dim as an i64; it must not vary between lanes."""
        rest, number = self.unrolled.parts(dim)
        if isinstance(rest, int):
            return integer(rest + number)
        known = self.builder.recall((id(rest), number))
        if known is not None:
            return known
        rest = self.unrolled.unique(rest)
        known = self.builder.recall((id(rest), number))
        if known is not None:
            return known
        value = self._atom(rest) if isinstance(rest, Atom) and not number else self._sum(rest, number)
        # An opaque integer may depend on unrolled variables and on memory, which the key does not show.
        return value if self.opaques(rest) else self.builder.remember((id(rest), number), value)

    def address(self, base: Value, element: str, rest: Dim, number: int) -> Value:
        """The address of the element at the flat offset rest + number from `base`."""
        pointer = base
        if not isinstance(rest, int):
            pointer = self.builder.recall((base.ref, id(rest))) or self._address(base, element, rest)
        return self.builder.moved(pointer, element, number) if number else pointer

    def _address(self, base: Value, element: str, rest: symbolic.Expr) -> Value:
        rest = self.unrolled.unique(rest)
        key = (base.ref, id(rest))
        pointer = self.builder.recall(key)
        if pointer is not None:
            return pointer
        pointer = base
        for terms in _grouped(self._term_values(rest)):
            pointer = self.builder.offset(pointer, element, self._added(terms))
        return pointer if self.opaques(rest) else self.builder.remember(key, pointer)

    def opaques(self, dim: Dim) -> tuple[Opaque, ...]:
        """The run-time integers in a dim."""
        if isinstance(dim, int):
            return ()
        found = self._opaques.get(dim)
        if found is None:
            found = self._opaques[dim] = tuple(a for a in symbolic.atoms(dim) if isinstance(a, Opaque))
        return found

    def _sum(self, rest: symbolic.Expr, number: int) -> Value:
        terms = self._term_values(rest)
        if number:
            # next to the outermost term: the sum leaves the loops together with it
            terms[0] = self._combine("add nsw", terms[0], integer(number))
        return self._added(terms)

    def _added(self, terms: list[Value]) -> Value:
        total = terms[0]
        for term in terms[1:]:
            total = self._combine("add nsw", total, term)
        return total

    def _combine(self, code: str, left: Value, right: Value) -> Value:
        return self.builder.index_binary(code, left, right)

    def _term_values(self, dim: symbolic.Expr) -> list[Value]:
        """The terms without the constant, the outermost first."""
        return sorted((self._term(factors, coefficient) for factors, coefficient in self._parts(dim)), key=_depth)

    def _parts(self, dim: symbolic.Expr) -> tuple:
        parts = self._terms.get(dim)
        if parts is None:
            parts = self._terms[dim] = dim.terms
        return parts

    def _term(self, factors: symbolic.Monomial, coefficient: int) -> Value:
        values = [value for atom, power in factors for value in [self._atom(atom)] * power]
        values.sort(key=_depth)
        if coefficient != 1:
            values[0] = self._combine("mul nsw", values[0], integer(coefficient))
        product = values[0]
        for value in values[1:]:
            product = self._combine("mul nsw", product, value)
        return product

    def _atom(self, atom: Atom) -> Value:
        found = self.values.get(atom)
        if found is not None:
            return found
        match atom:
            case FloorDiv():
                return self._divide(self.value(atom.dividend), atom, self.value(atom.divisor))
            case Mod():
                return self._remainder(self.value(atom.dividend), atom, self.value(atom.divisor))
            case Minimum() | Maximum():
                return self._extremum(atom, [self.value(argument) for argument in atom.arguments])
            case Opaque():
                return self.opaque(atom)
            case _:
                return self.free(atom)

    # --- division: floor semantics, also for vectors of lanes

    def _divide(self, dividend: Value, atom: FloorDiv, divisor: Value) -> Value:
        builder, index = self.builder, self.builder.index_binary
        power = _power_of_two(atom.divisor)
        if power is not None:
            code = "lshr" if _nonnegative(atom.dividend) else "ashr"
            return index(code, dividend, constant(dividend.type, power))
        if _nonnegative(atom.dividend) and _nonnegative(atom.divisor):
            return index("udiv", dividend, self._nonzero(divisor, atom.divisor))
        divisor = self._nonzero(divisor, atom.divisor)
        quotient, rest = index("sdiv", dividend, divisor), index("srem", dividend, divisor)
        zero = constant(rest.type, 0)
        inexact = builder.icmp("!=", rest, zero, "s")
        signs = builder.icmp("<", index("xor", rest, divisor), zero, "s")
        lower = index("sub", quotient, constant(rest.type, 1))
        return builder.select(index("and", inexact, signs), lower, quotient)

    def _remainder(self, dividend: Value, atom: Mod, divisor: Value) -> Value:
        builder, index = self.builder, self.builder.index_binary
        if _power_of_two(atom.divisor) is not None:
            assert isinstance(atom.divisor, int)
            return index("and", dividend, constant(dividend.type, atom.divisor - 1))
        divisor = self._nonzero(divisor, atom.divisor)
        if _nonnegative(atom.dividend) and _nonnegative(atom.divisor):
            return index("urem", dividend, divisor)
        rest = index("srem", dividend, divisor)
        zero = constant(rest.type, 0)
        inexact = builder.icmp("!=", rest, zero, "s")
        signs = builder.icmp("<", index("xor", rest, divisor), zero, "s")
        wrapped = index("add", rest, divisor)
        return builder.select(index("and", inexact, signs), wrapped, rest)

    def _nonzero(self, value: Value, divisor: Dim) -> Value:
        if isinstance(divisor, int) or symbolic.less(0, divisor) or symbolic.less(divisor, 0):
            return value
        is_zero = self.builder.icmp("==", value, constant(value.type, 0), "s")
        return self.builder.select(is_zero, constant(value.type, 1), value)

    def _extremum(self, atom: Minimum | Maximum, values: list[Value]) -> Value:
        relation = "<" if isinstance(atom, Minimum) else ">"
        best = values[0]
        for value in values[1:]:
            chosen = self.builder.icmp(relation, value, best, "s")
            best = self.builder.select(chosen, value, best)
        return best

    # --- all lanes

    def varies(self, dim: Dim) -> bool:
        """Whether the dim may differ between the lanes of the vector loop being emitted."""
        return self.line(dim).varies

    def affine(self, dim: Dim) -> tuple[Dim | None, Dim]:
        """(difference between neighbouring lanes, value in lane 0); (None, dim) when the difference is not constant."""
        line = self.line(dim)
        return line.stride, line.first

    def line(self, dim: Dim) -> Line:
        """How the dim changes from lane to lane of the vector loop being emitted."""
        lane = self.lane
        if lane is None or isinstance(dim, int):
            return Line(dim, False, 0, dim)
        found = lane.lines.get(id(dim))
        if found is not None:
            return found
        variable = lane.variable
        varies = variable in symbolic.atoms(dim)
        opaques = self.opaques(dim)
        if any(map(self.varying_opaque, opaques)):
            return Line(dim, True, None, dim)
        stride = symbolic.linear_coefficient(dim, variable)  # type: ignore[arg-type]
        first = dim if stride is None or stride == 0 else self.unrolled.unique(dim - stride * variable)
        line = Line(dim, varies, stride, first)
        if not opaques:  # whether these vary depends on where they are asked for
            lane.lines[id(dim)] = line
        return line

    def lanes(self, dim: Dim) -> Value:
        """The dim as an i64 when all lanes agree, else one i64 per lane."""
        rest, number = self.unrolled.parts(dim)
        if not self.varies(rest):
            return self.value(dim)
        assert self.lane is not None
        assert not isinstance(rest, int)
        stride, first = self.affine(rest)
        if stride is not None:
            start = self._splat(self.value(first + number))
            return self.builder.index_binary("add", start, self._steps(stride))
        terms = [self._lane_term(factors, coefficient) for factors, coefficient in self._parts(rest)]
        if number:
            terms.append(integer(number))
        total = self._splat(terms[0])
        for term in terms[1:]:
            total = self.builder.index_binary("add", total, self._splat(term))
        return total

    def _splat(self, value: Value) -> Value:
        assert self.lane is not None
        return self.builder.splat(value, self.lane.width)

    def _steps(self, stride: Dim) -> Value:
        """0, stride, 2*stride, ..."""
        assert self.lane is not None
        if isinstance(stride, int):
            return lane_constants(I64, [stride * lane for lane in range(self.lane.width)])
        return self.builder.index_binary("mul", self._splat(self.value(stride)), self._steps(1))

    def _lane_term(self, factors: symbolic.Monomial, coefficient: int) -> Value:
        product = integer(coefficient)
        for atom, power in factors:
            value = self._lane_atom(atom)
            for _ in range(power):
                if value.lanes and not product.lanes:
                    product = self._splat(product)
                elif product.lanes and not value.lanes:
                    value = self._splat(value)
                product = self.builder.index_binary("mul", product, value)
        return product

    def _lane_atom(self, atom: Atom) -> Value:
        if not self.varies(atom):
            return self._atom(atom)
        assert self.lane is not None
        if atom is self.lane.variable:
            return self._steps(1)
        if symbolic.atoms(atom) == {self.lane.variable}:
            width = self.lane.width
            numbers = [symbolic.evaluate(atom, {self.lane.variable: lane}) for lane in range(width)]
            return lane_constants(I64, numbers)
        match atom:
            case FloorDiv():
                return self._divide(self._wide(atom.dividend), atom, self._wide(atom.divisor))
            case Mod():
                return self._remainder(self._wide(atom.dividend), atom, self._wide(atom.divisor))
            case Minimum() | Maximum():
                return self._extremum(atom, [self._wide(argument) for argument in atom.arguments])
            case Opaque():
                return self.opaque(atom)
        raise AssertionError(f"{symbolic.to_text(atom)} cannot vary between lanes")

    def _wide(self, dim: Dim) -> Value:
        return self._splat(self.lanes(dim))


def _depth(value: Value) -> int:
    return 0 if value.scope is None else value.scope.depth


def _grouped(values: list[Value]) -> list[list[Value]]:
    """Runs of values of one scope."""
    groups: list[list[Value]] = []
    for value in values:
        if groups and groups[-1][0].scope is value.scope:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups


def _nonnegative(dim: Dim) -> bool:
    return symbolic.is_nonnegative(dim) is True


def _power_of_two(dim: Dim) -> int | None:
    return dim.bit_length() - 1 if isinstance(dim, int) and dim > 0 and dim & (dim - 1) == 0 else None
