"""check_onnx finds nothing exactly when a model compiles: on the suite, on models broken at random, on the hard cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

import ingot
from ingot.frontends.onnx.problems import OnnxError
from tests.frontends.onnx.building import info, model_of
from tests.frontends.onnx.cases import Case, all_cases, one_per_op
from tests.fuzz.onnx_models import Corpus, candidate_of, corpus
from tests.fuzz.onnx_worker import CHECKED, Limits, Worker

FLOATS = np.zeros((2, 3), np.float32)
FEW = 16  # of the suite's models, and of broken ones
BATCHES = 20


def compiles(model: object) -> bool:
    try:
        ingot.compile(ingot.load_onnx(model))
    except OnnxError:
        return False
    return True


def check_agrees(model: object, expected: bool | None = None) -> None:
    problems = ingot.check_onnx(model)
    assert (problems == []) == compiles(model), problems
    if expected is not None:
        assert (problems == []) == expected, problems


@pytest.fixture(scope="module")
def cases(pytestconfig: pytest.Config) -> list[Case]:
    assert pytestconfig.cache is not None
    return one_per_op([c for c in all_cases(pytestconfig.cache.mkdir("onnx")) if c.folder is None])


@pytest.fixture(scope="module")
def entries(pytestconfig: pytest.Config) -> Corpus:
    assert pytestconfig.cache is not None
    return corpus(all_cases(pytestconfig.cache.mkdir("onnx")))


def test_models_of_the_suite(cases: list[Case]):
    for case in cases[:: len(cases) // FEW]:
        check_agrees(case.model)


@pytest.mark.sweep
@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_models_of_the_suite(cases: list[Case], batch: int):
    for case in cases[batch::BATCHES]:
        check_agrees(case.model)


def differing(entries: Corpus, seeds: range) -> list[str]:
    """Of broken models, each in a limited process; the worker compares for seeds that are multiples of CHECKED."""
    found = []
    with Worker() as worker:
        for seed in seeds:
            entry, model = candidate_of(seed, entries)
            outcome = worker.attempt(model, entry.inputs, Limits(), seed)
            if outcome.kind == "differs":
                found.append(f"seed {seed}, from {entry.name}: {outcome.detail}")
    return found


def test_broken_models(entries: Corpus):
    assert differing(entries, range(0, FEW * CHECKED, CHECKED)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("batch", range(1, 1 + BATCHES))
def test_more_broken_models(entries: Corpus, batch: int):
    first = batch * FEW * CHECKED
    assert differing(entries, range(first, first + FEW * CHECKED, CHECKED)) == []


# --- where the two could differ -----------------------------------------------------------------------


def one(op: str, inputs: str, arrays: dict[str, Any], weights: dict[str, Any] | None = None, **attributes: Any) -> ModelProto:
    declared = [a if isinstance(a, ValueInfoProto) else info(n, np.asarray(a)) for n, a in arrays.items()]
    fixed = {n: np.asarray(a) for n, a in (weights or {}).items()}
    return model_of([helper.make_node(op, inputs.split(), ["y"], name="it", **attributes)], declared, ["y"], fixed)


@pytest.mark.parametrize("op", ["CumSum", "CumProd", "Trilu", "Slice"])
@pytest.mark.parametrize("dtype", [np.bool_, np.float32])
def test_elements_of_a_node_that_waits_for_a_value(op: str, dtype: type):
    """What its values decide is known at run time; that its elements fit is known before."""
    names = "x a a" if op == "Slice" else "x a"
    number = np.array([1]) if op == "Slice" else np.array(1)
    sums = op.startswith("Cum")
    check_agrees(one(op, names, {"x": np.zeros((2, 3), dtype), "a": number}), expected=not (sums and dtype is np.bool_))


def test_shapes_that_differ_for_every_size():
    """One dim is open, but no value of it helps."""
    open_rows = info("x", FLOATS, ["n", 3])
    model = one("MatMul", "x w", {"x": open_rows}, {"w": np.zeros((4, 2), np.float32)})
    (problem,) = ingot.check_onnx(model)
    assert problem.code == "O112"
    check_agrees(model, expected=False)


def test_shapes_that_may_yet_fit():
    """The rank of the result depends on the size: it is compiled for the sizes of each call."""
    nodes = [helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Reshape", ["s", "t"], ["y"])]
    check_agrees(model_of(nodes, [info("x", FLOATS, ["n", "m"])], ["y"], {"t": np.array([6])}), expected=True)
    assumed = one("MatMul", "x w", {"x": info("x", FLOATS, ["n", "k"])}, {"w": np.zeros((4, 2), np.float32)})
    check_agrees(assumed, expected=True)


def test_tensors_that_are_too_large():
    sizes = {"s": np.array([1 << 30, 1 << 30])}
    check_agrees(one("ConstantOfShape", "s", {}, sizes), expected=False)


def test_what_weights_alone_compute():
    weights = {"a": np.arange(40), "b": np.zeros(40, np.int64)}
    check_agrees(one("Div", "a b", {}, weights), expected=False)


def test_a_part_that_does_not_depend_on_what_is_unknown():
    """An input without a type makes its readers wait; a node beside them is wrong whatever it is."""
    nodes = [helper.make_node("Neg", ["u"], ["a"]), helper.make_node("MatMul", ["x", "x"], ["b"])]
    check_agrees(model_of(nodes, [ValueInfoProto(name="u"), info("x", FLOATS)], ["a", "b"]), expected=False)
    check_agrees(model_of(nodes[:1], [ValueInfoProto(name="u")], ["a"]), expected=True)


def test_a_node_that_neither_the_compiler_nor_the_host_can_run():
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1, 1, 2, 2])
    check_agrees(one("SpaceToDepth", "x", {"x": text}, blocksize=2), expected=False)


def test_looking_at_a_weight_does_not_put_it_into_the_program():
    """The part before a host node holds what it computes with, not the weights of the part that waits."""
    weight = np.zeros((64, 64), np.float32)
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("NonZero", ["n"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    x = np.ones(64, np.float32)
    program = ingot.compile(ingot.load_onnx(model_of(nodes, [info("x", x)], ["y"], {"w": weight})))
    (before,) = program.staged.first.values()
    assert [v.name for v in before.graph.inputs] == ["x"]
    assert program(x).shape == (1, 64)
