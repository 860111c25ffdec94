"""The verifier of the tensor level: valid kernels pass, each broken rule is named."""

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.scalar import (
    FUNCTIONS,
    Apply,
    Bitcast,
    BoundedIndex,
    Buffer,
    Const,
    IndexValue,
    Load,
    Local,
    Read,
    Reduce,
    Scalar,
)
from ingot.compiler.ir.symbolic import Dim, Opaque, Symbol, Variable
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.types import DType, boolean, f32, f64, i32, i64
from ingot.compiler.ir.verify import VerifyError, verify_kernel
from tests.ir.random_ir import Random, random_kernel

N = Symbol("n")
X = Buffer("x", f32, (4, N))
IDS = Buffer("ids", i64, (4,))
Y = Buffer("y", f32, (4,))
R = Variable("i", 0, 3)
K = Variable("k", 0, N - 1)
ROW = Load(X, (R, 0))


def kernel(value: Scalar, variables: tuple[Dim, ...] = (R,), output: Buffer = Y) -> Kernel:
    return Kernel("k", (X, IDS), (output,), (Definition(output, variables, value),))


@pytest.mark.parametrize("seed", range(80))
def test_random_kernels_are_valid(seed: int):
    verify_kernel(random_kernel(seed))


@pytest.mark.parametrize(
    "valid",
    [
        "kernel k(x: f32[n]) -> (y: f32[n, 1]) { y[i < n, 0] = x[i] }",
        "kernel k(x: f32[n]) -> (y: f32[n]) { y[i < n] = x[n - i - 1] }",
        "kernel k(x: f32[n]) -> (y: f32[2*n]) { y[i < 2*n] = x[i//2] }",
        "kernel k(x: f32[n]) -> (y: f32[m]) { y[i < m] = x[i] }",  # undecided
        "kernel k(x: f32[3]) -> (y: f32[9]) { y[i < 9] = select(index(i) < 3, x[i], 0.0) }",
        'kernel k(x: f32[n], j: i32[3]) -> (y: f32[3]) { y[i < 3] = x[bounded(j[i], n, "s")] }',
        "kernel k(x: f32[0]) -> (y: f32[0]) { y[i < 0] = x[i + 3] }",
        "kernel k(x: i64[4]) -> (y: i64[4]) { y[i < 4] = shl(x[i], i32(3)) }",
        "kernel k(x: f32[4]) -> (y: bool[]) { y[] = any(i < 4: x[i] > 0.0) }",
        "kernel k(x: f32[4]) -> (y: f32[]) { y[] = sum(i < 4: bitcast(bitcast(x[i], i32), f32)) }",
    ],
)
def test_what_is_valid_or_undecided_passes(valid: str):
    verify_kernel(text.parse_kernel(valid))


FREE = Variable("free", 0, 1)
OTHER = Buffer("other", f32, (4,))
TOTAL = Reduce("sum", (K,), (N,), Load(X, (R, K)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Load(OTHER, (R,)), "reads other: f32[4], which does not exist or has no value here"),
        (Load(Y, (R,)), "reads y: f32[4], which does not exist or has no value here"),
        (Load(X, (R,)), "reads x: f32[4, n] with 1 indices, it has 2 dims"),
        (Load(X, (R, FREE)), "index 1 of x, free, uses the variable free, which is not bound here"),
        (Load(X, (FREE + 1, 0)), "index 0 of x, free + 1, uses the variable free"),
        (ir.Cast(IndexValue(FREE), f32), "an index value, free, uses the variable free"),
        (Load(X, (R + 4, 0)), "reads x: f32[4, n] at i + 4 in dim 0, which is outside"),
        (Load(X, (R - 4, 0)), "reads x: f32[4, n] at i - 4 in dim 0, which is outside"),
        (Load(X, (R + 1, 0)), "reads x: f32[4, n] at i + 1 in dim 0, which is outside"),
        (Load(X, (2 * R - 1, 0)), "reads x: f32[4, n] at 2*i - 1 in dim 0, which is outside"),
        (Load(X, (R, N)), "reads x: f32[4, n] at n in dim 1, which is outside"),
        (Reduce("sum", (K,), (N,), Load(X, (R, K + 1))), "at k + 1 in dim 1, which is outside"),
        (Const(1, f64), "the value is f64, the buffer is y: f32[4]"),
        (ir.apply("add", ROW, Const(1, f64)), "add is applied to different types: f32, f64"),
        (ir.apply("select", ROW, ROW, ROW), "select chooses by a f32, not a bool"),
        (ir.apply("select", Const(True, boolean), ROW, Const(1, i32)), "select is applied to different types"),
        (ir.Cast(ir.apply("exp", Const(1, i32)), f32), "exp takes float, not i32"),
        (ir.Cast(ir.apply("shl", Const(1, i32), ROW), f32), "shl shifts by a f32, not an integer"),
        (Apply(FUNCTIONS["add"], (ROW,)), "add takes 2 arguments, not 1"),
        (Apply(ir.Function("frob", 1, np.exp), (ROW,)), "there is no scalar function 'frob'"),
        (Bitcast(Const(1, f64), f32), "the bits of a f64 are taken for a f32 of another width"),
        (ir.Cast(IndexValue(R, f32), f32), "an index value has the type f32, which is no integer"),
        (ir.Cast(BoundedIndex(ROW, 4, "s"), f32), "a bounded index is f32, no integer"),
        (Load(X, (Opaque(ROW, 0, 3), 0)), "an index is computed by x[i, 0], which is f32, no integer"),
        (Load(X, (Opaque(Load(IDS, (FREE,)), 0, 3), 0)), "index 0 of ids, free, uses the variable free"),
        (ir.apply("neg", TOTAL), "a sum over variables stands inside another expression"),
        (Reduce("sum", (K,), (N,), TOTAL), "stands inside another expression"),
        (Reduce("sum", (R,), (4,), ROW), "the variable i is bound twice"),
        (Reduce("sum", (K,), (N, 2), ROW), "a sum has 1 variables, 2 extents"),
        (Reduce("avg", (K,), (N,), ROW), "there is no reduction 'avg'"),  # type: ignore[arg-type]
        (Reduce("all", (K,), (N,), ROW), "all of f32 has no meaning"),
        (Reduce("sum", (K,), (R,), ROW), "the extent i of a sum depends on a variable"),
        (Reduce("sum", (K,), (2 * N,), ROW), "k runs from 0 to 2*n - 1, outside its own bounds 0 to n - 1"),
        (Reduce("sum", (Variable("k", 1, 9),), (4,), ROW), "k runs from 0 to 3, outside its own bounds 1 to 9"),
        (Reduce("sum", (Variable("k"),), (-N,), ROW), "the extent of k, -n, is negative"),
        (Reduce("sum", (N,), (4,), ROW), "n is used as a variable, but is none"),
        (Read(Local("t", f32)), "the local t is read, but the tensor level has no locals"),
        (ir.Cast(ROW, DType("f8", "float", 8)), "is not an element type"),
    ],
)  # fmt: skip
def test_broken_rules_of_values(value: Scalar, message: str):
    with pytest.raises(VerifyError) as error:
        verify_kernel(kernel(value))
    assert message in str(error.value)
    assert str(error.value).startswith("kernel k, definition of y: ")


