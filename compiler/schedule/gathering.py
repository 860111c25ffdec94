"""Row axes that only the left operand tells apart, merged: it is packed anyway, from wherever its elements are.

    y[i, j, o] = sum(c: x[2*i, 2*j, c] * w[c, o])    ->    y'[m, o] = sum(c: x[2*(m // w), 2*(m % w), c] * w[c, o])

A register tile has rows along one axis. An axis that is short and no multiple of a tile's height wastes a part of
each tile; two such axes as one waste it once. Packing pays the divisions, once for each row of a panel.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.compiler.ir.scalar import Scalar
from ingot.compiler.schedule.collapse import Points, merge, mergeable
from ingot.compiler.schedule.form import ReductionForm


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
