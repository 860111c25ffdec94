"""Models as quantisers write them: floats between DequantizeLinear and QuantizeLinear, computed in integers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import ingot
from ingot.compiler.ir.graph import Graph
from ingot.compiler.options import Options
from ingot.compiler.passes.integer_products import IntegerProducts
from ingot.compiler.pipeline import PASSES
from ingot.compiler.target import Target
from ingot.frontends.dsl.functions import trace
from tests.frontends.onnx.building import info, model_of

STEP = np.float32(0.05)  # of the result's codes


class Quantised:
    """Collects the nodes and constants of a model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def constant(self, array: Any) -> str:
        name = f"constant{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def codes(self, x: str, scale: Any, zero: Any) -> str:
        return self.node("QuantizeLinear", x, self.constant(scale), self.constant(zero))

    def floats(self, x: str, scale: Any, zero: Any, **attributes: Any) -> str:
        return self.node("DequantizeLinear", x, self.constant(scale), self.constant(zero), **attributes)

    def both(self, x: str, scale: Any, zero: Any) -> str:
        return self.floats(self.codes(x, scale, zero), scale, zero)


def product(rng: np.random.Generator, per_channel: bool) -> tuple[Quantised, np.ndarray]:
    made, columns = Quantised(), (24,) if per_channel else ()
    weight = made.constant(rng.integers(-128, 128, (40, 24)).astype(np.int8))
    scale = (rng.random(columns) * 0.01 + 0.002).astype(np.float32)
    x = made.both("x", np.float32(0.02), np.uint8(120))
    y = made.node("MatMul", x, made.floats(weight, scale, np.zeros(columns, np.int8), axis=1))
    y = made.node("Relu", made.node("Add", y, made.constant(rng.standard_normal(24).astype(np.float32))))
    made.both(y, STEP, np.uint8(100))
    return made, rng.standard_normal((7, 40)).astype(np.float32)


def gemm(rng: np.random.Generator) -> tuple[Quantised, np.ndarray]:
    """A transposed weight with a zero point, and a bias in codes of 32 bits."""
    made = Quantised()
    weight = made.constant(rng.integers(0, 256, (24, 40)).astype(np.uint8))
    bias = made.constant(rng.integers(-1000, 1000, 24).astype(np.int32))
    x = made.both("x", np.float32(0.02), np.int8(-3))
    w = made.floats(weight, np.float32(0.004), np.uint8(131))
    made.both(made.node("Gemm", x, w, made.floats(bias, np.float32(8e-5), np.int32(0)), transB=1), STEP, np.int8(5))
    return made, rng.standard_normal((7, 40)).astype(np.float32)


def convolutions(rng: np.random.Generator, channels: int) -> tuple[Quantised, np.ndarray]:
    """Padding is 0, whatever code stands for it; the second reads what the first made as codes."""
    made = Quantised()
    x = made.both("x", np.float32(0.02), np.uint8(77))
    for inputs, stride in ((channels, 2), (16, 1)):
        weight = made.constant(rng.integers(-128, 128, (16, inputs, 3, 3)).astype(np.int8))
        w = made.floats(weight, (rng.random(16) * 0.01 + 0.002).astype(np.float32), np.zeros(16, np.int8), axis=0)
        bias = made.constant(rng.standard_normal(16).astype(np.float32))
        y = made.node("Conv", x, w, bias, pads=[1, 1, 1, 1], strides=[stride, stride])
        x = made.both(made.node("Relu", y), STEP, np.uint8(10))
    return made, rng.standard_normal((2, channels, 12, 11)).astype(np.float32)


CASES = {
    "product": lambda rng: product(rng, False),
    "product with a scale for each column": lambda rng: product(rng, True),
    "gemm": gemm,
    "convolutions": lambda rng: convolutions(rng, 8),
    "convolutions of an image": lambda rng: convolutions(rng, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_products_between_codes_are_those_of_the_reference(name: str, rng: np.random.Generator) -> None:
    made, x = CASES[name](rng)
    model = model_of(made.nodes, [info("x", x)], [made.nodes[-1].output[0]], made.weights)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = ingot.compile(ingot.load_onnx(model), cache=False)(x)
    # Where a float sum lies on the edge between two codes its rounding decides; a second layer may see that.
    steps = np.abs(found - expected) / STEP
    assert steps.max() < 2.5
    assert (steps > 0.5).mean() < 0.01


@pytest.mark.parametrize("name", CASES)
def test_products_are_computed_in_integers(name: str, rng: np.random.Generator) -> None:
    """On machines with words of four codes; with words of two, 3x3 windows stay floats."""
    made, x = CASES[name](rng)
    model = ingot.load_onnx(model_of(made.nodes, [info("x", x)], [made.nodes[-1].output[0]], made.weights))
    graph = prepared(trace(model, [ingot.f32[x.shape]]).graph)
    for quads in (False, True):
        result = IntegerProducts(has_pairs=True, has_quads=quads)(graph)
        kinds = {v.tensor.dtype for v in result.body if v.op.name in ("contract", "convolution")}
        assert kinds == {ingot.f32 if "convolutions" in name and not quads else ingot.i32}


def prepared(graph: Graph) -> Graph:
    """What the passes before make of it."""
    for step in itertools.takewhile(lambda step: step.name != IntegerProducts.name, PASSES):
        graph = step.configured(Options(), Target.named("x86-64-v3"))(graph)
    return graph


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_codes_of_extreme_floats(kind: type) -> None:
    """Saturated at both ends; NaN becomes the zero point, as 0 does."""
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 0.0, -0.0, 1.0, -1.0], np.float32)
    zero = kind(7)
    made = Quantised()
    made.codes("x", np.float32(0.5), zero)
    found = ingot.compile(ingot.load_onnx(model_of(made.nodes, [info("x", x)], [made.nodes[-1].output[0]], made.weights)))(x)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    expected = [7, high, low, high, low, high, low, 7, 7, 9, max(5, low)]
    np.testing.assert_array_equal(found, np.array(expected, kind))
