"""LLVM IR text to object code, several modules at once.

llvmlite takes one lock around every call into LLVM, so its own interface compiles one module at a time
whatever the number of threads.  LLVM itself needs no such lock as long as no two threads share a context.
Here each module gets a context, a target machine and a pass builder of its own, and the same library is
called through prototypes of our own, which take no lock; ctypes releases the interpreter's lock during the long calls.

Invariant: the objects depend on the text and the settings only, not on the number of workers.
Non-goal: choosing passes.  The emitted IR is already vectorised and unrolled; whoever calls knows what it
still needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

PASSES = {
    "always-inline": "LLVMPY_module_AddAlwaysInlinerPass",
    "adce": "LLVMPY_module_AddADCEPass",
    "dce": "LLVMPY_module_AddDCEPass",
    "dse": "LLVMPY_module_AddDSEPass",
    "globaldce": "LLVMPY_module_AddGlobalDCEPass",
    "instcombine": "LLVMPY_module_AddInstCombinePass",
    "loop-deletion": "LLVMPY_module_AddLoopDeletionPass",
    "loop-rotate": "LLVMPY_module_AddLoopRotatePass",
    "loop-simplify": "LLVMPY_module_AddLoopSimplifyPass",
    "loop-unroll": "LLVMPY_module_AddLoopUnrollPass",
    "newgvn": "LLVMPY_module_AddNewGVNPass",
    "sccp": "LLVMPY_module_AddSCCPPass",
    "simplifycfg": "LLVMPY_module_AddSimplifyCFGPass",
    "sroa": "LLVMPY_module_AddSROAPass",
}
PIPELINES = {"default<O1>": 1, "default<O2>": 2, "default<O3>": 3}
LIGHT_PASSES = ("sroa", "instcombine", "simplifycfg")

_Handle = ctypes.c_void_p
_Text = ctypes.c_char_p
_Message = ctypes.POINTER(ctypes.c_char_p)
_Flag = ctypes.c_int

# What is called, with its result first; only what takes time or touches a context needs to be here.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "LLVMPY_ContextCreate": (_Handle,),
    "LLVMPY_ContextDispose": (None, _Handle),
    "LLVMPY_ParseAssembly": (_Handle, _Handle, _Text, _Message),
    "LLVMPY_VerifyModule": (ctypes.c_bool, _Handle, _Message),
    "LLVMPY_DisposeModule": (None, _Handle),
    "LLVMPY_SetTarget": (None, _Handle, _Text),
    "LLVMPY_SetDataLayout": (None, _Handle, _Text),
    "LLVMPY_GetTargetFromTriple": (_Handle, _Text, _Message),
    "LLVMPY_CreateTargetMachine": (_Handle, _Handle, *[_Text] * 3, _Flag, _Text, _Text, _Flag, _Flag, _Text),
    "LLVMPY_DisposeTargetMachine": (None, _Handle),
    "LLVMPY_CreateTargetMachineData": (_Handle, _Handle),
    "LLVMPY_CopyStringRepOfTargetData": (None, _Handle, _Message),
    "LLVMPY_DisposeTargetData": (None, _Handle),
    "LLVMPY_CreatePipelineTuningOptions": (_Handle,),
    "LLVMPY_DisposePipelineTuningOptions": (None, _Handle),
    "LLVMPY_PTOSetLoopVectorization": (None, _Handle, ctypes.c_bool),
    "LLVMPY_PTOSetSLPVectorization": (None, _Handle, ctypes.c_bool),
    "LLVMPY_PTOSetLoopUnrolling": (None, _Handle, ctypes.c_bool),
    "LLVMPY_CreatePassBuilder": (_Handle, _Handle, _Handle),
    "LLVMPY_DisposePassBuilder": (None, _Handle),
    "LLVMPY_CreateNewModulePassManager": (_Handle,),
    "LLVMPY_buildPerModuleDefaultPipeline": (_Handle, _Handle, _Flag),
    "LLVMPY_RunNewModulePassManager": (None, _Handle, _Handle, _Handle),
    "LLVMPY_DisposeNewModulePassManger": (None, _Handle),  # spelled so in the library
    "LLVMPY_TargetMachineEmitToMemory": (_Handle, _Handle, _Handle, _Flag, _Message),
    "LLVMPY_GetBufferStart": (_Handle, _Handle),
    "LLVMPY_GetBufferSize": (ctypes.c_size_t, _Handle),
    "LLVMPY_DisposeMemoryBuffer": (None, _Handle),
    "LLVMPY_DisposeString": (None, _Text),
    **dict.fromkeys(PASSES.values(), (None, _Handle)),
}

# What takes so long that Python should go on meanwhile. After each such call a thread waits for the interpreter's lock,
# milliseconds when another one computes, so the short calls keep it.
_LONG = frozenset({
    "LLVMPY_ParseAssembly", "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory",
})  # fmt: skip

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.initialize_native_asmparser()  # inline assembly


class EmitError(Exception):
    """LLVM rejected a module."""


class _Library:
    """The functions above, without llvmlite's lock."""

    def __init__(self) -> None:
        library = ctypes.CDLL(ffi.lib._name)
        for name, (result, *arguments) in _PROTOTYPES.items():
            prototype = (ctypes.CFUNCTYPE if name in _LONG else ctypes.PYFUNCTYPE)(result, *arguments)
            setattr(self, name.removeprefix("LLVMPY_"), prototype((name, library)))

    def __getattr__(self, name: str) -> Any:  # tells type checkers that there are attributes
        raise AttributeError(name)


