"""Keep what a backward scan would compute again: products of the forward scan are stacked and read back.

The body of a backward scan repeats the forward body on the remembered values. Elementwise work is repeated, which
costs less than the memory; a product is not:

    forward body    z = x + contract(h, u)             ->  z is stacked too
    backward body   z = x + contract(h, u)  (again)    ->  z is scanned

What is stacked is the last value of the product's own size that both bodies compute and nothing else reads before,
so that the forward kernel writes it once, where it ends up.

Invariant: the saved value is the one that would have been computed, by the same operations on the same operands.
Non-goal: choosing by memory; a value saved is as large as the product's result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ingot.compiler.ir.graph import Builder, Graph, Value, declare_inputs, input_of, replay, users_of
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.control import Scan
from ingot.compiler.ops.elementwise import Elementwise
from ingot.compiler.ops.structure import Get


@dataclass
class _Saving:
    """What a forward scan stacks in addition, and what a backward scan reads of it."""

    stacked: dict[Value, list[Value]] = field(default_factory=dict)  # forward scan -> values of its body
    read: dict[Value, list[tuple[Value, Value, Value]]] = field(default_factory=dict)
    # backward scan -> (value of its body, forward scan, value of the forward body)


def save_products(graph: Graph) -> Graph:
    """Scans that run against each other, with the forward one's products saved for the other."""
    saving = _plan(graph)
    if not saving.read:
        return graph
    builder = Builder()
    made = declare_inputs(graph, builder)
    for value in graph.body:
        args = tuple(made[a] for a in value.args)
        op = value.op
        if value in saving.read:
            op, args = _reading(builder, value, args, saving, made)
        if value in saving.stacked:
            assert isinstance(op, Scan)
            op = replace(op, body=op.body.with_outputs((*op.body.outputs, *saving.stacked[value])))
        made[value] = builder.emit(op, *args, source=value.source, name=value.name)
    return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))


def _plan(graph: Graph) -> _Saving:
    saving = _Saving()
    for backward in graph.body:
        if not isinstance(backward.op, Scan) or backward in saving.stacked:
            continue
        sources = dict.fromkeys(a.args[0] for a in backward.args if isinstance(a.op, Get))
        for forward in sources:
            if isinstance(forward.op, Scan) and forward not in saving.read and _opposite(forward.op, backward.op):
                _pair(forward, backward, saving)
    return saving


def _opposite(a: Scan, b: Scan) -> bool:
    return a.length == b.length and a.reverse != b.reverse


def _pair(forward: Value, backward: Value, saving: _Saving) -> None:
    """Note the products that both bodies compute."""
    assert isinstance(forward.op, Scan)
    same = _corresponding(forward, backward)
    users = users_of(forward.op.body)
    outputs = set(forward.op.body.outputs)
    for value in forward.op.body.body:
        if value not in same or not _is_product(value):
            continue
        last = value
        while last not in outputs and len(users[last]) == 1 and _continues(users[last][0], last, same):
            (last,) = users[last]
        stacked = saving.stacked.setdefault(forward, [])
        if last not in stacked and last not in forward.op.body.outputs[forward.op.carried :]:
            stacked.append(last)
        entry = (same[last], forward, last)
        if entry not in saving.read.setdefault(backward, []):
            saving.read[backward].append(entry)


def _continues(user: Value, value: Value, same: dict[Value, Value]) -> bool:
    return user in same and isinstance(user.op, Elementwise) and user.type == value.type


def _is_product(value: Value) -> bool:
    op = value.op
    assert isinstance(op, Op)
    return not op.cheap and not op.regions and not isinstance(op, Elementwise | Get)


def _corresponding(forward: Value, backward: Value) -> dict[Value, Value]:
    """Values of the forward body -> the same in the backward body, at the same step."""
    a, b = forward.op, backward.op
    assert isinstance(a, Scan)
    assert isinstance(b, Scan)
    outside: dict[Value, Value] = {}  # outside value -> the forward body's name for its part of a step
    for inner, arg in zip(a.body.inputs[a.carried :], forward.args[a.carried :], strict=True):
        outside.setdefault(arg, inner)
    same: dict[Value, Value] = {}
    for place, (inner, arg) in enumerate(zip(b.body.inputs, backward.args, strict=True)):
        scanned = b.carried <= place < b.carried + b.scanned
        if place < b.carried:
            continue
        if scanned and isinstance(arg.op, Get) and arg.args[0] is forward and arg.op.index >= a.carried:
            same.setdefault(a.body.outputs[arg.op.index], inner)
        elif arg in outside and scanned == _is_scanned(a, outside[arg]):
            same.setdefault(outside[arg], inner)
    known = {(v.op, v.args): v for v in b.body.body}
    for value in a.body.body:
        if value not in same and all(arg in same for arg in value.args):
            twin = known.get((value.op, tuple(same[arg] for arg in value.args)))
            if twin is not None:
                same[value] = twin
    return same


def _is_scanned(scan: Scan, inner: Value) -> bool:
    place = scan.body.inputs.index(inner)
    return scan.carried <= place < scan.carried + scan.scanned


def _reading(
    builder: Builder, value: Value, args: tuple[Value, ...], saving: _Saving, made: dict[Value, Value]
) -> tuple[Scan, tuple[Value, ...]]:
    """The backward scan with saved values among its scanned ones."""
    scan = value.op
    assert isinstance(scan, Scan)
    end = scan.carried + scan.scanned
    body = Builder()
    mapping: dict[Value, Value] = {}
    stacks: list[Value] = []
    for place, inner in enumerate((*scan.body.inputs, None)):
        if place == end:
            for number, (own, forward, other) in enumerate(saving.read[value]):
                mapping[own] = body.input(f"saved{number}", own.tensor)
                results = (*forward.op.body.outputs, *saving.stacked[forward])
                position = results.index(other, forward.op.carried)
                stacks.append(builder.emit(Get(position), made[forward]))
        if inner is not None:
            mapping[inner] = body.input(input_of(inner).name, inner.tensor)
    region = replay(scan.body, body, mapping, keep_inputs=False)
    region = replace(region, inputs=body.inputs)
    op = replace(scan, body=region, scanned=scan.scanned + len(stacks))
    return op, (*args[:end], *stacks, *args[end:])
