"""NumPy's array functions on tensors, with NumPy's names, arguments and defaults.

`ingot.roll(x, 2, axis=1)` and `np.roll(x, 2, axis=1)` are the same function here: `Tensor.__array_function__` finds it
by its name. Elementwise functions are not here; NumPy's ufuncs find their ops by themselves.
Non-goal: functions whose result has a shape that depends on data (np.unique, np.nonzero) are refused with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ingot.compiler.errors import Code, IngotTypeError, IngotValueError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import as_dim, boolean, f32, i64
from ingot.compiler.ops import contraction
from ingot.compiler.ops import movement as _movement
from ingot.compiler.ops.base import Op, OpTypeError
from ingot.frontends.dsl.tensor import ARRAY_FUNCTIONS, Axis, Tensor, as_dtype, first_tensor, promote, tensors_of

Function = Callable[..., Any]


def array_function(function: Function) -> Function:
    """NumPy's function of the same name does this on tensors."""
    ARRAY_FUNCTIONS[function.__name__] = function
    return function


def _tensor(x: Any, name: str) -> Tensor:
    return first_tensor([x], name)


def _axis(x: Tensor, axis: int, name: str) -> int:
    return x._axes(axis, name)[0]


def _complain(x: Tensor, message: str) -> IngotValueError:
    return IngotValueError(Code.OP_ARGUMENTS, message, x.builder.here())


def _same_type(parts: Sequence[Any], name: str) -> list[Tensor]:
    tensors = tensors_of(list(parts), name)
    dtype = tensors[0].dtype
    for tensor in tensors:
        dtype = promote(dtype, tensor.dtype)
    return [t.cast(dtype) for t in tensors]


# --- what tensors have as methods ---------------------------------------------------------------------------


def _method(name: str) -> Function:
    def call(x: Any, *args: Any, **keywords: Any) -> Any:
        return getattr(_tensor(x, name), name)(*args, **keywords)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"The method `{name}` of tensors."
    return array_function(call)


METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "astype", "broadcast_to", "clip", "copy", "cumprod", "cumsum",
    "diagonal", "dot", "expand_dims", "flatten", "full_like", "log_softmax", "logsumexp", "max", "mean", "min", "prod",
    "ravel", "repeat", "reshape", "round", "softmax", "sort", "squeeze", "std", "sum", "swapaxes", "take", "transpose",
    "trace", "tril", "triu", "var",
)  # fmt: skip

for _name in METHODS:  # not names of this module, where most of them would hide Python's own
    _method(_name)
ARRAY_FUNCTIONS["amax"] = ARRAY_FUNCTIONS["max"]
ARRAY_FUNCTIONS["amin"] = ARRAY_FUNCTIONS["min"]
ARRAY_FUNCTIONS["permute_dims"] = ARRAY_FUNCTIONS["transpose"]


# --- choosing and joining -------------------------------------------------------------------------------------


@array_function
def where(condition: Any, yes: Any, no: Any) -> Any:
    """yes where condition holds, else no; all three broadcast."""
    sample = first_tensor([condition, yes, no], "where")
    return sample._coerce(condition).where(yes, no)


@array_function
def concatenate(parts: Sequence[Any], axis: int | None = 0) -> Any:
    """The parts one after the other along an axis; flattened first when it is None."""
    tensors = _same_type(parts, "concatenate")
    if axis is None:
        tensors, axis = [t.ravel() for t in tensors], 0
    return _movement.concat(tensors, _axis(tensors[0], axis, "concatenate"))


ARRAY_FUNCTIONS["concat"] = concatenate


@array_function
def stack(parts: Sequence[Any], axis: int = 0) -> Any:
    """The parts along a new axis."""
    return _movement.stack(_same_type(parts, "stack"), axis)


@array_function
def atleast_1d(x: Tensor) -> Any:
    return x if x.rank else x.reshape(1)


@array_function
def atleast_2d(x: Tensor) -> Any:
    return x if x.rank >= 2 else x.reshape(1, -1)


