"""Extents of zero, before any recipe sees them.

A kernel whose outputs have no elements does nothing. A reduction over nothing is the neutral element: known now when
an extent is 0, decided when the kernel runs when a dim may be 0 (most may not: a symbolic dim is at least 1 unless
it was declared otherwise).
"""

from __future__ import annotations

from dataclasses import replace

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Const, IndexValue, Reduce, Scalar, apply, identity_of
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.types import i64


def does_nothing(kernel: Kernel) -> bool:
    return all(symbolic.equal(buffer.type.size, 0) is True for buffer in kernel.outputs)


def _size(definition: Definition) -> Dim:
    return symbolic.product(definition.value.extents) if isinstance(definition.value, Reduce) else 1


def without_empty(kernel: Kernel) -> Kernel:
    """The kernel with reductions over nothing replaced by what they give."""
    return _replaced(kernel, [symbolic.equal(_size(d), 0) is True for d in kernel.definitions])


def may_be_empty(kernel: Kernel) -> Scalar | None:
    """Whether some reduction is over nothing, as a condition on dims; None when none can be."""
    found: Scalar | None = None
    for size in dict.fromkeys(_size(definition) for definition in kernel.definitions):
        if symbolic.less_equal(1, size) is True:
            continue
        empty = apply("eq", IndexValue(size), Const(0, i64))
        found = empty if found is None else apply("or", found, empty)
    return found


def leaves_nothing(kernel: Kernel) -> bool:
    """Whether the outputs have no elements either whenever some reduction is over nothing: attention of a sequence to
    itself, whose rows are as many as its columns."""
    reductions = [d.value for d in kernel.definitions if isinstance(d.value, Reduce)]
    extents = {e for r in reductions for e in r.extents if symbolic.less_equal(1, e) is not True}
    return all(extent in buffer.shape for extent in extents for buffer in kernel.outputs)


def if_empty(kernel: Kernel) -> Kernel:
    """The kernel for the case that every reduction that may be over nothing is."""
    return _replaced(kernel, [symbolic.less_equal(1, _size(d)) is not True for d in kernel.definitions])


def _replaced(kernel: Kernel, empty: list[bool]) -> Kernel:
    if not any(empty):
        return kernel
    definitions = []
    for definition, is_empty in zip(kernel.definitions, empty, strict=True):
        if is_empty and isinstance(definition.value, Reduce):
            dtype = definition.value.dtype
            neutral = Const(identity_of(definition.value.combiner, dtype), dtype)
            definition = replace(definition, value=neutral)
        definitions.append(definition)
    return replace(kernel, definitions=tuple(definitions))
