"""Text of the loop level: what is printed reads back as the same function and prints the same."""

import numpy as np
import pytest

from ingot.compiler.ir import interpret, text
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Alloc, Call, For, Function, Let, Store, walk
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read
from ingot.compiler.ir.symbolic import Variable
from ingot.compiler.ir.text import ParseError
from ingot.compiler.ir.types import f32
from tests.ir.random_ir import Random, as_loops, random_kernel

EVERYTHING = """\
dim n in [0, 64]
function double(a: f32[16], b: f32[16]) {
  for lane in 16 vector(16) {
    b[lane] = a[lane] * 2.0
  }
}
function main(x: f32[n, 16], y: f32[n, 16], `let`: i64[4]) {
  alloc scratch: f32[16] in arena at 64*n
  for i in n parallel {
    alloc total: f32[2, 8] in register
    view row: f32[16] = x at 16*i
    view out: f32[16] in arena = scratch at 0
    call double(row, out)
    for u in 2 unrolled {
      for l in min(8, n + 3) within [0, 7] vector(8) {
        let t = x[i, 8*u + l] + 1.0
        let k = i64(3)
        let b: bool = t < 0.0
        total[u, l] = select(b, t, 0.0)
        if b & (index(l) < k) {
          stream y[i, 8*u + l] = t
        } else {
          y[i, 8*u + l] = total[u, l]
        }
      }
    }
    while y[i, 0] > 1.0 {
      y[i, 0] = y[i, 0] - 1.0
    } limit 12*n
    while false {
    }
    fail y[i, 0] != 1.0 code 7 "there"(index(i), y[i, 0])
    fail true code 1 "here"
    prefetch x[i, bounded(`let`[0], 16, "lookup")] locality 2
    for k_1 in opaque(lead(y, 64), [0, 15]) {
      y[i, k_1] = 1.0
    }
  }
}
"""
CANONICAL = EVERYTHING.replace("let b: bool =", "let b =")


def test_canonical_text_reads_back_as_itself():
    function = text.parse_function(EVERYTHING)
    assert text.print_function(function) == CANONICAL
    assert text.print_function(text.parse_function(CANONICAL)) == CANONICAL


def test_every_function_of_a_text_is_read():
    functions = text.parse_functions(EVERYTHING)
    assert list(functions) == ["double", "main"]
    (call,) = [s for s in walk(functions["main"].body) if isinstance(s, Call)]
    assert call.function is functions["double"]


@pytest.mark.parametrize("seed", range(40))
def test_random_functions_read_back(seed):
    kernel = random_kernel(seed)
    function = as_loops(kernel, "parallel")
    printed = text.print_function(function)
    again = text.parse_function(printed)
    assert text.print_function(again) == printed
    random = Random(seed)
    arrays = [random.array(b) for b in function.parameters]
    found = interpret.run_function(again, [a.copy() for a in arrays])
    for left, right in zip(found, interpret.run_function(function, arrays), strict=True):
        np.testing.assert_array_equal(left, right)


def test_objects_that_are_declared_twice_get_two_names():
    x = Buffer("x", f32, (4,))
    i, t = Variable("i", 0, 3), Local("t", f32)
    loop = For(i, 4, (Let(t, Load(x, (i,))), Store(x, (i,), ir.apply("neg", Read(t)))))
    printed = text.print_function(Function("twice", (x,), (loop, loop)))
    assert "for i in 4 {\n    let t = x[i]\n    x[i] = -t" in printed
    assert "for i_1 in 4 {\n    let t_1 = x[i_1]\n    x[i_1] = -t_1" in printed
    assert text.print_function(text.parse_function(printed)) == printed


def test_names_that_collide_with_symbols_and_made_up_names_give_way():
    printed = """\
function f(n: f32[4], i: f32[4], i_1: f32[4]) {
  for j in 4 {
    n[j] = i[j] + i_1[j]
  }
}
"""
    function = text.parse_function(printed)
    n, i, i_1 = function.parameters
    inner = Variable("i", 0, 3)
    changed = Function("f", (n, i, i_1), (For(inner, 4, (Store(n, (inner,), Load(i, (inner,))),)),))
    assert "for i_2 in 4" in text.print_function(changed)
    again = text.print_function(text.parse_function(text.print_function(changed)))
    assert again == text.print_function(changed)


def test_functions_of_one_name_are_told_apart():
    x = Buffer("x", f32, (1,))
    inner = Function("f", (x,), (Store(x, (0,), ir.constant(1, f32)),))
    y = Buffer("y", f32, (1,))
    outer = Function("f", (y,), (Call(inner, (y,)), Call(inner, (y,))))
    printed = text.print_function(outer)
    assert printed.count("function") == 2
    assert "call f(y)" in printed
    assert "function f_1(y: f32[1])" in printed
    assert text.print_function(text.parse_function(printed)) == printed


def test_neutral_names_make_renamed_functions_alike():
    renamed = EVERYTHING.replace("total", "sum_").replace("lane", "q").replace("main", "other")
    left, right = text.parse_function(EVERYTHING), text.parse_function(renamed)
    assert text.print_function(left) != text.print_function(right)
    assert text.print_function(left, neutral=True) == text.print_function(right, neutral=True)


def test_spaces_and_offsets_are_kept():
    function = text.parse_function(EVERYTHING)
    spaces = [s.buffer.space for s in walk(function.body) if isinstance(s, Alloc)]
    assert spaces == ["arena", "register"]


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("call double", "call triple", "triple(", "no function called 'triple' stands before this one"),
        ("double(row, out)", "double(row, t)", "t)\n", "there is no buffer called 't' here"),
        ("in register", "in regster", "regster", "expected one of global, arena, stack, register"),
        ("for u in 2", "for i in 2", "i in 2", "'i' already means something else here"),
        ("let k = i64(3)", "let k = 3", "3\n", "nothing says which type 3 has"),
        ("l] = total[u, l]\n", "l] == total[u, l]\n", "== total", "expected '=', found '=='"),
        ("= x at", "= xx at", "xx at", "there is no buffer called 'xx' here"),
        ("vector(16)", "vector(n)", "n)", "expected the number of lanes, found 'n'"),
        ('code 7 "there"', "code 7 there", "there(", "expected the failure's site"),
        ("function main", "function double", "double(x", "two functions are called 'double'"),
        ("    fail true", "    } } } fail true", "} fail true", "expected 'function', found '}'"),
        ("8*u + l] + 1.0", "8*u + z.w(] + 1.0", "(]", "expected ']' or ',', found '('"),
        ("      y[i, 0] = y", "      [i, 0] = y", "[i, 0] = y", "expected a statement or '}', found '['"),
    ],
)
def test_errors_say_where_and_what(old, new, place, message):
    wrong = EVERYTHING.replace(old, new, 1)
    with pytest.raises(ParseError) as error:
        text.parse_function(wrong)
    assert message in str(error.value)
    line = wrong.splitlines(keepends=True)[error.value.line - 1]
    assert line[error.value.column - 1 :].startswith(place), str(error.value)
