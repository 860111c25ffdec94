"""Control flow: ops whose meaning is in their regions.

A region is a closed Graph; what it uses from outside is passed explicitly as trailing arguments
("captured"). Results are always a tuple, also of one. Gradients are control flow again, made by
differentiating the regions; a While is differentiated as a Scan over its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Builder, Graph, Value, input_of, replay
from ingot.compiler.ir.interpret.graph import run_region
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, TupleType, Type, boolean, f64
from ingot.compiler.ops.base import Differentiate, Node, Op, OpTypeError, Sample


def _check_region(op: str, region: str, graph: Graph, given: Sequence[Type]) -> None:
    expected = [v.type for v in graph.inputs]
    if list(given) != expected:
        raise OpTypeError(f"{op}: its {region} takes {expected}, it is given {list(given)}")


def _output_types(graph: Graph) -> tuple[TensorType, ...]:
    return tuple(v.tensor for v in graph.outputs)


def _zeros(node: Node, type: TensorType) -> Any:
    return node.full(type.shape, 0, type.dtype)


def _or_zeros(g: Node | None, y: Node) -> Any:
    return g if g is not None else _zeros(y, y.type)


def inline(builder: Builder, graph: Graph, args: Sequence[Value]) -> tuple[Value, ...]:
    """The region's computation on `args`, emitted into builder."""
    mapping = dict(zip(graph.inputs, args, strict=True))
    return replay(graph, builder, mapping, keep_inputs=False).outputs


