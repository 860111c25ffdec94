"""Whole models: compiled equals interpreted, in inference and over 100 steps of training; one compilation serves
every batch size; bits depend neither on threads nor on the batch."""

import hashlib

import numpy as np
import pytest

import ingot
from ingot import data, nn, optim
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.pipeline import relative_error
from tests.models.zoo import CASES, classify

NAMES = list(CASES)


def trainer_of(name, threads=None):
    case = CASES[name]
    return ingot.Trainer(case.build(), classify, case.optimizer(), case.input_type, case.label_type, threads=threads)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_interpreted(name):
    case = CASES[name]
    model = case.build()
    executable = ingot.compile(model, case.input_type)
    for count in (1, 3, 16):
        x, _ = case.batch(count)
        assert relative_error(executable(x), ingot.interpret(model, x)) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_equal_a_hundred_interpreted_steps(name):
    """Parameters, buffers and optimiser state after 100 steps. Rounding differs between the two and training
    amplifies it, so the bound is relative to each tensor's range. The data are such that no activation comes to lie on
    the kink of a ReLU to the last place, where a gradient may go either way."""
    case = CASES[name]
    trainer = trainer_of(name)
    states = {key: array.copy() for key, array in trainer.states.items()}
    first = None
    for step in range(100):
        x, labels = case.batch(8, seed=8 + step % 4)
        loss = trainer.step(x, labels)
        outputs = run_graph(trainer.graph, {**states, **dict(zip(argument_names(trainer), (x, labels), strict=True))})
        states.update({key: outputs[number] for key, number in trainer.graph.updates.items()})
        first = loss if first is None else first
        assert loss == pytest.approx(float(outputs[0]), rel=1e-3, abs=1e-4)
    assert trainer.count == 100
    assert loss < first
    for key, array in states.items():
        # a tensor whose true value is 0 (a key's bias) holds rounding noise only: its range says nothing
        scale = max(np.abs(array).max(), 1e-3)
        assert np.abs(trainer.states[key] - array).max() < 2e-3 * scale, key


def argument_names(trainer):
    return [v.op.name for v in trainer.graph.inputs_with("argument")]


@pytest.mark.parametrize("name", ["mlp", "lenet", "transformer"])
def test_one_compilation_serves_every_batch(name):
    case = CASES[name]
    model = case.build()
    symbolic = ingot.compile(model, case.input_type)
    for count in (1, 2, 7, 64, 256):
        x, _ = case.batch(count)
        static = ingot.compile(model, case.input_type.with_shape((count, *case.input_type.shape[1:])))
        np.testing.assert_array_equal(symbolic(x), static(x))


def test_memory_stays_flat_over_batches():
    """The arena grows to the largest batch once and is reused: no recompilation, no growth."""
    case = CASES["mlp"]
    executable = ingot.compile(case.build(), case.input_type)
    biggest, _ = case.batch(256)
    executable(biggest)
    contexts = [id(c.arena) for c in executable._contexts]
    for count in range(1, 257, 5):
        executable(biggest[:count])
    assert [id(c.arena) for c in executable._contexts] == contexts


def digest(trainer):
    total = hashlib.sha256()
    for _, array in sorted(trainer.states.items()):
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_threads(name):
    """Outputs, gradients and parameters after 50 steps."""
    case = CASES[name]
    found = set()
    for threads in (1, 2, 4):
        trainer = trainer_of(name, threads)
        losses = [trainer.step(*case.batch(16, seed=step % 3)) for step in range(50)]
        found.add((digest(trainer), tuple(losses)))
    assert len(found) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_its_batch(name):
    case = CASES[name]
    executable = ingot.compile(case.build(), case.input_type)
    x, _ = case.batch(64)
    whole = executable(x)
    for count in (1, 2, 5, 33):
        np.testing.assert_array_equal(executable(x[:count]), whole[:count])
    np.testing.assert_array_equal(executable(x[40:41])[0], whole[40])


def test_peak_is_what_is_used():
    case = CASES["lenet"]
    static = ingot.compile(case.build(), case.input_type.with_shape((16, 1, 16, 16)))
    x, _ = case.batch(16)
    static(x)
    (context,) = static._contexts
    assert context.arena_bytes == static.peak_bytes
    symbolic = ingot.compile(case.build(), case.input_type)
    assert symbolic.peak_bytes_for(batch=16) > 0


def test_digits_are_learnt():
    """scikit-learn's digits, above 97 % on images it has not seen."""
    with np.load("examples/data/digits.npz") as file:
        images, labels = file["images"][:, None].astype(np.float32) / 16, file["labels"]
    (train_x, train_y), (test_x, test_y) = data.split(images, labels, test=0.2, seed=1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    trainer = ingot.Trainer(model, classify, optim.Adam(2e-3), ingot.f32["batch", 1, 8, 8], ingot.i64["batch"])
    trainer.fit(data.Batches(train_x, train_y, size=32, epochs=12))
    classifier = ingot.compile(trainer.model, ingot.f32["batch", 1, 8, 8])
    assert (classifier(test_x).argmax(axis=1) == test_y).mean() > 0.97
