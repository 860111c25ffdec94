"""Functions of the loop level, compiled and called in this process, on memory that ends where a page does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingot.compiler.codegen.abi import RECORD_WORDS, SUPPORT, Kernel, dims_of, module_text
from ingot.compiler.codegen.emit import emit_kernel
from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.objects import LEVEL, PASSES
from ingot.compiler.codegen.parallel import emit_objects
from ingot.compiler.codegen.pool import pool_module
from ingot.compiler.ir import loops, symbolic
from ingot.compiler.ir.interpret import run_function
from ingot.compiler.ir.loops import For, Statement, Store
from ingot.compiler.ir.scalar import Buffer, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.target import Target
from ingot.runtime.abi import POOL_CREATE
from ingot.runtime.loader import LoadedImage

BATCH = 20  # kernels in a module
HOST = Target.host()
RUNNABLE = ("native", "x86-64", "x86-64-v3") if HOST.is_x86 and HOST.vector_bytes >= 32 else ("native",)


@dataclass(frozen=True)
class Failure:
    code: int
    details: tuple[int, int, int]
    site: str


class Native:
    """Kernels for one target, in memory."""

    def __init__(self, functions: Sequence[loops.Function], target: Target = HOST) -> None:
        self.functions = {function.name: function for function in functions}
        assert len(self.functions) == len(functions), "two functions have one name"
        self.kernels: dict[str, Kernel] = {f.name: emit_kernel(f, f.name, target) for f in functions}
        self.image = LoadedImage(link(_objects(list(self.kernels.values()), target), [*self.functions, POOL_CREATE]))

    def __call__(self, name: str, *arrays: np.ndarray, dims: Sequence[int] = (), pool: int = 0) -> Failure | None:
        function = self.functions[name]
        assert len(arrays) == len(function.parameters)
        for array, buffer in zip(arrays, function.parameters, strict=True):
            assert array.dtype == buffer.dtype.numpy, (array.dtype, buffer)
            assert array.flags.c_contiguous
        kinds = [*[ctypes.c_void_p] * len(arrays), *[ctypes.c_int64] * len(dims), ctypes.c_void_p, ctypes.c_void_p]
        record = (ctypes.c_int64 * RECORD_WORDS)()
        call = ctypes.CFUNCTYPE(None, *kinds)(self.image.address(name))
        call(*(array.ctypes.data for array in arrays), *dims, pool, ctypes.addressof(record))
        code, a, b, c, site = record
        return Failure(code, (a, b, c), self.kernels[name].sites[site]) if code else None

    def pool(self, threads: int) -> int:
        self.image.pin()
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)(self.image.address(POOL_CREATE))(threads)


def objects_of(functions: Sequence[loops.Function], target: Target) -> list[bytes]:
    """Everything an image of these functions needs."""
    return _objects([emit_kernel(f, f.name, target) for f in functions], target)


def _objects(kernels: list[Kernel], target: Target) -> list[bytes]:
    texts = [module_text(kernels[n : n + BATCH]) for n in range(0, len(kernels), BATCH)]
    carried = [SUPPORT, pool_module(target.triple)]
    return emit_objects([*texts, *carried], target.triple, target.cpu, target.features, LEVEL, workers=2, passes=PASSES)


_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGES: list[mmap.mmap] = []


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last before a page that must not be touched, and another such page before it."""
    array = np.array(array, order="C")
    page = mmap.PAGESIZE
    inner = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    _PAGES.append(memory)  # never unmapped: arrays may outlive any owner
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for edge in (start, start + page + inner):
        assert _LIBC.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0) == 0
    copy = np.frombuffer(memory, np.uint8, array.nbytes, page + inner - array.nbytes)
    copy = copy.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def variable(name: str, extent: Dim) -> Dim:
    return symbolic.Variable(name, 0, extent - 1)


def serial(extent: Dim, body, name: str = "i", kind: str = "serial", width: int = 1) -> For:
    """A loop; `body` maps its variable to a statement or several."""
    v = variable(name, extent)
    statements = body(v)
    return For(v, extent, statements if isinstance(statements, tuple) else (statements,), kind, width)  # type: ignore[arg-type]


def unrolled(extent: Dim, body, name: str = "u") -> For:
    return serial(extent, body, name, "unrolled")


def vector(width: int, body, extent: Dim | None = None, name: str = "v") -> For:
    return serial(width if extent is None else extent, body, name, "vector", width)


def elementwise(name: str, inputs: Sequence[Buffer], output: Buffer, value, width: int = 0) -> loops.Function:
    """output[i] = value(i) for a vector of symbolic length: scalar code, or vectors and a masked rest."""
    (n,) = output.shape

    def store(i: Dim) -> Statement:
        result: Scalar = value(i)
        return Store(output, (i,), result)

    body: tuple[Statement, ...]
    if width:
        body = (
            serial(n // width, lambda i: vector(width, lambda v: store(i * width + v))),
            vector(width, lambda v: store(n // width * width + v), n % width),
        )
    else:
        body = (serial(n, store),)
    return loops.Function(name, (*inputs, output), body)


def agree(
    functions: Sequence[loops.Function],
    arrays: dict[str, list[np.ndarray]],
    dims: dict[str, dict[str, int]] | None = None,
    targets: Sequence[str] = RUNNABLE,
    tolerance: float = 0.0,
) -> None:
    """Native code leaves the same arrays behind as the interpreter, and touches no byte outside them."""
    expected = {}
    for function in functions:
        copies = [array.copy() for array in arrays[function.name]]
        run_function(function, copies, (dims or {}).get(function.name))
        expected[function.name] = copies
    for target in targets:
        native = Native(functions, Target.named(target))
        for function in functions:
            copies = [guarded(array) for array in arrays[function.name]]
            failure = native(function.name, *copies, dims=_dim_values(function, copies, dims))
            assert failure is None, (target, function.name, failure)
            for n, (found, wanted) in enumerate(zip(copies, expected[function.name], strict=True)):
                where = f"{function.name} on {target}, parameter {n}"
                if tolerance and wanted.dtype.kind not in "biu":
                    np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=where)
                else:
                    np.testing.assert_array_equal(found, wanted, err_msg=where)


def _dim_values(
    function: loops.Function, arrays: Sequence[np.ndarray], dims: dict[str, dict[str, int]] | None
) -> list[int]:
    """The dims a function takes, from the shapes of its arrays and from `dims`."""
    values = dict((dims or {}).get(function.name, {}))
    for buffer, array in zip(function.parameters, arrays, strict=True):
        for dim, extent in zip(buffer.shape, array.shape, strict=True):
            if isinstance(dim, symbolic.Symbol):
                values[dim.name] = extent
    return [values[symbol.name] for symbol in dims_of(function)]
