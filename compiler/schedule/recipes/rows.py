"""Rows: definitions that share leading axes and reduce over, or run along, the rest (softmax, normalisation, losses).

Threads take blocks of rows. A row is swept in as few passes as its reductions allow; reductions are gathered in
vectors (lanes.py) and their results are scalars; a row vector that is expensive and needed again stays on the stack,
or, when rows are long, in the memory of the output that is made of it at last, or in scratch memory. Rows that come
from memory are fetched while those before are computed, and results that no cache could hold are stored past the caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Alloc, For, Let, Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import build, lanes, partition, scalars
from ingot.compiler.schedule.collapse import Points, Views, collapse
from ingot.compiler.schedule.lanes import Accumulator
from ingot.compiler.schedule.primitives import block, fetched_ahead, fuse, in_later_steps, parallelize, simplify
from ingot.compiler.schedule.recipes import elementwise, overlapping
from ingot.compiler.schedule.recipes.overlapping import Overlapping
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.rowform import Item, Pass, arrange, common_depth, guests, in_place_pairs, items_of
from ingot.compiler.schedule.statements import copy
from ingot.compiler.target import Target

STACK_BYTES = 16 << 10  # what one row may keep on the stack
ASSUMED_ROW = 1024  # elements of a row of symbolic length, where its weight matters
FAR_CHUNK = 512 << 10  # bytes that one thread reads and writes at a time when no cache holds them
ROWS_AHEAD = 2  # between the row that is computed and the one that is fetched: one is not always there in time
LINE_BYTES = 64  # registers of whole lines take rows as fast as the processor fetches them by itself: hints only delay it
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


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    depth = common_depth(kernel)
    if depth is None:
        return None
    rows, items = items_of(kernel, depth)
    passes = arrange(items, depth)
    pairs = in_place_pairs(passes, rows, kernel.inputs, guests(passes, STACK_BYTES))
    views = Views()
    rows, extents, passes = _merge_rows(rows, passes, depth, views)
    decision = replace(decide(extents, passes, target, options), **options.decisions)
    emitter = _Row(passes, decision, target, views, rows[-1] if rows else 0)
    if decision.turns >= 0:
        statements = overlapping.chunks(rows, extents, emitter.overlapping(), partition.Cut(decision.axis, decision.chunk))
    else:
        statements = _row_loops(rows, extents, emitter.statements(), decision)
    final = simplify(statements)
    scratch = tuple(emitter.scratch)
    parameters = (*kernel.inputs, *kernel.outputs, *scratch)
    function = loops.Function(kernel.name, parameters, views.declared(final))
    reason = f"definitions share {depth} leading axes and reduce over the rest"
    return Scheduled(function, "rows", asdict(decision), reason, scratch, pairs)


def _merge_rows(
    rows: tuple[Dim, ...], passes: list[Pass], depth: int, views: Views
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], list[Pass]]:
    """Merge row axes that no access tells apart."""
    everything = [item for each in passes for item in (*each.items, *each.scalars)]
    extents = everything[0].place.buffer.shape[:depth]
    points = Points(rows, extents, tuple(i.place for i in everything), tuple(i.value for i in everything))
    merged = collapse(points, views)
    renewed = iter(
        replace(item, place=place, value=value)
        for item, place, value in zip(everything, merged.stores, merged.values, strict=True)
    )
    arranged = [Pass(p.number, [next(renewed) for _ in p.items], [next(renewed) for _ in p.scalars]) for p in passes]
    return merged.variables, merged.extents, arranged


def decide(extents: Sequence[Dim], passes: Sequence[Pass], target: Target, options: ScheduleOptions) -> RowDecision:
    items = [item for each in passes for item in each.items]
    width = max(1, target.vector_bytes // (scalars.widest(*(item.value for item in items)) if items else 4))
    reads = _reads(passes)
    far = reads > target.l3_bytes
    axis, chunk = -1, 0
    if options.parallel and extents:
        known = all(isinstance(symbolic.product(item.extents), int) for item in items)
        total = None if known else partition.SERIAL_BYTES * symbolic.product(extents)
        row = max(1, sum(map(_weight, items))) if not far else max(1, reads // math.prod(map(partition.estimate, extents)))
        cut = partition.cut(extents, row, total=total, chunk=FAR_CHUNK if far else None)
        if cut is not None:
            axis, chunk = cut.axis, cut.block
    streams = streaming(passes, target, options)
    ahead = reads > target.l2_bytes and target.vector_bytes < LINE_BYTES
    overlap = ahead and streams and chunk > 1 and axis == len(extents) - 1
    return RowDecision(width, axis, chunk, len(passes), ahead, streams, overlapping.partner(passes, target) if overlap else -1)


def _reads(passes: Sequence[Pass]) -> int:
    """Bytes of the kernel's operands."""
    own = {item.place.buffer for each in passes for item in (*each.items, *each.scalars)}
    found = [load.buffer for each in passes for item in each.items for load in scalars.loads(item.value)]
    return sum(_known_bytes(buffer) for buffer in dict.fromkeys(found) if buffer not in own)


