"""Tensors of a file that are not what they say: sparse ones, ones with many axes, files beside the model.

Beside the hostile files (test_hostile.py), which have the dense tensors of the wrong length or with negative dims.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

import ingot
from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.problems import OnnxError
from tests.frontends.onnx.attempts import node
from tests.frontends.onnx.building import info, model_of

FLOATS = np.arange(4, dtype=np.float32)


def refusal(model: ModelProto | str) -> str:
    """The code of the one problem that the check lists, and that loading or compiling the model raises too."""
    (problem,) = check_onnx(model)
    with pytest.raises(OnnxError) as raised:
        ingot.compile(ingot.load_onnx(model))
    assert [p.code for p in raised.value.problems] == [problem.code]
    return problem.code


# --- sparse tensors ---------------------------------------------------------------------------------


def sparse_of(values: np.ndarray, indices: Any, dims: list[int]) -> SparseTensorProto:
    parts = numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.asarray(indices), "places")
    return SparseTensorProto(values=parts[0], indices=parts[1], dims=dims)


def with_sparse(sparse: SparseTensorProto, place: str) -> ModelProto:
    """A sparse tensor as an initializer, one of a branch, or the value of a node."""
    if place == "constant":
        nodes = [helper.make_node("Constant", [], ["w"], sparse_value=sparse), node("Mul", "x w", "y")]
        return model_of(nodes, [info("x", FLOATS)], ["y"])
    if place == "initializer":
        model = model_of([node("Mul", "x w", "y")], [info("x", FLOATS)], ["y"])
        model.graph.sparse_initializer.append(sparse)
        return model
    branch = helper.make_graph([node("Mul", "x w", "z")], "branch", [], [info("z", FLOATS)])
    branch.sparse_initializer.append(sparse)
    other = helper.make_graph([node("Neg", "x", "n")], "other", [], [info("n", FLOATS)])
    choice = node("If", "c", "y", then_branch=branch, else_branch=other)
    return model_of([choice], [info("x", FLOATS), info("c", np.array(True))], ["y"])


PLACES = ["initializer", "branch", "constant"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("indices", [[1, 3], [[1], [3]]], ids=str)
def test_a_sparse_tensor(place: str, indices: Any):
    made = ingot.compile(ingot.load_onnx(with_sparse(sparse_of(FLOATS[2:], indices, [4]), place)))
    given = (FLOATS, np.array(True)) if place == "branch" else (FLOATS,)
    np.testing.assert_array_equal(made(*given), FLOATS * [0, 2, 0, 3])


def test_a_sparse_tensor_of_texts_is_empty_elsewhere():
    sparse = sparse_of(np.array(["a"], object), [1], [3])
    model = model_of([helper.make_node("Constant", [], ["y"], sparse_value=sparse)], [], ["y"])
    assert ingot.compile(ingot.load_onnx(model))().tolist() == ["", "a", ""]


@pytest.mark.parametrize("indices", [np.zeros((1, 0), np.int64), np.zeros(1, np.int64)], ids=["by axes", "flat"])
def test_a_sparse_tensor_without_axes(indices: np.ndarray):
    made = ingot.compile(ingot.load_onnx(with_sparse(sparse_of(FLOATS[2:3], indices, []), "constant")))
    np.testing.assert_array_equal(made(FLOATS), FLOATS * 2)


def test_a_sparse_matrix():
    sparse = sparse_of(FLOATS[1:], np.array([[0, 1], [1, 0], [1, 2]], np.int32), [2, 3])
    model = model_of([helper.make_node("Constant", [], ["y"], sparse_value=sparse)], [], ["y"])
    np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(), [[0, 1, 0], [2, 0, 3]])


def test_a_sparse_initializer_is_the_default_of_an_input():
    model = with_sparse(sparse_of(FLOATS[2:], [1, 3], [4]), "initializer")
    model.graph.input.append(info("w", FLOATS))
    assert ingot.load_onnx(model).input_names == ("x",)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("indices", "dims", "code"),
    [
        ([0, 4], [4], "O103"),
        ([-1, 2], [4], "O103"),
        ([[0], [1 << 40]], [4], "O103"),
        ([[0, 0], [1, 2]], [2, 2], "O103"),
        ([[0, 1], [3, 1]], [4], "O103"),
        ([0, 1, 2], [4], "O103"),
        ([[[0]], [[1]]], [4], "O103"),
        ([0.0, 3.0], [4], "O103"),
        ([3, 3], [4], "O103"),
        ([3, 1], [4], "O103"),
        ([0, 3], [-4], "O103"),
        ([0, 3], [], "O103"),
        ([[], []], [], "O103"),
        ([0, 3], [1 << 40], "O118"),
        ([0, 3], [1 << 33, 1 << 33], "O118"),
        ([0, 3], [4] + [1] * 70, "O118"),
    ],
    ids=str,
)
def test_a_sparse_tensor_that_is_none(place: str, indices: Any, dims: list[int], code: str):
    assert refusal(with_sparse(sparse_of(FLOATS[2:], indices, dims), place)) == code


@pytest.mark.parametrize("part", ["values", "indices"])
def test_a_part_of_a_sparse_tensor_is_malformed(part: str):
    sparse = sparse_of(FLOATS[2:], [1, 3], [4])
    getattr(sparse, part).raw_data = b"\0"
    assert refusal(with_sparse(sparse, "initializer")) == "O103"


# --- many axes --------------------------------------------------------------------------------------

MANY = 70


def many_axes(what: str) -> ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * MANY, float_data=[1.0])
    x, shape, axes = info("x", FLOATS), np.array([1] * MANY + [4]), np.arange(MANY)
    match what:
        case "initializer":
            model = model_of([node("Add", "x w", "y")], [x], ["y"])
            model.graph.initializer.append(tensor)
            return model
        case "constant":
            return model_of([helper.make_node("Constant", [], ["w"], value=tensor), node("Add", "x w", "y")], [x], ["y"])
        case "input":
            return model_of([node("Neg", "x", "y")], [info("x", FLOATS, [1] * MANY)], ["y"])
        case "input of an op that waits for values":
            shapes = [info("x", FLOATS, [1] * MANY), info("shape", shape)]
            return model_of([node("Expand", "x shape", "y")], shapes, ["y"])
        case "known":
            return model_of([node("Unsqueeze", "w axes", "y")], [], ["y"], {"w": FLOATS, "axes": axes})
        case "ConstantOfShape":
            return model_of([node(what, "shape", "y")], [], ["y"], {"shape": shape})
    return model_of([node(what, "x shape", "y")], [x], ["y"], {"shape": axes if what == "Unsqueeze" else shape})


@pytest.mark.parametrize("what", ["initializer", "constant", "input", "input of an op that waits for values", "known", "ConstantOfShape", "Reshape", "Expand", "Unsqueeze"])
def test_more_axes_than_an_array_has(what: str):
    assert refusal(many_axes(what)) == "O118"


def test_more_axes_than_an_array_has_at_a_call():
    sizes = np.array([4] + [1] * MANY)
    made = ingot.compile(ingot.load_onnx(model_of([node("Reshape", "x s", "y")], [info("x", FLOATS), info("s", sizes)], ["y"])))
    with pytest.raises(OnnxError, match="O118 at Reshape -> y"):
        made(FLOATS, sizes)


def test_as_many_axes_as_an_array_has():
    x = FLOATS.reshape([4] + [1] * 63)
    made = ingot.compile(ingot.load_onnx(model_of([node("Neg", "x", "y")], [info("x", x)], ["y"])))
    np.testing.assert_array_equal(made(x), -x)


# --- dense tensors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_half_of_a_complex_number(count: int):
    odd = TensorProto(name="w", data_type=TensorProto.COMPLEX64, dims=[1], float_data=[1.0] * count)
    assert refusal(model_of([helper.make_node("Constant", [], ["y"], value=odd)], [], ["y"])) == "O103"


@pytest.mark.parametrize("axes", [5, 64])
def test_a_normalisation_over_many_axes(rng: np.random.Generator, axes: int):
    """No tensor on the way has one axis more than the greatest number."""
    x = rng.standard_normal((2, 3, 4, *[1] * (axes - 4), 5)).astype(np.float32)
    model = model_of([node("InstanceNormalization", "x s b", "y")], [info("x", x)], ["y"], {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)})
    inner = tuple(range(2, axes))
    expected = (x - x.mean(inner, keepdims=True)) / np.sqrt(x.var(inner, keepdims=True) + 1e-5)
    # sums of twenty numbers
    np.testing.assert_allclose(ingot.compile(ingot.load_onnx(model))(x), expected, atol=1e-5)


def external(folder: Path, location: str, **entries: str) -> str:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    model = model_of([node("Add", "x w", "y")], [info("x", FLOATS)], ["y"])
    model.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


def test_external_data_whose_name_is_none(tmp_path: Path):
    assert refusal(external(tmp_path, "weights\0.bin")) == "O102"


def test_external_data_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As where it may not be read, or is larger than the room for it."""
    (tmp_path / "weights.bin").write_bytes(b"\0" * 16)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "memmap", refuse)
    assert refusal(external(tmp_path, "weights.bin")) == "O102"
