"""Every scalar function, natively, against its NumPy meaning: scalar code, vectors, masked rests, three targets."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.math import UNARY
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import FUNCTIONS, Apply, Buffer, Cast, Function, Load, apply, constant
from ingot.compiler.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64
from ingot.compiler.target import Target
from tests.codegen.running import RUNNABLE, Native, elementwise, objects_of

N = symbolic.Symbol("n", 0)
LENGTH = 203  # no multiple of any vector's width

# Elementary functions are accurate to a few units in the last place (tests of codegen.math say how many).
EXACT = {
    "sqrt", "floor", "ceil", "round", "trunc", "neg", "abs", "sign", "not", "isnan", "isinf", "add", "sub",
    "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "copysign", "max", "min", "and", "or", "xor", "shl", "shr",
    "eq", "ne", "lt", "le", "gt", "ge", "select",
}  # fmt: skip
TOLERANCE = {"f64": 1e-13, "f32": 3e-6, "f16": 1e-3, "bf16": 1e-2}


def dtypes_of(function: Function) -> list[DType]:
    """Elementary functions of 16-bit floats are those of f32 between two conversions: one of them stands for all."""
    kinds = [dtype for dtype in DTYPES.values() if dtype.kind in function.kinds]
    is_typical = function.name in EXACT or function.name == "exp"
    return [dtype for dtype in kinds if is_typical or dtype.compute == dtype]


def argument_types(function: Function, dtype: DType) -> list[DType]:
    types = [dtype] * function.arity
    if function.name == "select":
        types[0] = boolean
    return types


def name_of(function: Function, dtype: DType, width: int) -> str:
    return f"{function.name}_{dtype.name}_{width}"


def kernel(function: Function, dtype: DType, width: int):
    inputs = [Buffer(f"x{n}", t, (N,)) for n, t in enumerate(argument_types(function, dtype))]
    result = Apply(function, tuple(Load(x, (N,)) for x in inputs)).dtype
    output = Buffer("y", result, (N,))
    name = name_of(function, dtype, width)
    return elementwise(name, inputs, output, lambda i: Apply(function, tuple(Load(x, (i,)) for x in inputs)), width)


def special(dtype: DType) -> np.ndarray:
    if dtype.kind == "bool":
        return np.array([True, False])
    if dtype.is_float:
        numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, 100.0, np.inf, -np.inf, np.nan]
        return np.array(numbers).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.array([0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1], dtype.numpy)


def samples(function: Function, dtype: DType, rng: np.random.Generator) -> list[np.ndarray]:
    """All pairs of special values first, random ones after."""
    types = argument_types(function, dtype)
    corners = list(itertools.product(*(special(t) for t in types)))
    chosen = corners if len(corners) <= 196 else [corners[n] for n in rng.permutation(len(corners))[:196]]
    columns = [np.array([row[n] for row in chosen], t.numpy) for n, t in enumerate(types)]
    arrays = [np.concatenate([c, random(t, LENGTH - len(c), rng)]) for c, t in zip(columns, types, strict=True)]
    if function.name == "pow" and dtype.is_integer:
        arrays[1] = (arrays[1] & dtype.numpy.type(15)).astype(dtype.numpy)  # NumPy refuses negative powers
    return arrays


def random(dtype: DType, count: int, rng: np.random.Generator) -> np.ndarray:
    if dtype.is_float:
        return (rng.standard_normal(count) * 3).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    info = np.iinfo(dtype.numpy)
    wide = rng.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
    return np.where(rng.random(count) < 0.5, wide, (wide % 20).astype(dtype.numpy))


def meaning(function: Function, dtype: DType, arrays: list[np.ndarray]) -> np.ndarray:
    """NumPy's result; f16 and bf16 computed in f32 and rounded once."""
    with np.errstate(all="ignore"):
        if dtype.compute == dtype or function.name == "select":
            return np.asarray(function.evaluate(*arrays))
        result = np.asarray(function.evaluate(*(a.astype(np.float32) for a in arrays)))
        return result if result.dtype == bool else result.astype(dtype.numpy)


CASES = [(function, dtype) for function in FUNCTIONS.values() for dtype in dtypes_of(function)]


def is_cheap(case: tuple[Function, DType]) -> bool:
    """What a second target adds: instructions chosen by type, not another polynomial of the same code."""
    function, dtype = case
    return function.name in EXACT and dtype.bits in (8, 32, 64)


@functools.cache
def compiled(target: str) -> Native:
    wide = Target.named(target)
    chosen = CASES if target == "native" else [case for case in CASES if is_cheap(case)]
    return Native(
        [kernel(f, d, w) for f, d in chosen for w in (0, wide.lanes(d.itemsize))],
        wide,
    )


