"""Every recipe computes what the kernel means: odd sizes, empty and single axes, symbolic dims of several values."""

from __future__ import annotations

import json

import pytest

from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import bf16, f16, f64, i32
from ingot.compiler.schedule import RECIPES
from ingot.compiler.target import Target
from tests.schedule import kernels
from tests.schedule.harness import check
from tests.schedule.test_dots import gradient

n, m = Symbol("n"), Symbol("m")

CASES = {
    "elementwise": [
        (kernels.add_bias((5, 100)), {}),
        (kernels.add_bias((3, 1, 19)), {}),
        (kernels.add_bias((n, 21)), {n: 1}),
        (kernels.add_bias((n, 21)), {n: 300}),
        (kernels.add_bias((n, m)), {n: 3, m: 37}),
        (kernels.add_bias((7, 9), bf16), {}),
        (kernels.negate((64, 784)), {}),
        (kernels.negate((n, 784)), {n: 9}),
        (kernels.negate((2, 3, n)), {n: 5}),
        (kernels.negate((1, 1)), {}),
        (kernels.negate(()), {}),
        (kernels.negate((3, 0, 4)), {}),
        (kernels.negate((17,), f64), {}),
        (kernels.transpose((40, 70), (1, 0)), {}),
        (kernels.transpose((300, 33), (1, 0)), {}),
        (kernels.transpose((n, 5), (1, 0)), {n: 40}),
        (kernels.transpose((2, 5, 3, 9), (0, 2, 1, 3)), {}),
        (kernels.transpose((2, 7, 18), (0, 2, 1)), {}),
        (kernels.momentum([(40, 30), (30,), (), (0, 3)]), {}),
        (kernels.momentum([(90, 100), (300,), (100, 90)]), {}),
        (kernels.gather_rows(6, 3, 11), {}),
        (kernels.gather_rows(n, 3, m), {n: 4, m: 17}),
        (kernels.pad((3, 10), 2, 3), {}),
        (kernels.pad((n,), 1, 0), {n: 16}),
    ],
    "reduction": [
        (kernels.reduce_axes((50, 20), (1,)), {}),
        (kernels.reduce_axes((1100, 10), (1,)), {}),
        (kernels.reduce_axes((n, 20), (1,)), {n: 1}),
        (kernels.reduce_axes((n, 20), (1,)), {n: 600}),
        (kernels.reduce_axes((n, m), (1,)), {n: 520, m: 21}),
        (kernels.reduce_axes((3, 40, 5), (0, 2)), {}),
        (kernels.reduce_axes((5, 0, 3), (0, 2)), {}),
        (kernels.reduce_axes((4, 5, 6), (1,), "max"), {}),
        (kernels.reduce_axes((600, 3), (1,), "prod", f64), {}),
        (kernels.reduce_axes((20000,), ()), {}),
        (kernels.reduce_axes((n,), ()), {n: 20000}),
        (kernels.reduce_axes((n,), ()), {n: 3}),
        (kernels.reduce_axes((3, 9000), (0,), "min"), {}),
        (kernels.reduce_axes((70, 10), (1,), "sum", f16), {}),
        (kernels.reduce_axes((20, 9), (1,), "sum", i32), {}),
        (kernels.depthwise(n, 5, m, 2), {n: 2, m: 19}),
        (kernels.max_pool(2, 3, 10), {}),
    ],
    "dots": [(gradient(2, 1, 3, (4, 16), 3, 1), {}), (gradient(n, 2, 3, (3, 9), 3, 0), {n: 2})],
    "windows": [(kernels.depthwise(2, 7, 11, 3), {}), (kernels.depthwise(n, 9, 20, 2), {n: 3})],
    "rows": [
        (kernels.softmax((4, 37)), {}),
        (kernels.softmax((n, 3, 10)), {n: 1}),
        (kernels.softmax((n, 3, 10)), {n: 40}),
        (kernels.softmax((2, m)), {m: 100}),
        (kernels.softmax((0, 5)), {}),
        (kernels.softmax((3, 1)), {}),
        (kernels.softmax((2, 4200)), {}),
        (kernels.layer_norm((5, 33), 33), {}),
        (kernels.layer_norm((n, 2, m), 20), {n: 3, m: 20}),
        (kernels.reduce_axes((7, 33), (0,)), {}),
        (kernels.reduce_axes((n, 9000), (0,)), {n: 2}),
        (kernels.reduce_axes((20, n, 100), (0,)), {n: 3}),
        (kernels.matrix_vector(30, 50), {}),
        (kernels.matrix_vector(n, 9), {n: 20}),
    ],
    "contraction": [
        (kernels.matmul(7, 20, 13), {}),
        (kernels.matmul(7, 20, 300), {}),
        (kernels.matmul(n, 20, 13), {n: 1}),
        (kernels.matmul(n, 20, 13), {n: 17}),
        (kernels.matmul(n, m, 13), {n: 11, m: 21}),
        (kernels.matmul(2, n, m), {n: 9, m: 260}),
        (kernels.matmul(1, 10, 600), {}),
        (kernels.matmul(6, 1, 8), {}),
        (kernels.matmul(3, 0, 5), {}),
        (kernels.matmul(3, 5, 0), {}),
        (kernels.matmul(9, 9, 5, bf16), {}),
        (kernels.matmul(9, 19, 33, f16), {}),
        (kernels.matmul(4, 9, 5, f64), {}),
        (kernels.matmul(4, 9, 5, i32), {}),
        (kernels.matmul(7, 20, 13, layout="nt"), {}),
        (kernels.matmul(7, 20, 13, layout="tn"), {}),
        (kernels.matmul(7, 20, 13, layout="tt"), {}),
        (kernels.matmul(5, 9, 8, batch=(2, 3)), {}),
        (kernels.matmul(5, 9, m, batch=(n,), layout="nt"), {n: 2, m: 7}),
        (kernels.convolution(2, 3, 6, 5, 3, padding=1), {}),
        (kernels.convolution(n, 3, 7, 10, 3, stride=2, padding=1), {n: 2}),
        (kernels.convolution(1, 3, 9, 4, 3, stride=2, padding=1, last=False), {}),
        (kernels.convolution(n, 5, 6, 17, 1, last=False), {n: 2}),
        (kernels.convolution(1, 2, m, 9, 3, padding=1), {m: 5}),
    ],
    "blocks": [
        (kernels.attention((2, n), m, 9, 4), {n: 2, m: 5}),
        (kernels.attention((), 250, m, 4), {m: 3}),
        (kernels.attention((n,), m, m, 4, backward=True), {n: 3, m: 7}),
        (kernels.attention((2,), 205, 5, 3, backward=True), {}),
        (kernels.attention((2, 3), 1, m, 4), {m: 30}),
    ],
    "fallback": [(kernels.awkward(7, 5), {}), (kernels.awkward(n, m), {n: 4, m: 30})],
}  # fmt: skip


