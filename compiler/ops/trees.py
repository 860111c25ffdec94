"""Decision trees: which leaf a row reaches.

Children of a node lie side by side, and a leaf leads to itself through a column that always compares as true, so a step
is three loads, a comparison and an addition, without a branch. Trees are walked several at a time until all are at their
leaves: a step of one waits for memory and for its comparison, those of the others do not depend on it. Rows are
independent and run in parallel, a block of rows for each few trees, whose nodes are then in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.compiler.ir import scalar, symbolic
from ingot.compiler.ir.loops import Alloc, Let, Statement, Store, While
from ingot.compiler.ir.scalar import Buffer, Load, Local, Read, constant
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import TensorType, f32, f64, i64, u32
from ingot.compiler.ops import nests
from ingot.compiler.ops.base import Op, OpTypeError, Sample

TOGETHER = 8  # trees that are walked at a time
STEPS = 2  # between two looks whether all are at their leaves
ROWS = 64  # of a block


@dataclass(frozen=True)
class TreeLeaves(Op):
    """y[r, t]: the node at which row r of x ends in tree t.

    Arguments: x[rows, columns]; the threshold and the link of each node (`links`); the root of each tree. From a node a
    row goes on to `next` where x[row, feature] <= threshold, else to the node behind that. A node that leads to itself is
    a leaf. No tree is deeper than `depth`.
    """

    depth: int
    cheap = False
    rereads = True
    differentiable = False

    def infer(self, x: TensorType, thresholds: TensorType, link: TensorType, roots: TensorType) -> TensorType:
        if x.rank != 2 or x.dtype not in (f32, f64):
            raise OpTypeError(f"{self.name}: x is {x!r}, not a matrix of f32 or f64")
        if thresholds != x.with_shape(link.shape) or link.rank != 1 or link.dtype != i64:
            raise OpTypeError(f"{self.name}: thresholds are {thresholds!r}, links {link!r}; these are i64")
        if roots.rank != 1 or roots.dtype != u32 or not roots.is_static:
            raise OpTypeError(f"{self.name}: roots are {roots!r}, not a known number of u32")
        return TensorType(u32, (x.shape[0], roots.shape[0]))

    def evaluate(self, x: np.ndarray, thresholds: np.ndarray, link: np.ndarray, roots: np.ndarray) -> np.ndarray:
        feature, following = link & 0xFFFFFFFF, link >> 32
        place = np.broadcast_to(roots.astype(np.int64), (x.shape[0], roots.shape[0]))
        for _ in range(self.depth):
            place = following[place] + ~(np.take_along_axis(x, feature[place], 1) <= thresholds[place])
        return place.astype(np.uint32)

    def loops(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> tuple[Statement, ...]:
        (y,), (x, thresholds, link, roots) = outputs, inputs
        rows, trees = x.shape[0], roots.shape[0]
        assert isinstance(trees, int)
        if rows == 0 or trees == 0:
            return ()
        blocks = symbolic.ceildiv(rows, ROWS)

        def block(number: Dim) -> list[Statement]:
            first = number * ROWS
            count = symbolic.minimum(ROWS, rows - first)

            def some(start: Dim, size: int) -> tuple[Statement, ...]:
                return nests.repeat(count, lambda r: self._walk(y, x, thresholds, link, roots, first + r, start, size))

            whole = nests.repeat(trees // TOGETHER, lambda group: some(group * TOGETHER, TOGETHER))
            rest = trees % TOGETHER
            return [*whole, *(some(trees - rest, rest) if rest else ())]

        return nests.repeat(blocks, block, "parallel")

    def _walk(
        self, y: Buffer, x: Buffer, thresholds: Buffer, link: Buffer, roots: Buffer, row: Dim, start: Dim, size: int
    ) -> list[Statement]:
        """Trees `start` and the following, side by side."""
        place = Buffer("place", u32, (size,), "register")
        changed = Buffer("changed", u32, (), "register")

        def each(body: Callable[[Dim], list[Statement]]) -> Statement:
            return nests.loop(size, body, "unrolled")

        def step(tree: Dim, is_last: bool) -> list[Statement]:
            word, following = Local("word", i64), Local("following", u32)
            node = scalar.bounded_index(Load(place, (tree,)), link.shape[0], "a tree")
            feature = scalar.bounded_index(scalar.cast(Read(word), u32), x.shape[1], "a feature of a tree")
            first = scalar.apply("le", Load(x, (row, feature)), Load(thresholds, (node,)))
            second = scalar.cast(scalar.apply("not", first), u32)
            goal = scalar.cast(scalar.apply("shr", Read(word), constant(32, i64)), u32)
            made: list[Statement] = [
                Let(word, Load(link, (node,))),
                Let(following, scalar.apply("add", goal, second)),
            ]
            if is_last:
                difference = scalar.apply("xor", Read(following), Load(place, (tree,)))
                made.append(Store(changed, (), scalar.apply("or", Load(changed, ()), difference)))
            return [*made, Store(place, (tree,), Read(following))]

        steps: list[Statement] = [Store(changed, (), constant(0, u32))]
        steps += [each(lambda tree, last=n == STEPS - 1: step(tree, last)) for n in range(STEPS)]
        return [
            Alloc(place),
            Alloc(changed),
            each(lambda tree: [Store(place, (tree,), Load(roots, (start + tree,)))]),
            Store(changed, (), constant(1, u32)),
            While(scalar.apply("ne", Load(changed, ()), constant(0, u32)), tuple(steps), self.depth // STEPS + 2),
            each(lambda tree: [Store(y, (row, start + tree), Load(place, (tree,)))]),
        ]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # a root with a leaf and a node with two leaves; leaves compare column 2, which is 0
        link = links(np.array([0, 2, 1, 2, 2]), np.array([1, 1, 3, 3, 4]))
        x = np.array([[0.5, 1.0, 0.0], [2.0, -1.0, 0.0], [2.0, 7.0, 0.0], [np.nan, np.nan, 0.0]])
        thresholds = np.array([1.0, 0, 0, 0, 0])
        for dtype in (np.float64, np.float32):
            for count in (1, 8, 11):
                roots = np.resize([0, 2], count).astype(np.uint32)
                yield Sample(cls(2), (x.astype(dtype), thresholds.astype(dtype), link, roots))
        yield Sample(cls(2), (x[:0], thresholds, link, np.zeros(1, np.uint32)))


def links(feature: np.ndarray, following: np.ndarray) -> np.ndarray:
    """next << 32 | feature: one word that is loaded at once."""
    return following.astype(np.int64) << 32 | feature.astype(np.int64)
