"""The loops of a Winograd convolution (see `winograd`).

    for block of tiles parallel {
      v[xi][tile, c] = B' d B                                  in vectors of channels, one tile after another
      for group of output channels {
        m[xi][tile, o] = sum(c: v[xi][tile, c] * u[xi][c, o])  a register tile at a time
        y = A' m A, and what follows it elementwise            in vectors of output channels
      }
    }

v and m belong to the block and stay in the second cache. Few tiles are one block: its v is made first, by all
threads, and then the groups are divided among them. u is read in the order of its memory, a register tile's part
ahead; the distance between two points xi of v and m is odd in cache lines, so that the many streams of a transform
do not fall into the same few places of the cache.

Padding is no copy: a tile at an edge reads the nearest element and keeps it where it exists.
Invariant: the sum of a product runs over the channels in order, so bits depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, If, Prefetch, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Finish, OwnLoops
from ingot.compiler.ops.nests import repeat, vectors
from ingot.compiler.ops.straight import Straight
from ingot.compiler.ops.windows import Axis
from ingot.compiler.target import Target

UNROLL = 4  # channels in one iteration of the register tile
MOST_SHARED = 64  # tiles that are one block
LEAST_TILES = 18  # tiles of a block that share one reading of u
PARALLEL_PRODUCTS = 1 << 18  # less work than this is not worth waking a thread
PARALLEL_ELEMENTS = 1 << 15  # of a transform
LINE = 64  # bytes of a cache line


def weight_loops(u: Buffer, w: Buffer, transform: np.ndarray, target: Target) -> tuple[Statement, ...]:
    """u[g, x, y, b, c, l] = (G w[:, :, c, o] G')[x, y] with o = (g * blocks + b) * columns + l"""
    size, taps = transform.shape
    groups, _, _, blocks, channels, columns = _constants(u.shape)
    outputs = w.shape[-1]
    width = min(target.lanes(u.dtype.itemsize), columns)
    zero = scalar.constant(0, w.dtype)

    def element(group: Dim, block: Dim, channel: Dim, lane: Dim) -> list[Statement]:
        straight = Straight(target)
        output = (group * blocks + block) * columns + lane
        exists = scalar.predicate(output, "lt", outputs)

        def tap(r: int, s: int) -> Scalar:
            return straight.let(scalar.select(exists, Load(w, (r, s, channel, output)), zero), "w")

        half = [straight.rows(transform, [tap(r, s) for r in range(taps)]) for s in range(taps)]
        stores: list[Statement] = []
        for x in range(size):
            for y, value in enumerate(straight.rows(transform, [half[s][x] for s in range(taps)])):
                stores.append(Store(u, (group, x, y, block, channel, lane), value))
        return [*straight.statements, *stores]

    def line(number: Dim) -> Sequence[Statement]:
        block, channel = number // channels, number % channels
        return vectors(columns, width, lambda lane, _: element(block // blocks, block % blocks, channel, lane))

    parallel = groups * blocks * channels * columns >= PARALLEL_ELEMENTS
    return repeat(groups * blocks * channels, line, "parallel" if parallel else "serial")


@dataclass(frozen=True)
class Sizes:
    """How a convolution is cut."""

    tile: int
    tiles: int  # of a block
    rows: int  # most of a register tile
    columns: int  # of a register tile
    group: int  # blocks of columns that share one m
    shared: bool  # one block, whose groups are divided among threads


def sizes_of(tile: int, tiles: Dim, channels: int, group: int, columns: int, target: Target, itemsize: int) -> Sizes:
    points = (tile + 2) ** 2
    vectors_ = max(1, columns // target.lanes(itemsize))
    rows = max(1, (target.vector_registers - 1 - vectors_) // vectors_)
    if isinstance(tiles, int) and tiles <= MOST_SHARED:
        return Sizes(tile, tiles, rows, columns, group, True)
    room = target.l2_bytes * 3 // 4 // (points * itemsize * (channels + group * columns))
    most = max(LEAST_TILES, room)
    if isinstance(tiles, int):
        most = -(-tiles // -(-tiles // most))
    return Sizes(tile, -(-most // rows) * rows, rows, columns, group, False)


class ConvolutionNest:
    """`data` and `result` are the transforms B' and A' of one dimension."""

    def __init__(
        self, tile: int, axes: Sequence[Axis], x: Buffer, u: Buffer, y: Buffer, target: Target, finish: Finish,
        data: np.ndarray, result: np.ndarray,
    ) -> None:  # fmt: skip
        self.tile, self.axes, self.x, self.u, self.y = tile, axes, x, u, y
        self.target, self.finish = target, finish
        self.data, self.result = data, result
        self.size = len(data)
        self.points = self.size**2
        (self.channels, self.outputs) = _constants((x.shape[-1], y.shape[-1]))
        self.groups, _, _, group, _, columns = _constants(u.shape)
        self.width = target.lanes(x.dtype.itemsize)
        self.down, self.across = (-(-count // tile) for count in _constants([axis.count for axis in axes]))
        self.tiles = x.shape[0] * (self.down * self.across)
        self.sizes = sizes_of(tile, self.tiles, self.channels, group, columns, target, x.dtype.itemsize)
        self.group_width = group * columns
        self.v_shape = (self.points, self._stride(self.sizes.tiles * self.channels))
        self.m_shape = (self.points, self._stride(self.sizes.tiles * self.group_width))

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
        if self.sizes.shared:
            v = Buffer("v", self.x.dtype, self.v_shape, "arena")
            return OwnLoops(self._shared_block(v, parallel), (v,), decisions)
        count = symbolic.ceildiv(self.tiles, self.sizes.tiles)
        return OwnLoops(repeat(count, self._block, "parallel" if parallel else "serial"), (), decisions)

    def _shared_block(self, v: Buffer, parallel: bool) -> tuple[Statement, ...]:
        """All tiles in one block; threads divide the tiles, then the groups."""
        tiles = self.sizes.tiles
        many = parallel and tiles * self.channels >= PARALLEL_ELEMENTS // self.points

        def data(t: Dim) -> list[Statement]:
            part = self._part()
            return [Alloc(part), *self._data_tile(v, part, t, t)]

        def group(number: Dim) -> list[Statement]:
            m, part = self._products_buffer(), self._part()
            return [Alloc(m), Alloc(part), *self._group(v, m, part, number, 0, tiles)]

        return (
            *repeat(tiles, data, "parallel" if many else "serial"),
            *repeat(self.groups, group, "parallel" if parallel else "serial"),
        )

    def _block(self, number: Dim) -> list[Statement]:
        v = Buffer("v", self.x.dtype, self.v_shape, "stack")
        m, part = self._products_buffer(), self._part()
        first = number * self.sizes.tiles
        tiles = symbolic.minimum(self.sizes.tiles, self.tiles - first)
        return [
            *map(Alloc, (v, m, part)),
            *repeat(tiles, lambda t: self._data_tile(v, part, first + t, t)),
            *self._clear_rest(v, tiles),
            *repeat(self.groups, lambda group: self._group(v, m, part, group, first, tiles)),
        ]

    def _group(self, v: Buffer, m: Buffer, part: Buffer, group: Dim, first: Dim, tiles: Dim) -> list[Statement]:
        return [
            *self._products(v, m, group, tiles),
            *repeat(tiles, lambda t: self._result_tile(m, part, group, first + t, t)),
        ]

    def _products_buffer(self) -> Buffer:
        return Buffer("m", self.x.dtype, self.m_shape, "stack")

    def _part(self) -> Buffer:
        """A tile's vectors between the two dimensions of a transform."""
        return Buffer("part", self.x.dtype, (self.size, self.size, self.width), "stack")

    def _place(self, tile: Dim) -> tuple[Dim, Dim, Dim]:
        """(image, first row, first column of the results) of a tile"""
        inside = self.down * self.across
        image, rest = tile // inside, tile % inside
        return image, rest // self.across * self.tile, rest % self.across * self.tile

    # --- the transform of the data --------------------------------------------------------------------------

    def _data_tile(self, v: Buffer, part: Buffer, tile: Dim, t: Dim) -> tuple[Statement, ...]:
        image, *places = self._place(tile)
        corner = [place - axis.low for place, axis in zip(places, self.axes, strict=True)]
        inside = scalar.both(
            *(
                condition
                for start, axis in zip(corner, self.axes, strict=True)
                for condition in (
                    scalar.predicate(start, "ge", 0),
                    scalar.predicate(start + self.size, "le", axis.size),
                )
            )
        )

        def lanes(channel: Dim, lane: Dim) -> list[Statement]:
            def columns(element: Callable[[Dim, Dim], Scalar]) -> tuple[Statement, ...]:
                return repeat(self.size, lambda b: self._data_column(part, element, b, lane))

            def plain(a: Dim, b: Dim) -> Scalar:
                return Load(self.x, (image, corner[0] + a, corner[1] + b, channel))

            def edge(a: Dim, b: Dim) -> Scalar:
                return self._edge_element(image, (corner[0] + a, corner[1] + b), channel)

            rows = repeat(self.size, lambda a: self._data_row(v, part, a, t * self.channels + channel, lane))
            if isinstance(inside, scalar.Const):
                return [*columns(plain if inside.value else edge), *rows]
            return [If(inside, columns(plain), columns(edge)), *rows]

        return vectors(self.channels, self.width, lanes)

    def _edge_element(self, image: Dim, places: tuple[Dim, Dim], channel: Dim) -> Scalar:
        """The element, or 0 outside; what is read lies inside in any case."""
        pairs = list(zip(self.axes, places, strict=True))
        inside = scalar.both(*(axis.inside(p) for axis, p in pairs))
        near = [symbolic.minimum(symbolic.maximum(p, 0), axis.size - 1) for axis, p in pairs]
        return scalar.select(inside, Load(self.x, (image, *near, channel)), scalar.constant(0, self.x.dtype))

    def _data_column(
        self, part: Buffer, element: Callable[[Dim, Dim], Scalar], column: Dim, lane: Dim
    ) -> list[Statement]:
        straight = Straight(self.target)
        made = straight.rows(self.data, [straight.let(element(a, column), "d") for a in range(self.size)])
        return [*straight.statements, *(Store(part, (a, column, lane), value) for a, value in enumerate(made))]

    def _data_row(self, v: Buffer, part: Buffer, row: Dim, place: Dim, lane: Dim) -> list[Statement]:
        straight = Straight(self.target)
        loaded = [straight.let(Load(part, (row, b, lane)), "d") for b in range(self.size)]
        made = straight.rows(self.data, loaded)
        return [
            *straight.statements,
            *(Store(v, (row * self.size + b, place), value) for b, value in enumerate(made)),
        ]

    def _clear_rest(self, v: Buffer, tiles: Dim) -> tuple[Statement, ...]:
        """Rows that fill up the last register tile of a block are 0: they are computed and not stored."""
        missing = symbolic.ceildiv(tiles, self.sizes.rows) * self.sizes.rows - tiles
        zero = scalar.constant(0, v.dtype)

        def row(point: Dim, number: Dim) -> Sequence[Statement]:
            start = (tiles + number) * self.channels
            return vectors(self.channels, self.width, lambda c, _: [Store(v, (point, start + c), zero)])

        return repeat(self.points, lambda p: repeat(missing, lambda n: row(p, n)))

    # --- products -------------------------------------------------------------------------------------------

    def _products(self, v: Buffer, m: Buffer, group: Dim, tiles: Dim) -> tuple[Statement, ...]:
        """m = v u for all points and the blocks of a group; a block against all tiles, then the next."""

        def block(point: Dim, number: Dim) -> list[Statement]:
            place = (group, point, number)

            def strip(first: Dim, rows: int, before: Dim, count: Dim, strips: int) -> tuple[Statement, ...]:
                def tile(i: Dim) -> list[Statement]:
                    return self._register_tile(v, m, place, first + i * rows, rows, before + i, strips)

                return repeat(count, tile)

            if not self.sizes.shared:
                count = symbolic.ceildiv(tiles, self.sizes.rows)
                return list(strip(0, self.sizes.rows, 0, count, self.sizes.tiles // self.sizes.rows))
            strips = -(-self.sizes.tiles // self.sizes.rows)
            rows, taller = divmod(self.sizes.tiles, strips)
            return [
                *strip(0, rows + 1, 0, taller, strips),
                *strip(taller * (rows + 1), rows, taller, strips - taller, strips),
            ]

        return repeat(self.points, lambda p: repeat(self.sizes.group, lambda n: block(p, n)))

    def _register_tile(
        self, v: Buffer, m: Buffer, place: tuple[Dim, Dim, Dim], row: Dim, rows: int, strip: Dim, strips: int
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
                *self._fetch_ahead(weight, channel, strip, strips),
                *repeat(UNROLL, lambda n: step(channel + n), "unrolled"),
            ]

        whole = self.channels // UNROLL
        zero = scalar.constant(0, v.dtype)
        stored = row * self.group_width + block * columns
        return [
            Alloc(sums),
            *spread(lambda r, lane: Store(sums, (r, lane), zero)),
            *repeat(whole, steps),
            *repeat(self.channels - whole * UNROLL, lambda n: step(whole * UNROLL + n), "unrolled"),
            *spread(lambda r, lane: Store(m, (point, stored + r * self.group_width + lane), Load(sums, (r, lane)))),
        ]

    def _fetch_ahead(
        self, weight: tuple[Dim, Dim, Dim, Dim], channel: Dim, strip: Dim, strips: int
    ) -> list[Statement]:
        """Hints for the part of u that comes next, divided among the strips of rows that read this one."""
        each = -(-UNROLL // strips)
        ahead = (*weight[:-1], weight[-1] + 1)  # beyond the last block the memory of the next point follows
        lines = [channel + symbolic.minimum(strip * each + n, UNROLL - 1) for n in range(each)]
        return [Prefetch(self.u, (*ahead, line, 0)) for line in lines]

    def _multiply_add(self, left: Scalar, right: Scalar, total: Scalar) -> Scalar:
        if self.target.has_fma:
            return scalar.apply("fma", left, right, total)
        return scalar.apply("add", total, scalar.apply("mul", left, right))

    # --- the transform of the products ----------------------------------------------------------------------

    def _result_tile(self, m: Buffer, part: Buffer, group: Dim, tile: Dim, t: Dim) -> tuple[Statement, ...]:
        image, y, x = self._place(tile)
        rows = symbolic.minimum(self.tile, self.axes[0].count - y)
        first = group * self.group_width

        def lanes(output: Dim, lane: Dim) -> list[Statement]:
            place = t * self.group_width + output
            return [
                *repeat(self.size, lambda b: self._result_column(m, part, b, place, lane)),
                *repeat(rows, lambda i: self._result_row(part, (image, y + i, x, first + output), i, lane)),
            ]

        width: Dim = self.group_width
        if self.groups * self.group_width != self.outputs:
            width = symbolic.minimum(width, self.outputs - first)
        return vectors(width, self.width, lanes)

    def _result_column(self, m: Buffer, part: Buffer, column: Dim, place: Dim, lane: Dim) -> list[Statement]:
        straight = Straight(self.target)
        loaded = [straight.let(Load(m, (a * self.size + column, place)), "m") for a in range(self.size)]
        made = straight.columns(self.result, loaded)
        return [*straight.statements, *(Store(part, (i, column, lane), value) for i, value in enumerate(made))]

    def _result_row(
        self, part: Buffer, place: tuple[Dim, Dim, Dim, Dim], row: Dim, lane: Dim
    ) -> list[Statement]:
        straight = Straight(self.target)
        loaded = [straight.let(Load(part, (row, b, lane)), "m") for b in range(self.size)]
        made = straight.columns(self.result, loaded)
        image, y, x, output = place
        finished: list[Statement] = []
        for j, value in enumerate(made):
            exists = scalar.predicate(x + j, "lt", self.axes[1].count)
            stored = tuple(self.finish(self.y, (image, y, x + j, output), value))
            if isinstance(exists, scalar.Const):
                finished += stored if exists.value else ()
            else:
                finished.append(If(exists, stored))
        return [*straight.statements, *finished]


def _constants(dims: Sequence[Dim]) -> list[int]:
    assert all(isinstance(d, int) for d in dims), f"not all constant: {dims}"
    return list(dims)  # type: ignore[arg-type]
