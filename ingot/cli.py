"""The command line: the same as the Python API, for an ONNX file, a saved program, a dump or `module.py:name`.

A model of `module.py:name` is a Module, a function, or a function without arguments that returns one of these;
its argument types are given with --type, for instance --type "f32[batch, 784]". A dump is a `.graph` file that
--dump-ir wrote: compilation goes on from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from ingot.compiler import pipeline, target
from ingot.compiler.errors import IngotError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.types import DTYPES, TensorType
from ingot.compiler.options import Options
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.api import CompiledFunction
from ingot.frontends.dsl.module import Module
from ingot.runtime.errors import IngotRuntimeError
from ingot.runtime.executable import Executable
from ingot.runtime.storage import replacing


class UsageError(Exception):
    """The command line asks for something that cannot be done."""


def parse_type(text: str) -> TensorType:
    """A type written as in IR dumps: f32[batch, 784]."""
    match = re.fullmatch(r"\s*(\w+)\s*\[(.*)\]\s*", text)
    if not match or match[1] not in DTYPES:
        raise UsageError(f"{text!r} is not a type; write for instance f32[batch, 784]")
    dims = [d.strip() for d in match[2].split(",") if d.strip()]
    return DTYPES[match[1]][tuple(int(d) if d.isdigit() else d for d in dims)]


def load_model(where: str) -> Any:
    """The model that a path names."""
    if where.endswith(".onnx"):
        return ingot.load_onnx(where)
    path, _, name = where.partition(":")
    if not name:
        raise UsageError(f"{where!r} is none of model.onnx, program.ingot, stage.graph and module.py:name")
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec.loader.exec_module(module)
    try:
        return getattr(module, name)
    except AttributeError:
        raise UsageError(f"{path} has no {name}") from None


def model_and_types(arguments: argparse.Namespace) -> tuple[Any, list[TensorType]]:
    model = load_model(arguments.model)
    types: list[TensorType] = [parse_type(t) for t in arguments.type or ()]
    if not types and hasattr(model, "input_types"):
        types = list(model.input_types)
    if isinstance(model, type) or (
        not isinstance(model, Module) and callable(model) and not inspect.signature(model).parameters
    ):
        model = model()  # a class, or a function that builds the model
        types = types or list(getattr(model, "input_types", ()))
    if not types:
        raise UsageError('this model needs its argument types: --type "f32[batch, 784]", once per argument')
    return model, types


def options_of(arguments: argparse.Namespace) -> Options:
    chosen = Options.from_environment().with_(threads=arguments.threads, target=arguments.target)
    if arguments.dump_ir:
        chosen = chosen.with_(dump=arguments.dump_ir)
    if arguments.no_fusion:
        chosen = chosen.with_(fuse=False)
    if arguments.memory_budget:
        chosen = chosen.with_(memory_budget=arguments.memory_budget)
    return chosen


def compiled(arguments: argparse.Namespace) -> Any:
    """An executable of this process."""
    if arguments.model.endswith(".ingot"):
        return ingot.load(arguments.model, threads=arguments.threads)
    options = options_of(arguments)
    if arguments.model.endswith(".graph"):
        return Executable(pipeline.resume(arguments.model, options).program, arguments.threads)
    model, types = model_and_types(arguments)
    return ingot.compile(model, *types, options=options)


def program_of(arguments: argparse.Namespace) -> Any:
    """What can be saved: also a program for another machine, which cannot become an executable here."""
    options = options_of(arguments)
    if arguments.model.endswith(".graph"):
        return pipeline.resume(arguments.model, options).program
    model, types = model_and_types(arguments)
    if hasattr(model, "compile_for"):
        return ingot.compile(model, *types, options=options)
    traced = functions.trace(model.eval() if isinstance(model, Module) else model, types)
    return pipeline.compile_graph(traced.graph, options).program


def inputs_for(executable: Any, arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Arrays from --input name=file.npy, random ones for the rest, of the same dims."""
    given = _given_arrays(executable, arguments)
    dims = _given_dims(executable, arguments, given)
    unknown = [name for name, what in getattr(executable, "given", {}).items() if what is None and name not in given]
    if unknown:
        raise UsageError(f"the model does not declare a shape for {', '.join(unknown)}: give it with --input name=file.npy")
    generator = np.random.default_rng(0)
    for spec in executable.inputs:
        if spec.name not in given:
            shape = [d if isinstance(d, int) else _extent(d, dims) for d in spec.shape]
            given[spec.name] = random_array(generator, shape, spec.numpy_dtype)
    return given


