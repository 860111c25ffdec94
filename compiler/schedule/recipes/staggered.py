"""Rows whose sweeps are staggered: while one row is swept for the first time, the row before it is swept for the second
time, and so on, a few vectors of each in turn.

    for s in rows + stages - 1 { a few vectors at a time: stage 0 of row s, stage 1 of row s - 1, stage 2 of row s - 2 ... }

A core that waits for memory with few lines at a time must never stop asking for the next ones, or it falls behind for
good: here every few vectors read a little further, compute a little, and store a little past the caches. The last stage
is a block of vectors behind and comes last, so that no load looks like a store to the same place of another page.
Invariant: each row is computed as it is alone, in the same order and with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, If, Let, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Scalar, both, predicate
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, lanes, partition, scalars
from ingot.compiler.schedule.primitives import LINE_BYTES, PAGE
from ingot.compiler.schedule.recipes.sweeps import KEPT_BYTES, SWEEP_VECTORS, Row, Sweep, costly
from ingot.compiler.schedule.rowform import Item, Pass
from ingot.compiler.schedule.statements import copy
from ingot.compiler.target import Target

PAGES = 8  # of what is read next, from which lines are asked for side by side
ROWS = 6  # that the second cache holds at once: those in the works, what is kept of two, what is on its way


def stages(passes: Sequence[Pass], width: int, target: Target) -> tuple[tuple[int, ...], ...]:
    """The passes of each stage: a sweep over the row, and what is computed of single elements after it. Nothing when rows
    are not made of such stages, or too long or too short for several at once."""
    last = passes[-1]
    extents = last.items[0].extents if last.items else ()
    if last.scalars or len(extents) != 1 or any(item.reduces or item.extents != extents for item in last.items):
        return ()
    row = extents[0] * max(item.place.buffer.dtype.itemsize for item in last.items)
    if not isinstance(row, int) or ROWS * row > target.l2_bytes or symbolic.less(extents[0], 2 * lanes.VECTORS * width):
        return ()
    kept = [i for each in passes[:-1] for i in each.items if i.extents == extents and not i.reduces and not i.output]
    if 2 * len(kept) * row > KEPT_BYTES:
        return ()
    found: list[tuple[int, ...]] = []
    for each in passes[:-1]:
        if all(item.extents == extents for item in each.items) and any(item.reduces for item in each.items):
            found.append((each.number,))
        elif found and all(symbolic.product(i.extents) == 1 and not i.reduces for i in each.items):
            found[-1] = (*found[-1], each.number)
        else:
            return ()
    return (*found, (last.number,)) if found else ()


@dataclass(frozen=True)
class Rows:
    """Statements in terms of the row's variable, which is the row of the first stage."""

    kept: tuple[Statement, ...]  # memory from row to row
    together: tuple[Statement, ...]  # all stages, each of its own row, but for both ends of what is stored
    seam: tuple[Statement, ...]  # the line that the row that is stored shares with the one before
    begin: Ends  # the row that is stored, up to its first line
    end: Ends  # the same from its last line on
    apart: tuple[tuple[Statement, ...], ...]  # each stage alone


@dataclass(frozen=True)
class Ends:
    """An end of a row, next to a row that is stored by the same loop, or not."""

    joined: tuple[Statement, ...]
    alone: tuple[Statement, ...]


def chunks(rows: Sequence[Dim], extents: Sequence[Dim], row: Rows, cut: partition.Cut) -> tuple[Statement, ...]:
    """Chunks of rows: at both ends of one not all stages have a row."""
    behind = len(row.apart) - 1

    def chunk(ranges: partition.Ranges) -> tuple[Statement, ...]:
        *outer, last = ranges
        fixed = {v: part.start for v, part in zip(rows, outer, strict=False)}

        def step(i: Dim) -> tuple[Statement, ...]:
            def at(statements: Sequence[Statement]) -> tuple[Statement, ...]:
                return copy(statements, {**fixed, rows[-1]: last.start + i})

            def within(first: int) -> Scalar:
                return both(predicate(i, "ge", first), predicate(i, "lt", last.count + first))

            alone = tuple(If(within(number), at(stage)) for number, stage in enumerate(row.apart))
            every = both(predicate(i, "ge", behind), predicate(i, "lt", last.count))
            together = (
                If(predicate(behind + 1, "le", i), at(row.begin.joined), at(row.begin.alone)),
                *at(row.together),
                If(predicate(behind + 1, "le", i), at(row.seam)),
                If(predicate(i, "lt", last.count - 1), at(row.end.joined), at(row.end.alone)),
            )
            return (If(every, together, alone),)

        return copy((*row.kept, *build.loop("i", last.count + behind, step)))

    return partition.blocks(extents, cut, chunk)


