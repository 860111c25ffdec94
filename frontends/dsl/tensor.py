"""The tensor that models are written with: NumPy's habits over a trace.

Arithmetic, comparison and logic operators broadcast and promote as NumPy does (a Python number takes the
tensor's element type; an integer tensor meets a float one in the float's type); methods and indexing follow
NumPy's names. Every op of the registry is a method too. Nothing is computed here.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ingot.compiler.errors import Code, IngotError, IngotTypeError, IngotValueError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.symbolic import Dim, Expr
from ingot.compiler.ir.types import DTYPES, DType, TensorType, as_dim, bf16, boolean, dtype_of, f16, f32, i64
from ingot.compiler.ops.base import Node, Op, OpTypeError, broadcast_shapes, normalize_axes
from ingot.compiler.ops.contraction import matmul
from ingot.compiler.ops.movement import trace, tril, triu
from ingot.compiler.ops.structure import Constant
from ingot.frontends.dsl.indexing import index
from ingot.frontends.dsl.trace import Trace

Axis = int | Sequence[int] | None

# NumPy's array functions on tensors, by name: filled by frontends/dsl/arrays.py
ARRAY_FUNCTIONS: dict[str, Callable[..., Any]] = {}

# NumPy's names of functions where ours differ
UFUNCS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "power": "pow", "float_power": "pow",
    "remainder": "mod", "negative": "neg", "absolute": "abs", "fabs": "abs", "rint": "round", "isnan": "is_nan",
    "isinf": "is_inf", "isfinite": "is_finite", "invert": "bitwise_not", "left_shift": "shift_left",
    "right_shift": "shift_right", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip


def promote(left: DType, right: DType) -> DType:
    """The element type in which two tensors meet."""
    if left == right:
        return left
    if left.kind == right.kind == "float":
        return f32 if {left, right} == {f16, bf16} else max(left, right, key=lambda t: t.bits)
    if left.is_float or right.is_float:
        return left if left.is_float else right
    return dtype_of(np.result_type(left.numpy, right.numpy))


def as_dtype(given: object) -> DType:
    if isinstance(given, DType):
        return given
    if isinstance(given, str) and given in DTYPES:
        return DTYPES[given]
    if given is bool:
        return boolean
    if given is int:
        return i64
    if given is float:
        return f32
    return dtype_of(np.dtype(given))  # type: ignore[call-overload]


class Tensor(Node):
    """A value of a graph that is being traced."""

    __slots__ = ()
    builder: Trace

    def __init__(self, builder: Trace, value: Value) -> None:
        self.builder = builder
        self.value = value

    # --- building ----------------------------------------------------------------------------------

    def apply(self, op: Op, *others: Node) -> Any:
        trace, args = self._in_one_trace(op, others)
        try:
            value = trace.emit(op, *args)
        except OpTypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None
        made = Tensor(trace, value)
        return made if isinstance(value.type, TensorType) else made.wrap(value)

    def _in_one_trace(self, op: Op, others: Sequence[Any]) -> tuple[Trace, list[Value]]:
        """This tensor and others, as seen from the innermost of their traces."""
        trace, args = self.builder, [self.value]
        for other in others:
            if other.builder is not trace:
                break
            args.append(other.value)
        else:
            return trace, args
        tensors = [self, *others]
        trace = max((t.builder for t in tensors), key=lambda builder: builder.depth)
        args = [adopted for t in tensors if (adopted := trace.adopt(t.value, t.builder)) is not None]
        if len(args) < len(tensors):
            raise IngotTypeError(Code.MIXED_TRACES, f"{op.name} is given a tensor of another trace", trace.here())
        return trace, args

    def wrap_array(self, array: object, dtype: DType | None = None) -> Tensor:
        return Tensor(self.builder, self.builder.lift(array, dtype))

    def _coerce(self, other: object) -> Tensor:
        if isinstance(other, Tensor):
            return other
        if isinstance(other, Expr):
            kind: Any = Op.registry["dimension"]
            return self.wrap(self.builder.emit(kind(other, self.dtype)))
        if isinstance(other, int | float | numbers.Number) and not isinstance(other, np.generic):
            dtype = self.dtype
            if isinstance(other, float) and not dtype.is_float:
                dtype = f32
            elif isinstance(other, int) and not isinstance(other, bool) and dtype == boolean:
                dtype = i64
            try:
                return Tensor(self.builder, self.builder.emit(Constant.of(other, dtype)))
            except (OpTypeError, OverflowError) as error:
                raise IngotValueError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None
        try:
            return self.wrap_array(other)
        except TypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None

    def _binary(self, name: str, other: object, reflected: bool = False) -> Any:
        right = self._coerce(other)
        dtype = promote(self.dtype, right.dtype)
        if name == "div" and not dtype.is_float:
            dtype = f32
        mine, its = self.shape, right.shape
        try:
            shape = broadcast_shapes(name, *((its, mine) if reflected else (mine, its)))
        except OpTypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None
        a, b = self.cast(dtype), right.cast(dtype)
        if mine != its:
            a, b = Node.broadcast_to(a, shape), Node.broadcast_to(b, shape)
        kind: Any = Op.registry[name]
        return b.apply(kind(), a) if reflected else a.apply(kind(), b)

    def where(self, yes: object, no: object) -> Any:
        condition = self if self.dtype == boolean else self != 0
        sample = yes if isinstance(yes, Tensor) else no if isinstance(no, Tensor) else None
        if sample is None:
            array = np.asarray(yes)
            sample = self.wrap_array(array if array.dtype != np.float64 else array.astype(np.float32))
            yes = sample
        a, b = sample._coerce(yes), sample._coerce(no)
        dtype = promote(a.dtype, b.dtype)
        return Node.where(condition, a.cast(dtype), b.cast(dtype))

    def __eq__(self, other: object) -> Any:
        return self._binary("equal", other)

    def __ne__(self, other: object) -> Any:
        return self._binary("not_equal", other)

    __hash__ = object.__hash__

    def __rfloordiv__(self, other: object) -> Any:
        return self._binary("floor_divide", other, True)

    def __rmod__(self, other: object) -> Any:
        return self._binary("mod", other, True)

    def __rpow__(self, other: object) -> Any:
        return self._binary("pow", other, True)

    def __pow__(self, other: object) -> Any:
        if isinstance(other, int | float) and other in (3, 2, 0.5, 1, -1) and self.dtype.is_float:
            # cheaper forms of the same function, exact where pow is
            match other:
                case 3:
                    return self * self * self
                case 2:
                    return self * self
                case 1:
                    return self
                case -1:
                    return 1.0 / self
                case _:
                    return self.__getattr__("sqrt")()
        return self._binary("pow", other)

    def __lshift__(self, other: object) -> Any:
        return self._binary("shift_left", other)

    def __rshift__(self, other: object) -> Any:
        return self._binary("shift_right", other)

    __rand__, __ror__, __rxor__ = Node.__and__, Node.__or__, Node.__xor__

    def __divmod__(self, other: object) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[Any, Any]:
        return other // self, other % self  # type: ignore[operator]

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Any:
        return self.__getattr__("abs")()

    def __matmul__(self, other: object) -> Any:
        return self.matmul(other)

    def __rmatmul__(self, other: object) -> Any:
        return self._coerce(other).matmul(self)

    def matmul(self, other: object) -> Any:
        right = self._coerce(other)
        dtype = promote(self.dtype, right.dtype)
        try:
            return matmul(self.cast(dtype), right.cast(dtype))
        except OpTypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None

    dot = matmul

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:  # type: ignore[override]
        """NumPy's functions on a tensor are the ops of the same name: np.exp(x), np.maximum(x, 0), array + x."""
        name = UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or keywords or not (name == "matmul" or name in Op.registry):
            raise IngotTypeError(
                Code.OP_ARGUMENTS, f"np.{ufunc.__name__} has no counterpart for tensors", self.builder.here()
            )
        if name == "matmul":
            return self._coerce(inputs[0]).matmul(inputs[1])
        if len(inputs) == 1:
            kind: Any = Op.registry[name]
            return self.apply(kind())
        left, right = inputs
        return left._binary(name, right) if isinstance(left, Tensor) else right._binary(name, left, True)

    def __array_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any], keywords: dict[str, Any]
    ) -> Any:
        """np.concatenate([x, y]), np.roll(x, 1), ...: our function of that name."""
        known = ARRAY_FUNCTIONS.get(function.__name__)
        if known is None:
            raise IngotTypeError(
                Code.OP_ARGUMENTS, f"np.{function.__name__} has no counterpart for tensors", self.builder.here()
            )
        try:
            return known(
                *args, **{name: given for name, given in keywords.items() if name != "out" or given is not None}
            )
        except TypeError as error:
            if isinstance(error, IngotError):
                raise
            raise IngotTypeError(
                Code.OP_ARGUMENTS, f"np.{function.__name__} on tensors: {error}", self.builder.here()
            ) from None

    # --- what a traced tensor refuses ----------------------------------------------------------------

    def __bool__(self) -> bool:
        raise IngotTypeError(
            Code.TENSOR_AS_BOOL, f"the truth of {self!r} is not known while tracing", self.builder.here()
        )

    def _no_value(self, wanted: str) -> IngotError:
        return IngotTypeError(
            Code.TENSOR_AS_NUMBER, f"{self!r} cannot become {wanted} while tracing", self.builder.here()
        )

    def __float__(self) -> float:
        raise self._no_value("a Python float")

    def __int__(self) -> int:
        raise self._no_value("a Python int")

    def __index__(self) -> int:
        raise self._no_value("an index")

    def __array__(self, *args: Any, **keywords: Any) -> np.ndarray:
        raise self._no_value("a NumPy array")

    def item(self) -> float:
        raise self._no_value("a Python number")

    def __setitem__(self, key: object, value: object) -> None:
        raise IngotTypeError(Code.IMMUTABLE_TENSOR, f"{self!r} cannot be changed in place", self.builder.here())

    def __len__(self) -> int:
        if not self.rank:
            raise IngotTypeError(Code.SYMBOLIC_LENGTH, "a scalar has no length", self.builder.here())
        if not isinstance(self.shape[0], int):
            raise IngotTypeError(
                Code.SYMBOLIC_LENGTH, f"the first axis of {self!r} has no fixed length", self.builder.here()
            )
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    # --- shape -------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self.rank

    @property
    def size(self) -> Dim:
        return self.type.size

    @property
    def T(self) -> Any:
        return self.transpose()

    def astype(self, dtype: object) -> Any:
        try:
            return self.cast(as_dtype(dtype))
        except TypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None

    def _axes(self, axis: Axis, op: str) -> tuple[int, ...]:
        if axis is None:
            return tuple(range(self.rank))
        try:
            return normalize_axes((axis,) if isinstance(axis, int) else tuple(axis), self.rank, op)
        except OpTypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error), self.builder.here()) from None

    def reshape(self, *shape: Any) -> Any:
        """A -1 stands for what is left over."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        dims = [d if isinstance(d, int) else as_dim(d) for d in given]
        if dims.count(-1) == 1:
            known = symbolic.product(d for d in dims if d != -1)
            if isinstance(known, int) and known == 0:
                raise IngotValueError(Code.OP_ARGUMENTS, "reshape: -1 beside a dim of 0", self.builder.here())
            dims[dims.index(-1)] = symbolic.left_over(self.type.size, known)
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise IngotValueError(Code.OP_ARGUMENTS, f"reshape: {tuple(given)} has negative dims", self.builder.here())
        return Node.reshape(self, tuple(dims))

    def transpose(self, *perm: Any) -> Any:
        given = perm[0] if len(perm) == 1 and isinstance(perm[0], tuple | list) else perm
        order = tuple(given) or tuple(reversed(range(self.rank)))
        return Node.transpose(self, tuple(a % self.rank if -self.rank <= a < self.rank else a for a in order))

    permute = transpose

    def swapaxes(self, first: int, second: int) -> Any:
        order = list(range(self.rank))
        order[first], order[second] = order[second], order[first]
        return self.transpose(order)

    def flatten(self, start: int = 0) -> Any:
        return self.reshape(*self.shape[:start], symbolic.product(self.shape[start:]))

    ravel = flatten

    def squeeze(self, axis: Axis = None) -> Any:
        chosen = [n for n, d in enumerate(self.shape) if d == 1] if axis is None else self._axes(axis, "squeeze")
        for n in chosen:
            if self.shape[n] != 1:
                raise IngotValueError(Code.OP_ARGUMENTS, f"squeeze: axis {n} of {self!r} is not 1", self.builder.here())
        return self.reshape(*(d for n, d in enumerate(self.shape) if n not in chosen))

    def expand_dims(self, *axis: Any) -> Any:
        return Node.expand_dims(self, *(axis[0] if len(axis) == 1 and isinstance(axis[0], tuple | list) else axis))

    def unsqueeze(self, axis: int) -> Any:
        return self.expand_dims(axis)

    def broadcast_to(self, shape: Any) -> Any:
        return Node.broadcast_to(self, tuple(as_dim(d) for d in shape))

    # --- reductions ----------------------------------------------------------------------------------

    def _reduce(self, name: str, axis: Axis, keepdims: bool) -> Any:
        return Node.reduce(self, name, self._axes(axis, name), keepdims)

    def _as_wide_as(self, dtype: object) -> Any:
        return self if dtype is None else self.astype(dtype)

    def sum(self, axis: Axis = None, keepdims: bool = False, *, dtype: object = None) -> Any:  # type: ignore[override]
        source = self.astype(i64) if self.dtype == boolean and dtype is None else self._as_wide_as(dtype)
        return source._reduce("sum", axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False, *, dtype: object = None) -> Any:
        source = self if self.dtype.is_float else self.astype(f32)
        return source._as_wide_as(dtype)._reduce("mean", axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False, *, dtype: object = None) -> Any:
        return self._as_wide_as(dtype)._reduce("prod", axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return self._reduce("max", axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return self._reduce("min", axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return (self if self.dtype == boolean else self != 0)._reduce("any", axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return (self if self.dtype == boolean else self != 0)._reduce("all", axis, keepdims)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Any:
        return self._reduce("logsumexp", axis, keepdims)

    def var(self, axis: Axis = None, correction: int = 0, keepdims: bool = False, *, ddof: int = 0) -> Any:
        """Divided by the count less `correction`, which NumPy also calls `ddof`."""
        correction = correction or ddof
        axes = tuple(sorted(self._axes(axis, "var")))
        kind: Any = Op.registry["var"]
        result = self.apply(kind(axes=axes, correction=correction))
        return result.reshape(*(1 if n in axes else d for n, d in enumerate(self.shape))) if keepdims else result

    def std(self, axis: Axis = None, correction: int = 0, keepdims: bool = False, *, ddof: int = 0) -> Any:
        return self.var(axis, correction, keepdims, ddof=ddof).sqrt()

    def _position(self, name: str, axis: int | None, keepdims: bool) -> Any:
        source = self.flatten() if axis is None else self
        (place,) = source._axes(0 if axis is None else axis, name)
        kind: Any = Op.registry[name]
        result = source.apply(kind(axis=place))
        return result.expand_dims(place) if keepdims and axis is not None else result

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        return self._position("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        return self._position("argmin", axis, keepdims)

    def softmax(self, axis: int = -1) -> Any:
        return self.apply(Op.registry["softmax"](axis=self._axes(axis, "softmax")[0]))  # type: ignore[call-arg]

    def log_softmax(self, axis: int = -1) -> Any:
        return self.apply(Op.registry["log_softmax"](axis=self._axes(axis, "log_softmax")[0]))  # type: ignore[call-arg]

    def clip(self, low: float | None = None, high: float | None = None) -> Any:
        result = self
        if low is not None:
            result = result._binary("maximum", low)
        if high is not None:
            result = result._binary("minimum", high)
        return result

    clamp = clip

    # --- cumulative, order, choice --------------------------------------------------------------------

    def _along(self, name: str, axis: int | None, **fields: Any) -> Any:
        """An op with an `axis`, on all elements in a row when there is none."""
        source = self.ravel() if axis is None else self
        kind: Any = Op.registry[name]
        return source.apply(kind(axis=source._axes(0 if axis is None else axis, name)[0], **fields))

    def cumsum(self, axis: int | None = None, **fields: Any) -> Any:
        return self._along("cumsum", axis, **fields)

    def cumprod(self, axis: int | None = None, **fields: Any) -> Any:
        return self._along("cumprod", axis, **fields)

    def sort(self, axis: int | None = -1, **fields: Any) -> Any:
        """In order along an axis, as a new tensor."""
        return self._along("sort", axis, **fields)

    def argsort(self, axis: int | None = -1, **fields: Any) -> Any:
        return self._along("argsort", axis, **fields)

    def round(self, decimals: int = 0) -> Any:
        """To the nearest, halves to even."""
        kind: Any = Op.registry["round"]
        if decimals == 0 or not self.dtype.is_float:
            return self.apply(kind())
        scale = 10.0 ** abs(decimals)
        return (self * scale).apply(kind()) / scale if decimals > 0 else (self / scale).apply(kind()) * scale

    def take(self, indices: Any, axis: int | None = None) -> Any:
        """Slices by their numbers; elements of the flattened tensor when no axis is named."""
        source = self.ravel() if axis is None else self
        (place,) = source._axes(0 if axis is None else axis, "take")
        return source[(*[slice(None)] * place, np.asarray(indices) if isinstance(indices, list) else indices)]

    def repeat(self, repeats: int, axis: int | None = None) -> Any:
        """Each slice several times, one after the other."""
        source = self.ravel() if axis is None else self
        (place,) = source._axes(0 if axis is None else axis, "repeat")
        shape = source.shape
        spread = source.expand_dims(place + 1).broadcast_to((*shape[: place + 1], repeats, *shape[place + 1 :]))
        return spread.reshape(*shape[:place], shape[place] * repeats, *shape[place + 1 :])

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        kind: Any = Op.registry["diagonal"]
        return self._matrices(axis1, axis2, "diagonal").apply(kind(offset=offset))

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return trace(self._matrices(axis1, axis2, "trace"), offset)

    def _matrices(self, rows: int, columns: int, name: str) -> Any:
        """With the two axes last."""
        chosen = self._axes((rows, columns), name)
        return self.transpose(*(n for n in range(self.rank) if n not in chosen), *chosen)

    def full_like(self, value: object, dtype: object = None) -> Any:
        return self.full(self.shape, value, None if dtype is None else as_dtype(dtype))

    def copy(self) -> Any:
        """Itself: a tensor cannot be changed."""
        return self

    def tril(self, offset: int = 0) -> Any:
        return tril(self, offset)

    def triu(self, offset: int = 0) -> Any:
        return triu(self, offset)

    def detach(self) -> Any:
        return self.__getattr__("stop_gradient")()

    def __getitem__(self, key: Any) -> Any:
        return index(self, key)

    def __repr__(self) -> str:
        return f"Tensor({self.value.type!r})"


def first_tensor(args: Sequence[Any], name: str) -> Tensor:
    """The first tensor among the arguments of a function, also inside lists."""
    for item in args:
        if isinstance(item, Tensor):
            return item
        if isinstance(item, list | tuple):
            found = [t for t in item if isinstance(t, Tensor)]
            if found:
                return found[0]
    raise IngotTypeError(Code.NO_TENSOR_ARGUMENT, f"ingot.{name} is given no traced tensor")


def tensors_of(args: Sequence[Any], name: str) -> list[Tensor]:
    """Arrays and numbers become tensors of the trace that the tensors among them belong to."""
    sample = first_tensor(args, name)
    return [sample._coerce(a) for a in args]
