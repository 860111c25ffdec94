"""Windows: depthwise convolutions and pools of odd sizes, with padding at every edge, in any blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.compiler.fusion.legality import extract_reductions
from ingot.compiler.ir import loops
from ingot.compiler.ir.interpret import run_kernel
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import BufferReader, Definition, Kernel, axes
from ingot.compiler.ir.types import TensorType, f16, f32, f64, i32
from ingot.compiler.ops.average_pooling import AveragePool, AveragePoolGradient
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.convolution import Convolution
from ingot.compiler.ops.pooling import MaxPool, MaxPoolGradient, MaxPoolIndex, MaxPoolSelect
from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.target import Target
from tests.codegen.running import RUNNABLE, Native, guarded
from tests.schedule.harness import TARGET, Dims, assert_close, check, inputs_of, run, unset

n = Symbol("n")


def kernel_of(op: Op, *types: TensorType) -> Kernel:
    inputs = tuple(Buffer(f"x{k}", t.dtype, t.shape) for k, t in enumerate(types))
    made = op.infer(*types)
    assert isinstance(made, TensorType)
    y = Buffer("y", made.dtype, made.shape)
    index = axes(y.shape)
    definition = Definition(y, index, op.lower(made, index, *map(BufferReader, inputs)))
    return Kernel(op.name, inputs, (y,), extract_reductions(definition, "sums"))


def depthwise(batch: Any, size: Any, channels: int, taps: Any, stride: int, padding: Any, dilation: int = 1, dtype=f32):
    sizes, taps = np.broadcast_to(size, 2).tolist(), np.broadcast_to(taps, 2).tolist()
    op = Convolution((stride,) * 2, padding, (dilation,) * 2, channels, "channels_last")
    return kernel_of(op, dtype[batch, *sizes, channels], dtype[*taps, 1, channels])


def pool(kind: type[Op], batch: Any, size: int, channels: int, window: int, stride: int, padding: Any, dtype=f32):
    fields = {"window": (window,) * 2, "strides": (stride,) * 2, "padding": padding, "dilation": (1, 1)}
    fields["layout"] = "channels_last"
    x = dtype[batch, size, size, channels]
    y = MaxPool(**fields).infer(x)
    gradient = kind in (MaxPoolGradient, AveragePoolGradient)
    op = kind(**fields, shape=(size, size)) if gradient else kind(**fields)
    first = y if gradient else x
    second = {MaxPoolIndex: (y,), MaxPoolGradient: (y.with_dtype(i32),), MaxPoolSelect: (y.with_dtype(i32),)}
    return kernel_of(op, first, *second.get(kind, ()))


NONE, ONE = ((0, 0), (0, 0)), ((1, 1), (1, 1))
CASES: list[tuple[Kernel, Dims]] = [
    (depthwise(2, 7, 11, 3, 1, ONE), {}),
    (depthwise(1, (9, 21), 8, 3, 1, ONE), {}),
    (depthwise(n, 10, 17, 3, 2, ONE), {n: 3}),
    (depthwise(1, (5, 37), 5, (5, 4), 1, ((2, 2), (1, 3))), {}),
    (depthwise(1, 13, 16, 3, 3, ((0, 2), (2, 0))), {}),
    (depthwise(1, 12, 9, 3, 1, ((2, 2), (2, 2)), dilation=2), {}),
    (depthwise(1, 3, 4, 7, 1, ((3, 3), (3, 3))), {}),
    (depthwise(1, 6, 4, 3, 1, ((-1, 0), (0, -2))), {}),
    (depthwise(1, 20, 6, 3, 1, ONE, dtype=f64), {}),
    (pool(MaxPool, n, 13, 24, 3, 2, ONE), {n: 2}),
    (pool(MaxPool, 1, 9, 6, 2, 2, ((0, 1), (1, 0))), {}),
    (pool(MaxPool, 1, 4, 3, 3, 1, ((2, 2), (2, 2))), {}),
    (pool(MaxPool, 1, 8, 10, 2, 2, NONE, dtype=f16), {}),
    (pool(MaxPoolIndex, 1, 9, 12, 3, 2, ONE), {}),
    (pool(MaxPoolSelect, 2, 9, 12, 3, 2, ONE), {}),
    (pool(MaxPoolGradient, 1, 12, 9, 3, 2, ONE), {}),
    (pool(MaxPoolGradient, 1, 7, 9, 3, 1, ONE), {}),
    (pool(AveragePool, n, 11, 20, 3, 2, ONE), {n: 2}),
    (pool(AveragePoolGradient, 1, 11, 20, 3, 2, ONE), {}),
]  # fmt: skip
IDS = [f"{number}-{kernel.name}" for number, (kernel, _) in enumerate(CASES)]


@pytest.mark.parametrize(("kernel", "dims"), CASES, ids=IDS)
def test_the_recipe_computes_the_kernel(kernel: Kernel, dims: Dims):
    assert check(kernel, dims).recipe == "windows"


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v4", "aarch64"])
def test_other_machines_get_other_blocks(target: str):
    for kernel, dims in CASES[:4]:
        check(kernel, dims, target=Target.named(target))


@pytest.mark.parametrize(("kernel", "dims"), CASES[:4], ids=IDS[:4])
def test_every_choice_of_blocks_gives_the_same_bits(kernel: Kernel, dims: Dims):
    inputs = inputs_of(kernel, dims)
    choices = [{}, {"pixels": 1}, {"pixels": 3, "vectors": 2}, {"pixels": 2, "vectors": 1, "width": 4}]
    choices += [{"group": 8, "vectors": 1}, {"group": 3, "vectors": 1}]
    choices += [{"pixels": 2, "strip": 1}, {"pixels": 2, "strip": 3}, {"pixels": 3, "strip": 100}]
    results = [
        run(schedule(kernel, TARGET, ScheduleOptions(recipe="windows", decisions=c)), kernel, inputs, dims)[0]
        for c in choices
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_taps_in_the_padding_are_not_computed():
    """A block at an edge has no choice in it, and the loop across the axis is shorter there."""
    scheduled = schedule(depthwise(1, 28, 8, 3, 1, ONE), TARGET)
    assert not any(isinstance(s, loops.If) for s in loops.walk(scheduled.function.body))
    kept = [s for s in loops.walk(scheduled.function.body) if isinstance(s, loops.For) and s.kind == "serial"]
    assert any(not isinstance(loop.extent, int) for loop in kept)


def test_a_product_of_matrices_is_none_of_these():
    op = Convolution((1, 1), ONE, (1, 1), 1, "channels_last")
    assert schedule(kernel_of(op, f32[1, 9, 9, 16], f32[3, 3, 16, 16]), TARGET).recipe == "contraction"


@pytest.fixture(scope="module")
def native() -> dict[str, Native]:
    made = {}
    for target in RUNNABLE:
        scheduled = [schedule(kernel, Target.named(target)) for kernel, _ in CASES]
        functions = [loops.Function(f"k{i}", s.function.parameters, s.function.body) for i, s in enumerate(scheduled)]
        made[target] = Native(functions, Target.named(target))
    return made


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_native_code_stays_within_its_memory(native, number: int, target: str):
    kernel, dims = CASES[number]
    inputs = inputs_of(kernel, dims)
    arrays = [guarded(array) for array in (*inputs, *unset(kernel.outputs, dims))]
    values = [dims[n]] if dims else []
    assert native[target](f"k{number}", *arrays, dims=values) is None
    assert_close(arrays[len(inputs) :], run_kernel(kernel, inputs, dims), kernel)


def test_rows_that_windows_read_stay_in_half_of_the_first_cache():
    """Results are gone through in strips, row by row, and a few channels at a time where even a block of all is too much."""
    target = Target.named("x86-64-v4")

    def near(size: int, channels: int, taps: int, stride: int = 1) -> tuple[object, ...]:
        border = (taps // 2, taps // 2)
        decisions = schedule(depthwise(1, size, channels, taps, stride, (border, border)), target).decisions
        return tuple(decisions[name] for name in ("pixels", "group", "strip"))

    assert near(90, 32, 3) == (8, 32, 5)  # 3 rows of 42 pixels
    assert near(112, 32, 3) == (8, 32, 14)  # too large for the second cache, and rows nearly fit into the first: whole lines
    assert near(28, 144, 3) == (7, 144, 1)  # 3 rows of 9 pixels
    assert near(14, 576, 3) == (7, 144, 1)  # a quarter of the channels
    assert near(28, 120, 5) == (7, 64, 1)
    assert near(14, 16, 3) == (7, 16, 2)  # all of a line
    assert near(56, 576, 3) == (8, 576, 1)  # too large for the second cache: all channels, in order


@pytest.mark.parametrize(("stride", "dilation", "pixels", "rows"), [(1, 1, 9, 1), (2, 1, 15, 2), (1, 2, 11, 1), (3, 2, 21, 2)])
def test_the_next_channels_of_rows_that_are_new_are_asked_for(stride, dilation, pixels, rows):
    """Where rows are gone through in strips: pixels of a block times rows that the line before did not read."""
    size = 14 * stride + 2 * dilation - stride + 1
    scheduled = schedule(depthwise(1, size, 384, 3, stride, NONE, dilation), TARGET)
    hints = [s for s in loops.walk(scheduled.function.body) if isinstance(s, loops.Prefetch)]
    assert scheduled.decisions["hints"]
    assert len({hint.index for hint in hints}) == pixels * rows
    whole = schedule(depthwise(1, 7, 384, 3, 1, ONE), TARGET)
    wide = schedule(depthwise(1, 14, 384, 5, 1, ((2, 2), (2, 2))), TARGET)
    for other in (whole, wide):
        assert not any(isinstance(s, loops.Prefetch) for s in loops.walk(other.function.body))


def test_windows_of_one_row_are_gone_through_line_by_line():
    decisions = schedule(depthwise(1, (40, 64), 512, (1, 3), 1, ((0, 0), (1, 1))), TARGET).decisions
    assert (decisions["group"], decisions["strip"]) == (512, 8)
