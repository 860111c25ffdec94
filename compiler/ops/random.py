"""Random numbers by counting: Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3).

A key is a u64[2] tensor, (seed, offset). Element n of a result, in row-major order, is a function of the key, the
op's `stream` and n alone:

    counter = (n mod 2^32, n / 2^32, offset mod 2^32, offset / 2^32 xor stream)    key = the halves of the seed

so the same bits come out for any number of threads, any fusion, in any order, in the interpreter and in native
code. Ops that share a key take different streams; a program that runs again increments the offset.
Integers and uniform numbers are exact; normal numbers are equal as far as log, cos and sqrt are.

Non-goal: no state. `advance`, `split` and `fold_in` make keys from keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.scalar import IndexValue, Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import (
    DType,
    TensorType,
    bf16,
    boolean,
    dtype_of,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    row_major_strides,
    u8,
    u32,
    u64,
)
from ingot.compiler.ops import movement
from ingot.compiler.ops.base import Node, Op, OpTypeError, Sample

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # golden ratio, sqrt(3) - 1
ROUNDS = 10
STREAMS = 1 << 32
SPLIT_STREAM, FOLD_STREAM = STREAMS - 1, STREAMS - 2  # for making keys; the others are free

Words = tuple[Any, Any, Any, Any]

# --- the generator, twice: on arrays and on scalar expressions ------------------------------------


def philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> Words:
    """Four u32 arrays of random bits for a counter of four and a key of two u32 arrays."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = (np.asarray(k, np.uint64) for k in key)
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & mask, (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + np.uint64(WEYL[0])) & mask, (k1 + np.uint64(WEYL[1])) & mask
    return tuple(c.astype(np.uint32) for c in (c0, c1, c2, c3))  # type: ignore[return-value]


