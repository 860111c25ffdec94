"""The thread pool that every program carries: an LLVM IR module, linked into the image.

    ingot_pool_create(i32 threads) -> ptr           a pool of `threads` participants, the caller being one
    ingot_pool_grow(ptr pool, i32 threads) -> ptr   a handle on the same pool for that many participants
    ingot_pool_destroy(ptr pool)                    end the workers, release the memory (no call may be
    running) ingot_parallel_for(ptr pool, ptr function, ptr context, i64 count)
                                                    function(context, index) once for every index in [0,
                                                    count)

The partition is static: of P = min(participants, count) participants each runs one contiguous range, ranges
differ by at most one index, participant 0 is the caller.  The loop runs on the caller alone when the pool
is null, count <= 1, the pool has one participant, it is busy (another thread's loop, or a loop inside a
loop: so there is neither deadlock nor oversubscription), or the process was forked since the pool was made.

How it works.  Every participant has a line of its own with a state word: IDLE -> WORK (its starter) -> IDLE
(whoever runs the share), and IDLE -> SLEEPING by a worker that has polled long enough, which its starter must
then wake.  Starting follows a binary tree, participant p starts 2p+1 and 2p+2, because an exchange on another
core's cache line, let alone a wake-up call, takes longer than the hop.
Whoever finishes decrements `pending`; the caller polls it for a moment, runs the shares that no worker has
begun by then, and sleeps until the others are finished.  On a crowded machine a worker may not get a processor
for milliseconds, and a program of small loops would wait so long at each of them.
A handle is the address of the line of its last participant, so one pool serves any smaller number of
threads.

Sleeping uses the futex system call, not a mutex and a condition variable: a worker waits on the very word
that starts it, so waking needs no lock, and no structure whose layout differs between C libraries.  Linux
only.
The memory is wiped in a forked child (MADV_WIPEONFORK), where a wiped handle means "no workers": the check
costs nothing.  Where the kernel cannot wipe, the owner's process number is compared instead.
Workers take over the caller's floating-point control word, so rounding and denormals do not depend on which
thread computes what.

Invariant: exactly one call per index, all finished and visible to the caller on return.
Non-goal: finer balance than whole shares; kernels are cut into equal pieces.
The layout is shared by all programs of a process: see FORMAT_VERSION in runtime/abi.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from string import Template

import llvmlite.binding as llvm

from ingot.compiler.codegen.parallel import emit_objects
from ingot.runtime.cache import Cache

MAXIMUM_THREADS = 1024
# How long to wait awake: polls with a pause of 40-140 cycles each, then polls that offer the processor to
# others, since on a crowded machine the thread waited for may be behind this one in the queue.  Together
# about as long as sleeping and waking takes, which costs at most twice the best choice whatever the gaps
# between loops are (Karlin et al., "Competitive randomized algorithms for nonuniform problems", 1990).
PAUSES = 250
YIELDS = 100

_LINE = 128  # bytes; two cache lines, since processors fetch them in pairs
_HEADER_LINES = 4


@dataclass(frozen=True, slots=True)
class _Architecture:
    futex_call: int
    pause: str
    pause_declaration: str
    read_control: str
    write_control: str
    control_declarations: str


_ARCHITECTURES = {
    "x86_64": _Architecture(
        futex_call=202,
        pause="call void @llvm.x86.sse2.pause()",
        pause_declaration="declare void @llvm.x86.sse2.pause()",
        read_control="""
  %word = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %narrow = load i32, ptr %word
  %control = zext i32 %narrow to i64""",
        write_control="""
  %word = alloca i32
  %narrow = trunc i64 %control to i32
  store i32 %narrow, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)""",
        control_declarations="""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)""",
    ),
    "aarch64": _Architecture(
        futex_call=98,
        pause="call void @llvm.aarch64.isb(i32 15)",  # "yield" is a no-op on most cores
        pause_declaration="declare void @llvm.aarch64.isb(i32)",
        read_control="""
  %control = call i64 @llvm.aarch64.get.fpcr()""",
        write_control="""
  call void @llvm.aarch64.set.fpcr(i64 %control)""",
        control_declarations="""
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)""",
    ),
}


@functools.cache
def pool_object(triple: str) -> bytes:
    """The compiled pool; it is the same in all programs for a triple, so it is kept in memory and on disk."""
    text = pool_module(triple)
    cache = Cache()
    key = f"pool {triple} llvm {llvm.llvm_version_info} {text}"
    found = cache.get(key)
    if found is None:
        (found,) = emit_objects([text], triple)
        cache.put(key, found)
    return found


def pool_module(triple: str) -> str:
    """The text of the pool's module for a Linux triple."""
    architecture = _ARCHITECTURES.get(triple.split("-")[0])
    if architecture is None or "linux" not in triple:
        raise ValueError(f"no thread pool for target {triple!r}; known: linux on {', '.join(_ARCHITECTURES)}")
    return _MODULE.substitute(
        triple=triple,
        maximum=MAXIMUM_THREADS,
        pauses=PAUSES,
        polls=PAUSES + YIELDS,
        bytes=(_HEADER_LINES + MAXIMUM_THREADS) * _LINE,
        futex=architecture.futex_call,
        pause=architecture.pause,
        pause_declaration=architecture.pause_declaration,
        read_control=architecture.read_control,
        write_control=architecture.write_control,
        control_declarations=architecture.control_declarations,
    )


