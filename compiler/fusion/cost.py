"""What is worth computing together: preferences, as named numbers.

Weights are in units of one cheap vector instruction per element. The limits bound code size and the
work that is done twice; measured choices belong here, with the measurement in the comment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Op

ASSUMED_DIM = 64  # what an unbounded symbolic dim is taken to be when sizes are compared


@dataclass(frozen=True)
class FusionLimits:
    inline_weight: int = 48  # arithmetic in one inlined expression
    inline_loads: int = 12  # memory streams of one expression
    inline_depth: int = 64  # operations one inside of another in one expression, those that only move elements too
    place_depth: int = 16  # what an op that finds the places it reads counts for: an index holds the one before several times
    kernel_depth: int = 192  # the same through the definitions of a kernel: what looks at them goes as deep as they are
    index_weight: int = 4  # arithmetic on indices alone that is done for each element rather than stored and read
    duplicate_weight: int = 1  # an expression cheaper than this is recomputed for each reader
    repeat_weight: int = 6  # the same of one that reads a single tensor: storing it would be a second one to read
    again_weight: int = 20  # what late readers compute again instead of keeping it: a tanh and a few operations
    again_products: int = 80  # the same behind a product: its terms, an exponential and a few operations
    again_growth: int = 4  # times larger than its operands is a product that is computed again
    block_growth: int = 2  # times larger than its operands is a product that is only computed in blocks of rows
    again_stored: bool = False  # also what late readers need in memory: one more pass over it
    kernel_definitions: int = 12  # definitions in one kernel: live registers and code size
    horizontal_definitions: int = 48  # independent updates in one kernel: one pass over memory, no shared values
    horizontal_bytes: int = 1 << 17  # of an update that is done together with others
    serial_row_elements: int = 1 << 16  # rows longer than this want parallelism inside the row

THRIFTY = FusionLimits(again_weight=48, again_stored=True)  # for programs that must fit into less memory


def weight(value: Value) -> int:
    """Arithmetic per element of one op."""
    op = value.op
    assert isinstance(op, Op)
    if op.movement:
        return 0
    return 1 if op.cheap else 8


def estimate(dim: Dim) -> int:
    """A number to compare sizes with; unbounded symbolic dims count as ASSUMED_DIM."""
    if isinstance(dim, int):
        return dim
    env = {}
    for atom in symbolic.atoms(dim):
        lower, upper = symbolic.bounds(atom)
        env[atom] = min(upper, ASSUMED_DIM) if upper is not None else max(lower or 0, ASSUMED_DIM)
    try:
        return symbolic.evaluate(dim, env)
    except ZeroDivisionError:  # by the difference of two dims, which are taken to be the same
        return ASSUMED_DIM


def outgrows(size: Dim, parts: Sequence[Dim], times: int) -> bool:
    """Whether something is so many times larger than its parts together, or becomes so as free sizes grow."""
    return has_more_free_sizes(size, parts) or estimate(size) >= times * sum(map(estimate, parts))


def has_more_free_sizes(size: Dim, parts: Sequence[Dim]) -> bool:
    """Whether something is a product of more free sizes than any of its parts: it becomes larger without bound."""
    return _degree(size) > max(map(_degree, parts), default=0)


def _degree(size: Dim) -> int:
    if isinstance(size, int):
        return 0
    powers = (sum(p for atom, p in monomial if symbolic.bounds(atom)[1] is None) for monomial, _ in size.terms)
    return max(powers, default=0)
