"""One stage of a model: a compiled part, the host nodes after it, and what is told to the part that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Graph, Input
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.traverse import symbols_in
from ingot.compiler.ir.types import TensorType
from ingot.compiler.pipeline import Compiled
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import Element, element_of
from ingot.frontends.onnx.host import dynamic_axes
from ingot.frontends.onnx.importer import Deferred
from ingot.frontends.onnx.values import Coded, Dims, Held, Opaque, Value
from ingot.runtime.executable import Executable

LONGEST_VALUE = 1 << 16  # bytes of a value that may be part of a stage's key

Environment = dict[str, Any]  # names to what the host has: arrays, lists, None
Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Given:
    """What a stage is told about a name: a type, a known array, parts, or that only the host understands it."""

    type: TensorType | None = None
    element: Element | None = None
    array: np.ndarray | None = None
    parts: tuple[Given, ...] | None = None
    absent: bool = False

    @property
    def is_opaque(self) -> bool:
        return self.type is None and self.array is None and self.parts is None and not self.absent

    @property
    def is_symbolic(self) -> bool:
        return self.type is not None and not self.type.is_static

    @property
    def key(self) -> Key:
        if self.array is not None:
            return ("value", self.array.dtype.str, self.array.shape, self.array.tobytes())
        if self.parts is not None:
            return ("parts", *(p.key for p in self.parts))
        return ("type", self.type, self.element.code if self.element else 0, self.absent)


def describe(value: Any, by_value: bool, symbols: Mapping[int, Symbol] | None = None) -> Given:
    """What a stage is told about a value of the host."""
    if value is None:
        return Given(absent=True)
    if isinstance(value, list | tuple):
        parts = tuple(describe(v, by_value) for v in value)
        return Given() if any(p.is_opaque for p in parts) else Given(parts=parts)
    if not isinstance(value, np.ndarray | np.generic):
        return Given()
    array = np.asarray(value)
    kind = element_of(array)
    if kind.storage is None:
        return Given(array=array) if by_value and array.dtype != object else Given()
    if by_value and array.nbytes <= LONGEST_VALUE:
        return Given(array=np.array(array))
    shape: list[Dim] = list(array.shape)
    for axis, symbol in (symbols or {}).items():
        shape[axis] = symbol
    return Given(TensorType(kind.storage, tuple(shape)), kind)


@dataclass(eq=False)
class Stage:
    """One compiled part and what follows it."""

    arguments: list[str]  # names of the program's arguments; a part of a sequence is name/number
    carrier: tuple[Symbol, ...]  # dims that no argument shows by itself
    results: list[tuple[str, Any]]  # name -> how its value is made of the program's results
    known: Environment
    types: dict[str, TensorType]
    deferred: list[Deferred]
    graph: Graph | None = None
    compiled: Compiled | None = None
    program: Executable | None = None
    by_value: set[str] = field(default_factory=set)  # names whose values this stage was compiled for
    following: dict[Key, Stage] = field(default_factory=dict)
    seen: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of the last call
    varying: dict[str, set[int]] = field(default_factory=dict)  # axes whose extents were seen to change

    @property
    def is_whole(self) -> bool:
        """Whether this is the entire model, as one program of plain tensors."""
        plain = all(isinstance(how, tuple) and not how[1].is_coded for _, how in self.results)
        return plain and not self.deferred and not self.known and not self.carrier

    def run(self, environment: Environment, dims: dict[Symbol, int]) -> None:
        environment.update(self.known)
        outputs: Sequence[np.ndarray] = ()
        if self.program is not None:
            arrays = [_argument(environment, name) for name in self.arguments]
            if self.carrier:
                arrays.append(np.empty((0, *(dims[s] for s in self.carrier)), np.bool_))
            result = self.program(*arrays)
            outputs = result if isinstance(result, tuple) else (result,)
        for name, rebuild in self.results:
            environment[name] = _rebuilt(rebuild, outputs)

    def note_shapes(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Remember which extents of the host's results change from call to call."""
        for name, array in arrays.items():
            before = self.seen.get(name)
            if before is not None and len(before) == array.ndim:
                changed = {n for n, (a, b) in enumerate(zip(before, array.shape, strict=True)) if a != b}
                self.varying.setdefault(name, set()).update(changed)
            self.seen[name] = array.shape

    def flexible_axes(self, name: str, rank: int) -> set[int]:
        """Axes of a host node's result that the next stage keeps symbolic."""
        axes = set(self.varying.get(name, ()))
        for waiting in self.deferred:
            if waiting.on_host and name in waiting.item.node.output:
                axes |= {a for a in dynamic_axes(waiting.item.node) if a < rank}
        return axes


