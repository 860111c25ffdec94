"""What the compiler knows about a machine: instruction set, vector registers, caches, cores.

A Target is a value: two equal targets give the same code. Detection happens here and nowhere else.
Invariant: `features` names what `has_*` and `vector_bytes` promise, so LLVM can keep every promise.
Non-goal: a model of latencies; recipes measure, targets only count.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm

from ingot.runtime.cpu import missing_features

LINUX_X86 = "x86_64-unknown-linux-gnu"
LINUX_ARM = "aarch64-unknown-linux-gnu"

# Where cores share 480 MB, what one of them writes and reads again is found there up to 32 MB; 64 MB take 8 ms through the
# caches and 4.3 past them.
_LAST_CACHE_OF_A_CORE = 32 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Target:
    """A machine to compile for. Byte sizes of caches are per core (l3: what one core can make use of)."""

    triple: str
    cpu: str
    features: str  # LLVM's notation: "+avx2,-avx512f"
    vector_bytes: int
    vector_registers: int
    has_fma: bool
    has_round: bool  # floor, ceil, trunc and rint are instructions
    has_half: bool  # conversions between f16 and f32 are instructions
    has_mask: bool  # loads and stores of 32- and 64-bit lanes take a mask
    has_narrow_mask: bool  # so do those of 8- and 16-bit lanes
    has_gather: bool  # a gather is worth more than scalar loads
    has_halves: bool = False  # half a wide vector takes half the time
    has_few_line_buffers: bool = False  # in which loads from memory wait, and stores past the caches as well
    ahead_bytes: int = 0  # between what a loop reads from memory and the lines it asks for; 0: the processor foresees enough
    has_quads: bool = False  # four products of 8-bit integers, unsigned by signed, are added to 32 bits at once
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20
    cores: int = 1
    l1_ways: int = 8  # lines of the first cache whose addresses differ by a multiple of l1_bytes / l1_ways
    multiply_adds: int = 1  # of whole vectors that it begins in the time of loading one
    memory_rate: float = 1 / 8  # vectors that arrive from memory in the time of a multiply-add

    @property
    def architecture(self) -> str:
        return self.triple.split("-")[0]

    @property
    def is_x86(self) -> bool:
        return self.architecture == "x86_64"

    @property
    def has_lookup(self) -> bool:
        """Whether 16 floats are looked up in a register by one instruction, and exponents taken apart (AVX-512)."""
        return self.is_x86 and self.vector_bytes == 64

    @property
    def has_short_lookup(self) -> bool:
        """Whether 8 floats are looked up in a register by one instruction (AVX2)."""
        return self.is_x86 and self.vector_bytes == 32

    def lanes(self, bytes_per_lane: int) -> int:
        """Lanes of one vector register."""
        return self.vector_bytes // bytes_per_lane

    def tile_rows(self, vectors: int) -> int:
        """Rows of a register tile so wide: the registers hold its sums, a row of the right operand and one broadcast."""
        return max(1, (self.vector_registers - 1 - vectors) // vectors)

    def tile_rate(self, vectors: int) -> float:
        """Multiply-adds of a register tile so wide, in the time of one load: of each step its operands are loaded too."""
        rows = self.tile_rows(vectors)
        return rows * vectors / max(rows * vectors / self.multiply_adds, rows + vectors)

    @property
    def tile_vectors(self) -> int:
        """Vectors of a register tile of many rows: two, unless loads hold such a tile up."""
        return 4 if self.tile_rate(2) < self.multiply_adds else 2

    def has_mask_for(self, bytes_per_lane: int) -> bool:
        """Whether loads and stores of lanes of this size take a mask."""
        return self.has_narrow_mask or (self.has_mask and bytes_per_lane >= 4)

    @staticmethod
    @functools.cache
    def host() -> Target:
        """The machine this process runs on, with the instructions that both the processor and the system vouch for."""
        features = dict(llvm.get_host_cpu_features())
        unconfirmed = missing_features(name for name, is_present in features.items() if is_present)
        features.update(dict.fromkeys(unconfirmed, False))  # the system does not know them, or has turned them off
        names = ",".join(f"{'+' if present else '-'}{name}" for name, present in sorted(features.items()))
        triple = llvm.get_default_triple()
        present = frozenset(name for name, is_present in features.items() if is_present)
        first, second, last = cache_bytes()
        caches = (first, second, min(last, _LAST_CACHE_OF_A_CORE))
        return _target(triple, llvm.get_host_cpu_name(), names, present, *caches, _usable_cores(), _first_ways())

    @staticmethod
    def named(name: str) -> Target:
        """`native` (or `host`), or one of NAMED: a family of machines rather than one."""
        if name in ("native", "host"):
            return Target.host()
        try:
            triple, cpu, present = _FAMILIES[name]
        except KeyError:
            known = ", ".join(["native", *_FAMILIES])
            raise ValueError(f"unknown target {name!r}; use one of {known}") from None
        return _target(triple, cpu, ",".join(f"+{feature}" for feature in sorted(present)), present)


# Intel's server cores have two units for 512-bit products. Measured on Ice Lake: the first cache gives one such vector a cycle,
# broadcast or not (256-bit loads are twice as many); a core alone is far from using up the memory, which gives it 13 GB/s
# where 5.8e9 products begin in a second, and whatever pauses its requests costs their time.
_SERVERS = frozenset(
    {"skylake-avx512", "cascadelake", "cooperlake", "icelake-server", "sapphirerapids", "emeraldrapids", "graniterapids"}
)
_SERVER_FEATURE = "amx-tile"  # no other core has it, whatever the name: virtual machines may show the model of another processor

_WHOLE = frozenset({"znver5"})  # computes as many vectors of 512 bits as of 256; others compute one as two, or with both units

# Of Zen 5, whose core gets 64 GB/s: that many bytes are on their way at any time. By itself it fetches as much only for loops of
# which it looks at hundreds of instructions in advance and which do little else than read.
_AHEAD_BYTES = {"znver5": 8 << 10}

_V2 = frozenset({"sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"})
_V3 = _V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_FAMILIES: dict[str, tuple[str, str, frozenset[str]]] = {
    "x86-64": (LINUX_X86, "x86-64", frozenset({"sse2"})),
    "x86-64-v2": (LINUX_X86, "x86-64-v2", _V2),
    "x86-64-v3": (LINUX_X86, "x86-64-v3", _V3),
    "x86-64-v4": (LINUX_X86, "x86-64-v4", _V4),
    "aarch64": (LINUX_ARM, "generic", frozenset({"neon"})),
}
NAMED = tuple(_FAMILIES)


def _target(
    triple: str,
    cpu: str,
    features: str,
    present: frozenset[str],
    l1_bytes: int = 32 << 10,
    l2_bytes: int = 512 << 10,
    l3_bytes: int = 8 << 20,
    cores: int = 1,
    l1_ways: int = 8,
) -> Target:
    is_arm = triple.startswith("aarch64")
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= present
    is_server = cpu in _SERVERS or _SERVER_FEATURE in present
    two_units = wide and is_server
    return Target(
        triple=triple,
        cpu=cpu,
        features=features,
        vector_bytes=64 if wide else 32 if "avx2" in present else 16,
        vector_registers=32 if wide or is_arm else 16,
        has_fma=is_arm or "fma" in present,
        has_round=is_arm or "sse4.1" in present,
        has_half=is_arm or "f16c" in present,
        has_mask="avx2" in present,
        has_narrow_mask=wide,
        has_gather=wide,
        has_halves=wide and not is_server and cpu not in _WHOLE,
        has_few_line_buffers=is_server,
        ahead_bytes=_AHEAD_BYTES.get(cpu, 0),
        has_quads="avx512vnni" in present if wide else "avxvnni" in present,
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        l3_bytes=l3_bytes,
        cores=cores,
        l1_ways=l1_ways,
        multiply_adds=2 if two_units else 1,
        memory_rate=1 / 28 if two_units else 1 / 8,
    )


def cache_bytes() -> tuple[int, int, int]:
    """(l1 data, l2, l3) of core 0 as the system says; a modest machine where it does not."""
    sizes = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size[:-1]) * _SIZE_UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return sizes[1], sizes[2], sizes[3]


def _first_ways() -> int:
    """Of the first data cache of core 0; those of most machines where the system does not say."""
    for folder in sorted(_CACHES.glob("index*")):
        try:
            kind, level, ways = ((folder / name).read_text().strip() for name in ("type", "level", "ways_of_associativity"))
            if kind != "Instruction" and level == "1" and int(ways) > 1:
                return int(ways)
        except (OSError, ValueError):
            continue
    return 8


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
