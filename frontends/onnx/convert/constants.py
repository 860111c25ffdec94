"""Constants, and tensors made from shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr
from ingot.compiler.ir.types import f32, i64
from ingot.compiler.ops.movement import Iota
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call, NotTraceable
from ingot.frontends.onnx.elements import element_of_dtype
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.source import dense_of
from ingot.frontends.onnx.values import Coded, Dims, Opaque, Value, element_of_value, known, known_dims, shape_of


@onnx_op("Constant", raw=True)
def constant(op: Call) -> Any:
    if op.has("value"):
        return op.get("value")
    if op.has("value_float"):
        return np.asarray(op.get("value_float"), np.float32)
    if op.has("value_floats"):
        return np.asarray(op.get("value_floats"), np.float32)
    if op.has("value_int"):
        return np.asarray(op.get("value_int"), np.int64)
    if op.has("value_ints"):
        return np.asarray(op.get("value_ints"), np.int64)
    if op.has("value_string"):
        return np.asarray(op.get("value_string"), object)
    if op.has("value_strings"):
        return np.asarray(op.get("value_strings"), object)
    if op.has("sparse_value"):
        return dense_of(op.get("sparse_value"), op.importer.model.folder)
    op.require(False, Kind.BAD_ATTRIBUTE, "it has no value")
    return None


@onnx_op("ConstantOfShape", dims=(0,))
def constant_of_shape(op: Call, shape: tuple[Dim, ...]) -> Any:
    value = op.get("value", np.zeros(1, np.float32))
    op.require(value.size == 1, Kind.BAD_ATTRIBUTE, f"its value has {value.size} elements, not 1")
    number, kind = op.stored(value.reshape(()))
    filled = number.broadcast_to(shape)
    return Coded(filled, kind) if kind.is_coded else filled


@onnx_op("ConstantFill")
def constant_fill(op: Call, x: Tensor | None = None) -> Any:
    """A deprecated op of opset 1."""
    shape = op.get("shape", None)
    if x is not None:
        shape = op.dims(0) if op.get("input_as_shape", 0) else x.shape
    dtype = op.dtype("dtype", element_of_dtype(f32).code)
    return op.constant(np.asarray(op.get("value", 0.0)), dtype).broadcast_to((*(shape or ()), *op.get("extra_shape", ())))


@onnx_op("Shape", raw=True)
def shape(op: Call, x: Value) -> Any:
    if isinstance(x, Opaque):
        raise NotTraceable("the shape of strings")
    dims = shape_of(x)
    start, end = op.get("start", 0), op.get("end", len(dims))
    return known_dims(dims[slice(start, end)])


@onnx_op("Size", raw=True)
def size(op: Call, x: Value) -> Any:
    if isinstance(x, Opaque):
        raise NotTraceable("the size of strings")
    total = symbolic.product(shape_of(x))
    return known(np.array(total, object), i64)


@onnx_op("Range", raw=True)
def range_(op: Call, start: Value, limit: Value, delta: Value = None) -> Any:
    """start, start + delta, ... up to limit; the bounds may be symbolic dims, the delta is a number."""
    element = element_of_value(start)
    op.require(element.storage is not None, Kind.ELEMENT_TYPE, f"it does not count in {element}")
    step = op.number(op.known(2), "the delta") if op.has_input(2) else 1
    op.require(step != 0, Kind.BAD_VALUE, "the delta is 0")
    assert element.storage is not None
    counted = any(isinstance(v, Dims) for v in (start, limit)) and float(step).is_integer()
    if not counted or not all(_is_whole(v) for v in (start, limit)):
        first, last = op.number(op.known(0), "the start"), op.number(op.known(1), "the limit")
        span = (last - first) / step
        op.require(np.isfinite(span), Kind.BAD_VALUE, f"it counts from {first} to {last} by {step}")
        count: Dim = max(0, math.ceil(span))
        base: Any = op.constant(np.asarray(first), element.storage)
    else:
        (low,), (high,) = op.dims(0), op.dims(1)
        length = high - low if step > 0 else low - high
        count = symbolic.maximum(0, symbolic.ceildiv(length, abs(int(step))))
        base = op.dimension(low, element.storage)
    places = Tensor(op.trace, op.trace.emit(Iota((count,), 0, element.storage)))
    scaled = places if step == 1 else places * op.constant(np.asarray(step), element.storage)
    return scaled + base


def _is_whole(value: Value) -> bool:
    """Whether a known number is an integer, whatever its element type is."""
    if isinstance(value, Dims):
        return all(isinstance(d, int | Expr) for d in value.array.ravel())
    return isinstance(value, np.ndarray) and bool(np.all(value == np.trunc(value)))


@onnx_op("EyeLike")
def eye_like(op: Call, x: Tensor) -> Any:
    op.require(x.rank == 2, Kind.BAD_SHAPE, f"it wants a matrix, not {x.type!r}")
    dtype = op.dtype("dtype", element_of_dtype(x.dtype).code)
    rows = Tensor(op.trace, op.trace.emit(Iota(x.shape, 0)))
    columns = Tensor(op.trace, op.trace.emit(Iota(x.shape, 1)))
    return (columns == rows + op.get("k", 0)).cast(dtype)
