"""A compiled function from the outside: names, arrangements, memory. After the first call nothing is allocated but
the results."""

from __future__ import annotations

import gc
import resource
import tracemalloc

import numpy as np
import pytest

import ingot
from ingot.compiler import garbage, pipeline
from ingot.compiler.codegen.values import Value
from ingot.compiler.garbage import no_collection
from ingot.compiler.options import Options
from ingot.runtime.executable import Executable
from tests.pipeline.support import images, network, training_step

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 2)).astype(np.float32)


# --- calling ------------------------------------------------------------------------------------------------


def test_arguments_by_name_and_by_place():
    executable = ingot.compile(lambda x, w: x @ w, ingot.f32["n", 3], ingot.f32[3, 2])
    expected = executable(X, W)
    np.testing.assert_array_equal(executable(w=W, x=X), expected)
    np.testing.assert_array_equal(executable(X, w=W), expected)
    assert [spec.name for spec in executable.inputs] == ["x", "w"]
    assert [str(spec) for spec in executable.outputs] == ["output: f32[n, 2]"]


@pytest.mark.parametrize(
    ("arguments", "keywords", "match"),
    [((X,), {}, "w"), ((X, W, W), {}, "3"), ((X,), {"v": W}, "w"), ((X, W), {"w": W}, "w"),
     ((X[:, :2], W), {}, "x"), ((X.astype(np.float64), W), {}, "f32"), ((X, "no"), {}, "w")],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, keywords, match):
    executable = ingot.compile(lambda x, w: x @ w, ingot.f32["n", 3], ingot.f32[3, 2])
    with pytest.raises(Exception, match=match):
        executable(*arguments, **keywords)


def test_results_are_arranged_as_they_were_returned():
    def f(x):
        return {"sum": x.sum(), "parts": [x[0], (x[1], x.max())], "nothing": None}

    found = ingot.compile(f, ingot.f32[4, 3])(X)
    assert list(found) == ["sum", "parts", "nothing"]
    assert found["sum"] == pytest.approx(X.sum(), rel=1e-5)
    assert isinstance(found["parts"], list)
    assert isinstance(found["parts"][1], tuple)
    np.testing.assert_array_equal(found["parts"][1][0], X[1])
    assert found["nothing"] is None


def test_one_result_in_a_tuple_stays_in_a_tuple():
    (found,) = ingot.compile(lambda x: (x + 1,), ingot.f32[4, 3])(X)
    np.testing.assert_array_equal(found, X + 1)
    assert isinstance(ingot.compile(lambda x: [x], ingot.f32[4, 3])(X), list)


def test_an_input_returned_twice_and_a_constant():
    a, b, c = ingot.compile(lambda x: (x, x, 3.0), ingot.f32[4, 3])(X)
    np.testing.assert_array_equal(a, X)
    np.testing.assert_array_equal(b, X)
    assert c == 3
    assert not np.shares_memory(a, X)
    assert not np.shares_memory(a, b)


