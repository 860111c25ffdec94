"""Optimisers against their update rules written out in NumPy, for several steps; schedules and clipping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import nn, optim
from tests.frontends.dsl.support import close

STEPS = 5
RNG = np.random.default_rng(4)
START = RNG.standard_normal(6).astype(np.float32)
GRADIENTS = RNG.standard_normal((STEPS, 6)).astype(np.float32)


class Weights(nn.Module):
    def __init__(self, dtype: Any = np.float32) -> None:
        self.w = START.astype(dtype)
        self.v = np.ones((2, 2), dtype)

    def forward(self, g):
        return (self.w * g).sum() + 0.5 * (self.v * self.v).sum()


def trained(optimizer, dtype: Any = np.float32):
    """Gradients that are given: d loss / d w is g, d loss / d v is v."""
    model = Weights(dtype)
    trainer = ingot.Trainer(model, lambda m, g: m(g.astype(m.w.dtype)), optimizer, ingot.f32[6])
    for gradient in GRADIENTS:
        trainer.step(gradient)
    return model.w, model.v


def sgd(w, slots, g, t, rate=0.1, momentum=0.0, nesterov=False, decay=0.0):
    g = g + decay * w
    slots["v"] = momentum * slots.get("v", 0) + g
    return w - rate * (g + momentum * slots["v"] if nesterov else slots["v"])


def adam(w, slots, g, t, rate=0.01, b1=0.9, b2=0.999, e=1e-8, decay=0.0, decoupled=False, amsgrad=False):
    if decay and not decoupled:
        g = g + decay * w
    slots["m"] = b1 * slots.get("m", 0) + (1 - b1) * g
    slots["s"] = b2 * slots.get("s", 0) + (1 - b2) * g * g
    m, s = slots["m"] / (1 - b1**t), slots["s"]
    if amsgrad:
        s = slots["x"] = np.maximum(slots.get("x", 0), s)
    if decay and decoupled:
        w = w - rate * decay * w
    return w - rate * m / (np.sqrt(s / (1 - b2**t)) + e)


def rmsprop(w, slots, g, t, rate=0.01, decay=0.99, e=1e-8, momentum=0.0):
    slots["s"] = decay * slots.get("s", 0) + (1 - decay) * g * g
    change = g / (np.sqrt(slots["s"]) + e)
    slots["v"] = momentum * slots.get("v", 0) + change
    return w - rate * slots["v"]


def adagrad(w, slots, g, t, rate=0.1, e=1e-10):
    slots["s"] = slots.get("s", 0) + g * g
    return w - rate * g / (np.sqrt(slots["s"]) + e)


RULES = {
    "sgd": (optim.SGD(0.1), sgd),
    "sgd_decay": (optim.SGD(0.1, weight_decay=0.05), lambda *a: sgd(*a, decay=0.05)),
    "momentum": (optim.SGD(0.1, momentum=0.9), lambda *a: sgd(*a, momentum=0.9)),
    "momentum_decay": (optim.SGD(0.1, momentum=0.9, weight_decay=0.1), lambda *a: sgd(*a, momentum=0.9, decay=0.1)),
    "nesterov": (optim.SGD(0.1, momentum=0.8, nesterov=True), lambda *a: sgd(*a, momentum=0.8, nesterov=True)),
    "adam": (optim.Adam(0.01), adam),
    "adam_betas": (optim.Adam(0.01, betas=(0.5, 0.7), epsilon=0.01), lambda *a: adam(*a, b1=0.5, b2=0.7, e=0.01)),
    "adam_decay": (optim.Adam(0.01, weight_decay=0.1), lambda *a: adam(*a, decay=0.1)),
    "amsgrad": (optim.Adam(0.01, betas=(0.9, 0.5), amsgrad=True), lambda *a: adam(*a, b2=0.5, amsgrad=True)),
    "adamw": (optim.AdamW(0.01, weight_decay=0.1), lambda *a: adam(*a, decay=0.1, decoupled=True)),
    "rmsprop": (optim.RMSProp(0.01), rmsprop),
    "rmsprop_momentum": (optim.RMSProp(0.01, decay=0.9, momentum=0.5), lambda *a: rmsprop(*a, decay=0.9, momentum=0.5)),
    "adagrad": (optim.Adagrad(0.1), adagrad),
}


def expected(rule):
    w, v = START.astype(np.float64), np.ones((2, 2))
    slots: tuple[dict, dict] = ({}, {})
    for t, gradient in enumerate(GRADIENTS, start=1):
        w, v = rule(w, slots[0], gradient.astype(np.float64), t), rule(v, slots[1], v, t)
    return w, v


@pytest.mark.parametrize("name", RULES)
def test_five_steps(name):
    optimizer, rule = RULES[name]
    for found, want in zip(trained(optimizer), expected(rule), strict=True):
        close(found, want, 2e-6, 2e-6)


def test_half_precision_parameters_are_updated_in_single():
    """Slots and arithmetic are f32; only the parameter is rounded."""
    optimizer, rule = RULES["adam"]
    found, _ = trained(optimizer, np.float16)
    assert found.dtype == np.float16
    close(found, expected(rule)[0], 3e-3, 3e-3)


def test_double_precision_parameters_stay_double():
    optimizer, rule = RULES["adam"]
    found, _ = trained(optimizer, np.float64)
    assert found.dtype == np.float64
    close(found, expected(rule)[0], 1e-9, 1e-9)


# --- learning rates ---------------------------------------------------------------------------------------


def rates(schedule, steps):
    """The rate of each step, read off a gradient of one."""

    class One(nn.Module):
        def __init__(self) -> None:
            self.w = np.zeros(1, np.float32)

        def forward(self):
            return self.w.sum()

    model = One()
    trainer = ingot.Trainer(model, lambda m: m(), optim.SGD(schedule))
    found, before = [], 0.0
    for _ in range(steps):
        trainer.step()
        found.append(before - float(model.w[0]))
        before = float(model.w[0])
    return found


def test_cosine():
    expected = [0.5 * (1 + math.cos(math.pi * t / 10)) for t in range(10)]
    close(rates(optim.cosine(1.0, 10), 12), [*expected, 0, 0], 1e-5, 1e-5)


def test_cosine_with_warm_up_and_a_final_rate():
    warm = [0.25, 0.5, 0.75, 1.0]
    falling = [0.1 + 0.45 * (1 + math.cos(math.pi * t / 6)) for t in range(6)]
    close(rates(optim.cosine(1.0, 10, warmup=4, final=0.1), 11), [*warm, *falling, 0.1], 1e-5, 1e-5)


def test_step_decay():
    close(rates(optim.step_decay(1.0, 3, 0.5), 7), [1, 1, 1, 0.5, 0.5, 0.5, 0.25], 1e-5, 1e-5)


def test_piecewise():
    close(rates(optim.piecewise([2, 5], [1.0, 0.5, 0.125]), 7), [1, 1, 0.5, 0.5, 0.5, 0.125, 0.125], 1e-5, 1e-5)


def test_any_function_of_the_step():
    close(rates(lambda step: 1.0 / (step + 1.0), 4), [1, 1 / 2, 1 / 3, 1 / 4], 1e-5, 1e-5)
    close(rates(lambda step: 0.25, 3), [0.25] * 3, 1e-6)


# --- clipping -----------------------------------------------------------------------------------------------


def test_clip_norm_scales_all_gradients_together():
    limit = 0.5
    w, v = START.astype(np.float64), np.ones((2, 2))
    for g in GRADIENTS.astype(np.float64):
        norm = math.sqrt((g**2).sum() + (v**2).sum())
        scale = min(1.0, limit / (norm + 1e-6))
        w, v = w - 0.1 * g * scale, v - 0.1 * v * scale
    for found, want in zip(trained(optim.SGD(0.1, clip_norm=limit)), (w, v), strict=True):
        close(found, want, 2e-6, 2e-6)


def test_a_norm_below_the_limit_changes_nothing():
    for a, b in zip(trained(optim.SGD(0.1, clip_norm=1e6)), trained(optim.SGD(0.1)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_clip_value_limits_each_component():
    w = START.astype(np.float64)
    for g in GRADIENTS.astype(np.float64):
        w = w - 0.1 * g.clip(-0.3, 0.3)
    close(trained(optim.SGD(0.1, clip_value=0.3))[0], w, 2e-6, 2e-6)


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(ValueError, match="momentum"):
        optim.SGD(0.1, nesterov=True)
