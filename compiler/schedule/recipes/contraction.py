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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Alloc, If, Statement, Store
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import build, lanes, partition, scalars, tile
from ingot.compiler.schedule.form import ReductionForm, reduction_form
from ingot.compiler.schedule.lanes import Chunking
from ingot.compiler.schedule.primitives import simplify
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.tile import Tile
from ingot.compiler.target import Target

CHAIN = 256  # products in one chain: a panel of the right operand then takes half of the first cache
UNROLL = 4  # steps of the reduced axis in one iteration of the micro-kernel


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


# --- decision -----------------------------------------------------------------------------------------------------


def decide(found: Contraction, target: Target, options: ScheduleOptions) -> ContractionTiles:
    form = found.form
    (accumulation,) = form.accumulations
    width = target.lanes(accumulation.dtype.itemsize)
    row_axis = found.row_axes[-1] if found.row_axes else -1
    row_extent = form.kept_extents[row_axis] if row_axis >= 0 else 1
    column_extent = form.kept_extents[-1]
    rows, vectors = register_tile(row_extent, column_extent, width, target.vector_registers)
    pack_right = _worth_packing(found, row_extent, rows)
    pack_left = not _is_plain(found.left, accumulation.dtype) and symbolic.less(2 * vectors * width, column_extent) is True
    row_block, column_block = _blocks(form, row_extent, column_extent, rows, vectors * width, target)
    return ContractionTiles(
        width, rows, vectors, row_axis, row_block, column_block, CHAIN, pack_right, pack_left,
        parallel=options.parallel and _work(form) >= partition.SERIAL_FLOPS,
    )  # fmt: skip


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
    if isinstance(rows, int):
        height = -(-rows // -(-rows // height))  # tiles of equal height
    return max(1, height), vectors


def _worth_packing(found: Contraction, row_extent: Dim, rows: int) -> bool:
    """A panel is packed when several tiles of rows read it, or when it is not contiguous as it is."""
    lane = found.form.kept[-1]
    (accumulation,) = found.form.accumulations
    ready = _is_plain(found.right, accumulation.dtype) and scalars.stride(found.right, lane) == 1  # type: ignore[arg-type]
    return not ready or symbolic.less_equal(row_extent, 2 * rows) is not True


def _is_plain(operand: Scalar, dtype: Any) -> bool:
    return isinstance(operand, Load) and operand.dtype == dtype


def _blocks(
    form: ReductionForm, row_extent: Dim, column_extent: Dim, rows: int, columns: int, target: Target
) -> tuple[int, int]:
    """(mc, nc): a block of rows of the left operand stays in the second cache; blocks are cut further until there
    are some for threads, but not below what makes a block worth its overhead."""
    itemsize = form.accumulations[0].dtype.itemsize
    most = max(1, target.l2_bytes * 5 // 8 // (CHAIN * itemsize) // rows) * rows
    mc = partition.balanced(row_extent, most, rows)
    nc = partition.balanced(column_extent, 1 << 12, columns)
    return mc, nc


def _work(form: ReductionForm) -> float:
    work = symbolic.product((*form.kept_extents, *form.reduced_extents))
    return work if isinstance(work, int) else float("inf")


# --- emission -----------------------------------------------------------------------------------------------------


class _Emitter:
    def __init__(self, found: Contraction, tiles: ContractionTiles, target: Target) -> None:
        self.found = found
        self.form = found.form
        self.tiles = tiles
        self.target = target
        self.scratch: list[Buffer] = []
        (self.accumulation,) = self.form.accumulations
        self.lane_axis = len(self.form.kept) - 1
        self.columns = tiles.vectors * tiles.width
        self.cut = lanes.chunking(self.form.reduced_extents, tiles.chain)
        self.partial: Load | None = None

    def statements(self) -> tuple[Statement, ...]:
        if any(extent == 0 for extent in self.form.kept_extents):
            return ()
        if self.cut is not None:
            self.partial = self._partial_place()
        return self._blocks(self._block)

    def _partial_place(self) -> Load:
        """Where sums wait between chunks: in an output of their type if there is one."""
        for final in self.form.finals:
            if final.output and final.place.dtype == self.accumulation.dtype:
                return final.place
        buffer = Buffer(f"{self.accumulation.mark.name}_sums", self.accumulation.dtype, self.form.kept_extents, "arena")
        self.scratch.append(buffer)
        return Load(buffer, self.form.kept)

    # --- loops around the tiles ---------------------------------------------------------------------------------

    def _blocks(self, body: Any) -> tuple[Statement, ...]:
        """One parallel loop over blocks: outer axes one by one, rows and columns in blocks."""
        sizes = [1] * len(self.form.kept)
        if self.tiles.row_axis >= 0:
            sizes[self.tiles.row_axis] = self.tiles.row_block
        sizes[self.lane_axis] = self.tiles.column_block
        extents = self.form.kept_extents
        counts = [symbolic.ceildiv(extent, size) for extent, size in zip(extents, sizes, strict=True)]

        def block(number: Dim) -> Sequence[Statement]:
            ranges: list[tuple[Dim, Dim]] = []
            for extent, size, count in reversed(list(zip(extents, sizes, counts, strict=True))):
                start = number % count * size
                ranges.append((start, symbolic.minimum(size, extent - start)))
                number = number // count
            return body(tuple(reversed(ranges)))

        kind = "parallel" if self.tiles.parallel else "serial"
        return build.loop("block", symbolic.product(counts), block, kind)

    def _block(self, ranges: partition.Ranges) -> tuple[Statement, ...]:
        if self.cut is None:
            zeros = (0,) * len(self.form.reduced)
            return self._panels(ranges, zeros, self.form.reduced_extents, None, None)
        cut = self.cut
        counts = lanes.chunk_counts(self.form.reduced_extents, cut)

        def chunk(*number: Dim) -> tuple[Statement, ...]:
            starts, extents = lanes.chunk_range(self.form.reduced_extents, cut, number)
            first = ir.both(*(ir.predicate(n, "eq", 0) for n in number))
            last = ir.both(*(ir.predicate(n, "eq", c - 1) for n, c in zip(number, counts, strict=True)))
            return self._panels(ranges, starts, extents, first, last)

        return build.nest([f"c{n}" for n in range(len(counts))], counts, chunk)

    def _panels(
        self,
        ranges: partition.Ranges,
        starts: Sequence[Dim],
        extents: Sequence[Dim],
        first: Scalar | None,
        last: Scalar | None,
    ) -> tuple[Statement, ...]:
        start, count = ranges[self.lane_axis]
        fixed: dict[Dim, Dim] = {
            self.form.kept[axis]: ranges[axis][0]
            for axis in range(len(self.form.kept))
            if axis not in (self.tiles.row_axis, self.lane_axis)
        }
        result: list[Statement] = []
        for piece in tile.cover(count, (self.columns, self.tiles.width), masked=True):

            def panel(j: Dim, piece: tile.Piece = piece) -> list[Statement]:
                lane = start + piece.start + j * piece.size
                return self._panel(ranges, fixed, lane, piece.size, _Chunk(starts, extents, first, last))

            result.extend(build.loop("j", piece.count, panel))
        return tuple(result)

    def _panel(
        self, ranges: partition.Ranges, fixed: Mapping[Dim, Dim], lane: Dim, lanes_: Dim, chunk: _Chunk
    ) -> list[Statement]:
        packed, result = self._pack(fixed, lane, lanes_, chunk) if self.tiles.pack_right else (None, [])
        row_start, row_count = ranges[self.tiles.row_axis] if self.tiles.row_axis >= 0 else (0, 1)
        sizes = [size for size in (self.tiles.rows, 4, 2, 1) if size <= self.tiles.rows]
        axis = self.form.kept[self.tiles.row_axis] if self.tiles.row_axis >= 0 else None
        for piece in tile.cover(row_count, sizes):
            assert isinstance(piece.size, int)

            def one(i: Dim, piece: tile.Piece = piece) -> tuple[Statement, ...]:
                row = row_start + piece.start + i * piece.size
                height = piece.size
                assert isinstance(height, int)
                each = Tile(fixed, axis, row, height, self.form.kept[-1], lane, lanes_, self.tiles.width)
                return self._tile(each, packed, chunk)

            result.extend(build.loop("i", piece.count, one))
        return result

    # --- packing --------------------------------------------------------------------------------------------------

    def _pack(
        self, fixed: Mapping[Dim, Dim], lane: Dim, lanes_: Dim, chunk: _Chunk
    ) -> tuple[Buffer, list[Statement]]:
        """panel[k..., l] = right(k, lane + l), for the points of a chunk"""
        width = self.tiles.width
        room = [_most(extent) for extent in chunk.extents]
        panel = Buffer("panel", self.accumulation.dtype, (*room, self.columns), "stack")

        def point(*index: Dim) -> tuple[Statement, ...]:
            at = {v: start + i for v, start, i in zip(self.form.reduced, chunk.starts, index, strict=True)}

            def element(_: Dim, l: Dim) -> list[Statement]:
                value = scalars.substitute(self.found.right, {**fixed, **at, self.form.kept[-1]: lane + l})  # type: ignore[arg-type]
                return [Store(panel, (*index, l), value)]

            return tile.spread(1, lanes_, width, element)

        return panel, [Alloc(panel), *tile.reduction_loops(chunk.extents, point, self.tiles.unroll)]

    # --- the tile -------------------------------------------------------------------------------------------------

    def _tile(self, each: Tile, packed: Buffer | None, chunk: _Chunk) -> tuple[Statement, ...]:
        form, accumulation = self.form, self.accumulation
        sums = each.register(accumulation.mark.name, accumulation)

        def point(*index: Dim) -> tuple[Statement, ...]:
            at = {v: start + i for v, start, i in zip(form.reduced, chunk.starts, index, strict=True)}

            def element(r: Dim, l: Dim) -> list[Statement]:
                rewriter = scalars.Rewriter({**each.at(r, l), **at})  # type: ignore[arg-type]
                left = rewriter.scalar(self.found.left)
                right = rewriter.scalar(self.found.right) if packed is None else Load(packed, (*index, l))
                product = ir.apply("mul", left, right)
                return [Store(sums, (r, l), build.combine("sum", Load(sums, (r, l)), product, self.target))]

            return each.spread(element)

        chain = (
            Alloc(sums),
            *tile.clear(each, [sums], form),
            *tile.reduction_loops(chunk.extents, point, self.tiles.unroll),
        )
        if chunk.first is None or chunk.last is None:
            return (*chain, *tile.finish(each, [sums], form))
        return (*chain, *self._add_chunk(each, sums, chunk.first, chunk.last))

    def _add_chunk(self, each: Tile, sums: Buffer, first: Scalar, last: Scalar) -> tuple[Statement, ...]:
        """Sums so far plus this chunk's; kept in memory until the last chunk."""
        assert self.partial is not None
        partial = self.partial

        def place(r: Dim, l: Dim) -> Load:
            found = scalars.substitute(partial, each.at(r, l))  # type: ignore[arg-type]
            assert isinstance(found, Load)
            return found

        def add(value: Any) -> tuple[Statement, ...]:
            return each.spread(
                lambda r, l: [Store(sums, (r, l), ir.apply("add", value(r, l), Load(sums, (r, l))))]
            )

        def save(r: Dim, l: Dim) -> list[Statement]:
            at = place(r, l)
            return [Store(at.buffer, at.index, Load(sums, (r, l)))]

        return (
            If(first, add(lambda r, l: self.accumulation.neutral), add(place)),
            If(last, tile.finish(each, [sums], self.form), each.spread(save)),
        )


@dataclass(frozen=True)
class _Chunk:
    """A box of the reduced axes; `first` and `last` tell its place, None when it is the only one."""

    starts: Sequence[Dim]
    extents: Sequence[Dim]
    first: Scalar | None
    last: Scalar | None


def _most(extent: Dim) -> int:
    """The greatest value of an extent inside a chunk."""
    upper = symbolic.bounds(extent)[1]
    assert upper is not None, extent
    return upper


__all__ = ["Chunking", "Contraction", "ContractionTiles", "classify", "decide", "recipe", "register_tile"]
