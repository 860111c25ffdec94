"""Elementary functions: stated error bounds, limits, exactness, equal bits at every width, and no library calls."""

from __future__ import annotations

import struct
from pathlib import Path

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
from llvmlite import ir

from ingot.compiler.codegen import math
from ingot.compiler.codegen.math import pieces
from tests.codegen.fit_polynomials import sample, worst_error
from tests.codegen.fitted_functions import Table, all_tables
from tests.codegen.fitted_pieces import TABLES, Pieces
from tests.codegen.math_harness import (
    BASELINE,
    DTYPES,
    FUSED,
    INTEGERS,
    LOOKUP,
    MULTIPLE_PRECISION,
    NUMPY,
    REAL_TYPES,
    RUNNABLE,
    SHORT_LOOKUP,
    WITHOUT_NUMPY,
    arity,
    emit,
    kernel,
    random_values,
    same_bits,
    same_zeros,
    special_values,
    ulp_error_f64,
    ulp_errors,
)

FORMS = ("f32", "f64")
TARGETS = RUNNABLE
EXACT = [name for (name, form), bound in math.ULP.items() if form == "f32" and bound == 0.0]
INEXACT_UNARY = [name for name in math.UNARY if name not in EXACT]
INEXACT_BINARY = [name for name in math.BINARY if name not in EXACT]

