"""The thread pool: every index once, whatever the number of threads, callers, nested loops and forks."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingot.compiler.codegen.elf import read_object
from ingot.compiler.codegen.parallel import emit_objects
from ingot.compiler.codegen.pool import MAXIMUM_THREADS, pool_module, pool_object
from ingot.runtime.abi import ALLOWED_IMPORTS, POOL_EXPORTS
from ingot.runtime.loader import LoadedImage, host_machine
from tests.runtime.native import HOST, function, image_of

BODIES = """
declare void @ingot_parallel_for(ptr, ptr, ptr, i64)

; context: i64 counters, one per index
define void @increment(ptr %counters, i64 %index) {
  %counter = getelementptr i64, ptr %counters, i64 %index
  %old = load i64, ptr %counter
  %new = add i64 %old, 1
  store i64 %new, ptr %counter
  ret void
}

; context: { i64 arrived, i64 met }; all of `arrived` must be inside at the same time
define void @meet(ptr %context, i64 %index) {
entry:
  %me = atomicrmw add ptr %context, i64 1 acq_rel
  br label %wait
wait:
  %round = phi i64 [0, %entry], [%next, %wait]
  %arrived = load atomic i64, ptr %context acquire, align 8
  %both = icmp sge i64 %arrived, 2
  %next = add i64 %round, 1
  %tired = icmp sgt i64 %next, 2000000000
  %stop = or i1 %both, %tired
  br i1 %stop, label %done, label %wait
done:
  %met.p = getelementptr i64, ptr %context, i64 1
  %one = zext i1 %both to i64
  atomicrmw add ptr %met.p, i64 %one acq_rel
  ret void
}

; context: { ptr pool, i64 inner count, i64 counters[...] }; a loop inside a loop
define void @nested(ptr %context, i64 %index) {
  %pool = load ptr, ptr %context
  %inner.p = getelementptr i64, ptr %context, i64 1
  %inner = load i64, ptr %inner.p
  %offset = mul i64 %index, %inner
  %first = add i64 %offset, 2
  %counters = getelementptr i64, ptr %context, i64 %first
  call void @ingot_parallel_for(ptr %pool, ptr @increment, ptr %counters, i64 %inner)
  ret void
}

; context: i64 addresses, one per index; where the stack of the thread is that runs it
define void @stack(ptr %addresses, i64 %index) {
  %here = alloca i64
  %address = ptrtoint ptr %here to i64
  %place = getelementptr i64, ptr %addresses, i64 %index
  store i64 %address, ptr %place
  ret void
}

define i64 @repeat(ptr %pool, ptr %counters, i64 %count, i64 %times) {
entry:
  br label %loop
loop:
  %round = phi i64 [0, %entry], [%next, %loop]
  call void @ingot_parallel_for(ptr %pool, ptr @increment, ptr %counters, i64 %count)
  %next = add i64 %round, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret i64 %round
}
"""
INTEL_CONTROL = """
declare void @ingot_parallel_for(ptr, ptr, ptr, i64)
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @read(ptr %out, i64 %index) {
  %slot = getelementptr i32, ptr %out, i64 %index
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  ret void
}
define void @controls(ptr %pool, ptr %out, i64 %count, i32 %control) {
  %old = alloca i32
  %new = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %old)
  store i32 %control, ptr %new
  call void @llvm.x86.sse.ldmxcsr(ptr %new)
  call void @ingot_parallel_for(ptr %pool, ptr @read, ptr %out, i64 %count)
  call void @llvm.x86.sse.ldmxcsr(ptr %old)
  ret void
}
"""
I32, I64, PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


@dataclass
class Pool:
    """The module's functions and the pools a test made."""

    image: LoadedImage
    handles: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.create_native = function(self.image, "ingot_pool_create", PTR, I32)
        self.grow = function(self.image, "ingot_pool_grow", PTR, PTR, I32)
        self.destroy = function(self.image, "ingot_pool_destroy", None, PTR)
        self.parallel_for = function(self.image, "ingot_parallel_for", None, PTR, PTR, PTR, I64)
        self.repeat = function(self.image, "repeat", I64, PTR, PTR, I64, I64)

    def create(self, threads: int) -> int:
        self.handles.append(self.create_native(threads))
        return self.handles[-1]

    def counts(self, handle: int | None, count: int, times: int = 1) -> list[int]:
        counters = (I64 * (count + 1))()
        self.repeat(handle, ctypes.addressof(counters), count, times)
        assert counters[count] == 0, "an index beyond the end was run"
        return list(counters[:count])

    def run(self, handle: int, body: str, context: ctypes.Array, count: int) -> None:
        self.parallel_for(handle, self.image.address(body), ctypes.addressof(context), count)


