"""Sums and products with their rounding errors: twice the precision where one rounding too many would show.

The error-free transformations are Knuth's and Dekker's (T. J. Dekker, "A floating-point technique for extending the
available precision", 1971). They hold barring overflow and underflow of the error term; callers scale accordingly.
"""

from __future__ import annotations

from typing import NamedTuple

from ingot.compiler.codegen.math.lanes import Lanes, fma


class Pair(NamedTuple):
    """The unevaluated sum ``high + low``; ``low`` is at most about half a unit in the last place of ``high``."""

    high: Lanes
    low: Lanes


def fast_two_sum(larger: Lanes, smaller: Lanes | float) -> Pair:
    """``larger + smaller`` exactly, if ``larger`` is zero or has the larger exponent."""
    total = larger + smaller
    return Pair(total, smaller - (total - larger))


def two_sum(a: Lanes, b: Lanes) -> Pair:
    """``a + b`` exactly, whatever their order."""
    total = a + b
    virtual = total - a
    return Pair(total, (a - (total - virtual)) + (b - virtual))


def split(x: Lanes) -> Pair:
    """``x`` as two numbers of half the precision each, whose products are therefore exact."""
    dropped = (x.form.fraction_bits + 2) // 2
    high = ((x.encoded() + (1 << (dropped - 1))) & -(1 << dropped)).decoded()
    return Pair(high, x - high)


def two_product(a: Lanes, b: Lanes | float) -> Pair:
    """``a * b`` exactly."""
    product = a * b
    if a.scope.target.has_fma:
        return Pair(product, fma(a, b, -product))
    left, right = split(a), split(b if isinstance(b, Lanes) else a.constant(b))
    low = left.high * right.high - product + left.high * right.low + left.low * right.high
    return Pair(product, low + left.low * right.low)


def product(a: Pair, b: Pair) -> Pair:
    """``a * b`` to about twice the working precision."""
    high, low = two_product(a.high, b.high)
    return fast_two_sum(high, fma(a.high, b.low, fma(a.low, b.high, low)))


def total(a: Pair, b: Pair) -> Pair:
    """``a + b`` to about twice the working precision, for summands of the same sign or of different size."""
    high, low = two_sum(a.high, b.high)
    return fast_two_sum(high, low + (a.low + b.low))


def quotient(a: Pair, b: Pair) -> Pair:
    """``a / b`` to about twice the working precision."""
    reciprocal = 1.0 / b.high
    first = a.high * reciprocal
    exact = two_product(first, b.high)
    remainder = ((a.high - exact.high) - exact.low) + (a.low - first * b.low)
    return fast_two_sum(first, remainder * reciprocal)
