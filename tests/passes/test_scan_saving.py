"""A backward scan reads the products of the forward one."""

import numpy as np

import ingot
from ingot.compiler.passes.scans import Scans
from ingot.frontends.dsl.functions import trace
from tests.passes.support import same_meaning
from tests.passes.test_scans import gradient_graph, scans


def products(scan):
    return [v.op.name for v in scan.body.body if v.op.name in ("contract", "matmul")]


def test_products_of_the_forward_scan_are_not_computed_again():
    """Forward: x @ w and h @ u. Backward: the cotangents of x and h only."""
    graph = Scans()(gradient_graph())
    forward, backward = scans(graph)
    assert not forward.reverse
    assert len(products(forward)) == 2
    assert len(products(backward)) == 2
    same_meaning(gradient_graph(), graph, 1e-10)


def test_what_is_stacked_anyway_is_not_stacked_twice():
    """The value after the products is h itself here: the forward scan stacks h and what h was before."""
    forward, _ = scans(Scans()(gradient_graph()))
    assert len(forward.body.outputs) == 3
    assert len(set(forward.body.outputs)) == 2


def gated(xs, u):
    def step(h, x):
        gates = x + h @ u
        h = gates[:, :4].sigmoid() * gates[:, 4:].tanh()
        return h, h

    return (ingot.scan(step, np.zeros((2, 4)), xs)[1] ** 2.0).sum()


def test_what_is_saved_is_the_value_after_its_additions():
    """One stack of the sums that the gates read, not of the product."""
    types = (ingot.f64["t", 2, 8], ingot.f64[4, 8])
    graph = trace(ingot.value_and_grad(gated, wrt=(0, 1)).function, types).graph
    result = Scans()(graph)
    forward, backward = scans(result)
    assert [v.op.name for v in forward.body.outputs if v.shape == (2, 8)] == ["add"]
    assert len(products(backward)) == 1  # of the cotangent of h
    same_meaning(graph, result, 1e-10)
