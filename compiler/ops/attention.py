"""Attention as one op that does not form a large score matrix; and rotary positions.

    scores[b, h, t, s] = sum over d: q[b, h, t, d] * k[b, h, s, d] * scale  (+ mask)
    y[b, h, t, e]      = sum over s: softmax over s of scores[b, h, t, s] * v[b, h, s, e]

Several heads of q may share one head of k and v: q has a multiple of their heads, and consecutive ones share.
Scores, softmax and their sums are in the compute type (f32 for f16 and bf16), rounded once at the end.
A row whose scores are all masked is NaN, as the softmax of nothing.

It is a softmax between two products; fusion computes those for a block of queries at a time (fusion/blocks.py), so that
memory grows with the number of keys and not with that of pairs, and so it does for the gradient. Long causal attention is
halved, and the first half leaves out the keys that none of its queries sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, bf16, boolean, dtype_of, f16, f32, f64, i64
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample, broadcast_shapes, shape_text
from ingot.compiler.ops.contraction import contract

CAUSAL_QUERIES = 256  # queries of a causal attention that are not divided for the sake of the keys they do not see


@dataclass(frozen=True)
class Attention(Op):
    """softmax(q k^T * scale + mask) v for q [b, heads, t, d], k [b, kv heads, s, d], v [b, kv heads, s, e].

    The scale is 1 / sqrt(d) by default. A mask broadcasts to [b, heads, t, s]: bool keeps what is True, float is
    added. With `causal`, query t sees the keys s <= t + offset only (offset: how many keys came before).
    """

    scale: float | None = None
    causal: bool = False
    offset: Dim = 0
    cheap = False
    rereads = True

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *masks: TensorType) -> TensorType:
        for what, operand in (("queries", q), ("keys", k), ("values", v)):
            if operand.rank != 4 or not operand.dtype.is_float:
                raise OpTypeError(f"attention: {what} are [batch, heads, length, size] of floats, not {operand!r}")
            if operand.dtype != q.dtype:
                raise OpTypeError(f"attention: element types {q.dtype} and {operand.dtype} differ; cast one")
        for what, left, right in (
            ("the batches of queries and keys", q.shape[0], k.shape[0]),
            ("the batches of keys and values", k.shape[0], v.shape[0]),
            ("the heads of keys and values", k.shape[1], v.shape[1]),
            ("the lengths of keys and values", k.shape[2], v.shape[2]),
            ("the sizes of queries and keys", q.shape[3], k.shape[3]),
        ):
            if symbolic.equal(left, right) is not True:
                raise OpTypeError(f"attention: {what} differ: {left} and {right} in {q!r}, {k!r}, {v!r}")
        if symbolic.equal(q.shape[1] % k.shape[1], 0) is not True:
            raise OpTypeError(f"attention: {q.shape[1]} heads of queries cannot share {k.shape[1]} of keys")
        if self.scale is None and not isinstance(q.shape[3], int):
            raise OpTypeError(f"attention: the size {q.shape[3]} is symbolic; say which scale you want")
        self._check_masks(q, k, masks)
        return q.with_shape((*q.shape[:3], v.shape[3]))

    def _check_masks(self, q: TensorType, k: TensorType, masks: tuple[TensorType, ...]) -> None:
        if len(masks) > 1:
            raise OpTypeError(f"attention takes one mask, not {len(masks)}")
        scores = (*q.shape[:3], k.shape[2])
        for mask in masks:
            if mask.dtype not in (boolean, q.dtype, q.dtype.compute):
                raise OpTypeError(f"attention: the mask is {mask.dtype}, not bool or {q.dtype}; cast it")
            if mask.rank > 4 or broadcast_shapes("attention", mask.shape, scores) != scores:
                raise OpTypeError(f"attention: {mask!r} does not stretch to the scores {shape_text(scores)}")

    def _factor(self, size: Any) -> float:
        return 1 / math.sqrt(size) if self.scale is None else self.scale

    def evaluate(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *masks: np.ndarray) -> np.ndarray:
        wide = dtype_of(q).compute.numpy
        share = q.shape[1] // k.shape[1]
        queries, keys, values = (x.astype(wide) for x in (q, k, v))
        keys, values = np.repeat(keys, share, 1), np.repeat(values, share, 1)
        scores = np.einsum("bhtd,bhsd->bhts", queries, keys) * wide.type(self._factor(q.shape[3]))
        for mask in masks:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(wide)
        if self.causal:
            row, column = np.ogrid[: q.shape[2], : k.shape[2]]
            scores = np.where(column <= row + self.offset, scores, -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weight = (weight / weight.sum(-1, keepdims=True)).astype(wide)
        return np.einsum("bhts,bhse->bhte", weight, values).astype(q.dtype)

    def decompose(self, *xs: Node) -> Node:
        q, k, v, *masks = xs
        if self.causal and isinstance(q.shape[2], int) and q.shape[2] >= 2 * CAUSAL_QUERIES:
            return self._in_halves(q, k, v, masks)
        return self._whole(q, k, v, masks)

    def _in_halves(self, q: Node, k: Node, v: Node, masks: Sequence[Node]) -> Any:
        """The first half of the queries never sees the last keys, so that nothing is computed for them."""
        length = q.shape[2]
        assert isinstance(length, int)
        half = length // 2
        seen = symbolic.minimum(k.shape[2], symbolic.maximum(half + self.offset, 1))
        keys, values = movement.part(k, 2, 0, seen), movement.part(v, 2, 0, seen)
        early = (movement.part(q, 2, 0, half), keys, values, *(_part_of_mask(m, 0, half, seen) for m in masks))
        rest = (_part_of_mask(m, half, length, k.shape[2]) for m in masks)
        late = (movement.part(q, 2, half, length), k, v, *rest)
        later = replace(self, offset=self.offset + half)
        return movement.concat([early[0].apply(self, *early[1:]), late[0].apply(later, *late[1:])], 2)

    def _whole(self, q: Node, k: Node, v: Node, masks: Sequence[Node]) -> Any:
        if q.shape[1] == k.shape[1]:
            weight = self._masked(contract(q, "bhtd", k, "bhsd", "bhts", q.dtype.compute), q, k, masks).softmax(axis=3)
            return contract(weight, "bhts", v, "bhse", "bhte", q.dtype)
        heads = k.shape[1]
        products = contract(_apart(q, heads), "bhgtd", k, "bhsd", "bhgts", q.dtype.compute)
        weight = self._masked(products, q, k, [_mask_apart(m, heads) for m in masks]).softmax(axis=4)
        return contract(weight, "bhgts", v, "bhse", "bhgte", q.dtype).reshape((*q.shape[:3], v.shape[3]))

    def _masked(self, products: Node, q: Node, k: Node, masks: Sequence[Node]) -> Any:
        """Scores in the compute type; their last two axes are queries and keys."""
        scores = products * self._factor(q.shape[3])
        for mask in masks:
            scores = mask.where(scores, -math.inf) if mask.dtype == boolean else scores + mask.cast(scores.dtype)
        if self.causal:
            row, column = (movement.iota(q, (q.shape[2], k.shape[2]), axis, i64) for axis in (0, 1))
            last = row + movement.dimension(row, self.offset) if self.offset != 0 else row
            scores = (column <= last).where(scores, -math.inf)
        return scores

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16, bf16):
            yield Sample(cls(), (dtype[2, 3, 4, 5], dtype[2, 3, 6, 5], dtype[2, 3, 6, 2]))
        for dtype in (f64, f32):
            query, key = dtype[2, 4, 3, 2], dtype[2, 2, 5, 2]
            yield Sample(cls(0.5, True), (query, key, key))
            yield Sample(cls(None, True, 2), (query, key, key))
            yield Sample(cls(), (query, key, key, dtype[3, 5]))
            yield Sample(cls(None, True, 1), (query, key, key, dtype[2, 1, 1, 5]))
            keep = np.arange(15).reshape(3, 5) % 4 != 1
            yield Sample(cls(), (query, key, key, keep))
        yield Sample(cls(), (f64[1, 4, 3, 2], f64[1, 1, 3, 2], f64[1, 1, 3, 3]))
        yield Sample(cls(), (f16[1, 2, 3, 2], f16[1, 2, 3, 2], f16[1, 2, 3, 2], f32[2, 1, 3]))
        yield Sample(cls(), (f32[0, 2, 3, 2], f32[0, 2, 3, 2], f32[0, 2, 3, 2]))


def _apart(x: Node, kv_heads: Dim) -> Any:
    """[b, heads, ...] as [b, kv heads, those that share one, ...]"""
    return x.reshape((x.shape[0], kv_heads, x.shape[1] // kv_heads, *x.shape[2:]))


def _mask_apart(mask: Node, kv_heads: Dim) -> Any:
    """A mask that stretches to [b, heads, t, s], as one that stretches to [b, kv heads, those that share one, t, s]"""
    if mask.rank < 3:
        return mask
    if mask.shape[-3] == 1:
        return mask.expand_dims(mask.rank - 3)
    shape = mask.shape
    return mask.reshape((*shape[:-3], kv_heads, shape[-3] // kv_heads, *shape[-2:]))


def _part_of_mask(mask: Node, start: int, stop: int, keys: Dim) -> Any:
    """The mask of some queries and the first keys; axes that are stretched stay."""
    if mask.rank > 1 and mask.shape[-2] != 1:
        mask = movement.part(mask, mask.rank - 2, start, stop)
    return mask if mask.rank == 0 or mask.shape[-1] == 1 else movement.part(mask, mask.rank - 1, 0, keys)


# --- positions ------------------------------------------------------------------------------------


def rotary_angles(positions: Node, size: int, base: float = 10000.0) -> tuple[Any, Any]:
    """(cosine, sine) [..., size / 2] in f32 of position * base^(-2 i / size), for integer or float positions [...].

    Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding.
    """
    if size % 2:
        raise OpTypeError(f"rotary_angles: {size} dims do not make pairs")
    pair = movement.iota(positions, (size // 2,), 0, f32)
    frequency = (pair * (-2.0 * math.log(base) / size)).exp()
    angle = positions.cast(f32).expand_dims(-1) * frequency
    return angle.cos(), angle.sin()


def rotary_embedding(x: Node, cosine: Node, sine: Node, interleaved: bool = False) -> Any:
    """x [..., size] with its pairs (i, i + pairs), or (2 i, 2 i + 1) if interleaved, turned by angles whose cosine
    and sine are [..., pairs] and broadcast. Elements beyond the pairs stay as they are."""
    pairs, last = cosine.shape[-1], x.rank - 1
    turned, rest = movement.part(x, last, 0, 2 * pairs), movement.part(x, last, 2 * pairs, x.shape[-1])
    wide = x.dtype.compute
    if interleaved:
        apart = turned.reshape((*x.shape[:-1], pairs, 2))
        first, second = (movement.part(apart, x.rank, n, n + 1).reshape((*x.shape[:-1], pairs)) for n in (0, 1))
    else:
        first, second = movement.part(turned, last, 0, pairs), movement.part(turned, last, pairs, 2 * pairs)
    first, second, cosine, sine = (n.cast(wide) for n in (first, second, cosine, sine))
    rotated = [(first * cosine - second * sine).cast(x.dtype), (second * cosine + first * sine).cast(x.dtype)]
    if interleaved:
        result = movement.stack(rotated, x.rank).reshape(turned.shape)
    else:
        result = movement.concat(rotated, last)
    return result if symbolic.equal(rest.shape[-1], 0) is True else movement.concat([result, rest], last)
