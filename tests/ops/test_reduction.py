"""Reductions beyond their samples: ties, zeros, narrow types, empty axes, and what is refused."""

import numpy as np
import pytest

from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import TensorType, boolean, f16, f32, f64, i32
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.reduction import Argmax, Cumprod, Cumsum, LinearRecurrence, Mean, Prod, Sum, Var
from tests.ops.harness import build, call, gradient_of, run


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_share_the_gradient(name):
    x = np.array([[3.0, 1.0, 3.0, 3.0], [2.0, 2.0, 2.0, 5.0]]) * (1 if name == "max" else -1)
    found = gradient_of(lambda n: n.reduce(name, (1,)), x)
    np.testing.assert_allclose(found, [[1 / 3, 0, 1 / 3, 1 / 3], [0, 0, 0, 1]])


def test_many_ties_are_counted_exactly_in_half_precision():
    x = np.ones((4096,), np.float16)
    assert np.all(gradient_of(lambda n: n.reduce("max"), x) == np.float16(1 / 4096))


@pytest.mark.parametrize("row", [[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
def test_gradient_of_product_is_the_product_of_the_others(row):
    expected = [np.prod(row[:n] + row[n + 1 :]) for n in range(3)]
    np.testing.assert_array_equal(gradient_of(lambda n: n.reduce("prod"), np.array(row)), expected)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_running_product_is_right_at_zeros(exclusive, reverse):
    x = np.array([2.0, 0.0, 3.0, 0.0, 5.0])

    def total(values):
        return Cumprod(0, exclusive, reverse).evaluate(values).sum()

    # the total is linear in each element, so one difference is exact
    expected = [total(x + np.eye(5)[n]) - total(x) for n in range(5)]
    found = gradient_of(lambda n: n.cumprod(axis=0, exclusive=exclusive, reverse=reverse), x)
    np.testing.assert_array_equal(found, expected)


def test_half_precision_accumulates_in_single():
    ones = np.ones((3000,), np.float16)
    assert Sum((0,)).evaluate(ones) == 3000  # half precision alone stops counting at 2048
    large = np.full((4096,), 60000, np.float16)
    assert call(lambda n: n.mean(axes=(0,)), large) == 60000  # the sum does not fit half precision
    assert Cumsum(0).evaluate(ones)[-1] == 3000


def test_integers_keep_their_type_and_wrap():
    x = np.array([2**31 - 1, 1], np.int32)
    result = Sum((0,)).evaluate(x)
    assert result.dtype == np.int32
    assert result == -(2**31)


def test_variance_does_not_cancel():
    x = 1e6 + np.array([0.0, 1.0, 2.0], np.float32)
    assert call(lambda n: n.var(axes=(0,)), x) == pytest.approx(2 / 3, rel=1e-6)


def test_mean_over_a_symbolic_dim_divides_by_its_value():
    types = [TensorType(f32, (Symbol("batch"), 3))]
    graph = build(lambda n: n.mean(axes=(0,)), types)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(run(graph, x)[0], x.mean(0))


def test_logsumexp_of_nothing_but_minus_infinity_has_no_gradient():
    x = np.array([[-np.inf, -np.inf], [0.0, 0.0]])
    found = gradient_of(lambda n: n.logsumexp(axes=(1,)), x)
    np.testing.assert_array_equal(found, [[0, 0], [0.5, 0.5]])


def test_linear_recurrence_discounts():
    rewards, discount = np.array([1.0, 2.0, 3.0]), np.full(3, 0.5)
    found = LinearRecurrence(0, reverse=True).evaluate(discount, rewards)
    np.testing.assert_allclose(found, [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3])


@pytest.mark.parametrize("extent", [0, 1, 5])
def test_loops_of_running_sums_take_any_extent(extent):
    rows, count = Symbol("rows", 0), Symbol("count", 0)
    x, y = (Buffer(name, f64, (rows, count)) for name in "xy")
    function = Function("cumsum", (x, y), Cumsum(1).loops([y], [x]))
    data = np.arange(3.0 * extent).reshape(3, extent)
    result = np.empty_like(data)
    run_function(function, [data, result])
    np.testing.assert_array_equal(result, data.cumsum(1))


@pytest.mark.parametrize(
    ("op", "type_", "message"),
    [
        (Sum((1, 0)), f32[2, 3], "must be sorted"),
        (Sum((2,)), f32[2, 3], "axis 2 is outside a tensor of rank 2"),
        (Sum((-1,)), f32[2, 3], "counted from the front"),
        (Sum((0, 0)), f32[2, 3], "appears twice"),
        (Prod((0,)), boolean[2], "not bool"),
        (Mean((0,)), i32[2], "takes float tensors, not i32"),
        (Var((0,)), i32[2], "takes float tensors"),
        (Argmax(0), f16[0, 2], "no elements to choose from"),
        (Cumsum(0), boolean[2], "cast it"),
    ],
)
def test_refusals_say_why(op, type_, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(type_)
