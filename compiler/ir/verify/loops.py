"""Rules of functions of statements (see `ir.loops`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import (
    Alloc,
    Call,
    Fail,
    For,
    Function,
    If,
    Let,
    Prefetch,
    Statement,
    Store,
    View,
    While,
)
from ingot.compiler.ir.scalar import Buffer, Scalar
from ingot.compiler.ir.symbolic import Atom, Dim, Opaque, Symbol
from ingot.compiler.ir.traverse import function_dims, functions_of, symbols_in
from ingot.compiler.ir.types import boolean
from ingot.compiler.ir.verify.scalars import ScalarChecker, check_symbols, text_of


def verify_function(function: Function) -> None:
    """VerifyError unless the function and every function it calls obey the rules."""
    every = functions_of(function)
    check_symbols(f"function {function.name}", symbols_in(d for each in every for d in function_dims(each)))
    for each in every:
        _FunctionChecker(f"function {each.name}").function(each)


class _FunctionChecker(ScalarChecker):
    allows_reads = True

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.name = where
        self.loops: list[For] = []
        self.depth: dict[Buffer, int] = {}  # how many loops are around where the buffer was made
        self.conditions = 0  # how many ifs and whiles are around

    # --- scopes ----------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is made inside is gone afterwards."""
        kept = set(self.variables), set(self.buffers), set(self.locals), self.certain
        yield
        self.variables, self.buffers, self.locals, self.certain = kept
        self.seen.clear()

    def make(self, buffer: Buffer) -> None:
        if buffer in self.buffers:
            raise self.error(f"{buffer!r} is made while it exists already")
        for dim in buffer.shape:
            self.dim(dim, f"a dim of {buffer.name}")
            self.require(symbolic.is_nonnegative(dim), f"a dim of {buffer!r} is negative")
        if buffer.space in ("register", "stack") and not all(isinstance(d, int) for d in buffer.shape):
            raise self.error(f"{buffer!r} is in {buffer.space} memory but has no constant size")
        self.buffers.add(buffer)
        self.seen.clear()
        self.depth[buffer] = len(self.loops)

    def at(self, statement: str) -> None:
        """Where we are, for messages."""
        path = "".join(f", for {text_of(loop.variable)}" for loop in self.loops)
        self.where = f"{self.name}{path}, {statement}"

    # --- statements ------------------------------------------------------------------------------

    def function(self, function: Function) -> None:
        names = [b.name for b in function.parameters]
        for buffer in function.parameters:
            if names.count(buffer.name) > 1:
                raise self.error(f"two parameters are called {buffer.name!r}")
            self.make(buffer)
        self.block(function.body)

    def block(self, statements: Sequence[Statement]) -> None:
        with self.scope():
            for statement in statements:
                self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case For():
                self._for(statement)
            case Let(local, value):
                self.at(f"let {local.name}")
                self._value(value)
                if local in self.locals:
                    raise self.error("it is bound already")
                if local.dtype != value.dtype:
                    raise self.error(f"it is {local.dtype}, its value is {value.dtype}")
                self.locals.add(local)
                self.seen.clear()
            case Store(buffer, index, value):
                self._store(buffer, index, value)
            case If(condition, then, otherwise):
                self._if(condition, then, otherwise)
            case While(condition, body, limit):
                self._while(condition, body, limit)
            case Alloc(buffer, offset):
                self._alloc(buffer, offset)
            case View(buffer, base, offset):
                self._view(buffer, base, offset)
            case Call(function, arguments, sizes):
                self._call(function, arguments, dict(sizes))
            case Fail(condition, _, site, details):
                self.at(f"fail at {site!r}")
                self._condition(condition)
                for detail in details:
                    self._value(detail)
            case Prefetch(buffer, index):
                self.at(f"prefetch of {buffer.name}")
                certain, self.certain = self.certain, False  # a hint may point anywhere
                self.access(buffer, index, "looks at")
                self.certain = certain
            case _:
                raise self.error(f"{statement!r} is no statement")

    def _value(self, value: Scalar) -> None:
        self.reductions = False
        self.scalar(value)

    def _condition(self, condition: Scalar) -> None:
        self._value(condition)
        if condition.dtype != boolean:
            raise self.error(f"the condition is {condition.dtype}, not bool")

    def _for(self, loop: For) -> None:
        self.at(f"for {text_of(loop.variable)}")
        self._loop_kind(loop)
        with self.scope():
            self.bind(loop.variable, loop.extent)
            self.loops.append(loop)
            self.block(loop.body)
            self.loops.pop()

    def _loop_kind(self, loop: For) -> None:
        inside = next((outer for outer in self.loops if outer.kind == "vector"), None)
        if inside is not None and loop.kind in ("vector", "parallel"):
            raise self.error(f"a {loop.kind} loop stands in the vector loop {text_of(inside.variable)}")
        match loop.kind:
            case "vector":
                if loop.width < 1:
                    raise self.error(f"a vector loop has {loop.width} lanes")
                if symbolic.less_equal(loop.extent, loop.width) is not True:
                    raise self.error(
                        f"a vector loop of {loop.width} lanes has the extent {text_of(loop.extent)}, "
                        "which is not known to fit"
                    )
            case "unrolled" if not isinstance(loop.extent, int):
                raise self.error(f"an unrolled loop has the extent {text_of(loop.extent)}, no constant")
            case "serial" | "parallel" | "unrolled" if loop.width != 1:
                raise self.error(f"a {loop.kind} loop has {loop.width} lanes")
            case "serial" | "parallel" | "unrolled":
                pass
            case _:
                raise self.error(f"there is no loop of kind {loop.kind!r}")

    def _store(self, buffer: Buffer, index: tuple[Dim, ...], value: Scalar) -> None:
        self.at(f"store to {buffer.name}")
        self._value(value)
        self.access(buffer, index, "writes")
        if buffer.dtype != value.dtype:
            raise self.error(f"a {value.dtype} is stored to {buffer!r}")
        for number, loop in enumerate(self.loops):
            if loop.kind == "parallel" and self.depth[buffer] <= number and self._collides(loop, index):
                raise self.error(
                    f"every iteration of the parallel loop {text_of(loop.variable)} writes the same elements"
                )

    def _collides(self, loop: For, index: tuple[Dim, ...]) -> bool:
        """Whether iterations provably write the same element: nothing on the way depends on the variable."""
        if self.conditions or symbolic.less_equal(loop.extent, 1) is not False:
            return False  # a condition may hold in one iteration only
        inner = self.loops[self.loops.index(loop) + 1 :]
        dims = [*index, *(each.extent for each in inner)]
        found: set[Atom] = set().union(*(symbolic.atoms(d) for d in dims if not isinstance(d, int)))
        return loop.variable not in found and not any(isinstance(a, Opaque) for a in found)

    def _if(self, condition: Scalar, then: Sequence[Statement], otherwise: Sequence[Statement]) -> None:
        self.at("if")
        self._condition(condition)
        with self.scope():
            self.certain = False
            self.conditions += 1
            self.block(then)
            self.block(otherwise)
            self.conditions -= 1

    def _while(self, condition: Scalar, body: Sequence[Statement], limit: Dim | None) -> None:
        self.at("while")
        if any(loop.kind == "vector" for loop in self.loops):
            raise self.error("a while stands in a vector loop")
        self._condition(condition)
        if limit is not None:
            self.dim(limit, "the limit")
        with self.scope():
            self.certain = False
            self.conditions += 1
            self.block(body)
            self.conditions -= 1

    def _alloc(self, buffer: Buffer, offset: Dim | None) -> None:
        self.at(f"alloc {buffer.name}")
        # what lies between kernels is global to them, and the program puts it into the arena
        if (buffer.space in ("arena", "global")) != (offset is not None):
            raise self.error(f"a buffer in {buffer.space} has {'an' if offset is not None else 'no'} offset")
        if offset is not None:
            self.dim(offset, "the offset")
            self.require(symbolic.is_nonnegative(offset), f"the offset {text_of(offset)} is negative")
        self.make(buffer)

    def _view(self, buffer: Buffer, base: Buffer, offset: Dim) -> None:
        self.at(f"view {buffer.name}")
        if base not in self.buffers:
            raise self.error(f"it looks at {base!r}, which does not exist here")
        if base.space == "register":
            raise self.error(f"it looks at {base!r}, which is in registers")
        self.dim(offset, "the offset")
        self.require(symbolic.is_nonnegative(offset), f"the offset {text_of(offset)} is negative")
        self.make(buffer)
        end = offset * base.dtype.itemsize + buffer.type.bytes
        if self.certain and symbolic.less(base.type.bytes, end) is True:
            raise self.error(f"it ends at byte {text_of(end)} of {base!r}")

    def _call(self, function: Function, arguments: Sequence[Buffer], sizes: Mapping[Symbol, Dim]) -> None:
        self.at(f"call {function.name}")
        for symbol, value in sizes.items():
            self.dim(value, f"the size {symbol.name}")
            for bound, room in ((symbol.lower, 1), (symbol.upper, -1)):
                fits = bound is None or symbolic.is_nonnegative(room * (value - bound))
                self.require(fits, f"the size {symbol.name} is {text_of(value)}, which its bounds do not allow")
        if any(loop.kind == "vector" for loop in self.loops):
            raise self.error("a call stands in a vector loop")
        if len(arguments) != len(function.parameters):
            raise self.error(f"{len(arguments)} buffers are given, it takes {len(function.parameters)}")
        for argument, parameter in zip(arguments, function.parameters, strict=True):
            if argument not in self.buffers:
                raise self.error(f"{argument!r} does not exist here")
            if argument.space == "register":
                raise self.error(f"{argument!r} is in registers and cannot be passed")
            if not _same_type(argument, parameter, sizes):
                raise self.error(f"{argument!r} is passed for {parameter!r}")

    # --- rules of memory -------------------------------------------------------------------------

    def access(self, buffer: Buffer, index: tuple[Dim, ...], what: str) -> None:
        super().access(buffer, index, what)
        if buffer.space != "register":
            return
        allowed = {loop.variable for loop in self.loops if loop.kind in ("unrolled", "vector")}
        for position in index:
            for atom in symbolic.atoms(position) if not isinstance(position, int) else ():
                if atom not in allowed:
                    raise self.error(
                        f"{what} {buffer!r} in registers at {text_of(position)}, which only constants and "
                        "variables of unrolled and vector loops may make"
                    )
        around = self.loops[self.depth[buffer] :]
        if any(loop.kind == "parallel" for loop in around):
            raise self.error(f"{what} {buffer!r}, registers of another thread")


def _same_type(argument: Buffer, parameter: Buffer, sizes: Mapping[Symbol, Dim]) -> bool:
    expected = [symbolic.substitute(dim, sizes) for dim in parameter.shape]
    return (
        argument.dtype == parameter.dtype
        and len(argument.shape) == len(expected)
        and all(symbolic.equal(a, b) is not False for a, b in zip(argument.shape, expected, strict=True))
    )
