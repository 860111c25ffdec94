"""Random kernels as plain loops, as parallel loops and as the schedule makes them, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compiler.codegen.abi import dims_of
from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import Function
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.target import Target
from tests.codegen.running import RUNNABLE, Native, guarded
from tests.ir.random_ir import VALUES, Random, as_loops, random_kernel


def variants(seed: int, target: Target) -> list[Function]:
    kernel = random_kernel(seed)
    made = {
        "plain": as_loops(kernel),
        "parallel": as_loops(kernel, "parallel"),
        "scheduled": schedule(kernel, target).function,
    }
    return [Function(f"k{seed}_{name}", f.parameters, f.body) for name, f in made.items()]


def compare(seeds: range, name: str) -> None:
    target = Target.named(name)
    functions = [(seed, function) for seed in seeds for function in variants(seed, target)]
    native = Native([function for _, function in functions], target)
    values = {symbol.name: value for symbol, value in VALUES.items()}
    for seed, function in functions:
        random = Random(seed)
        arrays = [random.array(buffer) for buffer in function.parameters]
        dims = {symbol.name: values[symbol.name] for symbol in dims_of(function)}
        expected, found = [a.copy() for a in arrays], [guarded(a) for a in arrays]
        run_function(function, expected, dims)
        assert native(function.name, *found, dims=list(dims.values())) is None
        for number, (a, b) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=f"{function.name} on {name}, parameter {number}")


@pytest.mark.parametrize("target", RUNNABLE)
def test_random_kernels(target: str) -> None:
    compare(range(20), target)


@pytest.mark.sweep
@pytest.mark.parametrize("start", range(1000, 2000, 100))
def test_many_random_kernels(start: int) -> None:
    compare(range(start, start + 100), "native")
