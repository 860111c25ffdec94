"""Level 1, graph: what a model computes, as tensors.

    graph := graph name(%x: type [role], ...) { (%v: type = op(%a, ...) {field=value, ...})* return %v, ... }
    role  := argument | state | constant

SSA: a Value is produced once by an op from earlier values; ops are frozen dataclasses whose fields are
the attributes; an op with several results has a tuple type, `Get(i)` selects one. Regions (bodies of If,
While, Scan) are Graph-valued fields; what they capture is passed explicitly.

Inputs have a role: `argument` is given at each call; `state` is memory that the program keeps and may
update (`updates`: state name -> the output that becomes its next value); `constant` is a weight known at
compile time, held in `Graph.constants` beside the graph, never inside it.

Invariant: a Graph is immutable; its values are in topological order; identical pure computations built
by one Builder are one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, TupleType, Type

Role = Literal["argument", "state", "constant"]


@runtime_checkable
class Operation(Protocol):
    """What the graph needs of an op; ops derive from ops.base.Op."""

    @property
    def name(self) -> str: ...

    @property
    def regions(self) -> tuple[Graph, ...]: ...

    @property
    def infer(self) -> Callable[..., Type]:
        """The type of the result for the types of the arguments."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a value came from: a line of the user's program or a node of an ONNX file."""

    file: str = ""
    line: int = 0
    text: str = ""
    node: str = ""

    def __str__(self) -> str:
        if self.node:
            return f"ONNX node {self.node!r}"
        return f"{self.file}:{self.line}: {self.text}" if self.file else "unknown source"


@dataclass(frozen=True)
class Input:
    """A graph input. Not an op of the language: it has no meaning of its own."""

    name: str
    role: Role = "argument"

    @property
    def regions(self) -> tuple[Graph, ...]:
        return ()

    def infer(self, *types: Type) -> Type:
        raise TypeError("the type of an input is given, not inferred")


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One SSA value. Equal by identity."""

    op: Any  # an Operation; its fields are known to whoever matched its class
    args: tuple[Value, ...]
    type: Type
    source: Source | None = None
    name: str = ""  # the user's name for it, when there is one

    @property
    def tensor(self) -> TensorType:
        assert isinstance(self.type, TensorType), f"{self.op} has several results; use Get"
        return self.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.tensor.shape

    def __repr__(self) -> str:
        return f"<{type(self.op).__name__} {self.type!r}>"


@dataclass(frozen=True, eq=False)
class Graph:
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    updates: Mapping[str, int] = field(default_factory=dict)  # state name -> index of the output it becomes

    def __post_init__(self) -> None:
        if not self.output_names:
            names = tuple(f"output{n}" for n in range(len(self.outputs)))
            object.__setattr__(self, "output_names", names if len(names) != 1 else ("output",))

    @cached_property
    def body(self) -> tuple[Value, ...]:
        """Every value that the outputs need, inputs excluded, producers first."""
        return topological(self.outputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(input_of(v).name for v in self.inputs)

    def inputs_with(self, role: Role) -> tuple[Value, ...]:
        return tuple(v for v in self.inputs if input_of(v).role == role)

    def with_outputs(self, outputs: Iterable[Value]) -> Graph:
        """The same inputs, other outputs, with default names where their number changes."""
        outputs = tuple(outputs)
        names = self.output_names if len(outputs) == len(self.outputs) else ()
        return replace(self, outputs=outputs, output_names=names)


def input_of(value: Value) -> Input:
    assert isinstance(value.op, Input)
    return value.op


def topological(outputs: Sequence[Value], leaves: Iterable[Value] = ()) -> tuple[Value, ...]:
    """Values reachable from outputs, producers first, inputs left out, and so are `leaves` and what only they need;
    order is deterministic. Iterative, because models are deeper than Python's recursion limit."""
    done: set[Value] = set(leaves)
    order: list[Value] = []
    stack: list[tuple[Value, bool]] = [(v, False) for v in reversed(outputs)]
    while stack:
        value, expanded = stack.pop()
        if expanded:
            order.append(value)
            continue
        if value in done:
            continue
        done.add(value)
        if value.args:
            stack.append((value, True))
            stack.extend([(a, False) for a in reversed(value.args) if a not in done])
        elif not isinstance(value.op, Input):
            order.append(value)
    return tuple(order)


