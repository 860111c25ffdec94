"""If, Loop and Scan.

A branch or body is traced once, as a region of the compiled program. What a region cannot express (branches of
different types, loops that grow, sequences) is decided when the value it depends on is known: the chosen branch is
put in place, a loop of a known number of rounds is unrolled, and any other loop is run round by round by the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from ingot.compiler.errors import IngotError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Value as GraphValue
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import NegativeDimension, boolean, i64
from ingot.compiler.ops.base import OpTypeError, normalize_axis
from ingot.compiler.ops.elementwise import Equal
from ingot.compiler.ops.movement import Dimension, stack
from ingot.compiler.ops.structure import Broadcast, Constant, Reshape
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace
from ingot.frontends.onnx.call import Call, Inline, NeedsValue, NotTraceable
from ingot.frontends.onnx.convert.counting import rounds_compared
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.scope import Scope
from ingot.frontends.onnx.values import Value

UNROLLED = 256  # a loop of more rounds than this is not unrolled
LARGEST_LIMIT = 1 << 31  # a loop that may take more rounds has no limit

# what tracing a region may raise when the region does not fit the compiled form
REFUSALS = (NotTraceable, OpTypeError, NegativeDimension, IngotError, ProblemError)


def traced_region(op: Call, graph: GraphProto, trace: Trace, inputs: Sequence[Value]) -> list[Value]:
    trace.source = op.trace.source
    return op.importer.region(graph, op.scope, trace, op.opsets, inputs)


def tensors_in(op: Call, values: Sequence[Value], trace: Trace) -> list[Tensor]:
    """Values as tensors of a region."""
    inside = Call(op.importer, Scope(trace, op.scope), op.node, op.opsets, op.version, [])
    return [inside.tensor(v) for v in values]


# --- if ---------------------------------------------------------------------------------------------


@onnx_op("If", raw=True)
def if_(op: Call, condition: Value) -> Any:
    try:
        chosen = bool(op.known(0).reshape(-1)[0])
    except NeedsValue:
        return _both_branches(op, op.tensor(condition))
    return Inline(op.graph("then_branch" if chosen else "else_branch"))


def _both_branches(op: Call, condition: Tensor) -> Any:
    scalar = condition.reshape(()) if condition.rank else condition

    def branch(name: str) -> Any:
        def run(marker: Tensor) -> list[Tensor]:
            values = traced_region(op, op.graph(name), marker.builder, [])
            return tensors_in(op, values, marker.builder)

        return run

    try:
        return tuple(functions.cond(scalar, branch("then_branch"), branch("else_branch"), scalar))
    except REFUSALS as reason:
        refusal = reason
    sizes = _compared_sizes(condition)
    if sizes is not None and op.importer.are_equal(*sizes):
        return Inline(op.graph("then_branch"))
    raise NeedsValue(f"the branches of If differ or cannot be compiled together ({_first_line(refusal)})", [0])


def _compared_sizes(condition: Tensor) -> tuple[Dim, Dim] | None:
    """The two dims whose equality a condition is, when it is that of dims."""
    value = _moved_from(condition.value)
    if not isinstance(value.op, Equal):
        return None
    left, right = (_size_in(_moved_from(a)) for a in value.args)
    return (left, right) if left is not None and right is not None else None


def _moved_from(value: GraphValue) -> GraphValue:
    while isinstance(value.op, Reshape | Broadcast):
        value = value.args[0]
    return value


def _size_in(value: GraphValue) -> Dim | None:
    """The dim or the integer that a value of one element is."""
    if isinstance(value.op, Dimension) and value.op.dtype.is_integer:
        return value.op.dim
    if isinstance(value.op, Constant) and value.op.dtype.is_integer and value.op.array.size == 1:
        return int(value.op.array.reshape(()))
    return None


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


# --- loop -------------------------------------------------------------------------------------------


@onnx_op("Loop", raw=True)
def loop(op: Call, count: Value, condition: Value, *initial: Value) -> Any:
    body = op.graph("body")
    carried = len(initial)
    op.require(len(body.input) == carried + 2, Kind.BAD_GRAPH, f"its body takes {len(body.input)} inputs, not {carried + 2}")
    always = condition is None or _is_true(condition)
    rounds = _rounds(op, count)
    compared = rounds_compared(op, body, initial) if always else None
    if compared is not None:
        rounds = compared if rounds is None else symbolic.minimum(rounds, compared)
    collects = len(body.output) > carried + 1
    if rounds is not None and always:
        try:
            return _counted(op, body, rounds, initial, compared is not None)
        except REFUSALS as reason:
            refusal = reason
        if not collects:
            try:
                return _while(op, body, count, condition, initial)
            except REFUSALS as reason:
                refusal = reason
        if isinstance(rounds, int) and rounds <= UNROLLED:
            return _unrolled(op, body, rounds, initial)
        raise NotTraceable(f"Loop cannot be compiled as it is ({_first_line(refusal)})")
    if not collects:  # any number of rounds will do
        try:
            return _while(op, body, count, condition, initial)
        except REFUSALS as reason:
            refusal = reason
            unknown = [n for n in (0, 1) if op.has_input(n) and not isinstance(op.values[n], np.ndarray)]
            if unknown:
                raise NeedsValue(f"Loop cannot be compiled as it is ({_first_line(refusal)})", unknown) from None
    if rounds is None and op.has_input(0):
        raise NeedsValue("the number of rounds of Loop decides the shape of its results", [0])
    if not always and not isinstance(condition, np.ndarray):
        raise NeedsValue("the condition of Loop decides the shape of its results", [1])
    if isinstance(rounds, int) and (rounds == 0 or not always):
        return _unrolled(op, body, 0, initial)
    raise NotTraceable("the number of rounds of Loop, and with it the shape of its results, depends on data")


def _is_true(condition: Value) -> bool:
    return isinstance(condition, np.ndarray) and bool(condition.reshape(-1)[0])


def _rounds(op: Call, count: Value) -> Dim | None:
    """The number of rounds, when it is known now."""
    if count is None:
        return None
    try:
        told = op.dims(0)
    except NeedsValue:
        return None
    op.require(len(told) == 1, Kind.BAD_SHAPE, f"the number of rounds is {list(told)}; it is one number")
    rounds = told[0]
    return max(0, rounds) if isinstance(rounds, int) else rounds


def _shaped(scalar: Any, graph: GraphProto, number: int) -> Any:
    """The round's number or condition as the body declares it: a scalar, or a vector of one."""
    declared = graph.input[number].type.tensor_type
    if declared.HasField("shape") and len(declared.shape.dim) == 1:
        return scalar.reshape(1)
    return scalar


