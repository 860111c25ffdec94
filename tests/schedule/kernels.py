"""Kernels to schedule, in index notation: small builders for the shapes that tests ask for."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.compiler.ir import scalar
from ingot.compiler.ir.scalar import Buffer, Load, Scalar, apply, cast, constant, predicate, select
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel, axes, reduction
from ingot.compiler.ir.types import DType, f32, i64
from ingot.compiler.schedule.scalars import replace_loads

Shape = tuple[Dim, ...]


def relu(value: Scalar) -> Scalar:
    return apply("max", value, constant(0.0, value.dtype))


def add_bias(shape: Shape, dtype: DType = f32) -> Kernel:
    """y[..., j] = relu(x[..., j] + b[j])"""
    x, b, y = Buffer("x", dtype, shape), Buffer("b", dtype, shape[-1:]), Buffer("y", dtype, shape)
    i = axes(shape)
    return Kernel("add_bias", (x, b), (y,), (Definition(y, i, relu(apply("add", Load(x, i), Load(b, i[-1:])))),))


def negate(shape: Shape, dtype: DType = f32) -> Kernel:
    x, y = Buffer("x", dtype, shape), Buffer("y", dtype, shape)
    i = axes(shape)
    return Kernel("negate", (x,), (y,), (Definition(y, i, apply("neg", Load(x, i))),))


def add(shape: Shape) -> Kernel:
    a, b, y, i = Buffer("a", f32, shape), Buffer("b", f32, shape), Buffer("y", f32, shape), axes(shape)
    return Kernel("add", (a, b), (y,), (Definition(y, i, apply("add", Load(a, i), Load(b, i))),))


def update_transposed(rows: Dim, columns: Dim, dtype: DType = f32) -> Kernel:
    """new = p - g^T * rate, with a rate for each row"""
    p, g = Buffer("p", dtype, (rows, columns)), Buffer("g", dtype, (columns, rows))
    rate, new = Buffer("rate", dtype, (rows,)), Buffer("new", dtype, (rows, columns))
    i, j = axes((rows, columns))
    value = apply("sub", Load(p, (i, j)), apply("mul", Load(g, (j, i)), Load(rate, (i,))))
    return Kernel("update_transposed", (p, g, rate), (new,), (Definition(new, (i, j), value),))


def transpose(shape: Shape, perm: Sequence[int]) -> Kernel:
    """y[i...] = x[j...] with j[perm[n]] = i[n]"""
    i = axes(shape)
    source = [dict(zip(perm, range(len(perm)), strict=True))[n] for n in range(len(perm))]
    x = Buffer("x", f32, tuple(shape[n] for n in source))
    y = Buffer("y", f32, shape)
    return Kernel("transpose", (x,), (y,), (Definition(y, i, Load(x, tuple(i[n] for n in source))),))


def momentum(shapes: Sequence[Shape]) -> Kernel:
    """m' = 0.9*m + g, p' = p - 0.1*m' for parameters of several shapes: an optimiser update"""
    inputs, outputs, definitions = [], [], []
    for n, shape in enumerate(shapes):
        p, m, g = (Buffer(f"{name}{n}", f32, shape) for name in "pmg")
        p_new, m_new = (Buffer(f"{name}_new{n}", f32, shape) for name in "pm")
        i, j = axes(shape), axes(shape)
        moved = apply("add", apply("mul", constant(0.9, f32), Load(m, i)), Load(g, i))
        stepped = apply("sub", Load(p, j), apply("mul", constant(0.1, f32), Load(m_new, j)))
        inputs += [p, m, g]
        outputs += [m_new, p_new]
        definitions += [Definition(m_new, i, moved), Definition(p_new, j, stepped)]
    return Kernel("momentum", tuple(inputs), tuple(outputs), tuple(definitions))


def gather_rows(rows: Dim, table: Dim, width: Dim) -> Kernel:
    """y[i, j] = table[index[i], j]"""
    source, index, y = (
        Buffer("table", f32, (table, width)),
        Buffer("index", i64, (rows,)),
        Buffer("y", f32, (rows, width)),
    )
    i, j = axes((rows, width))
    place = scalar.bounded_index(Load(index, (i,)), table, "gather")
    return Kernel("gather", (source, index), (y,), (Definition(y, (i, j), Load(source, (place, j))),))