def streaming(passes: Sequence[Pass], target: Target, options: ScheduleOptions) -> bool:
    vectors = [item.place.buffer for item in passes[-1].items if item.output and item.is_vector]
    return options.leaving and sum(map(_known_bytes, vectors)) > target.l3_bytes


def _known_bytes(buffer: Buffer) -> int:
    size = buffer.type.bytes
    return size if isinstance(size, int) else 0


def _weight(item: Item) -> int:
    elements = symbolic.product(item.extents)
    count = elements if isinstance(elements, int) else ASSUMED_ROW
    return count * partition.weight_of([item.place] if item.is_vector else [], [item.body])


def _row_loops(
    rows: Sequence[Dim], extents: Sequence[Dim], body: tuple[Statement, ...], decision: RowDecision
) -> tuple[Statement, ...]:
    if any(extent == 0 for extent in extents):
        return ()
    statements = body
    for axis in range(len(rows) - 1, -1, -1):
        loop = For(rows[axis], extents[axis], statements)
        if decision.chunk > 1 and axis == decision.axis:
            loop = parallelize(block(loop, decision.chunk))
        elif decision.chunk and axis == decision.axis:
            loop = parallelize(loop)
        elif decision.chunk and axis < decision.axis:
            loop = fuse(parallelize(loop))
        statements = (loop,)
    return statements


