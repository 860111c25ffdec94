"""asin, acos, atan and atan2."""

from __future__ import annotations

import math

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.lanes import (
    F32,
    Lanes,
    choose,
    fma,
    magnitude,
    polynomial,
    sign_bit,
    square_root,
    with_sign_bit,
)

_PI_LOW = 1.2246467991473532e-16
"""pi minus its nearest double."""
_TAN_EIGHTH = math.sqrt(2.0) - 1.0


def _multiple_of_pi(like: Lanes, factor: float) -> tuple[float, float]:
    """``factor * pi`` in two parts, the first rounded to the format of ``like``; factor is a power of two."""
    exact = math.pi * factor
    high = like.form.rounded(exact)
    return high, exact - high if like.form is F32 else _PI_LOW * factor


def _arc_sine(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Where |x| <= 1/2, asin(|x|), and elsewhere asin(sqrt((1 - |x|) / 2)) = acos(|x|) / 2: mask, s and the rest."""
    a = magnitude(x)
    small = a <= 0.5
    z = choose(small, x * x, (1.0 - a) * 0.5)
    s = choose(small, a, square_root(z))
    return small, s, polynomial(z, coefficients.ARC_SINE[x.form.name]) * (z * s)


def asin(x: Lanes) -> Lanes:
    high, low = _multiple_of_pi(x, 0.5)
    small, s, rest = _arc_sine(x)
    complement = high - ((s + s) - (low - (rest + rest)))
    return with_sign_bit(choose(small, s + rest, complement), sign_bit(x))


def acos(x: Lanes) -> Lanes:
    high, low = _multiple_of_pi(x, 0.5)
    small, s, rest = _arc_sine(x)
    sign = sign_bit(x)
    middle = high - (with_sign_bit(s, sign) - (low - with_sign_bit(rest, sign)))
    twice = (s + s) + (rest + rest)
    mirrored = 2.0 * high - ((s + s) - (2.0 * low - (rest + rest)))
    return choose(small, middle, choose(x < 0.0, mirrored, twice))


def _arc_tangent(opposite: Lanes, adjacent: Lanes) -> Lanes:
    """atan(opposite / adjacent) for 0 <= opposite <= adjacent."""
    if opposite.form is F32:
        r = opposite / adjacent
        z = r * r
        return fma(polynomial(z, coefficients.ARC_TANGENT["f32"]), z * r, r)
    steep = opposite > adjacent * _TAN_EIGHTH
    r = choose(steep, opposite - adjacent, opposite) / choose(steep, opposite + adjacent, adjacent)
    z = r * r
    rest = polynomial(z, coefficients.ARC_TANGENT["f64"]) * (z * r)
    high, low = _multiple_of_pi(r, 0.25)
    shift = choose(steep, r.constant(high), 0.0)
    return shift + (r + (rest + choose(steep, r.constant(low), 0.0)))


def atan(x: Lanes) -> Lanes:
    a = magnitude(x)
    large = a > 1.0
    angle = _arc_tangent(choose(large, x.constant(1.0), a), choose(large, a, 1.0))
    high, low = _multiple_of_pi(x, 0.5)
    return with_sign_bit(choose(large, high - (angle - low), angle), sign_bit(x))


def atan2(y: Lanes, x: Lanes) -> Lanes:
    """The angle of the point (x, y). Infinities count as equally large, zeros as equally small, as in C."""
    form = y.form
    rise, run = magnitude(y), magnitude(x)
    steep = rise > run
    opposite, adjacent = choose(steep, run, rise), choose(steep, rise, run)
    # Both infinite: 45 degrees. Both zero: 0 degrees. Near overflow: halve, so that no sum overflows.
    scale = choose(adjacent > 2.0 ** (form.bias - 1), y.constant(0.25), 1.0)
    opposite, adjacent = opposite * scale, adjacent * scale
    infinite = opposite.equals(float("inf"))
    opposite = choose(infinite, y.constant(1.0), opposite)
    adjacent = choose(infinite | adjacent.equals(0.0), y.constant(1.0), adjacent)
    angle = _arc_tangent(opposite, adjacent)
    half_high, half_low = _multiple_of_pi(y, 0.5)
    angle = choose(steep, half_high - (angle - half_low), angle)
    left = x.encoded() < 0
    angle = choose(left, 2.0 * half_high - (angle - 2.0 * half_low), angle)
    angle = with_sign_bit(angle, sign_bit(y))
    return choose(x.is_nan() | y.is_nan(), x + y, angle)
