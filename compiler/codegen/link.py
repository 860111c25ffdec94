"""A small static linker: LLVM's relocatable objects in, one loadable `Image` out.

Sections are laid out in three segments on pages of their own: code (execute), constants and relocated
constants (read), variables (write).  Everything that does not depend on the load address is settled here;
what remains for the loader are whole words in data segments.  So a saved program loads without LLVM, in
milliseconds.

Invariant: the result depends on the objects and their order only.  Anything this linker does not know is an
error that names it; nothing is skipped silently but sections that no code refers to at run time (unwind
tables, notes).
Non-goals: thread-local storage, static constructors, dynamic linking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ingot.compiler.codegen import elf
from ingot.compiler.codegen.elf import LinkError, ObjectFile, Relocation, Section, Symbol, read_object
from ingot.compiler.codegen.relocate import KINDS, STUB_BYTES, Kind, Reach, relax, relaxable, stub
from ingot.runtime.abi import ALLOWED_IMPORTS
from ingot.runtime.image import PAGE_BYTES, Fixup, Function, Image, Import, Protection, Segment, check

_CODE_ALIGNMENT = 64  # an object's code does not shift against cache lines when its neighbours change
_FILLER = {
    "x86_64": b"\xcc",
    "aarch64": b"\0",
}  # traps, should control ever reach the gap between two functions
_SLOT_BYTES = 8
_UNWANTED = (".eh_frame", ".note", ".comment", ".llvm_addrsig", ".debug")
_CONSTRUCTORS = (".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors")

SectionKey = tuple[int, int]  # object index, section index


def link(objects: Sequence[bytes], exports: Sequence[str]) -> Image:
    """Link objects for one architecture; `exports` are the names that can be looked up in the result."""
    if not objects:
        raise LinkError("nothing to link")
    files = [read_object(data) for data in objects]
    machines = {file.machine for file in files}
    if len(machines) > 1:
        raise LinkError(f"objects for different machines: {', '.join(sorted(machines))}")
    return _Link(files[0].machine, files).run(exports)


@dataclass(slots=True)
class _Area:
    """A segment while it grows."""

    protection: Protection
    filler: bytes
    contents: bytearray = field(default_factory=bytearray)
    address: int = 0
    zero_bytes: int = 0  # after the contents

    def append(self, data: bytes | memoryview, alignment: int) -> int:
        """Place data, return its offset."""
        self.contents += self.filler * (-len(self.contents) % alignment)
        self.contents += data
        return len(self.contents) - len(data)

    def reserve(self, size: int, alignment: int) -> int:
        """Place zeros after all contents, return their offset."""
        end = len(self.contents) + self.zero_bytes
        start = end + -end % alignment
        self.zero_bytes = start + size - len(self.contents)
        return start

    @property
    def size(self) -> int:
        return len(self.contents) + self.zero_bytes

    def freeze(self) -> Segment:
        return Segment(self.protection, self.address, self.size, bytes(self.contents))


class _Link:
    """State of one link; `run` reads as the list of its phases."""

    def __init__(self, machine: str, files: list[ObjectFile]) -> None:
        self.machine = machine
        self.files = files
        self.kinds = KINDS[machine]
        self.code = _Area(Protection.EXECUTE, _FILLER[machine])
        self.constants = _Area(Protection.READ, b"\0")
        self.variables = _Area(Protection.WRITE, b"\0")
        self.places: dict[SectionKey, tuple[_Area, int]] = {}
        self.globals: dict[str, tuple[int, Symbol]] = {}
        self.slots: dict[str | tuple[int, int], int] = {}  # symbol -> offset of its GOT slot in `constants`
        self.stubs: dict[str, int] = {}  # imported function -> offset of its stub in `code`
        self.fixups: list[Fixup] = []
        self.imports: list[Import] = []

    def run(self, exports: Sequence[str]) -> Image:
        kept = self._keep_sections()
        self._collect_globals(kept)
        self._place_sections(kept)
        self._place_slots_and_stubs()
        self._assign_addresses()
        self._fill_slots_and_stubs()
        for key in self.places:
            for relocation in self.files[key[0]].relocations.get(key[1], ()):
                self._apply(key, relocation)
        image = Image(
            machine=self.machine,
            segments=tuple(
                area.freeze() for area in (self.code, self.constants, self.variables) if area.size
            ),
            fixups=tuple(sorted(self.fixups, key=lambda fixup: fixup.address)),
            imports=tuple(sorted(self.imports, key=lambda slot: slot.address)),
            exports={name: self._export(name) for name in exports},
            functions=tuple(self._functions()),
        )
        check(image)
        return image

    # Sections and symbols

    def _keep_sections(self) -> list[SectionKey]:
        kept: list[SectionKey] = []
        signatures: set[str] = set()
        for index, file in enumerate(self.files):
            dropped: set[int] = set()
            for group in file.groups:
                if group.signature in signatures:
                    dropped.update(group.members)
                signatures.add(group.signature)
            kept += [(index, n) for n, s in enumerate(file.sections) if n not in dropped and _is_loaded(s)]
        return kept

    def _collect_globals(self, kept: list[SectionKey]) -> None:
        present = set(kept)
        for index, file in enumerate(self.files):
            for symbol in file.symbols:
                if symbol.section == elf.SHN_COMMON:
                    raise LinkError(f"{symbol.name!r} is a common symbol; emit it with an initialiser")
                if symbol.kind == elf.STT_TLS:
                    raise LinkError(f"{symbol.name!r} is thread-local, which programs may not use")
                if symbol.binding == elf.STB_LOCAL or symbol.section == elf.SHN_UNDEF:
                    continue
                if symbol.section != elf.SHN_ABS and (index, symbol.section) not in present:
                    continue
                self._define(index, symbol)

    def _define(self, index: int, symbol: Symbol) -> None:
        previous = self.globals.get(symbol.name)
        if previous is not None and symbol.binding == elf.STB_WEAK:
            return
        if previous is not None and previous[1].binding != elf.STB_WEAK:
            raise LinkError(f"{symbol.name!r} is defined in object {previous[0]} and again in object {index}")
        self.globals[symbol.name] = (index, symbol)

    def _place_sections(self, kept: list[SectionKey]) -> None:
        for key in kept:
            section = self.files[key[0]].sections[key[1]]
            if section.kind == elf.SHT_NOBITS:
                continue
            area = self._area(section)
            alignment = max(section.alignment, _CODE_ALIGNMENT) if area is self.code else section.alignment
            self.places[key] = (area, area.append(section.contents, alignment))
        for key in kept:  # zeros last, so that they need no bytes in the image
            section = self.files[key[0]].sections[key[1]]
            if section.kind == elf.SHT_NOBITS:
                self.places[key] = (self.variables, self.variables.reserve(section.size, section.alignment))

    def _area(self, section: Section) -> _Area:
        if section.flags & elf.SHF_EXECUTE:
            return self.code
        if section.flags & elf.SHF_WRITE and not section.name.startswith(".data.rel.ro"):
            return self.variables
        return self.constants  # .data.rel.ro is written by the loader only

    # The global offset table and stubs

    def _place_slots_and_stubs(self) -> None:
        for key, relocation in self._references():
            kind = self._kind(key, relocation)
            symbol = self.files[key[0]].symbols[relocation.symbol]
            imported = self._is_import(key[0], symbol)
            if kind.reach is Reach.CALL and imported:
                self._slot(key[0], relocation.symbol)
                if symbol.name not in self.stubs:
                    self.stubs[symbol.name] = self.code.append(bytes(STUB_BYTES), STUB_BYTES)
            elif kind.reach is Reach.TABLE:
                contents = self.files[key[0]].sections[key[1]].contents
                if imported or not relaxable(self.machine, relocation.kind, contents, relocation.offset):
                    self._slot(key[0], relocation.symbol)

    def _references(self) -> Iterator[tuple[SectionKey, Relocation]]:
        for key in list(self.places):
            for relocation in self.files[key[0]].relocations.get(key[1], ()):
                yield key, relocation

    def _slot(self, index: int, symbol_index: int) -> int:
        """Offset of a symbol's GOT slot; the first request creates it."""
        symbol = self.files[index].symbols[symbol_index]
        identity = (index, symbol_index) if symbol.binding == elf.STB_LOCAL else symbol.name
        if identity not in self.slots:
            self.slots[identity] = self.constants.append(bytes(_SLOT_BYTES), _SLOT_BYTES)
        return self.slots[identity]

    def _assign_addresses(self) -> None:
        page = PAGE_BYTES[self.machine]
        address = 0
        for area in (self.code, self.constants, self.variables):
            area.address = address
            address += area.size + -area.size % page

    def _fill_slots_and_stubs(self) -> None:
        for identity, offset in self.slots.items():
            address = self.constants.address + offset
            if isinstance(identity, str) and identity not in self.globals:
                self.imports.append(Import(address, identity))
                continue
            index, symbol = (
                self.globals[identity]
                if isinstance(identity, str)
                else (identity[0], self.files[identity[0]].symbols[identity[1]])
            )
            self.fixups.append(Fixup(address, self._address(index, symbol)))
        for name, offset in self.stubs.items():
            place = self.code.address + offset
            slot = self.constants.address + self.slots[name]
            self.code.contents[offset : offset + STUB_BYTES] = stub(self.machine, place, slot)

    # Relocations

    def _apply(self, key: SectionKey, relocation: Relocation) -> None:
        area, start = self.places[key]
        kind = self._kind(key, relocation)
        index, symbol = self._resolve(key[0], self.files[key[0]].symbols[relocation.symbol])
        offset = start + relocation.offset
        place = area.address + offset
        if kind.reach is Reach.ABSOLUTE:
            self._keep_absolute(area, place, index, symbol, relocation)
            return
        if kind.reach is Reach.TABLE and not (
            index is not None and relax(self.machine, relocation.kind, area.contents, offset)
        ):
            target = self.constants.address + self._slot(key[0], relocation.symbol)
        elif index is not None:
            target = self._address(index, symbol)
        elif kind.reach is Reach.CALL:
            target = self.code.address + self.stubs[symbol.name]
        else:
            raise LinkError(f"{kind.name} refers to imported {symbol.name!r}; emit position-independent code")
        kind.patch(area.contents, offset, target + relocation.addend, place)

    def _keep_absolute(
        self, area: _Area, place: int, index: int | None, symbol: Symbol, relocation: Relocation
    ) -> None:
        if area is self.code:
            raise LinkError(f"an absolute address of {symbol.name!r} in code; emit position-independent code")
        if index is None:
            self.imports.append(Import(place, symbol.name, relocation.addend))
        else:
            self.fixups.append(Fixup(place, self._address(index, symbol) + relocation.addend))

    def _kind(self, key: SectionKey, relocation: Relocation) -> Kind:
        section = self.files[key[0]].sections[key[1]]
        kind = self.kinds.get(relocation.kind)
        if kind is None:
            symbol = self.files[key[0]].symbols[relocation.symbol]
            raise LinkError(
                f"relocation kind {relocation.kind} against {symbol.name!r} in {section.name} is not "
                "supported; emit position-independent code for the small code model"
            )
        width = 8 if kind.reach is Reach.ABSOLUTE or kind.name.endswith("64") else 4
        if relocation.offset + width > len(section.contents):
            raise LinkError(f"malformed object file: a relocation lies outside {section.name}")
        return kind

    def _is_import(self, index: int, symbol: Symbol) -> bool:
        return self._resolve(index, symbol)[0] is None

    def _resolve(self, index: int, symbol: Symbol) -> tuple[int | None, Symbol]:
        """(object, symbol) of the definition; object None when it is a library function."""
        if symbol.binding == elf.STB_LOCAL:
            return index, symbol
        found = self.globals.get(symbol.name)
        if found is not None:
            return found
        if symbol.name in ALLOWED_IMPORTS:
            return None, symbol
        raise LinkError(
            f"{symbol.name!r} is defined in no object and is no library function that programs may call"
        )

    def _address(self, index: int, symbol: Symbol) -> int:
        if symbol.section == elf.SHN_ABS:
            raise LinkError(f"{symbol.name!r} has an absolute address, which cannot be relocated")
        place = self.places.get((index, symbol.section))
        if place is None:
            section = self.files[index].sections[symbol.section]
            raise LinkError(f"{symbol.name!r} lies in section {section.name!r}, which is not loaded")
        area, start = place
        return area.address + start + symbol.value

    # The result

    def _export(self, name: str) -> int:
        if name not in self.globals:
            raise LinkError(f"{name!r} is to be exported but no object defines it")
        return self._address(*self.globals[name])

    def _functions(self) -> Iterator[Function]:
        for index, file in enumerate(self.files):
            for symbol in file.symbols:
                if symbol.kind == elf.STT_FUNC and (index, symbol.section) in self.places:
                    yield Function(symbol.name, self._address(index, symbol), symbol.size)


def _is_loaded(section: Section) -> bool:
    if not section.flags & elf.SHF_ALLOC or section.name.startswith(_UNWANTED):
        return False
    if section.flags & elf.SHF_TLS:
        raise LinkError(f"section {section.name!r} is thread-local, which programs may not use")
    if section.name.startswith(_CONSTRUCTORS):
        raise LinkError(f"section {section.name!r} holds constructors, which programs may not have")
    return section.size > 0
