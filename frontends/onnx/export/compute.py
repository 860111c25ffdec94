"""Reductions, products, convolutions, pooling and normalisation."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.types import boolean, f32, i32, i64
from ingot.frontends.onnx.export.writer import Writer, writes

# --- reductions -------------------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin", "mean": "ReduceMean",
    "logsumexp": "ReduceLogSumExp",
}  # fmt: skip


def _reduction(onnx: str) -> Any:
    def write(w: Writer, value: Value, x: str) -> str:
        axes = value.op.axes  # type: ignore[attr-defined]
        return w.node(onnx, x, w.integers(axes), keepdims=0, noop_with_empty_axes=0 if axes else 1)

    return write


for _name, _onnx in _REDUCTIONS.items():
    writes(_name)(_reduction(_onnx))


@writes("all")
def every(w: Writer, value: Value, x: str) -> str:
    return _every(w, value, x)


@writes("any")
def some(w: Writer, value: Value, x: str) -> str:
    """Not all are not: right for no elements as well."""
    return w.node("Not", _every(w, value, w.node("Not", x)))


def _every(w: Writer, value: Value, x: str) -> str:
    axes = value.op.axes  # type: ignore[attr-defined]
    least = w.node("ReduceMin", w.cast(x, i32), w.integers(axes), keepdims=0, noop_with_empty_axes=0 if axes else 1)
    return w.cast(least, boolean)


@writes("argmax", "argmin")
def position(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    onnx = "ArgMax" if op.name == "argmax" else "ArgMin"
    if value.args[0].tensor.dtype == boolean:
        x = w.cast(x, i32)
    return w.node(onnx, x, axis=op.axis, keepdims=0, select_last_index=int(op.keep_last))


@writes("softmax", "log_softmax")
def softmax(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    return w.node("Softmax" if op.name == "softmax" else "LogSoftmax", x, axis=op.axis)


@writes("cumsum")
def cumsum(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    axis = w.constant(np.asarray(op.axis, np.int64))
    return w.node("CumSum", x, axis, exclusive=int(op.exclusive), reverse=int(op.reverse))


# --- products ---------------------------------------------------------------------------------------


@writes("unpack")
def unpack(w: Writer, value: Value, words: str, scales: str, *zeros: str) -> str:
    """Codes of a few bits: rows are taken from their words, shifted, centred or looked up, and scaled."""
    op: Any = value.op
    rows = np.arange(op.rows)
    word = w.node("Gather", words, w.constant(rows // op.per_word), axis=0)
    shift = w.constant((rows % op.per_word * op.bits).astype(np.uint32)[:, None])
    mask = w.constant(np.asarray((1 << op.bits) - 1, np.uint32))
    codes = w.node("BitwiseAnd", w.node("BitShift", word, shift, direction="RIGHT"), mask)
    block = w.constant(rows // op.block)
    if op.table:
        numbers = w.node("Gather", w.constant(np.asarray(op.table, np.float32)), w.cast(codes, i64), axis=0)
        return w.node("Mul", numbers, w.node("Gather", scales, block, axis=0))
    codes = w.cast(codes, f32)
    zero = w.node("Gather", zeros[0], block, axis=0) if zeros else w.constant(np.asarray(op.zero, np.float32))
    return w.node("Mul", w.node("Sub", codes, zero), w.node("Gather", scales, block, axis=0))


@writes("contract")
def contract(w: Writer, value: Value, a: str, b: str) -> str:
    op: Any = value.op
    dtype = value.tensor.dtype
    left, right = value.args[0].tensor.dtype, value.args[1].tensor.dtype
    if (left, right) != (dtype, dtype):
        wide = op.accumulator(left, right)
        if wide != dtype:
            return w.function(value, (a, b), lambda w, v, a, b: w.cast(_product(w, v, w.cast(a, wide), w.cast(b, wide)), dtype))
        a, b = w.cast(a, dtype), w.cast(b, dtype)
    return _product(w, value, a, b)


def _product(w: Writer, value: Value, a: str, b: str) -> str:
    """MatMul where the letters are in its order, else Einsum."""
    op: Any = value.op
    left, right, output = op.left, op.right, op.output
    batch = [c for c in output if c in left and c in right]
    size = len(batch)
    if (
        len(left) == len(right) == len(output) == size + 2
        and left[:size] == right[:size] == output[:size]
        and left[-1] == right[-2]
        and output[size:] == left[size] + right[-1]
        and len(op.summed) == 1
    ):
        return w.node("MatMul", a, b)
    return w.node("Einsum", a, b, equation=op.text)


# --- convolutions -----------------------------------------------------------------------------------


def _first(w: Writer, op: Any, x: str, rank: int) -> str:
    """Data with its channels in front."""
    return x if op.layout == "channels_first" else w.node("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def _back(w: Writer, op: Any, x: str, rank: int) -> str:
    return x if op.layout == "channels_first" else w.node("Transpose", x, perm=[0, *range(2, rank), 1])


def _weight_first(w: Writer, op: Any, x: str, rank: int) -> str:
    return x if op.layout == "channels_first" else w.node("Transpose", x, perm=[rank - 1, rank - 2, *range(rank - 2)])


def _pads(op: Any) -> tuple[list[int], list[int]] | None:
    """(low, high) when all are known and not negative."""
    flat = [p for side in op.padding for p in side]
    if not all(isinstance(p, int) and p >= 0 for p in flat):
        return None
    return [side[0] for side in op.padding], [side[1] for side in op.padding]


def _padded(w: Writer, op: Any, x: str, zero: str) -> tuple[str, list[int]]:
    """Data, padded before where the op's own padding cannot say it; and the pads that are left."""
    known = _pads(op)
    if known is not None:
        return x, [*known[0], *known[1]]
    low, high = [side[0] for side in op.padding], [side[1] for side in op.padding]
    return w.node("Pad", x, w.dims((0, 0, *low, 0, 0, *high)), zero), [0] * 2 * len(low)


