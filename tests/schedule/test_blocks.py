"""Blocks: the scratch memory of a few workers, whatever the number of rows; sums over rows block after block."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_kernel
from ingot.compiler.ir.loops import For, walk
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.recipes.blocks import divide, recognise
from tests.schedule import kernels
from tests.schedule.harness import TARGET, assert_close, check, inputs_of, run

n, m = Symbol("n"), Symbol("m")
FEW_ROWS = ScheduleOptions(recipe="blocks", decisions={"most_rows": 6, "fewest_rows": 4, "workers": 3})


def parallel_loops(scheduled) -> list[For]:
    return [s for s in walk(scheduled.function.body) if isinstance(s, For) and s.kind == "parallel"]


def test_parts_are_products_with_what_follows_them_and_rows():
    forward = divide(kernels.attention((n,), m, m, 4).definitions)
    assert [[d.buffer.name for d in part] for part in forward] == [
        ["scores"],
        ["largest", "e", "total", "y"],
        ["result"],
    ]
    backward = divide(kernels.attention((n,), m, m, 4, backward=True).definitions)
    assert [part[-1].buffer.name for part in backward] == ["w", "slopes", "ds", "dq", "dk", "dv"]


def test_the_last_row_axis_is_cut_and_some_products_sum_over_it():
    found = recognise(kernels.attention((n, 3), m, m, 4, backward=True))
    assert found is not None
    assert found.cut == 2
    assert [sorted(part.sums) for part in found.parts] == [[], [], [], [], [2], [2]]


@pytest.mark.parametrize(
    "kernel", [kernels.softmax((4, 37)), kernels.matmul(5, 9, 8), kernels.layer_norm((4, 33), 33), kernels.awkward(7, 5)]
)
def test_other_kernels_are_not_blocks(kernel):
    assert recognise(kernel) is None


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 5, 6, 13])
def test_any_number_of_blocks(rows, backward):
    kernel = kernels.attention((n,), m, 7, 4, backward)
    dims = {n: 2, m: rows}
    inputs = inputs_of(kernel, dims)
    scheduled = schedule(kernel, TARGET, FEW_ROWS)
    found = run(scheduled, kernel, inputs, dims)
    assert_close(found, run_kernel(kernel, inputs, dims), kernel)
    if not backward:  # sums over rows are added block by block, everything else has the bits of larger blocks
        wide = run(schedule(kernel, TARGET), kernel, inputs, dims)
        for a, b in zip(found, wide, strict=True):
            np.testing.assert_array_equal(a, b)


def test_scratch_memory_is_that_of_a_few_workers():
    scheduled = schedule(kernels.attention((n,), m, m, 4), TARGET)
    size = sum((buffer.type.bytes for buffer in scheduled.scratch), start=0)
    at = {length: symbolic.evaluate(size, {n: 100, m: length}) for length in (1 << 14, 1 << 15)}
    assert at[1 << 15] <= 2 * at[1 << 14]
    assert symbolic.evaluate(size, {n: 1, m: 16}) <= 16 * 16 * 4 + 64


def test_rows_that_are_handed_on_share_memory():
    """Weights are where the scores were; slopes become what the softmax makes of them."""
    assert len(schedule(kernels.attention((n,), m, m, 4), TARGET).scratch) == 1
    backward = schedule(kernels.attention((n,), m, m, 4, backward=True), TARGET)
    assert [buffer.name for buffer in backward.scratch if buffer.name != "total"][:2] == ["w", "slopes"]


def test_little_work_needs_no_threads():
    assert not parallel_loops(check(kernels.attention((2,), 8, 9, 4)))
    assert parallel_loops(check(kernels.attention((n,), m, 9, 4), {n: 2, m: 8}))
