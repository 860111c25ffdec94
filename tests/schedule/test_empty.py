"""Reductions over nothing: decided before a recipe sees them, or by the kernel."""

from __future__ import annotations

import pytest

from ingot.compiler.ir.loops import If
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.schedule import empty, schedule
from tests.schedule import kernels
from tests.schedule.harness import TARGET, check

n, none = Symbol("n"), Symbol("none", 0)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_kernel_without_rows_when_it_has_no_columns_does_nothing_then(count):
    """Attention of a sequence to itself: no code and no memory beside that for a sequence of some length."""
    kernel = kernels.attention((2,), none, none, 4)
    assert empty.leaves_nothing(kernel)
    scheduled = check(kernel, {none: count})
    (choice,) = scheduled.function.body
    assert isinstance(choice, If)
    assert choice.then == ()
    assert len(scheduled.scratch) == len(schedule(kernels.attention((2,), n, n, 4), TARGET).scratch)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_kernel_whose_outputs_have_elements_writes_them(count):
    kernel = kernels.reduce_axes((5, none), (0,))
    assert not empty.leaves_nothing(kernel)
    check(kernel, {none: count})
    assert not empty.leaves_nothing(kernels.attention((2,), 3, none, 4))
