"""Rules of graphs (see `ir.graph`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Input, Value, input_of
from ingot.compiler.ir.interpret.shapes import symbols_of
from ingot.compiler.ir.symbolic import Variable
from ingot.compiler.ir.types import DTYPES, TensorType, TupleType, Type
from ingot.compiler.ir.verify.errors import VerifyError
from ingot.compiler.ir.verify.scalars import check_symbols

_ROLES = ("argument", "state", "constant")


def verify_graph(graph: Graph) -> None:
    """VerifyError unless the graph, its regions included, obeys the rules."""
    symbols = sorted(symbols_of(graph), key=lambda s: (s.name, str(s.lower), str(s.upper)))
    check_symbols(f"graph {graph.name}", tuple(symbols))
    _verify(graph, f"graph {graph.name}", region=False)


def _verify(graph: Graph, where: str, region: bool) -> None:
    _inputs(graph, where, region)
    known = set(graph.inputs)
    for value in graph.body:
        _value(value, known, where)
        known.add(value)
    _outputs(graph, known, where)
    _updates(graph, where, region)
    _constants(graph, where, region)


def _inputs(graph: Graph, where: str, region: bool) -> None:
    names: set[str] = set()
    for value in graph.inputs:
        if not isinstance(value.op, Input):
            raise VerifyError(f"{where}: {value!r} is listed as an input, but an op computes it")
        name, role = value.op.name, value.op.role
        if not name or name in names:
            raise VerifyError(f"{where}: {'an input has no name' if not name else f'two inputs are called {name!r}'}")
        names.add(name)
        if role not in _ROLES:
            raise VerifyError(f"{where}, input {name!r}: there is no role {role!r}")
        if region and role != "argument":
            raise VerifyError(f"{where}, input {name!r}: a region takes arguments only, not a {role}")
        if not isinstance(value.type, TensorType):
            raise VerifyError(f"{where}, input {name!r}: its type is {value.type!r}, not that of a tensor")
        _type(value.type, f"{where}, input {name!r}")


def _value(value: Value, known: set[Value], where: str) -> None:
    where = f"{where}, {describe(value)}"
    for number, arg in enumerate(value.args):
        if arg not in known:
            what = (
                f"the input {arg.op.name!r} of another graph"
                if isinstance(arg.op, Input)
                else (f"{describe(arg)}, which comes after it")
            )
            raise VerifyError(f"{where}: argument {number} is {what}")
    if not callable(getattr(value.op, "infer", None)) or not is_dataclass(value.op):
        raise VerifyError(f"{where}: {value.op!r} is no op")
    try:
        hash(value.op)
    except TypeError as error:
        raise VerifyError(f"{where}: a field of the op can be changed ({error}); use tuples") from error
    try:
        inferred = value.op.infer(*(a.type for a in value.args))  # type: ignore[union-attr]
    except (TypeError, ValueError, IndexError) as error:
        types = ", ".join(repr(a.type) for a in value.args)
        raise VerifyError(f"{where}: it does not fit arguments of types {types}: {error}") from error
    if inferred != value.type:
        raise VerifyError(f"{where}: its type is {value.type!r}, but its arguments give {inferred!r}")
    _type(value.type, where)
    for name, region in _regions(value.op):
        _verify(region, f"{where}, region {name}", region=True)


def _regions(op: Any) -> Iterator[tuple[str, Graph]]:
    for field in fields(op):
        found = getattr(op, field.name)
        for part in found if isinstance(found, tuple) else (found,):
            if isinstance(part, Graph):
                yield field.name, part


def _type(type_: Type, where: str) -> None:
    for tensor in type_.elements if isinstance(type_, TupleType) else (type_,):
        if DTYPES.get(tensor.dtype.name) != tensor.dtype:
            raise VerifyError(f"{where}: {tensor.dtype!r} is not an element type")
        for dim in tensor.shape:
            if symbolic.is_nonnegative(dim) is False:
                raise VerifyError(f"{where}: a dim of {tensor!r} is negative")
            if not isinstance(dim, int) and any(isinstance(a, Variable) for a in symbolic.atoms(dim)):
                raise VerifyError(f"{where}: a dim of {tensor!r} is a loop variable")


def _outputs(graph: Graph, known: set[Value], where: str) -> None:
    if len(graph.output_names) != len(graph.outputs):
        raise VerifyError(f"{where}: {len(graph.outputs)} outputs have {len(graph.output_names)} names")
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if graph.output_names.count(name) > 1:
            raise VerifyError(f"{where}: two outputs are called {name!r}")
        if value not in known:
            raise VerifyError(f"{where}, output {name!r}: it is the input {input_of(value).name!r} of another graph")
        if not isinstance(value.type, TensorType):
            raise VerifyError(f"{where}, output {name!r}: it has several results; select one with Get")


def _updates(graph: Graph, where: str, region: bool) -> None:
    if region and graph.updates:
        raise VerifyError(f"{where}: a region cannot update states")
    states = {input_of(v).name: v for v in graph.inputs_with("state")}
    for name, number in graph.updates.items():
        if name not in states:
            raise VerifyError(f"{where}: it updates {name!r}, which is not one of its states")
        if not 0 <= number < len(graph.outputs):
            raise VerifyError(f"{where}: the state {name!r} becomes output {number} of {len(graph.outputs)}")
        found, stated = graph.outputs[number].type, states[name].type
        if found != stated:
            raise VerifyError(f"{where}: the state {name!r} is {stated!r}, its next value is {found!r}")


def _constants(graph: Graph, where: str, region: bool) -> None:
    if region and graph.constants:
        raise VerifyError(f"{where}: a region has no constants of its own")
    inputs = {input_of(v).name: v for v in graph.inputs_with("constant")}
    for name, array in graph.constants.items():
        if name not in inputs:
            raise VerifyError(f"{where}: a value is held for {name!r}, which is not a constant input")
        type_ = inputs[name].tensor
        found = np.asarray(array)
        fits = found.ndim == type_.rank and found.dtype == type_.dtype.numpy
        if not fits or any(symbolic.equal(d, n) is False for d, n in zip(type_.shape, found.shape, strict=True)):
            raise VerifyError(
                f"{where}: the value of constant {name!r} is {found.dtype}{list(found.shape)}, its type is {type_!r}"
            )


def describe(value: Value) -> str:
    """The op, and the user's name and source for it."""
    name = getattr(value.op, "name", "") or type(value.op).__name__
    label = f" {value.name!r}" if value.name else ""
    source = f" ({value.source})" if value.source is not None else ""
    return f"op {name}{label}{source}"
