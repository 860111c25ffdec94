"""com.microsoft ops on images, and small ones: against ONNX Runtime, and those that its CPU does not have against NumPy."""

import numpy as np
import pytest

from ingot.frontends.onnx.doctor import check_onnx
from tests.frontends.onnx.building import check_like_onnxruntime, node_model, run_onnxruntime
from tests.frontends.onnx.microsoft_models import DOMAIN, codes, compare, floats, rng, scale

RAMP = np.linspace(-1.2, 1.2, 2 * 3 * 4 * 2).reshape(2, 3, 4, 2).astype(np.float32)


def last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int):
    x = floats(2, 3, 5, 6)
    compare("GridSample", [x, RAMP], mode=mode, padding_mode=padding, align_corners=corners)
    standard = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    check_like_onnxruntime(*node_model("GridSample", [x, RAMP], mode=standard, padding_mode=padding, align_corners=corners))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [[3, 4], [1, 5], [1, 1]])
def test_crop_and_resize(mode: str, size: list[int]):
    regions, images = rng.uniform(-0.2, 1.2, (7, 4)).astype(np.float32), rng.integers(0, 2, 7).astype(np.int32)
    arrays = [floats(2, 3, 5, 6), regions, images, np.array(size, np.int32)]
    compare("CropAndResize", arrays, known=[3], mode=mode, extrapolation_value=0.5)


@pytest.mark.parametrize("is_known", [False, True])
def test_transposed_convolution_with_pads_as_an_input(is_known: bool):
    arrays = [floats(1, 3, 5, 6), floats(3, 4, 3, 3), np.array([1, 0, 1, 2]), floats(4)]
    compare("ConvTransposeWithDynamicPads", arrays, known=[2] if is_known else [], is_opened=is_known, strides=[2, 2], output_padding=[1, 1])


@pytest.mark.parametrize("order", [0, 1])
def test_quantised_convolution_in_both_orders(order: int):
    """Weights have seven bits, as those of the quantised LSTM."""
    x, zero = codes(1, 4, 6, 7), np.uint8(120)
    weight = codes(8, 4, 3, 3, dtype=np.int8) // 2
    arrays = [last(x) if order else x, scale(0.02), zero, weight, np.full(8, 0.01, np.float32), np.zeros(8, np.int8), scale(0.3), zero,
              rng.integers(-100, 100, 8).astype(np.int32)]  # fmt: skip
    compare("QLinearConv", arrays, known=range(1, 9), rtol=0, atol=1.01, channels_last=order, pads=[1, 1, 1, 1])


