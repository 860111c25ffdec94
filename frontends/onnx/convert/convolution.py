"""Convolutions and poolings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import i64
from ingot.compiler.ops import movement
from ingot.compiler.ops.average_pooling import average_pool, lp_pool
from ingot.compiler.ops.convolution import Convolution, ConvolutionTranspose
from ingot.compiler.ops.pooling import max_pool, max_pool_positions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.matrix import without_zero
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.source import MAXIMUM_BYTES

Sides = tuple[tuple[Dim, Dim], ...]
MOST_TAPS = 1 << 24  # elements of a window, which are visited one by one
AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def numbers(op: Call, attribute: str, count: int, default: int) -> list[int]:
    """An attribute of so many numbers."""
    found = op.get(attribute, [default] * count)
    op.require(len(found) == count, Kind.BAD_ATTRIBUTE, f"{attribute} wants {count} numbers, not {len(found)}")
    return found


def window_attributes(op: Call, x: Tensor, taps: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], Sides]:
    """(strides, dilations, padding of each side) of a node with windows."""
    rank = len(taps)
    op.require(x.rank == rank + 2, Kind.BAD_SHAPE, f"windows of {rank} dims do not fit {x.type!r}")
    strides, dilations = tuple(numbers(op, "strides", rank, 1)), tuple(numbers(op, "dilations", rank, 1))
    op.require(all(s > 0 for s in (*strides, *dilations)), Kind.BAD_ATTRIBUTE, "strides and dilations are positive")
    mode = op.choice("auto_pad", "NOTSET", AUTO_PAD)
    if mode == "VALID":
        return strides, dilations, ((0, 0),) * rank
    if mode == "NOTSET":
        pads = numbers(op, "pads", 2 * rank, 0)
        sides: Sides = tuple((pads[n], pads[n + rank]) for n in range(rank))
    else:
        sides = same_padding(x.shape[2:], taps, strides, dilations, mode == "SAME_UPPER")
    padded = [extent + low + high for extent, (low, high) in zip(x.shape[2:], sides, strict=True)]
    known = math.prod(extent for extent in (*x.shape[:2], *padded) if isinstance(extent, int))
    op.bounded(known * x.type.dtype.itemsize, "the bytes of its padded input", MAXIMUM_BYTES)
    return strides, dilations, sides


def same_padding(
    sizes: Sequence[Dim], taps: Sequence[int], strides: Sequence[int], dilations: Sequence[int], upper: bool
) -> Sides:
    """As much as gives ceil(size / stride) windows; an odd one goes to the end, or to the start."""
    sides: list[tuple[Dim, Dim]] = []
    for size, count, stride, step in zip(sizes, taps, strides, dilations, strict=True):
        reach = step * (count - 1) + 1
        total = symbolic.maximum(0, (symbolic.ceildiv(size, stride) - 1) * stride + reach - size)
        less = total // 2
        sides.append((less, total - less) if upper else (total - less, less))
    return tuple(sides)


def _taps(op: Call, w: Tensor) -> tuple[int, ...]:
    op.require(w.rank > 2, Kind.BAD_SHAPE, f"the weight {w.type!r} has no taps")
    taps = w.shape[2:]
    op.require(all(isinstance(t, int) for t in taps), Kind.BAD_SHAPE, f"the weight {w.type!r} has symbolic taps")
    wanted = op.get("kernel_shape", list(taps))
    op.require(list(taps) == list(wanted), Kind.BAD_ATTRIBUTE, f"kernel_shape {wanted} does not fit the weight {w.type!r}")
    return tuple(t for t in taps if isinstance(t, int))


def per_channel(x: Any, bias: Tensor) -> Any:
    return x + bias.reshape(bias.type.size, *[1] * (x.rank - 2))


@onnx_op("Conv")
def conv(op: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Any:
    result = convolved(op, x, w)
    return result if bias is None else per_channel(result, bias)


def convolved(op: Call, x: Tensor, w: Tensor) -> Any:
    strides, dilations, sides = window_attributes(op, x, _taps(op, w))
    group = op.get("group", 1)
    op.require(len(strides) <= 3, Kind.UNSUPPORTED, f"a convolution over {len(strides)} spatial axes")
    return x.apply(Convolution(strides, sides, dilations, group), w)


@onnx_op("ConvTranspose")
def conv_transpose(op: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Any:
    return transposed(op, x, w, bias, numbers(op, "pads", 2 * max(w.rank - 2, 0), 0))


def transposed(op: Call, x: Tensor, w: Tensor, bias: Tensor | None, pads: Sequence[Dim]) -> Any:
    """A transposed convolution with these pads, of all starts and then of all ends."""
    taps = _taps(op, w)
    rank = len(taps)
    op.require(x.rank == rank + 2, Kind.BAD_SHAPE, f"windows of {rank} dims do not fit {x.type!r}")
    strides, dilations = tuple(numbers(op, "strides", rank, 1)), tuple(numbers(op, "dilations", rank, 1))
    op.require(all(s > 0 for s in (*strides, *dilations)), Kind.BAD_ATTRIBUTE, "strides and dilations are positive")
    extra = numbers(op, "output_padding", rank, 0)
    shape, sides = _upsampled(op, x.shape[2:], taps, strides, dilations, extra, pads)
    result = x.apply(ConvolutionTranspose(strides, sides, dilations, op.get("group", 1), shape=shape), w)
    return result if bias is None else per_channel(result, bias)


def _upsampled(
    op: Call,
    sizes: Sequence[Dim],
    taps: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
    pads: Sequence[Dim],
) -> tuple[tuple[Dim, ...], Sides]:
    """The spatial shape of the result and the padding that goes with it."""
    rank = len(taps)
    mode = op.choice("auto_pad", "NOTSET", AUTO_PAD)
    wanted = op.get("output_shape", None)
    if wanted is not None and len(wanted) == rank + 2:
        wanted = wanted[2:]
    op.require(wanted is None or len(wanted) == rank, Kind.BAD_ATTRIBUTE, f"output_shape is {wanted}")
    shape: list[Dim] = []
    sides: list[tuple[Dim, Dim]] = []
    for n in range(rank):
        whole = (sizes[n] - 1) * strides[n] + dilations[n] * (taps[n] - 1) + 1
        if wanted is not None or mode.startswith("SAME"):
            target = wanted[n] if wanted is not None else sizes[n] * strides[n]
            total = whole + extra[n] - target
            half = total // 2
            low = half if mode == "SAME_UPPER" else total - half
            shape.append(target)
            sides.append((low, whole - target - low))
        else:
            low, high = (0, 0) if mode == "VALID" else (pads[n], pads[n + rank])
            shape.append(whole - low - high + extra[n])
            sides.append((low, high - extra[n]))
    return tuple(shape), tuple(sides)


@onnx_op("ConvInteger")
def conv_integer(
    op: Call, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Any:
    return convolved(op, *integer_operands(x, w, x_zero, w_zero))


def integer_operands(x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None) -> tuple[Any, Any]:
    """x and w in i32 without their zero points (of w: a number, or one per output channel)."""
    if x_zero is not None:
        x_zero = x_zero.reshape(())
    if w_zero is not None:
        w_zero = w_zero.reshape(w_zero.type.size, *[1] * (w.rank - 1))
    return without_zero(x, x_zero), without_zero(w, w_zero)


# --- pooling ----------------------------------------------------------------------------------------


def _pool(op: Call, x: Tensor) -> tuple[tuple[int, ...], dict[str, Any]]:
    taps = tuple(op.get("kernel_shape"))
    op.require(all(t > 0 for t in taps), Kind.BAD_ATTRIBUTE, f"kernel_shape is {list(taps)}")
    op.bounded(math.prod(taps), "the number of elements of a window", MOST_TAPS)
    strides, dilations, sides = window_attributes(op, x, taps)
    ceil = bool(op.get("ceil_mode", 0)) and op.get("auto_pad", "NOTSET") == "NOTSET"
    return taps, {"strides": strides, "padding": sides, "dilation": dilations, "ceil_mode": ceil}


def greatest(op: Call, x: Tensor) -> Any:
    """The maxima of windows alone."""
    taps, fields = _pool(op, x)
    return max_pool(x, taps, **fields)


@onnx_op("MaxPool")
def max_pool_(op: Call, x: Tensor) -> Any:
    result = greatest(op, x)
    if not op.wants(1):
        return result
    place = max_pool_positions(result, x)
    spatial = x.shape[2:]
    if op.get("storage_order", 0):
        place = _column_major(place, spatial)
    inside = symbolic.product(spatial)
    number = Tensor(op.trace, op.trace.emit(movement.Iota((x.shape[0] * x.shape[1],), 0)))
    offset = number.reshape(x.shape[0], x.shape[1], *[1] * len(spatial)) * op.dimension(inside, i64)
    return result, place + offset


def _column_major(place: Any, sizes: Sequence[Dim]) -> Any:
    """Row-major positions in an array of these sizes as column-major ones."""
    total: Any = None
    stride: Dim = 1
    rest = place
    coordinates: list[Any] = []
    for size in reversed(sizes):
        extent = movement.dimension(place, size)
        coordinates.append(rest.binary("mod", extent))
        rest = rest.binary("floor_divide", extent)
    for coordinate, size in zip(reversed(coordinates), sizes, strict=True):
        part = coordinate * movement.dimension(place, stride)
        total = part if total is None else total + part
        stride = stride * size
    return total


@onnx_op("AveragePool")
def average_pool_(op: Call, x: Tensor) -> Any:
    taps, fields = _pool(op, x)
    return average_pool(x, taps, **fields, count_include_pad=bool(op.get("count_include_pad", 0)))


@onnx_op("LpPool")
def lp_pool_(op: Call, x: Tensor) -> Any:
    taps, fields = _pool(op, x)
    order = float(op.get("p", 2))
    op.require(order > 0, Kind.BAD_ATTRIBUTE, f"p is {order}")
    return lp_pool(x, taps, order, **fields)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.rank))


@onnx_op("GlobalAveragePool", least_ranks={0: 2})
def global_average_pool(op: Call, x: Tensor) -> Any:
    return x.reduce("mean", _spatial(x), True)


@onnx_op("GlobalMaxPool", least_ranks={0: 2})
def global_max_pool(op: Call, x: Tensor) -> Any:
    return x.reduce("max", _spatial(x), True)


@onnx_op("GlobalLpPool", least_ranks={0: 2})
def global_lp_pool(op: Call, x: Tensor) -> Any:
    order = float(op.get("p", 2))
    op.require(order > 0, Kind.BAD_ATTRIBUTE, f"p is {order}")
    if order == 2:
        return (x * x).reduce("sum", _spatial(x), True).sqrt()
    return (x.abs() ** order).reduce("sum", _spatial(x), True) ** (1.0 / order)


@onnx_op("MaxUnpool", dims=(2,), least_ranks={0: 3})
def max_unpool(op: Call, x: Tensor, places: Tensor, shape: tuple[Dim, ...] | None = None) -> Any:
    """Each element goes back to the place that its maximum had in the flattened input."""
    taps = numbers(op, "kernel_shape", x.rank - 2, 0)
    strides, pads = numbers(op, "strides", len(taps), 1), numbers(op, "pads", 2 * len(taps), 0)
    smallest = (
        *x.shape[:2],
        *(
            (d - 1) * s + k - pads[n] - pads[n + len(taps)]
            for n, (d, s, k) in enumerate(zip(x.shape[2:], strides, taps, strict=True))
        ),
    )
    op.require(all(not isinstance(d, int) or d >= 0 for d in smallest), Kind.BAD_ATTRIBUTE, f"its result is {list(smallest)}")
    size = symbolic.product(smallest)
    flat = x.full((size,), 0).scatter_elements(
        places.reshape(places.type.size), x.reshape(x.type.size), axis=0, reduction="none"
    )
    result = flat.reshape(*smallest)
    if shape is None:
        return result
    op.require(len(shape) == x.rank, Kind.BAD_SHAPE, f"the shape of its result has {len(shape)} dims, not {x.rank}")
    return movement.pad(result, [0] * x.rank, [a - b for a, b in zip(shape, smallest, strict=True)])


@onnx_op("MaxRoiPool", known=(1,), ranks={0: 4})
def max_roi_pool(op: Call, x: Tensor, rois: np.ndarray) -> Any:
    """Regions are [batch, x1, y1, x2, y2]; each is divided into bins of which the maximum is taken."""
    rows, columns = numbers(op, "pooled_shape", 2, 1)
    op.require(rows > 0 and columns > 0, Kind.BAD_ATTRIBUTE, f"pooled_shape is {rows}, {columns}")
    op.require(rois.ndim == 2 and rois.shape[1] == 5, Kind.BAD_SHAPE, f"its regions have the shape {list(rois.shape)}")
    op.require(len(rois) and np.isfinite(rois).all(), Kind.BAD_VALUE, "its regions are none, or not finite")
    op.bounded(len(rois) * rows * columns, "the number of bins")
    scale = op.get("spatial_scale", 1.0)
    results = []
    for batch, *corners in rois.tolist():
        x1, y1, x2, y2 = (round(c * scale) for c in corners)
        height, width = max(y2 - y1 + 1, 1) / rows, max(x2 - x1 + 1, 1) / columns
        bins = []
        for i in range(rows):
            for j in range(columns):
                top, bottom = y1 + math.floor(i * height), y1 + math.ceil((i + 1) * height)
                left, right = x1 + math.floor(j * width), x1 + math.ceil((j + 1) * width)
                part = x[int(batch), :, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
                empty = 0 in part.shape
                bins.append(x.full((x.shape[1],), 0) if empty else part.reduce("max", (1, 2)))
        results.append(movement.stack(bins, -1).reshape(x.shape[1], rows, columns))
    return movement.stack(results, 0)
