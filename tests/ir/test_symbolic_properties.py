"""Symbolic integers against Python's: what is simplified or proven must hold for all values within bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ingot.compiler.ir.symbolic import (
    Atom,
    Dim,
    Opaque,
    Symbol,
    Variable,
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
    parse,
    substitute,
    to_text,
    without,
)

n, small = Symbol("n"), Symbol("small", 1, 6)
maybe_zero, any_sign, negative = (
    Symbol("maybe_zero", 0, 3),
    Symbol("any_sign", -3, 3),
    Symbol("negative", -4, -1),
)
i = Variable("i", 0, n - 1)
j = Variable("j", 0, small - 1)
k = Variable("k", 0, 3)
cell = Variable("cell", 0, n * small - 1)
above = Variable("above", i, n - 1)
tile = Variable("tile", 0, ceildiv(n, 4) - 1)
inside = Variable("inside", 0, minimum(4, n - 4 * tile) - 1)
free, natural = Variable("free"), Variable("natural", 0)
loaded = Opaque("loaded", 0, 7)

LEAVES: list[Symbol | Variable | Opaque] = [
    n, small, maybe_zero, any_sign, negative, i, j, k, cell, above, tile, inside, free, natural, loaded,
]  # fmt: skip

# An expression before it is built: an integer, a leaf, or an operator and its operands.
Tree = int | Atom | tuple
OPERATIONS: dict[str, Callable] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "min": minimum,
    "max": maximum,
    "negate": lambda value: -value,
}


CHOICES = ["+", "+", "-", "*", "//", "//", "%", "%", "min", "max", "negate"]
CONSTANTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, -1, -2, -4]


@st.composite
def trees(draw: st.DrawFn, depth: int = 4, leaves: Sequence[Atom] | None = None) -> Tree:
    if leaves is None:
        leaves = draw(st.lists(st.sampled_from(LEAVES), min_size=1, max_size=3, unique=True))
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(leaves if draw(st.integers(0, 3)) else CONSTANTS))
    operation = draw(st.sampled_from(CHOICES))
    count = 1 if operation == "negate" else 2
    return (operation, *(draw(trees(depth - 1, leaves)) for _ in range(count)))


def compute(tree: Tree, leaf: Callable[[Atom], Dim]) -> Dim:
    """Without a canonical form in the way: on integers this is Python's own arithmetic."""
    if isinstance(tree, tuple):
        return OPERATIONS[tree[0]](*(compute(operand, leaf) for operand in tree[1:]))
    return tree if isinstance(tree, int) else leaf(tree)


def build(tree: Tree) -> Dim:
    try:
        return compute(tree, lambda atom: atom)
    except ZeroDivisionError:
        assume(False)
        raise


def random_environment(generator: random.Random) -> dict[Atom, int]:
    """Values of all leaves, each within its bounds."""
    values: dict[Atom, int] = {}
    for atom in LEAVES:
        low, high = limits(atom, values)
        values[atom] = generator.randint(low, high)
    return values


def limits(atom: Symbol | Variable | Opaque, values: dict[Atom, int]) -> tuple[int, int]:
    """The bounds of the atom, cut to a finite range, for given values of earlier atoms."""
    low = -60 if atom.lower is None else evaluate(atom.lower, values)
    return low, low + 120 if atom.upper is None else evaluate(atom.upper, values)


@st.composite
def several_environments(draw: st.DrawFn) -> list[dict[Atom, int]]:
    generator = random.Random(draw(st.integers(0, 2**32)))
    return [random_environment(generator) for _ in range(12)]


