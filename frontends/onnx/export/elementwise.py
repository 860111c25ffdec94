"""Elementwise ops: those that ONNX has, and functions for those it has not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.types import boolean, f32, f64
from ingot.compiler.ops.checks import Divisor
from ingot.compiler.ops.structure import Broadcast, Constant, Reshape
from ingot.frontends.onnx.export.writer import Writer, onnx_type, writes

BIT_CAST_OPSET = 26

_SAME = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
    "sigmoid": "Sigmoid", "softplus": "Softplus", "erf": "Erf", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "floor": "Floor", "ceil": "Ceil", "round": "Round", "is_nan": "IsNaN", "is_inf": "IsInf",
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow",
    "maximum": "Max", "minimum": "Min", "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual",
    "greater": "Greater", "greater_equal": "GreaterOrEqual", "where": "Where", "relu": "Relu", "mish": "Mish",
    "softsign": "Softsign", "hard_swish": "HardSwish", "reciprocal": "Reciprocal",
}  # fmt: skip


def _same(onnx: str) -> Any:
    def write(w: Writer, value: Value, *inputs: str) -> str:
        return w.node(onnx, *inputs, name=_kept(w, value))

    return write


def _kept(w: Writer, value: Value) -> str:
    """The user's own name for a value, when nothing else has it."""
    if value.name and value.name not in w.model.taken:
        w.model.taken.add(value.name)
        return value.name
    return ""


for _name, _onnx in _SAME.items():
    writes(_name)(_same(_onnx))


@writes("not_equal")
def not_equal(w: Writer, value: Value, a: str, b: str) -> str:
    return w.node("Not", w.node("Equal", a, b))


# --- division ---------------------------------------------------------------------------------------


@writes("divisor")
def divisor(w: Writer, value: Value, x: str) -> str:
    """The check comes back with the division that it is for."""
    return x


@writes("truncate_divide", "floor_divide", "mod", "fmod")
def quotient(w: Writer, value: Value, a: str, b: str) -> str:
    """Integers divided by zero give 0 here, and end the process in some runtimes: unless the divisor is known or checked
    not to be 0, a function says what is meant."""
    name = getattr(value.op, "name", "")
    if value.tensor.dtype.is_float:
        return _FLOAT_QUOTIENTS[name](w, value, a, b)
    whole = _INTEGER_QUOTIENTS[name]
    if not _is_checked(value.args[1]):
        return w.function(value, (a, b), lambda w, value, a, b: _guarded(w, value, a, b, whole))
    if name == "floor_divide":
        return w.function(value, (a, b), whole)
    return whole(w, value, a, b)


def _is_checked(value: Value) -> bool:
    """Whether integers are not 0, as far as the graph says so."""
    while isinstance(value.op, Broadcast | Reshape):
        value = value.args[0]
    return isinstance(value.op, Divisor) or (isinstance(value.op, Constant) and bool(value.op.array.all()))


def _guarded(w: Writer, value: Value, a: str, b: str, divide: Any) -> str:
    zero = w.like(0, value)
    is_zero = w.node("Equal", b, zero)
    return w.node("Where", is_zero, zero, divide(w, value, a, w.node("Where", is_zero, w.like(1, value), b)))


def _float_mod(w: Writer, value: Value, a: str, b: str) -> str:
    return w.function(value, (a, b), _float_mod_body)


def _float_mod_body(w: Writer, value: Value, a: str, b: str) -> str:
    rest = w.node("Mod", a, b, fmod=1)
    zero = w.like(0, value)
    other = w.node("Xor", w.node("Less", rest, zero), w.node("Less", b, zero))
    wrong = w.node("And", other, w.node("Not", w.node("Equal", rest, zero)))
    return w.node("Where", wrong, w.node("Add", rest, b), rest)


