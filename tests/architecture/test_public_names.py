"""The names users rely on. Adding is free; taking one away, or moving it, breaks programs."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.architecture.source_tree import PACKAGE, ROOT

NAMES = (
    # argument types: ingot.f32[64, 784], ingot.i64["batch"]
    *("f32", "i64"),
    # compile and run
    *("compile", "jit", "load", "build"),
    # differentiate
    *("grad", "value_and_grad", "vjp", "jvp", "jacobian", "hessian"),
    # train
    *("Trainer", "nn", "optim"),
    # exchange
    *("load_onnx", "check_onnx", "save_onnx"),
)
EXECUTABLE_NAMES = ("inputs", "outputs", "peak_bytes", "save", "explain", "profile")
TRAINER_NAMES = ("step", "save", "load", "model")
BACKEND_NAMES = ("prepare", "run_model", "run_node", "supports_device", "is_compatible")
SUBCOMMANDS = ("compile", "run", "bench", "explain", "check", "build", "train", "targets")

facade_exists = pytest.mark.skipif(
    not (ROOT / PACKAGE / "__init__.py").exists(), reason="ingot/__init__.py is not written yet"
)
command_exists = pytest.mark.skipif(
    not (ROOT / PACKAGE / "__main__.py").exists(), reason="ingot/__main__.py is not written yet"
)


@pytest.fixture
def ingot() -> Any:
    return importlib.import_module(PACKAGE)


@facade_exists
@pytest.mark.parametrize("name", NAMES)
def test_name_exists(ingot, name):
    assert hasattr(ingot, name)


@facade_exists
@pytest.mark.parametrize("name", NAMES)
def test_name_is_listed(ingot, name):
    """Tab completion and `from ingot import *` show what exists, also where a name loads on first use."""
    assert name in dir(ingot)
    assert name in ingot.__all__


@facade_exists
def test_executable_has_its_names(ingot):
    executable = ingot.compile(lambda x: x + x, ingot.f32[4])
    assert not [name for name in EXECUTABLE_NAMES if not hasattr(executable, name)]


@facade_exists
def test_trainer_has_its_names(ingot):
    model = ingot.nn.Linear(3, 1)
    trainer = ingot.Trainer(model, squared_error, ingot.optim.SGD(0.1), ingot.f32[4, 3], ingot.f32[4, 1])
    assert not [name for name in TRAINER_NAMES if not hasattr(trainer, name)]


def squared_error(model: Callable, x: Any, y: Any) -> Any:
    difference = model(x) - y
    return (difference * difference).mean()


@facade_exists
def test_onnx_backend_has_the_standard_interface():
    backend = importlib.import_module("ingot.frontends.onnx.backend")
    assert not [name for name in BACKEND_NAMES if not hasattr(backend, name)]


@facade_exists
def test_loading_a_saved_program_does_not_import_the_compiler(ingot, tmp_path):
    ingot.compile(lambda x: x + x, ingot.f32[4]).save(tmp_path / "double.ingot")
    program = (
        "import sys, numpy, ingot\n"
        f"executable = ingot.load({str(tmp_path / 'double.ingot')!r})\n"
        "result = executable(numpy.arange(4, dtype=numpy.float32))\n"
        "assert result.tolist() == [0, 2, 4, 6], result\n"
        "foreign = ('ingot.compiler', 'ingot.frontends', 'llvmlite', 'onnx')\n"
        "loaded = [name for name in sys.modules if name.startswith(foreign)]\n"
        "assert not loaded, loaded\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


@command_exists
def test_command_line_offers_its_subcommands():
    run = subprocess.run(
        [sys.executable, "-m", PACKAGE, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert not [name for name in SUBCOMMANDS if name not in run.stdout.split()], run.stdout
