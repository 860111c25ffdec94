"""The order in which kernels run, for little memory.

Among the kernels that can run, one that gives back at least as much memory as it takes runs at once, the one that gives
back the most first: a weight's gradient and update right after the cotangent it needs, which frees the activation it
was waiting for. Otherwise the order in which values were made is kept, which is that of the model. What is made of
weights and arguments alone waits for its first reader.

Invariant: producers first, and whoever reads a state before whoever updates it (`Groups.before`). Deterministic.
Non-goal: the least memory there is, which is a hard problem; the plan of offsets works with any order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ingot.compiler.fusion.cost import estimate
from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.ir.scalar import Buffer


def order(groups: Groups, root: Callable[[Buffer], Buffer], given: Collection[Buffer]) -> list[Group]:
    """`root`: the memory that a buffer is part of; `given`: memory that is not this program's to free."""
    reads = {g: {root(b) for b in g.reads} - set(given) for g in groups.all}
    readers: dict[Buffer, int] = {}
    for group in groups.all:
        for buffer in reads[group]:
            readers[buffer] = readers.get(buffer, 0) + 1
    made: dict[Group, int] = {}
    for buffer in readers:
        producer = groups.of.get(buffer)
        if producer is not None:
            made[producer] = made.get(producer, 0) + _bytes(buffer)
    unmet = {g: len(groups.before[g]) for g in groups.all}
    later: dict[Group, list[Group]] = {g: [] for g in groups.all}
    for group in groups.all:
        for earlier in groups.before[group]:
            later[earlier].append(group)

    def taken(group: Group) -> int:
        freed = sum(_bytes(buffer) for buffer in reads[group] if readers[buffer] == 1)
        return made.get(group, 0) - freed

    place = {g: n for n, g in enumerate(groups.all)}
    result: list[Group] = []
    ready = [g for g in groups.all if not unmet[g]]
    while ready:
        chosen = min(ready, key=lambda g: (min(taken(g), 1), place[g]))
        ready.remove(chosen)
        result.append(chosen)
        for buffer in reads[chosen]:
            readers[buffer] -= 1
        for group in later[chosen]:
            unmet[group] -= 1
            if not unmet[group]:
                ready.append(group)
        ready.sort(key=place.__getitem__)
    return _late(result, later, [g for g in result if not reads[g]])


def _late(result: list[Group], later: dict[Group, list[Group]], movable: list[Group]) -> list[Group]:
    """Groups that free nothing by running, moved to just before the first one that needs them."""
    for group in reversed(movable):
        followers = set(later[group])
        start = result.index(group)
        first = next((n for n in range(start + 1, len(result)) if result[n] in followers), None)
        if first is not None:
            result.insert(first - 1, result.pop(start))
    return result


def _bytes(buffer: Buffer) -> int:
    return estimate(buffer.type.bytes)
