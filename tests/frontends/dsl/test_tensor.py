"""Tensors have NumPy's habits: operators, broadcasting, promotion, methods. Tracing computes nothing."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.compiler.errors import IngotError
from ingot.compiler.ir.types import DTYPES, type_of
from ingot.frontends.dsl.trace import Trace
from tests.frontends.dsl.support import close, traced_run

RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 2, (3, 4)).astype(np.float32)
Y = RNG.uniform(0.5, 2, (3, 4)).astype(np.float32)
N = RNG.integers(-9, 9, (3, 4))
M = RNG.integers(1, 5, (3, 4))
B, C = N > 0, M > 2


def run(function, *arrays):
    return traced_run(function, [type_of(a) for a in arrays], *arrays)


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod, operator.floordiv]
COMPARISON = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
BITS = [operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISON], ids=lambda op: op.__name__)
def test_operators_of_floats(op):
    close(run(op, X, Y), op(X, Y))
    close(run(lambda x: op(x, 1.5), X), op(X, np.float32(1.5)))
    close(run(lambda x: op(1.5, x), X), op(np.float32(1.5), X))
    close(run(lambda x: op(x, 2), X), op(X, np.float32(2)))
    close(run(lambda x: op(Y, x), X), op(Y, X))


@pytest.mark.parametrize("op", [*ARITHMETIC[:3], *ARITHMETIC[5:], *COMPARISON, *BITS], ids=lambda op: op.__name__)
def test_operators_of_integers(op):
    np.testing.assert_array_equal(run(op, N, M), op(N, M))
    np.testing.assert_array_equal(run(lambda n: op(n, 3), N), op(N, 3))
    np.testing.assert_array_equal(run(lambda m: op(7, m), M), op(7, M))


@pytest.mark.parametrize("op", [operator.lshift, operator.rshift], ids=lambda op: op.__name__)
def test_shifts(op):
    np.testing.assert_array_equal(run(op, N, M), op(N, M))
    np.testing.assert_array_equal(run(lambda n: op(n, 2), N), op(N, 2))


@pytest.mark.parametrize("op", [*BITS, operator.eq, operator.ne], ids=lambda op: op.__name__)
def test_operators_of_bools(op):
    np.testing.assert_array_equal(run(op, B, C), op(B, C))
    np.testing.assert_array_equal(run(lambda b: op(b, True), B), op(B, True))


def test_one_argument():
    close(run(operator.neg, X), -X)
    close(run(operator.pos, X), X)
    close(run(abs, N), abs(N))
    np.testing.assert_array_equal(run(operator.invert, N), ~N)
    np.testing.assert_array_equal(run(operator.invert, B), ~B)


@pytest.mark.parametrize("exponent", [2, 0.5, 1, -1, 3, -2, 1.7, 0])
def test_powers(exponent):
    close(run(lambda x: x**exponent, X), X**exponent)


def test_powers_of_integers():
    np.testing.assert_array_equal(run(lambda n, m: n**m, N, M), N**M)
    np.testing.assert_array_equal(run(lambda n: n**2, N), N**2)


# --- broadcasting -----------------------------------------------------------------------------------

SHAPES = [
    ((3, 4), (4,)),
    ((3, 4), (3, 1)),
    ((3, 4), (1, 4)),
    ((3, 4), ()),
    ((2, 1, 4), (3, 1)),
    ((0, 4), (1,)),
    ((1,), (0,)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_broadcasting(left, right):
    a, b = RNG.standard_normal(left), RNG.standard_normal(right)
    for x, y in ((a, b), (b, a)):
        close(run(operator.add, x, y), x + y)
        close(run(lambda x, y: ingot.where(x > y, x, y), x, y), np.where(x > y, x, y))
        close(run(ingot.maximum, x, y), np.maximum(x, y))


def test_what_does_not_broadcast_says_so():
    with pytest.raises(IngotError, match=r"\[3, 4\] and \[3\] do not broadcast"):
        run(operator.add, X, X[:, 0])
    with pytest.raises(IngotError, match="do not broadcast"):
        ingot.compile(lambda x, y: x + y, ingot.f32["n"], ingot.f32["m"])


def test_a_name_beside_a_slice_of_a_table_is_told_how_to_be_bounded():
    def positions(x, table):
        return x + table[: x.shape[0]]

    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    with pytest.raises(IngotError, match=r"if time is never more than 6, say so: ingot.dim\('time', 1, 6\)"):
        ingot.compile(positions, ingot.f32["time", 2], ingot.f32[6, 2])
    exe = ingot.compile(positions, ingot.f32[ingot.dim("time", 1, 6), 2], ingot.f32[6, 2])
    close(exe(np.ones((4, 2), np.float32), table), 1 + table[:4])


def test_a_numpy_array_on_the_left_defers_to_the_tensor():
    close(run(lambda x: Y * x, X), Y * X)
    close(run(lambda x: Y @ x.T, X), Y @ X.T)
    close(run(lambda x: np.float32(2) * x, X), 2 * X)


# --- promotion --------------------------------------------------------------------------------------

FLOATS = ["f16", "bf16", "f32", "f64"]


def result_type(left: str, right: str) -> str:
    a, b = (np.ones(2, DTYPES[name].numpy) for name in (left, right))
    (value,) = ingot.trace(lambda a, b: a + b, [type_of(a), type_of(b)]).graph.outputs
    return value.tensor.dtype.name


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("f32", "f64", "f64"), ("f16", "f32", "f32"), ("bf16", "f32", "f32"), ("f16", "bf16", "f32"),
     ("i64", "f32", "f32"), ("i8", "f16", "f16"), ("bool", "f32", "f32"), ("u8", "bf16", "bf16"),
     ("i8", "i32", "i32"), ("u8", "i8", "i16"), ("u32", "i32", "i64"), ("bool", "i32", "i32"), ("u8", "u16", "u16")],
)  # fmt: skip
def test_two_types_meet_in_one(left, right, expected):
    assert result_type(left, right) == result_type(right, left) == expected


@pytest.mark.parametrize("name", list(DTYPES))
def test_a_python_number_takes_the_type_of_the_tensor(name):
    x = np.ones(3, DTYPES[name].numpy)
    found = run(lambda x: x + 1, x)
    assert found.dtype == (np.int64 if name == "bool" else x.dtype)
    if name in FLOATS:
        assert run(lambda x: 2.5 * x, x).dtype == x.dtype


def test_a_python_float_makes_integers_floats():
    assert run(lambda n: n * 0.5, N).dtype == np.float32
    close(run(lambda n: n * 0.5, N), N * 0.5)


def test_dividing_integers_gives_f32():
    found = run(operator.truediv, N, M)
    assert found.dtype == np.float32
    close(found, N / M)


def test_a_number_that_does_not_fit_the_type_is_an_error():
    with pytest.raises(IngotError, match="300 does not fit u8"):
        run(lambda x: x + 300, np.ones(3, np.uint8))


# --- methods and functions ---------------------------------------------------------------------------

Z = RNG.standard_normal((2, 3, 4)).astype(np.float32)

METHODS = {
    "reshape": (lambda x: x.reshape(4, 6), lambda z: z.reshape(4, 6)),
    "reshape_tuple": (lambda x: x.reshape((6, -1)), lambda z: z.reshape(6, -1)),
    "reshape_leftover": (lambda x: x.reshape(2, -1), lambda z: z.reshape(2, -1)),
    "transpose": (lambda x: x.transpose(), lambda z: z.transpose()),
    "transpose_axes": (lambda x: x.transpose(1, -1, 0), lambda z: z.transpose(1, 2, 0)),
    "T": (lambda x: x.T, lambda z: z.T),
    "swapaxes": (lambda x: x.swapaxes(0, -1), lambda z: z.swapaxes(0, -1)),
    "flatten": (lambda x: x.flatten(), lambda z: z.flatten()),
    "squeeze": (lambda x: x[None, :, :, None].squeeze(), lambda z: z),
    "squeeze_axis": (lambda x: x[None].squeeze(0), lambda z: z),
    "expand_dims": (lambda x: x.expand_dims(1), lambda z: z[:, None]),
    "unsqueeze": (lambda x: x.unsqueeze(-1), lambda z: z[..., None]),
    "broadcast_to": (lambda x: x[0, :1].broadcast_to((3, 4)), lambda z: np.broadcast_to(z[0, :1], (3, 4))),
    "sum": (lambda x: x.sum(), lambda z: z.sum()),
    "sum_axis": (lambda x: x.sum(axis=1), lambda z: z.sum(1)),
    "sum_keepdims": (lambda x: x.sum(axis=(0, -1), keepdims=True), lambda z: z.sum((0, 2), keepdims=True)),
    "mean": (lambda x: x.mean(axis=-1), lambda z: z.mean(-1)),
    "max": (lambda x: x.max(axis=0), lambda z: z.max(0)),
    "min": (lambda x: x.min(axis=(1, 2)), lambda z: z.min((1, 2))),
    "prod": (lambda x: x.prod(axis=1, keepdims=True), lambda z: z.prod(1, keepdims=True)),
    "var": (lambda x: x.var(axis=1), lambda z: z.var(1)),
    "var_correction": (lambda x: x.var(axis=1, correction=1, keepdims=True), lambda z: z.var(1, ddof=1, keepdims=True)),
    "std": (lambda x: x.std(), lambda z: z.std()),
    "any": (lambda x: (x > 1).any(axis=1), lambda z: (z > 1).any(1)),
    "all": (lambda x: (x > -1).all(), lambda z: (z > -1).all()),
    "argmax": (lambda x: x.argmax(axis=1), lambda z: z.argmax(1)),
    "argmax_flat": (lambda x: x.argmax(), lambda z: z.argmax()),
    "argmin_keepdims": (lambda x: x.argmin(axis=2, keepdims=True), lambda z: z.argmin(2, keepdims=True)),
    "sum_of_bools": (lambda x: (x > 0).sum(axis=0), lambda z: (z > 0).sum(0)),
    "mean_of_integers": (lambda x: x.astype("i32").mean(), lambda z: z.astype(np.int32).mean()),
    "clip": (lambda x: x.clip(-0.5, 0.5), lambda z: z.clip(-0.5, 0.5)),
    "clip_low": (lambda x: x.clip(low=0.0), lambda z: z.clip(0)),
    "astype": (lambda x: x.astype(ingot.i32), lambda z: z.astype(np.int32)),
    "astype_numpy": (lambda x: x.astype(np.float64), lambda z: z.astype(np.float64)),
    "astype_python": (lambda x: x.astype(bool), lambda z: z.astype(bool)),
    "tril": (lambda x: x.tril(), np.tril),
    "triu": (lambda x: x.triu(1), lambda z: np.triu(z, 1)),
    "where": (lambda x: (x > 0).where(x, 0.0), lambda z: np.where(z > 0, z, 0)),
    "logsumexp": (lambda x: x.logsumexp(axis=-1), lambda z: np.log(np.exp(z).sum(-1))),
    "softmax": (lambda x: x.softmax(1), lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)),
    "log_softmax": (lambda x: x.log_softmax(), lambda z: z - np.log(np.exp(z).sum(-1, keepdims=True))),
    "dot": (lambda x: x.dot(x[0].T), lambda z: z @ z[0].T),
    "iteration": (sum, lambda z: z.sum(0)),
    "unpacking": (lambda x: (lambda a, b: a - b)(*x), lambda z: z[0] - z[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    function, expected = METHODS[name]
    found = run(function, Z)
    want = np.asarray(expected(Z))
    close(found, want, 1e-5)
    assert np.asarray(found).dtype.kind == want.dtype.kind


FUNCTIONS = {
    "exp": np.exp, "log1p": np.log1p, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "floor": np.floor, "ceil": np.ceil, "round": np.round, "sign": np.sign, "abs": np.abs, "square": np.square,
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod, "transpose": np.transpose,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_by_numpys_names(name):
    close(run(getattr(ingot, name), X), FUNCTIONS[name](X), 1e-5)


def test_functions_of_several():
    close(run(lambda x, y: ingot.concatenate([x, y], axis=1), X, Y), np.concatenate([X, Y], 1))
    close(run(lambda x, y: ingot.stack([x, y, x], axis=-1), X, Y), np.stack([X, Y, X], -1))
    close(run(lambda x: ingot.split(x, 2, axis=1)[1], X), np.split(X, 2, 1)[1])
    close(run(lambda x: ingot.split(x, [1, 3], axis=1)[1], X), X[:, 1:3])
    close(run(lambda x, y: ingot.matmul(x, y.T), X, Y), X @ Y.T, 1e-5)
    close(run(lambda x, y: ingot.einsum("ij,kj->ik", x, y), X, Y), X @ Y.T, 1e-5)
    cubes = np.arange(50, dtype=np.float32).reshape(2, 5, 5)  # the diagonal of the last axes, not of the first
    close(run(lambda x: ingot.einsum("bii->bi", x), cubes), np.einsum("bii->bi", cubes))
    close(run(lambda x: ingot.zeros_like(x) + ingot.ones_like(x), X), np.ones_like(X))
    close(run(lambda x: ingot.ops.full((2, x.shape[1]), 7, like=x), X), np.full((2, 4), 7))
    np.testing.assert_array_equal(run(lambda x: ingot.ops.arange(x.shape[1], like=x), X), np.arange(4))
    close(run(lambda x: ingot.where(x > 1, x, -1.0), X), np.where(X > 1, X, -1))
    close(run(ingot.maximum, X, N), np.maximum(X, N))


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
     ((2, 1, 3, 4), (5, 4, 2))],
    ids=str,
)  # fmt: skip
def test_matrix_products(left, right):
    a, b = RNG.standard_normal(left), RNG.standard_normal(right)
    close(run(operator.matmul, a, b), a @ b, 1e-12, 1e-12)


@pytest.mark.parametrize(
    "spec", ["ij,jk->ik", "ij,ij->", "ii->i", "ij->ji", "i,j->ij", "bij,bjk->bik", "...i,...i->...", "ij,jk,kl->il"]
)
def test_einsum(spec):
    shapes = {"i": 3, "j": 3, "k": 4, "l": 2, "b": 2}
    terms = spec.split("->")[0].split(",")
    arrays = [RNG.standard_normal([shapes[c] for c in t.replace("...", "bk")]) for t in terms]
    close(run(lambda *a: ingot.einsum(spec, *a), *arrays), np.einsum(spec, *arrays), 1e-12, 1e-12)


# --- symbolic shapes ----------------------------------------------------------------------------------


def test_shapes_may_be_symbolic():
    def f(x):
        assert x.shape[1] == 4
        flat = x.reshape(-1, 2)
        return flat.sum(axis=1) * x.shape[0], x.size

    traced = ingot.trace(lambda x: f(x)[0], [ingot.f32["n", 4]])
    assert repr(traced.graph.outputs[0].type) == "f32[2*n]"
    close(traced_run(lambda x: f(x)[0], [ingot.f32["n", 4]], X), X.reshape(-1, 2).sum(1) * 3, 1e-5)


def test_a_dim_in_arithmetic_is_its_value():
    close(traced_run(lambda x: x.sum(axis=0) / x.shape[0], [ingot.f32["n", 4]], X), X.mean(0), 1e-6)
    close(traced_run(lambda x: x.sum() + x.shape[0] * 2, [ingot.f32["n", 4]], X), X.sum() + 6, 1e-6)


def test_tracing_does_not_compute():
    calls = []

    def f(x):
        calls.append(x)
        return x * 2

    executable = ingot.compile(f, ingot.f32[4])
    for _ in range(3):
        executable(np.ones(4, np.float32))
    assert len(calls) == 1
    assert repr(calls[0]) == "Tensor(f32[4])"


def test_the_line_is_looked_up_for_new_values_only(monkeypatch):
    asked = []

    def here(trace):
        asked.append(trace)

    def f(x):
        a = x + x
        for _ in range(10):
            a = x + x
        return a

    monkeypatch.setattr(Trace, "here", here)
    ingot.trace(f, [ingot.f32[4]])
    assert len(asked) == 1


def test_layers_of_one_line_keep_their_places():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    graph = ingot.trace(lambda x, m=model: m(x), [ingot.f32[2, 4]]).graph
    places = [value.source.text.partition("  ")[2] for value in graph.body if value.op.name in ("tanh", "relu")]
    assert places == ["[layers.1: Tanh]", "[layers.2.layers.1: Relu]"]
