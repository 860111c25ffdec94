"""The recipe for everything: each definition in turn as a plain loop nest, locals in scratch memory.

Invariant: correct for every valid kernel; other recipes decline what they do not understand and it ends here.
Non-goal: speed beyond a parallel outermost loop.
"""

from __future__ import annotations

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.loops import Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.schedule import build, scalars
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target

PARALLEL_WORK = 1 << 15  # elements computed below which starting threads costs more than it saves


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled:
    storage = {local: Buffer(local.name, local.dtype, local.shape, "arena") for local in kernel.locals}
    body: list[Statement] = []
    for definition in kernel.definitions:
        body.extend(_nest(definition, storage, target, options))
    scratch = tuple(storage.values())
    function = loops.Function(kernel.name, (*kernel.inputs, *kernel.outputs, *scratch), tuple(body))
    return Scheduled(function, "fallback", {}, "no recipe fits the structure of this kernel", scratch)


def _nest(
    definition: Definition, storage: dict[Buffer, Buffer], target: Target, options: ScheduleOptions
) -> tuple[Statement, ...]:
    buffer = storage.get(definition.buffer, definition.buffer)
    value = scalars.replace_loads(
        definition.value,
        lambda load: Load(storage[load.buffer], load.index) if load.buffer in storage else None,
    )
    shape = definition.buffer.shape

    def element(*index: Dim) -> tuple[Statement, ...]:
        mapping = {old: new for old, new in zip(definition.variables, index, strict=True) if not isinstance(old, int)}
        statements, result = build.lower_reductions(scalars.substitute(value, mapping), target)
        return (*statements, Store(buffer, index, result))

    work = work_of(definition.value, shape)
    enough = symbolic.less(work, PARALLEL_WORK) is not True
    kind = "parallel" if options.parallel and enough else "serial"
    return build.nest([getattr(v, "name", "i") for v in definition.variables], shape, element, kind)


def work_of(value: Scalar, shape: tuple[Dim, ...]) -> Dim:
    """Scalar evaluations of one definition: its elements times what its reductions run over."""
    work = symbolic.product(shape)
    for node in scalars.nodes(value):
        if isinstance(node, scalars.Reduce):
            work = work * symbolic.product(node.extents)
    return work
