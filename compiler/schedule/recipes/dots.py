"""Gradients of the weights of few channels: sums over pixels, with vectors along the rows of pixels.

    w[o, r, s] = sum(n, y, x: g[n, o, y, x] * image[n, y + r, x + s])

Neither channels nor taps fill a vector there; pixels do. A tile of results (some o, all s), each a vector of partial
sums, stays in registers while the pixels of an image run; both operands are read along their rows. What an image adds
waits in memory, lane by lane, and the lanes are added at the end.

Invariant: the order in which one result is accumulated depends on the reduced extents and the width only; images are
added one after another, so it is the same for any number of them, known or not.
Non-goals: other products of operands that are stored along the sum, where columns fill vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Alloc, Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import build, lanes, partition, scalars, tile
from ingot.compiler.schedule.form import ReductionForm, in_place_pairs, reduction_form
from ingot.compiler.schedule.padding import without_padding
from ingot.compiler.schedule.primitives import simplify
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

CHAIN = 256  # additions to one lane of a sum before it is added to the others
WELL_FILLED = 1.5  # times as full as with columns must vectors along the sum be


@dataclass(frozen=True)
class Dots:
    """Where the rows and columns of a tile are among the kept axes, and how many reduced axes are images."""

    form: ReductionForm
    row_axis: int
    images: int  # leading reduced axes along which nothing slides


@dataclass(frozen=True)
class DotDecision:
    width: int  # lanes
    rows: int  # results of a tile along the row axis
    columns: int  # and along the last
    axis: int = -1  # other kept axis that is cut for threads
    block: int = 0  # its steps in a block


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    form = reduction_form(kernel)
    if form is None or not _is_product(form):
        return None
    form, padding = without_padding(form)
    found = classify(form, target)
    if found is None:
        return None
    decision = decide(found, target, options)
    fill = elementwise.fill([each.points for each in padding], form.views, target, options)
    body = simplify((*fill, *DotNest(found, decision, target).statements()))
    scratch = tuple(each.buffer for each in padding)
    parameters = (*kernel.inputs, *kernel.outputs, *scratch)
    function = loops.Function(kernel.name, parameters, form.views.declared(body))
    reason = "sums over rows of pixels, which fill vectors"
    return Scheduled(function, "dots", asdict(decision), reason, scratch, in_place_pairs(kernel))


def _is_product(form: ReductionForm) -> bool:
    if len(form.accumulations) != 1 or len(form.kept) < 2 or len(form.reduced) < 2:
        return False
    (accumulation,) = form.accumulations
    body = accumulation.body
    product = isinstance(body, Apply) and body.function.name == "mul"
    return accumulation.combiner == "sum" and accumulation.dtype.is_float and product


def classify(form: ReductionForm, target: Target) -> Dots | None:
    (accumulation,) = form.accumulations
    assert isinstance(accumulation.body, Apply)
    column, pixel = form.kept[-1], form.reduced[-1]
    left, right = accumulation.body.args
    if scalars.depends_on(left, column):
        left, right = right, left
    for operand in (left, right):
        if not isinstance(operand, Load) or operand.dtype != accumulation.dtype or scalars.stride(operand, pixel) != 1:
            return None
    assert isinstance(right, Load)
    if scalars.depends_on(left, column) or not _slides(right, pixel, (column,)):
        return None
    rows = [n for n, v in enumerate(form.kept[:-1]) if scalars.depends_on(left, v) and not scalars.depends_on(right, v)]
    known = (*form.kept_extents, form.reduced_extents[-1])
    if not rows or not all(isinstance(extent, int) and extent > 0 for extent in known):
        return None
    if not _fills_better(form, target.lanes(accumulation.dtype.itemsize)):
        return None
    images = next(n for n, v in enumerate(form.reduced) if _slides(right, v, form.kept))
    constant = all(isinstance(extent, int) for extent in form.reduced_extents[images:])
    return Dots(form, rows[-1], images) if constant else None


def _slides(load: Load, reduced: Dim, kept: Sequence[Dim]) -> bool:
    """Whether one index of the load has the variable and one of the kept ones: a window along that axis."""
    return any(reduced in symbolic.atoms(i) and any(v in symbolic.atoms(i) for v in kept) for i in load.index)


def _fills_better(form: ReductionForm, width: int) -> bool:
    columns, pixels = form.kept_extents[-1], form.reduced_extents[-1]
    assert isinstance(columns, int)
    assert isinstance(pixels, int)
    return pixels / (-(-pixels // width)) >= WELL_FILLED * columns / (-(-columns // width))


def decide(found: Dots, target: Target, options: ScheduleOptions) -> DotDecision:
    form = found.form
    width = target.lanes(form.accumulations[0].dtype.itemsize)
    rows, columns = form.kept_extents[found.row_axis], form.kept_extents[-1]
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    columns = -(-columns // -(-columns // (target.vector_registers // 4)))
    most = max(1, (target.vector_registers - 1) // (columns + 1))  # sums, a vector of each row, one of a column
    rows = -(-rows // -(-rows // most))
    axis, block = -1, 0
    outer = _outer(found)
    if options.parallel and outer:
        work = partition.estimate(symbolic.product((*form.reduced_extents, *form.kept_extents))) * 4
        each = work // max(1, partition.estimate(symbolic.product(extent for _, extent in outer)))
        cut = partition.cut([extent for _, extent in outer], each)
        axis, block = (cut.axis, cut.block) if cut else (-1, 0)
    return DotDecision(width, rows, columns, axis, block)


def _outer(found: Dots) -> list[tuple[Dim, Dim]]:
    """(variable, extent) of the kept axes that are no part of a tile."""
    form = found.form
    every = list(zip(form.kept, form.kept_extents, strict=True))[:-1]
    return [pair for n, pair in enumerate(every) if n != found.row_axis]


class DotNest:
    def __init__(self, found: Dots, decision: DotDecision, target: Target) -> None:
        self.form = found.form
        self.found = found
        self.decision = decision
        self.target = target
        self.accumulation = found.form.accumulations[0]

    def statements(self) -> tuple[Statement, ...]:
        outer = _outer(self.found)
        axis = self.decision.axis
        cut = partition.Cut(axis, self.decision.block) if axis >= 0 else None
        rows, columns = self.form.kept_extents[self.found.row_axis], self.form.kept_extents[-1]

        def block(ranges: partition.Ranges) -> tuple[Statement, ...]:
            def point(*steps: Dim) -> tuple[Statement, ...]:
                places = [part.start + step for part, step in zip(ranges, steps, strict=True)]
                index = {variable: place for (variable, _), place in zip(outer, places, strict=True)}
                result: list[Statement] = []
                for down in tile.cover(rows, (self.decision.rows, 1)).pieces:
                    for along in tile.cover(columns, (self.decision.columns, 1)).pieces:
                        result += self._tiles(index, down, along)
                return tuple(result)

            return build.nest([f"o{n}" for n in range(len(outer))], [part.count for part in ranges], point)

        return partition.blocks([extent for _, extent in outer], cut, block)

    def _tiles(self, index: dict[Dim, Dim], down: tile.Piece, along: tile.Piece) -> tuple[Statement, ...]:
        def each(i: Dim, j: Dim) -> tuple[Statement, ...]:
            first = down.start + i * down.size, along.start + j * along.size
            return self._tile(index, first, (int(down.size), int(along.size)))  # type: ignore[arg-type]

        return build.nest(["i", "j"], [down.count, along.count], each)

    def _tile(self, index: dict[Dim, Dim], first: tuple[Dim, Dim], size: tuple[int, int]) -> tuple[Statement, ...]:
        width, dtype = self.decision.width, self.accumulation.dtype
        places = [(r, c) for r in range(size[0]) for c in range(size[1])]
        totals = Buffer("totals", dtype, (len(places), width), "stack")
        sums = Buffer("sums", dtype, (len(places), width), "register")
        kept = [
            {**index, self.form.kept[self.found.row_axis]: first[0] + r, self.form.kept[-1]: first[1] + c}
            for r, c in places
        ]
        form, images = self.form, self.found.images
        inner = form.reduced_extents[images:]
        cut = lanes.chunking(inner, CHAIN * width, width)

        def clear(buffer: Buffer) -> tuple[Statement, ...]:
            return self._every(len(places), lambda n, lane: Store(buffer, (n, lane), self.accumulation.neutral))

        def add(n: int, lane: Dim) -> Store:
            return Store(totals, (n, lane), ir.apply("add", Load(totals, (n, lane)), Load(sums, (n, lane))))

        def chunk(*number: Dim) -> tuple[Statement, ...]:
            image, rest = number[:images], number[images:]
            starts, extents = ((0,) * len(inner), inner) if cut is None else lanes.chunk_range(inner, cut, rest)

            def row(*place: Dim) -> tuple[Statement, ...]:
                at = [*image, *(start + p for start, p in zip(starts, place, strict=False))]

                def point(x: Dim, lane: Dim) -> list[Statement]:
                    known = dict(zip(form.reduced, (*at, x), strict=True))
                    return [self._step(sums, n, lane, {**kept[n], **known}) for n in range(len(places))]

                return lanes.lane_loops(extents[-1], width, 1, point, starts[-1])

            return (
                Alloc(sums),
                *clear(sums),
                *build.nest([f"r{n}" for n in range(len(inner) - 1)], extents[:-1], row),
                *self._every(len(places), add),
            )

        counts = (*form.reduced_extents[:images], *(() if cut is None else lanes.chunk_counts(inner, cut)))
        result: list[Statement] = [Alloc(totals), *clear(totals)]
        result += build.nest([f"c{n}" for n in range(len(counts))], counts, chunk)
        for n in range(len(places)):
            result += form.finish({self.accumulation.mark: _across(totals, n, width)}, kept[n])
        return tuple(result)

    def _every(self, count: int, body: object) -> tuple[Statement, ...]:
        """A statement for every vector of a tile."""
        width = self.decision.width
        return tuple(
            statement
            for n in range(count)
            for statement in build.loop("l", width, lambda lane, n=n: [body(n, lane)], "vector", width)  # type: ignore[operator]
        )

    def _step(self, sums: Buffer, n: int, lane: Dim, known: dict[Dim, Dim]) -> Store:
        """sums[n] += the product at a pixel"""
        body = Rewriter(known).scalar(self.accumulation.body)  # type: ignore[arg-type]
        return Store(sums, (n, lane), build.combine("sum", Load(sums, (n, lane)), body, self.target))


def _across(totals: Buffer, n: int, width: int) -> Scalar:
    """All lanes of a result: the upper half onto the lower half until one is left."""
    parts: list[Scalar] = [Load(totals, (n, lane)) for lane in range(width)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [ir.apply("add", parts[k], parts[half + k]) for k in range(half)]
    return parts[0]