_MODULE = Template("""\
target triple = "$triple"

; state, index, pool, thread
%participant = type { i32, i32, ptr, i64, [104 x i8] }

; threads, owner process (0: memory is wiped on fork)             line 0, constant while loops run
; busy                                                            line 1
; function, context, count, participants, floating-point control  line 2, the loop being run
; pending: unfinished workers, plus 2**31 when the caller sleeps  line 3
%pool = type { i32, i32, [120 x i8], i32, [124 x i8], ptr, ptr, i64, i64, i64, [88 x i8], i32, [124 x i8],
               [$maximum x %participant] }

; state words: 0 idle, 1 work, 2 sleeping, 3 quit

declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @madvise(ptr, i64, i32)
declare i32 @getpid()
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @llvm.umin.i32(i32, i32)
$pause_declaration
$control_declarations

define internal i64 @read_control() nounwind {$read_control
  ret i64 %control
}

define internal void @write_control(i64 %control) nounwind {$write_control
  ret void
}

; FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129.  Waits may end early; callers check the word again.
define internal void @futex_wait(ptr %word, i32 %expected) nounwind noinline {
  %value = zext i32 %expected to i64
  call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i64 128, i64 %value, ptr null, ptr null, i64 0)
  ret void
}

define internal void @futex_wake(ptr %word) nounwind noinline {
  call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i64 129, i64 1, ptr null, ptr null, i64 0)
  ret void
}

define internal ptr @participant(ptr %pool, i64 %index) nounwind alwaysinline {
  %line = getelementptr %pool, ptr %pool, i64 0, i32 13, i64 %index
  ret ptr %line
}

define internal i32 @clamp(i32 %threads) nounwind alwaysinline {
  %signed = icmp slt i32 %threads, 1
  %positive = select i1 %signed, i32 1, i32 %threads
  %bounded = call i32 @llvm.umin.i32(i32 %positive, i32 $maximum)
  ret i32 %bounded
}

; Running a loop

define internal void @run_range(ptr %function, ptr %context, i64 %begin, i64 %end) nounwind {
entry:
  %any = icmp ult i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %index = phi i64 [ %begin, %entry ], [ %next, %loop ]
  call void %function(ptr %context, i64 %index)
  %next = add i64 %index, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define internal void @run_share(ptr %pool, i64 %participant) nounwind {
  %function.p = getelementptr %pool, ptr %pool, i64 0, i32 5
  %context.p = getelementptr %pool, ptr %pool, i64 0, i32 6
  %count.p = getelementptr %pool, ptr %pool, i64 0, i32 7
  %participants.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  %function = load ptr, ptr %function.p
  %context = load ptr, ptr %context.p
  %count = load i64, ptr %count.p
  %participants = load i64, ptr %participants.p
  ; quotient and remainder, not participant * count / participants, which could overflow
  %share = udiv i64 %count, %participants
  %rest = urem i64 %count, %participants
  %before = mul i64 %participant, %share
  %longer.before = call i64 @llvm.umin.i64(i64 %participant, i64 %rest)
  %begin = add i64 %before, %longer.before
  %is.longer = icmp ult i64 %participant, %rest
  %one = zext i1 %is.longer to i64
  %length = add i64 %share, %one
  %end = add i64 %begin, %length
  call void @run_range(ptr %function, ptr %context, i64 %begin, i64 %end)
  ret void
}

define internal void @start(ptr %line) nounwind {
  ; release: the worker must see the loop; acquire: a sleeper's word must not be read too early
  %old = atomicrmw xchg ptr %line, i32 1 acq_rel
  %asleep = icmp eq i32 %old, 2
  br i1 %asleep, label %wake, label %done
wake:
  call void @futex_wake(ptr %line)
  ret void
done:
  ret void
}

define internal void @start_children(ptr %pool, i64 %participant, i64 %participants) nounwind {
  %twice = shl i64 %participant, 1
  %left = add i64 %twice, 1
  %right = add i64 %twice, 2
  %has.left = icmp ult i64 %left, %participants
  br i1 %has.left, label %start.left, label %done
start.left:
  %left.line = call ptr @participant(ptr %pool, i64 %left)
  call void @start(ptr %left.line)
  %has.right = icmp ult i64 %right, %participants
  br i1 %has.right, label %start.right, label %done
start.right:
  %right.line = call ptr @participant(ptr %pool, i64 %right)
  call void @start(ptr %right.line)
  br label %done
done:
  ret void
}

; Poll until the word is zero (or is not), or the last round is over; returns what was read last.
define internal i32 @poll(ptr %word, i1 %for.zero, i32 %first, i32 %last) nounwind {
entry:
  br label %look
look:
  %round = phi i32 [ %first, %entry ], [ %next, %pause ], [ %next, %yield ]
  %now = load atomic i32, ptr %word acquire, align 4
  %zero = icmp eq i32 %now, 0
  %reached = icmp eq i1 %zero, %for.zero
  %next = add i32 %round, 1
  %tired = icmp ugt i32 %next, %last
  %stop = or i1 %reached, %tired
  br i1 %stop, label %done, label %wait
wait:
  %fresh = icmp ult i32 %round, $pauses
  br i1 %fresh, label %pause, label %yield
pause:
  $pause
  br label %look
yield:
  call i32 @sched_yield()
  br label %look
done:
  ret i32 %now
}

; Run the shares of workers that were told to but have not begun.
define internal void @take_over(ptr %pool) nounwind {
entry:
  %participants.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  %pending = getelementptr %pool, ptr %pool, i64 0, i32 11
  %participants = load i64, ptr %participants.p
  br label %check
check:
  %index = phi i64 [ 1, %entry ], [ %next, %advance ]
  %left = icmp ult i64 %index, %participants
  br i1 %left, label %look, label %done
look:
  %line = call ptr @participant(ptr %pool, i64 %index)
  %state = load atomic i32, ptr %line monotonic, align 4
  %waits = icmp eq i32 %state, 1
  br i1 %waits, label %claim, label %advance
claim:
  %order = cmpxchg ptr %line, i32 1, i32 0 acq_rel monotonic
  %claimed = extractvalue { i32, i1 } %order, 1
  br i1 %claimed, label %run, label %advance
run:
  call void @start_children(ptr %pool, i64 %index, i64 %participants)
  call void @run_share(ptr %pool, i64 %index)
  %before = atomicrmw sub ptr %pending, i32 1 acq_rel
  br label %advance
advance:
  %next = add i64 %index, 1
  br label %check
done:
  ret void
}

define internal void @await_workers(ptr %pool) nounwind {
entry:
  %pending = getelementptr %pool, ptr %pool, i64 0, i32 11
  %soon = call i32 @poll(ptr %pending, i1 true, i32 0, i32 $pauses)
  %in.time = icmp eq i32 %soon, 0
  br i1 %in.time, label %done, label %help
help:
  call void @take_over(ptr %pool)
  %polled = call i32 @poll(ptr %pending, i1 true, i32 $pauses, i32 $polls)
  %finished = icmp eq i32 %polled, 0
  br i1 %finished, label %done, label %announce
announce:
  call void @take_over(ptr %pool) ; those that were told meanwhile
  %before = atomicrmw or ptr %pending, i32 -2147483648 acquire
  br label %check
check:
  %seen = phi i32 [ %before, %announce ], [ %later, %sleep ]
  %workers = and i32 %seen, 2147483647
  %none = icmp eq i32 %workers, 0
  br i1 %none, label %done, label %sleep
sleep:
  %expected = or i32 %workers, -2147483648
  call void @futex_wait(ptr %pending, i32 %expected)
  %later = load atomic i32, ptr %pending acquire, align 4
  br label %check
done:
  ret void
}

define void @ingot_parallel_for(ptr %handle, ptr %function, ptr %context, i64 %count) nounwind {
entry:
  %no.pool = icmp eq ptr %handle, null
  %short = icmp slt i64 %count, 2
  %alone = or i1 %no.pool, %short
  br i1 %alone, label %serial, label %look
look:
  %index.p = getelementptr %participant, ptr %handle, i64 0, i32 1
  %pool.p = getelementptr %participant, ptr %handle, i64 0, i32 2
  %last = load i32, ptr %index.p
  %pool = load ptr, ptr %pool.p
  %wiped = icmp eq ptr %pool, null
  %single = icmp eq i32 %last, 0
  %nobody = or i1 %wiped, %single
  br i1 %nobody, label %serial, label %ask.owner
ask.owner:
  %owner.p = getelementptr %pool, ptr %pool, i64 0, i32 1
  %owner = load i32, ptr %owner.p
  %unguarded = icmp ne i32 %owner, 0
  br i1 %unguarded, label %compare.owner, label %ask.busy
compare.owner:
  %process = call i32 @getpid()
  %forked = icmp ne i32 %process, %owner
  br i1 %forked, label %serial, label %ask.busy
ask.busy:
  %busy.p = getelementptr %pool, ptr %pool, i64 0, i32 3
  %claim = cmpxchg ptr %busy.p, i32 0, i32 1 acquire monotonic
  %claimed = extractvalue { i32, i1 } %claim, 1
  br i1 %claimed, label %parallel, label %serial
parallel:
  %limit.narrow = add i32 %last, 1
  %limit = zext i32 %limit.narrow to i64
  %participants = call i64 @llvm.umin.i64(i64 %limit, i64 %count)
  %function.p = getelementptr %pool, ptr %pool, i64 0, i32 5
  %context.p = getelementptr %pool, ptr %pool, i64 0, i32 6
  %count.p = getelementptr %pool, ptr %pool, i64 0, i32 7
  %participants.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  %control.p = getelementptr %pool, ptr %pool, i64 0, i32 9
  %pending.p = getelementptr %pool, ptr %pool, i64 0, i32 11
  store ptr %function, ptr %function.p
  store ptr %context, ptr %context.p
  store i64 %count, ptr %count.p
  store i64 %participants, ptr %participants.p
  %control = call i64 @read_control()
  store i64 %control, ptr %control.p
  %participants.narrow = trunc i64 %participants to i32
  %workers = sub i32 %participants.narrow, 1
  store atomic i32 %workers, ptr %pending.p monotonic, align 4
  call void @start_children(ptr %pool, i64 0, i64 %participants)
  call void @run_share(ptr %pool, i64 0)
  call void @await_workers(ptr %pool)
  store atomic i32 0, ptr %busy.p release, align 4
  ret void
serial:
  %positive = icmp sgt i64 %count, 0
  %end = select i1 %positive, i64 %count, i64 0
  call void @run_range(ptr %function, ptr %context, i64 0, i64 %end)
  ret void
}

; Workers

define internal ptr @worker(ptr %line) nounwind {
entry:
  %index.p = getelementptr %participant, ptr %line, i64 0, i32 1
  %pool.p = getelementptr %participant, ptr %line, i64 0, i32 2
  %index.narrow = load i32, ptr %index.p
  %index = zext i32 %index.narrow to i64
  %pool = load ptr, ptr %pool.p
  %participants.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  %control.p = getelementptr %pool, ptr %pool, i64 0, i32 9
  %pending.p = getelementptr %pool, ptr %pool, i64 0, i32 11
  br label %idle
idle:
  %polled = call i32 @poll(ptr %line, i1 false, i32 0, i32 $polls)
  %called = icmp ne i32 %polled, 0
  br i1 %called, label %act, label %fall.asleep
fall.asleep:
  %bed = cmpxchg ptr %line, i32 0, i32 2 acquire acquire
  %lies = extractvalue { i32, i1 } %bed, 1
  %instead = extractvalue { i32, i1 } %bed, 0
  br i1 %lies, label %sleep, label %act
sleep:
  call void @futex_wait(ptr %line, i32 2)
  %woken = load atomic i32, ptr %line acquire, align 4
  %early = icmp eq i32 %woken, 2
  br i1 %early, label %sleep, label %act
act:
  %order = phi i32 [ %polled, %idle ], [ %instead, %fall.asleep ], [ %woken, %sleep ]
  %quit = icmp eq i32 %order, 3
  br i1 %quit, label %end, label %claim
claim:
  ; idle again before `pending` drops: from then on the next loop may start this worker
  %claiming = cmpxchg ptr %line, i32 1, i32 0 acquire monotonic
  %claimed = extractvalue { i32, i1 } %claiming, 1
  br i1 %claimed, label %work, label %idle
work:
  %participants = load i64, ptr %participants.p
  call void @start_children(ptr %pool, i64 %index, i64 %participants)
  %control = load i64, ptr %control.p
  call void @write_control(i64 %control)
  call void @run_share(ptr %pool, i64 %index)
  %before = atomicrmw sub ptr %pending.p, i32 1 acq_rel
  %caller.sleeps = icmp eq i32 %before, -2147483647
  br i1 %caller.sleeps, label %wake.caller, label %idle
wake.caller:
  call void @futex_wake(ptr %pending.p)
  br label %idle
end:
  ret ptr null
}

; Life of a pool

define ptr @ingot_pool_create(i32 %threads) nounwind {
  ; PROT_READ | PROT_WRITE = 3, MAP_PRIVATE | MAP_ANONYMOUS = 34, MADV_WIPEONFORK = 18
  %pool = call ptr @mmap(ptr null, i64 $bytes, i32 3, i32 34, i32 -1, i64 0)
  %failed = icmp eq ptr %pool, inttoptr (i64 -1 to ptr)
  br i1 %failed, label %none, label %mapped
none:
  ret ptr null
mapped:
  %refused = call i32 @madvise(ptr %pool, i64 $bytes, i32 18)
  %wiping = icmp eq i32 %refused, 0
  br i1 %wiping, label %fill, label %remember.owner
remember.owner:
  %process = call i32 @getpid()
  %owner.p = getelementptr %pool, ptr %pool, i64 0, i32 1
  store i32 %process, ptr %owner.p
  br label %fill
fill:
  %threads.p = getelementptr %pool, ptr %pool, i64 0, i32 0
  store i32 1, ptr %threads.p
  %caller = call ptr @participant(ptr %pool, i64 0)
  %pool.p = getelementptr %participant, ptr %caller, i64 0, i32 2
  store ptr %pool, ptr %pool.p
  %handle = call ptr @ingot_pool_grow(ptr %caller, i32 %threads)
  ret ptr %handle
}

; Calls must not overlap; loops may run meanwhile, since no older handle reaches the new lines.
define ptr @ingot_pool_grow(ptr %handle, i32 %threads) nounwind {
entry:
  %everything = alloca [128 x i8], align 8
  %signals = alloca [128 x i8], align 8
  %pool.p = getelementptr %participant, ptr %handle, i64 0, i32 2
  %pool = load ptr, ptr %pool.p
  %wiped = icmp eq ptr %pool, null
  br i1 %wiped, label %unchanged, label %alive
unchanged:
  ret ptr %handle
alive:
  ; Signals belong to the program's own threads; faults (4, 5, 7, 8, 11) to the thread that causes them.
  call void @llvm.memset.p0.i64(ptr %everything, i8 -1, i64 128, i1 false)
  store i64 -1241, ptr %everything
  call i32 @pthread_sigmask(i32 2, ptr %everything, ptr %signals)
  %wanted = call i32 @clamp(i32 %threads)
  %threads.p = getelementptr %pool, ptr %pool, i64 0, i32 0
  %present = load i32, ptr %threads.p
  br label %check
check:
  %index = phi i32 [ %present, %alive ], [ %next, %created ]
  %enough = icmp uge i32 %index, %wanted
  br i1 %enough, label %done, label %create
create:
  %wide = zext i32 %index to i64
  %line = call ptr @participant(ptr %pool, i64 %wide)
  %index.p = getelementptr %participant, ptr %line, i64 0, i32 1
  %line.pool.p = getelementptr %participant, ptr %line, i64 0, i32 2
  %thread.p = getelementptr %participant, ptr %line, i64 0, i32 3
  store i32 %index, ptr %index.p
  store ptr %pool, ptr %line.pool.p
  %error = call i32 @pthread_create(ptr %thread.p, ptr null, ptr @worker, ptr %line)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %done, label %created
created:
  %next = add i32 %index, 1
  store i32 %next, ptr %threads.p
  br label %check
done:
  call i32 @pthread_sigmask(i32 2, ptr %signals, ptr null)
  %reached = call i32 @llvm.umin.i32(i32 %index, i32 %wanted)
  %last.narrow = sub i32 %reached, 1
  %last = zext i32 %last.narrow to i64
  %result = call ptr @participant(ptr %pool, i64 %last)
  ret ptr %result
}

define void @ingot_pool_destroy(ptr %handle) nounwind {
entry:
  %no.pool = icmp eq ptr %handle, null
  br i1 %no.pool, label %done, label %look
look:
  %pool.p = getelementptr %participant, ptr %handle, i64 0, i32 2
  %pool = load ptr, ptr %pool.p
  %wiped = icmp eq ptr %pool, null
  br i1 %wiped, label %done, label %ask.owner
ask.owner:
  %owner.p = getelementptr %pool, ptr %pool, i64 0, i32 1
  %owner = load i32, ptr %owner.p
  %process = call i32 @getpid()
  %guarded = icmp eq i32 %owner, 0
  %own = icmp eq i32 %owner, %process
  %ours = or i1 %guarded, %own
  br i1 %ours, label %begin, label %done
begin:
  %threads.p = getelementptr %pool, ptr %pool, i64 0, i32 0
  %threads.narrow = load i32, ptr %threads.p
  %threads = zext i32 %threads.narrow to i64
  br label %check
check:
  %index = phi i64 [ 1, %begin ], [ %next, %end.worker ]
  %left = icmp ult i64 %index, %threads
  br i1 %left, label %end.worker, label %release
end.worker:
  %line = call ptr @participant(ptr %pool, i64 %index)
  %old = atomicrmw xchg ptr %line, i32 3 acq_rel
  call void @futex_wake(ptr %line)
  %thread.p = getelementptr %participant, ptr %line, i64 0, i32 3
  %thread = load i64, ptr %thread.p
  call i32 @pthread_join(i64 %thread, ptr null)
  %next = add i64 %index, 1
  br label %check
release:
  call i32 @munmap(ptr %pool, i64 $bytes)
  br label %done
done:
  ret void
}
""")