@pytest.fixture(scope="module")
def image() -> LoadedImage:
    modules = [pool_module(HOST), BODIES]
    exports = [*POOL_EXPORTS, "repeat", "increment", "meet", "nested", "stack"]
    if host_machine() == "x86_64":
        modules.append(INTEL_CONTROL)
        exports.append("controls")
    return LoadedImage(image_of(*modules, exports=tuple(exports)))


@pytest.fixture
def pool(image: LoadedImage):
    made = Pool(image)
    yield made
    for handle in made.handles:
        made.destroy(handle)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
def test_every_index_runs_once(pool: Pool, threads: int) -> None:
    handle = pool.create(threads)
    for count in [*range(9), 63, 64, 65, 1000]:
        assert pool.counts(handle, count) == [1] * count


@pytest.mark.parametrize("count", [-5, 0, 1, 10])
def test_without_a_pool_the_caller_runs_the_loop(pool: Pool, count: int) -> None:
    counters = (I64 * 11)()
    pool.repeat(None, ctypes.addressof(counters), count, 1)
    assert list(counters) == [1] * max(count, 0) + [0] * (11 - max(count, 0))


def test_two_participants_run_at_the_same_time(pool: Pool) -> None:
    context = (I64 * 2)()
    pool.run(pool.create(2), "meet", context, 2)
    assert list(context) == [2, 2]


def test_many_short_loops(pool: Pool) -> None:
    assert pool.counts(pool.create(2), 5, times=20000) == [20000] * 5


@pytest.fixture
def one_processor():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize("threads", [2, 3, 6])
def test_crowded_participants_run_every_index_once(pool: Pool, threads: int) -> None:
    """Workers wait for the caller's processor: orders are taken over at every moment of their lives."""
    handle = pool.create(threads)
    assert pool.counts(handle, 8, times=3000) == [3000] * 8
    for _ in range(5):
        threading.Event().wait(0.003)  # they fall asleep
        assert pool.counts(handle, 8, times=50) == [50] * 8


@pytest.mark.usefixtures("one_processor")
def test_the_caller_runs_what_no_worker_has_begun(pool: Pool) -> None:
    handle, addresses = pool.create(2), (I64 * 2)()
    alone = 0
    for _ in range(200):
        pool.run(handle, "stack", addresses, 2)
        alone += abs(addresses[0] - addresses[1]) < 4096  # one stack: one thread
    assert alone > 100


def test_workers_that_fell_asleep_wake_up(pool: Pool) -> None:
    handle = pool.create(3)
    for _ in range(20):
        threading.Event().wait(0.003)
        assert pool.counts(handle, 7) == [1] * 7


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_loop_inside_a_loop(pool: Pool, threads: int) -> None:
    handle = pool.create(threads)
    outer, inner = 6, 5
    context = (I64 * (2 + outer * inner))(handle, inner)
    for _ in range(200):
        pool.run(handle, "nested", context, outer)
    assert list(context[2:]) == [200] * (outer * inner)


def test_several_callers_share_one_pool(pool: Pool) -> None:
    handle = pool.create(2)
    results: dict[int, list[int]] = {}

    def call(name: int) -> None:
        results[name] = pool.counts(handle, 40 + name, times=3000)

    callers = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert results == {name: [3000] * (40 + name) for name in range(4)}


def test_growing_keeps_older_handles(pool: Pool) -> None:
    two = pool.create(2)
    four = pool.grow(two, 4)
    assert four != two
    assert pool.grow(four, 2) == two
    for handle in (two, four, two):
        assert pool.counts(handle, 9, times=50) == [50] * 9
    context = (I64 * 2)()
    pool.run(pool.grow(four, 1), "increment", context, 2)
    assert list(context) == [1, 1]


