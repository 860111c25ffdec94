"""Convolution and its two gradients, each the derivative of one trilinear form:

    T(x, w, g) = sum g[n, o, y] * w[o, c, r] * x[n, c, y * stride + r * dilation - low]

    convolution                  dT/dg = y(x, w)
    convolution_transpose        dT/dx = x(g, w)     also the op that upsamples
    convolution_weight_gradient  dT/dw = w(x, g)

so the gradient of each is made of the other two, to any order. Layouts of data and weights are in `windows`.
With groups, output channel o reads the input channels of its own group only; depthwise is groups == channels.

Convolution and the weight gradient are index notation; padding is a lazy choice, and there is no choice where
an index cannot leave its axis. The transpose is made of convolutions with stride 1 (see `phases`), so that it
runs in the same kernels. Sums of f16 and bf16 are accumulated in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.scalar import Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import TensorType, bf16, dtype_of, f16, f32, f64, i32
from ingot.compiler.ops import phases, windows
from ingot.compiler.ops.base import Condition, DimsDiffer, Node, Op, OpTypeError, Sample, shape_text
from ingot.compiler.ops.windows import Axis, Layout, Padding


@dataclass(frozen=True)
class ConvolutionFamily(Op, abstract=True):
    """The fields that the three ops share, and what they say about the tensors of T."""

    strides: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int = 1
    layout: Layout = "channels_first"
    cheap = False
    rereads = True

    @property
    def slides(self) -> bool:
        return True  # channels last: along the channels; channels first: along rows of pixels

    def _axes(self, sizes: Sequence[Dim], taps: Sequence[Dim]) -> tuple[Axis, ...]:
        known = tuple(size for size in taps if isinstance(size, int))
        if len(known) != len(taps):
            raise OpTypeError(
                f"{self.name}: the taps of a weight are known now, not symbolic: {shape_text(taps)}"
            )
        return windows.axes_of(self.name, sizes, known, self.strides, self.padding, self.dilation)

    def _check(self, x: TensorType, w: TensorType, g: TensorType | None = None) -> tuple[Axis, ...]:
        """The spatial axes, after checking that x, w (and g) fit together."""
        for operand in (x, w, *(() if g is None else (g,))):
            windows.require_data(self.name, self.layout, operand)
            if operand.dtype != x.dtype:
                raise OpTypeError(
                    f"{self.name}: element types {x.dtype} and {operand.dtype} differ; cast one"
                )
            if operand.rank != x.rank:
                raise OpTypeError(f"{self.name}: {x!r} and {operand!r} have different numbers of dims")
        if x.dtype.kind == "bool":
            raise OpTypeError(f"{self.name} takes numbers, not bool; cast it")
        batch, channels, sizes = windows.unpack(self.layout, x.shape)
        outputs, per_group, taps = windows.unpack_weight(self.layout, w.shape)
        if symbolic.equal(channels, per_group * self.groups) is not True:
            message = (
                f"{self.name}: {channels} channels in {self.groups} groups do not fit a weight that has "
                f"{per_group} in each; the data is {shape_text(x.shape)}, the weight {shape_text(w.shape)}"
            )
            raise DimsDiffer(message, channels, per_group * self.groups)
        if self.groups < 1 or symbolic.equal(outputs % self.groups, 0) is not True:
            raise OpTypeError(
                f"{self.name}: {outputs} output channels are not a multiple of {self.groups} groups"
            )
        axes = self._axes(sizes, taps)
        if g is not None:
            expected = windows.pack(self.layout, batch, outputs, [axis.count for axis in axes])
            for found, wanted in zip(g.shape, expected, strict=True):
                if symbolic.equal(found, wanted) is not True:
                    raise OpTypeError(
                        f"{self.name}: {shape_text(x.shape)} convolved with {shape_text(w.shape)} is "
                        f"{shape_text(expected)}, not {shape_text(g.shape)}"
                    )
        return axes

    def _shared(self) -> dict[str, Any]:
        return {
            "strides": self.strides, "padding": self.padding, "dilation": self.dilation,
            "groups": self.groups, "layout": self.layout,
        }  # fmt: skip

    def _convolution(self, x: Node, w: Node) -> Any:
        return x.apply(Convolution(**self._shared()), w)

    def _transpose(self, g: Node, w: Node, shape: Sequence[Dim]) -> Any:
        return g.apply(ConvolutionTranspose(**self._shared(), shape=tuple(shape)), w)

    def _weight_gradient(self, x: Node, g: Node, w_shape: Sequence[Dim]) -> Any:
        _, _, taps = windows.unpack_weight(self.layout, w_shape)
        return x.apply(ConvolutionWeightGradient(**self._shared(), taps=tuple(taps)), g)  # type: ignore[arg-type]

    def _spatial(self, x: Node) -> tuple[Dim, ...]:
        return windows.unpack(self.layout, x.shape)[2]

    def _input_channel(self, output: Dim, channel: Dim, outputs: Dim, per_group: Dim) -> Dim:
        """The channel of x that stands before `channel` of the group of output channel `output`."""
        if self.groups == 1:
            return channel
        return output // (outputs // self.groups) * per_group + channel

    def _padded_element(
        self, x: Reader, axes: Sequence[Axis], batch: Dim, channel: Dim, places: Sequence[Dim]
    ) -> Scalar:
        """The element of x in its compute type; 0 where the places are padding."""
        wide = x.type.dtype.compute
        inside = scalar.both(*(axis.inside(place) for axis, place in zip(axes, places, strict=True)))
        element = scalar.cast(x(*windows.pack(self.layout, batch, channel, places)), wide)
        return scalar.select(inside, element, scalar.constant(0, wide))

    # NumPy views with the groups apart: data [n, groups, c, *spatial], weight [groups, o, c, *taps]

    def _grouped(self, x: np.ndarray) -> np.ndarray:
        x = windows.channels_first(self.layout, x).astype(dtype_of(x).compute.numpy)
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])

    def _ungrouped(self, x: np.ndarray, like: np.ndarray) -> np.ndarray:
        joined = x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])
        return windows.from_channels_first(self.layout, joined).astype(like.dtype)

    def _grouped_weight(self, w: np.ndarray) -> np.ndarray:
        if self.layout == "channels_last":
            w = np.moveaxis(w, (-1, -2), (0, 1))
        w = w.astype(dtype_of(w).compute.numpy)
        return w.reshape(self.groups, w.shape[0] // self.groups, *w.shape[1:])

    def _ungrouped_weight(self, w: np.ndarray, like: np.ndarray) -> np.ndarray:
        w = w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])
        if self.layout == "channels_last":
            w = np.moveaxis(w, (0, 1), (-1, -2))
        return w.astype(like.dtype)


# --- convolution ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution(ConvolutionFamily):
    """y[n, o, y] = sum over c, r: x[n, c, y * stride + r * dilation - low] * w[o, c, r]"""

    def conditions(self, x: TensorType, w: TensorType) -> tuple[Condition, ...]:
        return windows.windows_fit(self.name, self._check(x, w))

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        axes = self._check(x, w)
        batch, _, _ = windows.unpack(self.layout, x.shape)
        outputs, _, _ = windows.unpack_weight(self.layout, w.shape)
        return x.with_shape(windows.pack(self.layout, batch, outputs, [axis.count for axis in axes]))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        data, weight = self._grouped(x), self._grouped_weight(w)
        axes = self._axes(data.shape[3:], weight.shape[3:])
        view = windows.window_view(windows.pad_array(data, axes), axes)
        letters = "uvwxyz"[: len(axes)], "UVWXYZ"[: len(axes)]
        spec = "ngc{0}{1},goc{1}->ngo{0}".format(*letters)
        return self._ungrouped(np.einsum(spec, view, weight, optimize=True), x)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        x, w = xs
        return self._transpose(g, w, self._spatial(x)), self._weight_gradient(x, g, w.shape)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        x, w = operands
        batch, out, places = windows.unpack(self.layout, index)
        outputs, per_group, taps = windows.unpack_weight(self.layout, w.type.shape)
        axes = self._axes(windows.unpack(self.layout, x.type.shape)[2], taps)

        def product(*variables: Dim) -> Scalar:
            _, channel, tap = windows.unpack_weight(self.layout, _insert_output(self.layout, variables, out))
            positions = [axis.position(y, r) for axis, y, r in zip(axes, places, tap, strict=True)]
            source = self._input_channel(out, channel, outputs, per_group)
            element = self._padded_element(x, axes, batch, source, positions)
            weight = w(*windows.pack_weight(self.layout, out, channel, tap))
            return scalar.apply("mul", element, scalar.cast(weight, element.dtype))

        # in the order in which the weights of one output channel stand in memory
        extents = windows.pack_weight(self.layout, 1, per_group, taps)
        inner = extents[1:] if self.layout == "channels_first" else extents[:-1]
        return scalar.cast(windows.combine("sum", inner, product), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, layout, sizes in _cases():
            batch, channels, per_group, outputs, spatial, taps = sizes
            op = cls(**fields, layout=layout)
            x = windows.pack(layout, batch, channels, spatial)
            w = windows.pack_weight(layout, outputs, per_group, taps)
            yield Sample(op, (f64[x], f64[w]))
        plain = cls((1, 1), ((1, 1), (1, 1)), (1, 1))
        for dtype in (f32, f16, bf16, i32):
            yield Sample(plain, (dtype[2, 3, 5, 4], dtype[4, 3, 3, 3]))
        yield Sample(plain, (f32[0, 3, 5, 4], f32[4, 3, 3, 3]))
        yield Sample(
            cls((2, 1), ((0, 1), (2, 0)), (1, 1), 1, "channels_last"), (f32[2, 5, 6, 3], f32[3, 2, 3, 4])
        )


def _insert_output(layout: Layout, variables: Sequence[Dim], output: Dim) -> tuple[Dim, ...]:
    """A weight's index from that of one output channel."""
    return (output, *variables) if layout == "channels_first" else (*variables, output)


