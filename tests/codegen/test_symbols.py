"""Objects under other names, and the static libraries made of them."""

import pytest

from ingot.compiler.codegen.archive import archive
from ingot.compiler.codegen.elf import LinkError, read_object
from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.parallel import emit_objects
from ingot.compiler.codegen.symbols import defined_symbols, prefixed
from ingot.compiler.target import Target

CALLER = """
declare i32 @callee(i32)
declare i32 @getpid()
define i32 @caller() {
  %x = call i32 @getpid()
  %y = call i32 @callee(i32 %x)
  ret i32 %y
}
"""
CALLEE = """
define internal i32 @kept(i32 %x) noinline {
  ret i32 %x
}
define i32 @callee(i32 %x) {
  %y = call i32 @kept(i32 %x)
  ret i32 %y
}
"""


@pytest.fixture(scope="module", params=["x86-64", "aarch64"])
def objects(request):
    target = Target.named(request.param)
    return emit_objects([CALLER, CALLEE], target.triple, target.cpu, target.features)


def test_definitions_and_references_are_renamed_together(objects):
    renamed = prefixed(objects, "first__")
    assert [defined_symbols(data) for data in renamed] == [["first__caller"], ["first__callee"]]
    image = link(renamed, ["first__caller", "first__callee"])
    assert {slot.name for slot in image.imports} == {"getpid"}


def test_only_names_change(objects):
    for before, after in zip(objects, prefixed(objects, "p_"), strict=True):
        first, second = read_object(before), read_object(after)
        code = [[bytes(s.contents) for s in file.sections if s.flags] for file in (first, second)]
        assert code[0] == code[1]
        assert first.relocations == second.relocations
        assert [s.name for s in first.sections] == [s.name for s in second.sections]
        local = [[s.name for s in file.symbols if s.binding == 0] for file in (first, second)]
        assert local[0] == local[1]


def test_two_programs_link_together_once_renamed(objects):
    with pytest.raises(LinkError, match="is defined in object"):
        link([*objects, *objects], ["caller"])
    both = [*prefixed(objects, "a_"), *prefixed(objects, "b_")]
    image = link(both, ["a_caller", "b_caller"])
    assert image.exports["a_caller"] != image.exports["b_caller"]


def test_an_archive_has_an_index_of_its_symbols(objects):
    members = dict(zip(("one.o", "two.o"), objects, strict=True))
    data = archive(members)
    assert data == archive(members)
    start = 8 + 60
    count = int.from_bytes(data[start : start + 4], "big")
    places = [int.from_bytes(data[start + 4 + 4 * n : start + 8 + 4 * n], "big") for n in range(count)]
    names = data[start + 4 + 4 * count :].split(b"\0")[:count]
    found = {
        name.decode(): data[place : place + 16].decode().rstrip(" /") for name, place in zip(names, places, strict=True)
    }
    assert found == {"caller": "one.o", "callee": "two.o"}
    for place, contents in zip(places, objects, strict=True):
        assert data[place + 60 : place + 60 + len(contents)] == contents


def test_long_member_names_are_refused(objects):
    with pytest.raises(LinkError, match="cannot be the name"):
        archive({"a_name_that_is_too_long.o": objects[0]})
