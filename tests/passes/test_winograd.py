"""Which convolutions are interpolated, and that they still compute the convolution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ingot
from ingot.compiler.ir.graph import Builder, Graph
from ingot.compiler.ir.interpret import run_graph
from ingot.compiler.ir.loops import Alloc, For, walk
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import TensorType, f32, f64, type_of
from ingot.compiler.ops.base import Node
from ingot.compiler.ops.control import Scan
from ingot.compiler.ops.convolution import Convolution, ConvolutionTranspose, ConvolutionWeightGradient, convolve
from ingot.compiler.ops.structure import Get, inverse
from ingot.compiler.ops.winograd import (
    ERROR_BOUND,
    POINTS,
    WinogradConvolution,
    WinogradTaps,
    WinogradWeight,
    WinogradWeightGradient,
    matrices,
)
from ingot.compiler.ops.winograd_loops import STACK_BYTES, sizes_of
from ingot.compiler.ops.winograd_transforms import weight_axes
from ingot.compiler.options import Options
from ingot.compiler.passes.winograd import Winograd, stored_weight, tile_vectors
from ingot.compiler.pipeline import compile_graph, run_passes
from ingot.compiler.target import Target
from ingot.runtime.executable import Executable

PLAIN = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "layout": "channels_last"}


def graph_of(x: TensorType, w: TensorType, role: str = "constant", **fields: object) -> Graph:
    builder = Builder()
    operands = builder.input("x", x), builder.input("w", w, role)  # type: ignore[arg-type]
    y = builder.emit(Convolution(**{**PLAIN, **fields}), *operands)  # type: ignore[arg-type]
    weights = np.random.default_rng(1).standard_normal(w.static_shape).astype(w.dtype.numpy)
    return Graph("g", builder.inputs, (y,), constants={"w": weights} if role == "constant" else {})


def tiles_of(graph: Graph) -> list[int]:
    return [v.op.tile for v in graph.body if isinstance(v.op, WinogradConvolution)]


def names(graph: Graph) -> list[str]:
    return [v.op.name for v in graph.body]  # type: ignore[attr-defined]


LARGE = f32[1, 28, 28, 64], f32[3, 3, 64, 64]


def test_a_large_layer_is_interpolated():
    graph = graph_of(*LARGE)
    assert names(Winograd()(graph)) == ["winograd_weight", "winograd_convolution"]
    assert tiles_of(Winograd()(graph)) == [4]


def test_few_tiles_with_a_large_weight_read_the_smaller_transform():
    assert tiles_of(Winograd()(graph_of(f32[1, 7, 7, 512], f32[3, 3, 512, 512]))) == [2]


@pytest.mark.parametrize(
    ("x", "w", "fields"),
    [
        (f32[1, 28, 28, 64], f32[3, 3, 64, 64], {"strides": (3, 3)}),
        (f32[1, 28, 28, 64], f32[3, 3, 64, 64], {"strides": (2, 1)}),
        (f32[1, 28, 28, 64], f32[3, 3, 64, 64], {"strides": (2, 2), "role": "argument"}),
        (f32[1, 28, 28, 64], f32[3, 3, 64, 64], {"dilation": (2, 2)}),
        (f32[1, 28, 28, 64], f32[3, 3, 32, 64], {"groups": 2}),
        (f32[1, 28, 28, 64], f32[5, 5, 64, 64], {}),
        (f32[1, 28, 28, 64], f32[1, 1, 64, 64], {"padding": ((0, 0), (0, 0))}),
        (f64[1, 28, 28, 64], f64[3, 3, 64, 64], {}),
        (f32[1, 28, 28, 1], f32[3, 3, 1, 8], {}),
        (f32[1, 64, 28, 28], f32[64, 64, 3, 3], {"layout": "channels_first"}),
    ],
    ids=["stride", "strides", "changing stride", "dilation", "groups", "5x5", "1x1", "f64", "one channel", "channels first"],
)  # fmt: skip
def test_others_stay_as_they_are(x: TensorType, w: TensorType, fields: dict[str, object]):
    graph = graph_of(x, w, **fields)
    assert names(Winograd()(graph)) == ["convolution"]


TWO = {"strides": (2, 2)}


def test_a_stride_of_two_is_interpolated_where_a_weight_is_constant():
    """The larger tile, unless its weight, with 81 products for 16 results, takes longer to read."""
    for size, channels, tile in ((56, 128, 4), (28, 256, 2), (112, 32, 4)):
        graph = Winograd()(graph_of(f32[1, size, size, channels], f32[3, 3, channels, channels], **TWO))
        assert names(graph) == ["winograd_weight", "winograd_convolution"]
        assert [(v.op.tile, v.op.stride) for v in graph.body if isinstance(v.op, WinogradConvolution)] == [(tile, 2)]
    assert names(Winograd()(graph_of(f32[1, 224, 224, 3], f32[3, 3, 3, 32], **TWO))) == ["convolution"]


@pytest.mark.parametrize("tile", [2, 4])
def test_matrices_of_a_stride_of_two_compute_it(tile: int):
    made = matrices(tile, 2)
    rng = np.random.default_rng(4)
    data, taps = rng.standard_normal(2 * tile + 1), rng.standard_normal(3)
    expected = [data[2 * n : 2 * n + 3] @ taps for n in range(tile)]
    np.testing.assert_allclose(made.result @ ((made.weight @ taps) * (made.data @ data)), expected, atol=1e-12)


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("padding", [((1, 1), (1, 1)), ((0, 1), (0, 1)), ((2, 0), (-1, 3))])
@pytest.mark.parametrize(("size", "channels"), [((30, 33), 24), ((41, 17), 256), ((57, 62), 64)])
def test_a_stride_of_two_is_within_the_bound(target: str, padding: object, size: tuple[int, int], channels: int):
    fields = {**TWO, "padding": padding}
    graph = graph_of(f32["n", *size, channels], f32[3, 3, channels, 40], **fields)
    assert tiles_of(Winograd()(graph)) in ([2], [4])
    program = compile_graph(graph, Options(cache=False, target=target)).program
    run, alone = Executable(program, threads=2), Executable(program, threads=1)
    rng = np.random.default_rng(8)
    weight = graph.constants["w"].astype(np.float64)
    for batch in (1, 3):
        image = (rng.standard_normal((batch, *size, channels)) + 1).astype(np.float32)
        exact = Convolution(**{**PLAIN, **fields}).evaluate(image.astype(np.float64), weight)  # type: ignore[arg-type]
        found = np.asarray(run(image))
        assert found.shape == exact.shape
        assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max()
        np.testing.assert_array_equal(np.asarray(alone(image[-1:])), found[-1:])


def test_a_stride_of_two_is_computed_as_defined_where_the_size_of_the_image_is_free():
    """It may be small, and saves less than a stride of 1."""
    graph = graph_of(f32["n", "height", "width", 64], f32[3, 3, 64, 64], **TWO)
    assert names(Winograd()(graph)) == ["convolution"]


def test_where_the_size_of_the_image_is_free_sizes_of_all_kinds_decide():
    assert tiles_of(Winograd()(graph_of(f32[1, "height", "width", 64], f32[3, 3, 64, 64]))) == [4]
    assert tiles_of(Winograd()(graph_of(f32["n", "height", 28, 64], f32[3, 3, 64, 64]))) == [4]
    assert tiles_of(Winograd()(graph_of(f32[1, "height", "width", 2], f32[3, 3, 2, 4]))) == []


@pytest.mark.parametrize("factor", [1, 32])
def test_a_layer_behind_strides_is_small_whatever_the_image(factor: int):
    """A layer of a thirty-second of a free image has few tiles, which hide little of reading the transform of its weight."""
    builder = Builder()
    image = builder.input("x", TensorType(f32, (1, factor * Symbol("n"), factor * Symbol("m"), 3)))
    weights = {"v": np.zeros((1, 1, 3, 512), np.float32), "w": np.zeros((3, 3, 512, 512), np.float32)}
    v, w = (builder.input(name, type_of(weight), "constant") for name, weight in weights.items())
    small = builder.emit(Convolution(**{**PLAIN, "strides": (32, 32), "padding": ((0, 0), (0, 0))}), image, v)  # type: ignore[arg-type]
    large = builder.emit(Convolution(**PLAIN), small, w)  # type: ignore[arg-type]
    assert tiles_of(Winograd()(Graph("g", builder.inputs, (large,), constants=weights))) == [2]


def test_making_the_transform_at_run_time_must_pay():
    """Two results of an image are too few to transform a weight for in every step."""
    assert tiles_of(Winograd()(graph_of(f32[1, 1, 2, 512], f32[3, 3, 512, 512], "argument"))) == []
    assert tiles_of(Winograd()(graph_of(f32[1, 32, 32, 64], f32[3, 3, 64, 64], "argument"))) == [4]


@pytest.mark.parametrize("role", ["constant", "argument"])
def test_the_choice_does_not_depend_on_the_batch(role: str):
    chosen = [tiles_of(Winograd()(graph_of(f32[n, 7, 7, 512], f32[3, 3, 512, 512], role))) for n in (1, 16, 64, "n")]
    assert chosen == [chosen[0]] * 4


def test_the_option_turns_it_off():
    graph = graph_of(*LARGE)
    assert tiles_of(run_passes(graph, Options())) == [4]
    assert tiles_of(run_passes(graph, Options(winograd=False))) == []


def test_the_gradient_of_the_data_is_interpolated_too():
    builder = Builder()
    g, w = builder.input("g", f32[16, 16, 16, 64]), builder.input("w", f32[3, 3, 64, 64])
    y = builder.emit(ConvolutionTranspose(**PLAIN, shape=(16, 16)), g, w)  # type: ignore[arg-type]
    assert tiles_of(run_passes(Graph("g", builder.inputs, (y,)), Options())) == [4]


def test_blocks_are_as_wide_as_register_tiles():
    (weight,) = [
        v.op for v in Winograd(Target.named("x86-64-v4"))(graph_of(*LARGE)).body if v.op.name == "winograd_weight"
    ]
    assert weight.columns == 32
    narrow = Winograd(Target.named("x86-64-v4"))(graph_of(f32[1, 64, 64, 16], f32[3, 3, 16, 16]))
    assert [v.op.columns for v in narrow.body if isinstance(v.op, WinogradWeight)] == [16]


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        (f32[1, 28, 28, 64], f32[3, 3, 64, 64], 1),
        (f32[2, 13, 15, 24], f32[3, 3, 24, 40], 1),
        (f32[1, 7, 7, 512], f32[3, 3, 512, 64], 1),
        (f32[3, 30, 30, 16], f32[3, 3, 16, 20], 1),
        (f32[1, 28, 28, 64], f32[3, 3, 64, 64], 2),
        (f32[2, 41, 39, 24], f32[3, 3, 24, 40], 2),
        (f32[1, 14, 14, 512], f32[3, 3, 512, 64], 2),
    ],
)
@pytest.mark.parametrize("kind", ["normal", "positive", "cancelling"])
def test_the_error_is_within_its_bound(x: TensorType, w: TensorType, kind: str, stride: int):
    fields = {**PLAIN, "strides": (stride, stride)}
    graph = graph_of(x, w, **fields)
    assert tiles_of(Winograd()(graph))
    rng = np.random.default_rng(3)
    image = rng.standard_normal(x.static_shape)
    if kind == "positive":
        image = np.maximum(image, 0)
    if kind == "cancelling":
        image += 10
    image = image.astype(np.float32)
    exact = Convolution(**fields).evaluate(image.astype(np.float64), graph.constants["w"].astype(np.float64))  # type: ignore[arg-type]
    found = np.asarray(Executable(compile_graph(graph, Options(cache=False)).program)(image))
    assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max()
    meaning = run_graph(Winograd()(graph), {"x": image, "w": graph.constants["w"]})[0]
    assert np.abs(meaning - exact).max() <= 1e-6 * np.abs(exact).max()


def epilogue_graph(batch: object, outputs: int) -> Graph:
    """relu(convolution + bias + residual), and the sum before it"""
    builder = Builder()
    x = Node(builder, builder.input("x", f32[batch, 9, 10, 16]))
    w = Node(builder, builder.input("w", f32[3, 3, 16, outputs], "constant"))
    bias = Node(builder, builder.input("bias", f32[outputs], "constant"))
    residual = Node(builder, builder.input("residual", f32[batch, 9, 10, outputs]))
    total = x.apply(Convolution(**PLAIN), w) + bias + residual  # type: ignore[arg-type]
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((3, 3, 16, outputs)).astype(np.float32)
    constants = {"w": weights, "bias": rng.standard_normal(outputs).astype(np.float32)}
    outputs_ = (total.binary("maximum", 0.0).value, total.value)
    return Graph("g", builder.inputs, outputs_, constants=constants)


@pytest.mark.parametrize("outputs", [16, 35])
def test_what_follows_is_done_in_the_same_loops(outputs: int):
    graph = epilogue_graph("batch", outputs)
    compiled = compile_graph(graph, Options(cache=False))
    assert compiled.assembly is not None
    assert [k.ops[0] for k in compiled.assembly.kernels] == ["winograd_convolution"]
    rng = np.random.default_rng(6)
    run = Executable(compiled.program, threads=2)
    for batch in (1, 3, 8):
        x = rng.standard_normal((batch, 9, 10, 16)).astype(np.float32)
        residual = rng.standard_normal((batch, 9, 10, outputs)).astype(np.float32)
        expected = run_graph(graph, {**graph.constants, "x": x, "residual": residual})
        for found, wanted in zip(run(x, residual), expected, strict=True):
            assert np.abs(found - wanted).max() <= ERROR_BOUND * np.abs(wanted).max()


def test_bits_do_not_depend_on_batch_or_threads():
    graph = graph_of(f32["batch", 21, 18, 32], f32[3, 3, 32, 48])
    program = compile_graph(graph, Options(cache=False)).program
    x = np.random.default_rng(7).standard_normal((11, 21, 18, 32)).astype(np.float32)
    whole = np.asarray(Executable(program, threads=1)(x))
    assert np.array_equal(np.asarray(Executable(program, threads=2)(x)), whole)
    for n in (0, 4, 10):
        assert np.array_equal(np.asarray(Executable(program, threads=1)(x[n : n + 1])), whole[n : n + 1])
    alone = compile_graph(graph_of(f32[1, 21, 18, 32], f32[3, 3, 32, 48]), Options(cache=False)).program
    assert np.array_equal(np.asarray(Executable(alone)(x[:1])), whole[:1])


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_a_free_size_is_computed_for_every_size(target: str):
    """Also where an image is smaller than a tile, has a last tile that is partly empty, or fills several blocks."""
    graph = graph_of(f32["n", "height", "width", 24], f32[3, 3, 24, 40])
    assert tiles_of(Winograd()(graph)) == [4]
    run = Executable(compile_graph(graph, Options(cache=False, target=target)).program, threads=2)
    rng = np.random.default_rng(8)
    weight = graph.constants["w"].astype(np.float64)
    for shape in ((1, 1, 1), (2, 3, 5), (1, 4, 4), (3, 9, 2), (1, 30, 33), (2, 64, 17), (1, 70, 90)):
        image = rng.standard_normal((*shape, 24)).astype(np.float32)
        exact = Convolution(**PLAIN).evaluate(image.astype(np.float64), weight)  # type: ignore[arg-type]
        found = np.asarray(run(image))
        assert found.shape == exact.shape
        assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max(), shape


@pytest.mark.parametrize(("channels", "outputs"), [(600, 16), (16, 600)])
def test_a_block_of_many_channels_has_fewer_tiles(channels: int, outputs: int):
    """What a block keeps must fit on the stack of a thread."""
    graph = graph_of(f32[1, "height", "width", channels], f32[3, 3, channels, outputs])
    program = compile_graph(graph, Options(cache=False)).program
    image = np.random.default_rng(9).standard_normal((1, 13, 22, channels)).astype(np.float32)
    weight = graph.constants["w"].astype(np.float64)
    exact = Convolution(**PLAIN).evaluate(image.astype(np.float64), weight)  # type: ignore[arg-type]
    assert np.abs(np.asarray(Executable(program)(image)) - exact).max() <= ERROR_BOUND * np.abs(exact).max()


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("points", "most"), [(36, 7000), (81, 3100)])
def test_blocks_of_tiles_fit_on_the_stack(name: str, points: int, most: int):
    """However many channels, tiles or columns."""
    target = Target.named(name)
    for channels in (16, 128, 512, 2048, most):
        for tiles in (3, 16, 49, 64, 200, ingot.dim("n")):
            for groups, group, vectors in ((1, 1, 1), (3, 1, 1), (3, 4, 2)):
                columns = vectors * target.lanes(4)
                sizes = sizes_of(4, points, tiles, channels, (groups, 6, 6, group, channels, columns), target, 4)
                assert sizes.shared or sizes.tiles % sizes.rows == 0
                assert sizes.shared or points * 4 * sizes.tiles * channels <= STACK_BYTES
                assert points * 4 * sizes.tiles * group * columns <= STACK_BYTES


@pytest.mark.parametrize(("channels", "outputs", "over"), [(32, 32, True), (48, 16, True), (16, 32, False), (32, 160, False)])
@pytest.mark.parametrize("size", [37, "n"])
def test_products_take_the_place_of_the_data_where_a_register_tile_has_read_all_of_it(channels, outputs, over, size):
    """That is, where it is as wide as all output channels, and a row of products no longer than one of data."""
    graph = graph_of(f32[1, size, 37, channels], f32[3, 3, channels, outputs])
    made = Winograd(WIDE)(graph)
    (convolution,) = (v for v in made.body if isinstance(v.op, WinogradConvolution))
    x, u = (Buffer(name, f32, value.shape) for name, value in zip("xu", convolution.args, strict=True))
    own = convolution.op.loops_for(WIDE, (Buffer("y", f32, convolution.shape),), (x, u))
    assert own.decisions["over"] == over
    stack = {s.buffer.name for s in walk(own.body) if isinstance(s, Alloc)}
    assert ("m" in stack) != over
    if tiles_of(Winograd(Target.host())(graph)):
        image = np.random.default_rng(5).standard_normal((1, 37, 37, channels)).astype(np.float32)
        exact = Convolution(**PLAIN).evaluate(image.astype(np.float64), graph.constants["w"].astype(np.float64))  # type: ignore[arg-type]
        found = np.asarray(Executable(compile_graph(graph, Options(cache=False)).program)(image))
        assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max()


@pytest.mark.parametrize(("size", "channels", "outputs"), [(36, 512, 16), (32, 16, 128)])
def test_many_channels_and_many_tiles_compile(size: int, channels: int, outputs: int):
    graph = graph_of(f32[1, size, size, channels], f32[3, 3, channels, outputs])
    assert tiles_of(Winograd(Target.host())(graph))
    image = np.random.default_rng(3).standard_normal((1, size, size, channels)).astype(np.float32)
    exact = Convolution(**PLAIN).evaluate(image.astype(np.float64), graph.constants["w"].astype(np.float64))  # type: ignore[arg-type]
    found = np.asarray(Executable(compile_graph(graph, Options(cache=False)).program)(image))
    assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max()


WIDE = Target.named("x86-64-v4")


def test_few_tiles_read_the_weight_itself_where_registers_hold_their_sums():
    graph = graph_of(f32[1, 7, 7, 512], f32[3, 3, 512, 512])
    made = Winograd(WIDE)(graph)
    assert names(made) == ["winograd_taps", "winograd_convolution"]
    assert tiles_of(made) == [4]
    assert names(Winograd(WIDE)(graph_of(f32[1, 14, 14, 256], f32[3, 3, 256, 256])))[0] == "winograd_weight"
    assert names(Winograd(WIDE)(graph_of(f32[1, 7, 7, 500], f32[3, 3, 500, 512])))[0] == "winograd_weight"


# A machine that multiplies two vectors while it loads one, and waits long for memory.
TWO_UNITS = replace(WIDE, multiply_adds=2, memory_rate=1 / 28)


def test_tiles_are_as_wide_as_loads_ask_for():
    """A register tile of two vectors has 14 rows: 28 products, 16 loads. Wider ones multiply more for what they load."""
    widths = [[tile_vectors(outputs, target) for outputs in (1, 2, 3, 4, 6, 8)] for target in (WIDE, TWO_UNITS)]
    assert widths == [[1, 2, 3, 2, 2, 2], [1, 2, 3, 4, 3, 4]]


def test_a_transform_that_memory_gives_slowly_is_the_smaller_one():
    graph = graph_of(f32[1, 14, 14, 256], f32[3, 3, 256, 256])
    assert [tiles_of(Winograd(target)(graph)) for target in (WIDE, TWO_UNITS)] == [[4], [2]]
    strided = graph_of(f32[1, 14, 14, 256], f32[3, 3, 256, 512], **TWO)
    assert [tiles_of(Winograd(target)(strided)) for target in (WIDE, TWO_UNITS)] == [[2], []]
    changing = graph_of(f32[1, 14, 14, 256], f32[3, 3, 256, 256], role="argument")
    assert tiles_of(Winograd(WIDE)(changing)) == tiles_of(Winograd(TWO_UNITS)(changing))


def test_less_of_what_is_read_hides_where_few_lines_are_on_their_way():
    few = replace(TWO_UNITS, has_few_line_buffers=True)
    layer = graph_of(f32[1, 56, 56, 128], f32[3, 3, 128, 128], **TWO)
    assert [tiles_of(Winograd(target)(layer)) for target in (TWO_UNITS, few)] == [[4], [2]]
    plain = graph_of(f32[1, 56, 56, 128], f32[3, 3, 128, 128])
    assert [tiles_of(Winograd(target)(plain)) for target in (TWO_UNITS, few)] == [[4], [4]]


def few_tiles(batch: object, size: tuple[int, int], lanes: int, outputs: int) -> Graph:
    """A convolution whose weight is transformed in registers."""
    builder = Builder()
    x, w = builder.input("x", f32[batch, *size, 32]), builder.input("w", f32[3, 3, 32, outputs], "constant")
    taps = builder.emit(WinogradTaps(lanes), w)
    y = builder.emit(WinogradConvolution(4, PLAIN["padding"], outputs, "blocked", 2 * lanes, 1), x, taps)  # type: ignore[arg-type]
    weights = np.random.default_rng(2).standard_normal((3, 3, 32, outputs)).astype(np.float32)
    return Graph("g", builder.inputs, (y,), constants={"w": weights})


@pytest.mark.parametrize("size", [(7, 7), (8, 5), (4, 7), (3, 2)])
def test_few_tiles_are_within_the_bound_and_their_bits_depend_on_nothing_else(size: tuple[int, int]):
    """Strips of several images and of one, of all tiles and of some; edges where the last point does not count."""
    lanes, outputs = Target.host().lanes(4), 40
    graph = few_tiles("batch", size, lanes, outputs)
    program = compile_graph(graph, Options(cache=False)).program
    x = np.random.default_rng(8).standard_normal((6, *size, 32)).astype(np.float32)
    whole = np.asarray(Executable(program, threads=1)(x))
    exact = Convolution(**PLAIN).evaluate(x.astype(np.float64), graph.constants["w"].astype(np.float64))  # type: ignore[arg-type]
    assert np.abs(whole - exact).max() <= ERROR_BOUND * np.abs(exact).max()
    assert np.array_equal(np.asarray(Executable(program, threads=2)(x)), whole)
    for n in (0, 5):
        assert np.array_equal(np.asarray(Executable(program, threads=1)(x[n : n + 1])), whole[n : n + 1])
    builder = Builder()
    op = WinogradConvolution(4, PLAIN["padding"], outputs, "channels_last", 2 * lanes, 1)  # type: ignore[arg-type]
    stored = builder.emit(op, builder.input("x", type_of(x)), builder.input("w", f32[3, 3, 32, outputs]))
    run = Executable(compile_graph(Graph("g", builder.inputs, (stored,)), Options(cache=False)).program)
    assert np.array_equal(np.asarray(run(x, graph.constants["w"])), whole)
    for batch in (1, 3):
        alone = compile_graph(few_tiles(batch, size, lanes, outputs), Options(cache=False)).program
        assert np.array_equal(np.asarray(Executable(alone)(x[:batch])), whole[:batch])


# --- the phases of an image ------------------------------------------------------------------------

SEVEN = {"strides": (2, 2), "padding": ((3, 3), (3, 3))}
PHASED = ["stride_phases", "pad", "reshape", "transpose", "reshape", "winograd_weight", "winograd_convolution"]


def test_large_windows_with_a_stride_of_two_are_interpolated_in_phases():
    graph = Winograd()(graph_of(f32[1, 224, 224, 3], f32[7, 7, 3, 64], **SEVEN))
    assert names(graph) == PHASED
    phases, *_, convolution = graph.body
    assert phases.shape == (1, 115, 115, 12)
    assert (convolution.op.tile, convolution.op.taps) == (4, 4)  # type: ignore[attr-defined]
    five = Winograd()(graph_of(f32[1, 64, 64, 16], f32[5, 5, 16, 32], **{**SEVEN, "padding": ((2, 2), (2, 2))}))
    assert names(five) == PHASED
    assert five.outputs[0].op.taps == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("x", "w", "fields"),
    [
        (f32[1, 64, 64, 3], f32[7, 7, 3, 64], {"role": "argument"}),
        (f32[1, 64, 64, 3], f32[7, 7, 3, 64], {"padding": ((-1, 3), (3, 3))}),
        (f32[1, 64, 64, 3], f32[7, 5, 3, 64], {}),
        (f32[1, 64, 64, 3], f32[7, 7, 3, 64], {"strides": (3, 3)}),
        (f32[1, 64, 64, 3], f32[9, 9, 3, 64], {}),
        (f32[1, 64, 64, 3], f32[7, 7, 1, 63], {"groups": 3}),
        (f32[1, 64, 64, 3], f32[7, 7, 3, 64], {"dilation": (2, 2)}),
        (f64[1, 64, 64, 3], f64[7, 7, 3, 64], {}),
        (f32[1, 64, 64, 1], f32[7, 7, 1, 2], {}),
        (f32[1, 1, 1, 3], f32[7, 7, 3, 64], {}),
    ],
    ids=["changing", "cropped", "not square", "stride", "taps", "groups", "dilation", "f64", "few results", "one pixel"],
)  # fmt: skip
def test_others_have_no_phases(x: TensorType, w: TensorType, fields: dict[str, object]):
    assert names(Winograd()(graph_of(x, w, **{**SEVEN, **fields}))) == ["convolution"]


def test_an_image_of_planes_is_read_as_it_is():
    builder = Builder()
    x = Node(builder, builder.input("x", f32[1, 3, 64, 64]))
    w = Node(builder, builder.input("w", f32[7, 7, 3, 64], "constant"))
    y = x.transpose((0, 2, 3, 1)).apply(Convolution(**{**PLAIN, **SEVEN}), w)  # type: ignore[arg-type]
    made = Winograd()(Graph("g", builder.inputs, (y.value,), constants={"w": np.zeros((7, 7, 3, 64), np.float32)}))
    assert names(made) == PHASED
    assert made.body[0].op.layout == "channels_first"  # type: ignore[attr-defined]


@pytest.mark.parametrize("taps", [3, 4])
def test_matrices_of_each_number_of_taps_compute_it(taps: int):
    for tile in (tile for tile, count in POINTS if count == taps):
        made = matrices(tile, taps=taps)
        rng = np.random.default_rng(4)
        data, weight = rng.standard_normal(tile + taps - 1), rng.standard_normal(taps)
        expected = [data[n : n + taps] @ weight for n in range(tile)]
        np.testing.assert_allclose(made.result @ ((made.weight @ weight) * (made.data @ data)), expected, atol=1e-12)


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize(("taps", "padding"), [(7, ((3, 3), (3, 3))), (8, ((0, 1), (3, 2))), (5, ((2, 2), (2, 1))), (6, ((1, 0), (0, 2)))])
@pytest.mark.parametrize("size", [(64, 61), ("height", "width")], ids=["known", "free"])
@pytest.mark.parametrize("kind", ["normal", "cancelling"])
def test_phases_are_within_the_bound(target: str, taps: int, padding: object, size: tuple, kind: str):
    fields = {**TWO, "padding": padding}
    graph = graph_of(f32["n", *size, 6], f32[taps, taps, 6, 40], **fields)
    assert [name for name in names(Winograd()(graph)) if name != "pad"] == [name for name in PHASED if name != "pad"]
    program = compile_graph(graph, Options(cache=False, target=target)).program
    run, alone = Executable(program, threads=2), Executable(program, threads=1)
    rng = np.random.default_rng(8)
    weight = graph.constants["w"].astype(np.float64)
    for batch, *extents in ((1, 64, 61), (3, 64, 61), (2, 9, 130)):
        if size[0] != "height" and extents != [64, 61]:
            continue
        image = rng.standard_normal((batch, *extents, 6))
        image = (image + 10 if kind == "cancelling" else image).astype(np.float32)
        exact = Convolution(**{**PLAIN, **fields}).evaluate(image.astype(np.float64), weight)  # type: ignore[arg-type]
        found = np.asarray(run(image))
        assert found.shape == exact.shape
        assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max()
        np.testing.assert_array_equal(np.asarray(alone(image[-1:])), found[-1:])


# --- the gradient for the weights -----------------------------------------------------------------


def gradient_graph(x: TensorType, outputs: int, padding: object = ((1, 1), (1, 1))) -> Graph:
    builder = Builder()
    op = ConvolutionWeightGradient(**{**PLAIN, "padding": padding}, taps=(3, 3))  # type: ignore[arg-type]
    batch, height, width, _ = x.shape
    (low, high), (left, right) = padding  # type: ignore[misc]
    g = f32[batch, height + low + high - 2, width + left + right - 2, outputs]
    y = builder.emit(op, builder.input("x", x), builder.input("g", g))
    return Graph("g", builder.inputs, (y,))


def test_the_gradient_of_a_weight_is_interpolated():
    made = Winograd()(gradient_graph(f32["n", 16, 16, 64], 64))
    assert names(made) == ["winograd_data", "winograd_cotangent", "contract", "winograd_weight_gradient"]
    assert names(Winograd()(gradient_graph(f32["n", 16, 16, 1], 8))) == ["convolution_weight_gradient"]


def test_products_that_outnumber_what_they_are_made_of_are_not_stored():
    made = Winograd()(gradient_graph(f32["n", 4, 4, 256], 256))
    assert names(made) == ["winograd_data", "winograd_cotangent", "winograd_product_gradient"]
    assert names(Winograd()(gradient_graph(f32["n", 4, 4, 256], 250)))[-1] == "winograd_weight_gradient"


@pytest.mark.parametrize(
    ("x", "outputs", "padding"),
    [
        (f32[2, 16, 16, 32], 32, ((1, 1), (1, 1))),
        (f32["n", 11, 14, 24], 40, ((1, 1), (1, 1))),
        (f32[3, 9, 10, 40], 17, ((0, 1), (2, 0))),
        (f32["n", "height", "width", 40], 17, ((1, 1), (1, 1))),
        (f32["n", 4, 4, 72], 128, ((1, 1), (1, 1))),
    ],
)
def test_the_gradient_of_a_weight_is_within_the_bound(x: TensorType, outputs: int, padding: object):
    graph = gradient_graph(x, outputs, padding)
    op = graph.outputs[0].op
    assert isinstance(op, ConvolutionWeightGradient)
    assert "winograd_data" in names(Winograd()(graph))
    rng = np.random.default_rng(4)
    shapes = [tuple(3 if not isinstance(d, int) else d for d in v.shape) for v in graph.inputs]
    image, cotangent = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    exact = op.evaluate(image.astype(np.float64), cotangent.astype(np.float64))
    program = compile_graph(graph, Options(cache=False)).program
    found = np.asarray(Executable(program, threads=1)(image, cotangent))
    assert np.abs(found - exact).max() <= ERROR_BOUND * np.abs(exact).max()
    assert np.array_equal(np.asarray(Executable(program, threads=2)(image, cotangent)), found)


# --- a whole network --------------------------------------------------------------------------------


def residual_network(kind, stages: tuple[tuple[int, int], ...]) -> Graph:
    """Stages of two residual blocks each, like a ResNet-18: (size, channels), a convolution with stride 2 between
    stages; weights that keep the spread of the activations."""
    builder = Builder()
    rng = np.random.default_rng(11)
    constants: dict[str, np.ndarray] = {}

    def convolved(node, outputs: int, stride: int = 1):
        channels = node.shape[-1]
        name = f"w{len(constants)}"
        spread = np.sqrt(2 / (9 * channels))
        constants[name] = (rng.standard_normal((3, 3, channels, outputs)) * spread).astype(kind.numpy)
        weight = Node(builder, builder.input(name, kind[3, 3, channels, outputs], "constant"))
        return node.apply(Convolution(**{**PLAIN, "strides": (stride, stride)}), weight)  # type: ignore[arg-type]

    size, channels = stages[0]
    node = Node(builder, builder.input("x", kind[1, size, size, channels]))
    for number, (_, outputs) in enumerate(stages):
        if number:
            node = convolved(node, outputs, 2).binary("maximum", 0.0)
        for _ in range(2):
            inner = convolved(node, outputs).binary("maximum", 0.0)
            node = ((convolved(inner, outputs) + node) * np.sqrt(0.5)).binary("maximum", 0.0)
    return Graph("residual", builder.inputs, (node.value,), constants=constants)


def test_a_deep_network_stays_within_the_bound():
    """Sixteen interpolated convolutions one after another, against exact ones in double precision."""
    stages = ((32, 32), (16, 48), (8, 64), (4, 96))
    graph, exact = residual_network(f32, stages), residual_network(f64, stages)
    compiled = compile_graph(graph, Options(cache=False))
    assert compiled.assembly is not None
    assert sum(k.ops[0] == "winograd_convolution" for k in compiled.assembly.kernels) >= 12
    x = np.random.default_rng(12).standard_normal((1, 32, 32, 32)).astype(np.float32)
    weights = {name: w.astype(np.float64) for name, w in graph.constants.items()}
    (wanted,) = run_graph(exact, {**weights, "x": x.astype(np.float64)})
    found = np.asarray(Executable(compiled.program, threads=1)(x))
    assert np.abs(found - wanted).max() <= ERROR_BOUND * (wanted.max() - wanted.min())
    plain = compile_graph(graph, Options(cache=False, winograd=False))
    assert plain.assembly is not None
    assert not any(k.ops[0] == "winograd_convolution" for k in plain.assembly.kernels)


# --- weights that change ---------------------------------------------------------------------------


def trained_graph(batch: object, channels: int, outputs: int, size: object = 8) -> Graph:
    """A convolution as a model writes it, channels first, and its gradients."""

    def loss(x, w):
        y = convolve(x, w, padding=1)
        return (y * y).sum()

    types = ingot.f32[batch, channels, size, size], ingot.f32[outputs, channels, 3, 3]
    return ingot.trace(ingot.value_and_grad(loss, (0, 1)), types).graph


def test_a_weight_that_changes_is_read_and_written_as_it_stands():
    """No rearrangement of the weight, of that of the data's gradient, or of its gradient."""
    graph = run_passes(trained_graph(16, 64, 64), Options())
    convolutions = [v.op for v in graph.body if isinstance(v.op, WinogradConvolution)]
    assert [op.order for op in convolutions] == ["channels_first", "adjoint"]
    (gradient,) = [v for v in graph.body if isinstance(v.op, WinogradWeightGradient)]
    assert gradient in graph.outputs
    (w,) = [v for v in graph.inputs if v.shape == (64, 64, 3, 3)]
    readers = [v for v in graph.body if w in v.args]
    assert all(isinstance(v.op, WinogradConvolution) for v in readers)


