"""Ordering along an axis: sort, argsort and top_k.

One order for all: a NaN is greater than every number (so it comes last in ascending order, as in NumPy, and
top_k(1) agrees with argmax), and equal elements keep their order. It is total, position included, so results
do not depend on the algorithm.

`top_k` is the primitive: a heap of the k best elements seen so far, kept in the result's own memory, then
sorted in place (Williams, Heapsort). O(n log k) steps and no scratch memory, for any n and k; sorting is the
case k = n. Rows are independent and run in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, If, Let, Statement, Store, While
from ingot.compiler.ir.scalar import Buffer, IndexValue, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import (
    TensorType,
    TupleType,
    bf16,
    boolean,
    dtype_of,
    f16,
    f32,
    f64,
    i32,
    i64,
    u8,
)
from ingot.compiler.ops import nests
from ingot.compiler.ops.base import Condition, Node, Op, OpTypeError, Sample, require

HEAP_LEVELS = 64  # more than any heap that fits in memory has


@dataclass(frozen=True)
class TopK(Op):
    """The k greatest (or least) elements along an axis, best first, and their i64 positions."""

    k: Dim
    axis: int
    largest: bool = True
    cheap = False

    def infer(self, x: TensorType) -> TupleType:
        if not 0 <= self.axis < x.rank:
            raise OpTypeError(f"{self.name}: axis {self.axis} is outside {x!r}")
        require(*self.conditions(x))
        values = x.with_shape((*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :]))
        return TupleType((values, values.with_dtype(i64)))

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        extent = x.shape[self.axis]
        message = f"{self.name}: {self.k} of {extent} elements of {x!r}"
        return Condition(0, "le", self.k, message), Condition(self.k, "le", extent, message)

    def evaluate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k: Any = self.k
        order = np.take(stable_order(x, self.axis, self.largest), range(k), self.axis)
        return np.take_along_axis(x, order, self.axis), order

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        if g[0] is None:
            return (None,)
        zeros = g[0].full(x.shape, 0)
        return (zeros.scatter_elements(y[1], g[0], axis=self.axis, reduction="add"),)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (values, positions), (x,) = outputs, inputs
        outer, extent, inner = nests.around(x.shape, self.axis)
        views = (
            nests.view(values, outer, self.k, inner),
            nests.view(positions, outer, self.k, inner),
            nests.view(x, outer, extent, inner),
        )
        kept, where, source = (v.buffer for v in views)
        if 0 in (outer, inner, self.k):
            return ()

        def row(task: Dim) -> Sequence[Statement]:
            heap = _Heap(kept, where, task // inner, task % inner, self.k, self.largest)
            return _select_best(heap, source, extent)

        rows = outer * inner * symbolic.minimum(self.k, 1)  # a heap of nothing has no root: a symbolic k may be 0
        return (*views, nests.loop(rows, row, "parallel"))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for largest in (True, False):
            for dtype in (f64, f32, f16, bf16, i32):
                yield Sample(cls(3, 1, largest), (dtype[3, 7],), -9, 9)
            yield Sample(cls(4, 0, largest), (f64[4, 2, 3],))
            yield Sample(cls(1, 1, largest), (f64[2, 5, 2],))
            yield Sample(cls(2, 0, largest), (u8[9],), 0, 9)
            yield Sample(cls(5, 1, largest), (_EDGES,), wrt=())
        yield Sample(cls(0, 1), (f32[2, 3],))
        yield Sample(cls(2, 1), (boolean[3, 5],))
        yield Sample(cls(2, 1), (f32[0, 5],))


_EDGES = np.array(
    [[1, np.nan, 3, 3, -np.inf, 1], [np.nan, np.inf, 0, -0.0, np.nan, 0], [2, 2, 2, 2, 2, 2]], np.float32
)


def stable_order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Positions in sorted order, equal elements in their order, NaN greatest."""
    wide = x.astype(dtype_of(x).compute.numpy)
    if not descending:
        return np.argsort(wide, axis, kind="stable").astype(np.int64)
    backwards = np.argsort(np.flip(wide, axis), axis, kind="stable")
    return (x.shape[axis] - 1 - np.flip(backwards, axis)).astype(np.int64)


# --- the heap -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Heap:
    """The first elements of one row of two buffers, (value, position) pairs; every element comes after its
    children in the result's order, so the root is the worst."""

    values: Buffer
    positions: Buffer
    row: Dim
    column: Dim
    size: Dim
    largest: bool

    def at(self, place: Dim | Scalar) -> tuple[Dim, Dim, Dim]:
        if not isinstance(place, int | symbolic.Expr):
            place = scalar.bounded_index(place, self.size, "top_k")
        return self.row, place, self.column

    def value(self, place: Dim | Scalar) -> Scalar:
        return Load(self.values, self.at(place))

    def position(self, place: Dim | Scalar) -> Scalar:
        return Load(self.positions, self.at(place))

    def put(self, place: Dim | Scalar, value: Scalar, position: Scalar) -> tuple[Statement, ...]:
        at = self.at(place)
        return (Store(self.values, at, value), Store(self.positions, at, position))

    def better(self, value: Scalar, position: Scalar, place: Dim | Scalar) -> Scalar:
        """Whether (value, position) comes before the element at a place in the result's order."""
        mine, other = (scalar.cast(v, v.dtype.compute) for v in (value, self.value(place)))
        first, second = (mine, other) if self.largest else (other, mine)
        earlier = scalar.apply("lt", position, self.position(place))
        tied = scalar.apply("not", _greater(second, first))
        return scalar.apply("or", _greater(first, second), scalar.apply("and", tied, earlier))


