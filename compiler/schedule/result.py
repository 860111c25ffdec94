"""What scheduling returns, and what it may be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingot.compiler.ir import loops
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim, Symbol


@dataclass(frozen=True)
class ScheduleOptions:
    """Choices from outside; None leaves a choice to the recipe.

    `recipe` forces one recipe by name; `decisions` replaces fields of that recipe's decision record, for a tuner.
    `leaving`: outputs are results of the program in memory of their own, so that they may bypass the caches when
    they are large; memory that is read and overwritten is in the caches anyway.
    `repeated`: the kernel runs in a loop of the program, whose iterations it may be told apart by (`Scheduled.turn`).
    """

    recipe: str | None = None
    decisions: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = True
    leaving: bool = False
    repeated: bool = False


TURN = Symbol("loop.turn", 0, 1)


@dataclass(frozen=True)
class Scheduled:
    """A kernel as loops.

    The function's parameters are the kernel's inputs, its outputs, then `scratch`: buffers that the caller
    provides uninitialised and that hold nothing afterwards. `in_place` are (input, output) pairs that may be
    the same memory. `decisions` is plain data (numbers, strings, lists); `reason` says why this recipe.
    """

    function: loops.Function
    recipe: str
    decisions: Mapping[str, Any]
    reason: str
    scratch: tuple[Buffer, ...] = ()
    in_place: tuple[tuple[Buffer, Buffer], ...] = ()
    sizes: Mapping[Symbol, Dim] = field(default_factory=dict)  # symbols of the function -> what callers pass for them
    turn: Symbol | None = None  # a symbol for which the loop around passes 0 and 1 in turn
