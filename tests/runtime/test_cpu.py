"""Processor features: LLVM's names against Linux's."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from ingot.runtime import cpu
from ingot.runtime.loader import host_machine


def test_features_that_llvm_detects_are_found() -> None:
    """What LLVM says this processor has and generated code uses must not be reported as missing."""
    used = {"sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt",
            "popcnt", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "amx-tile",
            "neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve"}  # fmt: skip
    detected = {name for name, present in llvm.get_host_cpu_features().items() if present}
    assert cpu.missing_features(sorted(used & detected)) == []
    assert cpu.missing_features(sorted(used - detected)) == sorted(used - detected)


@pytest.mark.skipif(host_machine() != "x86_64", reason="x86 feature names")
def test_spelling_may_carry_a_plus() -> None:
    assert cpu.missing_features(["+sse4.2", "sse4.2", "+nonsense"]) == ["+nonsense"]
