"""Bounds and proofs: interval arithmetic, sharpened by replacing atoms with their symbolic bounds.

What: `i <= n - 1` is a fact about a loop variable, so `n - i` is at least `n - (n - 1) = 1`, although both
intervals are unbounded. Atoms are eliminated one at a time, those first whose bounds mention other atoms.
Invariant: each elimination is an inequality that holds for every assignment within the bounds, so any order
is sound; a wrong choice can only leave a question undecided.
Non-goal: completeness, and any case distinction except over the arguments of minima and maxima.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from ingot.compiler.ir.symbolic.counterexample import is_negative_somewhere
from ingot.compiler.ir.symbolic.expression import (
    RULE_TERMS,
    Atom,
    Compound,
    Dim,
    Expr,
    FloorDiv,
    Interval,
    Maximum,
    Minimum,
    Mod,
    Opaque,
    Symbol,
    Variable,
    add,
    atoms,
    multiply,
    rank_of,
    scale,
    size_of,
)
from ingot.compiler.ir.symbolic.polynomial import build_combined, polynomial_in

MEMO_ENTRIES = 1 << 15
PROOF_TERMS = 64  # larger sums are only bounded by the intervals of their terms
PROOF_STEPS = 64  # eliminations in one proof
PROOF_CASES = 16  # combinations of arguments of minima and maxima that are told apart
SEARCH_TERMS = 16  # in larger sums no cases are told apart and no divisions cleared
PROOF_RANK = 24  # deeper nests are only bounded by intervals


# --- questions ----------------------------------------------------------------------------------------------


def bounds(dim: Dim) -> Interval:
    """An inclusive numeric interval that holds every value of the dim; None where no bound is known."""
    return (dim, dim) if isinstance(dim, int) else _bounds(dim)


@lru_cache(MEMO_ENTRIES)
def _bounds(dim: Expr) -> Interval:
    return _lower_bound(dim), _negative(lower_bound(scale(dim, -1)))


def lower_bound(dim: Dim) -> int | None:
    """A constant that no value of the dim is below, or None."""
    return dim if isinstance(dim, int) else _lower_bound(dim)


def is_nonnegative(dim: Dim) -> bool | None:
    """Whether dim >= 0: for all values of its atoms True, for none False, undecided None."""
    return dim >= 0 if isinstance(dim, int) else _is_nonnegative(dim)


@lru_cache(MEMO_ENTRIES)
def _is_nonnegative(dim: Expr) -> bool | None:
    if _has_intervals(dim):
        lower, upper = interval(dim)  # settles most questions, and costs least
        if lower is not None and lower >= 0:
            return True
        if upper is not None and upper < 0:
            return False
    if proves_nonnegative(dim):
        return True
    return False if proves_nonnegative(-1 - dim) else None


def less_equal(left: Dim, right: Dim) -> bool | None:
    """Whether left <= right: always True, never False, undecided None."""
    return is_nonnegative(right - left)


def less(left: Dim, right: Dim) -> bool | None:
    """Whether left < right: always True, never False, undecided None."""
    return is_nonnegative(right - left - 1)


def equal(left: Dim, right: Dim) -> bool | None:
    """Whether left == right: always True, never False, undecided None."""
    difference = left - right
    if isinstance(difference, int):
        return difference == 0
    if difference.constant % math.gcd(*difference._terms.values()):
        return False
    if proves_positive(difference) or proves_positive(-difference):
        return False
    return True if proves_nonnegative(difference) and proves_nonnegative(-difference) else None


def proves_positive(dim: Dim) -> bool:
    """Whether dim >= 1 is proven."""
    return dim >= 1 if isinstance(dim, int) else proves_nonnegative(add(dim, -1))


@lru_cache(MEMO_ENTRIES)
def proves_nonnegative(dim: Dim) -> bool:
    """Whether dim >= 0 is proven."""
    if _has_intervals(dim):
        lower, _ = interval(dim)  # settles most questions, and costs least
        if lower is not None and lower >= 0:
            return True
    if is_negative_somewhere(dim):
        return False
    for _ in range(PROOF_STEPS):
        dim = _without_common_factor(dim)
        if _has_nonnegative_bound(dim):
            return True
        cleared = _clear_quotient(dim)
        if cleared is None:
            return False
        dim = cleared
    return False


def _has_intervals(dim: Dim) -> bool:
    """Whether the intervals of all atoms are known: finding those of new divisions costs more than a counterexample."""
    if isinstance(dim, int):
        return True
    for monomial in dim._terms:
        for atom, _ in monomial:
            if atom._interval is None and isinstance(atom, Compound):
                return False
    return True


def _without_common_factor(dim: Dim) -> Dim:
    """A dim of the same sign: g*y + c >= 0 exactly where y + c//g >= 0."""
    if isinstance(dim, int) or not dim._terms:
        return dim
    factor = math.gcd(*dim._terms.values())
    if factor == 1:
        return dim
    terms = {monomial: coefficient // factor for monomial, coefficient in dim._terms.items()}
    return build_combined(terms, dim.constant // factor)


def _has_nonnegative_bound(dim: Dim) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    lower, _ = interval(dim)  # settles most questions, and costs least
    if lower is None or lower < 0:
        lower = lower_bound(dim)
    return lower is not None and lower >= 0


def _clear_quotient(dim: Dim) -> Dim | None:
    """A dim with one floor division less that can only be non-negative if this dim is.

    With d >= 1 and q = x//d, x - d + 1 <= d*q <= x bounds d*(c*q + r) from below; and as c*q + r is an
    integer, it is non-negative already when that bound is above -d.
    """
    if isinstance(dim, int) or not dim._divides or len(dim._terms) > SEARCH_TERMS or not _is_tractable(dim):
        return None
    quotients = {atom for monomial in dim._terms for atom, _ in monomial if isinstance(atom, FloorDiv)}
    for atom in sorted(quotients, key=_rank_key, reverse=True):
        powers = polynomial_in(dim, atom)
        factors = (size_of(dim) + 1) * (size_of(atom.dividend) + size_of(atom.divisor) + 1)
        if powers.keys() != {0, 1} or factors > RULE_TERMS or not proves_positive(atom.divisor):
            continue
        rest = multiply(powers[0], atom.divisor) + atom.divisor - 1
        if _has_nonnegative_bound(powers[1]):
            return powers[1] * (atom.dividend - atom.divisor + 1) + rest
        if _has_nonnegative_bound(scale(powers[1], -1)):
            return powers[1] * atom.dividend + rest
    return None


# --- elimination --------------------------------------------------------------------------------------------


def _is_tractable(dim: Expr) -> bool:
    return len(dim._terms) <= PROOF_TERMS and rank_of(dim) <= PROOF_RANK


@lru_cache(MEMO_ENTRIES)
def _lower_bound(dim: Expr) -> int | None:
    best = interval(dim)[0]
    for _ in range(PROOF_STEPS):
        relaxed = _relax(dim) if _is_tractable(dim) else None
        if relaxed is None:
            return best
        candidates, all_needed = relaxed
        if len(candidates) > 1:
            values = [lower_bound(candidate) for candidate in candidates]
            return _best(best, _worst(values) if all_needed else _best(*values))
        if isinstance(candidates[0], int):
            return _best(best, candidates[0])
        dim = candidates[0]
        best = _best(best, interval(dim)[0])
    return best


def _best(*values: int | None) -> int | None:
    return max([value for value in values if value is not None], default=None)


def _worst(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(list(values)) else None


def _rank_key(atom: Atom) -> tuple:
    return atom._rank, atom._key


def _relax(dim: Expr) -> tuple[list[Dim], bool] | None:
    """Dims without some atom, of which one is never above this dim; None if no atom can go.

    The flag says which one: unknown (True: the least of their lower bounds counts), or each of them (False).
    """
    occurrences: dict[Atom, int] = {}
    for monomial in dim._terms:
        for atom, _ in monomial:
            occurrences[atom] = occurrences.get(atom, 0) + 1
    branching = len(dim._terms) <= SEARCH_TERMS and _has_few_cases(occurrences)
    fallback = None
    for atom in sorted(occurrences, key=_rank_key, reverse=True):
        if fallback is not None and not isinstance(atom, (Minimum, Maximum)):
            continue
        if rank_of(atom) <= 0 and occurrences[atom] < 2:
            continue  # the interval of its only term says as much
        relaxed = _relax_atom(dim, atom, occurrences, branching)
        if relaxed is not None and (relaxed[1] or not isinstance(atom, (Minimum, Maximum))):
            return relaxed
        # Which argument of an extremum to choose may depend on the case that another one is in.
        fallback = fallback or relaxed
    return fallback


def _has_few_cases(present: Iterable[Atom]) -> bool:
    """Whether the cases of the atoms are few enough to try them all."""
    cases = 1
    for atom in present:
        if isinstance(atom, (Minimum, Maximum)):
            cases *= len(atom.arguments)
        elif isinstance(atom, Mod):
            cases *= 2
    return cases <= PROOF_CASES


def _relax_atom(
    dim: Expr, atom: Atom, context: Iterable[Atom], branching: bool
) -> tuple[list[Dim], bool] | None:
    """`_relax` for one atom."""
    powers = polynomial_in(dim, atom)
    direction = _direction(powers, atom)
    if direction is None:
        return None
    found = _symbolic_bounds(atom, direction, context)
    if found is None:
        return None
    candidates, all_needed = found
    if len(candidates) > 1 and not branching:
        if all_needed:
            return None
        candidates = candidates[:1]
    if any(_substitution_size(powers, candidate) > RULE_TERMS for candidate in candidates):
        return None
    return [_evaluate_polynomial(powers, candidate) for candidate in candidates], all_needed


def _direction(powers: dict[int, Dim], atom: Atom) -> int | None:
    """1 if the polynomial never falls as the atom grows, -1 if it never rises, None if unknown."""
    if len(powers) == 2 and 1 in powers:
        slopes: Iterable[Dim] = (powers[1],)
    else:
        least = _atom_interval(atom)[0]
        if least is None:
            return None
        slopes = _shifted_coefficients(powers, least)
    for sign in (1, -1):
        for slope in slopes:
            if not _has_nonnegative_bound(scale(slope, sign)):
                break
        else:
            return sign
    return None


def _shifted_coefficients(powers: dict[int, Dim], origin: int) -> list[Dim]:
    """The non-constant coefficients of the polynomial in (atom - origin)."""
    result: list[Dim] = []
    for order in range(1, max(powers) + 1):
        total: Dim = 0
        for power, coefficient in powers.items():
            if power >= order:
                total = add(total, coefficient, math.comb(power, order) * origin ** (power - order))
        result.append(total)
    return result


def _substitution_size(powers: dict[int, Dim], value: Dim) -> int:
    size, total = size_of(value), 0
    for power, coefficient in powers.items():
        total += size_of(coefficient) * size**power
    return total


def _evaluate_polynomial(powers: dict[int, Dim], value: Dim) -> Dim:
    result: Dim = 0
    for power, coefficient in powers.items():
        for _ in range(power):
            coefficient = multiply(coefficient, value)
        result = add(result, coefficient)
    return result


def _symbolic_bounds(atom: Atom, direction: int, context: Iterable[Atom]) -> tuple[list[Dim], bool] | None:
    """Dims of lower rank that bound the atom below (direction 1) or above (-1), and the flag of `_relax`."""
    match atom:
        case Symbol() | Variable() | Opaque():
            bound = atom.lower if direction > 0 else atom.upper
            return None if bound is None else ([bound], False)
        case Minimum():
            return list(atom.arguments), direction > 0
        case Maximum():
            return list(atom.arguments), direction < 0
        case Mod() if proves_positive(atom.divisor):
            if direction > 0:
                return [0], False
            related = not atoms(atom.dividend).isdisjoint(context) and proves_nonnegative(atom.dividend)
            return [atom.divisor - 1, *([atom.dividend] if related else [])], False
        case FloorDiv() if proves_positive(atom.divisor):
            return _quotient_bounds(atom, direction)
    return None


@lru_cache(MEMO_ENTRIES)
def _quotient_bounds(atom: FloorDiv, direction: int) -> tuple[list[Dim], bool] | None:
    """Bound x//d by y//d, where y bounds x and has a lower rank."""
    dividend: Dim = scale(atom.dividend, direction)
    while isinstance(dividend, Expr) and rank_of(dividend) >= rank_of(atom.dividend):
        relaxed = _relax(dividend) if _is_tractable(dividend) else None
        if relaxed is None or len(relaxed[0]) > 1:
            return None
        dividend = relaxed[0][0]
    bound = scale(dividend, direction) // atom.divisor
    return ([bound], False) if rank_of(bound) < rank_of(atom) else None


# --- intervals ----------------------------------------------------------------------------------------------


def _negative(value: int | None) -> int | None:
    return None if value is None else -value


def _negated(interval: Interval) -> Interval:
    return _negative(interval[1]), _negative(interval[0])


def interval(dim: Dim) -> Interval:
    """Bounds of a sum from the bounds of its terms alone."""
    if isinstance(dim, int):
        return dim, dim
    lower: int | None = dim.constant
    upper: int | None = dim.constant
    for monomial, coefficient in dim._terms.items():
        term: Interval | None = None
        for atom, power in monomial:
            factor = atom._interval or _atom_interval(atom)
            if power > 1:
                factor = _interval_power(factor, power)
            term = factor if term is None else _interval_product(term, factor)
        least, greatest = term if term is not None else (1, 1)
        if coefficient < 0:
            least, greatest = greatest, least
        lower = None if lower is None or least is None else lower + coefficient * least
        upper = None if upper is None or greatest is None else upper + coefficient * greatest
    return lower, upper


def _interval_product(left: Interval, right: Interval) -> Interval:
    corners = [_corner(first, second) for first in _ends(left) for second in _ends(right)]
    lower, upper = min(corners), max(corners)
    return (None if lower == -math.inf else int(lower)), (None if upper == math.inf else int(upper))


def _ends(interval: Interval) -> tuple[float, float]:
    lower, upper = interval
    return -math.inf if lower is None else lower, math.inf if upper is None else upper


def _corner(first: float, second: float) -> float:
    """The product, where an infinite end of an interval times zero is zero; exact on integers."""
    return 0 if first == 0 or second == 0 else first * second


def _interval_power(base: Interval, power: int) -> Interval:
    lower, upper = base
    if power % 2 == 1:
        return (None if lower is None else lower**power), (None if upper is None else upper**power)
    if lower is not None and lower >= 0:
        return lower**power, None if upper is None else upper**power
    if upper is not None and upper <= 0:
        return upper**power, None if lower is None else lower**power
    if lower is None or upper is None:
        return 0, None
    return 0, max(lower**power, upper**power)


def _atom_interval(atom: Atom) -> Interval:
    found = atom._interval
    if found is None:
        match atom:
            case Symbol():
                found = atom.lower, atom.upper
            case Variable() | Opaque():
                lower = None if atom.lower is None else lower_bound(atom.lower)
                upper = None if atom.upper is None else bounds(atom.upper)[1]
                found = lower, upper
            case FloorDiv():
                found = _quotient_interval(bounds(atom.dividend), bounds(atom.divisor))
            case Mod():
                found = _remainder_interval(bounds(atom.dividend), bounds(atom.divisor))
            case Minimum():
                found = _negated(_maximum_interval([_negated(bounds(argument)) for argument in atom.arguments]))
            case Maximum():
                found = _maximum_interval([bounds(argument) for argument in atom.arguments])
            case _:
                raise TypeError(f"unknown atom {type(atom).__name__}")
        atom._interval = found
    return found


def _maximum_interval(intervals: list[Interval]) -> Interval:
    uppers = [upper for _, upper in intervals if upper is not None]
    upper = max(uppers) if len(uppers) == len(intervals) else None
    return _best(*(lower for lower, _ in intervals)), upper


def _quotient_interval(dividend: Interval, divisor: Interval) -> Interval:
    (lower, upper), (least, greatest) = dividend, divisor
    if least is None or least < 1:
        # The divisor is some non-zero integer: the quotient is no larger than the dividend.
        if lower is None or upper is None:
            return None, None
        size = max(abs(lower), abs(upper))
        return -size, size
    if lower is not None:
        lower = lower // least if lower < 0 else (0 if greatest is None else lower // greatest)
    if upper is not None:
        upper = upper // least if upper >= 0 else (-1 if greatest is None else upper // greatest)
    return lower, upper


def _remainder_interval(dividend: Interval, divisor: Interval) -> Interval:
    (lower, upper), (least, greatest) = dividend, divisor
    limit = None if greatest is None else max(0, greatest - 1)
    if least is None or least < 1:
        return (None if least is None else min(0, least + 1)), limit
    if lower is not None and lower >= 0 and upper is not None:
        limit = upper if limit is None else min(limit, upper)
    return 0, limit
