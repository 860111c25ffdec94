"""Ops that say how gradients flow: they change nothing in the forward direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.interpret.graph import run_region
from ingot.compiler.ir.scalar import Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, TupleType, f64, i64
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample
from ingot.compiler.ops.control import _region, inline


class Identity(Op, abstract=True):
    """y = x"""

    movement = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x

    def decompose(self, *xs: Node) -> Node:
        return xs[0]


@dataclass(frozen=True)
class StopGradient(Identity):
    """y = x, and no gradient goes back through it."""

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(), (f64[3],), wrt=())


@dataclass(frozen=True)
class Independent(Identity):
    """y = x, a value of its own: a derivative with respect to it does not look behind it. The number keeps
    two of them apart."""

    number: int

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(0), (f64[3],))


@dataclass(frozen=True)
class CustomGradient(Op):
    """forward(xs...), with a gradient given by the user: backward(xs..., ys..., gs...) -> one per x."""

    cheap = False

    forward: Graph
    backward: Graph

    def infer(self, *types: TensorType) -> TupleType:
        if [v.type for v in self.forward.inputs] != list(types):
            raise OpTypeError(
                f"custom_gradient: its function takes {[v.type for v in self.forward.inputs]}, not {list(types)}"
            )
        found = [v.type for v in self.backward.outputs]
        if found != list(types):
            raise OpTypeError(f"custom_gradient: the gradient rule gives {found}; it must give {list(types)}")
        return TupleType(tuple(v.tensor for v in self.forward.outputs))

    def evaluate(self, *xs: np.ndarray) -> tuple[np.ndarray, ...]:
        return run_region(self.forward, xs)

    def decompose(self, *xs: Node) -> tuple[Node, ...]:
        values = inline(xs[0].builder, self.forward, [x.value for x in xs])
        return tuple(type(xs[0])(xs[0].builder, v) for v in values)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        given = [gn if gn is not None else yn.full_like(0) for gn, yn in zip(g, y, strict=True)]
        values = inline(xs[0].builder, self.backward, [n.value for n in (*xs, *y, *given)])
        return tuple(type(xs[0])(xs[0].builder, v) for v in values)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        forward = _region(lambda x: (x.sin(),), 1)
        yield Sample(cls(forward, _region(lambda x, y, g: (g * x.cos(),), 3)), (f64[3, 2],))


@dataclass(frozen=True)
class CheckRange(Op):
    """The positions that indices mean: i, or i + extent for a negative one; outside of [-extent, extent) is a
    run-time failure."""

    extent: Dim
    differentiable = False

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != i64:
            raise OpTypeError(f"check_range takes i64 tensors, not {x.dtype}")
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        extent: Any = self.extent
        if x.size and (x.min() < -extent or x.max() >= extent):
            raise IndexError(f"an index is outside [-{extent}, {extent})")
        return np.where(x < 0, x + extent, x)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        return scalar.IndexValue(scalar.bounded_index(operands[0](*index), self.extent, "index"))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(5), (np.array([0, 4, 2, -1, -5]),))
