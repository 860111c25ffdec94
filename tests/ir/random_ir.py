"""Random programs of each level, from a seed: what the text, verify and interpret tests have in common.

Every kernel is valid and exact: floating-point values are small integers, so that two interpreters which
combine them in different orders must agree to the last bit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Builder, Graph, Source, Value
from ingot.compiler.ir.loops import Alloc, For, Function, If, Let, LoopKind, Statement, Store
from ingot.compiler.ir.scalar import Buffer, IndexValue, Load, Local, Read, Reduce, Scalar
from ingot.compiler.ir.symbolic import Dim, Symbol, Variable
from ingot.compiler.ir.tensor import Definition, Kernel, axes
from ingot.compiler.ir.types import DType, TensorType, boolean, f32, f64, i32, i64
from ingot.compiler.ops.elementwise import Add, Cast, Greater, Maximum, Mul, Neg, Where
from ingot.compiler.ops.structure import Broadcast, Constant, Reshape, Transpose

DIMS: tuple[Dim, ...] = (1, 2, 3, Symbol("n"), Symbol("m", 0, 6), 2 * Symbol("n"))
VALUES = {Symbol("n"): 3, Symbol("m", 0, 6): 2}
NUMBERS = (f64, i64)


class Random:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def below(self, count: int) -> int:
        return int(self.generator.integers(count))

    def choose(self, items):
        return items[self.below(len(items))]

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def array(self, buffer: Buffer) -> np.ndarray:
        shape = tuple(symbolic.evaluate(d, VALUES) for d in buffer.shape)
        if buffer.dtype == boolean:
            return self.generator.random(shape) < 0.5
        return self.generator.integers(-3, 4, shape).astype(buffer.dtype.numpy)


# --- index arithmetic -----------------------------------------------------------------------------


def random_dim(random: Random, atoms: list[Dim], depth: int = 3) -> Dim:
    """Any index expression over the atoms, divisions by positive numbers only."""
    if depth == 0 or random.chance(0.25):
        return random.choose(atoms) if random.chance(0.7) else random.below(20) - 5
    left, right = random_dim(random, atoms, depth - 1), random_dim(random, atoms, depth - 1)
    match random.below(7):
        case 0 | 1:
            return left + right
        case 2:
            return left - right
        case 3:
            return left * random.choose((2, 3, -1, right))
        case 4:
            return left // (1 + random.below(5))
        case 5:
            return left % (2 + random.below(5))
        case _:
            return random.choose((symbolic.minimum, symbolic.maximum))(left, right)


# --- scalars and kernels --------------------------------------------------------------------------


class Expressions:
    """Random scalars at a place where variables are bound and buffers may be read."""

    def __init__(self, random: Random, readable: list[Buffer], variables: list[Dim]) -> None:
        self.random, self.readable, self.variables = random, readable, variables

    def number(self, dtype: DType, depth: int = 3) -> Scalar:
        random = self.random
        if depth == 0 or random.chance(0.2):
            return self.leaf(dtype)
        match random.below(8):
            case 0 | 1 | 2:
                name = random.choose(("add", "sub", "mul", "max", "min"))
                return ir.apply(name, self.number(dtype, depth - 1), self.number(dtype, depth - 1))
            case 3:
                return ir.apply(random.choose(("neg", "abs", "sign")), self.number(dtype, depth - 1))
            case 4 | 5:
                arms = self.number(dtype, depth - 1), self.number(dtype, depth - 1)
                return ir.apply("select", self.truth(depth - 1), *arms)
            case 6:
                other = random.choose([d for d in NUMBERS if d != dtype])
                return ir.Cast(self.number(other, depth - 1), dtype)
            case _:
                return self.guarded(dtype)

    def truth(self, depth: int = 2) -> Scalar:
        random = self.random
        if depth and random.chance(0.3):
            names = ("and", "or", "xor")
            return ir.apply(random.choose(names), self.truth(depth - 1), self.truth(depth - 1))
        dtype = random.choose(NUMBERS)
        relation = random.choose(("lt", "le", "gt", "ge", "eq", "ne"))
        return ir.apply(relation, self.number(dtype, 1), self.number(dtype, 1))

    def leaf(self, dtype: DType) -> Scalar:
        random = self.random
        known = [b for b in self.readable if b.dtype == dtype]
        if known and random.chance(0.6):
            return self.load(random.choose(known))
        if dtype == i64 and random.chance(0.3):
            return IndexValue(random.choose(self.variables) + random.below(3))
        return ir.constant(random.below(7) - 3, dtype)

    def load(self, buffer: Buffer) -> Scalar:
        return Load(buffer, tuple(self.position(d) for d in buffer.shape))

    def position(self, extent: Dim) -> Dim:
        """Always inside the extent: a remainder, or an index from data."""
        random = self.random
        indices = [b for b in self.readable if b.dtype == i64 and not b.shape]
        if indices and random.chance(0.3):
            value = ir.apply("mod", Load(random.choose(indices), ()), IndexValue(extent))
            if random.chance(0.5):
                value = ir.apply("sub", value, IndexValue(extent))  # counts from the end
            return ir.bounded_index(value, extent, "a random place")
        if random.chance(0.2):
            return 0
        return (random.choose(self.variables) * random.choose((1, 2)) + random.below(3)) % extent

    def guarded(self, dtype: DType) -> Scalar:
        """A load that is outside for some points, which the condition leaves out."""
        random = self.random
        known = [b for b in self.readable if b.dtype == dtype and b.shape]
        if not known:
            return self.leaf(dtype)
        buffer = random.choose(known)
        index = [self.position(d) for d in buffer.shape]
        axis = random.below(len(index))
        index[axis] = random.choose(self.variables) + random.below(3) - 1
        low = ir.apply("ge", IndexValue(index[axis]), ir.constant(0, i64))
        high = ir.apply("lt", IndexValue(index[axis]), IndexValue(buffer.shape[axis]))
        return ir.apply("select", ir.apply("and", low, high), Load(buffer, tuple(index)), self.leaf(dtype))


def random_shape(random: Random) -> tuple[Dim, ...]:
    return tuple(random.choose(DIMS) for _ in range(random.below(4)))


def readable_shape(random: Random) -> tuple[Dim, ...]:
    """A shape without dims that may be 0, so that there is something to read."""
    return tuple(d for d in random_shape(random) if symbolic.is_nonnegative(d - 1))


def random_kernel(seed: int) -> Kernel:
    random = Random(seed)
    inputs = [
        Buffer(random.choose(("x", "y", "in")) + str(n), random.choose(NUMBERS), readable_shape(random))
        for n in range(1 + random.below(3))
    ]
    inputs.append(Buffer("sized", i64, tuple(VALUES)))
    readable = inputs[:-1]
    definitions: list[Definition] = []
    for number in range(1 + random.below(3)):
        dtype = random.choose(NUMBERS)
        shape = readable_shape(random) if random.chance(0.7) else random_shape(random)
        buffer = Buffer(f"t{number}", dtype, shape)
        variables = axes(shape)
        definitions.append(Definition(buffer, variables, random_value(random, readable, list(variables), dtype)))
        if all(symbolic.is_nonnegative(d - 1) for d in shape):
            readable.append(buffer)
    return Kernel(f"random{seed}", tuple(inputs), (definitions[-1].buffer,), tuple(definitions))


def random_value(random: Random, readable: list[Buffer], variables: list[Dim], dtype: DType) -> Scalar:
    if random.chance(0.5):
        return Expressions(random, readable, [*variables, 0]).number(dtype)
    extents = tuple(random.choose(DIMS) for _ in range(1 + random.below(2)))
    reduced = tuple(Variable(random.choose(("k", "r")), 0, e - 1) for e in extents)
    body = Expressions(random, readable, [*variables, *reduced]).number(dtype, 2)
    return Reduce(random.choose(("sum", "max", "min")), reduced, extents, body)


def as_loops(kernel: Kernel, outermost: LoopKind = "serial") -> Function:
    """The plain nest of loops of a kernel: the meaning of index notation, spelled out. Its parameters are the
    inputs, the outputs and the locals of the kernel."""
    body = tuple(_nest(definition, outermost) for definition in kernel.definitions)
    return Function(kernel.name, (*kernel.inputs, *kernel.outputs, *kernel.locals), body)


def _nest(definition: Definition, outermost: LoopKind) -> Statement:
    buffer, variables, value = definition.buffer, definition.variables, definition.value
    statements: tuple[Statement, ...] = (Store(buffer, variables, value),)
    if isinstance(value, Reduce):
        total = Buffer("total", value.dtype, (), "register")
        start = ir.constant(ir.identity_of(value.combiner, value.dtype), value.dtype)
        term = Local("term", value.dtype)
        combined = ir.apply(ir.COMBINERS[value.combiner], Load(total, ()), Read(term))
        inner = _loops(value.variables, value.extents, (Let(term, value.body), Store(total, (), combined)))
        statements = (
            Alloc(total),
            Store(total, (), start),
            *inner,
            Store(buffer, variables, Load(total, ())),
        )
    nest = _loops(variables, buffer.shape, statements)
    if len(nest) == 1 and isinstance(nest[0], For):
        return replace(nest[0], kind=outermost)
    return If(ir.constant(True, boolean), nest)


def _loops(variables, extents, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    for variable, extent in reversed(list(zip(variables, extents, strict=True))):
        if isinstance(variable, Variable):
            body = (For(variable, extent, body),)
    return body


# --- graphs ---------------------------------------------------------------------------------------


def random_graph(seed: int) -> Graph:
    """Elementwise ops and changes of shape over symbolic dims, with names, sources, roles and updates."""
    random = Random(seed)
    builder = Builder()
    type_ = TensorType(f32, (Symbol("n"), random.choose((1, 2, 4)), Symbol("m", 0, 6)))
    values: list[Value] = [builder.input("x", type_), builder.input("0 odd/name", type_)]
    state = builder.input("state", type_, "state", Source("model.py", 3, "s = State()"))
    weight = builder.input("weight", f32[4], "constant")
    values.append(state)
    for number in range(random.below(12)):
        builder.source = random.choose((None, Source("a b.py", number, 'y = "x"'), Source(node="/conv/Add_1")))
        name = random.choose(("", "", f"h{number}", "same", "1", "a.b", "for"))
        values.append(_random_value(random, builder, values, name))
    shape = tuple(symbolic.evaluate(d, VALUES) for d in type_.shape)
    outputs = (random.choose(values), builder.emit(Constant.of(np.ones(shape), f64)), values[-1])
    names = random.choose(((), ("a", "b c", "as")))
    constants = {"weight": np.arange(4, dtype=np.float32)}
    inputs = (*builder.inputs[:2], state, weight)
    return Graph(f"g{seed}", inputs, outputs, names, constants, {"state": random.choose((0, 2))})


def _random_value(random: Random, builder: Builder, values: list[Value], name: str) -> Value:
    x, y = random.choose(values), random.choose(values)
    match random.below(8):
        case 0 | 1:
            return builder.emit(random.choose((Add, Mul, Maximum))(), x, y, name=name)
        case 2:
            return builder.emit(Neg(), x, name=name)
        case 3:
            turned = builder.emit(Transpose((2, 0, 1)), x)
            return builder.emit(Transpose((1, 2, 0)), turned, name=name)
        case 4:
            flat = builder.emit(Reshape((x.tensor.size,)), x)
            return builder.emit(Reshape(x.shape), flat, name=name)
        case 5:
            literal = builder.emit(Constant.of(random.choose((0.1, np.inf, np.nan, -0.0, 1e-30)), f32))
            return builder.emit(Broadcast(x.shape), literal, name=name)
        case 6:
            return builder.emit(Where(), builder.emit(Greater(), x, y), x, y, name=name)
        case _:
            return builder.emit(Cast(f32), builder.emit(Cast(i32), x), name=name)
