"""Text of the graph level, and graphs on disk."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ingot.compiler.ops  # noqa: F401  (completes the registry)
from ingot.compiler.ir import interpret, text
from ingot.compiler.ir.graph import Builder, Graph, Source, Value, input_of
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.text import ParseError
from ingot.compiler.ir.types import DTYPES, DType, TensorType, TupleType, bf16, boolean, f32, f64, i64
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.control import If
from ingot.compiler.ops.elementwise import Add, Greater, Mul, Neg
from ingot.compiler.ops.structure import Broadcast, Constant, Get
from tests.ir.random_ir import random_graph

MLP = """\
dim batch in [1, 64]
graph mlp(%x: f32[batch, 4] argument, %w: f32[4] constant @ "model.py:3", %s: f32[batch, 4] state) {
  %0: f32[batch, 4] = broadcast(%w) {shape=[batch, 4]}
  %h: f32[batch, 4] = mul(%x, %0) @ "model.py:12" text "h = x * w"
  %2: f32[batch, 4] = add(%h, %s) named "h" @ node "/layer/Add"
  return %2 as output, %h as "hidden layer"
  update %s = output 0
}
"""


def test_canonical_text_reads_back_as_itself():
    graph = text.parse_graph(MLP, Op.registry)
    assert text.print_graph(graph) == MLP
    assert graph.input_names == ("x", "w", "s")
    assert [input_of(v).role for v in graph.inputs] == ["argument", "constant", "state"]
    assert graph.outputs[0].source == Source(node="/layer/Add")
    assert graph.outputs[0].name == graph.outputs[1].name == "h"
    assert graph.output_names == ("output", "hidden layer")
    assert graph.updates == {"s": 0}
    assert graph.inputs[0].shape[0] == Symbol("batch", 1, 64)


def test_sources_can_be_left_out():
    printed = text.print_graph(text.parse_graph(MLP, Op.registry), sources=False)
    assert "@" not in printed
    assert text.print_graph(text.parse_graph(printed, Op.registry)) == printed


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_read_back(seed):
    graph = random_graph(seed)
    printed = text.print_graph(graph)
    again = text.parse_graph(printed, Op.registry, graph.constants)
    assert text.print_graph(again) == printed
    assert text.same_structure(graph, again)


def test_structure_tells_graphs_apart():
    graph = text.parse_graph(MLP, Op.registry)
    changes = [
        ("mul(", "add("), ("named", "named"), ("batch, 4] state", "batch, 4] argument"), ("12", "13"),
        ("as output", "as other"), ("output 0", "output 1"), ('named "h"', 'named "i"'), ("64", "65"),
        ("(%h, %s)", "(%s, %h)"), ("return %2", "return %0"),
    ]  # fmt: skip
    for old, new in changes:
        other = text.parse_graph(MLP.replace(old, new), Op.registry)
        assert text.same_structure(graph, other) == (old == new), old


# --- fields ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anything:
    """An op with a field of any kind."""

    name = "anything"

    value: Any
    other: Any = 1.0

    def infer(self, *types):
        return f32[()]


REGISTRY = {**Op.registry, "anything": Anything}
N = Symbol("n")


def anything(value: object, other: object = 1.0) -> Graph:
    op = Anything(value, other)
    return Graph("g", (), (Value(op, (), op.infer()),))


def field_of(graph: Graph) -> Any:
    (value,) = graph.outputs
    assert isinstance(value.op, Anything)
    return value.op.value


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -7, 10**30, 0.1, 1.0, -0.0, 1e-300, float("inf"), float("-inf"), "",
        'a "b"\n\\', "ünï`code", b"", b"\x00\xff", (), (1,), (1, (2.5, "x", None), ()), f32, boolean, N,
        2 * N + 1, (N, 3), -N, N // 3, f32[2, 3], TensorType(bf16, (N, 0)), TupleType((f32[()], i64[2])),
        (f32, i64), Symbol("f32"), Symbol("none", 0, 4), Symbol("type"), "inf", (True, 1, 1.0),
    ],
    ids=repr,
)  # fmt: skip
def test_every_kind_of_field_reads_back(value):
    graph = anything(value)
    printed = text.print_graph(graph)
    again = text.parse_graph(printed, REGISTRY)
    assert field_of(again) == value
    assert type(field_of(again)) is type(value)
    assert text.print_graph(again) == printed
    assert text.same_structure(graph, again)


def test_not_a_number_reads_back():
    graph = anything(float("nan"))
    assert np.isnan(field_of(text.parse_graph(text.print_graph(graph), REGISTRY)))
    assert text.same_structure(graph, text.parse_graph(text.print_graph(graph), REGISTRY))


def test_defaults_are_left_out_only_when_they_are_exactly_the_default():
    assert "other" not in text.print_graph(anything(0, 1.0))
    assert "other=1" in text.print_graph(anything(0, 1))
    assert "other=true" in text.print_graph(anything(0, True))


def test_a_field_without_text_is_refused():
    with pytest.raises(TypeError, match="a field of type object has no text"):
        text.print_graph(anything(object()))


def test_dims_of_one_name_and_different_bounds_are_kept_apart():
    graph = anything((Symbol("n"), Symbol("n", 0, 4), Symbol("n", 2)))
    printed = text.print_graph(graph)
    assert field_of(text.parse_graph(printed, REGISTRY)) == field_of(graph)
    assert text.print_graph(text.parse_graph(printed, REGISTRY)) == printed


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_literals_are_readable_and_exact(dtype: DType, rng):
    bits = rng.integers(0, 256, 6 * dtype.itemsize).astype(np.uint8)
    array = (bits[:6] > 99) if dtype == boolean else bits.view(dtype.numpy)
    array = np.nan_to_num(array).reshape(2, 3) if dtype.is_float else array.reshape(2, 3)
    op = Constant(array.tobytes(), dtype, (2, 3))
    printed = text.print_graph(Graph("g", (), (Value(op, (), op.infer()),)))
    assert "value=[[" in printed
    assert text.parse_graph(printed, Op.registry).outputs[0].op == op


@pytest.mark.parametrize(
    "array",
    [np.float32(np.inf), np.array([np.nan, -np.inf, -0.0]), np.zeros((2, 0)), np.arange(100), np.array(3)],
    ids=repr,
)
def test_special_literals_read_back_to_the_bit(array):
    array = np.asarray(array)
    dtype = next(d for d in DTYPES.values() if d.numpy == array.dtype)
    op = Constant(array.tobytes(), dtype, array.shape)
    printed = text.print_graph(Graph("g", (), (Value(op, (), op.infer()),)))
    assert text.parse_graph(printed, Op.registry).outputs[0].op == op


def test_not_a_number_with_a_payload_is_written_as_bytes():
    data = np.array([0x7FC00001], np.uint32).tobytes()
    op = Constant(data, f32, (1,))
    printed = text.print_graph(Graph("g", (), (Value(op, (), op.infer()),)))
    assert 'data=hex "0100c07f"' in printed
    assert text.parse_graph(printed, Op.registry).outputs[0].op == op


# --- regions and several results ------------------------------------------------------------------


def choice() -> Graph:
    """if any(x > y): x * n-wide ... a graph with regions that use the outer symbol."""

    def region(kind: type) -> Graph:
        builder = Builder()
        x, y = builder.input("x", TensorType(f64, (N,))), builder.input("y", TensorType(f64, (N,)))
        ones = builder.emit(Broadcast((N,)), builder.emit(Constant.of(1.0, f64)))
        value = builder.emit(Add(), builder.emit(kind(), x, y), ones)
        return Graph(kind.__name__.lower(), (x, y), (value,))

    builder = Builder()
    condition = builder.input("condition", boolean[()])
    x, y = builder.input("x", TensorType(f64, (N,))), builder.input("y", TensorType(f64, (N,)))
    both = builder.emit(If(region(Add), region(Mul)), condition, x, y)
    return Graph("choice", builder.inputs, (builder.emit(Neg(), builder.emit(Get(0), both)),))


def test_regions_read_back_and_run(rng):
    graph = choice()
    printed = text.print_graph(graph)
    again = text.parse_graph(printed, Op.registry)
    assert text.print_graph(again) == printed
    assert text.same_structure(graph, again)
    x, y = rng.normal(size=(2, 5))
    for condition in (True, False):
        given = {"condition": np.array(condition), "x": x, "y": y}
        (found,) = interpret.run_graph(again, given)
        np.testing.assert_array_equal(found, -((x + y if condition else x * y) + 1))


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "message"),
    [
        ("mul(%x, %0)", "mul(%x, %7)", 4, 31, "no value %7 stands before this line"),
        ("mul(", "nul(", 4, 23, "there is no op called 'nul'"),
        ("{shape=[batch, 4]}", "{shapes=[batch, 4]}", 3, 23, "op broadcast has no field shapes"),
        ("{shape=[batch, 4]}", "", 3, 23, "missing 1 required positional argument"),
        ("%h: f32", "%0: f32", 4, 3, "two values are called %0"),
        ("%x: f32", "%1: f32", 2, 11, "an input has a name, not a number"),
        ("  return", "  retrun", 6, 3, "expected 'return'"),
        ("output 0", "output 2", 7, 10, "there are 2 outputs, none has number 2"),
        ('"model.py:12"', '"model.py"', 4, 37, 'a source is written "file:line"'),
        ("add(%h, %s)", "add(%h %s)", 5, 30, "expected ')' or ','"),
        ("f32[batch, 4] = mul", "f32[batch, 4 = mul", 4, 20, "expected ']' or ','"),
        ("graph mlp", "grape mlp", 2, 1, "expected 'graph'"),
        ("}\n", "} graph\n", 8, 3, "expected the end of the text"),
    ],
)
def test_errors_say_where_and_what(old, new, line, column, message):
    wrong = MLP.replace(old, new) if old != "}\n" else MLP[:-2] + new
    with pytest.raises(ParseError) as error:
        text.parse_graph(wrong, Op.registry)
    assert message in str(error.value)
    assert (error.value.line, error.value.column) == (line, column), str(error.value)


# --- on disk --------------------------------------------------------------------------------------


def test_dumps_hold_text_and_constants_beside_it(tmp_path, rng):
    builder = Builder()
    x = builder.input("x", f32[3])
    types = {"layer/w": f32[3], "file": bf16[3], "flags": boolean[3], "scalar": f64[()]}
    weights = [builder.input(name, type_, "constant") for name, type_ in types.items()]
    constants = {name: rng.normal(size=type_.static_shape).astype(type_.dtype.numpy) for name, type_ in types.items()}
    graph = Graph("g", builder.inputs, (builder.emit(Greater(), x, weights[0]),), constants=constants)
    path = text.save_dump(graph, tmp_path / "stage.txt")
    assert path.read_text() == text.print_graph(graph)
    again = text.load_dump(path, Op.registry)
    assert text.same_structure(graph, again)
    assert list(again.constants) == list(types)
    for name, array in graph.constants.items():
        assert again.constants[name].dtype == array.dtype
        np.testing.assert_array_equal(again.constants[name], array)


def test_dumps_of_the_same_graph_are_the_same_bytes(tmp_path):
    graph = random_graph(3)
    for name in ("a", "b"):
        text.save_dump(graph, tmp_path / f"{name}.txt")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_graph_without_constants_needs_no_second_file(tmp_path):
    graph = anything(1)
    path = text.save_dump(graph, tmp_path / "g.txt")
    assert not path.with_suffix(".npz").exists()
    assert text.same_structure(text.load_dump(path, REGISTRY), graph)
