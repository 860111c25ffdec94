"""Move transposes, broadcasts and reshapes to where they cost nothing.

Towards the outputs, through elementwise ops, slices, concatenations, gathers and repetitions: two transposes meet and
cancel, and arithmetic on a stretched tensor is done before it is stretched. Into contractions and reductions, which take
any order of axes: a transpose of an operand or of the result becomes a choice of letters or axes. Out of contractions:
slices that are chosen several times are chosen of the product, the same dot products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Input, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Node, Op
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.elementwise import Cast, Elementwise, Where
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Concat, Slice
from ingot.compiler.ops.reduction import Reduction
from ingot.compiler.ops.structure import Broadcast, Constant, Reshape, Restate, Transpose, inverse
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, rewrite, rule
from ingot.compiler.passes.simplify import RULES as SIMPLIFY
from ingot.compiler.passes.simplify import splat

SMALL_PART = 4  # of a concatenation: what is this many times smaller than the whole follows the order of the rest


@dataclass(frozen=True)
class Motion(Pass):
    name: ClassVar[str] = "motion"
    why_here: ClassVar[str] = "after layouts are chosen, so that the transposes they need meet and cancel"

    def __call__(self, graph: Graph) -> Graph:
        return in_regions(rewrite(graph, (*SIMPLIFY, *RULES)), self)


def _elementwise_ops() -> tuple[type[Op], ...]:
    return (*(k for k in Op.registry.values() if issubclass(k, Elementwise)), Cast, Where)


def _is_splat(value: Value) -> bool:
    return splat(value) is not None


def transpose_after_elementwise(builder: Builder, value: Value) -> Value | None:
    """f(transpose(x, p), transpose(y, p), splat) -> transpose(f(x, y, splat), p)"""
    perms = {a.op.perm for a in value.args if isinstance(a.op, Transpose)}
    if len(perms) != 1:
        return None
    (perm,) = perms
    back = inverse(perm)
    args: list[Value] = []
    for arg in value.args:
        if isinstance(arg.op, Transpose):
            args.append(arg.args[0])
        elif _is_splat(arg):
            args.append(splat_like(builder, arg, [arg.shape[p] for p in back]))
        elif isinstance(arg.op, Broadcast):
            args.append(_transposed_broadcast(builder, arg, back))
        else:
            return None
    return builder.emit(Transpose(perm), builder.emit(value.op, *args))


def splat_like(builder: Builder, value: Value, shape: Sequence[Dim]) -> Value:
    """The number that every element of a value is, stretched to a shape."""
    literal = builder.emit(Constant.of(splat(value), value.tensor.dtype))
    return Node(builder, literal).broadcast_to(tuple(shape)).value


def _transposed_broadcast(builder: Builder, value: Value, perm: tuple[int, ...]) -> Value:
    """transpose(broadcast(x), perm) as a broadcast of a small transpose."""
    x = value.args[0]
    rank = len(value.shape)
    padded = (1,) * (rank - len(x.shape)) + x.shape
    wide = Node(builder, x).reshape(padded).transpose(perm)
    return wide.broadcast_to(tuple(value.shape[p] for p in perm)).value


def broadcast_after_elementwise(builder: Builder, value: Value) -> Value | None:
    """f(broadcast(x), broadcast(y)) -> broadcast(f(x, y)) when x and y have one shape (or are literals)"""
    sources = [a.args[0] for a in value.args if isinstance(a.op, Broadcast) and not _is_splat(a)]
    if not sources or any(not isinstance(a.op, Broadcast) and not _is_splat(a) for a in value.args):
        return None
    shape = max((s.shape for s in sources), key=len)
    rank = len(shape)
    padded = [(1,) * (rank - len(s.shape)) + s.shape for s in sources]
    if any(p != shape for p in padded):
        return None
    args = []
    for arg in value.args:
        if _is_splat(arg):
            args.append(splat_like(builder, arg, shape))
        else:
            args.append(Node(builder, arg.args[0]).reshape(shape).value)
    result = builder.emit(value.op, *args)
    return builder.emit(Broadcast(value.shape), result)


transpose_after_elementwise.ops = _elementwise_ops()  # type: ignore[attr-defined]
broadcast_after_elementwise.ops = _elementwise_ops()  # type: ignore[attr-defined]


@rule(Transpose)
def transpose_of_broadcast(builder: Builder, value: Value) -> Value | None:
    """transpose(broadcast(x), p) -> broadcast(transpose(x, p))"""
    assert isinstance(value.op, Transpose)
    x = value.args[0]
    if not isinstance(x.op, Broadcast):
        return None
    return _transposed_broadcast(builder, x, value.op.perm)


@rule(Slice)
def slice_of_transpose(builder: Builder, value: Value) -> Value | None:
    """slice(transpose(x, p)) -> transpose(slice(x), p)"""
    op, x = value.op, value.args[0]
    assert isinstance(op, Slice)
    if not isinstance(x.op, Transpose):
        return None
    back = inverse(x.op.perm)
    moved = Slice(*(tuple(field[p] for p in back) for field in (op.starts, op.stops, op.steps)))  # type: ignore[arg-type]
    return builder.emit(x.op, builder.emit(moved, x.args[0]))


@rule(Gather)
def gather_of_transpose(builder: Builder, value: Value) -> Value | None:
    """gather(transpose(x, p), i) -> transpose(gather(x, i), p) where i is a row of places, as in a resized image. Not of a
    table that is given: its transpose is made once."""
    x, places = value.args
    assert isinstance(value.op, Gather)
    if not isinstance(x.op, Transpose) or places.tensor.rank != 1 or isinstance(x.args[0].op, Input):
        return None
    return builder.emit(x.op, builder.emit(Gather(x.op.perm[value.op.axis]), x.args[0], places))


@rule(Restate)
def restate_of_transpose(builder: Builder, value: Value) -> Value | None:
    """restate(transpose(x, p)) -> transpose(restate(x), p)"""
    x = value.args[0]
    if not isinstance(x.op, Transpose):
        return None
    shape = tuple(value.shape[p] for p in inverse(x.op.perm))
    return builder.emit(x.op, builder.emit(Restate(shape), x.args[0]))


@rule(Reshape)
def repeat_of_transpose(builder: Builder, value: Value) -> Value | None:
    """each element of transpose(x, p) several times along some axes -> transpose(each of x several times, p), as in an
    image that is made larger: reshape(broadcast(reshape(...))), with an axis of its own behind each that is made longer"""
    stretched = value.args[0]
    if not isinstance(stretched.op, Broadcast) or not isinstance(stretched.args[0].op, Reshape):
        return None
    narrow = stretched.args[0]
    source = narrow.args[0]
    if not isinstance(source.op, Transpose) or isinstance(source.args[0].op, Input):
        return None
    times = _times(source.shape, narrow.shape, stretched.shape, value.shape)
    if times is None:
        return None
    perm, x = source.op.perm, source.args[0]
    inner = {perm[axis]: count for axis, count in times.items()}

    def shape(count: Callable[[int], Sequence[Dim]]) -> tuple[Dim, ...]:
        return tuple(d for axis, extent in enumerate(x.shape) for d in (extent, *count(axis)))

    wide = Node(builder, x).reshape(shape(lambda axis: (1,) * (axis in inner)))
    wide = wide.broadcast_to(shape(lambda axis: (inner[axis],) if axis in inner else ()))
    longer = wide.reshape(tuple(extent * inner.get(axis, 1) for axis, extent in enumerate(x.shape)))
    return builder.emit(source.op, longer.value)


def _times(
    before: Sequence[Dim], narrow: Sequence[Dim], stretched: Sequence[Dim], after: Sequence[Dim]
) -> dict[int, Dim] | None:
    """How often elements are repeated along which axes, if that is what becomes of shape after shape."""
    if len(before) != len(after) or len(narrow) != len(stretched):
        return None
    found: dict[int, Dim] = {}
    place = 0
    for axis, (old, new) in enumerate(zip(before, after, strict=True)):
        if narrow[place : place + 1] != (old,) or stretched[place] != old:
            return None
        place += 1
        if old != new:
            if narrow[place : place + 1] != (1,) or stretched[place] * old != new:
                return None
            found[axis] = stretched[place]
            place += 1
    return found if found and place == len(narrow) else None


@rule(Concat)
def concat_of_transposes(builder: Builder, value: Value) -> Value | None:
    """concat(transpose(x, p), transpose(y, p)) -> transpose(concat(x, y), p), also where a small part is in another order"""
    op = value.op
    assert isinstance(op, Concat)
    perms = {a.op.perm for a in value.args if isinstance(a.op, Transpose)}
    if len(perms) != 1:
        return None
    (perm,) = perms
    others = [a.shape[op.axis] for a in value.args if not isinstance(a.op, Transpose)]
    if others and symbolic.less_equal(SMALL_PART * sum(others), value.shape[op.axis]) is not True:
        return None
    turned = Transpose(inverse(perm))
    parts = (a.args[0] if isinstance(a.op, Transpose) else builder.emit(turned, a) for a in value.args)
    return builder.emit(Transpose(perm), builder.emit(Concat(perm[op.axis]), *parts))


@rule(Contract)
def transposed_operand(builder: Builder, value: Value) -> Value | None:
    """contract(transpose(a, p), b) -> contract(a, b) with a's letters in another order"""
    op = value.op
    assert isinstance(op, Contract)
    for n, field in ((0, "left"), (1, "right")):
        arg = value.args[n]
        if isinstance(arg.op, Transpose):
            letters = getattr(op, field)
            moved = "".join(letters[p] for p in inverse(arg.op.perm))
            args = list(value.args)
            args[n] = arg.args[0]
            return builder.emit(replace(op, **{field: moved}), *args)
    return None


