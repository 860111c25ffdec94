"""Save a compiled model, and run it in a process that has neither the compiler nor the model's source.

The file holds machine code and weights. Loading needs NumPy and `ingot.runtime` only: the second process proves it
by listing what it imported.
Run it with `python examples/save_and_load.py`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import ingot
from ingot import nn

SECOND_PROCESS = """
import sys, time
import numpy as np
import ingot

started = time.perf_counter()
exe = ingot.load(sys.argv[1], threads=1)
loaded = time.perf_counter() - started
x = np.load(sys.argv[2])
np.save(sys.argv[3], exe(x))
foreign = [name for name in ("ingot.compiler", "ingot.frontends", "llvmlite", "onnx") if name in sys.modules]
print(f"second process: loaded in {1e3 * loaded:.1f} ms; compiler modules imported: {foreign or 'none'}")
print(f"second process: {exe}")
assert not foreign
"""


def main() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5), nn.Softmax())
    exe = ingot.compile(model, ingot.f32["batch", 32])
    x = np.random.default_rng(0).standard_normal((9, 32)).astype(np.float32)

    with tempfile.TemporaryDirectory() as folder:
        program, given, answer = (Path(folder) / name for name in ("model.ingot", "x.npy", "y.npy"))
        exe.save(program)
        np.save(given, x)
        weights = sum(array.nbytes for array in model.parameters())
        print(f"first process: wrote {program.stat().st_size} bytes, {weights} of them weights")
        subprocess.run([sys.executable, "-c", SECOND_PROCESS, program, given, answer], check=True)
        there, here = np.load(answer), exe(x)

    print(f"both give the same bits: {np.array_equal(there, here)}")
    print(f"each row sums to one: {here.sum(axis=1).round(5)}")
    assert np.array_equal(there, here)


if __name__ == "__main__":
    main()
