"""Ops that run on the host, in NumPy: strings, sequences, optionals, maps, image decoding, results whose size depends
on data. One short evaluator per op; a program is cut around their nodes and `explain()` names them.

An op with a compiled form can have an evaluator too, for nodes whose inputs decide the shape of the result (the place
where Slice begins): it is compiled for the values of the first call, and run by the host once they were seen to change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from onnx import NodeProto

from ingot.frontends.onnx.registry import ONNX, domain_name

Evaluator = Callable[..., Any]
_EVALUATORS: dict[tuple[str, str], Evaluator] = {}
_DYNAMIC: dict[tuple[str, str], tuple[int, ...]] = {}
_SHAPE_BY_VALUE: dict[tuple[str, str], Evaluator] = {}


def host_op(*names: str, domain: str = ONNX, dynamic: tuple[int, ...] = ()) -> Callable[[Evaluator], Evaluator]:
    """Register the NumPy evaluator of ops: function(call, *inputs) -> outputs. `dynamic` are the axes of its results
    whose extent depends on data."""

    def register(function: Evaluator) -> Evaluator:
        for name in names:
            _EVALUATORS[(domain, name)] = function
            _DYNAMIC[(domain, name)] = dynamic
        return function

    return register


def shape_by_value(*names: str) -> Callable[[Evaluator], Evaluator]:
    """Register the NumPy evaluator of compiled ops whose inputs decide the shape of their result."""

    def register(function: Evaluator) -> Evaluator:
        _SHAPE_BY_VALUE.update({(ONNX, name): function for name in names})
        return function

    return register


def is_host_op(domain: str, name: str) -> bool:
    return (domain_name(domain), name) in _EVALUATORS


def hosted() -> list[tuple[str, str]]:
    """(domain, op) of every evaluator of whole nodes."""
    return sorted(_EVALUATORS)


def is_miscounted(node: NodeProto) -> bool:
    """Whether an evaluator is not given the inputs that its signature wants: not every op is described by ONNX."""
    function = _EVALUATORS.get((domain_name(node.domain), node.op_type))
    if function is None:
        return False
    named = list(inspect.signature(function).parameters.values())[1:]
    needed = sum(p.default is p.empty for p in named)
    return len(node.input) > len(named) or len([n for n in node.input[:needed] if n]) < needed


def evaluator(domain: str, name: str) -> Evaluator | None:
    return _EVALUATORS.get((domain_name(domain), name)) or _SHAPE_BY_VALUE.get((domain_name(domain), name))


def dynamic_axes(node: NodeProto) -> tuple[int, ...]:
    """Axes of a host node's results whose extent depends on data."""
    return _DYNAMIC.get((domain_name(node.domain), node.op_type), ())
