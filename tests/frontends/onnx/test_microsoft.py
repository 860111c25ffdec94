"""com.microsoft ops against ONNX Runtime."""

import numpy as np
import pytest

import ingot
from tests.frontends.onnx.building import check_like_onnxruntime, node_model

DOMAIN = "com.microsoft"
rng = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def codes(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(low, high + 1, shape).astype(dtype)


def scale(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


CASES = {
    "Gelu": ([floats(2, 5)], 1, {}),
    "BiasGelu": ([floats(2, 5), floats(5)], 1, {}),
    "FastGelu": ([floats(2, 5), floats(5)], 1, {}),
    "QuickGelu": ([floats(2, 5)], 1, {"alpha": 1.5}),
    "FusedConv": ([floats(1, 3, 6, 6), floats(4, 3, 3, 3), floats(4)], 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    "FusedMatMul": ([floats(3, 4, 2), floats(3, 4, 5)], 1, {"transA": 1, "alpha": 0.5}),
    "FusedGemm": ([floats(3, 4), floats(4, 5), floats(5)], 1, {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    "SkipLayerNormalization": ([floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)], 1, {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization": ([floats(2, 3, 8), floats(2, 3, 8), floats(8)], 1, {"epsilon": 1e-5}),
    "MultiHeadAttention": ([floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 8), floats(24)], 1, {"num_heads": 2}),
    "Attention": ([floats(2, 3, 8), floats(8, 24), floats(24), np.array([3, 2], np.int32)], 1, {"num_heads": 2}),
    "QLinearAdd": (
        [codes(2, 5), scale(0.02), np.uint8(120), codes(2, 5), scale(0.03), np.uint8(130), scale(0.05), np.uint8(128)], 1, {},
    ),
    "QLinearMul": (
        [codes(2, 5), scale(0.02), np.uint8(120), codes(2, 5), scale(0.03), np.uint8(130), scale(0.09), np.uint8(128)], 1, {},
    ),
    "QLinearSigmoid": ([codes(2, 5), scale(0.05), np.uint8(120), scale(1 / 256), np.uint8(0)], 1, {}),
    "QLinearLeakyRelu": ([codes(2, 5), scale(0.05), np.uint8(120), scale(0.05), np.uint8(100)], 1, {"alpha": 0.1}),
    "QLinearGlobalAveragePool": ([codes(1, 3, 4, 4), scale(0.05), np.uint8(120), scale(0.04), np.uint8(100)], 1, {}),
    "DynamicQuantizeMatMul": ([floats(3, 8), codes(8, 4), np.full(4, 0.02, np.float32), np.full(4, 128, np.uint8)], 1, {}),
    "MatMulIntegerToFloat": (
        [codes(3, 8), codes(8, 4), scale(0.02), scale(0.03), np.uint8(120), np.uint8(128), floats(4)], 1, {},
    ),
}  # fmt: skip

# rounding to a code may go either way where the value is half between two
TOLERANCES = {name: (0.0, 1.01) for name in CASES if name.startswith("QLinear")} | {"DynamicQuantizeMatMul": (1e-3, 1e-3)}


@pytest.mark.parametrize("name", CASES)
def test_like_onnxruntime(name):
    arrays, outputs, attributes = CASES[name]
    arrays = [np.asarray(a) for a in arrays]
    model, inputs = node_model(name, arrays, outputs, DOMAIN, constants=range(1, len(arrays)), **attributes)
    rtol, atol = TOLERANCES.get(name, (1e-4, 1e-5))
    check_like_onnxruntime(model, inputs, rtol, atol)


@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_four_bits(zeros):
    rows, columns, block = 6, 32, 16
    packed = codes(rows, columns // block, block // 2)
    arrays = [floats(3, columns), packed, np.abs(floats(rows * columns // block)) * 0.1]
    if zeros:
        arrays.append(codes(rows * 1))
    model, inputs = node_model(
        "MatMulNBits", arrays, 1, DOMAIN, constants=range(1, len(arrays)), K=columns, N=rows, bits=4, block_size=block
    )
    check_like_onnxruntime(model, inputs, 1e-3, 1e-3)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 20])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 16)])
def test_packed_weights_stay_packed(zeros, tokens, bits, block):
    """A row, a few rows and many: the words are all that memory holds, and what they stand for is exact."""
    rows, columns = 200, 256
    per = 8 // bits
    packed = codes(rows, columns // block, block // per)
    scales = np.abs(floats(rows, columns // block)) * np.float32(0.1) + np.float32(0.01)
    centre = codes(rows, columns // block // per) if zeros else None
    arrays = [floats(tokens, columns), packed, scales, *([centre] if zeros else [])]
    fields = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    model, inputs = node_model("MatMulNBits", arrays, 1, DOMAIN, constants=range(1, len(arrays)), **fields)
    executable = ingot.compile(ingot.load_onnx(model), cache=False)

    def unpacked(data, count):
        shifts = np.arange(per) * bits
        return ((data[..., None] >> shifts) & ((1 << bits) - 1)).reshape(rows, -1)[:, :count].astype(np.float64)

    middle = unpacked(centre, columns // block) if zeros else np.full(scales.shape, 1 << (bits - 1))
    weight = (unpacked(packed, columns).reshape(rows, -1, block) - middle[:, :, None]) * scales[:, :, None]
    expected = arrays[0].astype(np.float64) @ weight.reshape(rows, columns).T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(executable(**inputs)) / scale, expected / scale, atol=1e-5)
    kept = sum(array.nbytes for array in executable.program.constants.values())
    assert kept <= rows * columns * bits // 8 + (2 if zeros else 1) * scales.nbytes


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    angles = np.outer(np.arange(10), 1.0 / 100 ** (np.arange(4) / 4)).astype(np.float32)
    arrays = [floats(2, 3, 16), np.array([[0, 1, 2], [4, 5, 6]]), np.cos(angles), np.sin(angles)]
    model, inputs = node_model("RotaryEmbedding", arrays, 1, DOMAIN, interleaved=interleaved)
    check_like_onnxruntime(model, inputs)


def test_embedding_and_normalisation():
    ids, segments = rng.integers(0, 9, (2, 4)).astype(np.int32), rng.integers(0, 2, (2, 4)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    arrays = [ids, segments, floats(9, 8), floats(6, 8), floats(2, 8), floats(8), floats(8), mask]
    model, inputs = node_model("EmbedLayerNormalization", arrays, 2, DOMAIN, epsilon=1e-5)
    check_like_onnxruntime(model, inputs)


def test_quantised_lstm_is_near_the_runtimes():
    """The runtime quantises inputs and states too; the answers differ by what that rounds away. Codes of 7 bits, because
    on machines without VNNI the runtime adds pairs of products in 16 bits, which saturate with larger ones."""
    hidden, size = 4, 3
    weight, recurrence = (codes(1, rows, 4 * hidden, dtype=np.int8) // 2 for rows in (size, hidden))
    arrays = [
        floats(5, 2, size), weight, recurrence,
        floats(1, 8 * hidden) * 0.1, None, None, None, None, np.array([0.01], np.float32), np.array([0], np.int8),
        np.array([0.01], np.float32), np.array([0], np.int8),
    ]  # fmt: skip
    constants = [n for n in range(1, len(arrays)) if arrays[n] is not None]
    model, inputs = node_model("DynamicQuantizeLSTM", arrays, 3, DOMAIN, constants=constants, hidden_size=hidden)
    check_like_onnxruntime(model, inputs, 0.0, 0.05)
