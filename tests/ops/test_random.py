"""The generator against its published vectors; distributions against their moments; keys that do not meet."""

import math

import numpy as np
import pytest

from ingot.compiler import autodiff
from ingot.compiler.ir import interpret, scalar, tensor
from ingot.compiler.ir.types import bf16, f16, f32, f64, i8, i32, i64, u32, u64
from ingot.compiler.ops.base import Op, OpTypeError
from ingot.compiler.ops.random import (
    PRECISION,
    SPLIT_STREAM,
    Bernoulli,
    Categorical,
    Permutation,
    RandomBits,
    RandomIntegers,
    RandomNormal,
    RandomUniform,
    advance,
    dropout,
    fold_in,
    key_array,
    philox,
    philox_scalars,
    split,
)
from tests.ops.harness import build, call, gradient_of

# Philox4x32-10 of the Random123 distribution: counter, key, result
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

COUNT = 40_000
KEY = key_array(1234, 5)


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors_on_arrays(counter, key, expected):
    found = philox(words(*counter), words(*key))
    assert tuple(int(w[0]) for w in found) == expected
    assert {w.dtype for w in found} == {np.dtype(np.uint32)}


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors_on_scalars(counter, key, expected):
    made = philox_scalars([scalar.constant(c, u32) for c in counter], [scalar.constant(k, u32) for k in key])
    for word, number in zip(made, expected, strict=True):
        output = scalar.Buffer("y", u32, ())
        kernel = tensor.Kernel("philox", (), (output,), (tensor.Definition(output, (), word),))
        assert int(interpret.run_kernel(kernel, [])[0]) == number


def words(*numbers: int) -> list[np.ndarray]:
    return [np.array([n], np.uint32) for n in numbers]


def test_counter_layout():
    """Element n, the offset and the stream are the words of the counter; the seed is the key."""
    key = key_array(0x299F31D0A4093822, 0x0370734413198A2E)
    for n in range(3):
        expected = philox(words(n, 0, 0x13198A2E, 0x03707344 ^ 0x11), words(0xA4093822, 0x299F31D0))
        for word in range(4):
            assert RandomBits((3,), u32, 0x11, word).evaluate(key)[n] == expected[word][0]
        pair = RandomBits((3,), u64, 0x11, 2).evaluate(key)[n]
        assert int(pair) == int(expected[3][0]) << 32 | int(expected[2][0])


def test_bits_of_an_element_do_not_depend_on_the_shape():
    flat = RandomBits((60,), u64).evaluate(KEY)
    np.testing.assert_array_equal(RandomBits((3, 4, 5), u64).evaluate(KEY).ravel(), flat)
    np.testing.assert_array_equal(RandomBits((7,), u64).evaluate(KEY), flat[:7])


def test_streams_offsets_and_seeds_differ():
    draws = [
        RandomBits((50,), u64, stream).evaluate(key_array(seed, offset))
        for stream in (0, 1, 2)
        for seed in (0, 1)
        for offset in (0, 1, 2)
    ]
    assert len(np.unique(np.concatenate(draws))) == 50 * len(draws)


def test_bits_are_balanced():
    bits = RandomBits((COUNT,), u64).evaluate(KEY)
    ones = [(bits >> np.uint64(n) & np.uint64(1)).mean() for n in range(64)]
    # six standard deviations of a fair coin
    np.testing.assert_allclose(ones, 0.5, atol=6 * 0.5 / math.sqrt(COUNT))


def assert_distributed(sample: np.ndarray, distribution) -> None:
    """Kolmogorov and Smirnov: the greatest distance of the two distribution functions; p about 1e-6."""
    ordered = np.sort(sample.astype(np.float64))
    expected = distribution(ordered)
    place = np.arange(len(ordered) + 1) / len(ordered)
    distance = max(np.max(expected - place[:-1]), np.max(place[1:] - expected))
    assert distance < 2.7 / math.sqrt(len(ordered))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_uniform_is_uniform(dtype):
    u = RandomUniform((COUNT,), dtype).evaluate(KEY)
    assert 0 <= u.min() <= u.max() < 1
    assert_distributed(u, lambda x: x)
    # neighbours do not know of each other
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 6 / math.sqrt(COUNT)


@pytest.mark.parametrize(("dtype", "bits"), [(f16, 11), (bf16, 8), (f32, 24), (f64, 53)], ids=str)
def test_uniform_uses_the_precision_of_its_type(dtype, bits):
    """Multiples of 2^-p, odd ones too, and never 1."""
    multiples = RandomUniform((2000,), dtype).evaluate(KEY).astype(np.float64) * 2.0**bits
    np.testing.assert_array_equal(multiples, np.floor(multiples))
    assert 0.4 < (multiples % 2).mean() < 0.6
    assert multiples.max() <= 2.0**bits - 1


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_extreme_words(dtype):
    """All zeros and all ones give 0 and the number below 1; the normal stays finite."""
    below = 1 - 2.0 ** -PRECISION[dtype.name]
    for value, expected in ((0, 0.0), (0xFFFFFFFF, below)):
        a, b, c, d = words(value, value, value, value)
        assert float(RandomUniform((1,), dtype).from_arrays((a, b, c, d))[0]) == expected
        assert np.isfinite(RandomNormal((1,), dtype).from_arrays((a, b, c, d))).all()


