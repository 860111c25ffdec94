"""What is cheap does not wait for late readers: it is computed again, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot import nn, optim
from ingot.compiler import pipeline
from ingot.compiler.fusion.cost import FusionLimits
from ingot.compiler.fusion.partition import partition
from ingot.compiler.fusion.plan import FusionPlan, KernelStep
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.frontends.dsl import functions
from tests.fusion.support import check_plan, optimised

NEVER = FusionLimits(again_weight=-1)


def gradient_graph(loss, wrt, *types) -> Graph:
    return optimised(ingot.trace(functions.value_and_grad(loss, wrt), types).graph)


def stored(plan: FusionPlan) -> list[str]:
    """The names of what kernels hand on to others, without numbers."""
    buffers = [b for step in plan.steps if isinstance(step, KernelStep) for b in step.kernel.outputs]
    return sorted(b.name.rstrip("0123456789") for b in buffers)


def computed_again(plan: FusionPlan) -> list[str]:
    return [d.value.op.name for d in plan.decisions if d.choice == "again"]  # type: ignore[attr-defined]


def test_neither_the_tanh_of_a_gelu_nor_its_result_is_kept():
    """The gradient's product reads the argument: it computes the tanh, and the result for the next weight's gradient."""

    def loss(x, w, b, v):
        return (((x @ w + b).gelu(approximate="tanh") @ v) ** 2.0).sum()

    types = (ingot.f32[64, 32], ingot.f32[32, 128], ingot.f32[128], ingot.f32[128, 32])
    graph = gradient_graph(loss, (1, 2, 3), *types)
    plan = partition(graph)
    check_plan(graph, plan)
    assert "tanh" not in stored(plan)
    assert "tanh" in stored(partition(graph, NEVER))
    (giving,) = [s for s in plan.steps if isinstance(s, KernelStep) and any("again" in b.name for b in s.kernel.outputs)]
    assert "contract" in {v.op.name for v in giving.values}  # type: ignore[attr-defined]
    assert len(giving.kernel.outputs) == 2


def test_normalised_rows_are_not_kept():
    def loss(x, w, scale, bias, v):
        rows = x @ w
        centred = rows - rows.mean(-1, keepdims=True)
        normal = centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5).sqrt()
        return (((normal * scale + bias).tanh() @ v) ** 2.0).sum()

    types = (ingot.f32[64, 32], ingot.f32[32, 64], ingot.f32[64], ingot.f32[64], ingot.f32[64, 8])
    graph = gradient_graph(loss, (1, 2, 3, 4), *types)
    plan, kept = partition(graph), partition(graph, NEVER)
    check_plan(graph, plan)
    assert len(computed_again(plan)) >= 1

    def waiting(plan: FusionPlan) -> int:
        return sum(
            b.shape == (64, 64) for step in plan.steps if isinstance(step, KernelStep) for b in step.kernel.outputs
        )

    assert waiting(plan) < waiting(kept)


def test_a_product_with_weights_is_not_computed_again():
    """However few its terms are: what it makes is an activation like others."""

    def loss(x, w, v):
        return (((x @ w).relu() @ v) ** 2.0).sum()

    graph = gradient_graph(loss, (1, 2), ingot.f32[64, 4], ingot.f32[4, 128], ingot.f32[128, 8])
    assert not any(name.endswith("again") for name in stored(partition(graph)))


def test_a_value_that_some_reader_needs_in_memory_is_kept_without_a_budget():
    """The result of an activation is an operand of the next product's gradient: no reader computes it in passing."""

    def loss(x, w, v):
        return (((x @ w).tanh() @ v) ** 2.0).sum()

    graph = gradient_graph(loss, (1, 2), ingot.f32[64, 32], ingot.f32[32, 128], ingot.f32[128, 8])
    assert computed_again(partition(graph)) == []


# --- attention ------------------------------------------------------------------------------------


HEADS, LENGTH, SIZE = 2, 40, 4


