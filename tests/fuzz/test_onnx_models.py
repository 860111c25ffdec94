"""Broken ONNX files end in an answer or in an error raised on purpose; and the fuzzer notices what does not."""

from __future__ import annotations

import os
import signal
from collections import Counter
from random import Random

import onnx
import pytest
from onnx import TensorProto, helper

from tests.frontends.onnx.cases import all_cases
from tests.fuzz import onnx_worker
from tests.fuzz.onnx_models import Entry, candidate_of, corpus, findings
from tests.fuzz.onnx_mutation import mutated
from tests.fuzz.onnx_worker import Candidate, Limits

SEEDS = 60
SWEEP = 2000
BATCH = 20


@pytest.fixture(scope="session")
def entries(pytestconfig: pytest.Config) -> list[Entry]:
    assert pytestconfig.cache is not None
    return corpus(all_cases(pytestconfig.cache.mkdir("onnx")))


def check_seeds(seeds: range, entries: list[Entry]) -> None:
    found = list(findings(seeds, entries, Limits(), Counter()))
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_broken_files(entries: list[Entry], first: int):
    check_seeds(range(first, first + BATCH), entries)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(SEEDS, SWEEP, BATCH))
def test_many_broken_files(entries: list[Entry], first: int):
    check_seeds(range(first, first + BATCH), entries)


# --- the fuzzer itself ------------------------------------------------------------------------------


def test_the_corpus_has_most_ops(entries: list[Entry]):
    ops = {node.op_type for e in entries for node in onnx.load_model_from_string(e.model).graph.node}
    assert len(ops) > 180
    assert any(e.inputs for e in entries)


def test_a_seed_gives_one_candidate(entries: list[Entry]):
    made = {seed: candidate_of(seed, entries) for seed in range(20)}
    assert all(candidate_of(seed, entries)[1] == model for seed, (_, model) in made.items())
    assert len({model for _, model in made.values()}) > 15


def test_candidates_differ_from_their_model_and_many_are_messages(entries: list[Entry]):
    others = [e.model for e in entries[:3]]
    made = [mutated(entries[0].model, others, Random(seed)) for seed in range(100)]
    assert sum(m != entries[0].model for m in made) > 80
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


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (lambda candidate: os.kill(os.getpid(), signal.SIGKILL), "crashed"),
        (lambda candidate: os._exit(3), "crashed"),
        (lambda candidate: 1 // 0, "escaped"),
        (lambda candidate: hold(4 << 30), "large"),
        (lambda candidate: list(iter(int, 1)), "slow"),
        (lambda candidate: "fine", "ran"),
    ],
    ids=["killed", "exit", "exception", "memory", "hang", "fine"],
)
def test_every_bad_end_is_noticed(monkeypatch: pytest.MonkeyPatch, body, kind: str):
    monkeypatch.setattr(onnx_worker, "_compiled_and_run", body)
    outcome = onnx_worker._in_child(Candidate(b"", {}, Limits(seconds=1, patience=60)))
    assert outcome.kind == kind, outcome


def test_the_server_answers_again_and_again():
    with onnx_worker.Worker() as worker:
        kinds = [worker.attempt(model).kind for model in (tiny_model(), b"no model", tiny_model())]
    assert kinds == ["ran", "refused", "ran"]
