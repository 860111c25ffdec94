"""Scalar expressions: what is computed for one element. Shared by the tensor and the loop level.

    scalar := Const(value, dtype)               a literal
            | Load(buffer, index...)            an element of a buffer; index is index arithmetic
            | Apply(function, scalars...)       a function of FUNCTIONS, e.g. add, exp, select
            | Cast(scalar, dtype)               NumPy's astype; float to integer saturates, NaN gives 0
            | Bitcast(scalar, dtype)            the same bits as another type of that width
            | IndexValue(dim, dtype)            the value of an index expression
            | BoundedIndex(scalar, extent, site) an integer used as an index: negative counts from the
                                                end; out of range is a run-time failure at `site`
            | Reduce(combiner, variables, body) combine body over the variables' ranges  (tensor level only)
            | Read(local)                       a value bound by Let                      (loop level only)
            | Lead(buffer, bytes)               elements of a buffer before the first address that is a
                                                multiple of so many bytes                 (loop level only)

`select` is lazy: a Load in an arm happens only where the condition chooses that arm. That is how
padding reads nothing outside its buffer.

Index arithmetic is `symbolic.Dim`; a data-dependent index is `symbolic.Opaque` around a BoundedIndex,
so no expression can address outside its buffer. Nodes are immutable and structurally equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DType, TensorType, boolean, i64

Space = Literal["global", "arena", "stack", "register"]


@dataclass(frozen=True, eq=False)
class Buffer:
    """Row-major memory with a shape. Equal by identity: two buffers named alike are different memory.

    global: given from outside; arena: planned scratch; stack: kernel-local memory of constant size;
    register: kernel-local, only ever indexed by constants after unrolling.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    space: Space = "global"

    @cached_property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type!r}"


@dataclass(frozen=True, eq=False)
class Local:
    """A name for a scalar value bound once by Let; equal by identity."""

    name: str
    dtype: DType


def cast_array(x: np.ndarray, dtype: DType) -> np.ndarray:
    """NumPy's astype, made total: float to integer saturates and NaN gives 0."""
    if dtype.is_integer and x.dtype.kind not in "iub":
        info = np.iinfo(dtype.numpy)
        wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
        low, high = float(info.min), float(info.max)
        clipped = np.where((wide > low) & (wide < high), wide, 0).astype(dtype.numpy)
        return np.where(wide >= high, info.max, np.where(wide <= low, info.min, clipped)).astype(dtype.numpy)
    return x.astype(dtype.numpy)


Result = Literal["same", "bool"]


@dataclass(frozen=True)
class Function:
    """A scalar function: its NumPy meaning, arity and the dtype of its result.

    `kinds` are the element kinds it accepts. All arguments have one dtype, except that the first
    argument of `select` is bool and the second of shifts may be any integer.
    """

    name: str
    arity: int
    evaluate: Callable[..., np.ndarray] = field(compare=False, repr=False)
    result: Result = "same"
    kinds: tuple[str, ...] = ("float", "int", "uint", "bool")


