"""Ordering beyond its samples: the heap on many lengths, stability, NaN, symbolic sizes, refusals."""

import numpy as np
import pytest

from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.types import f32, f64, i64
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.ordering import Argsort, TopK
from tests.ops.harness import call, gradient_of


def best_by_loops(x, k, symbol: Dim, largest):
    """The loops on a row of `symbol` elements; returns the values and positions of the best k."""
    source = Buffer("x", f64, (1, symbol))
    values, positions = Buffer("values", f64, (1, k)), Buffer("positions", i64, (1, k))
    body = TopK(k, 1, largest).loops([values, positions], [source])
    function = Function("top_k", (source, values, positions), body)
    found = np.empty((1, k)), np.empty((1, k), np.int64)
    run_function(function, [x, *found])
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 40])
def test_heap_sorts_any_length(length, rng):
    n = Symbol("n")
    for largest in (False, True):
        x = rng.integers(0, max(2, length // 2), (1, length)).astype(np.float64)  # with many ties
        for k in {1, (length + 1) // 2, length}:
            values, positions = best_by_loops(x, k, n, largest)
            expected = Argsort(1, largest).evaluate(x)[:, :k]
            np.testing.assert_array_equal(positions, expected)
            np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))


@pytest.mark.parametrize("pattern", ["ascending", "descending", "equal"])
def test_heap_sorts_ordered_rows(pattern):
    row = {"ascending": np.arange(33.0), "descending": -np.arange(33.0), "equal": np.zeros(33)}[pattern]
    values, positions = best_by_loops(row[None], 33, 33, False)
    np.testing.assert_array_equal(values[0], np.sort(row))
    np.testing.assert_array_equal(positions[0], np.argsort(row, kind="stable"))


def test_equal_elements_keep_their_order_both_ways():
    x = np.array([1, 0, 1, 0, 1])
    np.testing.assert_array_equal(Argsort(0).evaluate(x), [1, 3, 0, 2, 4])
    np.testing.assert_array_equal(Argsort(0, descending=True).evaluate(x), [0, 2, 4, 1, 3])


def test_the_best_is_the_greatest_also_among_nans():
    x = np.array([[1, np.nan, 3, np.nan], [np.inf, 1, 2, 3], [3, 3, 1, 0]])
    greatest = TopK(1, 1).evaluate(x)[1][:, 0]
    np.testing.assert_array_equal(greatest, call(lambda n: n.argmax(axis=1), x))


def test_the_worst_is_the_least_number():
    x = np.array([[1, np.nan, 3, np.nan], [2, 1, np.inf, 1]])
    np.testing.assert_array_equal(TopK(1, 1, largest=False).evaluate(x)[1][:, 0], [0, 1])


def test_only_the_chosen_get_a_gradient():
    x = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    found = gradient_of(lambda n: n.top_k(k=2, axis=0)[0] * n.constant([10.0, 1.0]), x)
    np.testing.assert_array_equal(found, [0, 0, 1, 0, 10])
    sort = gradient_of(lambda n: n.sort(axis=0) * n.constant([1.0, 2.0, 3.0, 4.0, 5.0]), x)
    np.testing.assert_array_equal(sort, [3, 1, 4, 2, 5])


@pytest.mark.parametrize(("op", "message"), [(TopK(5, 0), "5 of 4"), (TopK(1, 1), "outside"), (Argsort(2), "outside")])
def test_refusals_say_why(op, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(f32[4])
