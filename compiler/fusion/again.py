"""Values that wait for late readers are computed again, where that is cheap.

A gradient reads what the forward pass made: the result of a GELU, a normalised row, the weights of an attention. Between
the two lies the rest of the model, and all that time the value takes memory. A reader is late when a contraction, or
another kernel that takes time, must run between the value and the reader. A value is let go before that in two cases:

1. It is a few cheap operations away from values that wait anyway. Each late reader computes it, where it reads it. Or,
   if a late reader needs it in memory, a late product does so behind its sums, where it has the operands in registers:
   the gradient of a GELU reads its argument and its tanh, and can give back its result for the next weight's gradient.
2. It is a few operations away from a product of two values that is several times larger than they are, and they wait
   anyway: the scores of an attention grow with the square of a length, queries and keys do not. The product is
   computed again, late, in a kernel of its own with these operations behind it; what a row was divided by, and other
   values that are smaller than the value by an axis, are kept. All late readers share the result.

With a memory budget, values of the first case are computed again also if they cost more, a tanh for example, and in a
kernel of their own if there is no other place.

Invariant: the same operations on the same operands in the same order, so the same bits. What is decided follows from
dependences, ranks and sizes relative to each other, not from the order in which kernels will run.
Non-goal: meeting a budget; `rematerialise` goes further, when it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ingot.compiler.fusion.cost import FusionLimits, estimate, has_more_free_sizes, outgrows
from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.fusion.late import LateReaders, renaming
from ingot.compiler.fusion.legality import has_reduce
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Apply, Buffer, Load, Reduce, Scalar, loads_of
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

LONGEST = 256  # operations, beyond which nothing is worth computing again: residual streams go back through all layers


@dataclass(frozen=True)
class _Expression:
    """A value in terms of what is there when late readers run, and the product among it that is not."""

    value: Scalar
    weight: int
    product: Definition | None


class _Recomputation(LateReaders):
    def __init__(
        self, groups: Groups, root: Callable[[Buffer], Buffer], fixed: set[Buffer], limits: FusionLimits
    ) -> None:
        super().__init__(groups, root)
        self.fixed = fixed
        self.limits = limits

    def run(self) -> list[Again]:
        found: list[Again] = []
        for group in self.in_order():
            if group.kind == "alone":
                continue
            after = self.after(group)
            for definition in group.definitions:
                reason = self._reconsider(definition, after)
                if reason is not None:
                    found.append(Again(group, definition.buffer, reason))
        return found

    def _reconsider(self, definition: Definition, after: set[Group]) -> str | None:
        """Whether the value is computed again, and how; `after` are the kernels that take time and need its kernel."""
        buffer = definition.buffer
        late = self.late_or_free(buffer, after)
        if not late or buffer in self.fixed:
            return None
        found = self._expression(definition, late, after)
        if found is None:
            return None
        if found.product is not None:
            return self._with_product(definition, found, found.product, late, after)
        if found.weight > self.limits.again_weight:
            return None
        reason = self._at_readers(definition, found, late) or self._behind_product(definition, found, late, after)
        if reason is None and self.limits.again_stored:
            made = [Definition(_copy_of(buffer), definition.variables, found.value)]
            self._once(definition, "elementwise", made, (buffer,), late)
            reason = f"computed again for {len(late)} late readers, from values that wait anyway"
        return reason

    # --- what a value is made of ------------------------------------------------------------------

    def _expression(self, definition: Definition, late: Sequence[Group], after: set[Group]) -> _Expression | None:
        products: dict[Buffer, Definition] = {}
        possible, weight = True, 0

        def replaced(node: Scalar) -> Scalar | None:
            nonlocal possible, weight
            if not isinstance(node, Load) or self._is_there(node.buffer, definition.buffer, late, after):
                return None
            source = self.definitions.get(node.buffer)
            weight += 0 if source is None else _weight(source.value)
            if source is None or weight > LONGEST:
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
            reading = [d for d in group.definitions if any(load.buffer is buffer for load in d.loads)]
            if not reading or not all(_may_compute(group, d, buffer) for d in reading):
                return None
            times += len(reading) if group.kind in ("reduction", "rows") else 1  # loops over a row each, or one loop
            streams = {
                load.buffer for load in loads_of(found.value) if not _is_part(load.buffer.shape, buffer.shape)
            } - {load.buffer for d in group.definitions for load in d.loads}
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

            self.rewrite(group, computed)
        return f"computed again by {len(late)} late readers, from values that wait anyway"

    # --- computed behind a late product -------------------------------------------------------------

    def _behind_product(
        self, definition: Definition, found: _Expression, late: Sequence[Group], after: set[Group]
    ) -> str | None:
        """A late product whose epilogue reads what the value is made of. It needs none of the late readers, nor did they
        need it before: a product that they need may run long before them."""
        buffer = definition.buffer
        loads = [load for load in loads_of(found.value) if not _is_part(load.buffer.shape, buffer.shape)]
        streams = {load.buffer for load in loads if self.root(load.buffer) in self.groups.of}
        if not streams or any(load.index != definition.variables for load in loads if load.buffer in streams):
            return None
        before = self.groups.before
        for group in self.late(self.root(next(iter(streams))), after):
            last = group.definitions[-1] if group.definitions else None
            fits = group.kind == "contraction" and last is not None and last.buffer.shape == buffer.shape
            apart = not any(r is group or r in before[group] or group in before[r] for r in late)
            if not fits or not apart:
                continue
            assert last is not None
            own = {
                load.buffer
                for d in group.definitions
                if not has_reduce(d.value)
                for load in d.loads
                if load.index == d.variables
            }
            if not streams <= own or len(group.definitions) >= self.limits.kernel_definitions:
                continue
            result = _copy_of(buffer)
            value = Rewriter(_at(definition.variables, last.variables)).scalar(found.value)
            self.extend(group, Definition(result, last.variables, value))
            for reader in late:
                self.rewrite(reader, renaming({buffer: result}), {buffer: result})
            return f"computed again for {len(late)} late readers, behind a product that reads what it is made of"
        return None

    # --- computed once, in a kernel of its own -----------------------------------------------------

    def _with_product(
        self, definition: Definition, found: _Expression, product: Definition, late: Sequence[Group], after: set[Group]
    ) -> str | None:
        if not self._is_cheap_product(product, definition, found.value, late, after):
            return None
        sums = _copy_of(product.buffer)
        made = [Definition(sums, product.variables, product.value)]
        if product.buffer is not definition.buffer:
            follows = Rewriter(leaf=renaming({product.buffer: sums})).scalar(found.value)
            made.append(Definition(_copy_of(definition.buffer), definition.variables, follows))
        self._once(definition, "contraction", made, (product.buffer, definition.buffer), late)
        return f"computed again for {len(late)} late readers, with a product larger than its operands"

    def _once(
        self, definition: Definition, kind: str, made: list[Definition], like: Sequence[Buffer], late: Sequence[Group]
    ) -> None:
        """A kernel right before the first of the late readers, which read what it defines last. It is said to compute
        the values of those that made the buffers `like` it."""
        result = made[-1].buffer
        group = self.add("again", kind, made, [v for b in like for v in self.groups.of[b].values], late)
        for reader in late:
            self.rewrite(reader, renaming({definition.buffer: result}), {definition.buffer: result})
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
        operands = {self.root(load.buffer) for load in product.loads}
        sizes = [b.type.bytes for b in operands]
        if has_more_free_sizes(value.type.bytes, sizes):
            return True  # beside it the operands are small, also if nobody else waits for them
        if not all(self._is_there(b, value, late, after) for b in operands):
            return False
        extents = symbolic.product(product.value.extents)
        if not isinstance(extents, int) or extents + _weight(expression) > self.limits.again_products:
            return False
        is_layer = not all(b in self.groups.of for b in operands) and not _has_batch(product)
        return not is_layer and outgrows(value.type.bytes, sizes, self.limits.again_growth)


def _at(variables: Sequence[Dim], index: Sequence[Dim]) -> dict[Dim, Dim]:
    return {v: i for v, i in zip(variables, index, strict=True) if not isinstance(v, int)}


def _has_batch(product: Definition) -> bool:
    """Whether both operands of a product have an axis that it keeps: no product of a layer and its weight."""
    assert isinstance(product.value, Reduce)
    used = [set().union(*(symbolic.atoms(i) for i in load.index)) for load in product.loads]
    return any(all(variable in atoms for atoms in used) for variable in product.variables if not isinstance(variable, int))


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
    loads = [load for load in definition.loads if load.buffer is buffer]
    return all(
        len(set(index)) == len(index) and set(index) == set(space)
        for index in ([i for i in load.index if not isinstance(i, int)] for load in loads)
    )
