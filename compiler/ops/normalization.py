"""Normalisation: subtract the mean and divide by the standard deviation over some axes, then scale and shift.

    layer_norm            over the trailing axes of each element
    group_norm            over the spatial axes and the channels of a group
    instance_norm         over the spatial axes of a channel
    batch_norm_training   over everything but the channels; also gives the mean and variance it used
    batch_norm            with a mean and variance that are given
    rms_norm              by the root of the mean square, without subtracting the mean
    local_response_norm   by the squares of neighbouring channels

All are decomposed into reductions and elementwise ops that fuse into a pass or two over the data. The
variance is the mean square distance from the mean, in two passes: it cannot cancel and is never negative. f16
and bf16 are computed in f32; scale and shift may have either type. Gradients are written out, because they
need few reductions; what they share with the forward pass is built alike, so that it is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, TupleType, bf16, dtype_of, f16, f32, f64
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample, normalize_axis, shape_text

Shape = tuple[Dim, ...]


def _require_float(op: str, x: TensorType) -> None:
    if not x.dtype.is_float:
        raise OpTypeError(f"{op} takes float tensors, not {x.dtype}; cast it")


def _require_parameter(op: str, what: str, x: TensorType, parameter: TensorType, shape: Shape) -> None:
    if parameter.dtype not in (x.dtype, x.dtype.compute):
        raise OpTypeError(f"{op}: the {what} is {parameter.dtype} for data of {x.dtype}; cast it")
    if parameter.rank != len(shape) or any(
        symbolic.equal(a, b) is not True for a, b in zip(parameter.shape, shape, strict=True)
    ):
        raise OpTypeError(f"{op}: the {what} of {x!r} has shape {shape_text(shape)}, not {parameter!r}")


def _across(shape: Sequence[Dim], axis: int) -> Shape:
    """The shape of one number per element of an axis, as it broadcasts."""
    return tuple(d if n == axis else 1 for n, d in enumerate(shape))


def _all_but(rank: int, *kept: int) -> tuple[int, ...]:
    return tuple(n for n in range(rank) if n not in kept)


def _mean(x: Node, axes: Sequence[int]) -> Any:
    return x.reduce("mean", axes, keepdims=True)


# --- centred and scaled ---------------------------------------------------------------------------


class Normalization(Op, abstract=True):
    """What the normalisations that subtract the mean share. Arguments: x, and then scale, and then shift."""

    epsilon: float
    cheap = False

    def _view(self, shape: Shape) -> Shape:
        """The shape under which the statistics are over whole axes."""
        return shape

    def _axes(self, rank: int) -> tuple[int, ...]:
        """The axes of the view that the statistics are over."""
        raise NotImplementedError

    def _parameter_shape(self, shape: Shape) -> Shape:
        """The shape of scale and shift."""
        raise NotImplementedError

    def _broadcastable(self, shape: Shape) -> Shape:
        """The shape of scale and shift when they meet x."""
        raise NotImplementedError

    def _check_data(self, x: TensorType) -> None:
        _require_float(self.name, x)

    def infer(self, x: TensorType, *parameters: TensorType) -> Any:
        self._check_data(x)
        if len(parameters) > 2:
            raise OpTypeError(f"{self.name} takes data, a scale and a shift, not {1 + len(parameters)} tensors")
        for what, parameter in zip(("scale", "shift"), parameters, strict=False):
            _require_parameter(self.name, what, x, parameter, self._parameter_shape(x.shape))
        return x

    # NumPy

    def _statistics(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(normalised x, mean, variance), the latter two with the axes kept."""
        view = x.reshape(self._view(x.shape))  # type: ignore[arg-type]
        axes = self._axes(view.ndim)
        mean, variance = view.mean(axes, keepdims=True), view.var(axes, keepdims=True)
        normal = (view - mean) / np.sqrt(variance + x.dtype.type(self.epsilon))
        return normal.reshape(x.shape), mean, variance

    def _scaled(self, normal: np.ndarray, parameters: Sequence[np.ndarray]) -> np.ndarray:
        wide = [p.astype(normal.dtype).reshape(self._broadcastable(normal.shape)) for p in parameters]  # type: ignore[arg-type]
        for combine, parameter in zip((np.multiply, np.add), wide, strict=False):
            normal = combine(normal, parameter)
        return normal

    def evaluate(self, x: np.ndarray, *parameters: np.ndarray) -> Any:
        normal, _, _ = self._statistics(x.astype(dtype_of(x).compute.numpy))
        return self._scaled(normal, parameters).astype(x.dtype)

    # graph

    def _normal(self, x: Node) -> tuple[Any, Any, Any, Any]:
        """(normalised view of x, mean, variance, 1 / standard deviation) in the compute type."""
        wide = x.cast(x.dtype.compute)
        view = wide.reshape(self._view(x.shape))
        axes = self._axes(view.rank)
        mean = _mean(view, axes)
        centred = view - mean
        variance = _mean(centred * centred, axes)
        inverse = (variance + self.epsilon).rsqrt()
        return centred * inverse, mean, variance, inverse

    def _parameter(self, x: Node, parameter: Node) -> Any:
        return parameter.cast(x.dtype.compute).reshape(self._broadcastable(x.shape))

    def _affine(self, x: Node, normal: Any, parameters: Sequence[Node]) -> Any:
        result = normal.reshape(x.shape)
        if parameters:
            result = result * self._parameter(x, parameters[0])
        if len(parameters) > 1:
            result = result + self._parameter(x, parameters[1])
        return result.cast(x.dtype)

    def decompose(self, *xs: Node) -> Any:
        x, *parameters = xs
        return self._affine(x, self._normal(x)[0], parameters)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        x, *parameters = xs
        normal, _, _, inverse = self._normal(x)
        wide = g.cast(x.dtype.compute)
        scaled = wide * self._parameter(x, parameters[0]) if parameters else wide
        for_x = self._gradient(scaled.reshape(normal.shape), normal, inverse)
        return (for_x.reshape(x.shape).cast(x.dtype), *self._for_parameters(x, wide, normal, parameters))

    def _gradient(self, g: Any, normal: Any, inverse: Any) -> Any:
        """(g - mean(g) - normal mean(g normal)) / standard deviation"""
        axes = self._axes(normal.rank)
        return inverse * (g - _mean(g, axes) - normal * _mean(g * normal, axes))

    def _for_parameters(self, x: Node, g: Any, normal: Any, parameters: Sequence[Node]) -> list[Any]:
        shape = self._broadcastable(x.shape)
        offset = x.rank - len(shape)
        summed = [n for n in range(x.rank) if n < offset or (shape[n - offset] == 1 and x.shape[n] != 1)]
        values = (g * normal.reshape(x.shape), g)
        return [value.sum(summed).reshape(p.shape).cast(p.dtype) for value, p in zip(values, parameters, strict=False)]


