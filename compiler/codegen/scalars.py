"""The functions of `ir.scalar` on registers: one entry a function, for a scalar or for all lanes of a vector alike.

NumPy is the specification (`FUNCTIONS[name].evaluate`), plus: integer division by zero gives 0, the most negative
integer divided by -1 wraps, and nothing traps. Elementary functions come from `codegen.math`.
Invariant: the scalar and the vector form of a function give the same bits, so a loop's tail may use either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Template

from llvmlite import ir

from ingot.compiler.codegen.builder import Builder, Module
from ingot.compiler.codegen.convert import convert
from ingot.compiler.codegen.math import UNARY, MathTarget
from ingot.compiler.codegen.recording import guarded, recorded
from ingot.compiler.codegen.values import (
    I1,
    Value,
    constant,
    element_of,
    like,
    mangled,
    number_of,
    truth_of,
    vector_type,
)
from ingot.compiler.ir.types import DType, f32
from ingot.compiler.target import Target


@dataclass(frozen=True)
class Operation:
    """One application of a function: where it is emitted and the dtype of its arguments."""

    builder: Builder
    target: Target
    dtype: DType  # of the first argument that is not a condition
    second: DType  # of the second argument: shifts take any integer

    @functools.cached_property
    def is_float(self) -> bool:
        return self.dtype.is_float

    @functools.cached_property
    def is_signed(self) -> bool:
        return self.dtype.kind == "int"

    @property
    def sign(self) -> str:
        return "s" if self.is_signed else "u"

    def number(self, like_value: Value, value: float) -> Value:
        return constant(like_value.type, value)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        return self.builder.intrinsic(name, arguments[0].type, *arguments)

    def compare(self, relation: str, left: Value, right: Value) -> Value:
        """NumPy's comparison: NaN is unequal to everything and in no order with anything."""
        if self.is_float:
            ordered = relation != "!="
            return (self.builder.fcmp_ordered if ordered else self.builder.fcmp_unordered)(relation, left, right)
        return self.builder.icmp(relation, left, right, self.sign)

    def is_nan(self, x: Value) -> Value:
        return self.builder.fcmp_unordered("uno", x, x)


def application(operation: Operation, name: str) -> Callable[[Sequence[Value]], Value]:
    """The function of arguments in register form, all scalars or all vectors of the same number of lanes."""
    dtype = operation.dtype
    if dtype.compute is not dtype and name != "select":
        return lambda arguments: _apply_wide(operation, name, arguments)
    function = _FUNCTIONS.get(name)
    if function is not None:
        return lambda arguments: function(operation, *arguments)
    return lambda arguments: elementary(operation, name, *arguments)


def elementary(operation: Operation, name: str, *arguments: Value) -> Value:
    """A function of `codegen.math`. Vectors of several registers are worth a look at all of them first."""
    target = operation.target
    facts = MathTarget(target.has_fma, target.has_round, target.has_lookup, target.has_short_lookup)
    first = arguments[0]
    wide = first.lanes * operation.dtype.itemsize > target.vector_bytes
    if wide and name in UNARY and UNARY[name].has_ordinary(element_of(first.type), facts):
        return guarded(name, first, facts, operation.builder)
    return recorded(name, tuple(argument.text for argument in arguments), facts).replay(operation.builder, arguments)


def _apply_wide(operation: Operation, name: str, arguments: Sequence[Value]) -> Value:
    """f16 and bf16: computed in f32 and rounded back."""
    builder, target, dtype = operation.builder, operation.target, operation.dtype
    wide = [convert(builder, target, argument, dtype, f32) for argument in arguments]
    result = application(Operation(builder, target, f32, f32), name)(wide)
    return result if element_of(result.type) == I1 else convert(builder, target, result, f32, dtype)


def _add(op: Operation, x: Value, y: Value) -> Value:
    return op.builder.fadd(x, y) if op.is_float else op.builder.add(x, y)


def _sub(op: Operation, x: Value, y: Value) -> Value:
    return op.builder.fsub(x, y) if op.is_float else op.builder.sub(x, y)


def _mul(op: Operation, x: Value, y: Value) -> Value:
    return op.builder.fmul(x, y) if op.is_float else op.builder.mul(x, y)


def _fma(op: Operation, x: Value, y: Value, z: Value) -> Value:
    if op.is_float and op.target.has_fma:
        return op.intrinsic("fma", x, y, z)
    return _add(op, _mul(op, x, y), z)


def _neg(op: Operation, x: Value) -> Value:
    return op.builder.fneg(x) if op.is_float else op.builder.neg(x)


def _abs(op: Operation, x: Value) -> Value:
    if op.is_float:
        return op.intrinsic("fabs", x)
    if not op.is_signed:
        return x
    return op.builder.intrinsic("abs", x.type, x, constant(I1, 0))


