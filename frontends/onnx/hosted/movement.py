"""Ops that move data to where their inputs say: the host's form of nodes whose inputs change from call to call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.frontends.onnx.host import shape_by_value
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.values import number_of


@shape_by_value("Slice")
def slice_(
    call: Any,
    x: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    places: list[slice] = [slice(None)] * x.ndim
    along = np.arange(len(starts)) if axes is None else axes
    every = np.ones(len(starts), np.int64) if steps is None else steps
    for axis, start, end, step in zip(along.tolist(), starts.tolist(), ends.tolist(), every.tolist(), strict=True):
        if not -x.ndim <= axis < x.ndim or step == 0:
            raise ProblemError(Kind.BAD_VALUE, f"Slice of axis {axis} with step {step} of {x.ndim} axes")
        # an end before the first element, going backwards, has no number in Python: it would count from the end
        places[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(places)]


@shape_by_value("Range")
def range_(call: Any, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    first, end, step = (number_of(v, "a bound of Range") for v in (start, limit, delta))
    if step == 0 or not np.isfinite((end - first) / step):
        raise ProblemError(Kind.BAD_VALUE, f"Range from {first} to {end} by {step}")
    count = max(math.ceil((end - first) / step), 0)
    return (np.arange(count, dtype=start.dtype) * start.dtype.type(step) + start.dtype.type(first)).astype(start.dtype)


@shape_by_value("Expand")
def expand(call: Any, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


@shape_by_value("Tile")
def tile(call: Any, x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    return np.tile(x, repeats.tolist())


@shape_by_value("Reshape")
def reshape(call: Any, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    keeps = not call.get("allowzero", 0)
    return x.reshape([x.shape[n] if keeps and extent == 0 else extent for n, extent in enumerate(shape.tolist())])


@shape_by_value("ConstantOfShape")
def constant_of_shape(call: Any, shape: np.ndarray) -> np.ndarray:
    value = np.asarray(call.get("value", np.zeros(1, np.float32)))
    return np.broadcast_to(value.reshape(()), tuple(shape.tolist()))
