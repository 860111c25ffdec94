"""Small ONNX models for tests, and what other runtimes say about them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from ingot.frontends.onnx import backend
from ingot.frontends.onnx.elements import element_of

Array = np.ndarray


def info(name: str, array: Array, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_of(array).code, list(array.shape if shape is None else shape))


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    weights: Mapping[str, Array] | None = None,
    opset: int = 21,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> ModelProto:
    """A model; outputs that are only named have no declared type."""
    made = [o if not isinstance(o, str) else onnx.ValueInfoProto(name=o) for o in outputs]
    initializers = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), made, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def node_model(
    op: str,
    arrays: Sequence[Array | None],
    outputs: int = 1,
    domain: str = "",
    opset: int = 21,
    constants: Sequence[int] = (),
    **attributes: Any,
) -> tuple[ModelProto, dict[str, Array]]:
    """A model of one node, and its inputs; the inputs numbered by `constants` are initializers."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(arrays)]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    given = {f"x{n}": a for n, a in enumerate(arrays) if a is not None}
    fixed = {f"x{n}": given[f"x{n}"] for n in constants}
    free = {n: a for n, a in given.items() if n not in fixed}
    domains = {domain: 1} if domain else {}
    if domain == "ai.onnx.ml":
        domains = {domain: attributes.get("ml_version", 3)}
    model = model_of([node], [info(n, a) for n, a in free.items()], results, fixed, opset, domains)
    return model, free


def run(model: ModelProto, inputs: Mapping[str, Array]) -> list[Any]:
    return list(backend.run_model(model, dict(inputs)))


def run_onnxruntime(model: ModelProto, inputs: Mapping[str, Array]) -> list[Any]:
    """What ONNX Runtime computes; the test is skipped where it is not installed."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


def check_like_onnxruntime(
    model: ModelProto, inputs: Mapping[str, Array], rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    check_same(run(model, inputs), run_onnxruntime(model, inputs), rtol, atol)


def check_same(found: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if theirs.dtype.kind in "OUS":
            assert ours.tolist() == theirs.tolist()
        else:
            np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol)


def opened(model: ModelProto) -> ModelProto:
    """A model with open dims where its inputs have extents above 1: the same name for the same extent."""
    made = ModelProto()
    made.CopyFrom(model)
    for declared in made.graph.input:
        for dim in declared.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"extent_{dim.dim_value}"
    return made
