"""Read this first: how a graph becomes a program.

    graph --PASSES--> graph --split_constants--> prologue + main
    main  --partition--> kernels --schedule--> loops --assemble--> entry --codegen--> image --> Program

`PASSES` is the order, each with its reason. Every stage can be dumped as text, edited, and resumed from;
`bisect` runs the NumPy interpreter after each pass and names the first that changes a result.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import ingot.compiler.ops  # noqa: F401  the registry must be complete before anything is parsed
from ingot.compiler.assembly import Assembly, assemble, conditions_of
from ingot.compiler.codegen.objects import Compilation, CompiledFunctions
from ingot.compiler.errors import Code, IngotTypeError, IngotValueError
from ingot.compiler.fusion.cost import FusionLimits
from ingot.compiler.garbage import no_collection
from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.graph import Graph, Role, input_of
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.text.dump import load_dump, save_dump
from ingot.compiler.ir.text.graph import print_graph
from ingot.compiler.ir.text.loops import print_function
from ingot.compiler.ir.text.tensor import print_kernel
from ingot.compiler.ir.traverse import symbols_in
from ingot.compiler.ir.types import MOST_AXES, TensorType, dim_text
from ingot.compiler.ir.verify.graph import verify_graph
from ingot.compiler.ops.base import Condition, Op
from ingot.compiler.options import Options
from ingot.compiler.passes.decompose import Decompose
from ingot.compiler.passes.fold_batch_norm import FoldBatchNorm
from ingot.compiler.passes.fold_constants import split_constants
from ingot.compiler.passes.integer_products import IntegerProducts
from ingot.compiler.passes.invariants import Invariants
from ingot.compiler.passes.layout import Layout
from ingot.compiler.passes.motion import Motion
from ingot.compiler.passes.pointwise import Pointwise
from ingot.compiler.passes.prepack import Prepack
from ingot.compiler.passes.rewriting import Pass
from ingot.compiler.passes.rounded import Rounded
from ingot.compiler.passes.scans import Scans
from ingot.compiler.passes.simplify import Simplify
from ingot.compiler.passes.winograd import Winograd
from ingot.compiler.passes.zero_points import ZeroPoints
from ingot.compiler.prologue import Prologue
from ingot.compiler.rematerialise import fit
from ingot.compiler.report import KeptReport, build_report, without_sources
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.schedule.repeats import Repeats
from ingot.compiler.schedule.result import Scheduled, ScheduleOptions
from ingot.compiler.target import Target
from ingot.compiler.tuning import Tuner
from ingot.runtime.cache import Cache
from ingot.runtime.image import Image
from ingot.runtime.manifest import DimSpec, Manifest, TargetSpec, TensorSpec
from ingot.runtime.program import Program
from ingot.runtime.threads import thread_limit

PASSES: tuple[Pass, ...] = (
    Scans(),  # first, while the bodies of related scans are still the same values
    Layout(),  # while convolutions and pools are whole
    Decompose(),  # composite ops have no way down of their own
    Simplify(),  # gradients and decompositions leave neutral elements and literals behind
    Motion(),  # transposes of the layouts meet and cancel, or become letters of contractions
    IntegerProducts(),  # while weights are codes: the next one multiplies norms into them
    Rounded(),  # the codes that are left between floats are read by no product
    FoldBatchNorm(),  # the arithmetic of an inference norm stands right behind its convolution now
    ZeroPoints(),  # while convolutions are whole, after transposes have met
    Pointwise(),  # convolutions are final: norms are in the weights, gradients are convolutions too
    Winograd(),  # for the same reason
    Prepack(),  # last of the rewrites: nothing after it looks at contractions
    Invariants(),  # the rearranging of captured weights leaves loops
)

MAXIMUM_BYTES = 1 << 47  # more than a process can address


@dataclass(frozen=True)
class Compiled:
    """Everything about one compilation; `program` is what runs, the rest is for looking at."""

    program: Program
    graph: Graph
    assembly: Assembly | None  # None: the program came from the cache
    from_cache: bool
    objects: tuple[bytes, ...] = field(default=(), repr=False)  # for other linkers; empty from the cache


@no_collection()
def compile_graph(graph: Graph, options: Options | None = None, start: str | None = None) -> Compiled:
    """The program of a graph. `start` names a pass whose result `graph` already is (a resumed dump)."""
    options = options or Options()
    target = _target(options)
    check_sizes(graph)
    key = _key(graph, options, target, start)
    cache = Cache() if options.cache and options.dump is None else None
    if cache is not None:
        found = _from_cache(cache.get(key), graph, options)
        if found is not None:
            return Compiled(found, graph, None, True)
    dumper = _Dumper(options.dump)
    optimised = run_passes(graph, options, dumper, start)
    split = split_constants(optimised, options.fold_elements)
    if options.dump is not None:
        folded = Prologue.of(split.prologue).folded(graph.constants)
        dumper.graph("constants", replace(split.main, constants={**graph.constants, **folded}))
    with Compilation(target, options.workers) as compilation:
        main, assembly = _assembled(split.main, conditions_of(graph), options, target, cache, compilation.add)
        dumper.assembly(assembly)
        check_budget(assembly.arena_bytes, options.memory_budget)
        code = compilation.finish(
            assembly.entry,
            dims=dims_of(main),
            arena_bytes=assembly.arena_bytes,
            shapes=_public_shapes(main),
            profile=options.profile,
        )
    dumper.code(code)
    report = build_report(main, assembly, split.reasons)
    manifest = _manifest(main, assembly, code, target, report)
    prologue = Prologue.of(split.prologue)
    if cache is not None:
        kept = replace(manifest, report={})
        cache.put(key, _to_cache(kept, without_sources(report, graph), code.image, prologue))
    constants = _constants(manifest, graph.constants, prologue, options)
    return Compiled(Program(manifest, code.image, constants), main, assembly, False, code.objects)


@no_collection()
def check_graph(graph: Graph, options: Options | None = None) -> None:
    """Raises what compile_graph would raise about the graph, without making code of it: tensors that are too large, and
    failures of what is computed of weights alone."""
    options = options or Options()
    check_sizes(graph)
    split = split_constants(run_passes(graph, options), options.fold_elements)
    Prologue.of(split.prologue).folded(graph.constants)


def _assembled(
    graph: Graph,
    conditions: Sequence[Condition],
    options: Options,
    target: Target,
    cache: Cache | None,
    ready: Callable[[loops.Function], None],
) -> tuple[Graph, Assembly]:
    """The program of the passes' result, and the graph it is of: one that fits the memory budget. With a budget of
    time, of schedules that were measured. `ready` is told functions of the program as soon as they are made, unless
    a budget can change them."""

    def by_rule(kernel: Kernel, choices: ScheduleOptions) -> Scheduled:
        return schedule(kernel, target, choices)

    is_final = options.memory_budget is None and options.tune is None

    def assembled(graph: Graph, limits: FusionLimits) -> Assembly:
        told = ready if is_final else None
        return assemble(graph, Repeats(by_rule), options.fuse, conditions, target, told, limits)

    limits = FusionLimits()

    if options.memory_budget is None:
        assembly = assembled(graph, limits)
    else:
        graph, limits, assembly = fit(graph, options.memory_budget, assembled)
    if options.tune is None:
        return graph, assembly
    if target != Target.host():
        raise IngotValueError(Code.BAD_OPTION, "schedules can be measured on this machine only: tune needs its target")
    tuner = Tuner(target, options.tune, cache, _SOURCES)
    tuner.tune(placed.kernel for placed in assembly.kernels if placed.kernel is not None)
    return graph, assemble(graph, Repeats(tuner.schedule), options.fuse, conditions, target, None, limits)


def run_passes(graph: Graph, options: Options, dumper: _Dumper | None = None, start: str | None = None) -> Graph:
    """The graph after all passes (those after `start`)."""
    target = _target(options)
    names = [p.name for p in PASSES]
    first = 0 if start in (None, "import") else names.index(start) + 1  # type: ignore[arg-type]
    if dumper:
        dumper.graph("import" if first == 0 else f"resume-{start}", graph)
    for step in PASSES[first:]:
        if options.passes is not None and step.name not in options.passes:
            continue
        graph = step.configured(options, target)(graph)
        if options.verify:
            verify_graph(graph)
        if dumper:
            dumper.graph(step.name, graph)
    return graph


def _target(options: Options) -> Target:
    try:
        return Target.named(options.target)
    except ValueError as error:
        raise IngotValueError(Code.UNKNOWN_TARGET, str(error)) from None


def check_sizes(graph: Graph) -> None:
    """Refuse tensors that no machine can hold before anything is allocated for them."""
    checked: set[int] = set()  # most values have the type of another, the same object
    for value in (*graph.inputs, *graph.body):
        if id(value.type) in checked:
            continue
        checked.add(id(value.type))
        for tensor in (value.type,) if isinstance(value.type, TensorType) else value.type.elements:
            name = getattr(value.op, "name", "input")
            if tensor.rank > MOST_AXES:
                raise IngotTypeError(Code.TOO_LARGE, f"{name} has a type of {tensor.rank} axes", value.source)
            size = tensor.bytes
            least = size if isinstance(size, int) else (symbolic.bounds(size)[0] or 0)
            spanned = tensor.dtype.itemsize * math.prod(dim for dim in tensor.shape if isinstance(dim, int) and dim)
            if least > MAXIMUM_BYTES or spanned > sys.maxsize:  # NumPy limits extents also where there are no elements
                raise IngotTypeError(
                    Code.TOO_LARGE, f"{name} has type {tensor!r}, which needs {max(least, spanned)} bytes", value.source
                )


def check_budget(arena: Dim, budget: int | None) -> None:
    """The budget is a promise: refuse now what could exceed it."""
    if budget is None:
        return
    most = arena if isinstance(arena, int) else symbolic.bounds(arena)[1]
    if most is None:
        raise IngotValueError(
            Code.MEMORY_BUDGET,
            f"the program needs {dim_text(arena)} bytes, which has no upper bound",
            hint='give the dims upper bounds: ingot.dim("batch", 1, 64)',
        )
    if most > budget:
        raise IngotValueError(
            Code.MEMORY_BUDGET, f"the program needs {most} bytes of scratch memory, the budget is {budget} bytes"
        )


# --- cache ----------------------------------------------------------------------------------------


def _sources_digest() -> str:
    """Of the compiler's own sources: another compiler is another cache."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCES = _sources_digest()


