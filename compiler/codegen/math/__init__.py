"""Elementary functions as LLVM IR: vectors in, vectors out, no library calls.

Operands are scalars or vectors of float or double. The code is straight-line and branch-free, except that functions
with a rare slow path or a loop become one call of a private function of the same module; either way the caller's
current block stays the current block. Some functions have a second form for ``Ordinary`` arguments; who uses it
looks at the arguments first. Every function is correct over the whole range of its arguments: subnormals,
infinities, NaN and signed zeros behave as NumPy's. ``ULP`` states the largest error in units in the last place of
the exact result, for targets with and without fused multiply-add; 0.5 is the best possible of a function that rounds.
Only lgamma and digamma of negative f64 numbers are an exception: see ``gamma``.

f16 and bf16 are not handled here: compute in f32 and round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from ingot.compiler.codegen.math import (
    division,
    eighths,
    error_function,
    exponential,
    gamma,
    inverse_trigonometric,
    logarithm,
    lookup,
    power,
    rounding,
    trigonometric,
)
from ingot.compiler.codegen.math.lanes import F32, F64, Lanes, MathTarget, Scope, all_at_most, magnitude, square_root

__all__ = [
    "BINARY",
    "ULP",
    "UNARY",
    "Elementary",
    "MathTarget",
    "Ordinary",
    "emit_binary",
    "emit_is_ordinary",
    "emit_ordinary",
    "emit_unary",
]


@dataclass(frozen=True)
class Ordinary:
    """How to compute a function, with the same bits, of numbers that are neither extreme nor special: it takes less.

    ``size`` maps an argument to integers; the argument is ordinary when none of them exceeds the number beside them.
    """

    function: Callable[[Lanes], Lanes]
    size: Callable[[Lanes], tuple[Lanes, int]]


@dataclass(frozen=True)
class Elementary:
    """One function: how it is computed in each format, and the error bounds in units in the last place."""

    f32: Callable[..., Lanes]
    f64: Callable[..., Lanes]
    f32_bound: float
    f64_bound: float
    ordinary: Ordinary | None = None
    lookup: Callable[[Lanes], Lanes] | None = None
    """f32 on targets with ``has_lookup``; there is no other form for ordinary arguments then."""

    def has_ordinary(self, element: ir.Type, target: MathTarget) -> bool:
        return self.ordinary is not None and not self.looks_up(element, target)

    def looks_up(self, element: ir.Type, target: MathTarget) -> bool:
        return self.lookup is not None and target.has_lookup and element == F32.real_type


def _both(
    function: Callable[..., Lanes],
    f32_bound: float,
    f64_bound: float,
    ordinary: Ordinary | None = None,
    lookup: Callable[[Lanes], Lanes] | None = None,
) -> Elementary:
    return Elementary(function, function, f32_bound, f64_bound, ordinary, lookup)


def _exact(function: Callable[..., Lanes]) -> Elementary:
    return Elementary(function, function, 0.0, 0.0)


UNARY: dict[str, Elementary] = {
    "exp": _both(eighths.exp, 1.2, 1.2, Ordinary(eighths.exp_of_ordinary, exponential.size_for_exp), lookup.exp),
    "exp2": _both(exponential.exp2, 1.1, 1.1),
    "expm1": _both(exponential.expm1, 1.3, 1.3),
    "sinh": _both(exponential.sinh, 1.5, 1.5),
    "cosh": _both(exponential.cosh, 1.7, 1.7),
    "tanh": _both(exponential.tanh, 2.1, 2.2, lookup=lookup.tanh),
    "sigmoid": _both(exponential.sigmoid, 2.1, 2.1),
    "softplus": _both(exponential.softplus, 2.4, 2.4),
    "erf": Elementary(error_function.erf_f32, error_function.erf_f64, 1.7, 1.0, lookup=lookup.erf),
    "erfc": Elementary(error_function.erfc_f32, error_function.erfc_f64, 0.51, 0.8),
    "gelu": Elementary(error_function.gelu_f32, error_function.gelu_f64, 2.7, 1.3, lookup=lookup.gelu),
    "log": _both(logarithm.log, 1.0, 1.0, Ordinary(logarithm.log_of_ordinary, logarithm.size_for_log), lookup.log),
    "log2": _both(logarithm.log2, 1.0, 1.0),
    "log10": _both(logarithm.log10, 1.0, 1.0),
    "log1p": _both(logarithm.log1p, 1.0, 1.0),
    "asinh": _both(logarithm.asinh, 2.0, 2.0),
    "acosh": _both(logarithm.acosh, 2.2, 2.2),
    "atanh": _both(logarithm.atanh, 2.0, 2.0),
    "sqrt": _both(square_root, 0.5, 0.5),
    "rsqrt": _both(power.rsqrt, 1.5, 1.5),
    "cbrt": Elementary(power.cbrt_f32, power.cbrt, 0.51, 0.51),
    "sin": _both(trigonometric.sin, 1.6, 1.5),
    "cos": _both(trigonometric.cos, 1.6, 1.5),
    "tan": _both(trigonometric.tan, 1.6, 1.6),
    "asin": _both(inverse_trigonometric.asin, 1.7, 1.7),
    "acos": _both(inverse_trigonometric.acos, 1.2, 1.2),
    "atan": _both(inverse_trigonometric.atan, 1.6, 1.9),
    "lgamma": Elementary(gamma.lgamma_f32, gamma.lgamma, 1.0, 3.0),
    "digamma": Elementary(gamma.digamma_f32, gamma.digamma, 1.0, 4.0),
    "floor": _exact(rounding.floor),
    "ceil": _exact(rounding.ceil),
    "round": _exact(rounding.round_even),
    "trunc": _exact(rounding.trunc),
    "sign": _exact(rounding.sign),
    "abs": _exact(magnitude),
}

BINARY: dict[str, Elementary] = {
    "pow": Elementary(power.power_f32, power.power, 0.51, 1.0),
    "atan2": _both(inverse_trigonometric.atan2, 1.8, 2.0),
    "hypot": Elementary(power.hypot_f32, power.hypot, 0.51, 0.51),
    "fmod": _exact(division.fmod),
    "mod": _exact(division.mod),
    "floor_divide": _exact(division.floor_divide),
    "copysign": _exact(rounding.copysign),
    "minimum": _exact(rounding.minimum),
    "maximum": _exact(rounding.maximum),
}

ULP: dict[tuple[str, str], float] = {
    (name, form): getattr(function, f"{form}_bound")
    for table in (UNARY, BINARY)
    for name, function in table.items()
    for form in ("f32", "f64")
}


def emit_unary(name: str, builder: ir.IRBuilder, x: ir.Value, target: MathTarget) -> ir.Value:
    """``name(x)`` for a scalar or vector of float or double."""
    return _emit(UNARY, name, builder, target, x)


def emit_binary(name: str, builder: ir.IRBuilder, x: ir.Value, y: ir.Value, target: MathTarget) -> ir.Value:
    """``name(x, y)`` for two scalars or vectors of the same type, of float or double."""
    return _emit(BINARY, name, builder, target, x, y)


def emit_ordinary(name: str, builder: ir.IRBuilder, x: ir.Value, target: MathTarget) -> ir.Value:
    """``name(x)`` for a vector of which ``emit_is_ordinary`` holds."""
    return _ordinary(name).function(_lanes(builder, target, x)).value


def emit_is_ordinary(name: str, builder: ir.IRBuilder, x: ir.Value, target: MathTarget) -> ir.Value:
    """One truth value: may the vector be given to ``emit_ordinary``?"""
    return all_at_most(*_ordinary(name).size(_lanes(builder, target, x)))


def _ordinary(name: str) -> Ordinary:
    ordinary = UNARY[name].ordinary
    assert ordinary is not None, f"{name} is computed in one way"
    return ordinary


def _emit(
    table: dict[str, Elementary], name: str, builder: ir.IRBuilder, target: MathTarget, *operands: ir.Value
) -> ir.Value:
    function = table.get(name)
    if function is None:
        raise KeyError(f"no elementary function {name!r} of {len(operands)} operands; there are: {', '.join(table)}")
    kind = operands[0].type
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    if element not in (F32.real_type, F64.real_type) or any(operand.type != kind for operand in operands):
        types = ", ".join(str(operand.type) for operand in operands)
        raise TypeError(f"{name} of {types}: needs float or double, or vectors of them, all of one type")
    lanes = [_lanes(builder, target, operand) for operand in operands]
    if function.looks_up(element, target):
        assert function.lookup is not None
        return function.lookup(*lanes).value
    return (function.f32 if element == F32.real_type else function.f64)(*lanes).value


def _lanes(builder: ir.IRBuilder, target: MathTarget, operand: ir.Value) -> Lanes:
    kind = operand.type
    width = kind.count if isinstance(kind, ir.VectorType) else 0
    return Lanes(Scope(builder, target, width), kind.element if width else kind, operand)
