"""Questions about scalar expressions and rewrites of them, as scheduling needs them.

Invariant: a rewrite keeps sharing (a node used twice is rewritten once), follows data-dependent indices into
their payloads, and decides comparisons of indices anew, so that a tile whose padding is known loses its select.
Non-goal: algebra on values; floating-point expressions are never reassociated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import (
    Apply,
    Bitcast,
    BoundedIndex,
    Buffer,
    Cast,
    Const,
    IndexValue,
    Load,
    Read,
    Reduce,
    Scalar,
)
from ingot.compiler.ir.symbolic import Atom, Dim
from ingot.compiler.ir.traverse import dims_of, nodes, payloads

Leaf = Callable[[Scalar], "Scalar | None"]
_RELATIONS = ("lt", "le", "ge", "eq")


class Rewriter:
    """Rebuilds scalars bottom-up. `leaf` may replace any node that was rebuilt; `mapping` replaces atoms."""

    def __init__(self, mapping: Mapping[Any, Dim] | None = None, leaf: Leaf | None = None) -> None:
        self.mapping: Mapping[Any, Dim] = mapping or {}
        self.leaf = leaf
        self.done: dict[int, tuple[Scalar, Scalar]] = {}  # by identity; the key object is kept alive

    def dim(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        return symbolic.substitute(dim, self.mapping, self.scalar)

    def dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(map(self.dim, dims))

    def scalar(self, value: Scalar) -> Scalar:
        found = self.done.get(id(value))
        if found is None:
            result = self._rebuild(value)
            if self.leaf is not None:
                result = self.leaf(result) or result
            found = self.done[id(value)] = (value, result)
        return found[1]

    def _rebuild(self, value: Scalar) -> Scalar:
        match value:
            case Const() | Read():
                return value
            case Load(buffer, index):
                return Load(buffer, self.dims(index))
            case Apply(function, args):
                return _apply(function.name, tuple(map(self.scalar, args)))
            case Cast(inner, dtype):
                return ir.cast(self.scalar(inner), dtype)
            case Bitcast(inner, dtype):
                return Bitcast(self.scalar(inner), dtype)
            case IndexValue(dim, dtype):
                return IndexValue(self.dim(dim), dtype)
            case BoundedIndex(inner, extent):
                return replace(value, value=self.scalar(inner), extent=self.dim(extent))
            case Reduce(combiner, variables, extents, body):
                return Reduce(combiner, self.dims(variables), self.dims(extents), self.scalar(body))


def _apply(name: str, args: tuple[Scalar, ...]) -> Scalar:
    if name in _RELATIONS and all(isinstance(a, IndexValue) for a in args):
        left, right = args
        return ir.predicate(left.dim, name, right.dim)  # type: ignore[union-attr,arg-type]
    if name == "and" and args[0].dtype.kind == "bool":
        return ir.both(*args)
    if name == "select":
        return ir.select(*args)
    return ir.apply(name, *args)


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
