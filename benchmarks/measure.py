"""Timing: contenders take turns in one process, so that whatever disturbs the machine disturbs all of them.

A turn is a few calls in a row, the first of them untimed: caches hold a contender's own data, as in a loop that
serves requests. The order of turns rotates. Reported are the best call and the median one.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Call = Callable[[], object]

TURN_SECONDS = 0.03
SHORT = 50e-6  # calls shorter than this are timed in groups


@dataclass(frozen=True)
class Effort:
    """How long to look: seconds for each contender, and at least so many turns.

    On a `busy` machine the process's own processor time is counted instead of the time that passes: what others
    take from the caches still shows, what they take from the processor does not.
    """

    seconds: float = 2.0
    turns: int = 5
    busy: bool = False

    @property
    def clock(self) -> Callable[[], int]:
        """Nanoseconds."""
        return time.process_time_ns if self.busy else time.perf_counter_ns


@dataclass(frozen=True)
class Timing:
    """Seconds of a call."""

    best: float
    median: float
    calls: int


def interleave(contenders: Mapping[str, Call], effort: Effort) -> dict[str, Timing]:
    """Time every contender, in turns."""
    plans = {name: _Plan.of(call, effort) for name, call in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(max((plan.turns for plan in plans.values()), default=0)):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                if turn < plans[name].turns:
                    samples[name] += plans[name].turn(contenders[name], effort.clock)
    finally:
        if collecting:
            gc.enable()
    return {name: _timing(times, plans[name].group) for name, times in samples.items()}


def _timing(times: list[float], group: int) -> Timing:
    if not times:
        raise RuntimeError("the clock did not move during any call")
    return Timing(min(times), statistics.median(times), len(times) * group)


@dataclass(frozen=True)
class _Plan:
    turns: int
    samples: int  # in a turn
    group: int  # calls in a sample

    @staticmethod
    def of(call: Call, effort: Effort) -> _Plan:
        seconds = _warm_up(call, effort.clock)
        group = 1 if seconds >= SHORT else math.ceil(SHORT / seconds)
        samples = max(1, min(1000, round(TURN_SECONDS / (seconds * group))))
        turns = math.ceil(effort.seconds / (seconds * (group * samples + 1)))
        return _Plan(max(effort.turns, turns), samples, group)

    def turn(self, call: Call, clock: Callable[[], int]) -> list[float]:
        call()
        times = []
        for _ in range(self.samples):
            if self.group == 1:
                start = clock()
                call()
                end = clock()
            else:
                repeats = range(self.group)
                start = clock()
                for _ in repeats:
                    call()
                end = clock()
            if end > start:  # on a virtual machine the clock of a process may stand still for a while
                times.append((end - start) * 1e-9 / self.group)
        return times


def _warm_up(call: Call, clock: Callable[[], int]) -> float:
    """Call until the time of a call has settled; that time."""
    best, first = math.inf, clock()
    for number in range(100):
        start = clock()
        call()
        end = clock()
        best = min(best, (end - start) * 1e-9)
        if number >= 2 and (end - first) * 1e-9 > 0.05:
            break
    return max(best, 1e-8)


def relative_error(found: object, expected: np.ndarray) -> float:
    """The largest difference, relative to the range of the expected result."""
    have, want = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if have.shape != want.shape:
        raise ValueError(f"the result has shape {have.shape}, expected is {want.shape}")
    if not np.isfinite(have).all():
        return math.inf
    scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
    return float(np.max(np.abs(have - want), initial=0.0)) / scale
