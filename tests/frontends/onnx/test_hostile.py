"""Files that mean harm or are broken: an error that names the cause; no crash, no hang, no runaway memory.

Each is tried in a process with limits of time and memory (tests/fuzz/onnx_worker.py). Where the file itself is at
fault, the error is the list of problems with their codes.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from PIL import Image

import ingot
from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.hosted.patterns import Pattern
from ingot.frontends.onnx.problems import OnnxError, ProblemError
from tests.frontends.onnx.attempts import LIMITS, attempt, node, refused
from tests.frontends.onnx.building import info, model_of
from tests.fuzz.onnx_worker import Limits, Worker

FLOATS = np.zeros(4, np.float32)


def small_model() -> ModelProto:
    """A weight, two nodes, a subgraph: something of everything that files are made of."""
    branch = helper.make_graph([node("Neg", "h", "b")], "branch", [], [info("b", FLOATS)])
    other = helper.make_graph([node("Abs", "h", "b2")], "other", [], [info("b2", FLOATS)])
    nodes = [
        node("Mul", "x w", "h"),
        node("If", "c", "y", then_branch=branch, else_branch=other),
    ]
    inputs = [info("x", FLOATS), info("c", np.array(True))]
    return model_of(nodes, inputs, [info("y", FLOATS)], {"w": np.arange(4, dtype=np.float32)})


# --- files that are not whole -----------------------------------------------------------------------


def test_truncated(worker: Worker):
    data = small_model().SerializeToString()
    for size in range(0, len(data) - 1, 9):
        outcome = worker.attempt(data[:size], limits=LIMITS)
        refused(outcome, "O1")


def test_flipped_bits(worker: Worker):
    """Some flips leave a sound model; none may do worse than be refused."""
    data, random = small_model().SerializeToString(), Random(1)
    for _ in range(25):
        broken = bytearray(data)
        broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
        outcome = worker.attempt(bytes(broken), limits=LIMITS)
        assert outcome.is_fine, outcome


def test_something_else_entirely(worker: Worker, tmp_path: Path):
    refused(worker.attempt(b"PK\x03\x04 this is no model", limits=LIMITS), "O101")
    refused(worker.attempt(str(tmp_path / "absent.onnx"), limits=LIMITS), "O101", "absent.onnx")
    refused(worker.attempt(str(tmp_path), limits=LIMITS), "O101")


# --- graphs -----------------------------------------------------------------------------------------


def test_cycle(worker: Worker):
    model = model_of([node("Add", "x b", "a"), node("Neg", "a", "b")], [info("x", FLOATS)], ["a"])
    refused(attempt(worker, model), "O106", "Add -> a", "Neg -> b")


def test_node_that_reads_itself(worker: Worker):
    refused(attempt(worker, model_of([node("Add", "x a", "a")], [info("x", FLOATS)], ["a"])), "O106", "Add -> a")


def test_cycle_through_a_subgraph(worker: Worker):
    branch = helper.make_graph([node("Neg", "y", "b")], "branch", [], [info("b", FLOATS)])
    model = model_of(
        [node("If", "c", "y", then_branch=branch, else_branch=branch)], [info("c", np.array(True))], ["y"]
    )
    refused(attempt(worker, model), "O106", "If -> y")


@pytest.mark.parametrize(
    ("nodes", "inputs", "weights"),
    [
        ([node("Neg", "x", "a"), node("Abs", "x", "a")], ["x"], {}),
        ([node("Neg", "x", "x")], ["x"], {}),
        ([node("Neg", "x", "a")], ["x", "x"], {}),
        ([node("Neg", "x", "w")], ["x"], {"w": FLOATS}),
    ],
    ids=["two nodes", "a node and an input", "two inputs", "a node and a weight"],
)
def test_duplicate_names(worker: Worker, nodes: list[NodeProto], inputs: list[str], weights: dict[str, np.ndarray]):
    model = model_of(nodes, [info(n, FLOATS) for n in inputs], [nodes[-1].output[0]], weights)
    refused(attempt(worker, model), "O104")


# --- sizes ------------------------------------------------------------------------------------------


def test_extent_of_two_to_the_forty(worker: Worker):
    model = model_of([node("Relu", "x", "y")], [info("x", FLOATS, [1 << 40])], ["y"])
    refused(attempt(worker, model), "O114", str(1 << 40))


def test_negative_extent(worker: Worker):
    model = model_of([node("Relu", "x", "y")], [info("x", FLOATS, [-3])], ["y"])
    refused(attempt(worker, model), "O114", "-3")


@pytest.mark.parametrize("shape", [[-1, 3, -1, -1], ["?", 3, "?", "?"], [None, 3, "None", "-1"]])
def test_dims_without_a_name(shape: list[Any]):
    """What exporters write for dims that are not known; two of them need not be equal."""
    x = np.zeros((2, 3, 4, 5), np.float32)
    made = ingot.compile(ingot.load_onnx(model_of([node("Relu", "x", "y")], [info("x", x, shape)], ["y"])))
    for extents in [(2, 3, 4, 5), (1, 3, 6, 2)]:
        given = np.random.default_rng(0).standard_normal(extents).astype(np.float32)
        np.testing.assert_array_equal(made(given), np.maximum(given, 0))


def test_product_that_overflows(worker: Worker):
    model = model_of([node("Relu", "x", "y")], [info("x", FLOATS, [1 << 33, 1 << 33])], ["y"])
    refused(attempt(worker, model), "O118", str(1 << 33))


def tensor(dims: Sequence[int], data: bytes, name: str = "w", kind: int = TensorProto.FLOAT) -> TensorProto:
    return TensorProto(name=name, data_type=kind, dims=dims, raw_data=data)


def with_tensor(*tensors: TensorProto) -> ModelProto:
    model = model_of([node("Add", "x w", "y")], [info("x", FLOATS)], ["y"])
    model.graph.initializer.extend(tensors)
    return model


@pytest.mark.parametrize("dims", [[1 << 40], [1 << 32, 1 << 32], [1 << 62, 1 << 62, 1 << 62]], ids=str)
def test_weight_that_is_larger_than_the_file(worker: Worker, dims: list[int]):
    refused(attempt(worker, with_tensor(tensor(dims, b"\0" * 16))), "O1", "'w'")


def test_weight_with_a_negative_extent(worker: Worker):
    refused(attempt(worker, with_tensor(tensor([-4], b"\0" * 16))), "O103", "'w'", "-4")


@pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
def test_raw_data_of_the_wrong_length(worker: Worker, size: int):
    refused(attempt(worker, with_tensor(tensor([4], b"\0" * size))), "O103", "'w'", "16 bytes", str(size))


def test_typed_data_of_the_wrong_length(worker: Worker):
    wrong = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], float_data=[1.0, 2.0])
    refused(attempt(worker, with_tensor(wrong)), "O103", "2 elements")


@pytest.mark.parametrize(
    ("op", "sizes"),
    [("Expand", [1 << 24, 1 << 24, 4]), ("Expand", [1 << 31, 4]), ("Tile", [1 << 31]), ("Tile", [1 << 62])],
    ids=["too large for any machine", "too large for the limit", "tiles", "tiles that overflow"],
)
def test_result_that_is_too_large(worker: Worker, op: str, sizes: list[int]):
    model = model_of([node(op, "x s", "y")], [info("x", FLOATS)], ["y"], {"s": np.array(sizes)})
    outcome = attempt(worker, model)
    refused(outcome)
    assert any(word in outcome.detail for word in ("bytes", "O118")), outcome.detail


def test_size_given_at_run_time_is_negative(worker: Worker):
    sizes = np.array([-5])
    model = model_of([node("ConstantOfShape", "s", "y")], [info("s", sizes)], ["y"])
    refused(attempt(worker, model, s=sizes), "-5")


def test_size_given_at_run_time_is_too_large(worker: Worker):
    sizes = np.array([1 << 45])
    model = model_of([node("ConstantOfShape", "s", "y")], [info("s", sizes)], ["y"])
    refused(attempt(worker, model, s=sizes), "bytes")


# --- external data ----------------------------------------------------------------------------------


def with_external(folder: Path, location: str, **entries: str) -> Path:
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        outside.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(with_tensor(outside).SerializeToString())
    return path


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A model's folder, and a file with 16 bytes outside of it."""
    inside, outside = tmp_path / "model", tmp_path / "secret.bin"
    inside.mkdir()
    outside.write_bytes(b"\0" * 16)
    return inside, outside