def rows_of(row: Row) -> Rows:
    return _Staggered(row).rows()


class _Staggered:
    """Emits stages, each for the row that is as many rows behind as its number says."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.stages = stages(row.passes, row.width, row.target)
        home = {number: stage for stage, numbers in enumerate(self.stages) for number in numbers}
        made: dict[Buffer, int] = {}  # the stage of each value within the row
        used: dict[Buffer, int] = {}  # the last stage that reads it
        for each in row.passes:
            for item in (*each.items, *each.scalars):
                for load in scalars.loads(item.value):
                    if load.buffer in made:
                        used[load.buffer] = home[each.number]
                made[item.place.buffer] = home[each.number]
        kept = {buffer: last - made[buffer] for buffer, last in used.items() if last > made[buffer]}
        rings = {buffer: 1 << distance.bit_length() for buffer, distance in kept.items()}
        scalar = {
            item.place.buffer for each in row.passes for item in (*each.items, *each.scalars) if not item.is_vector
        }
        self.cells = {b: Buffer(b.name, b.dtype, (ring,), "stack") for b, ring in rings.items() if b in scalar}
        self.made, self.used = made, used
        row.rings = {b: ring for b, ring in rings.items() if b not in scalar}
        row.kept.extend(map(Alloc, self.cells.values()))

    def rows(self) -> Rows:
        apart = tuple(self._apart(stage) for stage in range(len(self.stages)))  # in order: finds a place for what is kept
        together = self._together()
        seam, begin, end = self._ends()
        return Rows(tuple(self.row.kept), together, seam, begin, end, apart)

    # --- what a stage knows

    def _enter(self, stage: int) -> list[Statement]:
        """Row scalars of earlier stages, from memory."""
        found: dict[Buffer, Scalar] = {}
        result: list[Statement] = []
        for buffer, cell in self.cells.items():
            if self.made[buffer] < stage <= self.used[buffer]:
                local = Local(buffer.name, cell.dtype)
                result.append(Let(local, Load(cell, ((self.row.row - stage) % cell.shape[0],))))
                found[buffer] = Read(local)
        self.row.scalars, self.row.sweep = found, self.stages[stage][0]
        return result

    def _leave(self, stage: int) -> list[Statement]:
        """What later stages need of the row's scalars."""
        return [
            Store(cell, ((self.row.row - stage) % cell.shape[0],), self.row.scalars[buffer])
            for buffer, cell in self.cells.items()
            if self.made[buffer] == stage
        ]

    def _items(self, stage: int, number: int, scalar: bool = False) -> list[Item]:
        """The items of a pass, at the row that the stage is at."""
        mapping = {self.row.row: self.row.row - stage}
        each = self.row.passes[number]
        result = []
        for item in each.scalars if scalar else each.items:
            place = scalars.substitute(item.place, mapping)
            assert isinstance(place, Load)
            result.append(replace(item, place=place, value=scalars.substitute(item.value, mapping)))
        return result

    def _after(self, stage: int) -> list[Statement]:
        """Row scalars that follow from the sweep, and passes over single elements."""
        first, *others = self.stages[stage]
        result: list[Statement] = []
        for item in self._items(stage, first, scalar=True):
            result.extend(self.row.scalar(item, self.row.resolved(item.value)))
        for number in others:
            self.row.sweep = number
            result.extend(self.row.swept(self._items(stage, number)))
            for item in self._items(stage, number, scalar=True):
                result.extend(self.row.scalar(item, self.row.resolved(item.value)))
        return [*result, *self._leave(stage)]

    def _apart(self, stage: int) -> tuple[Statement, ...]:
        entered = self._enter(stage)
        swept = self.row.swept(self._items(stage, self.stages[stage][0]))
        return (*entered, *swept, *self._after(stage))

    # --- all stages at once

    def _together(self) -> tuple[Statement, ...]:
        row = self.row
        *gathering, last = range(len(self.stages))
        result: list[Statement] = []
        sweeps: list[Sweep] = []
        known: list[dict[Buffer, Scalar]] = []
        steps: list[lanes.Steps] = []
        for stage in (*gathering, last):
            result.extend(self._enter(stage))
            sweep = row.prepared(self._items(stage, self.stages[stage][0]))
            result.extend(sweep.before)
            sweeps.append(sweep)
            known.append(row.scalars)
        *reducing, storing = sweeps
        for sweep in reducing:
            for _, accumulator, _ in sweep.accumulators:
                result.extend(lanes.declare(accumulator))
            if costly(sweep):
                both_steps, buffers = row.two_steps(sweep)
                result.extend(map(Alloc, buffers))
                steps.append(both_steps)
            else:
                steps.append(lanes.Steps(None, self._point(sweep)))
        points = [self._point(sweep) for sweep in reducing]

        def point(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            return [statement for each in points for statement in each(index, slot)]

        def first(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            return [statement for each in steps if each.first is not None for statement in each.first(index, slot)]

        def then(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            return [statement for each in steps for statement in each.then(index, slot)]

        group = SWEEP_VECTORS * row.width
        lead = row.until_line(storing, 0)
        passing = row.stored_at(storing, past=True)

        def stored(index: tuple[Dim, ...]) -> tuple[Statement, ...]:
            (start,) = index
            block = lanes.lane_loops(group, row.width, SWEEP_VECTORS, passing, start - group + lead, interleaved=True)
            return (If(predicate(start, "ge", group), block),)

        def hints(index: tuple[Dim, ...]) -> tuple[Statement, ...]:
            return self._hints(reducing, *index)

        def hints_and_stored(index: tuple[Dim, ...]) -> tuple[Statement, ...]:
            return (*hints(index), *stored(index))

        accumulators = [accumulator for sweep in reducing for _, accumulator, _ in sweep.accumulators]
        extents = storing.points.extents
        # sweeps that compute little are ahead of what is stored anyway, and keep in step better with what is fetched
        if any(each.first is not None for each in steps):
            block = lanes.Steps(first, then, after=hints_and_stored)
        else:
            block = lanes.Steps(None, then, before=stored, after=hints)
        result.extend(lanes.reduce_axes(extents, row.width, accumulators, point, block))
        result.extend(self._rest_hints(reducing))
        for stage in gathering:
            row.scalars, row.sweep = known[stage], self.stages[stage][0]
            result.extend(row.gathered(sweeps[stage]))
            result.extend(self._after(stage))
        done, line = (extents[0] // group - 1) * group + lead, _line(storing)
        result.extend(lanes.lane_loops((extents[0] - done) // line * line, row.width, 1, passing, done))
        return tuple(result)

    def _ends(self) -> tuple[tuple[Statement, ...], Ends, Ends]:
        """What a row stores to lines that it shares with its neighbours. Stored as usual such a line would have to be fetched
        first, and no later store overtakes one that waits; so the elements of both rows wait for each other in a line on
        the stack, which then goes past the caches as a whole."""
        last, row = len(self.stages) - 1, self.row
        entered = self._enter(last)
        sweep = row.prepared(self._items(last, self.stages[last][0]))
        (count,), line = sweep.points.extents, _line(sweep)
        lead = symbolic.minimum(row.until_line(sweep, 0), count)
        tail = (count - lead) % line
        plain = row.stored_at(sweep)
        begin = (*entered, *lanes.lane_loops(lead, row.width, 1, plain))
        end = (*entered, *lanes.lane_loops(tail, row.width, 1, plain, count - tail))
        store, *others = sweep.points.stores
        if others or not _follows(sweep, row.row):
            return (), Ends(begin, begin), Ends(end, end)
        ends = Buffer("ends", store.dtype, (line,), "stack")
        row.kept.append(Alloc(ends))

        def kept(start: Dim) -> lanes.Point:
            """Elements of the row in the line on the stack, `start` places further on."""

            def statements(index: Dim, slot: Dim) -> list[Statement]:
                return [Store(ends, (index + start,), s.value) if isinstance(s, Store) else s for s in plain(index, slot)]

            return statements

        first = scalars.substitute(store, {sweep.points.variables[0]: 0})
        assert isinstance(first, Load)
        flat = row.views.merged(store.buffer, 0, len(store.index) - 1) if len(store.index) > 1 else store.buffer
        place = scalars.offset(first) + lead - line
        whole = build.loop(
            "l", line, lambda lane: [Store(flat, (place + lane,), Load(ends, (lane,)), True)], "vector", line
        )
        joined = (
            (*entered, *lanes.lane_loops(lead, row.width, 1, kept(line - lead))),
            (*entered, *lanes.lane_loops(tail, row.width, 1, kept(tail - count), count - tail)),
        )
        return (If(predicate(0, "lt", lead), whole),), Ends(joined[0], begin), Ends(joined[1], end)

    def _point(self, sweep: Sweep) -> lanes.RowPoint:
        return lambda index, slot: self.row.point(sweep.points, sweep.stored, sweep.accumulators, index, slot)

    def _hints(self, sweeps: Sequence[Sweep], start: Dim) -> tuple[Statement, ...]:
        """As many lines of what is read for the first time as a block of vectors takes: one from each part of a row, of the
        first part several rows ahead, of the last part of the row that comes next. Rows that are asked for side by side are
        several series of addresses, which arrive faster than one; the processor's own prefetching follows one in each
        page."""
        group = SWEEP_VECTORS * self.row.width
        return tuple(
            self._ahead(load, count, part, start // group)
            for load, count in self._fetched(sweeps)
            if count >= group
            for part in range(_lines(load, group))
        )

    def _rest_hints(self, sweeps: Sequence[Sweep]) -> tuple[Statement, ...]:
        """The lines of a row after those of its parts."""
        group = SWEEP_VECTORS * self.row.width
        result = []
        for load, count in self._fetched(sweeps):
            last, blocks = _lines(load, group) - 1, count // group
            lines = -(-count * load.dtype.itemsize // LINE_BYTES)
            result += [self._ahead(load, count, last, line - last * blocks) for line in range((last + 1) * blocks, lines)]
        return tuple(result)

    def _fetched(self, sweeps: Sequence[Sweep]) -> list[tuple[Load, int]]:
        """What is read for the first time along rows that follow each other in memory, and how long these are."""
        result: list[tuple[Load, int]] = []
        seen: set[Buffer] = set()
        for sweep in sweeps:
            (variable,), (count,) = sweep.points.variables, sweep.points.extents
            found = dict.fromkeys(load for value in sweep.points.values for load in scalars.loads(value))
            for load in found:
                own = load.buffer.space != "global" or load.buffer in seen
                if own or scalars.stride(load, variable) != 1 or scalars.stride(load, self.row.row) != count:
                    continue
                first = scalars.substitute(load, {variable: 0})
                assert isinstance(count, int), "only rows of known length are staggered"
                assert isinstance(first, Load)
                result.append((first, count))
            seen |= {load.buffer for load in found}
        return result

    def _ahead(self, load: Load, count: int, part: int, number: Dim) -> Prefetch:
        """Asks for the line of this number in a part of a later row."""
        group, size = SWEEP_VECTORS * self.row.width, load.dtype.itemsize
        parts = _lines(load, group)
        rows = max(1, -(-PAGES * PAGE * (parts - part) // (parts * count * size)))
        first = scalars.substitute(load, {self.row.row: self.row.row + rows})
        assert isinstance(first, Load)
        place = scalars.offset(first) + (part * (count // group) + number) * (LINE_BYTES // size)
        return Prefetch(load.buffer, (*(0 for _ in load.index[1:]), place))


def _lines(load: Load, elements: int) -> int:
    """Lines that so many elements take."""
    return max(1, elements * load.dtype.itemsize // LINE_BYTES)


def _line(sweep: Sweep) -> int:
    """Elements of a line of what is stored."""
    return LINE_BYTES // sweep.points.stores[0].dtype.itemsize


def _follows(sweep: Sweep, row: Dim) -> bool:
    """Whether rows are stored one behind the other, so that each shares its first line with the one before."""
    return scalars.stride(sweep.points.stores[0], row) == sweep.points.extents[0]
