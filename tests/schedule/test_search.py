"""Every candidate computes the kernel; contractions to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compiler.schedule import ScheduleOptions, schedule
from ingot.compiler.schedule.search import candidates
from tests.schedule import kernels
from tests.schedule.harness import TARGET, check, inputs_of, run


def test_the_first_candidate_is_the_default():
    assert next(candidates(kernels.negate((3,)), TARGET)) == ScheduleOptions()


@pytest.mark.parametrize("kernel", [kernels.matmul(5, 9, 7), kernels.matmul(1, 20, 9)])
def test_candidates_of_a_contraction_agree_to_the_last_bit(kernel):
    inputs = inputs_of(kernel, {})
    tried = list(candidates(kernel, TARGET))
    assert len(tried) > 12
    assert len({repr(options) for options in tried}) == len(tried)
    expected = run(schedule(kernel, TARGET), kernel, inputs, {})[0]
    for options in tried[1 :: len(tried) // 12]:
        found = run(schedule(kernel, TARGET, options), kernel, inputs, {})[0]
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_candidates_of_a_reduction_compute_it():
    kernel = kernels.reduce_axes((30, 40), (1,))
    tried = list(candidates(kernel, TARGET))
    assert len(tried) > 1
    for options in tried:
        check(kernel, decisions=options.decisions)
