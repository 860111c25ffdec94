"""Arithmetic, comparison, logic, activations: one element at a time, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir.types import boolean, f32
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.checks import Divisor
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.source import node_label

# --- two operands -----------------------------------------------------------------------------------


def aligned(op: Call, a: Tensor, b: Tensor) -> Tensor:
    """The second operand for opsets before 7: it broadcasts only when asked, and from the given axis on."""
    if op.version >= 7 or not op.get("broadcast", 0) or not op.has("axis"):
        return b
    axis = op.get("axis")
    axis += a.rank if axis < 0 else 0
    trailing = a.rank - axis - b.rank
    op.require(trailing >= 0, Kind.BAD_ATTRIBUTE, f"axis {axis} leaves no room for {b.type!r} in {a.type!r}")
    return b.reshape(*b.shape, *[1] * trailing)


def same_dtype(op: Call, *tensors: Tensor) -> None:
    kinds = {t.dtype for t in tensors}
    op.require(len(kinds) == 1, Kind.ELEMENT_TYPE, f"its inputs have the types {', '.join(sorted(map(str, kinds)))}")


def _binary(name: str) -> Callable[..., Any]:
    def convert(op: Call, a: Tensor, b: Tensor) -> Any:
        same_dtype(op, a, b)
        return a.binary(name, aligned(op, a, b))

    return convert


for _onnx, _name in {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Equal": "equal", "Greater": "greater", "Less": "less",
    "GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "And": "bitwise_and", "Or": "bitwise_or",
    "Xor": "bitwise_xor",
}.items():  # fmt: skip
    onnx_op(_onnx)(_binary(_name))


@onnx_op("Div")
def div(op: Call, a: Tensor, b: Tensor) -> Any:
    """Integers are truncated, as in C."""
    same_dtype(op, a, b)
    b = aligned(op, a, b)
    return a.binary("div", b) if a.dtype.is_float else a.binary("truncate_divide", divisor(op, b))


def divisor(op: Call, b: Tensor) -> Any:
    """Integers to divide by, which must not be 0; those that are known not to be need no check."""
    known = op.values[1]
    if isinstance(known, np.ndarray) and known.all():
        return b
    return b.apply(Divisor(node_label(op.node)))


@onnx_op("Pow")
def power(op: Call, a: Tensor, b: Tensor) -> Any:
    """In the base's type; a known small exponent becomes multiplications or a root."""
    b = aligned(op, a, b)
    if a.dtype.is_float:
        exponent = op.values[1]
        if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.ndim <= a.rank:
            known = float(exponent.reshape(())[()])
            if known in (3.0, 2.0, 1.0, -1.0, 0.5):
                return a**known
        return a.binary("pow", b.cast(a.dtype))
    if b.dtype.is_float:
        return a.cast(b.dtype).binary("pow", b).cast(a.dtype)
    return a.binary("pow", b.cast(a.dtype))


@onnx_op("Mod")
def mod(op: Call, a: Tensor, b: Tensor) -> Any:
    same_dtype(op, a, b)
    b = b if a.dtype.is_float else divisor(op, b)
    return a.binary("fmod" if op.get("fmod", 0) else "mod", b)


@onnx_op("BitShift")
def bit_shift(op: Call, a: Tensor, b: Tensor) -> Any:
    direction = op.choice("direction", "", ("LEFT", "RIGHT"))
    return a.binary("shift_left" if direction == "LEFT" else "shift_right", b)


def _variadic(name: str) -> Callable[..., Any]:
    def convert(op: Call, first: Tensor, *more: Tensor) -> Any:
        same_dtype(op, first, *more)
        for other in more:
            first = first.binary(name, other)
        return first

    return convert


for _onnx, _name in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items():
    onnx_op(_onnx)(_variadic(_name))


@onnx_op("Mean")
def mean(op: Call, first: Tensor, *more: Tensor) -> Any:
    total = _variadic("add")(op, first, *more)
    return total / float(1 + len(more))


@onnx_op("Where")
def where(op: Call, condition: Tensor, yes: Tensor, no: Tensor) -> Any:
    same_dtype(op, yes, no)
    return condition.where(yes, no)


@onnx_op("PRelu")
def prelu(op: Call, x: Tensor, slope: Tensor) -> Any:
    """Before opset 7 a slope of one dim belongs to the channels."""
    if op.version < 7 and slope.rank == 1 and x.rank > 2:
        slope = slope.reshape(*slope.shape, *[1] * (x.rank - 2))
    return (x < 0).where(x * slope, x)


# --- one operand ------------------------------------------------------------------------------------


def _unary(name: str) -> Callable[..., Any]:
    def convert(op: Call, x: Tensor) -> Any:
        return x.apply(Op.registry[name]())

    return convert


