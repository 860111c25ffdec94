"""A model that cannot be imported is one diagnostic, E190, that lists every problem."""

import pytest
from onnx import TensorProto, helper

import ingot
from ingot.compiler.errors import IngotError


def model_of(*nodes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(list(nodes), "broken", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_e190_lists_every_problem_with_its_node():
    first = helper.make_node("NoSuchOp", ["x"], ["h"], name="first")
    second = helper.make_node("NorThisOne", ["h"], ["y"], name="second")
    with pytest.raises(IngotError) as caught:
        ingot.load_onnx(model_of(first, second))
    assert caught.value.code.id == "E190"
    for word in ("NoSuchOp", "NorThisOne", "first", "second"):
        assert word in str(caught.value)


def test_e190_bytes_that_are_no_model():
    with pytest.raises(IngotError) as caught:
        ingot.load_onnx(b"not a model at all")
    assert caught.value.code.id == "E190"


def test_a_model_that_runs():
    import_me = model_of(helper.make_node("Relu", ["x"], ["y"]))
    assert ingot.check_onnx(import_me) == []
