"""Choose schedules by measuring them on this machine, within a budget of time.

Kernels are tuned one by one, those with the most work first, each with its share of the time that is left. What was
found is kept in the cache under the kernel's own text and the target, so the same kernel gets the same choice in
every program and process from then on, and nothing is measured twice.

Invariant: a choice never changes a result: the candidates of a kernel give the same bits (schedule.search).
Non-goal: algorithms that round differently (Winograd), and kernels with symbolic dims, which have no one time.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ingot.compiler.codegen.objects import compile_functions
from ingot.compiler.ir import loops, traverse
from ingot.compiler.ir.loops import Alloc, Call, Statement
from ingot.compiler.ir.scalar import Reduce
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.text.tensor import print_kernel
from ingot.compiler.ir.types import DType
from ingot.compiler.memory.offsets import ALIGNMENT
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.schedule.primitives import ScheduleError
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.search import Found, search
from ingot.compiler.target import Target
from ingot.runtime.cache import Cache
from ingot.runtime.executable import Executable
from ingot.runtime.manifest import Manifest, TargetSpec, TensorSpec
from ingot.runtime.program import Program
from ingot.runtime.storage import aligned_empty

Measure = Callable[[Kernel, Scheduled, Target], float]

SHORTEST = 0.004  # seconds a candidate is run at least, three times at least


class Tuner:
    """Finds and remembers choices; `schedule` applies them."""

    def __init__(
        self, target: Target, seconds: float, cache: Cache | None, version: str, measure: Measure | None = None
    ) -> None:
        self.target = target
        self.deadline = time.monotonic() + seconds
        self.cache = cache
        self.version = version
        self.measure = measure or measure_kernel
        self.known: dict[str, Found] = {}

    def tune(self, kernels: Iterable[Kernel]) -> None:
        """Find a choice for each kernel while there is time."""
        work: dict[str, float] = {}
        first: dict[str, Kernel] = {}
        for kernel in kernels:
            if _is_static(kernel):
                key = self._key(kernel)
                first.setdefault(key, kernel)
                work[key] = work.get(key, 0.0) + _work(kernel)
        remaining = [key for key in sorted(first, key=lambda key: -work[key]) if not self._recall(key)]
        for position, key in enumerate(remaining):
            now = time.monotonic()
            if now >= self.deadline:
                return
            share = work[key] / (sum(work[other] for other in remaining[position:]) or 1.0)
            self._search(key, first[key], now + share * (self.deadline - now))

    def schedule(self, kernel: Kernel, options: ScheduleOptions) -> Scheduled:
        """The kernel as it was chosen, and why."""
        found = self.known.get(self._key(kernel)) if _is_static(kernel) else None
        if found is None:
            return schedule(kernel, self.target, options)
        if not found.decisions:
            scheduled = schedule(kernel, self.target, options)
            return replace(scheduled, reason=f"{scheduled.reason}; tuned: the default is best of {found.tried}")
        recipe = schedule(kernel, self.target, options).recipe
        choice = replace(options, recipe=recipe, decisions=dict(found.decisions))
        scheduled = schedule(kernel, self.target, choice)
        times = f"{1e6 * found.seconds:.1f} us instead of {1e6 * found.default_seconds:.1f}"
        return replace(scheduled, reason=f"{scheduled.reason}; tuned: {times}, best of {found.tried}")

    def _search(self, key: str, kernel: Kernel, until: float) -> None:
        def seconds_of(options: ScheduleOptions) -> float:
            try:
                return self.measure(kernel, schedule(kernel, self.target, options), self.target)
            except (ScheduleError, ValueError):  # these decisions do not go together
                return math.inf

        found = search(kernel, self.target, seconds_of, lambda: time.monotonic() < until)
        self.known[key] = found
        if self.cache is not None:
            self.cache.put(key, json.dumps(asdict(found)).encode())

    def _recall(self, key: str) -> bool:
        stored = self.cache.get(key) if self.cache is not None else None
        if stored is not None:
            self.known[key] = Found(**json.loads(stored))
        return stored is not None

    def _key(self, kernel: Kernel) -> str:
        parts = ("tuned", self.version, print_kernel(kernel, neutral=True), repr(self.target))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_static(kernel: Kernel) -> bool:
    buffers = (*kernel.inputs, *kernel.outputs)
    return all(isinstance(extent, int) for buffer in buffers for extent in buffer.shape)


def _work(kernel: Kernel) -> float:
    """Points of all definitions and of the sums in them."""
    total = 0.0
    for definition in kernel.definitions:
        points = math.prod(_known(extent) for extent in definition.buffer.shape)
        inner = [node for node in traverse.nodes(definition.value) if isinstance(node, Reduce)]
        total += points * max([1, *(math.prod(_known(e) for e in node.extents) for node in inner)])
    return total


def _known(extent: Dim) -> int:
    return extent if isinstance(extent, int) else 1


# --- measuring ------------------------------------------------------------------------------------


def measure_kernel(kernel: Kernel, scheduled: Scheduled, target: Target) -> float:
    """Seconds of one run on one thread, the best of several."""
    executable = _executable(kernel, scheduled, target)
    random = np.random.default_rng(0)
    arguments = [_array(random, buffer.dtype, buffer.shape) for buffer in kernel.inputs]
    results = [_empty(buffer.dtype, buffer.shape) for buffer in kernel.outputs]
    executable(*arguments, out=results)
    best, spent, runs = math.inf, 0.0, 0
    while spent < SHORTEST or runs < 3:
        start = time.perf_counter()
        executable(*arguments, out=results)
        seconds = time.perf_counter() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best


def _executable(kernel: Kernel, scheduled: Scheduled, target: Target) -> Executable:
    """A program of this kernel alone."""
    offset: Dim = 0
    statements: list[Statement] = []
    for buffer in scheduled.scratch:
        statements.append(Alloc(buffer, offset))
        offset = offset + (buffer.type.bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    statements.append(Call(scheduled.function, (*kernel.inputs, *kernel.outputs, *scheduled.scratch)))
    entry = loops.Function("entry", (*kernel.inputs, *kernel.outputs), tuple(statements))
    code = compile_functions(entry, target, 1, dims=(), arena_bytes=offset, profile=False)
    manifest = Manifest(
        target=TargetSpec(target.triple, target.cpu, ()),
        inputs=tuple(_spec(f"x{n}", buffer.dtype, buffer.shape) for n, buffer in enumerate(kernel.inputs)),
        states=(),
        constants=(),
        outputs=tuple(_spec(f"y{n}", buffer.dtype, buffer.shape) for n, buffer in enumerate(kernel.outputs)),
        dims=(),
        aliases={},
        sites=code.sites,
        kernels=code.kernels,
        report={},
        parallel=code.parallel,
    )
    return Executable(Program(manifest, code.image, {}), threads=1)


def _spec(name: str, dtype: DType, shape: tuple[Any, ...]) -> TensorSpec:
    return TensorSpec(name, dtype.name, shape)


def _array(random: np.random.Generator, dtype: DType, shape: tuple[Any, ...]) -> np.ndarray:
    """Numbers of ordinary size; zeros where they could be indices."""
    result = _empty(dtype, shape)
    result[...] = random.uniform(0.5, 1.5, shape) if dtype.is_float else 0
    return result


def _empty(dtype: DType, shape: tuple[Any, ...]) -> np.ndarray:
    """An array that begins at a line, as those within a program do."""
    return aligned_empty(shape, np.dtype(dtype.numpy), math.prod(shape) * dtype.itemsize)
