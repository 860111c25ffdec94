"""Transformations of functions of tensors: trace, differentiate, and control flow.

Each works inside a trace (on tensors) and composes with the others: `grad(grad(f))`, `jacobian(grad(f))`, a
`scan` whose body calls `grad`. Nothing here compiles; `api.py` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ingot.compiler import autodiff
from ingot.compiler.errors import Code, IngotError, IngotTypeError
from ingot.compiler.ir.graph import Graph, Value
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType
from ingot.compiler.ops.base import Op, OpTypeError
from ingot.compiler.ops.control import If, Scan, While
from ingot.compiler.ops.gradient import CustomGradient, Independent, StopGradient
from ingot.frontends.dsl.module import Module, definition_of
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import (
    Trace,
    Traced,
    argument_names,
    as_type,
    check_dims,
    flatten,
    rebuild,
    running_user_code,
)

Steps = Literal["zero", "refuse"]  # what a gradient does with ops that are piecewise constant


def output_tensor(leaf: Any, trace: Trace) -> Value:
    """A leaf of what a traced function returned, as a value of the trace."""
    if isinstance(leaf, Tensor):
        value = trace.adopt(leaf.value, leaf.builder)
        if value is None:
            raise IngotTypeError(Code.MIXED_TRACES, "an output belongs to another trace", trace.here())
        return value
    if isinstance(leaf, np.ndarray | np.generic | int | float | bool):
        array = np.asarray(leaf)
        return trace.lift(array.astype(np.float32) if isinstance(leaf, float) else array)
    raise IngotTypeError(Code.NOT_A_TENSOR, f"an output is {leaf!r}")


def trace(
    function: Callable[..., Any],
    types: Sequence[object],
    names: Sequence[str] | None = None,
    parameters_as: str = "constant",
    training: bool | None = None,
) -> Traced:
    """The graph of a function or module for arguments of these types. A module's arrays become inputs of
    role `parameters_as`; buffers that `forward` assigned are updates when that role is state. `training` is the
    mode in which a module is traced, whatever its own is."""
    module = function if isinstance(function, Module) else None
    checked = [as_type(t, n) for n, t in enumerate(types)]
    check_dims(checked)
    names = names or argument_names(definition_of(function), len(checked))
    builder = Trace()
    args = [Tensor(builder, builder.input(n, t)) for n, t in zip(names, checked, strict=True)]
    if module is None:
        with running_user_code():
            result, updated = function(*args), {}
    else:
        copied, tensors = bind_module(module, builder, parameters_as, set(names))
        if training is not None:
            copied.train(training)
        with running_user_code():
            result = copied(*args)
        updated = buffer_updates(copied, module, tensors) if parameters_as == "state" else {}
    leaves, structure = flatten(result)
    if not leaves:
        raise IngotTypeError(Code.NOT_A_TENSOR, f"the function returns {result!r}")
    outputs = [output_tensor(leaf, builder) for _, leaf in leaves]
    labels = _unique_names([name for name, _ in leaves])
    updates = {}
    for name, tensor in updated.items():
        updates[name] = len(outputs)
        outputs.append(tensor.value)
        labels.append(f"next.{name}")
    graph = Graph(
        getattr(function, "__name__", None) or type(function).__name__ if module is None else type(module).__name__,
        builder.inputs,
        tuple(outputs),
        tuple(labels),
        builder.constants,
        updates,
    )
    return Traced(graph, structure)


def _unique_names(names: list[str]) -> list[str]:
    if len(names) == 1:
        return [names[0] or "output"]
    return [f"output{n}" if n.isdigit() else n for n in names]


def bind_module(
    module: Module,
    builder: Trace,
    role: str,
    taken: set[str] = frozenset(),  # type: ignore[assignment]
) -> tuple[Module, dict[str, Tensor]]:
    """A copy of the module whose arrays are inputs of the trace."""
    tensors: dict[str, Tensor] = {}

    def replace(name: str, array: np.ndarray) -> Tensor:
        label = name if name not in taken else f"parameters.{name}"
        type_ = as_type(np.asarray(array), 0)
        tensor = Tensor(builder, builder.input(label, type_, role))  # type: ignore[arg-type]
        if role == "constant":
            builder.constants[label] = np.asarray(array)
        tensors[name] = tensor
        return tensor

    return module.with_arrays(replace), tensors


def buffer_updates(copied: Module, module: Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the buffers of a traced copy were assigned, by name."""
    updates: dict[str, Tensor] = {}
    buffers = {id(a) for a in module.named_buffers().values()}
    replaced = {name for name, a in module.named_arrays().items() if id(a) in buffers}
    for (name, _, _), value in zip(module.slots(), _values_at(copied, module), strict=True):
        if name in replaced and isinstance(value, Tensor) and value.value is not tensors[name].value:
            if value.type != tensors[name].type:
                raise IngotTypeError(
                    Code.OP_ARGUMENTS, f"buffer {name} of type {tensors[name].type!r} was assigned {value.type!r}"
                )
            updates[name] = value
    return updates


