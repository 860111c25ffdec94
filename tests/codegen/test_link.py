"""The linker: symbols across objects, every kind of section, imports, and what it must refuse."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.compiler.codegen.elf import LinkError
from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.parallel import emit_objects
from ingot.compiler.codegen.relocate import X86_64
from ingot.runtime.errors import ProgramFormatError
from ingot.runtime.image import PAGE_BYTES, Image, Protection
from ingot.runtime.loader import LoadedImage
from tests.runtime.native import HOST, function, image_of

ARM = "aarch64-unknown-linux-gnu"
INTEL = "x86_64-unknown-linux-gnu"
ROOT = Path(__file__).resolve().parents[2]

TABLES = """
@weights = constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
@counter = global i64 5
@zeros = global [100 x i64] zeroinitializer
@pointers = constant [2 x ptr] [ptr @weights, ptr @scaled]
define float @scaled(i64 %i) {
  %address = getelementptr float, ptr @weights, i64 %i
  %weight = load float, ptr %address
  %result = fmul float %weight, 2.5
  ret float %result
}
"""

CODE = """
@counter = external global i64
@zeros = external global [100 x i64]
@pointers = external constant [2 x ptr]
declare float @scaled(i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define float @scaled_twice(i64 %i) {
  %once = call float @scaled(i64 %i)
  %twice = fadd float %once, %once
  ret float %twice
}
define float @through_pointers(i64 %i) {
  %slot = getelementptr [2 x ptr], ptr @pointers, i64 0, i64 1
  %target = load ptr, ptr %slot
  %result = call float %target(i64 %i)
  ret float %result
}
define i64 @count(i64 %step) {
  %old = load i64, ptr @counter
  %new = add i64 %old, %step
  store i64 %new, ptr @counter
  ret i64 %new
}
define i64 @zero_sum(i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %sum = phi i64 [0, %entry], [%more, %loop]
  %address = getelementptr i64, ptr @zeros, i64 %i
  %value = load volatile i64, ptr %address
  %more = add i64 %sum, %value
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, %n
  br i1 %again, label %loop, label %done
done:
  ret i64 %more
}
define i64 @jump(i64 %x) {
  switch i64 %x, label %other [i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %e]
a:
  %ca = call i64 @count(i64 1)
  ret i64 %ca
b:
  %cb = call i64 @count(i64 10)
  ret i64 %cb
c:
  ret i64 17
d:
  %cd = call i64 @count(i64 100)
  ret i64 %cd
e:
  ret i64 23
other:
  ret i64 -1
}
define void @copy(ptr %to, ptr %from, i64 %bytes) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret void
}
define void @by_eight(ptr %p) {
  %v = load <8 x float>, ptr %p, align 4 %w = fmul <8 x float> %v, <float 1.0, float 2.0, float 3.0, float
  4.0, float 5.0, float 6.0, float 7.0, float 8.0> store <8 x float> %w, ptr %p, align 4 ret void
}
"""
NAMES = ("scaled_twice", "through_pointers", "count", "zero_sum", "jump", "copy", "by_eight", "weights")

# Runs in this process and, as text, in a fresh one: whatever the image computes must not depend on the
# compiler.
CHECKS = """
def run_checks(loaded, function):
    import ctypes
    i64, f32, ptr = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    assert function(loaded, "scaled_twice", f32, i64)(2) == 15.0
    assert function(loaded, "through_pointers", f32, i64)(3) == 10.0
    count = function(loaded, "count", i64, i64)
    assert [count(1), count(2)] == [6, 8]
    assert function(loaded, "zero_sum", i64, i64)(100) == 0
    jump = function(loaded, "jump", i64, i64)
    assert [jump(i) for i in (0, 1, 2, 3, 4, 5)] == [9, 19, 17, 119, 23, -1]
    source, target = ctypes.create_string_buffer(b"x" * 5000), ctypes.create_string_buffer(5001)
    function(loaded, "copy", None, ptr, ptr, i64)(ctypes.addressof(target), ctypes.addressof(source), 5001)
    assert target.raw == source.raw
    values = (f32 * 8)(*[1.0] * 8)
    function(loaded, "by_eight", None, ptr)(ctypes.addressof(values))
    assert list(values) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (f32 * 4).from_address(loaded.address("weights"))[:] == [1, 2, 3, 4]
"""


@pytest.fixture(scope="module")
def image() -> Image:
    return image_of(CODE, TABLES, exports=NAMES)


def test_two_objects_run_in_this_process(image: Image) -> None:
    scope: dict = {}
    exec(CHECKS, scope)
    scope["run_checks"](LoadedImage(image), function)


def test_saved_image_runs_in_a_process_without_llvm(image: Image, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(image.to_bytes())
    script = f"""