def _sign(op: Operation, x: Value) -> Value:
    zero, one = op.number(x, 0), op.number(x, 1)
    positive = op.builder.select(op.compare(">", x, zero), one, zero)
    if op.dtype.kind == "uint":
        return positive
    signed = op.builder.select(op.compare("<", x, zero), op.number(x, -1), positive)
    return op.builder.select(op.is_nan(x), x, signed) if op.is_float else signed


def _max(op: Operation, x: Value, y: Value) -> Value:
    return _extremum(op, ">", "maximum", x, y)


def _min(op: Operation, x: Value, y: Value) -> Value:
    return _extremum(op, "<", "minimum", x, y)


def _extremum(op: Operation, relation: str, name: str, x: Value, y: Value) -> Value:
    """NaN wins. `x > y ? x : y` is one x86 instruction and keeps a NaN in y, so a constant stands first."""
    builder = op.builder
    if op.dtype.kind == "bool":
        return builder.or_(x, y) if relation == ">" else builder.and_(x, y)
    if not op.is_float:
        return builder.intrinsic(f"{op.sign}{name[:3]}", x.type, x, y)
    if not op.target.is_x86:
        return op.intrinsic(name, x, y)
    if _is_number(y):
        x, y = y, x
    larger = builder.select(builder.fcmp_ordered(relation, x, y), x, y)
    return larger if _is_number(x) else builder.select(op.is_nan(x), x, larger)


def _is_number(value: Value) -> bool:
    return value.scope is None and value.ref != "poison" and "0x7ff8" not in value.ref and "0xfff8" not in value.ref


def _div(op: Operation, x: Value, y: Value) -> Value:
    return op.builder.fdiv(x, y)


# --- integer division


def _safe_divisor(op: Operation, x: Value, y: Value) -> tuple[Value, Value]:
    """(a divisor that cannot trap, whether the true one is zero)"""
    builder = op.builder
    is_zero = builder.icmp("==", y, op.number(y, 0), "u")
    unsafe = is_zero
    if op.is_signed:
        lowest = op.number(x, -(1 << (op.dtype.bits - 1)))
        overflows = builder.and_(builder.icmp("==", x, lowest, "u"), builder.icmp("==", y, op.number(y, -1), "u"))
        unsafe = builder.or_(is_zero, overflows)
    # x / 1 is x and x % 1 is 0: just what wrapping division by -1 gives for the lowest integer
    return builder.select(unsafe, op.number(y, 1), y), is_zero


def _quotient(op: Operation, x: Value, y: Value) -> Value:
    return op.builder.sdiv(x, y) if op.is_signed else op.builder.udiv(x, y)


def _rest(op: Operation, x: Value, y: Value) -> Value:
    return op.builder.srem(x, y) if op.is_signed else op.builder.urem(x, y)


def _truncdiv(op: Operation, x: Value, y: Value) -> Value:
    divisor, is_zero = _safe_divisor(op, x, y)
    return op.builder.select(is_zero, op.number(x, 0), _quotient(op, x, divisor))


def _floordiv(op: Operation, x: Value, y: Value) -> Value:
    if op.is_float:
        return elementary(op, "floor_divide", x, y)
    divisor, is_zero = _safe_divisor(op, x, y)
    quotient = _quotient(op, x, divisor)
    if op.is_signed:
        below = _signs_differ(op, _rest(op, x, divisor), divisor)
        quotient = op.builder.select(below, op.builder.sub(quotient, op.number(x, 1)), quotient)
    return op.builder.select(is_zero, op.number(x, 0), quotient)


def _mod(op: Operation, x: Value, y: Value) -> Value:
    if op.is_float:
        return elementary(op, "mod", x, y)
    divisor, is_zero = _safe_divisor(op, x, y)
    rest = _rest(op, x, divisor)
    if op.is_signed:
        rest = op.builder.select(_signs_differ(op, rest, divisor), op.builder.add(rest, divisor), rest)
    return op.builder.select(is_zero, op.number(x, 0), rest)


def _fmod(op: Operation, x: Value, y: Value) -> Value:
    if op.is_float:
        return elementary(op, "fmod", x, y)
    divisor, is_zero = _safe_divisor(op, x, y)
    return op.builder.select(is_zero, op.number(x, 0), _rest(op, x, divisor))


def _signs_differ(op: Operation, rest: Value, divisor: Value) -> Value:
    """The rest is not zero and has the other sign than the divisor."""
    zero = op.number(rest, 0)
    differ = op.builder.icmp("<", op.builder.xor(rest, divisor), zero, "s")
    return op.builder.and_(op.builder.icmp("!=", rest, zero, "u"), differ)


