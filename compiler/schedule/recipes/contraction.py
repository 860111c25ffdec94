"""Contractions: sums of products, whatever their operands look like (matrix products, convolutions, attention).

    acc[m, n] = sum(k: left(m, k) * right(k, n));    then everything elementwise that follows

Kept axes are classified by the operands that mention them: rows (left only), columns (right only), batch (both).
The last kept axis belongs to the right operand and gives the lanes; one row axis gives the rows of the register
tile; all other axes are loops. Reduced axes are cut into chunks of at most CHAIN points.

    parallel over blocks of (batch..., rows, columns)
      for each chunk of the reduced axes
        for each panel of columns          pack right(k, n) of the panel into a buffer that stays in the first cache
          for each tile of rows            the micro-kernel (tile.py); between chunks its sums wait in memory

Packing evaluates the operand's expression once per element, whatever it is: transposed, strided, padded, converted.

Invariant: each output is a chain of fused multiply-adds over a chunk, in the order of the reduced axes, and its
chunks are added in order. Chunks depend on the reduced extents only, so bits do not depend on rows, columns, batch,
threads, tile edges, or on what was packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Alloc, If, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import build, lanes, partition, scalars, tile
from ingot.compiler.schedule.form import ReductionForm, reduction_form
from ingot.compiler.schedule.primitives import simplify
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.tile import Tile
from ingot.compiler.target import Target

CHAIN = 256  # products in one chain: a panel of the right operand then takes half of the first cache
LEFT_STEPS = 8  # steps of the reduced axis that packed rows keep together when they are stored along it
UNROLL = 4  # steps of the reduced axis in one iteration of the micro-kernel
LARGE_LEFT = 1 << 17  # elements of the left operand from which its order in memory matters
MANY_COLUMNS = 256  # columns that pay for packing plain rows
WIDEST_BLOCK = 4096  # columns of a block
ENOUGH_BLOCKS = 8  # blocks to divide among threads
LEAST_BLOCK = 1 << 20  # products of a block below which it is not cut further


@dataclass(frozen=True)
class ContractionTiles:
    """How a contraction is computed."""

    width: int  # lanes of a vector
    rows: int  # mr
    vectors: int  # nr = vectors * width
    row_axis: int  # kept axis of the rows; -1: a single row
    row_block: int  # mc: rows of a parallel block
    column_block: int  # nc
    chain: int  # most points of a chunk of the reduced axes
    pack_right: bool
    pack_left: bool
    left_steps: int = 1  # steps of the reduced axis that packed rows keep together
    unroll: int = UNROLL
    parallel: bool = True


@dataclass(frozen=True)
class Contraction:
    """A reduction form whose body is a product, and whose last kept axis only the right factor mentions."""

    form: ReductionForm
    left: Scalar
    right: Scalar
    row_axes: tuple[int, ...]  # kept axes that only the left factor mentions


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    form = reduction_form(kernel)
    if form is None:
        return None
    found = classify(form)
    if found is None:
        return None
    tiles = replace(decide(found, target, options), **options.decisions)
    emitter = _Emitter(found, tiles, target)
    body = simplify(emitter.statements())
    scratch = tuple(emitter.scratch)
    parameters = (*kernel.inputs, *kernel.outputs, *scratch)
    function = loops.Function(kernel.name, parameters, (*form.views.declarations(body), *body))
    return Scheduled(function, "contraction", asdict(tiles), "a sum of products of two operands", scratch)


def classify(form: ReductionForm) -> Contraction | None:
    if len(form.accumulations) != 1 or not form.kept or not form.reduced:
        return None
    (accumulation,) = form.accumulations
    body = accumulation.body
    if accumulation.combiner != "sum" or not isinstance(body, Apply) or body.function.name != "mul":
        return None
    left, right = body.args
    lane = form.kept[-1]
    if scalars.depends_on(left, lane):
        left, right = right, left
    if scalars.depends_on(left, lane) or not scalars.depends_on(right, lane):
        return None
    if not any(scalars.depends_on(left, variable) for variable in form.reduced):
        return None
    rows = tuple(
        axis
        for axis, variable in enumerate(form.kept[:-1])
        if scalars.depends_on(left, variable) and not scalars.depends_on(right, variable)
    )
    if not rows and _is_dot(form, right):
        return None
    return Contraction(form, left, right, rows)


def _is_dot(form: ReductionForm, right: Scalar) -> bool:
    """A matrix times a vector, stored along the sum: rows of dot products. One row of a product of matrices has a
    leading dim of 1 and is none: it gets the bits that it would have among other rows."""
    along_sum = any(scalars.stride(load, form.reduced[-1]) == 1 for load in scalars.loads(right))
    across = any(scalars.stride(load, form.kept[-1]) == 1 for load in scalars.loads(right))
    return along_sum and not across and 1 not in form.shape[:-1]


# --- decision -------------------------------------------------------------------------------------------------


def decide(found: Contraction, target: Target, options: ScheduleOptions) -> ContractionTiles:
    form = found.form
    (accumulation,) = form.accumulations
    width = target.lanes(accumulation.dtype.itemsize)
    row_axis = found.row_axes[-1] if found.row_axes else -1
    row_extent = form.kept_extents[row_axis] if row_axis >= 0 else 1
    column_extent = form.kept_extents[-1]
    rows, vectors = register_tile(row_extent, column_extent, width, target.vector_registers)
    pack_left = _pack_left(found, row_extent, column_extent, vectors * width)
    row_block, column_block = _blocks(form, row_extent, column_extent, rows, vectors * width, pack_left, target)
    along = any(scalars.stride(load, form.reduced[-1]) == 1 for load in scalars.loads(found.left))
    left_steps = LEFT_STEPS if pack_left and along else 1
    return ContractionTiles(
        width=width,
        rows=rows,
        vectors=vectors,
        row_axis=row_axis,
        row_block=row_block,
        column_block=column_block,
        chain=CHAIN,
        pack_right=_pack_right(found, row_extent, rows),
        pack_left=pack_left,
        left_steps=left_steps,
        unroll=max(UNROLL, left_steps),
        parallel=options.parallel and symbolic.less(_work(form), partition.SERIAL_FLOPS) is not True,
    )


def register_tile(rows: Dim, columns: Dim, width: int, registers: int) -> tuple[int, int]:
    """(rows, vectors) of the micro-kernel: accumulators, a row of the right operand and one broadcast fill the
    registers. Two vectors are best when there are many rows; fewer rows leave registers for more vectors."""
    wanted = (registers - 1 - 2) // 2
    if isinstance(rows, int) and rows < wanted:
        vectors = min(8, (registers - 1) // (rows + 1))
        height = rows
    else:
        vectors, height = 2, wanted
    if isinstance(columns, int):
        vectors = max(1, min(vectors, -(-columns // width)))
    if vectors == 1 and (not isinstance(rows, int) or rows > wanted):
        height = min(2 * wanted, registers - 2)
    if isinstance(rows, int) and rows > 0:
        height = -(-rows // -(-rows // height))  # tiles of equal height
    return max(1, height), vectors


def _pack_right(found: Contraction, row_extent: Dim, rows: int) -> bool:
    """A panel is packed when several tiles of rows read it, or when it is not contiguous as it is."""
    right = found.right
    ready = _is_plain(right, found) and scalars.stride(right, found.form.kept[-1]) == 1  # type: ignore[arg-type]
    return not ready or symbolic.less_equal(row_extent, 2 * rows) is not True


def _pack_left(found: Contraction, row_extent: Dim, column_extent: Dim, columns: int) -> bool:
    """Rows are packed when there are enough columns to pay for it: always for an expression, and for plain memory
    when it is too large to stay near, because panels then come in the order in which they are used."""
    if found.form.reduced_extents == () or not found.row_axes:
        return False
    if not _is_plain(found.left, found):
        return symbolic.less_equal(2 * columns, column_extent) is not False
    points = symbolic.product(found.form.reduced_extents)
    large = symbolic.less(row_extent * points, LARGE_LEFT) is not True
    return large and symbolic.less_equal(MANY_COLUMNS, column_extent) is not False


def _is_plain(operand: Scalar, found: Contraction) -> bool:
    """A load of the accumulator's type that every use can repeat for nothing."""
    return isinstance(operand, Load) and operand.dtype == found.form.accumulations[0].dtype


