"""The runtime's only reader of environment variables.

Each call reads the environment afresh, so that a test or a notebook may change a variable between two uses.

    INGOT_THREADS      upper bound on threads per program (a positive integer)
    INGOT_CACHE_DIR    directory of the compilation cache; empty = no cache
    INGOT_CACHE_BYTES  size bound of that directory (default 1 GiB)
    INGOT_PERF_MAP     1 = append the functions of loaded programs to the map file that Linux `perf` reads
"""

from __future__ import annotations

import os
from pathlib import Path

from ingot.runtime.errors import IngotRuntimeError

DEFAULT_CACHE_BYTES = 1 << 30


def thread_request() -> int | None:
    """The value of INGOT_THREADS, or None when unset."""
    return _positive_integer("INGOT_THREADS")


def cache_directory() -> Path | None:
    """Where compiled objects are kept, or None when INGOT_CACHE_DIR is set to nothing or there is no home."""
    chosen = os.environ.get("INGOT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen.strip() else None
    user_cache = os.environ.get("XDG_CACHE_HOME")
    if user_cache:
        return Path(user_cache) / "ingot"
    try:
        return Path.home() / ".cache" / "ingot"
    except RuntimeError:  # no HOME and no entry in the password database
        return None


def cache_bytes() -> int:
    """Upper bound on the bytes the cache directory may hold."""
    return _positive_integer("INGOT_CACHE_BYTES") or DEFAULT_CACHE_BYTES


def perf_map_wanted() -> bool:
    """Whether loaded code is announced to Linux `perf`."""
    return os.environ.get("INGOT_PERF_MAP", "0") not in ("", "0")


def _positive_integer(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise IngotRuntimeError(f"{variable} must be a positive integer, got {text!r}; unset it or correct it")
    return int(text)
