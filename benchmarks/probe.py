"""What the machine can do, measured: arithmetic peak and memory bandwidth of one core.

The kernels are a few lines of LLVM IR each, at the width of the host's vector registers, and go straight to the
code generator: an optimiser would find out that they compute nothing of interest.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from benchmarks.measure import Effort, interleave
from ingot.compiler.target import Target
from ingot.runtime.storage import address_of, aligned_empty

_LANES_BYTES = 4
_UNROLL = 8
_FMA_ROUNDS = 200_000
_AHEAD = (2048, 1024)  # bytes that a copy in one series, and in several, asks for in advance
_RUN = 1024  # bytes that are copied from one part of a block before the next
_BLOCK = 512 << 10  # bytes whose halves, or parts, are read in turn
# The same for a copy, by the number of parts: not at the same place of a page, or loads wait for stores that look like theirs.
_COPIED = {2: _BLOCK + 4096, 4: _BLOCK + 4096, 8: _BLOCK + 8192}
_SERIES = (2, 4, 8)  # parts of a block that are read in turn: which is fastest depends on the processor


@dataclass(frozen=True)
class Bandwidth:
    """Gigabytes a second for an array of this size, by the fastest way that is known: in one series of addresses or in
    several, copying through the caches or past them, with and without asking in advance. A copy counts what it reads and
    what it writes; half of the array is copied, and reading is measured of that half too, of which as much may still be
    in a cache."""

    where: str
    size: int
    read: float
    copy: float


@dataclass(frozen=True)
class Machine:
    fma: float  # 1e9 floating-point operations a second, float32, one core
    levels: tuple[Bandwidth, ...]  # from the nearest to the farthest

    def level(self, size: float) -> Bandwidth:
        """The nearest memory that holds so many bytes."""
        return next((level for level in self.levels[:-1] if size <= 2 * level.size), self.levels[-1])

    def stream_seconds(self, read: float, written: float) -> float:
        """The time that reading and writing so many bytes must take."""
        level = self.level(read + written)
        both = min(read, written)
        return (2 * both / level.copy + (read - both) / level.read + (written - both) / level.copy) / 1e9


def measure(effort: Effort) -> Machine:
    """Probe this machine; the effort is for each of the numbers."""
    kernels = _kernels()
    target = Target.host()
    chains = _chains(target)
    operations = 2.0 * chains * target.lanes(_LANES_BYTES) * _FMA_ROUNDS
    fma = operations / _best(lambda: kernels.fma(_FMA_ROUNDS), effort) / 1e9
    sizes = {
        "L1": target.l1_bytes // 2,
        "L2": target.l2_bytes // 2,
        "L3": max(2 * target.l2_bytes, min(target.l3_bytes // 4, 8 << 20)),
        "memory": max(128 << 20, 4 * target.l3_bytes),
    }
    return Machine(fma, tuple(_bandwidth(kernels, where, size, effort) for where, size in sizes.items()))


def _bandwidth(kernels: _Kernels, where: str, size: int, effort: Effort) -> Bandwidth:
    half = size // 2
    data, other = (aligned_empty((n,), np.dtype(np.uint8), n) for n in (size, half))
    data[:], other[:] = 1, 1
    step = _UNROLL * Target.host().vector_bytes
    repeats = max(1, (1 << 22) // size)
    vectors = size // step
    reads = []
    for bytes_ in (size, half):
        steps = bytes_ // step
        times = [_best(lambda steps=steps: kernels.read(address_of(data), steps, repeats), effort)]
        if repeats == 1 and bytes_ % _BLOCK == 0:
            blocks = bytes_ // _BLOCK
            times += [
                _best(lambda read=read, blocks=blocks: read(address_of(data), _BLOCK // step, blocks), effort)
                for read in kernels.read_parts
            ]
        reads.append(steps * step * repeats / min(times) / 1e9)
    copies = [
        _best(lambda copy=copy: copy(address_of(other), address_of(data), vectors // 2, repeats), effort)
        for copy in (kernels.copy, kernels.copy_past_caches, kernels.copy_fetched)
    ]
    rates = [2 * (vectors // 2) * step * repeats / seconds / 1e9 for seconds in copies]
    for parts, bytes_ in _COPIED.items() if repeats == 1 else ():
        steps, blocks, copy = bytes_ // (parts * _RUN), half // bytes_, kernels.copy_parts[parts]
        if blocks:
            seconds = _best(
                lambda copy=copy, steps=steps, blocks=blocks: copy(address_of(other), address_of(data), steps, blocks), effort
            )
            rates.append(2 * blocks * bytes_ / seconds / 1e9)
    return Bandwidth(where, size, max(reads), max(rates))


def _best(call: Callable[[], object], effort: Effort) -> float:
    return interleave({"probe": call}, effort)["probe"].best


# --- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kernels:
    fma: Callable[..., object]
    read: Callable[..., object]
    read_parts: tuple[Callable[..., object], ...]
    copy: Callable[..., object]
    copy_past_caches: Callable[..., object]
    copy_fetched: Callable[..., object]
    copy_parts: dict[int, Callable[..., object]]
    engine: object  # owns the code


@functools.cache
def _kernels() -> _Kernels:
    target = Target.host()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3
    )
    copies = [
        _copy_text(target, "copy", ""),
        _copy_text(target, "past", _STREAMED),
        _copy_text(target, "fetched", _STREAMED, _AHEAD[0]),
        *(_copy_text(target, f"copy{n}", _STREAMED, _AHEAD[1], size, n) for n, size in _COPIED.items()),
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    ]
    reads = [_read_text(target, "read"), *(_read_text(target, f"parts{n}", _BLOCK, n) for n in _SERIES)]
    texts = [_fma_text(target), *reads, *copies]
    module = llvm.parse_assembly("\n".join([*texts, "!0 = !{i32 1}"]))
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()

    def function(name: str, arguments: int) -> Callable[..., object]:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        return kind(engine.get_function_address(name))

    return _Kernels(
        function("fma", 1),
        function("read", 3),
        tuple(function(f"parts{n}", 3) for n in _SERIES),
        function("copy", 4),
        function("past", 4),
        function("fetched", 4),
        {n: function(f"copy{n}", 4) for n in _COPIED},
        engine,
    )


_STREAMED = ", !nontemporal !0"


def _chains(target: Target) -> int:
    """Independent accumulators: enough to hide the latency, few enough for the registers."""
    return 12 if target.vector_registers == 16 else 24


def _fma_text(target: Target) -> str:
    vector = f"<{target.lanes(_LANES_BYTES)} x float>"
    function = f"@llvm.fma.v{target.lanes(_LANES_BYTES)}f32"
    chains = range(_chains(target))
    fill = "splat (float 0x3FE0000000000000)"
    return "\n".join(
        [
            f"declare {vector} {function}({vector}, {vector}, {vector})",
            f"@sink = global {vector} zeroinitializer",
            f"@factor = global {vector} {fill}",
            "define void @fma(i64 %rounds) {",
            "entry:",
            f"  %x = load volatile {vector}, ptr @factor",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %entry], [%j, %loop]",
            *(f"  %a{c} = phi {vector} [zeroinitializer, %entry], [%b{c}, %loop]" for c in chains),
            *(f"  %b{c} = call {vector} {function}({vector} %a{c}, {vector} %x, {vector} %x)" for c in chains),
            "  %j = add i64 %i, 1",
            "  %more = icmp ult i64 %j, %rounds",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *(f"  store volatile {vector} %b{c}, ptr @sink" for c in chains),
            "  ret void",
            "}",
        ]
    )


def _nest(name: str, parameters: str, vectors: str, body: list[str], accumulators: list[str], after: list[str]) -> str:
    """for repeat: for step: body; %at is the byte offset of the step."""
    return "\n".join(
        [
            f"define void @{name}({parameters}, i64 %steps, i64 %repeats) {{",
            "entry:",
            "  br label %outer",
            "outer:",
            "  %r = phi i64 [0, %entry], [%s, %next]",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %outer], [%j, %loop]",
            *accumulators,
            f"  %at = mul i64 %i, {vectors}",
            *body,
            "  %j = add i64 %i, 1",
            "  %more = icmp ult i64 %j, %steps",
            "  br i1 %more, label %loop, label %next",
            "next:",
            *after,
            "  %s = add i64 %r, 1",
            "  %again = icmp ult i64 %s, %repeats",
            "  br i1 %again, label %outer, label %done",
            "done:",
            "  ret void",
            "}",
        ]
    )


def _read_text(target: Target, name: str, block: int = 0, series: int = 1) -> str:
    """Every vector once; or, of one block in each repeat, vectors from its parts in turn."""
    vector = f"<{target.lanes(8)} x i64>"
    body, accumulators, after = [f"  %base = mul i64 %r, {block}"], [], ['  call void asm sideeffect "", "~{memory}"()']
    for n in range(_UNROLL):
        number, part = divmod(n, series)
        accumulators.append(f"  %a{n} = phi {vector} [zeroinitializer, %outer], [%b{n}, %loop]")
        body += [
            f"  %f{n} = add i64 %base, {part * block // series + number * target.vector_bytes}",
            f"  %o{n} = add i64 %at, %f{n}",
            f"  %p{n} = getelementptr i8, ptr %data, i64 %o{n}",
            f"  %v{n} = load {vector}, ptr %p{n}, align {target.vector_bytes}",
            f"  %b{n} = xor {vector} %a{n}, %v{n}",
        ]
        after.append(f"  store volatile {vector} %b{n}, ptr @{name}_sink")
    sink = f"@{name}_sink = global {vector} zeroinitializer\n"
    return sink + _nest(name, "ptr %data", str(_UNROLL // series * target.vector_bytes), body, accumulators, after)


def _copy_text(target: Target, name: str, streamed: str, ahead: int = 0, block: int = 0, parts: int = 2) -> str:
    """`ahead`: bytes between what is copied and what is asked for. `block`: in each repeat one of so many bytes, from its
    parts in turn."""
    vector = f"<{target.lanes(8)} x i64>"
    step = _RUN if block else _UNROLL * target.vector_bytes
    body = [f"  %base = mul i64 %r, {block}"]
    together = 2 * 64  # bytes that are loaded, then stored
    for start in range(0, block or 1, block // parts or 1):
        for group in range(start, start + step, together):
            for line in range(group, group + together if ahead else 0, 64):
                body += [
                    f"  %k{line} = add i64 %base, {ahead + line}",
                    f"  %l{line} = add i64 %at, %k{line}",
                    f"  %h{line} = getelementptr i8, ptr %data, i64 %l{line}",
                    f"  call void @llvm.prefetch.p0(ptr %h{line}, i32 0, i32 3, i32 1)",
                ]
            places = range(group, group + together, target.vector_bytes)
            for place in places:
                body += [
                    f"  %f{place} = add i64 %base, {place}",
                    f"  %o{place} = add i64 %at, %f{place}",
                    f"  %p{place} = getelementptr i8, ptr %data, i64 %o{place}",
                    f"  %q{place} = getelementptr i8, ptr %into, i64 %o{place}",
                    f"  %v{place} = load {vector}, ptr %p{place}, align {target.vector_bytes}",
                ]
            for place in places:
                body.append(f"  store {vector} %v{place}, ptr %q{place}, align {target.vector_bytes}{streamed}")
    return _nest(name, "ptr %into, ptr %data", str(step), body, [], [])
