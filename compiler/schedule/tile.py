"""Register tiles: a block of outputs accumulated in registers while the reduced axes run around it.

    acc[r, l] = neutral                                for r in rows unrolled, l in lanes (vectors, masked tail)
    for k... { acc[r, l] (+)= body(row + r, lane + l, k) }
    y[row + r, lane + l] = finals(acc[r, l])

This is the micro-kernel of every contraction: what does not depend on the row is loaded once for all rows, what does
not depend on the lane is broadcast. It equally does column sums (one row), pooling and depthwise convolution.

Invariant: an output's chain of operations is the same in a full tile, an edge tile and a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, LoopKind, Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build
from ingot.compiler.schedule.form import Accumulation, ReductionForm
from ingot.compiler.schedule.partition import Range
from ingot.compiler.target import Target

SUMS = 8  # of a tile, which hide the latency of a multiply-add
Spread = Callable[[Dim, Dim], Sequence[Statement]]  # (row in tile, lane in tile) -> statements


@dataclass(frozen=True)
class Piece:
    """`count` tiles of `size` steps from `start` on; `steps` of them all, when the last tile may have fewer."""

    start: Dim
    count: Dim
    size: Dim
    steps: Dim | None = None

    def limit(self, number: Dim) -> Dim | None:
        """How many steps of this tile exist, when these may be fewer than its size."""
        return None if self.steps is None else symbolic.minimum(self.size, self.steps - number * self.size)


@dataclass(frozen=True)
class Cover:
    """A range as tiles: `full` tiles of `size` steps, then `rest` further steps; `present` is 1 where there is a
    rest, 0 where there is none. `pieces` are all of it in tiles of constant size (the last may be masked or limited)."""

    size: int
    full: Dim
    rest: Dim
    present: Dim
    pieces: tuple[Piece, ...]


def cover(extent: Dim, sizes: Sequence[int], masked: bool = False, limited: bool = False) -> Cover:
    """An extent as tiles of the first size, and what is left.

    What is left of a constant extent is one smaller tile. Of a symbolic one it is made of tiles of the further
    sizes; with `masked` the last tile takes what even those leave, which is less than the last size. With `limited` all
    that is left of it are tiles of the second size, of which the last may have fewer steps.
    """
    size = sizes[0]
    full, rest = extent // size, extent % size
    if isinstance(rest, int):
        ending = (Piece(full * size, 1, rest),) if rest else ()
        return Cover(size, full, rest, 1 if rest else 0, (*_tiles(0, full, size), *ending))
    pieces = list(_tiles(0, full, size))
    start, left = full * size, rest
    if limited:
        pieces.append(Piece(start, symbolic.ceildiv(rest, sizes[1]), sizes[1], rest))
        return Cover(size, full, rest, symbolic.minimum(1, rest), tuple(pieces))
    for smaller in sizes[1:]:
        pieces.extend(_tiles(start, left // smaller, smaller))
        start, left = start + left // smaller * smaller, left % smaller
    if masked:
        pieces.append(Piece(start, symbolic.minimum(1, left), left))
    return Cover(size, full, rest, symbolic.minimum(1, rest), tuple(pieces))


def cover_block(
    extent: Dim, number: Dim, steps: int, sizes: Sequence[int], masked: bool = False, limited: bool = False
) -> Cover:
    """One block of `steps` steps of an extent, as tiles. What is left of a constant extent is in the last block, so
    its size is known in every block."""
    if not isinstance(extent, int):
        return cover(symbolic.minimum(steps, extent - number * steps), sizes, masked, limited)
    if extent <= steps:
        return cover(extent, sizes)
    size = sizes[0]
    rest, last = extent % size, -(-extent // steps) - 1
    full = symbolic.minimum(steps // size, extent // size - number * (steps // size))
    present = 1 - symbolic.minimum(1, last - number) if rest else 0
    ending = (Piece(full * size, present, rest),) if rest else ()
    return Cover(size, full, rest, present, (*_tiles(0, full, size), *ending))


def evened(found: Cover) -> Cover:
    """The same range with a short last tile made longer: it shares the steps of the full tile before it. A tile of a
    few rows has too few independent sums to keep the multipliers busy."""
    size, rest, present = found.size, found.rest, found.present
    if not isinstance(rest, int) or rest == 0 or 2 * rest > size or not isinstance(found.full, int) or found.full == 0:
        return found
    first, second = -(-(size + rest) // 2), (size + rest) // 2
    full = found.full - 1
    start = full * size
    ending = (Piece(start, present, first), Piece(start + first, present, second))
    if first == second:
        ending = (Piece(start, 2 * present, first),)
    return Cover(size, full, size + rest, present, (*_tiles(0, full, size), *ending))


def cover_range(part: Range, sizes: Sequence[int], masked: bool = False, limited: bool = False) -> Cover:
    """A range of an axis as tiles."""
    if part.steps is None:
        return cover(part.count, sizes, masked, limited)
    return cover_block(part.extent, part.number, part.steps, sizes, masked, limited)


def cover_rows(part: Range, tallest: int, vectors: int) -> Cover:
    """The rows of a product as tiles of that height. What a symbolic extent leaves over is computed by lower tiles that
    repeat their last row: as long as a tile has no more than SUMS sums it takes no longer than one of a single row, because
    either waits for its sums, and one tile for every remainder is less code than tiles of four, two and one row."""
    low = min(tallest, max(1, SUMS // vectors))
    return cover_range(part, (tallest, low), limited=tallest > 1)


def _tiles(start: Dim, count: Dim, size: int) -> tuple[Piece, ...]:
    return () if count == 0 else (Piece(start, count, size),)


def spread(rows: int, lanes: Dim, width: int, body: Spread) -> tuple[Statement, ...]:
    """Straight code over a tile: rows unrolled, lanes as whole vectors and a masked one."""

    def row(r: Dim) -> tuple[Statement, ...]:
        return (*_whole_vectors(r, lanes, width, body), *_masked_vector(r, lanes, width, body))

    return build.loop("r", rows, row, "unrolled")


def _whole_vectors(r: Dim, lanes: Dim, width: int, body: Spread) -> tuple[Statement, ...]:
    if not isinstance(lanes, int):
        return ()

    def vector(v: Dim) -> tuple[Statement, ...]:
        return build.loop("l", width, lambda lane: body(r, v * width + lane), "vector", width)

    return build.loop("v", lanes // width, vector, "unrolled")


def _masked_vector(r: Dim, lanes: Dim, width: int, body: Spread) -> tuple[Statement, ...]:
    whole = lanes // width * width if isinstance(lanes, int) else 0
    return build.loop("l", lanes - whole, lambda lane: body(r, whole + lane), "vector", width)


@dataclass(frozen=True)
class Tile:
    """Where a tile is and how large: the kept axes outside it are fixed by `index`."""

    index: Mapping[Dim, Dim]
    row_axis: Dim | None
    row: Dim
    rows: int
    lane_axis: Dim | None
    lane: Dim
    lanes: Dim
    width: int
    # rows that exist, when these may be fewer: the others repeat the last and are not kept; a tile that has a limit is
    # finished row by row
    limit: Dim | None = None

    def read_at(self, r: Dim, lane: Dim) -> dict[Dim, Dim]:
        """The kept variables where operands of an element of the tile are read."""
        return self.at(self.read_row(r), lane)

    def read_row(self, r: Dim) -> Dim:
        return r if self.limit is None or self.limit == self.rows else symbolic.minimum(r, self.limit - 1)

    def at(self, r: Dim, lane: Dim) -> dict[Dim, Dim]:
        """The kept variables at an element of the tile."""
        index = dict(self.index)
        if self.row_axis is not None:
            index[self.row_axis] = self.row + r
        if self.lane_axis is not None:
            index[self.lane_axis] = self.lane + lane
        return index

    @property
    def slots(self) -> int:
        """Lanes of a register buffer that holds one row of the tile."""
        return -(-self.lanes // self.width) * self.width if isinstance(self.lanes, int) else self.width

    def register(self, name: str, accumulation: Accumulation) -> Buffer:
        return Buffer(name, accumulation.dtype, (self.rows, self.slots), "register")

    def spread(self, body: Spread) -> tuple[Statement, ...]:
        if self.limit is None or self.limit == self.rows:
            return spread(self.rows, self.lanes, self.width, body)
        # written out: where a row is read is no sum of an unrolled variable, which makes it dear to emit
        rows = (spread(1, self.lanes, self.width, partial(_row, body, r)) for r in range(self.rows))
        return tuple(statement for row in rows for statement in row)


def _row(body: Spread, r: int, _: Dim, lane: Dim) -> Sequence[Statement]:
    return body(r, lane)


Emit = Callable[[Tile], Sequence[Statement]]


def clear(tile: Tile, buffers: Sequence[Buffer], form: ReductionForm) -> tuple[Statement, ...]:
    pairs = list(zip(buffers, form.accumulations, strict=True))
    return tile.spread(lambda r, lane: [Store(buffer, (r, lane), a.neutral) for buffer, a in pairs])


def step(
    tile: Tile, buffers: Sequence[Buffer], form: ReductionForm, point: Mapping[Dim, Dim], target: Target
) -> tuple[Statement, ...]:
    """acc[r, l] (+)= body, at one point of the reduced axes"""

    def element(r: Dim, lane: Dim) -> list[Statement]:
        rewriter = Rewriter({**tile.read_at(r, lane), **point})  # type: ignore[arg-type]
        return [
            Store(
                buffer,
                (r, lane),
                build.combine(a.combiner, Load(buffer, (r, lane)), rewriter.scalar(a.body), target),
            )
            for buffer, a in zip(buffers, form.accumulations, strict=True)
        ]

    return tile.spread(element)


def finish(tile: Tile, buffers: Sequence[Buffer], form: ReductionForm) -> tuple[Statement, ...]:
    """The definitions after the reductions, at every element of the tile."""
    if tile.limit is not None:
        return row_by_row(tile, buffers, form, lambda row, own: finish(row, own, form))

    def element(r: Dim, lane: Dim) -> tuple[Statement, ...]:
        results: dict[Buffer, Scalar] = {
            a.mark: Load(buffer, (r, lane)) for buffer, a in zip(buffers, form.accumulations, strict=True)
        }
        return form.finish(results, tile.at(r, lane))

    return tile.spread(element)


def row_by_row(
    tile: Tile,
    buffers: Sequence[Buffer],
    form: ReductionForm,
    body: Callable[[Tile, Sequence[Buffer]], Sequence[Statement]],
    height: int = 1,
) -> tuple[Statement, ...]:
    """A loop over the rows of a tile that exist, `height` of them at a time. `body` gets these as a tile, and their part
    of the buffers, which wait in memory meanwhile because registers have no numbers."""
    waiting = [replace(buffer, name=f"{buffer.name}_rows", space="stack") for buffer in buffers]

    def some(number: Dim) -> tuple[Statement, ...]:
        start = number * height
        rows = replace(tile, row=tile.row + start, rows=height, limit=None)
        own = [rows.register(buffer.name, a) for buffer, a in zip(buffers, form.accumulations, strict=True)]

        def take(r: Dim, lane: Dim) -> list[Statement]:
            return [Store(o, (r, lane), Load(w, (start + r, lane))) for o, w in zip(own, waiting, strict=True)]

        return (*allocate(own), *rows.spread(take), *body(rows, own))

    def keep(r: Dim, lane: Dim) -> list[Statement]:
        return [Store(w, (r, lane), Load(b, (r, lane))) for w, b in zip(waiting, buffers, strict=True)]

    count = tile.rows // height if tile.limit is None else tile.limit
    return (*allocate(waiting), *tile.spread(keep), *build.loop("r", count, some))


def allocate(buffers: Sequence[Buffer]) -> tuple[Statement, ...]:
    return tuple(map(Alloc, buffers))


def reduction_loops(
    extents: Sequence[Dim],
    body: Callable[..., Sequence[Statement]],
    unroll: int = 1,
    before: Callable[..., Sequence[Statement]] | None = None,
    looped: Sequence[bool] = (),
) -> tuple[Statement, ...]:
    """Loops over the reduced axes in order, the innermost unrolled by a factor, or all of them but those that are `looped`
    if there are no more points than that; `before` goes before each such group of points and is told the first of them."""
    if not extents:
        return tuple(body())
    names = [f"k{n}" for n in range(len(extents))]
    if len(extents) > 1 and symbolic.less_equal(symbolic.product(extents), unroll) is True:
        ahead = before(*(0 for _ in extents)) if before is not None else ()
        return (*ahead, *_written_out(names, extents, looped or [False] * len(extents), body))

    def innermost(*outer: Dim) -> tuple[Statement, ...]:
        last = extents[-1]
        if unroll == 1:
            return build.loop(names[-1], last, lambda k: body(*outer, k))
        blocks = last // unroll

        def block(o: Dim) -> tuple[Statement, ...]:
            ahead = before(*outer, o * unroll) if before is not None else ()
            return (*ahead, *build.loop("u", unroll, lambda u: body(*outer, o * unroll + u), "unrolled"))

        rest = build.loop(names[-1], last - blocks * unroll, lambda k: body(*outer, blocks * unroll + k))
        return (*build.loop(names[-1], blocks, block), *rest)

    return build.nest(names[:-1], extents[:-1], innermost)


def _written_out(
    names: Sequence[str], extents: Sequence[Dim], looped: Sequence[bool], body: Callable[..., Sequence[Statement]]
) -> tuple[Statement, ...]:
    if not extents:
        return tuple(body())
    kind: LoopKind = "serial" if looped[0] else "unrolled"
    return build.loop(
        names[0], extents[0], lambda k: _written_out(names[1:], extents[1:], looped[1:], partial(body, k)), kind
    )