@pytest.mark.parametrize("dtype", [f32, f64, f16], ids=str)
def test_normal_is_normal(dtype):
    z = RandomNormal((COUNT,), dtype).evaluate(KEY).astype(np.float64)
    erf = scalar.FUNCTIONS["erf"].evaluate
    assert_distributed(z, lambda x: 0.5 * (1 + erf(x / math.sqrt(2))))
    for power, moment, spread in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs((z**power).mean() - moment) < 6 * spread / math.sqrt(COUNT)


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(0, 6, i64), (-3, 4, i32), (-128, 128, i8), (-(1 << 40), 1 << 41, i64)]
)
def test_integers_cover_their_range_evenly(low, high, dtype):
    found = RandomIntegers((COUNT,), low, high, dtype).evaluate(KEY)
    assert found.min() >= low
    assert found.max() < high
    # spread over its unit interval, a uniform integer is a uniform number
    spread = found.astype(np.float64) - low + RandomUniform((COUNT,), f64, 1).evaluate(KEY)
    assert_distributed(spread / (high - low), lambda x: x)


def test_bernoulli_follows_its_probabilities():
    p = np.repeat(np.array([0.0, 0.1, 0.5, 1.0], np.float32), COUNT // 4)
    found = Bernoulli().evaluate(KEY, p).reshape(4, -1).mean(1)
    np.testing.assert_allclose(found, [0, 0.1, 0.5, 1], atol=6 * 0.5 / math.sqrt(COUNT / 4))
    assert found[0] == 0
    assert found[3] == 1


def test_categorical_follows_softmax():
    logits = np.log(np.array([0.1, 0.2, 0.0, 0.7], np.float32) + 1e-30)
    found = Categorical().evaluate(KEY, np.broadcast_to(logits, (COUNT // 2, 4)))
    shares = np.bincount(found, minlength=4) / len(found)
    np.testing.assert_allclose(shares, [0.1, 0.2, 0, 0.7], atol=6 * 0.5 / math.sqrt(len(found)))


def test_permutation_holds_each_number_once_in_any_place():
    found = Permutation(1000, 3).evaluate(KEY)
    np.testing.assert_array_equal(np.sort(found), np.arange(1000))
    firsts = [Permutation(4, n).evaluate(KEY)[0] for n in range(800)]
    np.testing.assert_allclose(np.bincount(firsts) / 800, 0.25, atol=6 * 0.43 / math.sqrt(800))


def test_dropout_keeps_the_mean_and_its_gradient_keeps_the_choice():
    x = np.ones(COUNT)

    def dropped(x, key):
        return dropout(x, key, 0.25, 7)

    y = call(dropped, x, KEY)
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert abs(y.mean() - 1) < 6 * math.sqrt(0.25 / 0.75) / math.sqrt(COUNT)
    np.testing.assert_array_equal(gradient_of(dropped, x, KEY), y)


def test_dropout_without_a_rate_is_nothing():
    graph = build(lambda x, key: dropout(x, key, 0.0), (f32[3], u64[2]))
    assert graph.outputs == graph.inputs[:1]
    with pytest.raises(OpTypeError, match=r"rate 1.0 is not in"):
        build(lambda x, key: dropout(x, key, 1.0), (f32[3], u64[2]))


def test_symbolic_shapes_draw_the_same_bits():
    def draw(x, key):
        return key.random_bits(shape=x.shape)

    graph = build(draw, (f32["n", 3], u64[2]))
    found = interpret.run_graph(graph, {"x0": np.zeros((4, 3), np.float32), "x1": KEY})[0]
    np.testing.assert_array_equal(found, RandomBits((4, 3)).evaluate(KEY))


# --- keys -----------------------------------------------------------------------------------------


def test_advanced_keys_count_up():
    found = call(lambda key: advance(advance(key, 3)), KEY)
    np.testing.assert_array_equal(found, key_array(1234, 9))


def test_made_keys_do_not_meet():
    """Splits and folds of two keys, advanced or not: all different, and none is an old one."""

    def make(key):
        return (*split(key, 3), *(fold_in(key, n) for n in range(4)))

    made = []
    for key in (KEY, key_array(1234, 6), key_array(1235, 5)):
        for found in call(make, key):
            made += [tuple(found), tuple(call(advance, found))]
        made.append(tuple(key))
    made = [(int(a), int(b)) for a, b in made]
    assert len(set(made)) == len(made)


def test_fold_in_takes_a_tensor():
    folded = call(fold_in, KEY, np.array(3, np.uint64))
    np.testing.assert_array_equal(folded, call(lambda key: fold_in(key, 3), KEY))


def test_split_keys_are_bits_of_their_own_stream():
    first, second = call(lambda key: split(key, 2), KEY)
    expected = RandomBits((2, 2), u64, SPLIT_STREAM).evaluate(KEY)
    np.testing.assert_array_equal([first, second], expected)


def test_drawing_has_no_gradient():
    graph = build(lambda x, key: x * key.random_normal(shape=(3,), dtype=f64), (f64[3], u64[2]))
    assert len(autodiff.differentiate(graph, (0,)).outputs) == 1


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (RandomBits((3,), i64), "are u32 or u64, not i64"),
        (RandomBits((3,), u64, 0, 1), "there is no u64 word 1"),
        (RandomBits((3,), u32, 1 << 32), "the stream 4294967296 is not between"),
        (RandomUniform((3,), i32), "makes floats, not i32"),
        (RandomIntegers((3,), 5, 5), "from 5 up to 5 is not a range"),
        (RandomIntegers((3,), 0, 300, i8), "is not a range of i8"),
        (RandomIntegers((3,), 0, 3, f32), "makes integers, not f32"),
    ],
)
def test_drawing_says_what_is_wrong(op: Op, message: str):
    with pytest.raises(OpTypeError, match=message):
        op.infer(u64[2])


@pytest.mark.parametrize("op", [RandomBits((3,)), Permutation(3)], ids=str)
def test_a_key_is_two_u64(op: Op):
    with pytest.raises(OpTypeError, match=r"a key is u64\[2\]"):
        op.infer(u32[2])