@pytest.mark.parametrize("threads", [0, -3])
def test_nonsense_thread_counts_mean_one(pool: Pool, threads: int) -> None:
    assert pool.counts(pool.create(threads), 5) == [1] * 5


def test_thread_count_is_bounded(pool: Pool) -> None:
    first = pool.create(1)
    last = pool.grow(first, 10**6)
    assert first < last <= first + (MAXIMUM_THREADS - 1) * 128
    assert pool.counts(last, 3000) == [1] * 3000


@pytest.mark.parametrize("advice", ["i32 18)", "i32 9999)"], ids=["wiped", "owner compared"])
def test_a_forked_child_runs_serially_and_can_make_its_own_pool(advice: str) -> None:
    """With memory wiped on fork, and on a kernel that refuses to wipe."""
    module = pool_module(HOST)
    assert "i32 18)" in module
    modules = (module.replace("i32 18)", advice), BODIES)
    pool = Pool(LoadedImage(image_of(*modules, exports=(*POOL_EXPORTS, "repeat", "meet"))))
    handle = pool.create_native(2)
    assert pool.counts(handle, 4) == [1] * 4
    child = os.fork()
    if child == 0:
        try:
            correct = pool.counts(handle, 8, times=3) == [3] * 8
            context = (I64 * 2)()
            pool.run(pool.create_native(2), "meet", context, 2)
            os._exit(0 if correct and list(context) == [2, 2] else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert pool.counts(handle, 4) == [1] * 4
    pool.destroy(handle)


def test_fork_while_another_thread_is_inside_a_loop(pool: Pool) -> None:
    handle = pool.create(2)
    caller = threading.Thread(target=lambda: pool.counts(handle, 8, times=30000))
    caller.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if pool.counts(handle, 8) == [1] * 8 else 1)
        assert os.waitpid(child, 0)[1] == 0
    caller.join(60)
    assert not caller.is_alive()


@pytest.mark.skipif(host_machine() != "x86_64", reason="reads the x86 control register")
def test_workers_use_the_callers_floating_point_control(pool: Pool, image: LoadedImage) -> None:
    handle = pool.create(2)
    controls = function(image, "controls", None, PTR, PTR, I64, I32)
    flush_denormals = 0x9FC0  # flush to zero, denormals are zero, all exceptions masked
    for control in (0x1F80, flush_denormals, 0x1F80):
        seen = (I32 * 16)()
        controls(handle, ctypes.addressof(seen), 16, control)
        # The low six bits are sticky exception flags.
        assert {value & ~0x3F for value in seen} == {control}


def test_destroying_nothing_is_allowed(pool: Pool) -> None:
    pool.destroy(None)


def test_destroying_ends_the_workers(pool: Pool) -> None:
    before = len(os.listdir("/proc/self/task"))
    handle = pool.create_native(4)
    assert len(os.listdir("/proc/self/task")) == before + 3
    pool.destroy(handle)
    assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_module_defines_its_exports_and_calls_only_allowed_functions(triple: str) -> None:
    (data,) = emit_objects([pool_module(triple)], triple)
    symbols = [symbol for symbol in read_object(data).symbols if symbol.binding != 0]
    assert {symbol.name for symbol in symbols if symbol.section} == set(POOL_EXPORTS)
    assert {symbol.name for symbol in symbols if not symbol.section} <= ALLOWED_IMPORTS


def test_the_compiled_pool_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    pool_object.cache_clear()
    compiled = pool_object(HOST)
    pool_object.cache_clear()
    monkeypatch.setattr("ingot.compiler.codegen.pool.emit_objects", None)  # nothing is compiled again
    assert pool_object(HOST) == compiled
    pool_object.cache_clear()
    assert {symbol.name for symbol in read_object(compiled).symbols} >= set(POOL_EXPORTS)


def test_other_systems_are_refused() -> None:
    with pytest.raises(ValueError, match="no thread pool for target 'riscv64-unknown-linux-gnu'"):
        pool_module("riscv64-unknown-linux-gnu")
