"""The ways of moving an array move all of it, wherever it begins."""

import numpy as np
import pytest

from benchmarks import probe
from benchmarks.measure import Effort
from ingot.runtime.storage import aligned_empty


@pytest.mark.parametrize("start", [0, 16, 20])
@pytest.mark.parametrize("size", [40, 5000, 3 * (512 << 10) + 12345])
def test_every_copy_copies_everything_and_nothing_else(start: int, size: int, rng: np.random.Generator) -> None:
    whole = rng.integers(0, 256, size + 128).astype(np.uint8)
    data = whole[4 : 4 + size]
    for name in probe.copies(data, data):
        around = aligned_empty((size + 128,), np.dtype(np.uint8), size + 128)
        around[:] = 7
        into = around[start : start + size]
        probe.copies(into, data)[name]()
        np.testing.assert_array_equal(into, data, name)
        assert (np.delete(around, np.s_[start : start + size]) == 7).all(), name


def test_reading_takes_arrays_that_begin_anywhere() -> None:
    data = np.ones((1 << 20) + 100, np.uint8)
    for call in (*probe.reads(data).values(), *probe.reads(data[20:100]).values(), *probe.reads(data[:3]).values()):
        call()


def test_the_fastest_ways_are_kept() -> None:
    ways = {"long": lambda: sum(range(20000)), "short": lambda: sum(range(20)), "medium": lambda: sum(range(2000))}
    assert list(probe.fastest(ways, Effort(0.002, 2))) == ["short", "medium"]
