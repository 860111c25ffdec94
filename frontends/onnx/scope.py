"""The names of one ONNX graph and of the graphs around it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.values import Coded, Value

Weight = Callable[[Trace], Tensor | np.ndarray]


class Scope:
    """Names to values; a name that is not here belongs to a graph around this one, and its tensors are captured.

    `trace` is where the nodes of this graph are emitted. `weights` are initializers that become values when they
    are first read.
    """

    def __init__(self, trace: Trace, parent: Scope | None = None) -> None:
        self.trace = trace
        self.parent = parent
        self.values: dict[str, Value] = {}
        self.weights: dict[str, Weight] = {}

    def set(self, name: str, value: Value) -> None:
        if name:
            self.values[name] = value

    def has(self, name: str) -> bool:
        return name in self.values or name in self.weights or (self.parent is not None and self.parent.has(name))

    def find(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if name in self.weights:
            self.values[name] = self.weights[name](self.trace)
            return self.values[name]
        if self.parent is None:
            raise ProblemError(Kind.MISSING_INPUT, f"the value {name!r} is used but never defined")
        return self.adopt(self.parent.find(name))

    def peek(self, name: str) -> Value:
        """A value to look at the type of: a weight that nothing reads yet does not become an input of the program."""
        if name in self.values:
            return self.values[name]
        if name in self.weights:
            return self.weights[name](Trace())
        return self.parent.peek(name) if self.parent is not None else None

    def adopt(self, value: Value) -> Value:
        """A value of a graph around this one, as it is seen here."""
        if isinstance(value, Coded):
            return Coded(self._adopt_tensor(value.tensor), value.element)
        return self._adopt_tensor(value) if isinstance(value, Tensor) else value

    def _adopt_tensor(self, tensor: Tensor) -> Tensor:
        if tensor.builder is self.trace:
            return tensor
        inside = self.trace.adopt(tensor.value, tensor.builder)
        assert inside is not None, "a scope's trace is inside the traces of the scopes around it"
        return Tensor(self.trace, inside)
