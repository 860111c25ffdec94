"""What every coefficient in ``compiler/codegen/math/coefficients.py`` approximates, and the program that fits them.

    python -m tests.codegen.fitted_functions            fits everything (several minutes) and rewrites the file
    python -m tests.codegen.fitted_functions SINE ...   refits only the named tables and keeps the others

Variables follow the functions' code: ``r`` is a reduced argument, ``z`` the square of one. A ``tail`` is what is left
of a function after its leading terms, which the code adds exactly; it is fitted so that the error *of the whole
function* is smallest.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
import sys

from mpmath import mp, mpf
import mpmath

from ingot.compiler.codegen.math import coefficients
from tests.codegen.fit_polynomials import Problem, Solution, fit, nearest

DIGITS = 40
mp.dps = DIGITS
Function = Callable[[mpf], mpf]
SLACK = 1 + mpf(2) ** -12
"""Reduced arguments overshoot their interval slightly when the reduction itself rounds."""


@dataclass(frozen=True)
class Table:
    """One fitted quotient: ``name["f32"]`` in the generated file."""

    name: str
    form: str
    problem: Problem
    exact: dict[int, float] | None = None

    def fit(self) -> Solution:
        with mp.workdps(DIGITS):
            return fit(self.problem, int(self.form[1:]), self.exact)

    def entries(self) -> dict[str, tuple[float, ...]]:
        """Name of the generated constant -> coefficients, lowest power first."""
        solution = self.fit()
        top = tuple(float(solution.numerator[k]) for k in self.problem.numerator)
        print(f"{self.name} {self.form}: error 2^{float(mp.log(solution.error, 2)):.2f}", flush=True)
        if not self.problem.denominator:
            return {self.name: top}
        bottom = (1.0, *(float(solution.denominator[k]) for k in self.problem.denominator))
        return {f"{self.name}_NUMERATOR": top, f"{self.name}_DENOMINATOR": bottom}


def odd_tail(function: Function) -> tuple[Function, Function]:
    """(f(r) - r) / r^3 as a function of z = r^2, with the weight of a relative error of f."""
    root = mpmath.sqrt
    return (lambda z: (function(root(z)) - root(z)) / root(z) ** 3), (lambda z: root(z) ** 3 / abs(function(root(z))))


def odd_table(name: str, form: str, function: Function, limit: mpf, degree: int) -> Table:
    target, weight = odd_tail(function)
    return Table(name, form, Problem(target, 0, limit**2 * SLACK, range(degree + 1), weight=weight))


def exponential_tables() -> Sequence[Table]:
    half = mp.log(2) / 2 * SLACK
    tables = []
    for form, degree in (("f32", 4), ("f64", 10)):
        tail = Problem(
            lambda r: (mpmath.expm1(r) - r) / r**2,
            -half, half, range(degree + 1), weight=lambda r: r**2 / mpmath.exp(r),
        )
        tables.append(Table("EXPONENTIAL", form, tail))
    for form, degree in (("f32", 4), ("f64", 10)):
        tail = Problem(
            lambda r: (mpmath.expm1(r * mp.log(2)) - r * mp.log(2)) / r**2,
            -0.5, 0.5, range(degree + 1), weight=lambda r: r**2 / 2**r,
        )
        tables.append(Table("POWER_OF_TWO", form, tail))
    short = Problem(
        lambda r: mpmath.expm1(r * mp.log(2)) / r, -0.5, 0.5, range(5), weight=lambda r: abs(r) / 2**r
    )
    tables.append(Table("POWER_OF_TWO_SHORT", "f32", short))
    for form, degree, sine_degree in (("f32", 2, 2), ("f64", 6, 5)):
        tables.append(odd_table("HYPERBOLIC_SINE", form, mpmath.sinh, half, sine_degree))
        cosine = Problem(
            lambda z: 2 * mpmath.sinh(mpmath.sqrt(z) / 2) ** 2 / z,
            0, half**2, range(degree + 1), weight=lambda z: z,
        )
        tables.append(Table("HYPERBOLIC_COSINE", form, cosine))
    return tables


def logarithm_tables() -> Sequence[Table]:
    low, high = (mp.sqrt(0.5) - 1) * SLACK, (mp.sqrt(2) - 1) * SLACK
    cubic = Problem(
        lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3,
        low, high, range(8), weight=lambda f: abs(f**3 / mpmath.log1p(f)),
    )
    unit = Problem(
        lambda z: (mpmath.log1p(z) - z) / z**2, 0, 1, range(9), weight=lambda z: z * z / mpmath.log1p(z)
    )
    limit = high / (2 + high)
    root = mpmath.sqrt
    series = Problem(
        lambda z: 2 * (mpmath.atanh(root(z)) - root(z)) / root(z) ** 3,
        0, limit**2, range(7), weight=lambda z: root(z) ** 3 / mpmath.atanh(root(z)),
    )
    third = Problem(
        lambda z: 2 * (mpmath.atanh(root(z)) - root(z) - root(z) ** 3 / 3) / root(z) ** 5,
        0, limit**2, range(8), weight=lambda z: root(z) ** 5 / mpmath.atanh(root(z)),
    )
    softplus = Problem(
        lambda z: 2 * (mpmath.atanh(root(z)) - root(z)) / root(z) ** 3,
        0, mpf(1) / 9, range(11), weight=lambda z: root(z) ** 3 / mpmath.atanh(root(z)),
    )
    return [
        Table("LOGARITHM_CUBIC", "f32", cubic),
        Table("LOGARITHM_UNIT", "f32", unit),
        Table("LOGARITHM_UNIT", "f64", softplus),
        Table("LOGARITHM_SERIES", "f64", series),
        Table("LOGARITHM_FIFTH", "f64", third),
    ]


def trigonometric_tables() -> Sequence[Table]:
    eighth = mp.pi / 4 * SLACK
    target, weight = odd_tail(mpmath.tan)
    quotient = Problem(target, 0, eighth**2, range(4), range(1, 4), weight=weight)

    def cosine(degree: int) -> Problem:
        def rest(z: mpf) -> mpf:
            half_sine = mpmath.sin(mpmath.sqrt(z) / 2)
            return (z / 2 - 2 * half_sine**2) / z**2

        return Problem(rest, 0, eighth**2, range(degree + 1), weight=lambda z: z**2)

    return [
        odd_table("SINE", "f32", mpmath.sin, eighth, 2),
        odd_table("SINE", "f64", mpmath.sin, eighth, 5),
        Table("COSINE", "f32", cosine(2)),
        Table("COSINE", "f64", cosine(5)),
        odd_table("TANGENT", "f32", mpmath.tan, eighth, 6),
        Table("TANGENT", "f64", quotient),
        odd_table("ARC_SINE", "f32", mpmath.asin, mpf(1) / 2, 5),
        odd_table("ARC_SINE", "f64", mpmath.asin, mpf(1) / 2, 12),
        odd_table("ARC_TANGENT", "f32", mpmath.atan, mpf(1), 8),
        odd_table("ARC_TANGENT", "f64", mpmath.atan, mp.sqrt(2) - 1, 11),
    ]


GAUSSIAN_CENTRE = mpf("3.75")
"""erfcx is fitted in t = (a - centre) / (a + centre), which spreads its bend near zero over the interval."""


def scaled_complement(a: mpf) -> mpf:
    """exp(a^2) erfc(a), where neither factor need be a number that fits a machine."""
    with mp.workdps(2 * DIGITS):
        return mpmath.exp(a * a) * mpmath.erfc(a)


def error_function_tables() -> Sequence[Table]:
    root, centre = mpmath.sqrt, GAUSSIAN_CENTRE

    def flattened(t: mpf) -> mpf:
        a = centre * (1 + t) / (1 - t)
        return (1 + 2 * a) * scaled_complement(a)

    limit = mpf(28)
    tail = Problem(
        lambda t: flattened(t) - mpf(5) / 4,
        -1, (limit - centre) / (limit + centre), range(24), weight=lambda t: 1 / flattened(t), grid=400,
    )

    def small(degree: int) -> Problem:
        return Problem(
            lambda z: mpmath.erf(root(z)) / root(z) - 1,
            0, 1, range(degree + 1), weight=lambda z: root(z) / mpmath.erf(root(z)),
        )

    exponent = Problem(
        lambda a: mpmath.log(mpmath.erfc(a), 2), 1, 4, range(7), weight=lambda a: mpmath.erfc(a) / mpmath.erf(a)
    )
    density = mpf(nearest(1 / mp.sqrt(2 * mp.pi), 32))

    def mills(a: mpf) -> mpf:
        return a * scaled_complement(a / mp.sqrt(2)) / 2

    normal = Problem(
        lambda a: mills(a) - density,
        mpf("0.7"), mpf("14.6"), range(4), range(1, 6), weight=lambda a: 1 / mills(a), grid=400,
    )

    def near(limit: str, degree: int) -> Problem:
        return Problem(
            lambda z: mpmath.erf(root(z / 2)) / (2 * root(z)),
            0, mpf(limit) ** 2, range(degree + 1), weight=lambda z: root(z) / mpmath.erfc(root(z / 2)),
        )

    return [
        Table("NORMAL_NEAR", "f32", near("0.7", 4)),
        Table("NORMAL_NEAR", "f64", near("0.75", 10)),
        Table("ERROR_FUNCTION", "f32", small(6)),
        Table("ERROR_FUNCTION", "f64", small(12)),
        Table("ERROR_FUNCTION_EXPONENT", "f32", exponent),
        Table("NORMAL_TAIL", "f32", normal),
        Table("GAUSSIAN_TAIL", "f64", tail),
    ]


def root_tables() -> Sequence[Table]:
    low, high = (mp.sqrt(0.5) - 1) * SLACK, (mp.sqrt(2) - 1) * SLACK
    inverse = Problem(lambda f: mpmath.cbrt(1 + f) ** -1, low, high, range(6))
    return [Table("INVERSE_CUBE_ROOT", "f64", inverse)]


def all_tables() -> list[Table]:
    return [
        *exponential_tables(),
        *logarithm_tables(),
        *trigonometric_tables(),
        *error_function_tables(),
        *root_tables(),
    ]


HEADER = '"""Fitted coefficients, lowest power first, written by tests/codegen/fitted_functions.py: see there of what."""\n'


def render(values: dict[str, dict[str, tuple[float, ...]]]) -> str:
    lines = [HEADER]
    for name, forms in values.items():
        lines.append(f"{name}: dict[str, tuple[float, ...]] = {{")
        for form, numbers in sorted(forms.items()):
            lines.append(f'    "{form}": (')
            lines += [f"        {number!r}," for number in numbers]
            lines.append("    ),")
        lines.append("}\n")
    return "\n".join(lines)


def main(names: Sequence[str]) -> None:
    values: dict[str, dict[str, tuple[float, ...]]] = {
        name: dict(value) for name, value in vars(coefficients).items() if name.isupper()
    }
    for table in all_tables():
        if not names or table.name in names or f"{table.name}.{table.form}" in names:
            for name, numbers in table.entries().items():
                values.setdefault(name, {})[table.form] = numbers
    Path(coefficients.__file__).write_text(render(values))


if __name__ == "__main__":
    main(sys.argv[1:])
