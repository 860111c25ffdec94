"""Movement beyond its samples: every slice and border of small tensors, symbolic sizes, helpers, refusals."""

import itertools

import numpy as np
import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import axes
from ingot.compiler.ir.types import TensorType, f32, i64, type_of
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import OpTypeError
from ingot.compiler.ops.movement import Concat, Diagonal, Dilate, Pad, Slice
from ingot.compiler.ops.structure import reshape_index
from ingot.compiler.options import Options
from ingot.compiler.pipeline import compile_graph
from ingot.runtime.executable import Executable
from tests.ops.harness import build, call, gradient_of, run

X = np.arange(6.0)


def test_every_slice_agrees_with_python():
    for start, stop, step in itertools.product(range(7), range(-1, 7), (-3, -2, -1, 1, 2, 3)):
        inside = start <= stop <= 6 if step > 0 else -1 <= stop <= start < 6
        if not inside:
            with pytest.raises(OpTypeError):
                Slice((start,), (stop,), (step,)).infer(TensorType(f32, (6,)))
            continue
        op = Slice((start,), (stop,), (step,))
        expected = X[start : stop if stop != -1 else None : step]
        assert op.infer(TensorType(f32, (6,))).shape == expected.shape
        np.testing.assert_array_equal(op.evaluate(X), expected)
        ones = gradient_of(lambda n, op=op: n.apply(op), X)
        np.testing.assert_array_equal(ones, np.isin(X, expected))


def test_length_of_a_symbolic_slice():
    n = Symbol("n", 4)
    shape = Slice((1,), (n,), (2,)).infer(TensorType(f32, (n,))).shape
    assert [symbolic.evaluate(shape[0], {n: size}) for size in (4, 5, 6)] == [2, 2, 3]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("extent", [1, 2, 3, 4])
def test_borders_are_numpys(mode, extent):
    x = np.arange(1.0, extent + 1)
    for low, high in itertools.product(range(8), repeat=2):
        found = Pad((low,), (high,), mode).evaluate(x)
        np.testing.assert_array_equal(found, np.pad(x, (low, high), mode=mode))


def test_symmetric_border_repeats_the_edge():
    x = np.array([10.0, 20.0, 15.0])
    np.testing.assert_array_equal(Pad((0,), (3,), "symmetric").evaluate(x), [10, 20, 15, 15, 20, 10])
    np.testing.assert_array_equal(Pad((0,), (2,), "reflect").evaluate(x), [10, 20, 15, 20, 10])


def test_padding_by_a_symbolic_number():
    n = Symbol("n")
    graph = build(lambda x: x.pad(low=(n,), high=(2 * n,), value=-1.0), [TensorType(f32, (n,))])
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(run(graph, x)[0], np.pad(x, (2, 4), constant_values=-1))


def test_split_undoes_concat(rng):
    parts = [rng.standard_normal((2, n, 3)) for n in (1, 4, 2)]

    def round_trip(*nodes):
        return movement.split(movement.concat(nodes, 1), [1, 4, 2], 1)

    for found, expected in zip(call(round_trip, *parts), parts, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_many_parts_are_chosen_between_by_halves(rng):
    """Compiling looks at scalars by recursion; a chain of so many choices was deeper than Python goes."""
    columns = [rng.standard_normal((2, 1)).astype(np.float32) for _ in range(400)]
    graph = build(lambda *nodes: movement.concat(nodes, 1), [type_of(c) for c in columns])
    program = compile_graph(graph, Options(cache=False)).program
    np.testing.assert_array_equal(Executable(program)(*columns), np.concatenate(columns, 1))


def test_stack_makes_a_new_axis(rng):
    a, b = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    for axis in (0, 1, 2):
        found = call(lambda x, y, axis=axis: movement.stack((x, y), axis), a, b)
        np.testing.assert_array_equal(found, np.stack((a, b), axis))


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_triangles_and_traces_are_numpys(offset, rng):
    x = rng.standard_normal((2, 4, 3))
    np.testing.assert_array_equal(call(lambda n: movement.tril(n, offset), x), np.tril(x, offset))
    np.testing.assert_array_equal(call(lambda n: movement.triu(n, offset), x), np.triu(x, offset))
    expected = np.trace(x, offset, -2, -1)
    np.testing.assert_allclose(call(lambda n: movement.trace(n, offset), x), expected)


def test_from_diagonal(rng):
    x = rng.standard_normal((2, 3))
    expected = np.stack([np.diag(row) for row in x])
    np.testing.assert_array_equal(call(movement.from_diagonal, x), expected)


def test_part_of_everything_is_the_thing_itself():
    build(lambda n: (_same(movement.part(n, 0, 0, 6), n), n)[1], [TensorType(f32, (6,))])


def _same(a, b):
    assert a is b
    return a


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Slice((0,), (4,), (0,)), [f32[4]], "step of axis 0 is 0"),
        (Slice((0,), (5,), (1,)), [f32[4]], "does not lie inside"),
        (Slice((0,), (4,), (1,)), [f32[4, 4]], "wants 2 starts"),
        (Pad((-3,), (0,)), [f32[2]], "crop more"),
        (Pad((1,), (0,), "reflect"), [f32[0]], "no elements to reflect"),
        (Pad((1,), (0,), "mirror"), [f32[2]], "not one of constant"),  # type: ignore[arg-type]
        (Concat(0), [], "at least one"),
        (Concat(0), [f32[2, 3], f32[2, 4]], "only that may differ"),
        (Concat(0), [f32[2], i64[2]], "cast one"),
        (Dilate((0,)), [f32[2]], "positive steps"),
        (Diagonal(), [f32[2]], "takes matrices"),
    ],
)
def test_refusals_say_why(op, types, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(*types)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float16])
@pytest.mark.parametrize("name", ["tril", "triu", "from_diagonal"])
def test_triangles_keep_the_element_type(name, dtype):
    """A mask is made of the triangle of a matrix of truths: it stays one."""
    x = np.ones(4 if name == "from_diagonal" else (4, 5), dtype)
    found = call(getattr(movement, name), x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, {"tril": np.tril, "triu": np.triu, "from_diagonal": np.diag}[name](x))


def test_a_reshape_that_moves_a_dim_of_one_keeps_plain_indices():
    """A remainder would hide from later passes that an index is one step beside another."""
    batch, depth, height = Symbol("batch"), Symbol("depth"), Symbol("height")
    i, j, k = axes((batch, depth, height))
    found = reshape_index((i, j - 1, k, 0), (batch, depth, height, 1), (batch, 1, depth, height))
    assert found == (i, 0, j - 1, k)
    found = reshape_index((i, 0, j, k), (batch, 1, depth, height), (batch, depth, height, 1))
    assert found == (i, j, k, 0)
