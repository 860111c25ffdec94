"""Text of the tensor level: what is printed reads back as the same kernel and prints the same."""

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.scalar import Buffer, Cast, Const, Load, Reduce
from ingot.compiler.ir.symbolic import Opaque, Symbol, Variable
from ingot.compiler.ir.tensor import Definition, Kernel, axes
from ingot.compiler.ir.text import ParseError
from ingot.compiler.ir.text.read import Reader
from ingot.compiler.ir.text.write import Writer
from ingot.compiler.ir.traverse import nodes
from ingot.compiler.ir.types import DTYPES, bf16, boolean, f16, f32, f64, i64, u64
from tests.ir.random_ir import DIMS, VALUES, Random, random_dim, random_kernel

SOFTMAX = """\
kernel softmax(x: f32[n, 10]) -> (y: f32[n, 10]) {
  m[i < n] = max(k < 10: x[i, k])
  s[i < n] = sum(k < 10: exp(x[i, k] - m[i]))
  y[i < n, j < 10] = exp(x[i, j] - m[i]) / s[i]
}
"""

EVERYTHING = """\
dim `b c` in [-inf, 9]
dim n in [0, 64]
kernel `a word`(x: f32[n, 10], w: f32[3], ids: i64[n], `for`: f32[`b c`]) -> (y: f32[n, 10], z: bf16[n]) {
  local scratch: f32[n, 1] in stack
  scratch[i < n, 0] = 1.5
  mean[i < n] = sum(k < 10, l < 1: x[i, k])
  y[i < n, j < 10] = select((index(j) >= 1) & true, x[bounded(ids[i], n, "a \\"b\\""), j - 1], 0.0) * w[j % 3]
  z[i < n] = cast(max(-mean[i], 0.1) - (mean[i] - -3.0) / scratch[i, 0] + f32(inf) * f32(nan), bf16)
}
"""


@pytest.mark.parametrize("printed", [SOFTMAX, EVERYTHING])
def test_canonical_text_reads_back_as_itself(printed):
    assert text.print_kernel(text.parse_kernel(printed)) == printed


