"""Two ways to compute one kernel, and a condition on its sizes that says which when the kernel runs.

Invariant: both give the same bits, so that nobody can tell which was taken.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.compiler.ir.loops import Function, If, Statement, View
from ingot.compiler.ir.scalar import Buffer, Scalar
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule.result import Scheduled
from ingot.compiler.schedule.statements import with_own_names


def either(kernel: Kernel, condition: Scalar, special: Scheduled, normal: Scheduled) -> Scheduled:
    """`special` where the condition holds, else `normal`, which the result is described by. Both compute the kernel; the
    first may do so over buffers of its own, which are views of the kernel's."""
    own = _parameters(special)
    same = dict(zip(own, (*kernel.inputs, *kernel.outputs), strict=True))
    views: list[Statement] = [View(buffer, base) for buffer, base in same.items() if buffer is not base]
    taken = (*kernel.inputs, *kernel.outputs, *normal.scratch)
    lines, further = with_own_names(special.function.body, special.scratch, taken)
    scratch = (*normal.scratch, *further)
    body = (If(condition, (*views, *lines), normal.function.body),)
    function = Function(kernel.name, (*kernel.inputs, *kernel.outputs, *scratch), body)
    also = {(same[source], same[result]) for source, result in special.in_place}
    shared = tuple(pair for pair in normal.in_place if pair in also)
    return replace(normal, function=function, scratch=scratch, in_place=shared)


def _parameters(scheduled: Scheduled) -> tuple[Buffer, ...]:
    """Inputs and outputs, without scratch memory."""
    parameters = scheduled.function.parameters
    return parameters[: len(parameters) - len(scheduled.scratch)]