def _given_arrays(executable: Any, arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    given: dict[str, np.ndarray] = {}
    names = [spec.name for spec in executable.inputs]
    for item in arguments.input or ():
        name, _, path = item.rpartition("=")  # names of ONNX inputs may have any sign in them, also this one
        if not name or not path:
            raise UsageError(f"--input {item!r}: write name=file.npy")
        if name not in names:
            raise UsageError(f"there is no input {name!r}; the inputs are {', '.join(names)}")
        try:
            given[name] = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise UsageError(f"{path} is no .npy file of numbers: {error}") from None
    return given


def _given_dims(executable: Any, arguments: argparse.Namespace, given: dict[str, np.ndarray]) -> dict[str, int]:
    """The values of symbolic dims: from --dim, and as the given arrays have them."""
    names = list(dict.fromkeys(d for spec in executable.inputs for d in spec.shape if isinstance(d, str)))
    dims: dict[str, int] = {}
    for item in arguments.dim or ():
        name, _, size = item.rpartition("=")
        if not size.isdigit():
            raise UsageError(f"--dim {item!r}: write for instance batch=8")
        if not any(name in dim for dim in names):
            raise UsageError(f"there is no dim {name!r}; the dims are {', '.join(names) or 'all known'}")
        dims[name] = int(size)
    for spec in executable.inputs:
        if spec.name in given and given[spec.name].ndim == len(spec.shape):
            for dim, extent in zip(spec.shape, given[spec.name].shape, strict=True):
                if isinstance(dim, str):
                    dims.setdefault(dim, extent)
    return dims


def _extent(dim: str, dims: dict[str, int]) -> int:
    if dim in dims:
        return dims[dim]
    try:
        value = symbolic.parse(dim, symbolic.Symbol)
        names = [str(atom) for atom in symbolic.atoms(value)]
        return int(symbolic.evaluate(value, {symbolic.Symbol(name): dims.setdefault(name, 1) for name in names}))
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"the extent {dim} needs a value: --dim \"{dim}=8\"") from None


