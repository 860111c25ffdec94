"""Convolutions by interpolation, where that is less work: those with 3x3 taps, and larger ones with a stride of 2.

    convolution(x, w)                 ->  winograd_convolution(x, winograd_weight(w))   a constant weight
                                          winograd_convolution(x, winograd_taps(w))     the same, for few tiles
                                          winograd_convolution(x, w)                    one that changes
                                          winograd_convolution(stride_phases(x), winograd_weight(phases of w))
    convolution_weight_gradient(x, g) ->  winograd_weight_gradient(contract(winograd_data(x), winograd_cotangent(g)))
                                          winograd_product_gradient(winograd_data(x), winograd_cotangent(g))
                                          where there are more products than numbers that they are made of

for channels last, stride 1 (of a constant weight also 2), no dilation, one group, f32. A constant weight with 5 to 8 taps and a
stride of 2, as networks for images begin with, has 3 or 4 taps in each of the phases of its image, which become channels. Which tile, or none, follows from an estimate of time in
units of one vector multiply-add; the weight's transform is larger than the weight, so reading it counts too.
A weight that is constant is transformed when the program is made; for very few tiles it is only put in order, and
transformed in registers, which is less time than waiting for its transform. One that changes is read as it stands, channels first
as models keep it, for the convolution and for the gradient of its data, and its gradient is written so: rearranging a
weight takes as long as using it, and the copies would wait for the backward pass.

Where the size of the image is free, a layer is as large as the inputs make it: the choice is the one that is least
behind the best for images from small to large. A layer of many channels behind many strides has few tiles in all of
them, and a large tile's transform of its weight would be read for almost nothing. Gradients are chosen for a middling size.

Invariant: the choice does not depend on the batch, so neither do the bits of a result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Input, Value
from ingot.compiler.ir.scalar import Buffer, Load
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.tensor import BufferReader, InlineReader, Reader, axes
from ingot.compiler.ir.types import f32
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.convolution import Convolution, ConvolutionFamily, ConvolutionWeightGradient
from ingot.compiler.ops.movement import Flip, pad
from ingot.compiler.ops.stride_phases import StridePhases
from ingot.compiler.ops.structure import Reshape, Transpose, inverse
from ingot.compiler.ops.windows import Layout
from ingot.compiler.ops.winograd import (
    POINTS,
    STRIDES,
    TAPS,
    TILES,
    WinogradConvolution,
    WinogradCotangent,
    WinogradData,
    WinogradProductGradient,
    WinogradTaps,
    WinogradWeight,
    WinogradWeightGradient,
    points_of,
)
from ingot.compiler.ops.winograd_loops import STACK_BYTES
from ingot.compiler.ops.winograd_products import is_whole
from ingot.compiler.ops.winograd_taps import most_tiles
from ingot.compiler.ops.winograd_transforms import WeightOrder, weight_axes, weight_index
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.layout import data_to_last
from ingot.compiler.passes.rewriting import Pass, rewrite
from ingot.compiler.target import Target

TILE_VECTORS = 2, 3, 4  # that a register tile may be wide: a block of output channels
GROUP_VECTORS = 8  # most of output channels that are computed between two transforms
CONSTANT_BATCH, CHANGING_BATCH = 1, 16  # that choices are made for, with a constant weight and with another
FREE_SIZE = 32  # of a layer, that choices are made for where nothing tells more
FREE_IMAGES = 64, 160, 320, 640  # sizes of the inputs, that choices are made for where they are not known

# Estimates, in the time of one vector multiply-add, from measurements of single layers.
EFFICIENCY = 0.8  # of the multiply-adds of a direct convolution
DATA_COST = {2: 95, 4: 340}  # transforming one vector of channels of a tile; in proportion where it has more points
RESULT_COST = {2: 55, 4: 160}
BYTES = 1 / 8  # of a vector that arrive from where a program keeps what it makes
OVERLAP = 0.4  # of the lesser of computing and reading is not hidden behind the other;
FEW_BUFFERS_OVERLAP = 0.6  # where few lines can be on their way
MAKING = 2.0  # times the time to read the transform of a weight, to make it
PASSING = {2: 24, 4: 60}  # to make the transform of one vector of a weight in registers
GAIN = 0.9  # of the direct time must not be exceeded
PHASE_COST = 1.5  # to put one element of an image among its phases
PHASES = 2  # the stride whose phases become channels

Choice = TypeVar("Choice")
Sizes = Mapping[Symbol, int]
MIDDLING: tuple[Sizes, ...] = ({},)
DEFAULT_TARGET = Target.named("x86-64-v3")


@dataclass(frozen=True)
class Winograd(Pass):
    name: ClassVar[str] = "winograd"
    why_here: ClassVar[str] = "after norms are folded into weights, and gradients are convolutions"

    target: Target = DEFAULT_TARGET
    enabled: bool = True
    repeated: bool = False  # the graph is the body of a loop, whose weights are transformed before it
    likely: tuple[Sizes, ...] = field(default=(), compare=False)  # of free dims; if none, those that the inputs tell

    def configured(self, options: Options, target: Target) -> Winograd:
        return replace(self, target=target, enabled=options.winograd)

    def __call__(self, graph: Graph) -> Graph:
        if not self.enabled:
            return graph
        likely = self.likely or likely_sizes(graph)

        def interpolate(builder: Builder, value: Value) -> Value | None:
            """convolution(x, w) -> winograd_convolution(x, winograd_weight(w)), or (x, w) when w changes"""
            way = choose(value, self.target, self.repeated, likely)
            return None if way is None else _convolution(builder, value, way, self.target, self.repeated)

        def interpolate_gradient(builder: Builder, value: Value) -> Value | None:
            """convolution_weight_gradient(x, g) -> winograd_weight_gradient(contract(v of x, z of g))"""
            tile = choose_gradient(value, self.target)
            return None if tile is None else _weight_gradient(builder, value, tile)

        def gradient_in_order(builder: Builder, value: Value) -> Value | None:
            """transpose(winograd_weight_gradient(u)) to channels first -> winograd_weight_gradient(u) that writes so"""
            (made,) = value.args
            gradients = WinogradWeightGradient | WinogradProductGradient
            if not isinstance(made.op, gradients) or made.op.order != "channels_last":
                return None
            wanted = inverse(weight_axes("channels_first"))
            if value.op.perm != wanted:  # type: ignore[attr-defined]
                return None
            return builder.emit(replace(made.op, order="channels_first"), *made.args)

        gradient_in_order.ops = (Transpose,)  # type: ignore[attr-defined]
        def interpolate_phases(builder: Builder, value: Value) -> Value | None:
            """convolution(x, w), stride 2 -> winograd_convolution(stride_phases(x), winograd_weight(phases of w))"""
            tile = choose_phases(value, self.target, self.repeated, likely)
            return None if tile is None else _phased_convolution(builder, value, tile, self.target)

        interpolate_phases.ops = (Convolution,)  # type: ignore[attr-defined]
        interpolate.ops = (Convolution,)  # type: ignore[attr-defined]
        interpolate_gradient.ops = (ConvolutionWeightGradient,)  # type: ignore[attr-defined]
        rules = interpolate, interpolate_phases, interpolate_gradient, gradient_in_order
        return in_regions(rewrite(graph, rules), replace(self, repeated=True, likely=likely))


@dataclass(frozen=True)
class Way:
    """How a convolution is interpolated."""

    tile: int
    passing: bool = False  # the transform of the weight is never stored


def _convolution(builder: Builder, value: Value, way: Way, target: Target, repeated: bool) -> Value:
    op, tile = value.op, way.tile
    assert isinstance(op, Convolution)
    x, w = value.args
    outputs, lanes = value.tensor.shape[-1], target.lanes(value.tensor.dtype.itemsize)
    assert isinstance(outputs, int)
    columns, blocks = _cut(outputs, lanes, target)
    if way.passing:
        taps = builder.emit(WinogradTaps(lanes), w)
        return builder.emit(WinogradConvolution(tile, op.padding, outputs, "blocked", columns, blocks), x, taps)
    if repeated or is_constant(w):
        stride = op.strides[0]
        u = builder.emit(WinogradWeight(tile, columns, blocks, stride), w)
        return builder.emit(WinogradConvolution(tile, op.padding, outputs, stride=stride), x, u)
    source, order = stored_weight(w)
    if columns * transformed_bytes(value, tile) > target.l2_bytes:
        blocks = 1  # its transform is made and read at once, as near as can be
    return builder.emit(WinogradConvolution(tile, op.padding, outputs, order, columns, blocks), x, source)


def _phased_convolution(builder: Builder, value: Value, tile: int, target: Target) -> Value:
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    size, _, channels, outputs = w.tensor.static_shape
    taps = _phased(size)
    moved = isinstance(x.op, Transpose) and x.op.perm == data_to_last(4)
    layout: Layout = "channels_first" if moved else "channels_last"
    low = tuple(before for before, _ in op.padding)
    counts = tuple(count + taps - 1 for count in value.tensor.shape[1:3])
    phases = builder.emit(StridePhases(PHASES, low, counts, layout), x.args[0] if moved else x)  # type: ignore[arg-type]
    missing = PHASES * taps - size
    whole = pad(Node(builder, w), (0,) * 4, (missing, missing, 0, 0))
    apart = whole.reshape((taps, PHASES, taps, PHASES, channels, outputs)).transpose((0, 2, 3, 1, 4, 5))
    together = apart.reshape((taps, taps, PHASES**2 * channels, outputs)).value
    u = builder.emit(WinogradWeight(tile, *_cut(outputs, target.lanes(value.tensor.dtype.itemsize), target), taps=taps), together)
    return builder.emit(WinogradConvolution(tile, ((0, 0), (0, 0)), outputs, taps=taps), phases, u)


def transformed_bytes(value: Value, tile: int) -> int:
    """Of the transform of the weight of one output channel."""
    channels = value.args[0].tensor.shape[-1]
    assert isinstance(channels, int)
    return points_of(tile) ** 2 * channels * value.tensor.dtype.itemsize


def stored_weight(w: Value) -> tuple[Value, WeightOrder]:
    """What a weight [r, s, c, o] is a rearrangement of, if it is one of those that a convolution reads as they are."""
    found: tuple[Value, WeightOrder] = w, "channels_last"
    index = axes(w.shape)
    known: dict[Buffer, Value] = {}

    def reader(value: Value) -> Reader:
        if not isinstance(value.op, Transpose | Reshape | Flip):
            buffer = Buffer("w", value.tensor.dtype, value.shape)
            known[buffer] = value
            return BufferReader(buffer)
        op, source = value.op, reader(value.args[0])
        return InlineReader(value.tensor, lambda *at: op.lower(value.tensor, at, source))

    element = reader(w)(*index)
    if isinstance(element, Load) and len(element.index) == len(index):
        for order in ("channels_first", "adjoint"):
            r, s, c, o = index
            if element.index == weight_index(order, r, s, c, o):
                found = known[element.buffer], order
    return found


def _weight_gradient(builder: Builder, value: Value, tile: int) -> Value:
    op = value.op
    assert isinstance(op, ConvolutionWeightGradient)
    x, g = value.args
    v = builder.emit(WinogradData(tile, op.padding), x)
    z = builder.emit(WinogradCotangent(tile), g)
    if products_pass(value, tile):
        return builder.emit(WinogradProductGradient(tile), v, z)
    products = builder.emit(Contract("ptc", "pto", "pco"), v, z)
    return builder.emit(WinogradWeightGradient(tile), products)


def likely_sizes(graph: Graph) -> tuple[Sizes, ...]:
    """What free dims are when the inputs are images of several sizes; n of 32*n rows is smaller than the image."""
    extents = [dim for value in graph.inputs for dim in value.shape if not isinstance(dim, int)]
    made: list[Sizes] = []
    for image in FREE_IMAGES:
        sizes: dict[Symbol, int] = {}
        for extent in extents:
            symbol, *others = symbolic.atoms(extent)
            if isinstance(symbol, Symbol) and not others:
                size = image
                while size > 1 and symbolic.evaluate(extent, {symbol: size}) > image:
                    size //= 2
                sizes[symbol] = min(size, sizes.get(symbol, size))
        made.append(sizes)
    return tuple(made)


@dataclass(frozen=True)
class Layer:
    """What the time of a convolution depends on; free sizes have likely values."""

    batch: int
    height: int  # of the result
    width: int
    channels: int
    outputs: int
    taps: int
    stride: int
    is_constant: bool  # the weight
    itemsize: int

    @staticmethod
    def of(value: Value, sizes: Sizes) -> Layer:
        op = value.op
        assert isinstance(op, Convolution)
        x, w = value.args
        fixed = is_constant(w)
        _, height, width, outputs = value.tensor.shape
        batch = CONSTANT_BATCH if fixed else CHANGING_BATCH
        taps, _, channels, _ = w.tensor.static_shape
        assert isinstance(outputs, int)
        return Layer(
            batch, _likely(height, sizes), _likely(width, sizes), channels, outputs, taps, op.strides[0], fixed,
            x.tensor.dtype.itemsize,
        )  # fmt: skip

    @property
    def phased(self) -> Layer:
        """The same result from the phases of the image."""
        return replace(self, channels=self.channels * PHASES**2, taps=_phased(self.taps), stride=1)

    def points(self, tile: int) -> int:
        """Products of a tile of results for each pair of channels."""
        return points_of(tile, self.stride, self.taps) ** 2

    def tiles(self, tile: int) -> int:
        """Of an image."""
        return -(-self.height // tile) * -(-self.width // tile)


def _phased(taps: int) -> int:
    """Taps of each phase."""
    return -(-taps // PHASES)


def choose(
    value: Value, target: Target, repeated: bool = False, likely: Sequence[Sizes] = MIDDLING
) -> Way | None:
    """The way with the least estimated time; None when the direct convolution is estimated faster."""
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    is_known = all(isinstance(size, int) for size in value.tensor.shape[1:3])
    # Images of a free size may be small where layers have a stride, and what it saves is less than with a stride of 1.
    strides = STRIDES if is_known and (repeated or is_constant(w)) else (1,)
    if not is_possible(op, x, w.tensor.shape, strides):
        return None
    layers = [Layer.of(value, sizes) for sizes in likely]
    costs = {Way(tile): _mean(winograd_cost(layer, tile, target) for layer in layers) for tile in TILES}
    for tile in TILES:
        if is_constant(w) and not repeated and all(can_pass(layer, tile, target) for layer in layers):
            costs[Way(tile, passing=True)] = _mean(passing_cost(layer, tile, target) for layer in layers)
    return _best(_mean(direct_cost(layer, target) for layer in layers), costs)


def choose_phases(
    value: Value, target: Target, repeated: bool = False, likely: Sequence[Sizes] = MIDDLING
) -> int | None:
    """The tile for a convolution of the phases of its image; None when the direct convolution is estimated faster."""
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    if not (repeated or is_constant(w)) or not _may_have_phases(op, x, w.tensor.shape):
        return None
    layers = [Layer.of(value, sizes) for sizes in likely]
    tiles = [tile for tile, taps in POINTS if taps == layers[0].phased.taps]
    costs = {tile: _mean(phased_cost(layer, tile, target) for layer in layers) for tile in tiles}
    return _best(_mean(direct_cost(layer, target) for layer in layers), costs)


def choose_gradient(value: Value, target: Target) -> int | None:
    """The same for the gradient of the weight."""
    op = value.op
    assert isinstance(op, ConvolutionWeightGradient)
    if not is_possible(op, value.args[0], value.shape):
        return None
    return _best(*gradient_costs(value, target))


def products_pass(value: Value, tile: int) -> bool:
    """Whether products that are never stored take less time: there are more of them than of what they are made of."""
    g = value.args[1]
    _, height, width, outputs = g.tensor.shape
    channels = value.shape[-2]
    height, width = _likely(height), _likely(width)
    if not isinstance(outputs, int) or not isinstance(channels, int) or not is_whole(channels, outputs):
        return False
    tiles = CHANGING_BATCH * -(-height // tile) * -(-width // tile)
    return channels * outputs > tiles * (channels + outputs)


def _mean(costs: Iterable[float]) -> float:
    """The geometric one, so that small sizes count as much as large ones."""
    return math.exp(statistics.fmean(math.log(cost) for cost in costs))


def _best(direct: float, costs: dict[Choice, float]) -> Choice | None:
    best = min(costs, key=lambda choice: costs[choice])
    return best if costs[best] < GAIN * direct else None


def is_possible(op: ConvolutionFamily, x: Value, weight: tuple[Dim, ...], strides: Sequence[int] = (1,)) -> bool:
    suited = _is_plain(op, x, weight) and weight[:2] == (TAPS, TAPS)
    return suited and any(op.strides == (stride, stride) for stride in strides) and _fits(max(TILES), op.strides[0], TAPS, weight[2])


def _may_have_phases(op: Convolution, x: Value, weight: tuple[Dim, ...]) -> bool:
    if not _is_plain(op, x, weight) or op.strides != (PHASES, PHASES) or weight[0] != weight[1]:
        return False
    taps = weight[0]
    assert isinstance(taps, int)
    known = taps > TAPS and any(count == _phased(taps) for _, count in POINTS)
    cropped = any(side < 0 for sides in op.padding for side in sides)  # type: ignore[operator]
    return known and not cropped and _fits(max(TILES), 1, _phased(taps), PHASES**2 * weight[2])


def _is_plain(op: ConvolutionFamily, x: Value, weight: tuple[Dim, ...]) -> bool:
    """Whether it slides over an image without dilation or groups, and all that must be known is."""
    plain = op.dilation == (1, 1) and op.groups == 1 and op.layout == "channels_last" and x.tensor.dtype == f32
    static = all(isinstance(d, int) for d in (x.tensor.shape[-1], *weight))
    return plain and static and all(isinstance(p, int) for side in op.padding for p in side)


def _fits(tile: int, stride: int, taps: int, channels: Dim) -> bool:
    """Whether a tile of all channels is small enough."""
    return symbolic.less(STACK_BYTES, points_of(tile, stride, taps) ** 2 * f32.itemsize * channels) is not True


def direct_cost(layer: Layer, target: Target) -> float:
    taps = layer.taps**2
    products = layer.batch * layer.height * layer.width * taps * layer.channels * _across(layer, target)
    return _together(products / EFFICIENCY, _reading(layer, taps, target), layer, target)


def winograd_cost(layer: Layer, tile: int, target: Target) -> float:
    products, transforms = _work(layer, tile, target)
    reading = _reading(layer, layer.points(tile), target)
    making = 0.0 if layer.is_constant else MAKING * reading
    return _together(products, reading, layer, target) + transforms + making


def can_pass(layer: Layer, tile: int, target: Target) -> bool:
    whole = layer.channels % target.lanes(layer.itemsize) == 0
    return layer.stride == 1 and whole and layer.tiles(tile) <= most_tiles(tile, target)


def passing_cost(layer: Layer, tile: int, target: Target) -> float:
    """With a weight that is transformed in registers: it is read as it is."""
    products, transforms = _work(layer, tile, target)
    making = PASSING[tile] * layer.channels * _across(layer, target)
    return _together(products + making, _reading(layer, layer.taps**2, target), layer, target) + transforms


def phased_cost(layer: Layer, tile: int, target: Target) -> float:
    """Of the phases of its image, which are put apart first."""
    phased = layer.phased
    elements = layer.batch * phased.channels * math.prod(size + phased.taps - 1 for size in (layer.height, layer.width))
    return winograd_cost(phased, tile, target) + PHASE_COST * elements


def _work(layer: Layer, tile: int, target: Target) -> tuple[float, float]:
    """The time of all products, and of the transforms of data and of results."""
    tiles, points = layer.batch * layer.tiles(tile), layer.points(tile)
    products = tiles * points * layer.channels * _across(layer, target)
    larger = points / points_of(tile) ** 2
    data = tiles * larger * DATA_COST[tile] * _vectors(layer.channels, target.lanes(layer.itemsize))
    results = tiles * larger * RESULT_COST[tile] * _across(layer, target)
    return products, data + results


def gradient_costs(value: Value, target: Target) -> tuple[float, dict[int, float]]:
    """(direct, by tile) for the gradient of a weight; the transforms of both images go through memory."""
    g = value.args[1]
    _, height, width, outputs = g.shape
    channels = value.shape[-2]
    height, width = _likely(height), _likely(width)
    assert isinstance(outputs, int)
    assert isinstance(channels, int)
    lanes, itemsize = target.lanes(value.tensor.dtype.itemsize), value.tensor.dtype.itemsize
    across = _vectors(outputs, lanes)
    direct = CHANGING_BATCH * height * width * TAPS * TAPS * channels * across / EFFICIENCY
    costs = {}
    for tile in TILES:
        points = points_of(tile) ** 2
        tiles = CHANGING_BATCH * -(-height // tile) * -(-width // tile)
        products = points * tiles * channels * across / EFFICIENCY
        transforms = tiles * (DATA_COST[tile] * _vectors(channels, lanes) + RESULT_COST[tile] * across)
        stored = points * (tiles * (channels + outputs) + channels * outputs)
        costs[tile] = products + transforms + 2 * stored * itemsize / (BYTES * target.vector_bytes)
    return direct, costs


def _reading(layer: Layer, points: int, target: Target) -> float:
    """The time to read a weight that has this many numbers for each pair of channels: of a network that is only run it
    comes from memory."""
    rate = target.memory_rate if layer.is_constant else BYTES
    return points * layer.channels * layer.outputs * layer.itemsize / (rate * target.vector_bytes)


def _together(computing: float, reading: float, layer: Layer, target: Target) -> float:
    few = target.has_few_line_buffers and layer.is_constant  # which comes from memory
    overlap = FEW_BUFFERS_OVERLAP if few else OVERLAP
    return max(computing, reading) + overlap * min(computing, reading)


def _across(layer: Layer, target: Target) -> int:
    """Vectors of output channels."""
    return _vectors(layer.outputs, target.lanes(layer.itemsize))


def _cut(outputs: int, lanes: int, target: Target) -> tuple[int, int]:
    """(output channels of a block, blocks of a group)"""
    columns = tile_vectors(_vectors(outputs, lanes), target) * lanes
    return columns, _blocks(outputs, columns, lanes)


def tile_vectors(outputs: int, target: Target) -> int:
    """Vectors of a register tile for so many vectors of output channels: the width whose tiles cover them in the least time."""
    return min(outputs, min(TILE_VECTORS, key=lambda n: -(-outputs // n) * n / target.tile_rate(n)))


def _blocks(outputs: int, columns: int, lanes: int) -> int:
    """Blocks of a group: equally many in all groups, so that little is padded, and two groups where there can be: threads
    divide them when tiles are few."""
    blocks, most = -(-outputs // columns), GROUP_VECTORS * lanes // columns
    return -(-blocks // max(-(-blocks // most), min(2, blocks)))


def _vectors(channels: int, lanes: int) -> int:
    return -(-channels // lanes)


def _likely(size: Dim, sizes: Sizes = MIDDLING[0]) -> int:
    if isinstance(size, int):
        return size
    is_told = all(atom in sizes for atom in symbolic.atoms(size))
    return max(1, symbolic.evaluate(size, sizes)) if is_told else FREE_SIZE


def is_constant(value: Value) -> bool:
    """Whether a value is computed from constants only."""
    seen: set[Value] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item.op, Input) and item.op.role != "constant":
            return False
        if item not in seen:
            seen.add(item)
            stack.extend(item.args)
    return True
