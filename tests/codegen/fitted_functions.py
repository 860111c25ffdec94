"""What every coefficient in ``compiler/codegen/math/coefficients.py`` approximates, and the program that fits them.

    python -m tests.codegen.fitted_functions            fits everything (minutes) and rewrites the file
    python -m tests.codegen.fitted_functions SINE ...   refits only the named tables and keeps the others

Variables follow the functions' code: ``r`` is a reduced argument, ``z`` the square of one. A tail is what is left of
a function after its leading terms, which the code adds exactly; the weight makes the error that of the whole function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpmath
from mpmath import mp, mpf

from ingot.compiler.codegen.math import coefficients
from tests.codegen.fit_polynomials import Problem, Solution, fit, nearest

DIGITS = 40
mp.dps = DIGITS
Function = Callable[[mpf], mpf]
SLACK = 1 + mpf(2) ** -12
"""Reduced arguments overshoot their interval slightly when the reduction itself rounds."""
HALF_LN_2 = mp.log(2) / 2 * SLACK
ROOT = mpmath.sqrt


@dataclass(frozen=True)
class Table:
    """One fitted quotient: ``name["f32"]`` in the generated file. Its weighted error stays below 2^-bits."""

    name: str
    form: str
    bits: int
    problem: Problem

    def fit(self) -> Solution:
        with mp.workdps(DIGITS):
            return fit(self.problem, int(self.form[1:]))

    def entries(self, solution: Solution) -> dict[str, tuple[float, ...]]:
        """Name of the generated constant -> coefficients, lowest power first."""
        top = tuple(float(solution.numerator[k]) for k in self.problem.numerator)
        if not self.problem.denominator:
            return {self.name: top}
        bottom = (1.0, *(float(solution.denominator[k]) for k in self.problem.denominator))
        return {f"{self.name}_NUMERATOR": top, f"{self.name}_DENOMINATOR": bottom}

    def stored(self) -> Solution:
        """The coefficients as they stand in the generated file."""

        def column(name: str) -> tuple[float, ...]:
            return getattr(coefficients, name)[self.form]

        if not self.problem.denominator:
            return Solution({k: mpf(c) for k, c in enumerate(column(self.name))})
        top, bottom = column(f"{self.name}_NUMERATOR"), column(f"{self.name}_DENOMINATOR")
        return Solution(
            {k: mpf(c) for k, c in enumerate(top)},
            {k: mpf(c) for k, c in enumerate(bottom) if k},
        )


def over(
    low: mpf | float, high: mpf | float, degree: int, target: Function, weight: Function | None = None, below: int = 0
) -> Problem:
    """``target`` on [low, high] by a polynomial, or by a quotient whose denominator has the degree ``below``."""
    grid = 24 * (degree + below + 2)  # two dozen points for every swing of the error
    return Problem(target, low, high, range(degree + 1), range(1, below + 1), weight, grid)


def odd(limit: mpf, degree: int, function: Function, below: int = 0) -> Problem:
    """(f(r) - r) / r^3 as a function of z = r^2, with the weight of a relative error of f."""

    def tail(z: mpf) -> mpf:
        return (function(ROOT(z)) - ROOT(z)) / ROOT(z) ** 3

    return over(0, limit**2 * SLACK, degree, tail, lambda z: ROOT(z) ** 3 / abs(function(ROOT(z))), below)


def exponential_tables() -> Sequence[Table]:
    def exponential(degree: int, limit: mpf = HALF_LN_2) -> Problem:
        return over(
            -limit, limit, degree,
            lambda r: (mpmath.expm1(r) - r) / r**2, lambda r: r**2 / mpmath.exp(r),
        )  # fmt: skip

    def power_of_two(r: mpf) -> mpf:
        return mpmath.expm1(r * mp.log(2))

    def power_tail(degree: int) -> Problem:
        return over(-0.5, 0.5, degree, lambda r: (power_of_two(r) - r * mp.log(2)) / r**2, lambda r: r**2 / 2**r)

    def cosine(degree: int) -> Problem:
        return over(0, HALF_LN_2**2, degree, lambda z: 2 * mpmath.sinh(ROOT(z) / 2) ** 2 / z, lambda z: z)

    short = over(-0.5, 0.5, 4, lambda r: power_of_two(r) / r, lambda r: abs(r) / 2**r)
    return [
        Table("EXPONENTIAL", "f32", 28, exponential(4)),
        Table("EXPONENTIAL", "f64", 58, exponential(10)),
        Table("EXPONENTIAL_EIGHTHS", "f32", 25, exponential(1, HALF_LN_2 / 8)),
        Table("EXPONENTIAL_SHORT", "f32", 29, exponential(1, HALF_LN_2 / 16)),
        Table("POWER_OF_TWO", "f32", 28, power_tail(4)),
        Table("POWER_OF_TWO", "f64", 58, power_tail(10)),
        Table("POWER_OF_TWO_SHORT", "f32", 23, short),
        Table("HYPERBOLIC_SINE", "f32", 34, odd(HALF_LN_2, 2, mpmath.sinh)),
        Table("HYPERBOLIC_SINE", "f64", 64, odd(HALF_LN_2, 5, mpmath.sinh)),
        Table("HYPERBOLIC_COSINE", "f32", 33, cosine(2)),
        Table("HYPERBOLIC_COSINE", "f64", 72, cosine(6)),
    ]


def logarithm_tables() -> Sequence[Table]:
    low, high = (mp.sqrt(0.5) - 1) * SLACK, (mp.sqrt(2) - 1) * SLACK

    def cubic(f: mpf) -> mpf:
        return (mpmath.log1p(f) - f + f * f / 2) / f**3

    def square(f: mpf) -> mpf:
        return (mpmath.log1p(f) - f) / f**2

    def unit(z: mpf) -> mpf:
        return (mpmath.log1p(z) - z) / z**2

    def series(limit: mpf, degree: int, terms: int) -> Problem:
        """2 atanh(s) less its first ``terms`` terms, divided by the power of s that comes next, in z = s^2."""
        power = 2 * terms + 1

        def tail(z: mpf) -> mpf:
            leading = sum(ROOT(z) ** k / k for k in range(1, power, 2))
            return 2 * (mpmath.atanh(ROOT(z)) - leading) / ROOT(z) ** power

        return over(0, limit**2, degree, tail, lambda z: ROOT(z) ** power / mpmath.atanh(ROOT(z)))

    reduced = high / (2 + high)
    short = over(-mpf(1) / 16, mpf(1) / 16, 3, square, lambda f: abs(f**2 / mpmath.log1p(f)))
    return [
        Table("LOGARITHM_CUBIC", "f32", 27, over(low, high, 7, cubic, lambda f: abs(f**3 / mpmath.log1p(f)))),
        Table("LOGARITHM_SHORT", "f32", 26, short),
        Table("LOGARITHM_UNIT", "f32", 27, over(0, 1, 8, unit, lambda z: z * z / mpmath.log1p(z))),
        Table("LOGARITHM_UNIT", "f64", 61, series(mpf(1) / 3, 10, 1)),
        Table("LOGARITHM_SERIES", "f64", 57, series(reduced, 6, 1)),
        Table("LOGARITHM_FIFTH", "f64", 71, series(reduced, 7, 2)),
    ]


def trigonometric_tables() -> Sequence[Table]:
    eighth = mp.pi / 4 * SLACK

    def cosine(degree: int) -> Problem:
        def tail(z: mpf) -> mpf:
            return (z / 2 - 2 * mpmath.sin(ROOT(z) / 2) ** 2) / z**2

        return over(0, eighth**2, degree, tail, lambda z: z**2)

    return [
        Table("SINE", "f32", 27, odd(eighth, 2, mpmath.sin)),
        Table("SINE", "f64", 57, odd(eighth, 5, mpmath.sin)),
        Table("COSINE", "f32", 32, cosine(2)),
        Table("COSINE", "f64", 63, cosine(5)),
        Table("TANGENT", "f32", 29, odd(eighth, 6, mpmath.tan)),
        Table("TANGENT", "f64", 60, odd(eighth, 3, mpmath.tan, below=3)),
        Table("ARC_SINE", "f32", 31, odd(mpf(1) / 2, 5, mpmath.asin)),
        Table("ARC_SINE", "f64", 58, odd(mpf(1) / 2, 12, mpmath.asin)),
        Table("ARC_TANGENT", "f32", 28, odd(mpf(1), 8, mpmath.atan)),
        Table("ARC_TANGENT", "f64", 61, odd(mp.sqrt(2) - 1, 11, mpmath.atan)),
    ]


def scaled_complement(a: mpf) -> mpf:
    """exp(a^2) erfc(a), where neither factor need be a number that fits a machine."""
    with mp.workdps(2 * DIGITS):
        return mpmath.exp(a * a) * mpmath.erfc(a)


def error_function_tables() -> Sequence[Table]:
    def small(degree: int) -> Problem:
        return over(
            0, 1, degree,
            lambda z: mpmath.erf(ROOT(z)) / ROOT(z) - 1, lambda z: ROOT(z) / mpmath.erf(ROOT(z)),
        )  # fmt: skip

    def near(limit: str, degree: int) -> Problem:
        return over(
            0, mpf(limit) ** 2, degree,
            lambda z: mpmath.erf(ROOT(z / 2)) / (2 * ROOT(z)), lambda z: ROOT(z) / mpmath.erfc(ROOT(z / 2)),
        )  # fmt: skip

    density = mpf(nearest(1 / mp.sqrt(2 * mp.pi), 32))

    def mills(a: mpf) -> mpf:
        return a * scaled_complement(a / mp.sqrt(2)) / 2

    # t = (a - centre) / (a + centre) spreads the bend of the function near zero over the interval.
    centre, limit = mpf("3.75"), mpf(28)

    def flattened(t: mpf) -> mpf:
        a = centre * (1 + t) / (1 - t)
        return (1 + 2 * a) * scaled_complement(a)

    last = (limit - centre) / (limit + centre)
    tail = over(-1, last, 23, lambda t: flattened(t) - mpf(5) / 4, lambda t: 1 / flattened(t))
    exponent = over(1, 4, 6, lambda a: mpmath.log(mpmath.erfc(a), 2), lambda a: mpmath.erfc(a) / mpmath.erf(a))
    normal = over(mpf("0.7"), mpf("14.6"), 3, lambda a: mills(a) - density, lambda a: 1 / mills(a), below=5)
    return [
        Table("ERROR_FUNCTION", "f32", 29, small(6)),
        Table("ERROR_FUNCTION", "f64", 56, small(12)),
        Table("ERROR_FUNCTION_EXPONENT", "f32", 29, exponent),
        Table("GAUSSIAN_TAIL", "f64", 55, tail),
        Table("NORMAL_TAIL", "f32", 27, normal),
        Table("NORMAL_NEAR", "f32", 29, near("0.7", 4)),
        Table("NORMAL_NEAR", "f64", 59, near("0.75", 10)),
    ]


def gamma_tables() -> Sequence[Table]:
    root = mpmath.findroot(mpmath.digamma, mpf("1.4616")) - 1

    def log_gamma(u: mpf) -> mpf:
        return mpmath.loggamma(1 + u) / (u * (u - 1))

    def digamma(u: mpf) -> mpf:
        return mpmath.digamma(1 + u) / (u - root)

    def quotient(target: Function, constant: str, high: str) -> Problem:
        """Without a constant from the middle of the function's range, which the code adds exactly."""
        return over(mpf("-0.25"), mpf(high), 7, lambda u: target(u) - mpf(constant), lambda u: 1 / target(u), below=7)

    def stirling(w: mpf) -> mpf:
        x = 1 / ROOT(w)
        with mp.workdps(2 * DIGITS):
            return x * (mpmath.loggamma(x) - (x - mpf(1) / 2) * mpmath.log(x) + x - mpmath.log(2 * mp.pi) / 2)

    def series(w: mpf) -> mpf:
        x = 1 / ROOT(w)
        with mp.workdps(2 * DIGITS):
            return x * x * (mpmath.log(x) - 1 / (2 * x) - mpmath.digamma(x))

    beyond = mpf(10) ** -9  # 1/x^2 of an x so large that only the leading term counts
    return [
        Table("LGAMMA", "f64", 55, quotient(log_gamma, "0.5", "1.25")),
        Table("STIRLING", "f64", 57, over(beyond, mpf("2.25") ** -2, 15, stirling, lambda w: mpf(1))),
        Table("DIGAMMA", "f64", 53, quotient(digamma, "0.75", "3")),
        Table("DIGAMMA_SERIES", "f64", 60, over(beyond, mpf(1) / 16, 9, series, lambda w: w)),
    ]