def test_external_data_beside_the_model(worker: Worker, folders: tuple[Path, Path]):
    (folders[0] / "weights.bin").write_bytes(b"\0" * 16)
    outcome = worker.attempt(str(with_external(folders[0], "weights.bin")), limits=LIMITS)
    assert outcome.kind == "ran", outcome


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "..\\secret.bin", "/etc/hostname", "", "."])
def test_external_data_outside_the_folder(worker: Worker, folders: tuple[Path, Path], location: str):
    refused(worker.attempt(str(with_external(folders[0], location)), limits=LIMITS), "O102", "'w'")


def test_external_data_by_a_link_out_of_the_folder(worker: Worker, folders: tuple[Path, Path]):
    (folders[0] / "weights.bin").symlink_to(folders[1])
    refused(worker.attempt(str(with_external(folders[0], "weights.bin")), limits=LIMITS), "O102", "weights.bin")


def test_external_data_by_a_linked_folder(worker: Worker, folders: tuple[Path, Path]):
    (folders[0] / "sub").symlink_to(folders[1].parent, target_is_directory=True)
    refused(worker.attempt(str(with_external(folders[0], "sub/secret.bin")), limits=LIMITS), "O102", "sub/secret.bin")


def test_external_data_by_links_in_a_circle(worker: Worker, folders: tuple[Path, Path]):
    (folders[0] / "weights.bin").symlink_to(folders[0] / "weights.bin")
    refused(worker.attempt(str(with_external(folders[0], "weights.bin")), limits=LIMITS), "O102")