def philox_scalars(counter: Sequence[Scalar], key: Sequence[Scalar]) -> Words:
    """The same on u32 scalar expressions."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = _wide_product(c0, MULTIPLIERS[0]), _wide_product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = _xor(_xor(_high(p1), c1), k0), _low(p1), _xor(_xor(_high(p0), c3), k1), _low(p0)
        k0, k1 = _add(k0, _number(WEYL[0], u32)), _add(k1, _number(WEYL[1], u32))
    return c0, c1, c2, c3


def _number(value: float, dtype: DType) -> Scalar:
    return scalar.constant(value, dtype)


def _add(a: Scalar, b: Scalar) -> Scalar:
    return scalar.apply("add", a, b)


def _multiply(a: Scalar, b: Scalar) -> Scalar:
    return scalar.apply("mul", a, b)


def _xor(a: Scalar, b: Scalar) -> Scalar:
    return scalar.apply("xor", a, b)


def _shift_right(a: Scalar, count: int) -> Scalar:
    return scalar.apply("shr", a, _number(count, a.dtype)) if count else a


def _wide_product(a: Scalar, factor: int) -> Scalar:
    return _multiply(scalar.cast(a, u64), _number(factor, u64))


def _low(a: Scalar) -> Scalar:
    return scalar.cast(a, u32)


def _high(a: Scalar) -> Scalar:
    return scalar.cast(_shift_right(a, 32), u32)


# --- ops that draw --------------------------------------------------------------------------------


class Random(Op, abstract=True):
    """A tensor of `shape` drawn with a key; each element is made of the four words of its counter."""

    shape: tuple[Dim, ...]
    dtype: DType
    stream: int
    differentiable = False
    cheap = False

    def _check(self) -> None:
        raise NotImplementedError

    def from_words(self, words: Words) -> Scalar:
        """One element of the result."""
        raise NotImplementedError

    def from_arrays(self, words: Words) -> np.ndarray:
        """The same for arrays of words."""
        raise NotImplementedError

    def infer(self, key: TensorType) -> TensorType:
        require_key(self.name, key, self.stream)
        self._check()
        return TensorType(self.dtype, self.shape)

    def evaluate(self, key: np.ndarray) -> np.ndarray:
        shape: Any = self.shape
        n = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
        seed, offset = key
        counter = (*_halves(n), *_halves(np.broadcast_to(offset, shape)))
        words = philox((*counter[:3], counter[3] ^ np.uint32(self.stream)), _halves(seed))
        return np.asarray(self.from_arrays(words)).astype(self.dtype.numpy)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        (key,) = operands
        position: Dim = 0
        for i, stride in zip(index, row_major_strides(output.shape), strict=True):
            position = position + i * stride
        n = IndexValue(position, u64)
        short = symbolic.less(position, 1 << 32) is True
        counter = (
            _low(n),
            _number(0, u32) if short else _high(n),
            _low(key(1)),
            _xor(_high(key(1)), _number(self.stream, u32)),
        )
        return self.from_words(philox_scalars(counter, (_low(key(0)), _high(key(0)))))


def require_key(op: str, key: TensorType, stream: int) -> None:
    if key != u64[2]:
        raise OpTypeError(f"{op}: a key is u64[2] (seed, offset), not {key!r}")
    if not 0 <= stream < STREAMS:
        raise OpTypeError(f"{op}: the stream {stream} is not between 0 and {STREAMS - 1}")


def _halves(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value = np.asarray(value, np.uint64)
    return value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True)
class RandomBits(Random):
    """u32: word number `word` of each counter's four; u64: that word below the next."""

    shape: tuple[Dim, ...]
    dtype: DType = u32
    stream: int = 0
    word: int = 0

    def _check(self) -> None:
        if self.dtype not in (u32, u64):
            raise OpTypeError(f"random_bits are u32 or u64, not {self.dtype}")
        if self.word not in (range(4) if self.dtype == u32 else (0, 2)):
            raise OpTypeError(f"random_bits: there is no {self.dtype} word {self.word} of four u32 words")

    def from_words(self, words: Words) -> Scalar:
        if self.dtype == u32:
            return words[self.word]
        high = scalar.apply("shl", scalar.cast(words[self.word + 1], u64), _number(32, u64))
        return scalar.apply("or", high, scalar.cast(words[self.word], u64))

    def from_arrays(self, words: Words) -> np.ndarray:
        if self.dtype == u32:
            return words[self.word]
        return words[self.word + 1].astype(np.uint64) << np.uint64(32) | words[self.word]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for key in _keys():
            yield Sample(cls((3, 5)), (key,))
            yield Sample(cls((7,), u64, 3), (key,))
        yield Sample(cls((2, 3), u32, STREAMS - 1, 3), (_keys()[1],))
        yield Sample(cls((4,), u64, 9, 2), (_keys()[1],))
        yield Sample(cls(()), (_keys()[1],))
        yield Sample(cls((0, 2)), (_keys()[1],))


PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


@dataclass(frozen=True)
class RandomUniform(Random):
    """Uniform in [0, 1): a multiple of 2^-p for a type with p bits of precision, so 1 never comes out."""

    shape: tuple[Dim, ...]
    dtype: DType = f32
    stream: int = 0

    def _check(self) -> None:
        _require_float(self.name, self.dtype)

    def from_words(self, words: Words) -> Scalar:
        return scalar.cast(_uniform(words, self.dtype), self.dtype)

    def from_arrays(self, words: Words) -> np.ndarray:
        return _uniform_arrays(words, self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, f64, f16, bf16):
            yield Sample(cls((3, 50), dtype, 1), (_keys()[1],))


def _require_float(op: str, dtype: DType) -> None:
    if not dtype.is_float:
        raise OpTypeError(f"{op} makes floats, not {dtype}")


