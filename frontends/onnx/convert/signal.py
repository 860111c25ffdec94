"""Signals: Fourier transforms as products with matrices of cosines and sines, windows, mel filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import i64
from ingot.compiler.ops.base import normalize_axis
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import Iota, stack
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import MOST_ELEMENTS, Call
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import onnx_op


def waves(length: int, taken: int, count: int, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of 2 pi n k / length for `taken` samples n and `count` frequencies k; exact multiples of the circle
    are taken out before, so that large products lose nothing."""
    turns = np.outer(np.arange(taken), np.arange(count)) % length
    angle = turns * (2 * math.pi / length)
    return np.cos(angle), np.sin(angle) if inverse else -np.sin(angle)


def transformed(op: Call, real: Any, imaginary: Any, axis: int, cosine: np.ndarray, sine: np.ndarray) -> tuple[Any, Any]:
    """(real, imaginary) along an axis: the product with cosine + i sine."""
    letters = "abcdefgh"[: real.rank]
    result = letters[:axis] + "z" + letters[axis + 1 :]
    pair = letters[axis] + "z"
    c, s = (op.constant(m.astype(real.dtype.numpy)) for m in (cosine, sine))

    def product(x: Any, matrix: Tensor) -> Any:
        return contract(x, letters, matrix, pair, result)

    if imaginary is None:
        return product(real, c), product(real, s)
    return product(real, c) - product(imaginary, s), product(real, s) + product(imaginary, c)


def _split(x: Tensor) -> tuple[Any, Any]:
    """The last axis holds real numbers (1) or pairs (2)."""
    return x[..., 0], x[..., 1] if x.shape[-1] == 2 else None


def _fitted(x: Any, axis: int, length: int) -> Any:
    """The first `length` elements along an axis; zeros where there are fewer."""
    extent = x.shape[axis]
    if extent == length:
        return x
    low, high = [0] * x.rank, [0] * x.rank
    high[axis] = length - extent
    return x.pad(low=tuple(low), high=tuple(high), mode="constant", value=0.0)


@onnx_op("DFT", since=17, known=(1,), least_ranks={0: 2})
def dft_17(op: Call, x: Tensor, length: np.ndarray | None = None) -> Any:
    return transform(op, x, length, op.get("axis", 1))


@onnx_op("DFT", since=20, known=(1, 2), least_ranks={0: 2})
def dft(op: Call, x: Tensor, length: np.ndarray | None = None, axis: np.ndarray | None = None) -> Any:
    return transform(op, x, length, -2 if axis is None else op.integer(axis, "the axis"))


def transform(op: Call, x: Tensor, given: np.ndarray | None, axis: int) -> Any:
    axis = normalize_axis(axis, x.rank, op.name)
    op.require(axis < x.rank - 1, Kind.BAD_VALUE, f"axis {axis} of {x.type!r}, whose last axis holds the parts of a number")
    inverse, onesided = bool(op.get("inverse", 0)), bool(op.get("onesided", 0))
    extent = x.shape[axis]
    if given is not None:
        length = op.integer(given, "the length")
    elif isinstance(extent, int):
        length = 2 * (extent - 1) if inverse and onesided else extent
    else:
        raise ProblemError(Kind.UNSUPPORTED, f"{op.name}: a transform over the symbolic dim {extent}")
    op.require(length > 0, Kind.BAD_VALUE, f"the length of the transform is {length}")
    op.bounded(length * length, "the square of the length of the transform", MOST_ELEMENTS)
    real, imaginary = _split(x)
    if inverse and onesided:
        return real_inverse(op, real, imaginary, axis, length)
    real = _fitted(real, axis, length)
    imaginary = None if imaginary is None else _fitted(imaginary, axis, length)
    count = length // 2 + 1 if onesided else length
    cosine, sine = waves(length, length, count, inverse)
    if inverse:
        cosine, sine = cosine / length, sine / length
    return stack(list(transformed(op, real, imaginary, axis, cosine, sine)), -1)


def real_inverse(op: Call, real: Any, imaginary: Any, axis: int, length: int) -> Any:
    """A real signal from the frequencies that are not conjugates of others; those stand for two."""
    taken = length // 2 + 1
    real = _fitted(real, axis, taken)
    cosine, sine = waves(length, taken, length, True)
    twice = np.where((np.arange(taken) == 0) | (2 * np.arange(taken) == length), 1.0, 2.0)[:, None] / length
    cosine, sine = cosine * twice, sine * twice
    if imaginary is not None:
        imaginary = _fitted(imaginary, axis, taken)
    signal, _ = transformed(op, real, imaginary, axis, cosine, sine)
    return signal.reshape(*signal.shape, 1)


