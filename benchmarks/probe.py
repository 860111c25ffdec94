"""What the machine can do, measured: arithmetic peak and memory bandwidth of one core.

The kernels are a few lines of LLVM IR each, at the width of the host's vector registers, and go straight to the
code generator: an optimiser would find out that they compute nothing of interest.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from benchmarks.measure import Effort, interleave
from ingot.compiler.target import Target, cache_bytes
from ingot.runtime.storage import address_of, aligned_empty

Call = Callable[[], object]

_LANES_BYTES = 4
_LINE = 64
_UNROLL = 8
_FMA_ROUNDS = 200_000
_BLOCK = 512 << 10  # bytes whose parts are read or copied in turn
_SERIES = (1, 2, 4, 8, 16)  # parts that are read in turn: which is fastest depends on the processor


@dataclass(frozen=True)
class _Copy:
    """A way to copy: `run` bytes from each of so many parts of a block in turn, past the caches or through them, with hints
    so many bytes `ahead`."""

    parts: int = 1
    run: int = 1024
    ahead: int = 0
    past: bool = True

    @property
    def name(self) -> str:
        return f"copy_{self.parts}_{self.run}_{self.ahead}{'_past' if self.past else ''}"

    @property
    def block(self) -> int:
        """Bytes whose parts are copied in turn; 0: there is one series, and a repeat copies the same again. Parts do not lie
        at the same place of a page, or loads wait for stores that look like theirs."""
        return _BLOCK + max(4096, 1024 * self.parts) if self.parts > 1 else 0

    def counts(self, size: int) -> tuple[int, int]:
        """(steps, repeats) for the most of so many bytes that are whole blocks or runs."""
        return (self.block // (self.parts * self.run), size // self.block) if self.block else (size // self.run, 1)


_REST = _Copy(1, 512)
_COPIES = (
    _Copy(past=False),
    _REST,
    _Copy(1, 1024, 2048),
    *(_Copy(parts, 1024, 1024) for parts in (2, 4, 8)),
    *(_Copy(parts, 256, 1024) for parts in (4, 8, 16)),
)


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
    fma = operations / _best({"fma": lambda: kernels.fma(_FMA_ROUNDS)}, effort) / 1e9
    last = cache_bytes()[2]  # all of it, where the target has what is of use to a core
    sizes = {
        "L1": target.l1_bytes // 2,
        "L2": target.l2_bytes // 2,
        "L3": max(2 * target.l2_bytes, min(last // 4, 8 << 20)),
        "memory": max(128 << 20, 4 * last),
    }
    return Machine(fma, tuple(_bandwidth(kernels, where, size, effort) for where, size in sizes.items()))


def copies(into: np.ndarray, data: np.ndarray) -> dict[str, Call]:
    """Every way that is known to copy an array into another one of the same size, wherever the two begin. One call moves
    all of it, as fast as the machine does if this way suits it."""
    return {way.name: functools.partial(_copy, way, into, data) for way in _COPIES}


def reads(data: np.ndarray) -> dict[str, Call]:
    """Every way that is known to read an array, but for less than a line at each end."""
    return {f"read_{series}": functools.partial(_read, series, data) for series in _SERIES}


def fastest(ways: Mapping[str, Call], effort: Effort, kept: int = 2) -> dict[str, Call]:
    """The ways that were fastest in a short race; two, because a race on a busy machine may name the wrong one."""
    found = interleave(ways, effort)
    return {name: ways[name] for name in sorted(ways, key=lambda name: found[name].best)[:kept]}


def _copy(way: _Copy, result: np.ndarray, array: np.ndarray) -> None:
    into, data, size = address_of(result), address_of(array), array.nbytes
    kernels, done = _kernels(), -into % _LINE
    ctypes.memmove(into, data, min(done, size))
    for each in (way, _REST):
        steps, repeats = each.counts(max(0, size - done))
        if steps * repeats:
            kernels.copies[each](into + done, data + done, steps, repeats)
            done += steps * repeats * each.parts * each.run
    if done < size:
        ctypes.memmove(into + done, data + done, size - done)


def _read(series: int, array: np.ndarray) -> None:
    data, size = address_of(array), array.nbytes
    kernels, done = _kernels(), -data % _LINE
    for parts in dict.fromkeys((series, 1)):
        step = _read_step(parts)
        left = max(0, size - done)
        steps, repeats = (_BLOCK // step, left // _BLOCK) if parts > 1 else (left // step, 1)
        if steps * repeats:
            kernels.reads[parts](data + done, steps, repeats)
            done += steps * repeats * step


def _read_step(series: int) -> int:
    """Bytes that a step of the loop reads."""
    return max(_UNROLL, series) * Target.host().vector_bytes


def _bandwidth(kernels: _Kernels, where: str, size: int, effort: Effort) -> Bandwidth:
    half = size // 2
    data, other = (aligned_empty((n,), np.dtype(np.uint8), n) for n in (size, half))
    data[:], other[:] = 1, 1
    if where == "memory":
        read = max(bytes_ / _best(reads(data[:bytes_]), effort) for bytes_ in (size, half))
        return Bandwidth(where, size, read / 1e9, 2 * half / _best(copies(other, data[:half]), effort) / 1e9)
    repeats, source, into = max(1, (1 << 22) // size), address_of(data), address_of(other)
    rates = []
    for bytes_ in (size, half):
        steps = bytes_ // _read_step(1)
        seconds = _best({"read": lambda steps=steps: kernels.reads[1](source, steps, repeats)}, effort)
        rates.append(steps * _read_step(1) * repeats / seconds)
    single = {way: way.counts(half)[0] for way in _COPIES if not way.block}
    calls = {w.name: lambda w=w, steps=steps: kernels.copies[w](into, source, steps, repeats) for w, steps in single.items()}
    moved = 2 * min(way.run * steps for way, steps in single.items()) * repeats
    return Bandwidth(where, size, max(rates) / 1e9, moved / _best(calls, effort) / 1e9)


def _best(calls: dict[str, Call], effort: Effort) -> float:
    """The shortest time of any of them, each by itself: they do not disturb each other's caches."""
    return min(interleave({name: call}, effort)[name].best for name, call in calls.items())


