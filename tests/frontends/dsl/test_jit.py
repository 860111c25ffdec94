"""`ingot.jit` and the derivative functions on arrays: what may be an argument, and what compiles anew."""

import numpy as np
import pytest

import ingot
from ingot import nn

X = np.linspace(-1, 1, 6, dtype=np.float32)


def test_nested_arguments_keep_their_arrangement():
    @ingot.jit
    def swapped(pair, named):
        a, [b, c] = pair
        return {"first": b - c, "others": (named["x"], a)}

    result = swapped((X, [X + 1, X]), {"x": 3.0})
    np.testing.assert_allclose(result["first"], np.ones(6), rtol=1e-6)
    assert result["others"][0] == 3
    np.testing.assert_array_equal(result["others"][1], X)


def test_gradients_are_arranged_as_the_argument():
    def loss(weights, scale):
        return (weights["a"] * weights["a"]).sum() * scale + weights["b"][0]

    found = ingot.grad(loss)({"a": X, "b": [1.5]}, 2.0)
    np.testing.assert_allclose(found["a"], 4 * X, rtol=1e-6)
    assert found["b"] == [1.0]


def test_gradients_of_a_module_are_named_as_its_parameters():
    model = nn.Sequential(nn.Linear(6, 2), nn.Tanh())
    slopes = ingot.grad(lambda model, x: model(x).sum())
    first = slopes(model, X[None])
    assert list(first) == list(model.named_parameters())
    weight, bias = model.parameters()
    expected = 1 - np.tanh(X[None] @ weight + bias) ** 2
    np.testing.assert_allclose(first["layers.0.bias"], expected[0], rtol=1e-5)
    bias[...] = 5.0  # new values, the same program
    assert (slopes(model, X[None])["layers.0.bias"] < 0.1).all()
    assert len(slopes.compiled) == 1


def test_a_module_in_another_mode_is_another_program():
    model = nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5))
    run = ingot.jit(lambda model, x: model(x))
    x = np.ones((64, 6), np.float32)
    noisy, calm = run(model, x), run(model.eval(), x)
    assert (noisy == 0).any()
    assert not (calm == 0).any()
    assert len(run.compiled) == 2


def test_one_program_for_each_set_of_types():
    double = ingot.jit(lambda x: x + x)
    for array in (X, X[:3], X, X.astype(np.float64), X[:3]):
        np.testing.assert_array_equal(double(array), 2 * array)
    assert len(double.compiled) == 3


def test_lists_of_numbers_are_arrays():
    np.testing.assert_array_equal(ingot.jit(lambda x: x * 2)([[1.0, 2.0], [3.0, 4.0]]), [[2, 4], [6, 8]])


def test_names_work():
    subtract = ingot.jit(lambda a, b: a - b)
    assert subtract(b=1.0, a=3.0) == subtract(3.0, b=1.0) == 2
    with pytest.raises(TypeError, match="unexpected keyword"):
        subtract(1.0, 2.0, c=3.0)


def test_wrong_number_of_arguments():
    with pytest.raises(ingot.IngotError, match=r"E107.*takes 1 arguments \(a\)"):
        ingot.jit(lambda a: a)(1.0, 2.0)


def test_inside_a_trace_it_is_the_function():
    square = ingot.jit(lambda x: x * x)
    outer = ingot.compile(lambda x: square(x) + square(x), ingot.f32[6])
    np.testing.assert_allclose(outer(X), 2 * X * X)
    assert not square.compiled


class Callable(nn.Module):
    """A module that says what it computes in `__call__` instead of `forward`."""

    def __init__(self) -> None:
        self.scale = np.full(3, 2, np.float32)

    def __call__(self, first, second):
        return first * self.scale + second


def test_a_module_that_defines_call_has_its_names():
    exe = ingot.compile(Callable(), ingot.f32["n", 3], ingot.f32[3])
    assert [given.name for given in exe.inputs] == ["first", "second"]
    np.testing.assert_array_equal(exe(second=np.ones(3, np.float32), first=np.ones((1, 3), np.float32)), [[3, 3, 3]])
