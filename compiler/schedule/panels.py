"""The loops of a contraction: blocks, chunks, packed panels, tiles.

    for block parallel { for chunk { pack rows of the left operand
                                     for panel of columns { pack columns of the right operand
                                                            for tile of rows { micro-kernel } } } }
    (or chunks inside panels, where all chunks of the rows fit in the second cache)

While the tiles of rows of one panel are computed they ask for the next panel, a few lines each, so that the right
operand arrives at the speed of memory and nobody waits for it.

Invariant: packing moves values and never combines them, so a packed and an unpacked operand give the same bits.
Non-goal: deciding sizes; `recipes.contraction` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import SECOND_CACHE, Alloc, If, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, lanes, partition, scalars, tile
from ingot.compiler.schedule.form import ReductionForm
from ingot.compiler.schedule.result import TURN
from ingot.compiler.schedule.tile import Cover, Tile
from ingot.compiler.target import Target

UNROLL = 4  # steps of the reduced axis in one iteration of the micro-kernel
OFTEN = 16  # tiles of rows: fewer do not pay for writing out a short sum
RARELY = 8  # tiles of rows beside which one of another height takes no time to speak of
LONG_EPILOGUE = 16  # cycles of one vector, from which the rows of a tile are finished in a loop
TOGETHER = 6  # vectors of it in one step of that loop: independent of each other, they hide latency
LINE_BYTES = 64  # of a cache line
WIDE_VECTOR = 64  # bytes of a vector that some machines compute as two


@dataclass(frozen=True)
class ContractionTiles:
    """How a contraction is computed."""

    width: int  # lanes of a vector
    rows: int  # of a register tile (mr)
    vectors: int  # of a register tile: it has vectors * width columns (nr)
    row_axis: int  # kept axis of the rows; -1: a single row
    row_block: int  # rows of a parallel block along that axis (mc)
    column_block: int  # columns of a parallel block (nc)
    chain: int  # most points of a chunk of the reduced axes (kc)
    pack_right: bool
    pack_left: bool
    packed_panels: int = 1  # panels of the right operand that are packed together
    packed_in_passing: bool = False  # the first tile of rows packs a panel as it reads it
    outer_rows: tuple[tuple[int, int], ...] = ()  # (axis, steps of a block) of other axes that only rows have
    outer_columns: tuple[tuple[int, int], ...] = ()  # the same of other axes that only columns have
    left_steps: int = 1  # steps of the reduced axis that packed rows keep together
    unroll: int = UNROLL
    chunks_inside: bool = False  # a panel sees all chunks before the next comes; not when rows are packed by chunks
    fetch_panels: bool = False  # hint at the next stored panel of the right operand while this one is used
    streamed: bool = False  # a few rows: the right operand is read as it is stored (streams.py)
    ends_apart: bool = False  # the epilogue of a block follows when all of its sums are made, row by row
    returning: bool = False  # in a loop: panels from the first to the last and from the last to the first, in turn
    parallel: bool = True

    def __post_init__(self) -> None:
        if self.row_block % self.rows or self.column_block % (self.vectors * self.width):
            raise ValueError(f"blocks must be multiples of the tile: {self}")


@dataclass(frozen=True)
class Contraction:
    """A reduction form whose body is a product, and whose last kept axis only the right factor mentions."""

    form: ReductionForm
    left: Scalar
    right: Scalar
    row_axes: tuple[int, ...]  # kept axes that only the left factor mentions
    column_axes: tuple[int, ...]  # kept axes that only the right factor mentions, the last kept one among them
    product: str = "mul"  # of elements; others of words that hold several each (words.py)
    elements: int = 1  # of a word
    gathered: bool = False  # a row axis is several of the left operand's: it is cheap to read only when packed
    start: Scalar | None = None  # what sums begin with, the same for all rows; 0 if it is None (starts.py)

    def overlapping(self, operand: Scalar, kept: Dim | None) -> list[bool]:
        """The reduced axes along which windows of an operand overlap, for neighbours along a kept axis. Written out, what
        several neighbours read at different steps would be read once, and wait in registers that there are not."""
        indices = [index for load in scalars.loads(operand) for index in load.index if kept in symbolic.atoms(index)]
        return [any(variable in symbolic.atoms(index) for index in indices) for variable in self.form.reduced]

    def first(self, at: Mapping[Dim, Dim]) -> Scalar:
        """What the sum of an element begins with."""
        neutral = self.form.accumulations[0].neutral
        return neutral if self.start is None else scalars.substitute(self.start, at)


Left = Callable[[Dim, tuple[Dim, ...]], Scalar]  # (row in tile, point in chunk) -> left operand
Right = Callable[[tuple[Dim, ...], Dim], Scalar]  # (point in chunk, lane in tile) -> right operand
Pack = Callable[..., Sequence[Statement]]  # point in chunk -> packs what the right operand is there
Ahead = Callable[..., Sequence[Statement]]  # the first of some points in a chunk -> hints at what comes later


@dataclass(frozen=True)
class Chunk:
    """A box of the reduced axes; `first` and `last` tell its place, None when it is the only one."""

    starts: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    first: Scalar | None = None
    last: Scalar | None = None

    def at(self, reduced: Sequence[Dim], index: Sequence[Dim]) -> dict[Dim, Dim]:
        """The reduced variables at a point of the box."""
        return {v: start + i for v, start, i in zip(reduced, self.starts, index, strict=True)}


@dataclass(frozen=True)
class Block:
    """A parallel block: its number, where it starts, its tiles, and the axes that tiles do not cover."""

    number: Dim
    row_start: Dim
    rows: Cover
    outer_rows: tuple[partition.Range, ...]  # of further row axes
    column_start: Dim
    columns: Cover
    outer_columns: tuple[partition.Range, ...]  # of further column axes
    fixed: dict[Dim, Dim]


@dataclass(frozen=True)
class Panel:
    """Columns from `lane` on, the panel of this number among those that are packed together. `ahead`: where the next
    panel starts; None when nobody asks for it in advance. `is_left_over`: by panels that are packed several at a time."""

    number: Dim
    lane: Dim
    width: Dim
    ahead: Mapping[Dim, Dim] | None
    is_left_over: bool = False


class PanelNest:
    """Emits a contraction. `scratch` are the buffers that it needs from outside."""

    def __init__(self, found: Contraction, tiles: ContractionTiles, target: Target, outputs_wait: bool = True) -> None:
        self.outputs_wait = outputs_wait  # whether sums may wait in outputs: not when those overwrite inputs
        self.found = found
        self.form = found.form
        self.tiles = tiles
        self.target = target
        self.scratch: list[Buffer] = []
        (self.accumulation,) = self.form.accumulations
        self.lane_axis = len(self.form.kept) - 1
        self.lane = self.form.kept[-1]
        self.row = self.form.kept[tiles.row_axis] if tiles.row_axis >= 0 else None
        self.columns = tiles.vectors * tiles.width
        self.cut = lanes.chunking(self.form.reduced_extents, tiles.chain, lanes.CHUNK_MULTIPLE)
        self.sizes = self._block_sizes()
        self.counts = [
            symbolic.ceildiv(extent, size) for extent, size in zip(self.form.kept_extents, self.sizes, strict=True)
        ]
        self.partial = self._partial_place() if self.cut is not None and not tiles.ends_apart else None
        self.left_panels = self._left_buffer() if tiles.pack_left else None
        self.chunks_inside = tiles.chunks_inside and not tiles.pack_left
        self.looped = self.found.overlapping(self.found.left, self.row)
        self.ends_long = sum(scalars.cost(final.value) for final in self.form.finals) >= LONG_EPILOGUE

    def _block_sizes(self) -> list[int]:
        sizes = [1] * len(self.form.kept)
        if self.tiles.row_axis >= 0:
            sizes[self.tiles.row_axis] = self.tiles.row_block
        for axis, size in (*self.tiles.outer_rows, *self.tiles.outer_columns):
            sizes[axis] = size
        sizes[self.lane_axis] = self.tiles.column_block
        return sizes

    def _partial_place(self) -> Load:
        """Where sums wait between chunks: in an output of their type if there is one."""
        for final in self.form.finals if self.outputs_wait else ():
            if final.output and final.place.dtype == self.accumulation.dtype:
                return final.place
        name = f"{self.accumulation.mark.name}_sums"
        return Load(self._scratch(name, self.form.kept_extents), self.form.kept)

    def _left_buffer(self) -> Buffer:
        """[block, outer row axes..., panel, point..., row in panel, step]: one chunk of a block's rows at a time.
        The last reduced axis is cut into steps, so that rows that are stored along it are packed by copying vectors.
        """
        panels = -(-self.tiles.row_block // self.tiles.rows)
        outer = (size for _, size in self.tiles.outer_rows)
        *points, last = self._room()
        steps = self.tiles.left_steps
        shape = (*outer, panels, *points, -(-last // steps), self.tiles.rows, steps)
        return self._scratch("left_panels", (symbolic.product(self.counts), *shape))

    def _left_place(self, block: Block, panel: tuple[Dim, ...], index: Sequence[Dim], row: Dim) -> Load:
        """`panel`: steps into the block along the outer row axes, and the panel along the row axis."""
        assert self.left_panels is not None
        *points, last = index
        steps = self.tiles.left_steps
        return Load(self.left_panels, (block.number, *panel, *points, last // steps, row, last % steps))

    def _room(self) -> tuple[int, ...]:
        """The most points of a chunk along each reduced axis."""
        if self.cut is None:
            return tuple(map(_constant, self.form.reduced_extents))
        inner = map(_constant, self.form.reduced_extents[self.cut.axis + 1 :])
        return (*((1,) * self.cut.axis), self.cut.steps, *inner)

    def _scratch(self, name: str, shape: tuple[Dim, ...]) -> Buffer:
        buffer = Buffer(name, self.accumulation.dtype, shape, "arena")
        self.scratch.append(buffer)
        return buffer

    # --- loops around the tiles -----------------------------------------------------------------------------

    def statements(self) -> tuple[Statement, ...]:
        """One parallel loop over blocks: outer axes one by one, rows and columns in blocks."""
        if any(extent == 0 for extent in self.form.kept_extents):
            return ()
        kind = "parallel" if self.tiles.parallel else "serial"

        def one(number: Dim) -> tuple[Statement, ...]:
            block = self._block(number)
            return self._in_two_sweeps(block) if self.tiles.ends_apart else self._chunks(block)

        return build.loop("block", symbolic.product(self.counts), one, kind)

    def _in_two_sweeps(self, block: Block) -> tuple[Statement, ...]:
        """All sums of a block, which wait in memory of its own, and then its epilogue."""
        assert self.row is not None
        shape = self.tiles.row_block, self.tiles.column_block
        sums = Buffer(f"{self.accumulation.mark.name}_sums", self.accumulation.dtype, shape, "stack")
        self.partial = Load(sums, (self.row - block.row_start, self.lane - block.column_start))
        return (Alloc(sums), *self._chunks(block), *self._end(block))

    def _end(self, block: Block) -> tuple[Statement, ...]:
        """The epilogue of all elements of a block, in the order in which matrices that it reads and writes are stored."""
        rows = symbolic.minimum(self.tiles.row_block, self.form.kept_extents[self.tiles.row_axis] - block.row_start)

        def row(i: Dim) -> list[Statement]:
            result: list[Statement] = []
            for piece in block.columns.pieces:

                def some(j: Dim, piece: tile.Piece = piece) -> tuple[Statement, ...]:
                    lane = block.column_start + piece.start + j * piece.size
                    each = Tile(block.fixed, self.row, block.row_start + i, 1, self.lane, lane, piece.size, self.tiles.width)
                    sums = each.register(self.accumulation.mark.name, self.accumulation)
                    take = each.spread(lambda r, lane: [Store(sums, (r, lane), self._partial_at(each, r, lane))])
                    return (Alloc(sums), *take, *tile.finish(each, [sums], self.form))

                result.extend(build.loop("j", piece.count, some))
            return result

        return build.loop("i", rows, row)

    def _block(self, number: Dim) -> Block:
        rest, place = number, []
        for count in reversed(self.counts):
            place.append(rest % count)
            rest = rest // count
        place.reverse()
        place[-1] = self._in_turn(place[-1], self.counts[-1])
        tiles, extents = self.tiles, self.form.kept_extents
        parts = [partition.part_of(*part) for part in zip(extents, place, self.sizes, strict=True)]
        row_number, rows = 0, tile.cover(1, (1,))
        if self.row is not None:
            row_number = place[tiles.row_axis]
            rows = tile.cover_rows(parts[tiles.row_axis], tiles.rows, tiles.vectors)
            rows = rows if tiles.pack_left else tile.evened(rows)
        outer = (*tiles.outer_rows, *tiles.outer_columns)
        covered = {tiles.row_axis, self.lane_axis, *(axis for axis, _ in outer)}
        return Block(
            number=number,
            row_start=row_number * tiles.row_block,
            rows=rows,
            outer_rows=tuple(parts[axis] for axis, _ in tiles.outer_rows),
            column_start=place[-1] * tiles.column_block,
            columns=tile.cover_block(
                extents[-1], place[-1], tiles.column_block, (self.columns, tiles.width), masked=True
            ),
            outer_columns=tuple(parts[axis] for axis, _ in tiles.outer_columns),
            fixed={v: place[n] for n, v in enumerate(self.form.kept) if n not in covered},
        )

    def _chunks(self, block: Block) -> tuple[Statement, ...]:
        """Panels inside chunks, or chunks inside panels: then the sums of a panel stay in the first cache."""
        if self.chunks_inside:
            return self._for_panels(
                block, lambda here, steps, panels: self._for_chunks(lambda chunk: self._panels(here, chunk, steps, panels))
            )

        def panels(chunk: Chunk) -> tuple[Statement, ...]:
            return self._for_panels(block, lambda here, steps, panels: self._panels(here, chunk, steps, panels))

        return self._for_chunks(lambda chunk: (*self._pack_left(block, chunk), *panels(chunk)))

    def _for_chunks(self, body: Callable[[Chunk], Sequence[Statement]]) -> tuple[Statement, ...]:
        extents = self.form.reduced_extents
        if self.cut is None:
            return tuple(body(Chunk((0,) * len(extents), extents)))
        cut = self.cut
        counts = lanes.chunk_counts(extents, cut)

        def chunk(*number: Dim) -> Sequence[Statement]:
            first = ir.both(*(ir.predicate(n, "eq", 0) for n in number))
            last = ir.both(*(ir.predicate(n, "eq", c - 1) for n, c in zip(number, counts, strict=True)))
            return body(Chunk(*lanes.chunk_range(extents, cut, number), first, last))

        return build.nest([f"c{n}" for n in range(len(counts))], counts, chunk)

    def _for_panels(
        self, block: Block, body: Callable[[Block, tuple[Dim, ...], tile.Piece], Sequence[Statement]]
    ) -> tuple[Statement, ...]:
        """`body` gets the block with its outer column axes fixed, their steps, and the columns of a panel, or of a few
        panels that are packed together."""

        def columns(*steps: Dim) -> list[Statement]:
            outer = self._outer_index(self.tiles.outer_columns, block.outer_columns, steps)
            here = replace(block, fixed={**block.fixed, **outer})
            result: list[Statement] = []
            for piece, together in self._together(self._halved(block.columns.pieces)):

                def panels(j: Dim, piece: tile.Piece = piece, together: int = together) -> Sequence[Statement]:
                    start = block.column_start + piece.start + self._in_turn(j, piece.count) * together * piece.size
                    return body(here, steps, tile.Piece(start, together, piece.size))

                result.extend(build.loop("j", piece.count, panels))
            return result

        counts = [part.count for part in block.outer_columns]
        return build.nest([f"j{n}" for n in range(len(counts))], counts, columns)

    def _in_turn(self, number: Dim, count: Dim) -> Dim:
        """Counted from the other end every other time. Whatever is larger than a cache that forgets what was not read for
        the longest time is never found there by a loop that always begins at the same end; so most of it is."""
        return number + TURN * (count - 1 - 2 * number) if self.tiles.returning else number

    def _width(self, lanes: Dim) -> int:
        """Lanes of a vector for a panel: half of one, where that holds all of it."""
        width = self.tiles.width
        half = self.target.vector_bytes >= WIDE_VECTOR and isinstance(lanes, int) and 2 * lanes <= width
        return width // 2 if half else width

    def _halved(self, pieces: Sequence[tile.Piece]) -> list[tile.Piece]:
        """Panels that end in half a vector or less as two, so that this half is computed by itself, where that takes half the
        time."""
        if not self.target.has_halves:
            return list(pieces)
        result: list[tile.Piece] = []
        for piece in pieces:
            last = piece.size % self.tiles.width if isinstance(piece.size, int) else 0
            if piece.count != 1 or last in (0, piece.size) or self._width(last) == self.tiles.width:
                result.append(piece)
                continue
            result += [replace(piece, size=piece.size - last), tile.Piece(piece.start + piece.size - last, 1, last)]
        return result

    def _together(self, pieces: Sequence[tile.Piece]) -> list[tuple[tile.Piece, int]]:
        """The panels of some columns in groups, and how many a group has: `count` counts groups."""
        most = self.tiles.packed_panels if self.tiles.pack_right else 1
        result: list[tuple[tile.Piece, int]] = []
        for piece in pieces:
            groups = piece.count // most
            start = piece.start + groups * most * piece.size
            result.append((replace(piece, count=groups), most))
            result.append((tile.Piece(start, piece.count - groups * most, piece.size), 1))
        return result

    def _outer_index(
        self, axes: Sequence[tuple[int, int]], parts: Sequence[partition.Range], steps: Sequence[Dim]
    ) -> dict[Dim, Dim]:
        """The variables of outer axes, some steps into the block."""
        return {
            self.form.kept[axis]: part.start + step for (axis, _), part, step in zip(axes, parts, steps, strict=True)
        }

    def _ahead(
        self, block: Block, chunk: Chunk, steps: tuple[Dim, ...], lane: Dim, columns: int
    ) -> Mapping[Dim, Dim] | None:
        """Where the panel starts that is read after this one and those that are packed with it, `columns` in all: the next
        chunk, the next columns, or the next of the last outer column axis."""
        if not self.tiles.fetch_panels:
            return None
        start: dict[Dim, Dim] = {**block.fixed, self.lane: lane, **chunk.at(self.form.reduced, [0] * len(chunk.starts))}
        onwards: Dim = columns * (1 - 2 * TURN) if self.tiles.returning else columns
        if self.chunks_inside and self.cut is not None:
            # after the last chunk come the next columns
            axis, extent = self.form.reduced[self.cut.axis], self.form.reduced_extents[self.cut.axis]
            place = start[axis] + self.cut.steps
            after = place // extent
            back = symbolic.ceildiv(extent, self.cut.steps) * self.cut.steps
            return {**start, axis: place - after * back, self.lane: lane + after * onwards}
        if not steps:
            return {**start, self.lane: lane + onwards}
        following = (*steps[:-1], steps[-1] + 1)
        return {**start, **self._outer_index(self.tiles.outer_columns, block.outer_columns, following)}

    def _panels(
        self, block: Block, chunk: Chunk, steps: tuple[Dim, ...], panels: tile.Piece
    ) -> tuple[Statement, ...]:
        """A few panels of columns, packed together, each against all rows of the block."""
        count = panels.count
        assert isinstance(count, int)
        packed = None
        pack: tuple[Statement, ...] = ()
        passing: Pack | None = None
        if self.tiles.pack_right:
            packed = Buffer("panels", self.accumulation.dtype, (count, *self._room(), self.columns), "stack")
            passing = self._packed_in_passing(packed, block, chunk, panels)
            pack = self._pack_right(packed, block, chunk, panels) if passing is None else (Alloc(packed),)
        counts = [part.count for part in block.outer_rows]
        names = [f"i{n}" for n in range(len(counts))]
        together = self.tiles.packed_panels
        is_left_over = packed is not None and count < together and together * self.columns <= self.tiles.column_block

        def one(number: Dim) -> tuple[Statement, ...]:
            lane = panels.start + number * panels.size
            ahead = self._ahead(block, chunk, steps, lane, count * self.columns)
            panel = Panel(number, lane, panels.size, ahead, is_left_over)
            return build.nest(names, counts, lambda *outer: self._tiles(block, outer, chunk, packed, panel, passing))

        return (*pack, *build.loop("p", count, one))

    def _tiles(
        self,
        block: Block,
        outer: tuple[Dim, ...],
        chunk: Chunk,
        packed: Buffer | None,
        panel: Panel,
        passing: Pack | None,
    ) -> list[Statement]:
        """The tiles of rows at one point of the outer row axes. The first of them packs the panel, if `passing` says how."""
        fixed = {**block.fixed, **self._outer_index(self.tiles.outer_rows, block.outer_rows, outer)}
        result: list[Statement] = []
        before: Dim = 0
        most = block.rows.pieces[0]  # the highest tiles; of the others there is one or two
        for piece in block.rows.pieces:

            def one(
                i: Dim, piece: tile.Piece = piece, before: Dim = before, pack: Pack | None = None
            ) -> tuple[Statement, ...]:
                assert isinstance(piece.size, int)
                place = piece.start + i * piece.size
                row = block.row_start + place
                lanes = panel.lane, panel.width, self._width(panel.width)
                each = Tile(fixed, self.row, row, piece.size, self.lane, *lanes, piece.limit(i))
                left = self._left(each, block, (*outer, place), chunk)
                # where the number of rows is free, the low tiles may be the only ones
                ahead = self._fetch_panel(panel, (*outer, before + i) if piece.steps is None else None, chunk)
                right = self._right(each, packed, panel.number, chunk)
                often = piece.size == self.tiles.rows and symbolic.less(piece.count, OFTEN) is not True
                often = often and pack is None and not panel.is_left_over
                rarely = pack is None and piece is not most and symbolic.less_equal(RARELY, most.count) is True
                return self._tile(each, left, right, chunk, ahead, pack, often, rarely)

            if passing is None:
                result.extend(build.loop("i", piece.count, one))
            else:
                result.extend(one(0, pack=passing))
                result.extend(build.loop("i", piece.count - 1, lambda i, one=one: one(i + 1)))
                passing = None
            before = before + piece.count
        return result

    # --- operands -------------------------------------------------------------------------------------------

    def _left(self, each: Tile, block: Block, place: tuple[Dim, ...], chunk: Chunk) -> Left:
        """The left operand of a tile that starts `place` steps into its block along the row axes."""
        rows = self.tiles.rows
        *outer, row = place

        def direct(r: Dim, index: tuple[Dim, ...]) -> Scalar:
            at: Mapping[Dim, Dim] = {**each.read_at(r, 0), **chunk.at(self.form.reduced, index)}
            return scalars.substitute(self.found.left, at)

        def packed(r: Dim, index: tuple[Dim, ...]) -> Scalar:
            return self._left_place(block, (*outer, row // rows), index, row % rows + each.read_row(r))

        return direct if self.left_panels is None else packed

    def _right(self, each: Tile, panels: Buffer | None, number: Dim, chunk: Chunk) -> Right:
        def direct(index: tuple[Dim, ...], lane: Dim) -> Scalar:
            at: Mapping[Dim, Dim] = {**each.at(0, lane), **chunk.at(self.form.reduced, index)}
            return scalars.substitute(self.found.right, at)

        def packed(index: tuple[Dim, ...], lane: Dim) -> Scalar:
            assert panels is not None
            return Load(panels, (number, *index, lane))

        return direct if panels is None else packed

    def _fetch_panel(self, panel: Panel, place: tuple[Dim, ...] | None, chunk: Chunk) -> Ahead | None:
        """Hints at the next panel, divided among the tiles of rows that read this one: each asks for the same lines of a
        series of points, one point in a group of steps. `place` says which tile it is, along the outer row axes and rows;
        None: a tile that asks for all of them."""
        if panel.ahead is None:
            return None
        start, unroll, points_of_chunk = panel.ahead, self.tiles.unroll, self._room()[-1]
        counts: list[int] = []  # of tiles that share the hints, along each axis
        number: Dim = 0
        if place is not None:
            counts = [*(size for _, size in self.tiles.outer_rows), -(-self.tiles.row_block // self.tiles.rows)]
            for step, count in zip(place, counts, strict=True):
                number = number * count + step
        per_line = LINE_BYTES // self.found.right.dtype.itemsize
        lines = -(-self.columns // per_line)
        share = 1 << (-(-unroll * lines // math.prod(counts)) - 1).bit_length()  # lines of a group of points
        groups = -(-points_of_chunk // unroll)

        def ahead(*first: Dim) -> list[Statement]:
            *points, last = first
            result: list[Statement] = []
            for n in range(share):
                line = number * share + n
                index = (*points, line // lines * groups % points_of_chunk + last // unroll)
                at = {**start, **{v: start[v] + i for v, i in zip(self.form.reduced, index, strict=True)}}
                found = scalars.substitute(self.found.right, {**at, self.lane: at[self.lane] + line % lines * per_line})
                assert isinstance(found, Load)
                result.append(Prefetch(found.buffer, found.index, SECOND_CACHE))
            return result

        return ahead

    def _pack_right(
        self, packed: Buffer, block: Block, chunk: Chunk, panels: tile.Piece
    ) -> tuple[Statement, ...]:
        """packed[p, k..., l] = right(k, start + size*p + l), for the points of a chunk"""
        if self._turned(panels.size):
            return (Alloc(packed), *self._pack_squares(packed, block, chunk, panels))
        unroll = max(1, UNROLL // panels.count) if isinstance(panels.count, int) else 1
        return (Alloc(packed), *tile.reduction_loops(chunk.extents, self._pack_point(packed, block, chunk, panels), unroll))

    def _packed_in_passing(self, packed: Buffer, block: Block, chunk: Chunk, panels: tile.Piece) -> Pack | None:
        """How the first tile of rows packs what it reads; None where it does not. There must be such a tile, and one panel."""
        first = block.rows.pieces[0]
        if not self.tiles.packed_in_passing or block.outer_rows or panels.count != 1 or self._turned(panels.size):
            return None
        known = isinstance(first.count, int) and first.count > 0 and first.steps is None
        return self._pack_point(packed, block, chunk, panels) if known else None

    def _pack_point(self, packed: Buffer, block: Block, chunk: Chunk, panels: tile.Piece) -> Pack:
        """Packs one point of a chunk."""

        def point(*index: Dim) -> tuple[Statement, ...]:
            at = {**block.fixed, **chunk.at(self.form.reduced, index)}

            def panel(number: Dim) -> tuple[Statement, ...]:
                def element(_: Dim, place: Dim) -> list[Statement]:
                    lane = panels.start + number * panels.size + place
                    value = scalars.substitute(self.found.right, {**at, self.lane: lane})
                    return [Store(packed, (number, *index, place), value)]

                return tile.spread(1, panels.size, self.tiles.width, element)

            return build.loop("p", panels.count, panel, "unrolled")

        return point

    def _turned(self, lanes: Dim) -> bool:
        """Whether the right operand is stored along the last reduced axis, in words that squares can be made of."""
        right = self.found.right
        if not isinstance(right, Load) or right.dtype.itemsize < 4 or not isinstance(lanes, int) or lanes < self.tiles.width:
            return False
        apart = scalars.stride(right, self.lane)
        return scalars.stride(right, self.form.reduced[-1]) == 1 and apart is not None and apart not in (0, 1)

    def _pack_squares(
        self, packed: Buffer, block: Block, chunk: Chunk, panels: tile.Piece
    ) -> tuple[Statement, ...]:
        """The same for an operand that is stored along the last reduced axis: squares, transposed in registers."""
        size, (*outer_extents, last) = self.tiles.width, chunk.extents
        assert isinstance(panels.size, int)
        vectors, squares = panels.size // size, last // size

        def place(number: Dim, index: tuple[Dim, ...], lane: Dim) -> tuple[Statement, ...]:
            column = panels.start + number * panels.size + lane
            at = {**block.fixed, **chunk.at(self.form.reduced, index), self.lane: column}
            return (Store(packed, (number, *index, lane), scalars.substitute(self.found.right, at)),)

        def columns(number: Dim, *outer: Dim) -> tuple[Statement, ...]:
            def square(v: Dim, k: Dim) -> tuple[Statement, ...]:
                def element(n: Dim) -> tuple[Statement, ...]:
                    return place(number, (*outer, k * size + n // size), v * size + n % size)

                return build.loop("n", size * size, element, "vector", size * size)

            def row(k: Dim, start: int) -> tuple[Statement, ...]:
                return tile.spread(1, panels.size - start, size, lambda _, lane: place(number, (*outer, k), start + lane))

            done = squares * size
            beside = build.loop("k", done, lambda k: row(k, vectors * size)) if panels.size % size else ()
            below = build.loop("k", last - done, lambda k: row(done + k, 0))
            return (*build.nest(["v", "k"], [vectors, squares], square), *beside, *below)

        names = [f"k{n}" for n in range(len(outer_extents))]
        return build.nest(["p", *names], [panels.count, *outer_extents], columns)

    def _pack_left(self, block: Block, chunk: Chunk) -> tuple[Statement, ...]:
        """left_panels[block, p, k..., r] = left(rows*p + r, k), for the rows of a block, the points of a chunk"""
        if self.left_panels is None:
            return ()
        rows = block.rows

        def panels(*outer: Dim) -> tuple[Statement, ...]:
            full = build.loop("p", rows.full, lambda p: self._pack_rows(block, chunk, (*outer, p), self.tiles.rows))
            rest = build.loop(
                "e", rows.present, lambda _: self._pack_rows(block, chunk, (*outer, rows.full), rows.rest)
            )
            return (*full, *rest)

        counts = [part.count for part in block.outer_rows]
        return build.nest([f"i{n}" for n in range(len(counts))], counts, panels)

    def _pack_rows(self, block: Block, chunk: Chunk, panel: tuple[Dim, ...], height: Dim) -> tuple[Statement, ...]:
        """One panel of rows, in vectors along the last reduced axis."""
        steps = self.tiles.left_steps
        last = chunk.extents[-1]
        fixed = {**block.fixed, **self._outer_index(self.tiles.outer_rows, block.outer_rows, panel[:-1])}

        def element(r: Dim, index: tuple[Dim, ...]) -> list[Statement]:
            at: dict[Dim, Dim] = {**fixed, **chunk.at(self.form.reduced, index)}
            assert self.row is not None
            at[self.row] = block.row_start + panel[-1] * self.tiles.rows + r
            place = self._left_place(block, panel, index, r)
            return [Store(place.buffer, place.index, scalars.substitute(self.found.left, at))]

        def vectors(outer: tuple[Dim, ...], start: Dim, count: Dim) -> tuple[Statement, ...]:
            def row(r: Dim) -> tuple[Statement, ...]:
                return build.loop("l", count, lambda lane: element(r, (*outer, start + lane)), "vector", steps)

            return build.loop("r", height, row, "unrolled" if isinstance(height, int) else "serial")

        def sweep(*outer: Dim) -> tuple[Statement, ...]:
            whole = last // steps
            full = build.loop("k", whole, lambda k: vectors(outer, k * steps, steps))
            return (*full, *vectors(outer, whole * steps, last - whole * steps))

        return build.nest([f"k{n}" for n in range(len(chunk.extents) - 1)], chunk.extents[:-1], sweep)

    # --- the tile -------------------------------------------------------------------------------------------

    def _tile(
        self,
        each: Tile,
        left: Left,
        right: Right,
        chunk: Chunk,
        ahead: Ahead | None,
        pack: Pack | None,
        often: bool,
        rarely: bool,
    ) -> tuple[Statement, ...]:
        """`often`: there are more than a few such tiles, which pays for writing out a short sum. `rarely`: for each such tile
        there are so many others that its code matters more than its time."""
        each = replace(each, limit=each.rows) if rarely and (self.ends_long or chunk.first is not None) else each
        steps = self.tiles.unroll
        hints: Sequence[Statement] = ()
        if not often and len(chunk.extents) == 1 and steps > max(UNROLL, self.tiles.left_steps):
            steps = max(UNROLL, self.tiles.left_steps)
            hints, ahead = ahead(0) if ahead is not None else (), None
        if rarely and len(chunk.extents) == 1 and self.tiles.left_steps == 1:
            steps = min(steps, UNROLL // 2)
        sums = each.register(self.accumulation.mark.name, self.accumulation)

        def point(*index: Dim) -> tuple[Statement, ...]:
            def element(r: Dim, lane: Dim) -> list[Statement]:
                product = build.product(self.found.product, left(r, index), right(index, lane))
                total = build.combine("sum", Load(sums, (r, lane)), product, self.target)
                return [Store(sums, (r, lane), total)]

            return (*(pack(*index) if pack is not None else ()), *each.spread(element))

        chain = (
            Alloc(sums),
            *self._begin(each, sums, chunk),
            *hints,
            *tile.reduction_loops(chunk.extents, point, steps, ahead, self.looped),
        )
        if self.tiles.ends_apart:
            if chunk.first is None:
                return (*chain, *self._save(each, sums))
            return (*self._fetch_partial(each), *chain, *self._add_partial(each, sums, chunk.first), *self._save(each, sums))
        if chunk.first is None or chunk.last is None:
            return (*self._fetch_operands(each), *chain, *self._finish(each, sums))
        first, last = chunk.first, chunk.last
        if each.limit is not None:
            rows = tile.row_by_row(each, [sums], self.form, lambda row, own: self._add_chunk(row, own[0], first, last))
            return (*chain, *rows)
        fetch = self._fetch_operands(each)
        operands = (If(last, fetch),) if fetch else ()
        return (*self._fetch_partial(each), *operands, *chain, *self._add_chunk(each, sums, first, last))

    def _begin(self, each: Tile, sums: Buffer, chunk: Chunk) -> tuple[Statement, ...]:
        """Sums of the first chunk begin with the start of the contraction, others with 0."""
        zeros = tile.clear(each, [sums], self.form)
        if self.found.start is None:
            return zeros
        start = each.spread(lambda r, lane: [Store(sums, (r, lane), self.found.first(each.at(r, lane)))])
        return start if chunk.first is None else (If(chunk.first, start, zeros),)

    def _fetch_operands(self, each: Tile) -> tuple[Statement, ...]:
        """What the epilogue reads of matrices as large as the result comes a few columns of many rows at a time,
        which no hardware foresees: it is on its way while the micro-kernel runs."""
        if self.row is None or each.rows == 1 or each.limit is not None or not isinstance(each.lanes, int):
            return ()
        own = {final.place.buffer for final in self.form.finals} | {self.accumulation.mark}
        found: dict[Load, None] = {}
        for final in self.form.finals:
            for load in scalars.loads(final.value):
                plain = scalars.stride(load, self.lane) == 1 and scalars.stride(load, self.row) not in (0, None)
                if load.buffer not in own and plain:
                    found[load] = None
        starts = range(0, each.lanes, LINE_BYTES // self.accumulation.dtype.itemsize)

        def row(r: Dim) -> list[Statement]:
            places = [scalars.substitute(load, each.at(r, lane)) for load in found for lane in starts]
            return [Prefetch(place.buffer, place.index) for place in places if isinstance(place, Load)]

        return build.loop("r", each.rows, row, "unrolled") if found else ()

    def _partial_at(self, each: Tile, r: Dim, lane: Dim) -> Load:
        assert self.partial is not None
        found = scalars.substitute(self.partial, each.at(r, lane))
        assert isinstance(found, Load)
        return found

    def _fetch_partial(self, each: Tile) -> tuple[Statement, ...]:
        """Sums that wait in memory are on their way while the micro-kernel runs. Of a single row the hardware foresees
        all but the first line."""
        per_line = LINE_BYTES // self.accumulation.dtype.itemsize if each.rows > 1 else each.slots

        def row(r: Dim) -> list[Statement]:
            places = [self._partial_at(each, r, lane) for lane in range(0, each.slots, per_line)]
            return [Prefetch(place.buffer, place.index) for place in places]

        return build.loop("r", each.rows, row, "unrolled")

    def _add_chunk(self, each: Tile, sums: Buffer, first: Scalar, last: Scalar) -> tuple[Statement, ...]:
        """Sums so far plus this chunk's; kept in memory until the last chunk."""
        return (*self._add_partial(each, sums, first), If(last, self._finish(each, sums), self._save(each, sums)))

    def _add_partial(self, each: Tile, sums: Buffer, first: Scalar) -> tuple[Statement, ...]:
        def add(r: Dim, lane: Dim, before: Scalar) -> list[Statement]:
            return [Store(sums, (r, lane), ir.apply("add", before, Load(sums, (r, lane))))]

        begin = each.spread(lambda r, lane: add(r, lane, self.accumulation.neutral))
        go_on = each.spread(lambda r, lane: add(r, lane, self._partial_at(each, r, lane)))
        return (If(first, begin, go_on),)

    def _save(self, each: Tile, sums: Buffer) -> tuple[Statement, ...]:
        def save(r: Dim, lane: Dim) -> list[Statement]:
            at = self._partial_at(each, r, lane)
            return [Store(at.buffer, at.index, Load(sums, (r, lane)))]

        return each.spread(save)

    def _finish(self, each: Tile, sums: Buffer) -> tuple[Statement, ...]:
        """The epilogue of a tile: a few rows at a time where it is long for straight code."""
        vectors = each.slots // each.width
        heights = (h for h in range(1, each.rows) if each.rows % h == 0 and h * vectors >= TOGETHER)
        height = next(heights, None)
        if each.limit is not None or height is None or not self.ends_long:
            return tile.finish(each, [sums], self.form)
        return tile.row_by_row(each, [sums], self.form, lambda rows, own: tile.finish(rows, own, self.form), height)


def _constant(extent: Dim) -> int:
    assert isinstance(extent, int), f"axes inside a chunk have constant extents, not {extent}"
    return extent
