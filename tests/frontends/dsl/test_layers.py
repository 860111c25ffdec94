"""Each layer against a formula in NumPy: its result, and its gradients against differences of the formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.compiler.ir.types import type_of
from ingot.frontends.dsl import functions
from tests.frontends.dsl.support import close, numeric_gradient, traced_run

Parameters = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    layer: Callable[[], Any]
    shape: tuple[int, ...]
    formula: Callable[[Parameters, np.ndarray], np.ndarray]


# --- formulas -----------------------------------------------------------------------------------------


def convolved(x: np.ndarray, w: np.ndarray, stride=1, padding=0, dilation=1, groups=1) -> np.ndarray:
    """The definition: a sum over input channels and taps, any number of spatial axes."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * rank])
    taps = w.shape[2:]
    sizes = [(d - dilation * (k - 1) - 1) // stride + 1 for d, k in zip(x.shape[2:], taps, strict=True)]
    y = np.zeros((x.shape[0], w.shape[0], *sizes), x.dtype)
    inside, outside = x.shape[1] // groups, w.shape[0] // groups
    for o in range(w.shape[0]):
        first = o // outside * inside
        for c in range(inside):
            for tap in np.ndindex(*taps):
                place = tuple(
                    slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride)
                    for t, n in zip(tap, sizes, strict=True)
                )
                y[:, o] += w[(o, c, *tap)] * x[(slice(None), first + c, *place)]
    return y