def _uniform(words: Sequence[Scalar], dtype: DType) -> Scalar:
    """In the compute type. Through signed integers, because vector units convert those."""
    bits = PRECISION[dtype.name]

    def top(word: Scalar, count: int) -> Scalar:
        return scalar.cast(scalar.cast(_shift_right(word, 32 - count), i32), dtype.compute)

    if bits <= 24:
        return _multiply(top(words[0], bits), _number(2.0**-bits, dtype.compute))
    low = bits // 2
    joined = _add(_multiply(top(words[1], bits - low), _number(2.0**low, dtype)), top(words[0], low))
    return _multiply(joined, _number(2.0**-bits, dtype))


def _uniform_arrays(words: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
    bits, wide = PRECISION[dtype.name], dtype.compute.numpy.type
    if bits <= 24:
        return (words[0] >> np.uint32(32 - bits)).astype(wide) * wide(2.0**-bits)
    low = bits // 2
    high_part = (words[1] >> np.uint32(32 - bits + low)).astype(wide)
    return (high_part * wide(2.0**low) + (words[0] >> np.uint32(32 - low)).astype(wide)) * wide(2.0**-bits)


@dataclass(frozen=True)
class RandomNormal(Random):
    """Normal with mean 0 and variance 1: sqrt(-2 log(u)) cos(2 pi v) of two uniform numbers (Box and Muller)."""

    shape: tuple[Dim, ...]
    dtype: DType = f32
    stream: int = 0

    def _check(self) -> None:
        _require_float(self.name, self.dtype)

    def from_words(self, words: Words) -> Scalar:
        wide = self.dtype.compute
        if wide == f64:
            radius_source = scalar.apply("sub", _number(1, wide), _uniform(words[:2], wide))
            turn = _uniform(words[2:], wide)
        else:
            # 31 bits: a float holds fewer near 1, but the small numbers are those of the tails
            count = scalar.cast(scalar.cast(_shift_right(words[0], 1), i32), wide)
            radius_source = _multiply(_add(count, _number(1, wide)), _number(2.0**-31, wide))
            turn = _uniform(words[1:], wide)
        square = _multiply(_number(-2, wide), scalar.apply("log", radius_source))
        angle = _multiply(turn, _number(2 * math.pi, wide))
        result = _multiply(scalar.apply("sqrt", square), scalar.apply("cos", angle))
        return scalar.cast(result, self.dtype)

    def from_arrays(self, words: Words) -> np.ndarray:
        dtype = self.dtype.compute
        wide = dtype.numpy.type
        if dtype == f64:
            radius_source, turn = 1 - _uniform_arrays(words[:2], dtype), _uniform_arrays(words[2:], dtype)
        else:
            radius_source = ((words[0] >> np.uint32(1)).astype(wide) + wide(1)) * wide(2.0**-31)
            turn = _uniform_arrays(words[1:], dtype)
        return np.sqrt(wide(-2) * np.log(radius_source)) * np.cos(turn * wide(2 * math.pi))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, f64, f16, bf16):
            yield Sample(cls((3, 50), dtype, 1), (_keys()[1],))


@dataclass(frozen=True)
class RandomIntegers(Random):
    """Uniform integers from low up to but without high: the high half of 64 random bits times their number
    (Lemire, Fast Random Integer Generation in an Interval), so none is likelier by more than number / 2^64."""

    shape: tuple[Dim, ...]
    low: int
    high: int
    dtype: DType = i64
    stream: int = 0

    def _check(self) -> None:
        if not self.dtype.is_integer:
            raise OpTypeError(f"{self.name} makes integers, not {self.dtype}")
        info = np.iinfo(self.dtype.numpy)
        if not info.min <= self.low < self.high <= int(info.max) + 1:
            raise OpTypeError(f"{self.name}: from {self.low} up to {self.high} is not a range of {self.dtype}")

    def from_words(self, words: Words) -> Scalar:
        low, high = (scalar.cast(w, u64) for w in words[:2])
        chosen = _high_product(low, high, self.high - self.low)
        return scalar.cast(_add(chosen, _number(self.low % (1 << 64), u64)), self.dtype)

    def from_arrays(self, words: Words) -> np.ndarray:
        bits = words[1].astype(object) * (1 << 32) + words[0]  # Python's integers: 128 bits are needed
        return np.asarray((bits * (self.high - self.low) >> 64) + self.low)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        key = _keys()[1]
        yield Sample(cls((3, 50), -3, 4), (key,))
        yield Sample(cls((40,), 0, 6, i32, 2), (key,))
        yield Sample(cls((40,), -128, 128, i8), (key,))
        yield Sample(cls((40,), 5, 6, u8), (key,))
        yield Sample(cls((40,), -(1 << 63), 1 << 63), (key,))
        yield Sample(cls((40,), -7, 1 << 62), (key,))
        yield Sample(cls((40,), 1 << 63, (1 << 64) - 1, u64), (key,))