_LLVM = _Library()


@dataclass(frozen=True, slots=True)
class Emission:
    """How modules become objects; the same for all modules of a program."""

    triple: str
    cpu: str = ""
    features: str = ""
    opt_level: int = 2  # of the code generator: 1, 2 and 3 give the same code for vectorised input, 0 is slow
    passes: tuple[str, ...] = LIGHT_PASSES
    vectorize: bool = False  # whether a "default<..>" pipeline may vectorise and unroll what was left scalar


def emit_objects(
    modules_text: Sequence[str],
    triple: str,
    cpu: str = "",
    features: str = "",
    opt_level: int = 2,
    workers: int = 1,
    passes: Sequence[str] = LIGHT_PASSES,
    vectorize: bool = False,
) -> list[bytes]:
    """Compile every module to a position-independent relocatable object, `workers` at a time.

    `passes` are names from `PASSES` or one of `PIPELINES`, run in order before code generation.
    """
    emission = Emission(triple, cpu, features, opt_level, tuple(passes), vectorize)
    unknown = [name for name in passes if name not in PASSES and name not in PIPELINES]
    if unknown:
        raise EmitError(f"unknown pass {unknown[0]!r}; known: {', '.join([*PASSES, *PIPELINES])}")
    if workers <= 1 or len(modules_text) <= 1:
        return [_emit(text, emission) for text in modules_text]
    # The longest first, so that no worker is left alone with a long module at the end.
    order = sorted(range(len(modules_text)), key=lambda index: -len(modules_text[index]))
    with ThreadPoolExecutor(min(workers, len(modules_text))) as executor:
        futures = {index: executor.submit(_emit, modules_text[index], emission) for index in order}
        return [futures[index].result() for index in range(len(modules_text))]


def _emit(text: str, emission: Emission) -> bytes:
    with _target_machine(emission) as machine, _context() as context, _module(context, text) as module:
        _LLVM.SetTarget(module, emission.triple.encode())
        _LLVM.SetDataLayout(module, _data_layout(machine))
        _verify(module)
        _run_passes(module, machine, emission)
        return _object_code(module, machine)


@contextmanager
def _context() -> Iterator[int]:
    context = _LLVM.ContextCreate()
    try:
        yield context
    finally:
        _LLVM.ContextDispose(context)