@pytest.mark.parametrize(
    "entries",
    [{"offset": "8"}, {"offset": "-4"}, {"length": "99"}, {"offset": "1e3"}, {"offset": str(1 << 62)}, {"length": "-16"}],
    ids=str,
)
def test_external_data_beyond_the_file(worker: Worker, folders: tuple[Path, Path], entries: dict[str, str]):
    (folders[0] / "weights.bin").write_bytes(b"\0" * 16)
    refused(worker.attempt(str(with_external(folders[0], "weights.bin", **entries)), limits=LIMITS), "O102", "'w'")


def test_external_data_of_a_model_in_memory(worker: Worker, folders: tuple[Path, Path]):
    (folders[0] / "weights.bin").write_bytes(b"\0" * 16)
    data = with_external(folders[0], "weights.bin").read_bytes()
    refused(worker.attempt(data, limits=LIMITS), "O102", "path")


# --- functions and subgraphs ------------------------------------------------------------------------


def function(name: str, *nodes: NodeProto) -> FunctionProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["x"], [nodes[-1].output[0]], list(nodes), opsets)


def calling(name: str, *functions: FunctionProto) -> ModelProto:
    return model_of(
        [node(name, "x", "y", domain="local")], [info("x", FLOATS)], ["y"], domains={"local": 1}, functions=functions
    )


def test_function_that_calls_itself(worker: Worker):
    model = calling("Again", function("Again", node("Again", "x", "z", domain="local")))
    refused(attempt(worker, model), "O113", "Again")


def test_functions_that_call_each_other(worker: Worker):
    model = calling(
        "Ping",
        function("Ping", node("Pong", "x", "z", domain="local")),
        function("Pong", node("Ping", "x", "z", domain="local")),
    )
    refused(attempt(worker, model), "O113", "Ping", "Pong")


