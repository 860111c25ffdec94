"""Rows: definitions that share leading axes and reduce over, or run along, the rest (softmax, normalisation, losses).

Threads take blocks of rows. A row is swept in as few passes as its reductions allow; reductions are gathered in
vectors (lanes.py) and their results are scalars; a row vector that is expensive and needed again stays on the stack,
or, when rows are long, in the memory of the output that is made of it at last, or in scratch memory. Rows that come
from memory are fetched while those before are computed, and results that no cache could hold are stored past the caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.loops import For, Statement
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import partition, scalars
from ingot.compiler.schedule.collapse import Points, Views, collapse
from ingot.compiler.schedule.primitives import LINE_BYTES, block, fuse, parallelize, simplify
from ingot.compiler.schedule.recipes import overlapping, staggered
from ingot.compiler.schedule.recipes.sweeps import STACK_BYTES, Row, RowDecision
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.rowform import Item, Pass, arrange, common_depth, guests, in_place_pairs, items_of
from ingot.compiler.target import Target

ASSUMED_ROW = 1024  # elements of a row of symbolic length, where its weight matters
FAR_CHUNK = 512 << 10  # bytes that one thread reads and writes at a time when no cache holds them
STAGGERED_CHUNK = 2 << 20  # the same for rows that are staggered: at both ends of a chunk not all sweeps have a row
STAGGERED_ROWS, STAGGERED_CHUNKS = 32, 8  # rows of a chunk, at least, if there are as many chunks


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
    emitter = Row(passes, decision, target, views, rows[-1] if rows else 0)
    cut = partition.Cut(decision.axis, decision.chunk)
    if decision.staggered:
        statements = staggered.chunks(rows, extents, staggered.rows_of(emitter), cut)
    elif decision.turns >= 0:
        statements = overlapping.chunks(rows, extents, emitter.overlapping(), cut)
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
    streams = streaming(passes, target, options)
    stagger = streams and target.vector_bytes >= LINE_BYTES and bool(staggered.stages(passes, width, target))
    axis, chunk = -1, 0
    order = staggered.Order()
    if options.parallel and extents:
        known = all(isinstance(symbolic.product(item.extents), int) for item in items)
        total = None if known else partition.SERIAL_BYTES * symbolic.product(extents)
        row = max(1, sum(map(_weight, items))) if not far else max(1, reads // math.prod(map(partition.estimate, extents)))
        cut = partition.cut(extents, row, total=total, chunk=STAGGERED_CHUNK if stagger else FAR_CHUNK if far else None)
        if cut is not None:
            axis, chunk = cut.axis, cut.block
        if stagger and axis == len(extents) - 1:
            chunk = max(chunk, min(STAGGERED_ROWS, partition.estimate(extents[-1]) // STAGGERED_CHUNKS))
            order = staggered.order(passes, target)
            chunk = -(-chunk // order.block) * order.block
    # registers of whole lines take rows as fast as the processor fetches them by itself: hints only delay it
    ahead = reads > target.l2_bytes and target.vector_bytes < LINE_BYTES
    side_by_side = streams and chunk > 1 and axis == len(extents) - 1
    stagger = stagger and side_by_side
    turns = overlapping.partner(passes, target) if side_by_side and ahead and not stagger else -1
    return RowDecision(width, axis, chunk, len(passes), ahead and not stagger, streams, turns, stagger, order.parts, order.length)


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


