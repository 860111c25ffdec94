"""In a loop of the program panels of a weight are read from both ends in turn, with the same results."""

import numpy as np
import pytest

import ingot
from ingot.compiler.assembly import assemble
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Call, Prefetch, Store, walk
from ingot.compiler.ir.symbolic import Symbol, Variable
from ingot.compiler.pipeline import run_passes
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.result import TURN
from tests.schedule import kernels
from tests.schedule.harness import TARGET, inputs_of, run

n = Symbol("n")
LARGE = kernels.stored_panels(1, 640, 64, 16)  # 160 KB of weights, in blocks of columns
REPEATED = ScheduleOptions(repeated=True)


@pytest.mark.parametrize(
    ("kernel", "dims"),
    [
        (kernels.matmul(7, 50, 20), {}),  # the last panel is not full
        (kernels.matmul(n, 40, 20), {n: 5}),
        (kernels.matmul(7, n, 20), {n: 41}),
        (kernels.matmul(9, 40, 20, layout="nt"), {}),  # packed
    ],
)
@pytest.mark.parametrize("tiles", [{}, {"column_block": 16}, {"fetch_panels": True}, {"chain": 16}])
def test_both_turns_give_the_same_bits(kernel, dims, tiles):
    inputs = inputs_of(kernel, dims)
    decisions = {"vectors": 1, "column_block": 24, "pack_right": False, "fetch_panels": False, **tiles}
    options = ScheduleOptions(recipe="contraction", decisions=decisions)
    (expected, _) = run(schedule(kernel, TARGET, options), kernel, inputs, dims)
    returning = ScheduleOptions(recipe="contraction", decisions={**decisions, "returning": True})
    scheduled = schedule(kernel, TARGET, returning)
    assert scheduled.turn is TURN
    for turn in (0, 1):
        found = run(scheduled, kernel, inputs, {**dims, TURN: turn})[0]
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_the_second_turn_begins_with_the_last_panel():
    scheduled = schedule(LARGE, TARGET, REPEATED)
    stores = [s for s in walk(scheduled.function.body) if isinstance(s, Store) and s.buffer is LARGE.outputs[0]]
    assert stores
    column = stores[0].index[1]
    at_start = {atom: 0 for atom in symbolic.atoms(column) if isinstance(atom, Variable)}
    width = scheduled.decisions["vectors"] * scheduled.decisions["width"]
    assert [symbolic.evaluate(column, {**at_start, TURN: turn}) for turn in (0, 1)] == [0, 640 - width]


def test_hints_go_the_way_that_panels_go():
    kernel = kernels.stored_panels(13, 64 * 16, 256, 16)
    scheduled = schedule(kernel, TARGET, REPEATED)
    hint = next(s for s in walk(scheduled.function.body) if isinstance(s, Prefetch))
    at_start = {atom: 0 for atom in symbolic.atoms(hint.index[0]) if isinstance(atom, Variable)}
    assert [symbolic.evaluate(hint.index[0], {**at_start, TURN: turn}) for turn in (0, 1)] == [1, 62]


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (LARGE, ScheduleOptions()),  # in no loop
        (kernels.stored_panels(1, 64, 16, 16), REPEATED),  # the first cache holds it
        (kernels.matmul(4, 16, 2000), REPEATED),  # a single panel
        (kernels.panels(1, 40, 64, 16), REPEATED),  # blocks are an axis of the result
    ],
)
def test_what_gains_nothing_has_one_direction(kernel, options):
    assert schedule(kernel, TARGET, options).turn is None


def test_a_single_row_of_a_free_number_takes_turns_too():
    kernel = kernels.stored_panels(n, 640, 64, 16)
    scheduled = schedule(kernel, TARGET, REPEATED)
    assert scheduled.reason.endswith("a single row by itself")
    assert scheduled.turn is TURN
    for rows in (1, 5):
        inputs = inputs_of(kernel, {n: rows})
        expected = run(schedule(kernel, TARGET), kernel, inputs, {n: rows})[0]
        for turn in (0, 1):
            found = run(scheduled, kernel, inputs, {n: rows, TURN: turn})[0]
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_a_scan_says_whose_turn_it_is():
    weight = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32) / 16

    def model(xs):
        return ingot.scan(lambda h, x: (((h @ weight)[:, :128] + x).tanh(), h), xs[0] * 0.0, xs)[1]

    graph = run_passes(ingot.trace(model, [ingot.f32["t", 2, 128]]).graph, ingot.Options(target="x86-64-v3"))
    assembly = assemble(graph, lambda kernel, options: schedule(kernel, TARGET, options), target=TARGET)
    calls = [s for s in walk(assembly.entry.body) if isinstance(s, Call) and s.sizes]
    assert [str(value) for call in calls for symbol, value in call.sizes if symbol is TURN] == ["t % 2"]
    xs = np.random.default_rng(1).standard_normal((5, 2, 128)).astype(np.float32)
    h, expected = np.zeros((2, 128), np.float32), []
    for x in xs:
        expected.append(h)
        h = np.tanh((h @ weight)[:, :128] + x)
    found = ingot.compile(model, ingot.f32["t", 2, 128])(xs)
    np.testing.assert_allclose(found, np.stack(expected), 1e-4, 1e-5)  # sums of 128 products, five times
