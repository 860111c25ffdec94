"""Codes that are turned back at once become rounded numbers: the same, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.passes.rounded import Rounded
from ingot.compiler.passes.simplify import Simplify
from ingot.frontends.dsl.functions import trace

EDGES = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, 0.26, -0.26, 31.9, 32.1, -31.9, -32.1, 1e9], np.float32)


def codes(x, kind, zero, low=None, high=None):
    """QuantizeLinear of x; the limits are those of the codes unless they are given."""
    least, most = (0, 255) if kind == ingot.u8 else (-128, 127)
    low, high = least - zero if low is None else low, most - zero if high is None else high
    whole = (x / 0.25).round().clip(float(low), float(high)).cast(ingot.i32)
    return (whole + zero if zero else whole).cast(kind)


def numbers(code, zero):
    whole = code.cast(ingot.i16) - zero if zero else code
    return whole.cast(ingot.f32) * 0.25


def bytes_made(graph):
    return sum(v.tensor.dtype in (ingot.u8, ingot.i8) for v in graph.body)


def before_and_after(function):
    graph = Simplify()(trace(function, [ingot.f32[EDGES.shape]]).graph)
    return graph, Rounded()(graph)


@pytest.mark.parametrize(
    ("kind", "zero"), [(ingot.u8, 0), (ingot.u8, 100), (ingot.u8, 255), (ingot.i8, 0), (ingot.i8, 100), (ingot.i8, -5)]
)
def test_there_and_back(kind, zero):
    before, after = before_and_after(lambda x: numbers(codes(x, kind, zero), zero))
    assert bytes_made(before) == 1
    assert bytes_made(after) == 0
    assert [v.op.name for v in after.body if v.op.name in ("cast", "add", "sub")] == ["cast", "cast"]
    for a, b in zip(run_graph(before, {"x": EDGES}), run_graph(after, {"x": EDGES}), strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (numbers(codes(x, ingot.u8, 7), 7), codes(x, ingot.u8, 7)),  # others read the codes
        lambda x: numbers(codes(x, ingot.u8, 7), 8),  # another zero point
        lambda x: numbers(codes(x, ingot.u8, 7, low=-8), 7),  # a code below 0 wraps
        lambda x: numbers(codes(x, ingot.i8, 0, high=128), 0),
        lambda x: (x * 4.0).clip(0.0, 255.0).cast(ingot.i32).cast(ingot.u8).cast(ingot.f32),  # cut, not rounded
    ],
)
def test_what_stays(function):
    before, after = before_and_after(function)
    assert bytes_made(after) == bytes_made(before) > 0
