"""Weight gradients of few channels: tiles of vectors along rows of pixels, any sizes, and the same bits for any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.interpret import run_kernel
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.types import f32, f64
from ingot.compiler.ops.convolution import ConvolutionWeightGradient, convolve
from ingot.compiler.schedule import schedule
from ingot.compiler.schedule.recipes import dots
from ingot.compiler.target import Target
from tests.codegen.running import RUNNABLE, Native, guarded
from tests.schedule.harness import Dims, assert_close, check, inputs_of, unset
from tests.schedule.test_windows import kernel_of

n = Symbol("n")
V4 = Target.named("x86-64-v4")


def gradient(batch: Any, channels: int, outputs: int, size: tuple[int, ...], taps: int, padding: int, stride: int = 1, dtype=f32):
    rank = len(size)
    op = ConvolutionWeightGradient(
        (stride,) * rank, ((padding, padding),) * rank, (1,) * rank, 1, "channels_first", taps=(taps,) * rank
    )
    counts = [(s + 2 * padding - taps) // stride + 1 for s in size]
    return kernel_of(op, dtype[batch, channels, *size], dtype[batch, outputs, *counts])


CASES: list[tuple[Kernel, Dims]] = [
    (gradient(3, 1, 6, (9, 28), 5, 2), {}),
    (gradient(n, 1, 6, (9, 28), 5, 2), {n: 4}),
    (gradient(2, 3, 7, (5, 17), 3, 1), {}),
    (gradient(2, 2, 3, (4, 40), 3, 0), {}),
    (gradient(2, 1, 2, (3, 31), 3, 1, dtype=f64), {}),
    (gradient(1, 1, 5, (8, 16), 3, 1), {}),
    (gradient(2, 3, 4, (50,), 5, 2), {}),
]


@pytest.mark.parametrize(("kernel", "dims"), CASES, ids=range(len(CASES)))
def test_loops_compute_the_gradient(kernel, dims):
    scheduled = check(kernel, dims, recipe="dots", target=V4)
    assert scheduled.decisions["rows"] * (scheduled.decisions["columns"] + 1) < V4.vector_registers


@pytest.mark.parametrize(("kernel", "dims"), CASES, ids=range(len(CASES)))
def test_long_sums_are_cut(kernel, dims, monkeypatch):
    monkeypatch.setattr(dots, "CHAIN", 2)
    check(kernel, dims, recipe="dots", target=V4)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize(("kernel", "dims"), CASES[:6], ids=range(6))
def test_native_code_touches_nothing_else(kernel, dims, target):
    """Whichever recipe the target prefers."""
    machine = Target.named(target)
    scheduled = schedule(kernel, machine)
    inputs = inputs_of(kernel, dims)
    made = (*inputs, *unset(kernel.outputs, dims), *unset(scheduled.scratch, dims))
    arrays = [guarded(array) for array in made]
    native = Native([scheduled.function], machine)
    assert native(kernel.name, *arrays, dims=list(dims.values())) is None
    outputs = arrays[len(inputs) : len(inputs) + len(kernel.outputs)]
    assert_close(outputs, run_kernel(kernel, inputs, dims), kernel)


def test_columns_that_fill_vectors_are_left_to_products():
    assert schedule(gradient(2, 3, 4, (8, 28), 16, 8), V4).recipe == "contraction"
    assert schedule(gradient(2, 3, 4, (8, 4), 3, 1), V4).recipe != "dots"


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_bits_are_those_of_a_program_for_any_batch(batch, rng):
    def loss(w, x):
        return (convolve(x, w, padding=2) ** 2).sum()

    def program(size):
        return ingot.compile(ingot.grad(loss), f32[6, 1, 5, 5], f32[size, 1, 12, 28], threads=1)

    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 1, 5, 5), (batch, 1, 12, 28)))
    np.testing.assert_array_equal(program(batch)(w, x), program("n")(w, x))
