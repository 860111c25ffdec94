"""Store weights in the order in which the register tiles of a product read them.

    contract(x[i, k], w[k, n])  ->  contract(x[i, k], unblock(block(w)))

with w cut into blocks of columns, each contiguous: reading a block is one stream, and nothing is packed at
run time. Done for weights that are constant, or captured by a loop (the cutting then leaves the loop); the product
itself reads through `unblock`. A block is as wide as the register tile of many rows, two vectors; the wider tiles of a
few rows read several blocks side by side, which memory gives faster than one stream. The last block is filled up with
zeros that nobody reads. A weight of one block only has to lie row by row. Rows of narrow integers lie side by side in
twos, or in fours, which are multiplied as words (`schedule.words`); they are widened by whoever reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ingot.compiler.ir.graph import Builder, Graph, Input, Value, input_of
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType, i16, i32
from ingot.compiler.ops.base import Node, Op
from ingot.compiler.ops.contraction import Block, Contract, Deinterleave, Interleave, Unblock
from ingot.compiler.ops.control import If, Scan
from ingot.compiler.ops.convolution import BlockedConvolution, Convolution
from ingot.compiler.ops.elementwise import Cast, Elementwise, Where
from ingot.compiler.ops.packed import Unpack
from ingot.compiler.ops.structure import Broadcast, Reshape, Transpose
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.motion import splat_like
from ingot.compiler.passes.rewriting import Pass, rewrite
from ingot.compiler.passes.simplify import splat
from ingot.compiler.target import Target

SMALLEST = 1 << 12  # elements of a weight for which rearranging pays
VECTORS_OF_TILE = 2


@dataclass(frozen=True)
class Prepack(Pass):
    name: ClassVar[str] = "prepack"
    why_here: ClassVar[str] = "last of the rewrites: nothing after it looks at contractions"

    vector_bytes: int = 32
    has_quads: bool = False
    convolution_vectors: int = VECTORS_OF_TILE  # of a block of a convolution's output channels

    def configured(self, options: Options, target: Target) -> Prepack:
        return replace(
            self,
            vector_bytes=target.vector_bytes,
            has_quads=target.has_quads,
            convolution_vectors=target.tile_vectors,
        )

    def __call__(self, graph: Graph) -> Graph:
        fixed = {v for v in graph.inputs if isinstance(v.op, Input) and v.op.role == "constant"}
        return self._rewrite(graph, {v.op.name for v in fixed if isinstance(v.op, Input)})

    def _rewrite(self, graph: Graph, fixed: set[str]) -> Graph:
        return self._inside(rewrite(graph, (self._rule(fixed), sink_reshape)), fixed)

    def _inside(self, graph: Graph, fixed: set[str]) -> Graph:
        """In the regions: what a loop captures is fixed while it runs, in a branch what is constant."""
        changed: dict[Graph, Graph] = {}
        for value in graph.body:
            op = value.op
            if isinstance(op, Scan):
                captured = op.body.inputs[op.carried + op.scanned :]
                changed[op.body] = self._rewrite(op.body, {input_of(v).name for v in captured})
            elif isinstance(op, If):
                constant = [is_fixed(a, fixed) for a in value.args[1:]]
                for branch in op.regions:
                    given = zip(branch.inputs, constant, strict=True)
                    changed[branch] = self._rewrite(branch, {input_of(v).name for v, known in given if known})
        return in_regions(graph, lambda region: changed.get(region, region))

    def _rule(self, fixed: set[str]) -> Callable[[Builder, Value], Value | None]:
        def blocked_weight(builder: Builder, value: Value) -> Value | None:
            """contract(x, w) -> contract(x, unblock(block(w)))"""
            return self._blocked(builder, value, fixed)

        blocked_weight.ops = (Contract, Convolution)  # type: ignore[attr-defined]
        return blocked_weight

    def _blocked(self, builder: Builder, value: Value, fixed: set[str]) -> Value | None:
        op = value.op
        if isinstance(op, Convolution):
            return self._blocked_convolution(builder, value, op, fixed)
        assert isinstance(op, Contract)
        x, w = value.args
        column = _column(op)
        if column is None or _is_stored(w) or not is_fixed(w, fixed):
            return None
        (summed,) = (letter for letter in op.right if letter != column)
        extent, depth = w.shape[op.right.index(column)], w.shape[op.right.index(summed)]
        block = self._columns(extent, depth, value.tensor.dtype)
        if block is None and (op.right[0] != column or extent == 1) and self._group(x, w, depth) == 1:
            return None  # one column is a row as it lies
        order = tuple(op.right.index(letter) for letter in (summed, column))
        narrow = _narrow(builder, w)
        matrix = Node(builder, w if narrow is None else narrow).transpose(order)
        columns = matrix if block is None else matrix.apply(Block(block))
        if narrow is not None:
            columns = _in_words(columns, self._group(x, w, 2), depth)
        if block is not None:
            columns = columns.apply(Unblock(extent))
        return builder.emit(replace(op, right=summed + column), x, columns.cast(w.tensor.dtype).value)

    def _columns(self, extent: Dim, depth: Dim, dtype: DType) -> int | None:
        """Columns of a block of a matrix; None when blocks do not pay."""
        if not isinstance(extent, int) or not isinstance(depth, int) or extent * depth < SMALLEST:
            return None
        block = VECTORS_OF_TILE * (self.vector_bytes // max(1, dtype.compute.itemsize))
        return block if block < extent else None

    def _blocked_convolution(
        self, builder: Builder, value: Value, op: Convolution, fixed: set[str]
    ) -> Value | None:
        """convolution(x, w) -> reshape(blocked_convolution(x, blocks of w))"""
        x, w = value.args
        if op.layout != "channels_last" or op.groups != 1 or not w.tensor.is_static or not is_fixed(w, fixed):
            return None
        *inner, extent = w.tensor.static_shape
        block = self._block(extent, math.prod(inner), self.convolution_vectors, value.tensor.dtype)
        if block is None:
            return None
        narrow = _narrow(builder, w)
        blocks = Node(builder, w if narrow is None else narrow).reshape((*inner, extent // block, block))
        last = len(inner)
        blocks = blocks.transpose((last, *range(last), last + 1))
        if narrow is not None:
            blocks = _in_words(blocks, self._group(x, w, 2), inner[-1]).cast(w.tensor.dtype)
        made = builder.emit(
            BlockedConvolution(op.strides, op.padding, op.dilation, op.groups, op.layout), x, blocks.value
        )
        return builder.emit(Reshape(value.shape), made)

    def _group(self, x: Value, w: Value, depth: Dim) -> int:
        """How many rows of a weight are multiplied at once: those of narrow integers in words (schedule/words.py)."""
        if not isinstance(depth, int) or depth < 2 or not _is_narrow(w):
            return 1
        bytes_ = [dtype for dtype in (_given(x), _given(w)) if dtype is not None and dtype.bits == 8]
        return 4 if self.has_quads and {dtype.kind for dtype in bytes_} == {"int", "uint"} else 2

    def _block(self, extent: Dim, depth: Dim, vectors: int, dtype: DType) -> int | None:
        """Columns of a block: as many vectors as the register tile has, or the most up to those, or three, if they
        divide the extent."""
        if not isinstance(extent, int) or not isinstance(depth, int) or extent * depth < SMALLEST:
            return None
        lanes = self.vector_bytes // max(1, dtype.compute.itemsize)
        sizes = (number * lanes for number in (*range(vectors, 1, -1), 3, 1))
        block = next((size for size in sizes if extent % size == 0), extent)
        return block if block != extent else None


def _is_stored(w: Value) -> bool:
    """Whether a weight has its order already."""
    return isinstance((w.args[0] if isinstance(w.op, Cast) else w).op, Unblock | Deinterleave | Unpack)


def _given(value: Value) -> DType | None:
    """The type that integers of 32 bits are made of."""
    while isinstance(value.op, Transpose | Reshape):
        value = value.args[0]
    if not isinstance(value.op, Cast) or value.tensor.dtype != i32 or not value.args[0].tensor.dtype.is_integer:
        return None
    return value.args[0].tensor.dtype


def _is_narrow(w: Value) -> bool:
    """Whether a weight is one of narrow integers."""
    given = _given(w)
    return given is not None and (given.bits == 8 or given == i16)


def _narrow(builder: Builder, w: Value) -> Value | None:
    """A weight of narrow integers as they are: the conversion to wider ones comes after all rearranging."""
    if not _is_narrow(w):
        return None
    if isinstance(w.op, Cast):
        return w.args[0]
    inner = _narrow(builder, w.args[0])
    return None if inner is None else builder.emit(w.op, inner)


def _in_words(rows: Node, group: int, depth: Dim) -> Any:
    return rows.apply(Interleave(group)).apply(Deinterleave(depth))


def _column(op: Contract) -> str | None:
    """The letter of the weight's columns: the last of the output, of the right operand only, beside one summed."""
    if len(op.right) != 2 or not op.output:
        return None
    last = op.output[-1]
    other = op.right.replace(last, "")
    if last not in op.right or last in op.left or other not in op.summed:
        return None
    return last