def _key(graph: Graph, options: Options, target: Target, start: str | None) -> str:
    parts = (_SOURCES, print_graph(graph, sources=False), options.key, repr(target), str(start))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


_SIZES = struct.Struct("<4Q")  # of the parts of a cached program: manifest, report, prologue, image


def _to_cache(manifest: Manifest, report: Mapping[str, object], image: Image, prologue: Prologue) -> bytes:
    parts = (manifest.to_json().encode(), json.dumps(report).encode(), prologue.to_bytes(), image.to_bytes())
    return _SIZES.pack(*map(len, parts)) + b"".join(parts)


def _from_cache(data: bytes | None, graph: Graph, options: Options) -> Program | None:
    if data is None:
        return None
    contents = io.BytesIO(data)
    kept, report, prologue, image = (contents.read(size) for size in _SIZES.unpack(contents.read(_SIZES.size)))
    manifest = replace(Manifest.from_json(kept), report=KeptReport(report, graph))
    constants = _constants(manifest, graph.constants, Prologue.from_bytes(prologue), options)
    return Program(manifest, Image.from_bytes(image), constants)


def _constants(
    manifest: Manifest, given: Mapping[str, np.ndarray], prologue: Prologue, options: Options
) -> dict[str, np.ndarray]:
    """The arrays of the program's constants."""
    return prologue.constants([spec.name for spec in manifest.constants], given, options.workers or thread_limit())


