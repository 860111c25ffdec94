"""Straight code: scalar values bound one after another, for loops that ops write themselves.

Sums of products become fused multiply-adds wherever the target has them, always in the same order, so that every
variant of a loop gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from ingot.compiler.ir import scalar
from ingot.compiler.ir.loops import Let, Statement
from ingot.compiler.ir.scalar import Local, Read, Scalar
from ingot.compiler.target import Target


class Straight:
    """Statements that bind values, in order."""

    def __init__(self, target: Target) -> None:
        self.fuses = target.has_fma
        self.statements: list[Statement] = []

    def let(self, value: Scalar, name: str = "t") -> Scalar:
        local = Local(name, value.dtype)
        self.statements.append(Let(local, value))
        return Read(local)

    def add(self, left: Scalar, right: Scalar) -> Scalar:
        return self.let(scalar.apply("add", left, right))

    def subtract(self, left: Scalar, right: Scalar) -> Scalar:
        return self.let(scalar.apply("sub", left, right))

    def multiply_add(self, factor: float, value: Scalar, addend: Scalar) -> Scalar:
        """addend + factor * value"""
        if factor == 1.0:
            return self.add(addend, value)
        if factor == -1.0:
            return self.subtract(addend, value)
        constant = scalar.constant(factor, value.dtype)
        if self.fuses:
            return self.let(scalar.apply("fma", constant, value, addend))
        return self.let(scalar.apply("add", scalar.apply("mul", constant, value), addend))

    def linear(self, factors: Sequence[float] | np.ndarray, values: Sequence[Scalar]) -> Scalar | None:
        """sum(factors * values); None when all factors are 0. A value with the factor 1 comes first."""
        terms = [(float(f), v) for f, v in zip(factors, values, strict=True) if f != 0]
        if not terms:
            return None
        terms.sort(key=lambda term: term[0] != 1.0)  # stable: the others stay in order
        (factor, value), *others = terms
        total = value if factor == 1.0 else self.let(scalar.apply("mul", scalar.constant(factor, value.dtype), value))
        for factor, value in others:
            total = self.multiply_add(factor, value, total)
        return total

    def product(self, matrix: np.ndarray, values: Sequence[Scalar]) -> list[Scalar]:
        """matrix @ values, sharing what neighbouring rows or columns have in common"""
        mirrored = any(_mirrored(*pair) for pair in pairwise(matrix))
        return self.rows(matrix, values) if mirrored else self.columns(matrix, values)

    def rows(self, matrix: np.ndarray, values: Sequence[Scalar]) -> list[Scalar]:
        """matrix @ values, where neighbouring rows that differ only in the signs of odd columns share their parts:
        even + odd and even - odd."""
        results: list[Scalar] = []
        row = 0
        while row < len(matrix):
            if row + 1 < len(matrix) and _mirrored(matrix[row], matrix[row + 1]):
                results.extend(self._pair(matrix[row], values))
                row += 2
                continue
            total = self.linear(matrix[row], values)
            assert total is not None, "a row of zeros"
            results.append(total)
            row += 1
        return results

    def row(self, matrix: np.ndarray, number: int, value: Callable[[int], Scalar]) -> Scalar:
        """One of the results of `rows`, with the same bits; `value(n)` binds the n-th value, of those it needs."""
        row = matrix[number]
        values = {n: value(n) for n in np.flatnonzero(row).tolist()}
        if any(_mirrored(matrix[n], matrix[n + 1]) for n in (number - 1, number) if 0 <= n < len(matrix) - 1):
            lead = float(row[1::2][np.flatnonzero(row[1::2])[-1]])
            even = self.linear(*_some(row, values, 0))
            factors, odd = _some(row, values, 1)
            part = self.linear([factor / lead for factor in factors], odd)
            assert even is not None
            assert part is not None
            return self.multiply_add(lead, part, even)
        total = self.linear(list(row[list(values)]), list(values.values()))
        assert total is not None, "a row of zeros"
        return total

    def _pair(self, row: np.ndarray, values: Sequence[Scalar]) -> tuple[Scalar, Scalar]:
        lead = float(row[1::2][np.flatnonzero(row[1::2])[-1]])
        even = self.linear(row[::2], values[::2])
        odd = self.linear(row[1::2] / lead, values[1::2])
        assert even is not None
        assert odd is not None
        return self.multiply_add(lead, odd, even), self.multiply_add(-lead, odd, even)

    def columns(self, matrix: np.ndarray, values: Sequence[Scalar]) -> list[Scalar]:
        """matrix @ values, where neighbouring columns that differ only in the signs of odd rows share their sum and
        their difference."""
        merged: list[tuple[np.ndarray, Scalar]] = []
        column = 0
        while column < matrix.shape[1]:
            if column + 1 < matrix.shape[1] and _mirrored(matrix[:, column], matrix[:, column + 1]):
                plus = self.add(values[column], values[column + 1])
                minus = self.subtract(values[column], values[column + 1])
                even = np.arange(len(matrix)) % 2 == 0
                merged.append((np.where(even, matrix[:, column], 0.0), plus))
                merged.append((np.where(even, 0.0, matrix[:, column]), minus))
                column += 2
                continue
            merged.append((matrix[:, column], values[column]))
            column += 1
        factors, parts = np.stack([column for column, _ in merged], axis=1), [value for _, value in merged]
        sums = [self.linear(row, parts) for row in factors]
        assert all(total is not None for total in sums), "a row of zeros"
        return sums  # type: ignore[return-value]


def _some(row: np.ndarray, values: Mapping[int, Scalar], parity: int) -> tuple[list[float], list[Scalar]]:
    """(factors, values) of even or of odd columns"""
    places = [n for n in values if n % 2 == parity]
    return [float(row[n]) for n in places], [values[n] for n in places]


def _mirrored(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two rows differ exactly in the signs of their odd columns, of which some are not 0."""
    signs = np.where(np.arange(len(first)) % 2 == 0, 1.0, -1.0)
    return bool(np.any(first[1::2] != 0) and np.array_equal(first * signs, second))
