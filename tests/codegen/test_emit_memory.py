"""Loads and stores of every kind, at the edges of pages that must not be touched, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.compiler.codegen.abi import dims_of
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, Function, Prefetch, Store, View
from ingot.compiler.ir.scalar import (
    Buffer,
    Cast,
    IndexValue,
    Load,
    Scalar,
    apply,
    both,
    bounded_index,
    constant,
    predicate,
    select,
)
from ingot.compiler.ir.types import DTYPES, bf16, boolean, f32, f64, i8, i32, i64
from ingot.runtime.abi import Failure
from tests.codegen.running import HOST, RUNNABLE, Native, agree, elementwise, guarded, serial, unrolled, vector

N = symbolic.Symbol("n", 0)
M = symbolic.Symbol("m")
K = symbolic.Symbol("k")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_length_of_a_masked_rest_touches_only_its_elements(dtype, rng: np.random.Generator) -> None:
    width = HOST.lanes(dtype.itemsize)
    x, y = Buffer("x", dtype, (N,)), Buffer("y", dtype, (N,))
    native = Native([elementwise("copy", [x], y, lambda i: Load(x, (i,)), width)])
    for length in range(2 * width + 1):
        data = guarded(rng.integers(0, 2, length).astype(dtype.numpy))
        found = guarded(np.zeros_like(data))
        assert native("copy", data, found, dims=[length]) is None
        np.testing.assert_array_equal(found, data)


def test_constant_rests() -> None:
    """A vector loop whose constant extent is less than its width."""
    functions, arrays = [], {}
    for extent in range(1, 9):
        x, y = Buffer("x", f32, (extent,)), Buffer("y", f32, (extent,))
        body = vector(8, lambda v, x=x, y=y: Store(y, (v,), apply("add", Load(x, (v,)), Load(x, (v,)))), extent)
        functions.append(Function(f"rest{extent}", (x, y), (body,)))
        arrays[f"rest{extent}"] = [np.arange(extent, dtype=np.float32), np.zeros(extent, np.float32)]
    agree(functions, arrays)


STRIDES = (-3, -1, 2, 3, 4, 5, 8)


@pytest.mark.parametrize("dtype", [f32, f64, i8, i32], ids=str)
def test_strided_loads_and_stores(dtype, rng: np.random.Generator) -> None:
    width = 8
    functions, arrays = [], {}
    for stride in STRIDES:
        reach = abs(stride) * (3 * width - 1) + 1
        x, y, z = Buffer("x", dtype, (reach,)), Buffer("y", dtype, (3 * width,)), Buffer("z", dtype, (reach,))

        def place(i, stride=stride, reach=reach):
            return stride * i + (reach - 1 if stride < 0 else 0)

        def body(b, place=place, x=x, y=y, z=z):
            return vector(
                width,
                lambda v: (
                    Store(y, (b * width + v,), Load(x, (place(b * width + v),))),
                    Store(z, (place(b * width + v),), Load(x, (place(b * width + v),))),
                ),
            )

        name = f"stride_{stride}".replace("-", "minus_")
        functions.append(Function(name, (x, y, z), (serial(3, body),)))
        data = rng.integers(-100, 100, reach).astype(dtype.numpy)
        arrays[name] = [data, np.zeros(3 * width, dtype.numpy), np.zeros(reach, dtype.numpy)]
    agree(functions, arrays)


@pytest.mark.parametrize("dtype", [f32, i8, i64], ids=str)
@pytest.mark.parametrize("width", [8, 16])
def test_near_places_of_constant_rests_touch_only_what_lies_between(dtype, width, rng: np.random.Generator) -> None:
    """Every second element, each element twice, backwards: whole vectors and a shuffle, for any number of lanes."""
    patterns = {
        "second": lambda v: 2 * v,
        "fourth": lambda v: 4 * v + 3,
        "twice": lambda v: v // 2,
        "thrice": lambda v: (v + 1) // 3,
        "again": lambda v: v % 3,
        "back": lambda v: width - v,
    }
    functions, arrays = [], {}
    for name, place in patterns.items():
        for extent in {1, 2, 3, 5, width // 2 + 1, width - 2, width}:
            size = max(place(v) for v in range(extent)) + 1
            x, y = Buffer("x", dtype, (size,)), Buffer("y", dtype, (extent,))
            body = vector(width, lambda v, x=x, y=y, place=place: Store(y, (v,), Load(x, (place(v),))), extent)
            functions.append(Function(f"{name}{extent}", (x, y), (body,)))
            data = rng.integers(-100, 100, size).astype(dtype.numpy)
            arrays[f"{name}{extent}"] = [data, np.zeros(extent, dtype.numpy)]
    agree(functions, arrays)


def test_symbolic_strides_are_columns(rng: np.random.Generator) -> None:
    """A transpose: lanes along the rows of one side."""
    x, y = Buffer("x", f32, (M, K)), Buffer("y", f32, (K, M))

    def rows(i):
        return serial(
            M // 8,
            lambda b: vector(8, lambda v: Store(y, (i, b * 8 + v), Load(x, (b * 8 + v, i)))),
        ), vector(8, lambda v: Store(y, (i, M // 8 * 8 + v), Load(x, (M // 8 * 8 + v, i))), M % 8)

    def columns(i):
        return serial(
            M // 8,
            lambda b: vector(8, lambda v: Store(y, (b * 8 + v, i), Load(x, (i, b * 8 + v)))),
        ), vector(8, lambda v: Store(y, (M // 8 * 8 + v, i), Load(x, (i, M // 8 * 8 + v))), M % 8)

    functions = [Function("rows", (x, y), (serial(K, rows),))]
    swapped = Buffer("x", f32, (K, M)), Buffer("y", f32, (M, K))
    x, y = swapped
    functions.append(Function("columns", (x, y), (serial(K, columns),)))
    data = rng.standard_normal((19, 7)).astype(np.float32)
    arrays = {
        "rows": [data, np.zeros((7, 19), np.float32)],
        "columns": [np.ascontiguousarray(data.T), np.zeros((19, 7), np.float32)],
    }
    agree(functions, arrays)


def test_indices_that_are_not_affine(rng: np.random.Generator) -> None:
    """Divisions and remainders of the lane: constant lanes, vector arithmetic, masked and full."""
    x, y = Buffer("x", f32, (40,)), Buffer("y", f32, (M,))

    def kernel(name: str, index):
        return elementwise(name, [x], y, lambda i: Load(x, (index(i),)), 8)

    functions = [
        kernel("third", lambda i: i // 3 % 40),
        kernel("modulo", lambda i: i % 7),
        kernel("mixed", lambda i: (i % 5) * 7 + i // 5 % 5),
        kernel("least", lambda i: symbolic.minimum(i, 39)),
        kernel("back", lambda i: symbolic.maximum(30 - i, 0)),
        kernel("negative", lambda i: (20 - i) // 3 % 40),
    ]
    data = [rng.standard_normal(40).astype(np.float32), np.zeros(37, np.float32)]
    agree(functions, {f.name: data for f in functions})


def padded(x: Buffer, i, n, shift: int) -> Scalar:
    """x[i + shift], zero outside."""
    inside = both(predicate(i + shift, "ge", 0), predicate(i + shift, "lt", n))
    return select(inside, Load(x, (i + shift,)), constant(0, x.dtype))


@pytest.mark.parametrize("dtype", [f32, f64, i8, boolean, bf16], ids=str)
def test_padding_reads_nothing_outside(dtype, rng: np.random.Generator) -> None:
    """A sum of shifted neighbours: the arms of lazy selects reach over both ends of the buffer."""
    x, y = Buffer("x", dtype, (N,)), Buffer("y", i32, (N,))

    def total(i) -> Scalar:
        result: Scalar = constant(0, i32)
        for shift in (-9, -1, 0, 1, 2, 11):
            result = apply("add", result, Cast(padded(x, i, N, shift), i32))
        return result

    width = HOST.lanes(4)
    functions = [elementwise(f"padded{w}", [x], y, total, w) for w in (0, width)]
    for length in (1, 2, width - 1, width, 3 * width + 1):
        data = [rng.integers(0, 2, length).astype(dtype.numpy), np.zeros(length, np.int32)]
        targets = RUNNABLE if length == 3 * width + 1 else ("native",)
        agree(functions, {f.name: data for f in functions}, targets=targets)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("dtype", [f32, f64, i8, boolean], ids=str)
def test_squares_of_which_lanes_are_not_wanted(dtype, size: int, rng: np.random.Generator) -> None:
    """Rows and columns of a square whose far corner does not exist: y = x and y = x transposed, above the diagonal."""
    count = size * size
    functions, arrays = [], {}
    for name in ("rows", "columns"):
        x, y = Buffer("x", dtype, (count - size // 2,)), Buffer("y", dtype, (size, size))

        def element(v, name=name, x=x, y=y) -> Store:
            row, column = v // size, v % size
            place = row * size + column if name == "rows" else column * size + row
            wanted = both(predicate(row + column, "lt", size), predicate(place, "lt", count - size // 2))
            return Store(y, (row, column), select(wanted, Load(x, (place,)), constant(0, dtype)))

        functions.append(Function(name, (x, y), (vector(count, element),)))
        data = rng.integers(0, 2, count - size // 2).astype(dtype.numpy)
        arrays[name] = [guarded(data), np.zeros((size, size), dtype.numpy)]
    agree(functions, arrays)


def test_conditions_that_all_lanes_share_branch(rng: np.random.Generator) -> None:
    """Rows outside are not read: the condition depends on the row, the lanes run along it."""
    x, y = Buffer("x", f32, (M, 8)), Buffer("y", f32, (M + 2, 8))

    def row(i):
        inside = both(predicate(i - 1, "ge", 0), predicate(i - 1, "lt", M))
        nested = select(predicate(i, "lt", 3), Load(x, (i - 1, 0)), constant(5, f32))
        return vector(
            8,
            lambda v: Store(y, (i, v), select(inside, apply("mul", Load(x, (i - 1, v)), nested), constant(-1, f32))),
        )

    function = Function("rows", (x, y), (serial(M + 2, row),))
    agree([function], {"rows": [rng.standard_normal((4, 8)).astype(np.float32), np.zeros((6, 8), np.float32)]})


def test_selects_nest_and_share_one_element(rng: np.random.Generator) -> None:
    """Inner conditions hold only where outer ones do; an element that all lanes share is read if some lane wants it."""
    x, y = Buffer("x", f32, (N,)), Buffer("y", f32, (N,))

    def value(i) -> Scalar:
        inner = select(predicate(2 * i, "lt", N), Load(x, (2 * i,)), Load(x, (i - 1,)))
        outer = select(predicate(i, "ge", 1), inner, constant(7, f32))
        shared = select(predicate(i, "ge", 40), Load(x, (40,)), constant(2, f32))
        return apply("add", outer, shared)

    functions = [elementwise(f"nested{w}", [x], y, value, w) for w in (0, 8)]
    for length in (1, 9, 40, 41, 48):
        data = [rng.standard_normal(length).astype(np.float32), np.zeros(length, np.float32)]
        agree(functions, {f.name: data for f in functions}, targets=("native",))


# --- indices read at run time


def gather(width: int, table_rows=M) -> Function:
    table, index = Buffer("table", f32, (table_rows, 3)), Buffer("index", i64, (N,))
    out = Buffer("out", f32, (N,))

    def value(i) -> Scalar:
        row = bounded_index(Load(index, (i,)), table_rows, "lookup")
        return apply("add", Load(table, (row, 0)), Load(table, (row, 2)))

    return elementwise(f"gather{width}", [table, index], out, value, width)


@pytest.mark.parametrize("width", [0, 8])
def test_run_time_indices(width: int, rng: np.random.Generator) -> None:
    table = rng.standard_normal((5, 3)).astype(np.float32)
    index = rng.integers(-5, 5, 19)
    agree([gather(width)], {f"gather{width}": [table, index, np.zeros(19, np.float32)]})


@pytest.mark.parametrize("width", [0, 8])
@pytest.mark.parametrize("place", [0, 6, 9])
@pytest.mark.parametrize("bad", [5, -6, 1 << 40, -(1 << 62)])
def test_an_index_out_of_range_is_reported_and_not_used(width: int, place: int, bad: int) -> None:
    native = NATIVE_GATHERS
    index = np.zeros(10, np.int64)
    index[place] = bad
    table = guarded(np.ones((5, 3), np.float32))
    failure = native(f"gather{width}", table, guarded(index), guarded(np.zeros(10, np.float32)), dims=[5, 10])
    assert failure is not None
    assert failure.code == Failure.INDEX_OUT_OF_RANGE
    assert failure.details[:2] == (bad, 5)
    assert failure.site == "lookup"


@pytest.mark.parametrize("width", [0, 8])
def test_an_empty_table_is_never_read(width: int) -> None:
    table = guarded(np.ones((0, 3), np.float32))
    out = guarded(np.zeros(10, np.float32))
    failure = NATIVE_GATHERS(f"gather{width}", table, guarded(np.zeros(10, np.int64)), out, dims=[0, 10])
    assert failure is not None
    assert failure.details[:2] == (0, 0)


NATIVE_GATHERS = Native([gather(0, symbolic.Symbol("m", 0)), gather(8, symbolic.Symbol("m", 0))])


@pytest.mark.parametrize("width", [0, 8])
def test_run_time_indices_are_checked_only_where_they_are_used(width: int) -> None:
    """Padding of an index list: entries that the condition leaves out may hold anything."""
    table, index, out = Buffer("table", f32, (4,)), Buffer("index", i32, (N,)), Buffer("out", f32, (N,))

    def value(i) -> Scalar:
        wanted = apply("ge", Load(index, (i,)), constant(0, i32))
        found = Load(table, (bounded_index(Load(index, (i,)), 4, "lookup"),))
        return select(wanted, found, constant(-1, f32))

    function = elementwise("padding", [table, index], out, value, width)
    data = np.array([3, -9, 0, -100, 1, 2, -9, 3, 3, -7, 1], np.int32)
    agree([function], {"padding": [np.arange(4, dtype=np.float32), data, np.zeros(11, np.float32)]})
    native = Native([function])
    data[7] = 4
    failure = native("padding", np.arange(4, dtype=np.float32), data, np.zeros(11, np.float32), dims=[11])
    assert failure is not None
    assert failure.details[:2] == (4, 4)


def test_a_run_time_index_that_all_lanes_share_under_their_conditions() -> None:
    """It is checked only if some lane wants it."""
    table, index, out = Buffer("table", f32, (4,)), Buffer("index", i32, (1,)), Buffer("out", f32, (N,))

    def value(i) -> Scalar:
        found = Load(table, (bounded_index(Load(index, (0,)), 4, "lookup"),))
        return select(predicate(i, "ge", 20), found, constant(-1, f32))

    function = elementwise("shared", [table, index], out, value, 8)
    data = guarded(np.arange(4, dtype=np.float32))
    native = Native([function])
    for length, place, expected in ((20, 9, None), (24, 3, None), (24, 4, (4, 4)), (21, -5, (-5, 4))):
        found = guarded(np.zeros(length, np.float32))
        failure = native("shared", data, np.array([place], np.int32), found, dims=[length])
        assert (failure and failure.details[:2]) == expected
        if expected is None:
            np.testing.assert_array_equal(found, np.where(np.arange(length) < 20, -1, place))


def test_stores_to_run_time_indices(rng: np.random.Generator) -> None:
    index, x, out = Buffer("index", i64, (M,)), Buffer("x", f32, (M,)), Buffer("out", f32, (M,))

    def store(i):
        return Store(out, (bounded_index(Load(index, (i,)), M, "scatter"),), Load(x, (i,)))

    functions = [
        Function("one_by_one", (index, x, out), (serial(M, store),)),
        Function(
            "lanes",
            (index, x, out),
            (
                serial(M // 8, lambda b: vector(8, lambda v: store(b * 8 + v))),
                vector(8, lambda v: store(M // 8 * 8 + v), M % 8),
            ),
        ),
    ]
    data = [rng.permutation(29), rng.standard_normal(29).astype(np.float32), np.zeros(29, np.float32)]
    agree(functions, {f.name: data for f in functions})


# --- other memory


def test_views_stacks_and_prefetches(rng: np.random.Generator) -> None:
    """A row of scratch on the stack, seen again through a view from an offset on."""
    x, y = Buffer("x", f32, (M, 16)), Buffer("y", f32, (M, 8))
    row, half = Buffer("row", f32, (16,), "stack"), Buffer("half", f32, (8,))
    tail = Buffer("tail", f32, (M * 16 - 3,))

    def body(i):
        return (
            Alloc(row),
            Prefetch(x, (i, 0)),
            serial(2, lambda b: vector(8, lambda v: Store(row, (b * 8 + v,), Load(x, (i, b * 8 + v))))),
            View(half, row, 5),
            View(tail, x, 3),
            vector(8, lambda v: Store(y, (i, v), apply("add", Load(half, (v,)), Load(tail, (i * 16 + v,))))),
        )

    function = Function("views", (x, y), (serial(M, body),))
    agree([function], {"views": [rng.standard_normal((5, 16)).astype(np.float32), np.zeros((5, 8), np.float32)]})


def test_a_store_is_seen_by_later_loads() -> None:
    """Loads are shared and moved out of loops only as long as nobody writes what they read."""
    x, y = Buffer("x", f32, (M,)), Buffer("y", f32, (M, 4))
    first = Load(x, (0,))

    def body(i):
        return (
            Store(y, (i, 0), first),
            Store(x, (0,), apply("add", Load(x, (0,)), constant(1, f32))),
            Store(y, (i, 1), first),
            serial(2, lambda j: (Store(y, (i, 2 + j), first), Store(x, (0,), apply("mul", first, constant(2, f32))))),
        )

    function = Function("order", (x, y), (serial(M, body),))
    agree([function], {"order": [np.ones(3, np.float32), np.zeros((3, 4), np.float32)]})


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("shift", [0, 1, 4, 8, 12])
def test_streaming_stores(shift: int, width: int, rng: np.random.Generator) -> None:
    x, y = Buffer("x", f32, (N,)), Buffer("y", f32, (N,))
    body = serial(
        N // width, lambda b: vector(width, lambda v: Store(y, (width * b + v,), Load(x, (width * b + v,)), True))
    )
    function = Function("stream", (x, y), (body,))
    native = Native([function])
    data = rng.standard_normal(128).astype(np.float32)
    memory = np.zeros(128 + 48, np.float32)
    start = (-memory.ctypes.data // 4) % 16 + shift
    found = memory[start : start + 128]
    assert native("stream", data, found, dims=[128]) is None
    np.testing.assert_array_equal(found, data)
    assert not memory[:start].any()
    assert not memory[start + 128 :].any()
    assert "!nontemporal" in native.kernels["stream"].text


def test_index_arithmetic_of_every_kind() -> None:
    """Values of index expressions, negative ones and symbolic divisors included, scalar and in lanes."""
    i_range = 23
    y = Buffer("y", i64, (i_range,))
    expressions = {
        "linear": lambda i: 3 * i - 7 + M,
        "product": lambda i: i * M * K - i * i,
        "halves": lambda i: (i - 11) // 2,
        "thirds": lambda i: (i - 11) // 3,
        "rest": lambda i: (i - 11) % 3,
        "rest_of_four": lambda i: (i - 11) % 4,
        "symbolic": lambda i: (i - 11) // M + (i - 11) % K * 10,
        "negative_divisor": lambda i: (i - 11) // (0 - M) * 100 + (i - 11) % (0 - K),
        "least": lambda i: symbolic.minimum(i, M, K + 1) + symbolic.maximum(i - 5, K),
    }
    functions = []
    for name, expression in expressions.items():
        functions.append(
            Function(f"{name}_one", (y,), (serial(i_range, lambda i, e=expression: Store(y, (i,), IndexValue(e(i)))),))
        )

        def lanes(b, e=expression):
            return vector(
                8,
                lambda v: Store(y, (8 * b + v,), IndexValue(e(8 * b + v))),
                symbolic.minimum(8, i_range - 8 * b),
            )

        functions.append(Function(f"{name}_lanes", (y,), (serial(3, lanes),)))
        functions.append(
            Function(
                f"{name}_unrolled",
                (y,),
                (unrolled(i_range, lambda i, e=expression: Store(y, (i,), IndexValue(e(i)))),),
            )
        )
    values = {"m": 5, "k": 3}
    agree(
        functions,
        {f.name: [np.zeros(i_range, np.int64)] for f in functions},
        {f.name: {k: v for k, v in values.items() if k in _names(f)} for f in functions},
        targets=("native",),
    )


def _names(function: Function) -> set[str]:
    return {symbol.name for symbol in dims_of(function)}
