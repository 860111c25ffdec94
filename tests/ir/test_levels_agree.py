"""Whole programs at every level: the graph, its kernels and its entry function verify, read back from text, and
compute the same; the loop interpreter checks every access on the way, with parallel loops in random order.

Native code is compared elsewhere; what fails here fails before any instruction is chosen.
"""

from __future__ import annotations

import zlib
from itertools import islice

import numpy as np
import pytest

import ingot.compiler.ops  # noqa: F401  (completes the registry)
from ingot.compiler.assembly import Assembly, assemble
from ingot.compiler.ir import interpret, text
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.symbolic import Symbol, evaluate
from ingot.compiler.ir.types import TensorType, type_of
from ingot.compiler.ir.verify import verify_function, verify_graph, verify_kernel
from ingot.compiler.ops.base import Op, OpTypeError, Sample
from ingot.compiler.options import Options
from ingot.compiler.pipeline import run_passes
from ingot.compiler.schedule import schedule
from ingot.compiler.target import Target
from tests.ops import harness

SAMPLES_PER_OP = 2  # of those with known dims; one with symbolic dims
TARGET = Target.named("x86-64-v3")
OPS = {name: samples for name, kind in sorted(Op.registry.items()) if (samples := list(kind.samples()))}


def types_of(sample: Sample) -> list[TensorType]:
    return [a if isinstance(a, TensorType) else type_of(a) for a in sample.args]


def read_back(graph: Graph) -> tuple[Graph, Assembly, Function]:
    """The optimised graph, what it became, and its entry function, all of them by way of their text."""
    optimised = run_passes(graph, Options(verify=True))
    again = text.parse_graph(text.print_graph(optimised), Op.registry, optimised.constants)
    assert text.same_structure(again, optimised)
    assembly = assemble(again, lambda kernel, choices: schedule(kernel, TARGET, choices))
    for placed in assembly.kernels:
        if placed.kernel is not None:
            verify_kernel(placed.kernel)
            printed = text.print_kernel(placed.kernel)
            assert text.print_kernel(text.parse_kernel(printed)) == printed
    verify_function(assembly.entry)
    printed = text.print_function(assembly.entry)
    entry = text.parse_function(printed)
    assert text.print_function(entry) == printed
    verify_function(entry)
    return again, assembly, entry


def check(op: Op, types: list[TensorType], args: harness.Arrays, dims: dict[Symbol, int]) -> None:
    graph = harness.op_graph(op, types)
    verify_graph(graph)
    expected = harness.evaluate(op, *args)
    harness.assert_same(harness.run(graph, *args), expected)
    optimised, _, entry = read_back(graph)
    harness.assert_same(harness.run(optimised, *args), expected)
    shapes = [tuple(evaluate(d, dims) for d in v.shape) for v in optimised.outputs]
    outputs = [np.empty(s, v.tensor.dtype.numpy) for s, v in zip(shapes, optimised.outputs, strict=True)]
    given = [np.array(a, order="C") for a in (*args, *optimised.constants.values())]
    interpret.run_function(entry, [*given, *outputs], dims, parallel_order="shuffled")
    harness.assert_same(outputs, expected)


def arguments_of(sample: Sample) -> harness.Arrays:
    return harness.arguments_of(sample, np.random.default_rng(zlib.crc32(repr(types_of(sample)).encode())))


@pytest.mark.parametrize("name", OPS)
def test_levels_agree(name: str):
    for sample in islice(OPS[name], SAMPLES_PER_OP):
        check(sample.op, types_of(sample), arguments_of(sample), {})


@pytest.mark.parametrize("name", OPS)
def test_levels_agree_on_symbolic_dims(name: str):
    for sample in OPS[name][:1]:
        args = arguments_of(sample)
        types = harness.with_symbolic_dims(types_of(sample))
        dims = {d: n for t, a in zip(types, args, strict=True) for d, n in zip(t.shape, a.shape, strict=True)}
        symbols = {d: n for d, n in dims.items() if isinstance(d, Symbol)}
        try:
            sample.op.infer(*types)
        except OpTypeError:
            continue  # this op needs to know its dims
        check(sample.op, types, args, symbols)
