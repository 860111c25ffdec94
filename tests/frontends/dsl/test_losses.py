"""Losses against their formulas, in every reduction, at the edges where naive formulas overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.compiler.ir.types import type_of
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.nn import losses
from tests.frontends.dsl.support import close, numeric_gradient, traced_run

RNG = np.random.default_rng(3)
P, T = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3))
LABELS = np.array([0, 2, 1, 2])
UNIT = RNG.uniform(0.05, 0.95, (4, 3))
BITS = (RNG.random((4, 3)) < 0.5).astype(np.float64)
SIGNS = 2 * BITS - 1


def log_softmax(x, axis=-1):
    return x - x.max(axis, keepdims=True) - np.log(np.exp(x - x.max(axis, keepdims=True)).sum(axis, keepdims=True))


def picked(x):
    return log_softmax(x)[np.arange(4), LABELS]


TARGETS = np.exp(log_softmax(T))

# name -> (loss of prediction and target, prediction, target, elements by formula)
LOSSES = {
    "mse": (nn.mse, P, T, lambda p, t: (p - t) ** 2),
    "l1": (nn.l1, P, T, lambda p, t: abs(p - t)),
    "huber": (nn.huber, 3 * P, T, lambda p, t: np.where(abs(p - t) <= 1, 0.5 * (p - t) ** 2, abs(p - t) - 0.5)),
    "huber_delta": (
        lambda p, t, **k: nn.huber(p, t, delta=0.3, **k), P, T,
        lambda p, t: np.where(abs(p - t) <= 0.3, 0.5 * (p - t) ** 2, 0.3 * (abs(p - t) - 0.15)),
    ),
    "cross_entropy": (nn.cross_entropy, P, LABELS, lambda p, t: -picked(p)),
    "cross_entropy_smoothed": (
        lambda p, t, **k: nn.cross_entropy(p, t, label_smoothing=0.1, **k), P, LABELS,
        lambda p, t: -(0.9 * picked(p) + 0.1 * log_softmax(p).mean(-1)),
    ),
    "cross_entropy_probabilities": (nn.cross_entropy, P, TARGETS, lambda p, t: -(t * log_softmax(p)).sum(-1)),
    "nll": (lambda p, t, **k: nn.nll(p.log_softmax(), t, **k), P, LABELS, lambda p, t: -picked(p)),
    "bce_logits": (
        nn.binary_cross_entropy_with_logits, P, BITS,
        lambda p, t: -(t * np.log(1 / (1 + np.exp(-p))) + (1 - t) * np.log(1 - 1 / (1 + np.exp(-p)))),
    ),
    "bce": (nn.binary_cross_entropy, UNIT, BITS, lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p))),
    "hinge": (nn.hinge, P, SIGNS, lambda p, t: np.maximum(0, 1 - t * p)),
    "kl": (
        lambda p, t, **k: nn.kl_divergence(p.log_softmax(), t, **k), P, TARGETS,
        lambda p, t: (t * (np.log(t) - log_softmax(p))).sum(-1),
    ),
    "gaussian_nll": (
        lambda p, t, **k: nn.gaussian_nll(p, p * 0.0 + 0.7, t, **k), P, T,
        lambda p, t: 0.5 * (np.log(0.7) + (t - p) ** 2 / 0.7 + math.log(2 * math.pi)),
    ),
    "poisson_nll": (losses.poisson_nll, P, abs(T), lambda p, t: np.exp(p) - t * p),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name, reduction):
    loss, prediction, target, formula = LOSSES[name]
    types = [type_of(prediction), type_of(target)]
    found = traced_run(lambda p, t: loss(p, t, reduction=reduction), types, prediction, target)
    expected = formula(prediction, target)
    close(found, {"mean": np.mean, "sum": np.sum, "none": np.asarray}[reduction](expected), 1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_of_a_loss(name):
    loss, prediction, target, formula = LOSSES[name]
    found = traced_run(functions.grad(loss), [type_of(prediction), type_of(target)], prediction, target)
    expected = numeric_gradient(lambda p: float(formula(p, target).mean()), prediction)
    close(found, expected, 1e-5, 1e-7)


def test_cosine_embedding_and_triplet():
    a, b, c = (RNG.standard_normal((5, 4)) for _ in range(3))
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    close(traced_run(losses.cosine_embedding, [type_of(a)] * 2, a, b), (1 - cosine).mean(), 1e-7)
    near, far = ((a - b) ** 2).sum(1), ((a - c) ** 2).sum(1)
    close(traced_run(losses.triplet, [type_of(a)] * 3, a, b, c), np.maximum(0, near - far + 1).mean(), 1e-9)


def test_large_logits_stay_finite():
    """The naive formulas overflow at 1000 in double precision, at 100 in single."""
    x = np.array([[1000.0, 0.0, -1000.0], [-1e4, 1e4, 0.0]])
    labels = np.array([1, 1])
    close(traced_run(nn.cross_entropy, [type_of(x), type_of(labels)], x, labels), 500.0)
    logits, bits = np.array([-1000.0, 1000.0, 1000.0]), np.array([0.0, 1.0, 0.0])
    close(traced_run(nn.binary_cross_entropy_with_logits, [type_of(logits)] * 2, logits, bits), 1000 / 3)
    gradient = traced_run(functions.grad(nn.cross_entropy), [type_of(x), type_of(labels)], x, labels)
    close(gradient, np.array([[0.5, -0.5, 0], [0, 0, 0]]))


def test_probabilities_of_zero_and_one_stay_finite():
    p, t = np.array([0.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0])
    found = traced_run(lambda p, t: nn.binary_cross_entropy(p, t, reduction="none"), [type_of(p)] * 2, p, t)
    assert np.isfinite(found).all()
    assert found[2] > 10


def test_targets_of_probability_zero_count_nothing():
    log_p, t = np.log([[0.5, 0.25, 0.25]]), np.array([[1.0, 0.0, 0.0]])
    close(traced_run(nn.kl_divergence, [type_of(log_p)] * 2, log_p, t), math.log(2))


def test_cross_entropy_along_another_axis():
    """Segmentation: classes along axis 1, a label for each pixel."""
    x, labels = RNG.standard_normal((2, 3, 4, 5)), RNG.integers(0, 3, (2, 4, 5))
    logs = log_softmax(x, 1)
    expected = -np.take_along_axis(logs, labels[:, None], 1).mean()
    close(
        traced_run(lambda x, t: nn.cross_entropy(x, t, axis=1), [type_of(x), type_of(labels)], x, labels),
        expected,
        1e-9,
    )


def test_labels_of_any_integer_type():
    for dtype in (np.uint8, np.int32):
        labels = LABELS.astype(dtype)
        close(traced_run(nn.cross_entropy, [type_of(P), type_of(labels)], P, labels), -picked(P).mean(), 1e-9)


def test_a_label_out_of_range_is_an_error_when_it_runs():
    executable = ingot.compile(nn.cross_entropy, ingot.f32[4, 3], ingot.i64[4])
    with pytest.raises(Exception, match="out of range"):
        executable(P.astype(np.float32), np.array([0, 1, 2, 3]))


def test_an_unknown_reduction():
    with pytest.raises(ValueError, match="median"):
        traced_run(lambda p, t: nn.mse(p, t, reduction="median"), [type_of(P)] * 2, P, T)
