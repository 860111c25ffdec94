"""Symbolic extents as sizes: the general kernel computes the same, several resolutions share one, and an extent about
which the kernel knows more stays what it is."""

import numpy as np
import pytest

import ingot
from ingot.compiler import pipeline
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.interpret import run_function, run_kernel
from ingot.compiler.ir.loops import Alloc, Call, Function
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.tensor import Kernel
from ingot.compiler.ir.text.loops import parse_function, print_function
from ingot.compiler.ir.text.tensor import print_kernel
from ingot.compiler.ir.verify import VerifyError, verify_function, verify_kernel
from ingot.compiler.options import Options
from ingot.compiler.schedule.choose import schedule
from ingot.compiler.schedule.repeats import Repeats
from ingot.compiler.schedule.result import ScheduleOptions
from ingot.compiler.schedule.sizes import generalise
from tests.schedule import harness, kernels

H, W = Symbol("h"), Symbol("w", 4)


def half(dim: Dim, times: int = 1) -> Dim:
    return (dim + (1 << times) - 1) // (1 << times)


def test_extents_become_sizes_and_the_kernel_computes_the_same():
    kernel = kernels.matmul(half(H), half(W, 2), 5)
    general = generalise(kernel)
    verify_kernel(general.kernel)
    assert list(general.sizes.values()) == [half(H), half(W, 2)]
    assert {symbolic.bounds(size) for size in general.sizes} == {(1, None)}
    assert not {H, W} & {a for b in general.kernel.inputs for d in b.shape for a in symbolic.atoms(d)}
    dims = {H: 7, W: 11}
    inside = {size: symbolic.evaluate(extent, dims) for size, extent in general.sizes.items()}
    inputs = harness.inputs_of(kernel, dims)
    expected, found = run_kernel(kernel, inputs, dims), run_kernel(general.kernel, inputs, inside)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_same_kernel_at_another_resolution_has_the_same_text():
    texts = {print_kernel(generalise(kernels.matmul(half(H, n), 16, 8)).kernel, neutral=True) for n in (1, 2, 3)}
    assert len(texts) == 1


def test_an_extent_whose_symbol_is_met_elsewhere_stays():
    strided = kernels.convolution(1, 4, H, 8, 3, stride=2, padding=1)  # it reads h rows and writes about h/2
    assert generalise(strided).kernel is strided
    batch = Symbol("batch")
    kernel = kernels.convolution(half(batch), 4, H, 8, 3, stride=2, padding=1)
    assert list(generalise(kernel).sizes.values()) == [half(batch)]


def test_bounds_are_kept_and_names_are_new():
    size0 = Symbol("size0", 0, 40)
    kernel = kernels.matmul(symbolic.minimum(H, 512), size0, size0 + 1)
    (size, row), (other, column) = generalise(kernel).sizes.items()
    assert (symbolic.bounds(size), row) == ((1, 512), symbolic.minimum(H, 512))
    assert (symbolic.bounds(other), column) == ((0, 40), size0)
    assert not any(made.name.startswith("size0") for made in (size, other))


@pytest.mark.parametrize("rows", [6, H, 2 * H + 1])
def test_a_kernel_over_numbers_and_names_is_left_alone(rows: Dim):
    kernel = kernels.matmul(rows, 16, 8)
    assert generalise(kernel).kernel is kernel


def called(rows: Dim) -> tuple[Function, Kernel]:
    """An entry that calls a product of so many rows through its sizes."""
    kernel = kernels.matmul(rows, 300, 300)
    repeats = Repeats(lambda kernel, options: schedule(kernel, harness.TARGET, options))
    repeats(kernels.matmul(H, 300, 300), ScheduleOptions())  # so that the other one is a repetition
    scheduled = repeats(kernel, ScheduleOptions())
    offsets = [4096 * 1024 * n for n in range(len(scheduled.scratch))]
    body = [Alloc(buffer, offset) for buffer, offset in zip(scheduled.scratch, offsets, strict=True)]
    arguments = (*kernel.inputs, *kernel.outputs, *scheduled.scratch)
    call = Call(scheduled.function, arguments, tuple(scheduled.sizes.items()))
    return Function("entry", (*kernel.inputs, *kernel.outputs), (*body, call)), kernel


def test_a_call_passes_sizes_in_every_level():
    entry, kernel = called(half(H))
    verify_function(entry)
    text = print_function(entry)
    assert "with size0 = (h + 1)//2" in text
    parsed = parse_function(text)
    assert print_function(parsed) == text
    dims = {H: 9}
    inputs = harness.inputs_of(kernel, dims)
    for function in (entry, parsed):
        outputs = harness.unset(kernel.outputs, dims)
        run_function(function, [*inputs, *outputs], {"h": 9})
        harness.assert_close(outputs, run_kernel(kernel, inputs, dims), kernel)


def test_the_verifier_refuses_sizes_that_do_not_fit():
    entry, _ = called(half(H))
    *allocated, call = entry.body
    assert isinstance(call, Call)
    (size, _), *_ = call.sizes
    for wrong, message in ((half(H) + 1, "is passed for"), (0 * H - 1, "bounds do not allow")):
        changed = Function("entry", entry.parameters, (*allocated, Call(call.function, call.arguments, ((size, wrong),))))
        with pytest.raises(VerifyError, match=message):
            verify_function(changed)


def test_layers_of_several_resolutions_are_compiled_once():
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((8, 8)).astype(np.float32)

    def model(whole, *inputs):  # the first says what n is
        return tuple(x @ weight for x in inputs)

    n = ingot.dim("n")
    types = [ingot.f32[n, 2], *(ingot.f32[half(n, times), 8] for times in (1, 2, 3))]
    compiled = pipeline.compile_graph(ingot.trace(model, types).graph, Options(cache=False))
    products = _products(compiled)
    assert len(products) == 3
    assert len(set(map(id, products))) == 1
    executable = ingot.compile(model, *types, cache=False)
    for rows in (1, 5, 16, 33):
        inputs = [generator.standard_normal((-(-rows // step), 8)).astype(np.float32) for step in (2, 4, 8)]
        whole = np.zeros((rows, 2), np.float32)
        for x, found in zip(inputs, executable(whole, *inputs), strict=True):
            np.testing.assert_allclose(found, x @ weight, 1e-5, 1e-5)


def _products(compiled) -> list[object]:
    """The bodies of the functions that multiply."""
    assert compiled.assembly is not None
    calls = [s for s in compiled.assembly.entry.body if isinstance(s, Call)]
    return [call.function.body for call in calls if "contract" in call.function.name]
