"""Conversions between element types, in registers; scalars and vectors alike.

NumPy's astype, except that floats convert to integers by saturating, NaN to 0. No conversion calls a library
function: f16 without hardware support and bf16 everywhere are done on the bits.
"""

from __future__ import annotations

import math

from ingot.compiler.codegen.builder import Builder
from ingot.compiler.codegen.elements import register_type
from ingot.compiler.codegen.values import DOUBLE, FLOAT, HALF, I16, I32, Value, constant, like
from ingot.compiler.ir.scalar import Apply, Const, Scalar
from ingot.compiler.ir.types import DType, bf16, f16, f32, f64, u8
from ingot.compiler.target import Target


def is_clipped(value: Scalar, low: float, high: float) -> bool:
    """Whether a float is clipped by literals to a range inside this one; it may still be NaN."""
    least, most = -math.inf, math.inf
    while isinstance(value, Apply) and value.function.name in ("min", "max"):
        first, second = value.args
        bound, inner = (first, second) if isinstance(first, Const) else (second, first)
        if not isinstance(bound, Const):
            return False
        number = float(bound.value)
        if value.function.name == "min":
            most = min(most, number)
        else:
            least = max(least, number)
        value = inner
    return low <= least <= most <= high


def to_clipped_integer(builder: Builder, value: Value, result: DType) -> Value:
    """A float that is NaN or within the range of the integer."""
    number = builder.select(builder.fcmp_unordered("uno", value, value), constant(value.type, 0.0), value)
    return (builder.fptosi if result.kind == "int" else builder.fptoui)(number, register_type(result, value.lanes))


def convert(builder: Builder, target: Target, value: Value, source: DType, result: DType) -> Value:
    """`value` of type `source` as `result`."""
    if source == result:
        return value
    if source in (f16, bf16):
        return convert(builder, target, _widen(builder, target, value, source), f32, result)
    if result in (f16, bf16):
        return _narrow(builder, target, value, source, result)
    kind = register_type(result, value.lanes)
    if result.kind == "bool":
        return _to_bool(builder, value, source)
    if source.is_float:
        return _from_float(builder, value, source, result)
    if result.is_float:
        return (builder.sitofp if source.kind == "int" else builder.uitofp)(value, kind)
    if source.kind == "bool" or (source.bits < result.bits and source.kind == "uint"):
        return builder.zext(value, kind)
    return (builder.sext if source.bits < result.bits else builder.trunc)(value, kind)


def bitcast(builder: Builder, value: Value, source: DType, result: DType) -> Value:
    """The same bits as another type of the same width."""
    if source.kind == "bool":
        value = builder.zext(value, like(value.type, ir_byte()))
    if result.kind == "bool":
        return builder.icmp("!=", value, constant(value.type, 0), "u")
    return builder.bitcast(value, register_type(result, value.lanes))


def ir_byte():
    return register_type(u8)




def _to_bool(builder: Builder, value: Value, source: DType) -> Value:
    zero = constant(value.type, 0)
    if source.is_float:
        return builder.fcmp_unordered("!=", value, zero)
    return builder.icmp("!=", value, zero, "u")


def _from_float(builder: Builder, value: Value, source: DType, result: DType) -> Value:
    kind = register_type(result, value.lanes)
    if result.is_float:
        return (builder.fpext if result.bits > source.bits else builder.fptrunc)(value, kind)
    if result.bits < 32:
        return _to_narrow_integer(builder, value, result)
    return _to_wide_integer(builder, value, result)


def _to_wide_integer(builder: Builder, value: Value, result: DType) -> Value:
    """Integers of 32 or 64 bits, whose greatest number a float may not hold: what is beyond it is found by comparison.
    LLVM has an operation for it, and converts the lanes of a vector one by one then."""
    kind = register_type(result, value.lanes)
    signed = result.kind == "int"
    low, limit = (-(1 << (result.bits - 1)), 1 << (result.bits - 1)) if signed else (0, 1 << result.bits)
    least, beyond = (constant(value.type, float(number)) for number in (low, limit))
    inside = builder.select(builder.fcmp_ordered(">", value, least), value, least)
    inside = builder.select(builder.fcmp_ordered("<", inside, beyond), inside, least)
    whole = (builder.fptosi if signed else builder.fptoui)(inside, kind)
    whole = builder.select(builder.fcmp_ordered(">=", value, beyond), constant(kind, limit - 1), whole)
    if signed:
        whole = builder.select(builder.fcmp_unordered("uno", value, value), constant(kind, 0), whole)
    return whole


def _to_narrow_integer(builder: Builder, value: Value, result: DType) -> Value:
    """Integers of 8 or 16 bits: floats tell their bounds exactly, so the float is clipped and converted as 32 bits,
    for which there are vector instructions. `x > low ? x : low` is one of them, and `low` for a NaN."""
    signed = result.kind == "int"
    low, high = (-(1 << (result.bits - 1)), (1 << (result.bits - 1)) - 1) if signed else (0, (1 << result.bits) - 1)
    least, most, zero = (constant(value.type, float(number)) for number in (low, high, 0))
    clipped = builder.select(builder.fcmp_ordered(">", value, least), value, least)
    clipped = builder.select(builder.fcmp_ordered("<", clipped, most), clipped, most)
    if signed:
        clipped = builder.select(builder.fcmp_unordered("uno", value, value), zero, clipped)
    whole = builder.fptosi(clipped, like(value.type, I32))
    return builder.trunc(whole, register_type(result, value.lanes))


