"""Reading ONNX files: bytes to a model, tensors to arrays, external data mapped from disk.

A model is never trusted: sizes are checked before memory is reserved, external files are read only inside the
model's own folder, and what cannot be read is a ProblemError.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from ingot.compiler.ir.types import MOST_AXES
from ingot.frontends.onnx.elements import STRING, Element, element
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import domain_name

MAXIMUM_BYTES = 1 << 47
MAXIMUM_SPARSE_BYTES = 1 << 33  # of what a sparse tensor stands for: few bytes of a file may ask for many
UNKNOWN_EXTENT = -1  # some exporters write it where the format wants no number at all
FunctionKey = tuple[str, str, str]  # domain, name, overload


@dataclass(frozen=True)
class Model:
    """A model file: the message and the folder that its external data may be in."""

    proto: ModelProto
    folder: Path | None = None
    name: str = ""

    @property
    def graph(self) -> GraphProto:
        return self.proto.graph

    @cached_property
    def opsets(self) -> dict[str, int]:
        return opset_versions(self.proto)

    @cached_property
    def functions(self) -> dict[FunctionKey, FunctionProto]:
        return {(domain_name(f.domain), f.name, f.overload): f for f in self.proto.functions}

    @cached_property
    def declared_ranks(self) -> dict[str, int]:
        """Of the values between nodes and of outputs, as far as the file declares them."""
        values = (*self.graph.value_info, *self.graph.output)
        return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}

    @cached_property
    def string_inputs(self) -> frozenset[str]:
        """Inputs that only the host understands, whatever their shape."""
        return frozenset(i.name for i in self.graph.input if i.type.tensor_type.elem_type == TensorProto.STRING)

    def array(self, tensor: TensorProto) -> np.ndarray:
        return array_of(tensor, self.folder)

    def initializers(self, graph: GraphProto) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
        """The name of each initializer of one of the model's graphs, and what reads it."""
        for tensor in graph.initializer:
            yield tensor.name, partial(array_of, tensor, self.folder)
        for sparse in graph.sparse_initializer:
            yield sparse.values.name, partial(dense_of, sparse, self.folder)


def opset_versions(message: Any) -> dict[str, int]:
    """Domain -> version, of a model or a function."""
    return {domain_name(entry.domain): int(entry.version) for entry in message.opset_import}


def read_model(source: object) -> Model:
    """A path, the bytes of a file, or a ModelProto."""
    if isinstance(source, ModelProto):
        return Model(source, None, source.graph.name)
    if isinstance(source, bytes | bytearray | memoryview):
        return Model(_parse(bytes(source)), None)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ProblemError(Kind.UNREADABLE, f"{path}: {error.strerror or error}") from None
        return Model(_parse(data), path.resolve().parent, path.name)
    raise TypeError(f"load_onnx takes a path, bytes or a ModelProto, not {type(source).__name__}")


def _parse(data: bytes) -> ModelProto:
    try:
        model = ModelProto.FromString(data)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise ProblemError(
            Kind.UNREADABLE,
            f"{len(data)} bytes do not parse as an ONNX model ({error})",
            "the file is truncated or corrupt, or its subgraphs are nested deeper than 100 levels",
        ) from None
    if not model.HasField("graph"):
        raise ProblemError(Kind.UNREADABLE, "the file holds no graph")
    return model


# --- tensors --------------------------------------------------------------------------------------


def element_of_tensor(tensor: TensorProto) -> Element:
    found = element(tensor.data_type)
    if found is None:
        raise ProblemError(Kind.BAD_TENSOR, f"tensor {tensor.name!r} has the unknown element type {tensor.data_type}")
    return found


def _checked_shape(dims: Iterable[int], itemsize: int, name: str, most_bytes: int = MAXIMUM_BYTES) -> tuple[int, ...]:
    """The shape of a tensor, or of what a sparse one stands for."""
    shape = tuple(dims)
    if any(d < 0 for d in shape):
        raise ProblemError(Kind.BAD_TENSOR, f"{name} has negative dims: {list(shape)}")
    if len(shape) > MOST_AXES:
        raise ProblemError(Kind.TOO_LARGE, f"{name} has {len(shape)} axes")
    spanned = itemsize * math.prod(filter(None, shape))  # NumPy limits extents also where there are no elements
    if itemsize * math.prod(shape) > most_bytes or spanned > sys.maxsize:
        raise ProblemError(Kind.TOO_LARGE, f"{name} has the shape {list(shape)}")
    return shape


