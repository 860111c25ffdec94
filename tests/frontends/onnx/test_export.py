"""What is exported is valid ONNX, reads back exactly, and means the same in ONNX Runtime.

The samples of the op table are the models: an op that can be exported is tested without being named here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ingot
from ingot import nn
from ingot.compiler.errors import IngotError
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.interpret import run_graph
from ingot.compiler.ir.types import boolean, f32, i64
from ingot.compiler.ops.base import Op, Sample
from ingot.frontends.dsl import functions
from ingot.frontends.onnx import backend, exporter, load_onnx, to_onnx
from ingot.frontends.onnx.exporter import graph_to_onnx
from tests.ops import harness
from tests.ops.test_conformance import OPS, arguments_of, types_of

# Ops without an ONNX form, and why a user does not miss them.
_RANDOM = "ONNX's random ops have generators of their own: the numbers would be others"
_LATER = "a pass makes it of convolutions and products, after tracing"
NOT_EXPORTED: dict[str, str] = {
    **dict.fromkeys(("random_bits", "random_uniform", "random_normal", "random_integers"), _RANDOM),
    **dict.fromkeys(("bernoulli", "categorical", "permutation"), _RANDOM),
    **dict.fromkeys(("block", "unblock", "interleave", "deinterleave", "blocked_convolution"), _LATER),
    **dict.fromkeys(("winograd_convolution", "winograd_weight", "winograd_weight_gradient"), _LATER),
    **dict.fromkeys(("winograd_data", "winograd_cotangent", "winograd_product_gradient", "winograd_taps"), _LATER),
    "stride_phases": _LATER,
}


EXPORTED = {name: kind for name, kind in OPS.items() if name not in NOT_EXPORTED and list(kind.samples())}


def graph_of(sample: Sample) -> Graph:
    return harness.op_graph(sample.op, types_of(sample))


def read_back(model: onnx.ModelProto) -> Graph:
    module = load_onnx(model)
    return functions.trace(module, module.input_types, module.input_names).graph


def assert_same_bits(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def inputs_of(sample: Sample) -> dict[str, np.ndarray]:
    return {f"x{n}": a for n, a in enumerate(arguments_of(sample))}


@pytest.mark.parametrize("kind", EXPORTED.values(), ids=EXPORTED.keys())
def test_every_op_reads_back_exactly(kind: type[Op]):
    """The graph that comes back computes the same bits, by the meaning of the ops in it."""
    for sample in kind.samples():
        graph, inputs = graph_of(sample), inputs_of(sample)
        model = graph_to_onnx(graph)
        onnx.checker.check_model(model)
        with np.errstate(all="ignore"):
            found = run_graph(read_back(model), inputs) if inputs else backend.run_model(model, [])
            assert_same_bits(found, run_graph(graph, inputs))


def test_a_form_of_wrong_types_is_not_believed():
    """Anyone may have written the graph beside a function: what does not fit is read as the function's body."""
    sample = next(iter(OPS["atan2"].samples()))
    graph, inputs = graph_of(sample), inputs_of(sample)
    model = graph_to_onnx(graph)
    (form,) = (p for f in model.functions for p in f.metadata_props if p.key == "ingot.graph")
    assert "%0: f32[3, 5]" in form.value
    form.value = form.value.replace("%0: f32[3, 5]", "%0: f32[900, 900]")
    found = read_back(model)
    assert found.outputs[0].type == graph.outputs[0].type
    np.testing.assert_allclose(run_graph(found, inputs)[0], run_graph(graph, inputs)[0], rtol=1e-5)


@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_what_has_no_onnx_form_says_so(name: str):
    graph = graph_of(next(iter(OPS[name].samples())))
    with pytest.raises(IngotError, match="has no ONNX form"):
        graph_to_onnx(graph)


# --- ONNX Runtime -----------------------------------------------------------------------------------


def single_precision(kind: type[Op]) -> Sample:
    """A sample in the types that runtimes have kernels for."""
    every = list(kind.samples())
    return next((s for s in every if f32 in {t.dtype for t in types_of(s)} <= {f32, i64, boolean}), every[0])


@pytest.mark.parametrize("kind", EXPORTED.values(), ids=EXPORTED.keys())
def test_onnxruntime_computes_the_same(kind: type[Op]):
    runtime = pytest.importorskip("onnxruntime")
    sample = single_precision(kind)
    graph, inputs = graph_of(sample), inputs_of(sample)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        data = graph_to_onnx(graph).SerializeToString()
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "BitCast" in str(error):
            pytest.skip(f"ONNX Runtime has no kernel: {str(error)[:100]}")
        raise
    with np.errstate(all="ignore"):
        expected = run_graph(graph, inputs)
    for ours, theirs in zip(expected, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(theirs.astype(np.float64), ours.astype(np.float64), rtol=2e-4, atol=1e-5)


# --- whole models -----------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: Any) -> Any:
        h = nn.MaxPool2d(2)(ingot.relu(self.norm(self.first(x))))
        return self.last(h.reshape(x.shape[0], -1))


def random_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def check_whole(function: Any, types: tuple[Any, ...], arrays: list[np.ndarray], folder: Path) -> onnx.ModelProto:
    """Saved and loaded it gives the same bits, natively; and ONNX Runtime agrees."""
    path = folder / "model.onnx"
    ingot.save_onnx(function, path, *types)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    expected = several(ingot.compile(function, *types)(*arrays))
    assert_same_bits(several(ingot.compile(ingot.load_onnx(path))(*arrays)), expected)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-5)
    return model


