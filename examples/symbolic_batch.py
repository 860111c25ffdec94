"""Compile once for every batch size: sizes may be names.

One program serves batches of 1 to 256 with no recompilation, its memory is known for each before it runs, and the
answer for an image does not depend, to the last bit, on what else is in its batch.
Run it with `python examples/symbolic_batch.py`.
"""

import argparse
import time

import numpy as np

import ingot
from ingot import nn


def build_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.Tanh(),
        nn.Linear(32, 10),
    )  # fmt: skip


def best_seconds(run, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure less often")
    repeats = 5 if parser.parse_args().quick else 200

    model = build_model()
    batch = ingot.dim("batch", 1, 256)  # a name with bounds; plain "batch" means 1 or more
    exe = ingot.compile(model, ingot.f32[batch, 1, 8, 8])
    print(f"{exe}\nscratch memory for the largest batch: {exe.peak_bytes} bytes\n")

    images = np.random.default_rng(0).standard_normal((256, 1, 8, 8)).astype(np.float32)
    whole = exe(images)
    print("batch   scratch bytes   microseconds an image   same bits as in the batch of 256")
    for count in (1, 2, 7, 32, 100, 256):
        part = exe(images[:count])
        same = np.array_equal(part, whole[:count])
        seconds = best_seconds(lambda count=count: exe(images[:count]), repeats)
        print(f"{count:5}   {exe.peak_bytes_for(batch=count):13}   {1e6 * seconds / count:21.1f}   {same}")
        assert same

    fixed = ingot.compile(model, ingot.f32[7, 1, 8, 8])
    assert np.array_equal(fixed(images[:7]), whole[:7])
    print("\na program for batches of 7 alone gives the same bits")

    for wrong in (images[:0], np.zeros((2, 1, 8, 9), np.float32)):
        try:
            exe(wrong)
        except ValueError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
