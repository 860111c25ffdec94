"""Rows that overlap: the last sweep of one takes turns, block by block, with a sweep of the next.

    a row but for its last sweep
    for each following row { the same, and between its blocks those of the last sweep of the row before }
    the last sweep of the last row

Where rows come from memory and results go past the caches, sweeps one after the other let memory read while nothing is
written, write while nothing is read, and wait while a row is computed. Side by side they take as long as the longest.
Invariant: each row is computed as it is alone, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.compiler.ir.loops import Statement
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, partition, scalars
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.schedule.rowform import Pass
from ingot.compiler.schedule.statements import copy
from ingot.compiler.target import Target

ROWS = 4  # that the first cache holds at once: one on its way, two in the works, what is kept of one


def partner(passes: Sequence[Pass], target: Target) -> int:
    """The sweep with which the last one of the row before takes turns, block by block: stores past the caches and loads
    from memory then happen side by side, and neither waits while the other is busy. The first, which is the one that
    waits for memory; or one that computes for so long that memory would be idle meanwhile."""
    *before, last = passes
    extents = last.items[0].extents if last.items else ()
    if last.scalars or len(extents) != 1 or any(item.reduces or item.extents != extents for item in last.items):
        return -1
    row = extents[0] * max(item.place.buffer.dtype.itemsize for item in last.items)
    if not isinstance(row, int) or ROWS * row > target.l1_bytes:
        return -1
    able = [
        each
        for each in before
        if any(item.reduces for item in each.items) and all(item.extents == extents for item in each.items)
    ]
    if not able:
        return -1
    costs = [sum(scalars.cost(item.body) for item in each.items) for each in able]
    longest = costs.index(max(costs))
    return able[longest if costs[longest] > elementwise.CHEAP else 0].number


@dataclass(frozen=True)
class Overlapping:
    """Rows of which each is finished during the next: statements in terms of the row's variable."""

    kept: tuple[Statement, ...]  # memory from row to row
    first: tuple[Statement, ...]  # a row but for its last sweep
    following: tuple[Statement, ...]  # the same, and the last sweep of the row before
    rest: tuple[Statement, ...]  # the last sweep of a row


def chunks(rows: Sequence[Dim], extents: Sequence[Dim], row: Overlapping, cut: partition.Cut) -> tuple[Statement, ...]:
    """Chunks of rows: the first, those that follow it, then what is left of the last."""

    def chunk(ranges: partition.Ranges) -> tuple[Statement, ...]:
        *outer, last = ranges
        fixed = {v: part.start for v, part in zip(rows, outer, strict=False)}

        def at(statements: Sequence[Statement], number: Dim) -> tuple[Statement, ...]:
            return copy(statements, {**fixed, rows[-1]: number})

        following = build.loop("i", last.count - 1, lambda i: at(row.following, last.start + 1 + i))
        return copy((*row.kept, *at(row.first, last.start), *following, *at(row.rest, last.start + last.count - 1)))

    return partition.blocks(extents, cut, chunk)
