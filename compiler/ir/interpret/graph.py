"""Runs a graph by evaluating each op's NumPy meaning: the specification of what a program computes.

Symbolic dims get their values from the shapes of the inputs. An op with symbolic fields is specialised first,
so that `Op.evaluate` only ever sees integers; a region is specialised as a whole and run by `run_region`.
Invariant: every result has exactly the element type and shape that the graph states, else InterpreterError.
Non-goal: speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Graph, Input, Value, input_of
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.interpret.shapes import Environment, bind_shapes, is_exactly, match_shape, specialise, symbols_of
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import TensorType, TupleType
from ingot.runtime.storage import copy_into

Observer = Callable[[Value, Any], None]


def run_graph(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    *,
    observe: Observer | None = None,
    into: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs of the graph. `inputs` are the arguments and states by name; constants are the graph's own,
    unless given too. `observe` sees every value with its array (or tuple of arrays), inputs first. `into` is memory
    for the outputs, which are then these arrays."""
    known = set(graph.input_names)
    surplus = [name for name in inputs if name not in known]
    if surplus:
        raise InterpreterError(
            f"graph {graph.name} has no input called {', '.join(map(repr, surplus))}; "
            f"it has {', '.join(graph.input_names) or 'none'}"
        )
    arrays = []
    for name in graph.input_names:
        found = inputs.get(name, graph.constants.get(name))
        if found is None:
            raise InterpreterError(f"graph {graph.name}: no value given for input {name!r}")
        arrays.append(np.asarray(found))
    return run_region(graph, arrays, observe=observe, into=into)


def run_region(
    graph: Graph,
    args: Sequence[np.ndarray],
    env: Environment | None = None,
    *,
    observe: Observer | None = None,
    into: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs of a graph for its inputs in order. `env` holds symbols that no input shape determines."""
    if len(args) != len(graph.inputs):
        raise InterpreterError(f"graph {graph.name} takes {len(graph.inputs)} inputs, {len(args)} were given")
    dims: dict[Symbol, int] = dict(env or {})
    if not all(is_exactly(value.tensor, array) for value, array in zip(graph.inputs, args, strict=True)):
        bind_shapes(_described(graph, args), dims)
    arrays: dict[Value, Any] = {}
    for value, array in zip(graph.inputs, args, strict=True):
        arrays[value] = array
        if observe is not None:
            observe(value, array)
    body = graph.body
    rooms = dict(zip(graph.outputs, into, strict=True)) if into is not None else {}
    remaining = _use_counts(graph, body)
    with np.errstate(all="ignore"):
        for value in body:
            arrays[value] = _evaluate(graph, value, [arrays.get(a) for a in value.args], dims, rooms.get(value))
            if observe is not None:
                observe(value, arrays[value])
            for arg in value.args:
                remaining[arg] -= 1
                if not remaining[arg]:
                    del arrays[arg]
    if into is None:
        return _own_results([arrays[v] for v in graph.outputs], args)
    for output, room in zip(graph.outputs, into, strict=True):
        if arrays[output] is not room:  # an input, or an output twice
            copy_into(room, arrays[output])
    return tuple(into)


def _own_results(results: Sequence[np.ndarray], args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results in C order, each in memory of its own: what a value shares with an input or another is copied."""
    made: list[np.ndarray] = []
    for result in results:
        shared = any(np.may_share_memory(result, other) for other in (*args, *made))
        made.append(np.array(result, order="C") if shared or not result.flags.c_contiguous else result)
    return tuple(made)


def _described(graph: Graph, args: Sequence[np.ndarray]) -> list[tuple[str, TensorType, np.ndarray]]:
    pairs = zip(graph.inputs, args, strict=True)
    return [(f"graph {graph.name}, input {input_of(v).name!r}", v.tensor, np.asarray(a)) for v, a in pairs]


def _use_counts(graph: Graph, body: Sequence[Value]) -> dict[Value, int]:
    """How often each value is read, outputs and inputs counted once more, so that they are never dropped."""
    counts = dict.fromkeys((*graph.inputs, *graph.outputs), 1)
    for value in body:
        for arg in value.args:
            counts[arg] = counts.get(arg, 0) + 1
    return counts


def _evaluate(
    graph: Graph, value: Value, args: Sequence[Any], dims: MutableMapping[Symbol, int], room: np.ndarray | None
) -> Any:
    if any(a is None for a in args):
        missing = next(v for v, a in zip(value.args, args, strict=True) if a is None)
        name = missing.op.name if isinstance(missing.op, Input) else repr(missing)
        raise InterpreterError(f"{_where(graph, value)}: reads {name}, which is not an input of the graph")
    op: Any = specialise(value.op, dims)
    try:
        if room is not None:
            op.evaluate_into(room, *args)
            return room
        result = op.evaluate(*args)
    except InterpreterError:
        raise
    except Exception as error:
        # symbols may be left where an op or a region makes extents of its own, from data; elsewhere not
        names = ", ".join(sorted(s.name for s in symbols_of(op)))
        reason = f"no input shape determines {names}" if names else f"{type(error).__name__}: {error}"
        raise InterpreterError(f"{_where(graph, value)}: {reason}") from error
    return _checked(graph, value, result, dims)


def _checked(graph: Graph, value: Value, result: Any, dims: MutableMapping[Symbol, int]) -> Any:
    """The result as arrays (NumPy gives scalars for rank 0); an error when it is not of the stated type."""
    if not isinstance(value.type, TupleType):
        array = np.asarray(result)
        if not is_exactly(value.type, array):
            match_shape(_where(graph, value), value.type, array, dims)
        return array
    if not isinstance(result, (tuple, list)) or len(result) != len(value.type.elements):
        found = f"{len(result)} results" if isinstance(result, (tuple, list)) else type(result).__name__
        raise InterpreterError(f"{_where(graph, value)}: gave {found}, its type is {value.type!r}")
    arrays = tuple(np.asarray(r) for r in result)
    for number, (type_, array) in enumerate(zip(value.type.elements, arrays, strict=True)):
        match_shape(f"{_where(graph, value)}, result {number}", type_, array, dims)
    return arrays


def _where(graph: Graph, value: Value) -> str:
    name = getattr(value.op, "name", type(value.op).__name__)
    label = f" {value.name!r}" if value.name else ""
    source = f" ({value.source})" if value.source is not None else ""
    return f"graph {graph.name}, op {name}{label}{source}"
