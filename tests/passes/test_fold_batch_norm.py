"""Constants per channel go into the weights of the product before them."""

import numpy as np
import pytest

import ingot
from ingot.compiler.ops.convolution import convolve
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.fold_batch_norm import RULES, FoldBatchNorm
from ingot.frontends.dsl.functions import trace
from tests.passes.support import inputs_for, same_meaning

generator = np.random.default_rng(3)
WEIGHT = generator.normal(size=(6, 2, 3, 3))
MEAN, FACTOR, BIAS = (generator.uniform(0.5, 2, size=(1, 6, 1, 1)) for _ in range(3))


def normalised(x):
    y = convolve(x, x._coerce(WEIGHT), padding=1)
    return (y - MEAN) * FACTOR + BIAS


def on_activations(graph, symbol="n"):
    """Ops whose result has the symbolic batch: what is left to do at run time."""
    return [v.op.name for v in graph.body if any(str(d) == symbol for d in v.shape) and v.op.name != "broadcast"]


def test_a_norm_after_a_convolution_is_one_addition():
    graph = Decompose()(trace(normalised, [ingot.f64["n", 2, 5, 5]]).graph)
    result = FoldBatchNorm()(graph)
    assert on_activations(result) in (["convolution", "add"], ["convolution", "sub"])
    same_meaning(graph, result, 1e-10)


def test_a_scale_after_a_matrix_product_goes_into_the_matrix():
    weight, scale = generator.normal(size=(5, 4)), generator.uniform(1, 2, 4)
    big = np.tile(weight, (1, 10))
    graph = trace(lambda x: (x @ big) * np.tile(scale, 10), [ingot.f64["n", 5]]).graph
    result = FoldBatchNorm()(graph)
    assert on_activations(result) == ["contract"]
    same_meaning(graph, result, 1e-10)


@pytest.mark.parametrize(
    "gate", [lambda y: y * (y * 0.5).erf(), lambda y: y.gelu(), lambda y: y.gelu(approximate="tanh")]
)
def test_a_product_that_is_read_twice_is_computed_once(gate):
    weight, bias = generator.normal(size=(5, 40)), generator.normal(size=40)
    graph = Decompose()(trace(lambda x: gate(x @ weight + bias), [ingot.f64["n", 5]]).graph)
    result = FoldBatchNorm()(graph)
    assert on_activations(result).count("contract") == 1
    same_meaning(graph, result, 1e-10)


def test_a_product_that_is_also_a_result_is_computed_once():
    weight = generator.normal(size=(5, 40))

    def both(x):
        y = x @ weight
        return y, y * 2.0

    graph = trace(both, [ingot.f64["n", 5]]).graph
    assert on_activations(FoldBatchNorm()(graph)) == ["contract", "mul"]


def test_what_is_not_constant_stays():
    graph = trace(
        lambda x, s: convolve(x, x._coerce(WEIGHT)) * s.reshape(1, 6, 1, 1), [ingot.f64["n", 2, 5, 5], ingot.f64[6]]
    ).graph
    assert on_activations(FoldBatchNorm()(graph)) == ["convolution", "mul"]


def test_constants_that_vary_over_space_stay():
    image = generator.normal(size=(1, 1, 3, 3))
    graph = trace(lambda x: convolve(x, x._coerce(WEIGHT)) * image, [ingot.f64["n", 2, 5, 5]]).graph
    assert on_activations(FoldBatchNorm()(graph)) == ["convolution", "mul"]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_every_rule_states_its_algebra(rule):
    assert "->" in rule.__doc__


def test_inputs_of_cases_are_positive():
    """same_meaning would hide a lost sign if inputs were symmetric and the op even."""
    graph = trace(normalised, [ingot.f64["n", 2, 5, 5]]).graph
    assert all((a > 0).all() for n, a in inputs_for(graph).items() if n == "x")
