"""Scalar functions on arrays, with results of exactly the type that the expression states."""

from __future__ import annotations

import numpy as np

from ingot.compiler.ir.scalar import COMBINERS, FUNCTIONS, Combiner, Function, identity_of
from ingot.compiler.ir.types import DType

_UFUNCS: dict[Combiner, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.bitwise_or, "all": np.bitwise_and,
}  # fmt: skip


def apply_function(function: Function, dtype: DType, args: list[np.ndarray]) -> np.ndarray:
    """The function of the arguments as an array of `dtype`: NumPy widens some results, the IR never does."""
    return np.asarray(function.evaluate(*args)).astype(dtype.numpy, copy=False)


def combine(combiner: Combiner, dtype: DType, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return apply_function(FUNCTIONS[COMBINERS[combiner]], dtype, [left, right])


def reduce_leading(combiner: Combiner, dtype: DType, values: np.ndarray, axes: int) -> np.ndarray:
    """Combine over the first `axes` axes, in order, starting from the neutral element."""
    start = neutral(combiner, dtype)
    if 0 in values.shape[:axes]:
        return np.broadcast_to(start, values.shape[axes:])
    flat = values.reshape(-1, *values.shape[axes:])
    # reducing the leading axis adds row after row: the order of a plain loop
    return np.asarray(_UFUNCS[combiner].reduce(flat, axis=0, dtype=dtype.numpy, initial=start[()]))


def neutral(combiner: Combiner, dtype: DType) -> np.ndarray:
    return np.asarray(identity_of(combiner, dtype), dtype.numpy)


def bitcast_array(values: np.ndarray, dtype: DType) -> np.ndarray:
    return np.array(values, order="C").view(dtype.numpy)
