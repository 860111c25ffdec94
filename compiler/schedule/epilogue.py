"""An elementwise kernel as the statements that follow one element: for ops that bring their own loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.compiler.ir.loops import Let, Statement, Store
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ops.base import Finish


def finishing(kernel: Kernel, result: Buffer, parameters: Mapping[Buffer, Buffer]) -> Finish:
    """What the kernel does with an element of `result`. `parameters` are the names of its other buffers inside the
    function that runs it."""

    def finish(_: Buffer, index: tuple[Dim, ...], value: Scalar) -> Sequence[Statement]:
        element = Local(result.name, value.dtype)
        known: dict[Buffer, Scalar] = {result: Read(element)}
        lets: list[Statement] = [Let(element, value)]
        stores: list[Statement] = []
        for definition in kernel.definitions:
            at = {v: i for v, i in zip(definition.variables, index, strict=True) if not isinstance(v, int)}
            rewriter = Rewriter(at, lambda node: _read(node, known, parameters))
            local = Local(definition.buffer.name, definition.buffer.dtype)
            lets.append(Let(local, rewriter.scalar(definition.value)))
            known[definition.buffer] = Read(local)
            if definition.buffer in kernel.outputs:
                stores.append(Store(parameters[definition.buffer], index, Read(local)))
        return (*lets, *stores)

    return finish


def _read(node: Scalar, known: Mapping[Buffer, Scalar], parameters: Mapping[Buffer, Buffer]) -> Scalar | None:
    """A load as what is known already, or as a load of the parameter."""
    if not isinstance(node, Load):
        return None
    return known.get(node.buffer) or Load(parameters[node.buffer], node.index)
