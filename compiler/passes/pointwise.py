"""Convolutions with a single tap are matrix products, and so are the gradients of their weights; groups are apart.

    convolution(x[n, y, x, c], w[1, 1, c, o])        ->  contract(x[n, y, x, c], w[c, o])
    convolution_weight_gradient(x, g[n, y, x, o])    ->  contract(x[n, y, x, c], g[n, y, x, o])

for channels last, one group and no padding; a stride picks the elements of x that are read. Everything that knows
contractions (blocked weights, merged axes) then applies to them; transposes around them become letters here, unless
the sum is so long that the transposes cost little beside it.

    convolution(x[n, 1, 1, c], w[3, 3, c, o]), padded  ->  convolution(x, w[1:2, 1:2])

where taps of a known weight meet padding only, whatever the place: layers at the end of a network, of images of a pixel or two.

    convolution(x, w[r, s, c, g * o]), g groups      ->  blocked_convolution(x, w[g, r, s, c, o])

when a group has enough outputs for vectors: its channels are then summed without asking to which group they belong.

    convolution(x[n, y, x, c], w), dilation d        ->  convolution of d*d images, each of every d-th place, dilation 1

when it can then be interpolated (winograd) and the sizes are multiples of d.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops import movement, windows
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.convolution import (
    BlockedConvolution,
    Convolution,
    ConvolutionFamily,
    ConvolutionWeightGradient,
)
from ingot.compiler.ops.structure import Reshape, Transpose
from ingot.compiler.options import Options
from ingot.compiler.passes import winograd
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.motion import transposed_operand, transposed_result
from ingot.compiler.passes.rewriting import Pass, Rule, rewrite
from ingot.compiler.target import Target

SPATIAL = "yxz"
SHORT_SUM = 256  # products of a sum beside which transposing the result takes time
ENOUGH_OUTPUTS = 8  # of a group, for vectors


@dataclass(frozen=True)
class Pointwise(Pass):
    name: ClassVar[str] = "pointwise"
    why_here: ClassVar[str] = "after norms are folded into the weights of convolutions"

    target: Target = winograd.DEFAULT_TARGET
    interpolates: bool = True

    def configured(self, options: Options, target: Target) -> Pointwise:
        return replace(self, target=target, interpolates=options.winograd)

    def __call__(self, graph: Graph) -> Graph:
        def dilated(builder: Builder, value: Value) -> Value | None:
            """convolution(x, w) with a dilation -> of the images that its windows do not mix, where that is faster"""
            return _dilated(builder, value, self.target) if self.interpolates else None

        dilated.ops = (Convolution,)  # type: ignore[attr-defined]
        return in_regions(rewrite(graph, (*RULES, dilated)), self)


def _is_pointwise(op: ConvolutionFamily, taps: tuple[Any, ...]) -> bool:
    plain = op.groups == 1 and op.layout == "channels_last"
    return plain and all(tap == 1 for tap in taps) and all(p == 0 for side in op.padding for p in side)


def _picked(builder: Builder, x: Value, strides: tuple[int, ...]) -> Any:
    """x at every stride-th place."""
    node: Any = Node(builder, x)
    for axis, stride in enumerate(strides):
        node = movement.part(node, 1 + axis, 0, node.shape[1 + axis], stride)
    return node


def without_idle_taps(builder: Builder, value: Value) -> Value | None:
    """convolution(x, w), of which taps meet padding only -> convolution(x, w without them)"""
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    sizes = (*w.shape, *x.shape[1:-1], *value.shape[1:-1], *(p for side in op.padding for p in side))
    if op.layout != "channels_last" or not all(isinstance(size, int) for size in sizes) or not winograd.is_constant(w):
        return None
    weight: Any = Node(builder, w)
    sides = []
    for axis, ((low, high), step) in enumerate(zip(op.padding, op.dilation, strict=True)):
        taps, size, count, stride = w.shape[axis], x.shape[1 + axis], value.shape[1 + axis], op.strides[axis]
        assert isinstance(low, int)
        assert isinstance(high, int)
        assert isinstance(taps, int)
        assert isinstance(size, int)
        assert isinstance(count, int)
        met = [tap for tap in range(taps) if _meets(size, count, stride, low - tap * step)]
        if not met:
            return None
        first, end = min(met[0], max(low, 0) // step), max(met[-1] + 1, taps - max(high, 0) // step)
        weight = movement.part(weight, axis, first, end, 1)
        sides.append((low - first * step, high - (taps - end) * step))
    return None if weight.shape == w.shape else builder.emit(replace(op, padding=tuple(sides)), x, weight.value)


def _meets(size: int, count: int, stride: int, before: int) -> bool:
    """Whether a tap that is so far before an image at the first of its places is in the image at one of them."""
    place = max(0, -(-before // stride))
    return place < count and place * stride - before < size


def convolution(builder: Builder, value: Value) -> Value | None:
    """convolution(x, w[1, 1, c, o]) -> contract(x, w[c, o])"""
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    if not _is_pointwise(op, windows.unpack_weight(op.layout, w.shape)[2]):
        return None
    places = SPATIAL[: len(op.strides)]
    matrix = Node(builder, w).reshape(w.shape[-2:])
    made = _picked(builder, x, op.strides).apply(Contract(f"n{places}c", "co", f"n{places}o"), matrix)
    return made.value


def weight_gradient(builder: Builder, value: Value) -> Value | None:
    """convolution_weight_gradient(x, g) -> contract(x, g)"""
    op = value.op
    assert isinstance(op, ConvolutionWeightGradient)
    if not _is_pointwise(op, op.taps):
        return None
    x, g = value.args
    places = SPATIAL[: len(op.strides)]
    made = _picked(builder, x, op.strides).apply(Contract(f"n{places}c", f"n{places}o", "co"), Node(builder, g))
    return made.reshape(value.shape).value


def grouped(builder: Builder, value: Value) -> Value | None:
    """convolution(x, w) in groups -> blocked_convolution(x, w with the groups first)"""
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    *inner, outputs = w.shape
    if op.groups == 1 or op.layout != "channels_last" or not isinstance(outputs, int):
        return None
    each = outputs // op.groups
    if each < ENOUGH_OUTPUTS:
        return None
    last = len(inner)
    blocks = Node(builder, w).reshape((*inner, op.groups, each)).transpose((last, *range(last), last + 1))
    made = builder.emit(
        BlockedConvolution(op.strides, op.padding, op.dilation, op.groups, op.layout), x, blocks.value
    )
    return builder.emit(Reshape(value.shape), made)


def _dilated(builder: Builder, value: Value, target: Target) -> Value | None:
    op = value.op
    assert isinstance(op, Convolution)
    x, w = value.args
    steps = op.dilation
    sides = tuple((low // step, high // step) for (low, high), step in zip(op.padding, steps, strict=True))
    whole = [(size, low, high) for size, (low, high) in zip(x.shape[1:-1], op.padding, strict=True)]
    apart = any(step > 1 for step in steps) and all(stride == 1 for stride in op.strides)
    if op.layout != "channels_last" or not apart:
        return None
    if any(symbolic.equal(n % step, 0) is not True for ns, step in zip(whole, steps, strict=True) for n in ns):
        return None
    images = _apart(Node(builder, x), steps)
    plain = replace(op, padding=sides, dilation=(1,) * len(steps))
    made = builder.emit(plain, images.value, w)
    if winograd.choose(made, target) is None:
        return None
    return _together(Node(builder, made), x.shape[0], steps).value


def _apart(x: Any, steps: tuple[int, ...]) -> Any:
    """[n, *y, c] -> [n * steps, *(y / steps), c]: images of every step-th place"""
    rank = len(steps)
    batch, *sizes, channels = x.shape
    counts = [size // step for size, step in zip(sizes, steps, strict=True)]
    split = x.reshape((batch, *itertools.chain.from_iterable(zip(counts, steps, strict=True)), channels))
    order = (0, *range(2, 2 * rank + 1, 2), *range(1, 2 * rank, 2), 2 * rank + 1)
    return split.transpose(order).reshape((batch * math.prod(steps), *counts, channels))


def _together(y: Any, batch: Dim, steps: tuple[int, ...]) -> Any:
    """[n * steps, *(y / steps), c] -> [n, *y, c]"""
    rank = len(steps)
    _, *counts, channels = y.shape
    order = (0, *itertools.chain.from_iterable((1 + rank + n, 1 + n) for n in range(rank)), 2 * rank + 1)
    moved = y.reshape((batch, *steps, *counts, channels)).transpose(order)
    return moved.reshape((batch, *(count * step for count, step in zip(counts, steps, strict=True)), channels))


def short_operand(builder: Builder, value: Value) -> Value | None:
    """contract(transpose(a, p), b) -> contract(a, b) with a's letters in another order, for short sums"""
    return transposed_operand(builder, value) if _is_short(value) else None


def short_result(builder: Builder, value: Value) -> Value | None:
    """transpose(contract(a, b), p) -> contract(a, b) with its output letters in another order, for short sums"""
    return transposed_result(builder, value) if _is_short(value.args[0]) else None


def _is_short(value: Value) -> bool:
    op = value.op
    if not isinstance(op, Contract):
        return False
    extents = dict(zip(op.left, value.args[0].shape, strict=True))
    depth = symbolic.product(extents[letter] for letter in op.left if letter in op.right and letter not in op.output)
    return symbolic.less_equal(depth, SHORT_SUM) is True


without_idle_taps.ops = (Convolution,)  # type: ignore[attr-defined]
convolution.ops = (Convolution,)  # type: ignore[attr-defined]
weight_gradient.ops = (ConvolutionWeightGradient,)  # type: ignore[attr-defined]

grouped.ops = (Convolution,)  # type: ignore[attr-defined]
short_operand.ops = (Contract,)  # type: ignore[attr-defined]
short_result.ops = (Transpose,)  # type: ignore[attr-defined]

RULES: tuple[Rule, ...] = (without_idle_taps, convolution, weight_gradient, grouped, short_operand, short_result)
