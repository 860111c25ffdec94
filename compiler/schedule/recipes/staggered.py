"""Rows whose sweeps are staggered: while one row is swept for the first time, the row before it is swept for the second
time, and so on, a few vectors of each in turn.

    for s in rows + stages - 1 { a few vectors at a time: stage 0 of row(s), stage 1 of row(s - 1), stage 2 of row(s - 2) ... }

A core that waits for memory with few lines at a time must never stop asking for the next ones, or it falls behind for
good: here every few vectors read a little further, compute a little, and store a little past the caches. The last stage
is a block of vectors behind, so that no load looks like a store to the same place of another page.
Sweeps that compute little are held up by memory all the time; their rows come from several parts of a block of rows in
turn, because several series of addresses move faster than one. Other rows follow each other.
Invariant: each row is computed as it is alone, in the same order and with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, If, Let, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Lead, Load, Local, Read, Scalar, both, predicate
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, lanes, partition, scalars
from ingot.compiler.schedule.primitives import LINE_BYTES, PAGE
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.schedule.recipes.rows_ahead import Ahead, Order
from ingot.compiler.schedule.recipes.sweeps import KEPT_BYTES, SWEEP_VECTORS, Row, Sweep, costly
from ingot.compiler.schedule.rowform import Item, Pass
from ingot.compiler.schedule.statements import copy
from ingot.compiler.target import Target

ROWS = 6  # that a cache holds at once: those in the works, what is kept of two, what is on its way


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


IN_TURN = Order(2, 4)


def order(passes: Sequence[Pass], target: Target) -> Order:
    """Rows follow each other where the sweeps compute much, or the first cache holds less than what is in the works, or a core
    waits for memory with few lines at a time."""
    last = passes[-1].items[0]
    (extent,) = last.extents
    gathering = [item for each in passes[:-1] for item in each.items if item.extents == last.extents]
    costs = any(scalars.cost(item.value) > elementwise.CHEAP for item in gathering)
    large = symbolic.less(target.l1_bytes, ROWS * extent * last.place.dtype.itemsize) is True
    return Order() if costs or large or target.has_few_line_buffers else IN_TURN


@dataclass(frozen=True)
class Rows:
    """Statements in terms of variables: the number of the step, the row of each stage then, and the first row of all."""

    order: Order
    step: Dim
    places: tuple[Dim, ...]
    origin: Dim
    kept: tuple[Statement, ...]  # memory from row to row
    together: tuple[Statement, ...]  # all stages, each of its own row, but for both ends of what is stored
    apart: tuple[tuple[Statement, ...], ...]  # each stage alone, but for both ends of what is stored
    begin: Ends  # the row that is stored, up to its first line
    end: Ends  # the same from its last line on
    seam: tuple[Statement, ...]  # the line that the row that is stored shares with the one before
    single: tuple[Statement, ...]  # a row by itself, in all stages


@dataclass(frozen=True)
class Ends:
    """An end of a row, next to a row that is stored by the same loop, or not."""

    joined: tuple[Statement, ...]
    alone: tuple[Statement, ...]


def chunks(rows: Sequence[Dim], extents: Sequence[Dim], row: Rows, cut: partition.Cut) -> tuple[Statement, ...]:
    """Chunks of rows: at both ends of one not all stages have a row. Rows after the last whole block are computed one by
    one."""
    behind, order = len(row.apart) - 1, row.order

    def chunk(ranges: partition.Ranges) -> tuple[Statement, ...]:
        *outer, last = ranges
        fixed = {v: part.start for v, part in zip(rows, outer, strict=False)}
        steps = last.count // order.block * order.block

        def at(statements: Sequence[Statement], step: Dim, places: Sequence[Dim]) -> tuple[Statement, ...]:
            own = {variable: last.start + place for variable, place in zip(row.places, places, strict=True)}
            return copy(statements, {**fixed, **own, row.origin: last.start, row.step: step})

        def turn(i: Dim) -> tuple[Statement, ...]:
            places = [order.row(i - stage) for stage in range(behind + 1)]
            stored = i - behind  # the step at which the row that is stored now was read

            def here(statements: Sequence[Statement]) -> tuple[Statement, ...]:
                return at(statements, i, places)

            def within(first: int) -> Scalar:
                return both(predicate(i, "ge", first), predicate(i, "lt", steps + first))

            after = at(row.seam, i, [*places[:-1], places[-1] + 1])
            before_last = predicate(stored, "lt", steps - 1)
            within_block = stored % order.block
            return (
                If(within(behind), (If(predicate(1, "le", stored), here(row.begin.joined), here(row.begin.alone)),)),
                If(
                    both(predicate(i, "ge", behind), predicate(i, "lt", steps)),
                    here(row.together),
                    tuple(If(within(number), here(stage)) for number, stage in enumerate(row.apart)),
                ),
                If(
                    within(behind),
                    (
                        If(  # the row before was stored earlier
                            both(
                                predicate(1, "le", stored),
                                predicate((stored + order.block - 1) % order.block, "ge", order.parts - 1),
                            ),
                            here(row.seam),
                        ),
                        If(before_last, here(row.end.joined), here(row.end.alone)),
                        If(  # so was the row after
                            both(
                                predicate(within_block, "ge", order.block - order.parts),
                                predicate(within_block, "lt", order.block - 1),
                            ),
                            after,
                        ),
                    ),
                ),
            )

        def single(r: Dim) -> tuple[Statement, ...]:
            return at(row.single, 0, [steps + r] * (behind + 1))

        main = build.loop("i", steps + behind, turn) if steps != 0 else ()
        return copy((*row.kept, *main, *build.loop("r", last.count - steps, single)), fixed)

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
        self.order = Order(row.decision.parts, row.decision.length) if row.decision.length > 1 else Order()
        self.places = tuple(symbolic.Variable(f"row{stage}", 0) for stage in range(len(self.stages)))
        self.origin = symbolic.Variable("origin", 0)
        self.ahead = Ahead(row, self.places, self.origin, self.order)
        self.near = self._near()

    def rows(self) -> Rows:
        row, last = self.row, len(self.stages) - 1
        gathering = tuple(self._apart(stage) for stage in range(last))  # in order: finds a place for what is kept
        whole = self._apart(last)
        together = self._together()
        middle, begin, end, seam = self._ends()
        single = tuple(s for n, stage in enumerate((*gathering, whole)) for s in copy(stage, {row.row: row.row + n}))
        return Rows(
            self.order, row.row, self.places, self.origin, tuple(row.kept), together,
            (*gathering, middle), begin, end, seam, single,
        )  # fmt: skip

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
        mapping = {self.row.row: self.places[stage]}
        self.row.turn = self.row.row - stage
        each = self.row.passes[number]
        result = []
        for item in each.scalars if scalar else each.items:
            place = scalars.substitute(item.place, mapping)
            assert isinstance(place, Load)
            value = scalars.substitute(item.value, mapping)
            if number == self.stages[-1][0]:
                value = scalars.replace_loads(value, lambda load, item=item: self._from_near(load, item))
            result.append(replace(item, place=place, value=value))
        return result

    def _near(self) -> dict[Load, Load]:
        """Copies of vectors that are read along with every row that is stored, by the first element of each. A load waits for
        a store a little before it when both look alike in the last bits of their addresses, and rows of whole pages all meet
        the vectors in the same way; the copies begin half a page from where rows do."""
        row, items = self.row, self.row.passes[self.stages[-1][0]].items
        (extent,), stored = items[0].extents, items[0].place.buffer
        size = stored.dtype.itemsize
        if not isinstance(extent, int) or extent * size % PAGE or len(items) > 1:
            return {}
        near: dict[Load, Load] = {}
        for load in dict.fromkeys(scalars.loads(items[0].value)):
            if not _is_along(load, items[0], row.row) or load.dtype.itemsize != size:
                continue
            page = PAGE // size
            if row.stack + (extent + page) * size > KEPT_BYTES:
                break
            row.stack += (extent + page) * size
            copied = Buffer("near", load.dtype, (extent + page,), "stack")
            start = (Lead(copied, PAGE).dim - Lead(stored, PAGE).dim + page // 2) % page
            first = _at_start(load, items[0])
            near[first] = Load(copied, (start,))

            def point(index: Dim, _: Dim, to: Load = near[first], load: Load = load) -> list[Statement]:
                value = scalars.substitute(load, {items[0].inner[0]: index})
                return [Store(to.buffer, (to.index[0] + index,), value)]

            row.kept += (Alloc(copied), *lanes.lane_loops(extent, row.width, 1, point))
        return near

    def _from_near(self, load: Load, item: Item) -> Load | None:
        copied = self.near.get(_at_start(load, item))
        return None if copied is None else Load(copied.buffer, (copied.index[0] + item.inner[0],))

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
            return self.ahead.hints(reducing, *index)

        def hints_and_stored(index: tuple[Dim, ...]) -> tuple[Statement, ...]:
            return (*hints(index), *stored(index))

        accumulators = [accumulator for sweep in reducing for _, accumulator, _ in sweep.accumulators]
        extents = storing.points.extents
        # sweeps that compute little are ahead of what is stored anyway, and keep in step better with what is fetched
        if any(each.first is not None for each in steps):
            block = lanes.Steps(first, then, after=hints_and_stored)
        elif row.target.has_few_line_buffers:
            block = lanes.Steps(None, then, after=hints_and_stored)
        else:
            block = lanes.Steps(None, then, before=stored, after=hints)
        result.extend(lanes.reduce_axes(extents, row.width, accumulators, point, block))
        result.extend(self.ahead.rest(reducing))
        for stage in gathering:
            row.scalars, row.sweep = known[stage], self.stages[stage][0]
            result.extend(row.gathered(sweeps[stage]))
            result.extend(self._after(stage))
        done, line = (extents[0] // group - 1) * group + lead, _line(storing)
        result.extend(lanes.lane_loops((extents[0] - done) // line * line, row.width, 1, passing, done))
        return tuple(result)

    def _ends(self) -> tuple[tuple[Statement, ...], Ends, Ends, tuple[Statement, ...]]:
        """What is between both ends of a row that is stored, and what it stores to lines that it shares with its neighbours.
        Stored as usual such a line would have to be fetched first, and no later store overtakes one that waits; so the
        elements of both rows wait for each other in a line on the stack, which then goes past the caches as a whole."""
        last, row = len(self.stages) - 1, self.row
        entered = self._enter(last)
        sweep = row.prepared(self._items(last, self.stages[last][0]))
        (count,), line = sweep.points.extents, _line(sweep)
        lead = symbolic.minimum(row.until_line(sweep, 0), count)
        tail = (count - lead) % line
        plain, passing = row.stored_at(sweep), row.stored_at(sweep, past=True)
        begin = (*entered, *lanes.lane_loops(lead, row.width, 1, plain))
        end = (*entered, *lanes.lane_loops(tail, row.width, 1, plain, count - tail))
        middle = lanes.lane_loops(count - lead - tail, row.width, SWEEP_VECTORS, passing, lead, interleaved=True)
        store, *others = sweep.points.stores
        if others or scalars.stride(store, self.places[last]) != count:
            return (*entered, *middle), Ends(begin, begin), Ends(end, end), ()
        block = self.order.block
        ends, own = Buffer("ends", store.dtype, (block, line), "stack"), self.places[last] - self.origin
        row.kept.append(Alloc(ends))

        def kept(number: Dim, start: Dim) -> lanes.Point:
            """Elements of the row in a line on the stack, `start` places further on."""

            def statements(index: Dim, slot: Dim) -> list[Statement]:
                at = (number % block, index + start)
                return [Store(ends, at, s.value) if isinstance(s, Store) else s for s in plain(index, slot)]

            return statements

        first = scalars.substitute(store, {sweep.points.variables[0]: 0})
        assert isinstance(first, Load)
        flat = row.views.merged(store.buffer, 0, len(store.index) - 1) if len(store.index) > 1 else store.buffer
        place = scalars.offset(first) + lead - line
        whole = build.loop(
            "l", line, lambda lane: [Store(flat, (place + lane,), Load(ends, (own % block, lane)), True)], "vector", line
        )
        joined = (
            (*entered, *lanes.lane_loops(lead, row.width, 1, kept(own, line - lead))),
            (*entered, *lanes.lane_loops(tail, row.width, 1, kept(own + 1, tail - count), count - tail)),
        )
        seam = (If(predicate(0, "lt", lead), whole),)
        return (*entered, *middle), Ends(joined[0], begin), Ends(joined[1], end), seam

    def _point(self, sweep: Sweep) -> lanes.RowPoint:
        return lambda index, slot: self.row.point(sweep.points, sweep.stored, sweep.accumulators, index, slot)

def _at_start(load: Load, item: Item) -> Load:
    """What is loaded at the beginning of the item's row."""
    first = scalars.substitute(load, dict.fromkeys(item.inner, 0))
    assert isinstance(first, Load)
    return first


def _is_along(load: Load, item: Item, row: Dim) -> bool:
    """Whether it loads a vector along the item's axis, the same for every row, of which each element exists whatever
    conditions there are."""
    exists = all(
        symbolic.is_nonnegative(index) is True and symbolic.less(index, extent) is True
        for index, extent in zip(load.index, load.buffer.shape, strict=True)
    )
    along = scalars.stride(load, item.inner[0]) == 1 and not scalars.depends_on(load, row)
    return load.buffer.space == "global" and along and exists


def _line(sweep: Sweep) -> int:
    """Elements of a line of what is stored."""
    return LINE_BYTES // sweep.points.stores[0].dtype.itemsize