def test_functions_that_expand_without_end(worker: Worker):
    """Forty functions, each of which calls the next one twice: a million million nodes."""
    functions = [
        function(f"F{n}", node(f"F{n + 1}", "x", "h", domain="local"), node(f"F{n + 1}", "h", "z", domain="local"))
        for n in range(40)
    ]
    model = calling("F0", *functions, function("F40", node("Neg", "x", "z")))
    refused(attempt(worker, model), "O118", "nodes")


def test_functions_that_call_each_other_ever_deeper(worker: Worker):
    functions = [function(f"F{n}", node(f"F{n + 1}", "x", "z", domain="local")) for n in range(1000)]
    model = calling("F0", *functions, function("F1000", node("Neg", "x", "z")))
    refused(attempt(worker, model), "O115", "functions")


def nested(depth: int) -> ModelProto:
    """If in If in If ..."""
    model = model_of([], [info("x", FLOATS), info("c", np.array(True))], ["y"])
    graph = model.graph
    name = "y"
    for level in range(depth):
        inner = graph.node.add(op_type="If", input=["c"], output=[name])
        branch = inner.attribute.add(name="then_branch", type=5)
        inner.attribute.add(name="else_branch", type=5).g.output.add(name="x")
        graph, name = branch.g, f"y{level}"
        graph.output.add(name=name)
    graph.node.add(op_type="Neg", input=["x"], output=[name])
    return model


def test_subgraphs_nested_in_memory():
    (problem,) = check_onnx(nested(100_000))
    assert problem.code == "O115"


def wrapped(data: bytes, *fields: int) -> bytes:
    """Bytes as the value of a field of a field ... of a message."""
    for field in fields:
        size, count = b"", len(data)
        while True:
            size += bytes([count & 0x7F | (0x80 if count > 0x7F else 0)])
            count >>= 7
            if not count:
                break
        data = bytes([field << 3 | 2]) + size + data
    return data


def test_subgraphs_nested_in_a_file(worker: Worker):
    """GraphProto.node = 1, NodeProto.attribute = 5, AttributeProto.g = 6, ModelProto.graph = 7."""
    data = b""
    for _ in range(20_000):
        data = wrapped(data, 6, 5, 1)
    refused(worker.attempt(wrapped(data, 7), limits=LIMITS), "O101")


def test_subgraphs_nested_as_deep_as_allowed(worker: Worker):
    data = nested(20).SerializeToString()
    outcome = worker.attempt(data, {"x": FLOATS, "c": np.array(True)}, Limits(seconds=60))
    assert outcome.kind == "ran", outcome


# --- values at run time -----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [4, -5, 1 << 40, -(1 << 63)])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_index_out_of_range(worker: Worker, op: str, index: int):
    indices = np.array([[1], [index]]) if op.endswith("ND") else np.array([1, index])
    inputs = [info("x", FLOATS), info("i", indices), info("u", FLOATS[:2])]
    names = "x i u" if op.startswith("Scatter") else "x i"
    model = model_of([node(op, names, "y")], inputs[: len(names.split())], ["y"])
    outcome = attempt(worker, model, x=FLOATS, i=indices, u=FLOATS[:2])
    refused(outcome, f"index {index}", "extent 4")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_the_quotient_that_does_not_fit(worker: Worker, op: str, dtype: type):
    """The most negative number divided by -1 overflows; processors raise a signal for it."""
    x, y = np.full(40, np.iinfo(dtype).min, dtype), np.full(40, -1, dtype)
    model = model_of([node(op, "x y", "z")], [info("x", x), info("y", y)], ["z"])
    outcome = attempt(worker, model, x=x, y=y)
    assert outcome.kind == "ran", outcome


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_divided_by_zero(worker: Worker, op: str, dtype: type):
    x, y = np.arange(40, dtype=dtype), np.ones(40, dtype)
    y[33] = 0
    model = model_of([node(op, "x y", "z")], [info("x", x), info("y", y)], ["z"])
    refused(attempt(worker, model, x=x, y=y), "division by zero", op)


