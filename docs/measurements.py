"""The numbers in decisions.md: `python -m docs.measurements [layout|prepack|fusion|llvm|memory|calls|attention]`.

Processor time of one thread, the best of several rounds, so that other work on the machine disturbs little. For speed
beside other frameworks see `python -m benchmarks`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from ingot import nn
from ingot.compiler import pipeline
from ingot.compiler.codegen import objects
from tests.models.zoo import CASES, classify

PASSES = tuple(step.name for step in pipeline.PASSES)


def best(run: Callable[[], Any], rounds: int = 30, calls: int = 20) -> float:
    """Seconds of processor time a call takes at best."""
    run()
    times = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(calls):
            run()
        times.append((time.process_time() - started) / calls)
    return min(times)


def without(model: Any, x: np.ndarray, *passes: str) -> float:
    """Seconds of a call when some passes are left out."""
    chosen = tuple(name for name in PASSES if name not in passes)
    exe = ingot.compile(model, x, threads=1, cache=False, passes=chosen)
    return best(lambda: exe(x))


def compare(title: str, model: Any, x: np.ndarray, *passes: str) -> None:
    print(f"{title}: {1e6 * without(model, x):.0f} us, without {' and '.join(passes)} "
          f"{1e6 * without(model, x, *passes):.0f} us")  # fmt: skip


def layout() -> None:
    generator = np.random.default_rng(0)
    wide = nn.Sequential(
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    )
    compare("two convolutions", wide, generator.standard_normal((4, 32, 32, 32)).astype(np.float32), "layout")
    compare("LeNet", CASES["lenet"].build(), CASES["lenet"].batch(32)[0], "layout")


def prepack() -> None:
    generator = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    for rows in (1, 16, 256):
        compare(f"MLP, batch {rows}", model, generator.standard_normal((rows, 784)).astype(np.float32), "prepack")
    lstm = nn.LSTM(64, 128)
    x = generator.standard_normal((32, 4, 64)).astype(np.float32)
    compare("LSTM, 32 steps of 4", lambda x: lstm(x)[0], x, "prepack", "invariants")


def fusion() -> None:
    for name, case in CASES.items():
        x, _ = case.batch(16)
        for fuse in (True, False):
            exe = ingot.compile(case.build(), case.input_type, threads=1, cache=False, fuse=fuse)
            count = len(exe.program.manifest.kernels)
            print(f"{name}, {'fused' if fuse else 'not fused'}: {count} kernels, {1e6 * best(lambda: exe(x)):.0f} us")  # noqa: B023


def trainer_of(name: str, batch: int | None = None, **options: Any) -> ingot.Trainer:
    case = CASES[name]
    types = [t if batch is None else t.with_shape((batch, *t.shape[1:])) for t in (case.input_type, case.label_type)]
    return ingot.Trainer(case.build(), classify, case.optimizer(), *types, cache=False, **options)


def llvm() -> None:
    """What LLVM's own pipelines would cost and bring. The setting is nobody's option, hence set by hand."""
    for name in ("mlp", "lenet", "transformer"):
        batch = CASES[name].batch(32)
        for passes in ((), ("default<O1>",), ("default<O2>",), ("default<O3>",)):
            objects.PASSES = passes
            started = time.process_time()
            trainer = trainer_of(name, threads=1)
            seconds = time.process_time() - started
            step = best(lambda: trainer.step(*batch))  # noqa: B023
            print(f"{name}, {passes[0] if passes else 'none'}: compiling {seconds:.2f} s, a step {1e6 * step:.0f} us")
    objects.PASSES = ()


def memory() -> None:
    for name in CASES:
        symbolic, fixed = trainer_of(name), trainer_of(name, 64)
        assembly = symbolic.executable.compiled.assembly
        assert assembly is not None
        decisions = [d for _, plan in assembly.plans for d in plan.decisions]
        broadcasts = Counter(d.choice for d in decisions if getattr(d.value.op, "name", "") == "broadcast")
        at_64 = symbolic.executable.peak_bytes_for(batch=64)
        print(f"{name}: symbolic at 64 {at_64}, fixed {fixed.peak_bytes}, broadcasts {dict(broadcasts)}")


def calls() -> None:
    x = np.ones(16, np.float32)
    exe = ingot.compile(lambda x: x + x, x, threads=1)
    print(f"a call that adds 16 numbers: {1e6 * best(lambda: exe(x), calls=1000):.1f} us")
    case = CASES["transformer"]
    model = case.build()
    started = time.process_time()
    exe = ingot.compile(model, case.input_type, cache=False)
    print(f"compiling a small Transformer: {time.process_time() - started:.2f} s")
    ingot.compile(model, case.input_type)
    again = best(lambda: ingot.compile(model, case.input_type), rounds=5, calls=3)
    print(f"compiling it from the cache: {1e3 * again:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.ingot"
        exe.save(path)
        seconds = best(lambda: ingot.load(path, threads=1), rounds=10, calls=5)
        print(f"loading it: {1e3 * seconds:.1f} ms for {path.stat().st_size} bytes")


def attention() -> None:
    """12 heads of 64 over sequences of a free length: time and scratch memory, forward and with gradients."""
    row = ingot.f32["batch", 12, "time", 64]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (q.attention(k, v) ** 2.0).sum()

    forward = ingot.compile(lambda q, k, v: q.attention(k, v), row, row, row, threads=1)
    backward = ingot.compile(ingot.grad(loss, wrt=(0, 1, 2)), row, row, row, threads=1)
    for length in (16, 64, 128, 512, 2048, 4096):
        arrays = np.random.default_rng(0).standard_normal((3, 1, 12, length, 64)).astype(np.float32)
        rounds, calls = (10, 20) if length < 512 else (3, 1)
        for name, exe in (("forward", forward), ("gradients", backward)):
            seconds = best(lambda exe=exe, arrays=arrays: exe(*arrays), rounds, calls)
            memory = exe.peak_bytes_for(batch=1, time=length)
            print(f"attention over {length}, {name}: {1e3 * seconds:.3f} ms, {memory / 1e6:.1f} MB")


SUBJECTS = (layout, prepack, fusion, llvm, memory, calls, attention)

if __name__ == "__main__":
    wanted = sys.argv[1:] or [subject.__name__ for subject in SUBJECTS]
    for subject in SUBJECTS:
        if subject.__name__ in wanted:
            subject()
