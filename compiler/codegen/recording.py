"""Elementary functions, built once and written out again with other operands.

An unrolled loop applies `tanh` to a dozen registers. Building the same fifty instructions a dozen times is most of the
time of emitting such a kernel; copying their text with the names moved up is not.
Invariant: a recording is straight-line code of pure instructions, which all depend on its operands. Where a function has
a form for ordinary arguments, `guarded` chooses between two recordings.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ingot.compiler.codegen import math
from ingot.compiler.codegen.builder import Builder, Module
from ingot.compiler.codegen.math import MathTarget
from ingot.compiler.codegen.values import DOUBLE, FLOAT, Value

Emit = Callable[..., ir.Value]
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
        key = self.key(operands)
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

    def key(self, operands: Sequence[Value]) -> tuple[str, ...]:
        return (self.name, self.result.text, *(operand.ref for operand in operands))

    @staticmethod
    def _piece(piece: str | int, start: int, operands: Sequence[Value]) -> str:
        if isinstance(piece, str):
            return piece
        return f"%v{start + piece}" if piece >= 0 else operands[-1 - piece].ref


def guarded(name: str, x: Value, facts: MathTarget, builder: Builder) -> Value:
    """An elementary function of a vector, in its form for ordinary arguments where all lanes are such.

    What moves out of a loop is computed rarely and stays straight-line code."""
    whole = recorded(name, (x.text,), facts)
    known = builder.recall(whole.key((x,)))
    if known is not None or builder.place_of((x,)) is not builder.scope:
        return known or whole.replay(builder, (x,))
    argument = builder.freeze(x)
    is_ordinary = recorded(name, (x.text,), facts, math.emit_is_ordinary).replay(builder, (argument,))
    before, after = builder.block, builder.new_block("computed")
    heads, results = [], []
    for recording in (recorded(name, (x.text,), facts, math.emit_ordinary), whole):
        heads.append(builder.enter("elementary", barrier=True).block)
        results.append((recording.replay(builder, (argument,)), builder.block))
        builder.branch(after)
        builder.leave()
    builder.cbranch_from(before, is_ordinary, heads[0], heads[1], likely=True)
    builder.scope.block = after
    return builder.remember(whole.key((x,)), builder.phi(after, results))


@functools.cache
def recorded(name: str, types: tuple[str, ...], facts: MathTarget, emit: Emit | None = None) -> Recording:
    """An elementary function of operands of the given types, or what `emit` makes of it."""
    module = Module()
    kinds = [_type(text) for text in types]
    builder = Builder(module, [(kind, f"x{n}") for n, kind in enumerate(kinds)])
    if emit is None:
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
    return Recording(f"{name} {emit.__name__}", tuple(pieces), builder.count, result, module.globals())


def _type(text: str) -> ir.Type:
    if text in _ELEMENTS:
        return _ELEMENTS[text]
    lanes, element = text.strip("<>").split(" x ")
    return ir.VectorType(_ELEMENTS[element], int(lanes))
