"""Some of the models in JAX, for training: functions of a dict of parameters with Ingot's names and layouts.

The whole step is one jitted function whose arguments are donated, which is how JAX trains fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Parameters = Mapping[str, Any]


def dense(p: Parameters, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def mlp(p: Parameters, x: Any, labels: Any) -> Any:
    for layer in (0, 2):
        x = jax.nn.relu(dense(p, f"layers.{layer}", x))
    return cross_entropy(dense(p, "layers.4", x), labels)


def lenet(p: Parameters, x: Any, labels: Any) -> Any:
    for layer, padding in ((0, 2), (3, 0)):
        x = lax.conv(x, p[f"layers.{layer}.weight"], (1, 1), "VALID") if not padding else lax.conv_general_dilated(
            x, p[f"layers.{layer}.weight"], (1, 1), [(padding, padding)] * 2
        )  # fmt: skip
        x = jax.nn.relu(x + p[f"layers.{layer}.bias"][:, None, None])
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = x.reshape(x.shape[0], -1)
    for layer in (7, 9):
        x = jax.nn.relu(dense(p, f"layers.{layer}", x))
    return cross_entropy(dense(p, "layers.11", x), labels)


def vae(p: Parameters, x: Any, noise: Any) -> Any:
    hidden = jax.nn.relu(dense(p, "encoder", x))
    mean, log_variance = dense(p, "mean", hidden), dense(p, "log_variance", hidden)
    z = mean + noise * jnp.exp(0.5 * log_variance)
    logits = dense(p, "decoder.layers.2", jax.nn.relu(dense(p, "decoder.layers.0", z)))
    likelihood = (jax.nn.softplus(logits) - x * logits).sum()
    divergence = -0.5 * (log_variance + 1.0 - mean * mean - jnp.exp(log_variance)).sum()
    return (likelihood + divergence) / x.shape[0]


def layer_norm(p: Parameters, name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * p[f"{name}.scale"] + p[f"{name}.bias"]


def attention(p: Parameters, name: str, x: Any, heads: int) -> Any:
    batch, time, width = x.shape
    split = [dense(p, f"{name}.{part}", x).reshape(batch, time, heads, -1) for part in ("query", "key", "value")]
    mixed = jax.nn.dot_product_attention(*split, is_causal=True)
    return dense(p, f"{name}.output", mixed.reshape(batch, time, width))


def nanogpt(p: Parameters, index: Any, labels: Any) -> Any:
    x = p["tokens.weight"][index] + p["positions.weight"][: index.shape[1]]
    for layer in range(4):
        name = f"blocks.layers.{layer}"
        x = x + attention(p, f"{name}.attention", layer_norm(p, f"{name}.norm1", x), 4)
        hidden = jax.nn.gelu(dense(p, f"{name}.mlp.layers.0", layer_norm(p, f"{name}.norm2", x)), approximate=True)
        x = x + dense(p, f"{name}.mlp.layers.2", hidden)
    return cross_entropy(layer_norm(p, "norm", x) @ p["tokens.weight"].T, labels)


LOSSES: dict[str, Callable[..., Any]] = {"mlp": mlp, "lenet": lenet, "vae": vae, "nanogpt": nanogpt}


def training(
    name: str, arrays: Mapping[str, np.ndarray], batch: Sequence[np.ndarray], optimizer: str, rate: float
) -> Callable[[], float]:
    """A step; the call returns the loss."""
    gradient = jax.value_and_grad(LOSSES[name])

    def step(parameters: Any, first: Any, second: Any, count: Any, *items: Any) -> Any:
        loss, gradients = gradient(parameters, *items)
        if optimizer == "sgd":
            first = jax.tree.map(lambda m, g: 0.9 * m + g, first, gradients)
            return loss, jax.tree.map(lambda w, m: w - rate * m, parameters, first), first, second, count + 1
        decay = 1e-2 if optimizer == "adamw" else 0.0
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        scale, root = 1 - 0.9**count, jnp.sqrt(1 - 0.999**count)

        def updated(w: Any, m: Any, v: Any) -> Any:
            return w * (1 - rate * decay) - rate / scale * m / (jnp.sqrt(v) / root + 1e-8)

        return loss, jax.tree.map(updated, parameters, first, second), first, second, count + 1

    jitted = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    parameters = {key: jnp.array(array) for key, array in arrays.items() if array.dtype.kind == "f"}
    zeros = {key: jnp.zeros_like(array) for key, array in parameters.items()}
    unused = {} if optimizer == "sgd" else {key: jnp.zeros_like(array) for key, array in parameters.items()}
    state: list[Any] = [parameters, zeros, unused, jnp.float32(1)]
    items = [jnp.asarray(item.astype(np.int32) if item.dtype == np.int64 else item) for item in batch]

    def call() -> float:
        loss, *state[:] = jitted(*state, *items)
        return float(loss)

    return call
