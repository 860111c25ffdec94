"""Text of level 1: graphs.

    dim batch in [1, 64]
    graph mlp(%x: f32[batch, 784] argument, %w: f32[784, 10] constant) {
      %0: f32[batch, 10] = matmul(%x, %w) {precision="high"} @ "model.py:12"
      %h: f32[batch, 10] = relu(%0)
      return %h as output
      update %s = output 0
    }

A value that the user named stands under that name, others are numbered. Fields of an op are written unless
they have their default; a field may be a number, a string, none, bytes, a type, a dim, a graph, or a tuple of
these. Values of constant inputs stand beside the text (see `dump`), never in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Graph, Input, Source, Value, input_of
from ingot.compiler.ir.symbolic import Expr, Symbol
from ingot.compiler.ir.text.lexer import Token
from ingot.compiler.ir.text.read import Reader
from ingot.compiler.ir.text.write import Writer, number, string
from ingot.compiler.ir.traverse import symbols_in
from ingot.compiler.ir.types import DTYPES, DType, TensorType, TupleType, Type

Values = dict[str | int, Value]

_ROLES = ("argument", "state", "constant")
_LITERAL_FIELDS = frozenset({"data", "dtype", "shape"})
_LONGEST_LITERAL = 64  # elements; longer ones are written as bytes


def print_graph(graph: Graph, *, sources: bool = True) -> str:
    """The graph as text; `sources` says whether to tell where values came from."""
    symbols = symbols_in(_graph_dims(graph))
    writer = _GraphWriter(symbols, sources)
    return "\n".join([*writer.declarations(symbols), *writer.graph(graph)]) + "\n"


def _graph_dims(item: Any) -> Iterator[Any]:
    """Every dim in the types and fields of a graph, op or tuple."""
    if isinstance(item, Expr):
        yield item
    elif isinstance(item, tuple):
        for part in item:
            if type(part) is not int:
                yield from _graph_dims(part)
    elif isinstance(item, TensorType):
        if not item.is_static:
            yield from _graph_dims(item.shape)
    elif isinstance(item, TupleType):
        yield from _graph_dims(item.elements)
    elif isinstance(item, Graph):
        types: set[int] = set()  # most values have the type of another, the same object
        for value in (*item.inputs, *item.body):
            if id(value.type) not in types:
                types.add(id(value.type))
                yield from _graph_dims(value.type)
            for field in _fields_of(type(value.op)):
                content = getattr(value.op, field.name)
                if isinstance(content, (Expr, tuple, TensorType, TupleType, Graph)):
                    yield from _graph_dims(content)


@cache
def _fields_of(kind: type) -> tuple[Field[Any], ...]:
    return fields(kind)


def op_name(op: Any) -> str:
    """The name that the registry knows an op by."""
    return getattr(op, "name", "") or type(op).__name__


class _GraphWriter(Writer):
    def __init__(self, symbols: Iterable[Symbol] = (), sources: bool = True) -> None:
        super().__init__(symbols)
        self.sources = sources
        self._types: dict[int, tuple[Type, str]] = {}
        self._defaults: dict[Field[Any], str] = {}

    def graph(self, graph: Graph) -> Iterator[str]:
        labels = _labels(graph)
        inputs = ", ".join([self._input(v, labels) for v in graph.inputs])
        yield f"graph {string_or_name(graph.name)}({inputs}) {{"
        for value in graph.body:
            line = self._value(value, labels)
            if "\n" in line:  # of a region
                line = line.replace("\n", "\n  ")
            yield line
        results = [
            f"{labels.get(v, '%?')} as {string_or_name(name)}"
            for v, name in zip(graph.outputs, graph.output_names, strict=True)
        ]
        yield f"  return {', '.join(results)}".rstrip()
        for state, output in graph.updates.items():
            yield f"  update {label_text(state)} = output {output}"
        yield "}"

    def _input(self, value: Value, labels: Mapping[Value, str]) -> str:
        role = input_of(value).role
        return f"{labels[value]}: {self._type(value.type)} {role}{self._source(value.source)}"

    def _value(self, value: Value, labels: Mapping[Value, str]) -> str:
        args = ", ".join([labels.get(a, "%?") for a in value.args])
        label = labels[value]
        named = f" named {string(value.name)}" if value.name and label != label_text(value.name) else ""
        written = self._op_fields(value.op) if _fields_of(type(value.op)) else ()
        fields = f" {{{', '.join(written)}}}" if written else ""
        head = f"  {label}: {self._type(value.type)} = {op_name(value.op)}({args})"
        return f"{head}{fields}{named}{self._source(value.source)}"

    def _type(self, type_: Type) -> str:
        """The text of a type; most values have the type of another, the same object."""
        known = self._types.get(id(type_))
        if known is None or known[0] is not type_:
            known = self._types[id(type_)] = type_, self.type(type_)
        return known[1]

    def _source(self, source: Source | None) -> str:
        if source is None or not self.sources:
            return ""
        text = f" text {string(source.text)}" if source.text else ""
        node = f" node {string(source.node)}" if source.node else ""
        place = f" {string(f'{source.file}:{source.line}')}" if source.file or source.line else ""
        return " @" + ((place + text + node) or " none")

    # --- fields ----------------------------------------------------------------------------------

    def _op_fields(self, op: Any) -> list[str]:
        literal = _literal(op)
        if literal is not None:
            return [f"value={literal}", f"dtype={op.dtype.name}"]
        written = []
        for field in _fields_of(type(op)):
            text = self.field(getattr(op, field.name))
            if field.default is MISSING or text != self._default(field):
                written.append(f"{field.name}={text}")
        return written

    def _default(self, field: Field[Any]) -> str:
        if field not in self._defaults:
            self._defaults[field] = self.field(field.default)
        return self._defaults[field]

    def field(self, value: Any) -> str:
        if type(value) is int:  # by far the most
            return str(value)
        match value:
            case None:
                return "none"
            case bool():
                return "true" if value else "false"
            case int() | np.integer():
                return str(int(value))
            case float() | np.floating():
                return number(float(value))
            case str():
                return string(value)
            case bytes():
                return f'hex "{value.hex()}"'
            case tuple():
                return f"[{', '.join(map(self.field, value))}]"
            case DType(name=name):
                return name
            case TensorType() | TupleType():
                return f"type {self.type(value)}"
            case Expr():
                return self.dim(value)
            case Graph():
                return "\n".join(self.graph(value))
            case _:
                raise TypeError(f"a field of type {type(value).__name__} has no text: {value!r}")


@cache
def _is_literal(kind: type) -> bool:
    return {field.name for field in _fields_of(kind)} == _LITERAL_FIELDS


def _literal(op: Any) -> str | None:
    """The elements of an op that holds data, dtype and shape, when they are few and say everything."""
    if not _is_literal(type(op)):
        return None
    shape: tuple[int, ...] = op.shape
    if not isinstance(op.data, bytes) or math.prod(shape) not in range(1, _LONGEST_LITERAL + 1):
        return None
    if math.prod(shape) * op.dtype.itemsize != len(op.data):
        return None
    array = np.frombuffer(op.data, op.dtype.numpy).reshape(shape)
    plain = np.array(array.tolist(), op.dtype.numpy)
    if op.dtype.is_float:
        plain[np.isnan(plain)] = math.nan
    if plain.tobytes() != op.data:
        return None  # NaNs with a sign or a payload, bools other than 0 and 1
    return _elements(array.tolist(), op.dtype)


def _elements(value: Any, dtype: DType) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_elements(v, dtype) for v in value)}]"
    if dtype.kind == "bool":
        return "true" if value else "false"
    return number(float(value), dtype) if dtype.is_float else str(int(value))


def string_or_name(name: str) -> str:
    """A name of the user: a word, or a string when it is none."""
    plain = name.replace(".", "_").isidentifier() and name[0] != "."
    return name if plain else string(name)


def label_text(name: str) -> str:
    return f"%{string_or_name(name)}"


def _labels(graph: Graph) -> dict[Value, str]:
    """The user's names where they are unique, numbers elsewhere."""
    labels = {v: label_text(input_of(v).name) for v in graph.inputs}
    used = set(labels.values())
    for position, value in enumerate(graph.body):
        label = label_text(value.name) if value.name else ""
        if not label or label in used:
            label = f"%{position}"
        used.add(label)
        labels[value] = label
    return labels


