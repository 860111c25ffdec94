"""Reductions along vectors: the lanes of an axis are spread over accumulators and combined by a fixed tree.

    for o in n // (U*W) { for u in U unrolled { for l in W lanes { acc[u*W + l] (+)= body(o*U*W + u*W + l) } } }
    whole vectors of the rest, then the masked tail, go to acc[l]
    acc[l] = (acc[l] (+) acc[W + l]) (+) (acc[2W + l] (+) acc[3W + l]);    then halves of lanes until one is left

Long axes are cut twice: into chunks, which threads may compute apart, and these into blocks, so that no chain of
additions is long and sums are about as accurate as pairwise ones.

Invariant: the order of combining depends on the reduced extents, the width and the combiner only. A level with a
single part gives the same bits as no level, since adding starts from the neutral element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Combiner, Load, Scalar, Space
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType
from ingot.compiler.schedule import build, partition
from ingot.compiler.target import Target

VECTORS = 4  # independent accumulators: enough to hide the latency of an addition behind loads
BLOCK = 512  # elements that are gathered in one set of accumulators: chains of 16 additions in vectors of 8
CHUNK = 8192  # elements that one thread takes at a time, at least
CHUNK_MULTIPLE = 8  # chunks of an innermost axis are multiples of this

Point = Callable[[Dim, Dim], Sequence[Statement]]  # (index along the axis, accumulator slot) -> statements
RowPoint = Callable[[tuple[Dim, ...], Dim], Sequence[Statement]]  # the same with the indices of all axes
Aside = Callable[[tuple[Dim, ...]], tuple[Statement, ...]]  # where a block of vectors begins -> statements
# (statements of a block, its starts, its extents) -> what stands in their place
Turn = Callable[[tuple[Statement, ...], Sequence[Dim], Sequence[Dim]], tuple[Statement, ...]]


@dataclass(frozen=True)
class Accumulator:
    """What one reduction is gathered in. `lanes` has VECTORS * width slots, `part` (the sums of a chunk) and `total`
    one slot per lane."""

    combiner: Combiner
    dtype: DType
    lanes: Buffer
    part: Buffer
    total: Buffer

    def combine(self, left: Scalar, right: Scalar) -> Scalar:
        return ir.apply(ir.COMBINERS[self.combiner], left, right)

    @property
    def neutral(self) -> Scalar:
        return ir.constant(ir.identity_of(self.combiner, self.dtype), self.dtype)

    def add(self, slot: Dim, value: Scalar, target: Target) -> Store:
        """lanes[slot] (+)= value"""
        return Store(self.lanes, (slot,), build.combine(self.combiner, Load(self.lanes, (slot,)), value, target))


def accumulator(combiner: Combiner, dtype: DType, width: int, space: Space = "register") -> Accumulator:
    """`space` is where its lanes are: on the stack where there are more than registers hold."""
    lanes = Buffer("lanes", dtype, (VECTORS * width,), space)
    part, total = (Buffer(name, dtype, (width,), "register") for name in ("part", "total"))
    return Accumulator(combiner, dtype, lanes, part, total)


@dataclass(frozen=True)
class Steps:
    """What is done for a block of vectors: `first` in one wide vector, `then` in vectors of the usual width; `before` and
    `after` it something else, given where the block begins."""

    first: RowPoint | None
    then: RowPoint
    before: Aside | None = None
    after: Aside | None = None

    def inside(self, outer: tuple[Dim, ...]) -> Steps:
        """The same for the last axis, with the others fixed."""
        first = self.first

        def within(aside: Aside | None) -> Aside | None:
            return None if aside is None else lambda index: aside((*outer, *index))

        return Steps(
            None if first is None else lambda index, slot: first((*outer, *index), slot),
            lambda index, slot: self.then((*outer, *index), slot),
            within(self.before),
            within(self.after),
        )

    def along(self, index: Dim, slot: Dim) -> Sequence[Statement]:
        """What is done in vectors of the usual width, when there is one axis."""
        return self.then((index,), slot)

    def around(self, start: Dim, block: int) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """What comes before and after the vectors of the usual width."""
        first = self.first
        wide = () if first is None else _lanes(start, 0, block, block, lambda i, slot: first((i,), slot))
        before = () if self.before is None else self.before((start,))
        return (*before, *wide), () if self.after is None else self.after((start,))


def lane_loops(
    extent: Dim,
    width: int,
    vectors: int,
    point: Point,
    start: Dim = 0,
    interleaved: bool = False,
    steps: Steps | None = None,
) -> tuple[Statement, ...]:
    """Every index of [start, start + extent) once: blocks of unrolled vectors, single vectors, masked tail.

    Interleaved blocks are one wide vector; with `steps` their first part is, and the second part is unrolled."""
    block = vectors * width

    def whole(o: Dim) -> tuple[Statement, ...]:
        if interleaved:
            return _lanes(start + o * block, 0, block, block, point)
        begin = start + o * block
        before, after = ((), ()) if steps is None else steps.around(begin, block)
        each = point if steps is None else steps.along
        unrolled = build.loop("u", vectors, lambda u: _lanes(begin, u * width, width, width, each), "unrolled")
        return (*before, *unrolled, *after)

    done = extent // block * block
    singles = (extent - done) // width
    tail_start = start + extent // width * width
    return (
        *build.loop("o", extent // block, whole),
        *build.loop("s", singles, lambda s: _lanes(start + done + s * width, 0, width, width, point)),
        *_lanes(tail_start, 0, extent % width, width, point),
    )


def _lanes(base: Dim, slot: Dim, count: Dim, width: int, point: Point) -> tuple[Statement, ...]:
    return build.loop("l", count, lambda lane: point(base + slot + lane, slot + lane), "vector", width)


def declare(accumulator: Accumulator) -> tuple[Statement, ...]:
    return (Alloc(accumulator.lanes), Alloc(accumulator.part), Alloc(accumulator.total))


def clear(buffer: Buffer, accumulator: Accumulator, width: int, vectors: int = 1) -> tuple[Statement, ...]:
    """buffer[every slot] = neutral"""

    def vector(u: Dim) -> tuple[Statement, ...]:
        def point(lane: Dim) -> list[Statement]:
            return [Store(buffer, (u * width + lane,), accumulator.neutral)]

        return build.loop("l", width, point, "vector", width)

    return build.loop("u", vectors, vector, "unrolled")


def fold(accumulator: Accumulator, width: int, vectors: int) -> Callable[[Dim], Scalar]:
    """The scalar for a lane in which the vectors of accumulators are combined, neighbours first."""

    def lane_value(lane: Dim) -> Scalar:
        parts: list[Scalar] = [Load(accumulator.lanes, (u * width + lane,)) for u in range(vectors)]
        while len(parts) > 1:
            parts = [accumulator.combine(parts[n], parts[n + 1]) for n in range(0, len(parts), 2)]
        return parts[0]

    return lane_value


def add_to(
    into: Buffer, value: Callable[[Dim], Scalar], accumulator: Accumulator, width: int, only: bool
) -> tuple[Statement, ...]:
    """into[lane] (+)= value(lane); an only part is the sum itself"""

    def point(lane: Dim) -> list[Statement]:
        added = value(lane) if only else accumulator.combine(Load(into, (lane,)), value(lane))
        return [Store(into, (lane,), added)]

    return build.loop("l", width, point, "vector", width)


def across(accumulator: Accumulator, width: int) -> Scalar:
    """All lanes of `total` combined: the upper half onto the lower half until one is left."""
    parts: list[Scalar] = [Load(accumulator.total, (n,)) for n in range(width)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [accumulator.combine(parts[n], parts[half + n]) for n in range(half)]
    return parts[0]


@dataclass(frozen=True)
class Chunking:
    """Which reduced axis is cut, and into chunks of how many steps; the axes inside it are whole."""

    axis: int
    steps: int


def chunking(extents: Sequence[Dim], limit: int, multiple: int = 1) -> Chunking | None:
    """Chunks of about `limit` points, of equal length if the extent is constant; None when one holds everything."""
    inner = 1
    for axis in range(len(extents) - 1, -1, -1):
        extent = extents[axis]
        if not isinstance(extent, int) or inner * extent > limit:
            steps = partition.balanced(extent, max(1, limit // inner), multiple if axis == len(extents) - 1 else 1)
            return Chunking(axis, steps)
        inner *= extent
    return None


def chunk_counts(extents: Sequence[Dim], cut: Chunking) -> tuple[Dim, ...]:
    """How many chunks there are along the axes up to the one that is cut."""
    return (*extents[: cut.axis], symbolic.ceildiv(extents[cut.axis], cut.steps))


def chunk_range(
    extents: Sequence[Dim], cut: Chunking, number: Sequence[Dim]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """(starts, extents) of one chunk, given its number along each axis of `chunk_counts`."""
    start = number[-1] * cut.steps
    count = symbolic.minimum(cut.steps, extents[cut.axis] - start)
    inside = extents[cut.axis + 1 :]
    return (*number[:-1], start, *(0 for _ in inside)), (*(1 for _ in number[:-1]), count, *inside)


def reduce_axes(
    extents: Sequence[Dim],
    width: int,
    accumulators: Sequence[Accumulator],
    point: RowPoint,
    steps: Steps | None = None,
    turn: Turn | None = None,
) -> tuple[Statement, ...]:
    """Visit every index of `extents` (the last axis along lanes), leaving each reduction in its `total`.

    `point(index, slot)` computes at an index and adds to lanes[slot]; `steps` do so in whole blocks of vectors. `turn`
    puts other work between blocks.
    """
    cut = chunking(extents, CHUNK, VECTORS * width)
    if cut is None:
        whole = (0,) * len(extents)
        return chunk_body(extents, whole, width, accumulators, point, [a.total for a in accumulators], steps, turn)

    def chunk(*number: Dim) -> tuple[Statement, ...]:
        starts, inner = chunk_range(extents, cut, number)
        return (
            *chunk_body(inner, starts, width, accumulators, point, [a.part for a in accumulators], steps, turn),
            *(
                s
                for a in accumulators
                for s in add_to(a.total, lambda lane, a=a: Load(a.part, (lane,)), a, width, False)
            ),
        )

    counts = chunk_counts(extents, cut)
    return (
        *(s for a in accumulators for s in clear(a.total, a, width)),
        *build.nest([f"c{n}" for n in range(len(counts))], counts, chunk),
    )


def chunk_body(
    extents: Sequence[Dim],
    starts: Sequence[Dim],
    width: int,
    accumulators: Sequence[Accumulator],
    point: RowPoint,
    into: Sequence[Buffer],
    steps: Steps | None = None,
    turn: Turn | None = None,
) -> tuple[Statement, ...]:
    """One chunk, block by block, into one vector for each reduction."""
    cut = chunking(extents, BLOCK, VECTORS * width)
    vectors = _block_vectors(extents, cut, width)

    def block(inner: Sequence[Dim], first: Sequence[Dim], only: bool) -> tuple[Statement, ...]:
        def rows(*index: Dim) -> tuple[Statement, ...]:
            outer = tuple(start + i for start, i in zip(first, index, strict=False))
            first_then = None if steps is None or vectors != VECTORS else steps.inside(outer)
            return lane_loops(
                inner[-1], width, vectors, lambda i, slot: point((*outer, i), slot), first[-1], steps=first_then
            )

        pairs = list(zip(accumulators, into, strict=True))
        statements = (
            *(s for a in accumulators for s in clear(a.lanes, a, width, vectors)),
            *build.nest([f"r{n}" for n in range(len(inner) - 1)], inner[:-1], rows),
            *(s for a, buffer in pairs for s in add_to(buffer, fold(a, width, vectors), a, width, only)),
        )
        return statements if turn is None else turn(statements, first, inner)

    if cut is None:
        return block(extents, starts, True)

    def part(*number: Dim) -> tuple[Statement, ...]:
        first, inner = chunk_range(extents, cut, number)
        return block(inner, tuple(a + b for a, b in zip(starts, first, strict=True)), False)

    counts = chunk_counts(extents, cut)
    return (
        *(s for a, buffer in zip(accumulators, into, strict=True) for s in clear(buffer, a, width)),
        *build.nest([f"b{n}" for n in range(len(counts))], counts, part),
    )


def _block_vectors(extents: Sequence[Dim], cut: Chunking | None, width: int) -> int:
    """Accumulators that a block needs: one vector when its innermost axis is short."""
    inner = cut.steps if cut is not None and cut.axis == len(extents) - 1 else extents[-1]
    return VECTORS if symbolic.less(inner, VECTORS * width) is not True else 1
