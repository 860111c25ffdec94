"""Questions about scalar expressions and rewrites of them, as scheduling needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import (
    Apply,
    Bitcast,
    Buffer,
    Cast,
    IndexValue,
    Lead,
    Load,
    Reduce,
    Scalar,
    children,
)
from ingot.compiler.ir.symbolic import Atom, Dim
from ingot.compiler.ir.traverse import dims_of, nodes, payloads

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def substitute(value: Scalar, mapping: Mapping[Any, Dim]) -> Scalar:
    """The value with atoms of its index arithmetic replaced."""
    return Rewriter(mapping).scalar(value)


def replace_loads(value: Scalar, replace: Callable[[Load], Scalar | None]) -> Scalar:
    """The value with each load for which `replace` gives something replaced by it."""
    return Rewriter(leaf=lambda node: replace(node) if isinstance(node, Load) else None).scalar(value)


def loads(value: Scalar) -> list[Load]:
    """Every load, users before operands; equal loads may repeat."""
    return [node for node in nodes(value) if isinstance(node, Load)]


def reads(value: Scalar, buffer: Buffer) -> bool:
    return any(load.buffer is buffer for load in loads(value))


def has_reduction(value: Scalar) -> bool:
    return any(isinstance(node, Reduce) for node in nodes(value))


def widest(*values: Scalar) -> int:
    """Bytes of the widest elements that are computed with. Indices that are only compared with each other are none: what
    differs between lanes is a small number."""
    found, stack, seen = 1, list(values), set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        found = max(found, node.dtype.compute.itemsize)
        compared = isinstance(node, Apply) and node.function.name in COMPARISONS
        if compared and all(isinstance(child, IndexValue) for child in children(node)):
            continue
        stack.extend(children(node))
        stack.extend(payload for dim in dims_of(node) if not isinstance(dim, int) for payload in payloads(dim))
    return found


def atoms_of_dim(dim: Dim) -> set[Atom]:
    """Symbols and variables that the dim depends on, also through run-time integers."""
    found: set[Atom] = set()
    for atom in symbolic.atoms(dim):
        if isinstance(atom, symbolic.Opaque):
            found |= atoms_of(atom.payload)  # type: ignore[arg-type]
        else:
            found.add(atom)
    return found


def atoms_of(value: Scalar) -> set[Atom]:
    """Symbols and variables that the value depends on; variables of its own reductions included."""
    found: set[Atom] = set()
    for node in nodes(value):
        for dim in dims_of(node):
            found |= atoms_of_dim(dim)
    return found


def depends_on(value: Scalar, variable: Dim) -> bool:
    return variable in atoms_of(value)


def stride(load: Load, variable: Dim) -> Dim | None:
    """How far in elements one step of the variable moves the load; None when it is not a fixed distance."""
    total: Dim = 0
    step: Dim = 1
    for index, extent in zip(reversed(load.index), reversed(load.buffer.shape), strict=True):
        coefficient = index_coefficient(index, variable)
        if coefficient is None:
            return None
        total = total + coefficient * step
        step = step * extent
    return total


def group_stride(load: Load, variable: Dim, count: int) -> Dim | None:
    """The stride of a variable within aligned groups of `count` of its values; None when it is not fixed."""
    group, place = symbolic.Variable("group", 0), symbolic.Variable("place", 0, count - 1)
    found = substitute(load, {variable: group * count + place})
    assert isinstance(found, Load)
    return stride(found, place)


def index_coefficient(index: Dim, variable: Dim) -> Dim | None:
    """The factor of the variable in an index that is affine in it; None otherwise."""
    if isinstance(index, int) or isinstance(variable, int):
        return 0
    for payload in payloads(index):
        if depends_on(payload, variable):
            return None
    return symbolic.linear_coefficient(index, variable)  # type: ignore[arg-type]


def offset(load: Load) -> Dim:
    """The element's place in the row-major buffer."""
    place: Dim = 0
    for index, extent in zip(load.index, load.buffer.shape, strict=True):
        place = place * extent + index
    return place


def until_line(place: Load, line: int) -> Dim:
    """Elements from this one to the next that begins a line of so many bytes; known when the program runs."""
    return (Lead(place.buffer, line).dim - offset(place)) % max(1, line // place.dtype.itemsize)


_HEAVY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "tanh", "sigmoid", "softplus", "erf",
    "erfc", "gelu", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "lgamma", "digamma", "pow", "atan2", "mod", "fmod", "floordiv", "truncdiv",
})  # fmt: skip
_MEDIUM = frozenset({"div", "sqrt", "rsqrt"})


def cost(value: Scalar) -> int:
    """Rough cycles of one vector of the value, loads aside."""
    total = 0
    for node in nodes(value):
        if isinstance(node, Apply):
            name = node.function.name
            total += 16 if name in _HEAVY else 6 if name in _MEDIUM else 1
        elif isinstance(node, (Cast, Bitcast)):
            total += 1
    return total
