"""Floor division and remainder, and how quotients and remainders of one dividend combine again.

What: `(16*i + j)//4 -> 4*i + j//4`, `(i*n + j) % n -> j` for 0 <= j < n, `(x//4)//4 -> x//16`,
`n*(x//n) + x % n -> x`: the algebra that index maps of reshapes and tiled loops need.
Invariant: exact for every assignment within the bounds. A divisor that is not proven to be non-zero keeps its
run-time meaning: the division stays as written.
Non-goal: a normal form. Rules only rewrite towards fewer or shallower divisions.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ingot.compiler.ir.symbolic.counterexample import has_several_quotients
from ingot.compiler.ir.symbolic.expression import (
    RULE_TERMS,
    Atom,
    Dim,
    Expr,
    FloorDiv,
    Interval,
    Mod,
    Monomial,
    accumulate,
    add,
    build,
    has_division,
    monomial_key,
    multiply,
    multiply_monomials,
    multiply_plain,
    pieces,
    rank_of,
    rules,
    scale,
    settle,
    size_of,
)
from ingot.compiler.ir.symbolic.polynomial import (
    add_plain,
    build_combined,
    build_term,
    common_monomial,
    divide_monomials,
)
from ingot.compiler.ir.symbolic.proofs import MEMO_ENTRIES, bounds, interval, proves_nonnegative, proves_positive

SIMPLIFY_RANK = 24  # deeper nests of divisions are kept as written
SPLIT_STEPS = 16  # rounds of polynomial long division


def ceildiv(dividend: Dim, divisor: Dim) -> Dim:
    """The quotient rounded up."""
    return -(-dividend // divisor)


# --- quotient and remainder ---------------------------------------------------------------------------------


@lru_cache(MEMO_ENTRIES)
def floor_divide(dividend: Dim, divisor: Dim) -> Dim:
    """dividend // divisor"""
    dividend, divisor = settle(dividend), settle(divisor)
    if isinstance(dividend, int) and isinstance(divisor, int) and divisor:
        return dividend // divisor
    sign = _divisor_sign(dividend, divisor)
    if sign < 0:
        return floor_divide(-dividend, -divisor)
    if sign == 0 or rank_of(dividend) > SIMPLIFY_RANK:
        return FloorDiv(dividend, divisor)
    quotient, remainder, block = _divided(dividend, divisor)
    return add(quotient, _divide_remainder(remainder, divisor) if block is None else block)


def left_over(size: Dim, known: Dim) -> Dim:
    """The extent of a dim beside others of the product `known`, where all together are `size`. When that is a multiple of
    the product, for which there is no answer if it is 0, the factor is it; floor_divide would keep a division by 0."""
    if not isinstance(known, int):
        factor, rest = _split(settle(size), settle(known))
        if rest == 0:
            return factor
    return floor_divide(size, known)


@lru_cache(MEMO_ENTRIES)
def modulo(dividend: Dim, divisor: Dim) -> Dim:
    """dividend % divisor"""
    dividend, divisor = settle(dividend), settle(divisor)
    if isinstance(dividend, int) and isinstance(divisor, int) and divisor:
        return dividend % divisor
    sign = _divisor_sign(dividend, divisor)
    if sign < 0:
        return -modulo(-dividend, -divisor)
    if sign == 0 or rank_of(dividend) > SIMPLIFY_RANK:
        return Mod(dividend, divisor)
    _, remainder, block = _divided(dividend, divisor)
    if block is not None:
        return remainder - block * divisor
    if isinstance(remainder, int):
        return Mod(remainder, divisor)
    reduced = _reduce(remainder, divisor)
    if reduced is not None:
        factor, inner, rest, offset = reduced
        return factor * modulo(inner, rest) + offset
    unwrapped = _unwrap_remainder(remainder, divisor)
    return Mod(remainder, divisor) if unwrapped is None else modulo(unwrapped, divisor)


