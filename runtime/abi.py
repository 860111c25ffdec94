"""The contract between generated code and the runtime that calls it.

Every program image exports these C functions (`ptr` = pointer, integers little endian, C calling
convention):

`ingot_entry(ptr buffers, ptr dims, ptr arena, ptr pool, ptr failure) -> i32`
    Runs the program once; returns 0, or a code from `FAILURES`.
    buffers   array of pointers in manifest order: inputs, states, constants, outputs.  An output that
    updates
              a state in place (manifest "aliases") still has its slot, which holds the state's pointer.
    dims      i64 value of every symbolic dim, in manifest order.
    arena     scratch, 64-byte aligned, at least `ingot_arena_bytes(dims)` bytes, undefined on entry and
    exit.
    pool      thread pool handle, or null: serial.
    failure   i64[4], written only on failure: [0..2] are the integers that the code's message names, [3] is
    an
              index into the manifest's "sites" (-1: none).  Outputs are then undefined, and states may have
              been partly updated.

    Pointers of empty tensors may have any value and are never dereferenced.  All others are aligned to the
    dtype's size; constants, the executable's own states and large outputs that it allocates to 64 bytes.  Inputs
    are only read; they may overlap one another, never an output or a state that is updated.

`ingot_entry_profile(ptr buffers, ptr dims, ptr arena, ptr pool, ptr failure, ptr times) -> i32`
    Optional.  The same, and adds the nanoseconds spent in kernel k of the manifest to the i64 `times[k]`.

`ingot_call(ptr record) -> i32`
    Runs an entry on NumPy arrays: the words of `record` are those of `Word`.  Puts the data pointers of the arguments
    and of the results into the table of buffers and calls the entry, whose result it returns; or returns `UNUSUAL`
    and runs nothing when an argument is not just what the program reads: an array, no subclass, of the very dtype
    object and the shape of its check, C-contiguous and aligned.

`ingot_arena_bytes(ptr dims) -> i64`
    Exact scratch size for those dims; negative when it does not fit 63 bits.

`ingot_shapes(ptr dims, ptr out) -> void`
    Writes the extents (i64) of every input, then every state, then every output, one after another.  An
    extent that does not fit 63 bits comes out negative.

`ingot_pool_create`, `ingot_pool_grow`, `ingot_pool_destroy`, `ingot_parallel_for`
    The thread pool (compiler/codegen/pool.py).  All programs of a process share one pool, so its memory
    layout and what its words mean are part of the program format: change it and `FORMAT_VERSION` changes too.

Code may call nothing outside its image except `ALLOWED_IMPORTS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

FORMAT_VERSION = 3
ALIGNMENT = 64

ENTRY = "ingot_entry"
ENTRY_PROFILE = "ingot_entry_profile"
CALL = "ingot_call"
ARENA_BYTES = "ingot_arena_bytes"
SHAPES = "ingot_shapes"
POOL_CREATE = "ingot_pool_create"
POOL_GROW = "ingot_pool_grow"
POOL_DESTROY = "ingot_pool_destroy"
PARALLEL_FOR = "ingot_parallel_for"

POOL_EXPORTS = (POOL_CREATE, POOL_GROW, POOL_DESTROY, PARALLEL_FOR)
REQUIRED_EXPORTS = (ENTRY, CALL, ARENA_BYTES, SHAPES, *POOL_EXPORTS)

FAILURE_WORDS = 4

UNUSUAL = -1  # what `ingot_call` returns when it did not run; failures are positive
USABLE = 0x101  # NumPy's flags: C-contiguous and aligned


class Word(IntEnum):
    """The record of `ingot_call`, in words of 64 bits."""

    BUFFERS = 0  # as for the entry, with states and constants filled in
    DIMS = 1
    ARENA = 2
    POOL = 3
    FAILURE = 4
    TIMES = 5  # a sixth argument, which only the profiling entry reads
    ENTRY = 6  # the function to run
    HEADER = 7  # bytes of a Python object before its own fields; its type is the last word of them
    ITEMS = 8  # bytes of a Python tuple before its items
    ARRAY = 9  # the type of arrays
    ARGUMENTS = 10  # a tuple of as many objects as there are inputs
    INPUT_COUNT = 11
    CHECKS = 12  # for each input: its dtype object, its rank, its extents
    RESULTS = 13  # a tuple of arrays
    RESULT_COUNT = 14
    SLOTS = 15  # for each result its place in the table of buffers


class Field(IntEnum):
    """NumPy's binary interface: bytes from the end of an array's object header to its fields."""

    DATA = 0
    RANK = 8  # 32 bits
    SHAPE = 16
    DTYPE = 40
    FLAGS = 48  # 32 bits

# C library functions that generated code may call: what LLVM emits by itself for memory intrinsics and
# floating-point remainders, and what the thread pool needs.  Nothing here touches files, the environment or
# the network.
ALLOWED_IMPORTS = frozenset({
    "memcpy", "memmove", "memset", "memcmp", "bcmp",
    "fmod", "fmodf",
    "clock_gettime",
    "mmap", "munmap", "madvise", "getpid", "sched_yield", "syscall",
    "pthread_create", "pthread_join", "pthread_sigmask",
})  # fmt: skip


class Failure(IntEnum):
    """Non-zero results of `ingot_entry`."""

    INDEX_OUT_OF_RANGE = 1
    INTEGER_DIVISION_BY_ZERO = 2
    DIM_OUT_OF_BOUNDS = 3
    SHAPE_MISMATCH = 4
    LOOP_BOUND_EXCEEDED = 5
    NEGATIVE_EXTENT = 6
    CHECK_FAILED = 7


@dataclass(frozen=True, slots=True)
class FailureText:
    """How a failure reads: `template` may use {a}, {b}, {c} (failure[0..2])."""

    template: str
    advice: str


FAILURES: dict[int, FailureText] = {
    Failure.INDEX_OUT_OF_RANGE: FailureText(
        "index {a} is out of range for an axis of extent {b}",
        "indices must lie in [-extent, extent)",
    ),
    Failure.INTEGER_DIVISION_BY_ZERO: FailureText(
        "integer division by zero",
        "mask zero divisors before dividing",
    ),
    Failure.DIM_OUT_OF_BOUNDS: FailureText(
        "a dimension became {a}, outside its declared bounds [{b}, {c}]",
        "compile with wider bounds for that dimension",
    ),
    Failure.SHAPE_MISMATCH: FailureText(
        "extents {a} and {b} do not fit",
        "check the sizes of the inputs",
    ),
    Failure.LOOP_BOUND_EXCEEDED: FailureText(
        "a loop ran {a} times and wanted to go on, its bound is {b}",
        "raise the loop's bound or check its condition",
    ),
    Failure.NEGATIVE_EXTENT: FailureText(
        "an extent computed at run time is negative: {a} on axis {b}",
        "check the values that shapes are computed from",
    ),
    Failure.CHECK_FAILED: FailureText(
        "a check failed (details {a}, {b}, {c})",
        "see the site named above",
    ),
}


def describe_failure(code: int, details: tuple[int, ...], sites: tuple[str, ...] | list[str]) -> str:
    """The sentence a user reads for a non-zero result of `ingot_entry`."""
    a, b, c, site = details
    text = FAILURES.get(code)
    where = f" in {sites[site]}" if 0 <= site < len(sites) else ""
    if text is None:
        return f"the program stopped{where} with unknown failure code {code} (details {a}, {b}, {c})"
    return f"{text.template.format(a=a, b=b, c=c)}{where}; {text.advice}"