@dataclass(frozen=True)
class If(Op):
    """then(captured...) if the scalar condition holds, otherwise(captured...): only one of them runs."""

    cheap = False

    then: Graph
    otherwise: Graph

    def infer(self, condition: TensorType, *captured: TensorType) -> TupleType:
        if condition != boolean[()]:
            raise OpTypeError(f"if: the condition is {condition!r}, not a bool scalar")
        _check_region("if", "first branch", self.then, captured)
        _check_region("if", "second branch", self.otherwise, captured)
        first, second = _output_types(self.then), _output_types(self.otherwise)
        if first != second:
            raise OpTypeError(f"if: the branches give different types: {list(first)} and {list(second)}")
        return TupleType(first)

    def evaluate(self, condition: np.ndarray, *captured: np.ndarray) -> tuple[np.ndarray, ...]:
        return run_region(self.then if condition else self.otherwise, captured)

    @property
    def regions(self) -> tuple[Graph, ...]:
        return self.then, self.otherwise

    def vjp_with(self, differentiate: Differentiate, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        condition, *captured = xs
        wrt = [n for n, x in enumerate(captured) if x.dtype.is_float]
        given = [_or_zeros(*pair) for pair in zip(g, y, strict=True) if pair[1].dtype.is_float]
        op = If(differentiate(self.then, wrt), differentiate(self.otherwise, wrt))
        found = dict(zip(wrt, condition.apply(op, *captured, *given), strict=True))
        return None, *(found.get(n) for n in range(len(captured)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yes, no = _region(lambda x, y: (x * y, x.sin()), 2), _region(lambda x, y: (x + y, y.exp()), 2)
        for condition in (True, False):
            yield Sample(cls(yes, no), (np.array(condition), f64[3, 2], f64[3, 2]))


@dataclass(frozen=True)
class While(Op):
    """Repeat body on the carried values while condition holds; at most `limit` times, when one is given:
    wanting more is a run-time failure. Arguments: carried values, then captured ones."""

    cheap = False

    condition: Graph
    body: Graph
    carried: int
    limit: Dim | None = None

    def infer(self, *types: TensorType) -> TupleType:
        _check_region("while", "condition", self.condition, types)
        _check_region("while", "body", self.body, types)
        if _output_types(self.condition) != (boolean[()],):
            raise OpTypeError(f"while: the condition gives {list(_output_types(self.condition))}, not one bool scalar")
        if _output_types(self.body) != types[: self.carried]:
            raise OpTypeError(
                f"while: the body turns {list(types[: self.carried])} into {list(_output_types(self.body))}; "
                "carried values must keep their types"
            )
        return TupleType(types[: self.carried])

    def evaluate(self, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        state, captured = args[: self.carried], args[self.carried :]
        count = 0
        while run_region(self.condition, (*state, *captured))[0]:
            if self.limit is not None and count >= self.limit:  # type: ignore[operator]
                raise RuntimeError(f"while: more than {self.limit} iterations")
            state = run_region(self.body, (*state, *captured))
            count += 1
        return tuple(state)

    @property
    def regions(self) -> tuple[Graph, ...]:
        return self.condition, self.body

    def vjp_with(self, differentiate: Differentiate, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        if self.limit is None:
            raise NotImplementedError("while: without a limit its gradient would need unbounded memory")
        scan = Scan(self._step(), self.carried, 0, self.limit)
        results = xs[0].apply(scan, *xs[1:])
        return scan.vjp_with(differentiate, g, results, *xs)

    def _step(self) -> Graph:
        """One iteration that changes nothing once the condition fails."""
        builder = Builder()
        args = [builder.input(input_of(v).name, v.tensor) for v in self.body.inputs]
        (go,) = inline(builder, self.condition, args)
        new = inline(builder, self.body, args)
        outputs = tuple(
            Node(builder, go).where(Node(builder, after), Node(builder, before)).value
            for after, before in zip(new, args, strict=False)
        )
        return Graph("while_step", builder.inputs, outputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        body = _region(lambda n, x, a: (n + 1.0, x * a), 3, ((), (3,), (3,)))
        condition = _region(lambda n, x, a: (n < 4.0,), 3, ((), (3,), (3,)))
        yield Sample(cls(condition, body, 2, 6), (np.array(0.0), f64[3], f64[3]), wrt=(1, 2))


@dataclass(frozen=True)
class Scan(Op):
    """carry, ys = body(carry, xs[t], captured) for t = 0 .. length - 1 (backwards when `reverse`).

    Arguments: `carried` initial values, `scanned` tensors whose first axis is the time, captured values.
    Results: the final carried values, then the body's further outputs stacked along a new first axis.
    """

    cheap = False

    body: Graph
    carried: int
    scanned: int
    length: Dim
    reverse: bool = False

    def infer(self, *types: TensorType) -> TupleType:
        carried, rest = types[: self.carried], types[self.carried :]
        scanned, captured = rest[: self.scanned], rest[self.scanned :]
        for t in scanned:
            if t.rank == 0 or t.shape[0] != self.length:
                raise OpTypeError(f"scan: a scanned tensor has type {t!r}; its first axis must be {self.length}")
        slices = tuple(t.with_shape(t.shape[1:]) for t in scanned)
        _check_region("scan", "body", self.body, (*carried, *slices, *captured))
        outputs = _output_types(self.body)
        if outputs[: self.carried] != carried:
            raise OpTypeError(
                f"scan: the body turns {list(carried)} into {list(outputs[: self.carried])}; carried values must "
                "keep their types"
            )
        stacked = (t.with_shape((self.length, *t.shape)) for t in outputs[self.carried :])
        return TupleType((*carried, *stacked))

    def evaluate(self, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        state, rest = tuple(args[: self.carried]), args[self.carried :]
        scanned, captured = rest[: self.scanned], rest[self.scanned :]
        extra = self.body.outputs[self.carried :]
        stacked = [np.zeros((self.length, *v.shape), v.tensor.dtype.numpy) for v in extra]  # type: ignore[misc]
        steps = range(self.length)  # type: ignore[arg-type]
        for t in reversed(steps) if self.reverse else steps:
            outputs = run_region(self.body, (*state, *(x[t] for x in scanned), *captured))
            state = outputs[: self.carried]
            for array, output in zip(stacked, outputs[self.carried :], strict=True):
                array[t] = output
        return (*state, *stacked)

    @property
    def regions(self) -> tuple[Graph, ...]:
        return (self.body,)

    def vjp_with(self, differentiate: Differentiate, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """Backpropagation through time: the scan runs again, also stacking the carried values it starts each
        step with (a pass merges the two scans); then a scan the other way carries the cotangents of the
        carried and of the captured values."""
        c, s = self.carried, self.scanned
        remembering = replace(self, body=self.body.with_outputs((*self.body.outputs, *self.body.inputs[:c])))
        results = _apply_all(remembering, xs)
        memories = results[len(self.body.outputs) :]
        step = differentiate(self.body, [n for n, v in enumerate(self.body.inputs) if v.tensor.dtype.is_float])
        backward = _Backward(self, step)
        final = [_or_zeros(g[n], y[n]) for n in range(c) if y[n].dtype.is_float]
        stacked = [_or_zeros(g[n], y[n]) for n in range(c, len(y)) if y[n].dtype.is_float]
        captured = xs[c + s :]
        sums = [_zeros(x, x.type) for x in captured if x.dtype.is_float]
        op = Scan(backward.graph(), len(final) + len(sums), c + s + len(stacked), self.length, not self.reverse)
        found = list(_apply_all(op, [*final, *sums, *memories, *xs[c : c + s], *stacked, *captured]))
        starts, rest = found[: len(final)], found[len(final) :]
        totals, slices = rest[: len(sums)], rest[len(sums) :]
        answer: list[Node | None] = []
        for group, gradients in ((xs[:c], starts), (xs[c : c + s], slices), (captured, totals)):
            given = iter(gradients)
            answer += [next(given) if x.dtype.is_float else None for x in group]
        return tuple(answer)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        body = _region(lambda h, x, w: ((h * w + x).tanh(), h * x), 3, ((3,), (3,), (3,)))
        for reverse in (False, True):
            yield Sample(cls(body, 1, 1, 4, reverse), (f64[3], f64[4, 3], f64[3]))
        yield Sample(cls(body, 1, 1, 0), (f64[3], f64[0, 3], f64[3]))


def _apply_all(op: Op, nodes: Sequence[Node]) -> tuple[Node, ...]:
    return nodes[0].apply(op, *nodes[1:])


@dataclass(frozen=True)
class _Backward:
    """The body of the backward scan.

    Inputs: cotangents of the carried values and running sums for the captured (carried); the remembered
    carried values, the slices and the cotangents of stacked outputs (scanned); the captured values.
    Outputs: the new cotangents and sums (carried); the cotangents of the slices (stacked).
    """

    scan: Scan
    step: Graph  # the body's vjp: body inputs, cotangents of float outputs -> cotangents of float inputs

    def graph(self) -> Graph:
        builder = Builder()
        body, c, s = self.scan.body, self.scan.carried, self.scan.scanned
        carried, slices, captured = body.inputs[:c], body.inputs[c : c + s], body.inputs[c + s :]

        def declare(prefix: str, values: Sequence[Value], only_float: bool) -> list[Value]:
            return [
                builder.input(f"{prefix}{n}", v.tensor)
                for n, v in enumerate(values)
                if v.tensor.dtype.is_float or not only_float
            ]

        final = declare("carry_cotangent", carried, True)
        sums = declare("captured_sum", captured, True)
        memories = declare("carry", carried, False)
        parts = declare("slice", slices, False)
        stacked = declare("stacked_cotangent", body.outputs[c:], True)
        outer = declare("captured", captured, False)
        found = list(inline(builder, self.step, [*memories, *parts, *outer, *final, *stacked]))
        n_carried, n_slices = len(final), sum(v.tensor.dtype.is_float for v in slices)
        new_carried, new_slices = found[:n_carried], found[n_carried : n_carried + n_slices]
        new_captured = found[n_carried + n_slices :]
        added = [(Node(builder, a) + Node(builder, b)).value for a, b in zip(sums, new_captured, strict=True)]
        return Graph(f"{body.name}.backward", builder.inputs, (*new_carried, *added, *new_slices))


def _region(function: Any, count: int, shapes: Sequence[tuple[int, ...]] | None = None) -> Graph:
    """A small region of f64 inputs for samples."""
    builder = Builder()
    shapes = shapes or ((3, 2),) * count
    args = [Node(builder, builder.input(f"x{n}", f64[shape])) for n, shape in enumerate(shapes)]
    return Graph("region", builder.inputs, tuple(y.value for y in function(*args)))
