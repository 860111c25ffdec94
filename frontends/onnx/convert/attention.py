"""Attention of the standard, in the form that never materialises the scores; special cases use ONNX's own definition."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import boolean, i64
from ingot.compiler.ops.attention import Attention
from ingot.compiler.ops.base import broadcast_shapes
from ingot.compiler.ops.movement import Iota, concat
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call, Decline
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import onnx_op


def heads_of(x: Any, count: Dim) -> Any:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    if x.rank != 3:
        raise ProblemError(Kind.BAD_SHAPE, f"queries, keys or values are {x.type!r}; they have 3 axes")
    if isinstance(count, int) and (count <= 0 or (isinstance(x.shape[2], int) and x.shape[2] % count)):
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"{count} heads of {x.type!r}")
    size = x.shape[2] // count
    return x.reshape(x.shape[0], x.shape[1], count, size).transpose((0, 2, 1, 3))


def merged(x: Tensor) -> Any:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    return x.transpose((0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def attend(
    op: Call, q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None, causal: bool = False, offset: Dim = 0
) -> Any:
    """softmax(q k^T scale + mask) v; rows of which everything is masked are 0."""
    fields = Attention(scale, causal, offset)
    if mask is None:
        return q.apply(fields, k, v)
    mask = _fitting(mask, q, k)
    result = q.apply(fields, k, v, mask)
    return _dead_rows(op, mask, q, k, causal, offset).where(0, result)


def _fitting(mask: Any, q: Any, k: Any) -> Any:
    """The mask with its last axis filled up: keys that it does not mention are masked."""
    length = k.shape[2]
    if mask.dtype != boolean:
        mask = mask.cast(q.dtype)
    if mask.shape[-1] in (1, length):
        return mask
    low, high = [0] * mask.rank, [0] * mask.rank
    high[-1] = length - mask.shape[-1]  # type: ignore[call-overload]
    value = 0.0 if mask.dtype == boolean else -np.inf
    return mask.pad(low=tuple(low), high=tuple(high), mode="constant", value=value)


def _dead_rows(op: Call, mask: Any, q: Any, k: Any, causal: bool, offset: Dim) -> Any:
    """Queries that see no key, broadcastable to the result."""
    seen = mask if mask.dtype == boolean else mask > -np.inf
    if causal:
        length, keys = q.shape[2], k.shape[2]
        row = Tensor(op.trace, op.trace.emit(Iota((length, keys), 0))) + op.dimension(offset, i64)
        column = Tensor(op.trace, op.trace.emit(Iota((length, keys), 1)))
        shape = broadcast_shapes(op.name, seen.shape, (length, keys))
        seen = seen.broadcast_to(shape) & (column <= row).broadcast_to(shape)
    return ~seen.reduce("any", (seen.rank - 1,), True)


@onnx_op("Attention", since=23)
def attention(
    op: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Any:
    windows = (op.get("left_window_size", -1), op.get("right_window_size", -1))
    cap = op.get("softcap", 0.0)  # none where it is not positive
    if lengths is not None or op.wants(3) or cap > 0 or windows != (-1, -1):
        op.require(cap >= 0, Kind.BAD_VALUE, f"softcap is {cap}")  # by its description, scores would be capped
        raise Decline
    flat = q.rank == 3
    ranks = tuple(t.rank for t in (q, k, v))
    op.require(ranks in ((3, 3, 3), (4, 4, 4)), Kind.BAD_SHAPE, f"queries, keys and values have {ranks} axes; all have 3, or 4")
    for past in (past_key, past_value):
        op.require(past is None or past.rank == 4, Kind.BAD_SHAPE, "a past key or value has 4 axes")
    if flat:
        heads = op.get("kv_num_heads")
        q, k, v = heads_of(q, op.get("q_num_heads")), heads_of(k, heads), heads_of(v, heads)
    offset: Dim = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    scale = op.get("scale", None)
    if scale is None:
        op.require(isinstance(q.shape[3], int), Kind.UNSUPPORTED, f"heads of the symbolic size {q.shape[3]}")
    y = attend(op, q, k, v, mask, scale, bool(op.get("is_causal", 0)), offset)
    return (merged(y) if flat else y), k, v
