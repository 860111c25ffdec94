"""What a function does to memory, found before it is emitted: what each statement writes, how register buffers are
indexed, whether a vector loop can run as lanes."""

from __future__ import annotations

from ingot.compiler.codegen.registers import Layout
from ingot.compiler.ir import loops, symbolic, traverse
from ingot.compiler.ir.scalar import Apply, Buffer, Load, children
from ingot.compiler.ir.symbolic import Dim

Access = tuple[Buffer, tuple[Dim, ...]]


class Analysis:
    """Facts about one function's body."""

    def __init__(self, function: loops.Function) -> None:
        statements = list(loops.walk(function.body))
        self.bases = {s.buffer: s.base for s in statements if isinstance(s, loops.View)}
        self._writes: dict[int, frozenset[Buffer]] = {}
        self._in_lanes: dict[int, bool] = {}
        held = [s.buffer for s in statements if isinstance(s, loops.Alloc) and s.buffer.space == "register"]
        self.layouts = _register_layouts(function.body, held)

    def memory(self, buffer: Buffer) -> Buffer:
        while buffer in self.bases:
            buffer = self.bases[buffer]
        return buffer

    # --- writes

    def writes(self, statements: tuple[loops.Statement, ...]) -> frozenset[Buffer]:
        """The memory, and register buffers, that the statements may write."""
        return frozenset().union(*map(self._statement_writes, statements))

    def _statement_writes(self, statement: loops.Statement) -> frozenset[Buffer]:
        found = self._writes.get(id(statement))
        if found is None:
            found = self._writes[id(statement)] = self._compute_writes(statement)
        return found

    def _compute_writes(self, statement: loops.Statement) -> frozenset[Buffer]:
        match statement:
            case loops.Store(buffer=buffer) | loops.Alloc(buffer=buffer):
                return frozenset((self.memory(buffer),))
            case loops.For(body=body) | loops.While(body=body):
                return self.writes(body)
            case loops.If(then=then, otherwise=otherwise):
                return self.writes(then) | self.writes(otherwise)
            case loops.Call(arguments=arguments):
                return frozenset(map(self.memory, arguments))
        return frozenset()

    def runs_in_lanes(self, loop: loops.For) -> bool:
        """Whether a vector loop's body is straight code for all lanes; otherwise it runs one lane after another."""
        found = self._in_lanes.get(id(loop))
        if found is None:
            found = self._in_lanes[id(loop)] = _runs_in_lanes(loop)
        return found


# --- registers


def _register_layouts(body: tuple[loops.Statement, ...], held: list[Buffer]) -> dict[Buffer, Layout]:
    """Which axis of a register buffer is held in vectors, and how wide; a buffer without an entry is memory."""
    widths: dict[Buffer, set[tuple[int, int]]] = {buffer: set() for buffer in held}
    if widths:
        _collect_widths(body, None, 0, widths)
    layouts = {}
    for buffer, found in widths.items():
        if not found:
            layouts[buffer] = Layout(0, 0)
        elif len(found) == 1 and all(width for _, width in found):
            ((axis, width),) = found
            layouts[buffer] = Layout(axis, width)
    return layouts


def _collect_widths(
    body: tuple[loops.Statement, ...], variable: Dim | None, width: int, widths: dict[Buffer, set[tuple[int, int]]]
) -> None:
    for statement in body:
        match statement:
            case loops.For(kind="vector"):
                _collect_widths(statement.body, statement.variable, statement.width, widths)
                continue
            case loops.For(body=inner) | loops.While(body=inner):
                _collect_widths(inner, variable, width, widths)
            case loops.If(then=then, otherwise=otherwise):
                _collect_widths(then, variable, width, widths)
                _collect_widths(otherwise, variable, width, widths)
        if variable is None:
            continue
        for buffer, index in accesses(statement):
            if buffer not in widths:
                continue
            for axis, position in enumerate(index):
                if position is variable:
                    widths[buffer].add((axis, width))
                elif variable in symbolic.atoms(position):
                    widths[buffer].add((axis, width if _is_aligned(position, variable, width) else 0))


def _is_aligned(position: Dim, variable: Dim, width: int) -> bool:
    """Whether the lanes are one whole slot: position == variable + a multiple of the width."""
    return (position - variable) % width == 0


def accesses(statement: loops.Statement) -> list[Access]:
    """What the statement itself loads and stores."""
    found: list[Access] = []
    if isinstance(statement, (loops.Store, loops.Prefetch)):
        found.append((statement.buffer, statement.index))
    stack = [*traverse.statement_scalars(statement)]
    for dim in traverse.statement_dims(statement):
        stack += traverse.payloads(dim)
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Apply):
            stack += node.args
            continue
        if isinstance(node, Load):
            found.append((node.buffer, node.index))
        stack += children(node)
        for dim in traverse.dims_of(node):
            if not isinstance(dim, int):
                stack += traverse.payloads(dim)
    return found


def _runs_in_lanes(loop: loops.For) -> bool:
    for statement in loops.walk(loop.body):
        match statement:
            case loops.While() | loops.Call() | loops.Alloc(buffer=Buffer(space="stack")):
                return False
            case loops.For(extent=extent, kind=kind):
                if kind in ("vector", "parallel") or loop.variable in symbolic.atoms(extent):
                    return False
    return True
