"""x modulo pi/2 for every finite x: what sin, cos and tan do first.

Moderate arguments subtract a multiple of pi/2 held in several parts (W. J. Cody, W. Waite, "Software Manual for the
Elementary Functions"). Larger ones multiply by 1/(2 pi) in fixed point, keeping only the bits that matter (M. Payne,
R. Hanek, "Radian reduction for trigonometric functions", 1983); that path is scalar, out of line, and taken only when
some lane needs it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from llvmlite import ir

from ingot.compiler.codegen.math.compensated import two_product, two_sum
from ingot.compiler.codegen.math.lanes import F32, F64, Lanes, choose, declared, fma, magnitude
from ingot.compiler.codegen.math.outline import any_lane, per_lane, private_function


def _parts(*numbers: str) -> tuple[float, ...]:
    return tuple(float.fromhex(number) for number in numbers)


_QUARTER_FUSED = {
    "f32": _parts("0x1.921fb6p+0", "-0x1.777a5cp-25", "-0x1.ee59dap-50"),
    "f64": _parts("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110"),
}
"""pi/2 in parts of full precision."""
_QUARTER_SHORT = _parts("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104")
"""pi/2 in parts of 33 bits, the last of 53: the products with counts below 2^20 are exact without a fused operation."""
_QUARTER_TWO_PARTS = _parts("0x1.921fb544p+0", "0x1.0b4611a626331p-34")
_COUNTS_PER_RADIAN = 2.0 / math.pi

_FAST_LIMIT_F32_FUSED = 2.0**15
_FAST_LIMIT = 2.0**20
"""Up to here the fast path is accurate to well below a unit in the last place, however close x is to a zero."""

_INVERSE_TURN = (
    0x0, 0x28BE60DB9391054A, 0x7F09D5F47D4D3770, 0x36D8A5664F10E410, 0x7F9458EAF7AEF158, 0x6DC91B8E909374B8,
    0x1924BBA82746487, 0x3F877AC72C4A69CF, 0xBA208D7D4BAED121, 0x3A671C09AD17DF90, 0x4E64758E60D4CE7D,
    0x272117E2EF7E4A0E, 0xC7FE25FFF7816603, 0xFBCBC462D6829B47, 0xDB4D9FB3C9F2C26D, 0xD3D18FD9A797FA8B,
    0x5D49EEB1FAF97C5E, 0xCF41CE7DE294A4BA, 0x9AFED7EC47E35742, 0x1580CC11BF1EDAEA, 0xFC33EF0826BD0D87,
)  # fmt: skip
"""The bits of 1/(2 pi), most significant first, after one word of zeros."""
_TURN = (float.fromhex("0x1.921fb54442d18p+2"), float.fromhex("0x1.1a62633145c07p-52"))
"""2 pi in two parts."""


class Reduced(NamedTuple):
    """``x = count * pi/2 + remainder + tail``, the tail if it was asked for. Of the count, the low two bits count."""

    remainder: Lanes
    tail: Lanes | None
    count: Lanes


def reduce(x: Lanes, with_tail: bool) -> Reduced:
    """Call this only inside an outlined function: it adds blocks."""
    builder = x.scope.builder
    fast = _reduce_moderate(x, with_tail)
    is_large = magnitude(x) > (_FAST_LIMIT_F32_FUSED if _is_fused_f32(x) else _FAST_LIMIT)
    entry = builder.block
    cold, join = builder.append_basic_block("large"), builder.append_basic_block("reduced")
    builder.cbranch(any_lane(is_large), cold, join)
    builder.position_at_end(cold)
    mixed = [
        None if quick is None or careful is None else choose(is_large, careful, quick)
        for quick, careful in zip(fast, _reduce_any(x, with_tail), strict=True)
    ]
    builder.branch(join)
    builder.position_at_end(join)

    def merged(quick: Lanes, careful: Lanes) -> Lanes:
        phi = builder.phi(quick.value.type)
        phi.add_incoming(quick.value, entry)
        phi.add_incoming(careful.value, cold)
        return Lanes(x.scope, quick.element, phi)

    remainder, tail, count = (
        None if quick is None or careful is None else merged(quick, careful)
        for quick, careful in zip(fast, mixed, strict=True)
    )
    assert remainder is not None
    assert count is not None
    return Reduced(remainder, tail, count)


def _is_fused_f32(x: Lanes) -> bool:
    return x.form is F32 and x.scope.target.has_fma


def _nearest_count(x: Lanes) -> tuple[Lanes, Lanes]:
    """The count as a float, and as integers."""
    shifted = fma(x, _COUNTS_PER_RADIAN, x.form.shifter)
    return shifted - x.form.shifter, shifted.encoded()


def _reduce_moderate(x: Lanes, with_tail: bool) -> Reduced:
    if x.scope.target.has_fma:
        return _reduce_fused(x, with_tail)
    if x.form is F32:
        wide = x.widened()
        count, integer = _nearest_count(wide)
        for part in _QUARTER_TWO_PARTS:
            wide = wide - count * part
        return _narrowed(wide, integer, with_tail)
    first, second, third, fourth = _QUARTER_SHORT
    count, integer = _nearest_count(x)
    high, low = two_sum(x - count * first, count * -second)
    high, lower = two_sum(high, count * -third)
    return Reduced(high, (low + lower) - count * fourth, integer)


def _reduce_fused(x: Lanes, with_tail: bool) -> Reduced:
    first, second, third = _QUARTER_FUSED[x.form.name]
    count, integer = _nearest_count(x)
    exact = fma(count, -first, x)
    if not with_tail:
        return Reduced(fma(count, -third, fma(count, -second, exact)), None, integer)
    product = two_product(count, -second)
    high, low = two_sum(exact, product.high)
    return Reduced(high, fma(count, -third, low + product.low), integer)


def _narrowed(wide: Lanes, count: Lanes, with_tail: bool) -> Reduced:
    """An f64 remainder as f32, the part that does not fit as the tail."""
    remainder = wide.narrowed()
    tail = (wide - remainder.widened()).narrowed() if with_tail else None
    return Reduced(remainder, tail, _low_half(count))


def _low_half(x: Lanes) -> Lanes:
    narrow = F32.integer_type
    return Lanes(x.scope, narrow, x.scope.builder.trunc(x.value, x.scope.shape(narrow)))


def _reduce_any(x: Lanes, with_tail: bool) -> Reduced:
    wide = x.widened() if x.form is F32 else x
    builder = x.scope.builder
    function = _scalar_reduction(builder.module)

    def one_lane(lane: ir.Value) -> list[ir.Value]:
        result = builder.call(function, [lane])
        return [builder.extract_value(result, i) for i in range(3)]

    high, low, count = per_lane([wide], [F64.real_type, F64.real_type, F64.integer_type], one_lane)
    high = high + (wide - wide)  # NaN for an infinity
    if x.form is F32:
        return _narrowed(high, count, with_tail)
    return Reduced(high, low if with_tail else None, count)


def _scalar_reduction(module: ir.Module) -> ir.Function:
    """double -> {remainder, tail, count}; meant for |x| >= 2^15, harmless for any other."""
    name = "ingot.math.reduce"
    if name in module.globals:
        return module.globals[name]
    real, i64 = F64.real_type, F64.integer_type
    kind = ir.FunctionType(ir.LiteralStructType([real, real, i64]), [real])
    function = private_function(module, name, kind, cold=True)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    bits = builder.bitcast(function.args[0], i64)
    turns = _fraction_of_turn(builder, bits)
    count, remainder = _split_turns(builder, turns)
    high, low = _radians(builder, remainder, bits)
    negative = builder.ashr(bits, i64(63))
    count = builder.sub(builder.xor(count, negative), negative)
    result: ir.Value = ir.Constant(function.function_type.return_type, ir.Undefined)
    for index, value in enumerate((high, low, count)):
        result = builder.insert_value(result, value, index)
    builder.ret(result)
    return function


def _fraction_of_turn(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """|x| / (2 pi) modulo 1, as a 128-bit fraction.

    |x| is an integer m of 53 bits times 2^s. The first s bits of 1/(2 pi) contribute whole turns, the 192 bits after
    them all that can matter.
    """
    i64, i128 = F64.integer_type, ir.IntType(128)
    table = _inverse_turn_table(builder.module)
    exponent = builder.and_(builder.lshr(bits, i64(52)), i64(0x7FF))
    mantissa = builder.or_(builder.and_(bits, i64(F64.fraction_mask)), i64(1 << 52))
    position = builder.sub(exponent, i64(F64.bias + F64.fraction_bits - 64))
    position = builder.select(builder.icmp_signed("<", position, i64(0)), i64(0), position)
    first, shift = builder.lshr(position, i64(6)), builder.and_(position, i64(63))
    words = []
    for i in range(4):
        address = builder.gep(table, [i64(0), builder.add(first, i64(i))], inbounds=True)
        words.append(builder.load(address, typ=i64))
    funnel = declared(builder.module, "llvm.fshl.i64", ir.FunctionType(i64, [i64] * 3))
    window = [builder.zext(builder.call(funnel, [words[i], words[i + 1], shift]), i128) for i in range(3)]
    m = builder.zext(mantissa, i128)
    top = builder.shl(builder.mul(m, window[0]), i128(64))
    bottom = builder.lshr(builder.mul(m, window[2]), i128(64))
    return builder.add(builder.add(top, builder.mul(m, window[1])), bottom)


def _inverse_turn_table(module: ir.Module) -> ir.GlobalVariable:
    name = "ingot.math.inverse_turn"
    if name in module.globals:
        return module.globals[name]
    kind = ir.ArrayType(F64.integer_type, len(_INVERSE_TURN))
    table = ir.GlobalVariable(module, kind, name)
    table.initializer = ir.Constant(kind, list(_INVERSE_TURN))
    table.global_constant = True
    table.linkage = "private"
    return table


def _split_turns(builder: ir.IRBuilder, turns: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Number of quarter turns, rounded to nearest, and the signed rest in units of 2^-128 turns."""
    i128 = ir.IntType(128)
    count = builder.lshr(builder.add(turns, i128(1 << 125)), i128(126))
    return builder.trunc(count, F64.integer_type), builder.sub(turns, builder.shl(count, i128(126)))


