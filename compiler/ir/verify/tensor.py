"""Rules of kernels in index notation (see `ir.tensor`)."""

from __future__ import annotations

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Atom, Dim, Variable
from ingot.compiler.ir.tensor import Definition, Kernel
from ingot.compiler.ir.traverse import kernel_dims, symbols_in
from ingot.compiler.ir.verify.errors import VerifyError
from ingot.compiler.ir.verify.scalars import ScalarChecker, check_symbols


def verify_kernel(kernel: Kernel, *, nested_reductions: bool = False) -> None:
    """VerifyError unless the kernel obeys the rules. Reductions are whole values of definitions, unless
    `nested_reductions`: before they are given definitions of their own, they may stand inside others."""
    checker = _KernelChecker(f"kernel {kernel.name}")
    checker.nested_reductions = nested_reductions
    checker.kernel(kernel)


class _KernelChecker(ScalarChecker):
    extents: dict[Atom, Dim]  # of the variables that are bound

    def kernel(self, kernel: Kernel) -> None:
        name = self.where
        check_symbols(name, symbols_in(kernel_dims(kernel)))
        ends = (*kernel.inputs, *kernel.outputs)
        for buffer in ends:
            for dim in buffer.shape:
                self.dim(dim, f"a dim of {buffer.name}")
            if [b.name for b in ends].count(buffer.name) > 1:
                raise self.error(f"two inputs or outputs are called {buffer.name!r}")
        self.buffers.update(kernel.inputs)
        for definition in kernel.definitions:
            self.where = f"{name}, definition of {definition.buffer.name}"
            self.definition(definition)
            self.buffers.add(definition.buffer)
        for buffer in kernel.outputs:
            if buffer not in self.buffers:
                raise VerifyError(f"{name}: the output {buffer!r} is never defined")

    def definition(self, definition: Definition) -> None:
        buffer, variables = definition.buffer, definition.variables
        if buffer in self.buffers:
            raise self.error("it has a value already")
        if len(variables) != len(buffer.shape):
            raise self.error(f"{len(variables)} variables for {buffer!r}, which has {len(buffer.shape)} dims")
        self.variables, self.extents, self.certain = set(), {}, True
        self.seen.clear()
        for variable, extent in zip(variables, buffer.shape, strict=True):
            self.bind(variable, extent)
        self.reductions = True
        self.scalar(definition.value)
        if definition.value.dtype != buffer.dtype:
            raise self.error(f"the value is {definition.value.dtype}, the buffer is {buffer!r}")

    def bind(self, variable: Dim, extent: Dim) -> None:
        super().bind(variable, extent)
        if isinstance(variable, Variable):
            self.extents[variable] = extent

    def is_outside(self, position: Dim, extent: Dim) -> bool:
        """Also when only the first or last index of each variable is outside: every index is evaluated."""
        outside = super().is_outside
        return outside(position, extent) or any(outside(corner, extent) for corner in self._corners(position))

    def _corners(self, position: Dim) -> list[Dim]:
        """The least and the greatest value of an index that is affine in its variables."""
        if isinstance(position, int):
            return []
        variables = sorted((a for a in symbolic.atoms(position) if a in self.extents), key=repr)
        corners: list[Dim] = []
        for sign in (1, -1):
            corner: Dim = position
            for variable in variables:
                factor = symbolic.linear_coefficient(corner, variable)
                if not isinstance(factor, int):
                    return []
                last = self.extents[variable] - 1 if sign * factor > 0 else 0
                corner = symbolic.without(corner, variable) + factor * last
            corners.append(corner)
        return corners