def pad(shape: Shape, before: int, after: int) -> Kernel:
    """Zeros around the last axis, by a lazy select."""
    x = Buffer("x", f32, shape)
    wide = (*shape[:-1], shape[-1] + before + after)
    y = Buffer("y", f32, wide)
    i = axes(wide)
    place = i[-1] - before
    inside = scalar.both(scalar.predicate(place, "ge", 0), scalar.predicate(place, "lt", shape[-1]))
    value = scalar.select(inside, Load(x, (*i[:-1], place)), constant(0.0, f32))
    return Kernel("pad", (x,), (y,), (Definition(y, i, value),))


def reduce_axes(shape: Shape, keep: Sequence[int], combiner: str = "sum", dtype: DType = f32) -> Kernel:
    """y[kept] = combine(x); followed by y2 = 2*y when the combiner is a sum"""
    x = Buffer("x", dtype, shape)
    kept = tuple(shape[n] for n in keep)
    i = axes(kept)
    gone = [n for n in range(len(shape)) if n not in keep]

    def body(*reduced: Dim) -> Scalar:
        index = dict(zip(keep, i, strict=True)) | dict(zip(gone, reduced, strict=True))
        value = Load(x, tuple(index[n] for n in range(len(shape))))
        return cast(value, dtype.compute)

    y = Buffer("y", dtype.compute, kept)
    value = reduction(combiner, tuple(shape[n] for n in gone), body)
    definitions = [Definition(y, i, value)]
    outputs = [y]
    if combiner == "sum":
        twice = Buffer("twice", dtype.compute, kept)
        j = axes(kept)
        definitions.append(Definition(twice, j, apply("mul", constant(2.0, dtype.compute), Load(y, j))))
        outputs.append(twice)
    return Kernel("reduce", (x,), tuple(outputs), tuple(definitions))


def softmax(shape: Shape) -> Kernel:
    x, y = Buffer("x", f32, shape), Buffer("y", f32, shape)
    largest, total = Buffer("largest", f32, shape[:-1]), Buffer("total", f32, shape[:-1])
    e = Buffer("e", f32, shape)
    row, row2, i, j = axes(shape[:-1]), axes(shape[:-1]), axes(shape), axes(shape)
    return Kernel("softmax", (x,), (y,), (
        Definition(largest, row, reduction("max", shape[-1:], lambda k: Load(x, (*row, k)))),
        Definition(e, i, apply("exp", apply("sub", Load(x, i), Load(largest, i[:-1])))),
        Definition(total, row2, reduction("sum", shape[-1:], lambda k: Load(e, (*row2, k)))),
        Definition(y, j, apply("div", Load(e, j), Load(total, j[:-1]))),
    ))  # fmt: skip


