"""What the tests of the DSL share: run a function of tensors by the interpreter, or compiled, on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.types import TensorType
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.trace import rebuild


def traced_run(function: Callable[..., Any], types: Sequence[TensorType], *arrays: np.ndarray) -> Any:
    """A function traced for these types (symbolic dims allowed), interpreted on arrays of them."""
    traced = functions.trace(function, types)
    names = [n for n in traced.graph.input_names if n not in traced.graph.constants]
    return rebuild(traced.structure, run_graph(traced.graph, dict(zip(names, arrays, strict=True))))


def close(found: Any, expected: Any, relative: float = 1e-6, absolute: float = 1e-6) -> None:
    """Floats near, integers equal, and of the same shape."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), relative, absolute)


def numeric_gradient(function: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences of a scalar function of one double-precision array."""
    gradient = np.zeros_like(x, np.float64)
    for place in np.ndindex(*x.shape):
        moved = x.astype(np.float64).copy()
        moved[place] += step
        above = function(moved)
        moved[place] -= 2 * step
        gradient[place] = (above - function(moved)) / (2 * step)
    return gradient
