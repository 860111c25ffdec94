"""Fusion plans to one entry function: which kernel runs when, on which memory.

The entry is a level-3 function like any kernel: Alloc (arena offsets), View, Call, and For/If/While around
them for control flow. Each region is assembled by itself; the scratch it needs is a buffer of the step that
holds it. Memory is planned here because only here the order of execution and the kernels' scratch are known.

Invariant: all memory a program uses is its parameters and the arena, whose size is known before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ingot.compiler.fusion.cost import FusionLimits
from ingot.compiler.fusion.epilogues import absorb
from ingot.compiler.fusion.partition import partition
from ingot.compiler.fusion.plan import FusionPlan, KernelStep, LoopStep, RegionStep, Step
from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.graph import Graph, Input, input_of, results_of
from ingot.compiler.ir.loops import Alloc, Call, For, Statement, View
from ingot.compiler.ir.scalar import Buffer, IndexValue, Load, apply
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel, axes
from ingot.compiler.ir.types import row_major_strides
from ingot.compiler.memory.arena import Arena, Request, plan_arena
from ingot.compiler.ops.base import Condition, Op
from ingot.compiler.ops.control import If, Scan, While
from ingot.compiler.own_loops import OwnFunctions, reads_of
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target
from ingot.runtime.abi import Failure

Schedule = Callable[[Kernel, ScheduleOptions], Scheduled]


@dataclass(frozen=True)
class PlacedKernel:
    """A kernel of the program, for the report and the profile."""

    name: str
    recipe: str
    reason: str
    decisions: Mapping[str, object]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    kernel: Kernel | None = None


@dataclass(frozen=True)
class Assembly:
    """`entry.parameters` are arguments, states, constants and outputs, in that order."""

    entry: loops.Function
    arena_bytes: Dim
    kernels: tuple[PlacedKernel, ...]
    plans: tuple[tuple[str, FusionPlan], ...]
    memory_notes: tuple[str, ...]
    arena: Arena


def assemble(
    graph: Graph,
    schedule: Schedule,
    fuse: bool = True,
    conditions: Sequence[Condition] = (),
    target: Target | None = None,
    ready: Callable[[loops.Function], None] | None = None,
    limits: FusionLimits | None = None,
) -> Assembly:
    """The program of a graph. `conditions` on its dims are checked at each call, before anything runs. `schedule`
    makes loops of kernels; `target` is for ops that bring their own. `ready` is told each function of the program as
    soon as it is made."""
    told = ready or (lambda function: None)
    return _Assembler(schedule, fuse, target or Target.host(), told, limits).program(graph, conditions)


def conditions_of(graph: Graph) -> tuple[Condition, ...]:
    """What must hold of the dims and could not be decided: of every op, regions included, and that no extent is
    negative."""
    found: dict[Condition, None] = {}
    for value in graph.body:
        op = value.op
        assert isinstance(op, Op)
        for condition in op.conditions(*(a.type for a in value.args)):
            found[condition] = None
        for tensor in results_of(value.type):
            for dim in tensor.shape:
                found[Condition(0, "le", dim, f"{op.name}: an extent of {tensor!r} is negative")] = None
        for region in op.regions:
            found |= dict.fromkeys(conditions_of(region))
    return tuple(c for c in found if c.decided is not True)


def _check(condition: Condition) -> loops.Fail:
    """Fails with the two sides when the condition does not hold."""
    relation = {"le": "gt", "eq": "ne"}[condition.relation]
    sides = (IndexValue(condition.left), IndexValue(condition.right))
    return loops.Fail(apply(relation, *sides), Failure.SHAPE_MISMATCH, condition.message, sides)


@dataclass
class _Work:
    """A step ready to run: what it reads and writes (storage roots) and how to emit it."""

    reads: set[Buffer]
    writes: list[Buffer]
    scratch: list[tuple[object, Dim]]
    in_place: tuple[tuple[Buffer, Buffer], ...]
    emit: Callable[[Mapping[object, Dim]], list[Statement]]


class _Assembler:
    def __init__(
        self, schedule: Schedule, fuse: bool, target: Target, ready: Callable[[loops.Function], None],
        limits: FusionLimits | None,
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.limits = limits
        self.ready = ready
        self.own_functions = OwnFunctions(target)
        self.fuse = fuse
        self.kernels: list[PlacedKernel] = []
        self.plans: list[tuple[str, FusionPlan]] = []
        self.notes: list[str] = []
        self.names: dict[str, int] = {}
        self.leaving: set[Buffer] = set()  # results of the program that are not states
        self.iteration: Dim | None = None  # of the scan whose body is assembled

    def program(self, graph: Graph, conditions: Sequence[Condition] = ()) -> Assembly:
        plan = self._plan(graph)
        self.plans.append((graph.name, plan))
        roles = ("argument", "state", "constant")
        inputs = [v for role in roles for v in graph.inputs if input_of(v).role == role]
        parameters = [plan.buffers[v] for v in inputs]
        updated = set(graph.updates.values())
        self.leaving = {buffer for number, buffer in enumerate(plan.outputs) if number not in updated}
        work = [self._work(step) for step in plan.steps]
        outputs = list(plan.outputs)
        self._protect_states(graph, plan, work, outputs)
        statements, arena = self._frame(plan, work, {*parameters, *outputs})
        checks = [_check(c) for c in dict.fromkeys((*conditions, *conditions_of(graph)))]
        entry = loops.Function("entry", (*parameters, *outputs), (*checks, *statements))
        return Assembly(entry, arena.total, tuple(self.kernels), tuple(self.plans), tuple(self.notes), arena)

    def _plan(self, graph: Graph) -> FusionPlan:
        plan = partition(graph, self.limits, self.fuse)
        return absorb(plan) if self.fuse else plan

    # --- memory ------------------------------------------------------------------------------------

    def _protect_states(self, graph: Graph, plan: FusionPlan, work: list[_Work], outputs: list[Buffer]) -> None:
        """The slot of an updated state's output is the state's own memory. Where its old value is still read
        when the new one is written, the new one is written aside and copied at the end."""
        states = {v.op.name: plan.buffers[v] for v in graph.inputs if isinstance(v.op, Input)}
        roots = _roots(plan)
        for name, number in graph.updates.items():
            state, output = states[name], outputs[number]
            writer = next(n for n, w in enumerate(work) if output in {roots.get(b, b) for b in w.writes})
            late = any(state in _read_roots(w, roots) for w in work[writer + 1 :])
            here = state in _read_roots(work[writer], roots) and not any(
                a is state and roots.get(b, b) is output for a, b in work[writer].in_place
            )
            if not late and not here:
                continue
            self.notes.append(f"state {name}: written aside and copied, because its old value is still read")
            outputs[number] = Buffer(f"{output.name}.state", output.dtype, output.shape)
            work.append(self._copy([(output, outputs[number])], f"update_{name}"))

    def _frame(
        self, plan: FusionPlan, work: Sequence[_Work], given: set[Buffer], base: Dim = 0
    ) -> tuple[list[Statement], Arena]:
        """Statements that run the work, and the arena they need. `given` buffers have memory already; `base` is
        where this frame's part of the arena starts."""
        roots = _roots(plan)
        first: dict[Buffer, int] = {}
        last: dict[Buffer, int] = {}
        for n, item in enumerate(work):
            for buffer in item.writes:
                first.setdefault(roots.get(buffer, buffer), n)
                last[roots.get(buffer, buffer)] = n
            for buffer in item.reads:
                last[roots.get(buffer, buffer)] = n
        shares = self._share(work, roots, first, last, given)
        requests: list[Request] = []
        for buffer, start in first.items():
            if buffer not in given and buffer not in shares:
                end = max([last[buffer], *(last[b] for b, root in shares.items() if root is buffer)])
                requests.append(Request(buffer, buffer.type.bytes, start, end))
        for n, item in enumerate(work):
            requests += [Request((n, key), size, n, n) for key, size in item.scratch]
        arena = plan_arena(requests)
        statements: list[Statement] = [
            Alloc(r.key, base + arena.offsets[r.key]) for r in requests if isinstance(r.key, Buffer)
        ]
        statements += [View(buffer, root) for buffer, root in shares.items()]
        statements += [View(v.buffer, v.base) for v in plan.views]
        for n, item in enumerate(work):
            offsets = {key: base + arena.offsets[(n, key)] for key, _ in item.scratch}
            statements += item.emit(offsets)
        return statements, arena

    def _share(
        self,
        work: Sequence[_Work],
        roots: Mapping[Buffer, Buffer],
        first: dict[Buffer, int],
        last: dict[Buffer, int],
        given: set[Buffer],
    ) -> dict[Buffer, Buffer]:
        """Outputs written over an input that nobody reads afterwards: buffer -> the storage it shares."""
        shares: dict[Buffer, Buffer] = {}
        taken: set[tuple[Buffer, int]] = set()
        for n, item in enumerate(work):
            for operand, target in item.in_place:
                source = roots.get(operand, operand)
                root = shares.get(source, source)
                fits = (
                    target not in given
                    and target not in shares
                    and first.get(target) == n
                    and root in first
                    and root not in given
                    and last.get(source) == n
                    and all(last[b] <= n for b, r in shares.items() if r is root)
                    and last.get(root, n) <= n
                    and (root, n) not in taken
                    and symbolic.equal(source.type.bytes, target.type.bytes) is True
                )
                if fits:
                    shares[target] = root
                    taken.add((root, n))
                    self.notes.append(f"{target.name} is written over {root.name}, which is not read again")
        return shares

    # --- steps -------------------------------------------------------------------------------------

    def _work(self, step: Step) -> _Work:
        match step:
            case KernelStep(kernel, values):
                ops = tuple(v.op.name for v in values)  # type: ignore[attr-defined]
                sources = tuple(dict.fromkeys(str(v.source) for v in values if v.source))
                return self._kernel(kernel, ops, sources)
            case LoopStep():
                return self._loops(step)
            case RegionStep():
                return self._region(step)

    def _kernel(self, kernel: Kernel, ops: tuple[str, ...], sources: tuple[str, ...] = ()) -> _Work:
        leaving = all(buffer in self.leaving for buffer in kernel.outputs)
        iteration = self.iteration
        scheduled = self.schedule(kernel, ScheduleOptions(leaving=leaving, repeated=iteration is not None))
        function = scheduled.function
        sizes = dict(scheduled.sizes)
        if scheduled.turn is not None:
            assert iteration is not None
            sizes[scheduled.turn] = iteration % 2
        self.ready(function)
        self.kernels.append(
            PlacedKernel(function.name, scheduled.recipe, scheduled.reason, scheduled.decisions, ops, sources, kernel)
        )
        arguments = (*kernel.inputs, *kernel.outputs, *scheduled.scratch)

        def emit(offsets: Mapping[object, Dim]) -> list[Statement]:
            allocated: list[Statement] = [Alloc(b, offsets[b]) for b in scheduled.scratch]
            return [*allocated, Call(function, arguments, tuple(sizes.items()))]

        scratch: list[tuple[object, Dim]] = [(b, b.type.bytes) for b in scheduled.scratch]
        return _Work(set(kernel.inputs), list(kernel.outputs), scratch, scheduled.in_place, emit)

    def _loops(self, step: LoopStep) -> _Work:
        op = step.value.op
        assert isinstance(op, Op)
        own = self.own_functions(step, self._unique(step.name))
        self.ready(own.function)
        values = (step.value, *(step.epilogue.step.values if step.epilogue is not None else ()))
        ops = tuple(v.op.name for v in values)  # type: ignore[attr-defined]
        sources = tuple(dict.fromkeys(str(v.source) for v in values if v.source))
        reason = f"{op.name} has its own loops"
        self.kernels.append(PlacedKernel(own.function.name, "loops", reason, own.decisions, ops, sources))

        def emit(offsets: Mapping[object, Dim]) -> list[Statement]:
            allocated: list[Statement] = [Alloc(b, offsets[b]) for b in own.scratch]
            return [*allocated, Call(own.function, own.arguments)]

        scratch: list[tuple[object, Dim]] = [(b, b.type.bytes) for b in own.scratch]
        return _Work(set(reads_of(step)), list(step.outputs), scratch, (), emit)

    def _copy(self, pairs: Iterable[tuple[Buffer, Buffer]], name: str) -> _Work:
        """One kernel that copies each source to its target."""
        definitions, inputs, outputs = [], {}, []
        for source, target in pairs:
            variables = axes(source.shape)
            inputs[source] = None
            outputs.append(target)
            definitions.append(Definition(target, variables, Load(source, variables)))
        kernel = Kernel(self._unique(f"copy_{name}"), tuple(inputs), tuple(outputs), tuple(definitions))
        return self._kernel(kernel, ("copy",))

    def _unique(self, name: str) -> str:
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"

    # --- regions -----------------------------------------------------------------------------------

    def _region(self, step: RegionStep) -> _Work:
        match step.value.op:
            case If():
                return self._if(step, step.value.op)
            case While():
                return self._while(step, step.value.op)
            case Scan():
                return self._scan(step, step.value.op)
            case op:
                raise NotImplementedError(f"no assembly for regions of {op}")

    def _inner(self, graph: Graph, iteration: Dim | None = None) -> _Inner:
        plan = self._plan(graph)
        self.plans.append((graph.name, plan))
        around, self.iteration = self.iteration, iteration
        work = [self._work(step) for step in plan.steps]
        self.iteration = around
        given = {plan.buffers[v] for v in graph.inputs} | set(plan.outputs)
        _, arena = self._frame(plan, work, given)

        def statements(base: Dim) -> list[Statement]:
            return self._frame(plan, work, given, base)[0]

        return _Inner([plan.buffers[v] for v in graph.inputs], list(plan.outputs), arena.total, statements)

    def _if(self, step: RegionStep, op: If) -> _Work:
        condition, *captured = step.inputs
        branches = [self._inner(g, self.iteration) for g in op.regions]

        def emit(offsets: Mapping[object, Dim]) -> list[Statement]:
            bodies = []
            for branch in branches:
                body: list[Statement] = [View(i, b) for i, b in zip(branch.inputs, captured, strict=True)]
                body += [View(o, b) for o, b in zip(branch.outputs, step.outputs, strict=True)]
                bodies.append((*body, *branch.statements(offsets["region"])))
            return [loops.If(Load(condition, ()), *bodies)]

        size = symbolic.maximum(*(b.size for b in branches))
        return _Work(set(step.inputs), list(step.outputs), [("region", size)], (), emit)

    def _while(self, step: RegionStep, op: While) -> _Work:
        carried, captured = step.inputs[: op.carried], step.inputs[op.carried :]
        test, body = self._inner(op.condition), self._inner(op.body)
        flag = Buffer(self._unique("go"), test.outputs[0].dtype, ())
        start = self._copy(zip(carried, step.outputs, strict=True), "carry")
        fresh = [Buffer(f"{b.name}.next", b.dtype, b.shape) for b in step.outputs]
        advance = self._copy(zip(fresh, step.outputs, strict=True), "carry")

        def emit(offsets: Mapping[object, Dim]) -> list[Statement]:
            state = (*step.outputs, *captured)
            decide: list[Statement] = [View(i, b) for i, b in zip(test.inputs, state, strict=True)]
            decide += [View(test.outputs[0], flag), *test.statements(offsets["test"])]
            repeat: list[Statement] = [View(i, b) for i, b in zip(body.inputs, state, strict=True)]
            repeat += [View(o, b) for o, b in zip(body.outputs, fresh, strict=True)]
            repeat += [*body.statements(offsets["body"]), *advance.emit({})]
            allocated = [Alloc(b, offsets[b]) for b in (flag, *fresh)]
            return [
                *allocated,
                *start.emit({}),
                *_scoped(decide),
                loops.While(Load(flag, ()), (*repeat, *_scoped(decide)), op.limit),
            ]

        scratch: list[tuple[object, Dim]] = [("test", test.size), ("body", body.size)]
        scratch += [(b, b.type.bytes) for b in (flag, *fresh)]
        return _Work(set(step.inputs), list(step.outputs), scratch, (), emit)

    def _scan(self, step: RegionStep, op: Scan) -> _Work:
        c, s = op.carried, op.scanned
        carried, scanned, captured = step.inputs[:c], step.inputs[c : c + s], step.inputs[c + s :]
        final, stacked = step.outputs[:c], step.outputs[c:]
        count = symbolic.Variable("t", 0, op.length - 1)
        body = self._inner(op.body, count)
        fresh = [Buffer(f"{b.name}.next", b.dtype, b.shape) for b in final]
        start = self._copy(zip(carried, final, strict=True), "carry") if c else None
        advance = self._copy(zip(fresh, final, strict=True), "carry") if c else None

        def emit(offsets: Mapping[object, Dim]) -> list[Statement]:
            time = op.length - 1 - count if op.reverse else count
            repeat: list[Statement] = [View(i, b) for i, b in zip(body.inputs[:c], final, strict=True)]
            repeat += [_slice(i, b, time) for i, b in zip(body.inputs[c : c + s], scanned, strict=True)]
            repeat += [View(i, b) for i, b in zip(body.inputs[c + s :], captured, strict=True)]
            repeat += [View(o, b) for o, b in zip(body.outputs[:c], fresh, strict=True)]
            repeat += [_slice(o, b, time) for o, b in zip(body.outputs[c:], stacked, strict=True)]
            repeat += body.statements(offsets["body"])
            repeat += advance.emit({}) if advance else []
            allocated: list[Statement] = [Alloc(b, offsets[b]) for b in fresh]
            before = start.emit({}) if start else []
            return [*allocated, *before, For(count, op.length, tuple(repeat))]

        scratch: list[tuple[object, Dim]] = [("body", body.size), *((b, b.type.bytes) for b in fresh)]
        return _Work(set(step.inputs), list(step.outputs), scratch, (), emit)


@dataclass(frozen=True)
class _Inner:
    """A region ready to be placed: its buffers, its arena size, its statements for a base offset."""

    inputs: list[Buffer]
    outputs: list[Buffer]
    size: Dim
    statements: Callable[[Dim], list[Statement]]


def _slice(part: Buffer, whole: Buffer, position: Dim) -> View:
    return View(part, whole, position * row_major_strides(whole.shape)[0])


def _scoped(statements: list[Statement]) -> list[Statement]:
    """The statements in a scope of their own, so that they can be emitted twice."""
    return [For(symbolic.Variable("once", 0, 0), 1, tuple(statements))]


def _roots(plan: FusionPlan) -> dict[Buffer, Buffer]:
    return {v.buffer: v.base for v in plan.views}


def _read_roots(work: _Work, roots: Mapping[Buffer, Buffer]) -> set[Buffer]:
    return {roots.get(b, b) for b in work.reads}
