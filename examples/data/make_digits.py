"""Write digits.npz beside this file from the copy of the data set that scikit-learn carries.

The bytes depend only on the data and the versions of NumPy and zlib: NumPy gives every zip member the same
date. Only needed to check or renew the file; the examples read digits.npz and need no scikit-learn.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).with_name("digits.npz")


def digits() -> dict[str, np.ndarray]:
    """Images (1797, 8, 8) with values 0..16 and labels (1797,) with values 0..9, in scikit-learn's order."""
    images, labels = load_digits(return_X_y=True)
    return {
        "images": np.asarray(images).reshape(-1, 8, 8).astype(np.uint8),
        "labels": np.asarray(labels).astype(np.int64),
    }


def main() -> None:
    arrays = digits()
    np.savez_compressed(TARGET, allow_pickle=False, **arrays)
    for name, array in arrays.items():
        print(f"{name}: {array.dtype}{list(array.shape)}, {array.min()}..{array.max()}")
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
