"""com.microsoft ops on sequences: against ONNX Runtime, and those that its CPU does not have against NumPy and PyTorch."""

import math
from typing import Any

import numpy as np
import pytest

from ingot.frontends.onnx.doctor import check_onnx
from tests.frontends.onnx.building import node_model
from tests.frontends.onnx.microsoft_models import DOMAIN, compare, floats, rng


@pytest.mark.parametrize(("length", "size"), [(12, 3), (12, 1), (2, 3), (3, 3)])
def test_runs_that_are_not_repeated(length: int, size: int):
    compare("NGramRepeatBlock", [rng.integers(0, 3, (3, length)), floats(3, 7)], ngram_size=size)


# --- positions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotation_by_three_positions(layout: int, interleaved: int):
    angles = np.outer(np.arange(10), 1 / 100 ** (np.arange(8) / 8)).astype(np.float32)
    places, tables = rng.integers(0, 10, (3, 2, 5)), (np.cos(angles), np.sin(angles))
    fields = {"mrope_section": [3, 3, 2] if layout else [4, 2, 2], "mrope_layout": layout, "interleaved": interleaved}
    compare("MRotaryEmbedding", [floats(2, 3, 5, 16), places, *tables], known=[2, 3], **fields)
    part = {**fields, "num_heads": 3, "rotary_embedding_dim": 16, "scale": 0.5}
    compare("MRotaryEmbedding", [floats(2, 5, 60), places, *tables], known=[2, 3], **part)


@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (32, 64)])
def test_bias_of_relative_positions(both: int, buckets: int, most: int):
    """As T5 finds the bucket of a distance."""
    torch = pytest.importorskip("torch")
    table, length = floats(buckets, 3), 200
    away = torch.arange(length)[None] - torch.arange(length)[:, None]
    each = buckets // 2 if both else buckets
    distance = away.abs() if both else (-away).clamp(min=0)
    exact = each // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(most / exact) * (each - exact)).long()
    found = torch.where(distance < exact, distance, far.clamp(max=each - 1)) + (both * each) * (away > 0)
    expected = table[found.numpy()].transpose(2, 0, 1)[None]
    arrays = [table, np.array([length]), np.array([length])]
    compare("RelativePositionBias", arrays, known=[1, 2], expected=[expected], is_bidirectional=both, max_distance=most)


def test_gated_bias_of_relative_positions():
    query, offset, relative = floats(2, 5, 8), floats(8), floats(1, 2, 5, 5)
    weight, bias, factor = floats(4, 6), floats(6), floats(1, 2, 1, 1)
    heads = (query + offset).reshape(2, 5, 2, 4).transpose(0, 2, 1, 3)
    gates = 1 / (1 + np.exp(-(heads @ weight + bias).reshape(2, 2, 5, 2, 3).sum(-1)))
    expected = (gates[..., :1] * (gates[..., 1:] * factor - 1) + 2) * relative
    arrays = [query, offset, relative, weight, bias, factor]
    compare("GatedRelativePositionBias", arrays, known=[1, 3, 4, 5], expected=[expected], rtol=1e-3, num_heads=2)


# --- a token after others ---------------------------------------------------------------------------

MASK = np.array([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]], np.int32)


@pytest.mark.parametrize(("added", "biased"), [(None, False), ((1, 2, 1, 5), False), ((2, 2, 1, 5), True)])
def test_attention_of_one_token(added: Any, biased: bool):
    arrays = [floats(2, 1, 8), floats(2, 1, 8), floats(2, 1, 8), MASK, None if added is None else floats(*added), floats(2, 2, 9, 4), floats(2, 2, 9, 4),
              np.array([4], np.int32), *([None, None, floats(24)] if biased else [])]  # fmt: skip
    fields = {"num_heads": 2, "past_present_share_buffer": 1}
    compare("DecoderMaskedMultiHeadAttention", arrays, 3, known=[10] if biased else [], **fields)


