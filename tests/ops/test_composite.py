"""Composite ops beyond their samples: slopes at kinks, extremes, and numbers from the literature."""

import math

import numpy as np
import pytest

from ingot.compiler.ir.types import f32, i32
from ingot.compiler.ops import composite
from ingot.compiler.ops.base import Op, OpTypeError
from ingot.compiler.ops.composite import Composite, Gelu, Softmax
from tests.ops.harness import call, gradient_of

ACTIVATIONS = [
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "gelu", "mish", "hard_sigmoid",
    "hard_swish", "softsign", "log_sigmoid",
]  # fmt: skip


def slope(name, x, **fields):
    return gradient_of(lambda n: getattr(n, name)(**fields), np.asarray(x, np.float64))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_finite_far_out(name):
    far = np.array([-1e300, -1e4, -800.0, -50.0, 50.0, 800.0, 1e4])
    found = slope(name, far)
    assert np.all(np.isfinite(found))
    assert np.all(np.abs(found) < 2)


@pytest.mark.parametrize(
    ("name", "fields", "at_kinks", "expected"),
    [
        ("relu", {}, [0.0], [0.0]),
        ("relu6", {}, [0.0, 6.0], [0.0, 0.0]),
        ("leaky_relu", {"alpha": 0.1}, [0.0], [0.1]),
        ("elu", {"alpha": 1.0}, [0.0], [1.0]),
        ("celu", {"alpha": 2.0}, [0.0], [1.0]),
        ("clip", {"low": -1.0, "high": 1.0}, [-1.0, 1.0, 1.5], [1.0, 1.0, 0.0]),
    ],
)
def test_slopes_at_kinks(name, fields, at_kinks, expected):
    np.testing.assert_array_equal(slope(name, at_kinks, **fields), expected)


def test_relu_is_homogeneous(rng):
    x = rng.standard_normal(20)
    np.testing.assert_array_equal(call(lambda n: n.relu(), 4 * x), 4 * call(lambda n: n.relu(), x))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1, (0.84379473, 0.04201007, 0.1141952)),
        (0.5, (0.97962921, 0.00242826, 0.01794253)),
        (2, (0.62853172, 0.14024438, 0.2312239)),
        (100, (0.33890904, 0.32889277, 0.33219819)),
    ],
)
def test_softmax_with_temperature(temperature, expected):
    logits = np.array([3.0, 0.0, 1.0])
    np.testing.assert_allclose(call(lambda n: (n / temperature).softmax(axis=0), logits), expected, rtol=1e-6)


def test_log_softmax_and_its_gradient():
    logits = np.array([3.0, 0.0, 1.0])
    assert call(lambda n: n.log_softmax(axis=0), logits)[0] == pytest.approx(-0.16984601955628567)
    found = gradient_of(lambda n: n.log_softmax(axis=0) * n.constant([1.0, 0.0, 0.0]), logits)
    np.testing.assert_allclose(found, (0.15620527, -0.04201007, -0.1141952), rtol=1e-6)


def test_softmax_does_not_change_when_all_logits_shift():
    logits = np.array([0.5, -1.0, 2.0], np.float32)
    shifted = call(lambda n: n.softmax(axis=0), logits + np.float32(1e4))
    np.testing.assert_allclose(shifted, call(lambda n: n.softmax(axis=0), logits), rtol=1e-3)


def test_masked_logits_get_no_weight_and_no_gradient():
    logits = np.array([1.0, -np.inf, 2.0])
    weights = call(lambda n: n.softmax(axis=0), logits)
    assert weights[1] == 0
    assert weights.sum() == pytest.approx(1)
    gradient = gradient_of(lambda n: n.softmax(axis=0) * n.constant([1.0, 2.0, 3.0]), logits)
    assert gradient[1] == 0
    assert np.all(np.isfinite(gradient))


def test_hypot_neither_overflows_nor_divides_by_zero():
    a, b = np.array([1e300, 0.0, 3.0, np.inf]), np.array([1e300, 0.0, 4.0, np.nan])
    found = call(lambda x, y: x.hypot(y), a, b)
    np.testing.assert_allclose(found, [math.sqrt(2) * 1e300, 0, 5, np.inf])
    assert gradient_of(lambda x, y: x.hypot(y), a[1:2], b[1:2]) == 0


def test_logaddexp_shares_the_gradient():
    a, b = np.array([-np.inf, 0.0, 1e4]), np.array([-np.inf, 0.0, -1e4])
    np.testing.assert_array_equal(gradient_of(lambda x, y: x.logaddexp(y), a, b), [0.5, 0.5, 1.0])


def test_entropy_term_of_an_impossible_event_is_nothing():
    p = np.array([0.0, 1.0])
    np.testing.assert_array_equal(call(lambda n: n.xlogy(n), p), [0, 0])
    zero = np.array([0.0])
    assert np.isfinite(gradient_of(lambda x, y: x.xlogy(y), zero, zero, wrt=1))


def test_interpolation_is_exact_at_its_ends():
    a, b = np.array([1e8, 0.1], np.float32), np.array([1.0, 0.3], np.float32)
    one = np.ones(2, np.float32)
    np.testing.assert_array_equal(call(lambda x, y, t: x.lerp(y, t), a, b, one), b)
    np.testing.assert_array_equal(call(lambda x, y, t: x.lerp(y, t), a, b, 0 * one), a)


@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_norms_are_numpys(order, rng):
    x = rng.standard_normal((3, 4))
    found = call(lambda n: composite.norm(n, (1,), order), x)
    np.testing.assert_allclose(found, np.linalg.norm(x, order, axis=1))


def test_norm_of_nothing_has_a_gradient():
    np.testing.assert_array_equal(gradient_of(composite.norm, np.zeros(3)), [0, 0, 0])


@pytest.mark.parametrize("kind", [k for k in Op.registry.values() if issubclass(k, Composite)])
def test_wrong_number_of_arguments(kind):
    dtype = f32 if "float" in kind.kinds else i32
    with pytest.raises(OpTypeError, match=f"{kind.name} takes {kind.count} tensors"):
        next(kind.samples()).op.infer(*[dtype[3, 3]] * (kind.count + 1))


def test_refusals_say_why():
    with pytest.raises(OpTypeError, match="'none' or 'tanh'"):
        Gelu("fast").infer(f32[3])  # type: ignore[arg-type]
    with pytest.raises(OpTypeError, match="axis 1 is outside"):
        Softmax(1).infer(f32[3])
    with pytest.raises(OpTypeError, match="takes float tensors, not i32"):
        Softmax(0).infer(i32[3])
