"""Ops made of simpler ops: activations, softmax, and small functions that must be written with care.

Each is declared by its NumPy meaning and by the same formula in ops; both are computed in the compute type
and rounded once. Formulas are stable: no overflow, no cancellation, and no 0 * inf in a gradient, so an
unwanted branch of a choice is fed a harmless argument instead of being masked afterwards. Gradients are
those of the decomposition, except where a rule says it shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy as np

from ingot.compiler.ir.scalar import FUNCTIONS
from ingot.compiler.ir.types import TensorType, bf16, boolean, dtype_of, f16, f32, f64, i32, u8
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample, in_compute_type
from ingot.compiler.ops.elementwise import same_types

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 50.0, -50.0, 1e4, -1e4, np.inf, -np.inf, np.nan], np.float32)


class Composite(Op, abstract=True):
    """`count` tensors of one float type to a tensor of that type, elementwise."""

    count: ClassVar[int] = 1
    kinds: ClassVar[tuple[str, ...]] = ("float",)
    range: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    edges: ClassVar[bool] = True  # also tried on infinities, NaN and large numbers
    cheap = False

    def infer(self, *types: TensorType) -> TensorType:
        if len(types) != self.count:
            raise OpTypeError(f"{self.name} takes {self.count} tensors, not {len(types)}")
        same_types(self.name, *types)
        if types[0].dtype.kind not in self.kinds:
            raise OpTypeError(f"{self.name} takes {' or '.join(self.kinds)} tensors, not {types[0].dtype}")
        return types[0]

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        def compute(*wide: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return np.asarray(self.meaning(*wide), wide[0].dtype)

        return in_compute_type(compute, dtype_of(args[0]))(*args)

    def decompose(self, *xs: Node) -> Node:
        wide = xs[0].dtype.compute
        return self.formula(*(x.cast(wide) for x in xs)).cast(xs[0].dtype)

    def meaning(self, *xs: Any) -> Any:
        """In NumPy."""
        raise NotImplementedError

    def formula(self, *xs: Any) -> Any:
        """In ops."""
        raise NotImplementedError

    @classmethod
    def variants(cls) -> Iterator[Op]:
        """The field values to test."""
        yield cls()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        low, high = cls.range
        for op in cls.variants():
            for dtype in (f64, f32, f16, bf16):
                yield Sample(op, (dtype[3, 5],) * cls.count, low, high)
            if cls.edges:
                others = [np.roll(EDGES, 2 * n + 1) for n in range(cls.count - 1)]
                yield Sample(op, (EDGES, *others), wrt=())


# --- activations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relu(Composite):
    """max(x, 0); its slope at 0 is 0."""

    cheap = True

    def meaning(self, x: Any) -> Any:
        return np.maximum(x, 0)

    def formula(self, x: Any) -> Any:
        """A strict comparison with the constant chosen is one instruction, which keeps NaN (and -0.0)."""
        return (x < 0.0).where(0.0, x)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """By the result, so that the argument need not be kept."""
        return ((y > 0.0).where(g, 0.0),)


@dataclass(frozen=True)
class Relu6(Composite):
    """min(max(x, 0), 6); its slope at 0 and 6 is 0."""

    range = (-4.0, 9.0)
    cheap = True

    def meaning(self, x: Any) -> Any:
        return np.clip(x, 0, 6)

    def formula(self, x: Any) -> Any:
        """Two instructions, as for `Relu`."""
        positive = (x < 0.0).where(0.0, x)
        return (positive > 6.0).where(6.0, positive)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """By the result, so that the argument need not be kept."""
        return ((y > 0.0).where((y < 6.0).where(g, 0.0), 0.0),)


@dataclass(frozen=True)
class LeakyRelu(Composite):
    """x where it is positive, else alpha x."""

    alpha: float = 0.01
    cheap = True

    def meaning(self, x: Any) -> Any:
        return np.where(x > 0, x, self.alpha * x)

    def formula(self, x: Any) -> Any:
        return (x > 0.0).where(x, x * self.alpha)

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(), cls(0.2), cls(1.5))


@dataclass(frozen=True)
class Prelu(Composite):
    """x where it is positive, else slope x; the slope is a tensor and can be learnt."""

    count = 2
    cheap = True

    def meaning(self, x: Any, slope: Any) -> Any:
        return np.where(x > 0, x, slope * x)

    def formula(self, x: Any, slope: Any) -> Any:
        return (x > 0.0).where(x, x * slope)


def _not_positive(x: Any) -> Any:
    """x where it is not positive, else 0, without maximum's shared slope at 0."""
    return (x > 0.0).where(0.0, x)