@lru_cache(MEMO_ENTRIES)  # what is divided is often asked for the remainder too
def _divided(dividend: Dim, divisor: Dim) -> tuple[Dim, Dim, int | None]:
    """(q, r, block) with dividend == q*divisor + r, where block is r // divisor if that is a number."""
    quotient, remainder = _split(dividend, divisor)
    return quotient, remainder, _block(remainder, divisor)


def _divisor_sign(dividend: Dim, divisor: Dim) -> int:
    """1 or -1 when the divisor provably has that sign, 0 when it may be zero."""
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"the symbolic integer `{rules.to_text(dividend)}` is divided by zero")
        return 1 if divisor > 0 else -1
    if proves_positive(divisor):
        return 1
    return -1 if proves_positive(-divisor) else 0


def _block(dim: Dim, divisor: Dim) -> int | None:
    """The value of dim // divisor, for a positive divisor, if it is provably the same for all assignments."""
    if isinstance(divisor, int):
        if isinstance(dim, int):
            return dim // divisor
        quotient = _only_quotient(interval(dim), divisor)
        if quotient is None and not has_several_quotients(dim, divisor):
            quotient = _only_quotient(bounds(dim), divisor)  # which are costly, and rarely say more
        return quotient
    if proves_nonnegative(dim):
        return 0 if proves_positive(divisor - dim) else None
    return -1 if proves_positive(-dim) and proves_nonnegative(dim + divisor) else None


def _only_quotient(values: Interval, divisor: int) -> int | None:
    lower, upper = values
    if lower is None or upper is None or lower // divisor != upper // divisor:
        return None
    return lower // divisor


def _divide_remainder(dividend: Dim, divisor: Dim) -> Dim:
    """dividend // divisor where the positive divisor divides no term of the dividend."""
    if isinstance(dividend, int):
        return FloorDiv(dividend, divisor)
    reduced = _reduce(dividend, divisor)
    if reduced is not None:
        _, inner, rest, _ = reduced
        return floor_divide(inner, rest)
    if isinstance(dividend, Mod):
        # (x % (b*d)) // b == (x // b) % d
        times, rest = _split(dividend.divisor, divisor)
        if rest == 0 and proves_positive(times):
            return modulo(floor_divide(dividend.dividend, divisor), times)
    inner = _nested_quotient(dividend)
    if inner is not None:
        # (x//c + t) // b == (x + c*t) // (c*b)
        return floor_divide(inner.dividend + inner.divisor * (dividend - inner), inner.divisor * divisor)
    if all(coefficient < 0 for coefficient in dividend._terms.values()):
        # One spelling for floor and ceiling: a//b == -1 - (-1 - a)//b
        return -1 - floor_divide(-1 - dividend, divisor)
    return FloorDiv(dividend, divisor)


def _nested_quotient(dim: Expr) -> FloorDiv | None:
    """The only floor division among the terms of the dim that stands alone, if its divisor is positive."""
    found = [
        atom
        for monomial, coefficient in dim._terms.items()
        for atom, power in monomial
        if isinstance(atom, FloorDiv) and coefficient == 1 == len(monomial) == power
    ]
    if len(found) != 1 or size_of(found[0].divisor) * size_of(dim) > RULE_TERMS:
        return None
    return found[0] if proves_positive(found[0].divisor) else None


def _unwrap_remainder(dim: Expr, divisor: Dim) -> Dim | None:
    """Replace x % (b*d) by x inside a remainder by b; None when there is none."""
    for monomial, coefficient in dim.terms:
        for atom, power in monomial:
            if power == 1 and isinstance(atom, Mod):
                outer = build_term(_other_factors(monomial, atom), coefficient)
                _, rest = _split(multiply(outer, atom.divisor), divisor)
                if rest == 0:
                    return dim - outer * atom + outer * atom.dividend
    return None


# --- common factors -----------------------------------------------------------------------------------------


