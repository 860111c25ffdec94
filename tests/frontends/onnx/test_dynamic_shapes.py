"""Models with free sizes: one compilation, right results for every size, memory that does not grow.

`pytest -m sweep tests/frontends/onnx/test_dynamic_shapes.py` draws a thousand shapes for each model.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import ingot
from ingot.compiler.ops.winograd import ERROR_BOUND
from ingot.frontends.dsl.api import CompiledFunction
from tests.frontends.onnx.building import Array
from tests.frontends.onnx.dynamic_models import MODELS, Dynamic

try:
    import onnxruntime as runtime
except ModuleNotFoundError:
    runtime = None

FEW, MANY = 8, 1000
GROWTH = 16 << 20  # bytes; an allocator keeps some, a leak of one call in a thousand would be more
PAGE = os.sysconf("SC_PAGE_SIZE")


def expectation(dynamic: Dynamic) -> Callable[[dict[str, Array]], Array]:
    """ONNX Runtime where it is installed, else the reference of the onnx package."""
    if runtime is None:
        evaluator = ReferenceEvaluator(dynamic.model)
        return lambda inputs: evaluator.run(None, inputs)[0]
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(dynamic.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def check(dynamic: Dynamic, count: int) -> tuple[CompiledFunction, int]:
    """The one program, and how much memory the process gained after the first tenth of the calls."""
    program = ingot.compile(ingot.load_onnx(dynamic.model), threads=1)
    assert isinstance(program, CompiledFunction)
    expected = expectation(dynamic)
    generator = np.random.default_rng(17)
    sizes = [dynamic.largest(), *(dynamic.drawn(generator) for _ in range(count - 1))]
    before = 0
    for number, dims in enumerate(sizes):
        inputs = dynamic.inputs(generator, dims)
        found, wanted = program(**inputs), expected(inputs)
        assert found.shape == wanted.shape, dims
        interpolated = ERROR_BOUND * np.abs(wanted).max()  # what a Winograd convolution may be off, by the range of results
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=max(2e-4, interpolated), err_msg=str(dims))
        if number == count // 10:
            before = resident()
    return program, resident() - before


def programs_of(program: CompiledFunction) -> int:
    """How many were compiled: shapes that break an assumption get one of their own."""
    otherwise = getattr(program, "otherwise", None)
    return len(otherwise.staged.first) if otherwise is not None else 1


@pytest.mark.parametrize("name", MODELS)
def test_one_program_for_all_shapes(name: str) -> None:
    program, _ = check(MODELS[name](), FEW)
    assert programs_of(program) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_a_thousand_shapes(name: str) -> None:
    dynamic = MODELS[name]()
    program, growth = check(dynamic, MANY)
    assert programs_of(program) == 1
    assert growth < GROWTH