def test_a_weight_that_changes_is_interpolated_for_every_size():
    graph = trained_graph("n", 32, 24, "size")
    exact = compile_graph(graph, Options(cache=False, winograd=False)).program
    made = compile_graph(graph, Options(cache=False))
    assert made.assembly is not None
    assert sum(k.ops[0] == "winograd_convolution" for k in made.assembly.kernels) == 2
    rng = np.random.default_rng(14)
    for batch, size in ((1, 2), (3, 7), (2, 19)):
        x = rng.standard_normal((batch, 32, size, size)).astype(np.float32)
        w = rng.standard_normal((24, 32, 3, 3)).astype(np.float32)
        for found, wanted in zip(Executable(made.program, threads=2)(x, w), Executable(exact)(x, w), strict=True):
            assert np.abs(np.asarray(found) - wanted).max() <= 2 * ERROR_BOUND * np.abs(np.asarray(wanted)).max()


def test_a_weight_in_the_usual_order_of_the_compiler_is_read_too():
    assert stored_weight(graph_of(*LARGE, role="argument").inputs[1])[1] == "channels_last"


def test_weights_of_a_loop_are_transformed_before_it():
    builder = Builder()
    x, w = builder.input("x", f32[1, 28, 28, 64]), builder.input("w", f32[3, 3, 64, 64])
    y = builder.emit(Convolution(**PLAIN), x, w)  # type: ignore[arg-type]
    body = Graph("body", builder.inputs, (y,))
    outer = Builder()
    inputs = outer.input("x", f32[1, 28, 28, 64]), outer.input("w", f32[3, 3, 64, 64])
    step = outer.emit(Scan(body, 1, 0, 4), *inputs)
    result = outer.emit(Get(0), step)
    graph = run_passes(Graph("g", outer.inputs, (result,)), Options())
    assert [name for name in names(graph) if name.startswith("winograd")] == ["winograd_weight"]


