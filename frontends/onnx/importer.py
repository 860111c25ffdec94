"""The walk over an ONNX graph: each node's converter is run on the values of its inputs.

Nodes whose inputs are known are computed now; nodes that can be compiled are traced; nodes that cannot, or that need
a value which only exists while the program runs, are deferred, and so is everything that depends on them
(stages.py runs those on the host and continues). Functions are expanded in place, so that only the one node inside
a function that needs the host waits.

All problems of a model are collected before any is raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto

from ingot.compiler.errors import IngotError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Source, topological
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.symbolic import Dim, Symbol, SymbolicValueError, TooManyTerms
from ingot.compiler.ir.types import NegativeDimension
from ingot.compiler.ops.base import DimsDiffer, OpTypeError
from ingot.compiler.ops.control import inline
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx import functions as function_bodies
from ingot.frontends.onnx import shapes
from ingot.frontends.onnx.assumptions import Assumptions, difference_in
from ingot.frontends.onnx.call import Call, Decline, Inline, NeedsValue, NotTraceable, is_quick
from ingot.frontends.onnx.calls import function_key
from ingot.frontends.onnx.elements import element_of, is_plain
from ingot.frontends.onnx.host import evaluator, is_host_op
from ingot.frontends.onnx.problems import Kind, Problem, ProblemError
from ingot.frontends.onnx.registry import ONNX, Converter, converter, domain_name
from ingot.frontends.onnx.scope import Scope
from ingot.frontends.onnx.signature import check_elements, check_kinds, description_of
from ingot.frontends.onnx.source import Model, defined_names, node_label, subgraphs
from ingot.frontends.onnx.values import Coded, Dims, Held, Opaque, Pending, Value

FOLDED_ELEMENTS = 1 << 12  # nodes on known values up to this size are computed at import
DEEPEST = 64
MOST_NODES = 1 << 18  # imported in all, copies of functions and unrolled loops counted
MOST_UNROLLED = 1 << 13  # by unrolling loops
MALFORMED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NotImplementedError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Item:
    """A node to import, with the opset versions of the graph or function that it belongs to."""

    node: NodeProto
    opsets: Mapping[str, int]
    label: str

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The names that the node takes, its subgraphs included."""
        return tuple(n for n in dict.fromkeys((*self.node.input, *sorted(free_names(self.node)))) if n)


@dataclass(frozen=True, eq=False)
class Deferred:
    """A node that waits: for its own inputs, for the values of `needs`, or (`on_host`) to be run by the host."""

    item: Item
    reason: str
    needs: tuple[str, ...] = ()
    on_host: bool = False


