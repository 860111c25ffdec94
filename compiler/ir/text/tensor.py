"""Text of level 2: kernels in index notation, as in the docstring of `ir.tensor`.

A local buffer is declared by the definition that fills it; a line `local name: type in space` comes first
when the definition does not say everything about it. Variables are named anew in each definition.
"""

from __future__ import annotations

from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.text.lexer import Token
from ingot.compiler.ir.text.names import quoted
from ingot.compiler.ir.text.read import Reader
from ingot.compiler.ir.text.write import Writer
from ingot.compiler.ir.traverse import kernel_dims, symbols_in


def print_kernel(kernel: Kernel, *, neutral: bool = False) -> str:
    """The kernel as text. With `neutral` names, kernels that differ in names alone have the same text."""
    symbols = symbols_in(kernel_dims(kernel))
    writer = Writer(symbols, neutral)
    lines = writer.declarations(symbols)
    inputs = ", ".join([writer.buffer(b) for b in kernel.inputs])
    outputs = ", ".join([writer.buffer(b) for b in kernel.outputs])
    lines.append(f"kernel {'neutral' if neutral else quoted(kernel.name)}({inputs}) -> ({outputs}) {{")
    known = {*kernel.inputs, *kernel.outputs}
    for definition in kernel.definitions:
        lines.extend(f"  {line}" for line in _definition(writer, definition, definition.buffer in known))
        known.add(definition.buffer)
    return "\n".join([*lines, "}"]) + "\n"


def _definition(writer: Writer, definition: Definition, known: bool) -> list[str]:
    buffer = definition.buffer
    lines = []
    declared = known or _is_unusual(definition)
    if declared and not known:
        lines.append(f"local {writer.buffer(buffer)}")
    elif not known:
        writer.declare(buffer)
    name = writer.name(buffer)
    with writer.names.scope():
        pairs = zip(definition.variables, buffer.shape, strict=True)
        ranges = ", ".join([writer.declared_range(v, e) for v, e in pairs])
        value = writer.scalar(definition.value, buffer.dtype if declared else None)
    return [*lines, f"{name}[{ranges}] = {value}"]


def _is_unusual(definition: Definition) -> bool:
    """Whether the definition alone does not tell the type and space of its buffer."""
    buffer = definition.buffer
    return buffer.space != "global" or buffer.dtype != definition.value.dtype


def parse_kernel(text: str) -> Kernel:
    """The kernel that `print_kernel` wrote; ParseError says where and what when it is none."""
    return _KernelReader(text).kernel()


class _KernelReader(Reader):
    def kernel(self) -> Kernel:
        self.declarations()
        self.expect("kernel")
        name = self.name("the name of the kernel")
        inputs = self._buffers()
        self.expect("-")
        self.expect(">", " of '->'")
        outputs = self._buffers()
        self.expect("{")
        definitions: list[Definition] = []
        while not self.accept("}"):
            definitions.append(self._definition())
        self.finish()
        return Kernel(name, inputs, outputs, tuple(definitions))

    def _buffers(self) -> tuple[Buffer, ...]:
        self.expect("(")
        buffers: list[Buffer] = []
        while not self.at(")"):
            buffers.append(self.buffer())
            if not self.accept(","):
                break
        self.expect(")", " or ','")
        return tuple(buffers)

    def _definition(self) -> Definition:
        if self.accept("local"):
            self.buffer()
        token = self.token
        name = self.name("a definition or '}'")
        buffer = self.scope.get(name)
        if buffer is not None and not isinstance(buffer, Buffer):
            raise self.error(f"{name!r} is not a buffer", token)
        with self.inner_scope():
            variables, shape = self._ranges(buffer, token)
            self.expect("=")
            value = self.scalar(buffer.dtype if buffer is not None else None)
        if buffer is None:
            buffer = self.declare(name, Buffer(name, value.dtype, shape), token)
        return Definition(buffer, variables, value)

    def _ranges(self, buffer: Buffer | None, token: Token) -> tuple[tuple, tuple]:
        self.expect("[")
        ranges = []
        while not self.at("]"):
            ranges.append(self.declared_range())
            if not self.accept(","):
                break
        self.expect("]", " or ','")
        variables, shape = tuple(v for v, _ in ranges), tuple(e for _, e in ranges)
        if buffer is not None and shape != buffer.shape:
            raise self.error(f"the ranges do not cover the shape of {buffer!r}", token)
        return variables, shape
