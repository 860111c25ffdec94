"""Patterns as torch's exporters and the tools after them write them: each is one program, and what it is made of is looked at."""

import numpy as np
from onnx import helper

import ingot
from ingot.frontends.dsl.functions import trace
from tests.frontends.onnx.building import info, model_of, run, run_onnxruntime


def ops_of(model):
    module = ingot.load_onnx(model)
    return [v.op.name for v in trace(module, module.input_types).graph.body]


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def test_third_power_is_two_products():
    """GELU by its tanh has Pow(x, 3). Products are off by 1.5 units in the last place at most, and exact where pow is."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1e-30, 5.0, -7.0]
    x = np.concatenate([special, np.linspace(-3, 3, 100)]).astype(np.float32)
    model = model_of([node("Pow", "x three", "y")], [info("x", x, ["n"])], ["y"], {"three": np.asarray(3, np.float32)})
    assert "pow" not in ops_of(model)
    (found,) = run(model, {"x": x})
    with np.errstate(over="ignore"):
        exact = (x.astype(np.float64) ** 3).astype(np.float32)
    np.testing.assert_array_max_ulp(found[np.isfinite(exact)], exact[np.isfinite(exact)], 2)
    np.testing.assert_array_equal(found[: len(special)], exact[: len(special)])
    np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])


def test_positions_after_a_memory():
    """A decoder adds embeddings of one new word to positions total - past, which may be none for all the file says: the
    reshapes to heads behind it divide by that difference."""
    words, places = np.zeros((2, 1, 8), np.float32), np.zeros((2, 5), np.int64)
    memory = np.zeros((2, 4, 3), np.float32)
    nodes = [
        node("Shape", "memory", "shape"),
        node("Gather", "shape two", "past", axis=0),
        node("Unsqueeze", "past zero", "start"),
        node("Slice", "places start end one", "rest"),
        node("Gather", "table rest", "embedded"),
        node("Add", "words embedded", "sum"),
        node("Shape", "sum", "sizes"),
        node("Gather", "sizes only_first", "batch"),
        node("Gather", "sizes second", "length"),
        node("Concat", "batch length minus four", "split", axis=0),
        node("Reshape", "sum split", "heads"),
        node("Softmax", "heads", "y"),
    ]
    weights = {
        "table": np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8), "two": np.asarray(2), "zero": np.array([0]), "end": np.array([99]),
        "one": np.array([1]), "only_first": np.array([0]), "second": np.array([1]), "minus": np.array([-1]), "four": np.array([4]),
    }  # fmt: skip
    inputs = [
        info("words", words, ["batch", 1, 8]), info("places", places, ["batch", "total"]),
        info("memory", memory, ["batch", 4, "past"]),
    ]  # fmt: skip
    model = model_of(nodes, inputs, ["y"], weights)
    exe = ingot.compile(ingot.load_onnx(model))
    assert not hasattr(exe, "host_nodes")
    for past in (1, 3, 4):
        given = {"words": words, "places": np.arange(10).reshape(2, 5) % 6, "memory": np.zeros((2, 4, past), np.float32)}
        sums = weights["table"][given["places"][:, past:]].reshape(2, 5 - past, 2, 4)
        want = np.exp(sums) / np.exp(sums).sum(-1, keepdims=True)
        np.testing.assert_allclose(exe(**given), want, rtol=1e-6)


def test_images_divided_by_their_windows():
    """Swin repeats its mask for every image: the number of windows of all images divided by that of one, which is not 0 for
    images that are high and wide enough. Others are refused or have programs of their own."""
    x = np.zeros((1, 16, 16), np.float32)
    nodes = [
        node("Unsqueeze", "x one", "image"),
        node("MaxPool", "image", "windows", kernel_shape=[4, 4], strides=[4, 4]),
        node("Reshape", "windows flat", "all"),
        node("Shape", "all", "count"),
        node("Shape", "windows", "sizes"),
        node("Gather", "sizes two", "rows"),
        node("Gather", "sizes three", "columns"),
        node("Mul", "rows columns", "each"),
        node("Div", "count each", "images"),
        node("Concat", "images minus", "shape", axis=0),
        node("Equal", "shape minus", "is_free"),
        node("Where", "is_free ones shape", "repeats"),
        node("Expand", "scale repeats", "scales"),
        node("MatMul", "scales scale", "factors"),
        node("Add", "factors scale", "y"),
    ]
    weights = {
        "flat": np.array([-1]), "two": np.array([2]), "three": np.array([3]), "minus": np.array([-1]), "ones": np.array([1, 1]),
        "scale": np.full((1, 1), 2, np.float32), "one": np.array([1]),
    }  # fmt: skip
    model = model_of(nodes, [info("x", x, ["batch", "height", "width"])], ["y"], weights)
    exe = ingot.compile(ingot.load_onnx(model))
    assert not hasattr(exe, "host_nodes")
    for batch, height, width in ((1, 4, 4), (3, 9, 17)):
        found = exe(np.zeros((batch, height, width), np.float32))
        np.testing.assert_array_equal(found, np.full((batch, 1), 6))


def test_padding_to_a_whole_number_of_strides():
    """Encodec pads by ceil((length - kernel + padding) / stride + 1), reckoned in floats."""
    stride, kernel, padding = 5, 10, 5
    x = np.zeros((1, 2, 40), np.float32)
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape two", "length"),
        node("Sub", "length kernel", "less"),
        node("Add", "less padding", "more"),
        node("Cast", "more", "float", to=1),
        node("Div", "float stride_float", "quotient"),
        node("Add", "quotient one_float", "frames"),
        node("Ceil", "frames", "ceiling"),
        node("Cast", "ceiling", "whole", to=7),
        node("Sub", "whole one", "steps"),
        node("Mul", "steps stride", "reach"),
        node("Sub", "reach less", "missing"),
        node("Unsqueeze", "missing zero", "right"),
        node("Concat", "zeros right", "pads", axis=0),
        node("Pad", "x pads", "padded"),
        node("Conv", "padded w", "y", strides=[stride]),
    ]
    weights = {
        "two": np.asarray(2), "kernel": np.int64(kernel), "padding": np.int64(padding), "stride": np.int64(stride),
        "stride_float": np.float32(stride), "one_float": np.float32(1), "one": np.int64(1), "zero": np.array([0]),
        "zeros": np.zeros(5, np.int64), "w": np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 2, 10),
    }  # fmt: skip
    model = model_of(nodes, [info("x", x, ["batch", 2, "length"])], ["y"], weights)
    exe = ingot.compile(ingot.load_onnx(model))
    assert not hasattr(exe, "host_nodes")
    for length in (10, 11, 14, 15, 43):
        x = np.linspace(0, 1, 2 * length, dtype=np.float32).reshape(1, 2, length)
        np.testing.assert_allclose(exe(x), run_onnxruntime(model, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_frames_of_a_waveform_are_counted():
    """torch.export counts the frames of strided convolutions as sizes: (samples // 80 - 3) / 2 + 1, which ONNX rounds
    towards 0. A program for recordings that are longer than the windows needs no stage; shorter ones have their own."""
    x = np.zeros((1, 400), np.float32)
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape one", "samples"),
        node("Div", "samples eighty", "blocks"),
        node("Sub", "blocks three", "less"),
        node("Div", "less two", "half"),
        node("Add", "half one", "frames"),
        node("Range", "zero frames one", "places"),
        node("Cast", "places", "y", to=1),
    ]
    numbers = {"zero": 0, "one": 1, "two": 2, "three": 3, "eighty": 80}
    model = model_of(nodes, [info("x", x, ["batch", "samples"])], ["y"], {n: np.asarray(v) for n, v in numbers.items()})
    exe = ingot.compile(ingot.load_onnx(model))
    assert not hasattr(exe, "host_nodes")
    for samples in (100, 240, 400, 16000):
        given = {"x": np.zeros((1, samples), np.float32)}
        np.testing.assert_array_equal(exe(**given), np.arange(int((samples // 80 - 3) / 2) + 1))
