"""Convolutions against their definition written as loops, and what their graphs and indices look like."""

import itertools

import numpy as np
import pytest

from ingot.compiler import autodiff
from ingot.compiler.ir import tensor
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Reduce, children
from ingot.compiler.ir.types import TensorType, f32, f64
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.convolution import (
    Convolution,
    ConvolutionTranspose,
    ConvolutionWeightGradient,
    convolve,
    convolve_transpose,
)
from ingot.compiler.ops.windows import same_padding
from tests.ops.harness import build, call, check_gradient, decomposition, run


def by_definition(x, w, strides, padding, dilation, groups):
    """The convolution of channels-first arrays, one product at a time."""
    (batch, _, *sizes), (outputs, per_group, *taps) = x.shape, w.shape
    counts = [
        (size + low + high - step * (count - 1) - 1) // stride + 1
        for size, (low, high), step, count, stride in zip(sizes, padding, dilation, taps, strides, strict=True)
    ]
    y = np.zeros((batch, outputs, *counts))
    for out, place in itertools.product(range(outputs), np.ndindex(*counts)):
        group = out // (outputs // groups)
        for channel, tap in itertools.product(range(per_group), np.ndindex(*taps)):
            spot = [
                p * stride + r * step - low
                for p, r, stride, step, (low, _) in zip(place, tap, strides, dilation, padding, strict=True)
            ]
            if all(0 <= s < size for s, size in zip(spot, sizes, strict=True)):
                element = x[:, group * per_group + channel][(slice(None), *spot)]
                y[(slice(None), out, *place)] += element * w[(out, channel, *tap)]
    return y


