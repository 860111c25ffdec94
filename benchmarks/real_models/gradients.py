"""Gradients through imported models, checked against finite differences.

A model is widened to double precision, so that a difference quotient is accurate to many digits, and compared along
one random direction: (f(x + h d) - f(x - h d)) / 2h with <grad f(x), d>, where f adds up the model's outputs with
random weights. That one number depends on every element of the gradient. A kink (of relu or max) between the two
points spoils it, and a network has millions of them; a logarithm ends where its argument does. So shorter and shorter
steps are tried until one agrees.

What cannot be differentiated is not a failure: the verdict names the nodes. So it does for what rounds (a quantised
model is a staircase: its gradient is zero almost everywhere, and no quotient says so), and for the node whose result
is the first that is not a number, where the gradient is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

import ingot
from ingot.compiler.autodiff import NotDifferentiableError
from ingot.compiler.errors import IngotError
from ingot.compiler.ir.graph import Value
from ingot.compiler.ir.interpret.graph import run_graph
from ingot.frontends.dsl.functions import trace
from ingot.frontends.dsl.trace import as_type

NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# A slope of 1e9 (of a logarithm near 0) is told by the shortest, one of 1e-9 (of a saturated sigmoid) by the longest.
STEPS = (1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
STASHED = ("LayerNormalization", "RMSNormalization")  # say in which type they compute
ACCURATE = 1e-4
LARGEST = 1e3


@dataclass(frozen=True)
class Verdict:
    """`error` of the directional derivative, or `reason`: why there is no gradient, with the nodes."""

    error: float = 0.0
    reason: str = ""

    @property
    def is_right(self) -> bool:
        return not self.reason and self.error < ACCURATE

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        return f"{'verified' if self.is_right else 'WRONG'}: relative error {self.error:.1e}"


class _NothingToDifferentiateError(Exception):
    """There is no gradient."""


class _NothingToSeeError(Exception):
    """Not at this point: the gradient is not a number, or so small that it is lost in the rounding of the values."""


# Where it is looked at: the sample; where roots and logarithms of it are defined; where sigmoids are not saturated.
PLACES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda sample: sample,
    lambda sample: np.abs(sample) + 0.5,
    lambda sample: 0.01 * sample,
)


def check(model: ModelProto, inputs: Mapping[str, np.ndarray], seed: int = 0) -> Verdict:
    """Differentiate with respect to the float inputs and all float weights."""
    wide = widened(model)
    module = ingot.load_onnx(wide)
    generator = np.random.default_rng(seed)
    arrays = {name: _usable(array, generator) for name, array in inputs.items()}
    floats = [name for name in module.input_names if arrays[name].dtype == np.float64]
    if not floats and not module.weights:
        return Verdict(reason="nothing to differentiate: no input and no weight is a float")
    try:
        for moved in PLACES:
            point = arrays | {name: moved(arrays[name]) for name in floats}
            loss = _loss_of(point, floats, generator)
            try:
                return Verdict(_directional_error(loss, module, point, floats, generator))
            except _NothingToSeeError as error:
                reason = str(error)
        loss = _loss_of(arrays, floats, generator)
        return Verdict(reason=_first_not_a_number(loss, module, [arrays[name] for name in floats]) or reason)
    except _NothingToDifferentiateError as error:
        return Verdict(reason=f"nothing to differentiate: {error}")
    except NotDifferentiableError as error:
        return Verdict(reason=f"not differentiable: {error}")
    except IngotError as error:
        return Verdict(reason=f"not differentiable: {error.message}")


def _loss_of(arrays: Mapping[str, np.ndarray], floats: Sequence[str], generator: np.random.Generator) -> Any:
    """A scalar function of (module, float inputs): the outputs, weighted at random, added up."""
    factors: dict[int, np.ndarray] = {}

    def loss(module: Any, *given: Any) -> Any:
        named = {name: arrays[name] for name in module.input_names} | dict(zip(floats, given, strict=True))
        results = module(**named)
        total: Any = None
        for number, result in enumerate(results if isinstance(results, tuple) else (results,)):
            if not result.dtype.is_float:
                continue
            if number not in factors:
                factors[number] = generator.standard_normal([int(d) for d in result.shape])
            part = (result.cast(ingot.f64) * factors[number]).sum()
            total = part if total is None else total + part
        if total is None:
            raise _NothingToDifferentiateError("no output is a float")
        return total

    return loss


def _directional_error(
    loss: Any, module: Any, arrays: Mapping[str, np.ndarray], floats: Sequence[str], generator: np.random.Generator
) -> float:
    weights = {name: array for name, array in module.named_arrays().items() if array.dtype == np.float64}
    points = [arrays[name] for name in floats]
    both = ingot.jit(ingot.value_and_grad(loss, tuple(range(1 + len(points))), steps="refuse"))
    value, (for_weights, *for_points) = both(module, *points)
    along_weights = {name: generator.standard_normal(array.shape) for name, array in weights.items()}
    along_points = [generator.standard_normal(point.shape) for point in points]
    slope = sum(float(np.sum(for_weights[name] * along_weights[name])) for name in weights)
    slope += sum(float(np.sum(g * d)) for g, d in zip(for_points, along_points, strict=True))
    size = sum(float(np.sum(for_weights[name] ** 2)) for name in weights)
    size += sum(float(np.sum(g**2)) for g in for_points)
    scale = max(abs(slope), size**0.5)
    if scale == 0:
        raise _NothingToSeeError("nothing to differentiate: the gradient is zero at the samples")
    if math.isnan(scale):
        raise _NothingToSeeError("the gradient is not a number")
    if scale * STEPS[0] * ACCURATE < abs(float(value)) * np.finfo(np.float64).eps:
        raise _NothingToSeeError(
            f"nothing to differentiate: at the samples the slope is {scale:.0e} and the value {value:.0e}"
        )

    def at(distance: float) -> float:
        moved = module.with_arrays(lambda name, array: array + distance * along_weights[name])
        return float(both(moved, *(p + distance * d for p, d in zip(points, along_points, strict=True)))[0])

    least = math.nan
    for step in STEPS:
        error = abs((at(step) - at(-step)) / (2 * step) - slope) / scale
        least = error if math.isnan(least) else min(least, error)  # a long step may leave a function's domain
        if least < ACCURATE:
            break
    return least


def _first_not_a_number(loss: Any, module: Any, points: Sequence[np.ndarray]) -> str:
    """Says which node makes something that is not a number of finite numbers, if one does: forward, behind a
    condition that hides it from the result, or in the chain rule."""
    arrays = [array for array in module.named_arrays().values() if array.dtype == np.float64]
    positions = {id(array): n for n, array in enumerate(arrays)}
    derivative = ingot.value_and_grad(loss, tuple(range(1 + len(points))))

    def of_arrays(*given: Any) -> Any:
        held = module.with_arrays(lambda _, array: given[positions[id(array)]] if id(array) in positions else array)
        value, (for_weights, *for_points) = derivative(held, *given[len(arrays) :])
        return value, tuple(for_weights.values()), tuple(for_points)

    names = [f"given{n}" for n in range(len(arrays) + len(points))]
    graph = trace(of_arrays, [as_type(a, n) for n, a in enumerate((*arrays, *points))], names).graph
    finite: dict[Value, bool] = {}
    first: list[Value] = []

    def observe(value: Value, result: Any) -> None:
        results = result if isinstance(result, tuple) else (result,)
        finite[value] = not any(np.isnan(r).any() for r in results if r.dtype.kind == "f")
        if not finite[value] and not first and all(finite[a] for a in value.args):
            first.append(value)

    run_graph(graph, dict(zip(names, (*arrays, *points), strict=True)), observe=observe)
    if not first:
        return ""
    return f"not differentiable: not a number is first {getattr(first[0].op, 'name', '')} at {first[0].source}"


# --- models in double precision ---------------------------------------------------------------------------------------


def widened(model: ModelProto) -> ModelProto:
    """The same model with every float type replaced by double."""
    wide = ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    for function in wide.functions:
        _widen_nodes(function.node)
    return wide


def _widen_graph(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Any) -> None:
    for node in nodes:
        if node.op_type in STASHED and not any(attribute.name == "stash_type" for attribute in node.attribute):
            default = onnx.helper.make_attribute("stash_type", TensorProto.FLOAT)
            node.attribute.append(default)
        for attribute in _attributes(node):
            if attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif attribute.name in ("to", "dtype", "output_dtype", "stash_type") and attribute.i in NARROW:
                attribute.i = TensorProto.DOUBLE


def _attributes(node: onnx.NodeProto) -> Iterator[AttributeProto]:
    """The attributes; a literal of a Constant node becomes a tensor, which has a type."""
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            literal = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            attribute.CopyFrom(
                onnx.helper.make_attribute("value", numpy_helper.from_array(np.asarray(literal, np.float64)))
            )
        yield attribute


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), name))


def _usable(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Floats in double precision; random ones where a difference quotient would be useless: at 0, where many
    functions have a kink, and at numbers so large that a step is lost in them."""
    if array.dtype.kind != "f":
        return array
    wide = array.astype(np.float64)
    fine = np.isfinite(wide) & (wide != 0) & (np.abs(wide) < LARGEST)
    return np.where(fine, wide, generator.standard_normal(wide.shape))
