"""What a pass is, and the one rewriter that rules run in.

A pass is a frozen dataclass with a `name` (its file, its dumps) that maps a valid graph to a valid graph of
the same meaning. A rule is a plain function with its algebra in the docstring, marked with the ops it looks
at; it returns a replacement or None. Rewriting replays the graph through a Builder that offers every new
value to the rules of its op, so replacements are rewritten too, duplicates merge and dead values vanish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value, replay
from ingot.compiler.ops.base import Op
from ingot.compiler.options import Options
from ingot.compiler.target import Target

Rule = Callable[[Builder, Value], Value | None]

REWRITES_PER_VALUE = 64  # a chain of rewrites longer than this is a cycle between rules


class Pass(ABC):
    """Concrete passes are frozen dataclasses; `notes` collects what was done or declined, and why."""

    name: ClassVar[str] = ""
    why_here: ClassVar[str] = ""

    def configured(self, options: Options, target: Target) -> Pass:
        """The pass as a compilation wants it; for passes whose choices depend on the machine or the user."""
        return self

    @abstractmethod
    def __call__(self, graph: Graph) -> Graph: ...


def rule(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Marks a function as a rule for values of these ops."""

    def mark(function: Rule) -> Rule:
        function.ops = ops  # type: ignore[attr-defined]
        return function

    return mark


def rewrite(graph: Graph, rules: Sequence[Rule], mapping: dict[Value, Value] | None = None) -> Graph:
    """The graph with every rule applied until none applies, in one replay. `mapping` receives old -> new value."""
    by_op: dict[type[Any], list[Rule]] = {}
    for function in rules:
        for op in function.ops:  # type: ignore[attr-defined]
            by_op.setdefault(op, []).append(function)
    depth = 0

    def offer(builder: Builder, value: Value) -> Value | None:
        nonlocal depth
        fitting = by_op.get(type(value.op))
        if fitting is None:
            return None
        if depth > REWRITES_PER_VALUE:
            raise RecursionError(f"rules rewrite each other in circles at {value}")
        depth += 1
        source, builder.source = builder.source, value.source  # what a rule makes comes from what it replaces
        try:
            for function in fitting:
                replacement = function(builder, value)
                if replacement is not None and replacement is not value:
                    if replacement.type != value.type:
                        raise TypeError(
                            f"rule {function.__name__} replaced {value!r} by {replacement!r} of another type"
                        )
                    return replacement
        finally:
            depth -= 1
            builder.source = source
        return None

    return replay(graph, Builder(offer), mapping)
