"""Arithmetic on known numbers of which some are symbolic dims: how shapes are computed at import.

Each rule is one op on arrays of objects; it returns an array of objects, or None when the answer is not
expressible (then the op is traced like any other). Floats appear only as exact multiples of dims (Ratio), the form
in which exporters scale sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Expr, Symbol
from ingot.compiler.ir.types import DType, boolean, i64
from ingot.compiler.ops.base import DimsDiffer
from ingot.frontends.onnx.elements import element
from ingot.frontends.onnx.values import Dims, Ratio, known

LARGEST_LEAST = 4096  # of a size that is assumed to be at least so large: a window of samples, not a whole recording

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


class Undecided(Exception):
    """The result is not a known number."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return register


def fold(op: Any, values: Sequence[np.ndarray | Dims | None]) -> list[np.ndarray | Dims] | None:
    """The results of a node on known values, at least one of them Dims; None when it has to be traced."""
    found = _RULES.get(op.name)
    if found is None:
        return None
    arrays = [None if v is None else v.array if isinstance(v, Dims) else _objects(v) for v in values]
    dtype = next(v.dtype for v in values if isinstance(v, Dims))
    try:
        result = found(op, *arrays)
    except Undecided:
        return None
    results = result if isinstance(result, list) else [result]
    return [known(r, _result_dtype(op, dtype, values)) for r in results]


def _objects(array: np.ndarray) -> np.ndarray:
    """Python numbers; a float that is a whole number stays a float, so that division is exact later."""
    result = np.empty(array.shape, object)
    result[...] = array.tolist()
    return result


def _result_dtype(op: Any, dtype: DType, values: Sequence[Any]) -> DType:
    if op.name in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Not", "And", "Or"):
        return boolean
    if op.name in ("Shape", "Size"):
        return i64
    if op.name == "Cast":
        made = element(op.get("to"))
        return made.storage if made is not None and made.storage is not None else dtype
    return dtype


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """The function on every element, broadcasting."""
    wide = np.broadcast_arrays(*arrays)
    result = np.empty(wide[0].shape, object)
    for place in np.ndindex(*result.shape):
        result[place] = function(*(a[place] for a in wide))
    return result


def _whole(x: Any) -> Any:
    """A number that must be an integer or a dim."""
    if isinstance(x, float):
        if not x.is_integer():
            raise Undecided
        return int(x)
    if isinstance(x, Ratio):
        if x.factor.denominator == 1:
            return x.dim * x.factor.numerator
        raise Undecided
    return x


def _multiply(a: Any, b: Any) -> Any:
    if not isinstance(a, Expr | Ratio):
        a, b = b, a
    if not isinstance(a, Expr | Ratio):
        return a * b
    if isinstance(a, Expr) and isinstance(b, int | Expr) and not isinstance(b, bool):
        return a * b
    if isinstance(b, int | float):
        return _scaled(a, Fraction(b))
    raise Undecided


def _scaled(a: Any, factor: Fraction) -> Any:
    """Exact in floats as well: small dyadic fractions, and quotients by whole numbers."""
    base, given = (a.dim, a.factor) if isinstance(a, Ratio) else (a, Fraction(1))
    total = given * factor
    if total.denominator > 1 << 20 or abs(total.numerator) > 1 << 20 or total <= 0:
        raise Undecided
    if not _is_dyadic(total) and total.numerator != 1:
        raise Undecided
    return base * total.numerator if total.denominator == 1 else Ratio(base, total)


def _divide(op: Any) -> Callable[[Any, Any], Any]:
    def divide(a: Any, b: Any) -> Any:
        if b == 0:
            raise Undecided
        if op.is_float:
            if isinstance(b, int | float) and isinstance(a, Expr | Ratio):
                return _scaled(a, 1 / Fraction(b))
            if isinstance(a, Expr | Ratio | int | float) and symbolic_same(a, b):
                return 1
            raise Undecided
        if isinstance(a, int) and isinstance(b, int):
            return int(a / b) if a % b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
        # ONNX truncates; that is the floor where both are not negative
        if not isinstance(b, int | Expr):
            raise Undecided
        if symbolic.less(0, b) is not True:
            _assume_nonnegative(b - 1)
        if symbolic.is_nonnegative(a) is not True:
            _assume_nonnegative(a)
        return a // b

    return divide


