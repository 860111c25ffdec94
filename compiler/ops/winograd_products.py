"""The loops of a weight's gradient by Winograd's algorithm, from the transforms of data and of cotangents.

    for block of output channels and channels parallel {
      u[point][c, o] = sum(tile: v[point, tile, c] * z[point, tile, o])     a register tile at a time
      w = G' u G                                                            in vectors of output channels
    }

For few tiles the products of all points are much larger than what they are made of: here they stay in a near cache.
Whole blocks only. Invariant: a sum runs over the tiles in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, LoopKind, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.nests import repeat, vectors
from ingot.compiler.ops.winograd_transforms import (
    BLOCK_CHANNELS,
    BLOCK_OUTPUTS,
    LINE,
    PARALLEL_ELEMENTS,
    Element,
    Transform,
    WeightOrder,
    blocks_of_gradient,
    constants,
    gradient_block,
)

VECTORS = 2  # of a register tile
UNROLL = 4  # tiles in one iteration


class GradientNest:
    def __init__(self, w: Buffer, v: Buffer, z: Buffer, transform: Transform, order: WeightOrder) -> None:
        self.w, self.v, self.z = w, v, z
        self.transform, self.target = transform, transform.target
        self.order: WeightOrder = order
        self.points, self.channels, self.outputs = constants((v.shape[0], v.shape[2], z.shape[2]))
        self.tiles = v.shape[1] - 1
        self.width = self.target.lanes(v.dtype.itemsize)
        self.columns = min(VECTORS * self.width, BLOCK_OUTPUTS)
        most = (self.target.vector_registers - 1 - VECTORS) // VECTORS
        self.rows = max(n for n in (1, 2, 4, 8) if n <= min(most, BLOCK_CHANNELS))

    def loops(self) -> tuple[Statement, ...]:
        many = self.points * self.channels * self.outputs >= PARALLEL_ELEMENTS
        kind: LoopKind = "parallel" if many else "serial"
        return blocks_of_gradient(self.outputs, self.channels, self._block, kind)

    def _block(self, output: Dim, channel: Dim, height: Dim, count: Dim) -> list[Statement]:
        line = LINE // self.v.dtype.itemsize  # more than a block: the points do not meet in the cache
        u = Buffer("u", self.v.dtype, (self.points, BLOCK_CHANNELS * BLOCK_OUTPUTS + line), "stack")
        size = self.transform.columns

        def products(point: Dim) -> tuple[Statement, ...]:
            def strip(number: Dim) -> tuple[Statement, ...]:
                def tile(block: Dim) -> list[Statement]:
                    place = number * self.rows, block * self.columns
                    return self._register_tile(u, point, (channel, output), place)

                return repeat(BLOCK_OUTPUTS // self.columns, tile)

            return repeat(BLOCK_CHANNELS // self.rows, strip)

        def element(c: Dim) -> Element:
            return lambda a, b, o: Load(u, (a * size + b, c * BLOCK_OUTPUTS + o))

        return [
            Alloc(u),
            *repeat(self.points, products),
            *gradient_block(self.w, self.transform, element, (output, channel), (height, count), self.order),
        ]

    def _register_tile(
        self, u: Buffer, point: Dim, first: tuple[Dim, Dim], place: tuple[Dim, Dim]
    ) -> list[Statement]:
        """u[point][c.., o..] = sum(tile: v[point, tile, c..] * z[point, tile, o..])"""
        (channel, output), (row, column) = first, place
        sums = Buffer("sums", u.dtype, (self.rows, self.columns), "register")

        def spread(body: Callable[[Dim, Dim], Statement]) -> tuple[Statement, ...]:
            def line(r: Dim) -> tuple[Statement, ...]:
                return vectors(self.columns, self.width, lambda lane, _: [body(r, lane)], "unrolled")

            return repeat(self.rows, line, "unrolled")

        def step(tile: Dim) -> tuple[Statement, ...]:
            def element(r: Dim, lane: Dim) -> Statement:
                left = Load(self.v, (point, tile, channel + row + r))
                right = Load(self.z, (point, tile, output + column + lane))
                return Store(sums, (r, lane), self._multiply_add(left, right, Load(sums, (r, lane))))

            return spread(element)

        def steps(number: Dim) -> Sequence[Statement]:
            return repeat(UNROLL, lambda n: step(number * UNROLL + n), "unrolled")

        whole = self.tiles // UNROLL
        zero = scalar.constant(0, u.dtype)
        stored = row * BLOCK_OUTPUTS + column
        return [
            Alloc(sums),
            *spread(lambda r, lane: Store(sums, (r, lane), zero)),
            *repeat(whole, steps),
            *repeat(self.tiles - whole * UNROLL, lambda n: step(whole * UNROLL + n)),
            *spread(lambda r, lane: Store(u, (point, stored + r * BLOCK_OUTPUTS + lane), Load(sums, (r, lane)))),
        ]

    def _multiply_add(self, left: Scalar, right: Scalar, total: Scalar) -> Scalar:
        if self.target.has_fma:
            return scalar.apply("fma", left, right, total)
        return scalar.apply("add", total, scalar.apply("mul", left, right))


def is_whole(channels: Dim, outputs: Dim) -> bool:
    """Whether a weight consists of whole blocks."""
    sizes = isinstance(channels, int) and isinstance(outputs, int)
    return sizes and symbolic.product((channels, outputs)) != 0 and channels % BLOCK_CHANNELS == outputs % BLOCK_OUTPUTS == 0
