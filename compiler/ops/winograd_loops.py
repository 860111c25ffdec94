"""The loops of a Winograd convolution (see `winograd`).

    for block of tiles parallel {
      v[xi][tile, c] = B' d B                                  in vectors of channels, one tile after another
      for group of output channels {
        m[xi][tile, o] = sum(c: v[xi][tile, c] * u[xi][c, o])  a register tile at a time
        y = A' m A, and what follows it elementwise            in vectors of output channels
      }
    }

A weight that changes comes as it is: its transform is made first, in the program's memory. For few tiles only some
groups are transformed at a time, just before they are used, so that their transform is still in a cache; then threads
divide the points of these groups, and after that their tiles.

v and m belong to the block and stay in the second cache. Where one register tile is as wide as all output channels, it has
read all it needs of v when it stores its products, so these take the place of its rows. Few tiles are one block: its v is made first, by all
threads, and then the groups are divided among them. u is read in the order of its memory, a register tile's part
ahead; the distance between two points xi of v and m is odd in cache lines, so that the many streams of a transform
do not fall into the same few places of the cache.

Padding is no copy: a tile at an edge reads the nearest element and keeps it where it exists.
Invariant: the sum of a product runs over the channels in order, so bits depend on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, If, LoopKind, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Finish, OwnLoops
from ingot.compiler.ops.nests import repeat, vectors
from ingot.compiler.ops.windows import Axis
from ingot.compiler.ops.winograd_transforms import (
    LINE,
    PARALLEL_ELEMENTS,
    Tiles,
    Transform,
    WeightOrder,
    constants,
    image_tile,
    weight_loops,
)
from ingot.compiler.target import Target

UNROLL = 4  # channels in one iteration of the register tile
AHEAD = 2  # locality of a hint: the second cache, since the first one does not keep so much until it is read
MOST_SHARED = 64  # tiles that are one block
STACK_BYTES = (1 << 20) - (1 << 14)  # that v or m of a block may take, apart from what keeps its points apart
LEAST_TILES = 18  # tiles of a block that share one reading of u
LOW = 4  # rows of the register tiles for what is left of a block
PART_BYTES = 1 << 20  # of a changing weight's transform that are made at a time, if that are whole groups
PARALLEL_PRODUCTS = 1 << 18  # less work than this is not worth waking a thread


@dataclass(frozen=True)
class Sizes:
    """How a convolution is cut."""

    tile: int
    tiles: int  # of a block
    rows: int  # most of a register tile
    columns: int  # of a register tile
    group: int  # blocks of columns that share one m
    shared: bool  # one block, whose groups are divided among threads
    over: bool = False  # m lies over v


def sizes_of(
    tile: int, points: int, tiles: Dim, channels: int, u_shape: Sequence[int], target: Target, itemsize: int
) -> Sizes:
    groups, _, _, group, _, columns = u_shape
    vectors_ = max(1, columns // target.lanes(itemsize))
    rows = target.tile_rows(vectors_)
    data_bytes, product_bytes = points * itemsize * channels, points * itemsize * group * columns  # of a tile
    if isinstance(tiles, int) and tiles <= MOST_SHARED and tiles * product_bytes <= STACK_BYTES:
        return Sizes(tile, tiles, rows, columns, group, True)
    fit = max(1, STACK_BYTES // max(data_bytes, product_bytes))
    rows = min(rows, fit)
    over = groups == group == 1 and columns <= channels
    room, weight_bytes = target.l2_bytes * 3 // 4, math.prod(u_shape) * itemsize
    if over:
        room -= min(weight_bytes, room)  # u is read for every block, and may stay as well
        product_bytes = 0
    elif weight_bytes <= target.l2_bytes // 4:
        room = target.l2_bytes // 2 - weight_bytes  # it does stay, and so does the part of the image that comes next
    most = min(fit, max(LEAST_TILES, room // (data_bytes + product_bytes)))
    if isinstance(tiles, int):
        most = -(-tiles // -(-tiles // most))
    return Sizes(tile, min(-(-most // rows), fit // rows) * rows, rows, columns, group, False, over)


@dataclass(frozen=True)
class Weight:
    """The weight's transform, or room for it and the weight it is made of."""

    u: Buffer
    source: Buffer | None = None
    order: WeightOrder = "channels_last"
    transform: Transform | None = None