@dataclass(frozen=True)
class Elu(Composite):
    """x where it is positive, else alpha (exp(x) - 1)."""

    alpha: float = 1.0

    def meaning(self, x: Any) -> Any:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))

    def formula(self, x: Any) -> Any:
        return (x > 0.0).where(x, _not_positive(x).expm1() * self.alpha)

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(), cls(0.5))


@dataclass(frozen=True)
class Selu(Composite):
    """scale * elu(x, alpha), by default with the fixed point of Klambauer et al., Self-Normalizing Neural
    Networks."""

    alpha: float = 1.6732632423543772
    scale: float = 1.0507009873554805

    def meaning(self, x: Any) -> Any:
        return self.scale * np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))

    def formula(self, x: Any) -> Any:
        return (x > 0.0).where(x, _not_positive(x).expm1() * self.alpha) * self.scale


@dataclass(frozen=True)
class Celu(Composite):
    """x where it is positive, else alpha (exp(x / alpha) - 1): an elu with a continuous slope."""

    alpha: float = 1.0

    def meaning(self, x: Any) -> Any:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0) / self.alpha))

    def formula(self, x: Any) -> Any:
        return (x > 0.0).where(x, (_not_positive(x) / self.alpha).expm1() * self.alpha)

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(), cls(0.5))


@dataclass(frozen=True)
class Silu(Composite):
    """x sigmoid(x), also called swish."""

    def meaning(self, x: Any) -> Any:
        return x * FUNCTIONS["sigmoid"].evaluate(x)

    def formula(self, x: Any) -> Any:
        return x * x.sigmoid()


@dataclass(frozen=True)
class Gelu(Composite):
    """x times the normal distribution function of x, exactly or by the tanh approximation of Hendrycks and
    Gimpel, Gaussian Error Linear Units."""

    approximate: Literal["none", "tanh"] = "none"

    def infer(self, *types: TensorType) -> TensorType:
        if self.approximate not in ("none", "tanh"):
            raise OpTypeError(f"gelu: approximate is 'none' or 'tanh', not {self.approximate!r}")
        return super().infer(*types)

    def meaning(self, x: Any) -> Any:
        if self.approximate == "none":
            return 0.5 * x * (1 + FUNCTIONS["erf"].evaluate(x * math.sqrt(0.5)))
        return 0.5 * x * (1 + np.tanh(_GELU_SCALE * x * (1 + 0.044715 * x * x)))

    def formula(self, x: Any) -> Any:
        if self.approximate == "none":
            return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)
        return x * 0.5 * ((x * _GELU_SCALE * (x * x * 0.044715 + 1.0)).tanh() + 1.0)

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(), cls("tanh"))


_GELU_SCALE = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Mish(Composite):
    """x tanh(softplus(x))"""

    def meaning(self, x: Any) -> Any:
        return x * np.tanh(FUNCTIONS["softplus"].evaluate(x))

    def formula(self, x: Any) -> Any:
        return x * x.softplus().tanh()


@dataclass(frozen=True)
class HardSigmoid(Composite):
    """alpha x + beta, kept between 0 and 1."""

    alpha: float = 0.2
    beta: float = 0.5
    cheap = True

    def meaning(self, x: Any) -> Any:
        return np.clip(self.alpha * x + self.beta, 0, 1)

    def formula(self, x: Any) -> Any:
        return (x * self.alpha + self.beta).clip(low=0.0, high=1.0)

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(), cls(1 / 6, 0.5))


@dataclass(frozen=True)
class HardSwish(Composite):
    """x (x / 6 + 1/2 kept between 0 and 1)"""

    cheap = True

    def meaning(self, x: Any) -> Any:
        return x * np.clip(x / 6 + 0.5, 0, 1)

    def formula(self, x: Any) -> Any:
        return x * (x / 6.0 + 0.5).clip(low=0.0, high=1.0)


@dataclass(frozen=True)
class Softsign(Composite):
    """x / (1 + |x|)"""

    def meaning(self, x: Any) -> Any:
        return x / (1 + np.abs(x))

    def formula(self, x: Any) -> Any:
        return x / (x.abs() + 1.0)


@dataclass(frozen=True)
class LogSigmoid(Composite):
    """log(sigmoid(x))"""

    def meaning(self, x: Any) -> Any:
        return -FUNCTIONS["softplus"].evaluate(-x)

    def formula(self, x: Any) -> Any:
        return -(-x).softplus()


# --- softmax --------------------------------------------------------------------------------------


