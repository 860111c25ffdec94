"""The shipped data is what its note says it is."""

from pathlib import Path

import numpy as np

from examples.data import make_digits


def test_digits_file_holds_the_original_data():
    shipped = np.load(make_digits.TARGET)
    original = make_digits.digits()
    assert sorted(shipped) == sorted(original)
    for name, array in original.items():
        assert shipped[name].dtype == array.dtype
        np.testing.assert_array_equal(shipped[name], array)


def test_digits_are_written_the_same_twice(tmp_path, monkeypatch):
    def written(name: str) -> bytes:
        target: Path = tmp_path / name
        monkeypatch.setattr(make_digits, "TARGET", target)
        make_digits.main()
        return target.read_bytes()

    assert written("first.npz") == written("second.npz")


def test_digits_have_the_documented_shape_and_range():
    shipped = np.load(make_digits.TARGET)
    images, labels = shipped["images"], shipped["labels"]
    assert (images.shape, images.dtype, int(images.min()), int(images.max())) == (
        (1797, 8, 8),
        np.uint8,
        0,
        16,
    )
    assert (labels.shape, labels.dtype, set(labels.tolist())) == ((1797,), np.int64, set(range(10)))
