"""A bias as the start of its sum, where a contraction would begin with 0 and add the bias at the end.

    y[m, n] = f(0 + sum(k: left(m, k) * right(k, n)) + bias[n])    ->    y[m, n] = f(bias[n] + left(m, 0) * right(0, n) + ...)

A register holds the bias as cheaply as a zero, and an addition less at the end of every sum counts where sums are short. What
is added must be the same for all rows, so that one vector of it serves a whole tile.

Invariant: it follows from what the kernel computes, never from sizes, so an element has the same bits in every batch.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Apply, Load, Scalar
from ingot.compiler.ir.traverse import children, nodes
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.panels import Contraction


def with_start(found: Contraction) -> Contraction:
    """The contraction with what everything after it adds first as its start; as it is where there is no such thing."""
    form = found.form
    (accumulation,) = form.accumulations
    total = Load(accumulation.mark, ())
    start = _added(found, total)
    own = {final.place.buffer for final in form.finals}
    columns = [form.kept[axis] for axis in found.column_axes]
    if not isinstance(start, Load) or start.buffer in own or start.dtype != accumulation.dtype:
        return found
    if any(scalars.depends_on(start, variable) for variable in form.kept if variable not in columns):
        return found

    def without(node: Scalar) -> Scalar | None:
        return total if _other(node, total) == start else None

    finals = tuple(replace(final, value=Rewriter(leaf=without).scalar(final.value)) for final in form.finals)
    return replace(found, form=replace(form, finals=finals), start=start)


def _added(found: Contraction, total: Load) -> Scalar | None:
    """What every reader of the sum adds to it, if it is the same for all of them and the sum itself is not kept."""
    if any(final.value == total for final in found.form.finals):
        return None
    readers = [n for final in found.form.finals for n in nodes(final.value) if total in children(n)]
    added = {_other(reader, total) for reader in readers}
    return added.pop() if len(added) == 1 else None


def _other(node: Scalar, total: Load) -> Scalar | None:
    """What a node adds to the sum."""
    match node:
        case Apply(function, (left, right)) if function.name == "add" and left != right:
            return right if left == total else left if right == total else None
        case _:
            return None
