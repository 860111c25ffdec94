"""One measurement in a fresh process: `python -m benchmarks.once compile|memory SUITE KEY WHO CLOCK` prints JSON.

The clock is `wall`, or `processor` for a machine that others use.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ingot
from benchmarks import peers, rows
from benchmarks.peers import Case
from benchmarks.rows import Inference, Training
from benchmarks.suites import training
from ingot.compiler.ir.types import type_of
from ingot.runtime.storage import aligned_together, byte_view

Clock = Callable[[], float]
COMPILE, TRAINER = ingot.compile, ingot.Trainer  # the façade imports late; importing is not compiling
IMPORTED = time.process_time()


def compile_time(row: Inference | Training, who: str, clock: Clock) -> dict[str, Any]:
    """Seconds to make the program, and seconds of its first call."""
    case = Case.of(row.model, row.batch)
    if who == "ingot":
        return _ours(case, row, clock)
    peer = next(peer for peer in peers.available(_threads(), slow=True) if peer.name == who)
    if isinstance(peer, peers.OnnxPeer):
        peers.onnx_file(case.name, row.batch)  # the export is not the peer's time
    start = clock()
    call = peer.training(case, row) if isinstance(row, Training) else peer.inference(case)
    middle = clock()
    call()
    return {"compile": middle - start, "first": clock() - middle}


def _ours(case: Case, row: Inference | Training, clock: Clock) -> dict[str, Any]:
    start = clock()
    if isinstance(row, Training):
        trainer = training.trainer(case, row, _threads())
        executable: Any = trainer.executable
        call: Callable[[], Any] = lambda: trainer.step(*case.batch)  # noqa: E731
    else:
        executable = ingot.compile(case.module, *map(type_of, case.inputs), threads=_threads())
        call = lambda: executable(*case.inputs)  # noqa: E731
    middle = clock()
    call()
    end = clock()
    kernels = len(executable.program.manifest.kernels)
    found = {"compile": middle - start, "first": end - middle, "kernels": kernels, "import": IMPORTED}
    return {**found, "reading": _reading(case, clock)}


def _reading(case: Case, clock: Clock) -> float:
    """Seconds to read the model's weights from a file that the system holds in memory: less than that is not to be had
    where weights are arranged."""
    with tempfile.NamedTemporaryFile() as file:
        for array in case.module.named_arrays().values():
            file.write(byte_view(array).data)
        file.flush()
        start = clock()
        (memory,) = aligned_together([file.tell()])
        with open(file.name, "rb", buffering=0) as source:
            source.readinto(memory.data)
        return clock() - start


def _threads() -> int:
    return 1


def memory(row: Training, who: str) -> dict[str, Any]:
    """Megabytes that a step needs beyond what is there between steps."""
    case = Case.of(row.model, row.batch)
    if who == "ingot":
        trainer = training.trainer(case, row, _threads())
        state = sum(array.nbytes for array in trainer.states.values()) / 1e6
        growth = _growth(lambda: trainer.step(*case.batch))
        return {"arena": trainer.peak_bytes / 1e6, "growth": growth, "state": state}
    step = peers.torch_step(case, row)
    for _ in range(2):  # the optimiser makes its state, the library its caches
        step()
    return {"growth": _growth(step)}


def _growth(call: Callable[[], object]) -> float:
    """By how much the process's peak during a call passes what it holds before."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1e6


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024.0 * int(line.split()[1])
    raise RuntimeError(f"the system does not tell {field}")


def main(arguments: list[str]) -> None:
    what, suite, key, who, clock = arguments
    (row,) = rows.select(suite, [key])
    assert isinstance(row, Inference | Training)
    if what == "compile":
        found = compile_time(row, who, time.process_time if clock == "processor" else time.perf_counter)
    else:
        assert isinstance(row, Training)
        found = memory(row, who)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
