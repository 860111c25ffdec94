"""Each rewrite: its text before and after, what it refuses, and that any sequence of rewrites keeps the meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import For, Function, If, Let, Prefetch, Statement, Store, walk
from ingot.compiler.ir.scalar import Buffer, Const, Load, Local, Read, apply, constant
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.text import print_function
from ingot.compiler.ir.types import boolean, f32
from ingot.compiler.ir.verify import verify_function
from ingot.compiler.schedule import primitives
from ingot.compiler.schedule.primitives import ScheduleError

n, m = Symbol("n"), Symbol("m")
X, Y = Buffer("x", f32, (n, m)), Buffer("y", f32, (n, m))


E, F = Buffer("e", f32, (70,)), Buffer("f", f32, (70,))
PLACE = symbolic.Variable("i", 0, 63)


def variable(name: str, extent: Dim) -> symbolic.Variable:
    return symbolic.Variable(name, 0, extent - 1)


def loop(name: str, extent: Dim, body: Callable[[Dim], tuple[Statement, ...]]) -> For:
    v = variable(name, extent)
    return For(v, extent, body(v))


def double() -> For:
    """for i in n { for j in m { y[i, j] = x[i, j] + x[i, j] } }"""

    def point(i: Dim, j: Dim) -> tuple[Statement, ...]:
        return (Store(Y, (i, j), apply("add", Load(X, (i, j)), Load(X, (i, j)))),)

    return loop("i", n, lambda i: (loop("j", m, lambda j: point(i, j)),))


def text(*statements: Statement, parameters: tuple[Buffer, ...] = (X, Y)) -> str:
    """The statements as text, without the function around them."""
    function = Function("f", parameters, statements)
    verify_function(function)
    lines = print_function(function).strip().splitlines()[1:-1]
    return "\n".join(line[2:] for line in lines)


# --- text -------------------------------------------------------------------------------------------------------


def test_split_makes_full_blocks_and_a_rest():
    inner = primitives.only_inner(double(), "test")
    main, tail = primitives.split(inner, 4)
    assert main is not None
    assert tail is not None
    (whole,) = (loop("i", n, lambda i: _with(i, inner, main, tail)),)
    assert (
        text(whole)
        == """\
for i in n {
  for j_o in m//4 {
    for j_i in 4 {
      y[i, 4*j_o + j_i] = x[i, 4*j_o + j_i] + x[i, 4*j_o + j_i]
    }
  }
  for j_r in m % 4 {
    y[i, 4*(m//4) + j_r] = x[i, 4*(m//4) + j_r] + x[i, 4*(m//4) + j_r]
  }
}"""
    )


def _with(i: Dim, original: For, *statements: Statement) -> tuple[Statement, ...]:
    """Statements of the body of `double` in another loop over i."""
    outer = double_variable(original)
    return primitives.copy(statements, {outer: i})


def double_variable(inner: For) -> Dim:
    (store,) = inner.body
    assert isinstance(store, Store)
    return store.index[0]


def test_a_constant_extent_that_divides_has_no_rest():
    v = variable("i", 12)
    main, tail = primitives.split(For(v, 12, (Store(Y, (v, 0), constant(1.0, f32)),)), 4)
    assert tail is None
    assert main is not None
    assert main.extent == 3


def test_block_shortens_the_last_block():
    assert (
        text(primitives.block(double(), 8))
        == """\
for i_o in (n + 7)//8 {
  for i_i in min(8, n - 8*i_o) {
    for j in m {
      y[8*i_o + i_i, j] = x[8*i_o + i_i, j] + x[8*i_o + i_i, j]
    }
  }
}"""
    )


def test_peel_takes_the_first_iterations_apart():
    (first, rest) = primitives.peel(double(), 3 * m)
    assert (
        text(first)
        == """\
for i_f in min(3*m, n) {
  for j in m {
    y[i_f, j] = x[i_f, j] + x[i_f, j]
  }
}"""
    )
    assert text(rest).startswith("""\