@dataclass
class Importer:
    """Imports nodes into a trace."""

    model: Model
    assumptions: Assumptions = field(default_factory=Assumptions)
    problems: list[Problem] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    sizes: Mapping[Symbol, int] | None = None  # of the call that the program is made for; None: it is not known
    may_choose: bool = True  # whether a branch may be chosen by sizes, for calls that agree with the choice
    chosen: list[tuple[Dim, Dim]] = field(default_factory=list)  # dims whose equality chose a branch
    fresh: int = 0  # number of names made so far
    depth: int = 0
    imported: int = 0
    unrolled: int = 0

    # --- graphs ------------------------------------------------------------------------------------

    def items(self, graph: GraphProto, opsets: Mapping[str, int] | None = None) -> list[Item]:
        versions = self.model.opsets if opsets is None else opsets
        return [Item(node, versions, node_label(node, n)) for n, node in enumerate(ordered(graph.node))]

    def bind_initializers(self, graph: GraphProto, scope: Scope) -> None:
        """Initializers of a subgraph: arrays that are known now."""
        for name, read in self.model.initializers(graph):
            scope.set(name, read())

    def region(
        self, graph: GraphProto, outer: Scope, trace: Trace, opsets: Mapping[str, int], inputs: Sequence[Value]
    ) -> list[Value]:
        """The outputs of a subgraph traced into `trace`. NotTraceable when a node of it cannot be."""
        if self.depth >= DEEPEST:
            raise ProblemError(Kind.NESTING, f"subgraphs are nested more than {DEEPEST} deep")
        scope = Scope(trace, outer)
        self.bind_initializers(graph, scope)
        for declared, value in zip(graph.input, inputs, strict=False):
            scope.set(declared.name, value)
        self.depth += 1
        try:
            self.run(self.items(graph, opsets), scope, strict=True)
        finally:
            self.depth -= 1
        return [scope.find(output.name) for output in graph.output]

    def run(self, items: Iterable[Item], scope: Scope, strict: bool = False) -> None:
        """Import nodes in order. Not strict: what cannot be traced is deferred, problems are collected."""
        work = deque(items)
        while work:
            item = work.popleft()
            if strict:
                self._import(item, scope, work)
                continue
            try:
                waiting = self._waiting(item, scope)
                if waiting is not None:
                    self._defer(item, scope, waiting)
                    continue
                self._import(item, scope, work)
            except NeedsValue as need:
                names = tuple(item.node.input[n] for n in need.numbers if n < len(item.node.input))
                self._defer(item, scope, Pending(str(need)), names)
            except NotTraceable as reason:
                if evaluator(item.node.domain, item.node.op_type) is not None:
                    self._defer(item, scope, Pending(str(reason)), on_host=True)
                else:
                    self._fail(item, scope, Problem(Kind.UNSUPPORTED, str(reason), item.label))
            except ProblemError as error:
                problem = error.at(item.label)
                self._fail(item, scope, replace(problem, is_certain=self._is_certain(item, scope, None)))
            except (OpTypeError, NegativeDimension, IngotError) as error:
                extents = difference_in(error)
                if extents is not None and self._assume(item, scope, extents):
                    work.appendleft(item)
                    continue
                message = error.message if isinstance(error, IngotError) else str(error)
                problem = Problem(Kind.BAD_SHAPE, message, item.label, extents=extents)
                self._fail(item, scope, replace(problem, is_certain=self._is_certain(item, scope, extents)))
            except SymbolicValueError as error:
                self._fail(item, scope, Problem(Kind.UNSUPPORTED, f"it must be known at compile time: {error}", item.label))
            except TooManyTerms as error:  # a call has numbers
                self._fail(item, scope, Problem(Kind.UNSUPPORTED, str(error), item.label))
            except MALFORMED as error:  # what a converter did not foresee of a malformed node
                self._fail(item, scope, Problem(Kind.BAD_NODE, f"{type(error).__name__}: {error}", item.label))

    def _is_certain(self, item: Item, scope: Scope, extents: tuple[Dim, Dim] | None) -> bool:
        """Whether a problem does not depend on the sizes of a call: nothing was assumed about them so far, and the node
        reads nothing whose shape depends on them, or the two extents differ for all sizes."""
        if self.assumptions or self.chosen:
            return False
        if extents is not None and symbolic.equal(*extents) is False:
            return True
        values = map(scope.peek, item.reads)
        return not any(isinstance(v, Dims) or _is_open(v) for v in values)

    def _assume(self, item: Item, scope: Scope, extents: tuple[Dim, Dim]) -> bool:
        """Take two extents to be equal and restate what the node reads: whether it may succeed now. An assumption about
        a dim of an input changes the input's type, so it is left to the next import from the beginning."""
        assumed = self.assumptions.with_equal([extents]) or self.assumptions
        if assumed.inputs != self.assumptions.inputs:
            return False
        is_new = assumed != self.assumptions
        self.assumptions = assumed
        for name in filter(scope.has, item.reads):
            before = scope.find(name)
            after = assumed.value(before)
            if after is not before:
                scope.set(name, after)
                is_new = True
        return is_new

    def are_equal(self, left: Dim, right: Dim) -> bool:
        """Whether two dims are equal in the calls that the program is made for: those of the size at hand, else (the
        branch that a model has for a special size is the one it was made for) those in which they are. DimsDiffer asks
        for the assumption; a dim of an input is never assumed to be a number for the sake of a branch."""
        assumed = self.assumptions.stated(left), self.assumptions.stated(right)
        if assumed[0] == assumed[1]:
            self.chosen.append((left, right))
            return True
        simple = all(isinstance(d, int | Symbol) for d in assumed)
        if not self.may_choose or simple or symbolic.equal(*assumed) is False:
            return False
        if self.sizes is not None:
            try:
                if symbolic.evaluate(left, self.sizes) != symbolic.evaluate(right, self.sizes):
                    return False
            except (LookupError, ArithmeticError):
                return False
        raise DimsDiffer(f"whether {left} is {right} decides which branch is taken", *assumed)

    def _waiting(self, item: Item, scope: Scope) -> Pending | None:
        """What the node waits for, when one of its inputs does not exist yet."""
        for name in item.reads:
            if scope.has(name):
                value = scope.find(name)
                if isinstance(value, Pending):
                    return Pending(f"it reads {name!r}")
        return None

    def _defer(
        self, item: Item, scope: Scope, why: Pending, needs: tuple[str, ...] = (), on_host: bool = False
    ) -> None:
        schema = self._schema(item)
        if schema is not None:
            values = [scope.peek(name) if name else None for name in item.node.input]
            try:
                check_kinds(item.node, schema, values)
                check_elements(item.node, schema, values)
            except ProblemError as error:
                self._fail(item, scope, error.at(item.label))
                return
        self.deferred.append(Deferred(item, why.reason, needs, on_host))
        for name in item.node.output:
            scope.set(name, why)

    def _fail(self, item: Item, scope: Scope, problem: Problem) -> None:
        self.problems.append(problem)
        for name in item.node.output:
            scope.set(name, Pending("a node before it has a problem"))

    # --- nodes -------------------------------------------------------------------------------------

    def _import(self, item: Item, scope: Scope, work: deque[Item]) -> None:
        node = item.node
        self.imported += 1
        if self.imported > MOST_NODES:
            raise ProblemError(Kind.TOO_LARGE, f"the model expands into more than {MOST_NODES} nodes")
        domain = domain_name(node.domain)
        if self._exact(node, scope):
            return
        body = function_bodies.of_model(self.model, node)
        if body is not None:
            work.extendleft(reversed(self._expanded(item, body, scope)))
            return
        version = item.opsets.get(domain, 0) or function_bodies.default_version(domain)
        values = [scope.find(name) if name else None for name in node.input]
        schema = self._schema(item)
        if schema is not None:
            check_kinds(node, schema, values)
        call = Call(self, scope, node, dict(item.opsets), version, values)
        found = converter(domain, node.op_type, version)
        if found is None:
            body = function_bodies.of_schema(node, version, values)
            if body is not None:
                work.extendleft(reversed(self._expanded(item, body, scope)))
                return
            if is_host_op(domain, node.op_type):
                raise NotTraceable(f"{node.op_type} has no compiled form")
            raise function_bodies.unknown_op(node, domain, version)
        if any(isinstance(v, Held | Opaque) for v in values) and not found.raw:
            raise NotTraceable(f"{node.op_type} works on sequences, optionals or strings")
        outer = scope.trace.source
        scope.trace.source = Source(node=item.label)
        try:
            results = self._converted(found, call)
        except Decline:
            body = function_bodies.of_schema(node, version, values)
            if body is None:
                raise ProblemError(Kind.UNSUPPORTED, f"this use of {node.op_type} is not supported") from None
            work.extendleft(reversed(self._expanded(item, body, scope)))
            return
        finally:
            scope.trace.source = outer
        if len(results) == 1 and isinstance(results[0], Inline):
            work.extendleft(reversed(self._inlined(item, results[0], scope)))
        else:
            self._bind(node, scope, results)

    def _schema(self, item: Item) -> Any:
        """What the standard says about a node; None for functions of the model and for ops of others. Identity hands on
        anything, in older versions too: branches that are put in the place of their node end in it."""
        domain = domain_name(item.node.domain)
        if function_key(item.node) in self.model.functions or (domain, item.node.op_type) == (ONNX, "Identity"):
            return None
        version = item.opsets.get(domain, 0) or function_bodies.default_version(domain)
        return description_of(domain, item.node.op_type, version)

    def _exact(self, node: NodeProto, scope: Scope) -> bool:
        """An op that Ingot wrote as a function, read back as it was; its body is for other readers."""
        if node.domain != "ingot":
            return False
        graph = function_bodies.exact_form(self.model, node)
        values = [scope.find(name) for name in node.input]
        if graph is None or not all(isinstance(v, Tensor) for v in values):
            return False
        tensors = [v for v in values if isinstance(v, Tensor)]
        if [t.type for t in tensors] != [v.tensor for v in graph.inputs]:
            return False
        made = inline(scope.trace, graph, [t.value for t in tensors])
        self._bind(node, scope, [Tensor(scope.trace, value) for value in made])
        return True

    def _bind(self, node: NodeProto, scope: Scope, results: Sequence[Value]) -> None:
        if len(results) < sum(map(bool, node.output)):
            wanted = [name for name in node.output[len(results) :] if name]
            if wanted:
                raise ProblemError(Kind.INPUT_COUNT, f"{node.op_type} has no output for {', '.join(wanted)}")
        for name, value in zip(node.output, results, strict=False):
            if name and isinstance(value, Opaque):
                raise NotTraceable(f"{node.op_type} hands on strings or maps")
            scope.set(name, self.assumptions.value(value))

    def _expanded(self, item: Item, body: function_bodies.Body, scope: Scope) -> list[Item]:
        self.fresh += 1
        nodes = function_bodies.instantiate(body, item.node, f"{item.label}/{self.fresh}/")
        versions = {**item.opsets, **body.opsets}
        return [Item(n, versions, f"{item.label}/{node_label(n, k)}") for k, n in enumerate(nodes)]

    def _inlined(self, item: Item, body: Inline, scope: Scope) -> list[Item]:
        """A subgraph's nodes in the place of its node; its inputs and initializers are bound now."""
        self.fresh += 1
        prefix = f"{item.label}/{self.fresh}/"
        graph = GraphProto()
        graph.CopyFrom(body.graph)
        outside = {name: name for name in (*graph_free_names(graph), "")}
        function_bodies.rename_graph(graph, outside, prefix, {})
        self.bind_initializers(graph, scope)
        for declared, value in zip(graph.input, body.inputs, strict=False):
            scope.set(declared.name, value)
        made = [Item(n, item.opsets, f"{item.label}/{node_label(n, k)}") for k, n in enumerate(ordered(graph.node))]
        for output, name in zip(graph.output, item.node.output, strict=False):
            if name:
                same = NodeProto(op_type="Identity", input=[output.name], output=[name])
                made.append(Item(same, item.opsets, item.label))
        return made

    def _converted(self, found: Converter, call: Call) -> list[Any]:
        values = call.values
        if found.raw:
            return _answered(found, call, values)
        if values and all(isinstance(v, np.ndarray | Dims | None) for v in values):
            folded = self._folded(found, call)
            if folded is not None:
                return folded
        if found.moves and any(_is_coded(v) for v in values):
            return self._moved(found, call)
        return self._called(found, call)

    def _called(self, found: Converter, call: Call) -> list[Value]:
        args: list[Any] = [None] * len(call.values)
        unknown: list[NeedsValue] = []
        for number, value in enumerate(call.values):
            if value is None:
                continue
            try:
                if number in found.dims:
                    args[number] = call.dims(number)
                elif number in found.known:
                    args[number] = call.known(number)
                else:
                    args[number] = call.tensor(value)
            except NeedsValue as need:
                unknown.append(need)
        for number in found.required:
            call.require(number >= len(args) or call.values[number] is not None, Kind.INPUT_COUNT, f"input {number} is missing")
        _check_ranks(found, call, args)
        if unknown:
            raise NeedsValue(str(unknown[0]), [n for need in unknown for n in need.numbers])
        return _answered(found, call, args)

    def _moved(self, found: Converter, call: Call) -> list[Value]:
        """An op that only moves elements, on the storage of a narrow type."""
        kind = None
        for number, value in enumerate(call.values):
            if _is_coded(value):
                tensor, kind = call.stored(value)
                call.values[number] = tensor
        assert kind is not None
        results = self._called(found, call)
        return [Coded(r, kind) if isinstance(r, Tensor) and r.dtype == kind.storage else r for r in results]

    # --- known values ------------------------------------------------------------------------------

    def _folded(self, found: Converter, call: Call) -> list[Value] | None:
        """The results of a node on known values, when they are small and need no tracing."""
        given = [v for v in call.values if v is not None]
        if any(isinstance(v, Dims) for v in given):
            return shapes.fold(call, call.values)  # type: ignore[arg-type, return-value]
        arrays = [v for v in given if isinstance(v, np.ndarray)]
        if sum(a.size for a in arrays) > FOLDED_ELEMENTS or not all(is_plain(a) for a in arrays):
            return None
        if subgraphs(call.node):
            return None
        return self._computed(found, call)

    def _computed(self, found: Converter, call: Call) -> list[Value] | None:
        """The node traced by itself and run by the interpreter: one meaning for known and for traced values."""
        trace = Trace()
        trace.source = call.trace.source
        inner = Call(self, Scope(trace, call.scope), call.node, call.opsets, call.version, list(call.values))
        results = self._called(found, inner)
        tensors = [r for r in results if isinstance(r, Tensor)]
        if any(not t.type.is_static or t.type.size > FOLDED_ELEMENTS for t in tensors):  # type: ignore[operator]
            return None
        if any(isinstance(r, Coded) for r in results) or not is_quick(topological([t.value for t in tensors])):
            return None
        graph = Graph("known", trace.inputs, tuple(t.value for t in tensors), constants=trace.constants)
        try:
            arrays = iter(run_graph(graph, {}))
        except InterpreterError:
            return None
        return [next(arrays) if isinstance(r, Tensor) else r for r in results]

    def unroll(self, nodes: int) -> None:
        """Count the nodes of one more round of a loop that is unrolled; NotTraceable when they are too many."""
        self.unrolled += nodes
        if self.unrolled > MOST_UNROLLED:
            raise NotTraceable(f"loops unrolled into more than {MOST_UNROLLED} nodes")

    def unique(self, stem: str) -> Symbol:
        """A dim with a name of its own."""
        self.fresh += 1
        return Symbol(f"{stem}_{self.fresh}", 0)


