"""What the export of ops writes with: nodes, constants and sizes of one ONNX graph.

An op that ONNX does not have becomes a call of a function in the domain "ingot": its body says the same in ONNX's
ops, for other runtimes, and an attribute holds the op as text, so that Ingot reads back exactly what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from ingot.compiler.errors import Code, IngotTypeError
from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ir.symbolic import Dim, FloorDiv, Maximum, Minimum, Mod, Symbol
from ingot.compiler.ir.text.graph import print_graph
from ingot.compiler.ir.types import DType, TensorType, dim_text
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.structure import Get
from ingot.compiler.passes.decompose import Decompose
from ingot.frontends.onnx.elements import element_of_dtype

OPSET = 23
DOMAIN = "ingot"
Write = Callable[..., Any]
_WRITERS: dict[str, Write] = {}


def writes(*names: str) -> Callable[[Write], Write]:
    """Register how ops are written: function(writer, value, *input names) -> output name or names."""

    def register(function: Write) -> Write:
        for name in names:
            _WRITERS[name] = function
        return function

    return register


def writer_of(name: str) -> Write | None:
    return _WRITERS.get(name)


def onnx_type(dtype: DType) -> int:
    return element_of_dtype(dtype).code


class Writer:
    """One graph that is being written. `parent` is the graph around a body."""

    def __init__(self, model: ModelParts, prefix: str = "", parent: Writer | None = None) -> None:
        self.model = model
        self.prefix = prefix
        self.parent = parent
        self.nodes: list[NodeProto] = []
        self.names: dict[Value, str] = {}
        self.symbols: dict[Symbol, tuple[str, int]] = {} if parent is None else dict(parent.symbols)
        self._known: dict[Any, str] = {}

    # --- nodes -------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        return self.model.fresh(f"{self.prefix}{stem}")

    def node(self, op: str, *inputs: str, count: int = 1, domain: str = "", name: str = "", **attributes: Any) -> Any:
        """A node; the name of its output, or a tuple of `count` names."""
        outputs = [name or self.fresh(op)] if count == 1 else [self.fresh(op) for _ in range(count)]
        given = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), outputs, self.fresh(f"node_{op}"), domain=domain, **given))
        return outputs[0] if count == 1 else tuple(outputs)

    def constant(self, array: object, dtype: DType | None = None) -> str:
        """A small known array."""
        made = np.asarray(array, None if dtype is None else dtype.numpy)
        key = ("constant", made.dtype.str, made.shape, made.tobytes())
        if key not in self._known:
            tensor = numpy_helper.from_array(np.ascontiguousarray(made).reshape(made.shape))
            self._known[key] = self.node("Constant", value=tensor)
        return self._known[key]

    def integers(self, values: Iterable[int]) -> str:
        return self.constant(np.array(list(values), np.int64))

    def like(self, number: float, value: Value) -> str:
        """A number in the element type of a value."""
        return self.constant(np.asarray(number), value.tensor.dtype)

    def cast(self, name: str, dtype: DType) -> str:
        return self.node("Cast", name, to=onnx_type(dtype))

    # --- sizes -------------------------------------------------------------------------------------

    def dim(self, dim: Dim) -> str:
        """A dim as i64[1]."""
        if isinstance(dim, int):
            return self.integers([dim])
        if dim not in self._known:
            self._known[dim] = self._expression(dim)
        return self._known[dim]

    def _expression(self, dim: Any) -> str:
        if isinstance(dim, Symbol):
            if dim not in self.symbols:
                raise IngotTypeError(Code.OP_ARGUMENTS, f"the dim {dim.name} is no extent of an input: it cannot be exported")
            name, axis = self.symbols[dim]
            return self.node("Shape", name, start=axis, end=axis + 1)
        if isinstance(dim, FloorDiv):  # sizes are not negative, so truncation is the floor
            return self.node("Div", self.dim(dim.dividend), self.dim(dim.divisor))
        if isinstance(dim, Mod):
            return self.node("Mod", self.dim(dim.dividend), self.dim(dim.divisor))
        if isinstance(dim, Minimum | Maximum):
            op = "Min" if isinstance(dim, Minimum) else "Max"
            return self.node(op, *(self.dim(a) for a in dim.arguments))
        total = self.integers([dim.constant]) if dim.constant else ""
        for monomial, coefficient in dim.terms:
            term = self.integers([coefficient]) if coefficient != 1 else ""
            for atom, power in monomial:
                for _ in range(power):
                    term = self.node("Mul", term, self.dim(atom)) if term else self.dim(atom)
            total = self.node("Add", total, term) if total else term
        return total

    def dims(self, dims: Sequence[Dim]) -> str:
        """A shape as i64[n]."""
        if all(isinstance(d, int) for d in dims):
            return self.integers(d for d in dims if isinstance(d, int))
        return self.node("Concat", *(self.dim(d) for d in dims), axis=0)

    def scalar_dim(self, dim: Dim, dtype: DType) -> str:
        number = self.node("Squeeze", self.dim(dim))
        return number if dtype.name == "i64" else self.cast(number, dtype)

    # --- shapes ------------------------------------------------------------------------------------

    def reshape(self, name: str, shape: Sequence[Dim]) -> str:
        return self.node("Reshape", name, self.dims(shape), allowzero=1 if 0 in tuple(shape) else None)

    def expand(self, name: str, shape: Sequence[Dim]) -> str:
        return self.node("Expand", name, self.dims(shape))

    def slice(self, name: str, starts: Sequence[Dim], stops: Sequence[Dim], axes: Sequence[int], steps: Sequence[int]) -> str:
        return self.node(
            "Slice", name, self.dims(starts), self.dims(stops), self.integers(axes), self.integers(steps)
        )

    # --- bodies ------------------------------------------------------------------------------------

    def body(self, graph: Graph, inputs: Sequence[tuple[Value, str]]) -> tuple[Writer, list[str]]:
        """A writer for a region whose inputs have these names, after it has written the region; and its outputs."""
        inner = Writer(self.model, self.fresh("body") + "/", self)
        inner._known.update({k: v for k, v in self._known.items() if not isinstance(k, tuple)})
        for value, name in inputs:
            inner.names[value] = name
        self.model.write(inner, graph)
        outputs = []
        for value in graph.outputs:
            outputs.append(inner.node("Identity", inner.names[value]))
        return inner, outputs

    def info(self, name: str, type_: TensorType) -> ValueInfoProto:
        shape = [d if isinstance(d, int) else dim_text(d) for d in type_.shape]
        return helper.make_tensor_value_info(name, onnx_type(type_.dtype), shape)

    def graph(self, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> GraphProto:
        return helper.make_graph(read_nodes(self.nodes, {info.name for info in outputs}), name, list(inputs), list(outputs))

    # --- functions ---------------------------------------------------------------------------------

    def function(self, value: Value, inputs: Sequence[str], write: Write) -> Any:
        """A call of a function that computes `value` from these inputs; `write` writes its body."""
        name, count = self.model.function(value, write)
        return self.node(name, *inputs, count=count, domain=DOMAIN)


class ModelParts:
    """What the graphs of one model share: names, and the functions it needs."""

    def __init__(self) -> None:
        self.functions: dict[str, FunctionProto] = {}
        self._numbers: dict[str, int] = {}
        self._texts: dict[str, tuple[str, int]] = {}
        self.taken: set[str] = set()
        self.opset = OPSET  # raised by ops that are newer

    def fresh(self, stem: str) -> str:
        while True:
            number = self._numbers.get(stem, 0)
            self._numbers[stem] = number + 1
            name = f"{stem}_{number}"
            if name not in self.taken:
                return name

    def write(self, writer: Writer, graph: Graph) -> None:
        """All values of a graph, producers first."""
        for value in graph.body:
            name = getattr(value.op, "name", "")
            write = writer_of(name)
            inputs = [writer.names[a] for a in value.args]
            if write is None and _is_composite(value):
                writer.names[value] = writer.function(value, inputs, _parts)
            elif write is not None:
                writer.names[value] = write(writer, value, *inputs)
            else:
                raise IngotTypeError(Code.OP_ARGUMENTS, f"{name} has no ONNX form", value.source)

    def settle_versions(self) -> None:
        """One opset version for the model and all its functions, when everything has been written."""
        for function in self.functions.values():
            for entry in function.opset_import:
                if not entry.domain:
                    entry.version = self.opset

    def function(self, value: Value, write: Write) -> tuple[str, int]:
        """The name of the function of an op on these types, and how many results it has."""
        text = one_op_text(value)
        if text not in self._texts:
            count = len(value.type.elements) if not isinstance(value.type, TensorType) else 1
            name = f"{getattr(value.op, 'name', 'op')}_{len(self.functions)}"
            self._texts[text] = (name, count)
            self.functions[name] = self._define(name, value, write, text, count)
        return self._texts[text]

    def _define(self, name: str, value: Value, write: Write, text: str, count: int) -> FunctionProto:
        inner = Writer(self, f"{name}/")
        inputs = [f"{name}/x{n}" for n in range(len(value.args))]
        for label, arg in zip(inputs, value.args, strict=True):
            for axis, dim in enumerate(arg.shape):
                if isinstance(dim, Symbol):
                    inner.symbols.setdefault(dim, (label, axis))
        made = write(inner, value, *inputs)
        outputs = [made] if count == 1 else list(made)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == DOMAIN for node in inner.nodes):
            opsets.append(helper.make_opsetid(DOMAIN, 1))
        nodes = read_nodes(inner.nodes, set(outputs))
        function = helper.make_function(DOMAIN, name, inputs, outputs, nodes, opsets, [])
        function.metadata_props.add(key="ingot.graph", value=text)
        return function


def read_nodes(nodes: Sequence[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """The nodes whose results are wanted or read: an op that says more briefly what its operands were for leaves those over."""
    wanted = set(wanted)
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(_names_read(node))
    return kept[::-1]


def _names_read(node: NodeProto) -> Iterable[str]:
    """By the node and, in the graphs that it holds, of names around it or of their own."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            yield from (output.name for output in inner.output)
            for held in inner.node:
                yield from _names_read(held)


