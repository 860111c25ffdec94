"""Replace composite ops (softmax, layer_norm, mean ...) by what they are made of.

What stays are ops with index notation, loops or regions of their own. Regions are decomposed too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value, declare_inputs
from ingot.compiler.ops.base import Node, Op
from ingot.compiler.ops.structure import Get
from ingot.compiler.passes.rewriting import Pass


@dataclass(frozen=True)
class Decompose(Pass):
    name: ClassVar[str] = "decompose"
    why_here: ClassVar[str] = "after rules that know whole layers, before rules about elementwise algebra"

    keep: frozenset[str] = frozenset()  # ops that a later pass wants whole

    def __call__(self, graph: Graph) -> Graph:
        while any(self._splits(v) for v in graph.body):
            graph = self._once(graph)
        return in_regions(graph, self)

    def _splits(self, value: Value) -> bool:
        op = value.op
        return isinstance(op, Op) and type(op).way_down() == "decompose" and op.name not in self.keep

    def _once(self, graph: Graph) -> Graph:
        builder = Builder()
        made = declare_inputs(graph, builder)
        parts: dict[Value, tuple[Value, ...]] = {}
        for value in graph.body:
            op = value.op
            assert isinstance(op, Op)
            if isinstance(op, Get) and value.args[0] in parts:
                made[value] = parts[value.args[0]][op.index]
            elif self._splits(value):
                builder.source = value.source
                result = op.decompose(*(Node(builder, made[a]) for a in value.args))
                builder.source = None
                if isinstance(result, tuple):
                    parts[value] = tuple(n.value for n in result)
                else:
                    made[value] = result.value
            else:
                made[value] = builder.again(value, tuple([made[a] for a in value.args]))
        return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))


def in_regions(graph: Graph, transform: Callable[[Graph], Graph]) -> Graph:
    """The graph with every region of its control flow transformed."""
    if not any(isinstance(v.op, Op) and v.op.regions for v in graph.body):
        return graph
    builder = Builder()
    made = declare_inputs(graph, builder)
    for value in graph.body:
        args = tuple([made[a] for a in value.args])
        op = value.op
        assert isinstance(op, Op)
        if not op.regions:
            made[value] = builder.again(value, args)
        else:
            changed = {
                f.name: transform(getattr(op, f.name))  # type: ignore[arg-type]
                for f in fields(op)  # type: ignore[arg-type]
                if isinstance(getattr(op, f.name), Graph)
            }
            op = replace(op, **changed)  # type: ignore[type-var]
            made[value] = builder.emit(op, *args, source=value.source, name=value.name)
    return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))
