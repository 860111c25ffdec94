"""The loops of a contraction of a few rows: nothing of the right operand is used often, so it is read as it is stored.

    for block parallel {                               a chunk of the reduced axis, a strip of columns
      for some points of the chunk { for panel of columns { sums[chunk, panel] += left(k) * right(k, panel) } } }
    for panel of columns { the chunks' sums added in order; then everything elementwise that follows }

Each sweep reads a few rows of the right operand side by side, from end to end: as many streams as the hardware
foresees. The sums of a strip wait in a near cache meanwhile.

Invariant: an output is the same chain of multiply-adds as in `panels`, interrupted between points; so are its bits.
Non-goal: packing; rows by the dozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, Let, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, lanes, scalars, tile
from ingot.compiler.schedule.panels import Contraction, ContractionTiles
from ingot.compiler.schedule.tile import Cover, Tile
from ingot.compiler.target import Target


class StreamNest:
    """Emits a contraction with one reduced axis, one axis of columns and at most one of rows, a constant few.
    `scratch` are the buffers that it needs from outside."""

    def __init__(self, found: Contraction, tiles: ContractionTiles, target: Target) -> None:
        self.found = found
        self.form = found.form
        self.tiles = tiles
        self.target = target
        (self.accumulation,) = self.form.accumulations
        (self.reduced,) = self.form.reduced
        self.row = self.form.kept[tiles.row_axis] if tiles.row_axis >= 0 else None
        self.lane, self.extent = self.form.kept[-1], self.form.kept_extents[-1]
        self.cut = lanes.chunking(self.form.reduced_extents, tiles.chain, lanes.CHUNK_MULTIPLE)
        self.chunks = 1 if self.cut is None else lanes.chunk_counts(self.form.reduced_extents, self.cut)[0]
        self.rows = self._row_tiles()
        height = sum(rows for _, rows in self.rows)
        shape = (self.chunks, height, self.extent)
        self.sums = Buffer(f"{self.accumulation.mark.name}_sums", self.accumulation.dtype, shape, "arena")
        self.scratch = [self.sums]

    def statements(self) -> tuple[Statement, ...]:
        if self.extent == 0:
            return ()
        strips = symbolic.ceildiv(self.extent, self.tiles.column_block)
        kind = "parallel" if self.tiles.parallel else "serial"
        blocks = build.loop("block", self.chunks * strips, lambda n: self._block(n // strips, n % strips), kind)
        return (*blocks, *self._panels(0, self._cover(self.extent), self._finish))

    def _row_tiles(self) -> list[tuple[int, int]]:
        """(first row, rows) of the register tiles."""
        extent = self.form.kept_extents[self.tiles.row_axis] if self.row is not None else 1
        result: list[tuple[int, int]] = []
        for piece in tile.evened(tile.cover(extent, (self.tiles.rows,))).pieces:
            start, count, size = piece.start, piece.count, piece.size
            assert isinstance(start, int)
            assert isinstance(count, int)
            assert isinstance(size, int)
            result += [(start + n * size, size) for n in range(count)]
        return result

    def _cover(self, columns: Dim) -> Cover:
        return tile.cover(columns, (self.tiles.vectors * self.tiles.width, self.tiles.width), masked=True)

    def _panels(
        self, start: Dim, columns: Cover, body: Callable[[Tile], Sequence[Statement]]
    ) -> tuple[Statement, ...]:
        """`body` for the tiles of some columns."""
        result: list[Statement] = []
        for piece in columns.pieces:

            def panel(j: Dim, piece: tile.Piece = piece) -> Sequence[Statement]:
                lane = start + piece.start + j * piece.size
                tiles = [
                    Tile({}, self.row, row, rows, self.lane, lane, piece.size, self.tiles.width)
                    for row, rows in self.rows
                ]
                return [statement for each in tiles for statement in body(each)]

            result.extend(build.loop("j", piece.count, panel))
        return tuple(result)

    def _block(self, chunk: Dim, strip: Dim) -> tuple[Statement, ...]:
        """The sums of a chunk, for the columns of a strip."""
        start, extent = 0, self.form.reduced_extents[0]
        if self.cut is not None:
            (start,), (extent,) = lanes.chunk_range(self.form.reduced_extents, self.cut, (chunk,))
        size = self.tiles.column_block
        sizes = (self.tiles.vectors * self.tiles.width, self.tiles.width)
        columns = tile.cover_block(self.extent, strip, size, sizes, masked=True)

        def begin(each: Tile) -> tuple[Statement, ...]:
            return each.spread(lambda r, lane: [Store(*self._place(each, chunk, r, lane), first(each.at(r, lane)))])

        def first(at: Mapping[Dim, Dim]) -> Scalar:
            is_first = ir.predicate(chunk, "eq", 0)
            return ir.select(is_first, self.found.first(at), self.accumulation.neutral)

        def sweep(point: Dim, count: int) -> tuple[Statement, ...]:
            left, lets = self._left(start + point, count)
            return (
                *lets,
                *self._panels(strip * size, columns, lambda each: self._add(each, chunk, start + point, left)),
            )

        streams = self.tiles.unroll
        done = extent // streams * streams
        return (
            *self._panels(strip * size, columns, begin),
            *build.loop("k", extent // streams, lambda k: sweep(k * streams, streams)),
            *build.loop("k", extent - done, lambda k: sweep(done + k, 1)),
        )

    def _left(self, point: Dim, count: int) -> tuple[list[list[Scalar]], tuple[Statement, ...]]:
        """The left operand at some points, for every row, and the statements that make it."""
        rows: list[list[Scalar]] = []
        lets: list[Statement] = []
        for u in range(count):
            rows.append([])
            for r in range(sum(rows for _, rows in self.rows)):
                at: dict[Dim, Dim] = {self.reduced: point + u}
                if self.row is not None:
                    at[self.row] = r
                local = Local(f"left{u}_{r}", self.found.left.dtype)
                lets.append(Let(local, scalars.substitute(self.found.left, at)))
                rows[-1].append(Read(local))
        return rows, tuple(lets)

    def _place(self, each: Tile, chunk: Dim, r: Dim, lane: Dim) -> tuple[Buffer, tuple[Dim, ...]]:
        return self.sums, (chunk, each.row + r, each.lane + lane)

    def _add(self, each: Tile, chunk: Dim, point: Dim, left: list[list[Scalar]]) -> tuple[Statement, ...]:
        """The products at some points, added to the sums of a tile one after another."""
        sums = each.register(self.accumulation.mark.name, self.accumulation)

        def fetch(r: Dim, lane: Dim) -> list[Statement]:
            return [Store(sums, (r, lane), Load(*self._place(each, chunk, r, lane)))]

        def save(r: Dim, lane: Dim) -> list[Statement]:
            return [Store(*self._place(each, chunk, r, lane), Load(sums, (r, lane)))]

        assert isinstance(each.row, int)
        first = each.row

        def row(r: int, u: int) -> tuple[Statement, ...]:
            def element(_: Dim, lane: Dim) -> list[Statement]:
                right = scalars.substitute(self.found.right, {**each.at(r, lane), self.reduced: point + u})
                product = build.product(self.found.product, left[u][first + r], right)
                return [Store(sums, (r, lane), build.combine("sum", Load(sums, (r, lane)), product, self.target))]

            return tile.spread(1, each.lanes, each.width, element)

        added = [s for u in range(len(left)) for r in range(each.rows) for s in row(r, u)]
        return (Alloc(sums), *each.spread(fetch), *added, *each.spread(save))

    def _finish(self, each: Tile) -> tuple[Statement, ...]:
        """The sums of all chunks, and what follows."""
        sums = each.register(self.accumulation.mark.name, self.accumulation)

        def add(chunk: Dim) -> tuple[Statement, ...]:
            def element(r: Dim, lane: Dim) -> list[Statement]:
                waiting: Scalar = Load(*self._place(each, chunk, r, lane))
                only = self.cut is None
                value = waiting if only else ir.apply("add", Load(sums, (r, lane)), waiting)
                return [Store(sums, (r, lane), value)]

            return each.spread(element)

        return (
            Alloc(sums),
            *(tile.clear(each, [sums], self.form) if self.cut is not None else ()),
            *build.loop("c", self.chunks, add),
            *tile.finish(each, [sums], self.form),
        )
