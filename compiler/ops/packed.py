"""Weights of a few bits, several to a word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.compiler.ir import scalar
from ingot.compiler.ir.scalar import IndexValue, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, f32, u32
from ingot.compiler.ops.base import Op, OpTypeError, Sample

WORD = 32  # bits
WHOLE = 0x4B000000  # the bits of 2^23 as f32, whose last place is 1: a small integer in its lowest bits is added to it


@dataclass(frozen=True)
class Unpack(Op):
    """y[k, n] = (code - zero) * scale[k // block, n], where the code is what `bits` bits of words[k // p, n] from bit
    (k % p) * bits on say, p = 32 // bits. Zero is a number, or zeros[k // block, n] of a third operand. With a table it
    is table[code] * scale, and there is no zero.

    Weights of a product are decoded by whoever reads them: all that memory holds, and gives, are the words.
    """

    movement = True  # less is read than of what it stands for, which pays for the arithmetic
    read_through = True
    differentiable = False

    rows: int
    bits: int
    block: int
    zero: int | None = None
    table: tuple[float, ...] = ()

    @property
    def per_word(self) -> int:
        return WORD // self.bits

    def infer(self, words: TensorType, scales: TensorType, *zeros: TensorType) -> TensorType:
        if self.bits not in (2, 4, 8) or self.block < 1 or self.block % self.per_word:
            raise OpTypeError(f"unpack: blocks of {self.block} codes of {self.bits} bits are no whole words")
        if words.rank != 2 or words.dtype != u32 or any(t.dtype != f32 for t in (scales, *zeros)):
            raise OpTypeError(f"unpack: takes words of 32 bits and f32 scales, not {words!r} and {scales!r}")
        if self.table:
            if len(self.table) != 1 << self.bits or self.bits > 4 or self.zero is not None or zeros:
                raise OpTypeError(f"unpack: a table has a number for each code of at most 4 bits, and no zero; it has {len(self.table)}")
        elif (self.zero is None) != (len(zeros) == 1):
            raise OpTypeError("unpack: zero is a number, or one more operand")
        columns = words.shape[1]
        if words.shape[0] != -(-self.rows // self.per_word):
            raise OpTypeError(f"unpack: {words!r} does not hold {self.rows} rows")
        for each in (scales, *zeros):
            if each.shape != (-(-self.rows // self.block), columns):
                raise OpTypeError(f"unpack: {each!r} is not one number for each block of {self.block} rows")
        return TensorType(f32, (self.rows, columns))

    def evaluate(self, words: np.ndarray, scales: np.ndarray, *zeros: np.ndarray) -> np.ndarray:
        k = np.arange(self.rows)
        shifts = (k % self.per_word * self.bits).astype(np.uint32)[:, None]
        codes = (words[k // self.per_word] >> shifts) & np.uint32((1 << self.bits) - 1)
        if self.table:
            return np.array(self.table, np.float32)[codes] * scales[k // self.block]
        zero = zeros[0][k // self.block] if zeros else np.float32(self.zero)
        return (codes.astype(np.float32) - zero) * scales[k // self.block]

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        row, column = index
        word, place = row // self.per_word, row % self.per_word
        group = word // (self.block // self.per_word)
        shifted = scalar.apply("shr", operands[0](word, column), scalar.cast(IndexValue(self.bits * place), u32))
        code = scalar.apply("and", shifted, scalar.constant((1 << self.bits) - 1, u32))
        scale = operands[1](group, column)
        if self.table:
            return scalar.apply("mul", _chosen(code, self.table), scale)
        if self.zero is None:
            return scalar.apply("mul", scalar.apply("sub", scalar.cast(code, f32), operands[2](group, column)), scale)
        whole = scalar.Bitcast(scalar.apply("or", code, scalar.constant(WHOLE, u32)), f32)
        centred = scalar.apply("sub", whole, scalar.constant(float((1 << 23) + self.zero), f32))
        return scalar.apply("mul", centred, scale)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(20, 4, 8, 8), (u32[3, 5], f32[3, 5]))
        yield Sample(cls(16, 4, 16), (u32[2, 5], f32[1, 5], f32[1, 5]))
        yield Sample(cls(9, 8, 4, 128), (u32[3, 4], f32[3, 4]))
        yield Sample(cls(33, 2, 32, 0), (u32[3, 4], f32[2, 4]))
        yield Sample(cls(20, 4, 8, table=tuple(n * n / 64 for n in range(-8, 8))), (u32[3, 5], f32[3, 5]))


def _chosen(code: Scalar, table: tuple[float, ...]) -> Scalar:
    """The number that a code stands for, by its bits from the highest on: no memory is read, and every lane of a vector
    takes the same way."""
    if len(table) == 1:
        return scalar.constant(float(np.float32(table[0])), f32)
    half = len(table) // 2
    bit = scalar.apply("and", code, scalar.constant(half, u32))
    is_low = scalar.apply("eq", bit, scalar.constant(0, u32))
    return scalar.select(is_low, _chosen(code, table[:half]), _chosen(code, table[half:]))
