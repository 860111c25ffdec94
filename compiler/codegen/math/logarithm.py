"""log in its bases, log1p, and the inverse hyperbolic functions, which are logarithms of sums.

All write the argument as 2^e m with m between sqrt(1/2) and sqrt(2), and f = m - 1, which is exact. Then
log m = f - f^2/2 + rest, where only the last term is approximated.
"""

from __future__ import annotations

from typing import NamedTuple

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.compensated import Pair, fast_two_sum, two_sum
from ingot.compiler.codegen.math.exponential import LN_2_HIGH, LN_2_LOW
from ingot.compiler.codegen.math.lanes import (
    Lanes,
    choose,
    fma,
    magnitude,
    paired_polynomial,
    polynomial,
    power_of_two,
    sign_bit,
    square_root,
    with_sign_bit,
)

SQRT_HALF = 0.7071067811865476
INFINITY = float("inf")
NOT_A_NUMBER = float("nan")


class Parts(NamedTuple):
    """``x = 2^exponent * (1 + fraction)`` with ``exponent`` a float; ``biased`` is the exponent as an integer."""

    exponent: Lanes
    fraction: Lanes
    biased: Lanes


def decompose(x: Lanes) -> Parts:
    """For positive finite normal x; any other x gives some number, never a trap."""
    form = x.form
    lowest = form.encoding(SQRT_HALF)
    aligned = x.encoded() + (form.encoding(1.0) - lowest)
    biased = aligned >> form.fraction_bits
    fraction = ((aligned & form.fraction_mask) + lowest).decoded() - 1.0
    anchor = 2.0**form.fraction_bits
    exponent = (biased | form.encoding(anchor)).decoded() - (anchor + form.bias)
    return Parts(exponent, fraction, biased)


def decompose_any(x: Lanes) -> Parts:
    """``decompose``, but for subnormal x too."""
    subnormal = x < x.form.smallest_normal
    spare = x.form.fraction_bits + 1.0
    parts = decompose(x * choose(subnormal, x.constant(2.0**spare), 1.0))
    return parts._replace(exponent=parts.exponent - choose(subnormal, x.constant(spare), 0.0))


def _rest(f: Lanes, half_square: Lanes) -> Lanes:
    """log(1 + f) - (f - half_square), with ``half_square`` = f^2/2."""
    if f.form.bits == 32:
        return f * (half_square + half_square) * paired_polynomial(f, coefficients.LOGARITHM_CUBIC["f32"])
    s = f / (f + 2.0)
    square = s * s
    return s * fma(square, polynomial(square, coefficients.LOGARITHM_SERIES["f64"]), half_square)


def _with_limits(x: Lanes, result: Lanes) -> Lanes:
    """What a logarithm is at the ends of its domain and beyond."""
    result = choose(x < INFINITY, result, x)
    outside = choose(x.equals(0.0), x.constant(-INFINITY), NOT_A_NUMBER)
    return choose(x > 0.0, result, outside)


def _combine(parts: Parts, tail: Lanes | None = None) -> Lanes:
    """exponent * ln 2 + log(1 + fraction + tail); the tail is below the precision of the fraction."""
    name, f = parts.fraction.form.name, parts.fraction
    whole = f if tail is None else f + tail
    half_square = whole * whole * 0.5
    rest = fma(parts.exponent, LN_2_LOW[name], _rest(whole, half_square))
    if tail is not None:
        rest = rest + tail
    return fma(parts.exponent, LN_2_HIGH[name], f - (half_square - rest))


def finite_log(x: Lanes) -> Lanes:
    """log for positive finite x; some number for any other x."""
    return _combine(decompose_any(x))


def log(x: Lanes) -> Lanes:
    return _with_limits(x, finite_log(x))


def log_of_ordinary(x: Lanes) -> Lanes:
    """log of positive finite normal numbers, with the same bits."""
    return _combine(decompose(x))


def size_for_log(x: Lanes) -> tuple[Lanes, int]:
    """An integer and its largest value for ``log_of_ordinary``: numbers from the smallest normal one to infinity are put at
    the lower end of the integers."""
    form = x.form
    smallest, infinity = form.encoding(form.smallest_normal), form.encoding(INFINITY)
    return x.encoded() + (form.sign_mask - smallest), infinity - smallest - 1 - form.sign_mask


class _Base(NamedTuple):
    """1 / ln(base) and log(2) to that base, in two parts each; the high parts are short, so products are exact."""

    factor_high: float
    factor_low: float
    two_high: float
    two_low: float


def _base(*numbers: str) -> _Base:
    return _Base(*(float.fromhex(number) for number in numbers))


