"""Normalisation layers. Batch norm keeps running statistics as buffers, which training updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.frontends.dsl.module import Buffer, Module


def _per_channel(x: Any, values: Any, axis: int = 1) -> Any:
    shape = [1] * x.rank
    shape[axis] = x.shape[axis]
    return x._coerce(values).reshape(*shape)


class BatchNorm(Module):
    """Normalise each channel (axis 1) over the batch and space while training, by running statistics else.

    running = (1 - momentum) * running + momentum * batch statistic; the running variance is the unbiased one.
    """

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        self.epsilon = epsilon
        self.momentum = momentum
        self.scale = np.ones(channels, np.float32) if affine else None
        self.bias = np.zeros(channels, np.float32) if affine else None
        self.running_mean = Buffer(np.zeros(channels, np.float32))
        self.running_variance = Buffer(np.ones(channels, np.float32))

    def forward(self, x: Any) -> Any:
        if self.training:
            axes = tuple(n for n in range(x.rank) if n != 1)
            mean = x.mean(axis=axes)
            centred = x - _per_channel(x, mean)
            variance = (centred * centred).mean(axis=axes)
            self._remember(x, mean.detach(), variance.detach(), axes)
        else:
            mean, variance = x._coerce(self.running_mean), x._coerce(self.running_variance)
            centred = x - _per_channel(x, mean)
        factor = (variance + self.epsilon).rsqrt()
        if self.scale is not None:
            factor = factor * self.scale
        y = centred * _per_channel(x, factor)
        return y if self.bias is None else y + _per_channel(x, self.bias)

    def _remember(self, x: Any, mean: Any, variance: Any, axes: tuple[int, ...]) -> None:
        count: Any = 1
        for axis in axes:
            count = count * x.shape[axis]
        number = variance._coerce(count) if not isinstance(count, int) else float(count)
        unbiased = variance * (
            number / (number - 1.0) if not isinstance(number, float) else number / max(number - 1, 1.0)
        )
        rate = self.momentum
        self.running_mean = x._coerce(self.running_mean) * (1 - rate) + mean * rate
        self.running_variance = x._coerce(self.running_variance) * (1 - rate) + unbiased * rate


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class LayerNorm(Module):
    """Normalise over the last axes, whose extents are `shape`."""

    def __init__(self, shape: int | tuple[int, ...], epsilon: float = 1e-5, bias: bool = True) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.epsilon = epsilon
        self.scale = np.ones(self.shape, np.float32)
        self.bias = np.zeros(self.shape, np.float32) if bias else None

    def forward(self, x: Any) -> Any:
        axes = tuple(range(-len(self.shape), 0))
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = (centred * centred).mean(axis=axes, keepdims=True)
        y = centred * (variance + self.epsilon).rsqrt() * self.scale
        return y if self.bias is None else y + self.bias


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        self.epsilon = epsilon
        self.scale = np.ones(width, np.float32)

    def forward(self, x: Any) -> Any:
        return x * ((x * x).mean(axis=-1, keepdims=True) + self.epsilon).rsqrt() * self.scale


class GroupNorm(Module):
    """Normalise over the channels of each group and space (Wu and He, 2018)."""

    def __init__(self, groups: int, channels: int, epsilon: float = 1e-5, affine: bool = True) -> None:
        if channels % groups:
            raise ValueError(f"{groups} groups do not divide {channels} channels")
        self.groups = groups
        self.epsilon = epsilon
        self.scale = np.ones(channels, np.float32) if affine else None
        self.bias = np.zeros(channels, np.float32) if affine else None

    def forward(self, x: Any) -> Any:
        apart = x.shape[1] == self.groups and x.rank > 2  # channels that are groups may stay last in memory
        grouped = x if apart else x.reshape(x.shape[0], self.groups, -1)
        axes = tuple(range(2, grouped.rank))
        centred = grouped - grouped.mean(axis=axes, keepdims=True)
        variance = (centred * centred).mean(axis=axes, keepdims=True)
        y = (centred * (variance + self.epsilon).rsqrt()).reshape(*x.shape)
        if self.scale is not None:
            y = y * _per_channel(x, self.scale)
        return y if self.bias is None else y + _per_channel(x, self.bias)


class InstanceNorm(GroupNorm):
    """Group norm with one channel per group."""

    def __init__(self, channels: int, epsilon: float = 1e-5, affine: bool = True) -> None:
        super().__init__(channels, channels, epsilon, affine)
