"""Models that run in stages: how many programs a loop of the host, or values that decide shapes, cost."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

import ingot
from ingot.frontends.onnx.executable import OnnxExecutable
from ingot.frontends.onnx.staged import Staged
from ingot.frontends.onnx.stages import MOST_ROUTES
from tests.frontends.onnx.building import Array, info, model_of

ROUNDS = np.int64(12)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(" ") if inputs else [], outputs.split(), **attributes)


def executable(model: ModelProto) -> OnnxExecutable:
    made = ingot.compile(ingot.load_onnx(model), threads=1)
    assert isinstance(made, OnnxExecutable)
    return made


def check(made: OnnxExecutable, model: ModelProto, inputs: Mapping[str, Array]) -> None:
    found = made.run(**inputs)
    for have, want in zip(found, ReferenceEvaluator(model).run(None, dict(inputs)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def looping(nodes: Sequence[Any], states: Mapping[str, Array]) -> ModelProto:
    """A loop over `nodes`, which read `i` and the states and make each state's `<name>_next`, until `i` is `last`."""
    scalar = np.array(0, np.int64)
    body = helper.make_graph(
        [node("Less", "i last", "go"), *nodes],
        "body",
        [info("i", scalar), info("before", np.array(True)), *(info(n, a, [None] * a.ndim) for n, a in states.items())],
        [info("go", np.array(True)), *(info(f"{n}_next", a, [None] * a.ndim) for n, a in states.items())],
    )
    names = " ".join(states)
    results = " ".join(f"{n}_last" for n in states)
    return model_of(
        [node("Loop", f" yes {names}", results, body=body)],
        [info("last", scalar), *(info(n, a, [None] * a.ndim) for n, a in states.items())],
        [f"{n}_last" for n in states],
        {"yes": np.array(True)},
    )


def test_a_state_that_grows_is_compiled_for_every_length() -> None:
    """Each round appends what it computed, and the data decide which is the last."""
    x = np.arange(3, dtype=np.float32)
    model = looping(
        [
            node("ReduceSum", "x", "sum", keepdims=1),
            node("Tanh", "sum", "newest"),
            node("Greater", "x newest", "larger"),
            node("NonZero", "larger", "places"),
            node("ReduceSum", "places", "count", keepdims=0),
            node("Cast", "count", "extra", to=1),
            node("Add", "newest extra", "item"),
            node("Concat", "x item", "x_next", axis=0),
        ],
        {"x": x},
    )
    made = executable(model)
    check(made, model, {"x": x, "last": np.asarray(ROUNDS - 1)})
    after_first = len(made.programs)
    check(made, model, {"x": np.arange(5, dtype=np.float32), "last": np.asarray(ROUNDS - 1)})
    assert after_first < ROUNDS  # one for the first lengths, one for all the others
    assert len(made.programs) == after_first


def test_a_place_that_moves_is_left_to_the_host() -> None:
    """Each round adds some rows: the round's number decides where Slice begins, and how many rows there are."""
    x = np.arange(2.0 * ROUNDS, dtype=np.float32).reshape(-1, 2)
    model = looping(
        [
            node("Constant", "", "one", value_ints=[1]),
            node("Constant", "", "none", value_ints=[0]),
            node("Unsqueeze", "i none", "from"),
            node("Add", "from from", "middle"),
            node("Add", "middle one", "to"),
            node("Slice", "x from to none", "rows"),
            node("ReduceMean", "y none", "mean"),
            node("Add", "rows mean", "y_next"),
            node("Identity", "x", "x_next"),
        ],
        {"x": x, "y": np.ones((1, 2), np.float32)},
    )
    inputs = {"x": np.tanh(x), "y": np.ones((1, 2), np.float32), "last": np.asarray(ROUNDS - 1)}
    made = executable(model)
    check(made, model, inputs)
    count = len(made.programs)
    assert count < ROUNDS
    check(made, model, inputs)
    assert len(made.programs) == count


