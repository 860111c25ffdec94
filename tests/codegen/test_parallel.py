"""Compiling modules side by side gives the same objects as one after another."""

from __future__ import annotations

import threading

import pytest

from ingot.compiler.codegen import parallel
from ingot.compiler.codegen.elf import read_object
from ingot.compiler.codegen.parallel import PASSES, PIPELINES, EmitError, emit_objects
from tests.runtime.native import HOST


def module(name: str, blocks: int = 20) -> str:
    body = "\n".join(f"  %v{i} = fmul <8 x float> %v{i - 1}, splat (float {i}.0)" for i in range(1, blocks))
    return f"""
define <8 x float> @{name}(<8 x float> %v0) {{
{body}
  ret <8 x float> %v{blocks - 1}
}}
"""


def test_the_number_of_workers_does_not_change_the_objects() -> None:
    modules = [module(f"kernel_{i}", 10 + 30 * (i % 3)) for i in range(12)]
    alone = emit_objects(modules, HOST, workers=1)
    assert emit_objects(modules, HOST, workers=4) == alone
    for index, data in enumerate(alone):
        assert f"kernel_{index}" in {symbol.name for symbol in read_object(data).symbols}


def test_two_modules_are_in_llvm_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(2, timeout=20)
    original = parallel._LLVM.TargetMachineEmitToMemory

    def emit(*arguments):
        barrier.wait()  # broken, and so an error, unless both workers get here
        return original(*arguments)

    monkeypatch.setattr(parallel._LLVM, "TargetMachineEmitToMemory", emit)
    assert len(emit_objects([module("a"), module("b")], HOST, workers=2)) == 2


@pytest.mark.parametrize("name", [*PASSES, *PIPELINES])
def test_every_pass_runs(name: str) -> None:
    (data,) = emit_objects([module("kernel")], HOST, passes=(name,))
    assert "kernel" in {symbol.name for symbol in read_object(data).symbols}


def test_passes_and_pipelines_mix() -> None:
    emit_objects([module("kernel")], HOST, passes=("sroa", "default<O1>", "dce"))


def test_passes_change_the_code() -> None:
    dead = "define i32 @f() {\n %p = alloca i32\n store i32 7, ptr %p\n %v = load i32, ptr %p\n ret i32 %v\n}"
    without, with_passes = emit_objects([dead], HOST, passes=()), emit_objects([dead], HOST, passes=("sroa",))
    sizes = [next(s.size for s in read_object(d[0]).symbols if s.name == "f") for d in (without, with_passes)]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("define i32 @f( {", "cannot parse the module: .*expected type"),
        (
            "define i32 @f(i32 %x) {\n %y = add i32 %z, 1\n %z = add i32 %x, 1\n ret i32 %y }",
            "does not dominate",
        ),
    ],
)
def test_bad_modules_are_explained(text: str, message: str) -> None:
    with pytest.raises(EmitError, match=message):
        emit_objects([module("good"), text], HOST, workers=2)


def test_unknown_names_are_explained() -> None:
    with pytest.raises(EmitError, match="unknown pass 'magic'; known: always-inline"):
        emit_objects([module("f")], HOST, passes=("magic",))
    with pytest.raises(EmitError, match="no target 'pdp11-dec-unix'"):
        emit_objects([module("f")], "pdp11-dec-unix")


def test_nothing_to_do() -> None:
    assert emit_objects([], HOST, workers=2) == []