def shape_of_tensor(tensor: TensorProto) -> tuple[int, ...]:
    return _checked_shape(tensor.dims, max(1, element_of_tensor(tensor).numpy.itemsize), f"tensor {tensor.name!r}")


def array_of(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """The array of a tensor; its external data is mapped, not read."""
    kind, shape = element_of_tensor(tensor), shape_of_tensor(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, kind, shape, folder)
    size = math.prod(shape)
    if tensor.HasField("raw_data"):
        return _from_raw(tensor, kind, shape, tensor.raw_data)
    if kind is STRING:
        _check_count(tensor, len(tensor.string_data), size)
        strings = [s.decode("utf-8", "replace") for s in tensor.string_data]
        return np.array(strings, object).reshape(shape)
    return _from_fields(tensor, kind, shape)


def _check_count(tensor: TensorProto, found: int, expected: int) -> None:
    if found != expected:
        raise ProblemError(
            Kind.BAD_TENSOR, f"tensor {tensor.name!r} has {found} elements, its shape {list(tensor.dims)} wants {expected}"
        )


def _packed_bytes(kind: Element, size: int) -> int:
    return (size * kind.bits + 7) // 8 if kind.bits else size * kind.numpy.itemsize


def _from_raw(tensor: TensorProto, kind: Element, shape: tuple[int, ...], data: Any) -> np.ndarray:
    size = math.prod(shape)
    expected = _packed_bytes(kind, size)
    if kind is STRING or len(data) != expected:
        raise ProblemError(
            Kind.BAD_TENSOR,
            f"tensor {tensor.name!r} of type {kind} and shape {list(shape)} wants {expected} bytes, it has {len(data)}",
        )
    if kind.bits in (2, 4):
        return _unpack(np.frombuffer(data, np.uint8), kind, size).reshape(shape)
    little = kind.numpy.newbyteorder("<") if kind.numpy.isbuiltin == 1 else kind.numpy
    return np.frombuffer(data, little).astype(kind.numpy, copy=False).reshape(shape)


def _unpack(data: np.ndarray, kind: Element, size: int) -> np.ndarray:
    """4- and 2-bit elements, the first in the low bits."""
    steps = 8 // kind.bits
    shifts = np.arange(steps, dtype=np.uint8) * kind.bits
    codes = ((data[:, None] >> shifts) & ((1 << kind.bits) - 1)).reshape(-1)[:size].astype(np.uint8)
    return codes.view(kind.numpy)


_FIELDS = {"FLOAT": "float_data", "DOUBLE": "double_data", "INT64": "int64_data", "UINT32": "uint64_data", "UINT64": "uint64_data"}


def _from_fields(tensor: TensorProto, kind: Element, shape: tuple[int, ...]) -> np.ndarray:
    """Elements in the typed fields of the message; narrow types travel in int32_data."""
    size = math.prod(shape)
    if kind.name.startswith("COMPLEX"):
        parts = np.array(tensor.float_data if kind.name == "COMPLEX64" else tensor.double_data)
        _check_count(tensor, len(parts), 2 * size)
        return (parts[0::2] + 1j * parts[1::2]).astype(kind.numpy).reshape(shape)
    values = getattr(tensor, _FIELDS.get(kind.name, "int32_data"))
    if kind.bits in (2, 4):
        data = np.array(values, np.int64).astype(np.uint8)
        _check_count(tensor, len(data), _packed_bytes(kind, size))
        return _unpack(data, kind, size).reshape(shape)
    _check_count(tensor, len(values), size)
    if kind.name in _FIELDS:
        return np.array(values, kind.numpy).reshape(shape)
    wide = np.array(values, np.int32)
    if kind.numpy.kind in "iub":
        return wide.astype(kind.numpy).reshape(shape)
    unsigned = np.uint16 if kind.numpy.itemsize == 2 else np.uint8
    return wide.astype(unsigned).view(kind.numpy).reshape(shape)


def _external(tensor: TensorProto, kind: Element, shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    path = _inside(folder, location, tensor.name)
    expected = _packed_bytes(kind, math.prod(shape))
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or expected)
    except ValueError:
        raise ProblemError(Kind.EXTERNAL_DATA, f"tensor {tensor.name!r}: offset or length is not a number") from None
    available = path.stat().st_size
    if offset < 0 or length != expected or offset + length > available:
        raise ProblemError(
            Kind.EXTERNAL_DATA,
            f"tensor {tensor.name!r} of type {kind} and shape {list(shape)} wants {expected} bytes at {offset} of "
            f"{location!r} (declared {length}), which has {available}",
        )
    if not length:
        return np.empty(shape, kind.numpy)
    try:
        data = np.memmap(path, np.uint8, "c", offset, (length,)).view(np.ndarray)
    except OSError as error:  # it may not be read, or is larger than the room for it
        raise ProblemError(Kind.EXTERNAL_DATA, f"tensor {tensor.name!r}: {location!r}: {error}") from None
    return _from_raw(tensor, kind, shape, data)


def _inside(folder: Path | None, location: str, name: str) -> Path:
    """The file of external data, when it lies inside the model's folder also after links are followed."""
    if folder is None:
        raise ProblemError(
            Kind.EXTERNAL_DATA, f"tensor {name!r} is in the file {location!r}, but the model was not read from a path"
        )
    given = Path(location)
    if not location or given.is_absolute() or ".." in given.parts or "\\" in location:
        raise ProblemError(Kind.EXTERNAL_DATA, f"tensor {name!r}: {location!r} is not a path inside the model's folder")
    try:
        path = (folder / given).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # a ValueError where a name has a NUL
        raise ProblemError(Kind.EXTERNAL_DATA, f"tensor {name!r}: {location!r}: {error}") from None
    if folder.resolve() not in path.parents or not path.is_file():
        raise ProblemError(Kind.EXTERNAL_DATA, f"tensor {name!r}: {location!r} is not a file inside the model's folder")
    return path


def dense_of(sparse: SparseTensorProto, folder: Path | None) -> np.ndarray:
    """A sparse tensor as an array."""
    name = f"sparse tensor {sparse.values.name!r}"
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    shape = _checked_shape(sparse.dims, values.dtype.itemsize, name, MAXIMUM_SPARSE_BYTES)
    if values.ndim != 1 or indices.shape not in ((values.size,), (values.size, len(shape))):
        fitting = f"indices of the shape {list(indices.shape)} for values of the shape {list(values.shape)}"
        raise ProblemError(Kind.BAD_TENSOR, f"{name} of {len(shape)} axes has {fitting}")
    if indices.dtype.kind not in "iu":
        raise ProblemError(Kind.BAD_TENSOR, f"{name} has indices of the type {indices.dtype}")
    extents = np.array(shape if indices.ndim == 2 else math.prod(shape))
    if ((indices < 0) | (indices >= extents)).any():
        raise ProblemError(Kind.BAD_TENSOR, f"{name} of the shape {list(shape)} has indices outside of it")
    steps = np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)
    flat = indices if indices.ndim == 1 else indices.astype(np.int64) @ steps
    if (flat[1:] <= flat[:-1]).any():
        raise ProblemError(Kind.BAD_TENSOR, f"{name} has indices that do not ascend")
    try:
        result = np.full(shape, "", object) if values.dtype == object else np.zeros(shape, values.dtype)
    except MemoryError:
        raise ProblemError(Kind.TOO_LARGE, f"{name} has the shape {list(shape)}, which there is no memory for") from None
    result.reshape(-1)[flat] = values
    return result


# --- walking --------------------------------------------------------------------------------------


def defined_names(graph: GraphProto) -> set[str]:
    """Names of the values that a graph defines."""
    given = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    given |= {s.values.name for s in graph.sparse_initializer}
    return given | {name for node in graph.node for name in node.output}


def subgraphs(node: NodeProto) -> list[GraphProto]:
    found: list[GraphProto] = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def node_label(node: NodeProto, number: int | None = None) -> str:
    """How a node is called in messages."""
    if node.name:
        return f"{node.name} ({node.op_type})"
    made = next((name for name in node.output if name), "")
    return f"{node.op_type} -> {made}" if made else f"{node.op_type} number {number}"
