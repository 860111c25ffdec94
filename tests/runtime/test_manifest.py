"""Manifests: JSON and back, and one message per thing that can be wrong with one."""

from __future__ import annotations

import json

import pytest

from ingot.runtime.errors import ProgramFormatError, ProgramVersionError
from ingot.runtime.manifest import DimSpec, Manifest, TensorSpec
from tests.runtime.sample import sample_manifest


def changed(path: tuple, value) -> str:
    data = json.loads(sample_manifest().to_json())
    target = data
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return json.dumps(data)


def test_round_trip() -> None:
    manifest = sample_manifest()
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_json(manifest.to_json().encode()) == manifest


def test_specs_read_well() -> None:
    assert str(TensorSpec("x", "f32", ("batch", 3))) == "x: f32[batch, 3]"
    assert str(DimSpec("n", 1, 8)) == "1 <= n <= 8"
    assert str(DimSpec("n", 1)) == "1 <= n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "its manifest is no JSON object"),
        (changed(("inputs",), 3), "'inputs' of its manifest is missing or no list"),
        (changed(("inputs", 0), 3), "its tensor is no JSON object"),
        (changed(("inputs", 0, "name"), None), "'name' of its tensor is missing or no str"),
        (changed(("inputs", 0, "dtype"), "f31"), "'x' has unknown dtype 'f31'"),
        (changed(("inputs", 0, "shape"), ["batch", -3]), "'x' has an impossible shape"),
        (changed(("inputs", 0, "shape"), ["batch", True]), "'x' has an impossible shape"),
        (changed(("inputs", 0, "shape"), ["batch", 1 << 63]), "'x' has an impossible shape"),
        (changed(("inputs", 0, "shape"), ["batch"] * 33), "'x' has an impossible shape"),
        (changed(("inputs", 0, "shape"), ["2*batch", 3]), "axis of extent 'batch', so nothing determines it"),
        (changed(("dims", 0, "upper"), -1), "dim 'batch' has impossible bounds"),
        (changed(("dims", 0, "lower"), True), "'lower' of its dim is missing or no int"),
        (changed(("dims",), []), "'x' has symbolic dims that are not declared"),
        (changed(("constants", 0, "shape"), ["batch"]), "'bias' is a constant with symbolic dims"),
        (changed(("outputs", 1, "name"), "y"), "two of its outputs have the same name"),
        (changed(("aliases",), {"y": 1}), "'aliases' of its manifest must hold text only"),
        (changed(("aliases",), {"nothing": "calls"}), "alias 'nothing' -> 'calls' names what does not exist"),
        (changed(("aliases",), {"y": "calls"}), "output 'y' cannot update state 'calls': their types differ"),
        (changed(("sites",), [1]), "'sites' of its manifest must hold text only"),
        (changed(("target",), None), "'target' of its manifest is missing or no dict"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(ProgramFormatError, match=message.replace("*", r"\*")):
        Manifest.from_json(text)


def test_other_versions_are_refused() -> None:
    with pytest.raises(ProgramVersionError, match="format version 999.*install a newer Ingot"):
        Manifest.from_json(changed(("format",), 999))
    with pytest.raises(ProgramVersionError, match="format version 0.*compile the program again"):
        Manifest.from_json(changed(("format",), 0))