def _assume_nonnegative(dim: Any) -> None:
    """Ask for calls in which the symbols of a size are so large that the size is not negative: `length - 3` is what is
    left of a length that is longer, and `height // 16` windows are some of an image that is high enough. Other calls
    have programs of their own."""
    symbols = [atom for atom in symbolic.atoms(dim) if isinstance(atom, Symbol)]
    needed = list(symbols)
    for symbol in symbols:  # one whose bound decides nothing keeps it
        others = [s for s in needed if s is not symbol]
        if _suffices(dim, dict.fromkeys(others, LARGEST_LEAST)):
            needed = others
    if not needed or not _suffices(dim, dict.fromkeys(needed, LARGEST_LEAST)):
        raise Undecided
    symbol, *others = needed
    rest = dict.fromkeys(others, LARGEST_LEAST)
    short = symbol.lower or 0  # does not suffice; what `least` is does
    least = LARGEST_LEAST
    while least - short > 1:
        middle = (short + least) // 2
        if _suffices(dim, {symbol: middle} | rest):
            least = middle
        else:
            short = middle
    larger = Symbol(symbol.name, least, symbol.upper)
    raise DimsDiffer(f"whether {dim} is negative decides how sizes are rounded", symbol, larger)


def _suffices(dim: Any, least: Mapping[Symbol, int]) -> bool:
    """Whether the size is not negative when these symbols are not smaller than that."""
    larger = {s: Symbol(s.name, max(n, s.lower or 0), s.upper) for s, n in least.items()}
    return symbolic.is_nonnegative(symbolic.substitute(dim, larger)) is True


def symbolic_same(a: Any, b: Any) -> bool:
    return isinstance(a, int | Expr) and isinstance(b, int | Expr) and symbolic.equal(a, b) is True


def _sum(a: Any, b: Any, sign: int = 1) -> Any:
    if isinstance(b, Ratio) and sign > 0:
        a, b = b, a
    if isinstance(a, Ratio):
        return _moved(a, b, sign)
    a, b = _whole(a), _whole(b)
    return a + b if sign > 0 else a - b


def _moved(ratio: Ratio, by: Any, sign: int) -> Any:
    """(length - kernel) / stride + 1, of which the ceiling is taken next: by whole numbers no fraction gets nearer to one
    when floats round; by others only sums of dyadic fractions are exact."""
    steps = 1 / ratio.factor
    if isinstance(by, Expr):
        shift: Any = by * steps.numerator if steps.denominator == 1 else _undecided()
    elif isinstance(by, int | float) and (Fraction(by).denominator == 1 or _is_dyadic(ratio.factor)):
        shift = Fraction(by) * steps
        shift = int(shift) if shift.denominator == 1 else _undecided()
    else:
        raise Undecided
    dim = ratio.dim + sign * shift
    return Ratio(dim, ratio.factor) if isinstance(dim, Expr) else _undecided()


def _is_dyadic(factor: Fraction) -> bool:
    return factor.denominator & (factor.denominator - 1) == 0


def _decided(answer: bool | None) -> bool:
    if answer is None:
        raise Undecided
    return answer


def _extreme(pick: Callable[..., Any]) -> Rule:
    def convert(op: Any, first: np.ndarray, *more: np.ndarray) -> np.ndarray:
        result = first
        for other in more:
            result = _each(lambda a, b: pick(_whole(a), _whole(b)), result, other)
        return result

    return convert


rule("Add")(lambda op, a, b: _each(_sum, a, b))
rule("Sub")(lambda op, a, b: _each(lambda x, y: _sum(x, y, -1), a, b))
rule("Mul")(lambda op, a, b: _each(_multiply, a, b))
rule("Div")(lambda op, a, b: _each(_divide(op), a, b))
rule("Neg")(lambda op, a: _each(lambda x: -_whole(x), a))
rule("Min")(_extreme(symbolic.minimum))
rule("Max")(_extreme(symbolic.maximum))
rule("Equal")(lambda op, a, b: _each(lambda x, y: _decided(symbolic.equal(_whole(x), _whole(y))), a, b))
rule("Less")(lambda op, a, b: _each(lambda x, y: _decided(symbolic.less(_whole(x), _whole(y))), a, b))
rule("Greater")(lambda op, a, b: _each(lambda x, y: _decided(symbolic.less(_whole(y), _whole(x))), a, b))
rule("LessOrEqual")(lambda op, a, b: _each(lambda x, y: _decided(symbolic.less_equal(_whole(x), _whole(y))), a, b))
rule("GreaterOrEqual")(lambda op, a, b: _each(lambda x, y: _decided(symbolic.less_equal(_whole(y), _whole(x))), a, b))
rule("Identity", "Dropout")(lambda op, a, *_: a)
rule("Floor")(lambda op, a: _each(lambda x: x.floor() if isinstance(x, Ratio) else _whole(x), a))
rule("Ceil")(lambda op, a: _each(lambda x: x.ceil() if isinstance(x, Ratio) else _whole(x), a))
rule("Sign")(lambda op, a: _each(lambda x: 1 if _decided(symbolic.less(0, _whole(x))) else _undecided(), a))
rule("Abs")(lambda op, a: _each(lambda x: x if symbolic.is_nonnegative(_whole(x)) else _undecided(), a))


