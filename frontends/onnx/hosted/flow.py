"""Loops and sequences that the compiled form cannot express: rounds are run one by one, each a compiled program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.frontends.onnx.elements import element
from ingot.frontends.onnx.host import host_op
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.values import number_of


@host_op("Loop")
def loop(call: Any, count: np.ndarray | None, condition: np.ndarray | None, *initial: Any) -> Any:
    body = call.get("body")
    rounds = None if count is None else int(number_of(np.asarray(count), "the number of rounds of Loop"))
    go = condition is None or bool(number_of(np.asarray(condition), "the condition of Loop"))
    states = list(initial)
    collected: list[list[np.ndarray]] = [[] for _ in body.output[1 + len(states) :]]
    number = 0
    while go and (rounds is None or number < rounds):
        results = call.run(body, [np.asarray(number, np.int64), np.asarray(go), *states])
        go = bool(number_of(np.asarray(results[0]), "the condition of Loop"))
        states = results[1 : 1 + len(states)]
        for row, value in zip(collected, results[1 + len(states) :], strict=True):
            row.append(value)
        number += 1
    stacked = (np.stack(row) if row else _empty(output) for row, output in zip(collected, body.output[1 + len(states) :], strict=True))
    return (*states, *stacked)


def _empty(output: Any) -> np.ndarray:
    """No rows of the declared type."""
    declared = output.type.tensor_type
    shape = [max(d.dim_value, 0) for d in declared.shape.dim]
    return np.zeros((0, *shape), _numpy(declared.elem_type))


def _numpy(code: int) -> np.dtype:
    found = element(code)
    return found.numpy if found is not None else np.dtype(np.float32)


@host_op("SequenceMap")
def sequence_map(call: Any, first: list[Any], *more: Any) -> Any:
    body = call.get("body")
    others = [m if isinstance(m, list) else [m] * len(first) for m in more]
    if any(len(parts) != len(first) for parts in others):
        raise ProblemError(Kind.BAD_VALUE, f"SequenceMap of sequences of {len(first)} and {', '.join(str(len(p)) for p in others)} parts")
    rows = [call.run(body, row) for row in zip(first, *others, strict=True)]
    return tuple([row[n] for row in rows] for n in range(len(body.output)))


@host_op("Identity", "Optional")
def identity(call: Any, x: Any = None) -> Any:
    return [x]


@host_op("OptionalGetElement")
def optional_get_element(call: Any, x: Any) -> Any:
    if x is None:
        raise ProblemError(Kind.BAD_VALUE, "OptionalGetElement on an optional without element")
    return [x]


@host_op("OptionalHasElement")
def optional_has_element(call: Any, x: Any = None) -> np.ndarray:
    return np.asarray(x is not None)


@host_op("SequenceConstruct")
def sequence_construct(call: Any, *parts: Any) -> list[Any]:
    return [list(parts)]


def _place(position: np.ndarray, count: int, last: int) -> int:
    place = int(number_of(np.asarray(position), "a position"))
    if not -count <= place <= last:
        raise ProblemError(Kind.BAD_VALUE, f"position {place} is outside a sequence of {count}")
    return place + count if place < 0 else place


@host_op("SequenceAt")
def sequence_at(call: Any, sequence: list[Any], position: np.ndarray) -> Any:
    return sequence[_place(position, len(sequence), len(sequence) - 1)]


@host_op("SequenceInsert")
def sequence_insert(call: Any, sequence: list[Any], item: Any, position: np.ndarray | None = None) -> Any:
    made = list(sequence)
    made.insert(len(made) if position is None else _place(position, len(made), len(made)), item)
    return [made]


@host_op("SequenceErase")
def sequence_erase(call: Any, sequence: list[Any], position: np.ndarray | None = None) -> Any:
    made = list(sequence)
    del made[_place(np.asarray(-1) if position is None else position, len(made), len(made) - 1)]
    return [made]


@host_op("SequenceLength")
def sequence_length(call: Any, sequence: list[Any]) -> np.ndarray:
    return np.asarray(len(sequence), np.int64)


@host_op("ConcatFromSequence")
def concat_from_sequence(call: Any, sequence: list[Any]) -> np.ndarray:
    axis = call.get("axis")
    if not sequence:
        raise ProblemError(Kind.BAD_VALUE, "ConcatFromSequence of a sequence without parts")
    return np.stack(sequence, axis) if call.get("new_axis", 0) else np.concatenate(sequence, axis)


@host_op("SplitToSequence")
def split_to_sequence(call: Any, x: np.ndarray, sizes: np.ndarray | None = None) -> Any:
    axis = call.get("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"SplitToSequence: axis {axis} is outside an array of {x.ndim} axes")
    if sizes is None:
        parts = np.split(x, x.shape[axis], axis) if x.shape[axis] else []
        return [parts if call.get("keepdims", 1) else [np.squeeze(p, axis) for p in parts]]
    each = int(sizes.reshape(())) if sizes.ndim == 0 else None
    if each is not None and each <= 0:
        raise ProblemError(Kind.BAD_VALUE, f"SplitToSequence: the size of a part is {each}")
    if each is None and (sizes.min(initial=0) < 0 or sizes.sum() != x.shape[axis]):
        raise ProblemError(Kind.BAD_VALUE, f"SplitToSequence: {sizes.tolist()} are no parts of {x.shape[axis]}")
    if not (x.shape[axis] if each is not None else sizes.size):
        return [[]]  # where NumPy makes one part of nothing
    places = np.cumsum(sizes)[:-1] if each is None else np.arange(each, x.shape[axis], each)
    return [np.split(x, places, axis)]


@host_op("Shape")
def shape(call: Any, x: np.ndarray) -> np.ndarray:
    return np.array(np.shape(x)[slice(call.get("start", 0), call.get("end", None))], np.int64)


@host_op("Size")
def size(call: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.size(x), np.int64)
