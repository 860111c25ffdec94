"""SSA values as text, the blocks they stand in, and the scopes in which they are available."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Sequence

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT, DOUBLE, HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
POINTER = ir.PointerType()
VOID = ir.VoidType()

RELATIONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


class Value:
    """An SSA value: its type, the type's text, how it is written as an operand, and the scope that defines it."""

    __slots__ = ("lanes", "ref", "scope", "text", "type")

    def __init__(self, kind: ir.Type, text: str, ref: str, scope: Scope | None = None) -> None:
        self.type = kind
        self.text = text
        self.ref = ref
        self.scope = scope  # None: a constant
        self.lanes: int = kind.count if text[0] == "<" else 0  # type: ignore[attr-defined]

    def get_reference(self) -> str:
        return self.ref

    def __repr__(self) -> str:
        return f"{self.text} {self.ref}"


class Block:
    """A basic block; lines may be added until the function is printed, the terminator comes last."""

    __slots__ = ("lines", "name", "phis", "terminator")

    def __init__(self, name: str) -> None:
        self.name = name
        self.phis: list[str] = []
        self.lines: list[str] = []
        self.terminator = "unreachable"

    def write(self, lines: list[str]) -> None:
        lines.append(f"{self.name}:")
        lines.extend(self.phis)
        lines.extend(self.lines)
        lines.append(f"  {self.terminator}")


class Scope:
    """A region of blocks that one block dominates; `block` is where its instructions are appended now."""

    __slots__ = ("barrier", "block", "checked", "depth", "known", "moved", "numbers", "parent", "writes")

    def __init__(
        self, parent: Scope | None, block: Block, barrier: bool = False, writes: frozenset = frozenset(), checked: bool = False
    ) -> None:
        self.parent: Scope = parent or self  # the function's own scope is its own parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.block = block
        self.barrier = barrier  # nothing is moved out of it
        self.checked = checked or barrier  # no reading of memory is
        self.numbers: dict[str, Value] = {}  # instruction text -> its value
        self.known: dict[object, Value] = {}  # index expression, address -> its value
        self.moved = 0  # vectors that its code uses and that are loaded in a scope around it
        self.writes = writes  # memory that the scope's code may write: loads of it stay inside


@functools.cache
def vector_type(element: ir.Type, lanes: int) -> ir.VectorType:
    """One object for each type: it keeps its text."""
    return ir.VectorType(element, lanes)


def constant(kind: ir.Type, number: float) -> Value:
    """A number as a scalar constant, or in every lane of a vector type."""
    if isinstance(kind, ir.VectorType):
        element = kind.element
        return Value(kind, str(kind), f"splat ({element} {_number(element, number)})")
    return Value(kind, str(kind), _number(kind, number))


def _number(kind: ir.Type, number: float) -> str:
    if isinstance(kind, ir.IntType):
        if kind.width == 1:
            return "true" if number else "false"
        return str(int(number))
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016x}"


def integer(number: int) -> Value:
    """An i64 constant."""
    return Value(I64, "i64", str(number))


def lane_constants(element: ir.IntType, numbers: Sequence[int]) -> Value:
    """A constant vector."""
    kind = vector_type(element, len(numbers))
    body = ", ".join(f"{element} {_number(element, number)}" for number in numbers)
    return Value(kind, str(kind), f"<{body}>")


def truth_of(condition: Value) -> bool | None:
    """What a condition is known to be, in all lanes."""
    return _TRUTHS.get(condition.ref)


_TRUTHS = {"true": True, "false": False, "splat (i1 true)": True, "splat (i1 false)": False}


def number_of(value: Value) -> int | None:
    """The integer that a constant is, in all lanes."""
    if value.scope is not None:
        return None
    digits = re.fullmatch(r"(?:splat \(i\d+ )?(-?\d+)\)?", value.ref)
    return int(digits[1]) if digits else None


def poison(kind: ir.Type) -> Value:
    return Value(kind, str(kind), "poison")


def like(kind: ir.Type, element: ir.Type) -> ir.Type:
    """`element`, with as many lanes as `kind` has."""
    return vector_type(element, kind.count) if isinstance(kind, ir.VectorType) else element  # type: ignore[attr-defined]


def element_of(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind  # type: ignore[attr-defined]


def mangled(kind: ir.Type) -> str:
    """A type as it stands in the name of an overloaded intrinsic: v8f32."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{mangled(kind.element)}"
    match str(kind):
        case "float":
            return "f32"
        case "double":
            return "f64"
        case "half":
            return "f16"
        case "ptr":
            return "p0"
        case text:
            return text
