"""Sampling images at computed places: grids, regions, deformed convolutions; and windows put back together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import f32, i64
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.convolution import ConvolutionTranspose
from ingot.compiler.ops.indexing import Gather, GatherElements
from ingot.compiler.ops.movement import Iota, concat, stack
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.convolution import numbers, per_channel
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op

Fetch = Callable[[Sequence[Any]], Any]


def line(op: Call, extent: Dim, dtype: Any = f32) -> Any:
    return Tensor(op.trace, op.trace.emit(Iota((extent,), 0, dtype)))


# --- sampling ---------------------------------------------------------------------------------------


def fetch_from(op: Call, x: Tensor, sizes: Sequence[Dim]) -> Fetch:
    """A function from integer places (one tensor [n, p] per spatial axis, all inside) to elements [n, c, p] of x, whose
    spatial axes are flattened: [n, c, product of sizes]."""

    def fetch(places: Sequence[Any]) -> Any:
        flat = places[0]
        for place, size in zip(places[1:], sizes[1:], strict=True):
            flat = flat * op.dimension(size, i64) + place
        shape = (flat.shape[0], x.shape[1], flat.shape[1])
        index = flat.reshape(flat.shape[0], 1, flat.shape[1]).broadcast_to(shape)
        return x.apply(GatherElements(2), index)

    return fetch


def clamped(op: Call, place: Any, size: Dim) -> Any:
    """Places inside an axis, as integers."""
    last = op.dimension(size, place.dtype) - op.constant(np.asarray(1), place.dtype)
    return place.binary("maximum", 0.0).binary("minimum", last).cast(i64)


def inside(op: Call, place: Any, size: Dim) -> Any:
    return (place >= 0.0) & (place < op.dimension(size, place.dtype))


def interpolated(
    op: Call,
    fetch: Fetch,
    sizes: Sequence[Dim],
    taps: Sequence[Sequence[tuple[Any, Any]]],
    padding: str,
    reflect: Callable[[Any, int], Any] | None = None,
) -> Any:
    """The sum over all combinations of taps (place, weight) of the axes. Places are floats with whole values, [n, p];
    outside of the image an element is 0 ("zeros"), or that of the nearest or the reflected place."""
    total: Any = None
    for combination in itertools.product(*taps):
        weight: Any = None
        exists: Any = None
        places = []
        for axis, (place, factor) in enumerate(combination):
            if reflect is not None:
                place = reflect(place, axis)
            if padding == "zeros":
                hit = inside(op, place, sizes[axis])
                exists = hit if exists is None else exists & hit
                factor = None if factor is None else hit.where(factor, 0.0)  # of a place that is NaN it is NaN
            places.append(clamped(op, place, sizes[axis]))
            if factor is not None:
                weight = factor if weight is None else weight * factor
        part = fetch(places)
        if exists is not None:  # what is read instead may be infinite or NaN, which no weight makes 0
            part = exists.reshape(exists.shape[0], 1, exists.shape[1]).where(part, 0)
        if weight is not None:
            part = part * weight.reshape(weight.shape[0], 1, weight.shape[1]).cast(part.dtype)
        total = part if total is None else total + part
    return total


def linear_taps(place: Any) -> list[tuple[Any, Any]]:
    low = place.floor()
    ratio = place - low
    return [(low, 1.0 - ratio), (low + 1.0, ratio)]


def cubic_taps(place: Any, a: float = -0.75) -> list[tuple[Any, Any]]:
    """Keys' cubic convolution."""
    low = place.floor()
    t = place - low

    def near(d: Any) -> Any:
        return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0

    def far(d: Any) -> Any:
        return ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a

    return [(low - 1.0, far(t + 1.0)), (low, near(t)), (low + 1.0, near(1.0 - t)), (low + 2.0, far(2.0 - t))]