def test_convolutions_with_the_channels_last():
    arrays, fields = [floats(1, 3, 6, 7), floats(4, 3, 3, 3), floats(4)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    (expected,) = run_onnxruntime(*node_model("Conv", arrays, **fields))
    more = floats(*expected.shape)
    given = [last(arrays[0]), *arrays[1:]]
    compare("NhwcConv", given, known=[1, 2], expected=[last(expected)], **fields)
    positive = np.maximum(expected + more, 0)
    compare("NhwcFusedConv", [*given, last(more)], known=[1, 2], expected=[last(positive)], activation="Relu", **fields)
    model, _ = node_model("NhwcConv", [*given, last(more)], 1, DOMAIN, **fields)
    assert [p.code for p in check_onnx(model)] == ["O110"]


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("order", [0, 1])
def test_group_norm(activation: int, order: int):
    x, gamma, beta, skip, bias = floats(2, 6, 3, 5), floats(6), floats(6), floats(2, 6), floats(6)

    def normal(data: np.ndarray) -> np.ndarray:
        groups = data.reshape(2, 3, -1)
        y = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
        y = y.reshape(data.shape) * gamma[:, None, None] + beta[:, None, None]
        return y / (1 + np.exp(-y)) if activation else y

    turned = last if order else np.asarray
    fields = {"groups": 3, "activation": activation, "channels_last": order}
    compare("GroupNorm", [turned(x), gamma, beta], known=[1, 2], expected=[turned(normal(x))], **fields)
    total = x + skip[:, :, None, None] + bias[:, None, None]
    compare("SkipGroupNorm", [turned(x), gamma, beta, skip, bias], 2, expected=[turned(normal(total)), turned(total)], **fields)
    compare("SkipGroupNorm", [turned(x), gamma, beta, turned(x)], 2, expected=[turned(normal(x + x)), turned(x + x)], **fields)


# --- small ops --------------------------------------------------------------------------------------


BASICS = {
    "Range": [([np.float32(1), np.float32(7), np.float32(0.5)], [], {}), ([np.int64(1), np.int64(7)], [], {})],
    "Trilu": [([floats(3, 4, 5), np.int64(1)], [1], {"upper": 0}), ([floats(4, 5)], [], {})],
    "GatherND": [([floats(3, 4, 5), np.array([[0, 1], [2, 3]])], [], {})],
    "ExpandDims": [([floats(3, 4), np.int32(-1)], [1], {}), ([floats(3, 4), np.int32(0)], [1], {})],
    "Pad": [
        ([floats(3, 4), np.array([1, 0, 2, 1]), np.float32(3)], [1, 2], {}),
        ([floats(3, 4), np.array([[1, 0, 2, 1]])], [1], {"mode": "reflect"}),
        ([floats(3, 4), np.array([1, -1, 2, 1])], [1], {"mode": "edge"}),
    ],
    "UnfoldTensor": [([floats(3, 11, 4)], [], {"dim": 1, "size": 3, "step": 2}), ([floats(3, 11)], [], {"size": 3})],
}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, cases in BASICS.items() for n in range(len(cases))])
def test_small_ops(name: str, number: int):
    arrays, known, fields = BASICS[name][number]
    compare(name, arrays, known=known, is_opened=name != "Range", **fields)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float64])
def test_hashes(dtype: type):
    for fields in ({"seed": 7}, {"positive": 0}):
        compare("MurmurHash3", [rng.integers(0, 100, (3, 4)).astype(dtype)], rtol=0, atol=0, **fields)


def test_unique_in_the_order_of_the_elements():
    compare("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], 3)
    assert [p.code for p in check_onnx(node_model("Unique", [floats(2), floats(2)], 3, DOMAIN)[0])] == ["O110"]


def test_transforms_of_real_signals():
    x = floats(3, 4, 10)
    found = np.fft.rfft(x)
    pairs = np.stack([found.real, found.imag], -1).astype(np.float32)
    fields = {"signal_ndim": 1, "onesided": 1, "normalized": 0}
    compare("Rfft", [x], expected=[pairs], is_opened=False, **fields)
    compare("Irfft", [pairs], expected=[x], is_opened=False, **fields)
    model, _ = node_model("Rfft", [x], 1, DOMAIN, **{**fields, "normalized": 1})
    assert [p.code for p in check_onnx(model)] == ["O117"]


def test_complex_products():
    a, b = floats(3, 4, 2), floats(4, 2)
    left, right = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for name, product in (("ComplexMul", left * right), ("ComplexMulConj", left * right.conj())):
        compare(name, [a, b], expected=[np.stack([product.real, product.imag], -1)], is_opened=False)


@pytest.mark.parametrize("axis", [2, 3])
def test_softmax_of_a_biased_tensor(axis: int):
    x, bias = floats(2, 3, 4, 5), floats(2, 1, 1, 5)
    grown = np.exp(x + bias)
    compare("BiasSoftmax", [x, bias], expected=[grown / grown.sum(tuple(range(axis, 4)), keepdims=True)], axis=axis, is_inner_broadcast=1)


def test_product_with_an_activation():
    x, w, bias = floats(3, 4), floats(4, 5), floats(5)
    compare("GemmFastGelu", [x, w, bias], expected=run_onnxruntime(*node_model("FastGelu", [x @ w, bias], 1, DOMAIN)))
