"""Attention against its definition, one query at a time; masks, shared heads, long rows, rotary positions."""

import math

import numpy as np
import pytest

from ingot.compiler import autodiff
from ingot.compiler.ir.graph import Builder, Graph
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.types import boolean, f16, f32, f64, i32
from ingot.compiler.ops import attention
from ingot.compiler.ops.attention import Attention, rotary_angles, rotary_embedding
from ingot.compiler.ops.base import Node, OpTypeError
from ingot.compiler.passes.decompose import Decompose
from tests.ops.harness import build, call, check_gradient, decomposition, run


def one_query(q, k, v, scale, seen):
    """The attention of one query over the keys it sees."""
    scores = np.array([q @ key * scale for key in k[seen]])
    weight = np.exp(scores - scores.max())
    return weight @ v[seen] / weight.sum()


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_is_its_definition(kv_heads, causal, offset, rng):
    q = rng.standard_normal((2, 4, 3, 5))
    k, v = rng.standard_normal((2, kv_heads, 6, 5)), rng.standard_normal((2, kv_heads, 6, 2))
    op = Attention(None, causal, offset)
    found = run(decomposition(op, (f64[q.shape], f64[k.shape], f64[v.shape])), q, k, v)[0]
    for b, h, t in np.ndindex(2, 4, 3):
        shared = h * kv_heads // 4
        seen = slice(0, t + offset + 1) if causal else slice(None)
        expected = one_query(q[b, h, t], k[b, shared], v[b, shared], 1 / math.sqrt(5), seen)
        np.testing.assert_allclose(found[b, h, t], expected, 1e-10, 1e-14)


def test_a_bool_mask_hides_and_a_float_mask_adds(rng):
    q, k, v = (rng.standard_normal((1, 2, 4, 3)) for _ in range(3))
    keep = rng.random((4, 4)) < 0.6
    keep[:, 0] = True
    op = Attention()
    hidden = np.where(keep, 0.0, -np.inf)
    np.testing.assert_allclose(op.evaluate(q, k, v, keep), op.evaluate(q, k, v, hidden), 1e-12)
    causal = Attention(causal=True).evaluate(q, k, v)
    np.testing.assert_allclose(op.evaluate(q, k, v, np.tril(np.ones((4, 4), bool))), causal, 1e-12)


def test_causal_queries_do_not_depend_on_later_keys(rng):
    q, k, v = (rng.standard_normal((1, 1, 5, 3)) for _ in range(3))
    before = Attention(causal=True).evaluate(q, k, v)
    k[0, 0, 3:], v[0, 0, 3:] = 7.0, -7.0
    after = Attention(causal=True).evaluate(q, k, v)
    np.testing.assert_array_equal(before[0, 0, :3], after[0, 0, :3])
    assert not np.allclose(before[0, 0, 3:], after[0, 0, 3:])


def test_large_scores_do_not_overflow():
    q = np.full((1, 1, 1, 1), 1e4, np.float32)
    k = np.array([1e4, 1e4, -1e4], np.float32).reshape(1, 1, 3, 1)
    v = np.array([1, 3, 100], np.float32).reshape(1, 1, 3, 1)
    assert run(decomposition(Attention(1.0), (f32[1, 1, 1, 1], f32[1, 1, 3, 1], f32[1, 1, 3, 1])), q, k, v)[0] == 2


def test_half_precision_scores_are_in_single():
    """300 * 300 is more than f16 holds."""
    q = np.full((1, 1, 1, 1), 300, np.float16)
    k = np.array([300, 299], np.float16).reshape(1, 1, 2, 1)
    v = np.array([1, 2], np.float16).reshape(1, 1, 2, 1)
    types = (f16[1, 1, 1, 1], f16[1, 1, 2, 1], f16[1, 1, 2, 1])
    found = run(decomposition(Attention(1 / 300), types), q, k, v)[0]
    weight = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(found.item(), weight + 2 * (1 - weight), 1e-3)
    assert found.dtype == np.float16


