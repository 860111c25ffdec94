"""The trainer: one compiled call a step, state in place, metrics, buffers, shared parameters; data and modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ingot
from ingot import data, nn, optim
from ingot.compiler.errors import IngotError
from ingot.frontends.dsl.module import Module
from tests.frontends.dsl.support import close

RNG = np.random.default_rng(5)


def classify(model, x, labels):
    return nn.cross_entropy(model(x), labels)


def mlp():
    return nn.Sequential(nn.Linear(4, 8, generator=0), nn.Tanh(), nn.Linear(8, 3, generator=1))


def batch(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 4)).astype(np.float32), rng.integers(0, 3, count)


def trainer_of(model, optimizer=None, loss=classify, **choices):
    return ingot.Trainer(model, loss, optimizer or optim.SGD(0.1), ingot.f32["n", 4], ingot.i64["n"], **choices)


# --- a step -------------------------------------------------------------------------------------------------


def test_a_step_is_gradient_descent():
    """The loss before the update is returned; the parameters move along the negative gradient."""
    model = mlp()
    before = {name: array.copy() for name, array in model.named_parameters().items()}
    x, labels = batch(5)
    value, gradient = ingot.value_and_grad(classify)(model, x, labels)
    trainer = trainer_of(model)
    assert trainer.step(x, labels) == pytest.approx(float(value), rel=1e-5)
    for name, array in model.named_parameters().items():
        close(array, before[name] - 0.1 * gradient[name], 1e-5)


def test_one_compilation_takes_any_batch():
    trainer = trainer_of(mlp())
    program = trainer.executable.program
    for count in (1, 7, 64, 3):
        assert np.isfinite(trainer.step(*batch(count)))
    assert trainer.executable.program is program
    assert trainer.count == 4


def test_attributes_of_the_model_are_views():
    """What is in the model is what the step uses and leaves, in both directions."""
    model = mlp()
    trainer = trainer_of(model)
    weight = model[0].weight
    before = weight.copy()
    trainer.step(*batch(4))
    assert model[0].weight is weight
    assert not np.array_equal(weight, before)
    for array in model.parameters():
        array[...] = 0
    x, labels = batch(4)
    assert trainer.step(x, labels) == pytest.approx(np.log(3), rel=1e-6)
    assert trainer.model is model


def test_metrics():
    def loss(model, x, labels):
        logits = model(x)
        right = (logits.argmax(axis=-1) == labels).astype("f32").mean()
        return nn.cross_entropy(logits, labels), {"accuracy": right, "parts": {"largest": logits.max()}}

    model = mlp()
    x, labels = batch(6)
    hidden = np.tanh(x @ model[0].weight + model[0].bias)
    logits = hidden @ model[2].weight + model[2].bias
    value, metrics = trainer_of(model, loss=loss).step(x, labels)
    assert isinstance(value, float)
    assert set(metrics) == {"accuracy", "parts.largest"}
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).mean())
    assert metrics["parts.largest"] == pytest.approx(logits.max(), rel=1e-5)


def test_names_of_a_batch():
    trainer = trainer_of(mlp())
    assert [spec.name for spec in trainer.executable.inputs] == ["x", "labels"]


def test_wrong_batches_are_refused():
    trainer = trainer_of(mlp())
    x, labels = batch(4)
    with pytest.raises(Exception, match="n"):
        trainer.step(x, labels[:3])
    with pytest.raises(Exception, match="x"):
        trainer.step(x[:, :3], labels)
    assert trainer.count == 0


def test_a_model_without_parameters_is_refused():
    with pytest.raises(IngotError, match="no parameters"):
        trainer_of(nn.Sequential(nn.Tanh()))


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(IngotError, match="E112"):
        trainer_of(mlp(), loss=lambda model, x, labels: model(x))


def test_fit_runs_all_batches():
    x, labels = batch(40)
    trainer = trainer_of(mlp(), optim.Adam(0.01))
    losses = trainer.fit(data.Batches(x, labels, size=8, epochs=20))
    assert len(losses) == 100 == trainer.count
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


# --- what is kept between steps -------------------------------------------------------------------------------


def test_batch_norm_keeps_running_statistics():
    class Normed(Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm1d(4, momentum=0.2)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.norm(x))

    model = Normed()
    trainer = trainer_of(model, optim.SGD(0.0))
    mean, variance = np.zeros(4), np.ones(4)
    for step in range(4):
        x, labels = batch(8, step)
        trainer.step(x, labels)
        mean = 0.8 * mean + 0.2 * x.mean(0)
        variance = 0.8 * variance + 0.2 * x.var(0, ddof=1)
    close(model.norm.running_mean, mean, 1e-5)
    close(model.norm.running_variance, variance, 1e-5)
    assert isinstance(model.norm.running_mean, nn.Buffer)
    x, _ = batch(5, 9)
    expected = (x - mean) / np.sqrt(variance + 1e-5) @ model.head.weight + model.head.bias
    close(ingot.compile(model, ingot.f32["n", 4])(x), expected, 1e-4, 1e-5)


class Shared(Module):
    """One matrix used twice: as an embedding and, transposed, as the head."""

    def __init__(self) -> None:
        self.table = RNG.standard_normal((3, 4)).astype(np.float32)
        self.again = self.table
        self.layers = [nn.Linear(4, 4, generator=0)] * 2

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x @ self.again.T + x @ self.table.T


def test_shared_parameters_are_one():
    model = Shared()
    assert sorted(model.named_parameters()) == ["layers.0.bias", "layers.0.weight", "table"]
    x, labels = batch(5)
    gradient = ingot.grad(classify)(model, x, labels)
    assert sorted(gradient) == ["layers.0.bias", "layers.0.weight", "table"]
    before = model.table.copy()
    trainer = trainer_of(model)
    trainer.step(x, labels)
    assert model.again is model.table
    assert model.layers[0] is model.layers[1]
    close(model.table, before - 0.1 * gradient["table"], 1e-4, 1e-6)


def test_gradients_of_a_module_are_those_of_its_parameters():
    """Buffers have none."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3))
    x, labels = batch(6)
    assert sorted(ingot.grad(classify)(model, x, labels)) == sorted(model.named_parameters())


