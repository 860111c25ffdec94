"""Extents that a model needs to be equal although its declared dims do not say so.

A model that adds ceil(h/16) rows to 2*ceil(h/32) rows, or multiplies a dim it calls `n` by a weight of 138 rows, is
meant for inputs where these are equal. The importer reports each such pair; here they become assumptions: a dim of
an input is replaced by what it must be, an expression by the simpler of the two wherever a value has it. Programs
check them when they are called, and calls that break one are compiled for their own shapes. That a dim is larger than
declared is assumed in the same way: it equals a symbol of its name with another bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.types import TensorType
from ingot.compiler.ops.base import DimsDiffer
from ingot.compiler.ops.structure import Restate
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.values import Coded

MOST_ROUNDS = 64  # of import and assume; every round adds at least one assumption


def difference_in(error: BaseException | None) -> tuple[Dim, Dim] | None:
    """The two extents that an error is about, when it, or what caused it, is about two extents."""
    while error is not None:
        if isinstance(error, DimsDiffer):
            return error.left, error.right
        error = error.__cause__ or error.__context__
    return None


@dataclass(frozen=True)
class Assumptions:
    """What is replaced: dims of inputs, and expressions of them. Empty: nothing is assumed."""

    inputs: Mapping[Symbol, Dim] = field(default_factory=dict)
    expressions: Mapping[Dim, Dim] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.expressions)

    def with_equal(self, pairs: Iterable[tuple[Dim, Dim]]) -> Assumptions | None:
        """With these extents equal too; None when one pair cannot be or nothing is new."""
        made = self
        for left, right in pairs:
            more = made._with(left, right)
            if more is None:
                return None
            made = more
        return made if made != self else None

    def _with(self, left: Dim, right: Dim) -> Assumptions | None:
        left, right = self.stated(left), self.stated(right)
        if left == right:
            return self
        if symbolic.equal(left, right) is False:
            return None
        if _weight(left) < _weight(right):
            left, right = right, left
        if isinstance(left, Symbol):  # of two names or numbers the input's dim becomes the other
            inputs = {s: symbolic.substitute(d, {left: right}) for s, d in self.inputs.items()}
            rewritten = {
                symbolic.substitute(a, {left: right}): symbolic.substitute(b, {left: right})
                for a, b in self.expressions.items()
            }
            return Assumptions({**inputs, left: right}, {a: b for a, b in rewritten.items() if a != b})
        return replace(self, expressions={**self.expressions, left: right})

    def stated(self, dim: Dim) -> Dim:
        """The dim as it is written under these assumptions."""
        if isinstance(dim, int):
            return dim
        dim = symbolic.substitute(dim, self.inputs) if self.inputs else dim
        while dim in self.expressions:  # ends: each replacement is simpler than what it replaces
            dim = self.expressions[dim]
        return dim

    def input(self, declared: TensorType) -> TensorType:
        """The type of an input under these assumptions."""
        return declared.with_shape(tuple(symbolic.substitute(d, self.inputs) for d in declared.shape))

    def value(self, value: Any) -> Any:
        """A value with its extents as they are written under these assumptions."""
        if isinstance(value, Coded):
            tensor = self.value(value.tensor)
            return value if tensor is value.tensor else replace(value, tensor=tensor)
        if not isinstance(value, Tensor) or not self.expressions:
            return value
        shape = tuple(map(self.stated, value.shape))
        if shape == value.shape:
            return value
        return value.wrap(value.builder.emit(Restate(shape), value.value))


def _weight(dim: Dim) -> tuple[int, int, str]:
    """Numbers are simpler than names, names than expressions, short expressions than long ones."""
    kind = 0 if isinstance(dim, int) else 1 if isinstance(dim, Symbol) else 2
    return kind, len(str(dim)), str(dim)
