"""Fold per-channel constants that follow a convolution or matrix product into its weights.

An inference batch norm is (y - mean) * factor + bias with constants per output channel. Multiplying the
weights by the factor instead costs nothing at run time:

    (conv(x, w) + b) * s  ->  conv(x, w * s) + b * s        (and the same with -)
    (y + b) + c           ->  y + (b + c)                   b, c constants, y a convolution or product

This rounds differently (the products are formed in another order), within the error of one multiplication.

Invariant: nothing that others read is folded away. A gate reads its product twice (`y * sigmoid(y * c)`); folding one
of the readers would compute the product a second time, with other weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Input, Value, users_of
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.convolution import Convolution
from ingot.compiler.ops.elementwise import Add, Mul, Sub
from ingot.compiler.ops.structure import Broadcast
from ingot.compiler.passes.rewriting import Pass, Rule, rewrite, rule


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    name: ClassVar[str] = "fold_batch_norm"
    why_here: ClassVar[str] = "after decomposition shows the arithmetic of the norm, before layouts change"

    def __call__(self, graph: Graph) -> Graph:
        users = users_of(graph)
        read_often = [v for v in graph.body if len(users.get(v, ())) + graph.outputs.count(v) > 1]
        mapping: dict[Value, Value] = {}

        def is_shared(value: Value) -> bool:
            return any(mapping.get(old) is value for old in read_often)

        return rewrite(graph, [_unless_shared(rule, is_shared) for rule in RULES], mapping)


def _unless_shared(rule: Rule, is_shared: Callable[[Value], bool]) -> Rule:
    """A rule that leaves values alone whose product, or what is between the two, others read as well."""

    def careful(builder: Builder, value: Value) -> Value | None:
        if any(is_shared(step) for arg in value.args if _product(arg) is not None for step in _chain(arg)):
            return None
        return rule(builder, value)

    careful.ops = rule.ops  # type: ignore[attr-defined]
    careful.__name__ = rule.__name__
    return careful


def is_constant(value: Value) -> bool:
    """Whether a value is computed from constants only."""
    seen: set[Value] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if isinstance(item.op, Input) and item.op.role != "constant":
            return False
        stack.extend(item.args)
    return True


def _channel_axis(value: Value) -> int | None:
    """The axis of a product's result that its weights alone decide."""
    op = value.op
    if isinstance(op, Convolution):
        return 1 if op.layout == "channels_first" else len(value.shape) - 1
    if isinstance(op, Contract) and is_constant(value.args[1]):
        own = [letter for letter in op.output if letter not in op.left]
        return op.output.index(own[0]) if len(own) == 1 else None
    return None


def _chain(value: Value) -> list[Value]:
    """A value and what is below it, down through additions of constants."""
    chain = [value]
    while isinstance(value.op, Add | Sub) and _is_channel_constant(value.args[1]):
        value = value.args[0]
        chain.append(value)
    return chain


def _product(value: Value) -> Value | None:
    """The convolution or product with constant weights under additions of constants."""
    below = _chain(value)[-1]
    if isinstance(below.op, Convolution | Contract) and is_constant(below.args[1]):
        return below
    return None


def _is_channel_constant(value: Value) -> bool:
    return isinstance(value.op, Broadcast) and is_constant(value)


def _vector(builder: Builder, value: Value, axis: int) -> Node | None:
    """The values of a stretched constant along one axis, when it changes along no other."""
    source = value.args[0]
    rank = len(value.shape)
    padded = (1,) * (rank - len(source.shape)) + source.shape
    if any(d != 1 for n, d in enumerate(padded) if n != axis):
        return None
    flat = Node(builder, source).reshape((padded[axis],))
    return flat.broadcast_to((value.shape[axis],))


@rule(Mul)
def scale_weights(builder: Builder, value: Value) -> Value | None:
    """conv(x, w) * s -> conv(x, w * s), s constant per output channel"""
    for y, factor in (value.args, value.args[::-1]):
        if not isinstance(y.op, Convolution | Contract) or not is_constant(y.args[1]):
            continue
        axis = _channel_axis(y)
        if axis is None or not _is_channel_constant(factor):
            continue
        scale = _vector(builder, factor, axis)
        if scale is None:
            continue
        weight = Node(builder, y.args[1])
        place = _weight_axis(y, axis)
        shape: list[Dim] = [1] * weight.rank
        shape[place] = weight.shape[place]
        return builder.emit(y.op, y.args[0], (weight * scale.reshape(tuple(shape))).value)
    return None


def _weight_axis(value: Value, axis: int) -> int:
    op = value.op
    if isinstance(op, Convolution):
        return 0 if op.layout == "channels_first" else len(value.args[1].shape) - 1
    assert isinstance(op, Contract)
    return op.right.index(op.output[axis])


@rule(Mul)
def distribute_scale(builder: Builder, value: Value) -> Value | None:
    """(y + b) * s -> y * s + b * s, b and s constants over a product y"""
    for y, factor in (value.args, value.args[::-1]):
        if not isinstance(y.op, Add | Sub) or not _is_channel_constant(factor) or _product(y) is None:
            continue
        inner, shift = y.args
        if not _is_channel_constant(shift):
            continue
        scaled = builder.emit(Mul(), inner, factor)
        return builder.emit(y.op, scaled, _merged(builder, Mul(), shift, factor))
    return None


@rule(Add, Sub)
def merge_shifts(builder: Builder, value: Value) -> Value | None:
    """(y + b) + c -> y + (b + c), (y - b) + c -> y + (c - b), b and c constants over a product y. An addition, because a
    product can begin with what is added to it."""
    y, shift = value.args
    if isinstance(value.op, Add) and _is_channel_constant(y):
        y, shift = shift, y
    if not _is_channel_constant(shift) or not isinstance(y.op, Add | Sub) or _product(y) is None:
        return None
    inner, first = y.args
    if not _is_channel_constant(first):
        return None
    if isinstance(y.op, Add):
        return builder.emit(Add(), inner, _merged(builder, value.op, first, shift))
    if isinstance(value.op, Add):
        return builder.emit(Add(), inner, _merged(builder, Sub(), shift, first))
    return builder.emit(Sub(), inner, _merged(builder, Add(), first, shift))


def _merged(builder: Builder, op: object, left: Value, right: Value) -> Value:
    """op on two stretched constants, before stretching."""
    rank = len(left.shape)
    parts = [Node(builder, v.args[0]) for v in (left, right)]
    parts = [p.reshape((1,) * (rank - p.rank) + p.shape) for p in parts]
    name = op.name  # type: ignore[attr-defined]
    return parts[0].binary(name, parts[1]).broadcast_to(left.shape).value


RULES: tuple[Rule, ...] = (scale_weights, distribute_scale, merge_shifts)
