"""Convolution with 3x3 taps by interpolation (Winograd; Lavin & Gray, "Fast Algorithms for Convolutional Neural
Networks"): m x m results at a time from (m + 2)^2 products instead of 9 m^2, or, for a stride of 2, from (2 m + 1)^2.

    u = G w G'              once for each weight                       winograd_weight
    v = B' d B              for each tile d of as many elements        \
    y = A' (sum(c: v u)) A  and the sums of products are as many       winograd_convolution
                            matrix products over channels              /

Interpolation points are 0, 1, -1 for m = 2, and 0, +-1/sqrt(2), +-sqrt(2) for m = 4, which rounds several times
less than the usual 0, +-1, +-2. Four taps, which the phases of larger windows have (`stride_phases`), take three pairs of
points, found by a search for the least error. Error relative to the range of the result, against exact arithmetic: see
ERROR_BOUND, which a test keeps. The same order of operations for every tile, whatever the batch or the threads.

The gradient for the weight is the adjoint: the cotangent of a tile of results is transformed by A g A', the products
with v are summed over tiles, and G' u G is the gradient:   winograd_data, winograd_cotangent, contract,
winograd_weight_gradient; or winograd_product_gradient in place of the last two, where products are never stored.
Neither is the transform of a weight for few tiles: winograd_taps puts the weight itself in the order it is read in.

Channels last only; the weight's transform is stored in blocks of output channels as register tiles read them.
Non-goals: other taps and strides, dilation, groups; another op computes those. Gradients are taken before a convolution becomes
one of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, Statement
from ingot.compiler.ir.scalar import Buffer, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, f32, type_of
from ingot.compiler.ops import winograd_loops, winograd_transforms
from ingot.compiler.ops.base import Finish, Op, OpTypeError, OwnLoops, Sample, store_result
from ingot.compiler.ops.structure import inverse
from ingot.compiler.ops.windows import Axis, Padding, axes_of, pad_array, window_view
from ingot.compiler.ops.winograd_products import GradientNest, is_whole
from ingot.compiler.ops.winograd_taps import FewTiles, most_tiles
from ingot.compiler.ops.winograd_transforms import Tiles, Transform, WeightOrder, weight_axes
from ingot.compiler.target import Target
from ingot.runtime.storage import make_present

TAPS = 3
PIECE = 1 << 12  # pairs of channels whose transforms are evaluated at once: they stay in cache
ERROR_BOUND = 2e-5  # largest error of a result, relative to the largest result
TILES = 2, 4  # results of a tile, down and across
POINTS: dict[tuple[int, int], tuple[float, ...]] = {  # by results and taps; opposite ones are neighbours
    (2, 3): (0.0, 1.0, -1.0),
    (4, 3): (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2.0), -math.sqrt(2.0)),
    (4, 4): (0.3, -0.3, 0.85, -0.85, 1.9, -1.9),
}
OUTER_POINTS: dict[int, tuple[float, ...]] = {  # for two taps; opposite ones are neighbours
    2: (1.0, -1.0),
    4: (math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2.0), -math.sqrt(2.0)),
}
STRIDES = 1, 2


@dataclass(frozen=True, eq=False)
class Matrices:
    """The transforms of one dimension, in double precision."""

    weight: np.ndarray  # G [points, 3]
    data: np.ndarray  # B' [points, points]: there are as many as elements of a tile of data
    result: np.ndarray  # A' [m, points]


def points_of(tile: int, stride: int = 1, taps: int = TAPS) -> int:
    """Products of one dimension for a tile of results, and the elements that they are made of."""
    return (tile - 1) * stride + taps


@cache
def matrices(tile: int, stride: int = 1, taps: int = TAPS) -> Matrices:
    """With a stride of 2 the outer taps meet even elements only and the middle tap odd ones, one for each result: the outer
    two are interpolated, and products with the middle one are what they are."""
    if stride == 1:
        return interpolation(POINTS[tile, taps], taps, tile)
    outer = interpolation(OUTER_POINTS[tile], 2, tile)
    size, even = points_of(tile, stride), tile + 1
    weight, data, result = np.zeros((size, TAPS)), np.zeros((size, size)), np.zeros((tile, size))
    weight[:even, ::2], data[:even, ::2], result[:, :even] = outer.weight, outer.data, outer.result
    weight[even:, 1], data[even:, 1::2], result[:, even:] = 1.0, np.eye(tile), np.eye(tile)
    return Matrices(weight, data, result)


def interpolation(points: Sequence[float], taps: int, tile: int) -> Matrices:
    """Toom and Cook's construction: evaluate at the points, multiply, interpolate; transposed, so that data and
    result change places. What divides a point's product is left to the result, where it costs no operation: weights
    are plain values of a polynomial. The last point is infinity."""
    size = tile + taps - 1
    weight, data, result = np.zeros((size, taps)), np.zeros((size, size)), np.zeros((tile, size))
    for row, point in enumerate(points):
        others = [p for p in points if p != point]
        scale = 1 / math.prod(point - p for p in others)
        weight[row] = [point**n for n in range(taps)]
        data[row, : size - 1] = np.poly(others)[::-1]
        result[:, row] = [point**n for n in range(tile)]
        if math.isclose(abs(scale), 1):
            data[row] *= math.copysign(1, scale)
        else:
            result[:, row] *= scale
        if point < 0:  # the mirror of the row before, exactly: the two share their parts
            weight[row], data[row] = _mirror(weight[row - 1]), _mirror(data[row - 1])
            result[:, row] = _mirror(result[:, row - 1])
    weight[-1, -1] = result[-1, -1] = 1.0
    data[-1] = np.poly(points)[::-1]
    data[np.abs(data) < 1e-12] = 0.0  # what rounding left of coefficients that are 0
    return Matrices(weight, data, result)


def _mirror(row: np.ndarray) -> np.ndarray:
    """The values of a polynomial's terms at the opposite point."""
    return np.where(np.arange(len(row)) % 2 == 0, row, -row)


