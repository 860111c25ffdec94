"""Enumerates schedules of a kernel, and looks for the fastest among them with a clock that it is given.

Every candidate is correct. Candidates of one kernel give the same bits: those of a contraction would differ only in
`chain`, those of a reduction only in its chunks, and both are left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

UNROLLS = (1, 2, 4, 8)
PACKED_STEPS = 8  # steps of packed rows that are kept together: the loop over them is unrolled as often
NOTICEABLE = 0.98  # of the time so far: what saves less is noise

Decisions = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """The fastest schedule met."""

    decisions: Decisions  # empty: the default
    seconds: float
    default_seconds: float
    tried: int


def candidates(kernel: Kernel, target: Target) -> Iterator[ScheduleOptions]:
    """Options to schedule the kernel with, the default first, each once."""
    chosen = schedule(kernel, target)
    yield ScheduleOptions()
    for parts in itertools.product(*_groups(chosen, target)):
        decisions = _settled({name: value for part in parts for name, value in part.items()}, chosen)
        if decisions and _differs(decisions, chosen):
            yield ScheduleOptions(recipe=chosen.recipe, decisions=decisions)


def search(
    kernel: Kernel, target: Target, seconds_of: Callable[[ScheduleOptions], float], goes_on: Callable[[], bool]
) -> Found:
    """The best schedule that descending along one kind of decision after another finds while `goes_on`."""
    chosen = schedule(kernel, target)
    best: Decisions = {}
    default = fastest = seconds_of(ScheduleOptions())
    tried = 1
    for group in _groups(chosen, target):
        for alternative in group:
            decisions = _settled({**best, **alternative}, chosen)
            if decisions == best or not _differs(decisions, chosen):
                continue
            if not goes_on():
                return Found(best, fastest, default, tried)
            seconds = seconds_of(ScheduleOptions(recipe=chosen.recipe, decisions=decisions))
            tried += 1
            if seconds < NOTICEABLE * fastest:
                best, fastest = decisions, seconds
    return Found(best, fastest, default, tried)


def _groups(chosen: Scheduled, target: Target) -> list[Sequence[Decisions]]:
    """Kinds of decisions, the most important first, with their alternatives."""
    if chosen.recipe == "contraction":
        sides = [False] if chosen.decisions["row_axis"] < 0 else [False, True]
        packing = [{"pack_left": a, "pack_right": b} for a, b in itertools.product(sides, (False, True))]
        return [_tiles(chosen, target), packing, [{"unroll": unroll} for unroll in UNROLLS]]
    if chosen.recipe == "reduction" and "rows" in chosen.decisions:
        return [_tiles(chosen, target)]
    if chosen.recipe == "elementwise":
        return [[{"unroll": unroll} for unroll in UNROLLS]]
    return []


def _settled(decisions: dict[str, Any], chosen: Scheduled) -> dict[str, Any]:
    """Decisions that follow from others."""
    if "unroll" in decisions and chosen.recipe == "contraction":
        left = decisions.get("pack_left", chosen.decisions["pack_left"])
        decisions["left_steps"] = PACKED_STEPS if left and decisions["unroll"] == PACKED_STEPS else 1
    return decisions


def _differs(decisions: Decisions, chosen: Scheduled) -> bool:
    given = chosen.decisions.get("groups", [chosen.decisions])
    return any(record[name] != value for record in given for name, value in decisions.items())


def _tiles(chosen: Scheduled, target: Target) -> list[Decisions]:
    """Register tiles that leave room for one operand's vectors and a broadcast of the other."""
    most = 1 if chosen.decisions["row_axis"] < 0 else target.vector_registers
    return [
        {"rows": rows, "vectors": vectors}
        for vectors in (1, 2, 3, 4)
        for rows in range(1, most + 1)
        if rows * vectors + vectors + 1 <= target.vector_registers and (rows + 1) * vectors >= 6
    ]
