"""A part that is read late is copied, so that the rest of the value need not wait.

The gradient of a concatenation is one value: a layer of the decoder of a U-Net gives it at once to both of its sources,
but the one that comes from the encoder is read much later. If late readers see at most half of a value, what they see
is copied when the other readers are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ingot.compiler.fusion.cost import estimate
from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.fusion.late import LateReaders
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, axes


@dataclass(frozen=True)
class Part:
    """What was decided about one value."""

    group: Group  # that makes it
    reason: str


def copy_parts(
    groups: Groups, root: Callable[[Buffer], Buffer], viewed: Iterable[Buffer], outputs: Iterable[Buffer]
) -> list[Part]:
    """Change the groups so that late readers of a part do not keep the whole. `root` is the memory that a buffer is
    part of; `viewed` memory has other names too, and `outputs` are wanted by the caller."""
    readers = LateReaders(groups, root)
    fixed = {*viewed, *outputs}
    found: list[Part] = []
    for buffer, group in list(groups.of.items()):
        rearranged = group.kind == "elementwise" and group.reads.isdisjoint(groups.of)
        if buffer in fixed or buffer not in readers.readers or rearranged:
            continue
        late = readers.late(buffer, readers.after(group))
        if not late or len(late) == len(readers.readers[buffer]) or any(g.kind == "alone" for g in late):
            continue
        bounds = _bounds(buffer, late)
        if bounds is not None:
            _copy(readers, group, buffer, bounds, late)
            found.append(Part(group, f"the part that {len(late)} late readers see is copied"))
    return found


def _bounds(buffer: Buffer, late: Sequence[Group]) -> list[tuple[Dim, Dim]] | None:
    """(start, extent) along each axis of what the readers see; None if that is more than half of it."""
    loads = [load for g in late for d in g.definitions for load in d.loads if load.buffer is buffer]
    found: list[tuple[Dim, Dim]] = []
    for axis, size in enumerate(buffer.shape):
        ranges = [symbolic.bounds(load.index[axis]) for load in loads]
        lows, highs = [low for low, _ in ranges if low is not None], [high for _, high in ranges if high is not None]
        known = isinstance(size, int) and len(lows) == len(highs) == len(ranges)
        found.append((min(lows), max(highs) + 1 - min(lows)) if known else (0, size))
    seen = estimate(symbolic.product([extent for _, extent in found]))
    inside = all(start >= 0 for start, _ in found if isinstance(start, int))
    return found if loads and inside and 2 * seen <= estimate(symbolic.product(buffer.shape)) else None


def _copy(
    readers: LateReaders, group: Group, buffer: Buffer, bounds: Sequence[tuple[Dim, Dim]], late: Sequence[Group]
) -> None:
    part = Buffer(f"{buffer.name}.part", buffer.dtype, tuple(extent for _, extent in bounds))
    starts = [start for start, _ in bounds]
    variables = axes(part.shape)
    index = tuple(v + start for v, start in zip(variables, starts, strict=True))
    made = Definition(part, variables, Load(buffer, index))

    def moved(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.buffer is not buffer:
            return None
        return Load(part, tuple(i - start for i, start in zip(node.index, starts, strict=True)))

    for reader in late:
        readers.rewrite(reader, moved)
    readers.add("copy", "elementwise", (made,), group.values, late)
    for reader in late:
        readers.groups.depend(reader, reader.reads)
