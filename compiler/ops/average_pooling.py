"""Pooling that takes the average of each window, and poolings made of it.

Padding counts only when asked for. The pooling and its gradient are linear and each other's transpose; the
gradient is gathered from the windows that contain an element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.scalar import IndexValue, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, bf16, dtype_of, f16, f32, f64
from ingot.compiler.ops import windows
from ingot.compiler.ops.base import Condition, Node, OpTypeError, Sample
from ingot.compiler.ops.pooling import Pool, pool_cases, pool_fields
from ingot.compiler.ops.windows import Axis, Layout


@dataclass(frozen=True)
class AverageFamily(Pool, abstract=True):
    """Averages over the elements of a window, with `count_include_pad` over its padding too; but the last
    `overshoot` elements of the padding of each axis (by default none) never count."""

    count_include_pad: bool = False
    overshoot: tuple[Dim, ...] = ()

    def _taps_counted(self, axis: Axis, overshoot: Dim, window: Dim) -> Dim:
        if self.count_include_pad:
            return axis.inside_taps(window, axis.low, axis.high - overshoot)
        return axis.inside_taps(window)

    def _divisor(self, axes: Sequence[Axis], places: Sequence[Dim]) -> Dim:
        """By what the sum over the window at these places is divided."""
        beyond = self.overshoot or (0,) * len(axes)
        parts = zip(axes, beyond, places, strict=True)
        return symbolic.product(self._taps_counted(axis, b, place) for axis, b, place in parts)

    def _same_divisor(self, axes: Sequence[Axis]) -> int | None:
        """The divisor, if it is provably the same for every window."""
        anywhere = [symbolic.Variable("w", 0, axis.count - 1) for axis in axes]
        divisor = self._divisor(axes, [variable + 0 for variable in anywhere])
        return divisor if isinstance(divisor, int) else None

    def _average_fields(self) -> dict[str, Any]:
        return self._shared() | {"count_include_pad": self.count_include_pad, "overshoot": self.overshoot}

    def _divisors(self, sizes: tuple[int, ...]) -> np.ndarray:
        """[*windows], counted one by one."""
        axes = self._axes(sizes)
        counted = np.ones(sizes, bool)
        if self.count_include_pad:
            beyond = self.overshoot or (0,) * len(axes)
            real = [Axis(a.size, 1, 1, 1, a.low, a.high - b) for a, b in zip(axes, beyond, strict=True)]
            counted = windows.pad_array(counted, real, True)
            rest = [Axis(0, 1, 1, 1, 0, b) for b in beyond]
            counted = windows.pad_array(counted, rest, False)
        else:
            counted = windows.pad_array(counted, axes, False)
        return windows.window_view(counted, axes).sum(self._tap_axes())


def _number(dim: Dim, dtype: DType) -> Scalar:
    return scalar.constant(dim, dtype) if isinstance(dim, int) else scalar.cast(IndexValue(dim), dtype)


@dataclass(frozen=True)
class AveragePool(AverageFamily):
    """y[n, c, y] = sum over taps r: x[n, c, y * stride + r * dilation - low], divided by how many count"""

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        return windows.windows_fit(self.name, self._axes_of(x))

    def infer(self, x: TensorType) -> TensorType:
        return self._pooled(x, "float")

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        view = self._view(x, 0)
        divisors = self._divisors(windows.channels_first(self.layout, x).shape[2:])
        average = view.sum(self._tap_axes()) / divisors.astype(view.dtype)
        return windows.from_channels_first(self.layout, average).astype(x.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        _, _, sizes = windows.unpack(self.layout, xs[0].shape)
        return (g.apply(AveragePoolGradient(**self._average_fields(), shape=sizes)),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (x,) = operands
        wide = output.dtype.compute
        zero = scalar.constant(0, wide)
        total = self._over_window("sum", x, index, zero, lambda element, tap: element)
        _, _, places = windows.unpack(self.layout, index)
        divisor = _number(self._divisor(self._axes_of(x.type), places), wide)
        return scalar.cast(scalar.apply("div", total, divisor), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, x, _ in pool_cases():
            for include in (False, True):
                yield Sample(cls(**fields, count_include_pad=include), (f64[x],))
        rounded = cls((3,), (2,), ((1, 2),), (1,), "channels_first", True, (1,))
        for dtype in (f64, f32, f16, bf16):
            yield Sample(rounded, (dtype[2, 3, 6],))


@dataclass(frozen=True)
class AveragePoolGradient(AverageFamily):
    """x[n, c, p] = sum over the windows y that contain p: g[n, c, y] / how many count in y"""

    shape: tuple[Dim, ...] = field(kw_only=True)

    def infer(self, g: TensorType) -> TensorType:
        return self._unpooled(g, self.shape)

    def evaluate(self, g: np.ndarray) -> np.ndarray:
        wide = windows.channels_first(self.layout, g).astype(dtype_of(g).compute.numpy)
        shared = wide / self._divisors(self.shape).astype(wide.dtype)  # type: ignore[arg-type]
        total = windows.spread(lambda tap: shared, self._axes(self.shape), shared)
        return windows.from_channels_first(self.layout, total).astype(g.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.apply(AveragePool(**self._average_fields())),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (g,) = operands
        wide = output.dtype.compute
        axes = self._axes_of(output)
        same = self._same_divisor(axes)

        def share(at: tuple[Dim, ...], places: tuple[Dim, ...], tap: tuple[Dim, ...]) -> Scalar:
            value = scalar.cast(g(*at), wide)
            if same is not None:
                return value
            return scalar.apply("div", value, _number(self._divisor(axes, places), wide))

        total = self._over_containing(output, index, share)
        if same is not None:
            total = scalar.apply("div", total, scalar.constant(same, wide))
        return scalar.cast(total, output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, x, y in pool_cases():
            _, _, sizes = windows.unpack(fields["layout"], x)
            for include in (False, True):
                yield Sample(cls(**fields, count_include_pad=include, shape=sizes), (f64[y],))
        rounded = cls((3,), (2,), ((1, 2),), (1,), "channels_first", True, (1,), shape=(6,))
        for dtype in (f64, f32, f16, bf16):
            yield Sample(rounded, (dtype[2, 3, 4],))


def average_pool(
    x: Node,
    window: int | Sequence[int],
    *,
    strides: int | Sequence[int] | None = None,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: Layout = "channels_first",
) -> Any:
    """The average of each window; as max_pool. What a window has beyond the padding, with `ceil_mode`, never
    counts."""
    fields, overshoot = pool_fields(x, window, strides, padding, dilation, ceil_mode, layout)
    if not count_include_pad or all(o == 0 for o in overshoot):
        overshoot = ()
    return x.apply(AveragePool(**fields, count_include_pad=count_include_pad, overshoot=overshoot))


def lp_pool(x: Node, window: int | Sequence[int], order: float = 2, **fields: Any) -> Any:
    """(sum of |x|^order)^(1/order) of each window; keywords as average_pool."""
    power = x * x if order == 2 else x.abs() ** float(order)
    average = average_pool(power, window, **fields, count_include_pad=True)
    total = average * float(math.prod(windows.per_axis(window, x.rank - 2)))
    return total.sqrt() if order == 2 else total ** (1.0 / order)


def global_average_pool(x: Node, layout: Layout = "channels_first") -> Any:
    """The mean over the spatial axes, which become 1."""
    return x.reduce("mean", windows.spatial_axes(layout, x.rank), keepdims=True)


def global_max_pool(x: Node, layout: Layout = "channels_first") -> Any:
    """The maximum over the spatial axes, which become 1."""
    return x.reduce("max", windows.spatial_axes(layout, x.rank), keepdims=True)


def adaptive_average_pool(x: Node, sizes: Sequence[int], layout: Layout = "channels_first") -> Any:
    """Averages that leave `sizes` elements; each must divide its axis."""
    _, _, spatial = windows.unpack(layout, x.shape)
    taps: list[int] = []
    for size, wanted in zip(spatial, sizes, strict=True):
        quotient = size // wanted
        if not isinstance(quotient, int) or quotient * wanted != size:
            raise OpTypeError(f"adaptive_average_pool: {wanted} does not divide {size} of {x.type!r}")
        taps.append(quotient)
    return average_pool(x, taps, layout=layout)
