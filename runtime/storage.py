"""Memory and files: aligned arrays, addresses of arrays, atomic replacement of files."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ingot.runtime.abi import ALIGNMENT

_BYTE = np.dtype(np.uint8)
_DATA_FIELD = object.__basicsize__  # NumPy's binary interface: the data pointer follows the object header


def _address_from_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_from_object(array: np.ndarray) -> int:
    return _POINTER.from_address(id(array) + _DATA_FIELD).value or 0


_POINTER = ctypes.c_void_p
_PROBE = np.arange(3)

# `array.ctypes.data` takes 1-2 microseconds, more than the rest of a call's checks together.
address_of = (
    _address_from_object if _address_from_object(_PROBE) == _address_from_interface(_PROBE) else _address_from_interface
)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """An uninitialised C-contiguous array of `size` bytes whose data is 64-byte aligned."""
    raw = np.empty(size + ALIGNMENT, _BYTE)
    return np.ndarray(shape, dtype, raw, -address_of(raw) % ALIGNMENT)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """The same values, C-contiguous and 64-byte aligned; the array itself when it already is."""
    if array.flags.c_contiguous and address_of(array) % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype, array.nbytes)
    copy[...] = array
    return copy


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two contiguous arrays have bytes in common."""
    first, second = address_of(a), address_of(b)
    return a.nbytes > 0 < b.nbytes and first < second + b.nbytes and second < first + a.nbytes


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
