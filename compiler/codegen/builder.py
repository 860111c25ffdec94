"""LLVM IR as text, written directly: values are numbered and loop-invariant code is hoisted as it is emitted.

What: `Builder` has the methods of llvmlite's IRBuilder that this compiler uses, so code written against either
(`codegen.math`) runs on both, at a fraction of the cost of building llvmlite's objects and printing them.

Blocks form a tree of `Scope`s that follows dominance: a function, the body of a loop, an arm of a branch. A pure
instruction is placed in the outermost scope in which its operands exist, and is emitted once per scope: common
subexpressions and loop invariants need no pass afterwards. A scope that runs only sometimes (an arm, a loop that may
not run at all) is a `barrier`: nothing is moved out of it, so that a rare path costs a common one no work and no
registers. If it runs nearly always it is `checked`: only what reads memory stays inside.

Invariant: an operand of an instruction is defined in the scope of that instruction or in one around it.
Non-goal: general SSA construction; phis are placed by whoever emits the control flow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ingot.compiler.codegen.values import (
    I1,
    POINTER,
    RELATIONS,
    Block,
    Scope,
    Value,
    constant,
    element_of,
    like,
    mangled,
    truth_of,
    vector_type,
)

# Vectors that are loaded before a loop for all its steps. A written-out sum reads the same row of weights in every step of
# the loop around it; there are no registers for these, and what waits in memory anyway is best loaded where it is used,
# once: LLVM would read a spilled value at each of its uses.
MOST_MOVED = 4
_ANY = 1 << 30


class Module:
    """The functions of one object file, and the declarations they need."""

    def __init__(self, name: str = "") -> None:
        self.declarations: dict[str, str] = {}
        self.functions: list[str] = []
        self.metadata: dict[str, str] = {}
        # What code written for llvmlite declares; only `globals` is ever read back.
        self.foreign = ir.Module(name)

    def declare(self, name: str, result: str, arguments: str, attributes: str = "") -> str:
        """Declare a function once; its operand text."""
        reference = f"@{name}"
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} {reference}({arguments}) {attributes}".rstrip()
        return reference

    def globals(self) -> dict[str, str]:
        """Everything outside the functions, by name: the same name means the same text in every module."""
        foreign = {name: str(f).rstrip() for name, f in self.foreign.globals.items()}
        metadata = {name: f"{name} = {node}" for name, node in self.metadata.items()}
        return {**foreign, **self.declarations, **metadata}

    def text(self) -> str:
        return "\n".join([*self.globals().values(), *self.functions, ""])


class Builder:
    """Appends instructions to the current scope of one function."""

    def __init__(self, module: Module, arguments: Iterable[tuple[ir.Type, str]] = ()) -> None:
        self.program = module
        self.blocks: list[Block] = []
        self.count = 0
        self.scope = Scope(None, self.new_block("entry"))
        self.root = self.scope
        self.scopes = [self.root]
        self._references: dict[tuple[str, ...], str] = {}  # of declared intrinsics, by name and types
        self.arguments = [Value(kind, str(kind), f"%{name}", self.root) for kind, name in arguments]

    # --- structure

    @property
    def module(self) -> ir.Module:
        """Where code written for llvmlite declares what it calls."""
        return self.program.foreign

    @property
    def block(self) -> Block:
        return self.scope.block

    def new_block(self, name: str) -> Block:
        self.count += 1
        block = Block(f"{name}{self.count}")
        self.blocks.append(block)
        return block

    def enter(
        self, name: str, barrier: bool = False, writes: frozenset = frozenset(), checked: bool = False
    ) -> Scope:
        """A scope inside the current one that starts a block; the caller adds the branch to it and `leave`s it."""
        self.scope = Scope(self.scope, self.new_block(name), barrier, writes, checked)
        self.scopes.append(self.scope)
        return self.scope

    def leave(self, block: Block | None = None) -> None:
        """Back to the scope around, which goes on in `block`."""
        parent = self.scope.parent
        assert parent is not self.scope, "left the function's own scope"
        self.scope = parent
        if block is not None:
            parent.block = block

    @contextmanager
    def at(self, scope: Scope) -> Iterator[None]:
        """Emit in a scope around the current one."""
        current, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = current

    def branch(self, target: Block) -> None:
        self.block.terminator = f"br label %{target.name}"

    def cbranch(self, condition: Value, yes: Block, no: Block) -> None:
        self.block.terminator = f"br i1 {condition.ref}, label %{yes.name}, label %{no.name}"

    def cbranch_from(self, block: Block, condition: Value, yes: Block, no: Block, *, likely: bool = False) -> None:
        """The same at the end of a block that is not the current one."""
        block.terminator = f"br i1 {condition.ref}, label %{yes.name}, label %{no.name}"
        if likely:
            self.program.metadata["!1"] = '!{!"branch_weights", i32 1000, i32 1}'
            block.terminator += ", !prof !1"

    def phi(self, block: Block, incoming: Sequence[tuple[Value, Block]], name: str | None = None) -> Value:
        """A phi of `block`, which belongs to the current scope."""
        first = incoming[0][0]
        ref = name or self.fresh()
        sources = ", ".join(f"[ {value.ref}, %{source.name} ]" for value, source in incoming)
        block.phis.append(f"  {ref} = phi {first.text} {sources}")
        return Value(first.type, first.text, ref, self.scope)

    def finish(self, header: str) -> None:
        """Add the function to the module; `header` is everything before its body."""
        lines = [f"{header} {{"]
        for block in self.blocks:
            block.write(lines)
        lines.append("}")
        self.program.functions.append("\n".join(lines))
        for scope in self.scopes:  # values know their scope: without this only a collection would free them
            scope.numbers.clear()
            scope.known.clear()

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    # --- placing instructions

    def _deepest(self, operands: Iterable[Value]) -> Scope:
        """The outermost scope that has all operands."""
        deepest = self.root
        for operand in operands:
            scope = operand.scope
            if scope is not None and scope.depth > deepest.depth:
                deepest = scope
        return deepest

    def place_of(self, operands: Iterable[Value]) -> Scope:
        """Where an instruction of these operands goes: the outermost scope that has them and always runs."""
        deepest, place = self._deepest(operands), self.scope
        while place.depth > deepest.depth and not place.barrier:
            place = place.parent
        return place

    def pure(self, kind: ir.Type, text: str, body: str, operands: Iterable[Value]) -> Value:
        """An instruction without effects, `body` being what stands right of the equals sign."""
        # written out, because every instruction comes here: the place as in `place_of`, then `_numbered` and `_append`
        deepest, depth = self.root, 0
        for operand in operands:
            scope = operand.scope
            if scope is not None and scope.depth > depth:
                deepest, depth = scope, scope.depth
        place = self.scope
        while place.depth > depth and not place.barrier:
            place = place.parent
        inner = place
        while True:
            found = inner.numbers.get(body)
            if found is not None:
                return found
            if inner is deepest:
                break
            inner = inner.parent
        self.count += 1
        ref = f"%v{self.count}"
        place.block.lines.append(f"  {ref} = {body}")
        value = place.numbers[body] = Value(kind, text, ref, place)
        return value

    def _numbered(self, inner: Scope, outer: Scope, key: str) -> Value | None:
        """The same instruction, if it stands in one of these scopes already."""
        while True:
            found = inner.numbers.get(key)
            if found is not None or inner is outer:
                return found
            inner = inner.parent

    def read(
        self, kind: ir.Type, text: str, body: str, operands: Sequence[Value], memory: Hashable, version: int
    ) -> Value:
        """An instruction that only reads memory; moves out of scopes that do not write it and always run, a few vectors out
        of each.

        Two equal reads of one `version` of the memory are the same value.
        """
        deepest, place = self._deepest(operands), self.scope
        key = f"{body} {version}"
        known = self._numbered(place, deepest, key)
        if known is not None:
            return known
        most = MOST_MOVED if type(kind) is ir.VectorType else _ANY
        while place.depth > deepest.depth and not place.checked and memory not in place.writes and place.moved < most:
            place.moved += most is not _ANY
            place = place.parent
        return self._append(place, key, kind, text, body)

    def pinned(self, kind: ir.Type, body: str) -> Value:
        """A pure instruction that stays in the current scope: moving it would cost more than repeating it."""
        found = self.scope.numbers.get(body)
        return found or self._append(self.scope, body, kind, str(kind), body)

    def _append(self, place: Scope, key: str, kind: ir.Type, text: str, body: str) -> Value:
        self.count += 1
        ref = f"%v{self.count}"
        place.block.lines.append(f"  {ref} = {body}")
        value = place.numbers[key] = Value(kind, text, ref, place)
        return value

    def held(self, value: Value) -> Value:
        """The same value for code that must stay in the current scope: loads from a place that was checked here, which
        would otherwise move to where the place was computed, before the check."""
        return Value(value.type, value.text, value.ref, self.scope)

    def recall(self, key: object) -> Value | None:
        """What `remember` was told in this scope or one around it."""
        scope = self.scope
        while True:
            found = scope.known.get(key)
            if found is not None or scope is self.root:
                return found
            scope = scope.parent

    def remember(self, key: object, value: Value) -> Value:
        """Keep a value where it is defined: it is found as long as it is available."""
        (value.scope or self.root).known[key] = value
        return value

    def effect(self, line: str) -> None:
        """An instruction for its effect."""
        self.scope.block.lines.append(f"  {line}")

    def result(self, kind: ir.Type, line: str) -> Value:
        """An instruction that must stay where it is, for its effect and its value."""
        ref = self.fresh()
        self.scope.block.lines.append(f"  {ref} = {line}")
        return Value(kind, str(kind), ref, self.scope)

    @staticmethod
    def operand(value: Value | ir.Value) -> Value:
        if type(value) is Value:
            return value
        return Value(value.type, str(value.type), value.get_reference())  # type: ignore[attr-defined]

    def _binary(self, code: str, left: Value | ir.Value, right: Value | ir.Value) -> Value:
        a = left if type(left) is Value else self.operand(left)
        b = right if type(right) is Value else self.operand(right)
        return self.pure(a.type, a.text, f"{code} {a.text} {a.ref}, {b.ref}", (a, b))

    def _convert(self, code: str, value: Value | ir.Value, kind: ir.Type) -> Value:
        x = self.operand(value)
        text = str(kind)
        if x.text == text:
            return x
        return self.pure(kind, text, f"{code} {x.text} {x.ref} to {text}", (x,))

    # --- arithmetic, in the spelling of llvmlite's IRBuilder

    def add(self, a, b):
        return self._binary("add", a, b)

    def sub(self, a, b):
        return self._binary("sub", a, b)

    def mul(self, a, b):
        return self._binary("mul", a, b)

    def sdiv(self, a, b):
        return self._binary("sdiv", a, b)

    def udiv(self, a, b):
        return self._binary("udiv", a, b)

    def srem(self, a, b):
        return self._binary("srem", a, b)

    def urem(self, a, b):
        return self._binary("urem", a, b)

    def shl(self, a, b):
        return self._binary("shl", a, b)

    def lshr(self, a, b):
        return self._binary("lshr", a, b)

    def ashr(self, a, b):
        return self._binary("ashr", a, b)

    def and_(self, a, b):
        return self._binary("and", a, b)

    def or_(self, a, b):
        return self._binary("or", a, b)

    def xor(self, a, b):
        return self._binary("xor", a, b)

    def fadd(self, a, b):
        return self._binary("fadd", a, b)

    def fsub(self, a, b):
        return self._binary("fsub", a, b)

    def fmul(self, a, b):
        return self._binary("fmul", a, b)

    def fdiv(self, a, b):
        return self._binary("fdiv", a, b)

    def frem(self, a, b):
        return self._binary("frem", a, b)

    def fneg(self, a):
        x = self.operand(a)
        return self.pure(x.type, x.text, f"fneg {x.text} {x.ref}", (x,))

    def neg(self, a):
        x = self.operand(a)
        return self._binary("sub", constant(x.type, 0), x)

    def not_(self, a):
        x = self.operand(a)
        ones = 1 if element_of(x.type) == I1 else -1
        return self._binary("xor", x, constant(x.type, ones))

    def trunc(self, a, kind):
        return self._convert("trunc", a, kind)

    def zext(self, a, kind):
        return self._convert("zext", a, kind)

    def sext(self, a, kind):
        return self._convert("sext", a, kind)

    def fptrunc(self, a, kind):
        return self._convert("fptrunc", a, kind)

    def fpext(self, a, kind):
        return self._convert("fpext", a, kind)

    def sitofp(self, a, kind):
        return self._convert("sitofp", a, kind)

    def uitofp(self, a, kind):
        return self._convert("uitofp", a, kind)

    def fptosi(self, a, kind):
        return self._convert("fptosi", a, kind)

    def fptoui(self, a, kind):
        return self._convert("fptoui", a, kind)

    def bitcast(self, a, kind):
        return self._convert("bitcast", a, kind)

    def ptrtoint(self, a, kind):
        return self._convert("ptrtoint", a, kind)

    def icmp_signed(self, relation, a, b):
        return self.icmp(relation, a, b, "s")

    def icmp_unsigned(self, relation, a, b):
        return self.icmp(relation, a, b, "u")

    def icmp(self, relation: str, a, b, sign: str) -> Value:
        x, y = self.operand(a), self.operand(b)
        code = RELATIONS[relation]
        code = code if code in ("eq", "ne") else sign + code
        kind = like(x.type, I1)
        return self.pure(kind, str(kind), f"icmp {code} {x.text} {x.ref}, {y.ref}", (x, y))

    def fcmp_ordered(self, relation, a, b):
        return self._fcmp("o", relation, a, b)

    def fcmp_unordered(self, relation, a, b):
        return self._fcmp("u", relation, a, b)

    def _fcmp(self, order: str, relation: str, a, b) -> Value:
        x, y = self.operand(a), self.operand(b)
        code = {"ord": "ord", "uno": "uno"}.get(relation) or order + RELATIONS[relation]
        kind = like(x.type, I1)
        return self.pure(kind, str(kind), f"fcmp {code} {x.text} {x.ref}, {y.ref}", (x, y))

    def select(self, condition, a, b):
        c, x, y = self.operand(condition), self.operand(a), self.operand(b)
        decided = truth_of(c)
        if decided is not None:
            return x if decided else y
        body = f"select {c.text} {c.ref}, {x.text} {x.ref}, {y.text} {y.ref}"
        return self.pure(x.type, x.text, body, (c, x, y))

    def call(self, function, arguments):
        """A call of a declared function; intrinsics and the C library's mathematics have no effects."""
        operands = [self.operand(argument) for argument in arguments]
        kind = function.function_type.return_type
        text = str(kind)
        body = f"call {text} {function.get_reference()}({', '.join(map(repr, operands))})"
        return self.pure(kind, text, body, operands)

    def intrinsic(
        self, name: str, kind: ir.Type, *arguments: Value, overload: Sequence[ir.Type] | None = None
    ) -> Value:
        """The pure intrinsic `llvm.name`, overloaded by `overload` (by default the result type)."""
        first = arguments[0]
        text = first.text if kind is first.type else str(kind)
        key = (name, text) if overload is None else (name, text, *map(str, overload))
        reference = self._references.get(key)
        if reference is None:
            suffix = "".join(f".{mangled(each)}" for each in ((kind,) if overload is None else overload))
            types = ", ".join([each.text for each in arguments])
            reference = self._references[key] = self.program.declare(f"llvm.{name}{suffix}", text, types)
        operands = ", ".join([f"{each.text} {each.ref}" for each in arguments])
        return self.pure(kind, text, f"call {text} {reference}({operands})", arguments)

    def call_effect(self, name: str, result: str, *arguments: Value) -> None:
        """Call a void function or intrinsic for its effect."""
        reference = self.program.declare(name, result, ", ".join(a.text for a in arguments))
        self.effect(f"call {result} {reference}({', '.join(map(repr, arguments))})")

    # --- vectors

    def splat(self, value: Value, lanes: int) -> Value:
        """The scalar in every lane."""
        if value.lanes:
            return value
        kind, text = vector_type(value.type, lanes), f"<{lanes} x {value.text}>"
        if value.scope is None:
            return Value(kind, text, "poison" if value.ref == "poison" else f"splat ({value.text} {value.ref})")
        single = self.pure(kind, text, f"insertelement {text} poison, {value.text} {value.ref}, i64 0", (value,))
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.pure(kind, text, f"shufflevector {text} {single.ref}, {text} poison, {zeros}", (single,))

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """The chosen lanes of `a` and, counted on, of `b`; -1: whatever."""
        kind = vector_type(element_of(a.type), len(lanes))
        mask = ", ".join(f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in lanes)
        mask = f"<{len(lanes)} x i32> <{mask}>"
        other = b.ref if b is not None else "poison"
        operands = (a,) if b is None else (a, b)
        return self.pure(kind, str(kind), f"shufflevector {a.text} {a.ref}, {a.text} {other}, {mask}", operands)

    def shuffle_vector(self, first, second, mask):
        a, b, lanes = self.operand(first), self.operand(second), self.operand(mask)
        kind = vector_type(element_of(a.type), lanes.lanes)
        return self.pure(kind, str(kind), f"shufflevector {a!r}, {b!r}, {lanes!r}", (a, b))

    def freeze(self, a):
        """Something definite where nothing was defined: lanes that nobody reads must not decide where to go."""
        x = self.operand(a)
        return self.pure(x.type, x.text, f"freeze {x!r}", (x,))

    def extract_element(self, vector, lane):
        v, index = self.operand(vector), self.operand(lane)
        kind = element_of(v.type)
        return self.pure(kind, str(kind), f"extractelement {v!r}, {index!r}", (v, index))

    def insert_element(self, vector, value, lane):
        v, x, index = self.operand(vector), self.operand(value), self.operand(lane)
        return self.pure(v.type, v.text, f"insertelement {v!r}, {x!r}, {index!r}", (v, x, index))

    # --- index arithmetic

    def index_binary(self, code: str, a: Value, b: Value) -> Value:
        return self._binary(code, a, b)

    def index_convert(self, code: str, a: Value, kind: ir.Type) -> Value:
        return self._convert(code, a, kind)

    def moved(self, pointer: Value, element: str, number: int) -> Value:
        """The address `number` elements after `pointer`."""
        return self.pure(POINTER, "ptr", f"getelementptr {element}, ptr {pointer.ref}, i64 {number}", (pointer,))

    def offset(self, pointer: Value, element: str, index: Value) -> Value:
        """The address of element `index` after `pointer`."""
        body = f"getelementptr {element}, ptr {pointer.ref}, {index.text} {index.ref}"
        if not index.lanes:
            return self.pure(POINTER, "ptr", body, (pointer, index))
        kind = vector_type(POINTER, index.lanes)
        return self.pure(kind, str(kind), body, (pointer, index))
