"""Running models of which some nodes belong to the host.

A stage is the compiled part of everything that can be computed from what is known so far, the host nodes that can
run after it, and what is left. What is left becomes the next stage when the values it waits for exist: it is traced
for their types (and, where a node needs them, their values) and kept for the next call with the same ones. A model
without host nodes is one stage, one program.

Sizes that differ from call to call become symbolic dims of the following stage, so that it is compiled once; so do
those of the states of a loop from round to round. Nodes whose inputs decide the shape of their result are compiled for
the values at hand, and left to the host when these turn out to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from onnx import GraphProto, NodeProto

from ingot.compiler.errors import Code, IngotError
from ingot.compiler.garbage import no_collection
from ingot.compiler.ir.graph import Graph, Input, Source
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.symbolic import Symbol, TooManyTerms
from ingot.compiler.ir.types import TensorType, boolean
from ingot.compiler.ops.checks import Agreed
from ingot.compiler.options import Options
from ingot.compiler.pipeline import check_graph, compile_graph
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.assumptions import MOST_ROUNDS, Assumptions
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import element_of, is_plain
from ingot.frontends.onnx.host import evaluator
from ingot.frontends.onnx.importer import MALFORMED, Deferred, Importer, Item, graph_free_names
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem, ProblemError
from ingot.frontends.onnx.registry import domain_name
from ingot.frontends.onnx.scope import Scope, Weight
from ingot.frontends.onnx.signature import check_elements, description_of
from ingot.frontends.onnx.source import Model
from ingot.frontends.onnx.stages import (
    Collected,
    Continuation,
    Environment,
    Given,
    Key,
    Routes,
    Shapes,
    Stage,
    Way,
    bind_dims,
    bound,
    describe,
    is_described,
    seen,
    unshown_dims,
)
from ingot.frontends.onnx.values import Opaque, Pending
from ingot.runtime.errors import ArgumentError, ExecutionError, IngotRuntimeError
from ingot.runtime.executable import Executable

Result = TypeVar("Result")

MOST_LISTED = 200  # problems in one error; a broken model may have one per node
MAXIMUM_STAGES = 64  # kept per place; the oldest is forgotten
MOST_NODES = 1 << 12  # of the host that are kept as they were read: functions that are expanded again have new ones


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
        self.shapes = Shapes()  # of inputs
        self.routes = Routes()  # of calls for the declared types
        self.first: dict[Key, Stage] = {}
        self.refused: set[Key] = set()
        self.bodies: dict[int, tuple[GraphProto, Staged]] = {}  # by id; holding the graph keeps its id its own
        self.nodes: dict[int, tuple[Item, Call]] = {}  # host nodes that have run, by the id of the item

    # --- building ----------------------------------------------------------------------------------

    @no_collection()
    def build(
        self, items: Sequence[Item], given: Mapping[str, Given], name: str = "", sizes: Mapping[Symbol, int] | None = None
    ) -> Stage:
        """The stage of these nodes for these inputs; OnnxError lists what is wrong with the model. `sizes` are those of
        the call at hand, by which a branch may be chosen."""
        stage = self._stage(self._imported(items, given, sizes), name or self.name)
        if stage.graph is not None:
            stage.compiled = self._about(stage.graph, compile_graph)
            stage.program = Executable(stage.compiled.program, self.options.threads)
        return stage

    @no_collection()
    def examine(self, given: Mapping[str, Given], unknown: Iterable[str] = ()) -> None:
        """Raises what building the first stage would raise, without making code. What is known of some inputs only
        when the model is called makes their readers wait; the rest is examined."""
        imported = self._imported(self.items, given, None, unknown)
        graph = self._stage(imported, self.name).graph
        if graph is not None:
            self._about(graph, check_graph)

    def _imported(
        self,
        items: Sequence[Item],
        given: Mapping[str, Given],
        sizes: Mapping[Symbol, int] | None,
        unknown: Iterable[str] = (),
    ) -> _Imported:
        """The nodes imported for these inputs, as often as it takes to find what has to be assumed about their dims."""
        assumptions, may_choose = Assumptions(), True
        for _ in range(MOST_ROUNDS):
            trace = Trace()
            scope = Scope(trace)
            scope.weights.update({n: w for n, w in self.weights.items() if n not in given})
            arguments: list[str] = []
            told = {label: _under(assumptions, what) for label, what in given.items()}
            for label, what in told.items():
                scope.set(label, bound(trace, label, what, arguments))
            for label in unknown:
                is_text = label in self.model.string_inputs
                scope.set(label, Opaque() if is_text else Pending("its type is not declared"))
            importer = Importer(self.model, assumptions, sizes=sizes, may_choose=may_choose)
            importer.run(items, scope)
            assumptions = importer.assumptions
            if not importer.problems:
                told = {label: _under(assumptions, what) for label, what in given.items()}
                return _Imported(importer, scope, arguments, told)
            assumed = _assumed(assumptions, importer.problems)
            if assumed is None:
                if not importer.chosen:
                    break
                assumptions, may_choose = Assumptions(), False  # the branch that was chosen does not fit the rest
            else:
                assumptions = assumed
        raise OnnxError(importer.problems[:MOST_LISTED], self.model.name)

    def build_first(self, given: Mapping[str, Given], sizes: Mapping[Symbol, int] | None = None) -> Stage:
        """The first stage for these inputs, kept for calls with the same ones."""
        key = tuple((n, g.key) for n, g in given.items())
        stage = self.first.get(key)
        if stage is None:
            stage = _keep(self.first, key, self.build(self.items, given, sizes=sizes))
        return stage

    def _built(self, given: Mapping[str, Given], sizes: Mapping[Symbol, int]) -> Stage | None:
        """The first stage; None, from the second time on at once, when the dims of these inputs say too little."""
        key = tuple((n, g.key) for n, g in given.items())
        if key in self.refused:
            return None
        try:
            return self.build_first(given, sizes)
        except OnnxError as error:
            if not error.is_about_shapes:
                raise
            self.refused.add(key)
            return None

    def _stage(self, imported: _Imported, name: str) -> Stage:
        """The stage of imported nodes, of which no code is made yet."""
        importer, scope, given = imported.importer, imported.scope, imported.given
        trace = scope.trace
        deferred = importer.deferred
        call = Call(Importer(self.model), scope, NodeProto(), {}, 0, [])
        collected = Collected(call)
        results: list[tuple[str, Any]] = []
        known: Environment = {}
        for label in self._wanted(deferred):
            if not scope.has(label):
                continue
            value = scope.find(label)
            if value is None and label in self.outputs:
                raise OnnxError([Problem(Kind.UNSUPPORTED, f"no node makes a value for the output {label!r}")], self.model.name)
            told = given.get(label)
            if deferred and told is not None and told.type is not None and told.is_plain:  # the host has it
                collected.types[label] = told.type
            elif isinstance(value, np.ndarray) and (deferred or not is_plain(value)):
                known[label] = value
            elif value is not None and not isinstance(value, Pending | Opaque):
                results.append((label, collected.add(label, value)))
        carrier = unshown_dims(trace, given.values())
        if carrier:
            trace.input("dims", TensorType(boolean, (0, *carrier)))
        stage = Stage(imported.arguments, carrier, results, known, collected.types, deferred, collected.dims)
        stage.assumes = bool(importer.assumptions)
        if collected.outputs:
            for sizes in dict.fromkeys(importer.chosen):
                collected.outputs[0] = collected.outputs[0].apply(Agreed(*sizes))
            values = tuple(t.value for t in collected.outputs)
            stage.graph = Graph(name, trace.inputs, values, tuple(collected.names), trace.constants)
        return stage

    def _about(self, graph: Graph, function: Callable[[Graph, Options], Result]) -> Result:
        """What the compiler says about a graph; what it refuses is a problem of the model."""
        try:
            return function(graph, self.options)
        except InterpreterError as error:  # what depends on weights alone is computed now, and can fail now
            raise OnnxError([Problem(Kind.BAD_VALUE, str(error))], self.model.name) from None
        except IngotError as error:
            if error.code is not Code.TOO_LARGE:
                raise
            node = error.source.node if isinstance(error.source, Source) else ""
            raise OnnxError([Problem(Kind.TOO_LARGE, error.message, node)], self.model.name) from None
        except TooManyTerms as error:  # sizes of a call are numbers
            raise OnnxError([Problem(Kind.UNSUPPORTED, str(error))], self.model.name) from None
        except MALFORMED as error:  # what the compiler did not foresee: no model should get here
            raise OnnxError([Problem(Kind.BAD_NODE, f"{type(error).__name__}: {error}")], self.model.name) from error

    def _wanted(self, deferred: Iterable[Deferred]) -> list[str]:
        """What later stages, host nodes and the caller read. Weights are there for all of them."""
        names = list(self.outputs)
        for item in deferred:
            names += [name for name in item.item.reads if name not in self.weights]
        return list(dict.fromkeys(names))

    # --- running -----------------------------------------------------------------------------------

    def __call__(self, environment: Environment, types: Mapping[str, Given] | None = None) -> list[Any]:
        """The outputs for these inputs. `types` are the declared types of inputs, where they have some."""
        try:
            return self._run(dict(environment), types or {}, flexible=True)
        except _Broken:
            return self._run(dict(environment), {}, flexible=False)

    def _run(self, environment: Environment, types: Mapping[str, Given], flexible: bool) -> list[Any]:
        stage, given = self._first(environment, types, flexible)
        told = [given]  # the stages so far
        while True:
            try:
                stage.run(environment, _dims_of(told, environment) if stage.carrier else {})
            except (ArgumentError, ExecutionError) as error:
                if not (flexible and stage.assumes):
                    raise
                raise _Broken from error
            rest, needs = self._run_host(stage, environment)
            if not rest:
                return [environment[name] for name in self.outputs]
            stage, given = self._next(stage, rest, needs, environment, flexible, told)
            told.append(given)

    def _first(self, environment: Environment, types: Mapping[str, Given], may_vary: bool) -> Way:
        """The first stage, as it was found for the same shapes before."""
        if not may_vary or environment.keys() != types.keys():
            return self._found_first(environment, types, may_vary)
        key = seen(environment, environment)
        return self.routes.find(key) or self.routes.keep(key, self._found_first(environment, types, may_vary))

    def _found_first(self, environment: Environment, types: Mapping[str, Given], may_vary: bool) -> Way:
        """The first stage for the declared types, else for shapes of which the changing dims are symbolic; for these
        very shapes where that says too little."""
        self.shapes.note(environment)
        if may_vary:
            declared = {n: types.get(n) or self.shapes.describe(n, v) for n, v in environment.items()}
            if not any(g.is_symbolic for g in declared.values()):
                return self.build_first(declared), declared
            sizes: dict[Symbol, int] = {}
            bind_dims(declared, environment, sizes)
            if is_described(declared, sizes):
                built = self._built(declared, sizes)
                if built is not None:
                    return built, declared
        fixed = {n: describe(v, False) for n, v in environment.items()}
        return self.build_first(fixed), fixed

    def _run_host(self, stage: Stage, environment: Environment) -> tuple[list[Deferred], set[str]]:
        """Run the host nodes whose inputs exist; what is left, and the names whose values it needs."""
        rest: list[Deferred] = []
        needs: set[str] = set()
        for waiting in stage.deferred:
            ready = all(n in environment or n in self.weights for n in waiting.item.reads)
            if ready:
                stage.note_values(environment, waiting.needs)
            if ready and (waiting.on_host or _is_unsteady(stage, waiting)):
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
        except (IngotError, IngotRuntimeError, InterpreterError):
            raise
        except MemoryError as error:
            problem = Problem(Kind.TOO_LARGE, f"there is no memory for its results: {error}", waiting.item.label)
            raise OnnxError([problem], self.model.name) from None
        except (ValueError, OverflowError) as error:  # what NumPy says about values and shapes that do not fit
            said = f"{node.op_type} of {', '.join(map(_outline, given))}: {error}"
            raise OnnxError([Problem(Kind.BAD_VALUE, said, waiting.item.label)], self.model.name) from error
        except MALFORMED as error:  # what the function did not foresee of a malformed node
            problem = _mistyped(waiting.item, call.version, given)
            if problem is None:
                problem = Problem(Kind.BAD_NODE, f"{type(error).__name__}: {error}", waiting.item.label)
            raise OnnxError([problem], self.model.name) from error
        # a tuple or list holds the outputs: a node whose one output is a sequence gives a list of that list
        results = results if isinstance(results, tuple | list) else (results,)
        if any(node.output[len(results) :]):
            problem = Problem(Kind.INPUT_COUNT, f"{node.op_type} makes {len(results)} outputs", waiting.item.label)
            raise OnnxError([problem], self.model.name)
        for name, result in zip(node.output, results, strict=False):
            if name:
                environment[name] = result

    def _next(
        self,
        stage: Stage,
        rest: list[Deferred],
        needs: set[str],
        environment: Environment,
        may_vary: bool,
        told: Sequence[Mapping[str, Given]],
    ) -> Way:
        """The stage of what is left, as it was found for the same shapes and values before."""
        plan = self._continuation(stage, rest, environment)
        key = seen(environment, plan.names, needs) if may_vary else None
        way = plan.routes.find(key)
        return way or plan.routes.keep(key, self._found_next(stage, plan, rest, needs, environment, may_vary, told))

    def _found_next(
        self,
        stage: Stage,
        plan: Continuation,
        rest: list[Deferred],
        needs: set[str],
        environment: Environment,
        may_vary: bool,
        told: Sequence[Mapping[str, Given]],
    ) -> Way:
        stage.shapes.note({n: environment[n] for n in plan.names})
        for varies in (True, False) if may_vary else (False,):
            if varies:
                given = {n: self._given(stage, n, n in needs, environment[n]) for n in plan.names}
            else:
                given = {n: describe(environment[n], n in needs or n in stage.dims) for n in plan.names}
            key = tuple((n, g.key) for n, g in given.items())
            if varies and key in stage.refused:
                continue
            found = stage.following.get(key)
            if found is None:
                sizes = _dims_of([*told, given], environment)
                name = f"{self.name}_{len(stage.following)}"
                try:
                    found = self.build(plan.items, {**plan.known, **given}, name, sizes)
                except OnnxError:
                    if not varies:
                        raise
                    stage.refused.add(key)
                    continue  # symbolic dims say too little here: compile for these very sizes
                found.by_value = needs
                found.known.update({n: environment[n] for n in plan.known})
                if not self._progress(rest, found, needs):
                    stuck = rest[0]
                    raise OnnxError([Problem(Kind.UNSUPPORTED, stuck.reason, stuck.item.label)], self.model.name)
                _keep(stage.following, key, found)
            return found, given
        raise AssertionError("one of the two has returned or raised")

    def _continuation(self, stage: Stage, rest: list[Deferred], environment: Environment) -> Continuation:
        key = tuple(map(id, rest))
        found = stage.continuations.get(key)
        if found is None:
            used = dict.fromkeys((*(n for d in rest for n in d.item.reads), *self.outputs))
            names = [n for n in used if n in environment]
            fixed = ((n, stage.known[n]) for n in names if n in stage.known)
            known = {n: Given(array=array) for n, array in fixed if array.dtype != object}
            found = Continuation([d.item for d in rest], [n for n in names if n not in known], known)
            stage.continuations[key] = found
        return found

    @staticmethod
    def _progress(rest: list[Deferred], made: Stage, needs: set[str]) -> bool:
        """Whether the new stage gets beyond where the last one stopped."""
        same = [d.item for d in made.deferred] == [d.item for d in rest]
        return not same or any(d.on_host for d in made.deferred) or not all(
            set(d.needs) <= needs for d in made.deferred if d.needs
        )

    def _given(self, stage: Stage, name: str, by_value: bool, value: Any) -> Given:
        if name in stage.dims and not by_value:
            return Given(dims=stage.dims[name])
        if by_value or not isinstance(value, np.ndarray):
            return describe(value, by_value)
        if name in stage.types:
            kind = element_of(value)
            return Given(stage.types[name], kind)
        return stage.describe(name, value)

    # --- looking -----------------------------------------------------------------------------------

    def stages(self) -> list[Stage]:
        """Every stage built so far, outermost first."""
        found: list[Stage] = []
        work = list(self.first.values())
        while work:
            stage = work.pop(0)
            found.append(stage)
            work += stage.following.values()
        for _, body in self.bodies.values():
            found += body.stages()
        return found

    def attributes_of(self, item: Item) -> Call:
        """A node of the host, of which only what its attributes say is asked for."""
        _, made = self.nodes.get(id(item), (item, None))
        if made is None:
            if len(self.nodes) >= MOST_NODES:
                self.nodes.clear()
            made = Call(Importer(self.model), Scope(Trace()), item.node, dict(item.opsets), 0, [])
            self.nodes[id(item)] = item, made
        return made

    def body(self, graph: GraphProto, opsets: Mapping[str, int]) -> tuple[Staged, tuple[str, ...]]:
        """A subgraph as a graph of its own, and the names it takes from outside."""
        _, made = self.bodies.get(id(graph), (graph, None))
        if made is None:
            importer = Importer(self.model)
            scope = Scope(Trace())
            importer.bind_initializers(graph, scope)
            weights: dict[str, Weight] = dict(self.weights)
            weights.update({n: _constant(v) for n, v in scope.values.items()})
            made = Staged(
                self.model, importer.items(graph, opsets), [o.name for o in graph.output], weights, self.options, "body"
            )
            self.bodies[id(graph)] = graph, made
        return made, tuple(sorted(graph_free_names(graph)))


@dataclass(frozen=True)
class _Imported:
    """Nodes imported for what is known of their inputs."""

    importer: Importer
    scope: Scope
    arguments: list[str]
    given: Mapping[str, Given]  # under the assumptions that were made


class _Broken(Exception):
    """A call does not keep what its program assumes."""


def _dims_of(told: Iterable[Mapping[str, Given]], environment: Environment) -> dict[Symbol, int]:
    """The values of the symbolic dims that stages were told of."""
    dims: dict[Symbol, int] = {}
    for given in told:
        bind_dims(given, environment, dims)
    return dims


def _mistyped(item: Item, version: int, given: Sequence[Any]) -> Problem | None:
    """What is wrong with the elements of what a node of the host is given; importing saw that of text only as text."""
    schema = description_of(domain_name(item.node.domain), item.node.op_type, version)
    try:
        if schema is not None:
            check_elements(item.node, schema, given)
    except ProblemError as error:
        return error.at(item.label)
    return None


def _is_unsteady(stage: Stage, waiting: Deferred) -> bool:
    """Whether the values that decide the shape of a node's result change from call to call, and the host can run it."""
    node = waiting.item.node
    return not stage.unsteady.isdisjoint(waiting.needs) and evaluator(node.domain, node.op_type) is not None


def _assumed(before: Assumptions, problems: Sequence[Problem]) -> Assumptions | None:
    """What to assume so that these problems vanish; None when one of them is of another kind."""
    pairs = [p.extents for p in problems if p.extents is not None]
    return before.with_equal(pairs) if len(pairs) == len(problems) else None


def _under(assumptions: Assumptions, what: Given) -> Given:
    return replace(what, type=assumptions.input(what.type)) if assumptions and what.type is not None else what


def _keep(stages: dict[Key, Stage], key: Key, stage: Stage) -> Stage:
    if len(stages) >= MAXIMUM_STAGES:
        stages.pop(next(iter(stages)))
    stages[key] = stage
    return stage


def _outline(value: Any) -> str:
    """What kind of thing an input is, for an error."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return f"{len(value)} parts" if isinstance(value, list) else "nothing" if value is None else type(value).__name__


def _constant(array: Any) -> Weight:
    return lambda trace: array


class HostCall:
    """A node of the host as its evaluator sees it."""

    def __init__(self, staged: Staged, item: Item, environment: Environment) -> None:
        self.staged = staged
        self.item = item
        self.environment = environment
        self.attributes = staged.attributes_of(item)
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