# --- the program's description ----------------------------------------------------------------------


def _manifest(
    graph: Graph, assembly: Assembly, code: CompiledFunctions, target: Target, report: dict[str, object]
) -> Manifest:
    by_output = {number: name for name, number in graph.updates.items()}

    def specs(role: Role) -> tuple[TensorSpec, ...]:
        return tuple(_spec(input_of(v).name, v.tensor) for v in graph.inputs_with(role))

    return Manifest(
        target=TargetSpec(target.triple, target.cpu, _required_features(target)),
        inputs=specs("argument"),
        states=specs("state"),
        constants=specs("constant"),
        outputs=tuple(_spec(n, v.tensor) for n, v in zip(graph.output_names, graph.outputs, strict=True)),
        dims=tuple(DimSpec(str(s), max(0, s.lower or 0), s.upper) for s in dims_of(graph)),
        aliases={graph.output_names[number]: name for number, name in by_output.items()},
        sites=code.sites,
        kernels=code.kernels,
        report=report,
        parallel=code.parallel,
    )


def _public_shapes(graph: Graph) -> tuple[Dim, ...]:
    """The extents of arguments, states and outputs, one after another."""
    values = (*graph.inputs_with("argument"), *graph.inputs_with("state"), *graph.outputs)
    return tuple(d for v in values for d in v.shape)


