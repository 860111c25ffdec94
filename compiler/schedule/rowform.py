"""Kernels seen as rows: what happens for each point of the axes that all definitions share.

A row kernel has `depth` leading axes in common. Within a row, a definition is a scalar (no further axes: a
reduction over the row, or arithmetic on other row scalars) or a vector (further axes, elementwise). Definitions
are arranged into passes: in one pass over a row's axes everything is computed that needs no reduction of the same
pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer, Load, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.schedule import scalars

KEEP_COST = 4  # a row vector that costs less than this is computed again by each reader


@dataclass(frozen=True)
class Item:
    """One definition at the kernel's common row variables. `inner` are its axes within the row: its own further
    axes, or the axes of its reduction."""

    place: Load
    value: Scalar
    inner: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    output: bool

    @property
    def reduces(self) -> bool:
        return isinstance(self.value, Reduce)

    @property
    def is_vector(self) -> bool:
        return bool(self.inner) and not self.reduces

    @property
    def body(self) -> Scalar:
        return self.value.body if isinstance(self.value, Reduce) else self.value


@dataclass
class Pass:
    """Items over the same axes in one sweep, then row scalars that follow from them."""

    number: int
    items: list[Item] = field(default_factory=list)
    scalars: list[Item] = field(default_factory=list)


def common_depth(kernel: Kernel) -> int | None:
    """How many leading axes all definitions share; None when the kernel is not made of rows."""
    reductions = [d for d in kernel.definitions if isinstance(d.value, Reduce)]
    if not reductions or any(scalars.has_reduction(c) for d in kernel.definitions for c in _below_root(d)):
        return None
    depth = min(len(d.variables) for d in reductions)
    if any(len(d.variables) != depth for d in reductions) or any(len(d.variables) < depth for d in kernel.definitions):
        return None
    shape = reductions[0].buffer.shape[:depth]
    defined: set[Buffer] = set()
    for definition in kernel.definitions:
        if definition.buffer.shape[:depth] != shape:
            return None
        own = definition.variables[:depth]
        for load in scalars.loads(definition.value):
            if load.buffer in defined and load.index[:depth] != own:
                return None
        defined.add(definition.buffer)
    return depth


def _below_root(definition: Definition) -> tuple[Scalar, ...]:
    value = definition.value
    return (value.body,) if isinstance(value, Reduce) else (value,)


def items_of(kernel: Kernel, depth: int) -> tuple[tuple[Dim, ...], list[Item]]:
    """The common row variables and the definitions in terms of them; cheap local vectors are inlined."""
    rows = next(d.variables[:depth] for d in kernel.definitions if isinstance(d.value, Reduce))
    inlined: dict[Buffer, Definition] = {}
    items: list[Item] = []
    for definition in kernel.definitions:
        mapping = {a: b for a, b in zip(definition.variables, rows, strict=False) if not isinstance(a, int)}
        value = scalars.substitute(definition.value, mapping)
        value = scalars.replace_loads(value, lambda load: _inline(load, inlined))
        variables = (*rows, *definition.variables[depth:])
        local = definition.buffer not in kernel.outputs
        if local and not isinstance(value, Reduce) and scalars.cost(value) < KEEP_COST and variables:
            inlined[definition.buffer] = Definition(definition.buffer, variables, value)
            continue
        items.append(_item(Load(definition.buffer, variables), value, depth, not local))
    return rows, items


def _inline(load: Load, inlined: dict[Buffer, Definition]) -> Scalar | None:
    definition = inlined.get(load.buffer)
    if definition is None:
        return None
    pairs = zip(definition.variables, load.index, strict=True)
    return scalars.substitute(definition.value, {a: b for a, b in pairs if not isinstance(a, int)})


def _item(place: Load, value: Scalar, depth: int, output: bool) -> Item:
    if isinstance(value, Reduce):
        inner, extents = value.variables, value.extents
    else:
        inner, extents = place.index[depth:], place.buffer.shape[depth:]
    return Item(place, value, inner, extents, output)


def arrange(items: Sequence[Item], depth: int) -> list[Pass]:
    """The earliest pass for each item.

    A reduction's result is there after its pass; a row vector is there in its own pass at the same point, and
    anywhere in the row after it.
    """
    made: dict[Buffer, tuple[Item, int]] = {}
    passes: list[Pass] = []
    for item in items:
        number = 0
        for load in scalars.loads(item.value):
            if load.buffer in made:
                number = max(number, _ready(load, *made[load.buffer], item, depth))
        scalar_only = not item.inner and not item.reduces
        if scalar_only:
            # follows what it reads: after the pass before the one it could take part in
            number = max(number - 1, 0)
        while len(passes) <= number:
            passes.append(Pass(len(passes)))
        (passes[number].scalars if scalar_only else passes[number].items).append(item)
        made[item.place.buffer] = (item, number)
    return passes


def _ready(load: Load, source: Item, number: int, reader: Item, depth: int) -> int:
    if not source.is_vector:
        return number + 1
    same_point = load.index[depth:] == reader.inner and source.extents == reader.extents
    return number if same_point else number + 1


def guests(passes: Sequence[Pass], stack_bytes: int) -> dict[Buffer, Item]:
    """Local row vectors that wait in the memory of an output: one that is computed from them point by point, in a later
    pass, and is the last to read them. Not those that wait on the stack, as long as there is room for them."""
    items = [(item, each.number) for each in passes for item in (*each.items, *each.scalars)]
    found: dict[Buffer, Item] = {}
    for local, made in items:
        if local.output or not local.is_vector:
            continue
        size = symbolic.product(local.extents) * local.place.buffer.dtype.itemsize
        if isinstance(size, int) and size <= stack_bytes:
            stack_bytes -= size
            continue
        readers = [(i, n) for i, n in items if any(load.buffer is local.place.buffer for load in scalars.loads(i.value))]
        last = max((n for _, n in readers), default=made)
        host = next((i for i, n in readers if n == last and i.output and i.is_vector), None)
        if host is None or last == made or sum(n == last for _, n in readers) > 1 or host in found.values():
            continue
        loads = [load for load in scalars.loads(host.value) if load.buffer is local.place.buffer]
        rank = len(host.place.index) - len(host.inner)
        same = all((*load.index[:rank], *host.inner) == load.index for load in loads)
        if same and host.place.buffer.type == local.place.buffer.type and host.extents == local.extents:
            found[local.place.buffer] = host
    return found


def in_place_pairs(
    passes: Sequence[Pass], rows: tuple[Dim, ...], inputs: Sequence[Buffer], hosts: Mapping[Buffer, Item] | None = None
) -> tuple[tuple[Buffer, Buffer], ...]:
    """(input, output) pairs that may be the same memory.

    An output may overwrite an input of its type that is read in the same row only: anywhere in the row before the
    output is stored, at the same point while it is stored, and not at all afterwards. The memory of a host is stored to
    when its guest is.
    """
    order = [
        (item, (each.number, stage)) for each in passes for stage, part in enumerate(_stages(each)) for item in part
    ]
    early = {host.place.buffer: guest for guest, host in (hosts or {}).items()}
    times = {item.place.buffer: when for item, when in order}
    pairs = []
    for output, stored in order:
        if not output.output:
            continue
        stored = times[early[output.place.buffer]] if output.place.buffer in early else stored
        for source in inputs:
            if source.type != output.place.buffer.type:
                continue
            reads = [
                (load, item, when)
                for item, when in order
                for load in scalars.loads(item.value)
                if load.buffer is source
            ]
            if all(_before_store(load, item, when, output, stored, rows) for load, item, when in reads):
                pairs.append((source, output.place.buffer))
    return tuple(pairs)


def _stages(each: Pass) -> list[list[Item]]:
    """What a pass computes at the same time: its sweep, then its scalars one by one."""
    return [each.items, *([item] for item in each.scalars)]


def _before_store(
    load: Load, item: Item, when: tuple[int, int], output: Item, stored: tuple[int, int], rows: tuple[Dim, ...]
) -> bool:
    if load.index[: len(rows)] != rows or when > stored:
        return False
    if when < stored:
        return True
    inner = item.inner if not item.reduces or output.is_vector else ()
    return load.index[len(rows) :] == inner and item.extents == output.extents
