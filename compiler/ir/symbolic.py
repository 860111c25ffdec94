"""Canonical integer expressions: symbolic tensor dims (`2*batch + 1`) and index arithmetic of loops (`16*i + j//4`).

What: a `Dim` is a Python int or an `Expr`. An `Expr` is a polynomial over atoms (symbols, loop variables, floor
divisions, remainders, minima, maxima, run-time integers), simplified with the bounds of its atoms as it is built.
Invariant: an `Expr` is immutable and never constant, and a lone atom is its own `Expr`, so `==` is structural.
Proofs answer True, False or None (undecided) and never guess; a simplification is exact for every assignment that
respects the bounds of the atoms.
Non-goal: complete decision procedures. Every rule is bounded in depth and size; what is not proven stays as written.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any, SupportsIndex, TypeAlias, Union

MAXIMUM_TERMS = 4096  # a product that expands to more monomials is a mistake of the caller
PROOF_TERMS = 64  # larger sums are only bounded by plain interval arithmetic
SIMPLIFY_DEPTH = 24  # deeper nests of divisions are kept as written
SPLIT_STEPS = 16  # rounds of polynomial long division
MEMO_ENTRIES = 1 << 14

_serials = itertools.count()
_lock = threading.Lock()


class Expr:
    """A sum of monomials plus a constant. Built by operators only; never by calling the class."""

    __slots__ = ("__weakref__", "_atoms", "_divides", "_hash", "_key", "_rank", "_terms", "constant")

    __array_ufunc__ = None  # numpy scalars must defer to the reflected operators below

    constant: int
    _terms: dict[Monomial, int]
    _hash: int | None
    _key: tuple | None
    _rank: int | None
    _atoms: frozenset[Atom] | None
    _divides: bool

    @property
    def terms(self) -> tuple[tuple[Monomial, int], ...]:
        """The (monomial, coefficient) pairs in a fixed order; a monomial is a tuple of (atom, power)."""
        return tuple(sorted(self._terms.items(), key=_term_key))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr):
            return False
        return self.constant == other.constant and self._terms == other._terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.constant, frozenset(self._terms.items())))
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth of the symbolic integer `{self}` is not known at compile time; "
            "ask symbolic.equal, symbolic.less, symbolic.less_equal or symbolic.is_nonnegative instead"
        )

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: dict) -> Expr:
        return self

    def __reduce__(self) -> tuple:
        return _build, (dict(self._terms), self.constant)

    def __repr__(self) -> str:
        return to_text(self)

    def __add__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _add(self, value, 1)

    def __sub__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _add(self, value, -1)

    def __rsub__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _add(_scale(self, -1), value, 1)

    def __mul__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _multiply(self, value)

    def __floordiv__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _floor_divide(self, value)

    def __rfloordiv__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _floor_divide(value, self)

    def __mod__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _modulo(self, value)

    def __rmod__(self, other: DimLike) -> Dim:
        value = _operand(other)
        return NotImplemented if value is None else _modulo(value, self)

    def __neg__(self) -> Dim:
        return _scale(self, -1)

    def __pos__(self) -> Dim:
        return self

    __radd__ = __add__
    __rmul__ = __mul__


class Atom(Expr):
    """An indivisible factor. Atoms are unique objects: equality is identity (except `Opaque`, by payload)."""

    __slots__ = ("_interval",)

    _interval: Interval | None

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _initialise(
        self,
        key: tuple,
        rank: int,
        leaves: frozenset[Atom] | None = None,
        divides: bool = False,
        fixed: int | None = None,
    ) -> None:
        self.constant = fixed or 0
        # An atom with a single possible value vanishes from whatever it is used in (loops of one iteration).
        self._terms = {((self, 1),): 1} if fixed is None else {}
        self._hash = None
        self._key = key
        self._rank = rank
        self._atoms = frozenset((self,)) if leaves is None else leaves
        self._divides = divides
        self._interval = None


class Symbol(Atom):
    """A named dim with constant inclusive bounds; equal by name and bounds."""

    __slots__ = ("lower", "name", "upper")

    name: str
    lower: int | None
    upper: int | None

    def __new__(cls, name: str, lower: int | None = 1, upper: int | None = None) -> Symbol:
        with _lock:
            found = _interned.get((cls, name, lower, upper))
            if found is not None:
                return found
            self = object.__new__(cls)
            self.name, self.lower, self.upper = name, lower, upper
            self._initialise((0, name, 0, (_bound_key(lower), _bound_key(upper))), 0, fixed=_fixed(lower, upper))
            _interned[cls, name, lower, upper] = self
            return self

    def __reduce__(self) -> tuple:
        return Symbol, (self.name, self.lower, self.upper)


class Variable(Atom):
    """A loop variable; two variables are never equal. Inclusive bounds, which may be symbolic."""

    __slots__ = ("lower", "name", "serial", "upper")

    def __init__(self, name: str, lower: Dim | None = None, upper: Dim | None = None) -> None:
        self.name, self.lower, self.upper = name, lower, upper
        self.serial = next(_serials)
        rank = _bounded_rank(lower, upper)
        self._initialise((1, name, self.serial, ()), rank, fixed=_fixed(lower, upper))

    def __reduce__(self) -> tuple:
        return Variable, (self.name, self.lower, self.upper)


class Opaque(Atom):
    """An integer that `payload` computes at run time; equal when the payloads are equal.

    `depends` names the atoms the payload reads, so that `atoms`, `linear_coefficient` and `substitute` know of them.
    """

    __slots__ = ("_payload_hash", "depends", "identity", "lower", "payload", "upper")

    def __init__(
        self,
        payload: Hashable,
        lower: Dim | None = None,
        upper: Dim | None = None,
        depends: Iterable[Atom] = (),
    ) -> None:
        self.payload, self.lower, self.upper = payload, lower, upper
        self.depends = frozenset(depends)
        with _lock:
            self.identity = _identities.setdefault(payload, _Identity())
        self._payload_hash = hash((Opaque, payload))
        rank = _bounded_rank(lower, upper)
        self._initialise((2, "", self.identity.serial, ()), rank, fixed=_fixed(lower, upper))
        self._atoms = self.depends | {self}

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Opaque) and self.payload == other.payload)

    def __hash__(self) -> int:
        return self._payload_hash

    def __reduce__(self) -> tuple:
        return Opaque, (self.payload, self.lower, self.upper, self.depends)


class _Identity:
    """What equal opaque payloads share: their place in the term order."""

    __slots__ = ("__weakref__", "serial")

    def __init__(self) -> None:
        self.serial = next(_serials)


class _Compound(Atom):
    """An atom made of other dims; interned, so equal arguments give the same object."""

    __slots__ = ("arguments",)

    arguments: tuple[Dim, ...]
    _kind = 3

    def __new__(cls, *arguments: Dim) -> Any:
        found = _interned.get((cls, arguments))
        if found is not None:
            return found
        self = object.__new__(cls)
        self.arguments = arguments
        key = (cls._kind, "", 0, tuple(_dim_key(argument) for argument in arguments))
        rank = 1 + max(_dim_rank(argument) for argument in arguments)
        leaves = frozenset().union(*(atoms(argument) for argument in arguments))
        self._initialise(key, rank, leaves, cls in (FloorDiv, Mod))
        with _lock:
            return _interned.setdefault((cls, arguments), self)

    def __reduce__(self) -> tuple:
        return type(self), self.arguments


class FloorDiv(_Compound):
    """`dividend // divisor`, rounded towards minus infinity. Write `a // b`, which simplifies."""

    __slots__ = ()
    _kind = 3

    @property
    def dividend(self) -> Dim:
        return self.arguments[0]

    @property
    def divisor(self) -> Dim:
        return self.arguments[1]


class Mod(_Compound):
    """`dividend % divisor`, with the sign of the divisor. Write `a % b`, which simplifies."""

    __slots__ = ()
    _kind = 4

    @property
    def dividend(self) -> Dim:
        return self.arguments[0]

    @property
    def divisor(self) -> Dim:
        return self.arguments[1]


class Minimum(_Compound):
    """The least of two or more dims. Write `minimum(a, b)`, which simplifies."""

    __slots__ = ()
    _kind = 5


class Maximum(_Compound):
    """The greatest of two or more dims. Write `maximum(a, b)`, which simplifies."""

    __slots__ = ()
    _kind = 6


Dim: TypeAlias = Union[int, Expr]
DimLike: TypeAlias = Union[SupportsIndex, Expr]
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
Interval: TypeAlias = tuple[Union[int, None], Union[int, None]]

_interned: weakref.WeakValueDictionary[tuple, Any] = weakref.WeakValueDictionary()
_identities: weakref.WeakValueDictionary[Any, _Identity] = weakref.WeakValueDictionary()


# --- order -----------------------------------------------------------------------------------------------------------


def _bound_key(bound: int | None) -> tuple[int, int]:
    return (0, 0) if bound is None else (1, bound)


def _fixed(lower: Dim | None, upper: Dim | None) -> int | None:
    return lower if isinstance(lower, int) and lower == upper else None


def _settle(dim: Dim) -> Dim:
    """The dim, or its value when only one is possible."""
    return dim if isinstance(dim, int) or dim._terms else dim.constant


def _monomial_key(monomial: Monomial) -> tuple:
    return tuple((atom._key, -power) for atom, power in monomial)


def _factor_key(factor: tuple[Atom, int]) -> Any:
    return factor[0]._key


def _term_key(term: tuple[Monomial, int]) -> tuple:
    return _monomial_key(term[0])


def _dim_key(dim: Dim) -> tuple:
    """A total order on dims that depends on names and creation order only."""
    if isinstance(dim, int):
        return (0, dim, ())
    if dim._key is None:
        dim._key = tuple((_monomial_key(monomial), coefficient) for monomial, coefficient in dim.terms)
    if isinstance(dim, Atom):
        return (1, 0, (((((dim._key, -1),)), 1),))
    return (1, dim.constant, dim._key)


def _dim_rank(dim: Dim) -> int:
    """How many times the dim can be bounded by other symbolic dims before only constants are left."""
    if isinstance(dim, int):
        return -1
    if dim._rank is None:
        dim._rank = max(_dim_rank(atom) for monomial in dim._terms for atom, _ in monomial)
    return dim._rank


def _bounded_rank(lower: Dim | None, upper: Dim | None) -> int:
    return 1 + max((_dim_rank(bound) for bound in (lower, upper) if bound is not None), default=-1)


# --- polynomials -----------------------------------------------------------------------------------------------------


def _operand(value: Any) -> Dim | None:
    """`value` as a dim, or None when it is no integer."""
    if isinstance(value, (int, Expr)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return None


def _build(terms: dict[Monomial, int], constant: int) -> Dim:
    """The dim of the given terms, none of them zero; takes the dict over."""
    if not terms:
        return constant
    if len(terms) == 1 and constant == 0:
        ((monomial, coefficient),) = terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    elif len(terms) > MAXIMUM_TERMS:
        raise OverflowError(f"a symbolic integer grew beyond {MAXIMUM_TERMS} terms; name parts of it instead")
    result = object.__new__(Expr)
    result.constant = constant
    result._terms = terms
    result._hash = result._key = result._rank = result._atoms = None
    result._divides = any(atom._divides for monomial in terms for atom, _ in monomial)
    return result


def _accumulate(terms: dict[Monomial, int], monomial: Monomial, coefficient: int) -> None:
    total = terms.get(monomial, 0) + coefficient
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def _add(left: Expr | int, right: Dim, factor: int) -> Dim:
    """left + factor * right"""
    if isinstance(right, int):
        if isinstance(left, int):
            return left + factor * right
        return _build(left._terms, left.constant + factor * right) if right else _settle(left)
    if isinstance(left, int):
        return _add(_scale(right, factor), left, 1)
    terms = dict(left._terms)
    for monomial, coefficient in right._terms.items():
        _accumulate(terms, monomial, factor * coefficient)
    constant = left.constant + factor * right.constant
    if left._divides or right._divides:
        return _recombine(terms, constant)
    return _build(terms, constant)


def _scale(dim: Dim, factor: int) -> Dim:
    if isinstance(dim, int):
        return dim * factor
    if factor == 0:
        return 0
    if factor == 1:
        return _settle(dim)
    terms = {monomial: factor * coefficient for monomial, coefficient in dim._terms.items()}
    if dim._divides and factor != -1:
        return _recombine(terms, factor * dim.constant)
    return _build(terms, factor * dim.constant)


def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    if len(powers) == 1:
        return tuple(powers.items())
    return tuple(sorted(powers.items(), key=_factor_key))


def _multiply(left: Dim, right: Dim) -> Dim:
    if isinstance(right, int):
        return _scale(left, right)
    if isinstance(left, int):
        return _scale(right, left)
    if len(left._terms) * len(right._terms) > MAXIMUM_TERMS:
        raise OverflowError(
            f"the product of symbolic sums of {len(left._terms)} and {len(right._terms)} terms is too large "
            f"to expand (limit {MAXIMUM_TERMS}); name parts of it instead"
        )
    terms: dict[Monomial, int] = {}
    for first, first_coefficient in left._terms.items():
        if right.constant:
            _accumulate(terms, first, first_coefficient * right.constant)
        for second, second_coefficient in right._terms.items():
            _accumulate(terms, _multiply_monomials(first, second), first_coefficient * second_coefficient)
    if left.constant:
        for second, second_coefficient in right._terms.items():
            _accumulate(terms, second, second_coefficient * left.constant)
    constant = left.constant * right.constant
    if left._divides or right._divides:
        return _recombine(terms, constant)
    return _build(terms, constant)


def _divide_monomials(dividend: Monomial, divisor: Monomial) -> Monomial | None:
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


def _term(monomial: Monomial, coefficient: int) -> Dim:
    """coefficient * monomial"""
    return _build({monomial: coefficient}, 0) if monomial else coefficient


def _pieces(dim: Dim) -> Iterable[tuple[Monomial, int]]:
    """All terms of the dim, the constant as the empty monomial."""
    if isinstance(dim, int):
        return (((), dim),) if dim else ()
    if dim.constant:
        return (*dim._terms.items(), ((), dim.constant))
    return dim._terms.items()


# --- recombination of quotients and remainders -----------------------------------------------------------------------


def _recombine(terms: dict[Monomial, int], constant: int) -> Dim:
    """Apply `d*(x//d) + x%d -> x` and `x - d*(x//d) -> x%d`, also under common factors, until neither fits.

    Each step shrinks the number of nested divisions, or keeps it and shrinks the number of terms.
    """
    while True:
        divisions = [
            (monomial, atom)
            for monomial in terms
            for atom, power in monomial
            if power == 1 and isinstance(atom, (FloorDiv, Mod))
        ]
        if len(divisions) > 1:
            divisions.sort(key=lambda division: (division[1]._key, _monomial_key(division[0])), reverse=True)
        for monomial, atom in divisions:
            step = _join_remainder if isinstance(atom, Mod) else _form_remainder
            joined = step(terms, constant, monomial, atom)
            if joined is not None:
                terms, constant = joined
                break
        else:
            return _build(terms, constant)


def _replace_pieces(
    terms: dict[Monomial, int], constant: int, removed: Dim, added: Dim
) -> tuple[dict[Monomial, int], int]:
    terms = dict(terms)
    for sign, dim in ((-1, removed), (1, added)):
        for monomial, coefficient in _pieces(dim):
            if monomial:
                _accumulate(terms, monomial, sign * coefficient)
            else:
                constant += sign * coefficient
    return terms, constant


def _join_remainder(
    terms: dict[Monomial, int], constant: int, monomial: Monomial, atom: Mod
) -> tuple[dict[Monomial, int], int] | None:
    """k*m*(x%d) + k*m*d*(x//d) -> k*m*x"""
    quotient = _floor_divide(atom.dividend, atom.divisor)
    if isinstance(quotient, int):
        return None
    outer = _term(tuple(factor for factor in monomial if factor[0] is not atom), terms[monomial])
    partner = _multiply_plain(outer, _multiply_plain(atom.divisor, quotient))
    found = False
    for candidate, coefficient in _pieces(partner):
        if any(factor._divides for factor, _ in candidate):
            if terms.get(candidate) != coefficient:
                return None
            found = True
    if not found:
        return None
    removed = _add_plain(partner, _term(monomial, terms[monomial]))
    return _replace_pieces(terms, constant, removed, _multiply_plain(outer, atom.dividend))


def _form_remainder(
    terms: dict[Monomial, int], constant: int, monomial: Monomial, atom: FloorDiv
) -> tuple[dict[Monomial, int], int] | None:
    """k*m*x - k*m*d*(x//d) -> k*m*(x%d), where d is a constant or a monomial"""
    (divisor_monomial, divisor_coefficient), *more = _pieces(atom.divisor)
    rest = _divide_monomials(tuple(factor for factor in monomial if factor[0] is not atom), divisor_monomial)
    if more or rest is None or terms[monomial] % divisor_coefficient or isinstance(atom.dividend, int):
        return None
    outer = _term(rest, -(terms[monomial] // divisor_coefficient))
    dividend = _multiply_plain(outer, atom.dividend)
    for candidate, coefficient in _pieces(_multiply_plain(outer, _add(atom.dividend, -atom.dividend.constant, 1))):
        if terms.get(candidate) != coefficient:
            return None
    removed = _add_plain(dividend, _term(monomial, terms[monomial]))
    remainder = _modulo(atom.dividend, atom.divisor)
    return _replace_pieces(terms, constant, removed, _multiply_plain(outer, remainder))


def _add_plain(left: Dim, right: Dim) -> Dim:
    """left + right without recombination"""
    terms: dict[Monomial, int] = {}
    constant = 0
    for monomial, coefficient in (*_pieces(left), *_pieces(right)):
        if monomial:
            _accumulate(terms, monomial, coefficient)
        else:
            constant += coefficient
    return _build(terms, constant)


def _multiply_plain(left: Dim, right: Dim) -> Dim:
    """left * right without recombination"""
    terms: dict[Monomial, int] = {}
    constant = 0
    for first, first_coefficient in _pieces(left):
        for second, second_coefficient in _pieces(right):
            monomial = _multiply_monomials(first, second) if first or second else ()
            if monomial:
                _accumulate(terms, monomial, first_coefficient * second_coefficient)
            else:
                constant += first_coefficient * second_coefficient
    return _build(terms, constant)


# --- division --------------------------------------------------------------------------------------------------------


def _truncate(dividend: int, divisor: int) -> int:
    """The quotient rounded towards zero: a reduced coefficient keeps its sign."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _split(dim: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(q, r) with dim == q*divisor + r, where the divisor visibly divides no term of r."""
    quotient, remainder = _split_once(dim, divisor)
    if quotient == 0:
        return 0, dim
    for _ in range(SPLIT_STEPS):
        more, rest = _split_once(remainder, divisor)
        if more == 0:
            break
        quotient, remainder = quotient + more, rest
    return quotient, remainder


def _split_once(dim: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(q, r) with dim == q*divisor + r, where q collects the terms that the divisor visibly divides."""
    if isinstance(divisor, int):
        return _split_constant(dim, divisor)
    if isinstance(dim, int):
        return 0, dim
    lead, lead_coefficient = max(divisor._terms.items(), key=_degree_key)
    quotient: Dim = 0
    for monomial, coefficient in dim.terms:
        rest = _divide_monomials(monomial, lead)
        times = _truncate(coefficient, lead_coefficient)
        if rest is not None and times:
            quotient = _add_plain(quotient, _term(rest, times))
    if quotient == 0:
        return 0, dim
    remainder = _add(dim, _multiply_plain(quotient, divisor), -1)
    many = len(divisor._terms) > 1 or divisor.constant
    if many and _size(remainder) >= _size(dim):
        return 0, dim
    return quotient, remainder


def _size(dim: Dim) -> int:
    return 0 if isinstance(dim, int) else len(dim._terms) + (dim.constant != 0)


def _degree_key(term: tuple[Monomial, int]) -> tuple:
    return sum(power for _, power in term[0]), _monomial_key(term[0])


def _split_constant(dim: Dim, divisor: int) -> tuple[Dim, Dim]:
    if isinstance(dim, int):
        return divmod(dim, divisor)
    quotients: dict[Monomial, int] = {}
    remainders: dict[Monomial, int] = {}
    for monomial, coefficient in dim._terms.items():
        times = _truncate(coefficient, divisor)
        if times:
            quotients[monomial] = times
        if coefficient - times * divisor:
            remainders[monomial] = coefficient - times * divisor
    times, rest = divmod(dim.constant, divisor)
    if not quotients and not times:
        return 0, dim
    return _combined(quotients, times), _combined(remainders, rest)


def _combined(terms: dict[Monomial, int], constant: int) -> Dim:
    dim = _build(terms, constant)
    return _recombine(terms, constant) if isinstance(dim, Expr) and dim._divides else dim


def _block(dim: Dim, divisor: Dim) -> int | None:
    """The constant value of dim // divisor for a positive divisor, if it is provably 0 or -1 (or any, for ints)."""
    if isinstance(divisor, int):
        lower, upper = bounds(dim)
        if lower is None or upper is None or lower // divisor != upper // divisor:
            return None
        return lower // divisor
    if _proved(dim):
        return 0 if _proved(divisor - 1 - dim) else None
    return -1 if _proved(-1 - dim) and _proved(dim + divisor) else None


def _content(dim: Dim) -> tuple[int, Monomial]:
    """The greatest coefficient and monomial that divide every term."""
    factor, common = 0, None
    for monomial, coefficient in _pieces(dim):
        factor = math.gcd(factor, coefficient)
        common = monomial if common is None else _common_monomial(common, monomial)
    return factor, common or ()


def _common_monomial(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(right)
    return tuple((atom, min(power, powers[atom])) for atom, power in left if atom in powers)


def _common_factors(dim: Expr, divisor: Dim) -> list[Dim]:
    """Proper positive factors of the divisor that also divide some terms of the dim, the largest first."""
    divisor_factor, divisor_monomial = _content(divisor)
    if divisor_factor == 1 and not divisor_monomial:
        return []
    found: dict[tuple[int, Monomial], tuple] = {}
    for monomial, coefficient in dim._terms.items():
        shared = _common_monomial(monomial, divisor_monomial)
        factor = math.gcd(coefficient, divisor_factor)
        if shared or factor > 1:
            found[factor, shared] = (sum(power for _, power in shared), factor, _monomial_key(shared))
    factors = [_term(shared, factor) for factor, shared in sorted(found, key=found.__getitem__, reverse=True)]
    return [factor for factor in factors if factor != divisor and _proved(_add(factor, -1, 1))]


def _split_exact(dim: Dim, factor: Dim) -> tuple[Dim, Dim]:
    """(q, r) with dim == q*factor + r and every term of q*factor a term of the dim; factor is one monomial."""
    ((factor_monomial, factor_coefficient),) = _pieces(factor)
    quotients: dict[Monomial, int] = {}
    remainders: dict[Monomial, int] = {}
    quotient_constant = remainder_constant = 0
    for monomial, coefficient in _pieces(dim):
        rest = _divide_monomials(monomial, factor_monomial)
        if rest is not None and coefficient % factor_coefficient == 0:
            if rest:
                quotients[rest] = coefficient // factor_coefficient
            else:
                quotient_constant = coefficient // factor_coefficient
        elif monomial:
            remainders[monomial] = coefficient
        else:
            remainder_constant = coefficient
    return _combined(quotients, quotient_constant), _combined(remainders, remainder_constant)


def _reduce(dim: Expr, divisor: Dim) -> tuple[Dim, Dim, Dim, Dim] | None:
    """(g, y, m, r) with dim == g*y + r, divisor == g*m, 0 <= r < g and g > 1: then dim//divisor == y//m."""
    for factor in _common_factors(dim, divisor):
        quotient, remainder = _split_exact(dim, factor)
        block = _block(remainder, factor)
        if block is not None:
            rest, _ = _split_exact(divisor, factor)
            return factor, quotient + block, rest, remainder - block * factor
    return None


def _depth_allows(dim: Dim) -> bool:
    return _dim_rank(dim) <= SIMPLIFY_DEPTH


@lru_cache(MEMO_ENTRIES)
def _floor_divide(dividend: Dim, divisor: Dim) -> Dim:
    dividend, divisor = _settle(dividend), _settle(divisor)
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"division of the symbolic integer `{to_text(dividend)}` by zero")
        if isinstance(dividend, int):
            return dividend // divisor
        if divisor == 1:
            return dividend
        if divisor < 0:
            return _floor_divide(-dividend, -divisor)
    elif not _proved(divisor - 1):
        # A divisor that may be zero must keep its run-time meaning.
        return _floor_divide(-dividend, -divisor) if _proved(-1 - divisor) else FloorDiv(dividend, divisor)
    if not _depth_allows(dividend):
        return FloorDiv(dividend, divisor)
    quotient, remainder = _split(dividend, divisor)
    block = _block(remainder, divisor)
    if block is not None:
        return quotient + block
    return quotient + _divide_remainder(remainder, divisor)


def _divide_remainder(dividend: Dim, divisor: Dim) -> Dim:
    """dividend // divisor where no term of the dividend is a multiple of the positive divisor."""
    if isinstance(dividend, int):
        return FloorDiv(dividend, divisor)
    reduced = _reduce(dividend, divisor)
    if reduced is not None:
        _, inner, rest, _ = reduced
        return _floor_divide(inner, rest)
    if isinstance(dividend, Mod):
        # (x % (b*d)) // b == (x//b) % d
        times, rest = _split(dividend.divisor, divisor)
        if rest == 0 and _proved(times - 1):
            return _modulo(_floor_divide(dividend.dividend, divisor), times)
    nested = [
        monomial[0][0]
        for monomial, coefficient in dividend._terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], FloorDiv)
    ]
    if len(nested) == 1 and _proved(nested[0].divisor - 1):
        # (x//c + t) // b == (x + c*t) // (c*b)
        inner = nested[0]
        return _floor_divide(inner.dividend + inner.divisor * (dividend - inner), inner.divisor * divisor)
    if all(coefficient < 0 for coefficient in dividend._terms.values()):
        # One spelling for floor and ceiling: a//b == -1 - (-1 - a)//b
        return -1 - _floor_divide(-1 - dividend, divisor)
    return FloorDiv(dividend, divisor)


@lru_cache(MEMO_ENTRIES)
def _modulo(dividend: Dim, divisor: Dim) -> Dim:
    dividend, divisor = _settle(dividend), _settle(divisor)
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"remainder of the symbolic integer `{to_text(dividend)}` by zero")
        if isinstance(dividend, int):
            return dividend % divisor
        if divisor < 0:
            return -_modulo(-dividend, -divisor)
        if divisor == 1:
            return 0
    elif not _proved(divisor - 1):
        return -_modulo(-dividend, -divisor) if _proved(-1 - divisor) else Mod(dividend, divisor)
    if not _depth_allows(dividend):
        return Mod(dividend, divisor)
    _, remainder = _split(dividend, divisor)
    block = _block(remainder, divisor)
    if block is not None:
        return remainder - block * divisor
    if isinstance(remainder, int):
        return Mod(remainder, divisor)
    reduced = _reduce(remainder, divisor)
    if reduced is not None:
        factor, inner, rest, offset = reduced
        return factor * _modulo(inner, rest) + offset
    unwrapped = _unwrap_remainders(remainder, divisor)
    return Mod(remainder, divisor) if unwrapped is None else _modulo(unwrapped, divisor)


def _unwrap_remainders(dim: Expr, divisor: Dim) -> Dim | None:
    """Replace x % (b*d) by x inside a remainder by b; None when there is none."""
    for monomial, coefficient in dim.terms:
        for atom, power in monomial:
            if power == 1 and isinstance(atom, Mod):
                outer = _term(tuple(factor for factor in monomial if factor[0] is not atom), coefficient)
                _, rest = _split(_multiply(outer, atom.divisor), divisor)
                if rest == 0:
                    return dim - outer * atom + outer * atom.dividend
    return None


# --- bounds and proofs -----------------------------------------------------------------------------------------------


def _interval_product(left: Interval, right: Interval) -> Interval:
    if left == (0, 0) or right == (0, 0):
        return 0, 0
    corners = [_corner(a, b, a_sign, b_sign) for a, a_sign in zip(left, (-1, 1)) for b, b_sign in zip(right, (-1, 1))]
    lower, upper = min(corners), max(corners)
    return (None if lower == -math.inf else int(lower)), (None if upper == math.inf else int(upper))


def _corner(a: int | None, b: int | None, a_sign: int, b_sign: int) -> float | int:
    if a is not None and b is not None:
        return a * b
    if a == 0 or b == 0:
        return 0
    sign = (a_sign if a is None else (1 if a > 0 else -1)) * (b_sign if b is None else (1 if b > 0 else -1))
    return sign * math.inf


def _interval_power(base: Interval, power: int) -> Interval:
    result = base
    for _ in range(power - 1):
        result = _interval_product(result, base)
    if power % 2 == 0 and (result[0] is None or result[0] < 0):
        return 0, result[1]
    return result


def _interval(dim: Expr) -> Interval:
    """Bounds of a sum from the bounds of its terms alone."""
    lower: int | None = dim.constant
    upper: int | None = dim.constant
    for monomial, coefficient in dim._terms.items():
        term: Interval = (coefficient, coefficient)
        for atom, power in monomial:
            base = _atom_interval(atom)
            term = _interval_product(term, base if power == 1 else _interval_power(base, power))
        lower = None if lower is None or term[0] is None else lower + term[0]
        upper = None if upper is None or term[1] is None else upper + term[1]
    return lower, upper


def _atom_interval(atom: Atom) -> Interval:
    if atom._interval is None:
        atom._interval = _compute_interval(atom)
    return atom._interval


def _compute_interval(atom: Atom) -> Interval:
    match atom:
        case Symbol():
            return atom.lower, atom.upper
        case Variable() | Opaque():
            lower = None if atom.lower is None else bounds(atom.lower)[0]
            upper = None if atom.upper is None else bounds(atom.upper)[1]
            return lower, upper
        case FloorDiv():
            return _quotient_interval(bounds(atom.dividend), bounds(atom.divisor))
        case Mod():
            return _remainder_interval(bounds(atom.dividend), bounds(atom.divisor))
        case Minimum():
            lower, upper = _maximum_interval([_negated(bounds(argument)) for argument in atom.arguments])
            return _negated((lower, upper))
        case Maximum():
            return _maximum_interval([bounds(argument) for argument in atom.arguments])
    raise TypeError(f"unknown atom {type(atom).__name__}")


def _negated(interval: Interval) -> Interval:
    lower, upper = interval
    return (None if upper is None else -upper), (None if lower is None else -lower)


def _maximum_interval(intervals: list[Interval]) -> Interval:
    lowers = [lower for lower, _ in intervals if lower is not None]
    uppers = [upper for _, upper in intervals if upper is not None]
    return max(lowers, default=None), max(uppers) if len(uppers) == len(intervals) else None


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
    if least is None or least < 1:
        low = None if least is None else min(0, least + 1)
        return low, None if greatest is None else max(0, greatest - 1)
    limit = None if greatest is None else greatest - 1
    if lower is not None and lower >= 0 and upper is not None:
        limit = upper if limit is None else min(limit, upper)
    return 0, limit


@lru_cache(MEMO_ENTRIES)
def _lower(dim: Expr) -> int | None:
    """A numeric lower bound: intervals, sharpened by replacing atoms with their symbolic bounds."""
    best = _interval(dim)[0]
    if len(dim._terms) > PROOF_TERMS or not _depth_allows(dim):
        return best
    replaced = _relax(dim)
    if replaced is None:
        return best
    candidates, combine = replaced
    values = [candidate if isinstance(candidate, int) else _lower(candidate) for candidate in candidates]
    if combine is min:
        sharpened = None if None in values else min(value for value in values if value is not None)
    else:
        sharpened = max((value for value in values if value is not None), default=None)
    if best is None or sharpened is None:
        return sharpened if best is None else best
    return max(best, sharpened)


def _relax(dim: Expr) -> tuple[list[Dim], Callable] | None:
    """Dims without some atom whose `combine`d lower bound is a lower bound of this dim; None if no atom allows it.

    Atoms of high rank go first, because their bounds mention atoms of lower rank.
    """
    occurrences: dict[Atom, int] = {}
    for monomial in dim._terms:
        for atom, _ in monomial:
            occurrences[atom] = occurrences.get(atom, 0) + 1
    order = sorted(occurrences, key=lambda atom: (_dim_rank(atom), atom._key), reverse=True)
    for atom in order:
        if _dim_rank(atom) <= 0 and occurrences[atom] < 2:
            continue  # the interval of the term says as much
        direction = _direction(dim, atom)
        if direction is None:
            continue
        found = _atom_bounds(atom, direction)
        if found is not None:
            candidates, combine = found
            return [_replace_atom(dim, atom, candidate) for candidate in candidates], combine
    return None


def _powers(dim: Expr, atom: Atom) -> dict[int, Dim]:
    """The dim as a polynomial in the atom: power -> coefficient (other occurrences inside atoms stay)."""
    collected: dict[int, dict[Monomial, int]] = {0: {}}
    for monomial, coefficient in dim._terms.items():
        power = next((power for factor, power in monomial if factor == atom), 0)
        rest = tuple(factor for factor in monomial if factor[0] != atom) if power else monomial
        collected.setdefault(power, {})[rest] = coefficient
    result: dict[int, Dim] = {}
    for power, terms in collected.items():
        constant = terms.pop((), 0)
        result[power] = _build(terms, constant + (dim.constant if power == 0 else 0))
    return result


def _direction(dim: Expr, atom: Atom) -> int | None:
    """1 if the dim never falls as the atom grows, -1 if it never rises, None if unknown."""
    powers = _powers(dim, atom)
    del powers[0]
    if any(power > 1 for power in powers):
        least = _atom_interval(atom)[0]
        if least is None or least < 0:
            return None
    for sign in (1, -1):
        if all(_lower_of(_scale(coefficient, sign)) for coefficient in powers.values()):
            return sign
    return None


def _lower_of(dim: Dim) -> bool:
    lower = dim if isinstance(dim, int) else _lower(dim)
    return lower is not None and lower >= 0


def _atom_bounds(atom: Atom, direction: int) -> tuple[list[Dim], Callable] | None:
    """Dims of lower rank that bound the atom from below (direction 1) or above (-1), and how they combine."""
    match atom:
        case Symbol() | Variable() | Opaque():
            bound = atom.lower if direction > 0 else atom.upper
            return None if bound is None else ([bound], max)
        case Mod() if _proved(atom.divisor - 1):
            return [0 if direction > 0 else atom.divisor - 1], max
        case FloorDiv() if _proved(atom.divisor - 1):
            return _quotient_bounds(atom, direction)
        case Minimum():
            return list(atom.arguments), min if direction > 0 else max
        case Maximum():
            return list(atom.arguments), max if direction > 0 else min
    return None


def _quotient_bounds(atom: FloorDiv, direction: int) -> tuple[list[Dim], Callable] | None:
    """Bound x//d by y//d, where y bounds x and has a lower rank."""
    dividend: Dim = _scale(atom.dividend, direction)
    while isinstance(dividend, Expr) and _dim_rank(dividend) >= _dim_rank(atom.dividend):
        replaced = _relax(dividend)
        if replaced is None or len(replaced[0]) > 1:
            return None
        dividend = replaced[0][0]
    bound = _floor_divide(_scale(dividend, direction), atom.divisor)
    return ([bound], max) if _dim_rank(bound) < _dim_rank(atom) else None


def _replace_atom(dim: Expr, atom: Atom, value: Dim) -> Dim:
    result: Dim = 0
    for power, coefficient in _powers(dim, atom).items():
        for _ in range(power):
            coefficient = _multiply(coefficient, value)
        result = _add(result, coefficient, 1)
    return result


@lru_cache(MEMO_ENTRIES)
def _proved(dim: Dim) -> bool:
    """Whether dim >= 0 is proven."""
    if isinstance(dim, int):
        return dim >= 0
    if _lower_of(dim):
        return True
    if not dim._divides or len(dim._terms) > PROOF_TERMS or not _depth_allows(dim):
        return False
    cleared = _clear_quotient(dim)
    return cleared is not None and _proved(cleared)


def _clear_quotient(dim: Expr) -> Dim | None:
    """A dim with one floor division less that is non-negative only if this dim is.

    With d >= 1: c*(x//d) + r >= 0 follows from c*(x - d + 1) + d*r >= 0 when c >= 0, from c*x + d*r >= 0 when
    c <= 0, and for c == -1 already from d*r + d - 1 - x >= 0.
    """
    quotients = {atom for monomial in dim._terms for atom, _ in monomial if isinstance(atom, FloorDiv)}
    for atom in sorted(quotients, key=lambda atom: (_dim_rank(atom), atom._key), reverse=True):
        powers = _powers(dim, atom)
        if set(powers) != {0, 1} or not _proved(atom.divisor - 1):
            continue
        coefficient, rest = powers[1], powers[0] * atom.divisor
        if coefficient == -1:
            return rest + atom.divisor - 1 - atom.dividend
        if _lower_of(coefficient):
            return coefficient * (atom.dividend - atom.divisor + 1) + rest
        if _lower_of(-coefficient):
            return coefficient * atom.dividend + rest
    return None


def bounds(dim: Dim) -> Interval:
    """An inclusive numeric interval that holds every value of the dim; None where no bound is known."""
    if isinstance(dim, int):
        return dim, dim
    if isinstance(dim, Symbol):
        return dim.lower, dim.upper
    upper = _lower_of_expr(_scale(dim, -1))
    return _lower_of_expr(dim), None if upper is None else -upper


def _lower_of_expr(dim: Dim) -> int | None:
    return dim if isinstance(dim, int) else _lower(dim)


def is_nonnegative(dim: Dim) -> bool | None:
    """Whether dim >= 0 for all values of its atoms: True, False for none of them, None if undecided."""
    if _proved(dim):
        return True
    return False if _proved(-1 - dim) else None


def less_equal(left: Dim, right: Dim) -> bool | None:
    """Whether left <= right always (True), never (False), or undecided (None)."""
    return is_nonnegative(right - left)


def less(left: Dim, right: Dim) -> bool | None:
    """Whether left < right always (True), never (False), or undecided (None)."""
    return is_nonnegative(right - left - 1)


def equal(left: Dim, right: Dim) -> bool | None:
    """Whether the two are equal always (True), never (False), or undecided (None)."""
    difference = left - right
    if isinstance(difference, int):
        return difference == 0
    if difference.constant % math.gcd(*difference._terms.values()):
        return False
    if _proved(difference - 1) or _proved(-1 - difference):
        return False
    return True if _proved(difference) and _proved(-difference) else None


def is_constant(dim: Dim) -> bool:
    """Whether the dim is a plain integer."""
    return isinstance(dim, int)


# --- functions -------------------------------------------------------------------------------------------------------


def minimum(*dims: Dim) -> Dim:
    """The least of the dims, without the arguments that are provably not needed."""
    return _extremum(Minimum, dims, 1)


def maximum(*dims: Dim) -> Dim:
    """The greatest of the dims, without the arguments that are provably not needed."""
    return _extremum(Maximum, dims, -1)


def _extremum(kind: type[Minimum] | type[Maximum], dims: tuple[Dim, ...], sign: int) -> Dim:
    if not dims:
        raise ValueError(f"{kind.__name__.lower()} needs at least one dim")
    flat: dict[Dim, None] = {}
    for dim in dims:
        for argument in dim.arguments if isinstance(dim, kind) else (dim,):
            flat[_settle(argument)] = None
    kept: list[Dim] = []
    for argument in sorted(flat, key=_dim_key):
        if any(_proved(_scale(argument - other, sign)) for other in kept):
            continue
        kept = [other for other in kept if not _proved(_scale(other - argument, sign))]
        kept.append(argument)
    return kept[0] if len(kept) == 1 else kind(*kept)


def ceildiv(dividend: Dim, divisor: Dim) -> Dim:
    """The quotient rounded up."""
    return -(-dividend // divisor)


def align(dim: Dim, multiple: Dim) -> Dim:
    """The least multiple of `multiple` that is at least `dim`."""
    return ceildiv(dim, multiple) * multiple


def product(dims: Iterable[Dim]) -> Dim:
    """The product of the dims; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def atoms(dim: Dim) -> frozenset[Atom]:
    """The symbols, variables and opaque integers in the dim, also inside divisions, and what opaques depend on."""
    if isinstance(dim, int):
        return frozenset()
    if dim._atoms is None:
        dim._atoms = frozenset().union(*(atoms(atom) for monomial in dim._terms for atom, _ in monomial))
    return dim._atoms


def substitute(
    dim: Dim, mapping: Mapping[Any, Dim], opaque: Callable[[Any], Hashable] | None = None
) -> Dim:
    """The dim with atoms replaced, all at once, and simplified again; `opaque` rewrites the payload of opaques."""
    memo: dict[Atom, Dim] = {}
    keys = frozenset(mapping)

    def rewrite(part: Dim) -> Dim:
        if isinstance(part, int):
            return part
        if isinstance(part, Atom):
            if part not in memo:
                memo[part] = rewrite_atom(part)
            return memo[part]
        if opaque is None and keys.isdisjoint(atoms(part)) and not compound_keys:
            return part
        result: Dim = part.constant
        for monomial, coefficient in part._terms.items():
            term: Dim = coefficient
            for atom, power in monomial:
                value = rewrite(atom)
                for _ in range(power):
                    term = term * value
            result = result + term
        return result

    def rewrite_atom(atom: Atom) -> Dim:
        if atom in keys:
            return mapping[atom]
        match atom:
            case FloorDiv():
                return _floor_divide(rewrite(atom.dividend), rewrite(atom.divisor))
            case Mod():
                return _modulo(rewrite(atom.dividend), rewrite(atom.divisor))
            case Minimum():
                return minimum(*map(rewrite, atom.arguments))
            case Maximum():
                return maximum(*map(rewrite, atom.arguments))
            case Opaque():
                return rewrite_opaque(atom)
        return atom

    def rewrite_opaque(atom: Opaque) -> Dim:
        if opaque is None:
            if not keys.isdisjoint(atom.depends):
                raise ValueError(f"cannot substitute inside the opaque integer {to_text(atom)} without `opaque`")
            return atom
        payload = opaque(atom.payload)
        if payload == atom.payload:
            return atom
        depends = frozenset().union(*(atoms(mapping.get(leaf, leaf)) for leaf in atom.depends))
        lower = None if atom.lower is None else rewrite(atom.lower)
        upper = None if atom.upper is None else rewrite(atom.upper)
        return Opaque(payload, lower, upper, depends)

    compound_keys = any(isinstance(key, _Compound) for key in keys)
    return rewrite(dim)


def evaluate(dim: Dim, env: Mapping[Any, int], opaque: Callable[[Any], int] | None = None) -> int:
    """The value of the dim for values of its atoms; `opaque` computes the payloads that `env` does not name."""
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
    if isinstance(atom, _Compound):
        values = [evaluate(argument, env, opaque) for argument in atom.arguments]
        match atom:
            case FloorDiv():
                return values[0] // values[1]
            case Mod():
                return values[0] % values[1]
            case Minimum():
                return min(values)
            case _:
                return max(values)
    if isinstance(atom, Opaque) and opaque is not None:
        return opaque(atom.payload)
    raise KeyError(f"no value given for `{to_text(atom)}`")


def linear_coefficient(dim: Dim, variable: Atom) -> Dim | None:
    """c with dim == c*variable + rest, both without the variable; 0 if it does not occur, None if not affine."""
    if isinstance(dim, int) or variable not in atoms(dim):
        return 0
    if dim is variable:
        return 1
    powers = _powers(dim, variable)
    if max(powers) > 1 or variable in atoms(powers[0]) or variable in atoms(powers.get(1, 0)):
        return None
    return powers.get(1, 0)


def without(dim: Dim, variable: Atom) -> Dim:
    """The rest of a dim that is affine in the variable: what is left when the variable is zero."""
    coefficient = linear_coefficient(dim, variable)
    if coefficient is None:
        raise ValueError(f"`{to_text(dim)}` is not affine in `{to_text(variable)}`")
    return 0 if dim is variable else dim - coefficient * variable


# --- text ------------------------------------------------------------------------------------------------------------

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_.]*)|`((?:[^`]|``)*)`|(//|[-+*%(),]))")


def to_text(dim: Dim, names: Callable[[Any], str] | None = None) -> str:
    """Text that `parse` reads back, such as `2*batch + i//4 - 1`; the same in every process."""
    if isinstance(dim, int):
        return str(dim)
    if isinstance(dim, Atom):
        return _atom_text(dim, names)
    parts: list[str] = []
    for monomial, coefficient in dim.terms:
        text = _term_text(monomial, abs(coefficient), names)
        if parts:
            parts.append(f" {'-' if coefficient < 0 else '+'} {text}")
        elif coefficient < 0:
            bare = coefficient == -1 and len(monomial) == 1 and monomial[0][0]._divides and monomial[0][1] == 1
            parts.append(f"-({text})" if bare else f"-{text}")
        else:
            parts.append(text)
    if dim.constant:
        parts.append(f" {'-' if dim.constant < 0 else '+'} {abs(dim.constant)}")
    return "".join(parts)


def _term_text(monomial: Monomial, coefficient: int, names: Callable[[Any], str] | None) -> str:
    if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
        return _atom_text(monomial[0][0], names)
    factors = [] if coefficient == 1 else [str(coefficient)]
    for atom, power in monomial:
        text = _atom_text(atom, names)
        factors += [f"({text})" if atom._divides else text] * power
    return "*".join(factors)


def _atom_text(atom: Atom, names: Callable[[Any], str] | None) -> str:
    match atom:
        case FloorDiv():
            return f"{_operand_text(atom.dividend, names)}//{_operand_text(atom.divisor, names)}"
        case Mod():
            return f"{_operand_text(atom.dividend, names)} % {_operand_text(atom.divisor, names)}"
        case Minimum() | Maximum():
            function = "min" if isinstance(atom, Minimum) else "max"
            return f"{function}({', '.join(to_text(argument, names) for argument in atom.arguments)})"
    if names is not None:
        name = names(atom)
    elif isinstance(atom, Opaque):
        name = f"opaque_{atom.identity.serial}"
    else:
        name = atom.name  # type: ignore[attr-defined]
    plain = _IDENTIFIER.fullmatch(name) and name not in ("min", "max")
    return name if plain else "`" + name.replace("`", "``") + "`"


def _operand_text(dim: Dim, names: Callable[[Any], str] | None) -> str:
    text = to_text(dim, names)
    simple = (isinstance(dim, int) and dim >= 0) or (isinstance(dim, Atom) and not dim._divides)
    return text if simple else f"({text})"


def parse(text: str, resolve: Callable[[str], Dim]) -> Dim:
    """The dim that `to_text` wrote; `resolve` finds the dim of a name."""
    return _Parser(text, resolve).whole()


class _Parser:
    """Recursive descent over + - (left), * // % (left), unary minus, min, max, names and integers."""

    def __init__(self, text: str, resolve: Callable[[str], Dim]) -> None:
        self.text, self.resolve = text, resolve
        self.tokens = self._tokenise()
        self.position = 0

    def _tokenise(self) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        place, end = 0, len(self.text.rstrip())
        while place < end:
            match = _TOKEN.match(self.text, place)
            if match is None:
                raise ValueError(f"cannot read the symbolic integer {self.text!r} from character {place}")
            number, name, quoted, sign = match.groups()
            if quoted is not None:
                tokens.append(("name", quoted.replace("``", "`")))
            elif number is not None:
                tokens.append(("number", number))
            else:
                tokens.append(("word", name) if name is not None else ("sign", sign))
            place = match.end()
        return tokens

    def whole(self) -> Dim:
        value = self.sum()
        if self.position < len(self.tokens):
            raise self.error("the end")
        return value

    def error(self, expected: str) -> ValueError:
        found = self.tokens[self.position][1] if self.position < len(self.tokens) else "the end"
        return ValueError(f"expected {expected} but found {found!r} in the symbolic integer {self.text!r}")

    def accept(self, *signs: str) -> str | None:
        if self.position < len(self.tokens):
            kind, text = self.tokens[self.position]
            if kind == "sign" and text in signs:
                self.position += 1
                return text
        return None

    def expect(self, sign: str) -> None:
        if self.accept(sign) is None:
            raise self.error(repr(sign))

    def sum(self) -> Dim:
        value = self.product()
        while sign := self.accept("+", "-"):
            right = self.product()
            value = value + right if sign == "+" else value - right
        return value

    def product(self) -> Dim:
        value = self.unary()
        while sign := self.accept("*", "//", "%"):
            right = self.unary()
            value = value * right if sign == "*" else value // right if sign == "//" else value % right
        return value

    def unary(self) -> Dim:
        return -self.unary() if self.accept("-") else self.primary()

    def primary(self) -> Dim:
        if self.accept("("):
            value = self.sum()
            self.expect(")")
            return value
        kind, text = self.tokens[self.position] if self.position < len(self.tokens) else ("end", "")
        if kind not in ("number", "word", "name"):
            raise self.error("a name, a number or '('")
        self.position += 1
        if kind == "number":
            return int(text)
        if kind == "word" and text in ("min", "max") and self.accept("("):
            return self.extremum(minimum if text == "min" else maximum)
        return self.resolve(text)

    def extremum(self, function: Callable[..., Dim]) -> Dim:
        arguments = [self.sum()]
        while self.accept(","):
            arguments.append(self.sum())
        self.expect(")")
        return function(*arguments)
