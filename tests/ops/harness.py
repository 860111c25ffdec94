"""What the tests of ops share: samples as arrays, graphs of one op, gradients against differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ingot.compiler import autodiff
from ingot.compiler.ir.graph import Builder, Graph, Value, results_of
from ingot.compiler.ir.interpret import run_graph
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import DType, TensorType, f64, type_of
from ingot.compiler.ops.base import Node, Op, Sample

Arrays = tuple[np.ndarray, ...]

# How far two correct computations of the same formula may differ: (relative, absolute).
TOLERANCE = {"f64": (1e-10, 1e-12), "f32": (2e-5, 1e-6), "f16": (4e-3, 1e-3), "bf16": (2e-2, 1e-2)}


def random_array(type_: TensorType, rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    shape = type_.static_shape
    if type_.dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if type_.dtype.is_integer:
        return rng.integers(int(np.ceil(low)), int(np.floor(high)) + 1, shape).astype(type_.dtype.numpy)
    return rng.uniform(low, high, shape).astype(type_.dtype.numpy)


def arguments_of(sample: Sample, rng: np.random.Generator) -> Arrays:
    return tuple(
        random_array(a, rng, sample.low, sample.high) if isinstance(a, TensorType) else np.asarray(a)
        for a in sample.args
    )


def several(result: Any) -> Arrays:
    """The results of an op as a tuple of arrays."""
    return tuple(np.asarray(r) for r in (result if isinstance(result, (tuple, list)) else (result,)))


def evaluate(op: Op, *args: np.ndarray) -> Arrays:
    with np.errstate(all="ignore"):
        return several(op.evaluate(*args))


def build(function: Callable[..., Any], types: Iterable[TensorType], name: str = "sample") -> Graph:
    """The graph of a function of nodes; with no arguments the function gets the builder."""
    builder = Builder()
    nodes = [Node(builder, builder.input(f"x{n}", t)) for n, t in enumerate(types)]
    made = function(*nodes) if nodes else function(builder)
    made = made if isinstance(made, tuple) else (made,)
    return Graph(name, builder.inputs, tuple(n.value for n in made))


def op_graph(op: Op, types: Sequence[TensorType]) -> Graph:
    """The op on inputs x0, x1, ...; several results are several outputs."""
    builder = Builder()
    inputs = [builder.input(f"x{n}", t) for n, t in enumerate(types)]
    value = builder.emit(op, *inputs)
    wrapped = Node(builder, value).wrap(value)
    nodes = wrapped if isinstance(wrapped, tuple) else (wrapped,)
    return Graph(op.name, builder.inputs, tuple(n.value for n in nodes))


def graph_of_samples(name: str, samples: Iterable[tuple[Op, Sequence[TensorType]]]) -> Graph:
    """Several ops side by side, each on inputs of its own; all their results are outputs, in order."""
    builder = Builder()
    outputs: list[Value] = []
    for number, (op, types) in enumerate(samples):
        inputs = [builder.input(f"x{number}_{n}", t) for n, t in enumerate(types)]
        value = builder.emit(op, *inputs)
        wrapped = Node(builder, value).wrap(value)
        outputs += [n.value for n in (wrapped if isinstance(wrapped, tuple) else (wrapped,))]
    return Graph(name, builder.inputs, tuple(outputs))


def decomposition(op: Op, types: Sequence[TensorType]) -> Graph:
    def parts(*nodes: Node) -> Any:
        return op.decompose(*nodes)

    return build(parts, types, f"{op.name}.decomposed")


def run(graph: Graph, *args: np.ndarray) -> Arrays:
    return run_graph(graph, dict(zip(graph.input_names, args, strict=True)))


def call(function: Callable[..., Any], *args: np.ndarray) -> Any:
    """A function of nodes on arrays: build its graph and run it."""
    results = run(build(function, [type_of(a) for a in args]), *args)
    return results[0] if len(results) == 1 else results


def gradient_of(function: Callable[..., Any], *args: np.ndarray, wrt: int = 0) -> np.ndarray:
    """The gradient of the sum of a function's result."""
    graph = build(function, [type_of(a) for a in args])
    vjp = autodiff.differentiate(graph, [wrt])
    ones = [np.ones(v.tensor.static_shape, v.tensor.dtype.numpy) for v in vjp.inputs[len(args) :]]
    return run(vjp, *args, *ones)[0]


