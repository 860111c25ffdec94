"""Interpreters of the three levels: graph (the NumPy meaning of ops), tensor and loops.

They are slow and obvious on purpose: everything that the compiler emits is compared with them.
"""

from ingot.compiler.ir.interpret.errors import IndexOutOfRange, InterpreterError, RunTimeFailure
from ingot.compiler.ir.interpret.graph import run_graph, run_region
from ingot.compiler.ir.interpret.loops import run_function
from ingot.compiler.ir.interpret.shapes import specialise, symbols_of
from ingot.compiler.ir.interpret.tensor import run_kernel

__all__ = [
    "IndexOutOfRange",
    "InterpreterError",
    "RunTimeFailure",
    "run_function",
    "run_graph",
    "run_kernel",
    "run_region",
    "specialise",
    "symbols_of",
]