def _argument(environment: Environment, name: str) -> np.ndarray:
    if name in environment:
        value = environment[name]
    else:
        stem, _, number = name.rpartition("/")
        value = _argument(environment, stem)[int(number)]
    if isinstance(value, list):
        return value  # type: ignore[return-value]
    array = np.asarray(value)
    return element_of(array).encode(array)


def _rebuilt(how: Any, outputs: Sequence[np.ndarray]) -> Any:
    if isinstance(how, list):
        return [_rebuilt(h, outputs) for h in how]
    if how is None:
        return None
    if isinstance(how, np.ndarray):
        return how
    number, kind = how
    return kind.decode(outputs[number])


def bound(trace: Trace, name: str, what: Given, arguments: list[str]) -> Value:
    """A value of a trace for what is known about a name; inputs of the program are added to `arguments`."""
    if what.array is not None:
        return what.array
    if what.absent:
        return Held(None)
    if what.parts is not None:
        return Held([bound(trace, f"{name}/{n}", part, arguments) for n, part in enumerate(what.parts)])
    if what.type is None or what.element is None:
        return Opaque()
    arguments.append(name)
    tensor = Tensor(trace, trace.input(name, what.type))
    return Coded(tensor, what.element) if what.element.is_coded else tensor


class Collected:
    """Program outputs for values of a scope."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.outputs: list[Tensor] = []
        self.names: list[str] = []
        self.types: dict[str, TensorType] = {}

    def add(self, name: str, value: Value) -> Any:
        """How the value is made of the program's results (see _rebuilt)."""
        if isinstance(value, Held):
            if isinstance(value.value, list):
                return [self.add(f"{name}/{n}", part) for n, part in enumerate(value.value)]
            return None if value.value is None else self.add(name, value.value)
        tensor, kind = self.call.stored(value)
        number = len(self.outputs)
        self.outputs.append(tensor)
        self.names.append(name)
        if not isinstance(value, Dims):
            self.types[name] = tensor.type
        return number, kind


def unshown_dims(trace: Trace, outputs: Sequence[Tensor]) -> tuple[Symbol, ...]:
    """Symbolic dims of the inputs that are no extent by themselves: the program cannot read them from a shape."""
    arguments = [v for v in trace.inputs if isinstance(v.op, Input) and v.op.role == "argument"]
    shown = {d for v in arguments for d in v.shape if isinstance(d, Symbol)}
    return tuple(s for s in symbols_in([d for v in arguments for d in v.shape]) if s not in shown)


def bind_dims(given: Mapping[str, Given], environment: Environment, dims: dict[Symbol, int]) -> None:
    """The values of symbolic dims that arguments show."""
    for name, what in given.items():
        if what.type is None or what.array is not None:
            continue
        for dim, extent in zip(what.type.shape, np.shape(environment[name]), strict=False):
            if isinstance(dim, Symbol):
                dims.setdefault(dim, extent)


def within_bounds(given: Mapping[str, Given], environment: Environment) -> bool:
    """Whether the extents of a call respect the bounds of the symbolic dims that they are values of."""
    for name, what in given.items():
        if what.type is None:
            continue
        for dim, extent in zip(what.type.shape, np.shape(environment[name]), strict=False):
            if isinstance(dim, Symbol) and dim.lower is not None and extent < dim.lower:
                return False
    return True
