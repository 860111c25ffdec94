"""Looking at a compilation: every stage is dumped, reads back and can be resumed; bisect blames the right pass;
explain accounts for every op."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import ingot
from ingot.compiler import pipeline
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.text import parse_function, parse_graph, parse_kernel, print_function, print_kernel
from ingot.compiler.ir.text.dump import load_dump
from ingot.compiler.ir.text.graph import print_graph
from ingot.compiler.ir.verify.graph import verify_graph
from ingot.compiler.ops.base import Op
from ingot.compiler.options import Options
from ingot.compiler.passes.rewriting import Pass
from ingot.runtime.executable import Executable
from tests.pipeline.support import images, network_graph, run, training_step

STAGES = ["import", *(step.name for step in pipeline.PASSES), "constants"]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pipeline.Compiled]:
    folder = tmp_path_factory.mktemp("dump")
    return folder, pipeline.compile_graph(network_graph(), Options(dump=str(folder)))


# --- dumps --------------------------------------------------------------------------------------------------


def test_every_stage_is_written(dumped):
    folder, compiled = dumped
    names = sorted(path.name for path in folder.iterdir())
    graphs = [name.split("-", 1)[1].removesuffix(".graph") for name in names if name.endswith(".graph")]
    assert graphs == STAGES
    for end in ("-fusion.txt", "-kernels.tensor", "-entry.loops", "-memory.txt", "-entry.ll"):
        assert any(name.endswith(end) for name in names), end
    assert compiled.assembly is not None
    modules = [name for name in names if name.endswith(".ll")]
    text = "".join((folder / name).read_text() for name in modules)
    for kernel in compiled.assembly.kernels:
        assert kernel.name in text


def test_every_dumped_graph_reads_back(dumped):
    folder, _ = dumped
    for path in folder.glob("*.graph"):
        graph = load_dump(path, Op.registry)
        verify_graph(graph)
        again = parse_graph(print_graph(graph), Op.registry, graph.constants)
        assert print_graph(again) == print_graph(graph)


def test_dumped_kernels_and_entry_read_back(dumped):
    folder, _ = dumped
    (kernels,) = folder.glob("*-kernels.tensor")
    parts = [part for part in kernels.read_text().split("\n\n") if part.strip()]
    assert len(parts) > 3
    for part in parts:
        assert print_kernel(parse_kernel(part)).strip() == part.strip()
    (entry,) = folder.glob("*-entry.loops")
    text = entry.read_text()
    assert print_function(parse_function(text)).strip() == text.strip()


@pytest.mark.parametrize("stage", STAGES)
def test_resuming_gives_the_same_bits(dumped, stage):
    folder, compiled = dumped
    (path,) = folder.glob(f"*-{stage}.graph")
    resumed = pipeline.resume(path)
    np.testing.assert_array_equal(run(resumed, images()), run(compiled, images()))


def test_a_training_step_can_be_dumped_and_resumed(tmp_path):
    trainer = training_step()
    pipeline.compile_graph(trainer.graph, Options(dump=str(tmp_path)))
    x, labels = np.ones((5, 4), np.float32), np.array([0, 1, 2, 0, 1])
    start = {name: array.copy() for name, array in trainer.states.items()}
    trainer.step(x, labels)
    for stage in ("import", "simplify", "constants"):
        (path,) = tmp_path.glob(f"*-{stage}.graph")
        again = Executable(pipeline.resume(path).program)
        for name, array in start.items():
            again.states[name][...] = array
        again(x, labels)
        for name, array in trainer.states.items():
            np.testing.assert_array_equal(again.states[name], array)


def test_an_edited_dump_is_what_runs(dumped, tmp_path):
    folder, compiled = dumped
    (path,) = folder.glob("*-simplify.graph")
    for file in folder.glob(f"{path.stem}*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edited = tmp_path / path.name
    text = edited.read_text()
    assert " exp(" in text
    edited.write_text(text.replace(" exp(", " neg("))
    assert not np.allclose(run(pipeline.resume(edited), images()), run(compiled, images()))


@pytest.mark.parametrize(("name", "content"), [("00-import.graph", "graph g("), ("03-unheard_of.graph", None)])
def test_a_dump_that_cannot_be_resumed(dumped, tmp_path, name, content):
    folder, _ = dumped
    source = next(folder.glob("*-import.graph"))
    (tmp_path / name).write_text(source.read_text() if content is None else content)
    with pytest.raises(ingot.IngotError, match="E120"):
        pipeline.resume(tmp_path / name)


# --- bisect -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(Pass):
    """Takes one function for another."""

    name: ClassVar[str] = "wrong"
    from_: str = "exp"
    to: str = "tanh"

    def __call__(self, graph: Graph) -> Graph:
        text = print_graph(graph).replace(f"= {self.from_}(", f"= {self.to}(")
        return replace(parse_graph(text, Op.registry), constants=graph.constants)


def with_wrong_pass(at: int) -> tuple[Pass, ...]:
    return (*pipeline.PASSES[:at], Wrong(), *pipeline.PASSES[at:])


@pytest.mark.parametrize("at", [4, len(pipeline.PASSES)])
def test_bisect_names_the_pass_that_is_wrong(monkeypatch, at):
    """Wherever it stands (behind decomposition, which makes the exp that it spoils)."""
    monkeypatch.setattr(pipeline, "PASSES", with_wrong_pass(at))
    blame = pipeline.bisect(network_graph(), {"x": images()})
    assert blame is not None
    assert blame.stage == "wrong"
    assert blame.output == "output"
    assert blame.error > 0.01


def test_a_wrong_pass_that_is_left_out_is_not_blamed(monkeypatch):
    names = tuple(step.name for step in pipeline.PASSES)
    monkeypatch.setattr(pipeline, "PASSES", with_wrong_pass(4))
    assert pipeline.bisect(network_graph(), {"x": images()}, Options(passes=names)) is None


def test_bisect_blames_code_generation():
    def wrong(compiled, inputs):
        return [run(compiled, inputs["x"]) * 1.01]

    blame = pipeline.bisect(network_graph(), {"x": images()}, run=wrong)
    assert blame is not None
    assert blame.stage == "codegen"


def test_bisect_of_what_is_right():
    assert pipeline.bisect(network_graph(), {"x": images()}, run=lambda c, i: [run(c, i["x"])]) is None


def test_relative_error():
    nan, one = np.array([np.nan, np.inf, 1.0]), np.array([1.0, np.inf, 1.0])
    assert pipeline.relative_error(nan, nan) == 0
    assert pipeline.relative_error(nan, one) == np.inf
    assert pipeline.relative_error(np.array([1.0, 11.0]), np.array([0.0, 10.0])) == pytest.approx(0.1)


# --- explain ------------------------------------------------------------------------------------------------


def rows_of(report, title: str) -> list[tuple[str, ...]]:
    return [row for section in report.sections if section.title.startswith(title) for row in section.rows]


def test_every_op_has_a_decision():
    compiled = pipeline.compile_graph(network_graph(), Options(cache=False))
    report = Executable(compiled.program).explain()
    decided = {(row[0], row[1]) for row in rows_of(report, "Fusion decisions")}
    for value in compiled.graph.body:
        assert (getattr(value.op, "name", ""), repr(value.type)) in decided
    assert all(row[2] and row[3] for row in rows_of(report, "Fusion decisions"))


def test_every_kernel_says_its_recipe_and_why():
    compiled = pipeline.compile_graph(network_graph(), Options(cache=False))
    rows = rows_of(Executable(compiled.program).explain(), "Kernels")
    assert compiled.assembly is not None
    assert [row[0] for row in rows] == [kernel.name for kernel in compiled.assembly.kernels]
    for _, ops, recipe, why, *_ in rows:
        assert ops
        assert recipe
        assert why


def test_regions_are_explained_too():
    def f(xs):
        return ingot.scan(lambda c, x: ((c * x).tanh(), c), xs[0], xs)

    text = str(ingot.compile(f, ingot.f32[5, 3], cache=False).explain())
    assert "Fusion decisions of scan_body" in text
    assert "tanh" in text


def test_explain_from_the_cache_is_the_same():
    first, again = (ingot.compile(lambda x: (x * 2).exp().sum(), ingot.f32[137]) for _ in range(2))
    assert again.compiled.from_cache
    assert str(first.explain()) == str(again.explain())


def test_the_report_in_three_forms(tmp_path):
    report = ingot.compile(lambda x: x.softmax(), ingot.f32["n", 9]).explain()
    assert "softmax" in report.json() or "exp" in report.json()
    report.html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "Memory" in page
