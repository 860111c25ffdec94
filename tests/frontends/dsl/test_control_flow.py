"""cond, while_loop and scan: their results, what they capture, and gradients through each, nested too."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.compiler.errors import IngotError
from ingot.compiler.ir.types import type_of
from ingot.frontends.dsl import functions
from tests.frontends.dsl.support import close, numeric_gradient, traced_run

RNG = np.random.default_rng(2)
X = RNG.uniform(0.5, 1.5, 5)
XS = RNG.standard_normal((6, 3))


def both(function, *arrays):
    """The result compiled; interpreted it must be the same."""
    found = ingot.compile(function, *arrays, threads=2)(*arrays)
    expected = traced_run(function, [type_of(a) for a in arrays], *arrays)
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        close(a, b, 1e-10, 1e-12)
    return found


def leaves(result):
    return [leaf for _, leaf in functions.flatten(result)[0]]


# --- cond -----------------------------------------------------------------------------------------------


def test_cond_takes_one_branch():
    def f(x, flag):
        return ingot.cond(flag > 0, lambda v: v * 2.0, lambda v: v.exp(), x)

    close(both(f, X, np.array(1)), X * 2)
    close(both(f, X, np.array(0)), np.exp(X))


def test_cond_of_structures():
    def f(x, flag):
        return ingot.cond(
            flag,
            lambda a: {"y": a["p"], "z": (a["q"],)},
            lambda a: {"y": a["q"], "z": (a["p"] + 1,)},
            {"p": x, "q": -x},
        )

    found = both(f, X, np.array(False))
    close(found["y"], -X)
    close(found["z"][0], X + 1)


def test_branches_capture_tensors_and_arrays():
    table = np.arange(40.0)

    def f(x, y, flag):
        return ingot.cond(flag, lambda: x * y, lambda: x + table[:5].copy() + table.reshape(5, 8).sum(axis=1))

    close(both(f, X, X + 1, np.array(True)), X * (X + 1))
    close(both(f, X, X + 1, np.array(False)), X + table[:5] + table.reshape(5, 8).sum(1))


def test_gradient_through_cond():
    def f(x, flag):
        return ingot.cond(flag, lambda v: (v**3).sum(), lambda v: v.sin().sum(), x)

    g = functions.grad(f)
    close(both(g, X, np.array(True)), 3 * X**2)
    close(both(g, X, np.array(False)), np.cos(X))


def test_gradient_for_what_a_branch_captured():
    def f(x, flag):
        y = x * x
        return ingot.cond(flag, lambda: (y * x).sum() + 0.0, lambda: y.sum() + 0.0)

    close(both(functions.grad(f), X, np.array(True)), 3 * X**2)
    close(both(functions.grad(f), X, np.array(False)), 2 * X)


def test_nested_cond():
    def f(x, a, b):
        return ingot.cond(
            a, lambda: ingot.cond(b, lambda: x, lambda: -x), lambda: ingot.cond(b, lambda: x * x, lambda: x * 0.0)
        )

    for a in (True, False):
        for b in (True, False):
            expected = (X if b else -X) if a else (X * X if b else X * 0)
            close(both(f, X, np.array(a), np.array(b)), expected)


# --- while ------------------------------------------------------------------------------------------------


def test_while_loop():
    """Newton's iteration for a square root, until it stands still."""

    def root(a):
        def go(x, error):
            return error > 1e-12

        def step(x, error):
            new = 0.5 * (x + a / x)
            return new, (new - x).abs()

        return ingot.while_loop(go, step, (a, a * 0 + 1.0))[0]

    for value in (2.0, 9.0, 1e4):
        close(both(root, np.array(value)), np.sqrt(value), 1e-12)


def test_while_of_one_value():
    close(both(lambda n: ingot.while_loop(lambda n: n < 100, lambda n: n * 3, n), np.array(2)), 162)


def test_while_that_never_runs():
    close(both(lambda n: ingot.while_loop(lambda n: n < 0, lambda n: n * 3, n), np.array(2)), 2)


def test_gradient_through_a_bounded_while():
    def power(x, n):
        """x^n by multiplying n times."""
        _, y = ingot.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (n * 0, x * 0.0 + 1.0), limit=8)
        return y.sum()

    for n in (0, 1, 3, 8):
        close(both(functions.grad(power), X, np.array(n)), n * X ** max(n - 1, 0) if n else 0 * X)


