"""What can be done with sums of monomials without proofs: exact division, common factors, coefficients.

Invariant: results are built by `expression.build`, so they are canonical up to recombination of divisions.
Non-goal: recombination itself; `plain` functions skip it, for callers that are part of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ingot.compiler.ir.symbolic.expression import (
    Atom,
    Dim,
    Expr,
    Monomial,
    accumulate,
    build,
    has_division,
    pieces,
    rules,
)


def divide_monomials(dividend: Monomial, divisor: Monomial) -> Monomial | None:
    """The exact quotient, or None."""
    powers = dict(dividend)
    for atom, power in divisor:
        rest = powers.get(atom, 0) - power
        if rest < 0:
            return None
        if rest:
            powers[atom] = rest
        else:
            del powers[atom]
    return tuple(powers.items())


def common_monomial(left: Monomial, right: Monomial) -> Monomial:
    """The greatest monomial that divides both."""
    powers = dict(right)
    return tuple((atom, min(power, powers[atom])) for atom, power in left if atom in powers)


def build_term(monomial: Monomial, coefficient: int) -> Dim:
    return build({monomial: coefficient}, 0) if monomial else coefficient


def build_combined(terms: dict[Monomial, int], constant: int) -> Dim:
    """The dim of terms that may need recombination; takes the dict over."""
    return rules.recombine(terms, constant) if has_division(terms) else build(terms, constant, False)


def add_plain(left: Dim, right: Dim) -> Dim:
    """left + right without recombination"""
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in (*pieces(left), *pieces(right)):
        accumulate(terms, monomial, coefficient)
    return build(terms, terms.pop((), 0))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of the dims; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def polynomial_in(dim: Expr, atom: Atom) -> dict[int, Dim]:
    """power of the atom -> coefficient. Occurrences inside other atoms stay in the coefficients."""
    collected: dict[int, dict[Monomial, int]] = {0: {}}
    for monomial, coefficient in dim._terms.items():
        for factor, power in monomial:
            if factor == atom:
                rest = tuple([other for other in monomial if other[0] != atom]) if len(monomial) > 1 else ()
                collected.setdefault(power, {})[rest] = coefficient
                break
        else:
            collected[0][monomial] = coefficient
    result = {power: build(terms, terms.pop((), 0)) for power, terms in collected.items() if power}
    result[0] = build(collected[0], dim.constant)
    return result
