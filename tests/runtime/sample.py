"""A hand-written program against the ABI of `ingot.runtime.abi`, for tests of the runtime alone.

    inputs   x: f32[batch, 3]
    states   calls: i64[]                     incremented by every call
    constants  bias: f32[3]
    outputs  y: f32[batch, 3] = 2 x + bias    computed in the arena, row by row on the pool, then copied
             z: i64[2*batch]  = 0, 1, 2, ...
             calls_next: updates calls

A first element of x of -1 makes it fail: index 7 out of range, extent 3, axis 0, site 0.
"""

from __future__ import annotations

import numpy as np

from ingot.compiler.codegen.call import call_module
from ingot.compiler.codegen.pool import pool_module
from ingot.runtime.abi import REQUIRED_EXPORTS
from ingot.runtime.manifest import DimSpec, Manifest, TargetSpec, TensorSpec
from ingot.runtime.program import Program
from tests.runtime.native import HOST, image_of

CODE = """
declare void @ingot_parallel_for(ptr, ptr, ptr, i64)
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @buffer(ptr %buffers, i64 %index) {
  %slot = getelementptr ptr, ptr %buffers, i64 %index
  %pointer = load ptr, ptr %slot
  ret ptr %pointer
}

; context: { x, bias, scratch }
define internal void @row(ptr %context, i64 %row) {
entry:
  %x = call ptr @buffer(ptr %context, i64 0)
  %bias = call ptr @buffer(ptr %context, i64 1)
  %scratch = call ptr @buffer(ptr %context, i64 2)
  %first = mul i64 %row, 3
  br label %loop
loop:
  %column = phi i64 [0, %entry], [%next, %loop]
  %element = add i64 %first, %column
  %x.p = getelementptr float, ptr %x, i64 %element
  %bias.p = getelementptr float, ptr %bias, i64 %column
  %y.p = getelementptr float, ptr %scratch, i64 %element
  %value = load float, ptr %x.p
  %shift = load float, ptr %bias.p
  %twice = fadd float %value, %value
  %sum = fadd float %twice, %shift
  store float %sum, ptr %y.p
  %next = add i64 %column, 1
  %more = icmp ult i64 %next, 3
  br i1 %more, label %loop, label %done
done:
  ret void
}

define internal void @count_up(ptr %z, i64 %n) {
entry:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %z.p = getelementptr i64, ptr %z, i64 %i
  store i64 %i, ptr %z.p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}

define i32 @ingot_entry(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure) {
entry:
  %context = alloca [3 x ptr]
  %x = call ptr @buffer(ptr %buffers, i64 0)
  %calls = call ptr @buffer(ptr %buffers, i64 1)
  %bias = call ptr @buffer(ptr %buffers, i64 2)
  %y = call ptr @buffer(ptr %buffers, i64 3)
  %z = call ptr @buffer(ptr %buffers, i64 4)
  %calls.next = call ptr @buffer(ptr %buffers, i64 5)
  %batch = load i64, ptr %dims
  %empty = icmp eq i64 %batch, 0
  br i1 %empty, label %work, label %check
check:
  %first = load float, ptr %x
  %bad = fcmp oeq float %first, -1.0
  br i1 %bad, label %fail, label %work
fail:
  %axis.p = getelementptr i64, ptr %failure, i64 2
  %extent.p = getelementptr i64, ptr %failure, i64 1
  %site.p = getelementptr i64, ptr %failure, i64 3
  store i64 7, ptr %failure
  store i64 3, ptr %extent.p
  store i64 0, ptr %axis.p
  store i64 0, ptr %site.p
  ret i32 1
work:
  %bias.slot = getelementptr ptr, ptr %context, i64 1
  %scratch.slot = getelementptr ptr, ptr %context, i64 2
  store ptr %x, ptr %context
  store ptr %bias, ptr %bias.slot
  store ptr %arena, ptr %scratch.slot
  call void @ingot_parallel_for(ptr %pool, ptr @row, ptr %context, i64 %batch)
  %bytes = mul i64 %batch, 12
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %arena, i64 %bytes, i1 false)
  %z.n = shl i64 %batch, 1
  call void @count_up(ptr %z, i64 %z.n)
  %old = load i64, ptr %calls
  %new = add i64 %old, 1
  store i64 %new, ptr %calls.next
  ret i32 0
}

define i32 @ingot_entry_profile(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure, ptr %times) {
  %result = call i32 @ingot_entry(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure)
  %old = load i64, ptr %times
  %new = add i64 %old, 1000
  store i64 %new, ptr %times
  %second.p = getelementptr i64, ptr %times, i64 1
  %second = load i64, ptr %second.p
  %later = add i64 %second, 500
  store i64 %later, ptr %second.p
  ret i32 %result
}

define i64 @ingot_arena_bytes(ptr %dims) {
  %batch = load i64, ptr %dims
  %bytes = mul i64 %batch, 12
  ret i64 %bytes
}

; x[batch, 3], calls[], y[batch, 3], z[2*batch], calls_next[]
define void @ingot_shapes(ptr %dims, ptr %out) {
  %batch = load i64, ptr %dims
  %twice = shl i64 %batch, 1
  %p1 = getelementptr i64, ptr %out, i64 1
  %p2 = getelementptr i64, ptr %out, i64 2
  %p3 = getelementptr i64, ptr %out, i64 3
  %p4 = getelementptr i64, ptr %out, i64 4
  store i64 %batch, ptr %out
  store i64 3, ptr %p1
  store i64 %batch, ptr %p2
  store i64 3, ptr %p3
  store i64 %twice, ptr %p4
  ret void
}
"""

