"""A counterexample is one: its values are within bounds, and no dim that is provably non-negative has any."""

from itertools import product

import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Symbol, Variable, maximum, minimum
from ingot.compiler.ir.symbolic.counterexample import has_several_quotients, is_negative_somewhere

N, M = Symbol("n"), Symbol("m", 0, 9)
I, J = Variable("i", 0, N - 1), Variable("j", 0, 4)  # noqa: E741


@pytest.mark.parametrize(
    "dim", [N - 2, I - 1, 3 - J, N - 1 - I - J, M - 1, 8 - M, (N + 1) // 2 - I, minimum(N, 7) - J, I % 3 - 1, 5 - N]
)
def test_a_dim_that_can_be_negative(dim):
    assert is_negative_somewhere(dim)
    assert not symbolic.is_nonnegative(dim)


@pytest.mark.parametrize(
    "dim", [N - 1, I, N - 1 - I, 4 - J, 9 - M, N // 2, minimum(N, 7) - 1, 2 - I % 3, maximum(N, 3) - 3, I * N]
)
def test_a_dim_that_cannot(dim):
    assert not is_negative_somewhere(dim)


def test_an_empty_range_is_no_counterexample():
    none = Variable("none", 0, M - 1)  # no value when m is 0
    assert not is_negative_somewhere(M - 1 - none)


def test_what_is_found_is_a_value():
    """Against all values in small ranges: what is negative somewhere has a negative value among them."""
    a, b = Variable("a", 0, 3), Symbol("b", 1, 4)
    for p, q, r, d in product((-2, -1, 0, 1, 2), (-2, -1, 0, 1, 2), (-3, -1, 0, 1, 3), (1, 2, 3)):
        dim = p * a + q * (b // d) + r * (a % d) + r
        values = [symbolic.evaluate(dim, {a: x, b: y}) for x in range(4) for y in range(1, 5)]
        if is_negative_somewhere(dim):
            assert min(values) < 0


def test_a_size_beyond_any_tile_is_tried():
    block = Variable("block", 0, 9)
    assert is_negative_somewhere(640 - minimum(8192, N - 640 * block))


@pytest.mark.parametrize("dim", [J, I, N, 3 * J + 1, N // 3, minimum(N, 7)])
def test_a_dim_with_several_quotients(dim):
    assert has_several_quotients(dim, 3)


def test_several_quotients_are_values():
    """Against all values in small ranges: a dim that has one quotient is never said to have several."""
    a, b = Variable("a", 0, 3), Symbol("b", 1, 4)
    for p, q, r, d in product((-2, 0, 1, 4), (-1, 0, 3), (-3, 0, 2), (1, 2, 5, 16)):
        dim = p * (a % 2) + q * (b // 2) + r
        quotients = {symbolic.evaluate(dim, {a: x, b: y}) // d for x in range(4) for y in range(1, 5)}
        if not isinstance(dim, int) and has_several_quotients(dim, d):
            assert len(quotients) > 1
