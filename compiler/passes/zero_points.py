"""Zero points and signs of 8-bit codes leave products: these are then products of an unsigned and a signed byte.

    sum(k: (a[i, k] - p) * (b[k, j] - q))
        ->  sum(k: a[i, k] * b[k, j]) - p * (sum(k: b[k, j]) - K * q) - q * sum(k: a[i, k])

where the machine adds four products of an unsigned and a signed byte at once (`schedule.words`). Operands of the same
sign are made different by moving one of them by 128, which is a zero point like any other. Sums of known weights are
computed when the program is made; others read an operand once more, which a product of many rows and columns does
not notice. Exact: integers of 32 bits wrap, so every identity of integers holds for them.

The zeros that pad a convolution become the code that stands for 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Input, Value, declare_inputs, input_of
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType, TupleType, boolean, i8, i16, i32, u8
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.control import Scan
from ingot.compiler.ops.convolution import Convolution
from ingot.compiler.ops.elementwise import Cast, Sub
from ingot.compiler.ops.structure import Broadcast, Reshape, Transpose
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.prepack import is_fixed
from ingot.compiler.passes.rewriting import Pass, rewrite
from ingot.compiler.passes.simplify import splat
from ingot.compiler.target import Target

ENOUGH = 16  # rows, or columns, beside which summing the other operand takes little time
MIDDLE = 128  # from codes without a sign to those with one


@dataclass(frozen=True)
class ZeroPoints(Pass):
    name: ClassVar[str] = "zero_points"
    why_here: ClassVar[str] = "while convolutions are whole, after transposes have met"

    has_quads: bool = False

    def configured(self, options: Options, target: Target) -> ZeroPoints:
        return replace(self, has_quads=target.has_quads)

    def __call__(self, graph: Graph) -> Graph:
        graph = narrow_captures(graph)
        if not self.has_quads:
            return graph
        fixed = {v.op.name for v in graph.inputs if isinstance(v.op, Input) and v.op.role == "constant"}
        return _rewritten(graph, fixed)


def _rewritten(graph: Graph, fixed: set[str]) -> Graph:
    """Inside a scan what it captures is as good as known: its sums are computed before the loop."""
    graph = rewrite(graph, (_rule(fixed),))
    changed: dict[Graph, Graph] = {}
    for op in (value.op for value in graph.body):
        if isinstance(op, Scan):
            captured = op.body.inputs[op.carried + op.scanned :]
            changed[op.body] = _rewritten(op.body, {v.op.name for v in captured if isinstance(v.op, Input)})
    return in_regions(graph, lambda region: changed.get(region, region))


def narrow_captures(graph: Graph) -> Graph:
    """scan(..., cast(x)) -> scan(..., x) that widens x where it reads it: products see how narrow it is"""
    scans = [value for value in graph.body if isinstance(value.op, Scan)]
    if not any(_narrow_places(value) for value in scans):
        return graph
    builder = Builder()
    made = declare_inputs(graph, builder)
    for value in graph.body:
        op, args = value.op, [made[a] for a in value.args]
        if isinstance(op, Scan):
            places = _narrow_places(value)
            for place in places:
                args[place] = made[value.args[place].args[0]]
            op = replace(op, body=_widening(op.body, {place: args[place] for place in places}))
        made[value] = builder.emit(op, *args, source=value.source, name=value.name)
    return replace(graph, inputs=builder.inputs, outputs=tuple(made[v] for v in graph.outputs))


def _narrow_places(value: Value) -> list[int]:
    """Which captured arguments of a scan are widened bytes."""
    assert isinstance(value.op, Scan)
    first = value.op.carried + value.op.scanned
    captured = enumerate(value.args[first:], first)
    return [n for n, arg in captured if isinstance(arg.op, Cast) and arg.tensor.dtype == i32 and _is_bytes(arg.args[0])]


def _widening(body: Graph, given: dict[int, Value]) -> Graph:
    """A body that is given bytes in place of some integers of 32 bits."""
    if not given:
        return body
    builder = Builder()
    made: dict[Value, Value] = {}
    narrow: dict[Value, Value] = {}
    for place, value in enumerate(body.inputs):
        kind = given[place].tensor if place in given else value.tensor
        new = builder.input(input_of(value).name, kind, input_of(value).role, value.source)
        (narrow if place in given else made)[value] = new
    made |= {value: builder.emit(Cast(i32), new) for value, new in narrow.items()}
    for value in body.body:
        made[value] = builder.emit(value.op, *(made[a] for a in value.args), source=value.source, name=value.name)
    return replace(body, inputs=builder.inputs, outputs=tuple(made[v] for v in body.outputs))


def _is_bytes(value: Value) -> bool:
    return not isinstance(value.type, TupleType) and value.tensor.dtype in (i8, u8)


def _rule(fixed: set[str]) -> Callable[[Builder, Value], Value | None]:
    def without_zero_points(builder: Builder, value: Value) -> Value | None:
        """sum((a - p) * (b - q)) -> sum(a * b) - p * (sum(b) - K * q) - q * sum(a)"""
        if value.tensor.dtype != i32:
            return None
        product = _Contraction(value) if isinstance(value.op, Contract) else _Convolution(value)
        found = [codes_of(builder, operand) for operand in value.args]
        if found[0] is None or found[1] is None or not product.allowed:
            return None
        given = _Operand(found[0], is_fixed(value.args[0], fixed)), _Operand(found[1], is_fixed(value.args[1], fixed))
        choices = [choice for choice in _choices(*given) if product.pays(*choice)]
        if not choices or (choices[0] == given and not any(operand.codes.is_moved for operand in given)):
            return None
        left, right = min(choices, key=lambda choice: (product.cost(choice), *_work(given, choice)))
        return product.emit(builder, left.codes, right.codes)

    without_zero_points.ops = (Contract, Convolution)  # type: ignore[attr-defined]
    return without_zero_points


@dataclass(frozen=True)
class _Codes:
    """Integers `codes - offset - number`; codes have 8 bits, the offset is i32 and has dims of 1 where all share it."""

    codes: Any
    offset: Any = None
    number: int = 0
    in_range: bool = True  # whether offset + number is a code itself

    @property
    def is_moved(self) -> bool:
        return self.offset is not None or self.number != 0

    @property
    def zero(self) -> Any:
        """offset + number; None for 0"""
        if self.offset is None:
            return self.codes.constant(self.number, i32) if self.number else None
        return self.offset + self.number if self.number else self.offset

    def as_type(self, dtype: DType) -> _Codes:
        """The same integers as codes of the other sign: modulo 256 both ways are an addition of 128."""
        if self.codes.dtype == dtype:
            return self
        move = MIDDLE if dtype == u8 else -MIDDLE
        codes = self.codes.cast(dtype)
        return replace(self, codes=codes + codes.constant(MIDDLE if dtype == u8 else -MIDDLE), number=self.number + move)


@dataclass(frozen=True)
class _Operand:
    codes: _Codes
    is_fixed: bool


def _choices(left: _Operand, right: _Operand) -> list[tuple[_Operand, _Operand]]:
    """The operands with different signs: as they are, or with either moved."""
    kinds = left.codes.codes.dtype, right.codes.codes.dtype
    if kinds[0] != kinds[1]:
        return [(left, right)]
    other = i8 if kinds[0] == u8 else u8
    moved = (replace(left, codes=left.codes.as_type(other)), right), (left, replace(right, codes=right.codes.as_type(other)))
    return list(moved)


def codes_of(builder: Builder, value: Value) -> _Codes | None:
    """A value of 16 or 32 bits as codes and what is taken from them."""
    op, dtype = value.op, value.tensor.dtype
    if isinstance(op, Cast) and value.args[0].tensor.dtype in (i8, u8):
        return _Codes(Node(builder, value.args[0]))
    if isinstance(op, Cast) and value.args[0].tensor.dtype == i16 and dtype == i32:
        return codes_of(builder, value.args[0])
    if isinstance(op, Sub) and isinstance(value.args[0].op, Cast):
        inner = codes_of(builder, value.args[0])
        return None if inner is None or inner.is_moved else _with_zero(builder, inner, value.args[1])
    if not isinstance(op, Transpose | Reshape):
        return None
    inner = codes_of(builder, value.args[0])
    if inner is None or (isinstance(op, Reshape) and inner.offset is not None):
        return None
    offset = None if inner.offset is None else inner.offset.apply(op)
    return replace(inner, codes=inner.codes.apply(op), offset=offset)


def _with_zero(builder: Builder, inner: _Codes, zero: Value) -> _Codes | None:
    low, high = (0, 255) if inner.codes.dtype == u8 else (-128, 127)
    number = splat(zero)
    if number is not None and low <= number <= high:
        return replace(inner, number=int(number))
    source = zero.args[0] if isinstance(zero.op, Broadcast) else zero
    if not isinstance(source.op, Cast) or source.args[0].tensor.dtype not in (i8, u8):
        return None  # the difference might not fit into 16 bits
    rank = len(zero.shape)
    offset = Node(builder, source.args[0]).cast(i32).reshape((1,) * (rank - len(source.shape)) + source.shape)
    return replace(inner, offset=offset, in_range=source.args[0].tensor.dtype == inner.codes.dtype)


def _work(given: tuple[_Operand, _Operand], choice: tuple[_Operand, _Operand]) -> list[bool]:
    """Whether operands are moved while running."""
    return [one is not other and not one.is_fixed for one, other in zip(given, choice, strict=True)]


def _everywhere(total: Any, node: Any) -> Any:
    """Stretched before it is computed with: the product's kernel does it as it ends."""
    return node.broadcast_to(total.shape)


