"""The entry point of a program: the functions that `runtime/abi.py` asks for, around calls of kernels.

The sequence of kernels is generated code like the kernels themselves; nothing interprets it. After a call that can
fail the entry looks at the failure record and returns at the first failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ingot.compiler.codegen.abi import FAILURE_DETAILS, FAILURE_SITE, RECORD_WORDS, Kernel
from ingot.compiler.codegen.analysis import Analysis
from ingot.compiler.codegen.builder import Builder, Module
from ingot.compiler.codegen.emit import FunctionEmitter, Program, symbol_text
from ingot.compiler.codegen.frame import CodegenError, Sites
from ingot.compiler.codegen.index import Indices
from ingot.compiler.codegen.values import I1, I64, POINTER, Value, integer
from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.symbolic import Atom, Dim, Symbol
from ingot.compiler.target import Target
from ingot.runtime.abi import ARENA_BYTES, ENTRY, ENTRY_PROFILE, FAILURE_WORDS, SHAPES

_ENTRY_ARGUMENTS = [
    (POINTER, "buffers"), (POINTER, "dims"), (POINTER, "arena"), (POINTER, "pool"), (POINTER, "failure"),
]  # fmt: skip


@dataclass(frozen=True)
class Interface:
    """What a program looks like from outside, beyond the parameters of its entry function."""

    dims: tuple[Symbol, ...]  # in the order in which their values are passed
    arena_bytes: Dim
    shapes: tuple[Dim, ...]  # the extents that `ingot_shapes` writes, in order


@dataclass(frozen=True)
class Callee:
    """A kernel as the entry calls it: its symbol, where its sites start in the program's table, its place in times."""

    kernel: Kernel
    symbol: str
    first_site: int
    number: int


@dataclass(frozen=True)
class EntryModule:
    text: str
    sites: tuple[str, ...]  # of the whole program


def emit_entry(
    entry: loops.Function,
    interface: Interface,
    callees: Mapping[loops.Function, Callee],
    target: Target,
    sites: Sequence[str] = (),
    profile: bool = True,
) -> EntryModule:
    """The module that exports the entry points. `sites` are those of the callees, in order."""
    program = Program(ENTRY, target, Analysis(entry))
    program.sites = Sites(len(sites))
    for name, is_profile in ((ENTRY, False), (ENTRY_PROFILE, True))[: 1 + profile]:
        _EntryEmitter(program, name, interface, callees, is_profile).run(entry)
    if profile:
        program.module.declare("clock_gettime", "i32", "i32, ptr")
        program.module.functions.append(_CLOCK)
    _emit_arena_bytes(program.module, interface)
    _emit_shapes(program.module, interface)
    return EntryModule(program.module.text(), (*sites, *program.sites.numbers))


