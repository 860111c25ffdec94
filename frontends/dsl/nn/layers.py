"""Dense layers, containers, activations, embedding, dropout.

Every layer takes `generator` (or a seed) for its initial values. Without one it takes the next number of a
sequence that starts at the same place in every process (`seed` starts it elsewhere, or again), so that layers
begin with different weights and a program begins with the same ones each time it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ops.random import advance, dropout, key_array
from ingot.frontends.dsl.module import Buffer, Module
from ingot.frontends.dsl.nn import initializers
from ingot.frontends.dsl.nn.initializers import Initializer

Generator = np.random.Generator | int | None


class _Seeds:
    """Seeds for layers that were given none: (start, 0), (start, 1), ..."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, start: int) -> None:
        self._pairs = zip(itertools.repeat(start), itertools.count())

    def take(self) -> tuple[int, int]:
        return next(self._pairs)


_seeds = _Seeds()


def seed(start: int) -> None:
    """Layers made from now on without a generator have the initial values that this number stands for."""
    if start < 0:
        raise ValueError(f"a seed is 0 or more, not {start}")
    _seeds.restart(start)


def generator_of(given: Generator) -> np.random.Generator:
    """The generator given, one seeded by the number given, or the next one of the process."""
    if isinstance(given, np.random.Generator):
        return given
    return np.random.default_rng(_seeds.take() if given is None else given)


class Linear(Module):
    """y = x @ weight + bias; weight is [inputs, outputs]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        initializer: Initializer = initializers.he_uniform,
        generator: Generator = None,
    ) -> None:
        source = generator_of(generator)
        self.weight = initializer((inputs, outputs), source)
        self.bias = np.zeros(outputs, np.float32) if bias else None

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """Rows of a table by integer index."""

    def __init__(
        self, count: int, width: int, initializer: Initializer | None = None, generator: Generator = None
    ) -> None:
        source = generator_of(generator)
        self.weight = (initializer or initializers.normal(0.02))((count, width), source)

    def forward(self, index: Any) -> Any:
        return index._coerce(self.weight).gather(index, axis=0)


class Dropout(Module):
    """Zero each element with probability `rate` while training, and scale the others up by 1 / (1 - rate).

    The mask of step n is number n of a counter-based stream: the same for any number of threads, and another
    for each layer of a model.
    """

    def __init__(self, rate: float = 0.5, seed: int = 0) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate is in [0, 1), not {rate}")
        self.rate = rate
        self.key = Buffer(key_array(seed))

    def forward(self, x: Any) -> Any:
        if not self.training or not self.rate:
            return x
        key = x._coerce(self.key)
        self.key = advance(key)
        return dropout(x, key, self.rate, x.builder.take_number())


class Sequential(Module):
    """Layers (modules or functions), one after another."""

    def __init__(self, *layers: Callable[..., Any]) -> None:
        self.layers = list(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)


class Flatten(Module):
    """Merge all axes from `start` on."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: Any) -> Any:
        return x.flatten(self.start)


class Activation(Module):
    """An op of one argument as a layer, with its fields: Activation("leaky_relu", alpha=0.1)."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.name = name
        self.fields = fields

    def forward(self, x: Any) -> Any:
        return getattr(x, self.name)(**self.fields)

    def __repr__(self) -> str:
        return f"Activation({self.name!r})"


def _activation(name: str, **defaults: Any) -> Any:
    def __init__(self: Activation, **fields: Any) -> None:
        Activation.__init__(self, name, **defaults | fields)

    title = "".join(part.capitalize() for part in name.split("_"))
    return type(title, (Activation,), {"__init__": __init__, "__doc__": f"{name} as a layer", "__module__": __name__})


ReLU = _activation("relu")
ReLU6 = _activation("relu6")
LeakyReLU = _activation("leaky_relu")
ELU = _activation("elu")
SELU = _activation("selu")
GELU = _activation("gelu")
SiLU = _activation("silu")
Mish = _activation("mish")
Tanh = _activation("tanh")
Sigmoid = _activation("sigmoid")
Softplus = _activation("softplus")
Softsign = _activation("softsign")
HardSigmoid = _activation("hard_sigmoid", alpha=1 / 6)  # the factor of hard_swish; the op's own is ONNX's
HardSwish = _activation("hard_swish")


class Softmax(Module):
    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return x.softmax(self.axis)


class PReLU(Module):
    """max(x, 0) + slope * min(x, 0), with a learned slope (one, or one per channel of axis 1)."""

    def __init__(self, channels: int = 1, slope: float = 0.25) -> None:
        self.slope = np.full(channels, slope, np.float32)

    def forward(self, x: Any) -> Any:
        shape = [1] * x.rank
        if self.slope.shape[0] != 1:
            shape[1] = self.slope.shape[0]
        slope = x._coerce(self.slope).reshape(*shape)
        return x.clip(low=0.0) + slope * x.clip(high=0.0)


class Residual(Module):
    """x + body(x)"""

    def __init__(self, *layers: Callable[..., Any]) -> None:
        self.body = Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def pair(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number for all spatial axes, or one each."""
    return (value,) * count if isinstance(value, int) else tuple(value)
