"""Products of narrow integers, two at a time.

    acc[m, n] = sum(k < K: left(m, k) * right(k, n))  in 32 bits, both operands within 16
        ->  sum(j < ceil(K/2): dot_pairs(pair(left(m, 2*j), left(m, 2*j + 1)), pair(right(2*j, n), right(2*j + 1, n))))

A word of 32 bits holds two neighbours of the last reduced axis, and one instruction multiplies both of a word with both
of another and adds the products: twice the products of a 32-bit multiplication, exactly, since a sum of two products of
16 bits fits. Words are elements like any others: a register tile, its panels and its broadcasts do not know.

Neighbours in memory are a word as they are: 16-bit integers stored along the reduced axis, or side by side for each
column (`passes.prepack`), are read through a view of words. Everything else becomes words where it is packed, or where
a single tile of rows reads it.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Apply, Cast, Const, Load, Scalar
from ingot.compiler.ir.symbolic import Dim, Variable
from ingot.compiler.ir.types import DType, i16, i32
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.collapse import Views
from ingot.compiler.schedule.form import ReductionForm
from ingot.compiler.schedule.panels import Contraction

HALF = -(1 << 15), (1 << 15) - 1  # what half a word holds


def paired(found: Contraction) -> Contraction:
    """The contraction over words, where both operands fit into halves of one."""
    form = found.form
    (accumulation,) = form.accumulations
    if accumulation.dtype != i32 or not (fits(found.left) and fits(found.right)):
        return found
    last, extent = form.reduced[-1], form.reduced_extents[-1]
    count = symbolic.ceildiv(extent, 2)
    if count == 1 and len(form.reduced) == 1:
        return found
    step = Variable(getattr(last, "name", "k"), 0, count - 1)

    def words(operand: Scalar) -> Scalar:
        """One operand beyond the extent is 0, so that it does not matter what the other is."""
        low = scalars.substitute(operand, {last: 2 * step})
        high = scalars.substitute(operand, {last: 2 * step + 1})
        inside = ir.predicate(2 * step + 1, "lt", extent)
        return _view(low, high, inside, form.views) or ir.apply("pair", low, ir.select(inside, high, ir.constant(0, i32)))

    left, right = words(found.left), words(found.right)
    body = ir.apply("dot_pairs", left, right)
    changed: ReductionForm = replace(
        form,
        reduced=(*form.reduced[:-1], step),
        reduced_extents=(*form.reduced_extents[:-1], count),
        accumulations=(replace(accumulation, body=body),),
    )
    return replace(found, form=changed, left=left, right=right, product="dot_pairs")


def fits(value: Scalar) -> bool:
    """Whether every value of an expression is known to fit into half a word."""
    bounds = _bounds(value)
    return bounds is not None and HALF[0] <= bounds[0] and bounds[1] <= HALF[1]


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


def _view(low: Scalar, high: Scalar, inside: Scalar, views: Views) -> Load | None:
    """Two neighbours in memory as the word that they are."""
    if not (isinstance(low, Cast) and isinstance(high, Cast)):
        return None
    first, second = low.value, high.value
    if not (isinstance(first, Load) and isinstance(second, Load) and first.dtype == i16):
        return None
    if first.buffer is not second.buffer or not first.index or first.index[:-1] != second.index[:-1]:
        return None
    place, room = first.index[-1], first.buffer.shape[-1]
    if inside != ir.constant(True, inside.dtype) and room != 2:
        return None
    if symbolic.equal(second.index[-1] - place, 1) is not True or not (_is_even(place) and _is_even(room)):
        return None
    return Load(views.words(first.buffer, i32), (*first.index[:-1], place // 2))


def _is_even(dim: Dim) -> bool:
    return symbolic.equal(dim % 2, 0) is True