def test_nested_reductions_may_be_allowed():
    verify_kernel(kernel(ir.apply("neg", TOTAL)), nested_reductions=True)
    inside_index = Load(X, (Opaque(ir.Cast(TOTAL, i64), 0, 3), 0))
    with pytest.raises(VerifyError, match="stands inside another"):
        verify_kernel(kernel(inside_index), nested_reductions=True)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (kernel(ROW, (R, K)), "2 variables for y: f32[4], which has 1 dims"),
        (kernel(Load(X, (0, 0)), (0,)), "the index 0 stands for a variable of extent 4"),
        (kernel(Load(X, (0, 0)), (1,), Buffer("y", f32, (1,))), "the index 1 stands for a variable"),
        (kernel(Load(X, (R, 0)), (R, R), Buffer("y", f32, (4, 4))), "the variable i is bound twice"),
        (Kernel("k", (X,), (Y,), ()), "the output y: f32[4] is never defined"),
        (Kernel("k", (X,), (Y,), (Definition(Y, (R,), ROW),) * 2), "definition of y: it has a value already"),
        (Kernel("k", (Y,), (Y,), ()), "two inputs or outputs are called 'y'"),
        (Kernel("k", (Buffer("y", f32, ()),), (Y,), ()), "two inputs or outputs are called 'y'"),
        (Kernel("k", (Buffer("z", f32, (FREE,)),), (Y,), ()), "a dim of z, free, uses the variable free"),
        (
            Kernel("k", (X, Buffer("z", f32, (Symbol("n", 0),))), (Y,), ()),
            "two dims are called n: one in 0 to None, one in 1 to None",
        ),
    ],
)
def test_broken_rules_of_kernels(broken: Kernel, message: str):
    with pytest.raises(VerifyError) as error:
        verify_kernel(broken)
    assert message in str(error.value)


def test_an_earlier_definition_may_be_read_a_later_one_not():
    later = Buffer("later", f32, (4,))
    k = Variable("k", 0, 3)
    first, second = Definition(later, (R,), ROW), Definition(Y, (k,), Load(later, (k,)))
    verify_kernel(Kernel("k", (X,), (Y,), (first, second)))
    with pytest.raises(VerifyError, match="reads later"):
        verify_kernel(Kernel("k", (X,), (Y,), (second, first)))


def test_shared_parts_are_checked_once():
    value: Scalar = ROW
    for _ in range(60):
        value = ir.apply("add", value, value)
    verify_kernel(kernel(value))


def test_a_part_that_is_right_inside_a_reduction_is_still_wrong_outside():
    inner = Load(X, (R, K))
    total = Reduce("sum", (K,), (N,), inner)
    with pytest.raises(VerifyError, match="uses the variable k"):
        verify_kernel(kernel(ir.apply("add", total, inner)), nested_reductions=True)


@pytest.mark.parametrize("seed", range(60))
def test_an_index_that_the_verifier_refuses_is_one_that_the_interpreter_refuses(seed: int):
    """Off by one, in a random direction: whatever is called outside really is."""
    random = Random(seed)
    shift, stride, extent = random.below(5) - 2, random.choose((1, 2, -1)), 2 + random.below(4)
    x, y, i = Buffer("x", f32, (5,)), Buffer("y", f32, (extent,)), Variable("i", 0, extent - 1)
    moved = Kernel("k", (x,), (y,), (Definition(y, (i,), Load(x, (stride * i + shift,))),))
    inside = all(0 <= stride * p + shift < 5 for p in range(extent))
    arrays = [np.zeros(5, np.float32)]
    if inside:
        verify_kernel(moved)
        interpret.run_kernel(moved, arrays)
    else:
        with pytest.raises(VerifyError, match="which is outside"):
            verify_kernel(moved)
        with pytest.raises(IndexError):
            interpret.run_kernel(moved, arrays)
