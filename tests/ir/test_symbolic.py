"""Symbolic integers: the algebra, the proofs, substitution and text, case by case."""

import copy
import itertools
import math
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import (
    Dim,
    Opaque,
    Substitution,
    Symbol,
    Variable,
    align,
    atoms,
    bounds,
    ceildiv,
    equal,
    evaluate,
    is_nonnegative,
    less,
    less_equal,
    linear_coefficient,
    maximum,
    minimum,
    opaques,
    parse,
    product,
    substitute,
    to_text,
    without,
)

n, m = Symbol("n"), Symbol("m")
maybe_zero = Symbol("maybe_zero", 0)
negative, any_sign = Symbol("negative", -9, -1), Symbol("any_sign", -9, 9)
i, j = Variable("i", 0, m - 1), Variable("j", 0, n - 1)
k4, k16 = Variable("k4", 0, 3), Variable("k16", 0, 15)
x = Variable("x", 0)
anything = Variable("anything")
row, cell = Variable("row", 0, n), Variable("cell", 0, n * m - 1)
one = Variable("one", 0, 0)


def texts(dims) -> list[str]:
    return [to_text(dim) for dim in dims]


# --- canonical form -----------------------------------------------------------------------------------------


def test_equal_sums_are_equal_and_hash_alike():
    left, right = 2 * n + m * 3 - 1, m + m + m + n - 1 + n
    assert left == right
    assert hash(left) == hash(right)
    assert left not in (right + 1, 7, "n")
    assert {left: "found"}[right] == "found"


