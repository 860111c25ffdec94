"""A convolution_transpose as convolutions of stride 1, so that every convolution runs in the same kernels.

    stride 1    x is the convolution of g with the weights flipped, their input and output channels exchanged
    stride s    x[s*q + f] reads the taps r = s*j + f only, at g[q - j]: the s phases f are further output
                channels of one convolution, interleaved afterwards. Phases f < taps % s have one tap more
                than the others, so an axis takes at most two convolutions and none multiplies by a zero.
                Phases of a single tap (channels last) are a matrix product that writes them in their places.
    stride and dilation above 1 (rare): zeros are inserted between the elements of g, then as stride 1

Weights are only moved: flips, transposes and slices that a later pass folds into their packing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops import movement, windows
from ingot.compiler.ops.contraction import Contract
from ingot.compiler.ops.windows import Axis, Layout


def transposed(g: Any, w: Any, axes: Sequence[Axis], groups: int, layout: Layout) -> Any:
    """The gradient for x of the convolution of x with w along `axes`, given that for its result."""
    g, axes = _insert_zeros(g, axes, layout)
    return _Phases(layout, groups, axes, g, w).result()


def _insert_zeros(g: Any, axes: Sequence[Axis], layout: Layout) -> tuple[Any, tuple[Axis, ...]]:
    """Axes with both a stride and a dilation: g with stride - 1 zeros between its elements, and stride 1."""
    steps = [axis.stride if axis.dilation > 1 else 1 for axis in axes]
    made: list[Axis] = []
    for axis, step in zip(axes, steps, strict=True):
        if step == 1:
            made.append(axis)
            continue
        # windows that the stride skipped at the end would count now: crop what they would read
        exact = (axis.count - 1) * step + axis.reach - axis.size - axis.low
        made.append(Axis(axis.size, axis.taps, 1, axis.dilation, axis.low, exact))
    return movement.dilate(g, windows.pack(layout, 1, 1, steps)), tuple(made)


@dataclass(frozen=True)
class _Run:
    """Consecutive phases of one axis whose results read the same number of taps."""

    first: int
    stop: int
    taps: int
    quotient: Dim  # the first q

    @property
    def count(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class _Interleaving:
    """How the results along one axis follow each other: for q = 0, 1, ... the phases of all runs in order.

    With place = position + low, x at place s*q + f is sum over j: g[q - j] * w[s*j + f].
    """

    runs: tuple[_Run, ...]
    quotients: Dim  # how many q
    start: Dim  # where position 0 stands

    @staticmethod
    def of(axis: Axis) -> _Interleaving:
        """Position 0 comes first where that does not part a run; elsewhere there is one q more."""
        stride, (whole, rest) = axis.stride, divmod(axis.taps, axis.stride)
        bounds = [(0, rest, whole + 1), (rest, stride, whole)] if rest else [(0, stride, whole)]
        quotient, start = axis.low // stride, axis.low % stride
        if rest and start == rest:
            (head, tail), start = bounds, 0
            runs = _Run(*tail, quotient), _Run(*head, quotient + 1)
        else:
            runs = tuple(_Run(*bound, quotient) for bound in bounds)
        return _Interleaving(runs, symbolic.ceildiv(start + axis.size, stride), start)


@dataclass(frozen=True)
class _Phases:
    """A convolution_transpose as convolutions of stride 1 whose results are interleaved."""

    layout: Layout
    groups: int
    axes: tuple[Axis, ...]
    g: Any
    w: Any

    @cached_property
    def _plans(self) -> tuple[_Interleaving, ...]:
        return tuple(_Interleaving.of(axis) for axis in self.axes)

    @property
    def _quotients(self) -> list[Dim]:
        return [plan.quotients for plan in self._plans]

    @property
    def _channels_per_group(self) -> Any:
        return windows.unpack_weight(self.layout, self.w.shape)[1]

    def result(self) -> Any:
        whole = self._assemble(())
        batch, _, _ = windows.unpack(self.layout, self.g.shape)
        sizes = [q * axis.stride for q, axis in zip(self._quotients, self.axes, strict=True)]
        channels = self.groups * self._channels_per_group
        whole = whole.reshape(windows.pack(self.layout, batch, channels, sizes))
        places = windows.spatial_axes(self.layout, whole.rank)
        for place, plan, axis in zip(places, self._plans, self.axes, strict=True):
            whole = movement.part(whole, place, plan.start, plan.start + axis.size)
        return whole

    def _assemble(self, chosen: tuple[_Run, ...]) -> Any:
        """All phases of the axes that are not chosen yet: [n, c, q, f, q, f] or [n, q, f, q, f, c]."""
        if len(chosen) == len(self.axes):
            return self._interleaved(chosen)
        parts = [self._assemble((*chosen, run)) for run in self._plans[len(chosen)].runs]
        first_phase = 3 if self.layout == "channels_first" else 2
        return movement.concat(parts, first_phase + 2 * len(chosen))

    def _interleaved(self, runs: tuple[_Run, ...]) -> Any:
        """One convolution, its phases moved from the channels to behind their axes."""
        batch, _, _ = windows.unpack(self.layout, self.g.shape)
        sizes, counts = self._quotients, [run.count for run in runs]
        channels = self.groups * self._channels_per_group
        pairs = list(itertools.chain.from_iterable(zip(sizes, counts, strict=True)))
        if not all(run.taps for run in runs):
            return self.g.full(windows.pack(self.layout, batch, channels, pairs), 0)
        if self._is_product(runs):
            return self._product(runs)
        y = self._convolved(runs)
        if all(count == 1 for count in counts):
            return y.reshape(windows.pack(self.layout, batch, channels, pairs))
        rank = len(runs)
        if self.layout == "channels_first":
            apart = y.reshape((batch, channels, *counts, *sizes))
            order = [0, 1, *itertools.chain.from_iterable((2 + rank + n, 2 + n) for n in range(rank))]
            return apart.transpose(order)
        apart = y.reshape((batch, *sizes, self.groups, *counts, self._channels_per_group))
        order = [0, *itertools.chain.from_iterable((1 + n, 2 + rank + n) for n in range(rank))]
        together = apart.transpose([*order, 1 + rank, 2 + 2 * rank])
        return together.reshape((batch, *pairs, channels))

    def _is_product(self, runs: tuple[_Run, ...]) -> bool:
        """Whether each result reads one element of g: a matrix product, which writes the phases where they belong."""
        if self.layout != "channels_last" or self.groups > 1:
            return False
        return all(run.taps == 1 for run in runs) and all(p == 0 for side in self._padding(runs) for p in side)

    def _product(self, runs: tuple[_Run, ...]) -> Any:
        places, phases = "yxz"[: len(runs)], "vuw"[: len(runs)]
        w = self._weight(runs)
        w = w.reshape((w.shape[-2], *(run.count for run in runs), self._channels_per_group))
        pairs = "".join(itertools.chain.from_iterable(zip(places, phases, strict=True)))
        return self.g.apply(Contract(f"n{places}o", f"o{phases}c", f"n{pairs}c"), w)

    def _padding(self, runs: tuple[_Run, ...]) -> tuple[tuple[Dim, Dim], ...]:
        """It may be negative: the convolution starts and stops at the q that occur."""
        padding: list[tuple[Dim, Dim]] = []
        _, _, counts = windows.unpack(self.layout, self.g.shape)
        steps = [axis.dilation for axis in self.axes]
        for run, count, step, quotients in zip(runs, counts, steps, self._quotients, strict=True):
            reach = step * (run.taps - 1)
            low = reach - run.quotient
            padding.append((low, quotients - count - low + reach))
        return tuple(padding)

    def _convolved(self, runs: tuple[_Run, ...]) -> Any:
        """The convolution of g with the taps of these phases, which become channels."""
        return self.g.convolution(
            self._weight(runs),
            strides=(1,) * len(self.axes),
            padding=self._padding(runs),
            dilation=tuple(axis.dilation for axis in self.axes),
            groups=self.groups,
            layout=self.layout,
        )

    def _weight(self, runs: tuple[_Run, ...]) -> Any:
        """w[s*j + f] of these phases, j reversed; output channels are [group, c, *f] or [group, *f, c]."""
        rank = len(runs)
        outputs, per_group, taps = windows.unpack_weight(self.layout, self.w.shape)
        first = self.layout == "channels_first"
        if first:
            w = self.w.reshape((self.groups, outputs // self.groups, per_group, *taps))
            start, group, out, channel = 3, 0, 1, 2
        else:
            w = self.w.reshape((*taps, per_group, self.groups, outputs // self.groups))
            start, channel, group, out = 0, 2 * rank, 2 * rank + 1, 2 * rank + 2
        for n in reversed(range(rank)):
            w = _taps_of_phases(w, start + n, self.axes[n], runs[n])
        tap_axes = tuple(start + 2 * n for n in range(rank))
        phase_axes = tuple(start + 2 * n + 1 for n in range(rank))
        w = w.flip(axes=tap_axes)
        inner = symbolic.product(w.shape[n] for n in (group, channel, *phase_axes))
        if first:
            w = w.transpose((group, channel, *phase_axes, out, *tap_axes))
            return w.reshape((inner, *w.shape[2 + rank :]))
        w = w.transpose((*tap_axes, out, group, *phase_axes, channel))
        return w.reshape((*w.shape[: rank + 1], inner))


def _taps_of_phases(w: Any, place: int, axis: Axis, run: _Run) -> Any:
    """w[..., s*j + f, ...] as [..., j, f, ...] for the taps j and phases f of the run."""
    if run.count == 1:
        return movement.part(w, place, run.first, axis.taps, axis.stride).expand_dims(place + 1)
    if run.taps == 1:
        return movement.part(w, place, run.first, run.stop).expand_dims(place)
    length = run.taps * axis.stride
    missing = [max(length - axis.taps, 0) if n == place else 0 for n in range(w.rank)]
    w = movement.part(movement.pad(w, [0] * w.rank, missing), place, 0, length)
    w = w.reshape((*w.shape[:place], run.taps, axis.stride, *w.shape[place + 1 :]))
    return movement.part(w, place + 1, run.first, run.stop)