def _counted(op: Call, body: GraphProto, rounds: Dim, initial: Sequence[Value], compared: bool) -> Any:
    """A fixed number of rounds: a scan without inputs. The condition must stay true, unless the rounds were counted by
    it."""
    states = _States(op, body, initial)
    start = op.constant(np.asarray(0, np.int64))

    def step(carry: Any, _: Any) -> Any:
        number, *values = carry
        trace = number.builder
        true = np.asarray(True)
        given = [_shaped(number, body, 0), _shaped(true, body, 1), *states.inside(values)]
        results = traced_region(op, body, trace, given)
        if not compared and not _is_true(results[0]):
            raise NotTraceable("the condition of Loop depends on data")
        new, rows = results[1 : 1 + len(initial)], results[1 + len(initial) :]
        return [number + 1, *tensors_in(op, states.changing(new), trace)], tensors_in(op, rows, trace)

    final, collected = functions.scan(step, [start, *states.first], None, rounds)
    return (*states.inside(final[1:]), *collected)


def _while(op: Call, body: GraphProto, count: Value, condition: Value, initial: Sequence[Value]) -> Any:
    states = _States(op, body, initial)
    limit = None if count is None else op.tensor(count).cast(i64).reshape(())
    go = op.constant(np.asarray(True)) if condition is None else op.tensor(condition).reshape(())

    def test(number: Tensor, going: Tensor, *_: Tensor) -> Any:
        return going if limit is None else going & (number < limit)

    def step(number: Tensor, going: Tensor, *values: Tensor) -> Any:
        trace = number.builder
        given = [_shaped(number, body, 0), _shaped(going, body, 1), *states.inside(values)]
        results = traced_region(op, body, trace, given)
        new_go, *outputs = tensors_in(op, [results[0], *states.changing(results[1:])], trace)
        return (number + 1, new_go.cast(boolean).reshape(()), *outputs)

    start = op.constant(np.asarray(0, np.int64))
    rounds = _rounds(op, count)
    if isinstance(rounds, int) and rounds > LARGEST_LIMIT:
        rounds = None  # the greatest number there is: no limit that a gradient could keep memory for
    final = functions.while_loop(test, step, (start, go, *states.first), rounds)
    return tuple(states.inside(final[2:]))


