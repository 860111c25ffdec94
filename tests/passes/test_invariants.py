"""What a loop does not change is computed before it, and what a branch makes of constants."""

import numpy as np

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
    scan = next(v for v in result.body if v.op.regions)
    assert len(scan.args) == len(body_of(result).inputs) == 3, "the weight as it was is no longer captured"
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


def test_rearranging_a_constant_leaves_the_branches(rng):
    """Either branch has a weight of its own: both are rearranged when the program is made."""
    u, v = (rng.standard_normal((64, 64)) for _ in range(2))

    def model(go, x):
        return ingot.cond(go, lambda a: a @ u, lambda a: (a @ v).tanh(), x)

    graph = trace(model, [ingot.boolean[()], ingot.f64[3, 64]]).graph
    result = Invariants()(Prepack()(graph))
    branch = next(value for value in result.body if value.op.regions)
    for region in branch.op.regions:
        assert "block" not in names(region)
        assert len(region.inputs) == len(branch.args) - 1 == 3  # x and two blocked weights, not the weights themselves
    assert names(result).count("block") == 2
    exe = ingot.compile(model, ingot.boolean[()], ingot.f64[3, 64])
    x = rng.standard_normal((3, 64))
    np.testing.assert_allclose(exe(np.array(True), x), x @ u, rtol=1e-12)
    np.testing.assert_allclose(exe(np.array(False), x), np.tanh(x @ v), rtol=1e-12)


def test_what_depends_on_arguments_stays_in_its_branch():
    def model(go, x):
        return ingot.cond(go, lambda a: a.sin() * 2.0, lambda a: a.cos(), x)

    graph = trace(model, [ingot.boolean[()], ingot.f64[3]]).graph
    result = Invariants()(graph)
    before, after = (next(v.op for v in g.body if v.op.regions) for g in (graph, result))
    assert [names(r) for r in after.regions] == [names(r) for r in before.regions]
    same_meaning(graph, result)
