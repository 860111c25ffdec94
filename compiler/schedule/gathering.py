"""Row axes that only the left operand tells apart, merged, and the rows of that operand one after another.

    y[i, j, o] = sum(c: x[2*i, 2*j, c] * w[c, o])    ->    y'[m, o] = sum(c: x[2*(m // w), 2*(m % w), c] * w[c, o])
                                                     ->    y'[m, o] = sum(c: rows[m, c] * w[c, o])

A register tile has rows along one axis. An axis that is short and no multiple of a tile's height wastes a part of
each tile; two such axes as one waste it once. Rows of pixels that a stride skips are far apart, often in the same places of
the first cache. Laid out once they are read like any matrix; what is too large for that is packed, block by block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.collapse import Points, merge, mergeable
from ingot.compiler.schedule.form import ReductionForm
from ingot.compiler.schedule.padding import Filled, apart


def lay_out(operand: Load, ranges: Mapping[Dim, Dim], most: int) -> Filled | None:
    """The values of an operand for all values of its variables, in their order; None where they take more bytes than this, or
    nobody knows how many. `ranges` are the extents of variables."""
    mentioned = {v: extent for v, extent in ranges.items() if scalars.depends_on(operand, v)}
    *outer, last = mentioned.values()
    buffer = Buffer(f"{operand.buffer.name}_rows", operand.dtype, (*outer, apart(last, operand.dtype.itemsize)), "arena")
    if symbolic.less_equal(buffer.type.size * operand.dtype.itemsize, most) is not True:
        return None
    variables = tuple(symbolic.Variable(f"p{n}", 0, extent - 1) for n, extent in enumerate(mentioned.values()))
    value = scalars.substitute(operand, dict(zip(mentioned, variables, strict=True)))
    points = Points(variables, tuple(mentioned.values()), (Load(buffer, variables),), (value,))
    return Filled(Load(buffer, tuple(mentioned)), buffer, points)


def merge_rows(form: ReductionForm, right: Scalar, axis: int) -> ReductionForm | None:
    """The form with the kept axes `axis` and `axis + 1` as one; None when something else than the left operand tells
    them apart."""
    (accumulation,) = form.accumulations
    places = tuple(final.place for final in form.finals)
    values = tuple(final.value for final in form.finals)
    if not mergeable(Points(form.kept, form.kept_extents, places, (right, *values)), axis):
        return None
    merged = merge(Points(form.kept, form.kept_extents, places, (accumulation.body, *values)), axis, form.views)
    body, *changed = merged.values
    return replace(
        form,
        kept=merged.variables,
        kept_extents=merged.extents,
        accumulations=(replace(accumulation, body=body),),
        finals=tuple(
            replace(final, place=place, value=value)
            for final, place, value in zip(form.finals, merged.stores, changed, strict=True)
        ),
    )
