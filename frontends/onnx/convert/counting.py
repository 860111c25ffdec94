"""How many rounds a Loop takes whose condition compares a counter with a number that is known.

    i = 0; while i < n: ...; i = i + 1

is what exporters make of loops over a sequence: the number of rounds is not an input of the Loop but follows from
the states that the condition looks at. The part of the body that computes these is evaluated on symbols: what a round
adds to each state, then, with the states of round k, the two sides of the comparison. Only integers of one element
are looked at, and only the nodes between them and the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from ingot.compiler.errors import IngotError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr, Symbol
from ingot.compiler.ir.types import DType, dtype_of, i64
from ingot.compiler.ops.base import OpTypeError
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.call import Call, NotTraceable
from ingot.frontends.onnx.problems import ProblemError
from ingot.frontends.onnx.source import subgraphs
from ingot.frontends.onnx.values import Dims, Value, known

_SAME = ("Identity", "Squeeze", "Unsqueeze", "Reshape", "Cast")  # of one truth value
_COMPARISONS = {"Less": (1, 0, 1), "Greater": (0, 1, 1), "LessOrEqual": (1, 0, 0), "GreaterOrEqual": (0, 1, 0)}


class _Unknown(Exception):
    """The rounds cannot be counted."""


def rounds_compared(op: Call, body: GraphProto, initial: Sequence[Value]) -> Dim | None:
    """The number of rounds of a loop that has begun; None when the condition is anything else than a comparison of
    counters."""
    try:
        return 1 + _Counter(op, body, initial).rounds(body.output[0].name)
    except (_Unknown, NotTraceable, OpTypeError, IngotError, ProblemError):
        return None


class _Counter:
    def __init__(self, op: Call, body: GraphProto, initial: Sequence[Value]) -> None:
        self.op, self.body = op, body
        self.makers = {name: node for node in body.node for name in node.output if name}
        self.number = op.importer.unique("round")
        self.starts: dict[str, tuple[Dim, tuple[int, ...], DType]] = {}  # states that are one integer
        for declared, value in zip(body.input[2:], initial, strict=True):
            start = _integer(value)
            if start is not None:
                self.starts[declared.name] = start
        self.steps = self._steps()

    def _steps(self) -> dict[str, int]:
        """What each round adds to the states that are counters; 0 for one that stays."""
        outputs = {i.name: o.name for i, o in zip(self.body.input[2:], self.body.output[1:], strict=False)}
        counters = dict.fromkeys(self.starts)
        while True:  # one that depends on a state that is no counter is none either
            readable = {n for n in counters if self._inputs_of(outputs[n]) <= {*counters, self.body.input[0].name}}
            if len(readable) == len(counters):
                break
            counters = {n: None for n in counters if n in readable}
        if not counters:
            raise _Unknown
        before: dict[str, Dim] = {name: self.op.importer.unique("state") for name in counters}
        after = self._evaluated([outputs[name] for name in counters], self.number, before)
        steps: dict[str, int] = {}
        for (name, symbol), made in zip(before.items(), after, strict=True):
            step = made - symbol
            if isinstance(step, int):
                steps[name] = step
        return steps

    def rounds(self, name: str) -> Dim:
        """After how many rounds the truth value of this name is first false."""
        node = self.makers.get(name)
        if node is None:
            raise _Unknown
        if node.op_type in _SAME:
            return self.rounds(node.input[0])
        if node.op_type == "And":
            return symbolic.minimum(*(self.rounds(side) for side in node.input))
        if node.op_type not in _COMPARISONS or node.domain not in ("", "ai.onnx"):
            raise _Unknown
        if not set().union(*map(self._inputs_of, node.input)) <= {*self.steps, self.body.input[0].name}:
            raise _Unknown
        now: dict[str, Dim] = {n: self.starts[n][0] + self.number * step for n, step in self.steps.items()}
        sides = self._evaluated(node.input, self.number, now)
        greater, less, strictly = _COMPARISONS[node.op_type]
        margin = sides[greater] - sides[less]  # it holds while this is positive, or not negative
        slope = symbolic.linear_coefficient(margin, self.number)
        if not isinstance(slope, int) or slope >= 0:
            raise _Unknown
        first = symbolic.substitute(margin, {self.number: 0})
        if symbolic.equal(margin, first + slope * self.number) is not True:
            raise _Unknown
        last = symbolic.ceildiv(first, -slope) if strictly else first // -slope + 1
        return symbolic.maximum(0, last)

    def _inputs_of(self, name: str) -> set[str]:
        """The inputs of the body that a value depends on."""
        given = {i.name for i in self.body.input}
        return {n for n in self._needed([name])[1] if n in given}

    def _needed(self, names: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
        """The nodes that make these values, and every name they read."""
        seen: set[str] = set()
        work = list(names)
        while work:
            name = work.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.makers.get(name)
            if node is not None:
                if any(True for _ in subgraphs(node)):
                    raise _Unknown
                work += node.input
        return [n for n in self.body.node if not seen.isdisjoint(n.output)], seen

    def _evaluated(self, names: Sequence[str], number: Symbol, states: dict[str, Dim]) -> list[Dim]:
        """Values of the body, each one integer, for a round and its states."""
        nodes, read = self._needed(names)
        part = GraphProto(name=self.body.name, node=nodes)
        part.initializer.extend(t for t in self.body.initializer if t.name in read)
        given: list[Value] = []
        for place, declared in enumerate(self.body.input):
            if place == 0:
                given.append(_dims(number, (), i64))
            elif declared.name in states:
                given.append(_dims(states[declared.name], *self.starts[declared.name][1:]))
            else:
                continue
            part.input.add().CopyFrom(declared)
        for name in names:
            part.output.add(name=name)
        values = self.op.importer.region(part, self.op.scope, Trace(self.op.trace), self.op.opsets, given)
        found = [_integer(value) for value in values]
        if any(f is None for f in found):
            raise _Unknown
        return [f[0] for f in found if f is not None]


def _dims(value: Dim, shape: tuple[int, ...], dtype: DType) -> Value:
    array = np.empty(shape, object)
    array[...] = value
    return known(array, dtype)


def _integer(value: Value) -> tuple[Dim, tuple[int, ...], DType] | None:
    """A known value of one whole number: the number, its shape and its element type."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iuf":
        number = value.reshape(()).item()
        return (int(number), value.shape, dtype_of(value)) if number == int(number) else None
    if isinstance(value, Dims) and value.array.size == 1:
        dim = value.array.reshape(()).item()
        return (dim, value.array.shape, value.dtype) if isinstance(dim, int | Expr) else None
    return None
