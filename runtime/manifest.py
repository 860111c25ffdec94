"""What a program's file says about the code beside it: tensors, dims, failure sites, kernels, report.

A manifest is written once by the compiler and is plain JSON in the file.  `Manifest.from_json` checks the
type and range of everything it reads, so the rest of the runtime can rely on it.

A shape is a list of extents; an extent is an integer, the name of a symbolic dim, or an expression of such
names.  Only bare names are interpreted here: they bind dims from the arguments of a call.  Expressions are
for people; the program itself computes them (`ingot_shapes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ingot.runtime.abi import FORMAT_VERSION
from ingot.runtime.dtypes import DTYPES
from ingot.runtime.errors import ProgramFormatError, ProgramVersionError

Extent = int | str
T = TypeVar("T")

MAXIMUM_RANK = 32
MAXIMUM_EXTENT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name and type of an input, state, constant or output."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]

    @property
    def numpy_dtype(self) -> np.dtype:
        return DTYPES[self.dtype]

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when it has no symbolic dims."""
        shape: Any = self.shape
        for extent in shape:
            if isinstance(extent, str):
                return None
        return shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class DimSpec:
    """A symbolic dim and the values it may take; `upper` None = no bound."""

    name: str
    lower: int = 0
    upper: int | None = None

    def __str__(self) -> str:
        return f"{self.lower} <= {self.name}" + ("" if self.upper is None else f" <= {self.upper}")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What the code needs: LLVM triple, and the processor features it uses."""

    triple: str
    cpu: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    target: TargetSpec
    inputs: tuple[TensorSpec, ...] = ()
    states: tuple[TensorSpec, ...] = ()
    constants: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dims: tuple[DimSpec, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)  # output -> state it updates in place
    sites: tuple[str, ...] = ()  # where failures can happen, for people
    kernels: tuple[str, ...] = ()  # in the order of the times of `ingot_entry_profile`
    report: Mapping[str, Any] = field(default_factory=dict)  # see runtime/report.py
    parallel: bool = True  # whether any kernel uses the thread pool

    def __post_init__(self) -> None:
        _check_names(self)
        _check_dims(self)
        _check_aliases(self)

    def to_json(self) -> str:
        """JSON text; the same manifest always gives the same text."""
        fields = {**asdict(replace(self, report={})), "report": dict(self.report)}
        return json.dumps({"format": FORMAT_VERSION, **fields}, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise _damaged("it is not JSON") from None
        return _manifest(data)


def _manifest(data: Any) -> Manifest:
    source = _Fields("manifest", data)
    version = source.get("format", int)
    if version != FORMAT_VERSION:
        raise version_error(version)
    target = _Fields("target", source.get("target", dict))
    return Manifest(
        target=TargetSpec(
            triple=target.get("triple", str),
            cpu=target.get("cpu", str),
            features=target.strings("features"),
        ),
        inputs=_tensors(source, "inputs"),
        states=_tensors(source, "states"),
        constants=_tensors(source, "constants"),
        outputs=_tensors(source, "outputs"),
        dims=tuple(_dim(item) for item in source.get("dims", list)),
        aliases=source.string_map("aliases"),
        sites=source.strings("sites"),
        kernels=source.strings("kernels"),
        report=source.get("report", dict),
        parallel=source.get("parallel", bool),
    )


def version_error(version: int) -> ProgramVersionError:
    """The program's format is not this runtime's."""
    action = "install a newer Ingot" if version > FORMAT_VERSION else "compile the program again"
    return ProgramVersionError(
        f"this program has format version {version}, this runtime reads version {FORMAT_VERSION}; {action}"
    )


class _Fields:
    """Typed access to one JSON object."""

    def __init__(self, what: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise _damaged(f"its {what} is no JSON object")
        self.what = what
        self.data = data

    def get(self, name: str, kind: type[T]) -> T:
        value = self.data.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _damaged(f"{name!r} of its {self.what} is missing or no {kind.__name__}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise _damaged(f"{name!r} of its {self.what} must hold text only")
        return tuple(values)

    def string_map(self, name: str) -> dict[str, str]:
        values = self.get(name, dict)
        if not all(isinstance(value, str) for value in values.values()):
            raise _damaged(f"{name!r} of its {self.what} must hold text only")
        return values


def _tensors(source: _Fields, name: str) -> tuple[TensorSpec, ...]:
    return tuple(_tensor(item) for item in source.get(name, list))


def _tensor(data: Any) -> TensorSpec:
    source = _Fields("tensor", data)
    name, dtype, shape = source.get("name", str), source.get("dtype", str), source.get("shape", list)
    if dtype not in DTYPES:
        raise _damaged(f"tensor {name!r} has unknown dtype {dtype!r}")
    if len(shape) > MAXIMUM_RANK or not all(_is_extent(extent) for extent in shape):
        raise _damaged(f"tensor {name!r} has an impossible shape")
    return TensorSpec(name, dtype, tuple(shape))


def _is_extent(extent: Any) -> bool:
    if isinstance(extent, str):
        return bool(extent)
    return isinstance(extent, int) and not isinstance(extent, bool) and 0 <= extent <= MAXIMUM_EXTENT


def _dim(data: Any) -> DimSpec:
    source = _Fields("dim", data)
    name, lower = source.get("name", str), source.get("lower", int)
    upper = source.get("upper", int) if source.data.get("upper") is not None else None
    if not 0 <= lower <= MAXIMUM_EXTENT or (upper is not None and not lower <= upper <= MAXIMUM_EXTENT):
        raise _damaged(f"dim {name!r} has impossible bounds")
    return DimSpec(name, lower, upper)


def _check_names(manifest: Manifest) -> None:
    for what in ("inputs", "states", "constants", "outputs", "dims"):
        names = [item.name for item in getattr(manifest, what)]
        if len(set(names)) != len(names):
            raise _damaged(f"two of its {what} have the same name")


def _check_dims(manifest: Manifest) -> None:
    bindable = {extent for tensor in (*manifest.inputs, *manifest.states) for extent in tensor.shape}
    for dim in manifest.dims:
        if dim.name not in bindable:
            raise _damaged(f"no input or state has an axis of extent {dim.name!r}, so nothing determines it")
    _require(manifest.constants, lambda tensor: tensor.static_shape is not None, "is a constant with symbolic dims")
    if not manifest.dims:
        tensors = (*manifest.inputs, *manifest.states, *manifest.outputs)
        _require(tensors, lambda tensor: tensor.static_shape is not None, "has symbolic dims that are not declared")


def _require(tensors: Iterable[TensorSpec], holds: Callable[[TensorSpec], bool], what: str) -> None:
    for tensor in tensors:
        if not holds(tensor):
            raise _damaged(f"tensor {tensor.name!r} {what}")


def _check_aliases(manifest: Manifest) -> None:
    states = {state.name: state for state in manifest.states}
    outputs = {output.name: output for output in manifest.outputs}
    for output, state in manifest.aliases.items():
        if output not in outputs or state not in states:
            raise _damaged(f"alias {output!r} -> {state!r} names what does not exist")
        if (outputs[output].dtype, outputs[output].shape) != (states[state].dtype, states[state].shape):
            raise _damaged(f"output {output!r} cannot update state {state!r}: their types differ")
    if len(set(manifest.aliases.values())) != len(manifest.aliases):
        raise _damaged("two outputs update the same state")


def _damaged(why: str) -> ProgramFormatError:
    return ProgramFormatError(f"the program's manifest is damaged: {why}; compile the program again")
