"""What an op needs of symbolic extents and the compiler cannot decide is checked at the call, before anything is
read: never a wild access, never a silent loss of elements."""

import numpy as np
import pytest

import ingot
from ingot.compiler.assembly import conditions_of
from ingot.frontends.dsl.functions import trace
from ingot.runtime.errors import IngotRuntimeError

N = ingot.f32["n"]

CASES = {
    "reshape that must divide": (lambda x: x.reshape(-1, 2).sum(axis=1), 6, 5),
    "reshape to a fixed shape": (lambda x: x.reshape(3, 4) + 0.0, 12, 5),
    "crop": (lambda x: x.pad(low=(-2,), high=(-2,)), 7, 3),
    "top k": (lambda x: x.top_k(k=4, axis=0)[0], 4, 3),
    "slice": (lambda x: x.slice(starts=(1,), stops=(5,), steps=(1,)), 5, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_fitting_sizes_run_and_others_are_refused(name):
    function, good, bad = CASES[name]
    executable = ingot.compile(function, N)
    x = np.arange(good, dtype=np.float32)
    np.testing.assert_allclose(executable(x), ingot.interpret(function, x))
    with pytest.raises(IngotRuntimeError, match="do not fit|impossible shape"):
        executable(np.arange(bad, dtype=np.float32))


def test_what_is_decided_costs_nothing():
    graph = trace(lambda x: x.reshape(-1, 4).reshape(-1), [ingot.f32["n", 4]]).graph
    assert conditions_of(graph) == ()


def test_conditions_inside_regions_are_found():
    def body(carry, x):
        return carry, x.reshape(-1, 2)

    graph = trace(lambda c, xs: ingot.scan(body, c, xs), [ingot.f32[2], ingot.f32[3, "n"]]).graph
    assert any("reshape" in c.message for c in conditions_of(graph))