def attention(batch: Shape, t: Dim, s: Dim, size: int, backward: bool = False) -> Kernel:
    """y = softmax(q k^T) v, with the largest score of each row as a second output. Backward: from what a softmax w was
    made of, and the gradient g of y, those of q, k and v, of which two are sums over the rows."""
    q, g, k, v = (Buffer(name, f32, (*batch, many, size)) for name, many in (("q", t), ("g", t), ("k", s), ("v", s)))
    outer = axes(batch)

    def product(name: str, left: Buffer, right: Buffer) -> Definition:
        i, j = axes((t, s))
        made = Buffer(name, f32, (*batch, t, s))
        body = reduction("sum", (size,), lambda d: apply("mul", Load(left, (*outer, i, d)), Load(right, (*outer, j, d))))
        return Definition(made, (*outer, i, j), body)

    def of_rows(name: str, left: Buffer, right: Buffer) -> Definition:
        """sum over columns: left[rows, columns] * right[columns, size]"""
        i, d = axes((t, size))
        made = Buffer(name, f32, (*batch, t, size))
        body = reduction("sum", (s,), lambda j: apply("mul", Load(left, (*outer, i, j)), Load(right, (*outer, j, d))))
        return Definition(made, (*outer, i, d), body)

    def over_rows(name: str, left: Buffer, right: Buffer) -> Definition:
        j, d = axes((s, size))
        made = Buffer(name, f32, (*batch, s, size))
        body = reduction("sum", (t,), lambda i: apply("mul", Load(left, (*outer, i, j)), Load(right, (*outer, i, d))))
        return Definition(made, (*outer, j, d), body)

    scores = product("scores", q, k)
    if not backward:
        weights = softmax((*batch, t, s))
        renamed = {weights.inputs[0]: scores.buffer}
        rows = [
            Definition(d.buffer, d.variables, replace_loads(d.value, lambda x: _renamed(x, renamed)))
            for d in weights.definitions
        ]
        y = of_rows("result", weights.outputs[0], v)
        return Kernel("attention", (q, k, v), (rows[0].buffer, y.buffer), (scores, *rows, y))
    i = axes((*batch, t, s))
    weight = Definition(Buffer("w", f32, scores.buffer.shape), i, apply("exp", Load(scores.buffer, i)))
    slopes = product("slopes", g, v)
    row, r = axes((*batch, t)), axes((*batch, t, s))
    both = reduction(
        "sum", (s,), lambda j: apply("mul", Load(weight.buffer, (*row, j)), Load(slopes.buffer, (*row, j)))
    )
    total = Definition(Buffer("total", f32, (*batch, t)), row, both)
    less = apply("sub", Load(slopes.buffer, r), Load(total.buffer, r[:-1]))
    ds = Definition(Buffer("ds", f32, scores.buffer.shape), r, apply("mul", Load(weight.buffer, r), less))
    last = (of_rows("dq", ds.buffer, k), over_rows("dk", ds.buffer, q), over_rows("dv", weight.buffer, g))
    return Kernel(
        "attention_backward", (q, k, v, g), tuple(d.buffer for d in last), (scores, weight, slopes, total, ds, *last)
    )


def _renamed(load: Load, renamed: dict[Buffer, Buffer]) -> Load | None:
    return Load(renamed[load.buffer], load.index) if load.buffer in renamed else None


def layer_norm(shape: Shape, count: int) -> Kernel:
    """Mean and variance over the last axis, scale, shift; the normalised rows are an output too."""
    x, scale = Buffer("x", f32, shape), Buffer("scale", f32, shape[-1:])
    y, normal = Buffer("y", f32, shape), Buffer("normal", f32, shape)
    total, squares, mean = (Buffer(name, f32, shape[:-1]) for name in ("total", "squares", "mean"))
    r1, r2, r3, i, j = axes(shape[:-1]), axes(shape[:-1]), axes(shape[:-1]), axes(shape), axes(shape)
    part = constant(1.0 / max(count, 1), f32)

    def distance(index: tuple[Dim, ...]) -> Scalar:
        return apply("sub", Load(x, index), Load(mean, index[:-1]))

    def square(k: Dim) -> Scalar:
        return apply("mul", distance((*r3, k)), distance((*r3, k)))

    deviation = apply("rsqrt", apply("add", apply("mul", Load(squares, i[:-1]), part), constant(1e-5, f32)))
    return Kernel("layer_norm", (x, scale), (y, normal), (
        Definition(total, r1, reduction("sum", shape[-1:], lambda k: Load(x, (*r1, k)))),
        Definition(mean, r2, apply("mul", Load(total, r2), part)),
        Definition(squares, r3, reduction("sum", shape[-1:], square)),
        Definition(normal, i, apply("mul", distance(i), deviation)),
        Definition(y, j, apply("mul", Load(normal, j), Load(scale, j[-1:]))),
    ))  # fmt: skip


def centred(shape: Shape, count: int, scaled: Dim | None = None, each: bool = False) -> Kernel:
    """Distances from the mean of the last axis, the first elements of each row scaled, or all; by the same factors, or by
    some of its own for `each` place along the first axis."""
    own = 1 if each else 0
    factors = (*shape[:own], shape[-1] if scaled is None else scaled)
    x, scale, y = Buffer("x", f32, shape), Buffer("scale", f32, factors), Buffer("y", f32, shape)
    total, r, i = Buffer("total", f32, shape[:-1]), axes(shape[:-1]), axes(shape)
    mean = apply("mul", Load(total, i[:-1]), constant(1.0 / max(count, 1), f32))
    factor: Scalar = Load(scale, (*i[:own], i[-1]))
    if scaled is not None:
        factor = select(predicate(i[-1], "lt", scaled), factor, constant(1.0, f32))
    return Kernel("centred", (x, scale), (y,), (
        Definition(total, r, reduction("sum", shape[-1:], lambda k: Load(x, (*r, k)))),
        Definition(y, i, apply("mul", apply("sub", Load(x, i), mean), factor)),
    ))  # fmt: skip


