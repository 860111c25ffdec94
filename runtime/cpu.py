"""Which instructions this processor has, in LLVM's names.

Linux lists them in its own spelling; `_SPELLING` has those that differ by more than punctuation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

_SPELLING = {
    # x86-64
    "64bit": "lm", "x87": "fpu", "sse3": "pni", "bmi": "bmi1", "lzcnt": "abm", "pclmul": "pclmulqdq",
    "sahf": "lahf_lm", "prfchw": "3dnowprefetch", "rdrnd": "rdrand", "crc32": "sse4_2", "sha": "sha_ni",
    "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq", "avxvnni": "avx_vnni",
    # aarch64
    "neon": "asimd", "fp-armv8": "fp", "fullfp16": "asimdhp", "dotprod": "asimddp", "rdm": "asimdrdm",
    "crc": "crc32", "lse": "atomics", "fp16fml": "asimdfhm", "complxnum": "fcma", "sha2": "sha2",
}  # fmt: skip


def missing_features(required: Iterable[str]) -> list[str]:
    """Those of the required features that this processor lacks."""
    present = processor_flags()
    return [name for name in required if _linux_name(name) not in present]


def _linux_name(feature: str) -> str:
    name = feature.removeprefix("+").lower()
    return _SPELLING.get(name, name.replace("-", "_").replace(".", "_"))


@functools.cache
def processor_flags() -> frozenset[str]:
    """Flags of the first processor, as Linux spells them."""
    found: list[str] = []
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    found += value.split()
                    break
    except OSError:
        pass
    return frozenset(found)
