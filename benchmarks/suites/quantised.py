"""Whole models with 8-bit weights and activations, as ONNX Runtime's tool writes them, beside the ONNX runtimes."""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from benchmarks import peers
from benchmarks.peers import Case, OnnxPeer, OnnxRuntime, TorchEager
from benchmarks.results import OURS, Result
from benchmarks.rows import Inference
from benchmarks.suites.race import Call, Entry, Setting, add_profile, race

TOLERANCE = 0.06  # of the range: a code is 1/256 of it, and one that falls to the other side is seen by all layers behind


def run(row: Inference, setting: Setting) -> Result:
    if not (TorchEager.installed() and OnnxRuntime.installed()):
        return Result(row.key, row.title, failure="torch exports the model and ONNX Runtime quantises it: install both")
    case = Case.of(row.model, row.batch)
    holder: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        path = quantise(peers.export_onnx(peers.torch_model(case), case.inputs, Path(folder) / "model.onnx"), case.inputs)

        def ours() -> Call:
            holder.append(ingot.compile(ingot.load_onnx(path), threads=setting.threads))
            return lambda: holder[0](*case.inputs)

        entries = {OURS: Entry(ours)}
        for peer in peers.available(setting.threads):
            if isinstance(peer, OnnxPeer):
                entries[peer.name] = Entry(lambda peer=peer: peer.session(path, case.inputs), peer.result)
        result = race(row, entries, _as_written(path, case.inputs), TOLERANCE, setting)
    if holder:
        add_profile(result, holder[0], case.inputs, setting)
    return result


def quantise(path: Path, inputs: Sequence[np.ndarray]) -> Path:
    """Codes between DequantizeLinear and QuantizeLinear, with a scale for each output channel of a weight."""
    tool = importlib.import_module("onnxruntime.quantization")
    prepared, written = path.with_suffix(".prepared.onnx"), path.with_suffix(".quantised.onnx")
    logging.getLogger().setLevel(logging.ERROR)  # it recommends preparing what is prepared
    prepare = importlib.import_module("onnxruntime.quantization.shape_inference").quant_pre_process
    prepare(str(path), str(prepared), skip_symbolic_shape=True)

    class Reader(tool.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = [{f"input{n}": array for n, array in enumerate(inputs)}]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.batches.pop() if self.batches else None

    tool.quantize_static(
        str(prepared), str(written), Reader(), quant_format=tool.QuantFormat.QDQ, per_channel=True,
        weight_type=tool.QuantType.QInt8, activation_type=tool.QuantType.QUInt8,
    )  # fmt: skip
    return written


def _as_written(path: Path, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The result node by node, in floats: ONNX Runtime without its rewrites."""
    library = importlib.import_module("onnxruntime")
    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"input{n}": array for n, array in enumerate(inputs)})[0]
