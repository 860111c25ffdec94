"""Broken ONNX files end in an answer or in an error raised on purpose; and the fuzzer notices what does not."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
from collections import Counter
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ingot.frontends.dsl.api import CompiledFunction
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem
from ingot.runtime.executable import Executable
from tests.frontends.onnx.cases import all_cases
from tests.fuzz import onnx_worker
from tests.fuzz.onnx_edits import EDITS
from tests.fuzz.onnx_models import Corpus, candidate_of, corpus, findings
from tests.fuzz.onnx_mutation import mutated
from tests.fuzz.onnx_variants import complaints, variants
from tests.fuzz.onnx_worker import Candidate, Limits, Outcome
from tests.fuzz.peers import Answer, judged

SEEDS = 60
SWEEP = 2000
BATCH = 20


@pytest.fixture(scope="session")
def entries(pytestconfig: pytest.Config) -> Corpus:
    assert pytestconfig.cache is not None
    return corpus(all_cases(pytestconfig.cache.mkdir("onnx")))


def check_seeds(seeds: range, entries: Corpus) -> None:
    found = list(findings(seeds, entries, Limits(), Counter()))
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_broken_files(entries: Corpus, first: int):
    check_seeds(range(first, first + BATCH), entries)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(SEEDS, SWEEP, BATCH))
def test_many_broken_files(entries: Corpus, first: int):
    check_seeds(range(first, first + BATCH), entries)


# --- the fuzzer itself ------------------------------------------------------------------------------


def test_the_corpus_has_most_ops(entries: Corpus):
    ops = {node.op_type for alike in entries for node in onnx.load_model_from_string(alike[0].model).graph.node}
    assert len(ops) > 180
    assert any(e.inputs for alike in entries for e in alike)


def test_a_seed_gives_one_candidate(entries: Corpus):
    made = {seed: candidate_of(seed, entries) for seed in range(20)}
    assert all(candidate_of(seed, entries)[1] == model for seed, (_, model) in made.items())
    assert len({model for _, model in made.values()}) > 15


def test_candidates_differ_from_their_model_and_many_are_messages(entries: Corpus):
    model = entries[0][0].model
    others = [alike[0].model for alike in entries[:3]]
    made = [mutated(model, others, Random(seed)) for seed in range(100)]
    assert sum(m != model for m in made) > 80
    assert sum(_parses(m) for m in made) > 50


def _parses(data: bytes) -> bool:
    try:
        onnx.ModelProto.FromString(data)
    except Exception:
        return False
    return True


def tiny_model() -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def hold(size: int) -> str:
    """More memory than the limit; the traceback would keep it."""
    held = bytearray(size)
    return str(len(held))


def endless() -> None:
    while True:
        pass


def fail(kind: Kind, message: str) -> None:
    raise OnnxError([Problem(kind, message)])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (lambda *_: os.kill(os.getpid(), signal.SIGSEGV), "crashed"),
        (lambda *_: os._exit(3), "crashed"),
        (lambda *_: 1 // 0, "escaped"),
        (lambda *_: hold(4 << 30), "large"),
        (lambda *_: endless(), "slow"),
        (lambda _, starts: (starts(), endless()), "slow"),
        (lambda *_: fail(Kind.BAD_NODE, "AssertionError: "), "unforeseen"),
        (lambda *_: fail(Kind.BAD_VALUE, "a size is -3"), "refused"),
        (lambda *_: Outcome("ran"), "ran"),
    ],
    ids=["crash", "exit", "exception", "memory", "hang", "hang while it runs", "internal", "refused", "fine"],
)
def test_every_bad_end_is_noticed(monkeypatch: pytest.MonkeyPatch, body, kind: str):
    monkeypatch.setattr(onnx_worker, "_compiled_and_run", body)
    outcome = onnx_worker._in_child(Candidate(b"", {}, Limits(seconds=1, patience=60)))
    assert outcome.kind == kind, outcome


def test_the_server_answers_again_and_again():
    with onnx_worker.Worker() as worker:
        kinds = [worker.attempt(model).kind for model in (tiny_model(), b"no model", tiny_model())]
    assert kinds == ["ran", "refused", "ran"]


def test_a_loop_may_go_on_for_as_long_as_it_is_told_to(monkeypatch: pytest.MonkeyPatch):
    """While it runs; not while it is compiled."""
    monkeypatch.setattr(onnx_worker, "_compiled_and_run", lambda _, starts: (starts(), endless()))
    limits = Limits(seconds=1, patience=60)
    kinds = [onnx_worker._in_child(Candidate(model, {}, limits)).kind for model in (b"Loop", b"Scan")]
    assert kinds == ["looping", "slow"]


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """By the meaning of the graph where the code is wrong, by others where the graph is."""
    run = Executable._run
    monkeypatch.setattr(Executable, "_run", lambda *call: run(*call) + np.float32(1))
    assert onnx_worker._in_child(Candidate(tiny_model(), {})).kind == "wrong"


def test_a_wrong_graph_is_noticed(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("onnxruntime")
    execute = CompiledFunction.__call__
    monkeypatch.setattr(CompiledFunction, "__call__", lambda self, *args: execute(self, *args) + np.float32(1))
    assert onnx_worker._in_child(Candidate(tiny_model(), {})).kind == "alone"


@pytest.mark.parametrize("op", ["MaxPool", "Neg"])
def test_others_are_not_asked_what_onnx_leaves_open(op: str):
    """Whether a NaN is the maximum of a window; what its negative is, is not open."""
    pytest.importorskip("onnxruntime")
    only = helper.make_node(op, ["x"], ["y"], **({"kernel_shape": [1]} if op == "MaxPool" else {}))
    x = np.array([[[np.nan, 1.0]]], np.float32)
    named = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    graph = helper.make_graph([only], "one node", named[:1], named[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    kind, _ = judged(model.SerializeToString(), [Answer({"x": x}, [np.full_like(x, 5)])])
    assert kind == ("" if op == "MaxPool" else "alone")


def test_bytes_outside_are_noticed(monkeypatch: pytest.MonkeyPatch):
    run = Executable._run

    def careless(self, contexts, args, kwargs, out):
        result = run(self, contexts, args, kwargs, out)
        ctypes.memset(result.ctypes.data - 4, 0, 4)
        return result

    monkeypatch.setattr(Executable, "_run", careless)
    assert onnx_worker._in_child(Candidate(tiny_model(), {}, seed=2)).kind == "outside"
    assert onnx_worker._in_child(Candidate(tiny_model(), {}, seed=1)).kind == "crashed"


def test_what_scratch_memory_held_is_noticed(monkeypatch: pytest.MonkeyPatch):
    run, count = Executable._run, itertools.count()
    monkeypatch.setattr(Executable, "_run", lambda *call: run(*call) + np.float32(next(count) % 2))
    assert onnx_worker._in_child(Candidate(tiny_model(), {})).kind == "unset"


@pytest.mark.parametrize("op", ["Gather", "Attention", "Scan", "GroupQueryAttention"])
def test_variants_are_refused_as_foreseen(entries: Corpus, op: str):
    found = [alike[0] for alike in entries if op in {n.op_type for n in onnx.load_model_from_string(alike[0].model).graph.node}]
    assert complaints(found[0]) == []
    assert len(list(variants(onnx.load_model_from_string(found[0].model)))) > 30


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(16))
@pytest.mark.parametrize("number", [0, 1])
def test_all_variants_are_refused_as_foreseen(entries: Corpus, part: int, number: int):
    assert [text for alike in entries[part::16] for text in complaints(alike[min(number, len(alike) - 1)])] == []


def test_a_check_that_disagrees_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx_worker, "check_onnx", lambda model: [Problem(Kind.BAD_NODE, "")])
    assert onnx_worker._in_child(Candidate(tiny_model(), {})).kind == "differs"
    monkeypatch.setattr(onnx_worker, "check_onnx", lambda model: [])
    assert onnx_worker._in_child(Candidate(b"no model", {})).kind == "differs"


@pytest.mark.parametrize("edit", dict.fromkeys(EDITS), ids=lambda edit: edit.__name__)
def test_every_edit_changes_some_models(entries: Corpus, edit):
    """And what it makes can be written."""
    changed = 0
    others = [alike[0].model for alike in entries[::9]]
    for number, entry in enumerate(entry for alike in entries for entry in alike[:4]):
        model = onnx.load_model_from_string(entry.model)
        edit(model, others, Random(number))
        changed += model.SerializeToString() != entry.model
    assert changed > 0
