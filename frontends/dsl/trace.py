"""Tracing: run a Python function on tensors that record what is done to them; the record is a graph.

A Trace is a Builder that also lifts NumPy arrays: small ones become literals in the graph, large ones
constants beside it. There is no global "current trace": a tensor carries its own.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np

from ingot.compiler.errors import Code, IngotTypeError, IngotValueError
from ingot.compiler.ir.graph import Builder, Graph, Source, Value, results_of
from ingot.compiler.ir.symbolic import Symbol, SymbolicValueError, atoms
from ingot.compiler.ir.types import DType, TensorType, Type, dtype_of, type_of
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.structure import Constant
from ingot.frontends.dsl.module import Module

LITERAL_ELEMENTS = 16  # arrays up to this size are written into the graph
OWN_CODE = str(Path(__file__).resolve().parents[2])
OWN_FOLDERS = ("ingot", "compiler", "runtime", "frontends")
COMMAND_LINE = (["ingot", "cli.py"], ["cli.py"])  # in a checkout, where it is installed


class Trace(Builder):
    """`parent` is the trace around a region; what the region uses of it is captured as an input.

    The outermost trace knows which regions are being traced now: control flow and derivatives belong into the
    innermost of them, even when all that they are given comes from further out.
    """

    def __init__(self, parent: Trace | None = None) -> None:
        super().__init__()
        self.parent = parent
        self.root: Trace = self if parent is None else parent.root
        self._open: list[Trace] = []  # of the root: regions that are being traced, innermost last
        self._numbers = 0  # of the root: numbers that were taken
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.captured: dict[Value, Value] = {}  # value of the parent -> input of this trace
        self.constants: dict[str, np.ndarray] = {}
        self._lifted: dict[int, tuple[np.ndarray, Value]] = {}
        # a line and the layers that run there, which are kept so that their numbers mean them
        self._sources: dict[tuple[str, int, tuple[int, ...]], tuple[Source, list[Module]]] = {}

    @property
    def innermost(self) -> Trace:
        """The region that is being traced now; the outermost trace when there is none."""
        return self.root._open[-1] if self.root._open else self.root

    @contextmanager
    def opened(self) -> Iterator[Trace]:
        """This region is being traced."""
        self.root._open.append(self)
        try:
            yield self
        finally:
            self.root._open.pop()

    def take_number(self) -> int:
        """A number that nothing else of this trace has: for values that must differ from all others, for streams
        of random numbers. Tracing again gives the same numbers, so the graph is the same."""
        self.root._numbers += 1
        return self.root._numbers

    def check(self, op: Any, type: Type) -> None:
        """Refused here, where the source is known: types that no tensor has."""
        for tensor in results_of(type):
            for dim in tensor.shape:
                if isinstance(dim, int) and dim < 0:
                    raise OpTypeError(f"{op.name} would have the type {tensor!r}: an extent cannot be negative")

    def lift(self, array: object, dtype: DType | None = None) -> Value:
        """A value for an array that is known now."""
        if self.parent is not None and np.size(array) > LITERAL_ELEMENTS:  # type: ignore[arg-type]
            return self.capture(self.parent.lift(array, dtype))
        known = self._lifted.get(id(array))
        if known is not None and (dtype is None or dtype == known[1].tensor.dtype):
            return known[1]
        data = np.asarray(array)
        kind = dtype or dtype_of(data)
        data = data.astype(kind.numpy, copy=False)
        if data.size <= LITERAL_ELEMENTS:
            return self.emit(Constant.of(data, kind))
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(data)
        value = self.input(name, type_of(data), "constant")
        if isinstance(array, np.ndarray):
            self._lifted[id(array)] = (array, value)
        return value

    def capture(self, value: Value) -> Value:
        """An input of this region for a value of the trace around it."""
        if value not in self.captured:
            self.captured[value] = self.input(f"captured{len(self.captured)}", value.tensor, source=value.source)
        return self.captured[value]

    def adopt(self, value: Value, owner: Builder) -> Value | None:
        """The value as seen from this trace: itself, or captured from a trace around; None when unrelated."""
        if owner is self:
            return value
        outside = self.parent.adopt(value, owner) if self.parent is not None else None
        return None if outside is None else self.capture(outside)

    def here(self) -> Source | None:
        """The line of the user's program that is running: the first frame outside this package; and which of our
        layers it is in. None when the command line is all there is around it."""
        frame: FrameType | None = sys._getframe(1)
        layers: list[Module] = []  # the innermost first
        while frame is not None:
            code = frame.f_code
            whose = _whose(code.co_filename)
            if whose == "user":
                break
            if code.co_name == "forward":
                layers += _layer(frame)
            frame = frame.f_back if whose == "own" else None
        if frame is None:
            return None
        around = _layer(frame) if layers else []
        file, line = frame.f_code.co_filename, frame.f_lineno
        key = (file, line, (*map(id, layers), *map(id, around)))
        known = self._sources.get(key)
        if known is None:
            text = linecache.getline(file, line).strip() + (_place(layers, around) if layers else "")
            known = self._sources[key] = Source(Path(file).name, line, text), [*layers, *around]
        return known[0]


@contextmanager
def running_user_code() -> Iterator[None]:
    """Around calls of the user's function: what it cannot do with a symbolic size is said with its line."""
    try:
        yield
    except SymbolicValueError as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _whose(f.filename) == "user"]
        source = (
            Source(Path(frames[-1].filename).name, frames[-1].lineno or 0, frames[-1].line or "") if frames else None
        )
        raise IngotTypeError(Code.SYMBOLIC_LENGTH, str(error), source) from None


