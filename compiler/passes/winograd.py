"""Convolutions with 3x3 taps by interpolation, where that is less work.

    convolution(x, w)                 ->  winograd_convolution(x, winograd_weight(w))
    convolution_weight_gradient(x, g) ->  winograd_weight_gradient(contract(winograd_data(x), winograd_cotangent(g)))

for channels last, stride 1, no dilation, one group, f32. Which tile, or none, follows from an estimate of time in
units of one vector multiply-add; the weight's transform is larger than the weight, so reading it counts too.
A weight that is constant is transformed when the program is made.

Invariant: the choice does not depend on the batch, so neither do the bits of a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Input, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import f32
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.convolution import Convolution, ConvolutionFamily, ConvolutionWeightGradient
from ingot.compiler.ops.winograd import (
    POINTS,
    TAPS,
    WinogradConvolution,
    WinogradCotangent,
    WinogradData,
    WinogradWeight,
    WinogradWeightGradient,
)
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, rewrite
from ingot.compiler.target import Target

VECTORS = 2  # of a register tile: a block of output channels
GROUP = 4  # most blocks of output channels that are computed between two transforms
CONSTANT_BATCH, CHANGING_BATCH = 1, 16  # that choices are made for, with a constant weight and with another

# Estimates, in the time of one vector multiply-add, from measurements of single layers.
EFFICIENCY = 0.8  # of the multiply-adds of a direct convolution
DATA_COST = {2: 95, 4: 340}  # transforming one vector of channels of a tile
RESULT_COST = {2: 55, 4: 160}
BYTES = 4  # that arrive from memory
OVERLAP = 0.4  # of the lesser of computing and reading is not hidden behind the other
MAKING = 2.0  # times the time to read the transform of a weight, to make it
GAIN = 0.9  # of the direct time must not be exceeded


DEFAULT_TARGET = Target.named("x86-64-v3")


@dataclass(frozen=True)
class Winograd(Pass):
    name: ClassVar[str] = "winograd"
    why_here: ClassVar[str] = "after norms are folded into weights, and gradients are convolutions"

    target: Target = DEFAULT_TARGET
    enabled: bool = True

    def configured(self, options: Options, target: Target) -> Winograd:
        return replace(self, target=target, enabled=options.winograd)

    def __call__(self, graph: Graph) -> Graph:
        if not self.enabled:
            return graph

        def interpolate(builder: Builder, value: Value) -> Value | None:
            """convolution(x, w) -> winograd_convolution(x, winograd_weight(w))"""
            tile = choose(value, self.target)
            return None if tile is None else _convolution(builder, value, tile, self.target)

        def interpolate_gradient(builder: Builder, value: Value) -> Value | None:
            """convolution_weight_gradient(x, g) -> winograd_weight_gradient(contract(v of x, z of g))"""
            tile = choose_gradient(value, self.target)
            return None if tile is None else _weight_gradient(builder, value, tile)

        interpolate.ops = (Convolution,)  # type: ignore[attr-defined]
        interpolate_gradient.ops = (ConvolutionWeightGradient,)  # type: ignore[attr-defined]
        return in_regions(rewrite(graph, (interpolate, interpolate_gradient)), self)


def _convolution(builder: Builder, value: Value, tile: int, target: Target) -> Value:
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    columns = VECTORS * target.lanes(value.tensor.dtype.itemsize)
    outputs = value.shape[-1]
    assert isinstance(outputs, int)
    u = builder.emit(WinogradWeight(tile, columns, _blocks(outputs, columns)), w)
    return builder.emit(WinogradConvolution(tile, op.padding, outputs), x, u)


def _weight_gradient(builder: Builder, value: Value, tile: int) -> Value:
    op = value.op
    assert isinstance(op, ConvolutionWeightGradient)
    x, g = value.args
    v = builder.emit(WinogradData(tile, op.padding), x)
    z = builder.emit(WinogradCotangent(tile), g)
    products = builder.emit(Contract("ptc", "pto", "pco"), v, z)
    return builder.emit(WinogradWeightGradient(tile), products)


def choose(value: Value, target: Target) -> int | None:
    """The tile with the least estimated time; None when the direct convolution is estimated faster."""
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    if not is_possible(op, x, w.shape):
        return None
    return _best(direct_cost(value, target), {tile: winograd_cost(value, tile, target) for tile in POINTS})


def choose_gradient(value: Value, target: Target) -> int | None:
    """The same for the gradient of the weight."""
    op = value.op
    assert isinstance(op, ConvolutionWeightGradient)
    if not is_possible(op, value.args[0], value.shape):
        return None
    return _best(*gradient_costs(value, target))


def _best(direct: float, costs: dict[int, float]) -> int | None:
    best = min(costs, key=lambda tile: costs[tile])
    return best if costs[best] < GAIN * direct else None


def is_possible(op: ConvolutionFamily, x: Value, weight: tuple[Dim, ...]) -> bool:
    plain = op.strides == op.dilation == (1, 1) and op.groups == 1 and op.layout == "channels_last"
    static = all(isinstance(d, int) for d in (*x.shape[1:], *weight))
    padded = all(isinstance(p, int) for side in op.padding for p in side)
    return plain and static and padded and weight[:2] == (TAPS, TAPS) and x.tensor.dtype == f32


def direct_cost(value: Value, target: Target) -> float:
    batch, height, width, outputs, channels, lanes = _sizes(value, target)
    products = batch * height * width * TAPS * TAPS * channels * _vectors(outputs, lanes)
    return _together(products / EFFICIENCY, _reading(value, TAPS * TAPS))


def winograd_cost(value: Value, tile: int, target: Target) -> float:
    batch, height, width, outputs, channels, lanes = _sizes(value, target)
    points = (tile + TAPS - 1) ** 2
    tiles = batch * -(-height // tile) * -(-width // tile)
    products = tiles * points * channels * _vectors(outputs, lanes)
    data = tiles * DATA_COST[tile] * _vectors(channels, lanes)
    results = tiles * RESULT_COST[tile] * _vectors(outputs, lanes)
    reading = _reading(value, points)
    making = 0.0 if is_constant(value.args[1]) else MAKING * reading
    return _together(products, reading) + data + results + making


def gradient_costs(value: Value, target: Target) -> tuple[float, dict[int, float]]:
    """(direct, by tile) for the gradient of a weight; the transforms of both images go through memory."""
    g = value.args[1]
    _, height, width, outputs = g.shape
    channels = value.shape[-2]
    assert isinstance(height, int)
    assert isinstance(width, int)
    assert isinstance(outputs, int)
    assert isinstance(channels, int)
    lanes, itemsize = target.lanes(value.tensor.dtype.itemsize), value.tensor.dtype.itemsize
    across = _vectors(outputs, lanes)
    direct = CHANGING_BATCH * height * width * TAPS * TAPS * channels * across / EFFICIENCY
    costs = {}
    for tile in POINTS:
        points = (tile + TAPS - 1) ** 2
        tiles = CHANGING_BATCH * -(-height // tile) * -(-width // tile)
        products = points * tiles * channels * across / EFFICIENCY
        transforms = tiles * (DATA_COST[tile] * _vectors(channels, lanes) + RESULT_COST[tile] * across)
        stored = points * (tiles * (channels + outputs) + channels * outputs)
        costs[tile] = products + transforms + 2 * stored * itemsize / BYTES
    return direct, costs


def _reading(value: Value, points: int) -> float:
    """The time to read a weight that has this many numbers for each pair of channels."""
    channels, outputs = value.args[1].tensor.static_shape[-2:]
    return points * channels * outputs * value.tensor.dtype.itemsize / BYTES


def _together(computing: float, reading: float) -> float:
    return max(computing, reading) + OVERLAP * min(computing, reading)


def _blocks(outputs: int, columns: int) -> int:
    """Blocks of a group: equally many in all groups, so that little is padded."""
    blocks = -(-outputs // columns)
    return -(-blocks // -(-blocks // GROUP))


def _vectors(channels: int, lanes: int) -> int:
    return -(-channels // lanes)


def _sizes(value: Value, target: Target) -> tuple[int, int, int, int, int, int]:
    """(batch, height, width, outputs, channels, lanes)"""
    _, height, width, outputs = value.shape
    batch = CONSTANT_BATCH if is_constant(value.args[1]) else CHANGING_BATCH
    channels = value.args[0].shape[-1]
    return batch, height, width, outputs, channels, target.lanes(value.tensor.dtype.itemsize)  # type: ignore[return-value]


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
