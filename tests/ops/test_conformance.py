"""The tests every op gets for nothing: each op of the registry, on each of its samples, at every level.

    infer == evaluate           the type rule tells the truth
    symbolic == evaluate        the same code is right when dims are only known at run time
    text round trip             what is printed is what was built
    way down == evaluate        index notation, decomposition or loops compute the NumPy meaning
    compiled == evaluate        and so does native code
    gradient == differences     in double precision, also of gradients

An op without samples fails: nothing enters the language untested.
"""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest

import ingot.compiler.ops  # noqa: F401  (completes the registry)
from ingot.compiler import autodiff
from ingot.compiler.ir import interpret, loops, tensor, text
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.types import TensorType, TupleType, f64, type_of
from ingot.compiler.ops.base import Op, OpTypeError, Sample
from ingot.compiler.options import Options
from ingot.compiler.pipeline import compile_graph
from ingot.runtime.executable import Executable
from tests.ops import harness

OPS = dict(sorted(Op.registry.items()))
WITHOUT_SAMPLES = {"get"}  # names a result of another op; every op with several results tests it
ONCE_DIFFERENTIABLE = {"lgamma"}  # its gradient is digamma, whose own is not in the language


def every_sample() -> list[Any]:
    return [
        pytest.param(sample, id=f"{name}-{number}-{harness.dtype_names(types_of(sample))}")
        for name, kind in OPS.items()
        for number, sample in enumerate(kind.samples())
    ]


def types_of(sample: Sample) -> list[TensorType]:
    return [a if isinstance(a, TensorType) else type_of(a) for a in sample.args]


SAMPLES = every_sample()


def with_way_down(*ways: str) -> list[Any]:
    return [p for p in SAMPLES if type(p.values[0].op).way_down() in ways]


@pytest.fixture
def args(sample: Sample) -> harness.Arrays:
    return arguments_of(sample)


