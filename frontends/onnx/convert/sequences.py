"""Sequences and optionals. A sequence is a list of values at import, so its ops leave nothing to be computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ops.base import normalize_axis
from ingot.compiler.ops.movement import concat, split, stack
from ingot.frontends.onnx.call import Call, NotTraceable
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.values import Held, Opaque, Value


def items_of(op: Call, value: Value) -> list[Value]:
    if isinstance(value, Held) and isinstance(value.value, list):
        return list(value.value)
    if isinstance(value, Opaque):
        raise NotTraceable(f"{op.name} on a sequence of strings")
    raise ProblemError(Kind.ELEMENT_TYPE, f"{op.name} takes a sequence, not {value!r}")


def _place(op: Call, number: int, count: int, last: int) -> int:
    place = op.integer(op.known(number), "the position")
    op.require(-count <= place <= last, Kind.BAD_VALUE, f"position {place} is outside a sequence of {count}")
    return place + count if place < 0 else place


@onnx_op("SequenceEmpty", raw=True)
def sequence_empty(op: Call) -> Any:
    return Held([])


@onnx_op("SequenceConstruct", raw=True)
def sequence_construct(op: Call, *parts: Value) -> Any:
    if any(isinstance(p, Opaque) for p in parts):
        raise NotTraceable("a sequence of strings")
    return Held(list(parts))


@onnx_op("SequenceAt", raw=True)
def sequence_at(op: Call, sequence: Value, position: Value) -> Any:
    items = items_of(op, sequence)
    return items[_place(op, 1, len(items), len(items) - 1)]


@onnx_op("SequenceInsert", raw=True)
def sequence_insert(op: Call, sequence: Value, item: Value, position: Value = None) -> Any:
    items = items_of(op, sequence)
    if isinstance(item, Opaque):
        raise NotTraceable("a sequence of strings")
    items.insert(len(items) if position is None else _place(op, 2, len(items), len(items)), item)
    return Held(items)


@onnx_op("SequenceErase", raw=True)
def sequence_erase(op: Call, sequence: Value, position: Value = None) -> Any:
    items = items_of(op, sequence)
    op.require(items, Kind.BAD_VALUE, "the sequence is empty")
    del items[-1 if position is None else _place(op, 1, len(items), len(items) - 1)]
    return Held(items)


@onnx_op("SequenceLength", raw=True)
def sequence_length(op: Call, sequence: Value) -> Any:
    return np.asarray(len(items_of(op, sequence)), np.int64)


@onnx_op("ConcatFromSequence", raw=True)
def concat_from_sequence(op: Call, sequence: Value) -> Any:
    parts = [op.tensor(v) for v in items_of(op, sequence)]
    op.require(parts, Kind.BAD_VALUE, "the sequence is empty")
    if op.get("new_axis", 0):
        return stack(parts, normalize_axis(op.get("axis"), parts[0].rank + 1, op.name))
    return concat(parts, normalize_axis(op.get("axis"), parts[0].rank, op.name))


@onnx_op("SplitToSequence", raw=True)
def split_to_sequence(op: Call, x: Value, sizes: Value = None) -> Any:
    """A vector of sizes, a number for equal ones (the last may be smaller), or one element each."""
    tensor = op.tensor(x)
    axis = normalize_axis(op.get("axis", 0), tensor.rank, op.name)
    extent = tensor.shape[axis]
    if sizes is not None and op.known(1).ndim == 1:
        op.bounded(op.known(1).size, "the number of parts")
        return Held(list(split(tensor, op.dims(1), axis)))
    each = 1 if sizes is None else op.integer(op.known(1), "the size of a part")
    op.require(each > 0, Kind.BAD_VALUE, f"the size of a part is {each}")
    if not isinstance(extent, int):
        raise ProblemError(Kind.UNSUPPORTED, f"SplitToSequence along the symbolic axis {extent}")
    op.bounded(-(-extent // each), "the number of parts")
    parts = split(tensor, [min(each, extent - k) for k in range(0, extent, each)], axis)
    if sizes is None and not op.get("keepdims", 1):
        shape = tuple(d for n, d in enumerate(tensor.shape) if n != axis)
        parts = tuple(p.reshape(shape) for p in parts)
    return Held(list(parts))


@onnx_op("SequenceMap", raw=True)
def sequence_map(op: Call, first: Value, *more: Value) -> Any:
    """The body on every element of the first sequence; further inputs are sequences as long, or the same for all."""
    items = items_of(op, first)
    body = op.graph("body")
    others = [items_of(op, v) if isinstance(v, Held) else [v] * len(items) for v in more]
    unequal = [len(parts) for parts in others if len(parts) != len(items)]
    op.require(not unequal, Kind.BAD_VALUE, f"sequences of {len(items)} and {unequal[:1]} parts")
    rows = [
        op.importer.region(body, op.scope, op.trace, op.opsets, row) for row in zip(items, *others, strict=True)
    ]
    return tuple(Held([row[n] for row in rows]) for n in range(len(body.output)))


# --- optionals --------------------------------------------------------------------------------------


@onnx_op("Optional", raw=True)
def optional(op: Call, value: Value = None) -> Any:
    return Held(None) if value is None else value


@onnx_op("OptionalHasElement", raw=True)
def optional_has_element(op: Call, value: Value = None) -> Any:
    empty = value is None or (isinstance(value, Held) and value.value is None)
    return np.asarray(not empty)


@onnx_op("OptionalGetElement", raw=True)
def optional_get_element(op: Call, value: Value) -> Any:
    if isinstance(value, Held) and value.value is None:
        raise ProblemError(Kind.BAD_VALUE, "OptionalGetElement on an optional without element")
    return value
