"""Quantisation: numbers as (code - zero point) * scale. Products of codes are computed in integers."""

from __future__ import annotations

from typing import Any

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType, f32, i32, u8
from ingot.compiler.ops.base import normalize_axis
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.codes import decoded, encoded
from ingot.frontends.onnx.convert.convolution import convolved, integer_operands, per_channel
from ingot.frontends.onnx.convert.matrix import integer_product, without_zero
from ingot.frontends.onnx.elements import Element, element_of_dtype
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.values import Coded, Value, element_of_value

RANGES = {
    "UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 65535), "INT16": (-32768, 32767),
    "UINT4": (0, 15), "INT4": (-8, 7), "UINT2": (0, 3), "INT2": (-2, 1), "INT32": (-(2**31), 2**31 - 1),
}  # fmt: skip


def range_of(op: Call, kind: Element) -> tuple[int, int]:
    """The least and the greatest code of a type."""
    op.require(kind.name in RANGES, Kind.ELEMENT_TYPE, f"its codes cannot be {kind} values")
    return RANGES[kind.name]


def spread(op: Call, parameter: Tensor, shape: tuple[Dim, ...]) -> Any:
    """A scale or zero point as it meets data of this shape: a number, one per element of the axis, or one per block."""
    rank = len(shape)
    if parameter.rank == 0 or (parameter.rank == 1 and parameter.shape == (1,) and not op.get("block_size", 0)):
        return parameter.reshape(())
    axis = normalize_axis(op.get("axis", 1), rank, op.name)
    if parameter.rank == 1:
        return parameter.reshape(*(parameter.shape[0] if n == axis else 1 for n in range(rank)))
    op.require(parameter.rank == rank, Kind.BAD_SHAPE, f"{parameter.type!r} does not fit data of rank {rank}")
    block = op.get("block_size", 0)
    if not block:
        return parameter
    return repeated(parameter, axis, block, shape[axis])


def repeated(parameter: Tensor, axis: int, block: Dim, extent: Dim) -> Any:
    """Each number of an axis as often as its block is long, up to this extent in all."""
    blocks = parameter.shape[axis]
    before, after = parameter.shape[:axis], parameter.shape[axis + 1 :]
    spread_out = parameter.reshape(*before, blocks, 1, *after).broadcast_to((*before, blocks, block, *after))
    whole = spread_out.reshape(*before, blocks * block, *after)
    if whole.shape[axis] != extent:  # the last block may be cut
        index: list[Any] = [slice(None)] * parameter.rank
        index[axis] = slice(0, extent)
        whole = whole[tuple(index)]
    return whole


@onnx_op("QuantizeLinear", raw=True)
def quantize_linear(op: Call, x: Value, scale: Value, zero: Value = None) -> Any:
    kind = _quantized_type(op, zero)
    data, factor = op.tensor(x), decoded(op, scale)
    precision = op.get("precision", 0)
    # i32 codes meet their scale in floats
    wide: DType = (
        op.dtype("precision") if precision else (factor.dtype if data.dtype == i32 else data.dtype)
    )
    shape = data.shape
    ratio = data.cast(wide).cast(wide.compute) / spread(op, factor.cast(wide).cast(wide.compute), shape)
    if wide.compute != wide:
        ratio = ratio.cast(wide).cast(wide.compute)
    if kind.is_coded_float:
        if zero is not None and kind.name == "FLOAT4E2M1":
            ratio = ratio + spread(op, decoded(op, zero), shape)
        return encoded(op, ratio, kind, bool(op.get("saturate", 1)))
    stored = _stored(op, ratio.round(), range_of(op, kind), zero)
    assert kind.storage is not None
    stored = stored.cast(kind.storage)
    return Coded(stored, kind) if kind.is_coded else stored


def _stored(op: Call, code: Any, limits: tuple[int, int], zero: Value) -> Any:
    """code + zero within the limits, in i32."""
    low, high = limits
    if zero is None:
        return code.clip(float(low), float(high)).cast(i32)
    point = decoded(op, zero)
    offset = spread(op, point.cast(i32), code.shape)
    if point.dtype.bits < 32:  # floats hold the limits less the zero point: clipped once, before the sum
        real = spread(op, point.cast(code.dtype), code.shape)
        return code.clip(low - real, high - real).cast(i32) + offset
    # out of the range of i32 the sum would wrap; no code is that large
    return (code.clip(-(2.0**30), 2.0**30).cast(i32) + offset).clip(low, high)


def _quantized_type(op: Call, zero: Value) -> Element:
    code = op.get("output_dtype", 0)
    if zero is not None:
        return element_of_value(zero)
    return op.element("output_dtype") if code else element_of_dtype(u8)


@onnx_op("DequantizeLinear", raw=True)
def dequantize_linear(op: Call, x: Value, scale: Value, zero: Value = None) -> Any:
    factor = decoded(op, scale)
    code = op.get("output_dtype", 0)
    result = op.dtype("output_dtype") if code else (factor.dtype if not isinstance(scale, Coded) else f32)
    data, kind = decoded(op, x), element_of_value(x)
    if zero is not None and not kind.is_coded_float:
        data = without_zero(data, spread(op, decoded(op, zero), data.shape))
    wide = factor.dtype.compute
    return (data.cast(wide) * spread(op, factor.cast(wide), data.shape)).cast(result)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: Call, x: Tensor) -> Any:
    """u8 codes whose range is that of the data, widened to contain 0."""
    high = x.reduce("max").binary("maximum", 0.0)
    low = x.reduce("min").binary("minimum", 0.0)
    scale = (high == low).where(1.0, high - low) / 255.0
    place = 0.0 - low / scale
    zero = (place < 255.0).where(place, 255.0).clip(0.0, 255.0).round()  # the highest code where the data goes down to -inf
    code = ((x / scale).round() + zero).clip(0.0, 255.0)
    return code.cast(u8), scale, zero.cast(u8)


def requantized(op: Call, total: Any, factor: Any, zero: Tensor | None, dtype: DType) -> Any:
    """Integer sums as codes of the result: round(sum * factor) + zero, saturated."""
    low, high = range_of(op, element_of_dtype(dtype))
    code = (total.cast(f32) * factor).round()
    if zero is not None:
        code = code + zero.cast(f32)
    return code.clip(float(low), float(high)).cast(dtype)


@onnx_op("QLinearMatMul")
def qlinear_matmul(
    op: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Any:
    total = integer_product(a, b, a_zero, b_zero)
    left = a_scale.cast(f32)
    if left.rank == 1 and left.shape != (1,):
        left = left.reshape(*left.shape, 1)
    factor = left * b_scale.cast(f32) / y_scale.cast(f32)
    return requantized(op, total, factor, y_zero, y_zero.dtype)


@onnx_op("QLinearConv")
def qlinear_conv(
    op: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Any:
    total = convolved(op, *integer_operands(x, w, x_zero, w_zero))
    if bias is not None:
        total = per_channel(total, bias)
    channel = w_scale.reshape(w_scale.type.size, *[1] * (x.rank - 2)) if w_scale.type.size != 1 else w_scale.reshape(())
    factor = channel.cast(f32) * x_scale.cast(f32).reshape(()) / y_scale.cast(f32).reshape(())
    return requantized(op, total, factor, y_zero.reshape(()), y_zero.dtype)