@rule(Contract)
def gathered_operand(builder: Builder, value: Value) -> Value | None:
    """contract(gather(t, i), b) -> gather(contract(t, b), i) when i repeats slices of t: each is multiplied once"""
    op = value.op
    assert isinstance(op, Contract)
    for n, field in ((0, "left"), (1, "right")):
        gather = value.args[n]
        if not isinstance(gather.op, Gather):
            continue
        table, indices = gather.args
        axis, letters = gather.op.axis, getattr(op, field)
        chosen = letters[axis : axis + indices.tensor.rank]
        kept = "".join(letter for letter in op.output if letter in chosen)
        repeats = symbolic.less_equal(2 * table.shape[axis], symbolic.product(indices.shape)) is True
        if not repeats or len(kept) != len(chosen) or kept not in op.output or set(chosen) & set(op.left) & set(op.right):
            continue
        place = op.output.index(kept)
        fields = {
            field: letters[:axis] + kept[0] + letters[axis + len(chosen) :],
            "output": op.output.replace(kept, kept[0]),
            "result": value.tensor.dtype,
        }
        args = list(value.args)
        args[n] = table
        ordered = builder.emit(Transpose(tuple(chosen.index(letter) for letter in kept)), indices)
        return builder.emit(Gather(place), builder.emit(replace(op, **fields), *args), ordered)
    return None