MOVES: dict[str, tuple[str, dict[str, Array], list[dict[str, list[int]]]]] = {
    # inputs; what is given at every call; the values that change
    "Slice": (
        "x from to axes steps",
        {"x": np.arange(60.0, dtype=np.float32).reshape(5, 12)},
        [
            {"from": [0, 1], "to": [2, 9], "axes": [0, 1], "steps": [1, 2]},
            {"from": [1, -1], "to": [4, -100], "axes": [0, 1], "steps": [1, -3]},
            {"from": [-2, 11], "to": [100, 0], "axes": [0, -1], "steps": [2, -1]},
            {"from": [4, 100], "to": [-100, -13], "axes": [-2, 1], "steps": [-2, -2]},
        ],
    ),
    "Range": (
        "from to step",
        {},
        [
            {"from": [2], "to": [9], "step": [3]},
            {"from": [5], "to": [-6], "step": [-2]},
            {"from": [3], "to": [3], "step": [1]},
        ],
    ),
    "Expand": (
        "x shape",
        {"x": np.ones((3, 1), np.float32)},
        [{"shape": [3, 4]}, {"shape": [2, 1, 5]}, {"shape": [1]}],
    ),
    "Tile": (
        "x times",
        {"x": np.arange(6.0).reshape(2, 3)},
        [{"times": [1, 2]}, {"times": [3, 1]}, {"times": [0, 2]}],
    ),
    "Reshape": (
        "x shape",
        {"x": np.arange(24.0).reshape(2, 3, 4)},
        [{"shape": [4, 6]}, {"shape": [0, -1]}, {"shape": [2, 2, 2, 3]}],
    ),
    "ConstantOfShape": ("shape", {}, [{"shape": [2, 3]}, {"shape": [4]}, {"shape": [0, 2]}]),
}


@pytest.mark.parametrize("op", MOVES)
def test_values_that_change(op: str) -> None:
    """The first call is compiled for its values, later ones are the host's: all as the reference says."""
    names, steady, changing = MOVES[op]
    scalar = op == "Range"
    calls = [
        {**steady, **{n: np.array(v[0] if scalar else v, np.int64) for n, v in values.items()}} for values in changing
    ]
    model = model_of(
        [node(op, names, "moved"), node("Cast", "moved", "wide", to=11), node("Sqrt", "wide", "y")],
        [info(n, calls[0][n], [None] * calls[0][n].ndim) for n in names.split(" ")],
        ["moved", "y"],
    )
    made = executable(model)
    with np.errstate(invalid="ignore"):
        for inputs in [*calls, calls[0]]:
            check(made, model, inputs)


@pytest.mark.parametrize(
    ("op", "calls"),
    [
        ("Slice", [([0], [1], [0], [1]), ([1], [2], [0], [0])]),
        ("Slice", [([0], [1], [0], [1]), ([1], [2], [7], [1])]),
        ("Range", [(0, 3, 1), (0, 3, 0)]),
        ("Reshape", [([6],), ([7],)]),
        ("Expand", [([2, 3],), ([5, 3],)]),
    ],
)
def test_values_that_make_no_sense(op: str, calls: Sequence[Any]) -> None:
    x = np.arange(6.0).reshape(2, 3)
    given = {} if op == "Range" else {"x": x}
    named = [{**given, **{f"v{n}": np.array(v, np.int64) for n, v in enumerate(values)}} for values in calls]
    names = " ".join(named[0])
    model = model_of([node(op, names, "y")], [info(n, a) for n, a in named[0].items()], ["y"])
    made = executable(model)
    check(made, model, named[0])
    with pytest.raises(ingot.IngotError, match=op):
        made.run(**named[1])
    check(made, model, named[0])


def test_a_way_through_the_stages_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and values that were seen before are not described again; others are, and give their own results."""
    x, rate = np.arange(6, dtype=np.float32), np.array(2, np.int64)
    branches = {
        "then_branch": helper.make_graph([node("ReduceSum", "x", "a", keepdims=1)], "then", [], [info("a", x, [1])]),
        "else_branch": helper.make_graph([node("Neg", "x", "b")], "else", [], [info("b", x, ["n"])]),
    }
    model = model_of(
        [node("Equal", "rate two", "is_two"), node("If", "is_two", "chosen", **branches), node("Abs", "chosen", "y")],
        [info("x", x, ["n"]), info("rate", rate)],
        ["y"],
        {"two": rate},
    )
    made = executable(model)
    calls = [{"x": x[:length], "rate": np.array(value)} for length in (6, 3) for value in (2, 1)]
    for inputs in calls * 2:
        check(made, model, inputs)

    def unexpected(*ignored: Any) -> Any:
        raise AssertionError("described again")

    monkeypatch.setattr(Staged, "_found_first", unexpected)
    monkeypatch.setattr(Staged, "_found_next", unexpected)
    for inputs in calls:
        check(made, model, inputs)
    monkeypatch.undo()
    for length in range(MOST_ROUTES + 6):
        check(made, model, {"x": np.ones(length + 1, np.float32), "rate": rate})
    assert len(made.staged.routes.ways) <= MOST_ROUTES
