"""Kernels that hand large matrices on to each other become one, which computes them for a block of rows at a time.

    scores = q k^T   (a product),   weights = softmax(scores)   (rows),   y = weights v   (a product of those rows)

Scores and weights have as many elements as there are pairs of queries and keys; nobody else reads them, so they need
no memory of their own when each block of rows goes through all three at once. The backward pass is the same: products
that give rows of pairs, what is done with such rows, and products that use them up, some of them summing over the rows.

Invariant: the same operations on the same operands. Sums over rows are added block by block.
Non-goal: products whose result is about as large as their operands, such as layers one after another: to compute them in
blocks, weights would have to be read once for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ingot.compiler.fusion.cost import FusionLimits, outgrows
from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.ir.scalar import Buffer, Reduce
from ingot.compiler.ir.symbolic import Variable
from ingot.compiler.ir.tensor import Definition


@dataclass(frozen=True)
class Joined:
    """What was decided about one chain of kernels."""

    group: Group  # that they have become
    makers: tuple[Group, ...]  # of the large matrices
    users: tuple[Group, ...]


def join_blocks(
    groups: Groups, root: Callable[[Buffer], Buffer], viewed: Iterable[Buffer], outputs: Iterable[Buffer],
    limits: FusionLimits,
) -> list[Joined]:  # fmt: skip
    """Make one kernel of each chain. `root` is the memory that a buffer is part of; `viewed` memory has other names too,
    and `outputs` are wanted by the caller."""
    chains = _Chains(groups, root, {*viewed, *outputs}, limits)
    found = (chains.join(group) for group in list(groups.all) if group.kind == "rows")
    return [joined for joined in found if joined is not None]


class _Chains:
    def __init__(
        self, groups: Groups, root: Callable[[Buffer], Buffer], fixed: set[Buffer], limits: FusionLimits
    ) -> None:
        self.groups = groups
        self.root = root
        self.fixed = fixed
        self.limits = limits
        self.readers: dict[Buffer, list[Group]] = {}
        for group in groups.all:
            for buffer in group.reads:
                self.readers.setdefault(buffer, []).append(group)

    def join(self, rows: Group) -> Joined | None:
        """The group of rows with the products before and after it, if they can be one."""
        makers = self._makers(rows)
        large = [d.buffer for group in (rows, *makers) for d in group.definitions if self._is_large(d, rows)]
        handed = [b for b in large if self.readers.get(b)]
        users = list(dict.fromkeys(g for b in handed for g in self.readers[b] if g is not rows and g not in makers))
        if not makers or not users or any(b in self.fixed for b in handed):
            return None
        if not all(self._uses_up(user, rows, handed) for user in users):
            return None
        if not self._outgrow(makers) or self._others_between({rows, *makers, *users}):
            return None
        for user in users:
            if self._sums_rows(user, rows, handed):
                self._split(user)
        for group in makers:
            if group.label == "again":
                group.values = []  # they have been computed elsewhere
            self.groups.absorb(rows, group)
        for group in users:
            self.groups.absorb(rows, group)
        rows.kind, rows.outer = "blocks", ()
        return Joined(rows, tuple(makers), tuple(users))

    def _makers(self, rows: Group) -> list[Group]:
        """Products whose result the group reads, row by row."""
        found: dict[Group, None] = {}
        for definition in rows.definitions:
            for load in definition.loads:
                maker = self.groups.of.get(load.buffer)
                shared = load.index[: len(rows.outer)] == definition.variables[: len(rows.outer)]
                if maker is not None and maker.kind == "contraction" and shared and len(load.index) > len(rows.outer):
                    found[maker] = None
        return [g for g in found if all(d.buffer.shape[: len(rows.outer)] == rows.outer for d in g.definitions)]

    def _is_large(self, definition: Definition, rows: Group) -> bool:
        """Whether there is more than one element of it for each row."""
        return any(dim != 1 for dim in definition.buffer.shape[len(rows.outer) :])

    def _outgrow(self, makers: Sequence[Group]) -> bool:
        """Whether every product is so much larger than what it is made of that a block at a time pays."""
        for group in makers:
            product = group.definitions[0]
            if not isinstance(product.value, Reduce):
                return False
            operands = dict.fromkeys(load.buffer for load in product.loads)
            if not outgrows(product.buffer.type.bytes, [b.type.bytes for b in operands], self.limits.block_growth):
                return False
        return True

    def _uses_up(self, user: Group, rows: Group, handed: Sequence[Buffer]) -> bool:
        """Whether a reader is a product of whole rows of what is handed on, or one that sums over the rows."""
        if user.kind != "contraction" or not isinstance(user.definitions[0].value, Reduce):
            return False
        for definition in user.definitions:
            for load in definition.loads:
                if load.buffer not in handed:
                    continue
                own = [i for i in load.index if i != 0]
                plain = all(isinstance(i, Variable) for i in own) and len(set(own)) == len(own)
                if definition is not user.definitions[0] or not plain:
                    return False
        return self._sums_rows(user, rows, handed) is not None

    def _sums_rows(self, user: Group, rows: Group, handed: Sequence[Buffer]) -> bool | None:
        """Whether a product sums over the last axis of the rows; None when it sums over others only."""
        product = user.definitions[0]
        assert isinstance(product.value, Reduce)
        kinds: set[bool | None] = set()
        for load in product.loads:
            if load.buffer in handed:
                along = [i for i in load.index[: len(rows.outer)] if i != 0]
                summed = [i in product.value.variables for i in along]
                kinds.add(True if summed and summed[-1] else None if any(summed) else False)
        return kinds.pop() if len(kinds) == 1 else None

    def _others_between(self, together: set[Group]) -> bool:
        """Whether another group must run after one of these and before another of them."""
        before = self.groups.before
        needed = set().union(*(before[g] for g in together)) - together
        return any(not before[other].isdisjoint(together) for other in needed)

    def _split(self, user: Group) -> None:
        """What follows a product element by element waits until all rows are summed: a kernel of its own."""
        if len(user.definitions) == 1:
            return
        product, *rest = user.definitions
        made = self.groups.new(user.outer, "elementwise")
        everything = self.groups.all
        everything.remove(made)
        everything.insert(everything.index(user) + 1, made)
        reads = {self.root(load.buffer) for d in rest for load in d.loads}
        made.definitions, made.values = list(rest), user.values[1:] or user.values[:]
        made.reads = reads - {d.buffer for d in rest}
        user.definitions, user.values = [product], user.values[:1]
        user.reads = {self.root(load.buffer) for load in product.loads}
        for definition in rest:
            self.groups.of[definition.buffer] = made
        for other in everything:
            if user in self.groups.before[other]:
                self.groups.before[other].add(made)
        self.groups.precede(user, made)
        for buffer in made.reads:
            self.readers.setdefault(buffer, []).append(made)