@writes("convolution")
def convolution(w: Writer, value: Value, x: str, weight: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    data, pads = _padded(w, op, _first(w, op, x, rank), w.like(0, value))
    made = w.node(
        "Conv", data, _weight_first(w, op, weight, rank), strides=list(op.strides), dilations=list(op.dilation),
        pads=pads, group=op.groups,
    )  # fmt: skip
    return _back(w, op, made, rank)


@writes("convolution_transpose")
def convolution_transpose(w: Writer, value: Value, g: str, weight: str) -> str:
    """The whole result without padding, then cut or filled to the shape that is wanted."""
    return w.function(value, (g, weight), _convolution_transpose)


def _convolution_transpose(w: Writer, value: Value, g: str, weight: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    whole = w.node(
        "ConvTranspose", _first(w, op, g, rank), _weight_first(w, op, weight, rank), strides=list(op.strides),
        dilations=list(op.dilation), group=op.groups,
    )  # fmt: skip
    low = [side[0] for side in op.padding]
    made = _windowed(w, whole, low, op.shape, w.like(0, value))
    return _back(w, op, made, rank)


def _windowed(w: Writer, x: str, low: Any, sizes: Any, zero: str) -> str:
    """The part of the spatial axes that begins at `low` and has these sizes; zeros where there is nothing."""
    extents = w.node("Shape", x, start=2)
    first = w.dims(low)
    after = w.node("Sub", w.node("Add", w.dims(sizes), first), extents)
    none = w.integers([0, 0])
    return w.node("Pad", x, w.node("Concat", none, w.node("Neg", first), none, after, axis=0), zero)


@writes("convolution_weight_gradient")
def convolution_weight_gradient(w: Writer, value: Value, x: str, g: str) -> str:
    """A convolution with batch and channels exchanged, strides and dilations too; one group at a time."""
    return w.function(value, (x, g), _weight_gradient)


def _weight_gradient(w: Writer, value: Value, x: str, g: str) -> str:
    op: Any = value.op
    rank = len(value.args[0].shape)
    swap = [1, 0, *range(2, rank)]
    data, pads = _padded(w, op, _first(w, op, x, rank), w.like(0, value))
    data = w.node("Transpose", data, perm=swap)
    cotangent = w.node("Transpose", _first(w, op, g, rank), perm=swap)
    parts = []
    for n in range(op.groups):
        d, c = (_group(w, t, n, op.groups) for t in (data, cotangent))
        parts.append(w.node("Conv", d, c, strides=list(op.dilation), dilations=list(op.strides), pads=pads))
    spatial = list(range(2, rank))
    parts = [w.node("Transpose", p, perm=swap) for p in parts]
    made = parts[0] if len(parts) == 1 else w.node("Concat", *parts, axis=0)
    made = w.slice(made, [0] * len(spatial), op.taps, spatial, [1] * len(spatial))
    return made if op.layout == "channels_first" else w.node("Transpose", made, perm=[*spatial, 1, 0])


def _group(w: Writer, x: str, number: int, groups: int) -> str:
    if groups == 1:
        return x
    parts = w.node("Split", x, axis=0, num_outputs=groups, count=groups)
    return parts[number]


# --- pooling ----------------------------------------------------------------------------------------


def _window(op: Any, pads: list[int]) -> dict[str, Any]:
    return {"kernel_shape": list(op.window), "strides": list(op.strides), "dilations": list(op.dilation), "pads": pads}


@writes("max_pool")
def max_pool(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    low = float(ml_dtypes.finfo(value.tensor.dtype.numpy).min) if value.tensor.dtype.is_float else np.iinfo(value.tensor.dtype.numpy).min
    data = _first(w, op, x, rank)
    known = _pads(op)
    small = known is not None and all(p < k for side in known for p, k in zip(side, op.window, strict=True))
    if small and known is not None:
        pads = [*known[0], *known[1]]
    else:
        lows, highs = [s[0] for s in op.padding], [s[1] for s in op.padding]
        data = w.node("Pad", data, w.dims((0, 0, *lows, 0, 0, *highs)), w.like(float(low), value))
        pads = [0] * 2 * len(op.window)
    return _back(w, op, w.node("MaxPool", data, **_window(op, pads)), rank)


def _taps(w: Writer, op: Any, x: str, shape: Any, value: Value, filler: float) -> str:
    """[n, c, taps, *windows]: the elements of each window, by a convolution with unit weights."""
    rank = len(op.window)
    flat = w.reshape(x, (shape[0] * shape[1], 1, *shape[2:]))
    lows, highs = [s[0] for s in op.padding], [s[1] for s in op.padding]
    flat = w.node("Pad", flat, w.dims((0, 0, *lows, 0, 0, *highs)), w.like(filler, value))
    count = math.prod(op.window)
    unit = w.constant(np.eye(count).reshape(count, 1, *op.window), value.tensor.dtype)
    return w.node("Conv", flat, unit, strides=list(op.strides), dilations=list(op.dilation), pads=[0] * 2 * rank)


@writes("max_pool_index")
def max_pool_index(w: Writer, value: Value, x: str, y: str) -> str:
    return w.function(value, (x, y), _max_pool_index)


def _channel_shape(op: Any, shape: Any) -> Any:
    return shape if op.layout == "channels_first" else (shape[0], shape[-1], *shape[1:-1])


def _max_pool_index(w: Writer, value: Value, x: str, y: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    source, pooled = _channel_shape(op, value.args[0].shape), _channel_shape(op, value.shape)
    dtype = value.args[0].tensor.dtype
    ones = w.expand(w.constant(np.ones((), dtype.numpy)), source)
    elements = _taps(w, op, _first(w, op, x, rank), source, value.args[0], 0.0)
    inside = w.cast(_taps(w, op, ones, source, value.args[0], 0.0), boolean)
    greatest = w.reshape(_first(w, op, y, rank), (pooled[0] * pooled[1], 1, *pooled[2:]))
    hit = w.node("And", w.node("Equal", elements, greatest), inside)
    count = math.prod(op.window)
    numbers = w.constant(np.arange(count, dtype=np.int32).reshape(1, count, *[1] * len(op.window)))
    first = w.node("ReduceMin", w.node("Where", hit, numbers, w.constant(np.asarray(count, np.int32))), w.integers([1]), keepdims=0)
    return _back(w, op, w.reshape(first, pooled), rank)


@writes("max_pool_gradient")
def max_pool_gradient(w: Writer, value: Value, g: str, index: str) -> str:
    return w.function(value, (g, index), _max_pool_gradient)


def _max_pool_gradient(w: Writer, value: Value, g: str, index: str) -> str:
    """Each cotangent to its tap, and the taps back to their places by a transposed convolution."""
    op: Any = value.op
    rank = len(value.shape)
    pooled = _channel_shape(op, value.args[0].shape)
    flat = (pooled[0] * pooled[1], 1, *pooled[2:])
    cotangent, place = (w.reshape(_first(w, op, t, rank), flat) for t in (g, index))
    count = math.prod(op.window)
    numbers = w.constant(np.arange(count, dtype=np.int32).reshape(1, count, *[1] * len(op.window)))
    shares = w.node("Where", w.node("Equal", place, numbers), cotangent, w.like(0, value))
    unit = w.constant(np.eye(count).reshape(count, 1, *op.window), value.tensor.dtype)
    whole = w.node("ConvTranspose", shares, unit, strides=list(op.strides), dilations=list(op.dilation))
    made = _windowed(w, whole, [side[0] for side in op.padding], op.shape, w.like(0, value))
    return _back(w, op, w.reshape(made, (pooled[0], pooled[1], *op.shape)), rank)


@writes("max_pool_select")
def max_pool_select(w: Writer, value: Value, x: str, index: str) -> str:
    return w.function(value, (x, index), _max_pool_select)


def _max_pool_select(w: Writer, value: Value, x: str, index: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    source, pooled = _channel_shape(op, value.args[0].shape), _channel_shape(op, value.shape)
    elements = _taps(w, op, _first(w, op, x, rank), source, value, 0.0)
    place = w.reshape(_first(w, op, index, rank), (pooled[0] * pooled[1], 1, *pooled[2:]))
    count = math.prod(op.window)
    numbers = w.constant(np.arange(count, dtype=np.int32).reshape(1, count, *[1] * len(op.window)))
    chosen = w.node("Where", w.node("Equal", place, numbers), elements, w.like(0, value))
    made = w.node("ReduceSum", chosen, w.integers([1]), keepdims=0)
    return _back(w, op, w.reshape(made, pooled), rank)


def _divisors(w: Writer, value: Value, op: Any, sizes: Any) -> str:
    """How many elements count in each window: the taps of ones (and of the padding that counts)."""
    rank = len(sizes)
    lows, highs = [s[0] for s in op.padding], [s[1] for s in op.padding]
    beyond = op.overshoot or (0,) * rank
    ones = w.expand(w.like(1, value), (1, 1, *sizes))
    filler = w.like(1 if op.count_include_pad else 0, value)
    real = [h - b for h, b in zip(highs, beyond, strict=True)]
    padded = w.node("Pad", ones, w.dims((0, 0, *lows, 0, 0, *real)), filler)
    padded = w.node("Pad", padded, w.dims((0, 0, *[0] * rank, 0, 0, *beyond)), w.like(0, value))
    weight = w.constant(np.ones((1, 1, *op.window)), value.tensor.dtype)
    return w.node("Conv", padded, weight, strides=list(op.strides), dilations=list(op.dilation))


@writes("average_pool")
def average_pool(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    known = _pads(op)
    plain = known is not None and not any(op.overshoot) and all(d == 1 for d in op.dilation)
    small = plain and known is not None and all(p < k for side in known for p, k in zip(side, op.window, strict=True))
    if not small or known is None:
        return w.function(value, (x,), _average_pool)
    fields = _window(op, [*known[0], *known[1]])
    del fields["dilations"]
    made = w.node("AveragePool", _first(w, op, x, rank), count_include_pad=int(op.count_include_pad), **fields)
    return _back(w, op, made, rank)


def _average_pool(w: Writer, value: Value, x: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    source, pooled = _channel_shape(op, value.args[0].shape), _channel_shape(op, value.shape)
    elements = _taps(w, op, _first(w, op, x, rank), source, value, 0.0)
    total = w.reshape(w.node("ReduceSum", elements, w.integers([1]), keepdims=0), pooled)
    return _back(w, op, w.node("Div", total, _divisors(w, value, op, source[2:])), rank)


@writes("average_pool_gradient")
def average_pool_gradient(w: Writer, value: Value, g: str) -> str:
    return w.function(value, (g,), _average_pool_gradient)


def _average_pool_gradient(w: Writer, value: Value, g: str) -> str:
    op: Any = value.op
    rank = len(value.shape)
    pooled = _channel_shape(op, value.args[0].shape)
    share = w.node("Div", _first(w, op, g, rank), _divisors(w, value, op, op.shape))
    flat = w.reshape(share, (pooled[0] * pooled[1], 1, *pooled[2:]))
    ones = w.constant(np.ones((1, 1, *op.window)), value.tensor.dtype)
    whole = w.node("ConvTranspose", flat, ones, strides=list(op.strides), dilations=list(op.dilation))
    made = _windowed(w, whole, [side[0] for side in op.padding], op.shape, w.like(0, value))
    return _back(w, op, w.reshape(made, (pooled[0], pooled[1], *op.shape)), rank)
