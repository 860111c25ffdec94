"""The backward pass: graph to graph, symbolic.

One walk in reverse topological order; each op's `vjp` emits ops of the same language, so gradients of
gradients, fusion across forward and backward, and export of gradient graphs need nothing more. Only values
on a path from what is asked for (`wrt`) to the outputs are visited.

An op without a `vjp` of its own is differentiated through its decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot.compiler.ir.graph import Builder, Graph, Value, replay, topological
from ingot.compiler.ir.types import TensorType, TupleType
from ingot.compiler.ops.base import Node, Op
from ingot.compiler.ops.structure import Constant, Get


class NotDifferentiableError(TypeError):
    """The gradient asked for passes through an op that has none. Lists every such op at once."""

    def __init__(self, blockers: Sequence[Value]) -> None:
        self.blockers = tuple(blockers)
        lines = [f"  {getattr(v.op, 'name', v.op)}" + (f" at {v.source}" if v.source else "") for v in blockers]
        super().__init__("the gradient passes through ops that are not differentiable:\n" + "\n".join(lines))


@dataclass
class _Cotangents:
    """What has been accumulated so far: per value, one slot per result."""

    builder: Builder
    slots: dict[Value, list[Node | None]] = field(default_factory=dict)

    def add(self, value: Value, node: Node, slot: int = 0) -> None:
        count = len(value.type.elements) if isinstance(value.type, TupleType) else 1
        slots = self.slots.setdefault(value, [None] * count)
        known = slots[slot]
        slots[slot] = node if known is None else known + node

    def of(self, value: Value) -> list[Node | None]:
        return self.slots.get(value, [])


def gradients(
    builder: Builder,
    outputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    wrt: Sequence[Value],
    stop_at_wrt: bool = False,
) -> list[Value | None]:
    """d(sum of output * cotangent) / d(each of wrt); None where an output does not depend on it.

    With `stop_at_wrt`, the values of wrt are leaves: no gradient flows through one into another.
    """
    leaves = set(wrt) if stop_at_wrt else set()
    order = topological(outputs, leaves)
    needed = _between(order, wrt)
    total = _Cotangents(builder)
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None:
            total.add(output, Node(builder, cotangent))
    blockers: list[Value] = []
    for value in reversed(order):
        arriving = total.of(value)
        if value not in needed or not any(g is not None for g in arriving):
            continue
        if isinstance(value.op, Get):
            node = arriving[0]
            assert node is not None
            total.add(value.args[0], node, value.op.index)
            continue
        try:
            _propagate(builder, value, arriving, needed, total)
        except NotImplementedError:
            blockers.append(value)
    if blockers:
        raise NotDifferentiableError(blockers)
    return [_single(total.of(v)) for v in wrt]


def _single(slots: list[Node | None]) -> Value | None:
    return slots[0].value if slots and slots[0] is not None else None


def _between(order: Sequence[Value], wrt: Sequence[Value]) -> set[Value]:
    """Values that depend on something in wrt, wrt included."""
    depends = set(wrt)
    for value in order:
        if any(a in depends for a in value.args):
            depends.add(value)
    return depends


def _propagate(
    builder: Builder, value: Value, arriving: list[Node | None], needed: set[Value], total: _Cotangents
) -> None:
    """Add the cotangents of value's arguments."""
    op = value.op
    assert isinstance(op, Op)
    if not op.differentiable:
        raise NotImplementedError
    nodes = tuple(Node(builder, a) for a in value.args)
    builder.source = value.source
    several = isinstance(value.type, TupleType)
    result = Node(builder, value).wrap(value) if several else Node(builder, value)
    g = tuple(arriving) if several else arriving[0]
    kind = type(op)
    if kind.vjp is Op.vjp and kind.vjp_with is Op.vjp_with:
        if kind.decompose is Op.decompose:
            raise NotImplementedError
        for_args = _through_decomposition(builder, op, nodes, arriving)
    else:
        for_args = op.vjp_with(differentiate, g, result, *nodes)
    for arg, node in zip(value.args, for_args, strict=True):
        if node is None or arg not in needed or not arg.tensor.dtype.is_float:
            continue
        if node.type != arg.type:
            raise TypeError(f"the gradient of {op.name} for an argument of type {arg.type!r} has type {node.type!r}")
        total.add(arg, node)
    builder.source = None


def _through_decomposition(
    builder: Builder, op: Op, nodes: tuple[Node, ...], arriving: list[Node | None]
) -> tuple[Node | None, ...]:
    parts = op.decompose(*nodes)
    parts = parts if isinstance(parts, tuple) else (parts,)
    found = gradients(
        builder,
        [p.value for p in parts],
        [g.value if g is not None else None for g in arriving],
        [n.value for n in nodes],
        stop_at_wrt=True,
    )
    return tuple(Node(builder, v) if v is not None else None for v in found)


def zeros_like(builder: Builder, type: TensorType) -> Value:
    return Node(builder, builder.emit(Constant.of(0, type.dtype))).broadcast_to(type.shape).value


def _fresh(builder: Builder, number: int) -> str:
    """A name for a cotangent; a graph that is itself a gradient has cotangents among its inputs already."""
    taken = {v.name for v in builder.inputs}
    name = f"cotangent{number}"
    while name in taken:
        name = f"cotangent_{name}"
    return name


def differentiate(graph: Graph, wrt: Sequence[int]) -> Graph:
    """The vector-Jacobian product of a graph: takes its inputs and one cotangent per float output, gives the
    cotangents of the inputs numbered by `wrt` (zeros where an output does not depend on one)."""
    builder = Builder()
    mapping: dict[Value, Value] = {}
    forward = replay(graph, builder, mapping)
    cotangents: list[Value | None] = []
    for n, output in enumerate(forward.outputs):
        given = builder.input(_fresh(builder, n), output.tensor) if output.tensor.dtype.is_float else None
        cotangents.append(given)
    targets = [forward.inputs[n] for n in wrt]
    found = gradients(builder, forward.outputs, cotangents, targets)
    outputs = [v if v is not None else zeros_like(builder, t.tensor) for v, t in zip(found, targets, strict=True)]
    return Graph(
        f"{graph.name}.vjp",
        builder.inputs,
        tuple(outputs),
        tuple(f"d_{graph.input_names[n]}" for n in wrt),
        constants=graph.constants,
    )