def matmul(m: Dim, n: Dim, k: Dim, dtype: DType = f32, layout: str = "nn", batch: Shape = ()) -> Kernel:
    """y = relu(a @ b + bias), and the sums before that as a second output; layout tells which operand is
    stored transposed"""
    wide = dtype.compute
    a = Buffer("a", dtype, (*batch, *((m, k) if layout[0] == "n" else (k, m))))
    b = Buffer("b", dtype, (*batch, *((k, n) if layout[1] == "n" else (n, k))))
    bias = Buffer("bias", dtype, (n,))
    sums, y = Buffer("sums", wide, (*batch, m, n)), Buffer("y", dtype, (*batch, m, n))
    *outer, i, j = axes((*batch, m, n))

    def product(k: Dim) -> Scalar:
        left = Load(a, (*outer, *((i, k) if layout[0] == "n" else (k, i))))
        right = Load(b, (*outer, *((k, j) if layout[1] == "n" else (j, k))))
        return apply("mul", cast(left, wide), cast(right, wide))

    index = (*outer, i, j)
    biased = apply("add", Load(sums, index), cast(Load(bias, (j,)), wide))
    definitions = (
        Definition(sums, index, reduction("sum", (k,), product)),
        Definition(y, index, cast(relu(biased), dtype)),
    )
    return Kernel("matmul", (a, b, bias), (sums, y), definitions)


def panels(m: Dim, blocks: int, k: int, columns: int) -> Kernel:
    """y[i, b, o] = sum(k: x[i, k] * w[b, k, o])"""
    x, w = Buffer("x", f32, (m, k)), Buffer("w", f32, (blocks, k, columns))
    y = Buffer("y", f32, (m, blocks, columns))
    i, b, o = index = axes(y.shape)
    product = reduction("sum", (k,), lambda k: apply("mul", Load(x, (i, k)), Load(w, (b, k, o))))
    return Kernel("panels", (x, w), (y,), (Definition(y, index, product),))


