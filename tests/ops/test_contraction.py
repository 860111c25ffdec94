"""matmul and einsum against NumPy; the choices of the contraction that NumPy does not make."""

import numpy as np
import pytest

from ingot.compiler import autodiff
from ingot.compiler.ir.graph import topological
from ingot.compiler.ir.types import f16, f32, f64, i8, i32, u8
from ingot.compiler.ops.base import Node, OpTypeError
from ingot.compiler.ops.contraction import EXHAUSTIVE_OPERANDS, Contract, einsum, matmul
from tests.ops.harness import build, call, check_gradient, run

SHAPES = [
    ((5,), (5,)),
    ((3, 5), (5,)),
    ((5,), (5, 4)),
    ((3, 5), (5, 4)),
    ((2, 3, 5), (5, 4)),
    ((3, 5), (2, 5, 4)),
    ((5,), (2, 5, 4)),
    ((2, 3, 5), (5,)),
    ((2, 3, 5), (2, 5, 4)),
    ((2, 1, 3, 5), (6, 5, 4)),
    ((1, 3, 5), (1, 5, 4)),
    ((7, 1, 3, 5), (1, 6, 5, 4)),
    ((3, 0), (0, 4)),
    ((0, 3, 5), (5, 4)),
]

SPECS = [
    ("ij->ji", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ij->j", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("iji->j", [(3, 4, 3)]),
    ("iijj->ij", [(3, 3, 2, 2)]),
    ("iii->i", [(3, 3, 3)]),
    ("ba", [(3, 4)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("ij,jk->ki", [(3, 4), (4, 5)]),
    ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ij,j->ij", [(3, 4), (4,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,i->", [(3,), (3,)]),
    (",ij->ij", [(), (3, 4)]),
    ("ijk,k->i", [(3, 4, 5), (5,)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
    ("...ij,...jk", [(2, 1, 3, 4), (6, 4, 5)]),
    ("i...,i...->...", [(3, 2, 4), (3, 4)]),
    ("...->...", [(2, 3)]),
    ("b...,...b->b...", [(2, 3), (3, 2)]),
    ("ij,jk,kl->il", [(2, 9), (9, 3), (3, 8)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("ij,kj,lj->ikl", [(2, 5), (3, 5), (4, 5)]),
    ("ab,bc,cd,de->ae", [(2, 7), (7, 3), (3, 8), (8, 2)]),
    ("abc,bad->dc", [(2, 3, 4), (3, 2, 5)]),
    ("ii,ij->j", [(3, 3), (3, 4)]),
    ("ij,jk->ik", [(3, 1), (4, 5)]),
    (" i j , j k -> i k ", [(3, 4), (4, 5)]),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_follows_numpy(left, right, rng):
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    np.testing.assert_allclose(call(matmul, a, b), a @ b, 1e-12)


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_gradient(left, right, rng):
    graph = build(lambda x, y: x @ y, (f64[left], f64[right]))
    check_gradient(graph, (rng.standard_normal(left), rng.standard_normal(right)), (0, 1), rng)


def test_matmul_copies_nothing():
    """Stretched leading dims are dropped, not broadcast."""
    graph = build(matmul, (f32[7, 1, 3, 5], f32[1, 6, 5, 4]))
    assert [v.op.name for v in graph.body] == ["reshape", "reshape", "contract"]  # type: ignore[attr-defined]


def test_matmul_with_symbolic_batch(rng):
    graph = build(matmul, (f64["batch", 3, 5], f64["batch", 5, 4]))
    a, b = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 5, 4))
    np.testing.assert_allclose(run(graph, a, b)[0], a @ b, 1e-12)


@pytest.mark.parametrize(("spec", "shapes"), SPECS)
def test_einsum_follows_numpy(spec, shapes, rng):
    arrays = [rng.standard_normal(shape) for shape in shapes]
    found = call(lambda *nodes: einsum(spec, *nodes), *arrays)
    # NumPy's own optimiser refuses to stretch dims of 1
    np.testing.assert_allclose(found, np.einsum(spec, *arrays, optimize=False), 1e-11, 1e-13)


@pytest.mark.parametrize(("spec", "shapes"), SPECS)
def test_einsum_gradient(spec, shapes, rng):
    graph = build(lambda *nodes: einsum(spec, *nodes), [f64[shape] for shape in shapes])
    arrays = tuple(rng.standard_normal(shape) for shape in shapes)
    check_gradient(graph, arrays, range(len(shapes)), rng)


def products(spec: str, *shapes: tuple[int, ...]) -> int:
    """Scalar products that the contractions of an einsum take."""
    graph = build(lambda *nodes: einsum(spec, *nodes), [f32[shape] for shape in shapes])
    total = 0
    for value in topological(graph.outputs):
        if isinstance(value.op, Contract):
            letters: dict[str, int] = {}
            for text, arg in zip((value.op.left, value.op.right), value.args, strict=True):
                letters |= dict(zip(text, arg.tensor.static_shape, strict=True))
            total += int(np.prod(list(letters.values())))
    return total


def test_einsum_contracts_in_the_cheapest_order():
    # (a b) c costs 100*2*100 + 100*100*2, a (b c) costs 2*100*2 twice
    assert products("ij,jk,kl->il", (100, 2), (2, 100), (100, 2)) == 2 * 100 * 2 + 100 * 2 * 2


def test_einsum_of_a_long_chain(rng):
    count = EXHAUSTIVE_OPERANDS + 2
    letters = "abcdefghijklmnop"
    spec = ",".join(letters[n : n + 2] for n in range(count)) + f"->{letters[0]}{letters[count]}"
    arrays = [rng.standard_normal((2 + n % 3, 2 + (n + 1) % 3)) for n in range(count)]
    expected = np.linalg.multi_dot(arrays)
    np.testing.assert_allclose(call(lambda *nodes: einsum(spec, *nodes), *arrays), expected, 1e-10)


def test_einsum_without_sums_is_elementwise():
    graph = build(lambda x, y: einsum("ij,j->ij", x, y), (f32[3, 4], f32[4]))
    assert "contract" not in [v.op.name for v in graph.body]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "shapes", "message"),
    [
        ("ij,jk->ik", [(3, 4)], "describes 2 operands; 1 were given"),
        ("ij->i", [(3,)], "does not name the 1 dims"),
        ("i->ij", [(3,)], "'j' of the output is in no operand"),
        ("i->ii", [(3,)], "twice in the output"),
        ("ij,jk->ik", [(3, 4), (5, 6)], "'j' of 'ij,jk->ik' is both 4 and 5"),
        ("ii->i", [(3, 4)], "a diagonal needs equal dims"),
        ("i1->i", [(3, 4)], "not letters"),
        ("......->", [(3, 4)], "not letters"),
    ],
)
def test_einsum_says_what_is_wrong(spec, shapes, message):
    with pytest.raises(OpTypeError, match=message):
        build(lambda *nodes: einsum(spec, *nodes), [f32[shape] for shape in shapes])


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Contract("ik", "kj", "ij"), (f32[3, 4], f32[5, 6]), "'k' of ik,kj->ij is 4"),
        (Contract("ik", "kj", "ij"), (f32[3, "n"], f32["m", 6]), "'k' of ik,kj->ij is n"),
        (Contract("ik", "kj", "i"), (f32[3, 4], f32[4, 6]), "'j' of ik,kj->i is summed but in one operand"),
        (Contract("ii", "ij", "j"), (f32[3, 3], f32[3, 6]), "different letters"),
        (Contract("ik", "kj", "ijl"), (f32[3, 4], f32[4, 6]), "'l' of the output is in no operand"),
        (Contract("ik", "kj", "ij"), (f32[3, 4], f64[4, 6]), "element types f32 and f64 differ"),
        (Contract("ik", "kj", "ij"), (f32[3, 4, 1], f32[4, 6]), "does not name the dims"),
        (Contract("ik", "kj", "ij", f32), (i8[3, 4], i8[4, 6]), "do not multiply to f32"),
    ],
)
def test_contract_says_what_is_wrong(op, types, message):
    with pytest.raises(OpTypeError, match=message):
        op.infer(*types)