def _values_at(copied: Module, module: Module) -> list[Any]:
    found = []
    for name, _, _ in module.slots():
        item: Any = copied
        for key in name.split("."):
            item = (
                vars(item)[key]
                if isinstance(item, Module)
                else item[int(key) if isinstance(item, list | tuple) else key]
            )
        found.append(item)
    return found


# --- derivatives ----------------------------------------------------------------------------------


def _independent(tensor: Tensor) -> Tensor:
    """A value of its own, in the innermost region: what is computed from it is computed there, where the
    derivative looks for it."""
    inside = _adopted(tensor.builder.innermost, tensor)
    return inside.apply(Independent(inside.builder.take_number()))


def _trace_of(args: Sequence[Any], what: str) -> Trace:
    tensors = [leaf for _, leaf in flatten(list(args))[0] if isinstance(leaf, Tensor)]
    if not tensors:
        raise IngotTypeError(Code.NO_TENSOR_ARGUMENT, f"{what} is given no traced tensor")
    return tensors[0].builder.innermost


def _gradients(
    builder: Trace,
    outputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    wrt: Sequence[Tensor],
    steps: Steps = "zero",
) -> list[Tensor]:
    try:
        if steps == "refuse":
            refused = autodiff.steps(outputs, [t.value for t in wrt])
            if refused:
                raise autodiff.NotDifferentiableError(refused, "piecewise constant")
        found = autodiff.gradients(builder, outputs, cotangents, [t.value for t in wrt])
    except autodiff.NotDifferentiableError as error:
        raise IngotTypeError(Code.NOT_DIFFERENTIABLE, str(error)) from None
    zero = autodiff.zeros_like
    return [
        Tensor(builder, value if value is not None else zero(builder, t.type))
        for value, t in zip(found, wrt, strict=True)
    ]


def _with_independent(args: Sequence[Any], positions: Sequence[int]) -> tuple[list[Any], list[Tensor], list[Any]]:
    """Arguments in which the tensors of the chosen positions are values of their own; those tensors; and
    the structure of each chosen argument."""
    args = list(args)
    leaves: list[Tensor] = []
    structures: list[Any] = []
    for position in positions:
        if isinstance(args[position], Module):
            named: dict[str, Tensor] = {}
            args[position], named = _independent_module(args[position])
            structures.append({name: len(leaves) + n for n, name in enumerate(named)})
            leaves += named.values()
            continue
        items, structure = flatten(args[position])
        fresh = []
        for _, leaf in items:
            if not isinstance(leaf, Tensor):
                raise IngotTypeError(Code.NO_TENSOR_ARGUMENT, f"argument {position} is not a traced tensor")
            fresh.append(_independent(leaf))
        args[position] = rebuild(structure, fresh)
        structures.append(_offset(structure, len(leaves)))
        leaves += fresh
    return args, leaves, structures


def _offset(structure: Any, by: int) -> Any:
    if isinstance(structure, tuple | list):
        return type(structure)(_offset(s, by) for s in structure)
    if isinstance(structure, dict):
        return {k: _offset(s, by) for k, s in structure.items()}
    return None if structure is None else structure + by


def _independent_module(module: Module) -> tuple[Module, dict[str, Tensor]]:
    """A traced module (its arrays are tensors already) with values of their own for its parameters; what is
    shared stays shared, under its first name."""
    named: dict[str, Tensor] = {}
    made: dict[int, Any] = {}

    def walk(item: Any, path: str) -> Any:
        if id(item) not in made:
            made[id(item)] = rebuilt(item, path)
        return made[id(item)]

    def rebuilt(item: Any, path: str) -> Any:
        if isinstance(item, Tensor) and item.dtype.is_float:
            named[path] = _independent(item)
            return named[path]
        if isinstance(item, Module):
            made[id(item)] = copied = copy.copy(item)
            for key, part in vars(item).items():
                if key not in item.buffer_names:
                    copied.__dict__[key] = walk(part, f"{path}.{key}" if path else key)
            return copied
        if isinstance(item, list | tuple):
            return type(item)(walk(v, f"{path}.{n}") for n, v in enumerate(item))
        if isinstance(item, dict):
            return {k: walk(v, f"{path}.{k}") for k, v in item.items()}
        return item

    return walk(module, ""), named