@dataclass(frozen=True)
class BlockedConvolution(ConvolutionFamily):
    """y[n, *y, b, o] = sum over r, c: x[n, *(y * stride + r * dilation - low), c] * w[b, *r, c, o]

    A convolution, channels last, whose weight is stored in blocks of output channels, as register tiles read it. The
    blocks share all channels of x, or, when there are as many groups as blocks, each has its own.
    """

    differentiable = False

    def _whole(self, w: TensorType) -> TensorType:
        """The weight without blocks."""
        blocks, *inner, columns = w.shape
        return w.with_shape((*inner, blocks * columns))

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        fits = w.rank == x.rank + 1 and self.groups in (1, w.shape[0])
        if self.layout != "channels_last" or not fits:
            raise OpTypeError(f"{self.name} takes data with channels last and blocks for all or each group, not {w!r}")
        axes = self._check(x, self._whole(w))
        return x.with_shape((x.shape[0], *(axis.count for axis in axes), w.shape[0], w.shape[-1]))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        whole = np.moveaxis(w, 0, -2).reshape(*w.shape[1:-1], -1)
        y = Convolution(**self._shared()).evaluate(x, whole)
        return y.reshape(*y.shape[:-1], w.shape[0], w.shape[-1])

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        x, w = operands
        batch, *places, block, out = index
        _, *taps, channels, _ = w.type.shape
        axes = self._axes(x.type.shape[1:-1], taps)

        def product(*variables: Dim) -> Scalar:
            *tap, channel = variables
            positions = [axis.position(y, r) for axis, y, r in zip(axes, places, tap, strict=True)]
            source = channel + block * channels if self.groups > 1 else channel
            element = self._padded_element(x, axes, batch, source, positions)
            return scalar.apply("mul", element, scalar.cast(w(block, *tap, channel, out), element.dtype))

        return scalar.cast(windows.combine("sum", (*taps, channels), product), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for strides, padding, groups, x, w in (
            ((1, 1), ((1, 1), (1, 1)), 1, (2, 5, 6, 3), (2, 3, 3, 3, 4)),
            ((2, 1), ((0, 1), (2, 0)), 1, (1, 7, 6, 2), (3, 5, 2, 2, 8)),
            ((2,), ((1, 1),), 1, (2, 9, 4), (1, 3, 4, 5)),
            ((1, 2), ((1, 1), (1, 0)), 3, (2, 5, 6, 6), (3, 3, 2, 2, 5)),
        ):
            op = cls(strides, padding, (1,) * len(strides), groups, "channels_last")
            for dtype in (f64, f32):
                yield Sample(op, (dtype[x], dtype[w]))


# --- the gradient for the weights -----------------------------------------------------------------


@dataclass(frozen=True)
class ConvolutionWeightGradient(ConvolutionFamily):
    """w[o, c, r] = sum over n, y: g[n, o, y] * x[n, c, y * stride + r * dilation - low]"""

    taps: tuple[int, ...] = field(kw_only=True)

    def _weight_type(self, x: TensorType, g: TensorType) -> TensorType:
        _, channels, _ = windows.unpack(self.layout, x.shape)
        _, outputs, _ = windows.unpack(self.layout, g.shape)
        if self.groups < 1 or symbolic.equal(channels % self.groups, 0) is not True:
            raise OpTypeError(f"{self.name}: {channels} channels are not a multiple of {self.groups} groups")
        return x.with_shape(windows.pack_weight(self.layout, outputs, channels // self.groups, self.taps))

    def infer(self, x: TensorType, g: TensorType) -> TensorType:
        for operand in (x, g):
            windows.require_data(self.name, self.layout, operand)
        result = self._weight_type(x, g)
        self._check(x, result, g)
        return result

    def evaluate(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        data, cotangent = self._grouped(x), self._grouped(g)
        axes = self._axes(data.shape[3:], self.taps)
        view = windows.window_view(windows.pad_array(data, axes), axes)
        letters = "uvwxyz"[: len(axes)], "UVWXYZ"[: len(axes)]
        spec = "ngc{0}{1},ngo{0}->goc{1}".format(*letters)
        return self._ungrouped_weight(np.einsum(spec, view, cotangent, optimize=True), x)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        x, cotangent = xs
        return self._transpose(cotangent, g, self._spatial(x)), self._convolution(x, g)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        x, g = operands
        out, channel, tap = windows.unpack_weight(self.layout, index)
        outputs, per_group, _ = windows.unpack_weight(self.layout, output.shape)
        axes = self._axes(windows.unpack(self.layout, x.type.shape)[2], self.taps)
        source = self._input_channel(out, channel, outputs, per_group)

        def product(batch: Dim, *places: Dim) -> Scalar:
            positions = [axis.position(y, r) for axis, y, r in zip(axes, places, tap, strict=True)]
            element = self._padded_element(x, axes, batch, source, positions)
            cotangent = g(*windows.pack(self.layout, batch, out, places))
            return scalar.apply("mul", scalar.cast(cotangent, element.dtype), element)

        batch, _, places = windows.unpack(self.layout, g.type.shape)
        return scalar.cast(windows.combine("sum", (batch, *places), product), output.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, layout, sizes in _cases():
            batch, channels, _, outputs, spatial, taps = sizes
            op = cls(**fields, layout=layout, taps=taps)
            counts = [axis.count for axis in op._axes(spatial, taps)]
            x = windows.pack(layout, batch, channels, spatial)
            g = windows.pack(layout, batch, outputs, counts)
            yield Sample(op, (f64[x], f64[g]))
        plain = cls((1, 1), ((1, 1), (1, 1)), (1, 1), taps=(3, 3))
        for dtype in (f32, f16, bf16):
            yield Sample(plain, (dtype[2, 3, 5, 4], dtype[2, 4, 5, 4]))


# --- the gradient for the data, and upsampling ----------------------------------------------------


@dataclass(frozen=True)
class ConvolutionTranspose(ConvolutionFamily):
    """x[n, c, p] = sum over o, r and y with y * stride + r * dilation - low == p: g[n, o, y] * w[o, c, r]

    `shape` are the spatial sizes of x; those of g follow from them.
    """

    shape: tuple[Dim, ...] = field(kw_only=True)

    def _data_type(self, g: TensorType, w: TensorType) -> TensorType:
        batch, _, _ = windows.unpack(self.layout, g.shape)
        _, per_group, _ = windows.unpack_weight(self.layout, w.shape)
        return g.with_shape(windows.pack(self.layout, batch, per_group * self.groups, self.shape))

    def infer(self, g: TensorType, w: TensorType) -> TensorType:
        for operand in (g, w):
            windows.require_data(self.name, self.layout, operand)
        result = self._data_type(g, w)
        self._check(result, w, g)
        return result

    def evaluate(self, g: np.ndarray, w: np.ndarray) -> np.ndarray:
        cotangent, weight = self._grouped(g), self._grouped_weight(w)
        axes = self._axes(self.shape, weight.shape[3:])
        like = np.empty((*cotangent.shape[:2], weight.shape[2], *cotangent.shape[3:]), cotangent.dtype)

        def share(tap: tuple[int, ...]) -> np.ndarray:
            return np.einsum("ngo...,goc->ngc...", cotangent, weight[(..., *tap)], optimize=True)

        return self._ungrouped(windows.spread(share, axes, like), g)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        cotangent, w = xs
        return self._convolution(g, w), self._weight_gradient(g, cotangent, w.shape)

    def decompose(self, *xs: Node) -> Node:
        g, w = xs
        if 0 in self.shape:  # nothing is left of what the windows cover
            return g.full(self._data_type(g.type, w.type).shape, 0)  # type: ignore[attr-defined]
        _, _, taps = windows.unpack_weight(self.layout, w.shape)
        return phases.transposed(g, w, self._axes(self.shape, taps), self.groups, self.layout)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for fields, layout, sizes in _cases():
            batch, _, per_group, outputs, spatial, taps = sizes
            op = cls(**fields, layout=layout, shape=spatial)
            counts = [axis.count for axis in op._axes(spatial, taps)]
            g = windows.pack(layout, batch, outputs, counts)
            w = windows.pack_weight(layout, outputs, per_group, taps)
            yield Sample(op, (f64[g], f64[w]))
        plain = cls((2, 2), ((1, 1), (1, 1)), (1, 1), shape=(8, 7))
        for dtype in (f32, f16, bf16):
            yield Sample(plain, (dtype[2, 4, 4, 4], dtype[4, 3, 3, 3]))


# --- with defaults --------------------------------------------------------------------------------


def convolve(
    x: Node,
    weight: Node,
    *,
    strides: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
) -> Any:
    """A convolution; a number stands for all spatial axes, and padding may be (low, high) for each axis."""
    rank = x.rank - 2
    op = Convolution(
        windows.per_axis(strides, rank),
        windows.per_side(padding, rank),
        windows.per_axis(dilation, rank),
        groups,
        layout,
    )
    return x.apply(op, weight)


def convolve_transpose(
    x: Node,
    weight: Node,
    *,
    strides: int | Sequence[int] = 1,
    padding: Any = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
) -> Any:
    """The upsampling convolution; the weight is [in, out / groups, *taps] or [*taps, out / groups, in].

    An axis becomes (size - 1) * stride + dilation * (taps - 1) + 1 - low - high + output_padding long: output
    padding shows more of the result at its high end, it does not add zeros.
    """
    rank = x.rank - 2
    strides, dilation = windows.per_axis(strides, rank), windows.per_axis(dilation, rank)
    extra = windows.per_axis(output_padding, rank)
    sides = tuple(
        (low, high - e) for (low, high), e in zip(windows.per_side(padding, rank), extra, strict=True)
    )
    _, _, sizes = windows.unpack(layout, x.shape)
    _, _, taps = windows.unpack_weight(layout, weight.shape)
    shape = tuple(
        (size - 1) * stride + step * (count - 1) + 1 - low - high
        for size, stride, step, count, (low, high) in zip(sizes, strides, dilation, taps, sides, strict=True)
    )
    return x.apply(ConvolutionTranspose(strides, sides, dilation, groups, layout, shape=shape), weight)


# --- samples --------------------------------------------------------------------------------------

# (batch, channels, channels of a group, output channels, spatial sizes, taps)
_Sizes = tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]


def _cases() -> Iterator[tuple[dict[str, Any], Layout, _Sizes]]:
    """Strides, asymmetric and negative padding, dilation, groups and odd sizes; 1 to 3 dims, both layouts."""
    table: list[tuple[tuple[int, ...], Padding, tuple[int, ...], int, _Sizes]] = [
        ((1,), ((0, 0),), (1,), 1, (2, 3, 3, 2, (6,), (3,))),
        ((2,), ((1, 2),), (1,), 1, (1, 2, 2, 3, (8,), (3,))),
        ((3,), ((0, 1),), (2,), 2, (2, 4, 2, 2, (9,), (3,))),
        ((2,), ((-1, -2),), (1,), 1, (1, 2, 2, 2, (9,), (2,))),
        ((4,), ((3, 0),), (1,), 1, (1, 2, 2, 1, (7,), (2,))),
        ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (2, 2, 2, 3, (4, 5), (3, 3))),
        ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (2, 3, 3, 4, (3, 2), (1, 1))),
        ((2, 2), ((1, 1), (1, 1)), (1, 1), 1, (1, 2, 2, 3, (5, 6), (3, 3))),
        ((2, 2), ((0, 0), (0, 0)), (1, 1), 1, (1, 2, 2, 2, (5, 4), (1, 1))),
        ((2, 1), ((2, 0), (0, 1)), (1, 2), 2, (1, 4, 2, 4, (6, 5), (4, 2))),
        ((2, 3), ((1, 2), (3, 1)), (3, 2), 1, (1, 1, 1, 2, (8, 7), (2, 3))),
        ((1, 1), ((1, 1), (1, 1)), (1, 1), 3, (1, 3, 1, 6, (4, 4), (3, 3))),
        ((2, 2), ((1, 0), (0, 1)), (1, 1), 4, (2, 4, 1, 4, (5, 4), (3, 2))),
        ((1, 2, 1), ((0, 1), (1, 0), (1, 1)), (1, 1, 2), 1, (1, 2, 2, 2, (3, 4, 3), (2, 3, 2))),
    ]
    for number, (strides, padding, dilation, groups, sizes) in enumerate(table):
        fields = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        yield fields, "channels_first", sizes
        if number % 2:
            yield fields, "channels_last", sizes
