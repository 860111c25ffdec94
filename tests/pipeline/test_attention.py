"""Attention of free lengths, compiled: against its definition in float64, in memory that grows with the length and not
with its square, with the same bits for any batch and number of threads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot import nn

LENGTHS = [1, 2, 3, 5, 6, 7, 17, 64, 193]


def written(q, k, v):
    """As one writes it."""
    scores = (q @ k.transpose(0, 1, 3, 2)) / q.shape[-1] ** 0.5
    return scores.softmax(axis=-1) @ v


def expected(q, k, v, mask=None, causal=False, offset=0):
    """In float64, by NumPy."""
    share = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, np.repeat(k, share, 1), np.repeat(v, share, 1)))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(q.shape[2], k.shape[2], offset, dtype=bool), scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weight = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return weight / weight.sum(-1, keepdims=True) @ v


def operands(rng, batch, heads, length, size, keys=None, kv_heads=None, dtype=np.float32):
    other = (batch, kv_heads or heads, keys if keys is not None else length, size)
    shapes = ((batch, heads, length, size), other, other)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def recipes(exe) -> list[str]:
    (section,) = (s for s in exe.explain().sections if s.title.startswith("Kernels"))
    return [row[section.columns.index("recipe")] for row in section.rows]


@pytest.fixture(scope="module")
def plain():
    row = ingot.f32["batch", 2, "time", 8]
    return ingot.compile(written, row, row, row)


@pytest.mark.parametrize("length", LENGTHS)
def test_of_a_free_length_it_is_its_definition(length, plain, rng):
    q, k, v = operands(rng, 2, 2, length, 8)
    np.testing.assert_allclose(plain(q, k, v), expected(q, k, v), 1e-5, 2e-6)  # float32


def test_it_is_one_kernel(plain):
    assert recipes(plain) == ["blocks"]


def test_lengths_that_may_be_zero(rng):
    """No queries give no rows; no keys leave nothing to weigh: 0 / 0 of sums over nothing, times nothing, is 0."""
    queries, keys = ingot.dim("queries", 0), ingot.dim("keys", 0)
    exe = ingot.compile(
        lambda q, k, v: q.attention(k, v), ingot.f32[1, 2, queries, 8], *(ingot.f32[1, 2, keys, 8],) * 2
    )
    for length, many in ((0, 3), (3, 0), (0, 0), (4, 5)):
        q, k, v = operands(rng, 1, 2, length, 8, many)
        np.testing.assert_allclose(exe(q, k, v), expected(q, k, v), 1e-5, 2e-6)


@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 40), (40, 1), (7, 200), (200, 7), (33, 64)])
@pytest.mark.parametrize("kind", ["none", "causal", "keys", "pairs", "added", "heads", "shared"])
def test_queries_and_keys_of_other_lengths_and_masks(kind, length, keys, rng, masked):
    kv_heads = 2 if kind == "shared" else 4
    q, k, v = operands(rng, 3, 4, length, 8, keys, kv_heads)
    mask = {
        "keys": lambda: rng.random((3, 1, 1, keys)) < 0.7,
        "pairs": lambda: rng.random((length, keys)) < 0.7,
        "added": lambda: rng.standard_normal((length, keys)).astype(np.float32),
        "heads": lambda: rng.standard_normal((3, 4, length, keys)).astype(np.float32),
        "shared": lambda: rng.random((1, 4, length, keys)) < 0.7,
    }.get(kind, lambda: None)()
    given = (q, k, v) if mask is None else (q, k, v, mask)
    want = expected(q, k, v, mask, kind == "causal")
    np.testing.assert_allclose(masked(kind)(*given), want, 1e-5, 2e-6)  # rows of which nothing is seen are NaN in both


@pytest.fixture(scope="module")
def masked():
    made = {}
    q, k = ingot.f32["batch", 4, "queries", 8], ingot.f32["batch", 4, "keys", 8]
    few = ingot.f32["batch", 2, "keys", 8]
    masks = {
        "keys": ingot.boolean["batch", 1, 1, "keys"],
        "pairs": ingot.boolean["queries", "keys"],
        "added": ingot.f32["queries", "keys"],
        "heads": ingot.f32["batch", 4, "queries", "keys"],
        "shared": ingot.boolean[1, 4, "queries", "keys"],
    }

    def of(kind):
        if kind not in made:
            other = few if kind == "shared" else k
            extra = (masks[kind],) if kind in masks else ()
            made[kind] = ingot.compile(
                lambda q, k, v, *m: q.attention(k, v, *m, causal=kind == "causal"), q, other, other, *extra
            )
            assert recipes(made[kind]) == ["blocks"]
        return made[kind]

    return of


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 2e-3), ("f64", 1e-12)])
def test_other_element_types(dtype, tolerance, rng):
    row = getattr(ingot, dtype)["batch", 2, "time", 8]
    exe = ingot.compile(lambda q, k, v: q.attention(k, v, causal=True), row, row, row)
    assert recipes(exe) == ["blocks"]
    for length in (1, 30, 203):
        q, k, v = operands(rng, 2, 2, length, 8, dtype=row.dtype.numpy)
        np.testing.assert_allclose(exe(q, k, v), expected(q, k, v, causal=True), tolerance, tolerance)


# --- memory ---------------------------------------------------------------------------------------------------


def grows_linearly(exe, *names) -> None:
    """Twice the length takes at most about twice the memory, and far less than the scores of one head."""
    short, long = (exe.peak_bytes_for(**dict.fromkeys(names, length)) for length in (8192, 16384))
    assert long <= 2.2 * short
    assert long < 4 * 16384**2 / 4


def layer_gradient(model):
    def of(x):
        return (model(x) ** 2.0).sum()

    return ingot.grad(of)


MODELS = {
    "written": lambda: ingot.compile(written, *(ingot.f32[1, 2, "time", 16],) * 3),
    "causal": lambda: ingot.compile(
        lambda q, k, v: q.attention(k, v, causal=True), *(ingot.f32[1, 2, "time", 16],) * 3
    ),
    "shared heads": lambda: ingot.compile(
        lambda q, k, v: q.attention(k, v), ingot.f32[1, 4, "time", 16], *(ingot.f32[1, 2, "time", 16],) * 2
    ),
    "layer": lambda: ingot.compile(nn.MultiHeadAttention(32, 2, causal=True), ingot.f32[1, "time", 32]),
    "gradient": lambda: ingot.compile(
        ingot.grad(lambda q, k, v: (written(q, k, v) ** 2.0).sum(), wrt=(0, 1, 2)), *(ingot.f32[1, 2, "time", 16],) * 3
    ),
    "gradient of shared heads": lambda: ingot.compile(
        ingot.grad(lambda q, k, v: (q.attention(k, v, causal=True) ** 2.0).sum(), wrt=(0, 1, 2)),
        ingot.f32[1, 4, "time", 16], *(ingot.f32[1, 2, "time", 16],) * 2,
    ),
    "gradient of a block": lambda: ingot.compile(
        layer_gradient(nn.TransformerBlock(32, 2, causal=True)), ingot.f32[1, "time", 32]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MODELS))
def test_memory_grows_with_the_length(name):
    nn.seed(0)
    grows_linearly(MODELS[name](), "time")


def test_a_known_length_takes_the_same_way(plain):
    row = ingot.f32[1, 2, 2048, 8]
    known = ingot.compile(written, row, row, row)
    assert recipes(known) == recipes(plain)
    assert known.peak_bytes == plain.peak_bytes_for(batch=1, time=2048) < 2048 * 2048 * 4


def imported(nodes, inputs, constants=()):
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [onnx.numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants]
    graph = helper.make_graph(nodes, "attention", given, result, held)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return ingot.compile(ingot.load_onnx(helper.make_model(graph, opset_imports=opsets)))


def test_graphs_of_onnx_files(rng):
    node = helper.make_node
    row = ["batch", 2, "time", 8]
    three = [(name, row) for name in "qkv"]
    whole = imported([node("Attention", ["q", "k", "v"], ["y"], is_causal=1)], three)
    apart = imported(
        [
            node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            node("MatMul", ["q", "kt"], ["s"]),
            node("Div", ["s", "root"], ["d"]),
            node("Add", ["d", "mask"], ["m"]),
            node("Softmax", ["m"], ["w"], axis=-1),
            node("MatMul", ["w", "v"], ["y"]),
        ],
        [*three, ("mask", ["batch", 1, 1, "time"])],
        [("root", np.sqrt(8))],
    )
    flat = [(name, ["batch", "time", 16]) for name in "qkv"]
    contributed = imported(
        [node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=2)], flat
    )
    for exe in (whole, apart, contributed):
        assert "blocks" in recipes(exe)
        short, long = (exe.peak_bytes_for(batch=1, time=length) for length in (8192, 16384))
        assert long <= 2.2 * short
    q, k, v = operands(rng, 2, 2, 19, 8)
    mask = np.where(rng.random((2, 1, 1, 19)) < 0.3, -1e9, 0).astype(np.float32)
    np.testing.assert_allclose(whole(q, k, v), expected(q, k, v, causal=True), 1e-5, 2e-6)
    np.testing.assert_allclose(apart(q, k, v, mask), expected(q, k, v, mask), 1e-5, 2e-6)
    merged = [x.transpose(0, 2, 1, 3).reshape(2, 19, 16) for x in (q, k, v)]
    found = contributed(*merged).reshape(2, 19, 2, 8).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(found, expected(q, k, v), 1e-5, 2e-6)


# --- the same bits ----------------------------------------------------------------------------------------------


def test_bits_depend_neither_on_threads_nor_on_the_batch(rng):
    row = ingot.f32["batch", 2, "time", 8]
    gradient = ingot.value_and_grad(lambda q, k, v: (written(q, k, v) ** 2.0).sum(), wrt=(0, 1, 2))
    one, two = (ingot.compile(gradient, row, row, row, threads=threads) for threads in (1, 2))
    forward = [ingot.compile(written, row, row, row, threads=threads) for threads in (1, 2)]
    for length in (5, 200, 401):
        q, k, v = operands(rng, 3, 2, length, 8)
        for a, b in zip(one(q, k, v)[1], two(q, k, v)[1], strict=True):
            np.testing.assert_array_equal(a, b)
        results = [exe(q, k, v) for exe in forward]
        np.testing.assert_array_equal(*results)
        alone = forward[0](q[1:2], k[1:2], v[1:2])
        np.testing.assert_array_equal(alone, results[0][1:2])
        for a, b in zip(one(q[1:2], k[1:2], v[1:2])[1], one(q, k, v)[1], strict=True):
            np.testing.assert_array_equal(a, b[1:2])


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "causal", "pairs", "shared"])
def test_gradients_are_finite_differences(kind, rng):
    """In float64, along random directions."""
    heads, kv_heads = 4, 2 if kind == "shared" else 4
    q, k = ingot.f64["batch", heads, "queries", 4], ingot.f64["batch", kv_heads, "keys", 4]
    masks = (ingot.boolean["queries", "keys"],) if kind == "pairs" else ()

    def loss(q, k, v, w, *masks):
        return (q.attention(k, v, *masks, causal=kind == "causal") ** 2.0 * w).sum()

    types = (q, k, k, q, *masks)
    exe = ingot.compile(ingot.value_and_grad(loss, wrt=(0, 1, 2)), *types)
    assert recipes(exe).count("blocks") == 2
    for length, keys in ((1, 1), (1, 9), (9, 1), (30, 41), (203, 210)):
        arrays = operands(rng, 2, heads, length, 4, keys, kv_heads, np.float64)
        rest = [rng.standard_normal(arrays[0].shape)]
        if masks:
            rest.append(rng.random((length, keys)) < 0.8)
            rest[-1][:, 0] = True
        _, found = exe(*arrays, *rest)
        for number, gradient in enumerate(found):
            direction = rng.standard_normal(arrays[number].shape)
            near = []
            for step in (1e-5, -1e-5):
                moved = list(arrays)
                moved[number] = arrays[number] + step * direction
                near.append(exe(*moved, *rest)[0])
            np.testing.assert_allclose((gradient * direction).sum(), (near[0] - near[1]) / 2e-5, 1e-6, 1e-6)


def test_a_model_of_a_free_length_learns_as_one_of_a_known_length(rng):
    losses = []
    for length in ("time", 12):
        nn.seed(0)
        model = nn.TransformerBlock(16, 2, causal=True)
        trainer = ingot.Trainer(model, lambda m, x: nn.mse(m(x), 0.5), ingot.optim.SGD(0.1), ingot.f32["batch", length, 16])
        x = np.random.default_rng(0).standard_normal((3, 12, 16)).astype(np.float32)
        losses.append([float(trainer.step(x)) for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], 1e-5)
    assert losses[0][-1] < losses[0][0]