class AlongAxis(Composite, abstract=True):
    """Couples the elements along one axis."""

    axis: int
    edges = False

    def infer(self, *types: TensorType) -> TensorType:
        x = super().infer(*types)
        if not isinstance(x, TensorType) or not 0 <= self.axis < x.rank:
            raise OpTypeError(f"{self.name}: axis {self.axis} is outside {x!r}")
        return x

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(1), cls(0))  # type: ignore[call-arg]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(cls(1), (f64[2, 4, 3],))  # type: ignore[call-arg]
        yield Sample(cls(1), (f32[3, 0],))  # type: ignore[call-arg]
        large = [[1e4, 1e4, -1e4], [-np.inf, 0, 1], [-1e30, -1e30, -1e30], [np.nan, 0, 1], [-np.inf] * 3]
        yield Sample(cls(1), (np.array(large, np.float32),), wrt=())  # type: ignore[call-arg]


@dataclass(frozen=True)
class Softmax(AlongAxis):
    """exp(x) / sum(exp(x)) along an axis; NaN where every element is -inf, as 0 / 0."""

    axis: int

    def meaning(self, x: Any) -> Any:
        e = np.exp(x - x.max(self.axis, keepdims=True, initial=-np.inf))
        return e / e.sum(self.axis, keepdims=True)

    def formula(self, x: Any) -> Any:
        """One division for all elements: the sum is between 1 and their number, so its reciprocal is harmless."""
        e = (x - x.reduce("max", (self.axis,), keepdims=True)).exp()
        return e * (1.0 / e.sum((self.axis,), keepdims=True))

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """y (g - sum(g y))"""
        wide, result = g.cast(g.dtype.compute), y.cast(g.dtype.compute)
        return ((result * (wide - (wide * result).sum((self.axis,), keepdims=True))).cast(g.dtype),)


@dataclass(frozen=True)
class LogSoftmax(AlongAxis):
    """log(softmax(x)) along an axis, without forming the softmax."""

    axis: int

    def meaning(self, x: Any) -> Any:
        shifted = x - x.max(self.axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True))

    def formula(self, x: Any) -> Any:
        shifted = x - x.reduce("max", (self.axis,), keepdims=True)
        return shifted - shifted.exp().sum((self.axis,), keepdims=True).log()

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        """g - softmax(x) sum(g)"""
        wide = g.cast(g.dtype.compute)
        weight = y.cast(wide.dtype).exp()
        return ((wide - weight * wide.sum((self.axis,), keepdims=True)).cast(g.dtype),)


# --- small functions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip(Composite):
    """min(max(x, low), high); None is no bound. The slope is 1 at the bounds and 0 outside."""

    low: float | None = None
    high: float | None = None
    kinds = ("float", "int", "uint")
    cheap = True

    def meaning(self, x: Any) -> Any:
        return np.clip(x, self.low, self.high)

    def formula(self, x: Any) -> Any:
        result = x
        if self.low is not None:
            result = (x < self.low).where(self.low, result)
        if self.high is not None:
            result = (result > self.high).where(self.high, result)
        return result

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(-1.0, 0.5), cls(None, 0.5), cls(-1.0), cls(), cls(1.0, -1.0))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(cls(-1, 2), (i32[3, 5],), -4, 4)
        yield Sample(cls(2, 3), (u8[3, 5],), 0, 9)


@dataclass(frozen=True)
class Square(Composite):
    """x x"""

    kinds = ("float", "int", "uint")
    cheap = True

    def meaning(self, x: Any) -> Any:
        return x * x

    def formula(self, x: Any) -> Any:
        return x * x


@dataclass(frozen=True)
class Reciprocal(Composite):
    """1 / x"""

    range = (0.3, 3.0)
    cheap = True

    def meaning(self, x: Any) -> Any:
        return 1 / x

    def formula(self, x: Any) -> Any:
        return 1.0 / x


@dataclass(frozen=True)
class Hypot(Composite):
    """sqrt(a a + b b) without overflow; its slope at (0, 0) is 0."""

    count = 2

    def meaning(self, a: Any, b: Any) -> Any:
        return np.hypot(a, b)

    def formula(self, a: Any, b: Any) -> Any:
        a, b = a.abs(), b.abs()
        large, small = a.binary("maximum", b), a.binary("minimum", b)
        # a ratio of 0/0 or inf/inf would be NaN
        plain = large.equals(0.0) | large.is_inf()
        ratio = plain.where(0.0, small) / plain.where(1.0, large)
        either = large * (ratio * ratio + 1.0).sqrt()
        return (a.is_inf() | b.is_inf()).where(math.inf, either)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        scale = g / y.equals(0.0).where(1.0, y)
        return scale * xs[0], scale * xs[1]


@dataclass(frozen=True)
class Lerp(Composite):
    """a + t (b - a), exact at t = 0 and t = 1."""

    count = 3
    cheap = True
    edges = False

    def meaning(self, a: Any, b: Any, t: Any) -> Any:
        return np.where(t < 0.5, a + t * (b - a), b - (1 - t) * (b - a))

    def formula(self, a: Any, b: Any, t: Any) -> Any:
        return (t < 0.5).where(a + t * (b - a), b - (1.0 - t) * (b - a))


