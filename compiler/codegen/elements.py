"""How an element type is held: in memory, and in a register.

bool is a byte in memory and an i1 in a register; f16 and bf16 are their bits, an i16, in both, because arithmetic on
them is done in f32 and LLVM would call library functions for theirs.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from ingot.compiler.codegen.values import DOUBLE, FLOAT, I1, I8, I16, I32, I64, Value, constant, vector_type
from ingot.compiler.ir.types import DTYPES, DType, boolean

_INTEGERS = {8: I8, 16: I16, 32: I32, 64: I64}


def register_type(dtype: DType, lanes: int = 0) -> ir.Type:
    """The type of a value of `dtype`, or of a vector of them."""
    return _register(dtype.name, lanes)


def memory_type(dtype: DType, lanes: int = 0) -> ir.Type:
    """The type of `dtype` in memory."""
    return _memory(dtype.name, lanes)


@functools.cache
def _register(name: str, lanes: int) -> ir.Type:
    return vector_type(_REGISTERS[name], lanes) if lanes else _REGISTERS[name]


@functools.cache
def _memory(name: str, lanes: int) -> ir.Type:
    return vector_type(_MEMORY[name], lanes) if lanes else _MEMORY[name]


def _register_element(dtype: DType) -> ir.Type:
    if dtype.kind == "bool":
        return I1
    if dtype.is_float and dtype.bits >= 32:
        return DOUBLE if dtype.bits == 64 else FLOAT
    return _INTEGERS[dtype.bits]


_REGISTERS: dict[str, ir.Type] = {name: _register_element(dtype) for name, dtype in DTYPES.items()}
_MEMORY: dict[str, ir.Type] = {**_REGISTERS, boolean.name: I8}
_MEMORY_TEXTS: dict[str, str] = {name: str(kind) for name, kind in _MEMORY.items()}


def memory_text(dtype: DType, lanes: int = 0) -> str:
    """The type of `dtype` in memory, as text."""
    element = _MEMORY_TEXTS[dtype.name]
    return f"<{lanes} x {element}>" if lanes else element


def vector_in_memory(dtype: DType, lanes: int) -> tuple[ir.Type, str, int]:
    """The type of so many elements in memory, 0 for one alone, as text too, and its alignment."""
    return _vector_in_memory(dtype.name, lanes, dtype.itemsize)


@functools.cache
def _vector_in_memory(name: str, lanes: int, itemsize: int) -> tuple[ir.Type, str, int]:
    element = _MEMORY_TEXTS[name]
    return _memory(name, lanes), f"<{lanes} x {element}>" if lanes else element, itemsize


def number(value: int | float | bool, dtype: DType, lanes: int = 0) -> Value:
    """A constant of `dtype` in register form."""
    kind = register_type(dtype, lanes)
    if dtype.is_float and dtype.bits == 16:
        return constant(kind, int(dtype.numpy.type(value).view("u2")))
    if dtype.kind == "float" and dtype.bits == 32:
        return constant(kind, float(dtype.numpy.type(value)))
    return constant(kind, value)
