"""Contenders side by side: build each, compare its result with a reference, then time those that agree."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ingot
from benchmarks import measure, peers
from benchmarks.measure import Effort
from benchmarks.probe import Machine
from benchmarks.results import OURS, Contender, Result
from benchmarks.rows import Row
from benchmarks.work import Work
from ingot.compiler.ir.types import type_of

Call = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """How to measure."""

    threads: int
    effort: Effort
    slow: bool
    machine: Machine
    profile: bool = True


@dataclass(frozen=True)
class Entry:
    """`build` gives the call that is timed; `outcome` makes an array of what the call returned."""

    build: Callable[[], Call]
    outcome: Callable[[Any], np.ndarray] = np.asarray


def race(
    row: Row,
    entries: Mapping[str, Entry],
    reference: np.ndarray | None,
    tolerance: float,
    setting: Setting,
    work: Work | None = None,
    limits: Mapping[str, Call] | None = None,
) -> Result:
    """The row's result. An entry that fails, or whose result is wrong, says so in place of its time. `limits` are ways of
    moving the same bytes, of which the fastest is the row's limit: they take turns with the entries, because the speed of
    a memory that others use changes within minutes."""
    result = Result(row.key, row.title)
    if work is not None:
        result.limit, result.limited_by = work.limit(setting.machine, setting.threads)
        result.operations = work.operations
    calls: dict[str, Call] = {}
    for name, entry in entries.items():
        result.contenders[name] = contender = Contender()
        try:
            call = entry.build()
            found = entry.outcome(call())
            contender.error = None if reference is None else measure.relative_error(found, reference)
            if contender.error is not None and not contender.error <= tolerance:
                contender.failure = f"wrong: relative error {contender.error:.2g}"
            else:
                calls[name] = call
        except peers.Unsupported as why:
            contender.failure = str(why)
        except Exception as error:
            contender.failure = describe(error)
    limits = {f"limit: {name}": call for name, call in (limits or {}).items()}
    timings = measure.interleave({**calls, **limits}, setting.effort)
    for name in calls:
        contender, timing = result.contenders[name], timings[name]
        contender.best, contender.median, contender.calls = timing.best, timing.median, timing.calls
    if limits:
        result.limit = min(timings[name].best for name in limits)
        result.limit_median = min(timings[name].median for name in limits)
    return result


def describe(error: Exception) -> str:
    """What went wrong and where, in two lines."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} at {where}: {str(error).strip()[:300]}"


def compiled(model: Any, arrays: Sequence[np.ndarray], setting: Setting, **choices: Any) -> Entry:
    """Ingot's entry: a model or function for these arguments."""

    def build() -> Call:
        executable = ingot.compile(model, *map(type_of, arrays), threads=setting.threads, **choices)
        return lambda: executable(*arrays)

    return Entry(build)


def add_profile(result: Result, executable: Any, arrays: Sequence[np.ndarray], setting: Setting) -> None:
    """The slowest kernels of a program that ran, each at its best."""
    ours = result.contenders.get(OURS)
    if not setting.profile or ours is None or not ours.ran:
        return
    best: dict[int, float] = {}
    for _ in range(max(3, min(30, round(0.5 / ours.best)))):
        kernels = executable.profile(*arrays, repeat=1).kernels
        for number, kernel in enumerate(kernels):
            best[number] = min(best.get(number, math.inf), kernel.nanoseconds / 1000)
    names = [kernel.name for kernel in kernels]
    slowest = sorted(best.items(), key=lambda item: -item[1])
    result.profile = [(names[number], microseconds) for number, microseconds in slowest[:24]]
