"""The loop interpreter: every statement against its meaning, every violation refused."""

from typing import Any

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir.interpret import IndexOutOfRange, InterpreterError, RunTimeFailure
from ingot.compiler.ir.loops import Function, Store
from ingot.compiler.ir.scalar import Buffer, Const, Load, Local, Read, Reduce
from ingot.compiler.ir.symbolic import Variable
from ingot.compiler.ir.types import f32, i64
from ingot.runtime.abi import Failure


def run(function: str, *arrays: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
    return interpret.run_function(text.parse_function(function), arrays, **options)


MATMUL = """
function matmul(x: f32[n, k], w: f32[k, m], y: f32[n, m]) {
  for i in n parallel {
    for j in (m + 7)//8 {
      alloc acc: f32[8] in register
      for l in 8 vector(8) {
        acc[l] = 0.0
      }
      for r in k {
        let a = x[i, r]
        for l in min(8, m - 8*j) within [0, 7] vector(8) {
          acc[l] = fma(a, w[r, 8*j + l], acc[l])
        }
      }
      for l in min(8, m - 8*j) within [0, 7] vector(8) {
        stream y[i, 8*j + l] = acc[l]
      }
    }
  }
}
"""


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_matmul_in_tiles(order: str, rng: np.random.Generator):
    x, w = rng.integers(-9, 9, (3, 5)).astype(np.float32), rng.integers(-9, 9, (5, 11)).astype(np.float32)
    y = np.full((3, 11), np.nan, np.float32)
    results = run(MATMUL, x, w, y, parallel_order=order)
    np.testing.assert_array_equal(y, x @ w)
    assert results[2] is y


def test_a_dependence_between_parallel_iterations_shows():
    function = """
    function f(x: i64[6]) {
      for i in 5 parallel { x[i + 1] = x[i] + 1 }
    }
    """
    results = {}
    for order in ("forward", "reverse", "shuffled"):
        (x,) = run(function, np.zeros(6, np.int64), parallel_order=order, seed=3)
        results[order] = x.tolist()
    assert results["forward"] == [0, 1, 2, 3, 4, 5]
    assert results["reverse"] == [0, 1, 1, 1, 1, 1]
    assert results["shuffled"] not in (results["forward"], results["reverse"])
    again = run(function, np.zeros(6, np.int64), parallel_order="shuffled", seed=3)[0].tolist()
    assert again == results["shuffled"]


def test_conditions_and_bounded_repetition():
    collatz = """
    function collatz(x: i64[], steps: i64[]) {
      steps[] = 0
      while x[] != 1 {
        if x[] % 2 == 0 { x[] = x[] // 2 } else { x[] = 3 * x[] + i64(1) }
        steps[] = steps[] + 1
      } limit 20
    }
    """
    assert run(collatz, np.array(6), np.array(0))[1] == 8
    with pytest.raises(RunTimeFailure) as failure:
        run(collatz, np.array(27), np.array(0))
    assert failure.value.code == Failure.LOOP_BOUND_EXCEEDED


def test_fail_raises_with_code_site_and_details():
    function = """
    function f(x: f32[4]) {
      for i in 4 { fail x[i] < 0.0 code 7 "model.py:3"(index(i), x[i]) }
    }
    """
    run(function, np.ones(4, np.float32))
    with pytest.raises(RunTimeFailure) as failure:
        run(function, np.array([1, 2, -3, -4], np.float32))
    assert (failure.value.code, failure.value.site, failure.value.details) == (7, "model.py:3", (2, -3.0))


def test_calls_run_on_the_same_memory_and_see_the_dims():
    functions = """
    function scale(x: f32[n], y: f32[n]) {
      for i in n { y[i] = x[i] * cast(index(n), f32) }
    }
    function main(x: f32[2, n], y: f32[2, n]) {
      for r in 2 parallel {
        view a: f32[n] = x at n*r
        view b: f32[n] = y at n*r
        call scale(a, b)
      }
    }
    """
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    run(functions, x, y)
    np.testing.assert_array_equal(y, 3 * x)


def test_views_share_memory_also_under_another_type():
    function = """
    function f(x: f32[2, 2], bits: i32[4]) {
      view flat: f32[3] = x at 1
      flat[0] = 1.0
      view raw: i32[4] = x at 0
      for i in 4 { bits[i] = raw[i] }
    }
    """
    x, bits = np.zeros((2, 2), np.float32), np.zeros(4, np.int32)
    run(function, x, bits)
    assert x.tolist() == [[0, 1], [0, 0]]
    np.testing.assert_array_equal(bits, x.reshape(-1).view(np.int32))


ARENA = """
function f(y: f32[4]) {
  alloc a: f32[4] in arena at 0
  alloc b: f32[4] in arena at OFFSET
  for i in 4 { a[i] = 1.0 }
  for i in 4 { b[i] = 2.0 }
  for i in 4 { y[i] = a[i] }
}
"""


@pytest.mark.parametrize(("offset", "expected"), [(16, [1, 1, 1, 1]), (8, [1, 1, 2, 2]), (0, [2, 2, 2, 2])])
def test_arena_buffers_share_bytes_by_offset(offset: int, expected: list[float]):
    (y,) = run(ARENA.replace("OFFSET", str(offset)), np.zeros(4, np.float32))
    assert y.tolist() == expected


def test_allocated_memory_is_not_initialised():
    function = """
    function f(y: f32[2], z: i64[], t: bool[]) {
      for i in 2 {
        alloc s: f32[1] in stack
        y[i] = s[0]
        s[0] = 1.0
      }
      alloc k: i64[] in stack
      alloc b: bool[] in stack
      z[] = k[]
      t[] = b[]
    }
    """
    y, z, t = run(function, np.zeros(2, np.float32), np.array(0), np.array(False))
    assert np.isnan(y).all()
    assert z == -1
    assert t


def test_select_is_lazy_and_prefetch_does_nothing():
    function = """
    function f(x: f32[2], y: f32[4]) {
      prefetch x[99] locality 3
      for i in 4 { y[i] = select(index(i) < 2, x[i], -1.0) }
    }
    """
    assert run(function, np.ones(2, np.float32), np.zeros(4, np.float32))[1].tolist() == [1, 1, -1, -1]


def test_shared_parts_are_computed_once_and_only_where_they_are_wanted():
    """Doubling sixty times is sixty additions; a part that no chosen arm wants is not computed at all."""
    double = ", ".join(["a0 = x[] + x[]", *(f"a{n} = a{n - 1} + a{n - 1}" for n in range(1, 60))])
    function = f"""
    function f(x: f32[], y: f32[], ids: i64[2], z: f32[2]) {{
      y[] = let {double} in a59
      for i in 2 {{
        z[i] = let p = -z[bounded(ids[i], 2, "here")] in select(ids[i] < 2, p + p, 0.0)
      }}
    }}
    """
    arrays = np.ones((), np.float32), np.zeros((), np.float32), np.array([1, 99]), np.ones(2, np.float32)
    _, y, _, z = run(function, *arrays)
    assert y == 2.0**60
    assert z.tolist() == [-2, 0]


def test_scalars_have_exactly_their_type():
    function = """
    function f(y: i8[2], z: f32[1], w: u8[1]) {
      let big = i8(127)
      y[0] = big + 1
      y[1] = cast(f32(1000.0), i8)
      z[0] = f32(16777216.0) + 1.0
      w[0] = -u8(1)
    }
    """
    y, z, w = run(function, np.zeros(2, np.int8), np.zeros(1, np.float32), np.zeros(1, np.uint8))
    assert y.tolist() == [-128, 127]
    assert z[0] == np.float32(16777216)
    assert w[0] == 255


def test_indices_from_data():
    function = """
    function f(x: f32[5], ids: i64[3], y: f32[3]) {
      for i in 3 {
        let where = min(max(ids[i], -5), 4)
        y[i] = x[bounded(ids[i], 5, "here")] + x[opaque(where % 5, [0, 4])]
      }
    }
    """
    x, ids = np.arange(5, dtype=np.float32), np.array([0, -1, 3])
    assert run(function, x, ids, np.zeros(3, np.float32))[2].tolist() == [0, 8, 6]
    with pytest.raises(IndexError, match="index 5 at here is outside an extent of 5"):
        run(function, x, np.array([0, 5, 1]), np.zeros(3, np.float32))
    wrong = function.replace("where % 5, [0, 4]", "where % 5, [0, 1]")
    with pytest.raises(InterpreterError, match="a run-time index is 4, its bounds are 0 to 1"):
        run(wrong, x, ids, np.zeros(3, np.float32))


@pytest.mark.parametrize(("shift", "expected"), [(0, 0), (4, 15), (16, 12), (60, 1), (62, 0)])
def test_how_many_elements_come_before_a_line(shift, expected):
    memory = np.zeros(256, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    x = memory[start : start + 64].view(np.float32)
    function = "function f(x: f32[16], y: i64[1]) { y[0] = lead(x, 64) }"
    assert run(function, x, np.zeros(1, np.int64))[1].tolist() == [expected]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in 5 { x[i] = 0.0 }", r"\[4\] is outside x: f32\[4\], which has the shape \(4,\)"),
        ("for i in 4 { x[i - 1] = 0.0 }", r"\[-1\] is outside"),
        ("x[0] = x[7]", r"\[7\] is outside"),
        ("view v: f32[4] = x at 1", "reaches from byte 4 to 20 of 16"),
        ("view v: f32[2] = x at -1", "reaches from byte -4 to 4"),
    ],
)
def test_accesses_outside_are_refused(body: str, message: str):
    with pytest.raises(IndexOutOfRange, match=message):
        run(f"function f(x: f32[4]) {{ {body} }}", np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for l in n vector(2) { x[l] = 0.0 }", "a vector loop of width 2 runs 4 times"),
        ("for i in n within [0, 2] { x[i] = 0.0 }", "outside the bounds 0 to 2 of its variable"),
        ("alloc s: f32[n - 6] in stack", r"is allocated with the shape \(-2,\)"),
        ("call g(x)", r"x: f32\[n\] with shape \(4,\) is passed to g as y: f32\[5\]"),
        ("alloc s: f32[] in stack call g(x, s)", "g takes 1 buffers, not 2"),
    ],
)
def test_broken_rules_are_refused(body: str, message: str):
    functions = f"function g(y: f32[5]) {{ }} function f(x: f32[n]) {{ {body} }}"
    with pytest.raises(InterpreterError, match=message):
        run(functions, np.zeros(4, np.float32))