def dims_of(graph: Graph) -> tuple[Symbol, ...]:
    """The symbolic dims of a program, in the order in which their values are passed."""
    dims = [d for v in (*graph.inputs, *graph.outputs) for d in v.shape]
    return symbols_in(dims)


def _required_features(target: Target) -> tuple[str, ...]:
    return tuple(f[1:] for f in target.features.split(",") if f.startswith("+"))


def _spec(name: str, type: TensorType) -> TensorSpec:
    return TensorSpec(name, type.dtype.name, tuple(d if isinstance(d, int) else dim_text(d) for d in type.shape))


# --- looking ----------------------------------------------------------------------------------------


class _Dumper:
    """Writes stages as numbered text files; does nothing without a folder."""

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) if folder else None
        self.count = 0
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        path = self.folder / f"{self.count:02}-{name}"
        self.count += 1
        return path

    def graph(self, name: str, graph: Graph) -> None:
        if self.folder:
            save_dump(graph, self._path(f"{name}.graph"))

    def assembly(self, assembly: Assembly) -> None:
        if not self.folder:
            return
        plans = "\n\n".join(f"# {name}\n{plan}" for name, plan in assembly.plans)
        self._path("fusion.txt").write_text(plans + "\n")
        kernels = "\n\n".join(print_kernel(k.kernel) for k in assembly.kernels if k.kernel is not None)
        self._path("kernels.tensor").write_text(kernels + "\n")
        self._path("entry.loops").write_text(print_function(assembly.entry) + "\n")
        notes = [f"arena: {dim_text(assembly.arena_bytes)} bytes", *assembly.memory_notes]
        self._path("memory.txt").write_text("\n".join(notes) + "\n")

    def code(self, code: CompiledFunctions) -> None:
        if self.folder:
            for name, text in code.texts.items():
                (self.folder / f"{self.count:02}-{name}.ll").write_text(text)
            self.count += 1


@dataclass(frozen=True)
class Blame:
    """Where a result first changed: the pass, the output and how much."""

    stage: str
    output: str
    error: float


def bisect(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    options: Options | None = None,
    run: Callable[[Compiled, Mapping[str, np.ndarray]], Sequence[np.ndarray]] | None = None,
    tolerance: float = 1e-4,
) -> Blame | None:
    """The first stage after which the results differ from the NumPy meaning of the graph: a pass, `constants`
    (what is folded), or `codegen` when `run` executes the compiled program. None when all agree."""
    options = options or Options()
    expected = run_graph(graph, inputs)

    def differs(stage: str, found: Sequence[np.ndarray]) -> Blame | None:
        for name, want, have in zip(graph.output_names, expected, found, strict=True):
            error = relative_error(have, want)
            if not error <= tolerance:
                return Blame(stage, name, error)
        return None

    current = graph
    for step in PASSES:
        if options.passes is not None and step.name not in options.passes:
            continue
        current = step.configured(options, _target(options))(current)
        found = differs(step.name, run_graph(current, inputs))
        if found:
            return found
    split = split_constants(current, options.fold_elements)
    found = differs("constants", run_graph(split.main, {**Prologue.of(split.prologue).folded(graph.constants), **inputs}))
    if found:
        return found
    if run is not None:
        return differs("codegen", run(compile_graph(graph, options), inputs))
    return None


def relative_error(have: np.ndarray, want: np.ndarray) -> float:
    """Largest difference relative to the largest expected magnitude; equal NaN and infinities are equal."""
    a, b = np.asarray(have, np.float64), np.asarray(want, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-30)
    with np.errstate(all="ignore"):
        difference = np.where(same, 0.0, np.abs(a - b))
    return float(np.max(np.where(np.isnan(difference), np.inf, difference)) / scale)


def resume(path: str | Path, options: Options | None = None) -> Compiled:
    """Compile from a dumped graph: the passes that made it are not run again."""
    stage = Path(path).name.split("-", 1)[-1].removesuffix(".graph").removeprefix("resume-")
    try:
        graph = load_dump(path, Op.registry)
        verify_graph(graph)
    except (ValueError, TypeError) as error:
        raise IngotValueError(Code.BAD_DUMP, str(error), str(path)) from None
    known = ["import", *(p.name for p in PASSES), "constants"]
    if stage not in known:
        raise IngotValueError(Code.BAD_DUMP, f"{path} is not called after a stage; stages are {', '.join(known)}")
    return compile_graph(graph, options, PASSES[-1].name if stage == "constants" else stage)
