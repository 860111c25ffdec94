"""Runs kernels in index notation on NumPy arrays.

A definition is evaluated at all its points at once: each variable is an array along an axis of its own, a
reduction adds axes in front. Under a `select` a mask says which points count, so that a load in an arm not
chosen reads nothing; a counted access outside its buffer raises IndexOutOfRange.
Non-goal: memory use beyond what a test can bear; large grids are split along their first variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import arithmetic
from ingot.compiler.ir.interpret.errors import IndexOutOfRange, InterpreterError
from ingot.compiler.ir.interpret.shapes import bind_shapes, known_dims, named_dims
from ingot.compiler.ir.recursion import Call, unwind
from ingot.compiler.ir.scalar import (
    Apply,
    Bitcast,
    BoundedIndex,
    Buffer,
    Cast,
    Const,
    IndexValue,
    Load,
    Reduce,
    Scalar,
    cast_array,
)
from ingot.compiler.ir.symbolic import Atom, Dim, FloorDiv, Maximum, Minimum, Mod, Opaque, Symbol, Variable
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.traverse import kernel_dims, symbols_in

LARGEST_GRID = 1 << 22  # points evaluated at once

Position = int | np.ndarray
Mask = np.ndarray | None


def run_kernel(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray],
    dims: Mapping[Symbol, int] | Mapping[str, int] | None = None,
    *,
    observe: Callable[[Buffer, np.ndarray], None] | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs of the kernel for its inputs, given by name or in order. Symbols get their values from the
    shapes of the inputs and from `dims`. `observe` sees each defined buffer, local ones included."""
    where = f"kernel {kernel.name}"
    symbols = symbols_in(kernel_dims(kernel))
    values = named_dims(dims, symbols, where)
    given = arguments(where, kernel.inputs, arrays)
    bind_shapes(((f"{where}, input {b.name!r}", b.type, a) for b, a in zip(kernel.inputs, given, strict=True)), values)
    known_dims(values, symbols, where)
    memory = dict(zip(kernel.inputs, given, strict=True))
    with np.errstate(all="ignore"):
        for definition in kernel.definitions:
            memory[definition.buffer] = array = _define(definition, memory, values, where)
            if observe is not None:
                observe(definition.buffer, array)
    missing = [b.name for b in kernel.outputs if b not in memory]
    if missing:
        raise InterpreterError(f"{where}: no definition of output {', '.join(missing)}")
    return tuple(memory[b] for b in kernel.outputs)


