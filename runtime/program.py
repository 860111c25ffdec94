"""The artefact: everything the compiler wrote about a model, and its file.

    header      fixed size: magic, version, where the parts are, checksum
    manifest    JSON (runtime/manifest.py)
    table       per array: offset, bytes, checksum
    image       machine code (runtime/image.py)
    arrays      constants, then initial values of states; each on a 64-byte boundary

Loading maps the file and reads everything but the arrays, whose pages come in when they are used; so it
takes milliseconds whatever the size of the weights.  The header's checksum covers all but the arrays; these
have their own, checked by `Program.verify`.  Offsets and sizes are checked against the file before use.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ingot.runtime.abi import ALIGNMENT, FORMAT_VERSION, REQUIRED_EXPORTS
from ingot.runtime.cpu import missing_features
from ingot.runtime.dtypes import dtype_name
from ingot.runtime.errors import ProgramFormatError, TargetMismatchError
from ingot.runtime.image import Image
from ingot.runtime.manifest import Manifest, TensorSpec, version_error
from ingot.runtime.storage import byte_view, replacing

PathLike = str | os.PathLike[str]

MAGIC = b"INGOTPRG"
_DIGEST_BYTES = 16
_HEADER = struct.Struct("<8sIIQQQQQQQ")  # magic, version, arrays, file bytes, (offset, bytes) of the three parts
_HEADER_BYTES = 128  # the header, zeros, and at its end the checksum
_ROW = struct.Struct(f"<QQ{_DIGEST_BYTES}s")


@dataclass(frozen=True)
class Program:
    """A compiled model: data only, nothing is mapped executable until an `Executable` is made of it."""

    manifest: Manifest
    image: Image
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    initial_states: Mapping[str, np.ndarray] = field(default_factory=dict)  # a state not listed starts as zeros
    checksums: tuple[bytes, ...] = ()  # of constants and initial states, when they come from a file

    def __post_init__(self) -> None:
        missing = [name for name in REQUIRED_EXPORTS if name not in self.image.exports]
        if missing:
            raise ProgramFormatError(f"the program's code exports no {missing[0]!r}; compile it again")
        if set(self.constants) != {spec.name for spec in self.manifest.constants}:
            raise ProgramFormatError("the program's constants are not those of its manifest; compile it again")
        for spec in self.manifest.constants:
            _check_array(spec, self.constants[spec.name])
        states = {spec.name: spec for spec in self.manifest.states}
        for name, array in self.initial_states.items():
            if name not in states:
                raise ProgramFormatError(f"an initial value for {name!r}, which is no state of the program")
            _check_array(states[name], array)

    def save(self, path: PathLike) -> None:
        """Write the program; whoever reads that path meanwhile sees the old file or the new one."""
        arrays = [byte_view(array) for _, array in self._arrays()]
        manifest = self.manifest.to_json().encode()
        names = json.dumps(list(self.initial_states)).encode()
        image = self.image.to_bytes()
        table_bytes = len(arrays) * _ROW.size + len(names)
        sizes = [len(manifest), table_bytes, len(image), *(array.nbytes for array in arrays)]
        places, end = _lay_out(sizes)
        rows = [
            _ROW.pack(place, array.nbytes, _digest([array])) for place, array in zip(places[3:], arrays, strict=True)
        ]
        parts = [manifest, b"".join([*rows, names]), image, *arrays]
        located = [number for pair in zip(places[:3], sizes[:3], strict=True) for number in pair]
        header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(arrays), end, *located)
        header = header.ljust(_HEADER_BYTES - _DIGEST_BYTES, b"\0")
        with replacing(Path(path)) as file:
            file.write(header + _digest([header, *parts[:3]]))
            for place, part in zip(places, parts, strict=True):
                file.seek(place)
                file.write(part)  # type: ignore[arg-type]
            file.truncate(end)  # the last part may be empty

    @staticmethod
    def load(path: PathLike, verify: bool = False) -> Program:
        """Map a program file; `verify` also reads all weights and compares their checksums."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER_BYTES:
                raise _damaged(path, "it is too short to be an Ingot program")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        program = _read(path, memoryview(data))
        if verify:
            program.verify()
        return program

    def verify(self) -> None:
        """Read every weight; `ProgramFormatError` when one is not what was saved."""
        for (name, array), expected in zip(self._arrays(), self.checksums, strict=False):
            if _digest([byte_view(array)]) != expected:
                raise ProgramFormatError(
                    f"the values of {name!r} are damaged in the program's file; copy or compile it again"
                )

    def check_target(self) -> None:
        """`TargetMismatchError` when this processor lacks instructions that the code uses."""
        target = self.manifest.target
        missing = missing_features(target.features)
        if missing:
            raise TargetMismatchError(
                f"this program was compiled for {target.cpu or target.triple} and uses instructions "
                f"that this processor lacks: {', '.join(missing)}; compile it for this machine"
            )

    def _arrays(self) -> list[tuple[str, np.ndarray]]:
        constants = [(spec.name, self.constants[spec.name]) for spec in self.manifest.constants]
        return constants + list(self.initial_states.items())


