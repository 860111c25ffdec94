"""Contractions: every choice of tiles gives the same bits, and so does every number of rows around a row."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import Alloc, For, If, Prefetch, Store, View, walk
from ingot.compiler.ir.scalar import Buffer, constant
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import f32
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.recipes.contraction import GATHERING_GAIN, register_tile, tiles_time
from ingot.compiler.target import Target, _target
from tests.schedule import kernels
from tests.schedule.harness import TARGET, check, inputs_of, run, unset

n, m, k = Symbol("n"), Symbol("m"), Symbol("k")

SHORT_CHAINS = ScheduleOptions(recipe="contraction", decisions={"chain": 16})  # several chunks of few points
TILES = [
    {},
    {"pack_left": True},
    {"pack_left": True, "left_steps": 8, "unroll": 8},
    {"pack_right": False},
    {"pack_right": True},
    {"pack_right": True, "packed_panels": 2, "vectors": 1, "column_block": 24},
    {"pack_right": True, "packed_panels": 1, "packed_in_passing": True, "rows": 3, "row_block": 12},
    {"rows": 3, "vectors": 1, "row_block": 6, "column_block": 8},
    {"rows": 2, "vectors": 3, "row_block": 4, "column_block": 24, "pack_left": True},
    {"unroll": 1},
]
SHAPES = [
    (kernels.matmul(7, 20, 20), {}),
    (kernels.matmul(n, 20, 20), {n: 11}),
    (kernels.matmul(n, m, k), {n: 3, m: 21, k: 20}),
    (kernels.matmul(7, 9, 20, layout="nt"), {}),
    (kernels.convolution(1, 2, 5, 9, 3, padding=1), {}),
]


@pytest.mark.parametrize(("kernel", "dims"), SHAPES)
def test_every_choice_of_tiles_gives_the_same_bits(kernel, dims):
    inputs = inputs_of(kernel, dims)
    results = []
    for tiles in TILES:
        options = ScheduleOptions(recipe="contraction", decisions={**tiles, "chain": 16})
        results.append(run(schedule(kernel, TARGET, options), kernel, inputs, dims))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_a_row_has_the_same_bits_among_any_number_of_rows(layout):
    """Compiled for one row, for several, and for a number that is known at run time only."""
    columns, points = 19, 40
    whole = kernels.matmul(13, columns, points, f32, layout)
    a, b, bias = inputs_of(whole, {})
    expected = run(schedule(whole, TARGET, SHORT_CHAINS), whole, [a, b, bias], {})[0]
    symbolic = kernels.matmul(n, columns, points, f32, layout)
    for count in (1, 2, 6, 9):
        rows = np.ascontiguousarray(a[:, :count] if layout[0] == "t" else a[:count])
        for kernel, dims in ((kernels.matmul(count, columns, points, f32, layout), {}), (symbolic, {n: count})):
            found = run(schedule(kernel, TARGET, SHORT_CHAINS), kernel, [rows, b, bias], dims)[0]
            np.testing.assert_array_equal(found.view(np.uint32), expected[:count].view(np.uint32))


@pytest.mark.parametrize(("columns", "points"), [(300, 64), (37, 500)])
def test_a_single_row_of_a_free_number_is_computed_by_itself(columns, points):
    """It is found when the kernel runs, has the tiles of a kernel of one row, and the bits it has among others."""
    kernel, known = kernels.matmul(n, columns, points), kernels.matmul(1, columns, points)
    scheduled = check(kernel, {n: 1}, "contraction")
    (choice,) = (statement for statement in scheduled.function.body if isinstance(statement, If))
    accumulators = [
        {s.buffer.shape for s in walk(body) if isinstance(s, Alloc)}
        for body in (choice.then, schedule(known, TARGET).function.body)
    ]
    assert accumulators[0] == accumulators[1]
    a, b, bias = inputs_of(kernel, {n: 3})
    among = run(scheduled, kernel, [a, b, bias], {n: 3})[0]
    alone = run(scheduled, kernel, [a[:1].copy(), b, bias], {n: 1})[0]
    np.testing.assert_array_equal(alone.view(np.uint32), among[:1].view(np.uint32))


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.matmul(n, 16, 16),  # little work
        kernels.matmul(n, 300, n),  # bits depend on what is reduced
        kernels.matmul(Symbol("several", 2), 300, 64),  # never a single one
        kernels.convolution(1, 32, n, n, 32, padding=1),  # windows of an image
    ],
)
def test_other_products_have_no_code_for_a_single_row(kernel):
    scheduled = schedule(kernel, TARGET, ScheduleOptions(recipe="contraction"))
    assert "single row" not in scheduled.reason


@pytest.mark.parametrize("packed", [{}, {"pack_left": True, "left_steps": 8, "unroll": 8}])
@pytest.mark.parametrize("count", range(1, 14))
def test_what_full_tiles_leave_over_reads_and_writes_only_rows_that_exist(count, packed):
    check(kernels.matmul(n, 20, 40), {n: count}, "contraction", {"chain": 16, **packed})
    check(kernels.matmul(n, 5, 12), {n: count}, "contraction", packed)


@pytest.mark.parametrize(("rows", "dims"), [(12, {}), (n, {n: 17})])
def test_a_long_epilogue_is_a_loop_over_a_few_rows(rows, dims):
    kernel = kernels.matmul_sigmoid(rows, 32, 24)
    scheduled = check(kernel, dims, "contraction")
    waiting = {store.buffer.shape for store in walk(scheduled.function.body) if isinstance(store, Store)}
    assert (3, 16) in waiting  # of six rows


@pytest.mark.parametrize(("outer", "inner"), [(14, 2), (9, 2)])
def test_rows_that_memory_has_the_other_way_round_are_gathered_from_where_they_are(outer, inner):
    """Two short row axes become one; what is swapped in memory is no run of it."""
    scheduled = check(kernels.swapped_rows(outer, inner, 128, 16), None, "contraction")
    assert [buffer.name for buffer in scheduled.scratch] == ["a_rows"]
    packed = schedule(kernels.swapped_rows(outer, inner, 128, 16), replace(TARGET, l2_bytes=1 << 10))
    assert packed.decisions["pack_left"]  # what would not stay in the second cache
    assert not any("a_flat" in s.buffer.name for s in walk(scheduled.function.body) if isinstance(s, View))


@pytest.mark.parametrize("size", [12, (n + 1) // 2, (n + 3) // 4, (n + 15) // 16, (n + 63) // 64])
def test_windows_with_a_stride_read_a_padded_image_however_small_it_is(size):
    """Nothing is asked at every use, also where a free size was halved several times before."""
    kernel = kernels.convolution(1, 4, size, 8, 3, stride=2, padding=1)
    scheduled = check(kernel, {} if isinstance(size, int) else {n: 37}, "contraction")
    assert [buffer.name for buffer in scheduled.scratch if buffer.name.endswith("_padded")] == ["x_padded"]


def test_a_column_has_the_same_bits_among_any_number_of_columns():
    whole = kernels.matmul(3, 40, 40)
    a, b, bias = inputs_of(whole, {})
    expected = run(schedule(whole, TARGET, SHORT_CHAINS), whole, [a, b, bias], {})[0]
    for count in (2, 9, 17):
        kernel = kernels.matmul(3, count, 40)
        columns = np.ascontiguousarray(b[:, :count])
        found = run(schedule(kernel, TARGET, SHORT_CHAINS), kernel, [a, columns, bias[:count]], {})[0]
        np.testing.assert_array_equal(found.view(np.uint32), expected[:, :count].view(np.uint32))


@pytest.mark.parametrize(
    ("rows", "columns", "width", "registers", "expected"),
    [
        (n, m, 8, 16, (6, 2)),  # AVX2
        (n, m, 16, 32, (8, 2)),  # AVX-512: no more rows than the first cache has ways
        (n, m, 4, 32, (8, 2)),  # NEON
        (49, 256, 16, 32, (7, 3)),
        (5, 256, 16, 32, (5, 5)),
        (1000, 10, 8, 16, (6, 2)),
        (1000, 8, 8, 16, (8, 1)),  # one vector of columns leaves registers for rows
        (14, 256, 8, 16, (5, 2)),  # tiles of equal height: 5, 5, 4
        (7, 256, 8, 16, (4, 3)),
        (49, 256, 8, 16, (5, 2)),  # no single row is left over
        (1000, 24, 8, 16, (4, 3)),  # three vectors are all columns
        (1, 256, 8, 16, (1, 8)),  # nothing of the right operand is used twice
    ],
)  # fmt: skip
def test_register_tiles_fit_the_registers(rows, columns, width, registers, expected):
    height, vectors = register_tile(rows, columns, width, replace(TARGET, vector_registers=registers))
    assert (height, vectors) == expected
    assert height * vectors + (vectors if height > 1 else 0) + 1 <= registers


def test_tiles_of_short_sums_are_small_and_wide():
    """Beginning and ending a tile counts there: whole rows of a few vectors, or three, where these divide the columns."""
    wide = replace(TARGET, vector_registers=32)
    assert register_tile(1000, 96, 16, wide, depth=16) == (2, 6)
    assert register_tile(1000, 96, 16, wide, depth=64) == (8, 2)
    assert register_tile(1000, 144, 16, wide, depth=24) == (5, 3)
    assert register_tile(1000, 64, 16, wide, depth=16) == (4, 4)
    assert register_tile(1000, 72, 16, wide, depth=16) == (8, 2)  # the last vector is half full in any case
    assert register_tile(1000, 32, 16, replace(wide, l1_ways=12), depth=27) == (8, 2)
    assert register_tile(1000, 32, 16, replace(wide, l1_ways=12), depth=64) == (12, 2)
    assert register_tile(1000, 96, 8, replace(TARGET, vector_registers=16), depth=16) == (6, 2)


def test_tiles_of_short_sums_are_whole_blocks_of_a_weight_that_is_stored_in_blocks():
    wide = replace(TARGET, vector_registers=32)
    assert register_tile(1000, 96, 16, wide, depth=32, block=2) == (2, 6)
    assert register_tile(1000, 144, 16, wide, depth=32, block=3) == (5, 3)
    assert register_tile(1000, 192, 16, wide, depth=32, block=2) == (8, 2)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (n, m, (6, 4)),
        (128, 768, (6, 4)),
        (n, 64, (6, 4)),
        (n, 48, (8, 3)),
        (n, 32, (8, 2)),
        (n, 16, (8, 1)),
        (25, 256, (5, 4)),  # low tiles stay wide
        (4, 256, (4, 4)),
        (3, 256, (3, 7)),
        (1, 256, (1, 8)),
    ],
)
def test_tiles_are_wide_and_low_where_loads_hold_up_two_multipliers(rows, columns, expected):
    target = replace(TARGET, vector_registers=32, multiply_adds=2)
    assert register_tile(rows, columns, 16, target) == expected


@pytest.mark.parametrize(
    ("rows", "columns", "multipliers", "expected"),
    [
        (16, 512, 2, (8, 2)),  # two passes over the operand, as tall as there are ways
        (12, 512, 2, (6, 2)),
        (8, 512, 2, (8, 2)),
        (3, 512, 2, (3, 2)),
        (17, 512, 2, (6, 4)),  # more rows: arithmetic takes the time
        (16, 128, 2, (6, 4)),  # the second cache keeps it
    ],
)
def test_few_rows_by_more_than_the_second_cache_keeps_read_one_series_in_few_passes(rows, columns, multipliers, expected):
    target = replace(Target.named("x86-64-v4"), multiply_adds=multipliers, l2_bytes=1 << 20)
    decisions = schedule(kernels.stored_panels(rows, columns, 512, 32), target).decisions
    assert (decisions["rows"], decisions["vectors"]) == expected


def test_few_rows_by_an_operand_that_has_to_be_packed_take_wide_tiles():
    target = replace(Target.named("x86-64-v4"), multiply_adds=2, l2_bytes=1 << 20)
    decisions = schedule(kernels.matmul(16, 512, 512), target).decisions
    assert (decisions["rows"], decisions["vectors"]) == (6, 4)


@pytest.mark.parametrize(("channels", "together"), [(1280, 20), (16, 1)])
def test_several_rows_of_an_image_of_free_size_share_one_reading_of_large_weights(channels, together):
    """Large weights are deep in a network, where a row of an image is short; a block of one such row would read them for
    a few pixels."""
    target = replace(Target.named("x86-64-v4"), l2_bytes=1 << 20)
    kernel = kernels.convolution(1, channels, Symbol("size"), 48, 5, padding=2)
    decisions = schedule(kernel, target).decisions
    assert decisions["row_block"] == 640
    assert decisions["outer_rows"] == ((0, together),)


def test_two_multiply_adds_a_load_are_known_by_the_name_of_the_processor_or_by_what_only_servers_have():
    wide = frozenset({"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"})
    assert _target("x86_64", "icelake-server", "", wide).multiply_adds == 2
    assert _target("x86_64", "znver4", "", wide).multiply_adds == 1
    assert _target("x86_64", "icelake-server", "", frozenset({"avx2"})).multiply_adds == 1
    assert _target("x86_64", "rocketlake", "", wide).multiply_adds == 1
    assert _target("x86_64", "rocketlake", "", wide | {"amx-tile"}).multiply_adds == 2  # a server behind another's name


@pytest.mark.parametrize(
    ("size", "multipliers", "row_block", "packed"),
    [
        ((2048, 2048, 2048), 2, 258, True),  # each row in pages of its own, at the same place of each
        ((2000, 2000, 2000), 2, 252, False),
        ((2048, 2048, 64), 2, 258, False),  # only the result's are
        ((2048, 64, 2048), 2, 258, False),  # few columns do not pay for packing rows
        ((2048, 64, 64), 2, 1026, False),
        ((250, 2048, 2048), 2, 252, False),
        ((2048, 2048, 2048), 1, 512, True),
    ],
)
def test_blocks_have_as_many_rows_as_there_are_pages_to_find_again(size, multipliers, row_block, packed):
    rows, columns, depth = size
    target = replace(Target.named("x86-64-v4"), multiply_adds=multipliers, l2_bytes=2 << 20, cores=2)
    decisions = schedule(kernels.matmul(rows, columns, depth), target).decisions
    assert (decisions["row_block"], decisions["pack_left"]) == (row_block, packed)


@pytest.mark.parametrize(("rows", "expected"), [(32, True), (2000, False), (n, False)])
def test_the_first_of_a_few_wide_tiles_packs_what_it_reads(rows, expected):
    wide = replace(Target.named("x86-64-v4"), multiply_adds=2)
    decisions = schedule(kernels.matmul(rows, 512, 512), wide).decisions
    assert (decisions["pack_right"], decisions["packed_in_passing"]) == (True, expected)
    assert not schedule(kernels.matmul(rows, 512, 512), Target.named("x86-64-v4")).decisions["packed_in_passing"]


@pytest.mark.parametrize(("layout", "multipliers", "expected"), [("nn", 1, True), ("nn", 2, False), ("tn", 2, True)])
def test_the_rows_of_wide_tiles_are_read_as_they_lie_along_the_sum(layout, multipliers, expected):
    target = replace(Target.named("x86-64-v4"), multiply_adds=multipliers)
    scheduled = schedule(kernels.matmul(1024, 512, 1000, layout=layout), target)
    assert scheduled.decisions["pack_left"] == expected


@pytest.mark.parametrize(("depth", "unroll"), [(16, 16), (32, 32), (33, 4), (3, 4)])
def test_short_sums_are_written_out(depth, unroll):
    assert schedule(kernels.matmul(64, 96, depth), TARGET).decisions["unroll"] == unroll


def test_short_sums_with_free_columns_are_loops():
    """There is a tile for each remainder of free columns; written out, all of them would be long."""
    rows, columns = Symbol("m"), Symbol("n")
    assert schedule(kernels.matmul(64, columns, 32), TARGET).decisions["unroll"] == 4
    assert schedule(kernels.matmul(rows, 96, 32), TARGET).decisions["unroll"] == 32


@pytest.mark.parametrize(("rows", "steps"), [(7, {4}), (101, {24, 2}), (96, {24}), (n, {24, 4})])
def test_short_sums_are_written_out_where_there_are_many_such_tiles(rows, steps):
    """Beside many tiles of all rows one of the rows that are left takes no time to speak of, and its code counts as much."""
    scheduled = check(kernels.matmul(rows, 96, 24), {n: 13})
    assert {s.extent for s in walk(scheduled.function.body) if isinstance(s, For) and s.variable.name == "u"} == steps


@pytest.mark.parametrize(("product", "depth"), [(kernels.matmul_sigmoid, 20), (kernels.matmul_bias, 300)])
def test_a_tile_that_is_rarely_computed_is_finished_row_by_row(product, depth):
    """What follows a product, functions or the sums of earlier chunks, is written once for it."""
    scheduled = check(product(101, 16, depth))
    waiting = [s.buffer.shape for s in walk(scheduled.function.body) if isinstance(s, Alloc) and s.buffer.space == "stack"]
    assert (101 % scheduled.decisions["rows"], 16) in waiting


@pytest.mark.parametrize(("channels", "written_out"), [(3, True), (4, False)])
def test_short_sums_over_several_axes_are_written_out(channels, written_out):
    """The first layer of most networks of images: 27 products. The axis along which windows overlap stays a loop."""
    scheduled = check(kernels.convolution(1, channels, 9, 16, 3))
    found = [s.kind for s in walk(scheduled.function.body) if isinstance(s, For) and str(s.variable).startswith("k")]
    assert (found == ["unrolled", "serial", "unrolled"] * (len(found) // 3)) == written_out


@pytest.mark.parametrize("last", [True, False])
def test_sums_whose_windows_overlap_along_the_innermost_axis_are_loops(last):
    """One channel: rows of windows are read as broadcasts (channels last) or as vectors (channels first)."""
    scheduled = check(kernels.convolution(1, 1, 12, 16, 5, last=last))
    assert scheduled.decisions["unroll"] == 4


@pytest.mark.parametrize(("columns", "points"), [(16, 32), (37, 43), (75, 20), (9, 7)])
def test_an_operand_that_is_stored_along_the_sum_is_packed_in_squares(columns, points):
    """Whole squares, the columns beside them and the points below them: the bits of the operand stored the other way."""
    straight, turned = kernels.matmul(7, columns, points), kernels.matmul(7, columns, points, layout="nt")
    a, b, bias = inputs_of(straight, {})
    scheduled = schedule(turned, TARGET, SHORT_CHAINS)
    vectors = [s.extent for s in walk(scheduled.function.body) if isinstance(s, For) and s.kind == "vector"]
    assert (64 in vectors) == (columns >= 8 and points >= 8)
    expected = run(schedule(straight, TARGET, SHORT_CHAINS), straight, [a, b, bias], {})[0]
    found = run(scheduled, turned, [a, np.ascontiguousarray(b.T), bias], {})[0]
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(("columns", "halves"), [(24, True), (40, True), (53, True), (5, True), (32, False), (30, False)])
def test_half_of_a_wide_vector_is_computed_by_itself(columns, halves, layout):
    """Vectors of 64 bytes may take twice as long as those of 32; the bits are those of any other width."""
    kernel = kernels.matmul(9, columns, 37, layout=layout)
    inputs = inputs_of(kernel, {})
    expected = run(schedule(kernel, TARGET, SHORT_CHAINS), kernel, inputs, {})[0]
    twice = Target.named("x86-64-v4")
    for target in (twice, replace(twice, has_halves=False)):
        scheduled = schedule(kernel, target, SHORT_CHAINS)
        body = scheduled.function.body
        sums = [s.buffer.shape[-1] for s in walk(body) if isinstance(s, Alloc) and s.buffer.space == "register"]
        assert (8 in sums) == (halves and (target is twice or columns < 8))
        found = run(scheduled, kernel, inputs, {})[0]
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_half_vectors_are_known_by_the_name_of_the_processor():
    wide = frozenset({"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"})
    halves = {cpu: _target("x86_64", cpu, "", wide).has_halves for cpu in ("znver4", "znver5", "rocketlake", "icelake-server")}
    assert halves == {"znver4": True, "znver5": False, "rocketlake": True, "icelake-server": False}
    assert not _target("x86_64", "znver4", "", frozenset({"avx2"})).has_halves


@pytest.mark.parametrize("cores", [2, 3, 4])
@pytest.mark.parametrize(("rows", "columns", "points"), [(784, 128, 512), (784, 512, 128), (196, 1024, 256)])
def test_threads_get_equally_many_blocks(rows, columns, points, cores):
    """An odd number of blocks would leave one of two threads waiting while the other computes the last."""
    kernel = kernels.matmul(rows, columns, points)
    scheduled = schedule(kernel, replace(TARGET, cores=cores), ScheduleOptions(recipe="contraction"))
    tiles = scheduled.decisions
    blocks = -(-rows // tiles["row_block"]) * -(-columns // tiles["column_block"])
    assert -(-blocks // cores) * cores <= 1.1 * blocks


@pytest.mark.parametrize(("rows", "layout", "expected"), [(128, "nn", 4), (1024, "nn", 1), (n, "nn", 1), (128, "nt", 1)])
def test_panels_are_packed_together_for_few_rows(rows, layout, expected):
    decisions = schedule(kernels.matmul(rows, 768, 768, layout=layout), TARGET).decisions
    assert decisions["pack_right"]
    assert decisions["packed_panels"] == expected


def test_tiles_must_divide_blocks():
    with pytest.raises(ValueError, match="blocks must be multiples of the tile"):
        check(kernels.matmul(7, 20, 13), decisions={"row_block": 5, "rows": 3})


def test_a_padded_operand_is_padded_once():
    kernel = kernels.convolution(1, 4, 9, 8, 3, padding=1)
    scheduled = check(kernel)
    (padded,) = scheduled.scratch
    assert padded.shape == (1, 11, 11, 4)


def test_padded_pixels_with_many_channels_do_not_share_sets_of_the_first_cache():
    """512 channels: pixels would be 2 KB apart."""
    scheduled = check(kernels.convolution(1, 512, 4, 8, 3, padding=1))
    (padded,) = (buffer for buffer in scheduled.scratch if buffer.name.endswith("_padded"))
    assert padded.shape == (1, 6, 6, 512 + 16)


def test_sums_wait_in_an_output_of_their_type():
    assert check(kernels.matmul(7, 20, 300)).scratch == ()


def test_short_row_axes_merge_where_only_the_left_operand_tells_them_apart():
    """Rows of 7 would be tiles of 4 and 3; 49 rows are nine tiles of 5 and one of 4. Few columns do not pay for
    laying out the rows and keep both axes: the bits are the same. So they are where rows are packed."""
    many, few = (kernels.strided_panels(7, blocks, 20, 16) for blocks in (8, 4))
    x, w = inputs_of(many, {})
    merged, apart = schedule(many, TARGET), schedule(few, TARGET)
    packed = schedule(many, replace(TARGET, l2_bytes=1 << 10))
    assert (merged.decisions["rows"], [buffer.name for buffer in merged.scratch]) == (5, ["x_rows"])
    assert (packed.decisions["rows"], packed.decisions["pack_left"]) == (5, True)
    assert (apart.decisions["rows"], apart.scratch) == (4, ())
    expected = run(apart, few, [x, np.ascontiguousarray(w[:4])], {})[0]
    for each in (merged, packed):
        found = run(each, many, [x, w], {})[0]
        np.testing.assert_array_equal(np.ascontiguousarray(found[:, :, :4]).view(np.uint32), expected.view(np.uint32))
    check(many)


def test_low_tiles_take_as_long_as_their_loads():
    """Where two multiply-adds begin with each load, 2 rows of 4 vectors take 6 loads for 4 cycles of products: rows of 7
    (tiles of 5 and 2) are merged into 49, and where loads keep up they are not."""
    kernel = kernels.strided_panels(7, 4, 20, 64)
    wide = replace(Target.named("x86-64-v4"), multiply_adds=2)
    assert tiles_time(7, 5, 4, wide) - tiles_time(7, 5, 4, replace(wide, multiply_adds=1)) == 1
    merged = schedule(kernel, wide)
    assert (merged.decisions["rows"], [buffer.name for buffer in merged.scratch]) == (6, ["x_rows"])
    with_loads, without = (tiles_time(49, 6, 4, t) / (7 * tiles_time(7, 5, 4, t)) for t in (wide, replace(wide, multiply_adds=1)))
    assert with_loads < GATHERING_GAIN < without


def test_long_sums_have_chains_whose_panels_fit_the_first_cache():
    """Of wide tiles; it depends on the length of the sum, never on the rows."""
    wide = replace(Target.named("x86-64-v4"), multiply_adds=2, l1_bytes=48 << 10)
    chains = {
        (rows, depth): schedule(kernels.matmul(rows, 64, depth), wide).decisions["chain"]
        for rows, depth in itertools.product((1, 7, 100), (256, 511, 512, 3072))
    }
    assert chains == {(rows, depth): 128 if depth >= 512 else 256 for rows, depth in chains}
    roomy = replace(wide, l1_bytes=64 << 10)
    assert schedule(kernels.matmul(7, 64, 512), roomy).decisions["chain"] == 256
    assert schedule(kernels.matmul(7, 64, 512), Target.named("x86-64-v3")).decisions["chain"] == 256


def test_the_next_stored_panel_is_fetched_ahead():
    kernel = kernels.panels(13, 3, 20, 16)
    inputs = inputs_of(kernel, {})
    results = []
    for fetch in (False, True):
        options = ScheduleOptions(recipe="contraction", decisions={"fetch_panels": fetch})
        scheduled = schedule(kernel, TARGET, options)
        assert any(isinstance(s, Prefetch) for s in walk(scheduled.function.body)) == fetch
        results.append(run(scheduled, kernel, inputs, {})[0])
    np.testing.assert_array_equal(results[0].view(np.uint32), results[1].view(np.uint32))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("decisions", [{}, {"chain": 16, "chunks_inside": True}, {"pack_right": True, "packed_panels": 2}])
@pytest.mark.parametrize("rows", [6, 20, 54])
def test_every_line_of_the_next_panel_is_fetched(rows, decisions, stored):
    """Also where a tile reads two stored panels side by side, chunk after chunk, or where several are packed together."""
    depth, columns, block = 48, 96, 16
    kernel = kernels.stored_panels(rows, columns, depth, block) if stored else kernels.matmul(rows, columns, depth)
    tile = {"rows": 6, "vectors": 4, "row_block": -(-rows // 6) * 6, "column_block": columns, "pack_right": False}
    options = ScheduleOptions("contraction", {**tile, "fetch_panels": True, **decisions})
    scheduled = schedule(kernel, TARGET, options)
    weight = kernel.inputs[1]
    found = lines_fetched(scheduled, weight, kernel)
    wanted = np.ones((depth, columns), bool)
    wanted[:, : 32 * decisions.get("packed_panels", 1)] = False  # nobody comes before the first panel
    if stored:
        wanted = wanted.reshape(depth, columns // block, block).transpose(1, 0, 2)
    assert found[wanted.reshape(-1)[::16]].all()


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_low_tiles_of_a_free_number_of_rows_fetch_the_next_panel_by_themselves(rows):
    """They may be the only ones: an image of a few pixels, deep in a network."""
    depth, columns = 48, 96
    count = Symbol("rows")
    kernel = kernels.matmul(count, columns, depth)
    tile = {"rows": 6, "vectors": 2, "row_block": 60, "column_block": columns, "pack_right": False, "fetch_panels": True}
    scheduled = schedule(kernel, TARGET, ScheduleOptions("contraction", tile))
    found = lines_fetched(scheduled, kernel.inputs[1], kernel, {count: rows})
    wanted = np.ones((depth, columns), bool)
    wanted[:, : 2 * scheduled.decisions["width"]] = False  # nobody comes before the first panel
    assert found[wanted.reshape(-1)[::16]].all()


def lines_fetched(scheduled, buffer, kernel, sizes=MappingProxyType({})):
    """Which lines of 16 elements of a buffer hints name: hints as stores of a mark, the rest of the code as it is."""
    marks = Buffer("marks", f32, (2 * math.prod(buffer.shape),))

    def marked(body):
        return tuple(step for statement in body for step in with_marks(statement))

    def with_marks(statement):
        match statement:
            case Prefetch(buffer=named, index=index) if named == buffer:
                place = 0
                for size, i in zip(named.shape, index, strict=True):
                    place = place * size + i
                return (Store(marks, (place,), constant(1.0, f32)),)
            case For(body=body):
                return (replace(statement, body=marked(body)),)
            case If(then=then, otherwise=otherwise):
                return (replace(statement, then=marked(then), otherwise=marked(otherwise)),)
            case _:
                return (statement,)

    function = scheduled.function
    function = replace(function, parameters=(*function.parameters, marks), body=marked(function.body))
    array = np.zeros(marks.shape, np.float32)
    outputs, scratch = (unset(buffers, sizes) for buffers in (kernel.outputs, scheduled.scratch))
    run_function(function, [*inputs_of(kernel, sizes), *outputs, *scratch, array], sizes)
    return array[: array.size // 2].reshape(-1, 16).any(axis=1)


@pytest.mark.parametrize(
    ("rows", "panels", "expected"),
    [(13, 3, False), (13, 64, True), (100, 1, False), (100, 3, True)],
)
def test_what_a_cache_cannot_hold_is_fetched_ahead(rows, panels, expected):
    """By a few tiles of rows what the second cache cannot hold, by many what the first cannot."""
    scheduled = schedule(kernels.panels(rows, panels, 256, 16), TARGET)
    assert scheduled.decisions["fetch_panels"] == expected


def test_matrices_of_the_epilogue_are_fetched_before_the_sums():
    """A matrix that is added is on its way while the micro-kernel runs; a vector is near anyway."""
    plain, added = kernels.matmul(12, 32, 20), kernels.matmul_residual(12, 32, 20)
    assert not fetched(plain)
    assert fetched(added) == {"residual"}
    check(added)


def fetched(kernel):
    body = schedule(kernel, TARGET).function.body
    return {s.buffer.name for s in walk(body) if isinstance(s, Prefetch)}


def test_rows_that_are_looked_up_are_packed():
    """Each has an address of its own, and a tile of rows has no registers for them."""
    few, many = (kernels.looked_up(9, columns, 20) for columns in (16, 64))
    across = kernels.looked_up(9, 64, 20, along=False)  # all rows of a step are at one address
    assert [check(kernel).decisions["pack_left"] for kernel in (few, many, across)] == [False, True, False]


@pytest.mark.parametrize("points", [20, 300])  # one chunk, and two
@pytest.mark.parametrize("tiles", [{}, {"row_block": 12, "column_block": 32}, {"pack_left": True}])
def test_updates_follow_when_the_sums_of_a_block_are_made(points, tiles):
    """The same bits as in the tile, for whole and broken tiles."""
    kernel = kernels.matmul_update(26, 45, points)
    scheduled = check(kernel, decisions=tiles)
    assert scheduled.decisions["ends_apart"]
    inputs = inputs_of(kernel, {})
    inside = schedule(kernel, TARGET, ScheduleOptions(decisions={**tiles, "ends_apart": False}))
    for a, b in zip(run(scheduled, kernel, inputs, {}), run(inside, kernel, inputs, {}), strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_short_ends_and_those_of_one_matrix_stay_in_the_tile():
    cases = (kernels.matmul_residual(26, 45, 20), kernels.matmul_sigmoid(26, 45, 20), kernels.matmul_update(n, 45, 20))
    assert not any(schedule(kernel, TARGET).decisions["ends_apart"] for kernel in cases)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(196, 256, 1024), (196, 1024, 256), (49, 512, 2048), (784, 128, 512)])
@pytest.mark.parametrize("cores", [2, 4])
def test_threads_get_blocks_of_as_much_work(rows, columns, depth, cores):
    """Each has a range of blocks, the last of which are smaller: 196 rows in blocks of 60 would be 120 and 76 for two threads."""
    target = replace(Target.named("x86-64-v4"), l1_ways=12, l2_bytes=1 << 20, cores=cores)
    decisions = schedule(kernels.matmul(rows, columns, depth), target).decisions
    height, breadth = decisions["row_block"], decisions["column_block"]
    work = [
        min(height, rows - i) * min(breadth, columns - j)
        for i in range(0, rows, height)
        for j in range(0, columns, breadth)
    ]
    shares = np.array_split(work, cores)  # the longer ones first, as the pool does
    assert max(share.sum() for share in shares) * cores <= 1.13 * sum(work)


def test_blocks_of_a_product_of_any_size_are_chosen_at_once():
    """A model may ask for more rows than there are places for: what follows from their number is not listed."""
    decisions = schedule(kernels.matmul(1 << 40, 2, 3), replace(TARGET, cores=2)).decisions
    assert decisions["row_block"] < 1 << 20
