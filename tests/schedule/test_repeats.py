"""Equal kernels share one body; each keeps its name, its buffers and its scratch memory."""

import numpy as np

import ingot
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.schedule.repeats import Repeats
from ingot.compiler.schedule.result import ScheduleOptions
from ingot.compiler.target import Target
from tests.schedule import kernels

TARGET = Target.named("x86-64-v3")


def test_an_equal_kernel_is_scheduled_once():
    seen = []

    def counted(kernel, options):
        seen.append(kernel)
        return schedule(kernel, TARGET, options)

    repeats = Repeats(counted)
    first, second = kernels.matmul(600, 300, 300), kernels.matmul(600, 300, 300)
    one, two = repeats(first, ScheduleOptions()), repeats(second, ScheduleOptions())
    assert len(seen) == 1
    assert one.function.body is two.function.body
    assert not set(one.scratch) & set(two.scratch)
    assert all(a in second.inputs and b in second.outputs for a, b in two.in_place)
    repeats(kernels.matmul(600, 301, 300), ScheduleOptions())
    repeats(first, ScheduleOptions(leaving=True))
    assert len(seen) == 3


def test_layers_with_the_same_shapes_compute_with_their_own_weights():
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(3)]

    def model(x):
        for weight in weights:
            x = (x @ weight).tanh()
        return x

    x = generator.standard_normal((5, 64)).astype(np.float32)
    expected = x
    for weight in weights:
        expected = np.tanh(expected @ weight)
    compiled = ingot.compile(model, ingot.f32[5, 64], cache=False)
    np.testing.assert_allclose(compiled(x), expected, 1e-5, 1e-5)
    assert len(compiled.profile(x, repeat=1).kernels) == 3
