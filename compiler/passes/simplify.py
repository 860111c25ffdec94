"""Algebra that makes graphs smaller: neutral elements, inverses, and literals computed now.

Only identities that hold for every float, NaN and infinities included; nothing is reassociated. `x * 0` and
`x - x` are not 0 when x is NaN, so they are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ir.types import TensorType
from ingot.compiler.ops.base import Node, Op
from ingot.compiler.ops.elementwise import Add, Cast, Div, Elementwise, Mul, Neg, Pow, Sub, Where
from ingot.compiler.ops.movement import Concat, Pad, Slice
from ingot.compiler.ops.reduction import Sum
from ingot.compiler.ops.structure import Broadcast, Constant, Reshape, Transpose
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, rewrite, rule

LITERAL_ELEMENTS = 16


@dataclass(frozen=True)
class Simplify(Pass):
    name: ClassVar[str] = "simplify"
    why_here: ClassVar[str] = "gradients and decompositions leave neutral elements and literals behind"

    def __call__(self, graph: Graph) -> Graph:
        return in_regions(rewrite(graph, RULES), self)


def splat(value: Value) -> float | int | bool | None:
    """The number that every element is, when that is known."""
    while isinstance(value.op, Broadcast | Reshape):
        value = value.args[0]
    if isinstance(value.op, Constant) and value.op.array.size:
        first = value.op.array.ravel()[0]
        return first.item() if (value.op.array == first).all() else None
    return None


def _node(builder: Builder, value: Value) -> Node:
    return Node(builder, value)


@rule(Add)
def add_zero(builder: Builder, value: Value) -> Value | None:
    """x + 0 -> x for integers; for floats only x + -0.0 -> x, because -0.0 + 0.0 is 0.0"""
    for x, zero in (value.args, value.args[::-1]):
        number = splat(zero)
        if number == 0 and (not value.tensor.dtype.is_float or math.copysign(1, number) < 0):
            return x
    return None


@rule(Sub)
def subtract_zero(builder: Builder, value: Value) -> Value | None:
    """x - 0 -> x  (0 - x is not -x: they differ in the sign of zero)"""
    left, right = value.args
    number = splat(right)
    if number == 0 and (not value.tensor.dtype.is_float or math.copysign(1, number) > 0):
        return left
    return None


@rule(Mul)
def multiply_one(builder: Builder, value: Value) -> Value | None:
    """x * 1 -> x;  x * -1 -> -x"""
    for x, factor in (value.args, value.args[::-1]):
        number = splat(factor)
        if number == 1:
            return x
        if number == -1 and value.tensor.dtype.kind != "uint":
            return builder.emit(Neg(), x)
    return None


@rule(Div)
def divide_by_literal(builder: Builder, value: Value) -> Value | None:
    """x / 1 -> x;  x / c -> x * (1 / c) when 1 / c is exact"""
    x, divisor = value.args
    number = splat(divisor)
    if number == 1:
        return x
    if number is None or number == 0 or not np.isfinite(number):
        return None
    mantissa, exponent = np.frexp(number)
    if abs(mantissa) == 0.5 and abs(exponent) < 100:
        reciprocal = _node(builder, x).full(value.shape, 1.0 / number)
        return builder.emit(Mul(), x, reciprocal.value)
    return None


@rule(Pow)
def small_powers(builder: Builder, value: Value) -> Value | None:
    """x ^ 1 -> x;  x ^ 2 -> x * x"""
    x, exponent = value.args
    match splat(exponent):
        case 1:
            return x
        case 2:
            return builder.emit(Mul(), x, x)
    return None


@rule(Neg)
def double_negation(builder: Builder, value: Value) -> Value | None:
    """-(-x) -> x"""
    inner = value.args[0]
    return inner.args[0] if isinstance(inner.op, Neg) else None


@rule(Add, Sub)
def add_negation(builder: Builder, value: Value) -> Value | None:
    """x + (-y) -> x - y;  x - (-y) -> x + y"""
    left, right = value.args
    if isinstance(right.op, Neg):
        return builder.emit(Sub() if isinstance(value.op, Add) else Add(), left, right.args[0])
    if isinstance(left.op, Neg) and isinstance(value.op, Add):
        return builder.emit(Sub(), right, left.args[0])
    return None


@rule(Where)
def decided_choice(builder: Builder, value: Value) -> Value | None:
    """where(true, a, b) -> a;  where(c, a, a) -> a"""
    condition, yes, no = value.args
    if yes is no:
        return yes
    known = splat(condition)
    return None if known is None else yes if known else no


@rule(Cast)
def merge_casts(builder: Builder, value: Value) -> Value | None:
    """cast to its own type -> x;  cast(cast(x)) -> cast(x) when the inner one loses nothing"""
    assert isinstance(value.op, Cast)
    x = value.args[0]
    if x.tensor.dtype == value.op.dtype:
        return x
    if isinstance(x.op, Cast) and _holds(x.args[0].tensor, x.tensor):
        return builder.emit(Cast(value.op.dtype), x.args[0])
    return None


def _holds(small: TensorType, large: TensorType) -> bool:
    """Whether every value of one element type is a value of the other."""
    a, b = small.dtype, large.dtype
    if a.kind == b.kind:
        return a.bits <= b.bits and not (a.bits == b.bits and a != b)
    if a.kind == "bool":
        return True
    if b.kind == "float" and a.is_integer:
        mantissa = {16: 11 if b.name == "f16" else 8, 32: 24, 64: 53}[b.bits]
        return a.bits <= mantissa
    return a.kind == "uint" and b.kind == "int" and a.bits < b.bits


@rule(Transpose)
def merge_transposes(builder: Builder, value: Value) -> Value | None:
    """transpose(x, identity) -> x;  transpose(transpose(x, p), q) -> transpose(x, p[q]);
    a transpose that only moves dims of 1 is a reshape"""
    assert isinstance(value.op, Transpose)
    perm, x = value.op.perm, value.args[0]
    if perm == tuple(range(len(perm))):
        return x
    if isinstance(x.op, Transpose):
        return builder.emit(Transpose(tuple(x.op.perm[p] for p in perm)), x.args[0])
    long = [p for p in perm if x.shape[p] != 1]
    if long == sorted(long):
        return builder.emit(Reshape(value.shape), x)
    return None


@rule(Reshape)
def merge_reshapes(builder: Builder, value: Value) -> Value | None:
    """reshape(x, its shape) -> x;  reshape(reshape(x)) -> reshape(x)"""
    x = value.args[0]
    if x.shape == value.shape:
        return x
    if isinstance(x.op, Reshape):
        return builder.emit(value.op, x.args[0])
    return None


@rule(Broadcast)
def merge_broadcasts(builder: Builder, value: Value) -> Value | None:
    """broadcast(x, its shape) -> x;  broadcast(broadcast(x)) -> broadcast(x);
    broadcast(reshape that adds leading dims of 1) -> broadcast(x)"""
    x = value.args[0]
    if x.shape == value.shape:
        return x
    if isinstance(x.op, Broadcast):
        return builder.emit(value.op, x.args[0])
    if isinstance(x.op, Reshape):
        inner = x.args[0]
        if (1,) * (len(x.shape) - len(inner.shape)) + inner.shape == x.shape:
            return builder.emit(value.op, inner)
    return None


@rule(Slice)
def whole_slice(builder: Builder, value: Value) -> Value | None:
    """a slice of everything -> x"""
    assert isinstance(value.op, Slice)
    x = value.args[0]
    parts = zip(value.op.starts, value.op.stops, value.op.steps, x.shape, strict=True)
    return x if all(a == 0 and b == d and s == 1 for a, b, s, d in parts) else None


@rule(Pad)
def empty_pad(builder: Builder, value: Value) -> Value | None:
    """padding by nothing -> x"""
    assert isinstance(value.op, Pad)
    return value.args[0] if not any(d != 0 for d in (*value.op.low, *value.op.high)) else None


@rule(Concat)
def single_concat(builder: Builder, value: Value) -> Value | None:
    """concat of one tensor -> that tensor; parts of extent 0 vanish"""
    assert isinstance(value.op, Concat)
    parts = [a for a in value.args if a.shape[value.op.axis] != 0]
    if len(parts) == 1:
        return parts[0]
    return builder.emit(value.op, *parts) if parts and len(parts) < len(value.args) else None


@rule(Sum)
def sum_of_ones(builder: Builder, value: Value) -> Value | None:
    """a sum over dims of 1 -> reshape"""
    assert isinstance(value.op, Sum)
    x = value.args[0]
    if all(x.shape[a] == 1 for a in value.op.axes):
        return builder.emit(Reshape(value.shape), x)
    return None


def fold_literals(builder: Builder, value: Value) -> Value | None:
    """An elementwise op on literals -> a literal; on stretched literals -> the stretched result"""
    op = value.op
    assert isinstance(op, Op)
    if not value.args or not isinstance(value.type, TensorType):
        return None
    if all(isinstance(a.op, Constant) for a in value.args) and value.type.is_static:
        size = value.type.size
        if isinstance(size, int) and size <= LITERAL_ELEMENTS:
            return builder.emit(_evaluated(op, [a.op.array for a in value.args], value.type))  # type: ignore[attr-defined]
        return None
    numbers = [splat(a) for a in value.args]
    if any(n is None for n in numbers) or value.type.size == 1:
        return None
    arrays = [np.asarray(n).astype(a.tensor.dtype.numpy) for n, a in zip(numbers, value.args, strict=True)]
    literal = builder.emit(_evaluated(op, arrays, value.type.with_shape(())))
    return _node(builder, literal).broadcast_to(value.shape).value


def _evaluated(op: Op, arrays: list[np.ndarray], type: TensorType) -> Constant:
    with np.errstate(all="ignore"):
        return Constant.of(np.asarray(op.evaluate(*arrays)), type.dtype)


def _literal_ops() -> list[type[Op]]:
    kinds = [k for k in Op.registry.values() if issubclass(k, Elementwise)]
    return [*kinds, Cast, Where]


fold_literals.ops = tuple(_literal_ops())  # type: ignore[attr-defined]

RULES: tuple[Callable[[Builder, Value], Value | None], ...] = (
    fold_literals, add_zero, subtract_zero, multiply_one, divide_by_literal, small_powers, double_negation,
    add_negation, decided_choice, merge_casts, merge_transposes, merge_reshapes, merge_broadcasts, whole_slice,
    empty_pad, single_concat, sum_of_ones,
)  # fmt: skip