# --- parsing --------------------------------------------------------------------------------------


def parse_graph(text: str, registry: Mapping[str, type], constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph that `print_graph` wrote. `registry` finds the class of an op by name."""
    reader = _GraphReader(text, registry)
    reader.declarations()
    graph = reader.graph(constants or {})
    reader.finish()
    return graph


class _GraphReader(Reader):
    def __init__(self, text: str, registry: Mapping[str, type]) -> None:
        super().__init__(text)
        self.registry = registry

    def graph(self, constants: Mapping[str, np.ndarray]) -> Graph:
        self.expect("graph")
        name = self._string_or_name("the name of the graph")
        values: Values = {}
        inputs = self._inputs(values)
        self.expect("{")
        while self.at("%"):
            self._value(values)
        outputs, names = self._results(values)
        updates = self._updates(len(outputs))
        self.expect("}", ", '%', 'return' or 'update'")
        return Graph(name, inputs, outputs, names, dict(constants), updates)

    def _string_or_name(self, what: str) -> str:
        return self.next().text if self.token.kind == "string" else self.name(what)

    def _label(self) -> str | int:
        """A name or a number; `%"3"` is a name."""
        self.expect("%", " and the name or number of a value")
        if self.token.kind == "integer":
            return int(self.next().text)
        return self._string_or_name("the name or number of a value")

    def _known(self, values: Values) -> Value:
        token = self.token
        label = self._label()
        if label not in values:
            raise self.error(f"no value %{label} stands before this line", token)
        return values[label]

    def _define(self, values: Values, label: str | int, value: Value, token: Token) -> Value:
        if label in values:
            raise self.error(f"two values are called %{label}", token)
        values[label] = value
        return value

    def _inputs(self, values: Values) -> tuple[Value, ...]:
        self.expect("(")
        inputs: list[Value] = []
        while not self.at(")"):
            token = self.token
            name = self._label()
            if isinstance(name, int):
                raise self.error("an input has a name, not a number", token)
            self.expect(":", f" and the type of {name!r}")
            type_ = self.tensor_type()
            role = self.accept(*_ROLES) or "argument"
            value = Value(Input(name, role), (), type_, self._source(), name)  # type: ignore[arg-type]
            inputs.append(self._define(values, name, value, token))
            if not self.accept(","):
                break
        self.expect(")", " or ','")
        return tuple(inputs)

    def _value(self, values: Values) -> None:
        token = self.token
        label = self._label()
        self.expect(":", " and the type of the value")
        type_ = self.type()
        self.expect("=")
        op_token = self.token
        kind = self._kind()
        args = self._args(values)
        op = self._op(kind, op_token)
        name = "" if isinstance(label, int) else label
        if self.accept("named"):
            name = self.string("the name of the value")
        self._define(values, label, Value(op, args, type_, self._source(), name), token)

    def _kind(self) -> Any:
        token = self.token
        name = self.name("the name of an op")
        if name not in self.registry:
            raise self.error(f"there is no op called {name!r}", token)
        return self.registry[name]

    def _args(self, values: Values) -> tuple[Value, ...]:
        self.expect("(")
        args: list[Value] = []
        while not self.at(")"):
            args.append(self._known(values))
            if not self.accept(","):
                break
        self.expect(")", " or ','")
        return tuple(args)

    def _results(self, values: Values) -> tuple[tuple[Value, ...], tuple[str, ...]]:
        self.expect("return", " or '%' and a value")
        outputs: list[Value] = []
        names: list[str] = []
        while self.at("%"):
            outputs.append(self._known(values))
            self.expect("as", " and the name of the output")
            names.append(self._string_or_name("the name of the output"))
            if not self.accept(","):
                break
        return tuple(outputs), tuple(names)

    def _updates(self, outputs: int) -> dict[str, int]:
        updates: dict[str, int] = {}
        while self.accept("update"):
            token = self.token
            state = str(self._label())
            self.expect("=")
            self.expect("output", " and its number")
            updates[state] = self.integer("the number of an output")
            if not 0 <= updates[state] < outputs:
                raise self.error(f"there are {outputs} outputs, none has number {updates[state]}", token)
        return updates

    def _source(self) -> Source | None:
        if not self.accept("@"):
            return None
        file, line, text, node = "", 0, "", ""
        if self.token.kind == "string":
            token = self.token
            file, _, digits = self.next().text.rpartition(":")
            if not digits.isdecimal():
                raise self.error('a source is written "file:line"', token)
            line = int(digits)
        else:
            self.accept("none")
        if self.accept("text"):
            text = self.string("the text of the line")
        if self.accept("node"):
            node = self.string("the name of the node")
        return Source(file, line, text, node)

    # --- fields ----------------------------------------------------------------------------------

    def _op(self, kind: Any, token: Token) -> Any:
        given: dict[str, Any] = {}
        if self.accept("{"):
            while not self.at("}"):
                name = self.name("the name of a field")
                self.expect("=")
                given[name] = self._field()
                if not self.accept(","):
                    break
            self.expect("}", " or ','")
        if set(given) == {"value", "dtype"} and _is_literal(kind):
            array = np.array(given["value"], given["dtype"].numpy)
            given = {"data": array.tobytes(), "dtype": given["dtype"], "shape": array.shape}
        known = [field.name for field in _fields_of(kind)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise self.error(f"op {op_name(kind)} has no field {', '.join(unknown)}", token)
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            raise self.error(f"op {op_name(kind)}: {error}", token) from error

    def _field(self) -> Any:
        token = self.token
        if token.kind == "integer":
            return self.dim()
        following = self.ahead()
        if token.kind == "string":
            return self.next().text
        if self.accept("none"):
            return None
        if self.at("true", "false"):
            return self.next().text == "true"
        if self.at("["):
            return self._tuple()
        if self.at("hex") and following.kind == "string":
            self.next()
            return bytes.fromhex(self.next().text)
        if self.accept("type"):
            return self.type()
        if self.at("graph"):
            return self.graph({})
        if token.kind == "name" and token.text in DTYPES:
            return self.dtype()
        negative = self.at("-")
        first = following if negative else token
        if first.kind == "float" or (first.kind == "name" and first.text in ("inf", "nan")):
            self.position += 1 + negative
            return -float(first.text) if negative else float(first.text)
        return self.dim()

    def _tuple(self) -> tuple[Any, ...]:
        self.expect("[")
        items: list[Any] = []
        while not self.at("]"):
            items.append(self._field())
            if not self.accept(","):
                break
        self.expect("]", " or ','")
        return tuple(items)


def structure(graph: Graph) -> tuple[Any, ...]:
    """What makes two graphs the same: equal when names, types, ops, roles, sources and edges are."""
    places: dict[Value, int] = {}
    rows: list[Any] = []
    for value in (*graph.inputs, *graph.body):
        places[value] = len(places)
        attributes = tuple((f.name, _comparable(getattr(value.op, f.name))) for f in _fields_of(type(value.op)))
        args = tuple(places[a] for a in value.args)
        rows.append((type(value.op), attributes, args, value.type, value.source, value.name))
    outputs = tuple(places[v] for v in graph.outputs)
    return graph.name, len(graph.inputs), tuple(rows), outputs, graph.output_names, dict(graph.updates)


def _comparable(value: Any) -> Any:
    """1, 1.0 and True differ; NaN equals itself; a region is its structure."""
    if isinstance(value, Graph):
        return structure(value)
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    if isinstance(value, (int, float)):
        return type(value), repr(value)
    return value


def same_structure(left: Graph, right: Graph) -> bool:
    return structure(left) == structure(right)
