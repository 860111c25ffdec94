"""How each op gets arguments and fields that fit it: one function for one op or several alike.

A maker returns the new node (or a tuple of nodes). It may raise LookupError when the graph has nothing for it,
and OpTypeError when what it chose does not fit; the step is then tried again with another op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ingot.compiler.ops  # noqa: F401  fills the registry
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import DTYPES, boolean, i32, i64, u32, u64
from ingot.compiler.ops.average_pooling import average_pool
from ingot.compiler.ops.base import Node, Op, OpTypeError
from ingot.compiler.ops.contraction import contract, matmul
from ingot.compiler.ops.control import If, Scan, While
from ingot.compiler.ops.convolution import convolve, convolve_transpose
from ingot.compiler.ops.elementwise import Elementwise
from ingot.compiler.ops.gradient import CustomGradient
from ingot.compiler.ops.movement import Iota
from ingot.compiler.ops.pooling import max_pool
from tests.fuzz.generator import Case, Generator, Settings, finish, fits

Maker = Callable[[Generator, Any], Any]
MAKERS: dict[str, Maker] = {}


def maker(*names: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, function))
        return function

    return register


def random_case(seed: int, settings: Settings) -> Case:
    generator = Generator(seed, settings)
    grow(generator, settings.steps)
    return finish(generator, f"seed{seed}")


def grow(generator: Generator, steps: int) -> None:
    """Add results of `steps` ops, each an op of the registry that found arguments."""
    names = [n for n in sorted(Op.registry) if n in MAKERS and allowed(Op.registry[n], generator)]
    names += [n for n in COMMON if n in names] * 3
    made = failures = 0
    while made < steps and failures < 200:
        name = generator.choose(names)
        try:
            result = MAKERS[name](generator, Op.registry[name])
        except (LookupError, OpTypeError):
            failures += 1
            continue
        before = len(generator.values)
        generator.add(result)
        made += len(generator.values) > before


# What models are mostly made of, and what fuses: drawn more often than the rest.
COMMON = (
    "add", "mul", "sub", "div", "tanh", "exp", "relu", "where", "sum", "max", "mean", "reshape", "transpose",
    "broadcast", "slice", "concat", "contract", "softmax", "layer_norm", "cast", "pad", "gather",
)  # fmt: skip


def allowed(kind: type[Op], generator: Generator) -> bool:
    if kind.way_down() == "regions" and (not generator.settings.control_flow or generator.depth >= 2):
        return False
    return kind.name not in ("digamma", "lgamma") or not generator.settings.differentiable


# --- elementwise ----------------------------------------------------------------------------------


def elementwise(g: Generator, kind: type[Elementwise]) -> Any:
    first = g.value(lambda v: v.dtype.kind in kind.function.kinds)
    args = [first, *(g.like(first) for _ in range(kind.function.arity - 1))]
    if g.chance(0.85):
        args = [into_range(g, a, kind) for a in args]
    return args[0].apply(kind(), *args[1:])


def into_range(g: Generator, x: Node, kind: type[Elementwise]) -> Node:
    """x, moved to where the function is defined."""
    low, high = kind.range
    if (low, high) == (-2.0, 2.0) or x.dtype == boolean:
        return x
    if x.dtype.is_float:
        return x.sigmoid() * (high - low) + low
    return x.binary("bitwise_and", 3) + (1 if low > 0 else 0)


for _name, _kind in Op.registry.items():
    if issubclass(_kind, Elementwise):
        MAKERS[_name] = elementwise  # type: ignore[assignment]


@maker(
    "celu", "elu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "log_sigmoid", "mish", "relu", "relu6", "selu",
    "silu", "softsign", "square", "is_finite", "nan_to_num",
)  # fmt: skip
def activation(g: Generator, kind: Any) -> Any:
    return g.floating().apply(kind())


@maker("reciprocal")
def reciprocal(g: Generator, kind: Any) -> Any:
    x = g.floating()
    return (x * x + 0.5).apply(kind())


@maker("hypot", "logaddexp", "prelu", "xlogy")
def two_floats(g: Generator, kind: Any) -> Any:
    a = g.floating()
    b = g.like(a)
    return a.apply(kind(), b.sigmoid() if kind.name == "xlogy" else b)


@maker("lerp")
def lerp(g: Generator, kind: Any) -> Any:
    a = g.floating()
    return a.apply(kind(), g.like(a), g.like(a).sigmoid())


@maker("logical_and", "logical_or", "logical_xor", "logical_not")
def logical(g: Generator, kind: Any) -> Any:
    a = g.value(dtype=boolean)
    return a.apply(kind()) if kind.name == "logical_not" else a.apply(kind(), g.like(a))


@maker("clip")
def clip(g: Generator, kind: Any) -> Any:
    return g.value(lambda v: v.dtype.is_float or v.dtype == i32).apply(kind(low=-1, high=1))


@maker("where")
def where(g: Generator, kind: Any) -> Any:
    a = g.value()
    condition = g.find(lambda v: v.dtype == boolean and v.shape == a.shape)
    if condition is None:
        probe = g.like(a)
        condition = probe > probe.constant(0) if probe.dtype != boolean else probe
    return condition.where(a, g.like(a))


@maker("cast")
def cast(g: Generator, kind: Any) -> Any:
    x = g.value()
    keep = g.settings.differentiable and x.dtype.is_float and g.chance(0.7)
    return x.apply(kind(g.float if keep else g.choose(list(DTYPES.values()))))


@maker("bitcast")
def bitcast(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.dtype != boolean)
    same = [t for t in DTYPES.values() if t.bits == x.dtype.bits and t != boolean]
    if x.dtype.is_float:  # which bits a NaN has is nobody's promise, NumPy's neither
        x = x.equals(x).where(x, 0.0)
    return x.apply(kind(g.choose(same)))


@maker("stop_gradient")
def stop_gradient(g: Generator, kind: Any) -> Any:
    return g.floating().apply(kind())


@maker("independent")
def independent(g: Generator, kind: Any) -> Any:
    return g.floating().apply(kind(g.integer(0, 3)))


@maker("custom_gradient")
def custom_gradient(g: Generator, kind: Any) -> Any:
    x = g.floating()

    def region(count: int, function: Callable[..., Any]) -> Graph:
        inner = Generator(0, g.settings, g)
        return Graph("rule", *_traced(inner, [x.type] * count, function))

    return x.apply(CustomGradient(region(1, lambda a: a.sin()), region(3, lambda a, y, d: d * a.cos() + y * 0.5)))


def _traced(inner: Generator, types: Sequence[Any], function: Callable[..., Any]) -> Any:
    nodes = [Node(inner.builder, inner.builder.input(f"a{n}", t)) for n, t in enumerate(types)]
    made = function(*nodes)
    return inner.builder.inputs, tuple(n.value for n in (made if isinstance(made, tuple) else (made,)))


# --- made from shapes -----------------------------------------------------------------------------


@maker("constant")
def constant(g: Generator, kind: Any) -> Any:
    like = g.value()
    value = g.choose((0, 1, 2)) if not like.dtype.is_float else g.choose((0.0, -0.0, 1.0, -1.5, 0.1, float("inf")))
    if g.chance(0.5):
        return like.full(g.shape(), value)
    return like.wrap(like.builder.emit(kind.of([value, *range(g.integer(0, 4))], like.dtype)))


@maker("iota")
def iota(g: Generator, kind: Any) -> Any:
    shape = g.shape(g.integer(1, 3))
    dtype = g.choose((i64, i32, g.float))
    return g.value().wrap(g.builder.emit(Iota(shape, g.integer(0, len(shape) - 1), dtype)))


@maker("dimension")
def dimension(g: Generator, kind: Any) -> Any:
    extent = g.choose(g.extents)
    return g.value().wrap(g.builder.emit(kind(extent * 2 + 1, g.choose((i64, g.float)))))


@maker("divisor")
def divisor(g: Generator, kind: Any) -> Any:
    return (g.value(lambda v: v.dtype in (i32, i64), dtype=i64) | 1).apply(kind())


@maker("one_hot")
def one_hot(g: Generator, kind: Any) -> Any:
    index = g.value(lambda v: v.dtype in (i32, i64) and v.rank < 4, dtype=i64)
    return index.apply(kind(g.choose(g.extents), g.integer(0, index.rank), g.float))


# --- random numbers -------------------------------------------------------------------------------


def key_of(g: Generator) -> Node:
    if g.depth:
        raise LookupError
    known = g.find(lambda v: v.type == u64[2])
    return known or g.input(u64, (2,), (0, 1 << 40))


@maker("random_bits", "random_uniform", "random_normal", "random_integers")
def draw(g: Generator, kind: Any) -> Any:
    shape, stream = g.shape(), g.integer(0, 3)
    match kind.name:
        case "random_bits":
            op = kind(shape, g.choose((u32, u64)), stream)
        case "random_integers":
            op = kind(shape, -3, 4, g.choose((i32, i64)), stream)
        case _:
            op = kind(shape, g.float, stream)
    return key_of(g).apply(op)


@maker("bernoulli", "categorical")
def draw_with(g: Generator, kind: Any) -> Any:
    x = g.floating(least=1)
    return key_of(g).apply(kind(g.integer(0, 3)), x.sigmoid())


@maker("permutation")
def permutation(g: Generator, kind: Any) -> Any:
    return key_of(g).apply(kind(g.choose(g.extents), g.integer(0, 3)))


# --- movement -------------------------------------------------------------------------------------


@maker("broadcast")
def broadcast(g: Generator, kind: Any) -> Any:
    x = g.value()
    inner = tuple(g.choose(g.extents) if d == 1 and g.chance(0.7) else d for d in x.shape)
    shape = (*g.shape(g.integer(0, 2)), *inner)
    if not fits(shape):
        raise LookupError
    return x.apply(kind(shape))


@maker("reshape")
def reshape(g: Generator, kind: Any) -> Any:
    """Merge neighbours, split a dim, add and drop dims of 1."""
    x = g.value(lambda v: v.rank > 0)
    shape = list(x.shape)
    for _ in range(g.integer(1, 3)):
        axis = g.integer(0, max(0, len(shape) - 1))
        match g.integer(0, 3):
            case 0 if len(shape) > 1:
                axis = min(axis, len(shape) - 2)
                shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
            case 1 if shape:
                dim = shape[axis]
                factors = [f for f in (2, 3, 4) if isinstance(dim, int) and dim and dim % f == 0]
                if factors:
                    factor = g.choose(factors)
                    pair = [factor, dim // factor]
                    shape[axis : axis + 1] = pair if g.chance(0.5) else pair[::-1]
            case 2:
                shape.insert(axis, 1)
            case _:
                shape = [d for d in shape if d != 1]
    return x.apply(kind(tuple(shape)))


@maker("transpose")
def transpose(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 1)
    return x.apply(kind(tuple(int(p) for p in g.rng.permutation(x.rank))))


@maker("slice")
def slices(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    starts: list[Dim] = []
    stops: list[Dim] = []
    steps: list[int] = []
    for dim in x.shape:
        step = g.choose((1, 1, 1, 2, 3, -1, -2))
        known = dim if isinstance(dim, int) else 1  # at least one element where the dim is not known
        low = g.integer(0, known) if isinstance(dim, int) else 0
        high: Dim = g.integer(low, known) if isinstance(dim, int) else dim
        if not isinstance(dim, int) and (dim.lower if isinstance(dim, symbolic.Symbol) else 0) == 0:
            step = abs(step)
        starts.append(low if step > 0 else high - 1)
        stops.append(high if step > 0 else low - 1)
        steps.append(step)
    return x.apply(kind(tuple(starts), tuple(stops), tuple(steps)))


@maker("pad")
def pad(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    low = tuple(g.choose((0, 0, 1, 2, -1)) for _ in x.shape)
    high = tuple(g.choose((0, 0, 1, 3)) for _ in x.shape)
    return x.apply(kind(low, high, g.choose(("constant", "constant", "edge", "reflect", "symmetric", "wrap"))))


@maker("concat")
def concat(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    axis = g.integer(0, x.rank - 1)

    def joins(v: Node) -> bool:
        return v.dtype == x.dtype and v.rank == x.rank and all(
            a == b for n, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if n != axis
        )  # fmt: skip

    others = [g.find(joins) or x for _ in range(g.integer(1, 3))]
    return x.apply(kind(axis), *others)


@maker("flip")
def flip(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    return x.apply(kind(tuple(n for n in range(x.rank) if g.chance(0.6))))


@maker("roll")
def roll(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    return x.apply(kind(tuple(g.integer(-3, 3) for _ in x.shape)))


@maker("tile")
def tile(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: 0 < v.rank < 4)
    return x.apply(kind(tuple(g.choose((1, 1, 2, 3)) for _ in x.shape)))


@maker("diagonal")
def diagonal(g: Generator, kind: Any) -> Any:
    return g.value(lambda v: v.rank > 1).apply(kind(g.integer(-2, 2)))


@maker("dilate")
def dilate(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    return x.apply(kind(tuple(g.choose((1, 1, 2, 3)) for _ in x.shape)))


# --- positions that are data ----------------------------------------------------------------------


@maker("gather")
def gather(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    axis = g.integer(0, x.rank - 1)
    return x.apply(kind(axis), g.indices(x.shape[axis], g.shape(g.integer(0, 2)), g.choose((i64, i32))))


@maker("gather_elements")
def gather_elements(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    axis = g.integer(0, x.rank - 1)
    shape = (*x.shape[:axis], g.choose(g.extents), *x.shape[axis + 1 :])
    return x.apply(kind(axis), g.indices(x.shape[axis], shape))


@maker("gather_nd")
def gather_nd(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.shape[0] != 0)
    return x.apply(kind(0), g.indices(x.shape[0], (*g.shape(g.integer(0, 2)), 1)))


@maker("scatter_add", "scatter_elements", "scatter_nd")
def scatter(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.dtype != boolean)
    axis = g.integer(0, x.rank - 1) if kind.name != "scatter_nd" else 0
    how = g.choose(("none", "add", "mul", "max", "min"))
    match kind.name:
        case "scatter_add":
            op, shape = kind(axis), g.shape(g.integer(0, 2))
        case "scatter_elements":
            op, shape = kind(axis, how), (*x.shape[:axis], g.choose(g.extents), *x.shape[axis + 1 :])
        case _:
            op, shape = kind(how), (*g.shape(g.integer(0, 2)), 1)
    index = g.indices(x.shape[axis], shape)
    updates = g.shaped(g.value(dtype=x.dtype), op.reading.infer(x.type, index.type))
    return x.apply(op, index, updates)


@maker("dynamic_slice", "dynamic_update_slice")
def dynamic(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0)
    sizes = tuple(g.integer(1, d) if isinstance(d, int) and d else d for d in x.shape)
    starts = g.indices(4, (x.rank,))
    if kind.name == "dynamic_slice":
        return x.apply(kind(sizes), starts)
    return x.apply(kind(), g.shaped(g.value(dtype=x.dtype), x.type.with_shape(sizes)), starts)


@maker("check_range")
def check_range(g: Generator, kind: Any) -> Any:
    if g.depth:
        raise LookupError
    extent = g.choose(g.extents)
    return g.indices(extent, g.shape()).apply(kind(extent))


# --- reductions -----------------------------------------------------------------------------------


def some_axes(g: Generator, x: Node) -> tuple[int, ...]:
    chosen = tuple(n for n in range(x.rank) if g.chance(0.5))
    return chosen or (g.integer(0, x.rank - 1),)


@maker("sum", "prod", "max", "min")
def reduction(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.dtype != boolean)
    return kept(g, x, some_axes(g, x), lambda axes: x.apply(kind(axes)))


@maker("mean", "var", "logsumexp")
def statistic(g: Generator, kind: Any) -> Any:
    x = g.floating(least=1)
    return kept(g, x, some_axes(g, x), lambda axes: x.apply(kind(axes)))


def kept(g: Generator, x: Node, axes: tuple[int, ...], reduce: Callable[[tuple[int, ...]], Node]) -> Node:
    """The reduction, now and then with dims of 1 in place of what is reduced, and spread over x again."""
    y = reduce(axes)
    if g.chance(0.5):
        y = y.reshape(tuple(1 if n in axes else d for n, d in enumerate(x.shape)))
        y = y.broadcast_to(x.shape) if g.chance(0.5) else y
    return y


@maker("any", "all")
def logic_reduction(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0, dtype=boolean)
    return x.apply(kind(some_axes(g, x)))


@maker("argmax", "argmin")
def position(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.dtype != boolean)
    return x.apply(kind(g.integer(0, x.rank - 1), g.chance(0.3)))


@maker("cumsum", "cumprod")
def cumulative(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.dtype != boolean)
    return x.apply(kind(g.integer(0, x.rank - 1), g.chance(0.3), g.chance(0.3)))


@maker("linear_recurrence")
def linear_recurrence(g: Generator, kind: Any) -> Any:
    x = g.floating(least=1)
    return x.tanh().apply(kind(g.integer(0, x.rank - 1), g.chance(0.3)), g.like(x))


@maker("sort", "argsort")
def sort(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.dtype != boolean)
    return x.apply(kind(g.integer(0, x.rank - 1), g.chance(0.4)))


@maker("top_k")
def top_k(g: Generator, kind: Any) -> Any:
    x = g.value(lambda v: v.rank > 0 and v.dtype != boolean)
    axis = g.integer(0, x.rank - 1)
    extent = x.shape[axis]
    return x.apply(kind(g.integer(1, min(extent, 5)) if isinstance(extent, int) and extent else 1, axis, g.chance(0.7)))


# --- contraction, convolution, composite layers ----------------------------------------------------


@maker("contract")
def contraction(g: Generator, kind: Any) -> Any:
    a = g.floating(least=1)
    b = g.find(lambda v: v.dtype == a.dtype and v.rank > 0 and any(d in a.shape for d in v.shape))
    if b is None or (a.rank <= 2 and g.chance(0.4)):
        b = g.input(a.dtype, (a.shape[-1], *g.shape(g.integer(0, 1)))) if not g.depth else a
    if a.shape[-1] == b.shape[max(0, b.rank - 2)] and b.rank <= 2 and g.chance(0.7):
        return matmul(a, b)
    return contract(*random_letters(g, a, b))


def random_letters(g: Generator, a: Node, b: Node) -> tuple[Node, str, Node, str, str]:
    """Letters for two operands: equal extents may get the same letter."""
    left = "abcdef"[: a.rank]
    right = ""
    fresh = iter("uvwxyz")
    for dim in b.shape:
        same = [c for c, d in zip(left, a.shape, strict=True) if d == dim and c not in right]
        right += g.choose(same) if same and g.chance(0.8) else next(fresh)
    letters = list(dict.fromkeys(left + right))
    output = [c for c in letters if (c in left and c in right and g.chance(0.3)) or (c in left) != (c in right)]
    g.rng.shuffle(output)
    return a, left, b, right, "".join(output)


@maker("convolution", "convolution_transpose")
def convolution(g: Generator, kind: Any) -> Any:
    rank = g.choose((1, 2, 2))
    if g.depth:
        raise LookupError
    groups = g.choose((1, 1, 1, 2))
    inner, outer = groups * g.integer(1, 3), groups * g.integer(1, 5)
    sizes = tuple(g.integer(4, 8) for _ in range(rank))
    x = g.value(lambda v: v.shape[2:] == sizes and v.shape[1] == inner, rank=rank + 2) if g.chance(0.1) else None
    x = x or g.input(g.float, (g.choose(g.extents), inner, *sizes))
    if not fits(x.shape):
        raise LookupError
    taps = tuple(g.integer(1, 3) for _ in range(rank))
    strides, padding = g.integer(1, 2), g.integer(0, 1)
    if kind.name == "convolution":
        w = g.input(x.dtype, (outer, inner // groups, *taps))
        return convolve(x, w, strides=(strides,) * rank, padding=((padding, padding),) * rank, groups=groups)
    w = g.input(x.dtype, (inner, outer // groups, *taps))
    return convolve_transpose(x, w, strides=(strides,) * rank, padding=((padding, 0),) * rank, groups=groups)


@maker("max_pool", "average_pool")
def pool(g: Generator, kind: Any) -> Any:
    def spacious(v: Node) -> bool:
        return v.dtype.is_float and 2 < v.rank < 5 and all(isinstance(d, int) and d > 2 for d in v.shape[2:])

    x = g.value(spacious)
    window, stride = g.integer(1, 3), g.integer(1, 2)
    padding = g.integer(0, window // 2)
    if kind.name == "max_pool":
        return max_pool(x, window, strides=stride, padding=padding)
    return average_pool(
        x, window, strides=stride, padding=padding, count_include_pad=g.chance(0.5), ceil_mode=g.chance(0.3)
    )


@maker("softmax", "log_softmax")
def softmax(g: Generator, kind: Any) -> Any:
    x = g.floating(least=1)
    return x.apply(kind(g.integer(0, x.rank - 1)))


@maker("layer_norm", "rms_norm")
def layer_norm(g: Generator, kind: Any) -> Any:
    x = g.floating(least=1)
    return x.apply(kind(trailing=g.integer(1, min(2, x.rank))))


@maker("instance_norm", "batch_norm_training", "local_response_norm")
def channel_norm(g: Generator, kind: Any) -> Any:
    x = g.floating(least=3)
    return x.apply(kind(size=3) if kind.name == "local_response_norm" else kind())


@maker("group_norm")
def group_norm(g: Generator, kind: Any) -> Any:
    x = g.floating(least=3)
    channels = x.shape[1]
    return x.apply(kind(groups=2 if isinstance(channels, int) and channels % 2 == 0 else 1))


@maker("batch_norm")
def batch_norm(g: Generator, kind: Any) -> Any:
    x = g.floating(least=2)
    type_ = x.type.with_shape(x.shape[1:2])
    parameters = [g.shaped(g.value(dtype=x.dtype), type_) for _ in range(4)]
    return x.apply(kind(), *parameters[:3], parameters[3] * parameters[3] + 0.5)


@maker("attention")
def attention(g: Generator, kind: Any) -> Any:
    q = g.floating(rank=4)
    if not isinstance(q.shape[-1], int):
        raise LookupError
    return q.apply(kind(scale=0.5, causal=g.chance(0.5)), g.like(q), g.like(q))


# --- control flow ---------------------------------------------------------------------------------


def region(g: Generator, types: Sequence[Any], steps: int) -> Generator:
    inner = Generator(g.rng, g.settings, g)
    for n, type_ in enumerate(types):
        inner.values.append(Node(inner.builder, inner.builder.input(f"r{n}", type_)))
    grow(inner, steps)
    return inner


def outcome(inner: Generator, type_: Any) -> Any:
    """A value of a region of the wanted type, tame when it is a float: loops apply it again and again."""
    made = inner.shaped(inner.values[-1 - min(inner.integer(0, 2), len(inner.values) - 1)], type_)
    return (made.tanh() if type_.dtype.is_float else made).value


@maker("if")
def branch(g: Generator, kind: Any) -> Any:
    captured = [g.value(), g.floating()]
    types = [v.type for v in captured]
    graphs = []
    for _ in range(2):
        inner = region(g, types, g.integer(1, 3))
        graphs.append(Graph("branch", inner.builder.inputs, (outcome(inner, types[1]), outcome(inner, types[0]))))
    condition = captured[1].sum() > captured[1].sum().constant(g.choose((0.0, 1e9, -1e9)))
    return condition.apply(If(*graphs), *captured)


@maker("scan")
def scan(g: Generator, kind: Any) -> Any:
    carry, stream = g.floating(), g.value(lambda v: v.rank > 0)
    captured = g.value()
    types = [carry.type, stream.type.with_shape(stream.shape[1:]), captured.type]
    inner = region(g, types, g.integer(1, 3))
    outputs = (outcome(inner, carry.type), inner.values[-1].value)
    if not fits((stream.shape[0], *inner.values[-1].shape)):
        raise LookupError
    body = Graph("body", inner.builder.inputs, outputs)
    return carry.apply(Scan(body, 1, 1, stream.shape[0], g.chance(0.3)), stream, captured)


@maker("while")
def loop(g: Generator, kind: Any) -> Any:
    state, captured = g.floating(), g.value()
    count = state.constant(0, i64)
    types = [count.type, state.type, captured.type]
    test = Generator(0, g.settings, g)
    condition = Graph("test", *_traced(test, types, lambda n, *_: n < 3))
    inner = region(g, types[1:], g.integer(1, 2))
    counter = Generator(0, g.settings, g)
    body = Graph("body", *_traced(counter, types, lambda n, x, c: (n + 1, *_inlined(counter, inner, types[1], x, c))))
    return count.apply(While(condition, body, 2, 4), state, captured)[1]


def _inlined(outer: Generator, inner: Generator, type_: Any, *args: Node) -> tuple[Node, ...]:
    graph = Graph("step", inner.builder.inputs, (outcome(inner, type_),))
    mapping = dict(zip(graph.inputs, (a.value for a in args), strict=True))
    for value in graph.body:
        mapping[value] = outer.builder.emit(value.op, *(mapping[a] for a in value.args))
    return (Node(outer.builder, mapping[graph.outputs[0]]),)
