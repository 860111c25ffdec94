"""Late readers of a part do not keep the whole."""

from __future__ import annotations

import ingot
from ingot.compiler.fusion.partition import partition
from ingot.compiler.fusion.plan import FusionPlan, KernelStep
from tests.fusion.support import check_plan, optimised, read_by


def plan_of(function, *types) -> FusionPlan:
    graph = optimised(ingot.trace(function, types).graph)
    plan = partition(graph)
    check_plan(graph, plan)
    return plan


def parts(plan: FusionPlan) -> list[tuple]:
    made = [b for step in plan.steps if isinstance(step, KernelStep) for b in step.kernel.outputs]
    return [b.shape for b in made if b.name.endswith(".part")]


def test_a_part_that_is_read_late_is_copied():
    def function(x, w, v):
        both = x @ w
        early, late = both[:, :48], both[:, 48:]
        for _ in range(3):
            early = (early @ v).tanh()
        return early[:, :16] * late

    plan = plan_of(function, ingot.f32[64, 32], ingot.f32[32, 64], ingot.f32[48, 48])
    assert parts(plan) == [(64, 16)]
    # nothing reads the whole once its first reader is done
    whole = [b for b in read_by(plan.steps[1]) if b.shape == (64, 64)]
    readers = [n for n, step in enumerate(plan.steps) if read_by(step) & set(whole)]
    assert max(readers) <= 3


def test_more_than_half_is_not_copied():
    def function(x, w, v):
        both = x @ w
        early, late = both[:, :16], both[:, 16:]
        for _ in range(3):
            early = (early @ v).tanh()
        return (early.sum(axis=1, keepdims=True) * late).sum()

    assert parts(plan_of(function, ingot.f32[64, 32], ingot.f32[32, 64], ingot.f32[16, 16])) == []


def test_what_is_read_soon_is_not_copied():
    def function(x, w):
        both = x @ w
        return both[:, :32].tanh() * both[:, 32:]

    assert parts(plan_of(function, ingot.f32[64, 32], ingot.f32[32, 64])) == []
