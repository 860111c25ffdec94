"""com.microsoft ops with weights of a few bits, and mixtures of experts: against ONNX Runtime, or NumPy where it has none."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ingot
from ingot.frontends.onnx.convert.microsoft_packed import NORMAL_4
from ingot.frontends.onnx.doctor import check_onnx
from tests.frontends.onnx.building import node_model
from tests.frontends.onnx.microsoft_models import DOMAIN, codes, compare, floats, rng, scale


def positive(*shape: int) -> np.ndarray:
    return np.abs(floats(*shape))


# --- products ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("rows", "columns", "block"), [(16, 64, 32), (5, 32, 16), (5, 20, 16), (40, 128, 128)])
def test_codes_of_tables(kind: int, rows: int, columns: int, block: int):
    """FP4 and NF4; blocks of 16 that go on in the next row of 20."""
    arrays = [floats(2, 3, columns), codes(-(-rows * columns // 2)), positive(-(-rows * columns // block))]
    fields = {"N": rows, "K": columns, "block_size": block, "quant_type": kind}
    compare("MatMulBnb4", arrays, known=[1, 2], rtol=1e-3, atol=1e-3, **fields)


@pytest.mark.parametrize("turned", [0, 1])
def test_codes_of_tables_stay_packed(turned: int):
    rows, columns, block = 48, 128, 64
    packed, scales = codes(rows * columns // 2), positive(rows * columns // block)
    numbers = np.array(NORMAL_4)[np.stack([packed >> 4, packed & 15], -1)].reshape(-1, block) * scales[:, None]
    weight = numbers.reshape(rows, columns)
    x = floats(3, columns if turned else rows)
    fields = {"N": rows, "K": columns, "block_size": block, "quant_type": 1, "transB": turned}
    model, inputs = node_model("MatMulBnb4", [x, packed, scales], 1, DOMAIN, constants=[1, 2], **fields)
    executable = ingot.compile(ingot.load_onnx(model), cache=False)
    np.testing.assert_allclose(executable(**inputs), x @ (weight.T if turned else weight), rtol=1e-4, atol=1e-3)
    assert sum(array.nbytes for array in executable.program.constants.values()) <= packed.nbytes + 2 * scales.nbytes


# --- tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "block", "zeros"), [(2, 16, False), (2, 32, True), (4, 16, True), (4, 32, False), (8, 32, True), (8, 16, False)])
def test_tables_of_bytes(bits: int, block: int, zeros: bool):
    per, blocks = 8 // bits, -(-80 // block)
    arrays = [codes(9, 80 // per), rng.integers(-9, 9, (2, 3)), positive(9, blocks), codes(9, -(-blocks // per)) if zeros else None]
    compare("GatherBlockQuantized", arrays, known=[0, 2] + [3] * zeros, bits=bits, block_size=block, quantize_axis=-1)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize(
    ("gathered", "quantised", "shape", "blocks", "zeros"),
    [
        (0, 1, (9, 40), (9, 3), False),
        (1, 0, (40, 9), (3, 9), True),
        (0, 2, (9, 4, 33), (9, 4, 3), True),
        (1, 2, (4, 9, 33), (4, 9, 3), False),
        (0, 0, (40, 6), (3, 6), True),
    ],
)
def test_tables_of_narrow_integers(dtype: Any, gathered: int, quantised: int, shape: Any, blocks: Any, zeros: bool):
    least = -8 if dtype == ml_dtypes.int4 else 0

    def narrow(sizes: Any) -> np.ndarray:
        return rng.integers(least, least + 16, sizes).astype(dtype)

    arrays = [narrow(shape), rng.integers(-shape[gathered], shape[gathered], (2, 3)), positive(*blocks), narrow(blocks) if zeros else None]
    fields = {"block_size": 16, "gather_axis": gathered, "quantize_axis": quantised}
    compare("GatherBlockQuantized", arrays, known=[0, 2] + [3] * zeros, **fields)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize(("block", "blocks"), [(16, (9, 2)), (0, (9, 1)), (0, (1, 1))])
def test_tables_of_narrow_floats(dtype: Any, block: int, blocks: Any):
    arrays = [floats(9, 32).astype(dtype), np.array([0, 3, -1]), positive(*blocks)]
    compare("GatherBlockQuantized", arrays, known=[0, 2], block_size=block)


def test_an_index_outside_of_a_table_gives_zeros():
    arrays = [codes(9, 16), np.array([0, 9, -10, 100]), positive(9, 1)]
    compare("GatherBlockQuantized", arrays, known=[0, 2], bits=8, block_size=16, quantize_axis=-1)


def test_tables_stay_packed():
    arrays = [codes(300, 64), np.array([[0, 299, 7]]), positive(300, 8)]
    model, inputs = node_model("GatherBlockQuantized", arrays, 1, DOMAIN, constants=[0, 2], bits=4, block_size=16)
    executable = ingot.compile(ingot.load_onnx(model), cache=False)
    executable(**inputs)
    assert sum(array.nbytes for array in executable.program.constants.values()) <= arrays[0].nbytes + arrays[2].nbytes + 64


@pytest.mark.parametrize(
    ("change", "code"),
    [({"bits": 3}, "O109"), ({"block_size": 0}, "O109"), ({"block_size": 32}, "O112"), ({"gather_axis": 1}, "O117"), ({"quantize_axis": 7}, "O112")],
    ids=str,
)
def test_tables_that_do_not_fit(change: dict[str, int], code: str):
    fields = {"bits": 4, "block_size": 16, **change}
    model, _ = node_model("GatherBlockQuantized", [codes(5, 16), np.array([0]), positive(5, 2)], 1, DOMAIN, constants=[0, 2], **fields)
    assert [p.code for p in check_onnx(model)] == [code]


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_quantised_embedding(segments: bool, masked: bool):
    ids, kinds = rng.integers(0, 9, (2, 4)).astype(np.int32), rng.integers(0, 2, (2, 4)).astype(np.int32)
    scales, zero = [scale(s) for s in (0.01, 0.02, 0.03, 0.02, 0.01)], np.uint8(120)
    arrays = [
        ids, kinds if segments else None, codes(9, 8), codes(6, 8), codes(2, 8) if segments else None, codes(8), codes(8),
        np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32) if masked else None,
        *scales[:2], scales[2] if segments else None, *scales[3:], zero, zero, zero if segments else None, zero, zero,
    ]  # fmt: skip
    known = [n for n in range(2, 18) if arrays[n] is not None and n != 7]
    compare("QEmbedLayerNormalization", arrays, 2, known=known, epsilon=1e-5)


# --- experts ----------------------------------------------------------------------------------------

EXPERTS, WIDTH, HIDDEN = 4, 32, 64


def weights(*shape: int) -> np.ndarray:
    return floats(EXPERTS, *shape) * np.float32(0.2)


@pytest.mark.parametrize(
    ("activation", "best", "normal", "biased"),
    [("relu", 1, 0, False), ("gelu", 2, 0, True), ("silu", 2, 1, True), ("silu", 1, 1, False), ("identity", 3, 0, True)],
)
def test_experts(activation: str, best: int, normal: int, biased: bool):
    bias = (weights(HIDDEN), weights(WIDTH)) if biased else (None, None)
    arrays = [floats(2, 3, WIDTH), floats(6, EXPERTS), weights(HIDDEN, WIDTH), bias[0], weights(WIDTH, HIDDEN), bias[1]]
    compare("MoE", arrays, known=[2, 4, *([3, 5] if biased else [])], k=best, activation_type=activation, normalize_routing_weights=normal)


def test_experts_with_gates():
    first, gate, second = weights(HIDDEN, WIDTH), weights(HIDDEN, WIDTH), weights(WIDTH, HIDDEN)
    turns, behind = np.stack([first, gate], 2).reshape(EXPERTS, 2 * HIDDEN, WIDTH), np.concatenate([first, gate], 1)
    x, router = floats(5, WIDTH), floats(5, EXPERTS)
    fields = {"k": 2, "activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}
    compare("MoE", [x, router, turns, None, second], known=[2, 4], swiglu_fusion=1, **fields)
    chosen = np.argsort(-router, 1)[:, :2]
    share = np.exp(router) / np.exp(router).sum(1, keepdims=True)
    expected = np.zeros_like(x)
    for token, expert in [(t, e) for t in range(5) for e in chosen[t]]:
        opened, linear = np.minimum(first[expert] @ x[token], 1.5), np.clip(gate[expert] @ x[token], -1.5, 1.5)
        made = opened / (1 + np.exp(-1.702 * opened)) * (linear + 1)
        expected[token] += share[token, expert] * (second[expert] @ made)
    # ONNX Runtime has these two for other devices only
    compare("MoE", [x, router, behind, None, second], known=[2, 4], expected=[expected], swiglu_fusion=2, **fields)
    compare("MoE", [x, router, first, None, second, None, gate], known=[2, 4, 6], expected=[expected], **fields)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("block", "zeros"), [(0, False), (0, True), (32, True)])
def test_experts_in_codes(bits: int, block: int, zeros: bool):
    """With blocks of eight bits ONNX Runtime rounds what it multiplies to eight bits too."""
    per = 8 // bits

    def scales(rows: int, columns: int) -> np.ndarray:
        return positive(EXPERTS, rows, columns // block) * np.float32(0.02) if block else positive(EXPERTS, rows) * np.float32(0.02)

    def points(rows: int, columns: int) -> np.ndarray:
        return codes(EXPERTS, rows, -(-(columns // block) // per)) if block else codes(EXPERTS, rows // per)

    arrays = [
        floats(5, WIDTH), floats(5, EXPERTS), codes(EXPERTS, 2 * HIDDEN, WIDTH // per), scales(2 * HIDDEN, WIDTH), weights(2 * HIDDEN),
        codes(EXPERTS, WIDTH, HIDDEN // per), scales(WIDTH, HIDDEN), weights(WIDTH),
        *([None, None, None, points(2 * HIDDEN, WIDTH), points(WIDTH, HIDDEN)] if zeros else []),
    ]  # fmt: skip
    fields = {"k": 2, "expert_weight_bits": bits, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702,
              "activation_beta": 1.0, "swiglu_limit": 7.0, "normalize_routing_weights": 1, **({"block_size": block} if block else {})}  # fmt: skip
    known = [n for n in range(2, len(arrays)) if arrays[n] is not None]
    rough = bits == 8 and block > 0
    compare("QMoE", arrays, known=known, rtol=0.05 if rough else 1e-2, atol=20.0 if rough else 2e-2, **fields)


def test_experts_stay_packed():
    arrays = [floats(2, 64), floats(2, EXPERTS), codes(EXPERTS, 96, 32), positive(EXPERTS, 96), None, codes(EXPERTS, 64, 48), positive(EXPERTS, 64)]
    model, inputs = node_model("QMoE", arrays, 1, DOMAIN, constants=[2, 3, 5, 6], k=1, activation_type="silu")
    executable = ingot.compile(ingot.load_onnx(model), cache=False)
    executable(**inputs)
    held = sum(array.nbytes for array in executable.program.constants.values())
    assert held <= arrays[2].nbytes + arrays[5].nbytes + 2 * (arrays[3].nbytes + arrays[6].nbytes) + 1024
