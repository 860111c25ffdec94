"""Rows: as few passes as the reductions allow, and row vectors where they belong."""

from __future__ import annotations

import pytest

from ingot.compiler.ir.loops import Alloc, walk
from ingot.compiler.ir.symbolic import Symbol
from tests.schedule import kernels
from tests.schedule.harness import check

n = Symbol("n")


def stack_of(scheduled) -> list[str]:
    allocs = [s.buffer for s in walk(scheduled.function.body) if isinstance(s, Alloc)]
    return [buffer.name for buffer in allocs if buffer.space == "stack"]


def test_softmax_takes_three_passes_and_keeps_its_exponentials():
    scheduled = check(kernels.softmax((4, 37)))
    assert scheduled.decisions["passes"] == 3
    assert stack_of(scheduled) == ["e"]
    assert scheduled.scratch == ()


@pytest.mark.parametrize(("length", "dims"), [(5000, {}), (n, {n: 30})])
def test_rows_that_may_be_long_are_kept_in_scratch_memory(length, dims):
    scheduled = check(kernels.softmax((2, length)), dims)
    assert stack_of(scheduled) == []
    assert [buffer.shape for buffer in scheduled.scratch] == [(2, length)]


def test_cheap_row_vectors_are_computed_again():
    """The distance from the mean is one subtraction: no memory for it."""
    scheduled = check(kernels.layer_norm((4, 33), 33))
    assert scheduled.decisions["passes"] == 3
    assert stack_of(scheduled) == []