class ConvolutionNest:
    """`data` and `result` are the transforms of a tile of x, and of its products."""

    def __init__(
        self, tiles: Tiles, results: Sequence[Axis], x: Buffer, weight: Weight, y: Buffer, data: Transform,
        result: Transform, finish: Finish,
    ) -> None:  # fmt: skip
        u = weight.u
        self.places, self.results = tiles, results
        self.weight = weight
        self.x, self.u, self.y = x, u, y
        self.data, self.result, self.finish = data, result, finish
        self.target = data.target
        self.size, self.points = data.rows, data.rows**2
        self.channels, self.outputs = constants((x.shape[-1], y.shape[-1]))
        self.groups, _, _, group, _, columns = constants(u.shape)
        self.width = self.target.lanes(x.dtype.itemsize)
        self.tiles = x.shape[0] * (tiles.counts[0] * tiles.counts[1])
        self.sizes = sizes_of(tiles.results, self.points, self.tiles, self.channels, constants(u.shape), self.target, x.dtype.itemsize)
        self.group_width = group * columns
        self.row_width = self.channels if self.sizes.over else self.group_width  # of m
        self.v_shape = (self.points, self._stride(self.sizes.tiles * self.channels))
        self.m_shape = (self.points, self._stride(self.sizes.tiles * self.row_width))

    def _stride(self, elements: int) -> int:
        """Elements between two points: at least this many, an odd number of cache lines."""
        line = LINE // self.x.dtype.itemsize
        lines = -(-elements // line)
        return (lines + 1 - lines % 2) * line

    # --- loops ----------------------------------------------------------------------------------------------

    def loops(self) -> OwnLoops:
        decisions = asdict(self.sizes)
        if self.tiles == 0:
            return OwnLoops((), (), decisions)
        work = self.tiles * (self.points * self.channels * self.outputs)
        parallel = symbolic.less(work, PARALLEL_PRODUCTS) is not True
        kind: LoopKind = "parallel" if parallel else "serial"
        if self.sizes.shared:
            v = Buffer("v", self.x.dtype, self.v_shape, "arena")
            if self.weight.source is not None:
                return self._by_parts(v, kind, decisions)
            return OwnLoops((*self._shared_data(v, parallel), *self._shared_groups(v, kind)), (v,), decisions)
        blocks = repeat(symbolic.ceildiv(self.tiles, self.sizes.tiles), self._block, kind)
        if self.weight.source is None:
            return OwnLoops(blocks, (), decisions)
        return OwnLoops((*self._transformed(self.u, 0, self.groups), *blocks), (self.u,), decisions)

    def _transformed(self, u: Buffer, first: Dim, groups: Dim) -> tuple[Statement, ...]:
        """The transform of some groups of the weight."""
        weight = self.weight
        assert weight.source is not None
        assert weight.transform is not None
        return weight_loops(u, weight.source, weight.transform, weight.order, first, groups)

    def _by_parts(self, v: Buffer, kind: LoopKind, decisions: dict[str, object]) -> OwnLoops:
        """Few tiles and a weight that changes: some groups are transformed and used, then the next."""
        group_bytes = self.points * self.group_width * self.channels * self.x.dtype.itemsize
        together = min(self.groups, max(1, PART_BYTES // group_bytes))
        self.u = u = Buffer("u", self.u.dtype, (together, *self.u.shape[1:]), "arena")
        m = Buffer("m", self.x.dtype, (together * self.points, self.m_shape[1]), "arena")
        tiles = self.sizes.tiles

        def part(number: Dim) -> list[Statement]:
            first = number * together
            count = symbolic.minimum(together, self.groups - first)

            def product(n: Dim) -> tuple[Statement, ...]:
                group, point = n // self.points, n % self.points
                return self._point(v, m, group, point, group * self.points, tiles)

            def result(n: Dim) -> list[Statement]:
                buffer = self.result.part(self.x, self.group_width)
                group, tile = n // tiles, n % tiles
                return [Alloc(buffer), *self._result_tile(m, buffer, first + group, tile, tile, group * self.points)]

            return [
                *self._transformed(u, first, count),
                *repeat(count * self.points, product, kind),
                *repeat(count * tiles, result, kind),
            ]

        parts = repeat(-(-self.groups // together), part)
        return OwnLoops((*self._shared_data(v, kind == "parallel"), *parts), (v, u, m), {**decisions, "part": together})

    def _shared_data(self, v: Buffer, parallel: bool) -> tuple[Statement, ...]:
        """All tiles in one block, transformed by all threads."""
        tiles = self.sizes.tiles
        many = parallel and tiles * self.channels >= PARALLEL_ELEMENTS // self.points

        def data(t: Dim) -> list[Statement]:
            part = self.data.part(self.x, self.channels)
            return [Alloc(part), *self._data_tile(v, part, t, t)]

        return repeat(tiles, data, "parallel" if many else "serial")

    def _shared_groups(self, v: Buffer, kind: LoopKind) -> tuple[Statement, ...]:
        """The groups of that block, divided among threads."""

        def group(number: Dim) -> list[Statement]:
            m, part = self._products_buffer(), self.result.part(self.x, self.group_width)
            return [Alloc(m), Alloc(part), *self._group(v, m, part, number, 0, self.sizes.tiles)]

        return repeat(self.groups, group, kind)

    def _block(self, number: Dim) -> list[Statement]:
        v = Buffer("v", self.x.dtype, self.v_shape, "stack")
        m = v if self.sizes.over else self._products_buffer()
        data, result = self.data.part(self.x, self.channels), self.result.part(self.x, self.group_width)
        first = number * self.sizes.tiles
        tiles = symbolic.minimum(self.sizes.tiles, self.tiles - first)
        return [
            *map(Alloc, dict.fromkeys((v, m, data, result))),
            *repeat(tiles, lambda t: self._data_tile(v, data, first + t, t)),
            *self._clear_rest(v, tiles),
            *repeat(self.groups, lambda group: self._group(v, m, result, group, first, tiles)),
        ]

    def _group(self, v: Buffer, m: Buffer, part: Buffer, group: Dim, first: Dim, tiles: Dim) -> list[Statement]:
        return [
            *self._products(v, m, group, tiles),
            *repeat(tiles, lambda t: self._result_tile(m, part, group, first + t, t)),
        ]

    def _products_buffer(self) -> Buffer:
        return Buffer("m", self.x.dtype, self.m_shape, "stack")

    # --- the transform of the data --------------------------------------------------------------------------

    def _data_tile(self, v: Buffer, part: Buffer, tile: Dim, t: Dim) -> tuple[Statement, ...]:
        def row(point: Dim, channel: Dim) -> tuple[Dim, ...]:
            return point, t * self.channels + channel

        return image_tile(self.data, self.places, self.x, v, part, tile, row)

    def _clear_rest(self, v: Buffer, tiles: Dim) -> tuple[Statement, ...]:
        """Rows that fill up the last register tile of a block are 0: they are computed and not stored."""
        full, low = self._strips(tiles)
        missing = symbolic.maximum(full * self.sizes.rows + low * LOW - tiles, 0)
        zero = scalar.constant(0, v.dtype)

        def row(point: Dim, number: Dim) -> Sequence[Statement]:
            start = (tiles + number) * self.channels
            return vectors(self.channels, self.width, lambda c, _: [Store(v, (point, start + c), zero)])

        return repeat(self.points, lambda p: repeat(missing, lambda n: row(p, n)))

    # --- products -------------------------------------------------------------------------------------------

    def _strips(self, tiles: Dim) -> tuple[Dim, Dim]:
        """Register tiles of full height and low ones that cover some tiles of a block, and no more rows than it has.
        Rows beyond the last tile are computed too, so a few tiles take low ones."""
        rows = self.sizes.rows
        most = (rows - 1) // LOW
        full = (tiles + (rows - 1 - most * LOW)) // rows
        return full, symbolic.ceildiv(symbolic.maximum(tiles - full * rows, 0), LOW)

    def _products(self, v: Buffer, m: Buffer, group: Dim, tiles: Dim) -> tuple[Statement, ...]:
        """m = v u for all points and the blocks of a group; a block against all tiles, then the next."""

        return repeat(self.points, lambda p: self._point(v, m, group, p, 0, tiles))

    def _point(self, v: Buffer, m: Buffer, group: Dim, point: Dim, base: Dim, tiles: Dim) -> tuple[Statement, ...]:
        """The same for one point; those of a group start at `base` in m."""

        def block(number: Dim) -> list[Statement]:
            place = (group, point, number)

            def strip(first: Dim, rows: int, before: Dim, count: Dim, strips: int) -> tuple[Statement, ...]:
                def tile(i: Dim) -> list[Statement]:
                    return self._register_tile(v, m, place, base, first + i * rows, rows, before + i, strips)

                return repeat(count, tile)

            if not self.sizes.shared:
                full, low = self._strips(tiles)
                strips = self.sizes.tiles // self.sizes.rows
                # low tiles may be the only ones, of an image of a few pixels: each asks for all of the next block
                return [
                    *strip(0, self.sizes.rows, 0, full, strips),
                    *strip(full * self.sizes.rows, LOW, 0, low, 1),
                ]
            strips = -(-self.sizes.tiles // self.sizes.rows)
            rows, taller = divmod(self.sizes.tiles, strips)
            return [
                *strip(0, rows + 1, 0, taller, strips),
                *strip(taller * (rows + 1), rows, taller, strips - taller, strips),
            ]

        return repeat(self.sizes.group, block)

    def _register_tile(
        self, v: Buffer, m: Buffer, place: tuple[Dim, Dim, Dim], base: Dim, row: Dim, rows: int, strip: Dim, strips: int
    ) -> list[Statement]:
        """m[point][row.., block] = sum(c: v[point][row.., c] * u[group, point, block][c, ..])"""
        group, point, block = place
        columns = self.sizes.columns
        sums = Buffer("sums", v.dtype, (rows, columns), "register")
        weight = (group, point // self.size, point % self.size, block)

        def spread(body: Callable[[Dim, Dim], Statement]) -> tuple[Statement, ...]:
            def line(r: Dim) -> tuple[Statement, ...]:
                return vectors(columns, self.width, lambda lane, _: [body(r, lane)], "unrolled")

            return repeat(rows, line, "unrolled")

        def step(channel: Dim) -> tuple[Statement, ...]:
            def element(r: Dim, lane: Dim) -> Statement:
                left = Load(v, (point, (row + r) * self.channels + channel))
                right = Load(self.u, (*weight, channel, lane))
                return Store(sums, (r, lane), self._multiply_add(left, right, Load(sums, (r, lane))))

            return spread(element)

        def steps(number: Dim) -> list[Statement]:
            channel = number * UNROLL
            return [
                *self._fetch_ahead(weight, number, strip, strips),
                *self._fetch_data(v, place, row, rows, number),
                *repeat(UNROLL, lambda n: step(channel + n), "unrolled"),
            ]

        whole = self.channels // UNROLL
        zero = scalar.constant(0, v.dtype)
        stored = row * self.row_width + block * columns
        return [
            Alloc(sums),
            *spread(lambda r, lane: Store(sums, (r, lane), zero)),
            *repeat(whole, steps),
            *repeat(self.channels - whole * UNROLL, lambda n: step(whole * UNROLL + n), "unrolled"),
            *spread(lambda r, lane: Store(m, (base + point, stored + r * self.row_width + lane), Load(sums, (r, lane)))),
        ]

    def _fetch_ahead(
        self, weight: tuple[Dim, Dim, Dim, Dim], number: Dim, strip: Dim, strips: int
    ) -> list[Statement]:
        """Hints for the part of u that comes next, divided among the strips of rows that read this one: each asks for a piece
        of it, line after line, because processors that see that fetch further lines by themselves."""
        line = LINE // self.u.dtype.itemsize
        across = -(-self.sizes.columns // line)  # lines of a channel
        each = -(-UNROLL * across // strips)
        first = (strip * (self.channels // UNROLL) + number) * each
        ahead = (*weight[:-1], weight[-1] + 1)  # beyond the last block the memory of the next point follows
        return [Prefetch(self.u, (*ahead, 0, (first + n) * line), AHEAD) for n in range(each)]

    def _fetch_data(
        self, v: Buffer, place: tuple[Dim, Dim, Dim], row: Dim, rows: int, number: Dim
    ) -> list[Statement]:
        """Hints for the rows of the next point, divided among the blocks that read these: another core may have made them."""
        _, point, block = place
        line, steps = LINE // v.dtype.itemsize, self.channels // UNROLL
        each = -(-rows * self.channels // (line * self.sizes.group * steps))
        first = (block * steps + number) * each
        return [Prefetch(v, (point + 1, row * self.channels + (first + n) * line), AHEAD) for n in range(each)]

    def _multiply_add(self, left: Scalar, right: Scalar, total: Scalar) -> Scalar:
        if self.target.has_fma:
            return scalar.apply("fma", left, right, total)
        return scalar.apply("add", total, scalar.apply("mul", left, right))

    # --- the transform of the products ----------------------------------------------------------------------

    def _result_tile(
        self, m: Buffer, part: Buffer, group: Dim, tile: Dim, t: Dim, base: Dim = 0
    ) -> tuple[Statement, ...]:
        image, _ = self.places.place(tile)
        y, x = self.places.result(tile)
        height, width = (axis.count for axis in self.results)
        first = group * self.group_width

        def product(a: Dim, b: Dim, output: Dim) -> Scalar:
            return Load(m, (base + a * self.size + b, t * self.row_width + output))

        def results(i: Dim, values: Sequence[Scalar], output: Dim) -> list[Statement]:
            made: list[Statement] = []
            for j, value in enumerate(values):
                exists = scalar.predicate(x + j, "lt", width)
                stored = tuple(self.finish(self.y, (image, y + i, x + j, first + output), value))
                if isinstance(exists, scalar.Const):
                    made += stored if exists.value else ()
                else:
                    made.append(If(exists, stored))
            return made

        rows = symbolic.minimum(self.places.results, height - y)
        count: Dim = self.group_width
        if self.groups * self.group_width != self.outputs:
            count = symbolic.minimum(count, self.outputs - first)
        return self.result.through(part, count, product, results, rows)
