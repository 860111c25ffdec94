"""Weights: drawn once for the Ingot module, then copied to every other library.

Biases, scales and running statistics are drawn too: a zero or a one would hide a mistake in the comparison.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from ingot import nn
from ingot.frontends.dsl.module import Module

_NORMS = (nn.BatchNorm, nn.LayerNorm)
_RENAMED = {"scale": "weight", "running_variance": "running_var"}


def initialise(model: Module, seed: int = 0) -> Module:
    """Draw all parameters and buffers, each from a stream of its own name: equal models get equal weights."""
    norms = _names_of_norms(model)
    for name, array in model.named_arrays().items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        array[...] = _drawn(name, array.shape, generator, name.rpartition(".")[0] in norms)
    return model


def _drawn(name: str, shape: tuple[int, ...], generator: np.random.Generator, norm: bool) -> np.ndarray:
    last = name.rpartition(".")[2]
    if last == "running_variance" or (norm and last == "scale"):
        return generator.uniform(0.7, 1.3, shape)
    return generator.standard_normal(shape, np.float32) * np.float32(_deviation(name, shape))


def _deviation(name: str, shape: tuple[int, ...]) -> float:
    if len(shape) < 2:
        return 0.05
    if "tokens" in name or "positions" in name:
        return 0.02
    if "embedding" in name:
        return 1.0
    return 1 / math.sqrt(shape[0]) if len(shape) == 2 else math.sqrt(2 / math.prod(shape[1:]))


def _names_of_norms(model: Module) -> set[str]:
    kinds = {id(array) for m in model.modules() if isinstance(m, _NORMS) for array in vars(m).values()}
    return {name.rpartition(".")[0] for name, array in model.named_arrays().items() if id(array) in kinds}


def torch_state(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Ingot's names and layouts as torch's: dense weights are transposed, queries, keys and values joined, gates
    of an LSTM renamed (their order is the same)."""
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue  # the random stream of a dropout, which torch keeps elsewhere
        *path, last = [part for part in name.split(".") if part != "layers"]
        if "cells" in path:
            found |= _lstm(path, last, array)
            continue
        tables = {"tokens", "positions", "embedding"}
        dense = array.ndim == 2 and last == "weight" and not tables & set(path)
        found[".".join([*path, _RENAMED.get(last, last)])] = array.T if dense else array
    return {name: np.ascontiguousarray(array) for name, array in _joined(found).items()}


def _lstm(path: list[str], last: str, array: np.ndarray) -> dict[str, np.ndarray]:
    at = path.index("cells")
    prefix, layer = ".".join(path[:at]), path[at + 1]
    match last:
        case "input_weight":
            return {f"{prefix}.weight_ih_l{layer}": array.T}
        case "hidden_weight":
            return {f"{prefix}.weight_hh_l{layer}": array.T}
        case "bias":
            return {f"{prefix}.bias_ih_l{layer}": array, f"{prefix}.bias_hh_l{layer}": np.zeros_like(array)}
    raise ValueError(f"an LSTM has no {last!r}")


def _joined(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        path = name.split(".")
        if path[-2:-1] == ["query"]:
            thirds = [".".join([*path[:-2], part, path[-1]]) for part in ("query", "key", "value")]
            found[".".join([*path[:-2], "qkv", path[-1]])] = np.concatenate([arrays[third] for third in thirds])
        elif path[-2:-1] not in (["key"], ["value"]):
            found[name] = array
    return found
