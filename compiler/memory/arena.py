"""The arena of a program with symbolic sizes: offsets as expressions of the dims, fixed at compile time.

Every size is a whole number times a polynomial of the dims that has no common factor (`4096*batch` is 4096
times `batch`). Buffers whose polynomials are equal grow together, so each such class is planned by itself
with plain integers (offsets.py) and scaled; classes stand one after another. A program without symbolic dims
has the one class `1`, and its plan is exact. No plan is made at run time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ingot.compiler.ir.symbolic import Dim, Expr, to_text
from ingot.compiler.memory.offsets import Interval, Placement, plan


@dataclass(frozen=True)
class Request:
    """Bytes wanted from step `start` to step `end`, both included."""

    key: Hashable
    size: Dim
    start: int
    end: int


@dataclass(frozen=True)
class Arena:
    offsets: dict[Hashable, Dim]
    total: Dim
    placements: dict[str, Placement]  # by the class's polynomial, for the report
    requests: tuple[Request, ...] = ()


def primitive_part(size: Dim) -> tuple[int, Dim]:
    """size = content * part, with the coefficients of part having no common factor."""
    if isinstance(size, int):
        return size, 1
    coefficients = [c for _, c in size.terms] + ([size.constant] if size.constant else [])
    content = math.gcd(*coefficients)
    part: Dim = size.constant // content
    for monomial, coefficient in size.terms:
        term: Dim = coefficient // content
        for atom, power in monomial:
            for _ in range(power):
                term = term * atom
        part = part + term
    return content, part


def plan_arena(requests: Sequence[Request]) -> Arena:
    classes: dict[Dim, list[Interval]] = {}
    for request in requests:
        content, part = primitive_part(request.size)
        if content:
            classes.setdefault(part, []).append(Interval(request.key, content, request.start, request.end))
    offsets: dict[Hashable, Dim] = {r.key: 0 for r in requests}
    placements: dict[str, Placement] = {}
    base: Dim = 0
    for part in sorted(classes, key=lambda p: (isinstance(p, Expr), to_text(p))):
        placed = plan(classes[part])
        placements[to_text(part)] = placed
        for key, offset in placed.offsets.items():
            offsets[key] = base + part * offset
        base = base + part * placed.total
    return Arena(offsets, base, placements, tuple(requests))
