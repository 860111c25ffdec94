"""Scheduled kernels as machine code: right, within their memory, and the same bits however they are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.compiler.codegen.abi import dims_of
from ingot.compiler.ir import loops
from ingot.compiler.ir.interpret import run_kernel
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.types import bf16, f64
from ingot.compiler.schedule import Scheduled, ScheduleOptions, schedule
from tests.codegen.running import HOST, Native, guarded
from tests.schedule import kernels
from tests.schedule.harness import Dims, assert_close, inputs_of, unset

n, m = Symbol("n"), Symbol("m")

CASES: list[tuple[Kernel, Dims]] = [
    (kernels.add_bias((37, 100)), {}),
    (kernels.negate((n, 784)), {n: 65}),
    (kernels.transpose((130, 75), (1, 0)), {}),
    (kernels.transpose((3, 100, 257), (0, 2, 1)), {}),
    (kernels.update_transposed(150, 75), {}),
    (kernels.update_transposed(n, 64, f64), {n: 70}),
    (kernels.momentum([(300, 200), (200,), (7, 3)]), {}),
    (kernels.gather_rows(40, 7, 33), {}),
    (kernels.reduce_axes((3000, 70), (1,)), {}),
    (kernels.reduce_axes((n, 9), (1,)), {n: 5000}),
    (kernels.reduce_axes((100_001,), ()), {}),
    (kernels.reduce_axes((60, 401), (0,), "max"), {}),
    (kernels.depthwise(2, 12, 20, 3), {}),
    (kernels.max_pool(2, 5, 30), {}),
    (kernels.softmax((n, 10)), {n: 77}),
    (kernels.softmax((9, 5001)), {}),
    (kernels.layer_norm((40, 129), 129), {}),
    (kernels.matmul(150, 133, 300), {}),
    (kernels.matmul(n, m, 600), {n: 65, m: 50}),
    (kernels.matmul(n, 64, 64, layout="nt"), {n: 1}),
    (kernels.matmul(33, 75, 307, layout="nt"), {}),
    (kernels.matmul(50, 24, 70), {}),
    (kernels.matmul(n, 40, 70, layout="nt"), {n: 21}),
    (kernels.matmul(n, m, 43, layout="nt"), {n: 20, m: 37}),
    (kernels.matmul(1, 300, 700), {}),
    (kernels.matmul(5, 301, 203), {}),
    (kernels.matmul(1, 5001, n), {n: 301}),
    (kernels.matmul(33, 40, 70, bf16, "tn"), {}),
    (kernels.matmul(20, 17, 33, batch=(6,)), {}),
    (kernels.matmul(700, 700, 700), {}),
    (kernels.convolution(2, 16, 14, 24, 3, padding=1), {}),
    (kernels.convolution(n, 3, 31, 16, 5, stride=2, padding=2, last=False), {n: 2}),
    (kernels.matrix_vector(100, 333), {}),
    (kernels.awkward(60, 50), {}),
]


class Program:
    """All cases in one image, compiled once."""

    def __init__(self) -> None:
        self.scheduled = [schedule(kernel, HOST) for kernel, _ in CASES]
        functions = [
            loops.Function(f"k{number}", s.function.parameters, s.function.body)
            for number, s in enumerate(self.scheduled)
        ]
        self.native = Native(functions)
        self.functions = functions

    def run(self, number: int, threads: int = 0) -> list[np.ndarray]:
        kernel, dims = CASES[number]
        scheduled: Scheduled = self.scheduled[number]
        arrays = [*inputs_of(kernel, dims), *unset(kernel.outputs, dims), *unset(scheduled.scratch, dims)]
        arrays = [guarded(array) for array in arrays]
        values = [dims[symbol] for symbol in dims_of(self.functions[number])]
        pool = self.native.pool(threads) if threads else 0
        assert self.native(f"k{number}", *arrays, dims=values, pool=pool) is None
        return arrays[len(kernel.inputs) : len(kernel.inputs) + len(kernel.outputs)]


@pytest.fixture(scope="module")
def program() -> Program:
    return Program()


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}-{CASES[number][0].name}")
def test_native_code_computes_the_kernel(program, number):
    kernel, dims = CASES[number]
    alone = program.run(number)
    wanted = run_kernel(kernel, inputs_of(kernel, dims), dims)
    scale = max(float(np.abs(w.astype(np.float64)).max(initial=1)) for w in wanted)
    assert_close([a / scale for a in alone], [w / scale for w in wanted], kernel)
    divided = program.run(number, threads=3)
    for a, b in zip(alone, divided, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.add_bias((37, 600)),
        kernels.negate((5000,)),
        kernels.transpose((300, 1100), (1, 0)),
        kernels.softmax((5, 700)),
        kernels.softmax((7, 513)),
        kernels.layer_norm((7, 1027), 1027),
        kernels.layer_norm((5, 300), 300),
        kernels.centred((7, 1024), 1024, scaled=700),
        kernels.centred((7, 1024), 1024),
    ],
    ids=lambda kernel: kernel.name,
)
def test_results_stored_past_the_caches(kernel):
    """As large ones are, whose operands are fetched in advance; within their memory, and the same as the usual ones."""
    far = {"streaming": True, **({"ahead": True} if kernel.name in ("softmax", "layer_norm", "centred") else {})}
    turns = {**far, "axis": 0, "chunk": 3, "turns": 1 if "softmax" in kernel.name else 0}
    found = []
    staggered = {"streaming": True, "axis": 0, "chunk": 3, "staggered": True}
    for decisions in ({}, far, *([turns, staggered] if "ahead" in far else [])):
        scheduled = schedule(kernel, HOST, ScheduleOptions(decisions=decisions))
        assert any(s.streaming for s in loops.walk(scheduled.function.body) if isinstance(s, loops.Store)) == bool(decisions)
        outputs = [guarded(array) for array in unset(kernel.outputs, {})]
        scratch = [guarded(array) for array in unset(scheduled.scratch, {})]
        native = Native([loops.Function("k", scheduled.function.parameters, scheduled.function.body)])
        assert native("k", *map(guarded, inputs_of(kernel, {})), *outputs, *scratch) is None
        found.append(outputs)
    for usual, *others in zip(*found, strict=True):
        for streamed in others:
            np.testing.assert_array_equal(usual, streamed)


@pytest.mark.parametrize("shift", [0, 1, 4, 12, 15])
@pytest.mark.parametrize(
    "kernel",
    [
        kernels.negate((5000,)),
        kernels.negate((9, 613)),
        kernels.negate((3755,)),
        kernels.negate((3744,)),
        kernels.negate((5,)),
        kernels.transpose((300, 1100), (1, 0)),
        kernels.softmax((5, 700)),
        kernels.softmax((7, 513)),
        kernels.layer_norm((7, 1027), 1027),
        kernels.layer_norm((5, 1024), 1024),
        kernels.centred((21, 1024), 1024),
        kernels.centred((11, 1000), 1000),
    ],
    ids=lambda kernel: f"{kernel.name}-{'x'.join(map(str, kernel.outputs[0].shape))}",
)
def test_results_past_the_caches_may_begin_anywhere_in_a_line(kernel, shift):
    """Whole lines are stored past the caches, wherever the first of them begins."""
    usual = schedule(kernel, HOST)
    stored = [schedule(kernel, HOST, ScheduleOptions(decisions={"streaming": True}))]
    if usual.recipe == "rows":
        staggered = {"streaming": True, "axis": 0, "chunk": 4, "staggered": True}
        stored.append(schedule(kernel, HOST, ScheduleOptions(decisions=staggered)))
        for chunk, parts, length in ((8, 2, 2), (4, 4, 1), (9, 2, 2)):
            in_turn = {**staggered, "chunk": chunk, "parts": parts, "length": length}
            stored.append(schedule(kernel, HOST, ScheduleOptions(decisions=in_turn)))
    if kernel.name.startswith("neg"):
        for parts, run in ((2, 256), (8, 64)):  # in chunks, the last of them shorter than where the first line begins, or empty
            chunks = {"streaming": True, "axis": 0, "chunk": 1248, "parts": parts, "run": run}
            stored.append(schedule(kernel, HOST, ScheduleOptions(decisions=chunks)))
    found = []
    for each in (usual, *stored):
        outputs, around = [], []
        for array in unset(kernel.outputs, {}):
            memory = np.zeros(array.size + 64, np.float32)
            start = -memory.ctypes.data // 4 % 16 + shift
            outputs.append(memory[start : start + array.size].reshape(array.shape))
            around += [memory[:start], memory[start + array.size :]]
        native = Native([loops.Function("k", each.function.parameters, each.function.body)])
        assert native("k", *inputs_of(kernel, {}), *outputs, *unset(each.scratch, {})) is None
        assert not any(memory.any() for memory in around)
        assert ("!nontemporal" in native.kernels["k"].text) == (each is not usual and outputs[-1].size > 5)
        found.append(outputs)
    for outputs in found[1:]:
        for a, b in zip(found[0], outputs, strict=True):
            np.testing.assert_array_equal(a, b)


SMALL = replace(HOST, l1_bytes=1 << 14, l2_bytes=1 << 15, l3_bytes=1 << 16)
FAR = [
    replace(SMALL, has_few_line_buffers=False, ahead_bytes=0),
    replace(SMALL, has_few_line_buffers=True, ahead_bytes=0),
    replace(SMALL, has_few_line_buffers=False, ahead_bytes=8 << 10),
]


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (kernels.reduce_axes((300_001,), ()), "few results"),
        (kernels.reduce_axes((301, 700), (0,)), "rows that no cache holds"),
        (kernels.reduce_axes((3, 401, 300), (0, 1), "max"), "rows that no cache holds"),
        (kernels.reduce_axes((37, 90_001), (0,)), "rows that no cache holds"),
        (kernels.reduce_axes((1003, 90), (1,)), "along a kept axis"),
        (kernels.reduce_axes((1003, 90), (1,), "max"), "along a kept axis"),
        (kernels.reduce_axes((460, 300), (1,)), "along a kept axis"),
        (kernels.reduce_axes((460, 300), (1,), "max"), "along a kept axis"),
    ],
)
def test_what_no_cache_holds_is_added_up_in_the_same_order(kernel, reason):
    """Several rows or chunks at once: the bits are those of the usual loops."""
    found = []
    for target in (HOST, *FAR):
        scheduled = schedule(kernel, target)
        longer = "rows" in reason and kernel.inputs[0].shape[-1] > 65536  # than two of them are in a chunk
        assert target is HOST or reason in scheduled.reason or longer
        if "rows that no cache holds" in scheduled.reason and target is not HOST:
            single = target.ahead_bytes and kernel.definitions[0].value.combiner == "max"
            assert scheduled.decisions["together"] == (8 if target.has_few_line_buffers else 1 if single else 2)
        outputs = [guarded(array) for array in unset(kernel.outputs, {})]
        scratch = [guarded(array) for array in unset(scheduled.scratch, {})]
        native = Native([loops.Function("k", scheduled.function.parameters, scheduled.function.body)])
        assert native("k", *map(guarded, inputs_of(kernel, {})), *outputs, *scratch) is None
        found.append(outputs)
    for outputs in found[1:]:
        for usual, far in zip(found[0], outputs, strict=True):
            np.testing.assert_array_equal(usual, far)
