"""Ops that bring their own loops: equal ones share a body; each keeps its name, its buffers and its scratch memory."""

from __future__ import annotations

import itertools

import numpy as np

from ingot.compiler.ir import loops, traverse
from ingot.compiler.ir.graph import Builder, Graph
from ingot.compiler.ir.types import f32, type_of
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.convolution import convolve
from ingot.compiler.ops.winograd import ERROR_BOUND
from ingot.compiler.options import Options
from ingot.compiler.pipeline import Compiled, compile_graph
from ingot.runtime.executable import Executable


def compiled(channels: list[int], activations: list[str], winograd: bool = True) -> Compiled:
    """3x3 convolutions one behind the other, large enough for Winograd's algorithm."""
    generator = np.random.default_rng(0)
    shapes = [(after, before, 3, 3) for before, after in itertools.pairwise(channels)]
    weights = [generator.standard_normal(s).astype(np.float32) / 32 for s in shapes]

    builder = Builder()
    x = Node(builder, builder.input("x", f32[1, channels[0], 28, 28]))
    for number, (weight, activation) in enumerate(zip(weights, activations, strict=True)):
        x = convolve(x, Node(builder, builder.input(f"w{number}", type_of(weight), "constant")), padding=1)
        x = getattr(x, activation)()
    graph = Graph("layers", builder.inputs, (x.value,), constants={f"w{n}": w for n, w in enumerate(weights)})
    return compile_graph(graph, Options(cache=False, winograd=winograd))


def functions_of(channels: list[int], activations: list[str]) -> list[loops.Function]:
    assembly = compiled(channels, activations).assembly
    assert assembly is not None
    found = [f for f in traverse.functions_of(assembly.entry) if f.name.startswith("winograd_convolution")]
    assert len(found) == len(activations)
    return found


def test_equal_layers_share_a_body():
    """Those in the middle: the first and the last read and write another order of axes."""
    _, first, second, _ = functions_of([64] * 5, ["relu"] * 4)
    assert first.body is second.body
    assert first.parameters == second.parameters
    assert first.name != second.name


def test_layers_that_differ_have_their_own():
    for channels, activations in (([64] * 5, ["relu", "relu", "tanh", "relu"]), ([64, 64, 64, 128, 64], ["relu"] * 4)):
        _, first, second, _ = functions_of(channels, activations)
        assert first.body is not second.body


def test_equal_layers_compute_with_their_own_weights():
    layers = [64] * 5, ["relu"] * 4
    x = np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype(np.float32)
    found = np.asarray(Executable(compiled(*layers).program)(x))
    wanted = np.asarray(Executable(compiled(*layers, winograd=False).program)(x))
    assert np.abs(found - wanted).max() <= ERROR_BOUND * (wanted.max() - wanted.min())
