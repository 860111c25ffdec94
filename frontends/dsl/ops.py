"""Functions of tensors, by NumPy's names where NumPy has one: `ingot.exp(x)`, `ingot.where(c, a, b)`.

Each op of the registry is a function here too, generated from its class: tensors are positional, the op's
fields are keywords. Elementwise ones broadcast and promote like the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ingot.compiler.ops  # noqa: F401  fills the registry
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Op, broadcast_shapes
from ingot.compiler.ops.convolution import convolve as _convolve
from ingot.compiler.ops.elementwise import Elementwise
from ingot.frontends.dsl import arrays
from ingot.frontends.dsl.tensor import ARRAY_FUNCTIONS, UFUNCS, Tensor, as_dtype, promote, tensors_of


def _elementwise(kind: type[Elementwise]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        tensors = tensors_of(args, kind.name)
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
        tensors = tensors_of(args, kind.name)
        return tensors[0].apply(kind(**fields), *tensors[1:])

    return _named(call, kind)


def _named(call: Callable[..., Any], kind: type[Op]) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = kind.name
    call.__doc__ = kind.__doc__
    return call


for _name, _kind in Op.registry.items():
    globals()[_name] = _elementwise(_kind) if issubclass(_kind, Elementwise) else _general(_kind)

for _name, _function in ARRAY_FUNCTIONS.items():
    if _function.__name__ == _name:
        globals()[_name] = _function

for _name, _op in UFUNCS.items():  # ingot.power(x, 2) as np.power(x, 2)
    globals()[_name] = globals()[_op]

arange, full = arrays.arange, arrays.full


def convolve(x: Any, weight: Any, **keywords: Any) -> Any:
    """Convolution of [batch, channels, *space] with [out, in / groups, *kernel]."""
    data, kernel = tensors_of([x, weight], "convolve")
    return _convolve(data, kernel, **keywords)


def asarray(value: Any, like: Tensor, dtype: object = None) -> Tensor:
    """A NumPy array or number as a tensor of the trace of `like`; a tensor is itself. For layers: a parameter is an
    array or a tensor, depending on whether the module's arrays are being traced."""
    if isinstance(value, Tensor):
        return value if dtype is None else value.astype(dtype)
    array = np.asarray(value)
    return like.wrap_array(array if dtype is None else array.astype(as_dtype(dtype).numpy))
