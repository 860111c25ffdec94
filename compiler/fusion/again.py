"""Values that wait for late readers are computed again, where that is cheap.

A gradient reads what the forward pass made: the tanh of a GELU, a normalised row, the weights of an attention. Between
the two lies the rest of the model, and all that time the value takes memory. A reader is late when a contraction, or
another kernel that takes time, must run between the value and the reader. A value is let go before that in two cases:

1. It is a few operations away from values that wait anyway. Each late reader computes it, where it reads it.
2. It is a few operations away from a product of two values that is larger than they are, and they wait anyway: the
   scores of an attention grow with the square of a length, queries and keys do not. The product is computed again,
   late, in a kernel of its own with these operations behind it; what a row was divided by, and other values that are
   smaller than the value by an axis, are kept. All late readers share the result.

With a memory budget, values of the first case that a late reader needs in memory, such as an operand of a product, are
computed again too, in a kernel of their own.

Invariant: the same operations on the same operands in the same order, so the same bits. What is decided follows from
dependences, ranks and sizes relative to each other, not from the order in which kernels will run.
Non-goal: meeting a budget; `rematerialise` goes further, when it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.compiler.fusion.cost import FusionLimits, estimate
from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.fusion.legality import has_reduce, loads_of
from ingot.compiler.fusion.plan import KernelStep
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.ops.elementwise import EXPENSIVE

SEVERAL = 8  # times smaller than a value is what may be kept in its place


@dataclass(frozen=True)
class Again:
    """What was decided about one value."""

    group: Group  # that makes it
    buffer: Buffer
    reason: str


def compute_again(
    groups: Groups, root: Callable[[Buffer], Buffer], viewed: Iterable[Buffer], outputs: Iterable[Buffer],
    limits: FusionLimits,
) -> list[Again]:  # fmt: skip
    """Change the groups so that what can be had again does not wait. `root` is the memory that a buffer is part of;
    `viewed` memory has other names too, and `outputs` are wanted by the caller."""
    return _Recomputation(groups, root, {*viewed, *outputs}, limits).run()


@dataclass(frozen=True)
class _Expression:
    """A value in terms of what is there when late readers run, and the product among it that is not."""

    value: Scalar
    weight: int
    product: Definition | None


class _Recomputation:
    def __init__(
        self, groups: Groups, root: Callable[[Buffer], Buffer], fixed: set[Buffer], limits: FusionLimits
    ) -> None:
        self.groups = groups
        self.root = root
        self.fixed = fixed
        self.limits = limits
        self.heavy = {g for g in groups.all if g.kind in ("contraction", "alone")}
        self.definitions = {d.buffer: d for g in groups.all for d in g.definitions}
        self.readers: dict[Buffer, list[Group]] = {}
        for group in groups.all:
            for buffer in group.reads:
                self.readers.setdefault(buffer, []).append(group)

    def run(self) -> list[Again]:
        found: list[Again] = []
        # what runs before a predecessor runs before, so this is an order in which kernels can run
        for group in sorted(self.groups.all, key=lambda g: (len(self.groups.before[g]), g.number)):
            if group.kind == "alone":
                continue
            after = {h for h in self.heavy if group in self.groups.before[h]}
            for definition in group.definitions:
                reason = self._reconsider(definition, after)
                if reason is not None:
                    found.append(Again(group, definition.buffer, reason))
        return found

    def _reconsider(self, definition: Definition, after: set[Group]) -> str | None:
        """Whether the value is computed again, and how; `after` are the kernels that take time and need its kernel."""
        buffer = definition.buffer
        late = self._late_readers(buffer, after)
        if not late or buffer in self.fixed:
            return None
        found = self._expression(definition, late, after)
        if found is None or found.weight > self.limits.again_weight:
            return None
        if found.product is not None:
            return self._with_product(definition, found, found.product, late, after)
        reason = self._at_readers(definition, found, late)
        if reason is None and self.limits.again_stored:
            made = [Definition(_copy_of(buffer), definition.variables, found.value)]
            self._once(definition, "elementwise", made, (buffer,), late)
            reason = f"computed again for {len(late)} late readers, from values that wait anyway"
        return reason

    def _late_readers(self, buffer: Buffer, after: set[Group]) -> list[Group]:
        """Those that run after a kernel which takes time, and those that may run as late as these."""
        before, readers = self.groups.before, self.readers.get(buffer, ())
        certain = [g for g in readers if not after.isdisjoint(before[g])]
        others = [g for g in readers if g not in certain and not any(g in before[late] for late in certain)]
        return [*certain, *others] if certain else []

    # --- what a value is made of ------------------------------------------------------------------

    def _expression(self, definition: Definition, late: Sequence[Group], after: set[Group]) -> _Expression | None:
        products: dict[Buffer, Definition] = {}
        possible = True

        def replaced(node: Scalar) -> Scalar | None:
            nonlocal possible
            if not isinstance(node, Load) or self._is_there(node.buffer, definition.buffer, late, after):
                return None
            source = self.definitions.get(node.buffer)
            if source is None:
                possible = False
                return None
            if has_reduce(source.value):
                products[node.buffer] = source
                return None
            return rewrite(source, node.index)

        def rewrite(source: Definition, index: Sequence[Dim]) -> Scalar:
            return Rewriter(_at(source.variables, index), replaced).scalar(source.value)

        if has_reduce(definition.value):
            products[definition.buffer] = definition
            value: Scalar = Load(definition.buffer, definition.variables)
        else:
            value = rewrite(definition, definition.variables)
        if not possible or len(products) > 1:
            return None
        return _Expression(value, _weight(value), next(iter(products.values()), None))

    def _is_there(self, buffer: Buffer, value: Buffer, late: Sequence[Group], after: set[Group]) -> bool:
        """Whether a buffer is memory of the caller's, waits for a reader that runs with the late ones or after them,
        or is so much smaller than the value that it may as well wait."""
        memory = self.root(buffer)
        if memory not in self.groups.of:
            return True
        if any(self._runs_with(reader, late, after) for reader in self.readers.get(memory, ())):
            return True
        return buffer in self.definitions and _is_part(buffer.shape, value.shape)

    def _runs_with(self, reader: Group, late: Sequence[Group], after: set[Group]) -> bool:
        """Whether a reader is late too, and none of the late ones needs it to have run."""
        before = self.groups.before
        return not after.isdisjoint(before[reader]) and not any(reader in before[g] for g in late)

    # --- computed by its readers ------------------------------------------------------------------

    def _at_readers(self, definition: Definition, found: _Expression, late: Sequence[Group]) -> str | None:
        buffer = definition.buffer
        times = 0
        for group in late:
            reading = [d for d in group.definitions if any(load.buffer is buffer for load in loads_of(d.value))]
            if not reading or not all(_may_compute(group, d, buffer) for d in reading):
                return None
            times += len(reading) if group.kind in ("reduction", "rows") else 1  # loops over a row each, or one loop
            streams = {
                load.buffer for load in loads_of(found.value) if not _is_part(load.buffer.shape, buffer.shape)
            } - {load.buffer for d in group.definitions for load in loads_of(d.value)}
            if sum(self.root(b) in self.groups.of for b in streams) > 1:
                return None
        if times * found.weight > self.limits.again_weight:
            return None
        for group in late:
            cache: dict[tuple[Dim, ...], Scalar] = {}

            def computed(node: Scalar, cache: dict[tuple[Dim, ...], Scalar] = cache) -> Scalar | None:
                if not isinstance(node, Load) or node.buffer is not buffer:
                    return None
                if node.index not in cache:
                    cache[node.index] = Rewriter(_at(definition.variables, node.index)).scalar(found.value)
                return cache[node.index]

            self._rewrite(group, computed)
        return f"computed again by {len(late)} late readers, from values that wait anyway"

    # --- computed once, in a kernel of its own -----------------------------------------------------

    def _with_product(
        self, definition: Definition, found: _Expression, product: Definition, late: Sequence[Group], after: set[Group]
    ) -> str | None:
        if not self._is_cheap_product(product, definition, found.value, late, after):
            return None
        sums = _copy_of(product.buffer)
        made = [Definition(sums, product.variables, product.value)]
        if product.buffer is not definition.buffer:
            follows = Rewriter(leaf=_renaming({product.buffer: sums})).scalar(found.value)
            made.append(Definition(_copy_of(definition.buffer), definition.variables, follows))
        self._once(definition, "contraction", made, (product.buffer, definition.buffer), late)
        return f"computed again for {len(late)} late readers, with a product larger than its operands"

    def _once(
        self, definition: Definition, kind: str, made: list[Definition], like: Sequence[Buffer], late: Sequence[Group]
    ) -> None:
        """A kernel right before the first of the late readers, which read what it defines last. It is said to compute
        the values of those that made the buffers `like` it."""
        result = made[-1].buffer
        values = dict.fromkeys(v for b in like for v in self.groups.of[b].values)
        group = self.groups.new(result.shape, kind)
        everything = self.groups.all
        everything.remove(group)
        everything.insert(min(everything.index(reader) for reader in late), group)
        reads = {self.root(load.buffer) for d in made for load in loads_of(d.value)}
        for number, value in enumerate(values):
            self.groups.add(group, () if number else made, value, reads)
        for memory in group.reads:
            self.readers.setdefault(memory, []).append(group)
        self.definitions |= {d.buffer: d for d in made}
        for reader in late:
            self._rewrite(reader, _renaming({definition.buffer: result}), {definition.buffer: result})
        shared = set.intersection(*(self.groups.before[reader] for reader in late)) - {group}
        self.groups.follow(group, shared)

    def _is_cheap_product(
        self, product: Definition, definition: Definition, expression: Scalar, late: Sequence[Group], after: set[Group]
    ) -> bool:
        value = definition.buffer
        if self.groups.of[product.buffer].kind != "contraction" or product.buffer.shape != value.shape:
            return False
        assert isinstance(product.value, Reduce)
        if any(load.index != definition.variables for load in loads_of(expression) if load.buffer is product.buffer):
            return False
        extents = symbolic.product(product.value.extents)
        if not isinstance(extents, int) or extents > self.limits.again_products:
            return False
        operands = {self.root(load.buffer) for load in loads_of(product.value)}
        if not all(b in self.groups.of and self._is_there(b, value, late, after) for b in operands):
            return False
        return estimate(value.type.bytes) >= sum(estimate(b.type.bytes) for b in operands)

    # --- changing kernels --------------------------------------------------------------------------

    def _rewrite(
        self, group: Group, leaf: Callable[[Scalar], Scalar | None], renamed: Mapping[Buffer, Buffer] | None = None
    ) -> None:
        for memory in group.reads:
            self.readers[memory].remove(group)
        if group.step is not None:
            assert not isinstance(group.step, KernelStep)
            known = renamed or {}
            group.step = replace(group.step, inputs=tuple(known.get(b, b) for b in group.step.inputs))
            read: Iterable[Buffer] = group.step.inputs
        else:
            group.definitions = [replace(d, value=Rewriter(leaf=leaf).scalar(d.value)) for d in group.definitions]
            self.definitions |= {d.buffer: d for d in group.definitions}
            read = [load.buffer for d in group.definitions for load in loads_of(d.value)]
        group.reads = {self.root(b) for b in read} - set(group.buffers)
        self.groups.depend(group, group.reads)
        for memory in group.reads:
            self.readers.setdefault(memory, []).append(group)


def _at(variables: Sequence[Dim], index: Sequence[Dim]) -> dict[Dim, Dim]:
    return {v: i for v, i in zip(variables, index, strict=True) if not isinstance(v, int)}


def _renaming(renamed: Mapping[Buffer, Buffer]) -> Callable[[Scalar], Scalar | None]:
    def leaf(node: Scalar) -> Scalar | None:
        return Load(renamed[node.buffer], node.index) if isinstance(node, Load) and node.buffer in renamed else None

    return leaf


def _copy_of(buffer: Buffer) -> Buffer:
    return Buffer(f"{buffer.name}.again", buffer.dtype, buffer.shape)


def _weight(value: Scalar) -> int:
    """Operations of an expression, shared ones once."""
    return sum(
        8 if node.function.name in EXPENSIVE else 1 for node in nodes(value) if isinstance(node, Apply)
    )


def _is_part(shape: Sequence[Dim], whole: Sequence[Dim]) -> bool:
    """Whether a shape is that of some axes of the whole, and the other axes are several elements long together."""
    left = list(whole)
    for dim in shape:
        if dim == 1:
            continue
        if dim not in left:
            return False
        left.remove(dim)
    return estimate(symbolic.product(left)) >= SEVERAL


def _may_compute(group: Group, definition: Definition, buffer: Buffer) -> bool:
    """Whether a definition that reads a buffer can compute its elements instead, each of them once."""
    reduce = definition.value if isinstance(definition.value, Reduce) else None
    if group.kind == "alone" or (group.kind == "contraction" and reduce is not None):
        return False
    space = [v for v in (*definition.variables, *(reduce.variables if reduce else ())) if not isinstance(v, int)]
    loads = [load for load in loads_of(definition.value) if load.buffer is buffer]
    return all(
        len(set(index)) == len(index) and set(index) == set(space)
        for index in ([i for i in load.index if not isinstance(i, int)] for load in loads)
    )
