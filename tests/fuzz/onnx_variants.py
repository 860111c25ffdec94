"""Every way in which one thing of a node can be off, one after the other: `python -m tests.fuzz.onnx_variants`.

Where the fuzzer (onnx_models.py) draws, this lists: each input with any other rank, extents that are empty, 1 or odd,
open dims, other element types, left out, or not given; each attribute left out, or with any of a list of values. The check of a
model says what is wrong with it, in a way that its converter foresaw.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.problems import Kind
from tests.frontends.onnx.cases import all_cases
from tests.fuzz.onnx_edits import FLOATS, INTEGERS, TEXTS, replace_attribute, schema_of_node
from tests.fuzz.onnx_models import Entry, corpus

RANKS = range(7)
EXTENTS = (0, 1, 2, 3, 5, 7)
TYPES = (
    TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64, TensorProto.STRING,
    TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT64, TensorProto.COMPLEX64, TensorProto.BFLOAT16,
    TensorProto.FLOAT8E4M3FN, TensorProto.UINT4, TensorProto.INT4,
)  # fmt: skip
VALUES: dict[int, Any] = {
    AttributeProto.FLOAT: FLOATS,
    AttributeProto.INT: INTEGERS,
    AttributeProto.STRING: TEXTS,
    AttributeProto.FLOATS: [[f] * count for f in FLOATS for count in (0, 1, 3)],
    AttributeProto.INTS: [[n] * count for n in (0, 1, -1, 2, 7, 1 << 40, -(1 << 63)) for count in (0, 1, 2, 3, 4)],
    AttributeProto.STRINGS: [[], ["a"], ["a", "b"]],
}
MOST_NODES = 3  # in a model: larger ones are functions written out
LONGEST = 5.0  # seconds of processor time for one check
MOST_MEMORY = 8 << 30


def variants(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """(what is changed, the model with it)."""
    yield from _of_inputs(model)
    for number, node in enumerate(model.graph.node):
        yield from _of_node(model, number, node)


def _copied(model: ModelProto) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    return made


def _of_inputs(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for number, declared in enumerate(model.graph.input):
        if declared.type.WhichOneof("value") != "tensor_type":
            continue
        rank = len(declared.type.tensor_type.shape.dim)
        for other in RANKS:
            made = _copied(model)
            dims = made.graph.input[number].type.tensor_type.shape.dim
            del dims[other:]
            while len(dims) < other:
                dims.add().dim_value = 2
            yield f"{declared.name} has {other} axes", made
        for axis in range(rank):
            for extent in EXTENTS:
                made = _copied(model)
                made.graph.input[number].type.tensor_type.shape.dim[axis].dim_value = extent
                yield f"axis {axis} of {declared.name} has {extent}", made
            made = _copied(model)
            made.graph.input[number].type.tensor_type.shape.dim[axis].dim_param = "n"
            yield f"axis {axis} of {declared.name} is open", made
        made = _copied(model)
        for axis, dim in enumerate(made.graph.input[number].type.tensor_type.shape.dim):
            dim.dim_param = f"d{axis}"
        yield f"{declared.name} is open", made
        for kind in TYPES:
            made = _copied(model)
            made.graph.input[number].type.tensor_type.elem_type = kind
            yield f"{declared.name} is {TensorProto.DataType.Name(kind)}", made


def _of_node(model: ModelProto, number: int, node: NodeProto) -> Iterator[tuple[str, ModelProto]]:
    for place in range(len(node.input)):
        made = _copied(model)
        made.graph.node[number].input[place] = ""
        yield f"input {place} of {node.op_type} is left out", made
        made = _copied(model)
        del made.graph.node[number].input[place]
        yield f"input {place} of {node.op_type} is removed", made
        made = _copied(model)
        del made.graph.node[number].input[place:]
        yield f"{node.op_type} has {place} inputs", made
    for more in (1, 4):
        made = _copied(model)
        made.graph.node[number].input.extend(list(node.input[:1]) * more)
        yield f"{node.op_type} has {more} inputs more", made
    for place, attribute in enumerate(node.attribute):
        made = _copied(model)
        del made.graph.node[number].attribute[place]
        yield f"{attribute.name} of {node.op_type} is removed", made
    for attribute in _mistyped(node):
        made = _copied(model)
        replace_attribute(made.graph.node[number], attribute)
        yield f"{attribute.name} of {node.op_type} has the type {attribute.type}", made
    for name, kind in _attributes(model, node):
        for value in VALUES.get(kind, ()):
            made = _copied(model)
            replace_attribute(made.graph.node[number], helper.make_attribute(name, value, attr_type=kind))
            yield f"{name} of {node.op_type} is {value}", made


def _mistyped(node: NodeProto) -> Iterator[AttributeProto]:
    for attribute in node.attribute:
        for kind, values in VALUES.items():
            if kind != attribute.type:
                yield helper.make_attribute(attribute.name, values[-1], attr_type=kind)


def _attributes(model: ModelProto, node: NodeProto) -> list[tuple[str, int]]:
    """Those that the op has; of an op that ONNX does not describe, those that the node has."""
    schema = schema_of_node(model, node)
    if schema is None:
        return [(a.name, int(a.type)) for a in node.attribute]
    return [(name, int(entry.type.value)) for name, entry in sorted(schema.attributes.items())]


def complaints(entry: Entry) -> list[str]:
    """What is wrong with how the variants of a model are refused, found in a process of its own."""
    model = ModelProto.FromString(entry.model)
    if len(model.graph.node) > MOST_NODES:
        return []
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        with os.fdopen(writing, "w") as stream:
            for what, made in variants(model):
                for text in _complaints_of(made):
                    stream.write(f"{entry.name}, {what}: {' '.join(text.split())}\n")
                    stream.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        found = stream.read().splitlines()
    _, status = os.waitpid(child, 0)
    return [*found, f"{entry.name}: the process ended with {status}"] if status else found


def _complaints_of(model: ModelProto) -> Iterator[str]:
    start = time.process_time()
    try:
        for problem in check_onnx(model.SerializeToString()):
            if problem.kind is Kind.BAD_NODE:
                yield str(problem)
    except Exception as error:
        yield f"{type(error).__name__} escaped: {error}"
    if time.process_time() - start > LONGEST:
        yield f"it took {time.process_time() - start:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.onnx_variants", description=__doc__)
    parser.add_argument("--number", type=int, default=0, help="which of the models of the same ops")
    arguments = parser.parse_args()
    found = models = tried = 0
    for alike in corpus(all_cases(Path(tempfile.gettempdir()) / "ingot-onnx-corpus")):
        entry = alike[min(arguments.number, len(alike) - 1)]
        models += 1
        model = ModelProto.FromString(entry.model)
        tried += sum(1 for _ in variants(model)) if len(model.graph.node) <= MOST_NODES else 0
        for text in complaints(entry):
            found += 1
            print(text[:600], flush=True)
    print(f"{found} findings in {tried} variants of {models} models")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
