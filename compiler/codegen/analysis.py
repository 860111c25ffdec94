"""What a function does to memory, found before it is emitted: what each statement writes, how register buffers are
indexed, whether a vector loop can run as lanes."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.compiler.codegen.registers import Layout
from ingot.compiler.ir import loops, symbolic, traverse
from ingot.compiler.ir.scalar import Buffer, Load
from ingot.compiler.ir.symbolic import Dim

Access = tuple[Buffer, tuple[Dim, ...]]


class Analysis:
    """Facts about one function's body."""

    def __init__(self, function: loops.Function) -> None:
        self.bases = {s.buffer: s.base for s in loops.walk(function.body) if isinstance(s, loops.View)}
        self._writes: dict[int, frozenset[Buffer]] = {}
        self._in_lanes: dict[int, bool] = {}
        self.layouts = self._register_layouts(function.body)

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

    def _register_layouts(self, body: tuple[loops.Statement, ...]) -> dict[Buffer, Layout]:
        """Which axis of a register buffer is held in vectors, and how wide; a buffer without an entry is memory."""
        widths: dict[Buffer, set[tuple[int, int]]] = {
            s.buffer: set() for s in loops.walk(body) if isinstance(s, loops.Alloc) and s.buffer.space == "register"
        }
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
            if buffer in widths:
                widths[buffer].update(
                    (axis, width if _is_aligned(position, variable, width) else 0)
                    for axis, position in enumerate(index)
                    if variable in symbolic.atoms(position)
                )


def _is_aligned(position: Dim, variable: Dim, width: int) -> bool:
    """Whether the lanes are one whole slot: position == variable + a multiple of the width."""
    return (position - variable) % width == 0


def accesses(statement: loops.Statement) -> Iterable[Access]:
    """What the statement itself loads and stores."""
    if isinstance(statement, (loops.Store, loops.Prefetch)):
        yield statement.buffer, statement.index
    dims = traverse.statement_dims(statement)
    scalars = [*traverse.statement_scalars(statement), *(p for dim in dims for p in traverse.payloads(dim))]
    for node in traverse.nodes(*scalars):
        if isinstance(node, Load):
            yield node.buffer, node.index


def _runs_in_lanes(loop: loops.For) -> bool:
    for statement in loops.walk(loop.body):
        match statement:
            case loops.While() | loops.Call() | loops.Alloc(buffer=Buffer(space="stack")):
                return False
            case loops.For(extent=extent, kind=kind):
                if kind in ("vector", "parallel") or loop.variable in symbolic.atoms(extent):
                    return False
    return True
