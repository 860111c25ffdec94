"""The statements of one row: sweeps over its elements, and the row scalars that follow from each.

Reductions are gathered in vectors (lanes.py); a row vector that a later sweep reads stays on the stack, or, when rows are
long, in the memory of the output that is made of it at last, or in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, Let, Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, lanes, partition, scalars
from ingot.compiler.schedule.collapse import Points, Views, collapse
from ingot.compiler.schedule.lanes import Accumulator
from ingot.compiler.schedule.primitives import LINE_BYTES, fetched_ahead, in_later_steps
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.schedule.recipes.overlapping import Overlapping
from ingot.compiler.schedule.rowform import Item, Pass, guests
from ingot.compiler.schedule.statements import copy
from ingot.compiler.target import Target

STACK_BYTES = 16 << 10  # what one row may keep on the stack
KEPT_BYTES = 64 << 10  # the same for those that are in the works at once
ROWS_AHEAD = 2  # between the row that is computed and the one that is fetched: one is not always there in time
SWEEP_VECTORS = 4  # that a sweep without a reduction computes at a time


@dataclass(frozen=True)
class RowDecision:
    width: int  # lanes
    axis: int  # row axis that is cut into chunks
    chunk: int  # rows of that axis in a chunk; 0: no threads
    passes: int  # sweeps over a row
    ahead: bool = False  # whether later rows are fetched meanwhile
    streaming: bool = False  # whether what the last sweep stores bypasses the caches
    turns: int = -1  # the sweep with which the last one of the row before takes turns; -1: rows follow each other
    staggered: bool = False  # whether the sweeps of consecutive rows go on side by side
    parts: int = 1  # of a block of rows, from which rows are taken in turn then
    length: int = 1  # rows of a part


@dataclass(frozen=True)
class Sweep:
    """What is computed at each point of a row's axes."""

    before: tuple[Statement, ...]  # memory for what it keeps
    points: Points
    stored: tuple[tuple[int, Load], ...]  # numbers of values, and what stands for them in others
    accumulators: tuple[tuple[Item, Accumulator, int], ...]  # reductions and the numbers of what they gather


