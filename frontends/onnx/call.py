"""One ONNX node as its converter sees it: attributes, inputs in the form that is wanted, and constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from ingot.compiler.ir.graph import Graph, Input, results_of, topological
from ingot.compiler.ir.graph import Value as GraphValue
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.symbolic import Dim, Expr, Symbol
from ingot.compiler.ir.types import DType
from ingot.compiler.ops.control import Scan, While
from ingot.compiler.ops.movement import Dimension, stack
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.elements import Element, element, element_of
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.scope import Scope
from ingot.frontends.onnx.source import Model
from ingot.frontends.onnx.values import Coded, Dims, Held, Opaque, Ratio, Value, element_of_value, number_of


class Context(Protocol):
    """What a node needs of the importer."""

    model: Model

    def region(
        self, graph: GraphProto, outer: Scope, trace: Trace, opsets: Mapping[str, int], inputs: Sequence[Value]
    ) -> list[Value]: ...

    def unique(self, stem: str) -> Symbol: ...

    def unroll(self, nodes: int) -> None: ...

    def are_equal(self, left: Dim, right: Dim) -> bool: ...


_REQUIRED: Any = object()
EVALUATED_ELEMENTS = 1 << 16  # constants up to this size may be computed at import
MOST_EVALUATED = 1 << 24  # elements of any value on the way to them
MOST_ROUNDS = 1 << 10  # of loops on the way to them
MOST_PARTS = 1 << 12  # values that importing a node may make, one by one
MOST_ELEMENTS = 1 << 26  # of a matrix that importing a node computes


class NotTraceable(Exception):
    """This node cannot be part of a compiled program as it stands."""


class Decline(Exception):
    """The converter leaves this use of its op to ONNX's definition of it."""


class NeedsValue(NotTraceable):
    """The node could be compiled if the values of its inputs `numbers` were known."""

    def __init__(self, reason: str, numbers: Sequence[int]) -> None:
        super().__init__(reason)
        self.numbers = tuple(numbers)


@dataclass(frozen=True, eq=False)
class Inline:
    """What a converter returns to put a subgraph in the place of its node: the graph and values for its inputs."""

    graph: GraphProto
    inputs: tuple[Value, ...] = ()