def users_of(graph: Graph) -> dict[Value, list[Value]]:
    """For each value, the body values that read it, in order, each once."""
    users: dict[Value, list[Value]] = {v: [] for v in graph.inputs}
    for value in graph.body:
        users.setdefault(value, [])
        for arg in dict.fromkeys(value.args):
            users.setdefault(arg, []).append(value)
    return users


class Builder:
    """Makes values. Equal (op, args) give the same value, so building is common-subexpression elimination.

    `listener`, when given, sees each newly made value and may return a replacement: rewriting passes
    replay a graph through a Builder with their rules as the listener.
    """

    def __init__(self, listener: Callable[[Builder, Value], Value | None] | None = None) -> None:
        self._made: dict[tuple[Operation, tuple[Value, ...]], Value] = {}
        self._inputs: dict[str, Value] = {}
        self._listener = listener
        self.source: Source | None = None  # stamped on new values

    def input(self, name: str, type: TensorType, role: Role = "argument", source: Source | None = None) -> Value:
        if name in self._inputs:
            raise ValueError(f"two inputs are called {name!r}")
        value = self._inputs[name] = Value(Input(name, role), (), type, source, name)
        return value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self._inputs.values())

    def emit(self, op: Any, *args: Value, source: Source | None = None, name: str = "") -> Value:
        key = (op, args)
        known = self._made.get(key)
        return self._new(key, op.infer(*[a.type for a in args]), source, name) if known is None else known

    def again(self, value: Value, args: tuple[Value, ...]) -> Value:
        """The value with these arguments. Where they have the types of its own, its type is believed: a graph is replayed
        for every pass, and inferring all types again would take as long as many of them."""
        key = (value.op, args)
        known = self._made.get(key)
        if known is not None:
            return known
        types = [a.type for a in args]
        type = value.type if types == [a.type for a in value.args] else value.op.infer(*types)
        return self._new(key, type, value.source, value.name)

    def _new(self, key: tuple[Any, tuple[Value, ...]], type: Type, source: Source | None, name: str) -> Value:
        op, args = key
        self.check(op, type)
        value = Value(op, args, type, source or self.source or self.here(), name)
        if self._listener is not None:
            value = self._listener(self, value) or value
        self._made[key] = value
        return value

    def check(self, op: Any, type: Type) -> None:
        """Refuse a new value of this type."""

    def here(self) -> Source | None:
        """Where a value comes from that is made without a source. Asked for new values only."""
        return None


def declare_inputs(graph: Graph, builder: Builder) -> dict[Value, Value]:
    """The graph's inputs, declared again in `builder`: old value -> new value."""
    return {v: builder.input(input_of(v).name, v.tensor, input_of(v).role, v.source) for v in graph.inputs}


def replay(
    graph: Graph, builder: Builder, mapping: dict[Value, Value] | None = None, keep_inputs: bool = True
) -> Graph:
    """Build the graph again through `builder`; `mapping` starts (and receives) old value -> new value."""
    mapping = {} if mapping is None else mapping
    if keep_inputs:
        for value in graph.inputs:
            if value not in mapping:
                made = input_of(value)
                mapping[value] = builder.input(made.name, value.tensor, made.role, value.source)
    for value in graph.body:
        if value not in mapping:
            mapping[value] = builder.again(value, tuple([mapping[a] for a in value.args]))
    return replace(
        graph,
        inputs=tuple(mapping[v] for v in graph.inputs) if keep_inputs else graph.inputs,
        outputs=tuple(mapping[v] for v in graph.outputs),
    )


def results_of(type: Type) -> tuple[TensorType, ...]:
    return type.elements if isinstance(type, TupleType) else (type,)