def value_and_grad(
    function: Callable[..., Any], wrt: int | Sequence[int] = 0, has_aux: bool = False, steps: Steps = "zero"
) -> Callable[..., Any]:
    """A function that returns (value, gradient); with several `wrt`, a tuple of gradients. With `has_aux` the
    function returns (scalar, anything) and the value is that pair. What is piecewise constant (rounding, sign,
    integers) has gradient zero; with `steps="refuse"` it is an error that names every such op on the way."""
    positions = (wrt,) if isinstance(wrt, int) else tuple(wrt)

    def wrapped(*given: Any) -> Any:
        args, leaves, structures = _with_independent(given, positions)
        result = function(*args)
        scalar = result[0] if has_aux else result
        if not isinstance(scalar, Tensor) or scalar.rank != 0 or not scalar.dtype.is_float:
            raise IngotTypeError(Code.GRADIENT_OF_NON_SCALAR, f"the function returns {scalar!r}")
        builder = scalar.builder
        one = scalar.full_like(1.0)
        found = _gradients(builder, [scalar.value], [one.value], leaves, steps)
        grads = tuple(rebuild(s, found) for s in structures)
        return result, (grads[0] if isinstance(wrt, int) else grads)

    wrapped.__name__ = f"value_and_grad_of_{getattr(function, '__name__', 'function')}"
    return _same_signature(wrapped, function)


def grad(function: Callable[..., Any], wrt: int | Sequence[int] = 0, steps: Steps = "zero") -> Callable[..., Any]:
    """The gradient of a scalar function with respect to its arguments `wrt`; `steps` as for `value_and_grad`."""
    both = value_and_grad(function, wrt, steps=steps)

    def wrapped(*args: Any) -> Any:
        return both(*args)[1]

    wrapped.__name__ = f"grad_of_{getattr(function, '__name__', 'function')}"
    return _same_signature(wrapped, function)


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(function(*primals), pullback): the pullback maps a cotangent of the result to cotangents of primals."""
    args, leaves, structures = _with_independent(primals, range(len(primals)))
    result = function(*args)
    items, structure = flatten(result)
    outputs = [leaf for _, leaf in items]

    def pullback(cotangent: Any) -> Any:
        given = [leaf for _, leaf in flatten(cotangent)[0]]
        builder = outputs[0].builder
        cotangents = [g.value if isinstance(g, Tensor) else outputs[n]._coerce(g).value for n, g in enumerate(given)]
        found = _gradients(builder, [o.value for o in outputs], cotangents, leaves)
        return tuple(rebuild(s, found) for s in structures)

    return rebuild(structure, outputs), pullback


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(function(*primals), the derivative along tangents). Forward mode as the transpose of reverse mode: the
    pullback is linear in its cotangent, so its own gradient with respect to that cotangent is the answer."""
    args, leaves, _ = _with_independent(primals, range(len(primals)))
    result = function(*args)
    items, structure = flatten(result)
    outputs = [leaf for _, leaf in items]
    builder = outputs[0].builder
    dummies = [_independent(o.full_like(0)) for o in outputs]
    pulled = _gradients(builder, [o.value for o in outputs], [d.value for d in dummies], leaves)
    along = [leaf for _, leaf in flatten(list(tangents))[0]]
    seeds = [p._coerce(t).cast(p.dtype).broadcast_to(p.shape) for p, t in zip(pulled, along, strict=True)]
    found = _gradients(builder, [p.value for p in pulled], [s.value for s in seeds], dummies)
    return rebuild(structure, outputs), rebuild(structure, found)


