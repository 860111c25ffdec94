"""x[...] by NumPy's rules, as slices, reshapes and gathers.

Ints, slices, None and ... are basic; integer tensors, arrays and lists are advanced: they broadcast together and
choose points of their axes. Their common shape stands where they stand when they are neighbours, in front when a
slice, a None or ... separates them; beside an advanced index an int is one of them, as in NumPy. A bool array that
is known now is the positions where it is True; one that is traced has a result whose shape depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.errors import Code, IngotError, IngotTypeError, IngotValueError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr
from ingot.compiler.ir.types import boolean, i64
from ingot.compiler.ops.base import Node, broadcast_shapes
from ingot.compiler.ops.gradient import CheckRange
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Slice


def index(x: Any, key: Any) -> Any:
    items = _items(x, key)
    chosen = [n for n, item in enumerate(items) if _is_advanced(item)]
    basic, places = _basic(x, items)
    if not chosen:
        return basic
    tensors = [_index_tensor(x, items[n]) for n in chosen]
    axes = [places[n] for n in chosen]
    group = [n for n, item in enumerate(items) if _is_advanced(item) or _is_int(item)]
    if group != list(range(group[0], group[-1] + 1)):  # separated: their shape comes first
        others = [n for n in range(basic.rank) if n not in axes]
        basic, axes = Node.transpose(basic, (*axes, *others)), list(range(len(axes)))
    if len(tensors) == 1:
        return basic.apply(Gather(axes[0]), tensors[0])
    return _gather_points(basic, tensors, axes[0])


def _error(x: Any, message: str, hint: str = "", kind: type[IngotError] = IngotTypeError) -> IngotError:
    return kind(Code.BAD_INDEX, message, x.builder.here(), hint)


# --- what stands between the brackets -------------------------------------------------------------


def _items(x: Any, key: Any) -> list[Any]:
    """One item for each axis, and None for each new one."""
    items: list[Any] = []
    for item in key if isinstance(key, tuple) else (key,):
        items += _positions(x, item)
    dots = [n for n, item in enumerate(items) if item is Ellipsis]
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.rank:
        raise _error(x, f"{used} indices for a tensor of rank {x.rank}")
    if len(dots) > 1:
        raise _error(x, "an index has more than one ...")
    at = dots[0] if dots else len(items)
    items = [*items[:at], *[slice(None)] * (x.rank - used), *items[at + 1 :]]
    _check_masks(x, items)
    return items


@dataclass(frozen=True)
class _Mask:
    """The positions of the True elements of a known bool array along one of its axes."""

    positions: np.ndarray
    extent: int


def _positions(x: Any, item: Any) -> list[Any]:
    """The item, or one for each axis of a bool array that is known now."""
    if isinstance(item, list):
        item = np.asarray(item) if item else np.zeros(0, np.int64)
    if not isinstance(item, np.ndarray) or item.dtype != np.bool_ or item.ndim == 0:
        return [item]
    return [_Mask(p, n) for p, n in zip(np.nonzero(item), item.shape, strict=True)]


def _check_masks(x: Any, items: Sequence[Any]) -> None:
    axis = 0
    for item in items:
        if isinstance(item, _Mask) and symbolic.equal(x.shape[axis], item.extent) is not True:
            raise _error(x, f"a bool index of extent {item.extent} for axis {axis} of {x!r}")
        axis += item is not None


def _is_advanced(item: Any) -> bool:
    return isinstance(item, Node | np.ndarray | _Mask)


def _is_int(item: Any) -> bool:
    return isinstance(item, int | np.integer | Expr) and not isinstance(item, bool)


def _index_tensor(x: Any, item: Any) -> Any:
    found = item if isinstance(item, Node) else x.wrap_array(item.positions if isinstance(item, _Mask) else item)
    if found.dtype == boolean:
        raise _error(
            x,
            "a bool mask as index gives a result whose shape depends on data",
            hint="use ingot.where, or multiply by the mask",
        )
    if not found.dtype.is_integer:
        raise _error(x, f"an index is {found.dtype}, not an integer")
    return found


# --- ints, slices and new axes --------------------------------------------------------------------


def _basic(x: Any, items: Sequence[Any]) -> tuple[Any, dict[int, int]]:
    """Apply ints, slices and None; advanced items keep their whole axis. Also where each item's axis is in the
    result."""
    starts, stops, steps, shape = [], [], [], []
    places: dict[int, int] = {}
    axis = 0
    for n, item in enumerate(items):
        if item is None:
            shape.append(1)
            continue
        start, stop, step, keep = _range(x, item, axis, x.shape[axis])
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        if keep:
            places[n] = len(shape)
            first, last = (start, stop) if step > 0 else (stop + 1, start + 1)
            shape.append(symbolic.ceildiv(last - first, abs(step)))
        axis += 1
    parts = zip(starts, stops, steps, x.shape, strict=True)
    whole = all(a == 0 and b == d and s == 1 for a, b, s, d in parts)
    part = x if whole else x.apply(Slice(tuple(starts), tuple(stops), tuple(steps)))
    return Node.reshape(part, tuple(shape)), places


def _range(x: Any, item: Any, axis: int, extent: Dim) -> tuple[Dim, Dim, int, bool]:
    """(start, stop, step, whether the axis stays)"""
    if _is_advanced(item):
        return 0, extent, 1, True
    if isinstance(item, slice):
        return *_slice_range(x, item, extent), True
    if not _is_int(item):
        raise _error(x, f"cannot index with {item!r}")
    place: Dim = item if isinstance(item, Expr) else int(item)
    if isinstance(place, int) and place < 0:
        place = place + extent
    if symbolic.less(place, extent) is False or symbolic.less_equal(0, place) is False:
        raise _error(x, f"index {item} is outside axis {axis} of {x!r}", kind=IngotValueError)
    return place, place + 1, 1, False


def _slice_range(x: Any, item: slice, extent: Dim) -> tuple[Dim, Dim, int]:
    step = 1 if item.step is None else _bound(x, item.step)
    if not isinstance(step, int) or step == 0:
        raise _error(x, f"a slice step is {step}", "steps are integers other than 0", IngotValueError)
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    start, stop = (low, high) if step > 0 else (high, low)
    if item.start is not None:
        start = _clamp(_bound(x, item.start), extent, low, high)
    if item.stop is not None:
        stop = _clamp(_bound(x, item.stop), extent, low, high)
    # an empty part starts where it stops
    stop = symbolic.maximum(start, stop) if step > 0 else symbolic.minimum(start, stop)
    return start, stop, step


def _bound(x: Any, bound: Any) -> Dim:
    if not _is_int(bound):
        raise _error(x, f"a slice bound is {bound!r}, not an int", "use ingot.ops.dynamic_slice for computed starts")
    return bound if isinstance(bound, Expr) else int(bound)


def _clamp(place: Dim, extent: Dim, low: Dim, high: Dim) -> Dim:
    """NumPy's slice bounds: negative counts from the end, beyond the end is the end."""
    if isinstance(place, int) and place < 0:
        place = place + extent
    return symbolic.maximum(low, symbolic.minimum(place, high))


# --- several index tensors ------------------------------------------------------------------------


def _gather_points(x: Any, indices: Sequence[Any], first: int) -> Any:
    """Points of neighbouring axes, the first of which is `first`: one index into the merged axes."""
    shape: tuple[Dim, ...] = ()
    for one in indices:
        shape = broadcast_shapes("index", shape, one.shape)
    after = first + len(indices)
    extents = x.shape[first:after]
    flat: Any = None
    for one, extent in zip(indices, extents, strict=True):
        # each coordinate is checked by itself before it is folded into one index
        position = one.astype(i64).apply(CheckRange(extent))
        flat = position if flat is None else flat * extent + position
    merged = x.reshape(*x.shape[:first], symbolic.product(extents), *x.shape[after:])
    return merged.apply(Gather(first), Node.broadcast_to(flat, shape))
