"""Comparisons of index expressions: decided, or said as coarsely as possible."""

import itertools

import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Apply, Const, IndexValue, predicate

i, j, k = (symbolic.Variable(name, 0, upper) for name, upper in (("i", 23), ("j", 3), ("k", 5)))
v = symbolic.Variable("v", 0, 15)


def sides(condition):
    assert isinstance(condition, Apply)
    assert all(isinstance(side, IndexValue) for side in condition.args)
    return tuple(side.dim for side in condition.args)


def test_what_cannot_change_the_answer_is_left_out():
    assert sides(predicate(4 * i + j, "lt", 48)) == (i, 12)
    assert sides(predicate(4 * i + v // 4 - 48, "ge", 0)) == (i, 12)


def test_what_can_change_it_stays():
    assert sides(predicate(4 * i + j, "lt", 47)) == (4 * i + j, 47)
    assert sides(predicate(4 * i + k, "lt", 48)) == (4 * i + k, 48)


@pytest.mark.parametrize("relation", ["lt", "ge"])
@pytest.mark.parametrize(
    ("left", "right"), [(4 * i + j, 48), (4 * i - 8 * k + j, 4), (6 * k, 4 * i + v // 4), (48 - j, 4 * i), (8 * k, 11)]
)
def test_the_answer_is_the_same_for_every_value(left, right, relation):
    condition = predicate(left, relation, right)
    assert not isinstance(condition, Const)
    coarse, bound = sides(condition)
    for values in itertools.product(range(24), range(4), range(6), range(0, 16, 3)):
        at = dict(zip((i, j, k, v), values, strict=True))
        a, b, c, d = (symbolic.evaluate(dim, at) for dim in (left, right, coarse, bound))
        assert ((a < b) if relation == "lt" else (a >= b)) == ((c < d) if relation == "lt" else (c >= d))