def test_inputs_that_are_not_contiguous():
    executable = ingot.compile(lambda x: x * 2, ingot.f32[3, 4])
    np.testing.assert_array_equal(executable(X.T), X.T * 2)
    np.testing.assert_array_equal(executable(np.asfortranarray(X.T)), X.T * 2)
    wide = np.repeat(X.T, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(executable(wide), X.T * 2)


def test_out_is_written_to():
    executable = ingot.compile(lambda x: x * 2, ingot.f32[4, 3])
    target = np.empty((4, 3), np.float32)
    assert executable(X, out=target) is target
    np.testing.assert_array_equal(target, X * 2)
    with pytest.raises(Exception, match="memory"):
        executable(X, out=X)


def test_inputs_are_never_written_to():
    """Kernels work in place on memory of the arena, not on what the caller gave."""
    graph = ingot.trace(lambda x: ((x + 1) * 2).tanh() - x, [ingot.f32[64, 64]]).graph
    x = np.ones((64, 64), np.float32)
    x.flags.writeable = False
    for fuse in (True, False):
        Executable(pipeline.compile_graph(graph, Options(fuse=fuse)).program)(x)
    np.testing.assert_array_equal(x, 1)


def test_interpret_is_the_same_computation():
    model = network()
    np.testing.assert_allclose(
        ingot.compile(model, ingot.f32["batch", 1, 8, 8])(images()), ingot.interpret(model, images()), 1e-4, 1e-6
    )


def test_zero_rows():
    executable = ingot.compile(lambda x, w: (x @ w).relu(), ingot.f32[ingot.dim("n", 0), 3], ingot.f32[3, 2])
    assert executable(X[:0], W).shape == (0, 2)
    np.testing.assert_allclose(executable(X, W), np.maximum(X @ W, 0), 1e-5, 1e-6)


# --- memory -------------------------------------------------------------------------------------------------


def arenas(executable: Executable) -> list[tuple[int, int]]:
    return [(context.arena_address, context.arena_bytes) for context in executable._contexts]


def test_the_arena_is_allocated_once():
    executable = ingot.compile(network(), ingot.f32["batch", 1, 8, 8])
    executable(images(16))
    first = arenas(executable)
    assert len(first) == 1
    for count in (1, 16, 3, 15):
        executable(images(count))
    assert arenas(executable) == first
    assert first[0][1] == executable.peak_bytes_for(batch=16)


def test_a_thousand_calls_leave_python_memory_as_it_was():
    executable = ingot.compile(network(), ingot.f32[2, 1, 8, 8])
    x = images(2)
    out = executable(x)
    for _ in range(10):
        executable(x, out=out)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(1000):
        executable(x, out=out)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4096


def test_a_thousand_training_steps_leave_the_process_as_large_as_it_was():
    trainer = training_step()
    x, labels = np.ones((64, 4), np.float32), np.zeros(64, np.int64)
    for _ in range(100):
        trainer.step(x, labels)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        trainer.step(x, labels)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1024, f"{grown} KiB"


def test_generated_code_calls_no_allocator():
    """Whatever a linked image takes from outside is named in it: threads, their stacks and clocks, no heap."""
    executables = (ingot.compile(network(), ingot.f32["batch", 1, 8, 8]), training_step().executable)
    for executable in executables:
        image = executable.program.image
        for word in ("alloc", "free", "brk", "memalign"):
            assert not [imported.name for imported in image.imports if word in imported.name]
            assert not [function.name for function in image.functions if word in function.name]


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_rests_while_compiling_and_is_as_before_afterwards(enabled: bool) -> None:
    seen: list[bool] = []

    @no_collection()
    def work() -> None:
        seen.append(gc.isenabled())
        raise KeyError

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError):
            work()
        assert seen == [False]
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("most", [0, 10**9])
def test_what_a_large_compilation_leaves_is_old_unless_much_is(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MOST_OLD", most)
    became_old: list[int] = []
    monkeypatch.setattr(garbage, "_become_old", lambda: became_old.append(1))
    gc.collect()
    with no_collection():
        kept = [[n] for n in range(2 * garbage.MANY_NEW)]
    with no_collection():
        few = [[n] for n in range(10)]
    assert len(kept) > len(few)
    assert bool(became_old) == (most > 0)


def test_objects_become_old_at_once_unless_some_are_frozen() -> None:
    with no_collection():
        kept = [object(), [[]]]
        garbage._become_old()
        assert any(each is kept for each in gc.get_objects(generation=2))
        new: list[object] = [kept]
        gc.freeze()
        try:
            garbage._become_old()
            assert gc.get_freeze_count()
        finally:
            gc.unfreeze()
        assert new


def test_a_kernel_leaves_no_values_for_the_collector() -> None:
    ingot.compile(lambda x, w: x @ w, ingot.f32[4, 3], ingot.f32[3, 2], options=Options(cache=False))
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        before = sum(type(each) is Value for each in gc.get_objects())
        ingot.compile(lambda x, w: x @ w, ingot.f32[40, 30], ingot.f32[30, 20], options=Options(cache=False))
        after = sum(type(each) is Value for each in gc.get_objects())
    finally:
        if was_enabled:
            gc.enable()
    assert after - before < 300, "the entry's own, not the kernels'"