def test_what_is_not_there_is_refused():
    x = Buffer("x", f32, (2,))

    def run_store(*store: Any) -> None:
        interpret.run_function(Function("f", (x,), (Store(*store),)), [np.zeros(2, np.float32)])

    one = Const(1, f32)
    with pytest.raises(InterpreterError, match="the variable i is not bound here"):
        run_store(x, (Variable("i", 0, 1),), one)
    with pytest.raises(InterpreterError, match="the buffer z: f32"):
        run_store(Buffer("z", f32, ()), (), one)
    with pytest.raises(InterpreterError, match="t is read before its let"):
        run_store(x, (0,), Read(Local("t", f32)))
    with pytest.raises(InterpreterError, match="accessed with 2 indices"):
        run_store(x, (0,), Load(x, (0, 0)))
    with pytest.raises(InterpreterError, match="a i64 is stored to x"):
        run_store(x, (0,), Const(1, i64))
    with pytest.raises(InterpreterError, match="Reduce has no meaning in loops"):
        run_store(x, (0,), Reduce("sum", (), (), one))


def test_wrong_arguments_are_refused():
    function = "function f(x: f32[n], y: f32[n, 2]) { for i in n { y[i, 0] = x[i] } }"
    x, y = np.zeros(3, np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(InterpreterError, match="takes 2 arrays, 1 were given"):
        run(function, x)
    with pytest.raises(InterpreterError, match="parameter 'y', dim 0: is 4, but n is already 3"):
        run(function, x, np.zeros((4, 2), np.float32))
    with pytest.raises(InterpreterError, match="parameter 'y': the array is not contiguous"):
        run(function, x, np.zeros((2, 3), np.float32).T)
    with pytest.raises(InterpreterError, match="no array given for y"):
        interpret.run_function(text.parse_function(function), {"x": x})
    interpret.run_function(text.parse_function(function), {"y": y, "x": x})
