"""LLVM IR text to an image for this machine, for tests that need code to run."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm

from ingot.compiler.codegen.link import link
from ingot.compiler.codegen.parallel import emit_objects
from ingot.runtime.image import Image
from ingot.runtime.loader import LoadedImage

HOST = llvm.get_process_triple()


def image_of(*modules: str, exports: tuple[str, ...]) -> Image:
    """Compile each module to an object of its own and link them."""
    return link(emit_objects(modules, HOST), exports)


def function(loaded: LoadedImage, name: str, result: type | None, *arguments: type):
    """A Python callable for an exported C function; it keeps the image mapped."""
    call = ctypes.CFUNCTYPE(result, *arguments)(loaded.address(name))

    def invoke(*values):
        _ = loaded
        return call(*values)

    return invoke
