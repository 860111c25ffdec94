"""Loop nests that ops with `loops` share: a tensor seen as [outer, extent, inner] around one axis, and the
parallel loop over what is independent of that axis.

Invariant: two iterations of a parallel loop made here never write the same element, so a result does not
depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import For, LoopKind, Statement, Store, View
from ingot.compiler.ir.scalar import Buffer, Load, Scalar
from ingot.compiler.ir.symbolic import Dim

# Neighbouring elements that one task handles together: whole cache lines, and a carry that stays in cache.
BLOCK = 64


def around(shape: Sequence[Dim], axis: int) -> tuple[Dim, Dim, Dim]:
    """(product of the dims before the axis, the axis, product of the dims after it)"""
    return symbolic.product(shape[:axis]), shape[axis], symbolic.product(shape[axis + 1 :])


def view(base: Buffer, *shape: Dim) -> View:
    """The whole of `base` under another shape."""
    return View(Buffer(base.name, base.dtype, shape, base.space), base)


def loop(extent: Dim, body: Callable[[Dim], Sequence[Statement]], kind: LoopKind = "serial") -> For:
    """A loop over a fresh variable."""
    variable = symbolic.Variable("i", 0, extent - 1)
    return For(variable, extent, tuple(body(variable)), kind)


def repeat(
    extent: Dim, body: Callable[[Dim], Sequence[Statement]], kind: LoopKind = "serial"
) -> tuple[Statement, ...]:
    """A loop over a fresh variable; over one element it is no loop, over none it is nothing."""
    if extent == 0:
        return ()
    if extent == 1:
        return tuple(body(0))
    return (loop(extent, body, kind),)


def vectors(
    extent: Dim, width: int, body: Callable[[Dim, Dim], Sequence[Statement]], kind: LoopKind = "serial"
) -> tuple[Statement, ...]:
    """`body(place, lane)` for every place below the extent, in vectors; the lanes of the last one are masked."""

    def lanes(start: Dim, count: Dim) -> tuple[Statement, ...]:
        if count == 0:
            return ()
        lane = symbolic.Variable("l", 0, count - 1)
        return (For(lane, count, tuple(body(start + lane, lane)), "vector", width),)

    whole = extent // width
    return (*repeat(whole, lambda v: lanes(v * width, width), kind), *lanes(whole * width, extent - whole * width))


def parallel_columns(
    outer: Dim, inner: Dim, body: Callable[[Dim, Dim, Dim, int], Sequence[Statement]]
) -> tuple[Statement, ...]:
    """Tasks over outer x blocks of inner. `body(o, first, width, block)` handles columns first to
    first + width - 1 of o, where the width is at most the constant `block`."""
    if outer == 0 or inner == 0:
        return ()
    block = min(inner, BLOCK) if isinstance(inner, int) else BLOCK
    blocks = symbolic.ceildiv(inner, block)

    def task(number: Dim) -> Sequence[Statement]:
        first = (number % blocks) * block
        return body(number // blocks, first, symbolic.minimum(block, inner - first), block)

    return (loop(outer * blocks, task, "parallel"),)


def unflatten(position: Dim, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The index of the element at a row-major position; the caller sees to it that it lies inside."""
    index: list[Dim] = []
    for number, dim in reversed(list(enumerate(shape))):
        index.append(0 if dim == 1 else position % dim if number else position)
        position = position // dim
    return tuple(reversed(index))


def copy(target: Buffer, source: Buffer) -> tuple[Statement, ...]:
    """target = source, element by element in row-major order."""
    size = symbolic.product(target.shape)
    to, start = view(target, size), view(source, size)

    def columns(_: Dim, first: Dim, width: Dim, block: int) -> Sequence[Statement]:
        return (loop(width, lambda j: [store(to.buffer, Load(start.buffer, (first + j,)), first + j)]),)

    return (to, start, *parallel_columns(1, size, columns))


def store(buffer: Buffer, value: Scalar, *index: Dim) -> Store:
    return Store(buffer, index, value)
