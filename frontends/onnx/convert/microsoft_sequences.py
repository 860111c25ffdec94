"""com.microsoft: ops on sequences of tokens: what is decoded, positions, and batches without padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import f32, i64
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.gradient import CheckRange
from ingot.compiler.ops.indexing import Gather, ScatterElements
from ingot.compiler.ops.movement import Iota, concat
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.attention import attend, heads_of, merged
from ingot.frontends.onnx.convert.microsoft import attended, padding_bias, rotated
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op

LONGEST_DISTANCE = 1 << 16  # of tokens whose places are told apart


def _places(op: Call, *shape: Dim, axis: int = 0) -> Any:
    return Tensor(op.trace, op.trace.emit(Iota(shape, axis, i64)))


# --- what is decoded --------------------------------------------------------------------------------


@onnx_op("NGramRepeatBlock", domain=MICROSOFT, ranks={0: 2, 1: 2})
def n_gram_repeat_block(op: Call, ids: Tensor, scores: Tensor) -> Any:
    """Tokens that would end a run of n which the row has already have the score -inf."""
    size = op.bounded(op.get("ngram_size"), "the length of its runs")
    op.require(size > 0, Kind.BAD_ATTRIBUTE, f"runs of {size} tokens")
    length = ids.shape[1]
    if isinstance(length, int) and length < size:
        return scores
    count = length - size + 1  # of runs that are complete
    same: Any = None
    for n in range(size - 1):
        equal = ids[:, n : n + count] == ids[:, n + count : n + count + 1]
        same = equal if same is None else same & equal
    last = ids[:, size - 1 :].cast(i64)
    taken = scores.full(last.shape, -np.inf) if same is None else same.where(scores.full(last.shape, -np.inf), np.inf)
    return scores.apply(ScatterElements(1, "min"), last, taken)


@onnx_op("DecoderMaskedMultiHeadAttention", domain=MICROSOFT, ranks={0: 3, 3: 2, 4: 4, 5: 4, 6: 4, 10: 1})
def decoder_masked_multi_head_attention(
    op: Call,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask: Tensor | None = None,
    extra: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_length: Tensor | None = None,
    beams: Tensor | None = None,
    beam_of: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    """One token after those of a cache. A cache that has room for it (a shared buffer) keeps its length."""
    op.require(beam_of is None, Kind.UNSUPPORTED, "the beams of a cache")
    op.require(not op.wants(3), Kind.UNSUPPORTED, "its scores as a result")
    heads, shares = op.get("num_heads"), bool(op.get("past_present_share_buffer", 0))
    if bias is not None and key is not None and key.rank == 3 and value is not None:
        first, second = query.shape[2], query.shape[2] + key.shape[2]
        query, key, value = query + bias[:first], key + bias[first:second], value + bias[second:]
    elif bias is not None:
        query = query + bias[: query.shape[2]]
    op.require((key is None) == (value is None), Kind.INPUT_COUNT, "keys without values, or values without keys")
    width = query.shape[2] // 3
    parts: list[Any] = [query, key, value]
    if key is None:  # packed
        parts = [query[:, :, :width], query[:, :, width : 2 * width], query[:, :, 2 * width :]]
    crossed = parts[1].rank == 4
    q = heads_of(parts[0], heads)
    k, v = parts[1:] if crossed else (heads_of(part, heads) for part in parts[1:])
    op.require(v.rank == k.rank == 4, Kind.BAD_SHAPE, f"keys {k.type!r} beside values {v.type!r}")
    inside: Any = None
    if past_key is not None and past_value is not None and not crossed:
        if shares:
            op.require(past_length is not None, Kind.INPUT_COUNT, "a shared buffer without the length of what it has")
            assert past_length is not None
            place = _places(op, past_key.shape[2]).reshape(past_key.shape[2], 1)
            now = past_length.cast(i64).reshape(())
            k, v = (place == now).where(k, past_key), (place == now).where(v, past_value)
            inside = (place <= now).reshape(past_key.shape[2])
        else:
            k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    padding: Any = None
    if mask is not None:
        padding = padding_bias(op, _widened(mask, k.shape[2]) if shares else mask, q.shape[0], q.shape[2], k.shape[2], q.dtype)
    if inside is not None:
        hidden = inside.where(0.0, -np.inf).cast(q.dtype)
        padding = hidden if padding is None else padding + hidden
        extra = None if extra is None else _widened(extra, k.shape[2])
    return attended(op, q, k, v, [padding, extra]), k, v


def _widened(mask: Tensor, length: Dim) -> Any:
    """A mask of the tokens so far as one of all places of a buffer, the others of which are hidden anyway."""
    high: list[Dim] = [0] * mask.rank
    high[-1] = length - mask.shape[-1]
    return mask if high[-1] == 0 else mask.pad(low=(0,) * mask.rank, high=tuple(high), mode="constant", value=0)


# --- positions --------------------------------------------------------------------------------------


@onnx_op("MRotaryEmbedding", domain=MICROSOFT, ranks={1: 3, 2: 2, 3: 2})
def multimodal_rotary_embedding(op: Call, x: Tensor, places: Tensor, cosine: Tensor, sine: Tensor) -> Any:
    """Angles of three positions of each token (time, row, column), each of which has a part of the pairs."""
    op.require(x.rank in (3, 4), Kind.BAD_SHAPE, f"it turns {x.type!r}, which has 3 or 4 axes")
    op.require(symbolic.equal(places.shape[0], 3) is not False, Kind.BAD_SHAPE, f"positions are {places.type!r}")
    sections, layout, half = op.get("mrope_section"), op.get("mrope_layout", 0), cosine.shape[1]
    op.require(layout in (0, 1), Kind.BAD_ATTRIBUTE, f"mrope_layout is {layout}; it is 0 or 1")
    op.require(isinstance(half, int), Kind.UNSUPPORTED, f"the symbolic number {half} of angles")
    fits = len(sections) == 3 and min(sections) >= 0 and sum(sections) == half
    op.require(fits, Kind.BAD_ATTRIBUTE, f"mrope_section is {sections} of {half} angles")
    turned = op.get("rotary_embedding_dim", 0)
    op.require(turned in (0, 2 * half), Kind.BAD_ATTRIBUTE, f"it turns {turned} elements by {half} angles")
    if layout == 0:
        owner = np.repeat(np.arange(3), sections)
    else:
        owner = np.zeros(half, np.int64)
        for n in (1, 2):
            owner[n : sections[n] * 3 : 3] = n
    heads = op.get("num_heads", 0) or (x.shape[2] // (2 * half) if x.rank == 3 else 0)
    data = heads_of(x, heads) if x.rank == 3 else x
    chosen = places.apply(Gather(0), op.constant(owner)).transpose((1, 2, 0)).cast(i64)  # [batch, length, half]
    scale = op.get("scale", 1.0)
    column, width = _places(op, half), op.dimension(half, i64)
    rows = cosine.shape[0]
    wrapped = chosen.apply(CheckRange(rows))
    angles = []
    for table in (cosine, sine):
        flat = table.reshape(rows * half).apply(Gather(0), wrapped * width + column).expand_dims(1)
        angles.append(flat if scale == 1.0 else flat * scale)  # what is not turned is not scaled
    y = rotated(op, data, angles[0], angles[1], bool(op.get("interleaved", 0)))
    return merged(y) if x.rank == 3 else y


@onnx_op("RelativePositionBias", domain=MICROSOFT, dims=(1, 2), ranks={0: 2})
def relative_position_bias(op: Call, table: Tensor, queries: tuple[Dim, ...], keys: tuple[Dim, ...]) -> Any:
    """A number for each head and distance; far distances share one, more and more of them (T5)."""
    both, most = bool(op.get("is_bidirectional", 0)), op.get("max_distance")
    op.require(len(queries) == len(keys) == 1, Kind.BAD_SHAPE, "a length is one number")
    buckets = table.shape[0]
    op.require(isinstance(buckets, int), Kind.UNSUPPORTED, f"the symbolic number {buckets} of distances")
    assert isinstance(buckets, int)
    each = buckets // 2 if both else buckets
    exact = each // 2
    op.require(exact > 0 and most > exact, Kind.BAD_ATTRIBUTE, f"max_distance is {most}, with {buckets} numbers")
    op.bounded(most, "max_distance", LONGEST_DISTANCE)
    # the bucket of each distance, which is the last from `most` on
    far = np.arange(exact, most + 1, dtype=np.float32)
    scaled = np.log(far / np.float32(exact)) / np.float32(math.log(most / exact)) * np.float32(each - exact)
    bucket = np.concatenate([np.arange(exact), np.minimum(exact + scaled.astype(np.int64), each - 1)])
    away = _places(op, queries[0], keys[0], axis=1) - _places(op, queries[0], keys[0])
    distance = away.abs() if both else (-away).binary("maximum", 0)
    found = op.constant(bucket).apply(Gather(0), distance.binary("minimum", most))
    if both:
        found = found + (away > 0).where(each, 0)
    return table.apply(Gather(0), found).transpose((2, 0, 1)).expand_dims(0)


@onnx_op("GatedRelativePositionBias", domain=MICROSOFT, ranks={0: 3, 1: 1, 2: 4, 3: 2, 4: 1, 5: 4})
def gated_relative_position_bias(
    op: Call,
    query: Tensor,
    query_bias: Tensor,
    relative: Tensor,
    weight: Tensor,
    bias: Tensor,
    factor: Tensor,
    offsets: Tensor | None = None,
) -> Any:
    """The bias of relative positions, weighed by two gates that each query has in each head (WavLM, DeBERTa)."""
    op.require(offsets is None, Kind.UNSUPPORTED, "tokens without padding")
    q = heads_of(query + query_bias, op.get("num_heads"))
    half = weight.shape[1] // 2
    raw = contract(q, "bhsd", weight, "dg", "bhsg") + bias
    gates = raw.reshape(*raw.shape[:3], 2, half).reduce("sum", (4,)).sigmoid()
    update, reset = gates[..., 0:1], gates[..., 1:2]
    return (update * (reset * factor - 1.0) + 2.0) * relative


# --- batches without padding ------------------------------------------------------------------------


def _padded(op: Call, x: Any, offsets: Tensor) -> Any:
    """Rows of tokens [tokens, ...] at their places [batch, length, ...]; 0 elsewhere."""
    batch, length = offsets.shape
    count = x.shape[0]
    flat = x.full((batch * length, *x.shape[1:]), 0)
    index = offsets.reshape(batch * length)[:count].cast(i64)
    index = index.reshape(count, *[1] * (x.rank - 1)).broadcast_to(x.shape)
    return flat.apply(ScatterElements(0, "none"), index, x).reshape(batch, length, *x.shape[1:])


@onnx_op("RestorePadding", domain=MICROSOFT, ranks={0: 2, 1: 2})
def restore_padding(op: Call, x: Tensor, offsets: Tensor) -> Any:
    return _padded(op, x, offsets)


@onnx_op("PackedAttention", domain=MICROSOFT, ranks={0: 2, 1: 2, 2: 1, 3: 2, 4: 1, 5: 4})
def packed_attention(
    op: Call, x: Tensor, weight: Tensor, bias: Tensor, offsets: Tensor, ends: Tensor, extra: Tensor | None = None
) -> Any:
    """One projection to queries, keys and values, then attention inside each sequence."""
    total = contract(x, "th", weight, "hp", "tp") + bias
    width = total.shape[1]
    sizes = op.get("qkv_hidden_sizes", None) or [width // 3] * 3
    op.require(len(sizes) == 3, Kind.BAD_ATTRIBUTE, f"qkv_hidden_sizes are {sizes}; they are three")
    op.require(symbolic.equal(sizes[0] + sizes[1] + sizes[2], width) is not False, Kind.BAD_SHAPE, f"{width} columns are not {sizes}")
    parts = (total[:, : sizes[0]], total[:, sizes[0] : sizes[0] + sizes[1]], total[:, sizes[0] + sizes[1] :])
    return _inside_sequences(op, parts, offsets, ends, extra)


@onnx_op("PackedMultiHeadAttention", domain=MICROSOFT, ranks={1: 2, 2: 2, 3: 1, 4: 2, 5: 1, 6: 4})
def packed_multi_head_attention(
    op: Call,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    offsets: Tensor,
    ends: Tensor,
    extra: Tensor | None = None,
) -> Any:
    if query.rank == 4:  # [tokens, heads, 3, size]
        op.require(query.shape[2] == 3, Kind.BAD_SHAPE, f"{query.type!r} does not hold 3 parts for each head")
        parts = [query[:, :, n].reshape(query.shape[0], query.shape[1] * query.shape[3]) for n in range(3)]
    else:
        op.require(query.rank == 2, Kind.BAD_SHAPE, f"queries are {query.type!r}")
        op.require(key is not None and value is not None, Kind.INPUT_COUNT, "it has no keys, or no values")
        assert key is not None
        assert value is not None
        parts = [query, key, value]
    if bias is not None:
        start: Dim = 0
        for n, part in enumerate(parts):
            parts[n] = part + bias[start : start + part.shape[1]]
            start = start + part.shape[1]
    return _inside_sequences(op, parts, offsets, ends, extra)


def _inside_sequences(op: Call, parts: Any, offsets: Tensor, ends: Tensor, extra: Tensor | None) -> Any:
    """Attention of tokens [tokens, heads * size], each to those of its own sequence; ends[b] is how many came before b."""
    batch, length = offsets.shape
    q, k, v = (heads_of(_padded(op, part, offsets), op.get("num_heads")) for part in parts)
    counts = (ends[1:] - ends[:-1]).cast(i64).reshape(batch, 1, 1, 1)
    mask = (_places(op, length) < counts).broadcast_to((batch, 1, 1, length))
    if extra is not None:
        mask = mask.where(extra.cast(f32), -np.inf)
    y = merged(attend(op, q, k, v, mask, op.get("scale", 0.0) or None))
    return y.reshape(batch * length, y.shape[2]).apply(Gather(0), offsets.reshape(batch * length)[: parts[0].shape[0]])
