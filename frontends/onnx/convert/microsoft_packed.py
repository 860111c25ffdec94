"""com.microsoft: weights of a few bits, several to a byte, that stay so in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import f32, i32, i64, u8
from ingot.compiler.ops.base import normalize_axis
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.contraction import matmul as contracted
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Iota
from ingot.compiler.ops.packed import Unpack
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.codes import decoded
from ingot.frontends.onnx.convert.quantized import repeated
from ingot.frontends.onnx.elements import element_of_dtype
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op
from ingot.frontends.onnx.values import Coded, Value, element_of_value

# what the codes of bitsandbytes stand for, as parts of the largest number of their block
FLOAT_4 = (
    0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
    0.0, -5.208333333e-03, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25,
)  # fmt: skip
NORMAL_4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip

# --- products ---------------------------------------------------------------------------------------


@onnx_op("MatMulNBits", domain=MICROSOFT, known=(1, 3), least_ranks={0: 1})
def matmul_n_bits(
    op: Call,
    a: Tensor,
    packed: np.ndarray,
    scales: Tensor,
    zeros: np.ndarray | None = None,
    groups: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    """Weights [n, k] of few bits in blocks along k, each with a scale and a zero point (the middle by default)."""
    op.require(groups is None, Kind.UNSUPPORTED, "g_idx of MatMulNBits")
    rows, columns, bits, block = op.get("N"), op.get("K"), op.get("bits", 4), op.get("block_size")
    op.require(bits in (2, 4, 8), Kind.BAD_ATTRIBUTE, f"weights of {bits} bits; they have 2, 4 or 8")
    op.require(min(rows, columns, block) > 0, Kind.BAD_ATTRIBUTE, f"{rows} rows of {columns} weights in blocks of {block}")
    op.require(block * bits % 8 == 0, Kind.BAD_ATTRIBUTE, f"blocks of {block} weights of {bits} bits are no whole bytes")
    blocks = -(-columns // block)
    needs = rows * blocks * (block * bits // 8)
    op.require(packed.dtype == np.uint8 and packed.size == needs, Kind.BAD_SHAPE,
               f"the weights are {packed.size} elements of {packed.dtype}; {needs} bytes hold {rows} rows of {columns}")  # fmt: skip
    if zeros is not None:
        count = rows * (-(-blocks * bits // 8) if zeros.dtype == np.uint8 else blocks)
        op.require(zeros.size == count, Kind.BAD_SHAPE, f"{zeros.size} zero points of {zeros.dtype} instead of {count}")
    op.require(a.rank <= 6, Kind.BAD_SHAPE, f"{a.type!r} has more than 6 axes")
    codes = codes_of(packed.reshape(rows, blocks, -1), bits, block)
    if zeros is None:
        centre = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        centre = codes_of(zeros.reshape(rows, 1, -1), bits, blocks)[:, 0]
    else:
        centre = zeros.reshape(rows, blocks)
    if a.dtype == scales.dtype == f32 and block % (32 // bits) == 0:
        weight = _in_words(op, codes.reshape(rows, -1), scales.reshape(rows, blocks), centre, Unpack(columns, bits, block))
        product = contracted(a, weight)
        return product if bias is None else product + bias
    # codes without their zero point are small integers: the product with the scales is left to the program
    centred = (codes.astype(np.float32) - centre.astype(np.float32)[:, :, None]).astype(np.int8 if zeros is None or zeros.dtype == np.uint8 else np.float32)
    weight = op.constant(centred).cast(a.dtype) * scales.cast(a.dtype).reshape(rows, blocks, 1)
    weight = weight.reshape(rows, blocks * block)[:, :columns]
    letters = "abcde"[: a.rank - 1]
    product = contract(a, letters + "k", weight, "nk", letters + "n")
    return product if bias is None else product + bias


def _in_words(op: Call, codes: np.ndarray, scales: Tensor, zeros: np.ndarray, unpack: Unpack) -> Any:
    """The weight [k, n] of codes [n, k]: words of neighbours along k, which the product itself decodes."""
    data, factors = op.constant(words_of(codes, unpack)), scales.swapaxes(0, 1)
    if zeros.size and (zeros == zeros.flat[0]).all() and float(zeros.flat[0]).is_integer():
        return data.apply(replace(unpack, zero=int(zeros.flat[0])), factors)
    return data.apply(unpack, factors, op.constant(np.ascontiguousarray(zeros.T.astype(np.float32))))


def words_of(codes: np.ndarray, unpack: Unpack) -> np.ndarray:
    count = -(-unpack.rows // unpack.per_word)
    apart = codes[:, : count * unpack.per_word].reshape(len(codes), count, unpack.per_word).astype(np.uint32)
    words = np.bitwise_or.reduce(apart << (np.arange(unpack.per_word, dtype=np.uint32) * unpack.bits), -1)
    return np.ascontiguousarray(words.T)


def codes_of(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` codes of the last axis, low bits first."""
    steps = 8 // bits
    shifts = np.arange(steps, dtype=np.uint8) * bits
    codes = (data[..., None] >> shifts) & ((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)[..., :count].astype(np.uint8)


@onnx_op("MatMulBnb4", domain=MICROSOFT, known=(1,), least_ranks={0: 1})
def matmul_bnb4(op: Call, a: Tensor, packed: np.ndarray, scales: Tensor) -> Any:
    """Weights [n, k] of four bits in blocks of the flat matrix, whose codes stand for the numbers of a table."""
    rows, columns, block, kind = op.get("N"), op.get("K"), op.get("block_size"), op.get("quant_type")
    op.require(kind in (0, 1), Kind.BAD_ATTRIBUTE, f"quant_type is {kind}; 0 is FP4 and 1 is NF4")
    op.require(min(rows, columns, block) > 0, Kind.BAD_ATTRIBUTE, f"{rows} rows of {columns} weights in blocks of {block}")
    count, needs = rows * columns, -(-rows * columns // 2)
    op.require(packed.dtype == np.uint8 and packed.size == needs, Kind.BAD_SHAPE,
               f"the weights are {packed.size} elements of {packed.dtype}; {needs} bytes hold {rows} rows of {columns}")  # fmt: skip
    blocks = -(-count // block)
    op.require(scales.type.size == blocks, Kind.BAD_SHAPE, f"{scales.type!r} does not hold {blocks} scales")
    op.require(a.rank <= 6, Kind.BAD_SHAPE, f"{a.type!r} has more than 6 axes")
    table = FLOAT_4 if kind == 0 else NORMAL_4
    data = packed.reshape(-1)
    codes = np.stack([data >> 4, data & 15], -1).reshape(-1)[:count]  # the first of two is in the high bits
    wide = scales.cast(f32)
    if columns % block == 0 and block % 8 == 0:
        unpack = Unpack(columns, 4, block, table=table)
        words = op.constant(words_of(codes.reshape(rows, columns), unpack))
        weight = words.apply(unpack, wide.reshape(rows, columns // block).swapaxes(0, 1))
    else:  # blocks that go on in the next row
        numbers = op.constant(np.array(table, np.float32)).apply(Gather(0), op.constant(codes))
        factors = repeated(wide.reshape(blocks), 0, block, count)
        weight = (numbers * factors).reshape(rows, columns).swapaxes(0, 1)
    letters = "abcde"[: a.rank - 1]
    before, after = "kn" if op.get("transB", 1) else "nk"
    return contract(a.cast(f32), letters + before, weight, "kn", letters + after).cast(a.dtype)


# --- tables -----------------------------------------------------------------------------------------


@onnx_op("GatherBlockQuantized", domain=MICROSOFT, raw=True)
def gather_block_quantized(op: Call, data: Value, indices: Value, scales: Value, zeros: Value = None) -> Any:
    """Slices of a table of codes; only what is chosen becomes numbers. Where an index is outside, they are 0."""
    kind, factors, index = element_of_value(data), op.tensor(scales), op.tensor(indices).cast(i64)
    shape = _table_shape(op, data)
    axis = normalize_axis(op.get("gather_axis", 0), len(shape), op.name)
    along = normalize_axis(op.get("quantize_axis", 1), len(shape), op.name)
    extent, block = shape[axis], _block_size(op, data, shape[along])
    _check_scales(op, factors, shape, along, block, kind.is_coded_float)
    index = (index < 0).where(index + op.dimension(extent, i64), index)
    valid = (index >= 0) & (index < op.dimension(extent, i64))
    index = valid.where(index, 0)
    numbers = _slices(op, data, index, axis, shape[-1])
    bits = op.get("bits", 4)
    if zeros is not None:
        op.require(element_of_value(zeros) is kind and not kind.is_coded_float, Kind.ELEMENT_TYPE, f"zero points of {kind} codes")
        op.require(len(_table_shape(op, zeros)) == len(shape), Kind.BAD_SHAPE, "the zero points have other axes than the codes")
    elif element_of_dtype(u8) is kind:
        numbers = numbers - float(1 << (bits - 1))

    def met(parameter: Any, place: Any) -> Any:
        """A parameter as it meets the slices, chosen at a place of its own."""
        if axis == along:
            return parameter
        position = along if along < axis else along + index.rank - 1
        return repeated(parameter, position, block, shape[along]) if parameter.shape[position] != shape[along] else parameter

    place = index
    if axis == along:
        place = index.binary("floor_divide", op.dimension(block, i64))
    if zeros is not None:
        numbers = numbers - met(_slices(op, zeros, place, axis, factors.shape[-1]), place)
    if factors.shape[axis] == 1:
        place = place * 0
    result = numbers * met(factors.apply(Gather(axis), place).cast(f32), place)
    inside = valid.reshape(*valid.shape, *[1] * (len(shape) - 1 - axis))
    return inside.where(result, 0.0).cast(factors.dtype)


def _table_shape(op: Call, data: Value) -> tuple[Dim, ...]:
    """The extents of a table in codes, of which a byte may hold several."""
    shape = data.shape if isinstance(data, np.ndarray) else op.stored(data)[0].shape
    op.require(len(shape) > 0, Kind.BAD_SHAPE, "a table of codes has at least one axis")
    if element_of_value(data) is not element_of_dtype(u8):
        return tuple(shape)
    bits = op.get("bits", 4)
    op.require(bits in (2, 4, 8), Kind.BAD_ATTRIBUTE, f"codes of {bits} bits; they have 2, 4 or 8")
    gathered = normalize_axis(op.get("gather_axis", 0), len(shape), op.name)
    op.require(bits == 8 or gathered < len(shape) - 1, Kind.UNSUPPORTED, "parts of bytes are chosen one by one")
    return (*shape[:-1], shape[-1] * (8 // bits))


def _block_size(op: Call, data: Value, extent: Dim) -> Dim:
    block = op.get("block_size", 128)
    kind = element_of_value(data)
    op.require(kind.bits <= 8 and kind.storage is not None, Kind.ELEMENT_TYPE, f"a table of {kind} values")
    op.require(block > 0 or (block == 0 and kind.is_coded_float), Kind.BAD_ATTRIBUTE, f"blocks of {block} codes")
    return block or extent


def _check_scales(op: Call, factors: Tensor, shape: tuple[Dim, ...], along: int, block: Dim, may_repeat: bool) -> None:
    fits = factors.rank == len(shape)
    for n, (found, extent) in enumerate(zip(factors.shape, shape, strict=False)):
        wanted = symbolic.ceildiv(extent, block) if n == along else extent
        repeats = may_repeat and n != along and found == 1
        fits = fits and (repeats or symbolic.equal(found, wanted) is not False)
    op.require(fits, Kind.BAD_SHAPE, f"the scales {factors.type!r} do not fit codes {list(shape)} in blocks of {block} along axis {along}")


def _slices(op: Call, data: Value, index: Tensor, axis: int, last: Dim) -> Any:
    """What codes at these places of an axis stand for, without scale and zero point; of the last axis so many."""
    kind = element_of_value(data)
    if kind is element_of_dtype(u8):
        return _parts(op.tensor(data).apply(Gather(axis), index), op.get("bits", 4), last)
    if isinstance(data, np.ndarray) and not kind.is_coded_float and kind.bits < 8 and axis < data.ndim - 1:
        # known narrow integers share bytes too, moved to where they are not negative
        least = 0 if kind.name.startswith("U") else 1 << (kind.bits - 1)
        codes = _parts(op.constant(_shared(data.astype(np.int8) + np.int8(least), kind.bits)).apply(Gather(axis), index), kind.bits, last)
        return codes - float(least) if least else codes
    stored, kind = op.stored(data)
    picked = stored.apply(Gather(axis), index)
    return decoded(op, Coded(picked, kind) if kind.is_coded else picked, f32)


def _shared(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis, several to a byte, the first in the lowest bits."""
    per = 8 // bits
    spare = [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per)]
    parts = np.pad(codes.astype(np.uint8), spare).reshape(*codes.shape[:-1], -1, per)
    return np.bitwise_or.reduce(parts << (np.arange(per, dtype=np.uint8) * bits), -1).astype(np.uint8)


def _parts(data: Any, bits: int, count: Dim) -> Any:
    """The first `count` codes of bytes along the last axis, as floats."""
    per = 8 // bits
    if per == 1:
        return data.cast(f32)
    shifts = Tensor(data.builder, data.builder.emit(Iota((per,), 0, i32))) * bits
    codes = (data.cast(i32).expand_dims(data.rank) >> shifts) & ((1 << bits) - 1)
    flat = codes.reshape(*data.shape[:-1], data.shape[-1] * per)
    return (flat if flat.shape[-1] == count else flat[..., :count]).cast(f32)
