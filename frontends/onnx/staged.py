"""Running models of which some nodes belong to the host.

A stage is the compiled part of everything that can be computed from what is known so far, the host nodes that can
run after it, and what is left. What is left becomes the next stage when the values it waits for exist: it is traced
for their types (and, where a node needs them, their values) and kept for the next call with the same ones. A model
without host nodes is one stage, one program.

Sizes that differ from call to call become symbolic dims of the following stage, so that it is compiled once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto

from ingot.compiler.ir.graph import Graph, Input
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import TensorType, boolean
from ingot.compiler.options import Options
from ingot.compiler.pipeline import Compiled, compile_graph
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import element_of, is_plain
from ingot.frontends.onnx.host import evaluator
from ingot.frontends.onnx.importer import Deferred, Importer, Item, free_names, graph_free_names
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem, ProblemError
from ingot.frontends.onnx.registry import domain_name
from ingot.frontends.onnx.scope import Scope, Weight
from ingot.frontends.onnx.source import Model
from ingot.frontends.onnx.stages import (
    Collected,
    Environment,
    Given,
    Key,
    Stage,
    bind_dims,
    bound,
    describe,
    unshown_dims,
    within_bounds,
)
from ingot.frontends.onnx.values import Opaque, Pending
from ingot.runtime.executable import Executable

MAXIMUM_STAGES = 64  # kept per place; the oldest is forgotten


class Staged:
    """A graph that runs in stages. `weights` are initializers that stages read when they need them."""

    def __init__(
        self,
        model: Model,
        items: Sequence[Item],
        outputs: Sequence[str],
        weights: Mapping[str, Weight],
        options: Options,
        name: str = "onnx",
    ) -> None:
        self.model = model
        self.items = list(items)
        self.outputs = tuple(outputs)
        self.weights = weights
        self.options = options
        self.name = name
        self.first: dict[Key, Stage] = {}
        self.bodies: dict[int, Staged] = {}

    # --- building ----------------------------------------------------------------------------------

    def build(self, items: Sequence[Item], given: Mapping[str, Given], name: str = "") -> Stage:
        """The stage of these nodes for these inputs; OnnxError lists what is wrong with the model."""
        trace = Trace()
        scope = Scope(trace)
        scope.weights.update({n: w for n, w in self.weights.items() if n not in given})
        arguments: list[str] = []
        for label, what in given.items():
            scope.set(label, bound(trace, label, what, arguments))
        importer = Importer(self.model)
        importer.run(items, scope)
        if importer.problems:
            raise OnnxError(importer.problems, self.model.name)
        return self._stage(trace, scope, importer.deferred, arguments, name or self.name)

    def build_first(self, given: Mapping[str, Given]) -> Stage:
        """The first stage for these inputs, kept for calls with the same ones."""
        key = tuple((n, g.key) for n, g in given.items())
        stage = self.first.get(key)
        if stage is None:
            stage = _keep(self.first, key, self.build(self.items, given))
        return stage

    def _stage(
        self, trace: Trace, scope: Scope, deferred: list[Deferred], arguments: list[str], name: str
    ) -> Stage:
        call = Call(Importer(self.model), scope, NodeProto(), {}, 0, [])
        collected = Collected(call)
        results: list[tuple[str, Any]] = []
        known: Environment = {}
        for label in self._wanted(deferred):
            if not scope.has(label):
                continue
            value = scope.find(label)
            if isinstance(value, np.ndarray) and (deferred or not is_plain(value)):
                known[label] = value
            elif value is not None and not isinstance(value, Pending | Opaque):
                results.append((label, collected.add(label, value)))
        carrier = unshown_dims(trace, collected.outputs)
        if carrier:
            trace.input("dims", TensorType(boolean, (0, *carrier)))
        stage = Stage(arguments, carrier, results, known, collected.types, deferred)
        if collected.outputs:
            values = tuple(t.value for t in collected.outputs)
            stage.graph = Graph(name, trace.inputs, values, tuple(collected.names), trace.constants)
            stage.compiled = self._compiled(stage.graph)
            stage.program = Executable(stage.compiled.program, self.options.threads)
        return stage

    def _compiled(self, graph: Graph) -> Compiled:
        try:
            return compile_graph(graph, self.options)
        except InterpreterError as error:  # what depends on weights alone is computed now, and can fail now
            raise OnnxError([Problem(Kind.BAD_VALUE, str(error))], self.model.name) from None

    def _wanted(self, deferred: Iterable[Deferred]) -> list[str]:
        """What later stages, host nodes and the caller read."""
        names = list(self.outputs)
        for item in deferred:
            names += [*item.item.node.input, *sorted(free_names(item.item.node))]
        return [n for n in dict.fromkeys(names) if n]

    # --- running -----------------------------------------------------------------------------------

    def __call__(self, environment: Environment, types: Mapping[str, Given] | None = None) -> list[Any]:
        """The outputs for these inputs. `types` are the declared types of inputs, where they have some."""
        environment = dict(environment)
        stage, given = self._first(environment, types or {})
        dims: dict[Symbol, int] = {}
        while True:
            bind_dims(given, environment, dims)
            stage.run(environment, dims)
            rest, needs = self._run_host(stage, environment)
            if not rest:
                return [environment[name] for name in self.outputs]
            stage, given = self._next(stage, rest, needs, environment)

    def _first(self, environment: Environment, types: Mapping[str, Given]) -> tuple[Stage, dict[str, Given]]:
        """The first stage for the declared types; for these very shapes where the declared ones say too little."""
        fixed = {n: describe(v, False) for n, v in environment.items()}
        declared = {n: types.get(n) or fixed[n] for n in environment}
        if any(g.is_symbolic for g in declared.values()) and within_bounds(declared, environment):
            try:
                return self.build_first(declared), declared
            except OnnxError as error:
                if not error.is_about_shapes:
                    raise
        chosen = fixed if any(g.is_symbolic for g in declared.values()) else declared
        return self.build_first(chosen), chosen

    def _run_host(self, stage: Stage, environment: Environment) -> tuple[list[Deferred], set[str]]:
        """Run the host nodes whose inputs exist; what is left, and the names whose values it needs."""
        rest: list[Deferred] = []
        needs: set[str] = set()
        for waiting in stage.deferred:
            names = [n for n in (*waiting.item.node.input, *free_names(waiting.item.node)) if n]
            ready = all(n in environment for n in names if n not in self.weights)
            if ready and waiting.on_host:
                self._evaluate(waiting, environment)
            else:
                rest.append(waiting)
                if ready:
                    needs.update(waiting.needs)
        return rest, needs | stage.by_value

    def _evaluate(self, waiting: Deferred, environment: Environment) -> None:
        node = waiting.item.node
        function = evaluator(node.domain, node.op_type)
        if function is None:
            problem = Problem(Kind.UNSUPPORTED, waiting.reason, waiting.item.label)
            raise OnnxError([problem], self.model.name)
        call = HostCall(self, waiting.item, environment)
        given = [call.find(name) if name else None for name in node.input]
        try:
            results = function(call, *given)
        except ProblemError as error:
            raise OnnxError([error.at(waiting.item.label)], self.model.name) from None
        # a tuple or list holds the outputs: a node whose one output is a sequence gives a list of that list
        results = results if isinstance(results, tuple | list) else (results,)
        for name, result in zip(node.output, results, strict=False):
            if name:
                environment[name] = result

    def _next(
        self, stage: Stage, rest: list[Deferred], needs: set[str], environment: Environment
    ) -> tuple[Stage, dict[str, Given]]:
        used = dict.fromkeys(n for d in rest for n in (*d.item.node.input, *sorted(free_names(d.item.node))))
        used.update(dict.fromkeys(self.outputs))
        names = [n for n in used if n and n in environment]
        stage.note_shapes({n: environment[n] for n in names if isinstance(environment[n], np.ndarray)})
        items = [d.item for d in rest]
        flexible = {n: self._given(stage, n, n in needs, environment[n], rest) for n in names}
        fixed = {n: describe(environment[n], n in needs) for n in names}
        for given in (flexible, fixed):
            key = tuple((n, g.key) for n, g in given.items())
            found = stage.following.get(key)
            if found is None:
                try:
                    found = self.build(items, given, f"{self.name}_{len(stage.following)}")
                except OnnxError:
                    if given is fixed:
                        raise
                    continue  # symbolic dims say too little here: compile for these very sizes
                found.by_value = needs
                if not self._progress(rest, found, needs):
                    stuck = rest[0]
                    raise OnnxError([Problem(Kind.UNSUPPORTED, stuck.reason, stuck.item.label)], self.model.name)
                _keep(stage.following, key, found)
            return found, given
        raise AssertionError("one of the two has returned or raised")

    @staticmethod
    def _progress(rest: list[Deferred], made: Stage, needs: set[str]) -> bool:
        """Whether the new stage gets beyond where the last one stopped."""
        same = [d.item for d in made.deferred] == [d.item for d in rest]
        return not same or any(d.on_host for d in made.deferred) or not all(
            set(d.needs) <= needs for d in made.deferred if d.needs
        )

    def _given(
        self, stage: Stage, name: str, by_value: bool, value: Any, rest: list[Deferred]
    ) -> Given:
        if by_value or not isinstance(value, np.ndarray):
            return describe(value, by_value)
        if name in stage.types:
            kind = element_of(value)
            return Given(stage.types[name], kind)
        symbols = {axis: Symbol(f"{name}.{axis}", 0) for axis in stage.flexible_axes(name, value.ndim)}
        return describe(value, False, symbols)

    # --- looking -----------------------------------------------------------------------------------

    def stages(self) -> list[Stage]:
        """Every stage built so far, outermost first."""
        found: list[Stage] = []
        work = list(self.first.values())
        while work:
            stage = work.pop(0)
            found.append(stage)
            work += stage.following.values()
        for body in self.bodies.values():
            found += body.stages()
        return found

    def body(self, graph: GraphProto, opsets: Mapping[str, int]) -> tuple[Staged, tuple[str, ...]]:
        """A subgraph as a graph of its own, and the names it takes from outside."""
        made = self.bodies.get(id(graph))
        if made is None:
            importer = Importer(self.model)
            scope = Scope(Trace())
            importer.bind_initializers(graph, scope)
            weights: dict[str, Weight] = dict(self.weights)
            weights.update({n: _constant(v) for n, v in scope.values.items()})
            made = Staged(
                self.model, importer.items(graph, opsets), [o.name for o in graph.output], weights, self.options, "body"
            )
            self.bodies[id(graph)] = made
        return made, tuple(sorted(graph_free_names(graph)))


def _keep(stages: dict[Key, Stage], key: Key, stage: Stage) -> Stage:
    if len(stages) >= MAXIMUM_STAGES:
        stages.pop(next(iter(stages)))
    stages[key] = stage
    return stage


def _constant(array: Any) -> Weight:
    return lambda trace: array


class HostCall:
    """A node of the host as its evaluator sees it."""

    def __init__(self, staged: Staged, item: Item, environment: Environment) -> None:
        self.staged = staged
        self.item = item
        self.environment = environment
        scope = Scope(Trace())
        self.attributes = Call(Importer(staged.model), scope, item.node, dict(item.opsets), 0, [])
        self.version = item.opsets.get(domain_name(item.node.domain), 1)

    @property
    def output_count(self) -> int:
        return len(self.item.node.output)

    def wants(self, output: int) -> bool:
        return self.attributes.wants(output)

    def get(self, attribute: str, *default: Any) -> Any:
        return self.attributes.get(attribute, *default)

    def has(self, attribute: str) -> bool:
        return self.attributes.has(attribute)

    def element_code(self, array: np.ndarray) -> int:
        return element_of(array).code

    def find(self, name: str) -> Any:
        """The value of a name, also of an initializer."""
        if name in self.environment:
            return self.environment[name]
        trace = Trace()
        value = self.staged.weights[name](trace)
        if isinstance(value, Tensor):
            assert isinstance(value.value.op, Input)
            return trace.constants[value.value.op.name]
        return value

    def run(self, graph: GraphProto, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a subgraph of this node."""
        staged, outside = self.staged.body(graph, self.item.opsets)
        environment = {n: self.find(n) for n in outside if n in self.environment}
        environment.update({i.name: v for i, v in zip(graph.input, inputs, strict=False)})
        return staged(environment)
