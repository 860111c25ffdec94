"""Kernels that reduce: the reductions, the axes they keep, and what follows elementwise.

    acc[i, j] = sum(k: a[i, k] * b[k, j]);  y[i, j] = relu(acc[i, j] + c[j])      kept i, j; reduced k; epilogue y

All definitions have the same axes; the reductions run over the same extents and do not read one another.
Axes that memory does not tell apart are merged, kept ones and reduced ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingot.compiler.ir import loops
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Let, Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Combiner, Load, Local, Read, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.types import DType
from ingot.compiler.schedule import build, scalars
from ingot.compiler.schedule.collapse import Points, Views, collapse
from ingot.compiler.schedule.primitives import simplify
from ingot.compiler.schedule.result import Scheduled
from ingot.compiler.schedule.rowform import Item, arrange, common_depth, items_of


@dataclass(frozen=True)
class Accumulation:
    """One reduction: what is combined, in which type. `mark` is what the epilogue loads in its place."""

    combiner: Combiner
    dtype: DType
    body: Scalar
    mark: Buffer
    result: DType

    @property
    def neutral(self) -> Scalar:
        return ir.constant(ir.identity_of(self.combiner, self.dtype), self.dtype)

    def combine(self, left: Scalar, right: Scalar) -> Scalar:
        return ir.apply(ir.COMBINERS[self.combiner], left, right)


@dataclass(frozen=True)
class Final:
    """A definition that follows the reductions; `output` when it is stored."""

    place: Load
    value: Scalar
    output: bool


@dataclass(frozen=True)
class ReductionForm:
    kept: tuple[Dim, ...]
    kept_extents: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    reduced_extents: tuple[Dim, ...]
    accumulations: tuple[Accumulation, ...]
    finals: tuple[Final, ...]
    shape: tuple[Dim, ...]  # of the definitions, before axes were merged
    views: Views

    def finish(self, results: Mapping[Buffer, Scalar], index: Mapping[Dim, Dim]) -> tuple[Statement, ...]:
        """The statements after the reductions at one point: all values, then all stores."""
        known = dict(results)
        rewriter = Rewriter(
            dict(index),  # type: ignore[arg-type]
            lambda node: known.get(node.buffer) if isinstance(node, Load) else None,
        )
        lets: list[Statement] = []
        stores: list[Statement] = []
        for final in self.finals:
            place, value = rewriter.scalar(final.place), rewriter.scalar(final.value)
            assert isinstance(place, Load)
            if len(self.finals) > 1:
                local = Local(final.place.buffer.name, value.dtype)
                lets.append(Let(local, value))
                value = Read(local)
                known[final.place.buffer] = value
            if final.output:
                stores.append(Store(place.buffer, place.index, value))
        return (*lets, *stores)


def in_place_pairs(kernel: Kernel) -> tuple[tuple[Buffer, Buffer], ...]:
    """Inputs that an output may overwrite: only what follows the reductions reads them, at the point that is stored
    (`finish` loads everything of a point before it stores anything)."""
    pairs = []
    for source in kernel.inputs:
        uses = [
            (isinstance(d.value, Reduce), load.index == d.variables)
            for d in kernel.definitions
            for load in scalars.loads(d.value)
            if load.buffer is source
        ]
        if any(reduced or not same_point for reduced, same_point in uses):
            continue
        pairs += [(source, o) for o in kernel.outputs if o.type == source.type]
    return tuple(pairs)


def reduction_form(kernel: Kernel) -> ReductionForm | None:
    """The kernel in this form, or None when it is something else."""
    depth = common_depth(kernel)
    if depth is None or any(len(d.variables) != depth for d in kernel.definitions):
        return None
    rows, items = items_of(kernel, depth)
    passes = arrange(items, depth)
    if len(passes) != 1:
        return None
    reductions = passes[0].items
    if any(item.extents != reductions[0].extents for item in reductions):
        return None
    views = Views()
    accumulations, finals = _definitions(reductions, passes[0].scalars)
    extents = reductions[0].place.buffer.shape
    kept = collapse(
        Points(
            rows,
            extents,
            tuple(final.place for final in finals),
            (*(a.body for a in accumulations), *(final.value for final in finals)),
        ),
        views,
    )
    bodies, values = kept.values[: len(accumulations)], kept.values[len(accumulations) :]
    reduced = collapse(Points(reductions[0].inner, reductions[0].extents, (), bodies), views)
    return ReductionForm(
        kept.variables,
        kept.extents,
        reduced.variables,
        reduced.extents,
        tuple(
            Accumulation(a.combiner, a.dtype, body, a.mark, a.result)
            for a, body in zip(accumulations, reduced.values, strict=True)
        ),
        tuple(
            Final(place, value, final.output) for final, place, value in zip(finals, kept.stores, values, strict=True)
        ),
        extents,
        views,
    )


def _definitions(reductions: Sequence[Item], scalars_: Sequence[Item]) -> tuple[list[Accumulation], list[Final]]:
    """Reductions over common variables, and finals in terms of their marks."""
    accumulations: list[Accumulation] = []
    finals: list[Final] = []
    marks: dict[Buffer, Scalar] = {}
    variables = reductions[0].inner
    for item in reductions:
        reduce = item.value
        assert isinstance(reduce, Reduce)
        mapping = {a: b for a, b in zip(item.inner, variables, strict=True) if not isinstance(a, int)}
        body = scalars.substitute(build.wide_body(reduce), mapping)
        dtype = build.accumulator_type(reduce)
        mark = Buffer(item.place.buffer.name, dtype, ())
        accumulations.append(Accumulation(reduce.combiner, dtype, body, mark, reduce.dtype))
        result = ir.cast(Load(mark, ()), reduce.dtype)
        marks[item.place.buffer] = result
        if item.output:
            finals.append(Final(item.place, result, True))
    for item in scalars_:
        value = scalars.replace_loads(item.value, lambda load: marks.get(load.buffer))
        finals.append(Final(item.place, value, item.output))
    return accumulations, finals


def scheduled_reduction(
    kernel: Kernel,
    form: ReductionForm,
    body: Sequence[Statement],
    scratch: tuple[Buffer, ...],
    decisions: dict,
    reason: str,
) -> Scheduled:
    """The statements of a reduction as the function of its kernel."""
    final = simplify(body)
    parameters = (*kernel.inputs, *kernel.outputs, *scratch)
    function = loops.Function(kernel.name, parameters, form.views.declared(final))
    return Scheduled(function, "reduction", decisions, f"a reduction; {reason}", scratch, in_place_pairs(kernel))
