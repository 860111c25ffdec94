"""A memory budget is met by computing values again, to the last bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import ingot
from ingot import nn, optim

ROWS, WIDTH = 64, 32


def trainer(budget: int | None = None) -> ingot.Trainer:
    nn.seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]

    def loss(model, x):
        return (model(x) ** 2.0).mean()

    rows = ingot.f32[ROWS, WIDTH]
    return ingot.Trainer(nn.Sequential(*layers), loss, optim.SGD(0.1), rows, cache=False, memory_budget=budget)


@functools.cache
def usual_bytes() -> int:
    return trainer().executable.peak_bytes or 0


def test_a_smaller_budget_is_met_with_the_same_bits():
    usual, small = trainer(), trainer(usual_bytes() * 9 // 10)
    assert (small.executable.peak_bytes or 0) <= usual_bytes() * 9 // 10
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    assert [usual.step(x) for _ in range(2)] == [small.step(x) for _ in range(2)]
    for name, state in usual.states.items():
        np.testing.assert_array_equal(state, small.states[name])


def test_what_is_computed_again_is_said():
    report = str(trainer(usual_bytes() * 9 // 10).executable.explain())
    assert "is computed again for late readers" in report


def test_a_budget_that_is_enough_changes_nothing():
    assert trainer(usual_bytes()).executable.peak_bytes == usual_bytes()


def test_a_budget_out_of_reach_is_refused_with_the_size_that_was_reached():
    with pytest.raises(ingot.IngotError, match="needs (\\d+) bytes") as refused:
        trainer(1024)
    reached = int(str(refused.value).split("needs ")[1].split(" ")[0])
    assert reached < usual_bytes()
    assert trainer(reached).executable.peak_bytes == reached
