"""Walks over expressions: substitution, evaluation, and how a dim depends on one variable.

Invariant: `substitute` builds its result with the operators, so it is simplified for the new bounds.
Non-goal: looking into the payload of opaque integers; callers pass a callback for that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ingot.compiler.ir.symbolic.division import ceildiv
from ingot.compiler.ir.symbolic.expression import (
    Atom,
    Compound,
    Dim,
    Expr,
    FloorDiv,
    Minimum,
    Mod,
    Monomial,
    Opaque,
    accumulate,
    atoms,
    build,
    opaques,
    rules,
)
from ingot.compiler.ir.symbolic.extremum import maximum, minimum
from ingot.compiler.ir.symbolic.polynomial import polynomial_in


def align(dim: Dim, multiple: Dim) -> Dim:
    """The least multiple of a positive `multiple` that is at least `dim`."""
    return ceildiv(dim, multiple) * multiple


def substitute(dim: Dim, mapping: Mapping[Any, Dim], opaque: Callable[[Any], Hashable] | None = None) -> Dim:
    """The dim with atoms replaced, all at once, and simplified again; `opaque` rewrites payloads."""
    return Substitution(mapping).rewrite(dim, opaque)


OpaqueRewriter = Callable[[Any], Hashable]


class Substitution:
    """Substitutions of one mapping: remembers what became of each dim. Variables may be added to the mapping until they
    are met. What rewrites payloads is given each time, since it often belongs to the owner of the substitution."""

    def __init__(self, mapping: Mapping[Any, Dim]) -> None:
        self.mapping = mapping
        self.done: dict[Expr, Dim] = {}
        self._has_compounds: bool | None = None  # among what is replaced

    def rewrite(self, dim: Dim, opaque: OpaqueRewriter | None = None) -> Dim:
        if isinstance(dim, int):
            return dim
        found = self.done.get(dim)
        if found is None:
            found = self.done[dim] = dim if self._is_unchanged(dim, opaque) else self._changed(dim, opaque)
        return found

    def _changed(self, dim: Expr, opaque: OpaqueRewriter | None) -> Dim:
        if isinstance(dim, Atom):
            return self.mapping[dim] if dim in self.mapping else self._atom(dim, opaque)
        if not dim._divides:
            at_once = self._without_divisions(dim, opaque)
            if at_once is not None:
                return at_once
        result: Dim = dim.constant
        for monomial, coefficient in dim._terms.items():
            result = result + self._monomial(monomial, coefficient, opaque)
        return result

    def _without_divisions(self, dim: Expr, opaque: OpaqueRewriter | None) -> Dim | None:
        """All terms of a sum at once, which is the same where nothing can be recombined."""
        terms: dict[Monomial, int] = {}
        constant = dim.constant
        for monomial, coefficient in dim._terms.items():
            value = self._monomial(monomial, 1, opaque)
            if isinstance(value, int):
                constant += coefficient * value
                continue
            if value._divides:
                return None
            for part, factor in value._terms.items():
                accumulate(terms, part, coefficient * factor)
            constant += coefficient * value.constant
        return build(terms, constant, False)

    def _monomial(self, monomial: Monomial, coefficient: int, opaque: OpaqueRewriter | None) -> Dim:
        term: Dim = coefficient
        for atom, power in monomial:
            value = self.rewrite(atom, opaque)
            for _ in range(power):
                term = term * value
        return term

    def _is_unchanged(self, dim: Expr, opaque: OpaqueRewriter | None) -> bool:
        if not self.mapping.keys().isdisjoint(atoms(dim)):
            return False
        if opaque is not None and opaques(dim):
            return False
        if self._has_compounds is None:
            self._has_compounds = any(isinstance(key, Compound) for key in self.mapping)
        return not self._has_compounds

    def _atom(self, atom: Atom, opaque: OpaqueRewriter | None) -> Dim:
        if isinstance(atom, Opaque):
            return self._opaque(atom, opaque)
        if not isinstance(atom, Compound):
            return atom
        return _apply(atom, [self.rewrite(argument, opaque) for argument in atom.arguments])

    def _opaque(self, atom: Opaque, opaque: OpaqueRewriter | None) -> Dim:
        if opaque is None:
            if atom.depends.isdisjoint(self.mapping):
                return atom
            raise ValueError(
                f"the run-time integer `{rules.to_text(atom)}` depends on what is substituted; "
                "pass `opaque`, a function that rewrites its payload"
            )
        payload = opaque(atom.payload)
        if payload == atom.payload:
            return atom
        depends = frozenset().union(*(atoms(self.rewrite(leaf, opaque)) for leaf in atom.depends))
        lower = None if atom.lower is None else self.rewrite(atom.lower, opaque)
        upper = None if atom.upper is None else self.rewrite(atom.upper, opaque)
        return Opaque(payload, lower, upper, depends)


def _apply(atom: Compound, arguments: list[Any]) -> Any:
    """The meaning of the atom on other arguments, dims or integers."""
    match atom:
        case FloorDiv():
            return arguments[0] // arguments[1]
        case Mod():
            return arguments[0] % arguments[1]
        case Minimum():
            return minimum(*arguments)
        case _:
            return maximum(*arguments)


def evaluate(dim: Dim, env: Mapping[Any, int], opaque: Callable[[Any], int] | None = None) -> int:
    """The value of the dim for given atoms; `opaque` computes the payloads that `env` does not name."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Atom):
        return _evaluate_atom(dim, env, opaque)
    total = dim.constant
    for monomial, coefficient in dim._terms.items():
        for atom, power in monomial:
            coefficient *= _evaluate_atom(atom, env, opaque) ** power
        total += coefficient
    return total


def _evaluate_atom(atom: Atom, env: Mapping[Any, int], opaque: Callable[[Any], int] | None) -> int:
    if atom in env:
        return env[atom]
    if isinstance(atom, Compound):
        return _apply(atom, [evaluate(argument, env, opaque) for argument in atom.arguments])
    if isinstance(atom, Opaque) and opaque is not None:
        return opaque(atom.payload)
    if not atom._terms:
        return atom.constant  # the only value within its bounds
    raise KeyError(f"no value is given for `{rules.to_text(atom)}`")


def linear_coefficient(dim: Dim, variable: Atom) -> Dim | None:
    """c with dim == c*variable + rest, both free of the variable; 0 without it, None if not affine."""
    if dim is variable:
        return 1
    if isinstance(dim, int) or variable not in atoms(dim):
        return 0
    powers = polynomial_in(dim, variable)
    if max(powers) > 1 or any(variable in atoms(coefficient) for coefficient in powers.values()):
        return None
    return powers.get(1, 0)  # a variable with one possible value is that value in every sum


def without(dim: Dim, variable: Atom) -> Dim:
    """The rest of a dim that is affine in the variable: its value where the variable is zero."""
    coefficient = linear_coefficient(dim, variable)
    if coefficient is None:
        raise ValueError(f"`{rules.to_text(dim)}` is not affine in `{rules.to_text(variable)}`")
    return 0 if dim is variable else dim - coefficient * variable
