"""Tries ONNX files, each in a process of its own with limits of time and memory, so that a crash is seen as one.

`Worker` starts this module as a server that imports Ingot once and forks for every candidate. The outcome is one word
and a detail:

    ran        compiled, and ran where inputs could be made
    refused    an error that Ingot raises on purpose
    escaped    any other exception
    crashed    killed by a signal that is not a limit's
    slow       the limit of processor time, or of waiting
    large      the limit of memory, met in a way that ended the process
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import TypeProto

import ingot
from ingot.compiler.errors import IngotError
from ingot.compiler.options import Options
from ingot.frontends.onnx.elements import STRING, element
from ingot.runtime.errors import IngotRuntimeError

FINE = frozenset({"ran", "refused"})
LARGEST_INPUT = 1 << 18  # elements
OPEN_EXTENT = 3  # of dims that a model leaves open
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Limits:
    seconds: int = 20  # of processor time
    patience: int = 180  # seconds on the clock, on a busy machine
    megabytes: int = 3000  # of address space beyond what the server has


@dataclass(frozen=True)
class Candidate:
    """A model (its bytes, or the path of a file) and inputs by name; what is missing is made."""

    model: bytes | str
    inputs: Mapping[str, Any]
    limits: Limits = Limits()


@dataclass(frozen=True)
class Outcome:
    kind: str
    detail: str = ""

    @property
    def is_fine(self) -> bool:
        return self.kind in FINE


class Worker:
    """The server process, as its user sees it."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tests.fuzz.onnx_worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
        )

    def attempt(self, model: bytes | str, inputs: Mapping[str, Any] | None = None, limits: Limits | None = None) -> Outcome:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        _send(self.process.stdin, Candidate(model, inputs or {}, limits or Limits()))
        return _receive(self.process.stdout)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _send(stream: BinaryIO | Any, message: object) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    (size,) = struct.unpack("<q", stream.read(8))
    return pickle.loads(stream.read(size))


# --- the server -------------------------------------------------------------------------------------


def serve() -> None:
    """Candidates from standard input, outcomes to standard output; what a candidate prints goes nowhere."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    while True:
        try:
            candidate = _receive(sys.stdin.buffer)
        except struct.error:  # the end of input
            return
        _send(answers, _in_child(candidate))


def _in_child(candidate: Candidate) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _limit(candidate.limits)
        outcome = _tried(candidate)
        os.write(writing, pickle.dumps(outcome)[:60000])
        os._exit(0)
    os.close(writing)
    data = _drained(reading, child, candidate.limits.patience)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if data is None:
        return Outcome("slow", f"no answer after {candidate.limits.patience} s")
    if data:
        return pickle.loads(data)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return Outcome("slow", f"{candidate.limits.seconds} s of processor time")
    return Outcome("crashed", signal.Signals(number).name if number else f"exit status {status}")


def _drained(stream: int, child: int, patience: float) -> bytes | None:
    """What the child writes; None when it has to be ended."""
    data, end = b"", time.monotonic() + patience
    while True:
        ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return None
        piece = os.read(stream, 1 << 16)
        if not piece:
            return data
        data += piece


def _limit(limits: Limits) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    room = used + (limits.megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _tried(candidate: Candidate) -> Outcome:
    try:
        return Outcome("ran", _compiled_and_run(candidate))
    except (IngotError, IngotRuntimeError) as error:
        return Outcome("refused", f"{type(error).__name__}: {str(error)[:4000]}")
    except BaseException as error:
        kind = "large" if isinstance(error, MemoryError) else "escaped"
        return Outcome(kind, "".join(traceback.format_exception(error)[-6:])[-4000:])


def _compiled_and_run(candidate: Candidate) -> str:
    module = ingot.load_onnx(candidate.model)
    compiled = module.compile_for((), Options(threads=1, cache=False, workers=1))
    random = np.random.default_rng(0)
    inputs: list[Any] = []
    types = {i.name: i.type for i in module.model.graph.input}
    for name in module.input_names:
        given = candidate.inputs.get(name)
        made = given if given is not None else _made(types[name], random)
        if made is None:
            return "compiled"
        inputs.append(made)
    with np.errstate(all="ignore"):
        compiled(*inputs)
    return ""


def _made(type_: TypeProto, random: np.random.Generator) -> np.ndarray | None:
    """Random values of a tensor type, unless they are many."""
    kind = element(type_.tensor_type.elem_type)
    if type_.WhichOneof("value") != "tensor_type" or kind is None:
        return None
    dims = type_.tensor_type.shape.dim
    shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else OPEN_EXTENT for d in dims]
    if float(np.prod([float(d) for d in shape])) > LARGEST_INPUT:
        return None
    if kind is STRING:
        return np.full(shape, "text", object)
    return random.integers(0, 4, shape).astype(kind.numpy)
