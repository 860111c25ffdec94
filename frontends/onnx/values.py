"""What a name of an ONNX graph stands for while it is imported.

    Tensor        a traced value
    np.ndarray    an array that is known now (initializers, constants and what is computed from them)
    Dims          known integers of which some are symbolic dims: what Shape gives, and arithmetic on it
    Coded         a traced value of an element type that the compiler does not have, in its storage type
    Pending       a value that exists only while the program runs: the nodes that read it wait
    Held          a sequence or an optional whose parts are such values
    Opaque        a value that only the host understands (strings, maps)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr
from ingot.compiler.ir.types import DType, i64
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.elements import Element, element_of, element_of_dtype
from ingot.frontends.onnx.problems import Kind, ProblemError


@dataclass(frozen=True)
class Ratio:
    """A symbolic dim times a fraction that floats represent exactly: what size arithmetic in floats makes."""

    dim: Expr
    factor: Fraction

    def floor(self) -> Dim:
        return self.dim * self.factor.numerator // self.factor.denominator

    def ceil(self) -> Dim:
        return symbolic.ceildiv(self.dim * self.factor.numerator, self.factor.denominator)


@dataclass(frozen=True, eq=False)
class Dims:
    """Known numbers, at least one of them symbolic. `array` holds objects: int, Expr or Ratio."""

    array: np.ndarray
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __repr__(self) -> str:
        return f"Dims({self.array.tolist()})"


@dataclass(frozen=True, eq=False)
class Coded:
    """A traced tensor whose element type is `element`, kept as that type's storage."""

    tensor: Tensor
    element: Element


@dataclass(frozen=True, eq=False)
class Held:
    """A sequence (a list of values) or an empty optional (None). Its parts are values like any other, so that
    sequences of tensors need no host."""

    value: Any


@dataclass(frozen=True)
class Opaque:
    """A value that exists but that only the host understands: strings, maps."""


@dataclass(frozen=True)
class Pending:
    """A value that the host will know; `reason` says why it is not traced."""

    reason: str


Value = Tensor | np.ndarray | Dims | Coded | Held | Opaque | Pending | None


def known(array: np.ndarray, dtype: DType) -> np.ndarray | Dims:
    """An array of objects as Dims, or as a plain array when none of its elements is symbolic."""
    if any(isinstance(item, Expr | Ratio) for item in array.ravel()):
        return Dims(array, dtype)
    return array.astype(dtype.numpy)


def known_dims(dims: Any) -> np.ndarray | Dims:
    """A shape as a value of ONNX's integer type."""
    items = list(dims)
    array = np.empty(len(items), object)
    array[:] = items
    return known(array, i64)


def number_of(array: np.ndarray, what: str) -> Any:
    """The one number of an array, as a Python number."""
    if array.size != 1:
        raise ProblemError(Kind.BAD_SHAPE, f"{what} has the shape {list(array.shape)}; it is one number")
    number = array.reshape(()).item()
    if not isinstance(number, int | float):
        raise ProblemError(Kind.ELEMENT_TYPE, f"{what} is {number!r}; it is a real number")
    return number


def shape_of(value: Value) -> tuple[Dim, ...]:
    if isinstance(value, Coded):
        return value.tensor.shape
    if isinstance(value, Tensor | np.ndarray | Dims):
        return tuple(value.shape)
    raise TypeError(f"{value!r} has no shape")


def element_of_value(value: Value) -> Element:
    """The ONNX element type of a value."""
    if isinstance(value, Coded):
        return value.element
    if isinstance(value, Tensor | Dims):
        return element_of_dtype(value.dtype)
    if isinstance(value, np.ndarray):
        return element_of(value)
    raise ProblemError(Kind.ELEMENT_TYPE, "strings, maps or sequences stand where numbers belong")
