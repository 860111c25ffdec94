"""What is compiled once is not compiled again, by no process; what is damaged is compiled anew; and the bytes of a
program depend on nothing but its graph, its options and its target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.compiler import pipeline
from ingot.compiler.options import Options
from ingot.runtime.executable import Executable
from tests.pipeline.support import images, network, network_graph, run, training_step

MODEL = """
    import hashlib, json, sys
    import numpy as np
    import ingot
    from ingot.compiler import pipeline
    from tests.pipeline.support import images, network_graph, run, training_step

    compiled = pipeline.compile_graph(network_graph())
    step = pipeline.compile_graph(training_step().graph)

    def digest(program):
        texts = [json.dumps(program.manifest.to_json(), sort_keys=True).encode(), program.image.to_bytes()]
        return [hashlib.sha256(text).hexdigest() for text in texts]

    print(json.dumps({
        "from_cache": [compiled.from_cache, step.from_cache],
        "program": digest(compiled.program) + digest(step.program),
        "result": hashlib.sha256(run(compiled, images()).tobytes()).hexdigest(),
    }))
"""


def in_a_process(cache: Path, seed: str = "0", **environment: str) -> dict:
    names = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONHASHSEED": seed, **environment}
    command = [sys.executable, "-c", textwrap.dedent(MODEL)]
    process = subprocess.run(command, capture_output=True, text=True, env=names)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- one machine ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    first, second = (in_a_process(tmp_path) for _ in range(2))
    assert first["from_cache"] == [False, True]  # the trainer itself has compiled its step
    assert second["from_cache"] == [True, True]
    assert second["result"] == first["result"]
    assert second["program"] == first["program"]


@pytest.mark.slow
def test_the_bytes_of_a_program_do_not_depend_on_hashing(tmp_path):
    """Sets and dicts of objects order themselves by hashes, which differ between processes."""
    found = [in_a_process(tmp_path / seed, seed) for seed in ("1", "2")]
    assert not any(f["from_cache"][0] for f in found)
    assert found[0]["program"] == found[1]["program"]


def refuse(*args: object, **keywords: object) -> None:
    raise AssertionError("something is compiled")


def test_a_hit_compiles_nothing(own_cache, monkeypatch):
    first = pipeline.compile_graph(network_graph())
    for name in ("run_passes", "assemble", "Compilation"):
        monkeypatch.setattr(pipeline, name, refuse)
    again = pipeline.compile_graph(network_graph())
    assert (first.from_cache, again.from_cache) == (False, True)
    np.testing.assert_array_equal(run(again, images()), run(first, images()))


def test_the_report_of_a_hit_is_read_when_it_is_looked_at(own_cache, monkeypatch):
    ingot.compile(network(), ingot.f32["batch", 1, 8, 8])
    with monkeypatch.context() as patched:
        patched.setattr("ingot.compiler.report.with_sources", refuse)
        again = ingot.compile(network(), ingot.f32["batch", 1, 8, 8])
    assert again.compiled.from_cache
    assert "Kernels" in str(again.explain())


def test_other_weights_are_the_same_program(own_cache):
    """Constants are beside the graph: those of the model at hand are used, also where they are folded."""
    pipeline.compile_graph(network_graph())
    model = network()
    for array in model.named_arrays().values():
        array *= 1.5
    executable = ingot.compile(model, ingot.f32["batch", 1, 8, 8])
    assert executable.compiled.from_cache
    np.testing.assert_allclose(executable(images()), ingot.interpret(model, images()), 1e-4, 1e-5)


def test_a_model_moved_to_other_lines_is_the_same_program(own_cache):
    first = ingot.compile(lambda x: (x * 2).exp().sum(), ingot.f32[37])
    again = ingot.compile(
        lambda x: (x * 2).exp().sum(), ingot.f32[37]
    )  # fmt: skip
    assert again.compiled.from_cache
    assert "ingot.compile(lambda" in str(first.explain())
    assert "ingot.compile(lambda" not in str(again.explain())  # its own line, not the one that was cached


def test_what_changes_the_code_changes_the_entry(own_cache):
    def compiled(**choices):
        return ingot.compile(lambda x: x.tanh() * 2, ingot.f32[9], **choices).compiled.from_cache

    assert not compiled()
    assert compiled()
    assert compiled(threads=1)
    assert compiled(verify=True)
    assert not compiled(fuse=False)
    assert not compiled(target="x86-64")
    assert not compiled(memory_budget=1 << 20)
    assert not compiled(cache=False)
    assert not ingot.compile(lambda x: x.tanh() * 2, ingot.f32[10]).compiled.from_cache
    assert not ingot.compile(lambda x: x.tanh() * 3, ingot.f32[9]).compiled.from_cache
    assert not ingot.compile(lambda y: y.tanh() * 2, ingot.f32[9]).compiled.from_cache  # another name


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "directory"])
def test_a_damaged_entry_is_a_miss(own_cache, damage):
    first = pipeline.compile_graph(network_graph())
    paths = entries(own_cache)
    assert paths
    for path in paths:
        content = bytearray(path.read_bytes())
        if damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "flipped":
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
            path.mkdir()
    again = pipeline.compile_graph(network_graph())
    assert not again.from_cache
    np.testing.assert_array_equal(run(again, images()), run(first, images()))
    if damage != "directory":
        assert pipeline.compile_graph(network_graph()).from_cache


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert not pipeline.compile_graph(network_graph()).from_cache


def test_the_cache_can_be_left_out(own_cache):
    pipeline.compile_graph(network_graph(), Options(cache=False))
    assert entries(own_cache) == []


def test_a_training_step_from_the_cache_trains_alike(own_cache):
    x, labels = np.ones((5, 4), np.float32), np.array([0, 1, 2, 0, 1])
    found = []
    for _ in range(2):
        trainer = training_step()
        found.append(([trainer.step(x, labels) for _ in range(3)], trainer.executable.compiled.from_cache))
    assert found[0][0] == found[1][0]
    assert [hit for _, hit in found] == [False, True]


# --- options ------------------------------------------------------------------------------------------------


def test_a_subset_of_the_passes():
    graph = network_graph()
    whole = pipeline.compile_graph(graph)
    # without decomposition there is no way down for composite ops; all others may be left out
    few = pipeline.compile_graph(graph, Options(passes=("decompose",)))
    np.testing.assert_allclose(run(few, images()), run(whole, images()), 1e-5, 1e-6)


def test_every_pass_but_one():
    graph = network_graph()
    expected = run(pipeline.compile_graph(graph), images())
    for left_out in pipeline.PASSES:
        if left_out.name != "decompose":
            names = tuple(step.name for step in pipeline.PASSES if step is not left_out)
            found = run(pipeline.compile_graph(graph, Options(passes=names)), images())
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6, err_msg=f"without {left_out.name}")


def test_options_from_the_environment():
    options = Options.from_environment(
        {"INGOT_TARGET": "x86-64", "INGOT_NO_CACHE": "1", "INGOT_VERIFY": "1", "INGOT_NO_FUSION": "0"}
    )
    assert options == Options(target="x86-64", cache=False, verify=True, fuse=True)
    assert Options.from_environment({}) == Options()


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("64MB", 64_000_000), ("1.5 GiB", 3 << 29), ("2kib", 2048)])
def test_sizes(text, size):
    assert Options().with_(memory_budget=text).memory_budget == size


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
def test_another_target_computes_the_same(target):
    graph = network_graph()
    try:
        found = run(pipeline.compile_graph(graph, Options(target=target)), images())
    except Exception as error:  # the processor at hand may lack what the target has
        pytest.skip(str(error))
    np.testing.assert_allclose(found, run(pipeline.compile_graph(graph), images()), 1e-5, 1e-6)


def test_a_budget_is_kept():
    graph = ingot.trace(lambda x, w: (x @ w).tanh() @ w, [ingot.f32[64, 64]] * 2).graph
    program = pipeline.compile_graph(graph, Options(cache=False)).program
    needed = Executable(program).peak_bytes
    assert needed
    pipeline.compile_graph(graph, Options(memory_budget=needed))
    with pytest.raises(ingot.IngotError, match="E114"):
        pipeline.compile_graph(graph, Options(memory_budget=needed - 1))
