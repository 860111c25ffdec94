"""Static libraries: the `ar` format with the symbol index that linkers want, so that no `ar` is needed.

Invariant: the bytes depend on the members only (no times, no owners).
"""

from __future__ import annotations

from collections.abc import Mapping

from ingot.compiler.codegen.elf import LinkError
from ingot.compiler.codegen.symbols import defined_symbols

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60
_LONGEST_NAME = 15


def archive(members: Mapping[str, bytes]) -> bytes:
    """A static library of these objects; names of at most 15 characters."""
    symbols = [(name, member) for member, data in members.items() for name in defined_symbols(data)]
    spelled = b"".join(name.encode() + b"\0" for name, _ in symbols)
    index_bytes = 4 + 4 * len(symbols) + len(spelled)
    place = len(_MAGIC) + _HEADER_BYTES + index_bytes + index_bytes % 2
    places: dict[str, int] = {}
    for name, data in members.items():
        places[name] = place
        place += _HEADER_BYTES + len(data) + len(data) % 2
    if place >= 1 << 32:
        raise LinkError("a static library of more than 4 GiB; use the shared one")
    numbers = [len(symbols), *(places[member] for _, member in symbols)]
    index = b"".join(number.to_bytes(4, "big") for number in numbers) + spelled
    return _MAGIC + _member("", index) + b"".join(_member(name, data) for name, data in members.items())


def _member(name: str, data: bytes) -> bytes:
    if len(name) > _LONGEST_NAME or "/" in name:
        raise LinkError(f"{name!r} cannot be the name of a member")
    header = f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
