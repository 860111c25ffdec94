"""NumPy's own functions on tensors: the ops of the same name."""

import numpy as np
import pytest

import ingot
from tests.frontends.dsl.support import close

X = np.linspace(0.1, 0.9, 6, dtype=np.float32)
Y = np.linspace(-2, 2, 6, dtype=np.float32)


ONE_ARGUMENT = (
    np.exp, np.log1p, np.sqrt, np.negative, np.absolute, np.sign, np.rint, np.isnan, np.isfinite, np.arcsin, np.tanh,
    np.square, np.reciprocal, np.floor,
)  # fmt: skip
TWO_ARGUMENTS = (
    np.add, np.subtract, np.multiply, np.divide, np.power, np.maximum, np.minimum, np.hypot, np.arctan2, np.less,
    np.not_equal,
)  # fmt: skip


@pytest.mark.parametrize("function", ONE_ARGUMENT, ids=lambda f: f.__name__)
def test_functions_of_one_argument(function):
    found = ingot.interpret(function, X)
    close(found, function(X), 1e-5)
    assert np.asarray(found).dtype == function(X).dtype


@pytest.mark.parametrize("function", TWO_ARGUMENTS, ids=lambda f: f.__name__)
def test_functions_of_two_arguments_on_either_side(function):
    """The array is first, last, or neither."""
    expected = function(X, Y)
    for call in (function, lambda x, y: function(X, y), lambda x, y: function(x, Y)):
        close(ingot.interpret(call, X, Y), expected, 1e-5)


def test_operators_with_an_array_on_the_left():
    close(ingot.interpret(lambda x: Y - x, X), Y - X)
    close(ingot.interpret(lambda x: Y / x, X), Y / X)
    close(ingot.interpret(lambda x: np.float32(2) * x, X), 2 * X)
    matrix = np.arange(12, dtype=np.float32).reshape(2, 6)
    close(ingot.interpret(lambda x: matrix @ x, X), matrix @ X, 1e-5)
    close(ingot.interpret(lambda x: matrix > x, X), matrix > X)


@pytest.mark.parametrize("call", [np.spacing, np.add.reduce, lambda x: np.exp(x, out=X)])
def test_e101_functions_without_a_counterpart(call):
    with pytest.raises(ingot.IngotError, match=r"E101: np\.\w+ has no counterpart"):
        ingot.interpret(call, X)
