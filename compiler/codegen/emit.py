"""Level 3 to LLVM IR: one `match` over the statements. Every choice was made by the schedule.

`emit_kernel(function, name, target)` is a module with one function (`abi.py` gives its signature) and the bodies of
its parallel loops. Loops run from 0; unrolled loops are repeated with their variable as a constant; a vector loop is
straight code for all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ingot.compiler.codegen.abi import Kernel, dims_of
from ingot.compiler.codegen.analysis import Analysis, accesses
from ingot.compiler.codegen.builder import Builder, Module
from ingot.compiler.codegen.elements import memory_text
from ingot.compiler.codegen.expressions import Expressions
from ingot.compiler.codegen.frame import CodegenError, Frame, Lanes, Sites, at_least_one
from ingot.compiler.codegen.index import LaneVariable
from ingot.compiler.codegen.memory import Memory
from ingot.compiler.codegen.registers import MixedLanes, Registers, Slot
from ingot.compiler.codegen.values import I64, POINTER, Block, Scope, Value, integer, truth_of
from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.scalar import Apply, Buffer, IndexValue, Local, Scalar
from ingot.compiler.ir.symbolic import Atom, Dim
from ingot.compiler.target import Target
from ingot.runtime.abi import PARALLEL_FOR, Failure

STACK_ALIGNMENT = 64
FEW_REGISTERS = 16  # for vectors: tiles have few rows
MANY_NEAR = 8  # elements near an address from which on it is worth a register and an instruction
MOST_BASES = 12  # addresses that move with one loop, beside its counters in 16 registers
USUAL = 4  # times as often a condition holds, at least, as it does not, if code is moved before it
STACK_BYTES = 1 << 20  # of one buffer; threads have 8 MiB and no probes for what lies beyond


def emit_kernel(function: loops.Function, name: str, target: Target) -> Kernel:
    """A function as a module of its own; `name` is its symbol."""
    analysis = Analysis(function)
    try:
        return _emit(function, name, target, analysis, strict=False)
    except MixedLanes:
        return _emit(function, name, target, analysis, strict=True)


def _emit(function: loops.Function, name: str, target: Target, analysis: Analysis, strict: bool) -> Kernel:
    program = Program(name, target, analysis, strict)
    dims = dims_of(function)
    emitter = FunctionEmitter(program, name, _kernel_arguments(len(function.parameters), len(dims)))
    arguments = iter(emitter.builder.arguments)
    for buffer in function.parameters:
        emitter.frame.pointers[buffer] = next(arguments)
    for symbol in dims:
        emitter.frame.indices.values[symbol] = next(arguments)
    emitter.pool, failure = next(arguments), next(arguments)
    emitter.frame.failure = lambda: failure
    emitter.emit(function.body)
    emitter.finish(f"define void @{symbol_text(name)}")
    emitter.release()
    module = program.module
    return Kernel(name, "\n".join(module.functions), module.globals(), dims, tuple(program.sites.numbers))


def _kernel_arguments(buffers: int, dims: int) -> list[tuple[ir.Type, str]]:
    numbered = [*((POINTER, f"b{n}") for n in range(buffers)), *((I64, f"d{n}") for n in range(dims))]
    return [*numbered, (POINTER, "pool"), (POINTER, "failure")]


def symbol_text(name: str) -> str:
    """A symbol as LLVM writes it."""
    return name if name.replace("_", "a").replace(".", "a").isalnum() and name.isascii() else f'"{name}"'


@dataclass
class Program:
    """What the functions of one module share."""

    name: str
    target: Target
    analysis: Analysis
    strict: bool = False  # blend every masked store to a register buffer

    def __post_init__(self) -> None:
        self.module = Module()
        self.sites = Sites()
        self.parallel_bodies = 0


class FunctionEmitter:
    """Emits statements into one function."""

    def __init__(
        self,
        program: Program,
        name: str,
        arguments: Sequence[tuple[ir.Type, str]],
        parent: FunctionEmitter | None = None,
    ) -> None:
        self.program = program
        self.name = name
        self.parent = parent
        self.pool: Value | None = None
        self.builder = Builder(program.module, arguments)
        self.signature = ", ".join(f"{kind} %{argument}" for kind, argument in arguments)
        self.analysis = program.analysis
        self.frame = Frame(self.builder, program.target, program.sites, self._free, self._opaque)
        self.frame.bases = program.analysis.bases
        self.frame.stop = self._stop
        self.indices = self.frame.indices
        self.memory = Memory(self.frame)
        self.registers = Registers(self.frame, program.analysis.layouts, program.strict)
        self.expressions = Expressions(self.frame, self.memory, self.registers)
        self.indices.varying_opaque = self.expressions.varies
        self._emitters: dict[type, Callable[[Any], Callable[[], object] | None]] = {
            loops.For: self._for,
            loops.Let: self._let,
            loops.Store: self._store,
            loops.If: self._if,
            loops.While: self._while,
            loops.Alloc: self._allocate,
            loops.View: self._view,
            loops.Call: self._call,
            loops.Fail: self.expressions.fail,
            loops.Prefetch: self._prefetch,
        }
        self._full: dict[int, tuple[Lanes, LaneVariable]] = {}  # of vector loops in which all lanes run, by identity
        self._lane_variables: dict[int, LaneVariable] = {}  # of any

    def _opaque(self, atom: symbolic.Opaque) -> Value:
        return self.expressions.opaque(atom)

    def _free(self, atom: Atom) -> Value:
        raise CodegenError(f"{symbolic.to_text(atom)} is used in {self.name} outside the loop that binds it")

    def _stop(self) -> None:
        self.builder.block.terminator = "ret void"

    def finish(self, header: str) -> None:
        if self.frame.streams and self.program.target.is_x86:
            self.builder.call_effect("llvm.x86.sse.sfence", "void")  # before another thread is told
        self._stop()
        self.builder.finish(f"{header}({self.signature}) nounwind")

    def release(self) -> None:
        """Nothing more is emitted: the parts, which know each other, are freed now and not by a collection."""
        for part in (self.builder, self.indices, self.memory, self.registers, self.expressions, self.frame):
            vars(part).clear()
        self._emitters.clear()

    # --- statements

    def emit(self, statements: Sequence[loops.Statement]) -> None:
        """The statements of a block; what they bind is visible to its end."""
        bound: list[Callable[[], object]] | None = None
        for statement in statements:
            self.expressions.begin()
            forget = self._emitters[type(statement)](statement)
            if forget is not None:
                bound = [forget] if bound is None else [*bound, forget]
        if bound is not None:
            for forget in reversed(bound):
                forget()

    def _let(self, let: loops.Let) -> Callable[[], object]:
        self.frame.locals[let.local] = self.expressions.evaluate(let.value)
        return lambda: self.frame.locals.pop(let.local)

    def _view(self, view: loops.View) -> Callable[[], object]:
        offset = self.indices.unrolled.parts(view.offset)
        self.frame.pointers[view.buffer] = self.memory.pointer(view.base, *offset)
        return lambda: self.frame.pointers.pop(view.buffer)

    def _prefetch(self, prefetch: loops.Prefetch) -> None:
        self.memory.prefetch(prefetch.buffer, prefetch.index, prefetch.locality)

    def _store(self, store: loops.Store) -> None:
        value = self.expressions.evaluate(store.value)
        if self.registers.holds(store.buffer):
            self.registers.write(store.buffer, store.index, value)
        else:
            self.memory.store(store.buffer, store.index, value, store.streaming)

    def _allocate(self, statement: loops.Alloc) -> Callable[[], object]:
        buffer = statement.buffer
        if self.registers.holds(buffer):
            self.registers.allocate(buffer)
            return lambda: self.registers.release(buffer)
        self.frame.pointers[buffer] = self._memory_for(statement)
        self.frame.written({buffer})
        return lambda: self.frame.pointers.pop(buffer)

    def _memory_for(self, statement: loops.Alloc) -> Value:
        buffer = statement.buffer
        if buffer.space in ("stack", "register"):
            return self._stack(buffer)
        raise CodegenError(f"{buffer!r} is allocated in {self.name}; only the entry point allocates in the arena")

    def _stack(self, buffer: Buffer) -> Value:
        elements = self.indices.resolve(symbolic.product(buffer.shape))
        if not isinstance(elements, int):
            raise CodegenError(f"{buffer!r} is on the stack, so its shape must be constant")
        if elements * buffer.dtype.itemsize > STACK_BYTES:
            raise CodegenError(f"{buffer!r} does not fit on the stack ({STACK_BYTES} bytes); use the arena")
        return self.reserve(f"[{max(elements, 1)} x {memory_text(buffer.dtype)}]", STACK_ALIGNMENT)

    def reserve(self, kind: str, align: int = 8) -> Value:
        """Memory in the function's own frame; in the first block, so that it is reserved once."""
        ref = self.builder.fresh()
        self.builder.blocks[0].lines.append(f"  {ref} = alloca {kind}, align {align}")
        return Value(POINTER, "ptr", ref, self.builder.root)

    def _call(self, call: loops.Call) -> None:
        raise CodegenError(f"{self.name} calls {call.function.name}; only the entry point calls functions")

    # --- loops

    def _for(self, loop: loops.For) -> None:
        full = self._full.get(id(loop))
        if full is not None and self.frame.lanes is None:
            self._run_lanes(loop, *full)
            return
        extent = self.indices.resolve(loop.extent)
        if isinstance(extent, int) and extent <= 0:
            return
        match loop.kind:
            case "unrolled":
                self._unrolled(loop, extent)
            case "vector" if self._in_lanes(loop, extent):
                self._vector(loop, extent)
            case "parallel" if extent != 1 and self.parent is None and self.frame.lanes is None:
                self._parallel(loop, extent)
            case _ if extent == 1:
                self._unrolled(loop, 1)
            case _:
                self._serial(loop, extent)

    def _unrolled(self, loop: loops.For, extent: Dim) -> None:
        if not isinstance(extent, int):
            raise CodegenError(f"an unrolled loop needs a constant extent, not {symbolic.to_text(extent)}")
        unrolled, variable = self.indices.unrolled, loop.variable
        unrolled.enter(variable)
        for number in range(extent):
            unrolled.values[variable] = number
            self.emit(loop.body)
        unrolled.leave(variable)

    def _serial(self, loop: loops.For, extent: Dim) -> None:
        builder, frame = self.builder, self.frame
        count = self.indices.value(extent)
        writes = self.analysis.writes(loop.body)
        frame.written(writes)
        outer, after = builder.scope, builder.new_block("after")
        is_guarded = not at_least_one(extent)
        guard_head = builder.enter("guard", barrier=True).block if is_guarded else None
        prologue = builder.scope
        slots = self.registers.stored(writes)
        before = self.registers.values(slots)

        body = builder.enter("loop", writes=writes)
        head = body.block
        counter = Value(I64, "i64", builder.fresh(), body)
        variable = self._hidden(counter)
        carried = self.registers.carry(slots)
        self.indices.values[loop.variable] = variable
        self.emit(loop.body)
        del self.indices.values[loop.variable]
        if self._has_many_bases(body):
            head.lines[0] = f"  {variable.ref} = add nuw nsw i64 {counter.ref}, 0"
        elif self.program.target.is_x86:
            self._keep_addresses(head)

        following = builder.result(I64, f"add nuw nsw i64 {counter.ref}, 1")
        again = builder.result(ir.IntType(1), f"icmp ult i64 {following.ref}, {count.ref}")
        latch = builder.block
        builder.cbranch(again, head, after)
        final = self.registers.values(slots)
        entered = prologue.block
        builder.phi(head, [(integer(0), entered), (following, latch)], counter.ref)
        self._close(head, carried, final, entered, latch)
        builder.leave()
        builder.branch(head)
        if guard_head is not None:
            builder.leave()
            positive = builder.icmp(">", count, integer(0), "s")
            skipped = outer.block
            builder.cbranch(positive, guard_head, after)
            outer.block = after
            self.registers.merge(slots, after, (before, skipped), (final, latch))
        else:
            outer.block = after
            self.registers.restore(slots, _available(final, outer))
        frame.written(writes)

    def _hidden(self, counter: Value) -> Value:
        """The counter of a loop, without LLVM knowing that it counts. LLVM would look for a better form of every address
        that it is part of, a quarter of its time, where addresses are already a base that moves and constant distances.
        The annotation is gone when instructions are selected."""
        function = self.builder.program.declare("llvm.annotation.i64.p0", "i64", "i64, ptr, ptr, i32")
        return self.builder.result(I64, f"call i64 {function}(i64 {counter.ref}, ptr null, ptr null, i32 0)")

    def _keep_addresses(self, head: Block) -> None:
        """Addresses of a loop that many elements are read near, each for all lanes, are put into registers. LLVM would rather
        add base and counter in each multiply-add that reads its operand; such an instruction takes two places where one
        with a constant distance takes one, and the width of the front end is what limits these loops. What keeps
        the sum is an empty piece of assembly, which LLVM does not look into."""
        for number, line in enumerate(head.lines):
            ref = line[2 : line.find(" ", 2)]
            if self.frame.spread.get(ref, 0) >= MANY_NEAR and "= getelementptr " in line:
                sum_ = self.builder.fresh()
                kept = f'  {ref} = call ptr asm "", "=r,0"(ptr {sum_})'
                head.lines[number] = line.replace(ref, sum_, 1) + "\n" + kept

    def _has_many_bases(self, body: Scope) -> bool:
        """Whether more addresses move with the loop than there are registers for: there LLVM does find a better form. Tiles
        for many vector registers have that many rows; where strides are constant, rows share a base."""
        if self.program.target.vector_registers <= FEW_REGISTERS:
            return False
        return len({value.ref for value in body.known.values() if value.text == "ptr"}) > MOST_BASES

    def _while(self, loop: loops.While) -> None:
        builder, frame = self.builder, self.frame
        if frame.lanes is not None:
            raise CodegenError("a while loop inside a vector loop")
        writes = self.analysis.writes(loop.body)
        frame.written(writes)
        slots = self.registers.stored(writes)
        outer, after = builder.scope, builder.new_block("after")
        limit = None if loop.limit is None else self.indices.value(loop.limit)

        header = builder.enter("while", writes=writes)
        head = header.block
        rounds = Value(I64, "i64", builder.fresh(), header)
        carried = self.registers.carry(slots)
        condition = self.expressions.evaluate(loop.condition)
        tested = builder.block
        held = self.registers.values(slots)
        body = builder.enter("body", barrier=True, writes=writes)
        builder.cbranch_from(tested, condition, body.block, after)
        if limit is not None:
            fine = builder.icmp("<", rounds, limit, "s")
            frame.fail_unless(fine, Failure.LOOP_BOUND_EXCEEDED, lambda: (rounds, limit), "while")
        self.emit(loop.body)
        following = builder.result(I64, f"add nuw nsw i64 {rounds.ref}, 1")
        latch = builder.block
        builder.branch(head)
        builder.leave()
        final = self.registers.values(slots)
        entered = outer.block
        builder.phi(head, [(integer(0), entered), (following, latch)], rounds.ref)
        self._close(head, carried, final, entered, latch)
        builder.leave()
        builder.branch(head)
        outer.block = after
        self.registers.restore(slots, _available(held, outer))
        frame.written(writes)

    def _close(
        self, head: Block, carried: list[tuple[Slot, Value]], final: list[Slot], entered: Block, latch: Block
    ) -> None:
        """The phis of a loop's registers, now that their values at its end are known."""
        for (first, phi), last in zip(carried, final, strict=True):
            last.check_carried(first)
            self.builder.phi(head, [(first.value, entered), (last.value, latch)], phi.ref)

    def _if(self, statement: loops.If) -> None:
        condition = self.expressions.evaluate(statement.condition)
        decided = truth_of(condition)
        if decided is not None:
            self.emit(statement.then if decided else statement.otherwise)
        elif condition.lanes:
            with self.frame.where(condition):
                self.emit(statement.then)
            if statement.otherwise:
                with self.frame.where(self.builder.not_(condition)):
                    self.emit(statement.otherwise)
        else:
            self._branch(condition, statement)

    def _branch(self, condition: Value, statement: loops.If) -> None:
        builder = self.builder
        outer, after = builder.scope, builder.new_block("after")
        writes = self.analysis.writes((statement,))
        slots = self.registers.stored(writes)
        before = self.registers.values(slots)
        heads: list[Block] = []
        ends: list[tuple[list, Block]] = []
        usual = not statement.otherwise and _is_usual(statement.condition)
        for name, statements in (("then", statement.then), ("else", statement.otherwise)):
            scope = builder.enter(name, barrier=not usual, checked=True)
            heads.append(scope.block)
            self.registers.restore(slots, before)
            self.emit(statements)
            ends.append((self.registers.values(slots), scope.block))
            builder.branch(after)
            builder.leave()
            self.frame.written(writes)
        builder.cbranch(condition, heads[0], heads[1])
        outer.block = after
        self.registers.merge(slots, after, ends[0], ends[1])

    # --- vector loops

    def _in_lanes(self, loop: loops.For, extent: Dim) -> bool:
        if loop.width == 1 or extent == 1 or not self.analysis.runs_in_lanes(loop):
            return False  # an index of a single value is the constant 0 already
        if self.frame.lanes is not None:
            raise CodegenError("a vector loop inside a vector loop")
        if isinstance(extent, int) and extent > loop.width:
            raise CodegenError(f"a vector loop of width {loop.width} has extent {extent}")
        return isinstance(extent, int) or self._is_full(loop, extent) or self._can_mask(loop)

    @staticmethod
    def _is_full(loop: loops.For, extent: Dim) -> bool:
        return extent == loop.width if isinstance(extent, int) else symbolic.less_equal(loop.width, extent) is True

    def _can_mask(self, loop: loops.For) -> bool:
        """Without masked memory instructions a part of a vector is a short loop, unless it lives in registers."""
        narrowest = 8
        for statement in loops.walk(loop.body):
            for buffer, index in accesses(statement):
                if any(loop.variable in symbolic.atoms(position) for position in index):
                    if self.registers.holds(buffer):
                        return True
                    narrowest = min(narrowest, buffer.dtype.itemsize)
        return self.program.target.has_mask_for(narrowest)

    def _vector(self, loop: loops.For, extent: Dim) -> None:
        is_full = self._is_full(loop, extent)
        if is_full or at_least_one(extent):
            self._lanes(loop, loop.width if is_full else extent)
            return
        builder = self.builder
        outer, after = builder.scope, builder.new_block("after")
        count = self.indices.value(extent)
        writes = self.analysis.writes(loop.body)
        slots = self.registers.stored(writes)
        before = self.registers.values(slots)
        head = builder.enter("lanes", barrier=True).block
        self._lanes(loop, extent)
        end = builder.block
        builder.branch(after)
        builder.leave()
        positive = builder.icmp(">", count, integer(0), "s")
        skipped = outer.block
        builder.cbranch(positive, head, after)
        outer.block = after
        self.registers.merge(slots, after, (before, skipped), (self.registers.values(slots), end))
        self.frame.written(writes)

    def _lanes(self, loop: loops.For, extent: Dim) -> None:
        variable = self._lane_variables.get(id(loop))
        if variable is None:
            variable = self._lane_variables[id(loop)] = LaneVariable(loop.variable, loop.width)
        if extent != loop.width:
            self._run_lanes(loop, Lanes(loop.variable, loop.width, extent, self.indices.value(extent)), variable)
            return
        lanes = Lanes(loop.variable, loop.width, extent)
        if isinstance(loop.extent, int):  # the same wherever the loop stands
            self._full[id(loop)] = lanes, variable
        self._run_lanes(loop, lanes, variable)

    def _run_lanes(self, loop: loops.For, lanes: Lanes, variable: LaneVariable) -> None:
        self.frame.lanes, self.indices.lane = lanes, variable
        self.emit(loop.body)
        self.frame.lanes = self.indices.lane = None

    # --- parallel loops

    def _parallel(self, loop: loops.For, extent: Dim) -> None:
        number = self.program.parallel_bodies
        self.program.parallel_bodies += 1
        name = f"{self.name}.parallel{number}"
        count = self.indices.value(extent)
        writes = self.analysis.writes(loop.body)
        self.frame.written(writes)
        body = ParallelBody(self, name, loop)
        captures = body.run()
        context = self._pack(captures)
        arguments = f"ptr {self.pool_value().ref}, ptr @{symbol_text(name)}, ptr {context}, i64 {count.ref}"
        function = self.program.module.declare(PARALLEL_FOR, "void", "ptr, ptr, ptr, i64")
        self.builder.effect(f"call void {function}({arguments})")
        self.frame.written(writes)

    def _pack(self, captures: list[Value]) -> str:
        if not captures:
            return "null"
        context = self.reserve(f"[{len(captures)} x i64]")
        for slot, value in enumerate(captures):
            place = self.builder.offset(context, "i64", integer(slot)) if slot else context
            self.builder.effect(f"store {value!r}, ptr {place.ref}, align 8")
        return context.ref

    def pool_value(self) -> Value:
        assert self.pool is not None
        return self.pool


