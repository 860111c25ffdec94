"""A content-addressed cache on disk, shared by all processes of a user.

An entry is one file: magic, checksum, contents.  It appears whole under its name or not at all, and one
that is damaged counts as missing and is removed.  When the directory outgrows its bound, the entries that
have not been used for the longest time go first.

Invariant: the cache never makes a compilation fail.  A directory that cannot be read or written is the same
as an empty one.
Non-goal: secrecy and trust.  Cached code is run; a directory that everybody may write to is therefore not
used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

from ingot.runtime import settings
from ingot.runtime.storage import replacing

_MAGIC = b"INGOTOBJ"
_DIGEST_BYTES = 16
_PREFIX_BYTES = len(_MAGIC) + _DIGEST_BYTES
_ABANDONED_SECONDS = 3600  # a temporary file this old belongs to a process that died
_SHRINK_TO = 0.9  # of the bound, so that not every entry written at the bound causes a scan


class Cache:
    """`get` and `put` bytes by key; any text may be a key.

    Without arguments, the cache that the environment asks for (runtime/settings.py).
    """

    def __init__(self, directory: Path | None = None, maximum_bytes: int | None = None) -> None:
        wanted = directory if directory is not None else settings.cache_directory()
        self.directory = wanted if wanted is not None and _prepare(wanted) else None
        self.maximum_bytes = settings.cache_bytes() if maximum_bytes is None else maximum_bytes
        self._written_since_scan = self.maximum_bytes  # scan at the first entry

    def get(self, key: str) -> bytes | None:
        """The contents stored under a key, or None."""
        if self.directory is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        contents = data[_PREFIX_BYTES:]
        if data[:_PREFIX_BYTES] != _prefix(contents):
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the most recently used
        return contents

    def put(self, key: str, contents: bytes) -> None:
        """Store contents under a key; whatever was there is replaced."""
        if self.directory is None or len(contents) + _PREFIX_BYTES > self.maximum_bytes:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(exist_ok=True)
            with replacing(path, durable=False) as file:
                file.write(_prefix(contents))
                file.write(contents)
        except OSError:
            return  # no room, or a directory that has become read only
        self._written_since_scan += len(contents)
        if self._written_since_scan > self.maximum_bytes // 16:
            self._written_since_scan = 0
            self._shrink()

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        name = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
        return self.directory / name[:2] / name[2:]

    def _shrink(self) -> None:
        """Remove the least recently used entries until the directory is within its bound."""
        assert self.directory is not None
        entries = _entries(self.directory)
        total = sum(size for _, size, _ in entries)
        if total <= self.maximum_bytes:
            return
        for _, size, path in sorted(entries):
            _remove(path)
            total -= size
            if total <= self.maximum_bytes * _SHRINK_TO:
                break


def _prepare(directory: Path) -> bool:
    """Make the directory if need be; whether it can be used."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
    except OSError:
        return False
    return not mode & stat.S_IWOTH and os.access(directory, os.R_OK | os.W_OK | os.X_OK)


def _entries(directory: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of every entry; files that others remove meanwhile are skipped."""
    found: list[tuple[float, int, Path]] = []
    now = time.time()
    for folder in _list(directory):
        for item in _list(Path(folder.path)):
            with contextlib.suppress(OSError):
                status = item.stat()
                if not item.name.startswith("."):
                    found.append((status.st_mtime, status.st_size, Path(item.path)))
                elif now - status.st_mtime > _ABANDONED_SECONDS:
                    _remove(Path(item.path))
    return found


def _list(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _prefix(contents: bytes) -> bytes:
    return _MAGIC + hashlib.blake2b(contents, digest_size=_DIGEST_BYTES).digest()
