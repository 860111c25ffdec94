"""What needs fresh processes: compile time cold and warm, peak memory; and scaling over threads."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import ingot
from benchmarks import measure, peers
from benchmarks.peers import Case
from benchmarks.results import Contender, Result
from benchmarks.rows import Inference, Row, Training
from benchmarks.suites import training
from benchmarks.suites.race import Call, Setting, describe
from ingot.compiler.ir.types import type_of
from ingot.runtime.executable import Executable
from ingot.runtime.program import Program

PATIENCE = 900  # seconds for one process
PATIENT = 4  # times as long as elsewhere: whoever slows one of two cores down for a second slows both


def once(what: str, row: Row, who: str, setting: Setting, environment: Mapping[str, str]) -> dict[str, Any]:
    """What `benchmarks.once` reports from a process of its own; {"failure": ...} when it does not."""
    clock = "processor" if setting.effort.busy else "wall"
    command = [sys.executable, "-m", "benchmarks.once", what, what, row.key, who, clock]
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer within {PATIENCE} s"}
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


# --- compile time ---------------------------------------------------------------------------------


def run_compile(row: Inference | Training, setting: Setting) -> Result:
    """Seconds until the first result: of `ingot.compile` with an empty cache and with a full one, and of peers."""
    result = Result(row.key, row.title)
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        for state in ("cold", "warm"):
            found = once("compile", row, "ingot", setting, {"INGOT_CACHE_DIR": folder})
            result.failure = result.failure or found.get("failure", "")
            result.values[f"Ingot {state} s"] = found.get("compile")
            result.values[f"first call {state} ms"] = _thousand(found.get("first"))
            result.values.setdefault("kernels", found.get("kernels"))
            result.values.setdefault("import s", found.get("import"))
            result.values["reading weights s"] = found.get("reading")
    names = ["torch.compile"] if setting.slow else []
    names += ["JAX"] if isinstance(row, Training) else ["ONNX Runtime", "OpenVINO"]
    for name in names:
        found = once("compile", row, name, setting, {})
        if "failure" not in found:
            result.values[f"{name} s"] = found["compile"] + found["first"]
    return result


def _thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


# --- memory ---------------------------------------------------------------------------------------


def run_memory(row: Training, setting: Setting) -> Result:
    """Bytes a training step needs beyond parameters and optimiser state: Ingot's arena is known exactly; what
    torch's process grows by is measured, with an allocator that returns memory at once."""
    result = Result(row.key, row.title)
    prompt = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
    ours = once("memory", row, "ingot", setting, prompt)
    theirs = once("memory", row, "torch", setting, prompt) if peers.TorchEager.installed() else {}
    result.failure = ours.get("failure", "")
    result.values = {
        "Ingot arena MB": ours.get("arena"),
        "Ingot grows by MB": ours.get("growth"),
        "torch grows by MB": theirs.get("growth"),
        "state MB": ours.get("state"),
    }
    if ours.get("arena") and theirs.get("growth"):
        result.values["torch / arena"] = theirs["growth"] / ours["arena"]
    return result


# --- threads --------------------------------------------------------------------------------------


def run_threads(row: Row, setting: Setting) -> Result:
    """The same program on one thread and on several: how much faster, and whether the bits are the same. Of inference both
    read the same weights: where these lie makes a twentieth either way."""
    result = Result(row.key, row.title)
    calls: dict[str, Call] = {}
    digests = {}
    start = _starter(row)
    for threads in (1, setting.threads):
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        try:
            calls[name], digests[name] = start(threads)
        except Exception as error:
            result.failure = describe(error)
            return result
    effort = replace(setting.effort, seconds=PATIENT * setting.effort.seconds)
    for name, timing in measure.interleave(calls, effort).items():
        result.contenders[name] = Contender(timing.best, timing.median, timing.calls)
        result.values[f"{name} ms"] = 1000 * timing.best
    one, many = result.contenders.values()
    result.values["speed-up"] = one.best / many.best
    result.values["bits"] = "same" if len(set(digests.values())) == 1 else "DIFFERENT"
    result.contenders = {}
    return result


def _starter(row: Row) -> Callable[[int], tuple[Call, str]]:
    """Given a number of threads, a call that uses them, and what tells its results from others."""
    assert isinstance(row, Inference | Training)

    @functools.cache
    def compiled() -> tuple[Case, Program]:
        case = Case.of(row.model, row.batch)
        return case, ingot.compile(case.module, *map(type_of, case.inputs)).program

    def infer(threads: int) -> tuple[Call, str]:
        case, program = compiled()
        executable = Executable(program, threads)
        return (lambda: executable(*case.inputs)), digest([np.asarray(executable(*case.inputs))])

    def train(threads: int) -> tuple[Call, str]:
        case = Case.of(row.model, row.batch)  # training changes its parameters
        trainer = training.trainer(case, row, threads)
        for _ in range(training.STEPS):
            trainer.step(*case.batch)
        return (lambda: trainer.step(*case.batch)), digest([array for _, array in sorted(trainer.states.items())])

    return infer if isinstance(row, Inference) else train


def digest(arrays: list[np.ndarray]) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
