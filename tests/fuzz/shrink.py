"""Make a failing graph small: values become inputs, ops give way to their arguments, outputs and inputs go.

Each change is kept when the graph still fails; what remains is usually the op or the pair of ops at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.compiler.ir.graph import Builder, Graph, Input, Value
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.text import print_graph
from ingot.compiler.ir.types import TensorType
from tests.fuzz.checks import Failure, check_graph

MOST_TRIALS = 400


def shrunk(failure: Failure) -> Failure:
    """The smallest failing graph that can be reached by removing one thing after another."""
    if not failure.inputs:  # it has no gradient: nothing has been run
        return failure
    trials = 0
    progress = True
    while progress and trials < MOST_TRIALS:
        progress = False
        for candidate, inputs in candidates(failure.graph, dict(failure.inputs)):
            trials += 1
            smaller = check_graph(candidate, [inputs], failure.fuse)
            if smaller is not None and same_kind(smaller, failure):
                failure, progress = smaller, True
                break
            if trials >= MOST_TRIALS:
                break
    return failure


def same_kind(a: Failure, b: Failure) -> bool:
    """A wrong result must not shrink to another kind of failure."""
    return a.reason.split(":")[0].startswith(("compiling", "running")) == b.reason.split(":")[0].startswith(
        ("compiling", "running")
    )


def candidates(graph: Graph, inputs: dict[str, np.ndarray]) -> Iterator[tuple[Graph, dict[str, np.ndarray]]]:
    """Graphs with one thing less, the greatest steps first."""
    if len(graph.outputs) > 1:
        for output in graph.outputs:
            yield trimmed(graph.with_outputs([output]), inputs)
        for number in range(len(graph.outputs)):
            yield trimmed(graph.with_outputs([v for n, v in enumerate(graph.outputs) if n != number]), inputs)
    for value in graph.body[:-1]:
        if isinstance(value.type, TensorType):
            yield trimmed(graph.with_outputs([value]), inputs)
    seen = values_of(graph, inputs)
    for value in reversed(graph.body):
        if isinstance(value.type, TensorType) and value.args:
            yield trimmed(*with_input(graph, value, seen[value], inputs))
    for value in graph.body:
        for arg in value.args:
            if arg.type == value.type:
                yield trimmed(rebuilt(graph, {value: arg}), inputs)


def values_of(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[Value, Any]:
    seen: dict[Value, Any] = {}
    try:
        run_graph(graph, inputs, observe=lambda value, array: seen.update({value: array}))
    except Exception:  # what has been seen so far is enough to replace values before the fault
        return {v: seen.get(v) for v in graph.body}
    return seen


def with_input(
    graph: Graph, value: Value, array: np.ndarray | None, inputs: dict[str, np.ndarray]
) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph in which a value is given from outside."""
    taken = set(graph.input_names)
    name = next(f"v{n}" for n in range(len(taken) + 1) if f"v{n}" not in taken)
    fresh = Value(Input(name), (), value.type, None, name)
    shape = tuple(d if isinstance(d, int) else 1 for d in value.shape)
    data = np.zeros(shape, value.tensor.dtype.numpy) if array is None else np.array(array)
    return rebuilt(replace(graph, inputs=(*graph.inputs, fresh)), {value: fresh}), {**inputs, name: data}


def rebuilt(graph: Graph, mapping: dict[Value, Value]) -> Graph:
    builder = Builder()
    made = {v: v for v in graph.inputs} | mapping
    for value in graph.body:
        if value not in made:
            made[value] = builder.emit(value.op, *(made[a] for a in value.args))
    return replace(graph, outputs=tuple(made[v] for v in graph.outputs))


def trimmed(graph: Graph, inputs: dict[str, np.ndarray]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Without inputs that nobody reads, unless they say what a symbolic dim is."""
    read = {a for v in graph.body for a in v.args} | set(graph.outputs)
    kept = tuple(v for v in graph.inputs if v in read or any(not isinstance(d, int) for d in v.shape))
    return replace(graph, inputs=kept), {v.name: inputs[v.name] for v in kept}


def saved(failure: Failure, folder: Path, name: str) -> Path:
    """The failing graph as IR text, with its inputs beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.graph"
    path.write_text(f"{print_graph(failure.graph)}\n")
    np.savez(folder / f"{name}.npz", **failure.inputs)  # type: ignore[arg-type]
    return path


Report = Callable[[str], None]
