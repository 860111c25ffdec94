"""Images: a damaged one is refused with a clear error, never loaded, never a crash."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ingot.runtime.errors import ImageLoadError, IngotRuntimeError, ProgramFormatError, TargetMismatchError
from ingot.runtime.image import Fixup, Function, Image, Import, Protection, Segment
from ingot.runtime.loader import LoadedImage, host_machine
from tests.runtime.native import image_of

CODE = """
declare ptr @memcpy(ptr, ptr, i64)
@table = constant [2 x ptr] [ptr @first, ptr @memcpy]
@counter = global i64 0
define i64 @first() { ret i64 1 }
define ptr @second(ptr %a, ptr %b) { %r = call ptr @memcpy(ptr %a, ptr %b, i64 100)
ret ptr %r }
"""


@pytest.fixture(scope="module")
def image() -> Image:
    return image_of(CODE, exports=("first", "second", "table", "counter"))


def code_segment(size: int = 100) -> Segment:
    return Segment(Protection.EXECUTE, 0, size, bytes(size))


def data_segment(size: int = 100) -> Segment:
    return Segment(Protection.WRITE, 65536, size, bytes(size))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixups": (Fixup(0, 0),)}, "fixup at 0x0 lies outside its data"),
        ({"fixups": (Fixup(65536 + 93, 0),)}, "fixup at 0x1005d lies outside its data"),
        ({"fixups": (Fixup(65536, 1 << 40),)}, "fixup at 0x10000 lies outside its data"),
        ({"imports": (Import(8, "memcpy"),)}, "slot of imported function 'memcpy' lies outside"),
        ({"imports": (Import(65536, "system"),)}, "imports 'system', which programs may not call"),
        ({"exports": {"f": 5000}}, "exported name 'f' lies outside"),
        ({"functions": (Function("f", 90, 11),)}, "function 'f' lies outside its code"),
        ({"segments": (code_segment(), replace(data_segment(), address=64))}, "overlap, or are not page"),
        ({"segments": (data_segment(), code_segment())}, "overlap, or are not page"),
        ({"segments": (replace(code_segment(), memory_bytes=99),)}, "shorter than their contents"),
        ({"segments": (replace(code_segment(), memory_bytes=1 << 33),)}, "more than 2147483648 bytes"),
    ],
)
def test_what_lies_outside_is_refused(changes: dict, message: str) -> None:
    good = Image(host_machine(), (code_segment(), data_segment()))
    assert Image.from_bytes(good.to_bytes()) == good
    bad = replace(good, **changes)
    with pytest.raises(ProgramFormatError, match=message):
        Image.from_bytes(bad.to_bytes())
    with pytest.raises(ProgramFormatError, match=message):
        LoadedImage(bad)


def test_every_truncation_is_refused(image: Image) -> None:
    data = image.to_bytes()
    for length in range(0, len(data), 13):
        with pytest.raises(ProgramFormatError):
            Image.from_bytes(data[:length])
    with pytest.raises(ProgramFormatError, match="longer than its tables say"):
        Image.from_bytes(data + b"x")


def test_random_damage_never_crashes(image: Image) -> None:
    """Tables are mutated at random; what is still accepted must also load."""
    data = image.to_bytes()
    tables = len(data) - sum(len(segment.contents) for segment in image.segments)
    generator = random.Random(1)
    refused = 0
    for _ in range(500):
        mutated = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            mutated[generator.randrange(tables)] = generator.choice(
                [0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)]
            )
        try:
            LoadedImage(Image.from_bytes(bytes(mutated)))
        except IngotRuntimeError:
            refused += 1
    assert refused > 300


def test_another_machine_is_refused(image: Image) -> None:
    other = "aarch64" if host_machine() == "x86_64" else "x86_64"
    foreign = Image(other, (replace(code_segment(), address=0),))
    with pytest.raises(TargetMismatchError, match=f"holds code for linux on {other}"):
        LoadedImage(foreign)


def test_a_missing_export_is_named(image: Image) -> None:
    with pytest.raises(ImageLoadError, match="exports no 'third'"):
        LoadedImage(image).address("third")


def test_pages_have_their_protection_and_go_away_with_the_image(image: Image) -> None:
    def protections(base: int) -> list[str]:
        with open("/proc/self/maps", encoding="ascii") as lines:
            return [
                line.split()[1]
                for line in lines
                if base <= int(line.split("-")[0], 16) < base + image.memory_bytes
            ]

    loaded = LoadedImage(image)
    base = loaded.base
    found = protections(base)
    assert found[0] == "r-xp"
    assert "r--p" in found
    assert not any("w" in protection and "x" in protection for protection in found)
    del loaded
    assert "r-xp" not in protections(base)


def test_a_pinned_image_stays(image: Image) -> None:
    loaded = LoadedImage(image)
    loaded.pin()
    base = loaded.base
    del loaded
    with open("/proc/self/maps", encoding="ascii") as lines:
        assert any(line.startswith(f"{base:x}-") for line in lines)
