"""Where buffers stand in the arena: pure integer planning, no IR.

An Interval asks for `size` bytes from step `start` to step `end`, both included. `plan` gives each an offset
such that intervals that are live together do not overlap. Greedy placement (each interval at the lowest
offset that is free for its whole life) under several orders; the best result wins. The lower bound is the
largest sum of sizes live at one step; most models reach it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Interval:
    key: Hashable
    size: int
    start: int
    end: int

    def meets(self, other: Interval) -> bool:
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True)
class Placement:
    offsets: dict[Hashable, int]
    total: int
    lower_bound: int


def align_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def plan(intervals: Sequence[Interval]) -> Placement:
    """Offsets, aligned to 64 bytes; `total` is the arena they need."""
    orders: list[Callable[[Interval], tuple]] = [
        lambda i: (-align_up(i.size), i.start),
        lambda i: (-align_up(i.size) * (i.end - i.start + 1), i.start),
        lambda i: (i.start, -align_up(i.size)),
        lambda i: (-(i.end - i.start), -align_up(i.size), i.start),
    ]
    bound = lower_bound(intervals)
    best: Placement | None = None
    for order in orders:
        placed = _place(sorted(intervals, key=order), bound)
        if best is None or placed.total < best.total:
            best = placed
        if best.total == bound:
            break
    assert best is not None
    return best


def lower_bound(intervals: Sequence[Interval]) -> int:
    """The most bytes live at one step."""
    change: dict[int, int] = {}
    for interval in intervals:
        size = align_up(interval.size)
        change[interval.start] = change.get(interval.start, 0) + size
        change[interval.end + 1] = change.get(interval.end + 1, 0) - size
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def _place(intervals: Sequence[Interval], bound: int) -> Placement:
    offsets: dict[Hashable, int] = {}
    by_offset: list[tuple[int, int, int, int]] = []  # offset, end of bytes, start, end; sorted by offset
    total = 0
    for interval in intervals:
        size = align_up(interval.size)
        offset = 0
        for low, high, start, end in by_offset:
            if interval.start > end or start > interval.end:
                continue
            if offset + size <= low:
                break
            offset = max(offset, high)
        offsets[interval.key] = offset
        insort(by_offset, (offset, offset + size, interval.start, interval.end))
        total = max(total, offset + size)
    return Placement(offsets, total, bound)
