"""Reductions whose vectors run along the reduced axis, outside of `rows`: huge ones to few results, and rows that no
cache holds.

Several chunks, or rows, are gathered at once where they come from memory: several series of addresses arrive faster than
one. The order in which one result is accumulated is that of `rows` (lanes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Space
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import build, lanes, partition, scalars
from ingot.compiler.schedule.form import ReductionForm, scheduled_reduction
from ingot.compiler.schedule.lanes import Chunking
from ingot.compiler.schedule.primitives import fetched_ahead, further
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

FEW_RESULTS = 16  # fewer than this leave threads without work, unless they take parts of one
FAR_CHUNK = 512 << 10  # bytes that one thread reads at a time where no cache holds them
LONG_ROWS = 4  # times as many as are gathered at once leave threads enough to do, even if a chunk is only these
SERIES = 2  # chunks or rows at once
MANY_SERIES = 8  # the same where a core waits for memory with few lines at a time: its prefetching follows each of them
AHEAD = 1024  # bytes between what is gathered then and what is asked for


def recipe(
    kernel: Kernel, form: ReductionForm, width: int, target: Target, options: ScheduleOptions
) -> Scheduled | None:
    """None for what is left to `rows`."""
    if form.kept and not _few_results(form):
        return _paired_rows(kernel, form, width, target, options)
    return _two_stage(kernel, form, width, target, options)


def _two_stage(
    kernel: Kernel, form: ReductionForm, width: int, target: Target, options: ScheduleOptions
) -> Scheduled | None:
    """Huge reductions along vectors to few results; others are rows."""
    cut = lanes.chunking(form.reduced_extents, lanes.CHUNK, lanes.VECTORS * width)
    if cut is None or not _few_results(form) or not options.parallel:
        return None
    counts = lanes.chunk_counts(form.reduced_extents, cut)
    scratch = tuple(
        Buffer(f"{a.mark.name}_parts", a.dtype, (*form.kept_extents, *counts, width), "arena")
        for a in form.accumulations
    )
    first = _lane_parts(form, width, target, cut, scratch)
    second = _lane_totals(form, width, counts, scratch)
    decisions = {"width": width, "stages": 2, "chunk": cut.steps}
    return scheduled_reduction(kernel, form, (*first, *second), scratch, decisions, "few results of long chains along vectors")


def _few_results(form: ReductionForm) -> bool:
    return symbolic.less(symbolic.product(form.kept_extents), FEW_RESULTS) is True


def _lane_parts(
    form: ReductionForm, width: int, target: Target, cut: Chunking, scratch: Sequence[Buffer]
) -> tuple[Statement, ...]:
    counts = lanes.chunk_counts(form.reduced_extents, cut)
    every = (*form.kept_extents, *counts)
    rank = len(form.kept)

    def parts(places: Sequence[tuple[Dim, ...]], hints: bool = False) -> tuple[Statement, ...]:
        """Chunks of the same length at once; each place is that of its results."""
        ranges = [lanes.chunk_range(form.reduced_extents, cut, place[rank:]) for place in places]
        series = [
            _Series(form, dict(zip(form.kept, place, strict=False)), starts, width, _space(places, form, target))
            for place, (starts, _) in zip(places, ranges, strict=True)
        ]

        def save(lane: Dim) -> list[Statement]:
            return [
                Store(buffer, (*place, lane), Load(accumulator.total, (lane,)))
                for place, each in zip(places, series, strict=True)
                for buffer, accumulator in zip(scratch, each.accumulators, strict=True)
            ]

        every = [accumulator for each in series for accumulator in each.accumulators]
        point, (_, extents) = _points_of(series, target), ranges[0]
        zeros = (0,) * len(extents)
        gathered = lanes.chunk_body(extents, zeros, width, every, point, [a.total for a in every])
        return (
            *(s for accumulator in every for s in lanes.declare(accumulator)),
            *(_asked_for(gathered, form, target) if hints else gathered),
            *build.loop("l", width, save, "vector", width),
        )

    many = _series(form, target)
    apart = max(1, FAR_CHUNK // (many * cut.steps * max(a.dtype.itemsize for a in form.accumulations)))
    far = len(every) == 1 and _is_far(form, target)
    groups = form.reduced_extents[0] // cut.steps // (many * apart) * apart if far else 0
    if groups == 0:
        return partition.blocks(every, partition.Cut(len(every) - 1, 1), lambda ranges: parts([_starts(ranges)]))

    def group(ranges: partition.Ranges) -> tuple[Statement, ...]:
        (number,) = _starts(ranges)
        first = number // apart * (many * apart) + number % apart
        return parts([(first + n * apart,) for n in range(many)], hints=True)

    done = many * groups
    together = partition.blocks((groups,), partition.Cut(0, 1), group)
    left = (every[0] - done,)
    rest = partition.blocks(left, partition.Cut(0, 1), lambda r: parts([(r[0].start + done,)])) if left != (0,) else ()
    return (*together, *rest)


def _starts(ranges: partition.Ranges) -> tuple[Dim, ...]:
    return tuple(part.start for part in ranges)


class _Series:
    """One result, or one chunk of it: what is kept fixed, where the reduced axes start, what it is gathered in."""

    def __init__(
        self, form: ReductionForm, fixed: Mapping[Dim, Dim], starts: Sequence[Dim], width: int, space: Space
    ) -> None:
        self.form = form
        self.fixed = fixed
        self.starts = starts
        self.accumulators = [lanes.accumulator(a.combiner, a.dtype, width, space) for a in form.accumulations]

    def point(self, index: tuple[Dim, ...], slot: Dim, target: Target) -> list[Statement]:
        place = [start + i for start, i in zip(self.starts, index, strict=True)]
        rewriter = Rewriter({**self.fixed, **dict(zip(self.form.reduced, place, strict=True))})  # type: ignore[arg-type]
        return [
            accumulator.add(slot, rewriter.scalar(a.body), target)
            for accumulator, a in zip(self.accumulators, self.form.accumulations, strict=True)
        ]


def _points_of(series: Sequence[_Series], target: Target) -> lanes.RowPoint:
    return lambda index, slot: [s for each in series for s in each.point(index, slot, target)]


def _asked_for(statements: Sequence[Statement], form: ReductionForm, target: Target) -> tuple[Statement, ...]:
    """Each series a little ahead, where a core waits for memory with few lines at a time, or all of them together as far as
    one core needs to."""
    ahead = AHEAD if target.has_few_line_buffers else target.ahead_bytes // _series(form, target)
    return fetched_ahead(statements, further(ahead)) if ahead else tuple(statements)


def _series(form: ReductionForm, target: Target) -> int:
    """Chunks or rows at once. Several instructions for each vector, as maxima take for NaN, leave a core that is far ahead of
    itself no room for a second one."""
    if target.has_few_line_buffers:
        return MANY_SERIES
    costly = any(a.combiner in ("max", "min") for a in form.accumulations)
    return 1 if target.ahead_bytes and costly else SERIES


def _space(places: Sequence[object], form: ReductionForm, target: Target) -> Space:
    """Where sums wait: in registers if there are enough for all places."""
    return "register" if len(places) * _vectors(form) <= target.vector_registers // 2 else "stack"


def _vectors(form: ReductionForm) -> int:
    """Of sums for one result."""
    return lanes.VECTORS * len(form.accumulations)


def _is_far(form: ReductionForm, target: Target) -> bool:
    """Whether no cache holds what is reduced, and registers hold two results at once: several series of addresses arrive
    faster than one."""
    found = [load.buffer for a in form.accumulations for load in scalars.loads(a.body)]
    sizes = [buffer.type.bytes for buffer in dict.fromkeys(found)]
    known = sum(size for size in sizes if isinstance(size, int))
    return known > target.l3_bytes and SERIES * _vectors(form) <= target.vector_registers // 2


def _paired_rows(
    kernel: Kernel, form: ReductionForm, width: int, target: Target, options: ScheduleOptions
) -> Scheduled | None:
    """Rows that no cache holds, several at a time, from the parts of a chunk; others are left to `rows`."""
    if not options.parallel or not _is_far(form, target):
        return None
    row = symbolic.product(form.reduced_extents) * sum(a.dtype.itemsize for a in form.accumulations)
    cut = partition.cut(form.kept_extents, row, chunk=FAR_CHUNK) if isinstance(row, int) else None
    many = _series(form, target)
    if cut is not None and target.has_few_line_buffers and symbolic.less(LONG_ROWS * many, form.kept_extents[-1]) is True:
        cut = replace(cut, block=max(many, cut.block))
    if cut is None or cut.axis != len(form.kept) - 1 or cut.block < many:
        return None

    def together(places: Sequence[Mapping[Dim, Dim]]) -> tuple[Statement, ...]:
        zeros = (0,) * len(form.reduced)
        series = [_Series(form, place, zeros, width, _space(places, form, target)) for place in places]
        every = [accumulator for each in series for accumulator in each.accumulators]
        result = [s for a in every for s in lanes.declare(a)]
        result += _asked_for(lanes.reduce_axes(form.reduced_extents, width, every, _points_of(series, target)), form, target)
        for each in series:
            totals = zip(form.accumulations, each.accumulators, strict=True)
            result += form.finish({a.mark: lanes.across(b, width) for a, b in totals}, each.fixed)
        return tuple(result)

    def chunk(ranges: partition.Ranges) -> tuple[Statement, ...]:
        *outer, last = ranges
        fixed = {v: r.start for v, r in zip(form.kept, outer, strict=False)}
        part = last.count // many

        def at(i: Dim) -> Mapping[Dim, Dim]:
            return {**fixed, form.kept[-1]: last.start + i}

        return (
            *build.loop("i", part, lambda i: together([at(n * part + i) for n in range(many)])),
            *build.loop("i", last.count % many, lambda i: together([at(many * part + i)])),
        )

    body = partition.blocks(form.kept_extents, cut, chunk)
    decisions = {"width": width, "axis": cut.axis, "block": cut.block, "together": many}
    number = {1: "one", 2: "two", 8: "eight"}[many]
    reason = f"rows that no cache holds, {number} at a time along vectors"
    return scheduled_reduction(kernel, form, body, (), decisions, reason)


def _lane_totals(
    form: ReductionForm, width: int, counts: Sequence[Dim], scratch: Sequence[Buffer]
) -> tuple[Statement, ...]:
    def result(*kept: Dim) -> tuple[Statement, ...]:
        accumulators = [lanes.accumulator(a.combiner, a.dtype, width) for a in form.accumulations]

        def add(*number: Dim) -> tuple[Statement, ...]:
            def point(lane: Dim) -> list[Statement]:
                return [
                    Store(a.total, (lane,), a.combine(Load(a.total, (lane,)), Load(buffer, (*kept, *number, lane))))
                    for a, buffer in zip(accumulators, scratch, strict=True)
                ]

            return build.loop("l", width, point, "vector", width)

        results = {a.mark: lanes.across(b, width) for a, b in zip(form.accumulations, accumulators, strict=True)}
        return (
            *(s for accumulator in accumulators for s in lanes.declare(accumulator)),
            *(s for a in accumulators for s in lanes.clear(a.total, a, width)),
            *build.nest([f"c{n}" for n in range(len(counts))], counts, add),
            *form.finish(results, dict(zip(form.kept, kept, strict=True))),
        )

    return build.nest([f"i{n}" for n in range(len(form.kept))], form.kept_extents, result)
