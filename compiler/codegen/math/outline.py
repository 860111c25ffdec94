"""Private functions of the module for what cannot be straight-line code: a rare slow path, or a loop.

The caller's function gains one call and no basic block. The functions are private, so they leave no symbol behind,
and equal calls share one function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ingot.compiler.codegen.math.lanes import Lanes, Scope


def private_function(module: ir.Module, name: str, kind: ir.FunctionType, cold: bool = False) -> ir.Function:
    function = ir.Function(module, kind, name)
    function.linkage = "private"
    function.attributes.add("nounwind")
    if cold:
        function.attributes.add("cold")
        function.attributes.add("noinline")
    return function


def outlined(name: str, arguments: Sequence[Lanes], body: Callable[..., Lanes]) -> Lanes:
    """``body(*arguments)`` inside a private function; body may add blocks and must end in the one it returns from."""
    first = arguments[0]
    scope, kind = first.scope, first.value.type
    target, module = scope.target, scope.builder.module
    suffix = f"{f'v{scope.width}' if scope.width else ''}{first.form.name}.{target.has_fma:d}{target.has_round:d}"
    full_name = f"ingot.math.{name}.{suffix}"
    function = module.globals.get(full_name)
    if function is None:
        function = private_function(module, full_name, ir.FunctionType(kind, [kind] * len(arguments)))
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        inner = Scope(builder, target, scope.width)
        builder.ret(body(*(Lanes(inner, first.element, argument) for argument in function.args)).value)
    return Lanes(scope, first.element, scope.builder.call(function, [a.value for a in arguments]))


def any_lane(mask: Lanes) -> ir.Value:
    """One truth value: does the mask hold in any lane?"""
    builder, width = mask.scope.builder, mask.scope.width
    if not width:
        return mask.value
    gathered = builder.bitcast(mask.value, ir.IntType(width))
    return builder.icmp_unsigned("!=", gathered, ir.Constant(ir.IntType(width), 0))


def per_lane(
    arguments: Sequence[Lanes], elements: Sequence[ir.Type], body: Callable[..., Sequence[ir.Value]]
) -> list[Lanes]:
    """Apply scalar code to every lane in turn; ``elements`` are the types of its results."""
    scope = arguments[0].scope
    builder = scope.builder
    if not scope.width:
        results = body(*(argument.value for argument in arguments))
        return [Lanes(scope, kind, value) for kind, value in zip(elements, results, strict=True)]
    gathered: list[ir.Value] = [ir.Constant(ir.VectorType(kind, scope.width), ir.Undefined) for kind in elements]
    for lane in range(scope.width):
        index = ir.Constant(ir.IntType(32), lane)
        results = body(*(builder.extract_element(argument.value, index) for argument in arguments))
        gathered = [
            builder.insert_element(vector, value, index) for vector, value in zip(gathered, results, strict=True)
        ]
    return [Lanes(scope, kind, value) for kind, value in zip(elements, gathered, strict=True)]