def _layer(frame: FrameType) -> list[Module]:
    """The module whose forward a frame runs."""
    if frame.f_code.co_name != "forward":
        return []
    running = frame.f_locals.get("self")
    return [running] if isinstance(running, Module) else []


def _place(layers: list[Module], around: list[Module]) -> str:
    """Of the innermost layer: "  [blocks.0.attention: MultiHeadAttention]", as seen from the user's line."""
    chain = [*around, *reversed(layers)]
    names = (parent.name_of(child) for parent, child in pairwise(chain))
    path = ".".join(name for name in names if name)
    return f"  [{path}: {type(layers[0]).__name__}]" if path else f"  [{type(layers[0]).__name__}]"


@cache
def _whose(filename: str) -> Literal["user", "own", "command line"]:
    """Whose code a file holds; asked for every frame around every new value."""
    if not filename.startswith(OWN_CODE):
        return "user"
    parts = filename[len(OWN_CODE) :].lstrip("/\\").replace("\\", "/").split("/")
    if parts in COMMAND_LINE:
        return "command line"
    return "own" if parts[0] in OWN_FOLDERS else "user"


@dataclass(frozen=True)
class Traced:
    """A graph, how its outputs were arranged, and the names of its positional arguments."""

    graph: Graph
    structure: Any  # nested tuple/list/dict of output numbers
    extra: dict[str, Any] = field(default_factory=dict)


def argument_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of a function's positional parameters; checks that `count` types fit it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return tuple(f"x{n}" for n in range(count))
    names: list[str] = []
    required = 0
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{n}" for n in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
            required += parameter.default is parameter.empty
    if not required <= count <= len(names):
        wanted = f"{required}" if required == len(names) else f"{required} to {len(names)}"
        raise IngotTypeError(
            Code.ARGUMENT_COUNT,
            f"{getattr(function, '__name__', 'the function')} takes {wanted} arguments ({', '.join(names)}), "
            f"{count} types were given",
        )
    return tuple(names[:count])


def as_type(given: object, position: int) -> TensorType:
    """A TensorType from a type, a dtype (a scalar) or an example array."""
    if isinstance(given, TensorType):
        return given
    if isinstance(given, DType):
        return given[()]
    if isinstance(given, np.ndarray | np.generic):
        return type_of(given)
    if isinstance(given, bool | int | float):
        raise IngotTypeError(
            Code.BAD_TYPE_ARGUMENT, f"argument {position} is {given!r}; give a type such as ingot.f32[()] for a number"
        )
    raise IngotTypeError(Code.BAD_TYPE_ARGUMENT, f"argument {position} is {given!r}, which is not a tensor type")


def check_dims(types: Sequence[TensorType]) -> None:
    """One name, one dim: the same name with other bounds is a mistake, and so is a name whose value no axis tells."""
    seen: dict[str, Symbol] = {}
    for t in types:
        for dim in t.shape:
            for atom in atoms(dim) if not isinstance(dim, int) else ():
                if isinstance(atom, Symbol) and seen.setdefault(atom.name, atom) is not atom:
                    raise IngotValueError(
                        Code.DIM_CONFLICT, f"dim {atom.name!r} is declared twice with different bounds"
                    )
    told = {dim.name for t in types for dim in t.shape if isinstance(dim, Symbol)}
    for name in seen.keys() - told:
        where = ", ".join(repr(t) for t in types)
        raise IngotValueError(
            Code.UNDETERMINED_DIM, f"dim {name!r} occurs only inside expressions of {where}; no axis tells its value"
        )


def flatten(result: Any, path: str = "") -> tuple[list[tuple[str, Any]], Any]:
    """Leaves with names made of their place, and the structure with leaf numbers in their place; None is a
    structure without leaves."""
    leaves: list[tuple[str, Any]] = []

    def walk(item: Any, name: str) -> Any:
        if item is None:
            return None
        if isinstance(item, tuple | list):
            made = [walk(part, f"{name}{'.' if name else ''}{n}") for n, part in enumerate(item)]
            return made if isinstance(item, list) else tuple(made)
        if isinstance(item, Mapping):
            return {key: walk(part, f"{name}{'.' if name else ''}{key}") for key, part in item.items()}
        leaves.append((name, item))
        return len(leaves) - 1

    structure = walk(result, path)
    return leaves, structure


def rebuild(structure: Any, leaves: Sequence[Any]) -> Any:
    """The inverse of flatten."""
    if structure is None:
        return None
    if isinstance(structure, tuple | list):
        return type(structure)(rebuild(s, leaves) for s in structure)
    if isinstance(structure, dict):
        return {key: rebuild(s, leaves) for key, s in structure.items()}
    return leaves[structure]
