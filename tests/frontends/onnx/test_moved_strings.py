"""Strings are moved, on the host, to where the compiled form of the same op moves numbers."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

import ingot
from ingot.frontends.onnx.problems import OnnxError
from tests.frontends.onnx.building import Array, info, model_of, node_model, run

WORDS = np.array([f"w{n}" for n in range(24)], object)
TABLE = np.arange(24, dtype=np.int64).reshape(4, 6)
CUBE = np.arange(24, dtype=np.int64).reshape(2, 3, 4)


def integers(*values: Any) -> Array:
    return np.array(values, np.int64)


# what is moved stands first: one of numbers that stand for words
CASES: list[tuple[str, int, list[Array], dict[str, Any]]] = [
    ("Concat", 2, [TABLE, TABLE[:2]], {"axis": 0}),
    ("Concat", 2, [CUBE, CUBE[..., :1]], {"axis": -1}),
    ("Flatten", 1, [CUBE], {"axis": 2}),
    ("Flatten", 1, [CUBE], {"axis": -2}),
    ("Flatten", 1, [CUBE], {"axis": 3}),
    ("Flatten", 1, [CUBE], {"axis": 0}),
    ("Gather", 1, [TABLE, integers(1)], {"axis": 1}),
    ("Gather", 1, [TABLE, integers([0, -1], [2, 0])], {"axis": 0}),
    ("GatherElements", 1, [TABLE, integers([0, 1, -1], [3, 2, 0])], {"axis": 0}),
    ("GatherElements", 1, [TABLE, integers([5, 1], [3, 2])], {"axis": -1}),
    ("GatherND", 1, [CUBE, integers([0, 1], [1, 2])], {}),
    ("GatherND", 1, [CUBE, integers([0], [2])], {"batch_dims": 1}),
    ("ReverseSequence", 1, [TABLE, integers(1, 6, 0, 3)], {"batch_axis": 0, "time_axis": 1}),
    ("ReverseSequence", 1, [CUBE, integers(1, 2, 3)], {"batch_axis": 1, "time_axis": 2}),
    ("ScatterElements", 1, [TABLE, integers([0, 1, -1], [3, 2, 0]), TABLE[:2, :3]], {"axis": 0}),
    ("ScatterND", 1, [CUBE, integers([0, 1], [1, 2]), TABLE[2:, :4]], {}),
    ("Squeeze", 1, [TABLE[:1, None], integers(0, -2)], {}),
    ("Unsqueeze", 1, [TABLE, integers(0, -1)], {}),
    ("Transpose", 1, [CUBE], {}),
    ("Transpose", 1, [CUBE], {"perm": [1, 0, 2]}),
    ("ArrayFeatureExtractor", 1, [TABLE, integers([2, 0, 5])], {"domain": "ai.onnx.ml"}),
    ("ArrayFeatureExtractor", 1, [TABLE[0], integers([2, 0])], {"domain": "ai.onnx.ml"}),
]


@pytest.mark.parametrize(("op", "moved", "arrays", "attributes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_like_numbers(op: str, moved: int, arrays: list[Array], attributes: dict[str, Any]):
    numbers, given = node_model(op, arrays, **attributes)
    updated = 1 if op.startswith("Scatter") else 0  # words that take the place of others
    words = [WORDS[a] if n < moved or (updated and n == 2) else a for n, a in enumerate(arrays)]
    strings, named = node_model(op, words, **attributes)
    (expected,), (found,) = run(numbers, given), run(strings, named)
    assert found.tolist() == WORDS[expected].tolist()
    assert found.shape == expected.shape


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "expected"),
    [
        (21, [integers(1, 2, 3)], {}, [1, 2, 3]),
        (18, [], {"num_outputs": 3}, [2, 2, 2]),
        (11, [], {"split": [3, 1, 2]}, [3, 1, 2]),
        (11, [], {}, [2, 2, 2]),
    ],
)
def test_split(opset: int, inputs: list[Array], attributes: dict[str, Any], expected: list[int]):
    model, given = node_model("Split", [WORDS[TABLE], *inputs], outputs=3, opset=opset, axis=1, **attributes)
    parts = run(model, given)
    assert [part.shape[1] for part in parts] == expected
    assert np.concatenate(parts, 1).tolist() == WORDS[TABLE].tolist()


@pytest.mark.parametrize("opset", [11, 13])
def test_axes_are_attributes_in_old_versions(opset: int):
    axes: tuple[list[Array], dict[str, Any]] = ([], {"axes": [0]}) if opset < 13 else ([integers(0)], {})
    model, given = node_model("Unsqueeze", [WORDS, *axes[0]], opset=opset, **axes[1])
    assert run(model, given)[0].shape == (1, 24)
    model, given = node_model("Squeeze", [WORDS[None], *axes[0]], opset=opset, **axes[1])
    assert run(model, given)[0].shape == (24,)


def test_where_and_one_hot():
    condition = np.array([[True], [False]])
    model, given = node_model("Where", [condition, WORDS[:3], WORDS[3:6]])
    assert run(model, given)[0].tolist() == [["w0", "w1", "w2"], ["w3", "w4", "w5"]]
    model, given = node_model("OneHot", [integers(2, -1, 7), integers(3), np.array(["off", "on"], object)], axis=0)
    assert run(model, given)[0].tolist() == [["off", "off", "off"], ["off", "off", "off"], ["on", "on", "off"]]


def test_columns_of_words_become_numbers():
    """What encoders of tables are exported as: a column each, one of n for its categories, all of them side by side."""
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["a"], axis=1),
        helper.make_node("Gather", ["x", "second"], ["b"], axis=1),
        helper.make_node("OneHotEncoder", ["a"], ["c"], domain="ai.onnx.ml", cats_strings=["red", "blue"], zeros=1),
        helper.make_node("OneHotEncoder", ["b"], ["d"], domain="ai.onnx.ml", cats_strings=["round"], zeros=1),
        helper.make_node("Concat", ["c", "d"], ["e"], axis=-1),
        helper.make_node("Reshape", ["e", "shape"], ["y"]),
    ]
    given = np.array([["red", "round"], ["green", "round"], ["blue", "square"]], object)
    weights = {"first": integers(0), "second": integers(1), "shape": integers(-1, 3)}
    model = model_of(nodes, [info("x", given, [None, 2])], ["y"], weights, domains={"ai.onnx.ml": 1})
    assert ingot.check_onnx(model) == []
    program = ingot.compile(ingot.load_onnx(model))
    assert program(given).tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert program(given[:1]).tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("Gather", [WORDS, integers(24)], {}, "index 24 is out of range for an axis of extent 24"),
        ("Gather", [WORDS, integers(0, -25)], {}, "index -25 is out of range"),
        ("Gather", [WORDS[:0], integers(0)], {}, "index 0 is out of range"),
        ("Gather", [WORDS, WORDS[:1]], {}, "string values; it takes integers"),
        ("GatherElements", [WORDS, integers([0])], {}, "axes of indices"),
        ("GatherElements", [WORDS, integers(24)], {}, "out of range"),
        ("GatherElements", [WORDS[TABLE][:1], integers([0], [0])], {"axis": 1}, "into"),
        ("GatherND", [WORDS, integers(0, 0)], {}, "into"),
        ("GatherND", [WORDS, integers(24)], {}, "out of range"),
        ("GatherND", [WORDS, np.array(1)], {}, "without axes"),
        ("GatherND", [WORDS, integers(0)], {"batch_dims": 1}, "into"),
        ("ScatterND", [WORDS, integers([30]), WORDS[:1]], {}, "out of range"),
        ("Split", [WORDS, np.array(24)], {"outputs": 2}, "Split of extent 24"),
        ("ReverseSequence", [WORDS[TABLE], np.array(2)], {}, "lengths"),
        ("OneHot", [integers(1), integers(3), WORDS[:3]], {}, "they are two"),
        ("Split", [WORDS, integers(3, 4)], {"outputs": 2}, "Split of extent 24"),
        ("ScatterElements", [WORDS, integers(0), WORDS[:1]], {"reduction": "add"}, "reduction"),
    ],
)
def test_what_is_wrong_is_said(op: str, arrays: list[Array], attributes: dict[str, Any], message: str):
    model, given = node_model(op, arrays, **attributes)
    with pytest.raises(OnnxError, match=message):
        run(model, given)
