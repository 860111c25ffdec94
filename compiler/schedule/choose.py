"""Chooses a recipe by the structure of a kernel.

Each recipe is a function (kernel, target, options) -> Scheduled, or None when the kernel is not its kind. They
are asked from the most special to the most general; the last takes everything, so scheduling is total. Before it does,
definitions that only it would take together are scheduled in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.schedule import empty
from ingot.compiler.schedule.apart import in_parts
from ingot.compiler.schedule.primitives import ScheduleError
from ingot.compiler.schedule.recipes import blocks, contraction, dots, elementwise, fallback, reduction, rows, windows
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.variants import either
from ingot.compiler.target import Target

Recipe = Callable[[Kernel, Target, ScheduleOptions], "Scheduled | None"]

RECIPES: dict[str, Recipe] = {
    "elementwise": elementwise.recipe,
    "dots": dots.recipe,
    "contraction": contraction.recipe,
    "windows": windows.recipe,
    "reduction": reduction.recipe,
    "rows": rows.recipe,
    "blocks": blocks.recipe,
    "fallback": fallback.recipe,
}


def schedule(kernel: Kernel, target: Target, options: ScheduleOptions | None = None) -> Scheduled:
    """The kernel as loops for the target. Deterministic, and total over valid kernels."""
    options = options or ScheduleOptions()
    if empty.does_nothing(kernel):
        return _nothing(kernel)
    kernel = empty.without_empty(kernel)
    condition = empty.may_be_empty(kernel)
    if condition is None:
        return _scheduled(kernel, target, options)
    normal = _scheduled(kernel, target, options)
    if empty.leaves_nothing(kernel):
        return either(kernel, condition, replace(_nothing(kernel), in_place=normal.in_place), normal)
    return either(kernel, condition, _scheduled(empty.if_empty(kernel), target, ScheduleOptions()), normal)


def _nothing(kernel: Kernel) -> Scheduled:
    function = Function(kernel.name, (*kernel.inputs, *kernel.outputs), ())
    return Scheduled(function, "nothing", {}, "its outputs have no elements")


def _scheduled(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled:
    if options.recipe is not None:
        return _forced(kernel, target, options)
    found = _by_recipe(kernel, target, options)
    if found.recipe != "fallback" or len(kernel.definitions) == 1:
        return found
    return in_parts(kernel, lambda part: _by_recipe(part, target, options)) or found


def _by_recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled:
    """The first recipe that fits."""
    refused: list[str] = []
    for name, recipe in RECIPES.items():
        try:
            scheduled = recipe(kernel, target, options)
        except ScheduleError as error:  # a proof that a rewrite is legal was out of reach: the next recipe is safe
            refused.append(f"{name} declined: {error}")
            continue
        if scheduled is not None:
            return replace(scheduled, reason="; ".join([scheduled.reason, *refused]))
    raise AssertionError("the fallback recipe takes every kernel")


def _forced(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled:
    recipe = RECIPES.get(options.recipe or "")
    if recipe is None:
        raise ValueError(f"no recipe is called {options.recipe!r}; there are {', '.join(RECIPES)}")
    scheduled = recipe(kernel, target, options)
    if scheduled is None:
        raise ValueError(f"recipe {options.recipe!r} does not fit kernel {kernel.name}")
    return scheduled
