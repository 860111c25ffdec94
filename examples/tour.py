"""Follow one small model through every level of the compiler, from Python to machine code and back.

The model is relu(x @ w + b). Each stage is printed as the text that `--dump-ir` writes; each can be parsed back
and run by an interpreter, which is how the compiler is tested. docs/looking_inside.md explains what you see.
Run it with `python examples/tour.py`.
"""

import numpy as np

import ingot
from ingot.compiler import pipeline
from ingot.compiler.assembly import assemble
from ingot.compiler.codegen.objects import compile_functions
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.compiler.ir.text.graph import print_graph
from ingot.compiler.ir.text.loops import print_function
from ingot.compiler.ir.text.tensor import print_kernel
from ingot.compiler.options import Options
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.target import Target


def layer(x, w, b):
    return (x @ w + b).relu()


def show(title: str, text: str, lines: int = 40) -> None:
    print(f"\n=== {title}")
    shown = text.strip().split("\n")
    print("\n".join(shown[:lines]))
    if len(shown) > lines:
        print(f"... {len(shown) - lines} more lines")


def main() -> None:
    types = (ingot.f32["batch", 8], ingot.f32[8, 16], ingot.f32[16])

    graph = ingot.trace(layer, types).graph
    show("Level 1, graph: what the Python function did", print_graph(graph))

    optimised = pipeline.run_passes(graph, Options())
    show("Level 1 after the passes: relu is a choice now", print_graph(optimised))

    target = Target.host()
    assembly = assemble(optimised, lambda kernel, choices: schedule(kernel, target, choices))
    for name, plan in assembly.plans:
        show(f"Fusion decisions of {name}, each with its reason", str(plan))
    for placed in assembly.kernels:
        assert placed.kernel is not None
        show("Level 2, tensor: what one kernel computes", print_kernel(placed.kernel))
    show("Level 3, loops: how it is computed on this machine", print_function(assembly.entry))

    code = compile_functions(assembly.entry, target)
    name, text = next(iter(code.texts.items()))
    show(f"LLVM IR of {name}", text, lines=20)
    print(f"\nmachine code: {len(code.image.to_bytes())} bytes, linked by Ingot itself")

    generator = np.random.default_rng(0)
    x, w, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 16), (16,)))
    executable = ingot.compile(layer, *types)
    (expected,) = run_graph(graph, {"x": x, "w": w, "b": b})
    print(f"\nnative result minus NumPy's: at most {np.abs(executable(x, w, b) - expected).max():.1e}")

    gradient = ingot.trace(ingot.grad(lambda x, w, b: layer(x, w, b).sum(), wrt=1), types).graph
    show("The gradient is a graph of the same language", print_graph(pipeline.run_passes(gradient, Options())))


if __name__ == "__main__":
    main()
