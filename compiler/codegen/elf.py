"""Reads the ELF relocatable objects that LLVM writes: sections, symbols, relocations, COMDAT groups.

64-bit little-endian x86-64 and aarch64 only.  Objects may come from a cache, so nothing is read past its
end: every malformed object is a `LinkError`.  Non-goals: archives, shared libraries, debug information.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MACHINES = {62: "x86_64", 183: "aarch64"}

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_GROUP = 2, 4, 8, 9, 17
SHF_WRITE, SHF_ALLOC, SHF_EXECUTE, SHF_TLS = 0x1, 0x2, 0x4, 0x400
SHN_UNDEF, SHN_ABS, SHN_COMMON, SHN_XINDEX = 0, 0xFFF1, 0xFFF2, 0xFFFF
STB_LOCAL, STB_WEAK = 0, 2
STT_FUNC, STT_TLS = 2, 6

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENTITY = b"\x7fELF\x02\x01\x01"
_RELOCATABLE = 1
_GROUP_COMDAT = 1


class LinkError(Exception):
    """The objects of a program cannot be linked."""


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    kind: int
    flags: int
    size: int
    alignment: int
    contents: memoryview


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    kind: int
    binding: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Relocation:
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Group:
    """Sections kept or dropped together: of all groups with one signature a link keeps the first."""

    signature: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ObjectFile:
    machine: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: dict[int, tuple[Relocation, ...]]  # section index -> what to patch in it
    groups: tuple[Group, ...]


def read_object(data: bytes) -> ObjectFile:
    """Parse one relocatable object."""
    try:
        return _read(memoryview(data))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise LinkError(f"malformed object file: {error}") from error


def _read(data: memoryview) -> ObjectFile:
    identity, file_kind, machine, _, _, _, table, _, _, _, _, row_bytes, count, names_index = (
        _HEADER.unpack_from(data)
    )
    if not identity.startswith(_IDENTITY) or file_kind != _RELOCATABLE or machine not in MACHINES:
        raise LinkError("not a 64-bit little-endian ELF relocatable object for x86-64 or aarch64")
    if row_bytes != _SECTION.size:
        raise LinkError(f"section headers of {row_bytes} bytes, expected {_SECTION.size}")
    headers = [_SECTION.unpack_from(data, table + i * row_bytes) for i in range(count)]
    if count == 0 or names_index == SHN_XINDEX:  # extended numbering: more than 65 279 sections
        raise LinkError("too many sections in one object file")
    bodies = [_body(data, header) for header in headers]
    names = bodies[names_index]
    sections = tuple(
        Section(_string(names, h[0]), kind=h[1], flags=h[2], size=h[5], alignment=max(h[8], 1), contents=body)
        for h, body in zip(headers, bodies, strict=True)
    )
    symbols: tuple[Symbol, ...] = ()
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == SHT_SYMTAB:
            symbols = _symbols(body, bodies[header[6]], sections)
    return ObjectFile(
        machine=MACHINES[machine],
        sections=sections,
        symbols=symbols,
        relocations=_relocations(headers, bodies, len(symbols)),
        groups=_groups(headers, bodies, symbols),
    )


def _body(data: memoryview, header: tuple) -> memoryview:
    offset, size = header[4], header[5]
    if header[1] == SHT_NOBITS:
        return data[:0]
    if offset + size > len(data):
        raise LinkError("malformed object file: a section lies outside the file")
    return data[offset : offset + size]


def _string(table: memoryview, start: int) -> str:
    end = start
    while table[end]:
        end += 1
    return str(table[start:end], "utf-8")


def _symbols(body: memoryview, names: memoryview, sections: tuple[Section, ...]) -> tuple[Symbol, ...]:
    text = bytes(names)
    found = []
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(body):
        if section < SHN_ABS and section >= len(sections):
            raise LinkError("malformed object file: a symbol names a section that does not exist")
        spelled = text[name : text.index(b"\0", name)].decode()
        found.append(Symbol(spelled, info & 15, info >> 4, section, value, size))
    return tuple(found)


def _relocations(
    headers: list[tuple], bodies: list[memoryview], symbols: int
) -> dict[int, tuple[Relocation, ...]]:
    found: dict[int, tuple[Relocation, ...]] = {}
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == SHT_REL:
            raise LinkError("relocations without addends are not used on x86-64 and aarch64")
        if header[1] != SHT_RELA:
            continue
        rows = tuple(
            Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)
            for offset, info, addend in _RELOCATION.iter_unpack(body)
        )
        if header[7] >= len(headers) or any(row.symbol >= symbols for row in rows):
            raise LinkError("malformed object file: a relocation names what does not exist")
        found[header[7]] = rows
    return found


def _groups(headers: list[tuple], bodies: list[memoryview], symbols: tuple[Symbol, ...]) -> tuple[Group, ...]:
    found = []
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == SHT_GROUP:
            flags, *members = struct.unpack(f"<{len(body) // 4}I", body)
            if flags & _GROUP_COMDAT:
                found.append(Group(symbols[header[7]].name, tuple(members)))
    return tuple(found)
