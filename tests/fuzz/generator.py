"""Random graphs: each step picks an op of the registry and arguments that fit it.

`makers.py` knows, op by op, how to choose arguments and fields; here are the graph that grows, its values and
the shapes they may have. A graph draws all its extents from a few, so that values of different steps fit each
other; one of the extents may be symbolic, 1 or 0.
Invariant: the graph depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Value, topological, users_of
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.types import DTYPES, DType, TensorType, boolean, f32, f64, i64
from ingot.compiler.ops.base import Node

MOST_ELEMENTS = 3000
MOST_INPUTS = 7
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 40)
NARROW = ("f16", "bf16", "i8", "i16", "i32", "u8", "u16", "u32", "u64")


@dataclass(frozen=True)
class Settings:
    """What a graph may contain."""

    steps: int = 8
    symbolic: bool = False
    differentiable: bool = False
    control_flow: bool = True


@dataclass
class Case:
    """A graph, how to fill its inputs, and the sizes of its symbolic dim to try."""

    graph: Graph
    ranges: Mapping[str, tuple[Dim, Dim]] = field(default_factory=dict)  # of integer inputs that are indices
    sizes: tuple[int, ...] = ()

    def runs(self) -> list[dict[Symbol, int]]:
        dims = sorted(
            {a for v in self.graph.inputs for d in v.shape for a in symbols_in(d)}, key=lambda symbol: symbol.name
        )
        return [dict.fromkeys(dims, size) for size in self.sizes] if dims else [{}]

    def arrays(self, dims: Mapping[Symbol, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
        made = {}
        for value in self.graph.inputs:
            name = value.name
            low, high = (value_of(d, dims) for d in self.ranges.get(name, (-3, 4)))
            made[name] = random_array(value.tensor, dims, rng, low, high, name in self.ranges)
        return made


def symbols_in(dim: Dim) -> list[Symbol]:
    return [] if isinstance(dim, int) else [a for a in symbolic.atoms(dim) if isinstance(a, Symbol)]


def value_of(dim: Dim, dims: Mapping[Symbol, int]) -> int:
    found = symbolic.substitute(dim, dims)
    assert isinstance(found, int)
    return found


def random_array(
    type_: TensorType, dims: Mapping[Symbol, int], rng: np.random.Generator, low: int, high: int, index: bool
) -> np.ndarray:
    shape = tuple(value_of(d, dims) for d in type_.shape)
    dtype = type_.dtype
    if dtype == boolean:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        floor = low if index or dtype.kind == "int" else 0
        return rng.integers(floor, max(high, floor + 1), shape).astype(dtype.numpy)
    if rng.random() < 0.1:  # whole numbers: ties, zeros
        return rng.integers(-2, 3, shape).astype(dtype.numpy)
    return rng.uniform(-2, 2, shape).astype(dtype.numpy)


class Generator:
    """A graph that grows. `values` are what the next op may read."""

    def __init__(self, seed: int | np.random.Generator, settings: Settings, parent: Generator | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.settings = settings
        self.builder = Builder()
        self.values: list[Node] = []
        self.ranges: dict[str, tuple[Dim, Dim]] = {}
        self.depth = 0 if parent is None else parent.depth + 1
        self.extents: list[Dim] = parent.extents if parent else self._choose_extents()
        self.float: DType = parent.float if parent else (f32 if self.chance(0.6) else f64)
        if parent is None:  # the first input has the symbolic dim alone on an axis
            self.input(self.float, (*self.shape(self.integer(0, 1)), self.extents[0]))

    def _choose_extents(self) -> list[Dim]:
        chosen: list[Dim] = [int(e) for e in self.rng.choice(EXTENTS, 3, replace=False)]
        if self.settings.symbolic:
            chosen[0] = Symbol("n", int(self.chance(0.8)))
        elif self.chance(0.06):
            chosen[0] = 0
        return [*chosen, 1] if self.chance(0.3) else chosen

    # --- chance ------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """low <= result <= high"""
        return int(self.rng.integers(low, high + 1))

    def choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    # --- values ------------------------------------------------------------------------------------

    def shape(self, rank: int | None = None) -> tuple[Dim, ...]:
        wanted = self.choose((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        shape = tuple(self.choose(self.extents) for _ in range(wanted))
        while not fits(shape):
            shape = tuple(1 if self.chance(0.4) else self.choose((d, 2, 3)) for d in shape)
        return shape

    def dtype(self) -> DType:
        if self.chance(0.75):
            return self.float
        return DTYPES[self.choose(NARROW)] if self.chance(0.6) else self.choose((i64, boolean, f32, f64))

    def input(self, dtype: DType, shape: Sequence[Dim], range: tuple[Dim, Dim] | None = None) -> Node:
        name = f"x{len(self.builder.inputs)}"
        node = Node(self.builder, self.builder.input(name, TensorType(dtype, tuple(shape))))
        if range is not None:
            self.ranges[name] = range
        else:
            self.values.append(node)
        return node

    def find(self, *tests: Callable[[Node], bool]) -> Node | None:
        """A value that passes all tests; later ones are likelier."""
        found = [v for v in self.values if all(test(v) for test in tests)]
        if not found:
            return None
        return found[-1 - min(int(self.rng.geometric(0.35)) - 1, len(found) - 1)]

    def value(self, *tests: Callable[[Node], bool], dtype: DType | None = None, rank: int | None = None) -> Node:
        """A value that passes the tests, or a new input of this type when there is none (or by chance)."""
        room = len(self.builder.inputs) < MOST_INPUTS and not self.depth
        wanted = dtype or self.float
        if rank is not None:
            tests = (*tests, lambda v: v.rank == rank)
        if dtype is not None:
            tests = (*tests, lambda v: v.dtype == dtype)
        found = None if room and self.chance(0.1) else self.find(*tests)
        if found is None and room:
            found = self.input(wanted, self.shape(rank))
            found = found if all(test(found) for test in tests) else self.find(*tests)
        if found is None:
            raise LookupError
        return found

    def floating(self, rank: int | None = None, least: int = 0) -> Node:
        return self.value(lambda v: v.dtype.is_float and v.rank >= least, rank=rank)

    def like(self, node: Node) -> Node:
        """A value of the same type: one that is there, perhaps broadcast or reduced, or made from it."""
        same = self.find(lambda v: v.type == node.type)
        if same is not None and self.chance(0.8):
            return same
        other = self.find(lambda v: v.dtype == node.dtype and stretches(v.shape, node.shape))
        if other is not None:
            return other.broadcast_to(node.shape)
        return self.shaped(self.value(dtype=node.dtype), node.type)

    def shaped(self, node: Node, type_: TensorType) -> Node:
        """Some value of the type that depends on the node."""
        if node.dtype != type_.dtype:
            node = node.cast(type_.dtype)
        if stretches(node.shape, type_.shape):
            return node.broadcast_to(type_.shape)
        if node.dtype == boolean:
            return node.any(axes=tuple(range(node.rank))).broadcast_to(type_.shape)
        return node.sum().broadcast_to(type_.shape)

    def indices(self, extent: Dim, shape: Sequence[Dim], dtype: DType = i64) -> Node:
        """An input whose elements are positions of an axis, counted from either end."""
        low = 0 if self.chance(0.5) or dtype.kind == "uint" else -extent
        if self.depth:
            raise LookupError
        return self.input(dtype, shape, (low, extent))

    def add(self, made: Any) -> None:
        for node in made if isinstance(made, tuple) else (made,):
            if fits(node.shape) and node not in self.values:
                self.values.append(node)


def fits(shape: Sequence[Dim]) -> bool:
    size = symbolic.product(shape)
    if isinstance(size, int):
        return size <= MOST_ELEMENTS and len(shape) <= 6
    return value_of(size, dict.fromkeys(symbols_in(size), 9)) <= MOST_ELEMENTS and len(shape) <= 6


def stretches(small: Sequence[Dim], large: Sequence[Dim]) -> bool:
    """Whether one shape broadcasts to the other."""
    if len(small) > len(large):
        return False
    pairs = zip(reversed(small), reversed(large), strict=False)
    return all(a == b or a == 1 for a, b in pairs)


def finish(generator: Generator, name: str) -> Case:
    """The case of a generator: what nobody reads is an output, and some other values too."""
    made = [v.value for v in generator.values]
    everything = topological(made)
    probe = Graph(name, generator.builder.inputs, tuple(everything))
    users = users_of(probe)
    outputs = [v for v in made if not users.get(v) and v in set(everything)]
    outputs += [v for v in made if v in set(everything) and v not in outputs and generator.chance(0.15)]
    kept = outputs or made[-1:]
    # an input that nobody reads may still be the one whose shape says what the symbolic dim is
    inputs = tuple(v for v in generator.builder.inputs if reached(kept, v) or v is generator.builder.inputs[0])
    sizes = (5, 1, 33) if generator.chance(0.5) else (4, 17, 2)
    zero = any(s.lower == 0 for d in generator.extents for s in symbols_in(d))
    return Case(Graph(name, inputs, tuple(kept)), generator.ranges, (*sizes, 0) if zero else sizes)


def reached(outputs: Sequence[Value], target: Value) -> bool:
    return target in outputs or any(target in v.args for v in topological(outputs))
