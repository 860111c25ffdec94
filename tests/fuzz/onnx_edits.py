"""Edits of ONNX models that know what they edit: models that are nearly sound reach farther than damaged messages.

Each edit is a function (model, others, random) that changes one thing; it does nothing where the model has no such
thing. `others` are sound models to take parts from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

EXTENTS = (0, 1, 2, 3, 5, 7, 64, 257, 1 << 16, 1 << 31, 1 << 39)
MANY_AXES = 65  # one more than an array has
INTEGERS = (0, 1, -1, 2, 3, -2, 7, 64, -64, 1000, 1 << 16, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.7, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "linear", "nearest", "constant", "reflect", "sum", "SAME_UPPER", "bidirectional", "ij,jk->ik", "(a+)+$", "é")
ELEMENT_TYPES = tuple(TensorProto.DataType.values())
PLAIN_TYPES = (np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_, np.uint64)

Edit = Callable[[ModelProto, Sequence[bytes], Random], None]


def edited(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """One edit that changes something, if there is one."""
    before = model.SerializeToString()
    for _ in range(8):
        random.choice(EDITS)(model, others, random)
        if model.SerializeToString() != before:
            break


# --- what a model has -------------------------------------------------------------------------------


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and its subgraphs."""
    work = [graph]
    while work:
        made = work.pop()
        yield made
        work += [g for node in made.node for a in node.attribute for g in (*([a.g] if a.HasField("g") else ()), *a.graphs)]


def _node(model: ModelProto, random: Random) -> tuple[GraphProto, NodeProto] | None:
    found = [(graph, node) for graph in _graphs(model.graph) for node in graph.node]
    return random.choice(found) if found else None


def _names(model: ModelProto) -> list[str]:
    """Every value of the model."""
    found = [""]
    for graph in _graphs(model.graph):
        found += [v.name for v in (*graph.input, *graph.initializer)] + [s.values.name for s in graph.sparse_initializer]
        found += [name for node in graph.node for name in node.output]
    return found


