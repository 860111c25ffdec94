"""Random graphs, their gradients, and graphs that once failed: native code computes their NumPy meaning.

A failing seed is made small before it is reported, and its IR text is written to a file. A graph worth keeping
goes to `found/`, where it is tried in every run.
"""

from __future__ import annotations

from math import erfc
from pathlib import Path

import numpy as np
import pytest

from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.text import parse_graph, print_graph
from ingot.compiler.ops.base import Op
from ingot.compiler.pipeline import compile_graph
from tests.fuzz import checks, shrink
from tests.fuzz.compare import agrees, disagreements, disturbed
from tests.fuzz.generator import Case, Settings
from tests.fuzz.makers import MAKERS, random_case

SEEDS = 200
BATCH = 10
SWEEP = 4000

FOUND = sorted((Path(__file__).parent / "found").glob("*.graph"))

# Ops that random graphs reach by other ways than a maker of their own.
REACHED_OTHERWISE = {
    "agreed": "the reader of ONNX files makes it where a branch belongs to calls of some sizes",
    "get": "results of ops with several",
    "average_pool_gradient": "gradients of pools",
    "max_pool_gradient": "gradients of pools",
    "max_pool_index": "gradients of pools",
    "max_pool_select": "gradients of gradients of pools",
    "convolution_weight_gradient": "gradients of convolutions",
    "block": "a pass makes it of products with known weights",
    "interleave": "a pass makes it of integer products with known weights",
    "deinterleave": "a pass makes it of integer products with known weights",
    "blocked_convolution": "a pass makes it of convolutions",
    "restate": "the reader of ONNX files makes it where sizes are assumed to be equal",
    "stride_phases": "a pass makes it of convolutions",
    "tree_leaves": "the reader of ONNX files makes it of ensembles of trees, whose links must be those of trees",
    "unblock": "a pass makes it of products with known weights",
    "unpack": "the reader of ONNX files makes it of weights of a few bits",
    "winograd_convolution": "a pass makes it of convolutions",
    "winograd_cotangent": "a pass makes it of gradients of convolutions",
    "winograd_data": "a pass makes it of gradients of convolutions",
    "winograd_product_gradient": "a pass makes it of gradients of convolutions",
    "winograd_taps": "a pass makes it of convolutions",
    "winograd_weight": "a pass makes it of convolutions",
    "winograd_weight_gradient": "a pass makes it of gradients of convolutions",
}


