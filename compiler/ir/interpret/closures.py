"""Turns index arithmetic and scalars into Python closures over an environment.

The environment holds integers for symbols and loop variables, NumPy scalars for locals, memory for buffers.
Every scalar that a closure returns is a NumPy scalar of exactly the node's type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.compiler.ir.interpret.errors import IndexOutOfRange, InterpreterError
from ingot.compiler.ir.recursion import Call, unwind
from ingot.compiler.ir.scalar import (
    Apply,
    Bitcast,
    BoundedIndex,
    Buffer,
    Cast,
    Const,
    Function,
    IndexValue,
    Lead,
    Load,
    Read,
    Scalar,
    cast_array,
)
from ingot.compiler.ir.symbolic import Atom, Dim, FloorDiv, Maximum, Minimum, Mod, Opaque
from ingot.compiler.ir.traverse import shared_nodes
from ingot.compiler.ir.types import DType

Environment = dict[Any, Any]
Evaluate = Callable[[Environment], Any]

# Python's operators on NumPy scalars of one type mean what the ufuncs mean, and are several times faster.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip


class Closures:
    def __init__(self, where: str) -> None:
        self.where = where
        self._shared: dict[int, Evaluate] = {}  # computations of the current expression that are used again

    # --- index arithmetic ------------------------------------------------------------------------

    def dim(self, dim: Dim) -> Callable[[Environment], int]:
        if isinstance(dim, int):
            return lambda env: dim
        if isinstance(dim, Atom):
            return self._atom(dim)
        terms = [(c, [(self._atom(atom), power) for atom, power in m]) for m, c in dim.terms]
        if all(len(factors) == 1 and factors[0][1] == 1 for _, factors in terms):
            return self._linear(dim.constant, [(c, factors[0][0]) for c, factors in terms])

        def polynomial(env: Environment) -> int:
            total = dim.constant
            for coefficient, factors in terms:
                for factor, power in factors:
                    coefficient *= factor(env) ** power
                total += coefficient
            return total

        return polynomial

    def _linear(self, constant: int, terms: list[tuple[int, Evaluate]]) -> Evaluate:
        def linear(env: Environment) -> int:
            total = constant
            for coefficient, factor in terms:
                total += coefficient * factor(env)
            return total

        return linear

    def _atom(self, atom: Atom) -> Evaluate:
        match atom:
            case FloorDiv() | Mod():
                left, right = self.dim(atom.dividend), self.dim(atom.divisor)
                if isinstance(atom, FloorDiv):
                    return lambda env: left(env) // right(env)
                return lambda env: left(env) % right(env)
            case Minimum() | Maximum():
                choose = min if isinstance(atom, Minimum) else max
                parts = list(map(self.dim, atom.arguments))
                return lambda env: choose(part(env) for part in parts)
            case Opaque():
                return self._opaque(atom)
            case _:
                return self._variable(atom)

    def _variable(self, atom: Atom) -> Evaluate:
        def variable(env: Environment) -> int:
            try:
                return env[atom]
            except KeyError:
                raise InterpreterError(f"{self.where}: the variable {atom!r} is not bound here") from None

        return variable

    def _opaque(self, atom: Opaque) -> Evaluate:
        payload: Any = atom.payload
        value = self.scalar(payload)
        if isinstance(payload, BoundedIndex):
            return lambda env: int(value(env))
        lower = None if atom.lower is None else self.dim(atom.lower)
        upper = None if atom.upper is None else self.dim(atom.upper)

        def checked(env: Environment) -> int:
            found = int(value(env))
            if (lower is not None and found < lower(env)) or (upper is not None and found > upper(env)):
                raise InterpreterError(
                    f"{self.where}: a run-time index is {found}, its bounds are {atom.lower} to {atom.upper}"
                )
            return found

        return checked

    # --- memory ----------------------------------------------------------------------------------

    def memory(self, env: Environment, buffer: Buffer) -> Any:
        try:
            return env[buffer]
        except KeyError:
            raise InterpreterError(f"{self.where}: the buffer {buffer!r} does not exist here") from None

    def place(self, buffer: Buffer, index: tuple[Dim, ...]) -> Callable[[Environment], tuple[np.ndarray, int]]:
        """The elements of a buffer and the offset of one of them."""
        if len(index) != len(buffer.shape):
            raise InterpreterError(f"{self.where}: {buffer!r} is accessed with {len(index)} indices")
        positions = list(map(self.dim, index))

        def place(env: Environment) -> tuple[np.ndarray, int]:
            memory = env.get(buffer) or self.memory(env, buffer)
            offset = 0
            for position, extent in zip(positions, memory.shape, strict=True):
                found = position(env)
                if not 0 <= found < extent:
                    at = ", ".join(str(p(env)) for p in positions)
                    raise IndexOutOfRange(
                        f"{self.where}: [{at}] is outside {buffer!r}, which has the shape {memory.shape}"
                    )
                offset = offset * extent + found
            return memory.elements, offset

        return place

    # --- scalars ---------------------------------------------------------------------------------

    def scalar(self, scalar: Scalar) -> Evaluate:
        """What is shared inside the expression is computed once, when it is first wanted."""
        outer, self._shared = self._shared, {}
        parts: list[object] = []
        for node in shared_nodes(scalar):
            key, evaluate = object(), unwind(self._node(node))
            self._shared[id(node)] = _remembered(key, evaluate)
            parts.append(key)
        evaluate = unwind(self._scalar(scalar))
        self._shared = outer
        return _forgetting(parts, evaluate) if parts else evaluate

    def _scalar(self, scalar: Scalar) -> Call[Evaluate]:
        return self._shared.get(id(scalar)) or (yield self._node(scalar))

    def _node(self, scalar: Scalar) -> Call[Evaluate]:
        match scalar:
            case Const(value, dtype):
                constant = np.asarray(value, dtype.numpy)[()]
                return lambda env: constant
            case Load(buffer, index):
                return self._load(buffer, index)
            case Read(local):
                return self._read(local)
            case Apply(function, args):
                parts: list[Evaluate] = []
                for arg in args:
                    parts.append((yield self._scalar(arg)))
                return self._apply(function, parts, scalar.dtype)
            case Cast(value, dtype):
                inner = yield self._scalar(value)
                return lambda env: cast_array(np.asarray(inner(env)), dtype)[()]
            case Bitcast(value, dtype):
                inner = yield self._scalar(value)
                return lambda env: np.asarray(inner(env)).view(dtype.numpy)[()]
            case IndexValue(dim, dtype):
                position, kind = self.dim(dim), dtype.numpy
                return lambda env: np.asarray(position(env)).astype(kind)[()]
            case BoundedIndex():
                return self._bounded(scalar)
            case Lead(buffer):
                return lambda env: np.int64(scalar.at(self.memory(env, buffer).elements.ctypes.data))
            case _:
                raise InterpreterError(f"{self.where}: {type(scalar).__name__} has no meaning in loops")

    def _load(self, buffer: Buffer, index: tuple[Dim, ...]) -> Evaluate:
        place = self.place(buffer, index)

        def load(env: Environment) -> Any:
            elements, offset = place(env)
            return elements[offset]

        return load

    def _read(self, local: Any) -> Evaluate:
        def read(env: Environment) -> Any:
            try:
                return env[local]
            except KeyError:
                raise InterpreterError(f"{self.where}: {local.name} is read before its let") from None

        return read

    def _apply(self, function: Function, args: list[Evaluate], dtype: DType) -> Evaluate:
        if function.name == "select":
            condition, yes, no = args
            return lambda env: yes(env) if condition(env) else no(env)
        meaning = _OPERATORS.get(function.name, function.evaluate)
        exact = _exact(dtype)
        if len(args) == 2:
            left, right = args
            return lambda env: exact(meaning(left(env), right(env)))
        if len(args) == 1:
            (only,) = args
            return lambda env: exact(meaning(only(env)))
        return lambda env: exact(meaning(*[a(env) for a in args]))

    def _bounded(self, scalar: BoundedIndex) -> Evaluate:
        value, extent = self.scalar(scalar.value), self.dim(scalar.extent)

        def bounded(env: Environment) -> np.int64:
            found, most = int(value(env)), extent(env)
            position = found + most if found < 0 else found
            if not 0 <= position < most:
                raise IndexOutOfRange(f"{self.where}: {scalar.complaint(found, most)}")
            return np.int64(position)

        return bounded


def _remembered(key: object, evaluate: Evaluate) -> Evaluate:
    def remembered(env: Environment) -> Any:
        if key not in env:
            env[key] = evaluate(env)
        return env[key]

    return remembered


def _forgetting(keys: list[object], evaluate: Evaluate) -> Evaluate:
    def forgetting(env: Environment) -> Any:
        for key in keys:
            env.pop(key, None)
        return evaluate(env)

    return forgetting


def _exact(dtype: DType) -> Callable[[Any], Any]:
    """A NumPy scalar of exactly this type: functions may give wider ones, or arrays of rank 0."""
    kind, numpy_dtype = dtype.numpy.type, dtype.numpy

    def exact(value: Any) -> Any:
        return value if type(value) is kind else np.asarray(value).astype(numpy_dtype)[()]

    return exact
