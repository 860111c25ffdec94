"""erf, erfc, and the exact GELU, x times the normal distribution function.

Tails are written erfc(a) = exp(-a^2) W(a) / (1 + 2 a), where W stays between 1 and 1.3; exp(-a^2) needs a^2 to more
bits than a number has, hence the pairs.
"""

from __future__ import annotations

import math

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.compensated import Pair, fast_two_sum, product, quotient, two_product
from ingot.compiler.codegen.math.exponential import (
    LN_2_HIGH,
    LN_2_LOW,
    LOG2_E,
    exp,
    exponential_pair,
    reduce_by_ln2,
)
from ingot.compiler.codegen.math.lanes import (
    Lanes,
    at_most,
    choose,
    fma,
    magnitude,
    paired_polynomial,
    polynomial,
    power_of_two,
    sign_bit,
    with_sign_bit,
)

_CENTRE = 3.75
_LARGEST = 27.5
"""erfc of it underflows, and W is fitted up to it."""
_ROOT_TWO = (1.4142135623730951, -9.667293313452913e-17)


def _flattened_tail(a: Lanes) -> Pair:
    """W(a) = (1 + 2 a) exp(a^2) erfc(a) in f64, as a pair."""
    t = (a - _CENTRE) / (a + _CENTRE)
    return fast_two_sum(a.constant(1.25), polynomial(t, coefficients.GAUSSIAN_TAIL["f64"]))


def erf_f32(x: Lanes) -> Lanes:
    """Near zero x + x P(x^2); beyond, 1 - 2^Q(|x|)."""
    a = at_most(4.0, magnitude(x))
    z = a * a
    near = fma(a, paired_polynomial(z, coefficients.ERROR_FUNCTION["f32"]), a)
    exponent = paired_polynomial(a, coefficients.ERROR_FUNCTION_EXPONENT["f32"])
    shifter = x.form.shifter + x.form.bias
    shifted = exponent + shifter
    r = exponent - (shifted - shifter)
    tail = fma(r, paired_polynomial(r, coefficients.POWER_OF_TWO_SHORT["f32"]), 1.0)
    far = fma(tail, -power_of_two(shifted.encoded()), 1.0)
    return with_sign_bit(choose(a < 1.0, near, far), sign_bit(x))


def erf_f64(x: Lanes) -> Lanes:
    a = at_most(6.0, magnitude(x))
    z = a * a
    near = fma(a, polynomial(z, coefficients.ERROR_FUNCTION["f64"]), a)
    tail = _flattened_tail(a)
    far = 1.0 - exp(-z) * (tail.high / fma(a, 2.0, 1.0))
    return with_sign_bit(choose(a < 1.0, near, far), sign_bit(x))


def erfc_f32(x: Lanes) -> Lanes:
    """In f64, where a^2 is exact and nothing need be compensated."""
    a = at_most(10.5, magnitude(x)).widened()
    tail = exp(-(a * a)) * (_flattened_tail(a).high / fma(a, 2.0, 1.0))
    return choose(x.widened() < 0.0, 2.0 - tail, tail).narrowed()


def _gaussian(numerator: Pair, denominator: Pair, square: Pair) -> tuple[Pair, Lanes, float]:
    """numerator / denominator * exp(-square), as a pair still to be multiplied by the two scales."""
    spare = 2 * square.high.form.fraction_bits
    reduced = reduce_by_ln2(-square.high, square.high.form.bias + spare, -square.low)
    value = quotient(product(numerator, exponential_pair(reduced)), denominator)
    return value, power_of_two(reduced.shifted.encoded()), 2.0**-spare


def erfc_f64(x: Lanes) -> Lanes:
    a = at_most(_LARGEST, magnitude(x))
    denominator = fast_two_sum(a + a, 1.0)  # the order is right for a >= 1/2, and only there is this used
    value, scale, rescale = _gaussian(_flattened_tail(a), denominator, two_product(a, a))
    tail = (value.high + value.low) * scale * rescale
    far = choose(x < 0.0, 2.0 - tail, tail)
    lead = fast_two_sum(x.constant(1.0), -x)
    near = lead.high + fma(x, -polynomial(x * x, coefficients.ERROR_FUNCTION["f64"]), lead.low)
    return choose(a < 0.5, near, far)


def _positive_part(x: Lanes) -> Lanes:
    """max(x, 0), where a negative x gives -0, so that subtracting a zero from it keeps the sign of x."""
    return choose(x < 0.0, x.constant(-0.0), x)


def gelu_f32(x: Lanes) -> Lanes:
    """max(x, 0) - a Phi(-a) with a = |x|: no cancellation for negative x, however far out.

    Far out a Phi(-a) = exp(-a^2/2) V(a), where V tends to 1 / sqrt(2 pi); near zero it is a/2 - a^2 P(a^2).
    """
    form = x.form
    a = at_most(14.6, magnitude(x))
    half_square = two_product(a, a * -0.5)
    spare = 2 * form.fraction_bits
    shifter = form.shifter + form.bias + spare
    shifted = fma(half_square.high, LOG2_E, shifter)
    count = shifted - shifter
    r = fma(count, -LN_2_LOW["f32"], fma(count, -LN_2_HIGH["f32"], half_square.high)) + half_square.low
    part = fma(r * r, polynomial(r, coefficients.EXPONENTIAL["f32"]), r)
    top = polynomial(a, coefficients.NORMAL_TAIL_NUMERATOR["f32"])
    bottom = polynomial(a, coefficients.NORMAL_TAIL_DENOMINATOR["f32"])
    high, low = fast_two_sum(x.constant(1.0 / math.sqrt(2.0 * math.pi)), top / bottom)
    far = (high + fma(high, part, low)) * power_of_two(shifted.encoded()) * 2.0**-spare
    z = half_square.high * -2.0
    near = fma(z, -polynomial(z, coefficients.NORMAL_NEAR["f32"]), a * 0.5)
    return _positive_part(x) - choose(a < 0.7, near, far)


def gelu_f64(x: Lanes) -> Lanes:
    """As in f32, with Phi(-a) = erfc(a / sqrt 2) / 2."""
    a = at_most(_LARGEST * math.sqrt(2.0), magnitude(x))
    scaled = two_product(a, _ROOT_TWO[0])
    low = fma(a, _ROOT_TWO[1], scaled.low)
    sum_ = fast_two_sum(scaled.high, 1.0)  # the order is right for a >= 3/4, and only there is this used
    tail = _flattened_tail(scaled.high * 0.5)
    value, scale, rescale = _gaussian(tail, Pair(sum_.high, sum_.low + low), two_product(a, a * 0.5))
    half = a * 0.5
    far = fma(half, value.high, half * value.low) * scale * rescale
    square = two_product(a, a)
    slope = polynomial(square.high, coefficients.NORMAL_NEAR["f64"])
    near = fma(square.high, -slope, half) - square.low * slope
    return _positive_part(x) - choose(a < 0.75, near, far)
