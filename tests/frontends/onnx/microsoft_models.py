"""Small models of com.microsoft ops, one node each: the tests compare some with ONNX Runtime, the fuzzer breaks them all."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from tests.frontends.onnx.building import node_model

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

KNOWN = {"MatMulNBits": [1]}  # inputs whose values the op takes from the file


def _others() -> dict[str, tuple[list[Any], int, dict[str, Any]]]:
    """Models that no test compares; their numbers come after those of the tests."""
    angles = np.outer(np.arange(10), 1.0 / 100 ** (np.arange(4) / 4)).astype(np.float32)
    half = (scale(0.02), np.uint8(120))
    result = (scale(0.05), np.uint8(128))

    return {
        "BiasAdd": ([floats(2, 3, 8), floats(8), floats(2, 3, 8)], 1, {}),
        "BiasSplitGelu": ([floats(2, 3, 8), floats(8)], 1, {}),
        "CDist": ([floats(3, 4), floats(5, 4)], 1, {"metric": "euclidean"}),
        "QuantizeLinear": ([floats(2, 5), scale(0.05), np.uint8(120)], 1, {}),
        "DequantizeLinear": ([codes(2, 5), scale(0.05), np.uint8(120)], 1, {}),
        "DynamicQuantizeLSTM": (
            [floats(5, 2, 3), codes(1, 3, 16, dtype=np.int8), codes(1, 4, 16, dtype=np.int8), floats(1, 32), None, None, None, None,
             np.array([0.01], np.float32), np.array([0], np.int8), np.array([0.01], np.float32), np.array([0], np.int8)],
            3, {"hidden_size": 4},
        ),
        "EmbedLayerNormalization": (
            [np.array([[1, 8, 0, 3]], np.int32), np.array([[0, 1, 1, 0]], np.int32), floats(9, 8), floats(6, 8), floats(2, 8), floats(8),
             floats(8), np.array([[1, 1, 1, 0]], np.int32)], 2, {"epsilon": 1e-5},
        ),
        "GroupQueryAttention": (
            [floats(1, 3, 16), floats(1, 3, 8), floats(1, 3, 8), floats(1, 2, 2, 4), floats(1, 2, 2, 4), np.array([4], np.int32),
             np.array(5, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2},
        ),
        "Inverse": ([floats(2, 3, 3)], 1, {}),
        "MatMulNBits": ([floats(3, 32), codes(6, 2, 8), np.abs(floats(12))], 1, {"K": 32, "N": 6, "bits": 4, "block_size": 16}),
        "NhwcMaxPool": ([codes(1, 5, 5, 3, dtype=np.int8)], 1, {"kernel_shape": [2, 2]}),
        "QAttention": (
            [codes(1, 3, 8), codes(8, 24), floats(24), scale(0.02), scale(0.03), np.array([3], np.int32), np.uint8(120), np.uint8(128)], 1,
            {"num_heads": 2},
        ),
        "QGemm": ([codes(3, 4), *half, codes(4, 5), *half, codes(5, dtype=np.int32), *result], 1, {"alpha": 0.5}),
        "QLinearAveragePool": ([codes(1, 3, 4, 4), *half, *result], 1, {"kernel_shape": [2, 2]}),
        "QLinearConcat": ([*result, codes(2, 5), *half, codes(3, 5), *half], 1, {"axis": 0}),
        "QLinearReduceMean": ([codes(2, 5), *half, *result], 1, {"axes": [1], "keepdims": 0}),
        "QLinearSoftmax": ([codes(2, 5), *half, *result], 1, {"axis": 1, "opset": 13}),
        "QLinearWhere": ([np.array([True, False]), codes(3, 2), *half, codes(3, 2), *half, *result], 1, {}),
        "RotaryEmbedding": ([floats(1, 3, 16), np.array([[0, 1, 9]]), np.cos(angles), np.sin(angles)], 1, {"interleaved": 1}),
        "SimplifiedLayerNormalization": ([floats(2, 3, 8), floats(8)], 1, {"epsilon": 1e-5}),
        "TransposeMatMul": ([floats(3, 4, 2), floats(3, 4, 5)], 1, {"transA": 1}),
    }  # fmt: skip


def microsoft_models() -> dict[str, tuple[ModelProto, dict[str, np.ndarray]]]:
    """A model of every op, and inputs for it."""
    made = {}
    for name, (arrays, outputs, attributes) in {**CASES, **_others()}.items():
        given = [None if a is None else np.asarray(a) for a in arrays]
        fields = {f"{n}_" if n == "opset" else n: v for n, v in attributes.items()}
        model, inputs = node_model(name, given, outputs, DOMAIN, constants=KNOWN.get(name, ()), **fields)
        for attribute in model.graph.node[0].attribute:
            attribute.name = attribute.name.removesuffix("_")
        made[name] = model, inputs
    return made
