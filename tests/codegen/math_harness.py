"""Running elementary functions over arrays, and measuring their errors in units in the last place.

Errors are measured against a reference of higher precision, in units of the last place of the *exact* result; a
result that should overflow counts as 2^128 (2^1024), so that an infinity is right exactly where rounding makes it so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm
import mpmath
import numpy as np
from llvmlite import ir

from ingot.compiler.codegen import math
from ingot.compiler.target import Target

FUSED = math.MathTarget(has_fma=True, has_round=True)
BASELINE = math.MathTarget(has_fma=False, has_round=False)
LOOKUP = math.MathTarget(has_fma=True, has_round=True, has_lookup=True)
SHORT_LOOKUP = math.MathTarget(has_fma=True, has_round=True, has_short_lookup=True)
RUNNABLE = (
    FUSED,
    BASELINE,
    *([LOOKUP] if Target.host().has_lookup else []),
    *([SHORT_LOOKUP] if Target.host().is_x86 and Target.host().vector_bytes >= 32 else []),
)
DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
REAL_TYPES = {"f32": ir.FloatType(), "f64": ir.DoubleType()}
INTEGERS = {"f32": np.dtype(np.uint32), "f64": np.dtype(np.uint64)}


def arity(name: str) -> int:
    return 2 if name in math.BINARY else 1


def emit(name: str, builder: ir.IRBuilder, operands: list[ir.Value], target: math.MathTarget) -> ir.Value:
    """A function, or of one that has it `ordinary f`, the form for ordinary arguments, and `is_ordinary f`, 1 or 0."""
    match name.split():
        case "ordinary", function:
            return math.emit_ordinary(function, builder, operands[0], target)
        case "is_ordinary", function:
            truth = math.emit_is_ordinary(function, builder, operands[0], target)
            one, zero = (ir.Constant(operands[0].type, [number] * operands[0].type.count) for number in (1.0, 0.0))
            return builder.select(truth, one, zero)
    if arity(name) == 2:
        return math.emit_binary(name, builder, operands[0], operands[1], target)
    return math.emit_unary(name, builder, operands[0], target)


def loop_over_arrays(name: str, form: str, width: int, target: math.MathTarget) -> ir.Module:
    """``run(inputs..., output, n)`` for n a multiple of the width; width 0 is scalar code."""
    module = ir.Module(name)
    pointer, i64 = ir.PointerType(), ir.IntType(64)
    real = REAL_TYPES[form]
    kind = ir.VectorType(real, width) if width else real
    count = arity(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * (count + 1) + [i64]), "run")
    entry, loop, done = (function.append_basic_block(label) for label in ("entry", "loop", "done"))
    ir.IRBuilder(entry).branch(loop)
    builder = ir.IRBuilder(loop)
    index = builder.phi(i64)
    addresses = [builder.gep(array, [index], source_etype=real) for array in function.args[: count + 1]]
    operands = [builder.load(address, typ=kind, align=real_size(form)) for address in addresses[:count]]
    builder.store(emit(name, builder, operands, target), addresses[count], align=real_size(form))
    following = builder.add(index, i64(max(width, 1)))
    index.add_incoming(i64(0), entry)
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, function.args[-1]), loop, done)
    ir.IRBuilder(done).ret_void()
    return module


def real_size(form: str) -> int:
    return DTYPES[form].itemsize


@cache
def host_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return host.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=1, jit=True)


@cache
def raw_kernel(name: str, form: str, width: int, target: math.MathTarget) -> Callable[..., None]:
    """``run(addresses of inputs..., address of output, n)``."""
    module = llvm.parse_assembly(str(loop_over_arrays(name, form, width, target)))
    module.verify()
    engine = llvm.create_mcjit_compiler(module, host_machine())
    engine.finalize_object()
    _ENGINES.append(engine)
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity(name) + 1), ctypes.c_int64)
    return signature(engine.get_function_address("run"))


_ENGINES: list[llvm.ExecutionEngine] = []
"""Code lives only as long as the engine that compiled it."""


def kernel(name: str, form: str, width: int = 8, target: math.MathTarget = FUSED) -> Callable[..., np.ndarray]:
    """The function over arrays of any length, in vectors of ``width`` lanes."""
    run, dtype, lanes = raw_kernel(name, form, width, target), DTYPES[form], max(width, 1)

    def call(*arrays: np.ndarray) -> np.ndarray:
        size = arrays[0].size
        padded = -(-size // lanes) * lanes
        inputs = [np.ones(padded, dtype) for _ in arrays]
        for buffer, array in zip(inputs, arrays, strict=True):
            buffer[:size] = array
        output = np.empty(padded, dtype)
        run(*(buffer.ctypes.data for buffer in inputs), output.ctypes.data, padded)
        return output[:size]

    return call


def ulp_errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units in the last place of exact; infinite where only one is NaN."""
    info, wide = np.finfo(got.dtype), exact.dtype.type
    limit = wide(2) ** info.maxexp

    def finite(values: np.ndarray) -> np.ndarray:
        return np.where(np.abs(values) >= limit, np.copysign(limit, values), values)

    with np.errstate(all="ignore"):
        truth = finite(exact)
        _, exponent = np.frexp(np.abs(truth))
        exponent = np.clip(exponent - info.nmant - 1, info.minexp - info.nmant, info.maxexp - info.nmant - 1)
        errors = np.abs(finite(got.astype(wide)) - truth) / np.ldexp(wide(1), exponent.astype(np.int32))
    errors = np.where(np.isnan(exact), wide(0), errors)
    return np.where(np.isnan(exact) == np.isnan(got), errors, wide(np.inf)).astype(np.float64)


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal bit for bit, any NaN being equal to any other."""
    integer = INTEGERS["f32" if a.dtype == np.float32 else "f64"]
    return (a.view(integer) == b.view(integer)) | (np.isnan(a) & np.isnan(b))


def same_zeros(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Where both are zero, they have the same sign."""
    return (got != 0) | (exact != 0) | (np.signbit(got) == np.signbit(exact))


