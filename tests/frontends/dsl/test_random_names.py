"""`ingot.random`: the public names draw what the ops draw, and say what they want."""

import numpy as np
import pytest

import ingot
from ingot import nn, optim, random

KEY = ingot.u64[2]


def drawn(function, seed=7):
    return ingot.compile(function, KEY)(random.key(seed))


def test_a_key_is_all_there_is():
    first, again, other = (drawn(lambda key: random.normal(key, (50,)), seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "another",
    [
        lambda key: random.uniform(random.advance(key), (20,)),
        lambda key: random.uniform(random.split(key)[0], (20,)),
        lambda key: random.uniform(random.split(key)[1], (20,)),
        lambda key: random.uniform(random.fold_in(key, 3), (20,)),
        lambda key: random.uniform(key, (20,), stream=1),
    ],
    ids=["advance", "split0", "split1", "fold_in", "stream"],
)
def test_other_keys_and_streams_draw_other_numbers(another):
    assert not np.array_equal(drawn(another), drawn(lambda key: random.uniform(key, (20,))))


def test_ranges_and_moments():
    """4000 numbers: a mean is within five standard errors."""
    uniform = drawn(lambda key: random.uniform(key, (4000,), -1.0, 3.0))
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 5 * (4 / np.sqrt(12)) / np.sqrt(4000)
    normal = drawn(lambda key: random.normal(key, (4000,), mean=2.0, std=0.5))
    assert abs(normal.mean() - 2) < 5 * 0.5 / np.sqrt(4000)
    whole = drawn(lambda key: random.integers(key, (400,), -2, 3))
    assert set(whole.tolist()) == {-2, -1, 0, 1, 2}
    order = drawn(lambda key: random.permutation(key, 20))
    assert sorted(order.tolist()) == list(range(20))
    assert order.tolist() != list(range(20))


def test_choices_follow_their_probabilities():
    chance = np.array([0.0, 0.25, 1.0], np.float32)
    heads = ingot.compile(random.bernoulli, KEY, ingot.f32[2000, 3])(random.key(1), np.tile(chance, (2000, 1)))
    share = heads.mean(axis=0)
    assert (share[0], share[2]) == (0, 1)
    assert abs(share[1] - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 2000)
    logits = np.log(np.array([[0.7, 0.3, 1e-30]], np.float32)).repeat(2000, axis=0)
    chosen = ingot.compile(random.categorical, KEY, ingot.f32[2000, 3])(random.key(1), logits)
    assert set(chosen.tolist()) == {0, 1}
    assert abs((chosen == 0).mean() - 0.7) < 5 * np.sqrt(0.21 / 2000)


def test_dropout_keeps_the_mean_and_zeroes_its_share():
    y = drawn(lambda key: random.dropout(key, ingot.full((4000,), 1.0, like=key, dtype=ingot.f32), 0.25))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)


def test_shapes_may_be_symbolic():
    exe = ingot.compile(lambda key, x: x + random.normal(key, x.shape), KEY, ingot.f32["n", 2])
    small, large = (exe(random.key(3), np.zeros((n, 2), np.float32)) for n in (3, 30))
    np.testing.assert_array_equal(small, large[:3])


class Noisy(nn.Module):
    """Adds its own noise; the key is a buffer that each step advances."""

    def __init__(self):
        self.scale = np.ones((), np.float32)
        self.key = nn.Buffer(random.key(0))

    def forward(self, x):
        drawn = random.normal(self.key, x.shape)
        self.key = random.advance(self.key)
        return x * self.scale + drawn


def test_a_key_in_a_buffer_draws_anew_each_step():
    trainer = ingot.Trainer(Noisy(), lambda model, x: model(x).mean(), optim.SGD(0.0), ingot.f32[8])
    x = np.zeros(8, np.float32)
    assert len({trainer.step(x) for _ in range(3)}) == 3
    assert trainer.model.key.tolist() == [0, 3]


@pytest.mark.parametrize("call", [lambda k: random.normal(k, (3,)), random.advance, random.split], ids=["normal", "advance", "split"])
def test_e121_a_key_that_is_no_tensor(call):
    with pytest.raises(ingot.IngotError, match="E121"):
        call(random.key(0))
