"""What goes wrong while interpreting."""

from __future__ import annotations


class InterpreterError(Exception):
    """The program or its inputs cannot be run; the message says what, where and what to do."""


class RunTimeFailure(InterpreterError):
    """A `Fail` statement whose condition held, or a `While` that ran past its limit."""

    def __init__(self, code: int, site: str, details: tuple[object, ...] = ()) -> None:
        more = f" ({', '.join(map(str, details))})" if details else ""
        super().__init__(f"run-time failure {code} at {site}{more}")
        self.code, self.site, self.details = code, site, details


class IndexOutOfRange(InterpreterError, IndexError):
    """An access outside its buffer, or an index read from data outside its extent."""
