"""exp of f32 for targets that look eight numbers up in a register (``MathTarget.has_short_lookup``).

x = (n/8) ln 2 + r with |r| <= (ln 2)/16, so that exp(x) = 2^(n/8) exp(r) needs a polynomial of degree three instead of six:
fewer multiply-adds, which are what exp waits for. Elsewhere, and of f64, exp is that of ``exponential``.

Invariant: the same bits at every width, and for ordinary arguments in both forms.
"""

from __future__ import annotations

from llvmlite import ir

from ingot.compiler.codegen.math import coefficients, exponential, pieces
from ingot.compiler.codegen.math.exponential import LN_2_HIGH, LN_2_LOW, LOG2_E
from ingot.compiler.codegen.math.lanes import F32, Lanes, by_registers, declared, fma, polynomial

WIDTH = 8
_BITS = 3  # of a place in the table
_PLACES = ir.VectorType(F32.integer_type, WIDTH)
_SHIFTER = 1.5 * 2.0 ** (F32.fraction_bits - _BITS)
"""Adding it rounds a number to eighths, which then stand in the low bits."""
_ROOTS = [F32.encoding(root) for root in pieces.ROOTS_OF_TWO[0][::2]]
"""2^(k/8)"""
_LOWERED = [root - (place << (F32.fraction_bits - _BITS)) for place, root in enumerate(_ROOTS)]
"""Without what the low bits of n add when all of n is added to the exponent."""


def _looked_up(places: Lanes, row: list[int]) -> Lanes:
    """The bits at the place that the low three bits name. Only this goes register by register: everything else is in vectors
    of several, whose instructions take turns, so that the latency of one register hides behind the others."""

    @by_registers(WIDTH)
    def looked_up(places: Lanes) -> Lanes:
        builder = places.scope.builder
        function = declared(builder.module, "llvm.x86.avx2.permd", ir.FunctionType(_PLACES, [_PLACES, _PLACES]))
        return Lanes(places.scope, places.element, builder.call(function, [ir.Constant(_PLACES, row), places.value]))

    return looked_up(places)


def _reduced(x: Lanes, shifter: float) -> tuple[Lanes, Lanes]:
    """n in the low bits, and exp(r) - 1."""
    shifted = fma(x, LOG2_E, shifter)
    count = shifted - shifter
    r = fma(count, -LN_2_LOW["f32"], fma(count, -LN_2_HIGH["f32"], x))
    return shifted.encoded(), fma(r * r, polynomial(r, coefficients.EXPONENTIAL_EIGHTHS["f32"]), r)


def _exp(x: Lanes) -> Lanes:
    places, rest = _reduced(exponential.clamped(x), _SHIFTER + 2 * F32.bias)
    root = _looked_up(places, _ROOTS).decoded()
    return exponential.scaled(fma(root, rest, root), places >> _BITS)


def _exp_of_ordinary(x: Lanes) -> Lanes:
    places, rest = _reduced(x, _SHIFTER)
    scaled = (_looked_up(places, _LOWERED) + (places << (F32.fraction_bits - _BITS))).decoded()
    return fma(scaled, rest, scaled)


def exp(x: Lanes) -> Lanes:
    return _exp(x) if _applies(x) else exponential.exp(x)


def exp_of_ordinary(x: Lanes) -> Lanes:
    """exp where |x| is at most ``exponential.ORDINARY``, with the same bits."""
    return _exp_of_ordinary(x) if _applies(x) else exponential.exp_of_ordinary(x)


def _applies(x: Lanes) -> bool:
    return x.scope.target.has_short_lookup and x.form is F32
