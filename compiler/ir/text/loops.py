"""Text of level 3: functions of statements, as in the docstring of `ir.loops`.

The text of a function holds the functions it calls, callees first; the last one is the function itself. All
names of one function are different, so that a name can be searched for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingot.compiler.ir.loops import (
    Alloc,
    Call,
    Fail,
    For,
    Function,
    If,
    Let,
    LoopKind,
    Prefetch,
    Statement,
    Store,
    View,
    While,
)
from ingot.compiler.ir.scalar import Buffer, Local
from ingot.compiler.ir.symbolic import Dim, Symbol, Variable
from ingot.compiler.ir.text.names import Names, quoted
from ingot.compiler.ir.text.read import Reader
from ingot.compiler.ir.text.write import Writer, string
from ingot.compiler.ir.traverse import function_dims, functions_of, symbols_in

_KINDS: tuple[LoopKind, ...] = ("serial", "parallel", "unrolled", "vector")


def print_function(function: Function, *, neutral: bool = False) -> str:
    """The function as text. With `neutral` names, functions that differ in names alone have the same text."""
    functions = functions_of(function)
    symbols = symbols_in(dim for each in functions for dim in function_dims(each))
    names = Names((), neutral)
    for each in functions:
        names.declare(each)
    lines = Writer(symbols).declarations(symbols)
    for each in functions:
        lines.extend(_FunctionWriter(symbols, names, neutral).function(each))
    return "\n".join(lines) + "\n"


class _FunctionWriter(Writer):
    def __init__(self, symbols: Sequence[Symbol], functions: Names, neutral: bool) -> None:
        super().__init__(symbols, neutral)
        self.functions = functions

    def function(self, function: Function) -> Iterator[str]:
        parameters = ", ".join([self.buffer(b) for b in function.parameters])
        yield f"function {quoted(self.functions.of(function))}({parameters}) {{"
        yield from self.block(function.body)
        yield "}"

    def block(self, statements: Sequence[Statement]) -> Iterator[str]:
        for statement in statements:
            for line in self.statement(statement):
                yield f"  {line}"

    def statement(self, statement: Statement) -> Iterator[str]:
        match statement:
            case For():
                yield self.loop(statement)
                yield from self.block(statement.body)
                yield "}"
            case If(condition, then, otherwise):
                yield f"if {self.scalar(condition)} {{"
                yield from self.block(then)
                if otherwise:
                    yield "} else {"
                    yield from self.block(otherwise)
                yield "}"
            case While(condition, body, limit):
                yield f"while {self.scalar(condition)} {{"
                yield from self.block(body)
                yield "}" if limit is None else f"}} limit {self.dim(limit)}"
            case _:
                yield self.simple(statement)

    def loop(self, loop: For) -> str:
        extent = self.dim(loop.extent)
        if isinstance(loop.variable, Variable):
            within, name = self.within(loop.variable, loop.extent), self.declare(loop.variable)
        else:
            within, name = "", self.dim(loop.variable)
        width = f"({loop.width})" if loop.kind == "vector" or loop.width != 1 else ""
        kind = "" if loop.kind == "serial" and not width else f" {loop.kind}{width}"
        return f"for {name} in {extent}{within}{kind} {{"

    def simple(self, statement: Statement) -> str:
        match statement:
            case Let(local, value):
                text = self.scalar(value)
                dtype = "" if local.dtype == value.dtype else f": {local.dtype.name}"
                return f"let {self.declare(local)}{dtype} = {text}"
            case Store(buffer, index, value, streaming):
                stream = "stream " if streaming else ""
                return f"{stream}{self.name(buffer)}[{self.dims(index)}] = {self.scalar(value, buffer.dtype)}"
            case Alloc(buffer, offset):
                at = "" if offset is None else f" at {self.dim(offset)}"
                type_ = self.type(buffer.type)
                return f"alloc {self.declare(buffer)}: {type_} in {buffer.space}{at}"
            case View(buffer, base, offset):
                source = self.name(base)
                return f"view {self.buffer(buffer)} = {source} at {self.dim(offset)}"
            case Call(function, arguments, sizes):
                names = ", ".join(map(self.name, arguments))
                given = ", ".join(f"{self.dim(symbol)} = {self.dim(value)}" for symbol, value in sizes)
                return f"call {quoted(self.functions.of(function))}({names})" + (f" with {given}" if given else "")
            case Fail(condition, code, site, details):
                more = f"({', '.join(map(self.scalar, details))})" if details else ""
                return f"fail {self.scalar(condition)} code {code} {string(site)}{more}"
            case Prefetch(buffer, index, locality):
                return f"prefetch {self.name(buffer)}[{self.dims(index)}] locality {locality}"
            case _:
                raise TypeError(f"{statement!r} is no statement")


def parse_function(text: str) -> Function:
    """The function that `print_function` wrote: the last one of the text."""
    return tuple(parse_functions(text).values())[-1]


def parse_functions(text: str) -> dict[str, Function]:
    """Every function of the text by name, in order."""
    return _FunctionReader(text).functions()


class _FunctionReader(Reader):
    def functions(self) -> dict[str, Function]:
        self.known: dict[str, Function] = {}
        self.declarations()
        while self.token.kind != "end" or not self.known:
            with self.inner_scope():
                self._function()
        return self.known

    def _function(self) -> None:
        self.expect("function")
        token = self.token
        name = self.name("the name of the function")
        if name in self.known:
            raise self.error(f"two functions are called {name!r}", token)
        self.expect("(")
        parameters: list[Buffer] = []
        while not self.at(")"):
            parameters.append(self.buffer())
            if not self.accept(","):
                break
        self.expect(")", " or ','")
        self.known[name] = Function(name, tuple(parameters), self._block())

    def _block(self) -> tuple[Statement, ...]:
        self.expect("{")
        statements: list[Statement] = []
        with self.inner_scope():
            while not self.accept("}"):
                statements.append(self._statement())
        return tuple(statements)

    def _statement(self) -> Statement:
        readers = {
            "for": self._for, "let": self._let, "if": self._if, "while": self._while, "alloc": self._alloc,
            "view": self._view, "call": self._call_statement, "fail": self._fail, "prefetch": self._prefetch,
        }  # fmt: skip
        word = self.accept(*readers)
        return readers[word]() if word else self._store()

    def _for(self) -> For:
        token = self.token
        with self.inner_scope():
            if token.kind == "integer":
                variable: Dim = self.integer("a variable")
                self.expect("in")
                extent = self.dim()
            else:
                name = self.name("a loop variable")
                self.expect("in")
                variable, extent = self.variable(name, token)
            kind = self._kind()
            width = 1
            if self.accept("("):
                width = self.integer("the number of lanes")
                self.expect(")")
            return For(variable, extent, self._block(), kind, width)

    def _kind(self) -> LoopKind:
        for kind in _KINDS:
            if self.accept(kind):
                return kind
        return "serial"

    def _let(self) -> Let:
        token = self.token
        name = self.name("a name")
        dtype = self.dtype() if self.accept(":") else None
        self.expect("=")
        value = self.scalar(dtype)
        return Let(self.declare(name, Local(name, dtype or value.dtype), token), value)

    def _if(self) -> If:
        condition = self.scalar()
        then = self._block()
        return If(condition, then, self._block() if self.accept("else") else ())

    def _while(self) -> While:
        condition = self.scalar()
        body = self._block()
        return While(condition, body, self.dim() if self.accept("limit") else None)

    def _alloc(self) -> Alloc:
        buffer = self.buffer()
        return Alloc(buffer, self.dim() if self.accept("at") else None)

    def _view(self) -> View:
        buffer = self.buffer()
        self.expect("=")
        base = self._known_buffer()
        self.expect("at")
        return View(buffer, base, self.dim())

    def _known_buffer(self) -> Buffer:
        token = self.token
        name = self.name("the name of a buffer")
        found = self.scope.get(name)
        if not isinstance(found, Buffer):
            raise self.error(f"there is no buffer called {name!r} here", token)
        return found

    def _call_statement(self) -> Call:
        token = self.token
        name = self.name("the name of a function")
        if name not in self.known:
            raise self.error(f"no function called {name!r} stands before this one", token)
        self.expect("(")
        arguments: list[Buffer] = []
        while not self.at(")"):
            arguments.append(self._known_buffer())
            if not self.accept(","):
                break
        self.expect(")", " or ','")
        sizes: list[tuple[Symbol, Dim]] = []
        while self.accept("," if sizes else "with"):
            size = self.dim()
            if not isinstance(size, Symbol):
                raise self.error("a size has the name of a symbol")
            self.expect("=")
            sizes.append((size, self.dim()))
        return Call(self.known[name], tuple(arguments), tuple(sizes))

    def _fail(self) -> Fail:
        condition = self.scalar()
        self.expect("code")
        code = self.integer("the failure's code")
        site = self.string("the failure's site")
        details = ()
        if self.accept("("):
            details = self.scalars()
            self.expect(")")
        return Fail(condition, code, site, details)

    def _prefetch(self) -> Prefetch:
        buffer = self._known_buffer()
        index = self._bracketed_dims("[", "]")
        self.expect("locality")
        return Prefetch(buffer, index, self.integer("the locality"))

    def _store(self) -> Store:
        streaming = self.accept("stream") is not None
        if self.token.kind not in ("name", "quoted"):
            raise self.expected("a statement or '}'")
        buffer = self._known_buffer()
        index = self._bracketed_dims("[", "]")
        self.expect("=")
        return Store(buffer, index, self.scalar(buffer.dtype), streaming)