def stored_panels(m: Dim, n: int, k: int, block: int) -> Kernel:
    """y[i, j] = sum(k: x[i, k] * w[j // block, k, j % block])"""
    x, w, y = Buffer("x", f32, (m, k)), Buffer("w", f32, (n // block, k, block)), Buffer("y", f32, (m, n))
    i, j = index = axes(y.shape)
    product = reduction("sum", (k,), lambda k: apply("mul", Load(x, (i, k)), Load(w, (j // block, k, j % block))))
    return Kernel("stored_panels", (x, w), (y,), (Definition(y, index, product),))


def strided_panels(size: int, blocks: int, k: int, columns: int) -> Kernel:
    """y[i, j, b, o] = sum(k: x[2 * i, 2 * j, k] * w[b, k, o])"""
    x, w = Buffer("x", f32, (2 * size, 2 * size, k)), Buffer("w", f32, (blocks, k, columns))
    y = Buffer("y", f32, (size, size, blocks, columns))
    i, j, b, o = index = axes(y.shape)
    product = reduction("sum", (k,), lambda k: apply("mul", Load(x, (2 * i, 2 * j, k)), Load(w, (b, k, o))))
    return Kernel("panels", (x, w), (y,), (Definition(y, index, product),))


def matmul_bias(m: Dim, n: Dim, k: Dim, dtype: DType = f32, across: bool = True) -> Kernel:
    """y = relu(a @ b + bias) with a bias for each column, or for each row"""
    wide = dtype.compute
    a, b, y = Buffer("a", dtype, (m, k)), Buffer("b", dtype, (k, n)), Buffer("y", dtype, (m, n))
    bias, sums = Buffer("bias", dtype, (n if across else m,)), Buffer("sums", dtype, (m, n))
    i, j = axes((m, n))
    product = reduction(
        "sum", (k,), lambda k: apply("mul", cast(Load(a, (i, k)), wide), cast(Load(b, (k, j)), wide))
    )
    biased = apply("add", Load(bias, (j if across else i,)), cast(Load(sums, (i, j)), dtype))
    definitions = (Definition(sums, (i, j), cast(product, dtype)), Definition(y, (i, j), relu(biased)))
    return Kernel("matmul", (a, b, bias), (y,), definitions)


def swapped_rows(outer: int, inner: int, n: int, k: int) -> Kernel:
    """y[i, j, n] = sum(k: a[j, i, k] * b[k, n]): rows along two axes that memory has the other way round"""
    a, b, y = Buffer("a", f32, (inner, outer, k)), Buffer("b", f32, (k, n)), Buffer("y", f32, (outer, inner, n))
    i, j, o = axes(y.shape)
    value = reduction("sum", (k,), lambda c: apply("mul", Load(a, (j, i, c)), Load(b, (c, o))))
    return Kernel("swapped", (a, b), (y,), (Definition(y, (i, j, o), value),))


def looked_up(m: int, n: int, k: int, along: bool = True) -> Kernel:
    """y[i, j] = sum(k: table[index[i], k] * b[k, j]), or of table[index[k], i]"""
    table, index = Buffer("table", f32, (3, k if along else m)), Buffer("index", i64, (m if along else k,))
    b, y = Buffer("b", f32, (k, n)), Buffer("y", f32, (m, n))
    i, j = axes((m, n))

    def product(c: Dim) -> Scalar:
        row, column = (i, c) if along else (c, i)
        place = scalar.bounded_index(Load(index, (row,)), 3, "row")
        return apply("mul", Load(table, (place, column)), Load(b, (c, j)))

    total = reduction("sum", (k,), product)
    return Kernel("looked_up", (table, index, b), (y,), (Definition(y, (i, j), total),))


def matmul_residual(m: Dim, n: Dim, k: Dim) -> Kernel:
    """y = a @ b + residual"""
    a, b = Buffer("a", f32, (m, k)), Buffer("b", f32, (k, n))
    residual, sums, y = (Buffer(name, f32, (m, n)) for name in ("residual", "sums", "y"))
    i, j = axes((m, n))
    total = reduction("sum", (k,), lambda k: apply("mul", Load(a, (i, k)), Load(b, (k, j))))
    added = apply("add", Load(residual, (i, j)), Load(sums, (i, j)))
    return Kernel(
        "matmul_residual", (a, b, residual), (y,), (Definition(sums, (i, j), total), Definition(y, (i, j), added))
    )


def matmul_update(m: Dim, n: Dim, k: Dim) -> Kernel:
    """moment = (square^2 + (a @ b)^2) / 2; weight = w - (a @ b) / (sqrt(moment) + 1)"""
    a, b = Buffer("a", f32, (m, k)), Buffer("b", f32, (k, n))
    square, w, sums, moment, weight = (Buffer(name, f32, (m, n)) for name in ("square", "w", "sums", "moment", "weight"))
    i, j = index = axes((m, n))
    total = reduction("sum", (k,), lambda k: apply("mul", Load(a, (i, k)), Load(b, (k, j))))
    g, one, half = Load(sums, index), constant(1.0, f32), constant(0.5, f32)
    mean = apply("mul", apply("add", apply("mul", Load(square, index), Load(square, index)), apply("mul", g, g)), half)
    change = apply("div", g, apply("add", apply("sqrt", Load(moment, index)), one))
    definitions = (
        Definition(sums, index, total),
        Definition(moment, index, mean),
        Definition(weight, index, apply("sub", Load(w, index), change)),
    )
    return Kernel("matmul_update", (a, b, square, w), (moment, weight), definitions)


def matmul_sigmoid(m: Dim, n: Dim, k: Dim) -> Kernel:
    """y = sigmoid(a @ b)"""
    a, b = Buffer("a", f32, (m, k)), Buffer("b", f32, (k, n))
    sums, y = (Buffer(name, f32, (m, n)) for name in ("sums", "y"))
    i, j = axes((m, n))
    total = reduction("sum", (k,), lambda k: apply("mul", Load(a, (i, k)), Load(b, (k, j))))
    return Kernel(
        "matmul_sigmoid",
        (a, b),
        (y,),
        (Definition(sums, (i, j), total), Definition(y, (i, j), apply("sigmoid", Load(sums, (i, j))))),
    )


def convolution(
    batch: Dim, channels: int, size: Dim, outputs: int, taps: int, stride: int = 1, padding: int = 0, last: bool = True
) -> Kernel:
    """A square convolution, channels last or first, with the padding as a lazy select."""
    out = (size + 2 * padding - taps) // stride + 1
    x = Buffer("x", f32, (batch, size, size, channels) if last else (batch, channels, size, size))
    w = Buffer("w", f32, (taps, taps, channels, outputs) if last else (outputs, channels, taps, taps))
    y = Buffer("y", f32, (batch, out, out, outputs) if last else (batch, outputs, out, out))
    i = axes(y.shape)
    n, p, q, o = i if last else (i[0], i[2], i[3], i[1])

    def product(*k: Dim) -> Scalar:
        r, s, c = k if last else (k[1], k[2], k[0])
        u, v = p * stride + r - padding, q * stride + s - padding
        inside = scalar.both(
            *(scalar.predicate(a, "ge", 0) for a in (u, v)), *(scalar.predicate(a, "lt", size) for a in (u, v))
        )
        image = Load(x, (n, u, v, c) if last else (n, c, u, v))
        weight = Load(w, (r, s, c, o) if last else (o, c, r, s))
        return apply("mul", scalar.select(inside, image, constant(0.0, f32)), weight)

    extents = (taps, taps, channels) if last else (channels, taps, taps)
    return Kernel("convolution", (x, w), (y,), (Definition(y, i, reduction("sum", extents, product)),))


def depthwise(batch: Dim, size: int, channels: Dim, taps: int) -> Kernel:
    """y[n, p, q, c] = sum(r, s: x[n, p + r, q + s, c] * w[r, s, c])"""
    out = size - taps + 1
    x, w = Buffer("x", f32, (batch, size, size, channels)), Buffer("w", f32, (taps, taps, channels))
    y = Buffer("y", f32, (batch, out, out, channels))
    n, p, q, c = i = axes(y.shape)
    value = reduction("sum", (taps, taps), lambda r, s: apply("mul", Load(x, (n, p + r, q + s, c)), Load(w, (r, s, c))))
    return Kernel("depthwise", (x, w), (y,), (Definition(y, i, value),))


def max_pool(batch: Dim, channels: int, size: int) -> Kernel:
    """2 by 2, stride 2, channels first"""
    x, y = Buffer("x", f32, (batch, channels, size, size)), Buffer("y", f32, (batch, channels, size // 2, size // 2))
    n, c, p, q = i = axes(y.shape)
    value = reduction("max", (2, 2), lambda r, s: Load(x, (n, c, 2 * p + r, 2 * q + s)))
    return Kernel("max_pool", (x,), (y,), (Definition(y, i, value),))


def matrix_vector(m: Dim, k: Dim) -> Kernel:
    """y[i] = sum(k: a[i, k] * v[k])"""
    a, v, y = Buffer("a", f32, (m, k)), Buffer("v", f32, (k,)), Buffer("y", f32, (m,))
    (i,) = axes((m,))
    value = reduction("sum", (k,), lambda r: apply("mul", Load(a, (i, r)), Load(v, (r,))))
    return Kernel("matrix_vector", (a, v), (y,), (Definition(y, (i,), value),))


def awkward(rows: Dim, columns: Dim) -> Kernel:
    """What no recipe but the last takes: a local that is read transposed, and a sum over it."""
    x = Buffer("x", f32, (rows, columns))
    t, s, y = Buffer("t", f32, (rows, columns)), Buffer("s", f32, (columns,)), Buffer("y", f32, (columns, rows))
    i, j = axes((rows, columns))
    (c,) = axes((columns,))
    a, b = axes((columns, rows))
    return Kernel("awkward", (x,), (y, s), (
        Definition(t, (i, j), apply("exp", Load(x, (i, j)))),
        Definition(s, (c,), reduction("sum", (rows,), lambda r: Load(t, (r, c)))),
        Definition(y, (a, b), apply("div", Load(t, (b, a)), Load(s, (a,)))),
    ))  # fmt: skip
