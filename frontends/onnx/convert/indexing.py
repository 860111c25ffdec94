"""Reading and writing at positions that are data, and choosing by order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import boolean, i64
from ingot.compiler.ops.base import normalize_axis
from ingot.compiler.ops.gradient import CheckRange
from ingot.compiler.ops.indexing import (
    Gather,
    GatherElements,
    GatherNd,
    OneHot,
    ScatterElements,
    ScatterNd,
)
from ingot.compiler.ops.movement import Iota
from ingot.compiler.ops.ordering import TopK
from ingot.compiler.passes.simplify import splat
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call, NotTraceable
from ingot.frontends.onnx.convert.movement import axis_of
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op

REDUCTIONS = ("none", "add", "mul", "max", "min")


@onnx_op("Gather", moves=True)
def gather(op: Call, x: Tensor, indices: Tensor) -> Any:
    return x.apply(Gather(axis_of(op, x)), indices)


@onnx_op("NonZero")
def nonzero(op: Call, x: Tensor) -> Any:
    """Exporters count 0, 1, ... by the places of a tensor of ones; how many there are of other data, it says itself."""
    number = splat(x.value)
    if x.rank != 1 or not number:
        raise NotTraceable("how many elements are not zero depends on the data")
    return Tensor(op.trace, op.trace.emit(Iota((1, x.shape[0]), 1, i64)))


@onnx_op("GatherElements", moves=True)
def gather_elements(op: Call, x: Tensor, indices: Tensor) -> Any:
    return x.apply(GatherElements(axis_of(op, x)), indices)


@onnx_op("GatherND", moves=True)
def gather_nd(op: Call, x: Tensor, indices: Tensor) -> Any:
    return x.apply(GatherNd(op.get("batch_dims", 0)), indices)


@onnx_op("Scatter", "ScatterElements")
def scatter_elements(op: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
    how: Any = op.choice("reduction", "none", REDUCTIONS)
    return x.apply(ScatterElements(axis_of(op, x), how), indices, updates)


@onnx_op("ScatterND")
def scatter_nd(op: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
    how: Any = op.choice("reduction", "none", REDUCTIONS)
    return x.apply(ScatterNd(how), indices, updates)


@onnx_op("OneHot", dims=(1,))
def one_hot(op: Call, indices: Tensor, depth: tuple[Dim, ...], values: Tensor) -> Any:
    """values are [off, on]; the depth is a scalar or has one element."""
    axis = normalize_axis(op.get("axis", -1), indices.rank + 1, op.name)
    op.require(len(depth) == 1, Kind.BAD_SHAPE, f"the depth has {len(depth)} elements, not 1")
    op.require(values.shape == (2,), Kind.BAD_SHAPE, f"values are [off, on], not {values.type!r}")
    hot = indices.cast(i64).apply(OneHot(depth[0], axis, boolean, True, False))
    return hot.where(values[1], values[0])


@onnx_op("TopK", since=1)
def top_k_attribute(op: Call, x: Tensor) -> Any:
    return x.apply(TopK(op.get("k"), axis_of(op, x, default=-1)))


@onnx_op("TopK", since=10, dims=(1,))
def top_k(op: Call, x: Tensor, k: tuple[Dim, ...]) -> Any:
    """Unsorted results may be in any order; they are sorted here too."""
    op.require(len(k) == 1, Kind.BAD_SHAPE, f"k has {len(k)} elements, not 1")
    return x.apply(TopK(k[0], axis_of(op, x, default=-1), bool(op.get("largest", 1))))


@onnx_op("ArrayFeatureExtractor", domain="ai.onnx.ml", least_ranks={0: 1})
def array_feature_extractor(op: Call, x: Tensor, indices: Tensor) -> Any:
    """Columns of the last axis; a vector is one row."""
    data = x if x.rank > 1 else x.reshape(1, *x.shape)
    return data.apply(Gather(data.rank - 1), indices.reshape(indices.type.size))


@onnx_op("TensorScatter", least_ranks={0: 2}, ranks={2: 1})
def tensor_scatter(op: Call, past: Tensor, update: Tensor, where: Tensor | None = None) -> Any:
    """A key-value cache: the update replaces `length` places along an axis from an index per batch on."""
    axis = normalize_axis(op.get("axis", -2), past.rank, op.name)
    circular = op.choice("mode", "linear", ("linear", "circular")) == "circular"
    op.require(update.rank == past.rank, Kind.BAD_SHAPE, f"the update {update.type!r} does not fit {past.type!r}")
    length, extent = update.shape[axis], past.shape[axis]
    if length == 0:
        return past
    batch = past.shape[0]
    start = op.constant(np.zeros(1, np.int64)).broadcast_to((batch,)) if where is None else where.cast(i64)
    if not circular:
        start = _checked_start(op, start, extent - length + 1)
    place = _along(op, past.shape, axis) - start.reshape(batch, *[1] * (past.rank - 1))
    if circular:
        place = place.binary("mod", op.dimension(extent, i64))
    inside = (place >= 0) & (place < op.dimension(length, i64))
    source = inside.where(place, 0)
    full = update.apply(GatherElements(axis), source.broadcast_to(past.shape))
    return inside.broadcast_to(past.shape).where(full, past)


def _checked_start(op: Call, start: Tensor, count: Dim) -> Tensor:
    """Where an update begins, one of `count` places; nothing counts from the end here, so a negative one fails too."""
    op.require(not isinstance(count, int) or count > 0, Kind.BAD_SHAPE, "the update is longer than what it replaces")
    places = op.dimension(count, i64)
    return (start < 0).where(start - places, start).apply(CheckRange(count))


def _along(op: Call, shape: tuple[Dim, ...], axis: int) -> Any:
    """The position along one axis, with dims of 1 elsewhere."""
    line = Tensor(op.trace, op.trace.emit(Iota((shape[axis],), 0)))
    return line.reshape(*(d if n == axis else 1 for n, d in enumerate(shape)))

