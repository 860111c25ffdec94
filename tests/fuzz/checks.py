"""What must hold for a graph: native code, fused or not, with one thread or two, computes its NumPy meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.autodiff import NotDifferentiableError, differentiate
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.text import parse_graph, print_graph
from ingot.compiler.ir.verify.graph import verify_graph
from ingot.compiler.ir.verify.loops import verify_function
from ingot.compiler.ir.verify.tensor import verify_kernel
from ingot.compiler.ops.base import Op
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.pipeline import compile_graph
from ingot.runtime.errors import ExecutionError
from ingot.runtime.executable import Executable
from tests.fuzz.compare import Arrays, disagreements, disturbed, interpretable
from tests.fuzz.generator import Case, Settings
from tests.fuzz.guarded import Guards, guarding
from tests.fuzz.makers import random_case

FEW, MANY = 3, 24  # noisy runs: to look, and to be sure


@dataclass(frozen=True)
class Failure:
    """What went wrong, and with what: enough to see it again."""

    graph: Graph
    inputs: Arrays
    fuse: bool
    reason: str

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}={array.dtype}{list(array.shape)}" for name, array in self.inputs.items())
        return f"{self.reason}\nfuse={self.fuse}, {shapes}\n{print_graph(self.graph)}"


def case_of(seed: int) -> tuple[Case, Settings]:
    """Seeds take turns: static and symbolic dims, values and gradients, with and without control flow."""
    settings = Settings(
        steps=4 + seed % 7, symbolic=seed % 2 == 1, differentiable=seed % 3 == 2, control_flow=seed % 5 == 0
    )
    return random_case(seed, settings), settings


def failure_of(seed: int) -> Failure | None:
    """None when all is well with the graph of a seed."""
    case, settings = case_of(seed)
    fuse = seed % 4 != 3
    found = check_case(case, seed, fuse)
    if found or not settings.differentiable:
        return found
    try:
        gradient = gradient_case(case)
    except TypeError as error:
        return Failure(case.graph, {}, fuse, f"differentiating raises {type(error).__name__}: {error}")
    return check_case(gradient, seed, fuse) if gradient else None


def gradient_case(case: Case) -> Case | None:
    """The backward graph of a case, a graph like any other; None when it has no gradient."""
    wrt = [n for n, v in enumerate(case.graph.inputs) if v.tensor.dtype.is_float]
    if not wrt or not any(v.tensor.dtype.is_float for v in case.graph.outputs):
        return None
    try:
        return Case(differentiate(case.graph, wrt), case.ranges, case.sizes)
    except NotDifferentiableError:  # it is a TypeError too
        return None


def check_case(case: Case, seed: int, fuse: bool) -> Failure | None:
    runs = [case.arrays(dims, np.random.default_rng(seed)) for dims in case.runs()]
    return check_graph(case.graph, runs, fuse)


def check_graph(graph: Graph, runs: list[dict[str, np.ndarray]], fuse: bool) -> Failure | None:
    """The first run whose results are wrong."""
    expected = [interpretable(graph, inputs, run_graph) for inputs in runs]
    try:
        execute = compiled(graph, fuse)
    except Exception as error:
        return Failure(graph, runs[0], fuse, f"compiling raises {type(error).__name__}: {error}")
    for inputs, want in zip(runs, expected, strict=True):
        if want is None:
            continue
        try:
            results = [tuple(map(np.asarray, execute(threads, inputs))) for threads in (2, 1)]
        except Exception as error:
            if isinstance(error, ExecutionError) and "do not fit" in str(error):
                continue  # an op's condition on its extents does not hold for these dims: refused, as it must be
            return Failure(graph, inputs, fuse, f"running raises {type(error).__name__}: {error}")
        if [r.tobytes() for r in results[0]] != [r.tobytes() for r in results[1]]:
            return Failure(graph, inputs, fuse, "the bits depend on the number of threads")
        wrong = differences(graph, inputs, results[0], want)
        if wrong:
            reason = "; ".join(f"{graph.output_names[n]}: {text}" for n, text in wrong)
            return Failure(graph, inputs, fuse, reason)
    return None


def differences(graph: Graph, inputs: Arrays, found: Any, expected: Any) -> list[tuple[int, str]]:
    """What is wrong with results. To be sure, composite ops also run as what they are made of: native code computes
    them so, and a sum inside of one may cancel (1 + erf of a gelu)."""
    for count, graphs in ((FEW, [graph]), (MANY, [graph, Decompose()(graph)])):
        rng = np.random.default_rng(count)
        wrong = disagreements(found, expected, [disturbed(graphs[n % len(graphs)], inputs, rng) for n in range(count)])
        if not wrong:
            break
    return wrong


def compiled(graph: Graph, fuse: bool) -> Any:
    """execute(threads, inputs) of a graph, which is verified at every level on its way down, reads back as text, and runs
    between guards."""
    printed = print_graph(graph)
    assert print_graph(parse_graph(printed, Op.registry)) == printed, "the text does not read back"
    verify_graph(graph)
    made = compile_graph(graph, Options(cache=False, verify=True, fuse=fuse, profile=False, workers=1))
    assert made.assembly is not None
    for placed in made.assembly.kernels:
        if placed.kernel is not None:
            verify_kernel(placed.kernel)
    verify_function(made.assembly.entry)
    guards = Guards(behind=fuse)
    with guarding(guards):
        executables = {threads: Executable(made.program, threads=threads) for threads in (1, 2)}

    def execute(threads: int, inputs: Arrays) -> tuple[np.ndarray, ...]:
        with guarding(guards):
            result = executables[threads](**{name: guards.copy(np.asarray(array)) for name, array in inputs.items()})
        guards.check()
        return result if isinstance(result, tuple) else (result,)

    return execute