def special_values(form: str) -> np.ndarray:
    info = np.finfo(DTYPES[form])
    positive = [0.0, info.smallest_subnormal, info.tiny, 2.0**-30, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 100.0]
    positive += [2.0**15, 2.0**20, 2.0**24 + 2, 2.0**53, 1e30, float(info.max), np.inf]
    return np.array([*positive, *(-value for value in positive), np.nan]).astype(DTYPES[form])


def random_values(form: str, count: int, seed: int) -> np.ndarray:
    """A third random bit patterns, a third of moderate size, a third around zero on a logarithmic scale."""
    generator = np.random.default_rng(seed)
    share = count // 3
    integer = INTEGERS[form]
    patterns = generator.integers(0, 2 ** (8 * integer.itemsize), share, dtype=np.uint64).astype(integer)
    moderate = generator.uniform(-12.0, 12.0, share)
    spread = generator.uniform(-1.0, 1.0, share) * 2.0 ** generator.uniform(-40.0, 10.0, share)
    dtype = DTYPES[form]
    return np.concatenate([patterns.view(dtype), moderate.astype(dtype), spread.astype(dtype)])


# The same functions in NumPy, for references of any precision that NumPy has.


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, x.dtype.type(1)) / (1 + small)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, x.dtype.type(0), x) + np.log1p(np.exp(-np.abs(x)))


NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "pow": np.power,
}
WITHOUT_NUMPY = ("erf", "erfc", "gelu", "lgamma", "digamma")
for _name in (*math.UNARY, *math.BINARY):
    if _name not in NUMPY and _name not in WITHOUT_NUMPY:
        NUMPY[_name] = getattr(np, _name)


# And in multiple precision, for the others.


def _gelu(x: mpmath.mpf) -> mpmath.mpf:
    size = abs(x)
    return max(x, mpmath.mpf(0)) - size / 2 * mpmath.erfc(size / mpmath.sqrt(2))


def _lgamma(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.re(mpmath.loggamma(x))


MULTIPLE_PRECISION: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "gelu": _gelu,
    "lgamma": _lgamma,
    "digamma": mpmath.digamma,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "tanh": mpmath.tanh,
}


def ulp_error_f64(got: float, exact: mpmath.mpf) -> float:
    """One error, against a number of any precision."""
    _, exponent = mpmath.frexp(abs(exact))
    unit = mpmath.ldexp(mpmath.mpf(1), max(exponent - 53, -1074))
    return float(abs(mpmath.mpf(got) - exact) / unit)
