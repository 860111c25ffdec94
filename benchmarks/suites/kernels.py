"""Single kernels: matrix products, convolutions, memory-bound functions, and the cost of a call."""

from __future__ import annotations

import importlib
import itertools
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ingot
from benchmarks import peers, probe
from benchmarks.peers import OnnxPeer, TorchEager
from benchmarks.results import OURS, Result
from benchmarks.rows import Convolution, Gemm, Row, Stream
from benchmarks.suites.race import Call, Entry, Setting, compiled, race
from benchmarks.work import Work
from ingot import nn

TOLERANCE = 1e-4


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


# --- matrix products ------------------------------------------------------------------------------


def run_gemm(row: Gemm, setting: Setting) -> Result:
    """Both operands are arguments, as for BLAS; a second entry knows the right one in advance, as for a weight."""
    a, b = normal(row.m, row.k), normal(row.k, row.n, seed=1)
    entries = {
        OURS: compiled(lambda a, b: a @ b, [a, b], setting),
        f"{OURS}, known weight": compiled(lambda a: a @ b, [a], setting),
        "NumPy (OpenBLAS)": Entry(lambda: lambda: np.matmul(a, b)),
    }
    if TorchEager.installed():
        entries["torch"] = Entry(lambda: _torch_call(setting, lambda torch, x, y: torch.mm(x, y), a, b), _to_numpy)
    size = 4.0 * (row.m * row.k + row.k * row.n)
    least = Work(2.0 * row.m * row.n * row.k, size, 4.0 * row.m * row.n)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    return race(row, entries, expected, TOLERANCE, setting, least)


