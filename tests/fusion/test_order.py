"""The order of kernels: producers first, and little memory."""

from __future__ import annotations

import numpy as np

import ingot
from ingot import nn, optim
from ingot.compiler.fusion.plan import KernelStep
from tests.fusion.support import plan_of

ROWS, WIDTH, LAYERS = 512, 64, 8


def test_a_gradient_runs_as_soon_as_it_frees_an_activation():
    """The activations of all layers at most, and what one layer of the backward pass needs: not its cotangents of
    all layers as well."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]

    def loss(model, x):
        return (model(x) ** 2.0).mean()

    trainer = ingot.Trainer(nn.Sequential(*layers), loss, optim.SGD(0.1), ingot.f32[ROWS, WIDTH], cache=False)
    activation = 4 * ROWS * WIDTH
    assert LAYERS * activation < (trainer.executable.peak_bytes or 0) < (LAYERS + 4) * activation


def test_what_is_made_of_arguments_alone_waits_for_its_reader():
    def function(x, w, v):
        large = w.softmax().transpose(1, 0)
        for _ in range(3):
            x = (x @ v).tanh()
        return large @ x

    plan = plan_of(function, ingot.f32[32, 32], ingot.f32[32, 64], ingot.f32[32, 32])
    kernels = [[v.op.name for v in step.values] for step in plan.steps if isinstance(step, KernelStep)]
    (made,) = [n for n, ops in enumerate(kernels) if "max" in ops]
    assert made >= len(kernels) - 2


def test_a_state_is_read_before_it_is_updated():
    """Also by a kernel that would rather run later."""
    model = nn.Linear(8, 8)
    trainer = ingot.Trainer(model, lambda m, x: (m(m(x)) ** 2.0).sum(), optim.SGD(0.01), ingot.f32[4, 8], cache=False)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    losses = [float(trainer.step(x)) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
