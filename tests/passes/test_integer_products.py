"""Products of dequantised codes become products of codes: the same numbers, with one rounding of the sum."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.convolution import convolve
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.integer_products import LONGEST, IntegerProducts
from ingot.compiler.passes.layout import Layout
from ingot.compiler.passes.motion import Motion
from ingot.compiler.passes.simplify import Simplify
from ingot.compiler.target import Target
from ingot.frontends.dsl.functions import trace

PASS = IntegerProducts(has_pairs=True, has_quads=True)


def prepared(function, types):
    graph = trace(function, types).graph
    for each in (Layout(), Decompose(), Simplify(), Motion()):
        graph = each.configured(Options(), Target.named("x86-64-v3"))(graph)
    return graph


def dequantised(codes, scale, zero=None):
    whole = codes.cast(ingot.i32) if zero is None else codes.cast(ingot.i32) - zero.cast(ingot.i32)
    return whole.cast(ingot.f32) * scale


def product_type(graph):
    (product,) = (v for v in graph.body if v.op.name in ("contract", "convolution"))
    return product.tensor.dtype


def codes_of(type_, rng):
    low, high = (0, 256) if type_.dtype == ingot.u8 else (-128, 128)
    return rng.integers(low, high, type_.shape).astype(np.uint8 if low == 0 else np.int8)


def close(before, after, arrays):
    """Both within the rounding of a float32 sum of the float64 result's size."""
    names = [v.op.name for v in before.inputs]
    given = dict(zip(names, arrays, strict=True))
    (expected,), (found,) = run_graph(before, given), run_graph(after, given)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def arithmetic(graph):
    """The ops of a graph with the element type of what they make, without those that only arrange."""
    shown = (v for v in graph.body if v.op.name not in ("constant", "reshape", "broadcast"))
    return [f"{v.tensor.dtype.name} {v.op.name}" for v in shown]


def test_before_and_after():
    def function(a, b):
        return dequantised(a, 0.5) @ dequantised(b, 0.25)

    graph = prepared(function, [ingot.u8[2, 8], ingot.i8[8, 3]])
    assert arithmetic(graph) == ["f32 cast", "f32 mul", "f32 cast", "f32 mul", "f32 contract"]
    assert arithmetic(PASS(graph)) == ["i32 cast", "i32 cast", "i32 contract", "f32 cast", "f32 mul", "f32 mul"]


@pytest.mark.parametrize("kinds", [(ingot.u8, ingot.i8), (ingot.i8, ingot.i8), (ingot.u8, ingot.u8)])
@pytest.mark.parametrize("scales", ["number", "rows and columns"])
@pytest.mark.parametrize("zeros", [False, True])
def test_products(kinds, scales, zeros, rng):
    left, right = kinds
    rows, columns = ((20, 1), (24,)) if scales == "rows and columns" else ((), ())

    def function(a, b, s, t, p, q):
        return dequantised(a, s, p if zeros else None) @ dequantised(b, t, q if zeros else None)

    types = [left[20, 37], right[37, 24], ingot.f32[rows], ingot.f32[columns], left[()], right[columns]]
    graph = prepared(function, types)
    result = PASS(graph)
    assert product_type(graph) == ingot.f32
    assert product_type(result) == ingot.i32
    arrays = [rng.random(t.shape, np.float32) if t.dtype == ingot.f32 else codes_of(t, rng) for t in types]
    close(graph, result, arrays)


@pytest.mark.parametrize("channels", [(), (16, 1, 1, 1)])
def test_convolutions(channels, rng):
    def function(x, w, s, t, p):
        return convolve(dequantised(x, s, p), dequantised(w, t), padding=((1, 1), (1, 1)), strides=(2, 2))

    types = [ingot.u8[2, 8, 9, 9], ingot.i8[16, 8, 3, 3], ingot.f32[()], ingot.f32[channels], ingot.u8[()]]
    graph = prepared(function, types)
    result = PASS(graph)
    assert product_type(result) == ingot.i32
    arrays = [rng.random(t.shape, np.float32) if t.dtype == ingot.f32 else codes_of(t, rng) for t in types]
    close(graph, result, arrays)
    executable = ingot.compile(function, *types, cache=False)
    expected = run_graph(graph, dict(zip([v.op.name for v in graph.inputs], arrays, strict=True)))[0]
    np.testing.assert_allclose(executable(*arrays), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("zero", [0, 7])
def test_channels_of_zeros_fill_words(channels, zero, rng):
    """Where words hold four codes; the weight of the added channels is 0, so their data does not matter."""

    def function(x, w):
        whole = (x.cast(ingot.i32) - zero).cast(ingot.f32) * 0.5
        return convolve(whole, dequantised(w, 0.25), padding=((1, 1), (1, 1)))

    types = [ingot.u8[2, channels, 9, 9], ingot.i8[16, channels, 3, 3]]
    graph = prepared(function, types)
    result = PASS(graph)
    (product,) = (v for v in result.body if v.op.name == "convolution")
    assert [arg.shape for arg in product.args] == [(2, 9, 9, 4), (3, 3, 4, 16)]
    close(graph, result, [codes_of(t, rng) for t in types])


def unchanged(function, *types):
    graph = prepared(function, types)
    return product_type(PASS(graph)) == ingot.f32


def test_what_stays_a_product_of_floats():
    """Scales that change along the sum, sums that might not fit, groups, other integers, and floats."""
    u8, i8, f32 = ingot.u8, ingot.i8, ingot.f32
    assert unchanged(lambda a, b, s: dequantised(a, s) @ dequantised(b, 0.5), u8[4, 8], i8[8, 4], f32[8])
    assert unchanged(lambda a, b: dequantised(a, 0.5) @ dequantised(b, 0.5), u8[2, LONGEST], i8[LONGEST, 2])
    assert not unchanged(lambda a, b: dequantised(a, 0.5) @ dequantised(b, 0.5), u8[2, LONGEST - 1], i8[LONGEST - 1, 2])
    assert unchanged(lambda a, b: dequantised(a, 0.5) @ dequantised(b, 0.5), u8[4, ingot.dim("k")], i8[ingot.dim("k"), 4])
    assert unchanged(lambda a, b: dequantised(a, 0.5) @ dequantised(b, 0.5), ingot.i16[4, 8], i8[8, 4])
    assert unchanged(lambda a, b: a @ dequantised(b, 0.5), f32[4, 8], i8[8, 4])
    assert unchanged(
        lambda x, w: convolve(dequantised(x, 0.5), dequantised(w, 0.5), groups=8), u8[1, 8, 5, 5], i8[8, 1, 3, 3]
    )


def test_words_of_two_codes_are_for_single_points():
    """Windows of several are interpolated in floats, which is faster than that."""

    def function(x, w):
        return convolve(dequantised(x, 0.5), dequantised(w, 0.5))

    pairs = IntegerProducts(has_pairs=True)
    for taps, expected in ((1, ingot.i32), (3, ingot.f32)):
        graph = prepared(function, [ingot.u8[1, 8, 5, 5], ingot.i8[8, 8, taps, taps]])
        assert product_type(pairs(graph)) == expected
        assert product_type(PASS(graph)) == ingot.i32


def test_other_machines_keep_floats():
    def function(a, b):
        return contract(dequantised(a, 0.5), "ik", dequantised(b, 0.5), "kj", "ij")

    graph = prepared(function, [ingot.u8[2, 8], ingot.i8[8, 3]])
    for name, expected in (("x86-64-v3", ingot.i32), ("aarch64", ingot.f32)):
        assert product_type(PASS.configured(Options(), Target.named(name))(graph)) == expected