def check_seeds(seeds: range, folder: Path) -> None:
    for seed in seeds:
        failure = checks.failure_of(seed)
        if failure is not None:
            small = shrink.shrunk(failure)
            path = shrink.saved(small, folder, f"seed{seed}")
            pytest.fail(f"seed {seed}; written to {path}\n{small}", pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_native_code_computes_the_meaning(first: int, tmp_path: Path):
    check_seeds(range(first, first + BATCH), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(SEEDS, SWEEP, BATCH))
def test_native_code_computes_the_meaning_of_many(first: int, tmp_path: Path):
    check_seeds(range(first, first + BATCH), tmp_path)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
def test_graphs_that_once_failed(path: Path, fuse: bool):
    graph = parse_graph(path.read_text(), Op.registry)
    lowest = min((s.lower or 0 for d in dims_of(graph) for s in [d]), default=1)
    case = Case(graph, {}, (5, 17, 1, 0) if lowest == 0 else (5, 17, 2))
    failure = checks.check_case(case, 0, fuse)
    assert failure is None, str(failure)


def dims_of(graph: Graph):
    return [d for run in Case(graph, {}, (1,)).runs() for d in run]


# --- the fuzzer itself ------------------------------------------------------------------------------


def test_every_op_can_appear():
    missing = set(Op.registry) - set(MAKERS) - set(REACHED_OTHERWISE)
    assert not missing, f"give {', '.join(sorted(missing))} a maker, or say how random graphs reach them"
    assert not set(REACHED_OTHERWISE) & set(MAKERS)


def test_graphs_contain_most_ops():
    """The makers find arguments: few ops never appear in as many graphs as the sweep has."""
    seen = {getattr(v.op, "name", "") for seed in range(400) for v in checks.case_of(seed)[0].graph.body}
    assert len(set(MAKERS) - seen) < 8, sorted(set(MAKERS) - seen)


def test_a_seed_gives_one_graph():
    for seed in (0, 5, 11):
        texts = {print_graph(checks.case_of(seed)[0].graph) for _ in range(2)}
        assert len(texts) == 1


def test_symbolic_cases_have_a_symbolic_dim():
    case = random_case(3, Settings(symbolic=True))
    assert len(case.runs()) == len(case.sizes) > 1


# --- the comparison ---------------------------------------------------------------------------------


def graph_of(text: str) -> Graph:
    return parse_graph(text, Op.registry)


def test_a_wrong_element_is_noticed(rng):
    graph = graph_of("graph g(%x: f32[4] argument) { %0: f32[4] = exp(%x) return %0 as output }")
    x = rng.uniform(-1, 1, 4).astype(np.float32)
    noisy = [disturbed(graph, {"x": x}, rng) for _ in range(4)]
    right = np.exp(x)
    wrong = right.copy()
    wrong[2] *= 1.0001
    assert not disagreements([right], [right], noisy)
    ((number, text),) = disagreements([wrong], [right], noisy)
    assert number == 0
    assert "1 of 4" in text
    assert disagreements([right.astype(np.float64)], [right], noisy)


def test_what_rounding_decides_is_not_compared(rng):
    """The floor of (x * y) / y at an integer: either neighbour is right."""
    graph = graph_of(
        "graph g(%x: f32[2] argument, %y: f32[2] argument) "
        "{ %0: f32[2] = mul(%x, %y) %1: f32[2] = div(%0, %y) %2: f32[2] = floor(%1) return %2 as output }"
    )
    inputs = {"x": np.array([3.0, 2.5], np.float32), "y": np.array([0.1, 0.1], np.float32)}
    noisy = [disturbed(graph, inputs, rng)[0] for _ in range(8)]
    found, expected = np.array([2.0, 2.0], np.float32), np.array([3.0, 2.0], np.float32)
    assert agrees(found, expected, noisy).all()
    assert not agrees(found + 1, expected, noisy)[1]


def test_what_cancels_inside_of_an_op_is_not_compared():
    """1 + erf(x / sqrt(2)) far on the negative side is a few units of rounding."""
    graph = graph_of("graph g(%x: f32[2] argument) { %0: f32[2] = gelu(%x) return %0 as output }")
    x = np.array([-3.4, 1.0], np.float32)
    expected = np.array([-3.4 * 0.5 * erfc(3.4 / 2**0.5), 0.5 * erfc(-(0.5**0.5))], np.float32)
    assert not checks.differences(graph, {"x": x}, [expected * np.float32([1.0001, 1])], [expected])
    assert checks.differences(graph, {"x": x}, [expected * np.float32([1, 1.0001])], [expected])
    assert checks.differences(graph, {"x": x}, [expected * np.float32([1.01, 1])], [expected])


def test_nan_is_not_zero():
    nan, zero = np.array([np.nan], np.float32), np.zeros(1, np.float32)
    assert not agrees(zero, nan, [nan, nan])[0]
    assert agrees(nan, nan, [nan, nan])[0]


# --- the shrinker -----------------------------------------------------------------------------------


def test_a_failing_graph_becomes_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A compiler that gets every tanh wrong: what remains of a large graph is one tanh."""
    graph = graph_of("""
        graph g(%x: f32[3, 4] argument, %y: f32[4] argument) {
          %0: f32[3, 4] = broadcast(%y) {shape=[3, 4]}
          %1: f32[3, 4] = add(%x, %0)
          %2: f32[3, 4] = tanh(%1)
          %3: f32[3, 4] = exp(%2)
          %4: f32[3] = sum(%3) {axes=[1]}
          %5: f32[3, 4] = mul(%3, %1)
          return %4 as first, %5 as second
        }""")

    def wrong_compile(graph, options=None, start=None):
        text = print_graph(graph).replace("= tanh(", "= sin(")
        return compile_graph(parse_graph(text, Op.registry), options, start)

    monkeypatch.setattr(checks, "compile_graph", wrong_compile)
    rng = np.random.default_rng(0)
    inputs = {name: rng.uniform(0.5, 1, shape).astype(np.float32) for name, shape in (("x", (3, 4)), ("y", (4,)))}
    failure = checks.check_graph(graph, [inputs], fuse=True)
    assert failure is not None
    small = shrink.shrunk(failure)
    assert [getattr(v.op, "name", "") for v in small.graph.body] == ["tanh"]
    path = shrink.saved(small, tmp_path, "small")
    again = parse_graph(path.read_text(), Op.registry)
    with np.load(tmp_path / "small.npz") as kept:
        assert checks.check_graph(again, [dict(kept)], fuse=True) is not None