# Where a function does something, beyond what random values of any size meet.
DOMAINS = {
    "exp": (-750.0, 715.0), "exp2": (-1080.0, 1030.0), "expm1": (-50.0, 715.0), "sinh": (-715.0, 715.0),
    "cosh": (-715.0, 715.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "atanh": (-1.0, 1.0), "acosh": (1.0, 9.0),
    "erfc": (-6.0, 28.0), "gelu": (-39.0, 9.0), "log": (0.5, 2.0), "log2": (0.5, 2.0), "log10": (0.5, 2.0),
    "log1p": (-1.0, 2.0), "sin": (-1e6, 1e6), "cos": (-1e6, 1e6), "tan": (-1e6, 1e6), "lgamma": (0.0, 5.0),
    "digamma": (0.0, 7.0),
}  # fmt: skip


def bit_patterns(stride: int, start: int = 0, stop: int = 2**32) -> np.ndarray:
    return np.arange(start, stop, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)


def reference_for_f32(name: str, *arguments: np.ndarray) -> np.ndarray:
    """NumPy in f64, or our own f64 function, which is tested against multiple precision."""
    with np.errstate(all="ignore"):
        wide = [argument.astype(np.float64) for argument in arguments]
        return NUMPY[name](*wide) if name in NUMPY else kernel(name, "f64", 4)(*wide)


def assert_within(name: str, form: str, got: np.ndarray, exact: np.ndarray, *arguments: np.ndarray) -> None:
    errors = ulp_errors(got, exact)
    worst = int(np.argmax(errors))
    at = ", ".join(repr(argument[worst]) for argument in arguments)
    assert errors[worst] <= math.ULP[name, form], (
        f"{name}({at}) = {got[worst]!r}, not {exact[worst]!r}: {errors[worst]:.3f} units in the last place"
    )


def check_f32(name: str, x: np.ndarray) -> None:
    exact = reference_for_f32(name, x)
    for target in TARGETS:
        got = kernel(name, "f32", 8, target)(x)
        assert_within(name, "f32", got, exact, x)
        assert same_zeros(got, exact).all()


@pytest.mark.parametrize("name", INEXACT_UNARY)
def test_f32_bound_over_the_whole_range(name: str) -> None:
    check_f32(name, np.concatenate([bit_patterns(4099), special_values("f32")]))


@pytest.mark.sweep
@pytest.mark.parametrize("name", INEXACT_UNARY)
def test_f32_bound_for_every_number(name: str) -> None:
    chunk = 2**24
    for start in range(0, 2**32, chunk):
        check_f32(name, bit_patterns(1, start, start + chunk))


def domain_values(name: str, count: int, seed: int) -> np.ndarray:
    low, high = DOMAINS.get(name, (-4.0, 4.0))
    return np.random.default_rng(seed).uniform(low, high, count)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
@pytest.mark.parametrize("name", [name for name in INEXACT_UNARY if name in NUMPY])
def test_f64_bound_against_long_double(name: str) -> None:
    x = np.concatenate([random_values("f64", 15000, 1), domain_values(name, 15000, 2), special_values("f64")])
    with np.errstate(all="ignore"):
        exact = NUMPY[name](x.astype(np.longdouble))
    for target in TARGETS:
        got = kernel(name, "f64", 4, target)(x)
        assert_within(name, "f64", got, exact, x)
        assert same_zeros(got, exact).all()


@pytest.mark.parametrize("name", list(MULTIPLE_PRECISION))
def test_f64_bound_against_multiple_precision(name: str) -> None:
    domain = domain_values(name, 150, 3)
    near = np.random.default_rng(4).uniform(-1.0, 1.0, 100) * 2.0 ** np.random.default_rng(5).uniform(-40, 2, 100)
    x = np.concatenate([domain, near])
    if name in ("lgamma", "digamma", "log"):
        x = np.concatenate([np.abs(x), 10.0 ** np.linspace(-300, 300, 40), 1 + near / 64, 2 + near / 64])
        x = x[x > 0]
    with mpmath.workprec(140):
        exact = [MULTIPLE_PRECISION[name](mpmath.mpf(value)) for value in x.tolist()]
        for target in TARGETS:
            got = kernel(name, "f64", 4, target)(x).tolist()
            worst, at = max((ulp_error_f64(*pair), value) for *pair, value in zip(got, exact, x.tolist(), strict=True))
            assert worst <= math.ULP[name, "f64"], f"{name}({at!r}): {worst:.3f} units in the last place"


def test_digamma_is_accurate_at_its_zero() -> None:
    """The doubles on both sides of the zero: what is left there is all cancellation."""
    x = np.nextafter(1.4616321449683623, [1.0, 1.4616321449683623, 2.0])
    with mpmath.workprec(200):
        for value, got in zip(x.tolist(), kernel("digamma", "f64", 4)(x).tolist(), strict=True):
            assert ulp_error_f64(got, mpmath.digamma(mpmath.mpf(value))) <= math.ULP["digamma", "f64"]


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_reflection_is_accurate_relative_to_its_terms(name: str) -> None:
    """Below zero the result is a difference, which may cancel; what is promised is relative to its larger term."""
    generator = np.random.default_rng(6)
    x = -np.concatenate([generator.uniform(0.0, 9.0, 150), generator.uniform(9.0, 150.0, 30)])
    function = MULTIPLE_PRECISION[name]
    for target in TARGETS:
        for value, got in zip(x.tolist(), kernel(name, "f64", 4, target)(x).tolist(), strict=True):
            with mpmath.workprec(140):
                argument = mpmath.mpf(value)
                exact, term = function(argument), max(abs(function(-argument)), abs(function(argument)))
                _, exponent = mpmath.frexp(term)
                assert abs(got - exact) <= 4 * mpmath.ldexp(1, exponent - 53), value


def hard_angles() -> np.ndarray:
    """Doubles that come closest to a multiple of pi/2, each about the worst of its exponent.

    Convergents p/q of the continued fraction of pi/2 * 2^-e give integers p for which p 2^e is nearly q pi/2.
    """
    found = [6381956970095103.0 * 2.0**797]  # the closest of all
    with mpmath.workprec(1400):
        for exponent in range(-50, 971, 17):  # from below the fast path's limit to the largest doubles
            rest = mpmath.pi / 2 / mpmath.ldexp(1, exponent)
            before, current = (0, 1), (1, 0)
            while True:
                whole = int(mpmath.floor(rest))
                before, current = current, (whole * current[0] + before[0], whole * current[1] + before[1])
                if current[0] >= 2**53:
                    break
                rest = 1 / (rest - whole)
            if before[0] >= 2**40:
                found.append(float(before[0]) * 2.0**exponent)
    return np.array(found)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_nearest_to_multiples_of_a_right_angle(name: str) -> None:
    x = hard_angles()
    assert x.size > 10
    with mpmath.workprec(1400):
        exact = [MULTIPLE_PRECISION[name](mpmath.mpf(value)) for value in x.tolist()]
    with mpmath.workprec(200):
        for target in TARGETS:
            got = kernel(name, "f64", 4, target)(x).tolist()
            assert max(map(ulp_error_f64, got, exact)) <= math.ULP[name, "f64"]


def pairs(form: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special values, and random pairs of several kinds."""
    specials = special_values(form)
    grid = np.meshgrid(specials, specials)
    first, second = random_values(form, 6000, 7), random_values(form, 6000, 8)
    generator = np.random.default_rng(9)
    small = generator.integers(-12, 13, (2, 2000)).astype(DTYPES[form])
    return (
        np.concatenate([grid[0].ravel(), first, small[0], np.abs(first)]),
        np.concatenate([grid[1].ravel(), second, small[1], small[1].repeat(3)]),
    )


def near_overflow(form: str) -> tuple[np.ndarray, np.ndarray]:
    """Powers whose results spread over the whole range of the format."""
    generator = np.random.default_rng(10)
    bases = np.abs(random_values(form, 6000, 11))
    bases = bases[(bases > 0) & np.isfinite(bases) & (bases != 1)].astype(np.float64)
    limit = 104.0 if form == "f32" else 746.0
    exponents = generator.uniform(-limit, limit, bases.size) / np.log(bases)
    return bases.astype(DTYPES[form]), exponents.astype(DTYPES[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INEXACT_BINARY)
def test_binary_bound(name: str, form: str) -> None:
    wide = np.float64 if form == "f32" else np.longdouble
    if np.finfo(wide).nmant < 2 * np.finfo(DTYPES[form]).nmant - 45:
        pytest.skip("long double is no wider than double here")
    x, y = pairs(form)
    if name == "pow":
        more = near_overflow(form)
        x, y = np.concatenate([x, more[0]]), np.concatenate([y, more[1]])
    with np.errstate(all="ignore"):
        exact = NUMPY[name](x.astype(wide), y.astype(wide))
    for target in TARGETS:
        got = kernel(name, form, 4, target)(x, y)
        assert_within(name, form, got, exact, x, y)
        assert same_zeros(got, exact).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_equal_numpy(name: str, form: str) -> None:
    arguments = pairs(form) if arity(name) == 2 else (np.concatenate(pairs(form)),)
    with np.errstate(all="ignore"):
        expected = NUMPY[name](*arguments)
    for target in TARGETS:
        got = kernel(name, form, 4, target)(*arguments)
        equal = same_bits(got, expected)
        if name in ("minimum", "maximum"):
            equal |= got == expected  # which of 0 and -0 is smaller is not specified
        assert equal.all(), [argument[~equal][:3] for argument in arguments]


@pytest.mark.parametrize("form", FORMS)
def test_limits_of_functions_that_numpy_lacks(form: str) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan, -1.0, -2.0, 1.0, 2.0], DTYPES[form])
    expected = {
        "erf": [0.0, -0.0, 1.0, -1.0, nan],
        "erfc": [1.0, 1.0, 0.0, 2.0, nan],
        "gelu": [0.0, -0.0, inf, -0.0, nan],
        "lgamma": [inf, inf, inf, inf, nan, inf, inf, 0.0, 0.0],
        "digamma": [nan, nan, inf, nan, nan, nan, nan],
    }
    assert set(expected) == set(WITHOUT_NUMPY)
    for name, values in expected.items():
        for target in TARGETS:
            got = kernel(name, form, 4, target)(x)[: len(values)]
            assert same_bits(got, np.array(values, DTYPES[form])).all(), (name, got)


@pytest.mark.parametrize("form", FORMS)
def test_results_that_are_exact_are_found_exactly(form: str) -> None:
    least = -149 if form == "f32" else -1074
    powers = np.arange(least, 128, dtype=np.float64)
    cubes = np.arange(-160.0, 160.0)
    tens = np.arange(11.0 if form == "f32" else 23.0)
    for target in TARGETS:
        assert (kernel("exp2", form, 8, target)(powers) == 2.0**powers).all()
        assert (kernel("log2", form, 8, target)(2.0**powers) == powers).all()
        assert (kernel("log10", form, 8, target)(10.0**tens) == tens).all()
        assert (kernel("cbrt", form, 8, target)(cubes**3) == cubes).all()
        assert (kernel("pow", form, 8, target)(cubes, np.full_like(cubes, 3.0)) == cubes**3).all()
        for name, value in (("exp", 1.0), ("cos", 1.0), ("cosh", 1.0), ("sigmoid", 0.5), ("erfc", 1.0)):
            assert (kernel(name, form, 8, target)(np.zeros(1)) == value).all()


@pytest.mark.parametrize("form", FORMS)
def test_results_stay_in_range(form: str) -> None:
    """An error in the last place must not carry a result past a bound that others rely on."""
    x = random_values(form, 30000, 12)
    x = np.concatenate([x[np.isfinite(x)], np.linspace(-30.0, 30.0, 20001, dtype=x.dtype)])
    for target in TARGETS:
        for name in ("tanh", "erf", "sin", "cos"):
            assert np.abs(kernel(name, form, 8, target)(x)).max() <= 1.0, name
        sigmoid = kernel("sigmoid", form, 8, target)(x)
        assert sigmoid.min() >= 0.0
        assert sigmoid.max() <= 1.0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*math.UNARY, *math.BINARY])
def test_every_width_gives_the_same_bits(name: str, form: str) -> None:
    values = np.concatenate([random_values(form, 600, 13), special_values(form)])
    arguments = [np.random.default_rng(seed).permutation(values) for seed in range(arity(name))]
    for target in TARGETS:
        scalar = kernel(name, form, 0, target)(*arguments)
        for width in (4, 8, 16, 24, 64) if target is not BASELINE else (4,):
            assert same_bits(kernel(name, form, width, target)(*arguments), scalar).all(), width


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name, function in math.UNARY.items() if function.ordinary is not None])
def test_ordinary_arguments_are_most_and_their_form_gives_the_same_bits(name: str, form: str) -> None:
    """Of one number in every lane: whether it is ordinary, and what both forms make of it."""
    domain = domain_values(name, 3000, 15).astype(DTYPES[form])
    x = np.concatenate([random_values(form, 30000, 14), domain, special_values(form)])
    moderate = (x > 0.001) & (x < 80.0)
    for target in RUNNABLE if form == "f32" else (FUSED, BASELINE):
        if target is LOOKUP:
            continue
        usual = kernel(f"is_ordinary {name}", form, 8, target)(np.repeat(x, 8))[::8] == 1.0
        assert usual[moderate].all()
        assert not usual[~np.isfinite(x)].any()
        shorter = kernel(f"ordinary {name}", form, 8, target)(x)
        assert same_bits(shorter, kernel(name, form, 8, target)(x))[usual].all()


def test_functions_that_look_up_have_no_form_for_ordinary_arguments() -> None:
    exp = math.UNARY["exp"]
    assert exp.has_ordinary(REAL_TYPES["f32"], FUSED)
    assert exp.has_ordinary(REAL_TYPES["f64"], LOOKUP)
    assert not exp.has_ordinary(REAL_TYPES["f32"], LOOKUP)
    assert not math.UNARY["tanh"].has_ordinary(REAL_TYPES["f32"], FUSED)


def all_functions(width: int, target: math.MathTarget, triple: str) -> ir.Module:
    """One module with a function for every elementary function and format."""
    module = ir.Module("all")
    module.triple = triple
    for name in (*math.UNARY, *math.BINARY):
        for form in FORMS:
            kind = REAL_TYPES[form] if width == 1 else ir.VectorType(REAL_TYPES[form], width)
            function = ir.Function(module, ir.FunctionType(kind, [kind] * arity(name)), f"{name}_{form}")
            block = function.append_basic_block("entry")
            builder = ir.IRBuilder(block)
            result = emit(name, builder, list(function.args), target)
            assert builder.block is block, f"{name} moved the builder to another block"
            assert len(function.blocks) == 1, f"{name} added blocks to its caller"
            builder.ret(result)
    return module


def undefined_symbols(image: bytes) -> list[str]:
    """Names in the symbol table of a 64-bit little-endian ELF object that no section defines."""
    section_table, entry_size, count = *struct.unpack_from("<Q", image, 0x28), *struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, section_table + i * entry_size) for i in range(count)]
    names = []
    for _, kind, _, _, offset, size, link, _, _, width in sections:
        if kind == 2:  # SHT_SYMTAB
            strings = sections[link][4]
            for at in range(offset + width, offset + size, width):
                name, _, _, section = struct.unpack_from("<IBBH", image, at)
                if section == 0:
                    start = strings + name
                    names.append(image[start : image.index(b"\0", start)].decode())
    return names


OBJECT_TARGETS = {
    "sse2": ("x86_64-linux-gnu", "x86-64", 4, BASELINE),
    "sse4": ("x86_64-linux-gnu", "x86-64-v2", 4, math.MathTarget(has_fma=False, has_round=True)),
    "avx2": ("x86_64-linux-gnu", "x86-64-v3", 8, FUSED),
    "eighths": ("x86_64-linux-gnu", "x86-64-v3", 8, SHORT_LOOKUP),
    "avx512": ("x86_64-linux-gnu", "x86-64-v4", 16, FUSED),
    "lookup": ("x86_64-linux-gnu", "x86-64-v4", 16, LOOKUP),
    "neon": ("aarch64-linux-gnu", "generic", 4, FUSED),
    "scalar": ("aarch64-linux-gnu", "generic", 1, FUSED),
}


@pytest.mark.parametrize("label", list(OBJECT_TARGETS))
def test_objects_have_no_undefined_symbols(label: str) -> None:
    triple, cpu, width, target = OBJECT_TARGETS[label]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=1, codemodel="default")
    module = llvm.parse_assembly(str(all_functions(width, target, triple)))
    module.verify()
    assert undefined_symbols(machine.emit_object(module)) == []


def test_undefined_symbols_are_seen() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-linux-gnu").create_target_machine(codemodel="default")
    text = "define double @f(double %x) { %y = call double @llvm.floor.f64(double %x)\n ret double %y }\n"
    module = llvm.parse_assembly(text + "declare double @llvm.floor.f64(double)")
    module.triple = "x86_64-linux-gnu"
    assert undefined_symbols(machine.emit_object(module)) == ["floor"]


def test_equal_calls_share_one_private_function() -> None:
    module = ir.Module("shared")
    kind = ir.VectorType(ir.FloatType(), 8)
    function = ir.Function(module, ir.FunctionType(kind, [kind]), "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    once = math.emit_unary("sin", builder, function.args[0], FUSED)
    private = set(module.globals)
    builder.ret(math.emit_unary("sin", builder, once, FUSED))
    assert set(module.globals) == private


def test_wrong_operands_are_refused() -> None:
    function = ir.Function(ir.Module("wrong"), ir.FunctionType(ir.VoidType(), [ir.FloatType(), ir.IntType(32)]), "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    real, integer = function.args
    with pytest.raises(KeyError, match="no elementary function 'sine'.*exp"):
        math.emit_unary("sine", builder, real, FUSED)
    with pytest.raises(TypeError, match="exp of i32: needs float or double"):
        math.emit_unary("exp", builder, integer, FUSED)
    with pytest.raises(TypeError, match="pow of float, i32"):
        math.emit_binary("pow", builder, real, integer, FUSED)


@pytest.mark.parametrize("table", all_tables(), ids=lambda table: f"{table.name}-{table.form}")
def test_coefficients_approximate_what_they_claim(table: Table) -> None:
    problem = table.problem.thinned(40)
    with mpmath.workdps(40):
        assert worst_error(table.stored(), sample(problem)) < mpmath.mpf(2) ** -table.bits


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_pieces_approximate_what_they_claim(table: Pieces) -> None:
    with mpmath.workdps(40):
        assert max(table.errors(grid=24)) < mpmath.mpf(2) ** -table.bits


def test_logarithms_of_tabulated_factors_are_short_numbers() -> None:
    """So that their sum with a multiple of the high part of ln 2 is exact; what is lost of them hardly counts."""
    for factor, logarithm in zip(*pieces.LOGARITHM, strict=True):
        assert logarithm * 2**15 == round(logarithm * 2**15)
        assert abs(mpmath.log(factor) + logarithm) < 2.0**-29


@pytest.mark.parametrize("name", ["EXPONENTIAL", "SINE"])
def test_coefficients_are_those_that_the_fit_finds(name: str) -> None:
    table = next(table for table in all_tables() if (table.name, table.form) == (name, "f32"))
    assert table.fit().numerator == table.stored().numerator


def test_documentation_states_the_bounds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "math.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    stated = {
        (name.strip(" `"), form): float(cell) for name, *cells in rows for form, cell in zip(FORMS, cells, strict=False)
    }
    assert stated == math.ULP


def test_every_function_has_a_bound_of_at_most_four() -> None:
    assert set(math.ULP) == {(name, form) for name in (*math.UNARY, *math.BINARY) for form in FORMS}
    assert max(math.ULP.values()) <= 4.0
    assert all(INTEGERS[form].itemsize == DTYPES[form].itemsize for form in FORMS)
