"""How many threads a program may use, and the one pool that all programs of the process share.

The pool's code is carried by every program (compiler/codegen/pool.py); the first one that asks for threads
lends its image, which therefore stays mapped until the process ends.  The pool only ever grows: its workers
sleep when there is nothing to do.
A forked child has no workers.  Handles notice (`address` is 0), and the next call makes a pool for the
child.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import weakref
from pathlib import Path

from ingot.runtime import abi, settings
from ingot.runtime.loader import LoadedImage

_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)
_GROW = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)


def thread_limit() -> int:
    """Threads that this process may keep busy: processors it may run on, container quota, INGOT_THREADS."""
    limits = [_available_processors(), cgroup_processors(), settings.thread_request()]
    return max(1, min(limit for limit in limits if limit is not None))


def _available_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_processors(filesystem: Path = Path("/")) -> int | None:
    """The control group's processor quota rounded up, or None when there is none (versions 1 and 2)."""
    quotas: list[float] = []
    for line in _read(filesystem / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _quotas(filesystem / "sys/fs/cgroup", path, _quota_version_2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas(filesystem / "sys/fs/cgroup" / controllers, path, _quota_version_1)
            quotas += _quotas(filesystem / "sys/fs/cgroup/cpu", path, _quota_version_1)
    return max(1, math.ceil(min(quotas))) if quotas else None


def _quotas(mount: Path, group: str, read_quota) -> list[float]:
    """Quotas of a group and of all groups around it; the mount itself is one of them in a container."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [quota for folder in folders if (quota := read_quota(folder)) is not None]


def _quota_version_2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return _ratio(quota, period or "100000")


def _quota_version_1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    quota, period = quota.strip(), period.strip()
    if not quota.isdigit() or not period.isdigit() or int(quota) <= 0 or int(period) <= 0:
        return None  # "max", "-1", or no such file
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


class PoolHandle:
    """The shared pool, limited to so many threads; `address` is what programs are given."""

    __slots__ = ("__weakref__", "address", "threads")

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.address = 0

    def renew(self) -> int:
        """Give the handle workers, at first and after a fork; its address, 0 when there can be none."""
        self.address = _SHARED.handle(self.threads)
        return self.address


class _SharedPool:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.image: LoadedImage | None = None
        self.largest = 0  # handle that reaches all workers
        self.handles: weakref.WeakSet[PoolHandle] = weakref.WeakSet()

    def lend(self, image: LoadedImage) -> None:
        with self.lock:
            if self.image is None:
                image.pin()
                self.image = image

    def handle(self, threads: int) -> int:
        with self.lock:
            assert self.image is not None, "a handle exists only after an image was lent"
            if self.largest == 0:
                create = _CREATE(self.image.address(abi.POOL_CREATE))
                self.largest = create(threads) or 0
                return self.largest
            grow = _GROW(self.image.address(abi.POOL_GROW))
            return grow(self.largest, threads) or 0

    def forget_workers(self) -> None:
        """In a forked child: the parent's workers are not here, and its lock may have been held."""
        self.lock = threading.Lock()
        self.largest = 0
        for handle in list(self.handles):
            handle.address = 0


_SHARED = _SharedPool()
os.register_at_fork(after_in_child=_SHARED.forget_workers)


def shared_pool(image: LoadedImage, threads: int) -> PoolHandle:
    """A handle for `threads` threads on the process's pool.

    No thread is made before the first `renew`; the pool grows when more are asked for than before.
    """
    _SHARED.lend(image)
    handle = PoolHandle(threads)
    _SHARED.handles.add(handle)
    return handle
