"""com.microsoft: fused ops that ONNX Runtime's optimiser writes into models."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import boolean, i32, i64
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.contraction import matmul as contracted
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Iota, concat, stack
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.attention import attend, heads_of, merged
from ingot.frontends.onnx.convert.convolution import convolved, per_channel
from ingot.frontends.onnx.convert.matrix import gemm
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, ONNX, onnx_op

LARGEST_INVERSE = 256  # of matrices; the elimination is written out

# --- activations ------------------------------------------------------------------------------------


def activated(op: Call, x: Any, prefix: str = "activation") -> Any:
    """The activation that is fused into a node."""
    name = op.get(prefix, "")
    numbers = op.get(f"{prefix}_params", [])
    for part in ("alpha", "beta"):
        given = op.get(f"{prefix}_{part}", 0.0)
        op.require(isinstance(given, float | int), Kind.BAD_ATTRIBUTE, f"{prefix}_{part} is {given}; it is one number")
    wanted = {"LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}.get(name, len(numbers))
    op.require(not numbers or len(numbers) == wanted, Kind.BAD_ATTRIBUTE, f"{name} has {len(numbers)} parameters, not {wanted}")
    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid":
            return x.apply(Op.registry[name.lower()]())
        case "LeakyRelu":
            return x.leaky_relu(alpha=numbers[0] if numbers else op.get(f"{prefix}_alpha", 0.01))
        case "Clip":
            return x.clip(*(numbers or [op.get(f"{prefix}_alpha"), op.get(f"{prefix}_beta")]))
        case "HardSigmoid":
            alpha, beta = numbers or [op.get(f"{prefix}_alpha", 0.2), op.get(f"{prefix}_beta", 0.5)]
            return x.hard_sigmoid(alpha=alpha, beta=beta)
    op.require(False, Kind.BAD_ATTRIBUTE, f"there is no activation {name!r}")
    return None


def _gelu(x: Any, approximate: str = "none") -> Any:
    return x.apply(Op.registry["gelu"](approximate=approximate))  # type: ignore[call-arg]


@onnx_op("Gelu", domain=MICROSOFT)
def gelu(op: Call, x: Tensor) -> Any:
    return _gelu(x)


@onnx_op("BiasGelu", domain=MICROSOFT)
def bias_gelu(op: Call, x: Tensor, bias: Tensor) -> Any:
    return _gelu(x + bias)


@onnx_op("FastGelu", domain=MICROSOFT)
def fast_gelu(op: Call, x: Tensor, bias: Tensor | None = None) -> Any:
    return _gelu(x if bias is None else x + bias, "tanh")


@onnx_op("QuickGelu", domain=MICROSOFT)
def quick_gelu(op: Call, x: Tensor) -> Any:
    return x * (x * op.get("alpha", 1.702)).sigmoid()


@onnx_op("BiasAdd", domain=MICROSOFT)
def bias_add(op: Call, x: Tensor, bias: Tensor, skip: Tensor) -> Any:
    return x + bias + skip


@onnx_op("BiasSplitGelu", domain=MICROSOFT, least_ranks={0: 1})
def bias_split_gelu(op: Call, x: Tensor, bias: Tensor) -> Any:
    total = x + bias
    half = total.shape[-1] // 2
    return total[..., :half] * _gelu(total[..., half:])


# --- products ---------------------------------------------------------------------------------------


@onnx_op("FusedConv", domain=MICROSOFT)
def fused_conv(op: Call, x: Tensor, w: Tensor, bias: Tensor | None = None, more: Tensor | None = None) -> Any:
    result = convolved(op, x, w)
    result = result if bias is None else per_channel(result, bias)
    return activated(op, result if more is None else result + more)


@onnx_op("FusedGemm", domain=MICROSOFT)
def fused_gemm(op: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Any:
    return activated(op, gemm(op, a, b, c))


@onnx_op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(op: Call, a: Tensor, b: Tensor) -> Any:
    left = _turned(a, bool(op.get("transA", 0)), bool(op.get("transBatchA", 0)))
    right = _turned(b, bool(op.get("transB", 0)), bool(op.get("transBatchB", 0)))
    alpha = op.get("alpha", 1.0)
    product = contracted(left, right)
    return product if alpha == 1.0 else product * alpha


def _turned(x: Any, last: bool, batch: bool) -> Any:
    """The last two axes exchanged, and the batch axes moved behind the first of them."""
    if batch and x.rank > 2:
        x = x.transpose((*range(1, x.rank - 1), 0, x.rank - 1))
    return x.swapaxes(-1, -2) if last and x.rank > 1 else x


@onnx_op("Inverse", domain=MICROSOFT, least_ranks={0: 2})
def inverse(op: Call, x: Tensor) -> Any:
    """By elimination of a known number of columns, with the largest pivot of each."""
    size = x.shape[-1]
    op.require(isinstance(size, int), Kind.UNSUPPORTED, f"matrices of the unknown size {size}")
    assert isinstance(size, int)
    op.require(x.shape[-2] == size, Kind.BAD_SHAPE, f"{x.type!r} holds no square matrices")
    op.bounded(size, "the size of its matrices", LARGEST_INVERSE)
    unit = op.constant(np.eye(size, dtype=x.dtype.numpy)).broadcast_to(x.shape)
    both = concat([x, unit], x.rank - 1)
    row = Tensor(op.trace, op.trace.emit(Iota(both.shape, x.rank - 2)))
    for k in range(size):
        best = (row[..., :, 0] >= k).where(both[..., :, k].abs(), -1.0).argmax(-1)
        chosen = best.expand_dims(-1).expand_dims(-1)
        source = (row == k).where(chosen, (row == chosen).where(k, row))
        both = both.gather_elements(source, axis=x.rank - 2)
        pivot = both[..., k : k + 1, :] / both[..., k : k + 1, k : k + 1]
        both = (row == k).where(pivot.broadcast_to(both.shape), both - both[..., :, k : k + 1] * pivot)
    return both[..., :, size:]


@onnx_op("CDist", domain=MICROSOFT, ranks={0: 2, 1: 2})
def cdist(op: Call, a: Tensor, b: Tensor) -> Any:
    difference = a.expand_dims(1) - b.expand_dims(0)
    square = (difference * difference).reduce("sum", (2,))
    return square.sqrt() if op.get("metric", "sqeuclidean") == "euclidean" else square


# --- norms ------------------------------------------------------------------------------------------


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> tuple[Any, Any, Any]:
    wide = x.cast(x.dtype.compute)
    mean = wide.reduce("mean", (x.rank - 1,), True)
    centred = wide - mean
    scale = ((centred * centred).reduce("mean", (x.rank - 1,), True) + epsilon).rsqrt()
    y = centred * scale * gamma.cast(wide.dtype)
    return (y if beta is None else y + beta.cast(wide.dtype)).cast(x.dtype), mean, scale


def rms_norm(x: Any, gamma: Any, epsilon: float) -> tuple[Any, Any]:
    wide = x.cast(x.dtype.compute)
    scale = ((wide * wide).reduce("mean", (x.rank - 1,), True) + epsilon).rsqrt()
    return (wide * scale * gamma.cast(wide.dtype)).cast(x.dtype), scale


@onnx_op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    op: Call, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    return *layer_norm(total, gamma, beta, op.get("epsilon", 1e-12)), total


@onnx_op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    op: Call, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y, scale = rms_norm(total, gamma, op.get("epsilon", 1e-12))
    return y, scale, scale, total


def _simplified(op: Call, x: Tensor, gamma: Tensor) -> Any:
    return rms_norm(x, gamma, op.get("epsilon", 1e-5))


for _domain in (MICROSOFT, ONNX):
    onnx_op("SimplifiedLayerNormalization", domain=_domain)(_simplified)


@onnx_op("EmbedLayerNormalization", domain=MICROSOFT, ranks={0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1, 7: 2, 8: 2})
def embed_layer_normalization(
    op: Call,
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    kinds: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    places: Tensor | None = None,
) -> Any:
    length = ids.shape[1]
    total = words.apply(Gather(0), ids)
    total = total + (positions[:length] if places is None else positions.apply(Gather(0), places))
    if segments is not None and kinds is not None:
        total = total + kinds.apply(Gather(0), segments)
    y, _, _ = layer_norm(total, gamma, beta, op.get("epsilon", 1e-12))
    return y, filled(op, ids, mask), total


def filled(op: Call, ids: Tensor, mask: Tensor | None) -> Any:
    """How many places of each row a mask leaves; none where there is no mask."""
    if mask is None:
        return op.constant(np.zeros((), np.int32)).broadcast_to((ids.shape[0],))
    return mask.cast(i32).reduce("sum", (1,))


# --- attention --------------------------------------------------------------------------------------


def _filter(op: Call, keep: Any, dtype: Any) -> Any:
    """A mask of what is kept as numbers to add."""
    return keep.where(0.0, op.get("mask_filter_value", -10000.0)).cast(dtype)


def padding_bias(op: Call, mask: Tensor, batch: Dim, length: Dim, keys: Dim, dtype: Any) -> Any:
    """Any of the forms in which a mask is given, as numbers to add to [batch, heads, length, keys]."""
    place = Tensor(op.trace, op.trace.emit(Iota((keys,), 0, i64)))
    if mask.rank == 1:  # lengths, or ends and then starts
        ends = mask[:batch].cast(i64).reshape(batch, 1)
        keep = place < ends
        if mask.shape[0] == 2 * batch:
            keep = keep & (place >= mask[batch:].cast(i64).reshape(batch, 1))
        return _filter(op, keep, dtype).reshape(batch, 1, 1, keys)
    op.require(2 <= mask.rank <= 4, Kind.BAD_SHAPE, f"the mask is {mask.type!r}; it has 1 to 4 axes")
    keep = mask != 0 if mask.dtype != boolean else mask
    shape = {2: (batch, 1, 1, keys), 3: (batch, 1, length, keys), 4: mask.shape}[mask.rank]
    return _filter(op, keep, dtype).reshape(*shape)


def _causal_bias(op: Call, length: Dim, keys: Dim, dtype: Any) -> Any:
    row = Tensor(op.trace, op.trace.emit(Iota((length, keys), 0))) + op.dimension(keys - length, i64)
    column = Tensor(op.trace, op.trace.emit(Iota((length, keys), 1)))
    return _filter(op, column <= row, dtype)


def attended(op: Call, q: Any, k: Any, v: Any, biases: list[Any]) -> Any:
    """Attention with everything that is added to the scores; [batch, length, heads * size]."""
    total: Any = None
    for bias in biases:
        if bias is not None:
            total = bias if total is None else total + bias
    if op.get("unidirectional", 0):
        causal = _causal_bias(op, q.shape[2], k.shape[2], q.dtype)
        total = causal if total is None else total + causal
    scale = op.get("scale", 0.0) or None
    return merged(attend(op, q, k, v, total, scale))


@onnx_op("Attention", domain=MICROSOFT, ranks={0: 3, 1: 2, 2: 1, 4: 5, 5: 4})
def attention(
    op: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    extra: Tensor | None = None,
    past_length: Tensor | None = None,
) -> Any:
    """One projection to queries, keys and values, then attention."""
    op.require(past_length is None, Kind.UNSUPPORTED, "a shared buffer of past keys")
    projected = contract(x, "bsh", weight, "hp", "bsp")
    return self_attention(op, projected if bias is None else projected + bias, mask, past, extra)


def self_attention(op: Call, projected: Any, mask: Tensor | None, past: Tensor | None, extra: Tensor | None) -> Any:
    heads = op.get("num_heads")
    width = projected.shape[2]
    sizes = op.get("qkv_hidden_sizes", None) or [width // 3] * 3
    op.require(len(sizes) == 3, Kind.BAD_ATTRIBUTE, f"qkv_hidden_sizes are {sizes}; they are three")
    widths = sum(s for s in sizes if isinstance(s, int))
    op.require(not isinstance(width, int) or widths == width, Kind.BAD_SHAPE, f"{width} columns are not {sizes}")
    q = heads_of(projected[:, :, : sizes[0]], heads)
    k = heads_of(projected[:, :, sizes[0] : sizes[0] + sizes[1]], heads)
    v = heads_of(projected[:, :, sizes[0] + sizes[1] :], heads)
    if past is not None:
        k, v = concat([past[0], k], 2), concat([past[1], v], 2)
    padding = None
    if mask is not None:
        padding = padding_bias(op, mask, q.shape[0], q.shape[2], k.shape[2], q.dtype)
    y = attended(op, q, k, v, [padding, extra])
    return y, stack([k, v], 0) if op.wants(1) else None


@onnx_op("MultiHeadAttention", domain=MICROSOFT, ranks={3: 1, 5: 4, 6: 4, 7: 4})
def multi_head_attention(
    op: Call,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    extra: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Any:
    heads = op.get("num_heads")
    q, k, v = unpacked_heads(op, query, key, value, heads)
    if bias is not None:
        width = q.shape[1] * q.shape[3]
        parts = (bias[:width], bias[width : 2 * width], bias[2 * width :])
        q, k, v = (
            x if crossed else x + b.reshape(1, heads, 1, -1)
            for x, b, crossed in zip((q, k, v), parts, (False, _is_heads(key), _is_heads(value)), strict=True)
        )
    if past_key is not None and past_value is not None:
        k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    padding = None
    if mask is not None:
        padding = padding_bias(op, mask, q.shape[0], q.shape[2], k.shape[2], q.dtype)
    return attended(op, q, k, v, [padding, extra]), k, v


def _is_heads(x: Tensor | None) -> bool:
    return x is not None and x.rank == 4


def unpacked_heads(op: Call, query: Tensor, key: Tensor | None, value: Tensor | None, heads: int) -> tuple[Any, Any, Any]:
    """Queries, keys and values as [batch, heads, length, size], from any of the packings."""
    if query.rank == 5:  # [batch, length, heads, 3, size]
        _require_parts(op, query, 3)
        q, k, v = (query[:, :, :, n].transpose((0, 2, 1, 3)) for n in range(3))
        return q, k, v
    q = heads_of(query, heads)
    op.require(key is not None, Kind.INPUT_COUNT, "it has no keys")
    assert key is not None
    if key.rank == 5:  # [batch, length, heads, 2, size]
        _require_parts(op, key, 2)
        return q, key[:, :, :, 0].transpose((0, 2, 1, 3)), key[:, :, :, 1].transpose((0, 2, 1, 3))
    op.require(value is not None, Kind.INPUT_COUNT, "it has no values")
    assert value is not None
    k, v = (x if x.rank == 4 else heads_of(x, heads) for x in (key, value))
    return q, k, v


def _require_parts(op: Call, packed: Tensor, count: int) -> None:
    op.require(packed.shape[3] == count, Kind.BAD_SHAPE, f"{packed.type!r} does not hold {count} parts for each head")


def rotated(op: Call, x: Any, cosine: Any, sine: Any, interleaved: bool) -> Any:
    """Pairs of the last axis turned by angles [..., half]: neighbours, or the first half with the second."""
    half = cosine.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        pairs = turned.reshape(*turned.shape[:-1], half, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        made = stack([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(*turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        made = concat([a * cosine - b * sine, b * cosine + a * sine], x.rank - 1)
    return made if x.shape[-1] == 2 * half else concat([made, rest], x.rank - 1)


@onnx_op("RotaryEmbedding", domain=MICROSOFT, ranks={2: 2, 3: 2})
def rotary_embedding(op: Call, x: Tensor, places: Tensor, cosine: Tensor, sine: Tensor) -> Any:
    flat = x.rank == 3
    op.require(x.rank in (3, 4), Kind.BAD_SHAPE, f"it turns {x.type!r}, which has 3 or 4 axes")
    op.require(places.rank in (1, 2), Kind.BAD_SHAPE, f"positions are {places.type!r}; they have 1 or 2 axes")
    size = op.get("rotary_embedding_dim", 0) or 2 * cosine.shape[1]
    op.require(not isinstance(size, int) or size > 0, Kind.BAD_ATTRIBUTE, f"it turns {size} elements of each head")
    heads = op.get("num_heads", 0) or (x.shape[2] // size if flat else 0)
    data = heads_of(x, heads) if flat else x
    length = data.shape[2]
    if places.type.size == 1 and places.rank == 1:
        line = Tensor(op.trace, op.trace.emit(Iota((1, length), 1, i64)))
        places = line + places.reshape(1, 1)
    angles = [t.apply(Gather(0), places).expand_dims(1) for t in (cosine, sine)]
    y = rotated(op, data, angles[0], angles[1], bool(op.get("interleaved", 0)))
    return merged(y) if flat else y


@onnx_op("GroupQueryAttention", domain=MICROSOFT, ranks={0: 3, 1: 3, 2: 3, 3: 4, 4: 4, 7: 2, 8: 2})
def group_query_attention(
    op: Call,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    lengths: Tensor,
    total: Tensor,
    cosine: Tensor | None = None,
    sine: Tensor | None = None,
) -> Any:
    """Attention with shared heads and a cache of past keys; the batch's sequences end at lengths + 1."""
    heads, shared = op.get("num_heads"), op.get("kv_num_heads")
    op.require(heads > 0 and shared > 0, Kind.BAD_ATTRIBUTE, f"{heads} heads of {shared} shared ones")
    if key is None or value is None:  # packed
        size = query.shape[2] // (heads + 2 * shared)
        key = query[:, :, heads * size : (heads + shared) * size]
        value = query[:, :, (heads + shared) * size :]
        query = query[:, :, : heads * size]
    q, k, v = heads_of(query, heads), heads_of(key, shared), heads_of(value, shared)
    length = q.shape[2]
    past = past_key.shape[2] if past_key is not None else 0
    if op.get("do_rotary", 0):
        op.require(cosine is not None and sine is not None, Kind.INPUT_COUNT, "do_rotary without a table of angles")
        assert cosine is not None
        assert sine is not None
        places = Tensor(op.trace, op.trace.emit(Iota((q.shape[0], length), 1, i64))) + op.dimension(past, i64)
        cosines, sines = (t.apply(Gather(0), places).expand_dims(1) for t in (cosine, sine))
        q, k = (rotated(op, x, cosines, sines, bool(op.get("rotary_interleaved", 0))) for x in (q, k))
    if past_key is not None and past_value is not None:
        k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    keys = k.shape[2]
    column = Tensor(op.trace, op.trace.emit(Iota((length, keys), 1)))
    row = Tensor(op.trace, op.trace.emit(Iota((length, keys), 0))) + op.dimension(past, i64)
    keep = column <= row
    window = op.get("local_window_size", -1)
    if window > 0:
        keep = keep & (column > row - window)
    inside = column.reshape(1, 1, length, keys) <= lengths.cast(i64).reshape(q.shape[0], 1, 1, 1)
    mask = keep.reshape(1, 1, length, keys) & inside
    op.require(not op.get("softcap", 0.0), Kind.UNSUPPORTED, "softcap of GroupQueryAttention")
    y = attend(op, q, k, v, mask, op.get("scale", 0.0) or None)
    return merged(y), k, v