def _share(total: Any, codes: _Codes, sums: Any) -> Any:
    """The zero point of one operand times sums of the other, as it meets the total. A number meets the sums before they are
    stretched: of known weights the product is known then, and no larger than they."""
    if codes.offset is None:
        return _everywhere(total, sums * codes.number)
    return _everywhere(total, codes.zero) * _everywhere(total, sums)


def beside_result(op: Contract, node: Any, letters: str) -> Any:
    """Something of an operand's letters, 1 where they are summed, as it meets the result."""
    places = [n for n, letter in enumerate(letters) if letter not in op.summed]
    kept = node.reshape(tuple(node.shape[n] for n in places))
    names = [letters[n] for n in places]
    order = sorted(range(len(names)), key=lambda n: op.output.index(names[n]))
    kept = kept.transpose(order)
    sizes = dict(zip((names[n] for n in order), kept.shape, strict=True))
    return kept.reshape(tuple(sizes.get(letter, 1) for letter in op.output))


class _Contraction:
    """Of two operands by letters."""

    def __init__(self, value: Value) -> None:
        assert isinstance(value.op, Contract)
        self.value, self.op = value, value.op
        self.extents = dict(zip(self.op.left, value.args[0].shape, strict=True))
        self.extents |= dict(zip(self.op.right, value.args[1].shape, strict=True))
        self.depth = symbolic.product(self.extents[letter] for letter in self.op.summed)
        self.allowed = self.op.result is None and symbolic.less(self.depth, 4) is not True

    def pays(self, left: _Operand, right: _Operand) -> bool:
        """Zero points stay the same along the sum, and sums of operands are used often enough."""
        for letters, operand in ((self.op.left, left), (self.op.right, right)):
            offset = operand.codes.offset
            if offset is not None and any(
                offset.shape[n] != 1 for n, letter in enumerate(letters) if letter in self.op.summed
            ):
                return False
        for summed, others, letters in ((right, left, self.op.left), (left, right, self.op.right)):
            kept = symbolic.product(self.extents[letter] for letter in letters if letter not in self.op.summed)
            if others.codes.is_moved and not summed.is_fixed and symbolic.less(kept, ENOUGH) is True:
                return False
        return not right.codes.is_moved or not left.codes.is_moved or isinstance(self.depth, int)

    def cost(self, operands: tuple[_Operand, _Operand]) -> int:
        """How many operands must be summed while running."""
        left, right = operands
        return sum(one.codes.is_moved and not other.is_fixed for one, other in ((left, right), (right, left)))

    def emit(self, builder: Builder, left: _Codes, right: _Codes) -> Value:
        total = left.codes.cast(i32).apply(self.op, right.codes.cast(i32))
        p, q = (self._zero(codes, letters) for codes, letters in ((left, self.op.left), (right, self.op.right)))
        if p.is_moved:
            known = self._sum(right.codes, self.op.right)
            total = total - _share(total, p, known if q.zero is None else known - q.zero * self.depth)
        if q.is_moved:
            total = total - _share(total, q, self._sum(left.codes, self.op.left))
        return total.value

    def _zero(self, codes: _Codes, letters: str) -> _Codes:
        """The same with an offset that meets the result."""
        return replace(codes, offset=self._spread(codes.offset, letters))

    def _sum(self, codes: Any, letters: str) -> Any:
        axes = [n for n, letter in enumerate(letters) if letter in self.op.summed]
        return self._spread(codes.cast(i32).sum(axes, keepdims=True), letters)

    def _spread(self, node: Any, letters: str) -> Any:
        return node if node is None or node.rank == 0 else beside_result(self.op, node, letters)


