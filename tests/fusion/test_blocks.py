"""Products, the rows between them and the products of those rows become one kernel, where the rows are many pairs."""

from __future__ import annotations

import pytest

import ingot
from ingot.compiler.fusion.partition import partition
from ingot.compiler.fusion.plan import FusionPlan, KernelStep
from ingot.frontends.dsl import functions
from tests.fusion.support import check_plan, kernels, optimised, plan_of

ROW = ingot.f32["batch", 2, "time", 8]


def written(q, k, v):
    return ((q @ k.transpose(0, 1, 3, 2)) / 4.0).softmax(axis=-1) @ v


def joined(plan: FusionPlan) -> list[str]:
    return [d.reason for d in plan.decisions if "for a block of rows at a time" in d.reason]


def test_attention_is_one_kernel():
    plan = plan_of(written, ROW, ROW, ROW)
    assert len(plan.steps) == 1
    assert joined(plan) == ["with 1 products before and 1 after, for a block of rows at a time"]


@pytest.mark.parametrize(
    ("queries", "keys"), [("time", "time"), ("a", "b"), (300, "time"), ("time", 300), (300, 300)]
)
def test_whichever_lengths_are_known(queries, keys):
    q, k = ingot.f32[1, 2, queries, 8], ingot.f32[1, 2, keys, 8]
    assert len(plan_of(written, q, k, k).steps) == 1


def test_not_when_the_scores_are_few_or_somebody_else_wants_them():
    few = ingot.f32[4, 2, 8, 8]
    assert not joined(plan_of(written, few, few, few))

    def weights_too(q, k, v):
        weights = ((q @ k.transpose(0, 1, 3, 2)) / 4.0).softmax(axis=-1)
        return weights @ v, weights

    assert not joined(plan_of(weights_too, ROW, ROW, ROW))


def test_not_layers_one_after_another():
    def layers(x, w, v):
        return (x @ w).softmax(axis=-1) @ v

    assert not joined(plan_of(layers, ingot.f32["batch", 32], ingot.f32[32, 128], ingot.f32[128, 32]))


def test_a_triangle_of_positions_is_not_stored():
    plan = plan_of(lambda q, k, v: q.attention(k, v, causal=True), ROW, ROW, ROW)
    assert len(plan.steps) == 1
    assert "less_equal" not in {op for step in kernels(plan) for op in step}


def test_forward_and_backward():
    loss = functions.value_and_grad(lambda q, k, v: (written(q, k, v) ** 2.0).sum(), (0, 1, 2))
    graph = optimised(ingot.trace(loss, (ROW, ROW, ROW)).graph)
    plan = partition(graph)
    check_plan(graph, plan)
    assert [reason.split(",")[0] for reason in joined(plan)] == [
        "with 1 products before and 1 after",
        "with 2 products before and 3 after",
    ]
    stored = [b for step in plan.steps if isinstance(step, KernelStep) for b in step.kernel.outputs]
    assert all(len([dim for dim in b.shape if not isinstance(dim, int)]) <= 2 for b in stored)  # batch and time


def test_what_follows_a_sum_over_rows_waits_for_all_of_them():
    """The gradient of the keys is scaled after all blocks were added, in a kernel of its own."""

    def loss(q, k, v, scale):
        return (written(q, k * scale, v) ** 2.0).sum()

    scale = ingot.f32["batch", 2, "time", 8]
    graph = optimised(ingot.trace(functions.grad(loss, (1,)), (ROW, ROW, ROW, scale)).graph)
    plan = partition(graph)
    check_plan(graph, plan)
    assert len(joined(plan)) == 2
    assert kernels(plan)[-1] == ("mul",)


def test_a_graph_without_fusion_has_no_blocks():
    assert not joined(plan_of(written, ROW, ROW, ROW, fuse=False))
