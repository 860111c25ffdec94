"""The import doctor: every problem of a model in one run, each with a stable code, the node and a hint.

First the structure (names, order, ops, attributes, tensors, functions), without trusting anything in the file; then, when
that is sound, everything that compiling for the declared types does before it makes code (`OnnxModule.examine`), which
finds element types and shapes that do not fit. Compiling takes the same way, so that the two cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from onnx import GraphProto, NodeProto, ValueInfoProto, defs

from ingot.compiler.ir.types import MOST_AXES
from ingot.frontends.onnx import functions
from ingot.frontends.onnx.calls import call_graph, function_key
from ingot.frontends.onnx.elements import element
from ingot.frontends.onnx.host import is_host_op, is_miscounted
from ingot.frontends.onnx.importer import DEEPEST, MOST_NODES, ordered
from ingot.frontends.onnx.model import OnnxModule
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem, ProblemError
from ingot.frontends.onnx.registry import converter, domain_name
from ingot.frontends.onnx.signature import description_of, form_problems, undescribed_problems
from ingot.frontends.onnx.source import (
    MAXIMUM_BYTES,
    UNKNOWN_EXTENT,
    Model,
    node_label,
    opset_versions,
    read_model,
    subgraphs,
)
from ingot.frontends.onnx.staged import MOST_LISTED

LARGEST_EXTENT = 1 << 40


def check_onnx(source: object) -> list[Problem]:
    """Every problem of a model (a path, bytes or a ModelProto) for its declared types; none exactly when it compiles."""
    try:
        model = read_model(source)
        found = structure_problems(model)
        if not found:
            OnnxModule(model).examine()
        return found
    except ProblemError as error:
        return [error.at("")]
    except OnnxError as error:
        return list(error.problems)


# --- structure --------------------------------------------------------------------------------------


def structure_problems(model: Model) -> list[Problem]:
    """What is wrong with names, order, ops, attributes and tensors."""
    examined = _Structure(model)
    try:
        examined.run()
    except ProblemError as error:
        examined.problems.append(error.at(""))
    return examined.problems[:MOST_LISTED]


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
            if opset_versions(function):
                self._check_opsets(versions, f"the function {key[1]}")
            names = frozenset(function.input)
            if len(names) != len(function.input):
                self.add(Kind.DUPLICATE_NAME, f"two inputs of the function {key[1]} have one name")
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
        if len(dims) > MOST_AXES:
            self.add(Kind.TOO_LARGE, f"{what} {value.name!r} has {len(dims)} axes")
            return
        known = [d.dim_value for d in dims if d.HasField("dim_value") and d.dim_value != UNKNOWN_EXTENT]
        wrong = [d for d in known if not 0 <= d < LARGEST_EXTENT]
        if wrong:
            self.add(Kind.BAD_TYPE, f"{what} {value.name!r} has an extent of {wrong[0]}")
        elif math.prod(known) * (kind.numpy.itemsize if kind is not None else 1) > MAXIMUM_BYTES:
            shape = [d.dim_param or d.dim_value for d in declared_type.shape.dim]
            self.add(Kind.TOO_LARGE, f"{what} {value.name!r} has the shape {shape}")

    def _check_tensors(self, graph: GraphProto) -> None:
        for name, read in self.model.initializers(graph):
            try:
                read()
            except ProblemError as error:
                self.problems.append(error.at(""))
            except MemoryError as error:  # where what is stored in a few bits is unpacked
                self.add(Kind.TOO_LARGE, f"there is no memory for tensor {name!r}: {error}")
            except (ValueError, TypeError, OverflowError) as error:
                self.add(Kind.BAD_TENSOR, f"tensor {name!r}: {error}")

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
                if name:
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
        function = self.model.functions.get(function_key(node))
        if function is not None:
            for what, given, most in (("inputs", node.input, function.input), ("outputs", node.output, function.output)):
                if len(given) > len(most):
                    self.add(Kind.INPUT_COUNT, f"{node.op_type} has {len(given)} {what}; its function has {len(most)}", label)
            return
        domain = domain_name(node.domain)
        version = opsets.get(domain, 0) or functions.default_version(domain)
        schema = description_of(domain, node.op_type, version)
        supported = converter(domain, node.op_type, version) is not None or is_host_op(domain, node.op_type)
        if schema is None:
            if not supported:
                self.problems.append(functions.unknown_op(node, domain, version).at(label))
            if is_miscounted(node):
                self.add(Kind.INPUT_COUNT, f"{node.op_type} is given {len(node.input)} inputs", label)
            self.problems += [problem.at(label) for problem in undescribed_problems(node)]
            return
        if not supported and not (schema.has_function or schema.has_context_dependent_function):
            self.problems.append(functions.unknown_op(node, domain, version).at(label))
        self.problems += [problem.at(label) for problem in form_problems(node, schema)]


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
