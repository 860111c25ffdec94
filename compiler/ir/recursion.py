"""Recursion as deep as memory allows: fused expressions are deeper than Python's stack.

A recursive function becomes a generator; where it would call itself it yields the call and receives its result:

    def depth(node):
        below = []
        for child in children(node):
            below.append((yield depth(child)))
        return 1 + max(below, default=0)

    unwind(depth(root))
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")
Call = Generator[Any, Any, Result]  # a call that may wait for the results of others


def unwind(call: Call[Result]) -> Result:
    """The result of a call, with the calls it waits for on a stack of our own."""
    waiting: list[Call[Any]] = [call]
    value: Any = None
    while waiting:
        try:
            waiting.append(waiting[-1].send(value))
            value = None
        except StopIteration as finished:
            waiting.pop()
            value = finished.value
    return value
