"""The way in from Python: arguments that are just what a program reads are taken, all others are left to the caller."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from ingot.compiler.codegen.call import call_module
from ingot.compiler.codegen.elf import read_object
from ingot.compiler.codegen.parallel import emit_objects
from ingot.runtime.abi import CALL, UNUSUAL, Word
from ingot.runtime.loader import LoadedImage
from tests.runtime.native import image_of

# Copies x[0] to y[0].
ENTRY = """
define i32 @enter(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure, ptr %times) {
  %slot = getelementptr ptr, ptr %buffers, i64 2
  %x = load ptr, ptr %buffers
  %y = load ptr, ptr %slot
  %v = load float, ptr %x
  store float %v, ptr %y
  ret i32 0
}
"""
F32 = np.dtype(np.float32)


class Way:
    """Inputs f32[2, 3] and f32[] (read in this order), one result in the third slot."""

    def __init__(self) -> None:
        self.image = LoadedImage(image_of(ENTRY, call_module(), exports=(CALL, "enter")))
        self.function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.image.address(CALL))
        self.buffers = (ctypes.c_size_t * 3)()
        self.checks = (ctypes.c_size_t * 6)(id(F32), 2, 2, 3, id(F32), 0)
        self.slots = (ctypes.c_size_t * 1)(2)

    def __call__(self, *arguments: object) -> tuple[int, np.ndarray]:
        results = (np.zeros(1, F32),)
        words = (ctypes.c_size_t * len(Word))()
        words[Word.BUFFERS] = ctypes.addressof(self.buffers)
        words[Word.ENTRY] = self.image.address("enter")
        words[Word.HEADER] = object.__basicsize__
        words[Word.ITEMS] = tuple.__basicsize__
        words[Word.ARRAY] = id(np.ndarray)
        words[Word.ARGUMENTS] = id(arguments)
        words[Word.INPUT_COUNT] = 2
        words[Word.CHECKS] = ctypes.addressof(self.checks)
        words[Word.RESULTS] = id(results)
        words[Word.RESULT_COUNT] = 1
        words[Word.SLOTS] = ctypes.addressof(self.slots)
        return self.function(ctypes.addressof(words)), results[0]


@pytest.fixture(scope="module")
def way() -> Way:
    return Way()


def test_usual_arguments_are_taken(way):
    x = np.full((2, 3), 7, F32)
    code, result = way(x, np.array(1, F32))
    assert code == 0
    assert result[0] == 7


def test_an_array_that_may_not_be_written_is_read(way):
    x = np.full((2, 3), 5, F32)
    x.flags.writeable = False
    code, result = way(x, np.array(1, F32))
    assert (code, result[0]) == (0, 5)


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "unusual",
    [
        np.zeros((3, 2), F32),
        np.zeros((2, 4), F32),
        np.zeros(6, F32),
        np.zeros((2, 3, 1), F32),
        np.zeros((2, 3), np.float64),
        np.zeros((2, 3), ">f4"),
        np.zeros((3, 2), F32).T,
        np.zeros((2, 6), F32)[:, ::2],
        np.frombuffer(bytes(25), np.uint8)[1:].view(F32).reshape(2, 3),
        np.zeros((2, 3), F32).view(Subclass),
        [[0.0] * 3] * 2,
        1.0,
        None,
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}-{getattr(value, 'strides', '')}",
)
def test_unusual_arguments_are_left_to_the_caller(way, unusual):
    code, result = way(unusual, np.array(1, F32))
    assert code == UNUSUAL
    assert result[0] == 0, "nothing ran"


def test_the_last_argument_is_looked_at_too(way):
    assert way(np.zeros((2, 3), F32), np.zeros(1, F32))[0] == UNUSUAL


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_the_module_defines_one_function_and_calls_none(triple):
    (data,) = emit_objects([call_module()], triple)
    symbols = [symbol for symbol in read_object(data).symbols if symbol.binding != 0]
    assert [symbol.name for symbol in symbols] == [CALL]