class _Row:
    """Emits the statements of one row."""

    def __init__(self, passes: Sequence[Pass], decision: RowDecision, target: Target, views: Views, row: Dim) -> None:
        self.passes = passes
        self.width = decision.width
        self.decision = decision
        self.row = row  # variable of the innermost row axis; 0: there is none
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
        self.twice: set[Buffer] = set()  # row vectors of which the row before has its own

    def statements(self) -> tuple[Statement, ...]:
        return tuple(statement for number in range(len(self.passes)) for statement in self._pass(number))

    def overlapping(self) -> Overlapping:
        """The last sweep of a row takes turns with one of the next row. What it needs of its own row waits in memory."""
        last = len(self.passes) - 1
        read = [load.buffer for item in self.passes[last].items for load in scalars.loads(item.value)]
        early = [item.place.buffer for each in self.passes[: self.decision.turns + 1] for item in each.items]
        self.twice = set(read) & set(early)
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
            result = self._fetching(self._sweep(self.passes[last].items, part=(start, count)))
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
            result.extend(self._fetching(self._sweep(group)) if turn is None else self._sweep(group, turn))
        for item in self.passes[number].scalars:
            result.extend(self._scalar(item, self._resolved(item.value)))
        return result

    # --- values ---------------------------------------------------------------------------------------------------

    def _resolved(self, value: Scalar, here: Mapping[Buffer, Scalar] | None = None) -> Scalar:
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

    def _scalar(self, item: Item, value: Scalar) -> tuple[Statement, ...]:
        local = Local(item.place.buffer.name, value.dtype)
        self.scalars[item.place.buffer] = Read(local)
        let = Let(local, value)
        return (let, Store(item.place.buffer, item.place.index, Read(local))) if item.output else (let,)

    # --- sweeps ---------------------------------------------------------------------------------------------------

    def _sweep(
        self, items: Sequence[Item], turn: lanes.Turn | None = None, part: tuple[Dim, Dim] | None = None
    ) -> tuple[Statement, ...]:
        """One pass over the row's axes, or a part (start, count) of one that reduces nothing, for items that have the same
        axes."""
        places, values, accumulators, before, marked = [], [], [], [], []
        variables = items[0].inner
        here: dict[Buffer, Scalar] = {}
        for item in items:
            mapping = {a: b for a, b in zip(item.inner, variables, strict=True) if not isinstance(a, int)}
            body = build.wide_body(item.value) if isinstance(item.value, Reduce) else item.value
            value = self._resolved(scalars.substitute(body, mapping), here)
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
        if part is not None:
            return self._streamed(points, lambda index, slot: self._point(points, stored, (), index, slot), part)
        return (*before, *self._loops(points, stored, accumulators, turn))

    def _home(self, item: Item) -> tuple[Statement, ...]:
        """Memory for a row vector that later passes read; outputs have theirs."""
        buffer = item.place.buffer
        if item.output or buffer in self.vectors:
            return ()
        shape = (2, *item.extents) if buffer in self.twice else item.extents
        size = symbolic.product(shape) * buffer.dtype.itemsize
        if isinstance(size, int) and self.stack + size <= STACK_BYTES:
            self.stack += size
            kept = Buffer(buffer.name, buffer.dtype, shape, "stack")
            self.vectors[buffer], self.row_rank[buffer] = kept, len(item.place.index) - len(item.extents)
            if self.decision.turns < 0:
                return (Alloc(kept),)
            self.kept.append(Alloc(kept))
            return ()
        self.twice.discard(buffer)
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
        index = place.index[self.row_rank[place.buffer] :]
        return Load(self.vectors[place.buffer], (self.row % 2, *index) if place.buffer in self.twice else index)

    def _loops(
        self,
        points: Points,
        stored: Sequence[tuple[int, Load]],
        accumulators: Sequence[tuple[Item, Accumulator, int]],
        turn: lanes.Turn | None = None,
    ) -> tuple[Statement, ...]:
        if not points.variables:
            return self._single(points, stored, accumulators)

        def point(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            return self._point(points, stored, accumulators, index, slot)

        if not accumulators and self._bypassing and len(points.extents) == 1 and points.extents[0] != 0:
            return self._streamed(points, point, (0, points.extents[0]))
        if not accumulators:
            return _plain_sweep(points.extents, self.width, point)
        only = [accumulator for _, accumulator, _ in accumulators]
        result = [statement for accumulator in only for statement in lanes.declare(accumulator)]
        steps = None
        if any(scalars.cost(value) > elementwise.CHEAP for value in points.values):
            steps, stages = self._two_steps(points, stored, accumulators)
            result.extend(map(Alloc, stages))
        result.extend(lanes.reduce_axes(points.extents, self.width, only, point, steps, turn))
        for item, accumulator, _ in accumulators:
            result.extend(self._scalar(item, ir.cast(lanes.across(accumulator, self.width), item.value.dtype)))
        return tuple(result)

    def _point(
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

    def _two_steps(
        self,
        points: Points,
        stored: Sequence[tuple[int, Load]],
        accumulators: Sequence[tuple[Item, Accumulator, int]],
    ) -> tuple[lanes.Steps, list[Buffer]]:
        """Costly values of several vectors at once, so that the latency of one hides behind the others; then what is
        gathered from them. With the buffers that are between the two."""
        slots = lanes.VECTORS * self.width
        stages = {
            number: Buffer("values", points.values[number].dtype, (slots,), "stack")
            for _, _, number in accumulators
            if scalars.cost(points.values[number]) > elementwise.CHEAP
        }

        def first(index: tuple[Dim, ...], slot: Dim) -> list[Statement]:
            statements = self._point(points, stored, (), index, slot)
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

    def _streamed(self, points: Points, point: lanes.RowPoint, part: tuple[Dim, Dim]) -> tuple[Statement, ...]:
        """Several whole lines at a time go past the caches from registers."""
        start, count = part

        def passing(index: Dim, slot: Dim) -> list[Statement]:
            return [replace(s, streaming=True) if isinstance(s, Store) else s for s in point((index,), slot)]

        return lanes.lane_loops(count, self.width, SWEEP_VECTORS, passing, start, interleaved=True)

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
        result = self._point(points, stored, (), (), 0)
        computed = {
            mark.buffer: Load(place.buffer, place.index) for place, (_, mark) in zip(points.stores, stored, strict=True)
        }
        for item, accumulator, number in accumulators:
            value = scalars.replace_loads(points.values[number], lambda load: computed.get(load.buffer))
            value = accumulator.combine(accumulator.neutral, value)
            result.extend(self._scalar(item, ir.cast(value, item.value.dtype)))
        return tuple(result)


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
