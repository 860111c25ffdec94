"""Convolutions and pools become channels-last; transposes between layers cancel."""

import pytest

import ingot
from ingot.compiler.ops.convolution import convolve, convolve_transpose
from ingot.compiler.ops.pooling import max_pool
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.layout import Layout
from ingot.compiler.passes.motion import Motion
from ingot.frontends.dsl.functions import trace
from tests.passes.support import same_meaning

IMAGE, WEIGHT = ingot.f64["n", 2, 6, 6], ingot.f64[8, 2, 3, 3]


def layouts(graph):
    return [v.op.layout for v in graph.body if hasattr(v.op, "layout")]


@pytest.mark.parametrize("operation", [convolve, lambda x, w: convolve_transpose(x, w.transpose(1, 0, 2, 3))])
def test_convolutions_change(operation):
    graph = trace(operation, [IMAGE, WEIGHT]).graph
    result = Layout()(graph)
    assert layouts(graph) == ["channels_first"]
    assert layouts(result) == ["channels_last"]
    same_meaning(graph, result, 1e-12)


def test_gradients_change_too():
    types = [ingot.f64["n", 8, 6, 6], ingot.f64[8, 8, 3, 3]]
    graph = trace(ingot.grad(lambda x, w: (convolve(x, w, padding=1) ** 2).sum(), wrt=(0, 1)).function, types).graph
    result = Layout()(graph)
    assert set(layouts(result)) == {"channels_last"}
    same_meaning(graph, result, 1e-10)


def test_between_layers_no_transpose_is_left():
    def network(x, w, v):
        hidden = max_pool(convolve(x, w, padding=1).relu(), 2)
        return convolve(hidden, v, padding=1)

    graph = trace(network, [IMAGE, WEIGHT, ingot.f64[9, 8, 3, 3]]).graph
    result = Motion()(Decompose()(Layout()(graph)))
    assert set(layouts(result)) == {"channels_last"}
    # one for the image, one for each weight, one for the result
    assert [v.op.name for v in result.body].count("transpose") == 4
    same_meaning(graph, result, 1e-12)


def test_a_pool_alone_is_left_alone():
    graph = trace(lambda x: max_pool(x, 2), [IMAGE]).graph
    assert layouts(Layout()(graph)) == ["channels_first"]


def test_few_channels_stay_first():
    """Neither 1 nor 6 channels fill a vector; 6 and 16 do."""

    def network(x, w, v):
        return convolve(max_pool(convolve(x, w).relu(), 2), v)

    graph = trace(network, [ingot.f64["n", 1, 12, 12], ingot.f64[6, 1, 3, 3], ingot.f64[16, 6, 3, 3]]).graph
    result = Layout()(graph)
    assert layouts(result) == ["channels_first", "channels_first", "channels_last"]
    same_meaning(graph, result, 1e-12)


@pytest.mark.parametrize(("channels", "width", "layout"), [(2, 6, "channels_first"), (6, 6, "channels_last"),
                                                          (6, 14, "channels_first"), (8, 64, "channels_last")])  # fmt: skip
def test_few_channels_that_are_made_stay_first_where_pixels_fill_vectors(channels, width, layout):
    """An image as the result, and the gradient of a narrow layer; what is read may have any number of channels."""
    graph = trace(
        lambda x, w: convolve(x, w, padding=1), [ingot.f64["n", 8, 5, width], ingot.f64[channels, 8, 3, 3]]
    ).graph
    result = Layout()(graph)
    assert layouts(result) == [layout]
    same_meaning(graph, result, 1e-12)
    types = [ingot.f64["n", channels, 5, width], ingot.f64[8, channels, 3, 3]]
    graph = trace(ingot.grad(lambda x, w: (convolve(x, w, padding=1) ** 2).sum()).function, types).graph
    assert layouts(Layout()(graph)) == ["channels_last", layout]
