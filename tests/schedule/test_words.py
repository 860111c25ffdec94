"""Products of narrow integers in words of two or four: exact for every sign, zero point and size, and at the extremes."""

from __future__ import annotations

import re
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

import ingot
from ingot.compiler.codegen.emit import emit_kernel
from ingot.compiler.ir import scalar as ir
from ingot.compiler.ir.loops import Function
from ingot.compiler.ir.scalar import Buffer, Cast, Load, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Definition, Kernel, axes, reduction
from ingot.compiler.ir.types import DType, boolean, i8, i16, i32, i64, u8
from ingot.compiler.schedule import schedule
from ingot.compiler.schedule.words import fits
from ingot.compiler.target import Target, _target
from tests.schedule.harness import check

DTYPES = {"u8": (np.uint8, 0, 255), "i8": (np.int8, -128, 127), "i16": (np.int16, -32767, 32767)}
RNG = np.random.default_rng(0)


def drawn(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    numpy, low, high = DTYPES[kind]
    array = RNG.integers(low, high + 1, shape).astype(numpy)
    array.reshape(-1)[::3] = low
    array.reshape(-1)[1::3] = high
    return array


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In i32, which wraps as native code does."""
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def wide(x):
    return x.cast(ingot.i32)


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
@pytest.mark.parametrize("shape", [(7, 33, 19), (1, 8, 40), (6, 2, 16), (13, 600, 5), (5, 1, 3), (3, 0, 4)])
def test_products_of_every_sign_and_size(left: str, right: str, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b = drawn(left, (rows, depth)), drawn(right, (depth, columns))
    program = ingot.jit(lambda a, b: wide(a) @ wide(b))
    np.testing.assert_array_equal(program(a, b), product(a, b))


@pytest.mark.parametrize("kinds", [("u8", "i8"), ("i8", "i8"), ("u8", "u8"), ("i8", "u8")])
@pytest.mark.parametrize("shape", [(6, 64, 48), (11, 37, 70), (1, 129, 300), (64, 512, 16)])
def test_known_weights_and_zero_points(kinds: tuple[str, str], shape: tuple[int, int, int]) -> None:
    """The weight is stored in words in advance; differences of codes take 16 bits."""
    rows, depth, columns = shape
    a, b = drawn(kinds[0], (rows, depth)), drawn(kinds[1], (depth, columns))
    zero_a, zero_b = drawn(kinds[0], (1,)), drawn(kinds[1], (columns,))

    class Product(ingot.nn.Module):
        def __init__(self) -> None:
            self.b, self.zero = ingot.nn.Buffer(b), ingot.nn.Buffer(zero_b)

        def forward(self, a, zero):
            centred = (a.cast(ingot.i16) - zero.cast(ingot.i16)).cast(ingot.i32)
            weight = (self.b.cast(ingot.i16) - self.zero.cast(ingot.i16)).cast(ingot.i32)
            return (centred @ weight).cast(ingot.f32) * 0.5

    expected = product(a.astype(np.int32) - zero_a, b.astype(np.int32) - zero_b).astype(np.float32) * np.float32(0.5)
    program = ingot.compile(Product(), _type(a), _type(zero_a))
    np.testing.assert_array_equal(program(a, zero_a), expected)


@pytest.mark.parametrize("kind", ["i8", "u8"])
@pytest.mark.parametrize("shape", [(1, 256, 128), (6, 66, 40), (40, 129, 300), (5, 64, 16)])
def test_known_weights_of_eight_bits_stay_so(kind: str, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b = drawn("u8", (rows, depth)), drawn(kind, (depth, columns))

    class Product(ingot.nn.Module):
        def __init__(self) -> None:
            self.b = ingot.nn.Buffer(b)

        def forward(self, a):
            return wide(a) @ wide(self.b)

    program = ingot.compile(Product(), _type(a))
    np.testing.assert_array_equal(program(a), product(a, b))
    stored = [array for array in program.program.constants.values() if array.size >= b.size]
    assert [array.dtype for array in stored] == [b.dtype]


def _type(array: np.ndarray):
    dtype = {"uint8": ingot.u8, "int8": ingot.i8, "int16": ingot.i16}[array.dtype.name]
    return dtype[array.shape]


@pytest.mark.parametrize("channels", [3, 4, 16, 18])
@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions(channels: int, padding: int) -> None:
    x, w = drawn("u8", (2, channels, 9, 7)), drawn("i8", (24, channels, 3, 3))
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], pads=[padding] * 4)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kinds.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", kinds.INT32, None)],
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(np.uint8(3), "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    centred = np.pad(x.astype(np.int64) - 3, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 3), (2, 3))
    expected = np.einsum("ncyxrs,ocrs->noyx", windows, w.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(ingot.compile(ingot.load_onnx(model))(x), expected)


def test_what_fits_into_half_a_word() -> None:
    def load(dtype):
        return Load(Buffer("x", dtype, (4,)), (0,))

    code = Cast(load(u8), i32)
    assert fits(Cast(load(i16), i32))
    assert fits(code, u8)
    assert not fits(code, i8)
    assert fits(Cast(load(i8), i32), i8)
    assert not fits(ir.apply("sub", code, code), u8)
    assert fits(ir.apply("sub", code, code))
    assert fits(ir.select(ir.constant(True, boolean), code, ir.constant(0, i32)))
    assert fits(Cast(ir.apply("sub", Cast(load(i8), i16), Cast(load(u8), i16)), i32))
    assert not fits(load(i32))
    assert not fits(ir.apply("mul", code, code))
    assert not fits(Cast(load(i64), i32))
    assert not fits(ir.apply("add", Cast(load(i16), i32), code))


def integer_product(left: DType, right: DType, rows: int, depth: int, columns: int) -> Kernel:
    """y[i, j] = sum(k: a[i, k] * b[k, j]) in 32 bits"""
    a, b, y = Buffer("a", left, (rows, depth)), Buffer("b", right, (depth, columns)), Buffer("y", i32, (rows, columns))
    i, j = axes((rows, columns))

    def term(k: Dim) -> Scalar:
        return ir.apply("mul", ir.cast(Load(a, (i, k)), i32), ir.cast(Load(b, (k, j)), i32))

    return Kernel("product", (a, b), (y,), (Definition(y, (i, j), reduction("sum", (depth,), term)),))


@pytest.mark.parametrize("depth", [2, 7, 40, 700])
@pytest.mark.parametrize(("left", "right"), [(i16, i16), (u8, i8), (i8, u8), (i8, i8)])
@pytest.mark.parametrize("has_quads", [False, True])
def test_the_loops_mean_the_product(left: DType, right: DType, depth: int, has_quads: bool) -> None:
    target = replace(Target.named("x86-64-v4"), has_quads=has_quads)
    check(integer_product(left, right, 8, depth, 21), target=target)


def with_quads(name: str) -> Target:
    feature = {"x86-64-v3": "+avxvnni", "x86-64-v4": "+avx512vnni"}[name]
    target = Target.named(name)
    return replace(target, features=f"{target.features},{feature}", has_quads=True)


def test_who_has_words_of_four() -> None:
    features = {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    assert _target("x86_64", "cpu", "", frozenset({*features, "avx512vnni"})).has_quads
    assert _target("x86_64", "cpu", "", frozenset({"avx2", "avxvnni"})).has_quads
    assert not _target("x86_64", "cpu", "", frozenset(features)).has_quads
    assert not _target("x86_64", "cpu", "", frozenset({"avx2"})).has_quads


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("left", "right"), [(u8, i8), (i8, u8)])
def test_the_inner_loop_takes_words_of_four(name: str, left: DType, right: DType) -> None:
    """As many as the tile has sums at each step, and nothing is multiplied otherwise."""
    target = with_quads(name)
    scheduled = schedule(integer_product(left, right, 64, 128, 64), target)
    decisions, lines = scheduled.decisions, loops_of(scheduled.function, target)
    products = [line for line in lines if "\tvpdpbusd\t" in line]
    assert len(products) >= decisions["rows"] * decisions["vectors"]
    assert not any("pmull" in line or "pmadd" in line for line in lines)


def test_words_of_four_are_interleaved_bytes() -> None:
    """Rows of the right operand become words by moving bytes, not by arithmetic on widened ones."""
    target = with_quads("x86-64-v4")
    scheduled = schedule(integer_product(u8, i8, 64, 128, 64), target)
    lines = loops_of(scheduled.function, target)
    assert any("vpunpck" in line or "vperm" in line for line in lines)
    assert not any("vpmovsx" in line or "vpmovzx" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "features", "instruction"),
    [
        ("x86-64-v2", "", "pmaddwd"),
        ("x86-64-v3", "", "vpmaddwd"),
        ("x86-64-v4", "", "vpmaddwd"),
        ("x86-64-v3", "+avxvnni", "vpdpwssd"),
        ("x86-64-v4", "+avx512vnni", "vpdpwssd"),
    ],
)
def test_the_inner_loop_is_the_instruction(name: str, features: str, instruction: str) -> None:
    """As many as the tile has sums, and no sum visits memory."""
    target = Target.named(name)
    target = replace(target, features=",".join(filter(None, (target.features, features))))
    kernel = integer_product(i16, i16, 64, 128, 64)
    scheduled = schedule(kernel, target)
    decisions = scheduled.decisions
    products = [line for line in loops_of(scheduled.function, target) if re.search(rf"\t{instruction}\t", line)]
    assert len(products) >= decisions["rows"] * decisions["vectors"]


def loops_of(function: Function, target: Target) -> list[str]:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(emit_kernel(function, function.name, target).text)
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
    )
    return machine.emit_assembly(module).splitlines()


def test_words_elsewhere() -> None:
    """Without an instruction for them, words are taken apart."""
    target = Target.named("aarch64")
    scheduled = schedule(integer_product(u8, i8, 8, 30, 16), target)
    assert "pmadd" not in emit_kernel(scheduled.function, "product", target).text