def test_half_precision_is_accumulated_in_single_and_rounded_once():
    """2048 + 1 is 2048 in f16: adding ones to it in f16 would never move it."""
    row = np.full((1, 1025), 1, np.float16)
    row[0, 0] = 2048
    found = Contract("ik", "kj", "ij").evaluate(row, np.ones((1025, 1), np.float16))
    assert found.dtype == np.float16
    assert found[0, 0] == 3072


def test_small_integers_are_accumulated_in_the_result_type():
    a, b = np.full((1, 4), 200, np.uint8), np.full((4, 1), -100, np.int8)
    assert Contract("ik", "kj", "ij", i32).evaluate(a, b)[0, 0] == -80000
    assert Contract("ik", "kj", "ij", i32).infer(u8[1, 4], i8[4, 1]) == i32[1, 1]


def test_gradient_with_a_wider_result_keeps_the_types_of_the_operands():
    def product(x: Node, y: Node) -> Node:
        return x.contract(y, left="ik", right="kj", output="ij", result=f32)

    vjp = autodiff.differentiate(build(product, (f16[3, 4], f16[4, 2])), (0, 1))
    assert [v.tensor for v in vjp.outputs] == [f16[3, 4], f16[4, 2]]
    assert [v.tensor for v in vjp.inputs] == [f16[3, 4], f16[4, 2], f32[3, 2]]
