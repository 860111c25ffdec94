"""Functions: bodies that a model brings with it, and those that ONNX defines for its own ops.

A call is expanded in place: the body's nodes, with the call's names for inputs and outputs and the call's attributes
where the body refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto, defs

from ingot.compiler.errors import IngotError
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.text.graph import parse_graph
from ingot.compiler.ir.types import dim_text
from ingot.compiler.ir.verify.errors import VerifyError
from ingot.compiler.ir.verify.graph import verify_graph
from ingot.compiler.ops.base import Op
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import ML, ONNX, PREVIEW, TRAINING, domain_name, registered
from ingot.frontends.onnx.source import Model, defined_names, opset_versions, subgraphs
from ingot.frontends.onnx.values import Coded, Dims, Value, element_of_value, shape_of


@dataclass(frozen=True)
class Body:
    """A function's definition."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    opsets: Mapping[str, int]
    defaults: Mapping[str, AttributeProto]


def body_of(function: FunctionProto) -> Body:
    defaults = {a.name: a for a in function.attribute_proto}
    return Body(
        tuple(function.input), tuple(function.output), tuple(function.node), opset_versions(function), defaults
    )


def of_model(model: Model, node: NodeProto) -> Body | None:
    """The body of a function that the model defines."""
    functions = model.functions
    if not functions:
        return None
    key = (domain_name(node.domain), node.op_type, node.overload)
    found = functions.get(key)
    return body_of(found) if found is not None else None


def exact_form(model: Model, node: NodeProto) -> Graph | None:
    """The graph that Ingot's exporter left with one of its functions."""
    function = model.functions.get((domain_name(node.domain), node.op_type, node.overload))
    text = next((p.value for p in function.metadata_props if p.key == "ingot.graph"), "") if function is not None else ""
    if not text:
        return None
    try:
        graph = parse_graph(text, Op.registry)
        verify_graph(graph)  # the types that it declares are believed from here on
    except (ValueError, TypeError, IngotError, VerifyError):
        return None  # written by another version: the body says the same
    return graph


def of_schema(node: NodeProto, version: int, values: Sequence[Value]) -> Body | None:
    """The body that ONNX gives for one of its own ops."""
    schema = schema_of(domain_name(node.domain), node.op_type, version)
    if schema is None:
        return None
    if schema.has_function:
        chosen = _version(schema.function_opset_versions, version)
        return body_of(FunctionProto.FromString(schema.get_function_with_opset_version(chosen)))
    if schema.has_context_dependent_function and all(v is None or _has_type(v) for v in values):
        chosen = _version(schema.context_dependent_function_opset_versions, version)
        types = [_type_of(v).SerializeToString() for v in values]
        try:
            data = schema.get_context_dependent_function_with_opset_version(chosen, _spelled(node).SerializeToString(), types)
        except RuntimeError as error:
            message = " ".join(str(error).split())
            raise ProblemError(Kind.UNSUPPORTED, f"ONNX's definition of {node.op_type} fails for this use: {message}") from None
        return body_of(FunctionProto.FromString(data)) if data else None
    return None


def _spelled(node: NodeProto) -> NodeProto:
    """The node with identifiers for what its subgraphs define: ONNX writes some of these into a text and reads that, which
    fails for a name such as `/layer/cap`."""
    made = NodeProto()
    made.CopyFrom(node)
    graphs = list(subgraphs(made))
    for graph in graphs:
        graphs += [inner for each in graph.node for inner in subgraphs(each)]
    taken = {*node.input, *node.output, *(name for graph in graphs for each in graph.node for name in (*each.input, *each.output))}
    fresh = (name for name in map("inner{}".format, count()) if name not in taken)
    for graph in subgraphs(made):
        _spell(graph, {}, fresh)
    return made


def _spell(graph: GraphProto, outer: Mapping[str, str], fresh: Iterator[str]) -> None:
    names = {**outer, **{name: next(fresh) for name in sorted(defined_names(graph) - {""})}}
    _name_values(graph, lambda name: names.get(name, name))
    for node in graph.node:
        given, made = list(node.input), list(node.output)
        del node.input[:], node.output[:]
        node.input.extend(names.get(name, name) for name in given)
        node.output.extend(names.get(name, name) for name in made)
        for inner in subgraphs(node):
            _spell(inner, names, fresh)


