"""Transposes and broadcasts move towards the outputs or into contractions."""

import numpy as np
import pytest

import ingot
from ingot.compiler.ops.structure import Restate
from ingot.compiler.passes.motion import RULES, Motion
from ingot.frontends.dsl.functions import trace
from tests.passes.support import same_meaning


def moved(function, *types):
    graph = trace(function, types).graph
    result = Motion()(graph)
    same_meaning(graph, result, 1e-12)
    return [v.op.name for v in result.body], result




MATRIX = ingot.f64["n", 4]


def test_transposes_cancel_across_elementwise_ops():
    names, _ = moved(lambda x: (x.T * 2.0).tanh().T, MATRIX)
    assert "transpose" not in names


def test_transposes_of_both_operands_become_one():
    names, _ = moved(lambda x, y: x.T + y.T, MATRIX, MATRIX)
    assert names.count("transpose") == 1


IMAGES = ingot.f64[2, 4, 3, 5]


def test_transposes_pass_slices():
    """The gradient of a concatenation of channels, between layers that work with channels last."""
    names, result = moved(lambda x: x.transpose(0, 3, 1, 2)[:, 1:5:2, :2, ::-1].tanh().transpose(0, 2, 3, 1), IMAGES)
    assert "transpose" not in names
    assert result.outputs[0].shape == (2, 2, 3, 2)


def test_transposes_pass_concatenations():
    names, _ = moved(
        lambda x, y: ingot.concatenate([x.transpose(0, 3, 1, 2), y.transpose(0, 3, 1, 2)], axis=1).transpose(0, 2, 3, 1),
        IMAGES, ingot.f64[2, 4, 3, 7],
    )  # fmt: skip
    assert names == ["concat"]


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 1, 2, 3)])
def test_concatenations_of_several_orders_stay(order):
    names, _ = moved(lambda x, y: ingot.concatenate([x.transpose(0, 3, 1, 2), y.transpose(order)], axis=1),
                     ingot.f64[2, 3, 3, 3], ingot.f64[2, 3, 3, 3])  # fmt: skip
    assert "concat" in names
    assert names[-1] == "concat"


def test_transposes_pass_a_small_part_in_another_order():
    """Three channels of an image beside sixteen of a layer: the small part is turned."""
    names, result = moved(
        lambda x, y: ingot.concatenate([x.tanh().transpose(0, 3, 1, 2), y], axis=1).transpose(0, 2, 3, 1),
        ingot.f64[2, 4, 3, 16], ingot.f64[2, 3, 4, 3],
    )  # fmt: skip
    assert sorted(names) == ["concat", "tanh", "transpose"]
    (turned,) = (v for v in result.body if v.op.name == "transpose")
    assert turned.shape == (2, 4, 3, 3)


def test_transposes_pass_gathers_of_places():
    """A resized image: two places of each row and column, weighted."""

    def resized(x):
        y = x.tanh().transpose(0, 3, 1, 2)
        for axis, places in ((2, [0, 0, 1, 2, 3]), (3, [1, 2])):
            y = y.take(np.array(places), axis) * 0.5 + y.take(np.array(places)[::-1], axis) * 0.25
        return y.transpose(0, 2, 3, 1)

    names, result = moved(resized, IMAGES)
    assert "transpose" not in names
    assert result.outputs[0].shape == (2, 5, 2, 5)


@pytest.mark.parametrize("places", [[[0, 1], [1, 0]], [2, 0]])
def test_transposes_stay_before_gathers_of_tables_and_with_places_in_several_axes(places):
    source = (lambda x: x) if np.ndim(places) == 1 else (lambda x: x.tanh())
    names, _ = moved(lambda x: source(x).transpose(1, 0).take(np.array(places), 0), ingot.f64[5, 4])
    assert names.index("transpose") < names.index("gather")


def test_a_transpose_meets_a_broadcast_bias():
    """Channels-last activations with a bias per channel: nothing but the outer transposes is left to cancel."""
    names, _ = moved(
        lambda x, b: (x.transpose(0, 2, 1) + b.reshape(1, 1, 4)).transpose(0, 2, 1), ingot.f64[2, 4, 3], ingot.f64[4]
    )
    assert "transpose" not in names


def test_arithmetic_on_stretched_values_is_done_before_stretching():
    _, result = moved(lambda b, x: x + (b.broadcast_to((5, 4)) * 2.0).exp(), ingot.f64[4], ingot.f64[5, 4])
    shapes = {v.op.name: v.shape for v in result.body}
    assert shapes["exp"] == (4,)
    assert shapes["add"] == (5, 4)