_FLOAT_QUOTIENTS: dict[str, Any] = {
    "mod": _float_mod,
    "fmod": lambda w, value, a, b: w.node("Mod", a, b, fmod=1),
    "floor_divide": lambda w, value, a, b: w.function(
        value, (a, b), lambda w, value, a, b: w.node("Floor", w.node("Div", a, b))
    ),
}
_INTEGER_QUOTIENTS: dict[str, Any] = {
    "truncate_divide": lambda w, value, a, b: w.node("Div", a, b),
    "mod": lambda w, value, a, b: w.node("Mod", a, b),
    "fmod": lambda w, value, a, b: w.node("Mod", a, b, fmod=1),
    "floor_divide": lambda w, value, a, b: w.node("Div", w.node("Sub", a, w.node("Mod", a, b)), b),
}


# --- logic and bits ---------------------------------------------------------------------------------

_LOGIC = {"bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"), "bitwise_xor": ("Xor", "BitwiseXor"),
          "bitwise_not": ("Not", "BitwiseNot")}  # fmt: skip


def _logic(names: tuple[str, str]) -> Any:
    return lambda w, value, *inputs: w.node(names[0] if value.tensor.dtype == boolean else names[1], *inputs)


for _name, _pair in _LOGIC.items():
    writes(_name)(_logic(_pair))

for _name, _onnx in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not"}.items():
    writes(_name)(_same(_onnx))


def _shift(direction: str) -> Any:
    def write(w: Writer, value: Value, a: str, b: str) -> str:
        if value.tensor.dtype.kind == "uint":
            return w.node("BitShift", a, b, direction=direction)
        return w.function(value, (a, b), _signed_shift(direction))

    return write


def _signed_shift(direction: str) -> Any:
    def write(w: Writer, value: Value, a: str, b: str) -> str:
        power = w.cast(w.node("Pow", w.like(2, value), b), value.tensor.dtype)
        if direction == "LEFT":
            return w.node("Mul", a, power)
        return w.node("Div", w.node("Sub", a, w.node("Mod", a, power)), power)

    return write


writes("shift_left")(_shift("LEFT"))
writes("shift_right")(_shift("RIGHT"))


@writes("cast")
def cast(w: Writer, value: Value, x: str) -> str:
    return w.cast(x, value.tensor.dtype)


# --- functions --------------------------------------------------------------------------------------


def _by_function(name: str, body: Any) -> None:
    writes(name)(lambda w, value, *inputs: w.function(value, inputs, body))


_by_function("exp2", lambda w, v, x: w.node("Exp", w.node("Mul", x, w.like(math.log(2), v))))
_by_function("expm1", lambda w, v, x: w.node("Sub", w.node("Exp", x), w.like(1, v)))
_by_function("log1p", lambda w, v, x: w.node("Log", w.node("Add", x, w.like(1, v))))
_by_function("log2", lambda w, v, x: w.node("Div", w.node("Log", x), w.like(math.log(2), v)))
_by_function("log10", lambda w, v, x: w.node("Div", w.node("Log", x), w.like(math.log(10), v)))
_by_function("rsqrt", lambda w, v, x: w.node("Reciprocal", w.node("Sqrt", x)))
_by_function("cbrt", lambda w, v, x: w.node("Mul", w.node("Sign", x), w.node("Pow", w.node("Abs", x), w.like(1 / 3, v))))
_by_function("erfc", lambda w, v, x: w.node("Sub", w.like(1, v), w.node("Erf", x)))
_by_function("square", lambda w, v, x: w.node("Mul", x, x))
_by_function("is_finite", lambda w, v, x: w.node("Not", w.node("Or", w.node("IsNaN", x), w.node("IsInf", x))))


@writes("trunc")
def trunc(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), lambda w, v, x: w.node("Mul", w.node("Sign", x), w.node("Floor", w.node("Abs", x))))


@writes("atan2")
def atan2(w: Writer, value: Value, y: str, x: str) -> str:
    return w.function(value, (y, x), _atan2)


def _atan2(w: Writer, value: Value, y: str, x: str) -> str:
    zero, pi = w.like(0, value), w.like(math.pi, value)
    basic = w.node("Atan", w.node("Div", y, x))
    shift = w.node("Where", w.node("Less", y, zero), w.node("Neg", pi), pi)
    left = w.node("Where", w.node("Less", x, zero), w.node("Add", basic, shift), basic)
    half = w.node("Mul", w.node("Sign", y), w.like(math.pi / 2, value))
    return w.node("Where", w.node("Equal", x, zero), half, left)


