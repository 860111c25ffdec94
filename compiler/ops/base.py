"""What an op is: one class that says everything about it.

A concrete op is a frozen dataclass (its fields are its attributes) with

    infer(*types)                 the type of the result, or an OpTypeError that says what is wrong
    conditions(*types)            what must hold of symbolic extents beyond that: checked when it can be known
    evaluate(*arrays)             the meaning, in NumPy: the specification that everything is tested against
                                  (fields that are symbolic dims have been replaced by their values)
    vjp(g, y, *xs)                the gradient: one Node (or None) per argument; ops that are not
                                  differentiable set `differentiable = False`
    and exactly one way down:
      lower(type, index, *reads)  the element at `index` as a scalar expression (level 2)
      decompose(*xs)              the same in terms of simpler ops (level 1)
      loops(outputs, inputs)      statements (level 3), for what index notation cannot say (sort, scatter)
      regions                     control flow: compiled as structured code around kernels
    samples()                     inputs to test it with; every test of an op is derived from these

Defining the class registers it under its snake-case name; the registry drives the printer and parser,
the tracing operators, ONNX coverage and the tests.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ir.loops import Statement, Store
from ingot.compiler.ir.scalar import Buffer, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, TupleType, Type
from ingot.compiler.target import Target
from ingot.runtime.storage import copy_into

# differentiate(graph, wrt) -> graph: inputs are the graph's and one cotangent per output; outputs are the
# cotangents of the inputs numbered by `wrt`. Given to control flow, so that ops need not import autodiff.
Differentiate = Callable[[Graph, Sequence[int]], Graph]


# finish(buffer, index, value): the statements that follow when the element at `index` of an op's result is known.
# They belong to the lanes and the block in which the value was computed.
Finish = Callable[[Buffer, tuple[Dim, ...], Scalar], Sequence[Statement]]


def store_result(buffer: Buffer, index: tuple[Dim, ...], value: Scalar) -> Sequence[Statement]:
    return (Store(buffer, index, value),)


@dataclass(frozen=True)
class OwnLoops:
    """The loops of an op for one machine; `scratch` are buffers that the caller provides, uninitialised."""

    body: tuple[Statement, ...]
    scratch: tuple[Buffer, ...] = ()
    decisions: Mapping[str, object] = field(default_factory=dict)


class OpTypeError(TypeError):
    """The arguments of an op do not fit it. The message says which and why; the frontends add where."""


class DimsDiffer(OpTypeError):
    """Two extents that must be equal are not known to be. With one of them symbolic, they may yet turn out to be:
    a frontend that has no better answer assumes it and lets the program check (`restate`)."""

    def __init__(self, message: str, left: Dim, right: Dim) -> None:
        super().__init__(message)
        self.left, self.right = left, right


@dataclass(frozen=True)
class Condition:
    """left <= right, or left == right: what an op needs of symbolic extents. One that cannot be decided while
    compiling is checked when the program is called, before anything is read or written."""

    left: Dim
    relation: Literal["le", "eq"]
    right: Dim
    message: str

    @property
    def decided(self) -> bool | None:
        compare = symbolic.less_equal if self.relation == "le" else symbolic.equal
        return compare(self.left, self.right)


def require(*conditions: Condition) -> None:
    """Refuse what is known not to hold."""
    for condition in conditions:
        if condition.decided is False:
            raise OpTypeError(condition.message)


@dataclass(frozen=True)
class Sample:
    """Arguments to test an op with. A TensorType stands for random values in [low, high] (integers: in
    that range); an array is used as it is. `wrt` are the arguments whose gradient is checked
    (None: every float argument)."""

    op: Op
    args: tuple[TensorType | np.ndarray, ...]
    low: float = -2.0
    high: float = 2.0
    wrt: tuple[int, ...] | None = None


class Op(ABC):
    name: ClassVar[str] = ""
    differentiable: ClassVar[bool] = True
    piecewise_constant: ClassVar[bool] = False  # rounding, sign: the gradient is 0 wherever there is one
    cheap: ClassVar[bool] = True  # costs about as much as reading its operands again: may be recomputed
    rereads: ClassVar[bool] = False  # reads elements of its operands many times (matmul, convolution, gather)
    movement: ClassVar[bool] = False  # copies elements without arithmetic: never costs more than the copy
    read_through: ClassVar[bool] = False  # readers compute its elements for nothing: never kept in memory beforehand
    prepares: ClassVar[bool] = False  # arranges a weight for a kernel: always folded, however large the result
    takes_epilogue: ClassVar[bool] = False  # its loops can go on with what follows elementwise
    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls, abstract: bool = False, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if abstract:
            return
        cls.name = cls.__dict__.get("name") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if cls.name in Op.registry:
            raise TypeError(f"two ops are called {cls.name!r}")
        Op.registry[cls.name] = cls

    @property
    def slides(self) -> bool:
        """Whether windows of it slide over its operands, reading elements along their last axis again and again."""
        return False

    @abstractmethod
    def infer(self, *types: Any) -> Type: ...

    @abstractmethod
    def evaluate(self, *args: Any) -> Any: ...

    def evaluate_into(self, room: np.ndarray, *args: Any) -> None:
        """room[...] = evaluate(*args), a single result. For ops whose large result is better made where it is kept; the
        memory of `room` need not be present."""
        result = np.asarray(self.evaluate(*args))
        if (result.shape, result.dtype) != (room.shape, room.dtype):
            raise TypeError(f"gave {result.dtype}{list(result.shape)} for {room.dtype}{list(room.shape)}")
        copy_into(room, result)

    def conditions(self, *types: Any) -> tuple[Condition, ...]:
        """What must hold of the extents of the arguments; `infer` refuses what is known not to."""
        return ()

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        raise NotImplementedError(f"{self.name} has no gradient")

    def vjp_with(self, differentiate: Differentiate, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """The gradient, for ops that must differentiate their regions; others define `vjp`."""
        return self.vjp(g, y, *xs)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        raise NotImplementedError

    def decompose(self, *xs: Node) -> Node | tuple[Node, ...]:
        raise NotImplementedError

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        raise NotImplementedError

    def loops_for(
        self, target: Target, outputs: Sequence[Buffer], inputs: Sequence[Buffer], finish: Finish = store_result
    ) -> OwnLoops:
        """The loops for a machine, where they differ from one machine to another. An op that `takes_epilogue` hands
        each element of its result to `finish` instead of storing it."""
        return OwnLoops(self.loops(outputs, inputs))

    @property
    def regions(self) -> tuple[Graph, ...]:
        return ()

    @classmethod
    @abstractmethod
    def samples(cls) -> Iterator[Sample]: ...

    @classmethod
    @cache
    def way_down(cls) -> str:
        """Which of lower, decompose, loops or regions this op defines."""
        ways = [w for w in ("lower", "decompose", "loops", "regions") if getattr(cls, w) is not getattr(Op, w)]
        if len(ways) != 1:
            raise TypeError(f"op {cls.name} must define exactly one of lower, decompose, loops, regions; has {ways}")
        return ways[0]


def normalize_axis(axis: int, rank: int, op: str) -> int:
    if not isinstance(axis, int | np.integer):
        raise OpTypeError(f"{op}: axis {axis} is not an integer")
    if not -rank <= axis < rank:
        raise OpTypeError(f"{op}: axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, op: str) -> tuple[int, ...]:
    normal = tuple(normalize_axis(a, rank, op) for a in axes)
    if len(set(normal)) != len(normal):
        raise OpTypeError(f"{op}: an axis appears twice in {tuple(axes)}")
    return normal


def in_compute_type(function: Any, dtype: DType) -> Any:
    """`function` evaluated in the type that native code computes in (f16 and bf16: f32), rounded back."""

    def evaluate(*arrays: np.ndarray) -> np.ndarray:
        if dtype.compute == dtype:
            return function(*arrays)
        wide = dtype.compute.numpy
        result = function(*(a.astype(wide) if a.dtype == dtype.numpy else a for a in arrays))
        return result.astype(dtype.numpy) if result.dtype == wide else result

    return evaluate


class Node:
    """A value and the builder that extends its graph: what gradient rules and decompositions write with.

    Binary operators take nodes or Python numbers and broadcast like NumPy by inserting `broadcast` ops.
    Any op of the registry is a method: `x.exp()`, `x.transpose(perm=(1, 0))`, `x.gather(indices, axis=0)`:
    positional arguments are further operands, keywords are the op's fields.
    """

    __slots__ = ("builder", "value")
    __array_priority__ = 1000  # NumPy arrays on the left defer to our reflected operators
    __array_ufunc__ = None

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> TensorType:
        return self.value.tensor

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.value.type.shape  # type: ignore[union-attr]  a node has a single result; asked millions of times

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype  # type: ignore[union-attr]

    @property
    def rank(self) -> int:
        return len(self.shape)

    ndim = rank

    def wrap(self, value: Value) -> Any:
        """A node (or a tuple of nodes, for an op with several results) of this node's class."""
        if isinstance(value.type, TupleType):
            get = Op.registry["get"]
            return tuple(
                type(self)(self.builder, self.builder.emit(get(index), value))  # type: ignore[call-arg]
                for index in range(len(value.type.elements))
            )
        return type(self)(self.builder, value)

    def apply(self, op: Op, *others: Node) -> Any:
        """The op on this node and others."""
        value = self.builder.emit(op, self.value, *[o.value for o in others])
        return type(self)(self.builder, value) if isinstance(value.type, TensorType) else self.wrap(value)

    def __getattr__(self, name: str) -> Any:
        kind = Op.registry.get(name)
        if kind is None:
            raise AttributeError(f"{type(self).__name__} has no attribute or op {name!r}")

        def call(*operands: Node, **fields: Any) -> Any:
            return self.apply(kind(**fields), *operands)

        return call

    # --- constants and broadcasting -------------------------------------------------------------

    def constant(self, value: object, dtype: DType | None = None) -> Any:
        """A literal of this node's dtype in this node's graph."""
        kind: Any = Op.registry["constant"]
        return self.wrap(self.builder.emit(kind.of(value, dtype or self.dtype)))

    def full(self, shape: Sequence[Dim], value: object, dtype: DType | None = None) -> Any:
        return self.constant(value, dtype).broadcast_to(tuple(shape))

    def full_like(self, value: object) -> Any:
        return self.full(self.shape, value)

    def broadcast_to(self, shape: Sequence[Dim]) -> Any:
        """NumPy's broadcasting: align at the right, stretch dims of 1."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        kind: Any = Op.registry["broadcast"]
        return self.apply(kind(shape))

    def cast(self, dtype: DType) -> Any:
        if dtype == self.dtype:
            return self
        kind: Any = Op.registry["cast"]
        return self.apply(kind(dtype))

    def reshape(self, shape: Sequence[Dim]) -> Any:
        shape = tuple(shape)
        if shape == self.shape:
            return self
        kind: Any = Op.registry["reshape"]
        return self.apply(kind(shape))

    def transpose(self, perm: Sequence[int]) -> Any:
        perm = tuple(perm)
        if perm == tuple(range(self.rank)):
            return self
        kind: Any = Op.registry["transpose"]
        return self.apply(kind(perm))

    def sum(self, axes: Sequence[int] | None = None, keepdims: bool = False) -> Any:
        return self.reduce("sum", axes, keepdims)

    def reduce(self, name: str, axes: Sequence[int] | None = None, keepdims: bool = False) -> Any:
        """A reduction op by name over axes (all of them by default)."""
        axes = tuple(range(self.rank)) if axes is None else normalize_axes(axes, self.rank, name)
        if not axes and name != "mean":
            return self
        kind: Any = Op.registry[name]
        result = self.apply(kind(tuple(sorted(axes))))
        if keepdims:
            return result.reshape(tuple(1 if n in axes else d for n, d in enumerate(self.shape)))
        return result

    def expand_dims(self, *axes: int) -> Any:
        """Insert dims of 1 at the given positions of the result."""
        rank = self.rank + len(axes)
        places = normalize_axes(axes, rank, "expand_dims")
        dims = iter(self.shape)
        return self.reshape(tuple(1 if n in places else next(dims) for n in range(rank)))

    def _coerce(self, other: object) -> Any:
        if isinstance(other, Node):
            return other
        return self.constant(other)

    def _binary(self, name: str, other: object, reflected: bool = False) -> Any:
        node = self._coerce(other)
        left, right = (node, self) if reflected else (self, node)
        kind: Any = Op.registry[name]
        if left.shape == right.shape:
            return left.apply(kind(), right)
        shape = broadcast_shapes(name, left.shape, right.shape)
        return left.broadcast_to(shape).apply(kind(), right.broadcast_to(shape))

    def binary(self, name: str, other: object) -> Any:
        """A two-argument elementwise op by name, broadcasting."""
        return self._binary(name, other)

    def __add__(self, other: object) -> Any:
        return self._binary("add", other)

    def __radd__(self, other: object) -> Any:
        return self._binary("add", other, True)

    def __sub__(self, other: object) -> Any:
        return self._binary("sub", other)

    def __rsub__(self, other: object) -> Any:
        return self._binary("sub", other, True)

    def __mul__(self, other: object) -> Any:
        return self._binary("mul", other)

    def __rmul__(self, other: object) -> Any:
        return self._binary("mul", other, True)

    def __truediv__(self, other: object) -> Any:
        return self._binary("div", other)

    def __rtruediv__(self, other: object) -> Any:
        return self._binary("div", other, True)

    def __floordiv__(self, other: object) -> Any:
        return self._binary("floor_divide", other)

    def __mod__(self, other: object) -> Any:
        return self._binary("mod", other)

    def __pow__(self, other: object) -> Any:
        return self._binary("pow", other)

    def __and__(self, other: object) -> Any:
        return self._binary("bitwise_and", other)

    def __or__(self, other: object) -> Any:
        return self._binary("bitwise_or", other)

    def __xor__(self, other: object) -> Any:
        return self._binary("bitwise_xor", other)

    def __matmul__(self, other: Node) -> Any:
        kind: Any = Op.registry["contract"]
        return kind.matmul(self, other)

    def __neg__(self) -> Any:
        return self.__getattr__("neg")()

    def __invert__(self) -> Any:
        return self.__getattr__("bitwise_not")()

    def __lt__(self, other: object) -> Any:
        return self._binary("less", other)

    def __le__(self, other: object) -> Any:
        return self._binary("less_equal", other)

    def __gt__(self, other: object) -> Any:
        return self._binary("greater", other)

    def __ge__(self, other: object) -> Any:
        return self._binary("greater_equal", other)

    def equals(self, other: object) -> Any:
        """Elementwise ==, as a method because == on nodes stays identity inside the compiler."""
        return self._binary("equal", other)

    def where(self, yes: object, no: object) -> Any:
        """Elementwise choice; self is the bool condition. All three broadcast."""
        sample = yes if isinstance(yes, Node) else no
        if not isinstance(sample, Node):
            raise OpTypeError("where needs at least one tensor among its two choices")
        yes_node, no_node = sample._coerce(yes), sample._coerce(no)
        shape = broadcast_shapes("where", broadcast_shapes("where", self.shape, yes_node.shape), no_node.shape)
        kind: Any = Op.registry["where"]
        return self.broadcast_to(shape).apply(kind(), yes_node.broadcast_to(shape), no_node.broadcast_to(shape))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value.type!r})"


def broadcast_shapes(op: str, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """NumPy's rule; a symbolic dim equals only itself and 1."""
    if left == right or not right:
        return left
    if not left:
        return right
    rank = max(len(left), len(right))
    padded_left = (1,) * (rank - len(left)) + left
    padded_right = (1,) * (rank - len(right)) + right
    shape: list[Dim] = []
    for axis, (a, b) in enumerate(zip(padded_left, padded_right, strict=True)):
        if a == b or b == 1:
            shape.append(a)
        elif a == 1:
            shape.append(b)
        else:
            message = (
                f"{op}: shapes {shape_text(left)} and {shape_text(right)} do not broadcast: "
                f"dim {axis - rank} is {a} on the left and {b} on the right{_bound_advice(a, b) or _bound_advice(b, a)}"
            )
            raise DimsDiffer(message, a, b)
    return tuple(shape)


def _bound_advice(whole: Dim, cut: Dim) -> str:
    """What to say of a name beside its minimum with a number, as a slice of a table with so many rows has it."""
    if not isinstance(whole, symbolic.Symbol) or not isinstance(cut, symbolic.Minimum) or whole not in cut.arguments:
        return ""
    most = min((n for n in cut.arguments if isinstance(n, int)), default=None)
    return "" if most is None else f"; if {whole} is never more than {most}, say so: ingot.dim({str(whole)!r}, 1, {most})"


def first_difference(
    message: str, left: Sequence[Dim], right: Sequence[Dim], stretching: bool = False
) -> OpTypeError:
    """The error for two shapes that must be equal; `stretching`: where the left one is 1 it need not be."""
    if len(left) == len(right):
        for a, b in zip(left, right, strict=True):
            if a != b and not (stretching and a == 1):
                return DimsDiffer(message, a, b)
    return OpTypeError(message)


def shape_text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"