def jacobian(function: Callable[..., Any], wrt: int = 0) -> Callable[..., Any]:
    """d output[i...] / d argument[j...], of shape output.shape + argument.shape. One scan over the output's
    elements, each a pull back of a unit vector."""

    def wrapped(*args: Any) -> Any:
        shaped = function(*args)
        if not isinstance(shaped, Tensor):
            raise IngotTypeError(Code.NOT_A_TENSOR, f"jacobian wants one tensor, the function returns {shaped!r}")
        point = args[wrt]
        size = shaped.type.size

        def row(unit: Tensor) -> Tensor:
            inside = _adopted(unit.builder, point)  # the whole pull back belongs to the scan's body
            _, pullback = vjp(lambda x: function(*args[:wrt], x, *args[wrt + 1 :]), inside)
            return pullback(unit.reshape(*shaped.shape))[0]

        kind: Any = Op.registry["iota"]
        number = Tensor(shaped.builder, shaped.builder.emit(kind((size, size), 0)))
        other = Tensor(shaped.builder, shaped.builder.emit(kind((size, size), 1)))
        eye = (number == other).cast(shaped.dtype)
        _, rows = scan(lambda carry, unit: (carry, row(unit)), (), eye)
        return rows.reshape(*shaped.shape, *point.shape)

    return _same_signature(wrapped, function)


def hessian(function: Callable[..., Any], wrt: int = 0) -> Callable[..., Any]:
    """The second derivatives of a scalar function."""
    return jacobian(grad(function, wrt), wrt)


