"""What poolings share, and the pooling that takes the maximum of each window. Layouts are those of `windows`.

Padding is never the maximum; NaN always is. Gradients are gathered, not scattered: each element sums over the
few windows that contain it, so windows may overlap and threads share nothing. The gradient of a maximum goes
to the first greatest element of its window (the first NaN, when there is one):

    max_pool_index      the number of that element's tap in its window
    max_pool_gradient   each element's share of g, from the windows that chose it
    max_pool_select     the chosen elements of another tensor; the gradient of max_pool_gradient
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.scalar import IndexValue, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, bf16, dtype_of, f16, f32, f64, i8, i32, i64, row_major_strides
from ingot.compiler.ops import movement, windows
from ingot.compiler.ops.base import Condition, Node, Op, OpTypeError, Sample, shape_text
from ingot.compiler.ops.windows import Axis, Layout, Padding


@dataclass(frozen=True)
class Pool(Op, abstract=True):
    """The fields that all poolings share."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    layout: Layout = "channels_first"
    cheap = False
    rereads = True

    @property
    def slides(self) -> bool:
        return self.layout == "channels_last"

    def _axes(self, sizes: Sequence[Dim]) -> tuple[Axis, ...]:
        return windows.axes_of(self.name, sizes, self.window, self.strides, self.padding, self.dilation)

    def _axes_of(self, data: TensorType) -> tuple[Axis, ...]:
        """The axes for data in the shape of x."""
        return self._axes(windows.unpack(self.layout, data.shape)[2])

    def _pooled(self, x: TensorType, *numbers: str) -> TensorType:
        """The type of the result for x of one of the kinds of numbers."""
        windows.require_data(self.name, self.layout, x)
        if x.dtype.kind not in numbers:
            raise OpTypeError(f"{self.name} takes {' or '.join(numbers)} tensors, not {x.dtype}; cast it")
        batch, channels, _ = windows.unpack(self.layout, x.shape)
        counts = [axis.count for axis in self._axes_of(x)]
        return x.with_shape(windows.pack(self.layout, batch, channels, counts))

    def _unpooled(self, g: TensorType, shape: tuple[Dim, ...]) -> TensorType:
        """The type of x, for the type of the result and the spatial sizes of x."""
        windows.require_data(self.name, self.layout, g)
        batch, channels, _ = windows.unpack(self.layout, g.shape)
        x = g.with_shape(windows.pack(self.layout, batch, channels, shape))
        _same_shape(self.name, self._pooled(x, "float").shape, g)
        return x

    def _shared(self) -> dict[str, Any]:
        return {
            "window": self.window, "strides": self.strides, "padding": self.padding,
            "dilation": self.dilation, "layout": self.layout,
        }  # fmt: skip

    def _tap_number(self, tap: Sequence[Dim]) -> Scalar:
        number: Dim = 0
        for r, stride in zip(tap, row_major_strides(self.window), strict=True):
            number = number + r * stride
        return IndexValue(number, i32)

    def _over_window(
        self,
        combiner: scalar.Combiner,
        x: Reader,
        index: tuple[Dim, ...],
        neutral: Scalar,
        body: Callable[[Scalar, tuple[Dim, ...]], Scalar],
    ) -> Scalar:
        """Combine body(element in its compute type, tap) over the window at `index`; padding is neutral."""
        batch, channel, places = windows.unpack(self.layout, index)
        axes = self._axes_of(x.type)

        def element(*tap: Dim) -> Scalar:
            positions = [axis.position(y, r) for axis, y, r in zip(axes, places, tap, strict=True)]
            inside = scalar.both(*(axis.inside(p) for axis, p in zip(axes, positions, strict=True)))
            value = x(*windows.pack(self.layout, batch, channel, positions))
            return scalar.select(inside, body(scalar.cast(value, value.dtype.compute), tap), neutral)

        return windows.combine(combiner, self.window, element)

    def _over_containing(
        self,
        output: TensorType,
        index: tuple[Dim, ...],
        body: Callable[[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]], Scalar],
    ) -> Scalar:
        """Sum body(index of the window, its spatial part, tap) over the windows that contain the element."""
        batch, channel, positions = windows.unpack(self.layout, index)
        axes = self._axes_of(output)
        wide = output.dtype.compute

        def share(*numbers: Dim) -> Scalar:
            found = [axis.containing(p, n) for axis, p, n in zip(axes, positions, numbers, strict=True)]
            places, tap = tuple(f[0] for f in found), tuple(f[1] for f in found)
            value = body(windows.pack(self.layout, batch, channel, places), places, tap)
            exists = scalar.both(*(f[2] for f in found))
            return scalar.select(exists, scalar.cast(value, wide), scalar.constant(0, wide))

        return windows.combine("sum", [axis.candidates for axis in axes], share)

    # NumPy, channels first

    def _view(self, x: np.ndarray, value: object) -> np.ndarray:
        """[n, c, *windows, *taps] in the compute type, padded by a value."""
        x = windows.channels_first(self.layout, x).astype(dtype_of(x).compute.numpy)
        axes = self._axes(x.shape[2:])
        return windows.window_view(windows.pad_array(x, axes, value), axes)

    def _inside(self, sizes: tuple[int, ...]) -> np.ndarray:
        """[*windows, *taps]: whether a tap is an element."""
        axes = self._axes(sizes)
        return windows.window_view(windows.pad_array(np.ones(sizes, bool), axes, False), axes)

    def _tap_axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.window), 0))


