"""A kernel with its symbolic extents as parameters: what matters to it is how large they are, not what they are made of.

The layers of a network with free dims work on ceil(h/2), ceil(h/4), ceil(h/8) ... rows. Where an extent stands for
itself (nothing else in the kernel tells about its symbols) a plain symbol with the same bounds takes its place, and
whoever calls the kernel passes its value. So kernels of several resolutions are one, and nothing has to be proved
about divisions that the kernel does not look into.

Invariant: the general kernel, with each size replaced by the extent it stands for, is the given one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.rewriting import Rewriter
from ingot.compiler.ir.scalar import Buffer, Load, Reduce, Scalar
from ingot.compiler.ir.symbolic import Atom, Compound, Dim, Opaque, Symbol, Variable
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.traverse import kernel_dims, nodes


@dataclass(frozen=True)
class General:
    """A kernel over sizes, and the extents that they stand for."""

    kernel: Kernel
    sizes: Mapping[Symbol, Dim]


def generalise(kernel: Kernel) -> General:
    """The kernel with every extent that stands for itself as a size; the kernel itself, with the names that its user
    gave, when all of them are plain symbols."""
    standing = _standing_alone(kernel)
    if not any(isinstance(atom, Compound) for atom in standing):
        return General(kernel, {})
    names = {atom.name for dim in kernel_dims(kernel) for atom in symbolic.atoms(dim) if isinstance(atom, Symbol)}
    prefix = "size"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    made = {atom: _size(f"{prefix}{number}", atom) for number, atom in enumerate(standing)}
    return General(_Rebuilder(made).kernel(kernel), {size: atom for atom, size in made.items()})


def at_sizes(kernel: Kernel, sizes: Mapping[Atom, Dim]) -> Kernel:
    """The kernel for calls in which some symbols have these values, over buffers of its own."""
    return _Rebuilder(sizes).kernel(kernel)


def _size(name: str, extent: Atom) -> Symbol:
    lower, upper = symbolic.bounds(extent)
    if (lower, upper) != (1, None):  # sizes of one name are one symbol wherever they are met
        name = f"{name}_{'' if lower is None else lower}_{'' if upper is None else upper}"
    return Symbol(name, lower, upper)


def _standing_alone(kernel: Kernel) -> tuple[Atom, ...]:
    """Symbols and outermost expressions of symbols, in the order of first use, that share no symbol with another."""
    found: dict[Atom, None] = {}
    seen: set[Dim] = set()
    stack = list(kernel_dims(kernel))[::-1]
    while stack:
        dim = stack.pop()
        if isinstance(dim, int) or dim in seen:
            continue
        seen.add(dim)
        if not isinstance(dim, Atom):
            stack.extend(atom for monomial, _ in reversed(dim.terms) for atom, _ in reversed(monomial))
        elif isinstance(dim, Symbol) or (isinstance(dim, Compound) and _only_symbols(dim)):
            found[dim] = None
        elif isinstance(dim, Compound):
            stack.extend(reversed(dim.arguments))
        else:  # variables and run-time integers; what computes these is among the kernel's dims
            assert isinstance(dim, (Variable, Opaque))
            stack.extend(bound for bound in (dim.upper, dim.lower) if bound is not None)
    uses: dict[Atom, int] = {}
    for atom in found:
        for symbol in symbolic.atoms(atom):
            uses[symbol] = uses.get(symbol, 0) + 1
    return tuple(atom for atom in found if all(uses[symbol] == 1 for symbol in symbolic.atoms(atom)))


def _only_symbols(dim: Dim) -> bool:
    return all(isinstance(atom, Symbol) for atom in symbolic.atoms(dim))


class _Rebuilder:
    """Copies a kernel with atoms replaced; buffers and variables are new ones, over the new extents."""

    def __init__(self, mapping: Mapping[Atom, Dim]) -> None:
        self.mapping: dict[Atom, Dim] = dict(mapping)
        self.buffers: dict[Buffer, Buffer] = {}
        self.rewriter = Rewriter(self.mapping, self._leaf)

    def kernel(self, kernel: Kernel) -> Kernel:
        for buffer in (*kernel.inputs, *kernel.outputs, *(d.buffer for d in kernel.definitions)):
            if buffer not in self.buffers:
                self.buffers[buffer] = Buffer(buffer.name, buffer.dtype, self.rewriter.dims(buffer.shape), buffer.space)
        definitions = tuple(map(self._definition, kernel.definitions))
        inputs, outputs = (tuple(self.buffers[b] for b in these) for these in (kernel.inputs, kernel.outputs))
        return Kernel(kernel.name, inputs, outputs, definitions)

    def _definition(self, definition: Definition) -> Definition:
        self._bind(definition.variables)
        for node in nodes(definition.value):
            if isinstance(node, Reduce):
                self._bind(node.variables)
        variables = self.rewriter.dims(definition.variables)
        return Definition(self.buffers[definition.buffer], variables, self.rewriter.scalar(definition.value))

    def _bind(self, variables: Iterable[Dim]) -> None:
        for variable in variables:
            if isinstance(variable, Variable) and variable not in self.mapping:
                lower, upper = (None if b is None else self.rewriter.dim(b) for b in (variable.lower, variable.upper))
                self.mapping[variable] = Variable(variable.name, lower, upper)

    def _leaf(self, node: Scalar) -> Scalar | None:
        return Load(self.buffers[node.buffer], node.index) if isinstance(node, Load) else None