class _States:
    """The states of a loop. Those that every round hands on as they are (exporters carry weights that way) are not
    carried: the body reads them where they are."""

    def __init__(self, op: Call, body: GraphProto, initial: Sequence[Value]) -> None:
        same = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity" and not node.domain}
        self.op, self.initial = op, list(initial)
        self.is_fixed: list[bool] = []
        for place in range(len(initial)):
            name = body.output[1 + place].name
            while name in same:
                name = same[name]
            self.is_fixed.append(name == body.input[2 + place].name)

    @property
    def first(self) -> list[Tensor]:
        """The initial values of the carried ones."""
        return [self.op.tensor(v) for v in self.changing(self.initial)]

    def changing(self, values: Sequence[Value]) -> list[Value]:
        return [v for v, fixed in zip(values, self.is_fixed, strict=True) if not fixed]

    def inside(self, carried: Sequence[Any]) -> list[Value]:
        """All states, of which some are carried."""
        given = iter(carried)
        return [v if fixed else next(given) for v, fixed in zip(self.initial, self.is_fixed, strict=True)]


def _unrolled(op: Call, body: GraphProto, rounds: int, initial: Sequence[Value]) -> Any:
    """Every round in the place of the loop; values may change their types from round to round."""
    states = list(initial)
    collected: list[list[Value]] = [[] for _ in body.output[len(initial) + 1 :]]
    for number in range(rounds):
        op.importer.unroll(1 + len(body.node))
        given = [_shaped(np.asarray(number, np.int64), body, 0), _shaped(np.asarray(True), body, 1), *states]
        results = traced_region(op, body, op.trace, given)
        if not isinstance(results[0], np.ndarray):
            raise NotTraceable("the condition of Loop depends on data")
        states = results[1 : 1 + len(states)]
        for row, value in zip(collected, results[1 + len(states) :], strict=True):
            row.append(value)
        if not _is_true(results[0]):
            break
    if collected and not collected[0]:
        return (*states, *_empty_rows(op, body, initial))
    return (*states, *(stack([op.tensor(v) for v in row], 0) for row in collected))


def _empty_rows(op: Call, body: GraphProto, initial: Sequence[Value]) -> list[Any]:
    """Collected results of a loop without rounds: their types are those that one round would give."""
    scratch = Trace(op.trace)
    given = [_shaped(np.asarray(0, np.int64), body, 0), _shaped(np.asarray(True), body, 1), *initial]
    values = tensors_in(op, traced_region(op, body, scratch, given)[1 + len(initial) :], scratch)
    return [op.constant(np.zeros((), v.dtype.numpy)).broadcast_to((0, *v.shape)) for v in values]


# --- scan -------------------------------------------------------------------------------------------


