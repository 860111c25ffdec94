"""Statements that are put together in one function."""

from __future__ import annotations

import numpy as np

import ingot
from ingot.compiler.ir import loops
from ingot.compiler.ir.scalar import Buffer, Load
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import axes
from ingot.compiler.ir.types import f32
from ingot.compiler.schedule import statements


def test_names_of_scratch_memory_that_comes_together():
    taken, mine = Buffer("t", f32, (4,)), Buffer("t", f32, (4,), "arena")
    i = axes(mine.shape)[0]
    lines, own = statements.with_own_names((loops.Store(mine, (i,), Load(mine, (i,))),), (mine, taken), (taken,))
    assert [b.name for b in own] == ["t_1", "t_2"]
    assert [store.buffer for store in statements.stores(lines)] == [own[0]]
    assert [load.buffer for load in statements.loads_in(lines)] == [own[0]]


def test_a_program_for_empty_rows_too_has_no_name_twice():
    exe = ingot.compile(lambda x: x.softmax(1), ingot.f64[17, Symbol("n", 0)], cache=False, verify=True)
    for count in (0, 1, 4):
        x = np.arange(17.0 * count).reshape(17, count)
        np.testing.assert_allclose(exe(x).sum(1), np.full(17, min(count, 1)))
