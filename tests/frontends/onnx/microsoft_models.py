"""Small models of com.microsoft ops, one node each: the tests compare some with ONNX Runtime, the fuzzer breaks them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.frontends.onnx.building import check_same, node_model, opened, run, run_onnxruntime

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

KNOWN = {
    "MatMulNBits": [1], "MatMulBnb4": [1], "GatherBlockQuantized": [0], "QMoE": [2, 5], "ExpandDims": [1], "Pad": [1, 2], "Range": [0, 1, 2],
    "Trilu": [1], "ConvTransposeWithDynamicPads": [2], "CropAndResize": [3], "RelativePositionBias": [1, 2],
}  # inputs whose values the op takes from the file  # fmt: skip


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


def _basics() -> dict[str, tuple[list[Any], int, dict[str, Any]]]:
    return {
        "BiasSoftmax": ([floats(2, 3, 4), floats(2, 1, 4)], 1, {"axis": 2, "is_inner_broadcast": 1}),
        "ComplexMul": ([floats(3, 4, 2), floats(4, 2)], 1, {}),
        "ComplexMulConj": ([floats(3, 4, 2), floats(4, 2)], 1, {}),
        "ExpandDims": ([floats(2, 3), np.array(-1, np.int32)], 1, {}),
        "GatherND": ([floats(3, 4, 5), np.array([[0, 1], [2, 3]])], 1, {}),
        "GemmFastGelu": ([floats(3, 4), floats(4, 5), floats(5)], 1, {}),
        "Irfft": ([floats(2, 5, 2)], 1, {"signal_ndim": 1, "onesided": 1, "normalized": 0}),
        "MurmurHash3": ([codes(5, dtype=np.int32)], 1, {"seed": 7, "positive": 1}),
        "Pad": ([floats(2, 3), np.array([1, 0, 0, 2]), np.array(0.5, np.float32)], 1, {"mode": "constant"}),
        "Range": ([np.array(1), np.array(9), np.array(2)], 1, {}),
        "Rfft": ([floats(2, 8)], 1, {"signal_ndim": 1, "onesided": 1, "normalized": 0}),
        "Trilu": ([floats(3, 4, 5), np.array(1)], 1, {"upper": 0}),
        "UnfoldTensor": ([floats(3, 7)], 1, {"dim": 1, "size": 3, "step": 2}),
        "Unique": ([np.array([2.0, 1.0, 2.0], np.float32)], 3, {}),
    }  # fmt: skip


def _images() -> dict[str, tuple[list[Any], int, dict[str, Any]]]:
    code = (np.array(0.02, np.float32), np.uint8(120))
    return {
        "ConvTransposeWithDynamicPads": ([floats(1, 3, 4, 4), floats(3, 2, 3, 3), np.array([1, 0, 0, 1]), floats(2)], 1, {"strides": [2, 2]}),
        "CropAndResize": (
            [floats(2, 3, 5, 6), np.abs(floats(4, 4)), np.array([0, 1, 1, 0], np.int32), np.array([3, 2], np.int32)], 1,
            {"mode": "bilinear", "extrapolation_value": 0.5},
        ),
        "GridSample": ([floats(1, 2, 4, 5), floats(1, 3, 3, 2)], 1, {"mode": "bicubic", "padding_mode": "border", "align_corners": 1}),
        "GroupNorm": ([floats(2, 3, 3, 4), floats(4), floats(4)], 1, {"groups": 2, "activation": 1, "channels_last": 1, "epsilon": 1e-5}),
        "NhwcConv": ([floats(1, 5, 5, 3), floats(2, 3, 3, 3), floats(2)], 1, {"pads": [1, 1, 1, 1]}),
        "NhwcFusedConv": ([floats(1, 5, 5, 3), floats(2, 3, 3, 3), floats(2), floats(1, 3, 3, 2)], 1, {"activation": "Relu"}),
        "QLinearConv": (
            [codes(1, 4, 4, 3), *code, codes(2, 3, 3, 3), *code, scale(0.3), np.uint8(128), codes(2, dtype=np.int32)], 1, {"channels_last": 1},
        ),
        "SkipGroupNorm": (
            [floats(2, 3, 3, 4), floats(4), floats(4), floats(2, 4), floats(4)], 2, {"groups": 2, "activation": 0, "channels_last": 1},
        ),
    }  # fmt: skip


def _packed() -> dict[str, tuple[list[Any], int, dict[str, Any]]]:
    small, zero = scale(0.02), np.uint8(120)
    return {
        "GatherBlockQuantized": ([codes(5, 16), np.array([[0, 4]]), np.abs(floats(5, 2)), codes(5, 1)], 1,
                                 {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}),
        "MatMulBnb4": ([floats(3, 32), codes(96), np.abs(floats(12))], 1, {"K": 32, "N": 6, "block_size": 16, "quant_type": 1, "transB": 1}),
        "MoE": (
            [floats(3, 8), floats(3, 4), floats(4, 12, 8), floats(4, 12), floats(4, 8, 6), floats(4, 8)], 1,
            {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 7.0, "normalize_routing_weights": 1, "use_sparse_mixer": 0},
        ),
        "QEmbedLayerNormalization": (
            [np.array([[1, 8, 0]], np.int32), np.array([[0, 1, 1]], np.int32), codes(9, 8), codes(6, 8), codes(2, 8), codes(8), codes(8),
             np.array([[1, 1, 0]], np.int32), *[small] * 5, *[zero] * 5], 2, {"epsilon": 1e-5},
        ),
        "QMoE": (
            [floats(3, 16), floats(3, 4), codes(4, 32, 8), np.abs(floats(4, 32)), None, codes(4, 16, 16), np.abs(floats(4, 16))], 1,
            {"k": 2, "activation_type": "silu", "expert_weight_bits": 4, "normalize_routing_weights": 1},
        ),
    }  # fmt: skip


def _sequences() -> dict[str, tuple[list[Any], int, dict[str, Any]]]:
    angles = np.outer(np.arange(10), 1.0 / 100 ** (np.arange(4) / 4)).astype(np.float32)
    offsets, ends = np.array([[0, 1, 3], [4, 5, 2]], np.int32), np.array([0, 2, 5], np.int32)
    return {
        "BranchwiseRMSNorm": ([floats(2, 3, 8), floats(8)], 1, {"num_branches": 2, "epsilon": 1e-6}),
        "CausalConvWithState": (
            [floats(2, 3, 5), floats(3, 1, 4), floats(3), floats(2, 3, 6)], 2,
            {"activation": "silu", "dilation": 2, "ndim": 1, "channels_last": 0, "state_window": 0},
        ),
        "DecoderMaskedMultiHeadAttention": (
            [floats(2, 1, 8), floats(2, 1, 8), floats(2, 1, 8), np.ones((2, 4), np.int32), floats(1, 2, 1, 4), floats(2, 2, 6, 4), floats(2, 2, 6, 4),
             np.array([3], np.int32), None, None, floats(24)], 3, {"num_heads": 2, "past_present_share_buffer": 1},
        ),
        "GatedAdd": ([floats(2, 3, 4), floats(2, 3, 4), floats(2, 3, 1)], 1, {}),
        "GatedRMSNorm": ([floats(2, 3, 8), floats(4), floats(2, 3, 8)], 1, {"activation": "silu", "epsilon": 1e-5}),
        "GatedRelativePositionBias": (
            [floats(2, 3, 8), floats(8), floats(1, 2, 3, 3), floats(4, 6), floats(6), floats(1, 2, 1, 1)], 1, {"num_heads": 2},
        ),
        "LinearAttention": (
            [floats(2, 3, 8), floats(2, 3, 8), floats(2, 3, 6), floats(2, 2, 4, 3), -np.abs(floats(2, 3, 2)), floats(2, 3, 2)], 2,
            {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated_delta", "scale": 0.5, "state_window": 0},
        ),
        "MRotaryEmbedding": (
            [floats(1, 2, 16), np.array([[[0, 1]], [[2, 3]], [[9, 0]]]), np.cos(angles), np.sin(angles)], 1,
            {"mrope_section": [2, 1, 1], "mrope_layout": 0, "num_heads": 2, "interleaved": 0, "rotary_embedding_dim": 8},
        ),
        "NGramRepeatBlock": ([np.array([[1, 2, 0, 1, 2]]), floats(1, 4)], 1, {"ngram_size": 3}),
        "PackedAttention": ([floats(5, 7), floats(7, 24), floats(24), offsets, ends, floats(1, 2, 3, 3)], 1, {"num_heads": 2}),
        "PackedMultiHeadAttention": (
            [floats(5, 8), floats(5, 8), floats(5, 6), floats(22), offsets, ends], 1, {"num_heads": 2, "scale": 0.5, "mask_filter_value": -1.0},
        ),
        "RelativePositionBias": ([floats(8, 2), np.array([5]), np.array([5])], 1, {"max_distance": 20, "is_bidirectional": 1}),
        "RemovePadding": ([floats(2, 3, 4), np.array([2, 3], np.int32)], 4, {}),
        "RestorePadding": ([floats(5, 4), offsets], 1, {}),
        "ScaledSiLU": ([floats(2, 3), np.array(1.5, np.float32)], 1, {"alpha": 2.0}),
    }  # fmt: skip


def microsoft_models() -> dict[str, tuple[ModelProto, dict[str, np.ndarray]]]:
    """A model of every op, and inputs for it."""
    made = {}
    for name, (arrays, outputs, attributes) in {**CASES, **_others(), **_basics(), **_images(), **_packed(), **_sequences()}.items():
        given = [None if a is None else np.asarray(a) for a in arrays]
        fields = {f"{n}_" if n == "opset" else n: v for n, v in attributes.items()}
        model, inputs = node_model(name, given, outputs, DOMAIN, constants=KNOWN.get(name, ()), **fields)
        for attribute in model.graph.node[0].attribute:
            attribute.name = attribute.name.removesuffix("_")
        made[name] = model, inputs
    return made


def compare(
    name: str,
    arrays: Sequence[Any],
    outputs: int = 1,
    known: Sequence[int] = (),
    expected: Sequence[np.ndarray] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    is_opened: bool = True,
    **attributes: Any,
) -> None:
    """One node with the extents of its inputs in the file and with open ones, against ONNX Runtime or what is expected;
    the inputs numbered by `known` are initializers."""
    given = [None if a is None else np.asarray(a) for a in arrays]
    model, inputs = node_model(name, given, outputs, DOMAIN, constants=known, **attributes)
    wanted = run_onnxruntime(model, inputs) if expected is None else expected
    for each in (model, opened(model))[: 1 + is_opened]:
        check_same(run(each, inputs), wanted, rtol, atol)
