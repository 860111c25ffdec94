"""How work is cut for threads: chunk sizes from shapes and costs, never from the number of threads.

Weights are in bytes of memory traffic; arithmetic counts as the traffic that takes about as long.
"""

from __future__ import annotations

import math
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
ASSUMED_DIM = 64  # what an unbounded symbolic dim is taken to be when sizes are compared
BYTES_PER_CYCLE = 2  # of one lane's arithmetic: a vector instruction moves about that much per lane in its time


@dataclass(frozen=True)
class Cut:
    """Leading axes before `axis` are iterated in parallel, each in steps of its unit (by default 1); `axis` itself in
    blocks of `block` steps."""

    axis: int
    block: int
    units: tuple[int, ...] = ()

    def steps(self, axis: int) -> int:
        """Steps of an axis in one block."""
        return self.block if axis == self.axis else self.units[axis] if self.units else 1


def estimate(dim: Dim) -> int:
    """A number to compare sizes with; unbounded symbolic dims count as ASSUMED_DIM."""
    if isinstance(dim, int):
        return dim
    values = {}
    for atom in symbolic.atoms(dim):
        lower, upper = symbolic.bounds(atom)
        values[atom] = max(lower or 0, ASSUMED_DIM) if upper is None else min(upper, ASSUMED_DIM)
    try:
        return symbolic.evaluate(dim, values)
    except ZeroDivisionError:  # by the difference of two dims, which are taken to be the same
        return ASSUMED_DIM


def weight_of(stores: Sequence[Load], values: Sequence[Scalar], computing: bool = True) -> int:
    """Weight of one point: what it reads and writes, and what it computes (unless that goes on meanwhile)."""
    traffic = sum(store.dtype.itemsize for store in stores)
    traffic += sum(load.dtype.itemsize for load in dict.fromkeys(x for v in values for x in scalars.loads(v)))
    return traffic + (BYTES_PER_CYCLE * sum(scalars.cost(value) for value in values) if computing else 0)


def cut(
    extents: Sequence[Dim],
    weight: int,
    units: Sequence[int] | None = None,
    total: Dim | None = None,
    chunk: int | None = None,
) -> Cut | None:
    """Where to cut a nest whose points weigh `weight`; None when it is too small for threads.

    Blocks are multiples of the axis's unit (by default 1). A symbolic extent is always cut: it may be large.
    `total` is the weight of everything, where `weight` is a guess; `chunk` that of a block, if not the usual one.
    """
    chunk = chunk or CHUNK_BYTES
    units = units or [1] * len(extents)
    total = symbolic.product(extents) * weight if total is None else total
    if symbolic.less(total, SERIAL_BYTES) is True:
        return None
    inner = weight * math.prod(units)
    for axis in range(len(extents) - 1, -1, -1):
        extent, unit = extents[axis], units[axis]
        count = symbolic.ceildiv(extent, unit)
        if not isinstance(count, int) or inner * count > chunk or axis == 0:
            steps = max(1, chunk // inner)
            return Cut(axis, balanced(extent, steps * unit, unit), tuple(units))
        inner *= count
    return None


def balanced(extent: Dim, steps: int, multiple: int = 1) -> int:
    """About `steps`, a multiple of `multiple`, and such that blocks of a constant extent are equally long."""
    if isinstance(extent, int) and extent > 0:
        count = -(-extent // steps)
        steps = -(-extent // count)
    return -(-steps // multiple) * multiple


@dataclass(frozen=True)
class Range:
    """A part of an axis: `count` steps from `start` on. When it is a block of equal blocks, its number and the
    steps of a block."""

    start: Dim
    count: Dim
    extent: Dim
    number: Dim = 0
    steps: int | None = None


Ranges = tuple[Range, ...]


def whole(extents: Sequence[Dim]) -> Ranges:
    return tuple(Range(0, extent, extent) for extent in extents)


def part_of(extent: Dim, number: Dim, steps: int) -> Range:
    """One block of an axis that is cut into blocks of equal length."""
    if steps == 1:
        return Range(number, 1, extent)
    start = number * steps
    return Range(start, symbolic.minimum(steps, extent - start), extent, number, steps)


def blocks(
    extents: Sequence[Dim], cut: Cut | None, body: Callable[[Ranges], Sequence[Statement]]
) -> tuple[Statement, ...]:
    """One parallel loop over the blocks of a cut; `body` gets the range of each axis."""
    if cut is None:
        return tuple(body(whole(extents)))
    steps = [cut.steps(axis) for axis in range(cut.axis + 1)]
    counts = [symbolic.ceildiv(extent, step) for extent, step in zip(extents, steps, strict=False)]

    def block(number: Dim) -> Sequence[Statement]:
        place: list[Dim] = []
        for count in reversed(counts):
            place.append(number % count)
            number = number // count
        place.reverse()
        parts = zip(extents, place, steps, strict=False)
        return body((*(part_of(*part) for part in parts), *whole(extents[cut.axis + 1 :])))

    return build.loop("block", symbolic.product(counts), block, "parallel")