def test_more_rounds_than_the_limit_is_an_error_when_it_runs():
    executable = ingot.compile(
        lambda n: ingot.while_loop(lambda i: i < n, lambda i: i + 1, n * 0, limit=5), ingot.i64[()]
    )
    assert executable(np.array(5)) == 5
    with pytest.raises(Exception, match="5"):
        executable(np.array(6))


def test_gradient_through_an_unbounded_while_is_refused():
    def f(x):
        return ingot.while_loop(lambda v: v.sum() < 100.0, lambda v: v * 2.0, x).sum()

    with pytest.raises(IngotError, match="E111"):
        traced_run(functions.grad(f), [type_of(X)], X)


# --- scan ---------------------------------------------------------------------------------------------------


def test_scan():
    def running(xs):
        return ingot.scan(lambda total, x: (total + x, total * x), xs[0] * 0.0, xs)

    final, ys = both(running, XS)
    close(final, XS.sum(0))
    before = np.vstack([np.zeros(3), XS.cumsum(0)[:-1]])
    close(ys, before * XS)


def test_scan_in_reverse():
    final, ys = both(lambda xs: ingot.scan(lambda c, x: (c * 0.5 + x, c), xs[0] * 0.0, xs, reverse=True), XS)
    carry, kept = np.zeros(3), np.zeros_like(XS)
    for t in reversed(range(6)):
        kept[t] = carry
        carry = carry * 0.5 + XS[t]
    close(final, carry)
    close(ys, kept)


def test_scan_by_length_without_xs():
    final, ys = both(lambda x: ingot.scan(lambda c, _: (c * 2.0, c), x, length=4), X)
    close(final, 16 * X)
    close(ys, np.stack([X, 2 * X, 4 * X, 8 * X]))


def test_scan_of_structures_without_results():
    def f(xs):
        def step(carry, x):
            return {"a": carry["a"] + x["left"], "b": carry["b"] * 0.9 + x["right"][0]}, None

        return ingot.scan(step, {"a": xs[0] * 0, "b": xs[0]}, {"left": xs, "right": (xs * 2,)})

    carry, ys = both(f, XS)
    assert ys is None
    close(carry["a"], XS.sum(0))


def test_scan_over_a_symbolic_axis():
    executable = ingot.compile(
        lambda xs: ingot.scan(lambda c, x: (c + x, c), xs.sum(axis=0) * 0.0, xs), ingot.f64["t", 3]
    )
    for length in (1, 2, 9):
        xs = RNG.standard_normal((length, 3))
        final, ys = executable(xs)
        close(final, xs.sum(0))
        close(ys, np.vstack([np.zeros(3), xs.cumsum(0)[:-1]]))


def recurrence(w, xs):
    """The loss of a small recurrent network; w is captured by the loop."""
    final, hs = ingot.scan(lambda h, x: ((h @ w + x).tanh(), h), xs[0] * 0.0, xs)
    return (final**2).sum() + (hs * 0.1).sum()


def recurrence_numpy(w, xs):
    h, total = np.zeros(3), 0.0
    for x in xs:
        total += 0.1 * h.sum()
        h = np.tanh(h @ w + x)
    return float((h**2).sum() + total)


def test_gradient_through_scan():
    w = RNG.standard_normal((3, 3)) * 0.5
    close(both(recurrence, w, XS), recurrence_numpy(w, XS))
    for_w, for_xs = both(functions.grad(recurrence, (0, 1)), w, XS)
    close(for_w, numeric_gradient(lambda v: recurrence_numpy(v, XS), w), 1e-6)
    close(for_xs, numeric_gradient(lambda v: recurrence_numpy(w, v), XS), 1e-6)


def test_gradient_through_scan_in_reverse():
    def f(xs):
        final, ys = ingot.scan(lambda c, x: (c * x, c + x), xs[0] * 0.0 + 1.0, xs, reverse=True)
        return final.sum() + (ys**2).sum()

    def numpy(xs):
        c, total = np.ones(3), 0.0
        for x in xs[::-1]:
            total += ((c + x) ** 2).sum()
            c = c * x
        return float(c.sum() + total)

    close(both(functions.grad(f), XS), numeric_gradient(numpy, XS), 1e-6)


def test_gradient_of_gradient_through_scan():
    def f(x):
        return ingot.scan(lambda c, _: (c * x, None), x * 0.0 + 1.0, length=4)[0].sum()  # x^4

    close(both(functions.grad(lambda x: functions.grad(f)(x).sum()), X), 12 * X**2)


