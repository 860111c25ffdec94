"""The import doctor: one broken model for each code, and all problems of a model in one run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

import ingot
from ingot.compiler.errors import IngotError
from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.problems import Kind, OnnxError
from ingot.frontends.onnx.registry import onnx_op
from ingot.frontends.onnx.staged import MOST_LISTED
from tests.frontends.onnx.building import info, model_of

FLOATS = np.zeros((2, 3), np.float32)
INTEGERS = np.zeros((2, 3), np.int64)
DOCUMENT = Path(__file__).parent.parent.parent.parent / "docs" / "onnx.md"


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"the_{op}", **attributes)


def one(op: str, inputs: str = "x", weights: dict[str, np.ndarray] | None = None, **attributes: Any) -> ModelProto:
    """A model of one node with inputs x (floats) and i (integers)."""
    return model_of([node(op, inputs, "y", **attributes)], [info("x", FLOATS), info("i", INTEGERS)], ["y"], weights)


def with_tensor(tensor: TensorProto) -> ModelProto:
    model = one("Add", "x w")
    model.graph.initializer.append(tensor)
    return model


def external() -> ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    return with_tensor(tensor)


def recursive() -> ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    again = helper.make_function("local", "Again", ["x"], ["z"], [node("Again", "x", "z", domain="local")], opsets)
    return model_of(
        [node("Again", "x", "y", domain="local")], [info("x", FLOATS)], ["y"], domains={"local": 1}, functions=[again]
    )


def nested() -> ModelProto:
    model = model_of([], [info("x", FLOATS)], ["y"])
    graph = model.graph
    for _ in range(70):
        graph = graph.node.add(op_type="If").attribute.add(name="then_branch", type=5).g
    return model


def cycle() -> ModelProto:
    return model_of([node("Add", "x b", "a"), node("Neg", "a", "b")], [info("x", FLOATS)], ["a"])


def twice() -> ModelProto:
    return model_of([node("Neg", "x", "a"), node("Abs", "x", "a")], [info("x", FLOATS)], ["a"])


def without_outputs() -> ModelProto:
    return model_of([node("Neg", "x", "y")], [info("x", FLOATS)], [])


def four_axes() -> ModelProto:
    x = info("x", np.zeros((1, 1, 2, 2, 2, 2), np.float32))
    return model_of([node("Conv", "x x", "y")], [x], ["y"])


@onnx_op("Unforeseen", domain="tests")
def unforeseen(op: Any, x: Any) -> Any:
    """A converter with a mistake."""
    return {}[x]


def declared(*shape: Any) -> ModelProto:
    return model_of([node("Neg", "x", "y")], [info("x", FLOATS, shape)], ["y"])


# a model, and words of the message
SAMPLES: dict[Kind, tuple[Callable[[], Any], tuple[str, ...]]] = {
    Kind.UNREADABLE: (lambda: b"this is no model", ()),
    Kind.EXTERNAL_DATA: (external, ("'w'", "weights.bin")),
    Kind.BAD_TENSOR: (
        lambda: with_tensor(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"1234")),
        ("'w'", "12 bytes", "4"),
    ),
    Kind.DUPLICATE_NAME: (twice, ("'a'", "the_Neg", "the_Abs")),
    Kind.MISSING_INPUT: (lambda: one("Add", "x absent"), ("'absent'", "the_Add")),
    Kind.CYCLE: (cycle, ("the_Add", "the_Neg")),
    Kind.UNKNOWN_OP: (lambda: one("NoSuchOp"), ("NoSuchOp", "the_NoSuchOp")),
    Kind.UNKNOWN_VERSION: (lambda: model_of([], [info("x", FLOATS)], ["x"], opset=999), ("999",)),
    Kind.BAD_ATTRIBUTE: (lambda: one("Softmax", slope=1), ("'slope'", "axis", "the_Softmax")),
    Kind.INPUT_COUNT: (lambda: one("Add", "x x x"), ("3 inputs", "the_Add")),
    Kind.ELEMENT_TYPE: (lambda: one("Add", "x i"), ("f32", "i64", "the_Add")),
    Kind.BAD_SHAPE: (lambda: one("MatMul", "x x"), ("[2, 3]", "the_MatMul")),
    Kind.RECURSION: (recursive, ("Again",)),
    Kind.BAD_TYPE: (lambda: declared(-3), ("'x'", "-3")),
    Kind.NESTING: (nested, ("64",)),
    Kind.BAD_GRAPH: (without_outputs, ("outputs",)),
    Kind.UNSUPPORTED: (four_axes, ("4 spatial axes", "the_Conv")),
    Kind.TOO_LARGE: (lambda: declared(1 << 39, 1 << 39), ("'x'", str(1 << 39))),
    Kind.BAD_VALUE: (
        lambda: one("Range", "a b c", {"a": np.array(0), "b": np.array(4), "c": np.array(0)}),
        ("delta", "the_Range"),
    ),
    Kind.BAD_NODE: (lambda: one("Unforeseen", "x", domain="tests"), ("the_Unforeseen", "KeyError")),
}


@pytest.mark.parametrize(("op", "inputs"), [("Identity", [""]), ("Add", ["x", ""]), ("Concat", ["x", "", "x"])])
def test_a_required_input_is_not_left_out(op: str, inputs: list[str]):
    """Also where the value would be handed on by the host, which has no type to look at."""
    attributes = {"axis": 0} if op == "Concat" else {}
    node = helper.make_node(op, inputs, ["y"], **attributes)
    for given in (info("x", FLOATS), ValueInfoProto(name="x")):
        (problem,) = check_onnx(model_of([node], [given], ["y"]))
        assert problem.kind is Kind.INPUT_COUNT
        assert f"number {inputs.index('')}" in problem.message


@pytest.mark.parametrize(("shape", "word"), [((2, 500), "square"), ((500, 2), "square"), ((4,), "2 axes")])
def test_a_determinant_is_one_of_square_matrices(shape: tuple[int, ...], word: str):
    node = helper.make_node("Det", ["x"], ["y"])
    (problem,) = check_onnx(model_of([node], [info("x", np.zeros(shape, np.float32))], ["y"]))
    assert problem.kind is Kind.BAD_SHAPE
    assert word in problem.message


def test_an_optional_input_is_left_out():
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    assert check_onnx(model_of([node], [info("x", FLOATS), info("high", np.zeros((), np.float32))], ["y"])) == []


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.code)
def test_code(kind: Kind):
    make, words = SAMPLES[kind]
    found = check_onnx(make())
    assert [p.code for p in found] == [kind.code], found
    for word in words:
        assert word in str(found[0])
    assert "hint: " in str(found[0])


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.code)
def test_a_model_with_a_problem_is_refused_with_the_same_list(kind: Kind):
    """By loading or by compiling, and never with another exception."""
    make, _ = SAMPLES[kind]
    with pytest.raises(OnnxError) as caught:
        ingot.compile(ingot.load_onnx(make()))
    assert kind.code in str(caught.value)
    assert isinstance(caught.value, IngotError)


def test_codes_are_numbered_in_order():
    """Codes are stable: a new one goes to the end."""
    assert [kind.code for kind in Kind] == [f"O{101 + n}" for n in range(len(Kind))]


def test_every_code_is_explained():
    explained = re.findall(r"^\| (O\d+) \| (.*?) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert explained == [(kind.code, kind.title) for kind in Kind]


def test_every_problem_in_one_run():
    wrong = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"1234")
    model = model_of(
        [
            node("NoSuchOp", "x", "a"),
            node("Relu", "absent", "b", alpha=1.0),
            node("Add", "a", "c"),
        ],
        [info("x", FLOATS), info("z", FLOATS, [-2])],
        ["d"],
    )
    model.graph.initializer.append(wrong)
    found = {p.kind for p in check_onnx(model)}
    assert found == {
        Kind.UNKNOWN_OP, Kind.MISSING_INPUT, Kind.BAD_ATTRIBUTE, Kind.INPUT_COUNT, Kind.BAD_TYPE, Kind.BAD_TENSOR
    }  # fmt: skip


def test_every_shape_problem_in_one_run():
    """A node after a broken one is not blamed; one beside it is."""
    model = model_of(
        [node("Add", "x i", "a"), node("Neg", "a", "b"), node("MatMul", "x x", "c"), node("Transpose", "x", "d", perm=[0])],
        [info("x", FLOATS), info("i", INTEGERS)],
        ["b", "c", "d"],
    )
    assert [(p.code, p.node.split()[0]) for p in check_onnx(model)] == [
        ("O111", "the_Add"), ("O112", "the_MatMul"), ("O112", "the_Transpose")
    ]  # fmt: skip


def test_problems_inside_subgraphs_and_functions():
    branch = helper.make_graph([node("NoSuchOp", "x", "b")], "branch", [], [info("b", FLOATS)])
    other = helper.make_graph([node("Relu", "absent", "b2")], "other", [], [info("b2", FLOATS)])
    opsets = [helper.make_opsetid("", 21)]
    local = helper.make_function("local", "Local", ["x"], ["z"], [node("NorThisOne", "x", "z")], opsets)
    model = model_of(
        [node("If", "c", "y", then_branch=branch, else_branch=other), node("Local", "x", "l", domain="local")],
        [info("x", FLOATS), info("c", np.array(True))],
        ["y", "l"],
        domains={"local": 1},
        functions=[local],
    )
    text = "\n".join(map(str, check_onnx(model)))
    for word in ("NoSuchOp", "'absent'", "NorThisOne", "function Local"):
        assert word in text


def test_the_list_has_an_end():
    nodes = [helper.make_node("NoSuchOp", ["x"], [f"y{n}"]) for n in range(3 * MOST_LISTED)]
    assert len(check_onnx(model_of(nodes, [info("x", FLOATS)], ["y0"]))) == MOST_LISTED


def test_a_name_that_is_not_text():
    data = one("Neg").SerializeToString().replace(b"the_Neg", b"\xff\xfe\xfd_Neg")
    (problem,) = check_onnx(data)
    assert problem.code == "O101"
    assert "UTF-8" in problem.message
