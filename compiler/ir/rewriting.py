"""Rebuilding scalars with some of their parts replaced: fusion is substitution, and so is most of scheduling.

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
    Cast,
    Const,
    IndexValue,
    Lead,
    Load,
    Read,
    Reduce,
    Scalar,
)
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import i64

Leaf = Callable[[Scalar], "Scalar | None"]
_RELATIONS = frozenset(("lt", "le", "ge", "eq"))
_DECIDED = _RELATIONS | {"add", "sub", "and", "select"}  # where some arguments make something else of a function


class Rewriter:
    """Rebuilds scalars bottom-up. `leaf` may replace any node that was rebuilt; `mapping` replaces atoms."""

    def __init__(self, mapping: Mapping[Any, Dim] | None = None, leaf: Leaf | None = None) -> None:
        self.mapping: Mapping[Any, Dim] = mapping or {}
        self.leaf = leaf
        self._dims = symbolic.Substitution(self.mapping)
        self.done: dict[int, tuple[Scalar, Scalar]] = {}  # by identity; the key object is kept alive

    def dim(self, dim: Dim) -> Dim:
        return dim if isinstance(dim, int) else self._dims.rewrite(dim, self.scalar)

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
        if isinstance(value, Load):
            return Load(value.buffer, self.dims(value.index))
        if isinstance(value, Apply):
            return _apply(value.function, tuple(map(self.scalar, value.args)))
        match value:
            case Const() | Read() | Lead():
                return value
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


def _apply(function: ir.Function, args: tuple[Scalar, ...]) -> Scalar:
    name = function.name
    if name not in _DECIDED:
        return Apply(function, args)
    if name in _RELATIONS and all(isinstance(a, IndexValue) for a in args):
        left, right = args
        return ir.predicate(left.dim, name, right.dim)  # type: ignore[union-attr,arg-type]
    if name in ("add", "sub") and all(isinstance(a, IndexValue) and a.dtype == i64 for a in args):
        left, right = args
        return IndexValue(left.dim + right.dim if name == "add" else left.dim - right.dim, i64)  # type: ignore[union-attr]
    if name == "and" and args[0].dtype.kind == "bool":
        return ir.both(*args)
    if name == "select":
        return ir.select(*args)
    return Apply(function, args)
