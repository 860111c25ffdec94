"""Graph to kernels: which values are computed where they are read, which get memory, and which kernels
they are computed in. The result is a printable FusionPlan; every decision carries its reason.

Four steps, most of them a walk in topological order:
1. inline: an injective value (no reduction) may be computed by its readers instead of stored;
2. place: each stored value becomes one or more definitions, in a kernel of their own or joined to a
   producer's kernel (epilogues, rows) when legality.py allows and it saves a pass over memory;
3. shorten lives: what would wait for late readers, and is cheap, is computed again (again.py), and if they see only
   a part of it, the part is copied (parts.py);
4. horizontal: small independent elementwise kernels (optimiser updates) become one.

Invariant: kernels form a DAG; a value is defined in exactly one kernel; nothing is recomputed but what
steps 1 and 3 say.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.compiler.fusion.again import compute_again
from ingot.compiler.fusion.blocks import join_blocks
from ingot.compiler.fusion.cost import FusionLimits, estimate, weight
from ingot.compiler.fusion.groups import Group, Groups
from ingot.compiler.fusion.legality import (
    aligned_depth,
    depth_of,
    extract_reductions,
    finds_places,
    has_reduce,
    reduces_rows,
    stays_in_place,
)
from ingot.compiler.fusion.order import order
from ingot.compiler.fusion.parts import copy_parts
from ingot.compiler.fusion.plan import Decision, FusionPlan, KernelStep, LoopStep, RegionStep, Step, ViewStep
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Input, Value, users_of
from ingot.compiler.ir.scalar import Buffer, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import BufferReader, Definition, InlineReader, Kernel, Reader, axes
from ingot.compiler.ir.types import TupleType
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.elementwise import Cast
from ingot.compiler.ops.movement import Concat, Pad
from ingot.compiler.ops.reduction import Sum
from ingot.compiler.ops.structure import Get, Reshape, Transpose, reshape_index

SEVERAL = 8  # neighbours that make a vector


def partition(graph: Graph, limits: FusionLimits | None = None, fuse: bool = True) -> FusionPlan:
    return _Partition(graph, limits or FusionLimits(), fuse).run()


class _Partition:
    def __init__(self, graph: Graph, limits: FusionLimits, fuse: bool) -> None:
        self.graph = graph
        self.limits = limits
        self.fuse = fuse
        self.users = users_of(graph)
        self.outputs = set(graph.outputs)
        self.inlined: set[Value] = set()
        self.expression_weight: dict[Value, int] = {}
        self.expression_depth: dict[Value, int] = {}  # of all that are lowered, stored ones too
        self.kernel_depth: dict[Buffer, int] = {}  # the same, with what is read of the same kernel
        self.choosing: set[Value] = set()  # expressions that find out where each element comes from
        self.expression_loads: dict[Value, frozenset[Value]] = {}
        self.is_reduction: dict[Value, bool] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.views: dict[Buffer, ViewStep] = {}
        self.groups = Groups()
        self.decisions: list[Decision] = []
        self._readers: dict[Value, Reader] = {}
        self._views: dict[Value, Buffer] = {}

    def run(self) -> FusionPlan:
        for n, value in enumerate(self.graph.inputs):
            op = value.op
            assert isinstance(op, Input)
            self.buffers[value] = Buffer(op.name or f"input{n}", value.tensor.dtype, value.shape)
        body = self.graph.body
        for value in body:
            self._decide_inline(value)
        for value in body:
            if value not in self.inlined and not isinstance(value.op, Get):
                self._place(value)
        outputs = self._output_buffers()
        if self.fuse:
            self._shorten_lives(outputs)
            self._merge_independent()
        self._read_states_before_updates(outputs)
        given = {*outputs, *(self.buffers[v] for v in self.graph.inputs)}
        steps = tuple(self._finish(g, set(outputs)) for g in order(self.groups, self._root, given))
        return FusionPlan(steps, tuple(self.views.values()), self.buffers, outputs, tuple(self.decisions))

    # --- step 1: what is computed where it is read ----------------------------------------------

    def _decide_inline(self, value: Value) -> None:
        op = value.op
        assert isinstance(op, Op)
        if isinstance(op, Get) or type(op).way_down() != "lower":
            return
        lowered = self._lowered_from_memory(value)
        self.is_reduction[value] = has_reduce(lowered)
        below = (self.expression_depth[arg] for arg in value.args if arg in self.inlined)
        depth = max(depth_of(lowered), self.limits.place_depth if finds_places(lowered) else 1)
        self.expression_depth[value] = depth + max(below, default=0)
        total = weight(value)
        loads: set[Value] = set()
        for arg in value.args:
            total += self.expression_weight.get(arg, 0) if arg in self.inlined else 0
            loads |= self.expression_loads[arg] if arg in self.inlined else {arg}
        finds = isinstance(op, Concat) or (isinstance(op, Pad) and op.mode != "constant")
        if finds or any(arg in self.choosing and arg in self.inlined for arg in value.args):
            self.choosing.add(value)
        reason = self._why_stored(value, total, loads)
        if reason is None:
            self.inlined.add(value)
            self.expression_weight[value] = total
            self.expression_loads[value] = frozenset(loads)
            self.decisions.append(Decision(value, "inlined", "computed by its readers"))
        else:
            self.decisions.append(Decision(value, "stored", reason))

    def _lowered_from_memory(self, value: Value) -> Scalar:
        op = value.op
        assert isinstance(op, Op)
        reads = [BufferReader(Buffer("x", a.tensor.dtype, a.shape)) for a in value.args]
        return op.lower(value.tensor, axes(value.shape), *reads)

    def _why_stored(self, value: Value, total: int, loaded: set[Value]) -> str | None:
        """The reason to give a value memory, or None when its readers compute it."""
        loads = len(loaded)
        if value in self.outputs:
            return "it is an output"
        if self.is_reduction[value]:
            return "a reduction is computed once"
        users = self._users(value)
        if not self.fuse and not (value.op.movement and not value.args):  # type: ignore[attr-defined]
            return "fusion is off"
        constant = not loads and not value.shape  # the same in every iteration: computed once a kernel
        of_indices = 0 if loads else self.limits.index_weight  # nothing to read: a triangle, a table of positions
        for user in users:
            op = user.op
            assert isinstance(op, Op)
            if isinstance(op, Get) or type(op).way_down() != "lower":
                return f"{op.name} reads it from memory"
            if isinstance(op, Reshape) and total + loads and not _plain_reshape(user) and value.args:
                return "a reshape of it is a view of memory"
            if op.rereads and (total > 0 or value in self.choosing) and not constant:
                return f"{op.name} reads its elements more than once"
            if op.slides and _moves_last_axis(value):
                return f"windows of {op.name} slide over contiguous elements"
            stretched = estimate(user.tensor.size) > 2 * estimate(value.tensor.size)
            if total > of_indices and stretched and not op.rereads and not constant:
                return f"{op.name} stretches it: computing it once is cheaper"
        # A bias or a table of positions is no stream. Not by its size: what is fused, and so how sums are rounded, would
        # depend on the batch.
        streams = sum(other.tensor.rank >= value.tensor.rank and not _is_parameter(other) for other in loaded)
        again = self.limits.duplicate_weight if streams > 1 else self.limits.repeat_weight
        if len(users) > 1 and total > again and not constant:
            return f"it has {len(users)} readers and costs {total} per element"
        if total > self.limits.inline_weight:
            return f"the expression would cost {total} per element"
        if loads > self.limits.inline_loads:
            return f"the expression would read {loads} tensors"
        if self.expression_depth[value] > self.limits.inline_depth:
            return f"the expression would be {self.expression_depth[value]} operations deep"
        return None

    def _users(self, value: Value) -> list[Value]:
        """Who reads the elements of a value: readers of a reshape that costs nothing read what was reshaped, so
        that its maker is stored, where it can join other loops, and not the reshape. Likewise products read narrow
        integers, and not what they are widened to."""
        found: dict[Value, None] = {}
        for user in self.users[value]:
            free = (isinstance(user.op, Reshape) and _plain_reshape(user)) or self._widens_for_products(user)
            found |= dict.fromkeys(self._users(user) if free and self.fuse and user not in self.outputs else (user,))
        return list(found)

    def _widens_for_products(self, value: Value) -> bool:
        if not isinstance(value.op, Cast):
            return False
        given, made = value.args[0].tensor.dtype, value.tensor.dtype
        if not (given.is_integer and made.is_integer and given.bits < made.bits):
            return False
        users = self._moved_to(value)
        products = [op for op in users if isinstance(op, Op) and op.rereads]
        return bool(products) and all(isinstance(op, Sum) or op in products for op in users)

    def _moved_to(self, value: Value) -> list[object]:
        """The ops that read a value, or what only arranges its elements."""
        found: list[object] = []
        for user in self.users[value]:
            moves = isinstance(user.op, Op) and user.op.movement and user not in self.outputs
            found += self._moved_to(user) if moves else [user.op]
        return found

    # --- readers ---------------------------------------------------------------------------------

    def reader(self, value: Value) -> Reader:
        known = self._readers.get(value)
        if known is None:
            known = self._readers[value] = self._make_reader(value)
        return known

    def _make_reader(self, value: Value) -> Reader:
        if value not in self.inlined:
            return BufferReader(self.buffers[value])
        op = value.op
        assert isinstance(op, Op)
        if isinstance(op, Reshape) and not _plain_reshape(value):
            return BufferReader(self._view(value))
        reads = [self.reader(a) for a in value.args]
        cache: dict[tuple[Dim, ...], Scalar] = {}

        def compute(*index: Dim) -> Scalar:
            if index not in cache:
                cache[index] = op.lower(value.tensor, index, *reads)
            return cache[index]

        return InlineReader(value.tensor, compute)

    def _view(self, value: Value) -> Buffer:
        """A buffer of the reshaped type over the memory of the argument."""
        if value in self._views:
            return self._views[value]
        source = value.args[0]
        while source in self.inlined and isinstance(source.op, Reshape):
            source = source.args[0]
        base = self._stored(source)
        buffer = Buffer(f"{base.name}.view{len(self.views)}", value.tensor.dtype, value.shape)
        root = self.views[base].base if base in self.views else base
        self.views[buffer] = ViewStep(buffer, root)
        self._views[value] = buffer
        self.decisions.append(Decision(value, "view", f"another shape for the memory of {root.name}"))
        return buffer

    def _stored(self, value: Value) -> Buffer:
        """The buffer of a value; an inlined one is given memory now."""
        if value in self.inlined:
            self.inlined.discard(value)
            self._readers.pop(value, None)
            self._place(value)
        return self.buffers[value]

    # --- step 2: kernels --------------------------------------------------------------------------

    def _place(self, value: Value) -> None:
        op = value.op
        assert isinstance(op, Op)
        way = type(op).way_down()
        if way in ("loops", "regions"):
            self._place_alone(value, way)
            return
        if isinstance(op, Reshape):
            source = value.args[0]
            while source in self.inlined and isinstance(source.op, Reshape):
                source = source.args[0]
            alone = source not in self.outputs and not isinstance(source.op, Input) and self.fuse
            if source not in self.inlined and (value not in self.outputs or alone):
                self.inlined.add(value)
                return
        variables = axes(value.shape)
        buffer = Buffer(self._name(value), value.tensor.dtype, value.shape)
        self.buffers[value] = buffer
        reads = [self.reader(a) for a in value.args]
        definition = Definition(buffer, variables, op.lower(value.tensor, variables, *reads))
        definitions = extract_reductions(definition, buffer.name)
        group = self._choose_group(value, definitions)
        self._add(group, definitions, value)

    def _place_alone(self, value: Value, way: str) -> None:
        op = value.op
        assert isinstance(op, Op)
        inputs = tuple(self._reader_buffer(a) for a in value.args)
        name = self._name(value)
        if isinstance(value.type, TupleType):
            outputs = tuple(Buffer(f"{name}.{n}", t.dtype, t.shape) for n, t in enumerate(value.type.elements))
            for user in self.users[value]:
                if isinstance(user.op, Get):
                    self.buffers[user] = outputs[user.op.index]
        else:
            outputs = (Buffer(name, value.tensor.dtype, value.shape),)
            self.buffers[value] = outputs[0]
        kind = LoopStep if way == "loops" else RegionStep
        group = self.groups.new((), "alone")
        group.step = kind(name, value, inputs, outputs)
        group.values.append(value)
        group.reads = {self._root(b) for b in inputs}
        for buffer in outputs:
            self.groups.of[buffer] = group
        self.groups.depend(group, group.reads)
        self.decisions.append(Decision(value, "separate", f"{op.name} has its own loops", name))

    def _reader_buffer(self, value: Value) -> Buffer:
        reader = self.reader(value)
        if isinstance(reader, BufferReader):
            return reader.buffer
        return self._view(value) if isinstance(value.op, Reshape) else self._stored(value)

    def _root(self, buffer: Buffer) -> Buffer:
        return self.views[buffer].base if buffer in self.views else buffer

    def _name(self, value: Value) -> str:
        return f"{value.op.name}{len(self.buffers)}"  # type: ignore[attr-defined]

    def _choose_group(self, value: Value, definitions: Sequence[Definition]) -> Group:
        reductions = [d for d in definitions if isinstance(d.value, Reduce)]
        contraction = bool(reductions) and value.op.rereads  # type: ignore[attr-defined]
        kind = "contraction" if contraction else "reduction" if reductions else "elementwise"
        if self.fuse and not contraction:
            joined = self._join(value, definitions, kind)
            if joined is not None:
                return joined
        return self.groups.new(value.shape, kind)

    def _join(self, value: Value, definitions: Sequence[Definition], kind: str) -> Group | None:
        """The producer's kernel that saves the most memory traffic, if any is legal."""
        read = dict.fromkeys(b for d in definitions for b in _buffers_read(d))
        candidates: dict[Group, int] = {}
        for buffer in read:
            group = self.groups.of.get(buffer)
            if group is not None and group.kind != "alone":
                candidates[group] = candidates.get(group, 0) + estimate(buffer.type.bytes)
        for group in sorted(candidates, key=lambda g: (-candidates[g], -g.number)):
            reason = self._why_too_deep(value, definitions, group) or self._why_not_join(group, definitions, kind, read)
            if reason is None:
                self._apply_join(group, definitions, kind)
                self._merge_producers(value, group, definitions, [g for g in candidates if g is not group])
                text = f"shares the loops of {', '.join(v.op.name for v in group.values)}"  # type: ignore[attr-defined]
                self.decisions.append(Decision(value, "joined", text, f"kernel {group.number}"))
                return group
            self.decisions.append(Decision(value, "separate", reason, f"from kernel {group.number}"))
        return None

    def _merge_producers(
        self, value: Value, group: Group, definitions: Sequence[Definition], others: Sequence[Group]
    ) -> None:
        """Kernels that the new member of a group reads too become part of it, when they have the same rows: what
        they hand on needs no memory then."""
        for other in others:
            if self._may_be_one(group, other, definitions) and not self._why_too_deep(value, definitions, group, other):
                names = ", ".join(v.op.name for v in other.values)  # type: ignore[attr-defined]
                self.groups.absorb(group, other)
                if any(len(d.variables) != len(group.outer) or has_reduce(d.value) for d in group.definitions):
                    group.kind = "rows"
                text = f"reads both: {names} share the loops too"
                self.decisions.append(Decision(value, "joined", text, f"kernel {group.number}"))

    def _may_be_one(self, group: Group, other: Group, definitions: Sequence[Definition]) -> bool:
        """Whether two kernels that `definitions` read are as good as one, before the definitions join it."""
        members = [*group.definitions, *other.definitions]
        everything = [*members, *definitions]
        depth = len(group.outer)
        if not {group.kind, other.kind} <= {"elementwise", "reduction", "rows"}:
            return False
        if len(everything) > self.limits.kernel_definitions or other.outer[:depth] != group.outer:
            return False
        if not depth and any(d.variables for d in everything):
            return False
        inside = [d.buffer for d in everything]
        if any(aligned_depth(d, inside) < depth or not reduces_rows(d, depth) for d in everything):
            return False
        read = [b for d in everything for b in _buffers_read(d)]
        if any(b in self.views and self._root(b) in inside for b in read):
            return False
        makers = {self.groups.of.get(self._root(b)) for b in read} - {None, group, other}
        if any({group, other} & self.groups.before[maker] for maker in makers if maker is not None):
            return False
        return not self.groups.between(group, other) and self._rows_are_parallel(group, everything, depth, "rows")

    def _why_not_join(
        self, group: Group, definitions: Sequence[Definition], kind: str, read: dict[Buffer, None]
    ) -> str | None:
        if len(group.definitions) + len(definitions) > self.limits.kernel_definitions:
            return "the kernel has enough definitions"
        depth = self._shared_depth(group, definitions)
        if depth is None:
            return "it reads elements of other iterations"
        if group.kind == "contraction" and (kind != "elementwise" or depth != len(group.outer) or _is_wider(definitions, depth)):
            return "only an elementwise epilogue of the same shape joins a contraction"
        if depth < len(group.outer) and group.kind != "elementwise":
            return "it shares too few loops"
        if depth == 0 and (group.outer or any(d.variables for d in definitions)):
            return "they share no loop"
        if depth < len(group.outer) and not all(stays_in_place(d, group.buffers) for d in definitions):
            return "it reads the row at other places than it writes"
        if kind == "reduction" and not all(reduces_rows(d, depth) for d in (*group.definitions, *definitions)):
            return "it reduces across the rows of the kernel"
        if not self._rows_are_parallel(group, definitions, depth, kind):
            return "sharing would leave long rows to one thread"
        for buffer in read:
            other = self.groups.of.get(self._root(buffer))
            if other is None or other is group:
                continue
            if group in self.groups.before[other]:
                return f"it also needs kernel {other.number}, which runs later"
            if group.kind == "contraction" and other.number > group.number and self._shrinks(group):
                return f"with it the operands of the product would wait for kernel {other.number}"
        return None

    def _why_too_deep(self, value: Value, definitions: Sequence[Definition], *groups: Group) -> str | None:
        depth = self._depth_in(value, definitions, *groups)
        return f"the kernel would be {depth} operations deep" if depth > self.limits.kernel_depth else None

    def _depth_in(self, value: Value, definitions: Sequence[Definition], *groups: Group) -> int:
        """Operations one inside of another up to a value, when it is computed in the kernel of these groups."""
        read = dict.fromkeys(b for d in definitions for b in _buffers_read(d))
        inside = (self.kernel_depth[b] for b in read if self.groups.of.get(b) in groups)
        return self.expression_depth.get(value, 1) + max(inside, default=0)

    def _shrinks(self, group: Group) -> bool:
        """Whether a product is smaller than what it is made of, as the gradient of a weight is."""
        made = sum(estimate(b.type.bytes) for b in group.buffers)
        return made < sum(estimate(b.type.bytes) for b in group.reads if b in self.groups.of)

    def _shared_depth(self, group: Group, definitions: Sequence[Definition]) -> int | None:
        depth = len(group.outer)
        for definition in definitions:
            inside = [*group.buffers, *(d.buffer for d in definitions)]
            through_view = any(
                b in self.views and self.groups.of.get(self._root(b)) is group for b in _buffers_read(definition)
            )
            if through_view:
                return None
            depth = min(depth, aligned_depth(definition, inside))
            shape = definition.buffer.shape
            while depth > 0 and shape[:depth] != group.outer[:depth]:
                depth -= 1
        if depth < len(group.outer):
            # members keep their own loads aligned at every shallower depth
            members = [aligned_depth(d, group.buffers) for d in group.definitions]
            depth = min([depth, *members]) if members else depth
        return depth

    def _rows_are_parallel(self, group: Group, definitions: Sequence[Definition], depth: int, kind: str) -> bool:
        full = all(len(d.variables) == depth for d in (*group.definitions, *definitions)) and kind == "elementwise"
        if full and depth == len(group.outer):
            return True
        outer = estimate(symbolic.product(group.outer[:depth]))
        row = max(_row_elements(d, depth) for d in (*group.definitions, *definitions))
        return outer >= 8 or row <= self.limits.serial_row_elements

    def _apply_join(self, group: Group, definitions: Sequence[Definition], kind: str) -> None:
        depth = self._shared_depth(group, definitions)
        assert depth is not None
        full = all(len(d.variables) == depth for d in definitions)
        reduces = any(isinstance(d.value, Reduce) for d in definitions)
        if group.kind != "contraction" and (not full or depth < len(group.outer) or reduces):
            group.kind = "rows"
        group.outer = group.outer[:depth]

    def _add(self, group: Group, definitions: Sequence[Definition], value: Value) -> None:
        depth = self._depth_in(value, definitions, group)
        self.kernel_depth.update((d.buffer, depth) for d in definitions)
        reads = {self._root(b) for d in definitions for b in _buffers_read(d)}
        self.groups.add(group, definitions, value, reads)

    # --- step 3 -----------------------------------------------------------------------------------

    def _shorten_lives(self, outputs: Sequence[Buffer]) -> None:
        viewed = [b for view in self.views.values() for b in (view.buffer, view.base)]
        for again in compute_again(self.groups, self._root, viewed, outputs, self.limits):
            value = next((v for v in again.group.values if self.buffers.get(v) is again.buffer), again.group.values[-1])
            self.decisions.append(Decision(value, "again", again.reason, f"kernel {again.group.number}"))
        for part in copy_parts(self.groups, self._root, viewed, outputs):
            self.decisions.append(Decision(part.group.values[-1], "part", part.reason, f"kernel {part.group.number}"))
        for joined in join_blocks(self.groups, self._root, viewed, outputs, self.limits):
            text = f"with {len(joined.makers)} products before and {len(joined.users)} after, for a block of rows at a time"
            self.decisions.append(Decision(joined.group.values[-1], "joined", text, f"kernel {joined.group.number}"))

    # --- step 4 -----------------------------------------------------------------------------------

    def _merge_independent(self) -> None:
        """Elementwise kernels that neither read each other nor depend on each other become one kernel, when
        they only finish values (states): one call, and one loop nest after another over their memory."""
        finals = [g for g in self.groups.all if g.kind == "elementwise" and self._is_small(g) and self._only_outputs(g)]
        target: Group | None = None
        for group in finals:
            if target is None or not self._may_merge(target, group):
                target = group
                continue
            self.groups.absorb(target, group)
            target.kind, target.outer = "elementwise", ()
            self.decisions.append(
                Decision(
                    group.values[-1],
                    "joined",
                    "an independent update, done in one pass with the others",
                    f"kernel {target.number}",
                )
            )

    def _is_small(self, group: Group) -> bool:
        """Whether a call of its own would take longer than what is done in it. A large update runs by itself, as soon as
        its gradient is there, which then need not wait for others."""
        return sum(estimate(d.buffer.type.bytes) for d in group.definitions) <= self.limits.horizontal_bytes

    def _only_outputs(self, group: Group) -> bool:
        stored = {self.buffers[v] for v in self.graph.outputs if v in self.buffers}
        readers = [g for g in self.groups.all if g is not group and g.reads & set(group.buffers)]
        return not readers and any(d.buffer in stored for d in group.definitions)

    def _may_merge(self, target: Group, group: Group) -> bool:
        count = len(target.definitions) + len(group.definitions)
        if count > self.limits.horizontal_definitions:
            return False
        return target not in self.groups.before[group] and group not in self.groups.before[target]

    # --- results ----------------------------------------------------------------------------------

    def _output_buffers(self) -> tuple[Buffer, ...]:
        """One distinct stored buffer per output; inputs, views and repeated outputs are copied."""
        result: list[Buffer] = []
        for value in self.graph.outputs:
            buffer = self.buffers.get(value) or self._storage_as_output(value)
            if buffer is None or isinstance(value.op, Input) or buffer in result:
                buffer = self._copy(value)
            result.append(buffer)
        return tuple(result)

    def _storage_as_output(self, value: Value) -> Buffer | None:
        """A reshape of a value that nobody else wants: its kernel writes into the output, under its own shape."""
        source = value
        while isinstance(source.op, Reshape):
            source = source.args[0]
        base = self.buffers.get(source)
        taken = source in self.outputs or isinstance(source.op, Input) or base is None or base in self.views
        if taken or source is value or self.groups.of.get(base) is None:  # type: ignore[arg-type]
            return None
        assert base is not None
        output = Buffer(f"{base.name}.output", value.tensor.dtype, value.shape)
        self.views[base] = ViewStep(base, output)
        for buffer, view in list(self.views.items()):
            if view.base is base:
                self.views[buffer] = ViewStep(buffer, output)
        self.groups.of[output] = self.groups.of[base]
        self.decisions.append(Decision(value, "view", f"{base.name} is written in place of the output"))
        return output

    def _copy(self, value: Value) -> Buffer:
        variables = axes(value.shape)
        buffer = Buffer(f"copy{len(self.groups.all)}", value.tensor.dtype, value.shape)
        definition = Definition(buffer, variables, self.reader(value)(*variables))
        self._add(self.groups.new(value.shape, "elementwise"), (definition,), value)
        return buffer

    def _read_states_before_updates(self, outputs: Sequence[Buffer]) -> None:
        """An updated state is written in place: whoever reads its old value runs first, where that is possible
        (where it is not, the memory plan keeps a copy)."""
        states = {v.op.name: self.buffers[v] for v in self.graph.inputs if isinstance(v.op, Input)}
        for name, output in self.graph.updates.items():
            writer = self.groups.of[outputs[output]]
            for reader in self.groups.all:
                if reader is writer or states[name] not in reader.reads or writer in self.groups.before[reader]:
                    continue
                self.groups.precede(reader, writer)

    def _finish(self, group: Group, outputs: set[Buffer]) -> Step:
        if group.step is not None:
            return group.step
        inside = set(group.buffers)
        read_elsewhere = {b for g in self.groups.all if g is not group for b in g.reads}
        stored = [b for b in group.buffers if self._root(b) in outputs or b in read_elsewhere]
        inputs = dict.fromkeys(b for d in group.definitions for b in _buffers_read(d) if b not in inside)
        name = "_".join(dict.fromkeys([group.label, *(v.op.name for v in group.values)])).strip("_")[:64]  # type: ignore[attr-defined]
        kernel = Kernel(f"{name}_{group.number}", tuple(inputs), tuple(stored), tuple(group.definitions))
        return KernelStep(kernel, tuple(group.values))


