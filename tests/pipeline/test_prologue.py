"""Constants of a program: parts of the prologue that share nothing run apart, like ones are kept once, and all of it is
what the prologue as a whole computes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.compiler import pipeline
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.text.graph import print_graph
from ingot.compiler.options import Options
from ingot.compiler.passes.fold_constants import split_constants
from ingot.compiler.prologue import Prologue
from ingot.runtime import storage
from ingot.runtime.storage import is_aligned
from tests.pipeline.support import graph_of, network_graph


def convolutions() -> Graph:
    """Like layers, one of another size, a weight that two layers share, and a mask of nothing but literals."""
    nn.seed(0)
    layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm(32)) for _ in range(4)]
    first, last = nn.Conv2d(3, 32, 5), nn.Linear(32, 32)

    def forward(x):
        x = first(x)
        for layer in layers:
            x = layer(x).relu()
        return last(last(x.mean((2, 3)))) @ x.full((32, 32), 1.0).tril()

    for module in (*layers, first, last):
        module.eval()
    return graph_of(forward, ingot.f32["batch", 3, 16, 16])


def folding(graph: Graph) -> Graph:
    found = split_constants(pipeline.run_passes(graph, Options()), 1 << 20).prologue
    assert found is not None
    return found


@pytest.mark.parametrize("make", [convolutions, network_graph])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_parts_compute_what_the_whole_does(make, workers, monkeypatch):
    monkeypatch.setattr(storage, "_WORTH_A_THREAD", 1)
    graph = make()
    whole = folding(graph)
    parts = Prologue.from_bytes(Prologue.of(whole).to_bytes())
    found = parts.constants([*whole.output_names, *graph.constants], graph.constants, workers)
    expected = dict(zip(whole.output_names, run_graph(whole, {}), strict=True)) | dict(graph.constants)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert is_aligned(found[name])
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_like_layers_are_one_computation():
    parts = Prologue.of(folding(convolutions())).parts
    alike = [part for part in parts if "winograd_weight" in print_graph(part.graph)]
    assert len(alike) == 4
    assert len({part.graph for part in alike}) == 1
    assert len({part.inputs for part in alike}) == 4
    texts, listed = json.loads(Prologue(tuple(alike)).to_bytes())
    assert (len(texts), len(listed)) == (1, 4)


def test_what_shares_a_value_is_one_part():
    weight = np.ones((64, 64), np.float32)

    def forward(x):
        shared = x.wrap_array(weight).exp()
        return (x @ shared) + (x @ shared.transpose(1, 0))

    parts = Prologue.of(folding(graph_of(forward, ingot.f32[4, 64]))).parts
    assert [len(part.outputs) for part in parts] == [2]


def test_an_aligned_constant_is_not_copied():
    whole = np.zeros(1 << 16, np.float32)
    start = -whole.ctypes.data % 64 // 4
    aligned, shifted = whole[start : start + 64], whole[start + 1 : start + 65]
    shifted[...] = np.arange(64)
    found = Prologue().constants(["aligned", "shifted"], {"aligned": aligned, "shifted": shifted})
    assert found["aligned"] is aligned
    assert is_aligned(found["shifted"])
    np.testing.assert_array_equal(found["shifted"], np.arange(64))


def test_a_failure_in_a_thread_is_a_failure(monkeypatch):
    monkeypatch.setattr(storage, "_WORTH_A_THREAD", 1)
    graph = convolutions()
    parts = Prologue.of(folding(graph))
    given = {name: array[:1] for name, array in graph.constants.items()}
    with pytest.raises(InterpreterError, match="x0"):
        parts.constants(["folded0"], given, 2)
