"""The loops of a Winograd convolution of few tiles, whose weight is transformed on the way (see `winograd`).

A transform is four times larger than the weight, and with few tiles there is not enough to do while it arrives from
memory. So the weight itself is read, in blocks of one vector of output channels, and its transform is never stored:

    for block of output channels parallel {
      for row x of points, written out {
        for c { u = the row x of G w[c] G'; m[x, y][tile] += v[x, y][tile, c] * u[y] }     sums in registers
      }
      y = A' m A, and what follows it elementwise
    }

A block stays in the second cache from one row to the next, while hints ask for the next one. v is stored as it is read:
by rows of points, and of those by vectors of channels. The last point is infinity, and counts only for the last row or
column of a tile's results: where an image ends before it, there is no product.

Invariant: a transform is made by the same operations, and summed in the same order, as for any other number of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, LoopKind, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import OwnLoops
from ingot.compiler.ops.nests import repeat, vectors
from ingot.compiler.ops.straight import Straight
from ingot.compiler.ops.winograd_loops import AHEAD, PARALLEL_PRODUCTS, ConvolutionNest
from ingot.compiler.ops.winograd_transforms import constants, image_tile
from ingot.compiler.target import Target

SPARE = 8  # registers besides the sums, for a row of the transform and what it is made of
STEPS = 2  # channels in one iteration
TAPS = [(r, s) for r in range(3) for s in range(3)]


def most_tiles(tile: int, target: Target) -> int:
    """Tiles whose sums of a row of points are in registers."""
    return max(0, target.vector_registers - SPARE) // (tile + 2)


class FewTiles(ConvolutionNest):
    """The weight's `source` is in blocks, and a group of output channels is one vector. Images are taken so many at a
    time that their tiles fit; tiles that are missing in the last of these strips repeat the last tile, and are not stored."""

    def loops(self) -> OwnLoops:
        each = math.prod(constants(self.places.counts))
        most = most_tiles(self.places.step, self.target)
        assert each <= most, f"{each} tiles of an image, sums of {most} in registers"
        self.strip = most // each * each
        if isinstance(self.tiles, int):
            self.strip = min(self.strip, self.tiles)
        self.line = self.size * self.strip  # vectors of a row of points, of one vector of channels
        if self.tiles == 0:
            return OwnLoops((), ())
        strips = symbolic.ceildiv(self.tiles, self.strip)
        parallel = symbolic.less(self.tiles * (self.points * self.channels * self.outputs), PARALLEL_PRODUCTS) is not True
        kind: LoopKind = "parallel" if parallel else "serial"
        v = Buffer("v", self.x.dtype, (strips * self.size, self._stride(self.channels * self.line)), "arena")
        groups = repeat(self.groups, lambda group: repeat(strips, lambda n: self._outputs(v, group, n)), kind)
        decisions = {"tile": self.places.step, "tiles": self.strip, "weight": "transformed in registers"}
        return OwnLoops((*self._all_data(v, strips * self.strip, kind), *groups), (v,), decisions)

    def _all_data(self, v: Buffer, tiles: Dim, kind: LoopKind) -> tuple[Statement, ...]:
        def data(t: Dim) -> list[Statement]:
            part = self.data.part(self.x)
            return [Alloc(part), *self._data_tile(v, part, symbolic.minimum(t, self.tiles - 1), t)]

        return repeat(tiles, data, kind)

    def _data_tile(self, v: Buffer, part: Buffer, tile: Dim, t: Dim) -> tuple[Statement, ...]:
        def row(point: Dim, channel: Dim) -> tuple[Dim, ...]:
            x, y = point // self.size, point % self.size
            place = t % self.strip, channel // self.width, channel % self.width
            return self._place(t // self.strip, x, y, *place)

        return image_tile(self.data, self.places, self.x, v, part, tile, row)

    def _place(self, strip: Dim, x: Dim, y: Dim, t: Dim, vector: Dim, lane: Dim) -> tuple[Dim, Dim]:
        """Where v[x, y][t, vector * width + lane] of a strip is."""
        return strip * self.size + x, (vector * self.line + y * self.strip + t) * self.width + lane

    def _outputs(self, v: Buffer, group: Dim, strip: Dim) -> list[Statement]:
        """Results of a strip of tiles for a vector of output channels."""
        m = Buffer("m", self.x.dtype, (self.points, self._stride(self.strip * self.group_width)), "stack")
        part = self.result.part(self.x)
        rows = [*range(1, self.size - 1), 0, self.size - 1]  # first those that read every tap
        place = group, strip
        sums = [statement for number, x in enumerate(rows) for statement in self._row(v, m, place, x, number)]
        first = strip * self.strip
        count = symbolic.minimum(self.strip, self.tiles - first)
        tiles = repeat(count, lambda t: self._result_tile(m, part, group, first + t, t))
        return [Alloc(m), Alloc(part), *sums, *tiles]

    def _row(self, v: Buffer, m: Buffer, place: tuple[Dim, Dim], x: int, number: int) -> list[Statement]:
        """m[x, y][t] for all y and t"""
        group, strip = place
        tiles, width = self.strip, self.width
        sums = Buffer("sums", v.dtype, (self.size, tiles, width), "register")
        pairs = [(y, t) for y in range(self.size) for t in range(tiles)]
        counting = [(y, t) for y, t in pairs if self._counts(x, y, t)]
        zero = scalar.constant(0, v.dtype)

        def step(vector: Dim, channel_lane: Dim) -> list[Statement]:
            channel = vector * width + channel_lane

            def lanes(_: Dim, lane: Dim) -> list[Statement]:
                straight = Straight(self.target)
                u = self._transformed_row(straight, group, channel, x, lane)
                made: list[Statement] = list(straight.statements)
                for y, t in counting:
                    left = Load(v, self._place(strip, x, y, t, vector, channel_lane))
                    total = Load(sums, (y, t, lane))
                    made.append(Store(sums, (y, t, lane), self._multiply_add(left, u[y], total)))
                return made

            return [*self._fetch_next(group, channel, number), *vectors(width, width, lanes)]

        def steps(vector: Dim, n: Dim) -> list[Statement]:
            return [s for k in range(STEPS) for s in step(vector, n * STEPS + k)]

        def stored(_: Dim, lane: Dim) -> list[Statement]:
            return [
                Store(m, (x * self.size + y, t * width + lane), Load(sums, (y, t, lane)) if (y, t) in counting else zero)
                for y, t in pairs
            ]

        return [
            Alloc(sums),
            *vectors(width, width, lambda _, lane: [Store(sums, (y, t, lane), zero) for y, t in counting]),
            *repeat(self.channels // width, lambda vector: repeat(width // STEPS, lambda n: steps(vector, n))),
            *vectors(width, width, stored),
        ]

    def _counts(self, x: int, y: int, t: int) -> bool:
        """Whether a product matters: the last point does only for the last row or column of a tile's results."""
        down, across = self.places.counts
        last = t // across % down, t % across
        ends = ((place + 1) * self.places.step <= int(axis.count) for place, axis in zip(last, self.results, strict=True))  # type: ignore[arg-type]
        return all(exists or point < self.size - 1 for exists, point in zip(ends, (x, y), strict=True))

    def _transformed_row(self, straight: Straight, group: Dim, channel: Dim, x: int, lane: Dim) -> Sequence[Scalar]:
        """(G w G')[x], for a channel and a vector of output channels"""
        source, transform = self.weight.source, self.weight.transform
        assert source is not None
        assert transform is not None

        def tap(s: int) -> Callable[[int], Scalar]:
            return lambda r: straight.let(Load(source, (group, channel, r, s, lane)), "w")

        half = [straight.row(transform.matrix, x, tap(s)) for s in range(transform.columns)]
        return straight.product(transform.matrix, half)

    def _fetch_next(self, group: Dim, channel: Dim, number: int) -> list[Statement]:
        """Hints for taps of the block that comes next; each row of points asks for others."""
        source = self.weight.source
        assert source is not None
        return [Prefetch(source, (group + 1, channel, r, s, 0), AHEAD) for r, s in TAPS[number :: self.size]]
