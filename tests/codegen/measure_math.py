"""Measure the elementary functions: largest errors found, and time an element.

    python -m tests.codegen.measure_math [names ...] [--stride N]

Errors of f32 functions are over every N-th bit pattern, those of f64 functions over as many random numbers as fit the
same time; times are of one core working in its first-level cache, for arguments from -4 to 4 (or 0.1 to 4).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from ingot.compiler.codegen import math
from tests.codegen.math_harness import (
    BASELINE,
    DTYPES,
    FUSED,
    NUMPY,
    arity,
    kernel,
    random_values,
    raw_kernel,
    ulp_errors,
)

CHUNK = 2**20
POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt", "acosh", "lgamma", "digamma", "pow")


def worst_f32(name: str, target: math.MathTarget, stride: int) -> float:
    worst = 0.0
    for start in range(0, 2**32, CHUNK * stride):
        bits = np.arange(start, min(start + CHUNK * stride, 2**32), stride, dtype=np.uint64)
        x = bits.astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            exact = NUMPY[name](wide) if name in NUMPY else kernel(name, "f64", 4)(wide)
        worst = max(worst, float(ulp_errors(kernel(name, "f32", 8, target)(x), exact).max()))
    return worst


def worst_f64(name: str, target: math.MathTarget, rounds: int) -> float:
    worst = 0.0
    for seed in range(rounds):
        arguments = [random_values("f64", CHUNK // 8, 100 + seed + 1000 * k) for k in range(arity(name))]
        with np.errstate(all="ignore"):
            exact = NUMPY[name](*(argument.astype(np.longdouble) for argument in arguments))
        worst = max(worst, float(ulp_errors(kernel(name, "f64", 4, target)(*arguments), exact).max()))
    return worst


def nanoseconds(name: str, form: str, elements: int = 2048) -> float:
    low = 0.1 if name in POSITIVE else -4.0
    high = 1.0 if name in ("asin", "acos", "atanh") else 4.0
    generator = np.random.default_rng(0)
    low = max(low, -high)
    arrays = [generator.uniform(low, high, elements).astype(DTYPES[form]) for _ in range(arity(name))]
    output = np.empty_like(arrays[0])
    run = raw_kernel(name, form, 8 if form == "f32" else 4, FUSED)
    pointers = [array.ctypes.data for array in (*arrays, output)]

    def best(count: int) -> float:
        times = []
        for _ in range(120):
            start = time.perf_counter()
            for _ in range(20):
                run(*pointers, count)
            times.append(time.perf_counter() - start)
        return min(times) / 20

    return (best(elements) - best(16)) / (elements - 16) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="largest errors and times of the elementary functions")
    parser.add_argument("names", nargs="*", default=[*math.UNARY, *math.BINARY])
    parser.add_argument("--stride", type=int, default=127)
    options = parser.parse_args()
    for name in options.names:
        line = f"{name:13}"
        for target in (FUSED, BASELINE):
            if arity(name) == 1:
                line += f" f32 {worst_f32(name, target, options.stride):6.3f}"
            if name in NUMPY:
                line += f" f64 {worst_f64(name, target, max(1, 2000 // options.stride)):6.3f}"
        line += f"   {nanoseconds(name, 'f32'):6.2f} {nanoseconds(name, 'f64'):6.2f} ns"
        print(line, flush=True)


if __name__ == "__main__":
    main()
