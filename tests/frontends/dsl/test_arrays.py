"""NumPy's array functions on tensors: each against NumPy, called by our name and by NumPy's."""

import numpy as np
import pytest

import ingot
from ingot.compiler.errors import IngotError
from ingot.frontends.dsl import arrays
from ingot.frontends.dsl.tensor import ARRAY_FUNCTIONS
from tests.frontends.dsl.support import close

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
M = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
V = np.array([3.0, -1.0, 0.0, 2.5], np.float32)
SORTED = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)

# by name: functions of NumPy (or of ingot) and of tensors or arrays
CALLS = {
    "all": [lambda m, x, a, v: m.all(x > -9, axis=1), lambda m, x, a, v: m.all(x > 0)],
    "any": [lambda m, x, a, v: m.any(x > 1, axis=(0, 2), keepdims=True)],
    "argmax": [lambda m, x, a, v: m.argmax(x, axis=1), lambda m, x, a, v: m.argmax(x)],
    "argmin": [lambda m, x, a, v: m.argmin(x, axis=-1)],
    "argsort": [lambda m, x, a, v: m.argsort(x), lambda m, x, a, v: m.argsort(x, axis=0)],
    "astype": [lambda m, x, a, v: m.astype(x, np.int32)],
    "broadcast_to": [lambda m, x, a, v: m.broadcast_to(x, (5, 2, 3, 4))],
    "clip": [lambda m, x, a, v: m.clip(x, -0.5, 0.5), lambda m, x, a, v: x.clip(0.1)],
    "copy": [lambda m, x, a, v: m.copy(x), lambda m, x, a, v: x.copy()],
    "cumprod": [lambda m, x, a, v: m.cumprod(x, 1), lambda m, x, a, v: x.cumprod()],
    "cumsum": [lambda m, x, a, v: m.cumsum(x), lambda m, x, a, v: m.cumsum(x, axis=-1)],
    "diagonal": [
        lambda m, x, a, v: m.diagonal(x, axis1=1, axis2=2), lambda m, x, a, v: a.diagonal(-1),
        lambda m, x, a, v: m.diagonal(x, 1, 2, 0),
    ],
    "dot": [lambda m, x, a, v: m.dot(a, a), lambda m, x, a, v: m.dot(v, v)],
    "expand_dims": [lambda m, x, a, v: m.expand_dims(x, (0, 2)), lambda m, x, a, v: m.expand_dims(x, -1)],
    "full_like": [lambda m, x, a, v: m.full_like(x, 3), lambda m, x, a, v: m.full_like(x, 2, dtype=np.int32)],
    "max": [lambda m, x, a, v: m.max(x, axis=-1), lambda m, x, a, v: m.max(x)],
    "amax": [lambda m, x, a, v: np.amax(x, axis=0)],
    "amin": [lambda m, x, a, v: np.amin(x, axis=0)],
    "mean": [lambda m, x, a, v: m.mean(x, axis=(0, 1)), lambda m, x, a, v: m.mean(x, dtype=np.float64)],
    "min": [lambda m, x, a, v: m.min(x, axis=0, keepdims=True)],
    "permute_dims": [lambda m, x, a, v: np.permute_dims(x, (2, 0, 1))],
    "prod": [lambda m, x, a, v: m.prod(x, axis=1)],
    "ravel": [lambda m, x, a, v: m.ravel(x)],
    "repeat": [lambda m, x, a, v: m.repeat(x, 3, axis=1), lambda m, x, a, v: x.repeat(2)],
    "reshape": [lambda m, x, a, v: m.reshape(x, (4, -1))],
    "round": [lambda m, x, a, v: m.round(x), lambda m, x, a, v: m.round(x * 100, -1), lambda m, x, a, v: x.round(1)],
    "sort": [lambda m, x, a, v: m.sort(x), lambda m, x, a, v: m.sort(x, axis=None)],
    "squeeze": [lambda m, x, a, v: m.squeeze(x[:1])],
    "std": [lambda m, x, a, v: m.std(x, axis=1), lambda m, x, a, v: m.std(x, ddof=1)],
    "sum": [lambda m, x, a, v: m.sum(x, axis=(0, 2), keepdims=True), lambda m, x, a, v: m.sum(x, dtype=np.float64)],
    "swapaxes": [lambda m, x, a, v: m.swapaxes(x, 0, -1)],
    "take": [lambda m, x, a, v: m.take(x, np.array([1, 0]), axis=2), lambda m, x, a, v: x.take([[0, 23], [5, 5]])],
    "transpose": [lambda m, x, a, v: m.transpose(x), lambda m, x, a, v: m.transpose(x, (1, 2, 0))],
    "tril": [lambda m, x, a, v: m.tril(x), lambda m, x, a, v: m.tril(a, -1)],
    "triu": [lambda m, x, a, v: m.triu(x, 1)],
    "var": [lambda m, x, a, v: m.var(x, axis=1, ddof=1), lambda m, x, a, v: m.var(x, axis=(0, 2), keepdims=True)],
    "where": [lambda m, x, a, v: m.where(x > 0, x, -1.0), lambda m, x, a, v: m.where(x > 0, 1.0, 0.0)],
    "concatenate": [
        lambda m, x, a, v: m.concatenate([x, x * 2], axis=-1), lambda m, x, a, v: m.concatenate([a, M], axis=None),
    ],
    "concat": [lambda m, x, a, v: np.concat([x, X])],
    "stack": [lambda m, x, a, v: m.stack([x, x + 1], axis=-1)],
    "atleast_1d": [lambda m, x, a, v: m.atleast_1d(v.sum())],
    "atleast_2d": [lambda m, x, a, v: m.atleast_2d(v)],
    "vstack": [lambda m, x, a, v: m.vstack([v, v]), lambda m, x, a, v: m.vstack([a, a])],
    "hstack": [lambda m, x, a, v: m.hstack([v, v]), lambda m, x, a, v: m.hstack([a, a])],
    "dstack": [lambda m, x, a, v: m.dstack([v, v]), lambda m, x, a, v: m.dstack([a, a])],
    "split": [
        lambda m, x, a, v: m.split(x, 2, axis=2)[1], lambda m, x, a, v: m.split(x, [1, 3], axis=2)[1],
        lambda m, x, a, v: m.split(x, [1, -1, 9], axis=2)[2],
    ],
    "array_split": [lambda m, x, a, v: m.array_split(x, 3, axis=2)[0], lambda m, x, a, v: m.array_split(v, [1])[1]],
    "unstack": [lambda m, x, a, v: m.unstack(x, axis=1)[2]],
    "moveaxis": [lambda m, x, a, v: m.moveaxis(x, 0, -1), lambda m, x, a, v: m.moveaxis(x, (0, 1), (1, 2))],
    "rollaxis": [lambda m, x, a, v: m.rollaxis(x, 2), lambda m, x, a, v: m.rollaxis(x, 0, 3)],
    "flip": [lambda m, x, a, v: m.flip(x), lambda m, x, a, v: m.flip(x, 1), lambda m, x, a, v: m.flip(x, (0, -1))],
    "flipud": [lambda m, x, a, v: m.flipud(x)],
    "fliplr": [lambda m, x, a, v: m.fliplr(x)],
    "rot90": [lambda m, x, a, v, k=k: m.rot90(x, k, (1, 2)) for k in range(-1, 4)],
    "roll": [
        lambda m, x, a, v: m.roll(x, 2), lambda m, x, a, v: m.roll(x, -1, axis=1),
        lambda m, x, a, v: m.roll(x, (1, 2), axis=(0, 2)), lambda m, x, a, v: m.roll(x, 1, axis=(0, 0)),
    ],
    "tile": [lambda m, x, a, v: m.tile(x, 2), lambda m, x, a, v: m.tile(v, (2, 3)), lambda m, x, a, v: m.tile(x, [2, 1, 1])],
    "pad": [
        lambda m, x, a, v: m.pad(x, ((0, 0), (1, 2), (3, 0))), lambda m, x, a, v: m.pad(x, 1, constant_values=2.0),
        lambda m, x, a, v: m.pad(x, (1, 2), mode="edge"), lambda m, x, a, v: m.pad(v, ((2, 1),), mode="reflect"),
        lambda m, x, a, v: m.pad(v, 2, mode="wrap"),
    ],
    "take_along_axis": [
        lambda m, x, a, v: m.take_along_axis(x, np.array([[[2, 0, 1, 1]]]), axis=1),
        lambda m, x, a, v: m.take_along_axis(x, np.array([5, 1]), axis=None),
    ],
    "trace": [lambda m, x, a, v: a.trace(), lambda m, x, a, v: np.trace(x, 1, 1, 2)],
    "diag": [lambda m, x, a, v, k=k: m.diag(v, k) for k in (-2, 0, 1)] + [lambda m, x, a, v: m.diag(a, 1)],
    "count_nonzero": [lambda m, x, a, v: m.count_nonzero(v), lambda m, x, a, v: m.count_nonzero(x > 0, axis=1)],
    "matmul": [lambda m, x, a, v: m.matmul(a, x)],
    "einsum": [lambda m, x, a, v: m.einsum("bij,kj->bik", x, x[0]), lambda m, x, a, v: m.einsum("ii", a)],
    "outer": [lambda m, x, a, v: m.outer(a, v)],
    "inner": [lambda m, x, a, v: m.inner(a, a), lambda m, x, a, v: m.inner(v, x)],
    "vdot": [lambda m, x, a, v: m.vdot(a, a)],
    "tensordot": [
        lambda m, x, a, v: m.tensordot(x, x, axes=([0, 2], [0, 2])), lambda m, x, a, v: m.tensordot(a, a, 1),
        lambda m, x, a, v: m.tensordot(v, v, 0), lambda m, x, a, v: m.tensordot(x, v, (-1, 0)),
    ],
    "average": [
        lambda m, x, a, v: m.average(x, axis=0), lambda m, x, a, v: m.average(x, axis=2, weights=np.arange(1, 5, dtype="f")),
    ],
    "ptp": [lambda m, x, a, v: m.ptp(x, axis=1)],
    "median": [lambda m, x, a, v: m.median(x, axis=1), lambda m, x, a, v: m.median(x, keepdims=True)],
    "quantile": [lambda m, x, a, v: m.quantile(x, 0.3, axis=2), lambda m, x, a, v: m.quantile(a, 1.0)],
    "diff": [lambda m, x, a, v: m.diff(x), lambda m, x, a, v: m.diff(x, 2, axis=1), lambda m, x, a, v: m.diff(x > 0)],
    "searchsorted": [
        lambda m, x, a, v: m.searchsorted(SORTED, v), lambda m, x, a, v: m.searchsorted(SORTED, v, side="right"),
    ],
    "isclose": [lambda m, x, a, v: m.isclose(x, x * 1.00001), lambda m, x, a, v: m.isclose(v / 0, v / 0, equal_nan=True)],
    "allclose": [lambda m, x, a, v: m.allclose(x, x), lambda m, x, a, v: m.allclose(x, x + 1)],
    "zeros_like": [lambda m, x, a, v: m.zeros_like(x)],
    "ones_like": [lambda m, x, a, v: m.ones_like(x, dtype=np.int64)],
    "meshgrid": [lambda m, x, a, v: m.meshgrid(v, v * 2)[0], lambda m, x, a, v: m.meshgrid(v, v[:2], indexing="ij")[1]],
    "norm": [
        lambda m, x, a, v: np.linalg.norm(x), lambda m, x, a, v: np.linalg.norm(x, axis=1),
        *[lambda m, x, a, v, o=o: np.linalg.norm(v, o) for o in (0, 1, 2, 3, np.inf, -np.inf)],
    ],
}  # fmt: skip
OURS_ONLY = {"flatten", "log_softmax", "logsumexp", "softmax"}  # methods of tensors that NumPy does not have


