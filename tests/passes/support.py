"""Before and after, side by side: each case is IR text, a pass, and the IR text it must become.

Meaning is checked too: both graphs are run by the interpreter on random inputs.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace

import numpy as np

import ingot.compiler.ops  # noqa: F401
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.symbolic import Symbol, atoms
from ingot.compiler.ir.text.graph import parse_graph, print_graph, same_structure
from ingot.compiler.ir.verify import verify_graph
from ingot.compiler.ops.base import Op
from ingot.compiler.passes.rewriting import Pass


def graph_of(text: str) -> Graph:
    return parse_graph(textwrap.dedent(text).strip(), Op.registry)


def inputs_for(graph: Graph, size: int = 3) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    arrays = {}
    for value in graph.inputs:
        shape = []
        for dim in value.shape:
            symbols = [a for a in atoms(dim) if isinstance(a, Symbol)] if not isinstance(dim, int) else []
            assert len(symbols) <= 1, "cases use plain symbolic dims"
            shape.append(size if symbols else dim)
        dtype = value.tensor.dtype
        if dtype.is_float:
            array = generator.uniform(0.5, 2.0, shape)
        else:
            array = generator.integers(0, 2, shape)
        arrays[value.op.name] = np.asarray(array).astype(dtype.numpy)
    return arrays


def same_meaning(before: Graph, after: Graph, tolerance: float = 0.0) -> None:
    inputs = inputs_for(before)
    for want, have in zip(run_graph(before, inputs), run_graph(after, inputs), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


def anonymous(graph: Graph) -> Graph:
    """The graph without names and sources of its values: only its structure counts."""
    made = {v: v for v in graph.inputs}
    for value in graph.body:
        made[value] = replace(value, args=tuple(made[a] for a in value.args), name="", source=None)
    return replace(graph, outputs=tuple(made[v] for v in graph.outputs))


def becomes(step: Pass, before: str, after: str, tolerance: float = 0.0) -> None:
    """The pass turns one text into the other and keeps the meaning."""
    source = graph_of(before)
    verify_graph(source)
    result = step(source)
    verify_graph(result)
    same_meaning(source, result, tolerance)
    expected, result = anonymous(graph_of(after)), anonymous(result)
    assert same_structure(result, expected), f"expected\n{print_graph(expected)}\nfound\n{print_graph(result)}"


def stays(step: Pass, before: str) -> None:
    becomes(step, before, before)
