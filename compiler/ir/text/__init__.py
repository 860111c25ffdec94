"""The text form of the three levels: what is printed parses back to the same structure and the same text."""

from ingot.compiler.ir.text.dump import load_dump, save_dump
from ingot.compiler.ir.text.graph import parse_graph, print_graph, same_structure
from ingot.compiler.ir.text.lexer import ParseError
from ingot.compiler.ir.text.loops import parse_function, parse_functions, print_function
from ingot.compiler.ir.text.tensor import parse_kernel, print_kernel

__all__ = [
    "ParseError",
    "load_dump",
    "parse_function",
    "parse_functions",
    "parse_graph",
    "parse_kernel",
    "print_function",
    "print_graph",
    "print_kernel",
    "same_structure",
    "save_dump",
]
