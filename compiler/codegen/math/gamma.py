"""log |Gamma| and its derivative, digamma, in f64; f32 goes through f64.

Three ways to the value at a = |x|, chosen lane by lane: a shift to a + 1 for small a, a quotient of polynomials that
has the zeros of the function as exact factors, and Stirling's series. Negative x then use the reflection formula;
near the zeros between the negative integers its terms cancel, and the error is small only relative to the terms.
"""

from __future__ import annotations

import math

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.compensated import Pair, fast_two_sum, product, two_sum
from ingot.compiler.codegen.math.lanes import Lanes, choose, fma, magnitude, polynomial, through_double
from ingot.compiler.codegen.math.logarithm import INFINITY, NOT_A_NUMBER, finite_log
from ingot.compiler.codegen.math.power import log_pair
from ingot.compiler.codegen.math.rounding import round_even

_SHIFT_BELOW = 0.75
_REFLECT_BELOW = -0.25
_STIRLING_FROM = 2.25
_SERIES_FROM = 4.0
_HALF_LOG_TURN = (0.4189385332046727, 1.6728209650585413e-17)
"""log(2 pi) / 2 - 1/2 in two parts."""
_DIGAMMA_ROOT = (0.46163214496836236, -1.5522348162858677e-17)
"""The positive zero of digamma, less 1, in two parts."""


def _quotient(u: Lanes, name: str) -> Lanes:
    """A fitted quotient of polynomials."""
    top = getattr(coefficients, f"{name}_NUMERATOR")["f64"]
    bottom = getattr(coefficients, f"{name}_DENOMINATOR")["f64"]
    return polynomial(u, top) / polynomial(u, bottom)


def _distance_from_integer(a: Lanes) -> Lanes:
    """|a - n| for the integer n nearest to a >= 0; at most 1/2, and exact."""
    return magnitude(a - round_even(a))


def _tangent_of_pi_times(f: Lanes) -> Lanes:
    """tan(pi f) for 0 <= f <= 1/4."""
    r = f * math.pi
    z = r * r
    return fma(r * z, _quotient(z, "TANGENT"), r)


def _lgamma_near(x: Lanes, a: Lanes, logarithm: Pair) -> Lanes:
    """With y = 1 + u: lgamma(y) = u (u - 1) R(u). Small x shift: lgamma(x) = lgamma(1 + x) - log |x|."""
    shift = a < _SHIFT_BELOW
    u = choose(shift, choose(x < _REFLECT_BELOW, a, x), a - 1.0)
    near = u * (u - 1.0) * (_quotient(u, "LGAMMA") + 0.5) + 0.0  # +0, not -0, at 1
    return choose(shift, (near - logarithm.low) - logarithm.high, near)


def _stirling(a: Lanes, logarithm: Pair) -> Lanes:
    """(a - 1/2) (log a - 1) + constant + P(1 / a^2) / a."""
    inverse = 1.0 / a
    series = polynomial(inverse * inverse, coefficients.STIRLING["f64"]) * inverse
    excess = two_sum(logarithm.high, a.constant(-1.0))
    factor = two_sum(a, a.constant(-0.5))
    lead = product(factor, Pair(excess.high, excess.low + logarithm.low))
    constant = fast_two_sum(series.constant(_HALF_LOG_TURN[0]), series)
    total = two_sum(lead.high, constant.high)
    finite = total.high + (total.low + (lead.low + (constant.low + _HALF_LOG_TURN[1])))
    return choose(lead.high < INFINITY, finite, INFINITY)


def lgamma(x: Lanes) -> Lanes:
    a = magnitude(x)
    logarithm = log_pair(a)
    result = choose(a < _STIRLING_FROM, _lgamma_near(x, a, logarithm), _stirling(a, logarithm))
    # Reflection: |Gamma(-a)| = pi / (a |sin(pi a)| Gamma(a)), and sin is 2 t / (1 + t^2) of half the angle's tangent.
    t = _tangent_of_pi_times(_distance_from_integer(a) * 0.5)
    sine = (t + t) / fma(t, t, 1.0)
    reflected = -(finite_log(a * sine * (1.0 / math.pi)) + result)
    result = choose(x < _REFLECT_BELOW, reflected, result)
    pole = (x <= 0.0) & round_even(x).equals(x)
    result = choose(pole | a.equals(INFINITY), x.constant(INFINITY), result)
    return choose(x.is_nan(), x, result)


def digamma(x: Lanes) -> Lanes:
    a = magnitude(x)
    shift, small_negative = a < 1.0, (x < 0.0) & (x >= _REFLECT_BELOW)
    u = choose(shift, choose(small_negative, x, a), a - 1.0)
    factor = (u - _DIGAMMA_ROOT[0]) - _DIGAMMA_ROOT[1]
    near = factor * (_quotient(u, "DIGAMMA") + 0.75)
    near = choose(shift, near - 1.0 / u, near)
    inverse = 1.0 / a
    series = fma(polynomial(inverse * inverse, coefficients.DIGAMMA_SERIES["f64"]), inverse, 0.5) * inverse
    far = finite_log(choose(a < INFINITY, a, 1.0)) - series
    result = choose(a < _SERIES_FROM, near, far)
    # Reflection: digamma(-a) = digamma(a) + 1/a + pi / tan(pi a).
    offset = a - round_even(a)
    distance = magnitude(offset)
    steep = distance > 0.25
    tangent = _tangent_of_pi_times(choose(steep, 0.5 - distance, distance))
    cotangent = choose(steep, tangent, 1.0 / tangent) * math.pi
    cotangent = choose(offset < 0.0, -cotangent, cotangent)
    result = choose(x < _REFLECT_BELOW, result + (inverse + cotangent), result)
    undefined = (x <= 0.0) & round_even(x).equals(x)
    result = choose(undefined, x.constant(NOT_A_NUMBER), result)
    return choose(x.equals(INFINITY) | x.is_nan(), x, result)


lgamma_f32 = through_double(lgamma)
digamma_f32 = through_double(digamma)
