"""One stage of a model: a compiled part, the host nodes after it, and what is told to the part that follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Input
from ingot.compiler.ir.symbolic import Dim, Expr, Symbol
from ingot.compiler.ir.traverse import symbols_in
from ingot.compiler.ir.types import TensorType
from ingot.compiler.pipeline import Compiled
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import Element, element_of
from ingot.frontends.onnx.host import dynamic_axes
from ingot.frontends.onnx.importer import Deferred, Item
from ingot.frontends.onnx.values import Coded, Dims, Held, Opaque, Value
from ingot.runtime.executable import Executable

LONGEST_VALUE = 1 << 16  # bytes of a value that may be part of a stage's key
MOST_ROUTES = 64  # kept per place

Environment = dict[str, Any]  # names to what the host has: arrays, lists, None
Key = tuple[Any, ...]
Way = tuple["Stage", "dict[str, Given]"]  # a stage and what it was told


@dataclass(frozen=True, eq=False)
class Given:
    """What a stage is told about a name: a type, a known array, known dims, parts, or that only the host
    understands it."""

    type: TensorType | None = None
    element: Element | None = None
    array: np.ndarray | None = None
    dims: Dims | None = None
    parts: tuple[Given, ...] | None = None
    absent: bool = False

    @property
    def is_opaque(self) -> bool:
        known = self.type or self.array is not None or self.dims or self.parts is not None or self.absent
        return not known

    @property
    def is_symbolic(self) -> bool:
        return self.type is not None and not self.type.is_static

    @property
    def is_plain(self) -> bool:
        """Whether it is a tensor of which the type is known, in its own element type."""
        return self.type is not None and self.element is not None and not self.element.is_coded

    @property
    def key(self) -> Key:
        if self.array is not None:
            return ("value", self.array.dtype.str, self.array.shape, self.array.tobytes())
        if self.dims is not None:
            return ("dims", self.dims.dtype, self.dims.shape, *self.dims.array.ravel())
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


class Routes:
    """The ways that calls took from one place on, by what they were given there (see `seen`). A stage that was right for
    some shapes stays right, so forgetting a way, or keeping one that would be chosen otherwise by now, costs time only."""

    def __init__(self) -> None:
        self.ways: dict[Key, Way] = {}

    def find(self, key: Key | None) -> Way | None:
        return None if key is None else self.ways.get(key)

    def keep(self, key: Key | None, way: Way) -> Way:
        if key is not None:
            if len(self.ways) >= MOST_ROUTES:
                self.ways.clear()
            self.ways[key] = way
        return way


@dataclass(frozen=True, eq=False)
class Continuation:
    """What follows a stage when these nodes are left: the same at every call."""

    items: list[Item]
    names: list[str]  # values they read that may change from call to call
    known: dict[str, Given]  # values that never change
    routes: Routes = field(default_factory=Routes)


def seen(environment: Environment, names: Iterable[str], by_value: Collection[str] = ()) -> Key | None:
    """What decides how a call goes on: the shapes and element types of these values, and the contents of those in
    `by_value`. None when one of them is no array of numbers, or too long to compare."""
    found: list[Any] = []
    for name in names:
        value = environment[name]
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return None
        found += (value.shape, value.dtype)
        if name in by_value:
            if value.nbytes > LONGEST_VALUE:
                return None
            found.append(value.tobytes())
    return tuple(found)


@dataclass(eq=False)
class Shapes:
    """Shapes of named values from call to call."""

    last: dict[str, tuple[int, ...]] = field(default_factory=dict)
    varying: dict[str, set[int]] = field(default_factory=dict)  # axes whose extents were seen to change

    def note(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if not isinstance(value, np.ndarray):
                continue
            before = self.last.get(name)
            if before is not None and len(before) == value.ndim:
                changed = {n for n, (a, b) in enumerate(zip(before, value.shape, strict=True)) if a != b}
                self.varying.setdefault(name, set()).update(changed)
            self.last[name] = value.shape

    def describe(self, name: str, value: Any, axes: Iterable[int] = ()) -> Given:
        """What a stage is told about a value: dims that change, and those of further axes, are symbolic."""
        known = isinstance(value, np.ndarray)
        found = {a for a in (*self.varying.get(name, ()), *axes) if known and a < value.ndim}
        return describe(value, False, {axis: Symbol(f"{name}.{axis}", 0) for axis in sorted(found)})


@dataclass(eq=False)
class Stage:
    """One compiled part and what follows it."""

    arguments: list[str]  # names of the program's arguments; a part of a sequence is name/number
    carrier: tuple[Symbol, ...]  # dims that no argument shows by itself
    results: list[tuple[str, Any]]  # name -> how its value is made of the program's results
    known: Environment
    types: dict[str, TensorType]
    deferred: list[Deferred]
    dims: dict[str, Dims] = field(default_factory=dict)  # results that are known but for symbolic dims
    assumes: bool = False  # extents are taken to be equal that the declared dims do not show to be
    graph: Graph | None = None
    compiled: Compiled | None = None
    program: Executable | None = None
    by_value: set[str] = field(default_factory=set)  # names whose values this stage was compiled for
    following: dict[Key, Stage] = field(default_factory=dict)
    continuations: dict[Key, Continuation] = field(default_factory=dict)  # by the nodes that are left
    refused: set[Key] = field(default_factory=set)  # for which no stage could be built
    shapes: Shapes = field(default_factory=Shapes)  # of what the next stage is given
    values: dict[str, bytes] = field(default_factory=dict)  # of the first call, by which the next stage was compiled
    unsteady: set[str] = field(default_factory=set)  # names whose values were seen to change

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

    def note_values(self, environment: Environment, names: Iterable[str]) -> None:
        """Remember which of these values change from call to call."""
        for name in names:
            value = environment.get(name)
            if isinstance(value, np.ndarray | np.generic) and value.nbytes <= LONGEST_VALUE:
                contents = value.tobytes()
                if self.values.setdefault(name, contents) != contents:
                    self.unsteady.add(name)

    def describe(self, name: str, value: Any) -> Given:
        """What the next stage is told about a value: extents that change or depend on data stay symbolic."""
        makers = (d.item.node for d in self.deferred if d.on_host and name in d.item.node.output)
        return self.shapes.describe(name, value, [axis for node in makers for axis in dynamic_axes(node)])


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
    if what.dims is not None:
        return what.dims
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
        self.dims: dict[str, Dims] = {}

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
        if isinstance(value, Dims):
            self.dims[name] = value
        else:
            self.types[name] = tensor.type
        return number, kind


def unshown_dims(trace: Trace, given: Iterable[Given]) -> tuple[Symbol, ...]:
    """Symbolic dims of what is given that are no extent by themselves: the program cannot read them from a shape."""
    arguments = [v for v in trace.inputs if isinstance(v.op, Input) and v.op.role == "argument"]
    shown = {d for v in arguments for d in v.shape if isinstance(d, Symbol)}
    used = [d for v in arguments for d in v.shape]
    used += [d for what in given if what.dims is not None for d in _extents(what.dims)]
    return tuple(s for s in symbols_in(used) if s not in shown)


def _extents(dims: Dims) -> list[Any]:
    """The integers among known dims (others are quotients, which no program is given)."""
    return [d for d in dims.array.ravel() if isinstance(d, int | Expr)]


def bind_dims(given: Mapping[str, Given], environment: Environment, dims: dict[Symbol, int]) -> None:
    """The values of symbolic dims that arguments show: as an extent, or in an expression that one of them can be found
    from (n in n + 1)."""
    shown: list[tuple[Dim, int]] = []
    for name, what in given.items():
        if what.type is not None and what.array is None:
            shown += zip(what.type.shape, np.shape(environment[name]), strict=False)
    for dim, extent in shown:
        if isinstance(dim, Symbol):
            dims.setdefault(dim, extent)
    for dim, extent in shown:
        unknown = [s for s in symbols_in([dim]) if s not in dims]
        if len(unknown) == 1:
            found = _solved(dim, extent, unknown[0], dims)
            if found is not None:
                dims[unknown[0]] = found


def _solved(dim: Dim, extent: int, symbol: Symbol, dims: Mapping[Symbol, int]) -> int | None:
    """What a symbol must be for the dim to be this extent, when it is a multiple of the symbol and a number."""
    try:
        rest = symbolic.substitute(dim, {**dims, symbol: 0})
        step = symbolic.linear_coefficient(symbolic.substitute(dim, dims), symbol)
    except ZeroDivisionError:  # a quotient that is none for these sizes
        return None
    if not isinstance(rest, int) or not isinstance(step, int) or not step or (extent - rest) % step:
        return None
    return (extent - rest) // step


def is_described(given: Mapping[str, Given], dims: Mapping[Symbol, int]) -> bool:
    """Whether a call gives every declared dim a value, and one within its bounds."""
    for what in given.values():
        if what.type is None:
            continue
        for symbol in symbols_in(what.type.shape):
            if symbol not in dims or (symbol.lower is not None and dims[symbol] < symbol.lower):
                return False
    return True