def _versions(model: ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def schema_of_node(model: ModelProto, node: NodeProto) -> Any:
    try:
        return defs.get_schema(node.op_type, min(max(_versions(model).get(node.domain, 1), 1), 1 << 30), node.domain)
    except (defs.SchemaError, TypeError):
        return None


# --- attributes -------------------------------------------------------------------------------------


def _value_of(kind: int, random: Random) -> Any:
    match kind:
        case AttributeProto.INT:
            return random.choice(INTEGERS)
        case AttributeProto.FLOAT:
            return random.choice(FLOATS)
        case AttributeProto.STRING:
            return random.choice(TEXTS)
        case AttributeProto.INTS:
            return [random.choice(INTEGERS) for _ in range(random.choice((1, 2, 2, 3, 4, 8)))]
        case AttributeProto.FLOATS:
            return [random.choice(FLOATS) for _ in range(random.choice((1, 2, 3, 5)))]
        case AttributeProto.STRINGS:
            return [random.choice(TEXTS) for _ in range(random.choice((1, 2, 3)))]
    return None


def remove_attribute(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    found = _node(model, random)
    if found is not None and found[1].attribute:
        del found[1].attribute[random.randrange(len(found[1].attribute))]


def set_attribute(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """An attribute that the op has, of its own type, with any value."""
    found = _node(model, random)
    if found is None:
        return
    schema = schema_of_node(model, found[1])
    options = sorted(schema.attributes.items()) if schema is not None else []
    if options:
        name, entry = random.choice(options)
        value = _value_of(int(entry.type.value), random)
        if value is not None:
            replace_attribute(found[1], helper.make_attribute(name, value, attr_type=int(entry.type.value)))


def retype_attribute(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    found = _node(model, random)
    if found is None or not found[1].attribute:
        return
    kind = random.choice((AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING, AttributeProto.INTS))
    name = random.choice(found[1].attribute).name
    replace_attribute(found[1], helper.make_attribute(name, _value_of(kind, random), attr_type=kind))


def change_item(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """One number of an attribute that is a list."""
    found = _node(model, random)
    lists = [] if found is None else [v for a in found[1].attribute for v in (a.ints, a.floats) if len(v)]
    if lists:
        values: Any = random.choice(lists)
        whole = isinstance(values[0], int)
        values[random.randrange(len(values))] = random.choice(INTEGERS if whole else FLOATS)


def replace_attribute(node: NodeProto, attribute: AttributeProto) -> None:
    kept = [a for a in node.attribute if a.name != attribute.name]
    del node.attribute[:]
    node.attribute.extend([*kept, attribute])


# --- nodes ------------------------------------------------------------------------------------------


def change_op(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """Another op: any with as many inputs, or one that another model has, with its attributes."""
    found = _node(model, random)
    if found is None:
        return
    node = found[1]
    if random.random() < 0.5:
        other = _node(ModelProto.FromString(random.choice(others)), random)
        if other is not None:
            node.op_type, node.domain = other[1].op_type, other[1].domain
            del node.attribute[:]
            node.attribute.extend(other[1].attribute)
        return
    count = len(node.input)
    fitting = [s for s in ALL_OPS if s.min_input <= count <= s.max_input]
    if fitting:
        schema = random.choice(fitting)
        node.op_type, node.domain = schema.name, schema.domain


def rewire(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """An input becomes another value, is left out, is added or changes places with another."""
    found = _node(model, random)
    if found is None:
        return
    names = found[1].input
    match random.randrange(4):
        case 0 if names:
            names[random.randrange(len(names))] = random.choice(_names(model))
        case 1 if names:
            names[random.randrange(len(names))] = ""
        case 2 if len(names) > 1:
            i, j = random.sample(range(len(names)), 2)
            names[i], names[j] = names[j], names[i]
        case _:
            names.append(random.choice(_names(model)))


def change_outputs(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """An output of a node or graph more, less or twice."""
    found = _node(model, random)
    if found is None:
        return
    graph, node = found
    match random.randrange(4):
        case 0:
            node.output.append(random.choice((f"more{random.randrange(9)}", *node.output)))
        case 1 if node.output:
            del node.output[random.randrange(len(node.output))]
        case 2 if graph.output:
            graph.output.add().CopyFrom(random.choice(graph.output))
        case _ if node.output:
            graph.output.add().name = random.choice(node.output)


def append_node(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """A node of another model behind one of this: ops meet results that no case gives them."""
    other = _node(ModelProto.FromString(random.choice(others)), random)
    graph = model.graph
    if other is None or not graph.output:
        return
    node = graph.node.add()
    node.CopyFrom(other[1])
    names = [n for n in _names(model) if n]
    for place in range(len(node.input)):
        node.input[place] = graph.output[0].name if place == 0 else random.choice(names)
    del node.output[1:]
    number = len(graph.node)
    if node.output:
        node.output[0] = f"appended{number}"
        graph.output.add().name = node.output[0]


# --- types and values -------------------------------------------------------------------------------


def change_input_type(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """Another element type, extent, rank, an open dim, or no type at all."""
    graph = random.choice(list(_graphs(model.graph)))
    if not graph.input:
        return
    declared = random.choice(graph.input)
    tensor = declared.type.tensor_type
    dims = tensor.shape.dim
    match random.randrange(7):
        case 0:
            tensor.elem_type = random.choice(ELEMENT_TYPES)
        case 1 if dims:
            random.choice(dims).dim_value = random.choice(EXTENTS)
        case 2 if dims:
            random.choice(dims).dim_param = random.choice(("n", "m", "n + 1", "2*n", "?"))
        case 3:
            for number, dim in enumerate(dims):
                dim.dim_param = f"d{number}"
        case 4:
            dims.add().dim_value = random.choice(EXTENTS[:5])
            for _ in range(random.choice((0, 0, 0, MANY_AXES))):
                dims.add().dim_value = 1
        case 5 if dims:
            del dims[random.randrange(len(dims))]
        case _:
            declared.ClearField("type")


def fix_input(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """An input becomes an initializer: its value is known, so its readers are computed by the compiler."""
    graph = model.graph
    if not graph.input:
        return
    number = random.randrange(len(graph.input))
    declared = graph.input[number].type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 3 for d in declared.shape.dim]
    if any(not 0 <= d < 1 << 10 for d in shape) or np.prod(shape, dtype=float) > 1 << 14:
        return
    try:
        dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
        array = random_array(dtype, shape, random)
        made = numpy_helper.from_array(array, graph.input[number].name)
    except (KeyError, TypeError, ValueError, AttributeError):  # types that NumPy has not
        return
    graph.initializer.append(made)
    del graph.input[number]


def free_initializer(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """An initializer or constant becomes an input: its value is known only at run time."""
    graph = model.graph
    constants = [n for n in graph.node if n.op_type == "Constant" and n.attribute and n.attribute[0].HasField("t")]
    if graph.initializer and (not constants or random.random() < 0.5):
        tensor = graph.initializer.pop(random.randrange(len(graph.initializer)))
        name = tensor.name
    elif constants:
        node = random.choice(constants)
        graph.node.remove(node)
        tensor, name = node.attribute[0].t, node.output[0]
    else:
        return
    graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))


def change_initializer(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """Another element type, shape or values, all fitting each other; or data that does not fit."""
    tensors: list[TensorProto] = [t for graph in _graphs(model.graph) for t in graph.initializer]
    for graph in _graphs(model.graph):
        tensors += [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    if not tensors:
        return
    tensor = random.choice(tensors)
    match random.randrange(4):
        case 0:
            tensor.data_type = random.choice(ELEMENT_TYPES)
        case 1:
            tensor.raw_data = tensor.raw_data[: -random.randrange(1, 9)] or b"\1\2\3"
        case 2:
            tensor.dims[:] = [random.choice(EXTENTS) for _ in range(random.randrange(4))]
        case _:
            shape = list(tensor.dims) if random.random() < 0.5 else [random.choice(EXTENTS[:6]) for _ in range(random.randrange(4))]
            if any(not 0 <= d < 300 for d in shape) or np.prod(shape, dtype=float) > 1 << 14:
                return
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(random_array(np.dtype(random.choice(PLAIN_TYPES)), shape, random), name))


def make_sparse(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """An initializer becomes sparse: the same values, with an index, an extent or a part that may be off."""
    graphs = [graph for graph in _graphs(model.graph) if graph.initializer]
    if not graphs:
        return
    graph = random.choice(graphs)
    number = random.randrange(len(graph.initializer))
    try:
        array = numpy_helper.to_array(graph.initializer[number])
    except (TypeError, ValueError, KeyError):  # what an edit before this one has broken
        return
    flat = array.reshape(-1)
    places = np.flatnonzero(flat) if array.dtype.kind in "biuf" else np.arange(flat.size)
    indices = np.argwhere(array) if random.random() < 0.3 and array.dtype.kind in "biuf" else places.copy()
    if indices.size and random.random() < 0.5:
        indices.reshape(-1)[random.randrange(indices.size)] = random.choice(INTEGERS)
    try:
        values = numpy_helper.from_array(flat[places], graph.initializer[number].name)
    except (TypeError, ValueError, KeyError):  # types that NumPy has not
        return
    sparse = graph.sparse_initializer.add(values=values, indices=numpy_helper.from_array(indices), dims=array.shape)
    if sparse.dims and random.random() < 0.2:
        sparse.dims[random.randrange(len(sparse.dims))] = random.choice(EXTENTS)
    if random.random() < 0.1:
        sparse.ClearField(random.choice(("indices", "dims")))
    del graph.initializer[number]


def change_opset(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    if model.opset_import:
        random.choice(model.opset_import).version = random.choice((1, 4, 6, 8, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 23, 24))


# --- subgraphs --------------------------------------------------------------------------------------


def edit_subgraph(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """Inputs and outputs of a body more or less; or an outer value where an inner one was."""
    inner = list(_graphs(model.graph))[1:]
    if not inner:
        return
    graph = random.choice(inner)
    match random.randrange(5):
        case 0 if graph.input:
            del graph.input[random.randrange(len(graph.input))]
        case 1 if graph.output:
            del graph.output[random.randrange(len(graph.output))]
        case 2:
            graph.input.add().name = f"extra{len(graph.input)}"
        case 3 if graph.output:
            random.choice(graph.output).name = random.choice(_names(model))
        case _ if graph.node:
            del graph.node[random.randrange(len(graph.node))]


def wrap_in_if(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """The whole graph becomes a branch of an If; its inputs are captured."""
    graph = model.graph
    if not graph.output or any(not o.type.HasField("tensor_type") for o in graph.output):
        return
    branch = GraphProto(name="branch", node=graph.node, output=graph.output)
    names = [o.name for o in graph.output]
    outputs = [f"{name}_outer" for name in names]
    node = helper.make_node("If", ["chosen"], outputs, then_branch=branch, else_branch=branch)
    for output, name in zip(graph.output, outputs, strict=True):
        output.name = name
    del graph.node[:]
    graph.node.append(node)
    graph.input.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, []))


def wrap_in_function(model: ModelProto, others: Sequence[bytes], random: Random) -> None:
    """The nodes become a function of the model, which the graph calls; now and then, one that calls itself."""
    graph = model.graph
    inputs = [*(v.name for v in graph.input), *(t.name for t in graph.initializer)]
    outputs = [o.name for o in graph.output]
    if not graph.node or not outputs or len(set(inputs)) < len(inputs):
        return
    call = helper.make_node("Wrapped", inputs, outputs, domain="wrapped")
    nodes = [*graph.node, *([call] if random.random() < 0.1 else [])]
    opsets = [*model.opset_import, helper.make_opsetid("wrapped", 1)]
    model.functions.append(helper.make_function("wrapped", "Wrapped", inputs, outputs, nodes, opsets))
    model.opset_import.append(opsets[-1])
    del graph.node[:]
    graph.node.append(call)


def random_array(dtype: np.dtype, shape: Sequence[int], random: Random) -> np.ndarray:
    """Small numbers, with an extreme one here and there."""
    rng = np.random.default_rng(random.randrange(1 << 32))
    if dtype.kind in "OUS":
        return rng.choice(np.array(["", "a", "text", "1.5"], object), shape)
    with np.errstate(all="ignore"):
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        array = rng.integers(-2, 5, shape).astype(np.float64)
        if random.random() < 0.3 and array.size:
            array.reshape(-1)[rng.integers(array.size)] = random.choice((np.nan, np.inf, -1e300, 1e9, -(2.0**63), 2.0**31))
        return array.astype(dtype)


ALL_OPS = sorted(defs.get_all_schemas(), key=lambda schema: (schema.domain, schema.name))
EDITS: tuple[Edit, ...] = (
    remove_attribute, set_attribute, set_attribute, set_attribute, retype_attribute, change_item, change_item, change_op,
    change_op, rewire, rewire, change_outputs, append_node, append_node, change_input_type, change_input_type, fix_input,
    fix_input, fix_input, free_initializer, change_initializer, change_initializer, change_opset, edit_subgraph, wrap_in_if,
    make_sparse, wrap_in_function,
)  # fmt: skip
