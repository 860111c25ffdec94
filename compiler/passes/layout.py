"""Channels last: convolutions and pools work on [batch, *space, channels].

Vectors then run along channels, which are contiguous, for any kernel, stride or image size; weights become
[*kernel, in, out], whose last axis is contiguous too. The transposes this leaves at both ends of an op cancel
against those of its neighbours (motion), so that activations stay channels-last from layer to layer.
Pools are changed only in models with convolutions: alone, the transposes would cost more than they save. What makes
few channels keeps them first (the start of a small network, an image as the result, the gradients of both): vectors
run along rows of pixels there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Node, Op
from ingot.compiler.ops.convolution import (
    Convolution,
    ConvolutionFamily,
    ConvolutionTranspose,
    ConvolutionWeightGradient,
)
from ingot.compiler.ops.pooling import Pool
from ingot.compiler.ops.structure import Transpose, inverse
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, Rule, rewrite

NARROW = 8  # channels that a vector of f32 has on common machines


@dataclass(frozen=True)
class Layout(Pass):
    name: ClassVar[str] = "layout"
    why_here: ClassVar[str] = "before decomposition, while convolutions and pools are whole"

    def __call__(self, graph: Graph) -> Graph:
        convolutions = any(isinstance(v.op, ConvolutionFamily) for v in graph.body)
        return in_regions(rewrite(graph, (*CONVOLUTION_RULES, *POOL_RULES)) if convolutions else graph, self)


def data_to_last(rank: int) -> tuple[int, ...]:
    """[batch, channels, *space] -> [batch, *space, channels]"""
    return (0, *range(2, rank), 1)


def weight_to_last(rank: int) -> tuple[int, ...]:
    """[out, in, *kernel] -> [*kernel, in, out]"""
    return (*range(2, rank), 1, 0)


def _converted(builder: Builder, value: Value, args: tuple[str, ...], result: str) -> Value | None:
    """The op in the other layout, between transposes. `args` and `result` say which are data, which weight."""
    op = value.op
    if op.layout != "channels_first" or _is_narrow(value, args, result):  # type: ignore[attr-defined]
        return None
    order = {"data": data_to_last, "weight": weight_to_last}
    moved = [
        Node(builder, a).transpose(order[kind](len(a.shape))).value for a, kind in zip(value.args, args, strict=True)
    ]
    made = builder.emit(replace(op, layout="channels_last"), *moved)  # type: ignore[type-var]
    return builder.emit(Transpose(inverse(order[result](len(value.shape)))), made)


def _is_narrow(value: Value, args: tuple[str, ...], result: str) -> bool:
    """Whether no channels, read or made, fill a vector, or those that are made fill it worse than pixels do."""
    operands = [a for a, kind in zip(value.args, args, strict=True) if kind == "data"]
    made = [value] if result == "data" else []
    if all(_is_few(v.shape[1]) for v in (*operands, *made)):
        return True
    return any(_is_few(v.shape[1]) and _fills_better(v.shape[-1], v.shape[1]) for v in made)


def _is_few(channels: Dim) -> bool:
    return isinstance(channels, int) and channels < NARROW


def _fills_better(pixels: Dim, channels: Dim) -> bool:
    """Whether rows of so many pixels fill vectors better than a few channels."""
    return not isinstance(pixels, int) or symbolic.less(channels * symbolic.align(pixels, NARROW), pixels * NARROW) is True


def convolution(builder: Builder, value: Value) -> Value | None:
    """convolution(x, w) -> transpose(convolution(transpose(x), transpose(w)))"""
    return _converted(builder, value, ("data", "weight"), "data")


def weight_gradient(builder: Builder, value: Value) -> Value | None:
    """the same for the gradient of the weights, whose result is weights"""
    return _converted(builder, value, ("data", "data"), "weight")


def pool(builder: Builder, value: Value) -> Value | None:
    """the same for pools, all of whose operands are data"""
    return _converted(builder, value, ("data",) * len(value.args), "data")


convolution.ops = (Convolution, ConvolutionTranspose)  # type: ignore[attr-defined]
weight_gradient.ops = (ConvolutionWeightGradient,)  # type: ignore[attr-defined]
pool.ops = tuple(k for k in Op.registry.values() if issubclass(k, Pool))  # type: ignore[attr-defined]

CONVOLUTION_RULES: tuple[Rule, ...] = (convolution, weight_gradient)
POOL_RULES: tuple[Rule, ...] = (pool,)
