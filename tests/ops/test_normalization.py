"""Normalisations against NumPy in double precision: cancellation, statistics as results, symbolic batches."""

import numpy as np
import pytest

from ingot.compiler import autodiff
from ingot.compiler.ir.types import f16, f32, f64, i32
from ingot.compiler.ops.base import Node, OpTypeError
from ingot.compiler.ops.normalization import (
    BatchNorm,
    BatchNormTraining,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
    RmsNorm,
)
from tests.ops.harness import build, call, check_gradient, decomposition, run


def standard(x, axes, epsilon=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def test_each_normalises_over_its_axes(rng):
    x = rng.standard_normal((3, 6, 4, 5))
    grouped = x.reshape(3, 2, 3, 4, 5)
    pairs = [
        (LayerNorm(), standard(x, (3,))),
        (LayerNorm(3), standard(x, (1, 2, 3))),
        (InstanceNorm(), standard(x, (2, 3))),
        (InstanceNorm(-1), standard(x, (1, 2))),
        (GroupNorm(2), standard(grouped, (2, 3, 4)).reshape(x.shape)),
        (GroupNorm(6), standard(x, (2, 3))),
        (RmsNorm(), x / np.sqrt((x * x).mean(3, keepdims=True) + 1e-6)),
    ]
    for op, expected in pairs:
        np.testing.assert_allclose(op.evaluate(x), expected, 1e-12, 1e-12, err_msg=str(op))


@pytest.mark.parametrize("op", [LayerNorm(), InstanceNorm(), GroupNorm(2), BatchNormTraining()], ids=str)
def test_a_large_mean_does_not_cancel(op, rng):
    """The mean square minus the squared mean would have no correct digit here."""
    exact = rng.standard_normal((4, 2, 32)) + 3000.0
    exact = exact.astype(np.float32).astype(np.float64)
    graph = decomposition(op, (f32[4, 2, 32],))
    found = run(graph, exact.astype(np.float32))[0]
    expected = op.evaluate(exact)
    expected = expected[0] if isinstance(expected, tuple) else expected
    # the mean itself is known to within 3000 * 2^-24, of a standard deviation of 1
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_constant_data_is_zero_and_finite():
    x = np.full((2, 8), 7.0, np.float32)
    for op in (LayerNorm(), GroupNorm(2)):
        np.testing.assert_array_equal(run(decomposition(op, (f32[2, 8],)), x)[0], 0)


def test_half_precision_is_computed_in_single():
    """Squares of 300 overflow f16."""
    x = np.array([[300.0, -300.0, 300.0, -300.0]], np.float16)
    for op in (LayerNorm(), RmsNorm()):
        np.testing.assert_array_equal(run(decomposition(op, (f16[1, 4],)), x)[0], np.sign(x))


def test_batch_statistics_are_results(rng):
    x = rng.standard_normal((5, 3, 4))
    y, mean, variance = call(lambda node: node.batch_norm_training(), x)
    np.testing.assert_allclose(mean, x.mean((0, 2)), 1e-12)
    np.testing.assert_allclose(variance, x.var((0, 2)), 1e-12)
    np.testing.assert_allclose(y, standard(x, (0, 2)), 1e-10)


def test_training_and_inference_agree(rng):
    """Inference with the statistics of the batch is training."""

    def difference(x: Node, scale: Node, shift: Node) -> Node:
        y, mean, variance = x.batch_norm_training(scale, shift, axis=1)
        return y - x.batch_norm(scale, shift, mean, variance, axis=1)

    arrays = rng.standard_normal((5, 3, 4)), rng.standard_normal(3), rng.standard_normal(3)
    np.testing.assert_allclose(call(difference, *arrays), 0, atol=1e-12)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_gradient_through_any_of_the_results(used, rng):
    def function(x: Node, scale: Node, shift: Node) -> tuple[Node, ...]:
        results = x.batch_norm_training(scale, shift)
        return tuple(results[n] for n in used)

    types = (f64[4, 3, 2], f64[3], f64[3])
    arrays = tuple(rng.standard_normal(t.static_shape) for t in types)
    check_gradient(build(function, types), arrays, (0, 1, 2), rng)


OPS = [LayerNorm(), LayerNorm(2), InstanceNorm(), GroupNorm(2), BatchNormTraining(), RmsNorm(), LocalResponseNorm(3)]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_symbolic_batch(op, rng):
    """Forward and gradient of one graph for batches of several sizes."""
    graph = build(op.decompose, (f64["batch", 4, "length"],))
    vjp = autodiff.differentiate(build(lambda x: x.apply(op), (f64["batch", 4, "length"],)), (0,))
    for shape in ((2, 4, 3), (5, 4, 6)):
        x = rng.standard_normal(shape)
        expected = op.evaluate(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for found, wanted in zip(run(graph, x), expected, strict=True):
            np.testing.assert_allclose(found, wanted, 1e-9, 1e-12)
        weights = [rng.standard_normal(e.shape) for e in expected]
        (gradient,) = run(vjp, x, *weights)
        step = 1e-6 * rng.standard_normal(shape)
        moved = [op.evaluate(x + step), op.evaluate(x - step)]
        moved = [m if isinstance(m, tuple) else (m,) for m in moved]
        difference = sum(np.sum(w * (a - b)) / 2 for w, a, b in zip(weights, *moved, strict=True))
        np.testing.assert_allclose((gradient * step).sum(), difference, 1e-5, 1e-14)


def test_forward_and_backward_share_their_statistics():
    """In one graph, the decomposed forward pass and the gradient compute the mean and the variance once."""

    def both(x: Node, g: Node) -> tuple[Node, Node]:
        op = LayerNorm()
        y = op.decompose(x)
        return y, op.vjp(g, y, x)[0]  # type: ignore[return-value]

    graph = build(both, (f32[4, 8], f32[4, 8]))
    assert sum(v.op.name == "rsqrt" for v in graph.body) == 1  # type: ignore[attr-defined]
    assert sum(v.op.name == "mean" for v in graph.body) == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_local_response_counts_neighbours(size):
    x = np.ones((1, 5, 1))
    found = run(decomposition(LocalResponseNorm(size, float(size), 1.0, 0.0), (f64[1, 5, 1],)), x)[0]
    low, high = (size - 1) // 2, size // 2
    expected = [1 / (min(c + high, 4) - max(c - low, 0) + 1) for c in range(5)]
    np.testing.assert_allclose(found[0, :, 0], expected, 1e-12)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (LayerNorm(), (i32[2, 3],), "takes float tensors, not i32"),
        (LayerNorm(3), (f32[2, 3],), "does not have 3 trailing axes"),
        (LayerNorm(), (f32[2, 3], f32[2]), r"the scale of f32\[2, 3\] has shape \[3\]"),
        (LayerNorm(), (f32[2, 3], f32[3], f64[3]), "the shift is f64 for data of f32"),
        (LayerNorm(), (f32[2, 3], f32[3], f32[3], f32[3]), "not 4 tensors"),
        (GroupNorm(2), (f32[2, 3, 4],), "2 groups do not divide the 3 channels"),
        (InstanceNorm(0), (f32[2, 3, 4],), "channels along axis 0"),
        (BatchNorm(), (f32[2, 3, 4], f32[3]), "takes data, scale, shift, mean and variance"),
        (BatchNorm(), (f32[2, 3], f32[3], f32[3], f32[3], f32[2]), r"the variance of f32\[2, 3\]"),
        (RmsNorm(), (f32[2, 3], f32[3], f32[3]), "takes data and a scale"),
        (LocalResponseNorm(0), (f32[2, 3],), "positive size"),
    ],
)
def test_normalisation_says_what_is_wrong(op, types, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(*types)
