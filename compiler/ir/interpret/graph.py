"""Runs a graph by evaluating each op's NumPy meaning: the specification of what a program computes.

Symbolic dims get their values from the shapes of the inputs. An op with symbolic fields is specialised first,
so that `Op.evaluate` only ever sees integers; a region is specialised as a whole and run by `run_region`.
Invariant: every result has exactly the element type and shape that the graph states, else InterpreterError.
Non-goal: speed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Input, Value, input_of, results_of
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.symbolic import Dim, Expr, Symbol
from ingot.compiler.ir.types import DTYPES, TensorType, TupleType, Type, dtype_of

Environment = Mapping[Symbol, int]
Observer = Callable[[Value, Any], None]


def run_graph(
    graph: Graph, inputs: Mapping[str, np.ndarray], *, observe: Observer | None = None
) -> tuple[np.ndarray, ...]:
    """The outputs of the graph. `inputs` are the arguments and states by name; constants are the graph's own,
    unless given too. `observe` sees every value with its array (or tuple of arrays), inputs first."""
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
    return run_region(graph, arrays, observe=observe)


def run_region(
    graph: Graph,
    args: Sequence[np.ndarray],
    env: Environment | None = None,
    *,
    observe: Observer | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs of a graph for its inputs in order. `env` holds symbols that no input shape determines."""
    if len(args) != len(graph.inputs):
        raise InterpreterError(f"graph {graph.name} takes {len(graph.inputs)} inputs, {len(args)} were given")
    dims: dict[Symbol, int] = dict(env or {})
    bind_shapes(graph, args, dims)
    arrays: dict[Value, Any] = {}
    for value, array in zip(graph.inputs, args, strict=True):
        arrays[value] = array
        if observe is not None:
            observe(value, array)
    body = graph.body
    remaining = _use_counts(graph, body)
    with np.errstate(all="ignore"):
        for value in body:
            arrays[value] = _evaluate(graph, value, [arrays.get(a) for a in value.args], dims)
            if observe is not None:
                observe(value, arrays[value])
            for arg in value.args:
                remaining[arg] -= 1
                if not remaining[arg]:
                    del arrays[arg]
    return tuple(np.array(arrays[v], order="C") for v in graph.outputs)


def _use_counts(graph: Graph, body: Sequence[Value]) -> dict[Value, int]:
    """How often each value is read, outputs and inputs counted once more, so that they are never dropped."""
    counts = dict.fromkeys((*graph.inputs, *graph.outputs), 1)
    for value in body:
        for arg in value.args:
            counts[arg] = counts.get(arg, 0) + 1
    return counts


def _evaluate(graph: Graph, value: Value, args: Sequence[Any], dims: MutableMapping[Symbol, int]) -> Any:
    if any(a is None for a in args):
        missing = next(v for v, a in zip(value.args, args, strict=True) if a is None)
        name = missing.op.name if isinstance(missing.op, Input) else repr(missing)
        raise InterpreterError(f"{_where(graph, value)}: reads {name}, which is not an input of the graph")
    op: Any = specialise(value.op, dims)
    unknown = symbols_of(op)
    if unknown:
        names = ", ".join(sorted(s.name for s in unknown))
        raise InterpreterError(f"{_where(graph, value)}: no input shape determines {names}")
    try:
        result = op.evaluate(*args)
    except InterpreterError:
        raise
    except Exception as error:
        raise InterpreterError(f"{_where(graph, value)}: {type(error).__name__}: {error}") from error
    return _checked(graph, value, result, dims)


def _checked(graph: Graph, value: Value, result: Any, dims: MutableMapping[Symbol, int]) -> Any:
    """The result as arrays (NumPy gives scalars for rank 0); an error when it is not of the stated type."""
    if not isinstance(value.type, TupleType):
        array = np.asarray(result)
        _match(_where(graph, value), value.type, array, dims)
        return array
    if not isinstance(result, (tuple, list)) or len(result) != len(value.type.elements):
        found = f"{len(result)} results" if isinstance(result, (tuple, list)) else type(result).__name__
        raise InterpreterError(f"{_where(graph, value)}: gave {found}, its type is {value.type!r}")
    arrays = tuple(np.asarray(r) for r in result)
    for number, (type_, array) in enumerate(zip(value.type.elements, arrays, strict=True)):
        _match(f"{_where(graph, value)}, result {number}", type_, array, dims)
    return arrays


def _where(graph: Graph, value: Value) -> str:
    name = getattr(value.op, "name", type(value.op).__name__)
    label = f" {value.name!r}" if value.name else ""
    source = f" ({value.source})" if value.source is not None else ""
    return f"graph {graph.name}, op {name}{label}{source}"


# --- shapes ---------------------------------------------------------------------------------------