def attention_loss(causal: bool):
    def loss(q, k, v, *masks):
        y = q.attention(k, v, *masks, causal=causal)
        return (y * y).sum() + (q * 0.5).sum() + (k * 0.25).sum() + v.sum()

    def layered(x, wq, wk, wv, *masks):
        q, k, v = x @ wq, x @ wk, x @ wv
        return loss(q, k, v, *masks)

    return layered


@pytest.mark.parametrize(
    ("mask", "causal", "length"),
    [(None, False, LENGTH), (None, True, "t"), ("bool", True, LENGTH), ("bool", False, "t"), ("float", False, LENGTH)],
)
def test_the_scores_of_an_attention_are_not_kept(mask, causal, length):
    """And the gradient is that of the definition, which the interpreter computes."""
    batch = 3
    row = ingot.f64[batch, HEADS, length, SIZE]
    weights = (ingot.f64[SIZE, SIZE],) * 3
    masks = {None: (), "bool": (ingot.boolean[LENGTH],), "float": (ingot.f64[LENGTH],)}[mask]
    if length != LENGTH and masks:
        masks = (masks[0].with_shape((row.shape[2],)),)
    traced = ingot.trace(functions.value_and_grad(attention_loss(causal), (1, 2, 3)), (row, *weights, *masks))
    graph = optimised(traced.graph)
    plan = partition(graph)
    check_plan(graph, plan)
    assert computed_again(plan)
    pairs = row.shape[2] * row.shape[2] * HEADS * batch
    assert not any(b.type.size == pairs for s in plan.steps if isinstance(s, KernelStep) for b in s.kernel.outputs)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, HEADS, LENGTH, SIZE))
    given = [x, *(rng.standard_normal((SIZE, SIZE)) for _ in weights)]
    given += [rng.random(LENGTH) < 0.8 if mask == "bool" else rng.standard_normal(LENGTH) for _ in masks]
    if mask == "bool":
        given[-1][0] = True  # a causal row sees its first key only
    exe = ingot.compile(functions.value_and_grad(attention_loss(causal), (1, 2, 3)), row, *weights, *masks, cache=False)
    names = traced.graph.input_names
    expected = run_graph(traced.graph, dict(zip(names, given, strict=True)))
    value, gradients = exe(*given)
    for have, want in zip((value, *gradients), expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-9)


def model_trainer() -> tuple[ingot.Trainer, np.ndarray]:
    nn.seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiHeadAttention(32, 8)
            self.norm = nn.LayerNorm(32)
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

        def __call__(self, x):
            x = x + self.attention(x)
            return x + self.down(self.up(self.norm(x)).gelu(approximate="tanh"))

    def loss(model, x):
        return (model(x) ** 2.0).mean()

    rows = ingot.f32[2, 48, 32]
    model = nn.Sequential(*(Block() for _ in range(3)))
    x = np.random.default_rng(0).standard_normal((2, 48, 32)).astype(np.float32)
    return ingot.Trainer(model, loss, optim.Adam(1e-3), rows, cache=False), x


def test_bits_are_the_same_and_memory_is_less(monkeypatch):
    usual, x = model_trainer()
    losses = [usual.step(x) for _ in range(3)]
    monkeypatch.setattr(pipeline, "FusionLimits", lambda: NEVER)
    keeping, x = model_trainer()
    assert losses == [keeping.step(x) for _ in range(3)]
    for name, state in usual.states.items():
        np.testing.assert_array_equal(state, keeping.states[name])
    hidden = 4 * 2 * 48 * 64
    # three layers: the tanh and the result of each GELU waited for the backward pass
    assert (usual.executable.peak_bytes or 0) < (keeping.executable.peak_bytes or 0) - 4 * hidden


def test_nothing_is_traced_back_through_hundreds_of_values():
    """A residual stream that late readers see could be computed again from the beginning of the model: not worth a look."""

    def function(x, w):
        for _ in range(400):
            x = x.tanh() + 0.1
        return (x @ w).relu() @ w + x

    graph = optimised(ingot.trace(function, (ingot.f32[32, 64], ingot.f32[64, 64])).graph)
    plan = partition(graph)
    check_plan(graph, plan)
    assert not computed_again(plan)
