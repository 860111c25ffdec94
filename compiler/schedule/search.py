"""Enumerates schedules of a kernel for whoever measures them. Every one is correct; which is best is not known here.

The first candidate is what `schedule` chooses by itself. Candidates of a contraction differ in bits only if they
differ in `chain`, which is therefore left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

UNROLLS = (1, 2, 4, 8)


def candidates(kernel: Kernel, target: Target) -> Iterator[ScheduleOptions]:
    """Options to schedule the kernel with, the default first, each once."""
    chosen = schedule(kernel, target)
    yield ScheduleOptions()
    if chosen.recipe == "contraction":
        variants = _contraction(chosen, target)
    elif chosen.recipe == "reduction" and "rows" in chosen.decisions:
        variants = _tiles(chosen, target)
    else:
        return
    for decisions in variants:
        if any(chosen.decisions[name] != value for name, value in decisions.items()):
            yield ScheduleOptions(recipe=chosen.recipe, decisions=decisions)


def _contraction(chosen: Scheduled, target: Target) -> Iterator[Mapping[str, Any]]:
    packing = itertools.product((False, True), repeat=2)
    tiles = list(_tiles(chosen, target))
    for (left, right), tile, unroll in itertools.product(packing, tiles, UNROLLS):
        steps = 8 if left and unroll == 8 else 1
        if left and chosen.decisions["row_axis"] < 0:
            continue
        yield {**tile, "pack_left": left, "pack_right": right, "unroll": unroll, "left_steps": steps}


def _tiles(chosen: Scheduled, target: Target) -> Iterator[Mapping[str, Any]]:
    """Register tiles that leave room for one operand's vectors and a broadcast of the other."""
    most = 1 if chosen.decisions["row_axis"] < 0 else target.vector_registers
    for vectors in (1, 2, 3, 4):
        for rows in range(1, most + 1):
            if rows * vectors + vectors + 1 <= target.vector_registers and (rows + 1) * vectors >= 6:
                yield {"rows": rows, "vectors": vectors}
