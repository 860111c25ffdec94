"""The phases of an image under a stride, side by side as channels: a convolution with that stride becomes one without.

    sum(r, c: x[s*i + r - low, c] * w[r, c]) = sum(a, p, c: y[i + a, (p, c)] * w[s*a + p, c]),  y[i, (p, c)] = x[s*i + p - low, c]

and the same along the other axis. Few channels become s^2 times as many, few enough taps to interpolate (`winograd`).

Channels of y are ordered [q, p, c], phases of columns first: a row of y is then s rows of x, pixel after pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import If, Statement
from ingot.compiler.ir.scalar import Buffer, Load
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, f32
from ingot.compiler.ops.base import Op, OpTypeError, Sample
from ingot.compiler.ops.nests import repeat, store, view
from ingot.compiler.ops.windows import Layout, channels_first, require_data, unpack

PIXELS = 8  # copied in one iteration
PARALLEL_ELEMENTS = 1 << 15  # less is not worth waking a thread


@dataclass(frozen=True)
class StridePhases(Op):
    """y[n, i, j, (q*s + p)*C + c] = x at row s*i + p - low and column s*j + q - low of channel c, or 0 outside of the image"""

    stride: int
    low: tuple[int, int]  # rows and columns of zeros before the image
    counts: tuple[Dim, Dim]  # of y
    layout: Layout = "channels_last"  # of x
    differentiable = False
    cheap = False

    def infer(self, x: TensorType) -> TensorType:
        require_data(self.name, self.layout, x)
        batch, channels, space = unpack(self.layout, x.shape)
        if len(space) != 2 or self.stride < 1 or min(self.low) < 0 or not isinstance(channels, int):
            raise OpTypeError(f"{self.name} takes images with known channels and some rows before them, not {x!r}, {self.low}")
        return x.with_shape((batch, *self.counts, self.stride**2 * channels))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        planes, stride = channels_first(self.layout, x), self.stride
        batch, channels, *space = planes.shape
        padded = np.zeros((batch, channels, *(stride * int(count) for count in self.counts)), x.dtype)  # type: ignore[call-overload]
        height, width = (max(0, min(n, there - low)) for n, there, low in zip(space, padded.shape[2:], self.low, strict=True))
        top, left = self.low
        padded[:, :, top : top + height, left : left + width] = planes[:, :, :height, :width]
        apart = padded.reshape(batch, channels, -1, stride, padded.shape[3] // stride, stride)
        together = apart.transpose(0, 2, 4, 5, 3, 1)
        return np.ascontiguousarray(together).reshape(*together.shape[:3], -1)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (x,) = outputs, inputs
        stride, (top, left) = self.stride, self.low
        batch, down, across, _ = y.shape
        _, channels, (height, width) = unpack(self.layout, x.shape)
        assert isinstance(channels, int)
        rows = view(y, batch * down, across * stride, stride * channels)  # of y, pixel after pixel
        columns = across * stride
        first = symbolic.minimum(left, columns)
        last = symbolic.minimum(left + width, columns)
        zero = scalar.constant(0, y.dtype)

        def pixels(start: Dim, stop: Dim, pixel: Callable[[Dim], Sequence[Statement]]) -> tuple[Statement, ...]:
            count = stop - start
            whole = count // PIXELS
            return (
                *repeat(whole, lambda v: repeat(PIXELS, lambda k: pixel(start + v * PIXELS + k), "unrolled")),
                *repeat(count - whole * PIXELS, lambda k: pixel(start + whole * PIXELS + k)),
            )

        def row(number: Dim) -> list[Statement]:
            return [s for phase in range(stride) for s in one_phase(number, phase)]

        def one_phase(number: Dim, phase: int) -> tuple[Statement, ...]:
            image, line = number // down, number % down * stride + phase - top

            def place(pixel: Dim, channel: int) -> tuple[Dim, Dim, Dim]:
                return number, pixel, phase * channels + channel

            def nothing(pixel: Dim) -> list[Statement]:
                return [store(rows.buffer, zero, *place(pixel, c)) for c in range(channels)]

            def copied(pixel: Dim) -> list[Statement]:
                def element(c: int) -> Load:
                    at = (c, line, pixel - left) if self.layout == "channels_first" else (line, pixel - left, c)
                    return Load(x, (image, *at))

                return [store(rows.buffer, element(c), *place(pixel, c)) for c in range(channels)]

            exists = scalar.both(scalar.predicate(line, "ge", 0), scalar.predicate(line, "lt", height))
            inside = (*pixels(0, first, nothing), *pixels(first, last, copied), *pixels(last, columns, nothing))
            outside = pixels(0, columns, nothing)
            if isinstance(exists, scalar.Const):
                return inside if exists.value else outside
            return (If(exists, inside, outside),)

        many = symbolic.less(batch * down * columns * stride * channels, PARALLEL_ELEMENTS) is not True
        return (rows, *repeat(batch * down, row, "parallel" if many else "serial"))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(2, (3, 3), (10, 9)), (f32[2, 13, 11, 3],))
        yield Sample(cls(2, (3, 3), (10, 9), "channels_first"), (f32[2, 3, 13, 11],))
        yield Sample(cls(2, (0, 1), (4, 5)), (f32[1, 13, 7, 2],))  # fewer than there are
        yield Sample(cls(3, (2, 0), (9, 12), "channels_first"), (f32[1, 1, 5, 30],))
        yield Sample(cls(1, (0, 0), (3, 3)), (f32[1, 3, 3, 1],))
        yield Sample(cls(2, (5, 9), (2, 3)), (f32[1, 4, 4, 1],))  # none of them
