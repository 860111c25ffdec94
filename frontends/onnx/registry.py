"""The converters: which function imports which ONNX op, from which version on.

    @onnx_op("Softmax", since=13)
    def softmax(op: Call, x: Tensor) -> Tensor: ...

A converter is given the node's inputs as tensors (None for one that is left out). Inputs numbered in `known` come
as NumPy arrays, those in `dims` as tuples of dims; when such a value is known only while the program runs, the
node waits for it (values.Pending). `raw` converters get values as they are. `ranks` and `least_ranks` say what a
converter takes for granted of its tensors; it is checked before. The version chosen is the highest `since` that is
not above the model's opset version.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

ONNX = ""
ML = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"
PREVIEW = "ai.onnx.preview"
MICROSOFT = "com.microsoft"

_ALIASES = {"ai.onnx": ONNX, "com.ms.internal.nhwc": MICROSOFT}


def domain_name(domain: str) -> str:
    """The one name of a domain that has several."""
    return _ALIASES.get(domain, domain)


@dataclass(frozen=True)
class Converter:
    """A function that imports one op for versions from `since` on."""

    function: Callable[..., Any]
    since: int
    known: frozenset[int] = frozenset()
    dims: frozenset[int] = frozenset()
    raw: bool = False
    moves: bool = False  # only moves elements: works on the storage of any element type
    ranks: Mapping[int, int] = field(default_factory=dict)  # of inputs that must have one
    least_ranks: Mapping[int, int] = field(default_factory=dict)  # of inputs that must have at least one

    @cached_property
    def required(self) -> tuple[int, ...]:
        """The numbers of inputs that the function cannot do without, as its signature says: not every op is described
        by ONNX."""
        after = list(inspect.signature(self.function).parameters.values())[1:]
        named = [p for p in after if p.kind is p.POSITIONAL_OR_KEYWORD]
        return tuple(n for n, p in enumerate(named) if p.default is p.empty and "None" not in str(p.annotation))


_CONVERTERS: dict[tuple[str, str], list[Converter]] = {}


def onnx_op(
    *names: str,
    since: int = 1,
    domain: str = ONNX,
    known: Iterable[int] = (),
    dims: Iterable[int] = (),
    raw: bool = False,
    moves: bool = False,
    ranks: Mapping[int, int] | None = None,
    least_ranks: Mapping[int, int] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the converter of these ops from version `since` on."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        made = Converter(function, since, frozenset(known), frozenset(dims), raw, moves, ranks or {}, least_ranks or {})
        for name in names:
            versions = _CONVERTERS.setdefault((domain, name), [])
            if any(v.since == since for v in versions):
                raise ValueError(f"two converters of {domain}:{name} since version {since}")
            versions.append(made)
            versions.sort(key=lambda v: v.since)
        return function

    return register


def converter(domain: str, name: str, version: int) -> Converter | None:
    """The converter of an op in an opset version."""
    found = None
    for candidate in _CONVERTERS.get((domain_name(domain), name), ()):
        if candidate.since <= version:
            found = candidate
    return found


def registered() -> dict[tuple[str, str], tuple[int, ...]]:
    """(domain, op) -> the versions at which its converters start."""
    return {key: tuple(v.since for v in versions) for key, versions in sorted(_CONVERTERS.items())}
