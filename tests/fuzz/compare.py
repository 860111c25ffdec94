"""Whether two runs of a graph agree, as far as rounding lets them.

The interpreter runs a few more times with every rounding made a little wrong. What such a run changes, native
code may change too: a sum that cancels, a floor at an integer, an argmax of a near tie. All the rest must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from ingot.compiler.ir.graph import Graph, Value
from ingot.compiler.ir.interpret.errors import InterpreterError
from ingot.compiler.ir.interpret.shapes import bind_shapes, specialise
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import DTYPES, TupleType
from ingot.compiler.ops import control, gradient
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.elementwise import Elementwise

Arrays = Mapping[str, np.ndarray]

# Ops whose float results are elements of their arguments, or exact functions of them.
EXACT = {
    "abs", "ceil", "check_range", "clip", "floor", "get", "independent", "max", "max_pool", "maximum", "min", "minimum",
    "neg", "random_uniform", "relu", "relu6", "round", "sign", "sort", "stop_gradient", "tile", "top_k", "trunc",
    "where",
}  # fmt: skip
UNIT = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
NOISE = 4  # roundings of one op
SLACK = 16.0  # how much farther than the noisy runs a result may be


def disturbed(graph: Graph, inputs: Arrays, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The graph's outputs when each op rounds badly, in regions too."""

    def region(graph: Graph, args: Sequence[np.ndarray], env: Any = None) -> tuple[np.ndarray, ...]:
        return run_badly(graph, args, dict(env or {}), rng)

    with patch.object(control, "run_region", region), patch.object(gradient, "run_region", region):
        return region(graph, [inputs[v.name] for v in graph.inputs])


def run_badly(
    graph: Graph, args: Sequence[np.ndarray], dims: dict[Symbol, int], rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    bind_shapes([(v.name, v.tensor, np.asarray(a)) for v, a in zip(graph.inputs, args, strict=True)], dims)
    arrays: dict[Value, Any] = dict(zip(graph.inputs, args, strict=True))
    with np.errstate(all="ignore"):
        for value in graph.body:
            op = value.op
            assert isinstance(op, Op)
            given = [arrays[a] for a in value.args]
            rough = not op.movement and op.name not in EXACT and type(op).way_down() != "regions"
            if rough and not isinstance(op, Elementwise):
                given = [shaken(a, rng, compute=True) for a in given]
            result = specialise(op, dims).evaluate(*given)
            several = isinstance(value.type, TupleType)
            parts = tuple(np.asarray(r) for r in result) if several else (np.asarray(result),)
            parts = tuple(shaken(p, rng) for p in parts) if rough else parts
            arrays[value] = parts if several else parts[0]
    return tuple(arrays[v] for v in graph.outputs)


def shaken(array: Any, rng: np.random.Generator, compute: bool = False) -> Any:
    name = next((n for n, t in DTYPES.items() if isinstance(array, np.ndarray) and t.numpy == array.dtype), "")
    if name not in UNIT:
        return array
    unit = UNIT["f32"] if compute and name != "f64" else UNIT[name]
    factor = 1 + rng.uniform(-NOISE, NOISE, array.shape) * unit
    return (array.astype(np.float64) * factor).astype(array.dtype)


def disagreements(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], noisy: Sequence[Sequence[np.ndarray]]
) -> list[tuple[int, str]]:
    """(number of an output, what is wrong with it), of each that is wrong."""
    wrong = []
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            wrong.append((number, f"is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"))
            continue
        bad = ~agrees(a, b, [run[number] for run in noisy])
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            first = f"first {a[place]!r} for {b[place]!r} at {list(place)}"
            wrong.append((number, f"{int(bad.sum())} of {bad.size} elements differ, {first}"))
    return wrong


def agrees(found: np.ndarray, expected: np.ndarray, noisy: Sequence[np.ndarray]) -> np.ndarray:
    """Elementwise: equal, or as near as the noisy runs are to each other."""
    name = next(n for n, t in DTYPES.items() if t.numpy == expected.dtype)
    if name not in UNIT:
        return (found == expected) | ~np.all([n == expected for n in noisy], axis=0)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    wide = [n.astype(np.float64) for n in noisy]
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        stable = np.all([np.isfinite(n) == np.isfinite(b) for n in wide], axis=0)
        spread = np.max([np.abs(n - b) for n in wide], axis=0)
        tiny = 64 * float(np.ldexp(1.0, {"f64": -1074, "f32": -149, "f16": -24, "bf16": -133}[name]))
        near = np.abs(a - b) <= SLACK * spread + 2 * NOISE * UNIT[name] * np.abs(b) + tiny
    return same | near | ~stable


def interpretable(graph: Graph, inputs: Arrays, run: Any) -> tuple[np.ndarray, ...] | None:
    """The interpreter's outputs, or None where NumPy has no meaning for these inputs (a maximum of nothing)."""
    try:
        return run(graph, inputs)
    except InterpreterError:
        return None