def test_known_integers_divided_by_zero(worker: Worker):
    zero = np.zeros(2, np.int64)
    model = model_of([node("Div", "a b", "c"), node("Add", "x c", "y")], [info("x", zero)], ["y"], {"a": zero, "b": zero})
    refused(attempt(worker, model, x=zero), "division by zero")


def test_loop_without_end(worker: Worker):
    """A trip count of 2^62 that the condition never stops: the limit of time is the caller's, memory stays flat."""
    body = helper.make_graph(
        [node("Identity", "c", "d"), node("Add", "v v", "w")],
        "body",
        [info("i", np.array(0)), info("c", np.array(True)), info("v", FLOATS)],
        [info("d", np.array(True)), info("w", FLOATS)],
    )
    model = model_of(
        [node("Loop", "n  x", "y", body=body)], [info("x", FLOATS)], ["y"], {"n": np.array(1 << 62)}
    )
    model.graph.node[0].input[:] = ["n", "", "x"]
    outcome = worker.attempt(model.SerializeToString(), {"x": FLOATS}, Limits(seconds=4, megabytes=1000))
    assert outcome.kind == "slow" or outcome.is_fine, outcome


def test_host_node_with_fewer_values_than_keys():
    labels = helper.make_node(
        "LabelEncoder", ["x"], ["y"], "labels", domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[1]
    )
    given = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    wanted = helper.make_tensor_value_info("y", TensorProto.INT64, ["n"])
    program = ingot.compile(ingot.load_onnx(model_of([labels], [given], [wanted], domains={"ai.onnx.ml": 4})))
    with pytest.raises(OnnxError, match=r"(?s)O109.*labels.*2 keys for 1 values"):
        program(np.array(["a"], object))


@pytest.mark.parametrize("limits", [(2, 0), (1 << 32, 1), (2, 1 << 32)])
def test_n_grams_of_any_length_and_distance(limits: tuple[int, int]):
    """Only lengths that the pool has and distances that the text has are looked at."""
    length, skips = limits
    settings = {"mode": "TF", "min_gram_length": 1, "ngram_counts": [0, 1], "ngram_indexes": [0, 1]}
    counted = node(
        "TfIdfVectorizer", "x", "y", max_gram_length=length, max_skip_count=skips, pool_int64s=[7, 1, 2], **settings
    )
    items = np.array([7, 1, 2, 1, 9, 2], np.int64)
    (found,) = (ingot.compile(ingot.load_onnx(model_of([counted], [info("x", items)], ["y"])))(items),)
    pairs = sum(
        items[i] == 1 and items[i + distance] == 2
        for distance in range(1, min(skips + 1, 5) + 1)
        for i in range(6 - distance)
    )
    np.testing.assert_array_equal(found, np.array([1, pairs], np.float32))


@pytest.mark.parametrize("op", ["ReduceSumSquare", "ReduceMean", "Squeeze", "Unsqueeze"])
def test_axes_that_are_no_integers(op: str):
    weights = {"axes": np.ones(1, np.float32)}
    made = model_of([node(op, "x axes", "y")], [info("x", np.zeros((3, 1, 2), np.float32))], ["y"], weights)
    assert check_onnx(made)
    with pytest.raises(OnnxError):
        ingot.compile(ingot.load_onnx(made))


