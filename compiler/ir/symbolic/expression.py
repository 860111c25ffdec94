"""Expressions as data: `Expr`, the atoms it is made of, their order, and sums and products.

Invariant: coefficients are non-zero, the factors of a monomial are sorted by `Atom._key`, and a sum that is
one atom is that atom. Sums and products that contain divisions go through `rules.recombine`.
Non-goal: rules that need proofs. `division` installs them in `rules`, because they build on this module.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar, SupportsIndex, TypeAlias

MAXIMUM_TERMS = 4096  # a sum that expands to more monomials is a mistake of the caller
RULE_TERMS = 256  # no rule or proof expands a product to more


class Rules:
    """What the operators of `Expr` need from modules above this one; set once, as the package is imported."""

    floor_divide: Callable[[Dim, Dim], Dim]
    modulo: Callable[[Dim, Dim], Dim]
    recombine: Callable[[dict[Monomial, int], int], Dim]
    to_text: Callable[[Dim], str]


rules = Rules()


class TooManyTerms(OverflowError):
    """A sum that would be too long to be worked with."""


class SymbolicValueError(TypeError):
    """A symbolic integer was used where Python needs a number: range(n), [0] * n, np.zeros(n)."""


class Expr:
    """A sum of monomials plus a constant. Built by operators only, never by calling the class."""

    __slots__ = ("__weakref__", "_atoms", "_divides", "_hash", "_key", "_opaques", "_rank", "_terms", "constant")

    __array_ufunc__ = None  # numpy scalars defer to the reflected operators below

    constant: int
    _terms: dict[Monomial, int]  # shared between expressions, never written after construction
    _hash: int | None
    _key: tuple | None
    _rank: int | None
    _atoms: frozenset[Atom] | None
    _opaques: tuple[Opaque, ...]  # there when `_atoms` is
    _divides: bool  # some monomial contains a floor division or a remainder

    @property
    def terms(self) -> tuple[tuple[Monomial, int], ...]:
        """The (monomial, coefficient) pairs in a fixed order; a monomial is a tuple of (atom, power)."""
        items = self._terms.items()
        return tuple(items) if len(items) < 2 else tuple(sorted(items, key=term_key))

    @property
    def factors(self) -> list[Atom]:
        """The atoms that the monomials are products of, in no particular order."""
        return [atom for monomial in self._terms for atom, _ in monomial]

    def __eq__(self, other: object, /) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr):
            return False
        return self.constant == other.constant and self._terms == other._terms

    def __hash__(self) -> int:
        found = self._hash
        if found is None:
            found = self._hash = hash((self.constant, frozenset(self._terms.items())))
        return found

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth of the symbolic integer `{self}` is not known at compile time; "
            "ask symbolic.equal, symbolic.less, symbolic.less_equal or symbolic.is_nonnegative instead"
        )

    def __index__(self) -> int:
        raise SymbolicValueError(f"the symbolic integer `{self}` has no value at compile time")

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: dict) -> Expr:
        return self

    def __reduce__(self) -> tuple:
        return build_sum, (list(self._terms.items()), self.constant)

    def __repr__(self) -> str:
        return rules.to_text(self)

    def __add__(self, other: DimLike) -> Dim:
        value = other if type(other) is int else operand(other)
        return NotImplemented if value is None else add(self, value)

    def __sub__(self, other: DimLike) -> Dim:
        value = other if type(other) is int else operand(other)
        return NotImplemented if value is None else add(self, value, -1)

    def __rsub__(self, other: DimLike) -> Dim:
        value = operand(other)
        return NotImplemented if value is None else add(scale(self, -1), value)

    def __mul__(self, other: DimLike) -> Dim:
        if type(other) is int:
            return scale(self, other)
        value = operand(other)
        return NotImplemented if value is None else multiply(self, value)

    def __floordiv__(self, other: DimLike) -> Dim:
        value = operand(other)
        return NotImplemented if value is None else rules.floor_divide(self, value)

    def __rfloordiv__(self, other: DimLike) -> Dim:
        value = operand(other)
        return NotImplemented if value is None else rules.floor_divide(value, self)

    def __mod__(self, other: DimLike) -> Dim:
        value = operand(other)
        return NotImplemented if value is None else rules.modulo(self, value)

    def __rmod__(self, other: DimLike) -> Dim:
        value = operand(other)
        return NotImplemented if value is None else rules.modulo(value, self)

    def __neg__(self) -> Dim:
        return scale(self, -1)

    def __pos__(self) -> Dim:
        return self

    __radd__ = __add__
    __rmul__ = __mul__


class Atom(Expr):
    """An indivisible factor. Atoms are unique objects: equality is identity (`Opaque` excepted, by payload).

    An atom with a single possible value has no terms, only a constant: it vanishes from whatever it is used
    in, as the variable of a loop of one iteration should (`Opaque` excepted: an index into one element is checked).
    """

    __slots__ = ("_interval",)

    _interval: Interval | None

    __eq__ = object.__eq__  # identity
    __hash__ = object.__hash__

    def _initialise(self, key: tuple, rank: int, lower: Dim | None, upper: Dim | None) -> None:
        fixed = isinstance(lower, int) and isinstance(upper, int) and lower == upper
        self.constant = lower if fixed else 0  # type: ignore[assignment]
        self._terms = {} if fixed else {((self, 1),): 1}
        self._key, self._rank = key, rank
        self._atoms = frozenset((self,))
        self._opaques = ()
        self._hash = self._interval = None
        self._divides = False


class Symbol(Atom):
    """A named dim with constant inclusive bounds; equal by name and bounds."""

    __slots__ = ("lower", "name", "upper")

    name: str
    lower: int | None
    upper: int | None

    def __new__(cls, name: str, lower: int | None = 1, upper: int | None = None) -> Symbol:
        identity = (cls, name, lower, upper)
        with _lock:
            found = _interned.get(identity)
            if found is not None:
                return found
            self = object.__new__(cls)
            self.name, self.lower, self.upper = name, lower, upper
            self._initialise((0, name, 0, (_bound_key(lower), _bound_key(upper))), 0, lower, upper)
            _interned[identity] = self
            return self

    def __reduce__(self) -> tuple:
        return Symbol, (self.name, self.lower, self.upper)


class Variable(Atom):
    """A loop variable: no two are equal. The bounds are inclusive and may be symbolic."""

    __slots__ = ("lower", "name", "serial", "upper")

    name: str
    lower: Dim | None
    upper: Dim | None
    serial: int  # creation order, which also orders variables of one name

    def __init__(self, name: str, lower: Dim | None = None, upper: Dim | None = None) -> None:
        self.name, self.serial = name, next(_serials)
        self.lower, self.upper = _bound(lower), _bound(upper)
        rank = _bounded_rank(self.lower, self.upper)
        self._initialise((1, name, self.serial, ()), rank, self.lower, self.upper)

    def __reduce__(self) -> tuple:
        return Variable, (self.name, self.lower, self.upper)


class Opaque(Atom):
    """An integer that `payload` computes at run time; equal when the payloads are equal.

    `depends` are the atoms that the payload reads: `atoms`, `linear_coefficient`, `substitute` see them.
    """

    __slots__ = ("_payload_hash", "depends", "identity", "lower", "payload", "upper")

    payload: Hashable
    lower: Dim | None
    upper: Dim | None
    depends: frozenset[Atom]
    identity: _Identity

    def __init__(
        self,
        payload: Hashable,
        lower: Dim | None = None,
        upper: Dim | None = None,
        depends: Iterable[Atom] = (),
    ) -> None:
        self.payload, self.depends = payload, frozenset(depends)
        self.lower, self.upper = _bound(lower), _bound(upper)
        self._payload_hash = hash((Opaque, payload))
        with _lock:
            self.identity = _identities.setdefault(payload, _Identity())
        rank = _bounded_rank(self.lower, self.upper)
        self._initialise((2, "", self.identity.serial, ()), rank, None, None)  # computing it may fail: it never vanishes
        self._atoms = self.depends | {self}
        self._opaques = _opaques_among(self._atoms)

    def __eq__(self, other: object, /) -> bool:
        return self is other or (isinstance(other, Opaque) and self.payload == other.payload)

    def __hash__(self) -> int:
        return self._payload_hash

    def __reduce__(self) -> tuple:
        return Opaque, (self.payload, self.lower, self.upper, self.depends)


class _Identity:
    """What opaque integers of equal payload share: their place in the order of atoms."""

    __slots__ = ("__weakref__", "serial")

    def __init__(self) -> None:
        self.serial = next(_serials)


class Compound(Atom):
    """An atom made of other dims; interned, so equal arguments give the same object."""

    __slots__ = ("arguments",)

    arguments: tuple[Dim, ...]
    _kind: ClassVar[int]

    def __new__(cls, *arguments: Dim) -> Any:
        found = _interned.get((cls, arguments))
        if found is not None:
            return found
        self = object.__new__(cls)
        self.arguments = arguments
        key = (cls._kind, "", 0, tuple(dim_key(argument) for argument in arguments))
        self._initialise(key, 1 + max(rank_of(argument) for argument in arguments), None, None)
        self._atoms = frozenset().union(*(atoms(argument) for argument in arguments))
        self._opaques = _opaques_among(self._atoms)
        self._divides = cls is FloorDiv or cls is Mod
        with _lock:
            return _interned.setdefault((cls, arguments), self)

    def __reduce__(self) -> tuple:
        return type(self), self.arguments


class FloorDiv(Compound):
    """`dividend // divisor`, rounded towards minus infinity. Write `a // b`, which simplifies."""

    __slots__ = ()
    _kind = 3

    @property
    def dividend(self) -> Dim:
        return self.arguments[0]

    @property
    def divisor(self) -> Dim:
        return self.arguments[1]


class Mod(Compound):
    """`dividend % divisor`, with the sign of the divisor. Write `a % b`, which simplifies."""

    __slots__ = ()
    _kind = 4

    @property
    def dividend(self) -> Dim:
        return self.arguments[0]

    @property
    def divisor(self) -> Dim:
        return self.arguments[1]


class _Extremum(Compound):
    """A symmetric function: the order of its arguments is fixed here, and says nothing."""

    __slots__ = ()

    def __new__(cls, *arguments: Dim) -> Any:
        return Compound.__new__(cls, *sorted(arguments, key=dim_key))


class Minimum(_Extremum):
    """The least of two or more dims. Write `minimum(a, b)`, which simplifies."""

    __slots__ = ()
    _kind = 5


class Maximum(_Extremum):
    """The greatest of two or more dims. Write `maximum(a, b)`, which simplifies."""

    __slots__ = ()
    _kind = 6


Dim: TypeAlias = int | Expr
DimLike: TypeAlias = SupportsIndex | Expr
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
Interval: TypeAlias = tuple[int | None, int | None]

_serials = itertools.count()
_lock = threading.Lock()
_interned: weakref.WeakValueDictionary[tuple, Any] = weakref.WeakValueDictionary()
_identities: weakref.WeakValueDictionary[Hashable, _Identity] = weakref.WeakValueDictionary()


def operand(value: Any) -> Dim | None:
    """The value as a dim, or None when it is no integer."""
    if isinstance(value, (int, Expr)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_dim(value: Any) -> Dim:
    """The value as a dim: an `Expr` as it is, anything integral (numpy scalars too) as a Python int."""
    dim = operand(value)
    if dim is None:
        raise TypeError(f"a dim must be an integer or a symbolic integer, not {value!r}")
    return int(dim) if isinstance(dim, int) else dim


def is_constant(dim: Dim) -> bool:
    """Whether the dim is a plain integer."""
    return isinstance(dim, int)


def settle(dim: Dim) -> Dim:
    """The dim, or its value when only one is possible."""
    return dim if isinstance(dim, int) or dim._terms else dim.constant


def _bound(bound: Dim | None) -> Dim | None:
    return bound if bound is None or type(bound) is int else settle(as_dim(bound))


def atoms(dim: Dim) -> frozenset[Atom]:
    """The symbols, variables and opaque integers of the dim, at any depth, and what opaques depend on."""
    if isinstance(dim, int):
        return frozenset()
    found = dim._atoms
    if found is None:
        first, *others = [atoms(atom) for monomial in dim._terms for atom, _ in monomial]
        found = first.union(*others) if others else first
        dim._opaques = _opaques_among(found)  # first, because another thread may look as soon as there are atoms
        dim._atoms = found
    return found


def opaques(dim: Dim) -> tuple[Opaque, ...]:
    """The opaque integers among the atoms of the dim, in the order of their creation."""
    if isinstance(dim, int):
        return ()
    if dim._atoms is None:
        atoms(dim)
    return dim._opaques


def _opaques_among(found: frozenset[Atom]) -> tuple[Opaque, ...]:
    opaque = [atom for atom in found if type(atom) is Opaque]
    return tuple(sorted(opaque, key=_serial_of)) if opaque else ()


def _serial_of(opaque: Opaque) -> int:
    return opaque.identity.serial


# --- order: by names, structure and creation only, so that text is the same in every process ----------------


def _bound_key(bound: int | None) -> tuple[int, int]:
    return (0, 0) if bound is None else (1, bound)


def atom_key(atom: Atom) -> Any:
    return atom._key


def _factor_key(factor: tuple[Atom, int]) -> Any:
    return factor[0]._key


def monomial_key(monomial: Monomial) -> tuple:
    if len(monomial) == 1:
        ((atom, power),) = monomial
        return ((atom._key, -power),)
    return tuple([(atom._key, -power) for atom, power in monomial])


def term_key(term: tuple[Monomial, int]) -> tuple:
    return monomial_key(term[0])


def dim_key(dim: Dim) -> tuple:
    """A total order on dims: integers first."""
    if isinstance(dim, int):
        return (0, dim, ())
    if isinstance(dim, Atom):
        return (1, 0, ((((dim._key, -1),), 1),))
    if dim._key is None:
        dim._key = tuple((monomial_key(monomial), coefficient) for monomial, coefficient in dim.terms)
    return (1, dim.constant, dim._key)


def rank_of(dim: Dim) -> int:
    """How often a dim can be bounded by simpler dims until only constants are left; -1 for a constant."""
    if isinstance(dim, int):
        return -1
    found = dim._rank
    if found is None:
        found = dim._rank = max([atom._rank for monomial in dim._terms for atom, _ in monomial])  # type: ignore[type-var]
    return found  # type: ignore[return-value]


def _bounded_rank(lower: Dim | None, upper: Dim | None) -> int:
    return 1 + max(-1 if lower is None else rank_of(lower), -1 if upper is None else rank_of(upper))


# --- monomials ----------------------------------------------------------------------------------------------


def multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    if len(powers) == 1:
        return tuple(powers.items())
    return tuple(sorted(powers.items(), key=_factor_key))


# --- sums and products --------------------------------------------------------------------------------------


def build(terms: dict[Monomial, int], constant: int, divides: bool | None = None) -> Dim:
    """The dim of terms that need no recombination; takes the dict over. `divides` is found unless given."""
    if not terms:
        return constant
    if len(terms) == 1 and constant == 0:
        ((monomial, coefficient),) = terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    elif len(terms) > MAXIMUM_TERMS:
        raise TooManyTerms(f"a symbolic integer grew beyond {MAXIMUM_TERMS} terms; name parts of it instead")
    result = Expr()
    result.constant = constant
    result._terms = terms
    result._hash = result._key = result._rank = result._atoms = None
    result._divides = has_division(terms) if divides is None else divides
    return result


def has_division(terms: Iterable[Monomial]) -> bool:
    """Whether a floor division or a remainder is a factor of one of the monomials."""
    for monomial in terms:
        for atom, _ in monomial:
            if atom._divides:
                return True
    return False


def build_sum(items: Iterable[tuple[Monomial, int]], constant: int) -> Dim:
    """The dim of any monomials and coefficients, whose factors need not be sorted."""
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in items:
        accumulate(terms, tuple(sorted(monomial, key=_factor_key)), coefficient)
    return build(terms, constant)


def pieces(dim: Dim) -> Iterable[tuple[Monomial, int]]:
    """All terms of the dim, its constant as the empty monomial."""
    if isinstance(dim, int):
        return (((), dim),) if dim else ()
    if dim.constant:
        return (*dim._terms.items(), ((), dim.constant))
    return dim._terms.items()


def accumulate(terms: dict[Monomial, int], monomial: Monomial, coefficient: int) -> None:
    total = terms.get(monomial, 0) + coefficient
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def add(left: Dim, right: Dim, factor: int = 1) -> Dim:
    """left + factor * right"""
    if isinstance(right, int):
        if isinstance(left, int):
            return left + factor * right
        return build(left._terms, left.constant + factor * right, left._divides) if right else settle(left)
    if isinstance(left, int):
        return add(scale(right, factor), left)
    terms = dict(left._terms)
    for monomial, coefficient in right._terms.items():
        total = terms.get(monomial, 0) + factor * coefficient
        if total:
            terms[monomial] = total
        else:
            terms.pop(monomial, None)
    constant = left.constant + factor * right.constant
    if left._divides or right._divides:
        return rules.recombine(terms, constant)
    return build(terms, constant, False)


def scale(dim: Dim, factor: int) -> Dim:
    """factor * dim"""
    if isinstance(dim, int):
        return dim * factor
    if factor == 0:
        return 0
    if factor == 1:
        return dim if dim._terms else dim.constant
    terms = {monomial: factor * coefficient for monomial, coefficient in dim._terms.items()}
    if dim._divides and factor != -1:
        return rules.recombine(terms, factor * dim.constant)
    return build(terms, factor * dim.constant, dim._divides)


def multiply(left: Dim, right: Dim) -> Dim:
    """left * right"""
    if isinstance(right, int):
        return scale(left, right)
    if isinstance(left, int):
        return scale(right, left)
    product_of_sums = multiply_plain(left, right)
    if (left._divides or right._divides) and isinstance(product_of_sums, Expr):
        return rules.recombine(product_of_sums._terms, product_of_sums.constant)
    return product_of_sums


def multiply_plain(left: Dim, right: Dim) -> Dim:
    """left * right without recombination"""
    first_pieces, second_pieces = pieces(left), tuple(pieces(right))
    terms: dict[Monomial, int] = {}
    for first, first_coefficient in first_pieces:
        for second, second_coefficient in second_pieces:
            monomial = multiply_monomials(first, second)
            accumulate(terms, monomial, first_coefficient * second_coefficient)
        if len(terms) > MAXIMUM_TERMS:
            raise TooManyTerms(
                f"the product of symbolic sums of {size_of(left)} and {size_of(right)} terms is too large "
                f"to expand (limit {MAXIMUM_TERMS}); name parts of it instead"
            )
    return build(terms, terms.pop((), 0))


def size_of(dim: Dim) -> int:
    """The number of terms, a constant included."""
    return int(dim != 0) if isinstance(dim, int) else len(dim._terms) + (dim.constant != 0)
