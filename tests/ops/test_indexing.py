"""Indexing beyond its samples: failures, duplicates, zeros and ties, clamping, refusals."""

import numpy as np
import pytest

from ingot.compiler.ir import tensor
from ingot.compiler.ir.interpret import IndexOutOfRange, run_function, run_kernel
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.types import boolean, f32, f64, i64, type_of, u64
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    GatherElements,
    GatherNd,
    OneHot,
    ScatterAdd,
    ScatterElements,
    ScatterNd,
)
from tests.ops.harness import call, gradient_of

DATA = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("index", [4, -5, 2**40])
@pytest.mark.parametrize(
    ("op", "shape"), [(Gather(0), (1,)), (GatherElements(0), (1, 1)), (GatherNd(), (1, 1))], ids=str
)
def test_reading_outside_fails_at_every_level(op, shape, index):
    indices = np.full(shape, index)
    with pytest.raises(IndexError):
        op.evaluate(DATA, indices)
    inputs = (Buffer("data", f64, DATA.shape), Buffer("indices", i64, shape))
    type_ = op.infer(*(b.type for b in inputs))
    output = Buffer("y", f64, type_.shape)
    variables = tensor.axes(type_.shape)
    value = op.lower(type_, variables, *map(tensor.BufferReader, inputs))
    definition = tensor.Definition(output, variables, value)
    with pytest.raises(IndexOutOfRange, match="gather"):
        run_kernel(tensor.Kernel("read", inputs, (output,), (definition,)), [DATA, indices])


@pytest.mark.parametrize("index", [4, -5])
@pytest.mark.parametrize(
    ("op", "shape"), [(ScatterAdd(0), (1,)), (ScatterElements(0), (1, 1)), (ScatterNd(), (1, 1))], ids=str
)
def test_writing_outside_fails_at_every_level(op, shape, index):
    indices = np.full(shape, index)
    updates = np.zeros(op.reading.infer(type_of(DATA), type_of(indices)).static_shape)
    with pytest.raises(IndexError):
        op.evaluate(DATA, indices, updates)
    arrays = (DATA, indices, updates)
    inputs = [Buffer(f"x{n}", type_of(a).dtype, a.shape) for n, a in enumerate(arrays)]
    y = Buffer("y", f64, DATA.shape)
    function = Function("write", (*inputs, y), op.loops([y], inputs))
    with pytest.raises(IndexOutOfRange, match="scatter"):
        run_function(function, [*arrays, np.empty_like(DATA)])


def test_the_last_of_duplicate_updates_wins_and_gets_the_gradient():
    data, indices = np.zeros(3), np.array([1, 1, 2, 1])
    updates = np.array([10.0, 20.0, 30.0, 40.0])

    def scatter(d, i, u):
        return d.scatter_elements(i, u, axis=0)

    np.testing.assert_array_equal(call(scatter, data, indices, updates), [0, 40, 30])
    np.testing.assert_array_equal(gradient_of(scatter, data, indices, updates, wrt=2), [0, 0, 1, 1])
    np.testing.assert_array_equal(gradient_of(scatter, data, indices, updates, wrt=0), [1, 0, 0])


@pytest.mark.parametrize("updates", [[2.0, 3.0, 5.0], [0.0, 3.0, 5.0], [0.0, 0.0, 5.0]])
def test_gradient_of_scattered_products_is_right_at_zeros(updates):
    data, indices, values = np.array([7.0, 1.0]), np.array([0, 0, 0]), np.array(updates)

    def scatter(d, i, u):
        return d.scatter_elements(i, u, axis=0, reduction="mul")

    others = [7 * np.prod(np.delete(values, n)) for n in range(3)]
    np.testing.assert_allclose(gradient_of(scatter, data, indices, values, wrt=2), others)
    expected = np.array([np.prod(values), 1.0])
    np.testing.assert_allclose(gradient_of(scatter, data, indices, values, wrt=0), expected)


