"""If and Loop as parts of one program: branches chosen by sizes, weights of branches, loops that count."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from ingot.frontends.dsl.api import CompiledFunction
from ingot.frontends.onnx.executable import AssumingFunction
from ingot.runtime.errors import ExecutionError
from tests.frontends.onnx.building import Array, model_of, run_onnxruntime


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def graph(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: str, **weights: Array) -> onnx.GraphProto:
    made = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    return helper.make_graph(nodes, "body", inputs, made, [numpy_helper.from_array(a, n) for n, a in weights.items()])


def declared(name: str, *shape: int | str | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def integers(*values: int) -> Array:
    return np.asarray(values, np.int64)


def compiled(model: onnx.ModelProto) -> Any:
    return ingot.compile(ingot.load_onnx(model), threads=1)


def check(model: onnx.ModelProto, executable: Any, **inputs: Array) -> None:
    expected = run_onnxruntime(model, inputs)
    found = executable(**inputs)
    for have, want in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


# --- if ---------------------------------------------------------------------------------------------


def quarters(then: onnx.GraphProto) -> onnx.ModelProto:
    """A quarter of x, ceil(n / 4) elements; what is done when that is one, and -x else."""
    nodes = [
        node("Slice", "x zero end zero four", "part"),
        node("Shape", "part", "extent"),
        node("Equal", "extent one", "is_one"),
        node("Squeeze", "is_one zero", "single"),
        node("If", "single", "chosen", then_branch=then, else_branch=graph([node("Neg", "part", "no")], [], "no")),
        node("Exp", "chosen", "y"),
    ]
    weights = {"zero": integers(0), "end": integers(1 << 40), "four": integers(4), "one": integers(1)}
    return model_of(nodes, [declared("x", "n")], ["y"], weights)


@pytest.mark.parametrize("reads", [True, False])
def test_a_branch_is_chosen_by_a_size(reads: bool, rng: np.random.Generator) -> None:
    """One program for the calls that take the branch of the special size; others take the other branch, whether
    or not the first looks at what has that size."""
    squeeze = graph([node("Squeeze", "part zero", "yes")], [], "yes")
    constant = graph([node("Identity", "number", "yes")], [], "yes", number=np.float32(3))
    model = quarters(squeeze if reads else constant)
    executable = compiled(model)
    assert isinstance(executable, AssumingFunction)
    for length in (1, 4, 3, 9, 2, 30, 5, 4):
        check(model, executable, x=rng.standard_normal(length).astype(np.float32))


def test_the_dim_of_an_input_is_not_assumed_to_be_one(rng: np.random.Generator) -> None:
    """Any number of rows is one stage more, not a program each."""
    nodes = [
        node("Shape", "x", "extent", end=1),
        node("Equal", "extent one", "is_one"),
        node("Squeeze", "is_one zero", "single"),
        node(
            "If", "single", "y",
            then_branch=graph([node("Squeeze", "x zero", "yes")], [], "yes"),
            else_branch=graph([node("Neg", "x", "no")], [], "no"),
        ),
    ]  # fmt: skip
    model = model_of(nodes, [declared("x", "n", 3)], ["y"], {"zero": integers(0), "one": integers(1)})
    executable = compiled(model)
    for rows in range(1, 9):
        check(model, executable, x=rng.standard_normal((rows, 3)).astype(np.float32))
    assert len(executable.programs) <= 4


def test_weights_of_branches_are_arranged_when_the_program_is_made(rng: np.random.Generator) -> None:
    weights = {name: rng.standard_normal((80, 64)).astype(np.float32) for name in "uv"}
    branches = {
        f"{kind}_branch": graph([node("Gemm", f"x {name}", f"h{name}", transB=1)], [], f"h{name}")
        for kind, name in (("then", "u"), ("else", "v"))
    }
    inputs = [declared("go", dtype=TensorProto.BOOL), declared("x", "n", 64)]
    model = model_of([node("If", "go", "y", **branches)], inputs, ["y"], weights)
    executable = compiled(model)
    assert isinstance(executable, CompiledFunction)
    kernels = [kernel.name for kernel in executable.profile(np.array(True), np.ones((2, 64), np.float32)).kernels]
    assert not any("transpose" in name or "block" in name for name in kernels)
    for go in (True, False):
        check(model, executable, go=np.array(go), x=rng.standard_normal((3, 64)).astype(np.float32))


def test_a_branch_that_does_not_run_cannot_fail() -> None:
    """What a branch makes of constants is computed beforehand only where that cannot fail."""
    wrong = graph([node("Gather", "table far", "row"), node("Add", "x row", "no")], [], "no")
    right = graph([node("Neg", "x", "yes")], [], "yes")
    inputs = [declared("go", dtype=TensorProto.BOOL), declared("x", 2)]
    weights = {"table": np.ones((5000, 2), np.float32), "far": np.asarray(5001)}
    executable = compiled(model_of([node("If", "go", "y", then_branch=right, else_branch=wrong)], inputs, ["y"], weights))
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(executable(np.array(True), x), -x)
    with pytest.raises(ExecutionError, match="5001"):
        executable(np.array(False), x)


# --- loop -------------------------------------------------------------------------------------------


def scalar_of(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def counting_loop(
    test: list[onnx.NodeProto], add: int = 1, start: int = 0, count: str = "", extra: dict[str, Array] | None = None
) -> onnx.ModelProto:
    """Rows of x times w, one a round, while `test` of the counter `i` and the number of rows `n` makes `go`; the
    number of rows, w and a state that sums go through the loop, as exporters write it."""
    body = graph(
        [
            node("Add", "i step", "next"),
            node("Gather", "x i", "row"),
            node("MatMul", "row w", "made"),
            node("Add", "sum made", "total"),
            node("Identity", "w", "same_w"),
            *test,
        ],
        [
            scalar_of("round", TensorProto.INT64),
            scalar_of("going", TensorProto.BOOL),
            scalar_of("i", TensorProto.INT32),
            scalar_of("n", TensorProto.INT32),
            declared("w", 3, 2),
            declared("sum", 2),
        ],
        "go next n same_w total made",
        step=np.int32(add),
    )
    nodes = [
        node("Shape", "x", "shape", end=1),
        node("Squeeze", "shape zero", "long"),
        node("Cast", "long", "rows", to=TensorProto.INT32),
        node("Less", "begin rows", "begins"),
        helper.make_node("Loop", [count, "begins", "begin", "rows", "weight", "nothing"], ["a", "b", "c", "s", "ys"], body=body),
    ]
    weights: dict[str, Array] = {
        "zero": integers(0),
        "begin": np.asarray(start, np.int32),
        "weight": np.asarray([[1, 2], [3, 4], [5, 6]], np.float32),
        "nothing": np.zeros(2, np.float32),
        **(extra or {}),
    }
    return model_of(nodes, [declared("x", "rows", 3)], ["a", "s", "ys"], weights)


LESS = [node("Cast", "next", "f", to=1), node("Cast", "n", "g", to=1), node("Less", "f g", "go")]
TESTS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "less": (LESS, {}),
    "greater": ([node("Greater", "n next", "go")], {}),
    "two at a time": (LESS, {"add": 2}),
    "from the second row": ([node("LessOrEqual", "next last", "go"), node("Sub", "n step", "last")], {"start": 1}),
    "both": ([*LESS[:2], node("Less", "f g", "one"), node("Less", "round four", "two"), node("And", "one two", "go")], {}),
    "at most three": (LESS, {"count": "most", "extra": {"most": np.asarray(3, np.int64)}}),
}


@pytest.mark.parametrize("name", TESTS)
def test_a_loop_that_compares_a_counter_is_one_program(name: str, rng: np.random.Generator) -> None:
    test, options = TESTS[name]
    options = {**options, "extra": {"four": np.asarray(4, np.int64), **options.get("extra", {})}}
    model = counting_loop([*reversed(test)] if name == "from the second row" else test, **options)
    executable = compiled(model)
    assert isinstance(executable, CompiledFunction) == (name != "from the second row")
    for rows in (2, 5, 9, 3):
        check(model, executable, x=rng.standard_normal((rows, 3)).astype(np.float32))


def test_a_condition_that_is_data_needs_no_host(rng: np.random.Generator) -> None:
    """The greatest number there is as the number of rounds, and a condition: how `while` is exported."""
    body = graph(
        [node("Mul", "state half", "next"), node("ReduceSum", "next", "sum", keepdims=0), node("Greater", "sum one", "go")],
        [scalar_of("round", TensorProto.INT64), scalar_of("going", TensorProto.BOOL), declared("state", "n")],
        "go next",
        half=np.float32(0.5),
        one=np.float32(1),
    )
    weights = {"most": np.asarray(np.iinfo(np.int64).max), "true": np.asarray(True)}
    model = model_of([node("Loop", "most true x", "y", body=body)], [declared("x", "n")], ["y"], weights)
    executable = compiled(model)
    assert isinstance(executable, CompiledFunction)
    for size in (3, 40):
        check(model, executable, x=(rng.random(size) * 100).astype(np.float32))


def test_a_counter_that_starts_again_is_not_counted() -> None:
    """i = (i + 1) mod 4 is always below n: only the number of rounds ends the loop."""
    test = [node("Mod", "next four", "wrapped"), node("Less", "wrapped n", "go")]
    model = counting_loop(test, count="most", extra={"four": np.asarray(4, np.int32), "most": np.asarray(3, np.int64)})
    check(model, compiled(model), x=np.arange(15, dtype=np.float32).reshape(5, 3))


@pytest.mark.parametrize("name", ["cap", "/attention/cap", "inner0"])
@pytest.mark.parametrize("branch", [False, True], ids=["plain", "in_a_branch"])
def test_names_in_a_subgraph_that_onnx_writes_as_text(name: str, branch: bool, rng: np.random.Generator) -> None:
    """ONNX's own definition of FlexAttention writes initializers of the subgraph into a text that it reads again."""
    scores = [node("Div", f"scores {name}", "/scaled"), node("Tanh", "/scaled", "t"), node("Mul", f"t {name}", "out")]
    shaped = declared("scores", "B", "H", "L", "S")
    capped = graph(scores, [shaped], "out", **{name: np.array(2.0, np.float32)})
    capped.output[0].CopyFrom(declared("out", "B", "H", "L", "S"))
    flex = node("FlexAttention", "q k v", "y", domain="ai.onnx.preview", score_mod=capped)
    nodes = [flex]
    if branch:
        nodes = [node("If", "chosen", "z", then_branch=graph([flex], [], "y"), else_branch=graph([flex], [], "y"))]
    inputs = [declared(n, 1, 2, 4, 8) for n in "qkv"] + [declared("chosen", dtype=TensorProto.BOOL)] * branch
    model = model_of(nodes, inputs, [declared("z" if branch else "y", 1, 2, 4, 8)], opset=26, domains={"ai.onnx.preview": 1})
    q, k, v = rng.standard_normal((3, 1, 2, 4, 8)).astype(np.float32)
    found = compiled(model)(q, k, v, *([np.array(True)] * branch))
    soft = 2 * np.tanh(q @ k.swapaxes(-1, -2) / np.sqrt(8) / 2)
    weights = np.exp(soft) / np.exp(soft).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, weights @ v, 1e-5, 1e-6)
