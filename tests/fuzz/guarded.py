"""Memory with guards, for everything that a program reads and writes: arguments, weights, results, scratch memory.

An array ends where a page begins that nobody may touch, or begins where one ends, so that the first byte outside is a
signal. Where alignment leaves a few bytes between, they hold a pattern that must still be there after the call.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from ingot.runtime import context, executable
from ingot.runtime.abi import ALIGNMENT
from ingot.runtime.storage import address_of

PAGE = mmap.PAGESIZE
NO_ACCESS = 0  # PROT_NONE
PATTERN = 0xC5  # of bytes beside an array
UNWRITTEN = 0xFF  # of an array that nobody has written to: NaNs
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class TouchedOutside(Exception):
    """Bytes beside an array were written to."""


class Guards:
    """Makes arrays with guards: behind them, or before them."""

    def __init__(self, behind: bool = True) -> None:
        self.behind = behind
        self._made: list[tuple[np.ndarray, int, int]] = []  # the bytes between the guards, where the array is in them

    def empty(self, shape: Sequence[int] | int, dtype: Any, alignment: int = 1) -> np.ndarray:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // PAGE) * PAGE or PAGE
        try:
            whole = np.frombuffer(mmap.mmap(-1, room + 2 * PAGE), np.uint8)
        except OSError as error:
            raise MemoryError(f"no room for {room} bytes: {error}") from None
        for forbidden in (0, PAGE + room):
            if _protect(address_of(whole) + forbidden, PAGE, NO_ACCESS):
                raise MemoryError(f"no more guards: {os.strerror(ctypes.get_errno())}")  # a process has 65530 mappings
        between = whole[PAGE : PAGE + room]
        start = (room - size) // alignment * alignment if self.behind else 0
        between[:start] = PATTERN
        between[start : start + size] = UNWRITTEN
        between[start + size :] = PATTERN
        self._made.append((between, start, start + size))
        return np.ndarray(shape, dtype, between[start : start + size]) if size else np.ndarray(shape, dtype, between)

    def copy(self, array: np.ndarray, alignment: int = 1) -> np.ndarray:
        made = self.empty(array.shape, array.dtype, alignment)
        made[...] = array
        return made

    def check(self) -> None:
        """Raises TouchedOutside when a byte beside an array has changed."""
        for between, start, end in self._made:
            for name, beside in (("before", between[:start]), ("behind", between[end:])):
                changed = np.flatnonzero(beside != PATTERN)
                if changed.size:
                    raise TouchedOutside(f"{changed.size} bytes {name} an array of {end - start} bytes were written to")


@contextlib.contextmanager
def guarding(guards: Guards) -> Iterator[None]:
    """Programs that are loaded or run meanwhile have their weights, results and scratch memory between guards."""

    def aligned(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
        return guards.empty(shape, dtype, ALIGNMENT)

    def copies(arrays: Sequence[np.ndarray], workers: int = 1) -> list[np.ndarray]:
        return [guards.copy(a, ALIGNMENT) for a in arrays]

    with (
        patch.object(context, "scratch_memory", lambda size: guards.empty((size,), np.dtype(np.uint8), ALIGNMENT)),
        patch.object(executable, "aligned_empty", aligned),
        patch.object(executable, "aligned_copies", copies),
        patch.object(executable, "result_array", lambda shape, dtype, size: guards.empty(shape, dtype)),
        patch.object(executable, "_EMPTY", guards.empty),
    ):
        yield