# --- comparisons ----------------------------------------------------------------------------------


def assert_same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], factor: float = 1.0) -> None:
    """Equal types; equal integers; floats as near as their type allows, NaN and infinities in place."""
    assert [type_of(f) for f in found] == [type_of(e) for e in expected]
    for a, b in zip(found, expected, strict=True):
        name = type_of(b).dtype.name
        if name not in TOLERANCE:
            np.testing.assert_array_equal(a, b)
            continue
        relative, absolute = TOLERANCE[name]
        wide = np.float64
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), relative * factor, absolute * factor)


# --- gradients ------------------------------------------------------------------------------------


def float_positions(args: Sequence[np.ndarray], sample: Sample) -> list[int]:
    chosen = range(len(args)) if sample.wrt is None else sample.wrt
    return [n for n in chosen if type_of(args[n]).dtype.is_float]


def in_double(args: Sequence[np.ndarray]) -> Arrays:
    return tuple(a.astype(np.float64) if type_of(a).dtype.is_float else a for a in args)


def doubled(types: Iterable[TensorType]) -> list[TensorType]:
    return [t.with_dtype(f64) if t.dtype.is_float else t for t in types]


def check_gradient(graph: Graph, args: Arrays, wrt: Sequence[int], rng: np.random.Generator) -> None:
    """<cotangent, df(x; v)> by central differences equals <vjp(cotangent), v>, in random directions v, one
    argument at a time so that a failure names it."""
    vjp = autodiff.differentiate(graph, list(wrt))
    weights = [rng.standard_normal(v.tensor.static_shape) if is_double(v) else None for v in graph.outputs]
    given = [w for w in weights if w is not None]
    found = run(vjp, *args, *given)
    for position, gradient in zip(wrt, found, strict=True):
        direction = rng.standard_normal(args[position].shape)
        expected = directional_difference(graph, args, position, direction, weights)
        product = float(np.sum(gradient * direction))
        scale = max(abs(expected), abs(product), 1e-3 * float(np.linalg.norm(gradient)), 1e-7)
        assert abs(product - expected) <= 1e-6 * scale, (
            f"argument {position}: the gradient says {product}, differences say {expected}"
        )


def is_double(value: Value) -> bool:
    return value.tensor.dtype == f64


def directional_difference(
    graph: Graph, args: Arrays, position: int, direction: np.ndarray, weights: Sequence[np.ndarray | None]
) -> float:
    """Central differences with two steps, extrapolated: the error is of the fourth order in the step."""

    def projected(step: float) -> float:
        moved = list(args)
        moved[position] = args[position] + step * direction
        results = run(graph, *moved)
        return sum(float(np.sum(w * r)) for w, r in zip(weights, results, strict=True) if w is not None)

    def difference(step: float) -> float:
        return (projected(step) - projected(-step)) / (2 * step)

    step = 1e-4
    return (4 * difference(step / 2) - difference(step)) / 3


def result_types(op: Op, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return results_of(op.infer(*types))


def with_symbolic_dims(types: Iterable[TensorType]) -> list[TensorType]:
    """Every dim above 1 as a symbol; equal dims as the same symbol."""
    return [t.with_shape(Symbol(f"d{d}") if isinstance(d, int) and d > 1 else d for d in t.shape) for t in types]


def dtype_names(types: Iterable[TensorType]) -> str:
    return "_".join(dict.fromkeys(_name(t.dtype) for t in types)) or "none"


def _name(dtype: DType) -> str:
    return dtype.name
