"""Arithmetic on SSA values: what the elementary functions are written in.

``Lanes`` wraps one scalar or vector SSA value and gives it Python operators, so that a formula in this package reads
like the formula in a book. Every operator emits exactly one instruction without fast-math flags; Python numbers are
rounded to the lanes' format and splatted.

Invariant: nothing here creates a basic block in the caller's function, and nothing lowers to a library call on any
target that describes itself truthfully in ``MathTarget``.
Non-goal: general code generation; only the few operations that the elementary functions need.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir


@dataclass(frozen=True)
class MathTarget:
    """The facts about a target that change which instructions a function is made of."""

    has_fma: bool
    """``llvm.fma`` is one instruction; otherwise it would be a library call and is never emitted."""
    has_round: bool
    """``llvm.floor`` and its relatives are one instruction (SSE4.1, NEON); otherwise they would be library calls."""
    has_lookup: bool = False
    """A register holds 16 floats, and instructions look one up for each lane and take exponents apart (AVX-512)."""
    has_short_lookup: bool = False
    """A register holds 8 floats, and an instruction looks one up for each lane (AVX2)."""


@dataclass(frozen=True)
class Format:
    """An IEEE 754 binary interchange format."""

    name: str
    bits: int
    fraction_bits: int
    bias: int
    code: str
    integer_code: str

    @property
    def real_type(self) -> ir.Type:
        return ir.FloatType() if self.bits == 32 else ir.DoubleType()

    @property
    def integer_type(self) -> ir.IntType:
        return ir.IntType(self.bits)

    @property
    def sign_mask(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def magnitude_mask(self) -> int:
        return self.sign_mask - 1

    @property
    def fraction_mask(self) -> int:
        return (1 << self.fraction_bits) - 1

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def unit(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.fraction_bits

    @property
    def shifter(self) -> float:
        """Adding and subtracting it rounds a small number to an integer, which then stands in the low bits."""
        return 1.5 * 2.0**self.fraction_bits

    def rounded(self, number: float) -> float:
        """``number`` rounded to this format."""
        return struct.unpack(self.code, struct.pack(self.code, number))[0]

    def encoding(self, number: float) -> int:
        """The bits of ``number`` as an unsigned integer."""
        return struct.unpack(self.integer_code, struct.pack(self.code, number))[0]


F32 = Format("f32", 32, 23, 127, "<f", "<I")
F64 = Format("f64", 64, 52, 1023, "<d", "<Q")
FORMATS = {"f32": F32, "f64": F64}


class Splat(ir.Constant):
    """The same constant in every lane, written ``splat (...)``: far less text to parse than one entry a lane."""

    def __init__(self, kind: ir.Type, text: str) -> None:
        self.type = kind
        self.constant = text

    def _get_reference(self) -> str:
        return self.constant


def declared(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """The function of that name, declared if it is not."""
    function = module.globals.get(name)
    return ir.Function(module, kind, name) if function is None else function


@dataclass(frozen=True)
class Scope:
    """Where instructions go: a builder, the target's facts, and the number of lanes (0 for a scalar)."""

    builder: ir.IRBuilder
    target: MathTarget
    width: int

    def shape(self, element: ir.Type) -> ir.Type:
        return ir.VectorType(element, self.width) if self.width else element

    def halved(self) -> Scope:
        return Scope(self.builder, self.target, self.width // 2)

    def splat(self, element: ir.Type, text: str) -> Lanes:
        if self.width:
            text = f"splat ({element} {text})"
        return Lanes(self, element, Splat(self.shape(element), text))

    def real(self, form: Format, number: float) -> Lanes:
        """A floating-point constant, rounded to ``form`` here: the IR parser refuses one that is not."""
        return self.splat(form.real_type, f"0x{F64.encoding(form.rounded(number)):016x}")

    def integer(self, form: Format, number: int) -> Lanes:
        return self.splat(form.integer_type, str(number & ((1 << form.bits) - 1)))

    def intrinsic(self, name: str, first: Lanes, *rest: Lanes) -> Lanes:
        """Call the overloaded intrinsic ``llvm.<name>``, all of whose operands have the type of the result."""
        kind = first.value.type
        prefix = f"v{self.width}" if self.width else ""
        letter = "i" if isinstance(first.element, ir.IntType) else "f"
        full_name = f"llvm.{name}.{prefix}{letter}{first.form.bits}"
        function = declared(self.builder.module, full_name, ir.FunctionType(kind, [kind] * (1 + len(rest))))
        operands = [first.value, *(operand.value for operand in rest)]
        return Lanes(self, first.element, self.builder.call(function, operands))


class Lanes:
    """One SSA value whose lanes are all floats, all integers, or all truth values (``i1``)."""

    __slots__ = ("element", "scope", "value")

    def __init__(self, scope: Scope, element: ir.Type, value: ir.Value) -> None:
        self.scope = scope
        self.element = element
        self.value = value

    @property
    def form(self) -> Format:
        return F32 if self.element in (F32.real_type, F32.integer_type) else F64

    def __bool__(self) -> bool:
        raise TypeError("the truth of lanes is known only when they run: use choose, & and |")

    @property
    def is_real(self) -> bool:
        return not isinstance(self.element, ir.IntType)

    def constant(self, number: float | int) -> Lanes:
        """``number`` in every lane, in the format of ``self``."""
        if self.is_real:
            return self.scope.real(self.form, number)
        return self.scope.integer(self.form, int(number))

    def _operand(self, other: Lanes | float | int) -> ir.Value:
        return other.value if isinstance(other, Lanes) else self.constant(other).value

    def _same(self, value: ir.Value) -> Lanes:
        return Lanes(self.scope, self.element, value)

    def _binary(self, real: str, integer: str, other: Lanes | float | int, swap: bool = False) -> Lanes:
        left, right = self.value, self._operand(other)
        if swap:
            left, right = right, left
        return self._same(getattr(self.scope.builder, real if self.is_real else integer)(left, right))

    def __add__(self, other: Lanes | float | int) -> Lanes:
        return self._binary("fadd", "add", other)

    __radd__ = __add__

    def __sub__(self, other: Lanes | float | int) -> Lanes:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: Lanes | float | int) -> Lanes:
        return self._binary("fsub", "sub", other, swap=True)

    def __mul__(self, other: Lanes | float | int) -> Lanes:
        return self._binary("fmul", "mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Lanes | float | int) -> Lanes:
        return self._same(self.scope.builder.fdiv(self.value, self._operand(other)))

    def __rtruediv__(self, other: Lanes | float | int) -> Lanes:
        return self._same(self.scope.builder.fdiv(self._operand(other), self.value))

    def __neg__(self) -> Lanes:
        return self._same(self.scope.builder.fneg(self.value))

    # Integers and truth values. Shifts right are logical: AVX2 has no arithmetic shift of 64-bit lanes.

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._same(self.scope.builder.and_(self.value, self._operand(other)))

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._same(self.scope.builder.or_(self.value, self._operand(other)))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self._same(self.scope.builder.xor(self.value, self._operand(other)))

    def __lshift__(self, count: Lanes | int) -> Lanes:
        return self._same(self.scope.builder.shl(self.value, self._operand(count)))

    def __rshift__(self, count: Lanes | int) -> Lanes:
        return self._same(self.scope.builder.lshr(self.value, self._operand(count)))

    # Comparisons are ordered (false for NaN), except ``differs``; integers compare as signed numbers.

    def _compare(self, relation: str, other: Lanes | float | int) -> Lanes:
        builder, right = self.scope.builder, self._operand(other)
        if self.is_real:
            result = builder.fcmp_ordered(relation, self.value, right)
        else:
            result = builder.icmp_signed(relation, self.value, right)
        return Lanes(self.scope, ir.IntType(1), result)

    def __lt__(self, other: Lanes | float | int) -> Lanes:
        return self._compare("<", other)

    def __le__(self, other: Lanes | float | int) -> Lanes:
        return self._compare("<=", other)

    def __gt__(self, other: Lanes | float | int) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: Lanes | float | int) -> Lanes:
        return self._compare(">=", other)

    def equals(self, other: Lanes | float | int) -> Lanes:
        return self._compare("==", other)

    def differs(self, other: Lanes | float | int) -> Lanes:
        """True where the lanes are not equal, NaN included."""
        builder, right = self.scope.builder, self._operand(other)
        if self.is_real:
            return Lanes(self.scope, ir.IntType(1), builder.fcmp_unordered("!=", self.value, right))
        return self._compare("!=", other)

    def is_nan(self) -> Lanes:
        return self.differs(self)

    def halves(self) -> tuple[Lanes, Lanes]:
        """The first half of the lanes, and the second."""
        scope, half = self.scope.halved(), self.scope.width // 2
        unused, places = ir.Constant(self.value.type, ir.Undefined), ir.VectorType(ir.IntType(32), half)
        first, second = (
            self.scope.builder.shuffle_vector(self.value, unused, ir.Constant(places, list(lanes)))
            for lanes in (range(half), range(half, 2 * half))
        )
        return Lanes(scope, self.element, first), Lanes(scope, self.element, second)

    # Changes of type.

    def encoded(self) -> Lanes:
        """The bits of floating-point lanes as integers."""
        element = self.form.integer_type
        return Lanes(self.scope, element, self.scope.builder.bitcast(self.value, self.scope.shape(element)))

    def decoded(self) -> Lanes:
        """Integer lanes read as the bits of floating-point numbers."""
        element = self.form.real_type
        return Lanes(self.scope, element, self.scope.builder.bitcast(self.value, self.scope.shape(element)))

    def widened(self) -> Lanes:
        """f32 lanes as f64 lanes."""
        element = F64.real_type
        return Lanes(self.scope, element, self.scope.builder.fpext(self.value, self.scope.shape(element)))

    def narrowed(self) -> Lanes:
        """f64 lanes rounded to f32."""
        element = F32.real_type
        return Lanes(self.scope, element, self.scope.builder.fptrunc(self.value, self.scope.shape(element)))


