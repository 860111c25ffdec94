"""Elementary functions, built once and written out again with other operands.

An unrolled loop applies `tanh` to a dozen registers. Building the same fifty instructions a dozen times is most of the
time of emitting such a kernel; copying their text with the names moved up is not.
Invariant: a recording is straight-line code of pure instructions, which all depend on its operands.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ingot.compiler.codegen import math
from ingot.compiler.codegen.builder import Builder, Module
from ingot.compiler.codegen.math import MathTarget
from ingot.compiler.codegen.values import DOUBLE, FLOAT, Value

_NAME = re.compile(r"%(v|x)(\d+)\b")
_ELEMENTS = {"float": FLOAT, "double": DOUBLE}


@dataclass(frozen=True)
class Recording:
    """Pieces of text; between them the numbers of results (>= 0) and of operands (-1, -2, ...)."""

    name: str
    pieces: tuple[str | int, ...]
    names: int  # how many numbers the results take up
    result: Value
    globals: dict[str, str]

    def replay(self, builder: Builder, operands: Sequence[Value]) -> Value:
        key = (self.name, self.result.text, *(operand.ref for operand in operands))
        known = builder.recall(key)
        if known is not None:
            return known
        place = builder.place_of(operands)
        start = builder.count
        builder.count += self.names
        place.block.lines.append("".join([self._piece(piece, start, operands) for piece in self.pieces]))
        builder.program.declarations.update(self.globals)
        result = Value(self.result.type, self.result.text, f"%v{start + int(self.result.ref[2:])}", place)
        place.known[key] = result
        return result

    @staticmethod
    def _piece(piece: str | int, start: int, operands: Sequence[Value]) -> str:
        if isinstance(piece, str):
            return piece
        return f"%v{start + piece}" if piece >= 0 else operands[-1 - piece].ref


@functools.cache
def recorded(name: str, types: tuple[str, ...], facts: MathTarget) -> Recording:
    """An elementary function of operands of the given types."""
    module = Module()
    kinds = [_type(text) for text in types]
    builder = Builder(module, [(kind, f"x{n}") for n, kind in enumerate(kinds)])
    emit = math.emit_unary if len(types) == 1 else math.emit_binary
    result = Builder.operand(emit(name, builder, *builder.arguments, facts))  # type: ignore[arg-type]
    assert not result.ref.startswith("%x"), f"{name} returns its operand"
    pieces: list[str | int] = []
    end = 0
    text = "\n".join(builder.block.lines)
    for match in _NAME.finditer(text):
        pieces.append(text[end : match.start()])
        pieces.append(int(match[2]) if match[1] == "v" else -1 - int(match[2]))
        end = match.end()
    pieces.append(text[end:])
    return Recording(name, tuple(pieces), builder.count, result, module.globals())


def _type(text: str) -> ir.Type:
    if text in _ELEMENTS:
        return _ELEMENTS[text]
    lanes, element = text.strip("<>").split(" x ")
    return ir.VectorType(_ELEMENTS[element], int(lanes))