def _undecided() -> Any:
    raise Undecided


@rule("Mod")
def _mod(op: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    def remainder(x: Any, y: Any) -> Any:
        if isinstance(x, int) and x >= 0 and isinstance(y, Expr):  # how far a roll goes, of a size that is larger
            if symbolic.less(x, y) is not True:
                _assume_nonnegative(y - x - 1)
            return x
        if symbolic.less(0, y) is not True or (op.get("fmod", 0) and symbolic.is_nonnegative(x) is not True):
            raise Undecided
        return x % y

    return _each(remainder, a, b)


@rule("Cast")
def _cast(op: Any, a: np.ndarray) -> np.ndarray:
    made = element(op.get("to"))
    if made is None or made.storage is None or made.is_coded:
        raise Undecided
    if made.storage.is_float:
        return a
    if made.storage == boolean:
        return _each(lambda x: not _decided(symbolic.equal(_whole(x), 0)), a)
    if made.storage.bits < 32:
        raise Undecided
    return _each(lambda x: x.floor() if isinstance(x, Ratio) else int(x) if isinstance(x, float) else x, a)


@rule("Where")
def _where(op: Any, condition: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return _each(lambda c, a, b: a if c else b, condition, yes, no)


@rule("Gather")
def _gather(op: Any, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    places = _integers(indices)
    return np.asarray(np.take(data, places, op.get("axis", 0)), object)


def _integers(array: np.ndarray) -> np.ndarray:
    if any(isinstance(item, Expr | Ratio) for item in array.ravel()):
        raise Undecided
    return array.astype(np.int64)


@rule("Concat")
def _concat(op: Any, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, op.get("axis", 0))


@rule("Unsqueeze")
def _unsqueeze(op: Any, data: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    places = op.get("axes") if axes is None else _integers(axes).tolist()
    return np.expand_dims(data, tuple(places))


@rule("Squeeze")
def _squeeze(op: Any, data: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    places = op.get("axes", None) if axes is None else _integers(axes).tolist()
    return np.squeeze(data, None if places is None else tuple(places))


@rule("Reshape")
def _reshape(op: Any, data: np.ndarray, shape: np.ndarray | None = None) -> np.ndarray:
    dims = op.get("shape") if shape is None else _integers(shape).tolist()
    return data.reshape([data.shape[n] if d == 0 and not op.get("allowzero", 0) else d for n, d in enumerate(dims)])


@rule("Flatten")
def _flatten(op: Any, data: np.ndarray) -> np.ndarray:
    axis = op.get("axis", 1)
    return data.reshape(int(np.prod(data.shape[:axis], dtype=int)), -1)


@rule("Transpose")
def _transpose(op: Any, data: np.ndarray) -> np.ndarray:
    return np.transpose(data, op.get("perm", None))


@rule("Slice")
def _slice(op: Any, data: np.ndarray, *parts: np.ndarray | None) -> np.ndarray:
    if parts:
        starts, ends, axes, steps = [None if p is None else _integers(p).tolist() for p in (*parts, None, None)][:4]
    else:
        starts, ends, axes, steps = op.get("starts"), op.get("ends"), op.get("axes", None), None
    assert starts is not None
    assert ends is not None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        last = None if step < 0 and end < -data.shape[axis] else end
        index[axis] = slice(start, last, step)
    return data[tuple(index)]


@rule("Split")
def _split(op: Any, data: np.ndarray, sizes: np.ndarray | None = None) -> list[np.ndarray]:
    axis = op.get("axis", 0)
    given = op.get("split", None) if sizes is None else _integers(sizes).tolist()
    if given is None:
        return np.array_split(data, op.get("num_outputs", op.output_count), axis)
    return np.split(data, np.cumsum(given)[:-1], axis)


@rule("Expand")
def _expand(op: Any, data: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(_integers(shape).tolist())))


@rule("Tile")
def _tile(op: Any, data: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    return np.tile(data, _integers(repeats).tolist())


def _reduction(step: Callable[[Any, Any], Any]) -> Rule:
    def convert(op: Any, data: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        places = op.get("axes", None) if axes is None else _integers(axes).tolist()
        if data.ndim != 1 or (places is not None and list(places) not in ([0], [-1])):
            raise Undecided
        total = _whole(data[0])
        for item in data[1:]:
            total = step(total, _whole(item))
        result = np.empty((1,) if op.get("keepdims", 1) else (), object)
        result[...] = total
        return result

    return convert


rule("ReduceProd")(_reduction(lambda a, b: a * b))
rule("ReduceSum")(_reduction(lambda a, b: a + b))
rule("ReduceMax")(_reduction(symbolic.maximum))
rule("ReduceMin")(_reduction(symbolic.minimum))