class _EntryEmitter(FunctionEmitter):
    """Statements of the entry: allocations are places in the arena, calls are calls."""

    def __init__(
        self,
        program: Program,
        name: str,
        interface: Interface,
        callees: Mapping[loops.Function, Callee],
        profile: bool,
    ) -> None:
        super().__init__(program, name, _ENTRY_ARGUMENTS + ([(POINTER, "times")] if profile else []))
        self.callees = callees
        arguments = self.builder.arguments
        self.buffers, self.dims, self.arena, self.pool, self.failure = arguments[:5]
        self.times = arguments[5] if profile else None
        self.slots = {symbol.name: number for number, symbol in enumerate(interface.dims)}
        self.record: Value | None = None
        self.failed = self.builder.new_block("failed")
        self.frame.failure = self._record

    def run(self, entry: loops.Function) -> None:
        for number, buffer in enumerate(entry.parameters):
            self.frame.pointers[buffer] = _load_word(self.builder, self.buffers, number, POINTER)
        self.emit(entry.body)
        self.builder.block.terminator = "ret i32 0"
        self._finish_failed()
        self.builder.finish(f"define i32 @{self.name}({self.signature}) nounwind")

    def _free(self, atom: Atom) -> Value:
        return _dim_value(self.builder, self.dims, self.slots, atom)

    # --- failure

    def _record(self) -> Value:
        """The failure record of this call, zero at first."""
        if self.record is None:
            self.record = self.reserve(f"[{RECORD_WORDS} x i64]")
            self.builder.blocks[0].lines.append(
                f"  store [{RECORD_WORDS} x i64] zeroinitializer, ptr {self.record.ref}, align 8"
            )
        return self.record

    def _stop(self) -> None:
        self.builder.branch(self.failed)

    def _finish_failed(self) -> None:
        """Hand the record out: details and site; the code is the result."""
        if self.record is None:
            return
        lines, record = self.failed.lines, self.record.ref
        for word in range(FAILURE_WORDS):
            source = FAILURE_DETAILS + word
            lines.append(f"  %from{word} = getelementptr i64, ptr {record}, i64 {source}")
            lines.append(f"  %word{word} = load i64, ptr %from{word}, align 8")
            lines.append(f"  %to{word} = getelementptr i64, ptr {self.failure.ref}, i64 {word}")
            lines.append(f"  store i64 %word{word}, ptr %to{word}, align 8")
        lines.append(f"  %code = load i64, ptr {record}, align 8")
        lines.append("  %result = trunc i64 %code to i32")
        self.failed.terminator = "ret i32 %result"

    # --- memory and calls

    def _parallel(self, loop: loops.For, extent: Dim) -> None:
        """Around calls nothing is gained by threads: the kernels use them."""
        self._serial(loop, extent)

    def _memory_for(self, statement: loops.Alloc) -> Value:
        if statement.offset is None:
            return super()._memory_for(statement)
        return self.indices.address(self.arena, "i8", *self.indices.unrolled.parts(statement.offset))

    def _call(self, call: loops.Call) -> None:
        callee = self.callees[call.function]
        if len(call.arguments) != len(call.function.parameters):
            raise CodegenError(f"{call.function.name} is called with {len(call.arguments)} buffers")
        can_fail = bool(callee.kernel.sites)
        arguments = [self._pointer(buffer) for buffer in call.arguments]
        sizes = dict(call.sizes)
        arguments += [self.indices.value(sizes.get(symbol, symbol)) for symbol in callee.kernel.dims]
        arguments.append(self.pool_value())
        arguments.append(self.frame.failure() if can_fail else Value(POINTER, "ptr", "null"))
        self._timed(callee, lambda: self.builder.call_effect(symbol_text(callee.symbol), "void", *arguments))
        if can_fail:
            self._check(callee)
        self.frame.written(self.analysis.writes((call,)))

    def _pointer(self, buffer) -> Value:
        found = self.frame.pointers.get(buffer)
        if found is None:
            raise CodegenError(f"{buffer!r} is passed to a kernel outside the block that allocates it")
        return found

    def _check(self, callee: Callee) -> None:
        """Stop at a failure; its site counts from the callee's first."""
        builder = self.builder
        record = self.frame.failure()
        code = builder.result(I64, f"load i64, ptr {record.ref}, align 8")
        fine = builder.result(I1, f"icmp eq i64 {code.ref}, 0")
        before, after = builder.scope, builder.new_block("fine")
        failed = builder.enter("failing", barrier=True).block
        place = builder.offset(record, "i64", integer(FAILURE_SITE))
        site = builder.result(I64, f"load i64, ptr {place.ref}, align 8")
        moved = builder.result(I64, f"add i64 {site.ref}, {callee.first_site}")
        builder.effect(f"store i64 {moved.ref}, ptr {place.ref}, align 8")
        self.frame.stop()
        builder.leave()
        builder.cbranch(fine, after, failed)
        before.block = after

    def _timed(self, callee: Callee, call: Callable[[], None]) -> None:
        if self.times is None:
            call()
            return
        builder = self.builder
        start = builder.result(I64, f"call i64 @{_NOW}()")
        call()
        end = builder.result(I64, f"call i64 @{_NOW}()")
        spent = builder.result(I64, f"sub i64 {end.ref}, {start.ref}")
        place = builder.offset(self.times, "i64", integer(callee.number))
        before = builder.result(I64, f"load i64, ptr {place.ref}, align 8")
        total = builder.result(I64, f"add i64 {before.ref}, {spent.ref}")
        builder.effect(f"store i64 {total.ref}, ptr {place.ref}, align 8")


