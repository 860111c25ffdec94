"""Entry points and linked programs: calls, memory, control flow around kernels, failures, sizes, names."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from ingot.compiler.codegen.objects import Compilation, CompiledFunctions, compile_functions
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import Alloc, Call, Fail, Function, If, Store, View, While
from ingot.compiler.ir.scalar import Buffer, Load, apply, bounded_index, constant
from ingot.compiler.ir.traverse import functions_of
from ingot.compiler.ir.types import boolean, f32, i64
from ingot.compiler.target import NAMED, Target
from ingot.runtime import abi
from ingot.runtime.loader import LoadedImage
from tests.codegen.running import HOST, guarded, serial

N = symbolic.Symbol("n", 0)
M = symbolic.Symbol("m")


class Running:
    """A compiled entry, called as the runtime calls it."""

    def __init__(self, entry: Function, **interface) -> None:
        self.code: CompiledFunctions = compile_functions(entry, HOST, 1, **interface)
        self.image = LoadedImage(self.code.image)

    def __call__(self, *arrays: np.ndarray, dims=(), arena: int = 4096, times=None) -> tuple[int, list[int]]:
        pointers = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
        values = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        scratch = guarded(np.zeros(arena, np.uint8))
        failure = (ctypes.c_int64 * 4)(-7, -7, -7, -7)
        addresses = [ctypes.addressof(p) for p in (pointers, values)]
        extra = [] if times is None else [times.ctypes.data]
        name = abi.ENTRY if times is None else abi.ENTRY_PROFILE
        call = self.function(name, ctypes.c_int32, 5 + len(extra))
        code = call(*addresses, scratch.ctypes.data, 0, ctypes.addressof(failure), *extra)
        return code, list(failure)

    def function(self, name: str, result, arguments: int):
        return ctypes.CFUNCTYPE(result, *[ctypes.c_void_p] * arguments)(self.image.address(name))

    def arena_bytes(self, *dims: int) -> int:
        values = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        return self.function(abi.ARENA_BYTES, ctypes.c_int64, 1)(ctypes.addressof(values))

    def shapes(self, count: int, *dims: int) -> list[int]:
        values = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        out = (ctypes.c_int64 * count)()
        self.function(abi.SHAPES, None, 2)(ctypes.addressof(values), ctypes.addressof(out))
        return list(out)


def unary(name: str, function: str, extent=N) -> Function:
    x, y = Buffer("x", f32, (extent,)), Buffer("y", f32, (extent,))
    return Function(name, (x, y), (serial(extent, lambda i: Store(y, (i,), apply(function, Load(x, (i,))))),))


def chain(*kernels: Function) -> Function:
    """x -> k0 -> arena -> k1 -> arena -> ... -> y"""
    x, y = Buffer("x", f32, (N,)), Buffer("y", f32, (N,))
    scratch = [Buffer(f"t{n}", f32, (N,), "arena") for n in range(len(kernels) - 1)]
    places = [symbolic.align(4 * N, 64) * n for n in range(len(scratch))]
    steps = [x, *scratch, y]
    calls = [Call(k, (steps[n], steps[n + 1])) for n, k in enumerate(kernels)]
    return Function("entry", (x, y), (*map(Alloc, scratch, places), *calls))


def test_kernels_run_in_order_on_the_arena(rng: np.random.Generator) -> None:
    running = Running(chain(unary("negate", "neg"), unary("absolute", "abs"), unary("root", "sqrt")))
    x = rng.standard_normal(37).astype(np.float32)
    y = np.zeros_like(x)
    assert running(guarded(x), y, dims=[37], arena=192 * 2)[0] == 0
    np.testing.assert_array_equal(y, np.sqrt(np.abs(x)))


def test_sizes_are_computed_and_overflow_is_negative() -> None:
    running = Running(chain(unary("a", "neg"), unary("b", "neg"), unary("c", "neg")))
    assert running.arena_bytes(37) == 192 + 37 * 4
    assert running.arena_bytes(0) == 0
    assert running.arena_bytes(1 << 40) == (1 << 42) * 2
    assert running.arena_bytes(1 << 61) < 0
    assert running.arena_bytes((1 << 63) - 1) < 0
    assert running.shapes(2, 37) == [37, 37]


def test_shapes_and_dims_are_those_asked_for() -> None:
    x, y = Buffer("x", f32, (M, 2 * N + 1)), Buffer("y", f32, (M * N,))
    shapes = (M, 2 * N + 1, M * N)
    running = Running(Function("entry", (x, y), ()), dims=(N, M), shapes=shapes, arena_bytes=N * M * 8)
    assert running.shapes(3, 5, 7) == [7, 11, 35]
    assert running.arena_bytes(5, 7) == 280
    assert running.shapes(3, 1 << 40, 1 << 40) == [1 << 40, (1 << 41) + 1, -1]


def test_equal_kernels_are_compiled_once_and_keep_readable_names() -> None:
    code = compile_functions(
        chain(unary("negate", "neg"), unary("negate", "abs"), unary("other_negate", "neg"), unary("memcpy", "sqrt")),
        HOST,
    )
    assert code.kernels == ("negate", "negate", "other_negate", "memcpy")
    assert code.compiled == 3
    assert {"negate", "negate_2", "kernel_memcpy"} <= {f.name for f in code.image.functions}
    assert set(code.texts) == {"negate", "negate_2", "kernel_memcpy", "entry"}


def test_compilation_is_deterministic_whatever_the_number_of_workers() -> None:
    def kernels() -> Function:
        return chain(*(unary(f"k{n}", f) for n, f in enumerate(("exp", "tanh", "sin", "neg", "sqrt", "log"))))

    images = {compile_functions(kernels(), HOST, workers).image.to_bytes() for workers in (1, 3)}
    entry = kernels()
    with Compilation(HOST, 2) as compilation:
        for function in functions_of(entry)[:3]:  # some are given while others are still made
            compilation.add(function)
        images.add(compilation.finish(entry).image.to_bytes())
    assert len(images) == 1


def test_the_profile_adds_to_the_times_of_its_kernels() -> None:
    running = Running(chain(unary("a", "exp"), unary("b", "neg")))
    x, y = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    times = np.array([5, 7, 123], np.int64)
    assert running(x, y, dims=[1000], arena=8192, times=times)[0] == 0
    assert times[0] > 5
    assert times[1] >= 7
    assert times[2] == 123
    assert "profile" not in compile_functions(chain(unary("a", "exp")), HOST, profile=False).texts["entry"]


# --- control flow


def counting() -> Function:
    """While the flag holds: y += 1, flag = y < limit."""
    y, limit, go = Buffer("y", i64, ()), Buffer("limit", i64, ()), Buffer("go", boolean, ())
    return Function(
        "count",
        (y, limit, go),
        (
            Store(y, (), apply("add", Load(y, ()), constant(1, i64))),
            Store(go, (), apply("lt", Load(y, ()), Load(limit, ()))),
        ),
    )


def test_while_reads_its_condition_from_memory() -> None:
    y, limit, go = Buffer("y", i64, ()), Buffer("limit", i64, ()), Buffer("go", boolean, (), "arena")
    loop = While(Load(go, ()), (Call(counting(), (y, limit, go)),), 6)
    entry = Function("entry", (y, limit), (Alloc(go, 0), Store(go, (), constant(True, boolean)), loop))
    running = Running(entry)
    total = np.zeros((), np.int64)
    assert running(total, np.array(5))[0] == 0
    assert total == 5
    code, (a, b, _, site) = running(total, np.array(100))
    assert (code, a, b) == (abi.Failure.LOOP_BOUND_EXCEEDED, 6, 6)
    assert 0 <= site < len(running.code.sites)


def test_loops_slices_and_branches_around_calls(rng: np.random.Generator) -> None:
    """Row by row: even rows negated, the flag decides about the others."""
    x, y, flag = Buffer("x", f32, (M, N)), Buffer("y", f32, (M, N)), Buffer("flag", boolean, ())
    row, out = Buffer("row", f32, (N,)), Buffer("out", f32, (N,))
    negate, root = unary("negate", "neg"), unary("root", "sqrt")

    def body(t):
        return (
            View(row, x, t * N),
            View(out, y, t * N),
            If(
                apply("eq", constant(0, i64), constant(0, i64)),
                (If(Load(flag, ()), (Call(negate, (row, out)),), (Call(root, (row, out)),)),),
            ),
        )

    entry = Function("entry", (x, flag, y), (serial(M, body),))
    running = Running(entry)
    data = np.abs(rng.standard_normal((4, 9))).astype(np.float32)
    for choice in (True, False):
        found, wanted = np.zeros_like(data), np.zeros_like(data)
        assert running(data, np.array(choice), found, dims=[4, 9])[0] == 0
        run_function(entry, [data, np.array(choice), wanted])
        np.testing.assert_array_equal(found, wanted)


# --- failures


def checked(name: str, code: int) -> Function:
    x = Buffer("x", i64, ())
    return Function(
        name, (x,), (Fail(apply("eq", Load(x, ()), constant(code, i64)), code, f"site of {name}", (Load(x, ()),)),)
    )


def lookup() -> Function:
    table, index, out = Buffer("table", f32, (M,)), Buffer("index", i64, ()), Buffer("out", f32, ())
    place = bounded_index(Load(index, ()), M, "the lookup")
    return Function("lookup", (table, index, out), (Store(out, (), Load(table, (place,))),))


def test_a_failure_stops_the_program_and_names_its_site() -> None:
    x, table, out = Buffer("x", i64, ()), Buffer("table", f32, (M,)), Buffer("out", f32, ())
    entry = Function(
        "entry",
        (x, table, out),
        (
            Call(checked("first", 5), (x,)),
            Call(lookup(), (table, x, out)),
            Fail(apply("eq", Load(x, ()), constant(2, i64)), 7, "the entry itself", (Load(x, ()),)),
            Call(checked("second", 3), (x,)),
        ),
    )
    running = Running(entry)
    sites = running.code.sites
    data = np.arange(5, dtype=np.float32)

    def run(value: int):
        found = np.zeros((), np.float32)
        code, details = running(np.array(value), data, found, dims=[5])
        return code, details, found

    code, details, found = run(1)
    assert (code, found) == (0, 1)
    assert details == [-7] * 4  # written only on failure
    for value, expected, site in (
        (5, 5, "site of first"),
        (6, abi.Failure.INDEX_OUT_OF_RANGE, "the lookup"),
        (2, 7, "the entry itself"),
        (3, 3, "site of second"),
    ):
        code, details, _ = run(value)
        assert code == expected
        assert details[0] == value
        assert sites[details[3]] == site
    assert run(5)[2] == 0  # the lookup did not run after the failure before it


def test_a_dim_that_is_not_passed_is_refused() -> None:
    with pytest.raises(Exception, match="dim n, which is not passed"):
        compile_functions(chain(unary("a", "neg")), HOST, dims=(M,))


@pytest.mark.parametrize("name", NAMED)
def test_every_target_has_an_image(name: str) -> None:
    """Elementary functions, failures, parallel loops: nothing in them needs a library."""
    x, y, index = Buffer("x", f32, (N,)), Buffer("y", f32, (N,)), Buffer("index", i64, (N,))
    target = Target.named(name)
    body = serial(
        N,
        lambda i: Store(y, (i,), apply("exp", Load(x, (bounded_index(Load(index, (i,)), N, "here"),)))),
        kind="parallel",
    )
    kernel = Function("kernel", (x, index, y), (body,))
    entry = Function("entry", (x, index, y), (Call(kernel, (x, index, y)), Call(unary("root", "tanh"), (x, y))))
    image = compile_functions(entry, target).image
    assert image.machine == target.architecture
    assert {*abi.REQUIRED_EXPORTS, abi.ENTRY_PROFILE} == set(image.exports)
