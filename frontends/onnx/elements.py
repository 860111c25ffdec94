"""ONNX element types and how Ingot keeps them.

Types that the compiler has are kept as they are. Narrow types that it does not compute in (8-bit floats, 4- and
2-bit numbers) are `coded`: integers keep their value in a wider integer, floats their bits in a u8; conversions
(codes.py) are arithmetic like any other. Strings and complex numbers have no storage: they stay on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto

from ingot.compiler.ir.types import (
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)


@dataclass(frozen=True)
class Element:
    """An ONNX element type. `storage` is the type of its tensors; None: it cannot be compiled."""

    code: int
    name: str
    numpy: np.dtype
    storage: DType | None
    bits: int

    @property
    def is_coded(self) -> bool:
        """Whether the storage type is not the element type itself."""
        return self.storage is not None and self.storage.numpy != self.numpy

    @property
    def is_coded_float(self) -> bool:
        return self.is_coded and self.name.startswith("FLOAT")

    def encode(self, array: np.ndarray) -> np.ndarray:
        """An array of this type as an array of its storage type."""
        if not self.is_coded:
            return array
        assert self.storage is not None
        if self.is_coded_float:
            return np.ascontiguousarray(array).view(np.uint8)
        return array.astype(self.storage.numpy)

    def decode(self, array: np.ndarray) -> np.ndarray:
        """The inverse of encode."""
        if not self.is_coded:
            return array
        return array.view(self.numpy) if self.is_coded_float else array.astype(self.numpy)

    def __repr__(self) -> str:
        return self.name.lower()


def _plain(name: str, storage: DType) -> Element:
    return Element(TensorProto.DataType.Value(name), name, storage.numpy, storage, storage.bits)


def _coded(name: str, numpy: object, storage: DType, bits: int) -> Element:
    return Element(TensorProto.DataType.Value(name), name, np.dtype(numpy), storage, bits)  # type: ignore[call-overload]


def _host(name: str, numpy: object) -> Element:
    return Element(TensorProto.DataType.Value(name), name, np.dtype(numpy), None, 0)  # type: ignore[call-overload]


FLOAT = _plain("FLOAT", f32)
DOUBLE = _plain("DOUBLE", f64)
FLOAT16 = _plain("FLOAT16", f16)
BFLOAT16 = _plain("BFLOAT16", bf16)
BOOL = _plain("BOOL", boolean)
STRING = _host("STRING", object)

_ALL = (
    FLOAT, DOUBLE, FLOAT16, BFLOAT16, BOOL, STRING,
    _plain("INT8", i8), _plain("INT16", i16), _plain("INT32", i32), _plain("INT64", i64),
    _plain("UINT8", u8), _plain("UINT16", u16), _plain("UINT32", u32), _plain("UINT64", u64),
    _host("COMPLEX64", np.complex64), _host("COMPLEX128", np.complex128),
    _coded("FLOAT8E4M3FN", ml_dtypes.float8_e4m3fn, u8, 8),
    _coded("FLOAT8E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, u8, 8),
    _coded("FLOAT8E5M2", ml_dtypes.float8_e5m2, u8, 8),
    _coded("FLOAT8E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, u8, 8),
    _coded("FLOAT8E8M0", ml_dtypes.float8_e8m0fnu, u8, 8),
    _coded("FLOAT4E2M1", ml_dtypes.float4_e2m1fn, u8, 4),
    _coded("INT4", ml_dtypes.int4, i8, 4), _coded("UINT4", ml_dtypes.uint4, u8, 4),
    _coded("INT2", ml_dtypes.int2, i8, 2), _coded("UINT2", ml_dtypes.uint2, u8, 2),
)  # fmt: skip

ELEMENTS: dict[int, Element] = {e.code: e for e in _ALL}
_BY_NUMPY: dict[np.dtype, Element] = {e.numpy: e for e in _ALL if e is not STRING}


def element(code: int) -> Element | None:
    """The element type of an ONNX type code; None when there is no such type here."""
    return ELEMENTS.get(code)


def element_of(array: np.ndarray) -> Element:
    """The element type of an array; TypeError names one that ONNX does not have."""
    if array.dtype.kind in "OUST":
        return STRING
    try:
        return _BY_NUMPY[array.dtype.newbyteorder("=")]
    except KeyError:
        raise TypeError(f"element type {array.dtype} is not an ONNX element type") from None


def element_of_dtype(dtype: DType) -> Element:
    return _BY_NUMPY[dtype.numpy]


def is_plain(array: np.ndarray) -> bool:
    """Whether the compiler has the array's element type."""
    if array.dtype.kind in "OUSTc":
        return False
    return not element_of(array).is_coded
