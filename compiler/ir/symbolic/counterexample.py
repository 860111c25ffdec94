"""Values for which a dim is negative, or has another quotient: where there are some, looking for a proof of the contrary
is in vain.

Most questions of a schedule that are not decided have both answers (is this element of the padding?), and a search that
fails takes a hundred times longer than trying a few corners.

Invariant: every value tried is within the bounds of its atom, under the values of the others.
Non-goal: finding a counterexample whenever there is one.
"""

from __future__ import annotations

from collections.abc import Collection

from ingot.compiler.ir.symbolic.expression import (
    Atom,
    Compound,
    Dim,
    Expr,
    FloorDiv,
    Minimum,
    Mod,
    Opaque,
    Symbol,
    Variable,
    atoms,
)

FAR = (0, 9973, 97)  # how far above its lower bound a symbol is tried: most often 0 shows it, then more than any tile


class _Impossible(Exception):
    """The values tried so far leave none for an atom."""


def is_negative_somewhere(dim: Dim) -> bool:
    """Whether corners of the atoms' ranges show a value below zero."""
    if isinstance(dim, int):
        return dim < 0
    every = _movable(dim)
    falling = [atoms(part) for monomial, factor in dim._terms.items() if factor < 0 for part, _ in monomial]
    highs = (frozenset().union(*falling) & every, frozenset(), every)
    for high in dict.fromkeys(highs):  # equal ones are tried once
        for far in FAR:
            corner = _Corner(far, high)
            value = corner.value(dim)
            if value is not None and value < 0:
                return True
            if not corner.went_far:
                break
    return False


def has_several_quotients(dim: Expr, divisor: int) -> bool:
    """Whether corners of the atoms' ranges show two values of dim // divisor."""
    none, every = frozenset(), _movable(dim)
    first = None
    for far, high in ((FAR[0], none), (FAR[1], every), (FAR[0], every), (FAR[1], none)):
        value = _Corner(far, high).value(dim)
        if value is None:
            continue
        quotient = value // divisor
        if first is None:
            first = quotient
        elif quotient != first:
            return True
    return False


def _movable(dim: Expr) -> frozenset[Atom]:
    """The atoms that are tried at their upper bounds; symbols have their own ways."""
    return frozenset([atom for atom in atoms(dim) if not isinstance(atom, Symbol)])


class _Corner:
    """One assignment: symbols so far above their lower bounds, the variables in `high` at their upper ones."""

    def __init__(self, far: int, high: Collection[Atom]) -> None:
        self.far, self.high = far, high
        self.went_far = False  # whether something depends on how far
        self.values: dict[Atom, int] = {}

    def value(self, dim: Dim) -> int | None:
        """None where the assignment is none."""
        try:
            return self.dim(dim)
        except (_Impossible, ZeroDivisionError):
            return None

    def dim(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        total = dim.constant
        for monomial, factor in dim._terms.items():
            for atom, power in monomial:
                value = self.values.get(atom)
                if value is None:
                    value = self.values[atom] = self._compound(atom) if isinstance(atom, Compound) else self._leaf(atom)
                factor *= value if power == 1 else value**power
            total += factor
        return total

    def _compound(self, atom: Compound) -> int:
        values = [argument if isinstance(argument, int) else self.dim(argument) for argument in atom.arguments]
        if isinstance(atom, FloorDiv):
            return values[0] // values[1]
        if isinstance(atom, Mod):
            return values[0] % values[1]
        return min(values) if isinstance(atom, Minimum) else max(values)

    def _leaf(self, atom: Atom) -> int:
        assert isinstance(atom, (Symbol, Variable, Opaque))
        upper = None if atom.upper is None else self.dim(atom.upper)
        if atom.lower is not None:
            lower = self.dim(atom.lower)
        else:
            lower = 0 if upper is None else min(0, upper)
        if upper is None or isinstance(atom, Symbol):
            self.went_far = True
        if upper is None:
            upper = lower + self.far
        if lower > upper:
            raise _Impossible
        if isinstance(atom, Symbol):
            return min(lower + self.far, upper)
        return upper if atom in self.high else lower