def _split(dim: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(q, r) with dim == q*divisor + r, where the divisor visibly divides no term of r."""
    quotient: Dim = 0
    for _ in range(SPLIT_STEPS):
        more, rest = _split_once(dim, divisor)
        if more == 0:
            break
        quotient, dim = quotient + more, rest
    return quotient, dim


def _split_once(dim: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    if isinstance(divisor, int):
        return _split_constant(dim, divisor)
    if isinstance(dim, int):
        return 0, dim
    lead, lead_coefficient = max(divisor._terms.items(), key=_degree_key)
    quotients: dict[Monomial, int] = {}
    for monomial, coefficient in dim._terms.items():
        rest = divide_monomials(monomial, lead)
        times = _truncate(coefficient, lead_coefficient)
        if rest is not None and times:
            quotients[rest] = times
    if not quotients or len(quotients) * size_of(divisor) > RULE_TERMS:
        return 0, dim
    quotient = build(quotients, quotients.pop((), 0))
    remainder = add(dim, multiply_plain(quotient, divisor), -1)
    if size_of(divisor) > 1 and size_of(remainder) >= size_of(dim):
        return 0, dim
    return quotient, remainder


def _degree_key(term: tuple[Monomial, int]) -> tuple:
    return sum(power for _, power in term[0]), monomial_key(term[0])


def _split_constant(dim: Dim, divisor: int) -> tuple[Dim, Dim]:
    if isinstance(dim, int):
        return divmod(dim, divisor)
    quotients: dict[Monomial, int] = {}
    remainders: dict[Monomial, int] = {}
    for monomial, coefficient in dim._terms.items():
        times = _truncate(coefficient, divisor)
        if times:
            quotients[monomial] = times
        if coefficient != times * divisor:
            remainders[monomial] = coefficient - times * divisor
    times, rest = divmod(dim.constant, divisor)
    if not quotients and not times:
        return 0, dim
    return build_combined(quotients, times), build_combined(remainders, rest)


def _truncate(dividend: int, divisor: int) -> int:
    """The quotient rounded towards zero, so that a reduced coefficient keeps its sign."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


@lru_cache(MEMO_ENTRIES)
def _reduce(dim: Expr, divisor: Dim) -> tuple[Dim, Dim, Dim, Dim] | None:
    """(g, y, m, r) with dim == g*y + r, divisor == g*m, 0 <= r < g: then dim // divisor == y // m."""
    for factor in _common_factors(dim, divisor):
        quotient, remainder = _split_exact(dim, factor)
        block = _block(remainder, factor)
        if block is not None:
            rest, _ = _split_exact(divisor, factor)
            return factor, quotient + block, rest, remainder - block * factor
    return None


def _common_factors(dim: Expr, divisor: Dim) -> list[Dim]:
    """Proper positive factors of the divisor that also divide some terms of the dim, the largest first."""
    divisor_factor, divisor_monomial = _content(divisor)
    if divisor_factor == 1 and not divisor_monomial:
        return []
    found: dict[tuple[int, Monomial], tuple] = {}
    for monomial, coefficient in dim._terms.items():
        shared = common_monomial(monomial, divisor_monomial)
        factor = math.gcd(coefficient, divisor_factor)
        if shared or factor > 1:
            found[factor, shared] = (sum(power for _, power in shared), factor, monomial_key(shared))
    order = sorted(found, key=found.__getitem__, reverse=True)
    factors = [build_term(shared, factor) for factor, shared in order]
    return [factor for factor in factors if factor != divisor and proves_positive(factor)]


def _content(dim: Dim) -> tuple[int, Monomial]:
    """The greatest coefficient and monomial that divide every term."""
    factor, common = 0, None
    for monomial, coefficient in pieces(dim):
        factor = math.gcd(factor, coefficient)
        common = monomial if common is None else common_monomial(common, monomial)
    return factor, common or ()


def _split_exact(dim: Dim, factor: Dim) -> tuple[Dim, Dim]:
    """(q, r) with dim == q*factor + r, each term of the dim in one of them; the factor is a single term."""
    ((factor_monomial, factor_coefficient),) = pieces(factor)
    quotients: dict[Monomial, int] = {}
    remainders: dict[Monomial, int] = {}
    for monomial, coefficient in pieces(dim):
        rest = divide_monomials(monomial, factor_monomial)
        if rest is not None and coefficient % factor_coefficient == 0:
            quotients[rest] = coefficient // factor_coefficient
        else:
            remainders[monomial] = coefficient
    return (
        build_combined(quotients, quotients.pop((), 0)),
        build_combined(remainders, remainders.pop((), 0)),
    )


# --- recombination ------------------------------------------------------------------------------------------


def recombine(terms: dict[Monomial, int], constant: int) -> Dim:
    """Join quotients and remainders of the same dividend, also under common factors, until no rule fits.

    The rules are d*(x//d) + x%d -> x, x - d*(x//d) -> x%d and x - x%d -> d*(x//d). Each application leaves
    fewer nested divisions, or as many and fewer terms. The same sums come up again and again, so the outcome is kept.
    """
    if len(terms) < 2 or _is_combined(terms):
        return build(terms, constant)
    key = frozenset(terms.items())
    found = _recombined.get(key)
    if found is None:
        if len(_recombined) >= MEMO_ENTRIES:
            _recombined.clear()
        found = _recombined[key] = _recombine(terms)
    return build(found[0], constant + found[1])


_recombined: dict[frozenset[tuple[Monomial, int]], tuple[dict[Monomial, int], int]] = {}


def _is_combined(terms: dict[Monomial, int]) -> bool:
    """Whether it is seen without building anything that no rule fits, as for four of five sums."""
    divisions = [(monomial, atom, power) for monomial in terms for atom, power in monomial if atom._divides]
    for monomial, atom, power in divisions:
        if power != 1:
            continue
        if isinstance(atom, FloorDiv):
            if _remainder_factor(terms, monomial, atom) is not None:
                return False
        elif isinstance(atom, Mod):
            divisor = atom.divisor
            step = terms[monomial] * (divisor if isinstance(divisor, int) else 1)
            for other, _, _ in divisions:
                if other is not monomial and terms[other] % step == 0:
                    return False  # beside k*(x%d), it may be the division of k*d*(x//d)
            if _has_dividend(terms, monomial, atom):
                return False
    return True


def _recombine(terms: dict[Monomial, int]) -> tuple[dict[Monomial, int], int]:
    """The terms after all rules, and the constant that they leave."""
    constant = 0
    while (joined := _recombine_once(terms)) is not None:
        removed, added = joined
        terms = dict(terms)
        for sign, dim in ((-1, removed), (1, added)):
            for monomial, coefficient in pieces(dim):
                accumulate(terms, monomial, sign * coefficient)
        constant += terms.pop((), 0)
    return terms, constant


def _recombine_once(terms: dict[Monomial, int]) -> tuple[Dim, Dim] | None:
    """What one rule removes from the terms and adds instead."""
    divisions = [
        (monomial, atom)
        for monomial in terms
        for atom, power in monomial
        if power == 1 and isinstance(atom, (FloorDiv, Mod))
    ]
    if len(terms) < 2 or not divisions:
        return None
    divisions.sort(key=_division_key, reverse=True)
    for monomial, atom in divisions:
        if isinstance(atom, Mod):
            joined = _join_remainder(terms, monomial, atom) or _form_quotient(terms, monomial, atom)
        else:
            joined = _form_remainder(terms, monomial, atom)
        if joined is not None:
            return joined
    return None


def _division_key(division: tuple[Monomial, Atom]) -> tuple:
    return division[1]._key, monomial_key(division[0])


def _other_factors(monomial: Monomial, atom: Atom) -> Monomial:
    return tuple([factor for factor in monomial if factor[0] is not atom]) if len(monomial) > 1 else ()


def _join_remainder(terms: dict[Monomial, int], remainder: Monomial, atom: Mod) -> tuple[Dim, Dim] | None:
    """k*(x%d) + k*d*(x//d) -> k*x"""
    quotient = floor_divide(atom.dividend, atom.divisor)
    if size_of(quotient) * size_of(atom.divisor) > RULE_TERMS:
        return None
    outer = build_term(_other_factors(remainder, atom), terms[remainder])
    partner = multiply_plain(outer, multiply_plain(atom.divisor, quotient))
    divisions = 0
    for monomial, coefficient in pieces(partner):
        if has_division((monomial,)):
            if terms.get(monomial) != coefficient:
                return None
            divisions += 1
    if not divisions:
        return None
    return add_plain(partner, multiply_plain(outer, atom)), multiply_plain(outer, atom.dividend)


def _form_quotient(terms: dict[Monomial, int], remainder: Monomial, atom: Mod) -> tuple[Dim, Dim] | None:
    """k*x - k*(x%d) -> k*d*(x//d), where d is a single term"""
    if not _has_dividend(terms, remainder, atom):
        return None
    quotient = floor_divide(atom.dividend, atom.divisor)
    if size_of(quotient) > 1:
        return None
    factor = build_term(_other_factors(remainder, atom), -terms[remainder])
    removed = multiply_plain(factor, add_plain(atom.dividend, scale(atom, -1)))
    return removed, multiply_plain(multiply_plain(factor, atom.divisor), quotient)


def _has_dividend(terms: dict[Monomial, int], remainder: Monomial, atom: Mod) -> bool:
    """Whether k*x is among the terms beside -k*(x%d), and d is a single term."""
    others = _other_factors(remainder, atom)
    return size_of(atom.divisor) == 1 and _contains(terms, atom.dividend, others, -terms[remainder])


def _form_remainder(terms: dict[Monomial, int], quotient: Monomial, atom: FloorDiv) -> tuple[Dim, Dim] | None:
    """k*x - k*d*(x//d) -> k*(x%d), where d is a single term"""
    factor = _remainder_factor(terms, quotient, atom)
    if factor is None:
        return None
    outer = build_term(*factor)
    removed = multiply_plain(outer, add_plain(atom.dividend, multiply_plain(scale(atom, -1), atom.divisor)))
    return removed, multiply_plain(outer, modulo(atom.dividend, atom.divisor))


def _remainder_factor(terms: dict[Monomial, int], quotient: Monomial, atom: FloorDiv) -> tuple[Monomial, int] | None:
    """The monomial and the coefficient of k where k*x is among the terms beside -k*d*(x//d), and d is a single term."""
    dividend, divisor = atom.arguments
    if isinstance(divisor, int):
        coefficient, rest = divmod(-terms[quotient], divisor)
        monomial = None if rest else _other_factors(quotient, atom)
    elif size_of(divisor) > 1:
        return None
    else:
        ((divisor_monomial, divisor_coefficient),) = pieces(divisor)
        coefficient, rest = divmod(-terms[quotient], divisor_coefficient)
        monomial = None if rest else divide_monomials(_other_factors(quotient, atom), divisor_monomial)
    if monomial is None or not _contains(terms, dividend, monomial, coefficient):
        return None
    return monomial, coefficient


def _contains(terms: dict[Monomial, int], dim: Dim, monomial: Monomial, coefficient: int) -> bool:
    """Whether the non-constant terms of the dim times a term, of which there is one, are all among the terms."""
    if isinstance(dim, int) and not (monomial and dim):
        return False
    for part, factor in pieces(dim):
        shared = multiply_monomials(monomial, part)
        if shared and terms.get(shared) != coefficient * factor:
            return False
    return True


rules.floor_divide = floor_divide
rules.modulo = modulo
rules.recombine = recombine
