"""Roots, powers and hypotenuses."""

from __future__ import annotations

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.compensated import Pair, fast_two_sum, product, quotient, total, two_product
from ingot.compiler.codegen.math.exponential import LN_2_HIGH, LN_2_LOW, exp, exp_of_pair
from ingot.compiler.codegen.math.lanes import (
    Lanes,
    choose,
    fma,
    magnitude,
    polynomial,
    power_of_two,
    sign_bit,
    square_root,
    through_double,
    with_sign_bit,
)
from ingot.compiler.codegen.math.logarithm import INFINITY, NOT_A_NUMBER, decompose_any, finite_log
from ingot.compiler.codegen.math.rounding import trunc

_TWO_THIRDS = (2.0 / 3.0, 3.700743415417188e-17)


def rsqrt(x: Lanes) -> Lanes:
    return 1.0 / square_root(x)


def cbrt(x: Lanes) -> Lanes:
    """With |x| = 2^(3q + j) m: an approximation r of z^(-1/3), z = 2^j m, refined twice; z r^2 is the root.

    The last step uses the exact residual z - y^3, so that the result is almost always correctly rounded.
    """
    form = x.form
    parts = decompose_any(magnitude(x))
    shifter = form.shifter + form.bias
    shifted = fma(parts.exponent, 1.0 / 3.0, shifter)
    third = shifted - shifter
    j = fma(third, -3.0, parts.exponent)
    up, down = j > 0.5, j < -0.5
    z = (parts.fraction + 1.0) * choose(up, x.constant(2.0), choose(down, x.constant(0.5), 1.0))
    r = polynomial(parts.fraction, coefficients.INVERSE_CUBE_ROOT["f64"])
    r = r * choose(up, x.constant(2.0 ** (-1.0 / 3.0)), choose(down, x.constant(2.0 ** (1.0 / 3.0)), 1.0))
    h = fma(z * (r * r), -r, 1.0)
    r = fma(r * h, fma(h, 2.0 / 9.0, 1.0 / 3.0), r)
    square = r * r
    y = z * square
    squared = two_product(y, y)
    cubed = two_product(squared.high, y)
    residual = ((z - cubed.high) - cubed.low) - squared.low * y
    y = fma(residual, square * (1.0 / 3.0), y)
    root = with_sign_bit(y * power_of_two(shifted.encoded()), sign_bit(x))
    return choose((magnitude(x) > 0.0) & (magnitude(x) < INFINITY), root, x)


cbrt_f32 = through_double(cbrt)


def hypot(x: Lanes, y: Lanes) -> Lanes:
    """sqrt(x^2 + y^2), the squares kept in pairs and scaled away from overflow and underflow."""
    a, b = magnitude(x), magnitude(y)
    larger, smaller = choose(a < b, b, a), choose(a < b, a, b)
    scale = choose(larger > 2.0**500, x.constant(2.0**-600), choose(larger < 2.0**-400, x.constant(2.0**600), 1.0))
    unscale = choose(larger > 2.0**500, x.constant(2.0**600), choose(larger < 2.0**-400, x.constant(2.0**-600), 1.0))
    p, q = larger * scale, smaller * scale
    large_square, small_square = two_product(p, p), two_product(q, q)
    high, low = fast_two_sum(large_square.high, small_square.high)
    low = low + (large_square.low + small_square.low)
    root = square_root(high)
    squared = two_product(root, root)
    correction = (((high - squared.high) - squared.low) + low) / (root + root)
    result = (root + choose(root > 0.0, correction, 0.0)) * unscale
    result = choose(a.is_nan() | b.is_nan(), x + y, result)
    return choose(a.equals(INFINITY) | b.equals(INFINITY), x.constant(INFINITY), result)


def hypot_f32(x: Lanes, y: Lanes) -> Lanes:
    """In f64 the squares are exact and can neither overflow nor underflow."""
    p, q = x.widened(), y.widened()
    result = square_root(fma(p, p, q * q)).narrowed()
    infinite = magnitude(x).equals(INFINITY) | magnitude(y).equals(INFINITY)
    return choose(infinite, x.constant(INFINITY), result)


def log_pair(x: Lanes) -> Pair:
    """log(x) to about 66 bits, for positive finite f64 x: 2 atanh(s) with s = f / (2 + f) as a pair."""
    parts = decompose_any(x)
    zero = x.constant(0.0)
    s = quotient(Pair(parts.fraction, zero), fast_two_sum(x.constant(2.0), parts.fraction))
    square = product(s, s)
    cube = product(square, s)
    third = product(cube, Pair(x.constant(_TWO_THIRDS[0]), x.constant(_TWO_THIRDS[1])))
    fifth = square.high * cube.high * polynomial(square.high, coefficients.LOGARITHM_FIFTH["f64"])
    rest = fast_two_sum(third.high, third.low + fifth)
    logarithm = total(Pair(s.high + s.high, s.low + s.low), rest)
    exponent = parts.exponent
    return total(Pair(exponent * LN_2_HIGH["f64"], exponent * LN_2_LOW["f64"]), logarithm)


def power(x: Lanes, y: Lanes) -> Lanes:
    """|x|^y = exp(y log |x|), the logarithm and its product with y as pairs."""
    logarithm = log_pair(magnitude(x))
    high, low = two_product(y, logarithm.high)
    return _with_power_limits(x, y, exp_of_pair(Pair(high, fma(y, logarithm.low, low))))


def power_f32(x: Lanes, y: Lanes) -> Lanes:
    """In f64, whose logarithm has bits to spare."""
    base, exponent = x.widened(), y.widened()
    result = exp(exponent * finite_log(magnitude(base)))
    return _with_power_limits(x, y, result.narrowed())


def _with_power_limits(x: Lanes, y: Lanes, result: Lanes) -> Lanes:
    """C's (and NumPy's) pow at zeros, infinities and NaNs, and its sign for negative x."""
    a = magnitude(x)
    infinite = a.equals(INFINITY)
    grows = choose(infinite, y, -y) > 0.0
    limit = choose(grows, x.constant(INFINITY), 0.0)
    result = choose(infinite | a.equals(0.0), limit, result)
    result = choose(a.equals(1.0), x.constant(1.0), result)
    half = y * 0.5
    integral = trunc(y).equals(y)
    odd = integral & trunc(half).differs(half)
    result = choose(odd, with_sign_bit(result, sign_bit(x)), result)
    undefined = (x < 0.0) & (x > -INFINITY) & trunc(y).differs(y)
    result = choose(undefined, x.constant(NOT_A_NUMBER), result)
    result = choose(x.is_nan() | y.is_nan(), x + y, result)
    return choose(x.equals(1.0) | y.equals(0.0), x.constant(1.0), result)
