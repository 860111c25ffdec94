"""Models that the tests of the pipeline share, and how to run compiled graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

import ingot
from ingot import nn, optim
from ingot.compiler.ir.graph import Graph
from ingot.compiler.pipeline import Compiled
from ingot.runtime.executable import Executable


def network() -> nn.Module:
    """Something for every pass: convolution, batch norm, pooling, attention-free softmax, constants."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False, generator=0), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 8, generator=1), nn.LayerNorm(8), nn.Linear(8, 3, generator=2), nn.Softmax(),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    model[1].running_mean[...] = rng.standard_normal(4)
    model[1].running_variance[...] = rng.uniform(0.5, 2, 4)
    return model


TYPES = (ingot.f32["batch", 1, 8, 8],)


def graph_of(model: Any, *types: Any) -> Graph:
    return ingot.trace(model.eval() if isinstance(model, nn.Module) else model, types).graph


def network_graph() -> Graph:
    return graph_of(network(), *TYPES)


def images(count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 1, 8, 8)).astype(np.float32)


def training_step() -> ingot.Trainer:
    def loss(model: Any, x: Any, labels: Any) -> Any:
        return nn.cross_entropy(model(x), labels)

    model = nn.Sequential(nn.Linear(4, 8, generator=0), nn.Tanh(), nn.Linear(8, 3, generator=1))
    return ingot.Trainer(model, loss, optim.Adam(0.01), ingot.f32["batch", 4], ingot.i64["batch"])


def run(compiled: Compiled, *args: np.ndarray, threads: int = 2) -> Any:
    return Executable(compiled.program, threads)(*args)