@pytest.mark.parametrize("mode", ["RGB", "Grayscale"])
def test_bytes_that_are_no_image(mode: str):
    """At all, or not to their end."""
    node = helper.make_node("ImageDecoder", ["x"], ["y"], name="decode", pixel_format=mode)
    data = np.zeros(0, np.uint8)
    exe = ingot.compile(ingot.load_onnx(model_of([node], [info("x", data, ["n"])], ["y"])))
    stream = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(stream, "png")
    whole = np.frombuffer(stream.getvalue(), np.uint8)
    assert exe(whole).shape[:2] == (64, 64)
    for broken in (np.arange(40, dtype=np.uint8), whole[: len(whole) // 2]):
        with pytest.raises(OnnxError, match=rf"decode.*cannot read the {len(broken)} bytes"):
            exe(broken)


def test_a_branch_without_the_outputs_of_its_node():
    number = helper.make_tensor("n", TensorProto.FLOAT, [2], [1.0, 2.0])
    value = helper.make_node("Constant", [], ["v"], value=number)
    declared = helper.make_tensor_value_info("v", TensorProto.FLOAT, [2])
    empty, whole = (helper.make_graph([value], "branch", [], outputs) for outputs in ([], [declared]))
    node = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=empty, else_branch=whole)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    with pytest.raises(OnnxError, match=r"choose.*its 'branch' makes 0 outputs, the node has 1"):
        ingot.load_onnx(model_of([node], [condition], ["y"]))


def test_a_loop_whose_body_makes_too_little():
    values = {name: helper.make_tensor_value_info(name, kind, []) for name, kind in (("n", 7), ("c", 9), ("y", 1))}
    body = helper.make_graph([], "round", [values["n"], values["c"], values["y"]], [values["c"], values["y"]])
    node = helper.make_node("Loop", ["m", "", "x"], ["last", "all"], name="repeat", body=body)
    inputs = [helper.make_tensor_value_info("m", TensorProto.INT64, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [])]
    with pytest.raises(OnnxError, match=r"repeat.*its 'round' makes 1 outputs, the node has 2"):
        ingot.load_onnx(model_of([node], inputs, ["last", "all"]))


# --- work that a file asks for while it is imported ---------------------------------------------------


IMAGE = np.zeros((1, 3, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("op", "weights", "attributes"),
    [
        ("Split", {}, {"num_outputs": 1 << 40}),
        ("LRN", {"q": IMAGE}, {"size": 1 << 31}),
        ("DFT", {"q": np.zeros((1, 4, 1), np.float32), "n": np.array(1 << 31)}, {}),
        ("STFT", {"q": np.zeros((1, 8), np.float32), "step": np.array(1), "": None, "n": np.array(1 << 31)}, {}),
        ("MaxRoiPool", {"q": IMAGE, "r": np.zeros((1, 5), np.float32)}, {"pooled_shape": [1 << 20, 1 << 20]}),
        ("Col2Im", {"q": np.zeros((1, 4, 4), np.float32), "i": np.array([4, 4]), "b": np.array([1 << 20, 1 << 20])}, {}),
        ("SplitToSequence", {"q": np.zeros(1 << 14, np.float32)}, {"keepdims": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_more_parts_than_a_node_may_have(op: str, weights: dict[str, Any], attributes: dict[str, Any]):
    given = {name: array for name, array in weights.items() if name}
    made = helper.make_node(op, list(weights) or ["x"], ["y"], "asks", **attributes)
    if op == "Split":
        made = helper.make_node(op, ["x"], ["y"], "asks", **attributes)
    (problem,) = check_onnx(model_of([made], [info("x", FLOATS)], ["y"], given))
    assert problem.code == "O118", problem
    assert problem.node == f"asks ({op})"


def test_filters_beyond_half_the_rate():
    numbers = {"n": np.array(8), "l": np.array(1 << 31), "r": np.array(16), "a": np.float32(0), "b": np.float32(8)}
    weights = {name: np.asarray(number) for name, number in numbers.items()}
    made = helper.make_node("MelWeightMatrix", list(weights), ["y"])
    (problem,) = check_onnx(model_of([made], [], ["y"], weights))
    assert problem.code == "O118"
    weights |= {"l": np.asarray(16), "b": np.asarray(1e6, np.float32)}
    (problem,) = check_onnx(model_of([made], [], ["y"], weights))
    assert problem.code == "O119"


def counting_loop(count: int | None) -> ModelProto:
    """A loop on known numbers whose result is the shape of something: it would be computed at import."""
    number = np.array([1])
    body = helper.make_graph(
        [node("Identity", "c", "d"), node("Add", "v one", "w")],
        "body",
        [info("i", np.array(0)), info("c", np.array(True)), info("v", number)],
        [info("d", np.array(True)), info("w", number)],
    )
    repeat = helper.make_node("Loop", ["n" if count is not None else "", "go", "one"], ["s"], body=body)
    weights = {"one": number, "go": np.array(True)} | ({"n": np.array(count)} if count is not None else {})
    return model_of([repeat, node("Reshape", "x s", "y")], [info("x", FLOATS)], ["y"], weights)


@pytest.mark.parametrize("count", [1 << 40, None])
def test_a_loop_without_end_is_not_run_while_it_is_compiled(count: int | None):
    assert check_onnx(counting_loop(count)) == []
    ingot.compile(ingot.load_onnx(counting_loop(count)))


def test_a_short_loop_decides_a_shape():
    program = ingot.compile(ingot.load_onnx(counting_loop(3)))
    np.testing.assert_array_equal(program(FLOATS), FLOATS)


def test_loops_in_loops_are_not_unrolled_without_end(worker: Worker):
    """Each round makes its value longer, so none of the loops is one body; 100^4 copies of it would be many nodes."""
    inside = [node("Add", "v0 v0", "w0")]
    body = None
    for level in range(4):
        declared = [info(f"i{level}", np.array(0)), info(f"c{level}", np.array(True)), ValueInfoProto(name=f"v{level}")]
        outputs = [info(f"d{level}", np.array(True)), ValueInfoProto(name=f"w{level}")]
        nodes = [node("Identity", f"c{level}", f"d{level}"), *inside]
        body = helper.make_graph(nodes, f"body{level}", declared, outputs)
        again = helper.make_node("Loop", ["n", "", f"v{level + 1}"], [f"l{level + 1}"], body=body)
        inside = [again, node("Concat", f"l{level + 1} v{level + 1}", f"w{level + 1}", axis=0)]
    repeat = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    model = model_of([repeat], [info("x", FLOATS)], ["y"], {"n": np.array(100)})
    outcome = worker.attempt(model.SerializeToString(), {"x": FLOATS}, Limits(seconds=15, megabytes=2000))
    assert outcome.is_fine, outcome


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("(a+)+$", "a" * 40 + "!", False),
        ("(a|aa)*b", "a" * 60, False),
        ("(a?){30}a{30}", "a" * 30, True),
        (r"[\w.]+@\w+\.(com|org)", "me.too@place.org", True),
    ],
)
def test_patterns_take_no_longer_than_the_text(worker: Worker, pattern: str, text: str, expected: bool):
    declared = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    match = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    model = model_of([match], [declared], [helper.make_tensor_value_info("y", TensorProto.BOOL, [1])])
    outcome = worker.attempt(model.SerializeToString(), {"x": np.array([text], object)}, LIMITS)
    assert outcome.kind == "ran", outcome
    assert ingot.compile(ingot.load_onnx(model))(np.array([text], object)).tolist() == [expected]


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)b", "(", "a)", "*a", "[a", "a{2000}", "a{5,2}", "((a{900}){900}){900}", "(" * 190 + ")" * 190, "a\\"])
def test_patterns_that_are_none(pattern: str):
    with pytest.raises(ProblemError, match="not a regular expression"):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["a*", "(a|b)+c?", "a{2,3}b{0}c{2}", "(?i)aB", "(?:ab)+|c", "[^a-c]+", "[]a]+", r"\ba\b", "a.c", "(?s)a.c", "", "a||b", "x{0,}y", "(a*)*b"])
def test_patterns_mean_what_they_mean_to_python(pattern: str):
    compiled = Pattern(pattern)
    letters = ["", "a", "b", "c", "x", "y", "]", "\n", " "]
    for text in map("".join, itertools.product(letters, repeat=3)):
        assert compiled.matches(text) == (re.fullmatch(pattern, text) is not None), text
