"""Vectors whose lanes are the elements of a square: w*w lanes, lane w*k + j at row k and column j.

An access that has the rows or the columns of its square side by side in memory is w vectors of w elements; when it has
the columns, they are transposed in registers, by shuffles of two vectors at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ingot.compiler.codegen.builder import Builder
from ingot.compiler.codegen.values import Value
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim

UNIT = 4  # lanes of 128 bits: shuffles inside are one instruction, and so are exchanges of whole units


@dataclass(frozen=True)
class Square:
    """Where the elements of a square are: `first` + `down` * row + `along` * column."""

    size: int  # rows, and columns
    first: Dim
    down: Dim
    along: Dim


def square_of(dim: Dim, variable: Dim, lanes: int) -> Square | None:
    """The offsets of the lanes of a vector loop as a square; None when they are none."""
    size = math.isqrt(lanes)
    if size * size != lanes or size & (size - 1) or size < 2 or isinstance(dim, int):
        return None
    row, column = symbolic.Variable("row", 0, size - 1), symbolic.Variable("column", 0, size - 1)
    found = symbolic.substitute(dim, {variable: row * size + column})
    if isinstance(found, int):
        return None
    down, along = symbolic.linear_coefficient(found, row), symbolic.linear_coefficient(found, column)
    if down is None or along is None:
        return None
    return Square(size, found - down * row - along * column, down, along)


def transposed(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of as many vectors as they have lanes."""
    size, result = len(rows), list(rows)
    step = size // 2
    while step >= max(UNIT, 1):
        result = _exchanged(builder, result, step)
        step //= 2
    if size < UNIT:
        return _exchanged(builder, result, 1)
    for start in range(0, size, UNIT):
        result[start : start + UNIT] = _unit(builder, result[start : start + UNIT])
    return result


def _exchanged(builder: Builder, rows: Sequence[Value], step: int) -> list[Value]:
    """Rows n and n + step exchange the halves of their groups of 2*step lanes that lie across the diagonal."""
    size, result = len(rows), list(rows)
    low = [lane if not lane & step else size + lane - step for lane in range(size)]
    high = [lane + step if not lane & step else size + lane for lane in range(size)]
    for n in range(size):
        if not n & step:
            a, b = rows[n], rows[n + step]
            result[n], result[n + step] = builder.shuffle(a, b, low), builder.shuffle(a, b, high)
    return result


def _unit(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """Four rows whose units are transposed each: neighbours are interleaved, then pairs of them."""
    a, b, c, d = rows
    size = a.lanes

    def mask(pattern: Sequence[int]) -> list[int]:
        """The lanes 0 to 7 of a pattern of two units, in every unit."""
        return [
            start + lane if lane < UNIT else size + start + lane - UNIT
            for start in range(0, size, UNIT)
            for lane in pattern
        ]

    low, high = mask((0, 4, 1, 5)), mask((2, 6, 3, 7))
    first, second = mask((0, 1, 4, 5)), mask((2, 3, 6, 7))
    ab, ab_high, cd, cd_high = (builder.shuffle(x, y, m) for x, y in ((a, b), (c, d)) for m in (low, high))
    pairs = ((ab, cd, first), (ab, cd, second), (ab_high, cd_high, first), (ab_high, cd_high, second))
    return [builder.shuffle(x, y, m) for x, y, m in pairs]


def joined(builder: Builder, parts: Sequence[Value]) -> Value:
    """The vectors as one, in order; their number is a power of two."""
    result = list(parts)
    while len(result) > 1:
        lanes = range(2 * result[0].lanes)
        result = [builder.shuffle(result[n], result[n + 1], lanes) for n in range(0, len(result), 2)]
    return result[0]