CASES = [
    # x, w, strides, padding, dilation, groups
    ((2, 3, 7), (4, 3, 3), (1,), ((1, 1),), (1,), 1),
    ((1, 4, 9), (6, 2, 2), (3,), ((2, 0),), (2,), 2),
    ((2, 3, 6, 5), (4, 3, 3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2), 1),
    ((1, 4, 7, 7), (4, 1, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 4),
    ((1, 2, 6, 6), (2, 2, 2, 2), (1, 1), ((-1, 0), (0, -2)), (1, 1), 1),
    ((1, 2, 4, 3, 5), (3, 2, 2, 1, 3), (1, 2, 2), ((0, 1), (0, 0), (1, 1)), (1, 1, 1), 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution_is_its_definition(case, rng):
    x, w = rng.standard_normal(case[0]), rng.standard_normal(case[1])
    found = Convolution(*case[2:]).evaluate(x, w)
    np.testing.assert_allclose(found, by_definition(x, w, *case[2:]), 1e-12, 1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts_mean_the_same(case, rng):
    x, w = rng.standard_normal(case[0]), rng.standard_normal(case[1])
    last_x, last_w = np.moveaxis(x, 1, -1), np.moveaxis(w, (0, 1), (-1, -2))
    found = Convolution(*case[2:], layout="channels_last").evaluate(last_x, last_w)
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), Convolution(*case[2:]).evaluate(x, w), 1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_three_ops_are_derivatives_of_one_form(case, rng):
    """<g, convolution(x, w)> == <x, transpose(g, w)> == <w, weight gradient(x, g)>"""
    x, w = rng.standard_normal(case[0]), rng.standard_normal(case[1])
    y = Convolution(*case[2:]).evaluate(x, w)
    g = rng.standard_normal(y.shape)
    for_x = ConvolutionTranspose(*case[2:], shape=case[0][2:]).evaluate(g, w)
    for_w = ConvolutionWeightGradient(*case[2:], taps=case[1][2:]).evaluate(x, g)
    np.testing.assert_allclose((x * for_x).sum(), (g * y).sum(), 1e-10)
    np.testing.assert_allclose((w * for_w).sum(), (g * y).sum(), 1e-10)


def test_upsampling_places_each_weight():
    """One element spreads the kernel over the result."""
    w = np.arange(9.0).reshape(1, 1, 3, 3)
    found = call(lambda x, w: convolve_transpose(x, w, strides=2), np.array([[[[1.0, 10.0]]]]), w)
    expected = np.zeros((3, 5))
    expected[:, 0:3] += w[0, 0]
    expected[:, 2:5] += 10 * w[0, 0]
    np.testing.assert_array_equal(found[0, 0], expected)


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("low", [0, 1, 4])
def test_phases_compute_the_transpose(stride, taps, low, dilation, rng):
    """Every remainder of taps and padding by the stride; output padding up to the limit."""
    for extra in range(max(stride, dilation)):
        reach = dilation * (taps - 1) + 1
        size = max(3, -(-(2 * low - reach) // stride) + 2)
        fields = {"strides": stride, "padding": low, "dilation": dilation, "output_padding": extra}
        graph = build(lambda x, w: convolve_transpose(x, w, **fields), (f64[1, 2, size], f64[2, 3, taps]))  # noqa: B023
        op = graph.outputs[0].op
        assert isinstance(op, ConvolutionTranspose)
        assert op.shape == ((size - 1) * stride + reach - 2 * low + extra,)
        arrays = rng.standard_normal((1, 2, size)), rng.standard_normal((2, 3, taps))
        apart = decomposition(op, [v.tensor for v in graph.inputs])
        np.testing.assert_allclose(run(apart, *arrays)[0], op.evaluate(*arrays), 1e-12, 1e-12)


@pytest.mark.parametrize(("strides", "taps"), [((2, 2), (2, 2)), ((3, 2), (3, 2)), ((2,), (2,)), ((2, 1, 2), (2, 1, 2))])
def test_phases_of_a_single_tap_are_a_product_that_interleaves_them(strides, taps, rng):
    rank = len(strides)
    shape = tuple(3 * stride for stride in strides)
    op = ConvolutionTranspose(strides, ((0, 0),) * rank, (1,) * rank, 1, "channels_last", shape=shape)
    arrays = rng.standard_normal((2, *(3,) * rank, 4)), rng.standard_normal((*taps, 5, 4))
    graph = decomposition(op, [f64[arrays[0].shape], f64[arrays[1].shape]])
    names = [value.op.name for value in graph.body]
    assert names.count("contract") == 1
    assert "convolution" not in names
    np.testing.assert_allclose(run(graph, *arrays)[0], op.evaluate(*arrays), 1e-12, 1e-12)


def products(graph: Graph) -> int:
    """Multiplications of the convolutions of a graph."""
    total = 0
    for value in graph.body:
        if isinstance(value.op, Convolution):
            outputs = int(np.prod(value.tensor.static_shape))
            total += outputs * int(np.prod(value.args[1].tensor.static_shape[1:]))
    return total


def test_gradient_of_a_strided_convolution_multiplies_by_no_zeros():
    """Stride 2 and 3 taps: per axis, every second result reads two taps and the others one."""
    op = ConvolutionTranspose((2, 2), ((1, 1), (1, 1)), (1, 1), shape=(16, 16))
    graph = decomposition(op, (f32[1, 8, 8, 8], f32[8, 4, 3, 3]))
    assert products(graph) == 4 * (8 * 2 + 8 * 1) ** 2 * 8


def test_upsampling_by_whole_strides_is_one_convolution():
    """Stride 2 and 4 taps: every result reads 2 x 2 of the taps."""
    op = ConvolutionTranspose((2, 2), ((1, 1), (1, 1)), (1, 1), shape=(16, 16))
    graph = decomposition(op, (f32[1, 8, 8, 8], f32[8, 4, 4, 4]))
    convolutions = [v for v in graph.body if isinstance(v.op, Convolution)]
    # position 0 is an odd phase: one quotient more
    assert [v.tensor for v in convolutions] == [f32[1, 4 * 4, 9, 9]]
    assert [v.args[1].shape[2:] for v in convolutions] == [(2, 2)]


def test_non_overlapping_windows_are_one_convolution():
    """The gradient of a patch embedding is one product with all the weights, whatever the patch size."""
    op = ConvolutionTranspose((16, 16), ((0, 0), (0, 0)), (1, 1), shape=(32, 32))
    graph = decomposition(op, (f32[1, 8, 2, 2], f32[8, 3, 16, 16]))
    convolutions = [v for v in graph.body if isinstance(v.op, Convolution)]
    assert [v.tensor for v in convolutions] == [f32[1, 3 * 256, 2, 2]]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(("strides", "padding"), [(1, 1), (2, 1), ((2, 3), ((0, 2), (1, 0)))])
def test_symbolic_batch_and_sizes(layout, strides, padding, rng):
    first = layout == "channels_first"
    types = (
        f64["n", 2, "h", "w"] if first else f64["n", "h", "w", 2],
        f64[3, 2, 3, 3] if first else f64[3, 3, 2, 3],
    )
    graph = build(lambda x, w: convolve(x, w, strides=strides, padding=padding, layout=layout), types)
    vjp = autodiff.differentiate(graph, (0, 1))
    for sizes in ((5, 6), (8, 7)):
        shape = (2, 2, *sizes) if first else (2, *sizes, 2)
        x, w = rng.standard_normal(shape), rng.standard_normal(types[1].static_shape)
        (y,) = run(graph, x, w)
        g = rng.standard_normal(y.shape)
        for_x, for_w = run(vjp, x, w, g)
        np.testing.assert_allclose([(x * for_x).sum(), (w * for_w).sum()], (g * y).sum(), 1e-10)


def lowered(op, x: TensorType, w: TensorType):
    out = op.infer(x, w)
    readers = [tensor.BufferReader(Buffer(name, t.dtype, t.shape)) for name, t in (("x", x), ("w", w))]
    return op.lower(out, tensor.axes(out.shape), *readers)


def nodes(scalar):
    yield scalar
    for child in children(scalar):
        yield from nodes(child)


def choices(scalar) -> int:
    return sum(isinstance(n, Apply) and n.function.name == "select" for n in nodes(scalar))


@pytest.mark.parametrize(("sizes", "stride"), [((9, 9), 1), (("h", "w"), 1), (("h", "w"), 2)])
def test_no_choice_without_padding(sizes, stride):
    op = Convolution((stride, stride), ((0, 0), (0, 0)), (1, 1))
    assert choices(lowered(op, f32[1, 3, *sizes], f32[4, 3, 3, 3])) == 0


def test_only_the_padded_axis_is_tested():
    op = Convolution((1, 1), ((1, 0), (0, 0)), (1, 1))
    value = lowered(op, f32[1, 3, 9, 9], f32[4, 3, 3, 3])
    assert choices(value) == 1
    comparisons = [n.function.name for n in nodes(value) if isinstance(n, Apply) and n.dtype.name == "bool"]
    assert comparisons == ["ge"]


def test_depthwise_reads_its_own_channel_only():
    value = lowered(Convolution((1,), ((0, 0),), (1,), 8), f32[1, 8, 9], f32[8, 1, 3])
    assert isinstance(value, Reduce)
    assert value.extents == (3,)


def test_pointwise_sums_channels_only():
    value = lowered(Convolution((1, 1), ((0, 0), (0, 0)), (1, 1)), f32[2, 8, 5, 5], f32[4, 8, 1, 1])
    assert isinstance(value, Reduce)
    assert value.extents == (8,)
    assert all(isinstance(n, Load) for n in children(value.body))


def test_half_precision_is_accumulated_in_single():
    x = np.ones((1, 1, 1025), np.float16)
    x[0, 0, 0] = 2048
    w = np.ones((1, 1, 1025), np.float16)
    assert Convolution((1,), ((0, 0),), (1,)).evaluate(x, w).item() == 3072


@pytest.mark.parametrize(("size", "stride", "taps"), list(itertools.product((5, 6, 7), (1, 2, 3), (1, 2, 3, 4))))
def test_same_padding_gives_a_window_per_stride(size, stride, taps):
    for extra in ("low", "high"):
        ((low, high),) = same_padding((size,), (taps,), (stride,), (1,), extra)
        assert isinstance(low, int)
        assert isinstance(high, int)
        assert (size + low + high - taps) // stride + 1 == -(-size // stride)
        assert 0 <= (low - high if extra == "low" else high - low) <= 1


@pytest.mark.parametrize(
    ("fields", "types", "message"),
    [
        ({}, (f32[1, 3, 8, 8], f32[4, 2, 3, 3]), "3 channels in 1 groups do not fit"),
        ({"groups": 2}, (f32[1, 4, 8, 8], f32[3, 2, 3, 3]), "3 output channels are not a multiple of 2"),
        ({}, (f32[1, 3, 2, 8], f32[4, 3, 3, 3]), "a window of 3 elements is larger than spatial axis 0"),
        ({"layout": "nhwc"}, (f32[1, 3, 8, 8], f32[4, 3, 3, 3]), "layout 'nhwc' is not one of"),
        ({"strides": (1,)}, (f32[1, 3, 8, 8], f32[4, 3, 3, 3]), "one entry for each of 2 spatial axes"),
        ({"strides": 0}, (f32[1, 3, 8, 8], f32[4, 3, 3, 3]), "must be positive"),
        ({}, (f32[1, 3, 8, 8], f64[4, 3, 3, 3]), "element types f32 and f64 differ"),
        ({}, (f32[1, 3, 8, 8], f32[4, 3, 3]), "different numbers of dims"),
        ({}, (f32[1, 3], f32[4, 3]), "takes \\[batch, channels, spatial...\\]"),
        ({}, (f32[1, 3, 8, 8], f32[4, 3, 3, "k"]), "known now, not symbolic"),
    ],
)
def test_convolution_says_what_is_wrong(fields, types, message):
    with pytest.raises(OpTypeError, match=message):
        build(lambda x, w: convolve(x, w, **fields), types)


def test_transpose_says_which_shape_fits():
    op = ConvolutionTranspose((2,), ((0, 0),), (1,), shape=(9,))
    with pytest.raises(OpTypeError, match=r"convolved with .* is \[1, 2, 4\], not \[1, 2, 5\]"):
        op.infer(f32[1, 2, 5], f32[2, 3, 3])


def test_gradient_of_upsampling(rng):
    types = (f64[2, 3, 4, 3], f64[3, 2, 3, 4])
    graph = build(lambda x, w: convolve_transpose(x, w, strides=(2, 3), padding=1, output_padding=(1, 0)), types)
    check_gradient(graph, tuple(rng.standard_normal(t.static_shape) for t in types), (0, 1), rng)
