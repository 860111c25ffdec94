"""Ops that move data: the host's form of nodes whose inputs decide where and change from call to call, and of nodes that
move strings."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.frontends.onnx.host import host_op, shape_by_value
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import ML
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


# --- strings --------------------------------------------------------------------------------------------------------------


@host_op("Concat")
def concat(call: Any, *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(xs, _axis(call.get("axis", 1), xs[0].ndim))


@host_op("Flatten")
def flatten(call: Any, x: np.ndarray) -> np.ndarray:
    axis = call.get("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"axis {axis} of {x.ndim} axes")
    axis %= x.ndim + (axis >= 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@host_op("Gather")
def gather(call: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = _axis(call.get("axis", 0), x.ndim)
    return np.take(x, _inside(indices, x.shape[axis]), axis)


@host_op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    return np.take(rows, _inside(indices.ravel(), rows.shape[-1]), -1)


@host_op("GatherElements")
def gather_elements(call: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return x[_along(x, indices, call.get("axis", 0))]


@host_op("GatherND")
def gather_nd(call: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return x[_places(x, indices, call.get("batch_dims", 0))]


@host_op("Scatter", "ScatterElements")
def scatter_elements(call: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _replaced(call, x, _along(x, indices, call.get("axis", 0)), updates)


@host_op("ScatterND")
def scatter_nd(call: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _replaced(call, x, _places(x, indices, 0), updates)


@host_op("OneHot")
def one_hot(call: Any, indices: np.ndarray, depth: np.ndarray, values: np.ndarray) -> np.ndarray:
    count = int(number_of(depth, "the depth of OneHot"))
    axis = _axis(call.get("axis", -1), indices.ndim + 1)
    if values.shape != (2,):
        raise ProblemError(Kind.BAD_SHAPE, f"OneHot: values of the shape {list(values.shape)}; they are two")
    wanted = np.expand_dims(indices.astype(np.int64), axis)  # NumPy compares the other axes with the numbers of this one
    _check_size("OneHot", (*indices.shape, count), values.dtype)
    numbers = np.arange(count).reshape([count if n == axis else 1 for n in range(indices.ndim + 1)])
    return np.where((wanted == numbers) | (wanted + count == numbers), values[1], values[0])


@host_op("ReverseSequence")
def reverse_sequence(call: Any, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    batch, time = _axis(call.get("batch_axis", 1), x.ndim), _axis(call.get("time_axis", 0), x.ndim)
    ordered = np.moveaxis(x, (batch, time), (0, 1)).copy()
    if lengths.shape != ordered.shape[:1]:
        raise ProblemError(Kind.BAD_SHAPE, f"ReverseSequence: {list(lengths.shape)} lengths of {list(x.shape)}")
    for row, length in zip(ordered, lengths.tolist(), strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(ordered, (0, 1), (batch, time))


@host_op("Split")
def split(call: Any, x: np.ndarray, sizes: np.ndarray | None = None) -> list[np.ndarray]:
    axis, count = _axis(call.get("axis", 0), x.ndim), call.output_count
    if sizes is None and call.has("split"):
        sizes = np.array(call.get("split"))
    if sizes is None:  # the last part may be smaller
        part = -(-x.shape[axis] // count)
        sizes = np.array([min(part, max(x.shape[axis] - n * part, 0)) for n in range(count)])
    if sizes.shape != (count,) or sizes.sum() != x.shape[axis] or (sizes < 0).any():
        raise ProblemError(Kind.BAD_SHAPE, f"Split of extent {x.shape[axis]} into {count} parts of {sizes.tolist()}")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@host_op("Squeeze")
def squeeze(call: Any, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    given = call.get("axes", None) if axes is None else axes.reshape(-1).tolist()
    return np.squeeze(x, None if given is None else tuple(given))


@host_op("Unsqueeze")
def unsqueeze(call: Any, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    return np.expand_dims(x, tuple(call.get("axes") if axes is None else axes.reshape(-1).tolist()))


@host_op("Transpose")
def transpose(call: Any, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, call.get("perm", None))


@host_op("Where")
def where(call: Any, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition, x, y)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"axis {axis} of {rank} axes")
    return axis % rank


def _inside(indices: np.ndarray, extent: int) -> np.ndarray:
    """The indices, once they are known to be those of an axis."""
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        wrong = indices[(indices < -extent) | (indices >= extent)].flat[0]
        raise ProblemError(Kind.BAD_VALUE, f"index {wrong} is out of range for an axis of extent {extent}")
    return indices


def _along(x: np.ndarray, indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Where the elements are that an array of indices along one axis names."""
    if indices.ndim != x.ndim:
        raise ProblemError(Kind.BAD_SHAPE, f"{indices.ndim} axes of indices for {x.ndim} axes")
    axis = _axis(axis, x.ndim)
    if any(n != axis and a > b for n, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True))):
        raise ProblemError(Kind.BAD_SHAPE, f"indices {list(indices.shape)} into {list(x.shape)}")
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _inside(indices, x.shape[axis])
    return tuple(places)


def _places(x: np.ndarray, indices: np.ndarray, batched: int) -> tuple[np.ndarray, ...]:
    """Where the slices are that rows of indices name, each row in its own batch."""
    if not indices.ndim:
        raise ProblemError(Kind.BAD_SHAPE, "indices without axes")
    rows = [indices[..., n] for n in range(indices.shape[-1])]
    if batched + len(rows) > x.ndim or batched >= indices.ndim or x.shape[:batched] != indices.shape[:batched]:
        raise ProblemError(Kind.BAD_SHAPE, f"indices {list(indices.shape)} into {list(x.shape)}, {batched} axes of it a batch")
    named = [_inside(row, extent) for row, extent in zip(rows, x.shape[batched:], strict=False)]
    return (*np.indices(indices.shape[:-1], sparse=True)[:batched], *named)


def _replaced(call: Any, x: np.ndarray, places: tuple[np.ndarray, ...], updates: np.ndarray) -> np.ndarray:
    if call.get("reduction", "none") != "none":
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"strings have no reduction {call.get('reduction')!r}")
    made = x.copy()
    made[places] = updates
    return made
