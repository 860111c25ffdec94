"""Functions to a linked image: emit, compile in parallel, link with the thread pool. A function can be given as soon as it
is known; LLVM works on it on threads of its own while the next one is scheduled and emitted.

Kernels are compiled in modules of about MODULE_CHARACTERS: enough of them to keep several threads busy, few enough that
LLVM's fixed cost of a module (about 3 ms) does not count, nor that of waiting twice for the interpreter's lock (10 ms).
Kernels whose text is the same but for the name are compiled once. Nothing is left for LLVM's IR passes to do (hoisting,
common subexpressions, registers and vectors are done by construction), so none run: on kernels without spills they change
the compile time and not the code (see docs/decisions.md).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ingot.compiler.codegen.abi import SUPPORT, Kernel, dims_of, module_text
from ingot.compiler.codegen.call import call_module
from ingot.compiler.codegen.emit import emit_kernel
from ingot.compiler.codegen.entry import Callee, Interface, emit_entry
from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.parallel import emit_objects
from ingot.compiler.codegen.pool import pool_module
from ingot.compiler.ir import loops, symbolic, traverse
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.target import Target
from ingot.runtime.abi import ALLOWED_IMPORTS, ENTRY_PROFILE, PARALLEL_FOR, REQUIRED_EXPORTS
from ingot.runtime.image import Image

MODULE_CHARACTERS = 80_000  # 30 to 40 ms of LLVM; the cut does not depend on the number of workers
PASSES: tuple[str, ...] = ()
LEVEL = 2  # of the code generator: 0 keeps every value in memory, 1 to 3 give the same code here


@dataclass(frozen=True)
class CompiledFunctions:
    """A linked program and what its manifest says about the code."""

    image: Image
    kernels: tuple[str, ...]  # names, in the order of the times of `ingot_entry_profile`
    sites: tuple[str, ...]
    parallel: bool  # whether any kernel uses the thread pool
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)  # module name -> LLVM IR, for looking at
    objects: tuple[bytes, ...] = field(default=(), repr=False)  # what the image was linked from, relocatable
    compiled: int = 0  # kernels that were compiled: the others have the same code as one of these


def compile_functions(
    entry: loops.Function,
    target: Target,
    workers: int | None = None,
    *,
    dims: Sequence[Symbol] | None = None,
    arena_bytes: Dim | None = None,
    shapes: Sequence[Dim] | None = None,
    profile: bool = True,
) -> CompiledFunctions:
    """The image of a program: its entry, every function the entry calls, the pool.

    `dims`: the symbols in the order in which the caller passes their values (by default all that occur, by name).
    `arena_bytes`: scratch size (by default what the entry's allocations span).
    `shapes`: extents of inputs, states and outputs for `ingot_shapes` (by default of all parameters).
    """
    with Compilation(target, workers) as compilation:
        return compilation.finish(entry, dims=dims, arena_bytes=arena_bytes, shapes=shapes, profile=profile)


class Compilation:
    """A program in the making: the code of a function is made while whoever calls still works on the others."""

    def __init__(self, target: Target, workers: int | None = None) -> None:
        self._target = target
        self._compiler = _Compiler(target, workers or _workers())
        self._kernels = _Kernels(target)

    def __enter__(self) -> Compilation:
        self._compiler.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._compiler.__exit__(*error)

    def add(self, function: loops.Function) -> None:
        """A function that the entry is going to call. It may be left out: `finish` adds what is missing."""
        kernel = self._kernels.emit(function)
        if kernel is not None:
            self._compiler.add(kernel)

    def finish(
        self,
        entry: loops.Function,
        *,
        dims: Sequence[Symbol] | None = None,
        arena_bytes: Dim | None = None,
        shapes: Sequence[Dim] | None = None,
        profile: bool = True,
    ) -> CompiledFunctions:
        """The image; see `compile_functions`."""
        functions = [f for f in traverse.functions_of(entry) if f is not entry]
        kernels = self._kernels
        for function in functions:
            self.add(function)
            kernels.place(function)
        interface = Interface(
            dims=tuple(dims_of(entry) if dims is None else dims),
            arena_bytes=_arena_bytes(entry) if arena_bytes is None else arena_bytes,
            shapes=tuple(d for p in entry.parameters for d in p.shape) if shapes is None else tuple(shapes),
        )
        module = emit_entry(entry, interface, kernels.callees, self._target, kernels.sites, profile)
        objects = self._compiler.finish(module.text)
        texts = {**{name: kernel.text for name, kernel in kernels.different.items()}, "entry": module.text}
        return CompiledFunctions(
            image=link(objects, (*REQUIRED_EXPORTS, ENTRY_PROFILE) if profile else REQUIRED_EXPORTS),
            kernels=tuple(function.name for function in functions),
            sites=module.sites,
            parallel=any(f"@{PARALLEL_FOR}(" in text for text in texts.values()),
            texts=texts,
            objects=tuple(objects),
            compiled=len(kernels.different),
        )


class _Compiler:
    """Compiles kernels, several to a module, on threads of their own while more are being emitted. The caller is one of
    the workers: it emits, which nobody else can, and compiles what is left in the end."""

    def __init__(self, target: Target, workers: int) -> None:
        self.target = target
        self.threads = ThreadPoolExecutor(max(workers - 1, 1))
        self.support = self.threads.submit(_support, target)
        self.modules: list[tuple[str, Future[bytes]]] = []
        self.group: list[Kernel] = []
        self.size = 0

    def __enter__(self) -> _Compiler:
        return self

    def __exit__(self, *error: object) -> None:
        self.threads.shutdown(cancel_futures=error[0] is not None)

    def add(self, kernel: Kernel) -> None:
        self.group.append(kernel)
        self.size += len(kernel.body)
        if self.size >= MODULE_CHARACTERS:
            self._flush()

    def finish(self, entry: str) -> list[bytes]:
        """The objects of all kernels, of the entry's module and of what every program carries."""
        self._flush()
        self._submit(entry)
        taken = {text: _object(text, self.target) for text, future in reversed(self.modules) if future.cancel()}
        made = [taken[text] if text in taken else future.result() for text, future in self.modules]
        return [*made, *self.support.result()]

    def _flush(self) -> None:
        if self.group:
            self._submit(module_text(self.group))
        self.group, self.size = [], 0

    def _submit(self, text: str) -> None:
        self.modules.append((text, self.threads.submit(_object, text, self.target)))


def _object(text: str, target: Target) -> bytes:
    return emit_objects([text], target.triple, target.cpu, target.features, LEVEL, 1, PASSES)[0]


@functools.cache
def _support(target: Target) -> tuple[bytes, ...]:
    """The thread pool, the failure record and the way in from Python: the same in every program."""
    return tuple(_object(text, target) for text in (SUPPORT, pool_module(target.triple), call_module()))


class _Kernels:
    """Kernels as they are emitted; those that differ only in name are one."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.different: dict[str, Kernel] = {}  # symbol -> kernel
        self.callees: dict[loops.Function, Callee] = {}
        self.sites: list[str] = []
        self._emitted: dict[tuple[tuple[Buffer, ...], int], tuple[loops.Function, Kernel]] = {}
        self._symbols: dict[str, str] = {}  # text with the name left out -> symbol

    def emit(self, function: loops.Function) -> Kernel | None:
        """The kernel of a function when it has to be compiled, None when there is one like it already."""
        same = _shared(function)
        if same in self._emitted:
            return None
        kernel = emit_kernel(function, _PLACEHOLDER, self.target)
        self._emitted[same] = function, kernel  # the function too: its body keeps its id
        if kernel.body in self._symbols:
            return None
        symbol = self._symbols[kernel.body] = _unique(function.name, self.different)
        body = kernel.body.replace(_PLACEHOLDER, symbol)
        made = self.different[symbol] = replace(kernel, name=symbol, body=body)
        return made

    def place(self, function: loops.Function) -> None:
        """The next function of the program, which was emitted."""
        _, kernel = self._emitted[_shared(function)]
        self.callees[function] = Callee(kernel, self._symbols[kernel.body], len(self.sites), len(self.callees))
        self.sites.extend(kernel.sites)


def _shared(function: loops.Function) -> tuple[tuple[Buffer, ...], int]:
    """The same for functions that share a body, which share their code."""
    return function.parameters, id(function.body)


_PLACEHOLDER = "ingot.kernel"  # cannot be the name of a kernel: a dot


def _unique(name: str, taken: Mapping[str, object]) -> str:
    """A readable symbol that no other kernel has, and no function of the runtime or the C library."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name) or "kernel"
    if plain.startswith(("ingot_", "llvm")) or plain[0].isdigit() or plain in _RESERVED:
        plain = f"kernel_{plain}"
    symbol, count = plain, 1
    while symbol in taken:
        count += 1
        symbol = f"{plain}_{count}"
    return symbol


_RESERVED = ALLOWED_IMPORTS | {"entry", "main"}


def _arena_bytes(entry: loops.Function) -> Dim:
    ends = [
        statement.offset + statement.buffer.type.bytes
        for statement in loops.walk(entry.body)
        if isinstance(statement, loops.Alloc) and statement.offset is not None
    ]
    return symbolic.maximum(*ends) if ends else 0


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
