"""Functions of ops that bring their own loops. Equal ones are made once, as kernels are (`schedule/repeats.py`).

Invariant: every step keeps its own name, its own scratch memory and its own call.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ingot.compiler.fusion.plan import LoopStep
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.text.tensor import print_kernel
from ingot.compiler.ops.base import Op, OwnLoops
from ingot.compiler.schedule.epilogue import finishing
from ingot.compiler.target import Target


@dataclass(frozen=True)
class OwnFunction:
    """The function of a step, and what it is called with."""

    function: Function
    arguments: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]  # the last of the arguments
    decisions: Mapping[str, object]


class OwnFunctions:
    """The functions of one program's steps; remembers what it has made."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Hashable, tuple[tuple[Buffer, ...], OwnLoops]] = {}

    def __call__(self, step: LoopStep, name: str) -> OwnFunction:
        given = (*reads_of(step), *step.outputs)
        key = _key(step, given)
        if key not in self._known:
            self._known[key] = self._made(step, given)
        parameters, own = self._known[key]
        scratch = tuple(Buffer(b.name, b.dtype, b.shape, b.space) for b in own.scratch)
        function = Function(name, (*parameters, *own.scratch), own.body)
        return OwnFunction(function, (*given, *scratch), scratch, own.decisions)

    def _made(self, step: LoopStep, given: tuple[Buffer, ...]) -> tuple[tuple[Buffer, ...], OwnLoops]:
        op = step.value.op
        assert isinstance(op, Op)
        read = len(given) - len(step.outputs)
        names = (*(f"x{n}" for n in range(read)), *(f"y{n}" for n in range(len(step.outputs))))
        parameters = {b: Buffer(name, b.dtype, b.shape) for name, b in zip(names, given, strict=True)}
        inputs = tuple(parameters[b] for b in step.inputs)
        if step.epilogue is None:
            own = op.loops_for(self._target, tuple(parameters[b] for b in step.outputs), inputs)
        else:
            finish = finishing(step.epilogue.step.kernel, step.epilogue.result, parameters)
            own = op.loops_for(self._target, (step.epilogue.result,), inputs, finish)
        return tuple(parameters.values()), own


def reads_of(step: LoopStep) -> tuple[Buffer, ...]:
    """What a step reads, its epilogue included."""
    reads = dict.fromkeys(step.inputs)
    if step.epilogue is not None:
        reads |= dict.fromkeys(b for b in step.epilogue.step.kernel.inputs if b is not step.epilogue.result)
    return tuple(reads)


def _key(step: LoopStep, given: tuple[Buffer, ...]) -> Hashable:
    """The same for steps whose functions differ in names only."""
    number = {b: n for n, b in enumerate(given)}
    own = step.value.op, tuple((b.dtype, b.shape) for b in given), tuple(number[b] for b in (*step.inputs, *step.outputs))
    if step.epilogue is None:
        return own
    kernel, result = step.epilogue.step.kernel, step.epilogue.result
    places = tuple(-1 if b is result else number.get(b) for b in (*kernel.inputs, *kernel.outputs))
    return own, print_kernel(kernel, neutral=True), (result.dtype, result.shape), places
