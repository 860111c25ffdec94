"""Sequences that end before the time axis does: what is not computed for them changes no result."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import ingot
from tests.frontends.onnx.building import model_of, run_onnxruntime

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths(op: str, direction: str, rng: np.random.Generator) -> None:
    """Some as long as the axis, all within a quarter of it, one step, and a batch of one; free sizes."""
    directions, hidden, features = 2 if direction == "bidirectional" else 1, 5, 3
    rows = GATES[op] * hidden
    weights = {
        name: rng.standard_normal((directions, *shape)).astype(np.float32)
        for name, shape in {"w": (rows, features), "r": (rows, hidden), "b": (2 * rows,)}.items()
    }
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, ["x", "w", "r", "b", "lengths"], outputs, hidden_size=hidden, direction=direction)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", "batch", features])
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"])
    model = model_of([node], [x, lengths], outputs, weights)
    executable = ingot.compile(ingot.load_onnx(model), threads=1)
    results = {}
    for time, given in ((12, (12, 3, 1)), (12, (3, 2, 1)), (12, (4, 3, 2)), (9, (2,)), (9, (9,)), (1, (1, 1)), (13, (4, 4))):
        inputs = {
            "x": rng.standard_normal((time, len(given), features)).astype(np.float32),
            "lengths": np.asarray(given, np.int32),
        }
        results[time, given] = executable(**inputs)
        for have, want in zip(results[time, given], run_onnxruntime(model, inputs), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def test_a_sequence_has_the_same_bits_beside_longer_ones(rng: np.random.Generator) -> None:
    weights = {
        "w": rng.standard_normal((1, 32, 6)).astype(np.float32),
        "r": rng.standard_normal((1, 32, 8)).astype(np.float32),
    }
    node = helper.make_node("LSTM", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=8)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, "batch", 6])
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"])
    executable = ingot.compile(ingot.load_onnx(model_of([node], [x, lengths], ["y"], weights)), threads=1)
    data = rng.standard_normal((16, 2, 6)).astype(np.float32)
    both = executable(data, np.array([3, 16], np.int32))
    alone = executable(data[:, :1], np.array([3], np.int32))
    np.testing.assert_array_equal(both[:, :, :1], alone)