@pytest.mark.parametrize(
    ("dim", "value"),
    [
        (n - n, 0),
        (n * 0, 0),
        (n + 3 - n, 3),
        ((n + 1) * (n - 1) - n * n, -1),
        (n // n, 1),
        (n % n, 0),
        (k4 // 4, 0),
        ((4 * n + k4) // 4 - n, 0),
        (minimum(n, 1), 1),
        (one + 2, 2),
        (one * n, 0),
        (0 % n, 0),
        (x % 1, 0),
    ],
)
def test_a_constant_is_a_python_integer(dim: Dim, value: int):
    assert type(dim) is int
    assert dim == value


def test_a_lone_atom_is_its_own_expression():
    assert all(dim is n for dim in (n + 0, n * 1, n + 1 - 1, 2 * n - n, 0 - (0 - n)))
    assert n.terms == ((((n, 1),), 1),)
    assert n.constant == 0


def test_terms_are_in_a_fixed_order():
    assert texts([k4 + n + 5, n + 5 + k4, 5 + k4 + n]) == ["n + k4 + 5"] * 3
    mixed = 3 * k4 * n + n * n - 2
    assert isinstance(mixed, symbolic.Expr)
    assert mixed.terms == ((((n, 2),), 1), (((n, 1), (k4, 1)), 3))
    assert mixed.constant == -2


def test_symbols_are_equal_by_name_and_bounds():
    assert Symbol("n") == n
    assert n not in (Symbol("n", 2), Symbol("n", 1, 8), Symbol("q"))


def test_variables_are_equal_by_identity():
    assert Variable("i", 0, 3) != Variable("i", 0, 3)
    assert (Variable("i", 0, 3) - Variable("i", 0, 3)) != 0


def test_opaque_integers_are_equal_by_payload():
    first, second, other = Opaque(("load", 1), 0, 9), Opaque(("load", 1)), Opaque(("load", 2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != other
    assert first * n - n * second == 0
    assert first * other == other * second
    assert first // 10 == 0


def test_a_variable_with_one_value_vanishes():
    assert to_text(n * one + k4 + one) == "k4"
    assert (to_text(one), linear_coefficient(one, one), without(one, one)) == ("one", 1, 0)
    assert (evaluate(one, {}), bounds(one), equal(one, 0)) == (0, (0, 0), True)
    fixed = Symbol("fixed", 8, 8)
    assert [n * fixed, minimum(fixed, 9), x // fixed, 17 % fixed] == [8 * n, 8, x // 8, 1]


def test_expressions_are_not_python_integers():
    with pytest.raises(TypeError):
        range(n)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        np.zeros(n + 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"symbolic\.less"):
        bool(n)
    with pytest.raises(TypeError):
        n < 3  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError):
        n * 1.5  # type: ignore[operator]
    assert (n, 3) == (Symbol("n"), 3)
    assert (n, 3) != (m, 3)
    assert m in [n, m]


def test_numpy_integers_are_integers():
    result: Dim = n * np.int64(3)
    result = np.int64(3) * n + (np.int32(1) + result) - np.uint8(2)  # type: ignore[assignment]
    assert to_text(result) == "6*n - 1"
    assert type(symbolic.as_dim(np.int64(3))) is int
    assert symbolic.as_dim(n) is n
    with pytest.raises(TypeError, match=r"1\.5"):
        symbolic.as_dim(1.5)


@pytest.mark.parametrize(
    "dim", [n, i, (n * i + 2) // 3 + minimum(i, x), Opaque("payload", 0, n - 1, [i]) + 1]
)
def test_copies_are_the_same_and_pickles_are_equal(dim: Dim):
    assert copy.copy(dim) is dim
    assert copy.deepcopy(dim) is dim
    leaves = sorted(atoms(dim), key=to_text)
    loaded_leaves, loaded = pickle.loads(pickle.dumps((leaves, dim)))
    assert atoms(loaded) == frozenset(loaded_leaves)
    back = dict(zip(loaded_leaves, leaves, strict=True))
    assert substitute(loaded, back, opaque=lambda payload: payload) == dim


# --- division -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        ((i * n + j) // n, i),
        ((i * n + j) % n, j),
        ((i * 16 + k16) // 4, 4 * i + k16 // 4),
        ((i * 16 + k16) % 4, k16 % 4),
        ((4 * i + k4) % 4, k4),
        ((4 * i + k4) // 8, i // 2),
        ((4 * i + k4) % 8, 4 * (i % 2) + k4),
        ((4 * i + 2) // 8, i // 2),
        ((6 * i + 3) % 9, 3 * ((2 * i + 1) % 3)),
        (n * i // n, i),
        (n * i % n, 0),
        ((x // 4) // 4, x // 16),
        ((anything // 4 + 3) // 4, (anything + 12) // 16),
        ((anything // n) // m, anything // (n * m)),
        ((x % 8) % 4, x % 4),
        ((anything % (n * m)) % n, anything % n),
        ((3 * (x % 8) + n) % 12, (3 * x + n) % 12),
        ((anything // negative) // 2, -anything // (-2 * negative)),
        ((x % 8) // 4, (x // 4) % 2),
        (((i * n + j) * m) // (n * m), i),
        ((anything + n) // n, anything // n + 1),
        ((anything - 5) // 4, (anything + 3) // 4 - 2),
        (5 * anything // 4, anything + anything // 4),
        (x // -4, -x // 4),
        (x % -4, -(-x % 4)),
        (anything // negative, -anything // -negative),
        (-1 // n, -1),
        (-1 % n, n - 1),
        ((n - 1) // n, 0),
        ((n * m - 1) // n, m - 1),
        ((row + (n + 1) * i) // (n + 1), i),
        ((row + (n + 1) * i) % (n + 1), row),
        ((cell // n) % m, cell // n),
        (cell // (n * m), 0),
        ((2 * n + 1) // 2, n),
        (ceildiv(n, 4), (n + 3) // 4),
        (ceildiv(8 * n + 1, 8), n + 1),
        (align(n, 8) // 8, (n + 7) // 8),
        (align(n, 8) % 8, 0),
        (align(13, 8), 16),
        (ceildiv(-7, 2), -3),
    ],
    ids=str,
)
def test_division_simplifies(dim: Dim, expected: Dim):
    assert dim == expected


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (4 * (x // 4) + x % 4, x),
        (12 * (x // 4) + 3 * (x % 4), 3 * x),
        (n * (anything // n) + anything % n, anything),
        (2 * n * m * (anything // n) + 2 * m * (anything % n), 2 * m * anything),
        (16 * (x // 16) + 4 * ((x // 4) % 4) + x % 4, x),
        (n * m * (anything // (n * m)) + n * ((anything // n) % m) + anything % n, anything),
        ((n + 1) * (anything // (n + 1)) + anything % (n + 1), anything),
        (x - 4 * (x // 4), x % 4),
        (x - x % 4, 4 * (x // 4)),
        (n + anything - m * (anything // m), n + anything % m),
        (x + 3 - 4 * ((x + 3) // 4), (x + 3) % 4),
    ],
    ids=str,
)
def test_quotient_and_remainder_recombine(dim: Dim, expected: Dim):
    assert dim == expected


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (row // n, "row//n"),
        (row % n, "row % n"),
        ((row - n) // n, "row//n - 1"),
        ((x % 6) // 4, "(x % 6)//4"),
        ((x % 6) % 4, "(x % 6) % 4"),
        ((2 * (x % 8) + n) % 12, "(n + 2*(x % 8)) % 12"),
        (8 * (x // 4) + x % 4, "8*(x//4) + x % 4"),
        (4 * (x // 4) + (x + 1) % 4, "4*(x//4) + (x + 1) % 4"),
        (2 * x - 4 * (x // 4), "2*x - 4*(x//4)"),
        ((4 * i + k16) // 8, "(4*i + k16)//8"),
        ((x // 2) // any_sign, "(x//2)//any_sign"),
    ],
)
def test_what_only_looks_alike_stays(dim: Dim, text: str):
    assert to_text(dim) == text


def test_division_by_zero_says_what_was_divided():
    for operation in (lambda: (n + 1) // 0, lambda: (n + 1) % 0):
        with pytest.raises(ZeroDivisionError, match=r"`n \+ 1` is divided by zero"):
            operation()


def test_a_divisor_that_may_be_zero_is_left_to_run_time():
    assert to_text(maybe_zero // maybe_zero) == "maybe_zero//maybe_zero"
    with pytest.raises(ZeroDivisionError):
        evaluate(maybe_zero % maybe_zero, {maybe_zero: 0})


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (minimum(j, n - 1), j),
        (maximum(n, 1), n),
        (maximum(n, m, 1), maximum(m, n)),
        (minimum(minimum(n, m), x, n), minimum(x, m, n)),
        (minimum(maximum(j, 0), n - 1), j),
        (minimum(5, 3, 4), 3),
        (maximum(x % 7, 6), 6),
    ],
    ids=str,
)
def test_extrema_drop_what_they_do_not_need(dim: Dim, expected: Dim):
    assert dim == expected


def test_an_extremum_needs_an_argument():
    with pytest.raises(ValueError, match="minimum"):
        minimum()


def test_product():
    assert product([]) == 1
    assert product([2, n, 3]) == 6 * n


# --- index maps of reshapes ---------------------------------------------------------------------------------


def flatten(indices, shape) -> Dim:
    flat: Dim = 0
    for index, extent in zip(indices, shape, strict=True):
        flat = flat * extent + index
    return flat


def unflatten(flat: Dim, shape) -> list[Dim]:
    strides = [product(shape[axis + 1 :]) for axis in range(len(shape))]
    return [flat // stride % extent for stride, extent in zip(strides, shape, strict=True)]


def iterate(shape) -> list[Dim]:
    return [Variable(f"i{axis}", 0, extent - 1) for axis, extent in enumerate(shape)]


a, b, c = Symbol("a"), Symbol("b"), Symbol("c", 2)


@pytest.mark.parametrize(
    "shapes",
    [
        [(a, b, c), (a * b, c), (a, b * c)],
        [(a, b, c), (a, b * c), (a * b * c,), (a * b, c)],
        [(a, 12), (a * 3, 4), (a, 2, 6), (12 * a,)],
        [(6, 4), (8, 3)],
        [(6, 4), (3, 8), (24,), (2, 2, 6)],
        [(a, 6, 4), (a, 8, 3), (a * 24,)],
        [(1, a, 1, 7), (7 * a,), (a, 7, 1)],
        [(a, 2 * b), (2 * a, b)],
        [(a * c, b), (a, c * b)],
        [(2 * a + 1, b), (b * (2 * a + 1),)],
    ],
    ids=str,
)
def test_reshapes_there_and_back_are_the_identity(shapes):
    start = iterate(shapes[0])
    indices = start
    for old, new in itertools.pairwise([*shapes, shapes[0]]):
        indices = unflatten(flatten(indices, old), new)
    assert indices == [index + 0 for index in start]


def random_split(generator: random.Random, factors: list[Dim]) -> list[Dim]:
    cuts = sorted(generator.randint(0, len(factors)) for _ in range(generator.randint(0, 3)))
    return [product(factors[low:high]) for low, high in itertools.pairwise([0, *cuts, len(factors)])]


@pytest.mark.parametrize("seed", range(60))
def test_transposed_reshapes_undone_are_the_identity(seed: int):
    generator = random.Random(seed)
    factors: list[Dim] = [generator.choice([2, 3, 4, 5, a, b, c]) for _ in range(generator.randint(1, 5))]
    shape = random_split(generator, factors)
    start = indices = iterate(shape)
    history = []
    for _ in range(generator.randint(1, 3)):
        reshaped = random_split(generator, factors)
        order = list(range(len(reshaped)))
        generator.shuffle(order)
        indices = [unflatten(flatten(indices, shape), reshaped)[axis] for axis in order]
        history.append((shape, reshaped, order))
        shape = factors = [reshaped[axis] for axis in order]
    for old, reshaped, order in reversed(history):
        straight = [indices[order.index(axis)] for axis in range(len(order))]
        indices = unflatten(flatten(straight, reshaped), old)
    assert indices == [index + 0 for index in start]


# --- proofs -------------------------------------------------------------------------------------------------

outer = Variable("outer", 0, ceildiv(n, 16) - 1)
inner = Variable("inner", 0, minimum(16, n - 16 * outer) - 1)
triangle = Variable("triangle", 0, n - 1 - j)
height = Symbol("height", 3)
window, tap = Variable("window", 0, (height - 3) // 2), Variable("tap", 0, 2)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (less(j, n), True),
        (less(n, j), False),
        (less_equal(n, j), False),
        (less(n, m), None),
        (less(i * n + j, m * n), True),
        (less(16 * outer + inner, n), True),
        (less(j + triangle, n), True),
        (less(2 * window + tap, height), True),
        (less(j // 4, ceildiv(n, 4)), True),
        (less(cell // n, m), True),
        (less(cell % n, n), True),
        (less_equal(n, align(n, 8)), True),
        (less(align(n, 8), n + 8), True),
        (less(align(n, 8), n + 7), None),
        (less_equal(x // 4, x), True),
        (less_equal(x % n, x), True),
        (less_equal(anything // 4, anything), None),
        (less_equal(minimum(x, 4 * anything + 3) // 4, anything), True),
        (less_equal(minimum(x, 4 * anything + 4) // 4, anything), None),
        (less_equal(anything, maximum(x, 4 * anything) // 4), True),
        (less_equal(anything, maximum(x, 4 * anything - 1) // 4), None),
        (less_equal(2 * anything, 2 * (maximum(x, 4 * anything) // 4) + 1), True),
        (is_nonnegative(5 * (maximum(x, 4 * anything + 3) // 4) - 5 * anything + k4), True),
        (is_nonnegative(5 * (maximum(x, 4 * anything + 3) // 4) - 5 * anything + k4 - 1), None),
        (is_nonnegative(5 * anything - 5 * (minimum(x, 4 * anything) // 4) + k4), True),
        (is_nonnegative(5 * anything - 5 * (minimum(x, 4 * anything) // 4) + k4 - 1), None),
        (less_equal(x - 1, 2 * (x // 2)), True),
        (less_equal(x, 2 * (x // 2)), None),
        (less_equal(minimum(anything, n), n), True),
        (less_equal(n, maximum(anything, n)), True),
        (is_nonnegative(n * m - n - m + 1), True),
        (is_nonnegative(n * n - n), True),
        (is_nonnegative(2 * n - n * n), None),
        (is_nonnegative(-n), False),
        (is_nonnegative(maybe_zero - 1), None),
        (equal(2 * n, n + n), True),
        (equal(n, n + 1), False),
        (equal(2 * n, 2 * m + 1), False),
        (equal(n, m), None),
        (equal(n, maybe_zero), None),
        (equal(minimum(n, 16 * outer + 16) - 16 * outer, minimum(n - 16 * outer, 16)), True),
        (equal(3, 3), True),
        (less(2, 3), True),
    ],
)
def test_proofs(answer: bool | None, expected: bool | None):
    assert answer is expected


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (7, (7, 7)),
        (n, (1, None)),
        (3 - 2 * k4, (-3, 3)),
        (n - j, (1, None)),
        (minimum(16, n - 16 * outer), (1, 16)),
        (k4 * k16 - 5, (-5, 40)),
        (anything * anything, (0, None)),
        (anything % 8, (0, 7)),
        (anything // n, (None, None)),
        (k16 // n, (0, 15)),
        (k16 % n, (0, 15)),
        (-k16 // 4, (-4, 0)),
        (align(n, 8) - n, (0, 7)),
        (maximum(k4, 2 - k16), (0, 3)),
        (negative * k4, (-27, 0)),
        (negative * negative * negative, (-729, -1)),
    ],
    ids=str,
)
def test_bounds(dim: Dim, expected: tuple[int | None, int | None]):
    assert bounds(dim) == expected


# --- substitution, evaluation, coefficients -----------------------------------------------------------------


def test_substitution_is_simultaneous_and_simplifies():
    assert substitute(n + 2 * m, {n: m, m: n}) == m + 2 * n
    assert substitute((i * n + x) // n, {x: j}) == i
    assert substitute(minimum(x, n) % 5, {x: 3, n: 9}) == 3
    assert substitute(n * n + 1, {n: i + 1}) == i * i + 2 * i + 2
    assert substitute(x // 4 + n, {x // 4: m}) == m + n
    assert substitute(5, {n: 3}) == 5
    assert substitute(n + m, {x: 3}) == n + m


def test_substitution_in_opaque_integers():
    index = Opaque(("load", i), 0, n - 1, depends=[i])
    assert atoms(index + 1) == {index, i}
    moved = substitute(2 * index, {i: j + 1}, opaque=lambda payload: ("load", j + 1))
    assert moved == 2 * Opaque(("load", j + 1))
    assert atoms(moved) == {Opaque(("load", j + 1)), j}
    assert substitute(index + x, {x: 1}) == index + 1
    assert substitute(index, {index: 4}) == 4
    with pytest.raises(ValueError, match="opaque"):
        substitute(index, {i: j})


def test_a_substitution_remembers_what_became_of_dims():
    payloads = []

    def rewritten(payload):
        payloads.append(payload)
        return payload[0], j

    index = Opaque(("load", i), 0, n - 1, depends=[i])
    mapping = {i: j}
    substitution = Substitution(mapping)
    assert substitution.rewrite(index + i, rewritten) == Opaque(("load", j)) + j
    assert substitution.rewrite(index // 4 + x, rewritten) == Opaque(("load", j), 0, n - 1, depends=[j]) // 4 + x
    assert payloads == [("load", i)]
    mapping[m] = n  # before it is met
    assert substitution.rewrite(m // 4 + i, rewritten) == n // 4 + j


def test_opaque_integers_are_found_in_the_order_of_their_creation():
    first, second = Opaque(("order", 1)), Opaque(("order", 2))
    assert opaques(second * 4 + first // 3 + n) == (first, second)
    assert opaques(n + 1) == opaques(7) == ()


def test_evaluation():
    dim = 2 * n * i - x // 4 % 3 + maximum(n, x) + Opaque("five")
    env = {n: 3, i: 2, x: 17}
    assert evaluate(dim, env, opaque={"five": 5}.__getitem__) == 12 - 4 % 3 + 17 + 5
    assert evaluate(dim, {**env, Opaque("five"): 6}) == 12 - 4 % 3 + 17 + 6
    with pytest.raises(KeyError, match="`n`"):
        evaluate(n, {})


def test_atoms_are_found_at_any_depth():
    assert atoms(7) == frozenset()
    assert atoms(n) == {n}
    assert atoms((i * n + 1) // 3 % 5 + minimum(x, m)) == {i, n, x, m}


def test_linear_coefficients():
    dim = 3 * n * i + 2 * i + j // 4 - 1
    assert (linear_coefficient(dim, i), without(dim, i)) == (3 * n + 2, j // 4 - 1)
    assert (linear_coefficient(dim, x), without(dim, x)) == (0, dim)
    assert (linear_coefficient(i, i), linear_coefficient(4, i)) == (1, 0)
    for dim in (i * i, i + i // 4, i * (i % 3), Opaque("load", depends=[i]) + i, Opaque("load", depends=[i])):
        assert linear_coefficient(dim, i) is None
    with pytest.raises(ValueError, match="not affine"):
        without(i * i, i)


# --- text ---------------------------------------------------------------------------------------------------

NAMES = {
    to_text(dim).strip("`"): dim for dim in (n, m, i, x, anything, Symbol("batch size/2"), Symbol("min"))
}


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (-3, "-3"),
        (n, "n"),
        (2 * n + i // 4 - 1, "2*n + i//4 - 1"),
        (-(x // 4), "-(x//4)"),
        (-n - 1, "-n - 1"),
        (-2 * (x % 4) * n, "-2*n*(x % 4)"),
        (n * n * m, "m*n*n"),
        (n - x % 4, "n - x % 4"),
        ((n + 1) // (m + 2), "(n + 1)//(m + 2)"),
        ((x // m) % n, "(x//m) % n"),
        (3 * minimum(n, 4, m) + 1, "3*min(4, m, n) + 1"),
        (maximum(n, m) // 3, "max(m, n)//3"),
        (Symbol("batch size/2") * 2, "2*`batch size/2`"),
        (Symbol("min") + 1, "`min` + 1"),
        (-anything % 5, "(-anything) % 5"),
    ],
)
def test_text(dim: Dim, text: str):
    assert to_text(dim) == text == str(dim)
    assert parse(text, NAMES.__getitem__) == dim


def test_text_with_given_names():
    first, second = Variable("i", 0, 7), Variable("i", 0, 7)
    names = {first: "i", second: "i.1"}
    dim = 3 * first - second // 2
    text = to_text(dim, names.__getitem__)
    assert text == "3*i - i.1//2"
    assert parse(text, {"i": first, "i.1": second}.__getitem__) == dim


def test_parsing_follows_python():
    source = "1 - -n*2 // 3 % 4 - (n + 2)*min(n, 7) // max(2, n, 3)"
    value = parse(source, NAMES.__getitem__)
    for number in range(1, 30):
        assert evaluate(value, {n: number}) == eval(source, {"n": number, "min": min, "max": max})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a name, a number"),
        ("n +", "a name, a number"),
        ("n m", "the end"),
        ("(n", r"'\)'"),
        ("n $ 2", "from character 1"),
        ("min(n", r"'\)'"),
        ("n/2", "from character 1"),
    ],
)
def test_text_that_is_no_dim_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse(text, NAMES.__getitem__)


DETERMINISM = """
from ingot.compiler.ir.symbolic import *
symbols = [Symbol(name) for name in ("delta", "alpha", "charlie", "bravo")]
variables = [Variable(name, 0, symbols[0]) for name in ("i", "j", "i", "k")]
opaques = [Opaque(payload, 0, 9) for payload in ("left", "right", "top")]
leaves = symbols + variables + opaques
total = 0
for place, leaf in enumerate(leaves):
    other = leaves[place * 7 % len(leaves)]
    total = total + leaf * other * (place - 3) + leaf // (place + 2) * other
    total = total + minimum(leaf, other, 4 * leaf % 9)
print(total, total // 6, total % symbols[1], bounds(total), atoms(total) == frozenset(leaves), sep="\\n")
"""


def test_text_does_not_depend_on_the_hash_seed():
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", DETERMINISM], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert "alpha" in outputs.pop()


# --- limits -------------------------------------------------------------------------------------------------


def test_large_products_expand_up_to_a_limit():
    many = [Symbol(f"s{number}") for number in range(60)]
    total: Dim = 0
    for symbol in many:
        total = total + symbol
    square = total * total
    assert isinstance(square, symbolic.Expr)
    assert len(square.terms) == math.comb(61, 2)
    assert is_nonnegative(square) is True
    with pytest.raises(OverflowError, match="1830 and 1830 terms"):
        _ = square * square


def test_no_rule_expands_what_the_caller_did_not():
    total: Dim = 0
    for number in range(900):
        total = total + Symbol(f"s{number}") * (number % 7 + 1)
    quotient, remainder = total // (total + 1), (total + x) % (total + m)
    rest = (quotient * n + remainder * 2 + total * n) // (total + n) + (x // total + n) // (total + 2)
    assert is_nonnegative(rest) is not False
    assert less(remainder, total + m) is not False


def test_deep_nests_stay_cheap_and_correct():
    dim: Dim = x
    value = 12345
    for depth in range(2, 150):
        dim = (3 * dim + n) // 2 if depth % 2 else (dim + 7 * n) % (depth + 1)
        value = (3 * value + 5) // 2 if depth % 2 else (value + 35) % (depth + 1)
    assert evaluate(dim, {x: 12345, n: 5}) == value
    assert is_nonnegative(dim) is True


def test_many_minima_do_not_explode():
    total: Dim = 0
    for number in range(24):
        total = total + minimum(Variable(f"v{number}", 0, n), n * number + m) * (-1) ** number
    assert is_nonnegative(total) is None
    assert less_equal(minimum(*(n + Symbol(f"s{number}") for number in range(12))), n) is not True


def test_what_is_left_over_beside_dims_that_may_be_none():
    """total - past may be 0, where a reshape has no answer: nothing is divided when one size is a multiple of the other."""
    batch, past, total = Symbol("batch"), Symbol("past"), Symbol("total")
    rest = total - symbolic.minimum(past, total)
    assert symbolic.left_over(128 * batch * rest, 32 * batch * rest) == 4
    assert symbolic.left_over(12 * batch, 4) == 3 * batch
    assert symbolic.left_over(total, rest) == total // rest