def test_layout_and_comments_do_not_matter():
    scrambled = SOFTMAX.replace("\n", "  # remark\n\n\t").replace(" = ", "\n=\n")
    assert text.print_kernel(text.parse_kernel(scrambled)) == SOFTMAX


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels_read_back(seed):
    kernel = random_kernel(seed)
    printed = text.print_kernel(kernel)
    again = text.parse_kernel(printed)
    assert text.print_kernel(again) == printed
    arrays = [Random(seed).array(b) for b in kernel.inputs]
    for found, expected in zip(interpret.run_kernel(again, arrays), interpret.run_kernel(kernel, arrays), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seed", range(200))
def test_dims_read_back_equal(seed):
    random = Random(seed)
    variables = [Variable("i", 0, 7), Variable("j", 0, Symbol("n") - 1), Variable("k"), *DIMS]
    dim = random_dim(random, variables, 4)
    writer = Writer(VALUES)
    printed = writer.dim(dim)
    reader = Reader(printed)
    reader.symbols = {s.name: s for s in VALUES}
    reader.scope = {v.name: v for v in variables if isinstance(v, Variable)}
    assert reader.dim() == dim
    reader.finish()


def test_text_does_not_depend_on_the_order_in_which_variables_were_made():
    def kernel(outer: Variable, inner: Variable) -> Kernel:
        x, y = Buffer("x", f32, (20,)), Buffer("y", f32, (4,))
        total = Reduce("sum", (inner,), (5,), Load(x, (outer + inner,)))
        return Kernel("k", (x,), (y,), (Definition(y, (outer,), total),))

    first, second = Variable("i", 0, 3), Variable("i", 0, 4)
    late = Variable("i", 0, 3)
    assert text.print_kernel(kernel(first, second)) == text.print_kernel(kernel(late, second))
    assert "x[i + i_1]" in text.print_kernel(kernel(late, second))


def test_names_are_used_again_in_another_scope():
    x, y = Buffer("x", f32, (4,)), Buffer("y", f32, (2,))
    k = Variable("k", 0, 3)
    totals = [Reduce("sum", (k,), (4,), Load(x, (k,))) for _ in range(2)]
    kernel = Kernel("k", (x,), (y,), (Definition(y, axes((2,)), ir.apply("add", *totals)),))
    printed = text.print_kernel(kernel)
    assert "sum(k < 4: x[k]) + sum(k < 4: x[k])" in printed
    assert text.print_kernel(text.parse_kernel(printed)) == printed


def test_what_is_shared_is_written_once_and_read_back_shared():
    x, y = Buffer("x", f32, (4,)), Buffer("y", f32, (2,))
    k = Variable("k", 0, 3)
    square = ir.apply("mul", Load(x, (k,)), Load(x, (k,)))
    inner = ir.apply("add", square, ir.apply("neg", square))
    total = Reduce("sum", (k,), (4,), inner)
    kernel = Kernel("k", (x,), (y,), (Definition(y, axes((2,)), ir.apply("max", total, total)),))
    printed = text.print_kernel(kernel)
    assert "let t = sum(k < 4: let t = x[k] * x[k] in t + -t) in max(t, t)" in printed
    again = text.parse_kernel(printed)
    assert text.print_kernel(again) == printed
    value = again.definitions[0].value
    assert isinstance(value, ir.Apply)
    assert value.args[0] is value.args[1]


def test_text_grows_with_what_is_computed_not_with_how_often_it_is_used():
    x, y = Buffer("x", f32, ()), Buffer("y", f32, ())
    value: ir.Scalar = Load(x, ())
    for _ in range(60):
        value = ir.apply("add", value, value)
    kernel = Kernel("k", (x,), (y,), (Definition(y, (), value),))
    printed = text.print_kernel(kernel)
    assert len(printed) < 2000
    assert interpret.run_kernel(text.parse_kernel(printed), [np.ones((), np.float32)])[0] == 2.0**60


def test_bounds_of_a_variable_are_said_when_the_extent_does_not_say_them():
    x, y = Buffer("x", f32, (4,)), Buffer("y", f32, (4,))
    i = Variable("i", 0, 9)
    printed = text.print_kernel(Kernel("k", (x,), (y,), (Definition(y, (i,), Load(x, (i,))),)))
    assert "y[i < 4 within [0, 9]]" in printed
    (definition,) = text.parse_kernel(printed).definitions
    (variable,) = definition.variables
    assert isinstance(variable, Variable)
    assert variable.upper == 9


def test_an_index_computed_from_data_keeps_its_bounds_and_what_it_depends_on():
    printed = SOFTMAX.replace("x[i, j] - m[i]", "x[opaque(cast(m[i], i64), [0, n - 1]), j] - m[i]")
    kernel = text.parse_kernel(printed)
    assert text.print_kernel(kernel) == printed
    loads = [n for n in nodes(kernel.definitions[-1].value) if isinstance(n, Load)]
    (atom,) = [index for load in loads for index in load.index if isinstance(index, Opaque)]
    assert (atom.lower, atom.upper) == (0, Symbol("n") - 1)
    assert kernel.definitions[-1].variables[0] in atom.depends


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16], ids=str)
def test_floats_read_back_to_the_bit(dtype, rng):
    x, y = Buffer("x", dtype, ()), Buffer("y", dtype, ())
    bits = rng.integers(0, 2**dtype.bits, 200, np.uint64).astype(f"u{dtype.itemsize}").view(dtype.numpy)
    for value in [*bits.tolist(), 0.0, -0.0, np.inf, -np.inf, np.nan, 0.1, 5e-324]:
        constant = Const(value, dtype)
        for scalar in (constant, ir.apply("add", Load(x, ()), constant), ir.apply("neg", constant)):
            kernel = Kernel("k", (x,), (y,), (Definition(y, (), scalar),))
            again = text.parse_kernel(text.print_kernel(kernel))
            found = [n for n in nodes(again.definitions[0].value) if isinstance(n, Const)]
            assert found == [constant], text.print_kernel(kernel)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if not d.is_float], ids=str)
def test_integers_and_bools_read_back(dtype):
    y = Buffer("y", dtype, ())
    low, high = (False, True) if dtype == boolean else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    for value in (low, high, 1):
        kernel = Kernel("k", (), (y,), (Definition(y, (), Const(value, dtype)),))
        assert text.parse_kernel(text.print_kernel(kernel)).definitions[0].value == Const(value, dtype)


def test_literals_take_the_type_beside_them():
    kernel = text.parse_kernel("kernel k(x: f16[]) -> (y: f16[]) { y[] = max(x[], 0) + 0.1 }")
    assert {n.dtype for n in nodes(kernel.definitions[0].value)} == {f16}


