"""Every error the runtime raises on purpose.

Each message says what is wrong, where, and what to do about it.  Anything else that escapes the runtime is
a bug.
"""

from __future__ import annotations


class IngotRuntimeError(Exception):
    """Base class of all errors raised by `ingot.runtime`."""


class ProgramFormatError(IngotRuntimeError):
    """A program file (or an image inside it) is damaged or is no Ingot program."""


class ProgramVersionError(IngotRuntimeError):
    """A program file was written by an incompatible version of the compiler."""


class TargetMismatchError(IngotRuntimeError):
    """A program was compiled for another processor or operating system than this one."""


class ImageLoadError(IngotRuntimeError):
    """The operating system refused to map machine code or to resolve a library function."""


class ArgumentError(IngotRuntimeError, ValueError):
    """A call's arguments do not fit the program's inputs, states or outputs."""


class OutOfMemoryError(IngotRuntimeError, MemoryError):
    """There is no room for an output or for the program's scratch memory."""


class ExecutionError(IngotRuntimeError):
    """The program ran and stopped at a check: an index out of range, a division by zero, ...

    `code` is the failure code of `ingot.runtime.abi`, `details` its three integers.
    """

    def __init__(self, message: str, code: int, details: tuple[int, ...]) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
