"""Convolution and pooling layers. Data is [batch, channels, *space], as in ONNX and torch; the compiler
chooses the layout in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.compiler.ops.average_pooling import average_pool
from ingot.compiler.ops.convolution import convolve, convolve_transpose
from ingot.compiler.ops.pooling import max_pool
from ingot.frontends.dsl.module import Module
from ingot.frontends.dsl.nn import initializers
from ingot.frontends.dsl.nn.initializers import Initializer
from ingot.frontends.dsl.nn.layers import Generator, generator_of, pair

Padding = int | str | Sequence[int] | Sequence[tuple[int, int]]


class _Convolution(Module):
    space = 2

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = initializers.he_uniform,
        generator: Generator = None,
    ) -> None:
        if inputs % groups or outputs % groups:
            raise ValueError(f"{groups} groups do not divide {inputs} input and {outputs} output channels")
        size = pair(kernel, self.space)
        self.stride = pair(stride, self.space)
        self.dilation = pair(dilation, self.space)
        self.padding = explicit_padding(padding, size, self.stride, self.dilation)
        self.groups = groups
        source = generator_of(generator)
        self.weight = initializer(self._weight_shape(inputs, outputs, size), source)
        self.bias = np.zeros(outputs, np.float32) if bias else None

    def _weight_shape(self, inputs: int, outputs: int, size: tuple[int, ...]) -> tuple[int, ...]:
        return (outputs, inputs // self.groups, *size)

    def _with_bias(self, y: Any) -> Any:
        if self.bias is None:
            return y
        return y + y._coerce(self.bias).reshape(1, self.bias.shape[0], *(1,) * self.space)

    def forward(self, x: Any) -> Any:
        weight = x._coerce(self.weight)
        return self._with_bias(
            convolve(x, weight, strides=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups)
        )


def explicit_padding(
    padding: Padding, size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """(low, high) per axis. "same" keeps the extent of a stride-1 convolution; "valid" is none."""
    if padding == "valid":
        return ((0, 0),) * len(size)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError('padding "same" needs a stride of 1; give numbers')
        totals = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        return tuple((t // 2, t - t // 2) for t in totals)
    if isinstance(padding, str):
        raise ValueError(f'padding is a number, pairs, "same" or "valid", not {padding!r}')
    given = (padding,) * len(size) if isinstance(padding, int) else tuple(padding)
    return tuple((p, p) if isinstance(p, int) else (p[0], p[1]) for p in given)


class Conv1d(_Convolution):
    space = 1


class Conv2d(_Convolution):
    space = 2


class Conv3d(_Convolution):
    space = 3


class _ConvolutionTranspose(_Convolution):
    """The gradient of a convolution with respect to its input, as a layer (up-sampling)."""

    def __init__(self, *args: Any, output_padding: int | Sequence[int] = 0, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.output_padding = pair(output_padding, self.space)

    def _weight_shape(self, inputs: int, outputs: int, size: tuple[int, ...]) -> tuple[int, ...]:
        return (inputs, outputs // self.groups, *size)

    def forward(self, x: Any) -> Any:
        weight = x._coerce(self.weight)
        return self._with_bias(
            convolve_transpose(
                x,
                weight,
                strides=self.stride,
                padding=self.padding,
                output_padding=self.output_padding,
                dilation=self.dilation,
                groups=self.groups,
            )
        )


class ConvTranspose1d(_ConvolutionTranspose):
    space = 1


class ConvTranspose2d(_ConvolutionTranspose):
    space = 2


class ConvTranspose3d(_ConvolutionTranspose):
    space = 3


class _Pool(Module):
    space = 2

    def __init__(
        self,
        window: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
    ) -> None:
        self.window = pair(window, self.space)
        self.stride = self.window if stride is None else pair(stride, self.space)
        self.padding = explicit_padding(padding, self.window, (1,) * self.space, (1,) * self.space)
        self.ceil_mode = ceil_mode


class _MaxPool(_Pool):
    def forward(self, x: Any) -> Any:
        return max_pool(x, self.window, strides=self.stride, padding=self.padding, ceil_mode=self.ceil_mode)


class _AvgPool(_Pool):
    def __init__(self, *args: Any, count_include_pad: bool = True, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.count_include_pad = count_include_pad

    def forward(self, x: Any) -> Any:
        return average_pool(
            x,
            self.window,
            strides=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )


def _spaces(kind: type[_Pool], name: str) -> list[type]:
    return [
        type(f"{name}{n}d", (kind,), {"space": n, "__module__": __name__, "__doc__": kind.__doc__}) for n in (1, 2, 3)
    ]


MaxPool1d, MaxPool2d, MaxPool3d = _spaces(_MaxPool, "MaxPool")
AvgPool1d, AvgPool2d, AvgPool3d = _spaces(_AvgPool, "AvgPool")


class GlobalAvgPool(Module):
    """The mean over all spatial axes: [batch, channels]."""

    def forward(self, x: Any) -> Any:
        return x.mean(axis=tuple(range(2, x.rank)))


class GlobalMaxPool(Module):
    """The maximum over all spatial axes: [batch, channels]."""

    def forward(self, x: Any) -> Any:
        return x.max(axis=tuple(range(2, x.rank)))
