"""One real model: compiled, compared with ONNX Runtime, and timed beside it in turns, one thread each.

Agreement is judged per output, relative to the largest magnitude expected there: rounding differs between correct
implementations. Integers must be equal. Where a model quantises what it computed, a difference in the last bit may
move a value to the next code, so quantised models are allowed two steps of an 8-bit code. A model that amplifies
rounding (a loop of many steps, a logarithm of almost nothing) is allowed twice what ONNX Runtime itself differs by
between its optimised and its plain form.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ingot
from benchmarks.measure import Effort, interleave
from benchmarks.real_models.catalogue import RealModel
from ingot.compiler.options import Options

TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2}
QUANTISED = 2 / 255
_QUANTISING = ("DynamicQuantizeLinear", "QuantizeLinear", "DynamicQuantizeLSTM", "QAttention")


@dataclass(frozen=True)
class Comparison:
    """What was found for one model; seconds per call. `failure` says why there are no other numbers."""

    model: str
    key: str
    nodes: int = 0
    compile_seconds: float = 0.0
    ingot_seconds: float = 0.0
    peer_seconds: float = 0.0
    error: float = 0.0  # the largest, relative to its output's range
    allowed: float = 0.0
    host_nodes: int = 0
    kernels: tuple[tuple[str, float], ...] = ()  # the slowest: name, seconds
    failure: str = ""

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer."""
        return self.peer_seconds / self.ingot_seconds if self.ingot_seconds else 0.0

    @property
    def agrees(self) -> bool:
        return not self.failure and self.error <= self.allowed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(model: RealModel, folder: Path, effort: Effort, profile: bool = False) -> Comparison:
    """Compile and run a model that is present in the folder."""
    path = model.path(folder)
    inputs = model.arrays()
    clock = time.process_time if effort.busy else time.perf_counter
    load, compile_ = ingot.load_onnx, ingot.compile  # the façade imports what it names on first use: once, not for each model
    started = clock()
    executable = compile_(load(path), options=Options(threads=1, cache=False))
    found = results_of(executable(**inputs))
    compile_seconds = clock() - started  # with the first call: a model in stages compiles the later ones then
    session = peer(path)
    expected = session.run(None, inputs)
    spread = difference(peer(path, plain=True).run(None, inputs), expected)
    proto = onnx.load(path, load_external_data=False)
    contenders = {"ingot": lambda: executable(**inputs), "peer": lambda: session.run(None, inputs)}
    timings = interleave(contenders, effort)
    hosts = len(executable.host_nodes()) if hasattr(executable, "host_nodes") else 0
    return Comparison(
        model.name,
        model.key,
        len(proto.graph.node),
        compile_seconds,
        timings["ingot"].best,
        timings["peer"].best,
        difference(found, expected),
        max(model.tolerance, 2 * spread, tolerance(proto, expected)),
        hosts,
        slowest(executable, inputs) if profile else (),
    )


def peer(path: Path, plain: bool = False) -> onnxruntime.InferenceSession:
    """ONNX Runtime with one thread; `plain`: node by node as the file says."""
    options = onnxruntime.SessionOptions()
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def results_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of any output relative to that output's largest magnitude; infinite when types differ."""
    worst = 0.0
    for have, want in zip(found, expected, strict=True):
        have, want = np.asarray(have), np.asarray(want)
        if have.shape != want.shape or have.dtype != want.dtype:
            return math.inf
        if want.dtype.kind not in "fc":
            worst = max(worst, 0.0 if np.array_equal(have, want) else math.inf)
            continue
        worst = max(worst, _float_difference(have.astype(np.float64), want.astype(np.float64)))
    return worst


def _float_difference(have: np.ndarray, want: np.ndarray) -> float:
    finite = np.isfinite(want)
    if not np.array_equal(have[~finite], want[~finite], equal_nan=True) or not np.isfinite(have[finite]).all():
        return math.inf
    scale = float(np.max(np.abs(want[finite]), initial=0.0)) or 1.0
    return float(np.max(np.abs(have[finite] - want[finite]), initial=0.0)) / scale


def tolerance(proto: onnx.ModelProto, expected: Sequence[Any]) -> float:
    if any(node.op_type in _QUANTISING for node in proto.graph.node):
        return QUANTISED
    types = {tensor.data_type for tensor in proto.graph.initializer}
    if onnx.TensorProto.FLOAT16 in types:
        return TOLERANCES["float16"]
    return max((TOLERANCES.get(str(np.asarray(e).dtype), 0.0) for e in expected), default=0.0)


def slowest(executable: Any, inputs: dict[str, np.ndarray], count: int = 8) -> tuple[tuple[str, float], ...]:
    """The kernels that take longest, where the model is one program."""
    if not hasattr(executable, "profile"):
        return ()
    profile = executable.profile(**inputs)
    entries = [(kernel.name, kernel.nanoseconds * 1e-9) for kernel in profile.kernels]
    entries.append(("(outside kernels)", profile.overhead_nanoseconds * 1e-9))
    return tuple(sorted(entries, key=lambda entry: -entry[1])[:count])