def test_attention_of_one_token_to_another_sequence():
    arrays = [floats(2, 1, 8), floats(2, 2, 5, 4), floats(2, 2, 5, 4), MASK]
    compare("DecoderMaskedMultiHeadAttention", arrays, is_opened=False, num_heads=2)
    compare("DecoderMaskedMultiHeadAttention", [*arrays, *[None] * 6, floats(24)], is_opened=False, num_heads=2)


# --- batches without padding ------------------------------------------------------------------------

COUNTS = [2, 5, 3]
OFFSETS = np.array(
    [b * 5 + n for b, c in enumerate(COUNTS) for n in range(c)] + [b * 5 + n for b, c in enumerate(COUNTS) for n in range(c, 5)], np.int32
).reshape(3, 5)
ENDS = np.array([0, 2, 7, 10], np.int32)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, extra: np.ndarray | None = None, scale: float = 0.5) -> np.ndarray:
    """Of two heads, inside each sequence."""
    made = []
    for number, count in enumerate(COUNTS):
        rows = slice(ENDS[number], ENDS[number + 1])
        a, b, c = (x[rows].reshape(count, 2, -1).transpose(1, 0, 2) for x in (q, k, v))
        scores = a @ b.transpose(0, 2, 1) * scale
        if extra is not None:
            scores = scores + extra[0, :, :count, :count]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        made.append((weights / weights.sum(-1, keepdims=True) @ c).transpose(1, 0, 2).reshape(count, -1))
    return np.concatenate(made)


def test_attention_without_padding():
    q, k, v, bias, extra = floats(10, 8), floats(10, 8), floats(10, 6), floats(22), floats(1, 2, 5, 5)
    compare("PackedMultiHeadAttention", [q, k, v, None, OFFSETS, ENDS], expected=[attention(q, k, v)], num_heads=2)
    shifted = attention(q + bias[:8], k + bias[8:16], v + bias[16:], extra, 0.4)
    compare("PackedMultiHeadAttention", [q, k, v, bias, OFFSETS, ENDS, extra], expected=[shifted], num_heads=2, scale=0.4)
    packed = floats(10, 2, 3, 4)
    apart = attention(*(packed[:, :, n].reshape(10, 8) for n in range(3)))
    compare("PackedMultiHeadAttention", [packed, None, None, None, OFFSETS, ENDS], expected=[apart], num_heads=2)


def test_projected_attention_without_padding():
    x, weight, bias = floats(10, 7), floats(7, 22), floats(22)
    total = x @ weight + bias
    expected = attention(total[:, :8], total[:, 8:16], total[:, 16:])
    arrays = [x, weight, bias, OFFSETS, ENDS]
    compare("PackedAttention", arrays, known=[1, 2], expected=[expected], num_heads=2, qkv_hidden_sizes=[8, 8, 6])


def test_padding_is_removed_and_put_back():
    x = floats(3, 5, 4)
    rows = np.concatenate([x[number, :count] for number, count in enumerate(COUNTS)])
    expected = [rows, OFFSETS, ENDS, np.array([5], np.int32)]
    compare("RemovePadding", [x, np.array(COUNTS, np.int32)], 4, expected=expected)
    filled = np.zeros((15, 4), np.float32)
    filled[OFFSETS.reshape(-1)[:10]] = rows
    compare("RestorePadding", [rows, OFFSETS], expected=[filled.reshape(3, 5, 4)])


# --- states -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2])
def test_causal_convolution(step: int):
    weight, bias, past = floats(6, 1, 4), floats(6), floats(2, 6, 3 * step)
    compare("CausalConvWithState", [floats(2, 6, 7), weight, bias, past], 2, known=[1, 2], activation="silu", dilation=step)
    compare("CausalConvWithState", [floats(2, 6, 1), weight, None, past], 2, known=[1], dilation=step)
    compare("CausalConvWithState", [floats(2, 6, 7), weight], 2, known=[1], dilation=step)
    turned = [floats(2, 7, 2, 3), weight, bias, floats(2, 3 * step, 2, 3)]
    compare("CausalConvWithState", turned, 2, known=[1, 2], dilation=step, channels_last=1)


