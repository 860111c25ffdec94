"""ingot.build: a model or a trainer as a C library and a stand-alone executable.

    name.h        the interface: run a model, or one step of training, from C or C++
    libname.a     static library;  libname.so  shared library
    name          executable: runs the model on .npy files, or trains on them, without Python

Objects and weights are the compiler's, so results have the same bits as in the process that built them. Only this
function needs a C compiler: the system's, or the ziglang wheel.
Non-goal: models that need Python between compiled parts (ONNX nodes that run on the host).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.compiler.codegen.archive import archive
from ingot.compiler.codegen.symbols import prefixed
from ingot.compiler.errors import Code, IngotTypeError, IngotValueError
from ingot.compiler.ir.graph import Graph
from ingot.compiler.options import Options
from ingot.compiler.pipeline import Compiled, compile_graph
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.trainer import Trainer
from ingot.frontends.native.header import Interface, header_text
from ingot.frontends.native.names import identifier
from ingot.frontends.native.source import Blob, description_text, library_text, prefix_of, weights_text
from ingot.frontends.native.toolchain import Toolchain, find_toolchain
from ingot.runtime import native
from ingot.runtime.abi import ALIGNMENT
from ingot.runtime.manifest import TensorSpec
from ingot.runtime.storage import byte_view, replacing

_LARGEST_WEIGHTS = (1 << 31) - (64 << 20)  # code reaches data with 32-bit distances


def build(
    model: Any,
    directory: str | os.PathLike[str],
    *types: Any,
    name: str | None = None,
    compiler: str | Sequence[str] | None = None,
    static: bool = False,
    **options: Any,
) -> list[Path]:
    """Write header, libraries and executable for a model (a function, Module or ONNX model) or a Trainer.

    `types` are those of the model's arguments, as for `ingot.compile`; a trainer and an ONNX model know their own.
    `name` is that of the files and the prefix of the C functions: "model", or "train" for a trainer.
    `compiler` is a C compiler's command; by default the system's, else the ziglang wheel's.
    `static` links the executable without any shared library. `options` are fields of Options.
    """
    is_trainer = isinstance(model, Trainer)
    chosen = name or ("train" if is_trainer else "model")
    _check_name(chosen)
    compiled = _trainer(model, types, options) if is_trainer else _model(model, types, options)
    states = model.states if is_trainer else {}
    title = type(model.model if is_trainer else model).__name__
    interface = Interface(chosen, compiled.program.manifest, "step" if is_trainer else "run")
    if is_trainer:
        _check_batches(interface)
    architecture = interface.manifest.target.triple.split("-")[0]
    toolchain = find_toolchain(architecture, compiler, static)
    with tempfile.TemporaryDirectory(prefix="ingot-build-") as folder:
        work = _Work(Path(folder), toolchain, interface, compiled, states, title)
        made = work.run(native.TRAIN if is_trainer else native.RUN, static)
        return _deliver(made, Path(directory))


# --- compiling ----------------------------------------------------------------------------------------


def _trainer(trainer: Trainer, types: Sequence[Any], options: dict[str, Any]) -> Compiled:
    if types:
        raise IngotTypeError(Code.ARGUMENT_COUNT, "a trainer knows the types of its batches", hint="leave them out")
    return _compiled(trainer.graph, trainer.options.with_(**options))


def _model(model: Any, types: Sequence[Any], options: dict[str, Any]) -> Compiled:
    names: Sequence[str] | None = getattr(model, "input_names", None)  # an ONNX model has names and types
    types = types or (model.input_types if names is not None else ())
    graph = functions.trace(model, types, names, training=False).graph
    if names is not None:
        graph = replace(graph, output_names=tuple(model.output_names))
    return _compiled(graph, Options.from_environment().with_(**options))


def _compiled(graph: Graph, options: Options) -> Compiled:
    """The cache keeps linked programs; here the objects are wanted."""
    return compile_graph(graph, options.with_(cache=False, profile=False))


def _check_name(name: str) -> None:
    if name != identifier(name) or name.startswith("ingot_"):
        raise IngotValueError(
            Code.NOT_BUILDABLE, f"{name!r} cannot be a prefix of C functions", hint="use letters, digits and _"
        )


def _check_batches(interface: Interface) -> None:
    """The executable cuts every argument along its first axis."""
    inputs = interface.manifest.inputs
    firsts = {spec.shape[:1] for spec in inputs}
    if not inputs or () in firsts or len(firsts) > 1:
        listed = ", ".join(map(str, inputs)) or "none"
        raise IngotValueError(
            Code.NOT_BUILDABLE,
            f"batches are cut along the first axis, which must be the same dim in all arguments; they are {listed}",
        )


# --- files ----------------------------------------------------------------------------------------------


class _Work:
    """One build in a temporary folder."""

    def __init__(
        self,
        folder: Path,
        toolchain: Toolchain,
        interface: Interface,
        compiled: Compiled,
        states: dict[str, np.ndarray],
        title: str,
    ) -> None:
        manifest = interface.manifest
        self.folder = folder
        self.toolchain = toolchain
        self.interface = interface
        self.objects = compiled.objects
        self.constants = _blob(manifest.constants, compiled.program.constants)
        self.initial = _blob(manifest.states, states)
        self.title = title

    def run(self, sources: Sequence[str], static: bool) -> list[Path]:
        name = self.interface.name
        library = self._library()
        main = [self._main(source) for source in sources]
        contents = {path.name: path.read_bytes() for path in library}
        (self.folder / f"lib{name}.a").write_bytes(archive(contents))
        parts = [path.name for path in library]
        shared = self.toolchain.link(
            self.folder, parts, f"lib{name}.so", ["-shared", f"-Wl,-soname,lib{name}.so", "-Wl,-Bsymbolic"]
        )
        description = self._write("description.c", description_text(self.interface, self.initial, self.title))
        main.append(self.toolchain.compile(self.folder, description, native.FOLDER))
        executable = self.toolchain.link(
            self.folder, [*(path.name for path in main), *parts], f"{name}.bin", ["-static"] if static else []
        )
        return [self.folder / f"{name}.h", self.folder / f"lib{name}.a", shared, executable]

    def _library(self) -> list[Path]:
        """The objects of the libraries: kernels, weights, and the functions of the header."""
        name = self.interface.name
        (self.folder / "constants.bin").write_bytes(self.constants.data)
        (self.folder / "initial.bin").write_bytes(self.initial.data)
        self._write(f"{name}.h", header_text(self.interface))
        sources = [
            self._write("library.c", library_text(self.interface, self.constants, self.initial)),
            self._write("weights.s", weights_text(name)),
        ]
        found = [self.toolchain.compile(self.folder, source) for source in sources]
        for number, data in enumerate(prefixed(self.objects, prefix_of(name))):
            found.append(self.folder / f"kernels{number}.o")
            found[-1].write_bytes(data)
        return found

    def _main(self, source: str) -> Path:
        return self.toolchain.compile(self.folder, str(native.FOLDER / source))

    def _write(self, name: str, contents: str) -> str:
        (self.folder / name).write_text(contents, encoding="utf-8")
        return name


def _blob(specs: Iterable[TensorSpec], arrays: Any) -> Blob:
    """Each array on a 64-byte boundary."""
    parts: list[bytes] = []
    offsets: list[int] = []
    size = 0
    for spec in specs:
        data = byte_view(arrays[spec.name]).tobytes()
        padding = -size % ALIGNMENT
        parts += [bytes(padding), data]
        offsets.append(size + padding)
        size += padding + len(data)
    if size > _LARGEST_WEIGHTS:
        raise IngotValueError(
            Code.NOT_BUILDABLE,
            f"{size} bytes of weights do not fit into an executable, at most {_LARGEST_WEIGHTS} do",
            hint='use exe.save("m.ingot"), which has no limit',
        )
    return Blob(b"".join(parts), tuple(offsets))


def _deliver(made: Sequence[Path], directory: Path) -> list[Path]:
    """Move the results to their place; a file that is in use keeps its old contents there."""
    directory.mkdir(parents=True, exist_ok=True)
    delivered = []
    for path in made:
        is_executable = path.suffix in (".bin", ".so")
        target = directory / (path.stem if path.suffix == ".bin" else path.name)
        with replacing(target, durable=False) as file:
            file.write(path.read_bytes())
            if is_executable:
                os.fchmod(file.fileno(), 0o755)
        delivered.append(target)
    return delivered
