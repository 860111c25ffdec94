"""Who reads a value late: after a kernel that takes time, to which the value leads. And changes for such readers.

Between a value and its late readers lies most of a model, as between an activation and its gradient. What is late
follows from dependences alone, not from the order in which kernels will run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.fusion.plan import KernelStep
from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.tensor import Definition

Leaf = Callable[[Scalar], "Scalar | None"]


class LateReaders:
    """Groups, who reads what, and which kernels take time. `root` is the memory that a buffer is part of."""

    def __init__(self, groups: Groups, root: Callable[[Buffer], Buffer]) -> None:
        self.groups = groups
        self.root = root
        self.heavy = {g for g in groups.all if g.kind in ("contraction", "alone")}
        self.definitions = {d.buffer: d for g in groups.all for d in g.definitions}
        self.readers: dict[Buffer, list[Group]] = {}
        for group in groups.all:
            for buffer in group.reads:
                self.readers.setdefault(buffer, []).append(group)

    def in_order(self) -> list[Group]:
        """What runs before a predecessor runs before, so this is an order in which kernels can run."""
        return sorted(self.groups.all, key=lambda g: (len(self.groups.before[g]), g.number))

    def after(self, group: Group) -> set[Group]:
        """The kernels that take time and need this one."""
        return {h for h in self.heavy if group in self.groups.before[h]}

    def late(self, buffer: Buffer, after: set[Group]) -> list[Group]:
        """The readers that run after one of these kernels."""
        return [g for g in self.readers.get(buffer, ()) if not after.isdisjoint(self.groups.before[g])]

    def late_or_free(self, buffer: Buffer, after: set[Group]) -> list[Group]:
        """The late readers, and those that may run as late as they do; none without a late one."""
        late = self.late(buffer, after)
        before = self.groups.before
        free = (g for g in self.readers.get(buffer, ()) if g not in late and not any(g in before[other] for other in late))
        return [*late, *free] if late else []

    def add(
        self, label: str, kind: str, made: Sequence[Definition], values: Iterable[Value], readers: Sequence[Group]
    ) -> Group:
        """A new kernel; in the order that is kept where memory does not matter it stands right before its first
        reader."""
        group = self.groups.new(made[-1].buffer.shape, kind)
        group.label = label
        everything = self.groups.all
        everything.remove(group)
        everything.insert(min(everything.index(reader) for reader in readers), group)
        reads = {self.root(load.buffer) for d in made for load in d.loads}
        for number, value in enumerate(dict.fromkeys(values)):
            self.groups.add(group, () if number else made, value, reads)
        for memory in group.reads:
            self.readers.setdefault(memory, []).append(group)
        self.definitions |= {d.buffer: d for d in made}
        return group

    def extend(self, group: Group, definition: Definition) -> None:
        """One more definition of a kernel, made of what it reads or may read."""
        reads = {self.root(load.buffer) for load in definition.loads}
        for memory in reads - group.reads - set(group.buffers):
            self.readers.setdefault(memory, []).append(group)
        self.groups.add(group, (definition,), group.values[-1], reads)
        group.values.pop()
        self.definitions[definition.buffer] = definition

    def rewrite(self, group: Group, leaf: Leaf, renamed: Mapping[Buffer, Buffer] | None = None) -> None:
        """Change what a kernel reads; an op with its own loops reads whole buffers, under other names."""
        for memory in group.reads:
            self.readers[memory].remove(group)
        if group.step is not None:
            assert not isinstance(group.step, KernelStep)
            known = renamed or {}
            group.step = replace(group.step, inputs=tuple(known.get(b, b) for b in group.step.inputs))
            read: Iterable[Buffer] = group.step.inputs
        else:
            group.definitions = [replace(d, value=Rewriter(leaf=leaf).scalar(d.value)) for d in group.definitions]
            self.definitions |= {d.buffer: d for d in group.definitions}
            read = [load.buffer for d in group.definitions for load in d.loads]
        group.reads = {self.root(b) for b in read} - set(group.buffers)
        self.groups.depend(group, group.reads)
        for memory in group.reads:
            self.readers.setdefault(memory, []).append(group)


def renaming(renamed: Mapping[Buffer, Buffer]) -> Leaf:
    def leaf(node: Scalar) -> Scalar | None:
        return Load(renamed[node.buffer], node.index) if isinstance(node, Load) and node.buffer in renamed else None

    return leaf