@pytest.mark.parametrize("target", RUNNABLE)
def test_functions_mean_what_numpy_says(target: str, rng: np.random.Generator) -> None:
    native = compiled(target)
    lanes = Target.named(target).lanes
    wrong = []
    for function, dtype in CASES:
        if name_of(function, dtype, 0) not in native.functions:
            continue
        arrays = samples(function, dtype, rng)
        expected = meaning(function, dtype, arrays)
        results = []
        for width in (0, lanes(dtype.itemsize)):
            found = np.zeros_like(expected)
            assert native(name_of(function, dtype, width), *arrays, found, dims=[LENGTH]) is None
            results.append(found)
        if without_nans(results[0]) != without_nans(results[1]):
            wrong.append(
                f"{function.name} {dtype}: scalar and vector differ at {differences(results[0], results[1], arrays)}"
            )
        if not agrees(function, dtype, results[0], expected):
            wrong.append(f"{function.name} {dtype}: {differences(results[0], expected, arrays)}")
    assert not wrong, "\n".join(wrong)


ORDINARY = [name for name, function in UNARY.items() if function.ordinary is not None]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("dtype", [f32, f64, f16], ids=str)
@pytest.mark.parametrize("name", ORDINARY)
def test_one_extreme_lane_among_ordinary_ones_changes_no_other(
    name: str, dtype: DType, target: str, rng: np.random.Generator
) -> None:
    """Vectors of several registers are looked at together: the same bits as lane by lane, whichever form is used."""
    wide = Target.named(target)
    lanes = 4 * wide.lanes(dtype.compute.itemsize)
    function = FUNCTIONS[name]
    native = Native([kernel(function, dtype, width) for width in (0, lanes)], wide)
    info = np.finfo(dtype.numpy)
    edges = [87.0, 88.0, 89.0, 104.0, 708.0, 709.0, 709.9, 746.0, info.max, np.inf, 0.0, info.tiny, info.smallest_subnormal]
    with np.errstate(all="ignore"):
        extremes = np.array([*edges, *np.nextafter(edges, np.inf), *np.nextafter(edges, 0.0)]).astype(dtype.numpy)
    extremes = np.concatenate([extremes, -extremes, np.array([np.nan], dtype.numpy)])
    x = np.abs(random(dtype, lanes * (len(extremes) + 1), rng)).reshape(-1, lanes) + dtype.numpy.type(0.1)
    x[np.arange(len(extremes)), rng.integers(0, lanes, len(extremes))] = extremes
    found = []
    for width in (0, lanes):
        found.append(np.zeros(x.size, dtype.numpy))
        assert native(name_of(function, dtype, width), x.reshape(-1), found[-1], dims=[x.size]) is None
    assert without_nans(found[0]) == without_nans(found[1])


def without_nans(array: np.ndarray) -> bytes:
    """The bits, but which of the many NaNs it was."""
    return np.where(array != array, np.zeros_like(array), array).tobytes()


def agrees(function: Function, dtype: DType, found: np.ndarray, expected: np.ndarray) -> bool:
    same = (found == expected) | (np.isnan(found) & np.isnan(expected) if expected.dtype.kind not in "biu" else False)
    if function.name in EXACT or not dtype.is_float:
        return bool(np.all(same))
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        close = np.abs(a - b) <= TOLERANCE[dtype.name] * np.maximum(np.abs(b), 0.05)
    return bool(np.all(same | close))


def differences(found: np.ndarray, expected: np.ndarray, arrays: list[np.ndarray]) -> str:
    with np.errstate(all="ignore"):
        same = found == expected
        if expected.dtype.kind not in "biu":
            same |= np.isnan(found) & np.isnan(expected)
    places = np.flatnonzero(~same)[:4]
    return "; ".join(f"{[a[p] for a in arrays]} -> {found[p]!r}, expected {expected[p]!r}" for p in places)


@pytest.mark.parametrize("width", [0, 8])
def test_integer_powers(width: int) -> None:
    """Negative powers are integer parts of fractions, which NumPy refuses; constant powers are products."""
    x, y, z = (Buffer(name, i32, (N,)) for name in "xyz")
    power = elementwise("power", [x, y], z, lambda i: apply("pow", Load(x, (i,)), Load(y, (i,))), width)
    cubes = elementwise("cubes", [x], z, lambda i: apply("pow", Load(x, (i,)), constant(3, i32)), width)
    native = Native([power, cubes])
    bases = np.repeat(np.array([-3, -2, -1, 0, 1, 2, 3], np.int32), 9)
    exponents = np.tile(np.array([-3, -2, -1, 0, 1, 2, 3, 31, 40], np.int32), 7)
    found = np.zeros_like(bases)
    assert native("power", bases, exponents, found, dims=[len(bases)]) is None
    of_negative = np.where(bases == 1, 1, np.where(bases == -1, np.where(exponents % 2, -1, 1), 0))
    np.testing.assert_array_equal(found, np.where(exponents < 0, of_negative, bases ** np.maximum(exponents, 0)))
    assert native("cubes", bases, found, dims=[len(bases)]) is None
    np.testing.assert_array_equal(found, bases**3)


# --- conversions


CASTS = [(a, b) for a in DTYPES.values() for b in DTYPES.values() if a != b]


