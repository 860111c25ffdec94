"""The verifier of the graph level: valid graphs pass, each broken rule is named."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ingot.compiler.ops  # noqa: F401  (completes the registry)
from ingot.compiler.ir import text
from ingot.compiler.ir.graph import Graph, Input, Source, Value
from ingot.compiler.ir.symbolic import Symbol, Variable
from ingot.compiler.ir.types import DType, TensorType, TupleType, Type, f32
from ingot.compiler.ir.verify import VerifyError, verify_graph
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.elementwise import Add, Neg
from tests.ir.random_ir import random_graph
from tests.ir.test_interpret_graph import Claim
from tests.ir.test_text_graph import MLP, choice


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_are_valid(seed: int):
    graph = random_graph(seed)
    shape = graph.inputs[2].shape
    assert graph.outputs[0].shape == shape
    verify_graph(graph)


def test_graphs_with_regions_are_valid():
    verify_graph(choice())


def mlp() -> Graph:
    return text.parse_graph(MLP, Op.registry, {"w": np.zeros(4, np.float32)})


def refused(graph: Graph) -> str:
    with pytest.raises(VerifyError) as error:
        verify_graph(graph)
    return str(error.value)


X = Value(Input("x"), (), f32[2], None, "x")
NEGATED = Value(Neg(), (X,), f32[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": (X, X)}, "two inputs are called 'x'"),
        ({"inputs": (Value(Input(""), (), f32[2]),), "outputs": ()}, "an input has no name"),
        ({"inputs": (X, NEGATED)}, "is listed as an input, but an op computes it"),
        ({"inputs": (replace(X, op=Input("x", "guest")),)}, "there is no role 'guest'"),  # type: ignore[arg-type]
        ({"inputs": (replace(X, type=TupleType((f32[2],))),)}, "not that of a tensor"),
        ({"inputs": ()}, "op neg: argument 0 is the input 'x' of another graph"),
        ({"inputs": (), "outputs": (X,)}, "output 'output': it is the input 'x' of another graph"),
        ({"output_names": ("a", "b")}, "1 outputs have 2 names"),
        ({"outputs": (X, NEGATED), "output_names": ("a", "a")}, "two outputs are called 'a'"),
        ({"outputs": (Value(Neg(), (X,), f32[3]),)}, "its type is f32[3], but its arguments give f32[2]"),
        ({"outputs": (Value(Add(), (X,), f32[2]),)}, "add takes 2 arguments, not 1"),
        ({"outputs": (Value("neg", (X,), f32[2]),)}, "'neg' is no op"),  # type: ignore[arg-type]
        ({"updates": {"x": 0}}, "it updates 'x', which is not one of its states"),
        ({"constants": {"x": np.zeros(2)}}, "a value is held for 'x', which is not a constant input"),
    ],
)  # fmt: skip
def test_broken_rules(changes: dict[str, Any], message: str):
    graph = Graph("g", (X,), (NEGATED,))
    verify_graph(graph)
    found = refused(replace(graph, **changes))
    assert message in found
    assert found.startswith("graph g")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("update %s = output 0", "update %x = output 0", "it updates 'x', which is not one of its states"),
        ("%s: f32[batch, 4] state", "%s: f32[1, 4] state", "op add"),
        ("broadcast(%w) {shape=[batch, 4]}", "broadcast(%w) {shape=[batch, 5]}", "does not stretch"),
    ],
)
def test_broken_rules_in_text(old: str, new: str, message: str):
    verify_graph(mlp())
    assert message in refused(text.parse_graph(MLP.replace(old, new), Op.registry))


def test_the_next_value_of_a_state_has_its_type():
    wrong = MLP.replace("return %2 as output", "return %w as output")
    assert "the state 's' is f32[batch, 4], its next value is f32[4]" in refused(text.parse_graph(wrong, Op.registry))
    assert "becomes output 5 of 2" in refused(replace(mlp(), updates={"s": 5}))


@pytest.mark.parametrize("value", [np.zeros(4), np.zeros(5, np.float32), np.zeros((4, 1), np.float32)])
def test_constants_have_the_type_of_their_input(value: np.ndarray):
    assert "the value of constant 'w' is" in refused(replace(mlp(), constants={"w": value}))


def test_messages_say_where_the_value_came_from():
    wrong = Value(Neg(), (X,), f32[3], Source("model.py", 12, "y = -x"), "y")
    assert "op neg 'y' (model.py:12: y = -x): " in refused(Graph("g", (X,), (wrong,)))


def test_one_name_means_one_dim():
    other = Value(Input("y"), (), TensorType(f32, (Symbol("n", 0),)))
    same = Value(Input("x"), (), TensorType(f32, (Symbol("n"),)))
    assert "two dims are called n: one in 0 to None, one in 1 to None" in refused(Graph("g", (same, other), ()))


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (TensorType(f32, (Variable("i", 0, 3),)), "a dim of f32[i] is a loop variable"),
        (TensorType(f32, (-1 - Symbol("n"),)), "is negative"),
        (TensorType(DType("f8", "float", 8), ()), "f8 is not an element type"),
    ],
)
def test_types_are_well_formed(type_: Type, message: str):
    assert message in refused(Graph("g", (Value(Input("x"), (), type_),), ()))
    assert message in refused(Graph("g", (), (Value(Claim(type_, None), (), type_),)))


@dataclass(frozen=True)
class Changeable:
    """An op with a field that cannot be hashed."""

    name = "changeable"

    items: list[int]

    def infer(self, *types: Type) -> Type:
        return f32[2]


def test_fields_cannot_be_changed():
    assert "a field of the op can be changed" in refused(Graph("g", (X,), (Value(Changeable([1]), (X,), f32[2]),)))


def test_outputs_are_tensors():
    pair = TupleType((f32[2], f32[2]))
    assert "it has several results; select one with Get" in refused(
        Graph("g", (X,), (Value(Claim(pair, None), (X,), pair),))
    )


def test_a_cycle_is_found():
    first = Value(Neg(), (X,), f32[2])
    second = Value(Neg(), (first,), f32[2])
    object.__setattr__(first, "args", (second,))
    assert "which comes after it" in refused(Graph("g", (X,), (second,)))


@dataclass(frozen=True)
class Holder:
    """An op around a graph."""

    name = "holder"

    body: Graph

    def infer(self, *types: Type) -> Type:
        return f32[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ()}, "argument 0 is the input 'x' of another graph"),
        ({"inputs": (replace(X, op=Input("x", "state")),), "outputs": ()}, "arguments only, not a state"),
        ({"updates": {"x": 0}}, "a region cannot update states"),
        ({"constants": {"x": np.zeros(2)}}, "a region has no constants of its own"),
    ],
)
def test_regions_are_closed(changes: dict[str, Any], message: str):
    body = Graph("body", (X,), (NEGATED,))
    for region in (body, replace(body, **changes, output_names=())):
        y = Value(Input("y"), (), f32[2])
        graph = Graph("g", (y,), (Value(Holder(region), (y,), f32[2]),))
        if region is body:
            verify_graph(graph)
        else:
            found = refused(graph)
            assert message in found
            assert "op holder, region body" in found