@array_function
def vstack(parts: Sequence[Any]) -> Any:
    return concatenate([atleast_2d(t) for t in _same_type(parts, "vstack")], 0)


@array_function
def hstack(parts: Sequence[Any]) -> Any:
    tensors = [atleast_1d(t) for t in _same_type(parts, "hstack")]
    return concatenate(tensors, 0 if tensors[0].rank == 1 else 1)


@array_function
def dstack(parts: Sequence[Any]) -> Any:
    tensors = [atleast_2d(t) for t in _same_type(parts, "dstack")]
    # a vector becomes [1, n, 1], a matrix [m, n, 1]
    return concatenate([t if t.rank > 2 else t.expand_dims(-1) for t in tensors], 2)


@array_function
def split(x: Tensor, sections: int | Sequence[Dim], axis: int = 0) -> tuple[Any, ...]:
    """Equal parts, or the parts between the given positions."""
    place = _axis(x, axis, "split")
    extent = x.shape[place]
    if isinstance(sections, int):
        if isinstance(extent, int) and extent % sections:
            raise _complain(x, f"split: {sections} parts do not divide {extent}")
        return _movement.split(x, [extent // sections] * sections, place)
    positions = [*sections]
    if isinstance(extent, int) and all(isinstance(p, int) for p in positions):
        positions = [_position(int(p), extent) for p in positions]  # type: ignore[arg-type]
        positions = [max(positions[: n + 1]) for n in range(len(positions))]  # a part is never less than empty
    bounds = [0, *positions, extent]
    return _movement.split(x, [end - start for start, end in pairwise(bounds)], place)


def _position(given: int, extent: int) -> int:
    return max(given + extent, 0) if given < 0 else min(given, extent)


@array_function
def array_split(x: Tensor, sections: int | Sequence[Dim], axis: int = 0) -> tuple[Any, ...]:
    """As split; parts of unequal size, the longer ones first, when they do not divide the axis."""
    extent = x.shape[_axis(x, axis, "array_split")]
    if not isinstance(sections, int) or not isinstance(extent, int):
        return split(x, sections, axis)
    size, longer = divmod(extent, sections)
    ends = np.cumsum([size + 1] * longer + [size] * (sections - longer))
    return split(x, [int(end) for end in ends[:-1]], axis)


@array_function
def unstack(x: Tensor, axis: int = 0) -> tuple[Any, ...]:
    """The slices along an axis."""
    return tuple(moveaxis(x, axis, 0))


# --- order of axes and elements --------------------------------------------------------------------------------


@array_function
def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    sources = [_axis(x, a, "moveaxis") for a in ([source] if isinstance(source, int) else source)]
    targets = [_axis(x, a, "moveaxis") for a in ([destination] if isinstance(destination, int) else destination)]
    if len(sources) != len(targets):
        raise _complain(x, f"moveaxis: {len(sources)} axes cannot go to {len(targets)} places")
    order = [n for n in range(x.rank) if n not in sources]
    for target, moved in sorted(zip(targets, sources, strict=True)):
        order.insert(target, moved)
    return x.transpose(order)


@array_function
def rollaxis(x: Tensor, axis: int, start: int = 0) -> Any:
    place, target = _axis(x, axis, "rollaxis"), start % (x.rank + 1)
    return moveaxis(x, place, target - (place < target))


@array_function
def flip(x: Tensor, axis: Axis = None) -> Any:
    """Backwards along the axes; along all of them when none is named."""
    return x.apply(_movement.Flip(tuple(sorted(x._axes(axis, "flip")))))


@array_function
def flipud(x: Tensor) -> Any:
    return flip(x, 0)


@array_function
def fliplr(x: Tensor) -> Any:
    return flip(x, 1)


@array_function
def rot90(x: Tensor, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    first, second = (_axis(x, a, "rot90") for a in axes)
    match k % 4:
        case 0:
            return x
        case 1:
            return flip(x, second).swapaxes(first, second)
        case 2:
            return flip(x, (first, second))
        case _:
            return flip(x.swapaxes(first, second), second)


@array_function
def roll(x: Tensor, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Any:
    """Elements move by `shift` places and come in again at the other end."""
    if axis is None:
        return roll(x.ravel(), shift, 0).reshape(x.shape)
    axes = [_axis(x, a, "roll") for a in ([axis] if isinstance(axis, int) else axis)]
    shifts = [shift] * len(axes) if isinstance(shift, int) else [*shift]
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise _complain(x, f"roll: {len(shifts)} shifts for {len(axes)} axes")
    pairs = [*zip(shifts, axes, strict=True)]
    return x.apply(_movement.Roll(tuple(sum(s for s, a in pairs if a == n) for n in range(x.rank))))


@array_function
def tile(x: Tensor, reps: int | Sequence[Dim]) -> Any:
    counts = [reps] if not isinstance(reps, list | tuple) else [*reps]
    rank = max(x.rank, len(counts))
    counts = [1] * (rank - len(counts)) + [as_dim(c) for c in counts]
    return x.reshape(*[1] * (rank - x.rank), *x.shape).apply(_movement.Tile(tuple(counts)))


PAD_MODES = ("constant", "edge", "reflect", "wrap")


@array_function
def pad(x: Tensor, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Any:
    """More elements before and after: one number, (before, after), or a pair for each axis."""
    if mode not in PAD_MODES:
        raise _complain(x, f"pad: mode {mode!r} is not one of {', '.join(PAD_MODES)}")
    if not isinstance(constant_values, int | float):
        raise _complain(x, "pad: constant_values is one number")
    pairs = _pairs(x, pad_width)
    low, high = (tuple(as_dim(pair[side]) for pair in pairs) for side in (0, 1))
    return x.apply(_movement.Pad(low, high, mode, float(constant_values)))  # type: ignore[arg-type]


def _pairs(x: Tensor, width: Any) -> list[tuple[Any, Any]]:
    if not isinstance(width, list | tuple | np.ndarray):
        return [(width, width)] * x.rank
    items = [*width]
    if not any(isinstance(item, list | tuple | np.ndarray) for item in items):
        items = [items]
    pairs = [(item[0], item[-1]) for item in items]
    pairs = pairs * x.rank if len(pairs) == 1 else pairs
    if len(pairs) != x.rank:
        raise _complain(x, f"pad: {len(pairs)} pairs for {x!r}, which has {x.rank} axes")
    return pairs


# --- picking elements -------------------------------------------------------------------------------------------


@array_function
def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Any:
    """One element for each index; the other axes broadcast."""
    data, places = tensors_of([x, indices], "take_along_axis")
    if axis is None:
        return take_along_axis(data.ravel(), places, 0)
    place = _axis(data, axis, "take_along_axis")
    if data.rank != places.rank:
        raise _complain(data, f"take_along_axis: {data!r} and indices {places!r} have different ranks")

    def common(n: int) -> Dim:
        return places.shape[n] if data.shape[n] == 1 else data.shape[n]

    def stretched(t: Tensor) -> Any:
        return t.broadcast_to([t.shape[n] if n == place else common(n) for n in range(t.rank)])

    kind: Any = Op.registry["gather_elements"]
    return stretched(data).apply(kind(axis=place), stretched(places))


@array_function
def diag(x: Tensor, k: int = 0) -> Any:
    """The diagonal of a matrix, or the matrix with this diagonal."""
    if x.rank == 2:
        return x.diagonal(k)
    if x.rank != 1:
        raise _complain(x, f"diag: {x!r} is neither a vector nor a matrix")
    above, below = max(k, 0), max(-k, 0)
    return pad(_movement.from_diagonal(x), ((below, above), (above, below)))


@array_function
def count_nonzero(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    return (x if x.dtype == boolean else x != 0).sum(axis, keepdims=keepdims)


# --- products ----------------------------------------------------------------------------------------------------


@array_function
def matmul(a: Any, b: Any) -> Any:
    left, right = tensors_of([a, b], "matmul")
    return left @ right


@array_function
def einsum(subscripts: str, *operands: Any, optimize: object = None) -> Any:
    """NumPy's einsum. The order of products is the compiler's to choose, whatever `optimize` says."""
    tensors = tensors_of(operands, "einsum")
    try:
        return contraction.einsum(subscripts, *tensors)
    except OpTypeError as error:
        raise IngotTypeError(Code.OP_ARGUMENTS, str(error), tensors[0].builder.here()) from None


@array_function
def outer(a: Any, b: Any) -> Any:
    left, right = tensors_of([a, b], "outer")
    return left.ravel().expand_dims(1) * right.ravel().expand_dims(0)


@array_function
def inner(a: Any, b: Any) -> Any:
    left, right = tensors_of([a, b], "inner")
    return left * right if not (left.rank and right.rank) else tensordot(left, right, (-1, -1))


@array_function
def vdot(a: Any, b: Any) -> Any:
    left, right = tensors_of([a, b], "vdot")
    return left.ravel() @ right.ravel()


@array_function
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """The sum of products over the named axes of both; the last of one and the first of the other for a number."""
    left, right = tensors_of([a, b], "tensordot")
    if isinstance(axes, int):
        axes = ([*range(left.rank - axes, left.rank)], [*range(axes)])
    ours, theirs = (
        [_axis(t, n, "tensordot") for n in ([side] if isinstance(side, int) else side)]
        for t, side in zip((left, right), axes, strict=True)
    )
    if len(ours) != len(theirs):
        raise _complain(left, f"tensordot: {len(ours)} axes of one and {len(theirs)} of the other")
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if left.rank + right.rank > len(letters):
        raise _complain(left, "tensordot: too many axes")
    first = list(letters[: left.rank])
    second = list(letters[left.rank : left.rank + right.rank])
    for mine, other in zip(ours, theirs, strict=True):
        second[other] = first[mine]
    kept = [n for i, n in enumerate(first) if i not in ours] + [n for i, n in enumerate(second) if i not in theirs]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(kept)}", left, right)


# --- sums and statistics -----------------------------------------------------------------------------------------


@array_function
def average(x: Tensor, axis: Axis = None, weights: Any = None, keepdims: bool = False) -> Any:
    if weights is None:
        return x.mean(axis, keepdims=keepdims)
    factor = x._coerce(weights)
    if factor.rank == 1 and x.rank > 1:
        (place,) = x._axes(axis, "average")
        factor = factor.reshape(*(factor.shape[0] if n == place else 1 for n in range(x.rank)))
    factor = factor.broadcast_to(x.shape)
    return (x * factor).sum(axis, keepdims=keepdims) / factor.sum(axis, keepdims=keepdims)


@array_function
def ptp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Any:
    return x.max(axis, keepdims=keepdims) - x.min(axis, keepdims=keepdims)


@array_function
def median(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Any:
    return quantile(x, 0.5, axis, keepdims=keepdims)


@array_function
def quantile(x: Tensor, q: float, axis: int | None = None, keepdims: bool = False) -> Any:
    """The value below which a fraction q lies, linear between neighbours."""
    if not isinstance(q, int | float) or not 0 <= q <= 1:
        raise _complain(x, f"quantile: q is one number from 0 to 1, not {q!r}")
    source = x.ravel() if axis is None else x
    place = _axis(source, 0 if axis is None else axis, "quantile")
    extent = source.shape[place]
    if not isinstance(extent, int):
        raise _complain(x, f"quantile: axis {place} of {x!r} has no fixed length")
    ordered = (source if source.dtype.is_float else source.astype(f32)).sort(place)
    position = q * (extent - 1)
    low = int(position)
    below, above = (_movement.part(ordered, place, n, n + 1) for n in (low, min(low + 1, extent - 1)))
    found = below + (above - below) * (position - low)
    nans = ordered.is_nan().any(place, keepdims=True)
    found = nans.where(float("nan"), found)
    if not keepdims:
        return found.squeeze(place)
    return found if axis is not None else found.reshape(*[1] * x.rank)


@array_function
def diff(x: Tensor, n: int = 1, axis: int = -1) -> Any:
    """Each element less the one before it, n times."""
    place = _axis(x, axis, "diff")
    for _ in range(n):
        extent = x.shape[place]
        later, earlier = _movement.part(x, place, 1, extent), _movement.part(x, place, 0, extent - 1)
        x = later != earlier if x.dtype == boolean else later - earlier
    return x


@array_function
def norm(x: Tensor, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Any:
    """Length of vectors: the square root of the sum of squares, or the 1-, p- or infinity-norm."""
    size = abs(x)
    if ord in (None, 2, "fro"):
        if ord == 2 and axis is None and x.rank > 1:
            raise _complain(x, "norm: the 2-norm of a matrix needs its singular values, which are not computed here")
        return (x * x).sum(axis, keepdims=keepdims).sqrt()
    if x.rank > 1 and not isinstance(axis, int):
        raise _complain(x, f"norm: ord={ord!r} is for vectors; name one axis")
    if ord in (np.inf, -np.inf):
        return size.max(axis, keepdims=keepdims) if ord > 0 else size.min(axis, keepdims=keepdims)
    if ord == 0:
        return (x != 0).astype(x.dtype).sum(axis, keepdims=keepdims)
    if ord == 1:
        return size.sum(axis, keepdims=keepdims)
    return (size**ord).sum(axis, keepdims=keepdims) ** (1 / ord)


@array_function
def searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    """Where each value would be put into a sorted vector."""
    ordered, values = _same_type([a, v], "searchsorted")
    if ordered.rank != 1 or side not in ("left", "right"):
        raise _complain(ordered, "searchsorted: a is a vector, side is 'left' or 'right'")
    spread = values.expand_dims(-1)
    return (ordered < spread if side == "left" else ordered <= spread).astype(i64).sum(-1)


@array_function
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    left, right = _same_type([a, b], "isclose")
    near = (abs(left - right) <= atol + rtol * abs(right)) & right.is_finite()
    result = near | (left == right)
    return result | (left.is_nan() & right.is_nan()) if equal_nan else result


@array_function
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return isclose(a, b, rtol, atol, equal_nan).all()


# --- new tensors --------------------------------------------------------------------------------------------------


@array_function
def zeros_like(x: Tensor, dtype: object = None) -> Any:
    return x.full_like(0, dtype)


@array_function
def ones_like(x: Tensor, dtype: object = None) -> Any:
    return x.full_like(1, dtype)


@array_function
def meshgrid(*vectors: Any, indexing: str = "xy") -> tuple[Any, ...]:
    tensors = tensors_of(vectors, "meshgrid")
    shape = [symbolic.product(t.shape) for t in tensors]
    grids = [
        t.reshape(*(shape[n] if m == n else 1 for m in range(len(shape)))).broadcast_to(shape)
        for n, t in enumerate(tensors)
    ]
    return tuple(g.swapaxes(0, 1) for g in grids) if indexing == "xy" and len(grids) > 1 else tuple(grids)


def full(shape: Sequence[Any], value: Any, like: Tensor, dtype: object = None) -> Any:
    """A constant tensor in the trace of `like`; dims may be symbolic. (For fixed shapes NumPy arrays do too.)"""
    kind = like.dtype if dtype is None else as_dtype(dtype)
    return like.full(tuple(as_dim(d) for d in shape), value, kind)


def arange(count: Dim, like: Tensor, dtype: object = i64) -> Any:
    """0, 1, ... in the trace of `like`; the count may be symbolic."""
    return _movement.iota(like, (as_dim(count),), 0, as_dtype(dtype))
