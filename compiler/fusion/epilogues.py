"""Elementwise kernels that go on where an op with its own loops stops.

An op that `takes_epilogue` hands each element of its result on instead of storing it. The kernel that follows is
taken into its loops when it does nothing but compute, at each index, from the element at that index: then the result
needs no memory of its own and no second pass.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.compiler.fusion.legality import has_reduce
from ingot.compiler.fusion.plan import Decision, Epilogue, FusionPlan, KernelStep, LoopStep, Step
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ops.base import Op


def absorb(plan: FusionPlan) -> FusionPlan:
    """The plan with every epilogue that fits inside the loops of its op, at the place of the epilogue."""
    visible = {*plan.outputs, *(b for view in plan.views for b in (view.buffer, view.base))}
    readers = _readers(plan.steps)
    steps: list[Step | None] = list(plan.steps)
    decisions = list(plan.decisions)
    for number, step in enumerate(plan.steps):
        if not isinstance(step, LoopStep) or not _hands_on(step):
            continue
        (made,) = step.outputs
        places = readers.get(made, [])
        reader = steps[places[0]] if len(places) == 1 else None
        if made in visible or not isinstance(reader, KernelStep) or not follows(reader.kernel, made):
            continue
        steps[places[0]] = replace(step, outputs=reader.kernel.outputs, epilogue=Epilogue(made, reader))
        steps[number] = None
        text = f"follows {step.name} element by element, in its loops"
        decisions += [Decision(value, "joined", text, step.name) for value in reader.values]
    return replace(plan, steps=tuple(s for s in steps if s is not None), decisions=tuple(decisions))


def _readers(steps: tuple[Step, ...]) -> dict[Buffer, list[int]]:
    """The steps that read each buffer."""
    readers: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for buffer in step.kernel.inputs if isinstance(step, KernelStep) else step.inputs:
            readers.setdefault(buffer, []).append(number)
    return readers


def _hands_on(step: LoopStep) -> bool:
    op = step.value.op
    return isinstance(op, Op) and op.takes_epilogue and len(step.outputs) == 1


def follows(kernel: Kernel, made: Buffer) -> bool:
    """Whether each element that the kernel defines depends on the element of `made` at the same index only, of the
    buffers that it or `made` defines."""
    inside = {made, *(definition.buffer for definition in kernel.definitions)}
    return all(
        definition.buffer.shape == made.shape
        and not has_reduce(definition.value)
        and all(load.index == definition.variables for load in definition.loads if load.buffer in inside)
        for definition in kernel.definitions
    )
