"""Copies of loop statements under substitution, and questions about what statements touch.

Invariant: a copy binds fresh variables, locals and buffers, so the same statements may stand in one function
several times with every object still bound once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import (
    Alloc,
    Call,
    Fail,
    For,
    If,
    Let,
    Prefetch,
    Statement,
    Store,
    View,
    While,
    walk,
)
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Lead, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.traverse import statement_dims, statement_scalars
from ingot.compiler.schedule.scalars import atoms_of, atoms_of_dim, loads

Place = Callable[[tuple[Dim, ...]], Load]  # an index of a buffer -> where that element is


class CannotPlace(Exception):
    """Statements look at a buffer in a way that its place in other memory does not allow."""


class _Copier:
    def __init__(
        self,
        mapping: Mapping[Any, Dim],
        buffers: Mapping[Buffer, Buffer],
        replace_load: Callable[[Load], Scalar | None] | None = None,
        places: Mapping[Buffer, Place] | None = None,
    ) -> None:
        self.replace_load = replace_load
        self.places = places or {}
        self.mapping = dict(mapping)
        self.buffers = dict(buffers)
        self.locals: dict[Local, Local] = {}
        self.rewriter = Rewriter(self.mapping, self._leaf)

    def _leaf(self, node: Scalar) -> Scalar | None:
        match node:
            case Load(buffer, index) if buffer in self.buffers:
                return Load(self.buffers[buffer], index)
            case Load(buffer, index) if buffer in self.places:
                return self.places[buffer](index)
            case Load() if self.replace_load is not None:
                return self.replace_load(node)
            case Lead(buffer, size) if buffer in self.buffers:
                return Lead(self.buffers[buffer], size)
            case Lead(buffer, size) if buffer in self.places:
                return Lead(self.places[buffer]((0,) * len(buffer.shape)).buffer, size)
            case Read(local) if local in self.locals:
                return Read(self.locals[local])
            case _:
                return None

    def _bind(self) -> None:
        """New bindings change what scalars mean, so results remembered so far are forgotten."""
        self.rewriter = Rewriter(self.mapping, self._leaf)

    def block(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(map(self.statement, statements))

    def statement(self, statement: Statement) -> Statement:
        scalar, dim, dims = self.rewriter.scalar, self.rewriter.dim, self.rewriter.dims
        match statement:
            case For(variable, extent, body, kind, width):
                extent = dim(extent)
                return For(self._variable(variable, extent), extent, self.block(body), kind, width)
            case Let(local, value):
                value = scalar(value)
                self.locals[local] = Local(local.name, local.dtype)
                self._bind()
                return Let(self.locals[local], value)
            case Store(buffer, index, value, streaming) if buffer in self.places:
                place = self.places[buffer](dims(index))
                return Store(place.buffer, place.index, scalar(value), streaming)
            case Store(buffer, index, value, streaming):
                return Store(self.buffers.get(buffer, buffer), dims(index), scalar(value), streaming)
            case If(condition, then, otherwise):
                return If(scalar(condition), self.block(then), self.block(otherwise))
            case While(condition, body, limit):
                return While(scalar(condition), self.block(body), None if limit is None else dim(limit))
            case Alloc(buffer, offset):
                return Alloc(self._buffer(buffer), None if offset is None else dim(offset))
            case View(_, base) if base in self.places:
                raise CannotPlace(f"{base.name} is a part of other memory, whose elements are not side by side")
            case View(buffer, base, offset):
                offset, base = dim(offset), self.buffers.get(base, base)
                return View(self._buffer(buffer), base, offset)
            case Call(arguments=arguments):
                return replace(statement, arguments=tuple(self.buffers.get(b, b) for b in arguments))
            case Fail(condition, code, site, details):
                return Fail(scalar(condition), code, site, tuple(map(scalar, details)))
            case Prefetch(buffer, index, locality) if buffer in self.places:
                place = self.places[buffer](dims(index))
                return Prefetch(place.buffer, place.index, locality)
            case Prefetch(buffer, index, locality):
                return Prefetch(self.buffers.get(buffer, buffer), dims(index), locality)

    def _variable(self, variable: Dim, extent: Dim) -> Dim:
        fresh = symbolic.Variable(variable.name, 0, extent - 1)  # type: ignore[union-attr]
        self.mapping[variable] = fresh  # type: ignore[index]
        self._bind()
        return fresh

    def _buffer(self, buffer: Buffer) -> Buffer:
        fresh = self.buffers[buffer] = Buffer(buffer.name, buffer.dtype, self.rewriter.dims(buffer.shape), buffer.space)
        self._bind()
        return fresh


def copy(
    statements: Sequence[Statement],
    mapping: Mapping[Any, Dim] | None = None,
    buffers: Mapping[Buffer, Buffer] | None = None,
    places: Mapping[Buffer, Place] | None = None,
) -> tuple[Statement, ...]:
    """The statements with variables and buffers replaced and everything they bind made anew; elements of the buffers
    in `places` are elsewhere."""
    return _Copier(mapping or {}, buffers or {}, None, places).block(statements)


def with_own_names(
    statements: Sequence[Statement], scratch: Sequence[Buffer], taken: Sequence[Buffer]
) -> tuple[tuple[Statement, ...], tuple[Buffer, ...]]:
    """Statements that are put beside others in one function, and their scratch memory, none of it named as something
    that is taken."""
    names = {buffer.name for buffer in taken}
    own: dict[Buffer, Buffer] = {}
    for buffer in scratch:
        candidates = itertools.chain([buffer.name], (f"{buffer.name}_{n}" for n in itertools.count(1)))
        name = next(n for n in candidates if n not in names)
        names.add(name)
        if name != buffer.name:
            own[buffer] = replace(buffer, name=name)
    return copy(statements, buffers=own) if own else tuple(statements), tuple(own.get(b, b) for b in scratch)


def rewrite_loads(
    statements: Sequence[Statement], replace_load: Callable[[Load], Scalar | None]
) -> tuple[Statement, ...]:
    """A copy of the statements with each load for which there is a replacement replaced by it."""
    return _Copier({}, {}, replace_load).block(statements)


def with_body(loop: For, body: Sequence[Statement]) -> For:
    return replace(loop, body=tuple(body))


def depends_on(statement: Statement, variable: Dim) -> bool:
    """Whether the statement itself (not those inside it) mentions the variable."""
    return any(variable in atoms_of(value) for value in statement_scalars(statement)) or any(
        variable in atoms_of_dim(dim) for dim in statement_dims(statement)
    )


def stores(statements: Sequence[Statement]) -> Iterator[Store]:
    for statement in walk(tuple(statements)):
        if isinstance(statement, Store):
            yield statement


def loads_in(statements: Sequence[Statement]) -> Iterator[Load]:
    for statement in walk(tuple(statements)):
        for value in statement_scalars(statement):
            yield from loads(value)


def bound_buffers(statements: Sequence[Statement]) -> set[Buffer]:
    """Buffers that come into being inside the statements."""
    return {s.buffer for s in walk(tuple(statements)) if isinstance(s, (Alloc, View))}