def test_symbolic_lengths(rng):
    """One graph and its gradient, for a growing number of keys; the causal offset follows from the lengths."""
    types = (f64["batch", 4, "t", 3], f64["batch", 2, "s", 3], f64["batch", 2, "s", 3])

    def attend(q: Node, k: Node, v: Node) -> Node:
        return q.attention(k, v, causal=True, offset=k.shape[2] - q.shape[2])

    graph = build(attend, types)
    vjp = autodiff.differentiate(graph, (0, 1, 2))
    op = graph.outputs[0].op
    assert isinstance(op, Attention)
    apart = build(op.decompose, types)
    for length, keys in ((1, 1), (1, 5), (3, 4)):
        arrays = [rng.standard_normal((2, 4, length, 3)), *rng.standard_normal((2, 2, 2, keys, 3))]
        (expected,) = run(graph, *arrays)
        np.testing.assert_allclose(run(apart, *arrays)[0], expected, 1e-12)
        g = rng.standard_normal(expected.shape)
        # the result is linear in the values
        np.testing.assert_allclose((run(vjp, *arrays, g)[2] * arrays[2]).sum(), (g * expected).sum(), 1e-9)


def test_attention_is_one_value_of_the_graph():
    graph = build(lambda q, k, v: q.attention(k, v, causal=True), (f32[1, 2, 3, 4],) * 3)
    assert [type(v.op) for v in graph.body] == [Attention]


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Attention(), (f32[2, 3, 4], f32[2, 3, 4], f32[2, 3, 4]), "queries are"),
        (Attention(), (i32[1, 2, 3, 4],) * 3, "of floats"),
        (Attention(), (f32[1, 2, 3, 4], f64[1, 2, 3, 4], f32[1, 2, 3, 4]), "f32 and f64 differ"),
        (Attention(), (f32[1, 3, 3, 4], f32[1, 2, 3, 4], f32[1, 2, 3, 4]), "3 heads of queries cannot share 2"),
        (Attention(), (f32[1, 2, 3, 4], f32[1, 2, 3, 5], f32[1, 2, 3, 4]), "sizes of queries and keys differ"),
        (Attention(), (f32[1, 2, 3, 4], f32[1, 2, 5, 4], f32[1, 2, 3, 4]), "lengths of keys and values differ"),
        (Attention(), (f32[1, 2, 3, "d"],) * 3, "say which scale"),
        (Attention(), (*(f32[1, 2, 3, 4],) * 3, i32[3, 3]), "the mask is i32"),
        (Attention(), (*(f32[1, 2, 3, 4],) * 3, f32[2, 1, 3, 3]), "does not stretch to the scores"),
    ],
)
def test_attention_says_what_is_wrong(op, types, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(*types)


# --- rotary positions -----------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [6, 8])
def test_rotation_is_of_complex_numbers(interleaved, size, rng):
    """Pairs are complex numbers times exp(i angle); elements beyond six stay."""
    x, angle = rng.standard_normal((2, 4, 5, size)), rng.standard_normal((5, 3))
    found = call(lambda x, c, s: rotary_embedding(x, c, s, interleaved), x, np.cos(angle), np.sin(angle))
    first, second = (slice(0, 6, 2), slice(1, 6, 2)) if interleaved else (slice(0, 3), slice(3, 6))
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle)
    np.testing.assert_allclose(found[..., first], turned.real, 1e-12, 1e-12)
    np.testing.assert_allclose(found[..., second], turned.imag, 1e-12, 1e-12)
    np.testing.assert_array_equal(found[..., 6:], x[..., 6:])


