"""The verifier of the loop level: valid functions pass, each broken rule is named."""

from typing import Any

import pytest

from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir import text
from ingot.compiler.ir.loops import Alloc, Call, Fail, For, Function, If, Let, Prefetch, Store, View, While
from ingot.compiler.ir.scalar import Buffer, Const, IndexValue, Lead, Load, Local, Read, Reduce
from ingot.compiler.ir.symbolic import Opaque, Symbol, Variable
from ingot.compiler.ir.types import boolean, f32, i64
from ingot.compiler.ir.verify import VerifyError, verify_function
from tests.ir.random_ir import as_loops, random_kernel
from tests.ir.test_interpret_function import MATMUL
from tests.ir.test_text_function import EVERYTHING


@pytest.mark.parametrize("seed", range(40))
def test_plain_nests_of_random_kernels_are_valid(seed: int):
    verify_function(as_loops(random_kernel(seed)))


@pytest.mark.parametrize(
    "valid",
    [
        MATMUL,
        EVERYTHING,
        "function f(x: f32[n]) { for i in n parallel { for j in 2 parallel { x[i + j] = 0.0 } } }",
        "function f(x: f32[1]) { for i in n parallel { if index(i) == 0 { x[0] = 1.0 } } }",
        "function f(x: f32[1]) { for i in 1 parallel { x[0] = 1.0 } }",
        "function f(x: f32[4]) { for i in n { prefetch x[i + 99] locality 1 } }",
        "function f(x: f32[4]) { for i in 0 { x[i + 9] = 1.0 } }",
        "function f(x: f32[4]) { if index(n) > 9 { x[4] = 1.0 } }",
        "function f(x: f32[4]) { for u in 2 unrolled { alloc r: f32[4] in register r[2*u] = 0.0 } }",
        "function f(x: f32[4]) { for i in n parallel { alloc r: f32[] in register r[] = 0.0 } }",
        "function f(x: f32[4]) { for i in 4 { let t = x[i] } for i in 4 { let t = x[i] } }",
    ],
)
def test_what_is_valid_or_undecided_passes(valid: str):
    verify_function(text.parse_function(valid))


X = Buffer("x", f32, (4,))
N = Symbol("n")
ONE, YES = Const(1, f32), Const(True, boolean)
OTHER = Buffer("other", f32, (4,))
REGISTER = Buffer("r", f32, (4,), "register")
T = Local("t", f32)


def variable(name: str = "i", extent: Any = 4) -> Variable:
    return Variable(name, 0, extent - 1)


K, J = variable("i"), variable("j")
CALLEE = Function("callee", (Buffer("p", f32, (4,)),), ())


