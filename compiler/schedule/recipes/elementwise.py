"""Kernels without reductions: every element of every definition from elements of inputs.

Definitions over one shape share a nest (a group); groups of different shapes become sections of one parallel
loop. Axes that memory does not tell apart are merged, the last one becomes vectors, and the leading ones are cut
into chunks of a size that depends on shapes only.

At each point all values are computed before any is stored, so an output may overwrite an input that is read at
the same point only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.loops import FIRST_CACHE, SECOND_CACHE, Alloc, For, If, Let, Statement, Store, walk
from ingot.compiler.ir.scalar import Apply, Buffer, IndexValue, Load, Local, Read, Scalar, predicate
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.schedule import build, lanes, partition, scalars
from ingot.compiler.schedule.collapse import Points, Views, collapse
from ingot.compiler.schedule.primitives import (
    LINE_BYTES,
    PAGE,
    alternate,
    block,
    fetched_ahead,
    further,
    fuse,
    join,
    name_of,
    only_inner,
    parallelize,
    peel,
    reorder,
    simplify,
    split,
    strip,
)
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.statements import copy, statement_scalars, with_body
from ingot.compiler.target import Target

TILE = 16  # steps of a transpose block along the axis that is contiguous in the source: a cache line
STAGED_ROWS, STAGED_COLUMNS = 256, 256  # of a transposed block on its way past the caches: half a near cache
PADDING = 16  # elements between its rows, so that they do not fall into the same sets
WRITTEN = 64  # of its elements that are stored at once: few enough lines that each is completed in its buffer
SERIES = 256  # elements that are computed before it is the turn of the other half of a chunk
SHORT_SERIES = 64  # the same where a core waits for memory with few lines at a time: no part of a chunk is left alone for long
AHEAD = 1024  # bytes between what is computed and what is fetched
SHORT_AHEAD = 512  # the same for short runs
STREAMED_CHUNK = 512 << 10  # bytes that one thread reads and writes at a time when results bypass the caches
PARTS = 2  # of a chunk that are computed in turn then: two series of addresses arrive faster than one
MANY_PARTS = 8  # the same where a core waits for memory with few lines at a time: its prefetching follows each of them
UNROLL = 4  # vectors at a time
CHEAP = 6  # cost of an element from which on their instructions take turns: the latency of one hides behind the others
MOST_PIECES = 4  # of a row that conditions cut


@dataclass(frozen=True)
class ElementwiseDecision:
    """How one group is computed."""

    width: int  # lanes
    unroll: int  # vectors per iteration of the innermost loop
    interleaved: bool  # whether these are one vector of several registers
    axis: int  # merged axis that is cut into chunks
    chunk: int  # steps of that axis in a chunk; 0: one chunk holds everything
    tile_axis: int = -1  # axis along which some operand is contiguous while the last one is not; -1: none
    squares: bool = False  # whether these operands are transposed in registers
    streaming: bool = False  # stores bypass the caches
    parts: int = 2  # of a chunk, from which a few elements are computed in turn when they do
    run: int = SERIES  # how many elements
    ahead: int = AHEAD  # bytes between what is computed and what is asked for then
    locality: int = FIRST_CACHE  # where what is asked for in advance goes to then


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    if any(scalars.has_reduction(definition.value) for definition in kernel.definitions):
        return None
    groups = _groups(kernel)
    if groups is None:
        return None
    views = Views()
    sections: list[For] = []
    plain: list[Statement] = []
    decisions = []
    for group in groups:
        points = _along_the_longer(collapse(group, views), target)
        decision = replace(decide(points, target, options), **options.decisions)
        decisions.append(asdict(decision))
        for statement in nest(points, decision):
            if isinstance(statement, For) and statement.kind == "parallel":
                sections.append(statement)
            else:
                plain.append(statement)
    body = simplify([*plain, *([join(sections)] if len(sections) > 1 else sections)])
    body = views.declared(body)
    function = loops.Function(kernel.name, (*kernel.inputs, *kernel.outputs), body)
    shapes = "one shape" if len(groups) == 1 else f"{len(groups)} shapes"
    reason = f"every definition is elementwise; {shapes}"
    if any(decision["streaming"] for decision in decisions):
        reason += "; results that no cache would hold are stored past the caches, operands fetched ahead"
    return Scheduled(function, "elementwise", {"groups": decisions}, reason, in_place=_in_place(kernel, groups))


# --- groups -------------------------------------------------------------------------------------------------------


def _groups(kernel: Kernel) -> list[Points] | None:
    """Definitions of equal shape together; None when one reads another somewhere else than at its own point."""
    by_shape: dict[tuple[Dim, ...], list[Definition]] = {}
    place: dict[Buffer, tuple[Dim, ...]] = {}
    for definition in kernel.definitions:
        shape = definition.buffer.shape
        for load in scalars.loads(definition.value):
            if load.buffer in place and (place[load.buffer] != shape or load.index != definition.variables):
                return None
        by_shape.setdefault(shape, []).append(definition)
        place[definition.buffer] = shape
    return [_points(definitions, kernel) for definitions in by_shape.values()]


def _along_the_longer(points: Points, target: Target) -> Points:
    """The last two axes exchanged where the last one would leave most of a vector empty, as the three colours of an image
    do, and what is read lies along the other."""
    axis = _tile_axis(points)
    if axis < 0 or axis != len(points.variables) - 2:
        return points
    *outer, before, last = points.variables
    short, long = points.extents[-1], points.extents[-2]
    if symbolic.less(short, target.lanes(4) // 2) is not True or symbolic.less(long, short) is True:
        return points
    found = [load for value in points.values for load in scalars.loads(value)]
    if any(scalars.stride(load, before) not in (0, 1) for load in found):
        return points
    return replace(points, variables=(*outer, last, before), extents=(*points.extents[:-2], short, long))


def _points(definitions: Sequence[Definition], kernel: Kernel) -> Points:
    """The definitions at common variables, each value in terms of inputs only."""
    variables = definitions[0].variables
    values: dict[Buffer, Scalar] = {}
    stores: list[Load] = []
    stored: list[Scalar] = []
    for definition in definitions:
        mapping = {a: b for a, b in zip(definition.variables, variables, strict=True) if not isinstance(a, int)}
        value = scalars.substitute(definition.value, mapping)
        value = scalars.replace_loads(value, lambda load: values.get(load.buffer))
        values[definition.buffer] = value
        if definition.buffer in kernel.outputs:
            stores.append(Load(definition.buffer, variables))
            stored.append(value)
    return Points(variables, definitions[0].buffer.shape, tuple(stores), tuple(stored))


def _in_place(kernel: Kernel, groups: Sequence[Points]) -> tuple[tuple[Buffer, Buffer], ...]:
    """Inputs that are read in one group only, there only at the point that an output of it stores."""
    pairs = []
    for group in groups:
        loads = [load for value in group.values for load in scalars.loads(value)]
        elsewhere = {
            load.buffer for other in groups if other is not group for v in other.values for load in scalars.loads(v)
        }
        for store in group.stores:
            for operand in dict.fromkeys(load.buffer for load in loads):
                if operand.type != store.buffer.type or operand in elsewhere or operand not in kernel.inputs:
                    continue
                if all(load.index == store.index for load in loads if load.buffer is operand):
                    pairs.append((operand, store.buffer))
    return tuple(pairs)


# --- decision -----------------------------------------------------------------------------------------------------


def decide(points: Points, target: Target, options: ScheduleOptions) -> ElementwiseDecision:
    width = max(1, target.vector_bytes // scalars.widest(*points.stores, *points.values))
    cost = sum(scalars.cost(value) for value in points.values)
    tile_axis = _tile_axis(points)
    squares = tile_axis >= 0 and _in_squares(points, tile_axis)
    streaming = options.leaving and (tile_axis < 0 or squares) and streams(points, target)
    parts, run, ahead, locality = _series(points, target)
    axis, chunk = -1, 0
    if options.parallel and points.extents:
        units = [1] * (len(points.extents) - 1) + [run if streaming else width * UNROLL]
        weight = partition.weight_of(points.stores, points.values, computing=not streaming)
        cut = partition.cut(points.extents, weight, units, chunk=STREAMED_CHUNK if streaming else None)
        axis, chunk = (cut.axis, cut.block) if cut is not None else (-1, 0)
        if streaming and axis == len(points.extents) - 1:
            chunk = _out_of_step(chunk, points, run, parts)
        if chunk and squares:
            axis, chunk = _square_chunks(points, tile_axis, STAGED_COLUMNS if streaming else TILE)
        elif chunk and tile_axis >= 0:
            axis, chunk = tile_axis, TILE
    return ElementwiseDecision(
        width, UNROLL, cost > CHEAP, axis, chunk, tile_axis, squares, streaming, parts, run, ahead, locality
    )


def _series(points: Points, target: Target) -> tuple[int, int, int, int]:
    """(parts, run, ahead, locality): hints for several operands make each other wait in the first cache, unless all requests wait for
    the same few lines anyway, or hints are what fetches everything."""
    if target.has_few_line_buffers:
        return MANY_PARTS, SHORT_SERIES, SHORT_AHEAD, FIRST_CACHE
    operands = _large_operands(points)
    if target.ahead_bytes:
        return 1, SERIES, target.ahead_bytes // max(1, operands) // LINE_BYTES * LINE_BYTES, FIRST_CACHE
    return PARTS, SERIES, AHEAD, SECOND_CACHE if operands > 1 else FIRST_CACHE


def _out_of_step(chunk: int, points: Points, run: int, parts: int) -> int:
    """A chunk of about this size whose parts lie at different places of a page: large arrays begin at the same place of a
    page, and a load from one part would wait for stores to another that only look as if they were to its address."""
    size = max(store.buffer.dtype.itemsize for store in points.stores)
    page = PAGE // size  # elements
    return chunk if page % (parts * run) else max(1, chunk // (parts * page)) * (parts * page) + page


def streams(points: Points, target: Target) -> bool:
    """Whether what is stored is too much to be found in a cache afterwards: its lines need not be fetched to be
    overwritten then. Only what is contiguous along the last axis can be."""
    last = points.variables[-1] if points.variables else 0
    if isinstance(last, int) or any(scalars.stride(store, last) != 1 for store in points.stores):
        return False
    sizes = [store.buffer.type.bytes for store in points.stores]
    return sum(size for size in sizes if isinstance(size, int)) > target.l3_bytes


def _tile_axis(points: Points) -> int:
    """The axis before the last, when some load is contiguous along it and strides along the last one."""
    axes = [axis for axis, variable in enumerate(points.variables) if not isinstance(variable, int)]
    if len(axes) < 2:
        return -1
    before, last = (points.variables[axis] for axis in axes[-2:])
    for value in points.values:
        for load in scalars.loads(value):
            if scalars.stride(load, last) not in (0, 1) and scalars.stride(load, before) == 1:
                return axes[-2]
    return -1


def _square_chunks(points: Points, tile_axis: int, columns: int) -> tuple[int, int]:
    """(axis, chunk): blocks of columns, or steps of the axis around the square where there may be only one block."""
    several = symbolic.less(columns, points.extents[-1]) is True
    return (tile_axis - 1, 1) if tile_axis > 0 and not several else (tile_axis + 1, columns)


def _in_squares(points: Points, tile_axis: int) -> bool:
    """Whether every element is next to its neighbour along one of the last two axes, or the same, and whole words."""
    before, last = points.variables[tile_axis], points.variables[-1]
    found = [load for value in points.values for load in scalars.loads(value)]
    beside = all(
        scalars.stride(load, last) in (0, 1)
        or (scalars.stride(load, before) == 1 and load.dtype.itemsize >= 4 and load.dtype.kind != "bool")
        for load in found
    )
    return beside and tile_axis == len(points.variables) - 2 and all(scalars.stride(p, last) == 1 for p in points.stores)


def fill(filled: Sequence[Points], views: Views, target: Target, options: ScheduleOptions) -> tuple[Statement, ...]:
    """Statements that compute points, for recipes that need a buffer before they begin."""
    result: list[Statement] = []
    for points in filled:
        merged = collapse(points, views)
        result.extend(nest(merged, decide(merged, target, options)))
    return tuple(result)


# --- nest ---------------------------------------------------------------------------------------------------------


def nest(points: Points, decision: ElementwiseDecision) -> tuple[Statement, ...]:
    """The group as loops, built from the innermost one outwards."""
    if any(extent == 0 for extent in points.extents):
        return ()
    axes = [axis for axis, variable in enumerate(points.variables) if not isinstance(variable, int)]
    statements = _element(points)
    if not axes:
        return statements
    last = axes.pop()
    loop = For(points.variables[last], points.extents[last], statements)
    if decision.squares:
        statements = _transposed(For(points.variables[axes[-1]], points.extents[axes.pop()], (loop,)), decision)
    elif decision.tile_axis >= 0:
        statements = _tile(For(points.variables[axes[-1]], points.extents[axes.pop()], (loop,)), decision)
    elif decision.chunk and decision.axis == last:
        statements = _streamed_chunks(loop, decision) if decision.streaming else _chunks(loop, decision)
    else:
        statements = _innermost(loop, decision)
    for axis in reversed(axes):
        loop = For(points.variables[axis], points.extents[axis], statements)
        statements = (_outer(loop, axis, decision),)
    return statements


def _outer(loop: For, axis: int, decision: ElementwiseDecision) -> For:
    if not decision.chunk or axis > decision.axis:
        return loop
    if axis == decision.axis and decision.chunk > 1:
        blocks = parallelize(block(loop, decision.chunk))
        return with_body(blocks, alternate(only_inner(blocks, "stream"), decision.parts)) if decision.streaming else blocks
    if axis == decision.axis:
        return parallelize(loop)
    return fuse(parallelize(loop))


def _tile(loop: For, decision: ElementwiseDecision) -> tuple[Statement, ...]:
    """for a { for b { S } }  ->  for a blocks { for b blocks { for a in block { for b in block { S } } } }

    A block reads one vector of rows, a cache line of each: few enough that they stay even if all fall into one set.
    """
    inner = only_inner(loop, "tile")
    blocked = block(with_body(loop, (block(inner, decision.width),)), TILE)
    if decision.chunk:
        blocked = parallelize(blocked)
    body = reorder(only_inner(blocked, "tile"))
    rows = only_inner(body, "tile")
    lanes = strip(only_inner(rows, "tile"), decision.width, 1)
    return (with_body(blocked, (with_body(body, (with_body(rows, lanes),)),)),)


def _transposed(loop: For, decision: ElementwiseDecision) -> tuple[Statement, ...]:
    """for a { for b { S } }  ->  for b blocks { for a blocks { squares of S } }

    Blocks follow each other along the axis that is contiguous in the source, so that its lines are used at once.
    Results that bypass the caches are gathered in a stage, from which longer pieces are written.
    """
    inner = only_inner(loop, "transpose")
    (a, rows), (b, columns) = (loop.variable, loop.extent), (inner.variable, inner.extent)
    body, whole_squares = inner.body, rows // decision.width * decision.width
    tall = min(STAGED_ROWS, whole_squares) if isinstance(whole_squares, int) else STAGED_ROWS  # of a block that is staged

    def direct(start: Dim, count: Dim, first: Dim, width: Dim) -> tuple[Statement, ...]:
        return _squares(body, (a, start, count), (b, first, width), decision.width)

    def staged(start: Dim, first: Dim) -> tuple[Statement, ...]:
        """One whole block: computed square by square along a, then written row by row."""
        stages: dict[Buffer, Buffer] = {}
        computing: list[Statement] = []
        for statement in body:
            if isinstance(statement, Store):
                shape = (tall, STAGED_COLUMNS + PADDING)
                stage = Buffer(f"{statement.buffer.name}_stage", statement.buffer.dtype, shape, "stack")
                stages[statement.buffer] = stage
                statement = Store(stage, (a - start, b - first), statement.value)
            computing.append(statement)
        squares = _squares(computing, (a, start, tall), (b, first, STAGED_COLUMNS), decision.width, along_b=False)
        writing: list[Statement] = []
        for store in body:
            if isinstance(store, Store):
                moved = replace(store, value=Load(stages[store.buffer], (a - start, b - first)), streaming=True)

                def row(i: Dim, moved: Store = moved) -> tuple[Statement, ...]:
                    return written(STAGED_COLUMNS, decision.width, lambda at: moved_to(moved, start + i, first + at))

                writing += build.loop("i", tall, row)
        return (*map(Alloc, stages.values()), *squares, *writing)

    def moved_to(store: Store, row: Dim, column: Dim) -> Store:
        (moved,) = copy((store,), {a: row, b: column})
        assert isinstance(moved, Store)
        return moved

    def block_of(number: Dim) -> tuple[Statement, ...]:
        first = lead + number * size
        width = symbolic.minimum(size, columns - first)
        if not decision.streaming or not tall:
            return direct(0, rows, first, width)
        blocks = rows // tall
        before = () if lead == 0 else (If(predicate(number, "eq", 0), direct(0, rows, 0, lead)),)
        rest = direct(blocks * tall, rows % tall, first, width)
        whole = build.loop("t", blocks, lambda t: staged(t * tall, first))
        if (columns - lead) % size == 0:
            return (*before, *whole, *rest)
        part = direct(0, blocks * tall, first, width)
        return (*before, If(predicate(width, "eq", size), whole, part), *rest)

    size = STAGED_COLUMNS if decision.streaming else TILE
    lead = _common_lead(inner) if decision.streaming and tall else 0
    kind = "parallel" if decision.chunk and decision.axis > decision.tile_axis else "serial"
    return build.loop("p", symbolic.ceildiv(columns - lead, size), block_of, kind)


def _common_lead(loop: For) -> Dim:
    """Columns before the first line of results, if that is the same in every row; else none, and lines are cut by blocks."""
    lead = _until_line(loop)
    known = all(isinstance(atom, symbolic.Opaque) for atom in symbolic.atoms(lead)) if not isinstance(lead, int) else True
    longer = symbolic.less(symbolic.bounds(lead)[1] or 0, loop.extent) is True
    return lead if known and longer else 0


def _squares(
    body: Sequence[Statement],
    rows: tuple[Dim, Dim, Dim],
    columns: tuple[Dim, Dim, Dim],
    size: int,
    along_b: bool = True,
) -> tuple[Statement, ...]:
    """The body at (variable, start, count) of rows and columns: squares, the columns that are left, then the rows."""
    (a, start, count), (b, first, width) = rows, columns

    def at(row: Dim, column: Dim) -> tuple[Statement, ...]:
        return copy(tuple(body), {a: start + row, b: first + column})

    def square(k: Dim, j: Dim) -> tuple[Statement, ...]:
        def element(v: Dim) -> tuple[Statement, ...]:
            return at(k * size + v // size, j * size + v % size)

        return build.loop("v", size * size, element, "vector", size * size)

    def lanes(row: Dim, column: Dim, extent: Dim) -> tuple[Statement, ...]:
        return build.loop("l", extent, lambda lane: at(row, column + lane), "vector", size)

    down, along = count // size, width // size
    if along_b:
        whole = build.nest(["k", "j"], [down, along], square)
    else:
        whole = build.nest(["j", "k"], [along, down], lambda j, k: square(k, j))
    return (
        *whole,
        *build.loop("i", down * size, lambda i: lanes(i, along * size, width % size)),
        *build.loop("i", count % size, lambda i: _row_of(lanes, down * size + i, width, size)),
    )


def _row_of(lanes: Callable[[Dim, Dim, Dim], tuple[Statement, ...]], row: Dim, width: Dim, size: int) -> tuple[Statement, ...]:
    vectors = build.loop("j", width // size, lambda j: lanes(row, j * size, size))
    return (*vectors, *lanes(row, width // size * size, width % size))


def _innermost(loop: For, decision: ElementwiseDecision) -> tuple[Statement, ...]:
    if not decision.streaming:
        pieces = _pieces(loop, decision.width)
        return tuple(s for each in pieces for s in strip(each, decision.width, decision.unroll, decision.interleaved))
    first, rest = peel(loop, _until_line(loop))
    return (*strip(first, decision.width), *_streamed(rest, decision))


def _pieces(loop: For, width: int) -> list[For]:
    """The loop cut where a condition on its variable changes, if it is known where: at the padding on both sides of a row, or
    where one part follows another. Then no lane asks."""
    places = sorted(_turning_points(loop)) if isinstance(loop.extent, int) and loop.extent >= 2 * width else []
    if not 0 < len(places) < MOST_PIECES:
        return [loop]
    pieces: list[For] = []
    rest, done = loop, 0
    for place in places:
        first, rest = peel(rest, place - done)
        pieces.append(first)
        done = place
    return [*pieces, rest]


def _turning_points(loop: For) -> set[int]:
    """Values of the variable from which on a comparison of indices has another outcome than before."""
    found: set[int] = set()
    for statement in walk(loop.body):
        for node in (n for value in statement_scalars(statement) for n in nodes(value)):
            match node:
                case Apply(function, (IndexValue(left), IndexValue(right))) if function.name in ("lt", "le", "ge"):
                    step = scalars.index_coefficient(left - right, loop.variable)
                    if step not in (1, -1):
                        continue
                    start = -step * symbolic.substitute(left - right, {loop.variable: 0})  # type: ignore[dict-item]
                    later = (function.name == "le") == (step == 1)
                    if isinstance(start, int) and isinstance(loop.extent, int) and 0 < start + later < loop.extent:
                        found.add(start + later)
                case _:
                    pass
    return found


def _chunks(loop: For, decision: ElementwiseDecision) -> tuple[Statement, ...]:
    blocks = parallelize(block(loop, decision.chunk))
    return (with_body(blocks, _innermost(only_inner(blocks, "strip"), decision)),)


def _streamed_chunks(loop: For, decision: ElementwiseDecision) -> tuple[Statement, ...]:
    """Chunks that begin where a line of the result does. The first elements, up to where the first line begins, belong to
    the first chunk and are stored as usual: a line that is stored past the caches in two parts is written to memory twice."""
    first, rest = peel(loop, _until_line(loop))

    def chunk(number: Dim) -> tuple[Statement, ...]:
        start = number * decision.chunk
        count = symbolic.maximum(0, symbolic.minimum(decision.chunk, rest.extent - start))
        place = symbolic.Variable(name_of(loop), 0, count - 1)
        inner = For(place, count, copy(rest.body, {rest.variable: start + place}))
        before = copy(strip(first, decision.width))
        return (If(predicate(number, "eq", 0), before), *_streamed(inner, decision, decision.parts))

    number = symbolic.Variable("chunk", 0, symbolic.ceildiv(loop.extent, decision.chunk) - 1)
    return (For(number, symbolic.ceildiv(loop.extent, decision.chunk), chunk(number), "parallel"),)


def _streamed(loop: For, decision: ElementwiseDecision, parts: int = 1) -> tuple[Statement, ...]:
    """for v { y[v] = f(v) }  ->  for blocks of v { for v in block { past the caches: y[v] = f(v) } }

    Several registers are computed and then stored at once, so that a line is completed in the buffer that collects it:
    a processor has few of them. What is loaded is asked for in advance, and from the parts of a chunk in turn: several
    series of addresses arrive faster than one.
    """
    blocked, rest = split(loop, decision.run)
    result: tuple[Statement, ...] = ()
    if blocked is not None:
        inner = only_inner(blocked, "stream")
        passing = with_body(inner, [replace(s, streaming=True) if isinstance(s, Store) else s for s in inner.body])
        computed = simplify(strip(passing, decision.width, decision.unroll, interleaved=True))
        result = fetched_ahead((with_body(blocked, computed),), further(decision.ahead), decision.locality)
        if parts > 1:
            (blocked,) = result
            assert isinstance(blocked, For)
            result = alternate(blocked, parts)
    return (*result, *strip(rest, decision.width, decision.unroll)) if rest is not None else result


def _until_line(loop: For) -> Dim:
    """Iterations before the one that stores the beginning of a line."""
    store = next(s for s in walk(loop.body) if isinstance(s, Store))
    place = scalars.substitute(Load(store.buffer, store.index), {loop.variable: 0})
    assert isinstance(place, Load)
    return scalars.until_line(place, LINE_BYTES)


def _large_operands(points: Points) -> int:
    """How many buffers are read that are as large as what is stored."""
    size = {symbolic.product(store.buffer.shape) for store in points.stores}
    found = {load.buffer for value in points.values for load in scalars.loads(value)}
    return sum(symbolic.product(buffer.shape) in size for buffer in found)


def written(count: int, width: int, element: Callable[[Dim], Store]) -> tuple[Statement, ...]:
    """Stores past the caches, several whole lines at a time."""
    first = element(0)
    lead = symbolic.minimum(scalars.until_line(Load(first.buffer, first.index), LINE_BYTES), count)

    def passing(at: Dim, _: Dim) -> list[Statement]:
        return [element(at)]

    def plain(at: Dim, _: Dim) -> list[Statement]:
        return [replace(element(at), streaming=False)]

    return (
        *lanes.lane_loops(lead, width, 1, plain),
        *lanes.lane_loops(count - lead, width, WRITTEN // width, passing, lead, interleaved=True),
    )


def _element(points: Points) -> tuple[Statement, ...]:
    """All values, then all stores."""
    pairs = list(zip(points.stores, points.values, strict=True))
    if len(pairs) == 1:
        ((place, value),) = pairs
        return (Store(place.buffer, place.index, value),)
    lets = [Let(Local(place.buffer.name, value.dtype), value) for place, value in pairs]
    stores = [Store(p.buffer, p.index, Read(let.local)) for (p, _), let in zip(pairs, lets, strict=True)]
    return (*lets, *stores)