@rule(Transpose)
def transposed_result(builder: Builder, value: Value) -> Value | None:
    """transpose(contract(a, b), p) -> contract(a, b) with its output letters in another order"""
    assert isinstance(value.op, Transpose)
    x = value.args[0]
    if not isinstance(x.op, Contract):
        return None
    letters = "".join(x.op.output[p] for p in value.op.perm)
    return builder.emit(replace(x.op, output=letters), *x.args)


def reduce_of_transpose(builder: Builder, value: Value) -> Value | None:
    """reduce(transpose(x, p), axes) -> transpose(reduce(x, p[axes]))"""
    op, x = value.op, value.args[0]
    assert isinstance(op, Reduction)
    if not isinstance(x.op, Transpose):
        return None
    perm = x.op.perm
    axes = tuple(sorted(perm[a] for a in op.axes))
    kept = [p for p in perm if p not in axes]
    order = sorted(kept)
    reduced = builder.emit(type(op)(axes), x.args[0])  # type: ignore[call-arg]
    return Node(builder, reduced).transpose(tuple(order.index(p) for p in kept)).value


reduce_of_transpose.ops = tuple(k for k in Op.registry.values() if issubclass(k, Reduction))  # type: ignore[attr-defined]

RULES: tuple[Callable[[Builder, Value], Value | None], ...] = (
    transpose_after_elementwise, broadcast_after_elementwise, transpose_of_broadcast, slice_of_transpose,
    gather_of_transpose, restate_of_transpose, repeat_of_transpose, concat_of_transposes, transposed_operand,
    gathered_operand, transposed_result, reduce_of_transpose,
)  # fmt: skip
