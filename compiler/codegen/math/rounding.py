"""Exact functions: rounding to integers, signs, minimum and maximum. No approximation, no error."""

from __future__ import annotations

from ingot.compiler.codegen.math.lanes import Lanes, choose, magnitude, sign_bit


def _integer_nearby(x: Lanes) -> Lanes:
    """x rounded to nearest even, for targets without an instruction: adding 2^fraction_bits drops the fraction."""
    a = magnitude(x)
    anchor = 2.0**x.form.fraction_bits
    return copysign(choose(a < anchor, (a + anchor) - anchor, a), x)


def round_even(x: Lanes) -> Lanes:
    """To nearest, halves to even, as ``np.round``."""
    return x.scope.intrinsic("roundeven", x) if x.scope.target.has_round else _integer_nearby(x)


def floor(x: Lanes) -> Lanes:
    if x.scope.target.has_round:
        return x.scope.intrinsic("floor", x)
    nearby = _integer_nearby(x)
    return nearby - choose(nearby > x, x.constant(1.0), 0.0)


def ceil(x: Lanes) -> Lanes:
    if x.scope.target.has_round:
        return x.scope.intrinsic("ceil", x)
    nearby = _integer_nearby(x)
    return copysign(nearby + choose(nearby < x, x.constant(1.0), 0.0), x)


def trunc(x: Lanes) -> Lanes:
    if x.scope.target.has_round:
        return x.scope.intrinsic("trunc", x)
    return copysign(floor(magnitude(x)), x)


def copysign(x: Lanes, y: Lanes) -> Lanes:
    """|x| with the sign of y."""
    return (magnitude(x).encoded() | sign_bit(y)).decoded()


def sign(x: Lanes) -> Lanes:
    """-1, 0, 1 or NaN; as in NumPy, the sign of -0 is +0."""
    one = copysign(x.constant(1.0), x)
    return choose(magnitude(x) > 0.0, one, x + 0.0)


def minimum(x: Lanes, y: Lanes) -> Lanes:
    """The smaller; NaN if either is."""
    return choose(x.is_nan(), x, choose(x < y, x, y))


def maximum(x: Lanes, y: Lanes) -> Lanes:
    """The larger; NaN if either is."""
    return choose(x.is_nan(), x, choose(x > y, x, y))