def _check_ranks(found: Converter, call: Call, args: Sequence[Any]) -> None:
    for number, arg in enumerate(args):
        if isinstance(arg, Tensor):
            wanted, least = found.ranks.get(number, arg.rank), found.least_ranks.get(number, 0)
            call.require(arg.rank == wanted, Kind.BAD_SHAPE, f"input {number} is {arg.type!r}; it has {wanted} axes")
            call.require(arg.rank >= least, Kind.BAD_SHAPE, f"input {number} is {arg.type!r}; it has {least} axes or more")


def _is_open(value: Value) -> bool:
    """Whether the extents of a value, or its parts, are not all known."""
    if isinstance(value, Held):
        return any(map(_is_open, value.value if isinstance(value.value, list) else [value.value]))
    if isinstance(value, Coded):
        return not value.tensor.type.is_static
    return isinstance(value, Pending | Opaque) or (isinstance(value, Tensor) and not value.type.is_static)


def _is_coded(value: Value) -> bool:
    return isinstance(value, Coded) or (isinstance(value, np.ndarray) and element_of(value).is_coded)


def _answered(found: Converter, call: Call, args: Sequence[Any]) -> list[Any]:
    """What a converter makes of these inputs; how many there are is not described of every op."""
    try:
        return _listed(found.function(call, *args))
    except TypeError as error:
        if "positional argument" not in str(error):
            raise
        raise ProblemError(Kind.INPUT_COUNT, f"{call.name} is given {len(args)} inputs") from None


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def free_names(node: NodeProto) -> set[str]:
    """The names that the subgraphs of a node take from the graphs around them."""
    found: set[str] = set()
    for graph in subgraphs(node):
        found |= graph_free_names(graph)
    return found


