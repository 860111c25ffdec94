"""Control flow: If, Loop and Scan with bodies; running products and recurrences as scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from ingot.compiler.ir.graph import Graph, Value
from ingot.compiler.ir.types import TensorType
from ingot.frontends.onnx.export.writer import Writer, writes


def _outputs(w: Writer, names: list[str], graph: Graph) -> list[Any]:
    return [w.info(name, value.tensor) for name, value in zip(names, graph.outputs, strict=True)]


@writes("if")
def if_(w: Writer, value: Value, condition: str, *captured: str) -> Any:
    op: Any = value.op
    branches = []
    for graph in (op.then, op.otherwise):
        inner, names = w.body(graph, list(zip(graph.inputs, captured, strict=True)))
        branches.append(inner.graph(w.fresh("branch"), [], _outputs(w, names, graph)))
    results = w.node("If", condition, count=len(value.type.elements), then_branch=branches[0], else_branch=branches[1])  # type: ignore[union-attr]
    return results if isinstance(results, tuple) else (results,)


@writes("while")
def while_(w: Writer, value: Value, *inputs: str) -> Any:
    """The condition is computed once before the loop and again at the end of every round."""
    op: Any = value.op
    states, captured = inputs[: op.carried], inputs[op.carried :]
    first, (start,) = w.body(op.condition, list(zip(op.condition.inputs, inputs, strict=True)))
    w.nodes += first.nodes
    inner = Writer(w.model, w.fresh("loop") + "/", w)
    labels = [inner.fresh("state") for _ in states]
    for graph_input, name in zip(op.body.inputs, (*labels, *captured), strict=True):
        inner.names[graph_input] = name
    w.model.write(inner, op.body)
    new = [inner.node("Identity", inner.names[v]) for v in op.body.outputs]
    for graph_input, name in zip(op.condition.inputs, (*new, *captured), strict=True):
        inner.names[graph_input] = name
    w.model.write(inner, op.condition)
    go = inner.node("Identity", inner.names[op.condition.outputs[0]])
    number, going = inner.fresh("round"), inner.fresh("going")
    types = [v.tensor for v in op.body.inputs[: op.carried]]
    body = inner.graph(
        w.fresh("body"),
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            *(w.info(label, t) for label, t in zip(labels, types, strict=True)),
        ],
        [helper.make_tensor_value_info(go, TensorProto.BOOL, []), *(w.info(n, t) for n, t in zip(new, types, strict=True))],
    )
    limit = "" if op.limit is None else w.node("Squeeze", w.dim(op.limit))
    results = w.node("Loop", limit, start, *states, count=op.carried, body=body)
    return results if isinstance(results, tuple) else (results,)


@writes("scan")
def scan(w: Writer, value: Value, *inputs: str) -> Any:
    op: Any = value.op
    if not op.scanned:
        return _counted(w, value, *inputs)
    own = op.carried + op.scanned
    inner, names, labels = _scan_body(w, op.body, own, inputs[own:])
    extra = len(op.body.outputs) - op.carried
    body = inner.graph(
        w.fresh("body"),
        [w.info(label, v.tensor) for label, v in zip(labels, op.body.inputs, strict=False)],
        _outputs(w, names, op.body),
    )
    backwards = int(op.reverse)
    results = w.node(
        "Scan", *inputs[:own], count=len(value.type.elements), body=body, num_scan_inputs=op.scanned,  # type: ignore[union-attr]
        scan_input_directions=[backwards] * op.scanned, scan_output_directions=[backwards] * extra if extra else None,
    )  # fmt: skip
    return results if isinstance(results, tuple) else (results,)


def _scan_body(w: Writer, graph: Graph, own: int, captured: Any) -> tuple[Writer, list[str], list[str]]:
    labels = [w.fresh("part") for _ in graph.inputs[:own]]
    inner, names = w.body(graph, list(zip(graph.inputs, (*labels, *captured), strict=True)))
    return inner, names, labels


def _counted(w: Writer, value: Value, *inputs: str) -> Any:
    """A scan without inputs is a Loop of a known number of rounds."""
    op: Any = value.op
    inner, names, labels = _scan_body(w, op.body, op.carried, inputs[op.carried :])
    number, going, on = inner.fresh("round"), inner.fresh("going"), inner.fresh("on")
    inner.nodes.append(helper.make_node("Identity", [going], [on]))
    body = inner.graph(
        w.fresh("body"),
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            *(w.info(label, v.tensor) for label, v in zip(labels, op.body.inputs, strict=False)),
        ],
        [helper.make_tensor_value_info(on, TensorProto.BOOL, []), *_outputs(w, names, op.body)],
    )
    count = w.node("Squeeze", w.dim(op.length))
    true = w.constant(np.asarray(True))
    results = list(w.node("Loop", count, true, *inputs[: op.carried], count=len(value.type.elements), body=body)  # type: ignore[union-attr]
                   if len(value.type.elements) > 1 else [w.node("Loop", count, true, *inputs[: op.carried], body=body)])  # type: ignore[union-attr] # fmt: skip
    if op.reverse:
        for n in range(op.carried, len(results)):
            results[n] = w.slice(results[n], [-1], [-(2**31)], [0], [-1])
    return tuple(results)


@writes("custom_gradient")
def custom_gradient(w: Writer, value: Value, *inputs: str) -> Any:
    op: Any = value.op
    inner, names = w.body(op.forward, list(zip(op.forward.inputs, inputs, strict=True)))
    w.nodes += inner.nodes
    return names[0] if isinstance(value.type, TensorType) else tuple(names)


# --- recurrences ------------------------------------------------------------------------------------


def _along(w: Writer, value: Value, inputs: list[str], step: Any) -> str:
    """A Scan along the op's axis whose carry has the shape of one slice."""
    op: Any = value.op
    shape = [d for n, d in enumerate(value.shape) if n != op.axis]
    dtype = value.tensor.dtype
    start, body_inputs, body, result, carry = step(w, [w.fresh("slice") for _ in inputs], w.fresh("carry"), value)
    initial = w.expand(w.like(start, value), shape)
    infos = [w.info(name, TensorType(dtype, tuple(shape))) for name in (carry[0], *body_inputs)]
    graph = body.graph(w.fresh("body"), infos, [w.info(name, TensorType(dtype, tuple(shape))) for name in (carry[1], result)])
    backwards = int(op.reverse)
    _, made = w.node(
        "Scan", initial, *inputs, count=2, body=graph, num_scan_inputs=len(inputs),
        scan_input_axes=[op.axis] * len(inputs), scan_output_axes=[op.axis],
        scan_input_directions=[backwards] * len(inputs), scan_output_directions=[backwards],
    )  # fmt: skip
    return made


@writes("cumprod")
def cumprod(w: Writer, value: Value, x: str) -> str:
    return w.function(value, (x,), _cumprod)


def _cumprod(w: Writer, value: Value, x: str) -> str:
    def step(w: Writer, slices: list[str], carry: str, value: Value) -> Any:
        inner = Writer(w.model, w.fresh("step") + "/", w)
        total = inner.node("Mul", carry, slices[0])
        shown = inner.node("Identity", carry if value.op.exclusive else total)  # type: ignore[attr-defined]
        return 1, slices, inner, shown, (carry, total)

    return _along(w, value, [x], step)


@writes("linear_recurrence")
def linear_recurrence(w: Writer, value: Value, a: str, b: str) -> str:
    return w.function(value, (a, b), _linear_recurrence)


def _linear_recurrence(w: Writer, value: Value, a: str, b: str) -> str:
    def step(w: Writer, slices: list[str], carry: str, value: Value) -> Any:
        inner = Writer(w.model, w.fresh("step") + "/", w)
        total = inner.node("Add", inner.node("Mul", slices[0], carry), slices[1])
        return 0, slices, inner, inner.node("Identity", total), (carry, total)

    return _along(w, value, [a, b], step)
