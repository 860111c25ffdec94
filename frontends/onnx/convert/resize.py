"""Resize and Upsample: one axis after the other, each a weighted sum of a few neighbours.

For each place of the result, `taps` places of the source and their weights are computed: as constants when the sizes
are known, else by the program itself from the symbolic sizes. Downsampling with antialiasing has many taps and is a
product with a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import f32, f64, i64
from ingot.compiler.ops.base import normalize_axes
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Iota
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import MOST_ELEMENTS, Call, NeedsValue, evaluate
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.values import Dims, Value

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Settings:
    mode: str
    coordinates: str
    rounding: str
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class Line:
    """One axis: its size before and after, result per source places, and the region that is resized."""

    axis: int
    size: Dim
    result: Dim
    scale: float | None  # None: result / size
    start: float = 0.0
    end: float = 1.0

    @property
    def is_static(self) -> bool:
        return isinstance(self.size, int) and isinstance(self.result, int)


# --- the ops ----------------------------------------------------------------------------------------


@onnx_op("Upsample", since=1)
def upsample_attributes(op: Call, x: Tensor) -> Any:
    scales = op.get("scales", None) or [1.0, 1.0, op.get("height_scale"), op.get("width_scale")]
    return _upsampled(op, x, scales)


@onnx_op("Upsample", since=9, known=(1,))
def upsample(op: Call, x: Tensor, scales: np.ndarray) -> Any:
    return _upsampled(op, x, scales.reshape(-1).tolist())


def _mode(op: Call) -> str:
    """Linear interpolation had another name at first."""
    given = op.choice("mode", "nearest", (*MODES, "bilinear"))
    return "linear" if given == "bilinear" else given


def _upsampled(op: Call, x: Tensor, scales: Sequence[float]) -> Any:
    mode = _mode(op)
    return resized(op, x, _all_axes(op, x, scales), Settings(mode, "asymmetric", "floor"))


def _all_axes(op: Call, x: Tensor, scales: Sequence[float]) -> list[Line]:
    op.require(len(scales) == x.rank, Kind.BAD_SHAPE, f"{len(scales)} scales for {x.type!r}")
    return [Line(n, d, _scaled(op, d, s), float(s)) for n, (d, s) in enumerate(zip(x.shape, scales, strict=True))]


@onnx_op("Resize", since=10, known=(1,))
def resize_10(op: Call, x: Tensor, scales: np.ndarray) -> Any:
    mode = _mode(op)
    return resized(op, x, _all_axes(op, x, scales.reshape(-1).tolist()), Settings(mode, "asymmetric", "floor"))


@onnx_op("Resize", since=11, raw=True)
def resize(op: Call, x: Value, roi: Value = None, scales: Value = None, sizes: Value = None) -> Any:
    data = op.tensor(x)
    coordinates = op.choice("coordinate_transformation_mode", "half_pixel", COORDINATES)
    settings = Settings(
        op.choice("mode", "nearest", MODES),
        coordinates,
        op.choice("nearest_mode", "round_prefer_floor", ROUNDING),
        op.get("cubic_coeff_a", -0.75),
        bool(op.get("exclude_outside", 0)),
        bool(op.get("antialias", 0)),
        op.get("extrapolation_value", 0.0),
    )
    axes = normalize_axes(op.get("axes", list(range(data.rank))), data.rank, op.name)
    region = op.known(1).reshape(-1).tolist() if coordinates == "tf_crop_and_resize" and op.has_input(1) else []
    if op.has_input(2) and _count(op.values[2]):
        lines = _by_scales(op, data, axes)
    else:
        op.require(op.has_input(3), Kind.INPUT_COUNT, "it has neither scales nor sizes")
        lines = _by_sizes(op, data, axes)
    if region:
        half = len(region) // 2
        op.require(len(region) == 2 * len(lines), Kind.BAD_SHAPE, f"a region of {len(region)} numbers for {len(lines)} axes")
        lines = [
            Line(a.axis, a.size, a.result, a.scale, region[n], region[half + n]) for n, a in enumerate(lines)
        ]
    return resized(op, data, lines, settings)


def _count(value: Value) -> int:
    return int(np.prod(value.shape)) if isinstance(value, np.ndarray | Dims) else 1 if value is not None else 0


def _by_scales(op: Call, x: Tensor, axes: Sequence[int]) -> list[Line]:
    value = op.values[2]
    if isinstance(value, Dims):
        raise NeedsValue("the scales of Resize depend on symbolic dims", [2])
    scales = op.known(2).reshape(-1).tolist()
    op.require(len(scales) == len(axes), Kind.BAD_SHAPE, f"{len(scales)} scales for {len(axes)} axes")
    return [Line(a, x.shape[a], _scaled(op, x.shape[a], s), float(s)) for a, s in zip(axes, scales, strict=True)]


def _scaled(op: Call, size: Dim, scale: float) -> Dim:
    """floor(size * scale)"""
    op.require(0 < scale < math.inf, Kind.BAD_VALUE, f"a scale is {scale}")
    if isinstance(size, int):
        return math.floor(size * scale)
    fraction = Fraction(scale)
    if fraction.denominator > 1 << 10:
        raise ProblemError(Kind.BAD_SHAPE, f"{op.name} scales the symbolic dim {size} by {scale}, which is not exact")
    return size * fraction.numerator // fraction.denominator


def _by_sizes(op: Call, x: Tensor, axes: Sequence[int]) -> list[Line]:
    sizes = op.dims(3)
    op.require(len(sizes) == len(axes), Kind.BAD_SHAPE, f"{len(sizes)} sizes for {len(axes)} axes")
    policy = op.choice("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    if policy == "stretch":
        return [Line(a, x.shape[a], s, None) for a, s in zip(axes, sizes, strict=True)]
    if any(not isinstance(d, int) for d in (*sizes, *(x.shape[a] for a in axes))):
        raise NeedsValue("Resize keeps the aspect ratio of symbolic dims", [3])
    op.require(all(x.shape[a] != 0 for a in axes), Kind.BAD_SHAPE, f"the aspect ratio of {x.type!r}")
    ratios = [s / x.shape[a] for a, s in zip(axes, sizes, strict=True)]  # type: ignore[operator]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [Line(a, x.shape[a], int(scale * x.shape[a] + 0.5), scale) for a in axes]  # type: ignore[operator]


# --- axis by axis -----------------------------------------------------------------------------------


def resized(op: Call, x: Tensor, lines: Sequence[Line], settings: Settings) -> Any:
    wide = x if settings.mode == "nearest" or x.dtype.is_float else x.cast(f32)
    outside: Any = None
    repeats: dict[int, tuple[Dim, int]] = {}  # axes of whose result each element of the source is a few
    for line in lines:
        same = line.size == line.result and line.scale in (None, 1.0) and (line.start, line.end) == (0.0, 1.0)
        if same:
            continue
        places = _places(op, line, settings)
        if settings.coordinates == "tf_crop_and_resize":
            out = _outside(op, line, places, x.rank)
            outside = out if outside is None else outside | out
        if settings.mode == "nearest":
            index = _nearest(op, line, places, settings)
            factor = _repeats(line, settings, evaluate(index))
            if factor is not None:
                repeats[line.axis] = line.result, factor
            else:
                wide = wide.apply(Gather(line.axis), _constant(op, index))
        else:
            wide = _along(op, wide, line, places, settings)
    wide = _repeated(wide, repeats) if repeats else wide
    if outside is not None:
        wide = outside.broadcast_to(wide.shape).where(settings.extrapolation, wide)
    return wide if wide.dtype == x.dtype else _saturated(wide, x)


def _saturated(wide: Any, x: Tensor) -> Any:
    info = np.iinfo(x.dtype.numpy)
    return wide.round().clip(float(info.min), float(info.max)).cast(x.dtype)


def _places(op: Call, line: Line, settings: Settings) -> Any:
    """Where each place of the result is in the source: f64[result]."""
    y = Tensor(op.trace, op.trace.emit(Iota((line.result,), 0, f64)))
    size, result = op.dimension(line.size, f64), op.dimension(line.result, f64)
    scale = result / size if line.scale is None else op.constant(np.asarray(line.scale, np.float64))
    length = result if line.scale is None else scale * size
    match settings.coordinates:
        case "half_pixel":
            return (y + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            offset = size / 2.0 * (1.0 - result / length)
            return offset + (y + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (length == 1.0).where(-0.5, (y + 0.5) / scale - 0.5)
        case "align_corners":
            return (length == 1.0).where(0.0, y * (size - 1.0) / (length == 1.0).where(1.0, length - 1.0))
        case "asymmetric":
            return y / scale
        case "tf_half_pixel_for_nn":
            return (y + 0.5) / scale
    span = line.end - line.start
    steps = (length == 1.0).where(1.0, length - 1.0)
    inside = (length == 1.0).where((size - 1.0) * (span / 2), y * (size - 1.0) * span / steps)
    return inside + (size - 1.0) * line.start


def _outside(op: Call, line: Line, places: Any, rank: int) -> Any:
    out = (places < 0.0) | (places > op.dimension(line.size, f64) - 1.0)
    return out.reshape(*(line.result if n == line.axis else 1 for n in range(rank)))


def _along(op: Call, x: Any, line: Line, places: Any, settings: Settings) -> Any:
    # the neighbour on the left is strictly below, so that the ratio is in (0, 1]
    left = places.ceil() - 1.0
    ratio = places - left
    if settings.antialias and line.is_static and line.result < line.size:  # type: ignore[operator]
        return _antialiased(op, x, line, left, ratio, settings)
    first, weights = (0, [1.0 - ratio, ratio]) if settings.mode == "linear" else (-1, _cubic(ratio, settings.cubic))
    taps = [(left + float(first + n), w) for n, w in enumerate(weights)]
    if settings.exclude_outside:
        taps = _excluded(op, taps, line)
    total: Any = None
    for place, weight in taps:
        index = place.binary("maximum", 0.0).binary("minimum", op.dimension(line.size, f64) - 1.0).cast(i64)
        part = x.apply(Gather(line.axis), _constant(op, index)) * _weights(op, weight, x, line)
        total = part if total is None else total + part
    return total


def _constant(op: Call, tensor: Any) -> Any:
    """The tensor computed now, when it can be."""
    found = evaluate(tensor)
    return tensor if found is None else op.constant(found)


def _weights(op: Call, weight: Any, x: Any, line: Line) -> Any:
    shape = [line.result if n == line.axis else 1 for n in range(x.rank)]
    return _constant(op, weight.cast(x.dtype)).reshape(*shape)


def _excluded(op: Call, taps: list[tuple[Any, Any]], line: Line) -> list[tuple[Any, Any]]:
    """Neighbours outside of the source do not count; the weights of the others still add up to 1."""
    last = op.dimension(line.size, f64) - 1.0
    kept = [(place, ((place < 0.0) | (place > last)).where(0.0, weight)) for place, weight in taps]
    total = kept[0][1]
    for _, weight in kept[1:]:
        total = total + weight
    safe = (total == 0.0).where(1.0, total)
    return [(place, weight / safe) for place, weight in kept]


def _nearest(op: Call, line: Line, places: Any, settings: Settings) -> Any:
    """The element of the source that each place of the result is: i64[result]."""
    match settings.rounding:
        case "round_prefer_floor":
            index = (places - 0.5).ceil()
        case "round_prefer_ceil":
            index = (places + 0.5).floor()
        case "floor":
            index = places.floor()
        case _:
            index = places.ceil()
    return index.binary("maximum", 0.0).binary("minimum", op.dimension(line.size, f64) - 1.0).cast(i64)


def _repeated(x: Any, repeats: Mapping[int, tuple[Dim, int]]) -> Any:
    """Each element several times along some axes, of which the length and the number of times are told."""
    narrow: list[Dim] = []
    wide: list[Dim] = []
    for axis, extent in enumerate(x.shape):
        times = [repeats[axis][1]] if axis in repeats else []
        narrow += [extent, *(1 for _ in times)]
        wide += [extent, *times]
    spread = x.reshape(*narrow).broadcast_to(tuple(wide))
    return spread.reshape(*(repeats[axis][0] if axis in repeats else extent for axis, extent in enumerate(x.shape)))


def _repeats(line: Line, settings: Settings, index: np.ndarray | None) -> int | None:
    """How often each element is repeated, when that is all there is to it."""
    if index is not None:
        size, result = line.size, line.result
        if not isinstance(size, int) or not isinstance(result, int) or not size or result % size or not result:
            return None
        factor = result // size
        return factor if np.array_equal(index, np.arange(result) // factor) else None
    factor = line.scale
    whole = factor is not None and factor == int(factor) and factor >= 1
    plain = (settings.coordinates, settings.rounding) in (
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("pytorch_half_pixel", "round_prefer_floor"),
    )
    return int(factor) if whole and plain and factor is not None else None


def _cubic(ratio: Any, a: float) -> list[Any]:
    """Keys' cubic convolution (Cubic Convolution Interpolation for Digital Image Processing, 1981)."""

    def near(t: Any) -> Any:
        return ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0

    def far(t: Any) -> Any:
        return ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a

    return [far(ratio + 1.0), near(ratio), near(1.0 - ratio), far(2.0 - ratio)]


