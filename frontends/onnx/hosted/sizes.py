"""Ops whose results are as long as the data says."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.frontends.onnx.host import host_op
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import MICROSOFT


@host_op("NonZero", dynamic=(1,))
def nonzero(call: Any, x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(x if x.ndim else x.reshape(1)), 0)[: max(x.ndim, 1)].astype(np.int64)


@host_op("Compress")
def compress(call: Any, x: np.ndarray, condition: np.ndarray) -> np.ndarray:
    axis = call.get("axis", None)
    data = x.reshape(-1) if axis is None else x
    place = _axis(call, data) or 0
    chosen = condition.reshape(-1).astype(bool)
    if len(chosen) > data.shape[place]:
        raise ProblemError(Kind.BAD_SHAPE, f"Compress of {data.shape[place]} elements by {len(chosen)} conditions")
    return np.compress(chosen, data, place)


def _axis(call: Any, x: np.ndarray) -> int | None:
    """The axis of a node, when it names one."""
    axis = call.get("axis", None)
    if axis is not None and not -x.ndim <= axis < x.ndim:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"axis {axis} is outside an array of {x.ndim} axes")
    return axis


@host_op("Unique")
def unique(call: Any, x: np.ndarray) -> Any:
    """Sorted, or in the order in which they first appear."""
    axis = _axis(call, x)
    values, first, inverse, counts = np.unique(x, True, True, True, axis)
    inverse = inverse.reshape(-1)
    if not call.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        values = np.take(values, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@host_op("Unique", domain=MICROSOFT, dynamic=(0,))
def unique_in_order(call: Any, x: np.ndarray) -> Any:
    """(values, which of them each element is, how often each is there), in the order in which they first appear."""
    if x.ndim != 1:
        raise ProblemError(Kind.BAD_SHAPE, f"Unique of an array of {x.ndim} axes; it has 1")
    values, first, inverse, counts = np.unique(x, True, True, True)
    order = np.argsort(first, kind="stable")
    return values[order], np.argsort(order)[inverse.reshape(-1)].astype(np.int64), counts[order].astype(np.int64)


@host_op("RemovePadding", domain=MICROSOFT, dynamic=(0,))
def remove_padding(call: Any, x: np.ndarray, counts: np.ndarray) -> Any:
    """(rows of tokens, the places of those and then of the padding, how many tokens end before each row, the most)."""
    if x.ndim != 3 or counts.shape != x.shape[:1]:
        raise ProblemError(Kind.BAD_SHAPE, f"RemovePadding of {list(x.shape)} with {list(counts.shape)} lengths")
    if ((counts < 0) | (counts > x.shape[1])).any():
        raise ProblemError(Kind.BAD_VALUE, f"RemovePadding: lengths are {counts.tolist()}, of at most {x.shape[1]} tokens")
    kept = (np.arange(x.shape[1]) < counts[:, None]).reshape(-1)
    places = np.concatenate([np.flatnonzero(kept), np.flatnonzero(~kept)]).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    longest = np.array([counts.max(initial=0)], np.int32)
    return x.reshape(-1, x.shape[2])[kept], places.reshape(x.shape[:2]), ends, longest


def _scalar(value: np.ndarray | None, default: float) -> float:
    return default if value is None or not value.size else value.reshape(-1)[0].item()


@host_op("NonMaxSuppression", dynamic=(0,))
def non_max_suppression(
    call: Any,
    boxes: np.ndarray,
    scores: np.ndarray,
    most: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    threshold: np.ndarray | None = None,
) -> np.ndarray:
    """[batch, class, box] of the boxes that are kept: best first, none that overlaps a better one too much."""
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        raise ProblemError(Kind.BAD_SHAPE, f"NonMaxSuppression of boxes {list(boxes.shape)} and scores {list(scores.shape)}")
    limit = int(_scalar(most, 0))
    corners = _corners(boxes.astype(np.float32), bool(call.get("center_point_box", 0)))
    least = _scalar(threshold, -np.inf) if threshold is not None else -np.inf
    found: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        chosen = _kept(corners[batch], scores[batch, kind], limit, _scalar(overlap, 0.0), least)
        found += [(batch, kind, box) for box in chosen]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """[..., (low, low, high, high)]"""
    if centred:
        half = boxes[..., 2:] / 2
        return np.concatenate((boxes[..., :2] - half, boxes[..., :2] + half), -1)
    return np.concatenate((np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])), -1)


def _kept(boxes: np.ndarray, scores: np.ndarray, limit: int, overlap: float, least: float) -> list[int]:
    order = [int(n) for n in np.argsort(-scores, kind="stable") if scores[n] > least]
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], -1)
    kept: list[int] = []
    while order and len(kept) < limit:
        best, *rest = order
        kept.append(best)
        if not rest:
            break
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.prod(np.clip(high - low, 0, None), -1)
        union = areas[best] + areas[rest] - common
        ratio = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
        order = [n for n, r in zip(rest, ratio, strict=True) if not r > overlap]
    return kept
