"""Level 3, loops: how a kernel is computed.

    function  := function name(buffer: type, ...) { statement* }
    statement := for variable in extent kind { statement* }    variable runs from 0 to extent - 1
               | let local = scalar                            visible until the end of the block
               | buffer[index, ...] = scalar                   store
               | if scalar { statement* } else { statement* }
               | while scalar { statement* } limit dim         exceeding the limit is a run-time failure
               | alloc buffer: type in space (at offset)       visible until the end of the block; uninitialised;
                                                               an arena buffer stands at a byte offset
               | view buffer: type = base at offset            other name and shape for memory of base, from an
                                                               element offset on
               | call function(buffer, ...)                    run another function on buffers
               | fail scalar code site                         when true, record a run-time failure
               | prefetch buffer[index, ...]                   a hint; changes nothing

    kind      := serial | parallel | unrolled | vector(width)

A vector loop has an extent of at most its width; when the extent is not exactly the width, the lanes
beyond it are masked off. Iterations of a parallel or vector loop are independent, except that a vector
loop may accumulate into a register buffer indexed by its own variable. A parallel loop's result does not
depend on how iterations are divided among threads, because iterations share nothing.

Variables, locals and buffers are objects, never strings; printing makes names unique.
Non-goals: no choice is made at this level; recipes in `schedule` choose, `codegen` only translates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ingot.compiler.ir.scalar import Buffer, Local, Scalar
from ingot.compiler.ir.symbolic import Dim, Symbol

LoopKind = Literal["serial", "parallel", "unrolled", "vector"]


@dataclass(frozen=True)
class For:
    variable: Dim
    extent: Dim
    body: tuple[Statement, ...]
    kind: LoopKind = "serial"
    width: int = 1  # lanes of a vector loop


@dataclass(frozen=True)
class Let:
    local: Local
    value: Scalar


@dataclass(frozen=True)
class Store:
    buffer: Buffer
    index: tuple[Dim, ...]
    value: Scalar
    streaming: bool = False  # written once and not read soon: bypass the caches


@dataclass(frozen=True)
class If:
    condition: Scalar
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class While:
    condition: Scalar
    body: tuple[Statement, ...]
    limit: Dim | None = None


@dataclass(frozen=True)
class Alloc:
    buffer: Buffer
    offset: Dim | None = None  # bytes from the start of the arena; None elsewhere


@dataclass(frozen=True)
class View:
    buffer: Buffer
    base: Buffer
    offset: Dim = 0  # elements of base


@dataclass(frozen=True)
class Call:
    """`sizes` are the values that symbols of the function have in it; the others are what they are for the caller."""

    function: Function
    arguments: tuple[Buffer, ...]
    sizes: tuple[tuple[Symbol, Dim], ...] = ()


@dataclass(frozen=True)
class Fail:
    """Record failure `code` at `site` when the condition holds (see the runtime's failure table)."""

    condition: Scalar
    code: int
    site: str
    details: tuple[Scalar, ...] = ()


FIRST_CACHE, SECOND_CACHE = 3, 2  # where a hint wants its line


@dataclass(frozen=True)
class Prefetch:
    """A hint that the line of an element will be read; it may lie outside."""

    buffer: Buffer
    index: tuple[Dim, ...]
    locality: int = FIRST_CACHE


Statement = For | Let | Store | If | While | Alloc | View | Call | Fail | Prefetch


@dataclass(frozen=True, eq=False)
class Function:
    """Parameters in call order; free symbolic dims of the body are passed beside them."""

    name: str
    parameters: tuple[Buffer, ...]
    body: tuple[Statement, ...]


def walk(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement, outer before inner, in order."""
    stack = [*reversed(statements)]
    while stack:
        statement = stack.pop()
        yield statement
        if isinstance(statement, (For, While)):
            stack.extend(reversed(statement.body))
        elif isinstance(statement, If):
            stack.extend(reversed(statement.otherwise))
            stack.extend(reversed(statement.then))