def choose(mask: Lanes, yes: Lanes, no: Lanes | float | int) -> Lanes:
    """``yes`` in the lanes where ``mask`` holds, ``no`` in the others."""
    builder = mask.scope.builder
    other = no.value if isinstance(no, Lanes) else yes.constant(no).value
    return Lanes(yes.scope, yes.element, builder.select(mask.value, yes.value, other))


def fma(a: Lanes, b: Lanes | float, c: Lanes | float) -> Lanes:
    """``a * b + c``: fused if the target can, else rounded twice. Use only where both are accurate enough."""
    if not a.scope.target.has_fma:
        return a * b + c
    b, c = (operand if isinstance(operand, Lanes) else a.constant(operand) for operand in (b, c))
    return a.scope.intrinsic("fma", a, b, c)


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """``coefficients[0] + coefficients[1] * x + ...`` by Horner's rule."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def paired_polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """The same by Estrin's rule, neighbours joined with x, pairs with x^2, and so on: half as many steps that wait for
    each other, and some more rounding errors. For polynomials that only correct a leading term."""
    parts: list[Lanes | float] = list(coefficients)
    power = x
    while len(parts) > 1:
        joined: list[Lanes | float] = [
            fma(power, high, low) if isinstance(high, Lanes) else fma(power, x.constant(high), low)
            for low, high in zip(parts[::2], parts[1::2], strict=False)
        ]
        parts = joined + parts[len(joined) * 2 :]
        if len(parts) > 1:
            power = power * power
    (result,) = parts
    return result if isinstance(result, Lanes) else x.constant(result)


def square_root(x: Lanes) -> Lanes:
    return x.scope.intrinsic("sqrt", x)


def magnitude(x: Lanes) -> Lanes:
    """|x|, by clearing the sign bit."""
    return (x.encoded() & x.form.magnitude_mask).decoded()


def sign_bit(x: Lanes) -> Lanes:
    """The sign bit in place, every other bit zero."""
    return x.encoded() & x.form.sign_mask


def with_sign_bit(x: Lanes, sign: Lanes) -> Lanes:
    """Flip the sign of ``x`` where the integer ``sign`` has its top bit; ``sign`` has no other bit set."""
    return (x.encoded() ^ sign).decoded()


def at_most(limit: float, x: Lanes) -> Lanes:
    """min(limit, x), NaN kept. Written so that it is a single instruction on x86."""
    bound = x.constant(limit)
    return choose(bound < x, bound, x)


def at_least(limit: float, x: Lanes) -> Lanes:
    """max(limit, x), NaN kept."""
    bound = x.constant(limit)
    return choose(bound > x, bound, x)


def all_at_most(x: Lanes, limit: int) -> ir.Value:
    """One truth value: is every lane of a vector of integers at most the limit?"""
    while x.scope.width * x.form.bits > REGISTER_BITS:
        x = x.scope.halved().intrinsic("smax", *x.halves())
    builder, together = x.scope.builder, ir.IntType(x.scope.width)
    outside = builder.bitcast((x > limit).value, together)
    return builder.icmp_unsigned("==", outside, ir.Constant(together, 0))


REGISTER_BITS = 256
"""Truth values are gathered from so many bits: wider registers lose little by it, narrower ones are packed."""


def integer_to_real(x: Lanes) -> Lanes:
    """Integers of magnitude below 2^22 (f32) or 2^51 (f64) as floats: AVX2 cannot convert 64-bit integers."""
    shifter = x.form.shifter
    return (x + x.form.encoding(shifter)).decoded() - shifter


def power_of_two(exponent: Lanes) -> Lanes:
    """2^exponent for integer lanes whose low bits are the *biased* exponent; higher bits are ignored."""
    return (exponent << exponent.form.fraction_bits).decoded()


def through_double(function: Callable[..., Lanes]) -> Callable[..., Lanes]:
    """The f32 function that widens its arguments, applies ``function``, and rounds once at the end."""

    def narrowing(*arguments: Lanes) -> Lanes:
        return function(*(argument.widened() for argument in arguments)).narrowed()

    return narrowing


# --- registers


def by_registers(lanes: int) -> Callable[[Callable[[Lanes], Lanes]], Callable[[Lanes], Lanes]]:
    """For functions of 32-bit lanes that need whole registers: operands of any width are computed register by register."""
    whole = ir.IntType(32)
    places = ir.VectorType(whole, lanes)

    def decorate(function: Callable[[Lanes], Lanes]) -> Callable[[Lanes], Lanes]:
        @functools.wraps(function)
        def of_any_width(x: Lanes) -> Lanes:
            scope, builder = x.scope, x.scope.builder
            inner = Scope(builder, scope.target, lanes)
            nothing = ir.Constant(x.value.type, ir.Undefined)
            if scope.width == 0:
                empty = ir.Constant(ir.VectorType(x.element, lanes), ir.Undefined)
                single = builder.insert_element(empty, x.value, whole(0))
                result = function(Lanes(inner, x.element, single))
                return Lanes(scope, x.element, builder.extract_element(result.value, whole(0)))
            if scope.width == lanes:
                return function(x)
            parts = []
            for start in range(0, scope.width, lanes):
                taken = [min(lane, scope.width - 1) for lane in range(start, start + lanes)]
                part = builder.shuffle_vector(x.value, nothing, ir.Constant(places, taken))
                parts.append(function(Lanes(inner, x.element, part)).value)
            return Lanes(scope, x.element, _joined(builder, parts, scope.width))

        return of_any_width

    return decorate


def _joined(builder: ir.IRBuilder, parts: Sequence[ir.Value], width: int) -> ir.Value:
    """The first lanes of the parts, one part after the other."""
    parts = list(parts)
    while len(parts) > 1 or parts[0].type.count > width:
        pairs = [(parts[n], parts[n + 1] if n + 1 < len(parts) else parts[n]) for n in range(0, len(parts), 2)]
        size = min(2 * parts[0].type.count, width)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(size)))
        parts = [builder.shuffle_vector(first, second, lanes) for first, second in pairs]
    return parts[0]