def several(result: Any) -> list[np.ndarray]:
    return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]


def test_module_with_a_free_batch(tmp_path: Path):
    model = check_whole(Network(), (ingot.f32["batch", 1, 8, 8],), [random_of(3, 1, 8, 8)], tmp_path)
    (x,) = model.graph.input
    assert x.name == "x"
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["batch", 1, 8, 8]
    (y,) = model.graph.output
    assert [d.dim_param or d.dim_value for d in y.type.tensor_type.shape.dim] == ["batch", 3]
    weights = {t.name for t in model.graph.initializer}
    assert {"first.weight", "last.weight", "last.bias"} <= weights
    assert model.graph.value_info, "shapes of intermediate values are annotated"


def test_gradient(tmp_path: Path):
    def loss(w: Any, b: Any, x: Any) -> Any:
        return (ingot.tanh(x @ w + b) ** 2).mean()

    types = (ingot.f32[4, 3], ingot.f32[3], ingot.f32["batch", 4])
    check_whole(ingot.grad(loss, (0, 1)), types, [random_of(4, 3), random_of(3), random_of(5, 4)], tmp_path)


def test_training_step(tmp_path: Path):
    """Loss, gradients and the update in one graph: what comes out are the new weights."""

    def step(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((ingot.relu(x @ w) - y) ** 2).mean()

        value, slope = ingot.value_and_grad(loss)(w)
        return value, w - 0.1 * slope

    types = (ingot.f32[4, 3], ingot.f32["batch", 4], ingot.f32["batch", 3])
    check_whole(step, types, [random_of(4, 3), random_of(5, 4), random_of(5, 3)], tmp_path)


def test_gradient_of_a_convolution(tmp_path: Path):
    def loss(w: Any, x: Any) -> Any:
        return (nn.MaxPool2d(2)(ingot.convolve(x, w, padding=1)) ** 2).sum()

    types = (ingot.f32[2, 1, 3, 3], ingot.f32[2, 1, 6, 6])
    check_whole(ingot.grad(loss), types, [random_of(2, 1, 3, 3), random_of(2, 1, 6, 6)], tmp_path)


def test_loop(tmp_path: Path):
    def powers(x: Any) -> Any:
        return ingot.scan(lambda carry, _: (carry * x, carry), x, length=4)[1]

    check_whole(powers, (ingot.f32[3],), [random_of(3)], tmp_path)


def test_an_imported_model_is_exported_again(tmp_path: Path):
    first = to_onnx(Network(), ingot.f32["batch", 1, 8, 8])
    module = load_onnx(first)
    check_whole(module, module.input_types, [random_of(2, 1, 8, 8)], tmp_path)


def test_large_weights_go_to_a_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporter, "LARGEST", 100)
    layer = nn.Linear(64, 32)
    ingot.save_onnx(layer, tmp_path / "model.onnx", ingot.f32[2, 64])
    assert (tmp_path / "model.onnx.data").stat().st_size >= 64 * 32 * 4
    x = random_of(2, 64)
    loaded = ingot.load_onnx(tmp_path / "model.onnx")
    assert_same_bits([ingot.compile(loaded)(x)], [ingot.compile(layer, ingot.f32[2, 64])(x)])


@pytest.mark.parametrize("limit", [100, exporter.LARGEST], ids=["beside", "inside"])
def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(exporter, "LARGEST", limit)
    path = tmp_path / "model.onnx"
    ingot.save_onnx(nn.Linear(64, 32), path, ingot.f32[2, 64])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def no_room(model: onnx.ModelProto) -> bytes:
        raise OSError("no space left")

    monkeypatch.setattr(onnx.ModelProto, "SerializeToString", no_room, raising=False)
    monkeypatch.setattr(exporter.checker, "check_model", lambda *given, **keywords: None)
    with pytest.raises(OSError, match="no space"):
        ingot.save_onnx(nn.Linear(64, 32), path, ingot.f32[2, 64])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_nodes_that_nothing_reads_are_not_written(tmp_path: Path):
    def layer(x: Any) -> Any:
        return ingot.cond(x.sum() > 0, ingot.relu, lambda x: x * 2, x) + ingot.relu(x)

    model = check_whole(layer, (ingot.f32["n", 3],), [random_of(2, 3)], tmp_path)

    def check(nodes: Any, outputs: set[str]) -> set[str]:
        read = set(outputs)
        for node in reversed(nodes):
            assert read & set(node.output), f"nothing reads {node.output}"
            read |= set(node.input)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    read |= check(attribute.g.node, {output.name for output in attribute.g.output})
        return read

    check(model.graph.node, {output.name for output in model.graph.output})


def test_exporting_is_deterministic():
    made = {to_onnx(lambda x: (x @ x).softmax(), ingot.f32[3, 3]).SerializeToString() for _ in range(2)}
    assert len(made) == 1