# --- 16-bit floats


def _widen(builder: Builder, target: Target, value: Value, source: DType) -> Value:
    """The bits of f16 or bf16 as f32; exact."""
    real, word = like(value.type, FLOAT), like(value.type, I32)
    if source == bf16:
        bits = builder.shl(builder.zext(value, word), constant(word, 16))
        return builder.bitcast(bits, real)
    if target.has_half:
        return builder.fpext(builder.bitcast(value, like(value.type, HALF)), real)
    return _widen_half(builder, value)


def _widen_half(builder: Builder, value: Value) -> Value:
    """Shift the fields into place and correct the exponent by a multiplication, which renormalises subnormals."""
    real, word = like(value.type, FLOAT), like(value.type, I32)
    bits = builder.zext(value, word)
    magnitude = builder.shl(builder.and_(bits, constant(word, 0x7FFF)), constant(word, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, real), constant(real, 2.0**112))
    is_special = builder.icmp(">=", magnitude, constant(word, 0x7C00 << 13), "u")
    special = builder.or_(magnitude, constant(word, 0x7F800000))
    finite = builder.bitcast(scaled, word)
    sign = builder.shl(builder.and_(bits, constant(word, 0x8000)), constant(word, 16))
    return builder.bitcast(builder.or_(builder.select(is_special, special, finite), sign), real)


def _narrow(builder: Builder, target: Target, value: Value, source: DType, result: DType) -> Value:
    """To the bits of f16 or bf16, rounded to nearest even; f64 to f16 is rounded once, all others go through f32."""
    if source == f64 and result == f16:
        value = _round_to_odd(builder, value)
    elif source != f32:
        value = convert(builder, target, value, source, f32)
    if result == bf16:
        return _narrow_brain(builder, value)
    if target.has_half:
        return builder.bitcast(builder.fptrunc(value, like(value.type, HALF)), like(value.type, I16))
    return _narrow_half(builder, value)


def _round_to_odd(builder: Builder, value: Value) -> Value:
    """f64 to f32 so that rounding again to fewer bits is as good as rounding once (Boldo and Melquiond, 2008)."""
    real, word = like(value.type, FLOAT), like(value.type, I32)
    double = like(value.type, DOUBLE)
    nearest = builder.fptrunc(value, real)
    back = builder.fpext(nearest, double)
    bits = builder.bitcast(nearest, word)
    is_even = builder.icmp("==", builder.and_(bits, constant(word, 1)), constant(word, 0), "u")
    inexact = builder.fcmp_ordered("!=", back, value)
    magnitude = builder.intrinsic("fabs", double, back)
    too_small = builder.fcmp_ordered("<", magnitude, builder.intrinsic("fabs", double, value))
    step = builder.select(too_small, constant(word, 1), constant(word, -1))
    moved = builder.select(builder.and_(is_even, inexact), builder.add(bits, step), bits)
    return builder.bitcast(moved, real)


def _narrow_brain(builder: Builder, value: Value) -> Value:
    """Add half a unit of the upper 16 bits, less one if they are even already; NaN stays NaN."""
    word, short = like(value.type, I32), like(value.type, I16)
    bits = builder.bitcast(value, word)
    upper = builder.lshr(bits, constant(word, 16))
    odd = builder.and_(upper, constant(word, 1))
    rounded = builder.add(builder.add(bits, constant(word, 0x7FFF)), odd)
    quiet = builder.or_(upper, constant(word, 0x40))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, builder.lshr(rounded, constant(word, 16))), short)


def _narrow_half(builder: Builder, value: Value) -> Value:
    """Subnormal results are rounded by an addition that aligns the bits, normal ones in integers."""
    real, word, short = like(value.type, FLOAT), like(value.type, I32), like(value.type, I16)

    def number(bits: int) -> Value:
        return constant(word, bits)

    bits = builder.bitcast(value, word)
    sign = builder.and_(builder.lshr(bits, number(16)), number(0x8000))
    magnitude = builder.and_(bits, number(0x7FFFFFFF))
    # An f32 whose last bit is worth the last bit of the smallest f16: adding it rounds there.
    aligner = 0x3F000000
    aligned = builder.fadd(builder.bitcast(magnitude, real), constant(real, 0.5))
    subnormal = builder.sub(builder.bitcast(aligned, word), number(aligner))
    odd = builder.and_(builder.lshr(magnitude, number(13)), number(1))
    rounded = builder.add(builder.add(magnitude, number(0xFFF - (112 << 23))), odd)
    normal = builder.lshr(rounded, number(13))
    is_subnormal = builder.icmp("<", magnitude, number(113 << 23), "u")
    finite = builder.select(is_subnormal, subnormal, normal)
    is_nan = builder.icmp(">", magnitude, number(0x7F800000), "u")
    special = builder.select(is_nan, number(0x7E00), number(0x7C00))
    is_special = builder.icmp(">=", magnitude, number((127 + 16) << 23), "u")
    return builder.trunc(builder.or_(builder.select(is_special, special, finite), sign), short)
