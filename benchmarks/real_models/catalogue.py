"""The list of models: where each file is found and which inputs it is given.

An input is filled with standard normal numbers ("normal"), with integers of a range ([low, high)), with one number, or
with listed values; all of it from one generator with a fixed seed, so that everybody compares the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LIST = Path(__file__).with_name("models.json")


@dataclass(frozen=True)
class Input:
    dtype: str
    shape: tuple[int, ...]
    fill: Any

    def array(self, generator: np.random.Generator) -> np.ndarray:
        if self.fill == "normal":
            return generator.standard_normal(self.shape).astype(self.dtype)
        if isinstance(self.fill, list):
            return generator.integers(*self.fill, size=self.shape).astype(self.dtype)
        if isinstance(self.fill, dict):
            return np.array(self.fill["values"], self.dtype).reshape(self.shape)
        return np.full(self.shape, self.fill, self.dtype)


@dataclass(frozen=True)
class RealModel:
    """One model file of one version of a package."""

    registry: str
    package: str
    version: str
    file: str
    sha256: str
    inputs: dict[str, Input]

    @property
    def name(self) -> str:
        """Package and file, without folders: what tables show."""
        return f"{self.package}/{Path(self.file).name}"

    @property
    def key(self) -> str:
        """Unique in the list."""
        return f"{self.package}/{self.file}"

    def path(self, folder: Path) -> Path:
        return folder / f"{self.package}-{self.version}" / self.file

    def is_present(self, folder: Path) -> bool:
        path = self.path(folder)
        return path.is_file() and digest(path).startswith(self.sha256)

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(seed)
        return {name: given.array(generator) for name, given in self.inputs.items()}


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def models(only: str = "") -> list[RealModel]:
    """The models whose key contains `only`, in the order of the list."""
    listed = []
    for entry in json.loads(LIST.read_text()):
        inputs = {
            name: Input(given["dtype"], tuple(given["shape"]), given["fill"])
            for name, given in entry.pop("inputs").items()
        }
        listed.append(RealModel(**entry, inputs=inputs))
    return [model for model in listed if only in model.key]
