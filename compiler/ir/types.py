"""Element types and tensor types.

`f32[64, 784]`, `f32["batch", 784]` and `f32[()]` are TensorTypes; a string dim is a symbolic
dim (`"batch"`, or an expression of such names: `"2*batch + 1"`).

Invariant: types are immutable and equal when they mean the same; NumPy (with ml_dtypes for
bfloat16 and the storage-only types) is the meaning of every element type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import ml_dtypes
import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, eq=False)
class DType:
    """An element type, one object for each. `compute` is the type its arithmetic is done in (f16 and bf16 use f32)."""

    name: str
    kind: Kind
    bits: int

    @cached_property
    def numpy(self) -> np.dtype:
        return np.dtype(_NUMPY[self.name])  # type: ignore[call-overload]

    @cached_property
    def itemsize(self) -> int:
        return max(1, self.bits // 8)

    @cached_property
    def compute(self) -> DType:
        return f32 if self.kind == "float" and self.bits < 32 else self

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __getitem__(self, shape: object) -> TensorType:
        dims = shape if isinstance(shape, tuple) else (shape,)
        return TensorType(self, tuple(as_dim(d) for d in dims))

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return DTYPES.__getitem__, (self.name,)  # a copy is the same object


_NUMPY: dict[str, object] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
}  # fmt: skip

f64, f32, f16, bf16 = (DType(n, "float", b) for n, b in (("f64", 64), ("f32", 32), ("f16", 16), ("bf16", 16)))
i8, i16, i32, i64 = (DType(f"i{b}", "int", b) for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
boolean = DType("bool", "bool", 8)

DTYPES: dict[str, DType] = {t.name: t for t in (f64, f32, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, boolean)}
_BY_NUMPY: dict[np.dtype, DType] = {t.numpy: t for t in DTYPES.values()}


def dtype_of(array_or_dtype: object) -> DType:
    """The DType of a NumPy array, scalar or dtype; TypeError names one that Ingot does not have."""
    found = np.dtype(getattr(array_or_dtype, "dtype", array_or_dtype))  # type: ignore[arg-type]
    try:
        return _BY_NUMPY[found.newbyteorder("=")]
    except KeyError:
        known = ", ".join(DTYPES)
        raise TypeError(f"element type {found} is not supported; use one of {known}") from None


MOST_AXES = 64  # of an array of NumPy's, which is what goes in, comes out and is computed with before a program is made


class NegativeDimension(ValueError):
    """A dim of a type would be negative."""


def as_dim(dim: object) -> Dim:
    """An int, a symbolic expression, or a text of one."""
    if isinstance(dim, str):
        return symbolic.parse(dim, symbolic.Symbol)
    if isinstance(dim, (int, np.integer)) and not isinstance(dim, bool):
        if dim < 0:
            raise NegativeDimension(f"a dimension cannot be negative: {dim}")
        return int(dim)
    if isinstance(dim, symbolic.Expr):
        return dim
    raise TypeError(f"a dimension is an int, a name or a symbolic expression, not {dim!r}")


@dataclass(frozen=True)
class TensorType:
    """An element type and a shape."""

    dtype: DType
    shape: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> Dim:
        return symbolic.product(self.shape)

    @property
    def bytes(self) -> Dim:
        return self.size * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        if not self.is_static:
            raise ValueError(f"{self} has symbolic dims")
        return tuple(d for d in self.shape if isinstance(d, int))

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(dim_text(d) for d in self.shape)}]"


@dataclass(frozen=True)
class TupleType:
    """The type of an op with several results; `Get(i)` selects one."""

    elements: tuple[TensorType, ...]

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.elements))})"


Type = TensorType | TupleType


def dim_text(dim: Dim) -> str:
    return symbolic.to_text(dim)


def type_of(array: object) -> TensorType:
    """The static type of a NumPy array (or anything np.asarray takes)."""
    array = np.asarray(array)
    return TensorType(dtype_of(array), tuple(array.shape))


def row_major_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Element strides of a contiguous tensor."""
    strides: list[Dim] = []
    step: Dim = 1
    for dim in reversed(shape):
        strides.append(step)
        step = step * dim
    return tuple(reversed(strides))
