"""What one call in flight works with: the record that `ingot_call` takes, the table of pointers, scratch memory.

Invariant: a context is used by one call at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ingot.runtime import abi
from ingot.runtime.abi import Word
from ingot.runtime.errors import IngotRuntimeError, OutOfMemoryError
from ingot.runtime.shapes import Plan
from ingot.runtime.storage import address_of, scratch_memory


class Context:
    """`words` is the record, `reference` what a foreign function takes as a pointer to it, without converting
    anything."""

    __slots__ = ("arena", "failure", "plan", "pointers", "reference", "slots", "words")

    def __init__(self, entry: int, pointers: Sequence[int], slots: Sequence[int], times: int = 0) -> None:
        """`pointers`: what is known of the table; `slots`: places of results in it."""
        self.pointers = (ctypes.c_size_t * len(pointers))(*pointers)
        self.slots = (ctypes.c_int64 * len(slots))(*slots)
        self.failure = (ctypes.c_int64 * abi.FAILURE_WORDS)()
        self.arena: np.ndarray | None = None
        self.plan: Plan | None = None
        self.words = (ctypes.c_size_t * len(Word))()
        self.reference = ctypes.byref(self.words)
        words = self.words
        words[Word.BUFFERS] = ctypes.addressof(self.pointers)
        words[Word.SLOTS] = ctypes.addressof(self.slots)
        words[Word.RESULT_COUNT] = len(slots)
        words[Word.FAILURE] = ctypes.addressof(self.failure)
        words[Word.ENTRY] = entry
        words[Word.TIMES] = times
        words[Word.HEADER] = object.__basicsize__
        words[Word.ITEMS] = tuple.__basicsize__
        words[Word.ARRAY] = id(np.ndarray)

    @property
    def arena_bytes(self) -> int:
        return 0 if self.arena is None else self.arena.nbytes

    @property
    def arena_address(self) -> int:
        return 0 if self.arena is None else address_of(self.arena)

    def use(self, plan: Plan) -> None:
        """Prepare for calls with the dims of a plan."""
        self.plan = None
        if self.arena_bytes < plan.arena_bytes:
            self._grow(plan.arena_bytes)
        words = self.words
        words[Word.ARENA] = self.arena_address
        words[Word.DIMS] = plan.dims.buffer_info()[0]
        words[Word.CHECKS] = plan.checks.buffer_info()[0]
        words[Word.INPUT_COUNT] = len(plan.input_shapes)
        self.plan = plan

    def _grow(self, size: int) -> None:
        self.arena = None  # release the old one first: both together may not fit
        try:
            self.arena = scratch_memory(size)
        except MemoryError:
            raise OutOfMemoryError(
                f"no room for the program's {size} bytes of scratch memory; compile with a memory_budget"
            ) from None


def _check_layout() -> None:
    """NumPy's binary interface and Python's are what `ingot_call` takes them for; any other would be read wrongly."""
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    arguments = (array,)
    start = id(array) + object.__basicsize__

    def word(address: int, kind: type[ctypes.c_size_t] | type[ctypes.c_int32] = ctypes.c_size_t) -> int:
        return kind.from_address(address).value

    found = (
        word(start - ctypes.sizeof(ctypes.c_size_t)),
        word(start + abi.Field.DATA),
        word(start + abi.Field.RANK, ctypes.c_int32),
        word(start + abi.Field.DTYPE),
        word(start + abi.Field.FLAGS, ctypes.c_int32),
        word(id(arguments) + tuple.__basicsize__),
    )
    data = array.__array_interface__["data"][0]
    if found != (id(np.ndarray), data, 2, id(array.dtype), array.flags.num, id(array)):
        raise IngotRuntimeError("this Python or NumPy keeps arrays in memory in a way that Ingot does not know")


_check_layout()
