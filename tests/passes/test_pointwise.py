"""Convolutions with one tap are matrix products."""

import pytest

from ingot.compiler.ir.graph import Builder, Graph
from ingot.compiler.ir.types import f64
from ingot.compiler.ops.convolution import Convolution, ConvolutionWeightGradient
from ingot.compiler.passes.pointwise import Pointwise
from tests.passes.support import same_meaning

PLAIN = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "layout": "channels_last"}


def graph_of(op, *types):
    builder = Builder()
    inputs = [builder.input(f"x{n}", t) for n, t in enumerate(types)]
    return Graph("g", builder.inputs, (builder.emit(op, *inputs),))


def names(graph):
    return [v.op.name for v in graph.body]


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_single_tap_is_a_product(strides, batch):
    graph = graph_of(Convolution(**{**PLAIN, "strides": strides}), f64[batch, 5, 6, 3], f64[1, 1, 3, 4])
    made = Pointwise()(graph)
    assert "convolution" not in names(made)
    assert "contract" in names(made)
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_other_numbers_of_dims(rank):
    fields = {**PLAIN, "strides": (2,) * rank, "padding": ((0, 0),) * rank, "dilation": (1,) * rank}
    graph = graph_of(Convolution(**fields), f64[2, *(5,) * rank, 3], f64[*(1,) * rank, 3, 4])
    made = Pointwise()(graph)
    assert "contract" in names(made)
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_the_gradient_of_the_weight_is_a_product(strides):
    fields = {**PLAIN, "strides": strides, "taps": (1, 1)}
    places = [-(-5 // strides[0]), -(-6 // strides[1])]
    graph = graph_of(ConvolutionWeightGradient(**fields), f64[2, 5, 6, 3], f64[2, *places, 4])
    made = Pointwise()(graph)
    assert "contract" in names(made)
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize(
    ("fields", "x", "w"),
    [
        ({}, f64[2, 5, 6, 3], f64[3, 1, 3, 4]),
        ({"padding": ((1, 0), (0, 0))}, f64[2, 5, 6, 3], f64[1, 1, 3, 4]),
        ({"groups": 2}, f64[2, 5, 6, 4], f64[1, 1, 2, 4]),
        ({"layout": "channels_first"}, f64[2, 3, 5, 6], f64[4, 3, 1, 1]),
    ],
    ids=["taps", "padding", "groups", "channels first"],
)
def test_others_stay_as_they_are(fields, x, w):
    assert names(Pointwise()(graph_of(Convolution(**{**PLAIN, **fields}), x, w))) == ["convolution"]
