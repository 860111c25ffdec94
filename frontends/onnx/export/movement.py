"""Shapes, parts, joins, indices and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.types import boolean, f32, i64, u32
from ingot.frontends.onnx.export.writer import Writer, writes


@writes("constant")
def constant(w: Writer, value: Value) -> str:
    return w.constant(value.op.array)  # type: ignore[attr-defined]


@writes("get")
def get(w: Writer, value: Value, results: Any) -> str:
    return results[value.op.index]  # type: ignore[attr-defined]


@writes("broadcast")
def broadcast(w: Writer, value: Value, x: str) -> str:
    return w.expand(x, value.shape)


@writes("reshape")
def reshape(w: Writer, value: Value, x: str) -> str:
    return w.reshape(x, value.shape)


@writes("restate", "agreed")
def restate(w: Writer, value: Value, x: str) -> str:
    return w.node("Identity", x)


@writes("transpose")
def transpose(w: Writer, value: Value, x: str) -> str:
    return w.node("Transpose", x, perm=list(value.op.perm))  # type: ignore[attr-defined]


@writes("iota")
def iota(w: Writer, value: Value) -> str:
    op: Any = value.op
    extent = value.shape[op.axis]
    zero, one = w.constant(np.asarray(0, np.int64)), w.constant(np.asarray(1, np.int64))
    line = w.node("Range", zero, w.scalar_dim(extent, i64), one)
    if op.dtype != i64:
        line = w.cast(line, op.dtype)
    if len(value.shape) == 1:
        return line
    shaped = w.reshape(line, [extent if n == op.axis else 1 for n in range(len(value.shape))])
    return w.expand(shaped, value.shape)


@writes("dimension")
def dimension(w: Writer, value: Value) -> str:
    op: Any = value.op
    return w.scalar_dim(op.dim, op.dtype)


@writes("slice")
def slice_(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    if 0 in value.shape and all(isinstance(d, int) for d in value.shape):
        return w.expand(w.like(0, value), value.shape)
    # before the first element is -1 here and beyond any extent for ONNX
    stops = [-(2**31) if isinstance(b, int) and b == -1 and s < 0 else b for b, s in zip(op.stops, op.steps, strict=True)]
    return w.slice(x, op.starts, stops, range(rank), op.steps)


@writes("concat")
def concat(w: Writer, value: Value, *parts: str) -> str:
    return w.node("Concat", *parts, axis=value.op.axis)  # type: ignore[attr-defined]


@writes("flip")
def flip(w: Writer, value: Value, x: str) -> str:
    axes = list(value.op.axes)  # type: ignore[attr-defined]
    if not axes:
        return w.node("Identity", x)
    return w.slice(x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


@writes("tile")
def tile(w: Writer, value: Value, x: str) -> str:
    return w.node("Tile", x, w.dims(value.op.repeats))  # type: ignore[attr-defined]


@writes("roll")
def roll(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), _roll)


def _roll(w: Writer, value: Value, x: str) -> str:
    for axis, (shift, extent) in enumerate(zip(value.op.shifts, value.shape, strict=True)):  # type: ignore[attr-defined]
        if shift != 0 and extent != 0:
            place = (-shift) % extent
            back = w.slice(x, [place], [extent], [axis], [1])
            front = w.slice(x, [0], [place], [axis], [1])
            x = w.node("Concat", back, front, axis=axis)
    return w.node("Identity", x)


@writes("pad")
def pad(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    mode = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}.get(op.mode)
    pads = w.dims((*op.low, *op.high))
    if mode == "constant":
        return w.node("Pad", x, pads, w.like(op.value, value), mode=mode)
    if mode is not None:
        return w.node("Pad", x, pads, mode=mode)
    return w.function(value, (x,), _symmetric)


def _symmetric(w: Writer, value: Value, x: str) -> str:
    """Element p of a padded axis is at p mod 2n, counted back from 2n - 1 in its second half."""
    op: Any = value.op
    for axis, (low, high) in enumerate(zip(op.low, op.high, strict=True)):
        if (low, high) == (0, 0):
            continue
        length = value.shape[axis]
        extent = w.node("Sub", w.dim(length), w.dim(low + high))
        zero, one = w.constant(np.asarray(0, np.int64)), w.constant(np.asarray(1, np.int64))
        places = w.node("Sub", w.node("Range", zero, w.scalar_dim(length, i64), one), w.dim(low))
        period = w.node("Mul", extent, w.integers([2]))
        inside = w.node("Mod", places, period)
        back = w.node("Sub", w.node("Sub", period, inside), w.integers([1]))
        x = w.node("Gather", x, w.node("Min", inside, back), axis=axis)
    return w.node("Identity", x)


@writes("dilate")
def dilate(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), _dilate)


def _dilate(w: Writer, value: Value, x: str) -> str:
    """Zeros behind each element, of which the last are cut off."""
    op: Any = value.op
    shape = value.args[0].shape
    for axis, step in enumerate(op.steps):
        if step == 1:
            continue
        before, extent, after = list(value.shape[:axis]), shape[axis], list(shape[axis + 1 :])
        wide = w.reshape(x, [*before, extent, 1, *after])
        pads = [0] * (2 * (len(shape) + 1))
        pads[len(shape) + 1 + axis + 1] = step - 1
        filled = w.node("Pad", wide, w.integers(pads), w.like(0, value))
        x = w.reshape(filled, [*before, extent * step, *after])
        x = w.slice(x, [0], [value.shape[axis]], [axis], [1])
    return w.node("Identity", x)


@writes("diagonal")
def diagonal(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), _diagonal)


def _diagonal(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    row, column = max(-op.offset, 0), max(op.offset, 0)
    length, rank = value.shape[-1], len(value.args[0].shape)
    zero, one = w.constant(np.asarray(0, np.int64)), w.constant(np.asarray(1, np.int64))
    line = w.node("Range", zero, w.scalar_dim(length, i64), one)
    part = w.slice(x, [row, column], [row + length, column + length], [rank - 2, rank - 1], [1, 1])
    places = w.expand(w.reshape(line, [length, 1]), (*value.shape[:-1], length, 1))
    return w.node("Squeeze", w.node("GatherElements", part, places, axis=rank - 1), w.integers([rank - 1]))


# --- positions that are data ------------------------------------------------------------------------


@writes("gather")
def gather(w: Writer, value: Value, x: str, indices: str) -> str:
    return w.node("Gather", x, _wide(w, value, indices), axis=value.op.axis)  # type: ignore[attr-defined]


def _wide(w: Writer, value: Value, indices: str) -> str:
    """Indices of a type that ONNX takes."""
    return indices if value.args[1].tensor.dtype.name in ("i32", "i64") else w.cast(indices, i64)


@writes("gather_elements")
def gather_elements(w: Writer, value: Value, x: str, indices: str) -> str:
    return w.node("GatherElements", x, _wide(w, value, indices), axis=value.op.axis)  # type: ignore[attr-defined]


@writes("tree_leaves")
def tree_leaves(w: Writer, value: Value, x: str, thresholds: str, link: str, roots: str) -> str:
    """Step by step, all trees at once."""
    high = w.constant(np.asarray(1 << 32, np.int64))
    feature, following = w.node("Mod", link, high), w.node("Div", link, high)
    place = w.node("Expand", w.cast(roots, i64), w.dims(value.shape))
    for _ in range(value.op.depth):  # type: ignore[attr-defined]
        column = w.node("GatherElements", x, w.node("Gather", feature, place), axis=1)
        first = w.node("LessOrEqual", column, w.node("Gather", thresholds, place))
        place = w.node("Add", w.node("Gather", following, place), w.cast(w.node("Not", first), i64))
    return w.cast(place, u32)


@writes("gather_nd")
def gather_nd(w: Writer, value: Value, x: str, indices: str) -> str:
    return w.node("GatherND", x, w.cast(indices, i64), batch_dims=value.op.batch_dims)  # type: ignore[attr-defined]


@writes("scatter_elements")
def scatter_elements(w: Writer, value: Value, x: str, indices: str, updates: str) -> str:
    op: Any = value.op
    return w.node("ScatterElements", x, _wide(w, value, indices), updates, axis=op.axis, reduction=op.reduction)


@writes("scatter_nd")
def scatter_nd(w: Writer, value: Value, x: str, indices: str, updates: str) -> str:
    op: Any = value.op
    if op.batch_dims:
        return w.function(value, (x, indices, updates), _batched_scatter_nd)
    return w.node("ScatterND", x, w.cast(indices, i64), updates, reduction=op.reduction)


def _batched_scatter_nd(w: Writer, value: Value, x: str, indices: str, updates: str) -> str:
    """The position in the batch becomes part of the index."""
    op: Any = value.op
    shape = value.args[1].shape
    parts = []
    zero, one = w.constant(np.asarray(0, np.int64)), w.constant(np.asarray(1, np.int64))
    for axis in range(op.batch_dims):
        line = w.node("Range", zero, w.scalar_dim(shape[axis], i64), one)
        shaped = w.reshape(line, [shape[axis] if n == axis else 1 for n in range(len(shape))])
        parts.append(w.expand(shaped, (*shape[:-1], 1)))
    joined = w.node("Concat", *parts, w.cast(indices, i64), axis=len(shape) - 1)
    return w.node("ScatterND", x, joined, updates, reduction=op.reduction)


@writes("scatter_add")
def scatter_add(w: Writer, value: Value, x: str, indices: str, updates: str) -> str:
    return w.function(value, (x, indices, updates), _scatter_add)


def _scatter_add(w: Writer, value: Value, x: str, indices: str, updates: str) -> str:
    """Every element of an update gets the index of its slice."""
    axis = value.op.axis  # type: ignore[attr-defined]
    data, index = value.args[0].shape, value.args[1].shape
    before, after = data[:axis], data[axis + 1 :]
    count: Any = 1
    for dim in index:
        count = count * dim
    flat = w.reshape(w.cast(indices, i64), [*[1] * len(before), count, *[1] * len(after)])
    shape = (*before, count, *after)
    return w.node(
        "ScatterElements", x, w.expand(flat, shape), w.reshape(updates, shape), axis=axis, reduction="add"
    )


@writes("one_hot")
def one_hot(w: Writer, value: Value, indices: str) -> str:
    op: Any = value.op
    values = w.constant(np.array([op.off, op.on]), op.dtype)
    if op.dtype == boolean:
        flags = w.node("OneHot", w.cast(indices, i64), w.dim(op.depth), w.constant(np.array([0, 1], np.float32)), axis=op.axis)
        hot = w.cast(flags, boolean)
        return hot if (op.on, op.off) == (True, False) else w.node("Not", hot)
    if op.dtype in (f32, i64):
        return w.node("OneHot", w.cast(indices, i64), w.dim(op.depth), values, axis=op.axis)
    flags = w.node("OneHot", w.cast(indices, i64), w.dim(op.depth), w.constant(np.array([0, 1], np.float32)), axis=op.axis)
    on, off = w.constant(np.asarray(op.on), op.dtype), w.constant(np.asarray(op.off), op.dtype)
    return w.node("Where", w.cast(flags, boolean), on, off)


@writes("dynamic_slice")
def dynamic_slice(w: Writer, value: Value, x: str, starts: str) -> str:
    return w.function(value, (x, starts), _dynamic_slice)


def _clamped(w: Writer, starts: str, shape: Any, sizes: Any) -> str:
    last = w.dims([d - n for d, n in zip(shape, sizes, strict=True)])
    return w.node("Min", w.node("Max", w.cast(starts, i64), w.integers([0])), last)


def _dynamic_slice(w: Writer, value: Value, x: str, starts: str) -> str:
    first = _clamped(w, starts, value.args[0].shape, value.op.sizes)  # type: ignore[attr-defined]
    last = w.node("Add", first, w.dims(value.op.sizes))  # type: ignore[attr-defined]
    return w.node("Slice", x, first, last)


@writes("dynamic_update_slice")
def dynamic_update_slice(w: Writer, value: Value, x: str, update: str, starts: str) -> str:
    return w.function(value, (x, update, starts), _dynamic_update_slice)


def _dynamic_update_slice(w: Writer, value: Value, x: str, update: str, starts: str) -> str:
    """The update at its place in zeros, where ones at the same place say that it counts."""
    sizes = value.args[1].shape
    first = _clamped(w, starts, value.shape, sizes)
    after = w.node("Sub", w.node("Sub", w.dims(value.shape), first), w.dims(sizes))
    pads = w.node("Concat", first, after, axis=0)
    ones = w.expand(w.constant(np.ones((), np.float32)), sizes)
    inside = w.cast(w.node("Pad", ones, pads), boolean)
    return w.node("Where", inside, w.node("Pad", update, pads), x)


@writes("top_k")
def top_k(w: Writer, value: Value, x: str) -> Any:
    op: Any = value.op
    return w.node("TopK", x, w.dim(op.k), axis=op.axis, largest=int(op.largest), sorted=1, count=2)


@writes("sort", "argsort")
def sort(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    results = w.node("TopK", x, w.dim(value.shape[op.axis]), axis=op.axis, largest=int(op.descending), sorted=1, count=2)
    return results[0] if op.name == "sort" else results[1]


@writes("stop_gradient", "independent")
def same(w: Writer, value: Value, x: str) -> str:
    return w.node("Identity", x)


@writes("check_range")
def check_range(w: Writer, value: Value, x: str) -> str:
    """Indices counted from the front; the op that they are for checks them."""
    return w.function(value, (x,), _counted_from_the_front)


def _counted_from_the_front(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    dtype = value.tensor.dtype
    if dtype.kind != "int":
        return w.node("Identity", x)
    extent = w.scalar_dim(op.extent, dtype)
    return w.node("Where", w.node("Less", x, w.like(0, value)), w.node("Add", x, extent), x)
