"""Memory: alignment, and copies that are those of NumPy whatever way they take."""

import numpy as np
import pytest

from ingot.runtime import storage
from ingot.runtime.abi import ALIGNMENT
from ingot.runtime.storage import (
    address_of,
    aligned_copies,
    aligned_together,
    copy_into,
    make_present,
    scratch_memory,
)


@pytest.mark.parametrize("sizes", [[], [0], [1, 64, 65, 0, 7], [1 << 20, 3, 1 << 21]])
def test_pieces_are_aligned_writeable_and_apart(sizes: list[int]) -> None:
    pieces = aligned_together(sizes)
    for number, piece in enumerate(pieces):
        assert address_of(piece) % ALIGNMENT == 0
        assert piece.flags.writeable
        piece[...] = number
    assert [piece.nbytes for piece in pieces] == sizes
    assert all((piece == number).all() for number, piece in enumerate(pieces))


@pytest.mark.parametrize("workers", [1, 3])
def test_only_what_is_not_aligned_or_not_in_order_is_copied(
    rng: np.random.Generator, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_WORTH_A_THREAD", 1)
    (memory,) = aligned_together([1024])
    fit = memory[:512].view(np.float32)
    fit[...] = rng.random(128)
    shifted, turned = fit[1:], fit.reshape(8, 16).T
    scalar = np.array(3.5)
    copies = aligned_copies([fit, shifted, turned, scalar, shifted], workers)
    assert copies[0] is fit
    for copy, array in zip(copies, [fit, shifted, turned, scalar, shifted], strict=True):
        np.testing.assert_array_equal(copy, array)
        assert copy.shape == array.shape
        assert copy.dtype == array.dtype
        assert copy.flags.c_contiguous
        assert address_of(copy) % ALIGNMENT == 0


@pytest.mark.parametrize("shape", [(3000, 700), (2, 1 << 20), (1, 3, 1 << 20), (3 << 20,)])
def test_large_copies_go_piece_by_piece_into_memory_that_is_not_there_yet(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rooms = aligned_together([array.nbytes, array.nbytes], present=False)
    room, turned = (r.view(np.float32) for r in rooms)
    copy_into(room.reshape(shape), array)
    copy_into(turned.reshape(shape[::-1]), array.T)
    np.testing.assert_array_equal(room.reshape(shape), array)
    np.testing.assert_array_equal(turned.reshape(shape[::-1]), array.T)


def test_pages_can_be_asked_for_where_others_are_in_use() -> None:
    (memory,) = aligned_together([1 << 20], present=False)
    memory[...] = 7
    make_present(memory[100:50000])
    make_present(memory[:0])
    assert (memory == 7).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape(6, 2, 12).transpose(1, 0, 2),  # short rows: moved as units
        lambda x: x.reshape(6, 24).T,  # no rows
        lambda x: x.reshape(6, 24)[:, ::-1],
        lambda x: x[:0].reshape(0, 4),
        lambda x: x[:1].reshape(()),
    ],
)
def test_copies_are_those_of_numpy(view, dtype: type, rng: np.random.Generator) -> None:
    array = view(rng.integers(-100, 100, 144).astype(dtype))
    room = np.full(array.shape, 77, dtype)
    copy_into(room, array)
    np.testing.assert_array_equal(room, array)


@pytest.mark.parametrize("present", [False, True])
def test_a_large_piece_begins_where_a_large_page_does(present: bool) -> None:
    first, second = aligned_together([(5 << 20) + 3, 100], present=present)
    assert address_of(first) % storage._LARGE_PAGE == 0
    first[...], second[...] = 1, 2
    assert first.sum() == first.nbytes
    assert (second == 2).all()


@pytest.mark.parametrize("size", [0, 1, 100_000, 4 << 20, (5 << 20) + 3])
def test_scratch_memory_is_aligned_and_writeable(size: int) -> None:
    memory = scratch_memory(size)
    assert memory.nbytes == size
    assert address_of(memory) % (storage._LARGE_PAGE if size >= 2 * storage._LARGE_PAGE else ALIGNMENT) == 0
    memory[...] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize("size", [1 << 47, 1 << 62, (1 << 63) - 1])
def test_scratch_memory_that_is_not_to_be_had(size: int) -> None:
    with pytest.raises(MemoryError):
        scratch_memory(size)
