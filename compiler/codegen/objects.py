"""Functions to a linked image: emit, compile in parallel, link with the thread pool.

Kernels are compiled in modules of about MODULE_CHARACTERS: enough of them to keep several threads busy, few enough that
LLVM's fixed cost of a module (about 3 ms) does not count. Kernels whose text is the same but for the name are compiled
once. Nothing is left for LLVM's IR passes to do (hoisting, common subexpressions, registers and vectors
are done by construction), so none run: on kernels without spills they change the compile time and not the code
(see docs/decisions.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ingot.compiler.codegen.abi import SUPPORT, Kernel, module_text
from ingot.compiler.codegen.emit import emit_kernel
from ingot.compiler.codegen.entry import Callee, Interface, emit_entry
from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.parallel import emit_objects
from ingot.compiler.codegen.pool import pool_module
from ingot.compiler.ir import loops, symbolic, traverse
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.target import Target
from ingot.runtime.abi import ENTRY_PROFILE, PARALLEL_FOR, REQUIRED_EXPORTS
from ingot.runtime.image import Image

MODULE_CHARACTERS = 40_000  # 10 to 20 ms of LLVM; the cut does not depend on the number of workers
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
    functions = [f for f in traverse.functions_of(entry) if f is not entry]
    emitted = _emit_kernels(functions, target)
    interface = Interface(
        dims=tuple(_dims(entry) if dims is None else dims),
        arena_bytes=_arena_bytes(entry) if arena_bytes is None else arena_bytes,
        shapes=tuple(d for p in entry.parameters for d in p.shape) if shapes is None else tuple(shapes),
    )
    module = emit_entry(entry, interface, emitted.callees, target, emitted.sites, profile)
    texts = {**{name: kernel.text for name, kernel in emitted.kernels.items()}, "entry": module.text}
    modules = [*_modules(emitted.kernels.values()), module.text, SUPPORT, pool_module(target.triple)]
    objects = emit_objects(
        modules, target.triple, target.cpu, target.features, LEVEL, workers or _workers(), PASSES
    )
    exports = (*REQUIRED_EXPORTS, ENTRY_PROFILE) if profile else REQUIRED_EXPORTS
    return CompiledFunctions(
        image=link(objects, exports),
        kernels=tuple(function.name for function in functions),
        sites=module.sites,
        parallel=any(f"@{PARALLEL_FOR}(" in text for text in texts.values()),
        texts=texts,
        compiled=len(emitted.kernels),
    )


def _modules(kernels: Iterable[Kernel]) -> list[str]:
    """The kernels, several to a module."""
    groups: list[list[Kernel]] = []
    size = MODULE_CHARACTERS
    for kernel in kernels:
        if size >= MODULE_CHARACTERS:
            groups.append([])
            size = 0
        groups[-1].append(kernel)
        size += len(kernel.body)
    return [module_text(group) for group in groups]


@dataclass(frozen=True)
class _Emitted:
    kernels: dict[str, Kernel]  # symbol -> kernel, each different
    callees: dict[loops.Function, Callee]
    sites: tuple[str, ...]


def _emit_kernels(functions: Sequence[loops.Function], target: Target) -> _Emitted:
    """Each kernel that differs from all before it."""
    kernels: dict[str, Kernel] = {}
    symbols: dict[str, str] = {}  # text with the name left out -> symbol
    callees: dict[loops.Function, Callee] = {}
    sites: list[str] = []
    for number, function in enumerate(functions):
        kernel = emit_kernel(function, _PLACEHOLDER, target)
        symbol = symbols.get(kernel.body)
        if symbol is None:
            symbol = symbols[kernel.body] = _unique(function.name, kernels)
            kernels[symbol] = replace(kernel, name=symbol, body=kernel.body.replace(_PLACEHOLDER, symbol))
        callees[function] = Callee(kernel, symbol, len(sites), number)
        sites.extend(kernel.sites)
    return _Emitted(kernels, callees, tuple(sites))


_PLACEHOLDER = "ingot.kernel"  # cannot be the name of a kernel: a dot


def _unique(name: str, taken: Mapping[str, object]) -> str:
    """A readable symbol that no other kernel has, and no function of the runtime."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name) or "kernel"
    plain = plain if not plain.startswith(("ingot_", "llvm")) and not plain[0].isdigit() else f"kernel_{plain}"
    symbol, count = plain, 1
    while symbol in taken or symbol in _RESERVED:
        count += 1
        symbol = f"{plain}_{count}"
    return symbol


_RESERVED = frozenset({"entry", "memcpy", "memmove", "memset", "memcmp", "bcmp", "fmod", "fmodf", "clock_gettime",
                       "mmap", "munmap", "madvise", "getpid", "syscall", "main"})  # fmt: skip


def _dims(entry: loops.Function) -> tuple[Symbol, ...]:
    functions = traverse.functions_of(entry)
    return traverse.symbols_in(dim for each in functions for dim in traverse.function_dims(each))


def _arena_bytes(entry: loops.Function) -> Dim:
    ends = [
        statement.offset + statement.buffer.type.bytes
        for statement in loops.walk(entry.body)
        if isinstance(statement, loops.Alloc) and statement.offset is not None
    ]
    return symbolic.maximum(*ends) if ends else 0


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