class Call:
    """`values` are the node's inputs as they are; converters are usually given tensors made from them."""

    def __init__(
        self, importer: Context, scope: Scope, node: NodeProto, opsets: dict[str, int], version: int, values: list[Value]
    ) -> None:
        self.importer = importer
        self.scope = scope
        self.node = node
        self.opsets = opsets
        self.version = version
        self.values = values
        self.attributes = {a.name: a for a in node.attribute}

    # --- the node ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.node.op_type

    @property
    def output_count(self) -> int:
        return len(self.node.output)

    def wants(self, output: int) -> bool:
        """Whether anything reads this output."""
        return output < len(self.node.output) and bool(self.node.output[output])

    def has(self, attribute: str) -> bool:
        return attribute in self.attributes

    def get(self, attribute: str, default: Any = _REQUIRED) -> Any:
        """An attribute as a Python value, array or graph."""
        found = self.attributes.get(attribute)
        if found is None:
            if default is _REQUIRED:
                raise ProblemError(Kind.BAD_ATTRIBUTE, f"{self.name} wants the attribute {attribute!r}")
            return default
        return attribute_value(found, self.importer.model.array)

    def graph(self, attribute: str) -> GraphProto:
        found = self.get(attribute)
        if not isinstance(found, GraphProto):
            raise ProblemError(Kind.BAD_ATTRIBUTE, f"the attribute {attribute!r} of {self.name} is not a graph")
        return found

    def element(self, attribute: str, default: int | None = None) -> Element:
        """An element type that an attribute names by its code."""
        code = self.get(attribute, _REQUIRED if default is None else default)
        found = element(code)
        if found is None:
            raise ProblemError(Kind.BAD_ATTRIBUTE, f"{self.name}: {attribute}={code} is not an element type")
        return found

    def dtype(self, attribute: str, default: int | None = None) -> DType:
        """The same, for types that the compiler computes in."""
        found = self.element(attribute, default)
        if found.storage is None or found.is_coded:
            raise ProblemError(Kind.ELEMENT_TYPE, f"{self.name} into {found} is not supported")
        return found.storage

    def choice(self, attribute: str, default: str, allowed: Sequence[str]) -> str:
        found = self.get(attribute, default)
        if found not in allowed:
            raise ProblemError(
                Kind.BAD_ATTRIBUTE, f"{self.name}: {attribute}={found!r} is not one of {', '.join(allowed)}"
            )
        return found

    # --- inputs ------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        return self.scope.trace

    def has_input(self, number: int) -> bool:
        return number < len(self.values) and self.values[number] is not None

    @property
    def is_float(self) -> bool:
        """Whether the first input has floats."""
        numpy = element_of_value(self.values[0]).numpy
        return numpy.kind not in "iub?"

    def constant(self, value: object, dtype: DType | None = None) -> Tensor:
        """A known array or number as a tensor."""
        return Tensor(self.trace, self.trace.lift(value, dtype))

    def dimension(self, dim: Dim, dtype: DType) -> Tensor:
        """The value of a dim as a tensor."""
        if isinstance(dim, int):
            return self.constant(np.asarray(dim), dtype)
        return Tensor(self.trace, self.trace.emit(Dimension(dim, dtype)))

    def tensor(self, value: Value) -> Tensor:
        """A value as a tensor of its own element type."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Dims):
            return self._dims_tensor(value)
        if isinstance(value, np.ndarray):
            kind = element_of(value)
            if kind.storage is None:
                raise NotTraceable(f"{self.name} works on {kind} values")
            if not kind.is_coded:
                return self.constant(value)
            raise ProblemError(Kind.ELEMENT_TYPE, f"{self.name} does not take {kind} values")
        if isinstance(value, Coded):
            raise ProblemError(Kind.ELEMENT_TYPE, f"{self.name} does not take {value.element} values")
        if isinstance(value, Held | Opaque):
            raise NotTraceable(f"{self.name} works on sequences, optionals or strings")
        raise ProblemError(Kind.INPUT_COUNT, f"{self.name} is given no value for a required input")

    def _dims_tensor(self, value: Dims) -> Tensor:
        if any(isinstance(item, Ratio) for item in value.array.ravel()):
            parts = [self._ratio(item, value.dtype) for item in value.array.ravel()]
        else:
            parts = [self.dimension(item, value.dtype) for item in value.array.ravel()]
        if value.array.ndim == 0:
            return parts[0]
        return stack(parts, 0).reshape(value.array.shape)

    def _ratio(self, item: Any, dtype: DType) -> Tensor:
        if not isinstance(item, Ratio):
            return self.dimension(item, dtype) if isinstance(item, Expr) else self.constant(np.asarray(item), dtype)
        scaled = self.dimension(item.dim * item.factor.numerator, dtype)
        return scaled / self.constant(np.asarray(item.factor.denominator), dtype)

    def stored(self, value: Value) -> tuple[Tensor, Element]:
        """A value in its storage type, and its element type."""
        if isinstance(value, Coded):
            return value.tensor, value.element
        if isinstance(value, np.ndarray):
            kind = element_of(value)
            if kind.storage is None:
                raise NotTraceable(f"{self.name} works on {kind} values")
            return self.constant(kind.encode(value)), kind
        tensor = self.tensor(value)
        return tensor, element_of_value(tensor)

    def known(self, number: int) -> np.ndarray:
        """The value of an input, computed now."""
        value = self.values[number]
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, Coded):
            return value.element.decode(self._evaluated(value.tensor, number))
        if isinstance(value, Tensor):
            return self._evaluated(value, number)
        raise NeedsValue(f"the {_ordinal(number)} input of {self.name} decides the shape or form of its result", [number])

    def _evaluated(self, tensor: Tensor, number: int) -> np.ndarray:
        found = evaluate(tensor)
        if found is None:
            raise NeedsValue(
                f"the {_ordinal(number)} input of {self.name} decides the shape or form of its result", [number]
            )
        return found

    def dims(self, number: int) -> tuple[Dim, ...]:
        """An input as integers, of which some may be symbolic."""
        value = self.values[number]
        if isinstance(value, Dims):
            if any(isinstance(item, Ratio) for item in value.array.ravel()):
                raise NeedsValue(f"the {_ordinal(number)} input of {self.name} is not a known whole number", [number])
            return tuple(value.array.ravel().tolist())
        array = self.known(number)
        if array.dtype.kind in "cOSU":
            raise ProblemError(Kind.ELEMENT_TYPE, f"{self.name}: the {_ordinal(number)} input is {array.tolist()}; it holds integers")
        if array.dtype.kind not in "iub" and not np.isfinite(array.astype(np.float64)).all():
            raise ProblemError(Kind.BAD_VALUE, f"{self.name}: the {_ordinal(number)} input is {array.tolist()}; it holds integers")
        return tuple(int(item) for item in array.ravel())

    def number(self, array: np.ndarray, what: str) -> Any:
        """The one number of a known input."""
        return number_of(array, f"{what} of {self.name}")

    def integer(self, array: np.ndarray, what: str) -> int:
        """The same, if it is a whole number."""
        number = self.number(array, what)
        self.require(math.isfinite(number) and number == int(number), Kind.BAD_VALUE, f"{what} is {number}")
        return int(number)

    def bounded(self, count: float, what: str, most: int = MOST_PARTS) -> Any:
        """A number of things that importing the node makes; the file may not ask for any number of them."""
        if not count <= most:
            raise ProblemError(Kind.TOO_LARGE, f"{self.name}: {what} is {count}; it is at most {most}")
        return count

    def require(self, condition: object, kind: Kind, message: str) -> None:
        if not condition:
            raise ProblemError(kind, f"{self.name}: {message}")


def _ordinal(number: int) -> str:
    return ("first", "second", "third", "fourth", "fifth")[number] if number < 5 else f"{number + 1}th"


def attribute_value(attribute: AttributeProto, array: Callable[[Any], np.ndarray]) -> Any:
    """An attribute as a Python number, string, list, array or graph."""
    kind = attribute.type
    match kind:
        case AttributeProto.INT:
            return int(attribute.i)
        case AttributeProto.FLOAT:
            return float(attribute.f)
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "replace")
        case AttributeProto.TENSOR:
            return array(attribute.t)
        case AttributeProto.GRAPH:
            return attribute.g
        case AttributeProto.INTS:
            return [int(i) for i in attribute.ints]
        case AttributeProto.FLOATS:
            return [float(f) for f in attribute.floats]
        case AttributeProto.STRINGS:
            return [s.decode("utf-8", "replace") for s in attribute.strings]
        case AttributeProto.TENSORS:
            return [array(t) for t in attribute.tensors]
        case AttributeProto.GRAPHS:
            return list(attribute.graphs)
        case AttributeProto.TYPE_PROTO:
            return attribute.tp
        case AttributeProto.SPARSE_TENSOR:
            return attribute.sparse_tensor
    raise ProblemError(Kind.BAD_ATTRIBUTE, f"the attribute {attribute.name!r} has no value")


def evaluate(tensor: Tensor) -> np.ndarray | None:
    """The value of a tensor that depends on constants alone; None for any other, or a large one."""
    size = tensor.type.size
    if not isinstance(size, int) or size > EVALUATED_ELEMENTS:
        return None
    trace, value = _outermost(tensor.builder, tensor.value)
    if value is None:
        return None
    if isinstance(value.op, Input):
        return trace.constants.get(value.op.name) if value.op.role == "constant" else None
    body = topological([value])
    if not is_quick(body):
        return None
    inputs = list(dict.fromkeys(a for v in body for a in v.args if isinstance(a.op, Input)))
    if any(v.op.role != "constant" for v in inputs):  # type: ignore[union-attr]
        return None
    constants = {v.op.name: trace.constants[v.op.name] for v in inputs}  # type: ignore[union-attr]
    try:
        return run_graph(Graph("constant", tuple(inputs), (value,), constants=constants), {})[0]
    except InterpreterError:
        return None  # it reads a symbolic dim


def is_quick(body: Sequence[GraphValue]) -> bool:
    """Whether values are computed while a model is imported: no large tensors, and no loops that a file can make as long
    as it likes."""
    sizes = [t.size for value in body for t in results_of(value.type)]
    return all(isinstance(s, int) and s <= MOST_EVALUATED for s in sizes) and _rounds(body) <= MOST_ROUNDS


def _rounds(body: Sequence[GraphValue]) -> float:
    """How often the bodies of loops are run."""
    total: float = 0
    for value in body:
        op: Any = value.op
        inside = sum((_rounds(region.body) for region in op.regions), 0.0)
        if isinstance(op, While):
            return math.inf
        if isinstance(op, Scan):
            inside = (1 + inside) * (op.length if isinstance(op.length, int) else math.inf)
        total += inside
    return total


def _outermost(trace: Trace, value: GraphValue) -> tuple[Trace, GraphValue | None]:
    """A captured value as it is in the trace it comes from; None when a region computed it."""
    while trace.parent is not None:
        if not isinstance(value.op, Input):
            return (trace, value) if not _reads_inputs(value) else (trace, None)
        outer = next((out for out, captured in trace.captured.items() if captured is value), None)
        if outer is None:
            return trace, None
        trace, value = trace.parent, outer
    return trace, value


def _reads_inputs(value: GraphValue) -> bool:
    return any(isinstance(a.op, Input) for v in topological([value]) for a in v.args)
