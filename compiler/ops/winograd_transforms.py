"""The transforms of Winograd's algorithm as loops: each is matrix * tile * matrix' for vectors of channels.

    data      v = B' d B        a tile of the image, zeros outside
    gradient  z = A g A'        a tile of a cotangent, zeros outside
    weight    u = G w G'
    result    y = A' m A        and its adjoint for weights, w = G' u G

A transform goes through one dimension and then through the other; between the two, it is in a small buffer. Both halves
are loops, so that the code stays small, and channels are their inner loops: the results of all points are as far apart
as tiles are many, and a processor that writes to one point after another knows too few of their pages (16 on Ice Lake).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, If, LoopKind, Statement, Store, View
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.nests import repeat, vectors
from ingot.compiler.ops.straight import Straight
from ingot.compiler.ops.windows import Axis
from ingot.compiler.target import Target

LINE = 64  # bytes of a cache line
BLOCK_OUTPUTS, BLOCK_CHANNELS = 64, 8  # of a weight's gradient that is put together in the first cache
SQUARE = 8  # rows and columns that are transposed in registers
PARALLEL_ELEMENTS = 1 << 15  # results of a transform from which threads share it
PART_BYTES = 20 << 10  # between the two halves of a transform, which stay in the first cache

Element = Callable[[Dim, Dim, Dim], Scalar]  # (row, column, channel) -> what is there
Row = Callable[[Dim, Dim], tuple[Dim, ...]]  # (point, channel) -> index
Results = Callable[[Dim, Sequence[Scalar], Dim], Sequence[Statement]]  # (row, its values, channel) -> what to do with them
Span = Callable[[Dim, Dim], Sequence[Statement]]  # (first channel, how many) -> what to do with them


@dataclass(frozen=True, eq=False)
class Transform:
    """matrix * tile * matrix' for tiles whose elements have a type."""

    matrix: np.ndarray
    target: Target

    @property
    def rows(self) -> int:
        return self.matrix.shape[0]

    @property
    def columns(self) -> int:
        return self.matrix.shape[1]

    def lanes(self, like: Buffer) -> int:
        """Channels that go through a transform together: a whole cache line, so that no line is visited twice."""
        return max(self.target.vector_bytes, LINE) // like.dtype.itemsize

    def part(self, like: Buffer, channels: Dim) -> Buffer:
        """What is between the two halves, of as many channels as are transformed at a time: [rows, columns, channel]"""
        lanes = self.lanes(like)
        vectors_ = max(1, PART_BYTES // (self.rows * self.columns * lanes * like.dtype.itemsize))
        if isinstance(channels, int):
            vectors_ = min(vectors_, -(-channels // lanes))
        return Buffer("part", like.dtype, (self.rows, self.columns, vectors_ * lanes), "stack")

    def spans(self, part: Buffer, channels: Dim, body: Span) -> tuple[Statement, ...]:
        """All channels, so many at a time as `part` has room for."""
        room = part.shape[-1]
        if symbolic.less_equal(channels, room) is True:
            return tuple(body(0, channels))
        whole = channels // room
        rest = channels - whole * room
        return (*repeat(whole, lambda n: body(n * room, room)), *(body(whole * room, rest) if rest != 0 else ()))

    def first(self, part: Buffer, element: Element, start: Dim, count: Dim) -> tuple[Statement, ...]:
        """part = matrix * tile, for some channels from the start on"""

        def column(b: Dim, place: Dim) -> list[Statement]:
            straight = Straight(self.target)
            loaded = [straight.let(element(a, b, start + place), "d") for a in range(self.columns)]
            made = straight.product(self.matrix, loaded)
            return [*straight.statements, *(Store(part, (i, b, place), value) for i, value in enumerate(made))]

        return repeat(self.columns, lambda b: vectors(count, self.lanes(part), lambda place, _: column(b, place)))

    def second(
        self, part: Buffer, results: Results, start: Dim, count: Dim, rows: Dim | None = None
    ) -> tuple[Statement, ...]:
        """part * matrix', a row at a time; all rows, or only some of the first"""

        def row(i: Dim, place: Dim) -> list[Statement]:
            straight = Straight(self.target)
            loaded = [straight.let(Load(part, (i, b, place)), "d") for b in range(self.columns)]
            made = straight.product(self.matrix, loaded)
            return [*straight.statements, *results(i, made, start + place)]

        rows = self.rows if rows is None else rows
        return repeat(rows, lambda i: vectors(count, self.lanes(part), lambda place, _: row(i, place)))

    def through(self, part: Buffer, channels: Dim, element: Element, results: Results, rows: Dim | None = None) -> tuple[Statement, ...]:
        """matrix * tile * matrix' of all channels"""

        def both(start: Dim, count: Dim) -> Sequence[Statement]:
            return [*self.first(part, element, start, count), *self.second(part, results, start, count, rows)]

        return self.spans(part, channels, both)


@dataclass(frozen=True)
class Tiles:
    """Tiles of `size` elements, `step` apart, over images: [batch, y, x, channels]"""

    axes: tuple[Axis, ...]  # low: padding before the first element
    counts: tuple[Dim, Dim]  # tiles down and across
    size: int
    step: int
    stride: int = 1  # elements from one result to the next

    @property
    def results(self) -> int:
        """Results of a tile, down and across."""
        return self.step // self.stride

    def result(self, tile: Dim) -> tuple[Dim, Dim]:
        """Where the results of a tile start."""
        down, across = self.counts
        rest = tile % (down * across)
        return rest // across * self.results, rest % across * self.results

    def place(self, tile: Dim) -> tuple[Dim, tuple[Dim, Dim]]:
        """(image, where the tile starts, in elements)"""
        down, across = self.counts
        image, rest = tile // (down * across), tile % (down * across)
        places = rest // across * self.step, rest % across * self.step
        return image, (places[0] - self.axes[0].low, places[1] - self.axes[1].low)

    def elements(self, x: Buffer, tile: Dim) -> tuple[Scalar, Element, Element]:
        """(whether all elements of a tile exist, an element if so, an element or 0)"""
        image, corner = self.place(tile)
        pairs = list(zip(self.axes, corner, strict=True))
        inside = scalar.both(
            *(scalar.predicate(start, "ge", 0) for _, start in pairs),
            *(scalar.predicate(start + self.size, "le", axis.size) for axis, start in pairs),
        )

        def plain(a: Dim, b: Dim, channel: Dim) -> Scalar:
            return Load(x, (image, corner[0] + a, corner[1] + b, channel))

        def edge(a: Dim, b: Dim, channel: Dim) -> Scalar:
            # what is read lies inside in any case, so that the choice needs no branch
            places = list(zip(self.axes, (corner[0] + a, corner[1] + b), strict=True))
            exists = scalar.both(*(axis.inside(p) for axis, p in places))
            near = [symbolic.minimum(symbolic.maximum(p, 0), axis.size - 1) for axis, p in places]
            return scalar.select(exists, Load(x, (image, *near, channel)), scalar.constant(0, x.dtype))

        return inside, plain, edge


def image_tile(
    transform: Transform, tiles: Tiles, x: Buffer, v: Buffer, part: Buffer, tile: Dim, row: Row
) -> tuple[Statement, ...]:
    """v[row(point, channel)] = the transform of a tile of x, for all channels"""
    inside, plain, edge = tiles.elements(x, tile)

    def results(a: Dim, values: Sequence[Scalar], channel: Dim) -> list[Statement]:
        return [Store(v, row(a * transform.rows + b, channel), value) for b, value in enumerate(values)]

    def both(start: Dim, count: Dim) -> list[Statement]:
        second = transform.second(part, results, start, count)
        if isinstance(inside, scalar.Const):
            return [*transform.first(part, plain if inside.value else edge, start, count), *second]
        halves = (transform.first(part, element, start, count) for element in (plain, edge))
        return [If(inside, *halves), *second]

    return transform.spans(part, x.shape[-1], both)


def image_loops(v: Buffer, x: Buffer, transform: Transform, tiles: Tiles) -> tuple[Statement, ...]:
    """v[point, tile, channel] = the transforms of all tiles of x; further rows of v are 0"""
    points, rows, channels = v.shape
    down, across = tiles.counts
    count = x.shape[0] * (down * across)
    width = transform.lanes(x)

    def tile(t: Dim) -> list[Statement]:
        part = transform.part(x, channels)
        return [Alloc(part), *image_tile(transform, tiles, x, v, part, t, lambda point, c: (point, t, c))]

    def empty(point: Dim, t: Dim) -> tuple[Statement, ...]:
        zero = scalar.constant(0, v.dtype)
        return vectors(channels, width, lambda c, _: [Store(v, (point, count + t, c), zero)])

    many = symbolic.less(count * channels * points, PARALLEL_ELEMENTS) is not True
    return (
        *repeat(count, tile, "parallel" if many else "serial"),
        *repeat(points, lambda p: repeat(rows - count, lambda t: empty(p, t))),
    )


# Where a weight's element stands: taps r and s, channel c of the data, channel o of the results.
#   channels_last   w[r, s, c, o]
#   channels_first  w[o, c, r, s]
#   adjoint         w[c, o, 2 - r, 2 - s]   channels first, of the convolution whose gradient for the data this one is
#   blocked         w[o // lanes, c, r, s, o % lanes]   as it is read, with zeros beyond the last o
WeightOrder = Literal["channels_last", "channels_first", "adjoint", "blocked"]


def weight_index(order: WeightOrder, r: Dim, s: Dim, c: Dim, o: Dim, lanes: int = 1) -> tuple[Dim, ...]:
    match order:
        case "blocked":
            return o // lanes, c, r, s, o % lanes
        case "channels_last":
            return r, s, c, o
        case "channels_first":
            return o, c, r, s
        case "adjoint":
            return c, o, 2 - r, 2 - s


def weight_axes(order: WeightOrder) -> tuple[int, int, int, int]:
    """The transposition to [r, s, c, o]; taps of an adjoint are reversed besides."""
    assert order != "blocked", "that is no transposition"
    return {"channels_last": (0, 1, 2, 3), "channels_first": (2, 3, 1, 0), "adjoint": (2, 3, 0, 1)}[order]


def weight_loops(
    u: Buffer, w: Buffer, transform: Transform, order: WeightOrder = "channels_last", first: Dim = 0,
    groups: Dim | None = None,
) -> tuple[Statement, ...]:  # fmt: skip
    """u[g - first, x, y, b, c, l] = (G w[:, :, c, o] G')[x, y] with o = (g * blocks + b) * columns + l, for some
    groups g from the first on; all that u has room for, if it is not said"""
    room, _, _, blocks, channels, columns = constants(u.shape)
    lanes_ = constants(w.shape[-1:])[0]
    outputs = w.shape[0] * lanes_ if order == "blocked" else w.shape[weight_axes(order)[3]]
    zero = scalar.constant(0, w.dtype)

    def line(number: Dim) -> list[Statement]:
        block, channel = number // channels, number % channels
        part = transform.part(w, columns)

        def tap(r: Dim, s: Dim, place: Dim) -> Scalar:
            output = (first * blocks + block) * columns + place
            exists = scalar.predicate(output, "lt", outputs)
            return scalar.select(exists, Load(w, weight_index(order, r, s, channel, output, lanes_)), zero)

        def results(x: Dim, values: Sequence[Scalar], place: Dim) -> list[Statement]:
            index = (block // blocks, x), (block % blocks, channel, place)
            return [Store(u, (*index[0], y, *index[1]), value) for y, value in enumerate(values)]

        return [Alloc(part), *transform.through(part, columns, tap, results)]

    parallel = transform.rows**2 * room * blocks * channels * columns >= PARALLEL_ELEMENTS
    return repeat((room if groups is None else groups) * blocks * channels, line, "parallel" if parallel else "serial")


def weight_gradient_loops(
    w: Buffer, u: Buffer, transform: Transform, order: WeightOrder = "channels_last"
) -> tuple[Statement, ...]:
    """w[r, s, c, o] = (G' u[:, c, o] G)[r, s] for u[point, c, o]"""
    _, channels, outputs = constants(u.shape)

    def point(channel: Dim) -> Element:
        return lambda a, b, output: Load(u, (a * transform.columns + b, channel, output))

    def line(channel: Dim) -> list[Statement]:
        part = transform.part(u, outputs)

        def results(r: Dim, values: Sequence[Scalar], output: Dim) -> list[Statement]:
            return [Store(w, (r, s, channel, output), value) for s, value in enumerate(values)]

        return [Alloc(part), *transform.through(part, outputs, point(channel), results)]

    many = transform.columns**2 * channels * outputs >= PARALLEL_ELEMENTS
    kind = "parallel" if many else "serial"
    if order == "channels_last":
        return repeat(channels, line, kind)
    return gradient_by_blocks(w, transform, point, constants((channels, outputs)), kind)


def gradient_by_blocks(
    w: Buffer, transform: Transform, point: Callable[[Dim], Element], sizes: Sequence[int], kind: LoopKind
) -> tuple[Statement, ...]:
    """The same into w[o, c, r, s], where neighbours along o are far apart: a block of the weight is put together in the
    first cache, in the order of the transform, and transposed in registers as it is written."""
    channels, outputs = sizes

    def block(output: Dim, channel: Dim, height: Dim, count: Dim) -> list[Statement]:
        def from_there(c: Dim) -> Element:
            there = point(channel + c)
            return lambda a, b, o: there(a, b, output + o)

        return gradient_block(w, transform, from_there, (output, channel), (height, count))

    return blocks_of_gradient(outputs, channels, block, kind)


def blocks_of_gradient(
    outputs: int, channels: int, body: Callable[[Dim, Dim, Dim, Dim], Sequence[Statement]], kind: LoopKind
) -> tuple[Statement, ...]:
    """body(first output, first channel, outputs, channels) for blocks of a weight"""
    down, across = -(-outputs // BLOCK_OUTPUTS), -(-channels // BLOCK_CHANNELS)

    def block(number: Dim) -> Sequence[Statement]:
        output, channel = number // across * BLOCK_OUTPUTS, number % across * BLOCK_CHANNELS
        height = symbolic.minimum(BLOCK_OUTPUTS, outputs - output)
        return body(output, channel, height, symbolic.minimum(BLOCK_CHANNELS, channels - channel))

    return repeat(down * across, block, kind)


def gradient_block(
    w: Buffer, transform: Transform, point: Callable[[Dim], Element], first: tuple[Dim, Dim],
    counts: tuple[Dim, Dim], order: WeightOrder = "channels_first",
) -> list[Statement]:  # fmt: skip
    """One block of a weight, from the points of its channels c and outputs o, counted from the first."""
    (output, channel), (height, count) = first, counts
    taps = transform.rows
    outputs, channels = (w.shape[0], w.shape[1]) if order == "channels_first" else (w.shape[3], w.shape[2])
    flat = Buffer(w.name, w.dtype, (outputs, channels * taps * taps), w.space)
    part = transform.part(w, BLOCK_OUTPUTS)
    made = Buffer("made", w.dtype, (BLOCK_CHANNELS * taps * taps, BLOCK_OUTPUTS), "stack")

    def one(c: Dim) -> tuple[Statement, ...]:
        def results(r: Dim, values: Sequence[Scalar], place: Dim) -> list[Statement]:
            if order == "channels_last":
                return [Store(w, (r, s, channel + c, output + place), value) for s, value in enumerate(values)]
            return [Store(made, ((c * taps + r) * taps + s, place), value) for s, value in enumerate(values)]

        return transform.through(part, height, point(c), results)

    def element(o: Dim, j: Dim) -> Statement:
        return Store(flat, (output + o, channel * taps * taps + j), Load(made, (j, o)))

    if order == "channels_last":
        return [Alloc(part), *repeat(count, one)]
    written = _transposed(height, count * taps * taps, element)
    return [View(flat, w), Alloc(part), Alloc(made), *repeat(count, one), *written]


def _transposed(rows: Dim, columns: Dim, element: Callable[[Dim, Dim], Statement]) -> tuple[Statement, ...]:
    """element(row, column) for all of them, in squares, then the columns and the rows that are left"""

    def square(k: Dim, j: Dim) -> tuple[Statement, ...]:
        return vectors(SQUARE * SQUARE, SQUARE * SQUARE, lambda v, _: [element(k + v // SQUARE, j + v % SQUARE)])

    def line(row: Dim, first: Dim, count: Dim) -> tuple[Statement, ...]:
        return vectors(count, SQUARE, lambda j, _: [element(row, first + j)])

    down, across = rows // SQUARE, columns // SQUARE
    whole, rest = down * SQUARE, across * SQUARE
    return (
        *repeat(down, lambda k: repeat(across, lambda j: square(k * SQUARE, j * SQUARE))),
        *repeat(whole, lambda o: line(o, rest, columns - rest)),
        *repeat(rows - whole, lambda o: line(whole + o, 0, columns)),
    )


def constants(dims: Sequence[Dim]) -> list[int]:
    assert all(isinstance(d, int) for d in dims), f"not all constant: {dims}"
    return list(dims)  # type: ignore[arg-type]
