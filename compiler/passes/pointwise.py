"""Convolutions with a single tap are matrix products, and so are the gradients of their weights.

    convolution(x[n, y, x, c], w[1, 1, c, o])        ->  contract(x[n, y, x, c], w[c, o])
    convolution_weight_gradient(x, g[n, y, x, o])    ->  contract(x[n, y, x, c], g[n, y, x, o])

for channels last, one group and no padding; a stride picks the elements of x that are read. Everything that knows
contractions (blocked weights, merged axes, transposes as letters) then applies to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ops import movement, windows
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.convolution import Convolution, ConvolutionFamily, ConvolutionWeightGradient
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, Rule, rewrite

SPATIAL = "yxz"


@dataclass(frozen=True)
class Pointwise(Pass):
    name: ClassVar[str] = "pointwise"
    why_here: ClassVar[str] = "after norms are folded into the weights of convolutions"

    def __call__(self, graph: Graph) -> Graph:
        return in_regions(rewrite(graph, RULES), self)


def _is_pointwise(op: ConvolutionFamily, taps: tuple[Any, ...]) -> bool:
    plain = op.groups == 1 and op.layout == "channels_last"
    return plain and all(tap == 1 for tap in taps) and all(p == 0 for side in op.padding for p in side)


def _picked(builder: Builder, x: Value, strides: tuple[int, ...]) -> Any:
    """x at every stride-th place."""
    node: Any = Node(builder, x)
    for axis, stride in enumerate(strides):
        node = movement.part(node, 1 + axis, 0, node.shape[1 + axis], stride)
    return node


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


convolution.ops = (Convolution,)  # type: ignore[attr-defined]
weight_gradient.ops = (ConvolutionWeightGradient,)  # type: ignore[attr-defined]

RULES: tuple[Rule, ...] = (convolution, weight_gradient)
