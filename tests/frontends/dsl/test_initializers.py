"""Initial values have the moments that their definitions give them."""

import math

import numpy as np
import pytest

from ingot import nn
from ingot.frontends.dsl.nn import initializers

SHAPE = (300, 200)  # a dense layer: 300 inputs, 200 outputs
KERNEL = (64, 32, 3, 3)  # 64 outputs of 32 * 9 inputs


def draw(initializer, shape=SHAPE):
    array = initializer(shape, np.random.default_rng(0))
    assert array.shape == tuple(shape)
    assert array.dtype == np.float32
    return array.astype(np.float64)


VARIANCES = [
    (initializers.xavier_uniform, SHAPE, 2 / 500), (initializers.xavier_normal, SHAPE, 2 / 500),
    (initializers.he_uniform, SHAPE, 2 / 300), (initializers.he_normal, SHAPE, 2 / 300),
    (initializers.lecun_normal, SHAPE, 1 / 300), (initializers.normal(0.3), SHAPE, 0.09),
    (initializers.uniform(0.3), SHAPE, 0.03), (initializers.he_normal, KERNEL, 2 / 288),
    (initializers.xavier_normal, KERNEL, 2 / (288 + 576)), (initializers.lecun_normal, KERNEL, 1 / 288),
]  # fmt: skip


@pytest.mark.parametrize(("initializer", "shape", "variance"), VARIANCES)
def test_mean_and_variance(initializer, shape, variance):
    values = draw(initializer, shape)
    deviation = math.sqrt(variance / values.size)
    assert abs(values.mean()) < 4 * deviation
    assert values.var() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize(
    ("initializer", "limit"),
    [
        (initializers.xavier_uniform, math.sqrt(6 / 500)),
        (initializers.he_uniform, math.sqrt(6 / 300)),
        (initializers.uniform(0.3), 0.3),
    ],
)
def test_uniform_values_stay_inside_their_limit(initializer, limit):
    values = draw(initializer)
    assert abs(values).max() <= np.float32(limit)
    assert abs(values).max() > 0.99 * limit


def test_constants():
    assert (draw(initializers.zeros) == 0).all()
    assert (draw(initializers.ones) == 1).all()
    assert (draw(initializers.constant(2.5)) == 2.5).all()


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (16, 4, 3, 3)])
def test_orthogonal(shape):
    matrix = draw(initializers.orthogonal, shape).reshape(shape[0], -1)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-6)


def test_fans():
    assert initializers.fans((5, 7)) == (5, 7)
    assert initializers.fans((8, 4, 3, 3)) == (36, 72)
    assert initializers.fans((6,)) == (6, 6)


def test_a_layer_takes_an_initializer():
    assert (nn.Linear(3, 4, initializer=initializers.ones).weight == 1).all()
    assert (nn.Conv2d(3, 4, 3, initializer=initializers.constant(0.5)).weight == 0.5).all()
    assert not nn.Linear(3, 4).bias.any()
