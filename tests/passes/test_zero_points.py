"""Zero points and signs leave products of codes: the same integers, products of an unsigned and a signed byte."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.types import i8, u8
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.convolution import convolve
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.layout import Layout
from ingot.compiler.passes.motion import Motion
from ingot.compiler.passes.simplify import Simplify
from ingot.compiler.passes.zero_points import ZeroPoints
from ingot.compiler.target import Target
from ingot.frontends.dsl.functions import trace

RANGES = {u8: (0, 255), i8: (-128, 127)}
NUMPY = {u8: np.uint8, i8: np.int8}
PASS = ZeroPoints(has_quads=True)
KINDS = [(u8, i8), (i8, u8), (i8, i8), (u8, u8)]


def drawn(dtype, shape, seed=0):
    low, high = RANGES[dtype]
    array = np.random.default_rng(seed).integers(low, high + 1, shape).astype(NUMPY[dtype])
    array.reshape(-1)[::5] = low
    array.reshape(-1)[1::5] = high
    return array


def centred(codes, zero):
    return (codes.cast(ingot.i16) - zero.cast(ingot.i16)).cast(ingot.i32)


def prepared(function, types):
    graph = trace(function, types).graph
    for each in (Layout(), Decompose(), Simplify(), Motion()):
        graph = each.configured(Options(), Target.named("x86-64-v3"))(graph)
    return graph


def operands(graph):
    """The element types that the products of a graph are made of."""
    (product,) = (v for v in graph.body if v.op.name in ("contract", "convolution"))
    assert all(arg.op.name == "cast" for arg in product.args)
    return [arg.args[0].tensor.dtype for arg in product.args]


def run(graph, arrays):
    given = [v.op.name for v in graph.inputs if v.op.role != "constant"]
    return run_graph(graph, dict(zip(given, arrays, strict=True)))


def same(before, after, arrays):
    for a, b in zip(run(before, arrays), run(after, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("zeros", ["none", "numbers", "literals", "columns"])
def test_products(kinds, zeros):
    left, right = kinds
    shape = {"columns": (24,)}.get(zeros, ())

    def function(a, b, p, q):
        if zeros == "none":
            return a.cast(ingot.i32) @ b.cast(ingot.i32)
        if zeros == "literals":
            return (a.cast(ingot.i32) - 3) @ (b.cast(ingot.i32) - 100)
        return centred(a, p) @ centred(b, q)

    graph = prepared(function, [left[20, 37], right[37, 24], left[()], right[shape]])
    result = PASS(graph)
    assert set(operands(result)) == {u8, i8}
    same(graph, result, [drawn(left, (20, 37)), drawn(right, (37, 24), 1), drawn(left, (), 2), drawn(right, shape, 3)])
    assert PASS(result) is result or operands(PASS(result)) == operands(result)


def test_a_zero_point_for_each_row_and_batches():
    def function(a, b, p):
        return contract(centred(a, p), "nik", b.cast(ingot.i32), "nkj", "nij")

    graph = prepared(function, [u8[2, 20, 9], i8[2, 9, 24], u8[20, 1]])
    result = PASS(graph)
    assert operands(result) == [u8, i8]
    same(graph, result, [drawn(u8, (2, 20, 9)), drawn(i8, (2, 9, 24), 1), drawn(u8, (20, 1), 2)])


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("weight_zero", [None, "literal", "channels"])
def test_convolutions(kinds, padding, stride, weight_zero):
    """Padding is 0, whatever code stands for it."""
    left, right = kinds
    weight, zeros = drawn(right, (24, 5, 3, 3)), drawn(right, (24, 1, 1, 1), 1)

    class Layer(ingot.nn.Module):
        def __init__(self):
            self.weight, self.zeros = ingot.nn.Buffer(weight), ingot.nn.Buffer(zeros)

        def forward(self, x, p):
            w = self.weight.cast(ingot.i32)
            if weight_zero == "literal":
                w = w - 100
            if weight_zero == "channels":
                w = centred(self.weight, self.zeros)
            fields = {"strides": (stride, stride), "padding": ((padding, padding), (padding, 0))}
            return convolve(centred(x, p), w, **fields)

    graph = prepared(Layer(), [left[2, 5, 8, 7], left[()]])
    result = PASS(graph)
    assert set(operands(result)) == {u8, i8}
    given = [drawn(left, (2, 5, 8, 7), 2), drawn(left, (), 3)]
    same(graph, result, given)
    compiled = ingot.compile(Layer(), left[2, 5, 8, 7], left[()], cache=False)
    np.testing.assert_array_equal(compiled(*given), run(graph, given)[0])


def test_free_sizes():
    weight = drawn(u8, (48, 24))

    class Layer(ingot.nn.Module):
        def __init__(self):
            self.weight = ingot.nn.Buffer(weight)

        def forward(self, x, p):
            return centred(x, p) @ (self.weight.cast(ingot.i32) - 119)

    n = ingot.dim("n")
    compiled = ingot.compile(Layer(), u8[n, 48], u8[()], cache=False)
    for rows in (1, 7, 40):
        x, p = drawn(u8, (rows, 48), rows), drawn(u8, (), 1)
        expected = (x.astype(np.int64) - p) @ (weight.astype(np.int64) - 119)
        np.testing.assert_array_equal(compiled(x, p), expected)


def test_what_stays():
    """A target without the instruction; a product of few rows whose other operand would have to be summed; a zero point
    that varies along the sum; integers of which it is not known that they are codes."""
    def plain(a, b, p):
        return centred(a, p) @ b.cast(ingot.i32)

    types = [u8[20, 9], i8[9, 24], u8[()]]
    graph = prepared(plain, types)
    assert ZeroPoints()(graph) is graph
    assert not Target.named("x86-64-v3").has_quads
    few = prepared(plain, [u8[2, 9], i8[9, 24], u8[()]])
    assert names(PASS(few)) == names(few)
    varying = prepared(plain, [u8[20, 9], i8[9, 24], u8[1, 9]])
    assert names(PASS(varying)) == names(varying)
    wide = prepared(lambda a, b: a @ b.cast(ingot.i32), [ingot.i32[20, 9], i8[9, 24]])
    assert names(PASS(wide)) == names(wide)


def names(graph):
    return [v.op.name for v in graph.body]


def test_sums_of_known_weights_are_computed_in_advance():
    """Nothing but the product and what follows it is left while running."""
    if not Target.host().has_quads:
        pytest.skip("this machine has no words of four")
    weight = drawn(i8, (64, 48))

    class Layer(ingot.nn.Module):
        def __init__(self):
            self.weight = ingot.nn.Buffer(weight)

        def forward(self, x, p):
            return (centred(x, p) @ self.weight.cast(ingot.i32)).cast(ingot.f32) * 0.5

    compiled = ingot.compile(Layer(), u8[20, 64], u8[()], cache=False)
    x, p = drawn(u8, (20, 64)), drawn(u8, (), 1)
    expected = ((x.astype(np.int64) - p) @ weight).astype(np.float32) * np.float32(0.5)
    np.testing.assert_array_equal(compiled(x, p), expected)
    assert len(compiled.profile(x, p, repeat=1).kernels) == 1


@pytest.mark.parametrize("has_quads", [False, True])
def test_scans_capture_codes(has_quads):
    """The loop widens what it captures, so that its products see bytes."""

    def function(xs, w, p):
        wide = w.cast(ingot.i32)

        def step(carry, x):
            total = carry + centred(x, p) @ wide
            return total, total

        return ingot.scan(step, w[0].cast(ingot.i32) * 0, xs)[1]

    graph = prepared(function, [u8[3, 9], i8[9, 24], u8[()]])
    result = ZeroPoints(has_quads=has_quads)(graph)
    (scan,) = (v for v in result.body if v.op.name == "scan")
    assert [v.tensor.dtype for v in scan.op.body.inputs].count(i8) == 1
    given = [drawn(u8, (3, 9)), drawn(i8, (9, 24), 1), drawn(u8, (), 2)]
    same(graph, result, given)
    target = "native" if has_quads else "x86-64-v3"
    compiled = ingot.compile(function, u8[3, 9], i8[9, 24], u8[()], cache=False, target=target)
    np.testing.assert_array_equal(compiled(*given), run(graph, given)[0])
