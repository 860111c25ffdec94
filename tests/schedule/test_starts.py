"""A bias that sums begin with: in every way to compute them, and only where it is the same for all rows."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compiler.ir.loops import Store, walk
from ingot.compiler.ir.scalar import Load
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import bf16, i32
from ingot.compiler.schedule import ScheduleOptions, schedule
from tests.schedule import kernels
from tests.schedule.harness import TARGET, check, inputs_of, run

m, k = Symbol("m", 0), Symbol("k", 0)
CASES = [
    (kernels.matmul_bias(1, 70, 40), {}),
    (kernels.matmul_bias(5, 41, 20), {}),
    (kernels.matmul_bias(5, 41, 9), {}),  # a single chunk
    (kernels.matmul_bias(6, m, k), {m: 45, k: 21}),
    (kernels.matmul_bias(6, m, k), {m: 45, k: 9}),
    (kernels.matmul_bias(6, m, k), {m: 45, k: 0}),
]


def begins_with_bias(kernel) -> bool:
    """Whether a bias is stored where sums are, before anything is added."""
    stores = [s for s in walk(schedule(kernel, TARGET).function.body) if isinstance(s, Store)]
    return any(isinstance(s.value, Load) and s.value.buffer.name == "bias" for s in stores)


@pytest.mark.parametrize(("kernel", "dims"), CASES)
def test_the_kernel_is_computed(kernel, dims):
    assert begins_with_bias(kernel)
    check(kernel, dims)


@pytest.mark.parametrize(("kernel", "dims"), CASES)
def test_bits_do_not_depend_on_how_sums_are_computed(kernel, dims):
    inputs = inputs_of(kernel, dims)

    def result(**decisions):
        options = ScheduleOptions(recipe="contraction", decisions={"chain": 16, **decisions})
        return run(schedule(kernel, TARGET, options), kernel, inputs, dims)[0]

    expected = result(streamed=False)
    choices = [{"streamed": True}, {"streamed": True, "unroll": 1}, {"streamed": False, "rows": 1, "row_block": 1}]
    for decisions in choices:
        np.testing.assert_array_equal(expected.view(np.uint32), result(**decisions).view(np.uint32))


def test_a_row_alone_has_the_bits_of_a_row_among_others():
    many, one = kernels.matmul_bias(40, 64, 300), kernels.matmul_bias(1, 64, 300)
    a, b, bias = inputs_of(many, {})
    expected = run(schedule(many, TARGET), many, [a, b, bias], {})[0]
    for row in (0, 7, 39):
        found = run(schedule(one, TARGET), one, [a[row : row + 1], b, bias], {})[0]
        np.testing.assert_array_equal(found[0].view(np.uint32), expected[row].view(np.uint32))


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.matmul(5, 41, 20),  # the sums are a result themselves
        kernels.matmul_bias(5, 41, 20, across=False),  # another number for each row
        kernels.matmul_bias(5, 41, 20, bf16),  # rounded before it is added
        kernels.matmul_residual(5, 41, 20),  # a matrix
    ],
)
def test_what_is_added_at_the_end(kernel):
    assert not begins_with_bias(kernel)
    check(kernel)


def test_integers_begin_with_it_too():
    check(kernels.matmul_bias(5, 41, 20, i32))
