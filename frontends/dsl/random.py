"""Random numbers from keys: `ingot.random.normal(key, shape)`.

A key is a u64[2] tensor (seed, offset); what is drawn is a function of the key, the `stream` and the place in the
result alone (compiler/ops/random.py), so the same for any number of threads. Draw twice with one key and stream
and the numbers are the same: take another stream, or make another key with `split`, `fold_in` or `advance`.
Non-goal: no hidden generator. A program that shall draw anew each time keeps its key as a `nn.Buffer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.compiler.errors import Code, IngotTypeError
from ingot.compiler.ir.types import DType, as_dim, f32, i64
from ingot.compiler.ops import random as _random
from ingot.compiler.ops.base import Op
from ingot.frontends.dsl.tensor import Tensor, as_dtype

__all__ = [
    "advance", "bernoulli", "categorical", "dropout", "fold_in", "integers", "key", "normal", "permutation", "split",
    "uniform",
]  # fmt: skip


def key(seed: int) -> np.ndarray:
    """The key of a seed, as an array: give it to a compiled program, or keep it in a `nn.Buffer`."""
    return _random.key_array(seed)


def advance(key: Tensor, steps: int = 1) -> Any:
    """The key for the next time: nothing drawn with one is drawn with the other."""
    return _random.advance(_traced(key, "advance"), steps)


def split(key: Tensor, count: int = 2) -> tuple[Any, ...]:
    """New keys, independent of each other and of what is drawn with the old one."""
    return _random.split(_traced(key, "split"), count)


def fold_in(key: Tensor, number: int | Tensor) -> Any:
    """A new key for each integer: for the steps of a loop or the layers of a model."""
    return _random.fold_in(_traced(key, "fold_in"), number)


def uniform(
    key: Tensor, shape: Sequence[Any], low: float = 0.0, high: float = 1.0, dtype: DType | object = f32, stream: int = 0
) -> Any:
    """From low up to but without high (but for the rounding of the scaling)."""
    drawn = _draw(key, _random.RandomUniform(_shape(shape), as_dtype(dtype), stream))
    return drawn if (low, high) == (0.0, 1.0) else drawn * (high - low) + low


def normal(
    key: Tensor, shape: Sequence[Any], mean: float = 0.0, std: float = 1.0, dtype: DType | object = f32, stream: int = 0
) -> Any:
    drawn = _draw(key, _random.RandomNormal(_shape(shape), as_dtype(dtype), stream))
    return drawn if (mean, std) == (0.0, 1.0) else drawn * std + mean


def integers(
    key: Tensor, shape: Sequence[Any], low: int, high: int, dtype: DType | object = i64, stream: int = 0
) -> Any:
    """Each of low ... high - 1 is as likely."""
    return _draw(key, _random.RandomIntegers(_shape(shape), low, high, as_dtype(dtype), stream))


def bernoulli(key: Tensor, p: Tensor, stream: int = 0) -> Any:
    """True with probability p, elementwise."""
    return _draw(key, _random.Bernoulli(stream), p)


def categorical(key: Tensor, logits: Tensor, stream: int = 0) -> Any:
    """A class with probability softmax(logits), for each row of the last axis."""
    return _draw(key, _random.Categorical(stream), logits)


def permutation(key: Tensor, size: Any, stream: int = 0) -> Any:
    """0 ... size - 1 in random order."""
    return _draw(key, _random.Permutation(as_dim(size), stream))


def dropout(key: Tensor, x: Tensor, rate: float, stream: int = 0) -> Any:
    """x with elements set to 0 with probability `rate`, the others divided by 1 - rate."""
    return _random.dropout(x, _traced(key, "dropout"), rate, stream)


def _shape(shape: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(as_dim(d) for d in shape)


def _traced(key: Any, name: str) -> Tensor:
    if not isinstance(key, Tensor):
        raise IngotTypeError(Code.NO_TENSOR_ARGUMENT, f"ingot.random.{name}: the key is {key!r}, not a traced tensor")
    return key


def _draw(key: Any, op: Op, *others: Tensor) -> Any:
    tensor = key if isinstance(key, Tensor) else _beside(key, op.name, others)
    return tensor.apply(op, *(tensor._coerce(t) for t in others))


def _beside(key: Any, name: str, others: Sequence[Tensor]) -> Tensor:
    """A fixed key, as a constant of the trace that another argument belongs to."""
    for other in others:
        if isinstance(other, Tensor):
            return other.wrap_array(np.asarray(key, np.uint64))
    return _traced(key, name)