@contextmanager
def _module(context: int, text: str) -> Iterator[int]:
    error = ctypes.c_char_p()
    module = _LLVM.ParseAssembly(context, text.encode(), ctypes.byref(error))
    if not module:
        raise EmitError(f"LLVM cannot parse the module: {_take_string(error)}")
    try:
        yield module
    finally:
        _LLVM.DisposeModule(module)


@contextmanager
def _target_machine(emission: Emission) -> Iterator[int]:
    triple = emission.triple.encode()
    error = ctypes.c_char_p()
    target = _LLVM.GetTargetFromTriple(triple, ctypes.byref(error))
    if not target:
        raise EmitError(f"LLVM has no target {emission.triple!r}: {_take_string(error)}")
    machine = _LLVM.CreateTargetMachine(
        target,
        triple,
        emission.cpu.encode(),
        emission.features.encode(),
        emission.opt_level,
        b"pic",
        b"small",
        False,
        False,
        b"",
    )
    if not machine:
        raise EmitError(f"LLVM cannot generate code for {emission.triple!r}, cpu {emission.cpu!r}")
    try:
        yield machine
    finally:
        _LLVM.DisposeTargetMachine(machine)


def _data_layout(machine: int) -> bytes:
    data = _LLVM.CreateTargetMachineData(machine)
    text = ctypes.c_char_p()
    _LLVM.CopyStringRepOfTargetData(data, ctypes.byref(text))
    _LLVM.DisposeTargetData(data)
    return _take_string(text).encode()


def _verify(module: int) -> None:
    error = ctypes.c_char_p()
    invalid = _LLVM.VerifyModule(module, ctypes.byref(error))
    message = _take_string(error)
    if invalid:
        raise EmitError(f"LLVM rejects the module: {message}")


def _run_passes(module: int, machine: int, emission: Emission) -> None:
    if not emission.passes:
        return
    options = _LLVM.CreatePipelineTuningOptions()
    _LLVM.PTOSetLoopVectorization(options, emission.vectorize)
    _LLVM.PTOSetSLPVectorization(options, emission.vectorize)
    _LLVM.PTOSetLoopUnrolling(options, emission.vectorize)
    builder = _LLVM.CreatePassBuilder(machine, options)
    try:
        for manager in _pass_managers(builder, emission.passes):
            _LLVM.RunNewModulePassManager(manager, module, builder)
            _LLVM.DisposeNewModulePassManger(manager)
    finally:
        _LLVM.DisposePassBuilder(builder)
        _LLVM.DisposePipelineTuningOptions(options)


def _pass_managers(builder: int, passes: tuple[str, ...]) -> Iterator[int]:
    """One manager per run of single passes, one per whole pipeline."""
    manager: int | None = None
    for name in passes:
        if name in PIPELINES:
            if manager is not None:
                yield manager
            manager = None
            yield _LLVM.buildPerModuleDefaultPipeline(builder, PIPELINES[name])
            continue
        if manager is None:
            manager = _LLVM.CreateNewModulePassManager()
        getattr(_LLVM, PASSES[name].removeprefix("LLVMPY_"))(manager)
    if manager is not None:
        yield manager


def _object_code(module: int, machine: int) -> bytes:
    error = ctypes.c_char_p()
    buffer = _LLVM.TargetMachineEmitToMemory(machine, module, True, ctypes.byref(error))
    if not buffer:
        raise EmitError(f"LLVM cannot emit the module: {_take_string(error)}")
    try:
        return ctypes.string_at(_LLVM.GetBufferStart(buffer), _LLVM.GetBufferSize(buffer))
    finally:
        _LLVM.DisposeMemoryBuffer(buffer)


def _take_string(text: ctypes.c_char_p) -> str:
    """Read and release a message of LLVM's."""
    if not text:
        return ""
    value = (text.value or b"").decode(errors="replace")
    _LLVM.DisposeString(text)
    return value
