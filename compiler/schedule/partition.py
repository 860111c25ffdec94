"""How work is cut for threads: chunk sizes from shapes and costs, never from the number of threads.

Weights are in bytes of memory traffic; arithmetic counts as the traffic that takes about as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import scalars

CHUNK_BYTES = 64 << 10  # a chunk takes some microseconds: long against handing it to a thread
SERIAL_BYTES = 256 << 10  # less work than this is not worth waking a thread
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
