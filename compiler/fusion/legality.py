"""What may be computed together: facts about definitions, no preferences.

Definitions of one kernel share loops over their leading axes (`outer`). A definition may join a kernel when
every element it reads from inside the kernel belongs to the same outer iteration: the first len(outer)
indices of each such load are exactly its own first variables. Everything else follows from that.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Apply, Buffer, Cast, Load, Reduce, Scalar, children, loads_of
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition


def finds_places(scalar: Scalar) -> bool:
    """Whether an element is read at a place that has to be looked up or found by cases: indices of a gather, a reflection."""
    for load in loads_of(scalar):
        for dim in load.index:
            if not isinstance(dim, int) and any(isinstance(a, (symbolic.Opaque, symbolic.Compound)) for a in dim.factors):
                return True
    return False


def aligned_depth(definition: Definition, inside: Sequence[Buffer]) -> int:
    """The longest prefix of the definition's axes that every load from `inside` follows exactly."""
    depth = len(definition.variables)
    members = set(inside)
    for load in definition.loads:
        if load.buffer in members:
            depth = min(depth, _common_prefix(load.index, definition.variables))
    return depth


def _common_prefix(left: Sequence[Dim], right: Sequence[Dim]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def reduces_rows(definition: Definition, depth: int) -> bool:
    """Whether what a definition reduces over lies behind its first `depth` axes in all that it reads: then one pass
    over the rows is enough for it and for whatever else is done with them. What is read may have some of those axes
    only, as a mask that several heads share."""
    value = definition.value
    if not isinstance(value, Reduce):
        return True
    outer, reduced = set(definition.variables[:depth]), set(value.variables)
    for load in loads_of(value):
        used = [symbolic.atoms(i) if not isinstance(i, int) else frozenset() for i in load.index]
        rows = [place for place, atoms in enumerate(used) if not atoms.isdisjoint(outer)]
        along = [place for place, atoms in enumerate(used) if not atoms.isdisjoint(reduced)]
        if rows and along and rows[-1] >= along[0]:
            return False
    return True


def stays_in_place(definition: Definition, inside: Sequence[Buffer]) -> bool:
    """Whether a definition reads members of its kernel at the index it defines, or along what it reduces: shifted
    or reversed along a row, all of the row would have to be there before."""
    if isinstance(definition.value, Reduce):
        return True
    members = set(inside)
    loads = (load for load in definition.loads if load.buffer in members)
    return all(_common_prefix(load.index, definition.variables) == len(load.index) for load in loads)


def depth_of(scalar: Scalar) -> int:
    """How many operations are one inside of another in what one op computes; at least 1."""
    return 1 + max(map(depth_of, children(scalar)), default=0)


def has_reduce(scalar: Scalar) -> bool:
    return isinstance(scalar, Reduce) or any(has_reduce(c) for c in children(scalar))


def extract_reductions(definition: Definition, name: str) -> tuple[Definition, ...]:
    """Give each Reduce below the root a definition of its own:

    y[i] = f(sum(k: ...))  ->  t[i] = sum(k: ...);  y[i] = f(t[i])
    """
    if isinstance(definition.value, Reduce) or not has_reduce(definition.value):
        return (definition,)
    made: list[Definition] = []

    def rewrite(node: Scalar) -> Scalar:
        match node:
            case Reduce():
                buffer = Buffer(f"{name}.{len(made)}", node.dtype, definition.buffer.shape)
                made.append(Definition(buffer, definition.variables, node))
                return Load(buffer, definition.variables)
            case Apply(function, args):
                return Apply(function, tuple(rewrite(a) for a in args))
            case Cast(value, dtype):
                return Cast(rewrite(value), dtype)
            case _:
                return node

    value = rewrite(definition.value)
    return (*made, Definition(definition.buffer, definition.variables, value))
