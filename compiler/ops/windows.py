"""Windows that slide along the spatial axes of a tensor: what convolution and pooling share.

A window has `taps` elements, `dilation` apart, and stands at every `stride`-th place of an axis padded by
`low` and `high` (negative: cropped). Tap r of window y is

    position = y * stride + r * dilation - low

and seen from the position, the windows that contain it are those y whose tap solves that equation. Layouts:

    channels_first   data [n, c, *spatial]   weight [out, in / groups, *taps]
    channels_last    data [n, *spatial, c]   weight [*taps, in / groups, out]

Non-goal: no tensors here, only index arithmetic, types and NumPy views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ingot.compiler.ir import scalar, symbolic, tensor
from ingot.compiler.ir.scalar import Combiner, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType
from ingot.compiler.ops.base import Condition, OpTypeError, require

Layout = Literal["channels_first", "channels_last"]
LAYOUTS: tuple[Layout, ...] = ("channels_first", "channels_last")
Padding = tuple[tuple[Dim, Dim], ...]
SPATIAL_RANKS = (1, 2, 3)

T = TypeVar("T")


# --- layouts --------------------------------------------------------------------------------------


def spatial_axes(layout: Layout, rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank)) if layout == "channels_first" else tuple(range(1, rank - 1))


def unpack(layout: Layout, items: Sequence[T]) -> tuple[T, T, tuple[T, ...]]:
    """(batch, channel, spatial) of a shape or an index."""
    if layout == "channels_first":
        return items[0], items[1], tuple(items[2:])
    return items[0], items[-1], tuple(items[1:-1])


def pack(layout: Layout, batch: T, channel: T, spatial: Sequence[T]) -> tuple[T, ...]:
    if layout == "channels_first":
        return (batch, channel, *spatial)
    return (batch, *spatial, channel)


def unpack_weight(layout: Layout, items: Sequence[T]) -> tuple[T, T, tuple[T, ...]]:
    """(output channel, input channel of the group, taps) of a weight's shape or index."""
    if layout == "channels_first":
        return items[0], items[1], tuple(items[2:])
    return items[-1], items[-2], tuple(items[:-2])


def pack_weight(layout: Layout, output: T, channel: T, taps: Sequence[T]) -> tuple[T, ...]:
    if layout == "channels_first":
        return (output, channel, *taps)
    return (*taps, channel, output)


def channels_first(layout: Layout, data: np.ndarray) -> np.ndarray:
    """A view of the data with its channels in front of the spatial axes."""
    return data if layout == "channels_first" else np.moveaxis(data, -1, 1)


def from_channels_first(layout: Layout, data: np.ndarray) -> np.ndarray:
    return data if layout == "channels_first" else np.moveaxis(data, 1, -1)


