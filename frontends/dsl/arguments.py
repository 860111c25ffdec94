"""A call's arguments as a flat list of arrays, and back: tuples, lists, dicts and modules of arrays are allowed.

Invariant: `put_back(found.structure, tensors)` arranges tensors exactly as the arguments were arranged, and two
calls with equal structures and equal types of arrays can share one compiled program. A module is compared by
identity and by the training mode of its parts; its arrays are arguments, so new values need no new program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.frontends.dsl.module import Module
from ingot.frontends.dsl.tensor import Tensor


@dataclass(frozen=True)
class Arguments:
    arrays: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    structure: Any  # hashable: numbers of arrays in the place of the arrays


@dataclass(frozen=True)
class _ModulePlace:
    """A module whose arrays have the numbers from `first` on."""

    module: Module
    training: tuple[bool, ...]
    first: int
    names: tuple[str, ...]


def holds_tensor(item: Any) -> bool:
    """Whether a traced tensor is anywhere inside."""
    if isinstance(item, Module):
        return any(holds_tensor(part) for part in vars(item).values())
    if isinstance(item, tuple | list):
        return any(holds_tensor(part) for part in item)
    if isinstance(item, Mapping):
        return any(holds_tensor(part) for part in item.values())
    return isinstance(item, Tensor)


def flatten_arguments(args: Sequence[Any], names: Sequence[str]) -> Arguments:
    """The arrays of arguments, each named after its place. A list of numbers is one array, as for NumPy."""
    arrays: list[np.ndarray] = []
    labels: list[str] = []

    def add(array: np.ndarray, name: str) -> int:
        arrays.append(array)
        labels.append(name)
        return len(arrays) - 1

    def walk(item: Any, name: str) -> Any:
        if isinstance(item, Module):
            own = item.named_arrays()
            place = _ModulePlace(item, tuple(m.training for m in item.modules()), len(arrays), tuple(own))
            for path, array in own.items():
                add(np.asarray(array), f"{name}.{path}")
            return place
        if isinstance(item, Mapping):
            return "dict", tuple((key, walk(part, f"{name}.{key}")) for key, part in item.items())
        if isinstance(item, tuple | list) and not _is_numbers(item):
            kind = "list" if isinstance(item, list) else "tuple"
            return kind, tuple(walk(part, f"{name}.{n}") for n, part in enumerate(item))
        return add(as_array(item), name)

    structure = tuple(walk(item, name) for item, name in zip(args, names, strict=True))
    return Arguments(tuple(arrays), tuple(labels), structure)


def put_back(structure: Any, tensors: Sequence[Any]) -> list[Any]:
    """Arguments arranged as they were, with `tensors` in the place of arrays."""

    def build(place: Any) -> Any:
        if isinstance(place, int):
            return tensors[place]
        if isinstance(place, _ModulePlace):
            named = {name: tensors[place.first + n] for n, name in enumerate(place.names)}
            return place.module.with_arrays(lambda name, _: named[name])
        kind, parts = place
        if kind == "dict":
            return {key: build(part) for key, part in parts}
        return [build(part) for part in parts] if kind == "list" else tuple(build(part) for part in parts)

    return [build(place) for place in structure]


def is_flat(structure: Any) -> bool:
    """Whether each argument is one array."""
    return structure == tuple(range(len(structure)))


def arranged(function: Callable[..., Any], structure: Any) -> Callable[..., Any]:
    """The function with one argument per array."""

    def call(*tensors: Any) -> Any:
        return function(*put_back(structure, tensors))

    call.__name__ = getattr(function, "__name__", "function")
    return call


def as_array(value: Any) -> np.ndarray:
    """NumPy's array of a value; Python floats are f32, as everywhere in the language."""
    array = np.asarray(value)
    if array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        return array.astype(np.float32)
    return array


def _is_numbers(item: Any) -> bool:
    """A (nested) list of at least one Python number and nothing else."""
    if isinstance(item, tuple | list):
        return bool(item) and all(_is_numbers(part) for part in item)
    return isinstance(item, bool | int | float)
