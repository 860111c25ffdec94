"""Gradients through imported models agree with finite differences, or the error names the nodes that have none.

`pytest -m sweep tests/frontends/onnx/test_gradients.py` checks the models of the official suite and the light
architectures; `python -m benchmarks.real_models gradients` the real ones.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from benchmarks.real_models.gradients import Verdict, check, widened
from tests.frontends.onnx.building import Array, model_of
from tests.frontends.onnx.cases import LIGHT, Case, all_cases, stored_data
from tests.frontends.onnx.dynamic_models import MODELS

SMALL = (
    "test_Conv2d_groups",
    "test_Linear",
    "test_PReLU_1d",
    "test_MaxPool2d",
    "test_BatchNorm2d_eval",
    "test_Softmax",
)
CHUNKS = 12
declared = helper.make_tensor_value_info


def acceptable(verdict: Verdict) -> bool:
    """Right, or a reason that names nodes."""
    return verdict.is_right or " at " in verdict.reason or verdict.reason.startswith("nothing to differentiate")


@pytest.mark.parametrize("name", MODELS)
def test_models_of_text_images_and_audio(name: str) -> None:
    dynamic = MODELS[name]()
    generator = np.random.default_rng(3)
    low = {dim: min(high, low + 8 * step) for dim, (low, high, step) in dynamic.dims.items()}
    verdict = check(dynamic.model, dynamic.inputs(generator, low))
    assert verdict.is_right, str(verdict)


@pytest.fixture(scope="session")
def converted(pytestconfig: pytest.Config) -> dict[str, Case]:
    """What torch once exported, layer by layer."""
    cache: Path = pytestconfig.cache.mkdir("onnx")  # type: ignore[union-attr]
    kinds = ("pytorch-converted", "pytorch-operator", "simple")
    return {case.name: case for case in all_cases(cache) if case.kind in kinds}


def inputs_of(case: Case) -> dict[str, Array] | None:
    """The first data of a case, where all of it is arrays."""
    model = case.proto
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in weights]
    for arrays, _ in stored_data(case):
        if len(arrays) == len(names) and all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in arrays):
            return dict(zip(names, arrays, strict=True))
    return None


@pytest.mark.parametrize("name", SMALL)
def test_layers_that_torch_exported(converted: Mapping[str, Case], name: str) -> None:
    given = inputs_of(converted[name])
    assert given is not None
    verdict = check(converted[name].proto, given)
    assert verdict.is_right, str(verdict)


def test_nodes_without_a_gradient_are_named() -> None:
    """Integers made of the bits of a float have no derivative."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"], name="square"),
        helper.make_node("BitCast", ["square"], ["bits"], name="bits", to=TensorProto.INT32),
        helper.make_node("BitCast", ["bits"], ["back"], name="back", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["back", "x"], ["y"], name="product"),
    ]
    model = model_of(nodes, [declared("x", TensorProto.FLOAT, [4])], ["y"], opset=26)
    module = ingot.load_onnx(model)
    gradient = ingot.grad(lambda x: module(x).sum())
    with pytest.raises(Exception, match="not differentiable") as caught:
        ingot.compile(gradient, ingot.f32[4])
    assert "back" in str(caught.value)
    assert "product" not in str(caught.value)


def test_what_rounds_is_named() -> None:
    """A quantised model is a staircase: its slope is zero almost everywhere."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"], name="scaled"),
        helper.make_node("DynamicQuantizeLinear", ["scaled"], ["code", "scale", "zero"], name="codes"),
        helper.make_node("MatMulInteger", ["code", "weight", "zero"], ["total"], name="product"),
        helper.make_node("Cast", ["total"], ["float"], name="back", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["y"], name="result"),
    ]
    weights = {"w": np.ones(4, np.float32), "weight": np.ones((4, 2), np.int8)}
    model = model_of(nodes, [declared("x", TensorProto.FLOAT, [3, 4])], ["y"], weights)
    verdict = check(model, {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)})
    assert "piecewise constant" in verdict.reason
    assert "codes" in verdict.reason
    assert all(name not in verdict.reason for name in ("scaled", "product", "back", "result"))


def test_the_node_that_is_not_a_number_is_named() -> None:
    """sin(t)/t behind a condition: the result is fine, the chain rule is not."""
    nodes = [
        helper.make_node("Sin", ["x"], ["sine"], name="sine"),
        helper.make_node("Div", ["sine", "x"], ["ratio"], name="ratio"),
        helper.make_node("Mul", ["x", "keep"], ["kept"], name="kept"),
        helper.make_node("Div", ["kept", "kept"], ["one"], name="one"),
        helper.make_node("Equal", ["keep", "zero"], ["dropped"], name="dropped"),
        helper.make_node("Where", ["dropped", "ratio", "one"], ["y"], name="chosen"),
    ]
    weights = {"keep": np.array([0, 1], np.float32), "zero": np.zeros(2, np.float32)}
    model = model_of(nodes, [declared("x", TensorProto.FLOAT, [2])], ["y"], weights)
    verdict = check(model, {"x": np.array([0.5, 1.5], np.float32)})
    assert "not a number is first" in verdict.reason
    assert "'one (Div)'" in verdict.reason


def test_a_saturated_model_is_looked_at_where_it_is_not() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["large"]),
        helper.make_node("Sigmoid", ["large"], ["y"]),
    ]
    model = model_of(nodes, [declared("x", TensorProto.FLOAT, [3])], ["y"], {"w": np.full(3, 60, np.float32)})
    verdict = check(model, {"x": np.array([0.5, -0.52, 0.55], np.float32)})
    assert verdict.is_right, str(verdict)


def test_widened_models_are_double_throughout() -> None:
    nodes = [
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Cast", ["n"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["m", "half"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]
    model = model_of(nodes, [declared("n", TensorProto.INT64, [2])], ["y"], {"w": np.ones(2, np.float32)})
    program = ingot.compile(ingot.load_onnx(widened(model)))
    assert program(np.array([1, 2])).dtype == np.float64


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_suite(converted: Mapping[str, Case], chunk: int) -> None:
    wrong = []
    for name in sorted(converted)[chunk::CHUNKS]:
        given = inputs_of(converted[name])
        if given is not None:
            verdict = check(converted[name].proto, given)
            if not acceptable(verdict):
                wrong.append(f"{name}: {verdict}")
    assert not wrong, "\n".join(wrong)


def with_random_weights(model: onnx.ModelProto, generator: np.random.Generator) -> onnx.ModelProto:
    """The architecture with weights as training begins with them.

    The files fill every weight with 0.02: values grow from layer to layer up to 1e50 and more, all channels are equal,
    and the softmax at the end is where no difference quotient tells a slope.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for tensor in graph.initializer:  # some are as trained: variances of 1e-14, whose slopes no quotient tells either
        if given[tensor.name].dtype == np.float32 and given[tensor.name].ndim == 1:
            values = generator.uniform(0.5, 1.5, given[tensor.name].shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = [int(size) for size in given[node.input[0]]]
        if len(shape) > 1:
            values = generator.standard_normal(shape) * np.prod(shape[1:]) ** -0.5
        else:
            values = generator.uniform(0.5, 1.5, shape)  # scales and variances are positive
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return changed


@pytest.mark.sweep
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_architectures(path: Path) -> None:
    generator = np.random.default_rng(0)
    model = with_random_weights(onnx.load(path), generator)
    weights = {tensor.name for tensor in model.graph.initializer}
    given = {
        i.name: generator.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
        if i.name not in weights
    }
    verdict = check(model, given)
    assert verdict.is_right, str(verdict)
