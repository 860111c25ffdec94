"""Compiling, training and running need no C compiler, assembler or linker.

The work is done in a process whose PATH leads nowhere, and which notes every program that it starts; neither
a name looked up on PATH nor an absolute path can hide a compiler.
"""

import json
import subprocess
import sys

import pytest

from tests.architecture.source_tree import PACKAGE, ROOT

TOOLS = ("ar", "as", "c++", "cc", "clang", "g++", "gcc", "ld", "ld.lld", "lld", "nvcc", "zig")

WATCHED = """
import json, os, sys
started = []

def watch(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        started.append(os.path.basename(os.fsdecode(arguments[0] or arguments[1][0])))
    elif event == "os.system":
        started.append(os.path.basename(os.fsdecode(arguments[0]).split()[0]))

sys.addaudithook(watch)
"""
CLOSING = "print(json.dumps(started))\n"

COMPILE_AND_RUN = """
import numpy, ingot
double_and_sum = ingot.compile(lambda x, w: x @ w + x.sum(), ingot.f32[3, 4], ingot.f32[4, 2])
x, w = numpy.ones((3, 4), numpy.float32), numpy.ones((4, 2), numpy.float32)
numpy.testing.assert_array_equal(double_and_sum(x, w), x @ w + x.sum())
"""

TRAIN = """
import numpy, ingot
def loss(model, x, y):
    difference = model(x) - y
    return (difference * difference).mean()
trainer = ingot.Trainer(ingot.nn.Linear(3, 1), loss, ingot.optim.SGD(0.1), ingot.f32[4, 3], ingot.f32[4, 1])
x, y = numpy.ones((4, 3), numpy.float32), numpy.ones((4, 1), numpy.float32)
losses = [float(trainer.step(x, y)) for _ in range(3)]
assert losses[2] < losses[0], losses
"""


def programs_started_by(source: str, folder) -> list[str]:
    """Run `source` in a fresh process without PATH and without a warm cache; the programs that it started."""
    (folder / "empty").mkdir()
    environment = {
        "HOME": str(folder),
        "PATH": str(folder / "empty"),
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    run = subprocess.run(
        [sys.executable, "-c", WATCHED + source + CLOSING],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.skipif(not (ROOT / PACKAGE / "__init__.py").exists(), reason="ingot.compile is not written yet")
@pytest.mark.parametrize("source", [COMPILE_AND_RUN, TRAIN], ids=["compile", "train"])
def test_no_tool_is_started(source, tmp_path):
    used = [name for name in programs_started_by(source, tmp_path) if is_tool(name)]
    assert not used, used


def is_tool(name: str) -> bool:
    """Also as a versioned or target-prefixed name: gcc-12, x86_64-linux-gnu-ld."""
    return any(name == tool or name.startswith(f"{tool}-") or name.endswith(f"-{tool}") for tool in TOOLS)


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess; subprocess.run([{python!r}, '-c', ''])\n",
        "import os; os.system('python3 -c pass')\n",
        "import os; os.waitpid(os.posix_spawn({python!r}, [{python!r}, '-c', ''], {{}}), 0)\n",
    ],
    ids=["subprocess", "system", "posix_spawn"],
)
def test_started_programs_are_noticed(source, tmp_path):
    started = programs_started_by(source.format(python=sys.executable), tmp_path)
    assert started
    assert all(name.startswith("python") for name in started)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gcc", True), ("gcc-12", True), ("x86_64-linux-gnu-ld", True), ("ldconfig", False), ("uname", False)],
)
def test_tools_are_recognised(name, expected):
    assert is_tool(name) == expected


def test_the_process_sees_no_tool(tmp_path):
    """Whatever this machine has installed."""
    source = f"import shutil\nstarted += [name for name in {TOOLS!r} if shutil.which(name)]\n"
    assert programs_started_by(source, tmp_path) == []
