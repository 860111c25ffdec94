"""Losses: functions of predictions and targets that give a scalar (the mean), or one number per example
with reduction="none", or the sum."""

from __future__ import annotations

import math
from typing import Any


def _reduced(values: Any, reduction: str) -> Any:
    match reduction:
        case "mean":
            return values.mean()
        case "sum":
            return values.sum()
        case "none":
            return values
    raise ValueError(f'reduction is "mean", "sum" or "none", not {reduction!r}')


def mse(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    difference = prediction - target
    return _reduced(difference * difference, reduction)


def l1(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    return _reduced((prediction - target).abs(), reduction)


def huber(prediction: Any, target: Any, delta: float = 1.0, reduction: str = "mean") -> Any:
    """Quadratic within delta of the target, linear beyond."""
    error = (prediction - target).abs()
    small = error.clip(high=delta)
    return _reduced(0.5 * small * small + delta * (error - small), reduction)


def cross_entropy(
    logits: Any, labels: Any, label_smoothing: float = 0.0, axis: int = -1, reduction: str = "mean"
) -> Any:
    """-log softmax(logits)[label]. Labels are integers, or probabilities of the logits' shape."""
    log_probabilities = logits.log_softmax(axis)
    if labels.dtype.is_float:
        return _reduced(-(log_probabilities * labels).sum(axis=axis), reduction)
    place = axis % logits.rank
    classes = logits.shape[place]
    picked = log_probabilities.gather_elements(labels.astype("i64").expand_dims(place), axis=place).squeeze(place)
    if not label_smoothing:
        return _reduced(-picked, reduction)
    spread = log_probabilities.sum(axis=place) / classes
    return _reduced(-((1 - label_smoothing) * picked + label_smoothing * spread), reduction)


def nll(log_probabilities: Any, labels: Any, reduction: str = "mean") -> Any:
    """-log_probabilities[label] over the last axis."""
    picked = log_probabilities.gather_elements(labels.astype("i64").expand_dims(-1), axis=log_probabilities.rank - 1)
    return _reduced(-picked.squeeze(-1), reduction)


def binary_cross_entropy_with_logits(logits: Any, targets: Any, reduction: str = "mean") -> Any:
    """-(t log s(x) + (1 - t) log(1 - s(x))) without computing s(x): softplus(x) - t x."""
    return _reduced(logits.softplus() - targets * logits, reduction)


def binary_cross_entropy(probabilities: Any, targets: Any, reduction: str = "mean", epsilon: float = 1e-7) -> Any:
    p = probabilities.clip(epsilon, 1 - epsilon)
    return _reduced(-(targets * p.log() + (1.0 - targets) * (1.0 - p).log()), reduction)


def hinge(scores: Any, targets: Any, reduction: str = "mean") -> Any:
    """max(0, 1 - t s), targets -1 or 1."""
    return _reduced((1.0 - targets * scores).relu(), reduction)


def kl_divergence(log_prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """Sum over the last axis of t (log t - log p); 0 log 0 is 0."""
    safe = (target > 0).where(target, target.full_like(1.0))
    return _reduced((target * (safe.log() - log_prediction)).sum(axis=-1), reduction)


def gaussian_nll(mean: Any, variance: Any, target: Any, reduction: str = "mean") -> Any:
    """-log of the normal density of the target."""
    error = target - mean
    return _reduced(0.5 * (variance.log() + error * error / variance + math.log(2 * math.pi)), reduction)


def poisson_nll(log_rate: Any, target: Any, reduction: str = "mean") -> Any:
    """exp(log_rate) - target * log_rate: the part of -log density that depends on the rate."""
    return _reduced(log_rate.exp() - target * log_rate, reduction)


def cosine_embedding(a: Any, b: Any, epsilon: float = 1e-8) -> Any:
    """1 - cosine of the angle between a and b along the last axis, averaged."""
    norms = ((a * a).sum(axis=-1) * (b * b).sum(axis=-1) + epsilon).sqrt()
    return (1.0 - (a * b).sum(axis=-1) / norms).mean()


def triplet(anchor: Any, positive: Any, negative: Any, margin: float = 1.0) -> Any:
    """max(0, |a - p|^2 - |a - n|^2 + margin), averaged."""
    near = ((anchor - positive) * (anchor - positive)).sum(axis=-1)
    far = ((anchor - negative) * (anchor - negative)).sum(axis=-1)
    return (near - far + margin).relu().mean()