@onnx_op("GridSample", least_ranks={0: 3, 1: 3})
def grid_sample(op: Call, x: Tensor, grid: Tensor) -> Any:
    """grid [n, *places, axes] holds normalised places, the last axis of the image first."""
    given: str = op.get("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(given, given)
    op.require(mode in ("nearest", "linear", "cubic"), Kind.BAD_ATTRIBUTE, f"mode {mode!r}")
    padding = op.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    align = bool(op.get("align_corners", 0))
    sizes = x.shape[2:]
    op.require(grid.rank == x.rank, Kind.BAD_SHAPE, f"the grid {grid.type!r} does not fit {x.type!r}")
    batch, where = grid.shape[0], grid.shape[1:-1]
    count = symbolic.product(where)
    flat = grid.cast(f32).reshape(batch, count, len(sizes))
    reflect = _reflection(op, sizes, align) if padding == "reflection" else None
    taps = []
    for axis, size in enumerate(sizes):
        place = _denormalized(op, flat[:, :, len(sizes) - 1 - axis], size, align)
        if mode == "nearest":
            place = place.round()
        if padding == "border" and mode != "cubic":  # whose weights go on outside; only what they weigh is at the border
            place = clamped_float(op, place, size)
        if reflect is not None:
            place = reflect(place, axis)
        taps.append({"nearest": lambda p: [(p, None)], "linear": linear_taps, "cubic": cubic_taps}[mode](place))
    image = x.reshape(*x.shape[:2], symbolic.product(sizes))
    result = interpolated(op, fetch_from(op, image, sizes), sizes, taps, padding, reflect)
    return result.cast(x.dtype).reshape(batch, x.shape[1], *where)


def clamped_float(op: Call, place: Any, size: Dim) -> Any:
    last = op.dimension(size, place.dtype) - 1.0
    return place.binary("maximum", 0.0).binary("minimum", last)


def _denormalized(op: Call, place: Any, size: Dim, align: bool) -> Any:
    extent = op.dimension(size, f32)
    if align:
        return (place + 1.0) / 2.0 * (extent - 1.0)
    return ((place + 1.0) * extent - 1.0) / 2.0


def _reflection(op: Call, sizes: Sequence[Dim], align: bool) -> Callable[[Any, int], Any]:
    """Places beyond a border come back from it, as often as needed."""

    def reflect(place: Any, axis: int) -> Any:
        extent = op.dimension(sizes[axis], f32)
        low = 0.0 if align else -0.5
        span = extent - 1.0 if align else extent
        safe = (span == 0.0).where(1.0, span)
        away = (place - low).abs().binary("mod", safe * 2.0)
        back = (away > safe).where(safe * 2.0 - away, away) + low
        return clamped_float(op, (span == 0.0).where(0.0, back), sizes[axis]) if align else back

    return reflect


@onnx_op("AffineGrid", dims=(1,), ranks={0: 3})
def affine_grid(op: Call, theta: Tensor, size: tuple[Dim, ...]) -> Any:
    """theta [n, k, k + 1] applied to the normalised places of an image of this size."""
    sizes = size[2:]
    op.require(len(sizes) in (2, 3), Kind.BAD_SHAPE, f"a size of {len(size)} dims, not 4 or 5")
    align = bool(op.get("align_corners", 0))
    coordinates = []
    for axis in reversed(range(len(sizes))):
        extent = op.dimension(sizes[axis], f32)
        steps = line(op, sizes[axis])
        place = steps * (2.0 / (extent - 1.0)) - 1.0 if align else (steps * 2.0 + 1.0) / extent - 1.0
        shape = [sizes[axis] if n == axis else 1 for n in range(len(sizes))]
        coordinates.append(place.reshape(*shape).broadcast_to(tuple(sizes)))
    ones = op.constant(np.ones((), np.float32)).broadcast_to(tuple(sizes))
    grid = stack([*coordinates, ones], -1).reshape(symbolic.product(sizes), len(sizes) + 1)
    result = contract(theta.cast(f32), "nij", grid, "pj", "npi")
    return result.cast(theta.dtype).reshape(theta.shape[0], *sizes, len(sizes))


# --- regions ----------------------------------------------------------------------------------------


@onnx_op("RoiAlign", ranks={0: 4, 1: 2, 2: 1})
def roi_align(op: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Any:
    """Regions [r, (x1, y1, x2, y2)] of image batch[r], each averaged (or its maximum taken) over a grid of bins.

    Without a sampling ratio the number of samples of a bin depends on the size of its region.
    """
    ratio = op.get("sampling_ratio", 0)
    rows, columns = op.get("output_height", 1), op.get("output_width", 1)
    op.require(rows > 0 and columns > 0, Kind.BAD_ATTRIBUTE, f"it makes {rows} rows and {columns} columns")
    op.require(rois.shape[1] == 4, Kind.BAD_SHAPE, f"its regions are {rois.type!r}")
    if ratio > 0:
        return _aligned(op, x, rois, batch, ratio, ratio)
    known = op.known(1)
    op.require(len(known) and np.isfinite(known).all(), Kind.BAD_VALUE, "its regions are none, or not finite")
    op.bounded(len(known), "the number of regions without a sampling ratio")
    scale = op.get("spatial_scale", 1.0)
    parts = []
    for n, (x1, y1, x2, y2) in enumerate(known.tolist()):
        height, width = (y2 - y1) * scale, (x2 - x1) * scale
        if not _half_pixel(op):
            height, width = max(height, 1.0), max(width, 1.0)
        samples = max(1, math.ceil(height / rows)), max(1, math.ceil(width / columns))
        parts.append(_aligned(op, x, rois[n : n + 1], batch[n : n + 1], *samples))
    return concat(parts, 0) if len(parts) > 1 else parts[0]


def _half_pixel(op: Call) -> bool:
    default = "half_pixel" if op.version >= 16 else "output_half_pixel"
    return op.get("coordinate_transformation_mode", default) == "half_pixel"


def _aligned(op: Call, x: Tensor, rois: Tensor, batch: Tensor, tall: int, wide: int) -> Any:
    rows, columns = op.get("output_height", 1), op.get("output_width", 1)
    op.bounded(max(rows * tall, columns * wide), "the number of samples along an axis")
    count, (height, width) = rois.shape[0], x.shape[2:]
    offset = 0.5 if _half_pixel(op) else 0.0
    corners = rois.cast(f32) * op.get("spatial_scale", 1.0) - offset
    axes = []
    for number, bins, samples, size in ((1, rows, tall, height), (0, columns, wide, width)):
        start, end = corners[:, number], corners[:, number + 2]
        span = end - start if _half_pixel(op) else (end - start).binary("maximum", 1.0)
        fractions = (np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / samples).reshape(-1) / bins
        place = start.expand_dims(1) + span.expand_dims(1) * op.constant(fractions.astype(np.float32))
        axes.append(_region_taps(op, place, size))
    return _pooled(op, x, batch, axes, count, (rows, tall, columns, wide))


def _region_taps(op: Call, place: Any, size: Dim) -> tuple[list[tuple[Any, Any]], Any]:
    """Two neighbours with weights, and whether the place belongs to the image at all: within one of its border."""
    extent = op.dimension(size, f32)
    valid = (place >= -1.0) & (place <= extent)
    place = place.binary("maximum", 0.0)
    low = place.floor().binary("minimum", extent - 1.0)
    ratio = (low >= extent - 1.0).where(0.0, place - low)
    high = (low + 1.0).binary("minimum", extent - 1.0)
    return [(low.cast(i64), 1.0 - ratio), (high.cast(i64), ratio)], valid


def _pooled(
    op: Call, x: Tensor, batch: Tensor, axes: Sequence[Any], count: Dim, grid: tuple[int, int, int, int]
) -> Any:
    (ys, valid_y), (xs, valid_x) = axes
    rows, tall, columns, wide = grid
    images = x.apply(Gather(0), batch)  # [r, c, h, w]
    flat = images.reshape(count, x.shape[1], x.shape[2] * x.shape[3])
    shape = (count, rows * tall, columns * wide)
    valid = valid_y.reshape(count, rows * tall, 1) & valid_x.reshape(count, 1, columns * wide)
    values = []
    for (y, wy), (z, wz) in itertools.product(ys, xs):
        index = y.reshape(count, rows * tall, 1) * op.dimension(x.shape[3], i64) + z.reshape(count, 1, columns * wide)
        points = (count, x.shape[1], rows * tall * columns * wide)
        place = index.broadcast_to(shape).reshape(count, 1, points[2]).broadcast_to(points)
        weight = wy.reshape(count, rows * tall, 1) * wz.reshape(count, 1, columns * wide)
        weight = valid.where(weight, 0.0).cast(x.dtype).reshape(count, 1, points[2])
        values.append(flat.apply(GatherElements(2), place) * weight)
    maximum = op.choice("mode", "avg", ("avg", "max")) == "max"
    total = values[0]
    for value in values[1:]:
        total = total.binary("maximum", value) if maximum else total + value
    bins = total.reshape(count, x.shape[1], rows, tall, columns, wide)
    return bins.reduce("max" if maximum else "mean", (3, 5))


# --- deformed convolution -----------------------------------------------------------------------------


@onnx_op("DeformConv", ranks={0: 4, 1: 4, 2: 4, 4: 4})
def deform_conv(
    op: Call, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Any:
    """A convolution whose taps are moved by offsets [n, groups * taps * axes, *places] and weighted by a mask."""
    taps = tuple(t for t in w.shape[2:] if isinstance(t, int))
    rank, kernel = len(taps), math.prod(taps)
    op.require(rank == 2, Kind.BAD_SHAPE, f"the weight {w.type!r} has symbolic taps")
    strides, dilations = numbers(op, "strides", rank, 1), numbers(op, "dilations", rank, 1)
    pads, groups, movers = numbers(op, "pads", 2 * rank, 0), op.get("group", 1), op.get("offset_group", 1)
    op.require(groups > 0 and movers > 0, Kind.BAD_ATTRIBUTE, f"{groups} groups, {movers} offset groups")
    n, channels = x.shape[:2]
    places = offset.shape[2:]
    points = symbolic.product(places)
    moves = offset.cast(f32).reshape(n * movers, kernel, rank, *places)
    axes = []
    for axis in range(rank):
        tap = np.array([index[axis] for index in np.ndindex(*taps)]) * dilations[axis] - pads[axis]
        base = line(op, places[axis]) * float(strides[axis])
        base = base.reshape(1, *(places[axis] if k == axis else 1 for k in range(rank)))
        start = op.constant(tap.astype(np.float32)).reshape(kernel, *[1] * rank) + base
        axes.append((moves[:, :, axis] + start).reshape(n * movers, kernel * points))
    image = x.reshape(n * movers, channels // movers, symbolic.product(x.shape[2:]))
    fetch = fetch_from(op, image, x.shape[2:])
    samples = interpolated(op, fetch, x.shape[2:], [linear_taps(a) for a in axes], "zeros")
    samples = samples.reshape(n, movers, channels // movers, kernel, points)
    if mask is not None:
        samples = samples * mask.reshape(n, movers, 1, kernel, points)
    samples = samples.reshape(n, groups, channels // groups, kernel, points)
    weight = w.reshape(groups, w.shape[0] // groups, w.shape[1], kernel)
    result = contract(weight, "gock", samples, "ngckp", "ngop").reshape(n, w.shape[0], *places)
    return result if bias is None else per_channel(result, bias)


@onnx_op("Col2Im", known=(1, 2), ranks={0: 3})
def col2im(op: Call, x: Tensor, image: np.ndarray, block: np.ndarray) -> Any:
    """Windows [n, c * taps, windows] added up to an image: a transposed convolution with a unit weight."""
    taps, sizes = tuple(block.reshape(-1).tolist()), tuple(image.reshape(-1).tolist())
    rank, kernel = len(taps), math.prod(taps)
    op.require(rank == len(sizes) and all(t > 0 for t in taps), Kind.BAD_VALUE, f"windows {taps} of an image {sizes}")
    op.bounded(kernel, "the size of a window")
    strides, dilations = tuple(numbers(op, "strides", rank, 1)), tuple(numbers(op, "dilations", rank, 1))
    op.require(all(s > 0 for s in (*strides, *dilations)), Kind.BAD_ATTRIBUTE, "strides and dilations are positive")
    pads = numbers(op, "pads", 2 * rank, 0)
    sides = tuple((pads[k], pads[k + rank]) for k in range(rank))
    counts = [
        (size + low + high - step * (tap - 1) - 1) // stride + 1
        for size, tap, stride, step, (low, high) in zip(sizes, taps, strides, dilations, sides, strict=True)
    ]
    n, channels = x.shape[0], x.shape[1] // kernel
    data = x.reshape(n * channels, kernel, *counts)
    unit = op.constant(np.eye(kernel, dtype=x.dtype.numpy).reshape(kernel, 1, *taps))
    result = data.apply(ConvolutionTranspose(strides, sides, dilations, 1, shape=sizes), unit)
    return result.reshape(n, channels, *sizes)
