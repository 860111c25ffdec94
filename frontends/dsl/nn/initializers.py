"""Initial values of parameters. Each takes a shape and a NumPy Generator and gives a float32 array.

`fan_in` and `fan_out` follow the layout of the weights in `nn`: [in, out] for dense layers,
[out, in / groups, *kernel] for convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Initializer = Callable[[Sequence[int], np.random.Generator], np.ndarray]


def fans(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) < 2:
        count = max(1, math.prod(shape))
        return count, count
    if len(shape) == 2:
        return shape[0], shape[1]
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def zeros(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ones(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    return np.ones(shape, np.float32)


def constant(value: float) -> Initializer:
    return lambda shape, generator: np.full(shape, value, np.float32)


def normal(std: float = 0.01) -> Initializer:
    return lambda shape, generator: (std * generator.standard_normal(shape)).astype(np.float32)


def uniform(limit: float) -> Initializer:
    return lambda shape, generator: generator.uniform(-limit, limit, shape).astype(np.float32)


def xavier_uniform(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Glorot and Bengio, 2010: variance 2 / (fan_in + fan_out)."""
    fan_in, fan_out = fans(shape)
    return uniform(math.sqrt(6 / (fan_in + fan_out)))(shape, generator)


def xavier_normal(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    fan_in, fan_out = fans(shape)
    return normal(math.sqrt(2 / (fan_in + fan_out)))(shape, generator)


def he_uniform(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """He et al., 2015: variance 2 / fan_in."""
    return uniform(math.sqrt(6 / fans(shape)[0]))(shape, generator)


def he_normal(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    return normal(math.sqrt(2 / fans(shape)[0]))(shape, generator)


def lecun_normal(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """LeCun et al., 1998: variance 1 / fan_in."""
    return normal(math.sqrt(1 / fans(shape)[0]))(shape, generator)


def orthogonal(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Orthonormal rows or columns (Saxe et al., 2014)."""
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return (q if rows >= columns else q.T).reshape(shape).astype(np.float32)
