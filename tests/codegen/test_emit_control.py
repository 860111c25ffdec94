"""Control flow, register buffers and parallel loops, natively against the interpreter."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import numpy as np
import pytest

from ingot.compiler.codegen.emit import emit_kernel
from ingot.compiler.codegen.frame import CodegenError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import Alloc, Fail, Function, If, Let, Store, While
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, apply, constant, predicate
from ingot.compiler.ir.types import bf16, boolean, f32, f64, i8, i32, i64
from ingot.compiler.target import Target
from ingot.runtime.abi import Failure
from tests.codegen.running import HOST, RUNNABLE, Native, agree, guarded, serial, unrolled, variable, vector

M = symbolic.Symbol("m", 0)
K = symbolic.Symbol("k")


def zero(dtype=f32):
    return constant(0, dtype)


# --- registers


def gemm_tile(rows: int, vectors: int, width: int, extent=None, k_unrolled: int = 1) -> Function:
    """c = a @ b for one register tile; `extent` < rows of the last vector: the tile is cut off there."""
    columns = vectors * width if extent is None else extent
    a, b, c = Buffer("a", f32, (rows, K)), Buffer("b", f32, (K, columns)), Buffer("c", f32, (rows, columns))
    acc = Buffer("acc", f32, (rows, vectors * width), "register")

    def tile(body):
        def lanes(r, q):
            rest = None if extent is None else symbolic.minimum(width, symbolic.maximum(0, extent - q * width))
            return vector(width, lambda v: body(r, q * width + v), rest)

        return unrolled(rows, lambda r: unrolled(vectors, lambda q: lanes(r, q)))

    def step(k):
        return tile(lambda r, j: Store(acc, (r, j), apply("fma", Load(a, (r, k)), Load(b, (k, j)), Load(acc, (r, j)))))

    return Function(
        f"gemm_{rows}x{vectors * width}" + ("" if extent is None else f"_cut_{extent}"),
        (a, b, c),
        (
            Alloc(acc),
            tile(lambda r, j: Store(acc, (r, j), zero())),
            serial(K, step),
            tile(lambda r, j: Store(c, (r, j), Load(acc, (r, j)))),
        ),
    )


def gemm_arrays(function: Function, k: int, rng: np.random.Generator) -> list[np.ndarray]:
    _, b, c = function.parameters
    rows, columns = c.shape
    shapes = ((rows, k), (k, b.shape[1]), (rows, columns))
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]  # type: ignore[arg-type]


def test_a_register_tile_is_a_matrix_product(rng: np.random.Generator) -> None:
    width = HOST.lanes(4)
    functions = [gemm_tile(2, 1, width), gemm_tile(6, 2, width), gemm_tile(3, 2, width, 2 * width - 3)]
    for k in (1, 7):
        agree(functions, {f.name: gemm_arrays(f, k, rng) for f in functions})


def assembly(function: Function, target: Target) -> str:
    module = llvm.parse_assembly(emit_kernel(function, function.name, target).text)
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
    )
    return machine.emit_assembly(module)


def inner_loop(text: str) -> list[str]:
    """The instructions between the only label that is jumped back to and that jump."""
    lines = [line.strip() for line in text.splitlines()]
    for end, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\.L\w+)", line)
        if jump and f"{jump[1]}:" in lines[:end]:
            start = max(n for n, other in enumerate(lines[:end]) if other.startswith(f"{jump[1]}:"))
            return [each for each in lines[start + 1 : end + 1] if each and not each.startswith((".", "#"))]
    raise AssertionError(f"no loop in\n{text}")


@pytest.mark.parametrize(("name", "rows", "vectors"), [("x86-64-v3", 6, 2), ("x86-64-v4", 14, 2), ("x86-64-v4", 28, 1)])
def test_a_register_tile_needs_no_memory_but_its_operands(name: str, rows: int, vectors: int) -> None:
    """The inner loop is multiplications, broadcasts and loads; no accumulator visits the stack."""
    target = Target.named(name)
    text = assembly(gemm_tile(rows, vectors, target.lanes(4)), target)
    loop = inner_loop(text)
    products = [line for line in loop if line.startswith("vfmadd")]
    assert len(products) == rows * vectors
    assert not [line for line in loop if "(%rsp" in line or "(%rbp" in line], "\n".join(loop)
    stores = [line for line in loop if re.match(r"v?mov\w*\s+%[xyz]mm\d+, .*\(", line)]
    assert not stores
    vector_loads = [line for line in loop if re.match(r"vmovups\s+.*\(.*%[yz]mm", line)]
    assert len(vector_loads) <= vectors
    addresses = len(loop) - len(products) - len([line for line in loop if line.startswith(("vbroadcast", "vmovups"))])
    assert addresses <= 2 * rows + 4


def test_registers_of_scalars_and_lanes_mixed(rng: np.random.Generator) -> None:
    """Single elements of a slot, whole slots, and sums across iterations of nested loops."""
    x, y = Buffer("x", f32, (M, 8)), Buffer("y", f32, (9,))
    acc, total = Buffer("acc", f32, (8,), "register"), Buffer("total", f32, (1,), "register")

    def row(i):
        return (
            vector(8, lambda v: Store(acc, (v,), apply("add", Load(acc, (v,)), Load(x, (i, v))))),
            Store(acc, (3,), apply("add", Load(acc, (3,)), constant(1, f32))),
            serial(2, lambda j: Store(total, (0,), apply("add", Load(total, (0,)), Load(acc, (5,))))),
        )

    function = Function(
        "mixed",
        (x, y),
        (
            Alloc(acc),
            Alloc(total),
            vector(8, lambda v: Store(acc, (v,), zero())),
            Store(total, (0,), zero()),
            serial(M, row),
            vector(8, lambda v: Store(y, (v,), Load(acc, (v,)))),
            Store(y, (8,), Load(total, (0,))),
        ),
    )
    for rows in (0, 1, 5):
        data = rng.integers(-5, 5, (rows, 8)).astype(np.float32)
        agree([function], {"mixed": [data, np.zeros(9, np.float32)]}, targets=RUNNABLE[:2])


@pytest.mark.parametrize("dtype", [boolean, i8, bf16, f64], ids=str)
def test_registers_of_every_kind_of_element(dtype, rng: np.random.Generator) -> None:
    """Truth values and narrow types are carried around loops and through branches like any other."""
    x, y = Buffer("x", dtype, (M, 8)), Buffer("y", dtype, (8,))
    acc = Buffer("acc", dtype, (8,), "register")
    combine = "or" if dtype == boolean else "max"

    def row(i):
        step = vector(8, lambda v: Store(acc, (v,), apply(combine, Load(acc, (v,)), Load(x, (i, v)))))
        return If(predicate(i, "ge", 2), (step,))

    function = Function(
        "every",
        (x, y),
        (
            Alloc(acc),
            vector(8, lambda v: Store(acc, (v,), constant(0, dtype))),
            serial(M, row),
            vector(8, lambda v: Store(y, (v,), Load(acc, (v,)))),
        ),
    )
    for rows in (2, 5):
        data = (rng.integers(-1, 2, (rows, 8)) > 0).astype(dtype.numpy)
        agree([function], {"every": [data, np.zeros(8, dtype.numpy)]}, targets=RUNNABLE[:2])


def test_a_buffer_that_does_not_fit_on_the_stack_is_refused() -> None:
    y = Buffer("y", f32, (1 << 19,), "stack")
    with pytest.raises(CodegenError, match="does not fit on the stack"):
        emit_kernel(Function("large", (), (Alloc(y),)), "large", HOST)


def test_different_lanes_of_a_register_in_turn() -> None:
    """Rounds of a loop that each define other lanes keep what earlier rounds defined."""
    y = Buffer("y", f32, (8,))
    acc = Buffer("acc", f32, (8,), "register")

    def round_of(i):
        first = If(
            predicate(i, "eq", 0),
            (vector(8, lambda v: Store(acc, (v,), constant(1, f32)), 3),),
            (vector(8, lambda v: Store(acc, (v,), apply("add", Load(acc, (v,)), constant(1, f32))), 3),),
        )
        second = If(
            predicate(i, "eq", 0),
            (vector(8, lambda v: Store(acc, (v,), constant(5, f32))),),
        )
        return second, first, vector(8, lambda v: Store(y, (v,), Load(acc, (v,))))

    function = Function("turns", (y,), (Alloc(acc), serial(K, round_of)))
    agree([function], {"turns": [np.zeros(8, np.float32)]}, {"turns": {"k": 4}})


def test_a_register_that_slots_cannot_hold_is_memory(rng: np.random.Generator) -> None:
    """Lanes that straddle slots, and two widths on one buffer."""
    x, y = Buffer("x", f32, (12,)), Buffer("y", f32, (12,))
    acc = Buffer("acc", f32, (12,), "register")
    function = Function(
        "straddle",
        (x, y),
        (
            Alloc(acc),
            unrolled(3, lambda q: vector(4, lambda v: Store(acc, (q * 4 + v,), Load(x, (q * 4 + v,))))),
            vector(8, lambda v: Store(y, (v,), Load(acc, (v + 3,)))),
            vector(4, lambda v: Store(y, (8 + v,), Load(acc, (8 + v,)))),
        ),
    )
    agree([function], {"straddle": [rng.standard_normal(12).astype(np.float32), np.zeros(12, np.float32)]})


def test_a_register_indexed_by_a_loop_is_refused() -> None:
    acc, y = Buffer("acc", f32, (4,), "register"), Buffer("y", f32, (4,))
    function = Function("loop", (y,), (Alloc(acc), serial(4, lambda i: Store(acc, (i,), zero()))))
    with pytest.raises(CodegenError, match="unroll the loop"):
        emit_kernel(function, "loop", HOST)


# --- control


def test_branches_merge_registers_and_memory(rng: np.random.Generator) -> None:
    x, y = Buffer("x", i32, (M,)), Buffer("y", i32, (M,))
    acc = Buffer("acc", i32, (2,), "register")

    def body(i):
        x_i = Load(x, (i,))
        return If(
            apply("gt", x_i, constant(0, i32)),
            (
                Store(acc, (0,), apply("add", Load(acc, (0,)), x_i)),
                If(apply("gt", x_i, constant(5, i32)), (Store(acc, (1,), x_i),)),
            ),
            (Store(y, (i,), constant(-1, i32)),),
        ), Store(y, (i,), apply("add", Load(y, (i,)), apply("add", Load(acc, (0,)), Load(acc, (1,)))))

    function = Function(
        "branches",
        (x, y),
        (Alloc(acc), unrolled(2, lambda n: Store(acc, (n,), constant(0, i32))), serial(M, body)),
    )
    data = rng.integers(-10, 10, 30).astype(np.int32)
    agree([function], {"branches": [data, np.zeros(30, np.int32)]}, targets=("native",))


def test_conditions_that_differ_between_lanes(rng: np.random.Generator) -> None:
    """Statements under such a condition store only where it holds, to memory and to registers."""
    x, y = Buffer("x", f32, (8,)), Buffer("y", f32, (8,))
    acc = Buffer("acc", f32, (8,), "register")

    def body(v):
        positive = apply("gt", Load(x, (v,)), zero())
        return (
            If(
                positive,
                (Store(acc, (v,), Load(x, (v,))), If(predicate(v, "lt", 4), (Store(y, (v,), Load(x, (v,))),))),
                (Store(acc, (v,), apply("sub", Load(acc, (v,)), Load(x, (v,)))),),
            ),
            Store(y, (v,), apply("add", Load(y, (v,)), Load(acc, (v,)))),
        )

    for extent in (8, 5):
        function = Function(
            "lanes",
            (x, y),
            (Alloc(acc), vector(8, lambda v: Store(acc, (v,), constant(3, f32))), vector(8, body, extent)),
        )
        data = [rng.standard_normal(8).astype(np.float32), rng.standard_normal(8).astype(np.float32)]
        agree([function], {"lanes": data})


def test_conditions_on_the_number_of_the_lane() -> None:
    """Known when the code is written, and not the lanes below the extent."""
    x, y = Buffer("x", f32, (8,)), Buffer("y", f32, (8,))
    functions, arrays = [], {}
    for extent in (8, 6):
        for relation, bound in (("lt", 4), ("ge", 3), ("eq", 5)):
            name = f"{relation}{bound}_of_{extent}"
            holds = lambda v, r=relation, b=bound: predicate(2 * v, r, 2 * b)  # type: ignore[arg-type]  # noqa: E731
            loop = vector(8, lambda v, h=holds: If(h(v), (Store(y, (v,), Load(x, (v,))),)), extent)
            functions.append(Function(name, (x, y), (loop,)))
            arrays[name] = [np.arange(1, 9, dtype=np.float32), np.zeros(8, np.float32)]
    agree(functions, arrays)


def test_locals_are_bound_once(rng: np.random.Generator) -> None:
    x, y = Buffer("x", f32, (M,)), Buffer("y", f32, (M,))
    square, root = Local("square", f32), Local("root", f32)

    def body(i):
        return (
            Let(square, apply("mul", Load(x, (i,)), Load(x, (i,)))),
            Let(root, apply("sqrt", Read(square))),
            Store(y, (i,), apply("add", Read(root), Read(square))),
        )

    function = Function(
        "locals", (x, y), (serial(M // 8, lambda b: vector(8, lambda v: body(8 * b + v))), serial(M, body))
    )
    agree([function], {"locals": [rng.standard_normal(19).astype(np.float32), np.zeros(19, np.float32)]})
    function = Function("escaped", (x, y), (serial(M, lambda i: body(i)[0]), Store(y, (0,), Read(square))))
    with pytest.raises(CodegenError, match="square is read outside"):
        emit_kernel(function, "escaped", HOST)


def test_while_loops(rng: np.random.Generator) -> None:
    """The Collatz length of each number, counted in a register."""
    x, y = Buffer("x", i64, (M,)), Buffer("y", i64, (M,))
    state, steps = Buffer("state", i64, (), "register"), Buffer("steps", i64, (), "register")
    one, two, three = (constant(n, i64) for n in (1, 2, 3))

    def body(i):
        odd = apply("eq", apply("mod", Load(state, ()), two), one)
        grown = apply("add", apply("mul", Load(state, ()), three), one)
        return (
            Store(state, (), Load(x, (i,))),
            Store(steps, (), constant(0, i64)),
            While(
                apply("ne", Load(state, ()), one),
                (
                    If(
                        odd,
                        (Store(state, (), grown),),
                        (Store(state, (), apply("truncdiv", Load(state, ()), two)),),
                    ),
                    Store(steps, (), apply("add", Load(steps, ()), one)),
                ),
                limit=200,
            ),
            Store(y, (i,), Load(steps, ())),
        )

    function = Function("collatz", (x, y), (Alloc(state), Alloc(steps), serial(M, body)))
    agree([function], {"collatz": [rng.integers(1, 100, 20), np.zeros(20, np.int64)]}, targets=("native",))
    native = Native([function])
    x0 = np.array([1, 27, 31, 6171], np.int64)  # the last takes 261 steps
    failure = native("collatz", x0, np.zeros(4, np.int64), dims=[4])
    assert failure is not None
    assert failure.code == Failure.LOOP_BOUND_EXCEEDED
    assert failure.details[:2] == (200, 200)


def test_a_limit_that_just_suffices_is_no_failure() -> None:
    y = Buffer("y", i64, ())
    loop = While(
        apply("lt", Load(y, ()), constant(5, i64)), (Store(y, (), apply("add", Load(y, ()), constant(1, i64))),), 5
    )
    function = Function("count", (y,), (loop,))
    agree([function], {"count": [np.zeros((), np.int64)]}, targets=("native",))


@pytest.mark.parametrize("width", [0, 8])
def test_failures_name_the_first_lane(width: int) -> None:
    x, y = Buffer("x", i32, (M,)), Buffer("y", i32, (M,))

    def body(i):
        bad = apply("lt", Load(x, (i,)), constant(0, i32))
        return Fail(bad, Failure.CHECK_FAILED, "positive", (Load(x, (i,)), constant(7, i32))), Store(
            y, (i,), Load(x, (i,))
        )

    loops_ = (
        (serial(M, body),)
        if not width
        else (
            serial(M // 8, lambda b: vector(8, lambda v: body(8 * b + v))),
            vector(8, lambda v: body(M // 8 * 8 + v), M % 8),
        )
    )
    native = Native([Function("checked", (x, y), loops_)])
    x0 = np.arange(13, dtype=np.int32)
    assert native("checked", guarded(x0), guarded(np.zeros_like(x0)), dims=[13]) is None
    x0[9], x0[11] = -4, -5
    failure = native("checked", guarded(x0), guarded(np.zeros_like(x0)), dims=[13])
    assert failure is not None
    assert (failure.code, failure.details, failure.site) == (Failure.CHECK_FAILED, (-4, 7, 0), "positive")


# --- parallel loops


def parallel_rows() -> Function:
    """Captures of every kind: buffers, dims, an enclosing variable, locals, a stack buffer."""
    x, y = Buffer("x", f32, (K, M, 8)), Buffer("y", f32, (K, M, 8))
    scale = Local("scale", f32)
    row = Buffer("row", f32, (8,), "stack")
    factors = Buffer("factors", f32, (8,), "stack")

    def body(k):
        def inner(i):
            return (
                Alloc(row),
                vector(8, lambda v: Store(row, (v,), apply("mul", Load(x, (k, i, v)), Read(scale)))),
                vector(8, lambda v: Store(y, (k, i, v), apply("mul", Load(row, (7 - v,)), Load(factors, (v,))))),
            )

        return Let(scale, apply("add", Load(x, (k, 0, 0)), constant(1, f32))), serial(M, inner, kind="parallel")

    return Function(
        "parallel",
        (x, y),
        (Alloc(factors), unrolled(8, lambda n: Store(factors, (n,), constant(2, f32))), serial(K, body)),
    )


def test_parallel_loops_see_what_is_around_them(rng: np.random.Generator) -> None:
    shape = (3, 17, 8)
    x0 = rng.standard_normal(shape).astype(np.float32)
    agree([parallel_rows()], {"parallel": [x0, np.zeros(shape, np.float32)]})
    native = Native([parallel_rows()])
    alone, together = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    assert native("parallel", x0, alone, dims=[3, 17]) is None
    assert native("parallel", x0, together, dims=[3, 17], pool=native.pool(3)) is None
    assert alone.tobytes() == together.tobytes()


def test_a_failure_in_a_parallel_loop_is_reported_once() -> None:
    x = Buffer("x", i32, (M,))

    def body(i):
        return Fail(apply("lt", Load(x, (i,)), constant(0, i32)), Failure.CHECK_FAILED, "here", (Load(x, (i,)),))

    native = Native([Function("checks", (x,), (serial(M, body, kind="parallel"),))])
    x0 = np.arange(100, dtype=np.int32)
    x0[[20, 70]] = -20, -70
    failure = native("checks", x0, dims=[100], pool=native.pool(2))
    assert failure is not None
    assert failure.details[0] in (-20, -70)


def test_a_nested_parallel_loop_runs_where_it_is(rng: np.random.Generator) -> None:
    y = Buffer("y", i64, (K, M))
    inner = lambda k: serial(M, lambda i: Store(y, (k, i), constant(1, i64)), kind="parallel")  # noqa: E731
    function = Function("nested", (y,), (serial(K, inner, kind="parallel"),))
    agree([function], {"nested": [np.zeros((3, 5), np.int64)]}, targets=("native",))


def test_names_and_text_do_not_depend_on_earlier_work() -> None:
    """The same function gives the same text, whatever was emitted before."""
    texts = {emit_kernel(gemm_tile(4, 2, 8), "tile", HOST).text for _ in range(2)}
    texts.add(emit_kernel(gemm_tile(4, 2, 8), "tile", HOST).text)
    assert len(texts) == 1


def test_a_variable_outside_its_loop_is_refused() -> None:
    y = Buffer("y", f32, (4,))
    with pytest.raises(CodegenError, match="outside the loop"):
        emit_kernel(Function("stray", (y,), (Store(y, (variable("i", 4),), zero()),)), "stray", HOST)


@pytest.mark.parametrize(("rows", "inside"), [(3, 0), (12, 8)])
def test_a_loop_gives_away_few_of_the_vectors_it_reads(rows, inside):
    """There are no registers for more: LLVM would spill them and read each from the stack wherever it is used."""
    x, w, y = Buffer("x", f32, (100,)), Buffer("w", f32, (rows, 8)), Buffer("y", f32, (100, 8))

    def total(i, v):
        value = constant(0.0, f32)
        for r in range(rows):
            value = apply("fma", Load(w, (r, v)), Load(x, (i,)), value)
        return Store(y, (i, v), value)

    function = Function("many", (x, w, y), (serial(100, lambda i: vector(8, lambda v: total(i, v))),))
    text = emit_kernel(function, "many", Target.named("x86-64-v3")).text
    loop = text[text.index("loop") :]
    assert loop.count("load <8 x float>") == inside
    assert text.count("load <8 x float>") == rows


@pytest.mark.parametrize(("least", "moved"), [(3, True), (90, False)])
def test_index_arithmetic_leaves_conditions_that_nearly_always_hold_and_loads_do_not(least, moved, rng) -> None:
    """What is read there may be outside of its buffer otherwise."""
    x, y = Buffer("x", f32, (7, 100)), Buffer("y", f32, (9, 100))

    def element(i, j):
        return If(predicate(j, "ge", least), (Store(y, (i, j), Load(x, ((i * 3 + 1) % 7, j - least))),))

    function = Function("usual", (x, y), (serial(9, lambda i: serial(100, lambda j: element(i, j))),))
    data, result = rng.random((7, 100), np.float32), np.zeros((9, 100), np.float32)
    expected = result.copy()
    for i in range(9):
        expected[i, least:] = data[(i * 3 + 1) % 7, : 100 - least]
    native = Native([function])
    assert native("usual", guarded(data), result) is None
    np.testing.assert_array_equal(result, expected)
    blocks = re.split(r"\n(?=\w+:\n)", native.kernels["usual"].text)
    (arm,) = [block for block in blocks if block.startswith("then")]
    assert "load float" in arm
    assert ("rem i64" in arm) != moved
    assert sum("rem i64" in block for block in blocks) == 1


def narrow_tile(rows: int, depth: int) -> Function:
    """c = a @ b for a register tile of one vector: each multiply-add reads its element of a for all lanes from memory."""
    a, b, c = Buffer("a", f32, (rows, 64)), Buffer("b", f32, (64, 16)), Buffer("c", f32, (rows, 16))
    acc = Buffer("acc", f32, (rows, 16), "register")

    def tile(body):
        return unrolled(rows, lambda r: vector(16, lambda v: body(r, v)))

    def step(k):
        return tile(lambda r, j: Store(acc, (r, j), apply("fma", Load(a, (r, k)), Load(b, (k, j)), Load(acc, (r, j)))))

    steps = serial(64 // depth, lambda n: unrolled(depth, lambda k: step(n * depth + k)))
    clear, end = tile(lambda r, j: Store(acc, (r, j), zero())), tile(lambda r, j: Store(c, (r, j), Load(acc, (r, j))))
    return Function(f"narrow{rows}x{depth}", (a, b, c), (Alloc(acc), clear, steps, end))


def test_operands_near_one_address_have_it_in_a_register():
    """Not as a base and a counter: a multiply-add with both takes two places in the front end."""
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="skylake-avx512", opt=2)
    operand = re.compile(r"vfmadd231ps\t\S*\((%\w+)(,%\w+)?.*\)\{1to16\}")
    for rows, is_kept in ((12, True), (3, False)):
        text = emit_kernel(narrow_tile(rows, 2), "narrow", Target.named("x86-64-v4")).text
        operands = operand.findall(machine.emit_assembly(llvm.parse_assembly(text)))
        assert len(operands) >= rows
        assert all((counter == "") == is_kept for _, counter in operands)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_narrow_tiles_compute(depth: int, rng: np.random.Generator):
    functions = [narrow_tile(rows, depth) for rows in (3, 12, 20)]
    whole = {f.name: [rng.integers(-8, 9, p.type.static_shape).astype(np.float32) for p in f.parameters] for f in functions}
    agree(functions, whole)  # sums of whole numbers, which are exact