def bind_shapes(graph: Graph, args: Sequence[np.ndarray], dims: MutableMapping[Symbol, int]) -> None:
    """Give values to the symbols of the input types, then check every input against its type."""
    for value, array in zip(graph.inputs, args, strict=True):
        where = f"graph {graph.name}, input {input_of(value).name!r}"
        _check_layout(where, value.tensor, array)
        for axis, (dim, size) in enumerate(zip(value.shape, array.shape, strict=True)):
            if isinstance(dim, Symbol):
                _bind(f"{where}, dim {axis}", dim, size, dims)
    for value, array in zip(graph.inputs, args, strict=True):
        _match(f"graph {graph.name}, input {input_of(value).name!r}", value.tensor, array, dims)


def _check_layout(where: str, type_: TensorType, array: np.ndarray) -> None:
    if array.dtype != type_.dtype.numpy:
        known = array.dtype.newbyteorder("=") in {t.numpy for t in DTYPES.values()}
        found = dtype_of(array).name if known else str(array.dtype)
        raise InterpreterError(f"{where}: has element type {found}, not that of {type_!r}; use .astype")
    if array.ndim != type_.rank:
        raise InterpreterError(
            f"{where}: has shape {array.shape}, of rank {array.ndim}; its type is {type_!r}"
        )


def _bind(where: str, symbol: Symbol, size: int, dims: MutableMapping[Symbol, int]) -> None:
    if symbol in dims:
        if dims[symbol] != size:
            raise InterpreterError(f"{where}: is {size}, but {symbol.name} is already {dims[symbol]}")
        return
    low, high = symbolic.bounds(symbol)
    if (low is not None and size < low) or (high is not None and size > high):
        allowed = (
            f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
        )
        raise InterpreterError(f"{where}: {symbol.name} is {size}; its bounds allow {allowed}")
    dims[symbol] = size


def _match(where: str, type_: TensorType, array: np.ndarray, dims: MutableMapping[Symbol, int]) -> None:
    """Check element type and shape; a symbol first met in a result (a data-dependent extent) is bound."""
    _check_layout(where, type_, array)
    for axis, (dim, size) in enumerate(zip(type_.shape, array.shape, strict=True)):
        if isinstance(dim, Symbol):
            _bind(f"{where}, dim {axis}", dim, size, dims)
            continue
        expected = symbolic.substitute(dim, dims)
        if isinstance(expected, int) and expected != size:
            stated = f"{dim} = {expected}" if isinstance(dim, Expr) else str(dim)
            raise InterpreterError(
                f"{where}: has shape {array.shape}, but dim {axis} of {type_!r} is {stated}"
            )


# --- specialisation -------------------------------------------------------------------------------

_graph_symbols: weakref.WeakKeyDictionary[Graph, frozenset[Symbol]] = weakref.WeakKeyDictionary()


def symbols_of(item: Any) -> frozenset[Symbol]:
    """The symbols in a dim, type, op (its fields) or graph, or in nested tuples of these."""
    if isinstance(item, Expr):
        return frozenset(a for a in symbolic.atoms(item) if isinstance(a, Symbol))
    if isinstance(item, tuple):
        return frozenset().union(*map(symbols_of, item))
    if isinstance(item, Graph):
        if item not in _graph_symbols:
            values = (*item.inputs, *item.body)
            _graph_symbols[item] = frozenset().union(*(symbols_of(v.type) | symbols_of(v.op) for v in values))
        return _graph_symbols[item]
    if is_dataclass(item) and not isinstance(item, type):
        return frozenset().union(*(symbols_of(getattr(item, f.name)) for f in fields(item)))
    return frozenset()


def specialise(item: Any, env: Environment) -> Any:
    """The op, type, dim or graph (or tuple of these) with the symbols that `env` knows replaced by values."""
    if symbols_of(item).isdisjoint(env):
        return item
    if isinstance(item, Expr):
        return symbolic.substitute(item, env)
    if isinstance(item, tuple):
        return tuple(specialise(i, env) for i in item)
    if isinstance(item, Graph):
        return _specialise_graph(item, env)
    return replace(item, **{f.name: specialise(getattr(item, f.name), env) for f in fields(item) if f.init})


def _specialise_graph(graph: Graph, env: Environment) -> Graph:
    made: dict[Value, Value] = {}
    for value in (*graph.inputs, *graph.body):
        args = tuple(made[a] for a in value.args)
        made[value] = replace(
            value, op=specialise(value.op, env), args=args, type=specialise(value.type, env)
        )
    return replace(
        graph, inputs=tuple(made[v] for v in graph.inputs), outputs=tuple(made[v] for v in graph.outputs)
    )


def shapes_of(type_: Type, env: Environment) -> tuple[tuple[Dim, ...], ...]:
    """The shape of each result of a type, for values of its symbols."""
    return tuple(specialise(t.shape, env) for t in results_of(type_))