def transposed(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Each input element adds its multiple of the kernel to the output."""
    taps = w.shape[2:]
    full = [(n - 1) * stride + k for n, k in zip(x.shape[2:], taps, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1], *full), x.dtype)
    for place in np.ndindex(*x.shape[2:]):
        at = tuple(slice(p * stride, p * stride + k) for p, k in zip(place, taps, strict=True))
        y[(slice(None), slice(None), *at)] += np.einsum("nc,co...->no...", x[(slice(None), slice(None), *place)], w)
    crop = tuple(slice(padding, n - padding) for n in full)
    return y[(slice(None), slice(None), *crop)]


def per_channel(values: np.ndarray, rank: int) -> np.ndarray:
    return values.reshape(1, -1, *(1,) * (rank - 2))


def pooled(
    x: np.ndarray, reduce: Callable[..., np.ndarray], window: int, stride: int, padding: int, fill: float
) -> np.ndarray:
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * rank], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, (window,) * rank, tuple(range(2, x.ndim)))
    view = view[(slice(None), slice(None), *[slice(None, None, stride)] * rank)]
    return reduce(view, tuple(range(x.ndim, x.ndim + rank)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def affine(p: Parameters, y: np.ndarray) -> np.ndarray:
    return y * per_channel(p["scale"], y.ndim) + per_channel(p["bias"], y.ndim)


def grouped(x: np.ndarray, groups: int) -> np.ndarray:
    return normalised(x.reshape(x.shape[0], groups, -1), (2,)).reshape(x.shape)


def heads(x: np.ndarray, count: int) -> np.ndarray:
    n, t, d = x.shape
    return x.reshape(n, t, count, d // count).transpose(0, 2, 1, 3)


def attended(p: Parameters, x: np.ndarray, count: int, causal: bool) -> np.ndarray:
    q, k, v = (heads(x @ p[f"{name}.weight"] + p[f"{name}.bias"], count) for name in ("query", "key", "value"))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:])) > 0, scores, -np.inf)
    mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return mixed @ p["output.weight"] + p["output.bias"]


def rnn(p: Parameters, x: np.ndarray) -> np.ndarray:
    h = np.zeros((x.shape[1], p["cells.0.0.hidden_weight"].shape[0]))
    out = []
    for step in x:
        h = np.tanh(step @ p["cells.0.0.input_weight"] + p["cells.0.0.bias"] + h @ p["cells.0.0.hidden_weight"])
        out.append(h)
    return np.stack(out)


def lstm(p: Parameters, x: np.ndarray, cell: str = "cells.0.0", reverse: bool = False) -> np.ndarray:
    width = p[f"{cell}.hidden_weight"].shape[0]
    h = c = np.zeros((x.shape[1], width))
    out = [h] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        gates = x[t] @ p[f"{cell}.input_weight"] + p[f"{cell}.bias"] + h @ p[f"{cell}.hidden_weight"]
        i, f, g, o = np.split(gates, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out[t] = h
    return np.stack(out)


def gru(p: Parameters, x: np.ndarray) -> np.ndarray:
    name = "cells.0.0"
    width = p[f"{name}.hidden_weight"].shape[0]
    h = np.zeros((x.shape[1], width))
    out = []
    for step in x:
        a = step @ p[f"{name}.input_weight"] + p[f"{name}.bias"]
        b = h @ p[f"{name}.hidden_weight"] + p[f"{name}.hidden_bias"]
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
        z = sigmoid(az + bz)
        h = (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h
        out.append(h)
    return np.stack(out)


def first(layer: Any) -> Any:
    """A recurrent layer without its final states."""

    class Outputs(nn.Module):
        def __init__(self) -> None:
            self.inner = layer

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0]

    return Outputs()


def inner(p: Parameters) -> Parameters:
    return {name.removeprefix("inner."): array for name, array in p.items()}


def deep_lstm(p: Parameters, x: np.ndarray) -> np.ndarray:
    """Two layers, both directions, the batch first."""
    p, x = inner(p), x.swapaxes(0, 1)
    for layer in range(2):
        x = np.concatenate([lstm(p, x, f"cells.{layer}.{d}", d == 1) for d in range(2)], axis=2)
    return x.swapaxes(0, 1)


def positions(x: np.ndarray) -> np.ndarray:
    _, time, width = x.shape
    table = np.zeros((time, width))
    for t in range(time):
        for j in range(width):
            angle = t / 10000 ** ((j - j % 2) / width)
            table[t, j] = math.sin(angle) if j % 2 == 0 else math.cos(angle)
    return x + table.astype(np.float32)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


CASES: dict[str, Case] = {
    "linear": Case(lambda: nn.Linear(4, 3), (5, 4), lambda p, x: x @ p["weight"] + p["bias"]),
    "linear_3d": Case(lambda: nn.Linear(4, 3, bias=False), (2, 5, 4), lambda p, x: x @ p["weight"]),
    "conv1d": Case(
        lambda: nn.Conv1d(2, 3, 3, padding=1),
        (2, 2, 6),
        lambda p, x: convolved(x, p["weight"], padding=1) + per_channel(p["bias"], 3),
    ),
    "conv2d": Case(
        lambda: nn.Conv2d(2, 3, 3), (2, 2, 5, 6), lambda p, x: convolved(x, p["weight"]) + per_channel(p["bias"], 4)
    ),
    "conv2d_stride": Case(
        lambda: nn.Conv2d(2, 3, 2, stride=2, padding=1, bias=False),
        (2, 2, 5, 5),
        lambda p, x: convolved(x, p["weight"], 2, 1),
    ),
    "conv2d_dilation": Case(
        lambda: nn.Conv2d(1, 2, 2, dilation=2, bias=False),
        (1, 1, 5, 5),
        lambda p, x: convolved(x, p["weight"], dilation=2),
    ),
    "conv2d_groups": Case(
        lambda: nn.Conv2d(4, 6, 2, groups=2, bias=False), (1, 4, 4, 4), lambda p, x: convolved(x, p["weight"], groups=2)
    ),
    "conv2d_depthwise": Case(
        lambda: nn.Conv2d(3, 3, 3, padding="same", groups=3, bias=False),
        (1, 3, 4, 4),
        lambda p, x: convolved(x, p["weight"], padding=1, groups=3),
    ),
    "conv3d": Case(lambda: nn.Conv3d(1, 2, 2, bias=False), (1, 1, 3, 3, 3), lambda p, x: convolved(x, p["weight"])),
    "conv_transpose1d": Case(
        lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, bias=False),
        (2, 2, 4),
        lambda p, x: transposed(x, p["weight"], 2, 1),
    ),
    "conv_transpose2d": Case(
        lambda: nn.ConvTranspose2d(2, 3, 2, stride=2),
        (1, 2, 3, 3),
        lambda p, x: transposed(x, p["weight"], 2, 0) + per_channel(p["bias"], 4),
    ),
    "max_pool": Case(lambda: nn.MaxPool2d(2), (2, 2, 4, 6), lambda p, x: pooled(x, np.max, 2, 2, 0, 0)),
    "max_pool_overlap": Case(
        lambda: nn.MaxPool2d(3, 1, padding=1), (1, 2, 4, 4), lambda p, x: pooled(x, np.max, 3, 1, 1, -np.inf)
    ),
    "max_pool1d": Case(lambda: nn.MaxPool1d(2), (2, 2, 6), lambda p, x: pooled(x, np.max, 2, 2, 0, 0)),
    "avg_pool": Case(lambda: nn.AvgPool2d(2), (2, 2, 4, 6), lambda p, x: pooled(x, np.mean, 2, 2, 0, 0)),
    "avg_pool_padded": Case(
        lambda: nn.AvgPool2d(3, 2, padding=1), (1, 1, 5, 5), lambda p, x: pooled(x, np.mean, 3, 2, 1, 0)
    ),
    "avg_pool3d": Case(lambda: nn.AvgPool3d(2), (1, 1, 4, 4, 2), lambda p, x: pooled(x, np.mean, 2, 2, 0, 0)),
    "global_avg_pool": Case(nn.GlobalAvgPool, (2, 3, 4, 5), lambda p, x: x.mean((2, 3))),
    "global_max_pool": Case(nn.GlobalMaxPool, (2, 3, 4), lambda p, x: x.max(2)),
    "layer_norm": Case(lambda: nn.LayerNorm(5), (3, 5), lambda p, x: normalised(x, (1,)) * p["scale"] + p["bias"]),
    "layer_norm_2d": Case(
        lambda: nn.LayerNorm((3, 4)), (2, 3, 4), lambda p, x: normalised(x, (1, 2)) * p["scale"] + p["bias"]
    ),
    "rms_norm": Case(
        lambda: nn.RMSNorm(5), (3, 5), lambda p, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]
    ),
    "batch_norm": Case(lambda: nn.BatchNorm2d(3), (4, 3, 2, 2), lambda p, x: affine(p, normalised(x, (0, 2, 3)))),
    "batch_norm_1d": Case(lambda: nn.BatchNorm1d(3), (6, 3), lambda p, x: affine(p, normalised(x, (0,)))),
    "group_norm": Case(lambda: nn.GroupNorm(2, 4), (2, 4, 3), lambda p, x: affine(p, grouped(x, 2))),
    "instance_norm": Case(lambda: nn.InstanceNorm(3), (2, 3, 4), lambda p, x: affine(p, grouped(x, 3))),
    "relu": Case(nn.ReLU, (3, 4), lambda p, x: np.maximum(x, 0)),
    "relu6": Case(nn.ReLU6, (3, 4), lambda p, x: np.clip(x, 0, 6)),
    "leaky_relu": Case(lambda: nn.LeakyReLU(alpha=0.1), (3, 4), lambda p, x: np.where(x > 0, x, 0.1 * x)),
    "elu": Case(nn.ELU, (3, 4), lambda p, x: np.where(x > 0, x, np.expm1(x))),
    "selu": Case(
        nn.SELU, (3, 4), lambda p, x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))
    ),
    "gelu": Case(nn.GELU, (3, 4), lambda p, x: gelu(x)),
    "silu": Case(nn.SiLU, (3, 4), lambda p, x: x * sigmoid(x)),
    "mish": Case(nn.Mish, (3, 4), lambda p, x: x * np.tanh(np.log1p(np.exp(x)))),
    "tanh": Case(nn.Tanh, (3, 4), lambda p, x: np.tanh(x)),
    "sigmoid": Case(nn.Sigmoid, (3, 4), lambda p, x: sigmoid(x)),
    "softplus": Case(nn.Softplus, (3, 4), lambda p, x: np.log1p(np.exp(x))),
    "softsign": Case(nn.Softsign, (3, 4), lambda p, x: x / (1 + np.abs(x))),
    "hard_sigmoid": Case(nn.HardSigmoid, (3, 4), lambda p, x: np.clip(x / 6 + 0.5, 0, 1)),
    "hard_swish": Case(nn.HardSwish, (3, 4), lambda p, x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "softmax": Case(lambda: nn.Softmax(1), (2, 3, 4), lambda p, x: softmax(x, 1)),
    "prelu": Case(nn.PReLU, (3, 4), lambda p, x: np.where(x > 0, x, p["slope"] * x)),
    "prelu_channels": Case(
        lambda: nn.PReLU(3), (2, 3, 4), lambda p, x: np.where(x > 0, x, per_channel(p["slope"], 3) * x)
    ),
    "flatten": Case(nn.Flatten, (2, 3, 4), lambda p, x: x.reshape(2, 12)),
    "sequential": Case(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        (2, 4),
        lambda p, x: np.tanh(x @ p["layers.0.weight"] + p["layers.0.bias"]),
    ),
    "residual": Case(
        lambda: nn.Residual(nn.Linear(4, 4)),
        (2, 4),
        lambda p, x: x + x @ p["body.layers.0.weight"] + p["body.layers.0.bias"],
    ),
    "attention": Case(lambda: nn.MultiHeadAttention(6, 2), (2, 3, 6), lambda p, x: attended(p, x, 2, False)),
    "attention_causal": Case(
        lambda: nn.MultiHeadAttention(4, 1, causal=True), (1, 4, 4), lambda p, x: attended(p, x, 1, True)
    ),
    "rnn": Case(lambda: first(nn.RNN(3, 2)), (4, 2, 3), lambda p, x: rnn(inner(p), x)),
    "lstm": Case(lambda: first(nn.LSTM(3, 2)), (4, 2, 3), lambda p, x: lstm(inner(p), x)),
    "gru": Case(lambda: first(nn.GRU(3, 2)), (4, 2, 3), lambda p, x: gru(inner(p), x)),
    "lstm_deep": Case(
        lambda: first(nn.LSTM(2, 2, layers=2, bidirectional=True, batch_first=True)), (1, 3, 2), deep_lstm
    ),
    "positions": Case(lambda: nn.PositionalEncoding(6, 10), (2, 5, 6), lambda p, x: positions(x)),
}


def in_double(module: Any, rng: np.random.Generator) -> Any:
    """A copy with double-precision parameters, moved away from zeros and ones."""

    def moved(_: str, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        values = array.astype(np.float64)
        return (
            values.view(type(array))
            if isinstance(array, nn.Buffer)
            else values + 0.1 * rng.standard_normal(array.shape)
        )

    return module.with_arrays(moved)


@pytest.mark.parametrize("name", CASES)
def test_layer_computes_its_formula(name, rng):
    case = CASES[name]
    module, x = in_double(case.layer(), rng), rng.standard_normal(case.shape)
    parameters = dict(module.named_parameters())
    found = traced_run(lambda x: module(x), [type_of(x)], x)  # noqa: PLW0108  a Module is traced otherwise
    close(found, case.formula(parameters, x), 1e-9, 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_layer(name, rng):
    """A random projection of the result, differentiated for the input and each parameter."""
    case = CASES[name]
    module, x = in_double(case.layer(), rng), rng.standard_normal(case.shape)
    parameters = dict(module.named_parameters())
    weights = rng.standard_normal(case.formula(parameters, x).shape)

    def projected(p: Parameters, x: np.ndarray) -> float:
        return float((case.formula(p, x) * weights).sum())

    def loss(x, *given):
        values = dict(zip(parameters, given, strict=True))
        return (module.with_arrays(values.get)(x) * weights).sum()

    arrays = [x, *parameters.values()]
    gradient = functions.grad(loss, tuple(range(len(arrays))))
    found = traced_run(gradient, [type_of(a) for a in arrays], *arrays)
    close(found[0], numeric_gradient(lambda v: projected(parameters, v), x), 1e-5, 1e-6)
    for one, (key, array) in zip(found[1:], parameters.items(), strict=True):
        expected = numeric_gradient(lambda v, key=key: projected({**parameters, key: v}, x), array)
        close(one, expected, 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["conv2d", "layer_norm", "attention", "lstm", "batch_norm", "avg_pool_padded", "gelu"])
def test_compiled_layer(name, rng):
    """In single precision, compiled for a symbolic batch, in inference mode."""
    case = CASES[name]
    module = case.layer()
    for array in module.named_parameters().values():
        array += 0.1 * rng.standard_normal(array.shape).astype(np.float32)
    x = rng.standard_normal(case.shape).astype(np.float32)
    batch = 1 if name == "lstm" else 0
    shape = tuple("batch" if n == batch else d for n, d in enumerate(case.shape))
    if name == "batch_norm":
        module.running_mean[...], module.running_variance[...] = x.mean((0, 2, 3)), x.var((0, 2, 3))
    executable = ingot.compile(module, ingot.f32[shape])
    close(executable(x), case.formula(dict(module.named_parameters()), x), 1e-4, 1e-5)


# --- what formulas do not say ---------------------------------------------------------------------------


def test_embedding_looks_rows_up(rng):
    layer = nn.Embedding(7, 3)
    index = rng.integers(0, 7, (2, 4))
    close(ingot.interpret(layer, index), layer.weight[index])
    gradient = ingot.grad(lambda model, i: (model(i) ** 2).sum())(layer, index)["weight"]
    expected = np.zeros_like(layer.weight)
    np.add.at(expected, index, 2 * layer.weight[index])
    close(gradient, expected, 1e-5)


def test_batch_norm_uses_running_statistics_when_it_does_not_train(rng):
    layer = nn.BatchNorm2d(3)
    layer.running_mean[...], layer.running_variance[...] = [1, 2, 3], [4, 5, 6]
    x = rng.standard_normal((2, 3, 4, 4)).astype(np.float32)
    mean, variance = per_channel(np.array([1.0, 2, 3]), 4), per_channel(np.array([4.0, 5, 6]), 4)
    close(ingot.interpret(layer, x), (x - mean) / np.sqrt(variance + 1e-5), 1e-5)


def test_padding_same_keeps_the_extent(rng):
    for size in (1, 2, 3, 4, 5):
        layer = nn.Conv2d(1, 1, size, padding="same")
        assert ingot.interpret(layer, rng.standard_normal((1, 1, 7, 9)).astype(np.float32)).shape == (1, 1, 7, 9)


@pytest.mark.parametrize(
    ("make", "match"),
    [(lambda: nn.Conv2d(3, 4, 3, groups=2), "groups"), (lambda: nn.Conv2d(1, 1, 3, stride=2, padding="same"), "stride"),
     (lambda: nn.Conv2d(1, 1, 3, padding="full"), "full"), (lambda: nn.GroupNorm(2, 3), "groups"),
     (lambda: nn.MultiHeadAttention(5, 2), "heads"), (lambda: nn.Dropout(1.0), "rate")],
)  # fmt: skip
def test_layers_refuse_what_makes_no_sense(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_recurrent_states_can_be_given(rng):
    """A sequence in two parts is the sequence, when the second part starts where the first ended."""
    layer = nn.LSTM(3, 4)
    x = rng.standard_normal((6, 2, 3)).astype(np.float32)

    def in_parts(x):
        head, state = layer(x[:2])
        tail, final = layer(x[2:], state)
        return ingot.concatenate([head, tail]), final

    whole, final = traced_run(lambda x: layer(x), [type_of(x)], x)  # noqa: PLW0108
    parts, last = traced_run(in_parts, [type_of(x)], x)
    close(parts, whole, 1e-6)
    for a, b in zip(final[0], last[0], strict=True):
        close(a, b, 1e-6)


def test_layers_are_reproducible():
    for make in (lambda **k: nn.Linear(3, 4, **k), lambda **k: nn.Conv2d(1, 2, 3, **k), lambda **k: nn.LSTM(2, 3, **k)):
        first_model, again, other = make(generator=5), make(generator=5), make(generator=6)
        for a, b in zip(first_model.parameters(), again.parameters(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert not np.array_equal(first_model.parameters()[0], other.parameters()[0])


def test_two_layers_of_one_generator_differ():
    generator = np.random.default_rng(0)
    a, b = nn.Linear(3, 3, generator=generator), nn.Linear(3, 3, generator=generator)
    assert not np.array_equal(a.weight, b.weight)


def test_a_value_knows_the_layer_it_came_from():
    class Model(nn.Module):
        def __init__(self):
            self.blocks = {"first": nn.Sequential(nn.Linear(4, 4), nn.ReLU())}

        def forward(self, x):
            return self.blocks["first"](x).exp()

    graph = ingot.trace(Model(), [ingot.f32[2, 4]]).graph
    texts = {node.op.name: node.source.text for node in graph.body if node.source is not None}
    line = 'return self.blocks["first"](x).exp()'
    assert texts["contract"] == line + "  [blocks.first.layers.0: Linear]"
    assert texts["relu"] == line + "  [blocks.first.layers.1: Relu]"
    assert texts["exp"] == line