def test_dropout_in_training_and_not_in_inference():
    class Dropped(Module):
        def __init__(self) -> None:
            self.scale = np.ones(1000, np.float32)
            self.dropout = nn.Dropout(0.3, seed=1)

        def forward(self, x):
            return self.dropout(x * self.scale)

    model = Dropped()

    def loss(model, x):
        y = model(x)
        return y.mean() * 0.0, {"y": y}

    trainer = ingot.Trainer(model, loss, optim.SGD(0.1), ingot.f32[20, 1000])
    x = np.ones((20, 1000), np.float32)
    masks = [trainer.step(x)[1]["y"] for _ in range(3)]
    for y in masks:
        assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}
        assert (y == 0).mean() == pytest.approx(0.3, abs=0.02)
        assert y.mean() == pytest.approx(1, abs=0.02)
    assert not np.array_equal(masks[0], masks[1])
    np.testing.assert_array_equal(ingot.compile(model, ingot.f32[20, 1000])(x), x)
    again = ingot.Trainer(Dropped(), loss, optim.SGD(0.1), ingot.f32[20, 1000], threads=1)
    np.testing.assert_array_equal(again.step(x)[1]["y"], masks[0])


def test_two_dropouts_draw_different_masks():
    """Layers with the same seed, one after the other: dropped elements are not the same ones."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)).train()
    x = np.ones(10000, np.float32)
    y = ingot.jit(lambda model, x: model(x))(model, x)
    assert (y != 0).mean() == pytest.approx(0.25, abs=0.02)


def test_a_buffer_that_forward_assigns():
    class Counter(Module):
        def __init__(self) -> None:
            self.weight = np.zeros((4, 3), np.float32)
            self.seen = nn.Buffer(np.zeros((), np.int64))

        def forward(self, x):
            self.seen = x._coerce(self.seen) + x.shape[0]
            return x @ self.weight

    model = Counter()
    trainer = trainer_of(model)
    for count in (3, 4):
        trainer.step(*batch(count))
    assert model.seen == 7


def test_a_buffer_of_another_type_is_refused():
    class Wrong(Module):
        def __init__(self) -> None:
            self.weight = np.zeros((4, 3), np.float32)
            self.kept = nn.Buffer(np.zeros(2, np.float32))

        def forward(self, x):
            self.kept = x
            return x @ self.weight

    with pytest.raises(IngotError, match="buffer kept"):
        trainer_of(Wrong())


# --- checkpoints ------------------------------------------------------------------------------------------------

KILLED_WHILE_SAVING = """
    import os, signal, sys
    import numpy as np
    import ingot
    from ingot import nn, optim
    from ingot.frontends.dsl import trainer as module

    model = nn.Linear(300, 300, generator=0)
    loss = lambda m, x: (m(x) ** 2).mean()
    trainer = ingot.Trainer(model, loss, optim.Adam(0.1), ingot.f32[2, 300])
    trainer.save(sys.argv[1])
    trainer.step(np.ones((2, 300), np.float32))

    class Dying:
        def __init__(self, file):
            self.file = file

        def write(self, content):
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    replacing = module.replacing

    class Replacing:
        def __init__(self, *args):
            self.inner = replacing(*args)

        def __enter__(self):
            return Dying(self.inner.__enter__())

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    module.replacing = Replacing
    trainer.save(sys.argv[1])