def test_nested_scans():
    """A matrix product as loops: captured values pass through two levels."""

    def product(a, b):
        def row(_, r):
            return None, ingot.scan(lambda c, col: (c, (r * col).sum()), (), b.T)[1]

        return ingot.scan(lambda c, r: ((), row(None, r)[1]), (), a)[1]

    a, b = RNG.standard_normal((4, 3)), RNG.standard_normal((3, 5))
    close(both(product, a, b), a @ b)
    g = functions.grad(lambda a, b: (product(a, b) ** 2).sum(), (0, 1))
    for_a, for_b = both(g, a, b)
    close(for_a, 2 * a @ b @ b.T)
    close(for_b, 2 * a.T @ a @ b)


def test_cond_in_scan_in_grad():
    """Add what is positive, subtract half of what is not."""

    def f(xs):
        def step(total, x):
            s = x.sum()
            return ingot.cond(s > 0, lambda: total + s * s, lambda: total - s * 0.5), total

        return ingot.scan(step, xs[0, 0] * 0.0, xs)[0]

    sums = XS.sum(1)
    close(both(f, XS), np.where(sums > 0, sums**2, -sums / 2).sum())
    close(both(functions.grad(f), XS), np.where(sums > 0, 2 * sums, -0.5)[:, None] * np.ones_like(XS))


def test_while_in_scan():
    """Collatz: how many steps each number takes."""

    def steps(ns):
        def count(n):
            def go(m, k):
                return m > 1

            def step(m, k):
                return ingot.where(m % 2 == 0, m // 2, 3 * m + 1), k + 1

            return ingot.while_loop(go, step, (n, n * 0))[1]

        return ingot.scan(lambda c, n: ((), count(n)), (), ns)[1]

    np.testing.assert_array_equal(both(steps, np.array([1, 2, 3, 7, 27])), [0, 1, 7, 16, 111])


def test_grad_inside_scan():
    """Gradient descent as a loop of the compiled program."""

    def minimise(w, x, y):
        def step(w, _):
            value, gradient = functions.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
            return w - 0.2 * gradient, value

        return ingot.scan(step, w, length=100)

    x = RNG.standard_normal((20, 3))
    target = np.array([1.0, -2.0, 0.5])
    w, losses = both(minimise, np.zeros(3), x, x @ target)
    close(w, target, 1e-3, 1e-3)
    assert losses[-1] < 1e-4 < losses[0]


def test_grad_inside_scan_for_a_value_from_outside():
    """What the gradient is for is computed in the loop, though nothing else of it depends on the loop."""

    def slopes(w, xs):
        def step(carry, x):
            return carry, functions.grad(lambda w: ((w * 2.0).exp() * x).sum())(w)

        return ingot.scan(step, (), xs)[1]

    w = RNG.standard_normal(3)
    close(both(slopes, w, XS), 2 * np.exp(2 * w) * XS)


def test_a_scan_of_outer_values_in_a_branch_may_use_the_branch():
    def f(x, y, flag):
        def powers(v):
            return ingot.scan(lambda c, t: (c * v[0] + t, None), v.sum() * 0.0, y)[0]

        return ingot.cond(flag, powers, lambda v: v.sum(), x)

    expected = 0.0
    for t in X:
        expected = expected * X[0] + t
    close(both(f, X, X, np.array(True)), expected)


# --- errors ---------------------------------------------------------------------------------------------------


def test_a_python_if_on_a_tensor_says_what_to_use():
    with pytest.raises(IngotError, match="ingot.cond"):
        traced_run(lambda x: x if x.sum() > 0 else -x, [type_of(X)], X)


def test_a_carry_of_another_structure():
    with pytest.raises(IngotError, match="E122"):
        traced_run(lambda xs: ingot.scan(lambda c, x: ((c, c), x), xs[0], xs), [type_of(XS)], XS)


def test_a_carry_of_another_type():
    with pytest.raises(IngotError, match="E122"):
        traced_run(lambda xs: ingot.scan(lambda c, x: (c.astype("f32"), x), xs[0], xs), [type_of(XS)], XS)


def test_a_tensor_that_leaves_its_loop_is_refused():
    kept = []

    def f(xs):
        ingot.scan(lambda c, x: (kept.append(x) or c, x), xs[0], xs)
        return kept[0] * 2.0

    with pytest.raises(IngotError, match="E104"):
        traced_run(f, [type_of(XS)], XS)
