"""Patterns as torch's exporters and the tools after them write them: each is one program, and what it is made of is looked at."""

import numpy as np
from onnx import helper

import ingot
from ingot.frontends.dsl.functions import trace
from tests.frontends.onnx.building import info, model_of, run


def ops_of(model):
    module = ingot.load_onnx(model)
    return [v.op.name for v in trace(module, module.input_types).graph.body]


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def test_third_power_is_two_products():
    """GELU by its tanh has Pow(x, 3). Products are off by 1.5 units in the last place at most, and exact where pow is."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1e-30, 5.0, -7.0]
    x = np.concatenate([special, np.linspace(-3, 3, 100)]).astype(np.float32)
    model = model_of([node("Pow", "x three", "y")], [info("x", x, ["n"])], ["y"], {"three": np.float32(3)})
    assert "pow" not in ops_of(model)
    (found,) = run(model, {"x": x})
    with np.errstate(over="ignore"):
        exact = (x.astype(np.float64) ** 3).astype(np.float32)
    np.testing.assert_array_max_ulp(found[np.isfinite(exact)], exact[np.isfinite(exact)], 2)
    np.testing.assert_array_equal(found[: len(special)], exact[: len(special)])
    np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])
