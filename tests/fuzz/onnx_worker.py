"""Tries ONNX files, each in a process of its own with limits of time and memory, so that a crash is seen as one.

`Worker` starts this module as a server that imports Ingot once and forks for every candidate. The outcome is one word
and a detail:

    ran        compiled, and ran where inputs could be made
    refused    an error that Ingot raises on purpose, about the model or the inputs of its first call
    escaped    any other exception
    unforeseen a problem of a node that its converter did not foresee: the importer's last resort
    differs    the check and the compiler do not agree on whether the model compiles
    wrong      the program and the meaning of its graph do not agree
    outside    an index left its buffer, or a byte beside an array was written to
    unset      results depend on what scratch memory held before
    unlike     native code fails where its loops, interpreted, do not, or the other way round
    alone      ONNX Runtime and ONNX's reference agree on another answer
    doubted    one of the two has another answer, and the other has none or a third; counted, not a finding
    crashed    killed by a signal that is not a limit's
    slow       the limit of processor time, or of waiting
    looping    the same, while a program runs that has a Loop, which may go on for as long as it is told to
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import TypeProto

import ingot
from ingot.compiler.errors import IngotError
from ingot.compiler.options import Options
from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.elements import STRING, element
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem
from ingot.runtime.errors import IngotRuntimeError
from tests.fuzz.guarded import Guards
from tests.fuzz.peers import Answer, judged
from tests.fuzz.watched import Misbehaved, Watch, watching

FINE = frozenset({"ran", "refused", "looping", "doubted"})
RUNNING = b"R"  # what a child says before it runs what it compiled
LARGEST_INPUT = 1 << 18  # elements
LARGEST_ANSWER = 1 << 14  # elements of a call that others are asked about
OPEN_EXTENTS = (3, 3, 1, 0, 2, 5)  # of dims that a model leaves open
ROUNDS = 4  # calls of a program: with the inputs of its case, random ones, odd ones, extreme ones
ASKED = 3  # of which others are asked: what overflows has many answers
CHECKED = 4  # every such candidate is checked too
ODD_FLOATS = (np.nan, -0.0, 1e-40, -1.0, 0.5, 2.5)
EXTREME_FLOATS = (np.nan, np.inf, -np.inf, -0.0, 1e30, -1e30, 1e-40, 65504.0, -1.0)
EXTREME_INTEGERS = (-1, -2, 1 << 7, 1 << 15, 1 << 31, -(1 << 31), 1 << 40, -(1 << 40))
TEXTS = ("", "a" * 40 + "!", "é\x00", "nan", "1e400", "-1", "text text")
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
    seed: int = 0  # of the inputs that are made


@dataclass(frozen=True)
class Outcome:
    kind: str
    detail: str = ""
    answers: tuple[Answer, ...] = ()  # what others are asked about

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

    def attempt(
        self, model: bytes | str, inputs: Mapping[str, Any] | None = None, limits: Limits | None = None, seed: int = 0
    ) -> Outcome:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        _send(self.process.stdin, Candidate(model, inputs or {}, limits or Limits(), seed))
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
    """How a candidate ends; where it ends well, others are asked whether its answers are right."""
    outcome = _forked(candidate, _tried)
    if not outcome.answers:
        return outcome
    said = _forked(candidate, lambda *_: Outcome(*judged(candidate.model, outcome.answers)))  # type: ignore[arg-type]
    if said.kind in ("alone", "doubted"):
        return said
    return replace(outcome, answers=())  # also where a peer crashed, or took too long


def _forked(candidate: Candidate, function: Callable[[Candidate, Callable[[], object]], Outcome]) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _limit(candidate.limits)
        outcome = function(candidate, lambda: os.write(writing, RUNNING))
        with os.fdopen(writing, "wb") as stream:
            stream.write(pickle.dumps(outcome))
        os._exit(0)
    os.close(writing)
    data = _drained(reading, child, candidate.limits.patience)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    running = data.startswith(RUNNING)
    answer = data.removeprefix(RUNNING)
    if answer:
        return pickle.loads(answer)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (signal.SIGXCPU, signal.SIGKILL):
        loops = isinstance(candidate.model, bytes) and b"Loop" in candidate.model
        what = f"{candidate.limits.seconds} s of processor time, or {candidate.limits.patience} s in all"
        return Outcome("looping" if running and loops else "slow", f"{what}{' while it ran' if running else ''}")
    return Outcome("crashed", signal.Signals(number).name if number else f"exit status {status}")


def _drained(stream: int, child: int, patience: float) -> bytes:
    """What the child writes before it ends, or has to be ended."""
    data, end = b"", time.monotonic() + patience
    while True:
        ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return data
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


def _tried(candidate: Candidate, starts: Callable[[], object]) -> Outcome:
    """How a candidate ends; `starts` is called before its program is."""
    try:
        return _compiled_and_run(candidate, starts)
    except OnnxError as error:
        kind = "unforeseen" if any(is_unforeseen(p) for p in error.problems) else "refused"
        return Outcome(kind, f"{type(error).__name__}: {str(error)[:4000]}")
    except (IngotError, IngotRuntimeError) as error:
        return Outcome("refused", f"{type(error).__name__}: {str(error)[:4000]}")
    except Misbehaved as error:
        return Outcome(error.kind, str(error)[:4000])
    except BaseException as error:
        kind = "large" if isinstance(error, MemoryError) else "escaped"
        return Outcome(kind, "".join(traceback.format_exception(error)[-6:])[-4000:])


def is_unforeseen(problem: Problem) -> bool:
    """Whether a node failed in a way that its converter or evaluator does not speak of."""
    return problem.kind is Kind.BAD_NODE


def _compiled_and_run(candidate: Candidate, starts: Callable[[], object]) -> Outcome:
    problems = check_onnx(candidate.model) if candidate.seed % CHECKED == 0 else None
    with watching(Watch(Guards(behind=candidate.seed % 2 == 0))):
        try:
            module = ingot.load_onnx(candidate.model)
            compiled = module.compile_for((), Options(threads=1, cache=False, workers=1))
        except (IngotError, IngotRuntimeError) as error:
            if problems == []:
                return Outcome("differs", f"check_onnx finds nothing; {type(error).__name__}: {str(error)[:4000]}")
            raise
        if problems:
            return Outcome("differs", "\n".join(["it compiles; check_onnx says:", *map(str, problems)]))
        starts()
        return _run(candidate, module, compiled)


def _run(candidate: Candidate, module: Any, compiled: Any) -> Outcome:
    """A few calls, with inputs that are ever less likely."""
    types = {i.name: i.type for i in module.model.graph.input}
    answers: list[Answer] = []
    refusal = ""
    for round_ in range(ROUNDS):
        inputs = {name: made(candidate, name, types[name], round_) for name in module.input_names}
        if any(i is None for i in inputs.values()):
            return Outcome("ran", "compiled")
        try:
            with np.errstate(all="ignore"):
                results = compiled(*inputs.values())
        except (IngotError, IngotRuntimeError) as error:
            if isinstance(error, OnnxError) and any(is_unforeseen(p) for p in error.problems):
                raise
            if round_ == 0:
                refusal = f"{type(error).__name__}: {str(error)[:4000]}"
        else:
            listed = [results] if len(module.output_names) == 1 else list(results)
            if round_ < ASKED and _size((inputs, listed)) <= LARGEST_ANSWER:
                answers.append(Answer(inputs, [_portable(r) for r in listed]))
    return Outcome("refused" if refusal else "ran", refusal, tuple(answers) if isinstance(candidate.model, bytes) else ())


def _portable(result: Any) -> Any:
    """A result without the guards around it."""
    return np.array(result) if isinstance(result, np.ndarray) else result


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(map(_size, parts))


def made(candidate: Candidate, name: str, type_: TypeProto, round_: int) -> Any:
    """An input: the one that is given, then random values, then extreme ones; None where they would be many."""
    given = candidate.inputs.get(name)
    if round_ == 0 and given is not None:
        return given
    rng = np.random.default_rng((candidate.seed, round_, *name.encode()))
    if type_.WhichOneof("value") == "sequence_type":
        part = random_tensor(type_.sequence_type.elem_type, rng, round_)
        return None if part is None else [part] * int(rng.integers(0, 3))
    return random_tensor(type_, rng, round_)


def random_tensor(type_: TypeProto, rng: np.random.Generator, round_: int) -> np.ndarray | None:
    kind = element(type_.tensor_type.elem_type)
    if type_.WhichOneof("value") != "tensor_type" or kind is None:
        return None
    open_extent = int(rng.choice(OPEN_EXTENTS))
    dims = type_.tensor_type.shape.dim
    shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else open_extent for d in dims]
    if float(np.prod([float(d) for d in shape])) > LARGEST_INPUT:
        return None
    if kind is STRING:
        return rng.choice(np.array(TEXTS if round_ > 1 else ["text", "a"], object), shape)
    plain = rng.integers(0, 4, shape).astype(kind.numpy)
    if round_ < 2 or not plain.size:
        return plain
    with np.errstate(all="ignore"):
        extremes = np.array(ODD_FLOATS if round_ == 2 else EXTREME_FLOATS).astype(kind.numpy)
        if kind.numpy.kind in "iu":
            info = np.iinfo(kind.numpy)
            extremes = np.array([info.min, info.max, 0, *(v for v in EXTREME_INTEGERS if info.min <= v <= info.max)], kind.numpy)
    chosen = rng.choice(extremes, shape)
    return np.where(rng.random(shape) < 0.5, chosen, plain).astype(kind.numpy)
