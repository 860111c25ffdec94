"""Contractions: sums of products, whatever their operands look like (matrix products, convolutions, attention).

    acc[m, n] = sum(k: left(m, k) * right(k, n));    then everything elementwise that follows

Kept axes are classified by the operands that mention them: rows (left only), columns (right only), batch (both).
The last kept axis belongs to the right operand and gives the lanes; one row axis gives the rows of the register
tile; all other axes are loops. Reduced axes are cut into chunks of at most CHAIN points.

    parallel over blocks of (batch..., rows, columns)
      for each chunk of the reduced axes
        for each panel of columns          pack right(k, n) of the panel into a buffer that stays in the first cache
          for each tile of rows            the micro-kernel (tile.py); between chunks its sums wait in memory

A few rows use little of the right operand twice: they read it as it is stored (streams.py).

Packing evaluates the operand's expression once per element, whatever it is: transposed, strided, padded, converted.

Invariant: each output is a chain of fused multiply-adds over a chunk, in the order of the reduced axes, and its
chunks are added in order. Chunks depend on the reduced extents only, so bits do not depend on rows, columns, batch,
threads, tile edges, or on what was packed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from ingot.compiler.ir import loops, symbolic, traverse
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.scalar import Apply, Cast, Load, Scalar
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import partition, scalars
from ingot.compiler.schedule.form import ReductionForm, in_place_pairs, reduction_form
from ingot.compiler.schedule.gathering import lay_out, merge_rows
from ingot.compiler.schedule.padding import Filled, without_padding
from ingot.compiler.schedule.panels import (
    LONG_EPILOGUE,
    UNROLL,
    Contraction,
    ContractionTiles,
    PanelNest,
)
from ingot.compiler.schedule.primitives import PAGE, simplify
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.schedule.result import TURN, Scheduled, ScheduleOptions
from ingot.compiler.schedule.sizes import at_sizes
from ingot.compiler.schedule.starts import with_start
from ingot.compiler.schedule.streams import StreamNest
from ingot.compiler.schedule.tile import SUMS
from ingot.compiler.schedule.variants import either
from ingot.compiler.schedule.words import in_words
from ingot.compiler.target import Target

CHAIN = 256  # products in one chain: a panel of the right operand then takes half of the first cache
LONG_SUM = 2 * CHAIN  # products of a sum that is cut in any case
LEFT_STEPS = 8  # steps of the reduced axis that packed rows keep together when they are stored along it
LARGE_LEFT = 1 << 19  # elements of the left operand from which its order in memory matters
MANY_COLUMNS = 256  # columns that pay for packing plain rows
WIDEST_BLOCK = 4096  # columns of a block
FEW_BLOCKS = 64  # of which the last ones, which may be smaller, take a part of the time
LEAST_BLOCKS = 4  # blocks to divide among threads; twice the cores if these are more
LEAST_BLOCK = 1 << 20  # products of a block below which it is not cut further; a single row takes longer:
STREAMED_ROWS = 6  # most rows for which the right operand is read as it is stored
STREAMED_COST = 8  # cycles of a vector of it, at most
DECODED_VECTORS = 4  # of a tile whose right operand is made of several others: these take registers too
STREAMS = 8, 4  # rows of it that are read side by side: when broadcasts of the left operand stay in registers, and else
FEWEST_ROWS = 6  # rows that share what is read of the right operand, so that arithmetic takes the time
MOST_VECTORS = 8  # of a register tile: a single row
WRITTEN_OUT = 32  # products of a sum that is written out
FEW_PASSES = 2  # tiles of rows, as tall as can be, by which a large operand is read
FREE_ROW = 32  # elements of a row of an image whose size is free, where weights are large: deep in a network
SHORT_SUM = 32  # products of a sum for which beginning and ending it counts
SHORT_TILE = 16  # sums of a tile then: while these end, a processor computes the next ones if it sees them early enough
WHOLE_ROW = 6  # most vectors of a row that such a tile takes whole
STARTING_COST = 0.5  # of a register tile, in rows
NEARLY = 1.02  # of the least time: as good
GATHERED_COLUMNS = 128  # columns that pay for packing rows of two axes as one
GATHERING_GAIN = 0.94  # of the time, from which it is worth it
PACKED_ROWS = 200  # most rows for which packing takes a part of the time that is worth
PACKED_PANELS = 4  # panels at a time: so many columns of each row are read side by side
PACKING_COST = 3.0  # of packing a panel of the right operand, in rows that could be computed meanwhile
WIDE_PACKING_COST = 9.0  # the same of wide panels for two multipliers: these compute more, and it leaves the first cache
ROWS_SHARE = 0.95  # of the second cache that the rows of a block may take when panels see all chunks in turn
WAITING_BYTES = 1 << 18  # of sums that wait for their epilogue, on the stack, and at most a quarter of the second cache
SINGLE_ROW = 1 << 14  # products of one row from which it pays for code of its own where the number of rows is free
SINGLE_SIZES = 2  # free sizes of which the rows are the product at most: those of an image are three, and rarely 1
PAGED_ROWS = 256  # rows, each in a page of its own, that processors of two multipliers find again without looking pages up
FETCHING_COST = 6.0  # of fetching (or packing) the left operand, in columns that could be computed meanwhile


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    form = reduction_form(kernel)
    if form is None:
        return None
    form, padding = without_padding(form)
    found = classify(form)
    if found is None:
        return None
    found, rows = laid_out(gathered(found, target), target)
    found = with_start(in_words(found, target))
    form = found.form
    tiles = replace(decide(found, target, options), **options.decisions)
    pairs = in_place_pairs(kernel)
    if tiles.streamed:
        nest = StreamNest(found, tiles, target)
    else:
        nest = PanelNest(found, tiles, target, outputs_wait=not pairs)
    before = (*padding, *rows)
    fill = elementwise.fill([each.points for each in before], form.views, target, options)
    body = simplify((*fill, *nest.statements()))
    scratch = (*(each.buffer for each in before), *nest.scratch)
    parameters = (*kernel.inputs, *kernel.outputs, *scratch)
    function = loops.Function(kernel.name, parameters, form.views.declared(body))
    reason = "a sum of products of two operands"
    turn = TURN if tiles.returning else None
    scheduled = Scheduled(function, "contraction", asdict(tiles), reason, scratch, pairs, turn=turn)
    return _with_single_row(kernel, found, scheduled, target, options)


def _with_single_row(
    kernel: Kernel, found: Contraction, scheduled: Scheduled, target: Target, options: ScheduleOptions
) -> Scheduled:
    """Where the number of rows is free, a single one is computed by itself: it needs neither the tall tiles nor the
    packing of many, and is what a free batch mostly is."""
    rows = _free_rows(found)
    if rows is None:
        return scheduled
    single = at_sizes(kernel, {symbol: 1 for symbol in symbolic.atoms(rows) if isinstance(symbol, Symbol)})
    special = recipe(single, target, replace(options, decisions={"chain": scheduled.decisions["chain"]}))
    if special is None:
        return scheduled
    made = either(kernel, ir.predicate(rows, "eq", 1), special, scheduled)
    turn = scheduled.turn if special.turn is None else special.turn
    return replace(made, reason=f"{scheduled.reason}; a single row by itself", turn=turn)


def _free_rows(found: Contraction) -> Dim | None:
    """The rows of a tile where these are a product of a few free sizes that may be 1, and one row is work enough. Not
    those of windows: an image of one pixel is rare. Bits depend on what is reduced, so that must not change with it."""
    form = found.form
    if len(form.reduced) != 1:
        return None
    rows = form.kept_extents[found.row_axes[-1]] if found.row_axes else 1
    symbols = [atom for atom in symbolic.atoms(rows) if isinstance(atom, Symbol)]
    if not 0 < len(symbols) <= SINGLE_SIZES or rows != symbolic.product(symbols):
        return None
    if any(symbol.lower is not None and symbol.lower > 1 for symbol in symbols):
        return None
    columns = _product(form, found.column_axes)
    if any(symbol in symbolic.atoms(extent) for symbol in symbols for extent in (*form.reduced_extents, columns)):
        return None
    work = symbolic.product((*form.reduced_extents, columns))
    return None if symbolic.less(work, SINGLE_ROW) is True else rows


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
    sides = [(scalars.depends_on(left, variable), scalars.depends_on(right, variable)) for variable in form.kept]
    rows = tuple(axis for axis, side in enumerate(sides) if side == (True, False))
    columns = tuple(axis for axis, side in enumerate(sides) if side == (False, True))
    if not rows and _is_dot(form, right):
        return None
    return Contraction(form, left, right, rows, columns)


def _is_dot(form: ReductionForm, right: Scalar) -> bool:
    """A matrix times a vector, stored along the sum: rows of dot products. One row of a product of matrices has a
    leading dim of 1 and is none: it gets the bits that it would have among other rows."""
    along_sum = any(scalars.stride(load, form.reduced[-1]) == 1 for load in scalars.loads(right))
    across = any(scalars.stride(load, form.kept[-1]) == 1 for load in scalars.loads(right))
    return along_sum and not across and 1 not in form.shape[:-1]


def gathered(found: Contraction, target: Target) -> Contraction:
    """The contraction with its two last row axes as one, where that leaves fewer tiles of rows partly empty."""
    form = found.form
    if len(found.row_axes) < 2 or found.row_axes[-1] != found.row_axes[-2] + 1:
        return found
    outer, inner = (form.kept_extents[axis] for axis in found.row_axes[-2:])
    columns = _product(form, found.column_axes)
    if not isinstance(outer, int) or not isinstance(inner, int) or symbolic.less(columns, GATHERED_COLUMNS) is not False:
        return found
    width = target.lanes(form.accumulations[0].dtype.itemsize)
    depth = symbolic.product(form.reduced_extents)

    def time(rows: int) -> float:
        height, vectors = register_tile(rows, form.kept_extents[-1], width, target, depth)
        return tiles_time(rows, height, vectors, target)

    if time(outer * inner) > GATHERING_GAIN * outer * time(inner):
        return found
    merged = merge_rows(form, found.right, found.row_axes[-2])
    changed = None if merged is None else classify(merged)
    return found if changed is None else replace(changed, gathered=True)


def laid_out(found: Contraction, target: Target) -> tuple[Contraction, tuple[Filled, ...]]:
    """The contraction with merged rows read from where they are one after another, if these stay in the second cache."""
    form = found.form
    if not found.gathered or not isinstance(found.left, Load) or scalars.stride(found.left, form.reduced[-1]) != 1:
        return found, ()
    ranges = dict(zip((*form.kept, *form.reduced), (*form.kept_extents, *form.reduced_extents), strict=True))
    rows = lay_out(found.left, ranges, int(target.l2_bytes * ROWS_SHARE))
    if rows is None:
        return found, ()
    return replace(found, left=rows.operand, gathered=False), (rows,)


# --- decision -------------------------------------------------------------------------------------------------


def decide(found: Contraction, target: Target, options: ScheduleOptions) -> ContractionTiles:
    """The decision; what options say about the tile is taken into account in the rest."""
    form = found.form
    width = target.lanes(form.accumulations[0].dtype.itemsize)
    row_axis = found.row_axes[-1] if found.row_axes else -1
    row_extent = form.kept_extents[row_axis] if row_axis >= 0 else 1
    depth = symbolic.product(form.reduced_extents)
    block = _block_vectors(found, width)
    rows, vectors = register_tile(row_extent, form.kept_extents[-1], width, target, depth, block)
    rows, vectors = _few_passes(found, row_extent, depth, target) or (rows, vectors)
    vectors = next(n for n in range(vectors, 0, -1) if _goes_into(n, block))
    rows, vectors = options.decisions.get("rows", rows), options.decisions.get("vectors", vectors)
    columns = vectors * width
    streamed = options.decisions.get("streamed", _streamed(found, columns, target))
    if streamed and "vectors" not in options.decisions and len(scalars.loads(found.right)) > 1:
        vectors = min(vectors, DECODED_VECTORS)
        columns = vectors * width
    pack_left = not streamed and _pack_left(found, columns, target)
    along = any(scalars.stride(load, form.reduced[-1]) in (1, found.elements) for load in scalars.loads(found.left))
    left_steps = LEFT_STEPS if pack_left and along else 1
    pack_right = not streamed and _pack_right(found, rows, columns, target)
    mc, nc = _blocks(found, rows, columns, target, pack_right)
    if streamed:
        nc = _strip(found, columns, target)
    column_block, outer_columns = _divided(form, found.column_axes, nc, columns, nc)
    ends_apart = options.decisions.get("ends_apart", not streamed and _ends_apart(found))
    if ends_apart:  # the sums of a block stay in the second cache
        waiting = min(WAITING_BYTES, target.l2_bytes // 4) // (column_block * form.accumulations[0].dtype.itemsize)
        mc = min(mc, max(rows, waiting))
    few = FREE_ROW if _weighs_much(found, target) else mc
    row_block, outer_rows = _divided(form, found.row_axes, mc, rows, few)
    in_passing = pack_right and _packed_in_passing(found, row_block, target)
    return ContractionTiles(
        width=width,
        rows=rows,
        vectors=vectors,
        row_axis=row_axis,
        row_block=row_block,
        outer_rows=outer_rows,
        outer_columns=outer_columns,
        column_block=column_block,
        chain=_chain(depth, target),
        pack_right=pack_right,
        packed_panels=_packed_panels(found) if pack_right and not in_passing else 1,
        packed_in_passing=in_passing,
        pack_left=pack_left,
        left_steps=left_steps,
        unroll=_streams(found, rows, target) if streamed else _unrolled(found, left_steps),
        chunks_inside=_rows_stay(found, row_block, outer_rows, target),
        fetch_panels=_fetch_panels(found, rows, width, target),
        streamed=streamed,
        ends_apart=ends_apart,
        returning=options.repeated and not streamed and _returns(found, columns, target),
        parallel=options.parallel and symbolic.less(_work(form), partition.SERIAL_FLOPS) is not True,
    )


def register_tile(
    rows: Dim, columns: Dim, width: int, target: Target, depth: Dim = CHAIN, block: int | None = None
) -> tuple[int, int]:
    """(rows, vectors) of the micro-kernel: accumulators, a row of the right operand and one broadcast are in
    registers. Two vectors are best when there are many rows, and three when these are all columns; fewer rows leave
    registers for more vectors. Where sums are short, tiles are small and as wide as whole rows, or three vectors. There are
    no more rows than the first cache has ways: rows a multiple of 4096 bytes apart have their lines in the same place of it,
    and taller tiles are not faster in any case. Where two multiply-adds of wide vectors begin in a cycle, loads that are
    nearly as many hold them up, so tiles are wide and low: 24 multiply-adds take 10 loads as 6 rows of 4 vectors, and 14 as
    12 rows of 2."""
    registers, wide = target.vector_registers, target.multiply_adds > 1
    least = -(-columns // width) if isinstance(columns, int) else MOST_VECTORS
    vectors = min(target.tile_vectors, max(1, least)) if wide else 3 if least == 3 and columns == 3 * width else 2
    height = tallest = _tallest(vectors, target)
    if not wide and isinstance(columns, int) and symbolic.less_equal(depth, SHORT_SUM) is True:
        wider = _short_vectors(columns, width, target)
        vectors = next((n for n in wider if _goes_into(n, block)), vectors)
        height = tallest = min(_tallest(vectors, target), SHORT_TILE // vectors)
    if least <= 1:
        vectors = 1
        height = min(target.l1_ways, registers - 2)
    if isinstance(rows, int) and rows > 0:
        height = _height(rows, height, vectors, target)
        if height == 1 and vectors > 1:
            vectors = MOST_VECTORS  # nothing of the right operand is used twice: it needs no registers
        elif height < tallest and vectors > 1 and not (wide and height >= target.tile_vectors):
            vectors = max(2, min(MOST_VECTORS, (registers - 1) // (height + 1)))
    return height, max(1, min(vectors, least))


def _short_vectors(columns: int, width: int, target: Target) -> list[int]:
    """Vectors of the small tile of a short sum, the best first: all of a row, if these are few, because results then are
    stored in order."""
    fitting = [n for n in (columns // width, 3) if 3 <= n <= WHOLE_ROW and target.tile_rows(n) >= SHORT_TILE // n]
    return [n for n in fitting if columns % (n * width) == 0]


def _few_passes(found: Contraction, rows: Dim, depth: Dim, target: Target) -> tuple[int, int] | None:
    """(rows, vectors) of the register tile where loads count and a few rows are multiplied by panels, as they are stored, of
    which the second cache does not keep all. Then lines are what is waited for: they come best in one series, and the fewer
    tiles read them again, the better."""
    right, _ = _stored(found)
    columns = _product(found.form, found.column_axes)
    if target.multiply_adds == 1 or right is None or scalars.stride(right, found.form.kept[-1]) is not None:
        return None
    if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(depth, int):
        return None
    if not 1 < rows <= FEW_PASSES * target.l1_ways or columns * depth * right.dtype.itemsize <= target.l2_bytes // 2:
        return None
    return -(-rows // -(-rows // target.l1_ways)), 2  # tiles of equal height


def _chain(depth: Dim, target: Target) -> int:
    """Products in one chain: half as many of a long sum where a panel of a wide tile would not fit in the first cache. It
    depends on the sum alone, so bits do."""
    fits = CHAIN * target.tile_vectors * target.vector_bytes <= target.l1_bytes
    return CHAIN if fits or symbolic.less_equal(LONG_SUM, depth) is not True else CHAIN // 2


def _tallest(vectors: int, target: Target) -> int:
    return min(target.l1_ways, target.tile_rows(vectors))


def _height(rows: int, tallest: int, vectors: int, target: Target) -> int:
    """The tallest of the tiles that take nearly the least time for all rows. A tile takes as long as its rows, but
    not less than the latency of its sums, and starting it takes a little more."""
    least = SUMS // vectors
    if rows <= least:
        return rows
    times = {height: tiles_time(rows, height, vectors, target) for height in range(min(tallest, rows), least - 1, -1)}
    enough = NEARLY * min(times.values())
    return next(height for height, time in times.items() if time <= enough)


def tiles_time(rows: int, height: int, vectors: int, target: Target) -> float:
    """The time of all tiles of rows, in rows of a full tile."""

    def time(height: int) -> float:
        loads = target.multiply_adds * (height + vectors) / vectors if target.multiply_adds > 1 else 0
        return max(height, SUMS // vectors, loads) + STARTING_COST

    full, rest = divmod(rows, height)
    return full * time(height) + (time(rest) if rest else 0)


def _block_vectors(found: Contraction, width: int) -> int | None:
    """Vectors of the blocks of columns that the right operand is stored in; None where it is not."""
    lane = found.form.kept[-1]
    right, apart = _stored(found)
    if right is None or scalars.stride(right, lane) is not None:
        return None
    stored = [n for n in range(1, MOST_VECTORS + 1) if scalars.group_stride(right, lane, n * width) == apart]
    return max(stored, default=1)


def _goes_into(vectors: int, block: int | None) -> bool:
    """Whether a tile is a whole number of the blocks that the right operand is stored in, or a part of one."""
    return block is None or block % vectors == 0 or vectors % block == 0


def _stored(found: Contraction) -> tuple[Load | None, int]:
    """The right operand's place in memory, and how far apart columns are: an element, or several for words of
    narrow integers that are stored side by side."""
    match found.right:
        case (Load() as load) | Cast(Load() as load):
            return load, 1
        case Apply(function, (Cast(Load() as load), *_)) if function.name in ("pair", "quad"):
            return load, found.elements
        case _:
            return None, 1


def _pack_right(found: Contraction, rows: int, columns: int, target: Target) -> bool:
    """A panel is packed when several tiles of rows read it, or when it is not contiguous as it is. A small operand
    and windows that overlap are near already, and panels that are stored as such need nothing."""
    right, lane = found.right, found.form.kept[-1]
    width = target.lanes(found.form.accumulations[0].dtype.itemsize)
    single = symbolic.less_equal(_product(found.form, found.row_axes), rows) is True
    if single and (found.product != "mul" or _is_converted(found, width)):
        return False  # what a single tile of rows reads is made once either way
    if not (_is_plain(right, found) and isinstance(right, Load) and scalars.group_stride(right, lane, width) == 1):
        return True
    if scalars.stride(right, lane) is None:
        return False  # stored in blocks of columns
    if scalars.stride(right, found.form.reduced[-1]) == found.form.kept_extents[-1] == columns:
        return False
    if symbolic.less_equal(_product(found.form, found.row_axes), 2 * rows) is True:
        return False
    matrix = symbolic.product((*found.form.reduced_extents, found.form.kept_extents[-1])) * right.dtype.itemsize
    if symbolic.less_equal(matrix, target.l1_bytes // 2) is True:
        return False
    overlaps = any(
        lane in symbolic.atoms(index) and any(k in symbolic.atoms(index) for k in found.form.reduced)
        for index in right.index
    )
    return not overlaps


def _is_converted(found: Contraction, width: int) -> bool:
    """Whether a vector of the right operand takes a few instructions to make of vectors in memory."""
    lane, loads = found.form.kept[-1], scalars.loads(found.right)
    contiguous = bool(loads) and all(scalars.group_stride(load, lane, width) == 1 for load in loads)
    return contiguous and scalars.cost(found.right) <= STREAMED_COST


def _packed_panels(found: Contraction) -> int:
    """Panels that are packed together. Every row of a large operand is in another page, and a single panel takes one
    cache line of it."""
    form, right = found.form, found.right
    few = symbolic.less_equal(_product(form, found.row_axes), PACKED_ROWS) is True
    along = isinstance(right, Load) and scalars.stride(right, form.kept[-1]) == 1
    return PACKED_PANELS if few and along else 1


def _packed_in_passing(found: Contraction, row_block: int, target: Target) -> bool:
    """Whether the first tile of rows packs what it reads: stores that there is time for beside multiply-adds. Panels of wide
    tiles are larger than the first cache, so that packing one by itself reads and writes the second."""
    right, rows = found.right, _product(found.form, found.row_axes)
    along = isinstance(right, Load) and scalars.stride(right, found.form.kept[-1]) == 1
    few = isinstance(rows, int) and rows <= PACKED_ROWS and len(found.row_axes) == 1
    return target.multiply_adds > 1 and along and few and symbolic.less_equal(rows, row_block) is True


def _fetch_panels(found: Contraction, rows: int, width: int, target: Target) -> bool:
    """Whether the right operand comes from beyond a cache, in whole vectors, while several tiles of rows compute with the
    panel before. What the second cache could hold is seldom there, since other layers were computed meanwhile: it is
    asked for where so many tiles share the hints that these take no time."""
    right = found.right
    if not isinstance(right, Load) or not found.row_axes:
        return False
    many = symbolic.less(UNROLL * rows, _product(found.form, found.row_axes)) is True
    least = target.l1_bytes if many else target.l2_bytes
    large = symbolic.less_equal(least, right.buffer.type.size * right.dtype.itemsize) is True
    return large and scalars.group_stride(right, found.form.kept[-1], width) == 1


def _streamed(found: Contraction, columns: int, target: Target) -> bool:
    """Whether there are so few rows that reading the right operand takes the time: it is larger than the first cache,
    and stored along its columns, more of them than a tile has."""
    form, right = found.form, found.right
    rows = form.kept_extents[found.row_axes[0]] if found.row_axes else 1
    if len(form.reduced) != 1 or len(form.kept) != len(found.row_axes) + 1 or len(found.row_axes) > 1:
        return False
    if not isinstance(rows, int) or rows > STREAMED_ROWS:
        return False
    loads = scalars.loads(right)
    converted = scalars.cost(right) <= STREAMED_COST  # as it is read, which hides behind memory
    plain = _is_plain(right, found) or found.product != "mul" or converted
    if not plain or not loads or any(scalars.stride(load, form.kept[-1]) != 1 for load in loads):
        return False
    far = symbolic.less(target.l1_bytes, loads[0].buffer.type.size * loads[0].dtype.itemsize) is not False
    deep = symbolic.less(STREAMS[0], form.reduced_extents[0]) is not False
    return far and deep and symbolic.less(columns, form.kept_extents[-1]) is True


def _ends_apart(found: Contraction) -> bool:
    """Whether an epilogue is long and reads or writes several matrices as large as the result. Tile by tile these come and go
    a few lines of many rows at a time, which are often in the same places of the first cache, and nothing overlaps with
    the divisions; row by row they are streams."""
    form = found.form
    if len(form.kept) != 2 or len(found.row_axes) != 1 or not all(isinstance(e, int) for e in form.kept_extents):
        return False
    made = {form.accumulations[0].mark, *(final.place.buffer for final in form.finals)}
    read = {load for final in form.finals for load in scalars.loads(final.value) if load.buffer not in made}
    matrices = [load for load in read if all(scalars.stride(load, variable) != 0 for variable in form.kept)]
    written = [final for final in form.finals if final.output]
    is_long = sum(scalars.cost(final.value) for final in form.finals) >= LONG_EPILOGUE
    return is_long and len(matrices) + len(written) >= 2


def _returns(found: Contraction, columns: int, target: Target) -> bool:
    """Whether a loop around the kernel finds more of the right operand in a cache when it is read from both ends in turn:
    several panels that are read as they are stored, larger than the first cache together."""
    right = found.right
    if not isinstance(right, Load) or len(found.column_axes) > 1:
        return False
    if symbolic.less(columns, found.form.kept_extents[-1]) is not True:
        return False
    return symbolic.less(target.l1_bytes, right.buffer.type.size * right.dtype.itemsize) is True


def _unrolled(found: Contraction, left_steps: int) -> int:
    """Steps of the reduced axis in one iteration: all of a short sum, unless windows overlap along its innermost axis or the
    number of columns is free, since then there are tiles for every remainder, each as long. Sums of integers may be added
    in any order, and LLVM adds those of several steps first, for which there are no registers."""
    form = found.form
    if not form.accumulations[0].dtype.is_float:
        return 1
    depth = symbolic.product(form.reduced_extents)
    row = form.kept[found.row_axes[-1]] if found.row_axes else None
    overlap = found.overlapping(found.left, row)[-1] or any(found.overlapping(found.right, form.kept[-1]))
    if isinstance(depth, int) and depth <= WRITTEN_OUT and isinstance(form.kept_extents[-1], int) and not overlap:
        return max(UNROLL, left_steps, depth)
    return max(UNROLL, left_steps)


def _streams(found: Contraction, rows: int, target: Target) -> int:
    """Rows of the right operand that are read side by side. For a single row a word that is made of several of them counts
    as these: more streams, each a part of a line at a time, would drive each other out of the first cache."""
    most, least = STREAMS
    if rows == 1 and not isinstance(found.right, Load):
        return max(1, most // found.elements)
    return most if rows * most <= target.vector_registers else least


def _strip(found: Contraction, columns: int, target: Target) -> int:
    """Columns whose sums wait in the first cache; fewer where there is a single chunk to divide among threads."""
    form = found.form
    extent = _known(form.kept_extents[-1], WIDEST_BLOCK)
    if symbolic.less_equal(form.reduced_extents[0], CHAIN) is True:
        extent = -(-extent // max(LEAST_BLOCKS, 2 * target.cores))
    widest = target.l1_bytes // 2 // form.accumulations[0].dtype.itemsize
    return -(-min(widest, extent) // columns) * columns


def _pack_left(found: Contraction, columns: int, target: Target) -> bool:
    """Rows are packed when there are enough columns to pay for it: always for an expression and for rows that are looked
    up, each at an address of its own for which there are no registers, and for plain memory when it is too large to
    stay near, because panels then come in the order in which they are used. Windows that overlap would be stored
    several times. The few rows of a wide tile are streams that the hardware foresees, if they are stored along the sum, unless
    there are many and all begin at the same place of a page: then they drive each other out of the caches."""
    column_extent = _product(found.form, found.column_axes)
    if not found.row_axes:
        return False
    if found.gathered:
        return True
    left = found.left
    rows = [found.form.kept[axis] for axis in found.row_axes]
    if not (_is_plain(left, found) and isinstance(left, Load)) or _is_looked_up(left, rows):
        return symbolic.less_equal(2 * columns, column_extent) is not False
    if target.multiply_adds > 1 and scalars.stride(left, found.form.reduced[-1]) == 1 and not _meet(found, left):
        return False
    overlaps = any(
        any(v in symbolic.atoms(index) for v in rows) and any(k in symbolic.atoms(index) for k in found.form.reduced)
        for index in left.index
    )
    large = symbolic.less(left.buffer.type.size, LARGE_LEFT) is not True
    return large and not overlaps and symbolic.less_equal(MANY_COLUMNS, column_extent) is not False


def _meet(found: Contraction, left: Load) -> bool:
    """Whether more rows than a block has of those in pages of their own begin at the same place of a page, for many columns."""
    many = symbolic.less(PAGED_ROWS, _product(found.form, found.row_axes)) is True
    many = many and symbolic.less(MANY_COLUMNS, _product(found.form, found.column_axes)) is True
    return many and len(found.row_axes) == 1 and _row_bytes(found, left) % PAGE == 0


def _row_bytes(found: Contraction, load: Load) -> int:
    """From one row to the next; 1 where that is not known."""
    stride = scalars.stride(load, found.form.kept[found.row_axes[-1]])
    return stride * load.dtype.itemsize if isinstance(stride, int) and stride > 0 else 1


def _is_paged(found: Contraction) -> bool:
    """Whether each row of the left operand, or of the result, is in a page of its own."""
    results = [final.place for final in found.form.finals if final.output]
    plain = [found.left] if isinstance(found.left, Load) else []
    return bool(found.row_axes) and any(_row_bytes(found, load) >= PAGE for load in (*plain, *results))


def _is_looked_up(load: Load, rows: Sequence[Dim]) -> bool:
    """Whether memory says where each row is."""
    places = [payload for index in load.index for payload in traverse.payloads(index)]
    return any(scalars.depends_on(place, row) for place in places for row in rows)


def _rows_stay(
    found: Contraction, row_block: int, outer_rows: tuple[tuple[int, int], ...], target: Target
) -> bool:
    """Whether the rows of a block stay in the second cache over the whole reduced axis."""
    depth = symbolic.product(found.form.reduced_extents)
    rows = math.prod((row_block, *(size for _, size in outer_rows)))
    size = depth * rows * found.form.accumulations[0].dtype.itemsize
    return symbolic.less_equal(size, int(target.l2_bytes * ROWS_SHARE)) is True


def _is_plain(operand: Scalar, found: Contraction) -> bool:
    """A load of the accumulator's type that every use can repeat for nothing."""
    return isinstance(operand, Load) and operand.dtype == found.form.accumulations[0].dtype


