"""Pooling against its definition written as loops; ties, NaN, rounding up, and what is emitted."""

import itertools

import numpy as np
import pytest

from ingot.compiler import autodiff
from ingot.compiler.ir import tensor
from ingot.compiler.ir.scalar import Apply, Buffer, Reduce, children, constant
from ingot.compiler.ir.types import TensorType, f32, f64, i32
from ingot.compiler.ops.average_pooling import (
    AveragePool,
    AveragePoolGradient,
    adaptive_average_pool,
    average_pool,
    global_average_pool,
    global_max_pool,
    lp_pool,
)
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.pooling import MaxPool, MaxPoolGradient, max_pool, max_pool_positions
from tests.ops.harness import build, call, check_gradient, gradient_of, run


def windows_of(x, window, strides, padding, dilation):
    """(place of the window, its elements with None for padding) for one plane."""
    counts = [
        (size + low + high - step * (taps - 1) - 1) // stride + 1
        for size, taps, stride, (low, high), step in zip(x.shape, window, strides, padding, dilation, strict=True)
    ]
    for place in np.ndindex(*counts):
        elements = []
        for tap in np.ndindex(*window):
            spot = tuple(
                p * stride + r * step - low
                for p, r, stride, step, (low, _) in zip(place, tap, strides, dilation, padding, strict=True)
            )
            inside = all(0 <= s < size for s, size in zip(spot, x.shape, strict=True))
            elements.append((spot, x[spot] if inside else None))
        yield place, elements


