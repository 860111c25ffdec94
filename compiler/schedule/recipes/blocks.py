"""Blocks: products whose results are much larger than their operands, what is done with their rows, and the products
that use them up, for a block of rows at a time (attention, forward and backward).

    for some rows t:  s[t, j] = sum(d: q[t, d] * k[j, d]);  p[t, j] = softmax over j;  y[t, e] = sum(j: p[t, j] * v[j, e])

What parts hand on to each other is there for one block only, in scratch memory that stays in the second cache; there is
a place for each worker, so that memory grows with the length of a row and not with the number of rows.

A product may also sum over the rows themselves (dk[j, d] = sum(t: ds[t, j] * q[t, d])): each block adds its part to the
result, one block after another in the same worker.

Every part is scheduled by the recipe that it would have by itself, so this is an order of the same computations.

Invariant: how many rows a block has follows from sizes and the target, never from the number of threads or from axes
outside of the rows: neither do bits.
Non-goal: deciding what is worth it; fusion does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Statement, View
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim, Variable
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.schedule import build, partition, scalars
from ingot.compiler.schedule.primitives import ScheduleError, simplify
from ingot.compiler.schedule.recipes import contraction, elementwise, reduction, rows
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.schedule.rowform import common_depth
from ingot.compiler.schedule.statements import CannotPlace, Place, copy
from ingot.compiler.target import Target

MOST_ROWS = 192  # of a block: packing the other operands of its products is a small part of the time then
FEWEST_TILES = 4  # of rows in a block, however much memory these take
CACHES = 2  # times the second cache is what a block may take: packing more often costs more than a more distant cache
LINE_BYTES = 64  # of a cache line: workers write to lines of their own
WORKERS = 8  # places for blocks that are computed at the same time, at least

RECIPES: tuple[Callable[[Kernel, Target, ScheduleOptions], Scheduled | None], ...] = (
    elementwise.recipe,
    contraction.recipe,
    reduction.recipe,
    rows.recipe,
)


@dataclass(frozen=True)
class BlockDecision:
    most_rows: int  # of a block
    fewest_rows: int
    cache_bytes: int  # what a block should not exceed
    workers: int


@dataclass(frozen=True)
class Part:
    """Definitions that one recipe takes together. `sums` are the row axes that its product sums over."""

    definitions: tuple[Definition, ...]
    sums: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Blocks:
    """A kernel seen as parts that share row axes: their extents, the one that is cut into blocks, and for each buffer
    that the kernel makes which of its dims is which row axis."""

    parts: tuple[Part, ...]
    extents: tuple[Dim, ...]
    cut: int
    axes: Mapping[Buffer, tuple[int | None, ...]]

    @property
    def sums(self) -> frozenset[int]:
        return frozenset().union(*(part.sums for part in self.parts))


def recipe(kernel: Kernel, target: Target, options: ScheduleOptions) -> Scheduled | None:
    found = recognise(kernel)
    if found is None:
        return None
    tile = contraction.register_tile(symbolic.Variable("rows", 1, None), symbolic.Variable("n", 1, None), 1, target)[0]
    decision = BlockDecision(
        most_rows=MOST_ROWS // tile * tile,
        fewest_rows=FEWEST_TILES * tile,
        cache_bytes=CACHES * target.l2_bytes,
        workers=-(-WORKERS // target.cores) * target.cores if options.parallel and not _is_small(found) else 1,
    )
    decision = replace(decision, **options.decisions)
    try:
        return _Emitter(kernel, found, decision, target).scheduled()
    except CannotPlace as error:
        raise ScheduleError(str(error)) from None


def _is_small(found: Blocks) -> bool:
    """Whether all products together take less time than threads need to begin."""
    products = [part.definitions[0] for part in found.parts if is_product(part.definitions[0])]
    sizes = ((*d.buffer.shape, *d.value.extents) for d in products if isinstance(d.value, Reduce))
    return symbolic.less(sum(map(symbolic.product, sizes), start=0), partition.SERIAL_FLOPS) is True


# --- recognition --------------------------------------------------------------------------------------------------


def is_product(definition: Definition) -> bool:
    """A sum of products of two operands, each of which has an axis that the other has not."""
    value = definition.value
    if not isinstance(value, Reduce) or value.combiner != "sum":
        return False
    body = build.wide_body(value)
    if not isinstance(body, ir.Apply) or body.function.name != "mul":
        return False
    kept = [v for v in definition.variables if not isinstance(v, int)]
    sides = [{v for v in kept if scalars.depends_on(factor, v)} for factor in body.args]
    return bool(sides[0] - sides[1]) and bool(sides[1] - sides[0])


def divide(definitions: Sequence[Definition]) -> list[list[Definition]]:
    """Parts: a product with what follows it element by element, or anything else without a product."""
    parts: list[list[Definition]] = []
    for definition in definitions:
        last = parts[-1] if parts else None
        joins = last is not None and not is_product(definition) and (not is_product(last[0]) or _follows(definition, last))
        if last is not None and joins:
            last.append(definition)
        else:
            parts.append([definition])
    return parts


def _follows(definition: Definition, part: Sequence[Definition]) -> bool:
    made = {d.buffer for d in part}
    own = [load for load in scalars.loads(definition.value) if load.buffer in made]
    plain = not scalars.has_reduction(definition.value) and definition.buffer.shape == part[0].buffer.shape
    return plain and bool(own) and all(load.index == definition.variables for load in own)


def recognise(kernel: Kernel) -> Blocks | None:
    """The kernel as blocks, or None when it is something else. The part that is not a product says what rows are."""
    parts = divide(kernel.definitions)
    middle = [part for part in parts if not is_product(part[0])]
    if not middle or len(parts) - len(middle) < 2:
        return None
    made = tuple(d.buffer for d in middle[0])
    depth = common_depth(Kernel(kernel.name, (), made, tuple(middle[0])))
    if depth is None:
        return None
    extents = middle[0][0].buffer.shape[:depth]
    long = [axis for axis, extent in enumerate(extents) if extent != 1]
    if not long:
        return None
    axes = _row_axes(kernel, middle[0], depth)
    if axes is None:
        return None
    found = []
    for part in parts:
        sums = _sums(kernel, part, axes)
        if sums is None:
            return None
        found.append(Part(tuple(part), sums))
    blocks = Blocks(tuple(found), extents, long[-1], axes)
    return blocks if _is_whole(kernel, blocks, long) else None


def _row_axes(
    kernel: Kernel, middle: Sequence[Definition], depth: int
) -> dict[Buffer, tuple[int | None, ...]] | None:
    """Which dims of which buffer are row axes: known of the middle part, then of what it reads and what reads it."""
    axes = {
        d.buffer: tuple(n if n < depth and v != 0 else None for n, v in enumerate(d.variables)) for d in middle
    }
    inside = {d.buffer for d in kernel.definitions}
    for _ in kernel.definitions:
        known = len(axes)
        for definition in kernel.definitions:
            variables = _variables(definition, axes)
            for load in scalars.loads(definition.value):
                if load.buffer in inside and load.buffer not in axes and variables:
                    axes[load.buffer] = tuple(variables.get(i) if not isinstance(i, int) else None for i in load.index)
            if definition.buffer not in axes and variables:
                axes[definition.buffer] = tuple(
                    variables.get(v) if not isinstance(v, int) else None for v in definition.variables
                )
        if len(axes) == known:
            break
    return axes if inside <= axes.keys() else None


def _variables(definition: Definition, axes: Mapping[Buffer, tuple[int | None, ...]]) -> dict[Dim, int]:
    """The row axes that variables of a definition run along, as far as is known."""
    found: dict[Dim, int] = {}
    places = [(definition.buffer, definition.variables), *((load.buffer, load.index) for load in scalars.loads(definition.value))]
    for buffer, index in places:
        for axis, entry in zip(axes.get(buffer, ()), index, strict=False):
            if axis is not None and isinstance(entry, Variable):
                found.setdefault(entry, axis)
    return found


def _sums(
    kernel: Kernel, part: Sequence[Definition], axes: Mapping[Buffer, tuple[int | None, ...]]
) -> frozenset[int] | None:
    """The row axes that a part sums over; None when it reads what the kernel makes in other places than its own rows."""
    inside = {d.buffer for d in kernel.definitions}
    result: frozenset[int] = frozenset()
    for definition in part:
        variables = _variables(definition, axes)
        by_axis: dict[int, Dim] = {}
        for variable, axis in variables.items():
            if by_axis.setdefault(axis, variable) is not variable:
                return None
        own = (Load(definition.buffer, definition.variables), *scalars.loads(definition.value))
        for load in own:
            for axis, entry in zip(axes[load.buffer] if load.buffer in inside else (), load.index, strict=False):
                named = not isinstance(entry, int) and any(v in symbolic.atoms(entry) for v in variables)
                if (axis is None and named) or (axis is not None and by_axis.get(axis) is not entry):
                    return None
        if isinstance(definition.value, Reduce):
            result |= {variables[v] for v in definition.value.variables if v in variables}
    return result


def _is_whole(kernel: Kernel, found: Blocks, long: Sequence[int]) -> bool:
    """Whether every part has all row axes, or is a product that sums over the last of them and is read by no other."""
    read = {load.buffer for d in kernel.definitions for load in scalars.loads(d.value)}
    for part in found.parts:
        here = {axis for axis in found.axes[part.definitions[0].buffer] if axis is not None}
        if any({a for a in found.axes[d.buffer] if a is not None} != here for d in part.definitions):
            return False
        if here | part.sums != set(long):
            return False
        alone = len(part.definitions) == 1 and part.definitions[0].buffer not in read
        if part.sums and not (alone and found.cut in part.sums and is_product(part.definitions[0])):
            return False
    return True


# --- loops ------------------------------------------------------------------------------------------------------


class _Emitter:
    def __init__(self, kernel: Kernel, found: Blocks, decision: BlockDecision, target: Target) -> None:
        self.kernel = kernel
        self.found = found
        self.decision = decision
        self.target = target
        self.rows = Variable("rows", 1, decision.most_rows)  # of a block
        self.start = Variable("start", 0, None)  # its first row
        self.before = Variable("before", 0, None)  # blocks that have been added to the sums
        self.fixed = {
            axis: Variable(f"row{axis}", 0, extent - 1)
            for axis, extent in enumerate(found.extents)
            if axis != found.cut and extent != 1
        }
        self.places: dict[Buffer, Buffer] = {}  # buffers of a block that stand for parts of outputs
        self.blocks = {d.buffer: self._block_of(d.buffer) for d in kernel.definitions}
        self.memory: dict[Buffer, Buffer] = {}  # buffer of a block, or scratch of a part -> what it shares memory with

    def _block_of(self, buffer: Buffer) -> Buffer:
        """What a block has of a buffer."""
        axes = self.found.axes[buffer]
        shape = tuple(
            self.rows if axis == self.found.cut else dim
            for axis, dim in zip(axes, buffer.shape, strict=True)
            if axis is None or axis == self.found.cut
        )
        made = Buffer(buffer.name, buffer.dtype, shape, "arena")
        if buffer in self.kernel.outputs:
            self.places[made] = buffer
        return made

    def scheduled(self) -> Scheduled:
        parts = [self._part(number) for number in range(len(self.found.parts))]
        self._share(parts)
        height, roots = self._roots(parts)
        body = simplify(self._loops(parts, height, roots))
        scratch = tuple(roots.values())
        function = loops.Function(self.kernel.name, (*self.kernel.inputs, *self.kernel.outputs, *scratch), body)
        reason = f"blocks of rows; for each of them: {', '.join(part.recipe for part in parts)}"
        return Scheduled(function, "blocks", asdict(self.decision), reason, scratch)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _part(self, number: int) -> Scheduled:
        part = self.found.parts[number]
        others = [d for n, p in enumerate(self.found.parts) if n != number for d in p.definitions]
        read = {load.buffer for d in others for load in scalars.loads(d.value)}
        definitions = [made for d in part.definitions for made in self._inside(d, part)]
        outputs = [d for d in part.definitions if d.buffer in read or d.buffer in self.kernel.outputs]
        stored = tuple(self.blocks[d.buffer] for d in outputs)
        own = {d.buffer for d in definitions}
        inputs = dict.fromkeys(load.buffer for d in definitions for load in scalars.loads(d.value))
        kernel = Kernel(self.kernel.name, tuple(b for b in inputs if b not in own), stored, tuple(definitions))
        for recipe in RECIPES:
            choices = {"pack_left": False} if recipe is contraction.recipe and _is_plain(part.definitions[0]) else {}
            found = recipe(kernel, self.target, ScheduleOptions(parallel=False, decisions=choices))
            if found is not None:
                return found
        raise ScheduleError(f"a part of {self.kernel.name} has no recipe")

    def _inside(self, definition: Definition, part: Part) -> list[Definition]:
        """A definition for the rows of a block. A sum over rows adds those of the block to what was there before."""
        row = Variable("r", 0, self.rows - 1)
        mapping: dict[Dim, Dim] = {}
        for variable, axis in _variables(definition, self.found.axes).items():
            mapping[variable] = self.start + row if axis == self.found.cut else self.fixed[axis]

        def leaf(node: Scalar) -> Scalar | None:
            if not isinstance(node, Load) or node.buffer not in self.blocks:
                return None
            return Load(self.blocks[node.buffer], self._index(node.buffer, node.index))

        rewriter = Rewriter(mapping, leaf)
        buffer = self.blocks[definition.buffer]
        variables = self._index(definition.buffer, rewriter.dims(definition.variables))
        value = definition.value
        if not isinstance(value, Reduce):
            return [Definition(buffer, variables, rewriter.scalar(value))]
        reduced = [
            (row, self.rows) if mapping.get(v) == self.start + row else (v, extent)
            for v, extent in zip(value.variables, value.extents, strict=True)
            if v not in mapping or mapping[v] == self.start + row
        ]
        names, extents = zip(*reduced, strict=True)
        total = Reduce(value.combiner, names, extents, rewriter.scalar(value.body))
        if not part.sums:
            return [Definition(buffer, variables, total)]
        added = Buffer(f"{buffer.name}_block", buffer.dtype, buffer.shape)
        earlier = Buffer(f"{buffer.name}_before", buffer.dtype, buffer.shape, "arena")
        self.places[earlier] = definition.buffer
        first = ir.predicate(self.before, "eq", 0)
        now = Load(added, variables)
        result = ir.select(first, now, ir.apply("add", Load(earlier, variables), now))
        return [Definition(added, variables, total), Definition(buffer, variables, result)]

    def _index(self, buffer: Buffer, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """An index into a buffer of the kernel as one into what a block has of it."""
        axes = self.found.axes[buffer]
        return tuple(
            entry - self.start if axis == self.found.cut else entry
            for axis, entry in zip(axes, index, strict=True)
            if axis is None or axis == self.found.cut
        )

    # --- memory ---------------------------------------------------------------------------------------------------

    def _share(self, parts: Sequence[Scheduled]) -> None:
        """Results of a part stand where one of its operands was, when no later part reads that."""
        inner = {b for b in self.blocks.values() if b not in self.places}
        read = [{load.buffer for d in part.definitions for load in scalars.loads(d.value)} for part in self.found.parts]
        own = {block: buffer for buffer, block in self.blocks.items()}
        for number, part in enumerate(parts):
            taken: set[Buffer] = set()
            for source, result in part.in_place:
                later = any(own[source] in each for each in read[number + 1 :]) if source in inner else True
                if result in inner and not later and result not in self.memory and source not in taken:
                    root = self.memory.get(source, source)
                    if all(self._last_read(own[b], read) <= number for b, r in self.memory.items() if r is root):
                        self.memory[result] = root
                        taken.add(source)

    def _last_read(self, buffer: Buffer, read: Sequence[set[Buffer]]) -> int:
        return max((n for n, each in enumerate(read) if buffer in each), default=-1)

    def _roots(self, parts: Sequence[Scheduled]) -> tuple[Dim, dict[Buffer, Buffer]]:
        """The rows of a block, and the scratch memory of the kernel: a place for each worker."""
        handed = {load.buffer for part in self.found.parts for d in part.definitions for load in scalars.loads(d.value)}
        crossing = [
            block
            for buffer, block in self.blocks.items()
            if block not in self.places and block not in self.memory and buffer in handed and self._is_stored(block, parts)
        ]
        own = [buffer for part in parts for buffer in part.scratch]
        across = sum(
            (symbolic.product(d for d in b.shape if d is not self.rows) * b.dtype.itemsize for b in crossing), start=0
        )
        height = self._height(across)
        workers = self._workers(height)
        roots: dict[Buffer, Buffer] = {}
        for buffer in (*crossing, *own):
            size = symbolic.substitute(symbolic.product(buffer.shape), {self.rows: height})
            line = LINE_BYTES // buffer.dtype.itemsize
            roots[buffer] = Buffer(buffer.name, buffer.dtype, (workers, symbolic.ceildiv(size, line), line), "arena")
        return height, roots

    def _is_stored(self, block: Buffer, parts: Sequence[Scheduled]) -> bool:
        return any(block in part.function.parameters for part in parts)

    def _height(self, across: Dim) -> Dim:
        """Rows of a block, `across` bytes each."""
        decision = self.decision
        extent = self.found.extents[self.found.cut]
        tile = decision.fewest_rows // FEWEST_TILES
        fitting = decision.cache_bytes // symbolic.maximum(1, across) // tile * tile
        height = symbolic.minimum(decision.most_rows, symbolic.maximum(decision.fewest_rows, fitting))
        return symbolic.maximum(1, symbolic.minimum(height, extent))

    def _units(self, height: Dim) -> list[tuple[int, Dim]]:
        """(row axis, steps) that workers take turns at; the others are gone through by each."""
        return [
            (axis, symbolic.ceildiv(extent, height) if axis == self.found.cut else extent)
            for axis, extent in enumerate(self.found.extents)
            if extent != 1 and axis not in self.found.sums
        ]

    def _workers(self, height: Dim) -> Dim:
        return symbolic.minimum(self.decision.workers, symbolic.product(count for _, count in self._units(height)))

    # --- loops ----------------------------------------------------------------------------------------------------

    def _loops(self, parts: Sequence[Scheduled], height: Dim, roots: Mapping[Buffer, Buffer]) -> tuple[Statement, ...]:
        units = self._units(height)
        total, workers = symbolic.product(count for _, count in units), self._workers(height)
        serial = [
            (axis, symbolic.ceildiv(extent, height) if axis == self.found.cut else extent)
            for axis, extent in enumerate(self.found.extents)
            if axis in self.found.sums
        ]

        def worker(number: Dim) -> tuple[Statement, ...]:
            def unit(turn: Dim) -> tuple[Statement, ...]:
                rest, place = number + turn * workers, {}
                for axis, count in reversed(units):
                    place[axis] = rest % count
                    rest = rest // count

                def block(*steps: Dim) -> tuple[Statement, ...]:
                    at = {**place, **{axis: step for (axis, _), step in zip(serial, steps, strict=True)}}
                    before: Dim = 0
                    for (_, count), step in zip(serial, steps, strict=True):
                        before = before * count + step
                    return self._block(parts, number, at, before, height, roots)

                return build.nest([f"s{axis}" for axis, _ in serial], [count for _, count in serial], block)

            return build.loop("turn", symbolic.ceildiv(total - number, workers), unit)

        kind = "parallel" if self.decision.workers > 1 else "serial"
        return build.loop("worker", workers, worker, kind)

    def _block(
        self,
        parts: Sequence[Scheduled],
        worker: Dim,
        at: Mapping[int, Dim],
        before: Dim,
        height: Dim,
        roots: Mapping[Buffer, Buffer],
    ) -> tuple[Statement, ...]:
        start = at[self.found.cut] * height
        count = symbolic.minimum(height, self.found.extents[self.found.cut] - start)
        mapping: dict[Dim, Dim] = {self.rows: count, self.start: start, self.before: before}
        mapping |= {variable: at[axis] for axis, variable in self.fixed.items()}
        places = {made: self._place(buffer, at, start) for made, buffer in self.places.items()}
        result: list[Statement] = []
        here: dict[Buffer, Buffer] = {}
        for buffer, root in roots.items():
            here[buffer] = self._here(buffer, count)
            offset = worker * symbolic.product(root.shape[1:])
            result.append(View(here[buffer], root, offset))
        for buffer, root in self.memory.items():
            here[buffer] = self._here(buffer, count)
            result.append(View(here[buffer], here[root]))
        for part in parts:
            result.extend(copy(part.function.body, mapping, here, places))
        return tuple(result)

    def _here(self, buffer: Buffer, count: Dim) -> Buffer:
        shape = tuple(symbolic.substitute(d, {self.rows: count}) for d in buffer.shape)
        return Buffer(buffer.name, buffer.dtype, shape, buffer.space)

    def _place(self, buffer: Buffer, at: Mapping[int, Dim], start: Dim) -> Place:
        """Where the elements of a block's part of an output are."""
        axes = self.found.axes[buffer]

        def place(index: tuple[Dim, ...]) -> Load:
            entries = iter(index)
            full = [
                next(entries) if axis is None else start + next(entries) if axis == self.found.cut else at[axis]
                for axis in axes
            ]
            return Load(buffer, tuple(full))

        return place


def _is_plain(definition: Definition) -> bool:
    """Whether a product reads its operands as they are in memory."""
    value = definition.value
    if not isinstance(value, Reduce) or not is_product(definition):
        return False
    body = build.wide_body(value)
    assert isinstance(body, ir.Apply)
    return all(isinstance(factor, Load) and factor.dtype == body.dtype for factor in body.args)
