"""A graph on disk: its text, and beside it the values of its constants.

`name.txt` can be read and edited; `name.npz` holds one array for each constant input, in their order, so that
the names of inputs are free of what an archive allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ingot.compiler.ir.graph import Graph, input_of
from ingot.compiler.ir.text.graph import parse_graph, print_graph


def save_dump(graph: Graph, path: str | Path) -> Path:
    """Write the graph to `path` and, when it has constants, their values to the same name with `.npz`."""
    path = Path(path)
    path.write_text(print_graph(graph), encoding="utf-8")
    arrays: dict[str, np.ndarray] = {}
    for number, value in enumerate(graph.inputs_with("constant")):
        name = input_of(value).name
        if name in graph.constants:
            # as plain bytes, because an archive knows only NumPy's own element types
            array = np.asarray(graph.constants[name])
            arrays[f"constant{number}"] = np.frombuffer(array.tobytes(), np.uint8)
            arrays[f"shape{number}"] = np.array(array.shape, np.int64)
    if arrays:
        with path.with_suffix(".npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    return path


def load_dump(path: str | Path, registry: Mapping[str, type]) -> Graph:
    """The graph that `save_dump` wrote, constants included."""
    path = Path(path)
    graph = parse_graph(path.read_text(encoding="utf-8"), registry)
    beside = path.with_suffix(".npz")
    if not beside.exists():
        return graph
    constants: dict[str, np.ndarray] = {}
    with np.load(beside, allow_pickle=False) as arrays:
        for number, value in enumerate(graph.inputs_with("constant")):
            if f"constant{number}" in arrays:
                elements = np.frombuffer(arrays[f"constant{number}"].tobytes(), value.tensor.dtype.numpy)
                constants[input_of(value).name] = elements.reshape(arrays[f"shape{number}"])
    return replace(graph, constants=constants)