def graph_free_names(graph: GraphProto) -> set[str]:
    used = {output.name for output in graph.output}
    for node in graph.node:
        used.update(node.input)
        used |= free_names(node)
    return used - defined_names(graph) - {""}


def ordered(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The nodes with producers first. Files are in this order already; those that are not are sorted."""
    made: set[str] = set()
    producers = {name for node in nodes for name in node.output if name}
    needs = [{n for n in (*node.input, *free_names(node)) if n in producers} for node in nodes]
    sorted_already = True
    for node, wanted in zip(nodes, needs, strict=True):
        if wanted - made:
            sorted_already = False
            break
        made |= set(node.output)
    if sorted_already:
        return list(nodes)
    return _sorted(nodes, needs)


def _sorted(nodes: Sequence[NodeProto], needs: Sequence[set[str]]) -> list[NodeProto]:
    """Kahn's algorithm, in file order among nodes that are ready."""
    readers: dict[str, list[int]] = {}
    missing = [len(wanted) for wanted in needs]
    for number, wanted in enumerate(needs):
        for name in wanted:
            readers.setdefault(name, []).append(number)
    ready = deque(n for n, count in enumerate(missing) if not count)
    order: list[NodeProto] = []
    while ready:
        number = ready.popleft()
        order.append(nodes[number])
        for name in nodes[number].output:
            for reader in readers.get(name, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
    if len(order) < len(nodes):
        stuck = [node_label(node, n) for n, node in enumerate(nodes) if missing[n] > 0]
        raise ProblemError(Kind.CYCLE, f"these nodes wait for each other: {', '.join(stuck[:5])}")
    return order
