"""Compute outside a region what does not change inside it.

A value of a Scan's body that depends on captured inputs only is computed once, before the loop, and captured
instead. Of a branch only what depends on constants is taken out: it is computed when the program is made. What costs nothing (literals, stretched or moved views of a captured value that readers
compute anyway) stays, unless asked for: a rearranged weight is worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value, declare_inputs, input_of, topological, users_of
from ingot.compiler.ir.types import TupleType
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.checks import Divisor
from ingot.compiler.ops.control import If, Scan, While
from ingot.compiler.ops.elementwise import Cast
from ingot.compiler.ops.indexing import Gather, GatherElements, GatherNd, Scatter
from ingot.compiler.ops.structure import Constant, Reshape
from ingot.compiler.passes.rewriting import Pass

CHECKING = (Divisor, Gather, GatherElements, GatherNd, Scatter)  # ops that stop the program at a value that does not fit


@dataclass(frozen=True)
class Invariants(Pass):
    name: ClassVar[str] = "invariants"
    why_here: ClassVar[str] = "after weights are rearranged, so that the rearranging leaves loops"

    def __call__(self, graph: Graph) -> Graph:
        return self._within(graph, {v for v in graph.inputs if input_of(v).role == "constant"})

    def _within(self, graph: Graph, constants: set[Value]) -> Graph:
        """The graph, of whose inputs `constants` are known before the program runs."""
        if not any(isinstance(v.op, Op) and v.op.regions for v in graph.body):
            return graph
        known = _fixed_values(graph, constants)
        builder = Builder()
        made = declare_inputs(graph, builder)
        for value in graph.body:
            args = tuple(made[a] for a in value.args)
            given = [a in known for a in value.args]
            if isinstance(value.op, Scan):
                made[value] = self._before_scan(builder, value.op, args, given, value)
            elif isinstance(value.op, If):
                made[value] = self._before_branches(builder, value.op, args, given, value)
            else:
                op = self._inside(value.op, given)
                made[value] = builder.emit(op, *args, source=value.source, name=value.name)
        return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))

    def _inside(self, op: object, given: Sequence[bool]) -> object:
        """Regions that are not hoisted from are still looked into."""
        if isinstance(op, While):
            body = self._within(op.body, _chosen(op.body, [False] * op.carried, given[op.carried :]))
            return replace(op, condition=self(op.condition), body=body)
        if isinstance(op, Op) and op.regions:
            names = [name for name, field in vars(op).items() if isinstance(field, Graph)]
            return replace(op, **{name: self(getattr(op, name)) for name in names})  # type: ignore[type-var]
        return op

    def _before_scan(
        self, builder: Builder, scan: Scan, args: tuple[Value, ...], given: Sequence[bool], value: Value
    ) -> Value:
        """What the body makes of captured values alone is captured instead, and no longer what only that was made of."""
        first = scan.carried + scan.scanned
        body = self._within(scan.body, _chosen(scan.body, [False] * first, given[first:]))
        taken = _Taken(builder, body, dict(zip(body.inputs[first:], args[first:], strict=True)))
        smaller = taken.without(body, taken.frontier, len(body.inputs))
        all_args = (*args, *taken.outside)
        read = [n < first or _is_read(smaller, n) for n in range(len(all_args))]
        kept = [a for a, used in zip(all_args, read, strict=True) if used]
        body = _with_inputs(smaller, read)
        return builder.emit(replace(scan, body=body), *kept, source=value.source, name=value.name)

    def _before_branches(
        self, builder: Builder, op: If, args: tuple[Value, ...], given: Sequence[bool], value: Value
    ) -> Value:
        """What either branch makes of constants alone; both branches are given all of it, and no longer what only that
        was made of."""
        branches = []
        for region in (op.then, op.otherwise):
            region = self._within(region, _chosen(region, (), given[1:]))
            known = {i: a for i, a, is_known in zip(region.inputs, args[1:], given[1:], strict=True) if is_known}
            branches.append((region, _Taken(builder, region, known, speculative=True)))
        (then, first), (otherwise, second) = branches
        size = len(args) - 1
        then = first.without(then, first.frontier, size, after=second.frontier)
        otherwise = second.without(otherwise, second.frontier, size, before=first.frontier)
        all_args = (*args[1:], *first.outside, *second.outside)
        read = [_is_read(then, n) or _is_read(otherwise, n) for n in range(len(all_args))]
        kept = [a for a, used in zip(all_args, read, strict=True) if used]
        smaller = replace(op, then=_with_inputs(then, read), otherwise=_with_inputs(otherwise, read))
        return builder.emit(smaller, args[0], *kept, source=value.source, name=value.name)


class _Taken:
    """What is computed before a region: its values that depend on `known` inputs alone, as they are outside.
    `speculative`: the region may not run at all, so nothing that could stop the program is computed for it."""

    def __init__(self, builder: Builder, body: Graph, known: dict[Value, Value], speculative: bool = False) -> None:
        fixed = _fixed_values(body, set(known), not speculative)
        users = users_of(body)
        results = set(body.outputs)
        inside: set[Value] = set()  # what is free is made again where it is read; what it is made of need not be

        def leaves(item: Value) -> bool:
            return item in results or any(u not in fixed or u in inside for u in users[item])

        for item in reversed(body.body):
            if item in fixed and _is_free(item) and leaves(item):
                inside.add(item)
        self.frontier = [v for v in body.body if v in fixed and v not in inside and leaves(v)]
        made = dict(known)
        needed = set(topological(self.frontier))
        for inner in body.body:
            if inner in needed and inner not in made:
                made[inner] = builder.emit(inner.op, *(made[a] for a in inner.args), source=inner.source)
        self.outside = tuple(made[v] for v in self.frontier)

    @staticmethod
    def without(
        body: Graph, frontier: Sequence[Value], number: int, before: Sequence[Value] = (), after: Sequence[Value] = ()
    ) -> Graph:
        """The region, given the values of `frontier` instead of computing them, and others it does not read."""
        if not (frontier or before or after):
            return body
        builder = Builder()
        made = declare_inputs(body, builder)
        for place, item in enumerate((*before, *frontier, *after)):
            declared = builder.input(f"invariant{number + place}", item.tensor)
            if len(before) <= place < len(before) + len(frontier):
                made[item] = declared
        for inner in topological(body.outputs, frontier):
            made[inner] = builder.emit(inner.op, *(made[a] for a in inner.args), source=inner.source)
        return replace(body, inputs=builder.inputs, outputs=tuple(made[v] for v in body.outputs))


def _chosen(region: Graph, first: Sequence[bool], rest: Sequence[bool]) -> set[Value]:
    """The inputs of a region whose argument is known before the program runs."""
    return {v for v, known in zip(region.inputs, (*first, *rest), strict=True) if known}


def _is_read(graph: Graph, number: int) -> bool:
    value = graph.inputs[number]
    return bool(users_of(graph)[value]) or value in graph.outputs


def _with_inputs(graph: Graph, kept: Sequence[bool]) -> Graph:
    return replace(graph, inputs=tuple(v for v, keep in zip(graph.inputs, kept, strict=True) if keep))


def _fixed_values(body: Graph, captured: set[Value], all_ops: bool = True) -> set[Value]:
    """Captured inputs and what depends on nothing else."""
    fixed = set(captured)
    for value in body.body:
        allowed = all_ops or not isinstance(value.op, CHECKING)
        if allowed and not isinstance(value.type, TupleType) and all(a in fixed for a in value.args):
            fixed.add(value)
    return fixed


def _is_free(value: Value) -> bool:
    op = value.op
    if isinstance(op, Cast):  # whoever reads narrow integers widens them
        given, made = value.args[0].tensor.dtype, value.tensor.dtype
        return given.is_integer and made.is_integer and given.bits < made.bits
    return isinstance(op, Constant | Reshape) or (isinstance(op, Op) and op.read_through)
