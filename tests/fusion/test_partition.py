"""Which kernels come out: what belongs together is together, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot import nn, optim
from ingot.compiler.fusion.cost import FusionLimits, estimate
from ingot.compiler.fusion.legality import aligned_depth, extract_reductions, reduces_rows, stays_in_place
from ingot.compiler.fusion.partition import partition
from ingot.compiler.fusion.plan import KernelStep
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.text import parse_kernel
from ingot.compiler.ops.movement import Pad
from ingot.compiler.options import Options
from ingot.compiler.pipeline import compile_graph
from ingot.frontends.dsl import functions
from ingot.runtime.executable import Executable
from tests.fusion.support import check_plan, kernels, optimised, plan_of
from tests.fuzz.checks import case_of, gradient_case

ROWS = ingot.f32["batch", 64]
LABELS = ingot.i64["batch"]


def count(function, *types) -> int:
    return len(plan_of(function, *types).steps)


# --- rows -------------------------------------------------------------------------------------------------------

SINGLE = {
    "softmax": (lambda x: x.softmax(), (ROWS,)),
    "softmax_scaled": (lambda x: (x * 0.125).softmax() * 2.0, (ROWS,)),
    "log_softmax": (lambda x: x.log_softmax(), (ROWS,)),
    "logsumexp": (lambda x: x.logsumexp(axis=-1), (ROWS,)),
    "layer_norm": (nn.LayerNorm(64), (ROWS,)),
    "rms_norm": (nn.RMSNorm(64), (ROWS,)),
    "residual_norm": (lambda x, y: (x + y).layer_norm(trailing=1), (ROWS, ROWS)),
    "variance": (lambda x: x.var(axis=-1), (ROWS,)),
    "softmax_gradient": (functions.grad(lambda x, w: (x.softmax() * w).sum()), (ROWS, ROWS)),
    "log_softmax_gradient": (functions.grad(lambda x, w: (x.log_softmax() * w).sum()), (ROWS, ROWS)),
    "layer_norm_gradient": (functions.grad(lambda x, w: (x.layer_norm(trailing=1) * w).sum()), (ROWS, ROWS)),
    "rms_norm_gradient": (functions.grad(lambda x, w: (x.rms_norm(trailing=1) * w).sum()), (ROWS, ROWS)),
    "cross_entropy_gradient": (functions.grad(nn.cross_entropy), (ROWS, LABELS)),
    "elementwise_chain": (lambda x, y: ((x + y).tanh() * x - y.exp()).sigmoid(), (ROWS, ROWS)),
    "activation_gradient": (functions.grad(lambda x, w: (x.gelu() * w).sum()), (ROWS, ROWS)),
}


@pytest.mark.parametrize("name", SINGLE)
def test_one_kernel(name):
    function, types = SINGLE[name]
    plan = plan_of(function, *types)
    assert len(plan.steps) == 1, kernels(plan)


def test_loss_and_gradient_share_the_rows():
    """The rows are read once for both; the sum over the batch is a kernel of its own."""
    assert count(functions.value_and_grad(nn.cross_entropy), ROWS, LABELS) == 2


def test_layer_norm_gradient_for_its_parameters_is_one_more_kernel():
    def f(x, scale, w):
        return (x.layer_norm(scale, trailing=1) * w).sum()

    plan = plan_of(functions.grad(f, (0, 1)), ROWS, ingot.f32[64], ROWS)
    assert len(plan.steps) == 2, kernels(plan)


def test_batch_norm_is_two_reductions_and_a_pass():
    layer = nn.BatchNorm2d(8)
    plan = plan_of(lambda x: layer(x), ingot.f32["batch", 8, 10, 10])  # noqa: PLW0108  called as it is: in training mode
    assert len(plan.steps) == 3, kernels(plan)


def test_reductions_across_each_other_stay_apart():
    """A sum over rows and then over columns of the same data: no row holds what the second needs."""
    plan = plan_of(lambda x: (x - x.mean(axis=1, keepdims=True)).sum(axis=0), ROWS)
    assert len(plan.steps) == 2, kernels(plan)


def test_what_is_read_shifted_stays_apart():
    plan = plan_of(lambda x: ingot.concatenate([x.tanh(), x.sigmoid()], axis=1)[:, 32:96] * 2.0, ROWS)
    for step in plan.steps:
        assert isinstance(step, KernelStep)
        inside = [d.buffer for d in step.kernel.definitions]
        for definition in step.kernel.definitions:
            assert stays_in_place(definition, inside)


def test_parts_are_joined_before_a_product_reads_them_again_and_again():
    """Finding the part that an element comes from is cheap once, and not in the innermost loop of a product."""
    plan = plan_of(lambda x, w: ingot.concatenate([x, x], axis=0) @ w, ROWS, ingot.f32[64, 64])
    assert len(plan.steps) == 2, kernels(plan)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_what_is_mirrored_is_put_into_memory_before_a_product(mode):
    """Where each element comes from takes a division; a product would ask that for every term. Zeros are free."""
    plan = plan_of(lambda x, w: x.apply(Pad((0, 8), (0, 8), mode)) @ w, ingot.f32["batch", 48], ingot.f32[64, 64])
    assert len(plan.steps) == (1 if mode == "constant" else 2)


# --- epilogues -----------------------------------------------------------------------------------------------------

MATRIX, BIAS = ingot.f32[64, 64], ingot.f32[64]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: x @ w + b,
        lambda x, w, b: (x @ w + b).relu(),
        lambda x, w, b: (x @ w + b).gelu(),
        lambda x, w, b: (x @ w + b).tanh() + x,
        lambda x, w, b: (x @ w + b).sigmoid() * (x * 2.0),
        lambda x, w, b: ((x @ w) * 0.5 + b).astype("f16"),
    ],
    ids=["bias", "relu", "gelu", "residual", "gate", "cast"],
)
def test_matrix_products_take_their_epilogue(function):
    plan = plan_of(function, ROWS, MATRIX, BIAS)
    assert len(plan.steps) == 1, kernels(plan)


def test_products_do_not_take_what_has_more_elements():
    """Two products side by side in a new last axis, as real and imaginary parts are: a product by itself is a product."""

    def spectrum(x, real, imaginary):
        parts = [(x @ m).reshape(100, 32, 1) for m in (real, imaginary)]
        both = ingot.concat(*parts, axis=2)
        return both * both

    made = kernels(plan_of(spectrum, ingot.f32[100, 64], ingot.f32[64, 32], ingot.f32[64, 32]))
    assert made.count(("contract",)) == 2, made


def test_convolutions_take_their_epilogue():
    """A strided convolution (which has no other way) with the norm folded in, bias and activation behind it."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, stride=2))
    plan = plan_of(model, ingot.f32["batch", 3, 33, 33])
    (first, *_) = [ops for ops in kernels(plan) if "convolution" in ops]
    assert len(first) == 2, kernels(plan)
    assert sum("convolution" in ops for ops in kernels(plan)) == 2


