"""The ops that everything else leans on: literals, results of multi-result ops, and changes of shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.scalar import Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, TupleType, Type, boolean, f32, f64, i64, row_major_strides
from ingot.compiler.ops.base import Condition, Node, Op, OpTypeError, Sample, first_difference, require, shape_text


@dataclass(frozen=True)
class Constant(Op):
    """A literal: few elements, known now. Large constants are graph inputs of role `constant`."""

    movement = True

    data: bytes
    dtype: DType
    shape: tuple[int, ...] = ()

    @staticmethod
    def of(value: object, dtype: DType) -> Constant:
        array = np.asarray(value)
        if array.dtype.kind in "iu" and dtype.is_integer:
            info = np.iinfo(dtype.numpy)
            if array.size and (array.min() < info.min or array.max() > info.max):
                raise OpTypeError(f"constant {value} does not fit {dtype} (from {info.min} to {info.max})")
        array = array.astype(dtype.numpy)
        return Constant(array.tobytes(), dtype, array.shape)

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype.numpy).reshape(self.shape)

    def infer(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def evaluate(self) -> np.ndarray:
        return self.array

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return ()

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        """A chain of selects: literals are few elements, and splats are one."""
        values = self.array.ravel()
        if not values.size:
            return scalar.constant(0, self.dtype)
        position: Dim = 0
        for i, stride in zip(index, row_major_strides(self.shape), strict=True):
            position = position + i * stride
        if isinstance(position, int):
            return scalar.constant(values[position].item(), self.dtype)
        result: Scalar = scalar.constant(values[-1].item(), self.dtype)
        for n in range(values.size - 2, -1, -1):
            if values[n].tobytes() != values[n + 1].tobytes():
                inside = scalar.predicate(position, "lt", n + 1)
                result = scalar.select(inside, scalar.constant(values[n].item(), self.dtype), result)
        return result

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls.of(1.5, f32), ())
        yield Sample(cls.of([[1, 2, 3], [3, 3, -7]], i64), ())
        yield Sample(cls.of([True, False], boolean), ())


@dataclass(frozen=True)
class Get(Op):
    """Result number `index` of an op that has several."""

    index: int

    def infer(self, x: Type) -> Type:
        if not isinstance(x, TupleType):
            raise OpTypeError(f"get takes the results of an op that has several, not {x!r}")
        if not 0 <= self.index < len(x.elements):
            raise OpTypeError(f"get: result {self.index} of {len(x.elements)}")
        return x.elements[self.index]

    def evaluate(self, x: tuple[np.ndarray, ...]) -> np.ndarray:
        return x[self.index]

    @property
    def regions(self) -> tuple[Any, ...]:
        """No code of its own: it names a result of its argument."""
        return ()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return iter(())


@dataclass(frozen=True)
class Broadcast(Op):
    """y[..., i, ...] = x[..., 0 or i, ...]: NumPy's broadcasting to `shape`."""

    movement = True
    read_through = True

    shape: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        offset = len(self.shape) - x.rank
        if offset < 0 or any(d not in (1, s) for d, s in zip(x.shape, self.shape[offset:], strict=True)):
            message = f"broadcast: shape {shape_text(x.shape)} does not stretch to {shape_text(self.shape)}"
            raise first_difference(message, x.shape, self.shape[max(0, offset) :], stretching=True)
        return x.with_shape(self.shape)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, self.shape)  # type: ignore[arg-type]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        offset = len(self.shape) - x.rank
        stretched = [n + offset for n, d in enumerate(x.shape) if d == 1 and self.shape[n + offset] != 1]
        return (g.sum((*range(offset), *stretched)).reshape(x.shape),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (x,) = operands
        kept = index[len(index) - x.type.rank :]
        return x(*(0 if d == 1 else i for d, i in zip(x.type.shape, kept, strict=True)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((4, 3)), (f64[3],))
        yield Sample(cls((2, 4, 3)), (f64[4, 1],))
        yield Sample(cls((2, 3)), (f32[()],))
        yield Sample(cls((0, 3)), (f32[1, 3],))


@dataclass(frozen=True)
class Restate(Op):
    """The same tensor, with extents written in another way: that they are equal is checked when the program is called.

    ceil(h/16) and 2*ceil(h/32) are equal for most sizes of images that a model is meant for, and no type says so.
    """

    movement = True

    shape: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        if len(self.shape) != x.rank:
            raise OpTypeError(f"restate: {x!r} has {x.rank} dims, {shape_text(self.shape)} has {len(self.shape)}")
        require(*self.conditions(x))
        return x.with_shape(self.shape)

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        message = f"the model needs {shape_text(x.shape)} and {shape_text(self.shape)} to be equal"
        pairs = zip(x.shape, self.shape, strict=True)
        return tuple(Condition(a, "eq", b, message) for a, b in pairs if a != b)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.restate(shape=xs[0].shape),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return operands[0](*index)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((4, 3)), (f64[4, 3],))


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in row-major order under another shape."""

    movement = True

    shape: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        require(*self.conditions(x))
        return x.with_shape(self.shape)

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        size = symbolic.product(self.shape)
        message = f"reshape: {shape_text(x.shape)} has {x.size} elements, {shape_text(self.shape)} has {size}"
        return (Condition(x.size, "eq", size, message),)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.shape)  # type: ignore[arg-type]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.reshape(xs[0].shape),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (x,) = operands
        return x(*reshape_index(index, self.shape, x.type.shape))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((6, 4)), (f64[2, 3, 4],))
        yield Sample(cls((2, 12)), (f64[2, 3, 4],))
        yield Sample(cls((4, 6)), (f32[2, 3, 4],))
        yield Sample(cls(()), (f32[1, 1],))
        yield Sample(cls((0, 5)), (f32[3, 0],))


def reshape_index(index: tuple[Dim, ...], shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The index into `source` of the element at `index` of `shape`. Runs of dims whose products agree are
    handled apart, so that dims untouched by the reshape keep plain indices."""
    if 0 in shape:
        return (0,) * len(source)  # there is no element to find
    result: list[Dim] = []
    for group, source_group in _matching_groups(shape, source):
        dims = [shape[g] for g in group]
        position: Dim = 0
        for i, stride in zip((index[g] for g in group), row_major_strides(dims), strict=True):
            position = position + i * stride
        source_dims = [source[s] for s in source_group]
        for k, (stride, dim) in enumerate(zip(row_major_strides(source_dims), source_dims, strict=True)):
            part = position // stride if stride != 1 else position
            is_first = all(before == 1 for before in source_dims[:k])  # nothing before it to be taken off
            result.append(0 if dim == 1 else part if is_first else part % dim)
    return tuple(result)


def _matching_groups(shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Pair the shortest runs of dims with equal products, left to right."""
    a = b = 0
    while a < len(shape) or b < len(source):
        group, source_group = [], []
        left: Dim = 1
        right: Dim = 1
        if a < len(shape):
            group.append(a)
            left = shape[a]
            a += 1
        if b < len(source):
            source_group.append(b)
            right = source[b]
            b += 1
        while symbolic.equal(left, right) is not True:
            grow_left = symbolic.less(left, right)
            if (grow_left is not False or b >= len(source)) and a < len(shape):
                group.append(a)
                left = left * shape[a]
                a += 1
            elif b < len(source):
                source_group.append(b)
                right = right * source[b]
                b += 1
            else:
                break
        yield group, source_group


@dataclass(frozen=True)
class Transpose(Op):
    """y[i...] = x[j...] where j[perm[n]] = i[n]"""

    movement = True

    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.perm) != list(range(x.rank)):
            raise OpTypeError(f"transpose: {self.perm} is not a permutation of the axes of {x!r}")
        return x.with_shape(x.shape[p] for p in self.perm)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.perm)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.transpose(inverse(self.perm)),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return operands[0](*(index[p] for p in inverse(self.perm)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((1, 0)), (f64[3, 5],))
        yield Sample(cls((2, 0, 1)), (f32[2, 3, 4],))
        yield Sample(cls((0, 2, 3, 1)), (f32[2, 3, 4, 5],))


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))
