"""Merging axes that memory does not tell apart.

    y[i, j] = f(x[i, j])  over i < n, j < m    ->    y'[k] = f(x'[k])  over k < n*m,  x', y' views of x, y

Two neighbouring axes a, b merge when every access either mentions neither or has them side by side, a then b,
in a buffer whose second dim is exactly the extent of b. Nothing is divided: buffers get flatter names instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import View
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.traverse import dims_of, nodes
from ingot.compiler.schedule.scalars import Rewriter


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

    made: dict[tuple[Buffer, int], Buffer] = field(default_factory=dict)
    base: dict[Buffer, Buffer] = field(default_factory=dict)

    def merged(self, buffer: Buffer, place: int) -> Buffer:
        """The buffer with dims `place` and `place + 1` as one."""
        if (buffer, place) not in self.made:
            shape = buffer.shape
            flat = (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])
            root = self.base.get(buffer, buffer)
            view = Buffer(f"{root.name}_flat", buffer.dtype, flat, buffer.space)
            self.made[buffer, place] = view
            self.base[view] = root
        return self.made[buffer, place]

    def statements(self, used: Sequence[Buffer]) -> tuple[View, ...]:
        """The declarations of the views among `used`, in that order."""
        return tuple(View(b, self.base[b]) for b in dict.fromkeys(used) if b in self.base)


def collapse(points: Points, views: Views, keep: frozenset[int] = frozenset()) -> Points:
    """Merge neighbouring axes wherever possible; an axis in `keep` is not merged with the one before it."""
    axis = len(points.variables) - 2
    while axis >= 0:
        if axis + 1 not in keep and _mergeable(points, axis):
            points = _merge(points, axis, views)
            keep = frozenset(k - 1 if k > axis else k for k in keep)
        axis -= 1
    return points


def _mergeable(points: Points, axis: int) -> bool:
    first, second = points.variables[axis], points.variables[axis + 1]
    if isinstance(first, int) or isinstance(second, int):
        return False
    extent = points.extents[axis + 1]
    for node in nodes(*points.stores, *points.values):
        if isinstance(node, Load):
            if _adjacent(node, first, second, extent) is False:
                return False
        elif any(_mentions(dim, first) or _mentions(dim, second) for dim in dims_of(node)):
            return False
    return True


def _mentions(dim: Dim, variable: Dim) -> bool:
    """Whether the dim uses the variable itself; what a run-time integer reads is looked at on its own."""
    if isinstance(dim, int):
        return False
    opaques = {atom: 0 for atom in symbolic.atoms(dim) if isinstance(atom, symbolic.Opaque)}
    return variable in symbolic.atoms(symbolic.substitute(dim, opaques) if opaques else dim)


def _adjacent(load: Load, first: Dim, second: Dim, extent: Dim) -> bool | int:
    """The place of `first` when `second` follows it; True when neither occurs; False otherwise."""
    mentioned = [n for n, dim in enumerate(load.index) if _mentions(dim, first) or _mentions(dim, second)]
    if not mentioned:
        return True
    place = mentioned[0]
    fits = (
        mentioned == [place, place + 1]
        and load.index[place] is first
        and load.index[place + 1] is second
        and load.buffer.shape[place + 1] == extent
    )
    return fits


def _merge(points: Points, axis: int, views: Views) -> Points:
    first, second = points.variables[axis : axis + 2]
    extent = points.extents[axis] * points.extents[axis + 1]
    merged = symbolic.Variable(getattr(first, "name", "i"), 0, extent - 1)
    quotient, remainder = merged // points.extents[axis + 1], merged % points.extents[axis + 1]

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load):
            return None
        for place in range(len(node.index) - 1):
            if node.index[place] == quotient and node.index[place + 1] == remainder:
                index = (*node.index[:place], merged, *node.index[place + 2 :])
                return Load(views.merged(node.buffer, place), index)
        return None

    rewriter = Rewriter({first: quotient, second: remainder}, leaf)  # type: ignore[dict-item]
    stores = tuple(rewriter.scalar(store) for store in points.stores)
    return Points(
        (*points.variables[:axis], merged, *points.variables[axis + 2 :]),
        (*points.extents[:axis], extent, *points.extents[axis + 2 :]),
        stores,  # type: ignore[arg-type]
        tuple(map(rewriter.scalar, points.values)),
    )
