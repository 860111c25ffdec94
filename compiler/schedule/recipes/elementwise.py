"""Kernels without reductions: every element of every definition from elements of inputs.

Definitions over one shape share a nest (a group); groups of different shapes become sections of one parallel
loop. Axes that memory does not tell apart are merged, the last one becomes vectors, and the leading ones are cut
into chunks of a size that depends on shapes only.

At each point all values are computed before any is stored, so an output may overwrite an input that is read at
the same point only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import loops
from ingot.compiler.ir.loops import Alloc, For, Let, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.schedule import build, partition, scalars
from ingot.compiler.schedule.collapse import Points, Views, collapse
from ingot.compiler.schedule.primitives import (
    alternate,
    block,
    fetched_ahead,
    fuse,
    join,
    only_inner,
    parallelize,
    reorder,
    simplify,
    split,
    strip,
)
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.statements import copy, with_body
from ingot.compiler.target import Target

TILE = 16  # steps of a transpose block along the axis that is contiguous in the source: a cache line
STAGE = 256  # elements that wait for their turn to be stored past the caches
WRITTEN = 64  # of them that are stored at once: few enough lines that each is completed in its buffer
AHEAD = 2048  # bytes between what is computed and what is fetched
STREAMED_CHUNK = 512 << 10  # bytes that one thread reads and writes at a time when results bypass the caches
UNROLL = 4  # vectors at a time
CHEAP = 6  # cost of an element from which on their instructions take turns: the latency of one hides behind the others


@dataclass(frozen=True)
class ElementwiseDecision:
    """How one group is computed."""

    width: int  # lanes
    unroll: int  # vectors per iteration of the innermost loop
    interleaved: bool  # whether these are one vector of several registers
    axis: int  # merged axis that is cut into chunks
    chunk: int  # steps of that axis in a chunk; 0: one chunk holds everything
    tile_axis: int = -1  # axis along which some operand is contiguous while the last one is not; -1: none
    streaming: bool = False  # stores bypass the caches


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
        points = collapse(group, views)
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
    types = [node.dtype for value in (*points.stores, *points.values) for node in scalars.nodes(value)]
    widest = max((dtype.compute.itemsize for dtype in types), default=4)
    width = max(1, target.vector_bytes // widest)
    cost = sum(scalars.cost(value) for value in points.values)
    tile_axis = _tile_axis(points)
    streaming = options.leaving and tile_axis < 0 and streams(points, target)
    axis, chunk = -1, 0
    if options.parallel and points.extents:
        units = [1] * (len(points.extents) - 1) + [STAGE if streaming else width * UNROLL]
        weight = partition.weight_of(points.stores, points.values, computing=not streaming)
        cut = partition.cut(points.extents, weight, units, chunk=STREAMED_CHUNK if streaming else None)
        axis, chunk = (cut.axis, cut.block) if cut is not None else (-1, 0)
        if chunk and tile_axis >= 0:
            axis, chunk = tile_axis, TILE
    return ElementwiseDecision(width, UNROLL, cost > CHEAP, axis, chunk, tile_axis, streaming)


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
    if decision.tile_axis >= 0:
        statements = _tile(For(points.variables[axes[-1]], points.extents[axes.pop()], (loop,)), decision)
    elif decision.chunk and decision.axis == last:
        blocks = parallelize(block(loop, decision.chunk))
        statements = (with_body(blocks, _innermost(only_inner(blocks, "strip"), decision, chunked=True)),)
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
        return with_body(blocks, (alternate(only_inner(blocks, "stream")),)) if decision.streaming else blocks
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


def _innermost(loop: For, decision: ElementwiseDecision, chunked: bool = False) -> tuple[Statement, ...]:
    if not decision.streaming:
        return strip(loop, decision.width, decision.unroll, decision.interleaved)
    return _streamed(loop, decision, chunked)


def _streamed(loop: For, decision: ElementwiseDecision, chunked: bool) -> tuple[Statement, ...]:
    """for v { y[v] = f(v) }  ->  for blocks of v { for v in block { stage[v] = f(v) } for v in block { y[v] = stage[v] } }

    Stores past the caches are written in one go for each output: a processor has few buffers that collect them, and
    a load whose address has the low bits of one that is still on its way waits for it. What is loaded is asked for in
    advance, and from both halves of a chunk in turn: two series of addresses arrive faster than one.
    """
    blocked, rest = split(loop, STAGE)
    result: tuple[Statement, ...] = ()
    if blocked is not None:
        staged = _staged(blocked, decision)
        result = (alternate(staged) if chunked else staged,)
    return (*result, *strip(rest, decision.width, decision.unroll)) if rest is not None else result


def _staged(blocked: For, decision: ElementwiseDecision) -> For:
    """Blocks of a constant length, each computed into a stage and written from there."""
    inner = only_inner(blocked, "stream")
    stages: list[Buffer] = []
    computing: list[Statement] = []
    writing: list[Statement] = []
    for statement in inner.body:
        if not isinstance(statement, Store):
            computing.append(statement)
            continue
        stage = Buffer(f"{statement.buffer.name}_stage", statement.buffer.dtype, (STAGE,), "stack")
        stages.append(stage)
        computing.append(Store(stage, (inner.variable,), statement.value))
        writing.extend(written(STAGE, lambda at, statement=statement, stage=stage: _moved(statement, stage, at, inner)))
    computed = strip(with_body(inner, tuple(computing)), decision.width, decision.unroll, decision.interleaved)
    return with_body(blocked, (*map(Alloc, stages), *fetched_ahead(computed, _ahead), *writing))


def _ahead(load: Load) -> Load:
    return Load(load.buffer, (*load.index[:-1], load.index[-1] + AHEAD // load.dtype.itemsize))


def _moved(store: Store, stage: Buffer, at: Dim, inner: For) -> tuple[Statement, ...]:
    """The store at a place of the block, from the stage and past the caches."""
    return copy((replace(store, value=Load(stage, (inner.variable,)), streaming=True),), {inner.variable: at})


def written(count: int, element: build.Body) -> tuple[Statement, ...]:
    """Stores past the caches, several whole lines at a time."""

    def lines(w: Dim) -> tuple[Statement, ...]:
        return build.loop("l", WRITTEN, lambda lane: element(w * WRITTEN + lane), "vector", WRITTEN)

    return build.loop("w", count // WRITTEN, lines)


def _element(points: Points) -> tuple[Statement, ...]:
    """All values, then all stores."""
    pairs = list(zip(points.stores, points.values, strict=True))
    if len(pairs) == 1:
        ((place, value),) = pairs
        return (Store(place.buffer, place.index, value),)
    lets = [Let(Local(place.buffer.name, value.dtype), value) for place, value in pairs]
    stores = [Store(p.buffer, p.index, Read(let.local)) for (p, _), let in zip(pairs, lets, strict=True)]
    return (*lets, *stores)
