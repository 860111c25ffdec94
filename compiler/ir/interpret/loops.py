"""Runs functions of statements, one element at a time, as a machine with one thread would.

Each function is first turned into Python closures. Arrays of parameters are changed in place; memory that a
function allocates starts as NaNs (integers: all bits set), arena buffers share one block of bytes by their
offsets, and every access outside its buffer raises IndexOutOfRange.
Iterations of parallel loops can be run in another order, so that a dependence between them shows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.interpret.closures import Closures, Environment
from ingot.compiler.ir.interpret.errors import IndexOutOfRange, InterpreterError, RunTimeFailure
from ingot.compiler.ir.interpret.shapes import bind_shapes, known_dims, named_dims
from ingot.compiler.ir.interpret.tensor import arguments
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim, Symbol, Variable
from ingot.compiler.ir.traverse import function_symbols, functions_of
from ingot.compiler.ir.types import DType
from ingot.runtime.abi import Failure

Order = Literal["forward", "reverse", "shuffled"]
Action = Callable[[Environment], None]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a buffer names while the program runs: its elements in a row, and its shape."""

    elements: np.ndarray
    shape: tuple[int, ...]


def run_function(
    function: loops.Function,
    arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray],
    dims: Mapping[Symbol, int] | Mapping[str, int] | None = None,
    *,
    parallel_order: Order = "forward",
    seed: int = 0,
) -> tuple[np.ndarray, ...]:
    """Run the function on arrays for its parameters, given by name or in order; they are changed in place and
    returned. Symbols get their values from the shapes of the arrays and from `dims`."""
    where = f"function {function.name}"
    every = functions_of(function)
    symbols = function_symbols(function)
    values = named_dims(dims, symbols, where)
    given = arguments(where, function.parameters, arrays)
    pairs = list(zip(function.parameters, given, strict=True))
    bind_shapes(((f"{where}, parameter {b.name!r}", b.type, a) for b, a in pairs), values)
    known_dims(values, symbols, where)
    for buffer, array in pairs:
        if not array.flags.c_contiguous:
            raise InterpreterError(f"{where}, parameter {buffer.name!r}: the array is not contiguous")
    machine = _Machine(_arena(every, values), parallel_order, random.Random(seed), {})
    memory = {b: Memory(a.reshape(-1), a.shape) for b, a in pairs}
    with np.errstate(all="ignore"):
        machine.compiled(function)({**values, **memory})
    return tuple(given)


def _arena(functions: Sequence[loops.Function], dims: Mapping[Symbol, int]) -> np.ndarray:
    """Bytes for every arena buffer: the greatest end of any, over the values of the variables."""
    size = 0
    for function in functions:
        for statement in loops.walk(function.body):
            if isinstance(statement, loops.Alloc) and statement.offset is not None:
                end = symbolic.bounds(symbolic.substitute(statement.offset + statement.buffer.type.bytes, dims))
                if end[1] is None:
                    raise InterpreterError(f"the end of the arena buffer {statement.buffer!r} has no bound")
                size = max(size, end[1])
    return poison(np.empty(size, np.uint8))


def poison(array: np.ndarray) -> np.ndarray:
    """Fill with what nobody should read: NaN, or all bits set (bool: true)."""
    if array.dtype == np.bool_:
        array[...] = True
    else:
        array.view(np.uint8)[...] = 0xFF
    return array


@dataclass
class _Machine:
    """What all functions of a run share."""

    arena: np.ndarray
    order: Order
    random: random.Random
    done: dict[loops.Function, Action]

    def compiled(self, function: loops.Function) -> Action:
        if function not in self.done:
            self.done[function] = _Translator(self, f"function {function.name}").block(function.body)
        return self.done[function]

    def iterations(self, extent: int, kind: loops.LoopKind) -> Sequence[int]:
        if kind != "parallel" or self.order == "forward":
            return range(extent)
        if self.order == "reverse":
            return range(extent - 1, -1, -1)
        return self.random.sample(range(extent), extent)