import ctypes, sys
sys.path.insert(0, {str(ROOT)!r})
from ingot.runtime.image import Image
from ingot.runtime.loader import LoadedImage
{CHECKS}
def function(loaded, name, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(loaded.address(name))
loaded = LoadedImage(Image.from_bytes(open({str(path)!r}, "rb").read()))
run_checks(loaded, function)
assert not [name for name in sys.modules if name.split(".")[0] in ("llvmlite", "onnx", "numpy")]
assert not [name for name in sys.modules if name.startswith("ingot.compiler")]
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr


def test_objects_in_any_order_link_to_the_same_behaviour() -> None:
    loaded = LoadedImage(image_of(TABLES, CODE, exports=NAMES))
    assert function(loaded, "scaled_twice", ctypes.c_float, ctypes.c_int64)(1) == 10.0


def test_serialised_image_reads_back_equal(image: Image) -> None:
    assert Image.from_bytes(image.to_bytes()) == image


def test_linking_is_deterministic() -> None:
    assert (
        image_of(CODE, TABLES, exports=NAMES).to_bytes() == image_of(CODE, TABLES, exports=NAMES).to_bytes()
    )


@pytest.mark.parametrize("triple", [INTEL, ARM])
def test_segments_are_separated_by_pages_and_code_is_never_patched(triple: str) -> None:
    image = link(emit_objects([CODE, TABLES], triple), NAMES)
    page = PAGE_BYTES[image.machine]
    assert [segment.protection for segment in image.segments] == [
        Protection.EXECUTE,
        Protection.READ,
        Protection.WRITE,
    ]
    assert all(segment.address % page == 0 for segment in image.segments)
    code = image.segments[0]
    assert all(fixup.address >= code.end for fixup in image.fixups)
    assert {slot.name for slot in image.imports} == {"memcpy"}
    assert all(slot.address >= code.end for slot in image.imports)


def test_zero_data_takes_no_bytes() -> None:
    image = image_of("@zeros = global [1000000 x i64] zeroinitializer", exports=("zeros",))
    assert image.segments[0].memory_bytes == 8_000_000
    assert len(image.to_bytes()) < 1000


def test_identical_comdat_functions_are_kept_once() -> None:
    shared = """
$shared = comdat any
define linkonce_odr i64 @shared() comdat { ret i64 42 }
"""
    first = shared + "define i64 @first() { %v = call i64 @shared() \n ret i64 %v }"
    second = shared + "define i64 @second() { %v = call i64 @shared() \n ret i64 %v }"
    image = image_of(first, second, exports=("first", "second"))
    assert [f.name for f in image.functions].count("shared") == 1
    loaded = LoadedImage(image)
    assert function(loaded, "first", ctypes.c_int64)() + function(loaded, "second", ctypes.c_int64)() == 84


def test_a_strong_definition_beats_a_weak_one() -> None:
    weak = (
        "define weak i64 @value() { ret i64 1 } \n define i64 @get() { %v = call i64 @value() \n ret i64 %v }"
    )
    strong = "define i64 @value() { ret i64 2 }"
    for modules in ((weak, strong), (strong, weak)):
        assert function(LoadedImage(image_of(*modules, exports=("get",))), "get", ctypes.c_int64)() == 2


def test_address_of_an_import_in_data() -> None:
    image = image_of(
        """
declare ptr @memset(ptr, i32, i64)
@table = constant [1 x ptr] [ptr @memset]
define void @fill(ptr %p, i64 %n) {
  %f = load volatile ptr, ptr @table
  call ptr %f(ptr %p, i32 7, i64 %n)
  ret void
}
""",
        exports=("fill",),
    )
    target = ctypes.create_string_buffer(10)
    function(LoadedImage(image), "fill", None, ctypes.c_void_p, ctypes.c_int64)(ctypes.addressof(target), 9)
    assert target.raw == b"\7" * 9 + b"\0"


# aarch64 cannot run here: decode what was patched instead.


def _adrp(word: int, place: int) -> int:
    assert word & 0x9F000000 == 0x90000000, f"{word:#x} is no adrp"
    immediate = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    return (place & ~0xFFF) + ((immediate ^ 1 << 20) - (1 << 20) << 12)


def _arm_words(image: Image, name: str) -> list[tuple[int, int]]:
    start = image.exports[name]
    size = next(f.size for f in image.functions if f.name == name)
    return [
        (start + offset, struct.unpack_from("<I", image.segments[0].contents, start + offset)[0])
        for offset in range(0, size, 4)
    ]


def _word_at(image: Image, address: int) -> int:
    segment = next(s for s in image.segments if s.address <= address < s.end)
    return struct.unpack_from("<I", segment.contents, address - segment.address)[0]


def test_aarch64_table_loads_reach_their_slot() -> None:
    image = link(emit_objects([CODE, TABLES], ARM), (*NAMES, "counter"))
    (place, adrp), (_, load) = next(
        pair
        for pair in zip(_arm_words(image, "count"), _arm_words(image, "count")[1:], strict=False)
        if pair[0][1] & 0x9F000000 == 0x90000000
    )
    assert load & 0xFFC00000 == 0xF9400000, "ldr (64-bit, unsigned offset)"
    slot = _adrp(adrp, place) + (load >> 10 & 0xFFF) * 8
    assert {fixup.address: fixup.target for fixup in image.fixups}[slot] == image.exports["counter"]


def test_aarch64_calls_reach_their_function_and_the_import_stub() -> None:
    image = link(emit_objects([CODE, TABLES], ARM), (*NAMES, "scaled"))

    def branch_targets(name: str) -> list[int]:
        words = _arm_words(image, name)
        return [
            place + ((word & 0x3FFFFFF ^ 1 << 25) - (1 << 25)) * 4
            for place, word in words
            if word & 0x7C000000 == 0x14000000
        ]

    assert branch_targets("scaled_twice") == [image.exports["scaled"]]
    (stub,) = branch_targets("copy")
    slot = _adrp(_word_at(image, stub), stub) + (_word_at(image, stub + 4) >> 10 & 0xFFF) * 8
    assert slot == image.imports[0].address
    assert _word_at(image, stub + 8) == 0xD61F0220, "br x17"


def test_aarch64_constant_pool_load_reaches_its_constant() -> None:
    vector = "<4 x float> <float 1.0, float 2.0, float 3.0, float 5.0>"
    image = link(emit_objects([f"define <4 x float> @f() {{ ret {vector} }}"], ARM), ("f",))
    (place, adrp), (_, load), *_ = _arm_words(image, "f")
    address = _adrp(adrp, place) + (load >> 10 & 0xFFF) * 16
    segment = image.segments[1]
    assert struct.unpack_from("<4f", segment.contents, address - segment.address) == (1.0, 2.0, 3.0, 5.0)


@pytest.mark.parametrize(
    ("modules", "exports", "message"),
    [
        ((), (), "nothing to link"),
        (("define void @f() { ret void }",), ("g",), "'g' is to be exported but no object defines it"),
        (("define void @f() { ret void }",) * 2, ("f",), "'f' is defined in object 0 and again in object 1"),
        (
            ("declare void @open()\ndefine void @f() { call void @open()\nret void }",),
            ("f",),
            "'open' is defined in no object and is no library function",
        ),
        (
            ("@t = thread_local global i32 3\ndefine ptr @f() { ret ptr @t }",),
            ("f",),
            "thread-local",
        ),
        (
            (
                "define void @f() { ret void }\n"
                "@llvm.global_ctors = appending global [1 x {i32, ptr, ptr}] "
                "[{i32, ptr, ptr} {i32 1, ptr @f, ptr null}]",
            ),
            ("f",),
            "constructors",
        ),
        (("@c = common global i64 0",), ("c",), "common symbol"),
    ],
)
def test_what_cannot_be_linked_is_named(
    modules: tuple[str, ...], exports: tuple[str, ...], message: str
) -> None:
    with pytest.raises(LinkError, match=message):
        image_of(*modules, exports=exports)


def test_objects_for_two_machines_are_refused() -> None:
    objects = emit_objects(["define void @f() { ret void }"], INTEL) + emit_objects(
        ["define void @g() { ret void }"], ARM
    )
    with pytest.raises(LinkError, match="different machines: aarch64, x86_64"):
        link(objects, ("f",))


def test_an_unknown_relocation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(X86_64, 1)
    with pytest.raises(LinkError, match="relocation kind 1 against 'x' in .data is not supported"):
        link(emit_objects(["@x = global i64 1\n@y = global ptr @x"], INTEL), ("y",))


def test_damaged_objects_never_crash() -> None:
    (data,) = emit_objects([CODE], HOST)
    for length in range(0, len(data), 97):
        with pytest.raises(LinkError):
            link([data[:length]], NAMES[:3])


def test_perf_map_lists_functions(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_PERF_MAP", "1")
    loaded = LoadedImage(image)
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    try:
        text = path.read_text()
    finally:
        path.unlink()
    assert f"{loaded.address('count'):x} " in text
    assert " jump\n" in text


def test_image_with_a_foreign_import_is_refused(image: Image) -> None:
    data = image.to_bytes().replace(b"memcpy", b"system")
    with pytest.raises(ProgramFormatError, match="'system', which programs may not call"):
        Image.from_bytes(data)
