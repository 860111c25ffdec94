"""Minimum and maximum of dims.

Invariant: no argument is provably made redundant by another; arguments are flat and ordered by `dim_key`.
Non-goal: pulling common terms out of the arguments. Proofs see through that without it.
"""

from __future__ import annotations

from functools import lru_cache

from ingot.compiler.ir.symbolic.expression import (
    Dim,
    Maximum,
    Minimum,
    dim_key,
    scale,
    settle,
)
from ingot.compiler.ir.symbolic.proofs import MEMO_ENTRIES, proves_nonnegative


def minimum(*dims: Dim) -> Dim:
    """The least of the dims, without arguments that are provably not needed."""
    return _extremum(Minimum, dims, 1)


def maximum(*dims: Dim) -> Dim:
    """The greatest of the dims, without arguments that are provably not needed."""
    return _extremum(Maximum, dims, -1)


@lru_cache(MEMO_ENTRIES)
def _extremum(kind: type[Minimum] | type[Maximum], dims: tuple[Dim, ...], sign: int) -> Dim:
    if not dims:
        raise ValueError(f"the {kind.__name__.lower()} of no dims is undefined; give at least one")
    flat: set[Dim] = set()
    for dim in dims:
        flat.update(dim.arguments if isinstance(dim, kind) else (settle(dim),))
    kept: list[Dim] = []
    for dim in sorted(flat, key=dim_key):
        if any(proves_nonnegative(scale(dim - other, sign)) for other in kept):
            continue
        kept = [other for other in kept if not proves_nonnegative(scale(other - dim, sign))]
        kept.append(dim)
    return kept[0] if len(kept) == 1 else kind(*kept)