def run_integers(row: Gemm, setting: Setting) -> Result:
    """Codes of 8 bits, sums of 32: the product inside quantised models. Weights have 7 bits, because ONNX Runtime's
    instruction on machines without VNNI saturates for more (Ingot is exact for all). Beside them the float product."""
    generator = np.random.default_rng([row.m, row.k, row.n])
    a = generator.integers(0, 256, (row.m, row.k)).astype(np.uint8)
    b = generator.integers(-64, 64, (row.k, row.n)).astype(np.int8)
    floats = [a.astype(np.float32), b.astype(np.float32)]

    def product(a: Any, b: Any) -> Any:
        return a.cast(ingot.i32) @ b.cast(ingot.i32)

    class Known(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Buffer(b)

        def forward(self, a: Any) -> Any:
            return product(a, self.weight)

    entries = {
        OURS: compiled(product, [a, b], setting),
        f"{OURS}, known weight": compiled(Known(), [a], setting),
        f"{OURS}, float32": compiled(lambda a, b: a @ b, floats, setting),
    }
    least = Work(2.0 * row.m * row.n * row.k, float(a.size + b.size), 4.0 * row.m * row.n)
    expected = (a.astype(np.int64) @ b).astype(np.float64)
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        path = _integer_file(a, b, Path(folder) / "model.onnx")
        for peer in peers.available(setting.threads):
            if isinstance(peer, peers.OnnxRuntime):
                entries[peer.name] = Entry(lambda peer=peer: peer.session(path, [a, b]), peer.result)
        return race(row, entries, expected, TOLERANCE, setting, least)


def _integer_file(a: np.ndarray, b: np.ndarray, path: Path) -> Path:
    helper = onnx.helper
    result = helper.make_tensor_value_info("output", onnx.TensorProto.INT32, (a.shape[0], b.shape[1]))
    inputs = [
        helper.make_tensor_value_info(f"input{n}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in enumerate((a, b))
    ]
    node = helper.make_node("MatMulInteger", ["input0", "input1"], ["output"])
    graph = helper.make_graph([node], "product", inputs, [result])
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def _torch_call(setting: Setting, function: Callable[..., Any], *arrays: np.ndarray) -> Call:
    torch = importlib.import_module("torch")
    torch.set_num_threads(setting.threads)
    tensors = [torch.from_numpy(array) for array in arrays]

    def call() -> Any:
        with torch.inference_mode():
            return function(torch, *tensors)

    return call


def _to_numpy(found: Any) -> np.ndarray:
    return found.numpy()


# --- convolutions ---------------------------------------------------------------------------------


def run_convolution(row: Convolution, setting: Setting) -> Result:
    """Layers without bias or activation; the data enters and leaves in the user's layout."""
    model = nn.Sequential(*(_layer(row, seed) for seed in range(row.chain)))
    x = normal(1, row.inputs, *[row.size] * row.rank)
    entries = {OURS: compiled(model, [x], setting)}
    if row.kernel == 3 and (row.stride, row.groups, row.dilation, row.rank) == (1, 1, 1, 2):
        entries[f"{OURS}, no Winograd"] = compiled(model, [x], setting, winograd=False)
    shape = _made(row, model)
    outputs = math.prod(shape)
    weights = row.chain * row.outputs * row.inputs // row.groups * row.kernel**row.rank
    places = x.size // row.inputs if row.transposed else outputs // row.outputs  # each meets every weight once
    least = Work(2.0 * places * weights, 4.0 * (x.size + weights), 4.0 * outputs)
    if not TorchEager.installed():
        return race(row, entries, np.asarray(ingot.interpret(model, x)), TOLERANCE, setting, least)
    module = _torch_chain(row, model)
    entries["torch"] = Entry(lambda: _torch_call(setting, lambda _, x: module(x), x), _to_numpy)
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        path = peers.export_onnx(module, [x], Path(folder) / "model.onnx")
        for peer in peers.available(setting.threads):
            if isinstance(peer, OnnxPeer):
                entries[peer.name] = Entry(lambda peer=peer: peer.session(path, [x]), peer.result)
        return race(row, entries, _double(module, x), TOLERANCE, setting, least)


def _made(row: Convolution, model: Any) -> tuple[int, ...]:
    """The shape of the result."""
    traced = ingot.trace(model, (ingot.f32[(1, row.inputs, *[row.size] * row.rank)],))
    return traced.graph.outputs[0].shape


def _kind(row: Convolution) -> str:
    return f"Conv{'Transpose' if row.transposed else ''}{row.rank}d"


def _arguments(row: Convolution) -> dict[str, Any]:
    return {"stride": row.stride, "padding": row.padding, "dilation": row.dilation, "groups": row.groups, "bias": False}


def _layer(row: Convolution, seed: int) -> nn.Module:
    layer = getattr(nn, _kind(row))(row.inputs, row.outputs, row.kernel, generator=seed, **_arguments(row))
    layer.weight *= np.float32(1 / math.sqrt(2))  # keeps the variance along a chain without activations
    return layer


def _torch_chain(row: Convolution, model: Any) -> Any:
    torch = importlib.import_module("torch")
    layers = []
    for source in model:
        layer = getattr(torch.nn, _kind(row))(row.inputs, row.outputs, row.kernel, **_arguments(row))
        layer.weight.data = torch.from_numpy(source.weight.copy())
        layers.append(layer)
    return torch.nn.Sequential(*layers).eval()


def _double(module: Any, x: np.ndarray) -> np.ndarray:
    torch = importlib.import_module("torch")
    result = module.double()(torch.from_numpy(x.astype(np.float64))).detach().numpy()
    module.float()
    return result


# --- memory-bound functions -----------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # Ingot's, torch's
    "chain": (lambda x: (x * 1.5 + 0.5).relu() * 0.25, lambda t, x: (x * 1.5 + 0.5).relu() * 0.25),
    "add": (lambda x, y: x + y, lambda t, x, y: x + y),
    "exp": (lambda x: x.exp(), lambda t, x: x.exp()),
    "tanh": (lambda x: x.tanh(), lambda t, x: x.tanh()),
    "erf": (lambda x: x.erf(), lambda t, x: x.erf()),
    "log": (lambda x: x.log(), lambda t, x: x.log()),
    "gelu": (lambda x: x.gelu(), lambda t, x: t.nn.functional.gelu(x)),
    "sum": (lambda x: x.sum(), lambda t, x: x.sum()),
    "sum-rows": (lambda x: x.sum(axis=1), lambda t, x: x.sum(1)),
    "sum-columns": (lambda x: x.sum(axis=0), lambda t, x: x.sum(0)),
    "max-rows": (lambda x: x.max(axis=1), lambda t, x: x.amax(1)),
    "softmax": (lambda x: x.softmax(-1), lambda t, x: x.softmax(-1)),
    "log-softmax": (lambda x: x.log_softmax(-1), lambda t, x: x.log_softmax(-1)),
    "layer-norm": (nn.LayerNorm(1024), lambda t, x: t.nn.functional.layer_norm(x, (1024,))),
    "transpose": (lambda x: x.transpose(1, 0), lambda t, x: x.t().contiguous()),
}


def run_stream(row: Stream, setting: Setting) -> Result:
    """An array far larger than the caches, and an output given by the caller: no time goes to fresh pages. The limit is the
    fastest way to copy, or to read, the same arrays."""
    ours, theirs = FUNCTIONS[row.function]
    arrays = [np.abs(normal(row.rows, row.columns, seed=seed)) + np.float32(0.1) for seed in range(int(row.reads))]
    size = 4.0 * row.rows * row.columns
    types = [ingot.f32[row.rows, row.columns]] * len(arrays)
    executable = ingot.compile(ours, *types, threads=setting.threads)
    out = np.empty(executable.outputs[0].static_shape or (), np.float32)

    def build() -> Call:
        return lambda: executable(*arrays, out=out)

    entries = {OURS: Entry(build)}
    expected = None
    if TorchEager.installed():
        entries["torch"] = Entry(lambda: _torch_call(setting, theirs, *arrays), _to_numpy)
        wide = _torch_call(setting, theirs, *(array.astype(np.float64) for array in arrays))
        expected = _to_numpy(wide())
    work = Work(0.0, row.reads * size, row.writes * size)
    return race(row, entries, expected, TOLERANCE, setting, work, _moving(arrays, out, setting))


def _moving(arrays: list[np.ndarray], out: np.ndarray, setting: Setting) -> dict[str, Call]:
    """The fastest ways to move what the row moves: the first array is copied if the result is as large, others are read."""
    short = replace(setting.effort, seconds=setting.effort.seconds / 4)
    ways: list[dict[str, Call]] = []
    for number, array in enumerate(arrays):
        copied = number == 0 and out.nbytes == array.nbytes
        ways.append(probe.fastest(probe.copies(out, array) if copied else probe.reads(array), short))
    return {" and ".join(names): _in_order([each[n] for each, n in zip(ways, names, strict=True)]) for names in itertools.product(*ways)}


def _in_order(calls: list[Call]) -> Call:
    return lambda: [call() for call in calls]


# --- the cost of a call ---------------------------------------------------------------------------


def run_overhead(row: Row, setting: Setting) -> Result:
    """Almost no work: what remains is getting into compiled code and out again."""
    arrays = [normal(16, seed=seed) for seed in range(4 if row.key == "four" else 1)]

    def ours(first: Any, *others: Any) -> Any:
        return _sum((first, *others)) if others else first + 1.0

    def given(a: Any, b: Any, c: Any, d: Any) -> Any:
        return ours(a, b, c, d)

    def build() -> Call:
        kind = ingot.f32[ingot.dim("batch")] if row.key == "symbolic" else ingot.f32[16]
        function = given if len(arrays) > 1 else (lambda x: x + 1.0)
        executable = ingot.compile(function, *[kind] * len(arrays), threads=setting.threads)
        return lambda: executable(*arrays)

    entries = {OURS: Entry(build), "NumPy": Entry(lambda: lambda: ours(*arrays))}
    if TorchEager.installed():
        entries["torch"] = Entry(lambda: _torch_call(setting, lambda _, *xs: ours(*xs), *arrays), _to_numpy)
        for peer in peers.available(setting.threads):
            if isinstance(peer, OnnxPeer):
                entries[peer.name] = Entry(lambda peer=peer: _onnx_sum(peer, ours, arrays), peer.result)
    if peers.Jax.installed():
        entries["JAX"] = Entry(lambda: _jax_call(ours, arrays))
    return race(row, entries, np.asarray(ours(*arrays)), TOLERANCE, setting)


def _sum(xs: tuple[Any, ...]) -> Any:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def _onnx_sum(peer: OnnxPeer, function: Callable[..., Any], arrays: list[np.ndarray]) -> Call:
    torch = importlib.import_module("torch")
    kind = type("Function", (torch.nn.Module,), {"forward": lambda self, *xs: function(*xs)})
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        return peer.session(peers.export_onnx(kind(), arrays, Path(folder) / "model.onnx"), arrays)


def _jax_call(function: Callable[..., Any], arrays: list[np.ndarray]) -> Call:
    jax = importlib.import_module("jax")
    jitted = jax.jit(function)
    return lambda: np.asarray(jitted(*arrays))
