"""Executables: results, states, dims, threads, and one test per way to call them wrongly."""

from __future__ import annotations

import gc
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot.compiler.codegen.call import call_module
from ingot.compiler.codegen.pool import pool_module
from ingot.runtime.abi import REQUIRED_EXPORTS
from ingot.runtime.arguments import convert_argument
from ingot.runtime.errors import ArgumentError, ExecutionError, IngotRuntimeError, OutOfMemoryError
from ingot.runtime.executable import Executable
from ingot.runtime.manifest import DimSpec, Manifest, TensorSpec
from ingot.runtime.program import Program
from tests.runtime.native import HOST, image_of
from tests.runtime.sample import BIAS, sample_manifest, sample_program, static_program


@pytest.fixture(scope="module")
def program() -> Program:
    return sample_program()


@pytest.fixture(scope="module")
def static() -> Executable:
    return Executable(static_program(), threads=1)


@pytest.fixture
def executable(program: Program) -> Executable:
    return Executable(program, threads=2)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    return x + x + BIAS


# Results


@pytest.mark.parametrize("batch", [0, 1, 2, 7, 1000])
def test_any_batch(executable: Executable, batch: int) -> None:
    x = rows(batch)
    y, z = executable(x)
    np.testing.assert_array_equal(y, expected(x))
    np.testing.assert_array_equal(z, np.arange(2 * batch))


def test_one_output_is_an_array(static: Executable) -> None:
    result = static(np.arange(4, dtype=np.float32))
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, [0, 2, 4, 6])


def test_arguments_by_name(executable: Executable) -> None:
    x = rows(3)
    y, _ = executable(x=x)
    np.testing.assert_array_equal(y, expected(x))


def test_the_same_bits_for_any_number_of_threads(program: Program) -> None:
    x = rows(997)
    results = [Executable(program, threads=threads)(x)[0] for threads in (1, 2, 3)]
    assert all(np.array_equal(results[0], result) for result in results)


@pytest.mark.parametrize(
    "prepare",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[::-1][::-1],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    ],
    ids=["fortran order", "strided", "reversed twice", "misaligned"],
)
def test_any_layout_is_accepted(executable: Executable, prepare) -> None:
    x = rows(5)
    np.testing.assert_array_equal(executable(prepare(x))[0], expected(x))


def test_read_only_inputs_are_accepted(executable: Executable) -> None:
    x = rows(2)
    x.setflags(write=False)
    np.testing.assert_array_equal(executable(x)[0], expected(x))


def test_python_values_are_converted(executable: Executable) -> None:
    y, _ = executable([[1, 2, 3], [True, 0.5, 6]])
    np.testing.assert_array_equal(y, expected(np.array([[1, 2, 3], [1, 0.5, 6]], np.float32)))


def test_objects_with_an_array_interface_are_accepted(executable: Executable) -> None:
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.ones((1, 3), np.float32)

    np.testing.assert_array_equal(executable(Wrapped())[0], expected(np.ones((1, 3), np.float32)))


def test_subclasses_of_arrays_are_accepted(executable: Executable) -> None:
    x = rows(2)
    y, _ = executable(x.view(np.matrix))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, expected(x))


def test_large_outputs_are_fresh_and_aligned(executable: Executable) -> None:
    first, second = executable(rows(20000))[0], executable(rows(20000))[0]
    assert not np.may_share_memory(first, second)
    assert first.__array_interface__["data"][0] % 64 == 0
    assert first.flags.c_contiguous
    assert first.flags.writeable


def test_a_dtype_that_is_equal_but_another_object_is_taken(executable: Executable) -> None:
    x = rows(5)
    described = x.view(np.dtype(np.float32, metadata={"unit": "metre"}))
    assert described.dtype is not x.dtype
    np.testing.assert_array_equal(executable(described)[0], executable(x)[0])


