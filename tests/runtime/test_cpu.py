"""Processor features: LLVM's names against Linux's."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from ingot.runtime import cpu


def test_what_llvm_detects_is_never_missing() -> None:
    detected = [name for name, present in llvm.get_host_cpu_features().items() if present]
    assert cpu.missing_features(detected) == []


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