@pytest.mark.parametrize(("batch", "outputs"), [(2, 64), (2, 150), (40, 40)])
def test_transforming_on_the_way_gives_the_same_bits(batch: int, outputs: int):
    """In parts or at once, in any order of the weight, on one thread and on two, as a transform that is given."""
    channels, size = 24, 9
    rng = np.random.default_rng(13)
    x = rng.standard_normal((batch, size, size, channels)).astype(np.float32)
    w = rng.standard_normal((3, 3, channels, outputs)).astype(np.float32)
    padding = ((1, 1), (1, 1))

    def run(op: WinogradConvolution, weight: np.ndarray, threads: int) -> np.ndarray:
        builder = Builder()
        given = builder.input("x", type_of(x)), builder.input("w", type_of(weight))
        graph = Graph("g", builder.inputs, (builder.emit(op, *given),))
        return np.asarray(Executable(compile_graph(graph, Options(cache=False)).program, threads=threads)(x, weight))

    transform = WinogradWeight(4, 16, 4)
    builder = Builder()
    made = builder.emit(transform, builder.input("w", type_of(w)))
    u = np.asarray(Executable(compile_graph(Graph("g", builder.inputs, (made,)), Options(cache=False)).program)(w))
    expected = run(WinogradConvolution(4, padding, outputs), u, 1)
    for order in ("channels_last", "channels_first", "adjoint"):
        stored = np.ascontiguousarray(w.transpose(inverse(weight_axes(order))))
        if order == "adjoint":
            stored = np.ascontiguousarray(stored[:, :, ::-1, ::-1])
        for threads in (1, 2):
            found = run(WinogradConvolution(4, padding, outputs, order, 16, 4), stored, threads)
            assert np.array_equal(found, expected)


def test_a_large_weight_that_changes_is_transformed_a_block_at_a_time():
    """And by all threads: a block of it is work enough."""
    (op,) = [v.op for v in Winograd(WIDE)(graph_of(f32[16, 4, 4, 512], f32[3, 3, 512, 512], "argument")).body]
    assert isinstance(op, WinogradConvolution)
    assert op.blocks == 1
    (small,) = [v.op for v in Winograd(WIDE)(graph_of(f32[16, 32, 32, 64], f32[3, 3, 64, 128], "argument")).body]
    assert isinstance(small, WinogradConvolution)
    assert small.blocks > 1
    x, w = Buffer("x", f32, (16, 4, 4, 512)), Buffer("w", f32, (3, 3, 512, 512))
    made = op.loops_for(WIDE, [Buffer("y", f32, (16, 4, 4, 512))], [x, w])
    inner = [s for s in walk(made.body) if isinstance(s, For)]
    assert sum(loop.kind == "parallel" for loop in inner) == 4  # data, and of each part transform, products, results