def test_small_outputs_are_fresh(executable: Executable) -> None:
    """They are not aligned to cache lines, which would take longer than it saves."""
    first, second = executable(rows(5))[0], executable(rows(5))[0]
    assert not np.may_share_memory(first, second)
    assert first.flags.carray


def test_out_of_the_wrong_kind_is_refused(executable: Executable) -> None:
    x, z = rows(4), np.empty(8, np.int64)
    for wrong, message in (
        (np.empty((4, 3)), "must be f32"),
        (np.empty((3, 4), np.float32), "must have shape"),
        (np.empty((3, 4), np.float32).T, "writeable, C-contiguous"),
        ([[0.0] * 3] * 4, "must be a NumPy array"),
    ):
        with pytest.raises(ArgumentError, match=message):
            executable(x, out=(wrong, z))


def test_outputs_outlive_the_executable(program: Program) -> None:
    x = rows(4)
    y, _ = Executable(program)(x)
    gc.collect()
    np.testing.assert_array_equal(y, expected(x))


def test_out_receives_the_results(executable: Executable) -> None:
    x = rows(4)
    y, z = np.empty((4, 3), np.float32), np.empty(8, np.int64)
    result = executable(x, out=(y, z))
    assert result[0] is y
    assert result[1] is z
    np.testing.assert_array_equal(y, expected(x))
    _, fresh = executable(x, out=(y, None))
    np.testing.assert_array_equal(fresh, np.arange(8))


def test_out_of_a_single_output(static: Executable) -> None:
    out = np.empty(4, np.float32)
    assert static(np.ones(4, np.float32), out=out) is out
    assert list(out) == [2, 2, 2, 2]


# States


def test_states_are_updated_and_not_returned(executable: Executable) -> None:
    assert executable.states["calls"] == 40
    assert len(executable(rows(1))) == 2
    executable(rows(1))
    assert executable.states["calls"] == 42
    assert [spec.name for spec in executable.outputs] == ["y", "z"]


def test_states_without_an_initial_value_are_zero(program: Program) -> None:
    executable = Executable(replace(program, initial_states={}))
    executable(rows(1))
    assert executable.states["calls"] == 1


def test_states_belong_to_one_executable(program: Program) -> None:
    first, second = Executable(program), Executable(program)
    first(rows(1))
    assert (first.states["calls"], second.states["calls"]) == (41, 40)


def test_a_bound_state_shares_memory(executable: Executable) -> None:
    executable(rows(1))
    mine = np.array(1000)
    executable.bind_state("calls", mine)
    executable(rows(1))
    executable(rows(1))
    assert mine == 1002
    assert executable.states["calls"] is mine


