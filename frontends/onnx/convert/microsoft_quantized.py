"""com.microsoft: ops on quantised tensors that ONNX Runtime's quantiser writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.compiler.ir.types import DType, f32, i32
from ingot.compiler.ops.base import normalize_axis
from ingot.compiler.ops.contraction import matmul as contracted
from ingot.compiler.ops.movement import concat
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.convolution import average_pool_
from ingot.frontends.onnx.convert.matrix import integer_product, without_zero
from ingot.frontends.onnx.convert.microsoft import self_attention
from ingot.frontends.onnx.convert.quantized import (
    dequantize_linear,
    dynamic_quantize_linear,
    quantize_linear,
    range_of,
    requantized,
)
from ingot.frontends.onnx.convert.recurrent import RANKS, lstm
from ingot.frontends.onnx.elements import element_of_dtype
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op

onnx_op("QuantizeLinear", domain=MICROSOFT, raw=True)(quantize_linear)
onnx_op("DequantizeLinear", domain=MICROSOFT, raw=True)(dequantize_linear)


def real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Any:
    """The numbers that codes stand for; one scale and zero point."""
    codes = x.cast(i32) if zero is None else x.cast(i32) - zero.cast(i32).reshape(())
    return codes.cast(f32) * scale.cast(f32).reshape(())


def coded(op: Call, x: Any, scale: Tensor, zero: Tensor | None, dtype: DType) -> Any:
    low, high = range_of(op, element_of_dtype(dtype))
    code = (x / scale.cast(f32).reshape(())).round()
    if zero is not None:
        code = code + zero.cast(f32).reshape(())
    return code.clip(float(low), float(high)).cast(dtype)


def _binary(name: str) -> Callable[..., Any]:
    def convert(
        op: Call,
        a: Tensor,
        a_scale: Tensor,
        a_zero: Tensor | None,
        b: Tensor,
        b_scale: Tensor,
        b_zero: Tensor | None,
        scale: Tensor,
        zero: Tensor | None = None,
    ) -> Any:
        result = real(a, a_scale, a_zero).binary(name, real(b, b_scale, b_zero))
        return coded(op, result, scale, zero, a.dtype)

    return convert


onnx_op("QLinearAdd", domain=MICROSOFT)(_binary("add"))
onnx_op("QLinearMul", domain=MICROSOFT)(_binary("mul"))


def _unary(function: Callable[[Call, Any], Any]) -> Callable[..., Any]:
    def convert(
        op: Call, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None
    ) -> Any:
        return coded(op, function(op, real(x, x_scale, x_zero)), scale, zero, x.dtype)

    return convert


def _global_average(op: Call, x: Any) -> Any:
    axes = tuple(range(1, x.rank - 1)) if op.get("channels_last", 0) else tuple(range(2, x.rank))
    return x.reduce("mean", axes, True)


def _average(op: Call, x: Any) -> Any:
    if not op.get("channels_last", 0):
        return average_pool_(op, x)
    first = x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))
    return average_pool_(op, first).transpose((0, *range(2, x.rank), 1))


def _mean(op: Call, x: Any) -> Any:
    axes = tuple(normalize_axis(a, x.rank, op.name) for a in op.get("axes", list(range(x.rank))))
    return x.reduce("mean", axes, bool(op.get("keepdims", 1)))


for _name, _function in {
    "QLinearSigmoid": lambda op, x: x.sigmoid(),
    "QLinearLeakyRelu": lambda op, x: x.leaky_relu(alpha=op.get("alpha", 0.01)),
    "QLinearGlobalAveragePool": _global_average,
    "QLinearAveragePool": _average,
    "QLinearReduceMean": _mean,
    "QLinearSoftmax": lambda op, x: x.softmax(op.get("axis", -1)),
}.items():
    onnx_op(_name, domain=MICROSOFT, least_ranks={0: 3} if "Pool" in _name else None)(_unary(_function))


@onnx_op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(op: Call, scale: Tensor, zero: Tensor, *parts: Tensor) -> Any:
    count = len(parts)
    op.require(count and count % 3 == 0 and all(p is not None for p in parts), Kind.INPUT_COUNT, f"{count} inputs are no triples of codes, scale and zero")
    made = []
    for n in range(0, count, 3):
        x, x_scale, x_zero = parts[n : n + 3]
        made.append(coded(op, real(x, x_scale, x_zero), scale, zero, zero.dtype))
    op.require(len({x.rank for x in made}) == 1, Kind.BAD_SHAPE, "its inputs have different numbers of axes")
    return concat(made, normalize_axis(op.get("axis"), made[0].rank, op.name))


@onnx_op("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    op: Call,
    condition: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Any:
    chosen = condition.where(real(a, a_scale, a_zero), real(b, b_scale, b_zero))
    return coded(op, chosen, scale, zero, a.dtype)


# --- products ---------------------------------------------------------------------------------------


@onnx_op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    op: Call,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    total = integer_product(a, b, a_zero, b_zero).cast(f32) * (a_scale * b_scale)
    return total if bias is None else total + bias


@onnx_op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    op: Call, a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Any:
    codes, scale, zero = dynamic_quantize_linear(op, a)
    return matmul_integer_to_float(op, codes, b, scale, b_scale, zero, b_zero, bias)


@onnx_op("QGemm", domain=MICROSOFT, ranks={0: 2, 3: 2})
def qgemm(
    op: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    c: Tensor | None = None,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
) -> Any:
    left = a.swapaxes(0, 1) if op.get("transA", 0) else a
    right = b.swapaxes(0, 1) if op.get("transB", 0) else b
    total = contracted(without_zero(left, a_zero.reshape(())), without_zero(right, b_zero))
    if c is not None:
        total = total + c
    factor = a_scale.reshape(()) * b_scale * op.get("alpha", 1.0)
    if scale is None:
        return total.cast(f32) * factor
    op.require(zero is not None, Kind.INPUT_COUNT, "a scale of the result without its zero point")
    assert zero is not None
    return requantized(op, total, factor / scale.reshape(()), zero.reshape(()), zero.dtype)


# --- layers -----------------------------------------------------------------------------------------


@onnx_op("QAttention", domain=MICROSOFT, ranks={0: 3, 1: 2, 2: 1, 8: 5})
def qattention(
    op: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    mask: Tensor | None = None,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    past: Tensor | None = None,
) -> Any:
    total = integer_product(x, weight, x_zero, w_zero).cast(f32) * (x_scale.reshape(()) * w_scale)
    return self_attention(op, total + bias, mask, past, None)


@onnx_op("DynamicQuantizeLSTM", domain=MICROSOFT, ranks={**RANKS, 6: 3, 7: 2})
def dynamic_quantize_lstm(
    op: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    peepholes: Tensor | None,
    w_scale: Tensor,
    w_zero: Tensor,
    r_scale: Tensor,
    r_zero: Tensor,
) -> Any:
    """Weights [directions, input, gates] are codes; inputs and states are rounded to codes of their own range before
    they are multiplied, and products of codes are added as integers."""
    op.require(w.shape[0] == r.shape[0] and w.shape[0] in (1, 2), Kind.BAD_SHAPE, f"weights {w.type!r} and {r.type!r} of one or two directions")
    parameters = {id(w): (w_scale, w_zero), id(r): (r_scale, r_zero)}

    def product(value: Any, weight: Any, direction: int) -> Any:
        weight_scale, weight_zero = (
            parameter.reshape(weight.shape[0], parameter.type.size // weight.shape[0])[direction]
            for parameter in parameters[id(weight)]
        )
        codes, scale, zero = dynamic_quantize_linear(op, value)
        total = integer_product(codes, weight[direction], zero, weight_zero)
        return total.cast(f32) * (scale * weight_scale)

    return lstm(op, x, w, r, b, lengths, initial_h, initial_c, peepholes, product)