@onnx_op("STFT", known=(1, 3), least_ranks={0: 2}, ranks={2: 1})
def stft(op: Call, x: Tensor, step: np.ndarray, window: Tensor | None = None, length: np.ndarray | None = None) -> Any:
    """Frames [batch, frames, length] of the signal, windowed and transformed: [batch, frames, frequencies, 2]."""
    hop = op.integer(step, "the step")
    if length is not None:
        size: Dim = op.integer(length, "the length")
    elif window is not None:
        size = window.shape[0]
    else:
        raise ProblemError(Kind.INPUT_COUNT, f"{op.name} has neither a window nor a frame length")
    if not isinstance(size, int):
        raise ProblemError(Kind.UNSUPPORTED, f"{op.name}: frames of the symbolic length {size}")
    op.require(hop > 0 and size > 0, Kind.BAD_VALUE, f"frames of {size} elements every {hop}")
    op.bounded(size * size, "the square of the length of a frame", MOST_ELEMENTS)
    real, imaginary = _split(x) if x.rank == 3 else (x, None)
    frames = (real.shape[1] - size) // hop + 1
    count = size // 2 + 1 if op.get("onesided", 1) else size
    cosine, sine = waves(size, size, count, False)
    parts = [None if p is None else _frames(op, p, frames, size, hop) for p in (real, imaginary)]
    if window is not None:
        parts = [None if p is None else p * window for p in parts]
    return stack(list(transformed(op, parts[0], parts[1], 2, cosine, sine)), -1)


def _frames(op: Call, signal: Any, frames: Dim, size: int, hop: int) -> Any:
    """[batch, frames, size]: element t of frame f is at f * hop + t."""
    starts = Tensor(op.trace, op.trace.emit(Iota((frames, size), 0, i64))) * hop
    places = starts + Tensor(op.trace, op.trace.emit(Iota((frames, size), 1, i64)))
    return signal.apply(Gather(1), places)


@onnx_op("MelWeightMatrix", known=(0, 1, 2, 3, 4))
def mel_weight_matrix(
    op: Call, bins: np.ndarray, length: np.ndarray, rate: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Any:
    """Triangular filters, equally wide on the mel scale: [length // 2 + 1, bins]."""
    count, size = op.integer(bins, "the number of bins"), op.integer(length, "the length")
    first, last, samples = (op.number(e, "a frequency") for e in (low, high, rate))
    op.require(count >= 0 and size >= 0 and 0 <= first <= last and samples > 0, Kind.BAD_VALUE,
               f"{count} bins of {size} elements from {first} to {last} of {samples}")  # fmt: skip
    op.bounded((count + 2) * (size // 2 + 1), "the size of its matrix", MOST_ELEMENTS)
    edges = [2595 * np.log10(1 + e / 700) for e in (first, last)]
    mels = np.arange(count + 2) * ((edges[1] - edges[0]) / (count + 2)) + edges[0]
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((size + 1) * hertz // samples).astype(int)
    op.require(places.max(initial=0) <= size // 2, Kind.BAD_VALUE, f"{last} is beyond half the rate of {samples}")
    matrix = np.zeros((size // 2 + 1, count))
    for n in range(count):
        left, centre, right = places[n : n + 3]
        if centre == left:
            matrix[centre, n] = 1
        else:
            rising = np.arange(left, centre + 1)
            matrix[rising, n] = (rising - left) / (centre - left)
        falling = np.arange(centre, right)
        if falling.size:
            matrix[falling, n] = (right - falling) / (right - centre)
    return op.constant(matrix.astype(op.dtype("output_datatype", 1).numpy))


def _window(op: Call, size: tuple[Dim, ...], coefficients: tuple[float, ...]) -> Any:
    """A sum of cosines over one period."""
    dtype = op.dtype("output_datatype", 1)
    op.require(len(size) == 1, Kind.BAD_SHAPE, f"its size has {len(size)} elements, not 1")
    (count,) = size
    wide = dtype.compute
    places = Tensor(op.trace, op.trace.emit(Iota((count,), 0, wide)))
    periods = op.dimension(count if op.get("periodic", 1) else count - 1, wide)
    angle = places * (2 * math.pi) / periods
    total: Any = None
    for order, factor in enumerate(coefficients):
        part = (angle * float(order)).cos() * factor
        total = part if total is None else total + part
    return total.cast(dtype)


@onnx_op("HannWindow", dims=(0,))
def hann_window(op: Call, size: tuple[Dim, ...]) -> Any:
    return _window(op, size, (0.5, -0.5))


@onnx_op("HammingWindow", dims=(0,))
def hamming_window(op: Call, size: tuple[Dim, ...]) -> Any:
    return _window(op, size, (25 / 46, -21 / 46))


@onnx_op("BlackmanWindow", dims=(0,))
def blackman_window(op: Call, size: tuple[Dim, ...]) -> Any:
    return _window(op, size, (0.42, -0.5, 0.08))
