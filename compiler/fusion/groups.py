"""Kernels while they are being put together, and the order in which they must run.

Invariant: `before` is closed (what precedes a predecessor precedes) and has no cycle, so that an order exists at
every moment. Whoever makes one group of two asks `between` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ingot.compiler.fusion.plan import Step
from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition


@dataclass(eq=False)
class Group:
    """One kernel: definitions that share loops over `outer`."""

    number: int
    outer: tuple[Dim, ...]
    kind: str  # elementwise | reduction | rows | contraction | alone
    definitions: list[Definition] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    step: Step | None = None  # for steps that are not kernels
    reads: set[Buffer] = field(default_factory=set)  # buffers of other groups

    @property
    def buffers(self) -> list[Buffer]:
        return [d.buffer for d in self.definitions]


class Groups:
    """All groups, who makes which buffer, and who runs before whom."""

    def __init__(self) -> None:
        self.all: list[Group] = []
        self.of: dict[Buffer, Group] = {}
        self.before: dict[Group, set[Group]] = {}  # groups that must run earlier, transitively
        self._made = 0

    def new(self, outer: tuple[Dim, ...], kind: str) -> Group:
        group = Group(self._made, outer, kind)
        self._made += 1
        self.all.append(group)
        self.before[group] = set()
        return group

    def add(self, group: Group, definitions: Sequence[Definition], value: Value, reads: set[Buffer]) -> None:
        """Definitions join a group; `reads` are the buffers with memory of their own that they read."""
        for definition in definitions:
            group.definitions.append(definition)
            self.of[definition.buffer] = group
        group.values.append(value)
        outside = reads - set(group.buffers)
        group.reads |= outside
        self.depend(group, outside)

    def depend(self, group: Group, reads: Iterable[Buffer]) -> None:
        earlier: set[Group] = set()
        for buffer in reads:
            producer = self.of.get(buffer)
            if producer is not None and producer is not group:
                earlier |= {producer, *self.before[producer]}
        self._run_after(group, earlier)

    def precede(self, first: Group, second: Group) -> None:
        self._run_after(second, {first, *self.before[first]})

    def follow(self, group: Group, earlier: set[Group]) -> None:
        """The group runs after these, none of which needs it; what precedes one of them is among them."""
        self._run_after(group, earlier)

    def _run_after(self, group: Group, earlier: set[Group]) -> None:
        """Record that `earlier` (closed under what precedes it) runs before the group and all that follow it."""
        self.before[group] |= earlier
        for other in self.all:
            if group in self.before[other]:
                self.before[other] |= earlier

    def between(self, one: Group, other: Group) -> bool:
        """Whether a third group must run after one of them and before the other."""

        def path(first: Group, last: Group) -> bool:
            return any(first in self.before[third] for third in self.before[last] if third is not first)

        return path(one, other) or path(other, one)

    def absorb(self, target: Group, group: Group) -> None:
        """Make one kernel of two: the definitions of `group` stand before those of `target`, unless they read
        from it."""
        for definition in group.definitions:
            self.of[definition.buffer] = target
        if target in self.before[group]:
            target.definitions = [*target.definitions, *group.definitions]
        else:
            target.definitions = [*group.definitions, *target.definitions]
        target.values = [*group.values, *target.values]
        target.reads = (target.reads | group.reads) - set(target.buffers)
        self.all.remove(group)
        together = (self.before[target] | self.before.pop(group)) - {target, group}
        self.before[target] = together
        for other in self.all:
            if group in self.before[other]:
                self.before[other].discard(group)
                self.before[other].add(target)
            if target in self.before[other]:
                self.before[other] |= together
