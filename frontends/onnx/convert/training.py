"""Training: the Gradient op, and steps of optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.compiler import autodiff
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import TRAINING, onnx_op


@onnx_op("Gradient", domain=TRAINING)
def gradient(op: Call, *inputs: Tensor) -> Any:
    """d y / d xs. The inputs are the values of the names in `xs` and `zs`: where the derivative is taken."""
    names = [*op.get("xs"), *op.get("zs", [])]
    if [n for n in op.node.input if n] != names:
        raise ProblemError(Kind.UNSUPPORTED, "Gradient at another point than where the graph is computed")
    y = op.tensor(op.scope.find(op.get("y")))
    xs = inputs[: len(op.get("xs"))]
    one = y.full_like(1.0)
    try:
        found = autodiff.gradients(op.trace, [y.value], [one.value], [x.value for x in xs])
    except autodiff.NotDifferentiableError as error:
        raise ProblemError(Kind.UNSUPPORTED, str(error)) from None
    zeros = [autodiff.zeros_like(op.trace, x.type) for x in xs]
    return tuple(Tensor(op.trace, g if g is not None else z) for g, z in zip(found, zeros, strict=True))


def _groups(op: Call, tensors: Sequence[Tensor], each: int) -> list[list[Tensor]]:
    """The inputs after R and T: all parameters, then all gradients, then each kind of state."""
    op.require(len(tensors) % each == 0, Kind.INPUT_COUNT, f"{len(tensors)} tensors are not a multiple of {each}")
    count = len(tensors) // each
    return [[tensors[k * count + n] for k in range(each)] for n in range(count)]


def _flattened(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Results in the order of the inputs: all new parameters, then each kind of state."""
    return tuple(row[k] for k in range(len(rows[0])) for row in rows)


def _regularized(x: Tensor, g: Tensor, norm: float) -> Any:
    return g + x * norm if norm else g


@onnx_op("Adagrad", domain=TRAINING)
def adagrad(op: Call, rate: Tensor, step: Tensor, *tensors: Tensor) -> Any:
    epsilon, norm = op.get("epsilon", 1e-6), op.get("norm_coefficient", 0.0)
    decayed = rate / (step.cast(rate.dtype) * op.get("decay_factor", 0.0) + 1.0)
    rows = []
    for x, g, h in _groups(op, tensors, 3):
        slope = _regularized(x, g, norm)
        squares = h + slope * slope
        rows.append((x - decayed.cast(x.dtype) * slope / (squares.sqrt() + epsilon), squares))
    return _flattened(rows)


@onnx_op("Adam", domain=TRAINING)
def adam(op: Call, rate: Tensor, step: Tensor, *tensors: Tensor) -> Any:
    alpha, beta = op.get("alpha", 0.9), op.get("beta", 0.999)
    epsilon, norm = op.get("epsilon", 1e-6), op.get("norm_coefficient", 0.0)
    after = op.get("norm_coefficient_post", 0.0)
    times = step.cast(rate.dtype)
    one = op.constant(np.asarray(1.0), rate.dtype)
    corrected = rate * (one - one * beta**times).sqrt() / (one - one * alpha**times)
    chosen = (step > 0).where(corrected, rate)
    rows = []
    for x, g, v, h in _groups(op, tensors, 4):
        slope = _regularized(x, g, norm)
        mean = v * alpha + slope * (1 - alpha)
        squares = h * beta + slope * slope * (1 - beta)
        new = x - chosen.cast(x.dtype) * mean / (squares.sqrt() + epsilon)
        rows.append((new * (1 - after) if after else new, mean, squares))
    return _flattened(rows)


@onnx_op("Momentum", domain=TRAINING)
def momentum(op: Call, rate: Tensor, step: Tensor, *tensors: Tensor) -> Any:
    alpha, beta, norm = op.get("alpha"), op.get("beta"), op.get("norm_coefficient")
    nesterov = op.choice("mode", "standard", ("standard", "nesterov")) == "nesterov"
    weight = (step > 0).where(float(beta), 1.0).cast(rate.dtype)
    rows = []
    for x, g, v in _groups(op, tensors, 3):
        slope = _regularized(x, g, norm)
        velocity = v * alpha + slope * weight.cast(x.dtype)
        direction = slope + velocity * alpha if nesterov else velocity
        rows.append((x - rate.cast(x.dtype) * direction, velocity))
    return _flattened(rows)