def cases() -> list:
    return [
        pytest.param(recipe, kernel, dims, id=f"{recipe}-{number}-{kernel.name}")
        for recipe, listed in CASES.items()
        for number, (kernel, dims) in enumerate(listed)
    ]


@pytest.mark.parametrize(("recipe", "kernel", "dims"), cases())
def test_the_schedule_computes_the_kernel(recipe, kernel, dims):
    scheduled = check(kernel, dims)
    # few results of long chains, and matrices of which a dim is 1, are other structures for some sizes
    # kernels with extents of 0 are decided before any recipe is asked
    # what only the last recipe takes as a whole has recipes for its parts
    assert scheduled.recipe in (recipe, "rows", "reduction", "contraction", "elementwise", "nothing", "parts")
    assert scheduled.reason
    json.dumps(dict(scheduled.decisions))


@pytest.mark.parametrize("recipe", list(CASES))
def test_the_last_recipe_takes_every_kernel(recipe):
    for kernel, dims in CASES[recipe][:6]:
        assert check(kernel, dims, recipe="fallback").recipe in ("fallback", "nothing")


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("recipe", list(CASES))
def test_other_machines_get_other_tiles_with_the_same_meaning(recipe, target):
    kernel, dims = CASES[recipe][0]
    check(kernel, dims, target=Target.named(target))


def test_each_case_names_the_recipe_it_is_for():
    assert set(CASES) == set(RECIPES)
    for recipe, listed in CASES.items():
        wanted = "parts" if recipe == "fallback" else recipe
        assert any(check(kernel, dims).recipe == wanted for kernel, dims in listed[:1])


def test_an_unknown_recipe_is_named():
    with pytest.raises(ValueError, match="no recipe is called 'magic'; there are elementwise"):
        check(kernels.negate((3,)), recipe="magic")


def test_a_recipe_that_does_not_fit_says_so():
    with pytest.raises(ValueError, match="recipe 'rows' does not fit kernel negate"):
        check(kernels.negate((3,)), recipe="rows")