@pytest.mark.parametrize(("channels", "expected"), [(16, True), (3, False)])
def test_windows_slide_over_contiguous_channels(channels, expected):
    """The image is transposed first; a few channels are read from where they are."""
    model = nn.Conv2d(channels, 16, 3, stride=2)
    assert (("transpose",) in kernels(plan_of(model, ingot.f32[1, channels, 33, 33]))[:1]) == expected


def test_cheap_values_are_not_kept_for_the_gradient():
    """Between a product and its gradient an activation is not kept step by step."""

    def loss(x, w, b, v):
        return ((x @ w + b).gelu(approximate="tanh") @ v).sum()

    types = (ingot.f32[64, 32], ingot.f32[32, 128], ingot.f32[128], ingot.f32[128, 32])
    graph = optimised(ingot.trace(functions.value_and_grad(loss, (1, 2, 3)), types).graph)

    def stored(limits: FusionLimits) -> list[str]:
        plan = partition(graph, limits)
        check_plan(graph, plan)
        return sorted(value.op.name for value in plan.buffers if value.args and value.shape == (64, 128))

    assert stored(FusionLimits()) == ["add", "contract", "contract", "mul", "mul", "tanh"]
    assert len(stored(FusionLimits(repeat_weight=0))) > 7


def test_the_gradient_of_a_shared_weight_does_not_wait_for_its_other_half():
    """A weight is read at both ends of a model: the product for the later end runs when its operands are there."""

    def loss(w, v, i):
        return (((w.take(i, axis=0) @ v).tanh() @ w.transpose(1, 0)) ** 2.0).sum()

    graph = optimised(
        ingot.trace(functions.grad(loss, 0), (ingot.f32[16, 8], ingot.f32[8, 8], ingot.i64[64])).graph
    )
    plan = partition(graph)
    check_plan(graph, plan)
    reasons = [d.reason for d in plan.decisions if "would wait for kernel" in d.reason]
    assert len(reasons) == 1


