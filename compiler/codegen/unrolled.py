"""Index expressions while the variables of unrolled loops have values.

An unrolled body evaluates the same few expressions over and over with other constants. Nearly always the constants
only change the constant term, so an expression is kept as (rest, constant) with value rest + constant, and `rest` is
the same object each time: whatever is known about it need not be found again.
"""

from __future__ import annotations

from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Expr, Monomial
from ingot.compiler.ir.symbolic.expression import build, build_sum, pieces

Parts = tuple[Dim, int]


class _Plan:
    """How the parts of a dim follow from values of certain variables."""

    __slots__ = ("constant", "found", "products", "rest", "steps", "variables")

    def __init__(self, dim: Expr, given: frozenset[Dim]) -> None:
        self.variables = tuple([atom for atom in symbolic.atoms(dim) if atom in given])
        self.found: dict[tuple[int, ...], Parts] = {}  # where more than the constant changes
        self.constant = 0
        self.steps: list[tuple[int, Dim]] = []  # multiples of values that are added to the constant
        self.products: list[tuple[int, Monomial]] = []  # products of values that are
        self.rest: Dim | None = None  # None: more than the constant changes
        kept: dict[Monomial, int] = {}
        for monomial, coefficient in pieces(dim):
            if not monomial:
                self.constant = coefficient
            elif all(atom in given for atom, _ in monomial):
                if len(monomial) == 1 and monomial[0][1] == 1:
                    self.steps.append((coefficient, monomial[0][0]))
                else:
                    self.products.append((coefficient, monomial))
            elif all(symbolic.atoms(atom).isdisjoint(given) for atom, _ in monomial):
                kept[monomial] = coefficient
            else:
                return
        self.rest = build(kept, 0)


class Uses:
    """A dim, and its parts by which variables have values."""

    __slots__ = ("dim", "plans", "rests")

    def __init__(self, dim: Expr) -> None:
        self.dim = dim  # kept alive: the table of uses is keyed by identity
        self.rests: dict[tuple, Dim] = {}
        self.plans: dict[frozenset[Dim], _Plan] = {}


class UnrolledVariables:
    """The values of variables of unrolled loops, and dims in terms of them."""

    def __init__(self) -> None:
        self.values: dict[Dim, int] = {}
        self.given: frozenset[Dim] = frozenset()  # the variables that have values
        self._patterns: dict[frozenset[Dim], frozenset[Dim]] = {}  # one object for each: compared by identity first
        self._uses: dict[int, Uses] = {}
        self._unique: dict[Dim, Dim] = {}
        self._fixed: dict[int, tuple[Dim, int, Dim]] = {}  # the parts, and the dim, which stays alive

    def enter(self, variable: Dim) -> None:
        """A loop starts that gives `values` of this variable."""
        self.values[variable] = 0
        self._choose(self.given | {variable})

    def leave(self, variable: Dim) -> None:
        self.values.pop(variable)
        self._choose(self.given - {variable})

    def _choose(self, given: frozenset[Dim]) -> None:
        self.given = self._patterns.setdefault(given, given)

    def inherit(self, other: UnrolledVariables) -> None:
        """The values of the function around."""
        self.values, self.given = dict(other.values), other.given

    def unique(self, dim: Dim) -> Any:
        """The first of the dims equal to this one that came up, which stays alive: what is known about it may be found by
        its identity, which is much quicker than by its value."""
        return self._unique.setdefault(dim, dim)

    def mentions(self, dim: Dim) -> bool:
        """Whether some variable in the dim has a value."""
        return not isinstance(dim, int) and not self.given.isdisjoint(symbolic.atoms(dim))

    def parts(self, dim: Dim) -> Parts:
        """(rest, constant): the dim is their sum; the rest has no constant term."""
        if isinstance(dim, int):
            return 0, dim
        return self.parts_of(self.uses(dim)) if self.mentions(dim) else self.fixed_parts(dim)

    def fixed_parts(self, dim: Dim) -> Parts:
        """The same of a dim in which no variable has a value."""
        if isinstance(dim, int):
            return 0, dim
        found = self._fixed.get(id(dim))
        if found is None:
            found = self._fixed[id(dim)] = self.unique(dim - dim.constant), dim.constant, dim
        return found[:2]

    def uses(self, dim: Expr) -> Uses:
        """What is known about a dim, for those who ask for its parts again and again."""
        found = self._uses.get(id(dim))
        if found is None:
            found = self._uses[id(dim)] = Uses(dim)
        return found

    def parts_of(self, uses: Uses) -> Parts:
        """The parts of the dim with the values of the moment."""
        plan = uses.plans.get(self.given)
        if plan is None:
            plan = uses.plans[self.given] = _Plan(uses.dim, self.given)
            if plan.rest is not None:
                plan.rest = self.unique(plan.rest)
        values, rest = self.values, plan.rest
        if rest is None:
            numbers = tuple([values[variable] for variable in plan.variables])
            found = plan.found.get(numbers)
            if found is None:
                mapping: dict[Dim, int] = dict(zip(plan.variables, numbers, strict=True))
                found = plan.found[numbers] = self._split(uses, mapping)
            return found
        constant = plan.constant
        for coefficient, variable in plan.steps:
            constant += coefficient * values[variable]
        for coefficient, monomial in plan.products:
            for atom, power in monomial:
                coefficient *= values[atom] ** power
            constant += coefficient
        return rest, constant

    def resolve(self, dim: Dim) -> Dim:
        """The dim with values for variables of unrolled loops; the same object when there are none in it."""
        if isinstance(dim, int) or not self.values or self.values.keys().isdisjoint(symbolic.atoms(dim)):
            return dim
        rest, constant = self.parts(dim)
        return rest + constant

    def _split(self, uses: Uses, mapping: dict[Dim, int]) -> Parts:
        constant = uses.dim.constant
        kept: list[tuple[Monomial, int]] = []
        changed: Dim = 0
        for monomial, coefficient in uses.dim.terms:
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
