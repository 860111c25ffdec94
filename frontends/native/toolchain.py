"""The C compiler: which one, and how it is asked to compile and link.

The system's `cc` comes first, then the `ziglang` wheel, which is also a cross compiler. Only `ingot.build` uses it.
"""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingot.compiler.errors import Code, IngotValueError

_NAMES = ("cc", "gcc", "clang")
_COMPILE = ("-std=c99", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-Wall", "-Wextra")
_PRECISE = ("-ffp-contract=off", "-fno-sanitize=undefined")  # zig adds the sanitizer unless told not to
_MESSAGE_LINES = 12


@dataclass(frozen=True)
class Toolchain:
    """A C compiler for one architecture."""

    command: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command or "zig" in Path(self.command[0]).name

    def compile(self, folder: Path, source: str, include: Path | None = None) -> Path:
        """A C or assembly file to an object in the folder."""
        target = Path(source).with_suffix(".o").name
        options = [*_COMPILE, *_PRECISE] if source.endswith(".c") else []
        options += [f"-I{include}"] if include else []
        self._run(folder, [*options, "-c", source, "-o", target])
        return folder / target

    def link(self, folder: Path, objects: Sequence[str], target: str, options: Sequence[str]) -> Path:
        libraries = ("-Wl,--as-needed", "-lm", "-lpthread")
        self._run(folder, ["-o", target, *options, "-s", "-Wl,--gc-sections", *objects, *libraries])
        return folder / target

    def _run(self, folder: Path, arguments: Sequence[str]) -> None:
        command = [*self.command, *self.flags, *arguments]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if result.returncode:
            said = "\n".join(result.stderr.strip().splitlines()[:_MESSAGE_LINES])
            raise IngotValueError(
                Code.NOT_BUILDABLE, f"`{shlex.join(command)}` failed:\n{said}", hint="try another one: compiler=..."
            )


def find_toolchain(architecture: str, compiler: str | Sequence[str] | None = None, static: bool = False) -> Toolchain:
    """The compiler that was asked for, or the first that is installed and can make code for the architecture."""
    command = _given(compiler) if compiler is not None else _installed(architecture)
    if command is None:
        wanted = "" if architecture == platform.machine() else f" for {architecture}"
        tried = ", ".join((*_NAMES, "ziglang"))
        raise IngotValueError(
            Code.NO_C_COMPILER, f"linking a stand-alone program needs a C compiler{wanted}; tried {tried}"
        )
    found = Toolchain(command)
    if found.is_zig:  # without a target it would use every instruction of this machine
        return Toolchain(command, ("-target", f"{architecture}-linux-{'musl' if static else 'gnu'}"))
    return found


def _given(compiler: str | Sequence[str]) -> tuple[str, ...]:
    command = tuple(shlex.split(compiler)) if isinstance(compiler, str) else tuple(compiler)
    if not command or shutil.which(command[0]) is None:
        raise IngotValueError(Code.NO_C_COMPILER, f"there is no program {command[0] if command else compiler!r}")
    return command


def _installed(architecture: str) -> tuple[str, ...] | None:
    names = _NAMES if architecture == platform.machine() else (f"{architecture}-linux-gnu-gcc",)
    for name in names:
        if shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    return None
