"""Looks over the shoulder of every program that runs: does it stay in its memory, depend on nothing but its inputs, and
compute what its graph means?

`watching()` changes how compiled programs are run, wherever they are called from, the stages of an ONNX model too. Each
call has its memory between guards (guarded.py), happens twice with other scratch memory to begin with, is repeated by
the interpreter of loops, which checks every access against its own buffer, and by the meaning of the graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from ingot.compiler.errors import IngotError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, results_of
from ingot.compiler.ir.interpret.errors import IndexOutOfRange, InterpreterError, RunTimeFailure
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.interpret.loops import run_function
from ingot.compiler.pipeline import Compiled, compile_graph
from ingot.frontends.onnx import staged
from ingot.runtime.errors import ExecutionError
from ingot.runtime.executable import Executable
from tests.fuzz.checks import differences
from tests.fuzz.compare import interpretable
from tests.fuzz.guarded import Guards, TouchedOutside, guarding

LARGEST_COMPARED = 1 << 12  # elements of any value of a program that is compared with its meaning
LARGEST_INTERPRETED = 1 << 15  # elements of all values of a program whose loops are interpreted
LONGEST_INTERPRETED = 2.0  # seconds of either interpreter
OTHER_SCRATCH = 0x3C
SPREADING = frozenset({"convolution", "convolution_transpose"})  # of what is not finite, to more places than by definition


class Misbehaved(Exception):
    """A program did what it must not; `kind` is a word for it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Watch:
    guards: Guards = field(default_factory=Guards)
    made: dict[int, tuple[Graph, Compiled]] = field(default_factory=dict)  # by the id of a program, which this keeps alive

    def compile(self, graph: Graph, *rest: Any) -> Compiled:
        compiled = compile_graph(graph, *rest)
        self.made[id(compiled.program)] = graph, compiled
        return compiled

    def call(self, run: Any, made: Executable, contexts: Any, args: tuple[Any, ...], kwargs: Any, out: Any) -> Any:
        if kwargs or out is not None or made.program.manifest.aliases or id(made.program) not in self.made:
            return run(made, contexts, args, kwargs, out)
        given = tuple(self.guards.copy(a) if type(a) is np.ndarray and not _is_one_number(a) else a for a in args)
        failure: ExecutionError | None = None
        results: Any = None
        try:
            results = run(made, contexts, given, kwargs, out)
        except ExecutionError as error:
            failure = error
        finally:
            self._check_memory()
        if failure is None:
            for context in contexts:
                if context.arena is not None:
                    context.arena[...] = OTHER_SCRATCH
            again = run(made, contexts, given, kwargs, out)
            if any(a.tobytes() != b.tobytes() for a, b in zip(_listed(results), _listed(again), strict=True)):
                raise Misbehaved("unset", "the results depend on what was in scratch memory before")
        graph, compiled = self.made[id(made.program)]
        _interpret_loops(compiled, given, failure)
        if failure is not None:
            raise failure
        with _at_most(LONGEST_INTERPRETED):
            wrong = difference(graph, given, _listed(results))
            if wrong:
                raise Misbehaved("wrong", wrong)
        return results

    def _check_memory(self) -> None:
        try:
            self.guards.check()
        except TouchedOutside as error:
            raise Misbehaved("outside", str(error)) from None


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    run = Executable._run

    def watched(self: Executable, contexts: Any, args: Any, kwargs: Any, out: Any) -> Any:
        return watch.call(run, self, contexts, args, kwargs, out)

    with guarding(watch.guards), patch.object(staged, "compile_graph", watch.compile), patch.object(Executable, "_run", watched):
        yield


def _listed(results: Any) -> tuple[np.ndarray, ...]:
    return () if results is None else results if isinstance(results, tuple) else (results,)


class _TooLong(BaseException):
    """Interpreting would take longer than it is worth."""


def _interpret_loops(compiled: Compiled, args: Sequence[Any], failure: ExecutionError | None) -> None:
    """The program once more, by the interpreter, which raises where an index leaves its buffer."""
    if compiled.assembly is None or not all(isinstance(a, np.ndarray) for a in args):
        return
    program, entry = compiled.program, compiled.assembly.entry
    sizes = [t.size for v in compiled.graph.body for t in results_of(v.type)]
    if sum(s for s in sizes if isinstance(s, int)) + sum(a.size for a in args) > LARGEST_INTERPRETED:
        return
    arrays = [np.array(a) for a in args] + [np.array(program.constants[s.name]) for s in program.manifest.constants]
    if any(a.dtype != p.type.dtype.numpy for a, p in zip(arrays, entry.parameters, strict=False)):
        return  # a call converts
    dims = {d: n for a, p in zip(arrays, entry.parameters, strict=False) for d, n in zip(p.shape, a.shape, strict=False)}
    with _at_most(LONGEST_INTERPRETED):
        try:
            outputs = entry.parameters[len(arrays) :]
            shapes = [[symbolic.evaluate(d, dims) for d in p.shape] for p in outputs]
            if min((e for shape in shapes for e in shape), default=0) < 0:
                return  # the conditions on the dims do not hold, which the program has said
            results = [np.empty(shape, p.type.dtype.numpy) for shape, p in zip(shapes, outputs, strict=True)]
            run_function(entry, [*arrays, *results])
        except RunTimeFailure as error:
            if failure is None:
                raise Misbehaved("unlike", f"the interpreter of loops fails, the program does not: {error}") from None
        except InterpreterError as error:
            if isinstance(error, IndexOutOfRange) and failure is not None:
                return  # the program has said so too
            raise Misbehaved("outside", f"{type(error).__name__}: {error}") from None
        else:
            if failure is not None:
                raise Misbehaved("unlike", f"the program fails, the interpreter of loops does not: {failure}")


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """The block, or as much of it as this processor time is enough for."""

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    except _TooLong:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _is_long(op: Any) -> bool:
    """Whether an op has a field, such as a window, of more places than NumPy looks at soon."""
    fields = [getattr(op, f.name) for f in dataclasses.fields(op)]
    counts = [f for f in fields if isinstance(f, tuple) and all(isinstance(n, int) for n in f)]
    return any(math.prod(max(n, 1) for n in count) > LARGEST_COMPARED for count in counts)


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def difference(graph: Graph, args: Sequence[Any], results: Sequence[np.ndarray]) -> str:
    """What the results have that the meaning of the graph has not; nothing where it would take long."""
    sizes = [t.size for v in graph.body for t in results_of(v.type)]
    if any(not isinstance(size, int) or size > LARGEST_COMPARED for size in sizes) or any(v.op.regions for v in graph.body):
        return ""
    if any(_is_long(v.op) for v in graph.body):
        return ""
    given = dict(zip((v.name for v in graph.inputs_with("argument")), map(np.asarray, args), strict=True))
    if any(v.tensor.dtype.numpy != given[v.name].dtype for v in graph.inputs_with("argument")):
        return ""  # a call converts
    given |= graph.constants
    if any(v.op.name in SPREADING for v in graph.body) and not all(map(_is_finite, given.values())):
        return ""
    try:
        expected = interpretable(graph, given, run_graph)
    except IngotError:
        return ""
    if expected is None:
        return ""
    wrong = differences(graph, given, results, expected)
    return "; ".join(f"{graph.output_names[number]}: {text}" for number, text in wrong)


def _is_one_number(array: np.ndarray) -> bool:
    """Whether an array repeats one element: it may be far larger than memory, and is for the program to refuse."""
    return array.size > 1 and not any(array.strides)
