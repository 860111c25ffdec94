"""Interpreters of the three levels: graph (the NumPy meaning of ops), tensor and loops.

They are slow and obvious on purpose: everything that the compiler emits is compared with them.
"""

from ingot.compiler.ir.interpret.errors import IndexOutOfRange, InterpreterError, RunTimeFailure
from ingot.compiler.ir.interpret.graph import run_graph, run_region, specialise, symbols_of

__all__ = [
    "IndexOutOfRange",
    "InterpreterError",
    "RunTimeFailure",
    "run_graph",
    "run_region",
    "specialise",
    "symbols_of",
]
