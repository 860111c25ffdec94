"""`ingot run`, `bench`, `explain` and `check` on ONNX files: what they print, write and refuse."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ingot.cli import main
from tests.frontends.onnx.building import model_of

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
Command = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """layer.onnx: relu(x @ w) + bias for a named batch; strings.onnx: a model with a node of the host."""
    declared = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["block/0/y"]),
    ]
    inputs = [declared("x", TensorProto.FLOAT, ["batch", 4]), declared("bias", TensorProto.FLOAT, ["batch", 3])]
    onnx.save(model_of(nodes, inputs, ["block/0/y"], {"w": WEIGHT}), str(tmp_path / "layer.onnx"))
    places = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Cast", ["places"], ["y"], to=1)]
    onnx.save(model_of(places, [declared("x", TensorProto.FLOAT, [5])], ["y"]), str(tmp_path / "places.onnx"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def succeed(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> str:
        status = main(list(arguments))
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return run


@pytest.fixture
def fail(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 1
        return capsys.readouterr().err

    return run


def test_run_reads_inputs_and_writes_outputs(succeed: Command) -> None:
    x, bias = np.ones((2, 4), np.float32), np.full((2, 3), -20, np.float32)
    np.save("x.npy", x)
    np.save("bias.npy", bias)
    succeed("run", "layer.onnx", "--input", "x=x.npy", "--input", "bias=bias.npy", "--output-dir", "out")
    assert np.array_equal(np.load("out/block_0_y.npy"), np.maximum(x @ WEIGHT + bias, 0))


def test_what_is_not_given_has_the_dims_of_what_is(succeed: Command) -> None:
    np.save("x.npy", np.ones((5, 4), np.float32))
    succeed("run", "layer.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert np.load("out/block_0_y.npy").shape == (5, 3)


def test_dims_are_chosen_by_name(succeed: Command) -> None:
    succeed("run", "layer.onnx", "--dim", "batch=7", "--output-dir", "out")
    assert np.load("out/block_0_y.npy").shape == (7, 3)


def test_a_model_with_host_nodes_runs_and_says_which(succeed: Command) -> None:
    np.save("x.npy", np.array([0, 1, 0, 2, 0], np.float32))
    assert "y: float32[1, 2]" in succeed("run", "places.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert np.load("out/y.npy").tolist() == [[1, 3]]
    assert "NonZero" in succeed("explain", "places.onnx")


def test_explain_names_the_nodes_of_each_kernel(succeed: Command) -> None:
    text = succeed("explain", "layer.onnx")
    assert "MatMul" in text
    assert "x: f32[batch, 4]" in text
    assert json.loads(succeed("explain", "layer.onnx", "--json"))


def test_bench_measures_and_compares(succeed: Command) -> None:
    pytest.importorskip("onnxruntime")
    text = succeed("bench", "layer.onnx", "--dim", "batch=8", "--seconds", "0.05", "--against", "onnxruntime")
    assert "block/0/y: differs by at most" in text
    assert "ratio (best)" in text
    assert "onnxruntime: best" in text


def test_bench_alone(succeed: Command) -> None:
    assert "ingot: best" in succeed("bench", "layer.onnx", "--seconds", "0.01")


def test_check_lists_problems(succeed: Command, fail: Command) -> None:
    assert "no problems" in succeed("check", "layer.onnx")
    model = model_of([helper.make_node("Nonsense", ["x"], ["y"])], [helper.make_tensor_value_info("x", 1, [2])], ["y"])
    onnx.save(model, "bad.onnx")
    assert "1 problem" in fail("check", "bad.onnx")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "z=x.npy"], "there is no input 'z'; the inputs are x, bias"),
        (["--input", "x"], "write name=file.npy"),
        (["--input", "x=missing.npy"], "missing.npy"),
        (["--input", "x=text.npy"], "is no .npy file of numbers"),
        (["--input", "x=integers.npy"], "must be f32"),
        (["--input", "x=narrow.npy"], "'x'"),
        (["--input", "x=flat.npy"], "must have 2 axes"),
        (["--dim", "batch"], "write for instance batch=8"),
        (["--dim", "depth=3"], "there is no dim 'depth'; the dims are batch"),
    ],
)
def test_mistakes_are_named(fail: Command, arguments: list[str], words: str) -> None:
    np.save("x.npy", np.ones((2, 4), np.float32))
    np.save("integers.npy", np.ones((2, 4), np.complex64))
    np.save("narrow.npy", np.ones((2, 3), np.float32))
    np.save("flat.npy", np.ones(4, np.float32))
    Path("text.npy").write_text("not an array")
    assert words in fail("run", "layer.onnx", *arguments)


def test_a_missing_peer_is_said_before_compiling(fail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert "onnxruntime is not installed" in fail("bench", "layer.onnx", "--against", "onnxruntime")


def test_only_onnxruntime_is_a_peer(fail: Command) -> None:
    assert "--against takes onnxruntime" in fail("bench", "layer.onnx", "--against", "abacus")


def test_a_file_that_is_no_model(fail: Command) -> None:
    Path("broken.onnx").write_bytes(b"not a model")
    assert "O101" in fail("run", "broken.onnx")
