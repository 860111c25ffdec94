"""Convolutions with one tap are matrix products."""

import numpy as np
import pytest

from ingot.compiler.ir.graph import Builder, Graph
from ingot.compiler.ir.types import f32, f64
from ingot.compiler.ops.convolution import Convolution, ConvolutionWeightGradient
from ingot.compiler.ops.structure import Transpose
from ingot.compiler.options import Options
from ingot.compiler.passes.pointwise import Pointwise
from ingot.compiler.target import Target
from tests.passes.support import same_meaning

PLAIN = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "layout": "channels_last"}


def graph_of(op, *types):
    builder = Builder()
    inputs = [builder.input(f"x{n}", t) for n, t in enumerate(types)]
    return Graph("g", builder.inputs, (builder.emit(op, *inputs),))


def names(graph):
    return [v.op.name for v in graph.body]


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_single_tap_is_a_product(strides, batch):
    graph = graph_of(Convolution(**{**PLAIN, "strides": strides}), f64[batch, 5, 6, 3], f64[1, 1, 3, 4])
    made = Pointwise()(graph)
    assert "convolution" not in names(made)
    assert "contract" in names(made)
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_other_numbers_of_dims(rank):
    fields = {**PLAIN, "strides": (2,) * rank, "padding": ((0, 0),) * rank, "dilation": (1,) * rank}
    graph = graph_of(Convolution(**fields), f64[2, *(5,) * rank, 3], f64[*(1,) * rank, 3, 4])
    made = Pointwise()(graph)
    assert "contract" in names(made)
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_the_gradient_of_the_weight_is_a_product(strides):
    fields = {**PLAIN, "strides": strides, "taps": (1, 1)}
    places = [-(-5 // strides[0]), -(-6 // strides[1])]
    graph = graph_of(ConvolutionWeightGradient(**fields), f64[2, 5, 6, 3], f64[2, *places, 4])
    made = Pointwise()(graph)
    assert "contract" in names(made)
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize(
    ("fields", "x", "w"),
    [
        ({}, f64[2, 5, 6, 3], f64[3, 1, 3, 4]),
        ({"padding": ((1, 0), (0, 0))}, f64[2, 5, 6, 3], f64[1, 1, 3, 4]),
        ({"groups": 2}, f64[2, 5, 6, 4], f64[1, 1, 2, 4]),
        ({"groups": 6}, f64[2, 5, 6, 6], f64[3, 3, 1, 12]),
        ({"layout": "channels_first"}, f64[2, 3, 5, 6], f64[4, 3, 1, 1]),
    ],
    ids=["taps", "padding", "groups", "narrow groups", "channels first"],
)
def test_others_stay_as_they_are(fields, x, w):
    assert names(Pointwise()(graph_of(Convolution(**{**PLAIN, **fields}), x, w))) == ["convolution"]


@pytest.mark.parametrize("batch", [2, "n"])
def test_wide_groups_are_blocks(batch):
    fields = {**PLAIN, "groups": 3, "strides": (2, 1), "padding": ((1, 1), (0, 2)), "dilation": (1, 2)}
    graph = graph_of(Convolution(**fields), f64[batch, 7, 9, 6], f64[3, 3, 2, 24])
    made = Pointwise()(graph)
    assert names(made)[-2:] == ["blocked_convolution", "reshape"]
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize(("channels", "transposes"), [(16, 0), (300, 1)])
def test_transposes_around_a_short_sum_become_letters(channels, transposes):
    """Beside a long sum the transpose of its result costs little, and blocked weights gain more."""
    builder = Builder()
    x, w = builder.input("x", f64[2, channels, 5, 4]), builder.input("w", f64[1, 1, channels, 8])
    last = builder.emit(Transpose((0, 2, 3, 1)), x)
    y = builder.emit(Transpose((0, 3, 1, 2)), builder.emit(Convolution(**PLAIN), last, w))
    graph = Graph("g", builder.inputs, (y,))
    made = Pointwise()(graph)
    assert names(made).count("transpose") == 2 * transposes
    same_meaning(graph, made, 1e-12)


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize(
    ("dilation", "padding", "sizes"),
    [((2, 2), ((2, 2), (2, 2)), (8, 12)), ((3, 3), ((3, 0), (0, 6)), (9, 12)), ((2, 1), ((2, 2), (1, 0)), (8, 7))],
)
def test_a_dilated_convolution_is_one_of_the_images_that_its_windows_do_not_mix(batch, dilation, padding, sizes):
    fields = {**PLAIN, "dilation": dilation, "padding": padding}
    graph = graph_of(Convolution(**fields), f32[batch, *sizes, 32], f32[3, 3, 32, 32])
    made = Pointwise()(graph)
    (found,) = (v.op for v in made.body if isinstance(v.op, Convolution))
    assert found.dilation == (1, 1)
    same_meaning(graph, made, 2e-5)  # f32, sums of 288 products


@pytest.mark.parametrize(
    "change",
    [
        {"padding": ((1, 2), (2, 2))},  # no whole number of steps
        {"strides": (2, 2)},
        {"layout": "channels_first"},
        {"dilation": (5, 5)},  # does not divide the sizes
    ],
)
def test_other_dilated_convolutions_stay(change):
    fields = {**PLAIN, "dilation": (2, 2), "padding": ((2, 2), (2, 2)), **change}
    first = fields["layout"] == "channels_first"
    types = (f32[1, 32, 12, 12], f32[32, 32, 3, 3]) if first else (f32[1, 12, 12, 32], f32[3, 3, 32, 32])
    graph = graph_of(Convolution(**fields), *types)
    assert names(Pointwise()(graph)) == ["convolution"]


def test_dilated_convolutions_stay_where_nothing_is_interpolated():
    graph = graph_of(Convolution(**{**PLAIN, "dilation": (2, 2)}), f32[1, 12, 12, 32], f32[3, 3, 32, 32])
    as_defined = Pointwise().configured(Options(winograd=False), Target.host())
    assert names(as_defined(graph)) == ["convolution"]
    assert names(Pointwise()(graph)) != ["convolution"]


@pytest.mark.parametrize(
    ("size", "taps", "padding", "strides", "dilation", "kept"),
    [
        ((1, 1), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
        ((2, 1), (3, 3), (1, 1), (1, 1), (1, 1), (3, 1)),
        ((2, 2), (3, 3), (1, 1), (2, 2), (1, 1), (2, 2)),
        ((2, 3), (5, 5), (2, 2), (1, 1), (1, 1), (3, 5)),
        ((3, 3), (3, 3), (4, 4), (1, 1), (4, 4), (1, 1)),
        ((4, 5), (3, 3), (1, 1), (1, 1), (1, 1), (3, 3)),
    ],
)
@pytest.mark.parametrize("role", ["constant", "argument"])
def test_taps_that_meet_padding_only_are_left_out(size, taps, padding, strides, dilation, kept, role):
    """Of a weight that is known: others would be copied at every call."""
    builder = Builder()
    x = builder.input("x", f64["n", *size, 3])
    weight = np.random.default_rng(0).standard_normal((*taps, 3, 4))
    w = builder.input("w", f64[*taps, 3, 4], role)
    sides = tuple((p, p) for p in padding)
    op = Convolution(**{**PLAIN, "strides": strides, "padding": sides, "dilation": dilation})
    graph = Graph("g", builder.inputs, (builder.emit(op, x, w),), constants={"w": weight} if role == "constant" else {})
    made = Pointwise()(graph)
    sizes = [v.args[1].shape[:2] for v in made.body if isinstance(v.op, Convolution)]
    assert sizes == ([] if kept == (1, 1) and role == "constant" else [kept if role == "constant" else taps])
    same_meaning(graph, made, 1e-12)