"""


def test_killed_while_saving_the_old_checkpoint_remains(tmp_path):
    path = tmp_path / "run.ckpt"
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED_WHILE_SAVING), str(path)], capture_output=True, text=True
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    model = nn.Linear(300, 300, generator=0)
    initial = model.weight.copy()
    trainer = ingot.Trainer(model, lambda m, x: (m(x) ** 2).mean(), optim.Adam(0.1), ingot.f32[2, 300])
    model.weight[...] = 0
    trainer.load(path)
    assert trainer.count == 0
    np.testing.assert_array_equal(model.weight, initial)


def test_a_checkpoint_is_a_safetensors_file_with_all_state(tmp_path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    trainer = trainer_of(mlp(), optim.Adam(0.01))
    trainer.step(*batch(4))
    trainer.save(tmp_path / "run.ckpt")
    arrays = load_file(os.fspath(tmp_path / "run.ckpt"))
    assert arrays["optimizer.count"] == 1
    assert {"layers.0.weight", "optimizer.layers.0.weight.mean", "optimizer.layers.2.bias.square"} <= arrays.keys()
    np.testing.assert_array_equal(arrays["layers.0.weight"], trainer.model[0].weight)


# --- data -------------------------------------------------------------------------------------------------------


def test_batches_cover_the_data_once_an_epoch():
    x = np.arange(10)
    batches = data.Batches(x, x * 2, size=4, epochs=3)
    seen = list(batches)
    assert len(seen) == len(batches) == 9
    for epoch in range(3):
        parts = [a for a, _ in seen[3 * epoch : 3 * epoch + 3]]
        assert [len(p) for p in parts] == [4, 4, 2]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), x)
    assert all((b == 2 * a).all() for a, b in seen)
    orders = {tuple(np.concatenate([a for a, _ in seen[3 * e : 3 * e + 3]])) for e in range(3)}
    assert len(orders) == 3


def test_batches_are_reproducible():
    x = np.arange(20)
    first, again, other = ([a.tolist() for (a,) in data.Batches(x, size=6, seed=seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert [a.tolist() for (a,) in data.Batches(x, size=20, shuffle=False)] == [x.tolist()]


def test_the_last_batch_can_be_dropped():
    batches = data.Batches(np.arange(10), size=4, drop_last=True, epochs=2)
    assert [len(a) for (a,) in batches] == [4, 4, 4, 4]
    assert len(batches) == 4


def test_wrong_batches_of_data():
    with pytest.raises(ValueError, match="different lengths"):
        data.Batches(np.arange(3), np.arange(4))
    with pytest.raises(ValueError, match="at least 1"):
        data.Batches(np.arange(3), size=0)


def test_split():
    x = np.arange(50)
    (train, train_again), (test, _) = data.split(x, x + 1, test=0.3, seed=2)
    assert (len(train), len(test)) == (35, 15)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), x)
    np.testing.assert_array_equal(train_again, train + 1)


# --- modules ----------------------------------------------------------------------------------------------------


def test_state_dict_round_trip():
    source, target = mlp(), mlp()
    for array in source.parameters():
        array += 1
    target.load_state_dict(source.state_dict())
    for a, b in zip(source.parameters(), target.parameters(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_state_dict_that_does_not_fit_changes_nothing():
    model = mlp()
    before = [a.copy() for a in model.parameters()]
    wrong = dict(model.state_dict())
    wrong["layers.2.bias"] = np.zeros(9)
    with pytest.raises(ValueError, match=r"layers\.2\.bias"):
        model.load_state_dict(wrong)
    with pytest.raises(ValueError, match=r"missing.*layers\.0\.weight"):
        model.load_state_dict({})
    for a, b in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_modules_in_lists_tuples_and_dicts_are_children():
    class Holder(Module):
        def __init__(self) -> None:
            self.parts = [nn.Linear(2, 2), (nn.Linear(2, 2),)]
            self.named = {"a": nn.Linear(2, 2, bias=False)}
            self.fixed = (np.ones(3, np.float32),)
            self.count = np.arange(3)

    names = sorted(Holder().named_parameters())
    expected = ["named.a.weight", "parts.0.bias", "parts.0.weight", "parts.1.0.bias", "parts.1.0.weight"]
    assert names == expected


def test_train_and_eval_reach_every_module():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm(3)))
    assert all(m.training for m in model.modules())
    assert not any(m.training for m in model.eval().modules())
    assert all(m.training for m in model.train().modules())


def test_compiling_does_not_change_the_module():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    before = dict(model.named_arrays())
    ingot.compile(model, ingot.f32[2, 4])
    assert model.training
    after = model.named_arrays()
    assert all(after[name] is array for name, array in before.items())


def test_a_module_prints_its_parameters():
    text = repr(nn.Sequential(nn.Linear(4, 3)).layers[0])
    assert "weight: float32[4, 3]" in text


def test_layers_begin_with_different_weights_and_a_seed_brings_them_back():
    nn.seed(3)
    first, second = nn.Linear(4, 4).weight, nn.Linear(4, 4).weight
    nn.seed(3)
    again = nn.Linear(4, 4).weight
    nn.seed(4)
    other = nn.Linear(4, 4).weight
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    with pytest.raises(ValueError, match="0 or more"):
        nn.seed(-1)