@pytest.mark.parametrize("function", [lambda a, b: a.T @ b, lambda a, b: (a.T @ b).T, lambda a, b: (b.T @ a).T])
def test_transposes_become_letters_of_contractions(function):
    names, _ = moved(function, ingot.f64[5, 4], ingot.f64[5, 3])
    assert names == ["contract"]


@pytest.mark.parametrize(
    ("function", "table", "indices", "other", "product"),
    [
        (lambda t, i, w: t.gather(i, axis=0) @ w, (3, 4), (5, 2), (4, 6), (3, 6)),
        (lambda t, i, w: (t.gather(i, axis=0) @ w).transpose(1, 0, 2), (3, 4), (5, 2), (4, 6), (3, 6)),
        (lambda t, i, w: w @ t.gather(i, axis=1), (4, 3), (8,), (6, 4), (6, 3)),
        (lambda t, i, w: (t.gather(i, axis=1) @ w).tanh(), (2, 3, 4), (7,), (4, 5), (2, 3, 5)),
    ],
)
def test_repeated_slices_are_multiplied_once(function, table, indices, other, product):
    names, result = moved(function, ingot.f64[table], ingot.i64[indices], ingot.f64[other])
    assert {v.op.name: v.shape for v in result.body}["contract"] == product
    assert names.index("contract") < names.index("gather")


@pytest.mark.parametrize(
    ("function", "table", "indices", "other"),
    [
        (lambda t, i, w: t.gather(i, axis=0) @ w, (30, 4), (8,), (4, 6)),  # most slices are not used
        (lambda t, i, w: t.gather(i, axis=0) @ w, (5, 4), ("n",), (4, 6)),  # how many is not known
        (lambda t, i, w: t.gather(i, axis=0).T @ w, (3, 4), (8,), (8, 6)),  # the slices are summed
        (lambda t, i, w: t.gather(i, axis=0) @ w, (3, 4, 5), (8,), (8, 5, 6)),  # each has its own partner
    ],
)
def test_other_gathers_stay_where_they_are(function, table, indices, other):
    names, _ = moved(function, ingot.f64[table], ingot.i64[indices], ingot.f64[other])
    assert names.index("gather") < names.index("contract")


def test_reductions_take_any_axis_order():
    names, _ = moved(lambda x: x.transpose(2, 0, 1).sum(axis=1), ingot.f64[2, 3, 4])
    assert names[0] == "sum"


def test_every_rule_states_its_algebra():
    assert all(rule.__doc__ and "->" in rule.__doc__ for rule in RULES)


def enlarged(x, rows, columns):
    """An image with channels first whose rows and columns are repeated."""
    n, c, h, w = x.shape
    wide = x.reshape(n, c, h, 1, w, 1).broadcast_to((n, c, h, rows, w, columns))
    return wide.reshape(n, c, h * rows, w * columns)


@pytest.mark.parametrize("type_", [ingot.f64[2, 4, 3, 5], ingot.f64["n", "h", "w", 5], ingot.f64[2, 1, 3, 1]])
@pytest.mark.parametrize("times", [(2, 2), (3, 2)])
def test_transposes_pass_repetitions(type_, times):
    """A resized image between two layers with channels last."""
    names, result = moved(
        lambda x: enlarged((x * 2.0).transpose(0, 3, 1, 2).tanh(), *times).transpose(0, 2, 3, 1), type_
    )
    assert "transpose" not in names
    n, h, w, c = type_.shape
    assert result.outputs[0].shape == (n, h * times[0], w * times[1], c)


def test_transposes_do_not_pass_what_is_no_repetition():
    """The new axis is before the one it is merged with: the whole image several times, not each row."""

    def tiled(x):
        n, c, h, w = x.shape
        return x.reshape(n, c, 1, h, w).broadcast_to((n, c, 2, h, w)).reshape(n, c, 2 * h, w)

    names, _ = moved(lambda x: tiled((x * 2.0).transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1), IMAGES)
    assert "transpose" in names


def test_transposes_pass_extents_that_are_written_in_another_way():
    h = ingot.dim("h")

    def function(x):
        turned = (x * 2.0).transpose(0, 3, 1, 2)
        return turned.apply(Restate((1, 5, 2 * ((h + 1) // 2), 4))).transpose(0, 2, 3, 1)

    graph = trace(function, (ingot.f64[1, h, 4, 5],)).graph
    result = Motion()(graph)
    assert [v.op.name for v in result.body if v.op.name in ("transpose", "restate")] == ["restate"]
    assert result.outputs[0].shape == (1, 2 * ((h + 1) // 2), 4, 5)
