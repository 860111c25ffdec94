"""Whether this processor has the instructions a program uses.

Programs list features in LLVM's names, Linux lists flags in its own; `_FLAGS` relates the two for
everything that arithmetic code is made of.  Features outside the table (control flow guards, cache hints,
virtualisation) are not checked: kernels hide some of them from user space though the processor has them,
and compiled models do not use them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

_X86_64 = {
    "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "sse4a": "sse4a",
    "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c",
    "bmi": "bmi1", "bmi2": "bmi2", "lzcnt": "abm", "popcnt": "popcnt", "movbe": "movbe", "cx16": "cx16",
    "crc32": "sse4_2", "adx": "adx", "gfni": "gfni", "sahf": "lahf_lm",
    "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni", "avxvnniint8": "avx_vnni_int8", "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
    "amx-tile": "amx_tile", "amx-int8": "amx_int8", "amx-bf16": "amx_bf16", "amx-fp16": "amx_fp16",
}  # fmt: skip
_AARCH64 = {
    "neon": "asimd", "fp-armv8": "fp", "fullfp16": "asimdhp", "dotprod": "asimddp", "rdm": "asimdrdm",
    "crc": "crc32", "lse": "atomics", "fp16fml": "asimdfhm", "complxnum": "fcma", "bf16": "bf16",
    "i8mm": "i8mm", "sve": "sve", "sve2": "sve2", "sme": "sme",
}  # fmt: skip
_FLAGS = {**_X86_64, **_AARCH64}


def missing_features(required: Iterable[str]) -> list[str]:
    """Those of the required features that this processor lacks, as far as is known; a leading "+" is allowed."""
    present = processor_flags()
    if not present:  # no system that says
        return []
    names = (name.removeprefix("+") for name in required)
    return [name for name in names if name in _FLAGS and _FLAGS[name] not in present]


def required_flags(features: Iterable[str]) -> list[str]:
    """The flags, as Linux spells them, of a processor that has these features."""
    names = (name.removeprefix("+") for name in features)
    return sorted({_FLAGS[name] for name in names if name in _FLAGS})


@functools.cache
def processor_flags() -> frozenset[str]:
    """Flags of the first processor, as Linux spells them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()
