"""What is particular to elementwise kernels: merged axes, memory that may be shared, sections of one loop."""

from __future__ import annotations

import numpy as np

from ingot.compiler.ir.interpret import run_function, run_kernel
from ingot.compiler.ir.loops import For, View, walk
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.schedule import schedule
from tests.schedule import kernels
from tests.schedule.harness import TARGET, assert_close, check, inputs_of

n = Symbol("n")


def loops_of(scheduled) -> list[For]:
    return [s for s in walk(scheduled.function.body) if isinstance(s, For)]


def test_axes_that_memory_does_not_tell_apart_are_one_loop():
    scheduled = check(kernels.negate((3, 5, 7)))
    assert [view.buffer.shape for view in walk(scheduled.function.body) if isinstance(view, View)] == [(105,), (105,)]


def test_small_kernels_wake_no_thread_and_large_ones_do():
    assert not any(loop.kind == "parallel" for loop in loops_of(check(kernels.negate((64,)))))
    (parallel,) = [loop for loop in loops_of(schedule(kernels.negate((1 << 20,)), TARGET)) if loop.kind == "parallel"]
    assert isinstance(parallel.extent, int)
    assert parallel.extent >= 64


def test_updates_of_several_shapes_are_sections_of_one_parallel_loop():
    scheduled = schedule(kernels.momentum([(400, 300), (300,), (300, 400)]), TARGET)
    assert sum(loop.kind == "parallel" for loop in loops_of(scheduled)) == 1


def test_an_output_may_overwrite_an_input_that_is_read_at_the_same_point():
    kernel = kernels.momentum([(30, 20), (20,)])
    scheduled = schedule(kernel, TARGET)
    pairs = {(a.name, b.name) for a, b in scheduled.in_place}
    assert {("m0", "m_new0"), ("p0", "p_new0"), ("m1", "m_new1"), ("g0", "p_new0")} <= pairs
    assert ("m0", "m_new1") not in pairs
    inputs = inputs_of(kernel, {})
    expected = run_kernel(kernel, inputs)
    by_name = dict(zip((b.name for b in kernel.inputs), inputs, strict=True))
    aliased = [by_name[b.name.replace("_new", "")] for b in kernel.outputs]
    run_function(scheduled.function, [*inputs, *aliased], parallel_order="shuffled")
    assert_close(aliased, expected, kernel)


def test_an_input_that_is_read_elsewhere_is_not_overwritten():
    assert schedule(kernels.transpose((8, 8), (1, 0)), TARGET).in_place == ()
    assert [b.name for b, _ in schedule(kernels.add_bias((4, 4)), TARGET).in_place] == ["x"]
    assert schedule(kernels.gather_rows(4, 4, 4), TARGET).in_place == ()


def test_a_transpose_works_in_blocks_of_whole_cache_lines():
    scheduled = check(kernels.transpose((70, 50), (1, 0)))
    extents = [str(loop.extent) for loop in loops_of(scheduled)]
    assert any("16" in extent for extent in extents)


def test_schedules_are_deterministic():
    first, second = (schedule(kernels.momentum([(n, 30), (7,)]), TARGET) for _ in range(2))
    assert first.decisions == second.decisions
    np.testing.assert_equal(first.reason, second.reason)