examples = settings(
    max_examples=100, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def value_of(tree: Tree, env: dict[Atom, int]) -> int | None:
    """The value of the tree in plain Python; None where it divides by zero."""
    try:
        result = compute(tree, env.__getitem__)
    except ZeroDivisionError:
        return None
    assert isinstance(result, int)
    return result


@examples
@given(trees(), several_environments())
def test_a_simplified_expression_has_the_value_of_what_was_written(tree: Tree, envs: list[dict[Atom, int]]):
    dim = build(tree)
    for env in envs:
        value = value_of(tree, env)
        if value is not None:
            assert evaluate(dim, env) == value


@examples
@given(trees(), several_environments())
def test_bounds_hold(tree: Tree, envs: list[dict[Atom, int]]):
    dim = build(tree)
    lower, upper = bounds(dim)
    for env in envs:
        value = value_of(tree, env)
        if value is not None:
            assert lower is None or lower <= value
            assert upper is None or value <= upper


@examples
@given(trees(depth=3), trees(depth=2), several_environments())
def test_proofs_are_never_wrong(left: Tree, right: Tree, envs: list[dict[Atom, int]]):
    first, second = build(left), build(right)
    answers = {
        less(first, second): lambda a, b: a < b,
        less_equal(first, second): lambda a, b: a <= b,
        equal(first, second): lambda a, b: a == b,
        is_nonnegative(first): lambda a, b: a >= 0,
    }
    answers.pop(None, None)
    for env in envs:
        values = value_of(left, env), value_of(right, env)
        if None not in values:
            for answer, relation in answers.items():
                assert relation(*values) is answer


@examples
@given(trees())
def test_text_comes_back_as_the_same_expression(tree: Tree):
    dim = build(tree)
    names = {to_text(atom): atom for atom in LEAVES}
    text = to_text(dim)
    assert parse(text, names.__getitem__) == dim
    assert to_text(parse(text, names.__getitem__)) == text


@examples
@given(trees())
def test_building_again_changes_nothing(tree: Tree):
    dim = build(tree)
    assert substitute(dim, {atom: atom for atom in LEAVES}) == dim


@examples
@given(trees(depth=3), st.sampled_from(LEAVES), several_environments(), st.integers(-5, 5))
def test_substitution_commutes_with_evaluation(
    tree: Tree, target: Atom, envs: list[dict[Atom, int]], shift: int
):
    """Replacing a leaf by an expression that has its value, but other atoms and bounds."""
    dim = build(tree)
    for env in envs:
        replacement = free * shift - env[free] * shift + env[target]
        try:
            expected = evaluate(dim, env)
        except ZeroDivisionError:
            continue
        assert evaluate(substitute(dim, {target: replacement}), env) == expected


@examples
@given(trees(depth=3), st.sampled_from(LEAVES))
def test_the_linear_part_and_the_rest_make_the_whole(tree: Tree, variable: Atom):
    dim = build(tree)
    coefficient = linear_coefficient(dim, variable)
    if coefficient is None:
        with pytest.raises(ValueError, match="not affine"):
            without(dim, variable)
        return
    rest = without(dim, variable)
    assert coefficient * variable + rest == dim
    assert variable not in atoms(coefficient) | atoms(rest)


@examples
@given(trees(depth=3), trees(depth=3), trees(depth=2))
def test_sums_and_products_obey_the_laws_of_a_ring(first: Tree, second: Tree, third: Tree):
    """Without divisions the forms are identical; with them, recombination may take another path."""
    left, right, other = build(first), build(second), build(third)
    for one, two in (
        (left + right, right + left),
        (left * right, right * left),
        ((left + right) + other, left + (right + other)),
        ((left + right) * other, left * other + right * other),
        (left - left, 0),
    ):
        assert equal(one, two) is not False
        if not any(mark in f"{left} {right} {other}" for mark in ("//", "%")):
            assert one == two
            assert hash(one) == hash(two)


def random_tree(generator: random.Random, depth: int, leaves: Sequence[Atom]) -> Tree:
    """The same distribution as `trees`, without the machinery that finds small counterexamples."""
    if depth == 0 or generator.randrange(6) == 0:
        return generator.choice(leaves) if generator.randrange(4) else generator.choice(CONSTANTS)
    operation = generator.choice(CHOICES)
    count = 1 if operation == "negate" else 2
    return (operation, *(random_tree(generator, depth - 1, leaves) for _ in range(count)))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_random_expressions_hold_all_promises(seed: int):
    generator = random.Random(seed)
    names = {to_text(atom): atom for atom in LEAVES}
    for _ in range(1000):
        tree = random_tree(
            generator, generator.randint(2, 5), generator.sample(LEAVES, generator.randint(1, 4))
        )
        try:
            dim = compute(tree, lambda atom: atom)
        except ZeroDivisionError:
            continue
        assert parse(to_text(dim), names.__getitem__) == dim
        (lower, upper), sign = bounds(dim), is_nonnegative(dim)
        for _ in range(10):
            env = random_environment(generator)
            value = value_of(tree, env)
            if value is None:
                continue
            assert evaluate(dim, env) == value
            assert lower is None or lower <= value
            assert upper is None or value <= upper
            assert sign is None or sign is (value >= 0)
