"""Constant weights are stored in blocks; the elementwise ops that follow stay with the product."""

from dataclasses import replace

import numpy as np
import pytest

import ingot
from ingot.compiler.ops.convolution import convolve
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.invariants import Invariants
from ingot.compiler.passes.motion import Motion
from ingot.compiler.passes.prepack import Prepack
from ingot.compiler.target import Target
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
    assert blocks == (16, 64, 8)
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


@pytest.mark.parametrize("columns", [3, 20])
def test_a_transposed_weight_of_one_block_is_turned(columns):
    """Nothing is left to arrange at run time."""
    stored = WEIGHT[:, :columns].T.copy()
    graph = Motion()(trace(lambda x: x @ x._coerce(stored).T, [ingot.f64[1, 64]]).graph)
    assert contraction(graph).args[1].shape == (columns, 64)
    result = Prepack()(graph)
    assert contraction(result).args[1].shape == (64, columns)
    same_meaning(graph, result, 1e-12)
    weight = stored.astype(np.float32)
    compiled = ingot.compile(lambda x: x @ x._coerce(weight).T, ingot.f32[1, 64], cache=False)
    x = generator.normal(size=(1, 64)).astype(np.float32)
    np.testing.assert_allclose(compiled(x), x @ weight.T, 1e-5, 1e-5)
    decided = [placed.decisions.get("pack_right", False) for placed in compiled.compiled.assembly.kernels]
    assert not any(decided)


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


def convolution_graph(channels, outputs, activation=lambda y: y.tanh(), **fields):
    weight = generator.normal(size=(3, 3, channels, outputs))
    bias = generator.normal(size=outputs)

    def model(x):
        plain = {"strides": 2, "padding": 1, "layout": "channels_last", **fields}
        return activation(convolve(x, x._coerce(weight), **plain) + bias)

    return trace(model, [ingot.f64["n", 9, 8, channels * fields.get("groups", 1)]]).graph


def test_weights_of_convolutions_are_cut_into_blocks():
    graph = convolution_graph(12, 48)
    result = Prepack()(graph)
    (blocked,) = [v for v in result.body if v.op.name == "blocked_convolution"]
    assert blocked.args[1].shape == (6, 3, 3, 12, 8)
    assert names(result)[-1] == "reshape"
    same_meaning(graph, result, 1e-12)


@pytest.mark.parametrize("fields", [{"groups": 2}, {"layout": "channels_first"}])
def test_other_convolutions_keep_their_weights(fields):
    if "layout" in fields:
        weight = generator.normal(size=(48, 12, 3, 3))
        graph = trace(lambda x: convolve(x, x._coerce(weight)), [ingot.f64[1, 12, 9, 9]]).graph
    else:
        graph = convolution_graph(12, 48, **fields)
    assert "blocked_convolution" not in names(Prepack()(graph))


def test_blocks_are_as_wide_as_the_machine():
    graph = convolution_graph(12, 48)
    packed = Prepack().configured(Options(), Target.named("x86-64-v4"))(graph)
    (blocked,) = [v for v in packed.body if v.op.name == "blocked_convolution"]
    assert blocked.args[1].shape[-1] == 16


def test_blocks_of_convolutions_are_wider_where_narrow_tiles_wait_for_loads():
    graph = convolution_graph(12, 64)
    for multiply_adds, width in ((1, 16), (2, 32)):
        target = replace(Target.named("x86-64-v4"), multiply_adds=multiply_adds)
        packed = Prepack().configured(Options(), target)(graph)
        (blocked,) = [v for v in packed.body if v.op.name == "blocked_convolution"]
        assert blocked.args[1].shape[-1] == width


def test_a_choice_between_products_keeps_their_blocks():
    """relu6 is two choices, one inside the other: both belong to the product."""
    graph = convolution_graph(12, 48, activation=lambda y: y.clip(0.0, 6.0))
    result = Prepack()(Decompose()(graph))
    assert names(result)[-1] == "reshape"
    same_meaning(graph, result, 1e-12)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("columns", [128, 120, 1000])
def test_blocks_are_as_wide_as_the_tile_of_many_rows(rows, columns):
    weight = generator.normal(size=(64, columns)).astype(np.float32)
    graph = trace(lambda x: x @ x._coerce(weight), [ingot.f32[rows, 64]]).graph
    assert contraction(Prepack()(graph)).args[1].args[0].shape[-1] == 16