def _same_signature(wrapped: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    wrapped.__wrapped__ = definition_of(function)  # type: ignore[attr-defined]
    return wrapped


def stop_gradient(x: Tensor) -> Tensor:
    return x.apply(StopGradient())


def custom_gradient(function: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a gradient rule of the user's: backward(xs, y, g) gives one gradient per x (a tuple)."""

    def wrapped(*args: Tensor) -> Any:
        builder = _trace_of(args, "custom_gradient")
        first, second = Trace(builder), Trace(builder)
        inputs = [Tensor(first, first.input(f"x{n}", a.type)) for n, a in enumerate(args)]
        with first.opened():
            items, structure = flatten(function(*inputs))
        outputs = [output_tensor(leaf, first) for _, leaf in items]
        xs = tuple(Tensor(second, second.input(f"x{n}", a.type)) for n, a in enumerate(args))
        ys = [Tensor(second, second.input(f"y{n}", o.tensor)) for n, o in enumerate(outputs)]
        gs = [Tensor(second, second.input(f"g{n}", o.tensor)) for n, o in enumerate(outputs)]
        with second.opened():
            given = backward(xs, rebuild(structure, ys), rebuild(structure, gs))
        given = given if isinstance(given, tuple) else (given,)
        if first.captured or second.captured:
            raise IngotTypeError(
                Code.MIXED_TRACES,
                "a function with a custom gradient uses a tensor from outside",
                hint="pass it as an argument",
            )
        forward = Graph("custom", first.inputs, tuple(outputs))
        rule = Graph("custom_backward", second.inputs, tuple(output_tensor(t, second) for t in given))
        try:
            return rebuild(structure, args[0].apply(CustomGradient(forward, rule), *args[1:]))
        except OpTypeError as error:
            raise IngotTypeError(Code.OP_ARGUMENTS, str(error)) from None

    return _same_signature(wrapped, function)


# --- control flow ---------------------------------------------------------------------------------


def _region(
    builder: Trace, function: Callable[..., Any], types: Sequence[TensorType], prefix: str
) -> tuple[Trace, list[Value], Any]:
    inner = Trace(builder)
    args = [Tensor(inner, inner.input(f"{prefix}{n}", t)) for n, t in enumerate(types)]
    with inner.opened():
        items, structure = flatten(function(*args))
    return inner, [output_tensor(leaf, inner) for _, leaf in items], structure


def _close(inners: Sequence[Trace]) -> list[Value]:
    """What any of the regions captured; each region is given an input for all of it, in one order."""
    outside = list(dict.fromkeys(v for inner in inners for v in inner.captured))
    return outside


def _region_graph(name: str, inner: Trace, own: int, outside: Sequence[Value], outputs: Sequence[Value]) -> Graph:
    captured = [inner.capture(v) for v in outside]
    return Graph(name, (*inner.inputs[:own], *captured), tuple(outputs))


def cond(condition: Tensor, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """then(*operands) if condition else otherwise(*operands): only one of them is computed."""
    items, arranged = flatten(list(operands))
    builder = _trace_of([condition, *operands], "cond")
    tensors = [leaf if isinstance(leaf, Tensor) else condition._coerce(leaf) for _, leaf in items]
    types = [t.type for t in tensors]
    runs = []
    for branch in (then, otherwise):
        runs.append(_region(builder, lambda *leaves, call=branch: call(*rebuild(arranged, leaves)), types, "x"))
    if runs[0][2] != runs[1][2]:
        raise IngotTypeError(Code.BRANCH_TYPES, "the branches of cond return different structures", builder.here())
    outside = _close([runs[0][0], runs[1][0]])
    graphs = [_region_graph("branch", inner, len(types), outside, outputs) for inner, outputs, _ in runs]
    return rebuild(runs[0][2], _apply(If(*graphs), builder, [condition, *tensors], outside))


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], initial: Any, limit: Dim | None = None) -> Any:
    """Repeat `state = body(*state)` while condition(*state). Give a limit to be able to differentiate it."""
    items, arranged = flatten(initial if isinstance(initial, tuple | list) else (initial,))
    builder = _trace_of([leaf for _, leaf in items], "while_loop")
    sample = next(leaf for _, leaf in items if isinstance(leaf, Tensor))
    tensors = [leaf if isinstance(leaf, Tensor) else sample._coerce(leaf) for _, leaf in items]
    types = [t.type for t in tensors]
    test = _region(builder, lambda *leaves: condition(*rebuild(arranged, leaves)), types, "state")

    def step(*leaves: Tensor) -> Any:
        new = body(*rebuild(arranged, leaves))
        return new if isinstance(new, tuple | list) else (new,)

    repeat = _region(builder, step, types, "state")
    outside = _close([test[0], repeat[0]])
    graphs = [_region_graph("while", inner, len(types), outside, outputs) for inner, outputs, _ in (test, repeat)]
    found = _apply(While(graphs[0], graphs[1], len(types), limit), builder, tensors, outside)
    result = rebuild(arranged, found)
    return result if isinstance(initial, tuple | list) else result[0]


def scan(
    function: Callable[..., Any], initial: Any, xs: Any = None, length: Dim | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """carry, y = function(carry, x) for each x along the first axis of xs; returns (carry, stacked ys)."""
    carried, carry_structure = flatten(initial)
    scanned, x_structure = flatten(xs) if xs is not None else ([], None)
    leaves = [leaf for _, leaf in (*carried, *scanned)]
    builder = _trace_of(leaves, "scan")
    sample = next(leaf for leaf in leaves if isinstance(leaf, Tensor))
    tensors = [leaf if isinstance(leaf, Tensor) else sample._coerce(leaf) for leaf in leaves]
    starts, streams = tensors[: len(carried)], tensors[len(carried) :]
    if length is None:
        if not streams:
            raise IngotTypeError(Code.OP_ARGUMENTS, "scan needs xs or a length", builder.here())
        length = streams[0].shape[0]
    types = [t.type for t in starts] + [t.type.with_shape(t.shape[1:]) for t in streams]
    arrangement: list[Any] = []

    def step(*parts: Tensor) -> list[Any]:
        carry = rebuild(carry_structure, parts[: len(starts)])
        x = rebuild(x_structure, parts[len(starts) :]) if xs is not None else None
        new, y = function(carry, x)
        new_leaves, new_structure = flatten(new)
        if new_structure != carry_structure:
            raise IngotTypeError(
                Code.BRANCH_TYPES, "scan's function returns a carry of another structure", builder.here()
            )
        y_leaves, y_structure = flatten(y) if y is not None else ([], None)
        arrangement.append(y_structure)
        return [leaf for _, leaf in (*new_leaves, *y_leaves)]

    inner, outputs, _ = _region(builder, step, types, "part")
    outside = _close([inner])
    body = _region_graph("scan_body", inner, len(types), outside, outputs)
    op = Scan(body, len(starts), len(streams), length, reverse)
    found = _apply(op, builder, tensors, outside)
    carry = rebuild(carry_structure, found[: len(starts)])
    ys = rebuild(arrangement[0], found[len(starts) :]) if arrangement[0] is not None else None
    return carry, ys


def _apply(op: Op, builder: Trace, tensors: Sequence[Tensor], outside: Sequence[Value]) -> tuple[Tensor, ...]:
    args = [*(_adopted(builder, t) for t in tensors), *(Tensor(builder, v) for v in outside)]
    try:
        return args[0].apply(op, *args[1:])
    except IngotError as error:
        raise IngotTypeError(Code.BRANCH_TYPES, error.message, builder.here()) from None


def _adopted(builder: Trace, tensor: Tensor) -> Tensor:
    value = builder.adopt(tensor.value, tensor.builder)
    if value is None:
        raise IngotTypeError(Code.MIXED_TRACES, "a tensor of another trace is used here", builder.here())
    return Tensor(builder, value)
