"""Models whose declared dims do not say what their nodes need: compiled once, checked when called."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.compiler.ir.symbolic import Symbol, minimum
from ingot.frontends.onnx.assumptions import Assumptions
from ingot.frontends.onnx.executable import AssumingFunction
from ingot.frontends.onnx.importer import Importer
from ingot.frontends.onnx.problems import OnnxError
from tests.frontends.onnx.building import Array, model_of, run_onnxruntime

GENERATOR = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def declared(name: str, *shape: int | str | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def compiled(model: onnx.ModelProto) -> Any:
    return ingot.compile(ingot.load_onnx(model), threads=1)


def check(model: onnx.ModelProto, calls: Sequence[Mapping[str, Array]]) -> Any:
    """One program, right for every call."""
    executable = compiled(model)
    assert isinstance(executable, AssumingFunction)
    for inputs in calls:
        (expected,) = run_onnxruntime(model, inputs)
        np.testing.assert_allclose(executable(**inputs), expected, rtol=1e-5, atol=1e-5)
    return executable


def test_a_named_dim_becomes_the_number_that_a_weight_has() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], [declared("x", "n", "features")], ["y"], {"w": floats(7, 3)})
    executable = check(model, [{"x": floats(2, 7)}, {"x": floats(5, 7)}])
    assert executable.inputs[0].shape == ("n", 7)


def test_two_unnamed_dims_become_one() -> None:
    node = helper.make_node("Concat", ["x", "y"], ["z"], axis=1)
    model = model_of([node], [declared("x", None, 3), declared("y", None, 2)], ["z"])
    executable = check(model, [{"x": floats(n, 3), "y": floats(n, 2)} for n in (1, 4)])
    assert len(executable.dims) == 1


def embedding(rows: int) -> onnx.ModelProto:
    """x + the first rows of a table, as many as x has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Slice", ["table", "zero", "n"], ["positions"]),
        helper.make_node("Add", ["x", "positions"], ["y"]),
    ]
    weights = {"table": floats(rows, 3), "zero": np.zeros(1, np.int64)}
    return model_of(nodes, [declared("x", "length", 3)], ["y"], weights)


def test_positions_of_a_sequence_are_as_many_as_its_tokens() -> None:
    check(embedding(16), [{"x": floats(n, 3)} for n in (1, 2, 16)])


def test_a_sequence_longer_than_the_table_is_refused_by_the_node() -> None:
    executable = compiled(embedding(16))
    with pytest.raises(OnnxError, match="17"):
        executable(floats(17, 3))


def test_halves_and_quarters_meet_again() -> None:
    """ceil(h/2) and 2*ceil(h/4), for all sizes for which they are equal."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("MaxPool", ["half"], ["quarter"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("Resize", ["quarter", "", "scales"], ["up"], mode="nearest"),
        helper.make_node("Add", ["half", "up"], ["y"]),
    ]
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = model_of(nodes, [declared("x", 1, 2, "height", "width")], ["y"], weights)
    executable = check(model, [{"x": floats(1, 2, h, w)} for h, w in ((8, 8), (4, 16), (7, 12), (3, 4))])
    assert len(executable.otherwise.staged.first) == 1
    with pytest.raises(OnnxError, match="Add"):
        executable(floats(1, 2, 6, 8))


def test_a_call_that_breaks_an_assumption_is_compiled_for_its_shapes() -> None:
    """Two unnamed dims are taken to be equal, but one may be 1 and stretch."""
    node = helper.make_node("Mul", ["x", "y"], ["z"])
    model = model_of([node], [declared("x", "n", 3), declared("y", "m", 3)], ["z"])
    sizes = ((4, 4), (4, 1), (1, 4), (2, 2))
    executable = check(model, [{"x": floats(n, 3), "y": floats(m, 3)} for n, m in sizes])
    with pytest.raises(OnnxError, match="broadcast"):
        executable(floats(2, 3), floats(3, 3))


def test_a_wrong_rank_is_an_error_about_the_argument() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    executable = compiled(model_of([node], [declared("x", "n", "features")], ["y"], {"w": floats(7, 3)}))
    with pytest.raises(ingot.runtime.errors.ArgumentError, match="axes"):
        executable(floats(7))


def test_names_that_are_no_identifiers() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    executable = compiled(model_of([node], [declared("x", "?", "1.5")], ["y"]))
    assert executable(floats(2, 3)).shape == (2, 3)


def test_an_output_may_be_listed_twice() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    first, second = compiled(model_of([node], [declared("x", 2)], ["y", "y"]))(floats(2))
    assert np.array_equal(first, second)


def test_places_of_ones_are_counted_while_compiling() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1])),
        helper.make_node("NonZero", ["ones"], ["places"]),
    ]
    executable = compiled(model_of(nodes, [declared("x", "n")], ["places"]))
    assert not hasattr(executable, "host_nodes")
    assert np.array_equal(executable(floats(4)), [[0, 1, 2, 3]])


def test_assumptions_are_written_in_the_simplest_form() -> None:
    n, m = Symbol("n"), Symbol("batch")
    assumed = Assumptions().with_equal([(minimum(512, n), n), (m, n)])
    assert assumed is not None
    assert assumed.stated(minimum(512, n)) == n
    assert assumed.stated(2 * m) == 2 * n
    assert assumed.with_equal([(n, 3), (m, 4)]) is None  # n and m are one dim, which cannot be both
    assert assumed.with_equal([(n, m)]) is None  # nothing new


def test_an_expression_is_assumed_where_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of sums of unlike halves: each assumption is made in passing, the import does not begin anew."""
    nodes = []
    for number in range(3):
        pool = {"kernel_shape": [2], "strides": [2], "ceil_mode": number % 2}
        nodes.append(helper.make_node("MaxPool", [f"x{number}"], [f"a{number}"], **pool))
        nodes.append(helper.make_node("MaxPool", [f"x{number}"], [f"b{number}"], **{**pool, "ceil_mode": 1 - number % 2}))
        nodes.append(helper.make_node("Add", [f"a{number}", f"b{number}"], [f"x{number + 1}"]))
    model = model_of(nodes, [declared("x0", 1, 2, "n")], ["x3"])
    runs: list[int] = []
    run = Importer.run
    monkeypatch.setattr(Importer, "run", lambda *given, **named: runs.append(1) or run(*given, **named))
    check(model, [{"x0": floats(1, 2, n)} for n in (8, 16)])
    assert len(runs) == 1


