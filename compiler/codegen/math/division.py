"""Exact remainders: fmod as in C, mod and floor_divide as in NumPy.

The remainder is found by long division: the quotient may have two thousand bits, so this is a loop, out of line, that
takes as many steps as the lanes with the largest quotient need; nearly always that is one.
"""

from __future__ import annotations

from ingot.compiler.codegen.math.compensated import two_product
from ingot.compiler.codegen.math.lanes import (
    F32,
    Lanes,
    choose,
    fma,
    integer_to_real,
    magnitude,
    power_of_two,
    sign_bit,
    with_sign_bit,
)
from ingot.compiler.codegen.math.logarithm import INFINITY, NOT_A_NUMBER
from ingot.compiler.codegen.math.outline import any_lane, outlined
from ingot.compiler.codegen.math.rounding import copysign, floor, trunc

_STEP = 50
"""Bits of quotient a step: the quotient then stays below 2^51 and is exact as a float."""


def _normalised(x: Lanes) -> tuple[Lanes, Lanes]:
    """Positive finite f64 x as (m, e), x = 2^e m with 1 <= m < 2; e is a float. For zero, m is wrong."""
    form = x.form
    subnormal = x < form.smallest_normal
    scaled = x * choose(subnormal, x.constant(2.0**54), 1.0)
    bits = scaled.encoded()
    exponent = integer_to_real(bits >> form.fraction_bits) - choose(subnormal, x.constant(54.0 + form.bias), form.bias)
    mantissa = ((bits & form.fraction_mask) | form.encoding(1.0)).decoded()
    return mantissa, exponent


def _exact_power_of_two(exponent: Lanes) -> Lanes:
    """2^exponent for float lanes holding integers, all in the normal range."""
    return power_of_two((exponent + (exponent.form.shifter + exponent.form.bias)).encoded())


def _long_division(x: Lanes, y: Lanes) -> Lanes:
    """x mod y for positive finite f64 lanes, exactly; any number for other lanes."""
    builder, scope = x.scope.builder, x.scope
    numerator, x_exponent = _normalised(x)
    divisor, y_exponent = _normalised(y)
    entry, loop, done = builder.block, builder.append_basic_block("divide"), builder.append_basic_block("divided")
    start = x_exponent - y_exponent
    builder.branch(loop)
    builder.position_at_end(loop)
    rest_phi, left_phi = builder.phi(x.value.type), builder.phi(x.value.type)
    rest, left = Lanes(scope, x.element, rest_phi), Lanes(scope, x.element, left_phi)
    step = choose(left < float(_STEP), left, float(_STEP))
    step = choose(step > 0.0, step, 0.0)
    next_rest = _reduced(rest * _exact_power_of_two(step), divisor)
    next_left = left - step
    for phi, first, later in ((rest_phi, numerator, next_rest), (left_phi, start, next_left)):
        phi.add_incoming(first.value, entry)
        phi.add_incoming(later.value, loop)
    builder.cbranch(any_lane(next_left > 0.0), loop, done)
    builder.position_at_end(done)
    return _scaled_exactly(next_rest, y_exponent)


def _reduced(x: Lanes, divisor: Lanes) -> Lanes:
    """x mod divisor, exactly, for 0 <= x < 2^51 and 1 <= divisor < 2."""
    count = trunc(x / divisor)
    if x.scope.target.has_fma:
        rest = fma(count, -divisor, x)
    else:
        high, low = two_product(count, divisor)
        rest = (x - high) - low
    return choose(rest < 0.0, rest + divisor, rest)


def _scaled_exactly(x: Lanes, exponent: Lanes) -> Lanes:
    """x * 2^exponent where the result is representable; the exponent may be that of a subnormal."""
    half = trunc(exponent * 0.5)
    return x * _exact_power_of_two(half) * _exact_power_of_two(exponent - half)


def _positive_remainder(x: Lanes, y: Lanes) -> Lanes:
    """|x| mod |y| with C's limits."""
    a, b = magnitude(x), magnitude(y)
    safe = (a < INFINITY) & (a >= b) & (b > 0.0)
    one = a.constant(1.0)
    rest = _long_division(choose(safe, a, one), choose(safe, b, one))
    # Already smaller (an infinite divisor included): unchanged. Infinite dividend, zero divisor or NaN: NaN.
    unchanged = choose((a < b) & (a < INFINITY), a, NOT_A_NUMBER)
    return choose(safe, rest, unchanged)


def _fmod(x: Lanes, y: Lanes) -> Lanes:
    if x.form is F32:
        rest = _positive_remainder(x.widened(), y.widened()).narrowed()
    else:
        rest = _positive_remainder(x, y)
    return with_sign_bit(rest, sign_bit(x))


def fmod(x: Lanes, y: Lanes) -> Lanes:
    """x - n y with n = x / y rounded towards zero, exactly; the sign is that of x."""
    return outlined("fmod", [x, y], _fmod)


def mod(x: Lanes, y: Lanes) -> Lanes:
    """x - n y with n = x / y rounded down; the sign is that of y, a zero included."""
    rest = fmod(x, y)
    opposite = (rest.encoded() ^ y.encoded()) < 0
    moved = choose(opposite, rest + y, rest)
    return choose(rest.equals(0.0), copysign(rest, y), moved)


def floor_divide(x: Lanes, y: Lanes) -> Lanes:
    """The n of ``mod``, as NumPy rounds it: (x - x mod y) / y, made an integer."""
    rest = fmod(x, y)
    exact = (x - rest) / y
    opposite = ((rest.encoded() ^ y.encoded()) < 0) & rest.differs(0.0)
    exact = choose(opposite, exact - 1.0, exact)
    below = floor(exact)
    below = choose((exact - below) > 0.5, below + 1.0, below)
    plain = x / y
    result = choose(exact.equals(0.0), copysign(exact, plain), below)
    return choose(y.equals(0.0), plain, result)
