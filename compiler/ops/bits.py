"""The bits of elements, seen as another type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.compiler.ir import scalar
from ingot.compiler.ir.scalar import Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, boolean, f16, f32, f64, i16, i32, i64, u32
from ingot.compiler.ops.base import Op, OpTypeError, Sample


@dataclass(frozen=True)
class Bitcast(Op):
    """y[i] = the bits of x[i] as an element of another type of the same width."""

    dtype: DType
    differentiable = False
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.bits != self.dtype.bits or boolean in (x.dtype, self.dtype):
            raise OpTypeError(f"bitcast: the bits of {x.dtype} are not an element of {self.dtype}")
        return x.with_dtype(self.dtype)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x).view(self.dtype.numpy).reshape(x.shape)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        value = operands[0](*index)
        return value if value.dtype == self.dtype else scalar.Bitcast(value, self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for source, target in ((f32, i32), (f32, u32), (i32, f32), (f64, i64), (f16, i16), (i16, f16), (f32, f32)):
            yield Sample(cls(target), (source[3, 5],))
