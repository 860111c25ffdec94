"""Renames and hides the global symbols of relocatable objects, so that two programs can be linked into one.

All programs define the same entry points; under a prefix of its own each can stand beside others in a static
library, and as hidden symbols they are no part of a shared library's interface.

Invariant: nothing but symbol names and visibility changes; section contents stay where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ingot.compiler.codegen import elf
from ingot.compiler.codegen.elf import LinkError, read_object

_TABLE_FIELD, _COUNT_FIELD = 40, 60  # offsets in the file header: section headers start, how many there are
_SECTION_BYTES = 64
_SYMBOL_BYTES = 24
_STV_HIDDEN = 2


def defined_symbols(data: bytes) -> list[str]:
    """Names of the global symbols that an object defines."""
    return [
        symbol.name
        for symbol in read_object(data).symbols
        if symbol.binding != elf.STB_LOCAL and symbol.section != elf.SHN_UNDEF and symbol.name
    ]


def prefixed(objects: Sequence[bytes], prefix: str) -> list[bytes]:
    """The objects with every symbol that one of them defines renamed to `prefix` + its name, and hidden."""
    names = {name: prefix + name for data in objects for name in defined_symbols(data)}
    return [_renamed(data, names) for data in objects]


def _renamed(data: bytes, names: Mapping[str, str]) -> bytes:
    read_object(data)  # checks everything that is relied on below
    result = bytearray(data)
    (table,) = struct.unpack_from("<Q", data, _TABLE_FIELD)
    (count,) = struct.unpack_from("<H", data, _COUNT_FIELD)
    headers = [table + n * _SECTION_BYTES for n in range(count)]
    for header in headers:
        kind, offset, size, strings = _fields(data, header)
        if kind == elf.SHT_SYMTAB:
            _rename_table(result, range(offset, offset + size, _SYMBOL_BYTES), headers[strings], names)
    return bytes(result)


def _fields(data: bytes | bytearray, header: int) -> tuple[int, int, int, int]:
    """(kind, offset, size, linked section) of a section."""
    _, kind, _, _, offset, size, link, *_ = struct.unpack_from("<IIQQQQIIQQ", data, header)
    return kind, offset, size, link


def _rename_table(result: bytearray, rows: range, strings: int, names: Mapping[str, str]) -> None:
    """New names go behind a copy of the old string table, whose offsets other sections may use."""
    _, offset, size, _ = _fields(result, strings)
    table = bytearray(result[offset : offset + size])
    for row in rows:
        start, info, other = struct.unpack_from("<IBB", result, row)
        name = bytes(table[start : table.index(0, start)]).decode()
        if info >> 4 == elf.STB_LOCAL or name not in names:
            continue
        struct.pack_into("<IBB", result, row, len(table), info, (other & ~3) | _STV_HIDDEN)
        table += names[name].encode() + b"\0"
    if len(table) >= 1 << 32:
        raise LinkError("the names of an object need more than 4 GiB")
    result += bytes(-len(result) % 8)
    struct.pack_into("<QQ", result, strings + 24, len(result), len(table))
    result += table
