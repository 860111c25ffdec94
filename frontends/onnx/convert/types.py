"""Conversions of element types."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ir.types import DTYPES, boolean
from ingot.compiler.ops.bits import Bitcast
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call, NotTraceable
from ingot.frontends.onnx.codes import converted
from ingot.frontends.onnx.elements import STRING, Element, is_plain
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.shapes import fold
from ingot.frontends.onnx.values import Coded, Dims, Held, Opaque, Value, element_of_value


@onnx_op("Cast", raw=True)
def cast(op: Call, x: Value) -> Any:
    kind = op.element("to") if not isinstance(op.get("to"), str) else _by_name(op, op.get("to"))
    return _cast(op, x, kind)


def _by_name(op: Call, name: str) -> Element:
    """Before opset 6 types were named by text."""
    found = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9,
             "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13}.get(name, 0)  # fmt: skip
    return op.element("", found)


@onnx_op("CastLike", raw=True)
def cast_like(op: Call, x: Value, like: Value) -> Any:
    if isinstance(like, Opaque | Held):
        raise NotTraceable("a cast to strings")
    return _cast(op, x, element_of_value(like))


def _cast(op: Call, x: Value, kind: Element) -> Value:
    if isinstance(x, Opaque | Held) or kind is STRING:
        raise NotTraceable("a cast from or to strings")
    if isinstance(x, np.ndarray):
        if x.dtype == object:
            raise NotTraceable("a cast from strings")
        if kind.storage is not None and not kind.is_coded and is_plain(x) and x.size <= 4096:
            return _numpy_cast(x, kind)
    if isinstance(x, Dims) and op.name == "Cast":
        folded = fold(op, [x])
        if folded is not None:
            return folded[0]
    return converted(op, x, kind, bool(op.get("saturate", 1)), op.get("round_mode", "up"))


def _numpy_cast(x: np.ndarray, kind: Element) -> np.ndarray:
    assert kind.storage is not None
    with np.errstate(all="ignore"):
        return x.astype(kind.numpy)


@onnx_op("BitCast", raw=True)
def bit_cast(op: Call, x: Value) -> Any:
    """The same bits as a type of the same width."""
    kind = op.element("to")
    tensor, source = op.stored(x)
    op.require(
        kind.storage is not None and kind.bits == source.bits, Kind.ELEMENT_TYPE, f"{source} and {kind} differ in width"
    )
    assert kind.storage is not None
    assert source.storage is not None
    bits = _as_bits(tensor, source)
    if kind.is_coded:
        return Coded(_from_bits(bits, kind), kind)
    if kind.storage == boolean:
        return bits != 0
    return bits if bits.dtype == kind.storage else bits.apply(Bitcast(kind.storage))


def _as_bits(tensor: Tensor, source: Element) -> Any:
    """An unsigned integer of the element's bits."""
    assert source.storage is not None
    if source.bits < 8:
        return (tensor & ((1 << source.bits) - 1)).cast(DTYPES["u8"])
    wanted = DTYPES[f"u{source.storage.bits}"]
    if source.storage == boolean:
        return tensor.cast(wanted)
    return tensor if tensor.dtype == wanted else tensor.apply(Bitcast(wanted))


def _from_bits(bits: Tensor, kind: Element) -> Any:
    assert kind.storage is not None
    if kind.name in ("INT4", "INT2"):
        sign = 1 << (kind.bits - 1)
        wide = bits.cast(DTYPES["i8"])
        return (wide ^ sign) - sign
    return bits