@pytest.mark.parametrize(("rule", "per"), [("linear", 1), ("gated", 1), ("gated", 4), ("delta", 1), ("gated_delta", 1), ("gated_delta", 4)])
@pytest.mark.parametrize(("asking", "kept"), [(2, 2), (4, 2), (2, 4)])
def test_linear_attention(rule: str, per: int, asking: int, kept: int):
    decay = -np.abs(floats(2, 5, kept * per)) if "gated" in rule else None
    rate = np.abs(floats(2, 5, kept if per == 1 else 1)) % 1 if "delta" in rule else None
    arrays = [floats(2, 5, asking * 4), floats(2, 5, kept * 4) * np.float32(0.4), floats(2, 5, kept * 3), floats(2, kept, 4, 3), decay, rate]
    compare("LinearAttention", arrays, 2, is_opened=False, update_rule=rule, q_num_heads=asking, kv_num_heads=kept)


def test_linear_attention_of_any_length():
    arrays = [floats(2, 5, 8), floats(2, 5, 8), floats(2, 5, 6)]
    compare("LinearAttention", arrays, 2, update_rule="linear", q_num_heads=2, kv_num_heads=2, scale=0.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gates(dtype: Any):
    x, y, gate = (floats(2, 3, n).astype(dtype) for n in (8, 8, 1))
    rough = 1e-3 if dtype == np.float16 else 1e-5
    compare("GatedAdd", [x, y, gate], rtol=rough, atol=rough)
    compare("ScaledSiLU", [x], rtol=2 * rough, atol=rough, alpha=1.5)
    compare("ScaledSiLU", [x, np.array(1.5, dtype)], rtol=2 * rough, atol=rough)


def test_norms_of_parts():
    x = floats(2, 3, 24)
    for activation in ("silu", "swish", "sigmoid"):
        compare("GatedRMSNorm", [x, floats(8), floats(2, 3, 24)], known=[1], activation=activation)
    for scale, branches in ((floats(24), 3), (floats(8), 3), (floats(3, 24), 0), (None, 0)):
        compare("BranchwiseRMSNorm", [x, scale], known=[] if scale is None else [1], **({"num_branches": branches} if branches else {}))


@pytest.mark.parametrize(
    ("name", "arrays", "fields", "code"),
    [
        ("NGramRepeatBlock", [np.zeros((1, 4), np.int64), floats(1, 4)], {"ngram_size": 0}, "O109"),
        ("MRotaryEmbedding", [floats(1, 2, 3, 8), np.zeros((3, 1, 3), np.int64), floats(9, 4), floats(9, 4)], {"mrope_section": [1, 1, 1]}, "O109"),
        ("DecoderMaskedMultiHeadAttention", [floats(1, 1, 8), floats(1, 1, 8), floats(1, 1, 8)], {"num_heads": 3}, "O109"),
        ("DecoderMaskedMultiHeadAttention", [floats(1, 1, 8), floats(1, 1, 8)], {"num_heads": 2}, "O110"),
        ("CausalConvWithState", [floats(1, 3, 5), floats(4, 1, 2)], {}, "O112"),
        ("CausalConvWithState", [floats(1, 3, 5), floats(3, 1, 2)], {"state_window": 2}, "O117"),
        ("LinearAttention", [floats(1, 3, 8), floats(1, 3, 8), floats(1, 3, 8)], {"q_num_heads": 2, "kv_num_heads": 2}, "O110"),
        ("LinearAttention", [floats(1, 3, 8)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "other"}, "O109"),
        ("GatedRMSNorm", [floats(1, 8), floats(0), floats(1, 8)], {}, "O112"),
        ("RelativePositionBias", [floats(8, 2), np.array([3]), np.array([3])], {"max_distance": 1 << 40}, "O118"),
    ],
)
def test_nodes_that_are_refused(name: str, arrays: list[np.ndarray], fields: dict[str, Any], code: str):
    known = [1, 2] if name == "RelativePositionBias" else []
    assert [p.code for p in check_onnx(node_model(name, arrays, 1, DOMAIN, constants=known, **fields)[0])] == [code]