# --- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kernels:
    fma: Callable[..., object]
    reads: dict[int, Callable[..., object]]  # by the number of series
    copies: dict[_Copy, Callable[..., object]]
    engine: object  # owns the code


@functools.cache
def _kernels() -> _Kernels:
    target = Target.host()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3
    )
    texts = [
        _fma_text(target),
        *(_read_text(target, series) for series in _SERIES),
        *(_copy_text(target, way) for way in _COPIES),
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    ]
    module = llvm.parse_assembly("\n".join([*texts, "!0 = !{i32 1}"]))
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()

    def function(name: str, arguments: int) -> Callable[..., object]:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        return kind(engine.get_function_address(name))

    return _Kernels(
        function("fma", 1),
        {series: function(f"read_{series}", 3) for series in _SERIES},
        {way: function(way.name, 4) for way in _COPIES},
        engine,
    )


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


def _read_text(target: Target, series: int) -> str:
    """Every vector once; in several series, of one block in each repeat, vectors from its parts in turn."""
    vector = f"<{target.lanes(8)} x i64>"
    name, block, unroll = f"read_{series}", _BLOCK if series > 1 else 0, max(_UNROLL, series)
    body, accumulators, after = [f"  %base = mul i64 %r, {block}"], [], ['  call void asm sideeffect "", "~{memory}"()']
    for n in range(unroll):
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
    return sink + _nest(name, "ptr %data", str(unroll // series * target.vector_bytes), body, accumulators, after)


def _copy_text(target: Target, way: _Copy) -> str:
    """What is stored begins at a line; what is loaded may begin anywhere."""
    vector = f"<{target.lanes(8)} x i64>"
    body = [f"  %base = mul i64 %r, {way.block}"]
    together = 2 * _LINE  # bytes that are loaded, then stored
    for start in range(0, way.block or 1, way.block // way.parts or 1):
        for group in range(start, start + way.run, together):
            for line in range(group, group + together if way.ahead else 0, _LINE):
                body += [
                    f"  %k{line} = add i64 %base, {way.ahead + line}",
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
                    f"  %v{place} = load {vector}, ptr %p{place}, align 1",
                ]
            streamed = ", !nontemporal !0" if way.past else ""
            for place in places:
                body.append(f"  store {vector} %v{place}, ptr %q{place}, align {target.vector_bytes}{streamed}")
    return _nest(way.name, "ptr %into, ptr %data", str(way.run), body, [], [])
