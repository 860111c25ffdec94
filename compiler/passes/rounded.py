"""Codes that are turned back at once are rounded numbers: no zero point and no byte in between.

    f32(u8(i32(c) + z) - z)  ->  f32(i32(c))

where c is whole and clipped to the codes less the zero point z: what QuantizeLinear and a DequantizeLinear behind it make
of an activation that no product reads. Exact: every step keeps such a number. NaN becomes 0 on the way through i32, as before.

Invariant: codes that others read too are left alone. They are in memory, a quarter of what floats take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Value, users_of
from ingot.compiler.ir.types import f32, i8, i32, u8
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.elementwise import Add, Cast, Maximum, Minimum, Round, Sub
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, Rule, rewrite
from ingot.compiler.passes.simplify import splat

RANGES = {u8: (0, 255), i8: (-128, 127)}


@dataclass(frozen=True)
class Rounded(Pass):
    name: ClassVar[str] = "rounded"
    why_here: ClassVar[str] = "after products have taken the codes that they read"

    def __call__(self, graph: Graph) -> Graph:
        users = users_of(graph)
        codes = [v for v in graph.body if isinstance(v.op, Cast) and v.tensor.dtype in RANGES]
        shared = [v for v in codes if len(users[v]) + graph.outputs.count(v) > 1]
        mapping: dict[Value, Value] = {}
        return in_regions(rewrite(graph, [_rule(lambda v: any(mapping.get(s) is v for s in shared))], mapping), self)


def _rule(is_shared: Callable[[Value], bool]) -> Rule:
    def back_at_once(builder: Builder, value: Value) -> Value | None:
        """f32(u8(i32(c) + z) - z) -> f32(i32(c))      c whole, within the codes less z"""
        if value.tensor.dtype != f32:
            return None
        inner, after = _apart(value.args[0], Sub)
        code = inner.args[0] if isinstance(inner.op, Cast) and inner.args[0].tensor.dtype in RANGES else inner
        if not isinstance(code.op, Cast) or code.tensor.dtype not in RANGES or is_shared(code):
            return None
        whole, before = _apart(code.args[0], Add)
        if before != after or not isinstance(whole.op, Cast) or whole.tensor.dtype != i32:
            return None
        low, high = RANGES[code.tensor.dtype]
        number = whole.args[0]
        if number.tensor.dtype != f32 or not _is_whole_within(number, low - before, high - before):
            return None
        return Node(builder, whole).cast(f32).value

    back_at_once.ops = (Cast,)  # type: ignore[attr-defined]
    return back_at_once


def _apart(value: Value, op: type) -> tuple[Value, float]:
    """A value and the literal that is added to it, or taken from it."""
    number = splat(value.args[1]) if isinstance(value.op, op) else None
    return (value, 0) if number is None else (value.args[0], number)


def _is_whole_within(value: Value, low: float, high: float) -> bool:
    """min(max(round(x), low), high) with these limits, or narrower whole ones"""
    if not isinstance(value.op, Minimum) or not isinstance(value.args[0].op, Maximum):
        return False
    least, most = splat(value.args[0].args[1]), splat(value.args[1])
    if least is None or most is None or not isinstance(value.args[0].args[0].op, Round):
        return False
    return low <= least <= most <= high and least == int(least) and most == int(most)
