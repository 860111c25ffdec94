"""Whatever the indices, sizes and coordinates are: generated code reads and writes inside its buffers, or says what is wrong.

Every model runs in a process of its own with guard pages around arguments, weights, results and scratch memory, once more
in the interpreter of loops, which checks each index against its own buffer (tests/fuzz/watched.py), and then with random,
odd and extreme inputs.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests.frontends.onnx.building import node_model
from tests.frontends.onnx.cases import Case, all_cases, one_per_op
from tests.frontends.onnx.microsoft_models import microsoft_models
from tests.fuzz.guarded import Guards, TouchedOutside
from tests.fuzz.onnx_models import inputs_of
from tests.fuzz.onnx_worker import Worker

BAD_INTEGERS = (-1, 1, 2, 5, 127, -128, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
STEP = 3  # of the bad numbers, one model tries every third; the others are left to its further rounds, and to chance
BAD_FLOATS = (np.nan, np.inf, -np.inf, 1e30, -1e30, -0.5, 7.5)


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


def i64(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


# op -> inputs, attributes: each with an extent of 1 somewhere, where an index has least room
NODES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "gather of one row": ("Gather", [f32(1, 4), i64(0, 0)], {}),
    "gather of columns": ("Gather", [f32(3, 5), i64(0, 4)], {"axis": 1}),
    "gather of nothing": ("Gather", [f32(0, 4), i64()], {}),
    "gather elements": ("GatherElements", [f32(1, 4), i64([0, 0, 0])], {"axis": 0}),
    "gather nd": ("GatherND", [f32(1, 4, 2), i64([0, 3], [0, 0])], {}),
    "scatter elements": ("ScatterElements", [f32(3, 4), i64([0, 2]), f32(1, 2)], {"axis": 0}),
    "scatter elements, added": ("ScatterElements", [f32(1, 4), i64([0, 0]), f32(1, 2)], {"axis": 0, "reduction": "add"}),
    "scatter nd": ("ScatterND", [f32(4, 3), i64([0], [3]), f32(2, 3)], {}),
    "scatter nd, largest": ("ScatterND", [f32(1, 3), i64([0, 1], [0, 2]), f32(2)], {"reduction": "max"}),
    "one hot": ("OneHot", [i64(0, 2, 1), i64(3), np.array([0, 1], np.float32)], {}),
    "one hot of floats": ("OneHot", [f32(3), i64(3), np.array([0, 1], np.float32)], {}),
    "slice": ("Slice", [f32(4, 5), i64(1, 0), i64(3, 5), i64(0, 1), i64(1, 2)], {}),
    "pad": ("Pad", [f32(3, 4), i64(1, 0, 0, 2)], {"mode": "reflect"}),
    "pad around": ("Pad", [f32(3, 4), i64(1, 0, 0, 2)], {"mode": "wrap"}),
    "resize by sizes": ("Resize", [f32(1, 1, 3, 4), None, None, i64(1, 1, 5, 2)], {"mode": "linear"}),
    "resize by a region": (
        "Resize", [f32(1, 1, 3, 4), np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32), None, i64(1, 1, 5, 2)],
        {"mode": "cubic", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    "regions": ("RoiAlign", [f32(1, 2, 6, 6), np.array([[0, 0, 3, 3], [1, 1, 5, 5]], np.float32), i64(0, 0)], {"output_height": 2, "output_width": 2}),
    "regions, adaptive": (
        "RoiAlign", [f32(2, 1, 6, 6), np.array([[0, 0, 3, 3], [1, 1, 5, 5]], np.float32), i64(0, 1)],
        {"output_height": 3, "output_width": 1, "sampling_ratio": 2, "mode": "max"},
    ),
    "largest of regions": ("MaxRoiPool", [f32(1, 2, 6, 6), np.array([[0, 0, 0, 3, 3]], np.float32)], {"pooled_shape": [2, 2]}),
    "grid, linear": ("GridSample", [f32(1, 1, 3, 4), f32(1, 2, 2, 2)], {"padding_mode": "border"}),
    "grid, reflected": ("GridSample", [f32(1, 1, 3, 4), f32(1, 2, 2, 2)], {"padding_mode": "reflection", "mode": "cubic"}),
    "grid, nearest": ("GridSample", [f32(1, 1, 1, 1), f32(1, 2, 2, 2)], {"mode": "nearest", "align_corners": 1}),
    "deformed convolution": ("DeformConv", [f32(1, 1, 4, 4), f32(1, 1, 2, 2), f32(1, 8, 3, 3), f32(1), f32(1, 4, 3, 3)], {}),
    "unpooling": ("MaxUnpool", [f32(1, 1, 2, 2), i64([[[0, 3], [8, 15]]]).reshape(1, 1, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "columns to image": ("Col2Im", [f32(1, 4, 9), i64(4, 4), i64(2, 2)], {}),
    "affine grid": ("AffineGrid", [f32(1, 2, 3), i64(1, 1, 2, 3)], {}),
    "cache": ("TensorScatter", [f32(2, 1, 4, 3), f32(2, 1, 1, 3), i64(0, 3)], {}),
    "cache, circular": ("TensorScatter", [f32(2, 1, 4, 3), f32(2, 1, 2, 3), i64(0, 3)], {"mode": "circular"}),
    "reversed sequences": ("ReverseSequence", [f32(4, 2), i64(4, 1)], {}),
    "largest few": ("TopK", [f32(3, 4), i64(2)], {}),
    "loss": ("NegativeLogLikelihoodLoss", [f32(3, 5), i64(0, 4, 2)], {"ignore_index": -1}),
    "loss of logits": ("SoftmaxCrossEntropyLoss", [f32(3, 5), i64(0, 4, 2), f32(5)], {}),
    "lower triangle": ("Trilu", [f32(3, 4), np.array(1)], {"upper": 0}),
    "frames": ("STFT", [f32(1, 16, 1), np.array(4), f32(8), np.array(8)], {}),
    "cropped": ("CenterCropPad", [f32(5, 4), i64(3, 6)], {}),
    "parts": ("Split", [f32(6, 2), i64(2, 4)], {}),
    "recurrent": ("LSTM", [f32(3, 2, 2), f32(1, 12, 2) / 9, f32(1, 12, 3) / 9, None, np.array([3, 1], np.int32)], {"hidden_size": 3}),
    "attention": ("Attention", [f32(1, 2, 3, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(3, 5)], {"opset": 23, "is_causal": 1}),
    "attention with lengths": (
        "Attention", [f32(1, 2, 3, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4), None, None, None, i64(5)], {"opset": 24},
    ),
    "rotation": ("RotaryEmbedding", [f32(1, 2, 3, 4), f32(9, 2), f32(9, 2), i64([0, 1, 8])], {"opset": 23}),
}  # fmt: skip


def check(worker: Worker, model: ModelProto, inputs: dict[str, Any], kinds: str = "if") -> None:
    """An element of each input of integers and of floats, or of one of these kinds, is bad; all else is at random."""
    data = model.SerializeToString()
    outcome = worker.attempt(data, inputs)
    assert outcome.kind in ("ran", "doubted"), outcome
    tried = {kind: {"i": BAD_INTEGERS, "f": BAD_FLOATS}[kind] for kind in kinds}
    for seed in range(0, len(BAD_INTEGERS), STEP):
        given = dict(inputs)
        for name, array in inputs.items():
            if isinstance(array, np.ndarray) and array.dtype.kind in tried and array.size:
                number = tried[array.dtype.kind][seed % len(tried[array.dtype.kind])]
                info = np.iinfo(array.dtype) if array.dtype.kind == "i" else None
                given[name] = np.array(array)
                given[name].reshape(-1)[seed % array.size] = number if info is None else min(max(int(number), info.min), info.max)
        outcome = worker.attempt(data, given, seed=seed)
        assert outcome.is_fine, (seed, outcome)


@pytest.mark.parametrize("name", NODES)
def test_indices(worker: Worker, name: str):
    op, arrays, attributes = NODES[name]
    fields = dict(attributes)
    opset = fields.pop("opset", 24 if op == "TensorScatter" else 22)
    check(worker, *node_model(op, arrays, 1, opset=opset, **fields))


@pytest.mark.parametrize("name", ["EmbedLayerNormalization", "RotaryEmbedding", "GroupQueryAttention", "Attention", "QAttention"])
def test_indices_of_microsoft(worker: Worker, name: str):
    """Their floats are no coordinates; where products of large ones overflow, a fused multiply-add has another answer."""
    check(worker, *microsoft_models()[name], kinds="i")


@pytest.fixture(scope="session")
def cases(pytestconfig: pytest.Config) -> list[Case]:
    assert pytestconfig.cache is not None
    return one_per_op([c for c in all_cases(pytestconfig.cache.mkdir("onnx")) if c.data])


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
def test_one_model_of_every_op(worker: Worker, cases: list[Case], part: int):
    """With the inputs of its case, random, odd and extreme ones."""
    for seed, case in enumerate(cases[part::8]):
        outcome = worker.attempt(case.model, inputs_of(case), seed=seed)
        assert outcome.is_fine, (case.name, outcome)


# --- the guards themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "place"), [(True, 4), (False, -1)])
def test_a_guard_stops_the_program(behind: bool, place: int):
    code = (
        "import ctypes, numpy as np; from tests.fuzz.guarded import Guards\n"
        f"array = Guards({behind}).copy(np.zeros(4, np.float32))\n"
        f"ctypes.c_float.from_address(array.ctypes.data + 4 * {place}).value"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -11


@pytest.mark.parametrize("place", [-1, 12])
def test_bytes_beside_an_array_are_looked_at(place: int):
    """Where alignment, or the side that the guard is not on, leaves room."""
    guards = Guards()
    array = guards.empty((12,), np.uint8, 64)
    guards.check()
    ctypes.c_uint8.from_address(array.ctypes.data + place).value = 1
    with pytest.raises(TouchedOutside):
        guards.check()
