"""Composite ops become what they are made of, everywhere, with the same meaning."""

import pytest

import ingot
from ingot.compiler.ops.base import Op
from ingot.compiler.passes.decompose import Decompose
from ingot.frontends.dsl.functions import trace
from tests.passes.support import graph_of, same_meaning


def composites(graph):
    return [v.op.name for v in graph.body if type(v.op).way_down() == "decompose"]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "relu", "gelu", "silu", "selu", "hard_swish"])
def test_composite_disappears(name):
    graph = trace(lambda x: getattr(x, name)(), [ingot.f64["n", 4]]).graph
    result = Decompose()(graph)
    assert composites(graph)
    assert not composites(result)
    same_meaning(graph, result, 1e-12)


def test_several_results_are_taken_apart():
    """An op with several results that decomposes gives each `get` its part."""
    graph = trace(
        ingot.custom_gradient(lambda a: (a.sin(), a.cos()), lambda xs, ys, gs: gs[0]), [ingot.f64[3]]
    ).graph
    result = Decompose()(graph)
    assert {v.op.name for v in result.body} == {"sin", "cos"}
    same_meaning(graph, result)


def test_regions_are_decomposed():
    def body(carry, x):
        return (carry + x).softmax(), carry

    graph = trace(lambda c, xs: ingot.scan(body, c, xs), [ingot.f64[3], ingot.f64[4, 3]]).graph
    result = Decompose()(graph)
    (region,) = next(v.op for v in result.body if v.op.regions).regions
    assert not composites(region)
    same_meaning(graph, result, 1e-12)


def test_what_is_kept_stays_whole():
    graph = trace(lambda x: x.softmax(), [ingot.f64[2, 3]]).graph
    assert composites(Decompose(frozenset({"softmax"}))(graph)) == ["softmax"]


def test_sources_follow():
    graph = trace(lambda x: x.softmax(), [ingot.f64[2, 3]]).graph
    assert all(v.source and v.source.file == "test_decompose.py" for v in Decompose()(graph).body)


def test_every_composite_op_can_be_decomposed():
    kinds = [k for k in Op.registry.values() if k.way_down() == "decompose"]
    assert len(kinds) > 20


def test_graph_without_composites_is_untouched():
    graph = graph_of("graph g(%x: f32[2] argument) {\n %y: f32[2] = neg(%x)\n return %y as output\n}")
    assert Decompose()(graph) is graph