def test_precedence_is_printed_and_read_alike():
    x, y = Buffer("x", f64, ()), Buffer("y", f64, ())
    a, b, c = (ir.apply("abs", Load(x, ())) for _ in range(3))
    pairs = [
        ("add", "sub"),
        ("sub", "sub"),
        ("mul", "add"),
        ("div", "mul"),
        ("floordiv", "mod"),
        ("sub", "neg"),
    ]
    for outer, inner in pairs:
        nested = ir.apply(inner, *((b, c) if inner != "neg" else (b,)))
        for scalar in (ir.apply(outer, a, nested), ir.apply(outer, nested, a)):
            printed = text.print_kernel(Kernel("k", (x,), (y,), (Definition(y, (), scalar),)))
            again = text.parse_kernel(printed)
            (read,) = again.inputs
            expected = scalar_with(scalar, x, read)
            assert again.definitions[0].value == expected, printed


def scalar_with(scalar, old, new):
    match scalar:
        case Load():
            return Load(new, scalar.index)
        case ir.Apply(function, args):
            return ir.Apply(function, tuple(scalar_with(a, old, new) for a in args))
        case Cast(value, dtype):
            return Cast(scalar_with(value, old, new), dtype)
        case _:
            return scalar


def test_neutral_names_make_renamed_kernels_alike():
    other = SOFTMAX.replace("softmax", "other").replace("m[", "largest[").replace("k", "q")
    kernel, renamed = text.parse_kernel(SOFTMAX), text.parse_kernel(other.replace("qernel", "kernel"))
    assert text.print_kernel(kernel) != text.print_kernel(renamed)
    neutral = text.print_kernel(kernel, neutral=True)
    assert neutral == text.print_kernel(renamed, neutral=True)
    assert text.print_kernel(text.parse_kernel(neutral), neutral=True) == neutral
    assert neutral != text.print_kernel(text.parse_kernel(SOFTMAX.replace("- m", "+ m")), neutral=True)


@pytest.mark.parametrize(
    ("wrong", "line", "column", "message"),
    [
        ("kernel k(x: f33[2]) -> () {\n}", 1, 13, "an element type"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = q[i]\n}", 2, 14, "'q' is not known here"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = y\n}", 2, 14, "'y' is a buffer"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = i\n}", 2, 14, "'i' is an index variable"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = frob(1.0)\n}", 2, 14, "no scalar function called 'frob'"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = max(y[i])\n}", 2, 14, "max takes 2 arguments, not 1"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = exp(1.0)\n}", 2, 18, "nothing says which type 1.0 has"),
        ("kernel k() -> (y: i32[2]) {\n  y[i < 2] = 1.5\n}", 2, 14, "1.5 is no literal of type i32"),
        ("kernel k() -> (y: i32[2]) {\n  y[i < 3] = 1\n}", 2, 3, "do not cover the shape"),
        ("kernel k() -> (y: i32[2]) {\n  y[i < 2] = 1", 2, 15, "a definition or '}', found the end"),
        ("kernel k() -> (y: i32[2]) {\n  y[y < 2] = 1\n}", 2, 5, "already means something else"),
        ("kernel k() -> (y: i32[2], y: i32[2]) {\n}", 1, 27, "already means something else"),
        ("kernel k(x: f32[n]) -> () {\n} }", 2, 3, "expected the end of the text"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < y] = 1\n}", 2, 9, "'y' is a buffer, not an index"),
        ('kernel k() -> (y: f32[2]) {\n  y[i < 2] = "x\n}', 2, 14, "does not end"),
        ("kernel k() -> (y: f32[2]) {\n  y[i < 2] = ?\n}", 2, 14, "no part of the IR's text"),
        ("kernel k() -> (y: f32[]) {\n  y[] = let a = f32(1) in b\n}", 2, 27, "'b' is not known here"),
        ("kernel k() -> (y: f32[]) {\n  y[] = let a = f32(1) a\n}", 2, 24, "expected 'in' and what is computed"),
        ("dim n in [0, m]\nkernel k() -> () {\n}", 1, 5, "needs constant bounds"),
        ("dim n in [0, 1]\ndim n in [0, 2]\nkernel k() -> () {\n}", 2, 5, "is declared twice"),
    ],
)
def test_errors_say_where_and_what(wrong, line, column, message):
    with pytest.raises(ParseError) as error:
        text.parse_kernel(wrong)
    assert message in str(error.value)
    assert (error.value.line, error.value.column) == (line, column), str(error.value)


def test_constants_beyond_int64_read_back():
    y = Buffer("y", u64, (2,))
    i = axes((2,))
    value = ir.apply("select", ir.apply("lt", ir.IndexValue(i[0]), Const(1, i64)), Const(2**64 - 1, u64), Const(0, u64))
    kernel = Kernel("k", (), (y,), (Definition(y, i, value),))
    again = text.parse_kernel(text.print_kernel(kernel))
    assert interpret.run_kernel(again, [])[0].tolist() == [2**64 - 1, 0]
