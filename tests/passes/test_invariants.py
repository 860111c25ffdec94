"""What a loop does not change is computed before it."""

import ingot
from ingot.compiler.passes.invariants import Invariants
from ingot.compiler.passes.prepack import Prepack
from ingot.frontends.dsl.functions import trace
from tests.passes.support import same_meaning


def body_of(graph):
    return next(v.op for v in graph.body if v.op.regions).regions[0]


def names(graph):
    return [v.op.name for v in graph.body]


def test_rearranging_a_captured_weight_leaves_the_loop():
    """Tracing computes outside what uses outer tensors only; passes work inside, as prepack does here."""

    def model(h, xs, w):
        return ingot.scan(lambda c, x: ((c @ w + x).tanh(), c), h, xs)

    graph = trace(model, [ingot.f64[3, 64], ingot.f64["t", 3, 64], ingot.f64[64, 64]]).graph
    packed = Prepack()(graph)
    assert "block" in names(body_of(packed))
    result = Invariants()(packed)
    assert "block" not in names(body_of(result))
    assert "block" in names(result)
    same_meaning(graph, result, 1e-12)


def test_a_loop_without_invariants_is_unchanged():
    graph = trace(lambda c, xs: ingot.scan(lambda a, x: (a * x, a), c, xs), [ingot.f64[3], ingot.f64["t", 3]]).graph
    result = Invariants()(graph)
    assert names(body_of(result)) == names(body_of(graph))
    same_meaning(graph, result)


def test_nested_loops():
    def inner(carry, x, w):
        return ingot.scan(lambda a, y: (a + y * w, a), carry, x)[0]

    def outer(c, xs, w):
        return ingot.scan(lambda a, x: (inner(a, x, w), None), c, xs)[0]

    graph = trace(outer, [ingot.f64[3], ingot.f64[4, 5, 3], ingot.f64[3]]).graph
    same_meaning(graph, Invariants()(graph), 1e-12)