def _high_product(low: Scalar, high: Scalar, factor: int) -> Scalar:
    """(high * 2^32 + low) * factor / 2^64 in 64-bit arithmetic, by halves; no partial sum overflows."""
    if factor == 1 << 64:
        return scalar.apply("or", scalar.apply("shl", high, _number(32, u64)), low)
    factor_high, factor_low = (_number(half, u64) for half in divmod(factor, 1 << 32))
    middle = _add(_multiply(high, factor_low), _shift_right(_multiply(low, factor_low), 32))
    if factor < 1 << 32:
        return _shift_right(middle, 32)
    rest = _add(_multiply(low, factor_high), scalar.cast(_low(middle), u64))
    return _add(_add(_multiply(high, factor_high), _shift_right(middle, 32)), _shift_right(rest, 32))


# --- distributions made of these ------------------------------------------------------------------


@dataclass(frozen=True)
class Bernoulli(Op):
    """y[i] = True with probability p[i]; the arguments are a key and p."""

    stream: int = 0
    differentiable = False
    cheap = False

    def infer(self, key: TensorType, p: TensorType) -> TensorType:
        require_key(self.name, key, self.stream)
        if not p.dtype.is_float:
            raise OpTypeError(f"bernoulli: probabilities are floats, not {p.dtype}")
        return p.with_dtype(boolean)

    def _draw(self, p: DType, shape: tuple[Dim, ...]) -> RandomUniform:
        return RandomUniform(shape, p.compute, self.stream)

    def evaluate(self, key: np.ndarray, p: np.ndarray) -> np.ndarray:
        draw = self._draw(dtype_of(p), p.shape).evaluate(key)
        return draw < p.astype(draw.dtype)

    def decompose(self, *xs: Node) -> Node:
        key, p = xs
        return key.apply(self._draw(p.dtype, p.shape)) < p.cast(p.dtype.compute)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, f64, f16, bf16):
            yield Sample(cls(2), (_keys()[1], dtype[3, 50]), 0, 1)
        yield Sample(cls(), (_keys()[0], np.array([0, 1, np.nan, -1, 2], np.float32)))


