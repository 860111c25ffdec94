"""Products of narrow integers, several at a time.

    acc[m, n] = sum(k < K: left(m, k) * right(k, n))  in 32 bits, both operands within 16
        ->  sum(j < ceil(K/2): dot_pairs(pair(left(m, 2*j), left(m, 2*j + 1)), pair(right(2*j, n), right(2*j + 1, n))))

A word of 32 bits holds two neighbours of the last reduced axis, and one instruction multiplies both of a word with both
of another and adds the products: twice the products of a 32-bit multiplication, exactly, since a sum of two products of
16 bits fits. Words are elements like any others: a register tile, its panels and its broadcasts do not know.

Where the target adds four products of 8-bit integers, one operand without a sign and the other with one, words hold four
(`dot_us`, `dot_su`); exact as well, because sums wrap as those of 32 bits do. `passes.zero_points` gives operands
that form where it can.

Neighbours in memory are a word as they are: integers of a word's parts stored along the reduced axis, or side by side for
each column (`passes.prepack`), are read through a view of words. Everything else becomes words where it is packed, or
where a single tile of rows reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Apply, Cast, Const, Load, Scalar
from ingot.compiler.ir.symbolic import Variable
from ingot.compiler.ir.types import DType, i8, i16, i32, u8
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.collapse import Views
from ingot.compiler.schedule.form import ReductionForm
from ingot.compiler.schedule.panels import Contraction
from ingot.compiler.target import Target


def in_words(found: Contraction, target: Target) -> Contraction:
    """The contraction over words, where both operands fit into parts of one."""
    form = found.form
    (accumulation,) = form.accumulations
    parts = _parts(found, target) if accumulation.dtype == i32 else None
    if parts is None:
        return found
    product, size, types = parts
    last, extent = form.reduced[-1], form.reduced_extents[-1]
    count = symbolic.ceildiv(extent, size)
    if count == 1 and len(form.reduced) == 1:
        return found
    step = Variable(getattr(last, "name", "k"), 0, count - 1)

    def words(operand: Scalar, part: DType) -> Scalar:
        """One operand beyond the extent is 0, so that it does not matter what the other is."""
        narrow = _narrowed(operand, part)
        places = [size * step + n for n in range(size)]
        values = [scalars.substitute(narrow, {last: place}) for place in places]
        inside = [ir.predicate(place, "lt", extent) for place in places]
        whole = _view(values, inside, form.views)
        if whole is not None:
            return whole
        zero = ir.constant(0, narrow.dtype)
        safe = [values[0], *(ir.select(*each, zero) for each in zip(inside[1:], values[1:], strict=True))]
        return ir.apply("pair" if size == 2 else "quad", *(ir.cast(each, i32) for each in safe))

    left, right = words(found.left, types[0]), words(found.right, types[1])
    zero = () if size == 2 else (ir.constant(0, i32),)
    changed: ReductionForm = replace(
        form,
        reduced=(*form.reduced[:-1], step),
        reduced_extents=(*form.reduced_extents[:-1], count),
        accumulations=(replace(accumulation, body=ir.apply(product, left, right, *zero)),),
    )
    return replace(found, form=changed, left=left, right=right, product=product, elements=size)


def _parts(found: Contraction, target: Target) -> tuple[str, int, tuple[DType, DType]] | None:
    """The product of words, how many elements these hold, and as which type of each operand."""
    left, right = found.left, found.right
    if target.has_quads:
        for product, types in (("dot_us", (u8, i8)), ("dot_su", (i8, u8))):
            if fits(left, types[0]) and fits(right, types[1]):
                return product, 4, types
    return ("dot_pairs", 2, (i16, i16)) if fits(left) and fits(right) else None


def _narrowed(operand: Scalar, part: DType) -> Scalar:
    """The operand in the type of a part, which holds all of its values; narrower where it comes so."""
    match operand:
        case Cast(inner, _) if inner.dtype.is_integer and inner.dtype.bits <= part.bits and fits(inner, part):
            return inner
        case Apply(function, (condition, yes, no)) if function.name == "select":
            arms = _narrowed(yes, part), _narrowed(no, part)
            if arms[0].dtype == arms[1].dtype:
                return ir.select(condition, *arms)
            return ir.select(condition, *(ir.cast(arm, part) for arm in arms))
        case _:
            return ir.cast(operand, part)


def fits(value: Scalar, part: DType = i16) -> bool:
    """Whether every value of an expression is known to fit into a part of a word."""
    bounds, (low, high) = _bounds(value), _range(part)
    return bounds is not None and low <= bounds[0] and bounds[1] <= high


def _bounds(value: Scalar) -> tuple[int, int] | None:
    """The least and greatest value of an integer expression, as far as its types tell."""
    match value:
        case Const(number, dtype) if dtype.is_integer:
            return int(number), int(number)
        case Cast(inner, dtype) if dtype.is_integer and inner.dtype.is_integer:
            narrow, wide = _bounds(inner), _range(dtype)
            return narrow if narrow is not None and wide[0] <= narrow[0] and narrow[1] <= wide[1] else wide
        case Apply(function, (left, right)) if function.name in ("add", "sub"):
            a, b = _bounds(left), _bounds(right)
            if a is None or b is None:
                return None
            low, high = (a[0] - b[1], a[1] - b[0]) if function.name == "sub" else (a[0] + b[0], a[1] + b[1])
            wide = _range(value.dtype)
            return (low, high) if wide[0] <= low and high <= wide[1] else wide
        case Apply(function, (_, yes, no)) if function.name == "select":
            a, b = _bounds(yes), _bounds(no)
            return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        case _:
            return _range(value.dtype) if value.dtype.is_integer else None


def _range(dtype: DType) -> tuple[int, int]:
    return (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << dtype.bits) - 1)


def _view(values: Sequence[Scalar], inside: Sequence[Scalar], views: Views) -> Load | None:
    """Neighbours in memory as the word that they are. Beyond the extent there are zeros where words are all that memory
    holds side by side, and nothing else is read."""
    size = len(values)
    loads = [value for value in values if isinstance(value, Load)]
    if len(loads) < size or loads[0].dtype.bits * size != 32 or not loads[0].index:
        return None
    first = loads[0]
    place, room = first.index[-1], first.buffer.shape[-1]
    if any(load.buffer is not first.buffer or load.index[:-1] != first.index[:-1] for load in loads):
        return None
    if any(each != ir.constant(True, each.dtype) for each in inside) and room != size:
        return None
    apart = (symbolic.equal(load.index[-1] - place, n) is True for n, load in enumerate(loads))
    if not all(apart) or not all(symbolic.equal(dim % size, 0) is True for dim in (place, room)):
        return None
    return Load(views.words(first.buffer, i32), (*first.index[:-1], place // size))