def arguments_of(sample: Sample) -> harness.Arrays:
    seed = zlib.crc32(repr((sample.op.name, types_of(sample))).encode())
    return harness.arguments_of(sample, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", OPS.values(), ids=OPS.keys())
def test_every_op_is_complete(kind: type[Op]):
    assert kind.way_down() in ("lower", "decompose", "loops", "regions")
    assert kind.__doc__, f"{kind.name} does not say what it computes"
    if kind.name not in WITHOUT_SAMPLES:
        assert list(kind.samples()), f"{kind.name} has no samples, so nothing about it is tested"
    has_gradient = (kind.vjp, kind.vjp_with) != (Op.vjp, Op.vjp_with) or kind.way_down() == "decompose"
    assert has_gradient or not kind.differentiable or kind.name in WITHOUT_SAMPLES


@pytest.mark.parametrize("sample", SAMPLES)
def test_type_rule_agrees_with_meaning(sample: Sample, args: harness.Arrays):
    expected = harness.result_types(sample.op, [type_of(a) for a in args])
    found = harness.evaluate(sample.op, *args)
    assert tuple(type_of(f) for f in found) == expected


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_result_is_the_same_where_it_is_wanted(sample: Sample, args: harness.Arrays):
    if isinstance(sample.op.infer(*map(type_of, args)), TupleType):
        return
    (expected,) = harness.evaluate(sample.op, *args)
    room = np.zeros(expected.shape, expected.dtype)
    with np.errstate(all="ignore"):
        sample.op.evaluate_into(room, *args)
    np.testing.assert_array_equal(room, expected)


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_reads_back(sample: Sample):
    graph = harness.op_graph(sample.op, types_of(sample))
    printed = text.print_graph(graph)
    again = text.parse_graph(printed, Op.registry)
    assert text.print_graph(again) == printed
    assert text.same_structure(graph, again)


@pytest.mark.parametrize("sample", with_way_down("lower"))
def test_index_notation_computes_the_meaning(sample: Sample, args: harness.Arrays):
    kernel = kernel_of(sample.op, types_of(sample))
    found = interpret.run_kernel(kernel, args)
    harness.assert_same(found, harness.evaluate(sample.op, *args))


def kernel_of(op: Op, types: list[TensorType]) -> tensor.Kernel:
    inputs = tuple(Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate(types))
    (type_,) = harness.result_types(op, types)
    output = Buffer("y", type_.dtype, type_.shape)
    variables = tensor.axes(type_.shape)
    value = op.lower(type_, variables, *map(tensor.BufferReader, inputs))
    return tensor.Kernel(op.name, inputs, (output,), (tensor.Definition(output, variables, value),))


@pytest.mark.parametrize("sample", with_way_down("decompose"))
def test_decomposition_computes_the_meaning(sample: Sample, args: harness.Arrays):
    graph = harness.decomposition(sample.op, [type_of(a) for a in args])
    harness.assert_same(harness.run(graph, *args), harness.evaluate(sample.op, *args))


@pytest.mark.parametrize("sample", with_way_down("loops"))
def test_loops_compute_the_meaning(sample: Sample, args: harness.Arrays):
    function = function_of(sample.op, types_of(sample))
    expected = harness.evaluate(sample.op, *args)
    forward, backward = (run_loops(function, args, expected, order) for order in ("forward", "reverse"))
    harness.assert_same(forward, expected)
    for a, b in zip(forward, backward, strict=True):
        assert a.tobytes() == b.tobytes(), "the result depends on the order of parallel iterations"


def run_loops(function: loops.Function, args: harness.Arrays, like: harness.Arrays, order: Any) -> list[np.ndarray]:
    results = [np.empty(e.shape, e.dtype) for e in like]
    interpret.run_function(function, [*args, *results], parallel_order=order)
    return results


def function_of(op: Op, types: list[TensorType]) -> loops.Function:
    inputs = [Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate(types)]
    outputs = [Buffer(f"y{n}", t.dtype, t.shape) for n, t in enumerate(harness.result_types(op, types))]
    return loops.Function(op.name, (*inputs, *outputs), op.loops(outputs, inputs))


def symbolic_samples() -> list[Any]:
    """Samples whose op also takes dims that are not known; one for each op and shapes."""
    chosen: dict[Any, Any] = {}
    for parameter in with_way_down("lower", "decompose", "loops"):
        sample = parameter.values[0]
        types = harness.with_symbolic_dims(types_of(sample))
        key = (sample.op, *(t.shape for t in types))
        if types != types_of(sample) and key not in chosen and accepts(sample.op, types):
            chosen[key] = parameter
    return list(chosen.values())


def accepts(op: Op, types: list[TensorType]) -> bool:
    try:
        op.infer(*types)
    except OpTypeError:
        return False
    return True


@pytest.mark.parametrize("sample", symbolic_samples())
def test_symbolic_dims_compute_the_meaning(sample: Sample, args: harness.Arrays):
    types = harness.with_symbolic_dims(types_of(sample))
    expected = harness.evaluate(sample.op, *args)
    match type(sample.op).way_down():
        case "lower":
            found = interpret.run_kernel(kernel_of(sample.op, types), args)
        case "loops":
            found = run_loops(function_of(sample.op, types), args, expected, "forward")
        case _:
            found = harness.run(harness.decomposition(sample.op, types), *args)
    harness.assert_same(found, expected)


def check_native(name: str, samples: list[Sample], types: list[list[TensorType]]) -> None:
    """All samples in one program, because compiling takes longer than running."""
    args = [arguments_of(sample) for sample in samples]
    graph = harness.graph_of_samples(name, [(s.op, t) for s, t in zip(samples, types, strict=True)])
    program = compile_graph(graph, Options(cache=False)).program
    found = iter(harness.several(Executable(program, threads=2)(*itertools.chain(*args))))
    for number, (sample, each) in enumerate(zip(samples, args, strict=True)):
        expected = harness.evaluate(sample.op, *each)
        try:
            harness.assert_same([next(found) for _ in expected], expected)
        except AssertionError as error:
            raise AssertionError(f"sample {number}: {sample.op} of {types[number]}: {error}") from None


@pytest.mark.parametrize("name", [name for name in OPS if name not in WITHOUT_SAMPLES])
def test_native_code_computes_the_meaning(name: str):
    samples = list(OPS[name].samples())
    check_native(name, samples, [types_of(sample) for sample in samples])


def symbolic_by_op() -> dict[str, list[Sample]]:
    grouped: dict[str, list[Sample]] = {}
    for parameter in symbolic_samples():
        grouped.setdefault(parameter.values[0].op.name, []).append(parameter.values[0])
    return grouped


@pytest.mark.parametrize(("name", "samples"), symbolic_by_op().items(), ids=symbolic_by_op().keys())
def test_native_code_takes_symbolic_dims(name: str, samples: list[Sample]):
    check_native(name, samples, [harness.with_symbolic_dims(types_of(sample)) for sample in samples])


def smooth(sample: Sample) -> bool:
    """Whether the sample has a gradient to check; one in a narrow type is checked in double precision."""
    if not sample.op.differentiable or sample.wrt == ():
        return False
    types = harness.doubled(types_of(sample))
    return f64 in [t.dtype for t in types] and f64 in [t.dtype for t in harness.result_types(sample.op, types)]


def gradient_samples() -> list[Any]:
    """One of those that become the same in double precision."""
    chosen: dict[Any, Any] = {}
    for parameter in SAMPLES:
        sample = parameter.values[0]
        if smooth(sample):
            key = (sample.op, *harness.doubled(types_of(sample)))
            chosen.setdefault(key, parameter)
    return list(chosen.values())


def double_graph(sample: Sample, args: harness.Arrays) -> tuple[Graph, harness.Arrays, list[int]]:
    wide = harness.in_double(args)
    graph = harness.op_graph(sample.op, [type_of(a) for a in wide])
    return graph, wide, harness.float_positions(wide, sample)


@pytest.mark.parametrize("sample", gradient_samples())
def test_gradient_agrees_with_differences(sample: Sample, args: harness.Arrays, rng: np.random.Generator):
    graph, wide, wrt = double_graph(sample, args)
    harness.check_gradient(graph, wide, wrt, rng)


def twice_differentiable() -> list[Any]:
    return [p for p in gradient_samples() if p.values[0].op.name not in ONCE_DIFFERENTIABLE][::3]


@pytest.mark.parametrize("sample", twice_differentiable())
def test_gradient_of_gradient_agrees_with_differences(sample: Sample, args: harness.Arrays, rng: np.random.Generator):
    graph, wide, wrt = double_graph(sample, args)
    first = autodiff.differentiate(graph, wrt)
    cotangents = [rng.standard_normal(v.tensor.static_shape) for v in first.inputs[len(wide) :]]
    harness.check_gradient(first, (*wide, *cotangents), wrt, rng)


def symbolic_gradient_samples() -> list[Any]:
    known = {id(p.values[0]) for p in symbolic_samples()}
    return [p for p in gradient_samples() if id(p.values[0]) in known]


@pytest.mark.parametrize("sample", symbolic_gradient_samples())
def test_gradient_takes_symbolic_dims(sample: Sample, args: harness.Arrays, rng: np.random.Generator):
    graph, wide, wrt = double_graph(sample, args)
    types = harness.with_symbolic_dims(type_of(a) for a in wide)
    unknown = autodiff.differentiate(harness.op_graph(sample.op, types), wrt)
    known = autodiff.differentiate(graph, wrt)
    given = [rng.standard_normal(v.tensor.static_shape) for v in known.inputs[len(wide) :]]
    harness.assert_same(harness.run(unknown, *wide, *given), harness.run(known, *wide, *given))