CASES = [
    # sizes, window, strides, padding, dilation
    ((6,), (2,), (2,), ((0, 0),), (1,)),
    ((7,), (3,), (2,), ((1, 1),), (1,)),
    ((9,), (3,), (1,), ((2, 0),), (2,)),
    ((5, 6), (3, 2), (2, 1), ((1, 1), (0, 1)), (1, 2)),
    ((3, 4, 3), (2, 2, 2), (1, 2, 1), ((0, 0), (0, 0), (1, 0)), (1, 1, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool_is_its_definition(case, rng):
    x = rng.standard_normal(case[0])
    found = MaxPool(*case[1:]).evaluate(x[None, None])[0, 0]
    for place, elements in windows_of(x, *case[1:]):
        assert found[place] == max(e for _, e in elements if e is not None)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_average_pool_is_its_definition(case, include, rng):
    x = rng.standard_normal(case[0])
    found = AveragePool(*case[1:], count_include_pad=include).evaluate(x[None, None])[0, 0]
    for place, elements in windows_of(x, *case[1:]):
        inside = [e for _, e in elements if e is not None]
        np.testing.assert_allclose(found[place], sum(inside) / len(elements if include else inside), 1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient_of_maximum_goes_to_the_first(case, rng):
    """With ties everywhere; overlapping windows add up."""
    x = rng.integers(0, 3, case[0]).astype(np.float64)
    expected = np.zeros_like(x)
    for _, elements in windows_of(x, *case[1:]):
        greatest = max(e for _, e in elements if e is not None)
        expected[next(spot for spot, e in elements if e == greatest)] += 1
    found = gradient_of(lambda node: node.apply(MaxPool(*case[1:])), x[None, None])
    np.testing.assert_array_equal(found[0, 0], expected)


def test_nan_wins_and_takes_the_gradient():
    x = np.array([[[1.0, np.nan, np.nan, 2.0, 5.0, 3.0]]])
    op = MaxPool((3,), (3,), ((0, 0),), (1,))
    np.testing.assert_array_equal(op.evaluate(x), [[[np.nan, 5.0]]])
    np.testing.assert_array_equal(gradient_of(lambda node: node.apply(op), x), [[[0, 1, 0, 0, 1, 0]]])


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_positions_of_maxima(layout, rng):
    x = rng.permutation(2 * 3 * 5 * 6).astype(np.float32).reshape(2, 3, 5, 6)

    def pool(node):
        y = max_pool(node, (3, 2), strides=(2, 1), padding=((1, 0), (0, 1)), layout=layout)
        return y, max_pool_positions(y, node)

    given = x if layout == "channels_first" else np.moveaxis(x, 1, -1)
    y, positions = call(pool, given)
    if layout == "channels_last":
        y, positions = np.moveaxis(y, -1, 1), np.moveaxis(positions, -1, 1)
    flat = np.take_along_axis(x.reshape(2, 3, 30), positions.reshape(2, 3, -1), 2)
    np.testing.assert_array_equal(flat.reshape(y.shape), y)


def test_positions_need_a_pooling():
    with pytest.raises(OpTypeError, match="result of max_pool"):
        build(lambda x: max_pool_positions(x + 1, x), (f32[1, 1, 4],))


@pytest.mark.parametrize(
    ("size", "taps", "stride", "low"), list(itertools.product(range(3, 9), (2, 3), (1, 2, 3), (0, 1)))
)
def test_rounding_up(size, taps, stride, low, rng):
    """A window may begin in the data or the low padding only; what it has beyond the padding never counts."""
    x = rng.standard_normal(size)
    starts = [s for s in range(-low, size, stride) if s - stride + taps < size + low]
    greatest, average = call(
        lambda node: (
            max_pool(node, taps, strides=stride, padding=low, ceil_mode=True),
            average_pool(node, taps, strides=stride, padding=low, ceil_mode=True, count_include_pad=True),
        ),
        x[None, None],
    )
    spans = [(max(s, 0), min(s + taps, size)) for s in starts]
    counts = [min(s + taps, size + low) - s for s in starts]
    np.testing.assert_array_equal(greatest[0, 0], [x[a:b].max() for a, b in spans])
    expected = [x[a:b].sum() / n for (a, b), n in zip(spans, counts, strict=True)]
    np.testing.assert_allclose(average[0, 0], expected, 1e-12, 1e-12)


@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("pool", [max_pool, average_pool])
def test_symbolic_sizes(pool, rounding, rng):
    fields = {"strides": 2, "padding": 1, "ceil_mode": rounding}
    graph = build(lambda x: pool(x, 3, **fields), (f64["n", 2, "h", "w"],))
    vjp = autodiff.differentiate(graph, (0,))
    for sizes in ((5, 6), (8, 7)):
        x = rng.standard_normal((2, 2, *sizes))
        (y,) = run(graph, x)
        np.testing.assert_allclose(y, call(lambda node: pool(node, 3, **fields), x))
        g = rng.standard_normal(y.shape)
        (found,) = run(vjp, x, g)
        # both are homogeneous of degree 1, so that <x, gradient> == <g, y>
        np.testing.assert_allclose((x * found).sum(), (g * y).sum(), 1e-10)


def test_global_pools_are_reductions(rng):
    x = rng.standard_normal((2, 3, 4, 5))
    np.testing.assert_allclose(call(global_average_pool, x), x.mean((2, 3), keepdims=True), 1e-12)
    np.testing.assert_array_equal(call(global_max_pool, x), x.max((2, 3), keepdims=True))
    found = call(lambda node: global_average_pool(node, "channels_last"), x)
    np.testing.assert_allclose(found, x.mean((1, 2), keepdims=True), 1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_lp_pool(order, rng):
    x = rng.standard_normal((1, 2, 6))
    expected = (np.abs(x.reshape(1, 2, 3, 2)) ** order).sum(-1) ** (1 / order)
    np.testing.assert_allclose(call(lambda node: lp_pool(node, 2, order), x), expected, 1e-12)
    check_gradient(build(lambda node: lp_pool(node, 2, order), (f64[1, 2, 6],)), (x,), (0,), rng)


def test_adaptive_pool(rng):
    x = rng.standard_normal((1, 2, 6, 8))
    found = call(lambda node: adaptive_average_pool(node, (3, 2)), x)
    np.testing.assert_allclose(found, x.reshape(1, 2, 3, 2, 2, 4).mean((3, 5)), 1e-12)
    with pytest.raises(OpTypeError, match="4 does not divide 6"):
        build(lambda node: adaptive_average_pool(node, (4, 2)), (f32[1, 2, 6, 8],))


def nodes(scalar):
    yield scalar
    for child in children(scalar):
        yield from nodes(child)


def lowered(op, *types: TensorType):
    out = op.infer(*types)
    readers = [tensor.BufferReader(Buffer(f"x{n}", t.dtype, t.shape)) for n, t in enumerate(types)]
    return op.lower(out, tensor.axes(out.shape), *readers)


def test_gradients_of_windows_side_by_side_have_no_loop():
    fields = ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
    average = lowered(AveragePoolGradient(*fields, shape=(8, 8)), f32[1, 3, 4, 4])
    assert [n.function.name for n in nodes(average) if isinstance(n, Apply)] == ["div"]
    greatest = lowered(MaxPoolGradient(*fields, shape=(8, 8)), f32[1, 3, 4, 4], i32[1, 3, 4, 4])
    assert not [n for n in nodes(greatest) if isinstance(n, Reduce)]


def test_overlapping_windows_visit_only_those_that_contain_the_element():
    fields = ((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1))
    value = lowered(MaxPoolGradient(*fields, shape=(8, 8)), f32[1, 3, 4, 4], i32[1, 3, 4, 4])
    assert isinstance(value, Reduce)
    assert value.extents == (2, 2)


def test_divisor_is_constant_where_it_can_be():
    plain = lowered(AveragePool((3,), (2,), ((0, 0),), (1,)), f32["n", 3, "h"])
    assert isinstance(plain, Apply)
    assert plain.args[1] == constant(3, f32)
    included = lowered(AveragePool((3,), (2,), ((1, 1),), (1,), count_include_pad=True), f32["n", 3, "h"])
    assert isinstance(included, Apply)
    assert included.args[1] == constant(3, f32)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (MaxPool((3,), (1,), ((0, 0),), (1,)), (f32[1, 2, 2],), "larger than spatial axis 0"),
        (MaxPool((3, 3), (1,), ((0, 0),), (1,)), (f32[1, 2, 2],), "one entry for each of 1"),
        (AveragePool((2,), (1,), ((0, 0),), (1,)), (i32[1, 2, 5],), "takes float tensors, not i32"),
        (
            MaxPoolGradient((2,), (2,), ((0, 0),), (1,), shape=(8,)),
            (f32[1, 2, 3], i32[1, 2, 3]),
            r"the windows make \[1, 2, 4\], not \[1, 2, 3\]",
        ),
        (
            MaxPoolGradient((2,), (2,), ((0, 0),), (1,), shape=(8,)),
            (f32[1, 2, 4], f32[1, 2, 4]),
            "is not the i32 result of max_pool_index",
        ),
    ],
)
def test_pooling_says_what_is_wrong(op, types, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(*types)