def _is_parameter(value: Value) -> bool:
    return isinstance(value.op, Input) and value.op.role != "argument"


def _moves_last_axis(value: Value) -> bool:
    """Whether neighbours along the last axis are no neighbours in memory, and many."""
    moved = isinstance(value.op, Transpose) and value.op.perm[-1] != len(value.shape) - 1
    return moved and estimate(value.shape[-1]) >= SEVERAL


def _plain_reshape(value: Value) -> bool:
    """Whether the index map of a reshape has no divisions: dims of 1 come and go, or dims merge."""
    source = value.args[0]
    index = reshape_index(axes(value.shape), value.shape, source.shape)
    return not any(_divides(i) for i in index)


def _divides(dim: Dim) -> bool:
    if isinstance(dim, int):
        return False
    return any(isinstance(a, symbolic.FloorDiv | symbolic.Mod) for monomial, _ in dim.terms for a, _ in monomial)


def _is_wider(definitions: Sequence[Definition], depth: int) -> bool:
    """Whether there are several elements for an index of the loops that are shared."""
    return any(extent != 1 for d in definitions for extent in d.buffer.shape[depth:])


def _buffers_read(definition: Definition) -> list[Buffer]:
    return list(dict.fromkeys(load.buffer for load in definition.loads))


def _row_elements(definition: Definition, depth: int) -> int:
    inner = estimate(symbolic.product(definition.buffer.shape[depth:]))
    if isinstance(definition.value, Reduce):
        inner *= estimate(symbolic.product(definition.value.extents))
    return inner
