"""Relocations: what each kind needs from the linker, and how it changes the bytes it points at.

One table per architecture, named as in the processor's ELF supplement.  A relocation either refers to its
symbol directly, or to the symbol's slot in the global offset table (GOT), or is a call that may go through
a stub, or is an absolute word that only the loader can fill in.  All but the last are settled here.
An image is loaded at a page-aligned address, so differences of addresses and of 4 KiB page numbers are
known now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from ingot.compiler.codegen.elf import LinkError

Patch = Callable[[bytearray, int, int, int], None]  # (code, offset, target address, place address)


class Reach(Enum):
    """How a relocation gets at its symbol."""

    DIRECT = auto()  # the symbol's own address
    CALL = auto()  # likewise, or a stub when the symbol is imported
    TABLE = auto()  # the address of the symbol's GOT slot
    ABSOLUTE = auto()  # an 8-byte word, filled in at load time


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    reach: Reach
    patch: Patch


def _fits(value: int, bits: int, what: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise LinkError(f"{what} cannot reach its target {value:+#x} bytes away; the program is too large")
    return value


def _relative(format_code: str) -> Patch:
    bits = 8 * struct.calcsize(format_code)

    def patch(code: bytearray, offset: int, target: int, place: int) -> None:
        struct.pack_into(format_code, code, offset, _fits(target - place, bits, "a relative reference"))

    return patch


def _absolute(code: bytearray, offset: int, target: int, place: int) -> None:
    raise AssertionError("absolute words are fixups, not patches")


def _instruction(code: bytearray, offset: int, mask: int, bits: int) -> None:
    (old,) = struct.unpack_from("<I", code, offset)
    struct.pack_into("<I", code, offset, (old & ~mask & 0xFFFFFFFF) | bits)


def _address_immediate(code: bytearray, offset: int, immediate: int) -> None:
    """The 21-bit immediate of ADR and ADRP: low two bits at 29, the rest at 5."""
    value = immediate & 0x1FFFFF
    _instruction(code, offset, 0x60FFFFE0, (value & 3) << 29 | (value >> 2) << 5)


def _page_address(code: bytearray, offset: int, target: int, place: int) -> None:
    _address_immediate(code, offset, _fits((target >> 12) - (place >> 12), 21, "adrp"))


def _near_address(code: bytearray, offset: int, target: int, place: int) -> None:
    _address_immediate(code, offset, _fits(target - place, 21, "adr"))


def _low_bits(scale: int) -> Patch:
    """The 12-bit immediate at bit 10 of ADD and of loads and stores of 2**scale bytes."""

    def patch(code: bytearray, offset: int, target: int, place: int) -> None:
        low = target & 0xFFF
        if low & ((1 << scale) - 1):
            raise LinkError(f"a load or store of {1 << scale} bytes refers to a misaligned address")
        _instruction(code, offset, 0xFFF << 10, low >> scale << 10)

    return patch


def _branch(bits: int, shift: int) -> Patch:
    """A branch offset in instructions: `bits` wide, at bit `shift`."""
    mask = (1 << bits) - 1

    def patch(code: bytearray, offset: int, target: int, place: int) -> None:
        distance = _fits(target - place, bits + 2, "a branch") >> 2
        _instruction(code, offset, mask << shift, (distance & mask) << shift)

    return patch


X86_64: dict[int, Kind] = {
    1: Kind("R_X86_64_64", Reach.ABSOLUTE, _absolute),
    2: Kind("R_X86_64_PC32", Reach.DIRECT, _relative("<i")),
    4: Kind("R_X86_64_PLT32", Reach.CALL, _relative("<i")),
    9: Kind("R_X86_64_GOTPCREL", Reach.TABLE, _relative("<i")),
    24: Kind("R_X86_64_PC64", Reach.DIRECT, _relative("<q")),
    41: Kind("R_X86_64_GOTPCRELX", Reach.TABLE, _relative("<i")),
    42: Kind("R_X86_64_REX_GOTPCRELX", Reach.TABLE, _relative("<i")),
}

AARCH64: dict[int, Kind] = {
    257: Kind("R_AARCH64_ABS64", Reach.ABSOLUTE, _absolute),
    260: Kind("R_AARCH64_PREL64", Reach.DIRECT, _relative("<q")),
    261: Kind("R_AARCH64_PREL32", Reach.DIRECT, _relative("<i")),
    273: Kind("R_AARCH64_LD_PREL_LO19", Reach.DIRECT, _branch(19, 5)),
    274: Kind("R_AARCH64_ADR_PREL_LO21", Reach.DIRECT, _near_address),
    275: Kind("R_AARCH64_ADR_PREL_PG_HI21", Reach.DIRECT, _page_address),
    277: Kind("R_AARCH64_ADD_ABS_LO12_NC", Reach.DIRECT, _low_bits(0)),
    278: Kind("R_AARCH64_LDST8_ABS_LO12_NC", Reach.DIRECT, _low_bits(0)),
    279: Kind("R_AARCH64_TSTBR14", Reach.DIRECT, _branch(14, 5)),
    280: Kind("R_AARCH64_CONDBR19", Reach.DIRECT, _branch(19, 5)),
    282: Kind("R_AARCH64_JUMP26", Reach.CALL, _branch(26, 0)),
    283: Kind("R_AARCH64_CALL26", Reach.CALL, _branch(26, 0)),
    284: Kind("R_AARCH64_LDST16_ABS_LO12_NC", Reach.DIRECT, _low_bits(1)),
    285: Kind("R_AARCH64_LDST32_ABS_LO12_NC", Reach.DIRECT, _low_bits(2)),
    286: Kind("R_AARCH64_LDST64_ABS_LO12_NC", Reach.DIRECT, _low_bits(3)),
    299: Kind("R_AARCH64_LDST128_ABS_LO12_NC", Reach.DIRECT, _low_bits(4)),
    311: Kind("R_AARCH64_ADR_GOT_PAGE", Reach.TABLE, _page_address),
    312: Kind("R_AARCH64_LD64_GOT_LO12_NC", Reach.TABLE, _low_bits(3)),
}

KINDS = {"x86_64": X86_64, "aarch64": AARCH64}

_RELAXABLE = frozenset({41, 42})
_MOV, _LEA = 0x8B, 0x8D


def relaxable(machine: str, kind: int, code: bytearray | memoryview, offset: int) -> bool:
    """Whether the relocation is that of `mov symbol@GOTPCREL(%rip), reg`."""
    return machine == "x86_64" and kind in _RELAXABLE and offset >= 2 and code[offset - 2] == _MOV


def relax(machine: str, kind: int, code: bytearray, offset: int) -> bool:
    """Make such a `mov` a `lea symbol(%rip), reg`, which needs no GOT slot; False: it is something else."""
    if not relaxable(machine, kind, code, offset):
        return False
    code[offset - 2] = _LEA
    return True


STUB_BYTES = 16


def stub(machine: str, place: int, slot: int) -> bytes:
    """Code at address `place` that jumps to where the GOT slot points."""
    code = bytearray(STUB_BYTES)
    if machine == "x86_64":
        code[:] = b"\xff\x25\0\0\0\0".ljust(STUB_BYTES, b"\xcc")  # jmp *slot(%rip)
        _relative("<i")(code, 2, slot - 4, place + 2)
        return bytes(code)
    struct.pack_into("<IIII", code, 0, 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F)
    _page_address(code, 0, slot, place)  # adrp x16, slot
    _low_bits(3)(code, 4, slot, place)  # ldr x17, [x16, slot]; br x17; nop
    return bytes(code)
