"""Walks over scalars, kernels and functions: every node, index expression and symbol, in a fixed order.

Invariant: shared nodes are visited once, and run-time integers inside index arithmetic are followed into the
scalars that compute them. Iterative, because fused expressions are deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.scalar import (
    Apply,
    Bitcast,
    BoundedIndex,
    Cast,
    IndexValue,
    Load,
    Reduce,
    Scalar,
    children,
)
from ingot.compiler.ir.symbolic import Atom, Dim, Opaque, Symbol, Variable
from ingot.compiler.ir.tensor import Kernel

_COMPUTATIONS = (Apply, Bitcast, BoundedIndex, Cast, Reduce)


def payloads(dim: Dim) -> list[Scalar]:
    """The scalars that compute the run-time integers of an index expression."""
    return [a.payload for a in symbolic.opaques(dim) if hasattr(a.payload, "dtype")]  # type: ignore[misc]


def dims_of(node: Scalar) -> tuple[Dim, ...]:
    """The index expressions that a node holds itself; variables of a Reduce are not among them."""
    if isinstance(node, Load):
        return node.index
    if isinstance(node, Apply):
        return ()
    match node:
        case IndexValue(dim=dim):
            return (dim,)
        case BoundedIndex(extent=extent):
            return (extent,)
        case Reduce(extents=extents):
            return extents
        case _:
            return ()


def nodes(*scalars: Scalar) -> Iterator[Scalar]:
    """Every distinct node object once, users before operands, payloads of indices included."""
    seen: set[int] = set()
    stack = list(reversed(scalars))
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Apply):  # most nodes are these two
            stack.extend(reversed(node.args))
            continue
        inner = [] if isinstance(node, Load) else [*children(node)]
        for dim in dims_of(node):
            if not isinstance(dim, int) and symbolic.opaques(dim):
                inner.extend(payloads(dim))
        if inner:
            stack.extend(reversed(inner))


def shared_nodes(root: Scalar) -> list[Scalar]:
    """The computations that are used more than once below the root, operands first. Bodies of reductions are
    roots of their own: what they share stays inside."""
    uses: dict[int, int] = {}
    order: list[Scalar] = []
    stack = [(root, False)]
    while stack:
        node, finished = stack.pop()
        if finished:
            order.append(node)
            continue
        uses[id(node)] = uses.get(id(node), 0) + 1
        if uses[id(node)] == 1:
            stack.append((node, True))
            operands = () if isinstance(node, Reduce) else children(node)
            stack.extend((operand, False) for operand in reversed(operands))
    return [node for node in order if uses[id(node)] > 1 and isinstance(node, _COMPUTATIONS)]


def statement_scalars(statement: loops.Statement) -> tuple[Scalar, ...]:
    """The scalars that a statement itself evaluates, those of nested statements left out."""
    match statement:
        case loops.Let(value=value) | loops.Store(value=value):
            return (value,)
        case loops.If(condition=condition) | loops.While(condition=condition):
            return (condition,)
        case loops.Fail(condition=condition, details=details):
            return (condition, *details)
        case _:
            return ()


def statement_dims(statement: loops.Statement) -> tuple[Dim, ...]:
    """The index expressions that a statement itself holds, shapes of buffers it makes included."""
    match statement:
        case loops.For(extent=extent):
            return (extent,)
        case loops.Store(index=index) | loops.Prefetch(index=index):
            return index
        case loops.While(limit=limit):
            return () if limit is None else (limit,)
        case loops.Alloc(buffer=buffer, offset=offset):
            return buffer.shape if offset is None else (*buffer.shape, offset)
        case loops.View(buffer=buffer, offset=offset):
            return (*buffer.shape, offset)
        case loops.Call(sizes=sizes):
            return tuple(value for _, value in sizes)
        case _:
            return ()


def functions_of(function: loops.Function) -> tuple[loops.Function, ...]:
    """The function and every function it calls, callees first, each once."""
    order: dict[loops.Function, None] = {}

    def visit(each: loops.Function) -> None:
        if each in order:
            return
        for statement in loops.walk(each.body):
            if isinstance(statement, loops.Call):
                visit(statement.function)
        order[each] = None

    visit(function)
    return tuple(order)


def kernel_dims(kernel: Kernel) -> Iterator[Dim]:
    """Every index expression of a kernel: shapes, variables, indices and extents."""
    for buffer in (*kernel.inputs, *kernel.outputs):
        yield from buffer.shape
    for definition in kernel.definitions:
        yield from definition.buffer.shape
        yield from definition.variables
        for node in nodes(definition.value):
            yield from dims_of(node)
            if isinstance(node, Reduce):
                yield from node.variables


def function_dims(function: loops.Function) -> Iterator[Dim]:
    """Every index expression of a function, callees left out."""
    for buffer in function.parameters:
        yield from buffer.shape
    for statement in loops.walk(function.body):
        dims = statement_dims(statement)
        yield from dims
        if isinstance(statement, loops.For):
            yield statement.variable
        for node in nodes(*statement_scalars(statement), *(p for d in dims for p in payloads(d))):
            yield from dims_of(node)


def function_symbols(function: loops.Function) -> tuple[Symbol, ...]:
    """The symbols whose values a function needs, also for the functions it calls, by name."""
    found = set(symbols_in(function_dims(function)))
    for statement in loops.walk(function.body):
        if isinstance(statement, loops.Call):
            found |= set(function_symbols(statement.function)) - {symbol for symbol, _ in statement.sizes}
    return symbols_in(found)


def symbols_in(dims: Iterable[Dim]) -> tuple[Symbol, ...]:
    """The symbols of index expressions, also those in the bounds of their variables, by name."""
    found: set[Atom] = set()
    stack: list[Dim] = [dim for dim in dims if not isinstance(dim, int)]
    while stack:
        leaves = symbolic.atoms(stack.pop())
        if leaves <= found:
            continue
        new = leaves - found
        found |= new
        for atom in new:
            if isinstance(atom, (Variable, Opaque)):
                stack.extend(bound for bound in (atom.lower, atom.upper) if bound is not None)
    chosen = [a for a in found if isinstance(a, Symbol)]
    return tuple(sorted(chosen, key=lambda s: (s.name, _order(s.lower), _order(s.upper))))


def _order(bound: int | None) -> tuple[bool, int]:
    return bound is not None, bound or 0
