"""Checks that are part of a program: values that are let through when they are fine, and stop it when they are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar
from ingot.compiler.ir.scalar import BoundedIndex, Scalar, constant
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, f64, i32, i64, u8, u64
from ingot.compiler.ops.base import Condition, Node, Op, OpTypeError, Sample, require


@dataclass(frozen=True)
class Divisor(Op):
    """x, an integer that something is divided by: the program stops at a 0. `site` names the division.

    By itself an integer division by zero gives 0, in NumPy and here; for models whose language leaves it undefined, an
    error is the better answer.
    """

    site: str = "a division"
    differentiable = False

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_integer:
            raise OpTypeError(f"divisor takes integers, not {x.dtype}")
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        if not np.all(x):
            raise ZeroDivisionError(f"integer division by zero in {self.site}")
        return x

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        value = operands[0](*index)
        is_zero = scalar.cast(scalar.apply("eq", value, constant(0, value.dtype)), i64)
        check = BoundedIndex(is_zero, 1, self.site, "divisor")  # 0 whenever the program goes on
        return scalar.apply("add", value, scalar.cast(check, value.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (i64, i32, u8, u64):
            yield Sample(cls(), (dtype[3, 5],), 1, 9)
        yield Sample(cls("the mean"), (i64[2, 0],), 1, 9)


@dataclass(frozen=True)
class Agreed(Op):
    """x, of a program that is made for calls in which two dims are equal; other calls are refused before it runs."""

    left: Dim
    right: Dim
    movement = True

    def infer(self, x: TensorType) -> TensorType:
        require(*self.conditions(x))
        return x

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        message = f"the program is made for calls in which {self.left} is {self.right}"
        return (Condition(self.left, "eq", self.right, message),)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g,)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return operands[0](*index)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(3, 3), (f64[4, 3],))
        yield Sample(cls(1, 1), (i64[()],))