for i in n - min(3*m, n) {
  for j in m {
    y[i + min(3*m, n), j] =""")


def test_alternate_takes_both_halves_in_turn():
    pairs, rest = primitives.alternate(double())
    assert (
        text(pairs)
        == """\
for i_p in n//2 {
  for i_h in 2 {
    for j in m {
      y[i_h*(n//2) + i_p, j] = x[i_h*(n//2) + i_p, j] + x[i_h*(n//2) + i_p, j]
    }
  }
}"""
    )
    assert text(rest).startswith("for i_r in n % 2 {")


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_alternate_takes_every_iteration_once(parts):
    for count in range(40):
        taken = primitives.alternate(loop("i", count, lambda i: (Store(F, (i,), Load(E, (i,))),)), parts)
        source, result = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
        run_function(Function("f", (E, F), taken), [source, result])
        np.testing.assert_array_equal(result, np.where(source < count, source, 0))


def test_what_is_walked_through_is_fetched_ahead_once_a_line():
    (main, *_) = primitives.strip(For(PLACE, 64, (Store(F, (PLACE,), Load(E, (PLACE,))),)), 8, 4)
    assert isinstance(main, For)

    fetching = primitives.fetched_ahead((main,), lambda load: Load(load.buffer, (load.index[0] + 512,)))
    hints = [s for s in walk(fetching) if isinstance(s, Prefetch)]
    assert {hint.buffer for hint in hints} == {E}
    assert [hint.index for hint in hints] == [(32 * main.variable + 512,), (32 * main.variable + 528,)]


def test_interleaved_vectors_are_one_wide_one():
    loops = primitives.strip(For(PLACE, 70, (Store(F, (PLACE,), Load(E, (PLACE,))),)), 8, 4, interleaved=True)
    widths = [s.width for s in walk(loops) if isinstance(s, For) and s.kind == "vector"]
    assert widths == [32, 8]


def test_reorder_exchanges():
    assert (
        text(primitives.reorder(double()))
        == """\
for j in m {
  for i in n {
    y[i, j] = x[i, j] + x[i, j]
  }
}"""
    )


def test_fuse_recovers_both_variables():
    assert (
        text(primitives.fuse(double()))
        == """\
for ij in m*n {
  y[ij//m, ij % m] = x[ij//m, ij % m] + x[ij//m, ij % m]
}"""
    )


def test_join_makes_sections():
    first, second = (loop(name, n, lambda v: (Store(Y, (v, 0), constant(1.0, f32)),)) for name in "ab")
    assert (
        text(primitives.join([first, second]))
        == """\
for section in 2*n {
  if index(section) < index(n) {
    y[section, 0] = 1.0
  } else {
    y[section - n, 0] = 1.0
  }
}"""
    )


def test_strip_is_vectors_and_a_masked_rest():
    v = variable("i", 21)
    stripped = primitives.strip(For(v, 21, (Store(Y, (v, 0), constant(1.0, f32)),)), 4, 2)
    assert (
        text(*stripped)
        == """\
for i_o in 2 {
  for i_i_o in 2 unrolled {
    for i_i_i in 4 vector(4) {
      y[8*i_o + 4*i_i_o + i_i_i, 0] = 1.0
    }
  }
}
for i_r_o in 1 {
  for i_r_i in 4 vector(4) {
    y[i_r_i + 16, 0] = 1.0
  }
}
y[20, 0] = 1.0"""
    )


def test_stage_copies_a_box_first():
    box = Buffer("box", f32, (4, m), "arena")
    origin = variable("o", n // 4)
    rows = loop(
        "i", 4, lambda i: (loop("j", m, lambda j: (Store(Y, (4 * origin + i, j), Load(X, (4 * origin + i, j))),)),)
    )
    staged = For(origin, n // 4, primitives.stage(rows, X, box, (4 * origin, 0)))
    assert (
        text(staged, parameters=(X, Y, box))
        == """\
for o in n//4 {
  for p0 in 4 {
    for p1 in m {
      box[p0, p1] = x[4*o + p0, p1]
    }
  }
  for i in 4 {
    for j in m {
      y[4*o + i, j] = box[i, j]
    }
  }
}"""
    )


def test_hoist_moves_what_does_not_change():
    local = Local("t", f32)
    body = loop("j", m, lambda j: (Let(local, apply("exp", constant(2.0, f32))), Store(Y, (0, j), Read(local))))
    assert (
        text(*primitives.hoist(body))
        == """\
let t = exp(f32(2.0))
for j in m {
  y[0, j] = t
}"""
    )


def test_distribute_gives_each_part_its_loop():
    z = Buffer("z", f32, (m,))
    body = loop("j", m, lambda j: (Store(z, (j,), Load(X, (0, j))), Store(Y, (0, j), Load(z, (j,)))))
    assert (
        text(*primitives.distribute(body, 1), parameters=(X, Y, z))
        == """\
for j in m {
  z[j] = x[0, j]
}
for j_1 in m {
  y[0, j_1] = z[j_1]
}"""
    )


def test_simplify_removes_what_is_decided():
    one = loop("i", 1, lambda i: (Store(Y, (i, 0), constant(1.0, f32)),))
    none = loop("j", 0, lambda j: (Store(Y, (j, 0), constant(2.0, f32)),))
    choice = If(Const(False, boolean), (Store(Y, (0, 0), constant(3.0, f32)),), (Store(Y, (0, 1), constant(4.0, f32)),))
    assert text(*primitives.simplify((one, none, choice))) == "y[0, 0] = 1.0\ny[0, 1] = 4.0"


# --- refusals ---------------------------------------------------------------------------------------------------


def triangular() -> For:
    return loop("i", n, lambda i: (loop("j", i + 1, lambda j: (Store(Y, (i, j), constant(1.0, f32)),)),))


def shifted() -> For:
    """y[i, 0] = y[i + 1, 0]: iterations read what others store"""
    return loop("i", n - 1, lambda i: (Store(Y, (i, 0), Load(Y, (i + 1, 0))),))


def scattered() -> For:
    """y[0, i + j] = x[i, j]: the last store wins"""
    return loop("i", n, lambda i: (loop("j", m, lambda j: (Store(Y, (0, i + j), Load(X, (i, j))),)),))


def summed() -> For:
    """y[0, 0] += x[i, 0]"""
    return loop("i", n, lambda i: (Store(Y, (0, 0), apply("add", Load(Y, (0, 0)), Load(X, (i, 0)))),))


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (lambda: primitives.reorder(triangular()), "cannot reorder loop i: the extent of the inner loop j depends"),
        (lambda: primitives.reorder(scattered()), "cannot reorder loop i: elements of y are stored several times"),
        (lambda: primitives.fuse(triangular()), "cannot fuse loop i: the extent of the inner loop j depends on it"),
        (lambda: primitives.fuse(summed()), "cannot fuse loop i: its body is not exactly one loop"),
        (lambda: primitives.vectorize(double(), 8), "cannot vectorize loop i: its extent n is not known"),
        (lambda: primitives.parallelize(shifted()), "cannot parallelize loop i: an iteration may touch what another"),
        (lambda: primitives.parallelize(summed()), "cannot parallelize loop i: its iterations may store the same"),
        (lambda: primitives.parallelize(scattered()), "cannot parallelize loop i: its iterations may store the same"),
        (lambda: primitives.unroll(double()), "cannot unroll loop i: its extent n is not constant"),
        (lambda: primitives.split(primitives.parallelize(double()), 4), "cannot split loop i: it is parallel"),
        (lambda: primitives.split(double(), 0), "cannot split loop i: the factor 0 is not positive"),
        (lambda: primitives.join([primitives.parallelize(double()) for _ in "ab"]), "cannot join loop i: loop i"),
        (lambda: primitives.distribute(shifted(), 1), "cannot distribute loop i: an iteration may touch"),
        (lambda: primitives.at((double(),), variable("k", 3), primitives.unroll), "there is no loop over k"),
        (
            lambda: primitives.stage(double(), X, Buffer("box", f32, (4, 4)), (0, 0)),
            "cannot stage loop i: it may read x outside the box",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_loop_and_the_reason(rewrite, message):
    with pytest.raises(ScheduleError, match="^" + message):
        rewrite()


# --- meaning ----------------------------------------------------------------------------------------------------

A, B, C = (Buffer(name, f32, shape) for name, shape in (("a", (5, 7)), ("b", (7, 9)), ("c", (5, 9))))


def product() -> For:
    """c[i, j] += a[i, k] * b[k, j]"""

    def point(i: Dim, j: Dim, k: Dim) -> tuple[Statement, ...]:
        total = apply("add", Load(C, (i, j)), apply("mul", Load(A, (i, k)), Load(B, (k, j))))
        return (Store(C, (i, j), total),)

    return loop("i", 5, lambda i: (loop("j", 9, lambda j: (loop("k", 7, lambda k: point(i, j, k)),)),))


REWRITES: dict[str, Callable[[For, int], Sequence[Statement] | Statement]] = {
    "split": lambda loop, factor: tuple(part for part in primitives.split(loop, factor) if part is not None),
    "block": primitives.block,
    "alternate": lambda loop, factor: primitives.alternate(loop, factor + 1),
    "interleave": lambda loop, factor: primitives.strip(loop, 2, factor, interleaved=True),
    "reorder": lambda loop, factor: primitives.reorder(loop),
    "fuse": lambda loop, factor: primitives.fuse(loop),
    "unroll": lambda loop, factor: primitives.unroll(loop),
    "expand": lambda loop, factor: primitives.expand(loop),
    "vectorize": lambda loop, factor: primitives.vectorize(loop, 8),
    "parallelize": lambda loop, factor: primitives.parallelize(loop),
    "strip": lambda loop, factor: primitives.strip(loop, 4, factor),
    "hoist": lambda loop, factor: primitives.hoist(loop),
}
STEP = st.tuples(st.sampled_from(sorted(REWRITES)), st.integers(0, 5), st.integers(1, 5))


@settings(max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=6))
def test_any_sequence_of_rewrites_keeps_the_meaning(steps):
    statements: tuple[Statement, ...] = (product(),)
    for name, place, factor in steps:
        found = [s for s in walk(statements) if isinstance(s, For)]
        chosen = found[place % len(found)] if found else None
        if chosen is None or sum(1 for _ in walk(statements)) > 300:
            break
        try:
            statements = primitives.at(
                statements, chosen.variable, lambda loop, name=name, factor=factor: REWRITES[name](loop, factor)
            )
        except ScheduleError:
            continue
    function = Function("f", (A, B, C), primitives.simplify(statements))
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-3, 4, buffer.type.static_shape).astype(np.float32) for buffer in (A, B, C))
    expected = c + a @ b
    run_function(function, [a, b, c], parallel_order="shuffled")
    np.testing.assert_array_equal(c, expected)