def _radians(builder: ir.IRBuilder, turns: ir.Value, x_bits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A signed 128-bit fraction of a turn in radians, as high and low part; negated if x is negative."""
    i64, i128, real = F64.integer_type, ir.IntType(128), F64.real_type
    negative = builder.icmp_signed("<", turns, i128(0))
    size = builder.select(negative, builder.sub(i128(0), turns), turns)
    counter = declared(builder.module, "llvm.ctlz.i128", ir.FunctionType(i128, [i128, ir.IntType(1)]))
    zeros = builder.call(counter, [builder.or_(size, i128(1)), ir.IntType(1)(1)])
    normal = builder.shl(size, zeros)
    head = builder.sitofp(builder.trunc(builder.lshr(normal, i128(75)), i64), real)
    rest = builder.and_(builder.lshr(normal, i128(22)), i128(F64.fraction_mask * 2 + 1))
    tail = builder.fmul(builder.sitofp(builder.trunc(rest, i64), real), real(2.0**-53))
    exponent = builder.sub(i64(F64.bias - 53), builder.trunc(zeros, i64))
    sign = builder.xor(builder.and_(x_bits, i64(1 << 63)), builder.select(negative, i64(1 << 63), i64(0)))
    scale = builder.bitcast(builder.or_(sign, builder.shl(exponent, i64(52))), real)
    head, tail = builder.fmul(head, scale), builder.fmul(tail, scale)
    # Multiply by 2 pi: the head is split so that its products with the short part of pi are exact.
    high = builder.fmul(head, real(_TURN[0]))
    error = _product_error(builder, head, high)
    low = builder.fadd(builder.fmul(head, real(_TURN[1])), builder.fmul(tail, real(_TURN[0])))
    return high, builder.fadd(error, low)


def _product_error(builder: ir.IRBuilder, head: ir.Value, product: ir.Value) -> ir.Value:
    """head * 2 pi - product, by Dekker's splitting: this path is too rare to need a fused version."""
    i64, real = F64.integer_type, F64.real_type
    turn_high = float.fromhex("0x1.921fb5p+2")
    turn_low = _TURN[0] - turn_high
    truncated = builder.and_(builder.bitcast(head, i64), i64(-(1 << 27)))
    head_high = builder.bitcast(truncated, real)
    head_low = builder.fsub(head, head_high)
    error = builder.fsub(builder.fmul(head_high, real(turn_high)), product)
    for a, b in ((head_high, turn_low), (head_low, turn_high), (head_low, turn_low)):
        error = builder.fadd(error, builder.fmul(a, real(b)))
    return error