def test_two_products_are_two_kernels():
    assert count(lambda x, w, b: (x @ w + b).relu() @ w + b, ROWS, MATRIX, BIAS) == 2


# --- updates ---------------------------------------------------------------------------------------------------------


def training(optimizer, **choices):
    nn.seed(0)  # the same weights each time

    def loss(model, x, labels):
        return nn.cross_entropy(model(x), labels)

    nn.seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    return ingot.Trainer(model, loss, optimizer, ROWS, LABELS, cache=False, **choices)


OPTIMIZERS = {
    "sgd": optim.SGD(0.1), "momentum": optim.SGD(0.1, momentum=0.9), "adam": optim.Adam(1e-3),
    "adamw_clipped": optim.AdamW(1e-3, clip_norm=1.0), "rmsprop": optim.RMSProp(1e-3, momentum=0.9),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_in_place(name):
    """Nothing is copied: a parameter is written over its old value by the kernel that computes it."""
    assembly = training(OPTIMIZERS[name]).executable.compiled.assembly
    assert not [kernel.name for kernel in assembly.kernels if "copy" in kernel.ops]
    assert not [note for note in assembly.memory_notes if "written aside" in note]


def test_independent_updates_are_one_kernel():
    """With clipping no update can be the epilogue of its gradient: all six parameters and twelve slots are updated
    by one kernel."""
    assembly = training(OPTIMIZERS["adamw_clipped"]).executable.compiled.assembly
    updates = [k for k in assembly.kernels if k.recipe == "elementwise" and k.ops.count("sub") == 6]
    assert len(updates) == 1
    assert len(updates[0].kernel.outputs) == 18


def test_an_update_may_be_the_epilogue_of_its_gradient():
    assembly = training(OPTIMIZERS["sgd"]).executable.compiled.assembly
    assert sum("contract" in k.ops and "sub" in k.ops for k in assembly.kernels) == 3


@pytest.mark.parametrize("name", ["sgd", "adamw_clipped"])
def test_training_without_fusion_is_the_same(name):
    fused, plain = training(OPTIMIZERS[name]), training(OPTIMIZERS[name], fuse=False)
    assert len(plain.executable.compiled.assembly.kernels) > 2 * len(fused.executable.compiled.assembly.kernels)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x, labels = rng.standard_normal((16, 64)).astype(np.float32), rng.integers(0, 10, 16)
        assert fused.step(x, labels) == pytest.approx(plain.step(x, labels), rel=1e-5)
    for key, array in fused.states.items():
        np.testing.assert_allclose(array, plain.states[key], 1e-3, 1e-6, err_msg=key)


# --- without fusion ---------------------------------------------------------------------------------------------------


def test_without_fusion_every_op_is_a_kernel():
    graph = optimised(
        ingot.trace(lambda x, w, b: ((x @ w + b).gelu().softmax() * x).sum(axis=0), [ROWS, MATRIX, BIAS]).graph
    )
    plan = partition(graph, fuse=False)
    check_plan(graph, plan)
    assert all(len(step.values) == 1 for step in plan.steps if isinstance(step, KernelStep))
    computing = [v for v in graph.body if not v.op.movement]  # type: ignore[attr-defined]
    assert len(plan.steps) >= len(computing)
    expected, found = (Executable(compile_graph(graph, Options(fuse=f, cache=False)).program) for f in (True, False))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((5, 64), (64, 64), (64,))]
    np.testing.assert_allclose(found(*arrays), expected(*arrays), 1e-4, 1e-5)


# --- every plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(120))
def test_plans_of_random_graphs(seed):
    case, _ = case_of(seed)
    for fuse in (True, False):
        graph = optimised(case.graph)
        check_plan(graph, partition(graph, fuse=fuse))


@pytest.mark.parametrize("seed", range(2, 122, 3))
def test_plans_of_random_gradients(seed):
    gradient = gradient_case(case_of(seed)[0])
    if gradient is not None:
        graph = optimised(gradient.graph)
        check_plan(graph, partition(graph))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_limits_are_kept(limit):
    graph = optimised(ingot.trace(nn.Sequential(nn.LayerNorm(64), nn.Softmax(), nn.LayerNorm(64)).eval(), [ROWS]).graph)
    plan = partition(graph, FusionLimits(kernel_definitions=limit))
    check_plan(graph, plan)
    sizes = [len(step.kernel.definitions) for step in plan.steps if isinstance(step, KernelStep)]
    assert max(sizes) <= max(limit, 2)  # a reduction with arithmetic behind it is two definitions by itself