def _read(path: PathLike, data: memoryview) -> Program:
    magic, version, count, size, *places = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _damaged(path, "it is no Ingot program")
    if version != FORMAT_VERSION:
        raise version_error(version)
    if size != len(data):
        raise _damaged(path, f"it has {len(data)} bytes, it should have {size}")
    manifest_bytes, table, image_bytes = (
        _slice(path, data, offset, length) for offset, length in zip(places[::2], places[1::2], strict=True)
    )
    header = data[: _HEADER_BYTES - _DIGEST_BYTES]
    if _digest([header, manifest_bytes, table, image_bytes]) != data[len(header) : _HEADER_BYTES]:
        raise _damaged(path, "its checksum does not match its contents")
    if count * _ROW.size > len(table):
        raise _damaged(path, "its table of arrays is too short")
    manifest = Manifest.from_json(bytes(manifest_bytes))
    rows = list(_ROW.iter_unpack(table[: count * _ROW.size]))
    specs = _array_specs(path, manifest, bytes(table[count * _ROW.size :]), count)
    arrays = [
        (spec.name, _array(path, data, spec, offset, length))
        for spec, (offset, length, _) in zip(specs, rows, strict=True)
    ]
    constants = len(manifest.constants)
    return Program(
        manifest=manifest,
        image=Image.from_bytes(image_bytes),
        constants=dict(arrays[:constants]),
        initial_states=dict(arrays[constants:]),
        checksums=tuple(checksum for _, _, checksum in rows),
    )


def _array_specs(path: PathLike, manifest: Manifest, names: bytes, count: int) -> list[TensorSpec]:
    """What each row of the table is: all constants, then the states named after the table."""
    states = {spec.name: spec for spec in manifest.states}
    try:
        named = json.loads(names)
        initial = [states[name] for name in named]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, "it has an initial value for a state that does not exist") from None
    if len(set(named)) != len(named):
        raise _damaged(path, "it has two initial values for one state")
    specs = [*manifest.constants, *initial]
    if len(specs) != count:
        raise _damaged(path, f"its table lists {count} arrays, its manifest {len(specs)}")
    return specs


def _array(path: PathLike, data: memoryview, spec: TensorSpec, offset: int, length: int) -> np.ndarray:
    shape = spec.static_shape
    if shape is None or length != math.prod(shape) * spec.numpy_dtype.itemsize or offset % ALIGNMENT:
        raise _damaged(path, f"the array of {spec.name!r} has the wrong size or place")
    contents = np.frombuffer(_slice(path, data, offset, length), np.uint8)
    return contents.view(spec.numpy_dtype).reshape(shape)


def _slice(path: PathLike, data: memoryview, offset: int, length: int) -> memoryview:
    if offset > len(data) or length > len(data) - offset:
        raise _damaged(path, "a part of it lies beyond its end")
    return data[offset : offset + length]


def _check_array(spec: TensorSpec, array: np.ndarray) -> None:
    if array.shape != spec.static_shape or array.dtype != spec.numpy_dtype:
        got = f"{dtype_name(array.dtype)}{list(array.shape)}"
        raise ProgramFormatError(f"the program's array {spec.name!r} is {got}, its manifest says {spec}")


def _digest(parts: Iterable[bytes | memoryview | np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)  # type: ignore[arg-type]
    return digest.digest()


def _lay_out(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Aligned offsets for parts of these sizes after the header, and the end of the last."""
    places, end = [], _HEADER_BYTES
    for size in sizes:
        places.append(end + -end % ALIGNMENT)
        end = places[-1] + size
    return places, end


def _damaged(path: PathLike, why: str) -> ProgramFormatError:
    return ProgramFormatError(f"cannot load {os.fspath(path)!r}: {why}; copy it or compile it again")