def _blocks(found: Contraction, rows: int, columns: int, target: Target, packed: bool) -> tuple[int, int]:
    """(mc, nc): rows and columns of a parallel block.

    A block of rows of the left operand stays in the second cache, and the processor remembers the pages of its rows. Among the ways to cut that leave threads enough
    blocks the one is taken that fetches and packs the operands the fewest times and ends when all threads do.
    """
    form = found.form
    all_rows, all_columns = _product(form, found.row_axes), _product(form, found.column_axes)
    most = max(1, target.l2_bytes * 5 // 8 // (CHAIN * form.accumulations[0].dtype.itemsize))
    if target.multiply_adds > 1 and isinstance(all_rows, int) and all_rows > PAGED_ROWS and _is_paged(found):
        rounds = -(-all_rows // (PAGED_ROWS * target.cores))  # of which each gives every thread a block
        most = min(most, -(-all_rows // (rounds * target.cores)))
    height = max(1, min(_known(all_rows, most), most))
    breadth = max(1, min(_known(all_columns, WIDEST_BLOCK), WIDEST_BLOCK))
    batch = [axis for axis in range(len(form.kept)) if axis not in (*found.row_axes, *found.column_axes)]
    given = _known(_product(form, batch), 1) * _count(all_rows, height) * _count(all_columns, breadth)
    work = height * breadth * _known(symbolic.product(form.reduced_extents), CHAIN)
    least = LEAST_BLOCK * min(rows, FEWEST_ROWS) // FEWEST_ROWS
    enough = min(max(LEAST_BLOCKS, 2 * target.cores), given * max(1, work // least))
    sizes = [
        (-(-height // a // rows) * rows, -(-breadth // b // columns) * columns)
        for a, b in itertools.product(range(1, enough + 1), repeat=2)
        if a * b * given >= enough
    ]
    batches = _known(_product(form, batch), 1)
    packing = WIDE_PACKING_COST if packed and target.multiply_adds > 1 else PACKING_COST

    def time(size: tuple[int, int]) -> float:
        even = _even(all_rows, size[0], rows), _even(all_columns, size[1], columns)
        waiting = _waiting(batches, (all_rows, all_columns), even, target.cores)
        return waiting * (1 + packing / size[0] + FETCHING_COST / size[1])

    return min(sizes, key=time)


def _even(extent: Dim, size: int, unit: int) -> int:
    """The steps of a block of an extent whose blocks are about that long."""
    return partition.balanced(extent, size, unit) if isinstance(extent, int) else size


def _waiting(batches: int, extents: tuple[Dim, Dim], sizes: tuple[int, int], threads: int) -> float:
    """The time that blocks take on some threads, each of which has one range of them, in the time they would take if they
    could be divided. Of many blocks all count as equal."""
    count = batches * math.prod(map(_count, extents, sizes))
    share, rest = divmod(count, threads)
    if count > FEW_BLOCKS:
        return (share + (rest > 0)) * threads / count
    rows, columns = (_parts(extent, size) for extent, size in zip(extents, sizes, strict=True))
    work = [height * breadth for height in rows for breadth in columns] * batches
    ends = list(itertools.accumulate((share + (n < rest) for n in range(threads)), initial=0))
    return max(sum(work[start:end]) for start, end in itertools.pairwise(ends)) * threads / sum(work)


def _parts(extent: Dim, size: int) -> list[int]:
    """The sizes of the blocks of an extent, of which the last may be smaller."""
    if not isinstance(extent, int):
        return [size]
    return [min(size, extent - start) for start in range(0, extent, size)]


def _weighs_much(found: Contraction, target: Target) -> bool:
    """Whether the second cache does not hold the right operand, which each block of rows reads."""
    right, _ = _stored(found)
    return right is not None and symbolic.less(target.l2_bytes, right.buffer.type.bytes) is True


def _divided(
    form: ReductionForm, axes: tuple[int, ...], steps: int, unit: int, free: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """A number of steps along the last of some axes, in whole tiles, and along the others, `free` being assumed of a last
    one whose extent is free."""
    *outer, inner = [form.kept_extents[axis] for axis in axes] or [1]
    last = partition.balanced(inner, min(steps, -(-_known(inner, steps) // unit) * unit), unit)
    room = max(1, steps // max(1, _known(inner, free)))
    others: list[tuple[int, int]] = []
    for axis, extent in reversed(list(zip(axes[:-1], outer, strict=True))):
        size = partition.balanced(extent, min(room, max(1, _known(extent, room))))
        others.append((axis, size))
        room = max(1, room // size)
    return max(unit, last), tuple(reversed(others))


def _product(form: ReductionForm, axes: Sequence[int]) -> Dim:
    return symbolic.product(form.kept_extents[axis] for axis in axes)


def _known(dim: Dim, otherwise: int) -> int:
    return dim if isinstance(dim, int) else otherwise


def _count(extent: Dim, size: int) -> int:
    """Blocks of an extent; a symbolic one may be a single block."""
    return -(-extent // size) if isinstance(extent, int) else 1


def _work(form: ReductionForm) -> Dim:
    return symbolic.product((*form.kept_extents, *form.reduced_extents))
