"""Memory and files: aligned arrays, addresses of arrays, atomic replacement of files."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
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

# `array.ctypes.data` takes 1-2 microseconds, more than the rest of a call's checks together; a word of the object
# itself takes a twentieth of that.
address_of = (
    _address_from_object if _address_from_object(_PROBE) == _address_from_interface(_PROBE) else _address_from_interface
)


def reference_to(address: int) -> Any:
    """What a foreign function takes as a pointer to this address, without converting anything; None if it is 0."""
    return ctypes.byref(ctypes.c_char.from_address(address)) if address else None


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """An uninitialised C-contiguous array of `size` bytes whose data is 64-byte aligned."""
    raw = np.empty(size + ALIGNMENT, _BYTE)
    return np.ndarray(shape, dtype, raw, -address_of(raw) % ALIGNMENT)


def result_array(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """An uninitialised array for a result. Small ones are not aligned to cache lines: that would take longer than
    what it saves."""
    return np.empty(shape, dtype) if size < WORTH_ALIGNING else aligned_empty(shape, dtype, size)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """The same values, C-contiguous and 64-byte aligned; the array itself when it already is."""
    if array.flags.c_contiguous and address_of(array) % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype, array.nbytes)
    copy[...] = array
    return copy


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