def store(position: Any = 0, value: Any = ONE, buffer: Buffer = X) -> Store:
    return Store(buffer, (position,), value)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([store(K)], "store to x: index 0 of x, i, uses the variable i, which is not bound here"),
        ([For(K, 4, ()), store(K)], "uses the variable i, which is not bound here"),
        ([For(K, 4, (For(K, 4, ()),))], "for i, for i: the variable i is bound twice"),
        ([For(K, N, ())], None),
        ([For(K, K, ())], "an extent, i, uses the variable i, which is not bound here"),
        ([For(N, 4, ())], "n is used as a variable, but is none"),
        ([For(K, 9, ())], "i runs from 0 to 8, outside its own bounds 0 to 3"),
        ([For(K, 4, (), "vector", 2)], "a vector loop of 2 lanes has the extent 4, which is not known to fit"),
        ([For(variable("i", N), N, (), "vector", 8)], "has the extent n, which is not known to fit"),
        ([For(K, 4, (), "vector", 0)], "a vector loop has 0 lanes"),
        ([For(variable("i", N), N, (), "unrolled")], "an unrolled loop has the extent n, no constant"),
        ([For(K, 4, (), "serial", 4)], "a serial loop has 4 lanes"),
        ([For(K, 4, (), "diagonal")], "there is no loop of kind 'diagonal'"),  # type: ignore[arg-type]
        ([For(K, 4, (For(J, 4, (), "vector", 4),), "vector", 4)], "a vector loop stands in the vector loop i"),
        ([For(K, 4, (For(J, 4, (), "parallel"),), "vector", 4)], "a parallel loop stands in the vector loop i"),
        ([For(K, 4, (While(YES, ()),), "vector", 4)], "a while stands in a vector loop"),
        ([For(K, 4, (Call(CALLEE, (X,)),), "vector", 4)], "a call stands in a vector loop"),
        ([For(K, 4, (store(),), "parallel")], "every iteration of the parallel loop i writes the same elements"),
        ([For(K, 4, (For(J, 4, (store(J),)),), "parallel")], "every iteration of the parallel loop i"),
        ([store(0, ONE, OTHER)], "writes other: f32[4], which does not exist or has no value here"),
        ([store(0, Load(OTHER, (0,)))], "reads other: f32[4], which does not exist"),
        ([If(YES, (Alloc(REGISTER),)), store(0, ONE, REGISTER)], "writes r: f32[4], which does not exist"),
        ([Store(X, (0, 0), ONE)], "writes x: f32[4] with 2 indices, it has 1 dims"),
        ([store(4)], "writes x: f32[4] at 4 in dim 0, which is outside"),
        ([store(-1)], "writes x: f32[4] at -1 in dim 0, which is outside"),
        ([store(0, Const(1, i64))], "a i64 is stored to x: f32[4]"),
        ([store(0, Read(T))], "t is read, but no let binds it here"),
        ([If(YES, (Let(T, ONE),)), store(0, Read(T))], "t is read, but no let binds it here"),
        ([Let(T, ONE), Let(T, ONE)], "let t: it is bound already"),
        ([Let(T, Const(1, i64))], "let t: it is f32, its value is i64"),
        ([store(0, Reduce("sum", (K,), (4,), ONE))], "a sum over variables stands inside loops"),
        ([store(0, ir.apply("add", ONE, Const(1, i64)))], "add is applied to different types"),
        ([store(Lead(X, 16).dim)], None),
        ([store(Lead(OTHER, 16).dim)], "it asks where other: f32[4] is, which has no address here"),
        ([Alloc(REGISTER), store(Lead(REGISTER, 16).dim)], "it asks where r: f32[4] is, which has no address here"),
        ([store(Opaque(Read(Local("k", i64)), 0, 3))], "k is read, but no let binds it here"),
        ([If(ONE, ())], "the condition is f32, not bool"),
        ([While(ONE, ())], "the condition is f32, not bool"),
        ([While(YES, (), K)], "the limit, i, uses the variable i"),
        ([Fail(ONE, 1, "s")], "fail at 's': the condition is f32, not bool"),
        ([Fail(YES, 1, "s", (IndexValue(K),))], "an index value, i, uses the variable i"),
        ([Alloc(Buffer("g", f32, (4,)))], "a buffer in global has no offset"),
        ([Alloc(Buffer("a", f32, (4,), "arena"))], "a buffer in arena has no offset"),
        ([Alloc(REGISTER, 0)], "a buffer in register has an offset"),
        ([Alloc(Buffer("a", f32, (4,), "arena"), -N)], "the offset -n is negative"),
        ([Alloc(Buffer("a", f32, (N,), "stack"))], "a: f32[n] is in stack memory but has no constant size"),
        ([Alloc(Buffer("a", f32, (-4,), "stack"))], "a dim of a: f32[-4] is negative"),
        ([Alloc(REGISTER), Alloc(REGISTER)], "r: f32[4] is made while it exists already"),
        ([Alloc(X, 0)], "x: f32[4] is made while it exists already"),
        ([View(OTHER, REGISTER)], "it looks at r: f32[4], which does not exist here"),
        ([Alloc(REGISTER), View(OTHER, REGISTER)], "it looks at r: f32[4], which is in registers"),
        ([View(OTHER, X, 1)], "it ends at byte 20 of x: f32[4]"),
        ([View(OTHER, X, -1)], "the offset -1 is negative"),
        ([View(X, X)], "x: f32[4] is made while it exists already"),
        ([Call(CALLEE, ())], "call callee: 0 buffers are given, it takes 1"),
        ([Call(CALLEE, (OTHER,))], "other: f32[4] does not exist here"),
        ([View(Buffer("v", f32, (2,)), X), Call(CALLEE, (Buffer("v", f32, (2,)),))], "does not exist here"),
        ([Alloc(REGISTER), Call(CALLEE, (REGISTER,))], "r: f32[4] is in registers and cannot be passed"),
        ([Prefetch(OTHER, (0,))], "prefetch of other: looks at other: f32[4], which does not exist"),
        (
            [Alloc(REGISTER), For(K, 4, (store(K, ONE, REGISTER),))],
            "writes r: f32[4] in registers at i, which only constants and variables of unrolled and vector",
        ),
        (
            [Alloc(REGISTER), For(K, 4, (store(K, Load(REGISTER, (0,))),), "parallel")],
            "reads r: f32[4], registers of another thread",
        ),
        (["nonsense"], "'nonsense' is no statement"),
    ],
)  # fmt: skip
def test_broken_rules(statements: list[Any], message: str | None):
    function = Function("f", (X,), tuple(statements))
    if message is None:
        verify_function(function)
        return
    with pytest.raises(VerifyError) as error:
        verify_function(function)
    assert message in str(error.value)
    assert str(error.value).startswith("function f")


def test_arguments_of_the_wrong_type_are_refused():
    view = Buffer("v", f32, (2,))
    with pytest.raises(VerifyError, match=r"v: f32\[2\] is passed for p: f32\[4\]"):
        verify_function(Function("f", (X,), (View(view, X), Call(CALLEE, (view,)))))


def test_a_broken_callee_is_found():
    broken = Function("callee", (X,), (store(9),))
    y = Buffer("y", f32, (4,))
    with pytest.raises(VerifyError, match="function callee, store to x"):
        verify_function(Function("f", (y,), (Call(broken, (y,)),)))


def test_parameters_have_names_of_their_own():
    with pytest.raises(VerifyError, match="two parameters are called 'x'"):
        verify_function(Function("f", (X, Buffer("x", f32, ())), ()))


def test_one_name_means_one_dim_across_calls():
    p, y = Buffer("p", f32, (Symbol("n", 0),)), Buffer("y", f32, (N,))
    with pytest.raises(VerifyError, match="two dims are called n"):
        verify_function(Function("f", (y,), (Call(Function("g", (p,), ()), (y,)),)))
