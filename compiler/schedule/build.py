"""Small builders of loop statements that every recipe shares.

Invariant: loops built here have fresh variables, a loop over one element is no loop, one over none is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, For, LoopKind, Statement, Store
from ingot.compiler.ir.scalar import Apply, Buffer, Combiner, Load, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType
from ingot.compiler.schedule import scalars
from ingot.compiler.target import Target

Body = Callable[[Dim], Sequence[Statement]]
ACCUMULATING = frozenset({"dot_us", "dot_su"})  # products that are added to their last argument


def loop(name: str, extent: Dim, body: Body, kind: LoopKind = "serial", width: int = 1) -> tuple[Statement, ...]:
    """for name in extent kind { body(name) }"""
    if extent == 0:
        return ()
    if extent == 1:
        return tuple(body(0))
    variable = symbolic.Variable(name, 0, extent - 1)
    return (For(variable, extent, tuple(body(variable)), kind, width),)


def nest(
    names: Sequence[str],
    extents: Sequence[Dim],
    body: Callable[..., Sequence[Statement]],
    kind: LoopKind = "serial",
) -> tuple[Statement, ...]:
    """Perfectly nested loops, the first outermost; `kind` is that of the outermost loop that exists."""
    if any(extent == 0 for extent in extents):
        return ()

    def level(depth: int, chosen: tuple[Dim, ...], kind: LoopKind) -> Sequence[Statement]:
        if depth == len(extents):
            return body(*chosen)
        inner: LoopKind = kind if extents[depth] == 1 else "serial"
        return loop(names[depth], extents[depth], lambda v: level(depth + 1, (*chosen, v), inner), kind)

    return tuple(level(0, (), kind))


def fuses(dtype: DType, target: Target) -> bool:
    """Whether a multiply-add of this type is one instruction with one rounding."""
    return dtype.is_float and dtype.bits >= 32 and target.has_fma


def combine(combiner: Combiner, accumulator: Scalar, body: Scalar, target: Target) -> Scalar:
    """accumulator (+) body. A product that is added becomes a fused multiply-add wherever the machine has one:
    the same choice in every variant of a loop, so that all variants give the same bits."""
    if combiner == "sum" and isinstance(body, Apply) and body.function.name == "mul" and fuses(body.dtype, target):
        return ir.apply("fma", *body.args, accumulator)
    if combiner == "sum" and isinstance(body, Apply) and body.function.name in ACCUMULATING:
        return ir.apply(body.function.name, *body.args[:-1], accumulator)
    return ir.apply(ir.COMBINERS[combiner], accumulator, body)


def product(name: str, left: Scalar, right: Scalar) -> Scalar:
    """The product of two elements, or of two words of several."""
    zero = (ir.constant(0, left.dtype),) if name in ACCUMULATING else ()
    return ir.apply(name, left, right, *zero)


def accumulator_type(reduce: Reduce) -> DType:
    return reduce.dtype.compute


def identity(reduce: Reduce) -> Scalar:
    dtype = accumulator_type(reduce)
    return ir.constant(ir.identity_of(reduce.combiner, dtype), dtype)


def wide_body(reduce: Reduce) -> Scalar:
    """The reduced expression in the type that accumulates it; a rounding just before the sum is left out."""
    dtype = accumulator_type(reduce)
    body = reduce.body
    if isinstance(body, ir.Cast) and body.value.dtype == dtype and body.dtype != dtype:
        return body.value
    return ir.cast(body, dtype)


def accumulate(reduce: Reduce, target: Target) -> tuple[tuple[Statement, ...], Scalar]:
    """Statements that reduce serially in a register, and the scalar that reads the result.

    acc = identity; for r...: acc = acc (+) body
    """
    accumulator = Buffer("acc", accumulator_type(reduce), (), "register")
    body = wide_body(reduce)

    def step(*variables: Dim) -> tuple[Statement, ...]:
        mapping = {old: new for old, new in zip(reduce.variables, variables, strict=True) if not isinstance(old, int)}
        inner, value = lower_reductions(scalars.substitute(body, mapping), target)
        return (
            *inner,
            Store(accumulator, (), combine(reduce.combiner, Load(accumulator, ()), value, target)),
        )

    names = [getattr(v, "name", "r") for v in reduce.variables]
    statements = (
        Alloc(accumulator),
        Store(accumulator, (), identity(reduce)),
        *nest(names, reduce.extents, step),
    )
    return statements, ir.cast(Load(accumulator, ()), reduce.dtype)


def lower_reductions(value: Scalar, target: Target) -> tuple[tuple[Statement, ...], Scalar]:
    """Statements that compute every reduction inside the value, and the value reading their results."""
    if not scalars.has_reduction(value):
        return (), value
    lowering = _Lowering(target)
    result = lowering.visit(value, None)
    return tuple(lowering.statements), result


class _Lowering:
    """Replaces reductions by reads of accumulators; one in an arm of a select reads nothing where the arm is
    not chosen, because the guard goes with it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.statements: list[Statement] = []

    def visit(self, node: Scalar, guard: Scalar | None) -> Scalar:
        match node:
            case Reduce():
                statements, result = accumulate(_guarded(node, guard), self.target)
                self.statements.extend(statements)
                return result
            case Apply(function, (condition, yes, no)) if function.name == "select":
                condition = self.visit(condition, guard)
                chosen, refused = condition, ir.apply("not", condition)
                if guard is not None:
                    chosen, refused = ir.both(guard, chosen), ir.both(guard, refused)
                return ir.select(condition, self.visit(yes, chosen), self.visit(no, refused))
            case Apply(function, args):
                return ir.apply(function.name, *(self.visit(argument, guard) for argument in args))
            case ir.Cast(inner, dtype):
                return ir.cast(self.visit(inner, guard), dtype)
            case ir.Bitcast(inner, dtype):
                return ir.Bitcast(self.visit(inner, guard), dtype)
            case _:
                return node


def _guarded(reduce: Reduce, guard: Scalar | None) -> Reduce:
    if guard is None:
        return reduce
    neutral = ir.constant(ir.identity_of(reduce.combiner, reduce.dtype), reduce.dtype)
    return Reduce(reduce.combiner, reduce.variables, reduce.extents, ir.select(guard, reduce.body, neutral))
