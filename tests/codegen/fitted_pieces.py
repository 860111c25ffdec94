"""What the tables in ``compiler/codegen/math/pieces.py`` hold, and the program that fits them.

    python -m tests.codegen.fitted_pieces             fits everything (minutes) and rewrites the file
    python -m tests.codegen.fitted_pieces TANH ...    refits only the named tables and keeps the others

A function of a >= 0 is cut where ``a + offset`` changes one of its leading fraction bits, so pieces become longer with a;
each is a polynomial in the distance from the piece's lower end. The first piece is a multiple of a, so that results near
zero are accurate too. A table has a row for every power and a column for every piece, at the place that the bits of
``a + offset`` give.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpmath
from mpmath import mp, mpf

from ingot.compiler.codegen.math import pieces
from tests.codegen.fit_polynomials import Problem, Solution, fit, nearest, sample, worst_error
from tests.codegen.fitted_functions import DIGITS, scaled_complement

mp.dps = DIGITS
GRID = 80


@dataclass(frozen=True)
class Pieces:
    """``name`` in the generated file: polynomials of a degree, whose relative error stays below 2^-bits."""

    name: str
    function: Callable[[mpf], mpf]
    degree: int
    bits: float  # of the constant term 24 are there, so rounding it is most of the error

    @property
    def slope(self) -> mpf:
        """The function's at zero. It is rounded; the rest of the first piece is fitted to it from a sixteenth on."""
        return self.function(mpf(10) ** -12) * 10**12

    @property
    def cut(self) -> pieces.Cut:
        return pieces.CUTS[self.name]

    def problem(self, number: int, grid: int = GRID) -> Problem:
        """The polynomial of one piece; of the first without its factor a."""
        low, high = (mpf(edge) for edge in self.cut.edges[number : number + 2])
        if number == 0:
            return Problem(lambda a: self.function(a) / a, high / 16, high, range(self.degree), grid=grid)
        width = high - low
        return Problem(lambda t: self.function(low + t), mpf(0), width, range(self.degree + 1), grid=grid)

    def fit(self) -> list[tuple[float, ...]]:
        """A row for every power, a column for every place."""
        columns: dict[int, list[float]] = {}
        for number, place in enumerate(self.cut.places):
            solution = fit(self.problem(number), 32, {0: self.slope} if number == 0 else {})
            found = [float(solution.numerator[k]) for k in sorted(solution.numerator)]
            columns[place] = [0.0, *found] if number == 0 else found
        return [tuple(columns[place][power] for place in range(pieces.COUNT)) for power in range(self.degree + 1)]

    def errors(self, grid: int) -> list[mpf]:
        """The largest relative error of each piece as it is stored."""
        rows = getattr(pieces, self.name)
        result = []
        for number, place in enumerate(self.cut.places):
            column = [mpf(row[place]) for row in rows][number == 0 :]
            result.append(worst_error(Solution(dict(enumerate(column))), sample(self.problem(number, grid))))
        return result


def normal_tail(a: mpf) -> mpf:
    """a Phi(-a) exp(a^2 / 2), with Phi the normal distribution function."""
    return a * scaled_complement(a / mp.sqrt(2)) / 2


TABLES = (
    Pieces("TANH", mpmath.tanh, 4, 24.5),
    Pieces("ERROR_FUNCTION", mpmath.erf, 4, 24.5),
    Pieces("NORMAL_TAIL", normal_tail, 5, 24.5),
)


def roots_of_two() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """2^(k/16) for k = 0 ... 15, and what rounding leaves of it."""
    exact = [mpf(2) ** (mpf(k) / 16) for k in range(16)]
    rounded = [nearest(root, 32) for root in exact]
    return tuple(rounded), tuple(nearest(a - b, 32) for a, b in zip(exact, rounded, strict=True))


def logarithm_columns() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """For numbers m from 3/4 to 3/2, by their leading bits: c near 1/m, and -log c, of which nothing is lost beyond 2^-15.

    Such c are rare, but any c will do that is near enough. Up to a sixteenth from 1, c is 1: results are small there.
    """
    factors, logarithms = [1.0] * pieces.COUNT, [0.0] * pieces.COUNT
    for place in range(pieces.COUNT):
        bits = (0x3F800000 if place < pieces.COUNT // 2 else 0x3F000000) + (place << 18)
        low, high = (struct.unpack("<f", struct.pack("<I", b))[0] for b in (bits, bits + (1 << 18)))
        if abs((low + high) / 2 - 1.0) < 1 / 16:
            continue
        wanted = round(float(mpmath.log((low + high) / 2)) * 2**15)
        found = []
        for step in range(wanted - 64, wanted + 65):
            logarithm = mpf(step) / 2**15
            factor = nearest(mpmath.exp(-logarithm), 32)
            found.append((abs(mpmath.log(factor) + logarithm), factor, float(logarithm)))
        _, factors[place], logarithms[place] = min(found)
    return tuple(factors), tuple(logarithms)


def render(values: dict[str, Sequence[tuple[float, ...]]]) -> str:
    kept, _, _ = Path(pieces.__file__).read_text().partition(f"{next(iter(values))}: ")
    lines = [kept.removesuffix("\n")]
    for name, rows in values.items():
        lines.append(f"{name}: tuple[tuple[float, ...], ...] = (")
        for row in rows:
            lines.append("    (")
            lines += [f"        {number!r}," for number in row]
            lines.append("    ),")
        lines.append(")")
    return "\n".join(lines) + "\n"


def main(names: Sequence[str]) -> None:
    values: dict[str, Sequence[tuple[float, ...]]] = {
        "ROOTS_OF_TWO": roots_of_two(),
        "LOGARITHM": logarithm_columns(),
    }
    for table in TABLES:
        values[table.name] = table.fit() if not names or table.name in names else getattr(pieces, table.name)
    Path(pieces.__file__).write_text(render(values))
    for table in TABLES:
        if not names or table.name in names:
            print(table.name, "fitted", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