@dataclass(frozen=True)
class Xlogy(Composite):
    """x log(y), and 0 where x is 0 (unless y is NaN)."""

    count = 2
    range = (0.2, 3.0)

    def meaning(self, x: Any, y: Any) -> Any:
        return np.where((x == 0) & ~np.isnan(y), 0, x * np.log(y))

    def formula(self, x: Any, y: Any) -> Any:
        absent = x.equals(0.0) & ~y.is_nan()
        return x * absent.where(1.0, y).log()


@dataclass(frozen=True)
class Logaddexp(Composite):
    """log(exp(a) + exp(b))"""

    count = 2

    def meaning(self, a: Any, b: Any) -> Any:
        return np.logaddexp(a, b)

    def formula(self, a: Any, b: Any) -> Any:
        same = a.equals(b)  # also two equal infinities, whose difference is NaN
        distance = same.where(0.0, a - b)
        return a.binary("maximum", b) + (-distance.abs()).exp().log1p()

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        distance = a.equals(b).where(0.0, a - b)
        return g * distance.sigmoid(), g * (-distance).sigmoid()


@dataclass(frozen=True)
class NanToNum(Composite):
    """NaN and the infinities replaced by numbers; by default 0 and the greatest finite ones of the type."""

    nan: float = 0.0
    posinf: float | None = None
    neginf: float | None = None
    cheap = True

    def _replacements(self, dtype: Any) -> tuple[float, float]:
        greatest = float(ml_dtypes.finfo(dtype.numpy).max)
        high = greatest if self.posinf is None else self.posinf
        return high, -greatest if self.neginf is None else self.neginf

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        (x,) = args
        high, low = self._replacements(dtype_of(x))
        wide = x.astype(dtype_of(x).compute.numpy)
        return np.nan_to_num(wide, nan=self.nan, posinf=high, neginf=low).astype(x.dtype)

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        high, low = self._replacements(x.dtype)
        finite = x.is_inf().where((x > 0.0).where(x.full_like(high), low), x)
        return x.is_nan().where(self.nan, finite)

    @classmethod
    def variants(cls) -> Iterator[Op]:
        yield from (cls(), cls(1.5, 10.0, -20.0))


@dataclass(frozen=True)
class IsFinite(Composite):
    """True where x is neither infinite nor NaN."""

    differentiable = False
    cheap = True

    def infer(self, *types: TensorType) -> TensorType:
        return super().infer(*types).with_dtype(boolean)

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.isfinite(args[0].astype(dtype_of(args[0]).compute.numpy))

    def decompose(self, *xs: Node) -> Node:
        (x,) = xs
        return ~(x.is_nan() | x.is_inf())


# --- truth values ---------------------------------------------------------------------------------


class Logical(Composite, abstract=True):
    """An operation on bools."""

    count = 2
    kinds = ("bool",)
    differentiable = False
    cheap = True

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        both = np.array([[False, True]] * 2)
        yield Sample(cls(), (both, both.T)[: cls.count])


@dataclass(frozen=True)
class LogicalAnd(Logical):
    def meaning(self, a: Any, b: Any) -> Any:
        return np.logical_and(a, b)

    def formula(self, a: Any, b: Any) -> Any:
        return a & b


@dataclass(frozen=True)
class LogicalOr(Logical):
    def meaning(self, a: Any, b: Any) -> Any:
        return np.logical_or(a, b)

    def formula(self, a: Any, b: Any) -> Any:
        return a | b


@dataclass(frozen=True)
class LogicalXor(Logical):
    def meaning(self, a: Any, b: Any) -> Any:
        return np.logical_xor(a, b)

    def formula(self, a: Any, b: Any) -> Any:
        return a ^ b


@dataclass(frozen=True)
class LogicalNot(Logical):
    count = 1

    def meaning(self, a: Any) -> Any:
        return np.logical_not(a)

    def formula(self, a: Any) -> Any:
        return ~a


# --- helpers --------------------------------------------------------------------------------------


def norm(x: Node, axes: tuple[int, ...] | None = None, order: float = 2, keepdims: bool = False) -> Any:
    """The 1, 2 or infinity norm over axes; the slope of the 2-norm at 0 is 0."""
    if order == 1:
        return x.abs().reduce("sum", axes, keepdims)
    if order == math.inf:
        return x.abs().reduce("max", axes, keepdims)
    if order != 2:
        raise OpTypeError(f"norm: the order is 1, 2 or infinity, not {order}")
    total = (x * x).sum(axes, keepdims)
    zero = total.equals(0.0)
    return zero.where(0.0, zero.where(1.0, total).sqrt())