NUMBERS = ("float", "int", "uint")
INTEGERS = ("int", "uint")
BITS = ("int", "uint", "bool")
FLOATS = ("float",)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a non-positive number only, so that neither tail overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _from_math(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    vectorised = np.vectorize(function, otypes=[np.float64])

    def evaluate(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        return vectorised(x.astype(np.float64)).astype(x.dtype) if x.size else x.copy()

    return evaluate


def _lgamma(x: float) -> float:
    if x == -np.inf or (x <= 0 and x == np.floor(x)):
        return np.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Recurrence up to 10, then the asymptotic series; reflection below zero."""
    if np.isnan(x) or x == -np.inf or (x <= 0 and x == np.floor(x)):
        return np.nan
    if x < 0:
        return _digamma(1 - x) - np.pi / np.tan(np.pi * x)
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132 - y * (691 / 32760 - y / 12))))))
    return total + np.log(x) - 0.5 / x - series


def _softplus(x: np.ndarray) -> np.ndarray:
    return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).astype(x.dtype)


def _integer_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.floor_divide(x, y)


def _truncated_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Division rounding towards zero, as C and ONNX do for integers."""
    x, y = np.broadcast_arrays(x, y)
    quotient = np.floor_divide(x, y)
    inexact = (quotient * y != x) & ((x < 0) != (y < 0)) & (y != 0)
    return (quotient + inexact.astype(x.dtype)).astype(x.dtype)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A negative power of an integer is the integer part of a fraction: 0, unless the base is 1 or -1."""
    if np.asarray(y).dtype.kind != "i":
        return np.power(x, y)
    fraction = np.where(x == 1, 1, np.where(x == -1, np.where(y & 1, -1, 1), 0))
    return np.where(y < 0, fraction, np.power(x, np.maximum(y, 0))).astype(np.asarray(x).dtype)


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return x * y + z


def _shift_left(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Shifting by the width or more gives 0."""
    bits = x.dtype.itemsize * 8
    shifted = np.left_shift(x, np.minimum(y, bits - 1).astype(x.dtype))
    return np.where(y >= bits, np.zeros_like(x), shifted)


def _shift_right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Arithmetic for signed, logical for unsigned; shifting by the width or more gives the sign."""
    bits = x.dtype.itemsize * 8
    shifted = np.right_shift(x, np.minimum(y, bits - 1).astype(x.dtype))
    fill = np.where(x < 0, -1, 0).astype(x.dtype) if x.dtype.kind == "i" else np.zeros_like(x)
    return np.where(y >= bits, fill, shifted)


def _pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A word of two: the lower half of its bits is `low`, the upper half `high`. Both fit into half of their type."""
    half = low.dtype.itemsize * 4
    mask = low.dtype.type((1 << half) - 1)
    return np.bitwise_or(np.left_shift(high, low.dtype.type(half)), np.bitwise_and(low, mask))


def _dot_pairs(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """low(x) * low(y) + high(x) * high(y), where words hold two signed integers of half their width."""
    half = x.dtype.type(x.dtype.itemsize * 4)

    def halves(word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.right_shift(np.left_shift(word, half), half), np.right_shift(word, half)

    (a, b), (c, d) = halves(x), halves(y)
    return a * c + b * d


def _quad(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """A word of four, the lowest bits first. All fit into a quarter of their type, with or without a sign."""
    part = a.dtype.itemsize * 2
    mask = a.dtype.type((1 << part) - 1)
    low, *others = (np.bitwise_and(x, mask) for x in (a, b, c, d))
    for n, x in enumerate(others, 1):
        low = np.bitwise_or(low, np.left_shift(x, a.dtype.type(n * part)))
    return low


def _dot_unsigned_signed(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """z + the sum of x[n] * y[n], where words hold four integers of a quarter of their width: x without signs, y with."""
    part = x.dtype.itemsize * 2
    mask, top = x.dtype.type((1 << part) - 1), x.dtype.type(3 * part)
    for n in range(4):
        unsigned = np.bitwise_and(np.right_shift(x, x.dtype.type(n * part)), mask)
        signed = np.right_shift(np.left_shift(y, x.dtype.type((3 - n) * part)), top)
        z = z + unsigned * signed
    return z


def _dot_signed_unsigned(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return _dot_unsigned_signed(y, x, z)


def _table() -> dict[str, Function]:
    unary_float = {
        "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
        "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "cbrt": np.cbrt,
        "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
        "tanh": np.tanh, "sigmoid": _sigmoid, "softplus": _softplus,
        "erf": _from_math(math.erf), "erfc": _from_math(math.erfc),
        "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
        "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
        "acosh": np.arccosh, "atanh": np.arctanh, "lgamma": _from_math(_lgamma),
        "digamma": _from_math(_digamma), "floor": np.floor, "ceil": np.ceil, "round": np.rint,
        "trunc": np.trunc,
    }  # fmt: skip
    functions = [Function(name, 1, f, kinds=FLOATS) for name, f in unary_float.items()]
    functions += [
        Function("neg", 1, np.negative, kinds=NUMBERS),
        Function("abs", 1, np.abs, kinds=NUMBERS),
        Function("sign", 1, np.sign, kinds=NUMBERS),
        Function("not", 1, np.invert, kinds=BITS),
        Function("isnan", 1, np.isnan, "bool", FLOATS),
        Function("isinf", 1, np.isinf, "bool", FLOATS),
        Function("add", 2, np.add, kinds=NUMBERS),
        Function("sub", 2, np.subtract, kinds=NUMBERS),
        Function("mul", 2, np.multiply, kinds=NUMBERS),
        Function("div", 2, np.divide, kinds=FLOATS),
        Function("floordiv", 2, np.floor_divide, kinds=NUMBERS),
        Function("truncdiv", 2, _truncated_divide, kinds=INTEGERS),
        Function("mod", 2, np.mod, kinds=NUMBERS),
        Function("fmod", 2, np.fmod, kinds=NUMBERS),
        Function("pow", 2, _power, kinds=NUMBERS),
        Function("atan2", 2, np.arctan2, kinds=FLOATS),
        Function("copysign", 2, np.copysign, kinds=FLOATS),
        Function("max", 2, np.maximum),
        Function("min", 2, np.minimum),
        Function("and", 2, np.bitwise_and, kinds=BITS),
        Function("or", 2, np.bitwise_or, kinds=BITS),
        Function("xor", 2, np.bitwise_xor, kinds=BITS),
        Function("shl", 2, _shift_left, kinds=INTEGERS),
        Function("shr", 2, _shift_right, kinds=INTEGERS),
        Function("pair", 2, _pair, kinds=("int",)),
        Function("dot_pairs", 2, _dot_pairs, kinds=("int",)),
        Function("quad", 4, _quad, kinds=("int",)),
        Function("dot_us", 3, _dot_unsigned_signed, kinds=("int",)),
        Function("dot_su", 3, _dot_signed_unsigned, kinds=("int",)),
        Function("eq", 2, np.equal, "bool"),
        Function("ne", 2, np.not_equal, "bool"),
        Function("lt", 2, np.less, "bool"),
        Function("le", 2, np.less_equal, "bool"),
        Function("gt", 2, np.greater, "bool"),
        Function("ge", 2, np.greater_equal, "bool"),
        Function("select", 3, np.where),
        Function("fma", 3, _fma, kinds=NUMBERS),
    ]
    return {f.name: f for f in functions}


FUNCTIONS: dict[str, Function] = _table()

# Combiners of Reduce: the function that combines, and the value that changes nothing.
Combiner = Literal["sum", "prod", "max", "min", "any", "all"]
COMBINERS: dict[Combiner, str] = {
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and",
}  # fmt: skip


def identity_of(combiner: Combiner, dtype: DType) -> int | float | bool:
    """The neutral element: combining it with x gives x, for every x including NaN and infinities."""
    match combiner:
        case "sum":
            # -0.0 is the neutral element of IEEE addition, but NumPy's empty sum is +0.0
            return 0
        case "prod":
            return 1
        case "any":
            return False
        case "all":
            return True
        case "max" | "min":
            if dtype.is_float:
                return float("-inf") if combiner == "max" else float("inf")
            if dtype.kind == "bool":
                return combiner == "min"
            info = np.iinfo(dtype.numpy)
            return int(info.min if combiner == "max" else info.max)


@dataclass(frozen=True)
class Const:
    value: int | float | bool
    dtype: DType

    def __post_init__(self) -> None:
        # canonical Python number, so that equal constants are equal nodes (NaN included, by repr)
        object.__setattr__(self, "value", np.asarray(self.value).astype(self.dtype.numpy).item())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True)
class Load:
    buffer: Buffer
    index: tuple[Dim, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True)
class Apply:
    function: Function
    args: tuple[Scalar, ...]

    @property
    def dtype(self) -> DType:
        scalar: Scalar = self
        while isinstance(scalar, Apply):  # a loop, because fused expressions are deep
            if scalar.function.result == "bool":
                return boolean
            scalar = scalar.args[1 if scalar.function.name == "select" else 0]
        return scalar.dtype


@dataclass(frozen=True)
class Cast:
    value: Scalar
    dtype: DType


@dataclass(frozen=True)
class Bitcast:
    """The same bits seen as another type of the same width."""

    value: Scalar
    dtype: DType


@dataclass(frozen=True)
class IndexValue:
    dim: Dim
    dtype: DType = i64


@dataclass(frozen=True)
class BoundedIndex:
    """`purpose` is what the number is for: an index into an axis, or a check of a divisor, which is 1 for a zero (and
    so outside its extent of 1) and 0 for any other."""

    value: Scalar
    extent: Dim
    site: str
    purpose: Literal["index", "divisor"] = "index"

    def complaint(self, found: object, extent: object) -> str:
        """What is wrong with a value outside the extent."""
        if self.purpose == "divisor":
            return f"integer division by zero in {self.site}"
        return f"index {found} at {self.site} is outside an extent of {extent}"

    @property
    def dtype(self) -> DType:
        return i64


@dataclass(frozen=True)
class Reduce:
    """Combine `body` for every point of the variables' ranges (each from 0 to its extent)."""

    combiner: Combiner
    variables: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    body: Scalar

    @property
    def dtype(self) -> DType:
        return self.body.dtype


@dataclass(frozen=True)
class Read:
    local: Local

    @property
    def dtype(self) -> DType:
        return self.local.dtype


@dataclass(frozen=True)
class Lead:
    """How many elements of a buffer come before the first address that is a multiple of `bytes`, as far as whole elements
    get there. Known when the program runs: results must not depend on it, only the order in which they are computed."""

    buffer: Buffer
    bytes: int

    def at(self, address: int) -> int:
        return -address % self.bytes // self.buffer.dtype.itemsize

    @property
    def dim(self) -> Dim:
        """As index arithmetic."""
        return symbolic.Opaque(self, 0, max(0, self.bytes // self.buffer.dtype.itemsize - 1))

    @property
    def dtype(self) -> DType:
        return i64


Scalar = Const | Load | Apply | Cast | Bitcast | IndexValue | BoundedIndex | Reduce | Read | Lead


def apply(name: str, *args: Scalar) -> Scalar:
    """FUNCTIONS[name] of args; all arguments must already have the right types."""
    return Apply(FUNCTIONS[name], args)


def constant(value: int | float | bool, dtype: DType) -> Const:
    return Const(value, dtype)


def cast(value: Scalar, dtype: DType) -> Scalar:
    if value.dtype == dtype:
        return value
    if isinstance(value, Const):
        return Const(cast_array(np.asarray(value.value, value.dtype.numpy), dtype).item(), dtype)
    if isinstance(value, IndexValue) and dtype.is_integer and dtype.bits >= 32:
        return IndexValue(value.dim, dtype)
    return Cast(value, dtype)


def bounded_index(value: Scalar, extent: Dim, site: str) -> Dim:
    """Index arithmetic for an integer read at run time: always within [0, extent)."""
    if isinstance(value, Const) and isinstance(extent, int):
        position = int(value.value) + (extent if value.value < 0 else 0)
        if 0 <= position < extent:
            return position
    if isinstance(value, IndexValue):
        inside = symbolic.less(value.dim, extent)
        if inside and symbolic.is_nonnegative(value.dim):
            return value.dim
    return symbolic.Opaque(BoundedIndex(value, extent, site), 0, extent - 1, depends=index_atoms(value))


def index_atoms(scalar: Scalar) -> frozenset[symbolic.Atom]:
    """The symbols and variables that the indices inside a scalar expression use."""
    match scalar:
        case Load(index=index):
            return frozenset().union(*(symbolic.atoms(i) for i in index))
        case IndexValue(dim=dim):
            return symbolic.atoms(dim)
        case Reduce(variables=variables, extents=extents, body=body):
            outer = frozenset().union(index_atoms(body), *(symbolic.atoms(e) for e in extents))
            return outer - frozenset().union(*(symbolic.atoms(v) for v in variables))
        case _:
            return frozenset().union(*(index_atoms(c) for c in children(scalar)))


def predicate(left: Dim, relation: Literal["lt", "le", "eq", "ge"], right: Dim) -> Scalar:
    """A comparison of index expressions as a bool scalar, decided now when it can be."""
    decided = {
        "lt": lambda: symbolic.less(left, right),
        "le": lambda: symbolic.less_equal(left, right),
        "ge": lambda: symbolic.less_equal(right, left),
        "eq": lambda: symbolic.equal(left, right),
    }[relation]()
    if decided is not None:
        return Const(decided, boolean)
    if relation in ("lt", "ge"):
        left, right = _coarser(left, right)
    return apply(relation, IndexValue(left), IndexValue(right))


def _coarser(left: Dim, right: Dim) -> tuple[Dim, Dim]:
    """Sides of a comparison that say less and decide the same: 4*i + j < 48 is i < 12 where 0 <= j < 4. What such a
    condition does not mention any more, all lanes of a vector agree on."""
    difference = left - right
    if isinstance(difference, int):
        return left, right
    factors = {abs(coefficient) for _, coefficient in difference.terms} - {1}
    if not factors:
        return left, right
    quotient = difference // min(factors)
    if isinstance(quotient, int) or not symbolic.atoms(quotient) < symbolic.atoms(difference):
        return left, right
    return quotient - quotient.constant, -quotient.constant


def both(*conditions: Scalar) -> Scalar:
    """Conjunction; true constants vanish, a false one decides."""
    result: Scalar = Const(True, boolean)
    for condition in conditions:
        if isinstance(condition, Const):
            if not condition.value:
                return condition
        elif isinstance(result, Const):
            result = condition
        else:
            result = apply("and", result, condition)
    return result


def select(condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    if isinstance(condition, Const):
        return yes if condition.value else no
    return apply("select", condition, yes, no)


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    if isinstance(scalar, Apply):
        return scalar.args
    if type(scalar) in LEAVES:
        return ()
    if isinstance(scalar, Cast | Bitcast | BoundedIndex):
        return (scalar.value,)
    return (scalar.body,) if isinstance(scalar, Reduce) else ()


LEAVES: frozenset[type] = frozenset((Const, Load, Read, IndexValue, Lead))  # scalars without operands


def loads_of(scalar: Scalar) -> Iterator[Load]:
    """Every load of an expression, those inside data-dependent indices included; shared parts once."""
    seen: set[int] = set()
    stack: list[Scalar] = [scalar]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            yield node
            for dim in node.index:
                stack.extend(_payloads(dim))
        elif isinstance(node, IndexValue):
            stack.extend(_payloads(node.dim))
        else:
            stack.extend(children(node))


def _payloads(dim: Dim) -> list[BoundedIndex]:
    return [atom.payload for atom in symbolic.opaques(dim) if isinstance(atom.payload, BoundedIndex)]