# --- powers of integers


def _pow(op: Operation, x: Value, y: Value) -> Value:
    if op.is_float:
        return elementary(op, "pow", x, y)
    exponent = number_of(y)
    if exponent is not None and exponent >= 0:
        return _constant_power(op, x, exponent)
    builder, one = op.builder, op.number(x, 1)
    power = _power_function(builder.program, x)
    result = builder.pure(x.type, x.text, f"call {x.text} {power}({x!r}, {y!r})", (x, y))
    if not op.is_signed:
        return result
    # A negative power is the integer part of a fraction: 0, unless the base is 1 or -1.
    odd = builder.icmp("!=", builder.and_(y, one), op.number(y, 0), "u")
    minus_one = op.number(x, -1)
    of_minus_one = builder.select(odd, minus_one, one)
    is_one = builder.icmp("==", x, one, "u")
    is_minus_one = builder.icmp("==", x, minus_one, "u")
    fraction = builder.select(is_one, one, builder.select(is_minus_one, of_minus_one, op.number(x, 0)))
    return builder.select(builder.icmp("<", y, op.number(y, 0), "s"), fraction, result)


def _constant_power(op: Operation, x: Value, exponent: int) -> Value:
    result: Value | None = None
    base = x
    while exponent:
        if exponent & 1:
            result = base if result is None else op.builder.mul(result, base)
        exponent >>= 1
        if exponent:
            base = op.builder.mul(base, base)
    return op.number(x, 1) if result is None else result


def _power_function(module: Module, like_value: Value) -> str:
    """A private function: repeated squaring until no lane has a bit of its exponent left."""
    kind, text = like_value.type, like_value.text
    name = f"ingot.power.{mangled(kind)}"
    if name not in module.declarations:
        one, zero = constant(kind, 1).ref, constant(kind, 0).ref
        if like_value.lanes:
            lanes = f"<{like_value.lanes} x i1>"
            reduce = module.declare(f"llvm.vector.reduce.or.v{like_value.lanes}i1", "i1", lanes)
            test = f"call i1 {reduce}({lanes} %live)"
        else:
            test = "and i1 %live, true"
        module.declarations[name] = _POWER.substitute(
            name=name, kind=text, truth=str(like(kind, I1)), one=one, zero=zero, test=test
        )
    return f"@{name}"


_POWER = Template("""\
define private $kind @$name($kind %x, $kind %y) nounwind {
entry:
  br label %test
test:
  %result = phi $kind [ $one, %entry ], [ %product, %step ]
  %base = phi $kind [ %x, %entry ], [ %square, %step ]
  %rest = phi $kind [ %y, %entry ], [ %half, %step ]
  %live = icmp ne $kind %rest, $zero
  %any = $test
  br i1 %any, label %step, label %done
step:
  %bit = and $kind %rest, $one
  %odd = icmp ne $kind %bit, $zero
  %times = mul $kind %result, %base
  %product = select $truth %odd, $kind %times, $kind %result
  %square = mul $kind %base, %base
  %half = lshr $kind %rest, $one
  br label %test
done:
  ret $kind %result
}""")


# --- bits


def _not(op: Operation, x: Value) -> Value:
    return op.builder.not_(x)