def tiles_of(axes: Sequence[Axis], tile: int, stride: int = 1) -> Tiles:
    """The tiles of data that make tiles of results along these axes."""
    down, across = (symbolic.ceildiv(axis.count, tile) for axis in axes)
    return Tiles(tuple(axes), (down, across), points_of(tile, stride, axes[0].taps), tile * stride, stride)


def data_windows(x: np.ndarray, axes: Sequence[Axis], tile: int, stride: int = 1) -> np.ndarray:
    """[batch, channels, down, across, *tile] of [batch, y, x, channels], in double precision"""
    size, step = points_of(tile, stride, axes[0].taps), tile * stride
    grown = [
        Axis(axis.size, size, step, 1, axis.low, (-(-int(axis.count) // tile) - 1) * step + size - axis.size - axis.low)  # type: ignore[arg-type]
        for axis in axes
    ]
    return window_view(pad_array(np.moveaxis(x, -1, 1).astype(np.float64), grown), grown)


def _require_tile(op: str, tile: int, stride: int = 1, taps: int = TAPS) -> None:
    if (tile, taps) not in POINTS:
        known = ", ".join(f"{results} with {count} taps" for results, count in POINTS)
        raise OpTypeError(f"{op}: tiles of {tile} results with {taps} taps; there are {known}")
    if stride not in STRIDES:
        raise OpTypeError(f"{op}: a stride of {stride}; there are {', '.join(map(str, STRIDES))}")


@dataclass(frozen=True)
class WinogradWeight(Op):
    """u[g, x, y, b, c, l] = (G w[:, :, c, o] G')[x, y] with o = (g * blocks + b) * columns + l; 0 beyond the last o"""

    tile: int
    columns: int  # output channels of a block
    blocks: int  # of a group
    stride: int = 1
    taps: int = TAPS
    differentiable = False
    cheap = False
    prepares = True

    def infer(self, w: TensorType) -> TensorType:
        _require_tile(self.name, self.tile, self.stride, self.taps)
        if w.rank != 4 or w.shape[:2] != (self.taps, self.taps) or w.dtype != f32 or not w.is_static:
            raise OpTypeError(f"{self.name} takes f32[{self.taps}, {self.taps}, channels, channels], not {w!r}")
        size = points_of(self.tile, self.stride, self.taps)
        _, _, channels, outputs = w.static_shape
        groups = -(-outputs // (self.columns * self.blocks))
        return w.with_shape((groups, size, size, self.blocks, channels, self.columns))

    def evaluate(self, w: np.ndarray) -> np.ndarray:
        result = np.empty(self.infer(type_of(w)).static_shape, np.float32)
        self.evaluate_into(result, w)
        return result

    def evaluate_into(self, room: np.ndarray, *args: np.ndarray) -> None:
        (w,) = args
        transform = matrices(self.tile, self.stride, self.taps).weight
        groups, size, _, blocks, channels, columns = room.shape
        width = blocks * columns
        step = max(1, PIECE // width)
        for group in range(groups):
            make_present(room[group])
            taken = w[..., group * width : (group + 1) * width]
            missing = width - taken.shape[-1]
            for start in range(0, channels, step):
                piece = np.array(taken[:, :, start : start + step], np.float64, order="C")
                if missing:
                    piece = np.pad(piece, ((0, 0), (0, 0), (0, 0), (0, missing)))
                half = transform @ piece.reshape(self.taps, -1)
                both = transform @ half.reshape(size, self.taps, -1)
                room[group][..., start : start + step, :] = both.reshape(size, size, -1, blocks, columns).swapaxes(2, 3)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        return self.loops_for(Target.named(DEFAULT_TARGET), outputs, inputs).body

    def loops_for(
        self, target: Target, outputs: Sequence[Buffer], inputs: Sequence[Buffer], finish: Finish = store_result
    ) -> OwnLoops:
        transform = Transform(matrices(self.tile, self.stride, self.taps).weight, target)
        return OwnLoops(winograd_transforms.weight_loops(outputs[0], inputs[0], transform))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(4, 16, 1), (f32[3, 3, 2, 16],))
        yield Sample(cls(2, 16, 2), (f32[3, 3, 3, 5],))
        yield Sample(cls(4, 8, 2), (f32[3, 3, 1, 19],))
        yield Sample(cls(4, 16, 1, 2), (f32[3, 3, 2, 19],))
        fading = 0.2 ** np.add.outer(np.arange(4), np.arange(4)).reshape(4, 4, 1, 1)  # errors are relative to each result
        w = np.random.default_rng(0).uniform(1, 2, (4, 4, 3, 19)) * fading
        yield Sample(cls(4, 16, 1, taps=4), (w.astype(np.float32),))


@dataclass(frozen=True)
class WinogradTaps(Op):
    """y[b, c, r, s, l] = w[r, s, c, b * lanes + l], or 0 beyond the last output: a weight in the order it is read in"""

    lanes: int
    differentiable = False
    prepares = True
    movement = True

    def infer(self, w: TensorType) -> TensorType:
        if w.rank != 4 or w.shape[:2] != (TAPS, TAPS) or self.lanes < 1 or not w.is_static:
            raise OpTypeError(f"{self.name} takes [3, 3, channels, channels], not {w!r}")
        _, _, channels, outputs = w.static_shape
        return w.with_shape((-(-outputs // self.lanes), channels, TAPS, TAPS, self.lanes))

    def evaluate(self, w: np.ndarray) -> np.ndarray:
        _, _, channels, outputs = w.shape
        blocks, rest = -(-outputs // self.lanes), -outputs % self.lanes
        if rest:
            w = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, rest)))
        return w.reshape(TAPS, TAPS, channels, blocks, self.lanes).transpose(3, 2, 0, 1, 4)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        block, channel, r, s, lane = index
        place = block * self.lanes + lane
        inside = scalar.predicate(place, "lt", operands[0].type.shape[3])
        return scalar.select(inside, operands[0](r, s, channel, place), scalar.constant(0, output.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(4), (f32[3, 3, 2, 8],))
        yield Sample(cls(16), (f32[3, 3, 3, 19],))


@dataclass(frozen=True)
class WinogradConvolution(Op):
    """The convolution of x[n, y, x, c] with the weights whose transform is u, as `outputs` channels.

    With an `order`, the second operand is the weight itself, in this order, and it is transformed on the way, in groups
    of `blocks` of `columns`.
    """

    tile: int
    padding: Padding
    outputs: int
    order: WeightOrder | None = None
    columns: int = 0
    blocks: int = 0
    stride: int = 1
    taps: int = TAPS
    differentiable = False
    cheap = False
    rereads = True
    takes_epilogue = True

    def _axes(self, sizes: Sequence[object]) -> tuple[Axis, ...]:
        return axes_of(self.name, sizes, (self.taps,) * 2, (self.stride,) * 2, self.padding, (1, 1))  # type: ignore[arg-type]

    def _transform(self) -> WinogradWeight:
        return WinogradWeight(self.tile, self.columns, self.blocks, self.stride, self.taps)

    def _transformed_type(self, w: TensorType) -> TensorType:
        """The type of the transform of the second operand."""
        if self.order is None:
            return w
        if self.taps != TAPS:
            raise OpTypeError(f"{self.name} transforms weights of {TAPS} taps on the way, not of {self.taps}")
        if w.rank != (5 if self.order == "blocked" else 4):
            raise OpTypeError(f"{self.name}: {w!r} is no weight in the order {self.order}")
        if self.order == "blocked":
            return self._transform().infer(w.with_shape((TAPS, TAPS, w.shape[1], self.outputs)))
        return self._transform().infer(w.with_shape(tuple(w.shape[n] for n in weight_axes(self.order))))

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        _require_tile(self.name, self.tile, self.stride, self.taps)
        u = self._transformed_type(w)
        if x.rank != 4 or u.rank != 6 or x.dtype != f32 or u.dtype != f32:
            raise OpTypeError(f"{self.name} takes f32[batch, y, x, channels] and a winograd_weight, not {x!r}, {u!r}")
        batch, *sizes, channels = x.shape
        if not all(isinstance(d, int) for d in (channels, *u.shape)):
            raise OpTypeError(f"{self.name}: the numbers of channels are known, not as in {x!r} and {u!r}")
        size = points_of(self.tile, self.stride, self.taps)
        groups, blocks, columns = (u.static_shape[n] for n in (0, 3, 5))
        if u.shape[1:3] != (size, size) or u.shape[4] != channels or groups != -(-self.outputs // (blocks * columns)):
            raise OpTypeError(
                f"{self.name}: {u!r} is not the transform of a weight from {channels} channels to {self.outputs} for "
                f"tiles of {self.tile}"
            )
        return x.with_shape((batch, *(axis.count for axis in self._axes(sizes)), self.outputs))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        u = w
        if self.order == "blocked":
            taps = w.transpose(2, 3, 1, 0, 4).reshape(TAPS, TAPS, w.shape[1], -1)[..., : self.outputs]
            u = self._transform().evaluate(taps)
        elif self.order is not None:
            taps = w[:, :, ::-1, ::-1] if self.order == "adjoint" else w
            u = self._transform().evaluate(taps.transpose(weight_axes(self.order)))
        made = matrices(self.tile, self.stride, self.taps)
        batch, height, width, channels = x.shape
        axes = self._axes((height, width))
        windows = data_windows(x, axes, self.tile, self.stride)
        v = np.einsum("xa,yb,ncpqab->xynpqc", made.data, made.data, windows, optimize=True)
        weight = u.astype(np.float64).transpose(1, 2, 4, 0, 3, 5).reshape(*u.shape[1:3], channels, -1)
        products = np.einsum("xynpqc,xyco->xynpqo", v, weight[..., : self.outputs], optimize=True)
        y = np.einsum("ix,jy,xynpqo->npiqjo", made.result, made.result, products, optimize=True)
        y = y.reshape(batch, y.shape[1] * self.tile, y.shape[3] * self.tile, self.outputs)
        return np.ascontiguousarray(y[:, : axes[0].count, : axes[1].count]).astype(x.dtype)  # type: ignore[misc]

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        own = self.loops_for(Target.named(DEFAULT_TARGET), outputs, inputs)
        return (*map(Alloc, own.scratch), *own.body)

    def loops_for(
        self, target: Target, outputs: Sequence[Buffer], inputs: Sequence[Buffer], finish: Finish = store_result
    ) -> OwnLoops:
        x, w = inputs
        made = matrices(self.tile, self.stride, self.taps)
        axes = self._axes(x.shape[1:3])
        weight = winograd_loops.Weight(w)
        few = self._is_few(target, x, w)
        if self.order is not None:
            shape = self._transformed_type(w.type).shape
            if few:
                shape = (w.shape[0], *made.data.shape, 1, x.shape[-1], w.shape[-1])
            room = Buffer("u", w.dtype, shape, "arena")
            weight = winograd_loops.Weight(room, w, self.order, Transform(made.weight, target))
        nest = (FewTiles if few else winograd_loops.ConvolutionNest)(
            tiles_of(axes, self.tile, self.stride), axes, x, weight, outputs[0], Transform(made.data, target),
            Transform(made.result, target), finish,
        )  # fmt: skip
        return nest.loops()

    def _is_few(self, target: Target, x: Buffer, w: Buffer) -> bool:
        """Whether the transform of the weight is never stored."""
        lanes = target.lanes(x.dtype.itemsize)
        tiles = symbolic.product(tiles_of(self._axes(x.shape[1:3]), self.tile).counts)
        whole = x.shape[-1] % lanes == 0 and w.shape[-1] == lanes
        few = isinstance(tiles, int) and 0 < tiles <= most_tiles(self.tile, target)
        return self.order == "blocked" and self.stride == 1 and whole and few

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # positive numbers, because errors are relative to the range of the result
        rng = np.random.default_rng(0)
        orders: tuple[WeightOrder | None, ...] = (None, "channels_last", "channels_first", "adjoint")
        for tile, padding, batch, height, width, channels, outputs, columns, blocks in (
            (4, ((1, 1), (1, 1)), 2, 5, 6, 3, 5, 16, 1),
            (2, ((1, 1), (1, 1)), 1, 5, 4, 9, 35, 16, 2),
            (4, ((0, 2), (-1, 0)), 1, 9, 7, 8, 4, 8, 1),
            (2, ((2, 0), (0, 1)), 3, 3, 4, 2, 3, 16, 1),
            (2, ((1, 1), (1, 1)), 2, 17, 9, 3, 20, 8, 1),
        ):
            w = rng.uniform(1, 2, (3, 3, channels, outputs)).astype(np.float32)
            x = rng.uniform(1, 2, (batch, height, width, channels)).astype(np.float32)
            for order in orders:
                if order is None:
                    yield Sample(cls(tile, padding, outputs), (x, WinogradWeight(tile, columns, blocks).evaluate(w)))
                    u = WinogradWeight(tile, columns, blocks, 2).evaluate(w)
                    yield Sample(cls(tile, padding, outputs, stride=2), (x, u))
                    continue
                stored = np.ascontiguousarray(w.transpose(inverse(weight_axes(order))))
                yield Sample(cls(tile, padding, outputs, order, columns, blocks), (x, stored))
        w, x = (rng.uniform(1, 2, shape).astype(np.float32) for shape in ((4, 4, 12, 20), (2, 11, 9, 12)))
        u = WinogradWeight(4, 16, 2, taps=4).evaluate(w)
        yield Sample(cls(4, ((0, 0), (0, 1)), 20, taps=4), (x, u))
        for lanes, tile, batch, height, width, outputs in (
            (16, 4, 1, 7, 7, 19), (16, 4, 3, 4, 6, 16), (16, 4, 5, 4, 3, 5), (8, 4, 2, 3, 4, 11), (16, 2, 2, 6, 3, 4),
            (16, 4, 1, 9, 8, 35),
        ):  # fmt: skip
            w = rng.uniform(1, 2, (3, 3, 16, outputs)).astype(np.float32)
            x = rng.uniform(1, 2, (batch, height, width, 16)).astype(np.float32)
            blocked = np.ascontiguousarray(WinogradTaps(lanes).evaluate(w))
            yield Sample(cls(tile, ((1, 1), (1, 1)), outputs, "blocked", 2 * lanes, 1), (x, blocked))


# --- the gradient for the weights -----------------------------------------------------------------


@dataclass(frozen=True)
class WinogradImage(Op, abstract=True):
    """Transforms of all tiles of an image: v[point, tile, channel]. There is one row more than tiles, of zeros: then
    the distance between two points is no power of two, and their streams do not meet in the cache."""

    tile: int
    differentiable = False
    cheap = False
    rereads = True

    def _transform(self) -> np.ndarray:
        raise NotImplementedError

    def _tiles(self, sizes: Sequence[object]) -> Tiles:
        raise NotImplementedError

    def infer(self, x: TensorType) -> TensorType:
        _require_tile(self.name, self.tile)
        if x.rank != 4 or x.dtype != f32 or not isinstance(x.shape[-1], int):
            raise OpTypeError(f"{self.name} takes f32[batch, y, x, channels] with known channels, not {x!r}")
        down, across = self._tiles(x.shape[1:3]).counts
        points = len(self._transform()) ** 2
        return x.with_shape((points, x.shape[0] * (down * across) + 1, x.shape[-1]))

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        return self.loops_for(Target.named(DEFAULT_TARGET), outputs, inputs).body

    def loops_for(
        self, target: Target, outputs: Sequence[Buffer], inputs: Sequence[Buffer], finish: Finish = store_result
    ) -> OwnLoops:
        (x,) = inputs
        tiles = self._tiles(x.shape[1:3])
        return OwnLoops(winograd_transforms.image_loops(outputs[0], x, Transform(self._transform(), target), tiles))

    def _joined(self, made: np.ndarray, x: np.ndarray) -> np.ndarray:
        """[point, tile, channel] and a row of zeros, of [x, y, n, p, q, c]"""
        rows = made.reshape(made.shape[0] ** 2, -1, x.shape[-1])
        return np.pad(rows, ((0, 0), (0, 1), (0, 0))).astype(x.dtype)


@dataclass(frozen=True)
class WinogradData(WinogradImage):
    """v[point, tile, c] = B' d B, for the tiles of data of a convolution with this padding"""

    padding: Padding

    def _axes(self, sizes: Sequence[object]) -> tuple[Axis, ...]:
        return axes_of(self.name, sizes, (TAPS,) * 2, (1, 1), self.padding, (1, 1))  # type: ignore[arg-type]

    def _transform(self) -> np.ndarray:
        return matrices(self.tile).data

    def _tiles(self, sizes: Sequence[object]) -> Tiles:
        return tiles_of(self._axes(sizes), self.tile)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        made = self._transform()
        windows = data_windows(x, self._axes(x.shape[1:3]), self.tile)
        return self._joined(np.einsum("xa,yb,ncpqab->xynpqc", made, made, windows, optimize=True), x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(4, ((1, 1), (1, 1))), (f32[2, 5, 6, 3],), 1.0, 2.0)
        yield Sample(cls(2, ((1, 1), (1, 1))), (f32[1, 4, 3, 9],), 1.0, 2.0)
        yield Sample(cls(4, ((0, 2), (-1, 0))), (f32[1, 9, 7, 8],), 1.0, 2.0)


@dataclass(frozen=True)
class WinogradCotangent(WinogradImage):
    """z[point, tile, o] = A g A', for the tiles of the cotangent of a convolution's result"""

    def _transform(self) -> np.ndarray:
        return matrices(self.tile).result.T

    def _tiles(self, sizes: Sequence[object]) -> Tiles:
        axes = tuple(Axis(size, 1, 1, 1, 0, 0) for size in sizes)  # type: ignore[arg-type]
        down, across = (symbolic.ceildiv(axis.count, self.tile) for axis in axes)
        return Tiles(axes, (down, across), self.tile, self.tile)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        made = self._transform()
        batch, height, width, channels = x.shape
        down, across = self._tiles((height, width)).counts
        grown = [(0, 0), (0, down * self.tile - height), (0, across * self.tile - width), (0, 0)]
        tiles = np.pad(x.astype(np.float64), grown).reshape(batch, down, self.tile, across, self.tile, channels)
        return self._joined(np.einsum("xi,yj,npiqjc->xynpqc", made, made, tiles, optimize=True), x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(4), (f32[2, 5, 6, 3],), 1.0, 2.0)
        yield Sample(cls(2), (f32[1, 4, 3, 9],), 1.0, 2.0)
        yield Sample(cls(4), (f32[1, 8, 8, 8],), 1.0, 2.0)


@dataclass(frozen=True)
class WinogradWeightGradient(Op):
    """w[r, s, c, o] = (G' u[:, c, o] G)[r, s] for u[point, c, o]; or w[o, c, r, s], with channels first"""

    tile: int
    order: WeightOrder = "channels_last"
    differentiable = False
    cheap = False

    def infer(self, u: TensorType) -> TensorType:
        _require_tile(self.name, self.tile)
        points = points_of(self.tile) ** 2
        if u.rank != 3 or u.dtype != f32 or not u.is_static or u.shape[0] != points:
            raise OpTypeError(f"{self.name} takes f32[{points}, channels, channels], not {u!r}")
        if self.order == "adjoint":
            raise OpTypeError(f"{self.name}: a gradient has channels first or last")
        _, channels, outputs = u.shape
        return u.with_shape(
            (TAPS, TAPS, channels, outputs) if self.order == "channels_last" else (outputs, channels, TAPS, TAPS)
        )

    def evaluate(self, u: np.ndarray) -> np.ndarray:
        transform = matrices(self.tile).weight
        size = len(transform)
        apart = u.reshape(size, size, *u.shape[1:]).astype(np.float64)
        letters = "rsco" if self.order == "channels_last" else "ocrs"
        found = np.einsum(f"xr,ys,xyco->{letters}", transform, transform, apart, optimize=True)
        return np.ascontiguousarray(found.astype(u.dtype))

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        return self.loops_for(Target.named(DEFAULT_TARGET), outputs, inputs).body

    def loops_for(
        self, target: Target, outputs: Sequence[Buffer], inputs: Sequence[Buffer], finish: Finish = store_result
    ) -> OwnLoops:
        transform = Transform(matrices(self.tile).weight.T, target)
        return OwnLoops(winograd_transforms.weight_gradient_loops(outputs[0], inputs[0], transform, self.order))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for order in ("channels_last", "channels_first"):
            yield Sample(cls(4, order), (f32[36, 2, 9],), 1.0, 2.0)
            yield Sample(cls(2, order), (f32[16, 3, 8],), 1.0, 2.0)
            yield Sample(cls(2, order), (f32[16, 11, 70],), 1.0, 2.0)


@dataclass(frozen=True)
class WinogradProductGradient(Op):
    """winograd_weight_gradient of u[p, c, o] = sum(t: v[p, t, c] * z[p, t, o]), which is never stored; over all rows t but
    the last, which belongs to no tile"""

    tile: int
    order: WeightOrder = "channels_last"
    differentiable = False
    cheap = False
    rereads = True

    def infer(self, v: TensorType, z: TensorType) -> TensorType:
        if v.rank != 3 or z.rank != 3 or v.shape[:2] != z.shape[:2] or v.dtype != z.dtype or v.shape[1] == 0:
            raise OpTypeError(f"{self.name} takes f32[points, tiles + 1, channels] twice, not {v!r} and {z!r}")
        if not is_whole(v.shape[2], z.shape[2]):
            raise OpTypeError(f"{self.name} takes whole blocks of channels, not {v!r} and {z!r}")
        made = WinogradWeightGradient(self.tile, self.order)
        return made.infer(v.with_shape((v.shape[0], v.shape[2], z.shape[2])))

    def evaluate(self, v: np.ndarray, z: np.ndarray) -> np.ndarray:
        left, right = v[:, :-1].astype(np.float64), z[:, :-1].astype(np.float64)
        products = np.einsum("ptc,pto->pco", left, right, optimize=True)
        return WinogradWeightGradient(self.tile, self.order).evaluate(products).astype(v.dtype)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        return self.loops_for(Target.named(DEFAULT_TARGET), outputs, inputs).body

    def loops_for(
        self, target: Target, outputs: Sequence[Buffer], inputs: Sequence[Buffer], finish: Finish = store_result
    ) -> OwnLoops:
        transform = Transform(matrices(self.tile).weight.T, target)
        v, z = inputs
        return OwnLoops(GradientNest(outputs[0], v, z, transform, self.order).loops())

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # little at negative points, because errors are relative to each result
        rng = np.random.default_rng(0)
        for order in ("channels_last", "channels_first"):
            for tile, rows, channels in ((4, 7, 8), (2, 2, 16)):
                line = np.array([1.0, *(0.1 if point < 0 else 1.0 for point in POINTS[tile, TAPS][1:]), 1.0])
                size = len(line) ** 2
                v = rng.uniform(1, 2, (size, rows, channels)) * np.outer(line, line).reshape(-1, 1, 1)
                z = rng.uniform(1, 2, (size, rows, 64))
                yield Sample(cls(tile, order), (v.astype(np.float32), z.astype(np.float32)))


DEFAULT_TARGET = "x86-64-v3"  # where nobody says for which machine the loops are