BIAS = np.array([0.5, -1.0, 100.0], np.float32)


def sample_manifest(**changes) -> Manifest:
    fields = {
        "target": TargetSpec(HOST, "any"),
        "inputs": (TensorSpec("x", "f32", ("batch", 3)),),
        "states": (TensorSpec("calls", "i64", ()),),
        "constants": (TensorSpec("bias", "f32", (3,)),),
        "outputs": (
            TensorSpec("y", "f32", ("batch", 3)),
            TensorSpec("z", "i64", ("2*batch",)),
            TensorSpec("calls_next", "i64", ()),
        ),
        "dims": (DimSpec("batch", 0, 1 << 40),),
        "aliases": {"calls_next": "calls"},
        "sites": ("gather 'lookup' (sample.py:7)",),
        "kernels": ("row", "count_up"),
        "report": {"title": "Sample", "sections": [{"title": "Fusion", "rows": [["row", "<2 ops>"]]}]},
    }
    return Manifest(**{**fields, **changes})


def sample_program(**changes) -> Program:
    image = image_of(CODE, pool_module(HOST), call_module(), exports=(*REQUIRED_EXPORTS, "ingot_entry_profile"))
    return Program(sample_manifest(**changes), image, {"bias": BIAS}, {"calls": np.array(40)})


STATIC_CODE = """
define i32 @ingot_entry(ptr %buffers, ptr %dims, ptr %arena, ptr %pool, ptr %failure) {
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %x = load ptr, ptr %buffers
  %y = load ptr, ptr %slot
  %v = load <4 x float>, ptr %x, align 4
  %w = fadd <4 x float> %v, %v
  store <4 x float> %w, ptr %y, align 4
  ret i32 0
}
define i64 @ingot_arena_bytes(ptr %dims) { ret i64 4096 }
define void @ingot_shapes(ptr %dims, ptr %out) {
  %p1 = getelementptr i64, ptr %out, i64 1
  store i64 4, ptr %out
  store i64 4, ptr %p1
  ret void
}
"""


def static_program(dtype: str = "f32") -> Program:
    """y: f32[4] = 2 x: f32[4], without symbolic dims, states or constants."""
    image = image_of(STATIC_CODE, pool_module(HOST), call_module(), exports=REQUIRED_EXPORTS)
    manifest = Manifest(
        TargetSpec(HOST), inputs=(TensorSpec("x", dtype, (4,)),), outputs=(TensorSpec("y", dtype, (4,)),)
    )
    return Program(manifest, image)
