"""Padded operands, made once instead of asked at every use.

    select(0 <= y + r - 1 < h and 0 <= x + s - 1 < w, image[c, y + r - 1, x + s - 1], 0)
        ->  padded[c, y + r, x + s]      with  padded[c, p, q] = select(inside, image[c, p - 1, q - 1], 0)

The condition must say exactly that indices are inside the buffer, and these must be affine with constant steps, so
that every value the operand can take is one element of a slightly larger buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Apply, Buffer, Cast, Const, IndexValue, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.collapse import Points
from ingot.compiler.schedule.form import ReductionForm

LINE = 64  # bytes of a cache line
FEW_SETS = 2048  # bytes between rows from which a tile of them has too few sets of the first cache
ENOUGH_USES = 1.5  # uses of an element that pay for writing it to memory once more
FREE_SIZE = 1 << 12  # of an image whose size is free: its edges do not count


@dataclass(frozen=True)
class Filled:
    """`operand` reads `buffer`, which `points` fills."""

    operand: Scalar
    buffer: Buffer
    points: Points


def without_padding(form: ReductionForm) -> tuple[ReductionForm, tuple[Filled, ...]]:
    """The form with padded operands of its reductions read from padded buffers, where elements are used often."""
    ranges = dict(zip((*form.kept, *form.reduced), (*form.kept_extents, *form.reduced_extents), strict=True))
    made: dict[Scalar, Filled] = {}
    for accumulation in form.accumulations:
        for node in nodes(accumulation.body):
            found = _worthwhile(node, ranges) if node not in made else None
            if found is not None:
                made[node] = found
    if not made:
        return form, ()

    def replaced(node: Scalar) -> Scalar | None:
        return made[node].operand if node in made else None

    accumulations = tuple(replace(a, body=Rewriter(leaf=replaced).scalar(a.body)) for a in form.accumulations)
    return replace(form, accumulations=accumulations), tuple(made.values())


def _worthwhile(node: Scalar, ranges: Mapping[Dim, Dim]) -> Filled | None:
    if not (isinstance(node, Apply) and node.function.name == "select"):
        return None
    mentioned = {v: extent for v, extent in ranges.items() if scalars.depends_on(node, v)}
    found = padded(node, mentioned)
    if found is None:
        return None
    uses = _estimate(symbolic.product(mentioned.values()))
    return found if uses >= ENOUGH_USES * _estimate(found.buffer.type.size) else None


def _estimate(dim: Dim) -> int:
    """A number to compare sizes with. What is small where a free size is small, a few strides down, is not small enough
    to be judged by its edges."""
    if isinstance(dim, int):
        return dim
    symbols = [atom for atom in symbolic.atoms(dim) if isinstance(atom, symbolic.Symbol)]
    return symbolic.evaluate(dim, {s: FREE_SIZE if s.upper is None else min(s.upper, FREE_SIZE) for s in symbols})


def padded(operand: Scalar, ranges: Mapping[Dim, Dim]) -> Filled | None:
    """The operand as a load of a padded buffer; `ranges` are the extents of its variables."""
    narrow = _narrow(operand)
    if narrow is not None:
        found = padded(narrow, ranges)
        return None if found is None else replace(found, operand=ir.cast(found.operand, operand.dtype))
    choice = _choice(operand)
    if choice is None:
        return None
    condition, load = choice
    checked = _checked_dims(condition, load)
    if checked is None:
        return None
    lows: list[Dim] = []
    extents: list[Dim] = []
    for place, (index, extent) in enumerate(zip(load.index, load.buffer.shape, strict=True)):
        span = _span(index, ranges) if place in checked else (0, extent - 1)
        if span is None:
            return None
        lows.append(span[0])
        extents.append(span[1] - span[0] + 1)
    last = extents[-1] if len(extents) - 1 in checked else apart(extents[-1], operand.dtype.itemsize)
    buffer = Buffer(f"{load.buffer.name}_padded", operand.dtype, (*extents[:-1], last), "arena")
    index = tuple(i - low for i, low in zip(load.index, lows, strict=True))
    return Filled(Load(buffer, index), buffer, _fill(buffer, tuple(extents), operand, load, checked, lows))


def apart(extent: Dim, itemsize: int) -> Dim:
    """How far apart rows of so many elements are: neighbouring pixels with many channels would share a few sets of the
    first cache, and drive each other out of it."""
    return extent + LINE // itemsize if isinstance(extent, int) and extent * itemsize % FEW_SETS == 0 else extent


def _narrow(operand: Scalar) -> Scalar | None:
    """select(condition, wide(load), number) of integers as select(condition, load, number): it takes less memory."""
    match operand:
        case Apply(function, (condition, Cast(Load() as load, dtype), Const(number))) if function.name == "select":
            whole = dtype.is_integer and load.dtype.is_integer and load.dtype.bits < dtype.bits
            return ir.select(condition, load, ir.constant(number, load.dtype)) if whole and number == 0 else None
        case _:
            return None


def _choice(operand: Scalar) -> tuple[Scalar, Load] | None:
    """The condition and the load of select(condition, load, constant), conversions aside."""
    while isinstance(operand, Cast):
        operand = operand.value
    match operand:
        case Apply(function, (condition, chosen, Const())) if function.name == "select":
            while isinstance(chosen, Cast):
                chosen = chosen.value
            return (condition, chosen) if isinstance(chosen, Load) else None
        case _:
            return None


def _checked_dims(condition: Scalar, load: Load) -> frozenset[int] | None:
    """The dims of the load whose index the condition compares with 0 or the extent; None if it says more."""
    match condition:
        case Apply(function, (left, right)) if function.name == "and":
            both = _checked_dims(left, load), _checked_dims(right, load)
            return None if both[0] is None or both[1] is None else both[0] | both[1]
        case Apply(function, (IndexValue(left), IndexValue(right))):
            for place, (index, extent) in enumerate(zip(load.index, load.buffer.shape, strict=True)):
                comparison = (function.name, left, right)
                if comparison in (("ge", index, 0), ("le", 0, index), ("lt", index, extent)):
                    return frozenset((place,))
            return None
        case _:
            return None


def _span(index: Dim, ranges: Mapping[Dim, Dim]) -> tuple[Dim, Dim] | None:
    """The least and greatest value of an affine index with constant steps."""
    low: Dim = index
    high: Dim = index
    for variable, extent in ranges.items():
        step = scalars.index_coefficient(index, variable)
        if not isinstance(step, int):
            return None
        first, last = (0, extent - 1) if step >= 0 else (extent - 1, 0)
        low = symbolic.substitute(low, {variable: first})
        high = symbolic.substitute(high, {variable: last})
    if any(isinstance(atom, symbolic.Opaque) for atom in symbolic.atoms(low)):
        return None
    return low, high


def _fill(
    buffer: Buffer, extents: tuple[Dim, ...], operand: Scalar, load: Load, checked: frozenset[int], lows: list[Dim]
) -> Points:
    """Every element of the padded buffer that is read."""
    variables = tuple(
        symbolic.Variable(f"p{n}", 0, extent - 1) if extent != 1 else 0 for n, extent in enumerate(extents)
    )
    index = tuple(v + low for v, low in zip(variables, lows, strict=True))
    inside = ir.both(
        *(
            condition
            for place in sorted(checked)
            for condition in (
                ir.predicate(index[place], "ge", 0),
                ir.predicate(index[place], "lt", load.buffer.shape[place]),
            )
        )
    )
    value = _with_choice(operand, inside, Load(load.buffer, index))
    return Points(variables, extents, (Load(buffer, variables),), (value,))


def _with_choice(operand: Scalar, condition: Scalar, load: Load) -> Scalar:
    """The operand with its condition and its load replaced."""
    match operand:
        case Cast(value, dtype):
            return ir.cast(_with_choice(value, condition, load), dtype)
        case Apply(_, (_, chosen, other)):
            return ir.select(condition, _with_load(chosen, load), other)
        case _:
            raise AssertionError(operand)


def _with_load(chosen: Scalar, load: Load) -> Scalar:
    return ir.cast(_with_load(chosen.value, load), chosen.dtype) if isinstance(chosen, Cast) else load