def _blocks(
    form: ReductionForm, row_extent: Dim, column_extent: Dim, rows: int, columns: int, pack_left: bool, target: Target
) -> tuple[int, int]:
    """(mc, nc): a block of rows of the left operand stays in the second cache. Blocks are cut further until there
    are some for threads, unless that makes them too small; each cut repeats the packing of the other side."""
    itemsize = form.accumulations[0].dtype.itemsize
    mc = max(1, target.l2_bytes * 5 // 8 // (CHAIN * itemsize) // rows) * rows
    nc = WIDEST_BLOCK
    if isinstance(row_extent, int):
        mc = max(rows, min(mc, -(-row_extent // rows) * rows))
    if isinstance(column_extent, int):
        nc = max(columns, min(nc, -(-column_extent // columns) * columns))
    others = symbolic.product(form.kept_extents) // symbolic.maximum(row_extent * column_extent, 1)
    points = symbolic.product(form.reduced_extents)
    sizes = (others, row_extent, column_extent, points)
    while all(isinstance(size, int) for size in sizes):
        count = others * -(-row_extent // mc) * -(-column_extent // nc)
        if symbolic.less(count, ENOUGH_BLOCKS) is not True or symbolic.less(mc * nc * points, LEAST_BLOCK) is True:
            break
        if nc >= (2 * mc if pack_left else 4 * columns):
            nc = -(-nc // 2 // columns) * columns
        elif mc > 2 * rows:
            mc = -(-mc // 2 // rows) * rows
        else:
            break
    return partition.balanced(row_extent, mc, rows), partition.balanced(column_extent, nc, columns)


def _work(form: ReductionForm) -> Dim:
    return symbolic.product((*form.kept_extents, *form.reduced_extents))


# --- emission ---------------------------------------------------------------------------------------------------

Left = Callable[[Dim, tuple[Dim, ...]], Scalar]  # (row in tile, point in chunk) -> left operand
Right = Callable[[tuple[Dim, ...], Dim], Scalar]  # (point in chunk, lane in tile) -> right operand


@dataclass(frozen=True)
class _Chunk:
    """A box of the reduced axes; `first` and `last` tell its place, None when it is the only one."""

    starts: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    first: Scalar | None = None
    last: Scalar | None = None

    def at(self, reduced: Sequence[Dim], index: Sequence[Dim]) -> dict[Dim, Dim]:
        """The reduced variables at a point of the box."""
        return {v: start + i for v, start, i in zip(reduced, self.starts, index, strict=True)}


@dataclass(frozen=True)
class _Block:
    """A parallel block: its number, the range of each kept axis, and the axes that a tile does not cover."""

    number: Dim
    ranges: partition.Ranges
    fixed: dict[Dim, Dim]


class _Emitter:
    def __init__(self, found: Contraction, tiles: ContractionTiles, target: Target) -> None:
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
        self.cut = lanes.chunking(self.form.reduced_extents, tiles.chain)
        self.sizes = self._block_sizes()
        extents = zip(self.form.kept_extents, self.sizes, strict=True)
        self.counts = [symbolic.ceildiv(extent, size) for extent, size in extents]
        self.partial = self._partial_place() if self.cut is not None else None
        self.left_panels = self._left_buffer() if tiles.pack_left else None

    def _block_sizes(self) -> list[int]:
        sizes = [1] * len(self.form.kept)
        if self.tiles.row_axis >= 0:
            sizes[self.tiles.row_axis] = self.tiles.row_block
        sizes[self.lane_axis] = self.tiles.column_block
        return sizes

    def _partial_place(self) -> Load:
        """Where sums wait between chunks: in an output of their type if there is one."""
        for final in self.form.finals:
            if final.output and final.place.dtype == self.accumulation.dtype:
                return final.place
        name = f"{self.accumulation.mark.name}_sums"
        return Load(self._scratch(name, self.form.kept_extents), self.form.kept)

    def _left_buffer(self) -> Buffer:
        """[block, panel, point..., row in panel, step]: one chunk of a block's rows at a time. The last reduced axis
        is cut into steps, so that rows that are stored along it are packed by copying vectors."""
        panels = -(-self.tiles.row_block // self.tiles.rows)
        *outer, last = self._room()
        steps = self.tiles.left_steps
        shape = (symbolic.product(self.counts), panels, *outer, -(-last // steps), self.tiles.rows, steps)
        return self._scratch("left_panels", shape)

    def _left_place(self, block: _Block, panel: Dim, index: tuple[Dim, ...], row: Dim) -> Load:
        assert self.left_panels is not None
        steps = self.tiles.left_steps
        *outer, last = index
        return Load(self.left_panels, (block.number, panel, *outer, last // steps, row, last % steps))

    def _room(self) -> tuple[int, ...]:
        """The most points of a chunk along each reduced axis."""
        if self.cut is None:
            return tuple(_constant(extent) for extent in self.form.reduced_extents)
        before = (1,) * self.cut.axis
        return (*before, self.cut.steps, *map(_constant, self.form.reduced_extents[self.cut.axis + 1 :]))

    def _scratch(self, name: str, shape: tuple[Dim, ...]) -> Buffer:
        buffer = Buffer(name, self.accumulation.dtype, shape, "arena")
        self.scratch.append(buffer)
        return buffer

    # --- loops around the tiles -------------------------------------------------------------------------------

    def statements(self) -> tuple[Statement, ...]:
        """One parallel loop over blocks: outer axes one by one, rows and columns in blocks."""

        def block(number: Dim) -> Sequence[Statement]:
            rest, ranges = number, []
            for extent, size, count in reversed(
                list(zip(self.form.kept_extents, self.sizes, self.counts, strict=True))
            ):
                start = rest % count * size
                ranges.append((start, symbolic.minimum(size, extent - start)))
                rest = rest // count
            ranges.reverse()
            covered = (self.tiles.row_axis, self.lane_axis)
            fixed = {v: ranges[axis][0] for axis, v in enumerate(self.form.kept) if axis not in covered}
            return self._chunks(_Block(number, tuple(ranges), fixed))

        if any(extent == 0 for extent in self.form.kept_extents):
            return ()
        kind = "parallel" if self.tiles.parallel else "serial"
        return build.loop("block", symbolic.product(self.counts), block, kind)

    def _chunks(self, block: _Block) -> tuple[Statement, ...]:
        extents = self.form.reduced_extents
        if self.cut is None:
            return self._rows_and_panels(block, _Chunk((0,) * len(extents), extents))
        cut = self.cut
        counts = lanes.chunk_counts(extents, cut)

        def chunk(*number: Dim) -> tuple[Statement, ...]:
            first = ir.both(*(ir.predicate(n, "eq", 0) for n in number))
            last = ir.both(*(ir.predicate(n, "eq", c - 1) for n, c in zip(number, counts, strict=True)))
            return self._rows_and_panels(block, _Chunk(*lanes.chunk_range(extents, cut, number), first, last))

        return build.nest([f"c{n}" for n in range(len(counts))], counts, chunk)

    def _rows_and_panels(self, block: _Block, chunk: _Chunk) -> tuple[Statement, ...]:
        start, count = block.ranges[self.lane_axis]
        result = list(self._pack_left(block, chunk))
        for piece in tile.cover(count, (self.columns, self.tiles.width), masked=True):

            def panel(j: Dim, piece: tile.Piece = piece) -> list[Statement]:
                return self._panel(block, chunk, start + piece.start + j * piece.size, piece.size)

            result.extend(build.loop("j", piece.count, panel))
        return tuple(result)

    def _panel(self, block: _Block, chunk: _Chunk, lane: Dim, width: Dim) -> list[Statement]:
        """A panel of columns against all rows of the block."""
        result: list[Statement] = []
        panel = None
        if self.tiles.pack_right:
            panel = Buffer("panel", self.accumulation.dtype, (*self._room(), self.columns), "stack")
            result.extend(self._pack_right(panel, block, chunk, lane, width))
        row_start, row_count = block.ranges[self.tiles.row_axis] if self.row is not None else (0, 1)
        sizes = [size for size in (self.tiles.rows, 4, 2, 1) if size <= self.tiles.rows]
        for piece in tile.cover(row_count, sizes):

            def one(i: Dim, piece: tile.Piece = piece) -> tuple[Statement, ...]:
                assert isinstance(piece.size, int)
                place = piece.start + i * piece.size
                each = Tile(
                    block.fixed, self.row, row_start + place, piece.size, self.lane, lane, width, self.tiles.width
                )
                return self._tile(each, self._left(each, block, place, chunk), self._right(each, panel, chunk), chunk)

            result.extend(build.loop("i", piece.count, one))
        return result

    # --- operands ---------------------------------------------------------------------------------------------

    def _left(self, each: Tile, block: _Block, place: Dim, chunk: _Chunk) -> Left:
        def direct(r: Dim, index: tuple[Dim, ...]) -> Scalar:
            return self._operand(self.found.left, {**each.at(r, 0), **chunk.at(self.form.reduced, index)})

        def packed(r: Dim, index: tuple[Dim, ...]) -> Scalar:
            return self._left_place(block, place // self.tiles.rows, index, place % self.tiles.rows + r)

        return direct if self.left_panels is None else packed

    def _right(self, each: Tile, panel: Buffer | None, chunk: _Chunk) -> Right:
        def direct(index: tuple[Dim, ...], lane: Dim) -> Scalar:
            return self._operand(self.found.right, {**each.at(0, lane), **chunk.at(self.form.reduced, index)})

        def packed(index: tuple[Dim, ...], lane: Dim) -> Scalar:
            assert panel is not None
            return Load(panel, (*index, lane))

        return direct if panel is None else packed

    def _operand(self, operand: Scalar, at: Mapping[Dim, Dim]) -> Scalar:
        return scalars.substitute(operand, at)

    def _pack_right(
        self, panel: Buffer, block: _Block, chunk: _Chunk, lane: Dim, width: Dim
    ) -> tuple[Statement, ...]:
        """panel[k..., l] = right(k, lane + l), for the points of a chunk"""

        def point(*index: Dim) -> tuple[Statement, ...]:
            at = {**block.fixed, **chunk.at(self.form.reduced, index)}

            def element(_: Dim, place: Dim) -> list[Statement]:
                value = self._operand(self.found.right, {**at, self.lane: lane + place})
                return [Store(panel, (*index, place), value)]

            return tile.spread(1, width, self.tiles.width, element)

        return (Alloc(panel), *tile.reduction_loops(chunk.extents, point, self.tiles.unroll))

    def _pack_left(self, block: _Block, chunk: _Chunk) -> tuple[Statement, ...]:
        """left_panels[block, p, k..., r] = left(rows*p + r, k), for the rows of a block and the points of a chunk"""
        row, rows, steps = self.row, self.tiles.rows, self.tiles.left_steps
        if self.left_panels is None or row is None:
            return ()
        start, count = block.ranges[self.tiles.row_axis]

        def element(panel: Dim, r: Dim, index: tuple[Dim, ...]) -> list[Statement]:
            at = {**block.fixed, **chunk.at(self.form.reduced, index), row: start + panel * rows + r}
            place = self._left_place(block, panel, index, r)
            return [Store(place.buffer, place.index, self._operand(self.found.left, at))]

        def panel(p: Dim, height: Dim) -> tuple[Statement, ...]:
            def copy(*outer: Dim) -> tuple[Statement, ...]:
                last = chunk.extents[-1]
                whole = build.loop("k", last // steps, lambda k: vectors(outer, k * steps, steps))
                return (*whole, *vectors(outer, last // steps * steps, last % steps))

            def vectors(outer: tuple[Dim, ...], first: Dim, number: Dim) -> tuple[Statement, ...]:
                def lanes_of(r: Dim) -> tuple[Statement, ...]:
                    return build.loop(
                        "l", number, lambda lane: element(p, r, (*outer, first + lane)), "vector", steps
                    )

                return build.loop("r", height, lanes_of, "unrolled" if isinstance(height, int) else "serial")

            return build.nest([f"k{n}" for n in range(len(chunk.extents) - 1)], chunk.extents[:-1], copy)

        rest = count % rows
        ending = build.loop("e", symbolic.minimum(1, rest), lambda _: panel(count // rows, rest))
        return (*build.loop("p", count // rows, lambda p: panel(p, rows)), *ending)

    # --- the tile ---------------------------------------------------------------------------------------------

    def _tile(self, each: Tile, left: Left, right: Right, chunk: _Chunk) -> tuple[Statement, ...]:
        sums = each.register(self.accumulation.mark.name, self.accumulation)

        def point(*index: Dim) -> tuple[Statement, ...]:
            def element(r: Dim, lane: Dim) -> list[Statement]:
                product = ir.apply("mul", left(r, index), right(index, lane))
                total = build.combine("sum", Load(sums, (r, lane)), product, self.target)
                return [Store(sums, (r, lane), total)]

            return each.spread(element)

        chain = (
            Alloc(sums),
            *tile.clear(each, [sums], self.form),
            *tile.reduction_loops(chunk.extents, point, self.tiles.unroll),
        )
        if chunk.first is None or chunk.last is None:
            return (*chain, *tile.finish(each, [sums], self.form))
        return (*self._fetch_partial(each), *chain, *self._add_chunk(each, sums, chunk.first, chunk.last))

    def _partial_at(self, each: Tile, r: Dim, lane: Dim) -> Load:
        assert self.partial is not None
        found = scalars.substitute(self.partial, each.at(r, lane))
        assert isinstance(found, Load)
        return found

    def _fetch_partial(self, each: Tile) -> tuple[Statement, ...]:
        """Sums that wait in memory are on their way while the micro-kernel runs."""

        def row(r: Dim) -> list[Statement]:
            place = self._partial_at(each, r, 0)
            return [Prefetch(place.buffer, place.index)]

        return build.loop("r", each.rows, row, "unrolled")

    def _add_chunk(self, each: Tile, sums: Buffer, first: Scalar, last: Scalar) -> tuple[Statement, ...]:
        """Sums so far plus this chunk's; kept in memory until the last chunk."""

        def add(r: Dim, lane: Dim, before: Scalar) -> list[Statement]:
            return [Store(sums, (r, lane), ir.apply("add", before, Load(sums, (r, lane))))]

        def save(r: Dim, lane: Dim) -> list[Statement]:
            at = self._partial_at(each, r, lane)
            return [Store(at.buffer, at.index, Load(sums, (r, lane)))]

        begin = each.spread(lambda r, lane: add(r, lane, self.accumulation.neutral))
        go_on = each.spread(lambda r, lane: add(r, lane, self._partial_at(each, r, lane)))
        return (
            If(first, begin, go_on),
            If(last, tile.finish(each, [sums], self.form), each.spread(save)),
        )


def _constant(extent: Dim) -> int:
    assert isinstance(extent, int), f"axes inside a chunk have constant extents, not {extent}"
    return extent