def _added(x, w):
    for number in range(1000):
        x = x + w if number % 2 else x * w
    return x


def _gathered(x, places):
    for _ in range(30):
        x = x.take(places, axis=0)
    return x


def _reflected(x, _):
    for _ in range(30):
        x = x.apply(Pad((1,), (0,), "reflect"))[:-1]
    return x


@pytest.mark.parametrize("function", [_added, _gathered, _reflected])
def test_long_chains_are_cut(function, rng):
    """What looks at an expression goes as deep as it is, and an index that is found holds the one before several times."""
    x = rng.standard_normal(4).astype(np.float32)
    other = np.array([2, 0, 3, 1]) if function is _gathered else np.full(4, 0.5, np.float32)
    expected = x
    for number in range(1000 if function is _added else 30):
        if function is _added:
            expected = expected + other if number % 2 else expected * other
        else:
            expected = expected[other] if function is _gathered else np.pad(expected, (1, 0), "reflect")[:-1]
    np.testing.assert_array_equal(ingot.compile(function, ingot.f32[4], other)(x, other), expected)


def test_a_plan_says_why():
    text = str(plan_of(lambda x, w, b: (x @ w + b).relu(), ROWS, MATRIX, BIAS))
    assert "contract f32[batch, 64]: stored: a reduction is computed once" in text
    assert "shares the loops of contract" in text


def test_plans_are_reproducible():
    texts = {str(plan_of(nn.TransformerBlock(32, 4), ingot.f32["batch", 8, 32])) for _ in range(2)}
    assert len(texts) == 1


# --- facts about definitions ---------------------------------------------------------------------------------------------


def definitions(text: str):
    kernel = parse_kernel(text)
    return kernel.definitions, [d.buffer for d in kernel.definitions]


def test_aligned_depth():
    (_, b, c, d), inside = definitions("""
        kernel k(x: f32[4, 5]) -> (b: f32[4, 5], c: f32[4], d: f32[5, 4]) {
          a[i < 4, j < 5] = exp(x[i, j])
          b[i < 4, j < 5] = a[i, j] + x[i, j]
          c[i < 4] = sum(r < 5: a[i, r])
          d[i < 5, j < 4] = a[j, i]
        }""")
    assert [aligned_depth(each, inside) for each in (b, c, d)] == [2, 1, 0]


def test_reductions_along_rows():
    (rows, weighted, columns), _ = definitions("""
        kernel k(x: f32[4, 4], w: f32[4]) -> (a: f32[4], b: f32[4], c: f32[4]) {
          a[i < 4] = sum(r < 4: x[i, r])
          b[i < 4] = sum(r < 4: x[i, r] * w[r])
          c[i < 4] = sum(r < 4: x[r, i])
        }""")
    assert [reduces_rows(each, 1) for each in (rows, weighted, columns)] == [True, True, False]


def test_reductions_below_the_root_get_a_definition():
    ((definition,), _) = definitions("""
        kernel k(x: f32[4, 5]) -> (y: f32[4]) {
          y[i < 4] = sqrt(sum(r < 5: x[i, r]) / 5.0)
        }""")
    first, second = extract_reductions(definition, "y")
    assert first.buffer.shape == (4,)
    assert second.buffer is definition.buffer
    assert aligned_depth(second, [first.buffer]) == 1


def test_unbounded_dims_are_estimated():
    assert estimate(Symbol("n") * 4) == 256
    assert estimate(Symbol("m", 1, 8)) == 8
    assert estimate(17) == 17


def test_products_read_codes_also_through_slices():
    """What is stored are bytes, whoever widens them: two products, one of every other row."""

    def function(x, a, b):
        codes = (x * 3.0).round().clip(0.0, 255.0).cast(ingot.u8)
        whole = codes.cast(ingot.i32)
        return whole @ a.cast(ingot.i32), whole[::2] @ b.cast(ingot.i32)

    plan = plan_of(function, ingot.f32[32, 64], ingot.i8[64, 24], ingot.i8[64, 24])
    made = [b for step in plan.steps if isinstance(step, KernelStep) for b in step.kernel.outputs]
    assert [b.dtype for b in made if b.shape == (32, 64)] == [ingot.u8]
