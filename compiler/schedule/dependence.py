"""Which iterations of a loop may touch the same element. Conservative: `None` and `False` mean "not shown".

Two iterations are told apart by an index that steps with the loop's variable by more than everything inside the loop
can add to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import For, Statement, Store, walk
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.statements import bound_buffers, loads_in, stores

Index = tuple[Dim, ...]


def conflict(loop: For) -> str | None:
    """Why iterations of the loop may depend on one another; None when each touches what is its own."""
    inside = bound_buffers(loop.body)
    for store in stores(loop.body):
        if store.buffer in inside:
            continue
        places = [n for n, index in enumerate(store.index) if separates(index, loop)]
        if not places:
            return f"its iterations may store the same elements of {store.buffer.name}"
        for index in _other_accesses(store, loop.body):
            if not any(index[n] == store.index[n] for n in places):
                return f"an iteration may touch what another one stores in {store.buffer.name}"
    return None


def _other_accesses(store: Store, body: Sequence[Statement]) -> list[Index]:
    loads = [load.index for load in loads_in(body) if load.buffer is store.buffer]
    return loads + [other.index for other in stores(body) if other.buffer is store.buffer]


def separates(index: Dim, loop: For) -> bool:
    """Whether this index differs in any two iterations of the loop."""
    step = scalars.index_coefficient(index, loop.variable)
    if step is None or step == 0 or isinstance(loop.variable, int):
        return False
    rest = index - step * loop.variable
    span = _span(rest, [s for s in walk(loop.body) if isinstance(s, For)])
    return span is not None and (bool(symbolic.less(span, step)) or bool(symbolic.less(span, -step)))


def _span(rest: Dim, inner: Sequence[For]) -> Dim | None:
    """How much an index varies over inner loops; each loop's extent counts with its greatest value."""
    total: Dim = 0
    for loop in inner:
        step = scalars.index_coefficient(rest, loop.variable)
        if step is None:
            return None
        if step == 0:
            continue
        size = step if symbolic.is_nonnegative(step) else -step
        upper = symbolic.bounds(loop.extent)[1]
        total = total + size * ((loop.extent if upper is None else upper) - 1)
    return total


def order_changes(outer: For, inner: For) -> str | None:
    """Why exchanging two perfectly nested loops may change a result; None when it does not.

    Each element must be stored once over both loops, or by iterations of one of the loops only, whose order stays.
    """
    for store in stores(inner.body):
        if store.buffer in bound_buffers(inner.body):
            continue
        if any(index != store.index for index in _other_accesses(store, inner.body)):
            return f"{store.buffer.name} is touched at different indices"
        moves = [_moves(store.index, loop) for loop in (outer, inner)]
        if None in moves:
            return f"it is not clear which elements of {store.buffer.name} it stores"
        if moves == [False, False] or (all(moves) and not _once(store.index, outer, inner)):
            return f"elements of {store.buffer.name} are stored several times, in another order afterwards"
    return None


def _moves(index: Index, loop: For) -> bool | None:
    """Whether iterations of the loop store different elements; None when unknown."""
    steps = [scalars.index_coefficient(i, loop.variable) for i in index]
    return None if None in steps else any(step != 0 for step in steps)


def _once(index: Index, outer: For, inner: For) -> bool:
    """Whether any two pairs of iterations store different elements."""
    apart = [
        (scalars.index_coefficient(i, outer.variable), scalars.index_coefficient(i, inner.variable)) for i in index
    ]
    alone_outer = any(a != 0 and b == 0 for a, b in apart)
    alone_inner = any(a == 0 and b != 0 for a, b in apart)
    if alone_outer and alone_inner:
        return True
    both = For(outer.variable, outer.extent, (inner,))
    return alone_inner is False and any(separates(i, both) for i in index) and any(b != 0 for _, b in apart)


__all__ = ["conflict", "order_changes", "separates"]
