"""exp and what is made of it: exp2, expm1, sinh, cosh, tanh, sigmoid, softplus.

All write x = n ln 2 + r with |r| <= (ln 2)/2 and build 2^n from the bits that the rounding of n leaves in the low end
of a sum. ``Reduction.shifted`` is that sum: its low bits are n plus a chosen offset.
"""

from __future__ import annotations

from typing import NamedTuple

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.compensated import Pair, fast_two_sum
from ingot.compiler.codegen.math.lanes import (
    Lanes,
    at_least,
    at_most,
    choose,
    fma,
    magnitude,
    polynomial,
    power_of_two,
    sign_bit,
    with_sign_bit,
)

LOG2_E = 1.4426950408889634074
LN_2_HIGH = {"f32": 0.693359375, "f64": float.fromhex("0x1.62e42fefa38p-1")}
"""ln 2 with so few bits that its product with any exponent is exact."""
LN_2_LOW = {"f32": float.fromhex("-0x1.bd0105c610ca8p-13"), "f64": float.fromhex("0x1.ef35793c7673p-45")}
LN_2 = {
    "f32": (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c610ca86c39p-29")),
    "f64": (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
}
"""ln 2 rounded to the format, and what that leaves."""
OVERFLOW = {"f32": 88.8, "f64": 709.8}
"""A little above the logarithm of the largest number: exp of it overflows by itself."""
UNDERFLOW = {"f32": -104.0, "f64": -746.0}
"""A little below the logarithm of half the smallest subnormal: exp of it underflows by itself."""


class Reduction(NamedTuple):
    """``x = count * ln 2 + remainder + tail``."""

    shifted: Lanes
    count: Lanes
    remainder: Lanes
    tail: Lanes


def reduce_by_ln2(x: Lanes, offset: int, low: Lanes | None = None) -> Reduction:
    """Split off multiples of ln 2; the low bits of ``shifted`` become ``count + offset``. ``low`` is added to x."""
    name, shifter = x.form.name, x.form.shifter + offset
    shifted = fma(x, LOG2_E, shifter)
    count = shifted - shifter
    exact = fma(count, -LN_2_HIGH[name], x)
    correction = count * LN_2_LOW[name]
    if low is not None:
        correction = correction - low
    remainder = exact - correction
    return Reduction(shifted, count, remainder, (exact - remainder) - correction)


def _quick_reduction(x: Lanes, offset: int) -> tuple[Lanes, Lanes]:
    """``shifted`` and ``remainder`` alone, without the tail."""
    name, shifter = x.form.name, x.form.shifter + offset
    shifted = fma(x, LOG2_E, shifter)
    count = shifted - shifter
    return shifted, fma(count, -LN_2_LOW[name], fma(count, -LN_2_HIGH[name], x))


def _exponential_of_remainder(r: Lanes) -> Lanes:
    return polynomial(r, (1.0, 1.0, *coefficients.EXPONENTIAL[r.form.name]))


def scaled(x: Lanes, exponents: Lanes) -> Lanes:
    """``x * 2^count`` if the low bits of ``exponents`` are ``count + 2 * bias``; rounds once, even to a subnormal."""
    half = exponents >> 1
    return x * power_of_two(half) * power_of_two(exponents - half)


def clamped(x: Lanes) -> Lanes:
    return at_least(UNDERFLOW[x.form.name], at_most(OVERFLOW[x.form.name], x))


def exp(x: Lanes) -> Lanes:
    shifted, r = _quick_reduction(clamped(x), 2 * x.form.bias)
    return scaled(_exponential_of_remainder(r), shifted.encoded())


ORDINARY = {"f32": 87.0, "f64": 708.0}
"""exp of anything between it and its negative is a normal number."""


def exp_of_ordinary(x: Lanes) -> Lanes:
    """exp where |x| is at most ``ORDINARY``, with the same bits: nothing to clamp, and the exponent is just added."""
    shifted, r = _quick_reduction(x, 0)
    return (_exponential_of_remainder(r).encoded() + (shifted.encoded() << x.form.fraction_bits)).decoded()


def size_for_exp(x: Lanes) -> tuple[Lanes, int]:
    """An integer and its largest value for ``exp_of_ordinary``; that of a NaN is larger."""
    return x.encoded() & x.form.magnitude_mask, x.form.encoding(ORDINARY[x.form.name])


def exp_of_pair(x: Pair) -> Lanes:
    """exp(high + low): for arguments so large that one rounding of them would be visible in the result."""
    high = clamped(x.high)
    low = choose(high.equals(x.high), x.low, 0.0)
    reduced = reduce_by_ln2(high, 2 * high.form.bias, low)
    one_plus = exponential_pair(reduced)
    return scaled(one_plus.high + one_plus.low, reduced.shifted.encoded())


def exponential_pair(reduced: Reduction) -> Pair:
    """exp(remainder + tail) as a pair, accurate to a small fraction of a unit in the last place."""
    r = reduced.remainder
    rest = fma(r * r, polynomial(r, coefficients.EXPONENTIAL[r.form.name]), reduced.tail)
    lead = fast_two_sum(r.constant(1.0), r)
    return fast_two_sum(lead.high, lead.low + rest)


def exp2(x: Lanes) -> Lanes:
    form = x.form
    ln_2_high, ln_2_low = LN_2[form.name]
    x = at_least(UNDERFLOW[form.name] * LOG2_E, at_most(OVERFLOW[form.name] * LOG2_E, x))
    shifter = form.shifter + 2 * form.bias
    shifted = x + shifter
    r = x - (shifted - shifter)
    rest = polynomial(r, (ln_2_low, *coefficients.POWER_OF_TWO[form.name])) * r
    return scaled(fma(r, ln_2_high, rest) + 1.0, shifted.encoded())


def expm1(x: Lanes) -> Lanes:
    """2^n (r + tail + ...) + (2^n - 1), everything halved so that 2^n cannot overflow."""
    form = x.form
    bounded = at_least(-0.75 * form.bits + 6.0, at_most(OVERFLOW[form.name], x))
    reduced = reduce_by_ln2(bounded, form.bias - 1)
    r = reduced.remainder
    half_scale = power_of_two(reduced.shifted.encoded())
    rest = fma(r * r, polynomial(r, coefficients.EXPONENTIAL[form.name]), reduced.tail)
    lead = fast_two_sum(half_scale - 0.5, half_scale * r)
    result = lead.high + fma(half_scale, rest, lead.low)
    return choose(magnitude(x) < form.unit / 4, x, result + result)


class _Hyperbolic(NamedTuple):
    """With |x| = n ln 2 + r: the scales 2^(n-2) +- 2^(-n-2), r, sinh(r) - r and cosh(r) - 1."""

    plus: Lanes
    minus: Lanes
    remainder: Lanes
    sine_rest: Lanes
    cosine_rest: Lanes


def _hyperbolic(x: Lanes) -> _Hyperbolic:
    form = x.form
    bounded = at_most(OVERFLOW[form.name] + 0.8, magnitude(x))
    reduced = reduce_by_ln2(bounded, form.bias - 2)
    r, z = reduced.remainder, reduced.remainder * reduced.remainder
    growing = power_of_two(reduced.shifted.encoded())
    shrinking_exponent = (form.shifter + form.bias - 2) - at_most(float(form.bits), reduced.count)
    shrinking = power_of_two(shrinking_exponent.encoded())
    sine_rest = fma(polynomial(z, coefficients.HYPERBOLIC_SINE[form.name]), z * r, reduced.tail)
    cosine_rest = z * polynomial(z, coefficients.HYPERBOLIC_COSINE[form.name])
    return _Hyperbolic(growing + shrinking, growing - shrinking, r, sine_rest, cosine_rest)


def sinh(x: Lanes) -> Lanes:
    part = _hyperbolic(x)
    lead = fast_two_sum(part.minus, part.plus * part.remainder)
    rest = fma(part.plus, part.sine_rest, part.minus * part.cosine_rest)
    half = lead.high + (lead.low + rest)
    signed = with_sign_bit(half + half, sign_bit(x))
    return choose(magnitude(x) < x.form.unit, x, signed)


def cosh(x: Lanes) -> Lanes:
    part = _hyperbolic(x)
    lead = fast_two_sum(part.plus, part.minus * part.remainder)
    rest = fma(part.minus, part.sine_rest, part.plus * part.cosine_rest)
    half = lead.high + (lead.low + rest)
    return half + half


def tanh(x: Lanes) -> Lanes:
    """(1 - z) / (1 + z) with z = exp(-2|x|) = 2^-n (1 - part).

    The negative exponent keeps the denominator below 2, where its rounding error is half of what it is above; and
    since neither sum is computed from the other, the quotient can never exceed 1.
    """
    form = x.form
    name, shifter = form.name, form.shifter + form.bias
    twice = at_most(_TANH_IS_ONE[name] * 2.0, magnitude(x + x))
    shifted = fma(twice, -LOG2_E, shifter)
    count = shifted - shifter
    r = fma(count, LN_2_LOW[name], fma(count, LN_2_HIGH[name], twice))
    alternating = [(-1) ** (power + 1) * c for power, c in enumerate(coefficients.EXPONENTIAL[name])]
    part = fma(r * r, polynomial(r, alternating), r)
    scale = power_of_two(shifted.encoded())
    ratio = fma(scale, part, 1.0 - scale) / fma(scale, -part, 1.0 + scale)
    return with_sign_bit(ratio, sign_bit(x))


_TANH_IS_ONE = {"f32": 9.1, "f64": 19.1}


def sigmoid(x: Lanes) -> Lanes:
    """c / (c + c exp(-x)); the factor c keeps c exp(-x) finite where the result is subnormal."""
    form = x.form
    spare = form.fraction_bits + 7
    negative = -at_least(UNDERFLOW[form.name], at_most(float(form.bits), x))
    shifted, r = _quick_reduction(negative, form.bias - spare)
    part = fma(r * r, polynomial(r, coefficients.EXPONENTIAL[form.name]), r)
    scale, unit = power_of_two(shifted.encoded()), x.constant(2.0**-spare)
    larger = choose(scale > unit, scale, unit)
    smaller = choose(scale < unit, scale, unit)
    return unit / (fma(scale, part, smaller) + larger)


def _exp_of_minus_magnitude(x: Lanes) -> Lanes:
    """exp(-|x|): cheaper than exp, since only small scales occur."""
    form = x.form
    spare = form.fraction_bits + 2
    negative = (x.encoded() | form.sign_mask).decoded()
    shifted, r = _quick_reduction(at_least(UNDERFLOW[form.name], negative), form.bias + spare)
    return _exponential_of_remainder(r) * power_of_two(shifted.encoded()) * 2.0**-spare


def softplus(x: Lanes) -> Lanes:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    z = _exp_of_minus_magnitude(x)
    return choose(x < 0.0, x.constant(0.0), x) + _log1p_of_unit(z)


def _log1p_of_unit(z: Lanes) -> Lanes:
    """log(1 + z) for 0 <= z <= 1. In f64 as 2 atanh(s), s = z / (2 + z): a division is cheaper than 15 terms."""
    table = coefficients.LOGARITHM_UNIT[z.form.name]
    if z.form.bits == 32:
        return fma(z * z, polynomial(z, table), z)
    s = z / (z + 2.0)
    square = s * s
    return z - s * (z - square * polynomial(square, table))
