"""Derivative transformations, alone and nested, on tensors and on arrays, against formulas and differences."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.compiler import autodiff
from ingot.compiler.errors import IngotError
from ingot.compiler.ir.graph import topological
from ingot.compiler.ir.types import type_of
from ingot.frontends.dsl import functions
from tests.frontends.dsl.support import close, numeric_gradient, traced_run

RNG = np.random.default_rng(1)
X = RNG.standard_normal((3, 4))
W = RNG.standard_normal((4, 2))


def run(function, *arrays):
    return traced_run(function, [type_of(a) for a in arrays], *arrays)


def loss(x, w):
    return ((x @ w).tanh() ** 2).sum()


def loss_numpy(x, w):
    return float((np.tanh(x @ w) ** 2).sum())


# --- grad -------------------------------------------------------------------------------------------


def test_grad_with_respect_to_an_argument():
    for wrt, array in enumerate((X, W)):
        expected = numeric_gradient(
            lambda v, wrt=wrt: loss_numpy(*[v if n == wrt else a for n, a in enumerate((X, W))]), array
        )
        close(run(functions.grad(loss, wrt), X, W), expected, 1e-6)
        close(ingot.grad(loss, wrt)(X, W), expected, 1e-6)


def test_grad_with_respect_to_several():
    found = ingot.grad(loss, wrt=(1, 0))(X, W)
    assert [g.shape for g in found] == [W.shape, X.shape]
    close(found[0], ingot.grad(loss, 1)(X, W))


def test_value_and_grad():
    value, gradient = ingot.value_and_grad(loss)(X, W)
    close(value, loss_numpy(X, W))
    close(gradient, ingot.grad(loss)(X, W))


def test_value_and_grad_with_aux():
    def with_metrics(x, w):
        y = x @ w
        return (y**2).sum(), {"mean": y.mean(), "both": (y, y.max())}

    (value, aux), gradient = ingot.value_and_grad(with_metrics, has_aux=True)(X, W)
    close(value, ((X @ W) ** 2).sum())
    close(aux["mean"], (X @ W).mean())
    close(aux["both"][0], X @ W)
    close(aux["both"][1], (X @ W).max())
    close(gradient, 2 * (X @ W) @ W.T)


def test_gradient_of_a_nested_argument():
    """The gradient is arranged as the argument is."""

    def f(parameters, x):
        (w, b), scale = parameters["layer"], parameters["scale"]
        return (((x @ w + b) * scale) ** 2).sum()

    parameters = {"layer": (W, RNG.standard_normal(2)), "scale": np.array(1.5)}
    found = ingot.grad(f)(parameters, X)
    assert set(found) == {"layer", "scale"}
    assert isinstance(found["layer"], tuple)
    y = X @ W + parameters["layer"][1]
    close(found["layer"][0], X.T @ (2 * y * 1.5**2))
    close(found["layer"][1], (2 * y * 1.5**2).sum(0))
    close(found["scale"], (2 * 1.5 * y**2).sum())


def test_gradient_with_respect_to_a_module():
    model = nn.Sequential(nn.Linear(4, 3, generator=0), nn.Tanh(), nn.Linear(3, 1, generator=1))
    x = X.astype(np.float32)

    def f(model, x):
        return (model(x) ** 2).mean()

    found = ingot.grad(f)(model, x)
    assert sorted(found) == sorted(model.named_parameters())
    hidden = np.tanh(x @ model[0].weight + model[0].bias)
    y = hidden @ model[2].weight + model[2].bias
    close(found["layers.2.bias"], (2 * y / y.size).sum(0), 1e-5)
    close(found["layers.2.weight"], hidden.T @ (2 * y / y.size), 1e-5)


def test_an_argument_that_is_not_used_has_gradient_zero():
    found = ingot.grad(lambda x, w: (x * x).sum(), wrt=1)(X, W)
    np.testing.assert_array_equal(found, np.zeros_like(W))


def test_only_what_is_asked_for_is_computed():
    """The gradient for x of x @ w needs w, not the product: no op of the forward pass remains."""
    traced = ingot.trace(functions.grad(lambda x, w: (x @ w).sum()), [type_of(X), type_of(W)])
    assert sum(v.op.name == "contract" for v in traced.graph.body) == 1


def test_an_argument_used_twice_adds_its_gradients():
    close(ingot.grad(lambda x: (x * x + x.exp() - x).sum())(X), 2 * X + np.exp(X) - 1, 1e-6)


# --- values inside ------------------------------------------------------------------------------------


def test_gradient_with_respect_to_an_intermediate():
    """A named value inside: make it an argument of what follows."""

    def sensitivity(x, w):
        hidden = (x @ w).tanh()
        return functions.grad(lambda h: (h**3).sum())(hidden), functions.grad(loss)(x, w)

    found, _ = run(sensitivity, X, W)
    close(found, 3 * np.tanh(X @ W) ** 2)


def test_gradient_for_an_intermediate_and_for_what_made_it():
    """The gradient at x does not flow through an inner variable of the same value."""

    def f(x):
        inner = functions.grad(lambda y: (x * y * y).sum())(x)  # 2 x y at y = x
        return (inner * x).sum()  # 2 x^3

    close(run(functions.grad(f), X), 6 * X**2)


# --- derivatives of derivatives -----------------------------------------------------------------------


def test_gradient_of_gradient():
    def f(x):
        return (x**3).sum()

    def slope(x):
        return (functions.grad(f)(x) ** 2).sum()  # 9 x^4

    close(run(functions.grad(slope), X), 36 * X**3, 1e-9)
    close(ingot.grad(slope)(X), 36 * X**3, 1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_repeated_derivatives(order):
    def total(f):
        return lambda x: f(x).sum()

    f = lambda x: x.sin()  # noqa: E731
    for _ in range(order):
        f = functions.grad(total(f))
    expected = [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin][order - 1]
    close(run(f, X), expected(X), 1e-9)


def test_hessian():
    def f(x):
        return (x[0] ** 2) * x[1] + x[1].exp() * x[2]

    x = np.array([0.5, -1.0, 2.0])
    e = np.exp(-1.0)
    expected = np.array([[2 * x[1], 2 * x[0], 0], [2 * x[0], e * x[2], e], [0, e, 0]])
    close(ingot.hessian(f)(x), expected)


def test_jacobian():
    def f(x, w):
        return (x @ w).tanh()

    found = ingot.jacobian(f)(X, W)
    assert found.shape == (3, 2, 3, 4)
    slope = 1 - np.tanh(X @ W) ** 2
    expected = np.einsum("ij,ik,lj->ijkl", slope, np.eye(3), W)
    close(found, expected)
    close(ingot.jacobian(f, wrt=1)(X, W), np.einsum("ij,ik,jl->ijkl", slope, X, np.eye(2)))


def test_jacobian_of_a_scalar_is_the_gradient():
    close(ingot.jacobian(loss)(X, W), ingot.grad(loss)(X, W))


def test_jacobian_with_a_symbolic_batch():
    def f(x):
        return ingot.jacobian(lambda v: v**2)(x)

    executable = ingot.compile(f, ingot.f64["n"])
    for size in (1, 3, 6):
        x = RNG.standard_normal(size)
        close(executable(x), np.diag(2 * x))


def test_vjp():
    y, pullback = ingot.vjp(lambda x, w: (x @ w).tanh(), X, W)
    close(y, np.tanh(X @ W))
    cotangent = RNG.standard_normal(y.shape)
    for_x, for_w = pullback(cotangent)
    inner = cotangent * (1 - np.tanh(X @ W) ** 2)
    close(for_x, inner @ W.T)
    close(for_w, X.T @ inner)


def test_jvp():
    dx, dw = RNG.standard_normal(X.shape), RNG.standard_normal(W.shape)
    y, dy = ingot.jvp(lambda x, w: (x @ w).tanh(), (X, W), (dx, dw))
    close(y, np.tanh(X @ W))
    close(dy, (1 - np.tanh(X @ W) ** 2) * (dx @ W + X @ dw))


def test_jvp_and_vjp_are_transposes():
    def f(x):
        return (x.exp().cumsum(axis=1) * x).softmax(0)

    v = RNG.standard_normal(X.shape)
    y, along = ingot.jvp(f, (X,), (v,))
    u = RNG.standard_normal(y.shape)
    (back,) = ingot.vjp(f, X)[1](u)
    assert float((u * along).sum()) == pytest.approx(float((back * v).sum()), rel=1e-10)


def test_forward_over_reverse_gives_hessian_times_vector():
    def f(x):
        return (x**3).sum() + (x.sum()) ** 2

    v = RNG.standard_normal(5)
    x = RNG.standard_normal(5)
    _, found = ingot.jvp(functions.grad(f), (x,), (v,))
    close(found, 6 * x * v + 2 * v.sum())


# --- rules ----------------------------------------------------------------------------------------------


def test_stop_gradient():
    close(ingot.grad(lambda x: (x * ingot.stop_gradient(x)).sum())(X), X)
    close(ingot.grad(lambda x: (x * x.detach()).sum())(X), X)


def test_custom_gradient():
    """A straight-through estimator: rounding whose gradient is 1."""
    straight = ingot.custom_gradient(lambda x: x.round(), lambda xs, y, g: g)
    value, gradient = ingot.value_and_grad(lambda x: (straight(x) * 3.0).sum())(X)
    close(value, np.round(X).sum() * 3)
    np.testing.assert_array_equal(gradient, np.full_like(X, 3))


def test_custom_gradient_of_several_arguments():
    def backward(xs, y, g):
        a, b = xs
        return g * b * 10.0, g * a + 0.0 * y

    scaled = ingot.custom_gradient(lambda a, b: a * b, backward)
    for_a, for_b = ingot.grad(lambda a, b: scaled(a, b).sum(), wrt=(0, 1))(X, X + 1)
    close(for_a, 10 * (X + 1))
    close(for_b, X)


def test_gradient_clipping_by_a_custom_gradient():
    clipped = ingot.custom_gradient(lambda x: x * 1.0, lambda xs, y, g: g.clip(-1.0, 1.0))
    close(ingot.grad(lambda x: (clipped(x) * 5.0).sum())(X), np.ones_like(X))


def test_a_tensor_from_outside_a_custom_gradient_is_an_error():
    def f(x, w):
        return ingot.custom_gradient(lambda a: a * w, lambda xs, y, g: g)(x).sum()

    with pytest.raises(IngotError, match="E104"):
        run(f, X, X)


def test_gradient_inside_a_compiled_function():
    """One step of gradient descent as a function of tensors."""

    @ingot.jit
    def step(w, x, y):
        return w - 0.1 * ingot.grad(lambda w: ((x @ w - y) ** 2).mean())(w)

    target = RNG.standard_normal((4, 2))
    w = np.zeros((4, 2))
    x = RNG.standard_normal((64, 4))
    for _ in range(200):
        w = step(w, x, x @ target)
    close(w, target, 1e-4, 1e-4)
    assert len(step.compiled) == 1


def test_max_shares_its_gradient_among_equals():
    close(ingot.grad(lambda x: x.max())(np.array([1.0, 3.0, 3.0, 0.0])), [0, 0.5, 0.5, 0])


def test_gradient_of_a_norm_at_zero_is_not_finite_but_that_of_where_is():
    def safe(x):
        square = (x * x).sum()
        return (square > 0).where((square > 0).where(square, 1.0).sqrt(), 0.0)

    np.testing.assert_array_equal(ingot.grad(safe)(np.zeros(3)), np.zeros(3))


@pytest.mark.parametrize("wrong", [lambda x: x, lambda x: x.argmax(), lambda x: (x.sum(), x), lambda x: 3.0])
def test_gradient_of_what_is_no_float_scalar(wrong):
    with pytest.raises(IngotError, match="E112"):
        run(functions.grad(wrong), X)


def test_the_gradient_of_a_composite_op_looks_at_its_own_parts_only(monkeypatch):
    """Walking everything before it, for each of them, took most of the time of tracing a deep model."""
    walks = []

    def counted(*args):
        walks.append(len(topological(*args)))
        return topological(*args)

    def deep(x):
        for _ in range(20):
            x = x.mish()
        return x.sum()

    monkeypatch.setattr(autodiff, "topological", counted)
    ingot.trace(functions.grad(deep), [ingot.f32[4, 8]])
    assert len(walks) > 20
    assert max(walks[1:]) < 10 < walks[0]