class ParallelBody(FunctionEmitter):
    """The body of a parallel loop as a function of its own; asks its parent for what it does not define."""

    parent: FunctionEmitter

    def __init__(self, parent: FunctionEmitter, name: str, loop: loops.For) -> None:
        super().__init__(parent.program, name, [(POINTER, "context"), (I64, "index")], parent)
        self.loop = loop
        self.captures: list[Value] = []
        self.captured: dict[str, Value] = {}
        self.context, index = self.builder.arguments
        self.indices.unrolled.inherit(parent.indices.unrolled)
        self.indices.values[loop.variable] = index
        self.frame.pointers = _Captured(parent.frame.pointers, self._capture)  # type: ignore[assignment]
        self.frame.locals = _Captured(parent.frame.locals, self._capture)  # type: ignore[assignment]
        self.frame.failure = lambda: self._capture(parent.frame.failure())

    def run(self) -> list[Value]:
        self.emit(self.loop.body)
        self.finish(f"define internal void @{symbol_text(self.name)}")
        self.release()
        return self.captures

    def _free(self, atom: Atom) -> Value:
        value = self.parent.indices.values.get(atom) or self.parent._free(atom)
        return self._capture(value)

    def _capture(self, value: Value) -> Value:
        """A value of the parent, read from the context once."""
        if value.scope is None:
            return value
        found = self.captured.get(value.ref)
        if found is None:
            builder = self.builder
            with builder.at(builder.root):
                slot = integer(len(self.captures))
                place = builder.offset(self.context, "i64", slot) if self.captures else self.context
                body = f"load {value.text}, ptr {place.ref}, align 8"
                found = builder.pure(value.type, value.text, body, (place,))
            self.captures.append(value)
            self.captured[value.ref] = found
        return found


class _Captured(dict):
    """Names of the function around, captured when they are first asked for; own names shadow them."""

    def __init__(self, outer: dict, capture: Callable[[Value], Value]) -> None:
        super().__init__()
        self.outer = outer
        self.capture = capture

    def __missing__(self, key: Buffer | Local) -> Value:
        found = self[key] = self.capture(self.outer[key])
        return found


def _available(slots: list[Slot], scope: Scope) -> list[Slot]:
    """Values of a loop's last round, as seen after it: the loop's blocks dominate what follows."""
    return [slot._replace(value=_in_scope(slot.value, scope)) for slot in slots]


def _in_scope(value: Value, scope: Scope) -> Value:
    if value.scope is None or value.scope.depth <= scope.depth:
        return value
    return Value(value.type, value.text, value.ref, scope)


def _is_usual(condition: Scalar) -> bool:
    """Whether an index is compared with a bound that most of its values are on the right side of."""
    match condition:
        case Apply(function, (IndexValue(left), IndexValue(right))) if function.name in ("lt", "le", "ge"):
            low, high = symbolic.bounds(left - right if function.name == "ge" else right - left)
            return low is not None and high is not None and -USUAL * low <= high
    return False
