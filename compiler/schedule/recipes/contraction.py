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

from dataclasses import asdict, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.loops import Statement
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import partition, scalars
from ingot.compiler.schedule.collapse import collapse
from ingot.compiler.schedule.form import ReductionForm, reduction_form
from ingot.compiler.schedule.padding import padded
from ingot.compiler.schedule.panels import UNROLL, Contraction, ContractionTiles, PanelNest
from ingot.compiler.schedule.primitives import simplify
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

CHAIN = 256  # products in one chain: a panel of the right operand then takes half of the first cache
LEFT_STEPS = 8  # steps of the reduced axis that packed rows keep together when they are stored along it
LARGE_LEFT = 1 << 17  # elements of the left operand from which its order in memory matters
MANY_COLUMNS = 256  # columns that pay for packing plain rows
WIDEST_BLOCK = 4096  # columns of a block
ENOUGH_BLOCKS = 8  # blocks to divide among threads
LEAST_BLOCK = 1 << 20  # products of a block below which it is not cut further


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    form = reduction_form(kernel)
    if form is None:
        return None
    found = classify(form)
    if found is None:
        return None
    found, padding, padded_buffers = _without_padding(found, target, options)
    tiles = replace(decide(found, target, options), **options.decisions)
    nest = PanelNest(found, tiles, target)
    body = simplify((*padding, *nest.statements()))
    scratch = (*padded_buffers, *nest.scratch)
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


def _without_padding(
    found: Contraction, target: Target, options: ScheduleOptions
) -> tuple[Contraction, tuple[Statement, ...], tuple[Buffer, ...]]:
    """The contraction with a padded operand read from memory that is padded first, when that is much smaller than
    all the uses of it."""
    form = found.form
    ranges = dict(zip((*form.kept, *form.reduced), (*form.kept_extents, *form.reduced_extents), strict=True))
    for side in ("left", "right"):
        operand: Scalar = getattr(found, side)
        mentioned = {v: extent for v, extent in ranges.items() if scalars.depends_on(operand, v)}
        made = padded(operand, mentioned)
        if made is None:
            continue
        uses = symbolic.product(mentioned.values())
        if symbolic.less_equal(2 * made.buffer.type.size, uses) is not True:
            continue
        points = collapse(made.points, form.views)
        fill = elementwise.nest(points, elementwise.decide(points, target, options))
        return replace(found, **{side: made.operand}), fill, (made.buffer,)
    return found, (), ()


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
    """A panel is packed when several tiles of rows read it, or when it is not contiguous as it is. Windows that
    overlap are near one another already."""
    right, lane = found.right, found.form.kept[-1]
    if not (_is_plain(right, found) and isinstance(right, Load) and scalars.stride(right, lane) == 1):
        return True
    if symbolic.less_equal(row_extent, 2 * rows) is True:
        return False
    overlaps = any(
        lane in symbolic.atoms(index) and any(k in symbolic.atoms(index) for k in found.form.reduced)
        for index in right.index
    )
    return not overlaps


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
