"""Ops that move data to where their inputs say: the host's form of nodes whose inputs change from call to call."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.frontends.onnx.host import shape_by_value
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.values import number_of

MOST_AXES = 64  # of an array of NumPy


@shape_by_value("Slice")
def slice_(
    call: Any,
    x: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    counts = [np.shape(v) for v in (starts, ends, axes, steps) if v is not None]
    if len(set(counts)) != 1 or len(counts[0]) != 1:
        raise ProblemError(Kind.BAD_SHAPE, f"Slice: starts, ends, axes and steps have the shapes {', '.join(map(str, counts))}")
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
    wanted = _extents("Expand", shape)
    try:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, wanted))
    except ValueError:
        raise ProblemError(Kind.BAD_SHAPE, f"Expand of {list(x.shape)} to {list(wanted)}") from None


@shape_by_value("Tile")
def tile(call: Any, x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    each = _extents("Tile", repeats)
    if len(each) != x.ndim:
        raise ProblemError(Kind.BAD_SHAPE, f"Tile: {len(each)} repeats for {x.ndim} axes")
    _check_size("Tile", [a * b for a, b in zip(x.shape, each, strict=True)], x.dtype)
    return np.tile(x, each)


@shape_by_value("Reshape")
def reshape(call: Any, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    keeps = not call.get("allowzero", 0)
    wanted = _integers("Reshape", shape)
    if keeps and any(extent == 0 for extent in wanted[x.ndim :]):
        raise ProblemError(Kind.BAD_SHAPE, f"Reshape of {list(x.shape)} to {wanted}: there is no extent to keep")
    made = [x.shape[n] if keeps and extent == 0 else extent for n, extent in enumerate(wanted)]
    try:
        return x.reshape(made)
    except ValueError:
        raise ProblemError(Kind.BAD_SHAPE, f"Reshape of {list(x.shape)} to {wanted}") from None


@shape_by_value("ConstantOfShape")
def constant_of_shape(call: Any, shape: np.ndarray) -> np.ndarray:
    value = np.asarray(call.get("value", np.zeros(1, np.float32)))
    wanted = _extents("ConstantOfShape", shape)
    _check_size("ConstantOfShape", wanted, value.dtype)
    return np.broadcast_to(number_array(value), wanted)


def number_array(value: np.ndarray) -> np.ndarray:
    if value.size != 1:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"the value has the shape {list(value.shape)}; it is one number")
    return value.reshape(())


def _integers(what: str, values: np.ndarray) -> list[int]:
    """The numbers of an input that is a list of integers."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ProblemError(Kind.BAD_SHAPE, f"{what} is told a shape by {values.dtype}{list(values.shape)}; it is a list of integers")
    return values.tolist()


def _extents(what: str, values: np.ndarray) -> tuple[int, ...]:
    """A shape, or numbers of repetitions: none is negative."""
    found = _integers(what, values)
    if min(found, default=0) < 0:
        raise ProblemError(Kind.BAD_VALUE, f"{what}: an extent is {min(found)}")
    if len(found) > MOST_AXES:
        raise ProblemError(Kind.BAD_SHAPE, f"{what}: {len(found)} axes; there are at most {MOST_AXES}")
    return tuple(found)


def _check_size(what: str, shape: Sequence[int], dtype: np.dtype) -> None:
    """NumPy limits the product of the extents that are not 0, also of an array without elements."""
    if math.prod(extent or 1 for extent in shape) * dtype.itemsize > sys.maxsize:
        raise ProblemError(Kind.TOO_LARGE, f"{what} makes an array of the shape {list(shape)}")
