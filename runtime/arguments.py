"""From what a user passes to what a program reads: C-contiguous arrays of the exact dtype, or an error.

Arrays must have the input's dtype: a silent copy of a large float64 array would hide both a cost and a
mistake.
Python numbers and lists have no dtype of their own; they are converted as long as no value changes its kind
or overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.runtime.dtypes import dtype_name, kind_rank
from ingot.runtime.errors import ArgumentError, OutOfMemoryError
from ingot.runtime.manifest import TensorSpec

_PYTHON_VALUES = (bool, int, float, list, tuple)


def order_arguments(inputs: Sequence[TensorSpec], args: Sequence, kwargs: dict[str, Any]) -> list[Any]:
    """Positional and named arguments in the order of the inputs."""
    if len(args) > len(inputs):
        raise ArgumentError(f"got {len(args)} arguments, the program has {len(inputs)} inputs: {_names(inputs)}")
    ordered = list(args)
    remaining = dict(kwargs)
    for position, spec in enumerate(inputs):
        if position < len(args):
            if spec.name in remaining:
                raise ArgumentError(f"input {spec.name!r} was given twice, by position and by name")
        elif spec.name in remaining:
            ordered.append(remaining.pop(spec.name))
        else:
            raise ArgumentError(f"input {spec.name!r} is missing; the inputs are {_names(inputs)}")
    if remaining:
        raise ArgumentError(f"there is no input {next(iter(remaining))!r}; the inputs are {_names(inputs)}")
    return ordered


def _names(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, inputs)) or "none"


def convert_argument(spec: TensorSpec, value: object) -> np.ndarray:
    """The value as an aligned C-contiguous array of the input's dtype."""
    if isinstance(value, _PYTHON_VALUES):
        return _convert_python_value(spec, value)
    array = np.asarray(value)
    if array.dtype != spec.numpy_dtype:
        raise ArgumentError(f"input {spec.name!r} must be {spec.dtype}, got {_describe(array)}; convert it with astype")
    try:
        return np.require(array, requirements=("C_CONTIGUOUS", "ALIGNED"))
    except MemoryError:
        raise OutOfMemoryError(f"no room for a contiguous copy of input {spec.name!r}") from None


def _convert_python_value(spec: TensorSpec, value: object) -> np.ndarray:
    try:
        natural = np.asarray(value)
    except ValueError:
        raise ArgumentError(f"input {spec.name!r} must be {spec.dtype}, got a ragged list") from None
    target = spec.numpy_dtype
    have, want = kind_rank(natural.dtype), kind_rank(target)
    if have is None or want is None or (have > want and natural.size):
        raise ArgumentError(f"input {spec.name!r} must be {spec.dtype}, got {_describe(natural)}")
    try:
        converted = np.array(value, dtype=target, order="C")
    except (OverflowError, ValueError):
        raise ArgumentError(f"input {spec.name!r} must be {spec.dtype}, a value does not fit it") from None
    return converted


def _describe(array: np.ndarray) -> str:
    return f"{dtype_name(array.dtype)}[{', '.join(map(str, array.shape))}]"


def check_shape(spec: TensorSpec, shape: tuple[int, ...], expected: tuple[int, ...], dims: dict[str, int]) -> None:
    """Raise unless `shape` is `expected`; the message speaks the language of the declared shape."""
    if shape == expected:
        return
    declared = f"[{', '.join(map(str, spec.shape))}]"
    if len(shape) != len(expected):
        raise ArgumentError(f"{spec.name!r} must have {len(expected)} axes {declared}, got {len(shape)}: {list(shape)}")
    axis = next(axis for axis, extent in enumerate(expected) if shape[axis] != extent)
    bound = f" where {', '.join(f'{name} = {value}' for name, value in dims.items())}" if dims else ""
    raise ArgumentError(
        f"{spec.name!r} must have shape {declared}{bound}: axis {axis} must be {expected[axis]}, got {list(shape)}"
    )


def check_target(spec: TensorSpec, array: object, what: str) -> np.ndarray:
    """An array that a program may write into: of the exact dtype, contiguous, writeable."""
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{what} {spec.name!r} must be a NumPy array, got {type(array).__name__}")
    if array.dtype != spec.numpy_dtype:
        raise ArgumentError(f"{what} {spec.name!r} must be {spec.dtype}, got {_describe(array)}")
    if not array.flags.carray:
        raise ArgumentError(f"{what} {spec.name!r} must be a writeable, C-contiguous, aligned array")
    return array