class _Translator:
    """Statements to closures."""

    def __init__(self, machine: _Machine, where: str) -> None:
        self.machine, self.where = machine, where
        self.closures = Closures(where)

    def block(self, statements: Sequence[loops.Statement]) -> Action:
        actions = [self.statement(s) for s in statements]

        def run(env: Environment) -> None:
            for action in actions:
                action(env)

        return actions[0] if len(actions) == 1 else run

    def statement(self, statement: loops.Statement) -> Action:
        match statement:
            case loops.For():
                return self._for(statement)
            case loops.Let(local, value):
                return self._let(local, value)
            case loops.Store(buffer, index, value):
                return self._store(buffer, index, value)
            case loops.If(condition, then, otherwise):
                return self._if(condition, then, otherwise)
            case loops.While():
                return self._while(statement)
            case loops.Alloc(buffer, offset):
                return self._alloc(buffer, offset)
            case loops.View(buffer, base, offset):
                return self._view(buffer, base, offset)
            case loops.Call():
                return self._call(statement)
            case loops.Fail():
                return self._fail(statement)
            case loops.Prefetch():
                return lambda env: None

    def _for(self, loop: loops.For) -> Action:
        variable, extent, body = loop.variable, self.closures.dim(loop.extent), self.block(loop.body)
        machine, kind, width, where = self.machine, loop.kind, loop.width, self.where
        check = self._range_check(variable)

        def run(env: Environment) -> None:
            count = extent(env)
            if kind == "vector" and count > width:
                raise InterpreterError(f"{where}: a vector loop of width {width} runs {count} times")
            if count > 0:
                check(env, count)
            for position in machine.iterations(max(count, 0), kind):
                env[variable] = position
                body(env)

        return run

    def _range_check(self, variable: Dim) -> Callable[[Environment, int], None]:
        """Simplification trusted the bounds of the variable: the loop must keep them."""
        if not isinstance(variable, Variable):
            return lambda env, count: None
        lower = None if variable.lower is None else self.closures.dim(variable.lower)
        upper = None if variable.upper is None else self.closures.dim(variable.upper)

        def check(env: Environment, count: int) -> None:
            if (lower is not None and lower(env) > 0) or (upper is not None and upper(env) < count - 1):
                raise InterpreterError(
                    f"{self.where}: the loop over {variable.name} runs from 0 to {count - 1}, outside the "
                    f"bounds {variable.lower} to {variable.upper} of its variable"
                )

        return check

    def _let(self, local: Any, value: Any) -> Action:
        evaluate = self.closures.scalar(value)
        if local.dtype != value.dtype:
            raise InterpreterError(f"{self.where}: {local.name} is {local.dtype}, its value is {value.dtype}")

        def run(env: Environment) -> None:
            env[local] = evaluate(env)

        return run

    def _store(self, buffer: Buffer, index: tuple[Dim, ...], value: Any) -> Action:
        place, evaluate = self.closures.place(buffer, index), self.closures.scalar(value)
        if buffer.dtype != value.dtype:
            raise InterpreterError(f"{self.where}: a {value.dtype} is stored to {buffer!r}")

        def run(env: Environment) -> None:
            result = evaluate(env)
            elements, offset = place(env)
            elements[offset] = result

        return run

    def _if(self, condition: Any, then: tuple, otherwise: tuple) -> Action:
        test, yes, no = self.closures.scalar(condition), self.block(then), self.block(otherwise)

        def run(env: Environment) -> None:
            (yes if test(env) else no)(env)

        return run

    def _while(self, loop: loops.While) -> Action:
        test, body = self.closures.scalar(loop.condition), self.block(loop.body)
        limit = None if loop.limit is None else self.closures.dim(loop.limit)

        def run(env: Environment) -> None:
            most = math.inf if limit is None else limit(env)
            count = 0
            while test(env):
                if count >= most:
                    raise RunTimeFailure(Failure.LOOP_BOUND_EXCEEDED, self.where, (most,))
                body(env)
                count += 1

        return run

    def _alloc(self, buffer: Buffer, offset: Dim | None) -> Action:
        shape = [self.closures.dim(d) for d in buffer.shape]
        start = None if offset is None else self.closures.dim(offset)
        dtype, arena = buffer.dtype, self.machine.arena

        def run(env: Environment) -> None:
            sizes = tuple(d(env) for d in shape)
            count = math.prod(sizes)
            if count < 0 or any(s < 0 for s in sizes):
                raise InterpreterError(f"{self.where}: {buffer!r} is allocated with the shape {sizes}")
            if start is None:
                elements = np.empty(count, dtype.numpy)
            else:
                elements = _piece(arena, start(env), count, dtype, f"{self.where}: {buffer!r}")
            env[buffer] = Memory(poison(elements), sizes)

        return run

    def _view(self, buffer: Buffer, base: Buffer, offset: Dim) -> Action:
        shape, start = [self.closures.dim(d) for d in buffer.shape], self.closures.dim(offset)

        def run(env: Environment) -> None:
            memory = self.closures.memory(env, base)
            sizes = tuple(d(env) for d in shape)
            place = start(env) * base.dtype.itemsize
            raw = memory.elements.view(np.uint8)
            elements = _piece(raw, place, math.prod(sizes), buffer.dtype, f"{self.where}: view {buffer!r}")
            env[buffer] = Memory(elements, sizes)

        return run

    def _call(self, call: loops.Call) -> Action:
        function, given = call.function, call.arguments
        body = self.machine.compiled(function)
        parameters = function.parameters
        passed = [(symbol, self.closures.dim(value)) for symbol, value in call.sizes]
        if len(parameters) != len(given):
            raise InterpreterError(f"{self.where}: {function.name} takes {len(parameters)} buffers, not {len(given)}")
        shapes = [[self.closures.dim(d) for d in p.shape] for p in parameters]

        def run(env: Environment) -> None:
            inner: Environment = {key: value for key, value in env.items() if isinstance(key, Symbol)}
            inner.update({symbol: value(env) for symbol, value in passed})
            for parameter, argument, shape in zip(parameters, given, shapes, strict=True):
                memory = self.closures.memory(env, argument)
                sizes = tuple(d(inner) for d in shape)
                if sizes != memory.shape or parameter.dtype != argument.dtype:
                    raise InterpreterError(
                        f"{self.where}: {argument!r} with shape {memory.shape} is passed to {function.name} "
                        f"as {parameter!r}"
                    )
                inner[parameter] = memory
            body(inner)

        return run

    def _fail(self, statement: loops.Fail) -> Action:
        test, details = (
            self.closures.scalar(statement.condition),
            list(map(self.closures.scalar, statement.details)),
        )

        def run(env: Environment) -> None:
            if test(env):
                raise RunTimeFailure(statement.code, statement.site, tuple(d(env).item() for d in details))

        return run


def _piece(raw: np.ndarray, start: int, count: int, dtype: DType, what: str) -> np.ndarray:
    """`count` elements from byte `start` on."""
    end = start + count * dtype.itemsize
    if start < 0 or end > raw.size:
        raise IndexOutOfRange(f"{what} reaches from byte {start} to {end} of {raw.size}")
    return raw[start:end].view(dtype.numpy)
