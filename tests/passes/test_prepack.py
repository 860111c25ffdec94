"""Constant weights are stored in blocks; the elementwise ops that follow stay with the product."""

import numpy as np
import pytest

import ingot
from ingot.compiler.passes.invariants import Invariants
from ingot.compiler.passes.motion import Motion
from ingot.compiler.passes.prepack import Prepack
from ingot.frontends.dsl.functions import trace
from tests.passes.support import same_meaning

generator = np.random.default_rng(5)
WEIGHT = generator.normal(size=(64, 128))
BIAS = generator.normal(size=128)


def names(graph):
    return [v.op.name for v in graph.body]


def contraction(graph):
    return next(v for v in graph.body if v.op.name == "contract")


@pytest.mark.parametrize("rows", ["n", 1, 40])
def test_weights_are_cut_into_blocks(rows):
    graph = trace(lambda x: x @ WEIGHT, [ingot.f64[rows, 64]]).graph
    result = Prepack()(graph)
    blocks = contraction(result).args[1].args[0].shape
    assert blocks == ((4, 64, 32) if rows == 1 else (16, 64, 8))
    same_meaning(graph, result, 1e-12)


@pytest.mark.parametrize("columns", [67, 127])
def test_the_last_block_is_filled_up(columns):
    graph = trace(lambda x: x @ WEIGHT[:, :columns], [ingot.f64["n", 64]]).graph
    result = Prepack()(graph)
    assert contraction(result).args[1].args[0].shape == (-(-columns // 8), 64, 8)
    same_meaning(graph, result, 1e-12)


@pytest.mark.parametrize("rows", [1, 2, 13, 40])
@pytest.mark.parametrize("columns", [64, 67, 127])
def test_blocks_give_the_bits_of_plain_weights(rows, columns):
    """Cutting moves values and changes no sum, and nothing is read beyond the last column."""
    weight = generator.normal(size=(70, columns)).astype(np.float32)
    x = generator.normal(size=(rows, 70)).astype(np.float32)
    blocked = ingot.compile(lambda x: x @ weight, ingot.f32[rows, 70], cache=False)
    plain = ingot.compile(lambda x, w: x @ w, ingot.f32[rows, 70], ingot.f32[70, columns], cache=False)
    np.testing.assert_array_equal(blocked(x), plain(x, weight))


def test_what_follows_stays_in_the_kernel_of_the_product():
    weight, bias = WEIGHT.astype(np.float32), BIAS.astype(np.float32)
    compiled = ingot.compile(lambda x: (x @ weight + bias).tanh(), ingot.f32[40, 64], cache=False)
    assert len(compiled.profile(np.ones((40, 64), np.float32), repeat=1).kernels) == 1


def test_transposed_weights_too():
    graph = Motion()(trace(lambda x: x @ x._coerce(WEIGHT.T.copy()).T, [ingot.f64["n", 64]]).graph)
    result = Prepack()(graph)
    assert len(contraction(result).args[1].args[0].shape) == 3
    same_meaning(graph, result, 1e-12)


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (lambda x, w: x @ w, (ingot.f64["n", 64], ingot.f64[64, 128])),  # not constant
        (lambda x: x @ WEIGHT[:, :8], (ingot.f64["n", 64],)),  # too narrow
        (lambda x: x @ WEIGHT[:8, :16], (ingot.f64["n", 8],)),  # too small
    ],
)
def test_what_does_not_pay_is_left(function, types):
    graph = trace(function, types).graph
    assert names(Prepack()(graph)) == names(graph)


def test_weights_captured_by_a_loop():
    def model(h, xs, w):
        return ingot.scan(lambda c, x: ((c @ w + x).tanh(), c), h, xs)

    graph = trace(model, [ingot.f64[3, 64], ingot.f64["t", 3, 64], ingot.f64[64, 64]]).graph
    result = Prepack()(graph)
    (body,) = next(v.op for v in result.body if v.op.regions).regions
    assert "block" in names(body)
    moved = Invariants()(result)
    (body,) = next(v.op for v in moved.body if v.op.regions).regions
    assert "block" in names(moved)
    assert "unblock" in names(body)
    same_meaning(graph, result, 1e-12)