# --- one axis -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """Windows along one spatial axis of `size` elements."""

    size: Dim
    taps: int
    stride: int
    dilation: int
    low: Dim
    high: Dim

    @property
    def reach(self) -> int:
        """Elements from the first to the last tap of a window."""
        return self.dilation * (self.taps - 1) + 1

    @property
    def count(self) -> Dim:
        """How many windows fit."""
        return (self.size + self.low + self.high - self.reach) // self.stride + 1

    def position(self, window: Dim, tap: Dim) -> Dim:
        return window * self.stride + tap * self.dilation - self.low

    def inside(self, position: Dim) -> Scalar:
        """Whether a position is one of the axis; constant where it cannot be otherwise."""
        return scalar.both(
            scalar.predicate(position, "ge", 0),
            scalar.predicate(position, "lt", self.size),
        )

    @property
    def candidates(self) -> int:
        """The greatest number of windows that contain one position."""
        return -(-self.taps // self._period)

    @property
    def _period(self) -> int:
        """Taps of windows that contain the same position are this far apart."""
        return self.stride // math.gcd(self.stride, self.dilation)

    def containing(self, position: Dim, number: Dim) -> tuple[Dim, Dim, Scalar]:
        """(window, tap, whether there is one) for candidate 0, 1, ... of a position.

        dilation * tap == place (mod stride), with place = position + low, has the solutions
        tap = first, first + period, ...; and none when the common divisor of stride and dilation does not
        divide the place. There is no search: for a stride of 1, every tap is a candidate.
        """
        divisor, period = math.gcd(self.stride, self.dilation), self._period
        place = position + self.low
        inverse = pow(self.dilation // divisor, -1, period) if period > 1 else 0
        first = (place // divisor * inverse) % period
        tap = first + period * number
        window = (place - self.dilation * first) // self.stride - self.dilation // divisor * number
        exists = scalar.both(
            scalar.predicate(place % divisor, "eq", 0),
            scalar.predicate(tap, "lt", self.taps),
            scalar.predicate(window, "ge", 0),
            scalar.predicate(window, "lt", self.count),
        )
        return window, tap, exists

    def inside_taps(self, window: Dim, low: Dim = 0, high: Dim = 0) -> Dim:
        """How many taps of a window lie on the axis, or on the axis with `low` and `high` more elements."""
        start = window * self.stride - self.low + low
        first = symbolic.maximum(0, symbolic.ceildiv(-start, self.dilation))
        last = symbolic.minimum(self.taps, symbolic.ceildiv(self.size + low + high - start, self.dilation))
        return symbolic.maximum(0, last - first)


def axes_of(
    op: str,
    sizes: Sequence[Dim],
    taps: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
) -> tuple[Axis, ...]:
    """The axes of an op's fields, checked: 1 to 3 of them, and at least one window fits on each."""
    rank = len(sizes)
    if rank not in SPATIAL_RANKS:
        raise OpTypeError(f"{op} slides along 1 to 3 spatial axes, not {rank}")
    fields = {"taps": taps, "strides": strides, "padding": padding, "dilation": dilation}
    for name, values in fields.items():
        if len(values) != rank:
            raise OpTypeError(
                f"{op}: {name} {tuple(values)} must have one entry for each of {rank} spatial axes"
            )
    for name in ("taps", "strides", "dilation"):
        if not all(isinstance(v, int) and v >= 1 for v in fields[name]):
            raise OpTypeError(f"{op}: {name} {tuple(fields[name])} must be positive integers")
    made = tuple(Axis(size, taps[n], strides[n], dilation[n], *padding[n]) for n, size in enumerate(sizes))
    require(*windows_fit(op, made))
    return made


def windows_fit(op: str, axes: Sequence[Axis]) -> tuple[Condition, ...]:
    """At least one window fits on each axis."""
    return tuple(
        Condition(
            axis.reach,
            "le",
            axis.size + axis.low + axis.high,
            f"{op}: a window of {axis.reach} elements is larger than spatial axis {n}, which has {axis.size} "
            f"padded by {axis.low} and {axis.high}",
        )
        for n, axis in enumerate(axes)
    )


def require_data(op: str, layout: str, x: TensorType) -> None:
    if layout not in LAYOUTS:
        raise OpTypeError(f"{op}: layout {layout!r} is not one of {', '.join(LAYOUTS)}")
    if x.rank < 3:
        raise OpTypeError(f"{op} takes [batch, channels, spatial...] in some order, not {x!r}")


# --- index notation -------------------------------------------------------------------------------


def combine(combiner: Combiner, extents: Sequence[Dim], body: Callable[..., Scalar]) -> Scalar:
    """Reduce over the extents; those of 1 need no variable, and with no other there is nothing to reduce."""
    open_axes = [n for n, extent in enumerate(extents) if extent != 1]

    def whole(*variables: Dim) -> Scalar:
        index: list[Dim] = [0] * len(extents)
        for n, variable in zip(open_axes, variables, strict=True):
            index[n] = variable
        return body(*index)

    if not open_axes:
        return whole()
    return tensor.reduction(combiner, tuple(extents[n] for n in open_axes), whole)


# --- NumPy ----------------------------------------------------------------------------------------


def pad_array(x: np.ndarray, axes: Sequence[Axis], value: object = 0) -> np.ndarray:
    """The last axes of x with their padding, negative padding cropped."""
    for n, axis in enumerate(axes):
        place = x.ndim - len(axes) + n
        low, high = int(axis.low), int(axis.high)  # type: ignore[arg-type]
        keep = slice(max(0, -low), x.shape[place] - max(0, -high))
        widths = [(0, 0)] * x.ndim
        widths[place] = (max(0, low), max(0, high))
        x = np.pad(x[(slice(None),) * place + (keep,)], widths, constant_values=value)  # type: ignore[arg-type]
    return x


def window_view(x: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
    """[..., *windows, *taps] of a padded array whose last axes are the spatial ones."""
    places = tuple(range(x.ndim - len(axes), x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, [axis.reach for axis in axes], places)
    steps = [slice(None, None, axis.stride) for axis in axes]
    taps = [slice(None, None, axis.dilation) for axis in axes]
    return windows[(..., *steps, *taps)]


def spread(
    share: Callable[[tuple[int, ...]], np.ndarray], axes: Sequence[Axis], like: np.ndarray
) -> np.ndarray:
    """[..., *sizes]: `share(tap)`, an array [..., *windows], added where that tap of each window stands.

    `like` is one such array.
    """
    leading, counts = like.shape[: -len(axes)], like.shape[-len(axes) :]
    spans = [(count - 1) * axis.stride + 1 for axis, count in zip(axes, counts, strict=True)]
    extents = [span + axis.reach - 1 for axis, span in zip(axes, spans, strict=True)]
    total = np.zeros((*leading, *extents), like.dtype)
    for tap in np.ndindex(*(axis.taps for axis in axes)):
        places = [
            slice(axis.dilation * r, axis.dilation * r + span, axis.stride)
            for axis, r, span in zip(axes, tap, spans, strict=True)
        ]
        total[(..., *places)] += share(tap)
    crop = [
        Axis(extent, 1, 1, 1, -axis.low, axis.size + axis.low - extent)
        for axis, extent in zip(axes, extents, strict=True)
    ]
    return pad_array(total, crop)


# --- arguments of helpers -------------------------------------------------------------------------


def per_axis(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One integer for every axis, or one for each."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def per_side(padding: Any, rank: int) -> Padding:
    """Padding as one integer for all sides, one for both sides of each axis, or (low, high) of each axis."""
    if isinstance(padding, (int, symbolic.Expr)):
        return ((padding, padding),) * rank
    return tuple((p, p) if isinstance(p, (int, symbolic.Expr)) else (p[0], p[1]) for p in padding)


def same_padding(
    sizes: Sequence[Dim],
    taps: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    extra: Literal["low", "high"] = "high",
) -> Padding:
    """Padding with which there are ceil(size / stride) windows; an odd element goes to the side `extra`."""
    made: list[tuple[Dim, Dim]] = []
    for size, count, stride, step in zip(sizes, taps, strides, dilation, strict=True):
        windows = symbolic.ceildiv(size, stride)
        needed = symbolic.maximum(0, (windows - 1) * stride + step * (count - 1) + 1 - size)
        small = needed // 2
        made.append((needed - small, small) if extra == "low" else (small, needed - small))
    return tuple(made)


def ceil_padding(
    sizes: Sequence[Dim],
    taps: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
) -> tuple[Padding, tuple[Dim, ...]]:
    """(padding, overshoot) for the number of windows rounded up: the last one may end beyond the padding, but
    begins before the high padding does. The padding returned includes the overshoot."""
    made: list[tuple[Dim, Dim]] = []
    beyond: list[Dim] = []
    for size, count, stride, step, (low, high) in zip(sizes, taps, strides, dilation, padding, strict=True):
        reach = step * (count - 1) + 1
        windows = symbolic.minimum(
            symbolic.ceildiv(size + low + high - reach, stride) + 1,
            (size + low - 1) // stride + 1,
        )
        overshoot = (windows - 1) * stride + reach - (size + low + high)
        made.append((low, high + overshoot))
        beyond.append(overshoot)
    return tuple(made), tuple(beyond)
