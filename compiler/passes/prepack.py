"""Store weights in the order in which the register tiles of a product read them.

    contract(x[i, k], w[k, n])  ->  contract(x[i, k], unblock(block(w)))

with w cut into blocks of columns, each contiguous: reading a block is one stream, and nothing is packed at
run time. Done for weights that are constant, or captured by a loop (the cutting then leaves the loop); the product
itself reads through `unblock`. A block is as wide as the register tile: two vectors, or more when there are few
rows to share it. The last block is filled up with zeros that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Input, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Block, Contract, Unblock
from ingot.compiler.ops.control import Scan
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, rewrite

SMALLEST = 1 << 12  # elements of a weight for which rearranging pays
VECTORS_OF_TILE = 2
VECTORS_OF_ROW = 8  # with one or two rows, this many independent sums hide the latency of an addition
FEW_ROWS = 2


@dataclass(frozen=True)
class Prepack(Pass):
    name: ClassVar[str] = "prepack"
    why_here: ClassVar[str] = "last of the rewrites: nothing after it looks at contractions"

    vector_bytes: int = 32

    def __call__(self, graph: Graph) -> Graph:
        fixed = {v for v in graph.inputs if isinstance(v.op, Input) and v.op.role == "constant"}
        return self._rewrite(graph, {v.op.name for v in fixed if isinstance(v.op, Input)})

    def _rewrite(self, graph: Graph, fixed: set[str]) -> Graph:
        return self._in_scans(rewrite(graph, (self._rule(fixed),)))

    def _in_scans(self, graph: Graph) -> Graph:
        def change(op: Scan) -> Scan:
            captured = op.body.inputs[op.carried + op.scanned :]
            return replace(op, body=self._rewrite(op.body, {v.op.name for v in captured if isinstance(v.op, Input)}))

        changed: dict[Graph, Graph] = {}
        for value in graph.body:
            if isinstance(value.op, Scan):
                changed[value.op.body] = change(value.op).body
        return in_regions(graph, lambda region: changed.get(region, region))

    def _rule(self, fixed: set[str]) -> Callable[[Builder, Value], Value | None]:
        def blocked_weight(builder: Builder, value: Value) -> Value | None:
            """contract(x, w) -> contract(x, unblock(block(w)))"""
            return self._blocked(builder, value, fixed)

        blocked_weight.ops = (Contract,)  # type: ignore[attr-defined]
        return blocked_weight

    def _blocked(self, builder: Builder, value: Value, fixed: set[str]) -> Value | None:
        op = value.op
        assert isinstance(op, Contract)
        x, w = value.args
        column = _column(op)
        if column is None or isinstance(w.op, Unblock) or not _is_fixed(w, fixed):
            return None
        (summed,) = (letter for letter in op.right if letter != column)
        extent, depth = w.shape[op.right.index(column)], w.shape[op.right.index(summed)]
        rows = _rows(value, op)
        vectors = VECTORS_OF_ROW if isinstance(rows, int) and rows <= FEW_ROWS else VECTORS_OF_TILE
        block = vectors * self.vector_bytes // max(1, value.tensor.dtype.compute.itemsize)
        if not isinstance(extent, int) or not isinstance(depth, int):
            return None
        if extent * depth < SMALLEST or extent <= block:
            return None
        matrix = Node(builder, w).transpose(tuple(op.right.index(letter) for letter in (summed, column)))
        columns = matrix.apply(Block(block)).apply(Unblock(extent))
        return builder.emit(replace(op, right=summed + column), x, columns.value)


def _column(op: Contract) -> str | None:
    """The letter of the weight's columns: the last of the output, of the right operand only, beside one summed."""
    if len(op.right) != 2 or not op.output:
        return None
    last = op.output[-1]
    other = op.right.replace(last, "")
    if last not in op.right or last in op.left or other not in op.summed:
        return None
    return last


def _rows(value: Value, op: Contract) -> Dim:
    count: Dim = 1
    for letter, dim in zip(op.output, value.shape, strict=True):
        if letter != op.output[-1]:
            count = count * dim
    return count


def _is_fixed(value: Value, fixed: set[str]) -> bool:
    """Whether a value is computed from the fixed inputs only, and from at least one."""
    seen: set[Value] = set()
    stack = [value]
    found = False
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if isinstance(item.op, Input):
            if item.op.name not in fixed:
                return False
            found = True
        stack.extend(item.args)
    return found