def _is_composite(value: Value) -> bool:
    return isinstance(value.op, Op) and value.op.way_down() == "decompose"


def _parts(w: Writer, value: Value, *inputs: str) -> Any:
    """The body of a composite op: what it is made of, down to ops that are written by themselves."""
    graph = one_op(value)
    kept = frozenset(name for name in _WRITERS if name in Op.registry)
    ready = Decompose(kept)(graph)
    for made, name in zip(ready.inputs, inputs, strict=True):
        w.names[made] = name
    w.model.write(w, ready)
    names = [w.node("Identity", w.names[v]) for v in ready.outputs]
    return names[0] if len(names) == 1 else tuple(names)


def one_op(value: Value) -> Graph:
    """A graph with this one op, and an output for each of its results."""
    builder = Builder()
    args = [builder.input(f"x{n}", a.tensor) for n, a in enumerate(value.args)]
    made = builder.emit(value.op, *args)
    count = 1 if isinstance(made.type, TensorType) else len(made.type.elements)
    outputs = (made,) if count == 1 and isinstance(made.type, TensorType) else tuple(builder.emit(Get(n), made) for n in range(count))
    return Graph("op", builder.inputs, outputs)


def one_op_text(value: Value) -> str:
    """The same as text."""
    return print_graph(one_op(value), sources=False)
