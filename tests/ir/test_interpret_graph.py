"""The graph interpreter: NumPy's meaning of each op, dims bound from shapes, clear refusals."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ingot.compiler.ops  # noqa: F401  (completes the registry)
from ingot.compiler.ir import interpret, text
from ingot.compiler.ir.graph import Builder, Graph, Source, Value, input_of
from ingot.compiler.ir.interpret import InterpreterError
from ingot.compiler.ir.symbolic import Symbol, evaluate
from ingot.compiler.ir.types import TensorType, TupleType, Type, f32, f64, i64
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.elementwise import Add, Div
from ingot.compiler.ops.structure import Broadcast, Get, Transpose
from tests.ir.random_ir import VALUES, Random, random_graph

GRAPH = """\
dim n in [2, 8]
graph affine(%x: f32[n, 3] argument, %y: f32[2*n] argument, %w: f32[3] constant, %s: f32[n, 3] state) {
  %b: f32[n, 3] = broadcast(%w) {shape=[n, 3]}
  %h: f32[n, 3] = add(%x, %b)
  %t: f32[n, 3] = add(%h, %s)
  %flat: f32[3*n] = reshape(%t) {shape=[3*n]}
  return %flat as flat, %h as hidden, %x as same
  update %s = output 1
}
"""
WEIGHT = np.array([1, 2, 3], np.float32)


@pytest.fixture
def graph() -> Graph:
    return text.parse_graph(GRAPH, Op.registry, {"w": WEIGHT})


def given(rows: int = 4, **changes: np.ndarray) -> dict[str, np.ndarray]:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    return {"x": x, "y": np.zeros(2 * rows, np.float32), "s": -x, **changes}


@pytest.mark.parametrize("rows", [2, 8])
def test_dims_are_bound_from_shapes(graph: Graph, rows: int):
    flat, hidden, same = interpret.run_graph(graph, given(rows))
    x = given(rows)["x"]
    np.testing.assert_array_equal(hidden, x + WEIGHT)
    np.testing.assert_array_equal(flat, np.tile(WEIGHT, rows))
    np.testing.assert_array_equal(same, x)


def test_outputs_are_arrays_of_their_own(graph: Graph):
    inputs = given()
    same = interpret.run_graph(graph, inputs)[2]
    same[...] = 77
    assert not (inputs["x"] == 77).any()


def test_a_constant_may_be_replaced(graph: Graph):
    hidden = interpret.run_graph(graph, given(w=np.zeros(3, np.float32)))[1]
    np.testing.assert_array_equal(hidden, given()["x"])


def test_every_value_is_observed_in_order(graph: Graph):
    seen: list[tuple[str, tuple[int, ...]]] = []
    interpret.run_graph(graph, given(), observe=lambda value, array: seen.append((value.name, array.shape)))
    assert [name for name, _ in seen] == ["x", "y", "w", "s", "b", "h", "t", "flat"]
    assert seen[-1] == ("flat", (12,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"z": np.zeros(1)}, "graph affine has no input called 'z'; it has x, y, w, s"),
        ({"x": np.zeros((4, 3))}, "input 'x': has element type f64, not that of f32"),
        ({"x": np.zeros((4, 3), complex)}, "has element type complex128"),
        ({"x": np.zeros(4, np.float32)}, "has shape (4,), of rank 1"),
        ({"x": np.zeros((4, 4), np.float32)}, "but dim 1 of f32[n, 3] is 3"),
        ({"x": np.zeros((5, 3), np.float32)}, "input 's', dim 0: is 4, but n is already 5"),
        ({"y": np.zeros(9, np.float32)}, "but dim 0 of f32[2*n] is 2*n = 8"),
        (given(1), "n is 1; its bounds allow 2 to 8"),
        (given(9), "n is 9; its bounds allow 2 to 8"),
    ],
)
def test_wrong_inputs_are_refused(graph: Graph, changes: dict[str, np.ndarray], message: str):
    with pytest.raises(InterpreterError) as error:
        interpret.run_graph(graph, {**given(), **changes})
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["x", "s"])
def test_missing_inputs_are_refused(graph: Graph, name: str):
    inputs = given()
    del inputs[name]
    with pytest.raises(InterpreterError, match=f"no value given for input '{name}'"):
        interpret.run_graph(graph, inputs)


def test_missing_constants_are_refused(graph: Graph):
    with pytest.raises(InterpreterError, match="no value given for input 'w'"):
        interpret.run_graph(replace(graph, constants={}), given())


# --- ops that lie -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """An op whose meaning is `result`, whatever its type says."""

    name = "claim"

    type: Type
    result: Any
    shape: tuple = ()

    def infer(self, *types: Type) -> Type:
        return self.type

    def evaluate(self, *arrays: np.ndarray) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def claim(type_: Type, result: Any, shape: tuple = ()) -> Graph:
    value = Value(Claim(type_, result, shape), (), type_, Source("model.py", 7, "claim()"), "lie")
    outputs = (Value(Get(0), (value,), type_.elements[0]),) if isinstance(type_, TupleType) else (value,)
    return Graph("g", (), outputs)


@pytest.mark.parametrize(
    ("type_", "result", "message"),
    [
        (f32[2], np.zeros(2), "has element type f64"),
        (f32[2], np.zeros(3, np.float32), "has shape (3,), but dim 0"),
        (f32[2], np.zeros((1, 2), np.float32), "of rank 2"),
        (TupleType((f32[2], f32[2])), np.zeros(2, np.float32), "gave ndarray"),
        (TupleType((f32[2], f32[2])), (np.zeros(2, np.float32),), "gave 1 results"),
        (TupleType((f32[2], i64[2])), (np.zeros(2, np.float32),) * 2, "result 1: has element type f32"),
        (f32[2], KeyError("inside"), "KeyError: 'inside'"),
    ],
)
def test_results_of_the_wrong_type_name_the_op(type_: Type, result: Any, message: str):
    with pytest.raises(InterpreterError) as error:
        interpret.run_graph(claim(type_, result), {})
    assert message in str(error.value)
    assert "op claim 'lie' (model.py:7: claim())" in str(error.value)


def test_a_dim_that_depends_on_data_is_bound_by_the_result():
    count = Symbol("count", 0)
    builder = Builder()
    found = Value(Claim(TensorType(f32, (count,)), np.ones(5, np.float32)), (), TensorType(f32, (count,)))
    ones = builder.emit(Add(), found, found)
    (result,) = interpret.run_graph(Graph("g", (), (ones,)), {})
    np.testing.assert_array_equal(result, np.full(5, 2, np.float32))


def test_a_dim_that_nothing_determines_is_refused():
    with pytest.raises(InterpreterError, match="no input shape determines k"):
        interpret.run_graph(claim(f32[2], ValueError(), (Symbol("k"),)), {})


def test_numpy_keeps_quiet_about_division_by_zero(recwarn: pytest.WarningsRecorder):
    builder = Builder()
    x, y = builder.input("x", f64[1]), builder.input("y", f64[1])
    graph = Graph("g", builder.inputs, (builder.emit(Div(), x, y),))
    assert interpret.run_graph(graph, {"x": np.ones(1), "y": np.zeros(1)})[0] == np.inf
    assert not recwarn.list


# --- specialisation ---------------------------------------------------------------------------------


def test_specialise_reaches_nested_fields_types_and_regions():
    n, m = Symbol("n"), Symbol("m")
    inner = text.parse_graph(GRAPH.replace("[2, 8]", "[1, inf]"), Op.registry)
    op = Claim(TensorType(f32, (n, 2 * n)), inner, (1, (n + m, "n"), None))
    special = interpret.specialise(op, {n: 5})
    assert special.type == f32[5, 10]
    assert special.shape == (1, (5 + m, "n"), None)
    assert special.result.inputs[0].type == f32[5, 3]
    assert special.result.outputs[0].op.shape == (15,)
    assert interpret.symbols_of(special) == {m}


def test_what_has_no_symbols_is_returned_as_it_is():
    op = Broadcast((2, 3))
    assert interpret.specialise(op, {Symbol("n"): 5}) is op


def test_a_region_may_be_given_dims():
    n = Symbol("n")
    builder = Builder()
    x = builder.input("x", f32[()])
    graph = Graph("g", builder.inputs, (builder.emit(Broadcast((n,)), x),))
    (found,) = interpret.run_region(graph, [np.array(3, np.float32)], {n: 4})
    np.testing.assert_array_equal(found, np.full(4, 3, np.float32))
    with pytest.raises(InterpreterError, match="takes 1 inputs, 2 were given"):
        interpret.run_region(graph, [np.array(3, np.float32)] * 2)


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_give_what_evaluation_by_hand_gives(seed: int):
    graph = random_graph(seed)
    random = Random(seed)
    inputs = {
        input_of(v).name: random.generator.integers(-9, 9, [evaluate(d, VALUES) for d in v.shape]).astype(np.float32)
        for v in graph.inputs
    }  # fmt: skip
    known: dict[Value, Any] = {v: inputs[input_of(v).name] for v in graph.inputs}
    with np.errstate(all="ignore"):
        for value in graph.body:
            op: Any = value.op
            changes = {"shape": tuple(evaluate(d, VALUES) for d in op.shape)} if hasattr(op, "shape") else {}
            known[value] = replace(op, **changes).evaluate(*(known[a] for a in value.args))
    for found, output in zip(interpret.run_graph(graph, inputs), graph.outputs, strict=True):
        np.testing.assert_array_equal(found, known[output])


def test_results_are_put_into_given_memory() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    builder = Builder()
    given = builder.input("x", f32[2, 3])
    turned = builder.emit(Transpose((1, 0)), given)
    graph = Graph("g", builder.inputs, (turned, given, turned), ("a", "b", "c"))
    rooms = [np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)]
    results = interpret.run_graph(graph, {"x": x}, into=rooms)
    assert all(result is room for result, room in zip(results, rooms, strict=True))
    np.testing.assert_array_equal(rooms[0], x.T)
    np.testing.assert_array_equal(rooms[1], x)
    np.testing.assert_array_equal(rooms[2], x.T)
