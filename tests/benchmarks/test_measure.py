"""Timing takes turns fairly, and says when a result is wrong."""

import math

import numpy as np
import pytest

from benchmarks.measure import Effort, interleave, relative_error
from benchmarks.probe import Bandwidth, Machine
from benchmarks.rows import Row
from benchmarks.suites.race import Entry, Setting, race
from benchmarks.work import Work

EFFORT = Effort(0.002, 2)
MACHINE = Machine(
    100.0,
    (
        Bandwidth("L1", 1 << 14, 200.0, 100.0),
        Bandwidth("L2", 1 << 18, 100.0, 80.0),
        Bandwidth("L3", 1 << 22, 50.0, 40.0),
        Bandwidth("memory", 1 << 27, 20.0, 25.0),
    ),
)
SETTING = Setting(1, EFFORT, False, MACHINE)
ROW = Row("row", "a row")


def test_every_call_is_counted():
    calls = {"a": 0, "b": 0}

    def counted(name):
        def call():
            calls[name] += 1

        return call

    found = interleave({name: counted(name) for name in calls}, EFFORT)
    for name, timing in found.items():
        assert 0 < timing.best <= timing.median
        assert 0 < timing.calls < calls[name]  # warm-up and the first call of a turn are not timed


def test_the_slower_of_two_is_the_slower_of_two():
    def work(count):
        return lambda: sum(range(count))

    found = interleave({"long": work(20000), "short": work(200)}, EFFORT)
    assert found["short"].best < found["long"].best


@pytest.mark.parametrize("busy", [False, True])
def test_both_clocks_run(busy):
    assert interleave({"a": lambda: sum(range(1000))}, Effort(0.002, 2, busy))["a"].best > 0


def test_error_is_relative_to_the_range():
    expected = np.array([0.0, -200.0, 1.0])
    assert relative_error(np.array([2.0, -200.0, 0.0]), expected) == pytest.approx(0.01)
    assert relative_error([np.nan, 0.0, 0.0], expected) == math.inf
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        relative_error(expected[:2], expected)


def test_a_race_keeps_out_what_is_wrong_or_fails():
    right = np.arange(4.0)

    def failing():
        raise RuntimeError("no such kernel")

    entries = {
        "Ingot": Entry(lambda: lambda: right),
        "wrong": Entry(lambda: lambda: right + 1),
        "failing": Entry(failing),
        "peer": Entry(lambda: lambda: np.array(right)),
    }
    result = race(ROW, entries, right, 1e-6, SETTING, Work(1e6, 0.0))
    assert set(result.peers) == {"peer"}
    assert result.contenders["wrong"].failure.startswith("wrong: relative error 0.33")
    assert "no such kernel" in result.contenders["failing"].failure
    assert result.ratio == pytest.approx(result.contenders["peer"].best / result.contenders["Ingot"].best)
    assert result.limit == pytest.approx(1e6 / 100e9)
    assert result.limited_by == "FMA"


def test_a_limit_takes_turns_with_the_entries():
    calls = []
    entry = Entry(lambda: lambda: calls.append("ours"))
    ways = {"fast": lambda: calls.append("fast"), "slow": lambda: (calls.append("slow"), sum(range(1000)))}
    result = race(ROW, {"Ingot": entry}, None, 1.0, SETTING, Work(0.0, 1e8, 1e8), ways)
    assert list(result.contenders) == ["Ingot"]
    assert {"ours", "fast", "slow"} == set(calls[len(calls) // 2 :])
    assert 0 < (result.limit or 0) < 0.008  # not the one that was measured before
    assert (result.limit or 0) <= (result.limit_median or 0)
    assert (result.share or 0) > 0
    assert (result.median_share or 0) > 0
    assert result.limited_by == "memory copy"


def test_the_limit_is_the_slower_of_computing_and_moving():
    seconds, by = Work(1.0, read=1e8, written=1e8).limit(MACHINE)
    assert by == "memory copy"
    assert seconds == pytest.approx(2e8 / 25e9)
    seconds, by = Work(1.0, read=3e5).limit(MACHINE)
    assert by == "L2 read"
    assert seconds == pytest.approx(3e5 / 100e9)
    assert Work(2e9, 1.0).limit(MACHINE, threads=2) == (pytest.approx(0.01), "FMA")
