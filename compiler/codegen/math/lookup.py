"""exp, log, tanh, erf and gelu of f32 for targets that look numbers up in registers (``MathTarget.has_lookup``).

With AVX-512 one instruction picks, for each of 16 lanes, one of 16 or 32 numbers by the low bits of an integer. So a
function is cut into short pieces, where a polynomial of few terms does. Other instructions take exponents apart and put
them together, overflow and subnormals included, so that there is neither a second form for ordinary arguments nor a
selection for special ones.

Invariant: the same bits at every width. Narrow operands are computed in a whole register, wide ones in several.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ingot.compiler.codegen.math import coefficients, pieces
from ingot.compiler.codegen.math.compensated import two_product
from ingot.compiler.codegen.math.exponential import LN_2_HIGH, LN_2_LOW, LOG2_E
from ingot.compiler.codegen.math.lanes import (
    F32,
    Lanes,
    at_most,
    by_registers,
    choose,
    declared,
    fma,
    magnitude,
    polynomial,
    sign_bit,
    with_sign_bit,
)

WIDTH = 16
_KIND = ir.VectorType(F32.real_type, WIDTH)
_WHOLE, _MASK = ir.IntType(32), ir.IntType(16)


_registers = by_registers(WIDTH)


# --- instructions


def _instruction(name: str, x: Lanes, *operands: ir.Value, masked: bool = True) -> Lanes:
    """``llvm.x86.avx512.<name>`` of x; those that take a mask get one that leaves nothing out."""
    scope = x.scope
    arguments = [x.value, *operands]
    if masked:
        arguments += [ir.Constant(_KIND, ir.Undefined), _MASK(-1), _WHOLE(4)]
    kind = ir.FunctionType(_KIND, [argument.type for argument in arguments])
    function = declared(scope.builder.module, f"llvm.x86.avx512.{name}.512", kind)
    return Lanes(scope, x.element, scope.builder.call(function, arguments))


def _scaled(x: Lanes, exponent: Lanes) -> Lanes:
    """x 2^floor(exponent), rounded once; infinite exponents and NaN included."""
    return _instruction("mask.scalef.ps", x, exponent.value)


def _bounded(x: Lanes, limit: float) -> Lanes:
    """x, or what has its sign and the size of the limit if that is smaller; the limit if x is NaN."""
    keep_sign_smaller = 0b0010
    return _instruction("mask.range.ps", x, x.constant(limit).value, _WHOLE(keep_sign_smaller))


def _exponent(x: Lanes) -> Lanes:
    """floor(log2 |x|) as a float, subnormals included; -inf for zero, inf for an infinity."""
    return _instruction("mask.getexp.ps", x)


def _fraction(x: Lanes) -> Lanes:
    """x / 2^n between 3/4 and 3/2; 1 for zeros and infinity, NaN for negative x."""
    from_three_quarters, nan_if_negative = 0b0011, 0b1100
    return _instruction("mask.getmant.ps", x, _WHOLE(from_three_quarters | nan_if_negative))


def _looked_up(places: Lanes, row: Sequence[float]) -> Lanes:
    """The number of the row at the place that the low bits name: four bits for 16 numbers, five for 32."""
    x = Lanes(places.scope, F32.real_type, ir.Constant(_KIND, [F32.rounded(number) for number in row[:WIDTH]]))
    if len(row) == WIDTH:
        return _instruction("permvar.sf", x, places.value, masked=False)
    other = ir.Constant(_KIND, [F32.rounded(number) for number in row[WIDTH:]])
    return _instruction("vpermi2var.ps", x, places.value, other, masked=False)


def _piecewise(a: Lanes, name: str, slope_last: bool = False) -> Lanes:
    """The function of that name in ``pieces``, for 0 <= a < its last edge, or NaN.

    ``slope_last`` adds the linear term last: in the first piece, where little else is left, one rounding less.
    """
    cut = pieces.CUTS[name]
    shifted = (a + cut.offset).encoded()
    start = (shifted & -(1 << cut.shift)).decoded() - cut.offset
    places, distance = shifted >> cut.shift, a - start
    result, *rest = (_looked_up(places, row) for row in reversed(getattr(pieces, name)))
    if slope_last:
        *rest, slope, first = rest
        for coefficient in rest:
            result = fma(result, distance, coefficient)
        return fma(slope, distance, fma(result, distance * distance, first))
    for coefficient in rest:
        result = fma(result, distance, coefficient)
    return result


# --- functions

_SIXTEENTHS = 1.5 * 2.0 ** (F32.fraction_bits - 4)
"""Adding it rounds a number to sixteenths, which then stand in the low bits."""


def _exponential(x: Lanes, low: Lanes | None = None, limit: float | None = 0.5) -> tuple[Lanes, Lanes]:
    """exp(x + low) as (m, n), to be scaled by 2^floor(n); ``limit`` None: x is neither huge nor NaN."""
    sixteenths = fma(x, LOG2_E, _SIXTEENTHS)
    count = sixteenths - _SIXTEENTHS
    r = fma(count, -LN_2_LOW["f32"], fma(count, -LN_2_HIGH["f32"], x))
    if low is not None:
        r = r + low
    if limit is not None:
        r = _bounded(r, limit)  # of huge x nothing is left; any factor does where the scale overflows or vanishes
    root = _looked_up(sixteenths.encoded(), pieces.ROOTS_OF_TWO[0])
    slope = polynomial(r, (1.0, *coefficients.EXPONENTIAL_SHORT["f32"]))
    if low is None:
        return fma(root * r, slope, root), count
    return fma(root * r, slope, _looked_up(sixteenths.encoded(), pieces.ROOTS_OF_TWO[1])) + root, count


@_registers
def exp(x: Lanes) -> Lanes:
    """2^(k/16) exp(r) with |r| <= (ln 2)/32, scaled."""
    return _scaled(*_exponential(x))


_LN_2 = (float.fromhex("0x1.62cp-1"), float.fromhex("0x1.217f7d1cf79acp-12"))
"""ln 2 in two parts: the first times any exponent is exact, and so is its sum with a tabulated logarithm."""


@_registers
def log(x: Lanes) -> Lanes:
    """x = 2^e m, log x = e ln 2 - log c + log(1 + r) with r = c m - 1 for a tabulated c near 1/m."""
    m = _fraction(x)
    e = _exponent(x) - _exponent(m)
    places = m.encoded() >> (F32.fraction_bits - 5)
    factor, logarithm = (_looked_up(places, row) for row in pieces.LOGARITHM)
    r = fma(m, factor, -1.0)
    rest = fma(r * r, polynomial(r, coefficients.LOGARITHM_SHORT["f32"]), r)
    return fma(e, _LN_2[0], logarithm) + fma(e, _LN_2[1], rest)


@_registers
def tanh(x: Lanes) -> Lanes:
    return with_sign_bit(_piecewise(at_most(9.25, magnitude(x)), "TANH"), sign_bit(x))


@_registers
def erf(x: Lanes) -> Lanes:
    return with_sign_bit(_piecewise(at_most(4.2, magnitude(x)), "ERROR_FUNCTION", slope_last=True), sign_bit(x))


@_registers
def gelu(x: Lanes) -> Lanes:
    """max(x, 0) - a Phi(-a) with a = |x|, where a Phi(-a) = exp(-a^2/2) V(a) and V is tabulated."""
    a = at_most(14.6, magnitude(x))
    half_square = two_product(a, a * -0.5)
    factor, count = _exponential(half_square.high, half_square.low, limit=None)
    tail = _scaled(factor * _piecewise(a, "NORMAL_TAIL"), count)
    return choose(x < 0.0, x.constant(-0.0), x) - tail
