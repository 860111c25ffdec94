"""Reductions with what follows them elementwise, when vectors run along a kept axis (column sums, pooling,
depthwise convolution), and huge reductions to few results.

A block of outputs stays in registers while the reduced axes run (tile.py). Long sums are cut into chunks whose
totals are added, for accuracy; when there are too few outputs for threads, threads take chunks and a second stage adds
them, in the same order. Which form is used depends on how memory is laid out; the order in which one output is
accumulated depends on the reduced extents only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import FIRST_CACHE, SECOND_CACHE, Let, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import build, lanes, partition, scalars, tile
from ingot.compiler.schedule.form import Accumulation, ReductionForm, reduction_form, scheduled_reduction
from ingot.compiler.schedule.lanes import Chunking
from ingot.compiler.schedule.padding import without_padding
from ingot.compiler.schedule.primitives import LINE_BYTES, fetched_ahead, further, in_later_steps
from ingot.compiler.schedule.recipes import along_reduced, elementwise
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.tile import Tile
from ingot.compiler.target import Target

SHORTEST_CHAIN, USUAL_CHAIN, LONGEST_CHAIN = 32, 128, 512  # additions in one chain before its total is added
FEW_TILES = 16  # fewer tiles of outputs than this leave threads without work
ASSUMED_EXTENT = 256  # of a symbolic reduced axis, where its weight matters
STRIP_ROWS, STRIP_VECTORS = 8, 2  # rows that are added to their sums at a time, and vectors of each
STRIP_CHUNKS = 4  # of which one row each is added at a time instead, where vectors are shorter than a line
MANY_STRIP_CHUNKS = 8  # the same where a core waits for memory with few lines at a time
STRIP_AHEAD = 512  # bytes between what is added then and what is asked for


@dataclass(frozen=True)
class ReductionDecision:
    width: int  # lanes
    rows: int  # outputs along the row axis in a tile
    vectors: int  # vectors along the last axis in a tile
    row_axis: int  # kept axis of the rows; -1: none
    stages: int  # 2: chunks first, then their totals
    axis: int = -1  # kept axis that is cut for threads; those before it are divided into tiles
    block: int = 0  # its steps in a block
    unroll: int = 1  # steps of the last reduced axis in one iteration

    def check(self, rank: int) -> None:
        """Blocks must be whole tiles: what is left of an axis is in its last block."""
        units = tile_units(rank, self.row_axis, self.rows, self.vectors * self.width)
        if self.block and self.block % units[self.axis]:
            raise ValueError(f"blocks must be multiples of the tile: {self}")


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    form = reduction_form(kernel)
    if form is None:
        return None
    width = lanes_of(form, target)
    if runs_along_reduced(form, width):
        return along_reduced.recipe(kernel, form, width, target, options)
    form, padding = without_padding(form)
    decision = replace(decide(form, width, target, options), **options.decisions)
    decision.check(len(form.kept))
    scratch: tuple[Buffer, ...] = ()
    if decision.stages == 2:
        body, scratch = _two_stage(form, decision, target)
    else:
        body = tiled(form, decision, target, chunk_of(form))
    fill = elementwise.fill([each.points for each in padding], form.views, target, options)
    scratch = (*(each.buffer for each in padding), *scratch)
    return scheduled_reduction(kernel, form, (*fill, *body), scratch, asdict(decision), "vectors run along a kept axis")


# --- decision -----------------------------------------------------------------------------------------------------


def lanes_of(form: ReductionForm, target: Target) -> int:
    """Lanes of a vector of the widest type that the kernel computes with."""
    values = [a.body for a in form.accumulations] + [final.value for final in form.finals]
    widest = max((node.dtype.compute.itemsize for value in values for node in scalars.nodes(value)), default=4)
    return max(1, target.vector_bytes // widest)


def runs_along_reduced(form: ReductionForm, width: int) -> bool:
    """Whether vectors should run along the last reduced axis rather than the last kept one."""
    if not form.reduced or symbolic.less(form.reduced_extents[-1], width) is True:
        return False
    if not form.kept:
        return True
    found = [load for a in form.accumulations for load in scalars.loads(a.body)]
    kept = sum(scalars.stride(load, form.kept[-1]) == 1 for load in found)
    reduced = sum(scalars.stride(load, form.reduced[-1]) == 1 for load in found)
    return reduced > kept


def chunk_of(form: ReductionForm) -> Chunking | None:
    """Where chains of additions are cut. Nothing rounds in other reductions."""
    if not any(a.combiner in ("sum", "prod") and a.dtype.is_float for a in form.accumulations):
        return None
    return _chains(form)


def _chains(form: ReductionForm) -> Chunking | None:
    """About as many chains as a chain is long, which makes the rounding error least."""
    count = symbolic.product(form.reduced_extents)
    chain = USUAL_CHAIN
    if isinstance(count, int):
        chain = min(max(SHORTEST_CHAIN, 1 << (count.bit_length() // 2)), LONGEST_CHAIN)
    return lanes.chunking(form.reduced_extents, chain)


def decide(form: ReductionForm, width: int, target: Target, options: ScheduleOptions) -> ReductionDecision:
    """The decision; what options say about the tile is taken into account in the rest."""
    row_axis = reused_axis(form)
    rows, vectors = _tile_size(form, row_axis, width, target)
    far = row_axis < 0 and _comes_from_afar(form, target)
    if far:
        vectors = _widest(form, width, target)
    rows, vectors = options.decisions.get("rows", rows), options.decisions.get("vectors", vectors)
    axis, block, stages = -1, 0, 1
    if options.parallel and form.kept:
        units = tile_units(len(form.kept), row_axis, rows, vectors * width)
        cut = partition.cut(form.kept_extents, point_weight(form), units, _total_weight(form))
        axis, block = (cut.axis, cut.block) if cut else (-1, 0)
        stages = 2 if cut and (far or _few(form, rows * vectors * width)) else 1
    return ReductionDecision(width, rows, vectors, row_axis, stages, axis, block)


def _tile_size(form: ReductionForm, row_axis: int, width: int, target: Target) -> tuple[int, int]:
    """(rows, vectors) of a tile."""
    count = len(form.accumulations)
    vectors = 2 if row_axis >= 0 else 8 if chunk_of(form) is None else 4
    vectors = max(1, vectors // count)
    last = form.kept_extents[-1] if form.kept else 1
    if isinstance(last, int):
        vectors = min(vectors, max(1, -(-last // width)))
    if row_axis < 0:
        return 1, vectors
    rows = max(1, (target.vector_registers - 1) // (vectors * count) - 1)
    extent = form.kept_extents[row_axis]
    if isinstance(extent, int) and extent > 0:
        rows = -(-extent // -(-extent // rows))  # tiles of equal height
    return rows, vectors


def tile_units(rank: int, row_axis: int, rows: int, columns: int) -> tuple[int, ...]:
    """The steps of each kept axis in a tile."""
    if rank == 0:
        return ()
    units = [1] * rank
    if row_axis >= 0:
        units[row_axis] = rows
    units[-1] = columns
    return tuple(units)


def reused_axis(form: ReductionForm) -> int:
    """The last kept axis before the lanes along which some operand does not change; -1 when there is none."""
    found = [load for a in form.accumulations for load in scalars.loads(a.body)]
    for axis in range(len(form.kept) - 2, -1, -1):
        if len(found) > 1 and any(scalars.stride(load, form.kept[axis]) == 0 for load in found):
            return axis
    return -1


def point_weight(form: ReductionForm) -> int:
    """Weight of one output; a guess where reduced axes are symbolic."""
    count = symbolic.product(form.reduced_extents)
    steps = count if isinstance(count, int) else ASSUMED_EXTENT
    return max(1, steps * partition.weight_of([], [a.body for a in form.accumulations]))


def _total_weight(form: ReductionForm) -> Dim:
    points = symbolic.product((*form.kept_extents, *form.reduced_extents))
    return points * partition.weight_of([], [a.body for a in form.accumulations])


def _few(form: ReductionForm, tile_elements: int) -> bool:
    """Few outputs and several chunks each."""
    outputs = symbolic.product(form.kept_extents)
    return symbolic.less(outputs, FEW_TILES * tile_elements) is True and _are_several(form, chunk_of(form))


def _are_several(form: ReductionForm, cut: Chunking | None) -> bool:
    if cut is None:
        return False
    return symbolic.less(symbolic.product(lanes.chunk_counts(form.reduced_extents, cut)), 4) is not True


def _comes_from_afar(form: ReductionForm, target: Target) -> bool:
    """Sums of long columns that no near cache holds: a tile takes as much of each row as registers allow, and all
    columns of a chunk of rows before the next rows, because memory is read best in the order in which it lies. Maxima
    have chunks for that only where a core waits for memory with few lines at a time."""
    if not form.kept or not _are_several(form, _chains(form) if target.has_few_line_buffers else chunk_of(form)):
        return False
    found = [load.buffer for a in form.accumulations for load in scalars.loads(a.body)]
    sizes = [buffer.type.bytes for buffer in dict.fromkeys(found)]
    return sum(size for size in sizes if isinstance(size, int)) > target.l2_bytes


def _widest(form: ReductionForm, width: int, target: Target) -> int:
    """Vectors of a tile of one row that leave registers for an operand."""
    most = max(1, (target.vector_registers - 2) // len(form.accumulations))
    last = form.kept_extents[-1]
    return min(most, max(1, -(-last // width))) if isinstance(last, int) else most


# --- one stage ----------------------------------------------------------------------------------------------------


def tiled(
    form: ReductionForm, decision: ReductionDecision, target: Target, chunk: Chunking | None
) -> tuple[Statement, ...]:
    """Every output, tile by tile."""
    units = tile_units(len(form.kept), decision.row_axis, decision.rows, decision.vectors * decision.width)
    cut = partition.Cut(decision.axis, decision.block, units) if decision.block else None

    def emit(each: Tile) -> tuple[Statement, ...]:
        return _tile(each, form, target, chunk, decision.unroll)

    return partition.blocks(form.kept_extents, cut, lambda ranges: tiles(form, decision, ranges, emit))


def tiles(
    form: ReductionForm, decision: ReductionDecision, ranges: partition.Ranges, emit: tile.Emit
) -> tuple[Statement, ...]:
    """Tiles over a box of the kept axes: axes outside the tile around it, lanes, then rows innermost."""
    width = decision.width
    row_axis, lane_axis = decision.row_axis, len(form.kept) - 1
    outside = [axis for axis in range(len(form.kept)) if axis not in (row_axis, lane_axis)]
    one = partition.Range(0, 1, 1)
    lane_range = ranges[lane_axis] if form.kept else one
    row_range = ranges[row_axis] if row_axis >= 0 else one
    row_sizes = [size for size in (decision.rows, 4, 2, 1) if size <= decision.rows]

    def box(*index: Dim) -> list[Statement]:
        fixed = {form.kept[axis]: ranges[axis].start + i for axis, i in zip(outside, index, strict=True)}
        result: list[Statement] = []
        for lane in tile.cover_range(lane_range, (decision.vectors * width, width), masked=True).pieces:
            result.extend(build.loop("j", lane.count, lambda j, lane=lane: column(fixed, lane, j)))
        return result

    def column(fixed: dict[Dim, Dim], lane: tile.Piece, j: Dim) -> list[Statement]:
        result: list[Statement] = []
        place = lane_range.start + lane.start + j * lane.size
        for row in tile.cover_range(row_range, row_sizes).pieces:
            result.extend(build.loop("i", row.count, lambda i, row=row: emit(_make(fixed, row, i, lane, place))))
        return result

    def _make(fixed: dict[Dim, Dim], row: tile.Piece, i: Dim, lane: tile.Piece, place: Dim) -> Tile:
        assert isinstance(row.size, int)
        return Tile(
            fixed,
            form.kept[row_axis] if row_axis >= 0 else None,
            row_range.start + row.start + i * row.size,
            row.size,
            form.kept[lane_axis] if form.kept else None,
            place,
            lane.size,
            width,
        )

    counts = [ranges[axis].count for axis in outside]
    return build.nest([f"n{n}" for n in range(len(outside))], counts, box)


def _tile(
    each: Tile, form: ReductionForm, target: Target, chunk: Chunking | None, unroll: int
) -> tuple[Statement, ...]:
    sums = [each.register(a.mark.name, a) for a in form.accumulations]
    if chunk is None:
        statements = _chain(each, sums, form, target, form.reduced_extents, (0,) * len(form.reduced), unroll)
        return (*tile.allocate(sums), *statements, *tile.finish(each, sums, form))
    totals = [each.register(f"{a.mark.name}_total", a) for a in form.accumulations]

    def part(*number: Dim) -> tuple[Statement, ...]:
        starts, extents = lanes.chunk_range(form.reduced_extents, chunk, number)
        statements = _chain(each, sums, form, target, extents, starts, unroll)
        return (*statements, *add_up(each, totals, sums, form.accumulations))

    counts = lanes.chunk_counts(form.reduced_extents, chunk)
    return (
        *tile.allocate([*sums, *totals]),
        *tile.clear(each, totals, form),
        *build.nest([f"c{n}" for n in range(len(counts))], counts, part),
        *tile.finish(each, totals, form),
    )


def _chain(
    each: Tile,
    sums: Sequence[Buffer],
    form: ReductionForm,
    target: Target,
    extents: Sequence[Dim],
    starts: Sequence[Dim],
    unroll: int,
) -> tuple[Statement, ...]:
    """One chain of additions over a box of the reduced axes."""

    def point(*index: Dim) -> tuple[Statement, ...]:
        at = {v: start + i for v, start, i in zip(form.reduced, starts, index, strict=True)}
        return tile.step(each, sums, form, at, target)

    return (*tile.clear(each, sums, form), *tile.reduction_loops(extents, point, unroll))


def add_up(
    each: Tile, totals: Sequence[Buffer], sums: Sequence[Buffer], accumulations: Sequence[Accumulation]
) -> tuple[Statement, ...]:
    """total[r, l] (+)= sum[r, l]"""

    def element(r: Dim, lane: Dim) -> list[Statement]:
        return [
            Store(total, (r, lane), a.combine(Load(total, (r, lane)), Load(part, (r, lane))))
            for total, part, a in zip(totals, sums, accumulations, strict=True)
        ]

    return each.spread(element)


# --- two stages ---------------------------------------------------------------------------------------------------


def _two_stage(
    form: ReductionForm, decision: ReductionDecision, target: Target
) -> tuple[tuple[Statement, ...], tuple[Buffer, ...]]:
    """Chains in parallel into scratch memory, then their totals."""
    chunk = _chains(form)
    assert chunk is not None
    counts = lanes.chunk_counts(form.reduced_extents, chunk)
    scratch = tuple(
        Buffer(f"{a.mark.name}_parts", a.dtype, (*counts, *form.kept_extents), "arena") for a in form.accumulations
    )
    whole = replace(decision, block=0)

    def part(ranges: partition.Ranges) -> tuple[Statement, ...]:
        number = [part.start for part in ranges]
        starts, extents = lanes.chunk_range(form.reduced_extents, chunk, number)

        def emit(each: Tile) -> tuple[Statement, ...]:
            sums = [each.register(a.mark.name, a) for a in form.accumulations]
            chain = _chain(each, sums, form, target, extents, starts, decision.unroll)

            def element(r: Dim, lane: Dim) -> list[Statement]:
                index = each.at(r, lane)
                place = (*number, *(index[v] for v in form.kept))
                return [Store(b, place, Load(s, (r, lane))) for b, s in zip(scratch, sums, strict=True)]

            return (*tile.allocate(sums), *chain, *each.spread(element))

        return tiles(form, whole, partition.whole(form.kept_extents), emit)

    if _in_strips(form, decision, target):
        first = _strip_chunks(form, decision.width, target, chunk, scratch)
    else:
        first = partition.blocks(counts, partition.Cut(len(counts) - 1, 1), part)
    second = replace(
        form,
        reduced=tuple(symbolic.Variable(f"c{n}", 0, count - 1) for n, count in enumerate(counts)),
        reduced_extents=counts,
    )
    parts: list[Scalar] = [Load(buffer, (*second.reduced, *form.kept)) for buffer in scratch]
    second = replace(
        second,
        accumulations=tuple(replace(a, body=body) for a, body in zip(form.accumulations, parts, strict=True)),
    )
    return (*first, *tiled(second, whole, target, None)), scratch


def _in_strips(form: ReductionForm, decision: ReductionDecision, target: Target) -> bool:
    """Whether the sums of a chunk of rows stay in a near cache, so that whole rows can be added to them."""
    if len(form.kept) != 1 or len(form.reduced) != 1 or not _comes_from_afar(form, target):
        return False
    size = symbolic.product(form.kept_extents) * sum(a.dtype.itemsize for a in form.accumulations)
    return decision.row_axis < 0 and symbolic.less_equal(size, target.l1_bytes // 2) is True


def _strip_chunks(
    form: ReductionForm, width: int, target: Target, cut: Chunking, parts: Sequence[Buffer]
) -> tuple[Statement, ...]:
    """Every chunk of rows. Where vectors are whole lines one at a time; else several from different places, a row of each
    in turn: series of addresses that are far apart arrive faster, and need no hints."""
    (count,), (extent,) = lanes.chunk_counts(form.reduced_extents, cut), form.reduced_extents
    whole = extent // cut.steps  # chunks of full length
    result: list[Statement] = []
    done: Dim = 0
    sums = symbolic.product(form.kept_extents) * sum(part.dtype.itemsize for part in parts)
    for together in _chunks_at_once(sums, target):
        groups = (whole - done) // together if together > 1 else count - done

        def group(ranges: partition.Ranges, done: Dim = done, together: int = together) -> tuple[Statement, ...]:
            numbers = [done + ranges[0].start * together + n for n in range(together)]
            return _strips(form, width, target, cut, parts, numbers)

        if groups != 0:
            result.extend(partition.blocks((groups,), partition.Cut(0, 1), group))
        done = done + groups * together
    return tuple(result)


def _chunks_at_once(sums: Dim, target: Target) -> tuple[int, ...]:
    """How many, where the sums of one take so many bytes; where there are not as many left, the next. All sums must stay in
    the first cache beside what passes through it."""
    if target.has_few_line_buffers:
        most = target.l1_bytes * 3 // 4
        return tuple(n for n in (MANY_STRIP_CHUNKS, STRIP_CHUNKS, 1) if n == 1 or symbolic.less_equal(n * sums, most) is True)
    return (STRIP_CHUNKS, 1) if target.vector_bytes < LINE_BYTES else (1,)


def _strips(
    form: ReductionForm, width: int, target: Target, cut: Chunking, parts: Sequence[Buffer], numbers: Sequence[Dim]
) -> tuple[Statement, ...]:
    """One chunk of rows, a few at a time from their beginning to their end, the next ones asked for meanwhile; or several
    chunks of the same length, a row of each at a time. Each column is added up in the order of the rows, as in a tile."""
    (extent,), (column,), (row,) = form.kept_extents, form.kept, form.reduced
    rows = STRIP_ROWS if len(numbers) == 1 else 1
    starts = [number * cut.steps for number in numbers]
    _, (count,) = lanes.chunk_range(form.reduced_extents, cut, numbers[:1])
    if len(numbers) > 1:
        count = cut.steps

    def sweep(value: Callable[[Accumulation, Load, Dim], Scalar]) -> tuple[Statement, ...]:
        def point(j: Dim, _: Dim) -> list[Statement]:
            """All loads stand before the stores: a row whose length is a multiple of a page lies at the same place of a page as
            its sums, and a load waits for stores before it that only look as if they were to its address."""
            places = [(part, number) for number in numbers for part in parts]
            values = [
                scalars.substitute(value(a, Load(part, (number, column)), start), {column: j})
                for number, start in zip(numbers, starts, strict=True)
                for a, part in zip(form.accumulations, parts, strict=True)
            ]
            sums = [Local("sum", each.dtype) for each in values]
            return [
                *(Let(local, each) for local, each in zip(sums, values, strict=True)),
                *(Store(part, (number, j), Read(local)) for (part, number), local in zip(places, sums, strict=True)),
            ]

        return lanes.lane_loops(extent, width, STRIP_VECTORS, point, interleaved=True)

    def add(first: Dim, rows: int) -> tuple[Statement, ...]:
        def added(a: Accumulation, total: Scalar, start: Dim) -> Scalar:
            for n in range(rows):
                body = scalars.substitute(a.body, {row: start + first + n})
                total = build.combine(a.combiner, total, body, target)
            return total

        return sweep(added)

    def strip(r: Dim) -> tuple[Statement, ...]:
        if len(numbers) > 1 and target.has_few_line_buffers:
            return fetched_ahead(add(r, 1), further(STRIP_AHEAD), FIRST_CACHE)
        if len(numbers) > 1:
            return add(r, 1)
        return fetched_ahead(add(r * rows, rows), in_later_steps(r, 1), SECOND_CACHE)

    done = count // rows * rows
    return (
        *sweep(lambda a, *_: a.neutral),
        *build.loop("r", count // rows, strip),
        *build.loop("r", count % rows, lambda r: add(done + r, 1)),
    )
