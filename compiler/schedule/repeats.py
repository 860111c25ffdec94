"""Equal kernels are scheduled once.

The layers of a network repeat the same kernels over different buffers, and over extents that are made differently.
Kernels whose text is the same but for names and sizes get functions with the same body and the same parameters, of
which code generation makes code once.

Invariant: every kernel keeps its own name, its own scratch memory and its own call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.text.tensor import print_kernel
from ingot.compiler.ir.traverse import kernel_dims, symbols_in
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.sizes import General, generalise


class Repeats:
    """A schedule for kernels of one program that remembers what it has scheduled."""

    def __init__(self, schedule: Callable[[Kernel, ScheduleOptions], Scheduled]) -> None:
        self._schedule = schedule
        self._known: dict[tuple[str, tuple[Symbol, ...], str], Scheduled] = {}

    def __call__(self, kernel: Kernel, options: ScheduleOptions) -> Scheduled:
        general = generalise(kernel)
        key = print_kernel(general.kernel, neutral=True), symbols_in(kernel_dims(general.kernel)), repr(options)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._schedule(general.kernel, options)
            if general.kernel is kernel:
                return known
        return _repeated(known, kernel, general)


def _repeated(known: Scheduled, kernel: Kernel, general: General) -> Scheduled:
    """The schedule of an equal kernel, over the buffers and sizes of this one."""
    scratch = tuple(
        Buffer(b.name, b.dtype, tuple(symbolic.substitute(d, general.sizes) for d in b.shape), b.space)
        for b in known.scratch
    )
    own = dict(zip(known.function.parameters, (*kernel.inputs, *kernel.outputs, *scratch), strict=True))
    return replace(
        known,
        function=Function(kernel.name, known.function.parameters, known.function.body),
        scratch=scratch,
        in_place=tuple((own[source], own[result]) for source, result in known.in_place),
        sizes=general.sizes,
    )
