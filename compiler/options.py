"""Choices a user can make about a compilation. The only place of the compiler that reads the environment.

Options are immutable; `key` is part of the cache key, so every field that changes the generated code is
in it, and those that only change what is shown or where things are kept are not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ingot.compiler.errors import Code, IngotTypeError, IngotValueError

SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0}
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _shown(default: object) -> object:
    """A field that does not change the generated code."""
    return field(default=default, metadata={"code": False})


@dataclass(frozen=True)
class Options:
    threads: int | None = None  # None: as many as the machine allows
    memory_budget: int | None = None  # bytes of arena the program may use
    target: str = "native"
    fuse: bool = True  # False: one kernel per op, to compare with
    winograd: bool = True  # allow convolution algorithms that round differently
    fold_elements: int = 1 << 20  # constant folding stops at results larger than this
    passes: tuple[str, ...] | None = None  # names of the passes to run; None: all
    profile: bool = True  # include the entry point that times each kernel
    tune: float | None = None  # seconds to look for faster schedules by measuring them
    verify: bool = _shown(False)  # type: ignore[assignment]  # verify the IR after every pass
    dump: str | None = _shown(None)  # type: ignore[assignment]  # a folder: write every stage there
    cache: bool = _shown(True)  # type: ignore[assignment]
    workers: int | None = _shown(None)  # type: ignore[assignment]  # compiling threads

    @property
    def key(self) -> str:
        """Everything that changes the code, as text."""
        parts = (f for f in fields(self) if f.metadata.get("code", True) and f.name != "threads")
        return ";".join(f"{f.name}={getattr(self, f.name)!r}" for f in parts)

    def with_(self, **changes: object) -> Options:
        unknown = sorted(set(changes) - {f.name for f in fields(self)})
        if unknown:
            known = ", ".join(f.name for f in fields(self))
            raise IngotTypeError(Code.BAD_OPTION, f"unknown option {', '.join(unknown)}; the options are {known}")
        if isinstance(changes.get("memory_budget"), str):
            changes["memory_budget"] = parse_bytes(str(changes["memory_budget"]))
        if isinstance(changes.get("tune"), str):
            changes["tune"] = parse_seconds(str(changes["tune"]))
        return replace(self, **changes)  # type: ignore[arg-type]

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Options:
        """INGOT_DUMP_IR, INGOT_VERIFY, INGOT_NO_CACHE, INGOT_TARGET, INGOT_NO_FUSION set the defaults."""
        env = os.environ if environment is None else environment
        dump = env.get("INGOT_DUMP_IR")
        return Options(
            target=env.get("INGOT_TARGET", "native"),
            dump=str(Path(dump)) if dump else None,
            verify=env.get("INGOT_VERIFY", "") not in ("", "0"),
            cache=env.get("INGOT_NO_CACHE", "") in ("", "0"),
            fuse=env.get("INGOT_NO_FUSION", "") in ("", "0"),
        )


def parse_bytes(text: str) -> int:
    """ "64MB", "1.5 GiB" or "4096"."""
    stripped = text.strip().upper()
    digits = stripped.rstrip("BKMGI ")
    unit = stripped[len(digits) :].strip()
    try:
        return int(float(digits) * UNITS[unit])
    except (KeyError, ValueError):
        raise IngotValueError(
            Code.BAD_OPTION, f"{text!r} is not a size", hint="write for instance 64MB or 1.5GiB"
        ) from None


def parse_seconds(text: str) -> float:
    """ "10s", "500 ms", "2min" or "10"."""
    stripped = text.strip().lower()
    digits = stripped.rstrip("msin ")
    try:
        seconds = float(digits) * SECONDS[stripped[len(digits) :].strip()]
    except (KeyError, ValueError):
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise IngotValueError(Code.BAD_OPTION, f"{text!r} is not a time", hint="write for instance 10s, 500ms or 2min")
    return seconds
