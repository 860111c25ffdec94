"""What is known while one function is being emitted, shared by the parts that emit it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ingot.compiler.codegen.abi import FAIL
from ingot.compiler.codegen.builder import Builder
from ingot.compiler.codegen.index import Indices
from ingot.compiler.codegen.values import I1, I64, RELATIONS, Value, constant, integer, lane_constants, vector_type
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer, Local
from ingot.compiler.ir.symbolic import Atom, Dim, Opaque
from ingot.compiler.target import Target

_TESTS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


class CodegenError(Exception):
    """A function that breaks the rules of its level; the message names the statement."""


@dataclass
class Lanes:
    """The vector loop being emitted."""

    variable: Dim
    width: int
    extent: Dim  # equal to width: all lanes run
    bound: Value | None = None  # the extent, when only the lanes below it run


class Sites:
    """The places where a function can fail, numbered as they appear."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.numbers: dict[str, int] = {}

    def number(self, site: str) -> int:
        return self.numbers.setdefault(site, self.start + len(self.numbers))


class Frame:
    """The state of emitting one function."""

    def __init__(
        self,
        builder: Builder,
        target: Target,
        sites: Sites,
        free: Callable[[Atom], Value],
        opaque: Callable[[Opaque], Value],
    ) -> None:
        self.builder = builder
        self.target = target
        self.sites = sites
        self.indices = Indices(builder, free, opaque)
        self.pointers: dict[Buffer, Value] = {}
        self.locals: dict[Local, Value] = {}
        self.bases: dict[Buffer, Buffer] = {}  # views -> what they are views of
        self.versions: dict[Buffer, int] = {}
        self.lanes: Lanes | None = None
        self.condition: Value | None = None  # lanes that the conditions around this statement choose
        self.spread: dict[str, int] = {}  # address -> single elements at constant distances from it that all lanes read
        self.streams = False  # whether stores bypassed the caches: they need a fence
        self.failure: Callable[[], Value] = _unset  # the failure record
        self.stop: Callable[[], None] = _unset  # leave the function after a failure

    # --- memory

    def memory(self, buffer: Buffer) -> Buffer:
        """The buffer whose memory this one is."""
        while buffer in self.bases:
            buffer = self.bases[buffer]
        return buffer

    def version(self, memory: Buffer) -> int:
        return self.versions.get(memory, 0)

    def written(self, memories: frozenset[Buffer] | set[Buffer]) -> None:
        """Loads after this point must not be taken for loads before it."""
        for memory in memories:
            self.versions[memory] = self.versions.get(memory, 0) + 1

    # --- lanes

    def active(self) -> Value | None:
        """The lanes that run; None: all."""
        tail = self.tail()
        if self.condition is None or tail is None:
            return self.condition or tail
        return self.builder.and_(tail, self.condition)

    def tail(self) -> Value | None:
        """The lanes below the vector loop's extent; None: all."""
        assert self.lanes is not None
        bound = self.lanes.bound
        return None if bound is None else self.compare_lanes("<", 1, bound, is_small=True)

    @contextmanager
    def where(self, condition: Value) -> Iterator[None]:
        """Only the lanes in which `condition` (one truth value per lane) holds."""
        outer = self.condition
        self.condition = condition if outer is None else self.builder.and_(outer, condition)
        try:
            yield
        finally:
            self.condition = outer

    def splat(self, value: Value) -> Value:
        assert self.lanes is not None
        return self.builder.splat(value, self.lanes.width)

    def any_lane(self, lanes: Value) -> Value:
        return self.builder.intrinsic("vector.reduce.or", I1, lanes, overload=(lanes.type,))

    def first_lane(self, lanes: Value) -> Value:
        """The number of the first lane that holds; some lane must."""
        builder = self.builder
        bits = builder.bitcast(lanes, ir.IntType(lanes.lanes))
        count = builder.intrinsic("cttz", bits.type, bits, constant(I1, 1))
        return builder.zext(count, I64) if lanes.lanes < 64 else count

    def compare_lanes(self, relation: str, stride: int, bound: Value, is_small: bool = False) -> Value:
        """`lane * stride < bound`, say, for every lane, in integers as wide as the lanes of a full vector.

        `is_small`: the bound is between 0 and the number of lanes. Not moved out of loops: a compare costs less than
        unpacking its result again.
        """
        assert self.lanes is not None
        builder, width = self.builder, self.lanes.width
        if bound.scope is None:
            test = _TESTS[relation]
            return lane_constants(I1, [test(lane * stride, int(bound.ref)) for lane in range(width)])
        bits = min(64, max(8, self.target.vector_bytes * 8 // width))
        while abs(stride) * width >= 1 << (bits - 2):
            bits *= 2
        kind = ir.IntType(bits)
        if bits < 64:
            bound = bound if is_small else self._clamped(bound, (1 << (bits - 1)) - 1)
            bound = builder.index_convert("trunc", bound, kind)
        steps = lane_constants(kind, [lane * stride for lane in range(width)])
        limits = builder.splat(bound, width)
        code = RELATIONS[relation]
        code = code if code in ("eq", "ne") else f"s{code}"
        return builder.pinned(vector_type(I1, width), f"icmp {code} {steps.text} {steps.ref}, {limits.ref}")

    def _clamped(self, value: Value, limit: int) -> Value:
        """An i64 moved into [-limit, limit]."""
        builder = self.builder
        for code, edge in (("<", limit), (">", -limit)):
            within = builder.icmp(code, value, integer(edge), "s")
            value = builder.select(within, value, integer(edge))
        return value

    # --- failure

    def fail_unless(self, fine: Value, code: int, details: Callable[[], tuple[Value, ...]], site: str) -> None:
        """Record a failure and leave the function unless `fine` (an i1) holds."""
        builder = self.builder
        go_on = builder.new_block("fine")
        scope = builder.scope
        failed = builder.enter("failed", barrier=True).block
        words = [*details(), integer(0), integer(0), integer(0)][:3]
        arguments = [self.failure(), integer(code), *words, integer(self.sites.number(site))]
        builder.call_effect(FAIL, "void", *arguments)
        self.stop()
        builder.leave()
        builder.cbranch(fine, go_on, failed)
        scope.block = go_on


def _unset() -> Any:
    raise AssertionError("not available in this function")


def at_least_one(dim: Dim) -> bool:
    """Whether the dim is provably positive."""
    return symbolic.less(0, dim) is True


def as_index(frame: Frame, value: Value, signed: bool) -> Value:
    """An integer of any width as i64."""
    builder = frame.builder
    kind = I64
    if value.lanes:
        kind = type(value.type)(I64, value.lanes)
    return builder.sext(value, kind) if signed else builder.zext(value, kind)
