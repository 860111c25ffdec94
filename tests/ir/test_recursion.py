"""Expressions deeper than Python's stack go through text, verifiers and interpreters."""

import sys

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Function, Store
from ingot.compiler.ir.recursion import Call, unwind
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.types import f16, f32
from ingot.compiler.ir.verify import verify_function, verify_kernel

X, Y = Buffer("x", f16, ()), Buffer("y", f16, ())


def deep(levels: int) -> Scalar:
    """-(...-x), in single precision, rounded at each level as fusion does with half precision."""
    value: Scalar = Load(X, ())
    for _ in range(levels):
        value = ir.Cast(ir.apply("neg", ir.Cast(value, f32)), f16)
    return value


def test_kernels_of_any_depth():
    levels = sys.getrecursionlimit() * 2 + 1
    kernel = Kernel("deep", (X,), (Y,), (Definition(Y, (), deep(levels)),))
    verify_kernel(kernel)
    printed = text.print_kernel(kernel)
    again = text.parse_kernel(printed)
    assert text.print_kernel(again) == printed
    assert interpret.run_kernel(again, [np.array(2, np.float16)])[0] == -2


def test_functions_deep_enough_for_fused_kernels():
    function = Function("deep", (X, Y), (Store(Y, (), deep(201)),))
    verify_function(function)
    again = text.parse_function(text.print_function(function))
    assert interpret.run_function(again, [np.array(2, np.float16), np.array(0, np.float16)])[1] == -2


def countdown(n: int) -> Call[int]:
    if n == 0:
        return 0
    return 1 + (yield countdown(n - 1))


def test_unwinding_returns_results_and_lets_errors_through():
    assert unwind(countdown(5000)) == 5000

    def failing(n: int) -> Call[int]:
        if n == 0:
            raise KeyError("bottom")
        return (yield failing(n - 1))

    with pytest.raises(KeyError, match="bottom"):
        unwind(failing(5000))
