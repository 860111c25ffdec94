"""Matrix products, einsum, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir.types import f64, i16, i32, i64
from ingot.compiler.ops.contraction import contract, einsum
from ingot.compiler.ops.contraction import matmul as contracted
from ingot.compiler.ops.indexing import Gather
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call, evaluate
from ingot.frontends.onnx.convert.elementwise import same_dtype
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op

UNROLLED_SIZE = 16  # of matrices whose elimination is written out


@onnx_op("MatMul")
def matmul(op: Call, a: Tensor, b: Tensor) -> Any:
    same_dtype(op, a, b)
    return contracted(a, b)


@onnx_op("Gemm")
def gemm(op: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Any:
    left = "ki" if op.get("transA", 0) else "ik"
    right = "jk" if op.get("transB", 0) else "kj"
    op.require(a.rank == b.rank == 2, Kind.BAD_SHAPE, f"it multiplies matrices, not {a.type!r} and {b.type!r}")
    product = _scaled(contract(a, left, b, right, "ij"), op.get("alpha", 1.0))
    if c is None:
        return product
    return product + _scaled(c, op.get("beta", 1.0))


def _scaled(x: Any, factor: float) -> Any:
    if factor == 1.0:
        return x
    return x * factor if x.dtype.is_float else (x.cast(f64) * factor).cast(x.dtype)


@onnx_op("Einsum")
def einsum_(op: Call, *operands: Tensor) -> Any:
    return einsum(op.get("equation").replace(" ", ""), *operands)


@onnx_op("MatMulInteger")
def matmul_integer(
    op: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Any:
    return integer_product(a, b, a_zero, b_zero)


def integer_product(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Any:
    """(a - a_zero) @ (b - b_zero) in i32. Zero points are numbers, or one per row of a and per column of b."""
    if a_zero is not None and a_zero.rank == 1 and a_zero.shape != (1,):
        a_zero = a_zero.reshape(*a_zero.shape, 1)
    return contracted(without_zero(a, a_zero), without_zero(b, b_zero))


def without_zero(codes: Tensor, zero: Tensor | None) -> Any:
    """codes - zero in i32. Differences of 8-bit codes are kept in 16 bits, which products are fastest with; weights
    whose zero points are known to be 0, as most are, stay as they are."""
    known = None if zero is None else evaluate(zero)
    if zero is None or (known is not None and not known.any()):
        return codes.cast(i32)
    narrow = i16 if codes.dtype.bits == zero.dtype.bits == 8 else i32
    return (codes.cast(narrow) - zero.cast(narrow)).cast(i32)


@onnx_op("Det", least_ranks={0: 2})
def det(op: Call, x: Tensor) -> Any:
    """Of square matrices of a known size, by elimination with the largest pivot of each column."""
    size = x.shape[-1]
    op.require(isinstance(size, int), Kind.UNSUPPORTED, f"matrices of the unknown size {size}")
    rows = x.shape[-2]
    op.require(not isinstance(rows, int) or rows == size, Kind.BAD_SHAPE, f"{x.type!r} holds no square matrices")
    assert isinstance(size, int)
    if size > UNROLLED_SIZE:
        return _looped_det(op, x, size)
    if size == 0:
        return x.full(x.shape[:-2], 1.0)
    matrix, result = x, None
    for k in range(size):
        column = matrix[..., :, 0]
        best = column.abs().argmax(-1)
        row = best.expand_dims(-1).expand_dims(-1).broadcast_to((*matrix.shape[:-2], 1, size - k))
        pivot_row = matrix.gather_elements(row, axis=matrix.rank - 2)
        sign = (best == 0).where(1.0, -1.0).cast(x.dtype)
        pivot = pivot_row[..., 0, 0]
        factor = sign * pivot
        result = factor if result is None else result * factor
        if k == size - 1:
            break
        # the pivot row changes places with the first; what is left of the others is eliminated
        places = _arange(op, size - k - 1, matrix)
        source = (places + 1 == best.expand_dims(-1)).where(0, places + 1)
        rest = matrix.gather_elements(
            source.expand_dims(-1).broadcast_to((*matrix.shape[:-2], size - k - 1, size - k)), axis=matrix.rank - 2
        )
        safe = (pivot == 0).where(1.0, pivot).expand_dims(-1).expand_dims(-1)
        matrix = rest[..., :, 1:] - rest[..., :, :1] * (pivot_row[..., :, 1:] / safe)
    return result


def _looped_det(op: Call, x: Tensor, size: int) -> Any:
    """The same with one body for all columns: rows above the pivot stay in place and are not looked at again."""
    row = op.constant(np.arange(size, dtype=np.int64))
    last, before = x.rank - 1, x.rank - 2

    def step(carry: Any, k: Any) -> Any:
        matrix, result = carry
        column = matrix.apply(Gather(last), k)
        best = (row >= k).where(column.abs(), -1.0).argmax(-1)
        chosen = best.expand_dims(-1)
        source = (row == k).where(chosen, (row == chosen).where(k, row)).expand_dims(-1).broadcast_to(matrix.shape)
        swapped = matrix.gather_elements(source, axis=before)
        pivot_row = swapped.apply(Gather(before), k)
        pivot = pivot_row.apply(Gather(before), k)
        factor = (best == k).where(1.0, -1.0).cast(x.dtype) * pivot
        safe = (pivot == 0).where(1.0, pivot).expand_dims(-1)
        below = (row > k).where(swapped.apply(Gather(last), k), 0.0).expand_dims(-1)
        return (swapped - below * (pivot_row / safe).expand_dims(-2), result * factor), None

    start = x.full(x.shape[:-2], 1.0)
    (_, result), _ = functions.scan(step, (x, start), row)
    return result


def _arange(op: Call, count: int, like: Tensor) -> Any:
    line = op.constant(np.arange(count, dtype=np.int64))
    return line.cast(i64).reshape(*[1] * (like.rank - 2), count).broadcast_to((*like.shape[:-2], count))