@pytest.mark.parametrize("result", [None, [], [None], [None, None]])
def test_whether_a_dim_is_one_decides_the_rank(result: list[None] | None):
    """Squeeze without axes: one program for the rank that the file declares, others for calls that have another."""
    output = "y" if result is None else declared("y", *result)
    nodes = [helper.make_node("Neg", ["x"], ["s"]), helper.make_node("Squeeze", ["s"], ["y"])]
    executable = compiled(model_of(nodes, [declared("x", "n", 1, "k")], [output]))
    assert isinstance(executable, AssumingFunction)
    assert len(executable.outputs[0].shape) == (2 if result is None else len(result))
    for shape in [(3, 1, 4), (1, 1, 4), (3, 1, 1), (1, 1, 1), (2, 1, 5), (1, 1, 7), (1, 1, 4), (1, 1, 1)]:
        x = floats(*shape)
        np.testing.assert_array_equal(executable(x=x), -np.squeeze(x))


def test_a_quotient_of_what_is_left_of_a_length() -> None:
    """Exporters write how many windows there are as (length - 3) / 4, truncated: one program for lengths from 3 on."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Add", ["length", "minus"], ["rest"]),
        helper.make_node("Div", ["rest", "four"], ["count"]),
        helper.make_node("Slice", ["x", "zero", "count", "one"], ["y"]),
    ]
    numbers = {"minus": [-3], "four": [4], "zero": [0], "one": [1]}
    constants = {name: np.array(value) for name, value in numbers.items()}
    executable = check(model_of(nodes, [declared("x", "n", "length")], ["y"], constants), [
        {"x": floats(2, length)} for length in (3, 6, 7, 20)
    ])  # fmt: skip
    assert [executable(floats(2, length)).shape for length in (1, 2, 7)] == [(2, 0), (2, 0), (2, 1)]


def test_a_roll_by_less_than_a_size() -> None:
    """The remainder of a shift by a size is the shift where the size is larger; a smaller size has its own program."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=0, end=1),
        helper.make_node("Mod", ["shift", "size"], ["by"]),
        helper.make_node("Slice", ["x", "zero", "by", "zero"], ["head"]),
        helper.make_node("Slice", ["x", "by", "size", "zero"], ["tail"]),
        helper.make_node("Concat", ["tail", "head"], ["y"], axis=0),
    ]
    constants = {"shift": np.array([2]), "zero": np.array([0])}
    executable = check(
        model_of(nodes, [declared("x", "size")], ["y"], constants), [{"x": floats(size)} for size in (3, 8, 2, 1)]
    )
    assert executable.dims[0].lower == 3


def test_a_decoder_begins_with_an_empty_memory() -> None:
    """An open dim is at least 1 in the program; an empty array has a program of its own, and wrong ones stay errors."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
        helper.make_node("MatMul", ["all", "w"], ["y"]),
    ]
    model = model_of(nodes, [declared("past", "n", "past", 4), declared("x", "n", 2, 4)], ["y"], {"w": floats(4, 5)})
    executable = compiled(model)
    for past in (0, 3, 0, 1):
        inputs = {"past": floats(2, past, 4), "x": floats(2, 2, 4)}
        (expected,) = run_onnxruntime(model, inputs)
        np.testing.assert_allclose(executable(**inputs), expected, rtol=1e-5, atol=1e-5)
    assert len(executable.otherwise.staged.first) <= 2
    with pytest.raises(ingot.runtime.errors.ArgumentError, match="n"):
        executable(floats(2, 3, 4), floats(1, 2, 4))
