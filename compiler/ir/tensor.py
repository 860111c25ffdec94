"""Level 2, tensor: what a kernel computes, in index notation.

    kernel     := kernel name(buffer: type, ...) -> (buffer: type, ...) { definition* }
    definition := buffer[variable < extent, ...] = scalar

    kernel softmax(x: f32[n, 10]) -> (y: f32[n, 10]) {
      m[i < n] = max(k < 10: x[i, k])
      s[i < n] = sum(k < 10: exp(x[i, k] - m[i]))
      y[i < n, j < 10] = exp(x[i, j] - m[i]) / s[i]
    }

Definitions are in order; each defines every element of its buffer once, from inputs and earlier
definitions. Buffers that are not outputs are local to the kernel: the schedule decides whether they
are registers, a row of scratch, or recomputed. Nothing here says in which order elements are computed.

Non-goals: no loops, no layout beyond row-major shapes, no threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer, Load, Reduce, Scalar, loads_of
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType


@dataclass(frozen=True)
class Definition:
    """buffer[variables] = value, for every variable from 0 to the buffer's extent."""

    buffer: Buffer
    variables: tuple[Dim, ...]
    value: Scalar

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Found once: fusion asks for them with every neighbour of a kernel."""
        return tuple(loads_of(self.value))


@dataclass(frozen=True)
class Kernel:
    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    definitions: tuple[Definition, ...]

    @property
    def locals(self) -> tuple[Buffer, ...]:
        return tuple(d.buffer for d in self.definitions if d.buffer not in self.outputs)


class Reader(Protocol):
    """An operand of an op's lowering: its type, and the element at an index."""

    @property
    def type(self) -> TensorType: ...

    def __call__(self, *index: Dim) -> Scalar: ...


@dataclass(frozen=True)
class BufferReader:
    """Reads from memory."""

    buffer: Buffer

    @property
    def type(self) -> TensorType:
        return self.buffer.type

    def __call__(self, *index: Dim) -> Scalar:
        return Load(self.buffer, index)


@dataclass(frozen=True)
class InlineReader:
    """Computes the element where it is read: fusion by substitution."""

    type: TensorType
    compute: Callable[..., Scalar]

    def __call__(self, *index: Dim) -> Scalar:
        return self.compute(*index)


def axes(shape: tuple[Dim, ...], names: str = "ijklmnopqrstuvwxyz") -> tuple[Dim, ...]:
    """One fresh variable per dim, ranging over it. A dim of extent 1 has only the index 0."""
    return tuple(0 if dim == 1 else symbolic.Variable(names[n % len(names)], 0, dim - 1) for n, dim in enumerate(shape))


def reduction(combiner: str, shape: tuple[Dim, ...], body: Callable[..., Scalar]) -> Scalar:
    """Reduce over fresh variables ranging over `shape`."""
    variables = tuple(symbolic.Variable(f"r{n}", 0, dim - 1) for n, dim in enumerate(shape))
    return Reduce(combiner, variables, tuple(shape), body(*variables))  # type: ignore[arg-type]
