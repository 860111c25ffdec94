"""Small versions of the architectures that users bring, with a loss and the types of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ingot
from ingot import nn, optim


@dataclass(frozen=True)
class Case:
    """A model to compile and train. `batch(n)` makes n random examples."""

    make: Callable[[], nn.Module]
    input_type: Any
    label_type: Any
    inputs: Callable[[np.random.Generator, int], np.ndarray]
    labels: Callable[[np.random.Generator, int], np.ndarray]
    optimizer: Callable[[], optim.Optimizer] = lambda: optim.SGD(0.05, momentum=0.9)

    def build(self) -> nn.Module:
        """The model, each time with the same initial weights."""
        nn.seed(0)
        return self.make()

    def batch(self, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(seed)
        return self.inputs(generator, count), self.labels(generator, count)


def classify(model, x, labels):
    return nn.cross_entropy(model(x), labels)


def normal(*shape: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.standard_normal((count, *shape)).astype(np.float32)


def classes(number: int, *shape: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.integers(0, number, (count, *shape))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 10),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None

    def forward(self, x):
        hidden = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (hidden + (x if self.shortcut is None else self.shortcut(x))).relu()


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm(8), nn.ReLU(), ResidualBlock(8, 8),
        ResidualBlock(8, 16, 2), nn.GlobalAvgPool(), nn.Linear(16, 5),
    )  # fmt: skip


class CharacterLSTM(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(12, 8)
        self.lstm = nn.LSTM(8, 16, layers=2, batch_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, index):
        outputs, _ = self.lstm(self.embedding(index))
        return self.head(outputs)


class SmallTransformer(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(12, 16)
        self.positions = nn.PositionalEncoding(16, 32)
        self.blocks = nn.Sequential(*(nn.TransformerBlock(16, 4, causal=True) for _ in range(2)))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 12)

    def forward(self, index):
        return self.head(self.norm(self.blocks(self.positions(self.embedding(index)))))


TIME = 6

CASES: dict[str, Case] = {
    "mlp": Case(mlp, ingot.f32["batch", 20], ingot.i64["batch"], normal(20), classes(5), lambda: optim.Adam(1e-3)),
    "lenet": Case(lenet, ingot.f32["batch", 1, 16, 16], ingot.i64["batch"], normal(1, 16, 16), classes(10)),
    "residual": Case(
        # a small rate: at 0.05 the four batches are learnt by heart, and what is left of the velocity is rounding
        residual, ingot.f32["batch", 3, 8, 8], ingot.i64["batch"], normal(3, 8, 8), classes(5),
        lambda: optim.SGD(0.01, momentum=0.9),
    ),
    "lstm": Case(
        CharacterLSTM, ingot.i64["batch", TIME], ingot.i64["batch", TIME], classes(12, TIME), classes(12, TIME),
        lambda: optim.Adam(1e-3),
    ),
    "transformer": Case(
        # not Adam: the gradient of a key's bias is zero but for rounding, and Adam would scale that noise up
        SmallTransformer, ingot.i64["batch", TIME], ingot.i64["batch", TIME], classes(12, TIME), classes(12, TIME),
    ),
}  # fmt: skip