def _greater(a: Scalar, b: Scalar) -> Scalar:
    plain = scalar.apply("gt", a, b)
    if not a.dtype.is_float:
        return plain
    only_a = scalar.apply("and", scalar.apply("isnan", a), scalar.apply("not", scalar.apply("isnan", b)))
    return scalar.apply("or", plain, only_a)


def _select_best(heap: _Heap, source: Buffer, extent: Dim) -> tuple[Statement, ...]:
    """Fill the heap with the first elements, let each later one replace the root if it is better; sort."""
    size = heap.size

    def load(n: Dim) -> Scalar:
        return Load(source, (heap.row, n, heap.column))

    def replace_root(n: Dim) -> Sequence[Statement]:
        candidate = IndexValue(size + n)
        value = Local("value", source.dtype)
        inside = _sink(heap, 0, size, Read(value), candidate)
        return (Let(value, load(size + n)), If(heap.better(Read(value), candidate, 0), inside))

    def order(n: Dim) -> Sequence[Statement]:
        """Build the heap from its leaves up."""
        return _sink_element(heap, size // 2 - 1 - n, size)

    def extract(n: Dim) -> Sequence[Statement]:
        """The root, the worst that is left, takes the last place; what was there sinks from the top."""
        last = size - 1 - n
        value, position = Local("value", source.dtype), Local("position", i64)
        return (
            Let(value, heap.value(last)),
            Let(position, heap.position(last)),
            *heap.put(last, heap.value(0), heap.position(0)),
            *_sink(heap, 0, last, Read(value), Read(position)),
        )

    return (
        nests.loop(size, lambda n: heap.put(n, load(n), IndexValue(n))),
        nests.loop(size // 2, order),
        nests.loop(extent - size, replace_root),
        nests.loop(size - 1, extract),
    )


def _sink_element(heap: _Heap, place: Dim, size: Dim) -> tuple[Statement, ...]:
    """Let the element at a place sink."""
    value, position = Local("value", heap.values.dtype), Local("position", i64)
    return (
        Let(value, heap.value(place)),
        Let(position, heap.position(place)),
        *_sink(heap, place, size, Read(value), Read(position)),
    )


def _sink(heap: _Heap, start: Dim, size: Dim, value: Scalar, position: Scalar) -> tuple[Statement, ...]:
    """Put (value, position) where it belongs below `start`, in the heap of the first `size` elements: while a
    child is worse, the worse child moves up."""
    hole, going = Buffer("hole", i64, (), "register"), Buffer("going", boolean, (), "register")
    left, child = Local("left", i64), Local("child", i64)
    here = Load(hole, ())
    one, two = scalar.constant(1, i64), scalar.constant(2, i64)
    end = IndexValue(size)
    has_child = scalar.apply("lt", _plus(scalar.apply("mul", here, two), one), end)
    right = _plus(Read(left), one)
    right_worse = scalar.select(
        scalar.apply("lt", right, end),
        heap.better(heap.value(Read(left)), heap.position(Read(left)), right),
        scalar.constant(False, boolean),
    )
    step = (
        Let(left, _plus(scalar.apply("mul", here, two), one)),
        Let(child, _plus(Read(left), scalar.cast(right_worse, i64))),
        If(
            heap.better(value, position, Read(child)),
            (
                *heap.put(here, heap.value(Read(child)), heap.position(Read(child))),
                Store(hole, (), Read(child)),
            ),
            (Store(going, (), scalar.constant(False, boolean)),),
        ),
    )
    return (
        Alloc(hole),
        Alloc(going),
        Store(hole, (), IndexValue(start)),
        Store(going, (), scalar.constant(True, boolean)),
        While(scalar.apply("and", Load(going, ()), has_child), step, HEAP_LEVELS),
        *heap.put(here, value, position),
    )


def _plus(a: Scalar, b: Scalar) -> Scalar:
    return scalar.apply("add", a, b)


# --- sorting --------------------------------------------------------------------------------------


class Sorting(Op, abstract=True):
    axis: int
    descending: bool
    cheap = False

    def infer(self, x: TensorType) -> TensorType:
        if not 0 <= self.axis < x.rank:
            raise OpTypeError(f"{self.name}: axis {self.axis} is outside {x!r}")
        return x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for descending in (False, True):
            for dtype in (f64, f32, bf16, i32):
                yield Sample(cls(1, descending), (dtype[3, 9],), -4, 4)  # type: ignore[call-arg]
            yield Sample(cls(0, descending), (f64[5, 3],))  # type: ignore[call-arg]
            yield Sample(cls(1, descending), (_EDGES,), wrt=())  # type: ignore[call-arg]
            for shape in ((2, 0), (2, 1), (1, 2)):
                yield Sample(cls(1, descending), (f32[shape],))  # type: ignore[call-arg]


@dataclass(frozen=True)
class Sort(Sorting):
    """The elements in order along an axis."""

    axis: int
    descending: bool = False

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        wide = np.sort(x.astype(dtype_of(x).compute.numpy), self.axis, kind="stable").astype(x.dtype)
        return np.flip(wide, self.axis) if self.descending else wide

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        values, _ = x.top_k(k=x.shape[self.axis], axis=self.axis, largest=self.descending)
        return values


@dataclass(frozen=True)
class Argsort(Sorting):
    """The i64 positions of the elements in order along an axis."""

    axis: int
    descending: bool = False
    differentiable = False

    def infer(self, x: TensorType) -> TensorType:
        return super().infer(x).with_dtype(i64)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return stable_order(x, self.axis, self.descending)

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        _, positions = x.top_k(k=x.shape[self.axis], axis=self.axis, largest=self.descending)
        return positions
