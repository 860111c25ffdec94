"""Index expressions while the variables of unrolled loops have values.

An unrolled body evaluates the same few expressions over and over with other constants. Nearly always the constants
only change the constant term, so an expression is kept as (rest, constant) with value rest + constant, and `rest` is
the same object each time: whatever is known about it need not be found again.
"""

from __future__ import annotations

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr, Monomial, Variable
from ingot.compiler.ir.symbolic.expression import build_sum

Parts = tuple[Dim, int]


class _Uses:
    """A dim, the variables it mentions, and its parts for values of these that came up."""

    __slots__ = ("dim", "found", "plans", "rests", "terms", "variables")

    def __init__(self, dim: Expr) -> None:
        self.dim = dim  # kept alive: the table of uses is keyed by identity
        found = (atom for atom in symbolic.atoms(dim) if isinstance(atom, Variable))
        self.variables = tuple(sorted(found, key=lambda variable: variable.serial))
        self.terms = dim.terms
        self.found: dict[tuple[int | None, ...], Parts] = {}
        self.rests: dict[tuple, Dim] = {}
        self.plans: dict[tuple[bool, ...], _Plan | None] = {}

    def plan(self, numbers: tuple[int | None, ...]) -> _Plan | None:
        """How the parts follow from values of the same variables; None when more than the constant changes."""
        given = tuple(number is not None for number in numbers)
        if given not in self.plans:
            self.plans[given] = self._planned({v: n for n, v in enumerate(self.variables) if given[n]})
        return self.plans[given]

    def _planned(self, places: dict[Dim, int]) -> _Plan | None:
        steps: list[tuple[int, tuple[tuple[int, int], ...]]] = []
        kept: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms:
            if all(atom in places for atom, _ in monomial):
                steps.append((coefficient, tuple((places[atom], power) for atom, power in monomial)))
            elif all(symbolic.atoms(atom).isdisjoint(places) for atom, _ in monomial):
                kept.append((monomial, coefficient))
            else:
                return None
        return build_sum(kept, 0), steps


_Plan = tuple[Dim, list[tuple[int, tuple[tuple[int, int], ...]]]]  # the rest; products of values that are added up


class UnrolledVariables:
    """The values of variables of unrolled loops, and dims in terms of them."""

    def __init__(self) -> None:
        self.values: dict[Dim, int] = {}
        self._uses: dict[int, _Uses] = {}

    def parts(self, dim: Dim) -> Parts:
        """(rest, constant): the dim is their sum; the rest has no constant term."""
        if isinstance(dim, int):
            return 0, dim
        uses = self._uses.get(id(dim))
        if uses is None:
            uses = self._uses[id(dim)] = _Uses(dim)
        numbers = tuple(map(self.values.get, uses.variables))
        found = uses.found.get(numbers)
        if found is None:
            found = uses.found[numbers] = self._split(uses, numbers)
        return found

    def resolve(self, dim: Dim) -> Dim:
        """The dim with values for variables of unrolled loops; the same object when there are none in it."""
        if isinstance(dim, int) or not self.values or self.values.keys().isdisjoint(symbolic.atoms(dim)):
            return dim
        rest, constant = self.parts(dim)
        return rest + constant

    def _split(self, uses: _Uses, numbers: tuple[int | None, ...]) -> Parts:
        plan = uses.plan(numbers)
        if plan is not None:
            rest, steps = plan
            constant = uses.dim.constant
            for coefficient, factors in steps:
                for place, power in factors:
                    coefficient *= numbers[place] ** power  # type: ignore[operator]
                constant += coefficient
            return rest, constant
        mapping: dict[Dim, int] = {v: n for v, n in zip(uses.variables, numbers, strict=True) if n is not None}
        constant = uses.dim.constant
        kept: list[tuple[Monomial, int]] = []
        changed: Dim = 0
        for monomial, coefficient in uses.terms:
            factors = []
            is_nested = False
            for atom, power in monomial:
                if atom in mapping:
                    coefficient *= mapping[atom] ** power
                else:
                    factors.append((atom, power))
                    is_nested = is_nested or not symbolic.atoms(atom).isdisjoint(mapping)
            if is_nested:
                term = build_sum(((tuple(factors), 1),), 0)
                changed = changed + coefficient * symbolic.substitute(term, mapping, opaque=_unchanged)
            elif not factors:
                constant += coefficient
            elif coefficient:
                kept.append((tuple(factors), coefficient))
        key = tuple(kept)
        rest = uses.rests.get(key)
        if rest is None:
            rest = uses.rests[key] = build_sum(kept, 0)
        if changed == 0:
            return rest, constant
        total = rest + changed
        if isinstance(total, int):
            return 0, total + constant
        return total - total.constant, total.constant + constant


def _unchanged(payload: object) -> object:
    """A run-time integer is evaluated with the values of the moment; its payload needs no rewriting."""
    return payload