@dataclass(frozen=True)
class LayerNorm(Normalization):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift over the last `trailing` axes; scale and shift
    have the shape of these and are optional."""

    trailing: int = 1
    epsilon: float = 1e-5

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank - self.trailing, rank))

    def _parameter_shape(self, shape: Shape) -> Shape:
        return shape[len(shape) - self.trailing :]

    def _broadcastable(self, shape: Shape) -> Shape:
        return self._parameter_shape(shape)

    def _check_data(self, x: TensorType) -> None:
        super()._check_data(x)
        if not 1 <= self.trailing <= x.rank:
            raise OpTypeError(f"{self.name}: {x!r} does not have {self.trailing} trailing axes")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16, bf16):
            yield Sample(cls(), (dtype[3, 5], dtype[5], dtype[5]))
        yield Sample(cls(2, 1e-3), (f64[2, 3, 4], f64[3, 4], f64[3, 4]))
        yield Sample(cls(1), (f64[2, 3, 4], f64[4]))
        yield Sample(cls(2), (f64[3, 4],))
        yield Sample(cls(1), (f16[3, 5], f32[5], f32[5]))
        yield Sample(cls(1), (f32[0, 5], f32[5], f32[5]))


class ChannelNormalization(Normalization, abstract=True):
    """Scale and shift are one number per channel; channels are along `axis`, behind the batch."""

    axis: int

    def _channel(self, rank: int) -> int:
        return normalize_axis(self.axis, rank, self.name)

    def _parameter_shape(self, shape: Shape) -> Shape:
        return (shape[self._channel(len(shape))],)

    def _broadcastable(self, shape: Shape) -> Shape:
        return _across(shape, self._channel(len(shape)))

    def _check_data(self, x: TensorType) -> None:
        super()._check_data(x)
        if x.rank < 2 or self._channel(x.rank) == 0:
            raise OpTypeError(f"{self.name} takes a batch of data with channels along axis {self.axis}, not {x!r}")


@dataclass(frozen=True)
class InstanceNorm(ChannelNormalization):
    """Normalises each channel of each element of the batch over its spatial axes."""

    axis: int = 1
    epsilon: float = 1e-5

    def _axes(self, rank: int) -> tuple[int, ...]:
        return _all_but(rank, 0, self._channel(rank))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16):
            yield Sample(cls(), (dtype[2, 3, 4, 2], dtype[3], dtype[3]))
        yield Sample(cls(-1), (f64[2, 5, 3], f64[3], f64[3]))
        yield Sample(cls(), (f64[2, 3, 5],))


@dataclass(frozen=True)
class GroupNorm(ChannelNormalization):
    """Normalises each group of consecutive channels of each element over their channels and spatial axes."""

    groups: int
    axis: int = 1
    epsilon: float = 1e-5

    def _view(self, shape: Shape) -> Shape:
        channel = self._channel(len(shape))
        return (*shape[:channel], self.groups, shape[channel] // self.groups, *shape[channel + 1 :])

    def _axes(self, rank: int) -> tuple[int, ...]:
        return _all_but(rank, 0, self._channel(rank - 1))

    def _check_data(self, x: TensorType) -> None:
        super()._check_data(x)
        channels = x.shape[self._channel(x.rank)]
        if self.groups < 1 or symbolic.equal(channels % self.groups, 0) is not True:
            raise OpTypeError(f"{self.name}: {self.groups} groups do not divide the {channels} channels of {x!r}")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, bf16):
            yield Sample(cls(2), (dtype[2, 4, 3, 2], dtype[4], dtype[4]))
        yield Sample(cls(3, -1, 1e-3), (f64[2, 5, 6], f64[6], f64[6]))
        yield Sample(cls(1), (f64[2, 4, 3], f64[4]))
        yield Sample(cls(4), (f64[2, 4, 3],))


# --- batches --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchNormTraining(ChannelNormalization):
    """(y, mean, variance): normalises each channel over the batch and the spatial axes. Mean and variance (not
    corrected for the number of elements) are in the compute type."""

    axis: int = 1
    epsilon: float = 1e-5

    def _axes(self, rank: int) -> tuple[int, ...]:
        return _all_but(rank, self._channel(rank))

    def _check_data(self, x: TensorType) -> None:
        _require_float(self.name, x)
        self._channel(x.rank)

    def infer(self, x: TensorType, *parameters: TensorType) -> TupleType:
        super().infer(x, *parameters)
        statistic = TensorType(x.dtype.compute, self._parameter_shape(x.shape))
        return TupleType((x, statistic, statistic))

    def evaluate(self, x: np.ndarray, *parameters: np.ndarray) -> Any:
        normal, mean, variance = self._statistics(x.astype(dtype_of(x).compute.numpy))
        return self._scaled(normal, parameters).astype(x.dtype), mean.ravel(), variance.ravel()

    def decompose(self, *xs: Node) -> Any:
        x, *parameters = xs
        normal, mean, variance, _ = self._normal(x)
        shape = self._parameter_shape(x.shape)
        return self._affine(x, normal, parameters), mean.reshape(shape), variance.reshape(shape)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        x, for_y = xs[0], g[0]
        shares, for_parameters = self._for_statistics(x, *g[1:]), [None] * (len(xs) - 1)
        if for_y is not None:
            for_x, *for_parameters = super().vjp(for_y, y[0], *xs)
            shares.insert(0, for_x)
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        return (total, *for_parameters)

    def _for_statistics(self, x: Node, for_mean: Any, for_variance: Any) -> list[Any]:
        """What flows to x through the mean and the variance that are given out."""
        _, mean, _, _ = self._normal(x)
        count = movement.dimension(mean, symbolic.product(x.shape[n] for n in self._axes(x.rank)))
        shares: list[Any] = []
        if for_mean is not None:
            shares.append(self._parameter(x, for_mean / count).broadcast_to(x.shape))
        if for_variance is not None:
            centred = x.cast(x.dtype.compute) - mean
            shares.append(centred * self._parameter(x, for_variance * 2.0 / count))
        return [share.cast(x.dtype) for share in shares]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16):
            yield Sample(cls(), (dtype[4, 3, 2, 2], dtype[3], dtype[3]))
        yield Sample(cls(-1, 1e-3), (f64[3, 4, 2], f64[2], f64[2]))
        yield Sample(cls(), (f64[6, 3], f64[3], f64[3]))
        yield Sample(cls(), (f64[6, 3],))
        yield Sample(cls(), (bf16[4, 3, 2], f32[3], f32[3]))


@dataclass(frozen=True)
class BatchNorm(Op):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, one of each for a channel along `axis`; the
    arguments are x, scale, shift, mean, variance."""

    axis: int = 1
    epsilon: float = 1e-5
    cheap = False

    def infer(self, x: TensorType, *parameters: TensorType) -> TensorType:
        _require_float(self.name, x)
        if len(parameters) != 4:
            raise OpTypeError(f"{self.name} takes data, scale, shift, mean and variance")
        channels = x.shape[normalize_axis(self.axis, x.rank, self.name)]
        for what, parameter in zip(("scale", "shift", "mean", "variance"), parameters, strict=True):
            _require_parameter(self.name, what, x, parameter, (channels,))
        return x

    def evaluate(self, x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        wide = dtype_of(x).compute.numpy
        across: Any = _across(x.shape, self.axis % x.ndim)
        scale, shift, mean, variance = (p.astype(wide).reshape(across) for p in parameters)
        inverse = 1 / np.sqrt(variance + wide.type(self.epsilon))
        return ((x.astype(wide) - mean) * inverse * scale + shift).astype(x.dtype)

    def decompose(self, *xs: Node) -> Node:
        """x a + b, with a and b of one number per channel: one multiply-add for each element."""
        x, *parameters = xs
        wide = x.dtype.compute
        scale, shift, mean, variance = (p.cast(wide) for p in parameters)
        slope = scale * (variance + self.epsilon).rsqrt()
        across = _across(x.shape, self.axis % x.rank)
        base = shift - mean * slope
        return (x.cast(wide) * slope.reshape(across) + base.reshape(across)).cast(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        spread = np.array([0.5, 2.0, 1.0])
        for dtype in (f64, f32, f16):
            channel = dtype[3]
            yield Sample(cls(), (dtype[2, 3, 2, 2], channel, channel, channel, spread.astype(dtype.numpy)))
        yield Sample(cls(-1, 1e-3), (f64[2, 4, 3], f64[3], f64[3], f64[3], spread))
        yield Sample(cls(), (bf16[2, 3], f32[3], f32[3], f32[3], spread.astype(np.float32)))


# --- other ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RmsNorm(Op):
    """y = x / sqrt(mean(x x) + epsilon) * scale over the last `trailing` axes; the scale is optional (Zhang
    and Sennrich, Root Mean Square Layer Normalization)."""

    trailing: int = 1
    epsilon: float = 1e-6
    cheap = False

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank - self.trailing, rank))

    def infer(self, x: TensorType, *parameters: TensorType) -> TensorType:
        _require_float(self.name, x)
        if not 1 <= self.trailing <= x.rank:
            raise OpTypeError(f"{self.name}: {x!r} does not have {self.trailing} trailing axes")
        if len(parameters) > 1:
            raise OpTypeError(f"{self.name} takes data and a scale, not {1 + len(parameters)} tensors")
        for parameter in parameters:
            _require_parameter(self.name, "scale", x, parameter, x.shape[x.rank - self.trailing :])
        return x

    def evaluate(self, x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        wide = x.astype(dtype_of(x).compute.numpy)
        square = (wide * wide).mean(self._axes(x.ndim), keepdims=True)
        result = wide / np.sqrt(square + wide.dtype.type(self.epsilon))
        for scale in parameters:
            result = result * scale.astype(wide.dtype)
        return result.astype(x.dtype)

    def _normal(self, x: Node) -> tuple[Any, Any]:
        wide = x.cast(x.dtype.compute)
        inverse = (_mean(wide * wide, self._axes(x.rank)) + self.epsilon).rsqrt()
        return wide * inverse, inverse

    def decompose(self, *xs: Node) -> Any:
        x, *parameters = xs
        result, _ = self._normal(x)
        for scale in parameters:
            result = result * scale.cast(result.dtype)
        return result.cast(x.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """(g scale - normal mean(g scale normal)) / root, and sum(g normal) for the scale"""
        x, *parameters = xs
        normal, inverse = self._normal(x)
        wide = scaled = g.cast(normal.dtype)
        for scale in parameters:
            scaled = wide * scale.cast(wide.dtype)
        for_x = inverse * (scaled - normal * _mean(scaled * normal, self._axes(x.rank)))
        leading = range(x.rank - self.trailing)
        for_scale = [(wide * normal).sum(tuple(leading)).cast(p.dtype) for p in parameters]
        return (for_x.cast(x.dtype), *for_scale)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16, bf16):
            yield Sample(cls(), (dtype[3, 5], dtype[5]))
        yield Sample(cls(2, 1e-3), (f64[2, 3, 4], f64[3, 4]))
        yield Sample(cls(1), (f64[2, 3, 4],))
        yield Sample(cls(2), (f64[3, 4], f64[3, 4]))
        yield Sample(cls(1), (bf16[3, 5], f32[5]))


@dataclass(frozen=True)
class LocalResponseNorm(Op):
    """y = x / (base + alpha * mean of x x over `size` neighbouring channels) ** beta; channels are axis 1.

    The mean divides by `size` also at the ends, where there are fewer neighbours; of an even number the
    greater part comes after the channel (Krizhevsky et al., ImageNet Classification with Deep CNNs).
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    base: float = 1.0
    cheap = False

    def infer(self, x: TensorType) -> TensorType:
        _require_float(self.name, x)
        if x.rank < 2 or self.size < 1:
            raise OpTypeError(f"{self.name} takes data with channels along axis 1 and a positive size, not {x!r}")
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        wide = x.astype(dtype_of(x).compute.numpy)
        low = (self.size - 1) // 2
        total = np.zeros_like(wide)
        for channel in range(x.shape[1]):
            near = wide[:, max(channel - low, 0) : channel - low + self.size]
            total[:, channel] = (near * near).sum(1)
        return (wide / (self.base + self.alpha / self.size * total) ** self.beta).astype(x.dtype)

    def decompose(self, *xs: Node) -> Node:
        """The mean over neighbours is an average pooling along the channels."""
        (x,) = xs
        if symbolic.equal(x.type.size, 0) is True:  # a window does not fit an empty axis
            return x
        wide = x.cast(x.dtype.compute)
        batch, channels, *spatial = x.shape
        low = (self.size - 1) // 2
        mean = (wide * wide).reshape((batch, 1, channels, symbolic.product(spatial))).average_pool(
            window=(self.size, 1), strides=(1, 1), padding=((low, self.size - 1 - low), (0, 0)),
            dilation=(1, 1), count_include_pad=True,
        ).reshape(x.shape)  # fmt: skip
        return (wide * (mean * self.alpha + self.base) ** -self.beta).cast(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16):
            yield Sample(cls(3, 0.1), (dtype[2, 5, 2, 3],))
        yield Sample(cls(4, 0.2, 0.5, 2.0), (f64[2, 3, 4],))
        yield Sample(cls(3), (f32[2, 3, 0],))
        yield Sample(cls(1, 0.5), (f64[2, 3],))