class _Convolution:
    """Channels last, one group: [n, y, x, c] and [r, s, c, o]."""

    def __init__(self, value: Value) -> None:
        assert isinstance(value.op, Convolution)
        self.value, self.op = value, value.op
        plain = self.op.groups == 1 and self.op.layout == "channels_last"
        self.taps: tuple[Dim, ...] = value.args[1].shape[:-2] if plain else ()
        self.depth = symbolic.product(value.args[1].shape[:-1])
        self.allowed = plain and isinstance(self.depth, int)

    def pays(self, left: _Operand, right: _Operand) -> bool:
        p, q = left.codes.offset, right.codes.offset
        if p is not None and any(dim != 1 for dim in p.shape):
            return False
        if q is not None and any(dim != 1 for dim in q.shape[:-1]):
            return False
        if right.codes.is_moved and symbolic.less(self.value.shape[-1], ENOUGH) is True:
            return False
        padded = any(side != 0 for sides in self.op.padding for side in sides)
        return right.is_fixed and (not padded or left.codes.in_range)

    def cost(self, operands: tuple[_Operand, _Operand]) -> int:
        return int(operands[1].codes.is_moved)

    def emit(self, builder: Builder, left: _Codes, right: _Codes) -> Value:
        data = self._padded(left)
        plain = replace(self.op, padding=tuple((0, 0) for _ in self.op.padding))
        total = data.cast(i32).apply(plain, right.codes.cast(i32))
        p, q = left.zero, right.zero
        if p is not None:
            known = right.codes.cast(i32).sum(range(right.codes.rank - 1))
            offset = None if q is None else q.reshape(q.shape[-1:])
            known = known if offset is None else known - offset * self.depth
            total = total - _share(total, left, known)
        if q is not None:
            total = total - _everywhere(total, q.reshape(q.shape[-1:])) * _everywhere(total, self._windows(data))
        return total.value

    def _padded(self, left: _Codes) -> Any:
        if all(side == 0 for sides in self.op.padding for side in sides):
            return left.codes
        low = (0, *(sides[0] for sides in self.op.padding), 0)
        high = (0, *(sides[1] for sides in self.op.padding), 0)
        codes = left.codes
        if left.offset is None:
            return codes.apply(movement.Pad(low, high, value=float(left.number)))
        inside = codes.full(codes.shape, True, boolean).apply(movement.Pad(low, high))
        return inside.where(codes.apply(movement.Pad(low, high)), left.zero.cast(codes.dtype))

    def _windows(self, data: Any) -> Any:
        """The sum of each window, [n, y, x, 1]."""
        image = data.cast(i32).sum([data.rank - 1], keepdims=True)
        total = None
        for tap in itertools.product(*map(range, self.taps)):  # type: ignore[arg-type]
            part = self._at(image, tap)
            total = part if total is None else total + part
        return total

    def _at(self, image: Any, tap: Sequence[int]) -> Any:
        for axis, (place, count) in enumerate(zip(tap, self.value.shape[1:-1], strict=True), 1):
            stride, start = self.op.strides[axis - 1], place * self.op.dilation[axis - 1]
            image = movement.part(image, axis, start, start + (count - 1) * stride + 1, stride)
        return image
