"""save_onnx: any traced function, module or gradient as an ONNX file that other runtimes read.

Graphs are written op by op (export/); what ONNX does not have becomes a function that says it in ONNX's ops. Names of inputs, outputs and weights are kept; weights of more than 1 GB go to a file beside the model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import ModelProto, TensorProto, checker, external_data_helper, helper, numpy_helper, shape_inference

from ingot.compiler.ir.graph import Graph, input_of
from ingot.compiler.ir.symbolic import Symbol
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.api import Jit
from ingot.frontends.dsl.module import Module
from ingot.frontends.onnx import export
from ingot.frontends.onnx.export.writer import DOMAIN, ModelParts, Writer, read_nodes
from ingot.runtime.storage import replacing

assert export.SUBJECTS  # importing them fills the registry

IR_VERSION = 10
LARGEST = 1 << 30  # bytes of weights inside the file
PAGE = 4096


def save_onnx(model: Any, path: str | os.PathLike[str], *types: Any) -> None:
    """Write a function of tensors, a Module or a transformed function (a gradient) for arguments of these types."""
    made = to_onnx(model, *types)
    target = Path(path)
    if sum(len(t.raw_data) for t in made.graph.initializer) <= LARGEST:
        checker.check_model(made, full_check=False)
        with replacing(target) as file:
            file.write(made.SerializeToString())
    else:
        with replacing(target) as file, replacing(target.with_name(f"{target.name}.data")) as data:
            _move_weights(made, data, f"{target.name}.data")
            file.write(made.SerializeToString())
        checker.check_model(str(target))


def _move_weights(model: ModelProto, data: BinaryIO, location: str) -> None:
    """Weights go to a file of their own, each at the beginning of a page, so that it can be mapped into memory."""
    for tensor in model.graph.initializer:
        data.write(bytes(-data.tell() % PAGE))
        external_data_helper.set_external_data(tensor, location, data.tell(), len(tensor.raw_data))
        tensor.data_location = TensorProto.EXTERNAL
        data.write(tensor.raw_data)
        tensor.ClearField("raw_data")


def to_onnx(model: Any, *types: Any) -> ModelProto:
    """The same as a message."""
    if isinstance(model, Jit):
        model = model.function
    if isinstance(model, Module) and not types:
        types = tuple(getattr(model, "input_types", ()))
    names = getattr(model, "input_names", None)
    traced = functions.trace(model, types, names, training=False)
    return graph_to_onnx(traced.graph)


def graph_to_onnx(graph: Graph) -> ModelProto:
    parts = ModelParts()
    parts.taken |= {*graph.input_names, *graph.output_names}
    writer = Writer(parts)
    for value in graph.inputs:
        name = input_of(value).name
        writer.names[value] = name
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, Symbol) and input_of(value).role != "constant":
                writer.symbols.setdefault(dim, (name, axis))
    parts.write(writer, graph)
    arguments = [v for v in graph.inputs if input_of(v).name not in graph.constants]
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        writer.node("Identity", writer.names[value], name=name)
    made = helper.make_graph(
        read_nodes(writer.nodes, set(graph.output_names)),
        graph.name or "ingot",
        [writer.info(input_of(v).name, v.tensor) for v in arguments],
        [writer.info(n, v.tensor) for n, v in zip(graph.output_names, graph.outputs, strict=True)],
        [_initializer(n, a) for n, a in graph.constants.items()],
    )
    parts.settle_versions()
    opsets = [helper.make_opsetid("", parts.opset)]
    if parts.functions:
        opsets.append(helper.make_opsetid(DOMAIN, 1))
    model = helper.make_model(
        made, producer_name="ingot", opset_imports=opsets, functions=list(parts.functions.values()), ir_version=IR_VERSION
    )
    return _annotated(model)


def _initializer(name: str, array: np.ndarray) -> Any:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def _annotated(model: ModelProto) -> ModelProto:
    """With the shapes of intermediate values, where ONNX can infer them; large models go without."""
    if model.ByteSize() > LARGEST:
        return model
    return shape_inference.infer_shapes(model)

