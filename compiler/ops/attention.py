"""Attention as one op that does not form a large score matrix; and rotary positions.

    scores[b, h, t, s] = sum over d: q[b, h, t, d] * k[b, h, s, d] * scale  (+ mask)
    y[b, h, t, e]      = sum over s: softmax over s of scores[b, h, t, s] * v[b, h, s, e]

Several heads of q may share one head of k and v: q has a multiple of their heads, and consecutive ones share.
Scores, softmax and their sums are in the compute type (f32 for f16 and bf16), rounded once at the end.
A row whose scores are all masked is NaN, as the softmax of nothing.

Scores beyond MOST_SCORES are computed for some heads at a time, and if those are still too many for some queries at a
time, by scans: memory then grows with the number of keys and not with their square, and what is kept stays in the
caches. Long causal attention is halved, and the first half leaves out the keys that none of its queries sees. The
gradient is the scan the other way, which computes the scores of its part again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, bf16, boolean, dtype_of, f16, f32, f64, i32, i64
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample, broadcast_shapes, shape_text
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.control import Scan

MOST_SCORES = 1 << 19  # scores that are computed in one go
BLOCK_SCORES = 1 << 17  # scores of one part, when they are computed in parts
CAUSAL_QUERIES = 256  # queries of a causal attention that are not divided for the sake of the keys they do not see
FEWEST_QUERIES = 16  # of a block: enough rows for the register tiles of its products


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
        scores = symbolic.product((*q.shape[:3], k.shape[2]))
        if symbolic.less_equal(scores, MOST_SCORES) is not False:
            return self._whole(q, k, v, masks)
        heads = _heads_at_once(q.shape, k.shape)
        if heads is not None:
            return self._by_heads(q, k, v, masks, heads)
        if self.causal and isinstance(q.shape[2], int) and q.shape[2] >= 2 * CAUSAL_QUERIES:
            return self._in_halves(q, k, v, masks)
        rows = _queries_at_once(q.shape, k.shape[2])
        return self._whole(q, k, v, masks) if rows is None else self._by_queries(q, k, v, masks, rows)

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

    def _by_heads(self, q: Node, k: Node, v: Node, masks: Sequence[Node], heads: int) -> Any:
        """Some heads of keys after the others, each with the queries that share them: attention of fewer heads."""
        groups = symbolic.product(k.shape[:2]) // heads
        share = q.shape[1] // k.shape[1]

        def apart(x: Node, together: Dim) -> Any:
            return x.reshape((groups, heads, together, *x.shape[2:]))

        varying = [m for m in masks if m.rank > 2 and any(d != 1 for d in m.shape[:-2])]
        fixed = [m for m in masks if m not in varying]
        stretched = (m.broadcast_to((*q.shape[:2], *m.shape[-2:])) for m in varying)
        scanned = [apart(q, share), apart(k, 1), apart(v, 1), *(apart(m, share) for m in stretched)]
        found = _scan(groups, scanned, fixed, lambda *parts: parts[0].apply(self, *parts[1:]))
        return found.reshape((*q.shape[:3], v.shape[3]))

    def _by_queries(self, q: Node, k: Node, v: Node, masks: Sequence[Node], rows: int) -> Any:
        """Blocks of queries one after another; what is left when they do not come out even follows."""
        length = q.shape[2]
        assert isinstance(length, int)
        blocks = length // rows
        parts = [self._in_blocks(q, k, v, masks, rows, blocks)]
        if blocks * rows < length:
            rest = movement.part(q, 2, blocks * rows, length)
            masked = [_part_of_mask(m, blocks * rows, length, k.shape[2]) for m in masks]
            parts.append(self._whole(rest, k, v, masked, q.constant(blocks * rows, i32)))
        return movement.concat(parts, 2)

    def _in_blocks(self, q: Node, k: Node, v: Node, masks: Sequence[Node], rows: int, blocks: int) -> Any:
        """The first `blocks * rows` queries."""
        varying = [m for m in masks if m.rank > 1 and m.shape[-2] != 1]
        fixed = [m for m in masks if m not in varying]
        first = movement.iota(q, (blocks,), 0, i32) * rows
        scanned = [_blocks_of_rows(q, rows, blocks), first, *(_blocks_of_rows(m, rows, blocks) for m in varying)]

        def block(some: Node, first: Node, *others: Node) -> Any:
            own, (keys, values, *whole) = others[: len(varying)], others[len(varying) :]
            return self._whole(some, keys, values, [*own, *whole], first)

        found = _scan(blocks, scanned, [k, v, *fixed], block)
        return found.transpose((1, 2, 0, 3, 4)).reshape((*q.shape[:2], blocks * rows, v.shape[3]))

    def _whole(self, q: Node, k: Node, v: Node, masks: Sequence[Node], first: Node | None = None) -> Any:
        """All queries at once; `first` is the number of the first of them."""
        weight = self._scores(q, k, masks, first).softmax(axis=3)
        if q.shape[1] == k.shape[1]:
            return contract(weight, "bhts", v, "bhse", "bhte", q.dtype)
        shared = self._apart(weight, k.shape[1])
        result = contract(shared, "bhgts", v, "bhse", "bhgte", q.dtype)
        return result.reshape((*q.shape[:3], v.shape[3]))

    def _scores(self, q: Node, k: Node, masks: Sequence[Node], first: Node | None) -> Any:
        """[b, heads, t, s] in the compute type, masked."""
        wide = q.dtype.compute
        if q.shape[1] == k.shape[1]:
            products = contract(q, "bhtd", k, "bhsd", "bhts", wide)
        else:
            shared = contract(self._apart(q, k.shape[1]), "bhgtd", k, "bhsd", "bhgts", wide)
            products = shared.reshape((*q.shape[:3], k.shape[2]))
        scores = products * self._factor(q.shape[3])
        for mask in masks:
            scores = mask.where(scores, -math.inf) if mask.dtype == boolean else scores + mask.cast(wide)
        if self.causal:
            shape = (q.shape[2], k.shape[2])
            number = i64 if first is None else first.dtype
            row, column = (movement.iota(q, shape, axis, number) for axis in (0, 1))
            last = row if first is None else row + first
            last = last + movement.dimension(row, self.offset) if self.offset != 0 else last
            scores = (column <= last).where(scores, -math.inf)
        return scores

    @staticmethod
    def _apart(x: Node, kv_heads: Dim) -> Any:
        """[b, heads, ...] as [b, kv heads, those that share one, ...]"""
        return x.reshape((x.shape[0], kv_heads, x.shape[1] // kv_heads, *x.shape[2:]))

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


def _heads_at_once(queries: tuple[Dim, ...], keys: tuple[Dim, ...]) -> int | None:
    """How many heads of keys have few enough scores together; None when it is all, or too little is known."""
    batch, heads = keys[:2]
    scores = symbolic.product((queries[1] // heads, queries[2], keys[2]))
    count = batch * heads if isinstance(batch, int) else heads
    if not isinstance(count, int) or not isinstance(scores, int):
        return None
    found = max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * scores <= BLOCK_SCORES))
    return None if symbolic.equal(batch * heads, found) is True else found


def _queries_at_once(shape: tuple[Dim, ...], keys: Dim) -> int | None:
    """The queries of a block; None when their number is not known, or they make no two blocks."""
    batch, heads, queries = shape[:3]
    across = symbolic.product((batch, heads, keys))
    if not isinstance(queries, int) or not isinstance(across, int):
        return None
    rows = max(FEWEST_QUERIES, BLOCK_SCORES // across // FEWEST_QUERIES * FEWEST_QUERIES)
    return rows if 2 * rows <= queries else None


def _scan(length: Dim, scanned: Sequence[Node], captured: Sequence[Node], body: Callable[..., Any]) -> Any:
    """The results of `body` for each step of the scanned nodes, stacked."""
    builder = Builder()
    types = [*(x.type.with_shape(x.shape[1:]) for x in scanned), *(x.type for x in captured)]
    inputs = [Node(builder, builder.input(f"x{n}", type)) for n, type in enumerate(types)]
    region = Graph("attention_part", builder.inputs, (body(*inputs).value,))
    (found,) = scanned[0].apply(Scan(region, 0, len(scanned), length), *scanned[1:], *captured)
    return found


def _blocks_of_rows(x: Node, rows: int, blocks: int) -> Any:
    """[..., t, n] as [block, ..., row of block, n], without the rows beyond the last block."""
    axis = x.rank - 2
    cut = movement.part(x, axis, 0, rows * blocks)
    apart = cut.reshape((*x.shape[:axis], blocks, rows, x.shape[-1]))
    return apart.transpose((axis, *range(axis), axis + 1, axis + 2))


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