def _antialiased(op: Call, x: Any, line: Line, left: Any, ratio: Any, settings: Settings) -> Any:
    """The kernel stretched by the scale: a matrix [result, size] of weights."""
    assert isinstance(line.size, int)
    assert isinstance(line.result, int)
    base, ratios = evaluate(left), evaluate(ratio)
    if base is None or ratios is None:
        raise ProblemError(Kind.TOO_LARGE, f"{op.name}: an axis of {line.result} elements made smaller without aliasing")
    scale = min(line.result / line.size if line.scale is None else line.scale, 1.0)
    op.require(scale > 0, Kind.BAD_VALUE, f"axis {line.axis} is scaled to nothing")
    op.bounded(line.size * line.result, "the size of the matrix that makes an axis smaller without aliasing", MOST_ELEMENTS)
    reach = 1 if settings.mode == "linear" else 2
    first = math.floor(-reach / scale) + 1
    steps = np.arange(first, 2 - first)
    distance = np.abs((steps - ratios[:, None]) * scale)
    weights = np.clip(1 - distance, 0, 1) if reach == 1 else _cubic_kernel(distance, settings.cubic)
    weights = weights / weights.sum(1, keepdims=True)
    places = base[:, None].astype(np.int64) + steps
    if settings.exclude_outside:
        weights = np.where((places < 0) | (places >= line.size), 0.0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((line.result, line.size))
    rows = np.broadcast_to(np.arange(line.result)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, line.size - 1)), weights)
    letters = "abcdefgh"[: x.rank]
    kept = letters[: line.axis] + "z" + letters[line.axis + 1 :]
    return contract(x, letters, op.constant(matrix.astype(x.dtype.numpy)), "z" + letters[line.axis], kept)


def _cubic_kernel(t: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
