"""Verifiers of the three levels. What they accept, the later stages handle."""

from ingot.compiler.ir.verify.errors import VerifyError
from ingot.compiler.ir.verify.graph import verify_graph
from ingot.compiler.ir.verify.loops import verify_function
from ingot.compiler.ir.verify.tensor import verify_kernel

__all__ = ["VerifyError", "verify_function", "verify_graph", "verify_kernel"]
