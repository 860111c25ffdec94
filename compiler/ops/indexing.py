"""Reading and writing at positions that are data: gather, scatter, one-hot, slices with computed starts.

An index may be negative, counting from the end; outside of its axis it is a run-time failure (the dynamic
slices clamp instead, and one_hot gives all `off`). Each scatter is the reverse of a gather, its `reading`:
updates go to the elements that the reading would read, in row-major order of the updates. So with duplicate
indices the last update wins, and sums are the same bits for any number of threads: tasks share no output.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Let, Statement
from ingot.compiler.ir.scalar import BoundedIndex, Buffer, IndexValue, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import (
    DType,
    TensorType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i32,
    i64,
    u8,
    u64,
)
from ingot.compiler.ops import nests
from ingot.compiler.ops.base import Condition, Node, Op, OpTypeError, Sample, require, shape_text
from ingot.compiler.ops.movement import dimension, iota

Reduction = Literal["none", "add", "mul", "max", "min"]


def require_indices(op: str, indices: TensorType) -> None:
    if not indices.dtype.is_integer or indices.dtype == u64:
        raise OpTypeError(f"{op}: indices are {indices.dtype}; use i64 or a narrower integer type")


def require_axis(op: str, axis: int, x: TensorType) -> None:
    if not 0 <= axis < x.rank:
        raise OpTypeError(f"{op}: axis {axis} is outside {x!r}")


def require_elements(op: str, axis: int, data: TensorType, indices: TensorType) -> None:
    if symbolic.equal(data.shape[axis], 0) is True and symbolic.equal(indices.size, 0) is not True:
        raise OpTypeError(f"{op}: axis {axis} of {data!r} has no elements to index")


def place(index: Scalar, extent: Dim, site: str) -> Dim:
    """An index read from data, as a position inside its axis."""
    return scalar.bounded_index(scalar.cast(index, i64), extent, site)


# --- gather ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gather(Op):
    """y[before, i..., after] = data[before, indices[i...], after]: whole slices of an axis, as np.take."""

    axis: int = 0
    rereads = True
    movement = True

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_indices(self.name, indices)
        require_axis(self.name, self.axis, data)
        require_elements(self.name, self.axis, data, indices)
        return data.with_shape((*data.shape[: self.axis], *indices.shape, *data.shape[self.axis + 1 :]))

    def evaluate(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return np.take(data, indices, self.axis)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        data, indices = xs
        wide = g.dtype.compute
        total = g.full(data.shape, 0, wide).scatter_add(indices, g.cast(wide), axis=self.axis)
        return total.cast(data.dtype), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        data, indices = operands
        after = self.axis + indices.type.rank
        chosen = indices(*index[self.axis : after])
        position = place(chosen, data.type.shape[self.axis], f"gather along axis {self.axis}")
        return data(*index[: self.axis], position, *index[after:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = np.array([[0, 2, -1], [1, 1, -4]])
        for dtype in (f64, f32, bf16, i32, boolean):
            yield Sample(cls(0), (dtype[4, 3], rows))
        yield Sample(cls(1), (f64[2, 4, 3], rows))
        yield Sample(cls(1), (f64[2, 4], np.array(3, np.int32)))
        yield Sample(cls(0), (f16[5], np.array([4, 0, 4], np.uint8)))
        yield Sample(cls(0), (f32[0, 2], np.zeros((0,), np.int64)))


@dataclass(frozen=True)
class GatherElements(Op):
    """y[i] = data[i with i[axis] replaced by indices[i]]: one element per index, as np.take_along_axis.

    The indices have the rank of the data and nowhere but along the axis a greater extent.
    """

    axis: int = 0
    rereads = True
    movement = True

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_indices(self.name, indices)
        require_axis(self.name, self.axis, data)
        require_elements(self.name, self.axis, data, indices)
        if indices.rank != data.rank:
            raise OpTypeError(f"{self.name}: indices {indices!r} have another rank than {data!r}")
        require(*self.conditions(data, indices))
        return data.with_shape(indices.shape)

    def conditions(self, data: TensorType, indices: TensorType) -> tuple[Condition, ...]:
        message = f"{self.name}: indices {indices!r} reach outside {data!r} along another axis than {self.axis}"
        pairs = enumerate(zip(indices.shape, data.shape, strict=True))
        return tuple(Condition(a, "le", b, message) for n, (a, b) in pairs if n != self.axis)

    def evaluate(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        index: list[Any] = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
        index[self.axis] = indices.astype(np.int64)
        return data[tuple(index)]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        data, indices = xs
        extent = data.shape[self.axis]
        if indices.shape == (*data.shape[: self.axis], 1, *data.shape[self.axis + 1 :]):
            # one element of each row: a comparison, which fuses with its neighbours, instead of a scatter
            position = indices.cast(i64)
            position = (position < 0).where(position + dimension(position, extent), position)
            chosen = iota(data, data.shape, self.axis).equals(position)
            return chosen.where(g.broadcast_to(data.shape), 0), None
        wide = g.dtype.compute
        zeros = g.full(data.shape, 0, wide)
        total = zeros.scatter_elements(indices, g.cast(wide), axis=self.axis, reduction="add")
        return total.cast(data.dtype), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        data, indices = operands
        site = f"gather of elements along axis {self.axis}"
        position = place(indices(*index), data.type.shape[self.axis], site)
        return data(*index[: self.axis], position, *index[self.axis + 1 :])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        columns = np.array([[0, 2, -1, 2], [1, 1, -3, 0]])
        for dtype in (f64, f32, bf16, i64):
            yield Sample(cls(1), (dtype[2, 3], columns))
        yield Sample(cls(0), (f64[3, 4], columns.astype(np.int32)))
        yield Sample(cls(1), (f64[3, 4], np.array([[3], [-1]])))
        yield Sample(cls(1), (f64[3, 4], np.array([[3], [-1], [0]])))
        yield Sample(cls(0), (f64[3, 2], np.array([[2, -3]])))
        yield Sample(cls(0), (f64[4], np.array([1, 1])))


@dataclass(frozen=True)
class GatherNd(Op):
    """y[batch, i..., rest] = data[batch, indices[batch, i..., :], rest]: the last axis of the indices holds
    one position for each of as many axes of the data."""

    batch_dims: int = 0
    rereads = True
    movement = True

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_indices(self.name, indices)
        batch = self.batch_dims
        if not 0 <= batch < min(data.rank, indices.rank):
            raise OpTypeError(f"{self.name}: {batch} batch dims of {data!r} and {indices!r}")
        if data.shape[:batch] != indices.shape[:batch]:
            raise OpTypeError(f"{self.name}: the batch dims of {data!r} and {indices!r} differ")
        depth = self.depth(indices.shape)
        if batch + depth > data.rank:
            raise OpTypeError(
                f"{self.name}: indices {indices!r} address {depth} axes after {batch} of {data!r}"
            )
        for axis in range(batch, batch + depth):
            require_elements(self.name, axis, data, indices)
        return data.with_shape((*indices.shape[:-1], *data.shape[batch + depth :]))

    def depth(self, shape: Sequence[Dim]) -> int:
        """How many axes of the data the indices of this shape address."""
        if not isinstance(shape[-1], int):
            raise OpTypeError(f"{self.name}: the last axis of indices {shape_text(shape)} must be known")
        return shape[-1]

    def evaluate(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        outer = indices.shape[:-1]
        index: list[Any] = []
        for axis in range(self.batch_dims):
            index.append(np.arange(outer[axis]).reshape([-1 if n == axis else 1 for n in range(len(outer))]))
        index += list(np.moveaxis(indices, -1, 0).astype(np.int64))
        return data[tuple(index)] if index else np.broadcast_to(data, (*outer, *data.shape))

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        data, indices = xs
        wide = g.dtype.compute
        zeros = g.full(data.shape, 0, wide)
        total = zeros.scatter_nd(indices, g.cast(wide), reduction="add", batch_dims=self.batch_dims)
        return total.cast(data.dtype), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        data, indices = operands
        outer = indices.type.rank - 1
        batch = self.batch_dims
        positions = (
            place(indices(*index[:outer], n), data.type.shape[batch + n], f"gather_nd, axis {batch + n}")
            for n in range(self.depth(indices.type.shape))
        )
        return data(*index[:batch], *positions, *index[outer:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for indices, shape, batch in _nd_cases():
            yield Sample(cls(batch), (f64[shape], indices))
        yield Sample(cls(), (i32[3, 2], np.array([[-1, 0], [2, 1]])))


def _nd_cases() -> Iterator[tuple[np.ndarray, tuple[int, ...], int]]:
    """(indices, shape of the data, batch dims), with duplicates and negative ones"""
    yield np.array([[2, 0], [-1, 1], [2, 0]]), (3, 2), 0
    yield np.array([[[1], [0]], [[1], [-2]]]), (2, 3), 0
    yield np.array([[[1], [0]], [[2], [-1]]]), (2, 3, 2), 1
    yield np.array([[[1, 0], [0, 1], [1, -2]]]), (1, 2, 2, 3), 1
    yield np.zeros((2, 0), np.int64), (3, 2), 0


# --- scatter --------------------------------------------------------------------------------------


class Scatter(Op, abstract=True):
    """y = data, with updates written at the places that `reading` reads: by replacing ("none") or by
    combining with what is there."""

    cheap = False

    @property
    def how(self) -> Reduction:
        raise NotImplementedError

    @property
    @abstractmethod
    def reading(self) -> Op: ...

    def infer(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        if self.how not in get_args(Reduction):
            raise OpTypeError(f"{self.name}: {self.how!r} is not one of {', '.join(get_args(Reduction))}")
        if data.dtype == boolean and self.how in ("add", "mul"):
            raise OpTypeError(f"{self.name}: {self.how} is not for bools; use max or min")
        expected = self.reading.infer(data, indices)
        if updates != expected:
            raise OpTypeError(f"{self.name}: updates are {updates!r}, not {expected!r}")
        return data

    def evaluate(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        result = np.array(data, order="C")  # of any other order, `flat` would be a copy
        flat, values = result.reshape(-1), updates.reshape(-1)
        places = self.reading.evaluate(np.arange(data.size).reshape(data.shape), indices).reshape(-1)
        if self.how == "none":
            flat[places] = values
            return result
        combine = getattr(np, _UFUNCS[self.how])
        for position, value in zip(places, values, strict=True):
            flat[position] = combine(flat[position], value)
        return result

    def combined(self, old: Scalar, update: Scalar) -> Scalar:
        if self.how == "none":
            return update
        wide = old.dtype.compute
        both = (scalar.cast(old, wide), scalar.cast(update, wide))
        return scalar.cast(scalar.apply(self.how, *both), old.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        data, indices, updates = xs

        def read(x: Any) -> Any:
            return x.apply(self.reading, indices)

        def put(into: Any, values: Any, how: Reduction) -> Any:
            return into.apply(replace(self, reduction=how), indices, values)  # type: ignore[type-var]

        if not data.dtype.is_float:
            return None, None, None
        gradient = _SCATTER_GRADIENTS[self.how]
        for_data, for_updates = gradient(g, y, data, updates, read, put)
        return for_data, None, for_updates


_UFUNCS = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _gradient_of_none(g: Any, y: Any, data: Any, updates: Any, read: Any, put: Any) -> tuple[Any, Any]:
    """An update counts where it is the last one: numbering the updates tells which."""
    numbers = iota(g, (updates.type.size,), 0).reshape(updates.shape)
    winners = put(g.full(data.shape, -1, i64), numbers, "none")
    won = read(winners).equals(numbers)
    return put(g, updates.full_like(0), "none"), won.where(read(g), 0)


def _gradient_of_add(g: Any, y: Any, data: Any, updates: Any, read: Any, put: Any) -> tuple[Any, Any]:
    return g, read(g)


def _gradient_of_mul(g: Any, y: Any, data: Any, updates: Any, read: Any, put: Any) -> tuple[Any, Any]:
    """The product of the other factors: zeros are counted and left out, so that none is divided by."""
    zero = updates.equals(0)
    zeros = put(data.full_like(0), zero.cast(data.dtype), "add")
    nonzero = zero.where(1, updates)
    rest = put(data, nonzero, "mul")
    others = read(rest) / nonzero
    relevant = read(zeros).equals(zero.cast(data.dtype))  # no zero but, perhaps, this one
    return g * put(data.full_like(1), updates, "mul"), relevant.where(read(g) * others, 0)


def _gradient_of_extreme(g: Any, y: Any, data: Any, updates: Any, read: Any, put: Any) -> tuple[Any, Any]:
    """Equal shares for all that attain the extreme."""
    attains = data.equals(y).cast(g.dtype)
    updates_attain = updates.equals(read(y)).cast(g.dtype)
    share = g / put(attains, updates_attain, "add")
    return attains * share, updates_attain * read(share)


_SCATTER_GRADIENTS: dict[Reduction, Callable[..., tuple[Any, Any]]] = {
    "none": _gradient_of_none, "add": _gradient_of_add, "mul": _gradient_of_mul,
    "max": _gradient_of_extreme, "min": _gradient_of_extreme,
}  # fmt: skip


def checked(index: Scalar, extent: Dim, site: str) -> tuple[Let, Dim]:
    """Check an index once, before the loop that uses it: a Let, and the position."""
    position = Local("place", i64)
    bound = BoundedIndex(scalar.cast(index, i64), extent, site)
    return Let(position, bound), scalar.bounded_index(Read(position), extent, site)


@dataclass(frozen=True)
class ScatterAdd(Scatter):
    """data, plus updates[before, i..., after] at [before, indices[i...], after]: the reverse of gather."""

    axis: int = 0

    @property
    def how(self) -> Reduction:
        return "add"

    @property
    def reading(self) -> Op:
        return Gather(self.axis)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (data, indices, updates) = outputs, inputs
        outer, extent, inner = nests.around(data.shape, self.axis)
        count = symbolic.product(indices.shape)
        views = (
            nests.view(y, outer, extent, inner),
            nests.view(indices, count),
            nests.view(updates, outer, count, inner),
        )
        target, index, source = (v.buffer for v in views)

        def columns(o: Dim, first: Dim, width: Dim, block: int) -> Sequence[Statement]:
            def update(n: Dim) -> Sequence[Statement]:
                check_index, row = checked(Load(index, (n,)), extent, f"scatter_add along axis {self.axis}")

                def column(j: Dim) -> Sequence[Statement]:
                    at = (o, row, first + j)
                    total = self.combined(Load(target, at), Load(source, (o, n, first + j)))
                    return (nests.store(target, total, *at),)

                return (check_index, nests.loop(width, column))

            return (nests.loop(count, update),)

        return (*nests.copy(y, data), *views, *nests.parallel_columns(outer, inner, columns))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = np.array([[0, 2, -1], [1, 1, -4]])
        for dtype in (f64, f32, f16, bf16, i32):
            yield Sample(cls(0), (dtype[4, 3], rows, dtype[2, 3, 3]))
        yield Sample(cls(1), (f64[2, 4, 3], rows, f64[2, 2, 3, 3]))
        yield Sample(cls(1), (f64[2, 4], np.array(3, np.int32), f64[2]))
        yield Sample(cls(0), (f32[3, 2], np.zeros((0,), np.int64), f32[0, 2]))
        yield Sample(cls(0), (f32[3, nests.BLOCK + 7], np.array([1, 0, 1]), f32[3, nests.BLOCK + 7]))


@dataclass(frozen=True)
class ScatterElements(Scatter):
    """data, with updates[i] at [i with i[axis] replaced by indices[i]]: the reverse of gather_elements."""

    axis: int = 0
    reduction: Reduction = "none"

    @property
    def how(self) -> Reduction:
        return self.reduction

    @property
    def reading(self) -> Op:
        return GatherElements(self.axis)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (data, indices, updates) = outputs, inputs
        before, after = indices.shape[: self.axis], indices.shape[self.axis + 1 :]
        outer, count, inner = nests.around(indices.shape, self.axis)
        extent = data.shape[self.axis]
        site = f"scatter_elements along axis {self.axis}"

        def columns(o: Dim, first: Dim, width: Dim, block: int) -> Sequence[Statement]:
            left = nests.unflatten(o, before)

            def element(n: Dim, j: Dim) -> Sequence[Statement]:
                right = nests.unflatten(first + j, after)
                here = (*left, n, *right)
                check_index, position = checked(Load(indices, here), extent, site)
                there = (*left, position, *right)
                value = self.combined(Load(y, there), Load(updates, here))
                return (check_index, nests.store(y, value, *there))

            return (nests.loop(count, lambda n: [nests.loop(width, lambda j: element(n, j))]),)

        return (*nests.copy(y, data), *nests.parallel_columns(outer, inner, columns))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        columns = np.array([[0, 2, -1, 2], [1, 1, -3, 0]])
        for reduction in get_args(Reduction):
            for dtype in (f64, f32, bf16, i32):
                yield Sample(cls(1, reduction), (dtype[2, 3], columns, dtype[2, 4]))
            yield Sample(cls(0, reduction), (f64[3, 2, 2], np.array([[[2], [0]]]), f64[1, 2, 1]))
        yield Sample(cls(0), (boolean[3, 4], columns, boolean[2, 4]))
        yield Sample(cls(0), (f64[4], np.array([1, 1], np.int32), f64[2]))


@dataclass(frozen=True)
class ScatterNd(Scatter):
    """data, with updates[batch, i..., rest] at [batch, indices[batch, i..., :], rest]: the reverse of
    gather_nd."""

    reduction: Reduction = "none"
    batch_dims: int = 0

    @property
    def how(self) -> Reduction:
        return self.reduction

    @property
    def reading(self) -> Op:
        return GatherNd(self.batch_dims)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (data, indices, updates) = outputs, inputs
        start = self.batch_dims
        depth = GatherNd(start).depth(indices.shape)
        batch = symbolic.product(data.shape[:start])
        extents = data.shape[start : start + depth]
        rest = symbolic.product(data.shape[start + depth :])
        count = symbolic.product(indices.shape[start:-1])
        views = (
            nests.view(y, batch, *extents, rest),
            nests.view(indices, batch, count, depth),
            nests.view(updates, batch, count, rest),
        )
        target, index, source = (v.buffer for v in views)

        def columns(o: Dim, first: Dim, width: Dim, block: int) -> Sequence[Statement]:
            def update(n: Dim) -> Sequence[Statement]:
                found = [
                    checked(Load(index, (o, n, k)), extent, f"scatter_nd, axis {start + k}")
                    for k, extent in enumerate(extents)
                ]

                def column(j: Dim) -> Sequence[Statement]:
                    at = (o, *(position for _, position in found), first + j)
                    value = self.combined(Load(target, at), Load(source, (o, n, first + j)))
                    return (nests.store(target, value, *at),)

                return (*(let for let, _ in found), nests.loop(width, column))

            return (nests.loop(count, update),)

        return (*nests.copy(y, data), *views, *nests.parallel_columns(batch, rest, columns))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for indices, shape, batch in _nd_cases():
            updates = (*indices.shape[:-1], *shape[batch + indices.shape[-1] :])
            for reduction in get_args(Reduction):
                yield Sample(cls(reduction, batch), (f64[shape], indices, f64[updates]))
        for dtype in (f32, f16, i64, boolean):
            yield Sample(cls(), (dtype[3, 2], np.array([[2], [0], [2]]), dtype[3, 2]))


# --- one-hot --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneHot(Op):
    """`on` where the position along the new axis equals the index, elsewhere `off`. Indices outside
    [-depth, depth) give `off` everywhere."""

    depth: Dim
    axis: int
    dtype: DType = f32
    on: float = 1
    off: float = 0
    differentiable = False

    def infer(self, indices: TensorType) -> TensorType:
        require_indices(self.name, indices)
        if not 0 <= self.axis <= indices.rank:
            raise OpTypeError(f"one_hot: axis {self.axis} is no place for a new axis of {indices!r}")
        shape = (*indices.shape[: self.axis], self.depth, *indices.shape[self.axis :])
        return TensorType(self.dtype, shape)

    def evaluate(self, indices: np.ndarray) -> np.ndarray:
        depth: Any = self.depth
        wide = np.expand_dims(indices.astype(np.int64), self.axis)
        positions = np.arange(depth).reshape([-1 if n == self.axis else 1 for n in range(wide.ndim)])
        hit = (positions == wide) | (positions - depth == wide)
        return np.where(hit, np.asarray(self.on), np.asarray(self.off)).astype(self.dtype.numpy)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        position = index[self.axis]
        chosen = scalar.cast(operands[0](*index[: self.axis], *index[self.axis + 1 :]), i64)
        front = scalar.apply("eq", chosen, IndexValue(position))
        back = scalar.apply("eq", chosen, IndexValue(position - self.depth))
        on, off = (scalar.constant(v, self.dtype) for v in (self.on, self.off))
        return scalar.select(scalar.apply("or", front, back), on, off)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        indices = np.array([[0, 2, 3], [-1, -4, 4]])
        for dtype in (f32, f16, i64, boolean):
            yield Sample(cls(4, 2, dtype), (indices,))
        yield Sample(cls(4, 0, f64, 0.9, 0.025), (indices.astype(np.int32),))
        yield Sample(cls(3, 1), (np.array([1, 2], np.uint8),))
        yield Sample(cls(3, 0), (np.array(1),))


# --- slices with computed starts ------------------------------------------------------------------


def _start(starts: Reader, axis: int, extent: Dim, size: Dim, op: str) -> Dim:
    """starts[axis], clamped so that `size` elements fit."""
    last = extent - size
    if last == 0:
        return 0
    wanted = scalar.cast(starts(axis), i64)
    clamped = scalar.apply("min", scalar.apply("max", wanted, scalar.constant(0, i64)), IndexValue(last))
    return scalar.bounded_index(clamped, last + 1, f"{op}, axis {axis}")


def _require_starts(op: str, starts: TensorType, data: TensorType, sizes: Sequence[Dim]) -> None:
    require_indices(op, starts)
    if starts.shape != (data.rank,):
        raise OpTypeError(f"{op}: {data!r} wants {data.rank} starts, not {starts!r}")
    if len(sizes) != data.rank:
        raise OpTypeError(f"{op}: {data!r} wants {data.rank} sizes, not {shape_text(sizes)}")
    require(*_slice_fits(op, data, sizes))


def _slice_fits(op: str, data: TensorType, sizes: Sequence[Dim]) -> tuple[Condition, ...]:
    message = f"{op}: {shape_text(sizes)} does not fit {data!r}"
    return tuple(Condition(size, "le", extent, message) for size, extent in zip(sizes, data.shape, strict=True))


def _clamped(starts: np.ndarray, shape: Sequence[int], sizes: Sequence[Any]) -> tuple[slice, ...]:
    wanted = (int(s) for s in starts)
    first = (min(max(s, 0), d - n) for s, d, n in zip(wanted, shape, sizes, strict=True))
    return tuple(slice(a, a + n) for a, n in zip(first, sizes, strict=True))


@dataclass(frozen=True)
class DynamicSlice(Op):
    """data[starts[0] : starts[0] + sizes[0], ...]; the starts are data, clamped so that the slice fits."""

    sizes: tuple[Dim, ...]
    movement = True

    def infer(self, data: TensorType, starts: TensorType) -> TensorType:
        _require_starts(self.name, starts, data, self.sizes)
        return data.with_shape(self.sizes)

    def conditions(self, data: TensorType, starts: TensorType) -> tuple[Condition, ...]:
        return _slice_fits(self.name, data, self.sizes)

    def evaluate(self, data: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return data[_clamped(starts, data.shape, self.sizes)]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        data, starts = xs
        return g.full(data.shape, 0).dynamic_update_slice(g, starts), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        data, starts = operands
        parts = enumerate(zip(index, data.type.shape, self.sizes, strict=True))
        return data(*(i + _start(starts, axis, d, size, self.name) for axis, (i, d, size) in parts))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for starts in ([1, 0], [7, -3]):
            yield Sample(cls((2, 3)), (f64[4, 5], np.array(starts)))
        yield Sample(cls((2, 5)), (bf16[4, 5], np.array([1, 3], np.int32)))
        yield Sample(cls((0, 5)), (i64[4, 5], np.array([4, 0])))


@dataclass(frozen=True)
class DynamicUpdateSlice(Op):
    """data with `update` in place of the part that dynamic_slice would read."""

    movement = True

    def infer(self, data: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        if update.dtype != data.dtype:
            raise OpTypeError(f"{self.name}: the update is {update.dtype}, the data {data.dtype}; cast one")
        _require_starts(self.name, starts, data, update.shape)
        return data

    def conditions(self, data: TensorType, update: TensorType, starts: TensorType) -> tuple[Condition, ...]:
        return _slice_fits(self.name, data, update.shape)

    def evaluate(self, data: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
        result = np.array(data)
        result[_clamped(starts, data.shape, update.shape)] = update
        return result

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        _, update, starts = xs
        zeros = g.full(update.shape, 0)
        return g.dynamic_update_slice(zeros, starts), g.dynamic_slice(starts, sizes=update.shape), None

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        data, update, starts = operands
        sizes = update.type.shape
        places = tuple(
            i - _start(starts, axis, d, size, self.name)
            for axis, (i, d, size) in enumerate(zip(index, output.shape, sizes, strict=True))
        )
        inside: list[Scalar] = []
        for position, size in zip(places, sizes, strict=True):
            inside += (scalar.predicate(position, "ge", 0), scalar.predicate(position, "lt", size))
        return scalar.select(scalar.both(*inside), update(*places), data(*index))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for starts in ([1, 0], [7, -3]):
            yield Sample(cls(), (f64[4, 5], f64[2, 3], np.array(starts)))
        yield Sample(cls(), (f16[4, 5], f16[2, 5], np.array([1, 3], np.int32)))
        yield Sample(cls(), (u8[4], u8[0], np.array([2])))
        yield Sample(cls(), (f32[2, 2], f32[2, 2], np.array([2, -1])))
