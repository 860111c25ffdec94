"""Memory and files: aligned arrays, addresses of arrays, atomic replacement of files."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ingot.runtime.abi import ALIGNMENT

_BYTE = np.dtype(np.uint8)
_WORD = ctypes.sizeof(ctypes.c_void_p)
_DATA_FIELD = object.__basicsize__ // _WORD  # NumPy's binary interface: the data pointer follows the object header
_WORDS = ((ctypes.c_size_t * (1 << 44)) if _WORD == 8 else (ctypes.c_size_t * (1 << 28))).from_address(0)


def _address_from_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_from_object(array: np.ndarray, _words: ctypes.Array[ctypes.c_size_t] = _WORDS) -> int:
    return _words[id(array) // _WORD + _DATA_FIELD]


_PROBE = np.arange(3)
WORTH_ALIGNING = 1 << 17  # bytes: vectors that cross cache lines then take longer than aligning
_WORTH_PRESENT_PAGES = 1 << 20  # bytes
_LONGEST_UNIT = 256  # bytes: longer rows are copied well as they are
_WORTH_A_THREAD = 1 << 20  # bytes: less is mostly the interpreter, which one thread at a time runs
_PIECE = 1 << 22  # bytes that are made present and copied at once
_LARGE_PAGE = 1 << 21  # bytes
_MADV_HUGEPAGE = 14  # of Linux
_MADV_POPULATE_WRITE = 23  # of Linux, since 5.14; not yet known to Python
_advise: Any = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
if _advise is not None:
    _advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# `array.ctypes.data` takes 1-2 microseconds, more than the rest of a call's checks together; a word of the object
# itself takes a twentieth of that.
address_of = (
    _address_from_object if _address_from_object(_PROBE) == _address_from_interface(_PROBE) else _address_from_interface
)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """An uninitialised C-contiguous array of `size` bytes whose data is 64-byte aligned."""
    raw = np.empty(size + ALIGNMENT, _BYTE)
    return np.ndarray(shape, dtype, raw, -address_of(raw) % ALIGNMENT)


def scratch_memory(size: int) -> np.ndarray:
    """So many uninitialised bytes, 64-byte aligned. NumPy asks for large pages too, but begins anywhere in one: of a few
    megabytes most would be in small ones."""
    if size < 2 * _LARGE_PAGE:
        return aligned_empty((size,), _BYTE, size)
    try:
        return _pages(size, present=False)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from None


def result_array(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """An uninitialised array for a result. Small ones are not aligned to cache lines: that would take longer than
    what it saves."""
    return np.empty(shape, dtype) if size < WORTH_ALIGNING else aligned_empty(shape, dtype, size)


def aligned_copies(arrays: Sequence[np.ndarray], workers: int = 1) -> list[np.ndarray]:
    """The same values, C-contiguous and 64-byte aligned; an array itself when it already is."""
    unfit = [a for a in arrays if not is_aligned(a)]
    memory = aligned_together([a.nbytes for a in unfit], present=False)
    copies = {id(a): np.ndarray(a.shape, a.dtype, m) for a, m in zip(unfit, memory, strict=True)}
    write_side_by_side([(a.nbytes, partial(copy_into, copies[id(a)], a)) for a in unfit], workers)
    return [copies.get(id(array), array) for array in arrays]


def write_side_by_side(work: Sequence[tuple[int, Callable[[], None]]], workers: int) -> None:
    """Run tasks that each write so many bytes: the largest first, so that no thread is left with one in the end, then
    small ones by this thread."""
    ordered = sorted(work, key=lambda item: -item[0])
    large = [task for size, task in ordered if size >= _WORTH_A_THREAD] if workers > 1 else []
    if len(large) > 1:
        with ThreadPoolExecutor(min(workers, len(large))) as pool:
            for running in [pool.submit(task) for task in large]:
                running.result()
        ordered = ordered[len(large) :]
    for _, task in ordered:
        task()


def is_aligned(array: np.ndarray) -> bool:
    """Whether an array is C-contiguous and 64-byte aligned."""
    return array.flags.c_contiguous and not address_of(array) % ALIGNMENT


def aligned_together(sizes: Sequence[int], present: bool = True) -> list[np.ndarray]:
    """Uninitialised bytes for each size, all in one piece of memory, each 64-byte aligned.

    The system is asked for a large piece's pages at once: given one by one, as they are touched, they take longer than
    computing what goes there. Unless `present`, that is left to whoever writes a part of it (`make_present`).
    """
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += size + -size % ALIGNMENT
    piece = _pages(end, present) if end >= _WORTH_PRESENT_PAGES else aligned_empty((end,), _BYTE, end)
    return [piece[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _pages(size: int, present: bool) -> np.ndarray:
    """Large pages where the system gives them: what is read in a stream then takes up to a fifth less time, because
    addresses are found and lines are asked for ahead across more of it."""
    whole = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room = np.frombuffer(whole, _BYTE)
    first = -address_of(room) % _LARGE_PAGE
    room = room[first : first + size]
    if _advise is not None and size >= _LARGE_PAGE:
        _advise(address_of(room), size - size % _LARGE_PAGE, _MADV_HUGEPAGE)
    if present:
        make_present(room)
    return room


def make_present(room: np.ndarray) -> None:
    """Ask the system for the pages of an array that is written next, all at once. Best done for a part that a cache
    holds: pages come zeroed, and what is in a cache is written faster. A system that does not know how gives them one
    by one; other threads go on meanwhile."""
    if _advise is not None and room.nbytes >= mmap.PAGESIZE:
        start = address_of(room)
        first = start - start % mmap.PAGESIZE
        _advise(first, start + room.nbytes - first, _MADV_POPULATE_WRITE)


def copy_into(room: np.ndarray, array: np.ndarray) -> None:
    """`room[...] = array` for arrays of one shape and dtype, whose memory need not be present."""
    if room.nbytes <= _PIECE or not room.ndim:
        make_present(room)
        _copy(room, array)
        return
    rows = max(1, _PIECE * room.shape[0] // room.nbytes)
    for start in range(0, room.shape[0], rows):
        make_present(room[start : start + rows])
        _copy(room[start : start + rows], array[start : start + rows])


def _copy(room: np.ndarray, array: np.ndarray) -> None:
    """Rows that are contiguous in both move as units: for the short rows of rearranged weights NumPy takes half the
    time then."""
    row = array.shape[-1] * array.itemsize if array.ndim else 0
    if 1 < row <= _LONGEST_UNIT and all(a.strides[-1] == a.itemsize and a.size for a in (room, array)):
        unit = np.dtype((np.void, row))
        room.view(unit)[...] = array.view(unit)
    else:
        room[...] = array


def byte_view(array: np.ndarray) -> np.ndarray:
    """The bytes of an array in C order (NumPy's buffer interface does not know every dtype)."""
    return np.ascontiguousarray(array).reshape(-1).view(_BYTE)


@contextlib.contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well, and leaves no trace when it does not.

    `durable`: the bytes are on the disk before the name is.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some file systems cannot; the file itself is safe
        pass
    finally:
        os.close(descriptor)
