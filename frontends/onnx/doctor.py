"""The import doctor: every problem of a model in one run, each with a stable code, the node and a hint.

First the structure (names, order, ops, attributes, tensors, functions), without trusting anything in the file; then, when
that is sound, an import for the declared types, which finds element types and shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto, defs

from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx import functions
from ingot.frontends.onnx.calls import call_graph, function_key
from ingot.frontends.onnx.elements import element
from ingot.frontends.onnx.host import is_host_op
from ingot.frontends.onnx.importer import DEEPEST, MOST_NODES, Importer, ordered
from ingot.frontends.onnx.model import DimNames, OnnxModule, declared
from ingot.frontends.onnx.problems import Kind, Problem, ProblemError
from ingot.frontends.onnx.registry import converter, domain_name
from ingot.frontends.onnx.scope import Scope
from ingot.frontends.onnx.source import (
    MAXIMUM_BYTES,
    UNKNOWN_EXTENT,
    Model,
    node_label,
    opset_versions,
    read_model,
    subgraphs,
)
from ingot.frontends.onnx.stages import bound
from ingot.frontends.onnx.values import Pending

LARGEST_EXTENT = 1 << 40
MOST = 200  # problems listed; a broken model may have one per node


def check_onnx(source: object) -> list[Problem]:
    """Every problem of a model (a path, bytes or a ModelProto) for its declared types; none when it compiles for them."""
    try:
        model = read_model(source)
        found = structure_problems(model)
        return found or import_problems(model)
    except ProblemError as error:
        return [error.at("")]


# --- structure --------------------------------------------------------------------------------------


def structure_problems(model: Model) -> list[Problem]:
    """What is wrong with names, order, ops, attributes and tensors."""
    examined = _Structure(model)
    try:
        examined.run()
    except ProblemError as error:
        examined.problems.append(error.at(""))
    return examined.problems[:MOST]


@dataclass
class _Structure:
    model: Model
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: Kind, message: str, node: str = "", hint: str = "") -> None:
        self.problems.append(Problem(kind, message, node, hint))

    def run(self) -> None:
        wrong = next((t for t in _texts(self.model) if not isinstance(t, str)), None)
        if wrong is not None:
            self.add(Kind.UNREADABLE, f"a name is not UTF-8 text: {wrong!r}")
            return
        if _nesting(self.model.graph) > DEEPEST:
            self.add(Kind.NESTING, f"subgraphs are nested more than {DEEPEST} deep")
            return
        self._check_opsets(self.model.opsets, "the model")
        self._check_functions()
        if any(p.kind in (Kind.RECURSION, Kind.NESTING, Kind.TOO_LARGE) for p in self.problems):
            return
        for value in self.model.graph.input:
            if value.type.WhichOneof("value") == "tensor_type" and not value.type.tensor_type.elem_type:
                self.add(Kind.BAD_TYPE, f"input {value.name!r} has no element type")
        self._check_graph(self.model.graph, frozenset(), self.model.opsets)
        if not self.model.graph.output:
            self.add(Kind.BAD_GRAPH, "the graph has no outputs")

    def _check_opsets(self, opsets: Mapping[str, int], owner: str) -> None:
        newest = {"": defs.onnx_opset_version(), "ai.onnx.ml": _newest("ai.onnx.ml")}
        for domain, version in opsets.items():
            limit = newest.get(domain)
            if version < 1 or (limit is not None and version > limit):
                self.add(
                    Kind.UNKNOWN_VERSION,
                    f"{owner} imports version {version} of {domain or 'ai.onnx'}; 1 to {limit} are known",
                )

    # functions

    def _check_functions(self) -> None:
        functions_ = self.model.functions
        if len(functions_) != len(self.model.proto.functions):
            self.add(Kind.DUPLICATE_NAME, "two functions of the model have one name")
        calls = call_graph(functions_)
        for key in calls.recursive:
            self.add(Kind.RECURSION, f"the function {':'.join(filter(None, key))} calls itself")
        if calls.recursive:
            return
        if calls.depth > DEEPEST:
            self.add(Kind.NESTING, f"functions call each other {calls.depth} deep, more than {DEEPEST}")
        size = calls.size_of(self.model.graph.node)
        if size > MOST_NODES:
            self.add(Kind.TOO_LARGE, f"the model expands into {size} nodes, more than {MOST_NODES}")
        for key, function in functions_.items():
            versions = opset_versions(function) or self.model.opsets
            names = frozenset(function.input)
            self._check_nodes(function.node, names, versions, list(function.output), f"function {key[1]}: ")

    # graphs

    def _check_graph(self, graph: GraphProto, outside: frozenset[str], opsets: Mapping[str, int]) -> None:
        own: dict[str, str] = {}
        for value in graph.input:
            self._define(own, value.name, "input")
            self._check_declared(value, "input")
        inputs = set(own)
        for name in [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]:
            if name in inputs:  # an initializer may be an input's default
                inputs.discard(name)
                own[name] = "initializer"
            else:
                self._define(own, name, "initializer")
        self._check_tensors(graph)
        for value in graph.output:
            self._check_declared(value, "output")
        self._check_nodes(graph.node, outside | own.keys(), opsets, [o.name for o in graph.output], "")

    def _define(self, own: dict[str, str], name: str, what: str) -> None:
        if not name:
            self.add(Kind.BAD_GRAPH, f"an {what} has no name")
        elif name in own:
            self.add(Kind.DUPLICATE_NAME, f"{what} {name!r} is defined twice")
        own[name] = what

    def _check_declared(self, value: ValueInfoProto, what: str) -> None:
        if value.type.WhichOneof("value") != "tensor_type":
            return  # sequences, optionals, maps, and types that are left to inference
        declared_type = value.type.tensor_type
        kind = element(declared_type.elem_type)
        if kind is None and declared_type.elem_type != 0:
            self.add(Kind.BAD_TYPE, f"{what} {value.name!r} has the unknown element type {declared_type.elem_type}")
        dims = declared_type.shape.dim
        known = [d.dim_value for d in dims if d.HasField("dim_value") and d.dim_value != UNKNOWN_EXTENT]
        wrong = [d for d in known if not 0 <= d < LARGEST_EXTENT]
        if wrong:
            self.add(Kind.BAD_TYPE, f"{what} {value.name!r} has an extent of {wrong[0]}")
        elif math.prod(known) * (kind.numpy.itemsize if kind is not None else 1) > MAXIMUM_BYTES:
            shape = [d.dim_param or d.dim_value for d in declared_type.shape.dim]
            self.add(Kind.TOO_LARGE, f"{what} {value.name!r} has the shape {shape}")

    def _check_tensors(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            try:
                self.model.array(tensor)
            except ProblemError as error:
                self.problems.append(error.at(""))
            except (ValueError, TypeError, OverflowError) as error:
                self.add(Kind.BAD_TENSOR, f"tensor {tensor.name!r}: {error}")

    # nodes

    def _check_nodes(
        self,
        nodes: Iterable[NodeProto],
        outside: frozenset[str],
        opsets: Mapping[str, int],
        outputs: list[str],
        prefix: str,
    ) -> None:
        nodes = list(nodes)
        labels = [prefix + node_label(node, n) for n, node in enumerate(nodes)]
        made: dict[str, str] = {}
        for node, label in zip(nodes, labels, strict=True):
            for name in node.output:
                if name and (name in made or name in outside):
                    self.add(Kind.DUPLICATE_NAME, f"{name!r} is made by {made.get(name, 'an input or initializer')} too", label)
                made[name] = label
        known = outside | made.keys()
        for node, label in zip(nodes, labels, strict=True):
            self._check_node(node, label, known, opsets)
        for name in outputs:
            if name not in known:
                self.add(Kind.MISSING_INPUT, f"the output {name!r} is never made")
        try:
            ordered(nodes)
        except ProblemError as error:
            self.problems.append(error.at(""))

    def _check_node(self, node: NodeProto, label: str, known: frozenset[str], opsets: Mapping[str, int]) -> None:
        for name in node.input:
            if name and name not in known:
                self.add(Kind.MISSING_INPUT, f"its input {name!r} is never made", label)
        for graph in subgraphs(node):
            self._check_graph(graph, known, opsets)
            made = len(graph.output) - (1 if node.op_type == "Loop" else 0)  # the first says whether to go on
            if node.op_type in ("If", "Loop", "Scan") and made < len(node.output):
                self.add(Kind.INPUT_COUNT, f"its {graph.name!r} makes {made} outputs, the node has {len(node.output)}", label)
        if function_key(node) in self.model.functions:
            return
        domain = domain_name(node.domain)
        version = opsets.get(domain, 0) or functions.default_version(domain)
        schema = functions.schema_of(domain, node.op_type, version)
        supported = converter(domain, node.op_type, version) is not None or is_host_op(domain, node.op_type)
        if schema is None:
            if not supported:
                self.problems.append(functions.unknown_op(node, domain, version).at(label))
            return
        if not supported and not (schema.has_function or schema.has_context_dependent_function):
            self.problems.append(functions.unknown_op(node, domain, version).at(label))
        self._check_signature(node, label, schema)

    def _check_signature(self, node: NodeProto, label: str, schema: Any) -> None:
        count = len(node.input)
        if not schema.min_input <= count <= schema.max_input:
            wanted = f"{schema.min_input} to {schema.max_input}" if schema.max_input < 1 << 30 else f"{schema.min_input} or more"
            self.add(Kind.INPUT_COUNT, f"{node.op_type} has {count} inputs; it takes {wanted}", label)
        for place, name in enumerate(node.input):
            if not name and place < schema.max_input and _is_required(schema.inputs[min(place, len(schema.inputs) - 1)]):
                self.add(Kind.INPUT_COUNT, f"{node.op_type} is given no value for a required input, number {place}", label)
        if len(node.output) > schema.max_output:
            self.add(Kind.INPUT_COUNT, f"{node.op_type} has {len(node.output)} outputs; it makes {schema.max_output}", label)
        given = {a.name: a for a in node.attribute}
        if len(given) != len(node.attribute):
            self.add(Kind.BAD_ATTRIBUTE, f"{node.op_type} has an attribute twice", label)
        for name, attribute in given.items():
            entry = schema.attributes.get(name)
            if entry is None:
                known = ", ".join(sorted(schema.attributes)) or "none"
                self.add(Kind.BAD_ATTRIBUTE, f"{node.op_type} has no attribute {name!r}; it has {known}", label)
            elif not attribute.ref_attr_name and int(attribute.type) != _attribute_type(entry):
                found = AttributeProto.AttributeType.Name(attribute.type)
                self.add(Kind.BAD_ATTRIBUTE, f"{name!r} of {node.op_type} is a {found}, not {entry.type.name}", label)
        for name, entry in schema.attributes.items():
            if entry.required and name not in given:
                self.add(Kind.BAD_ATTRIBUTE, f"{node.op_type} wants the attribute {name!r}", label)


def _texts(model: Model) -> Iterator[object]:
    """Everything in the file that is used as a name. The parser leaves text that is not UTF-8 as bytes."""
    graphs, nodes = [model.graph], [n for f in model.proto.functions for n in f.node]
    yield from (e.domain for e in model.proto.opset_import)
    for function in model.proto.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute, *(e.domain for e in function.opset_import))
        yield from (a.name for a in function.attribute_proto)
        yield from (t for p in function.metadata_props for t in (p.key, p.value))
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            yield graph.name
            for value in (*graph.input, *graph.output, *graph.value_info):
                yield value.name
                yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
            for tensor in (*graph.initializer, *(t for s in graph.sparse_initializer for t in (s.values, s.indices))):
                yield tensor.name
                yield from (t for e in tensor.external_data for t in (e.key, e.value))
        else:
            node = nodes.pop()
            yield from (node.op_type, node.name, node.domain, node.overload, *node.input, *node.output)
            yield from (t for a in node.attribute for t in (a.name, a.ref_attr_name))
            graphs += subgraphs(node)


def _is_required(parameter: Any) -> bool:
    """Whether an input cannot be left out: one alone, or one of several of a kind."""
    options = defs.OpSchema.FormalParameterOption
    return parameter.option == options.Single or (parameter.option == options.Variadic and parameter.is_homogeneous)


def _attribute_type(entry: Any) -> int:
    return int(entry.type.value)


@cache
def _newest(domain: str) -> int:
    return max((s.since_version for s in defs.get_all_schemas_with_history() if s.domain == domain), default=1)


def _nesting(graph: GraphProto) -> int:
    """How deep subgraphs are nested; stops counting soon after the limit."""
    depth, level = 0, [graph]
    while level and depth <= DEEPEST:
        level = [g for outer in level for node in outer.node for g in subgraphs(node)]
        depth += bool(level)
    return depth


# --- import -----------------------------------------------------------------------------------------


def import_problems(model: Model) -> list[Problem]:
    """What does not fit when the model is imported for its declared types."""
    module = OnnxModule(model)
    trace = Trace()
    scope = Scope(trace)
    scope.weights.update(module.initial_values())
    dims, arguments = DimNames(), []
    for value in model.graph.input:
        if not scope.has(value.name):
            what = declared(value.type, value.name, dims)
            scope.set(value.name, Pending("its type is not declared") if what is None else bound(trace, value.name, what, arguments))
    importer = Importer(model)
    importer.run(importer.items(model.graph), scope)
    return importer.problems[:MOST]
