"""Conversions between element types, those that are coded included, as traced arithmetic.

A coded float has `mantissa` bits after its exponent, biased by `bias`; decoding looks its value up, encoding rounds to
the nearest code (ties to even) from the bits of an f32. Narrow integers keep the low bits of what is converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir.types import DType, boolean, f32, i32, u8
from ingot.compiler.ops.indexing import Gather
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import Element
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.values import Coded, Value


@dataclass(frozen=True)
class Format:
    """A coded float: sign bit, exponent, mantissa. `overflow` and `nan` are the codes (without sign) that they give."""

    mantissa: int
    bias: int
    largest: int  # code of the largest finite number
    overflow: int
    nan: int
    sign: int = 0x80
    unsigned_zero: bool = False  # no -0, and NaN has the code of what would be it


FORMATS: dict[str, Format] = {
    "FLOAT8E4M3FN": Format(3, 7, 0x7E, 0x7F, 0x7F),
    "FLOAT8E4M3FNUZ": Format(3, 8, 0x7F, 0x80, 0x80, unsigned_zero=True),
    "FLOAT8E5M2": Format(2, 15, 0x7B, 0x7C, 0x7E),
    "FLOAT8E5M2FNUZ": Format(2, 16, 0x7F, 0x80, 0x80, unsigned_zero=True),
    "FLOAT4E2M1": Format(1, 1, 0x07, 0x07, 0x00, sign=0x08),
}


def decoded(op: Call, value: Value, wanted: DType | None = None) -> Any:
    """The numbers of a value as a tensor that can be computed with: f32 for coded floats, integers as they are."""
    if not isinstance(value, Coded):
        tensor, kind = op.stored(value)
        if not kind.is_coded:
            return tensor if wanted is None else tensor.cast(wanted)
        value = Coded(tensor, kind)
    result = _decoded_float(op, value) if value.element.is_coded_float else value.tensor
    return result if wanted is None else result.cast(wanted)


def _decoded_float(op: Call, value: Coded) -> Any:
    codes = np.arange(1 << value.element.bits, dtype=np.uint8)
    table = op.constant(codes.view(value.element.numpy).astype(np.float32))
    return table.apply(Gather(0), value.tensor)


def encoded(op: Call, x: Tensor, kind: Element, saturate: bool = True, round_mode: str = "up") -> Value:
    """Numbers as values of an element type."""
    if kind.storage is None:
        raise ProblemError(Kind.ELEMENT_TYPE, f"{op.name} into {kind} is not supported")
    if not kind.is_coded:
        return x.cast(kind.storage)
    if kind.name == "FLOAT8E8M0":
        return Coded(_scale_code(x, saturate, round_mode), kind)
    if kind.is_coded_float:
        return Coded(_float_code(x, FORMATS[kind.name], saturate), kind)
    return Coded(_low_bits(x, kind), kind)


def _low_bits(x: Tensor, kind: Element) -> Any:
    """The low bits of the truncated number, sign extended where the type has a sign."""
    assert kind.storage is not None
    whole = x.cast(i32)
    if kind.name.startswith("U"):
        return (whole & ((1 << kind.bits) - 1)).cast(kind.storage)
    unused = 32 - kind.bits
    return ((whole << unused) >> unused).cast(kind.storage)


def _float_code(x: Tensor, form: Format, saturate: bool) -> Any:
    wide = x.cast(f32)
    bits = wide.bitcast(dtype=i32)
    size = bits & 0x7FFFFFFF
    magnitude = size.bitcast(dtype=f32)
    # normal numbers: drop mantissa bits, rounding to even, and move the exponent
    drop = 23 - form.mantissa
    rounded = (size + ((1 << (drop - 1)) - 1) + ((size >> drop) & 1)) >> drop
    normal = rounded - ((127 - form.bias) << form.mantissa)
    # subnormal numbers: a multiple of the smallest one
    steps = (magnitude * float(2.0 ** (form.bias - 1 + form.mantissa))).round().cast(i32)
    code = (magnitude < float(2.0 ** (1 - form.bias))).where(steps, normal)
    too_large = code > form.largest
    code = too_large.where(form.largest if saturate else form.overflow, code)
    code = wide.is_nan().where(form.nan, code)
    negative = (bits < 0) & ~wide.is_nan()  # which sign a NaN has is left open by arithmetic
    if form.unsigned_zero:
        negative = negative & (code != 0)
    return negative.where(code | form.sign, code).cast(u8)


def _scale_code(x: Tensor, saturate: bool, round_mode: str) -> Any:
    """E8M0: the exponent of a power of two; infinities and NaN are NaN."""
    bits = x.cast(f32).bitcast(dtype=i32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    match round_mode:
        case "up":
            more = fraction > 0
        case "nearest":
            more = (fraction >= 0x400000) & ((exponent > 0) | (fraction > 0x400000))
        case "down":
            more = (fraction > 0) & (fraction < 0)
        case _:
            raise ProblemError(Kind.BAD_ATTRIBUTE, f"round_mode {round_mode!r} is not up, down or nearest")
    if saturate:
        more = more & (exponent != 0xFE)
    special = exponent == 0xFF
    return special.where(0xFF, exponent + (more & (exponent != 0xFF)).cast(i32)).cast(u8)


def converted(op: Call, value: Value, kind: Element, saturate: bool = True, round_mode: str = "up") -> Value:
    """A value as another element type."""
    if isinstance(value, Coded) and value.element is kind:
        return value
    x = decoded(op, value)
    if kind.storage == boolean:
        return x if x.dtype == boolean else x != 0
    return encoded(op, x, kind, saturate, round_mode)
