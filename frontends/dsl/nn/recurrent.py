"""Recurrent layers on Scan. Data is [time, batch, features], or [batch, time, features] with `batch_first`.

The input products of all time steps are one large matrix product before the loop; the loop holds only what
depends on the previous step. Gates are packed along the last axis of the weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.frontends.dsl.arrays import concatenate
from ingot.frontends.dsl.functions import scan
from ingot.frontends.dsl.module import Module
from ingot.frontends.dsl.nn import initializers
from ingot.frontends.dsl.nn.layers import Generator, generator_of


class _Cell(Module):
    """One direction of one layer."""

    gates = 1

    def __init__(self, inputs: int, width: int, generator: np.random.Generator) -> None:
        draw = initializers.uniform(1 / math.sqrt(width))
        self.width = width
        self.input_weight = draw((inputs, self.gates * width), generator)
        self.hidden_weight = draw((width, self.gates * width), generator)
        self.bias = draw((self.gates * width,), generator)

    def initial(self, x: Any) -> Any:
        return x.full((x.shape[1], self.width), 0.0)

    def step(self, carry: Any, projected: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def forward(self, x: Any, state: Any = None, reverse: bool = False) -> tuple[Any, Any]:
        projected = x @ self.input_weight + self.bias
        state = self.initial(x) if state is None else state
        final, outputs = scan(self.step, state, projected, reverse=reverse)
        return outputs, final


class RNNCell(_Cell):
    """h = tanh(x W + h U + b)"""

    activation = "tanh"

    def step(self, carry: Any, projected: Any) -> tuple[Any, Any]:
        hidden = getattr(projected + carry @ self.hidden_weight, self.activation)()
        return hidden, hidden


class LSTMCell(_Cell):
    """Gates in the order input, forget, cell, output."""

    gates = 4

    def initial(self, x: Any) -> Any:
        zero = x.full((x.shape[1], self.width), 0.0)
        return zero, zero

    def step(self, carry: Any, projected: Any) -> tuple[Any, Any]:
        hidden, cell = carry
        gates = projected + hidden @ self.hidden_weight
        n = self.width
        enter, forget = gates[:, :n].sigmoid(), gates[:, n : 2 * n].sigmoid()
        candidate, leave = gates[:, 2 * n : 3 * n].tanh(), gates[:, 3 * n :].sigmoid()
        cell = forget * cell + enter * candidate
        hidden = leave * cell.tanh()
        return (hidden, cell), hidden


class GRUCell(_Cell):
    """Gates in the order reset, update, new: n = tanh(x_n + r * (h U_n + b_n)), h = (1 - z) n + z h."""

    gates = 3

    def __init__(self, inputs: int, width: int, generator: np.random.Generator) -> None:
        super().__init__(inputs, width, generator)
        self.hidden_bias = initializers.uniform(1 / math.sqrt(width))((3 * width,), generator)

    def step(self, carry: Any, projected: Any) -> tuple[Any, Any]:
        n = self.width
        hidden_part = carry @ self.hidden_weight + self.hidden_bias
        reset = (projected[:, :n] + hidden_part[:, :n]).sigmoid()
        update = (projected[:, n : 2 * n] + hidden_part[:, n : 2 * n]).sigmoid()
        new = (projected[:, 2 * n :] + reset * hidden_part[:, 2 * n :]).tanh()
        hidden = (1.0 - update) * new + update * carry
        return hidden, hidden


class _Recurrent(Module):
    """Layers of cells; returns (outputs of the last layer, final states, one per layer and direction)."""

    cell: type[_Cell]

    def __init__(
        self,
        inputs: int,
        width: int,
        layers: int = 1,
        bidirectional: bool = False,
        batch_first: bool = False,
        generator: Generator = None,
    ) -> None:
        source = generator_of(generator)
        self.batch_first = batch_first
        self.directions = 2 if bidirectional else 1
        self.cells = []
        for layer in range(layers):
            wide = inputs if layer == 0 else width * self.directions
            self.cells.append([self.cell(wide, width, source) for _ in range(self.directions)])

    def forward(self, x: Any, states: Any = None) -> tuple[Any, list[Any]]:
        if self.batch_first:
            x = x.transpose(1, 0, 2)
        final: list[Any] = []
        for layer, cells in enumerate(self.cells):
            outputs = []
            for direction, cell in enumerate(cells):
                state = None if states is None else states[layer * self.directions + direction]
                y, last = cell(x, state, reverse=direction == 1)
                outputs.append(y)
                final.append(last)
            x = outputs[0] if len(outputs) == 1 else concatenate(outputs, axis=2)
        return (x.transpose(1, 0, 2) if self.batch_first else x), final


class RNN(_Recurrent):
    cell = RNNCell


class LSTM(_Recurrent):
    cell = LSTMCell


class GRU(_Recurrent):
    cell = GRUCell
