"""Changes of shape and order: elements are moved, never computed with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr, Symbol
from ingot.compiler.ir.types import i64
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import DimsDiffer, broadcast_shapes, normalize_axes, normalize_axis
from ingot.compiler.ops.movement import Iota, Pad, Tile
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op

FARTHEST = (1 << 31) - 1  # exporters write such numbers for "to the end"


def axis_of(op: Call, x: Tensor, attribute: str = "axis", default: int = 0) -> int:
    return normalize_axis(op.get(attribute, default), x.rank, op.name)


# --- shapes -----------------------------------------------------------------------------------------


@onnx_op("Reshape", since=1, moves=True)
def reshape_attribute(op: Call, x: Tensor) -> Any:
    return reshaped(op, x, op.get("shape"))


@onnx_op("Reshape", since=5, dims=(1,), moves=True)
def reshape(op: Call, x: Tensor, shape: Sequence[Dim]) -> Any:
    return reshaped(op, x, shape)


def reshaped(op: Call, x: Tensor, shape: Sequence[Dim]) -> Any:
    """0 copies a dim (unless allowzero), -1 is what is left over."""
    keep = not op.get("allowzero", 0)
    dims: list[Dim] = []
    for n, dim in enumerate(shape):
        if isinstance(dim, int) and dim == 0 and keep:
            op.require(n < x.rank, Kind.BAD_SHAPE, f"dim {n} is copied from {x.type!r}, which has no such dim")
            dim = x.shape[n]
        dims.append(dim)
    if -1 in dims:
        rest = symbolic.product(d for d in dims if d != -1)
        if isinstance(rest, int) and rest == 0:
            dims[dims.index(-1)] = 0
    return x.reshape(*dims) if dims else x.reshape(())


@onnx_op("Flatten", moves=True)
def flatten(op: Call, x: Tensor) -> Any:
    axis = op.get("axis", 1)
    op.require(-x.rank <= axis <= x.rank, Kind.BAD_ATTRIBUTE, f"axis {axis} is outside {x.type!r}")
    axis += x.rank if axis < 0 else 0
    return x.reshape(symbolic.product(x.shape[:axis]), symbolic.product(x.shape[axis:]))


@onnx_op("Squeeze", since=1, moves=True)
def squeeze_attribute(op: Call, x: Tensor) -> Any:
    return squeezed(op, x, op.get("axes", None))


@onnx_op("Squeeze", since=13, known=(1,), moves=True)
def squeeze(op: Call, x: Tensor, axes: np.ndarray | None = None) -> Any:
    return squeezed(op, x, None if axes is None else axes.reshape(-1).tolist())


def squeezed(op: Call, x: Tensor, axes: Sequence[int] | None) -> Any:
    if axes is None:
        places: Sequence[int] = _unit_places(op, x)
    else:
        places = normalize_axes(tuple(axes), x.rank, "Squeeze")
    for place in places:
        # a symbolic dim that the model squeezes is 1 in every call that makes sense; reshape checks the size
        op.require(symbolic.equal(x.shape[place], 1) is not False, Kind.BAD_SHAPE, f"dim {place} of {x.type!r} is not 1")
    return x.reshape(tuple(d for n, d in enumerate(x.shape) if n not in places))


def _unit_places(op: Call, x: Tensor) -> list[int]:
    """The dims that are 1. The rank of the result must not depend on a call: of a symbolic dim it is assumed that it
    is 1 where the file declares a result of that rank, else that it is not; calls for which that is wrong are
    compiled for their own shapes."""
    open_dims = [d for d in x.shape if d != 1 and symbolic.equal(d, 1) is None]
    kept = sum(d != 1 for d in x.shape)
    is_unit = op.importer.model.declared_ranks.get(op.node.output[0], kept) == kept - len(open_dims)
    if open_dims:
        dim = open_dims[0]  # the next import asks about the others
        op.require(isinstance(dim, Symbol), Kind.BAD_SHAPE, f"whether {dim} is 1 decides the rank of its result")
        assert isinstance(dim, Symbol)
        assumed: Dim = 1 if is_unit else Symbol(dim.name, 2, dim.upper)
        raise DimsDiffer(f"Squeeze of {x.type!r}: whether {dim} is 1 decides the rank of its result", dim, assumed)
    return [n for n, d in enumerate(x.shape) if d == 1]


@onnx_op("Unsqueeze", since=1, moves=True)
def unsqueeze_attribute(op: Call, x: Tensor) -> Any:
    return x.expand_dims(*op.get("axes"))


@onnx_op("Unsqueeze", since=13, known=(1,), moves=True)
def unsqueeze(op: Call, x: Tensor, axes: np.ndarray) -> Any:
    return x.expand_dims(*axes.reshape(-1).tolist())


@onnx_op("Expand", dims=(1,), moves=True)
def expand(op: Call, x: Tensor, shape: tuple[Dim, ...]) -> Any:
    return x.broadcast_to(broadcast_shapes(op.name, x.shape, shape))


# --- order ------------------------------------------------------------------------------------------


@onnx_op("Transpose", moves=True)
def transpose(op: Call, x: Tensor) -> Any:
    perm = op.get("perm", tuple(reversed(range(x.rank))))
    return x.transpose(tuple(perm)) if x.rank else x


@onnx_op("Concat", moves=True)
def concat(op: Call, first: Tensor, *more: Tensor) -> Any:
    """Before opset 4 the axis has a default."""
    chosen = op.get("axis", 1) if op.version < 4 else op.get("axis")
    axis = normalize_axis(chosen, first.rank, op.name)
    ranks = {x.rank for x in (first, *more)}
    op.require(len(ranks) == 1, Kind.BAD_SHAPE, f"inputs with {', '.join(map(str, sorted(ranks)))} axes; all have as many")
    return movement.concat([first, *more], axis) if more else first


@onnx_op("Tile", since=6, dims=(1,), moves=True)
def tile(op: Call, x: Tensor, repeats: tuple[Dim, ...]) -> Any:
    return x.apply(Tile(tuple(repeats)))


@onnx_op("Tile", since=1, known=(1, 2), moves=True)
def tile_one_axis(op: Call, x: Tensor, tiles: np.ndarray, axis: np.ndarray) -> Any:
    repeats = [1] * x.rank
    place = normalize_axis(op.integer(axis, "the axis"), x.rank, op.name)
    repeats[place] = op.integer(tiles, "the number of tiles")
    return x.apply(Tile(tuple(repeats)))


def _block_size(op: Call) -> int:
    block = op.get("blocksize")
    op.require(block > 0, Kind.BAD_ATTRIBUTE, f"its blocksize is {block}")
    return block


@onnx_op("DepthToSpace", moves=True, ranks={0: 4})
def depth_to_space(op: Call, x: Tensor) -> Any:
    block, (n, c, h, w) = _block_size(op), x.shape
    depth = c // (block * block)
    if op.choice("mode", "DCR", ("DCR", "CRD")) == "DCR":
        parts = x.reshape(n, block, block, depth, h, w).transpose((0, 3, 4, 1, 5, 2))
    else:
        parts = x.reshape(n, depth, block, block, h, w).transpose((0, 1, 4, 2, 5, 3))
    return parts.reshape(n, depth, h * block, w * block)


@onnx_op("SpaceToDepth", moves=True, ranks={0: 4})
def space_to_depth(op: Call, x: Tensor) -> Any:
    block, (n, c, h, w) = _block_size(op), x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 3, 5, 1, 2, 4) if op.choice("mode", "DCR", ("DCR", "CRD")) == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(n, c * block * block, h // block, w // block)


@onnx_op("ReverseSequence", ranks={1: 1})
def reverse_sequence(op: Call, x: Tensor, lengths: Tensor) -> Any:
    """The first lengths[b] elements of time, reversed; the rest stay."""
    time, batch = axis_of(op, x, "time_axis", 0), axis_of(op, x, "batch_axis", 1)
    places = Tensor(op.trace, op.trace.emit(Iota(x.shape, time)))
    shape = [1] * x.rank
    shape[batch] = lengths.shape[0]  # type: ignore[call-overload]
    until = lengths.cast(i64).reshape(*shape)
    return x.gather_elements((places < until).where(until - 1 - places, places), axis=time)


@onnx_op("Trilu", known=(1,))
def trilu(op: Call, x: Tensor, k: np.ndarray | None = None) -> Any:
    offset = 0 if k is None else op.integer(k, "k")
    return x.triu(offset) if op.get("upper", 1) else x.tril(offset)


# --- parts ------------------------------------------------------------------------------------------


@onnx_op("Slice", since=1, moves=True)
def slice_attributes(op: Call, x: Tensor) -> Any:
    starts = op.get("starts")
    return sliced(op, x, starts, op.get("ends"), op.get("axes", list(range(len(starts)))), [1] * len(starts))


@onnx_op("Slice", since=10, dims=(1, 2), known=(3, 4), moves=True)
def slice_(
    op: Call,
    x: Tensor,
    starts: tuple[Dim, ...],
    ends: tuple[Dim, ...],
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> Any:
    places = list(range(len(starts))) if axes is None else axes.reshape(-1).tolist()
    return sliced(op, x, starts, ends, places, [1] * len(starts) if steps is None else steps.reshape(-1).tolist())


def sliced(
    op: Call, x: Tensor, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int], steps: Sequence[int]
) -> Any:
    index: list[slice] = [slice(None)] * x.rank
    op.require(len(starts) == len(ends) == len(axes) == len(steps), Kind.BAD_VALUE, "starts, ends, axes and steps differ in length")
    for start, end, axis, step in zip(starts, ends, normalize_axes(axes, x.rank, op.name), steps, strict=True):
        op.require(step != 0, Kind.BAD_VALUE, "a step is 0")
        index[axis] = slice(_bound(start, step, True), _bound(end, step, False), int(step))
    return x[tuple(index)]


def _bound(place: Dim, step: int, first: bool) -> Any:
    """None for a bound that is beyond any tensor in the direction in which it means "all of it"."""
    if isinstance(place, Expr):
        return place
    beyond_end, beyond_start = place >= FARTHEST, place <= -FARTHEST
    if step > 0:
        return None if (beyond_start if first else beyond_end) else place
    if first:
        return None if beyond_end else place
    return None if beyond_start else place


@onnx_op("Split", since=1, moves=True)
def split_attribute(op: Call, x: Tensor) -> Any:
    return divided(op, x, op.get("split", None))


@onnx_op("Split", since=13, dims=(1,), moves=True)
def split(op: Call, x: Tensor, sizes: tuple[Dim, ...] | None = None) -> Any:
    return divided(op, x, sizes)


def divided(op: Call, x: Tensor, sizes: Sequence[Dim] | None) -> Any:
    axis = axis_of(op, x)
    if sizes is None:
        count = op.bounded(op.get("num_outputs", op.output_count), "the number of outputs")
        op.require(count > 0, Kind.BAD_ATTRIBUTE, f"it makes {count} outputs")
        extent = x.shape[axis]
        each = symbolic.ceildiv(extent, count)
        sizes = [*[each] * (count - 1), extent - each * (count - 1)]
    return movement.split(x, list(sizes), axis)


@onnx_op("CenterCropPad", dims=(1,))
def center_crop_pad(op: Call, x: Tensor, shape: tuple[Dim, ...]) -> Any:
    axes = op.get("axes", list(range(x.rank)))
    low, high = [0] * x.rank, [0] * x.rank
    op.require(len(axes) == len(shape), Kind.BAD_SHAPE, f"{len(shape)} extents for {len(axes)} axes")
    for axis, wanted in zip(normalize_axes(axes, x.rank, op.name), shape, strict=True):
        extent = x.shape[axis]
        if symbolic.less(wanted, extent) is True:
            first = (extent - wanted) // 2
            low[axis], high[axis] = -first, wanted - extent + first  # type: ignore[call-overload]
        else:
            first = (wanted - extent) // 2
            low[axis], high[axis] = first, wanted - extent - first  # type: ignore[call-overload]
    return movement.pad(x, low, high)


# --- borders ----------------------------------------------------------------------------------------


@onnx_op("Pad", since=1)
def pad_attributes(op: Call, x: Tensor) -> Any:
    pads = op.get("pads") if op.has("pads") else op.get("paddings")
    return padded(op, x, pads, op.get("value", 0.0), range(x.rank))


@onnx_op("Pad", since=11, dims=(1,), known=(2, 3))
def pad(
    op: Call, x: Tensor, pads: tuple[Dim, ...], value: np.ndarray | None = None, axes: np.ndarray | None = None
) -> Any:
    places = list(range(x.rank)) if axes is None else axes.reshape(-1).tolist()
    filler = 0.0 if value is None or not value.size else value.reshape(-1)[0].item()
    return padded(op, x, pads, filler, places)


def padded(op: Call, x: Tensor, pads: Sequence[Dim], value: float, axes: Sequence[int]) -> Any:
    mode = op.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    places = normalize_axes(list(axes), x.rank, op.name)
    op.require(len(pads) == 2 * len(places), Kind.BAD_VALUE, f"{len(pads)} pads for {len(places)} axes")
    low: list[Dim] = [0] * x.rank
    high: list[Dim] = [0] * x.rank
    for n, axis in enumerate(places):
        low[axis], high[axis] = pads[n], pads[n + len(places)]
    if all(p == 0 for p in (*low, *high)):
        return x
    return x.apply(Pad(tuple(low), tuple(high), mode, value))  # type: ignore[arg-type]
