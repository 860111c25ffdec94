"""Normalisations."""

from __future__ import annotations

from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.types import MOST_AXES
from ingot.compiler.ops.base import normalize_axis
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op


def _channels(x: Tensor, p: Tensor) -> Any:
    """A vector of numbers per channel as it meets x."""
    return p.cast(x.dtype.compute).reshape(p.type.size, *[1] * (x.rank - 2)) if x.rank > 1 else p.cast(x.dtype.compute)


@onnx_op("BatchNormalization", least_ranks={0: 1})
def batch_normalization(op: Call, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Any:
    """With given statistics, or (training) with those of the batch, which also update the running ones."""
    epsilon = op.get("epsilon", 1e-5)
    training = op.get("training_mode", 0) if op.version >= 14 else (op.version < 7 and not op.get("is_test", 1))
    if not training:
        if op.version < 14 and any(op.wants(n) for n in range(1, 5)):
            op.require(False, Kind.UNSUPPORTED, "training mode before opset 14")
        return _normalized(x, scale, shift, _channels(x, mean), _channels(x, variance), epsilon)
    axes = (0, *range(2, x.rank))
    wide = x.cast(x.dtype.compute)
    average = wide.reduce("mean", axes, True)
    spread = ((wide - average) * (wide - average)).reduce("mean", axes, True)
    momentum = op.get("momentum", 0.9)
    y = _normalized(x, scale, shift, average, spread, epsilon)
    running = [
        (old.cast(x.dtype.compute) * momentum + new.reshape(*old.shape) * (1 - momentum)).cast(old.dtype)
        for old, new in ((mean, average), (variance, spread))
    ]
    return y, *running


def _normalized(x: Tensor, scale: Tensor, shift: Tensor, mean: Any, variance: Any, epsilon: float) -> Any:
    factor = _channels(x, scale) * (variance + epsilon).rsqrt()
    return ((x.cast(x.dtype.compute) - mean) * factor + _channels(x, shift)).cast(x.dtype)


@onnx_op("InstanceNormalization", least_ranks={0: 2})
def instance_normalization(op: Call, x: Tensor, scale: Tensor, shift: Tensor) -> Any:
    return x if x.shape[1] == 0 else grouped(x, x.shape[1], scale, shift, op.get("epsilon", 1e-5))


@onnx_op("GroupNormalization", since=21, least_ranks={0: 2})
def group_normalization(op: Call, x: Tensor, scale: Tensor, shift: Tensor) -> Any:
    return grouped(x, _groups(op, x), scale, shift, op.get("epsilon", 1e-5))


def _groups(op: Call, x: Tensor) -> int:
    """The number of groups, which must divide the channels."""
    groups, channels = op.get("num_groups"), x.shape[1]
    fits = groups > 0 and (not isinstance(channels, int) or channels % groups == 0)
    op.require(fits, Kind.BAD_ATTRIBUTE, f"{groups} groups of {channels} channels")
    return groups


@onnx_op("GroupNormalization", since=18, least_ranks={0: 2}, ranks={1: 1, 2: 1})
def group_normalization_18(op: Call, x: Tensor, scale: Tensor, shift: Tensor) -> Any:
    """Scale and shift are per group here, not per channel."""
    groups = _groups(op, x)
    per_group = x.shape[1] // groups

    def repeated(p: Tensor) -> Any:
        return p.expand_dims(1).broadcast_to((groups, per_group)).reshape(x.shape[1])

    return grouped(x, groups, repeated(scale), repeated(shift), op.get("epsilon", 1e-5))


def grouped(x: Any, groups: Any, scale: Tensor, shift: Tensor, epsilon: float) -> Any:
    """Over the channels of a group and all spatial axes. Channels that are groups need no axis of their own, and without one
    they may stay last in memory."""
    wide, size = x.cast(x.dtype.compute), x.shape[1] // groups
    if size != 1 or x.rank == 2:
        if x.rank == MOST_AXES:  # no tensor has one axis more
            flat = x.reshape(*x.shape[:2], symbolic.product(x.shape[2:]))
            return grouped(flat, groups, scale, shift, epsilon).reshape(*x.shape)
        wide = wide.reshape(x.shape[0], groups, size, *x.shape[2:])
    axes = tuple(range(2, wide.rank))
    centred = wide - wide.reduce("mean", axes, True)
    variance = (centred * centred).reduce("mean", axes, True)
    normal = (centred * (variance + epsilon).rsqrt()).reshape(*x.shape)
    return (normal * _channels(x, scale) + _channels(x, shift)).cast(x.dtype)


@onnx_op("LayerNormalization")
def layer_normalization(op: Call, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Any:
    """The statistics are in the type of stash_type; they are further outputs."""
    axis = normalize_axis(op.get("axis", -1), x.rank, op.name)
    axes = tuple(range(axis, x.rank))
    stash = op.dtype("stash_type", 1)
    wide = x.cast(stash)
    mean = wide.reduce("mean", axes, True)
    centred = wide - mean
    inverse = ((centred * centred).reduce("mean", axes, True) + op.get("epsilon", 1e-5)).rsqrt()
    y = (centred * inverse).cast(x.dtype) * scale
    y = y if shift is None else y + shift
    return y, mean, inverse


@onnx_op("RMSNormalization")
def rms_normalization(op: Call, x: Tensor, scale: Tensor) -> Any:
    axis = normalize_axis(op.get("axis", -1), x.rank, op.name)
    axes = tuple(range(axis, x.rank))
    stash = op.dtype("stash_type", 1)
    wide = x.cast(stash)
    inverse = ((wide * wide).reduce("mean", axes, True) + op.get("epsilon", 1e-5)).rsqrt()
    return (wide * inverse).cast(scale.dtype) * scale


@onnx_op("LpNormalization")
def lp_normalization(op: Call, x: Tensor) -> Any:
    """Divided by the norm along an axis; 0 where the norm is 0."""
    axis = normalize_axis(op.get("axis", -1), x.rank, op.name)
    if op.get("p", 2) == 1:
        norm = x.abs().reduce("sum", (axis,), True)
    else:
        norm = (x * x).reduce("sum", (axis,), True).sqrt()
    return (norm == 0).where(0.0, x / (norm == 0).where(1.0, norm))


@onnx_op("MeanVarianceNormalization")
def mean_variance_normalization(op: Call, x: Tensor) -> Any:
    axes = tuple(normalize_axis(a, x.rank, op.name) for a in op.get("axes", [0, 2, 3]))
    centred = x - x.reduce("mean", axes, True)
    deviation = (centred * centred).reduce("mean", axes, True).sqrt()
    return centred / (deviation + 1e-9)


@onnx_op("LRN", least_ranks={0: 2})
def local_response_normalization(op: Call, x: Tensor) -> Any:
    """y = x / (bias + alpha / size * sum of squares of the neighbouring channels) ^ beta"""
    size = op.get("size")
    op.require(size > 0, Kind.BAD_ATTRIBUTE, f"its size is {size}")
    op.bounded(size, "its size")
    alpha, beta, bias = op.get("alpha", 1e-4), op.get("beta", 0.75), op.get("bias", 1.0)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = (x * x).pad(
        low=(0, before, *[0] * (x.rank - 2)), high=(0, after, *[0] * (x.rank - 2)), mode="constant", value=0.0
    )
    total: Any = None
    for n in range(size):
        part = squares[:, n : n + x.shape[1]]
        total = part if total is None else total + part
    return x / (total * (alpha / size) + bias) ** beta
