"""Kernels that no recipe takes as a whole: their parts have the recipes that they would have alone."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.scalar import Buffer, Load, apply
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Definition, Kernel, axes
from ingot.compiler.ir.types import f32
from ingot.compiler.schedule import RECIPES
from tests.schedule import kernels
from tests.schedule.harness import check

n, m = Symbol("n"), Symbol("m")


@pytest.mark.parametrize(("rows", "columns", "dims"), [(40, 24, {}), (n, m, {n: 9, m: 33}), (n, 24, {n: 1})])
def test_parts_are_as_large_as_recipes_take_them(rows, columns, dims):
    scheduled = check(kernels.awkward(rows, columns), dims)
    assert scheduled.recipe == "parts"
    parts = scheduled.reason.split(": ")[1].split(", ")
    assert len(parts) < 3
    assert set(parts) <= set(RECIPES) - {"fallback"}
    assert scheduled.in_place == ()


def test_what_a_part_hands_on_waits_in_scratch_memory():
    scheduled = check(kernels.awkward(40, 24))
    assert [buffer.name for buffer in scheduled.scratch] == ["t"]


def test_a_single_definition_has_no_parts():
    x, y = Buffer("x", f32, (6, 5)), Buffer("y", f32, (5, 6))
    i, j = axes(y.shape)
    scheduled = check(Kernel("turned", (x,), (y,), (Definition(y, (i, j), apply("neg", Load(x, (j, i)))),)))
    assert scheduled.recipe == "elementwise"


@pytest.mark.parametrize("batch", [1, 3])
def test_neighbours_weighted_by_another_image(batch, rng):
    """Nine shifted copies of a padded image, stacked, weighted and added up: fused along the batch alone."""

    def model(x, weight):
        height, width = x.shape[2:]
        wide = x.pad(low=(0, 0, 1, 1), high=(0, 0, 1, 1))
        shifted = [wide[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
        near = ingot.stack(shifted, 2)
        return (near * weight.reshape(weight.shape[0], 1, 9, height, width)).sum(axis=2)

    x, weight = (rng.standard_normal((batch, c, 6, 7)).astype(np.float32) for c in (4, 9))
    exe = ingot.compile(model, ingot.f32["batch", 4, "h", "w"], ingot.f32["batch", 9, "h", "w"], cache=False)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    near = np.stack([wide[:, :, i : i + 6, j : j + 7] for i in range(3) for j in range(3)], 2)
    np.testing.assert_allclose(exe(x, weight), (near * weight[:, None]).sum(2), rtol=1e-5, atol=1e-5)
