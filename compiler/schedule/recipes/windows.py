"""Windows that slide along an axis: depthwise convolution and pooling, with vectors along the channels.

    y[n, y, x, c] = combine(r, s: body(n, y*stride + r - low, x*stride + s - low, c));  then everything elementwise

A block of neighbouring results (pixels times vectors of channels) stays in registers while the taps run; neighbours
read the same elements, which are loaded once. Taps in the padding are not computed at all: along the axis of the
pixels it is known which they are, because the blocks at both ends are code of their own; along the other axes
the loops over the taps start late and end early.

Invariant: a result combines its taps in order, wherever it stands in a block.
Non-goals: large windows (global pooling is a reduction like others), windows along the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Alloc, If, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Apply, Buffer, Const, IndexValue, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.schedule import build, partition, scalars, tile
from ingot.compiler.schedule.form import Accumulation, ReductionForm, in_place_pairs, reduction_form
from ingot.compiler.schedule.primitives import simplify
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

MOST_TAPS = 64
SUMS = 8  # independent accumulators that hide the latency of an addition
LEAST_BLOCKS = 8  # blocks of rows to divide among threads; twice the cores if these are more
UNROLLED_STEPS = 64  # vector operations of a block that are written out instead of looping over taps
HINTED_TAPS = 16  # of windows that compute so little that reading takes a part of their time


@dataclass(frozen=True)
class WindowDecision:
    width: int  # lanes
    pixels: int  # results of a block along the axis of the windows
    vectors: int  # vectors of channels of a block
    unrolled: bool  # all taps are written out
    group: int  # channels that are gone through row after row, so that rows are near when the next windows need them
    strip: int  # blocks of results side by side that are gone through row after row, for the same reason
    axis: int = -1  # outer axis that is cut for threads
    block: int = 0  # its steps in a block
    hints: bool = False  # the next vector of channels is asked for while this one is computed; not where lines are whole


@dataclass(frozen=True)
class Taps:
    """A reduction whose body is guarded: it counts where all conditions hold."""

    form: ReductionForm
    accumulation: Accumulation
    body: Scalar
    conditions: tuple[Scalar, ...]
    pixel: Dim  # the kept axis that windows slide along, next to the channels
    fixed: tuple[int, ...]  # reduced axes along it: written out
    moving: tuple[int, ...]  # other reduced axes: loops


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    form = reduction_form(kernel)
    taps = None if form is None else classify(form)
    if form is None or taps is None:
        return None
    decision = replace(decide(taps, target, options), **options.decisions)
    body = simplify(WindowNest(taps, decision, target).statements())
    parameters = (*kernel.inputs, *kernel.outputs)
    function = loops.Function(kernel.name, parameters, form.views.declared(body))
    reason = "windows slide over whole vectors of channels"
    return Scheduled(function, "windows", asdict(decision), reason, (), in_place_pairs(kernel))


# --- form -----------------------------------------------------------------------------------------------------


def classify(form: ReductionForm) -> Taps | None:
    if len(form.accumulations) != 1 or len(form.kept) < 2 or not form.reduced:
        return None
    (accumulation,) = form.accumulations
    constant = all(isinstance(e, int) for e in (*form.reduced_extents, *form.kept_extents[-2:]))
    if not constant or symbolic.less_equal(symbolic.product(form.reduced_extents), MOST_TAPS) is not True:
        return None
    lane, pixel = form.kept[-1], form.kept[-2]
    loads = scalars.loads(accumulation.body)
    strides = [scalars.stride(load, lane) for load in loads]
    if not strides or any(step not in (0, 1) for step in strides) or 1 not in strides:
        return None
    fixed = tuple(n for n, r in enumerate(form.reduced) if any(_side_by_side(load, pixel, r) for load in loads))
    if not fixed:
        return None
    conditions, body = guarded(accumulation)
    if any(scalars.depends_on(condition, lane) for condition in conditions):
        return None
    moving = tuple(n for n in range(len(form.reduced)) if n not in fixed)
    return Taps(form, accumulation, body, conditions, pixel, fixed, moving)


def _side_by_side(load: Load, kept: Dim, reduced: Dim) -> bool:
    """Whether one index of the load has both variables: a window along that axis."""
    return any(kept in symbolic.atoms(index) and reduced in symbolic.atoms(index) for index in load.index)


def guarded(accumulation: Accumulation) -> tuple[tuple[Scalar, ...], Scalar]:
    """(conditions, body): what is accumulated where the conditions hold; elsewhere it changes nothing."""
    body = accumulation.body
    match body:
        case Apply(function, (condition, chosen, Const() as other)) if function.name == "select":
            if other == accumulation.neutral:
                return tuple(_conjuncts(condition)), chosen
        case Apply(function, (left, right)) if function.name == "mul" and accumulation.combiner == "sum":
            for factor, rest in ((left, right), (right, left)):
                found = _chosen_or_zero(factor)
                if found is not None:
                    condition, chosen = found
                    pair = (chosen, rest) if factor is left else (rest, chosen)
                    return tuple(_conjuncts(condition)), ir.apply("mul", *pair)
        case _:
            pass
    return (), body


def _chosen_or_zero(factor: Scalar) -> tuple[Scalar, Scalar] | None:
    match factor:
        case Apply(function, (condition, chosen, Const(value))) if function.name == "select" and value == 0:
            return condition, chosen
        case _:
            return None


def _conjuncts(condition: Scalar) -> Iterator[Scalar]:
    match condition:
        case Apply(function, (left, right)) if function.name == "and":
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield condition


# --- decision -------------------------------------------------------------------------------------------------


def decide(taps: Taps, target: Target, options: ScheduleOptions) -> WindowDecision:
    form = taps.form
    width = _lanes(taps, target)
    extent, channels = form.kept_extents[-2:]
    assert isinstance(extent, int)
    assert isinstance(channels, int)
    vectors = 1
    pixels = -(-extent // -(-extent // SUMS))  # blocks of equal length
    count = symbolic.product(form.reduced_extents)
    assert isinstance(count, int)
    free = not any(_mentions_any(c, _reduced(taps, taps.moving)) for c in taps.conditions)
    unrolled = free and count * pixels * vectors <= UNROLLED_STEPS
    axis, block = -1, 0
    if options.parallel and len(form.kept) > 2:
        weight = count * partition.weight_of([], [taps.body]) * extent * channels
        cut = partition.cut(form.kept_extents[:-2], weight)
        axis, block = (cut.axis, _taller(form.kept_extents[cut.axis], cut.block, target)) if cut else (-1, 0)
    group, strip = _near(taps, pixels, vectors * width, target)
    hints = count <= HINTED_TAPS and group > vectors * width and strip * pixels < extent
    return WindowDecision(width, pixels, vectors, unrolled, group, strip, axis, block, hints)


def _taller(extent: Dim, block: int, target: Target) -> int:
    """Rows of a block, as many as leave enough blocks to the threads: neighbouring rows read the same elements."""
    if not isinstance(extent, int):
        return block
    return max(block, partition.balanced(extent, -(-extent // max(LEAST_BLOCKS, 2 * target.cores))))


def _near(taps: Taps, pixels: int, unit: int, target: Target) -> tuple[int, int]:
    """(group, strip): channels and blocks for which all rows that a line of results reads stay in half of the first cache,
    so that each is fetched once and not by every line that reads it. All channels of an image that the second cache does
    not nearly hold, and whole lines of it if their rows are little more than the first cache holds: memory farther away
    is best read in order."""
    form = taps.form
    extent, channels = form.kept_extents[-2:]
    rows = symbolic.product(form.reduced_extents[n] for n in taps.moving)
    assert isinstance(extent, int)
    assert isinstance(channels, int)
    assert isinstance(rows, int)
    blocks = -(-extent // pixels)
    read = _read(taps)
    if rows == 1 or not read:
        return channels, blocks
    room = target.l1_bytes // 2

    def bytes_of(count: int) -> int:
        """Of one channel in all rows, for so many blocks side by side."""
        return rows * sum(_reach(taps, load, count * pixels) * load.dtype.itemsize for load in read)

    images = (symbolic.product(load.buffer.shape[-3:]) * load.dtype.itemsize for load in read)
    group = channels
    if all(symbolic.less_equal(image, 2 * target.l2_bytes) is True for image in images):
        groups = -(-channels // max(unit, room // bytes_of(1) // unit * unit))
        group = min(channels, -(-channels // (groups * unit)) * unit)
    elif bytes_of(blocks) * channels <= 2 * target.l1_bytes:
        return channels, blocks
    return group, next((n for n in range(blocks, 0, -1) if bytes_of(n) * group <= room), 1)


def _read(taps: Taps) -> list[Load]:
    """What windows slide over, in whole vectors."""
    return [
        load
        for load in dict.fromkeys(scalars.loads(taps.body))
        if scalars.stride(load, taps.form.kept[-1]) == 1 and scalars.depends_on(load, taps.pixel)
    ]


def _reach(taps: Taps, load: Load, pixels: int) -> int:
    """Elements along the axis of the windows that so many results side by side read."""
    form = taps.form
    reach = 1
    steps = [(taps.pixel, pixels), *((form.reduced[n], form.reduced_extents[n]) for n in taps.fixed)]
    for index in load.index:
        if taps.pixel in symbolic.atoms(index):
            for variable, count in steps:
                step = scalars.index_coefficient(index, variable)
                reach += (_known(count) - 1) * abs(step) if isinstance(step, int) else _known(count) - 1
    return reach


def _known(extent: Dim) -> int:
    return extent if isinstance(extent, int) else 1 << 16


def _lanes(taps: Taps, target: Target) -> int:
    """Lanes of a vector of the widest type that is computed with; indices are no part of that."""
    values = [taps.body, *(final.value for final in taps.form.finals)]
    kinds = [n.dtype.compute for value in values for n in nodes(value) if not isinstance(n, IndexValue)]
    return max(1, target.vector_bytes // max((kind.itemsize for kind in kinds), default=4))


def _reduced(taps: Taps, axes: Sequence[int]) -> list[Dim]:
    return [taps.form.reduced[n] for n in axes]


def _mentions_any(value: Scalar, variables: Sequence[Dim]) -> bool:
    return any(scalars.depends_on(value, variable) for variable in variables)


# --- loops ----------------------------------------------------------------------------------------------------

Index = Mapping[Dim, Dim]


@dataclass(frozen=True)
class Run:
    """Blocks side by side along the axis of the windows, each of so many pixels."""

    start: Dim
    blocks: int
    pixels: int


Strip = Sequence[Run]  # what is computed of a row before the next row


class WindowNest:
    def __init__(self, taps: Taps, decision: WindowDecision, target: Target) -> None:
        self.taps = taps
        self.form = taps.form
        self.decision = decision
        self.target = target
        self.lane = self.form.kept[-1]
        self.extent, self.channels = (int(e) for e in self.form.kept_extents[-2:])  # type: ignore[arg-type]

    def statements(self) -> tuple[Statement, ...]:
        outer = self.form.kept_extents[:-2]
        if any(extent == 0 for extent in self.form.kept_extents):
            return ()
        axis, steps = self.decision.axis, self.decision.block
        cut = partition.Cut(axis, steps) if axis >= 0 else None

        def rows(ranges: partition.Ranges, group: tile.Piece) -> tuple[Statement, ...]:
            def down(strip: Strip) -> tuple[Statement, ...]:
                def line(*steps: Dim) -> tuple[Statement, ...]:
                    places = [part.start + step for part, step in zip(ranges, steps, strict=True)]
                    return self._line(dict(zip(self.form.kept, places, strict=False)), group, strip)

                return build.nest([f"o{n}" for n in range(len(outer))], [part.count for part in ranges], line)

            return self._strips(down)

        def block(ranges: partition.Ranges) -> tuple[Statement, ...]:
            result: list[Statement] = []
            for piece in tile.cover(self.channels, (self.decision.group,)).pieces:

                def group(number: Dim, piece: tile.Piece = piece) -> tuple[Statement, ...]:
                    return rows(ranges, tile.Piece(piece.start + number * piece.size, 1, piece.size))

                result += build.loop("g", piece.count, group)
            return tuple(result)

        return partition.blocks(outer, cut, block)

    def _strips(self, down: Callable[[Strip], Sequence[Statement]]) -> tuple[Statement, ...]:
        """All results along the axis of the windows, `down` for each strip of them: the blocks at the low end, strips of
        those between the ends, the blocks at the high end and what is left."""
        size = self.decision.pixels
        count, rest = divmod(self.extent, size)
        low, high = self._ends(count)
        first = [Run(n * size, 1, size) for n in range(low)]
        last = [Run(n * size, 1, size) for n in range(high, count)] + ([Run(count * size, 1, rest)] if rest else [])
        if self.decision.strip >= count:
            return tuple(down([*first, Run(low * size, high - low, size), *last]))
        blocks = max((n for n in range(1, self.decision.strip + 1) if (high - low) % n == 0), default=1)

        def between(number: Dim) -> Sequence[Statement]:
            return down([Run((low + number * blocks) * size, blocks, size)])

        return (
            *(down(first) if first else ()),
            *build.loop("s", (high - low) // blocks, between),
            *(down(last) if last else ()),
        )

    def _line(self, index: Index, group: tile.Piece, strip: Strip) -> tuple[Statement, ...]:
        """The results of a strip in one row."""
        result: list[Statement] = []
        for run in strip:

            def one(n: Dim, run: Run = run) -> tuple[Statement, ...]:
                return self._block(index, group, run.start + n * run.pixels, run.pixels)

            result += build.loop("x", run.blocks, one)
        return tuple(result)

    def _ends(self, count: int) -> tuple[int, int]:
        """(low, high): in blocks from low to high - 1 all taps along the axis exist, as far as can be told."""
        if self._is_inside(0, count):
            return 0, count
        for border in range(1, (count + 1) // 2):
            if self._is_inside(border, count - border):
                return border, count - border
        return 0, count

    def _is_inside(self, low: int, high: int) -> bool:
        """Whether all conditions along the axis hold in the blocks from low to high - 1."""
        size = self.decision.pixels
        if high <= low:
            return True
        place = symbolic.Variable("x", low * size, high * size - 1)
        along = (self.taps.pixel, *_reduced(self.taps, self.taps.fixed))
        conditions = [c for c in self.taps.conditions if _mentions_any(c, along)]
        return all(
            isinstance(decided, Const) and bool(decided.value)
            for condition in conditions
            for decided in (scalars.substitute(condition, {self.taps.pixel: place}),)
        )

    def _block(self, index: Index, group: tile.Piece, first: Dim, pixels: int) -> tuple[Statement, ...]:
        """Some results for all channels of a group."""
        size = self.decision.vectors * self.decision.width
        result: list[Statement] = []
        for piece in tile.cover(group.size, (size, self.decision.width), masked=True).pieces:

            def one(j: Dim, piece: tile.Piece = piece) -> tuple[Statement, ...]:
                channel = group.start + piece.start + j * piece.size
                each = tile.Tile(
                    index, self.taps.pixel, first, pixels, self.lane, channel, piece.size, self.decision.width
                )
                return self._tile(each)

            result += build.loop("c", piece.count, one)
        return tuple(result)

    def _tile(self, each: tile.Tile) -> tuple[Statement, ...]:
        sums = each.register(self.taps.accumulation.mark.name, self.taps.accumulation)
        return (
            *(self._ask_ahead(each) if self.decision.hints else ()),
            Alloc(sums),
            *tile.clear(each, [sums], self.form),
            *self._moving(each, sums),
            *tile.finish(each, [sums], self.form),
        )

    def _ask_ahead(self, each: tile.Tile) -> tuple[Statement, ...]:
        """Hints at what the next vector of channels reads for the first time: a line of each of many pixels, which no
        hardware foresees. Rows that the line of results before has read as well are near already."""
        asked: dict[Load, None] = {}
        axes = (*self.taps.moving, *self.taps.fixed)
        for load in _read(self.taps):
            starts = [self._first_new(load, n) for n in self.taps.moving[-1:]]
            extents = [self.form.reduced_extents[n] for n in axes]
            for place in _points(extents):
                if any(place[len(self.taps.moving) - 1] < start for start in starts):
                    continue
                tap = dict(zip(_reduced(self.taps, axes), place, strict=True))
                for pixel in range(each.rows):
                    found = scalars.substitute(load, {**each.at(pixel, each.lanes), **tap})
                    assert isinstance(found, Load)
                    asked[found] = None
        return tuple(Prefetch(load.buffer, load.index) for load in asked)

    def _first_new(self, load: Load, axis: int) -> int:
        """The first tap along a moving axis that the windows of the line before did not reach."""
        variable, extent = self.form.reduced[axis], self.form.reduced_extents[axis]
        assert isinstance(extent, int)
        for index in load.index:
            apart = scalars.index_coefficient(index, variable)
            steps = [scalars.index_coefficient(index, kept) for kept in self.form.kept[:-2]]
            stride = sum(step for step in steps if isinstance(step, int))
            if isinstance(apart, int) and apart > 0 and stride > 0:
                return max(0, extent - -(-stride // apart))
        return 0

    # --- taps ---------------------------------------------------------------------------------------------------

    def _moving(self, each: tile.Tile, sums: Buffer) -> tuple[Statement, ...]:
        """Loops over the taps across the axis, from the first that exists to the last."""
        conditions = [scalars.substitute(c, each.index) for c in self.taps.conditions]
        starts: list[Dim] = []
        counts: list[Dim] = []
        variables = _reduced(self.taps, self.taps.moving)
        for n, variable in zip(self.taps.moving, variables, strict=True):
            start, stop = 0, self.form.reduced_extents[n]
            kept: list[Scalar] = []
            for condition in conditions:
                bound = _bound(condition, variable)
                if bound is None:
                    kept.append(condition)
                elif bound[0] == "from":
                    start = symbolic.maximum(start, bound[1])
                else:
                    stop = symbolic.minimum(stop, bound[1])
            conditions = kept
            starts.append(start)
            counts.append(stop - start)

        def point(*steps: Dim) -> tuple[Statement, ...]:
            at = {v: start + step for v, start, step in zip(variables, starts, steps, strict=True)}
            return self._fixed(each, sums, at, conditions)

        names = [f"r{n}" for n in range(len(variables))]
        if not self.decision.unrolled:
            return build.nest(names, counts, point)
        nest: tuple[Statement, ...] = build.nest(names, counts, point, "unrolled")
        return nest

    def _fixed(
        self, each: tile.Tile, sums: Buffer, at: Index, conditions: Sequence[Scalar]
    ) -> tuple[Statement, ...]:
        """The taps along the axis, written out: all that exist, for each result in turn."""
        result: list[Statement] = []
        axes = self.taps.fixed
        for place in _points([self.form.reduced_extents[n] for n in axes]):
            tap = {**at, **dict(zip(_reduced(self.taps, axes), place, strict=True))}
            for pixel in range(each.rows):
                result += self._step(each, sums, tap, pixel, conditions)
        return tuple(result)

    def _step(
        self, each: tile.Tile, sums: Buffer, tap: Index, pixel: int, conditions: Sequence[Scalar]
    ) -> tuple[Statement, ...]:
        """sums[pixel] (+)= body at a tap"""
        known = {**tap, self.taps.pixel: each.row + pixel}
        exists = ir.both(*(scalars.substitute(c, known) for c in conditions))
        if isinstance(exists, Const) and not exists.value:
            return ()

        def element(r: Dim, lane: Dim) -> list[Statement]:
            body = scalars.substitute(self.taps.body, {**each.at(pixel, lane), **tap})
            total = build.combine(self.taps.accumulation.combiner, Load(sums, (pixel, lane)), body, self.target)
            return [Store(sums, (pixel, lane), total)]

        statements = tile.spread(1, each.lanes, each.width, element)
        return statements if isinstance(exists, Const) else (If(exists, statements),)


def _points(extents: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
    if not extents:
        yield ()
        return
    first, *others = extents
    assert isinstance(first, int)
    for place in range(first):
        for rest in _points(others):
            yield (place, *rest)


def _bound(condition: Scalar, variable: Dim) -> tuple[str, Dim] | None:
    """("from" or "to", place) when the condition says where the variable starts or stops; None if it says more."""
    match condition:
        case Apply(function, (IndexValue(left), IndexValue(right))):
            step = scalars.index_coefficient(left, variable)
            if not isinstance(step, int) or step <= 0 or variable in symbolic.atoms(right):
                return None
            rest = right - symbolic.substitute(left, {variable: 0})  # type: ignore[dict-item]
            if function.name == "ge":
                return "from", symbolic.ceildiv(rest, step)
            if function.name == "lt":
                return "to", symbolic.ceildiv(rest, step)
    return None
