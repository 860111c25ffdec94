"""The tensor interpreter against NumPy, and against the loop interpreter on random kernels."""

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.interpret import IndexOutOfRange, InterpreterError
from ingot.compiler.ir.interpret import tensor as interpreter
from ingot.compiler.ir.scalar import FUNCTIONS, Buffer, Const, Load, Local, Read, cast_array
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Definition, Kernel, axes
from ingot.compiler.ir.types import DTYPES, DType, boolean, f32, i32, i64
from tests.ir.random_ir import Random, as_loops, random_kernel


def run(kernel: str, *arrays: np.ndarray, **dims: int) -> tuple[np.ndarray, ...]:
    return interpret.run_kernel(text.parse_kernel(kernel), arrays, dims)


SOFTMAX = """
kernel softmax(x: f32[n, 10]) -> (y: f32[n, 10]) {
  m[i < n] = max(k < 10: x[i, k])
  s[i < n] = sum(k < 10: exp(x[i, k] - m[i]))
  y[i < n, j < 10] = exp(x[i, j] - m[i]) / s[i]
}
"""


def test_softmax(rng: np.random.Generator):
    x = rng.normal(size=(5, 10)).astype(np.float32)
    exponents = np.exp(x - x.max(1, keepdims=True))
    (found,) = run(SOFTMAX, x)
    np.testing.assert_allclose(found, exponents / exponents.sum(1, keepdims=True), rtol=1e-6)


def test_arrays_by_name_and_observation(rng: np.random.Generator):
    x = rng.normal(size=(2, 10)).astype(np.float32)
    seen: dict[str, np.ndarray] = {}
    kernel = text.parse_kernel(SOFTMAX)
    interpret.run_kernel(kernel, {"x": x, "unused": x}, observe=lambda b, a: seen.update({b.name: a}))
    assert list(seen) == ["m", "s", "y"]
    np.testing.assert_array_equal(seen["m"], x.max(1))