def arguments(
    where: str, buffers: Sequence[Buffer], arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The arrays of buffers, given by name or in order."""
    if not isinstance(arrays, Mapping):
        if len(arrays) != len(buffers):
            raise InterpreterError(f"{where} takes {len(buffers)} arrays, {len(arrays)} were given")
        return [np.asarray(a) for a in arrays]
    missing = [b.name for b in buffers if b.name not in arrays]
    if missing:
        raise InterpreterError(f"{where}: no array given for {', '.join(missing)}")
    return [np.asarray(arrays[b.name]) for b in buffers]


def _define(
    definition: Definition,
    memory: Mapping[Buffer, np.ndarray],
    dims: Mapping[Symbol, int],
    where: str,
) -> np.ndarray:
    buffer = definition.buffer
    shape = tuple(symbolic.evaluate(d, dims) for d in buffer.shape)
    result = np.empty(shape, buffer.dtype.numpy)
    if not result.size:
        return result
    if definition.value.dtype != buffer.dtype:
        raise InterpreterError(f"{where}: {buffer!r} is defined by a value of type {definition.value.dtype}")
    rows = max(1, LARGEST_GRID // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0] if shape else 1, rows):
        part = result[start : start + rows] if shape else result
        env: dict[Atom, Position] = {**dims}
        for axis, (variable, extent) in enumerate(zip(definition.variables, part.shape, strict=True)):
            if isinstance(variable, Variable):
                first = start if axis == 0 else 0
                env[variable] = np.arange(first, first + extent).reshape((-1,) + (1,) * (len(shape) - axis - 1))
        part[...] = _Grid(env, memory, part.shape, where).scalar(definition.value, None)
    return result


class _Grid:
    """Evaluates expressions at all points of a grid. Results broadcast to the grid's shape."""

    def __init__(
        self,
        env: Mapping[Atom, Position],
        memory: Mapping[Buffer, np.ndarray],
        shape: tuple[int, ...],
        where: str,
    ) -> None:
        self.env, self.memory, self.shape, self.where = env, memory, shape, where
        # by identity, because fused expressions share parts; the key objects are kept alive
        self.done: dict[tuple[int, int], tuple[Scalar, Mask, np.ndarray]] = {}

    # --- index arithmetic ------------------------------------------------------------------------

    def position(self, dim: Dim, mask: Mask) -> Position:
        if isinstance(dim, int):
            return dim
        if isinstance(dim, Atom):
            return self.atom(dim, mask)
        total: Position = dim.constant
        for monomial, coefficient in dim.terms:
            term: Position = coefficient
            for atom, power in monomial:
                term = term * self.atom(atom, mask) ** power
            total = total + term
        return total

    def atom(self, atom: Atom, mask: Mask) -> Position:
        if atom in self.env:
            return self.env[atom]
        match atom:
            case FloorDiv() | Mod():
                left, right = self.position(atom.dividend, mask), self.position(atom.divisor, mask)
                return left // right if isinstance(atom, FloorDiv) else left % right
            case Minimum() | Maximum():
                choose = np.minimum if isinstance(atom, Minimum) else np.maximum
                return reduce(choose, (self.position(a, mask) for a in atom.arguments))
            case Opaque():
                return self.scalar(atom.payload, mask).astype(np.int64)  # type: ignore[arg-type]
            case _:
                raise InterpreterError(f"{self.where}: the variable {atom!r} is not bound here")

    # --- scalars ---------------------------------------------------------------------------------

    def scalar(self, scalar: Scalar, mask: Mask) -> np.ndarray:
        return unwind(self._scalar(scalar, mask))

    def _scalar(self, scalar: Scalar, mask: Mask) -> Call[np.ndarray]:
        key = id(scalar), id(mask)
        if key not in self.done:
            self.done[key] = scalar, mask, (yield self._evaluate(scalar, mask))
        return self.done[key][2]

    def _evaluate(self, scalar: Scalar, mask: Mask) -> Call[np.ndarray]:
        match scalar:
            case Const(value, dtype):
                return np.asarray(value, dtype.numpy)
            case Load(buffer, index):
                return self._load(buffer, index, mask)
            case Apply():
                return (yield self._apply(scalar, mask))
            case Cast(value, dtype):
                return cast_array((yield self._scalar(value, mask)), dtype)
            case Bitcast(value, dtype):
                return arithmetic.bitcast_array((yield self._scalar(value, mask)), dtype)
            case IndexValue(dim, dtype):
                return np.asarray(self.position(dim, mask)).astype(dtype.numpy)
            case BoundedIndex():
                return self._bounded(scalar, mask)
            case Reduce():
                return self._reduce(scalar, mask)
            case _:
                raise InterpreterError(f"{self.where}: {type(scalar).__name__} has no meaning at the tensor level")

    def _apply(self, apply: Apply, mask: Mask) -> Call[np.ndarray]:
        if apply.function.name == "select":
            return (yield self._select(apply, mask))
        arrays: list[np.ndarray] = []
        for arg in apply.args:
            arrays.append((yield self._scalar(arg, mask)))
        if mask is not None and apply.function.name == "pow" and apply.dtype.is_integer:
            # NumPy refuses negative exponents, also those at points that do not count
            arrays[1] = np.where(mask, arrays[1], np.zeros_like(arrays[1]))
        return arithmetic.apply_function(apply.function, apply.dtype, arrays)

    def _select(self, apply: Apply, mask: Mask) -> Call[np.ndarray]:
        condition = yield self._scalar(apply.args[0], mask)
        arms: list[np.ndarray] = []
        for arm, chosen in zip(apply.args[1:], (condition, ~condition), strict=True):
            counted = chosen if mask is None else chosen & mask
            arms.append((yield self._scalar(arm, counted)) if counted.any() else np.zeros((), arm.dtype.numpy))
        return np.where(condition, *arms)

    def _load(self, buffer: Buffer, index: tuple[Dim, ...], mask: Mask) -> np.ndarray:
        array = self.memory.get(buffer)
        if array is None:
            raise InterpreterError(f"{self.where}: {buffer.name} is read before it is defined")
        if len(index) != array.ndim:
            raise InterpreterError(f"{self.where}: {buffer!r} is read with {len(index)} indices")
        positions: list[Position] = []
        for axis, (dim, extent) in enumerate(zip(index, array.shape, strict=True)):
            position = self.position(dim, mask)
            positions.append(self._checked(position, extent, mask, f"dim {axis} of {buffer!r}"))
        if not array.size:
            return np.zeros((), array.dtype)  # no point counts, or the check above had failed
        return np.asarray(array[tuple(positions)])

    def _checked(self, position: Position, extent: int, mask: Mask, what: str) -> Position:
        """The position, moved inside where it does not count."""
        outside = np.logical_or(np.less(position, 0), np.greater_equal(position, extent))
        wrong = outside if mask is None else outside & mask
        if wrong.any():
            found = np.broadcast_to(position, wrong.shape)[wrong].flat[0]
            raise IndexOutOfRange(f"{self.where}: index {found} is outside {what}, which has extent {extent}")
        return np.clip(position, 0, max(extent - 1, 0)) if outside.any() else position

    def _bounded(self, scalar: BoundedIndex, mask: Mask) -> np.ndarray:
        extent = self.position(scalar.extent, mask)
        value = self.scalar(scalar.value, mask).astype(np.int64)
        position = np.where(value < 0, value + extent, value)
        outside = (position < 0) | (position >= extent)
        wrong = outside if mask is None else outside & mask
        if wrong.any():
            found = np.broadcast_to(value, wrong.shape)[wrong].flat[0]
            raise IndexOutOfRange(f"{self.where}: {scalar.complaint(found, extent)}")
        return np.where(outside, 0, position)

    # --- reductions ------------------------------------------------------------------------------

    def _reduce(self, scalar: Reduce, mask: Mask) -> np.ndarray:
        extents = [self.position(e, mask) for e in scalar.extents]
        if not all(isinstance(e, (int, np.integer)) for e in extents):
            raise InterpreterError(f"{self.where}: the extent of a reduction depends on a variable")
        return self._reduce_over(scalar, list(scalar.variables), [int(e) for e in extents], mask)

    def _reduce_over(self, scalar: Reduce, variables: list[Dim], extents: list[int], mask: Mask) -> np.ndarray:
        """Over all the variables at once, or in pieces of the first one where that is too much."""
        if 0 in extents:
            return arithmetic.neutral(scalar.combiner, scalar.dtype)
        inner = math.prod(self.shape) * math.prod(extents[1:])
        piece = max(1, LARGEST_GRID // max(1, inner))
        if not extents or extents[0] <= piece:
            return self._reduce_piece(scalar, variables, [range(e) for e in extents], mask)
        total = arithmetic.neutral(scalar.combiner, scalar.dtype)
        for start in range(0, extents[0], piece):
            first = range(start, min(start + piece, extents[0]))
            if piece == 1 and len(extents) > 1:
                env: dict[Atom, Position] = {**self.env}
                if isinstance(variables[0], Variable):
                    env[variables[0]] = start
                within = _Grid(env, self.memory, self.shape, self.where)
                part = within._reduce_over(scalar, variables[1:], extents[1:], mask)
            else:
                part = self._reduce_piece(scalar, variables, [first, *map(range, extents[1:])], mask)
            total = arithmetic.combine(scalar.combiner, scalar.dtype, total, part)
        return total

    def _reduce_piece(self, scalar: Reduce, variables: list[Dim], ranges: list[range], mask: Mask) -> np.ndarray:
        rank = len(self.shape)
        env = dict(self.env)
        for axis, (variable, places) in enumerate(zip(variables, ranges, strict=True)):
            if isinstance(variable, Variable):
                ones = (1,) * (len(ranges) - axis - 1 + rank)
                env[variable] = np.arange(places.start, places.stop).reshape((-1, *ones))
        counts = tuple(len(r) for r in ranges)
        grid = _Grid(env, self.memory, (*counts, *self.shape), self.where)
        body = grid.scalar(scalar.body, mask)
        full = np.broadcast_to(body, np.broadcast_shapes(body.shape, (*counts, *(1,) * rank)))
        return arithmetic.reduce_leading(scalar.combiner, scalar.dtype, full, len(counts))
