"""Compute outside a loop what does not change inside it.

A value of a Scan's or While's body that depends on captured inputs only is computed once, before the loop,
and captured instead. What costs nothing (literals, stretched or moved views of a captured value that readers
compute anyway) stays, unless asked for: a rearranged weight is worth keeping.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value, declare_inputs, topological, users_of
from ingot.compiler.ir.types import TupleType
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.control import Scan, While
from ingot.compiler.ops.elementwise import Cast
from ingot.compiler.ops.structure import Constant, Reshape
from ingot.compiler.passes.rewriting import Pass


@dataclass(frozen=True)
class Invariants(Pass):
    name: ClassVar[str] = "invariants"
    why_here: ClassVar[str] = "after weights are rearranged, so that the rearranging leaves loops"

    def __call__(self, graph: Graph) -> Graph:
        if not any(isinstance(v.op, Op) and v.op.regions for v in graph.body):
            return graph
        builder = Builder()
        made = declare_inputs(graph, builder)
        for value in graph.body:
            args = tuple(made[a] for a in value.args)
            if isinstance(value.op, Scan):
                made[value] = self._hoist(builder, value.op, args, value)
            else:
                made[value] = builder.emit(self._inside(value.op), *args, source=value.source, name=value.name)
        return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))

    def _inside(self, op: object) -> object:
        """Regions that are not hoisted from are still looked into."""
        if isinstance(op, While):
            return replace(op, condition=self(op.condition), body=self(op.body))
        if isinstance(op, Op) and op.regions:
            names = [name for name, field in vars(op).items() if isinstance(field, Graph)]
            return replace(op, **{name: self(getattr(op, name)) for name in names})  # type: ignore[type-var]
        return op

    def _hoist(self, builder: Builder, scan: Scan, args: tuple[Value, ...], value: Value) -> Value:
        body = self(scan.body)
        first = scan.carried + scan.scanned
        outside = dict(zip(body.inputs[first:], args[first:], strict=True))
        fixed = _fixed_values(body, set(outside))
        users = users_of(body)
        results = set(body.outputs)
        inside: set[Value] = set()  # what is free is made again where it is read; what it is made of need not be

        def leaves(item: Value) -> bool:
            return item in results or any(u not in fixed or u in inside for u in users[item])

        for item in reversed(body.body):
            if item in fixed and _is_free(item) and leaves(item):
                inside.add(item)
        frontier = [v for v in body.body if v in fixed and v not in inside and leaves(v)]
        if not frontier:
            return builder.emit(replace(scan, body=body), *args, source=value.source, name=value.name)
        needed = set(topological(frontier))
        for inner in body.body:
            if inner in needed and inner not in outside:
                outside[inner] = builder.emit(inner.op, *(outside[a] for a in inner.args), source=inner.source)
        inner_builder = Builder()
        made = declare_inputs(body, inner_builder)
        for number, item in enumerate(frontier):
            made[item] = inner_builder.input(f"invariant{number}", item.tensor)
        for inner in body.body:
            if inner not in made:
                made[inner] = inner_builder.emit(inner.op, *(made[a] for a in inner.args), source=inner.source)
        smaller = replace(body, inputs=inner_builder.inputs, outputs=tuple(made[v] for v in body.outputs))
        extra = tuple(outside[v] for v in frontier)
        return builder.emit(replace(scan, body=smaller), *args, *extra, source=value.source, name=value.name)


def _fixed_values(body: Graph, captured: set[Value]) -> set[Value]:
    """Captured inputs and what depends on nothing else."""
    fixed = set(captured)
    for value in body.body:
        if not isinstance(value.type, TupleType) and all(a in fixed for a in value.args):
            fixed.add(value)
    return fixed


def _is_free(value: Value) -> bool:
    op = value.op
    if isinstance(op, Cast):  # whoever reads narrow integers widens them
        given, made = value.args[0].tensor.dtype, value.tensor.dtype
        return given.is_integer and made.is_integer and given.bits < made.bits
    return isinstance(op, Constant | Reshape) or (isinstance(op, Op) and op.read_through)
