"""Models tried in a process with limits of time and memory, and what is expected of it."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto, NodeProto, helper

from tests.fuzz.onnx_worker import Limits, Outcome, Worker

LIMITS = Limits(seconds=10, megabytes=1000)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.kind == "refused", f"{outcome.kind}: {outcome.detail}"
    for word in words:
        assert word in outcome.detail, outcome.detail


def attempt(worker: Worker, model: ModelProto, **inputs: Any) -> Outcome:
    return worker.attempt(model.SerializeToString(), inputs, LIMITS)
