"""A checkpoint holds all that a run depends on: continuing from it gives the bits of a run that never stopped."""

import itertools

import numpy as np
import pytest

import ingot
from ingot import data, nn, optim


def make_trainer(optimizer=None):
    """Everything that keeps state: Adam's averages, running statistics, dropout's key, a schedule's step."""
    nn.seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm(16), nn.ReLU(), nn.Dropout(0.2, seed=3), nn.Linear(16, 3))
    optimizer = optimizer or optim.AdamW(optim.cosine(1e-2, 40, warmup=5), clip_norm=1.0)

    def loss(model, x, y):
        return nn.cross_entropy(model(x), y)

    return ingot.Trainer(model, loss, optimizer, ingot.f32["batch", 6], ingot.i64["batch"])


@pytest.fixture
def batches(rng):
    x, y = rng.standard_normal((100, 6)).astype(np.float32), rng.integers(0, 3, 100)
    return data.Batches(x, y, size=16, epochs=4, seed=5)


def test_resuming_gives_the_same_bits(batches, tmp_path):
    whole = make_trainer()
    straight = whole.fit(batches)
    first = make_trainer()
    losses = first.fit(itertools.islice(batches, 9))
    first.save(tmp_path / "run.ckpt")
    second = make_trainer()
    second.load(tmp_path / "run.ckpt")
    assert second.count == 9
    losses += second.fit(itertools.islice(batches, second.count, None))
    assert losses == straight
    assert whole.states.keys() == second.states.keys()
    for name, array in whole.states.items():
        np.testing.assert_array_equal(second.states[name], array, err_msg=name)


def test_parameters_of_the_model_are_the_memory_of_the_trainer(batches, tmp_path):
    trainer = make_trainer()
    trainer.fit(itertools.islice(batches, 2))
    trainer.save(tmp_path / "run.ckpt")
    kept = {name: array.copy() for name, array in trainer.model.named_arrays().items()}
    trainer.fit(itertools.islice(batches, 2))
    assert not np.array_equal(trainer.model[0].weight, kept["layers.0.weight"])
    trainer.load(tmp_path / "run.ckpt")
    for name, array in trainer.model.named_arrays().items():
        np.testing.assert_array_equal(array, kept[name])


def test_saving_leaves_no_half_written_file(tmp_path):
    trainer = make_trainer(optim.SGD(0.1))
    for _ in range(2):
        trainer.save(tmp_path / "run.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["run.ckpt"]


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    make_trainer(optim.SGD(0.1)).save(tmp_path / "run.ckpt")
    with pytest.raises(ingot.IngotError, match=r"E117.*missing .*optimizer\.layers\.0\.weight\.mean"):
        make_trainer().load(tmp_path / "run.ckpt")
