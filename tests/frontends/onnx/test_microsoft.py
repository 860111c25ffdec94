"""com.microsoft ops against ONNX Runtime."""

import numpy as np
import pytest
from onnx import ModelProto

import ingot
from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.host import hosted
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import registered
from tests.frontends.onnx.building import check_like_onnxruntime, node_model
from tests.frontends.onnx.microsoft_models import CASES, DOMAIN, codes, floats, microsoft_models, rng

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
    """The runtime quantises inputs and states too; the answers differ by what that rounds away. Weights have seven bits:
    with eight, its kernel for machines without VNNI adds pairs of products in 16 bits, which is too few."""
    hidden, size = 4, 3
    arrays = [
        floats(5, 2, size), codes(1, size, 4 * hidden, dtype=np.int8) // 2, codes(1, hidden, 4 * hidden, dtype=np.int8) // 2,
        floats(1, 8 * hidden) * 0.1, None, None, None, None, np.array([0.01], np.float32), np.array([0], np.int8),
        np.array([0.01], np.float32), np.array([0], np.int8),
    ]  # fmt: skip
    constants = [n for n in range(1, len(arrays)) if arrays[n] is not None]
    model, inputs = node_model("DynamicQuantizeLSTM", arrays, 3, DOMAIN, constants=constants, hidden_size=hidden)
    check_like_onnxruntime(model, inputs, 0.0, 0.05)


def test_every_op_has_a_model_that_compiles():
    """The fuzzer begins with these."""
    models = microsoft_models()
    assert {name for domain, name in registered() if domain == DOMAIN} | {name for domain, name in hosted() if domain == DOMAIN} == models.keys()
    assert {name: check_onnx(model) for name, (model, _) in models.items() if check_onnx(model)} == {}


@pytest.mark.parametrize("name", sorted(microsoft_models()))
def test_an_output_that_an_op_does_not_have_is_named(name: str):
    """Never an error from inside, whatever the op makes where it is asked for several."""
    model = ModelProto()
    model.CopyFrom(microsoft_models()[name][0])
    for node in model.graph.node:
        if node.domain == "com.microsoft":
            node.output.extend(f"more{n}" for n in range(12 - len(node.output)))
    problems = check_onnx(model)
    assert not any(problem.kind is Kind.BAD_NODE for problem in problems)
    if name not in ("RemovePadding", "Unique"):  # whose shapes data decide: an output that nobody reads is not asked for
        assert any(problem.kind in (Kind.INPUT_COUNT, Kind.UNSUPPORTED) for problem in problems)