_TWO = {
    "f32": _base("0x1.714p+0", "0x1.47652b82fe177p-12", "0x1p0", "0x0p0"),
    "f64": _base("0x1.715476p+0", "0x1.4ae0bf85ddf44p-26", "0x1p0", "0x0p0"),
}
_TEN = {
    "f32": _base("0x1.bcap-2", "0x1.7b1526e50e32ap-14", "0x1.344p-2", "0x1.3509f79fef312p-18"),
    "f64": _base("0x1.bcb7b1p-2", "0x1.49b9438ca9aaep-28", "0x1.34413509f7p-2", "0x1.3fde623e2566bp-43"),
}


def _log_to_base(x: Lanes, bases: dict[str, _Base]) -> Lanes:
    """The logarithm of m as high + low, high with half the bits; so the change of base costs no accuracy."""
    parts, base = decompose_any(x), bases[x.form.name]
    f, e = parts.fraction, parts.exponent
    half_square = f * f * 0.5
    high = ((f - half_square).encoded() & -(1 << ((x.form.fraction_bits + 2) // 2))).decoded()
    low = ((f - high) - half_square) + _rest(f, half_square)
    small = fma(low + high, base.factor_low, low * base.factor_high)
    lead = fast_two_sum(e * base.two_high, high * base.factor_high)
    return _with_limits(x, lead.high + (lead.low + fma(e, base.two_low, small)))


def log2(x: Lanes) -> Lanes:
    return _log_to_base(x, _TWO)


def log10(x: Lanes) -> Lanes:
    return _log_to_base(x, _TEN)


def _log_of_pair(x: Pair, extra_exponent: Lanes | None = None) -> Lanes:
    """log(high + low) for positive normal high; exact enough near 1 that relative accuracy survives."""
    parts = decompose(x.high)
    twice_inverse_scale = power_of_two(2 * x.high.form.bias + 1 - parts.biased)
    if extra_exponent is not None:
        parts = parts._replace(exponent=parts.exponent + extra_exponent)
    return _combine(parts, x.low * 0.5 * twice_inverse_scale)


def log1p(x: Lanes) -> Lanes:
    total = two_sum(x.constant(1.0), x)
    result = _with_limits(total.high, _log_of_pair(total))
    return choose(magnitude(x) < x.form.unit / 4, x, result)


def asinh(x: Lanes) -> Lanes:
    """log(a + sqrt(a^2 + 1)) with a = |x|, as log1p(a + a^2 / (1 + sqrt(a^2 + 1))); log(2 a) if a is large."""
    a = magnitude(x)
    large = a > 2.0 ** (x.form.fraction_bits // 2 + 2)
    bounded = choose(large, x.constant(1.0), a)
    square = bounded * bounded
    total = two_sum(x.constant(1.0), bounded + square / (square_root(square + 1.0) + 1.0))
    pair = Pair(choose(large, a, total.high), choose(large, x.constant(0.0), total.low))
    result = _log_of_pair(pair, choose(large, x.constant(1.0), 0.0))
    result = choose(a < INFINITY, result, a)
    return choose(a < 2.0 ** -(x.form.fraction_bits // 2 + 2), x, with_sign_bit(result, sign_bit(x)))


def acosh(x: Lanes) -> Lanes:
    """log(x + sqrt(x^2 - 1)) = log1p(t + sqrt(2 t + t^2)) with t = x - 1; log(2 x) if x is large."""
    large = x > 2.0 ** (x.form.fraction_bits // 2 + 2)
    t = choose(large, x.constant(1.0), x) - 1.0
    total = two_sum(x.constant(1.0), t + square_root(fma(t, t, t + t)))
    pair = Pair(choose(large, x, total.high), choose(large, x.constant(0.0), total.low))
    result = _log_of_pair(pair, choose(large, x.constant(1.0), 0.0))
    result = choose(x < INFINITY, result, x)
    return choose(x < 1.0, x.constant(NOT_A_NUMBER), result)


def atanh(x: Lanes) -> Lanes:
    """log((1 + a) / (1 - a)) / 2 = log1p(2 a / (1 - a)) / 2 with a = |x|."""
    a = magnitude(x)
    twice = a + a
    share = twice / (1.0 - a)
    argument = choose(a < 0.5, fma(share, a, twice), share)
    result = _log_of_pair(two_sum(x.constant(1.0), argument)) * 0.5
    result = choose(a < 1.0, result, choose(a.equals(1.0), x.constant(INFINITY), NOT_A_NUMBER))
    return choose(a < 2.0 ** -(x.form.fraction_bits // 2 + 2), x, with_sign_bit(result, sign_bit(x)))