def test_ties_of_scattered_extremes_share_the_gradient():
    data, indices, updates = np.array([5.0, 0.0]), np.array([0, 0, 1]), np.array([5.0, 5.0, -1.0])

    def scatter(d, i, u):
        return d.scatter_elements(i, u, axis=0, reduction="max")

    np.testing.assert_allclose(gradient_of(scatter, data, indices, updates, wrt=0), [1 / 3, 1])
    np.testing.assert_allclose(gradient_of(scatter, data, indices, updates, wrt=2), [1 / 3, 1 / 3, 0])


def test_gradient_of_an_embedding_adds_up_in_single_precision():
    table = np.zeros((2, 1), np.float16)
    words = np.zeros((3000,), np.int64)
    found = gradient_of(lambda t, w: t.gather(w, axis=0), table, words)
    np.testing.assert_array_equal(found, [[3000], [0]])


def test_one_class_of_each_row(rng):
    logits, labels = rng.standard_normal((5, 4)), np.array([[0], [3], [1], [1], [2]])
    found = call(lambda x, i: x.gather_elements(i, axis=1), logits, labels)
    np.testing.assert_array_equal(found, np.take_along_axis(logits, labels, 1))


def test_one_hot_of_colours():
    np.testing.assert_array_equal(OneHot(3, 0).evaluate(np.array(1)), [0, 1, 0])
    np.testing.assert_array_equal(OneHot(3, 1, i64, 5, -5).evaluate(np.array([7])), [[-5, -5, -5]])


@pytest.mark.parametrize(("start", "first"), [(-100, 0), (1, 1), (3, 2), (100, 2)])
def test_starts_are_clamped(start, first):
    starts = np.array([start, 0])
    np.testing.assert_array_equal(DynamicSlice((2, 3)).evaluate(DATA, starts), DATA[first : first + 2])
    changed = DynamicUpdateSlice().evaluate(DATA, np.full((2, 3), -1.0), starts)
    assert np.all(changed[first : first + 2] == -1)
    assert np.sum(changed == -1) == 6


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Gather(0), [f32[4], f32[2]], "use i64"),
        (Gather(0), [f32[4], u64[2]], "use i64"),
        (Gather(1), [f32[4], i64[2]], "axis 1 is outside"),
        (Gather(0), [f32[0], i64[2]], "no elements to index"),
        (GatherElements(0), [f32[4, 2], i64[4, 3]], "reach outside"),
        (GatherNd(), [f32[4], i64[1, 2]], "address 2 axes"),
        (GatherNd(1), [f32[4, 2], i64[3, 1]], "batch dims"),
        (ScatterAdd(0), [f32[4], i64[2], f32[3]], r"updates are f32\[3\], not f32\[2\]"),
        (ScatterAdd(0), [boolean[4], i64[2], boolean[2]], "not for bools"),
        (ScatterElements(0, "mean"), [f32[4], i64[2], f32[2]], "not one of none, add"),  # type: ignore[arg-type]
        (OneHot(3, 2), [i64[2]], "no place for a new axis"),
        (DynamicSlice((5,)), [f32[4], i64[1]], "does not fit"),
        (DynamicSlice((2,)), [f32[4], i64[2]], "wants 1 starts"),
        (DynamicUpdateSlice(), [f32[4], f64[2], i64[1]], "cast one"),
    ],
)
def test_refusals_say_why(op, types, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(*types)


@pytest.mark.parametrize("op", [ScatterNd(), ScatterElements(0)])
def test_what_is_scattered_into_may_be_stored_in_any_order(op):
    """A transposed array is a view, and a copy of it may be too."""
    straight, indices, updates = np.zeros((3, 4)), np.array([[1], [2]]), np.ones((2, 4))
    if isinstance(op, ScatterElements):
        indices = np.repeat(indices, 4, 1)
    turned = np.asfortranarray(straight)
    expected = [[0] * 4, [1] * 4, [1] * 4]
    for data in (straight, turned, np.zeros((4, 3)).T):
        np.testing.assert_array_equal(op.evaluate(data, indices, updates), expected)
        assert not data.any()
