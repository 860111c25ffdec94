"""The libraries that Ingot is measured against. Each is optional: what is not installed is listed as such.

A peer turns a case into a call without arguments; building it may be slow, calling it is what is timed. Outputs
of a call are what the library returns, `result` makes NumPy arrays of them for the comparison.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import tempfile
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import networks, weights
from benchmarks.rows import Training

Call = Callable[[], Any]


class Unsupported(Exception):
    """This peer does not take part in this row; the text says why."""


@dataclass(frozen=True)
class Case:
    """A model with its weights, and a batch: inputs, then (for training) targets."""

    name: str
    definition: networks.Definition
    module: Any
    batch: tuple[np.ndarray, ...]

    @staticmethod
    def of(name: str, count: int) -> Case:
        definition = networks.MODELS[name]
        return Case(name, definition, weights.initialise(definition.build()), definition.batch(count))

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return self.batch[: len(self.definition.inputs)]

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The weights as they were drawn: training changes those of the module."""
        return {name: np.array(array) for name, array in self.module.named_arrays().items()}


class Peer(ABC):
    """One library, limited to so many threads."""

    name: str
    package: str

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @classmethod
    def installed(cls) -> bool:
        return importlib.util.find_spec(cls.package) is not None

    @classmethod
    def version(cls) -> str:
        return metadata.version(cls.package) if cls.installed() else "not installed"

    def inference(self, case: Case) -> Call:
        raise Unsupported(f"{self.name} takes no part in inference")

    def training(self, case: Case, row: Training) -> Call:
        """A step; the call returns the loss."""
        raise Unsupported(f"{self.name} takes no part in training")

    def result(self, found: Any) -> np.ndarray:
        return np.asarray(found)


# --- torch ----------------------------------------------------------------------------------------


def torch_model(case: Case, dtype: str = "float32") -> Any:
    """The torch module of a case, with its weights."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("benchmarks.models.torch_networks").MODELS[case.name]()
    state = {name: torch.from_numpy(array.copy()) for name, array in weights.torch_state(case.arrays).items()}
    found = module.load_state_dict(state, strict=False)
    strange = [*found.unexpected_keys, *(k for k in found.missing_keys if "num_batches" not in k)]
    if strange:
        raise ValueError(f"weights of {case.name} do not fit torch's model: {strange[:4]}")
    return module.to(getattr(torch, dtype))


def torch_tensors(arrays: Sequence[np.ndarray], dtype: str = "float32") -> list[Any]:
    torch = importlib.import_module("torch")
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    return [t.to(getattr(torch, dtype)) if t.is_floating_point() else t for t in tensors]


def torch_step(case: Case, row: Training, dtype: str = "float32", wrap: Callable[[Any], Any] = lambda f: f) -> Call:
    """A training step of torch's: the loss as a Python number, as users log it."""
    models = importlib.import_module("benchmarks.models.torch_networks")
    module = torch_model(case, dtype).train()
    assert case.definition.loss is not None
    loss_function = models.LOSSES[case.definition.loss.__name__]
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = models.optimizer(row.optimizer, parameters, row.rate)
    batch = torch_tensors(case.batch, dtype)
    forward = wrap(lambda *items: loss_function(module, *items))

    def step() -> float:
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # last, so that gradients count as memory of the step
        return loss.item()

    return step


class TorchEager(Peer):
    name, package = "torch", "torch"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(threads)

    def inference(self, case: Case) -> Call:
        module = self._wrapped(torch_model(case).eval())
        inputs = torch_tensors(case.inputs)

        def call() -> Any:
            with self.torch.inference_mode():
                return module(*inputs)

        return call

    def training(self, case: Case, row: Training) -> Call:
        return torch_step(case, row, wrap=self._wrapped)

    def _wrapped(self, function: Any) -> Any:
        return function

    def result(self, found: Any) -> np.ndarray:
        return found.numpy() if isinstance(found, self.torch.Tensor) else np.asarray(found)


