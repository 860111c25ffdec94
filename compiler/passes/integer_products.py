"""Products of dequantised codes are products of codes: in integers, scaled afterwards.

    sum(k: (f32(a[i, k]) * s[i]) * (f32(b[k, j]) * t[j]))  ->  f32(sum(k: a[i, k] * b[k, j])) * (s[i] * t[j])

where a and b are 8-bit codes less their zero points, and scales stay the same along the sum: the form in which quantisers
write models (DequantizeLinear before a product, QuantizeLinear behind it). Machines multiply bytes several times as fast
as floats, and codes are a quarter of what floats are to memory.

This rounds differently: the sum is exact and is rounded once, where a sum of floats is rounded at every step.

Invariant: sums fit into 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import f32, i8, i16, i32, u8
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.convolution import Convolution
from ingot.compiler.ops.elementwise import Cast, Mul
from ingot.compiler.ops.structure import Broadcast, Reshape, Transpose
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import in_regions
from ingot.compiler.passes.rewriting import Pass, rewrite, rule
from ingot.compiler.passes.zero_points import beside_result, codes_of
from ingot.compiler.target import Target

QUAD = 4  # codes in a word
LONGEST = (1 << 31) // (255 * 255)  # products of differences of bytes whose sum fits into 32 bits


@dataclass(frozen=True)
class IntegerProducts(Pass):
    name: ClassVar[str] = "integer_products"
    why_here: ClassVar[str] = "after transposes have met, before norms are multiplied into weights that are codes"

    has_pairs: bool = False
    has_quads: bool = False

    def configured(self, options: Options, target: Target) -> IntegerProducts:
        return replace(self, has_pairs=target.is_x86, has_quads=target.has_quads)

    def __call__(self, graph: Graph) -> Graph:
        if not self.has_pairs:
            return graph
        rules = (convolve_codes, convolve_few_channels) if self.has_quads else (convolve_single_points,)
        return in_regions(rewrite(graph, (contract_codes, *rules)), self)


@dataclass(frozen=True)
class _Scaled:
    """Floats `f32(integers) * scale`; the scale has dims of 1 where all share it."""

    integers: Any
    scale: Any


def _scaled(builder: Builder, value: Value) -> _Scaled | None:
    op = value.op
    if isinstance(op, Mul):
        for number, factor in (value.args, reversed(value.args)):
            integers, scale = _integers(builder, number), _scale(builder, factor)
            if integers is not None and scale is not None:
                return _Scaled(integers, scale)
        return None
    if not isinstance(op, Transpose | Reshape):
        return None
    inner = _scaled(builder, value.args[0])
    if inner is None:
        return None
    if isinstance(op, Transpose):
        return _Scaled(inner.integers.apply(op), inner.scale.apply(op))
    if any(dim != 1 for dim in inner.scale.shape):
        return None
    return _Scaled(inner.integers.apply(op), inner.scale.reshape((1,) * len(value.shape)))


def _integers(builder: Builder, value: Value) -> Any:
    """What is converted to f32, as i32, if it is made of 8-bit codes; None if not."""
    if not isinstance(value.op, Cast) or value.tensor.dtype != f32:
        return None
    source = value.args[0]
    is_code = source.tensor.dtype in (i8, u8)
    is_difference = source.tensor.dtype in (i16, i32) and codes_of(builder, source) is not None
    return Node(builder, source).cast(i32) if is_code or is_difference else None


def _scale(builder: Builder, value: Value) -> Any:
    if not isinstance(value.op, Broadcast):
        return None
    source = value.args[0]
    return Node(builder, source).reshape((1,) * (len(value.shape) - len(source.shape)) + source.shape)


def _is_right_length(depth: Dim) -> bool:
    return symbolic.less_equal(QUAD, depth) is True and symbolic.less(depth, LONGEST) is True


@rule(Contract)
def contract_codes(builder: Builder, value: Value) -> Value | None:
    """contract(f32(a) * s, f32(b) * t) -> f32(contract(a, b)) * (s * t)"""
    op = value.op
    assert isinstance(op, Contract)
    if value.tensor.dtype != f32 or op.result is not None:
        return None
    left, right = (_scaled(builder, operand) for operand in value.args)
    if left is None or right is None:
        return None
    depth: Dim = 1
    for letters, operand, scaled in zip((op.left, op.right), value.args, (left, right), strict=True):
        for n, letter in enumerate(letters):
            if letter in op.summed and scaled.scale.shape[n] != 1:
                return None
            if letter in op.summed and letters is op.left:
                depth = depth * operand.shape[n]
    if not _is_right_length(depth):
        return None
    total = left.integers.apply(op, right.integers).cast(f32)
    factors = [beside_result(op, scaled.scale, letters) for scaled, letters in ((left, op.left), (right, op.right))]
    return _times(total, *factors)


@rule(Convolution)
def convolve_codes(builder: Builder, value: Value) -> Value | None:
    """convolution(f32(a) * s, f32(w) * t) -> f32(convolution(a, w)) * (s * t)      t for each output channel"""
    found = _convolved(builder, value)
    if found is None or symbolic.less_equal(QUAD, value.args[1].shape[-2]) is not True:
        return None  # words hold neighbouring channels
    return _scaled_convolution(value, *found)


@rule(Convolution)
def convolve_single_points(builder: Builder, value: Value) -> Value | None:
    """The same where a window is one point: larger ones are interpolated in floats, faster than words of two codes"""
    taps = value.args[1].shape[:-2]
    return convolve_codes(builder, value) if all(tap == 1 for tap in taps) else None


@rule(Convolution)
def convolve_few_channels(builder: Builder, value: Value) -> Value | None:
    """The same with channels of zeros beside those of an image, so that they fill a word."""
    found = _convolved(builder, value)
    channels = value.args[1].shape[-2]
    if found is None or not isinstance(channels, int) or channels >= QUAD:
        return None
    data, weight = found
    codes, fixed = (codes_of(builder, operand.integers.value) for operand in found)
    if codes is None or codes.offset is not None or fixed is None or fixed.is_moved:
        return None
    rank, missing = len(value.shape), QUAD - channels
    wide = codes.codes.apply(movement.Pad((0,) * rank, (*(0,) * (rank - 1), missing))).cast(i32)
    taps = fixed.codes.apply(movement.Pad((0,) * rank, (*(0,) * (rank - 2), missing, 0))).cast(i32)
    moved = wide - codes.number if codes.number else wide  # of the channels beside, whatever meets zeros
    return _scaled_convolution(value, replace(data, integers=moved), replace(weight, integers=taps))


def _convolved(builder: Builder, value: Value) -> tuple[_Scaled, _Scaled] | None:
    """The operands of a convolution whose codes can be summed."""
    op = value.op
    assert isinstance(op, Convolution)
    if value.tensor.dtype != f32 or op.groups != 1 or op.layout != "channels_last":
        return None
    data, weight = (_scaled(builder, operand) for operand in value.args)
    if data is None or weight is None:
        return None
    if any(dim != 1 for dim in (*data.scale.shape, *weight.scale.shape[:-1])):
        return None
    return (data, weight) if _is_right_length(symbolic.product(value.args[1].shape[:-1])) else None


def _scaled_convolution(value: Value, data: _Scaled, weight: _Scaled) -> Value:
    assert isinstance(value.op, Convolution)
    total = data.integers.apply(value.op, weight.integers).cast(f32)
    rank = len(value.shape)
    return _times(total, data.scale.reshape((1,) * rank), weight.scale.reshape((1,) * (rank - 1) + weight.scale.shape[-1:]))


def _times(total: Any, left: Any, right: Any) -> Value:
    """Scales meet first: what is known of them is multiplied when the program is made."""
    shape = tuple(a if b == 1 else b for a, b in zip(left.shape, right.shape, strict=True))
    factor = left.broadcast_to(shape) * right.broadcast_to(shape)
    return (total * factor.broadcast_to(total.shape)).value
