"""Contractions of a few rows: the right operand is read as it is stored, and the bits are those of panels."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import bf16, f16
from ingot.compiler.schedule import ScheduleOptions, schedule
from tests.schedule import kernels
from tests.schedule.harness import TARGET, check, inputs_of, run

m, k = Symbol("m", 0), Symbol("k", 0)

CASES = [
    (kernels.matmul(1, 70, 40), {}),  # one row, a panel and a rest, several chunks
    (kernels.matmul(1, 64, 9), {}),  # no chunk is cut, one point more than streams
    (kernels.matmul(1, 100, 3), {}),  # fewer points than streams
    (kernels.matmul(2, 33, 37), {}),  # a masked rest of columns, chunks of unequal length
    (kernels.matmul(5, 41, 20), {}),
    (kernels.matmul(7, 41, 20), {}),  # more rows than a tile has
    (kernels.matmul(3, m, k), {m: 45, k: 21}),
    (kernels.matmul(3, m, k), {m: 45, k: 0}),
    (kernels.matmul(1, m, 20), {m: 0}),
]


@pytest.mark.parametrize(("kernel", "dims"), CASES)
@pytest.mark.parametrize("tiles", [{}, {"unroll": 8}, {"unroll": 1}, {"vectors": 1, "column_block": 16}])
def test_the_bits_are_those_of_panels(kernel, dims, tiles):
    inputs = inputs_of(kernel, dims)

    def results(**decisions):
        options = ScheduleOptions(recipe="contraction", decisions={**decisions, "chain": 16})
        return run(schedule(kernel, TARGET, options), kernel, inputs, dims)

    for a, b in zip(results(streamed=False), results(streamed=True, **tiles), strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (kernels.matmul(1, 256, 256), True),
        (kernels.matmul(6, 256, 256), True),
        (kernels.matmul(1, 256, k), True),
        (kernels.matmul(1, 256, 256, f16), True),  # converted as it is read
        (kernels.matmul(2, 256, 256, bf16), True),
        (kernels.matmul(7, 256, 256), False),  # arithmetic takes the time
        (kernels.matmul(m, 256, 256), False),  # so it may
        (kernels.matmul(1, 64, 4096), False),  # one panel: each row of it is read once from end to end anyway
        (kernels.matmul(1, 4096, 4), False),  # fewer points than streams
        (kernels.matmul(1, 80, 80), False),  # the first cache holds it
        (kernels.matmul(1, 256, 256, layout="nt"), False),  # stored along the sum
    ],
)
def test_what_is_streamed(kernel, expected):
    assert schedule(kernel, TARGET).decisions.get("streamed", False) is expected


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_narrow_floats_have_the_bits_of_panels(dtype):
    kernel = kernels.matmul(2, 70, 40, dtype)
    inputs = inputs_of(kernel, {})

    def results(streamed):
        options = ScheduleOptions(recipe="contraction", decisions={"streamed": streamed, "chain": 16})
        return run(schedule(kernel, TARGET, options), kernel, inputs, {})

    for a, b in zip(results(False), results(True), strict=True):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


def test_one_row_of_a_large_matrix():
    scheduled = check(kernels.matmul(1, 300, 300))
    assert scheduled.decisions["streamed"]
    assert not scheduled.decisions["pack_right"]


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("rows", [1, 5, 12])
def test_known_weights_of_narrow_floats_are_converted_as_they_are_read(dtype, rows):
    """Stored in blocks, which a single tile of rows reads: a panel of them in memory would only be one more copy."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(300, 260)).astype(dtype.numpy)
    x = generator.normal(size=(rows, 300)).astype(dtype.numpy)

    class Layer(ingot.nn.Module):
        def __init__(self):
            self.weight = ingot.nn.Buffer(weight)

        def forward(self, x):
            return x @ self.weight

    known = ingot.compile(Layer(), dtype[rows, 300], cache=False)
    given = ingot.compile(lambda x, w: x @ w, dtype[rows, 300], dtype[300, 260], cache=False)
    np.testing.assert_array_equal(known(x).view(np.uint16), given(x, weight).view(np.uint16))
    assert [array.dtype for array in known.program.constants.values()] == [weight.dtype]