def _and(op: Operation, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        decided = truth_of(one)
        if decided is not None:
            return other if decided else one
    return op.builder.and_(x, y)


def _or(op: Operation, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        decided = truth_of(one)
        if decided is not None:
            return one if decided else other
    return op.builder.or_(x, y)


def _shift(op: Operation, x: Value, y: Value, code: Callable[[Value, Value], Value], beyond: Value) -> Value:
    """Shifts by the width or more, negative counts included, give `beyond`."""
    builder, bits = op.builder, op.dtype.bits
    known = number_of(y)
    if known is not None and 0 <= known < bits:
        return code(x, op.number(x, known))
    too_far = builder.icmp(">=", y, op.number(y, bits), "u")
    count = builder.and_(convert(builder, op.target, y, op.second, op.dtype), op.number(x, bits - 1))
    return builder.select(too_far, beyond, code(x, count))


def _shl(op: Operation, x: Value, y: Value) -> Value:
    return _shift(op, x, y, op.builder.shl, op.number(x, 0))


def _shr(op: Operation, x: Value, y: Value) -> Value:
    if not op.is_signed:
        return _shift(op, x, y, op.builder.lshr, op.number(x, 0))
    return _shift(op, x, y, op.builder.ashr, op.builder.ashr(x, op.number(x, op.dtype.bits - 1)))


# --- words of two


def _pair(op: Operation, low: Value, high: Value) -> Value:
    half = op.dtype.bits // 2
    builder = op.builder
    return builder.or_(builder.shl(high, op.number(high, half)), builder.and_(low, op.number(low, (1 << half) - 1)))


# The instruction for words of 32 bits by lanes. LLVM makes one of it and the addition to a sum where there is such
# an instruction (AVX-VNNI, AVX512-VNNI).
_DOT_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


def _dot_pairs(op: Operation, x: Value, y: Value) -> Value:
    builder, half = op.builder, op.dtype.bits // 2
    known = op.target.is_x86 and op.dtype.bits == 32 and 4 * x.lanes <= op.target.vector_bytes
    name = _DOT_PAIRS.get(x.lanes) if known else None
    if name is not None:
        narrow = vector_type(ir.IntType(half), 2 * x.lanes)
        function = builder.program.declare(f"llvm.x86.{name}", x.text, f"{narrow}, {narrow}")
        a, b = builder.bitcast(x, narrow), builder.bitcast(y, narrow)
        return builder.pure(x.type, x.text, f"call {x.text} {function}({a!r}, {b!r})", (a, b))
    count = op.number(x, half)

    def halves(word: Value) -> tuple[Value, Value]:
        return builder.ashr(builder.shl(word, count), count), builder.ashr(word, count)

    (a, b), (c, d) = halves(x), halves(y)
    return builder.add(builder.mul(a, c), builder.mul(b, d))


# --- words of four


def _quad(op: Operation, *parts: Value) -> Value:
    builder, size = op.builder, op.dtype.bits // 4
    word, *others = (builder.and_(part, op.number(part, (1 << size) - 1)) for part in parts)
    for n, part in enumerate(others, 1):
        word = builder.or_(word, builder.shl(part, op.number(part, n * size)))
    return word


_DOT_QUADS = {4: "128", 8: "256", 16: "512"}  # the instruction for words of 32 bits by lanes


def _dot_quads(op: Operation, unsigned: Value, signed: Value, total: Value) -> Value:
    builder, size = op.builder, op.dtype.bits // 4
    known = op.target.has_quads and op.dtype.bits == 32 and 4 * total.lanes <= op.target.vector_bytes
    name = _DOT_QUADS.get(total.lanes) if known else None
    if name is not None:
        text = total.text  # LLVM 22 prefers operands of 8 bits and takes words, older ones take words only
        function = builder.program.declare(f"llvm.x86.avx512.vpdpbusd.{name}", text, f"{text}, {text}, {text}")
        body = f"call {text} {function}({total!r}, {unsigned!r}, {signed!r})"
        return builder.pure(total.type, text, body, (total, unsigned, signed))
    for n in range(4):
        x = builder.and_(builder.lshr(unsigned, op.number(unsigned, n * size)), op.number(unsigned, (1 << size) - 1))
        y = builder.ashr(builder.shl(signed, op.number(signed, (3 - n) * size)), op.number(signed, 3 * size))
        total = builder.add(total, builder.mul(x, y))
    return total


# --- tests


def _comparison(relation: str) -> Callable[..., Value]:
    return lambda op, x, y: op.compare(relation, x, y)


def _isnan(op: Operation, x: Value) -> Value:
    return op.is_nan(x)


def _isinf(op: Operation, x: Value) -> Value:
    return op.builder.fcmp_ordered("==", op.intrinsic("fabs", x), op.number(x, float("inf")))


def _select(op: Operation, condition: Value, yes: Value, no: Value) -> Value:
    return op.builder.select(condition, yes, no)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "add": _add, "sub": _sub, "mul": _mul, "fma": _fma, "neg": _neg, "abs": _abs, "sign": _sign,
    "max": _max, "min": _min, "div": _div, "floordiv": _floordiv, "truncdiv": _truncdiv, "mod": _mod,
    "fmod": _fmod, "pow": _pow, "not": _not, "shl": _shl, "shr": _shr, "select": _select,
    "sqrt": lambda op, x: op.intrinsic("sqrt", x),
    "rsqrt": lambda op, x: op.builder.fdiv(op.number(x, 1), op.intrinsic("sqrt", x)),
    "copysign": lambda op, x, y: op.intrinsic("copysign", x, y),
    "and": _and, "or": _or, "pair": _pair, "dot_pairs": _dot_pairs,
    "quad": _quad, "dot_us": _dot_quads, "dot_su": lambda op, x, y, z: _dot_quads(op, y, x, z),
    "xor": lambda op, x, y: op.builder.xor(x, y),
    "eq": _comparison("=="), "ne": _comparison("!="), "lt": _comparison("<"), "le": _comparison("<="),
    "gt": _comparison(">"), "ge": _comparison(">="), "isnan": _isnan, "isinf": _isinf,
}  # fmt: skip
