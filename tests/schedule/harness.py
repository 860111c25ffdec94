"""Scheduled kernels against what the kernels mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_function, run_kernel
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.verify import verify_function
from ingot.compiler.schedule import Scheduled, ScheduleOptions, schedule
from ingot.compiler.target import Target

# A family, not the host: what is tested does not depend on the machine that tests it.
TARGET = Target.named("x86-64-v3")
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}

Dims = Mapping[Symbol, int]


def shape_of(buffer: Buffer, dims: Dims) -> tuple[int, ...]:
    return tuple(symbolic.evaluate(dim, dims) for dim in buffer.shape)


def inputs_of(kernel: Kernel, dims: Dims, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer in kernel.inputs:
        shape = shape_of(buffer, dims)
        random = rng.uniform(-1, 1, shape) if buffer.dtype.is_float else rng.integers(0, 3, shape)
        arrays.append(np.asarray(random).astype(buffer.dtype.numpy))
    return arrays


def unset(buffers: Sequence[Buffer], dims: Dims) -> list[np.ndarray]:
    """Memory with values that show when they are read: NaN, or all bits set."""
    arrays = []
    for buffer in buffers:
        array = np.empty(shape_of(buffer, dims), buffer.dtype.numpy)
        array.reshape(-1).view(np.uint8)[...] = 1 if buffer.dtype.kind == "bool" else 0xFF
        arrays.append(array)
    return arrays


def run(scheduled: Scheduled, kernel: Kernel, inputs: Sequence[np.ndarray], dims: Dims) -> list[np.ndarray]:
    """The outputs of the scheduled kernel, parallel iterations in a shuffled order."""
    outputs = unset(kernel.outputs, dims)
    scratch = unset(scheduled.scratch, dims)
    copies = [array.copy() for array in inputs]
    run_function(scheduled.function, [*copies, *outputs, *scratch], dims, parallel_order="shuffled", seed=1)
    return outputs


def assert_close(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], kernel: Kernel) -> None:
    for buffer, a, b in zip(kernel.outputs, found, wanted, strict=True):
        if not buffer.dtype.is_float:
            np.testing.assert_array_equal(a, b, err_msg=repr(buffer))
            continue
        coarsest = max(TOLERANCE[x.dtype.name] for x in (buffer, *kernel.inputs) if x.dtype.is_float)
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=coarsest, atol=coarsest, err_msg=repr(buffer)
        )


def check(
    kernel: Kernel,
    dims: Dims | None = None,
    recipe: str | None = None,
    decisions: Mapping[str, object] | None = None,
    target: Target = TARGET,
) -> Scheduled:
    """Schedule, verify, run, compare; the schedule is returned for further questions."""
    dims = dims or {}
    scheduled = schedule(kernel, target, ScheduleOptions(recipe=recipe, decisions=decisions or {}))
    assert scheduled.function.parameters == (*kernel.inputs, *kernel.outputs, *scheduled.scratch)
    verify_function(scheduled.function)
    inputs = inputs_of(kernel, dims)
    assert_close(run(scheduled, kernel, inputs, dims), run_kernel(kernel, inputs, dims), kernel)
    return scheduled
