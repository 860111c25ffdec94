"""Maps an `Image` into this process.

The pages are written while readable and writable, then given their final protection; code pages are never
writable and executable at once.  A mapping lives as long as its `LoadedImage` unless it is pinned, which
code that threads may run at any time (the pool's workers) must be.
On aarch64 the kernel cleans the data cache and invalidates the instruction cache when a fresh page becomes
executable, so no explicit flush is needed.
Non-goal: Windows and macOS.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import sys
import weakref

from ingot.runtime import settings
from ingot.runtime.errors import ImageLoadError, TargetMismatchError
from ingot.runtime.image import Image, Protection, check

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value

_MACHINE_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_PROTECTIONS = {
    Protection.EXECUTE: mmap.PROT_READ | mmap.PROT_EXEC,
    Protection.READ: mmap.PROT_READ,
    Protection.WRITE: mmap.PROT_READ | mmap.PROT_WRITE,
}


def host_machine() -> str:
    """This processor's architecture, in the spelling images use."""
    name = platform.machine().lower()
    return _MACHINE_NAMES.get(name, name)


class LoadedImage:
    """An image in memory, ready to be called."""

    def __init__(self, image: Image) -> None:
        check(image)
        if image.machine != host_machine() or not sys.platform.startswith("linux"):
            raise TargetMismatchError(
                f"this program holds code for linux on {image.machine}, this is {sys.platform} on "
                f"{host_machine()}; compile it again with this machine as target"
            )
        self.image = image
        size = max(image.memory_bytes, mmap.PAGESIZE)
        self.base = _map(size)
        self._unmap = weakref.finalize(self, _LIBC.munmap, self.base, size)
        # At exit, threads may still be running this code; the process takes its memory along anyway.
        self._unmap.atexit = False
        self._fill()
        self._protect()
        if settings.perf_map_wanted():
            self._announce_to_perf()

    def address(self, name: str) -> int:
        """Run-time address of an exported name."""
        try:
            return self.base + self.image.exports[name]
        except KeyError:
            raise ImageLoadError(f"the program exports no {name!r}; compile it again") from None

    def __contains__(self, name: str) -> bool:
        return name in self.image.exports

    def pin(self) -> None:
        """Keep the mapping until the process ends."""
        self._unmap.detach()

    def _fill(self) -> None:
        for segment in self.image.segments:
            ctypes.memmove(self.base + segment.address, segment.contents, len(segment.contents))
        for fixup in self.image.fixups:
            ctypes.c_uint64.from_address(self.base + fixup.address).value = self.base + fixup.target
        for slot in self.image.imports:
            ctypes.c_uint64.from_address(self.base + slot.address).value = _resolve(slot.name) + slot.addend

    def _protect(self) -> None:
        for segment in self.image.segments:
            if segment.memory_bytes == 0 or segment.protection == Protection.WRITE:
                continue
            protection = _PROTECTIONS[segment.protection]
            if _LIBC.mprotect(self.base + segment.address, segment.memory_bytes, protection) != 0:
                raise ImageLoadError(
                    "the operating system refused to make code executable "
                    f"({os.strerror(ctypes.get_errno())}); a security policy may forbid generated code"
                )

    def _announce_to_perf(self) -> None:
        lines = (f"{self.base + f.address:x} {f.size:x} {f.name}\n" for f in self.image.functions)
        with open(f"/tmp/perf-{os.getpid()}.map", "a", encoding="utf-8") as file:
            file.writelines(lines)


def _map(size: int) -> int:
    address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address == _MAP_FAILED:
        raise ImageLoadError(f"cannot map {size} bytes for code: {os.strerror(ctypes.get_errno())}")
    return address


def _resolve(name: str) -> int:
    for library in (_LIBC, _mathematics()):
        if library is not None and hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise ImageLoadError(f"this system's C library has no function {name!r}, which the program calls")


@functools.cache
def _mathematics() -> ctypes.CDLL | None:
    """The C library's mathematical half, where it is a file of its own."""
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return None