def _streams(op: Call, count: int) -> int:
    """How many inputs are scanned."""
    streams = op.get("num_scan_inputs")
    op.require(1 <= streams <= count, Kind.BAD_ATTRIBUTE, f"num_scan_inputs is {streams}, of {count} inputs")
    return streams


def _each(op: Call, name: str, count: int) -> list[int]:
    """An attribute with one number for each of so many inputs or outputs."""
    found = op.get(name, [0] * count)
    op.require(len(found) == count, Kind.BAD_ATTRIBUTE, f"{name} has {len(found)} numbers for {count} tensors")
    return found


def _directions(op: Call, name: str, count: int) -> list[bool]:
    """Whether each of so many inputs or outputs is scanned backwards."""
    found = _each(op, name, count)
    wrong = next((direction for direction in found if direction not in (0, 1)), None)
    op.require(wrong is None, Kind.BAD_ATTRIBUTE, f"{name} has {wrong}; 0 is forwards and 1 backwards")
    return [direction == 1 for direction in found]


@onnx_op("Scan", since=9)
def scan(op: Call, *inputs: Tensor) -> Any:
    body = op.graph("body")
    streams = _streams(op, len(inputs))
    states, xs = list(inputs[: len(inputs) - streams]), list(inputs[len(inputs) - streams :])
    in_axes = _each(op, "scan_input_axes", streams)
    backwards = _directions(op, "scan_input_directions", streams)
    rows = []
    for x, axis, reverse in zip(xs, in_axes, backwards, strict=True):
        row = _to_front(x, normalize_axis(axis, x.rank, op.name))
        rows.append(row[::-1] if reverse else row)
    final, collected = _scanned(op, body, states, rows)
    count = len(collected)
    out_axes = _each(op, "scan_output_axes", count)
    out_backwards = _directions(op, "scan_output_directions", count)
    results = []
    for y, axis, reverse in zip(collected, out_axes, out_backwards, strict=True):
        results.append(_from_front(y[::-1] if reverse else y, normalize_axis(axis, y.rank, op.name)))
    return (*final, *results)


def _scanned(op: Call, body: GraphProto, states: list[Tensor], rows: list[Tensor]) -> tuple[list[Any], list[Any]]:
    def step(carry: Any, x: Any) -> Any:
        parts = [*carry, *x]
        trace = parts[0].builder
        outputs = tensors_in(op, traced_region(op, body, trace, parts), trace)
        return list(outputs[: len(states)]), list(outputs[len(states) :])

    final, collected = functions.scan(step, states, rows)
    return list(final), list(collected)


@onnx_op("Scan", since=8)
def scan_batched(op: Call, lengths: Tensor | None, *inputs: Tensor) -> Any:
    """Version 8 has a batch axis in front of everything: a scan over the batch around a scan over time."""
    op.require(lengths is None, Kind.UNSUPPORTED, "sequence_lens of Scan in opset 8")
    body = op.graph("body")
    streams = _streams(op, len(inputs))
    count = len(inputs) - streams
    backwards = _directions(op, "directions", streams)
    for place, x in enumerate(inputs):
        least = 1 if place < count else 2
        op.require(x.rank >= least, Kind.BAD_SHAPE, f"input {place + 1} is {x.type!r}; it has {least} axes or more")

    def one(carry: Any, parts: Any) -> Any:
        rows = [x[::-1] if r else x for x, r in zip(parts[count:], backwards, strict=True)]
        final, collected = _scanned(op, body, list(parts[:count]), rows)
        return carry, [*final, *collected]

    _, results = functions.scan(one, [], list(inputs))
    return tuple(results)


def _to_front(x: Tensor, axis: int) -> Any:
    return x if axis == 0 else x.transpose((axis, *(n for n in range(x.rank) if n != axis)))


def _from_front(x: Tensor, axis: int) -> Any:
    order = list(range(1, x.rank))
    order.insert(axis, 0)
    return x.transpose(tuple(order))
