"""Functions of tensors, by NumPy's names where NumPy has one: `ingot.exp(x)`, `ingot.where(c, a, b)`.

Each op of the registry is a function here too, generated from its class: tensors are positional, the op's
fields are keywords. Elementwise ones broadcast and promote like the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ingot.compiler.ops  # noqa: F401  fills the registry
from ingot.compiler.errors import Code, IngotTypeError
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType, as_dim, i64
from ingot.compiler.ops import contraction
from ingot.compiler.ops import movement as _movement
from ingot.compiler.ops.base import Op, OpTypeError, broadcast_shapes
from ingot.compiler.ops.convolution import convolve as _convolve
from ingot.compiler.ops.elementwise import Elementwise
from ingot.frontends.dsl.tensor import Tensor, as_dtype, promote


def _sample(args: Sequence[Any], name: str) -> Tensor:
    for item in args:
        if isinstance(item, Tensor):
            return item
        if isinstance(item, list | tuple):
            found = [t for t in item if isinstance(t, Tensor)]
            if found:
                return found[0]
    raise IngotTypeError(Code.NO_TENSOR_ARGUMENT, f"ingot.{name} is given no traced tensor")


def _tensors(args: Sequence[Any], name: str) -> list[Tensor]:
    sample = _sample(args, name)
    return [sample._coerce(a) for a in args]


def _elementwise(kind: type[Elementwise]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        tensors = _tensors(args, kind.name)
        if len(tensors) == 1:
            return tensors[0].apply(kind())
        dtype = tensors[0].dtype
        shape: tuple[Dim, ...] = ()
        for tensor in tensors:
            dtype = promote(dtype, tensor.dtype)
            shape = broadcast_shapes(kind.name, shape, tensor.shape)
        first, *others = [t.cast(dtype).broadcast_to(shape) for t in tensors]
        return first.apply(kind(), *others)

    return _named(call, kind)


def _general(kind: type[Op]) -> Callable[..., Any]:
    def call(*args: Any, **fields: Any) -> Any:
        tensors = _tensors(args, kind.name)
        return tensors[0].apply(kind(**fields), *tensors[1:])

    return _named(call, kind)


def _named(call: Callable[..., Any], kind: type[Op]) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = kind.name
    call.__doc__ = kind.__doc__
    return call


def _method(name: str) -> Callable[..., Any]:
    def call(x: Any, *args: Any, **keywords: Any) -> Any:
        return getattr(_sample([x], name), name)(*args, **keywords)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"The method `{name}` of tensors."
    return call


for _name, _kind in Op.registry.items():
    globals()[_name] = _elementwise(_kind) if issubclass(_kind, Elementwise) else _general(_kind)

for _name in (
    "sum", "mean", "prod", "max", "min", "any", "all", "var", "std", "argmax", "argmin", "logsumexp", "softmax",
    "log_softmax", "reshape", "transpose", "squeeze", "expand_dims", "flatten", "clip", "tril", "triu", "swapaxes",
):  # fmt: skip
    globals()[_name] = _method(_name)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """yes where condition holds, else no; all three broadcast."""
    sample = _sample([condition, yes, no], "where")
    return sample._coerce(condition).where(yes, no)


def matmul(a: Any, b: Any) -> Any:
    left, right = _tensors([a, b], "matmul")
    return left @ right


def einsum(subscripts: str, *operands: Any) -> Any:
    """NumPy's einsum."""
    tensors = _tensors(operands, "einsum")
    try:
        return contraction.einsum(subscripts, *tensors)
    except OpTypeError as error:
        raise IngotTypeError(Code.OP_ARGUMENTS, str(error), tensors[0].builder.here()) from None


def concatenate(parts: Sequence[Any], axis: int = 0) -> Any:
    tensors = _same_type(parts, "concatenate")
    return _movement.concat(tensors, tensors[0]._axes(axis, "concatenate")[0])


def stack(parts: Sequence[Any], axis: int = 0) -> Any:
    return _movement.stack(_same_type(parts, "stack"), axis)


def _same_type(parts: Sequence[Any], name: str) -> list[Tensor]:
    tensors = _tensors(list(parts), name)
    dtype = tensors[0].dtype
    for tensor in tensors:
        dtype = promote(dtype, tensor.dtype)
    return [t.cast(dtype) for t in tensors]


def split(x: Tensor, sections: int | Sequence[int], axis: int = 0) -> tuple[Any, ...]:
    """Equal parts, or parts of the given sizes."""
    (place,) = x._axes(axis, "split")
    extent = x.shape[place]
    if isinstance(sections, int):
        if isinstance(extent, int) and extent % sections:
            raise IngotTypeError(Code.OP_ARGUMENTS, f"split: {sections} parts do not divide {extent}", x.builder.here())
        return _movement.split(x, [extent // sections] * sections, place)
    return _movement.split(x, list(sections), place)


def arange(count: Dim, like: Tensor, dtype: DType | object = i64) -> Any:
    """0, 1, ... in the trace of `like`; the count may be symbolic."""
    return _movement.iota(like, (as_dim(count),), 0, as_dtype(dtype))


def full(shape: Sequence[Any], value: Any, like: Tensor, dtype: object = None) -> Any:
    """A constant tensor in the trace of `like`; dims may be symbolic. (For fixed shapes NumPy arrays do too.)"""
    kind = like.dtype if dtype is None else as_dtype(dtype)
    return like.full(tuple(as_dim(d) for d in shape), value, kind)


def zeros_like(x: Tensor) -> Any:
    return x.full_like(0)


def ones_like(x: Tensor) -> Any:
    return x.full_like(1)


def convolve(x: Any, weight: Any, **keywords: Any) -> Any:
    """Convolution of [batch, channels, *space] with [out, in / groups, *kernel]."""
    data, kernel = _tensors([x, weight], "convolve")
    return _convolve(data, kernel, **keywords)


def asarray(value: Any, like: Tensor, dtype: object = None) -> Tensor:
    """A NumPy array or number as a tensor of the trace of `like`; a tensor is itself. For layers: a parameter is an
    array or a tensor, depending on whether the module's arrays are being traced."""
    if isinstance(value, Tensor):
        return value if dtype is None else value.astype(dtype)
    array = np.asarray(value)
    return like.wrap_array(array if dtype is None else array.astype(as_dtype(dtype).numpy))