def _same_shape(op: str, expected: Sequence[Dim], found: TensorType) -> None:
    for a, b in zip(expected, found.shape, strict=True):
        if symbolic.equal(a, b) is not True:
            raise OpTypeError(f"{op}: the windows make {shape_text(expected)}, not {shape_text(found.shape)}")


# --- maximum --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaxPool(Pool):
    """y[n, c, y] = max over taps r: x[n, c, y * stride + r * dilation - low]"""

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        return windows.windows_fit(self.name, self._axes_of(x))

    def infer(self, x: TensorType) -> TensorType:
        return self._pooled(x, "float", "int", "uint")

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        least = scalar.identity_of("max", dtype_of(x))
        greatest = self._view(x, least).max(self._tap_axes())
        return windows.from_channels_first(self.layout, greatest).astype(x.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        index = x.apply(MaxPoolIndex(**self._shared()), y)
        _, _, sizes = windows.unpack(self.layout, x.shape)
        return (g.apply(MaxPoolGradient(**self._shared(), shape=sizes), index),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        wide = output.dtype.compute
        least = scalar.constant(scalar.identity_of("max", output.dtype), wide)
        greatest = self._over_window("max", operands[0], index, least, lambda element, tap: element)
        return scalar.cast(greatest, output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, x, _ in pool_cases():
            yield Sample(cls(**fields), (f64[x],))
        plain = cls((2, 2), (2, 2), ((0, 1), (1, 0)), (1, 1))
        for dtype in (f32, f16, bf16, i32, i8):
            yield Sample(plain, (dtype[2, 3, 5, 5],), -9, 9)
        edges = np.array([[[1, np.nan, 3, -np.inf, -np.inf, -np.inf, np.inf, 2]]], np.float32)
        yield Sample(cls((2,), (1,), ((1, 1),), (1,)), (edges,), wrt=())


@dataclass(frozen=True)
class MaxPoolIndex(Pool):
    """For x and its max_pool y: the number of the first tap of each window that equals y (or is NaN), counted
    in row-major order; the number of taps for a window that is all padding."""

    differentiable = False

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        expected = self._pooled(x, "float", "int", "uint")
        if y.dtype != x.dtype or y.rank != x.rank:
            raise OpTypeError(f"{self.name}: {y!r} is not the max_pool of {x!r}")
        _same_shape(self.name, expected.shape, y)
        return y.with_dtype(i32)

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        view = self._view(x, 0)
        greatest = windows.channels_first(self.layout, y).astype(view.dtype)
        chosen = (view == greatest[(..., *(None,) * len(self.window))]) | np.isnan(view)
        chosen &= self._inside(windows.channels_first(self.layout, x).shape[2:])
        flat = chosen.reshape(*greatest.shape, math.prod(self.window))
        first = np.where(flat.any(-1), flat.argmax(-1), flat.shape[-1])
        return windows.from_channels_first(self.layout, first).astype(np.int32)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        x, y = operands
        none = scalar.constant(math.prod(self.window), i32)

        def number(element: Scalar, tap: tuple[Dim, ...]) -> Scalar:
            chosen = scalar.apply("eq", element, scalar.cast(y(*index), element.dtype))
            if element.dtype.is_float:
                chosen = scalar.apply("or", chosen, scalar.apply("isnan", element))
            return scalar.select(chosen, self._tap_number(tap), none)

        return self._over_window("min", x, index, none, number)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(0)
        for fields, x, _ in pool_cases():
            for dtype in (np.float64, np.float32):
                data = rng.integers(-3, 3, x).astype(dtype)  # with ties
                yield Sample(cls(**fields), (data, MaxPool(**fields).evaluate(data)))
        fields = {"window": (3,), "strides": (1,), "padding": ((3, 1),), "dilation": (1,)}
        for data in (
            [np.nan, 1, np.nan, 2, -np.inf, -np.inf, -np.inf],
            [-np.inf, np.inf, np.inf, 0, 0, 3, 3],
        ):
            edges = np.array([[data]], np.float32)
            yield Sample(cls(**fields), (edges, MaxPool(**fields).evaluate(edges)))
        numbers = rng.integers(-2, 2, (1, 2, 7)).astype(np.int32)
        yield Sample(cls(**fields), (numbers, MaxPool(**fields).evaluate(numbers)))


@dataclass(frozen=True)
class MaxPoolGradient(Pool):
    """x[n, c, p] = sum of g[n, c, y] over the windows y whose index is the tap at p; x has `shape`."""

    shape: tuple[Dim, ...] = field(kw_only=True)

    def infer(self, g: TensorType, index: TensorType) -> TensorType:
        _require_index(self.name, g, index)
        return self._unpooled(g, self.shape)

    def evaluate(self, g: np.ndarray, index: np.ndarray) -> np.ndarray:
        wide = windows.channels_first(self.layout, g).astype(dtype_of(g).compute.numpy)
        chosen = windows.channels_first(self.layout, index)

        def share(tap: tuple[int, ...]) -> np.ndarray:
            return np.where(chosen == np.ravel_multi_index(tap, self.window), wide, 0)

        total = windows.spread(share, self._axes(self.shape), wide)
        return windows.from_channels_first(self.layout, total).astype(g.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return g.apply(MaxPoolSelect(**self._shared()), xs[1]), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        g, chosen = operands
        zero = scalar.constant(0, output.dtype)

        def share(at: tuple[Dim, ...], places: tuple[Dim, ...], tap: tuple[Dim, ...]) -> Scalar:
            return scalar.select(scalar.apply("eq", chosen(*at), self._tap_number(tap)), g(*at), zero)

        return scalar.cast(self._over_containing(output, index, share), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, x, y in pool_cases():
            _, _, sizes = windows.unpack(fields["layout"], x)
            for dtype in (f64, f32):
                yield Sample(cls(**fields, shape=sizes), (dtype[y], _some_index(fields["window"], y)))
        fields, _, y = next(pool_cases())
        yield Sample(cls(**fields, shape=(6,)), (f16[y], _some_index(fields["window"], y)))


@dataclass(frozen=True)
class MaxPoolSelect(Pool):
    """y[n, c, y] = the element of x at the tap of window y that the index names; 0 in the padding"""

    def infer(self, x: TensorType, index: TensorType) -> TensorType:
        y = self._pooled(x, "float")
        _require_index(self.name, y, index)
        return y

    def evaluate(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        view = self._view(x, 0)
        chosen = windows.channels_first(self.layout, index)[..., None]
        flat = view.reshape(*chosen.shape[:-1], math.prod(self.window))
        picked = np.take_along_axis(flat, np.minimum(chosen, flat.shape[-1] - 1), -1)
        result = np.where(chosen < flat.shape[-1], picked, 0)[..., 0]
        return windows.from_channels_first(self.layout, result).astype(x.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        x, index = xs
        _, _, sizes = windows.unpack(self.layout, x.shape)
        return g.apply(MaxPoolGradient(**self._shared(), shape=sizes), index), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        x, chosen = operands
        zero = scalar.constant(0, output.dtype.compute)

        def element(value: Scalar, tap: tuple[Dim, ...]) -> Scalar:
            return scalar.select(scalar.apply("eq", chosen(*index), self._tap_number(tap)), value, zero)

        return scalar.cast(self._over_window("sum", x, index, zero, element), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, x, y in pool_cases():
            for dtype in (f64, f32):
                yield Sample(cls(**fields), (dtype[x], _some_index(fields["window"], y)))
        fields, x, y = next(pool_cases())
        yield Sample(cls(**fields), (bf16[x], _some_index(fields["window"], y)))


def _require_index(op: str, pooled: TensorType, index: TensorType) -> None:
    if index.dtype != i32 or index.rank != pooled.rank:
        raise OpTypeError(f"{op}: {index!r} is not the i32 result of max_pool_index")
    _same_shape(op, pooled.shape, index)


# --- with defaults --------------------------------------------------------------------------------


def pool_fields(
    x: Node,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: Any,
    dilation: int | Sequence[int],
    ceil_mode: bool,
    layout: Layout,
) -> tuple[dict[str, Any], tuple[Dim, ...]]:
    """The fields of a pooling, and the overshoot of its padding."""
    rank = x.rank - 2
    taps, steps = windows.per_axis(window, rank), windows.per_axis(dilation, rank)
    stops = taps if strides is None else windows.per_axis(strides, rank)
    sides, overshoot = windows.per_side(padding, rank), ()
    if ceil_mode:
        _, _, sizes = windows.unpack(layout, x.shape)
        sides, overshoot = windows.ceil_padding(sizes, taps, stops, sides, steps)
    fields = {"window": taps, "strides": stops, "padding": sides, "dilation": steps, "layout": layout}
    return fields, overshoot


def max_pool(
    x: Node,
    window: int | Sequence[int],
    *,
    strides: int | Sequence[int] | None = None,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
) -> Any:
    """The maximum of each window; the stride is the window by default. With `ceil_mode` the last window may
    pass the end."""
    fields, _ = pool_fields(x, window, strides, padding, dilation, ceil_mode, layout)
    return x.apply(MaxPool(**fields))


def max_pool_positions(y: Node, x: Node) -> Any:
    """For y = max_pool(x): where each maximum stands, as its i64 row-major position in the spatial axes of x.

    The position of a window that is all padding means nothing.
    """
    op = y.value.op
    if not isinstance(op, MaxPool) or y.value.args != (x.value,):
        raise OpTypeError(f"max_pool_positions takes the result of max_pool and its argument, not {y.type!r}")
    number = x.apply(MaxPoolIndex(**op._shared()), y).cast(i64)
    _, _, sizes = windows.unpack(op.layout, x.shape)
    axes = op._axes_of(x.type)
    total: Any = None
    places = windows.spatial_axes(op.layout, x.rank)
    parts = zip(places, axes, row_major_strides(op.window), row_major_strides(sizes), strict=True)
    for place, axis, tap_stride, stride in parts:
        tap = number.binary("floor_divide", tap_stride) % axis.taps
        window = movement.iota(number, number.shape, place)
        position = window * axis.stride + tap * axis.dilation - movement.dimension(number, axis.low)
        part = position * movement.dimension(number, stride)
        total = part if total is None else total + part
    return total


# --- samples --------------------------------------------------------------------------------------


def pool_cases() -> Iterator[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]]:
    """(fields, shape of x, shape of the result): overlaps, gaps, padding, dilation; 1 to 3 dims."""
    table: list[tuple[tuple[int, ...], tuple[int, ...], Padding, tuple[int, ...], tuple[int, ...]]] = [
        ((2,), (2,), ((0, 0),), (1,), (6,)),
        ((3,), (1,), ((1, 2),), (1,), (5,)),
        ((3,), (2,), ((0, 1),), (2,), (8,)),
        ((2,), (3,), ((-1, 0),), (1,), (9,)),
        ((3,), (4,), ((2, 1),), (2,), (9,)),
        ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), (4, 5)),
        ((3, 3), (2, 2), ((1, 1), (1, 0)), (1, 1), (5, 6)),
        ((2, 3), (1, 2), ((0, 1), (1, 1)), (2, 1), (5, 4)),
        ((2, 1, 2), (1, 2, 2), ((1, 0), (0, 0), (0, 1)), (1, 1, 1), (2, 3, 3)),
    ]
    for number, (window, strides, padding, dilation, sizes) in enumerate(table):
        layout: Layout = "channels_last" if number % 3 == 2 else "channels_first"
        axes = windows.axes_of("pool", sizes, window, strides, padding, dilation)
        counts: Any = [axis.count for axis in axes]
        fields = {
            "window": window, "strides": strides, "padding": padding, "dilation": dilation, "layout": layout,
        }  # fmt: skip
        yield fields, windows.pack(layout, 2, 2, sizes), windows.pack(layout, 2, 2, counts)


def _some_index(window: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Taps that some maximum could have, and now and then none."""
    return (np.arange(math.prod(shape)) * 7 % (math.prod(window) + 1)).reshape(shape).astype(np.int32)
