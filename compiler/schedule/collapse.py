"""Merging axes that memory does not tell apart.

    y[i, j] = f(x[i, j])  over i < n, j < m    ->    y'[k] = f(x'[k])  over k < n*m,  x', y' views of x, y

Two neighbouring axes a, b merge when every access either mentions neither or has them side by side, a then b,
in a buffer whose second dim is exactly the extent of b. Nothing is divided: buffers get flatter names instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, For, If, Statement, View, While
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.traverse import dims_of, nodes
from ingot.compiler.ir.types import DType
from ingot.compiler.schedule.statements import bound_buffers, loads_in, stores


@dataclass(frozen=True)
class Points:
    """What is computed at each point of a space: `stores[n]` of `values[n]`. All at the same variables."""

    variables: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    stores: tuple[Load, ...]  # places, not values
    values: tuple[Scalar, ...]


@dataclass
class Views:
    """Flatter names for buffers, made on demand; each stands for the memory of its base."""

    made: dict[tuple[Buffer, int, int], Buffer] = field(default_factory=dict)
    base: dict[Buffer, Buffer] = field(default_factory=dict)

    def merged(self, buffer: Buffer, first: int, last: int) -> Buffer:
        """The buffer with dims `first` to `last` as one."""
        if (buffer, first, last) not in self.made:
            shape = buffer.shape
            flat = (*shape[:first], symbolic.product(shape[first : last + 1]), *shape[last + 1 :])
            root = self.base.get(buffer, buffer)
            view = Buffer(f"{root.name}_flat", buffer.dtype, flat, buffer.space)
            self.made[buffer, first, last] = view
            self.base[view] = root
        return self.made[buffer, first, last]

    def words(self, buffer: Buffer, dtype: DType) -> Buffer:
        """The buffer with neighbours of its last dim as elements of a wider type."""
        count = dtype.itemsize // buffer.dtype.itemsize
        key = buffer, -1, count
        if key not in self.made:
            root = self.base.get(buffer, buffer)
            view = Buffer(f"{root.name}_words", dtype, (*buffer.shape[:-1], buffer.shape[-1] // count), buffer.space)
            self.made[key] = view
            self.base[view] = root
        return self.made[key]

    def declared(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The body with the views it uses: at its start, or behind the allocation of what they view."""
        used = {load.buffer for load in loads_in(body)} | {store.buffer for store in stores(body)}
        views = [View(view, base) for view, base in self.base.items() if view in used]
        inside = bound_buffers(tuple(body))
        local = [view for view in views if view.base in inside]
        return (*(view for view in views if view.base not in inside), *_behind_allocations(tuple(body), local))


def _behind_allocations(body: tuple[Statement, ...], views: Sequence[View]) -> tuple[Statement, ...]:
    if not views:
        return body
    result: list[Statement] = []
    for statement in body:
        match statement:
            case For(body=inner) | While(body=inner):
                statement = replace(statement, body=_behind_allocations(inner, views))
            case If(then=then, otherwise=otherwise):
                arms = _behind_allocations(then, views), _behind_allocations(otherwise, views)
                statement = replace(statement, then=arms[0], otherwise=arms[1])
            case _:
                pass
        result.append(statement)
        if isinstance(statement, Alloc):
            result += [view for view in views if view.base is statement.buffer]
    return tuple(result)


def collapse(points: Points, views: Views) -> Points:
    """Merge neighbouring axes wherever possible; axes of one element are left out."""
    points = _without_single(points)
    for axis in range(len(points.variables) - 2, -1, -1):
        if mergeable(points, axis):
            points = merge(points, axis, views)
    return points


def _without_single(points: Points) -> Points:
    """The points without axes of one element."""
    axes = list(zip(points.variables, points.extents, strict=True))
    kept = [(variable, extent) for variable, extent in axes if extent != 1]
    gone = {variable: 0 for variable, extent in axes if extent == 1 and not isinstance(variable, int)}
    rewriter = Rewriter(gone)  # type: ignore[arg-type]
    return Points(
        tuple(variable for variable, _ in kept),
        tuple(extent for _, extent in kept),
        tuple(map(rewriter.scalar, points.stores)),  # type: ignore[arg-type]
        tuple(map(rewriter.scalar, points.values)),
    )


def mergeable(points: Points, axis: int) -> bool:
    """Whether no access tells an axis and the next apart."""
    first, second = points.variables[axis : axis + 2]
    extent = points.extents[axis + 1]
    if extent == 0:
        return False
    for node in nodes(*points.stores, *points.values):
        if isinstance(node, Load):
            if not _adjacent(node, first, second, extent):
                return False
        elif any(_mentions(dim, first) or _mentions(dim, second) for dim in dims_of(node)):
            return False
    return True


def _mentions(dim: Dim, variable: Dim) -> bool:
    """Whether the dim uses the variable itself; what a run-time integer reads is looked at on its own."""
    if isinstance(dim, int):
        return False
    opaques: dict[symbolic.Atom, Dim] = {a: 0 for a in symbolic.atoms(dim) if isinstance(a, symbolic.Opaque)}
    return variable in symbolic.atoms(symbolic.substitute(dim, opaques) if opaques else dim)


def _adjacent(load: Load, first: Dim, second: Dim, extent: Dim) -> bool:
    """Whether the load mentions neither, or `second` right after `first` (dims of 1 between them aside)."""
    mentioned = [n for n, dim in enumerate(load.index) if _mentions(dim, first) or _mentions(dim, second)]
    if not mentioned:
        return True
    if len(mentioned) != 2:
        return False
    a, b = mentioned
    between = all(dim == 1 for dim in load.buffer.shape[a + 1 : b])
    return between and load.index[a] is first and load.index[b] is second and load.buffer.shape[b] == extent


def merge(points: Points, axis: int, views: Views) -> Points:
    """An axis and the next as one. An access that tells them apart has the quotient and the remainder."""
    first, second = points.variables[axis : axis + 2]
    extent = points.extents[axis] * points.extents[axis + 1]
    merged = symbolic.Variable(getattr(first, "name", "i"), 0, extent - 1)
    quotient, remainder = merged // points.extents[axis + 1], merged % points.extents[axis + 1]

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or quotient not in node.index or remainder not in node.index:
            return None
        a, b = node.index.index(quotient), node.index.index(remainder)
        between = node.buffer.shape[a + 1 : b]
        if b < a or node.buffer.shape[b] != points.extents[axis + 1] or any(dim != 1 for dim in between):
            return None
        index = (*node.index[:a], merged, *node.index[b + 1 :])
        return Load(views.merged(node.buffer, a, b), index)

    rewriter = Rewriter({first: quotient, second: remainder}, leaf)  # type: ignore[dict-item]
    places = tuple(rewriter.scalar(store) for store in points.stores)
    return Points(
        (*points.variables[:axis], merged, *points.variables[axis + 2 :]),
        (*points.extents[:axis], extent, *points.extents[axis + 2 :]),
        places,  # type: ignore[arg-type]
        tuple(map(rewriter.scalar, points.values)),
    )
