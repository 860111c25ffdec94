"""Reductions, positions of extremes, running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir.types import DType, boolean, f32, f64
from ingot.compiler.ops.base import normalize_axes, normalize_axis
from ingot.compiler.ops.reduction import Argmax, Argmin, Cumprod, Cumsum
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.movement import axis_of
from ingot.frontends.onnx.registry import onnx_op

Reduce = Callable[[Tensor, tuple[int, ...], bool], Any]


def _in_floats(function: Reduce) -> Reduce:
    """Integers are computed in floats and converted back."""

    def reduce(x: Tensor, axes: tuple[int, ...], keep: bool) -> Any:
        if x.dtype.is_float:
            return function(x, axes, keep)
        wide: DType = f64 if x.dtype.bits > 16 else f32
        return function(x.cast(wide), axes, keep).cast(x.dtype)

    return reduce


def _plain(name: str) -> Reduce:
    return lambda x, axes, keep: x.reduce(name, axes, keep)


def _extreme(name: str, logic: str) -> Reduce:
    return lambda x, axes, keep: x.reduce(logic if x.dtype == boolean else name, axes, keep)


def _norm2(x: Tensor, axes: tuple[int, ...], keep: bool) -> Any:
    return (x * x).reduce("sum", axes, keep).sqrt()


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceSum": _plain("sum"),
    "ReduceProd": _plain("prod"),
    "ReduceMax": _extreme("max", "any"),
    "ReduceMin": _extreme("min", "all"),
    "ReduceMean": _in_floats(_plain("mean")),
    "ReduceLogSumExp": _in_floats(_plain("logsumexp")),
    "ReduceL1": lambda x, axes, keep: x.abs().reduce("sum", axes, keep),
    "ReduceL2": _in_floats(_norm2),
    "ReduceLogSum": _in_floats(lambda x, axes, keep: x.reduce("sum", axes, keep).log()),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).reduce("sum", axes, keep),
}


def reduced(op: Call, x: Tensor, axes: Sequence[int] | None, function: Reduce) -> Any:
    if not axes:
        if op.get("noop_with_empty_axes", 0):
            return function(x, (), True) if op.name in _CHANGING else x
        axes = range(x.rank)
    return function(x, normalize_axes(tuple(axes), x.rank, op.name), bool(op.get("keepdims", 1)))


_CHANGING = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceLogSumExp")


def _by_attribute(function: Reduce) -> Callable[..., Any]:
    return lambda op, x: reduced(op, x, op.get("axes", None), function)


def _by_input(function: Reduce) -> Callable[..., Any]:
    def convert(op: Call, x: Tensor, axes: np.ndarray | None = None) -> Any:
        return reduced(op, x, None if axes is None else axes.reshape(-1).tolist(), function)

    return convert


for _name, _function in _REDUCTIONS.items():
    onnx_op(_name, since=1)(_by_attribute(_function))
    onnx_op(_name, since=13 if _name == "ReduceSum" else 18, known=(1,))(_by_input(_function))


def _position(kind: type[Argmax] | type[Argmin]) -> Callable[..., Any]:
    def convert(op: Call, x: Tensor) -> Any:
        axis = axis_of(op, x)
        place = x.apply(kind(axis, bool(op.get("select_last_index", 0))))
        return place.expand_dims(axis) if op.get("keepdims", 1) else place

    return convert


onnx_op("ArgMax")(_position(Argmax))
onnx_op("ArgMin")(_position(Argmin))


def _running(kind: type[Cumsum] | type[Cumprod]) -> Callable[..., Any]:
    def convert(op: Call, x: Tensor, axis: np.ndarray) -> Any:
        place = normalize_axis(op.integer(axis, "the axis"), x.rank, op.name)
        return x.apply(kind(place, bool(op.get("exclusive", 0)), bool(op.get("reverse", 0))))

    return convert


onnx_op("CumSum", known=(1,))(_running(Cumsum))
onnx_op("CumProd", known=(1,))(_running(Cumprod))


# --- softmax and relatives ----------------------------------------------------------------------------


def _flat_softmax(name: str) -> Callable[..., Any]:
    """Before opset 13 the tensor is a matrix whose columns start at the axis."""

    def convert(op: Call, x: Tensor) -> Any:
        axis = axis_of(op, x, default=1) if x.rank else 0
        flat = x.reshape(*x.shape[:axis], -1) if axis < x.rank - 1 else x
        return _soft(name, flat, flat.rank - 1).reshape(*x.shape)

    return convert


def _soft(name: str, x: Tensor, axis: int) -> Any:
    if name == "hardmax":
        best = x.apply(Argmax(axis))
        return best.one_hot(depth=x.shape[axis], axis=axis, dtype=x.dtype)
    return getattr(x, name)(axis)


def _softmax(name: str) -> Callable[..., Any]:
    return lambda op, x: _soft(name, x, axis_of(op, x, default=-1))


for _name, _kind in {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}.items():
    onnx_op(_name, since=1)(_flat_softmax(_kind))
    onnx_op(_name, since=13)(_softmax(_kind))
