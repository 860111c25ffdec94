"""Processor features: LLVM's names against Linux's."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from ingot.compiler.target import Target
from ingot.runtime import cpu


def test_what_the_target_of_this_machine_asks_for_is_never_missing() -> None:
    required = [feature for feature in Target.host().features.split(",") if feature.startswith("+")]
    assert cpu.missing_features(required) == []


def test_what_the_system_does_not_know_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor may have more than its kernel lists, and a kernel may have turned something off."""
    monkeypatch.setattr(cpu, "processor_flags", lambda: frozenset({"pni"}))
    features = Target.host.__wrapped__().features.split(",")
    assert not {f"+{name}" for name in cpu._FLAGS if name != "sse3"} & set(features)
    assert {f[1:] for f in features} == set(llvm.get_host_cpu_features())


def test_nothing_is_missing_where_no_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "processor_flags", frozenset)
    assert cpu.missing_features(["avx2", "amx-tile"]) == []


def test_what_llvm_does_not_detect_is_missing() -> None:
    host = llvm.get_host_cpu_features()
    absent = [name for name in cpu._FLAGS if host.get(name) is False]
    assert cpu.missing_features(absent) == absent


@pytest.mark.parametrize(
    ("required", "missing"),
    [
        (["avx2", "fma"], []),
        (["+avx2", "+avx512f"], ["avx512f"]),
        (["sse4.2", "lzcnt", "bmi"], ["lzcnt"]),
        (["shstk", "a-feature-of-the-future"], []),
    ],
)
def test_spelling(monkeypatch: pytest.MonkeyPatch, required: list[str], missing: list[str]) -> None:
    monkeypatch.setattr(cpu, "processor_flags", lambda: frozenset({"avx2", "fma", "sse4_2", "bmi1"}))
    assert cpu.missing_features(required) == missing
