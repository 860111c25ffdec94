"""Make scans cheaper: merge a scan with the one that remembers more, and take sums out of loops.

Differentiation leaves the forward scan beside a copy of it that also stacks the carried values; the copy
serves both. Its backward scan carries the gradients of captured weights, adding a product every step:

    carry w = w + contract(a_t, b_t)   ->   after the loop: w + contract over time of (stacked a, stacked b)

which is one large product instead of many small ones, each of which would read and write all of w.
Products that the backward scan would compute again are kept (scan_saving).
Sums over axes (gradients of biases) are taken out the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value, declare_inputs, users_of
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.control import Scan
from ingot.compiler.ops.elementwise import Add
from ingot.compiler.ops.reduction import Sum
from ingot.compiler.ops.structure import Get
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass
from ingot.compiler.passes.scan_saving import save_products


@dataclass(frozen=True)
class Scans(Pass):
    name: ClassVar[str] = "scans"
    why_here: ClassVar[str] = "first, while the bodies of related scans are still the same values"

    def __call__(self, graph: Graph) -> Graph:
        if not any(isinstance(v.op, Scan) for v in graph.body):
            return in_regions(graph, self)
        return in_regions(_hoist_sums(save_products(_merge(graph))), self)


def _merge(graph: Graph) -> Graph:
    """scan(f) beside scan(f with more outputs) -> the latter for both"""
    scans = [v for v in graph.body if isinstance(v.op, Scan)]
    best = {a: max((b for b in scans if _extends(b, a)), key=lambda v: len(v.op.body.outputs)) for a in scans}
    builder = Builder()
    made = declare_inputs(graph, builder)
    for value in graph.body:
        op = best[value].op if value in best else value.op
        made[value] = builder.emit(op, *(made[a] for a in value.args), source=value.source, name=value.name)
    return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))


def _extends(large: Value, small: Value) -> bool:
    a, b = small.op, large.op
    assert isinstance(a, Scan)
    assert isinstance(b, Scan)
    same_loop = (a.carried, a.scanned, a.length, a.reverse) == (b.carried, b.scanned, b.length, b.reverse)
    prefix = b.body.outputs[: len(a.body.outputs)] == a.body.outputs
    return same_loop and small.args == large.args and a.body.inputs == b.body.inputs and prefix


def _hoist_sums(graph: Graph) -> Graph:
    builder = Builder()
    made = declare_inputs(graph, builder)
    parts: dict[Value, list[Value]] = {}
    for value in graph.body:
        builder.source = value.source
        if isinstance(value.op, Get) and value.args[0] in parts:
            made[value] = parts[value.args[0]][value.op.index]
            continue
        args = tuple(made[a] for a in value.args)
        if isinstance(value.op, Scan):
            hoisted = _Hoist(builder, value.op, args).run()
            if hoisted is not None:
                parts[value] = hoisted
                continue
        made[value] = builder.emit(value.op, *args, source=value.source, name=value.name)
    builder.source = None
    return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))


class _Hoist:
    """One scan whose sums are taken out, when it has any."""

    def __init__(self, builder: Builder, scan: Scan, args: tuple[Value, ...]) -> None:
        self.builder = builder
        self.scan = scan
        self.args = args
        self.body = scan.body
        self.extra: dict[Value, int] = {}  # values of the body that are stacked too -> place among stacked results

    def run(self) -> list[Value] | None:
        c = self.scan.carried
        terms = {n: term for n in range(c) if (term := self._term(n)) is not None}
        stacked = list(self.body.outputs[c:])
        for number, value in enumerate(stacked):
            self.extra.setdefault(value, number)
        sums = {n: term for n, term in terms.items() if isinstance(term.op, Contract | Sum)}
        for term in sums.values():
            for value in self._summands(term):
                if self._outside(value) is None and value not in self.extra:
                    self.extra[value] = len(stacked)
                    stacked.append(value)
        # anything that is stacked anyway is summed outside as well: stacking it for that alone might not pay
        sums |= {n: term for n, term in terms.items() if term in self.extra}
        if not sums:
            return None
        kept = [n for n in range(c) if n not in sums]
        results = self._run_scan(kept, stacked)
        answer: list[Value] = []
        for n in range(c):
            if n in sums:
                total = self._total(sums[n], results[len(kept) :])
                answer.append((Node(self.builder, self.args[n]) + Node(self.builder, total)).value)
            else:
                answer.append(results[kept.index(n)])
        return answer + results[len(kept) : len(kept) + len(self.body.outputs) - c]

    def _term(self, number: int) -> Value | None:
        """What is added to a carried value each step, when that is all that is done with it."""
        carried, output = self.body.inputs[number], self.body.outputs[number]
        users = users_of(self.body).get(carried, [])
        if not isinstance(output.op, Add) or users != [output] or self.body.outputs.count(carried):
            return None
        left, right = output.args
        term = right if left is carried else left
        if term is carried or self.body.outputs.count(output) != 1 or users_of(self.body).get(output):
            return None
        return term

    def _summands(self, term: Value) -> tuple[Value, ...]:
        """What is stacked to compute the sum of a term over time."""
        return term.args if isinstance(term.op, Contract | Sum) and term not in self.extra else (term,)

    def _outside(self, value: Value) -> Value | None:
        """A value of the body as it is outside: a scanned tensor whole."""
        if value in self.body.inputs:
            place = self.body.inputs.index(value)
            if self.scan.carried <= place < self.scan.carried + self.scan.scanned:
                return self.args[place]
        return None

    def _run_scan(self, kept: list[int], stacked: list[Value]) -> list[Value]:
        c = self.scan.carried
        inputs = (*(self.body.inputs[n] for n in kept), *self.body.inputs[c:])
        outputs = (*(self.body.outputs[n] for n in kept), *stacked)
        body = Graph(self.body.name, inputs, outputs, constants=self.body.constants)
        op = replace(self.scan, body=body, carried=len(kept))
        args = (*(self.args[n] for n in kept), *self.args[c:])
        value = self.builder.emit(op, *args)
        return [self.builder.emit(Get(n), value) for n in range(len(outputs))]

    def _total(self, term: Value, stacked: list[Value]) -> Value:
        parts = []
        for value in self._summands(term):
            outside = self._outside(value)
            parts.append(outside if outside is not None else stacked[self.extra[value]])
        op = term.op
        if isinstance(op, Sum) and term not in self.extra:
            return self.builder.emit(Sum((0, *(a + 1 for a in op.axes))), parts[0])
        if not isinstance(op, Contract) or term in self.extra:
            return self.builder.emit(Sum((0,)), parts[0])
        time = next(letter for letter in "tTuUvVwW" if letter not in op.left + op.right + op.output)
        summed = replace(op, left=time + op.left, right=time + op.right)
        return self.builder.emit(summed, *parts)
