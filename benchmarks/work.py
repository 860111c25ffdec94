"""How much a model must compute and move at least, counted on its graph.

Only multiplications that are summed count (matrix products, convolutions, attention), two operations each: the
usual convention, under which Winograd's algorithm can pass 100 % of the peak. Training counts a product once more
for each operand whose gradient is wanted. Bytes are those of weights, inputs and outputs, each once; of a table
that is only looked up in, just the rows that are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ingot
from benchmarks.probe import Machine
from ingot.compiler.ir.graph import Graph, Value, input_of, users_of
from ingot.compiler.ops.attention import Attention
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.control import Scan
from ingot.compiler.ops.convolution import Convolution, ConvolutionTranspose
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.windows import unpack_weight


@dataclass(frozen=True)
class Work:
    operations: float
    read: float  # bytes
    written: float = 0.0

    def limit(self, machine: Machine, threads: int = 1) -> tuple[float, str]:
        """The least seconds that the machine needs for it, and what sets them: for memory, the probe that is the most of
        it."""
        compute = self.operations / (machine.fma * 1e9 * threads)
        moving = machine.stream_seconds(self.read, self.written)
        if compute >= moving:
            return compute, "FMA"
        level = machine.level(self.read + self.written)
        return moving, f"{level.where} {'copy' if 2 * self.written >= self.read else 'read'}"


def of_inference(model: Any, *types: Any) -> Work:
    return _inference(ingot.trace(model.with_arrays(lambda _, array: array).eval(), types).graph)


def of_training(model: Any, slots: int, *types: Any) -> Work:
    """A step: forward, backward, and one pass over parameters and `slots` arrays like them that reads and writes."""
    graph = ingot.trace(model, types).graph
    weights = _size(graph.inputs_with("constant"))
    inputs = _size(graph.inputs_with("argument"))
    return Work(_operations(graph, True), (1 + slots) * weights + inputs, (1 + slots) * weights)


def _inference(graph: Graph) -> Work:
    users = users_of(graph)
    weights = sum(_read_of(value, users[value]) for value in graph.inputs_with("constant"))
    return Work(_operations(graph, False), weights + _size(graph.inputs_with("argument")), _size(graph.outputs))


def _size(values: tuple[Value, ...]) -> float:
    return float(sum(_number(value.tensor.bytes) for value in values))


def _read_of(weight: Value, users: list[Value]) -> float:
    rows = [user for user in users if isinstance(user.op, Gather) and user.args[0] is weight]
    if rows and len(rows) == len(users):
        return _size(tuple(rows))
    return _number(weight.tensor.bytes)


def _number(dim: Any) -> float:
    assert isinstance(dim, int), "work is counted for known sizes"
    return float(dim)


def _elements(value: Value) -> float:
    return math.prod(map(_number, value.shape))


def _operations(graph: Graph, training: bool, repeated: float = 1.0, trained: frozenset[Value] | None = None) -> float:
    if trained is None:
        trained = frozenset(v for v in graph.inputs if input_of(v).role == "constant" and v.tensor.dtype.is_float)
    wanted = set(trained)
    total = 0.0
    for value in graph.body:
        if any(a in wanted for a in value.args):
            wanted.add(value)
        gradients = sum(a in wanted for a in value.args[:2]) if training else 0
        total += repeated * _products(value) * (1 + gradients)
        if isinstance(value.op, Scan):
            inside = frozenset(value.op.body.inputs)
            total += _operations(value.op.body, training, repeated * _number(value.op.length), inside)
    return total


def _products(value: Value) -> float:
    op, args = value.op, value.args
    match op:
        case Contract():
            extents = dict(zip(op.left, args[0].shape, strict=True))
            return 2 * _elements(value) * math.prod(_number(extents[letter]) for letter in op.summed)
        case Convolution() | ConvolutionTranspose():
            _, channels, taps = unpack_weight(op.layout, args[1].shape)
            spread = value if isinstance(op, Convolution) else args[0]
            return 2 * _elements(spread) * _number(channels) * math.prod(map(_number, taps))
        case Attention():
            return 2 * _elements(args[0]) * _number(args[1].shape[2]) * 2
    return 0.0
