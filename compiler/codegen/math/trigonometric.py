"""sin, cos, tan for every argument, however large; and their inverses, atan2 included."""

from __future__ import annotations

from ingot.compiler.codegen.math import coefficients
from ingot.compiler.codegen.math.compensated import fast_two_sum
from ingot.compiler.codegen.math.lanes import F32, F64, Lanes, choose, fma, polynomial, with_sign_bit
from ingot.compiler.codegen.math.outline import outlined
from ingot.compiler.codegen.math.reduction import Reduced, reduce


def _sine(reduced: Reduced) -> Lanes:
    """sin(remainder + tail)."""
    r, tail = reduced.remainder, reduced.tail
    z = r * r
    rest = polynomial(z, coefficients.SINE[r.form.name])
    if tail is None:
        return fma(rest, z * r, r)
    return r + fma(rest, z * r, fma(z * -0.5, tail, tail))


def _cosine(reduced: Reduced) -> Lanes:
    """cos(remainder + tail)."""
    r, tail = reduced.remainder, reduced.tail
    z = r * r
    rest = polynomial(z, (-0.5, *coefficients.COSINE[r.form.name]))
    if tail is None:
        return fma(rest, z, 1.0)
    return 1.0 + fma(rest, z, r * -tail)


def _at_quadrant(reduced: Reduced, quadrant: Lanes) -> Lanes:
    """sin(remainder + quadrant * pi/2)."""
    odd = (quadrant & 1).differs(0)
    sign = (quadrant & 2) << (reduced.remainder.form.bits - 2)
    return with_sign_bit(choose(odd, _cosine(reduced), _sine(reduced)), sign)


def _sin(x: Lanes) -> Lanes:
    reduced = reduce(x, with_tail=x.form is F64)
    return choose(x.equals(0.0), x, _at_quadrant(reduced, reduced.count))


def _cos(x: Lanes) -> Lanes:
    reduced = reduce(x, with_tail=x.form is F64)
    return _at_quadrant(reduced, reduced.count + 1)


def _tan(x: Lanes) -> Lanes:
    """tan(remainder), or -1/tan(remainder) after an odd number of quarter turns."""
    r, tail, count = reduce(x, with_tail=True)
    assert tail is not None
    z = r * r
    if x.form is F32:
        slope = polynomial(z, coefficients.TANGENT["f32"])
    else:
        top = polynomial(z, coefficients.TANGENT_NUMERATOR["f64"])
        slope = top / polynomial(z, coefficients.TANGENT_DENOMINATOR["f64"])
    high, low = fast_two_sum(r, fma(z * r, slope, fma(z, tail, tail)))
    inverse = -1.0 / high
    cotangent = fma(inverse * inverse, low, inverse)
    odd = (count & 1).differs(0)
    return choose(x.equals(0.0), x, choose(odd, cotangent, high))


def sin(x: Lanes) -> Lanes:
    return outlined("sin", [x], _sin)


def cos(x: Lanes) -> Lanes:
    return outlined("cos", [x], _cos)


def tan(x: Lanes) -> Lanes:
    return outlined("tan", [x], _tan)
