"""Random numbers.

With a seed and a known shape, the numbers are those of NumPy's RandomState, as in ONNX's reference: part of the
program, the same in every call. Otherwise they come from a counter-based generator whose key is the seed, or
the node's place in the model.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType, boolean, f32, i32
from ingot.compiler.ops.random import RandomNormal, RandomUniform, key_array
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import element_of_dtype
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op

STORED_ELEMENTS = 1 << 20  # more numbers than this are not kept in the program


def _key(op: Call) -> Tensor:
    seed = _seed(op) if op.has("seed") else zlib.crc32("/".join(op.node.output).encode())
    return op.constant(key_array(seed))


def _state(op: Call, shape: tuple[Dim, ...]) -> np.random.RandomState | None:
    static = all(isinstance(d, int) for d in shape)
    if not op.has("seed") or not static or np.prod(shape, dtype=float) > STORED_ELEMENTS:  # type: ignore[arg-type]
        return None
    return np.random.RandomState(_seed(op) % (1 << 32))


def _seed(op: Call) -> int:
    seed = op.get("seed")
    op.require(math.isfinite(seed), Kind.BAD_ATTRIBUTE, f"its seed is {seed}")
    return int(seed)


def uniform(op: Call, shape: tuple[Dim, ...], dtype: DType) -> Any:
    state = _state(op, shape)
    low, high = op.get("low", 0.0), op.get("high", 1.0)
    if state is not None:
        return op.constant(state.uniform(low, high, shape).astype(dtype.numpy))  # type: ignore[arg-type]
    return _key(op).apply(RandomUniform(shape, dtype)) * (high - low) + low


def normal(op: Call, shape: tuple[Dim, ...], dtype: DType) -> Any:
    state = _state(op, shape)
    mean, scale = op.get("mean", 0.0), op.get("scale", 1.0)
    if state is not None:
        return op.constant(state.normal(mean, scale, shape).astype(dtype.numpy))  # type: ignore[arg-type]
    return _key(op).apply(RandomNormal(shape, dtype)) * scale + mean


@onnx_op("RandomUniform")
def random_uniform(op: Call) -> Any:
    return uniform(op, tuple(op.get("shape")), op.dtype("dtype", 1))


@onnx_op("RandomNormal")
def random_normal(op: Call) -> Any:
    return normal(op, tuple(op.get("shape")), op.dtype("dtype", 1))


@onnx_op("RandomUniformLike")
def random_uniform_like(op: Call, x: Tensor) -> Any:
    return uniform(op, x.shape, op.dtype("dtype", element_of_dtype(x.dtype).code))


@onnx_op("RandomNormalLike")
def random_normal_like(op: Call, x: Tensor) -> Any:
    return normal(op, x.shape, op.dtype("dtype", element_of_dtype(x.dtype).code))


@onnx_op("Bernoulli")
def bernoulli(op: Call, x: Tensor) -> Any:
    """1 with the probability that x says."""
    drawn = _key(op).apply(RandomUniform(x.shape, f32))
    return (drawn < x.cast(f32)).cast(op.dtype("dtype", element_of_dtype(x.dtype).code))


@onnx_op("Multinomial", ranks={0: 2})
def multinomial(op: Call, x: Tensor) -> Any:
    """Classes drawn with unnormalised log probabilities x: [batch, sample_size]."""
    count = op.get("sample_size", 1)
    op.require(count >= 0, Kind.BAD_ATTRIBUTE, f"sample_size is {count}")
    wide = x.cast(f32).reshape(x.shape[0], 1, x.shape[1]).broadcast_to((x.shape[0], count, x.shape[1]))
    drawn = _key(op).apply(RandomUniform(wide.shape, f32))
    # the largest of log p - log(-log u) is distributed as the classes (Gumbel)
    noise = -(-(drawn.clip(1e-20, 1.0).log())).clip(1e-20, None).log()
    return (wide + noise).argmax(2).cast(op.dtype("dtype", element_of_dtype(i32).code))


@onnx_op("Dropout", since=12, known=(1, 2))
def dropout(op: Call, x: Tensor, ratio: np.ndarray | None = None, training: np.ndarray | None = None) -> Any:
    rate = 0.5 if ratio is None else float(op.number(ratio, "the ratio"))
    if training is None or not bool(op.number(training, "the mode")) or rate == 0.0:
        return x, x.full(x.shape, True, boolean)
    op.require(0 < rate < 1, Kind.BAD_VALUE, f"the ratio is {rate}")
    state = _state(op, x.shape)
    if state is not None:
        mask = op.constant(state.uniform(0, 1, x.shape) >= rate)  # type: ignore[arg-type]
    else:
        mask = _key(op).apply(RandomUniform(x.shape, f32)) >= rate
    return mask.where(x * (1 / (1 - rate)), 0), mask
