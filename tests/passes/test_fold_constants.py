"""What depends on constants only is computed when the program is made."""

import numpy as np

import ingot
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.passes.fold_constants import split_constants
from ingot.frontends.dsl.functions import trace

WEIGHT = np.arange(40.0).reshape(5, 8)


def split(function, *types, budget=1000):
    graph = trace(function, types).graph
    return graph, split_constants(graph, budget)


def run_both(graph, parts, x):
    expected = run_graph(graph, {"x": x})
    folded = (
        dict(zip(parts.prologue.output_names, run_graph(parts.prologue, {}), strict=True)) if parts.prologue else {}
    )
    given = {n: folded[n] for n in parts.main.input_names if n in folded}
    found = run_graph(parts.main, {"x": x, **given})
    for want, have in zip(expected, found, strict=True):
        np.testing.assert_array_equal(want, have)


def test_arithmetic_on_weights_moves_to_the_prologue():
    graph, parts = split(lambda x: x @ (x._coerce(WEIGHT) * 2.0 + 1.0), ingot.f64["n", 5])
    assert [v.op.name for v in parts.main.body] == ["contract"]
    assert parts.prologue is not None
    run_both(graph, parts, np.ones((3, 5)))


def test_nothing_to_fold():
    _, parts = split(lambda x: x @ WEIGHT, ingot.f64["n", 5])
    assert parts.prologue is None


def test_budget_stops_growth_and_says_so():
    graph, parts = split(
        lambda x: x + (x._coerce(WEIGHT).reshape(5, 8, 1).broadcast_to((5, 8, 100)) * 1.0),
        ingot.f64[5, 8, 100],
        budget=100,
    )
    assert any("over the budget" in reason for reason in parts.reasons)
    run_both(graph, parts, np.ones((5, 8, 100)))


def test_a_large_value_between_folded_ones_is_folded_too():
    """Scaling a weight stretches the scale to the weight's size, and leaves no more than the weight."""

    def scaled(x):
        weight = x._coerce(WEIGHT)
        return x @ (weight * x._coerce(np.arange(8.0)).broadcast_to((5, 8)))

    graph, parts = split(scaled, ingot.f64["n", 5], budget=10)
    assert [v.op.name for v in parts.main.body] == ["contract"]
    assert not parts.reasons
    run_both(graph, parts, np.ones((3, 5)))


def test_a_bias_is_not_repeated_for_every_row():
    """Neither stretched nor stretched and reshaped; what is small stays the constant that it is."""
    bias = np.arange(8.0)
    graph, parts = split(
        lambda x: x.reshape(3, 2, 4) + (x._coerce(bias) * 2.0).broadcast_to((3, 8)).reshape(3, 2, 4), ingot.f64[3, 8]
    )
    assert [v.shape for v in parts.main.inputs_with("constant")] == [(8,)]
    assert any("only repeats" in reason for reason in parts.reasons)
    run_both(graph, parts, np.ones((3, 8)))


def test_literals_stay_in_the_code():
    _, parts = split(lambda x: x * 2.0, ingot.f64["n", 5])
    assert parts.prologue is None
    assert not parts.main.inputs_with("constant")


def test_what_a_dim_decides_is_not_folded():
    """The value of a symbolic dim is static in type only."""
    graph, parts = split(lambda x: x.sum() / x.shape[0], ingot.f64["n", 5])
    run_both(graph, parts, np.ones((3, 5)))


def test_a_stretched_constant_is_read_as_it_was():
    def biased(x):
        return x + (x._coerce(np.arange(8.0)) * 2.0).broadcast_to((5, 8))

    graph, parts = split(biased, ingot.f64[5, 8])
    assert [v.shape for v in parts.main.inputs_with("constant")] == [(8,)]
    run_both(graph, parts, np.ones((5, 8)))
