"""Plans of functions and training steps, and what must hold for every plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ingot
from ingot import nn
from ingot.compiler.fusion.partition import partition
from ingot.compiler.fusion.plan import FusionPlan, KernelStep
from ingot.compiler.ir.graph import Graph, Input, Value
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.types import TupleType
from ingot.compiler.ops.structure import Get
from ingot.compiler.options import Options
from ingot.compiler.passes.fold_constants import split_constants
from ingot.compiler.pipeline import run_passes


def optimised(graph: Graph) -> Graph:
    """The graph as fusion gets it."""
    return split_constants(run_passes(graph, Options()), 1 << 20).main


def plan_of(function: Callable[..., Any], *types: Any, fuse: bool = True) -> FusionPlan:
    traced = ingot.trace(function.eval() if isinstance(function, nn.Module) else function, types)
    return partition(optimised(traced.graph), fuse=fuse)


def kernels(plan: FusionPlan) -> list[tuple[str, ...]]:
    """The ops of each kernel, those that are computed by their readers left out; steps that bring their own loops
    by their op."""
    return [tuple(v.op.name for v in values_of(step)) for step in plan.steps]  # type: ignore[attr-defined]


def values_of(step: Any) -> tuple[Value, ...]:
    return step.values if isinstance(step, KernelStep) else (step.value,)


def made_by(step: Any) -> list[Buffer]:
    return [d.buffer for d in step.kernel.definitions] if isinstance(step, KernelStep) else list(step.outputs)


def read_by(step: Any) -> set[Buffer]:
    if isinstance(step, KernelStep):
        return {load.buffer for d in step.kernel.definitions for load in d.loads}
    return set(step.inputs)


def check_plan(graph: Graph, plan: FusionPlan) -> None:
    """Each value of the graph is computed exactly once or by its readers; everything is made before it is read."""
    roots = {view.buffer: view.base for view in plan.views}
    made: set[Buffer] = {plan.buffers[v] for v in graph.inputs}
    for step in plan.steps:
        own = made_by(step)
        for buffer in read_by(step):
            root = roots.get(buffer, buffer)
            assert root in made or buffer in made or buffer in own, f"{buffer.name} is read before it is made"
        for buffer in own:
            assert buffer not in made, f"{buffer.name} is made twice"
        made |= {*own, *(roots.get(b, b) for b in own)}
        if isinstance(step, KernelStep):
            outside = {b for later in plan.steps if later is not step for b in read_by(later)}
            seen = {*plan.outputs, *(roots.get(b, b) for b in outside), *outside}
            for buffer in own:
                if buffer in seen or roots.get(buffer) in seen:
                    assert buffer in step.kernel.outputs, f"{buffer.name} is read elsewhere and has no memory"
    assert all(output in made for output in plan.outputs)
    assert len(set(plan.outputs)) == len(plan.outputs)
    placed = [v for step in plan.steps if not is_again(step) for v in values_of(step)]
    assert len(set(placed) - copies(graph, placed)) == len([v for v in placed if v not in copies(graph, placed)])
    decided = {d.value for d in plan.decisions}
    for value in graph.body:
        if not isinstance(value.op, Get | Input):
            assert value in decided, f"{value!r} has no decision"
        if not isinstance(value.type, TupleType) and value in plan.buffers:
            assert plan.buffers[value].shape == value.shape


def is_again(step: Any) -> bool:
    """Whether a kernel computes or copies for late readers what another has computed."""
    return isinstance(step, KernelStep) and all(b.name.endswith((".again", ".part")) for b in step.kernel.outputs)


def copies(graph: Graph, placed: list[Value]) -> set[Value]:
    """Values that are placed once more because they are an output twice, or an input that is returned."""
    return {v for v in placed if placed.count(v) > 1 and v in graph.outputs}
