"""Rows: as few passes as the reductions allow, and row vectors where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_function, run_kernel
from ingot.compiler.ir.loops import Alloc, For, If, Prefetch, Store, walk
from ingot.compiler.ir.scalar import Buffer, Load, apply
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Definition, Kernel, axes, reduction
from ingot.compiler.ir.types import f32
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.recipes.rows_ahead import Order
from ingot.compiler.target import Target
from tests.schedule import kernels
from tests.schedule.harness import TARGET, assert_close, check, inputs_of, unset

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
def test_rows_that_may_be_long_wait_in_the_output_that_is_made_of_them(length, dims):
    scheduled = check(kernels.softmax((2, length)), dims)
    assert stack_of(scheduled) == []
    assert scheduled.scratch == ()
    ((source, output),) = scheduled.in_place
    assert (source.name, output.name) == ("x", "y")


def test_rows_that_two_outputs_are_made_of_at_last_have_scratch_memory():
    x, y, z, e = (Buffer(name, f32, (2, n)) for name in "xyze")
    total = Buffer("total", f32, (2,))
    i, j, k, (r,) = axes((2, n)), axes((2, n)), axes((2, n)), axes((2,))
    kernel = Kernel("twice", (x,), (y, z), (
        Definition(e, i, apply("exp", Load(x, i))),
        Definition(total, (r,), reduction("sum", (n,), lambda t: Load(e, (r, t)))),
        Definition(y, j, apply("div", Load(e, j), Load(total, j[:1]))),
        Definition(z, k, apply("mul", Load(e, k), Load(total, k[:1]))),
    ))  # fmt: skip
    assert [buffer.shape for buffer in check(kernel, {n: 30}).scratch] == [(2, n)]


def test_cheap_row_vectors_are_computed_again():
    """The distance from the mean is one subtraction: no memory for it."""
    scheduled = check(kernels.layer_norm((4, 33), 33))
    assert scheduled.decisions["passes"] == 3
    assert stack_of(scheduled) == []


@pytest.mark.parametrize("kernel", [kernels.softmax((4, 37)), kernels.layer_norm((3, 20), 20)])
def test_an_output_may_overwrite_the_rows_it_is_made_of(kernel):
    scheduled = check(kernel)
    assert scheduled.in_place
    for source, output in scheduled.in_place:
        inputs = inputs_of(kernel, {})
        expected = run_kernel(kernel, [array.copy() for array in inputs])
        outputs = unset(kernel.outputs, {})
        outputs[kernel.outputs.index(output)] = inputs[kernel.inputs.index(source)]
        run_function(scheduled.function, [*inputs, *outputs, *unset(scheduled.scratch, {})])
        assert_close(outputs, expected, kernel)


def test_rows_that_are_read_after_an_output_is_stored_are_not_overwritten():
    """Both outputs of the normalisation are stored in one pass, which reads x at the point that is stored."""
    kernel = kernels.layer_norm((3, 20), 20)
    assert {(a.name, b.name) for a, b in check(kernel).in_place} == {("x", "y"), ("x", "normal")}
    rows = kernels.reduce_axes((20, 33), (0,))
    assert check(rows).in_place == ()


def statements_of(kind, rows, leaving=False):
    scheduled = schedule(kernels.softmax((rows, 1024)), TARGET, ScheduleOptions(leaving=leaving))
    return [s for s in walk(scheduled.function.body) if isinstance(s, kind)]


def test_rows_that_come_from_memory_are_fetched_two_rows_before():
    """In the sweep that computes the most, every line once, and only of what is too large for the near caches."""
    far = TARGET.l2_bytes // 4096 + 1
    assert {s.buffer.name for s in statements_of(Prefetch, far)} == {"x"}
    (sweep,) = [s for s in statements_of(For, far) if any(isinstance(inner, Prefetch) for inner in s.body)]
    assert [s.index[-1] - sweep.body[0].index[-1] for s in sweep.body if isinstance(s, Prefetch)] == [0, 16]
    assert any(isinstance(s, Store) and s.buffer.name == "e" for s in walk(sweep.body))
    assert not statements_of(Prefetch, 8)
    for length in (1, 2, 40):
        check(kernels.softmax((5, length)), decisions={"ahead": True})


def test_registers_of_whole_lines_need_no_later_rows_in_advance():
    wide = Target.named("x86-64-v4")
    scheduled = schedule(kernels.softmax((wide.l2_bytes // 4096 + 1, 1024)), wide, ScheduleOptions())
    assert not [s for s in walk(scheduled.function.body) if isinstance(s, Prefetch)]


def test_results_larger_than_the_caches_bypass_them_in_the_last_sweep():
    far = TARGET.l3_bytes // 4096 + 1
    assert {s.buffer.name for s in statements_of(Store, far, leaving=True) if s.streaming} == {"y"}
    assert not [s for s in statements_of(Store, far) if s.streaming]
    check(kernels.softmax((5, 40)), decisions={"streaming": True})


@pytest.mark.parametrize("columns", [255, 256, 257, 700])
def test_rows_that_bypass_the_caches_are_the_same(columns):
    check(kernels.softmax((3, columns)), decisions={"streaming": True})
    check(kernels.layer_norm((3, columns), columns), decisions={"streaming": True, "ahead": True})


def test_the_last_sweep_takes_turns_with_the_next_row_where_both_ends_are_memory():
    """That of a normalisation with the first sweep, which waits for memory; that of a softmax with its exponentials, and
    the row before keeps its own. Not where results stay in a cache, nor in rows that the first cache does not hold."""
    far = TARGET.l3_bytes // 4096 + 1

    def turns(kernel, leaving=True):
        return schedule(kernel, TARGET, ScheduleOptions(leaving=leaving)).decisions["turns"]

    assert turns(kernels.layer_norm((far, 1024), 1024)) == 0
    assert turns(kernels.softmax((far, 1024))) == 1
    assert turns(kernels.softmax((far, 1024)), leaving=False) == -1
    assert turns(kernels.softmax((8, 1024))) == -1
    assert turns(kernels.softmax((far, 4096))) == -1
    scheduled = schedule(kernels.softmax((far, 1024)), TARGET, ScheduleOptions(leaving=True))
    kept = [s.buffer for s in walk(scheduled.function.body) if isinstance(s, Alloc) and s.buffer.name == "e"]
    assert [buffer.shape for buffer in kept] == [(2, 1024)]


@pytest.mark.parametrize("columns", [7, 255, 512, 700, 1100])
@pytest.mark.parametrize("chunk", [2, 3, 5, 8])
def test_rows_that_take_turns_are_the_same(columns, chunk):
    """For chunks of one row, of several, and a last one that is shorter."""
    overlapping = {"streaming": True, "ahead": True, "axis": 0, "chunk": chunk}
    check(kernels.softmax((7, columns)), decisions={**overlapping, "turns": 1})
    check(kernels.softmax((7, columns)), decisions={**overlapping, "turns": 0})
    check(kernels.layer_norm((7, columns), columns), decisions={**overlapping, "turns": 0})
    check(kernels.layer_norm((7, columns), columns), decisions={**overlapping, "turns": 1})


def test_the_sweeps_of_several_rows_go_on_side_by_side_where_vectors_are_lines():
    """Not where results stay in a cache, nor in rows that are too short, or too long for the second cache, or for the stack
    if something of their length is kept."""
    target = replace(Target.named("x86-64-v4"), l1_bytes=48 << 10)
    rows = target.l3_bytes // 4096 + 1

    def staggered(kernel, leaving=True, target=target):
        return schedule(kernel, target, ScheduleOptions(leaving=leaving)).decisions["staggered"]

    assert staggered(kernels.softmax((rows, 1024)))
    assert staggered(kernels.layer_norm((rows, 1024), 1024))
    assert not staggered(kernels.softmax((rows, 1024)), leaving=False)
    assert not staggered(kernels.softmax((8, 1024)))
    assert staggered(kernels.softmax((rows, 4096)))
    assert not staggered(kernels.softmax((rows, 10000)))
    assert staggered(kernels.layer_norm((rows, 10000), 10000))
    assert not staggered(kernels.layer_norm((rows, 50257), 50257))
    assert not staggered(kernels.softmax((64 * rows, 100)))
    assert not staggered(kernels.softmax((rows, 1024)), target=TARGET)
    scheduled = schedule(kernels.softmax((rows, 1024)), target, ScheduleOptions(leaving=True))
    kept = {s.buffer.name: s.buffer.shape for s in walk(scheduled.function.body) if isinstance(s, Alloc)}
    assert kept["e"] == (2, 1024)
    assert {s.buffer.name for s in walk(scheduled.function.body) if isinstance(s, Prefetch)} == {"x"}


def asked_for(statements, known):
    """The places of one-dimensional hints, with loop variables as in `known`, whatever the conditions."""
    for statement in statements:
        match statement:
            case Prefetch(_, index):
                yield symbolic.evaluate(index[-1], known)
            case For(variable, extent, body):
                for number in range(symbolic.evaluate(extent, known)) if any(isinstance(s, Prefetch) for s in walk(body)) else ():
                    yield from asked_for(body, {**known, variable: number})
            case If(_, then, otherwise):
                yield from asked_for((*then, *otherwise), known)


@pytest.mark.parametrize(("columns", "farthest"), [(128, 64), (768, 11), (1000, 9), (1024, 8), (4096, 2), (9000, 1)])
def test_rows_that_are_staggered_ask_for_each_line_of_later_rows_once(columns, farthest):
    """For the first part of a row eight pages ahead, or one row; for each following one less."""
    target = replace(Target.named("x86-64-v4"), l1_bytes=48 << 10)
    decisions = {"streaming": True, "staggered": True, "axis": 0, "chunk": 80}
    scheduled = schedule(kernels.layer_norm((80, columns), columns), target, ScheduleOptions(decisions=decisions))
    (rows,) = [s for s in walk(scheduled.function.body) if isinstance(s, For) and s.extent == 82]
    asked = [place for row in range(80) for place in asked_for(rows.body, {rows.variable: row})]
    lines = {row * columns + line for row in range(farthest, 80) for line in range(0, columns, 16)}
    assert len(asked) == len(set(asked)) == 80 * -(-columns // 16)
    assert lines <= set(asked)
    assert min(asked) >= columns


@pytest.mark.parametrize("columns", [64, 255, 512, 700, 1100])
@pytest.mark.parametrize("chunk", [2, 3, 7])
def test_rows_that_are_staggered_are_the_same(columns, chunk):
    """For chunks of fewer rows than stages, of more, and a last one that is shorter."""
    staggered = {"streaming": True, "staggered": True, "axis": 0, "chunk": chunk}
    check(kernels.softmax((7, columns)), decisions=staggered)
    check(kernels.layer_norm((7, columns), columns), decisions=staggered)


@pytest.mark.parametrize("columns", [64, 255, 1024])
@pytest.mark.parametrize(("rows", "chunk"), [(16, 16), (19, 16), (23, 11), (5, 5), (26, 8)])
@pytest.mark.parametrize(("parts", "length"), [(2, 4), (4, 2), (3, 1)])
def test_rows_that_come_from_several_parts_in_turn_are_the_same(columns, rows, chunk, parts, length):
    """For chunks of whole blocks of them, of less than one, and with rows left over."""
    decisions = {"streaming": True, "staggered": True, "axis": 0, "chunk": chunk, "parts": parts, "length": length}
    check(kernels.softmax((rows, columns)), decisions=decisions)
    check(kernels.centred((rows, columns), columns), decisions=decisions)
    check(kernels.layer_norm((rows, columns), columns), decisions=decisions)


def test_where_requests_are_few_each_line_of_the_next_eight_pages_is_asked_for_once():
    """Whatever the length of a row, if rows are whole groups of vectors; and rows follow each other."""
    target = replace(Target.named("x86-64-v4"), l1_bytes=48 << 10, has_few_line_buffers=True)
    decisions = {"streaming": True, "staggered": True, "axis": 0, "chunk": 40}
    scheduled = schedule(kernels.layer_norm((40, 768), 768), target, ScheduleOptions(decisions=decisions))
    (rows,) = [s for s in walk(scheduled.function.body) if isinstance(s, For) and s.extent == 42]
    asked = [place for row in range(40) for place in asked_for(rows.body, {rows.variable: row})]
    assert len(set(asked)) == len(asked) == 40 * 768 // 16
    assert set(range(8 * 1024, 40 * 768, 16)) <= set(asked)  # all but what was asked for before
    far = kernels.layer_norm((target.l3_bytes // 4096 + 1, 1024), 1024)
    found = schedule(far, target, ScheduleOptions(leaving=True)).decisions
    assert found["staggered"]
    assert found["parts"] == 1


def test_every_row_has_its_step():
    for order in (Order(), Order(2, 4), Order(3, 2), Order(1, 5), Order(4, 4)):
        assert sorted(order.row(step) for step in range(5 * order.block)) == list(range(5 * order.block))
    assert [Order(2, 4).row(step) for step in range(10)] == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12]


def test_rows_come_from_several_parts_where_little_is_computed_and_the_first_cache_holds_them():
    target = replace(Target.named("x86-64-v4"), l1_bytes=48 << 10)
    rows = target.l3_bytes // 4096 + 1

    def parts(kernel):
        decisions = schedule(kernel, target, ScheduleOptions(leaving=True)).decisions
        assert decisions["staggered"]
        assert decisions["chunk"] % (decisions["parts"] * decisions["length"]) == 0
        return decisions["parts"]

    assert parts(kernels.layer_norm((rows, 1024), 1024)) > 1
    assert parts(kernels.layer_norm((rows, 4096), 4096)) == 1
    assert parts(kernels.softmax((rows, 1024))) == 1


def test_vectors_that_are_read_with_every_row_are_copied_where_rows_are_whole_pages():
    target = replace(Target.named("x86-64-v4"), l1_bytes=48 << 10)
    decisions = {"streaming": True, "staggered": True, "axis": 0, "chunk": 8}

    def copied(columns, **fields):
        kernel = kernels.centred((8, columns), columns, **fields)
        scheduled = schedule(kernel, target, ScheduleOptions(decisions=decisions))
        return [s.buffer.shape for s in walk(scheduled.function.body) if isinstance(s, Alloc) and s.buffer.name == "near"]

    assert copied(1024) == [(2048,)]
    assert copied(1000) == copied(16384) == []
    assert copied(1024, scaled=1000) == []  # there may be nothing to copy where no element asks for one
    assert copied(1024, each=True) == []


def test_copies_of_vectors_are_those_of_the_rows_around():
    decisions = {"streaming": True, "staggered": True, "axis": 1, "chunk": 8, "parts": 2, "length": 2}
    scheduled = check(kernels.centred((3, 11, 1024), 1024, each=True), decisions=decisions)
    assert any(s.buffer.name == "near" for s in walk(scheduled.function.body) if isinstance(s, Alloc))


@pytest.mark.parametrize("columns", [31, 32, 33, 100, 600])
def test_costly_values_are_computed_several_vectors_at_once(columns):
    """The sum is gathered from them in vectors of the usual width, in the usual order."""
    scheduled = check(kernels.softmax((3, columns)))
    lanes = {s.width for s in walk(scheduled.function.body) if isinstance(s, For) and s.kind == "vector"}
    assert (max(lanes) == 32) == (columns >= 32)