@dataclass(frozen=True)
class Categorical(Op):
    """For logits [..., classes]: a class, as i64 [...], with probability softmax(logits); the arguments are a key
    and the logits. The greatest of logit + noise, with noise -log(-log(uniform)) (Gumbel)."""

    stream: int = 0
    differentiable = False
    cheap = False

    def infer(self, key: TensorType, logits: TensorType) -> TensorType:
        require_key(self.name, key, self.stream)
        if logits.rank < 1 or not logits.dtype.is_float:
            raise OpTypeError(f"categorical: logits are floats [..., classes], not {logits!r}")
        if symbolic.equal(logits.shape[-1], 0) is True:
            raise OpTypeError(f"categorical: {logits!r} has no classes to choose from")
        return TensorType(i64, logits.shape[:-1])

    def _draw(self, logits: DType, shape: tuple[Dim, ...]) -> RandomUniform:
        return RandomUniform(shape, logits.compute, self.stream)

    def evaluate(self, key: np.ndarray, logits: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            noise = -np.log(-np.log(self._draw(dtype_of(logits), logits.shape).evaluate(key)))
        return np.asarray((logits.astype(noise.dtype) + noise).argmax(-1), np.int64)

    def decompose(self, *xs: Node) -> Node:
        key, logits = xs
        noise = -(-key.apply(self._draw(logits.dtype, logits.shape)).log()).log()
        return (logits.cast(noise.dtype) + noise).argmax(axis=logits.rank - 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f32, f64, f16):
            yield Sample(cls(5), (_keys()[1], dtype[20, 4]))
        yield Sample(cls(), (_keys()[1], np.array([[-np.inf, 0, -np.inf], [1, -np.inf, 1]], np.float32)))
        yield Sample(cls(), (_keys()[1], f32[3]))
        yield Sample(cls(), (_keys()[1], f32[2, 3, 1]))


@dataclass(frozen=True)
class Permutation(Op):
    """The integers from 0 up to `size`, as i64[size], in random order: that of 64 random bits each."""

    size: Dim
    stream: int = 0
    differentiable = False
    cheap = False

    def infer(self, key: TensorType) -> TensorType:
        require_key(self.name, key, self.stream)
        return TensorType(i64, (self.size,))

    def _draw(self) -> RandomBits:
        return RandomBits((self.size,), u64, self.stream)

    def evaluate(self, key: np.ndarray) -> np.ndarray:
        return np.argsort(self._draw().evaluate(key), kind="stable").astype(np.int64)

    def decompose(self, *xs: Node) -> Node:
        (key,) = xs
        return key.apply(self._draw()).argsort(axis=0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for size in (20, 1, 0):
            yield Sample(cls(size, 4), (_keys()[1],))


def dropout(x: Node, key: Node, rate: float, stream: int = 0) -> Any:
    """x with each element set to 0 with probability `rate` and the others divided by 1 - rate.

    The choice is a comparison of bits that the gradient recomputes: no mask need be kept.
    """
    if not 0 <= rate < 1:
        raise OpTypeError(f"dropout: the rate {rate} is not in [0, 1)")
    if rate == 0:
        return x
    bits = key.apply(RandomBits(x.shape, u32, stream))
    return (bits >= min(round(rate * 2**32), 2**32 - 1)).where(x * (1 / (1 - rate)), 0.0)


# --- keys -----------------------------------------------------------------------------------------


def key_array(seed: int, offset: int = 0) -> np.ndarray:
    """A key as an array; both numbers are taken modulo 2^64."""
    return np.array([seed % (1 << 64), offset % (1 << 64)], np.uint64)


def advance(key: Node, steps: int = 1) -> Any:
    """The key of a later run: nothing drawn with one is drawn with the other."""
    return key + key.constant([0, steps])


def split(key: Node, count: int) -> tuple[Any, ...]:
    """New keys, independent of each other and of what is drawn with the old one."""
    made = key.apply(RandomBits((count, 2), u64, SPLIT_STREAM))
    return tuple(movement.part(made, 0, n, n + 1).reshape((2,)) for n in range(count))


def fold_in(key: Node, data: int | Node) -> Any:
    """A new key for each integer (a number or a u64 tensor of rank 0): for loops and layers."""
    mixed = key.apply(RandomBits((2,), u64, FOLD_STREAM))
    number = data if isinstance(data, Node) else key.constant(data % (1 << 64))
    # drawn once more, or keys of neighbouring numbers would meet when they are advanced
    return (mixed ^ number.reshape((1,))).apply(RandomBits((2,), u64, FOLD_STREAM))


# --- samples --------------------------------------------------------------------------------------


def _keys() -> tuple[np.ndarray, ...]:
    return key_array(0), key_array(0x0123456789ABCDEF, 0xFEDCBA9876543210), key_array(-1, -1)