class TorchCompile(TorchEager):
    name = "torch.compile"

    def _wrapped(self, function: Any) -> Any:
        return self.torch.compile(function)


# --- ONNX runtimes --------------------------------------------------------------------------------


def export_onnx(module: Any, inputs: Sequence[np.ndarray], path: Path) -> Path:
    """An ONNX file of a torch module, for inputs of these shapes."""
    torch = importlib.import_module("torch")
    names = [f"input{n}" for n in range(len(inputs))]
    with torch.no_grad():
        torch.onnx.export(
            module.eval(), tuple(torch_tensors(inputs)), os.fspath(path), dynamo=False, opset_version=17,
            input_names=names, output_names=["output"],
        )  # fmt: skip
    return path


@functools.lru_cache(maxsize=1)
def onnx_file(case_name: str, count: int) -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """The last model asked for as a file; the folder lives as long as it is remembered."""
    folder = tempfile.TemporaryDirectory(prefix="ingot-bench-")
    case = Case.of(case_name, count)
    return export_onnx(torch_model(case), case.inputs, Path(folder.name) / "model.onnx"), folder


class OnnxPeer(Peer):
    def inference(self, case: Case) -> Call:
        if not TorchEager.installed():
            raise Unsupported("the ONNX file is exported by torch, which is not installed")
        path, _ = onnx_file(case.name, len(case.batch[0]))
        return self.session(path, case.inputs)

    def session(self, path: Path, inputs: Sequence[np.ndarray]) -> Call:
        raise NotImplementedError

    def result(self, found: Any) -> np.ndarray:
        return np.asarray(found[0])


class OnnxRuntime(OnnxPeer):
    name, package = "ONNX Runtime", "onnxruntime"

    def session(self, path: Path, inputs: Sequence[np.ndarray]) -> Call:
        library = importlib.import_module("onnxruntime")
        options = library.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = library.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        feed = {f"input{n}": array for n, array in enumerate(inputs)}
        names = [output.name for output in session.get_outputs()]
        return lambda: session.run(names, feed)


class OpenVino(OnnxPeer):
    name, package = "OpenVINO", "openvino"

    def session(self, path: Path, inputs: Sequence[np.ndarray]) -> Call:
        library = importlib.import_module("openvino")
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": False,  # the process is pinned already
        }
        compiled = library.Core().compile_model(os.fspath(path), "CPU", settings)
        request = compiled.create_infer_request()
        feed = list(inputs)
        return lambda: request.infer(feed, share_inputs=True, share_outputs=True)


# --- JAX ------------------------------------------------------------------------------------------


class Jax(Peer):
    name, package = "JAX", "jax"

    @classmethod
    def installed(cls) -> bool:
        return super().installed() and importlib.util.find_spec("jaxlib") is not None

    def training(self, case: Case, row: Training) -> Call:
        networks_of_jax = importlib.import_module("benchmarks.models.jax_networks")
        if case.name not in networks_of_jax.LOSSES:
            raise Unsupported(f"{case.name} is not written for JAX")
        return networks_of_jax.training(case.name, case.arrays, case.batch, row.optimizer, row.rate)


PEERS: tuple[type[Peer], ...] = (TorchEager, TorchCompile, OnnxRuntime, OpenVino, Jax)


def available(threads: int, slow: bool = False) -> list[Peer]:
    """Every installed peer; torch.compile only when asked for, as it compiles for up to a minute a row."""
    return [peer(threads) for peer in PEERS if peer.installed() and (slow or peer is not TorchCompile)]


def versions() -> dict[str, str]:
    """Of every peer, whether installed or not, and of what Ingot itself stands on."""
    found = {peer.name: peer.version() for peer in PEERS if peer is not TorchCompile}
    return found | {name: metadata.version(name) for name in ("ingot", "numpy", "llvmlite")}
