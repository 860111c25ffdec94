"""Divisors: let through unless one is 0, at every level, wherever the 0 is."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.types import f32, i64
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.checks import Divisor
from ingot.compiler.pipeline import compile_graph
from ingot.runtime.errors import ExecutionError
from ingot.runtime.executable import Executable
from tests.ops import harness
from tests.ops.test_conformance import kernel_of

WORDS = "integer division by zero in the mean"


def with_zero(place: int, size: int = 40) -> np.ndarray:
    x = np.arange(1, size + 1)
    x[place] = 0
    return x


def test_floats_are_refused():
    with pytest.raises(OpTypeError, match="integers"):
        Divisor().infer(f32[3])


def test_the_meaning_of_a_zero():
    with pytest.raises(ZeroDivisionError, match=WORDS):
        Divisor("the mean").evaluate(with_zero(3))


def test_index_notation_checks_and_reads_back():
    kernel = kernel_of(Divisor("the mean"), [i64[40]])
    printed = text.print_kernel(kernel)
    assert '"the mean", divisor)' in printed
    assert text.print_kernel(text.parse_kernel(printed)) == printed
    with pytest.raises(InterpreterError, match=WORDS):
        interpret.run_kernel(kernel, (with_zero(3),))


@pytest.mark.parametrize("place", [0, 7, 38, 39])
def test_native_code_stops_at_a_zero(place: int):
    graph = harness.op_graph(Divisor("the mean"), [i64[40]])
    program = Executable(compile_graph(graph).program)
    with pytest.raises(ExecutionError, match=WORDS):
        program(with_zero(place))
    fine = np.arange(1, 41)
    np.testing.assert_array_equal(program(fine), fine)
