"""What a target promises is what LLVM is told."""

from __future__ import annotations

import pytest

from ingot.compiler.target import NAMED, Target


@pytest.mark.parametrize("name", [*NAMED, "native"])
def test_promises_are_features(name: str) -> None:
    target = Target.named(name)
    present = {feature[1:] for feature in target.features.split(",") if feature.startswith("+")}
    if target.is_x86:
        assert target.has_fma == ("fma" in present)
        assert target.has_round == ("sse4.1" in present)
        assert target.has_half == ("f16c" in present)
        assert (target.vector_bytes == 64) == ("avx512bw" in present)
        assert (target.vector_bytes >= 32) == ("avx2" in present)
    assert target.lanes(4) * 4 == target.vector_bytes
    assert target.has_mask_for(4) >= target.has_mask_for(1)
    assert 0 < target.l1_bytes < target.l2_bytes < target.l3_bytes
    assert target.cores >= 1


def test_targets_are_values() -> None:
    assert Target.named("x86-64-v3") == Target.named("x86-64-v3")
    assert len({Target.named(name) for name in NAMED}) == len(NAMED)
    assert Target.named("native") is Target.host()


def test_an_unknown_target_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown target 'pdp11'; use one of native, x86-64, .*aarch64"):
        Target.named("pdp11")
