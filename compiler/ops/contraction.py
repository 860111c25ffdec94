"""Contraction: the one op behind matrix products, batched products, dot and outer products and einsum.

    y[output] = sum over the letters that the output does not have: a[left] * b[right]

Each letter names a dim. A letter of both operands that the output keeps is a batch dim; one that it drops is
summed; a letter of one operand only is free and must appear in the output. So the gradient of a contraction
is again two contractions.

Products and sums are computed in the widest of the compute types of operands and result, and rounded once.
`matmul` and `einsum` turn NumPy's rules into contractions and never materialise a broadcast operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from string import ascii_letters
from typing import Any

import numpy as np

from ingot.compiler.ir import scalar, symbolic, tensor
from ingot.compiler.ir.scalar import Scalar
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.tensor import Reader
from ingot.compiler.ir.types import DType, TensorType, bf16, dtype_of, f16, f32, f64, i8, i32, i64, u8
from ingot.compiler.ops.base import (
    Condition,
    DimsDiffer,
    Node,
    Op,
    OpTypeError,
    Sample,
    broadcast_shapes,
    require,
    shape_text,
)
from ingot.compiler.ops.movement import Diagonal


@dataclass(frozen=True)
class Contract(Op):
    """y[output] = sum(a[left] * b[right]); `result` is its element type, by default that of both operands."""

    left: str
    right: str
    output: str
    result: DType | None = None
    cheap = False
    rereads = True

    @property
    def summed(self) -> str:
        """The letters of both operands that the output drops, in the order of the left operand."""
        return "".join(letter for letter in self.left if letter not in self.output)

    @property
    def text(self) -> str:
        return f"{self.left},{self.right}->{self.output}"

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self._check_letters()
        for letters, operand in ((self.left, a), (self.right, b)):
            if len(letters) != operand.rank:
                raise OpTypeError(
                    f"contract: {letters!r} of {self.text} does not name the dims of {operand!r}"
                )
        extents = dict(zip(self.left, a.shape, strict=True))
        for letter, dim in zip(self.right, b.shape, strict=True):
            known = extents.setdefault(letter, dim)
            # An undecided question is refused: an extent that is too small would be read beyond its end.
            if symbolic.equal(known, dim) is not True:
                message = f"contract: {letter!r} of {self.text} is {known} in {a!r} and {dim} in {b!r}"
                raise DimsDiffer(message, known, dim)
        return TensorType(self._result_of(a.dtype, b.dtype), tuple(extents[letter] for letter in self.output))

    def _check_letters(self) -> None:
        for letters in (self.left, self.right, self.output):
            if len(set(letters)) != len(letters) or not all(letter in ascii_letters for letter in letters):
                raise OpTypeError(
                    f"contract: {letters!r} of {self.text} must be different letters; einsum takes diagonals"
                )
        both = set(self.left) & set(self.right)
        for letter in dict.fromkeys(self.left + self.right + self.output):
            if letter not in self.left + self.right:
                raise OpTypeError(f"contract: {letter!r} of the output is in no operand of {self.text}")
            if letter not in both and letter not in self.output:
                raise OpTypeError(
                    f"contract: {letter!r} of {self.text} is summed but in one operand only; sum it before"
                )

    def _result_of(self, a: DType, b: DType) -> DType:
        result = self.result or a
        kinds = {"integer" if t.is_integer else t.kind for t in (a, b, result)}
        if len(kinds) > 1 or kinds == {"bool"}:
            raise OpTypeError(
                f"contract: {a} and {b} do not multiply to {result}; cast to one kind of number"
            )
        if self.result is None and a != b:
            raise OpTypeError(f"contract: element types {a} and {b} differ; cast one, or name the `result`")
        return result

    def accumulator(self, a: DType, b: DType) -> DType:
        """The type that products and sums are computed in."""
        return max((self._result_of(a, b).compute, a.compute, b.compute), key=lambda t: t.bits)

    def evaluate(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        types = dtype_of(a), dtype_of(b)
        wide = self.accumulator(*types).numpy
        total = np.einsum(self.text, a.astype(wide), b.astype(wide), optimize=True)
        return np.asarray(total).astype(self._result_of(*types).numpy)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        return (
            contract(g, self.output, b, self.right, self.left, a.dtype),
            contract(a, self.left, g, self.output, self.right, b.dtype),
        )

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        a, b = operands
        wide = self.accumulator(a.type.dtype, b.type.dtype)
        place = dict(zip(self.output, index, strict=True))
        extents = dict(zip(self.left, a.type.shape, strict=True))

        def product(*variables: Dim) -> Scalar:
            at = place | dict(zip(self.summed, variables, strict=True))
            x = a(*(at[letter] for letter in self.left))
            y = b(*(at[letter] for letter in self.right))
            return scalar.apply("mul", scalar.cast(x, wide), scalar.cast(y, wide))

        if not self.summed:
            return scalar.cast(product(), output.dtype)
        total = tensor.reduction("sum", tuple(extents[letter] for letter in self.summed), product)
        return scalar.cast(total, output.dtype)

    @staticmethod
    def matmul(x: Node, y: Node) -> Any:
        """What `x @ y` means on nodes; here so that nodes find it through the registry."""
        return matmul(x, y)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (f64, f32, f16, bf16, i32):
            yield Sample(cls("ik", "kj", "ij"), (dtype[3, 5], dtype[5, 4]))
        yield Sample(cls("bik", "bjk", "bji"), (f64[2, 3, 5], f64[2, 4, 5]))
        yield Sample(cls("bik", "kj", "bij"), (f64[2, 3, 5], f64[5, 4]))
        yield Sample(cls("kil", "ljk", "ij"), (f64[3, 2, 4], f64[4, 5, 3]))
        yield Sample(cls("i", "i", ""), (f64[7], f64[7]))
        yield Sample(cls("i", "j", "ji"), (f64[3], f64[4]))
        yield Sample(cls("ij", "ji", "ij"), (f64[3, 4], f64[4, 3]))
        yield Sample(cls("", "i", "i"), (f64[()], f64[3]))
        yield Sample(cls("ik", "kj", "ij"), (f64[3, 0], f64[0, 2]))
        yield Sample(cls("ik", "kj", "ij"), (f32[1, 300], f32[300, 1]))
        yield Sample(cls("ik", "kj", "ij", i32), (u8[3, 5], i8[5, 4]), 0, 127)
        yield Sample(cls("ik", "kj", "ij", f32), (f16[3, 5], bf16[5, 4]))
        yield Sample(cls("ik", "kj", "ij", f16), (f32[3, 5], f16[5, 4]))
        yield Sample(cls("ik", "kj", "ij"), (i64[3, 5], i64[5, 4]), -9, 9)


@dataclass(frozen=True)
class Unblock(Op):
    """y[k, n] = x[n // w, k, n % w] for n < columns, where w is the last dim of x: a matrix that is stored in blocks of
    columns, each contiguous. The last block may reach beyond the columns."""

    movement = True
    read_through = True  # the order in memory is the point

    columns: Dim

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 3 or not isinstance(x.shape[2], int) or not x.shape[2]:
            raise OpTypeError(f"unblock: blocks are [block, row, column of block] of a known width, not {x!r}")
        require(*self.conditions(x))
        return x.with_shape((x.shape[1], self.columns))

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        blocks, _, width = x.shape
        message = f"unblock: {blocks} blocks of {width} columns do not hold {self.columns}"
        return (Condition(symbolic.ceildiv(self.columns, width), "eq", blocks, message),)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(1, 0, 2).reshape(x.shape[1], -1)[:, : self.columns]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.apply(Block(xs[0].shape[2])),)  # type: ignore[arg-type]  the width is known: see infer

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        row, column = index
        width = operands[0].type.shape[2]
        return operands[0](column // width, row, column % width)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(8), (f64[2, 3, 4],))
        yield Sample(cls(5), (f64[2, 3, 4],))
        yield Sample(cls(3), (f32[1, 2, 3],))


@dataclass(frozen=True)
class Block(Op):
    """y[b, k, j] = x[k, b * width + j], or 0 beyond the last column: what `Unblock` undoes."""

    prepares = True
    movement = True

    width: int

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 2 or self.width < 1:
            raise OpTypeError(f"block: cuts a matrix into blocks of one column or more, not {x!r} into {self.width}")
        return x.with_shape((symbolic.ceildiv(x.shape[1], self.width), x.shape[0], self.width))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        rows, columns = x.shape
        blocks, rest = -(-columns // self.width), -columns % self.width
        if rest:
            x = np.pad(x, ((0, 0), (0, rest)))
        return x.reshape(rows, blocks, self.width).transpose(1, 0, 2)  # a view: copied once, to where it is kept

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.apply(Unblock(xs[0].shape[1])),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        block, row, place = index
        column = block * self.width + place
        inside = scalar.predicate(column, "lt", operands[0].type.shape[1])
        return scalar.select(inside, operands[0](row, column), scalar.constant(0, output.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(4), (f64[3, 8],))
        yield Sample(cls(4), (f64[3, 5],))
        yield Sample(cls(3), (f32[2, 2],))
        yield Sample(cls(4), (f32[2, 0],))


@dataclass(frozen=True)
class Interleave(Op):
    """y[..., k // group, j, k % group] = x[..., k, j], or 0 beyond the last row: neighbouring rows side by side, as words
    of several. What `Deinterleave` undoes."""

    prepares = True
    movement = True

    group: int

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 2 or self.group < 1:
            raise OpTypeError(f"interleave: takes a matrix or several and groups of one row or more, not {x!r}")
        *outer, rows, columns = x.shape
        return x.with_shape((*outer, symbolic.ceildiv(rows, self.group), columns, self.group))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        *outer, rows, columns = x.shape
        x = np.pad(x, [(0, 0)] * len(outer) + [(0, -rows % self.group), (0, 0)])
        return x.reshape(*outer, -(-rows // self.group), self.group, columns).swapaxes(-1, -2)

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.apply(Deinterleave(xs[0].shape[-2])),)

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        *outer, row, column, place = index
        source = row * self.group + place
        inside = scalar.predicate(source, "lt", operands[0].type.shape[-2])
        return scalar.select(inside, operands[0](*outer, source, column), scalar.constant(0, output.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(2), (f64[6, 3],))
        yield Sample(cls(2), (f64[2, 5, 3],))
        yield Sample(cls(4), (i8[3, 2],))
        yield Sample(cls(2), (f32[4, 0],))


@dataclass(frozen=True)
class Deinterleave(Op):
    """y[..., k, j] = x[..., k // group, j, k % group] for k < rows, where group is the last dim of x"""

    movement = True
    read_through = True  # the order in memory is the point

    rows: Dim

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 3 or not isinstance(x.shape[-1], int) or not x.shape[-1]:
            raise OpTypeError(f"deinterleave: rows are [..., group, column, row of group] of a known size, not {x!r}")
        require(*self.conditions(x))
        return x.with_shape((*x.shape[:-3], self.rows, x.shape[-2]))

    def conditions(self, x: TensorType) -> tuple[Condition, ...]:
        count, group = x.shape[-3], x.shape[-1]
        message = f"deinterleave: {count} groups of {group} rows do not hold {self.rows}"
        return (Condition(symbolic.ceildiv(self.rows, group), "eq", count, message),)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        *outer, count, columns, group = x.shape
        return x.swapaxes(-1, -2).reshape(*outer, count * group, columns)[..., : self.rows, :]

    def vjp(self, g: Any, y: Any, *xs: Node) -> tuple[Node | None, ...]:
        return (g.apply(Interleave(xs[0].shape[-1])),)  # type: ignore[arg-type]  the group is known: see infer

    def lower(self, output: TensorType, index: tuple[Dim, ...], *operands: Reader) -> Scalar:
        *outer, row, column = index
        group = operands[0].type.shape[-1]
        return operands[0](*outer, row // group, column, row % group)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls(6), (f64[3, 4, 2],))
        yield Sample(cls(5), (f64[2, 3, 4, 2],))
        yield Sample(cls(3), (f32[1, 2, 4],))


def contract(a: Node, left: str, b: Node, right: str, output: str, result: DType | None = None) -> Any:
    """The contraction; when nothing is summed, an elementwise product, which fuses with its surroundings."""
    if result == a.dtype == b.dtype:
        result = None
    op = Contract(left, right, output, result)
    if op.summed or op.result is not None:
        return a.apply(op, b)
    op.infer(a.type, b.type)
    return _spread(a, left, output) * _spread(b, right, output)


def _spread(x: Node, letters: str, output: str) -> Any:
    """x with its dims in the order of the output, and dims of 1 for the letters it does not have."""
    extents = dict(zip(letters, x.shape, strict=True))
    ordered = x.transpose([letters.index(c) for c in output if c in letters])
    return ordered.reshape([extents.get(c, 1) for c in output])


# --- matmul ---------------------------------------------------------------------------------------


def matmul(x: Node, y: Node) -> Any:
    """NumPy's `x @ y`: the last dim of x with the last but one of y, or the only one; leading dims broadcast.

    A leading dim that is stretched is left out of its operand instead, so nothing is copied.
    """
    if x.rank == 0 or y.rank == 0:
        raise OpTypeError(f"matmul takes tensors with dims, not {x.type!r} and {y.type!r}; multiply instead")
    rows, columns = ("i" if x.rank > 1 else ""), ("j" if y.rank > 1 else "")
    x_batch, y_batch = x.shape[: max(x.rank - 2, 0)], y.shape[: max(y.rank - 2, 0)]
    batch = broadcast_shapes("matmul", x_batch, y_batch)
    letters = _fresh_letters(len(batch), "ijk")
    left, x = _drop_stretched(x, x_batch, batch, letters)
    right, y = _drop_stretched(y, y_batch, batch, letters)
    return x.apply(Contract(f"{left}{rows}k", f"{right}k{columns}", f"{letters}{rows}{columns}"), y)


def _drop_stretched(x: Node, own: Sequence[Dim], batch: Sequence[Dim], letters: str) -> tuple[str, Any]:
    """The letters of the leading dims that x really has, and x without those that broadcasting stretches."""
    offset = len(batch) - len(own)
    kept = [n for n, dim in enumerate(own) if dim == batch[n + offset]]
    shape = (*(own[n] for n in kept), *x.shape[len(own) :])
    return "".join(letters[n + offset] for n in kept), x.reshape(shape)


def _fresh_letters(count: int, used: str) -> str:
    free = [letter for letter in ascii_letters if letter not in used]
    if count > len(free):
        raise OpTypeError(f"a product over {count} leading dims has more dims than there are letters")
    return "".join(free[:count])


# --- einsum ---------------------------------------------------------------------------------------

EXHAUSTIVE_OPERANDS = 7  # up to here the best order is searched for; beyond, the cheapest pair goes first
NOMINAL_EXTENT = 64  # what a symbolic dim without an upper bound counts for when orders are compared


def einsum(spec: str, *operands: Node) -> Any:
    """NumPy's einsum for any number of operands: `einsum("...ik,kj->...ij", x, y)`.

    A letter repeated in one operand takes its diagonal; without `->` the output has the letters that occur
    once, in alphabetical order. Operands are contracted in pairs, in the order with the fewest products.
    """
    inputs, output = _parse(spec, operands)
    terms = [_take_diagonals(x, letters) for x, letters in zip(operands, inputs, strict=True)]
    _check_extents(spec, terms)
    terms = _align_stretched(terms)
    terms = [_sum_lonely(n, terms, output) for n in range(len(terms))]
    extents = {letter: dim for x, letters in terms for letter, dim in zip(letters, x.shape, strict=True)}
    tree = _order([letters for _, letters in terms], output, extents)
    result, letters = _contract_tree(tree, terms, output)
    if letters != output:
        result = result.transpose([letters.index(letter) for letter in output])
    return result


def _parse(spec: str, operands: Sequence[Node]) -> tuple[list[str], str]:
    """Letters per operand and of the output; an ellipsis becomes letters of its own."""
    plain = spec.replace(" ", "")
    left, arrow, right = plain.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(operands) or not operands:
        raise OpTypeError(f"einsum: {spec!r} describes {len(inputs)} operands; {len(operands)} were given")
    for text in (*inputs, right):
        if text.count("...") > 1 or not all(c in ascii_letters for c in text.replace("...", "", 1)):
            raise OpTypeError(f"einsum: {text!r} of {spec!r} is not letters with at most one '...'")
    extra = [x.rank - len(t.replace("...", "")) for x, t in zip(operands, inputs, strict=True)]
    for x, text, count in zip(operands, inputs, extra, strict=True):
        if count < 0 or (count and "..." not in text):
            raise OpTypeError(f"einsum: {text!r} of {spec!r} does not name the {x.rank} dims of {x.type!r}")
    widest = max((count for count, text in zip(extra, inputs, strict=True) if "..." in text), default=0)
    ellipsis = _fresh_letters(widest, plain)
    inputs = [t.replace("...", ellipsis[widest - n :]) for t, n in zip(inputs, extra, strict=True)]
    return inputs, _output_letters(spec, "".join(inputs), right if arrow else None, ellipsis)


def _output_letters(spec: str, used: str, given: str | None, ellipsis: str) -> str:
    if given is None:
        once = sorted(c for c in set(used) if used.count(c) == 1 and c not in ellipsis)
        return ellipsis + "".join(once)
    output = given.replace("...", ellipsis)
    for letter in output:
        if letter not in used:
            raise OpTypeError(f"einsum: {letter!r} of the output is in no operand of {spec!r}")
        if output.count(letter) > 1:
            raise OpTypeError(f"einsum: {letter!r} appears twice in the output of {spec!r}")
    return output


Term = tuple[Any, str]


def _take_diagonals(x: Node, letters: str) -> Term:
    """Replace two dims of the same letter by their diagonal, until every letter occurs once."""
    result: Any = x
    while repeated := next((c for c in letters if letters.count(c) > 1), None):
        first, second = letters.index(repeated), letters.rindex(repeated)
        if symbolic.equal(result.shape[first], result.shape[second]) is not True:
            raise OpTypeError(
                f"einsum: {repeated!r} is {result.shape[first]} and {result.shape[second]} in {x.type!r}; "
                "a diagonal needs equal dims"
            )
        others = [n for n in range(len(letters)) if n not in (first, second)]
        result = result.transpose([*others, first, second]).apply(Diagonal())  # the method of tensors takes other axes
        letters = "".join(letters[n] for n in others) + repeated
    return result, letters


def _check_extents(spec: str, terms: Sequence[Term]) -> None:
    """All dims of a letter are equal, except that dims of 1 stretch."""
    known: dict[str, Dim] = {}
    for x, letters in terms:
        for letter, dim in zip(letters, x.shape, strict=True):
            before = known.get(letter, 1)
            if before == 1:
                known[letter] = dim
            elif dim != 1 and symbolic.equal(before, dim) is not True:
                shapes = ", ".join(shape_text(x.shape) for x, _ in terms)
                raise OpTypeError(f"einsum: {letter!r} of {spec!r} is both {before} and {dim} in {shapes}")


def _align_stretched(terms: Sequence[Term]) -> list[Term]:
    """Drop dims of 1 whose letter is larger elsewhere: they would only be stretched."""
    large = {c for x, letters in terms for c, dim in zip(letters, x.shape, strict=True) if dim != 1}
    aligned: list[Term] = []
    for x, letters in terms:
        kept = [n for n, c in enumerate(letters) if x.shape[n] != 1 or c not in large]
        aligned.append((x.reshape([x.shape[n] for n in kept]), "".join(letters[n] for n in kept)))
    return aligned


def _sum_lonely(number: int, terms: Sequence[Term], output: str) -> Term:
    """Sum the letters of one operand that nothing else has."""
    x, letters = terms[number]
    elsewhere = output + "".join(other for n, (_, other) in enumerate(terms) if n != number)
    lonely = [n for n, c in enumerate(letters) if c not in elsewhere]
    return x.sum(lonely), "".join(c for c in letters if c in elsewhere)


Tree = int | tuple["Tree", "Tree"]


def _order(inputs: Sequence[str], output: str, extents: dict[str, Dim]) -> Tree:
    """The pairs to contract: numbers of operands, nested."""
    sizes = {letter: _nominal(dim) for letter, dim in extents.items()}
    search = _best_order if len(inputs) <= EXHAUSTIVE_OPERANDS else _greedy_order
    return search(inputs, output, sizes)


def _nominal(dim: Dim) -> int:
    low, high = symbolic.bounds(dim)
    return high if high is not None else max(low or 0, NOMINAL_EXTENT)


def _cost(a: set[str], b: set[str], sizes: dict[str, int]) -> int:
    return math.prod(sizes[letter] for letter in a | b)


def _best_order(inputs: Sequence[str], output: str, sizes: dict[str, int]) -> Tree:
    """Fewest products over all ways to split the operands in two, recursively; ties go to the left."""
    whole = frozenset(range(len(inputs)))

    def letters(members: frozenset[int]) -> set[str]:
        inside = set().union(*(inputs[n] for n in members))
        outside = set(output).union(*(inputs[n] for n in whole - members))
        return inside & outside

    @cache
    def best(members: frozenset[int]) -> tuple[int, Tree]:
        first, *rest = sorted(members)
        if not rest:
            return 0, first
        candidates: list[tuple[int, Tree]] = []
        for choice in range(2 ** len(rest) - 1):
            left = frozenset((first, *(n for place, n in enumerate(rest) if choice >> place & 1)))
            right = members - left
            (left_cost, left_tree), (right_cost, right_tree) = best(left), best(right)
            total = left_cost + right_cost + _cost(letters(left), letters(right), sizes)
            candidates.append((total, (left_tree, right_tree)))
        return min(candidates, key=lambda candidate: candidate[0])

    return best(whole)[1]


def _greedy_order(inputs: Sequence[str], output: str, sizes: dict[str, int]) -> Tree:
    """The pair with the fewest products first, again and again."""
    terms: list[tuple[Tree, set[str]]] = [(n, set(letters)) for n, letters in enumerate(inputs)]
    while len(terms) > 1:
        pairs = [(m, n) for n in range(len(terms)) for m in range(n)]
        m, n = min(pairs, key=lambda pair: _cost(terms[pair[0]][1], terms[pair[1]][1], sizes))
        others = [term for place, term in enumerate(terms) if place not in (m, n)]
        needed = set(output).union(*(letters for _, letters in others))
        made = ((terms[m][0], terms[n][0]), (terms[m][1] | terms[n][1]) & needed)
        terms = [*others, made]
    return terms[0][0]


def _contract_tree(tree: Tree, terms: Sequence[Term], needed: str) -> Term:
    """Contract along the tree; `needed` are the letters that are used outside of it."""
    if isinstance(tree, int):
        return terms[tree]
    left, right = tree
    left_letters, right_letters = (set().union(*(terms[n][1] for n in _members(side))) for side in tree)
    a, a_letters = _contract_tree(left, terms, needed + "".join(sorted(right_letters)))
    b, b_letters = _contract_tree(right, terms, needed + "".join(sorted(left_letters)))
    made = dict.fromkeys(a_letters + b_letters)
    kept = [c for c in made if c in needed]
    # the outermost contraction writes its result in the order that is wanted
    output = needed if set(kept) == set(needed) and len(kept) == len(needed) else "".join(kept)
    return contract(a, a_letters, b, b_letters, output), output


def _members(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [*_members(tree[0]), *_members(tree[1])]
