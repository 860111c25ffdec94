"""Meet a memory budget: compute values again where they are read late, instead of keeping them.

First everything that is cheap is computed again, by a stricter rule of fusion (`fusion/again.py`). Where that is not
enough: at the moment when the program needs the most memory, some values wait for readers that come much later
(activations for the backward pass). One of them is dropped: its late readers get a copy of its computation, which
fusion puts into their kernels. Those that free the most bytes for the least arithmetic go first; a change that does
not lower the peak is undone. This is repeated until the program fits or nothing helps.

Invariant: a value that is computed again has the same bits, because it is the same operations on the same operands,
elementwise and in the same order.
Non-goal: computing sums of products again; they cost more than memory is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ingot.compiler.assembly import Assembly
from ingot.compiler.fusion.cost import THRIFTY, FusionLimits, weight
from ingot.compiler.fusion.plan import FusionPlan, KernelStep, LoopStep
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph, Value, users_of
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.base import Op
from ingot.compiler.ops.elementwise import Elementwise

ATTEMPTS = 64  # programs that are planned for one budget

Assemble = Callable[[Graph, FusionLimits], Assembly]


@dataclass(frozen=True)
class _Candidate:
    """A value that waits, and the readers that could compute it themselves."""

    value: Value
    chain: frozenset[Value]  # what has to be computed again, the value among it
    readers: frozenset[Value]
    bytes: int

    @property
    def gain(self) -> float:
        """Bytes freed for a unit of arithmetic."""
        arithmetic = len(self.readers) * sum(weight(v) * most(v.tensor.size) for v in self.chain)
        return self.bytes / (1 + arithmetic)


def fit(graph: Graph, budget: int, assemble: Assemble) -> tuple[Graph, FusionLimits, Assembly]:
    """The graph and its program, changed so that its arena is at most `budget` bytes if that can be reached, and the
    limits of fusion that it was made with."""
    limits = FusionLimits()
    assembly = assemble(graph, limits)
    notes: list[str] = []
    if most(assembly.arena_bytes) > budget:
        thrifty = assemble(graph, THRIFTY)
        saved = most(assembly.arena_bytes) - most(thrifty.arena_bytes)
        if saved > 0:
            notes.append(f"all that is cheap is computed again for late readers: {saved} bytes less")
            limits, assembly = THRIFTY, thrifty
    attempts = 0
    refused: set[Value] = set()
    while most(assembly.arena_bytes) > budget and attempts < ATTEMPTS:
        candidate = next((c for c in _candidates(graph, assembly) if c.value not in refused), None)
        if candidate is None:
            break
        attempts += 1
        changed = _recomputed(graph, candidate)
        attempt = assemble(changed, limits)
        if most(attempt.arena_bytes) >= most(assembly.arena_bytes):
            refused.add(candidate.value)
            continue
        op = candidate.value.op
        saved = most(assembly.arena_bytes) - most(attempt.arena_bytes)
        notes.append(
            f"{op.name} {candidate.value.type!r} is computed again by {len(candidate.readers)} late readers: "
            f"{saved} bytes less"
        )
        graph, assembly = changed, attempt
    return graph, limits, replace(assembly, memory_notes=(*assembly.memory_notes, *notes))


def most(dim: Dim) -> int:
    """The upper bound of a size; without one, more than any budget."""
    if isinstance(dim, int):
        return dim
    upper = symbolic.bounds(dim)[1]
    return 1 << 62 if upper is None else upper


def _candidates(graph: Graph, assembly: Assembly) -> list[_Candidate]:
    """What waits at the peak and could be computed again, the most rewarding first."""
    _, plan = assembly.plans[0]
    requests = assembly.arena.requests
    steps = max((request.end for request in requests), default=-1) + 1
    live = [sum(most(r.size) for r in requests if r.start <= n <= r.end) for n in range(steps)]
    peak = live.index(max(live)) if live else 0
    waiting = {r.key: most(r.size) for r in requests if r.start < peak < r.end and isinstance(r.key, Buffer)}
    roots = {view.buffer: view.base for view in plan.views}
    users = users_of(graph)
    when = _steps(graph, plan, users)
    found: list[_Candidate] = []
    for value, buffer in plan.buffers.items():
        size = waiting.get(roots.get(buffer, buffer))
        chain = _chain(value, plan) if size else None
        if not size or chain is None or value in graph.outputs:
            continue
        readers = frozenset(user for user in users.get(value, ()) if when.get(user, -1) > peak)
        if readers:
            found.append(_Candidate(value, chain, readers, size))
    order = {value: n for n, value in enumerate(graph.body)}
    return sorted(found, key=lambda c: (-c.gain, order[c.value]))


def _steps(graph: Graph, plan: FusionPlan, users: dict[Value, list[Value]]) -> dict[Value, int]:
    """The first step that computes each value; of one that readers compute, the first of theirs."""
    when: dict[Value, int] = {}
    for number, step in enumerate(plan.steps):
        values = step.values if isinstance(step, KernelStep) else (step.value,)
        if isinstance(step, LoopStep) and step.epilogue is not None:
            values = (*values, *step.epilogue.step.values)
        for value in values:
            when.setdefault(value, number)
    for value in reversed(graph.body):
        if value not in when:
            later = [when[user] for user in users.get(value, ()) if user in when]
            if later:
                when[value] = min(later)
    return when


def _chain(value: Value, plan: FusionPlan) -> frozenset[Value] | None:
    """The elementwise operations from stored values to this one; None when something else is among them."""
    found: set[Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in found:
            continue
        op = current.op
        if not isinstance(op, Op) or not (isinstance(op, Elementwise) or op.movement):
            return None
        found.add(current)
        stack.extend(arg for arg in current.args if arg not in plan.buffers)
    return frozenset(found)


def _recomputed(graph: Graph, candidate: _Candidate) -> Graph:
    """Each late reader with a copy of the chain for itself. Values are made without a Builder, which would find that
    the copies are equal to what is there."""
    made: dict[Value, Value] = {value: value for value in graph.inputs}

    def rebuilt(value: Value, args: Sequence[Value]) -> Value:
        return value if tuple(args) == value.args else replace(value, args=tuple(args))

    def copied(value: Value, known: dict[Value, Value]) -> Value:
        if value not in candidate.chain:
            return made[value]
        if value not in known:
            known[value] = replace(value, args=tuple(copied(arg, known) for arg in value.args))
        return known[value]

    for value in graph.body:
        if value in candidate.readers:
            known: dict[Value, Value] = {}
            own = [copied(arg, known) if arg is candidate.value else made[arg] for arg in value.args]
            made[value] = rebuilt(value, own)
        else:
            made[value] = rebuilt(value, [made[arg] for arg in value.args])
    return replace(graph, outputs=tuple(made[value] for value in graph.outputs))