@pytest.mark.parametrize("limit", [1, 7, 100, 1 << 22])
def test_matmul_does_not_depend_on_how_the_grid_is_split(limit: int, rng, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(interpreter, "LARGEST_GRID", limit)
    x, w = rng.integers(-9, 9, (6, 5)).astype(np.float32), rng.integers(-9, 9, (2, 5, 4)).astype(np.float32)
    kernel = """
    kernel product(x: f32[n, k], w: f32[2, k, m]) -> (y: f32[n, m]) {
      y[i < n, j < m] = sum(b < 2, r < k: x[i, r] * w[b, r, j])
    }
    """
    (found,) = run(kernel, x, w)
    np.testing.assert_array_equal(found, x @ w.sum(0))


def test_padding_reads_nothing_outside(rng: np.random.Generator):
    kernel = """
    kernel convolution(x: f64[8, 9], w: f64[3, 3]) -> (y: f64[8, 9]) {
      y[i < 8, j < 9] = sum(r < 3, s < 3: select((index(i + r) >= 1) & (index(i + r) <= 8)
        & (index(j + s) >= 1) & (index(j + s) <= 9), x[i + r - 1, j + s - 1], 0.0) * w[r, s])
    }
    """
    x, w = rng.normal(size=(8, 9)), rng.normal(size=(3, 3))
    padded = np.pad(x, 1)
    expected = sum(padded[r : r + 8, s : s + 9] * w[r, s] for r in range(3) for s in range(3))
    np.testing.assert_allclose(run(kernel, x, w)[0], expected, rtol=1e-12, atol=1e-12)


def test_nested_selects_narrow_the_mask():
    kernel = """
    kernel k(x: f32[4]) -> (y: f32[8]) {
      y[i < 8] = select(index(i) >= 2, select(index(i) < 6, x[i - 2], -1.0), -2.0)
    }
    """
    (found,) = run(kernel, np.arange(4, dtype=np.float32))
    assert found.tolist() == [-2, -2, 0, 1, 2, 3, -1, -1]


GATHER = """
kernel gather(x: f32[n, 3], ids: i64[4]) -> (y: f32[4, 3]) {
  y[i < 4, j < 3] = x[bounded(ids[i], n, "gather at model.py:3"), j]
}
"""


def test_indices_from_data_count_from_the_end(rng: np.random.Generator):
    x, ids = rng.normal(size=(5, 3)).astype(np.float32), np.array([0, -1, 4, -5])
    np.testing.assert_array_equal(run(GATHER, x, ids)[0], x[ids])


@pytest.mark.parametrize("wrong", [5, -6])
def test_indices_from_data_are_checked(wrong: int):
    with pytest.raises(IndexError, match=f"index {wrong} at gather at model.py:3 is outside an extent of 5"):
        run(GATHER, np.zeros((5, 3), np.float32), np.array([0, wrong, 1, 2]))


def test_an_index_from_data_is_not_checked_where_it_is_not_chosen():
    kernel = """
    kernel k(x: f32[5], ids: i64[3]) -> (y: f32[3]) {
      y[i < 3] = select(ids[i] < 5, x[bounded(ids[i], 5, "here")], 0.0)
    }
    """
    (found,) = run(kernel, np.arange(5, dtype=np.float32), np.array([1, 99, 4]))
    assert found.tolist() == [1, 0, 4]


def test_accesses_outside_a_buffer_are_refused():
    kernel = "kernel k(x: f32[4]) -> (y: f32[4]) { y[i < 4] = x[i + 1] }"
    with pytest.raises(IndexOutOfRange, match=r"index 4 is outside dim 0 of x: f32\[4\]"):
        run(kernel, np.zeros(4, np.float32))


def test_zero_extents_define_nothing_and_reduce_to_the_neutral_element():
    kernel = """
    kernel k(x: f32[n], z: f32[m]) -> (y: f32[2, n], s: f32[2], p: f32[2], t: f32[2], b: bool[]) {
      y[i < 2, j < n] = z[j]
      s[i < 2] = sum(k < n: z[k + 5])
      p[i < 2] = prod(k < n: x[k])
      t[i < 2] = max(k < n, l < 3: x[k])
      b[] = all(k < n: x[k] > 0.0)
    }
    """.replace("kernel k", "dim n in [0, inf]\nkernel k")
    y, s, p, t, b = run(kernel, np.zeros(0, np.float32), np.zeros(1, np.float32))
    assert y.shape == (2, 0)
    assert (s.tolist(), p.tolist(), t.tolist(), b.tolist()) == ([0, 0], [1, 1], [-np.inf] * 2, True)


def test_reductions_treat_not_a_number_as_numpy_does():
    kernel = """
    kernel k(x: f32[3]) -> (a: f32[], b: f32[], c: bool[]) {
      a[] = max(k < 3: x[k])
      b[] = min(k < 3: x[k])
      c[] = any(k < 3: isnan(x[k]))
    }
    """
    a, b, c = run(kernel, np.array([1, np.nan, 2], np.float32))
    assert np.isnan(a)
    assert np.isnan(b)
    assert c


def test_dims_that_no_shape_determines_are_given():
    kernel = text.parse_kernel("kernel k() -> (y: i64[n]) { y[i < n] = index(n - i) }")
    assert interpret.run_kernel(kernel, [], {"n": 3})[0].tolist() == [3, 2, 1]
    assert interpret.run_kernel(kernel, [], {Symbol("n"): 2})[0].tolist() == [2, 1]
    with pytest.raises(InterpreterError, match="no shape determines n; give it in `dims`"):
        interpret.run_kernel(kernel, [])
    with pytest.raises(InterpreterError, match="n is 0; its bounds allow at least 1"):
        interpret.run_kernel(kernel, [], {"n": 0})


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_give_exactly_their_type(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    for dtype in DTYPES.values():
        if dtype.kind not in function.kinds or (dtype.bits == 16 and dtype.is_float):
            continue  # half precision is computed in f32 by explicit casts
        first = boolean if name == "select" else dtype
        inputs = [Buffer(f"x{n}", dtype if n else first, (7,)) for n in range(function.arity)]
        (i,) = axes((7,))
        value = ir.apply(name, *(Load(b, (i,)) for b in inputs))
        output = Buffer("y", value.dtype, (7,))
        arrays = [example(b.dtype, rng) for b in inputs]
        if name == "pow" and dtype.is_integer:
            arrays[1] = np.abs(arrays[1])  # NumPy has no negative powers of integers
        (found,) = interpret.run_kernel(
            Kernel("k", tuple(inputs), (output,), (Definition(output, (i,), value),)), arrays
        )
        with np.errstate(all="ignore"):
            expected = np.asarray(function.evaluate(*arrays)).astype(value.dtype.numpy)
        assert found.dtype == value.dtype.numpy
        np.testing.assert_array_equal(found, expected)


def example(dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if dtype == boolean:
        return rng.random(7) < 0.5
    return rng.integers(0 if dtype.kind == "uint" else -3, 5, 7).astype(dtype.numpy)


def test_integer_powers_at_points_that_do_not_count_are_not_refused():
    kernel = """
    kernel k(x: i64[3]) -> (y: i64[3]) { y[i < 3] = select(x[i] >= 0, pow(i64(2), x[i]), 0) }
    """
    assert run(kernel, np.array([3, -1, 0]))[0].tolist() == [8, 0, 1]


@pytest.mark.parametrize("target", list(DTYPES.values()), ids=str)
def test_casts_saturate_and_bitcasts_keep_bits(target: DType):
    x, y = Buffer("x", f32, (8,)), Buffer("y", target, (8,))
    (i,) = axes((8,))
    values = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 0.5, -1.5, 300], np.float32)
    kernel = Kernel("k", (x,), (y,), (Definition(y, (i,), ir.Cast(Load(x, (i,)), target)),))
    with np.errstate(all="ignore"):
        found, expected = interpret.run_kernel(kernel, [values])[0], cast_array(values, target)
    assert found.tobytes() == expected.tobytes()
    if target.is_integer:
        info = np.iinfo(target.numpy)
        assert interpret.run_kernel(kernel, [values])[0].tolist()[:3] == [0, info.max, info.min]
    if target == i32:
        bits = Kernel("k", (x,), (y,), (Definition(y, (i,), ir.Bitcast(Load(x, (i,)), i32)),))
        np.testing.assert_array_equal(interpret.run_kernel(bits, [values])[0], values.view(np.int32))


def test_shared_parts_are_evaluated_once():
    """Doubling a value sixty times is a small graph and a tree of 2^60 leaves."""
    x, y = Buffer("x", f32, ()), Buffer("y", f32, ())
    value: ir.Scalar = Load(x, ())
    for _ in range(60):
        value = ir.apply("add", value, value)
    kernel = Kernel("k", (x,), (y,), (Definition(y, (), value),))
    assert interpret.run_kernel(kernel, [np.array(1, np.float32)])[0] == 2.0**60


def test_what_the_level_does_not_have_is_refused():
    y = Buffer("y", f32, ())

    def run_value(value: ir.Scalar) -> None:
        interpret.run_kernel(Kernel("k", (), (y,), (Definition(y, (), value),)), [])

    with pytest.raises(InterpreterError, match="Read has no meaning at the tensor level"):
        run_value(Read(Local("t", f32)))
    with pytest.raises(InterpreterError, match="read before it is defined"):
        run_value(Load(Buffer("z", f32, ()), ()))
    with pytest.raises(InterpreterError, match="defined by a value of type i64"):
        run_value(Const(1, i64))
    with pytest.raises(InterpreterError, match="no definition of output y"):
        interpret.run_kernel(Kernel("k", (), (y,), ()), [])
    with pytest.raises(InterpreterError, match="takes 0 arrays, 1 were given"):
        interpret.run_kernel(Kernel("k", (), (y,), ()), [np.zeros(1)])


@pytest.mark.parametrize("seed", range(80))
def test_index_notation_means_its_plain_loops(seed: int):
    kernel = random_kernel(seed)
    random = Random(seed)
    inputs = [random.array(b) for b in kernel.inputs]
    seen: dict[Buffer, np.ndarray] = {}
    interpret.run_kernel(kernel, inputs, observe=lambda buffer, array: seen.update({buffer: array}))
    function = as_loops(kernel)
    memory = [random.array(b) for b in function.parameters[len(inputs) :]]
    results = interpret.run_function(function, [*inputs, *memory])
    for buffer, found in zip(function.parameters[len(inputs) :], results[len(inputs) :], strict=True):
        np.testing.assert_array_equal(found, seen[buffer], err_msg=text.print_kernel(kernel))