def root_tables() -> Sequence[Table]:
    low, high = (mp.sqrt(0.5) - 1) * SLACK, (mp.sqrt(2) - 1) * SLACK
    return [Table("INVERSE_CUBE_ROOT", "f64", 17, over(low, high, 5, lambda f: 1 / mpmath.cbrt(1 + f)))]


def all_tables() -> list[Table]:
    return [
        *exponential_tables(),
        *logarithm_tables(),
        *trigonometric_tables(),
        *error_function_tables(),
        *gamma_tables(),
        *root_tables(),
    ]


HEADER = (
    '"""Fitted coefficients, lowest power first, written by tests/codegen/fitted_functions.py: see there of what."""\n'
)


def render(values: dict[str, dict[str, tuple[float, ...]]]) -> str:
    lines = [HEADER]
    for name, forms in values.items():
        lines.append(f"{name}: dict[str, tuple[float, ...]] = {{")
        for form, numbers in sorted(forms.items()):
            lines.append(f'    "{form}": (')
            lines += [f"        {number!r}," for number in numbers]
            lines.append("    ),")
        lines.append("}")
    return "\n".join(lines) + "\n"


def main(names: Sequence[str]) -> None:
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for table in all_tables():
        solution = table.stored() if names and table.name not in names else table.fit()
        if solution.error:
            print(f"{table.name} {table.form}: error 2^{float(mp.log(solution.error, 2)):.2f}", flush=True)
        for name, numbers in table.entries(solution).items():
            values.setdefault(name, {})[table.form] = numbers
    Path(coefficients.__file__).write_text(render(values))


if __name__ == "__main__":
    main(sys.argv[1:])
