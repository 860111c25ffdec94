"""What is particular to elementwise kernels: merged axes, memory that may be shared, sections of one loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_function, run_kernel
from ingot.compiler.ir.loops import FIRST_CACHE, SECOND_CACHE, For, Prefetch, Store, View, walk
from ingot.compiler.ir.scalar import Apply, Buffer, Load, apply, constant, predicate, select
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Definition, Kernel, axes
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.ir.types import f32, f64
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.recipes import elementwise
from ingot.compiler.target import Target
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


@pytest.mark.parametrize("shape", [(8, 8), (70, 50), (16, 24), (17, 33), (5, 7), (n, 40)], ids=str)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_operands_that_lie_the_other_way_are_transposed_in_registers(shape, dtype):
    scheduled = check(kernels.update_transposed(*shape, dtype), {n: 21} if n in shape else None)
    assert scheduled.decisions["groups"][0]["squares"]
    width = TARGET.lanes(dtype.itemsize)
    squares = [s for s in walk(scheduled.function.body) if isinstance(s, For) and s.width == width * width]
    assert bool(squares) == (n in shape or min(shape) >= width)


def test_transposed_axes_inside_others_are_divided_where_there_are_several_blocks():
    for shape in ((40, 300, 70), (400, 30, 9), (n, 300, 70)):
        scheduled = check(kernels.transpose(shape, (0, 2, 1)), {n: 3} if n in shape else None)
        assert scheduled.recipe == "elementwise"
        assert sum(loop.kind == "parallel" for loop in loops_of(scheduled)) == 1


@pytest.mark.parametrize("shape", [(256, 264), (260, 20), (100, 40), (512, 16)])
def test_transposed_results_that_bypass_the_caches_are_the_same(shape):
    check(kernels.transpose(shape, (1, 0)), decisions={"streaming": True})


@pytest.mark.parametrize(("colours", "along_pixels"), [(2, True), (3, True), (8, False), (64, False)])
def test_vectors_run_along_pixels_when_there_are_few_colours(colours, along_pixels):
    """A vector of three colours would be mostly empty; their pixels lie side by side where they are read."""
    kernel = kernels.transpose((50, colours), (1, 0))
    (group,) = check(kernel).decisions["groups"]
    assert (group["tile_axis"] < 0) == along_pixels  # nothing is read across vectors then


def test_schedules_are_deterministic():
    first, second = (schedule(kernels.momentum([(n, 30), (7,)]), TARGET) for _ in range(2))
    assert first.decisions == second.decisions
    np.testing.assert_equal(first.reason, second.reason)


def streamed(kernel, leaving):
    scheduled = schedule(kernel, TARGET, ScheduleOptions(leaving=leaving))
    return [s for s in walk(scheduled.function.body) if isinstance(s, Store) and s.streaming]


def test_results_larger_than_the_caches_bypass_them():
    rows = TARGET.l3_bytes // 4096 + 1
    assert streamed(scaled(rows, 1024), leaving=True)
    assert not streamed(scaled(rows // 2, 1024), leaving=True)


def test_the_halves_of_a_chunk_that_bypasses_the_caches_are_half_a_page_apart():
    """At the same place of a page a load from one half would wait for stores to the other."""
    kernel = kernels.negate((4 * TARGET.l3_bytes,))
    (group,) = schedule(kernel, TARGET, ScheduleOptions(leaving=True)).decisions["groups"]
    assert group["chunk"] // 2 * 4 % elementwise.PAGE == elementwise.PAGE // 2
    assert abs(group["chunk"] * 8 - elementwise.STREAMED_CHUNK) <= 4 * elementwise.PAGE


def test_where_requests_must_not_pause_eight_parts_take_short_turns():
    """Each at another place of a page, each asked for a little ahead, and no chunk ends in the middle of a line."""
    target = replace(Target.named("x86-64-v4"), has_few_line_buffers=True)
    scheduled = schedule(kernels.negate((4 * target.l3_bytes,)), target, ScheduleOptions(leaving=True))
    (group,) = scheduled.decisions["groups"]
    assert (group["parts"], group["run"], group["ahead"]) == (8, 64, 512)
    places = {part * group["chunk"] // 8 * 4 % elementwise.PAGE for part in range(8)}
    assert places == set(range(0, elementwise.PAGE, 512))
    assert group["chunk"] % (8 * 64) == 0
    hints = [s for s in walk(scheduled.function.body) if isinstance(s, Prefetch)]
    assert len(hints) == 8  # four lines in the loop over the parts, four in that over what is left


def test_where_a_core_asks_for_all_it_reads_there_is_one_series_far_ahead():
    """As many bytes ahead in all, however many operands there are."""
    target = replace(Target.named("x86-64-v4"), ahead_bytes=8 << 10)
    shape = (4 * target.l3_bytes,)
    for kernel, ahead in ((kernels.negate(shape), 8 << 10), (kernels.add(shape), 4 << 10)):
        (group,) = schedule(kernel, target, ScheduleOptions(leaving=True)).decisions["groups"]
        assert (group["parts"], group["ahead"], group["locality"]) == (1, ahead, FIRST_CACHE)


@pytest.mark.parametrize("count", [1, 15, 16, 100, 511, 512, 513, 5000])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_chunks_of_parts_that_take_turns_are_the_same(count, parts):
    decisions = {"streaming": True, "axis": 0, "chunk": 1024, "parts": parts, "run": 64}
    check(kernels.negate((count,)), decisions=decisions)
    check(kernels.negate((count,)), decisions=decisions, target=Target.named("x86-64-v4"))


def test_what_may_overwrite_its_input_is_not_streamed():
    """Its lines are in the caches already: past them it would be written twice."""
    assert not streamed(scaled(TARGET.l3_bytes // 4096 + 1, 1024), leaving=False)


def test_hints_for_several_large_operands_go_to_the_second_cache():
    shape = (TARGET.l3_bytes // 4096 + 1, 1024)
    x, y, z = (Buffer(name, f32, shape) for name in "xyz")
    i = axes(shape)
    both = Kernel("both", (x, y), (z,), (Definition(z, i, apply("add", Load(x, i), Load(y, i))),))
    expected = {kernels.negate(shape): FIRST_CACHE, kernels.add_bias(shape): FIRST_CACHE, both: SECOND_CACHE}
    for kernel, locality in expected.items():
        body = schedule(kernel, TARGET, ScheduleOptions(leaving=True)).function.body
        assert {s.locality for s in walk(body) if isinstance(s, Prefetch)} == {locality}


@pytest.mark.parametrize("count", [1, 7, 8, 255, 256, 257, 1000])
def test_streamed_results_are_the_same(count):
    kernel = scaled(3, count)
    check(kernel, decisions={"streaming": True})


def scaled(rows, columns):
    """y = 2 x, z = x + bias"""
    x, bias = Buffer("x", f32, (rows, columns)), Buffer("bias", f32, (columns,))
    y, z = Buffer("y", f32, (rows, columns)), Buffer("z", f32, (rows, columns))
    i, j = axes((rows, columns))
    definitions = (
        Definition(y, (i, j), apply("mul", Load(x, (i, j)), constant(2.0, f32))),
        Definition(z, (i, j), apply("add", Load(x, (i, j)), Load(bias, (j,)))),
    )
    return Kernel("scaled", (x, bias), (y, z), definitions)


@pytest.mark.parametrize("relation", ["lt", "le", "ge"])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("bound", [-3, 0, 1, 4, 9, 10, 13])
def test_a_row_is_cut_where_a_comparison_has_another_outcome(relation, step, bound):
    place = symbolic.Variable("v", 0, 9)
    condition = predicate(step * place, relation, step * bound)
    value = select(condition, Load(Buffer("x", f32, (10,)), (place,)), constant(0.0, f32))
    loop = For(place, 10, (Store(Buffer("y", f32, (10,)), (place,), value),))
    outcome = {"lt": np.less, "le": np.less_equal, "ge": np.greater_equal}[relation](
        step * np.arange(10), step * bound
    )
    assert elementwise._turning_points(loop) == set((np.flatnonzero(outcome[1:] != outcome[:-1]) + 1).tolist())


@pytest.mark.parametrize(("before", "after", "pieces"), [(1, 1, 3), (0, 2, 2), (20, 0, 2), (0, 0, 1)])
def test_no_lane_asks_whether_it_is_in_the_padding(before, after, pieces):
    scheduled = check(kernels.pad((3, 50), before, after))
    stores = [s for s in walk(scheduled.function.body) if isinstance(s, Store)]
    asked = [n for s in stores for n in nodes(s.value) if isinstance(n, Apply) and n.function.name in ("lt", "ge")]
    assert not asked
    assert len(stores) >= pieces


def test_short_rows_are_not_cut():
    """Each piece is less than a vector: more code for nothing."""
    scheduled = check(kernels.pad((40, 5), 1, 1))
    stores = [s for s in walk(scheduled.function.body) if isinstance(s, Store)]
    assert any(isinstance(n, Apply) and n.function.name == "select" for s in stores for n in nodes(s.value))
