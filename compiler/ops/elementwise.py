"""Elementwise ops: y[i] = f(a[i], b[i], ...), all arguments of one shape.

Each row of the tables below is one op: its scalar function (which carries the NumPy meaning) and its
gradient. Broadcasting is explicit in the graph, so that no gradient rule ever sums over stretched dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ingot.compiler.ir import scalar
from ingot.compiler.ir.scalar import FUNCTIONS, Function, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, bf16, boolean, f16, f32, f64, i32, i64, u8
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample, first_difference, in_compute_type

Gradient = Callable[..., tuple[Any, ...]]


def same_shapes(op: str, *types: TensorType) -> None:
    for t in types[1:]:
        if t.shape != types[0].shape:
            message = f"{op}: arguments have shapes {', '.join(map(repr, types))}; they must be equal"
            raise first_difference(message, types[0].shape, t.shape)


def same_types(op: str, *types: TensorType) -> None:
    same_shapes(op, *types)
    for t in types[1:]:
        if t.dtype != types[0].dtype:
            raise OpTypeError(f"{op}: arguments have element types {types[0].dtype} and {t.dtype}; cast one of them")


@dataclass(frozen=True)
class Elementwise(Op, abstract=True):
    """One scalar function applied at every element. No op of the table has fields, so all share the methods of this
    record: making them anew for each class took a tenth of the time to import the compiler."""

    function: ClassVar[Function]
    gradient: ClassVar[Gradient | None] = None
    range: ClassVar[tuple[float, float]] = (-2.0, 2.0)

    def infer(self, *types: TensorType) -> TensorType:
        if len(types) != self.function.arity:
            raise OpTypeError(f"{self.name} takes {self.function.arity} arguments, not {len(types)}")
        for other in types:
            if other is not types[0]:  # most are the same object
                same_types(self.name, *types)
                break
        if types[0].dtype.kind not in self.function.kinds:
            allowed = " or ".join(self.function.kinds)
            raise OpTypeError(f"{self.name} takes {allowed} tensors, not {types[0].dtype}")
        return types[0].with_dtype(boolean) if self.function.result == "bool" else types[0]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        dtype = args[0].dtype
        result = in_compute_type(self.function.evaluate, _dtype(args[0]))(*args)
        return result if self.function.result == "bool" else result.astype(dtype, copy=False)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        if self.gradient is None:
            raise NotImplementedError(f"{self.name} has no gradient")
        return type(self).gradient(g, y, *xs)  # type: ignore[misc]

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return apply_wide(self.function.name, *(read(*index) for read in operands))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        low, high = cls.range
        for dtype in _sample_dtypes(cls.function.kinds):
            yield Sample(cls(), (dtype[3, 5],) * cls.function.arity, low, high)
        yield Sample(cls(), (_sample_dtypes(cls.function.kinds)[0][2, 0],) * cls.function.arity, low, high)


def apply_wide(name: str, *args: Scalar) -> Scalar:
    """A scalar function in the compute type of its arguments, rounded back to their type."""
    dtype = args[0].dtype
    result = scalar.apply(name, *(scalar.cast(a, a.dtype.compute) for a in args))
    return result if result.dtype == boolean or dtype == boolean else scalar.cast(result, dtype)


def _dtype(array: np.ndarray) -> DType:
    return {"float16": f16, "bfloat16": bf16}.get(array.dtype.name, f64)


def _sample_dtypes(kinds: tuple[str, ...]) -> tuple[DType, ...]:
    by_kind = {"float": (f32, f64, f16, bf16), "int": (i32, i64), "uint": (u8,), "bool": (boolean,)}
    return tuple(t for kind in kinds for t in by_kind[kind])


def _define(
    name: str,
    function: str,
    gradient: Gradient | None,
    low: float = -2.0,
    high: float = 2.0,
    doc: str = "",
    piecewise_constant: bool = False,
) -> type[Elementwise]:
    """A new elementwise op class."""
    fields = {
        "name": name, "function": FUNCTIONS[function], "gradient": staticmethod(gradient) if gradient else None,
        "range": (low, high), "differentiable": gradient is not None, "__module__": __name__,
        "__doc__": doc or f"y[i] = {function}(...)[i]",
        "cheap": function not in EXPENSIVE, "piecewise_constant": piecewise_constant,
    }  # fmt: skip
    return type("".join(p.capitalize() for p in name.split("_")), (Elementwise,), fields)


# Functions that cost more than a memory access: recomputing them for a second reader does not pay.
EXPENSIVE = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "cbrt",
        "tanh",
        "sigmoid",
        "softplus",
        "erf",
        "erfc",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "lgamma",
        "digamma",
        "pow",
        "atan2",
        "fmod",
        "mod",
        "floordiv",
        "truncdiv",
    ]
)

_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)

# --- one argument ---------------------------------------------------------------------------------
Neg = _define("neg", "neg", lambda g, y, x: (-g,))
Abs = _define("abs", "abs", lambda g, y, x: (g * x.sign(),))
Sign = _define("sign", "sign", lambda g, y, x: (None,), piecewise_constant=True)
Exp = _define("exp", "exp", lambda g, y, x: (g * y,))
Exp2 = _define("exp2", "exp2", lambda g, y, x: (g * y * math.log(2),))
Expm1 = _define("expm1", "expm1", lambda g, y, x: (g * (y + 1.0),))
Log = _define("log", "log", lambda g, y, x: (g / x,), 0.1, 3)
Log2 = _define("log2", "log2", lambda g, y, x: (g / (x * math.log(2)),), 0.1, 3)
Log10 = _define("log10", "log10", lambda g, y, x: (g / (x * math.log(10)),), 0.1, 3)
Log1p = _define("log1p", "log1p", lambda g, y, x: (g / (x + 1.0),), -0.8, 3)
Sqrt = _define("sqrt", "sqrt", lambda g, y, x: (g * 0.5 / y,), 0.1, 3)
Rsqrt = _define("rsqrt", "rsqrt", lambda g, y, x: (g * -0.5 * y / x,), 0.1, 3)
Cbrt = _define("cbrt", "cbrt", lambda g, y, x: (g / (3.0 * y * y),), 0.1, 3)
Tanh = _define("tanh", "tanh", lambda g, y, x: (g * (1.0 - y * y),))
Sigmoid = _define("sigmoid", "sigmoid", lambda g, y, x: (g * y * (1.0 - y),))
Softplus = _define("softplus", "softplus", lambda g, y, x: (g * x.sigmoid(),))
Erf = _define("erf", "erf", lambda g, y, x: (g * (-(x * x)).exp() * _TWO_OVER_SQRT_PI,))
Erfc = _define("erfc", "erfc", lambda g, y, x: (g * (-(x * x)).exp() * -_TWO_OVER_SQRT_PI,))
Sin = _define("sin", "sin", lambda g, y, x: (g * x.cos(),))
Cos = _define("cos", "cos", lambda g, y, x: (-g * x.sin(),))
Tan = _define("tan", "tan", lambda g, y, x: (g * (1.0 + y * y),), -1, 1)
Asin = _define("asin", "asin", lambda g, y, x: (g * (1.0 - x * x).rsqrt(),), -0.8, 0.8)
Acos = _define("acos", "acos", lambda g, y, x: (-g * (1.0 - x * x).rsqrt(),), -0.8, 0.8)
Atan = _define("atan", "atan", lambda g, y, x: (g / (1.0 + x * x),))
Sinh = _define("sinh", "sinh", lambda g, y, x: (g * x.cosh(),))
Cosh = _define("cosh", "cosh", lambda g, y, x: (g * x.sinh(),))
Asinh = _define("asinh", "asinh", lambda g, y, x: (g * (x * x + 1.0).rsqrt(),))
Acosh = _define("acosh", "acosh", lambda g, y, x: (g * (x * x - 1.0).rsqrt(),), 1.2, 3)
Atanh = _define("atanh", "atanh", lambda g, y, x: (g / (1.0 - x * x),), -0.8, 0.8)
Digamma = _define("digamma", "digamma", None, 0.3, 4)
Lgamma = _define("lgamma", "lgamma", lambda g, y, x: (g * x.digamma(),), 0.3, 4)
Floor = _define("floor", "floor", lambda g, y, x: (None,), piecewise_constant=True)
Ceil = _define("ceil", "ceil", lambda g, y, x: (None,), piecewise_constant=True)
Round = _define(
    "round", "round", lambda g, y, x: (None,), doc="to the nearest integer, halves to even", piecewise_constant=True
)
Trunc = _define("trunc", "trunc", lambda g, y, x: (None,), piecewise_constant=True)
IsNan = _define("is_nan", "isnan", None)
IsInf = _define("is_inf", "isinf", None)
BitwiseNot = _define("bitwise_not", "not", None)

# --- two arguments --------------------------------------------------------------------------------


def _share_of_ties(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """max and min: the gradient goes to the chosen argument, half to each when they are equal."""
    half = a.equals(b).where(g * 0.5, g)
    zero = g.full_like(0.0)
    return a.equals(y).where(half, zero), b.equals(y).where(half, zero)


def _pow_gradient(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """d/da = b a^(b-1), 0 where b is 0 (also at a = 0); d/db = y log a, 0 where a is 0 and b positive."""
    zero = g.full_like(0.0)
    at_zero = b.equals(0.0)
    for_base = at_zero.where(zero, g * b * a ** at_zero.where(a.full_like(0.0), b - 1.0))
    base_zero = a.equals(0.0)
    safe = base_zero.where(a.full_like(1.0), a)
    return for_base, base_zero.where(zero, g * y * safe.log())


Add = _define("add", "add", lambda g, y, a, b: (g, g))
Sub = _define("sub", "sub", lambda g, y, a, b: (g, -g))
Mul = _define("mul", "mul", lambda g, y, a, b: (g * b, g * a))
Div = _define("div", "div", lambda g, y, a, b: (g / b, -(g * y) / b), 0.5, 3)
FloorDivide = _define("floor_divide", "floordiv", lambda g, y, a, b: (None, None), 1, 9)
TruncateDivide = _define("truncate_divide", "truncdiv", None, 1, 9)
Mod = _define(
    "mod", "mod", lambda g, y, a, b: (g, -g * (a / b).floor()), 1, 9, doc="the sign of the divisor, as Python"
)
Fmod = _define("fmod", "fmod", lambda g, y, a, b: (g, -g * (a / b).trunc()), 1, 9, doc="the sign of the dividend, as C")
Pow = _define("pow", "pow", _pow_gradient, 0.2, 2)
Atan2 = _define("atan2", "atan2", lambda g, y, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b)), 0.2, 2)
Maximum = _define("maximum", "max", _share_of_ties)
Minimum = _define("minimum", "min", _share_of_ties)
BitwiseAnd = _define("bitwise_and", "and", None, 0, 9)
BitwiseOr = _define("bitwise_or", "or", None, 0, 9)
BitwiseXor = _define("bitwise_xor", "xor", None, 0, 9)
ShiftLeft = _define("shift_left", "shl", None, 0, 5)
ShiftRight = _define("shift_right", "shr", None, 0, 5)
Equal = _define("equal", "eq", None)
NotEqual = _define("not_equal", "ne", None)
Less = _define("less", "lt", None)
LessEqual = _define("less_equal", "le", None)
Greater = _define("greater", "gt", None)
GreaterEqual = _define("greater_equal", "ge", None)


@dataclass(frozen=True)
class Where(Op):
    """y[i] = a[i] if condition[i] else b[i]"""

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
        same_shapes(self.name, condition, a, b)
        same_types(self.name, a, b)
        if condition.dtype != boolean:
            raise OpTypeError(f"where: the condition is {condition.dtype}, not bool; compare it with something")
        return a

    def evaluate(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition, a, b)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        zero = g.full_like(0)
        return None, xs[0].where(g, zero), xs[0].where(zero, g)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        condition, yes, no = operands
        return scalar.select(condition(*index), yes(*index), no(*index))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, f64, f16, i64, boolean):
            yield Sample(cls(), (boolean[3, 5], dtype[3, 5], dtype[3, 5]))


@dataclass(frozen=True)
class Cast(Op):
    """y[i] = x[i] as another element type. Float to integer truncates and saturates; NaN becomes 0."""

    movement = True

    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        return x.with_dtype(self.dtype)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return scalar.cast_array(x, self.dtype)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.cast(xs[0].dtype) if xs[0].dtype.is_float and self.dtype.is_float else None,)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return scalar.cast(operands[0](*index), self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pairs = ((f32, f64), (f64, f32), (f32, f16), (bf16, f32), (f32, i32), (i64, f32), (f32, boolean))
        for source, target in (*pairs, (boolean, f32), (i32, u8)):
            yield Sample(cls(target), (source[3, 5],), -3, 3)
        edges = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 0.5, -0.5, 300.0], np.float32)
        for target in (i32, i64, u8):
            yield Sample(cls(target), (edges,))