def test_every_function_is_called():
    assert CALLS.keys() | OURS_ONLY == ARRAY_FUNCTIONS.keys()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("module", [ingot, np], ids=["ingot", "numpy"])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_as_numpy_does(name, module):
    for call in CALLS[name]:
        expected = call(np, X, M, V)
        found = ingot.interpret(lambda x, a, v, call=call: call(module, x, a, v), X, M, V)
        close(found, expected, 1e-5)
        assert np.shape(found) == np.shape(expected)


@pytest.mark.parametrize("name", ["roll", "pad", "tile", "take_along_axis", "median", "diag", "tensordot", "rot90"])
def test_compiled(name):
    for call in CALLS[name]:
        compiled = ingot.jit(lambda x, a, v, call=call: (call(ingot, x, a, v), a.sum(), v.sum(), x.sum()))
        close(compiled(X, M, V)[0], call(np, X, M, V), 1e-5)


def test_symbolic_sizes():
    exe = ingot.compile(lambda x: ingot.roll(ingot.concatenate([x, ingot.flip(x, 0)]), 1, axis=0), ingot.f32["n", 4])
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        close(exe(x), np.roll(np.concatenate([x, x[::-1]]), 1, axis=0))


def test_divmod():
    for side in (lambda v: divmod(v, 2.0), lambda v: divmod(7.0, v + 5)):
        for found, expected in zip(ingot.interpret(side, V), side(V), strict=True):
            close(found, expected, 1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (np.unique, "np.unique has no counterpart"),
        (lambda x: np.sum(x, where=x > 0), "np.sum on tensors"),
        (lambda x: ingot.split(x, 3, axis=2), "3 parts do not divide 4"),
        (lambda x: ingot.pad(x, 1, mode="median"), "mode 'median'"),
        (lambda x: ingot.pad(x, ((1, 1), (1, 1))), "2 pairs"),
        (lambda x: ingot.pad(x, 1, constant_values=(1, 2)), "one number"),
        (lambda x: ingot.roll(x, (1, 2), axis=(0, 1, 2)), "2 shifts for 3 axes"),
        (lambda x: ingot.moveaxis(x, (0, 1), (2,)), "2 axes cannot go to 1"),
        (lambda x: ingot.take_along_axis(x, np.array([1])), "different ranks"),
        (ingot.diag, "neither a vector nor a matrix"),
        (lambda x: ingot.tensordot(x, x, ([0], [0, 1])), "1 axes of one and 2"),
        (lambda x: ingot.quantile(x, 2), "from 0 to 1"),
        (lambda x: ingot.searchsorted(x, x), "a is a vector"),
        (lambda x: np.linalg.norm(x[0], 2), "singular values"),
        (lambda x: np.linalg.norm(x, 1), "name one axis"),
        (lambda x: ingot.flip(x, 3), "axis 3"),
    ],
)
def test_refused(function, message):
    with pytest.raises(IngotError, match=message) as caught:
        ingot.interpret(function, X)
    assert ".py:" in str(caught.value)


def test_a_quantile_needs_a_fixed_length():
    with pytest.raises(IngotError, match="no fixed length"):
        ingot.compile(lambda x: arrays.median(x, 0), ingot.f32["n"])
