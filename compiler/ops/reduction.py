"""Reductions over axes (which the result drops), positions of extremes, and running sums and products.

Sums and products of f16 and bf16 are accumulated in f32 and rounded once. A reduction over no elements gives
the neutral element: 0, 1, the least or greatest value, False or True.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ingot.compiler.ir import scalar, symbolic, tensor
from ingot.compiler.ir.loops import Alloc, Let, Statement
from ingot.compiler.ir.scalar import COMBINERS, FUNCTIONS, Buffer, Combiner, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, bf16, boolean, dtype_of, f16, f32, f64, i32, i64, u8
from ingot.compiler.ops import nests
from ingot.compiler.ops.base import (
    Node,
    Op,
    OpTypeError,
    Sample,
    in_compute_type,
    normalize_axes,
)
from ingot.compiler.ops.elementwise import same_types
from ingot.compiler.ops.movement import dimension, iota


class Reduction(Op, abstract=True):
    """y[kept] = combine(x[kept, reduced] for every reduced index). `axes` are sorted and not negative."""

    axes: tuple[int, ...]
    combiner: ClassVar[Combiner]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self.name, self.axes, x)
        kinds = ("bool",) if self.combiner in ("any", "all") else FUNCTIONS[COMBINERS[self.combiner]].kinds
        if x.dtype.kind not in kinds:
            raise OpTypeError(f"{self.name} takes {' or '.join(kinds)} tensors, not {x.dtype}")
        return drop_axes(x, self.axes)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        ufunc = getattr(np, _UFUNCS[self.combiner])
        initial = scalar.identity_of(self.combiner, dtype_of(x))

        def reduce(array: np.ndarray) -> np.ndarray:
            return np.asarray(ufunc.reduce(array, axis=self.axes, dtype=array.dtype, initial=initial))

        return in_compute_type(reduce, dtype_of(x))(x)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (x,) = operands
        if not self.axes:
            return x(*index)

        def body(*reduced: Dim) -> Scalar:
            element = x(*merge_index(index, reduced, self.axes))
            return scalar.cast(element, element.dtype.compute)

        extents = tuple(x.type.shape[a] for a in self.axes)
        return scalar.cast(tensor.reduction(self.combiner, extents, body), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        logical = cls.combiner in ("any", "all")
        for dtype in (boolean,) if logical else (f64, f32, f16, bf16, i32, u8):
            yield Sample(cls((1,)), (dtype[3, 5],), 0 if dtype == u8 else -2, 2)  # type: ignore[call-arg]
        dtype = boolean if logical else f64
        cases = (((0, 2), (3, 4, 2)), ((0, 1), (2, 3)), ((0,), (3, 1)), ((), (2, 3)), ((1,), (2, 0)))
        for axes, shape in cases:
            wrt = () if 0 in shape else None  # the least value is no place for differences
            yield Sample(cls(axes), (dtype[shape],), wrt=wrt)  # type: ignore[call-arg]


_UFUNCS: dict[Combiner, str] = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum",
    "any": "logical_or", "all": "logical_and",
}  # fmt: skip


def require_axes(op: str, axes: Sequence[int], x: TensorType) -> None:
    if tuple(sorted(normalize_axes(axes, x.rank, op))) != tuple(axes):
        raise OpTypeError(f"{op}: axes {tuple(axes)} must be sorted and counted from the front")


def drop_axes(x: TensorType, axes: Sequence[int]) -> TensorType:
    return x.with_shape(d for n, d in enumerate(x.shape) if n not in axes)


def keep_axes(x: Node, y: Any, axes: Sequence[int]) -> Any:
    """A result of reducing x over the axes, with those axes put back as 1."""
    return y.reshape(tuple(1 if n in axes else d for n, d in enumerate(x.shape)))


def merge_index(index: Sequence[Dim], reduced: Sequence[Dim], axes: Sequence[int]) -> tuple[Dim, ...]:
    kept, gone = iter(index), iter(reduced)
    return tuple(next(gone) if n in axes else next(kept) for n in range(len(index) + len(reduced)))


@dataclass(frozen=True)
class Sum(Reduction):
    axes: tuple[int, ...]
    combiner = "sum"

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        return (keep_axes(x, g, self.axes).broadcast_to(x.shape),)


@dataclass(frozen=True)
class Prod(Reduction):
    axes: tuple[int, ...]
    combiner = "prod"

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """The product of the others, as what comes before times what comes after: right also at zeros."""
        (x,) = xs
        kept = tuple(n for n in range(x.rank) if n not in self.axes)
        perm = (*kept, *self.axes)
        moved = x.transpose(perm)
        row = moved.reshape((*y.shape, symbolic.product(x.shape[a] for a in self.axes)))
        last = len(kept)
        before = row.cumprod(axis=last, exclusive=True)
        after = row.cumprod(axis=last, exclusive=True, reverse=True)
        others = (before * after).reshape(moved.shape)
        back = tuple(sorted(range(x.rank), key=perm.__getitem__))
        return (keep_axes(x, g, self.axes) * others.transpose(back),)


class Extreme(Reduction, abstract=True):
    """max and min: NaN wins, and ties share the gradient equally."""

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        wide = x.dtype.compute  # f16 and bf16 cannot count far
        chosen = x.equals(keep_axes(x, y, self.axes)).cast(wide)
        share = g.cast(wide) / chosen.sum(self.axes)
        return ((chosen * keep_axes(x, share, self.axes)).cast(x.dtype),)


@dataclass(frozen=True)
class Max(Extreme):
    axes: tuple[int, ...]
    combiner = "max"


@dataclass(frozen=True)
class Min(Extreme):
    axes: tuple[int, ...]
    combiner = "min"


@dataclass(frozen=True)
class AnyTrue(Reduction):
    axes: tuple[int, ...]
    name = "any"
    combiner = "any"
    differentiable = False


@dataclass(frozen=True)
class AllTrue(Reduction):
    axes: tuple[int, ...]
    name = "all"
    combiner = "all"
    differentiable = False


# --- statistics -----------------------------------------------------------------------------------


class Statistic(Op, abstract=True):
    """A float reduction made of simpler ones, computed in the compute type throughout."""

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self.name, self.axes, x)
        if not x.dtype.is_float:
            raise OpTypeError(f"{self.name} takes float tensors, not {x.dtype}; cast it")
        return drop_axes(x, self.axes)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        def reduce(array: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return np.asarray(self.meaning(array), array.dtype)

        return in_compute_type(reduce, dtype_of(x))(x)

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        return self.formula(x.cast(x.dtype.compute)).cast(x.dtype)

    def meaning(self, x: np.ndarray) -> Any:
        raise NotImplementedError

    def formula(self, x: Node) -> Any:
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16, bf16):
            yield Sample(cls((1,)), (dtype[3, 5],))  # type: ignore[call-arg]
        for axes, shape in (((0, 2), (3, 4, 2)), ((0, 1), (2, 3)), ((), (2, 3)), ((0,), (3, 0))):
            yield Sample(cls(axes), (f64[shape],))  # type: ignore[call-arg]


def reduced_count(x: Node, axes: Sequence[int]) -> Dim:
    """How many elements of x go into one element of a reduction over the axes."""
    return symbolic.product(x.shape[a] for a in axes)


@dataclass(frozen=True)
class Mean(Statistic):
    """The sum divided by the number of elements; NaN for none."""

    axes: tuple[int, ...]

    def meaning(self, x: np.ndarray) -> Any:
        return np.divide(x.sum(self.axes), math.prod(x.shape[a] for a in self.axes))

    def formula(self, x: Node) -> Any:
        return x.sum(self.axes) / dimension(x, reduced_count(x, self.axes))


@dataclass(frozen=True)
class Var(Statistic):
    """The sum of squared distances from the mean, divided by (number of elements - correction)."""

    axes: tuple[int, ...]
    correction: int = 0

    def meaning(self, x: np.ndarray) -> Any:
        count = math.prod(x.shape[a] for a in self.axes)
        distance = x - np.divide(x.sum(self.axes, keepdims=True), count)
        return np.divide((distance * distance).sum(self.axes), max(count - self.correction, 0))

    def formula(self, x: Node) -> Any:
        count = reduced_count(x, self.axes)
        mean = keep_axes(x, x.sum(self.axes), self.axes) / dimension(x, count)
        distance = x - mean
        divisor = symbolic.maximum(count - self.correction, 0)
        return (distance * distance).sum(self.axes) / dimension(x, divisor)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """2 (x - mean) / (count - correction): what flows through the mean adds up to zero."""
        (x,) = xs
        wide = x.cast(x.dtype.compute)
        count = reduced_count(x, self.axes)
        distance = wide - keep_axes(x, wide.sum(self.axes), self.axes) / dimension(wide, count)
        scale = 2.0 / dimension(wide, symbolic.maximum(count - self.correction, 0))
        return ((keep_axes(x, g.cast(wide.dtype) * scale, self.axes) * distance).cast(x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(cls((0,), 1), (f64[4, 3],))
        yield Sample(cls((0,), 1), (f32[1, 3],), wrt=())


@dataclass(frozen=True)
class Logsumexp(Statistic):
    """log(sum(exp(x))) without overflow; -inf where every element is -inf."""

    axes: tuple[int, ...]

    def meaning(self, x: np.ndarray) -> Any:
        return np.logaddexp.reduce(x, self.axes) if self.axes else x

    def formula(self, x: Node) -> Any:
        greatest = x.reduce("max", self.axes, keepdims=True)
        shift = greatest.is_inf().where(0.0, greatest)
        total = (x - shift).exp().sum(self.axes)
        return total.log() + shift.reshape(total.shape)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """softmax(x), and 0 where every element is -inf."""
        (x,) = xs
        wide, result = x.cast(x.dtype.compute), y.cast(x.dtype.compute)
        shift = result.equals(-np.inf).where(0.0, result)
        weight = (wide - keep_axes(x, shift, self.axes)).exp()
        return ((weight * keep_axes(x, g.cast(wide.dtype), self.axes)).cast(x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        edges = [[-np.inf] * 3, [np.inf, 1, 2], [-np.inf, 1e4, 1e4], [np.nan, 1, np.inf], [-1e4, -np.inf, 1]]
        yield Sample(cls((1,)), (np.array(edges, np.float32),), wrt=())


# --- positions of extremes ------------------------------------------------------------------------


class Position(Op, abstract=True):
    """The i64 position of the extreme along an axis (which the result drops): the first of several equal
    ones, or the last with `keep_last`. A NaN beats everything, as in NumPy."""

    axis: int
    keep_last: bool
    differentiable = False
    extreme: ClassVar[str]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self.name, (self.axis,), x)
        if symbolic.equal(x.shape[self.axis], 0) is True:
            raise OpTypeError(f"{self.name}: axis {self.axis} of {x!r} has no elements to choose from")
        return drop_axes(x, (self.axis,)).with_dtype(i64)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        wide = x.astype(dtype_of(x).compute.numpy)
        find = np.argmax if self.extreme == "max" else np.argmin
        if not self.keep_last:
            return np.asarray(find(wide, self.axis), np.int64)
        return np.asarray(x.shape[self.axis] - 1 - find(np.flip(wide, self.axis), self.axis), np.int64)

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        extent = x.shape[self.axis]
        best = x.equals(x.reduce(self.extreme, (self.axis,), keepdims=True))
        if x.dtype.is_float:
            best = best | x.is_nan()
        position = iota(x, x.shape, self.axis, i64)
        if self.keep_last:
            return best.where(position, -1).reduce("max", (self.axis,))
        return best.where(position, dimension(x, extent, i64)).reduce("min", (self.axis,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ties = np.array([[1, 3, 3, -2, -2], [0, 0, 0, 0, 0], [5, 1, 5, 1, 3]], np.float32)
        nans = np.array([[1, np.nan, 3, np.nan], [np.inf, 1, np.nan, -np.inf], [-0.0, 0.0, -0.0, 0.0]])
        for keep_last in (False, True):
            for dtype in (f32, f64, f16, bf16, i32, u8, boolean):
                args = (dtype[3, 5],)
                yield Sample(cls(1, keep_last), args, 0 if dtype == u8 else -2, 2)  # type: ignore[call-arg]
            for array in (ties, nans, nans.astype(np.float32)):
                yield Sample(cls(1, keep_last), (array,))  # type: ignore[call-arg]
            yield Sample(cls(0, keep_last), (f32[3, 0],))  # type: ignore[call-arg]
            yield Sample(cls(1, keep_last), (i64[2, 3, 4],))  # type: ignore[call-arg]


@dataclass(frozen=True)
class Argmax(Position):
    axis: int
    keep_last: bool = False
    extreme = "max"


@dataclass(frozen=True)
class Argmin(Position):
    axis: int
    keep_last: bool = False
    extreme = "min"


# --- running sums and products --------------------------------------------------------------------


class Cumulative(Op, abstract=True):
    """y[k] = combine(x[i] for i <= k), or i < k with `exclusive`; from the other end with `reverse`."""

    axis: int
    exclusive: bool
    reverse: bool
    combiner: ClassVar[Combiner]
    cheap = False

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self.name, (self.axis,), x)
        if x.dtype.kind == "bool":
            raise OpTypeError(f"{self.name} takes float or integer tensors, not bool; cast it")
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        accumulate = getattr(np, _UFUNCS[self.combiner]).accumulate
        neutral = scalar.identity_of(self.combiner, dtype_of(x))

        def run(array: np.ndarray) -> np.ndarray:
            along = np.moveaxis(array, self.axis, 0)[:: -1 if self.reverse else 1]
            if self.exclusive:
                along = np.concatenate((np.full_like(along[:1], neutral), along[:-1]))
            total = accumulate(along, axis=0, dtype=along.dtype)[:: -1 if self.reverse else 1]
            return np.moveaxis(total, 0, self.axis)

        return in_compute_type(run, dtype_of(x))(x)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (x,) = outputs, inputs
        neutral = scalar.constant(scalar.identity_of(self.combiner, x.dtype.compute), x.dtype.compute)

        def step(carry: Scalar, element: Scalar) -> tuple[Scalar, Scalar]:
            total = scalar.apply(COMBINERS[self.combiner], carry, element)
            return total, carry if self.exclusive else total

        return scan_along(self.axis, self.reverse, y, (x,), neutral, step)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for exclusive in (False, True):
            for reverse in (False, True):
                yield Sample(cls(1, exclusive, reverse), (f64[2, 5, 3],))  # type: ignore[call-arg]
                yield Sample(cls(0, exclusive, reverse), (f32[4],))  # type: ignore[call-arg]
            for dtype in (f32, f16, bf16, i32, i64):
                yield Sample(cls(0, exclusive, False), (dtype[4, 3],))  # type: ignore[call-arg]
            for shape in ((2, 0), (0, 3), (3, 1)):
                yield Sample(cls(1, exclusive, False), (f32[shape],))  # type: ignore[call-arg]
        yield Sample(cls(0, False, False), (f32[3, 2 * nests.BLOCK + 5],))  # type: ignore[call-arg]


def scan_along(
    axis: int, reverse: bool, y: Buffer, inputs: Sequence[Buffer], initial: Scalar, step: Any
) -> tuple[Statement, ...]:
    """Walk along an axis with a carry: `step(carry, *elements)` gives (next carry, result), in the compute
    type. Columns beside the axis are independent; a block of them is walked together, for locality."""
    outer, extent, inner = nests.around(y.shape, axis)
    views = [nests.view(b, outer, extent, inner) for b in (y, *inputs)]
    target, *sources = (v.buffer for v in views)

    def columns(o: Dim, first: Dim, width: Dim, block: int) -> Sequence[Statement]:
        carry = Buffer("carry", initial.dtype, (block,), "stack")

        def element(k: Dim, j: Dim) -> Sequence[Statement]:
            index = (o, extent - 1 - k if reverse else k, first + j)
            reads = [scalar.cast(Load(s, index), initial.dtype) for s in sources]
            after, result = step(Load(carry, (j,)), *reads)
            next_carry, out = Local("next", initial.dtype), Local("out", initial.dtype)
            return (
                Let(out, result),
                Let(next_carry, after),
                nests.store(target, scalar.cast(Read(out), target.dtype), *index),
                nests.store(carry, Read(next_carry), j),
            )

        return (
            Alloc(carry),
            nests.loop(width, lambda j: [nests.store(carry, initial, j)]),
            nests.loop(extent, lambda k: [nests.loop(width, lambda j: element(k, j))]),
        )

    return (*views, *nests.parallel_columns(outer, inner, columns)) if extent != 0 else ()


@dataclass(frozen=True)
class Cumsum(Cumulative):
    axis: int
    exclusive: bool = False
    reverse: bool = False
    combiner = "sum"

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.cumsum(axis=self.axis, exclusive=self.exclusive, reverse=not self.reverse),)


@dataclass(frozen=True)
class Cumprod(Cumulative):
    axis: int
    exclusive: bool = False
    reverse: bool = False
    combiner = "prod"

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """d/dx[k] = (product before k) * s[k], where s[k] = g[k] + x[k+1] s[k+1] collects what follows: a
        recurrence without division, so right also at zeros. Exclusive: g[k+1] instead of g[k]."""
        (x,) = xs
        before = x.cumprod(axis=self.axis, exclusive=True, reverse=self.reverse)
        factor = _next_along(x, self.axis, self.reverse)
        term = _next_along(g, self.axis, self.reverse) if self.exclusive else g
        return (before * factor.linear_recurrence(term, axis=self.axis, reverse=not self.reverse),)


def _next_along(x: Any, axis: int, reverse: bool) -> Any:
    """y[k] = x[k + 1] (x[k - 1] with reverse), 0 beyond the end."""
    shift = tuple((1 if reverse else -1) if n == axis else 0 for n in range(x.rank))
    return x.pad(low=shift, high=tuple(-s for s in shift))


@dataclass(frozen=True)
class LinearRecurrence(Op):
    """y[k] = a[k] * y[k-1] + b[k] along an axis, with y[-1] = 0; from the other end with `reverse`.

    The gradient is a linear recurrence again. State-space models and discounted sums are this op.
    """

    axis: int
    reverse: bool = False
    cheap = False

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        same_types(self.name, a, b)
        require_axes(self.name, (self.axis,), a)
        if not a.dtype.is_float:
            raise OpTypeError(f"{self.name} takes float tensors, not {a.dtype}")
        return a

    def evaluate(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        def run(factors: np.ndarray, terms: np.ndarray) -> np.ndarray:
            result = np.array(terms)
            along = np.moveaxis(result, self.axis, 0)
            by = np.moveaxis(factors, self.axis, 0)
            if self.reverse:
                along, by = along[::-1], by[::-1]
            for k in range(len(along)):
                along[k] += by[k] * (along[k - 1] if k else 0)
            return result

        return in_compute_type(run, dtype_of(a))(a, b)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """The cotangents obey s[k] = g[k] + a[k+1] s[k+1]; then d/db = s and d/da[k] = s[k] y[k-1]."""
        a, _ = xs
        following = _next_along(a, self.axis, self.reverse)
        s = following.linear_recurrence(g, axis=self.axis, reverse=not self.reverse)
        return s * _next_along(y, self.axis, not self.reverse), s

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (a, b) = outputs, inputs
        wide = y.dtype.compute

        def step(carry: Scalar, factor: Scalar, term: Scalar) -> tuple[Scalar, Scalar]:
            total = scalar.apply("add", scalar.apply("mul", factor, carry), term)
            return total, total

        return scan_along(self.axis, self.reverse, y, (a, b), scalar.constant(0, wide), step)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for reverse in (False, True):
            yield Sample(cls(1, reverse), (f64[2, 4, 3],) * 2)
            yield Sample(cls(0, reverse), (f32[5],) * 2)
        for dtype in (f16, bf16):
            yield Sample(cls(0), (dtype[4, 3],) * 2)
        yield Sample(cls(1), (f32[3, 0],) * 2)
