"""Mini-batches of arrays, in an order that a seed determines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


class Batches:
    """Iterates over tuples of arrays cut along their first axis; each pass has another order.

    The last batch is smaller unless `drop_last`; a model with a symbolic batch takes both.
    """

    def __init__(
        self,
        *arrays: np.ndarray,
        size: int = 32,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        lengths = {len(a) for a in arrays}
        if len(lengths) != 1:
            raise ValueError(f"the arrays have different lengths: {[len(a) for a in arrays]}")
        if size < 1:
            raise ValueError(f"a batch has at least 1 example, not {size}")
        self.arrays = arrays
        self.count = lengths.pop()
        self.size = size
        self.epochs = epochs
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last

    def __len__(self) -> int:
        per_epoch = self.count // self.size if self.drop_last else -(-self.count // self.size)
        return per_epoch * self.epochs

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        generator = np.random.default_rng(self.seed)
        for _ in range(self.epochs):
            order = generator.permutation(self.count) if self.shuffle else np.arange(self.count)
            for start in range(0, self.count, self.size):
                chosen = order[start : start + self.size]
                if len(chosen) < self.size and self.drop_last:
                    break
                yield tuple(a[chosen] for a in self.arrays)


def split(
    *arrays: np.ndarray, test: float = 0.2, seed: int = 0
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """(training arrays, test arrays): a random part of the examples is kept for testing."""
    order = np.random.default_rng(seed).permutation(len(arrays[0]))
    cut = len(order) - round(len(order) * test)
    return tuple(a[order[:cut]] for a in arrays), tuple(a[order[cut:]] for a in arrays)