_NOW = "ingot.now"  # nanoseconds of the monotonic clock
_CLOCK = f"""\
define internal i64 @{_NOW}() nounwind {{
  %time = alloca [2 x i64], align 8
  %status = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %place = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %place, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}"""


# --- sizes


class _CheckedIndices(Indices):
    """Index arithmetic that notices when a result does not fit 63 bits."""

    def __init__(self, builder: Builder, free: Callable[[Atom], Value]) -> None:
        super().__init__(builder, free, _no_opaque)
        self.overflow: Value | None = None

    def checked(self, dim: Dim) -> Value:
        """The dim, or -1 when some step of computing it does not fit."""
        if isinstance(dim, int):
            return integer(dim if dim < 1 << 63 else -1)
        self.overflow = None
        value = self.value(dim)
        return value if self.overflow is None else self.builder.select(self.overflow, integer(-1), value)

    def _combine(self, code: str, left: Value, right: Value) -> Value:
        builder = self.builder
        name = f"s{code.split()[0]}.with.overflow"
        pair = ir.LiteralStructType([I64, I1])
        both = builder.intrinsic(name, pair, left, right, overload=(I64,))
        flag = builder.pure(I1, "i1", f"extractvalue {both!r}, 1", (both,))
        self.overflow = flag if self.overflow is None else builder.or_(self.overflow, flag)
        return builder.pure(I64, "i64", f"extractvalue {both!r}, 0", (both,))

    def value(self, dim: Dim) -> Value:
        """Not remembered: each use must notice an overflow."""
        rest, number = self.unrolled.parts(dim)
        if isinstance(rest, int):
            return integer(rest + number)
        return self._atom(rest) if isinstance(rest, Atom) and not number else self._sum(rest, number)


def _emit_arena_bytes(module: Module, interface: Interface) -> None:
    builder = Builder(module, [(POINTER, "dims")])
    value = _sizes(builder, interface).checked(interface.arena_bytes)
    builder.block.terminator = f"ret i64 {value.ref}"
    builder.finish(f"define i64 @{ARENA_BYTES}(ptr %dims) nounwind")


def _emit_shapes(module: Module, interface: Interface) -> None:
    builder = Builder(module, [(POINTER, "dims"), (POINTER, "out")])
    sizes = _sizes(builder, interface)
    for number, extent in enumerate(interface.shapes):
        value = sizes.checked(extent)
        place = builder.offset(builder.arguments[1], "i64", integer(number))
        builder.effect(f"store i64 {value.ref}, ptr {place.ref}, align 8")
    builder.block.terminator = "ret void"
    builder.finish(f"define void @{SHAPES}(ptr %dims, ptr %out) nounwind")


def _sizes(builder: Builder, interface: Interface) -> _CheckedIndices:
    slots = {symbol.name: number for number, symbol in enumerate(interface.dims)}
    dims = builder.arguments[0]
    return _CheckedIndices(builder, lambda atom: _dim_value(builder, dims, slots, atom))


def _dim_value(builder: Builder, dims: Value, slots: Mapping[str, int], atom: Atom) -> Value:
    if not isinstance(atom, Symbol) or atom.name not in slots:
        known = ", ".join(slots) or "none"
        raise CodegenError(
            f"the program uses the dim {symbolic.to_text(atom)}, which is not passed to it (dims: {known})"
        )
    return _load_word(builder, dims, slots[atom.name], I64)


def _load_word(builder: Builder, array: Value, number: int, kind: ir.Type) -> Value:
    with builder.at(builder.root):
        place = builder.offset(array, "i64", integer(number)) if number else array
        return builder.pure(kind, str(kind), f"load {kind}, ptr {place.ref}, align 8", (place,))


def _no_opaque(atom: symbolic.Opaque) -> Value:
    raise CodegenError(f"a size depends on the run-time integer {symbolic.to_text(atom)}")
