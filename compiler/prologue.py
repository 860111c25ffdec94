"""The constants of a program: given ones, and what is computed from them when the program is made.

What `passes/fold_constants.py` splits off is one graph. It falls into parts that share nothing, about one for each
layer, and the parts of like layers compute the same of other weights. So each computation is kept once, with the names
that a part reads and makes; reading it back takes as long as the distinct ones, and parts run side by side.

Results go straight to the memory where the program reads them, 64-byte aligned, and so does a given constant that is
not. Which thread runs a part changes nothing about it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.compiler.ir.graph import Graph, Input, Value, input_of
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.text.graph import parse_graph, print_graph
from ingot.compiler.ops.base import Op
from ingot.runtime.storage import aligned_together, copy_into, is_aligned, write_side_by_side


@dataclass(frozen=True)
class Part:
    """`graph` is a computation of unnamed values; `inputs` and `outputs` say of which and for which constants."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, given: Mapping[str, np.ndarray], rooms: Mapping[str, np.ndarray]) -> None:
        arrays = {name: given[constant] for name, constant in zip(self.graph.input_names, self.inputs, strict=True)}
        run_graph(self.graph, arrays, into=[rooms[name] for name in self.outputs])


@dataclass(frozen=True)
class Prologue:
    parts: tuple[Part, ...] = ()

    @staticmethod
    def of(graph: Graph | None) -> Prologue:
        """The parts of a prologue; equal computations are one graph."""
        if graph is None:
            return Prologue()
        names = dict(zip(graph.outputs, graph.output_names, strict=True))
        known: dict[str, Graph] = {}
        parts = []
        for outputs in _components(graph):
            computation, inputs = _computation(outputs)
            computation = known.setdefault(print_graph(computation, sources=False), computation)
            parts.append(Part(computation, inputs, tuple(names[v] for v in outputs)))
        return Prologue(tuple(parts))

    def to_bytes(self) -> bytes:
        graphs = list(dict.fromkeys(part.graph for part in self.parts))
        numbers = {graph: number for number, graph in enumerate(graphs)}
        texts = [print_graph(graph, sources=False) for graph in graphs]
        return json.dumps([texts, [(numbers[p.graph], p.inputs, p.outputs) for p in self.parts]]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Prologue:
        texts, parts = json.loads(data)
        graphs = [parse_graph(text, Op.registry) for text in texts]
        return Prologue(tuple(Part(graphs[number], tuple(inputs), tuple(outputs)) for number, inputs, outputs in parts))

    def folded(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is computed, by name."""
        return self.constants([], given)

    def constants(
        self, names: Iterable[str], given: Mapping[str, np.ndarray], workers: int = 1
    ) -> dict[str, np.ndarray]:
        """The arrays of these constants, aligned."""
        types = {n: v.tensor for p in self.parts for n, v in zip(p.outputs, p.graph.outputs, strict=True)}
        known = {name: given[name] for name in names if name not in types}
        unfit = {name: array for name, array in known.items() if not is_aligned(array)}
        forms = {name: (array.shape, array.dtype) for name, array in unfit.items()}
        forms |= {name: (t.static_shape, t.dtype.numpy) for name, t in types.items()}
        sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in forms.items()}
        memory = aligned_together(list(sizes.values()), present=False)  # each thread asks for the pages it writes
        rooms = {n: np.ndarray(*form, m) for (n, form), m in zip(forms.items(), memory, strict=True)}

        def copy(name: str) -> Callable[[], None]:
            return lambda: copy_into(rooms[name], unfit[name])

        def run(part: Part) -> Callable[[], None]:
            return lambda: part.run(given, rooms)

        work = [(sizes[name], copy(name)) for name in unfit]
        work += [(sum(sizes[name] for name in part.outputs), run(part)) for part in self.parts]
        write_side_by_side(work, workers)
        return known | rooms


def _components(graph: Graph) -> list[tuple[Value, ...]]:
    """The outputs, those together that share something computed. What is computed of nothing but literals is
    computed by each."""
    group: dict[Value, list[Value]] = {}  # of a value that depends on an input; equal groups are one list
    for value in graph.body:
        found = {id(group[a]): group[a] for a in value.args if a in group}
        if not found and not any(isinstance(a.op, Input) for a in value.args):
            continue
        largest = max(found.values(), key=len, default=[])
        for other in found.values():
            if other is not largest:
                largest += other
                group.update(dict.fromkeys(other, largest))
        largest.append(value)
        group[value] = largest
    together: dict[int, list[Value]] = {}
    for output in graph.outputs:
        together.setdefault(id(group.get(output, output)), []).append(output)
    return [tuple(outputs) for outputs in together.values()]


def _computation(outputs: Sequence[Value]) -> tuple[Graph, tuple[str, ...]]:
    """What the outputs are computed by, without names, and the names of its inputs."""
    whole = Graph("part", (), tuple(outputs))
    made: dict[Value, Value] = {}
    inputs: dict[str, Value] = {}
    for value in whole.body:
        for arg in value.args:
            if isinstance(arg.op, Input) and arg not in made:
                name = f"x{len(inputs)}"
                made[arg] = inputs[input_of(arg).name] = Value(Input(name, "constant"), (), arg.type, None, name)
        made[value] = Value(value.op, tuple(made[a] for a in value.args), value.type)
    return Graph("part", tuple(inputs.values()), tuple(made[v] for v in outputs)), tuple(inputs)