def random_array(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind in "iu":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def command_compile(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    program = program_of(arguments)
    output = arguments.output or str(Path(arguments.model.split(":")[0]).with_suffix(".ingot"))
    program.save(output)
    print(f"wrote {output} ({Path(output).stat().st_size} bytes) in {time.perf_counter() - started:.2f} s")


def command_run(arguments: argparse.Namespace) -> None:
    if arguments.bisect:
        return command_bisect(arguments)
    executable = compiled(arguments)
    inputs = inputs_for(executable, arguments)
    results = executable(**inputs)
    for name, what, array in _named_results(executable, results):
        print(f"{what}: {np.array2string(np.asarray(array), threshold=16, precision=6)}")
        if arguments.output_dir:
            folder = Path(arguments.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / f"{_file_name(name)}.npy") as file:
                np.save(file, array)
    return None


def _named_results(executable: Any, results: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, name and type, value) of each output; those of a model in stages are known when it has run."""
    if hasattr(executable, "output_names"):
        several = results if len(executable.output_names) != 1 else (results,)
        for name, value in zip(executable.output_names, several, strict=True):
            yield name, f"{name}: {np.asarray(value).dtype}{list(np.shape(value))}", value
        return
    leaves = [leaf for _, leaf in functions.flatten(results)[0]]
    outputs = executable.outputs
    for n, leaf in enumerate(leaves):
        spec = outputs[n] if n < len(outputs) else outputs[-1]  # an output may be listed twice
        yield spec.name, str(spec), leaf


def _file_name(name: str) -> str:
    """Names of ONNX values are often paths."""
    return re.sub(r"[^\w.\-]+", "_", name).strip("_.") or "output"


def command_bisect(arguments: argparse.Namespace) -> None:
    model, types = model_and_types(arguments)
    traced = functions.trace(model.eval() if isinstance(model, Module) else model, types)
    executable = CompiledFunction(pipeline.compile_graph(traced.graph), traced)
    inputs = inputs_for(executable, arguments)

    def run(compilation: pipeline.Compiled, given: Any) -> Any:
        result = CompiledFunction(compilation, traced)(**given)
        return [leaf for _, leaf in functions.flatten(result)[0]]

    blame = pipeline.bisect(traced.graph, inputs, run=run)
    if blame is None:
        print("every pass and the compiled program agree with the NumPy interpreter")
    else:
        raise UsageError(f"{blame.stage} changes output {blame.output!r} by {blame.error:.3g} of its range")


def command_explain(arguments: argparse.Namespace) -> None:
    report = compiled(arguments).explain()
    if arguments.html:
        report.html(arguments.html)
        print(f"wrote {arguments.html}")
    elif arguments.json:
        print(report.json())
    else:
        print(report)


def command_bench(arguments: argparse.Namespace) -> None:
    runs: dict[str, Any] = {}
    if arguments.against:
        _require_peer(arguments)  # before anything is compiled
    executable = compiled(arguments)
    inputs = inputs_for(executable, arguments)
    runs["ingot"] = lambda: executable(**inputs)
    if arguments.against:
        runs[arguments.against] = _peer(arguments, inputs)
        _show_difference(executable, runs["ingot"](), runs[arguments.against]())
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + arguments.seconds
    while time.perf_counter() < stop or len(times["ingot"]) < 3:
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    for name, seconds in times.items():
        best, median = 1e3 * min(seconds), 1e3 * float(np.median(seconds))
        print(f"{name}: best {best:.4f} ms, median {median:.4f} ms, {len(seconds)} runs")
    if arguments.against:
        print(f"ratio (best): {min(times[arguments.against]) / min(times['ingot']):.2f}")


def _show_difference(executable: Any, found: Any, expected: Sequence[Any]) -> None:
    for (name, _, have), want in zip(_named_results(executable, found), expected, strict=False):
        have, want = np.asarray(have), np.asarray(want)
        if have.shape != want.shape or want.dtype.kind not in "fiub":
            continue
        gap = np.abs(have.astype(np.float64) - want.astype(np.float64))
        print(f"{name}: differs by at most {np.max(gap, initial=0.0):.3g}, values up to {np.max(np.abs(want), initial=0):.3g}")


def _require_peer(arguments: argparse.Namespace) -> Any:
    if arguments.against != "onnxruntime" or not arguments.model.endswith(".onnx"):
        raise UsageError("--against takes onnxruntime, for an .onnx file")
    try:
        return importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        raise UsageError("onnxruntime is not installed; pip install onnxruntime") from None


def _peer(arguments: argparse.Namespace, inputs: dict[str, np.ndarray]) -> Any:
    runtime = _require_peer(arguments)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = arguments.threads or 1
    session = runtime.InferenceSession(arguments.model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def command_check(arguments: argparse.Namespace) -> None:
    problems = ingot.check_onnx(arguments.model)
    for problem in problems:
        print(problem)
    if problems:
        raise UsageError(f"{len(problems)} problems")
    print("no problems: this model compiles")


def command_targets(arguments: argparse.Namespace) -> None:
    for name in ("native", *target.NAMED):
        described = target.Target.named(name)
        print(
            f"{name:12} {described.triple:28} {described.cpu:12} {8 * described.vector_bytes}-bit vectors, "
            f"{described.vector_registers} registers, fma {'yes' if described.has_fma else 'no'}"
        )


def command_build(arguments: argparse.Namespace) -> None:
    """A model with its types, or `module.py:name` of a function that returns a trainer, or (trainer, batches)."""
    made = load_model(arguments.model)
    if not isinstance(made, Module) and callable(made) and not inspect.signature(made).parameters:
        made = made()
    if isinstance(made, tuple) and made and isinstance(made[0], ingot.Trainer):
        made = made[0]
    types = [] if isinstance(made, ingot.Trainer) else [parse_type(t) for t in arguments.type or ()]
    if not types and not isinstance(made, ingot.Trainer):
        types = list(getattr(made, "input_types", ()))
        if not types:
            raise UsageError('this model needs its argument types: --type "f32[batch, 784]", once per argument')
    choices: dict[str, Any] = {"target": arguments.target, "fuse": not arguments.no_fusion}
    if arguments.memory_budget:
        choices["memory_budget"] = arguments.memory_budget
    folder = arguments.folder or arguments.output or "."
    named = {"name": arguments.name, "compiler": arguments.compiler, "static": arguments.static}
    for path in ingot.build(made, folder, *types, **named, **choices):
        print(f"{path} ({path.stat().st_size} bytes)")


def command_train(arguments: argparse.Namespace) -> None:
    """`module.py:name` names a function that returns (trainer, batches)."""
    made = load_model(arguments.model)()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], ingot.Trainer)):
        raise UsageError("train wants a function that returns (trainer, batches)")
    trainer, batches = made
    if arguments.resume:
        trainer.load(arguments.resume)
    losses = trainer.fit(batches)
    print(f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if arguments.output:
        trainer.save(arguments.output)
        print(f"wrote {arguments.output}")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="ingot", description="Ingot casts deep-learning models into native code.")
    top.add_argument("--version", action="version", version=ingot.__version__)
    commands = top.add_subparsers(dest="command", required=True)

    def add(name: str, function: Any, text: str, model: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        if model:
            command.add_argument("model", help="model.onnx, program.ingot, stage.graph or module.py:name")
            command.add_argument("--type", action="append", help='type of an argument, e.g. "f32[batch, 784]"')
            command.add_argument("--threads", type=int)
            command.add_argument("--target", default="native")
            command.add_argument("--dump-ir", metavar="DIR", help="write every stage there")
            command.add_argument("--no-fusion", action="store_true")
            command.add_argument("--memory-budget", metavar="SIZE", help="e.g. 64MB")
        return command

    add("compile", command_compile, "compile to a file that runs without the compiler").add_argument("-o", "--output")
    for name, function, text in (
        ("run", command_run, "compile and run once"),
        ("bench", command_bench, "measure the time of a call"),
    ):
        command = add(name, function, text)
        command.add_argument("--input", action="append", metavar="NAME=FILE.npy")
        command.add_argument("--dim", action="append", metavar="NAME=SIZE", help="size of a symbolic dim")
        if name == "run":
            command.add_argument("--output-dir", metavar="DIR")
            command.add_argument("--bisect", action="store_true", help="name the first pass that changes a result")
        else:
            command.add_argument("--against", help="a peer to compare with: onnxruntime")
            command.add_argument("--seconds", type=float, default=2.0)
    explain = add("explain", command_explain, "say what was done to the model and why")
    explain.add_argument("--html", metavar="FILE")
    explain.add_argument("--json", action="store_true")
    add("check", command_check, "list every problem of an ONNX file")
    build = add("build", command_build, "write a C header, libraries and an executable that runs or trains")
    build.add_argument("folder", nargs="?", help="where to write them")
    build.add_argument("-o", "--output", metavar="DIR", help="the same")
    build.add_argument("--name", help="of the files and the C functions")
    build.add_argument("--compiler", help="a C compiler's command, e.g. cc")
    build.add_argument("--static", action="store_true", help="an executable without shared libraries")
    train = add("train", command_train, "train with a function that returns (trainer, batches)")
    train.add_argument("-o", "--output", metavar="FILE", help="write a checkpoint at the end")
    train.add_argument("--resume", metavar="FILE", help="continue from a checkpoint")
    add("targets", command_targets, "list the targets", model=False)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        arguments.function(arguments)
    except (UsageError, IngotError, IngotRuntimeError, OSError) as error:
        print(f"ingot: {error}", file=sys.stderr)
        return 1
    return 0
