"""Five models with free sizes, of the kinds that exporters write: text, images and audio.

Each is a ModelProto with the dims it leaves open and the extents that it is meant for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.frontends.onnx.building import Array, model_of

node = helper.make_node
declared = helper.make_tensor_value_info


@dataclass(frozen=True)
class Dynamic:
    """A model, the ranges (low, high, step) of its dims, and inputs for values of them."""

    model: onnx.ModelProto
    dims: Mapping[str, tuple[int, int, int]]
    inputs: Callable[[np.random.Generator, Mapping[str, int]], dict[str, Array]]

    def drawn(self, generator: np.random.Generator) -> dict[str, int]:
        return {
            name: low + step * int(generator.integers(0, (high - low) // step + 1))
            for name, (low, high, step) in self.dims.items()
        }

    def largest(self) -> dict[str, int]:
        return {name: high for name, (_, high, _) in self.dims.items()}


def weights(generator: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, Array]:
    return {
        name: (generator.standard_normal(shape) / max(1, shape[-1]) ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def transformer() -> Dynamic:
    """Tokens and their positions, masked attention of two heads, a norm, and the mean over the sequence."""
    given = weights(
        np.random.default_rng(1), words=(50, 16), places=(40, 16), q=(16, 16), k=(16, 16), v=(16, 16), o=(16, 8)
    )
    given |= {"scale": np.ones(16, np.float32), "shift": np.zeros(16, np.float32), "zero": integers(0), "one": integers(1)}
    given |= {"heads": integers(0, 0, 2, 8), "flat": integers(0, 0, 16), "root": np.float32(8) ** np.float32(0.5)}
    given |= {"axes": integers(1, 2), "last": integers(-1), "huge": np.array(-1e9, np.float32), "unit": np.array(1, np.float32)}
    given |= {"middle": integers(1)}
    nodes = [
        node("Gather", ["words", "ids"], ["word"]),
        node("Shape", ["ids"], ["length"], start=1, end=2),
        node("Slice", ["places", "zero", "length"], ["place"]),
        node("Add", ["word", "place"], ["x"]),
    ]
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", name], [f"{name}_all"]),
            node("Reshape", [f"{name}_all", "heads"], [f"{name}_heads"]),
            node("Transpose", [f"{name}_heads"], [f"{name}_rows"], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q_rows", "k_rows"], ["raw"]),
        node("Div", ["raw", "root"], ["scores"]),
        node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        node("Sub", ["unit", "kept"], ["lost"]),
        node("Mul", ["lost", "huge"], ["penalty"]),
        node("Unsqueeze", ["penalty", "axes"], ["penalties"]),
        node("Add", ["scores", "penalties"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v_rows"], ["mixed"]),
        node("Transpose", ["mixed"], ["rows"], perm=[0, 2, 1, 3]),
        node("Reshape", ["rows", "flat"], ["joined"]),
        node("Add", ["joined", "x"], ["residual"]),
        node("LayerNormalization", ["residual", "scale", "shift"], ["normed"]),
        node("MatMul", ["normed", "o"], ["out"]),
        node("ReduceMean", ["out", "middle"], ["y"], keepdims=0),
    ]

    def inputs(generator: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Array]:
        shape = dims["batch"], dims["sequence"]
        mask = generator.integers(0, 2, shape)
        mask[:, 0] = 1
        return {"ids": generator.integers(0, 50, shape), "mask": mask}

    shape = ["batch", "sequence"]
    model = model_of(
        nodes, [declared("ids", TensorProto.INT64, shape), declared("mask", TensorProto.INT64, shape)], ["y"], given
    )
    return Dynamic(model, {"batch": (1, 4, 1), "sequence": (1, 40, 1)}, inputs)


def recurrent() -> Dynamic:
    """An LSTM in both directions over sequences, with the products and the transposition that exporters put around it."""
    generator = np.random.default_rng(2)
    given = weights(generator, w=(2, 32, 6), r=(2, 32, 8), b=(2, 64), out=(16, 5))
    given |= {"shape": integers(0, 0, -1)}
    nodes = [
        node("Transpose", ["x"], ["times"], perm=[1, 0, 2]),
        node("LSTM", ["times", "w", "r", "b"], ["ys"], hidden_size=8, direction="bidirectional"),
        node("Transpose", ["ys"], ["rows"], perm=[2, 0, 1, 3]),
        node("Reshape", ["rows", "shape"], ["joined"]),
        node("MatMul", ["joined", "out"], ["scores"]),
        node("LogSoftmax", ["scores"], ["y"], axis=-1),
    ]

    def inputs(generator: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Array]:
        return {"x": generator.standard_normal((dims["batch"], dims["time"], 6)).astype(np.float32)}

    model = model_of(nodes, [declared("x", TensorProto.FLOAT, ["batch", "time", 6])], ["y"], given)
    return Dynamic(model, {"batch": (1, 3, 1), "time": (1, 30, 1)}, inputs)


def pyramid() -> Dynamic:
    """Convolutions down and up again: two resolutions meet, so sizes are multiples of four."""
    given = weights(np.random.default_rng(3), a=(8, 3, 3, 3), b=(12, 8, 3, 3), c=(12, 12, 3, 3), d=(4, 20, 1, 1))
    given |= {"scales": np.array([1, 1, 2, 2], np.float32)}
    down: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "a"], ["a_out"], **down),
        node("Relu", ["a_out"], ["half"]),
        node("Conv", ["half", "b"], ["b_out"], **down),
        node("Sigmoid", ["b_out"], ["gate"]),
        node("Mul", ["b_out", "gate"], ["quarter"]),
        node("Conv", ["quarter", "c"], ["c_out"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Resize", ["c_out", "", "scales"], ["up"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Concat", ["up", "half"], ["both"], axis=1),
        node("Conv", ["both", "d"], ["y"], kernel_shape=[1, 1]),
    ]

    def inputs(generator: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Array]:
        shape = dims["batch"], 3, dims["height"], dims["width"]
        return {"x": generator.standard_normal(shape).astype(np.float32)}

    model = model_of(nodes, [declared("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])], ["y"], given)
    return Dynamic(model, {"batch": (1, 2, 1), "height": (4, 48, 4), "width": (4, 48, 4)}, inputs)


def classifier() -> Dynamic:
    """An image of any size to classes: pools, global mean, flatten by shape arithmetic, bilinear input scaling."""
    given = weights(np.random.default_rng(4), a=(8, 3, 3, 3), b=(16, 8, 3, 3), out=(16, 10))
    given |= {"minus": integers(-1), "size": integers(20, 20)}
    nodes = [
        node("Shape", ["x"], ["outer"], start=0, end=2),
        node("Concat", ["outer", "size"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["scaled"], mode="linear"),
        node("Conv", ["scaled", "a"], ["a_out"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("MaxPool", ["a_out"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pooled", "b"], ["b_out"], kernel_shape=[3, 3], strides=[2, 2]),
        node("HardSwish", ["b_out"], ["active"]),
        node("GlobalAveragePool", ["active"], ["mean"]),
        node("Shape", ["mean"], ["batch_dim"], start=0, end=1),
        node("Concat", ["batch_dim", "minus"], ["target"], axis=0),
        node("Reshape", ["mean", "target"], ["rows"]),
        node("MatMul", ["rows", "out"], ["scores"]),
        node("Softmax", ["scores"], ["y"], axis=-1),
    ]

    def inputs(generator: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Array]:
        shape = dims["batch"], 3, dims["height"], dims["width"]
        return {"x": generator.standard_normal(shape).astype(np.float32)}

    model = model_of(nodes, [declared("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])], ["y"], given)
    return Dynamic(model, {"batch": (1, 3, 1), "height": (5, 60, 1), "width": (5, 60, 1)}, inputs)


def spectrum() -> Dynamic:
    """Sound to log filter banks and a convolution over time: frames as many as the sound has."""
    generator = np.random.default_rng(5)
    given = weights(generator, bank=(33, 12), kernel=(6, 12, 5))
    given["bank"] = np.abs(given["bank"])
    given |= {"window": np.hanning(64).astype(np.float32), "step": np.array(16, np.int64), "pads": integers(0, 32, 0, 32)}
    given |= {"floor": np.array(1e-5, np.float32), "last": integers(-1)}
    nodes = [
        node("Pad", ["sound", "pads"], ["padded"], mode="reflect"),
        node("Unsqueeze", ["padded", "last"], ["signal"]),
        node("STFT", ["signal", "step", "window"], ["waves"]),
        node("ReduceSumSquare", ["waves", "last"], ["power"], keepdims=0),
        node("MatMul", ["power", "bank"], ["energy"]),
        node("Max", ["energy", "floor"], ["bounded"]),
        node("Log", ["bounded"], ["logs"]),
        node("Transpose", ["logs"], ["channels"], perm=[0, 2, 1]),
        node("Conv", ["channels", "kernel"], ["features"], kernel_shape=[5], pads=[2, 2]),
        node("Relu", ["features"], ["y"]),
    ]

    def inputs(generator: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Array]:
        return {"sound": generator.standard_normal((dims["batch"], dims["samples"])).astype(np.float32)}

    model = model_of(nodes, [declared("sound", TensorProto.FLOAT, ["batch", "samples"])], ["y"], given)
    return Dynamic(model, {"batch": (1, 2, 1), "samples": (64, 800, 1)}, inputs)


MODELS: dict[str, Callable[[], Dynamic]] = {
    "transformer": transformer,
    "recurrent": recurrent,
    "pyramid": pyramid,
    "classifier": classifier,
    "spectrum": spectrum,
}
