"""The way from Python objects into a program: an LLVM IR module that every program carries.

    ingot_call(ptr record) -> i32        check arrays, take their data pointers, run the entry (runtime/abi.py)

A dozen machine instructions for an argument take the place of several attribute lookups in Python, each of which takes
longer than all of them. Nothing is called, allocated or written besides the table of pointers, and no reference is
counted: the caller holds the objects.

Non-goal: saying what is wrong with an argument; whoever gets `UNUSUAL` looks again and says it.
"""

from __future__ import annotations

from string import Template

from ingot.runtime.abi import CALL, UNUSUAL, USABLE, Field, Word

_WORD_BYTES = 8


def call_module() -> str:
    """The text of the module; it is the same for all targets."""
    words = "\n".join(
        f"  %{word.name.lower()}.place = getelementptr i64, ptr %record, i64 {int(word)}\n"
        f"  %{word.name.lower()} = load {'i64' if word in _NUMBERS else 'ptr'}, ptr %{word.name.lower()}.place, align 8"
        for word in Word
    )
    fields = {field.name.lower(): int(field) for field in Field}
    return _TEXT.substitute(fields, call=CALL, words=words, usable=USABLE, unusual=UNUSUAL, word=_WORD_BYTES)


_NUMBERS = (Word.HEADER, Word.ITEMS, Word.ARRAY, Word.INPUT_COUNT, Word.RESULT_COUNT)
_TEXT = Template("""\
define i32 @$call(ptr %record) nounwind {
start:
$words
  %given = getelementptr i8, ptr %arguments, i64 %items
  %made = getelementptr i8, ptr %results, i64 %items
  br label %inputs

inputs:
  %input = phi i64 [ 0, %start ], [ %next.input, %fine ]
  %check = phi ptr [ %checks, %start ], [ %next.check, %fine ]
  %more.inputs = icmp ult i64 %input, %input_count
  br i1 %more.inputs, label %argument, label %outputs

argument:
  %argument.place = getelementptr ptr, ptr %given, i64 %input
  %object = load ptr, ptr %argument.place, align 8
  %fields = getelementptr i8, ptr %object, i64 %header
  %type.place = getelementptr i8, ptr %fields, i64 -$word
  %type = load i64, ptr %type.place, align 8
  %is.array = icmp eq i64 %type, %array
  br i1 %is.array, label %look, label %unusual

look:
  %dtype.place = getelementptr i8, ptr %fields, i64 $dtype
  %dtype = load i64, ptr %dtype.place, align 8
  %wanted.dtype = load i64, ptr %check, align 8
  %same.dtype = icmp eq i64 %dtype, %wanted.dtype
  %flags.place = getelementptr i8, ptr %fields, i64 $flags
  %flags = load i32, ptr %flags.place, align 4
  %usable.flags = and i32 %flags, $usable
  %is.usable = icmp eq i32 %usable.flags, $usable
  %rank.place = getelementptr i8, ptr %fields, i64 $rank
  %short.rank = load i32, ptr %rank.place, align 4
  %rank = zext i32 %short.rank to i64
  %wanted.place = getelementptr i64, ptr %check, i64 1
  %wanted.rank = load i64, ptr %wanted.place, align 8
  %same.rank = icmp eq i64 %rank, %wanted.rank
  %right = and i1 %same.dtype, %is.usable
  %alike = and i1 %right, %same.rank
  br i1 %alike, label %shape, label %unusual

shape:
  %extents.place = getelementptr i8, ptr %fields, i64 $shape
  %extents = load ptr, ptr %extents.place, align 8
  %wanted.extents = getelementptr i64, ptr %check, i64 2
  br label %axes

axes:
  %axis = phi i64 [ 0, %shape ], [ %next.axis, %equal ]
  %more.axes = icmp ult i64 %axis, %rank
  br i1 %more.axes, label %compare, label %fine

compare:
  %extent.place = getelementptr i64, ptr %extents, i64 %axis
  %extent = load i64, ptr %extent.place, align 8
  %wanted.extent.place = getelementptr i64, ptr %wanted.extents, i64 %axis
  %wanted.extent = load i64, ptr %wanted.extent.place, align 8
  %same.extent = icmp eq i64 %extent, %wanted.extent
  br i1 %same.extent, label %equal, label %unusual

equal:
  %next.axis = add i64 %axis, 1
  br label %axes

fine:
  %data.place = getelementptr i8, ptr %fields, i64 $data
  %data = load ptr, ptr %data.place, align 8
  %input.slot = getelementptr ptr, ptr %buffers, i64 %input
  store ptr %data, ptr %input.slot, align 8
  %next.input = add i64 %input, 1
  %next.check = getelementptr i64, ptr %wanted.extents, i64 %rank
  br label %inputs

outputs:
  %output = phi i64 [ 0, %inputs ], [ %next.output, %result ]
  %more.outputs = icmp ult i64 %output, %result_count
  br i1 %more.outputs, label %result, label %run

result:
  %result.place = getelementptr ptr, ptr %made, i64 %output
  %result.object = load ptr, ptr %result.place, align 8
  %result.fields = getelementptr i8, ptr %result.object, i64 %header
  %result.data.place = getelementptr i8, ptr %result.fields, i64 $data
  %result.data = load ptr, ptr %result.data.place, align 8
  %slot.place = getelementptr i64, ptr %slots, i64 %output
  %slot = load i64, ptr %slot.place, align 8
  %output.slot = getelementptr ptr, ptr %buffers, i64 %slot
  store ptr %result.data, ptr %output.slot, align 8
  %next.output = add i64 %output, 1
  br label %outputs

run:
  %code = call i32 %entry(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure, ptr %times)
  ret i32 %code

unusual:
  ret i32 $unusual
}
""")
