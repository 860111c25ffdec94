"""Split off what depends on constants only: it is computed once, when the program is made.

The result is two graphs: a prologue from the given constants to folded ones, and the rest, which takes the
folded ones as constants. Nothing is evaluated here, so weights never enter the IR, and a cached program can
recompute its constants for other weights by running the prologue again.

A value is folded when its result is not larger than `budget` elements or than the constants it is computed from,
when it prepares a weight for a kernel, or when only folded values read it. What only repeats a smaller value is
left to its readers: a bias stretched over a batch would be as many bytes to read as the result it is added to. So is
what they read through for nothing, because its order in memory is the point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingot.compiler.ir.graph import Builder, Graph, Input, Value, input_of, users_of
from ingot.compiler.ir.interpret.graph import symbols_of
from ingot.compiler.ir.types import TupleType
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.elementwise import Cast
from ingot.compiler.ops.reduction import Sum
from ingot.compiler.ops.structure import Broadcast, Constant


@dataclass(frozen=True)
class Split:
    prologue: Graph | None  # None: nothing to compute
    main: Graph
    reasons: tuple[str, ...]


def split_constants(graph: Graph, budget: int) -> Split:
    """`main` reads folded values as constants named `folded<n>`; their values are the prologue's outputs."""
    reasons: list[str] = []
    known = _known_values(graph, budget, reasons)
    users = users_of(graph)
    outputs = set(graph.outputs)
    frontier = [
        v
        for v in graph.body
        if v in known and _worth_storing(v) and (v in outputs or any(u not in known for u in users[v]))
    ]
    if not frontier:
        return Split(None, graph, tuple(reasons))
    needed = _inputs_below(frontier)
    constants = [v for v in graph.inputs if v in needed]
    names = tuple(f"folded{n}" for n in range(len(frontier)))
    prologue = Graph(f"{graph.name}.prologue", tuple(constants), tuple(frontier), names)
    builder = Builder()
    made: dict[Value, Value] = {}
    for value in graph.inputs:
        given = input_of(value)
        if given.role != "constant":
            made[value] = builder.input(given.name, value.tensor, given.role, value.source)
    for name, value in zip(names, frontier, strict=True):
        made[value] = builder.input(name, value.tensor, "constant", value.source)
    _rebuild(graph, builder, made)
    main = replace(
        graph,
        inputs=builder.inputs,
        outputs=tuple(made[v] for v in graph.outputs),
        constants={n: graph.constants[n] for n in graph.constants if n in {input_of(v).name for v in builder.inputs}},
    )
    return Split(replace(prologue, constants=graph.constants), main, tuple(reasons))


def _rebuild(graph: Graph, builder: Builder, made: dict[Value, Value]) -> None:
    """Emit what is still needed, in order; constants are declared when first read."""
    needed: set[Value] = set()
    stack = list(graph.outputs)
    while stack:
        value = stack.pop()
        if value in needed or value in made:
            continue
        needed.add(value)
        stack.extend(value.args)
    for value in graph.inputs:
        if value in needed and value not in made:
            made[value] = builder.input(input_of(value).name, value.tensor, "constant", value.source)
    for value in graph.body:
        if value in needed:
            made[value] = builder.again(value, tuple([made[a] for a in value.args]))


def _known_values(graph: Graph, budget: int, reasons: list[str]) -> set[Value]:
    """What can be computed beforehand, without what would be too large to keep."""
    origin: dict[Value, int] = {}  # the size of the largest given constant that a value is computed from
    for value in graph.inputs:
        if input_of(value).role == "constant":
            origin[value] = _elements(value) if value.tensor.is_static else 0
    for value in graph.body:
        op = value.op
        assert isinstance(op, Op)
        if isinstance(value.type, TupleType) or any(a not in origin for a in value.args):
            continue
        if value.tensor.is_static and _is_static(op):
            origin[value] = max((origin[a] for a in value.args), default=0)
    known = set(origin)
    users, outputs = users_of(graph), set(graph.outputs)
    repeating = _repeating(graph, known)
    for value in reversed(graph.body):
        op = value.op
        assert isinstance(op, Op)
        over = _elements(value) > max(budget, origin[value]) if value in known else False
        free = (op.read_through or _widened_for_products(value, users[value])) and value not in outputs
        if value not in known or op.prepares or not (over or free or value in repeating):
            continue
        if value in outputs or any(user not in known for user in users[value]):
            known.discard(value)
            why = (
                f"{_elements(value)} elements is over the budget of {budget}"
                if over
                else "it only repeats a smaller one"
                if value in repeating
                else "its readers read through it"
            )
            reasons.append(f"{op.name} {value.type!r} is not folded: {why}")
    return known


def _widened_for_products(value: Value, users: Sequence[Value]) -> bool:
    """Integers that products read: as they are they take less memory, and the products can tell how narrow they are."""
    readers = [user.op for user in users]
    products = all(isinstance(op, Sum) or (isinstance(op, Op) and op.rereads) for op in readers)
    if not isinstance(value.op, Cast) or not products or all(isinstance(op, Sum) for op in readers):
        return False
    given, made = value.args[0].tensor.dtype, value.tensor.dtype
    return given.is_integer and made.is_integer and given.bits < made.bits


def _repeating(graph: Graph, known: set[Value]) -> set[Value]:
    """Broadcasts that stretch something, and their elements in another order."""
    found: set[Value] = set()
    for value in graph.body:
        op = value.op
        assert isinstance(op, Op)
        if value not in known or not op.movement or len(value.args) != 1:
            continue
        (arg,) = value.args
        if arg in found or (isinstance(op, Broadcast) and _elements(value) > _elements(arg)):
            found.add(value)
    return found


def _elements(value: Value) -> int:
    size = value.tensor.size
    assert isinstance(size, int)
    return size


def _is_static(op: Op) -> bool:
    return not op.regions and not symbols_of(op)


def _worth_storing(value: Value) -> bool:
    """Literals, and splats of them, are cheaper in the code than in memory."""
    op = value.op
    assert isinstance(op, Op)
    if isinstance(op, Constant):
        return False
    return bool(value.args) and not all(isinstance(a.op, Constant) and a.tensor.size == 1 for a in value.args)


def _inputs_below(values: list[Value]) -> set[Value]:
    found: set[Value] = set()
    seen: set[Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.op, Input):
            found.add(value)
        stack.extend(value.args)
    return found
