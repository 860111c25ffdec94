"""Reductions: the order of combining depends on the reduced extents only, and sums are accurate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import FIRST_CACHE, SECOND_CACHE, For, Prefetch, Store, walk
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.recipes import reduction
from ingot.compiler.schedule.statements import loads_in
from tests.schedule import kernels
from tests.schedule.harness import TARGET, inputs_of, run, unset

n = Symbol("n")


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32)


@pytest.mark.parametrize("length", [5, 33, 700])
def test_a_row_sum_has_the_same_bits_among_any_rows(length):
    kernel = kernels.reduce_axes((n, length), (0,))
    scheduled = schedule(kernel, TARGET)
    (x,) = inputs_of(kernel, {n: 9})
    expected = run(scheduled, kernel, [x], {n: 9})[0]
    for count in (1, 4):
        static = kernels.reduce_axes((count, length), (0,))
        for each, dims in ((kernel, {n: count}), (static, {})):
            found = run(schedule(each, TARGET), each, [x[:count]], dims)[0]
            np.testing.assert_array_equal(bits(found), bits(expected[:count]))


@pytest.mark.parametrize("length", [40, 1300])
def test_a_column_sum_has_the_same_bits_among_any_columns(length):
    whole = kernels.reduce_axes((length, 21), (1,))
    (x,) = inputs_of(whole, {})
    expected = run(schedule(whole, TARGET), whole, [x], {})[0]
    for count in (1, 8, 13):
        kernel = kernels.reduce_axes((length, count), (1,))
        options = ScheduleOptions(recipe="reduction") if count > 1 else None
        scheduled = schedule(kernel, TARGET, options)
        if scheduled.recipe != "reduction" or "rows" not in scheduled.decisions:
            continue  # a single column is a row
        found = run(scheduled, kernel, [np.ascontiguousarray(x[:, :count])], {})[0]
        np.testing.assert_array_equal(bits(found), bits(expected[:count]))


def test_one_stage_and_two_stages_give_the_same_bits():
    kernel = kernels.reduce_axes((2000, 3), (1,))
    inputs = inputs_of(kernel, {})
    results = [
        run(schedule(kernel, TARGET, ScheduleOptions(decisions={"stages": stages})), kernel, inputs, {})[0]
        for stages in (1, 2)
    ]
    np.testing.assert_array_equal(bits(results[0]), bits(results[1]))


def test_few_results_of_long_chains_are_divided_among_threads():
    scheduled = schedule(kernels.reduce_axes((1 << 20,), ()), TARGET)
    assert scheduled.decisions["stages"] == 2
    (parallel,) = [s for s in walk(scheduled.function.body) if isinstance(s, For) and s.kind == "parallel"]
    assert parallel.extent == 128
    (parts,) = scheduled.scratch
    assert parts.shape == (128, 8)


@pytest.mark.parametrize(("shape", "kept"), [((4099,), ()), ((16384,), ()), ((5000, 3), (1,))])
def test_sums_are_about_as_accurate_as_pairwise_ones(shape, kept):
    """One chain of additions would be off by far more: every term is rounded at the size of the total."""
    kernel = kernels.reduce_axes(shape, kept)
    scheduled = schedule(kernel, TARGET)
    x = np.full(shape, np.float32(0.1))
    outputs = unset(kernel.outputs, {})
    run_function(scheduled.function, [x, *outputs, *unset(scheduled.scratch, {})])
    exact = float(np.float32(0.1)) * shape[0]
    assert np.abs(outputs[0].astype(np.float64) - exact).max() <= 8 * exact * np.finfo(np.float32).eps


def test_columns_of_a_matrix_that_no_near_cache_holds():
    """Wide tiles, a chunk of rows after another; the bits are those of narrow tiles that run to the end."""
    kernel = kernels.reduce_axes((1100, 144), (1,))
    scheduled = schedule(kernel, TARGET)
    assert scheduled.decisions["stages"] == 2
    assert scheduled.decisions["vectors"] == TARGET.vector_registers - 2
    near = schedule(kernels.reduce_axes((1100, 8), (1,)), TARGET)
    assert near.decisions["vectors"] == 1
    inputs = inputs_of(kernel, {})
    narrow = ScheduleOptions(recipe="reduction", decisions={"stages": 1, "vectors": 4, "block": 32})
    wide, plain = (run(s, kernel, inputs, {})[0] for s in (scheduled, schedule(kernel, TARGET, narrow)))
    np.testing.assert_array_equal(wide.view(np.uint32), plain.view(np.uint32))


@pytest.mark.parametrize("shape", [(1100, 144), (1024, 160), (256, 640), (300, 501)])
def test_columns_are_summed_a_row_of_each_of_four_chunks_at_a_time(shape):
    """The same bits as chunk after chunk, which is how vectors of whole lines take them."""
    kernel = kernels.reduce_axes(shape, (1,))
    four = schedule(kernel, TARGET)
    sweeps = [s for s in walk(four.function.body) if isinstance(s, For) and s.kind == "vector"]
    places = [{load.index[0] for load in loads_in(s.body) if load.buffer.name == "x"} for s in sweeps]
    assert max(map(len, places)) in (reduction.STRIP_CHUNKS, reduction.STRIP_ROWS)
    assert any(len(found) == reduction.STRIP_CHUNKS for found in places)
    inputs = inputs_of(kernel, {})
    lines = replace(TARGET, vector_bytes=64)
    one = schedule(kernel, lines, ScheduleOptions(decisions={"width": four.decisions["width"]}))
    together, apart = (run(s, kernel, inputs, {})[0] for s in (four, one))
    np.testing.assert_array_equal(together.view(np.uint32), apart.view(np.uint32))


@pytest.mark.parametrize("combiner", ["sum", "max"])
@pytest.mark.parametrize("shape", [(1100, 144), (1024, 160), (300, 501), (230, 640)])
def test_columns_are_reduced_in_eight_series_where_requests_must_not_pause(shape, combiner):
    """In eight chunks at a time, then four, then one; maxima in chunks too. The same bits as without."""
    kernel = kernels.reduce_axes(shape, (1,), combiner)
    few = replace(TARGET, has_few_line_buffers=True)
    eight, usual = schedule(kernel, few), schedule(kernel, TARGET)
    sweeps = [s for s in walk(eight.function.body) if isinstance(s, For) and s.kind == "vector"]
    places = [{load.index[0] for load in loads_in(s.body) if load.buffer.name == "x"} for s in sweeps]
    assert {reduction.MANY_STRIP_CHUNKS, reduction.STRIP_CHUNKS} & set(map(len, places))
    assert FIRST_CACHE in {s.locality for s in walk(eight.function.body) if isinstance(s, Prefetch)}
    inputs = inputs_of(kernel, {})
    together, apart = (run(s, kernel, inputs, {})[0] for s in (eight, usual))
    np.testing.assert_array_equal(bits(together), bits(apart))


def test_sums_of_as_many_chunks_are_in_the_works_as_the_first_cache_holds():
    """Eight rows of sums would be all of a first cache of the size of eight of them: no room for what passes through."""
    kernel = kernels.reduce_axes((4096, 144), (1,))
    sums = 144 * 4
    inputs = inputs_of(kernel, {})
    found = []
    for rows, most in ((16, 8), (8, 4), (2, 1)):
        few = replace(TARGET, has_few_line_buffers=True, l1_bytes=rows * sums)
        scheduled = schedule(kernel, few)
        sweeps = [s for s in walk(scheduled.function.body) if isinstance(s, For) and s.kind == "vector"]
        (parts,) = scheduled.scratch
        together = [{load.index[0] for load in loads_in(s.body) if load.buffer is parts} for s in sweeps]
        assert max(map(len, together)) == most
        found.append(bits(run(scheduled, kernel, inputs, {})[0]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_rows_are_loaded_before_their_sums_are_stored():
    """A row of a whole page lies at the same place of a page as its sums, where a load would wait for stores before it."""
    kernel = kernels.reduce_axes((4096, 1024), (1,))
    scheduled = schedule(kernel, replace(TARGET, has_few_line_buffers=True, l1_bytes=48 << 10))
    body, (parts,) = scheduled.function.body, scheduled.scratch
    adding = [
        s.body
        for s in walk(body)
        if isinstance(s, For) and s.kind == "vector" and any(load.buffer.name == "x" for load in loads_in(s.body))
    ]
    assert max(len([s for s in statements if isinstance(s, Store)]) for statements in adding) == reduction.MANY_STRIP_CHUNKS
    for statements in adding:
        loads = [bool(list(loads_in([s]))) for s in statements]
        assert loads == sorted(loads, reverse=True), "a load behind a store"
        assert all(s.buffer is parts for s in statements if isinstance(s, Store))


@pytest.mark.parametrize("change", [{"has_few_line_buffers": True}, {"ahead_bytes": 8 << 10}])
def test_series_of_a_sum_are_asked_for_ahead_where_requests_must_not_pause(change):
    """Not those of one that a cache holds."""
    target = replace(TARGET, **change)
    for count, hinted in ((TARGET.l3_bytes, True), (40_000, False)):
        for kernel in (kernels.reduce_axes((count,), ()), kernels.reduce_axes((count // 1000, 1000), (0,))):
            body = schedule(kernel, target).function.body
            assert any(isinstance(s, Prefetch) for s in walk(body)) == hinted, kernel
            assert not any(isinstance(s, Prefetch) for s in walk(schedule(kernel, TARGET).function.body))


def test_rows_that_are_summed_by_column_are_asked_for_before_their_turn():
    """Each line once, eight rows later, for the second cache; nothing of the sums, which are near."""
    kernel = kernels.reduce_axes((1100, 144), (1,))
    hints = [s for s in walk(schedule(kernel, TARGET).function.body) if isinstance(s, Prefetch)]
    assert {hint.buffer.name for hint in hints} == {"x"}
    assert {hint.locality for hint in hints} == {SECOND_CACHE}
    loops = [s for s in walk(schedule(kernel, TARGET).function.body) if isinstance(s, For)]
    (strip,) = [s for s in loops if any(isinstance(inner, Prefetch) for inner in s.body)]
    asked = {s.index[0] for s in strip.body if isinstance(s, Prefetch)}
    read = {load.index[0] for load in loads_in(strip.body) if load.buffer.name == "x"}
    assert asked == {row + reduction.STRIP_ROWS for row in read}
