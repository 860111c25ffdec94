"""Minimax polynomials and rational functions with machine-representable coefficients.

``minimax`` is Remez' exchange on a dense grid, in multiple precision; ``fit`` then rounds one coefficient after the
other to the working format and refits those that are left, so that later coefficients absorb the rounding errors of
earlier ones. ``fitted_functions.py`` says what is fitted for which function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import mpmath
import numpy as np
from mpmath import mp, mpf

Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Problem:
    """Approximate ``target`` on ``[low, high]`` by a quotient of polynomials with the given powers.

    The denominator always has constant term 1. ``weight`` multiplies the error; by default 1/|target|.
    """

    target: Function
    low: float
    high: float
    numerator: Sequence[int]
    denominator: Sequence[int] = ()
    weight: Function | None = None
    grid: int = 1000

    def thinned(self, grid: int) -> Problem:
        """The same problem looked at in fewer points."""
        return replace(self, grid=grid)


@dataclass(frozen=True)
class Samples:
    points: np.ndarray
    values: np.ndarray
    weights: np.ndarray


@dataclass
class Solution:
    numerator: dict[int, mpf]
    denominator: dict[int, mpf] = field(default_factory=dict)
    error: mpf = field(default_factory=mpf)


def sample(problem: Problem) -> Samples:
    """The target at points that crowd towards the ends of the interval, where the error oscillates fastest."""
    low, high = mpf(problem.low), mpf(problem.high)
    middle, radius = (low + high) / 2, (high - low) / 2
    points = [middle - radius * mpmath.cos(mp.pi * (i + mpf(1) / 2) / problem.grid) for i in range(problem.grid)]
    values = [problem.target(x) for x in points]
    weight = problem.weight
    weights = [1 / abs(v) if weight is None else weight(x) for x, v in zip(points, values, strict=True)]
    return Samples(np.array(points, object), np.array(values, object), np.array(weights, object))


def _evaluate(coefficients: Mapping[int, mpf], x: np.ndarray) -> np.ndarray:
    result = np.full(x.shape, mpf(0), object)
    for power in range(max(coefficients, default=0), -1, -1):
        result = result * x + coefficients.get(power, mpf(0))
    return result


def _quotient(solution: Solution, x: np.ndarray) -> np.ndarray:
    return _evaluate(solution.numerator, x) / _evaluate({0: mpf(1), **solution.denominator}, x)


def _solve(samples: Samples, chosen: Sequence[int], problem: Problem, fixed: Solution, guess: Solution) -> Solution:
    """The quotient whose weighted error alternates with equal size at the chosen points."""
    free_top = [k for k in problem.numerator if k not in fixed.numerator]
    free_bottom = [k for k in problem.denominator if k not in fixed.denominator]
    x, f, w = (a[list(chosen)] for a in (samples.points, samples.values, samples.weights))
    fixed_top = _evaluate(fixed.numerator, x)
    fixed_bottom = _evaluate({0: mpf(1), **fixed.denominator}, x)
    for _ in range(6 if free_bottom else 1):
        bottom = _evaluate({0: mpf(1), **guess.denominator}, x)
        size = len(chosen)
        matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
        for i in range(size):
            row = [x[i] ** k for k in free_top] + [-f[i] * x[i] ** k for k in free_bottom]
            row.append((-1) ** i * bottom[i] / w[i])
            for j, entry in enumerate(row):
                matrix[i, j] = entry
            right[i] = f[i] * fixed_bottom[i] - fixed_top[i]
        answer = list(mp.lu_solve(matrix, right))
        top = dict(zip(free_top, answer[: len(free_top)], strict=True)) | fixed.numerator
        below = dict(zip(free_bottom, answer[len(free_top) : -1], strict=True)) | fixed.denominator
        guess = Solution(top, below, abs(answer[-1]))
    return guess


def _extrema(error: np.ndarray, count: int) -> list[int]:
    """Indices of ``count`` alternating extrema of the error, the largest that can be had."""
    found: list[int] = []
    for i, value in enumerate(error):
        if found and (value > 0) == (error[found[-1]] > 0):
            if abs(value) > abs(error[found[-1]]):
                found[-1] = i
        else:
            found.append(i)
    while len(found) > count:
        if len(found) == count + 1:
            found.pop(0 if abs(error[found[0]]) < abs(error[found[-1]]) else -1)
        else:
            sizes = [min(abs(error[a]), abs(error[b])) for a, b in pairwise(found)]
            smallest = sizes.index(min(sizes))
            del found[smallest : smallest + 2]
    return found


def _weighted_error(solution: Solution, samples: Samples) -> np.ndarray:
    return (_quotient(solution, samples.points) - samples.values) * samples.weights


def worst_error(solution: Solution, samples: Samples) -> mpf:
    """The largest weighted error at the samples."""
    return max(abs(_weighted_error(solution, samples)))


def minimax(problem: Problem, samples: Samples, fixed: Solution) -> Solution:
    """Remez' exchange with some coefficients held fixed."""
    free = [k for k in problem.numerator if k not in fixed.numerator]
    free_bottom = [k for k in problem.denominator if k not in fixed.denominator]
    solution = Solution(dict(fixed.numerator), dict(fixed.denominator))
    count = len(free) + len(free_bottom) + 1
    if count > 1:
        grid = problem.grid
        chosen = [round(i * (grid - 1) / (count - 1)) for i in range(count)]  # the grid itself crowds at the ends
        best, best_error = solution, mpf("inf")
        for _ in range(30):
            solution = _solve(samples, chosen, problem, fixed, solution)
            error = _weighted_error(solution, samples)
            worst = max(abs(error))
            if worst < best_error:
                best, best_error = solution, worst
            extrema = _extrema(error, count)
            if len(extrema) < count or worst < solution.error * (1 + mpf(10) ** -4):
                break
            chosen = extrema
        solution = best
    return Solution(solution.numerator, solution.denominator, worst_error(solution, samples))


def nearest(number: mpf, bits: int) -> float:
    """``number`` rounded to the format with ``bits`` bits (no subnormals needed here)."""
    return float(np.float32(str(mp.nstr(number, 25)))) if bits == 32 else float(mp.nstr(number, 40))


def fit(problem: Problem, bits: int, given: Mapping[int, mpf] | None = None) -> Solution:
    """The best of two roundings: all coefficients at once, or one after the other from the constant term upwards,
    refitting the rest after each. Coefficients of the numerator that are given are rounded first.
    """
    samples = sample(problem)
    held_first = {power: mpf(nearest(number, bits)) for power, number in (given or {}).items()}
    ideal = minimax(problem, samples, Solution(dict(held_first)))
    at_once = Solution(
        {k: mpf(nearest(v, bits)) for k, v in ideal.numerator.items()},
        {k: mpf(nearest(v, bits)) for k, v in ideal.denominator.items()},
    )
    at_once.error = worst_error(at_once, samples)
    in_turn = Solution(dict(held_first))
    for power in sorted({*problem.numerator, *problem.denominator}):
        for powers, held, top in (
            (problem.numerator, in_turn.numerator, True),
            (problem.denominator, in_turn.denominator, False),
        ):
            if power in powers and power not in held:
                best = minimax(problem, samples, in_turn)
                held[power] = mpf(nearest((best.numerator if top else best.denominator)[power], bits))
    in_turn.error = worst_error(in_turn, samples)
    return min(at_once, in_turn, key=lambda solution: solution.error)
