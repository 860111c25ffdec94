"""A linked, position-independent piece of machine code and its serialised form.

`Image` is what the linker (compiler/codegen/link.py) writes and what `LoadedImage` (runtime/loader.py)
maps: segments with separate protections, words to fix up once the base address is known, imported
functions, exported names.

Invariant: `from_bytes` accepts only images whose every address lies inside its segments; it never trusts a
number it has read.  Code is never patched at load time: fixups and imports touch data segments only, so no
page is ever both writable and executable.
Non-goal: authentication.  An image is machine code; whoever may write it may run it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ingot.runtime.abi import ALLOWED_IMPORTS
from ingot.runtime.errors import ProgramFormatError

MAGIC = b"INGOTIMG"
VERSION = 1
MAXIMUM_BYTES = 1 << 31  # reach of a 32-bit relative reference
PAGE_BYTES = {"x86_64": 4096, "aarch64": 65536}  # the largest page size a kernel of that architecture may use

_MACHINES = ("x86_64", "aarch64")
_WORD = 8
_HEADER = struct.Struct("<8sIIIIIIIIQ")  # magic, version, machine, five table lengths, unused, string bytes
_SEGMENT = struct.Struct("<QQQQ")  # protection, address, memory bytes, contents bytes
_FIXUP = struct.Struct("<QQ")  # address, target
_IMPORT = struct.Struct("<QqQQ")  # address, addend, name offset, name length
_EXPORT = struct.Struct("<QQQ")  # address, name offset, name length
_FUNCTION = struct.Struct("<QQQQ")  # address, bytes, name offset, name length


class Protection(IntEnum):
    """What a segment's pages allow once loaded."""

    EXECUTE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A page-aligned range of the image; bytes beyond `contents` are zero."""

    protection: Protection
    address: int
    memory_bytes: int
    contents: bytes

    @property
    def end(self) -> int:
        return self.address + self.memory_bytes


@dataclass(frozen=True, slots=True)
class Fixup:
    """The word at `address` becomes the run-time address of `target`."""

    address: int
    target: int


@dataclass(frozen=True, slots=True)
class Import:
    """The word at `address` becomes the address of library function `name`, plus `addend`."""

    address: int
    name: str
    addend: int = 0


@dataclass(frozen=True, slots=True)
class Function:
    """Extent of a function, for profilers."""

    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Image:
    """Addresses are offsets from the image's base."""

    machine: str
    segments: tuple[Segment, ...]
    fixups: tuple[Fixup, ...] = ()
    imports: tuple[Import, ...] = ()
    exports: Mapping[str, int] = field(default_factory=dict)
    functions: tuple[Function, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Bytes of address space, a multiple of the page size."""
        page = PAGE_BYTES[self.machine]
        return -(-max((segment.end for segment in self.segments), default=0) // page) * page

    def to_bytes(self) -> bytes:
        """The serialised image; `from_bytes` is its inverse."""
        strings = _StringTable()
        tables = [
            b"".join(_SEGMENT.pack(s.protection, s.address, s.memory_bytes, len(s.contents)) for s in self.segments),
            b"".join(_FIXUP.pack(f.address, f.target) for f in self.fixups),
            b"".join(_IMPORT.pack(i.address, i.addend, *strings.place(i.name)) for i in self.imports),
            b"".join(_EXPORT.pack(address, *strings.place(name)) for name, address in self.exports.items()),
            b"".join(_FUNCTION.pack(f.address, f.size, *strings.place(f.name)) for f in self.functions),
        ]
        header = _HEADER.pack(
            MAGIC, VERSION, _MACHINES.index(self.machine),
            len(self.segments), len(self.fixups), len(self.imports), len(self.exports), len(self.functions),
            0, len(strings.data),
        )  # fmt: skip
        return b"".join([header, *tables, strings.data, *(segment.contents for segment in self.segments)])

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> Image:
        """Read a serialised image; `ProgramFormatError` when anything in it is out of place."""
        image = _read(_Reader(memoryview(data)))
        check(image)
        return image


class _StringTable:
    def __init__(self) -> None:
        self.data = bytearray()

    def place(self, text: str) -> tuple[int, int]:
        encoded = text.encode()
        self.data += encoded
        return len(self.data) - len(encoded), len(encoded)


class _Reader:
    """Takes consecutive pieces from a buffer, never past its end."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.position:
            raise _damaged("it is shorter than its tables say")
        self.position += count
        return self.data[self.position - count : self.position]

    def table(self, row: struct.Struct, count: int) -> Iterator[tuple]:
        return row.iter_unpack(self.take(row.size * count))


def _read(reader: _Reader) -> Image:
    magic, version, machine, segments, fixups, imports, exports, functions, _, string_bytes = _HEADER.unpack(
        reader.take(_HEADER.size)
    )
    if magic != MAGIC or machine >= len(_MACHINES):
        raise _damaged("its header is not that of a code image")
    if version != VERSION:
        raise _damaged(f"its version is {version}, this runtime reads version {VERSION}")
    segment_rows = list(reader.table(_SEGMENT, segments))
    fixup_rows = reader.table(_FIXUP, fixups)
    import_rows = reader.table(_IMPORT, imports)
    export_rows = reader.table(_EXPORT, exports)
    function_rows = reader.table(_FUNCTION, functions)
    strings = reader.take(string_bytes)
    read_segments = tuple(
        Segment(_protection(kind), address, memory, bytes(reader.take(size)))
        for kind, address, memory, size in segment_rows
    )
    if reader.position != len(reader.data):
        raise _damaged("it is longer than its tables say")
    return Image(
        machine=_MACHINES[machine],
        segments=read_segments,
        fixups=tuple(Fixup(*row) for row in fixup_rows),
        imports=tuple(Import(a, _name(strings, start, size), addend) for a, addend, start, size in import_rows),
        exports={_name(strings, start, size): address for address, start, size in export_rows},
        functions=tuple(Function(_name(strings, start, size), a, extent) for a, extent, start, size in function_rows),
    )


def _protection(kind: int) -> Protection:
    if kind >= len(Protection):
        raise _damaged(f"segment protection {kind} does not exist")
    return Protection(kind)


def _name(strings: memoryview, start: int, size: int) -> str:
    if start + size > len(strings):
        raise _damaged("a name lies outside the string table")
    try:
        return str(strings[start : start + size], "utf-8")
    except UnicodeDecodeError:
        raise _damaged("a name is not UTF-8") from None


def check(image: Image) -> None:
    """Refuse an image that could make the loader touch memory outside its own mapping."""
    page = PAGE_BYTES[image.machine]
    end = 0
    for segment in image.segments:
        if segment.address % page or segment.address < end or segment.memory_bytes < len(segment.contents):
            raise _damaged("its segments overlap, or are not page aligned, or are shorter than their contents")
        if segment.end > MAXIMUM_BYTES:
            raise _damaged(f"it claims more than {MAXIMUM_BYTES} bytes")
        end = segment.end
    data = [segment for segment in image.segments if segment.protection != Protection.EXECUTE]
    code = [segment for segment in image.segments if segment.protection == Protection.EXECUTE]
    for fixup in image.fixups:
        if not _inside(fixup.address, _WORD, data) or not 0 <= fixup.target <= image.memory_bytes:
            raise _damaged(f"the fixup at {fixup.address:#x} lies outside its data segments")
    for slot in image.imports:
        if not _inside(slot.address, _WORD, data):
            raise _damaged(f"the slot of imported function {slot.name!r} lies outside its data segments")
        if slot.name not in ALLOWED_IMPORTS:
            raise _damaged(f"it imports {slot.name!r}, which programs may not call")
    for name, address in image.exports.items():
        if not _inside(address, 1, image.segments):
            raise _damaged(f"the exported name {name!r} lies outside its segments")
    for function in image.functions:
        if not _inside(function.address, function.size, code):
            raise _damaged(f"the function {function.name!r} lies outside its code")


def _inside(address: int, size: int, segments: Iterable[Segment]) -> bool:
    return any(segment.address <= address and address + size <= segment.end for segment in segments)


def _damaged(why: str) -> ProgramFormatError:
    return ProgramFormatError(f"the code image is damaged: {why}; compile the program again")
