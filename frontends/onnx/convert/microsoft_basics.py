"""com.microsoft: small ops, most of which the standard has too, in other forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import i32, i64, u32, u64
from ingot.compiler.ops.base import broadcast_shapes, normalize_axis
from ingot.compiler.ops.contraction import matmul as contracted
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Iota, stack
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import MOST_ELEMENTS, Call
from ingot.frontends.onnx.convert.constants import range_
from ingot.frontends.onnx.convert.indexing import gather_nd
from ingot.frontends.onnx.convert.microsoft import fast_gelu
from ingot.frontends.onnx.convert.movement import padded, trilu
from ingot.frontends.onnx.convert.signal import real_inverse, transformed, waves
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op

onnx_op("Range", domain=MICROSOFT, raw=True)(range_)
onnx_op("Trilu", domain=MICROSOFT, known=(1,))(trilu)
onnx_op("GatherND", domain=MICROSOFT, moves=True)(gather_nd)

# --- shapes -----------------------------------------------------------------------------------------


@onnx_op("ExpandDims", domain=MICROSOFT, known=(1,), moves=True)
def expand_dims(op: Call, x: Tensor, axis: np.ndarray) -> Any:
    return x.expand_dims(op.integer(axis, "the axis"))


@onnx_op("Pad", domain=MICROSOFT, dims=(1,), known=(2,))
def pad(op: Call, x: Tensor, pads: tuple[Dim, ...], value: np.ndarray | None = None) -> Any:
    op.choice("mode", "constant", ("constant", "reflect", "edge"))
    filler = 0.0 if value is None else op.number(value, "the value")
    return padded(op, x, pads, filler, range(x.rank))


@onnx_op("UnfoldTensor", domain=MICROSOFT, least_ranks={0: 1}, moves=True)
def unfold_tensor(op: Call, x: Tensor) -> Any:
    """All windows of `size` elements along an axis, as one axis more at the end."""
    axis, size, step = normalize_axis(op.get("dim", -1), x.rank, op.name), op.get("size"), op.get("step", 1)
    extent = x.shape[axis]
    op.require(step > 0 and size > 0, Kind.BAD_ATTRIBUTE, f"windows of {size} elements every {step}")
    op.require(not isinstance(extent, int) or size <= extent, Kind.BAD_SHAPE, f"windows of {size} elements of {x.type!r}")
    shape = ((extent - size) // step + 1, size)
    places = Tensor(op.trace, op.trace.emit(Iota(shape, 0, i64))) * step + Tensor(op.trace, op.trace.emit(Iota(shape, 1, i64)))
    windows = x.apply(Gather(axis), places)
    return windows.transpose((*(n for n in range(x.rank + 1) if n != axis + 1), axis + 1))


# --- products and sums ------------------------------------------------------------------------------


@onnx_op("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(op: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Any:
    return fast_gelu(op, contracted(x, w), bias)


@onnx_op("BiasSoftmax", domain=MICROSOFT, least_ranks={0: 1})
def bias_softmax(op: Call, x: Tensor, bias: Tensor) -> Any:
    """Over all axes from one on. Which axes of the bias are missing is in its shape."""
    axis = normalize_axis(op.get("axis", 1), x.rank, op.name)
    op.require(broadcast_shapes(op.name, x.shape, bias.shape) == x.shape, Kind.BAD_SHAPE, f"{bias.type!r} is added to {x.type!r}")
    total = x + bias
    flat = total.reshape(*x.shape[:axis], symbolic.product(x.shape[axis:]))
    return flat.softmax(-1).reshape(*x.shape)


@onnx_op("ComplexMul", "ComplexMulConj", domain=MICROSOFT, least_ranks={0: 1, 1: 1})
def complex_mul(op: Call, a: Tensor, b: Tensor) -> Any:
    """Pairs of the last axis as complex numbers, the second one conjugate or not."""
    for x in (a, b):
        op.require(x.shape[-1] == 2, Kind.BAD_SHAPE, f"{x.type!r} holds no pairs")
    real, imaginary = b[..., 0], -b[..., 1] if op.name == "ComplexMulConj" else b[..., 1]
    return stack([a[..., 0] * real - a[..., 1] * imaginary, a[..., 0] * imaginary + a[..., 1] * real], -1)


@onnx_op("Rfft", domain=MICROSOFT, least_ranks={0: 1})
def rfft(op: Call, x: Tensor) -> Any:
    length = _length(op, x.shape[-1], x.rank)
    cosine, sine = waves(length, length, length // 2 + 1, False)
    return stack(list(transformed(op, x, None, x.rank - 1, cosine, sine)), -1)


@onnx_op("Irfft", domain=MICROSOFT, least_ranks={0: 2})
def irfft(op: Call, x: Tensor) -> Any:
    op.require(x.shape[-1] == 2, Kind.BAD_SHAPE, f"{x.type!r} holds no pairs")
    count = x.shape[-2]
    length = _length(op, 2 * (count - 1), x.rank - 1)
    return real_inverse(op, x[..., 0], x[..., 1], x.rank - 2, length)[..., 0]


def _length(op: Call, length: Dim, rank: int) -> int:
    """The length of a transform over the last axis, one-sided and not normalised before its inverse."""
    for name, default, wanted in (("signal_ndim", 1, 1), ("onesided", 1, 1), ("normalized", 0, 0)):
        found = op.get(name, default)
        op.require(found == wanted, Kind.UNSUPPORTED, f"{name}={found} of {op.name}")
    op.require(rank <= 8, Kind.UNSUPPORTED, f"a transform of data with {rank} axes")
    op.require(isinstance(length, int), Kind.UNSUPPORTED, f"a transform over the symbolic dim {length}")
    assert isinstance(length, int)
    op.require(length > 0, Kind.BAD_SHAPE, f"the length of the transform is {length}")
    op.bounded(length * length, "the square of the length of the transform", MOST_ELEMENTS)
    return length


# --- hashes -----------------------------------------------------------------------------------------


@onnx_op("MurmurHash3", domain=MICROSOFT)
def murmur_hash(op: Call, x: Tensor) -> Any:
    """MurmurHash3 of 32 bits of each element's bytes, of which there are four or eight."""
    op.require(x.dtype.bits in (32, 64), Kind.ELEMENT_TYPE, f"it does not hash {x.dtype} values")
    words: list[Any]
    if x.dtype.bits == 32:
        words = [x if x.dtype == u32 else x.bitcast(dtype=u32)]
    else:
        whole = x if x.dtype == u64 else x.bitcast(dtype=u64)
        words = [whole.cast(u32), (whole >> 32).cast(u32)]
    seed = op.get("seed", 0) & 0xFFFFFFFF
    state: Any = op.constant(np.asarray(seed, np.uint32))
    for word in words:
        state = state ^ (_turned(word * _word(op, 0xCC9E2D51), 15) * _word(op, 0x1B873593))
        state = _turned(state, 13) * _word(op, 5) + _word(op, 0xE6546B64)
    state = state ^ _word(op, 4 * len(words))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> shift)) * _word(op, factor)
    state = state ^ (state >> 16)
    return state if op.get("positive", 1) else state.bitcast(dtype=i32)


def _word(op: Call, value: int) -> Tensor:
    return op.constant(np.asarray(value, np.uint32))


def _turned(word: Any, by: int) -> Any:
    """The bits moved to the left, those that fall out coming back on the right."""
    return (word << by) | (word >> (32 - by))
