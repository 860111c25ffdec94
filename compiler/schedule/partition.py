"""How work is cut for threads: chunk sizes from shapes and costs, never from the number of threads.

Weights are in bytes of memory traffic; arithmetic counts as the traffic that takes about as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Statement
from ingot.compiler.ir.scalar import Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import build, scalars

CHUNK_BYTES = 64 << 10  # a chunk takes some microseconds: long against handing it to a thread
SERIAL_BYTES = 256 << 10  # less work than this is not worth waking a thread
SERIAL_FLOPS = 1 << 18  # products of a contraction that is not worth waking a thread
BYTES_PER_CYCLE = 2  # of one lane's arithmetic: a vector instruction moves about that much per lane in its time


@dataclass(frozen=True)
class Cut:
    """Leading axes before `axis` are iterated in parallel, `axis` itself in blocks of `block` steps."""

    axis: int
    block: int


def weight_of(stores: Sequence[Load], values: Sequence[Scalar]) -> int:
    """Weight of one point: what it reads and writes, and what it computes."""
    traffic = sum(store.dtype.itemsize for store in stores)
    traffic += sum(load.dtype.itemsize for load in dict.fromkeys(x for v in values for x in scalars.loads(v)))
    return traffic + BYTES_PER_CYCLE * sum(scalars.cost(value) for value in values)


def cut(extents: Sequence[Dim], weight: int, multiple: int = 1) -> Cut | None:
    """Where to cut a nest whose points weigh `weight`; None when it is too small for threads.

    Blocks of the last axis are multiples of `multiple`. A symbolic extent is always cut: it may be large.
    """
    total = symbolic.product(extents) * weight
    if symbolic.less(total, SERIAL_BYTES) is True:
        return None
    inner = weight
    for axis in range(len(extents) - 1, -1, -1):
        extent = extents[axis]
        last = axis == len(extents) - 1
        if not isinstance(extent, int) or inner * extent > CHUNK_BYTES or axis == 0:
            steps = max(1, CHUNK_BYTES // inner)
            return Cut(axis, balanced(extent, steps, multiple if last else 1))
        inner *= extent
    return None


def balanced(extent: Dim, steps: int, multiple: int = 1) -> int:
    """About `steps`, a multiple of `multiple`, and such that blocks of a constant extent are equally long."""
    if isinstance(extent, int) and extent > 0:
        count = -(-extent // steps)
        steps = -(-extent // count)
    return -(-steps // multiple) * multiple


Ranges = tuple[tuple[Dim, Dim], ...]  # (start, count) along each axis


def blocks(
    extents: Sequence[Dim], cut: Cut | None, body: Callable[[Ranges], Sequence[Statement]]
) -> tuple[Statement, ...]:
    """One parallel loop over the blocks of a cut; `body` gets the range of each axis."""
    if cut is None:
        return tuple(body(tuple((0, extent) for extent in extents)))
    counts = (*extents[: cut.axis], symbolic.ceildiv(extents[cut.axis], cut.block))

    def block(number: Dim) -> Sequence[Statement]:
        place: list[Dim] = []
        for count in reversed(counts[1:]):
            place.append(number % count)
            number = number // count
        place.append(number)
        place.reverse()
        start = place[-1] * cut.block
        return body(
            (
                *((index, 1) for index in place[:-1]),
                (start, symbolic.minimum(cut.block, extents[cut.axis] - start)),
                *((0, extent) for extent in extents[cut.axis + 1 :]),
            )
        )

    return build.loop("block", symbolic.product(counts), block, "parallel")