for _onnx, _name in {
    "Abs": "abs", "Neg": "neg", "Sign": "sign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Tanh": "tanh",
    "Sigmoid": "sigmoid", "Softplus": "softplus", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh",
    "Acosh": "acosh", "Atanh": "atanh", "Floor": "floor", "Ceil": "ceil", "Round": "round", "IsNaN": "is_nan",
    "BitwiseNot": "bitwise_not", "Not": "bitwise_not", "Relu": "relu", "Softsign": "softsign", "Mish": "mish",
    "Reciprocal": "reciprocal", "HardSwish": "hard_swish",
}.items():  # fmt: skip
    onnx_op(_onnx)(_unary(_name))


def _activation(name: str, **attributes: tuple[str, float]) -> Callable[..., Any]:
    """An activation whose fields are attributes with defaults: field=(attribute, default)."""

    def convert(op: Call, x: Tensor) -> Any:
        fields = {field: op.get(attribute, default) for field, (attribute, default) in attributes.items()}
        return x.apply(Op.registry[name](**fields))

    return convert


onnx_op("LeakyRelu")(_activation("leaky_relu", alpha=("alpha", 0.01)))
onnx_op("Elu")(_activation("elu", alpha=("alpha", 1.0)))
onnx_op("Celu")(_activation("celu", alpha=("alpha", 1.0)))
onnx_op("HardSigmoid")(_activation("hard_sigmoid", alpha=("alpha", 0.2), beta=("beta", 0.5)))
onnx_op("Selu", since=6)(
    _activation("selu", alpha=("alpha", 1.6732632423543772), scale=("gamma", 1.0507009873554805))
)
onnx_op("Selu", since=1)(_activation("selu", alpha=("alpha", 1.6732), scale=("gamma", 1.0507)))


@onnx_op("Gelu")
def gelu(op: Call, x: Tensor) -> Any:
    return x.apply(Op.registry["gelu"](approximate=op.choice("approximate", "none", ("none", "tanh"))))  # type: ignore[call-arg]


@onnx_op("Swish")
def swish(op: Call, x: Tensor) -> Any:
    alpha = op.get("alpha", 1.0)
    return x * (x if alpha == 1.0 else x * alpha).sigmoid()


@onnx_op("ThresholdedRelu")
def thresholded_relu(op: Call, x: Tensor) -> Any:
    return (x > op.get("alpha", 1.0)).where(x, 0)


@onnx_op("Shrink")
def shrink(op: Call, x: Tensor) -> Any:
    limit, bias = op.get("lambd", 0.5), op.get("bias", 0.0)
    wide = x if x.dtype.is_float else x.cast(f32)
    small = (wide < -limit).where(wide + bias, (wide > limit).where(wide - bias, 0.0))
    return small.cast(x.dtype)


@onnx_op("IsInf")
def is_inf(op: Call, x: Tensor) -> Any:
    infinite = x.is_inf()
    if not op.get("detect_negative", 1):
        infinite = infinite & (x > 0)
    if not op.get("detect_positive", 1):
        infinite = infinite & (x < 0)
    return infinite


@onnx_op("Affine")
def affine(op: Call, x: Tensor) -> Any:
    return x * op.get("alpha", 1.0) + op.get("beta", 0.0)


@onnx_op("ParametricSoftplus")
def parametric_softplus(op: Call, x: Tensor) -> Any:
    return (x * op.get("beta", 1.0)).softplus() * op.get("alpha", 1.0)


@onnx_op("ScaledTanh")
def scaled_tanh(op: Call, x: Tensor) -> Any:
    return (x * op.get("beta", 1.0)).tanh() * op.get("alpha", 1.0)


# --- clip -------------------------------------------------------------------------------------------


@onnx_op("Clip", since=1)
def clip_attributes(op: Call, x: Tensor) -> Any:
    return _clipped(x, op.get("min", None), op.get("max", None))


@onnx_op("Clip", since=11)
def clip(op: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    return _clipped(x, low, high)


def _clipped(x: Tensor, low: object, high: object) -> Any:
    if low is not None:
        x = x.binary("maximum", low)
    if high is not None:
        x = x.binary("minimum", high)
    return x


# --- identities -------------------------------------------------------------------------------------


@onnx_op("Identity", raw=True)
def identity(op: Call, x: Any) -> Any:
    return x


@onnx_op("Dropout", since=1)
def dropout_inference(op: Call, x: Tensor) -> Any:
    """Before opset 7 the mask has the type of the data."""
    op.require(op.version >= 7 or op.get("is_test", 1), Kind.UNSUPPORTED, "dropout in training mode")
    mask = x.full_like(1)
    return x, mask if op.version < 10 else mask.cast(boolean)


def as_flag(values: Sequence[Any], number: int) -> bool:
    """A known bool input; absent is False."""
    if number >= len(values) or values[number] is None:
        return False
    value = values[number]
    return bool(np.asarray(value).reshape(-1)[0])