# Lanczos' approximation of the gamma function (1964), g = 7
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


@writes("lgamma")
def lgamma(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), _lgamma)


def _lgamma(w: Writer, value: Value, x: str) -> str:
    """For positive arguments."""
    less = w.node("Sub", x, w.like(1, value))
    total = w.like(_LANCZOS[0], value)
    for n, factor in enumerate(_LANCZOS[1:], start=1):
        total = w.node("Add", total, w.node("Div", w.like(factor, value), w.node("Add", less, w.like(n, value))))
    t = w.node("Add", less, w.like(7.5, value))
    power = w.node("Mul", w.node("Add", less, w.like(0.5, value)), w.node("Log", t))
    return w.node("Sub", w.node("Add", w.node("Add", w.like(0.5 * math.log(2 * math.pi), value), power), w.node("Log", total)), t)


@writes("digamma")
def digamma(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), _digamma)


def _digamma(w: Writer, value: Value, x: str) -> str:
    """Six steps up, then the asymptotic series; for positive arguments."""
    shifted = w.node("Add", x, w.like(6, value))
    square = w.node("Mul", shifted, shifted)
    series = w.node("Div", w.like(1 / 12, value), square)
    series = w.node("Sub", series, w.node("Div", w.like(1 / 120, value), w.node("Mul", square, square)))
    result = w.node("Sub", w.node("Log", shifted), w.node("Div", w.like(0.5, value), shifted))
    result = w.node("Sub", result, series)
    for n in range(6):
        result = w.node("Sub", result, w.node("Reciprocal", w.node("Add", x, w.like(n, value))))
    return result


# --- activations with numbers -----------------------------------------------------------------------


def _activation(w: Writer, value: Value, onnx: str, x: str, **numbers: Any) -> str:
    """ONNX keeps the numbers in single precision: a double that is not one of those needs a function to read back as it
    was."""

    def write(w: Writer, value: Value, x: str) -> str:
        return w.node(onnx, x, **numbers)

    rounded = any(float(np.float32(n)) != n for n in numbers.values())
    return w.function(value, (x,), write) if rounded and value.tensor.dtype == f64 else write(w, value, x)


@writes("leaky_relu", "elu", "celu", "hard_sigmoid", "selu")
def activation(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    match op.name:
        case "leaky_relu":
            return _activation(w, value, "LeakyRelu", x, alpha=float(op.alpha))
        case "elu":
            return _activation(w, value, "Elu", x, alpha=float(op.alpha))
        case "celu" if value.tensor.dtype == f32:
            return _activation(w, value, "Celu", x, alpha=float(op.alpha))
        case "celu":  # ONNX's own is for f32 alone
            return w.function(value, (x,), _celu)
        case "hard_sigmoid":
            return _activation(w, value, "HardSigmoid", x, alpha=float(op.alpha), beta=float(op.beta))
    return _activation(w, value, "Selu", x, alpha=float(op.alpha), gamma=float(op.scale))


def _celu(w: Writer, value: Value, x: str) -> str:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))"""
    alpha, zero = w.like(value.op.alpha, value), w.like(0, value)  # type: ignore[attr-defined]
    falling = w.node("Sub", w.node("Exp", w.node("Div", x, alpha)), w.like(1, value))
    return w.node("Add", w.node("Max", x, zero), w.node("Min", w.node("Mul", falling, alpha), zero))


@writes("gelu")
def gelu(w: Writer, value: Value, x: str) -> str:
    return w.node("Gelu", x, approximate=value.op.approximate)  # type: ignore[attr-defined]


@writes("prelu")
def prelu(w: Writer, value: Value, x: str, slope: str) -> str:
    """At 0 with an infinite slope, ONNX says 0 and the formula here NaN."""
    return w.function(value, (x, slope), lambda w, value, x, slope: w.node("PRelu", x, slope))


@writes("bitcast")
def bitcast(w: Writer, value: Value, x: str) -> str:
    """Only a newer opset has BitCast, and few runtimes read that."""
    w.model.opset = max(w.model.opset, BIT_CAST_OPSET)
    return w.node("BitCast", x, to=onnx_type(value.tensor.dtype))
