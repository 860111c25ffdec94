"""What fusion decides: a list of steps, where values are kept, and why. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.tensor import Kernel


@dataclass(frozen=True)
class Decision:
    """One choice about one value: what was decided and why."""

    value: Value
    choice: str  # inlined | stored | joined | separate | view | again
    reason: str
    kernel: str = ""


@dataclass(frozen=True)
class ViewStep:
    """`buffer` is another shape for the memory of `base`."""

    buffer: Buffer
    base: Buffer


@dataclass(frozen=True)
class KernelStep:
    kernel: Kernel
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Epilogue:
    """An elementwise kernel that goes on, element by element, from a result that is not stored."""

    result: Buffer
    step: KernelStep


@dataclass(frozen=True)
class LoopStep:
    """An op that brings its own loops, and the kernel that these go on with, if there is one."""

    name: str
    value: Value
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    epilogue: Epilogue | None = None


@dataclass(frozen=True)
class RegionStep:
    """Control flow: its regions are planned by themselves."""

    name: str
    value: Value
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]


Step = KernelStep | LoopStep | RegionStep


@dataclass(frozen=True)
class FusionPlan:
    """`steps` in an executable order; `views` name shapes of stored buffers; `buffers` tell where each stored
    value is (inputs included); `outputs` are the buffers of the graph's outputs, in order."""

    steps: tuple[Step, ...]
    views: tuple[ViewStep, ...]
    buffers: dict[Value, Buffer]
    outputs: tuple[Buffer, ...]
    decisions: tuple[Decision, ...]

    def __str__(self) -> str:
        lines = []
        for d in self.decisions:
            name = getattr(d.value.op, "name", "input")
            where = f" in {d.kernel}" if d.kernel else ""
            lines.append(f"{name} {d.value.type!r}: {d.choice}{where}: {d.reason}")
        return "\n".join(lines)
