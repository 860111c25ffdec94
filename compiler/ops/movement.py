"""Ops that move elements without computing: parts, borders, joins, reversals; and tensors made from shapes.

Positions are exact: they count from the front and lie inside the tensor. Counting from the end and clamping,
as Python and ONNX do, is for the frontends. Positions and sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.scalar import IndexValue, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, Type, bf16, boolean, f16, f32, f64, i32, i64
from ingot.compiler.ops.base import (
    Condition,
    Node,
    Op,
    OpTypeError,
    Sample,
    first_difference,
    normalize_axes,
    normalize_axis,
    require,
    shape_text,
)

LONGEST_CHAIN = 32  # choices one after another between the arguments of a concatenation

# --- tensors made from shapes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Iota(Op):
    """y[i...] = i[axis]"""

    shape: tuple[Dim, ...]
    axis: int = 0
    dtype: DType = i64
    differentiable = False
    movement = True

    def infer(self, *types: Type) -> TensorType:
        if not 0 <= self.axis < len(self.shape):
            raise OpTypeError(f"iota: axis {self.axis} is outside the shape {shape_text(self.shape)}")
        if self.dtype == boolean:
            raise OpTypeError("iota counts in a float or integer type, not bool")
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> np.ndarray:
        shape: Any = self.shape
        along = np.arange(shape[self.axis]).astype(self.dtype.numpy)
        return np.broadcast_to(along.reshape([-1 if n == self.axis else 1 for n in range(len(shape))]), shape)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return scalar.cast(IndexValue(index[self.axis]), self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (i64, i32, f32, f64, f16, bf16):
            yield Sample(cls((3, 5), 1, dtype), ())
        yield Sample(cls((2, 3, 4), 0), ())
        yield Sample(cls((1, 0), 1), ())


@dataclass(frozen=True)
class Dimension(Op):
    """The value of a dim, as a tensor of rank 0: how a symbolic size enters arithmetic."""

    dim: Dim
    dtype: DType = i64
    differentiable = False
    movement = True

    def infer(self, *types: Type) -> TensorType:
        return TensorType(self.dtype, ())

    def evaluate(self) -> np.ndarray:
        return np.asarray(self.dim).astype(self.dtype.numpy)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return scalar.cast(IndexValue(self.dim), self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (i64, f32, f64, bf16):
            yield Sample(cls(12, dtype), ())


def iota(like: Node, shape: Sequence[Dim], axis: int, dtype: DType = i64) -> Any:
    """An iota in the graph of `like`."""
    return like.wrap(like.builder.emit(Iota(tuple(shape), axis, dtype)))


def dimension(like: Node, dim: Dim, dtype: DType | None = None) -> Any:
    """The value of a dim in the graph of `like`, in its dtype by default; a literal when it is known now."""
    dtype = dtype or like.dtype
    if isinstance(dim, int):
        return like.constant(dim, dtype)
    return like.wrap(like.builder.emit(Dimension(dim, dtype)))


# --- parts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice(Op):
    """y[i] = x[start + i * step] on each axis, up to but without `stop`.

    0 <= start <= stop <= extent; with a negative step the start comes after the stop, and the stop -1 stands
    for the place before the first element.
    """

    starts: tuple[Dim, ...]
    stops: tuple[Dim, ...]
    steps: tuple[int, ...]
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.starts) == len(self.stops) == len(self.steps) == x.rank:
            raise OpTypeError(f"slice: {x!r} wants {x.rank} starts, stops and steps")
        if 0 in self.steps:
            raise OpTypeError(f"slice: the step of axis {self.steps.index(0)} is 0")
        require(*self.conditions(x))
        spans = zip(self._spans(), self.steps, strict=True)
        return x.with_shape(symbolic.ceildiv(last - first, abs(step)) for (first, last), step in spans)

    def _spans(self) -> list[tuple[Dim, Dim]]:
        """The first position and the one after the last, on each axis, counting upwards."""
        parts = zip(self.starts, self.stops, self.steps, strict=True)
        return [(start, stop) if step > 0 else (stop + 1, start + 1) for start, stop, step in parts]

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        found = []
        for axis, ((first, last), extent) in enumerate(zip(self._spans(), x.shape, strict=True)):
            text = f"{self.starts[axis]}:{self.stops[axis]}:{self.steps[axis]}"
            message = f"slice: {text} does not lie inside axis {axis}, of extent {extent}"
            found += [Condition(a, "le", b, message) for a, b in ((0, first), (first, last), (last, extent))]
        return tuple(found)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        def part(start: Any, stop: Any, step: int) -> slice:
            if start == stop:  # also before the first element, where NumPy's -1 would be the last
                return slice(0, 0)
            return slice(start, stop if stop != -1 else None, step)

        return x[tuple(map(part, self.starts, self.stops, self.steps))]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        backwards = tuple(n for n, s in enumerate(self.steps) if s < 0)
        spread = dilate(g.flip(axes=backwards) if backwards else g, tuple(map(abs, self.steps)))
        low = tuple(
            start if step > 0 else start + step * (length - 1)
            for start, step, length in zip(self.starts, self.steps, y.shape, strict=True)
        )
        high = tuple(d - a - b for d, a, b in zip(x.shape, low, spread.shape, strict=True))
        return (pad(spread, low, high),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        parts = zip(self.starts, index, self.steps, strict=True)
        return operands[0](*(start + i * step for start, i, step in parts))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, bf16, i64, boolean):
            yield Sample(cls((1, 0), (3, 5), (1, 1)), (dtype[4, 5],))
        yield Sample(cls((0, 1), (7, 6), (3, 2)), (f64[7, 6],))
        yield Sample(cls((6, 4), (-1, 0), (-1, -2)), (f64[7, 6],))
        yield Sample(cls((5, 0), (1, 1), (-3, 1)), (f64[7, 1],))
        yield Sample(cls((2, 2), (2, 5), (1, 2)), (f64[4, 5],))
        yield Sample(cls((3,), (3,), (-2,)), (f64[5],))
        yield Sample(cls((-1,), (-1,), (-1,)), (f64[5],))


def part(x: Node, axis: int, start: Dim, stop: Dim, step: int = 1) -> Any:
    """x[..., start:stop:step, ...] along one axis; the other axes whole."""
    starts, stops, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], stops[axis], steps[axis] = start, stop, step  # type: ignore[call-overload]
    if tuple(starts) == (0,) * x.rank and tuple(stops) == x.shape and steps[axis] == 1:
        return x
    return x.apply(Slice(tuple(starts), tuple(stops), tuple(steps)))


def split(x: Node, sizes: Sequence[Dim], axis: int) -> tuple[Any, ...]:
    """Consecutive parts of the given sizes along an axis; together they are the whole axis."""
    total: Dim = sum(sizes)  # type: ignore[arg-type]
    message = f"split: the sizes {shape_text(sizes)} add up to {total}; axis {axis} of {x.type!r} is another"
    require(Condition(total, "eq", x.shape[axis], message))
    parts: list[Any] = []
    start: Dim = 0
    for size in sizes:
        parts.append(part(x, axis, start, start + size))
        start = start + size
    return tuple(parts)


@dataclass(frozen=True)
class Dilate(Op):
    """steps[n] - 1 zeros between neighbours along axis n: what undoes a slice with steps."""

    steps: tuple[int, ...]
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        if len(self.steps) != x.rank or any(s < 1 for s in self.steps):
            raise OpTypeError(f"dilate: {x!r} wants {x.rank} positive steps, not {self.steps}")
        lengths = ((d - 1) * s + 1 for d, s in zip(x.shape, self.steps, strict=True))
        return x.with_shape(symbolic.maximum(0, n) for n in lengths)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        shape = tuple(max(0, (d - 1) * s + 1) for d, s in zip(x.shape, self.steps, strict=True))
        result = np.zeros(shape, x.dtype)
        result[tuple(slice(None, None, s) for s in self.steps)] = x
        return result

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        # for an extent that may be 0 the slice's length is x's, but does not look like it
        return (g.apply(Slice((0,) * g.rank, g.shape, self.steps)).reshape(x.shape),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (x,) = operands
        hits = (scalar.predicate(i % s, "eq", 0) for i, s in zip(index, self.steps, strict=True))
        element = x(*(i // s for i, s in zip(index, self.steps, strict=True)))
        return scalar.select(scalar.both(*hits), element, scalar.constant(0, output.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((2, 3)), (f64[3, 4],))
        yield Sample(cls((1, 2)), (f32[3, 1],))
        yield Sample(cls((2, 2)), (f32[0, 2],))
        yield Sample(cls((3,)), (i64[4],))


def dilate(x: Node, steps: Sequence[int]) -> Any:
    return x if all(s == 1 for s in steps) else x.apply(Dilate(tuple(steps)))


# --- borders --------------------------------------------------------------------------------------

PadMode = Literal["constant", "edge", "reflect", "symmetric", "wrap"]


@dataclass(frozen=True)
class Pad(Op):
    """`low` elements more before and `high` more after, on each axis; negative numbers crop.

    constant    v v v v | a b c d | v v v v
    edge        a a a a | a b c d | d d d d
    reflect     c d c b | a b c d | c b a b     the border itself is not repeated
    symmetric   d c b a | a b c d | d c b a
    wrap        a b c d | a b c d | a b c d
    """

    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    mode: PadMode = "constant"
    value: float = 0.0
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        if not len(self.low) == len(self.high) == x.rank:
            raise OpTypeError(f"pad: {x!r} wants {x.rank} numbers before and after")
        if self.mode not in get_args(PadMode):
            raise OpTypeError(f"pad: mode {self.mode!r} is not one of {', '.join(get_args(PadMode))}")
        require(*self.conditions(x))
        for axis, (d, a, b) in enumerate(zip(x.shape, self.low, self.high, strict=True)):
            if self.mode != "constant" and (a, b) != (0, 0) and d == 0:
                raise OpTypeError(f"pad: axis {axis} has no elements to {self.mode}")
        return x.with_shape(d + a + b for d, a, b in zip(x.shape, self.low, self.high, strict=True))

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        return tuple(
            Condition(0, "le", d + a + b, f"pad: {a} and {b} crop more than axis {axis}, which is {d}")
            for axis, (d, a, b) in enumerate(zip(x.shape, self.low, self.high, strict=True))
        )

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        for axis, (extent, low, high) in enumerate(zip(x.shape, self.low, self.high, strict=True)):
            if (low, high) == (0, 0):
                continue
            places = np.arange(extent + low + high) - low  # type: ignore[operator]
            if self.mode != "constant":
                x = np.take(x, [_source(self.mode, int(p), extent) for p in places], axis)
                continue
            filler = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), self.value).astype(x.dtype)
            outside = (places < 0) | (places >= extent)
            x = np.take(np.concatenate((x, filler), axis), np.where(outside, extent, places), axis)
        return x

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """Cropping undoes constant padding and the other way round. The other modes read an element in
        several places: along each axis, the padded positions say where each cotangent goes."""
        (x,) = xs
        if self.mode == "constant":
            return (pad(g, tuple(-a for a in self.low), tuple(-b for b in self.high)),)
        total = g.cast(g.dtype.compute)
        for axis, (extent, low, high) in enumerate(zip(x.shape, self.low, self.high, strict=True)):
            if (low, high) != (0, 0):
                places = iota(g, (extent,), 0).pad(low=(low,), high=(high,), mode=self.mode)
                zeros = total.full((*total.shape[:axis], extent, *total.shape[axis + 1 :]), 0)
                total = zeros.scatter_add(places, total, axis=axis)
        return (total.cast(x.dtype),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (x,) = operands
        places = tuple(i - low for i, low in zip(index, self.low, strict=True))
        if self.mode != "constant":
            return x(*(_source(self.mode, p, d) for p, d in zip(places, x.type.shape, strict=True)))
        inside: list[Scalar] = []
        for place, extent in zip(places, x.type.shape, strict=True):
            inside += (scalar.predicate(place, "ge", 0), scalar.predicate(place, "lt", extent))
        return scalar.select(scalar.both(*inside), x(*places), scalar.constant(self.value, output.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, bf16, i32, boolean):
            yield Sample(cls((1, 0), (0, 2), "constant", 1.0), (dtype[3, 4],))
        yield Sample(cls((-1, 2), (0, -3), "constant", 0.5), (f64[3, 4],))
        yield Sample(cls((1, 2), (0, 1)), (f32[0, 2],))
        for mode in get_args(PadMode)[1:]:
            yield Sample(cls((0, 2), (1, 3), mode), (f64[3, 4],))
            yield Sample(cls((-1, 1), (2, -2), mode), (f64[3, 4],))
            yield Sample(cls((7,), (8,), mode), (f64[3],))
            yield Sample(cls((2,), (3,), mode), (f32[1],))


def _source(mode: PadMode, place: Any, extent: Any) -> Any:
    """The position inside an axis that stands at a place inside or outside of it."""
    last = extent - 1
    match mode:
        case "edge":
            return symbolic.minimum(symbolic.maximum(place, 0), last)
        case "reflect":
            period = 2 * last
            place = place % symbolic.maximum(period, 1)
            return symbolic.minimum(place, period - place)
        case "symmetric":
            place = place % (2 * extent)
            return symbolic.minimum(place, 2 * extent - 1 - place)
        case _:
            return place % extent


def pad(x: Node, low: Sequence[Dim], high: Sequence[Dim], value: float = 0.0) -> Any:
    """Constant padding; x itself when there is none."""
    low, high = tuple(low), tuple(high)
    if all(p == 0 for p in (*low, *high)):
        return x
    return x.apply(Pad(low, high, "constant", value))


# --- joins ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Concat(Op):
    """The arguments, one or more, one after the other along an axis."""

    axis: int
    movement = True

    def infer(self, *types: TensorType) -> TensorType:
        if not types:
            raise OpTypeError("concat needs at least one tensor")
        first = types[0]
        if not 0 <= self.axis < first.rank:
            raise OpTypeError(f"concat: axis {self.axis} is outside a tensor of rank {first.rank}")
        for t in types[1:]:
            if t.dtype != first.dtype:
                raise OpTypeError(f"concat: element types {first.dtype} and {t.dtype} differ; cast one")
            if _without(t.shape, self.axis) != _without(first.shape, self.axis):
                message = f"concat: {first!r} and {t!r} differ in more than axis {self.axis}; only that may differ"
                raise first_difference(message, _without(first.shape, self.axis), _without(t.shape, self.axis))
        total: Dim = sum(t.shape[self.axis] for t in types)  # type: ignore[arg-type, misc]
        return first.with_shape((*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]))

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.concatenate(args, self.axis)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return split(g, [x.shape[self.axis] for x in xs], self.axis)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        """A chain of lazy choices, the first argument outermost; halves of many arguments are chosen between first, because
        whatever looks at scalars goes as deep as they are."""
        position = index[self.axis]
        starts: list[Dim] = [0]
        for read in operands:
            starts.append(starts[-1] + read.type.shape[self.axis])

        def choose(first: int, last: int) -> Scalar:
            if first == last:
                return operands[first](*index[: self.axis], position - starts[first], *index[self.axis + 1 :])
            middle = first if last - first < LONGEST_CHAIN else (first + last) // 2
            here = scalar.predicate(position, "lt", starts[middle + 1])
            if isinstance(here, scalar.Const):
                return choose(first, middle) if here.value else choose(middle + 1, last)
            return scalar.select(here, choose(first, middle), choose(middle + 1, last))

        return choose(0, len(operands) - 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, bf16, i64, boolean):
            yield Sample(cls(1), (dtype[2, 3], dtype[2, 1], dtype[2, 4]))
        yield Sample(cls(0), (f64[2, 3], f64[0, 3], f64[1, 3]))
        yield Sample(cls(1), (f32[2, 2, 3],))
        yield Sample(cls(0), (f32[1],) * 5)


def _without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def concat(parts: Sequence[Node], axis: int) -> Any:
    """The parts along an axis; the part itself when there is only one."""
    first, *others = parts
    return first.apply(Concat(axis), *others) if others else first


def stack(parts: Sequence[Node], axis: int = 0) -> Any:
    """The parts along a new axis."""
    place = normalize_axis(axis, parts[0].rank + 1, "stack")
    return concat([p.expand_dims(place) for p in parts], place)


# --- reversals and repetitions --------------------------------------------------------------------


@dataclass(frozen=True)
class Flip(Op):
    """y[i] = x[extent - 1 - i] along the axes"""

    axes: tuple[int, ...]
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        if normalize_axes(self.axes, x.rank, self.name) != self.axes:
            raise OpTypeError(f"flip: axes {self.axes} must be counted from the front")
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.flip(x, self.axes)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.flip(axes=self.axes),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        shape = output.shape
        return operands[0](*(shape[n] - 1 - i if n in self.axes else i for n, i in enumerate(index)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((1,)), (f64[3, 5],))
        yield Sample(cls((0, 2)), (f32[2, 3, 4],))
        yield Sample(cls((0,)), (i64[0],))
        yield Sample(cls(()), (boolean[3],))


@dataclass(frozen=True)
class Roll(Op):
    """y[i] = x[(i - shift) mod extent], one shift per axis."""

    shifts: tuple[Dim, ...]
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        if len(self.shifts) != x.rank:
            raise OpTypeError(f"roll: {x!r} wants {x.rank} shifts, not {len(self.shifts)}")
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.roll(x, self.shifts, tuple(range(x.ndim)))  # type: ignore[arg-type]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.roll(shifts=tuple(-s for s in self.shifts)),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        parts = zip(index, self.shifts, output.shape, strict=True)
        return operands[0](*(i if s == 0 or d in (0, 1) else (i - s) % d for i, s, d in parts))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((1, -2)), (f64[3, 5],))
        yield Sample(cls((0, 7)), (f32[3, 5],))
        yield Sample(cls((1, 1)), (i32[0, 1],))


@dataclass(frozen=True)
class Tile(Op):
    """The whole tensor repeated `repeats[n]` times along axis n."""

    repeats: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        if len(self.repeats) != x.rank:
            raise OpTypeError(f"tile: {x!r} wants {x.rank} repeats, not {len(self.repeats)}")
        return x.with_shape(d * r for d, r in zip(x.shape, self.repeats, strict=True))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.tile(x, self.repeats)  # type: ignore[arg-type]

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        single: list[Dim] = []
        repeated: list[Dim] = []
        for dim, repeat in zip(x.shape, self.repeats, strict=True):
            single += (dim,) if repeat == 1 else (1, dim)
            repeated += (dim,) if repeat == 1 else (repeat, dim)
        whole = tuple(d * r for d, r in zip(x.shape, self.repeats, strict=True))
        return x.reshape(single).broadcast_to(repeated).reshape(whole)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((2, 3)), (f64[3, 4],))
        yield Sample(cls((1, 2, 1)), (f32[2, 1, 3],))
        yield Sample(cls((0, 2)), (i64[3, 2],))
        yield Sample(cls(()), (f32[()],))


# --- the diagonal ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagonal(Op):
    """y[..., k] = x[..., k, k + offset] of the last two axes (rows shifted instead for a negative offset)."""

    offset: int = 0
    movement = True

    @property
    def _start(self) -> tuple[int, int]:
        return max(-self.offset, 0), max(self.offset, 0)

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 2:
            raise OpTypeError(f"diagonal takes matrices, not {x!r}")
        row, column = self._start
        length = symbolic.minimum(x.shape[-2] - row, x.shape[-1] - column)
        return x.with_shape((*x.shape[:-2], symbolic.maximum(0, length)))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.diagonal(x, self.offset, -2, -1)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        row, _ = self._start
        below = x.shape[-2] - row - g.shape[-1]
        outer = (0,) * (g.rank - 1)
        rows = pad(g, (*outer, row), (*outer, below)).expand_dims(-1).broadcast_to(x.shape)
        return (on_diagonal(rows, self.offset).where(rows, 0.0),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        row, column = self._start
        return operands[0](*index[:-1], index[-1] + row, index[-1] + column)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(), (f64[4, 4],))
        yield Sample(cls(1), (f64[2, 3, 5],))
        yield Sample(cls(-2), (f64[4, 3],))
        yield Sample(cls(5), (f32[2, 3],))


def _rows_and_columns(x: Node) -> tuple[Any, Any]:
    return iota(x, x.shape, x.rank - 2), iota(x, x.shape, x.rank - 1)


def on_diagonal(x: Node, offset: int = 0) -> Any:
    """True where column - row == offset, in the shape of x."""
    row, column = _rows_and_columns(x)
    return column.equals(row + offset)


def tril(x: Node, offset: int = 0) -> Any:
    """x where column - row <= offset, elsewhere 0."""
    row, column = _rows_and_columns(x)
    return (column <= row + offset).where(x, x.full((), 0, x.dtype))


def triu(x: Node, offset: int = 0) -> Any:
    """x where column - row >= offset, elsewhere 0."""
    row, column = _rows_and_columns(x)
    return (column >= row + offset).where(x, x.full((), 0, x.dtype))


def trace(x: Node, offset: int = 0) -> Any:
    """The sum of the diagonal of the last two axes."""
    return x.apply(Diagonal(offset)).sum((-1,))


def from_diagonal(x: Node) -> Any:
    """Square matrices with x on the diagonal and 0 elsewhere."""
    rows = x.expand_dims(-1).broadcast_to((*x.shape, x.shape[-1]))
    return on_diagonal(rows).where(rows, x.full((), 0, x.dtype))