def test_states_given_at_the_start_are_bound_and_no_others_made(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("memory is made for a state that is given")

    monkeypatch.setattr(Executable, "_initial", refuse)
    mine = np.array(1000)
    executable = Executable(program, 1, {"calls": mine})
    executable(rows(1))
    assert mine == 1001
    with pytest.raises(ArgumentError, match="must be i64"):
        Executable(program, 1, {"calls": np.array(1, np.int32)})


def test_states_can_be_written_but_not_replaced(executable: Executable) -> None:
    executable.states["calls"][...] = 7
    executable(rows(1))
    assert executable.states["calls"] == 8
    with pytest.raises(TypeError):
        executable.states["calls"] = np.array(3)  # type: ignore[index]


def test_saving_keeps_the_states(executable: Executable, tmp_path: Path) -> None:
    executable(rows(1))
    executable.save(tmp_path / "p")
    assert Program.load(tmp_path / "p").initial_states["calls"] == 41


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", np.array(1), "no state 'count'; the states are calls"),
        ("calls", np.array(1, np.int32), r"state 'calls' must be i64, got i32\[\]"),
        ("calls", np.zeros(2, np.int64), r"'calls' must have 0 axes \[\], got 1: \[2\]"),
        ("calls", 5, "must be a NumPy array, got int"),
        ("calls", np.broadcast_to(np.array(1), ()), "must be a writeable, C-contiguous"),
    ],
)
def test_wrong_state_arrays_are_refused(executable: Executable, name: str, value, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        executable.bind_state(name, value)


IN_PLACE = """
; next[i] = state[i] + x[0] for i in 0, 1, 2: reads x again after the first write
define i32 @ingot_entry(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure) {
entry:
  %x = load ptr, ptr %buffers
  %next.slot = getelementptr ptr, ptr %buffers, i64 2
  %next = load ptr, ptr %next.slot
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %s.p = getelementptr i64, ptr %next, i64 %i
  %s = load i64, ptr %s.p
  %v = load i64, ptr %x
  %t = add i64 %s, %v
  store i64 %t, ptr %s.p
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, 3
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define i64 @ingot_arena_bytes(ptr %dims) { ret i64 0 }
define void @ingot_shapes(ptr %dims, ptr %out) {
  %p1 = getelementptr i64, ptr %out, i64 1
  %p2 = getelementptr i64, ptr %out, i64 2
  store i64 3, ptr %out
  store i64 3, ptr %p1
  store i64 3, ptr %p2
  ret void
}
"""


def test_an_input_that_is_the_state_itself_is_copied(program: Program) -> None:
    vector = ("i64", (3,))
    manifest = Manifest(
        program.manifest.target,
        inputs=(TensorSpec("x", *vector),),
        states=(TensorSpec("s", *vector),),
        outputs=(TensorSpec("next", *vector),),
        aliases={"next": "s"},
    )
    image = image_of(IN_PLACE, pool_module(HOST), call_module(), exports=REQUIRED_EXPORTS)
    executable = Executable(Program(manifest, image, {}, {"s": np.array([1, 2, 3])}))
    assert executable(executable.states["s"]) is None
    assert list(executable.states["s"]) == [2, 3, 4]


SYMBOLIC_STATE = """
; buffers: state s[n], next[n] (the same memory); next[i] = s[i] + i
define i32 @ingot_entry(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure) {
entry:
  %s = load ptr, ptr %buffers
  %n = load i64, ptr %dims
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %p = getelementptr i64, ptr %s, i64 %i
  %v = load i64, ptr %p
  %t = add i64 %v, %i
  store i64 %t, ptr %p
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define i64 @ingot_arena_bytes(ptr %dims) { ret i64 0 }
define void @ingot_shapes(ptr %dims, ptr %out) {
  %n = load i64, ptr %dims
  %p1 = getelementptr i64, ptr %out, i64 1
  store i64 %n, ptr %out
  store i64 %n, ptr %p1
  ret void
}
"""


def test_a_state_with_symbolic_dims_must_be_bound_and_binds_them(program: Program) -> None:
    vector = ("i64", ("n",))
    manifest = Manifest(
        program.manifest.target,
        states=(TensorSpec("s", *vector),),
        outputs=(TensorSpec("next", *vector),),
        dims=(DimSpec("n", 1),),
        aliases={"next": "s"},
    )
    image = image_of(SYMBOLIC_STATE, pool_module(HOST), call_module(), exports=REQUIRED_EXPORTS)
    executable = Executable(Program(manifest, image))
    with pytest.raises(ArgumentError, match=r"state s: i64\[n\] has symbolic dims; give it an array"):
        executable()
    for length in (3, 5):
        mine = np.zeros(length, np.int64)
        executable.bind_state("s", mine)
        executable()
        assert list(mine) == list(range(length))


# What it says about itself


def test_description(executable: Executable) -> None:
    assert repr(executable) == "Executable(x: f32[batch, 3]) -> (y: f32[batch, 3], z: i64[2*batch])"
    assert str(executable.inputs) == "(x: f32[batch, 3],)"
    assert executable.dims == (DimSpec("batch", 0, 1 << 40),)


def test_peak_bytes(program: Program, static: Executable) -> None:
    assert static.peak_bytes == 4096
    executable = Executable(replace(program, manifest=sample_manifest(dims=(DimSpec("batch", 0, 50),))))
    assert executable.peak_bytes == 600
    assert executable.peak_bytes_for(batch=3) == 36
    unbounded = Executable(replace(program, manifest=sample_manifest(dims=(DimSpec("batch"),))))
    assert unbounded.peak_bytes is None
    with pytest.raises(ArgumentError, match="give a value for each of the dims batch"):
        executable.peak_bytes_for()
    with pytest.raises(ArgumentError, match="dim 'batch' is 51, the program was compiled for 0 <= batch <= 50"):
        executable.peak_bytes_for(batch=51)


def test_explain(executable: Executable, tmp_path: Path) -> None:
    report = executable.explain()
    text = str(report)
    assert text.startswith("Sample\n")
    assert "x: f32[batch, 3]" in text
    assert "row  <2 ops>" in text
    assert json.loads(report.json())["sections"][1]["rows"] == [["row", "<2 ops>"]]
    report.html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "&lt;2 ops&gt;" in page
    assert "<2 ops>" not in page


def test_profile(executable: Executable, static: Executable) -> None:
    profile = executable.profile(rows(2), repeat=3)
    assert [(kernel.name, kernel.nanoseconds) for kernel in profile.kernels] == [
        ("row", 1000),
        ("count_up", 500),
    ]
    assert profile.total_nanoseconds > 0
    assert "row " in str(profile)
    assert str(profile).splitlines()[-1].startswith("total")
    with pytest.raises(IngotRuntimeError, match="no profiling entry point; compile it with profile=True"):
        static.profile(np.ones(4, np.float32))


# Wrong calls


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"input 'x' is missing; the inputs are x: f32\[batch, 3\]"),
        ((rows(1), rows(1)), {}, "got 2 arguments, the program has 1 inputs"),
        ((rows(1),), {"x": rows(1)}, "'x' was given twice"),
        ((), {"x": rows(1), "w": 3}, "there is no input 'w'; the inputs are x"),
        ((rows(1).astype(np.float64),), {}, r"'x' must be f32, got f64\[1, 3\]; convert it with astype"),
        ((np.ones((1, 3), np.int32),), {}, r"'x' must be f32, got i32\[1, 3\]"),
        ((np.ones((1, 3), ">f4"),), {}, "'x' must be f32, got >f4"),
        (([["a", "b", "c"]],), {}, "'x' must be f32, got <U1"),
        (([[1, 2, 3], [4]],), {}, "'x' must be f32, got a ragged list"),
        ((None,), {}, "'x' must be f32, got object"),
        (([[1j, 0, 0]],), {}, "'x' must be f32, got complex128"),
        ((np.ones(3, np.float32),), {}, r"'x' must have 2 axes \[batch, 3\], got 1: \[3\]"),
        ((np.float32(3),), {}, r"'x' must have 2 axes \(x: f32\[batch, 3\]\), got \[\]"),
        (
            (np.ones((2, 4), np.float32),),
            {},
            r"'x' must have shape \[batch, 3\] where batch = 2: axis 1 must be 3, got \[2, 4\]",
        ),
    ],
)
def test_wrong_arguments_are_explained(executable: Executable, args: tuple, kwargs: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        executable(*args, **kwargs)
    assert executable.states["calls"] == 40


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("i32", [1, 2, 3, 1 << 40], "must be i32, a value does not fit it"),
        ("u8", [1, 2, 3, -1], "must be u8, a value does not fit it"),
        ("i32", [1.0, 2.0, 3.0, 4.0], r"must be i32, got f64\[4\]"),
        ("bool", [0, 1, 0, 1], r"must be bool, got i64\[4\]"),
    ],
)
def test_python_values_that_would_change_are_refused(dtype: str, value: list, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Executable(static_program(dtype), threads=1)(value)


def test_dims_outside_their_bounds_are_refused(program: Program) -> None:
    executable = Executable(replace(program, manifest=sample_manifest(dims=(DimSpec("batch", 2, 4),))))
    executable(rows(2))
    with pytest.raises(ArgumentError, match="dim 'batch' is 1, the program was compiled for 2 <= batch <= 4"):
        executable(rows(1))
    with pytest.raises(ArgumentError, match="dim 'batch' is 5"):
        executable(rows(5))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((2, 3), np.float32), "out has 1 arrays, the program returns 2"),
        ((np.empty((2, 3)), None), r"output 'y' must be f32, got f64\[2, 3\]"),
        ((np.empty((3, 3), np.float32), None), r"axis 0 must be 2, got \[3, 3\]"),
        ((np.empty((3, 2), np.float32).T, None), "output 'y' must be a writeable, C-contiguous"),
        ((3, None), "output 'y' must be a NumPy array, got int"),
    ],
)
def test_wrong_out_is_explained(executable: Executable, out, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        executable(rows(2), out=out)


def test_out_must_not_overlap_an_input(executable: Executable) -> None:
    x = rows(2)
    with pytest.raises(ArgumentError, match="output 'y' shares memory with an input"):
        executable(x, out=(x, None))


def test_impossible_sizes_are_refused(program: Program) -> None:
    executable = Executable(replace(program, manifest=sample_manifest(dims=(DimSpec("batch"),))))
    huge = np.broadcast_to(np.float32(1), (1 << 46, 3))
    with pytest.raises(OutOfMemoryError, match="no room for the program's"):
        executable(huge)
    with pytest.raises(OutOfMemoryError, match="no room for a contiguous copy of input 'x'"):
        convert_argument(executable.inputs[0], huge)
    with pytest.raises(ArgumentError, match="impossible shape"):
        executable.peak_bytes_for(batch=(1 << 63) - 1)
    widest = sample_manifest(dims=(DimSpec("batch", 0, (1 << 63) - 1),))
    assert Executable(replace(program, manifest=widest)).peak_bytes is None


def test_a_failure_names_its_site(executable: Executable) -> None:
    x = rows(2)
    x[0, 0] = -1
    with pytest.raises(ExecutionError) as caught:
        executable(x)
    assert str(caught.value) == (
        "index 7 is out of range for an axis of extent 3 in gather 'lookup' (sample.py:7); "
        "indices must lie in [-extent, extent)"
    )
    assert caught.value.code == 1
    assert caught.value.details == (7, 3, 0, 0)
    np.testing.assert_array_equal(executable(rows(2))[0], expected(rows(2)))


def test_thread_counts_are_checked(program: Program) -> None:
    with pytest.raises(ArgumentError, match="threads must be at least 1, got 0"):
        Executable(program, threads=0)


# Concurrency


def test_several_threads_call_one_executable(program: Program) -> None:
    stateless = Executable(static_program(), threads=1)
    stateful = Executable(program, threads=2)
    errors: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            for round_number in range(200):
                x = rows(1 + (seed + round_number) % 50, seed)
                np.testing.assert_array_equal(stateful(x)[0], expected(x))
                values = np.full(4, seed, np.float32)
                np.testing.assert_array_equal(stateless(values), 2 * values)
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert errors == []
    assert stateful.states["calls"] == 40 + 4 * 200


def test_a_forked_child_makes_its_own_pool(program: Program) -> None:
    executable = Executable(program, threads=2)
    x = rows(100)
    executable(x)
    child = os.fork()
    if child == 0:
        try:
            correct = all(np.array_equal(executable(x)[0], expected(x)) for _ in range(20))
            tasks = len(os.listdir("/proc/self/task"))
            os._exit(0 if correct and tasks == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(executable(x)[0], expected(x))


def test_the_arena_is_reused(executable: Executable) -> None:
    executable(rows(100))
    (context,) = executable._contexts
    arena = context.arena_address
    for batch in (100, 5, 99):
        executable(rows(batch))
    assert [c.arena_address for c in executable._contexts] == [arena]
