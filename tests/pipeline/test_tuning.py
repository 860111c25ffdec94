"""Tuning: what is measured is kept, the budget is obeyed, results stay what they are."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

import ingot
from ingot.compiler import tuning
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.options import parse_seconds
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.target import Target
from ingot.compiler.tuning import Tuner
from ingot.runtime.cache import Cache
from ingot.runtime.storage import aligned_empty
from tests.schedule import kernels

HOST = Target.host()
KERNEL = kernels.matmul(12, 32, 20)


def prefers_two_rows(kernel, scheduled, target):
    return 1.0 if scheduled.decisions["rows"] == 2 else 2.0


def refuses(kernel, scheduled, target):
    raise AssertionError("nothing is left to measure")


def test_the_fastest_candidate_is_taken_and_said():
    tuner = Tuner(HOST, 60.0, None, "test", prefers_two_rows)
    tuner.tune([KERNEL])
    scheduled = tuner.schedule(KERNEL, ScheduleOptions())
    assert scheduled.decisions["rows"] == 2
    assert "tuned: 1000000.0 us instead of 2000000.0" in scheduled.reason


def test_the_default_stays_when_nothing_is_faster():
    tuner = Tuner(HOST, 60.0, None, "test", lambda *_: 1.0)
    tuner.tune([KERNEL])
    scheduled = tuner.schedule(KERNEL, ScheduleOptions())
    assert scheduled.decisions == schedule(KERNEL, HOST).decisions
    assert "the default is best of" in scheduled.reason


def test_a_stored_choice_is_taken_without_measuring(tmp_path):
    first = Tuner(HOST, 60.0, Cache(tmp_path), "test", prefers_two_rows)
    first.tune([KERNEL])
    second = Tuner(HOST, 60.0, Cache(tmp_path), "test", refuses)
    same = kernels.matmul(12, 32, 20)  # other buffers, the same kernel
    second.tune([same])
    assert second.schedule(same, ScheduleOptions()).decisions["rows"] == 2


def test_no_time_no_measurement():
    tuner = Tuner(HOST, 0.0, None, "test", refuses)
    tuner.tune([KERNEL])
    assert tuner.schedule(KERNEL, ScheduleOptions()).reason == schedule(KERNEL, HOST).reason


def test_the_budget_is_obeyed():
    """No candidate is begun after it: the last may end a little later."""
    calls = []

    def slow(*_):
        calls.append(time.monotonic())
        time.sleep(0.02)
        return 1.0

    start = time.monotonic()
    Tuner(HOST, 0.2, None, "test", slow).tune([KERNEL, kernels.matmul(13, 32, 20)])
    assert calls
    assert calls[-1] - start < 0.2 + 0.05


def test_kernels_with_symbolic_dims_are_left_alone():
    kernel = kernels.matmul(Symbol("n"), 8, 8)
    tuner = Tuner(HOST, 60.0, None, "test", refuses)
    tuner.tune([kernel])
    assert tuner.schedule(kernel, ScheduleOptions()).reason == schedule(kernel, HOST).reason


def test_a_kernel_is_measured_on_this_machine(monkeypatch):
    """With arrays that begin at a line, as they do within a program."""
    made: list[np.ndarray] = []

    def remembered(*arguments):
        made.append(aligned_empty(*arguments))
        return made[-1]

    monkeypatch.setattr(tuning, "aligned_empty", remembered)
    assert 0.0 < tuning.measure_kernel(KERNEL, schedule(KERNEL, HOST), HOST) < 1.0
    assert len(made) == len(KERNEL.inputs) + len(KERNEL.outputs)
    assert all(array.ctypes.data % 64 == 0 for array in made)


PROGRAM = """
import json, sys, numpy as np, ingot
from ingot.compiler import tuning
if sys.argv[1] == "again":
    def refuse(*_):
        raise AssertionError("measured again")
    tuning.measure_kernel = refuse
w = np.random.default_rng(0).standard_normal((40, 48)).astype("f")
f = ingot.compile(lambda x, w: (x @ w).relu(), ingot.f32[24, 40], ingot.f32[40, 48], tune=sys.argv[2])
x = np.random.default_rng(1).standard_normal((24, 40)).astype("f")
decisions = [repr(kernel.decisions) for kernel in f.compiled.assembly.kernels] if f.compiled.assembly else None
print(json.dumps([decisions, f(x, w).tobytes().hex()]))
"""


def test_another_process_takes_the_same_choice(tmp_path, monkeypatch):
    """Its own program comes from the cache; one that is compiled anew finds the choices of its kernels there."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))

    def run(*arguments: str):
        done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    decisions, bits = run("first", "2s")
    assert decisions
    assert run("again", "2s") == [None, bits]
    assert run("again", "3s") == [decisions, bits]


def test_tuned_results_have_the_same_bits():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((30, 70)).astype("f"), rng.standard_normal((70, 40)).astype("f")

    def function(x, w):
        return (x @ w).tanh()

    types = (ingot.f32[30, 70], ingot.f32[70, 40])
    plain = ingot.compile(function, *types, cache=False)
    tuned = ingot.compile(function, *types, cache=False, tune="1s")
    assert "tuned" in str(tuned.explain())
    np.testing.assert_array_equal(plain(x, w).view(np.uint32), tuned(x, w).view(np.uint32))


def test_times():
    assert parse_seconds("10s") == parse_seconds("10") == 10.0
    assert parse_seconds(" 500 ms") == 0.5
    assert parse_seconds("2min") == 120.0
    for wrong in ("", "soon", "10h", "-1s", "nan", "inf"):
        with pytest.raises(ingot.IngotError, match="is not a time"):
            parse_seconds(wrong)


def test_another_machine_cannot_be_tuned_for():
    other = "aarch64" if "x86" in HOST.triple else "x86-64"
    with pytest.raises(ingot.IngotError, match="on this machine only"):
        ingot.compile(lambda x: x + 1.0, ingot.f32[4], target=other, tune="1s")
