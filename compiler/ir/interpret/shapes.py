"""Values of symbolic dims: bound from shapes of arrays, checked against types, put into ops and graphs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Value
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.symbolic import Expr, Symbol
from ingot.compiler.ir.types import DTYPES, TensorType, dtype_of

Environment = Mapping[Symbol, int]


def bind_shapes(given: Iterable[tuple[str, TensorType, np.ndarray]], dims: MutableMapping[Symbol, int]) -> None:
    """Give values to the symbols that stand alone in a type, then check every array against its type. Each
    entry begins with what the array is, for errors."""
    given = list(given)
    for where, type_, array in given:
        _check_layout(where, type_, array)
        for axis, (dim, size) in enumerate(zip(type_.shape, array.shape, strict=True)):
            if isinstance(dim, Symbol):
                _bind(f"{where}, dim {axis}", dim, size, dims)
    for where, type_, array in given:
        match_shape(where, type_, array, dims)


def named_dims(
    given: Mapping[Symbol, int] | Mapping[str, int] | None, symbols: Iterable[Symbol], where: str
) -> dict[Symbol, int]:
    """Values given by symbol or by name, by symbol; each is checked against the bounds of its symbol."""
    by_name = {s.name: s for s in symbols}
    dims: dict[Symbol, int] = {}
    for key, size in (given or {}).items():
        symbol = by_name.get(key) if isinstance(key, str) else key
        if symbol is not None:
            _bind(f"{where}, dim {symbol.name}", symbol, size, dims)
    return dims


def known_dims(dims: Environment, symbols: Iterable[Symbol], where: str) -> None:
    """InterpreterError unless every symbol has a value."""
    unknown = [s.name for s in symbols if s not in dims]
    if unknown:
        raise InterpreterError(f"{where}: no shape determines {', '.join(unknown)}; give it in `dims`")


def _check_layout(where: str, type_: TensorType, array: np.ndarray) -> None:
    if array.dtype != type_.dtype.numpy:
        known = array.dtype.newbyteorder("=") in {t.numpy for t in DTYPES.values()}
        found = dtype_of(array).name if known else str(array.dtype)
        raise InterpreterError(f"{where}: has element type {found}, not that of {type_!r}; use .astype")
    if array.ndim != type_.rank:
        raise InterpreterError(f"{where}: has shape {array.shape}, of rank {array.ndim}; its type is {type_!r}")


def _bind(where: str, symbol: Symbol, size: int, dims: MutableMapping[Symbol, int]) -> None:
    if symbol in dims:
        if dims[symbol] != size:
            raise InterpreterError(f"{where}: is {size}, but {symbol.name} is already {dims[symbol]}")
        return
    low, high = symbolic.bounds(symbol)
    if (low is not None and size < low) or (high is not None and size > high):
        allowed = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
        raise InterpreterError(f"{where}: {symbol.name} is {size}; its bounds allow {allowed}")
    dims[symbol] = size


def is_exactly(type_: TensorType, array: np.ndarray) -> bool:
    """Whether an array has a static type: nothing is left to bind or to check."""
    return array.shape == type_.shape and array.dtype == type_.dtype.numpy


def match_shape(where: str, type_: TensorType, array: np.ndarray, dims: MutableMapping[Symbol, int]) -> None:
    """Check element type and shape; a symbol first met in a result (a data-dependent extent) is bound."""
    _check_layout(where, type_, array)
    for axis, (dim, size) in enumerate(zip(type_.shape, array.shape, strict=True)):
        if isinstance(dim, Symbol):
            _bind(f"{where}, dim {axis}", dim, size, dims)
            continue
        expected = symbolic.substitute(dim, dims)
        if isinstance(expected, int) and expected != size:
            stated = f"{dim} = {expected}" if isinstance(dim, Expr) else str(dim)
            raise InterpreterError(f"{where}: has shape {array.shape}, but dim {axis} of {type_!r} is {stated}")


# --- specialisation ----------------------------------------------------------------------------

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
    if not env or symbols_of(item).isdisjoint(env):
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
        made[value] = replace(value, op=specialise(value.op, env), args=args, type=specialise(value.type, env))
    return replace(graph, inputs=tuple(made[v] for v in graph.inputs), outputs=tuple(made[v] for v in graph.outputs))