def cast_kernel(source: DType, result: DType, width: int):
    x, y = Buffer("x", source, (N,)), Buffer("y", result, (N,))
    name = f"{source.name}_to_{result.name}_{width}"
    return elementwise(name, [x], y, lambda i: Cast(Load(x, (i,)), result), width)


def cast_meaning(x: np.ndarray, source: DType, result: DType) -> np.ndarray:
    """astype, but floats saturate to the range of integers and NaN gives 0."""
    if not (source.is_float and result.is_integer):
        with np.errstate(all="ignore"):
            return x.astype(result.numpy)
    info = np.iinfo(result.numpy)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        found = np.trunc(wide).astype(result.numpy)
    found[wide <= info.min], found[wide >= info.max], found[np.isnan(wide)] = info.min, info.max, 0
    return found


def cast_samples(dtype: DType, rng: np.random.Generator) -> np.ndarray:
    values = [special(dtype), random(dtype, 60, rng)]
    if dtype in (f16, bf16):
        values.append(np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy))
    elif dtype.is_float:
        scales = 10.0 ** rng.uniform(-9, 20 if dtype == f32 else 40, 500)
        values.append((rng.standard_normal(500) * scales).astype(dtype.numpy))
        halves = np.arange(0, 1 << 16, 7, dtype=np.uint16).view(np.float16).astype(np.float64)
        halves = halves[np.isfinite(halves)]
        steps = np.spacing(np.abs(halves).astype(np.float16)).astype(np.float64)
        for shift in (0.5, 0.5 + 1e-7, 0.5 - 1e-7, 0.5 + 1e-12, 0.5 - 1e-12, 0.25):
            values.append((halves + shift * steps).astype(dtype.numpy))
    return np.concatenate(values)


@pytest.mark.parametrize("width", [0, 16])
@pytest.mark.parametrize("limits", [(-5.0, 7.0), (-(2.0**31), 2.0**31), (-(2.0**31), 2147483520.0), (3.0, np.inf)])
def test_casts_of_clipped_floats(width: int, limits: tuple[float, float], rng: np.random.Generator) -> None:
    """Limits inside the range of i32 leave NaN to look for; others do not save anything."""
    low, high = limits
    x, y = Buffer("x", f32, (N,)), Buffer("y", i32, (N,))

    def value(i):
        return Cast(apply("min", apply("max", Load(x, (i,)), constant(low, f32)), constant(high, f32)), i32)

    native = Native([elementwise("clipped", [x], y, value, width)])
    given = cast_samples(f32, rng)
    found = np.zeros(given.shape, np.int32)
    assert native("clipped", given, found, dims=[len(given)]) is None
    np.testing.assert_array_equal(found, cast_meaning(np.clip(given, np.float32(low), np.float32(high)), f32, i32))


@pytest.mark.parametrize("target", RUNNABLE)
def test_casts_mean_what_numpy_says(target: str, rng: np.random.Generator) -> None:
    wide = Target.named(target)
    widths = (0, wide.lanes(4))
    chosen = [(a, b) for a, b in CASTS if target == "native" or f16 in (a, b) or (a.is_float and b.is_integer)]
    native = Native([cast_kernel(a, b, w) for a, b in chosen for w in widths], wide)
    wrong = []
    for source, result in chosen:
        x = cast_samples(source, rng)
        expected = cast_meaning(x, source, result)
        for width in widths:
            found = np.zeros_like(expected)
            name = f"{source.name}_to_{result.name}_{width}"
            assert native(name, x, found, dims=[len(x)]) is None
            same = found == expected
            if result.is_float:
                same |= np.isnan(found) & np.isnan(expected)
                same &= (np.signbit(found) == np.signbit(expected)) | np.isnan(found)
            if not same.all():
                wrong.append(f"{name}: {differences(found, expected, [x])}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64"])
def test_other_machines_need_no_library(target: str) -> None:
    """Objects that this machine cannot run link without undefined names: what the target's features decide."""
    machine = Target.named(target)
    lanes = machine.lanes
    functions = [kernel(f, d, lanes(4)) for f, d in CASES if d == f32 or (f.name in EXACT and d in (i8, i64, f16))]
    functions += [kernel(f, f64, 0) for f in FUNCTIONS.values() if "float" in f.kinds]
    functions += [cast_kernel(a, b, w) for a, b in CASTS if {a, b} & {f16, bf16} for w in (0, lanes(4))]
    image = link(objects_of(functions, machine), [function.name for function in functions])
    assert {f.name for f in image.functions} >= {function.name for function in functions}


def test_wide_types_are_those_of_the_target() -> None:
    """The cases above cover every function and dtype, and every lane count is more than one."""
    assert {f.name for f, _ in CASES} == set(FUNCTIONS)
    assert {d for _, d in CASES} == set(DTYPES.values())
    assert all(Target.named(t).lanes(f64.itemsize) > 1 and i32.itemsize == 4 for t in RUNNABLE)
