"""Scans are merged, and sums leave loops."""

import numpy as np

import ingot
from ingot.compiler.ops.control import Scan
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.scans import Scans
from ingot.compiler.passes.simplify import Simplify
from ingot.frontends.dsl.functions import trace
from tests.passes.support import same_meaning


def recurrent(xs, w, u, b):
    def step(h, x):
        h = (x @ w + h @ u + b).tanh()
        return h, h

    final, hidden = ingot.scan(step, np.zeros((2, 4)), xs)
    return (hidden * hidden).sum() + final.sum()


TYPES = (ingot.f64["t", 2, 3], ingot.f64[3, 4], ingot.f64[4, 4], ingot.f64[4])


def scans(graph):
    return [v.op for v in graph.body if isinstance(v.op, Scan)]


def gradient_graph():
    return trace(ingot.value_and_grad(recurrent, wrt=(0, 1, 2, 3)).function, TYPES).graph


def test_the_forward_scan_runs_once():
    graph = gradient_graph()
    assert len(scans(graph)) == 3
    result = Scans()(graph)
    assert len(scans(result)) == 2
    same_meaning(graph, result, 1e-10)


def test_weight_gradients_leave_the_loop():
    """Weights and bias: the backward loop carries the cotangent of h only."""
    graph = Simplify()(Decompose()(Scans()(gradient_graph())))
    (backward,) = [s for s in scans(graph) if s.reverse]
    assert backward.carried == 1
    assert "contract" in [v.op.name for v in graph.body]


def test_a_carry_that_is_also_read_stays():
    def running(xs):
        def step(total, x):
            total = total + x.sum(axis=0)
            return total, total * 2.0

        return ingot.scan(step, np.zeros(3), xs)

    graph = trace(running, [ingot.f64["t", 2, 3]]).graph
    result = Scans()(graph)
    assert scans(result)[0].carried == 1
    same_meaning(graph, result, 1e-12)


def test_a_plain_sum_leaves_the_loop():
    def total(xs, ys):
        return ingot.scan(lambda c, p: (c + p[0].T @ p[1], None), np.zeros((3, 4)), (xs, ys))[0]

    graph = trace(total, [ingot.f64["t", 2, 3], ingot.f64["t", 2, 4]]).graph
    result = Scans()(graph)
    assert not scans(result) or scans(result)[0].carried == 0
    same_meaning(graph, result, 1e-12)
