"""The loops of a Winograd convolution of few tiles, whose weight is transformed on the way (see `winograd`).

A transform is four times larger than the weight, and with few tiles there is not enough to do while it arrives from
memory. So the weight itself is read, in blocks of one vector of output channels, and its transform is never stored:

    for block of output channels parallel {
      for some channels {
        for row x of points, written out {
          for c { u = the row x of G w[c] G'; m[x, y][tile] += v[x, y][tile, c] * u[y] }     sums in registers
        }
      }
      y = A' m A, and what follows it elementwise
    }

There are so few channels at a time that their taps and data stay in the first cache from one row to the next, while hints
ask for those that follow. v is stored as it is read: by rows of points, and of those by vectors of channels. The last point is infinity, and counts only for the last row or
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
DISTANCE = 32 << 10  # bytes that hints are ahead
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
            part = self.data.part(self.x, self.channels)
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
        part = self.result.part(self.x, self.group_width)
        place = group, strip
        zero = scalar.constant(0, v.dtype)
        count = self.channels // self.width
        most = max(1, min(count, self.target.l1_bytes * 3 // 4 // self._near_bytes()))
        together = -(-count // -(-count // most))

        def clear(point: Dim) -> Sequence[Statement]:
            return vectors(self.strip * self.width, self.width, lambda at, _: [Store(m, (point, at), zero)])

        def channels(number: Dim) -> list[Statement]:
            some = symbolic.minimum(together, count - number * together)
            rows = range(self.size)
            return [s for x in rows for s in self._row(v, m, place, x, number * together, some)]

        first = strip * self.strip
        present = symbolic.minimum(self.strip, self.tiles - first)
        tiles = repeat(present, lambda t: self._result_tile(m, part, group, first + t, t))
        sums = repeat(-(-count // together), channels)
        return [Alloc(m), Alloc(part), *repeat(self.points, clear), *sums, *tiles]

    def _near_bytes(self) -> int:
        """Of the taps and the data of a vector of channels."""
        return (self.width * len(TAPS) + self.size * self.line) * self.target.vector_bytes

    def _row(self, v: Buffer, m: Buffer, place: tuple[Dim, Dim], x: int, first: Dim, count: Dim) -> list[Statement]:
        """m[x, y][t] += ... for all y and t, and some vectors of channels"""
        group, strip = place
        tiles, width = self.strip, self.width
        sums = Buffer("sums", v.dtype, (self.size, tiles, width), "register")
        pairs = [(y, t) for y in range(self.size) for t in range(tiles)]
        counting = [(y, t) for y, t in pairs if self._counts(x, y, t)]

        def step(vector: Dim, channel_lane: Dim) -> tuple[Statement, ...]:
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

            return vectors(width, width, lanes)

        def steps(number: Dim, n: Dim) -> list[Statement]:
            passed = (first * self.size + x * count + number) * (width // STEPS) + n
            return [
                *self._fetch_ahead_of(group, passed),
                *(s for k in range(STEPS) for s in step(first + number, n * STEPS + k)),
            ]

        def stored(y: int, t: int, lane: Dim) -> tuple[Dim, Dim]:
            return x * self.size + y, t * width + lane

        def begin(_: Dim, lane: Dim) -> list[Statement]:
            return [Store(sums, (y, t, lane), Load(m, stored(y, t, lane))) for y, t in counting]

        def end(_: Dim, lane: Dim) -> list[Statement]:
            return [Store(m, stored(y, t, lane), Load(sums, (y, t, lane))) for y, t in counting]

        return [
            Alloc(sums),
            *vectors(width, width, begin),
            *repeat(count, lambda number: repeat(width // STEPS, lambda n: steps(number, n))),
            *vectors(width, width, end),
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

    def _fetch_ahead_of(self, group: Dim, passed: Dim) -> list[Statement]:
        """Hints for taps of channels that come later, and then of the next block, line after line: processors that see lines
        asked for in order fetch further ones by themselves. `passed` steps of all rows of points have asked before."""
        source = self.weight.source
        assert source is not None
        each = -(-len(TAPS) * STEPS // self.size)
        ahead = DISTANCE // source.dtype.itemsize
        return [Prefetch(source, (group, 0, 0, 0, ahead + (passed * each + n) * self.width), AHEAD) for n in range(each)]
