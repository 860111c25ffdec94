"""x[...] gives what NumPy gives, for every kind of index, with fixed and with symbolic extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingot
from ingot.compiler.errors import IngotError
from ingot.compiler.ir.types import f64, type_of
from tests.frontends.dsl.support import numeric_gradient, traced_run

A = np.arange(2 * 3 * 4 * 5, dtype=np.float64).reshape(2, 3, 4, 5)
ROWS = np.array([0, 1, -1])
GRID = np.array([[1], [2]])


class Key:
    """Indexing notation as a value."""

    def __getitem__(self, key: Any) -> Any:
        return key


S = Key()

BASIC = [
    S[0], S[-1], S[1, 2], S[1, -3, 2, 4], S[:], S[...], S[()], S[None], S[1:], S[:-1], S[::2], S[::-1], S[5:],
    S[-9:9], S[1:0], S[:, 1:3, ::-2], S[:, ::-1, 3:0:-2], S[..., 0], S[0, ...], S[0, ..., 1], S[:, None], S[None, 0,
    None, ..., None], S[..., None, 2:3], S[np.int64(1), np.int32(-1)], S[:, :, -1:-4:-1], S[:, :, 10:0:-3], S[:, 2:2],
    S[:, :, 1:-1, 1:-1],
]  # fmt: skip

ADVANCED = [
    S[ROWS], S[[0, 1]], S[:, ROWS], S[..., ROWS], S[:, ROWS, GRID], S[ROWS, ROWS], S[ROWS, :, ROWS], S[0, :, ROWS],
    S[:, 0, ROWS], S[ROWS, 0], S[ROWS, :, 0], S[0, ..., ROWS], S[ROWS, None, ROWS], S[None, ROWS], S[None, ROWS, ...,
    0], S[:, :, GRID, ROWS], S[::-1, ROWS, 3:0:-2], S[ROWS, GRID, :, ROWS], S[np.array(1)], S[:, np.array([],
    np.int64)], S[ROWS.astype(np.int8)], S[:, [[0, 1], [2, -3]]], S[1:, [0, 2], :, 1:4], S[[], :],
]  # fmt: skip

MASKS = [
    S[np.array([True, False])], S[:, np.array([True, False, True])], S[:, [False, False, True]], S[..., np.arange(5) >
    1], S[np.arange(6).reshape(2, 3) % 2 == 0], S[np.array([True, True]), :, ROWS[:2]], S[np.array([False, False])],
]  # fmt: skip


@pytest.mark.parametrize("key", [*BASIC, *ADVANCED, *MASKS], ids=str)
def test_index(key):
    found = traced_run(lambda x: x[key], [type_of(A)], A)
    np.testing.assert_array_equal(found, A[key])


@pytest.mark.parametrize("key", [*BASIC, *ADVANCED], ids=str)
def test_index_of_symbolic_extents(key):
    """One trace for any extents: the results are NumPy's for each."""
    types = [f64[ingot.dim("a", 2), ingot.dim("b", 3), ingot.dim("c", 4), ingot.dim("d", 5)]]
    for shape in ((2, 3, 4, 5), (3, 7, 4, 6), (6, 3, 11, 5)):
        x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
        np.testing.assert_array_equal(traced_run(lambda x: x[key], types, x), x[key])


def items(extent: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-extent - 3, extent + 3)
    slices = st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, -1, -2, -3]))
    if extent == 0:
        return slices
    places = st.integers(-extent, extent - 1)
    arrays = st.lists(places, min_size=3, max_size=3).map(np.array) | st.lists(places, min_size=2, max_size=2).map(
        lambda v: np.array(v)[:, None]
    )
    return slices | places | arrays


@st.composite
def shapes_and_keys(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=4)))
    used = draw(st.integers(0, len(shape)))
    front = draw(st.integers(0, used))
    axes = [*range(front), *range(len(shape) - used + front, len(shape))]
    key: list[Any] = [draw(items(shape[axis])) for axis in axes]
    if used < len(shape) and (front < used or draw(st.booleans())):
        key.insert(front, Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return shape, tuple(key)


@settings(max_examples=150)
@given(shapes_and_keys())
def test_any_index(shape_and_key):
    shape, key = shape_and_key
    x = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)
    np.testing.assert_array_equal(traced_run(lambda x: x[key], [type_of(x)], x), x[key])


def test_traced_index_tensors():
    def pick(x, rows, columns):
        return x[rows, columns], x[:, columns], x[rows][:, columns]

    x, rows, columns = A[0, 0], np.array([1, -1, 0]), np.array([4, 0, -5], np.int32)
    found = ingot.compile(pick, x, rows, columns)(x, rows, columns)
    for one, expected in zip(found, (x[rows, columns], x[:, columns], x[rows][:, columns]), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_traced_index_out_of_range_is_an_error_when_it_runs():
    executable = ingot.compile(lambda x, i: x[i, i], f64[3, 4], ingot.i64[2])
    x = A[0, :, 0, :4].copy()
    np.testing.assert_array_equal(executable(x, np.array([0, -1])), x[[0, -1], [0, -1]])
    for bad in ([0, 3], [0, -4]):
        with pytest.raises(Exception, match="index"):
            executable(x, np.array(bad))


@pytest.mark.parametrize(
    "key",
    [S[2], S[-3], S[:, 3], S[0, 0, 0, 0, 0], S[..., ...], S[1.5], S["a"], S[::0], S[True], S[np.array([1.0])],
     S[np.array([True, False, True])], S[0:1.5]],
    ids=str,
)  # fmt: skip
def test_what_numpy_refuses_is_refused_while_tracing(key):
    with pytest.raises(IngotError, match="E108"):
        traced_run(lambda x: x[key], [type_of(A)], A)


@pytest.mark.parametrize("key", [S[1], S[:, ::-2], S[ROWS, :, ROWS], S[..., ROWS], S[np.array([True, False])]], ids=str)
def test_gradient_of_an_index(key):
    """Elements read twice get both cotangents, elements not read none."""
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 3))

    def f(x):
        part = x[key]
        return (part * part).sum()

    found = traced_run(ingot.grad(f).function, [type_of(x)], x)
    np.testing.assert_allclose(found, numeric_gradient(lambda v: float((v[key] ** 2).sum()), x), 1e-6, 1e-8)
