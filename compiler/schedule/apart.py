"""A kernel in parts: definitions that no recipe takes together, a few at a time, one part after another.

Fusion joins what shares some leading axes; where a recipe finds no loops for all of it, the plain loops of the
fallback would compute every element by itself. Parts are as large as recipes take them, and what one hands on to
another waits in scratch memory.

Invariant: parts are whole definitions in their order, so the result is what the kernel means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.compiler.ir.loops import Function, Statement
from ingot.compiler.ir.scalar import Buffer, Load
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.schedule import scalars, statements
from ingot.compiler.schedule.result import Scheduled

Schedule = Callable[[Kernel], Scheduled]


def in_parts(kernel: Kernel, schedule: Schedule) -> Scheduled | None:
    """The kernel as parts that `schedule` has recipes for; None where that helps none of them."""
    stored = {local: Buffer(local.name, local.dtype, local.shape, "arena") for local in kernel.locals}
    definitions = [_stored(definition, stored) for definition in kernel.definitions]
    parts: list[Scheduled] = []
    start = 0
    while start < len(definitions):
        made, start = _largest(kernel, definitions, start, schedule)
        parts.append(made)
    if all(part.recipe == "fallback" for part in parts):
        return None
    scratch = [*stored.values()]
    body: list[Statement] = []
    for part in parts:
        taken = (*kernel.inputs, *kernel.outputs, *scratch)
        lines, own = statements.with_own_names(part.function.body, part.scratch, taken)
        body += lines
        scratch += own
    function = Function(kernel.name, (*kernel.inputs, *kernel.outputs, *scratch), tuple(body))
    reason = f"no recipe fits the whole kernel; its parts: {', '.join(part.recipe for part in parts)}"
    return Scheduled(function, "parts", {}, reason, tuple(scratch))


def _largest(
    kernel: Kernel, definitions: Sequence[Definition], start: int, schedule: Schedule
) -> tuple[Scheduled, int]:
    """The schedule of a definition and of those after it that have a recipe together, and where the next part starts."""
    end = start + 1
    found = schedule(_part(kernel, definitions[start:end]))
    while end < len(definitions) and found.recipe != "fallback":
        longer = schedule(_part(kernel, definitions[start : end + 1]))
        if longer.recipe == "fallback":
            break
        found, end = longer, end + 1
    return found, end


def _part(kernel: Kernel, definitions: Sequence[Definition]) -> Kernel:
    made = tuple(definition.buffer for definition in definitions)
    read = dict.fromkeys(load.buffer for d in definitions for load in scalars.loads(d.value))
    return Kernel(kernel.name, tuple(b for b in read if b not in made), made, tuple(definitions))


def _stored(definition: Definition, stored: dict[Buffer, Buffer]) -> Definition:
    """The definition with the kernel's locals in memory."""

    def elsewhere(load: Load) -> Load | None:
        return Load(stored[load.buffer], load.index) if load.buffer in stored else None

    buffer = stored.get(definition.buffer, definition.buffer)
    return replace(definition, buffer=buffer, value=scalars.replace_loads(definition.value, elsewhere))
