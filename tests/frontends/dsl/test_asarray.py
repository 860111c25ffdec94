"""`ingot.asarray`: what a layer needs to use a parameter that is an array or already a tensor."""

import numpy as np

import ingot
from ingot import nn


class Scale(nn.Module):
    def __init__(self):
        self.weight = np.arange(3, dtype=np.float32)

    def forward(self, x):
        return x * ingot.asarray(self.weight, like=x).exp()


def test_a_parameter_is_a_tensor_whether_traced_or_not():
    model, x = Scale(), np.ones((2, 3), np.float32)
    traced, closed = ingot.compile(model, x), ingot.compile(lambda x: -model(-x), x)
    np.testing.assert_array_equal(traced(x), closed(x))
    np.testing.assert_allclose(traced(x)[0], np.exp(model.weight), rtol=1e-6)


def test_the_element_type_may_be_chosen():
    exe = ingot.compile(
        lambda x: (ingot.asarray(2, like=x, dtype=ingot.i32), ingot.asarray(x, x, ingot.f64)), ingot.f32[2]
    )
    assert [str(spec) for spec in exe.outputs] == ["output0: i32[]", "output1: f64[2]"]
