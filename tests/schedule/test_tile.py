"""Ranges as tiles: every step is covered once, in order, whatever the sizes."""

import pytest

from ingot.compiler.ir import symbolic
from ingot.compiler.schedule import partition, tile


def steps_of(cover):
    return [
        piece.start + n * piece.size + r
        for piece in cover.pieces
        for n in range(piece.count)
        for r in range(piece.size)
    ]


@pytest.mark.parametrize("extent", [*range(1, 40), 64, 127, 128])
@pytest.mark.parametrize("size", [1, 4, 6, 14])
def test_evened_tiles_cover_every_step_once(extent, size):
    found = tile.evened(tile.cover(extent, (size, 4, 2, 1)))
    assert steps_of(found) == list(range(extent))
    assert all(piece.size <= size for piece in found.pieces)


@pytest.mark.parametrize("extent", range(6, 40))
def test_no_evened_tile_is_shorter_than_half(extent):
    found = tile.evened(tile.cover(extent, (6, 4, 2, 1)))
    assert all(2 * piece.size >= 6 for piece in found.pieces)


@pytest.mark.parametrize("extent", range(1, 30))
@pytest.mark.parametrize(("tallest", "vectors"), [(6, 2), (14, 1), (3, 3), (1, 8)])
def test_tiles_of_rows_cover_every_row_once(extent, tallest, vectors):
    n = symbolic.Symbol("n")
    found = tile.cover_rows(partition.Range(0, n, n), tallest, vectors)
    steps = []
    for piece in found.pieces:
        for number in range(symbolic.evaluate(piece.count, {n: extent})):
            limit = piece.limit(number)
            size = piece.size if limit is None else symbolic.evaluate(limit, {n: extent})
            assert 0 < size <= piece.size
            start = symbolic.evaluate(piece.start, {n: extent}) + number * piece.size
            steps.extend(range(start, start + size))
    assert steps == list(range(extent))