def is_fixed(value: Value, fixed: set[str]) -> bool:
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


def _blocks_of(value: Value) -> Value | None:
    """The blocked tensor under a reshape that merges its last two axes."""
    if not isinstance(value.op, Reshape):
        return None
    source = value.args[0]
    if len(source.shape) != len(value.shape) + 1 or source.shape[:-2] != value.shape[:-1]:
        return None
    return source if _carries_product(source) else None


def _carries_product(value: Value) -> bool:
    """Whether elementwise ops lead from a blocked convolution to the value."""
    seen: set[Value] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item.op, BlockedConvolution):
            return True
        if isinstance(item.op, Elementwise | Cast | Where) and item not in seen:
            seen.add(item)
            stack.extend(item.args)
    return False


def sink_reshape(builder: Builder, value: Value) -> Value | None:
    """f(reshape(blocks), y) -> reshape(f(blocks, reshape(y))); integers are widened by the product that reads them"""
    sources = [s for a in value.args if (s := _blocks_of(a)) is not None]
    if not sources or _is_narrow(value) or any(s.shape != sources[0].shape for s in sources):
        return None
    shape = sources[0].shape
    args = []
    for arg in value.args:
        blocks = _blocks_of(arg)
        args.append(blocks if blocks is not None else _as_blocks(builder, arg, shape))
    return builder.emit(Reshape(value.shape), builder.emit(value.op, *args))


def _as_blocks(builder: Builder, value: Value, shape: tuple[Dim, ...]) -> Value:
    if splat(value) is not None:
        return splat_like(builder, value, shape)
    if isinstance(value.op, Broadcast):
        source = value.args[0]
        rank = len(value.shape)
        padded = (1,) * (rank - len(source.shape)) + source.shape
        last = (1, 1) if padded[-1] == 1 else shape[-2:]
        return Node(builder, source).reshape((*padded[:-1], *last)).broadcast_to(shape).value
    return Node(builder, value).reshape(shape).value


sink_reshape.ops = (*(k for k in Op.registry.values() if issubclass(k, Elementwise)), Cast, Where)  # type: ignore[attr-defined]
