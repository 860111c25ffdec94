"""Scalar expressions to registers: one `match` over the nodes.

Inside a vector loop a node becomes a vector when it differs between lanes and stays a scalar when it does not.
`select` is lazy where an arm could touch memory it must not: by a branch when all lanes agree, else by masking.

Invariant: a node is evaluated once per statement, however often it is shared. Iterative, because fused expressions are
deep; only lazy arms and run-time indices recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ingot.compiler.codegen import convert
from ingot.compiler.codegen.elements import number, register_type
from ingot.compiler.codegen.frame import CodegenError, Frame, as_index
from ingot.compiler.codegen.memory import Memory
from ingot.compiler.codegen.registers import Registers
from ingot.compiler.codegen.scalars import Operation, application
from ingot.compiler.codegen.values import Value, constant, truth_of
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Fail
from ingot.compiler.ir.scalar import (
    LEAVES,
    Apply,
    Bitcast,
    BoundedIndex,
    Cast,
    Const,
    IndexValue,
    Lead,
    Load,
    Local,
    Read,
    Scalar,
    children,
)
from ingot.compiler.ir.symbolic import Dim, Opaque
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.ir.types import boolean, f32, f64, i16, i32, i64
from ingot.runtime.abi import Failure

WIDEST_STRIDE = 1 << 20  # of lanes that are compared as 32-bit integers

_FAILURES = {"index": Failure.INDEX_OUT_OF_RANGE, "divisor": Failure.INTEGER_DIVISION_BY_ZERO}
_RELATIONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_DECISIONS: dict[str, Callable[[Dim, Dim], bool | None]] = {
    "lt": symbolic.less,
    "le": symbolic.less_equal,
    "gt": lambda a, b: symbolic.less(b, a),
    "ge": lambda a, b: symbolic.less_equal(b, a),
    "eq": symbolic.equal,
    "ne": lambda a, b: None if (same := symbolic.equal(a, b)) is None else not same,
}


_WORDS = ("pair", "quad")


class _Order(NamedTuple):
    """The nodes of an expression in the order in which they are evaluated, with what evaluates them."""

    root: Scalar  # kept alive: the table of orders is keyed by identity
    steps: list[tuple[int, Callable[..., Value], Scalar]] | None  # None: it depends on conditions


class Expressions:
    """Evaluates scalars at the current position."""

    def __init__(self, frame: Frame, memory: Memory, registers: Registers) -> None:
        self.frame = frame
        self.memory = memory
        self.registers = registers
        self._values: list[dict[int, Value]] = [{}]
        self._guards: dict[int, bool] = {}
        self._functions: dict[tuple[str, str, str], Callable[[Sequence[Value]], Value]] = {}
        self._applications: dict[int, tuple[Callable[[Sequence[Value]], Value], Apply]] = {}  # by identity of the node
        self._orders: dict[int, _Order] = {}

    def evaluate(self, root: Scalar) -> Value:
        """The value of a statement's expression."""
        return self._value(root)

    def begin(self) -> None:
        """A statement starts: memory and variables may have changed."""
        self._values[0].clear()
        self._guards.clear()

    # --- walking

    def _known(self, node: Scalar) -> Value | None:
        key, layers = id(node), self._values
        found = layers[-1].get(key)
        if found is None and len(layers) > 1:
            for layer in reversed(layers):
                found = layer.get(key)
                if found is not None:
                    break
        return found

    def _value(self, root: Scalar) -> Value:
        found = self._known(root)
        if found is not None:
            return found
        if not self.frame.indices.unrolled.values:
            return self._walked(root)  # most likely once
        order = self._orders.get(id(root))
        if order is None:
            order = self._orders[id(root)] = self._order(root)
        if order.steps is None:
            return self._walked(root)
        layer, is_single = self._values[-1], len(self._values) == 1
        for key, evaluate, node in order.steps:
            if (key not in layer) if is_single else (self._known(node) is None):
                found = layer[key] = evaluate(node)
        assert found is not None
        return found

    def _order(self, root: Scalar) -> _Order:
        """The nodes below a root, operands first. Unrolled loops evaluate the same expressions many times."""
        steps: list[tuple[int, Callable[..., Value], Scalar]] = []
        seen: set[int] = set()
        stack = [(root, False)]
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                steps.append((id(node), self._evaluator(node), node))
            elif id(node) not in seen:
                seen.add(id(node))
                if isinstance(node, Apply) and node.function.name == "select":
                    return _Order(root, None)
                stack.append((node, True))
                stack.extend((operand, False) for operand in reversed(children(node)))
        return _Order(root, steps)

    def _walked(self, root: Scalar) -> Value:
        """The same where arms may be left out."""
        layer = self._values[-1]
        is_single = len(self._values) == 1
        stack = [root]
        found: Value | None = None
        while stack:
            node = stack[-1]
            operands = children(node)
            if operands and isinstance(node, Apply) and node.function.name == "select" and self._is_lazy(node):
                operands = operands[:1]
            for operand in operands:
                if (id(operand) not in layer) if is_single else (self._known(operand) is None):
                    if type(operand) not in LEAVES:
                        stack.append(operand)
                        break
                    layer[id(operand)] = self._node(operand)
            else:
                stack.pop()
                found = layer[id(node)] = self._node(node)
        assert found is not None
        return found

    @contextmanager
    def _layer(self) -> Iterator[None]:
        """What is evaluated inside is forgotten afterwards: it holds on some paths or in some lanes only."""
        self._values.append({})
        try:
            yield
        finally:
            self._values.pop()

    def _node(self, node: Scalar) -> Value:
        return self._evaluator(node)(node)

    def _evaluator(self, node: Scalar) -> Callable[..., Value]:
        """What evaluates a node whose operands have values."""
        if isinstance(node, Load):
            buffer = node.buffer
            return self._held if buffer.space == "register" and self.registers.holds(buffer) else self._loaded
        if isinstance(node, Const):
            known = number(node.value, node.dtype)
            return lambda node: known
        return self._apply if isinstance(node, Apply) else self._other

    def _loaded(self, node: Load) -> Value:
        return self.memory.load(node.buffer, node.index)

    def _held(self, node: Load) -> Value:
        return self.registers.read(node.buffer, node.index)

    def _other(self, node: Scalar) -> Value:
        frame = self.frame
        match node:
            case Cast(value, dtype):
                if dtype == i32 and value.dtype in (f32, f64) and convert.is_clipped(value, -(2.0**31), 2.0**31 - 128):
                    return convert.to_clipped_integer(frame.builder, self._value(value), dtype)
                return convert.convert(frame.builder, frame.target, self._value(value), value.dtype, dtype)
            case Bitcast(value, dtype):
                return convert.bitcast(frame.builder, self._value(value), value.dtype, dtype)
            case IndexValue(dim, dtype):
                known = frame.indices.resolve(dim)
                if isinstance(known, int) and dtype.is_integer and 0 <= known < 1 << (dtype.bits - 1):
                    return number(known, dtype)
                return convert.convert(frame.builder, frame.target, frame.indices.lanes(dim), i64, dtype)
            case BoundedIndex():
                return self._bounded(node, self._value(node.value))
            case Lead(buffer, size):
                return self.memory.lead(buffer, size)
            case Read(local):
                found = self._local(local)
                if found is None:
                    raise CodegenError(f"local {local.name} is read outside the block that binds it")
                return found
        raise CodegenError(f"{type(node).__name__} does not belong in a function; schedule it away first")

    def _local(self, local: Local) -> Value | None:
        try:
            return self.frame.locals[local]  # may have to be captured: `get` would not do that
        except KeyError:
            return None

    # --- functions

    def _apply(self, node: Apply) -> Value:
        name = node.function.name
        if name == "select" and self._is_lazy(node):
            return self._select(node)
        if name in _RELATIONS:
            compared = self._compare_indices(name, *node.args)
            if compared is not None:
                return compared
        if name in _WORDS:
            word = self._neighbours(node.args) or self._interleaved(node.args)
            if word is not None:
                return word
        arguments = [self._known(argument) or self._value(argument) for argument in node.args]
        if len({argument.lanes for argument in arguments}) > 1:
            arguments = [argument if argument.lanes else self.frame.splat(argument) for argument in arguments]
        return self._application(node)(arguments)

    def _neighbours(self, parts: Sequence[Scalar]) -> Value | None:
        """Words of neighbours in memory, for lanes side by side: one vector of all of them, widened at once."""
        frame = self.frame
        if frame.lanes is None or frame.active() is not None:
            return None
        loads = [part.value for part in parts if isinstance(part, Cast) and isinstance(part.value, Load)]
        if len(loads) < len(parts) or any(load.buffer is not loads[0].buffer for load in loads):
            return None
        first, word = loads[0], parts[0].dtype
        size = word.bits // len(parts)
        part = first.dtype if first.dtype.bits == size else {16: i16, 32: i32}.get(size)
        if part is None or not first.dtype.is_integer or first.dtype.bits > size or first.buffer.space == "register":
            return None
        found = self.memory.load_neighbours(first.buffer, [load.index for load in loads])
        if found is None:
            return None
        wide = convert.convert(frame.builder, frame.target, found, first.dtype, part)
        return frame.builder.bitcast(wide, register_type(word, frame.lanes.width))

    def _interleaved(self, parts: Sequence[Scalar]) -> Value | None:
        """Words of four 8-bit values in lanes: their bytes in another order."""
        frame = self.frame
        narrow = [part.value for part in parts if isinstance(part, Cast) and part.value.dtype.bits == 8]
        if frame.lanes is None or len(parts) != 4 or len(narrow) < 4 or any(not n.dtype.is_integer for n in narrow):
            return None
        values = [self._value(each) for each in narrow]
        if not any(value.lanes for value in values):
            return None
        a, b, c, d = map(frame.splat, values)
        builder, width = frame.builder, frame.lanes.width
        low, high = (builder.shuffle(*each, range(2 * width)) for each in ((a, b), (c, d)))
        order = [n % 4 * width + n // 4 for n in range(4 * width)]
        return builder.bitcast(builder.shuffle(low, high, order), register_type(parts[0].dtype, width))

    def _application(self, node: Apply) -> Callable[[Sequence[Value]], Value]:
        known = self._applications.get(id(node))
        if known is None:
            name = node.function.name
            first = node.args[1 if name == "select" else 0].dtype
            second = node.args[1].dtype if len(node.args) > 1 else first
            key = (name, first.name, second.name)
            found = self._functions.get(key)
            if found is None:
                operation = Operation(self.frame.builder, self.frame.target, first, second)
                found = self._functions[key] = application(operation, name)
            known = self._applications[id(node)] = found, node
        return known[0]

    def _compare_indices(self, name: str, left: Scalar, right: Scalar) -> Value | None:
        """A comparison of index expressions: decided now where the values of unrolled variables decide it.

        For lanes `lane*c + a < b` is `lane*c < b - a`: one scalar difference and a compare of narrow lanes.
        """
        if not (isinstance(left, IndexValue) and isinstance(right, IndexValue)):
            return None
        indices = self.frame.indices
        first, second = indices.resolve(left.dim), indices.resolve(right.dim)
        if first is not left.dim or second is not right.dim:
            decided = _DECISIONS[name](first, second)
            if decided is not None:
                return number(decided, boolean)
        if self.frame.lanes is None:
            return None
        stride, start = indices.affine(first - second)
        if not isinstance(stride, int) or stride == 0 or abs(stride) > WIDEST_STRIDE:
            return None
        bound = indices.value(-start)
        return self.frame.compare_lanes(_RELATIONS[name], stride, bound)

    # --- lazy select

    def _is_lazy(self, node: Apply) -> bool:
        return any(self._needs_guard(arm) for arm in node.args[1:])

    def _needs_guard(self, root: Scalar) -> bool:
        """Whether evaluating it where it is not asked for could fail or touch memory outside a buffer."""
        guards, stack = self._guards, [root]
        while stack:
            node = stack[-1]
            if id(node) in guards:
                stack.pop()
                continue
            operands = children(node)
            pending = [operand for operand in operands if id(operand) not in guards]
            if pending:
                stack.extend(pending)
            else:
                guards[id(node)] = self._is_risky(node) or any(guards[id(operand)] for operand in operands)
        return guards[id(root)]

    def _is_risky(self, node: Scalar) -> bool:
        match node:
            case Load(buffer, index):
                return not self.memory.is_inside(buffer, index)
            case IndexValue(dim):
                return not self.memory.is_harmless(dim)
            case BoundedIndex():
                return True
        return False

    def _select(self, node: Apply) -> Value:
        condition = self._value(node.args[0])
        decided = truth_of(condition)
        if decided is not None:
            return self._value(node.args[1] if decided else node.args[2])
        if condition.lanes:
            return self._select_lanes(condition, node.args[1], node.args[2])
        return self._select_branch(condition, node.args[1], node.args[2])

    def _select_lanes(self, condition: Value, yes: Scalar, no: Scalar) -> Value:
        frame, builder = self.frame, self.frame.builder
        with self._layer(), frame.where(condition):
            first = self._value(yes)
        with self._layer(), frame.where(builder.not_(condition)):
            second = self._value(no)
        return builder.select(condition, frame.splat(first), frame.splat(second))

    def _select_branch(self, condition: Value, yes: Scalar, no: Scalar) -> Value:
        builder = self.frame.builder
        before, after = builder.scope, builder.new_block("selected")
        arms = []
        for name, arm in (("yes", yes), ("no", no)):
            scope = builder.enter(name, barrier=True)
            head = scope.block
            with self._layer():
                value = self._value(arm)
            arms.append((head, scope, value))
            builder.leave()
        widest = max(value.lanes for _, _, value in arms)
        incoming = []
        for _, scope, value in arms:
            with builder.at(scope):
                incoming.append((builder.splat(value, widest) if widest else value, scope.block))
                builder.branch(after)
        before.block.terminator = f"br i1 {condition.ref}, label %{arms[0][0].name}, label %{arms[1][0].name}"
        before.block = after
        return builder.phi(after, incoming)

    # --- failures

    def fail(self, statement: Fail) -> None:
        """Record a failure where the condition holds: in some lane that runs, the first of them."""
        frame, builder = self.frame, self.frame.builder
        condition = self._value(statement.condition)
        if frame.condition is not None and not condition.lanes:
            condition = frame.splat(condition)
        active = frame.active() if condition.lanes else None
        bad = condition if active is None else builder.and_(condition, active)

        def details() -> tuple[Value, ...]:
            with self._layer():
                values = [self._as_word(detail) for detail in statement.details]
            if not bad.lanes:
                return tuple(values)
            lane = frame.first_lane(bad)
            return tuple(builder.extract_element(v, lane) if v.lanes else v for v in values)

        fine = builder.not_(frame.any_lane(bad) if bad.lanes else bad)
        frame.fail_unless(fine, statement.code, details, statement.site)

    def _as_word(self, detail: Scalar) -> Value:
        return convert.convert(self.frame.builder, self.frame.target, self._value(detail), detail.dtype, i64)

    # --- indices read at run time

    def opaque(self, atom: Opaque) -> Value:
        """The value of a run-time integer in index arithmetic, as i64."""
        payload: Scalar = atom.payload  # type: ignore[assignment]
        value = self._value(payload)
        return as_index(self.frame, value, payload.dtype.kind == "int")

    def varies(self, atom: Opaque) -> bool:
        """Whether a run-time integer differs between lanes, through the locals it reads."""
        payload: Scalar = atom.payload  # type: ignore[assignment]
        variable = None if self.frame.lanes is None else self.frame.lanes.variable
        for node in nodes(payload):
            match node:
                case Read(local):
                    found = self._local(local)
                    if found is not None and found.lanes:
                        return True
                case Load(index=index):
                    if any(variable in symbolic.atoms(position) for position in index):
                        return True
        return False

    def _bounded(self, node: BoundedIndex, value: Value) -> Value:
        frame, builder = self.frame, self.frame.builder
        index = as_index(frame, value, node.value.dtype.kind == "int")
        extent = frame.indices.value(node.extent)
        if index.lanes:
            return self._bounded_lanes(node, index, builder.splat(extent, index.lanes))
        # Under a condition that differs between lanes the check is for the lanes in which it holds, if any.
        active = frame.active() if frame.condition is not None else None
        key = ("bounded", index.ref, extent.ref, node.site, active and active.ref)
        known = builder.recall(key)
        if known is not None:
            return known
        place = builder.place_of((index, extent) if active is None else (index, extent, active))
        with builder.at(place):
            wrapped = self._wrapped(index, extent)
            fine = builder.icmp("<", wrapped, extent, "u")
            if active is not None:
                fine = builder.or_(fine, builder.not_(frame.any_lane(active)))
            frame.fail_unless(fine, _FAILURES[node.purpose], lambda: (index, extent), node.site)
            place.known[key] = builder.held(wrapped)
        return place.known[key]

    def _wrapped(self, index: Value, extent: Value) -> Value:
        builder = self.frame.builder
        negative = builder.icmp("<", index, constant(index.type, 0), "s")
        return builder.select(negative, builder.add(index, extent), index)

    def _bounded_lanes(self, node: BoundedIndex, index: Value, extent: Value) -> Value:
        frame, builder = self.frame, self.frame.builder
        wrapped = self._wrapped(index, extent)
        outside = builder.icmp(">=", wrapped, extent, "u")
        active = frame.active()
        bad = outside if active is None else builder.and_(outside, active)
        key = ("bounded", bad.ref, node.site)
        known = builder.recall(key)
        if known is not None:
            return known

        def details() -> tuple[Value, Value]:
            lane = frame.first_lane(bad)
            return builder.extract_element(index, lane), builder.extract_element(extent, lane)

        place = builder.place_of((index, extent, bad))
        with builder.at(place):
            fine = builder.not_(frame.any_lane(bad))
            frame.fail_unless(fine, _FAILURES[node.purpose], details, node.site)
            place.known[key] = builder.held(wrapped)
        return place.known[key]
