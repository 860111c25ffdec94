"""compile, jit and the callable forms of the derivative transformations: where tracing meets the compiler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.compiler.errors import Code, IngotValueError
from ingot.compiler.garbage import no_collection
from ingot.compiler.ir.graph import Graph, Value
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.types import TensorType, type_of
from ingot.compiler.options import Options
from ingot.compiler.pipeline import Compiled, compile_graph
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.arguments import Arguments, arranged, flatten_arguments, holds_tensor, is_flat
from ingot.frontends.dsl.module import definition_of
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Traced, argument_names, rebuild
from ingot.runtime.executable import Executable


class CompiledFunction(Executable):
    """An executable that also remembers what it was compiled from, and arranges its results as the function
    returned them."""

    def __init__(
        self,
        compiled: Compiled,
        traced: Traced,
        threads: int | None = None,
        states: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(compiled.program, threads, states)
        self.compiled = compiled
        self.traced = traced
        self._arrange = _arrangement(traced.structure)

    @property
    def graph(self) -> Graph:
        """The graph as it was traced."""
        return self.traced.graph


def _arrangement(structure: Any) -> Callable[[Any], Any] | None:
    """From what a program returns to what the function returned; None when that is the same."""
    if structure == 0 or (
        isinstance(structure, tuple) and len(structure) > 1 and structure == tuple(range(len(structure)))
    ):
        return None
    return lambda result: rebuild(structure, result if isinstance(result, tuple) else (result,))


def compile(
    model: Any, *types: Any, name: str | None = None, options: Options | None = None, **choices: Any
) -> CompiledFunction:
    """Native code for a function of tensors or a Module, for arguments of these types.

    `choices` are fields of Options: threads, memory_budget, target, fuse, dump, verify, cache ...
    """
    chosen = (options or Options.from_environment()).with_(**choices)
    if hasattr(model, "compile_for"):  # a model that knows its own types, or needs more than one program
        return model.compile_for(types, chosen)
    with no_collection():
        traced = functions.trace(model, types, training=False)
        return CompiledFunction(compile_graph(traced.graph, chosen), traced, chosen.threads)


def interpret(model: Any, *args: Any) -> Any:
    """The same computation by the NumPy interpreter: what compiled results are checked against."""
    arrays = [np.asarray(a) for a in args]
    traced = functions.trace(model, [type_of(a) for a in arrays], training=False)
    names = [n for n in traced.graph.input_names if n not in traced.graph.constants]
    results = run_graph(traced.graph, dict(zip(names, arrays, strict=True)))
    return rebuild(traced.structure, results)


def check_finite(model: Any, *args: Any) -> Any:
    """The result by the NumPy interpreter; an IngotError names the first op that makes a NaN or an infinity
    from finite inputs, and the line it comes from."""
    arrays = [np.asarray(a) for a in args]
    traced = functions.trace(model, [type_of(a) for a in arrays])
    finite: dict[Value, bool] = {}

    def observe(value: Value, result: Any) -> None:
        parts = result if isinstance(result, tuple) else (result,)
        finite[value] = all(np.isfinite(p).all() for p in parts if p.dtype.kind not in "iub")
        if not finite[value] and all(finite[a] for a in value.args) and value.args:
            name = getattr(value.op, "name", "input")
            raise IngotValueError(
                Code.NOT_FINITE, f"{name} {value.type!r} gives values that are not finite", value.source
            )

    names = [n for n in traced.graph.input_names if n not in traced.graph.constants]
    results = run_graph(traced.graph, dict(zip(names, arrays, strict=True)), observe=observe)
    return rebuild(traced.structure, results)


class Jit:
    """Compiles on the first call for each arrangement and types of arguments. Inside a trace it is the plain function.

    An argument is an array or a number, a tuple, list or dict of these, or a Module (its arrays are arguments).
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> None:
        self.function = function
        self.options = dict(options or {})
        self.compiled: dict[tuple[Any, tuple[TensorType, ...]], CompiledFunction] = {}
        self.__name__ = getattr(function, "__name__", "function")
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if keywords:
            args = self._positional(args, keywords)
        if any(holds_tensor(argument) for argument in args):
            return self.function(*args)
        given = flatten_arguments(args, self._names(len(args)))
        types = tuple(type_of(array) for array in given.arrays)
        key = given.structure, types
        if key not in self.compiled:
            self.compiled[key] = self._compile(given, types)
        return self.compiled[key](*given.arrays)

    def _names(self, count: int) -> tuple[str, ...]:
        return argument_names(definition_of(self.function), count)

    def _positional(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        bound = inspect.signature(definition_of(self.function)).bind(*args, **keywords)
        if bound.kwargs:
            raise TypeError(f"{self.__name__}: {', '.join(bound.kwargs)} cannot be given by name to compiled code")
        return bound.args

    def _compile(self, given: Arguments, types: tuple[TensorType, ...]) -> CompiledFunction:
        if is_flat(given.structure):
            return compile(self.function, *types, **self.options)
        chosen = Options.from_environment().with_(**self.options)
        traced = functions.trace(arranged(self.function, given.structure), types, given.names)
        return CompiledFunction(compile_graph(traced.graph, chosen), traced, chosen.threads)


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """@ingot.jit, or @ingot.jit(threads=1)."""
    if function is None:
        return lambda f: Jit(f, options)
    return Jit(function, options)


def grad(function: Callable[..., Any], wrt: int | Sequence[int] = 0, steps: functions.Steps = "zero") -> Jit:
    """The gradient of a scalar function: call it on tensors inside a trace, on arrays to compile and run it."""
    return Jit(functions.grad(_plain(function), wrt, steps))


def value_and_grad(
    function: Callable[..., Any], wrt: int | Sequence[int] = 0, has_aux: bool = False, steps: functions.Steps = "zero"
) -> Jit:
    return Jit(functions.value_and_grad(_plain(function), wrt, has_aux, steps))


def jacobian(function: Callable[..., Any], wrt: int = 0) -> Jit:
    return Jit(functions.jacobian(_plain(function), wrt))


def hessian(function: Callable[..., Any], wrt: int = 0) -> Jit:
    return Jit(functions.hessian(_plain(function), wrt))


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(function(*primals), its derivative along tangents), on tensors or arrays."""
    count = len(primals)

    def both(*args: Any) -> Any:
        return functions.jvp(_plain(function), args[:count], args[count:])

    return Jit(both)(*primals, *tangents)


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(function(*primals), pullback), on tensors or arrays."""
    plain = _plain(function)
    if any(isinstance(p, Tensor) for p in primals):
        return functions.vjp(plain, *primals)
    count = len(primals)

    def pulled(*args: Any) -> Any:
        return functions.vjp(plain, *args[:count])[1](args[count])

    compiled = Jit(pulled)
    return Jit(plain)(*primals), lambda cotangent: compiled(*primals, cotangent)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.function if isinstance(function, Jit) else function