class Row:
    """Emits the statements of one row."""

    def __init__(self, passes: Sequence[Pass], decision: RowDecision, target: Target, views: Views, row: Dim) -> None:
        self.passes = passes
        self.width = decision.width
        self.decision = decision
        self.row = row  # variable of the innermost row axis; 0: there is none
        self.turn: Dim | None = None  # what tells rows apart that keep vectors at the same time, if not the row itself
        self.sweep = 0  # number of the pass that is emitted
        self.target = target
        self.views = views
        self.scalars: dict[Buffer, Scalar] = {}  # row scalars by their buffer
        self.vectors: dict[Buffer, Buffer] = {}  # where local row vectors are kept
        self.row_rank: dict[Buffer, int] = {}  # leading indices that a kept vector drops
        self.hosts = guests(passes, STACK_BYTES)  # outputs in whose memory local row vectors wait
        self.scratch: list[Buffer] = []
        self.stack = 0
        self.kept: list[Statement] = []  # memory for row vectors and scalars from one row to the next
        self.rings: dict[Buffer, int] = {}  # row vectors of which several rows have their own, and how many

    def statements(self) -> tuple[Statement, ...]:
        return tuple(statement for number in range(len(self.passes)) for statement in self._pass(number))

    def overlapping(self) -> Overlapping:
        """The last sweep of a row takes turns with one of the next row. What it needs of its own row waits in memory."""
        last = len(self.passes) - 1
        read = [load.buffer for item in self.passes[last].items for load in scalars.loads(item.value)]
        early = [item.place.buffer for each in self.passes[: self.decision.turns + 1] for item in each.items]
        self.rings = dict.fromkeys(set(read) & set(early), 2)
        first = [statement for number in range(last) for statement in self._pass(number)]
        cells = {b: Buffer(b.name, self.scalars[b].dtype, (1,), "stack") for b in dict.fromkeys(read) if b in self.scalars}
        self.kept.extend(map(Alloc, cells.values()))

        def saved() -> list[Statement]:
            return [Store(cell, (0,), self.scalars[buffer]) for buffer, cell in cells.items()]

        def again() -> tuple[list[Statement], dict[Buffer, Scalar]]:
            found = {buffer: Local(buffer.name, cell.dtype) for buffer, cell in cells.items()}
            lets: list[Statement] = [Let(local, Load(cells[buffer], (0,))) for buffer, local in found.items()]
            return lets, {buffer: Read(local) for buffer, local in found.items()}

        def finish(known: dict[Buffer, Scalar], start: Dim, count: Dim) -> tuple[Statement, ...]:
            """Some elements of the last sweep."""
            now = self.scalars, self.sweep
            self.scalars, self.sweep = known, last
            result = self._fetching(self.swept(self.passes[last].items, part=(start, count)))
            self.scalars, self.sweep = now
            return result

        first += saved()
        following, known = again()
        previous = {self.row: self.row - 1}

        def turn(block: tuple[Statement, ...], starts: Sequence[Dim], extents: Sequence[Dim]) -> tuple[Statement, ...]:
            return (*self._fetching(block), *copy(finish(known, starts[0], extents[0]), previous))

        for number in range(last):
            following += self._pass(number, turn if number == self.decision.turns else None)
        following += saved()
        rest, known_after = again()
        rest += finish(known_after, 0, self.passes[last].items[0].extents[0])
        return Overlapping(tuple(self.kept), tuple(first), tuple(following), tuple(rest))

    def _pass(self, number: int, turn: lanes.Turn | None = None) -> list[Statement]:
        self.sweep = number
        result: list[Statement] = []
        for group in _same_axes(self.passes[number].items):
            result.extend(self._fetching(self.swept(group)) if turn is None else self.swept(group, turn))
        for item in self.passes[number].scalars:
            result.extend(self.scalar(item, self.resolved(item.value)))
        return result

    # --- values ---------------------------------------------------------------------------------------------------

    def resolved(self, value: Scalar, here: Mapping[Buffer, Scalar] | None = None) -> Scalar:
        """The value with loads of row scalars and kept vectors replaced; `here` holds values of the same point."""

        def replaced(load: Load) -> Scalar | None:
            if here and load.buffer in here:
                return here[load.buffer]
            if load.buffer in self.scalars:
                return self.scalars[load.buffer]
            if load.buffer in self.vectors:
                return self._kept_at(load)
            return None

        return scalars.replace_loads(value, replaced)

    def scalar(self, item: Item, value: Scalar) -> tuple[Statement, ...]:
        local = Local(item.place.buffer.name, value.dtype)
        self.scalars[item.place.buffer] = Read(local)
        let = Let(local, value)
        return (let, Store(item.place.buffer, item.place.index, Read(local))) if item.output else (let,)

    # --- sweeps ---------------------------------------------------------------------------------------------------

    def swept(
        self, items: Sequence[Item], turn: lanes.Turn | None = None, part: tuple[Dim, Dim] | None = None
    ) -> tuple[Statement, ...]:
        """One pass over the row's axes, or a part (start, count) of one that reduces nothing, for items that have the same
        axes."""
        sweep = self.prepared(items)
        if part is not None:
            return self._streamed(sweep, part)
        return (*sweep.before, *self._loops(sweep, turn))

    def prepared(self, items: Sequence[Item]) -> Sweep:
        """What a sweep computes at each point."""
        places, values, accumulators, before, marked = [], [], [], [], []
        variables = items[0].inner
        here: dict[Buffer, Scalar] = {}
        for item in items:
            mapping = {a: b for a, b in zip(item.inner, variables, strict=True) if not isinstance(a, int)}
            body = build.wide_body(item.value) if isinstance(item.value, Reduce) else item.value
            value = self.resolved(scalars.substitute(body, mapping), here)
            if isinstance(item.value, Reduce):
                gathered = lanes.accumulator(item.value.combiner, body.dtype, self.width)
                accumulators.append((item, gathered, len(values)))
            else:
                here[item.place.buffer] = Load(Buffer(item.place.buffer.name, value.dtype, ()), ())
                marked.append(here[item.place.buffer])
                before.extend(self._home(item))
                places.append((len(values), self._stored_at(item, mapping)))
            values.append(value)
        stores = tuple(place for _, place in places)
        points = collapse(Points(variables, items[0].extents, stores, tuple(values)), self.views)
        stored = [(n, mark) for (n, _), mark in zip(places, marked, strict=True)]
        return Sweep(tuple(before), points, tuple(stored), tuple(accumulators))

    def _home(self, item: Item) -> tuple[Statement, ...]:
        """Memory for a row vector that later passes read; outputs have theirs."""
        buffer = item.place.buffer
        if item.output or buffer in self.vectors:
            return ()
        shape = (self.rings[buffer], *item.extents) if buffer in self.rings else item.extents
        size = symbolic.product(shape) * buffer.dtype.itemsize
        if isinstance(size, int) and self.stack + size <= (KEPT_BYTES if self.decision.staggered else STACK_BYTES):
            self.stack += size
            kept = Buffer(buffer.name, buffer.dtype, shape, "stack")
            self.vectors[buffer], self.row_rank[buffer] = kept, len(item.place.index) - len(item.extents)
            if self.decision.turns < 0 and not self.decision.staggered:
                return (Alloc(kept),)
            self.kept.append(Alloc(kept))
            return ()
        self.rings.pop(buffer, None)
        if buffer in self.hosts:
            self.vectors[buffer], self.row_rank[buffer] = self.hosts[buffer].place.buffer, 0
            return ()
        kept = Buffer(buffer.name, buffer.dtype, buffer.shape, "arena")
        self.scratch.append(kept)
        self.vectors[buffer], self.row_rank[buffer] = kept, 0
        return ()

    def _stored_at(self, item: Item, mapping: Mapping) -> Load:
        place = scalars.substitute(item.place, mapping)
        assert isinstance(place, Load)
        return place if item.output else self._kept_at(place)

    def _kept_at(self, place: Load) -> Load:
        rank, ring = self.row_rank[place.buffer], self.rings.get(place.buffer)
        index = place.index[rank:]
        turn = place.index[rank - 1] if self.turn is None else self.turn
        return Load(self.vectors[place.buffer], (turn % ring, *index) if ring else index)

    def _loops(self, sweep: Sweep, turn: lanes.Turn | None = None) -> tuple[Statement, ...]:
        points, accumulators = sweep.points, sweep.accumulators
        if not points.variables:
            return self._single(points, sweep.stored, accumulators)

        def point(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            return self.point(points, sweep.stored, accumulators, index, slot)

        if not accumulators and self._bypassing and len(points.extents) == 1 and points.extents[0] != 0:
            return self._streamed(sweep, (0, points.extents[0]))
        if not accumulators:
            return _plain_sweep(points.extents, self.width, point)
        only = [accumulator for _, accumulator, _ in accumulators]
        result = [statement for accumulator in only for statement in lanes.declare(accumulator)]
        steps = None
        if costly(sweep):
            steps, stages = self.two_steps(sweep)
            result.extend(map(Alloc, stages))
        result.extend(lanes.reduce_axes(points.extents, self.width, only, point, steps, turn))
        return (*result, *self.gathered(sweep))

    def gathered(self, sweep: Sweep) -> list[Statement]:
        """The results of reductions, after the sweep."""
        result: list[Statement] = []
        for item, accumulator, _ in sweep.accumulators:
            result.extend(self.scalar(item, ir.cast(lanes.across(accumulator, self.width), item.value.dtype)))
        return result

    def point(
        self,
        points: Points,
        stored: Sequence[tuple[int, Load]],
        accumulators: Sequence[tuple[Item, Accumulator, int]],
        index: Sequence[Dim],
        slot: Dim,
    ) -> list[Statement]:
        """Row vectors are computed once and kept in locals; stores come last, so that one may overwrite an operand."""
        computed: dict[Buffer, Scalar] = {}
        mapping = dict(zip(points.variables, index, strict=True))
        rewriter = Rewriter(
            mapping,  # type: ignore[arg-type]
            lambda node: computed.get(node.buffer) if isinstance(node, Load) else None,
        )
        result: list[Statement] = []
        stores: list[Statement] = []
        for place, (number, mark) in zip(points.stores, stored, strict=True):
            local = Local(mark.buffer.name, mark.dtype)
            result.append(Let(local, rewriter.scalar(points.values[number])))
            computed[mark.buffer] = Read(local)
            at = rewriter.scalar(place)
            assert isinstance(at, Load)
            stores.append(Store(at.buffer, at.index, Read(local)))
        for _, accumulator, number in accumulators:
            result.append(accumulator.add(slot, rewriter.scalar(points.values[number]), self.target))
        return [*result, *stores]

    def two_steps(self, sweep: Sweep) -> tuple[lanes.Steps, list[Buffer]]:
        """Costly values of several vectors at once, so that the latency of one hides behind the others; then what is
        gathered from them. With the buffers that are between the two."""
        points, stored, accumulators = sweep.points, sweep.stored, sweep.accumulators
        slots = lanes.VECTORS * self.width
        stages = {
            number: Buffer("values", points.values[number].dtype, (slots,), "stack")
            for _, _, number in accumulators
            if scalars.cost(points.values[number]) > elementwise.CHEAP
        }

        def first(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            statements = self.point(points, stored, (), index, slot)
            kept = {s.local.name: Read(s.local) for s in statements if isinstance(s, Let)}
            value_of = self._values(points, index, {mark.buffer: kept[mark.buffer.name] for _, mark in stored})
            return [*statements, *(Store(stage, (slot,), value_of(number)) for number, stage in stages.items())]

        def then(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            mapping = dict(zip(points.variables, index, strict=True))
            places = {
                mark.buffer: scalars.substitute(place, mapping)
                for place, (_, mark) in zip(points.stores, stored, strict=True)
            }
            value_of = self._values(points, index, places)
            return [
                accumulator.add(
                    slot, Load(stages[number], (slot,)) if number in stages else value_of(number), self.target
                )
                for _, accumulator, number in accumulators
            ]

        return lanes.Steps(first, then), list(stages.values())

    def _values(self, points: Points, index: Sequence[Dim], computed: Mapping[Buffer, Scalar]) -> Callable[[int], Scalar]:
        """The values of the points at an index, with what is computed already in place of its marks."""
        rewriter = Rewriter(
            dict(zip(points.variables, index, strict=True)),  # type: ignore[arg-type]
            lambda node: computed.get(node.buffer) if isinstance(node, Load) else None,
        )
        return lambda number: rewriter.scalar(points.values[number])

    @property
    def _bypassing(self) -> bool:
        """Whether what the sweep stores goes past the caches."""
        return self.decision.streaming and self.sweep == len(self.passes) - 1

    def _streamed(self, sweep: Sweep, part: tuple[Dim, Dim]) -> tuple[Statement, ...]:
        """Several whole lines at a time go past the caches from registers; what comes before the first is stored as usual."""
        start, count = part
        lead = symbolic.minimum(self.until_line(sweep, start), count)
        plain, passing = self.stored_at(sweep), self.stored_at(sweep, past=True)
        return (
            *lanes.lane_loops(lead, self.width, 1, plain, start),
            *lanes.lane_loops(count - lead, self.width, SWEEP_VECTORS, passing, start + lead, interleaved=True),
        )

    def until_line(self, sweep: Sweep, start: Dim) -> Dim:
        """Elements from one of the row to the next that is stored to the beginning of a line."""
        place = scalars.substitute(sweep.points.stores[0], {sweep.points.variables[0]: start})
        assert isinstance(place, Load)
        return scalars.until_line(place, LINE_BYTES)

    def stored_at(self, sweep: Sweep, past: bool = False) -> lanes.Point:
        """The statements at an index of a sweep that reduces nothing; `past` the caches."""

        def statements(index: Dim, slot: Dim) -> list[Statement]:
            found = self.point(sweep.points, sweep.stored, (), (index,), slot)
            return [replace(s, streaming=past) if isinstance(s, Store) else s for s in found]

        return statements

    def _fetching(self, sweep: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """A later row of what this sweep reads is on its way during the one that computes the most."""
        if not self.decision.ahead or isinstance(self.row, int):
            return sweep
        costs = [
            sum(scalars.cost(i.value) * partition.estimate(symbolic.product(i.extents)) for i in each.items)
            for each in self.passes
        ]
        if self.sweep != costs.index(max(costs)):
            return sweep

        return fetched_ahead(sweep, in_later_steps(self.row, ROWS_AHEAD))

    def _single(
        self,
        points: Points,
        stored: Sequence[tuple[int, Load]],
        accumulators: Sequence[tuple[Item, Accumulator, int]],
    ) -> tuple[Statement, ...]:
        """A row of one element."""
        result = self.point(points, stored, (), (), 0)
        computed = {
            mark.buffer: Load(place.buffer, place.index) for place, (_, mark) in zip(points.stores, stored, strict=True)
        }
        for item, accumulator, number in accumulators:
            value = scalars.replace_loads(points.values[number], lambda load: computed.get(load.buffer))
            value = accumulator.combine(accumulator.neutral, value)
            result.extend(self.scalar(item, ir.cast(value, item.value.dtype)))
        return tuple(result)


def costly(sweep: Sweep) -> bool:
    return any(scalars.cost(value) > elementwise.CHEAP for value in sweep.points.values)


def _plain_sweep(extents: Sequence[Dim], width: int, point: lanes.RowPoint) -> tuple[Statement, ...]:
    """Every index once, nothing reduced."""

    def row(*outer: Dim) -> tuple[Statement, ...]:
        return lanes.lane_loops(
            extents[-1], width, SWEEP_VECTORS, lambda index, slot: point((*outer, index), slot), interleaved=True
        )

    return build.nest([f"r{n}" for n in range(len(extents) - 1)], extents[:-1], row)


def _same_axes(items: Sequence[Item]) -> list[list[Item]]:
    groups: dict[tuple[Dim, ...], list[Item]] = {}
    for item in items:
        groups.setdefault(item.extents, []).append(item)
    return list(groups.values())