def test_scores_of_rotated_vectors_depend_on_the_distance_only(rng):
    x, y = rng.standard_normal((2, 1, 8)).astype(np.float32)

    def product(positions: Node, x: Node, y: Node) -> Node:
        cosine, sine = rotary_angles(positions, 8)
        a, b = (rotary_embedding(v.broadcast_to((6, 8)), cosine, sine) for v in (x, y))
        return a @ b.transpose((1, 0))

    scores = call(product, np.arange(6), x, y)
    for distance in range(-5, 6):
        along = np.diagonal(scores, distance)
        np.testing.assert_allclose(along, along[0], 1e-4, 1e-5)


def test_rotary_angles():
    cosine, sine = call(lambda p: rotary_angles(p, 4, 100.0), np.array([0, 3]))
    angle = np.array([[0, 0], [3, 0.3]])
    np.testing.assert_allclose(cosine, np.cos(angle), 1e-6)
    np.testing.assert_allclose(sine, np.sin(angle), 1e-6)
    with pytest.raises(OpTypeError, match="do not make pairs"):
        build(lambda p: rotary_angles(p, 5), (i32[2],))


def test_rotary_gradient(rng):
    types = (f64[2, 3, 6], f64[3, 2], f64[3, 2])
    for interleaved in (False, True):
        graph = build(lambda x, c, s: rotary_embedding(x, c, s, interleaved), types)  # noqa: B023
        check_gradient(graph, tuple(rng.standard_normal(t.static_shape) for t in types), (0, 1, 2), rng)


# --- causal attention in halves --------------------------------------------------------------


LONG = [
    ((1, 2, 300, 4), (1, 2, 300, 4), {"causal": True}, None),
    ((1, 4, 300, 4), (1, 2, 320, 4), {"causal": True}, None),  # heads that are shared
    ((1, 1, 265, 4), (1, 1, 270, 4), {"causal": True, "offset": 5}, (265, 270)),
    ((2, 1, 150, 4), (2, 1, 150, 4), {"causal": True}, (2, 1, 1, 150)),  # a mask for every batch
    ((2, 4, 150, 4), (2, 2, 150, 4), {"causal": True}, (2, 4, 1, 150)),
    ((1, 4, 150, 4), (1, 2, 150, 4), {"causal": True}, (4, 150, 150)),
]


@pytest.fixture
def few_queries(monkeypatch):
    """The number of queries from which causal attention is halved, small enough for a test."""
    monkeypatch.setattr(attention, "CAUSAL_QUERIES", 64)


@pytest.mark.parametrize(("queries", "keys", "choices", "mask"), LONG)
def test_divided_attention_is_attention(queries, keys, choices, mask, rng, few_queries):
    op = Attention(**choices)
    arrays = [rng.standard_normal(shape) for shape in (queries, keys, keys)]
    if mask is not None:
        arrays.append(rng.random(mask) < 0.7)
        arrays[-1][..., 0] = True
    types = [f64[a.shape] if a.dtype == np.float64 else boolean[a.shape] for a in arrays]
    graph = Decompose()(build(lambda *nodes: nodes[0].apply(op, *nodes[1:]), types))
    np.testing.assert_allclose(run(graph, *arrays)[0], op.evaluate(*arrays), 1e-10, 1e-13)


def test_the_gradient_of_divided_attention_is_that_of_attention(rng, monkeypatch):
    shape = (1, 2, 40, 3)
    q, k, v, g = (rng.standard_normal(shape) for _ in range(4))

    def gradients():
        builder = Builder()
        inputs = [builder.input(name, f64[shape]) for name in "qkvg"]
        y = builder.emit(Attention(causal=True), *inputs[:3])
        found = autodiff.gradients(builder, [y], [inputs[3]], inputs[:3])
        return run_graph(
            Graph("gradient", builder.inputs, tuple(found), ("dq", "dk", "dv")),
            dict(zip("qkvg", (q, k, v, g), strict=True)),
        )

    expected = gradients()
    monkeypatch.setattr(attention, "CAUSAL_QUERIES", 16)
    for found, want in zip(gradients(), expected, strict=True):
        np.testing.assert_allclose(found, want, 1e-10, 1e-13)