def _version(available: Sequence[int], wanted: int) -> int:
    fitting = [v for v in available if v <= wanted]
    return max(fitting) if fitting else min(available)


def _has_type(value: Value) -> bool:
    return isinstance(value, Tensor | np.ndarray | Coded | Dims)


def _type_of(value: Value) -> TypeProto:
    made = TypeProto()
    if value is None:
        return made
    if _has_type(value):
        made.tensor_type.elem_type = element_of_value(value).code
        made.tensor_type.shape.SetInParent()
        for dim in shape_of(value):
            entry = made.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            else:
                entry.dim_param = dim_text(dim)
    return made


@cache
def schema_of(domain: str, name: str, version: int) -> Any:
    """ONNX's own description of an op; None when it has none."""
    if not 0 < version < 1 << 31:
        return None
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None


def default_version(domain: str) -> int:
    """The version of a domain that a model uses without importing it."""
    return {ONNX: 1, ML: 1, TRAINING: 1, PREVIEW: 1}.get(domain, 1)


def unknown_op(node: NodeProto, domain: str, version: int) -> ProblemError:
    """What to say about an op that nothing here knows."""
    label = f"{domain}:{node.op_type}" if domain else node.op_type
    if schema_of(domain, node.op_type, version) is not None:
        return ProblemError(Kind.UNSUPPORTED, f"{label} (version {version}) is not supported")
    if (domain, node.op_type) in registered() or _exists(domain, node.op_type):
        return ProblemError(Kind.UNKNOWN_VERSION, f"{label} does not exist in version {version} of its domain")
    others = sorted({d or "ai.onnx" for d, name in registered() if name == node.op_type and d != domain})
    hint = f"there is one in the domain {', '.join(others)}" if others else ""
    return ProblemError(Kind.UNKNOWN_OP, f"there is no op {label}", hint)


def _exists(domain: str, name: str) -> bool:
    try:
        return defs.has(name, domain)
    except defs.SchemaError:
        return False


# --- expanding --------------------------------------------------------------------------------------


def instantiate(body: Body, call: NodeProto, prefix: str) -> list[NodeProto]:
    """The body's nodes for one call; names of its own get the prefix."""
    names: dict[str, str] = {"": ""}
    for n, formal in enumerate(body.inputs):
        names[formal] = call.input[n] if n < len(call.input) else ""
    extra: list[NodeProto] = []
    for n, formal in enumerate(body.outputs):
        actual = call.output[n] if n < len(call.output) else ""
        if formal in names and actual:  # an output that is an input as well
            extra.append(NodeProto(op_type="Identity", input=[names[formal]], output=[actual]))
        elif formal not in names:
            names[formal] = actual or prefix + formal
    given = {**body.defaults, **{a.name: a for a in call.attribute}}
    return [*(_renamed(node, names, prefix, given) for node in body.nodes), *extra]


def _renamed(
    node: NodeProto, names: Mapping[str, str], prefix: str, given: Mapping[str, AttributeProto]
) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    del made.input[:], made.output[:], made.attribute[:]
    made.input.extend(names.get(n, prefix + n) for n in node.input)
    made.output.extend(names.get(n, prefix + n) for n in node.output)
    for attribute in node.attribute:
        bound = _bound(attribute, given)
        if bound is None:
            continue
        made.attribute.append(bound)
    for graph in subgraphs(made):
        rename_graph(graph, names, prefix, given)
    return made


def _bound(attribute: AttributeProto, given: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """The attribute, with a reference to one of the call's attributes replaced by that."""
    made = AttributeProto()
    if not attribute.ref_attr_name:
        made.CopyFrom(attribute)
        return made
    actual = given.get(attribute.ref_attr_name)
    if actual is None:
        return None
    made.CopyFrom(actual)
    made.name = attribute.name
    return made


def rename_graph(
    graph: GraphProto, names: Mapping[str, str], prefix: str, given: Mapping[str, AttributeProto]
) -> None:
    """Give all names of a subgraph the prefix, except those that `names` maps; in place."""
    own = defined_names(graph)
    inner = {k: v for k, v in names.items() if k not in own or not k}
    _name_values(graph, lambda name: inner.get(name, prefix + name))
    nodes = [_renamed(node, inner, prefix, given) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _name_values(graph: GraphProto, new: Callable[[str], str]) -> None:
    """Other names for all that a graph declares; its nodes keep theirs."""
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = new(value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = new(sparse.values.name)
