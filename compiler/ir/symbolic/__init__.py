"""Canonical integer expressions: tensor dims (`2*batch + 1`) and index arithmetic of loops (`16*i + j//4`).

What: a `Dim` is a Python int or an `Expr`. An `Expr` is a polynomial over atoms (symbols, loop variables,
floor divisions, remainders, minima, maxima, run-time integers), simplified with the bounds of its atoms.
Invariant: an `Expr` is immutable, never constant, and a lone atom is its own `Expr`, so `==` is structural.
Proofs answer True, False or None (undecided) and never guess; a simplification is exact for every assignment
that respects the bounds of the atoms.
Non-goal: a complete decision procedure. Every rule is bounded in depth and size, and what is not proven stays
as written.
"""

from ingot.compiler.ir.symbolic.division import ceildiv, left_over
from ingot.compiler.ir.symbolic.expression import (
    Atom,
    Compound,
    Dim,
    Expr,
    FloorDiv,
    Interval,
    Maximum,
    Minimum,
    Mod,
    Monomial,
    Opaque,
    Symbol,
    SymbolicValueError,
    TooManyTerms,
    Variable,
    as_dim,
    atoms,
    is_constant,
    opaques,
)
from ingot.compiler.ir.symbolic.extremum import maximum, minimum
from ingot.compiler.ir.symbolic.polynomial import product
from ingot.compiler.ir.symbolic.proofs import bounds, equal, is_nonnegative, less, less_equal
from ingot.compiler.ir.symbolic.rewrite import Substitution, align, evaluate, linear_coefficient, substitute, without
from ingot.compiler.ir.symbolic.text import parse, to_text

__all__ = [
    "Atom",
    "Compound",
    "Dim",
    "Expr",
    "FloorDiv",
    "Interval",
    "Maximum",
    "Minimum",
    "Mod",
    "Monomial",
    "Opaque",
    "Substitution",
    "Symbol",
    "SymbolicValueError",
    "TooManyTerms",
    "Variable",
    "align",
    "as_dim",
    "atoms",
    "bounds",
    "ceildiv",
    "equal",
    "evaluate",
    "is_constant",
    "is_nonnegative",
    "left_over",
    "less",
    "less_equal",
    "linear_coefficient",
    "maximum",
    "minimum",
    "opaques",
    "parse",
    "product",
    "substitute",
    "to_text",
    "without",
]
